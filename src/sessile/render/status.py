"""Texts about a gateway's sessions: the lines of `/status`, the list of sessions, and the notices of a turn.

Rules: unknown values are called unknown, never 0. What does not apply has no line. Stored names and texts are made visible, so
that they cannot control a terminal. Nothing is looked up: all values are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Literal, NamedTuple

import msgspec

from sessile.core.resets import Key, ResetPolicy
from sessile.core.usage import amount
from sessile.core.visible import cut, fitting, visible_line, width
from sessile.errors import InvalidQuery

Json = dict[str, Any]
SessionKind = Literal["global", "unknown", "group", "direct"]

UNKNOWN = "unknown"
COLUMNS = ("Kind", "Key", "Age", "Model", "Tokens (ctx %)", "Flags")

_KEY, _MODEL = 26, 14  # columns of a terminal
_MAX_PERCENT = 999
_MAX_NUMBER = 2**53  # the largest integer of JavaScript
_MINUTE = 60_000  # milliseconds; clocks may differ by less
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GROUPS = ("group", "channel", "room")
_FLAGS = {
    "thinkingLevel": "think",
    "verboseLevel": "verbose",
    "reasoningLevel": "reasoning",
    "elevatedLevel": "elev",
    "responseUsage": "usage",
    "groupActivation": "activation",
}
_MARKS = {"systemSent": "system", "abortedLastRun": "aborted"}
_TEXTS = ("sessionId", *_FLAGS, "model", "modelProvider", "sendPolicy")
_COUNTS = (
    *("inputTokens", "outputTokens", "totalTokens", "contextTokens", "contextWindow"),
    *("compactionCount", "updatedAt", "sessionStartedAt", "lastInteractionAt"),
)


# -- /status


class Queue(NamedTuple):
    """How messages are handled that arrive during a turn."""

    mode: str
    depth: int | None = None
    debounce_ms: int | None = None
    cap: int | None = None
    drop: str | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The values of `/status`; `None` is unknown or does not apply."""

    version: str
    now: int
    zone: tzinfo
    key: str
    commit: str | None = None
    updated_at: int | None = None
    model: str | None = None
    auth: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None  # dollars
    context_tokens: int | None = None
    context_estimated: bool = False
    context_window: int | None = None
    compactions: int | None = None
    runtime: str | None = None
    thinking: str | None = None
    verbose: str | None = None
    reasoning: str | None = None
    elevated: str | None = None
    activation: str | None = None  # groups only
    queue: Queue | None = None
    resets: ResetPolicy | None = None
    sending: bool = True  # whether the send policy allows replies


def status_lines(status: Status) -> list[str]:
    """Return the lines of `/status`."""
    commit = "" if status.commit is None else f" ({status.commit})"
    auth = "" if status.auth is None else f" · 🔑 {status.auth}"
    context = context_text(status.context_tokens, status.context_window, estimated=status.context_estimated)
    moment = (_EPOCH + timedelta(milliseconds=status.now)).astimezone(status.zone)
    levels = {"Think": status.thinking, "Verbose": status.verbose, "Reasoning": status.reasoning}
    if status.elevated is not None:
        levels["Elevated"] = status.elevated
    settings = "".join(f" · {name}: {level or 'default'}" for name, level in levels.items())
    lines = [
        f"Sessile {status.version}{commit}",
        f"🕒 {moment:%Y-%m-%d %H:%M %Z}",
        f"🧠 Model: {status.model or UNKNOWN}{auth}",
        f"🧮 Tokens: {_amount(status.input_tokens)} in / {_amount(status.output_tokens)} out",
        f"💵 Cost: {_dollars(status.cost)}",
        f"📚 Context: {context} · 🧹 Compactions: {_known(status.compactions)}",
        f"🧵 Session: {status.key} • updated {ago(status.updated_at, status.now)}",
        f"⚙️ Runtime: {status.runtime or UNKNOWN}{settings}",
    ]
    if status.activation is not None:
        lines.append(f"👥 Activation: {status.activation}")
    if status.queue is not None:
        lines.append(f"🪢 Queue: {_queue_text(status.queue)}")
    if status.resets is not None:
        lines.append(f"🔁 Reset: {resets_text(status.resets)}")
    if not status.sending:
        lines.append("🔇 Delivery: blocked by the send policy")
    return [visible_line(line) for line in lines]


def context_text(used: int | None, window: int | None, *, estimated: bool = False) -> str:
    """Return how much of the window a context uses, such as `~48.2k/200.0k (24%)`."""
    size = window or None  # 0 means unknown
    if used is None and size is None:
        return UNKNOWN
    about = "~" if estimated and used is not None else ""
    share = "" if used is None or size is None else f" ({min(round(100 * used / size), _MAX_PERCENT)}%)"
    return f"{about}{_amount(used)}/{_amount(size)}{share}"


def resets_text(policy: ResetPolicy) -> str:
    """Return when a session is reset automatically."""
    ends = []
    if policy.at_hour is not None:
        zone = "" if policy.time_zone is None else f" ({policy.time_zone})"
        ends.append(f"daily at {policy.at_hour:02d}:00{zone}")
    if policy.idle_minutes is not None:
        ends.append(f"after {policy.idle_minutes} idle minute{'' if policy.idle_minutes == 1 else 's'}")
    return " or ".join(ends) or "never"


def ago(then: int | None, now: int) -> str:
    """Return how long ago something was, in the largest unit that fits."""
    if then is None:
        return UNKNOWN
    if now - then < -_MINUTE:
        return "in the future"
    for unit, size in (("d", 1440 * _MINUTE), ("h", 60 * _MINUTE), ("min", _MINUTE)):
        if now - then >= size:
            return f"{(now - then) // size} {unit} ago"
    return "just now"


def _queue_text(queue: Queue) -> str:
    parts = {"depth": queue.depth, "cap": queue.cap, "drop": queue.drop}
    known = {name: f"{name} {value}" for name, value in parts.items() if value is not None}
    if queue.debounce_ms is not None:
        known["debounce"] = f"debounce {queue.debounce_ms} ms"
    shown = ", ".join(known[name] for name in ("depth", "debounce", "cap", "drop") if name in known)
    return f"{queue.mode} ({shown})" if shown else queue.mode


def _amount(tokens: int | None) -> str:
    return UNKNOWN if tokens is None else amount(tokens)


def _known(number: int | None) -> str:
    return UNKNOWN if number is None else str(number)


def _dollars(cost: float | None) -> str:
    if cost is None:
        return UNKNOWN
    return f"${cost:.2f}" if cost >= 0.01 or not cost else f"${cost:.4f}"


# -- notices


def compaction_notice(count: int | None) -> str:
    """Return the notice of a verbose session after a compaction."""
    return "🧹 Auto-compaction complete." if count is None else f"🧹 Auto-compaction complete (count {count})."


def new_session_notice(session_id: str) -> str:
    """Return the notice of a verbose session when it starts."""
    return f"🧭 New session: {session_id}"


def compacted_text(before: int | None, after: int | None, window: int | None) -> str:
    """Return the answer to `/compact`."""
    return f"⚙️ Compacted ({_amount(before)} → {_amount(after)}) • Context {context_text(after, window)}"


def compaction_refused(what: Literal["skipped", "failed"], reason: str) -> str:
    """Return the answer to `/compact` if nothing was compacted."""
    return f"⚙️ Compaction {what}: {reason}"


# -- the list of sessions


def session_kind(key: Key, chat_type: str | None = None) -> SessionKind:
    """Return the kind of a session in a list."""
    if key.kind == "global":
        return "global"
    if key.kind == "unknown":
        return "unknown"
    return "group" if key.kind in _GROUPS or chat_type in _GROUPS else "direct"


def session_row(key: str, kind: SessionKind, entry: Mapping[str, Any], now: int) -> Json:
    """Return a session as JSON; unknown values are `None`."""
    texts = {name: _text(entry.get(name)) for name in _TEXTS}
    counts = {name: _count(entry.get(name)) for name in _COUNTS}
    marks = {name: value if isinstance(value := entry.get(name), bool) else None for name in _MARKS}
    updated = counts["updatedAt"]
    return {"key": key, "kind": kind, "ageMs": None if updated is None else now - updated, **texts, **counts, **marks}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    """Return a valid count or time, else `None`; JavaScript may write integers as floats."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_NUMBER else None


def cells_of(row: Mapping[str, Any], now: int) -> list[str]:
    """Return the cells of a row."""
    return [
        row["kind"],
        _elided(visible_line(row["key"]), _KEY),
        ago(row["updatedAt"], now),
        cut(visible_line(row["model"] or UNKNOWN), _MODEL),
        context_text(row["contextTokens"], row["contextWindow"]),
        visible_line(" ".join(flags_of(row))),
    ]


def flags_of(entry: Mapping[str, Any]) -> list[str]:
    """Return the flags of an entry, and the id of its session."""
    levels = [f"{flag}:{entry[name]}" for name, flag in _FLAGS.items() if _text(entry.get(name))]
    marks = [mark for name, mark in _MARKS.items() if entry.get(name) is True]
    session_id = _text(entry.get("sessionId"))
    return [*levels, *marks, *([f"id:{session_id}"] if session_id else [])]


def listing(path: str, rows: Iterable[Json], now: int, *, active_minutes: int | None = None) -> Json:
    """Return the list as one document, newest first.

    Sessions without a time are last; `active_minutes` leaves them and older ones out.
    """
    if active_minutes is not None and active_minutes < 1:
        raise InvalidQuery(
            f"invalid active minutes: {active_minutes}", hint="use a positive number, such as --active 60"
        )
    found: Sequence[Json] = list(rows)
    if active_minutes is not None:
        since = now - active_minutes * _MINUTE
        found = [row for row in found if row["updatedAt"] is not None and row["updatedAt"] >= since]
    # The sort is stable: sessions with the same time keep the order of the store.
    dated = sorted(
        (row for row in found if row["updatedAt"] is not None), key=lambda row: row["updatedAt"], reverse=True
    )
    sessions = [*dated, *(row for row in found if row["updatedAt"] is None)]
    return {"path": path, "count": len(sessions), "activeMinutes": active_minutes, "sessions": sessions}


def _elided(text: str, columns: int) -> str:
    """Shorten a visible line in the middle: both ends of a key are useful."""
    if width(text) <= columns:
        return text
    head = text[: fitting(text, 0, columns // 2)]
    tail = text[::-1]
    return f"{head}…{tail[: fitting(tail, 0, columns - width(head) - 1)][::-1]}"
