"""The context: what is sent to the model for the path that ends at one entry.

The state (thinking level, models, mode, rules) comes from the whole path. The messages come from its live part: the summary
of the last compaction, the entries that it kept, and everything after it. Later `context_edit` entries change or remove
messages without changing the entries that they come from.

`absences` lists the messages of a path that are no longer in the context, by the entry that removed them:

    compaction      summarized: they come before the first entry that it kept
    reset_boundary  everything before it
    context_edit    removed or changed one by one

The entries themselves are still in the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from sessile.core.kinds import BOUNDARY, Json, State, fold, kind_of, remote_compaction
from sessile.core.lines import Finding
from sessile.core.messages.request import given

Message = dict[str, Any]


class _LastEntry:
    """Type of `LAST_ENTRY`, which differs from `None` ("before the first entry")."""

    def __repr__(self) -> str:
        return "LAST_ENTRY"


LAST_ENTRY: Final = _LastEntry()
LeafId = str | None | _LastEntry


class SessionContext(msgspec.Struct):
    """What the model sees at one leaf.

    Attributes:
        messages: The messages, oldest first. `to_anthropic`, `to_openai`, `to_responses` and `to_google` translate them.
        sources: The id of the entry of each message; `None` for a message that no entry has, such as a summary.
        thinking_level: The thinking level, such as "off" or "high".
        models: The model ("provider/model") for each role; "default" is the usual one.
        mode: The mode of the agent, such as "plan"; "none" if there is none.
        mode_data: Data that belongs to the mode.
        injected_ttsr_rules: The names of rules that were injected so far.
        service_tier: The service tier of the provider.
        selected_mcp_tool_names: The selected MCP tools; `None` if there was no selection.
        active_context: The active context of the agent: `contextName`, `tenant` and `namespace`.
        findings: Problems on the path, such as a missing parent.
        prompts: System messages from before the oldest message, where they were read too.

    Example:
        ```python
        context = session.context()
        client.messages.create(model=context.models["default"], max_tokens=1000, **to_anthropic(context))
        ```
    """

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
    prompts: list[Message] = []

    @property
    def system(self) -> str:
        """The system prompt; empty if the session has none."""
        return "\n\n".join(given([*self.prompts, *self.messages]).system)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The definitions of the tools: `name`, `description`, `parameters`; empty if the session has none."""
        return given([*self.prompts, *self.messages]).tools

    @classmethod
    def at(cls, state: State, live: Live, findings: Iterable[Finding] = ()) -> SessionContext:
        """Return the context of a live part with the state of its path."""
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
    """The live part of a path: the compaction that starts it, if any, and the entries after it."""

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
            replacement = compaction.get("replacement")
            if isinstance(replacement, list):  # the agent's own history after the compaction, which has the summary
                for message in replacement:
                    self._push(message if isinstance(message, dict) else None, compaction)
            elif summary is not None:
                self._push(summary(compaction), compaction)
        for entry in kept:
            # The system message of a compaction stands for those that it kept; without one, pi writes a new one later.
            if _role(entry) != "system":
                self.add(entry)
        for entry in after:
            self.add(entry)

    def add(self, entry: Json) -> None:
        """Append one entry; the caller makes a new live part at a boundary."""
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
        """Return the messages and the ids of the entries that they come from."""
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


# An edit removes these, but does not change them: they have no content, or none that is a message's.
_UNCHANGED = ("system", "compactionSummary", "branchSummary", "bashExecution", "pythonExecution", "fileMention")


def edited_message(message: Message, replacement: object) -> Message | None:
    """Return a message after a `context_edit`; `None` if the edit removes it."""
    if not isinstance(replacement, Mapping):
        return None
    if message.get("role") in _UNCHANGED:
        return message
    if "content" not in replacement:
        return {name: value for name, value in message.items() if name != "content"}
    content = replacement["content"]
    if isinstance(content, str) and message.get("role") in ("assistant", "toolResult"):
        content = [{"type": "text", "text": content}]
    return {**message, "content": content}


def live_part(path: Sequence[Json]) -> Live:
    """Return the live part of a whole path, root first."""
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
    """Return the id of the first entry that a compaction keeps; `None` if it keeps nothing."""
    first = compaction.get("firstKeptEntryId")
    if remote_compaction(compaction) is not None or first == compaction.get("id"):
        return None
    return first if isinstance(first, str) else None


def build_session_context(
    entries: Sequence[Json], leaf_id: LeafId = LAST_ENTRY, by_id: Mapping[str, Json] | None = None
) -> SessionContext:
    """Return the context of entries that are in memory. `Session.context` reads them from a file.

    Args:
        entries: The entries of a session, in file order; a header is ignored.
        leaf_id: The entry at which the context ends; `None` is before the first entry, an unknown id means the last entry.
        by_id: The entries by id, if the caller has them.

    Example:
        ```python
        context = build_session_context(session.get_entries())
        ```
    """
    entries = [entry for entry in entries if entry.get("type") != "session"]
    if leaf_id is None or not entries:
        return SessionContext()
    if by_id is None:
        by_id = {entry["id"]: entry for entry in entries if isinstance(entry.get("id"), str)}
    leaf = by_id.get(leaf_id) if isinstance(leaf_id, str) else None
    path, findings = walk(leaf if leaf is not None else entries[-1], by_id)
    return SessionContext.at(fold_path(path), live_part(path), findings)


def fold_path(path: Iterable[Json], state: State | None = None) -> State:
    """Return the state after the entries of a path, root first."""
    state = State() if state is None else state
    for entry in path:
        state = fold(state, entry)
    return state


def walk(
    leaf: Json, by_id: Mapping[str, Json], bridge: Callable[[Json], Json | None] | None = None
) -> tuple[list[Json], list[Finding]]:
    """Return the path from the root to `leaf`, and findings about it.

    A missing parent ends the path, unless `bridge` returns an entry to continue at.
    """
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
            findings.append(Finding("cycle", -1, 0, f"the ancestors of entry {leaf_id} form a cycle"))
            break
        seen.add(parent.get("id"))
        path.append(parent)
        entry = parent
    path.reverse()
    return path, findings


def missing_parent(entry_id: object, parent_id: object, bridged_to: str | None = None) -> Finding:
    """Return the finding for an entry whose parent is not in the session, and where the path continues if it is bridged."""
    detail = f"the parent {parent_id} of entry {entry_id} is not in the session"
    return Finding("missing_parent", -1, 0, detail if bridged_to is None else f"{detail}; bridged to {bridged_to}")


# -- absences

_MESSAGES = ("message", "custom_message", "branch_summary")  # kinds of entries that a model sees
_REMOVERS = ("compaction", "reset_boundary")

Entry = Mapping[str, Any]


class Absence(NamedTuple):
    """The messages that one entry removed from the context, or changed: their number, the first and the last."""

    by: str
    kind: str
    messages: int
    first: str
    last: str
    changed: bool = False


class Removal(NamedTuple):
    """A message that an entry removed from the context, or changed."""

    message: str
    by: Entry
    changed: bool


def absences(path: Iterable[Entry], seen: Collection[str | None]) -> list[Absence]:
    """Return what removed messages of a path (root first) from its context; `seen` are the ids of the entries in it."""
    found: dict[str, Absence] = {}
    for removal in removals(path, seen):
        _count(found, removal.by, removal.message, changed=removal.changed)
    return list(found.values())


def removals(path: Iterable[Entry], seen: Collection[str | None]) -> Iterator[Removal]:
    """Yield the same message by message, in their order.

    Entries need only their type, their id and the members that name what they remove.
    """
    places: dict[str, int] = {}
    messages: list[str] = []  # ids only, because a path may be long
    present: deque[tuple[int, int]] = deque()  # places of the messages still in the context, and their numbers
    removed: dict[int, Entry] = {}  # the entry that removed a message first
    edits: dict[str, Entry] = {}
    for place, entry in enumerate(entry for entry in path if isinstance(entry.get("id"), str)):
        places[str(entry["id"])] = place
        if entry.get("type") in _MESSAGES:
            present.append((place, len(messages)))
            messages.append(str(entry["id"]))
        elif entry.get("type") in _REMOVERS:
            kept = _kept_from(entry, place, places)
            while present and present[0][0] < kept:
                removed[present.popleft()[1]] = entry
        elif entry.get("type") == "context_edit":
            edits[str(entry.get("targetId"))] = entry
    for number, message in enumerate(messages):
        by = edits.get(message) if message in seen else removed.get(number) or edits.get(message)
        if by is not None:
            yield Removal(message, by, changed=message in seen)


def _kept_from(remover: Entry, at: int, places: Mapping[str, int]) -> int:
    """Return the place of the first message that an entry keeps in the context."""
    if remover.get("type") != "compaction":
        return at
    kept = places.get(first_kept(remover) or "", at)
    return min(kept, at)


def _count(found: dict[str, Absence], by: Entry, entry_id: str, *, changed: bool) -> None:
    known = found.get(str(by["id"]))
    if known is None:
        found[str(by["id"])] = Absence(str(by["id"]), str(by["type"]), 1, entry_id, entry_id, changed)
    else:
        found[known.by] = known._replace(messages=known.messages + 1, last=entry_id)
