"""Laws of reading our own files: any bytes give an answer or a typed error, and every byte is accounted for."""

from __future__ import annotations

import itertools
import json
import posixpath
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from builders import Blobs
from journal_rig import INDEX, PATH, Answers, ask, content_of, expect, settled
from sessile import Store, errors
from sessile.core.codec import decode, encode
from sessile.core.compaction import plan_result_pruning, prepare
from sessile.core.context import absences, build_session_context
from sessile.core.digest import Digest
from sessile.core.hygiene import clean
from sessile.core.kinds import MARKER, flags_of
from sessile.core.large import resolve, shrink
from sessile.core.lines import Item, Line, Scanner, scan
from sessile.core.messages.anthropic import anthropic_messages
from sessile.core.messages.family import convert_to_llm, sendable
from sessile.core.messages.gemini import google_contents
from sessile.core.messages.openai_chat import openai_messages
from sessile.core.migrate import migrate_session_entries
from sessile.core.providers import policy_for
from sessile.core.redact import Redactor
from sessile.core.result_trimming import trim_results
from sessile.core.summaries import Files, SummaryRequest, as_text, extract, navigation, prepare_branch
from sessile.core.tokens import context_tokens, estimate, estimate_closely, reported
from sessile.core.tree import NOWHERE, Node, Tree
from sessile.core.usage import ledger
from sessile.core.words import passages
from sessile.discovery import describe
from sessile.export import FORMS, Export
from sessile.render.comparison import compare
from sessile.render.shown import show_all
from sessile.storage import atomic
from sessile.storage.journal import FileJournal
from sessile.storage.memory import MemoryFilesystem
from sessile.storage.reader import JournalReader
from sessile.testing.filesystem_contract import get, put
from sessile.testing.journal_contract import HEADER, chain
from sessile.upkeep.check import check, plan_repair, repair

Json = dict[str, Any]

_POLICIES = [policy_for(*names) for names in (("anthropic",), ("openai",), ("google",), ("mistral",), (None,))]
_FAMILIES = (chain(*(f"{family}-{number}" for number in range(4))) for family in range(20))
_JOURNAL = b"".join(line + b"\n" for line in (HEADER, *itertools.chain(*_FAMILIES)))
_ROOT = "/root"
_FILE = f"{_ROOT}/sessions/--work--/2026-11-16T00-00-00-000Z_s.jsonl"


def account(items: Iterable[Item], newlines: int, data: bytes) -> None:
    """Check that lines, findings and line ends cover all bytes without overlap, and that each line is at its offset."""
    covered, end = newlines, 0
    for item in items:
        length = len(item.raw) if isinstance(item, Line) else item.length
        assert item.offset >= end or length == 0, "two items overlap"
        if isinstance(item, Line):
            assert data[item.offset : item.offset + length] == item.raw, "a line lies elsewhere"
        covered += length
        end = max(end, item.offset + length)
    assert covered == len(data), "bytes are not accounted for"


def entries_in(data: bytes) -> list[Json]:
    """Return every readable record."""
    return [decode(item.raw) for item in scan(data) if isinstance(item, Line)]


def lines(data: bytes) -> None:
    """Items do not depend on how a file is split into chunks, cover every byte, and no line exceeds the limit."""
    for untyped, limit in ((False, 1 << 20), (True, 1 << 20), (False, 40)):
        scanner = Scanner(limit=limit, untyped=untyped)
        items = [*scanner.feed(data), *scanner.finish()]
        account(items, scanner.newline_bytes, data)
        pieces = Scanner(limit=limit, untyped=untyped)
        again = [item for part in _parts(data) for item in pieces.feed(part)] + [*pieces.finish()]
        assert (again, pieces.newline_bytes) == (items, scanner.newline_bytes), "pieces give other items than the whole"
    for item in scan(data):
        if isinstance(item, Line):
            value = decode(item.raw)
            assert isinstance(value, dict) and item.head.type == value["type"]


def _parts(data: bytes) -> Iterable[bytes]:
    size = max(1, len(data) // 7)
    return [data[start : start + size] for start in range(0, len(data), size)]


def codec(data: bytes) -> None:
    """An entry that can be read and written is one line, and is read back unchanged."""
    for line in data.split(b"\n"):
        try:
            value = decode(line)
        except ValueError:
            continue
        try:
            written = encode({"value": value})
        except errors.InvalidEntry:
            continue
        assert b"\n" not in written and b"\0" not in written
        assert decode(written) == {"value": value}
        assert encode(decode(written)) == written


def tree(data: bytes) -> None:
    """Every entry is below exactly one root, and the path up from each entry ends."""
    heads = [item.head for item in scan(data) if isinstance(item, Line)]
    made = Tree(Node(head.id or "", head.parentId, flags_of(head)) for head in heads)
    below, waiting = 0, [*made.children(NOWHERE)]
    while waiting:
        below += 1
        waiting += made.children(waiting.pop())
    shown = sum(not node.flags & MARKER for node in made.nodes)
    assert below == shown, "an entry is below no root, or below two"
    assert len(made.heads()) <= shown
    for number in range(min(len(heads), 50)):
        assert made.path(number)[-1] == number


def context(data: bytes) -> None:
    """Any context can be converted for any provider and encoded as JSON."""
    entries = [record for record in entries_in(data) if isinstance(record.get("id"), str)]
    leaves = {record["id"] for record in entries[-3:]}
    for leaf in (None, *sorted(leaves)):
        found = build_session_context(entries, leaf)
        assert len(found.messages) == len(found.sources)
        messages = convert_to_llm(found.messages)
        for form in (anthropic_messages, openai_messages, google_contents):
            msgspec.json.encode(sendable(form(messages)))
        for policy in _POLICIES:
            cleaned = clean(found.messages, policy, history_limit=2)
            assert len(cleaned.messages) == len(cleaned.origins)
            for form in (anthropic_messages, openai_messages, google_contents):
                json.dumps(sendable(form(convert_to_llm(cleaned.messages))))
        for message in found.messages:
            assert estimate(message) >= 0 and estimate_closely(message) >= 0
        as_text(found.messages)
        context_tokens(found.messages)


def care(data: bytes) -> None:
    """Pruning, trimming, summaries, file lists and abandoned branches accept any messages."""
    entries = [record for record in entries_in(data) if isinstance(record.get("id"), str)]
    found = build_session_context(entries)
    plan_result_pruning(found.messages, found.sources, protect=0, minimum=0)
    for window in (10, 100_000):
        trimmed = trim_results(found.messages, found.sources, window, {})
        assert len(trimmed.messages) == len(found.messages)
    for purpose in ("history", "short"):
        extract(SummaryRequest(purpose, "", "", found.messages, "before", 100))
    files = Files()
    for message in found.messages:
        files.add_message(message)
        reported(message)
    files.lists().appended_to("summary")
    prepare_branch(entries, 1000)
    absences(entries, found.sources)
    compare(entries, entries[: len(entries) // 2])
    for other in entries[:3]:
        navigation([entry["id"] for entry in entries], other, [entries[0]["id"]])


def migrate(data: bytes) -> None:
    """Migrating is idempotent, and gives every entry of version 1 an id."""
    records = entries_in(data)
    before = len(records)
    migrate_session_entries(records)
    assert len(records) == before
    if any(record.get("type") == "session" for record in records):
        assert not migrate_session_entries(records), "a file is migrated twice"


def looking(data: bytes) -> None:
    """Any entry can be shown, searched, counted, shrunk and redacted; blobs are returned unchanged."""
    entries = entries_in(data)
    digest, blobs, redactor = Digest(), Blobs(), Redactor()
    for entry in entries:
        digest.add(entry)
        passages(entry)
        stored = shrink(entry, blobs.put)
        if "full" not in str(entry):
            assert resolve(stored, blobs.get, blobs.miss) == entry or blobs.missing
        redactor.redact_value(entry, "x")
    digest.counts()
    for _ in show_all(entries):
        pass
    for _ in ledger(entries):
        pass


def session(data: bytes) -> None:
    """Any file can be listed, opened, read, checked and exported, and none of that changes it."""
    store = _store_with(data)
    describe(store.fs, _FILE)
    describe(store.fs, _FILE, full=True)
    report = check(store, _FILE)
    plan_repair(store, _FILE)
    assert report.size == len(data)
    try:
        opened = store.open(_FILE, readonly=True)
    except errors.Unreadable:
        return
    with opened:
        ids = [entry.id for entry in opened.iter_entries()][-3:]
        for _ in opened.iter_outline():
            pass
        _ = (
            opened.title,
            opened.tag,
            opened.cwd,
            opened.leaf_id,
            opened.get_heads(),
            opened.get_tree(),
            opened.get_gaps(),
        )
        for entry_id in ids:
            opened.context(entry_id)
            opened.context(entry_id, bridge=True)
            opened.get_branch(entry_id)
            opened.get_full_entry(entry_id)
            prepare(opened.walk_up(entry_id), opened.read_row)
        for form in FORMS:
            for _ in Export(opened, redactor=Redactor()).written(form, "all"):
                pass
    assert get(store.fs, _FILE) == data, "reading has changed a file"


def repairing(data: bytes) -> None:
    """A repair keeps every readable entry and the old file, and a second repair has nothing to do."""
    store = _store_with(data)
    before = [item.raw for item in scan(data) if isinstance(item, Line)]
    try:
        done = repair(store, _FILE)
    except errors.Unreadable:
        return
    after = get(store.fs, _FILE)
    kept = {item.raw for item in scan(after) if isinstance(item, Line)}
    assert kept.issuperset(raw for raw in before if decode(raw).get("type") != "session"), "an entry is lost"
    if done.original is None:
        assert after == data
    else:
        assert get(store.fs, done.original) == data, "the original is not kept"
    assert repair(store, _FILE).original is None, "a second repair finds something to do"


def appending(data: bytes) -> None:
    """An append changes no existing byte, and its line is on its own."""
    fs = settled(MemoryFilesystem(), data)
    try:
        journal = FileJournal(fs, PATH, patience=0.0, power=False)
    except errors.SessileError:
        assert content_of(fs) == data
        return
    line = b'{"type":"message","id":"new","parentId":null}'
    journal.append([line], lambda news: [line])
    journal.close()
    gap = b"" if data.endswith(b"\n") else b"\n"
    assert content_of(fs) == data + gap + line + b"\n"


def asked(data: bytes) -> None:
    """All answers of a journal equal those of a full scan."""
    fs = settled(MemoryFilesystem(), data)
    try:
        journal = JournalReader(fs, PATH)
    except errors.SessileError:
        return
    if journal.slot() is None and b'"version":3' in journal.header():
        answers, expected = ask(journal), expect(data)
        assert answers["rows"] == expected["rows"] and answers["lines"] == expected["lines"]
    else:
        ask(journal)
    journal.close()


def index(data: bytes) -> None:
    """With any bytes in place of an index, the answers are those without one."""
    fs = _one_journal()
    atomic.replace(fs, INDEX, [data])
    journal = JournalReader(fs, PATH, index_path=INDEX)
    try:
        answers = ask(journal)
    finally:
        journal.close()
    assert answers == _answers(), "an index was believed over its journal"


@cache
def _one_journal() -> MemoryFilesystem:
    """Return a journal that stays the same, because an index fits only one file of one file system."""
    return settled(MemoryFilesystem(), _JOURNAL)


@cache
def _answers() -> Answers:
    return ask(JournalReader(_one_journal(), PATH))


def indexes() -> list[bytes]:
    """Return a valid index of the journal that `index` reads."""
    fs = _one_journal()
    atomic.remove(fs, INDEX)
    journal = JournalReader(fs, PATH, index_path=INDEX)
    ask(journal)
    journal.close()
    return [get(fs, INDEX)]


def _store_with(data: bytes) -> Store:
    fs = MemoryFilesystem()
    store = Store(_ROOT, fs=fs, durability="process")
    atomic.make_folders(fs, posixpath.dirname(_FILE), set())
    put(fs, _FILE, data)
    return store
