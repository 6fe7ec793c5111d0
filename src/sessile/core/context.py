"""The context: what is sent to the model from the path that ends at one entry.

The state (thinking level, models, mode, rules) comes from the whole path; the messages come from its live part: the
summary of the last compaction, what that kept, and all that came after. Later `context_edit` entries change or remove
messages without touching the entries that they come from.

Where the messages of a path are that the model does not see any more: who took them out of the context.

    compaction      summed up: they lie before the first entry that it kept
    reset_boundary  everything before it was left
    context_edit    taken out one by one, or changed

Nothing is ever gone: each absence names the entries, which are still in the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from sessile.core.kinds import BOUNDARY, Json, State, fold, kind_of, remote_compaction
from sessile.core.lines import Finding

# --- context

Message = dict[str, Any]


class _LastEntry:
    """Stands for "the last entry" where `None` means "before the first"."""

    def __repr__(self) -> str:
        return "LAST_ENTRY"


LAST_ENTRY: Final = _LastEntry()
LeafId = str | None | _LastEntry


class SessionContext(msgspec.Struct):
    """What the model sees at one leaf. `sources[i]` is the id of the entry that gave `messages[i]`."""

    messages: list[Message] = []
    sources: list[str | None] = []
    thinking_level: Any = "off"
    models: dict[str, str] = {}
    mode: str = "none"
    mode_data: Any = None
    injected_ttsr_rules: list[str] = []
    service_tier: Any = None
    selected_mcp_tool_names: list[str] | None = None
    active_context: dict[str, Any] | None = None
    findings: tuple[Finding, ...] = ()

    @classmethod
    def at(cls, state: State, live: Live, findings: Iterable[Finding] = ()) -> SessionContext:
        """The context of a live part under the state of its path."""
        messages, sources = live.messages()
        tools = state.selected_mcp_tools
        return cls(
            messages=messages,
            sources=sources,
            thinking_level=state.thinking_level,
            models=dict(state.models),
            mode=state.mode,
            mode_data=state.mode_data,
            injected_ttsr_rules=list(state.injected_ttsr_rules),
            service_tier=state.service_tier,
            selected_mcp_tool_names=None if tools is None else list(tools),
            active_context=state.active_context,
            findings=tuple(findings),
        )


class Live:
    """The live part of a path: the compaction that begins it, if any, and the entries that still speak."""

    __slots__ = ("_edited", "_kept", "_messages", "_sources")

    def __init__(self, compaction: Json | None, kept: Iterable[Json], after: Iterable[Json]) -> None:
        self._kept: list[Json] = []
        self._messages: list[Message] = []
        self._sources: list[str | None] = []
        self._edited = False
        system: Any = None
        if compaction is not None:
            system = compaction.get("systemMessage")
            summary = kind_of("compaction").project
            if isinstance(system, dict):
                self._push(system, compaction)
            if summary is not None:
                self._push(summary(compaction), compaction)
        for entry in kept:
            # A compaction that brings its own system message replaces the ones that it kept.
            if not (isinstance(system, dict) and _role(entry) == "system"):
                self.add(entry)
        for entry in after:
            self.add(entry)

    def add(self, entry: Json) -> None:
        """Append one entry; the caller starts anew at a boundary."""
        entry_type = entry.get("type")
        self._kept.append(entry)
        if entry_type == "context_edit":
            self._edited = True
        project = kind_of(entry_type).project
        if project is not None and entry_type != "compaction":
            self._push(project(entry), entry)

    def _push(self, message: Message | None, entry: Json) -> None:
        if message is not None:
            self._messages.append(message)
            source = entry.get("id")
            self._sources.append(source if isinstance(source, str) else None)

    def messages(self) -> tuple[list[Message], list[str | None]]:
        """The messages and the ids of the entries that they come from."""
        if not self._edited:
            return self._messages.copy(), self._sources.copy()
        edits = {
            target: entry.get("replacement")
            for entry in self._kept
            if entry.get("type") == "context_edit" and isinstance(target := entry.get("targetId"), str)
        }
        edited = [
            (edited_message(message, edits[source]) if source in edits else message, source)
            for message, source in zip(self._messages, self._sources, strict=True)
        ]
        visible = [(message, source) for message, source in edited if message is not None]
        return [message for message, _ in visible], [source for _, source in visible]


def _role(entry: Json) -> object:
    message = entry.get("message")
    return message.get("role") if isinstance(message, Mapping) else None


def edited_message(message: Message, replacement: object) -> Message | None:
    """A message as a `context_edit` leaves it; `None` if that takes it out."""
    if not isinstance(replacement, Mapping):
        return None
    content = replacement.get("content")
    if isinstance(content, str) and message.get("role") in ("assistant", "toolResult"):
        content = [{"type": "text", "text": content}]
    return {**message, "content": content}


def live_part(path: Sequence[Json]) -> Live:
    """The live part of a whole path, root first."""
    boundary = next((i for i in reversed(range(len(path))) if kind_of(path[i].get("type")).flags & BOUNDARY), None)
    if boundary is None:
        return Live(None, (), path)
    after = path[boundary + 1 :]
    entry = path[boundary]
    if entry.get("type") != "compaction":
        return Live(None, (), after)
    kept: Sequence[Json] = ()
    first = first_kept(entry)
    if first is not None:
        start = next((i for i in range(boundary) if path[i].get("id") == first), boundary)
        kept = path[start:boundary]
    return Live(entry, kept, after)


def first_kept(compaction: Json) -> str | None:
    """The id from which a compaction keeps entries; `None` if it keeps nothing."""
    first = compaction.get("firstKeptEntryId")
    if remote_compaction(compaction) is not None or first == compaction.get("id"):
        return None
    return first if isinstance(first, str) else None


def build_session_context(
    entries: Sequence[Json], leaf_id: LeafId = LAST_ENTRY, by_id: Mapping[str, Json] | None = None
) -> SessionContext:
    """The context at `leaf_id`: `None` is before the first entry, an unknown id means the last one."""
    entries = [entry for entry in entries if entry.get("type") != "session"]
    if leaf_id is None or not entries:
        return SessionContext()
    if by_id is None:
        by_id = {entry["id"]: entry for entry in entries if isinstance(entry.get("id"), str)}
    leaf = by_id.get(leaf_id) if isinstance(leaf_id, str) else None
    path, findings = walk(leaf if leaf is not None else entries[-1], by_id)
    return SessionContext.at(fold_path(path), live_part(path), findings)


def fold_path(path: Iterable[Json], state: State | None = None) -> State:
    """The state after the entries of a path, root first."""
    state = State() if state is None else state
    for entry in path:
        state = fold(state, entry)
    return state


def walk(
    leaf: Json, by_id: Mapping[str, Json], bridge: Callable[[Json], Json | None] | None = None
) -> tuple[list[Json], list[Finding]]:
    """The path from the root to `leaf`. It ends at a missing parent, or goes on at the entry that `bridge` gives."""
    path = [leaf]
    leaf_id = leaf.get("id")
    seen: set[object] = {leaf_id} if isinstance(leaf_id, str) else set()
    findings = []
    entry = leaf
    while parent_id := entry.get("parentId"):
        parent = by_id.get(parent_id) if isinstance(parent_id, str) else None
        if parent is None:
            findings.append(missing_parent(entry.get("id"), parent_id))
            parent = bridge(entry) if bridge else None
        if parent is None:
            break
        if parent.get("id") in seen:
            findings.append(Finding("cycle", -1, 0, f"the ancestors of entry {leaf_id} form a circle"))
            break
        seen.add(parent.get("id"))
        path.append(parent)
        entry = parent
    path.reverse()
    return path, findings


def missing_parent(entry_id: object, parent_id: object) -> Finding:
    """The finding for an entry whose parent is not in the session."""
    return Finding("missing_parent", -1, 0, f"entry {entry_id} hangs from {parent_id}, which is not in the session")


# --- whereabouts

_MESSAGES = ("message", "custom_message", "branch_summary")  # the kinds of entries that a model sees
_TAKES = ("compaction", "reset_boundary")

Entry = Mapping[str, Any]


class Absence(NamedTuple):
    """Messages that one entry took out of the context, or changed: how many, and the first and last of them."""

    by: str
    kind: str
    messages: int
    first: str
    last: str
    changed: bool = False


class Taking(NamedTuple):
    """A message that an entry took out of the context, or changed."""

    message: str
    by: Entry
    changed: bool


def absences(path: Iterable[Entry], seen: Collection[str | None]) -> list[Absence]:
    """What took messages of a path (root first) out of its context; `seen` are the entries that are in it."""
    found: dict[str, Absence] = {}
    for taking in takings(path, seen):
        _count(found, taking.by, taking.message, changed=taking.changed)
    return list(found.values())


def takings(path: Iterable[Entry], seen: Collection[str | None]) -> Iterator[Taking]:
    """The same one by one, in the order of the messages. Of an entry its type, its id and what it takes must be known."""
    places: dict[str, int] = {}
    said: list[str] = []  # a path may be long, so only this is held of what somebody said
    waiting: deque[tuple[int, int]] = deque()  # places of messages that are in the context, and their numbers
    taken: dict[int, Entry] = {}  # by whom a message was left out first
    edits: dict[str, Entry] = {}
    for place, entry in enumerate(entry for entry in path if isinstance(entry.get("id"), str)):
        places[str(entry["id"])] = place
        if entry.get("type") in _MESSAGES:
            waiting.append((place, len(said)))
            said.append(str(entry["id"]))
        elif entry.get("type") in _TAKES:
            kept = _kept_from(entry, place, places)
            while waiting and waiting[0][0] < kept:
                taken[waiting.popleft()[1]] = entry
        elif entry.get("type") == "context_edit":
            edits[str(entry.get("targetId"))] = entry
    for number, message in enumerate(said):
        by = edits.get(message) if message in seen else taken.get(number) or edits.get(message)
        if by is not None:
            yield Taking(message, by, changed=message in seen)


def _kept_from(taker: Entry, at: int, places: Mapping[str, int]) -> int:
    """The place from which on an entry leaves messages in the context."""
    if taker.get("type") != "compaction":
        return at
    kept = places.get(first_kept(taker) or "", at)
    return min(kept, at)


def _count(found: dict[str, Absence], by: Entry, entry_id: str, *, changed: bool) -> None:
    known = found.get(str(by["id"]))
    if known is None:
        found[str(by["id"])] = Absence(str(by["id"]), str(by["type"]), 1, entry_id, entry_id, changed)
    else:
        found[known.by] = known._replace(messages=known.messages + 1, last=entry_id)
