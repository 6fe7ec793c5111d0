"""Lists of conversations: the bindings of one agent or of all of them, filtered, newest first.

Rules: of one key in two stores the later change wins, member by member, and the other fills gaps. The keys `global` and
`unknown` are shown only if asked for. What a filter hides is counted. A conversation without a time of change is the oldest,
and not active.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sessile.core.rollover import Previous, previous_sessions
from sessile.errors import InvalidId
from sessile.formats.yoyoclaw.entries import SessionEntry, combine_entries, merge_entries
from sessile.formats.yoyoclaw.keys import GLOBAL, OTHER, UNKNOWN, SessionKey, parse_key

_SEARCHED = ("displayName", "label", "subject", "sessionId")
_MINUTE = 60_000  # milliseconds


class Conversation(NamedTuple):
    """One key with its entry. `session_id` is `None` if nobody has spoken in it yet."""

    text: str
    agent: str
    entry: SessionEntry

    @property
    def key(self) -> SessionKey:
        return parse_key(self.text)

    @property
    def session_id(self) -> str | None:
        return self.entry.session_id

    @property
    def previous(self) -> tuple[Previous, ...]:
        """The sessions that it had before, newest first."""
        return previous_sessions(self.entry)


class ConversationList(NamedTuple):
    """A list: where its entries are kept, the rows, and how many a filter or the limit hides."""

    path: str
    rows: tuple[Conversation, ...]
    hidden: int


class ConversationFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which conversations are listed; `None` does not restrict."""

    active_minutes: float | None = None
    search: str | None = None
    label: str | None = None
    spawned_by: str | None = None
    kinds: tuple[str, ...] | None = None
    limit: int | None = None
    include_global: bool = False
    include_unknown: bool = False


def by_key(entries: Mapping[str, SessionEntry], spelling: Callable[[str], str]) -> dict[str, SessionEntry]:
    """The entries of a store file by the one spelling of each key."""
    found: dict[str, SessionEntry] = {}
    for name, entry in entries.items():
        key = spelling(name)
        found[key] = merge_entries(found[key], entry) if key in found else entry
    return found


def listed(
    stores: Mapping[str, Mapping[str, SessionEntry]],
    path: str,
    wanted: ConversationFilter,
    now: int,
    default_agent: str,
) -> ConversationList:
    """The conversations of some agents (entries by agent and canonical key) that a filter lets through."""
    combined = combine_entries(stores)
    rows = [
        Conversation(text, _agent(text, default_agent), entry)
        for text, entry in combined.items()
        if _passes(text, entry, wanted, now)
    ]
    shown = rows if wanted.limit is None else rows[: max(wanted.limit, 0)]
    return ConversationList(path, tuple(shown), len(combined) - len(shown))


def _agent(text: str, default: str) -> str:
    first, _, behind = text.partition(":")
    return behind.partition(":")[0] if first == "agent" else default


def _passes(text: str, entry: SessionEntry, wanted: ConversationFilter, now: int) -> bool:
    if (text == GLOBAL and not wanted.include_global) or (text == UNKNOWN and not wanted.include_unknown):
        return False
    if wanted.active_minutes is not None and (entry.updated_at or 0) < now - wanted.active_minutes * _MINUTE:
        return False
    if wanted.label is not None and entry.get("label") != wanted.label:
        return False
    if wanted.spawned_by is not None and entry.get("spawnedBy") != wanted.spawned_by:
        return False
    if wanted.search and not _found(wanted.search.strip().lower(), [text, *map(entry.get, _SEARCHED)]):
        return False
    return wanted.kinds is None or _kind(text) in wanted.kinds


def _kind(text: str) -> str:
    try:
        return parse_key(text).kind
    except InvalidId:
        return OTHER  # somebody wrote it by hand; it is shown, but nobody can ask for it


def _found(text: str, values: Sequence[Any]) -> bool:
    return any(isinstance(value, str) and text in value.lower() for value in values)
