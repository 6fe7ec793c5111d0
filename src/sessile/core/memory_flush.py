"""Memory flush: before a compaction gives up old messages, the model notes what should be remembered.

Rules: it is due when the coming turn would come within the soft threshold of a compaction, once between two compactions, and
only where the notes can be kept. The notes are a model's answer; the engine appends them to `memory/YYYY-MM-DD.md`, under the
day of the user's time zone. A mark makes a flush that is repeated after a crash append nothing. It comes behind the notes, so
that those of which a crash left only a beginning do not count as kept.

The turn is asked on a copy of the context, and neither question nor answer becomes a part of the conversation; who asks, and who
appends, is the caller. Clock and zone are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Literal, NamedTuple

import msgspec

from sessile.core.compaction import CompactionSettings
from sessile.core.delivery import NO_REPLY, is_silent
from sessile.core.text import without_surrogates

SOFT_THRESHOLD = 4_000  # tokens
MAX_FAILURES = 3  # in one cycle; then it waits for the next one
PROMPT = (
    "The older part of this conversation will soon be summed up. Write down now what should be remembered for good: "
    "decisions, preferences, names, dates, open tasks, and where things are. Your answer is appended to memory/YYYY-MM-DD.md "
    f"as it is, so give short notes in Markdown and nothing else. If there is nothing to remember, answer {NO_REPLY}."
)
SYSTEM_PROMPT = (
    "This turn is for your notes only; the user does not see it. Do not go on with the conversation and do not greet. "
    f"Answer with notes, or with {NO_REPLY} if there is nothing to note."
)

_HINT = f"If there is nothing to remember, answer {NO_REPLY}."
_DATE = "YYYY-MM-DD"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MARK = "<!-- sessile.flush "

Why = Literal[
    "due",
    "disabled",
    "heartbeat",
    "command_runner",
    "incognito",
    "workspace_not_writable",
    "window_unknown",
    "tokens_unknown",
    "no_room",
    "below_threshold",
    "already_done",
    "gave_up",
]
Outcome = Literal["written", "silent", "failed"]


class FlushSettings(msgspec.Struct, frozen=True, rename="camel"):
    """The `memoryFlush` of a configuration. A negative or infinite number means the default, and so does an empty text."""

    enabled: bool = True  # whether the model is asked for notes before a compaction
    soft_threshold_tokens: float = SOFT_THRESHOLD  # how long before the compaction
    prompt: str = ""  # what it is asked
    system_prompt: str = ""  # what it is told first


class Flushed(NamedTuple):
    """What an entry says of earlier flushes: the last one, its cycle, and the failures of a cycle. `None` is unknown."""

    at: int | None = None
    cycle: int | None = None
    failures: int = 0
    failed_cycle: int | None = None


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a coming turn that the decision needs. `tokens` are those of its context, and of what it adds."""

    tokens: int | None
    window: int | None
    compactions: int | None = None  # none yet
    flushed: Flushed = Flushed()
    workspace_access: str | None = None  # "rw", "ro" or "none"
    command_runner: bool = False  # it keeps a context of its own
    heartbeat: bool = False
    incognito: bool = False


class Decision(NamedTuple):
    """Whether to flush before the turn, and why or why not."""

    due: bool
    why: Why


def flush_threshold(window: int, settings: FlushSettings, compaction: CompactionSettings) -> int:
    """How large a context is when its notes are due."""
    soft = settings.soft_threshold_tokens
    usable = int(soft) if math.isfinite(soft) and soft >= 0 else SOFT_THRESHOLD
    return window - compaction.reserve(window) - usable


def decide_flush(situation: Situation, settings: FlushSettings, compaction: CompactionSettings) -> Decision:
    """Whether notes are due before a turn."""
    why = _why(situation, settings, compaction)
    return Decision(why == "due", why)


def _why(situation: Situation, settings: FlushSettings, compaction: CompactionSettings) -> Why:
    obstacles: tuple[tuple[bool, Why], ...] = (
        (not settings.enabled, "disabled"),
        (situation.heartbeat, "heartbeat"),
        (situation.command_runner, "command_runner"),
        (situation.incognito, "incognito"),
        (situation.workspace_access != "rw", "workspace_not_writable"),
    )
    for applies, why in obstacles:
        if applies:
            return why
    if situation.window is None:
        return "window_unknown"
    if situation.tokens is None:
        return "tokens_unknown"
    threshold = flush_threshold(situation.window, settings, compaction)
    if threshold <= 0:
        return "no_room"
    if situation.tokens < threshold:
        return "below_threshold"
    return _in_this_cycle(situation.flushed, situation.compactions or 0)


def _in_this_cycle(flushed: Flushed, cycle: int) -> Why:
    # A cycle of 0 without a time was written by somebody who sets all counters to 0: then nothing was flushed yet.
    if flushed.cycle == cycle and (cycle > 0 or flushed.at is not None):
        return "already_done"
    if flushed.failed_cycle == cycle and flushed.failures >= MAX_FAILURES:
        return "gave_up"
    return "due"


# -- what the entry of a session remembers


def flushed_of(entry: Mapping[str, Any]) -> Flushed:
    """What an entry of the store says of earlier flushes; what is no count is unknown."""
    detail = entry.get("memoryFlush")
    if not isinstance(detail, Mapping):
        detail = {}
    return Flushed(
        at=_count(entry.get("memoryFlushAt")),
        cycle=_count(entry.get("memoryFlushCompactionCount")),
        failures=_count(detail.get("failureCount")) or 0,
        failed_cycle=_count(detail.get("compactionCount")),
    )


def outcome_patch(kind: Outcome, compactions: int | None, now: int, before: Flushed) -> dict[str, Any]:
    """The members that record an outcome. A failure leaves the cycle open until there were too many."""
    cycle = compactions or 0
    failures = (before.failures if before.failed_cycle == cycle else 0) + 1 if kind == "failed" else 0
    detail = {"kind": kind, "compactionCount": cycle, "failureCount": failures}
    if kind == "failed":
        return {"memoryFlush": detail}
    return {"memoryFlushAt": now, "memoryFlushCompactionCount": cycle, "memoryFlush": detail}


def _count(value: object) -> int | None:
    if isinstance(value, float) and math.isfinite(value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


# -- the question


def flush_prompt(settings: FlushSettings, now: int, zone: tzinfo) -> str:
    """What the model is asked; the day is filled in, and a text that knows no silence is told of it."""
    return _with_silence(settings.prompt.strip() or PROMPT).replace(_DATE, _day(now, zone))


def flush_system_prompt(settings: FlushSettings) -> str:
    """The instructions of that turn, to go before the question."""
    return _with_silence(settings.system_prompt.strip() or SYSTEM_PROMPT)


def _with_silence(text: str) -> str:
    return text if NO_REPLY in text else f"{text}\n\n{_HINT}"


# -- the notes


def memory_file(now: int, zone: tzinfo) -> str:
    """The file of the day, below the workspace."""
    return f"memory/{_day(now, zone)}.md"


def memory_file_before(now: int, zone: tzinfo) -> str:
    """The file of the day before, where a flush around midnight may have put its notes already."""
    return f"memory/{(_local(now, zone).date() - timedelta(days=1)).isoformat()}.md"


def flush_key(session_id: str, compactions: int | None) -> str:
    """What tells one flush from every other: the session, and the compactions before it."""
    return f"{session_id}:{compactions or 0}"


def holds_block(file: str, key: str) -> bool:
    """Whether the notes of a flush are in a file already."""
    return _mark(key) in map(str.rstrip, file.split("\n"))


def block_to_append(file: str, reply: str, key: str, now: int, zone: tzinfo) -> str:
    """What to append to a file for an answer; nothing for a silent one, and nothing twice.

    `now` is the time of the decision, so that a flush around midnight that is repeated finds its file again.
    """
    notes = without_surrogates(reply).strip()
    if not notes or is_silent(notes) or holds_block(file, key):
        return ""
    before = "" if not file else "\n" if file.endswith("\n") else "\n\n"
    # A line of the notes that looks like a mark must not be taken for one.
    lines = [f" {line}" if line.startswith(_MARK) else line for line in notes.split("\n")]
    return before + "\n".join([f"## {_local(now, zone):%H:%M}", "", *lines, "", _mark(key), ""])


def _mark(key: str) -> str:
    return f"{_MARK}{key} -->"


def _day(now: int, zone: tzinfo) -> str:
    return _local(now, zone).date().isoformat()


def _local(now: int, zone: tzinfo) -> datetime:
    return (_EPOCH + timedelta(milliseconds=now)).astimezone(zone)
