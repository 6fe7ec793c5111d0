"""Decide whether a reply is delivered: the send policy, and silent replies.

    {"rules": [{"action": "deny", "match": {"chatType": "group", "keyPrefix": "cron:"}}], "default": "allow"}

Send policy:
- The session's own `sendPolicy` wins. Then come the rules in order: the first matching rule that denies decides; a matching rule
  that allows counts if none denies. Then the default. Otherwise the reply is allowed.
- A rule matches if all its conditions match. A condition on an unknown property of a message does not match.
- An invalid policy is refused as a whole, because a misspelt condition would match every message.

Silence: a reply whose first token is `NO_REPLY` is not delivered.
- Tokens end at white space and the first must be exactly `NO_REPLY`. A reply that starts with `NO_REPLYfoo`, or mentions the
  word later, is delivered unchanged.
- Every reply, streamed or not, is checked before it is sent to a client. The stored reply keeps the word.
- A stream is held back while it could still become silent: white space, then a prefix of the word, then the word itself.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from sessile.errors import InvalidConfig

Action = Literal["allow", "deny"]
_Condition = Annotated[str, msgspec.Meta(pattern=r"\S")]  # an empty condition is invalid


class SendMatch(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The conditions of a rule. `key_prefix` applies to the whole key and to the part after the agent."""

    channel: _Condition | None = None
    chat_type: _Condition | None = None
    key_prefix: _Condition | None = None
    raw_key_prefix: _Condition | None = None


class SendRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule; without conditions it matches everything."""

    action: Action
    match: SendMatch = SendMatch()


class SendPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `session.sendPolicy` of a configuration."""

    rules: tuple[SendRule, ...] = ()
    default: Action | None = None


class Verdict(NamedTuple):
    """Whether a reply may be delivered, and what decided that."""

    allowed: bool
    why: str


def read_send_policy(value: object) -> SendPolicy | None:
    """Read the policy of a configuration; raise `InvalidConfig` if it is invalid."""
    if value is None:
        return None
    try:
        return msgspec.convert(value, SendPolicy)
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"session.sendPolicy is invalid: {error}",
            hint="a rule has an action (allow or deny) and a match (channel, chatType, keyPrefix, rawKeyPrefix)",
        ) from error


def decide_sending(
    policy: SendPolicy | None,
    key: str,
    *,
    override: Any = None,
    channel: str | None = None,
    chat_type: str | None = None,
) -> Verdict:
    """Decide whether a reply in the session of a key is delivered; `override` is the session's own `sendPolicy`."""
    if override in ("allow", "deny"):
        return _verdict(override, "the session")
    allowing = None
    policy = policy or SendPolicy()
    for number, rule in enumerate(policy.rules):
        if _matches(rule.match, key, channel, chat_type):
            name = f"session.sendPolicy.rules[{number}]"
            if rule.action == "deny":
                return _verdict("deny", name)
            allowing = allowing or name
    if allowing is not None:
        return _verdict("allow", allowing)
    if policy.default is not None:
        return _verdict(policy.default, "session.sendPolicy.default")
    return Verdict(True, "nothing denies it")


def _verdict(action: Action, who: str) -> Verdict:
    return Verdict(action == "allow", f"{who} {'allows' if action == 'allow' else 'denies'} it")


def _matches(match: SendMatch, key: str, channel: str | None, chat_type: str | None) -> bool:
    whole = _folded(key)
    first, _, behind = whole.partition(":")
    stripped = behind.partition(":")[2] if first == "agent" else whole
    return (
        (match.channel is None or _folded(match.channel) == _folded(channel))
        and (match.chat_type is None or _chat_type(match.chat_type) == _chat_type(chat_type))
        and (match.key_prefix is None or any(k.startswith(_folded(match.key_prefix)) for k in (whole, stripped)))
        and (match.raw_key_prefix is None or whole.startswith(_folded(match.raw_key_prefix)))
    )


def _folded(text: str | None) -> str:
    return (text or "").strip().lower()


def _chat_type(text: str | None) -> str:
    folded = _folded(text)
    return "direct" if folded == "dm" else folded


NO_REPLY = "NO_REPLY"


def is_silent(text: str) -> bool:
    """Return whether a whole reply is silent."""
    return text.split(maxsplit=1)[:1] == [NO_REPLY]


class Silence:
    """Filter for one streamed reply: `feed` each piece, then `finish`."""

    __slots__ = ("_begun", "_held", "silent")

    def __init__(self) -> None:
        self.silent: bool | None = None  # not known yet
        self._held: list[str] = []
        self._begun = ""  # the held text without leading white space

    def feed(self, text: str) -> str:
        """Add a piece; return the text that may be delivered now."""
        if self.silent is not None:
            return "" if self.silent else text
        self._held.append(text)
        self._begun = (self._begun + text).lstrip()
        if NO_REPLY.startswith(self._begun):
            return ""
        return self._decide()

    def finish(self) -> tuple[str, bool]:
        """End the reply; return the remaining text to deliver, and whether the reply was silent."""
        rest = self._decide() if self.silent is None else ""
        return rest, bool(self.silent)

    def _decide(self) -> str:
        self.silent = is_silent(self._begun)
        return "" if self.silent else "".join(self._held)
