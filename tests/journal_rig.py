"""Helpers for the tests of the file journal: journals to damage, and all of their queries."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from faults.failing import Call, Fault, FaultyFilesystem
from sessile.core.codec import decode
from sessile.core.context import fold_path, walk
from sessile.core.kinds import MARKER, TITLE, flags_of
from sessile.core.lines import Finding, Line, scan
from sessile.core.tree import Node, Tree
from sessile.storage import atomic
from sessile.storage.base import Filesystem, News
from sessile.storage.journal import FileJournal
from sessile.storage.memory import MemoryFilesystem
from sessile.storage.reader import JournalReader
from sessile.testing.filesystem_contract import get, opened
from sessile.testing.journal_contract import HEADER

PATH = "/s/s.jsonl"
INDEX = "/c/s.index"

Memory = TypeVar("Memory", bound=MemoryFilesystem)


def settled(fs: Memory, content: bytes = HEADER + b"\n", path: str = PATH) -> Memory:
    """Return a file system with a journal of that content; file and names are durable."""
    for folder in ("/s", "/c"):
        if not atomic.exists(fs, folder):
            fs.mkdir(folder)
    atomic.replace(fs, path, [content])
    fs.sync_directory("/")
    return fs


def journal_on(fs: Filesystem, **options: Any) -> FileJournal:
    """Return the journal with a lock timeout of zero, because no lock is released in these tests."""
    return FileJournal(fs, PATH, **{"patience": 0.0, **options})


def add(fs: Filesystem, data: bytes, path: str = PATH) -> None:
    """Append and close, as a program without locking does."""
    with opened(fs, path, os.O_WRONLY | os.O_APPEND) as fd:
        fs.write(fd, data)


def content_of(fs: Filesystem) -> bytes:
    """Return the bytes of the journal."""
    return get(fs, PATH)


def always(*lines: bytes) -> Callable[[News], Sequence[bytes]]:
    """Write these lines whatever others have written."""
    return lambda news: lines


def count(fs: FaultyFilesystem, method: str) -> int:
    """Return the number of calls of a method."""
    return sum(call.method == method for call in fs.calls)


@dataclass(frozen=True)
class Always(Fault):
    """Runs `action` before each call of the methods `on`; its result limits a write."""

    action: Callable[[Call], int | None]

    def due(self, since: int) -> bool:
        return True

    def strike(self, filesystem: Filesystem, call: Call, since: int) -> int | None:
        return self.action(call)


Answers = dict[str, Any]


def ask(journal: JournalReader, ids: Sequence[str] = ()) -> Answers:
    """Return the results of all queries of a journal."""
    rows = list(journal.rows())
    last, title = journal.last(), journal.title()
    return {
        "rows": [tuple(row) for row in rows],
        "last": None if last is None else tuple(last),
        "found": {entry_id: journal.find(entry_id) for entry_id in (*ids, *(row.id for row in rows))},
        "lines": [journal.read(row) for row in rows],
        "paths": [[tuple(step) for step in journal.up(row)] for row in rows],
        "states": [journal.state(row) for row in rows],
        "labels": dict(journal.labels()),
        "title": None if title is None else tuple(title),
        "count": journal.count(),
        "findings": list(journal.findings()),
    }


def expect(data: bytes, ids: Sequence[str] = ()) -> Answers:
    """Return the same results from a simple model: scan all, decode all, walk from each entry."""
    rows: list[tuple[Any, ...]] = []
    lines: list[bytes] = []
    findings: list[Finding] = []
    header = None
    for item in scan(data):
        if isinstance(item, Finding):
            findings.append(item)
            continue
        head, length = item.head, len(item.raw)
        if head.type == "session":
            if header is not None:
                findings.append(Finding("second_header", item.offset, length, "another header; ignored"))
            header = header or item
        elif head.id is not None:
            rows.append((head.id, head.parentId or None, flags_of(head), (item.offset, length)))
            lines.append(item.raw)
        elif head.type != "title":
            findings.append(Finding("no_id", item.offset, length, f"a {head.type} entry without an id"))
    entries = [decode(raw) for raw in lines]
    by_id = {row[0]: entry for row, entry in zip(rows, entries, strict=True)}
    row_of = {id(entry): row for row, entry in zip(rows, entries, strict=True)}
    paths = [walk(entry, by_id)[0] for entry in entries]
    latest = {row[0]: row for row in rows}
    titles = [row for row in rows if row[2] & TITLE]
    labels = {
        entry["targetId"]: entry.get("label") for entry in entries if "targetId" in entry and entry["type"] == "label"
    }
    return {
        "rows": rows,
        "last": rows[-1] if rows else None,
        "found": {entry_id: latest.get(entry_id) for entry_id in (*ids, *latest)},
        "lines": lines,
        "paths": [[row_of[id(entry)] for entry in reversed(path)] for path in paths],
        "states": [fold_path(path) for path in paths],
        "labels": {target: text for target, text in labels.items() if text},
        "title": titles[-1] if titles else None,
        "count": sum(1 for row in rows if not row[2] & MARKER),
        "findings": findings + Tree(Node(*row[:3]) for row in rows).findings,
    }


def lines_of(data: bytes) -> list[bytes]:
    """Return the bytes of every readable line."""
    return [item.raw for item in scan(data) if isinstance(item, Line)]
