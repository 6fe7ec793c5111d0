"""What the members of a conversation's entry mean for a turn: the model, how it thinks, what is shown, what waits, what is sent.

    toggles = toggles_of(bound.entry)
    toggles.model or the agent's own                 "provider/model", or a model alone: then the agent's provider is meant
    RunRequest(thinking=toggles.thinking)            as it was set; a runner that does not know the level says so
    sending_of(config.session.sending, key, entry)   whether replies are delivered, and who decides that
    usage_line(reply.usage, toggles.usage)

Rules: `None` means that nothing was set, and the agent's own holds. People edit these members: one of another type, or with a
value that has no meaning, is as if it were not set; only a level of thinking is passed on, because each runner has its own. A
running turn cannot be steered here: every way of queueing but `interrupt` lets messages wait for their turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from sessile.core.send_policy import SendPolicy, Verdict, decide_sending
from sessile.core.spending import Spent, amount
from sessile.core.status_text import UNKNOWN
from sessile.render.wording import money

Shown = Literal["off", "on", "full", "stream"]
UsageLevel = Literal["off", "tokens", "full"]
QueueMode = Literal["followup", "interrupt"]
Sending = Literal["allow", "deny"]

_VERBOSE: dict[str, Shown] = {"off": "off", "on": "on", "full": "full"}
_REASONING: dict[str, Shown] = {"off": "off", "on": "on", "stream": "stream"}
_USAGE: dict[str, UsageLevel] = {"off": "off", "on": "tokens", "tokens": "tokens", "full": "full"}
_QUEUE: dict[str, QueueMode] = {"interrupt": "interrupt"}
_SENDING: dict[str, Sending] = {"allow": "allow", "deny": "deny"}


class Toggles(NamedTuple):
    """What holds for the turns of a conversation."""

    model: str | None = None
    thinking: str | None = None
    verbose: Shown = "off"
    reasoning: Shown = "off"
    usage: UsageLevel = "off"
    queue: QueueMode = "followup"
    sending: Sending | None = None  # the send policy decides

    @property
    def is_verbose(self) -> bool:
        """Whether a person wants to hear what happens inside of a turn."""
        return self.verbose != "off"


def toggles_of(entry: Mapping[str, Any]) -> Toggles:
    """What an entry of the store sets."""
    return Toggles(
        model=model_override_of(entry),
        thinking=_text(entry.get("thinkingLevel")),
        verbose=_VERBOSE.get(_said(entry, "verboseLevel"), "off"),
        reasoning=_REASONING.get(_said(entry, "reasoningLevel"), "off"),
        usage=_USAGE.get(_said(entry, "responseUsage"), "off"),
        queue=queue_mode(entry.get("queueMode")),
        sending=_SENDING.get(_said(entry, "sendPolicy")),
    )


def model_override_of(entry: Mapping[str, Any]) -> str | None:
    """The model that a conversation uses instead of its agent's."""
    provider, model = _text(entry.get("providerOverride")), _text(entry.get("modelOverride"))
    if model is None:
        return None  # a provider alone names no model
    return model if provider is None else f"{provider}/{model}"


def queue_mode(told: object) -> QueueMode:
    """What happens here to messages during a turn, whichever way of queueing was asked for."""
    return _QUEUE.get(told, "followup") if isinstance(told, str) else "followup"


def sending_of(policy: SendPolicy | None, key: str, entry: Mapping[str, Any]) -> Verdict:
    """Whether replies in a conversation may be delivered, by its own word and by the policy."""
    return decide_sending(
        policy,
        key,
        override=_SENDING.get(_said(entry, "sendPolicy")),
        channel=_text(entry.get("channel")),
        chat_type=_text(entry.get("chatType")),
    )


def usage_line(usage: Mapping[str, Any] | None, level: UsageLevel) -> str | None:
    """What is added to a reply about the tokens of its answer, such as `🧮 1.2k in / 340 out · 💵 $0.02`."""
    if level == "off":
        return None
    spent = Spent()
    spent.add(usage, 0)
    line = f"🧮 {_tokens(spent.input)} in / {_tokens(spent.output)} out"
    if level == "tokens":
        return line
    if spent.cache_read or spent.cache_write:
        line += f" · cache {_tokens(spent.cache_read)} read / {_tokens(spent.cache_write)} written"
    return f"{line} · 💵 {UNKNOWN if spent.cost is None else money(spent.cost)}"


def _tokens(count: int | None) -> str:
    return UNKNOWN if count is None else amount(count)


def _said(entry: Mapping[str, Any], name: str) -> str:
    return _text(entry.get(name)) or ""


def _text(value: object) -> str | None:
    return value.strip() or None if isinstance(value, str) else None
