"""The files of a thread, as Codex calls a session: forks that continue another file, and rewinds in files of their own.

    sessions/YYYY/MM/DD/rollout-<time>-<thread id>.jsonl                 a thread
    sessions/YYYY/MM/DD/rollout-<time>-<thread id>_<segment id>.jsonl    the same thread after a rewind
    archived_sessions/                                                   both, after the thread was archived

A fork copies nothing: its `history_base` names a thread or segment, and where in its file the fork begins. A segment has a
`history_base` in an earlier file of its own thread. There the rows after that point are left, but not lost: they are a branch.

Ids are UUIDs with their time in front, so a file is looked for in the folders of the days around it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sessile.agents.base import Related, Stretch, placed, row_of
from sessile.agents.codex.items import ITEMS, object_of
from sessile.agents.registry import AGENTS
from sessile.core.codec import encode_plain
from sessile.core.lines import MAX_LINE, Finding
from sessile.storage.base import CHUNK, Filesystem
from sessile.storage.layout import JOURNAL, ROLLOUT, is_segment
from sessile.storage.packed import chunks_of, open_rows

JOINT = "sessile.rewind"  # the type of the row between two files of a thread; nothing stores it

_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_NAME = re.compile(rf"-({_UUID})(?:_({_UUID}))?\.jsonl")
_FOLDERS = ("sessions", "archived_sessions")
_DEEPEST = 100  # forks of forks
_DAY = timedelta(days=1)


class Base(NamedTuple):
    """Where a file goes on: the thread or segment, and the end of what it continues, as a number of rows and of bytes."""

    thread: str
    ordinal: int
    size: int


def meta_of(first: bytes) -> Mapping[str, Any]:
    """Return what the first row says of a session."""
    row = row_of(first.partition(b"\n")[0])
    return object_of(row.get("payload")) or row


def base_of(meta: Mapping[str, Any]) -> Base | None:
    """Return where a session goes on, if it continues another file."""
    base = object_of(meta.get("history_base"))
    thread, ordinal, size = (base.get(name) for name in ("thread_id", "end_ordinal_exclusive", "end_byte_offset"))
    if not isinstance(thread, str) or not thread:
        return None
    return Base(thread, ordinal if isinstance(ordinal, int) else -1, size if isinstance(size, int) else -1)


def related(fs: Filesystem, path: str, first: bytes) -> Related:
    """Return the session that a session was forked from or started by, and the file before it if it was rewound."""
    meta = meta_of(first)
    source = object_of(object_of(object_of(meta.get("source")).get("subagent")).get("thread_spawn"))
    named = (meta.get("parent_thread_id"), source.get("parent_thread_id"), meta.get("forked_from_id"))
    parent = next((thread for thread in named if isinstance(thread, str) and thread), None)
    base = base_of(meta)
    if parent is None and base is not None and base.thread not in posixpath.basename(path):
        parent = base.thread
    before = ""
    if is_segment(path):
        files = _files_of(fs, path)
        before = files[files.index(path) - 1] if path in files[1:] else ""
    found = "" if parent is None else _find(fs, path, parent) or ""
    return Related(_last_file(fs, found) if found else "", before)


def history(fs: Filesystem, path: str, first: bytes) -> list[Stretch]:
    """Return the parts of other files that a session continues, the oldest first."""
    stretches: list[Stretch] = []
    seen: set[str] = set()
    base = base_of(meta_of(first))
    while base is not None and len(seen) < _DEEPEST:
        file = _find(fs, path, base.thread)
        if file is None or file == path or file in seen:
            why = "is missing" if file is None else "continues itself"
            problem = f"the session continues {base.thread}, whose file {why}; what was said there is not shown"
            return [Stretch(None, 0, problem), *stretches]
        seen.add(file)
        try:
            fd, size, *_ = open_rows(fs, file, AGENTS, alone=True)
        except OSError as error:
            problem = f"the session continues {file}, which cannot be read: {error.strerror or error}"
            return [Stretch(None, 0, problem), *stretches]
        try:
            end = _end(fs, fd, size, base)
            start = _first_row(fs, fd)
        finally:
            fs.close(fd)
        stretches.insert(0, Stretch(file, end))
        base = base_of(meta_of(start))
    return stretches


def join(fs: Filesystem, path: str) -> Iterator[bytes | Finding]:
    """Yield the rows of all files of a thread up to this one.

    Between two files is a row of the type `JOINT` that names the entry where the later one goes on.
    """
    files = _files_of(fs, path)
    files = files[: files.index(path) + 1] if path in files else [path]
    starts = _starts(fs, files[0])
    offset = 0
    for number, file in enumerate(files):
        fd, size, damage, *_ = open_rows(fs, file, AGENTS, alone=True)
        yield from damage
        try:
            base = base_of(meta_of(_first_row(fs, fd)))
            if number and base is not None:
                found = _target(fs, list(starts), base)
                if found is None:
                    problem = f"{file} continues {base.thread}, which is not one of the files before it"
                    yield Finding("missing_history", -1, 0, problem)
                target = None if found is None else placed(starts[found[0]] + found[1])
                joint = encode_plain({"type": JOINT, "payload": {"to": target}}) + b"\n"
                offset += len(joint)
                yield joint
            starts[file] = offset
            last = b"\n"
            for chunk in chunks_of(fs, fd, size):
                offset += len(chunk)
                last = chunk
                yield chunk
            if not last.endswith(b"\n") and file != path:
                offset += 1
                yield b"\n"
        finally:
            fs.close(fd)


def _starts(fs: Filesystem, path: str) -> dict[str, int]:
    """Return where the files that a thread continues start, before its own first row."""
    fd, *_ = open_rows(fs, path, AGENTS, alone=True)
    try:
        before = history(fs, path, _first_row(fs, fd))
    finally:
        fs.close(fd)
    start = -sum(stretch.size for stretch in before)
    starts: dict[str, int] = {}
    for file, size, _ in before:
        if file is not None:
            starts[file] = start
        start += size
    return starts


def _target(fs: Filesystem, files: Sequence[str], base: Base) -> tuple[str, int] | None:
    """Return the file that a segment goes on in, and the offset of the last item there before its end."""
    file = next((file for file in files if _id_of(file) == base.thread), None)
    if file is None:
        return None
    fd, size, *_ = open_rows(fs, file, AGENTS, alone=True)
    try:
        last = 0
        for offset, line in _lines(fs, fd, _end(fs, fd, size, base)):
            row = row_of(line)
            kind = row.get("type")
            if kind == "compacted" or object_of(row.get("payload")).get("type", kind) in ITEMS:
                last = offset
        return file, last
    finally:
        fs.close(fd)


# -- inside a file


def _first_row(fs: Filesystem, fd: int) -> bytes:
    first = fs.read(fd, CHUNK, 0)
    while b"\n" not in first and len(first) <= MAX_LINE and (more := fs.read(fd, CHUNK, len(first))):
        first += more
    return first.partition(b"\n")[0]


def _end(fs: Filesystem, fd: int, size: int, base: Base) -> int:
    """Return where the part that is continued ends: as Codex says if a row ends there, otherwise by the numbers of rows."""
    if 0 < base.size <= size and fs.read(fd, 1, base.size - 1) == b"\n":
        return base.size
    if base.ordinal < 0:
        return size
    for offset, line in _lines(fs, fd, size):
        ordinal = row_of(line).get("ordinal")
        if isinstance(ordinal, int) and ordinal >= base.ordinal:
            return offset
    return size


def _lines(fs: Filesystem, fd: int, size: int) -> Iterator[tuple[int, bytes]]:
    offset, rest = 0, b""
    for chunk in chunks_of(fs, fd, size):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield offset, line
            offset += len(line) + 1
    if rest:
        yield offset, rest


# -- finding files


def _id_of(path: str) -> str | None:
    """Return the id in the name of a file: of its segment, otherwise of its thread."""
    found = _NAME.search(posixpath.basename(path))
    return None if found is None else found[2] or found[1]


def _find(fs: Filesystem, path: str, thread: str) -> str | None:
    """Return the file of a thread or segment, near another file of the same home."""
    near = [posixpath.dirname(path)]
    home = _home(path)
    if home is not None:
        near += [*_days(home, thread), f"{home}/archived_sessions"]
    for folder in dict.fromkeys(near):
        if (found := _named(fs, folder, thread)) is not None:
            return found
    if home is None:
        return None
    # Somebody may have moved it.
    return next((found for folder in _all_days(fs, home) if (found := _named(fs, folder, thread)) is not None), None)


def _named(fs: Filesystem, folder: str, thread: str) -> str | None:
    ends = (f"-{thread}", f"_{thread}")
    for name in _names(fs, folder):
        if name.startswith(ROLLOUT) and thread in name and name.partition(JOURNAL)[0].endswith(ends):
            return f"{folder}/{name}"
    return None


def _files_of(fs: Filesystem, path: str) -> list[str]:
    """Return the files of a file's thread, the oldest first."""
    name = _NAME.search(posixpath.basename(path))
    if name is None:
        return [path]
    folders = [posixpath.dirname(path)]
    home = _home(path)
    if home is not None:
        first, last = _day(name[1]), _day(name[2] or name[1])
        days = _all_days(fs, home)
        if first is not None and last is not None:
            low, high = (f"{home}/sessions/{day:%Y/%m/%d}" for day in (first - _DAY, datetime.max))
            days = [folder for folder in days if low <= folder <= high]
        folders += [*days, f"{home}/archived_sessions"]
    found = [
        f"{folder}/{other}"
        for folder in dict.fromkeys(folders)
        for other in _names(fs, folder)
        if name[1] in other and (match := _NAME.search(other)) is not None and match[1] == name[1]
    ]
    found.sort(key=posixpath.basename)  # their names start with the time
    plain = {posixpath.basename(file).partition(JOURNAL)[0]: file for file in reversed(found)}
    return sorted(plain.values(), key=posixpath.basename)


def _last_file(fs: Filesystem, path: str) -> str:
    """Return the newest file of a file's thread, which is the one that is listed."""
    return _files_of(fs, path)[-1]


def _home(path: str) -> str | None:
    """Return the home of Codex that a file is in; `None` if it is elsewhere."""
    folder = posixpath.dirname(path)
    while posixpath.basename(folder).isdecimal():
        folder = posixpath.dirname(folder)
    return posixpath.dirname(folder) if posixpath.basename(folder) in _FOLDERS else None


def _days(home: str, thread: str) -> list[str]:
    """Return the folders of the days around the time in an id: folders have the local date."""
    day = _day(thread)
    around = () if day is None else (day, day - _DAY, day + _DAY)
    return [f"{home}/sessions/{each:%Y/%m/%d}" for each in around]


def _day(thread: str) -> datetime | None:
    try:
        day = datetime.fromtimestamp(int(thread.replace("-", "")[:12], 16) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return day if 1970 < day.year < 9000 else None


def _all_days(fs: Filesystem, home: str) -> list[str]:
    """Return the folders of all days, the oldest first."""
    folders = [f"{home}/sessions"]
    for _ in range(3):
        folders = [f"{folder}/{name}" for folder in folders for name in sorted(_names(fs, folder)) if name.isdecimal()]
    return folders


def _names(fs: Filesystem, folder: str) -> Sequence[str]:
    try:
        return fs.names(folder)
    except OSError:
        return ()
