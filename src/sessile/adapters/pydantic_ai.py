"""Conversation store for pydantic-ai, backed by a `Store`.

    await SessileConversationStore(Store("~/chats")).save(result)

A conversation is a session. Its messages are entries that `sessile show` and `sessile search` can read, and a history that was
branched or rewritten is a branch of the session's tree. The record of a conversation is a `custom` entry `pydantic_ai.record`
after the messages that came with it.

Rules:

- A record names the revision that it replaces. All processes read the records in the order in which they were written, and a
  record that names another revision than the one before it is ignored by all; its writer gets `ConversationConflict`. Usually
  the conflict is found before anything is written.
- A record follows its messages, so that a crash leaves both or neither.
- A fork is a session with a copy of the messages that it keeps, under the same ids. `delete` moves a whole conversation to the
  trash of the store and takes nothing from its forks.
- A response is one `message` entry; a request is one entry per part. The member `pydantic_ai` of an entry has the JSON of its
  parts, and the first entry also the rest of the message. Text is stored once: where the message has it, the JSON has `null`,
  and `taken` says where it belongs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from anyio import to_thread
from pydantic import TypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.messages import ModelMessagesTypeAdapter

from sessile.adapters.named_sessions import NamedSessions
from sessile.adapters.shared_text import Path, compact, put, values_of, without
from sessile.core.codec import decode, encode, plain
from sessile.core.entries import Entry, Payload, custom, message
from sessile.errors import LeafMoved
from sessile.session import Session
from sessile.store import Store

PROGRAM = "pydantic-ai"
MEMBER = "pydantic_ai"
RECORD, DELETED = "pydantic_ai.record", "pydantic_ai.deleted"

R = TypeVar("R")

_RECORDS = TypeAdapter(ConversationRecord)


class SessileConversationStore(ConversationStore):
    """A pydantic-ai conversation store that keeps each conversation as a session.

    Args:
        store: The store; it may be a folder, a database or in memory. Several processes may share it.

    Example:
        ```python
        conversations = SessileConversationStore(Store("~/chats"))
        result = await agent.run("hello")
        await conversations.save(result)
        ```
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sessions = NamedSessions(store, PROGRAM)
        self._logs: dict[str, _Log] = {}
        self._homes: dict[str, str] = {}  # by message: a conversation that contains it
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close all sessions; the next call opens them again."""
        with self._lock:
            self._sessions.close()

    # -- the protocol

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation; `None` if there is none."""
        return await self._run(lambda: self._record(conversation_id))

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the records, or those of a scope, most recently saved first."""
        return await self._run(lambda: self._records(scope)[:limit])

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Replace a record and append its new messages, atomically.

        Args:
            record: The new record.
            new_entries: The messages that came with it.
            expected_revision: The revision of the record to replace; `None` for a new conversation.

        Raises:
            ConversationConflict: The conversation has another revision.
        """
        await self._run(lambda: self._write(record, new_entries, expected_revision))

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Move a conversation with its messages to the trash of the store; `Store.undo` restores it.

        Raises:
            ConversationConflict: The conversation does not have `expected_revision`.
        """
        await self._run(lambda: self._delete(conversation_id, expected_revision))

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return the message of this id.

        Raises:
            KeyError: No conversation contains it.
        """
        return (await self._run(lambda: self._history(entry_id, 1)))[0]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the messages up to `head_id`, oldest first; with `limit` only the last ones.

        Raises:
            KeyError: No conversation contains the message.
        """
        return [] if head_id is None else await self._run(lambda: self._history(head_id, limit))

    # -- in threads

    async def _run(self, call: Callable[[], R]) -> R:
        def locked() -> R:
            with self._lock:
                return call()

        return await to_thread.run_sync(locked)

    def _caught_up(self, conversation_id: str) -> tuple[Session | None, _Log]:
        """Return the session of a conversation and its state, including what other processes wrote."""
        session = self._sessions.find("", conversation_id)
        header = {} if session is None else session.header
        log = self._logs.get(conversation_id)
        if log is None or log.header != header:
            log = self._logs[conversation_id] = _Log(header)
        if session is not None:
            log.read(session.iter_lines(log.count))
        return session, log

    def _record(self, conversation_id: str) -> ConversationRecord | None:
        _, log = self._caught_up(conversation_id)
        if log.record is None:
            return None
        record = _RECORDS.validate_python(log.record)
        # The history is usually requested next.
        self._homes |= {entry_id: conversation_id for entry_id in (record.head_id, *record.branches) if entry_id}
        return record

    def _records(self, scope: str | None) -> list[ConversationRecord]:
        records = [self._record(named.name) for named in self._sessions.list("")]
        wanted = [record for record in records if record is not None and scope in (None, record.scope)]
        return sorted(wanted, key=lambda record: record.updated_at, reverse=True)

    def _history(self, head: str, limit: int | None) -> list[ConversationEntry]:
        home = self._home(head)
        session, log = self._caught_up(home)
        if session is None or head not in log.pieces:
            raise KeyError(head)
        return [
            message_of([_whole(session, piece) for piece in log.pieces[entry_id]]) for entry_id in log.path(head, limit)
        ]

    def _home(self, entry_id: str) -> str:
        """Return a conversation that contains a message, preferably the last one used."""
        home = self._homes.get(entry_id)
        if home is not None and entry_id in self._caught_up(home)[1].pieces:
            return home
        self._homes.clear()
        for named in self._sessions.list(""):
            self._homes |= dict.fromkeys(self._caught_up(named.name)[1].pieces, named.name)
        return self._homes[entry_id]

    def _write(self, record: ConversationRecord, new: Sequence[ConversationEntry], expected: str | None) -> None:
        conversation_id = record.conversation_id
        _, log = self._caught_up(conversation_id)
        if log.revision != expected:
            raise ConversationConflict(conversation_id)
        entries = [*self._shared(record, log, new), *new]
        note = custom(RECORD, {"expected": expected, "record": _RECORDS.dump_python(record, mode="json")})
        now = self._store.now()
        payloads = [payload for entry in entries for payload in entries_of(entry, now)]
        session = self._sessions.open("", conversation_id)
        self._move_leaf(session, log, entries[0].parent_id if entries else record.head_id)
        try:
            session.append_many([*payloads, note], on_leaf_moved="fail")
        except LeafMoved as error:
            raise ConversationConflict(conversation_id) from error
        if record.revision not in self._caught_up(conversation_id)[1].revisions:
            raise ConversationConflict(conversation_id)
        self._homes |= dict.fromkeys((entry.id for entry in entries), conversation_id)

    def _shared(
        self, record: ConversationRecord, log: _Log, new: Sequence[ConversationEntry]
    ) -> list[ConversationEntry]:
        """Return the messages of another conversation that a fork continues."""
        head = record.head_id
        if head is None or head in log.pieces or any(entry.id == head for entry in new):
            return []
        try:
            return self._history(head, None)
        except KeyError as error:
            raise ConversationConflict(record.conversation_id) from error

    def _move_leaf(self, session: Session, log: _Log, parent: str | None) -> None:
        """Move the leaf after the last record, or to the message that the history branches from."""
        head = None if log.record is None else log.record["head_id"]
        if log.record is not None and parent == head:
            session.follow()
        elif parent is None or parent not in log.pieces:
            session.reset_leaf()
        else:
            session.branch(log.pieces[parent][-1])

    def _delete(self, conversation_id: str, expected: str) -> None:
        session, log = self._caught_up(conversation_id)
        if session is None or log.revision != expected:
            raise ConversationConflict(conversation_id)
        session.follow()
        try:
            session.append_many([custom(DELETED, {"expected": expected})], on_leaf_moved="fail")
        except LeafMoved as error:
            raise ConversationConflict(conversation_id) from error
        if self._caught_up(conversation_id)[1].record is not None:
            raise ConversationConflict(conversation_id)
        self._sessions.delete("", conversation_id)


def _whole(session: Session, entry_id: str) -> Payload:
    """Return an entry with its large texts."""
    return session.get_full_entry(entry_id)


class _Log:
    """The state of a conversation, as far as its journal was read."""

    def __init__(self, header: Payload) -> None:
        self.header = header  # a session that was deleted and created again has another
        self.count = 0
        self.record: Payload | None = None
        self.revisions: set[str] = set()  # of all valid records, including replaced ones
        self.pieces: dict[str, list[str]] = {}  # by message: its entries
        self.parents: dict[str, str | None] = {}

    @property
    def revision(self) -> str | None:
        return None if self.record is None else str(self.record["revision"])

    def read(self, entries: Iterator[Entry]) -> None:
        """Apply the next entries."""
        for entry in entries:
            self.count += 1
            kept = entry.stored.get(MEMBER)
            if isinstance(kept, dict):
                if "rest" in kept:
                    self.pieces[kept["entry"]], self.parents[kept["entry"]] = [], kept["parent"]
                self.pieces[kept["entry"]].append(entry.id)
            elif entry.stored.get("customType") in (RECORD, DELETED) and entry["data"]["expected"] == self.revision:
                self.record = entry["data"].get("record")
                if self.record is not None:
                    self.revisions.add(self.record["revision"])

    def path(self, head: str, limit: int | None) -> list[str]:
        """Return the ids of the messages up to one, oldest first."""
        found: list[str] = []
        at: str | None = head
        while at is not None and (limit is None or len(found) < limit):
            found.append(at)
            at = self.parents[at]
        return found[::-1]


# -- messages as entries

_TO_THE_MODEL = ("user-prompt", "retry-prompt", "retry-feedback")

Part = tuple[Payload, Path | None]
"""A part of a native message, and the path of its text in the framework's parts; `None` if it is stored there too."""


def entries_of(entry: ConversationEntry, now: int) -> list[Payload]:
    """Return the entries for one message of a conversation."""
    value: Payload = ModelMessagesTypeAdapter.dump_python([entry.message], mode="json")[0]
    parts, rest = value["parts"], {name: member for name, member in value.items() if name != "parts"}
    groups = [parts] if value["kind"] == "response" or not parts else [[part] for part in parts]
    made = []
    for number, group in enumerate(groups):
        shown = _shown(value, group)
        taken = [path for _, path in shown]
        kept = {"entry": entry.id, "parent": entry.parent_id, "parts": without(group, map(_place, taken))}
        kept |= {"taken": taken} if any(taken) else {}
        kept |= {"rest": rest, "pieces": len(groups)} if number == 0 else {}
        made.append({**_entry(value, group, [part for part, _ in shown], now), MEMBER: kept})
    return made


def message_of(pieces: Sequence[Mapping[str, Any]]) -> ConversationEntry:
    """Return the message that some entries contain together."""
    parts = []
    for piece in pieces:
        kept = piece[MEMBER]
        for path, value in zip(kept.get("taken", ()), values_of(piece), strict=False):
            if path is not None:
                put(kept["parts"], _place(path) or [], compact(value) if path[0] == "json" else value)
        parts += kept["parts"]
    first = pieces[0][MEMBER]
    restored = ModelMessagesTypeAdapter.validate_python([{**first["rest"], "parts": parts}])[0]
    return ConversationEntry(id=first["entry"], parent_id=first["parent"], message=restored)


def _place(path: Path | None) -> Path | None:
    """Return a path without the mark for JSON text."""
    return path[1:] if path and path[0] == "json" else path


def _entry(value: Payload, group: Sequence[Payload], content: Sequence[Payload], now: int) -> Payload:
    if value["kind"] == "response":
        calls = any(part["type"] == "toolCall" for part in content)
        answer = {"role": "assistant", "content": content, "provider": value.get("provider_name")}
        answer |= {"model": value.get("model_name"), "usage": _usage(value.get("usage") or {})}
        answer = {name: known for name, known in answer.items() if known is not None}
        return message({**answer, "stopReason": "toolUse" if calls else "stop", "timestamp": now})
    part = group[0] if group else {"part_kind": "request"}
    kind = part["part_kind"]
    if kind in ("tool-return", "retry-prompt") and part.get("tool_name"):
        result = {"role": "toolResult", "toolCallId": part.get("tool_call_id") or "", "toolName": part["tool_name"]}
        failed = kind == "retry-prompt" or part.get("outcome", "success") != "success"
        return message({**result, "content": content, "isError": failed, "timestamp": now})
    if kind in _TO_THE_MODEL:
        return message({"role": "user", "content": content, "timestamp": now})
    return custom(f"pydantic_ai.{kind}")


def _usage(counts: Mapping[str, Any]) -> Payload | None:
    names = {"input": "input_tokens", "output": "output_tokens"}
    names |= {"cacheRead": "cache_read_tokens", "cacheWrite": "cache_write_tokens"}
    return {ours: counts[theirs] for ours, theirs in names.items() if isinstance(counts.get(theirs), int)} or None


def _shown(value: Payload, group: Sequence[Payload]) -> list[Part]:
    return [shown for number, part in enumerate(group) for shown in _parts(part, [number])]


def _parts(part: Payload, at: Path) -> Iterable[Part]:
    kind, content = part["part_kind"], part.get("content")
    if kind == "thinking":
        if isinstance(content, str):
            yield {"type": "thinking", "thinking": content}, [*at, "content"]
    elif kind.endswith("tool-call"):
        yield _call(part, at)
    elif kind == "text" or kind.endswith("tool-return") or kind in _TO_THE_MODEL:
        yield from _said(content, [*at, "content"])


def _said(content: Any, at: Path) -> Iterable[Part]:
    if isinstance(content, str):
        yield {"type": "text", "text": content}, at
    elif isinstance(content, list) and any(isinstance(said, str) for said in content):
        for number, said in enumerate(content):
            if isinstance(said, str):
                yield {"type": "text", "text": said}, [*at, number]
            elif isinstance(said, dict):
                yield _file(said), None
    elif content is not None:  # a tool's result, as the model gets it
        yield {"type": "text", "text": encode({"": content})[4:-1].decode()}, None


def _file(said: Mapping[str, Any]) -> Payload:
    """Return a placeholder for an image or document."""
    name = said.get("url") or said.get("identifier") or said.get("media_type") or ""
    return {"type": "text", "text": f"[{said.get('kind') or 'file'} {name}]"}


def _call(part: Mapping[str, Any], at: Path) -> Part:
    given = part.get("args")
    call = {"type": "toolCall", "id": part.get("tool_call_id") or "", "name": part.get("tool_name") or ""}
    if isinstance(given, dict):
        return call | {"arguments": given}, [*at, "args"]
    try:
        arguments = decode(given.encode("utf-8", "surrogatepass")) if isinstance(given, str) else None
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return call | {"arguments": {} if given is None else {"input": given}}, None
    # The text is omitted only if encoding the arguments reproduces it.
    return call | {"arguments": arguments}, ["json", *at, "args"] if compact(plain(arguments).value) == given else None
