"""Session store for the Claude Agent SDK, backed by a `Store`: its `SessionStore` protocol with all optional methods.

    options = ClaudeAgentOptions(session_store=ClaudeSessionStore(Store("~/.sessile")))

Rules:

- A transcript is a session; a sub-agent's transcript is a session of its own. A row becomes a readable entry (message, tool
  result, compaction, title), and the rest of the row is stored beside it, so that `load` returns the row unchanged.
- A row whose uuid is stored already is not appended again; rows without a uuid always are.
- Rows keep the order in which they were stored. A prompt whose parent is an earlier row starts a branch there.
- The last row of each batch is stored with the summary that the SDK folds from all rows so far. If another process appends
  at the same time, its rows are read first and the batch is decided again.
- It runs on asyncio and trio. Calls run in threads, and a call that has started runs to its end.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

from anyio import to_thread
from claude_agent_sdk import (
    SessionKey,
    SessionListSubkeysKey,
    SessionStore,
    SessionStoreEntry,
    SessionStoreListEntry,
    SessionSummaryEntry,
    fold_session_summary,
)

from sessile.adapters.named_sessions import NamedSessions
from sessile.agents.claude.translation import body_of, part_of, results_of, to_blocks
from sessile.core.codec import decode, encode
from sessile.core.entries import Entry, Payload
from sessile.core.large import survives
from sessile.errors import LeafMoved
from sessile.session import Session
from sessile.store import Store

T = TypeVar("T")
Row = dict[str, Any]

MEMBER = "claude"  # the member of an entry with the rest of its row, and the summary of all rows so far
_TITLE, _GENERATED_TITLE = "custom-title", "ai-title"


class ClaudeSessionStore(SessionStore):
    """A session store for the Claude Agent SDK.

    Args:
        store: The store; it may be a folder, a database or in memory. Several processes may share it.

    Example:
        ```python
        transcripts = ClaudeSessionStore(Store("~/.sessile"))
        options = ClaudeAgentOptions(session_store=transcripts)
        ```
    """

    def __init__(self, store: Store) -> None:
        self._sessions = NamedSessions(store, "claude")
        self._agents = NamedSessions(store, "claude-agents")
        self._known: weakref.WeakKeyDictionary[Session, _Transcript] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the session files that are kept open."""
        self._sessions.close()
        self._agents.close()

    # -- the protocol

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append the rows of a transcript that are not stored yet; they are durable when this returns.

        Args:
            key: The project, the session and, for a sub-agent, its subpath.
            entries: The rows, in order.
        """
        if entries:
            await _run(lambda: self._append(key, cast(list[Row], entries)))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return all rows of a transcript as they were appended; `None` if there are none."""
        return cast(list[SessionStoreEntry] | None, await _run(lambda: self._load(key)))

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project with the time of their last change, in milliseconds."""
        listed = await _run(lambda: self._sessions.list(project_key))
        return [{"session_id": named.name, "mtime": named.modified} for named in listed]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries of all sessions of a project; only the end of each session is read."""
        return await _run(lambda: self._summaries(project_key))

    async def delete(self, key: SessionKey) -> None:
        """Move a transcript to the trash of the store, with those of its sub-agents; `Store.undo` restores them."""
        await _run(lambda: self._delete(key))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of a session's sub-agents."""
        return [named.name for named in await _run(lambda: self._agents.list(_family(key)))]

    # -- in threads

    def _append(self, key: SessionKey, rows: list[Row]) -> None:
        subpath = key.get("subpath")
        if subpath is None:
            session = self._sessions.open(key["project_key"], key["session_id"])
        else:
            session = self._agents.open(_family(key), subpath, title=subpath)
        self._transcript(session, key).append(session, rows)

    def _load(self, key: SessionKey) -> list[Row] | None:
        session = self._find(key)
        rows = [] if session is None else [row for _, row in _rows(session, 0, whole=True) if row is not None]
        return rows or None

    def _summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        summaries: list[SessionSummaryEntry] = []
        for named in self._sessions.list(project_key):
            key: SessionKey = {"project_key": project_key, "session_id": named.name}
            session = self._find(key)
            data = None if session is None else self._transcript(session, key).summary_of(session)
            if data is not None:
                summaries.append({"session_id": named.name, "mtime": named.modified, "data": data})
        return summaries

    def _delete(self, key: SessionKey) -> None:
        subpath = key.get("subpath")
        if subpath is not None:
            self._agents.delete(_family(key), subpath)
            return
        for named in self._agents.list(_family(key)):
            self._agents.delete(named.scope, named.name)
        self._sessions.delete(key["project_key"], key["session_id"])

    def _find(self, key: SessionKey) -> Session | None:
        subpath = key.get("subpath")
        if subpath is None:
            return self._sessions.find(key["project_key"], key["session_id"])
        return self._agents.find(_family(key), subpath)

    def _transcript(self, session: Session, key: SessionKey) -> _Transcript:
        """Return what is known of a session's rows, as long as the session is open."""
        with self._lock:
            return self._known.setdefault(session, _Transcript(key))


async def _run(call: Callable[[], T]) -> T:
    # A thread cannot be stopped, so anyio waits for it even when cancelled.
    return await to_thread.run_sync(call)


def _family(key: SessionKey | SessionListSubkeysKey) -> str:
    """Return the unique scope of a session's sub-agents."""
    project = key["project_key"].replace("%", "%25").replace("/", "%2F")
    return f"{project}/{key['session_id']}"


class _Transcript:
    """The known rows of one session, and their summary."""

    def __init__(self, key: SessionKey) -> None:
        self._key = key
        self._has_summary = key.get("subpath") is None  # sub-agents have none
        self._lock = threading.Lock()
        self._lines = 0  # lines of the journal that were read
        self._places: dict[str, tuple[str, int]] = {}  # by uuid: the entry of the row, and its line
        self._last_message = 0  # the line of the last message of the main conversation
        self._named = False  # whether the user chose a title
        self._boundary: Row = {}  # the row before a compaction
        self._summary: SessionSummaryEntry | None = None

    def append(self, session: Session, rows: list[Row]) -> None:
        """Append the rows that are new, in order."""
        with self._lock:
            while rows:
                try:
                    rows = rows[self._append_run(session, rows) :]
                except LeafMoved:
                    continue  # another process appended: read its rows first

    def summary_of(self, session: Session) -> dict[str, Any] | None:
        """Return the stored summary; fold it from all rows if a crash cut the last batch."""
        with self._lock:
            session.follow()
            entry = None if session.leaf_id is None else session.get_entry(session.leaf_id)
            kept = None if entry is None else entry.get(MEMBER)
            if isinstance(kept, Mapping) and isinstance(kept.get("summary"), dict):
                return cast(dict[str, Any], kept["summary"])
            self._catch_up(session)
            return None if self._summary is None else self._summary["data"]

    def _append_run(self, session: Session, rows: list[Row]) -> int:
        """Append the first rows that do not depend on each other, and return how many."""
        session.follow()
        self._catch_up(session)
        run = rows[: _length_of_run(rows)]
        new = self._new(run)
        if new:
            branch = self._branch_of(new[0])
            if branch is not None:
                session.branch(branch)
            session.append_many(self._payloads(new), on_leaf_moved="fail")
        return len(run)

    def _catch_up(self, session: Session) -> None:
        for entry_id, row in _rows(session, self._lines, whole=False):
            self._lines += 1
            if row is not None:
                self._take(entry_id, row)

    def _take(self, entry_id: str, row: Row) -> None:
        uuid = _uuid(row)
        if uuid is not None:
            self._places[uuid] = (entry_id, self._lines)
            if row.get("type") in ("user", "assistant") and not (row.get("isSidechain") or row.get("isMeta")):
                self._last_message = self._lines
        self._named = self._named or row.get("type") == _TITLE
        if row.get("subtype") == "compact_boundary":
            self._boundary = row
        if self._has_summary:
            self._summary = fold_session_summary(self._summary, self._key, [cast(SessionStoreEntry, row)])

    def _new(self, rows: list[Row]) -> list[Row]:
        """Return the rows that are not stored yet, each uuid once."""
        new: dict[object, Row] = {}
        for row in rows:
            uuid = _uuid(row)
            if uuid is None or uuid not in self._places:
                new.setdefault(object() if uuid is None else uuid, row)
        return list(new.values())

    def _branch_of(self, row: Row) -> str | None:
        """Return the parent entry of a prompt that starts a branch; `None` for any other row."""
        entry_id, line = self._places.get(str(row.get("parentUuid")), (None, 0))
        return entry_id if _is_prompt(row) and line < self._last_message else None

    def _payloads(self, rows: list[Row]) -> list[Payload]:
        payloads = []
        named = self._named
        for row in rows:
            payloads += self._payloads_of(row, named)
            named = named or row.get("type") == _TITLE
        if self._has_summary:
            summary = fold_session_summary(self._summary, self._key, cast(list[SessionStoreEntry], rows))
            payloads[-1][MEMBER] = {**payloads[-1].get(MEMBER, {}), "summary": summary["data"]}
        return payloads

    def _payloads_of(self, row: Row, named: bool) -> list[Payload]:
        """Return the entries of a row: one per tool result; the last one has the rest of the row."""
        last = part_of(row, "")
        count = 1 if last is row else len(results_of(row))
        parts = [*(part_of(row, f"/{number}") for number in range(1, count)), last]
        bodies = [self._body(part, named) for part in parts]
        bodies[-1] = _with_row(row, bodies[-1])
        return bodies

    def _body(self, row: Row, named: bool) -> Payload:
        kind = row.get("type")
        if kind == _TITLE or (kind == _GENERATED_TITLE and not named):
            name = row.get("customTitle" if kind == _TITLE else "aiTitle")
            if isinstance(name, str) and name.strip():
                source = {"source": "auto"} if kind == _GENERATED_TITLE else {}
                return {"type": "session_info", "name": name, **source}
        body = body_of(row, "boundary", lambda _: encode(self._boundary))
        if body.get("type") == "compaction":
            kept = self._places.get(str(body["firstKeptEntryId"]))
            return body if kept is None else {**body, "firstKeptEntryId": kept[0]}
        if body.get("type") == "session_info":
            return {"type": "custom", "customType": f"claude.{kind}", "data": row}
        return {"type": "custom", **body}


def _uuid(row: Row) -> str | None:
    uuid = row.get("uuid")
    return uuid if isinstance(uuid, str) else None


def _is_prompt(row: Row) -> bool:
    """Return whether a row is a prompt of the main conversation."""
    aside = any(row.get(name) for name in ("isMeta", "isSidechain", "isCompactSummary"))
    return row.get("type") == "user" and not aside and not results_of(row)


def _length_of_run(rows: list[Row]) -> int:
    """Return the number of rows before the next one that refers to an earlier row: a branching prompt or a compaction."""
    before = _uuid(rows[0])
    for count, row in enumerate(rows[1:], 1):
        goes_back = isinstance(row.get("parentUuid"), str) and row["parentUuid"] != before
        if row.get("isCompactSummary") or (goes_back and _is_prompt(row)):
            return count
        before = _uuid(row) or before
    return len(rows)


# -- rows in entries


def _with_row(row: Row, body: Payload) -> Payload:
    """Return an entry with the rest of its row; content that the entry has already is not stored twice."""
    raw = encode(row)
    if not survives(raw):
        return {**{name: value for name, value in body.items() if name != "data"}, MEMBER: {"text": raw.decode()}}
    if body["type"] == "custom":
        return body  # its data is the row
    how = _content_kind(row)
    rest = _without_content(row, how)
    if rest is not None and _with_content(rest, how, body) == row:
        return {**body, MEMBER: {"row": rest, "told": how}}
    return {**body, MEMBER: {"row": row}}


def _row_of(body: Payload) -> Row | None:
    """Return the row of an entry; `None` for all but the last of several tool results."""
    kept = body.get(MEMBER, {})
    if "text" in kept:
        return cast(Row, decode(kept["text"].encode()))
    if "row" in kept:
        return cast(Row, _with_content(kept["row"], kept["told"], body) if "told" in kept else kept["row"])
    return body.get("data") if str(body.get("customType")).startswith("claude.") else None


def _content_kind(row: Row) -> str:
    """Return which part of a row equals the content of its entry: all of it, or a tool result as text or blocks."""
    results = results_of(row)
    if not results:
        return "content"
    return "text" if isinstance(results[0].get("content"), str) else "result"


def _without_content(row: Row, how: str) -> Row | None:
    message = row.get("message")
    if not isinstance(message, dict):
        return None
    if how == "content":
        return {**row, "message": _without(message, "content")}
    content = message["content"]
    return {**row, "message": {**message, "content": [_without(content[0], "content")]}} if len(content) == 1 else None


def _with_content(rest: Row, how: str, body: Payload) -> Row:
    stored, message = body.get("message", body).get("content"), rest["message"]
    content: object = stored if isinstance(stored, str) else to_blocks(stored)
    if how != "content":
        content = [{**message["content"][0], "content": stored[0].get("text") if how == "text" else content}]
    return {**rest, "message": {**message, "content": content}}


def _without(value: Row, name: str) -> Row:
    return {key: item for key, item in value.items() if key != name}


def _rows(session: Session, start: int, *, whole: bool) -> Iterator[tuple[str, Row | None]]:
    """Yield the entries after the first `start` with their rows; unless `whole`, large texts and images may be cut."""
    for entry in session.iter_lines(start):
        yield entry.id, _row_of(_body_of(entry, whole))


def _body_of(entry: Entry, whole: bool) -> Payload:
    return entry.body if whole or "text" in entry.stored.get(MEMBER, {}) else entry.stored
