"""What agents' own lists of sessions say of them: `sessions.json`, beside the sessions or above their folder.

    MyAgents     an array above the folder: title and project of each session
    OpenClaw     an object in the folder: the key, and perhaps a name, of each conversation

Lists are only read, tolerantly: one that cannot be read says nothing. What a session itself says counts more.
"""

from __future__ import annotations

import os
import posixpath
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.layout import LIST, stem_of

LISTS = "CREATE TABLE lists (path BLOB PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL)"
"""Which lists a catalog has read, and how they were then."""

Told = tuple[str | None, str | None]
"""Title and project of a session, where they are said."""

_LARGEST = 64 << 20  # bytes; a list that is larger is none

# A title that the session itself has given counts more than that of a list.
_RETELL = (
    "UPDATE sessions SET title = CASE WHEN title IS header_title THEN :title ELSE title END, header_title = :title,"
    " cwd = coalesce(:cwd, cwd) WHERE number = :number"
)


class _List(NamedTuple):
    """A list, and how it is now."""

    path: str
    size: int
    modified: int


def told_of(fs: Filesystem, path: str) -> Told:
    """What is said of the session in a file."""
    found = _list_of(fs, posixpath.dirname(path))
    return (_read(fs, found) if found else {}).get(stem_of(path), (None, None))


def has_news(fs: Filesystem, database: sqlite3.Connection, places: Sequence[str]) -> bool:
    """Whether a list has changed since a catalog read it."""
    known = {os.fsdecode(path): mark for path, *mark in database.execute("SELECT path, size, mtime_ns FROM lists")}
    found = filter(None, (_list_of(fs, place.rstrip("/")) for place in places))
    return any(known.get(each.path) != [each.size, each.modified] for each in found)


def retell(fs: Filesystem, database: sqlite3.Connection, places: Sequence[str]) -> None:
    """Tell the rows of a catalog what the lists of their places say of them."""
    for place in places:
        found = _list_of(fs, place.rstrip("/"))
        if found is not None:
            told = _read(fs, found)
            database.executemany(_RETELL, list(_news(database, place.rstrip("/"), told)))
            mark = (os.fsencode(found.path), found.size, found.modified)
            database.execute("INSERT OR REPLACE INTO lists VALUES (?, ?, ?)", mark)


def _news(database: sqlite3.Connection, place: str, told: Mapping[str, Told]) -> Iterator[dict[str, Any]]:
    """What differs from what the rows below a place say."""
    below = os.fsencode(f"{place}/")
    select = "SELECT number, path, id, header_title, cwd FROM sessions WHERE path > ? AND path < ?"
    for number, path, known, title, cwd in database.execute(select, (below, below[:-1] + b"0")):
        # A topic of a chat has the id of that chat, but a file of its own.
        says = told.get(stem_of(os.fsdecode(path))) or told.get(known)
        if says is not None and (says[0] != title or (says[1] or cwd) != cwd):
            yield {"number": number, "title": says[0], "cwd": says[1]}


def _list_of(fs: Filesystem, folder: str) -> _List | None:
    """The list that tells of the sessions in a folder."""
    for path in (f"{folder}/{LIST}", f"{posixpath.dirname(folder)}/{LIST}"):
        try:
            status = fs.lstat(path)
        except OSError:
            continue  # there is none
        return _List(path, status.st_size, status.st_mtime_ns) if status.st_size <= _LARGEST else None
    return None


def _read(fs: Filesystem, found: _List) -> Mapping[str, Told]:
    """What a list says, by the ids of sessions or the names of their files."""
    try:
        data = atomic.read_all(fs, found.path)
    except OSError:
        return {}  # it cannot be read: it says nothing
    if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        from sessile.formats.myagents.naming import described

        return {known: (row.title, row.cwd) for known, row in described(data).items()}
    from sessile.formats.yoyoclaw.naming import described as keyed

    return {known: (title, None) for known, (title, _) in keyed(data).items()}
