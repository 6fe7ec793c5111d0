"""Agents' own lists of sessions: a file `sessions.json` beside the sessions, or above their folder.

    MyAgents     an array above the folder: title and project of each session
    OpenClaw     an object in the folder: the key, and perhaps a name, of each conversation

Lists are only read, and tolerantly: one that cannot be read says nothing. What a session says of itself counts more.
"""

from __future__ import annotations

import os
import posixpath
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.formats import Formats, Told
from sessile.storage.layout import LIST, stem_of

LISTS = "CREATE TABLE lists (path BLOB PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL)"
"""The lists that a catalog has read, and their size and time when it did."""

_LARGEST = 64 << 20  # bytes; a larger list is ignored

# A title that the session itself has given counts more than that of a list.
_RETITLE = (
    "UPDATE sessions SET title = CASE WHEN title IS header_title THEN :title ELSE title END, header_title = :title,"
    " cwd = coalesce(:cwd, cwd) WHERE number = :number"
)


class _List(NamedTuple):
    """A list and its current size and time of modification."""

    path: str
    size: int
    modified: int


def told_of(fs: Filesystem, path: str, formats: Formats) -> Told:
    """Return what the list says of the session in a file."""
    found = _list_of(fs, posixpath.dirname(path))
    return (_read(fs, found, formats) if found else {}).get(stem_of(path), Told())


def has_changed(fs: Filesystem, database: sqlite3.Connection, places: Sequence[str]) -> bool:
    """Return whether a list has changed since the catalog read it."""
    known = {os.fsdecode(path): mark for path, *mark in database.execute("SELECT path, size, mtime_ns FROM lists")}
    found = filter(None, (_list_of(fs, place.rstrip("/")) for place in places))
    return any(known.get(each.path) != [each.size, each.modified] for each in found)


def take_over(fs: Filesystem, database: sqlite3.Connection, places: Sequence[str], formats: Formats) -> None:
    """Update the rows of a catalog from the lists of these places."""
    for place in places:
        found = _list_of(fs, place.rstrip("/"))
        if found is not None:
            told = _read(fs, found, formats)
            database.executemany(_RETITLE, list(_changes(database, place.rstrip("/"), told)))
            mark = (os.fsencode(found.path), found.size, found.modified)
            database.execute("INSERT OR REPLACE INTO lists VALUES (?, ?, ?)", mark)


def _changes(database: sqlite3.Connection, place: str, told: Mapping[str, Told]) -> Iterator[dict[str, Any]]:
    """Yield what differs from the rows below a place."""
    below = os.fsencode(f"{place}/")
    select = "SELECT number, path, id, header_title, cwd FROM sessions WHERE path > ? AND path < ?"
    for number, path, known, title, cwd in database.execute(select, (below, below[:-1] + b"0")):
        # A topic of a chat has the id of that chat, but a file of its own.
        says = told.get(stem_of(os.fsdecode(path))) or told.get(known)
        if says is not None and (says.title != title or (says.cwd or cwd) != cwd):
            yield {"number": number, "title": says.title, "cwd": says.cwd}


def _list_of(fs: Filesystem, folder: str) -> _List | None:
    """Return the list that names the sessions in a folder."""
    for path in (f"{folder}/{LIST}", f"{posixpath.dirname(folder)}/{LIST}"):
        try:
            status = fs.lstat(path)
        except OSError:
            continue  # there is none
        return _List(path, status.st_size, status.st_mtime_ns) if status.st_size <= _LARGEST else None
    return None


def _read(fs: Filesystem, found: _List, formats: Formats) -> Mapping[str, Told]:
    """Return the content of a list, by session ids or file names."""
    try:
        data = atomic.read_all(fs, found.path)
    except OSError:
        return {}  # an unreadable list says nothing
    return formats.titles(data)
