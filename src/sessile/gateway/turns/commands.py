"""Chat commands: what each command of `core.chat_commands` does in a conversation, and the text that answers it.

    command = parse_command("/new opus write a poem", authorised=True, models=allowed_models(config))
    done = await execute(gateway, bound, command)       done.text, done.bound, done.message == "write a poem"

Rules:
- An invalid or unauthorised command is answered with the problem and changes nothing; so is one that fails.
- A model can be selected only if it can answer. `/model default` is always possible.
- Settings are changed through `Conversations.patch`. The value `inherit` clears a setting.
- `/new` in a session that was just started by a reset does not start another one.
- `/abort` stops all turns of the conversation, including those of its earlier sessions.
- Selectable models are those that the configuration lists and those that agents use. If none is listed, any
  "provider/model" of a configured provider is allowed, as one word. A unique last part of a long id (`claude-opus-4`)
  or a unique family name (`opus`) is a short name. Other parts of a model's name are not: `/new chat with me` is a
  message.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sessile import __version__
from sessile.core.chat_commands import COMMANDS, INHERIT, AllowedModels, ChatCommand, help_text
from sessile.core.resets import NEW_SESSION, previous_sessions, reset_notice
from sessile.core.visible import visible_line
from sessile.errors import Conflict, SessileError
from sessile.gateway.conversations.bindings import Bound
from sessile.gateway.http.problems import public_text
from sessile.gateway.turns.turn import queue_mode, sending_of, toggles_of, usage_line
from sessile.render.status import (
    UNKNOWN,
    Queue,
    Status,
    ago,
    compacted_text,
    compaction_refused,
    new_session_notice,
    session_kind,
    status_lines,
)
from sessile.upkeep.compactor import Compactor

if TYPE_CHECKING:
    from sessile.config import Config
    from sessile.core.tokens import Snapshot
    from sessile.gateway.conversations.registry import Conversation
    from sessile.gateway.service import Gateway
    from sessile.gateway.turns.turn import Turn

FAMILIES = frozenset(
    (
        *("opus", "sonnet", "haiku", "gpt", "gemini", "gemma", "grok", "llama", "qwen", "mistral", "codestral"),
        *("deepseek", "kimi", "glm", "phi"),
    )
)
"""Family names of models, which may be used as short names."""

_MAX_MODELS = 40  # listed in an answer
_LETTERS = re.compile(r"[a-z]+")


class Executed(NamedTuple):
    """The result of a command: its answer, the current binding, and the rest of the message for the model."""

    text: str
    bound: Bound
    message: str | None = None


async def execute(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    """Execute a command and return its result."""
    if command.problem is not None:
        return Executed(visible_line(_problem(gateway, command)), bound)
    try:
        return await _COMMANDS[command.name](gateway, bound, command)
    except SessileError as error:
        return Executed(_error_text(error), bound)


def _problem(gateway: Gateway, command: ChatCommand) -> str:
    models = allowed_models(gateway.config) if command.name == "model" and command.allowed else None
    if isinstance(models, AnyOfProviders) and models.configured:
        return f"Usage: /model provider/model. Configured providers: {', '.join(models.configured)}"
    return command.problem or ""


def _error_text(error: SessileError) -> str:
    """Return an error as shown in a chat."""
    hint = "" if error.hint is None else f" ({public_text(error.hint, error.path)})"
    return visible_line(f"⚠️ {public_text(error.message, error.path)}{hint}")


# -- sessions


async def _new(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    await _check_model(gateway, bound, command)
    if not _is_empty(bound):
        reset = gateway.conversations.reset
        reason: Literal["new", "reset"] = "reset" if command.name == "reset" else "new"
        started = await gateway.call(reset, bound.text, reason, command.model, expected=bound.session_id)
    else:
        started = bound._replace(reason="new")  # a new session was requested, even if a reset was due as well
        if command.model is not None:
            changed = await gateway.call(gateway.conversations.patch, bound.text, {"model": command.model})
            started = started._replace(entry=changed.entry)
    lines = [NEW_SESSION if started.previous_id is None else reset_notice(command.name)]
    if command.model is not None:
        lines.append(f"🧠 Model: {command.model}")
    if not command.text and toggles_of(started.entry).is_verbose:
        lines.append(new_session_notice(started.session_id))
    return Executed("\n".join(lines), started, command.text or None)


def _is_empty(bound: Bound) -> bool:
    """Return whether a session is new and has no messages. A thread may start with the messages of its parent."""
    if not bound.is_new:
        return False
    return bound.reason in ("daily", "idle") or bound.entry.get("forkedFromParent") is not True


async def _resume(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    now = gateway.store.now()
    resume = gateway.conversations.resume
    resumed = await gateway.call(resume, bound.text, command.number or 1, expected=bound.session_id)
    left = next((one for one in previous_sessions(bound.entry) if one.session_id == resumed.session_id), None)
    when = "" if left is None or left.ended_at is None else f", left {ago(left.ended_at, now)}"
    text = f"↩️ Resumed session {resumed.session_id}{when}. /resume goes back to the previous one."
    return Executed(text, resumed)


async def _status(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    return Executed("\n".join(status_lines(await chat_status(gateway, bound))), bound)


async def _compact(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    try:
        outcome = await gateway.turns.compact(bound, command.text or None)
    except SessileError as error:
        what: Literal["skipped", "failed"] = "skipped" if isinstance(error, Conflict) else "failed"
        return Executed(compaction_refused(what, public_text(error.message, error.path)), bound)
    before = None if outcome.tokens_before is None else outcome.tokens_before.tokens
    if outcome.status == "compacted":
        window = gateway.window_of(bound.agent, bound.entry)
        return Executed(compacted_text(before, outcome.tokens_after, window), bound)
    if outcome.status == "rejected":
        why = "; ".join(objection.detail for objection in outcome.objections)
        return Executed(compaction_refused("failed", f"{why}; the history is unchanged"), bound)
    return Executed(compaction_refused("skipped", _SKIPPED[outcome.status]), bound)


_SKIPPED = {
    "nothing": "there is nothing to summarize yet",
    "not_due": "the context is not full",
    "cancelled": "a hook cancelled it",
    "given_up": "the context would not become smaller",
}


async def _abort(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    turns = turns_of(gateway, bound.text)
    states = {turn.id: turn.state for turn in turns}
    sessions = dict.fromkeys([bound.session_id, *(turn.session_id for turn in turns)])
    stopped = [turn_id for session_id in sessions for turn_id in await gateway.turns.abort(session_id)]
    waited = sum(states.get(turn_id) == "queued" for turn_id in stopped)
    parts = []
    if len(stopped) > waited:
        parts.append("the running turn")
    if waited:
        parts.append(f"{waited} waiting message{'' if waited == 1 else 's'}")
    return Executed(f"🛑 Stopped {' and '.join(parts)}." if parts else "No turn is running.", bound)


async def _help(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    return Executed(help_text(), bound)


# -- settings


_MEMBERS = {row.name: row.member for row in COMMANDS if row.member is not None}
_VALUES = {row.name: row.shown for row in COMMANDS}


async def _set(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    if command.value is None:
        entry = await _entry(gateway, bound)
        return Executed(
            f"{_setting_line(gateway, bound, command, entry)}. Values: {', '.join(_VALUES[command.name])}", bound
        )
    value = _stored(command)
    changed = await gateway.call(gateway.conversations.patch, bound.text, {_MEMBERS[command.name]: value})
    text = f"{_setting_line(gateway, bound, command, changed.entry)}.{_remark(command)}"
    return Executed(text, bound._replace(entry=changed.entry))


def _stored(command: ChatCommand) -> str | None:
    """Return the value to store: the effective one, where several values have the same effect."""
    if command.value == INHERIT:
        return None
    if command.name == "queue":
        return queue_mode(command.value)
    return "tokens" if (command.name, command.value) == ("usage", "on") else command.value


def _setting_line(gateway: Gateway, bound: Bound, command: ChatCommand, entry: Mapping[str, Any]) -> str:
    """Return the current value of a setting, as a line."""
    toggles = toggles_of(entry)
    verdict = sending_of(gateway.config.session.sending, bound.text, entry)
    lines = {
        "think": f"Thinking: {toggles.thinking or 'default'}",
        "verbose": f"Verbose: {toggles.verbose}",
        "reasoning": f"Reasoning: {toggles.reasoning}",
        "queue": f"Queue: {toggles.queue}",
        "usage": f"Usage in replies: {toggles.usage}",
        "send": f"Sending: {'on' if verdict.allowed else 'off'} ({verdict.why})",
    }
    return visible_line(f"⚙️ {lines[command.name]}")


def _remark(command: ChatCommand) -> str:
    if command.name == "queue" and command.value not in (INHERIT, queue_mode(command.value)):
        return f" {command.value} is not supported: messages wait until the running turn is done."
    if command.name == "send" and command.value == "deny":
        return " Replies are stored but not delivered. Use /send on to deliver them again."
    return ""


async def _usage(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    if command.value is not None:
        return await _set(gateway, bound, command)
    entry = await _entry(gateway, bound)
    names = {"input": "inputTokens", "output": "outputTokens", "cacheRead": "cacheRead", "cacheWrite": "cacheWrite"}
    used: dict[str, Any] = {name: entry.get(member) for name, member in names.items()}
    used["cost"] = {"total": entry.get("estimatedCostUsd")}
    shown = await _set(gateway, bound, command)
    return Executed(f"{usage_line(used, 'full')} in this session\n{shown.text}", bound)


# -- models


async def _model(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    if command.model is None and command.value != INHERIT:
        entry = await _entry(gateway, bound)
        return Executed(f"{_model_line(gateway, bound, entry)}\n{_choice(gateway)}", bound)
    await _check_model(gateway, bound, command)
    patch = {"model": None if command.value == INHERIT else command.model}
    changed = await gateway.call(gateway.conversations.patch, bound.text, patch)
    return Executed(_model_line(gateway, bound, changed.entry), bound._replace(entry=changed.entry))


async def _check_model(gateway: Gateway, bound: Bound, command: ChatCommand) -> None:
    """Raise if the model of a command cannot answer, for example because its API key is missing."""
    if command.model is not None:
        await gateway.call(gateway.answerers.of, bound.agent, command.model)


def _model_line(gateway: Gateway, bound: Bound, entry: Mapping[str, Any]) -> str:
    origin = "agent default" if toggles_of(entry).model is None else "set for this conversation"
    return visible_line(f"🧠 Model: {gateway.model_of(bound.agent, entry) or UNKNOWN} ({origin})")


def _choice(gateway: Gateway) -> str:
    """Return the models that `/model` accepts, as a line."""
    models = allowed_models(gateway.config)
    if isinstance(models, AnyOfProviders):
        providers = ", ".join(models.configured)
        return visible_line(f"Any model of these providers: {providers}" if providers else "No provider is configured.")
    short: dict[str, str] = {model: name for name, model in models.aliases.items()}
    shown = [f"{model} ({short[model]})" if model in short else model for model in models.allowed[:_MAX_MODELS]]
    more = len(models.allowed) - len(shown)
    return visible_line(f"Models: {', '.join(shown)}{f' and {more} more' if more else ''}")


async def _entry(gateway: Gateway, bound: Bound) -> Mapping[str, Any]:
    """Return the current entry of a conversation."""
    conversation = await gateway.call(gateway.conversations.get, bound.text)
    return bound.entry if conversation is None else conversation.entry


_COMMANDS: dict[str, Callable[[Gateway, Bound, ChatCommand], Awaitable[Executed]]] = {
    "new": _new,
    "reset": _new,
    "resume": _resume,
    "status": _status,
    "compact": _compact,
    "think": _set,
    "verbose": _set,
    "reasoning": _set,
    "model": _model,
    "send": _set,
    "queue": _set,
    "abort": _abort,
    "usage": _usage,
    "help": _help,
}


# -- status


async def chat_status(gateway: Gateway, conversation: Bound | Conversation) -> Status:
    """Return what `/status` reports about a conversation."""
    turns = turns_of(gateway, conversation.text)  # the turns belong to the event loop
    return await gateway.call(_chat_status, gateway, conversation, sum(turn.state == "queued" for turn in turns))


def turns_of(gateway: Gateway, key: str) -> list[Turn]:
    """Return the running and waiting turns of a conversation, including those in its earlier sessions."""
    return [turn for turn in gateway.turns.live() if turn.key == key]


def _chat_status(gateway: Gateway, conversation: Bound | Conversation, waiting: int) -> Status:
    key, agent = conversation.text, conversation.agent
    current = gateway.conversations.get(key)
    entry = conversation.entry if current is None else current.entry
    toggles = toggles_of(entry)
    size = _size(gateway, conversation)
    settings = gateway.config.runner_of(agent, toggles.model)
    in_group = session_kind(conversation.key, entry.known("chatType")) == "group"
    return Status(
        version=__version__,
        now=gateway.store.now(),
        zone=gateway.zone,
        key=key,
        updated_at=_whole_number(entry.updated_at),
        model=gateway.model_of(agent, entry),
        auth=_auth(gateway, settings.provider),
        input_tokens=_whole_number(entry.known("inputTokens")),
        output_tokens=_whole_number(entry.known("outputTokens")),
        cost=entry.known("estimatedCostUsd"),
        context_tokens=None if size is None else size.tokens,
        context_estimated=size is not None and size.source == "estimate",
        context_window=gateway.window_of(agent, entry),
        compactions=_whole_number(entry.known("compactionCount")),
        runtime=settings.name,
        thinking=toggles.thinking,
        verbose=toggles.verbose,
        reasoning=toggles.reasoning,
        elevated=entry.known("elevatedLevel"),
        activation=entry.known("groupActivation") if in_group else None,
        queue=Queue(toggles.queue, depth=waiting, cap=gateway.config.limits.queued_turns),
        resets=gateway.conversations.policy(key),
        sending=sending_of(gateway.config.session.sending, key, entry).allowed,
    )


def _size(gateway: Gateway, conversation: Bound | Conversation) -> Snapshot | None:
    """Return the size of the current session's context; `None` if there is no session."""
    path = conversation.path if isinstance(conversation, Bound) else gateway.conversations.path_of(conversation.text)
    if path is None:
        return None
    with gateway.store.open(path, readonly=True) as session:
        return Compactor(session).size()


def _auth(gateway: Gateway, provider: str | None) -> str | None:
    """Return how requests to a provider are authenticated, as far as the configuration tells."""
    settings = gateway.config.models.providers.get(provider or "")
    if settings is None:
        return None
    if settings.api_key is not None:
        return "api-key"
    return None if settings.api_key_env is None else f"api-key ({settings.api_key_env})"


def _whole_number(value: float | None) -> int | None:
    return None if value is None else int(value)


# -- allowed models


class AnyOfProviders(AllowedModels, frozen=True):
    """Any model of some providers, as "provider/model"."""

    configured: tuple[str, ...] = ()

    def named(self, name: str) -> str | None:
        """Return the model of that name, if its provider is configured."""
        prefix, _, model = name.partition("/")
        provider = next((one for one in self.configured if one.lower() == prefix.lower()), None)
        return f"{provider}/{model}" if provider is not None and model else None


def allowed_models(config: Config) -> AllowedModels:
    """Return the models that may be selected in a chat."""
    models = tuple(dict.fromkeys(_listed(config)))
    if not models:
        return AnyOfProviders(configured=tuple(config.models.providers))
    return AllowedModels(allowed=models, aliases=_short_names(models))


def _listed(config: Config) -> Iterator[str]:
    for agent in (config.agents.defaults, *config.agents.list):
        if agent.model_name is not None:
            yield agent.model_name
    for name, provider in config.models.providers.items():
        for model in provider.models:
            yield f"{name}/{model.id}"


def _short_names(models: tuple[str, ...]) -> dict[str, str]:
    """Return the short names that are unique."""
    named: defaultdict[str, set[str]] = defaultdict(set)
    for model in models:
        _, _, own = model.lower().rpartition("/")
        if model.count("/") > 1:
            named[own].add(model)
        for word in FAMILIES.intersection(_LETTERS.findall(own)):
            named[word].add(model)
    return {name: found.pop() for name, found in sorted(named.items()) if len(found) == 1}
