"""Laws of reading other agents' files: rows are found again, nothing is invented, and reading can resume anywhere."""

from __future__ import annotations

import json
import os
from contextlib import closing
from typing import Any

from fuzz.native import account
from sessile.agents.base import Format, Known
from sessile.agents.claude.chain import conversation, heads_of, subagent_conversation
from sessile.agents.claude.listing import LiteFile, notes_of, session_info
from sessile.agents.claude.mutations import Fork
from sessile.agents.claude.rows import TranscriptState, View, read_row
from sessile.agents.claude.sdk import message_of, shown_rows, shown_subagent_rows
from sessile.agents.codex.items import body_of, item_of
from sessile.agents.codex.items import message_of as codex_message
from sessile.agents.myagents import index, messages
from sessile.agents.myagents.messages import read_legacy, read_v2, salvaged
from sessile.agents.myagents.translation import natives_of
from sessile.agents.myagents.types import answers, by_model, tally
from sessile.agents.openclaw import names as bindings_naming
from sessile.agents.openclaw.document import BrokenStore, parse_store
from sessile.agents.openclaw.entries import checked_patch
from sessile.agents.openclaw.keys import (
    SessionKey,
    fold_key,
    key_shape,
    modern_key,
    normalize_key,
    parse_key,
    render_key,
)
from sessile.agents.openclaw.names import read_name
from sessile.agents.openclaw.routing import Inbound, derive_key, in_thread, in_topic, parent_of, shown_key
from sessile.agents.reader import ForeignReader
from sessile.agents.registry import AGENTS
from sessile.core.codec import decode, encode_plain, plain
from sessile.core.lines import Finding, Line
from sessile.errors import SessileError
from sessile.storage.atomic import write_all
from sessile.storage.memory import MemoryFilesystem

_VIEWS: tuple[View, ...] = ("ts", "python-sdk")
_SESSION = "11111111-1111-4111-8111-111111111111"
_SEGMENT = "22222222-2222-4222-8222-222222222222"


def rows_in_place(data: bytes) -> None:
    """A file of every format reads as entries with distinct ids, which are the same when reading resumes in the middle."""
    for known in (agent.format for agent in AGENTS if agent.format is not None and not agent.rendered):
        known.recognises(data)
        known.header("stem", data)
        known.glimpse("stem", data, data[-4096:])
        _translate(known, data)


def _translate(known: Format, data: bytes) -> None:
    scanner = known.scanner(0)
    items = [*scanner.feed(data), *scanner.finish()]
    account(items, scanner.newline_bytes, data)
    translator = known.translator()
    raws: dict[str, bytes] = {}
    for item in items:
        if not isinstance(item, Line):
            continue
        again = known.translator(json.loads(json.dumps(translator.saved())))
        entries = translator.take(item)
        assert _told(again.take(item)) == _told(entries), "reading goes on otherwise than it began"
        assert entries, "a row is no entry"
        assert [entry.head.id for entry in entries] == list(known.ids_of(item.raw, item.offset)), "a row has other ids"
        for entry in entries:
            assert entry.head.id is not None
            raws[entry.head.id] = item.raw
            made = known.entry(item.raw, entry.head.id, entry.head.parentId, raws.get)
            assert made["id"] == entry.head.id and isinstance(made["type"], str)
            encode_plain(plain(made).value)
    _ = translator.leaf


def _told(entries: Any) -> list[tuple[Any, int]]:
    return [(entry.head, entry.flags) for entry in entries if isinstance(entry, Known)]


def codex_rollout(data: bytes) -> None:
    """A rollout reads as the same entries in order and one by one, also as a fork and after a rewind, and is never written."""
    fs = MemoryFilesystem()
    day = "/home/sessions/2026/05/01"
    for folder in ("/home", "/home/sessions", "/home/sessions/2026", "/home/sessions/2026/05", day):
        fs.mkdir(folder)
    names = [f"{day}/rollout-2026-05-01T10-00-00-{_SESSION}{end}.jsonl" for end in ("", f"_{_SEGMENT}")]
    base = {"thread_id": _SESSION, "end_ordinal_exclusive": 2, "end_byte_offset": data.find(b"\n") + 1}
    fork = {"type": "session_meta", "ordinal": 2, "payload": {"id": _SEGMENT, "history_base": base}}
    names.append(f"{day}/rollout-2026-05-01T11-00-00-{_SEGMENT}.jsonl")
    for name, content in zip(names, (data, data, encode_plain(fork) + b"\n" + data), strict=True):
        _write(fs, name, content)
    codex = AGENTS.get("codex")
    assert codex is not None
    for name in names:
        try:
            reader = ForeignReader(fs, name, codex)
        except SessileError:
            continue
        with closing(reader):
            read = [(row, entry) for row, entry in reader.entries()]
            for row, entry in read:
                assert decode(reader.read(row)) == decode(encode_plain(plain(entry).value)), "an entry differs"
            reader.findings()
    for name, content in zip(names, (data, data, encode_plain(fork) + b"\n" + data), strict=True):
        assert _content(fs, name) == content, "a file was changed"


def codex_items(data: bytes) -> None:
    """Any object is a message, and no part of it is invented."""
    try:
        given = decode(data)
    except (ValueError, RecursionError):
        return
    for item in given if isinstance(given, list) else [given]:
        if isinstance(item, dict):
            body_of(item, None)
            item_of(codex_message(item))


def _write(fs: MemoryFilesystem, path: str, content: bytes) -> None:
    fd = fs.open(path, os.O_CREAT | os.O_WRONLY)
    write_all(fs, fd, content)
    fs.close(fd)


def _content(fs: MemoryFilesystem, path: str) -> bytes:
    fd = fs.open(path, os.O_RDONLY)
    try:
        return fs.read(fd, 1 << 30, 0)
    finally:
        fs.close(fd)


class _Transcript:
    """The rows of a transcript, read on demand."""

    def __init__(self, data: bytes, view: View) -> None:
        self._data = data
        self._view: View = view
        self.heads = heads_of(data, view)

    def row(self, row: int) -> dict[str, Any]:
        """Return a whole row."""
        offset, length = self.heads.place(row)
        return read_row(self._data[offset : offset + length], self._view) or {}

    def time(self, row: int) -> str:
        """Return the timestamp of a row."""
        told = self.row(row).get("timestamp")
        return told if isinstance(told, str) else ""


def claude_conversation(data: bytes) -> None:
    """The conversation that both SDKs would show consists of existing rows."""
    for view in _VIEWS:
        file = _Transcript(data, view)
        shown = shown_rows(file.heads, conversation(file.heads, file.time), file.time, file.row, include_system=True)
        for row in shown.rows:
            message_of(file.row(row), view, shown.sent_as.get(row))
        file = _Transcript(data, view)
        shown_subagent_rows(file.heads, subagent_conversation(file.heads), file.row)


def claude_listing(data: bytes) -> None:
    """A listing reads the two ends of any file without an error."""
    notes = notes_of(data[:200], data[-200:])
    for view in _VIEWS:
        session_info(
            _SESSION, LiteFile(data[:65536], data[-65536:], 1_771_237_230_123_456_789, len(data)), "/work", view, notes
        )
        session_info(_SESSION, LiteFile(data, data, 0, len(data)), None, view)


def claude_rows(data: bytes) -> None:
    """Any row can be applied to the state of a transcript, and copied into a fork."""
    rows = [row for raw in data.split(b"\n") if (row := read_row(raw)) is not None]
    state = TranscriptState()
    fork = Fork(_SESSION, "22222222-2222-4222-8222-222222222222", now="2026-11-16T00:00:00.000Z")
    for row in rows:
        state.apply(row)
        fork.learn(row)
    try:
        fork.check()
    except SessileError:
        return
    for row in rows:
        copied = fork.copy(row)
        assert copied is None or copied["uuid"] != row["uuid"]
    fork.closing(None, None)


def myagents_messages(data: bytes) -> None:
    """Rows and findings do not depend on how a file is split into chunks; each message can be counted and translated."""
    whole = list(messages.scan([data]))
    assert whole == list(messages.scan([data[at : at + 17] for at in range(0, len(data), 17)]))
    found = []
    for item in whole:
        if isinstance(item, Finding):
            continue
        assert data[item.offset : item.offset + len(item.raw)] == item.raw
        found.append(item.message)
        natives_of(item.message)
    tally(found)
    by_model(found)
    answers(found)
    try:
        list(read_legacy(data))
    except ValueError:
        list(salvaged(data))
    for row in read_v2([data], len(data)):
        assert isinstance(row, Finding) or decode(row.raw) is not None


def myagents_index(data: bytes) -> None:
    """An index is written back unchanged, and the rows salvaged from a damaged one form a valid index."""
    parsed = index.parse(data)
    index.described(data)
    written = index.render(parsed.rows)
    again = index.parse(written)
    assert again.sound, "what was written is damaged"
    assert [row.text for row in again.rows] == [row.text for row in parsed.rows]


def bindings(data: bytes) -> None:
    """A store of bindings is read completely or refused with a position; unchanged entries keep their text."""
    bindings_naming.described(data)
    try:
        document = parse_store(data)
    except BrokenStore as error:
        assert error.place.line >= 1 and error.place.column >= 1
        return
    document.oddities()
    again = parse_store(document.with_changes({}))
    assert {key: dict(entry) for key, entry in again.entries.items()} == {
        key: dict(entry) for key, entry in document.entries.items()
    }
    for key, entry in document.entries.items():
        bindings_naming.title_of(entry)
        bindings_naming.agent_of(key)
        bindings_naming.topic_of(key)
        try:
            checked_patch(dict(entry))
        except SessileError:
            pass


def keys(data: bytes) -> None:
    """An accepted key is rendered as it was read, and its canonical form is stable."""
    text = data.decode("utf-8", "replace")
    read_name(text)
    fold_key(text)
    try:
        key = parse_key(text)
    except SessileError:
        assert key_shape(text) in ("missing", "malformed_agent")
    else:
        assert render_key(key) == text
        shown_key(key)
        ancestor: SessionKey | None = key
        for _ in range(len(text) + 1):
            ancestor = parent_of(ancestor) if ancestor is not None else None
        assert ancestor is None, "a key has no end of parents"
        for other in (in_topic(key, "5"), in_thread(key, 7)):
            try:
                render_key(other)
            except SessileError:
                pass
    try:
        normal = normalize_key(text)
        assert normalize_key(normal) == normal
        modern_key(text, "main")
    except SessileError:
        pass


def routing(data: bytes) -> None:
    """Any message gets a valid key, or is refused."""
    members = ("session_key", "sender", "chat_type", "provider")
    told = data.decode("utf-8", "replace").split("\n")
    inbound = Inbound(**dict(zip(members, told, strict=False)))
    try:
        render_key(derive_key(inbound))
        render_key(derive_key(Inbound(**dict(zip(members[1:], told, strict=False)))))
    except SessileError:
        pass
