"""Memory flush: before a compaction removes old messages, the model writes notes about what to remember.

Rules:
- A flush is due when the next turn would come within the soft threshold of a compaction, once between two compactions, and
  only if the notes can be stored.
- The notes are the model's answer. They are appended to `memory/YYYY-MM-DD.md`, named after the day in the user's time zone.
- A mark after the notes makes a flush that is repeated after a crash append nothing. Notes that a crash cut short have no
  mark.
- The model is called with a copy of the context; question and answer do not become part of the conversation.

The caller calls the model and appends to the file. The clock and the time zone are arguments.
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
MAX_FAILURES = 3  # in one cycle between two compactions; then it waits for the next cycle
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
    """The `memoryFlush` of a configuration. Negative and infinite numbers and empty texts mean the default."""

    enabled: bool = True  # ask the model for notes before a compaction
    soft_threshold_tokens: float = SOFT_THRESHOLD  # tokens before the compaction
    prompt: str = ""  # the question to the model
    system_prompt: str = ""  # the instructions of the turn


class Flushed(NamedTuple):
    """The earlier flushes of a session: time and cycle of the last one, and failures in a cycle. `None` is unknown."""

    at: int | None = None
    cycle: int | None = None
    failures: int = 0
    failed_cycle: int | None = None


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What the decision about the next turn needs. `tokens` counts its context, including what the turn adds."""

    tokens: int | None
    window: int | None
    compactions: int | None = None  # `None` is 0
    flushed: Flushed = Flushed()
    workspace_access: str | None = None  # "rw", "ro" or "none"
    command_runner: bool = False  # it has its own context
    heartbeat: bool = False
    incognito: bool = False


class Decision(NamedTuple):
    """Whether to flush before the turn, and why or why not."""

    due: bool
    why: Why


def flush_threshold(window: int, settings: FlushSettings, compaction: CompactionSettings) -> int:
    """Return the size of the context from which on a flush is due."""
    soft = settings.soft_threshold_tokens
    usable = int(soft) if math.isfinite(soft) and soft >= 0 else SOFT_THRESHOLD
    return window - compaction.reserve(window) - usable


def decide_flush(situation: Situation, settings: FlushSettings, compaction: CompactionSettings) -> Decision:
    """Decide whether to flush before a turn."""
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
    # A cycle of 0 without a time comes from a program that sets all counters to 0; nothing was flushed yet.
    if flushed.cycle == cycle and (cycle > 0 or flushed.at is not None):
        return "already_done"
    if flushed.failed_cycle == cycle and flushed.failures >= MAX_FAILURES:
        return "gave_up"
    return "due"


# -- the record in the entry of a session


def flushed_of(entry: Mapping[str, Any]) -> Flushed:
    """Read the earlier flushes from a store entry; invalid counts are unknown."""
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
    """Return the members that record an outcome. After a failure the cycle stays open until there are too many."""
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


# -- prompts


def flush_prompt(settings: FlushSettings, now: int, zone: tzinfo) -> str:
    """Return the question with the day filled in; a custom text without `NO_REPLY` gets a note about it."""
    return _with_silence(settings.prompt.strip() or PROMPT).replace(_DATE, _day(now, zone))


def flush_system_prompt(settings: FlushSettings) -> str:
    """Return the instructions of the turn."""
    return _with_silence(settings.system_prompt.strip() or SYSTEM_PROMPT)


def _with_silence(text: str) -> str:
    return text if NO_REPLY in text else f"{text}\n\n{_HINT}"


# -- the notes


def memory_file(now: int, zone: tzinfo) -> str:
    """Return the path of the file of the day, relative to the workspace."""
    return f"memory/{_day(now, zone)}.md"


def memory_file_before(now: int, zone: tzinfo) -> str:
    """Return the path of the previous day's file, where a flush around midnight may have put its notes."""
    return f"memory/{(_local(now, zone).date() - timedelta(days=1)).isoformat()}.md"


def flush_key(session_id: str, compactions: int | None) -> str:
    """Return the key that identifies a flush: the session and the number of compactions before it."""
    return f"{session_id}:{compactions or 0}"


def holds_block(file: str, key: str) -> bool:
    """Return whether a file already contains the notes of a flush."""
    return _mark(key) in map(str.rstrip, file.split("\n"))


def block_to_append(file: str, reply: str, key: str, now: int, zone: tzinfo) -> str:
    """Return the text to append to a file for an answer; empty if the answer is silent or already there.

    `now` is the time of the decision, so that a repeated flush around midnight finds its file again.
    """
    notes = without_surrogates(reply).strip()
    if not notes or is_silent(notes) or holds_block(file, key):
        return ""
    before = "" if not file else "\n" if file.endswith("\n") else "\n\n"
    # A line of the notes that looks like a mark must not count as one.
    lines = [f" {line}" if line.startswith(_MARK) else line for line in notes.split("\n")]
    return before + "\n".join([f"## {_local(now, zone):%H:%M}", "", *lines, "", _mark(key), ""])


def _mark(key: str) -> str:
    return f"{_MARK}{key} -->"


def _day(now: int, zone: tzinfo) -> str:
    return _local(now, zone).date().isoformat()


def _local(now: int, zone: tzinfo) -> datetime:
    return (_EPOCH + timedelta(milliseconds=now)).astimezone(zone)
