"""What chat commands do: each is answered in one text, and changes the conversation, never the model's mind.

    command = parse_command("/new opus write a poem", authorised=True, models=allowed_models(config))
    done = await execute(gateway, bound, command)       done.text, done.bound, done.message == "write a poem"

Rules:
- A command that is not understood, or not allowed, answers with what is wrong and does nothing; so does one that fails.
- A model is chosen only if it can answer; `/model default` always can be said.
- What is set goes through `Conversations.patch`, which says what can be set. `inherit` takes it away again.
- `/new` in a session that has just begun by itself does not begin another one: nobody wants to go back to an empty session.
- `/abort` stops every turn of the conversation, also those of a session that it has left.

What of this is delivered where, and when a command has its turn, is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sessile.core.chat_commands import COMMANDS, INHERIT, ChatCommand, help_text
from sessile.core.resets import NEW_SESSION, previous_sessions, reset_notice
from sessile.core.visible import visible_line
from sessile.errors import Conflict, SessileError
from sessile.gateway.http.problems import tellable
from sessile.gateway.http.state import chat_status, turns_of
from sessile.gateway.turns.admission import AnyOfProviders, allowed_models
from sessile.gateway.turns.turn import queue_mode, sending_of, toggles_of, usage_line
from sessile.render.status import UNKNOWN, ago, compacted_text, compaction_refused, new_session_notice, status_lines

if TYPE_CHECKING:
    from sessile.gateway.conversations.bindings import Bound
    from sessile.gateway.service import Gateway

_MOST = 40  # models that an answer lists


class Executed(NamedTuple):
    """What became of a command: the answer, the conversation's session by now, and what is still to be said to the model."""

    text: str
    bound: Bound
    message: str | None = None


async def execute(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    """Do what a command says."""
    if command.problem is not None:
        return Executed(visible_line(_problem(gateway, command)), bound)
    try:
        return await _EXECUTED[command.name](gateway, bound, command)
    except SessileError as error:
        return Executed(_told(error), bound)


def _problem(gateway: Gateway, command: ChatCommand) -> str:
    models = allowed_models(gateway.config) if command.name == "model" and command.allowed else None
    if isinstance(models, AnyOfProviders) and models.configured:
        return f"/model takes a model as provider/model; providers: {', '.join(models.configured)}"
    return command.problem or ""


def _told(error: SessileError) -> str:
    """An error as a person in a chat may read it."""
    hint = "" if error.hint is None else f" ({tellable(error.hint, error.path)})"
    return visible_line(f"⚠️ {tellable(error.message, error.path)}{hint}")


# -- sessions


async def _new(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    await _check_model(gateway, bound, command)
    if not _is_empty(bound):
        reset = gateway.conversations.reset
        reason: Literal["new", "reset"] = "reset" if command.name == "reset" else "new"
        begun = await gateway.call(reset, bound.text, reason, command.model, expected=bound.session_id)
    else:
        begun = bound._replace(reason="new")  # whatever was due as well, somebody wanted it
        if command.model is not None:
            changed = await gateway.call(gateway.conversations.patch, bound.text, {"model": command.model})
            begun = begun._replace(entry=changed.entry)
    lines = [NEW_SESSION if begun.previous_id is None else reset_notice(command.name)]
    if command.model is not None:
        lines.append(f"🧠 Model: {command.model}")
    if not command.text and toggles_of(begun.entry).is_verbose:
        lines.append(new_session_notice(begun.session_id))
    return Executed("\n".join(lines), begun, command.text or None)


def _is_empty(bound: Bound) -> bool:
    """Whether nothing was said in a session yet; a thread may have begun with the words of its parent."""
    if not bound.is_new:
        return False
    return bound.reason in ("daily", "idle") or bound.entry.get("forkedFromParent") is not True


async def _resume(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    now = gateway.store.now()
    resume = gateway.conversations.resume
    resumed = await gateway.call(resume, bound.text, command.number or 1, expected=bound.session_id)
    left = next((one for one in previous_sessions(bound.entry) if one.session_id == resumed.session_id), None)
    when = "" if left is None or left.ended_at is None else f" that you left {ago(left.ended_at, now)}"
    text = f"↩️ Back in the session{when}: {resumed.session_id}. /resume takes you to the one that you come from."
    return Executed(text, resumed)


async def _status(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    return Executed("\n".join(status_lines(await chat_status(gateway, bound))), bound)


async def _compact(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    try:
        outcome = await gateway.turns.compact(bound, command.text or None)
    except SessileError as error:
        what: Literal["skipped", "failed"] = "skipped" if isinstance(error, Conflict) else "failed"
        return Executed(compaction_refused(what, tellable(error.message, error.path)), bound)
    before = None if outcome.tokens_before is None else outcome.tokens_before.tokens
    if outcome.status == "compacted":
        window = gateway.window_of(bound.agent, bound.entry)
        return Executed(compacted_text(before, outcome.tokens_after, window), bound)
    if outcome.status == "rejected":
        why = "; ".join(objection.detail for objection in outcome.objections)
        return Executed(compaction_refused("failed", f"{why}; the history stays as it is"), bound)
    return Executed(compaction_refused("skipped", _SKIPPED[outcome.status]), bound)


_SKIPPED = {
    "nothing": "there is nothing to sum up yet",
    "not_due": "there is room enough",
    "cancelled": "a hook has cancelled it",
    "given_up": "it would not become smaller",
}


async def _abort(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    turns = turns_of(gateway, bound.text)
    states = {turn.id: turn.state for turn in turns}
    sessions = dict.fromkeys([bound.session_id, *(turn.session_id for turn in turns)])
    stopped = [turn_id for session_id in sessions for turn_id in await gateway.turns.abort(session_id)]
    waited = sum(states.get(turn_id) == "queued" for turn_id in stopped)
    told = []
    if len(stopped) > waited:
        told.append("the running turn")
    if waited:
        told.append(f"{waited} message{'' if waited == 1 else 's'} that waited")
    return Executed(f"🛑 Stopped {' and '.join(told)}." if told else "There is no turn to stop.", bound)


async def _help(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    return Executed(help_text(), bound)


# -- settings


_MEMBERS = {row.name: row.member for row in COMMANDS if row.member is not None}
_VALUES = {row.name: row.shown for row in COMMANDS}


async def _set(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    if command.value is None:
        entry = await _entry(gateway, bound)
        return Executed(f"{_held(gateway, bound, command, entry)}; there are {', '.join(_VALUES[command.name])}", bound)
    value = _stored(command)
    changed = await gateway.call(gateway.conversations.patch, bound.text, {_MEMBERS[command.name]: value})
    text = f"{_held(gateway, bound, command, changed.entry)}.{_remark(command)}"
    return Executed(text, bound._replace(entry=changed.entry))


def _stored(command: ChatCommand) -> str | None:
    """What the entry holds from now on: what really happens, where more can be asked for than can be had."""
    if command.value == INHERIT:
        return None
    if command.name == "queue":
        return queue_mode(command.value)
    return "tokens" if (command.name, command.value) == ("usage", "on") else command.value


def _held(gateway: Gateway, bound: Bound, command: ChatCommand, entry: Mapping[str, Any]) -> str:
    """What holds of a setting."""
    toggles = toggles_of(entry)
    verdict = sending_of(gateway.config.session.sending, bound.text, entry)
    held = {
        "think": f"Thinking: {toggles.thinking or 'default'}",
        "verbose": f"Verbose: {toggles.verbose}",
        "reasoning": f"Reasoning: {toggles.reasoning}",
        "queue": f"Queue: {toggles.queue}",
        "usage": f"Usage in replies: {toggles.usage}",
        "send": f"Sending: {'on' if verdict.allowed else 'off'} ({verdict.why})",
    }
    return visible_line(f"⚙️ {held[command.name]}")


def _remark(command: ChatCommand) -> str:
    if command.name == "queue" and command.value not in (INHERIT, queue_mode(command.value)):
        return f" A running turn cannot take up messages here, so {command.value} means that they wait for their turn."
    if command.name == "send" and command.value == "deny":
        return " Replies stay in the session; /send on lets them out again."
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


# -- the model


async def _model(gateway: Gateway, bound: Bound, command: ChatCommand) -> Executed:
    if command.model is None and command.value != INHERIT:
        entry = await _entry(gateway, bound)
        return Executed(f"{_model_held(gateway, bound, entry)}\n{_choice(gateway)}", bound)
    await _check_model(gateway, bound, command)
    patch = {"model": None if command.value == INHERIT else command.model}
    changed = await gateway.call(gateway.conversations.patch, bound.text, patch)
    return Executed(_model_held(gateway, bound, changed.entry), bound._replace(entry=changed.entry))


async def _check_model(gateway: Gateway, bound: Bound, command: ChatCommand) -> None:
    """Raise if the model that a command names cannot answer, for want of a key for instance."""
    if command.model is not None:
        await gateway.call(gateway.answerers.of, bound.agent, command.model)


def _model_held(gateway: Gateway, bound: Bound, entry: Mapping[str, Any]) -> str:
    whose = "the agent's own" if toggles_of(entry).model is None else "chosen for this conversation"
    return visible_line(f"🧠 Model: {gateway.model_of(bound.agent, entry) or UNKNOWN} ({whose})")


def _choice(gateway: Gateway) -> str:
    """What `/model` can be followed by."""
    models = allowed_models(gateway.config)
    if isinstance(models, AnyOfProviders):
        providers = ", ".join(models.configured)
        return visible_line(f"Any provider/model of: {providers}" if providers else "No provider is configured.")
    short: dict[str, str] = {model: name for name, model in models.aliases.items()}
    shown = [f"{model} ({short[model]})" if model in short else model for model in models.allowed[:_MOST]]
    more = len(models.allowed) - len(shown)
    return visible_line(f"There are: {', '.join(shown)}{f' and {more} more' if more else ''}")


async def _entry(gateway: Gateway, bound: Bound) -> Mapping[str, Any]:
    """The entry of a conversation as it is by now."""
    conversation = await gateway.call(gateway.conversations.get, bound.text)
    return bound.entry if conversation is None else conversation.entry


_EXECUTED: dict[str, Callable[[Gateway, Bound, ChatCommand], Awaitable[Executed]]] = {
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
