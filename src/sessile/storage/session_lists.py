"""Agents' own lists of sessions: a file `sessions.json` beside the sessions or above their folder, or one with names above it.

    MyAgents     an array above the folder: title and project of each session
    OpenClaw     an object in the folder: the key, and perhaps a name, of each conversation
    Codex        rows above the folder, `session_index.jsonl`: the names that sessions were given

Lists are only read, and tolerantly: one that cannot be read says nothing. What a session says of itself counts more. The
catalog notes what a list said of a session. When the list no longer says it, the session is looked at again.
"""

from __future__ import annotations

import os
import posixpath
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.core.codec import encode_plain
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.formats import Formats, Told
from sessile.storage.layout import LIST, NAMES, stem_of
from sessile.storage.walk import Mark, mark_of, settled

LISTS = (
    "CREATE TABLE lists (place BLOB PRIMARY KEY, path BLOB NOT NULL,"
    " size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, inode INTEGER NOT NULL, device INTEGER NOT NULL, ctime_ns INTEGER)"
)
"""The lists that a catalog has read, by the folder of their sessions, and their marks when it did."""

_ID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_LARGEST = 64 << 20  # bytes; a larger list is ignored

# A title that the session itself has given counts more than that of a list. The words of the title are indexed again.
_RETITLE = (
    "UPDATE sessions SET title = CASE WHEN NOT named AND title IS header_title THEN :title ELSE title END, header_title = :title,"
    " cwd = coalesce(:cwd, cwd), told = :told, searchable = 0 WHERE number = :number"
)


class _List(NamedTuple):
    """A list and its current mark."""

    path: str
    mark: Mark


def told_of(fs: Filesystem, path: str, formats: Formats) -> Told:
    """Return what the list says of the session in a file."""
    folder = posixpath.dirname(path)
    while posixpath.basename(folder).isdecimal():  # folders of years, months and days
        folder = posixpath.dirname(folder)
    found = _list_of(fs, folder)
    told = _read(fs, found, formats) if found else {}
    stem = stem_of(path)
    ids = _ID.findall(stem) if told and stem not in told else ()
    return told.get(stem) or next((told[known] for known in ids if known in told), Told())


def has_changed(fs: Filesystem, database: sqlite3.Connection, places: Sequence[str]) -> bool:
    """Return whether a list was changed, added or removed since the catalog read it."""
    return any(True for _ in _news(fs, database, places))


def _news(fs: Filesystem, database: sqlite3.Connection, places: Sequence[str]) -> Iterator[tuple[str, _List | None]]:
    """Yield the folders whose lists the catalog has not read as they are now."""
    select = "SELECT place, path, size, mtime_ns, inode, device, ctime_ns FROM lists"
    known = {os.fsdecode(place): (os.fsdecode(path), tuple(mark)) for place, path, *mark in database.execute(select)}
    for place in places:
        folder = place.rstrip("/")
        found = _list_of(fs, folder)
        if found != known.get(folder):
            yield folder, found


def withdrawn(fs: Filesystem, database: sqlite3.Connection, places: Sequence[str], formats: Formats) -> list[str]:
    """Return the sessions of which a list no longer says what it said. They must be looked at again."""
    return [
        path
        for folder, found in _news(fs, database, places)
        for _, path, before, says in _told(database, folder, _read(fs, found, formats) if found else {})
        if before is not None and before != _noted(says)
    ]


def take_over(fs: Filesystem, database: sqlite3.Connection, places: Sequence[str], formats: Formats) -> None:
    """Update the rows of a catalog from the lists of these places."""
    for place in places:
        folder, now = place.rstrip("/"), time.time_ns()
        found = _list_of(fs, folder)
        database.execute("DELETE FROM lists WHERE place = ?", (os.fsencode(folder),))
        if found is not None:
            told = _read(fs, found, formats)
            database.executemany(_RETITLE, list(_changes(database, folder, told)))
            values = (os.fsencode(folder), os.fsencode(found.path), *settled(found.mark, now))
            database.execute("INSERT INTO lists VALUES (?, ?, ?, ?, ?, ?, ?)", values)


def _changes(database: sqlite3.Connection, folder: str, told: Mapping[str, Told]) -> Iterator[dict[str, Any]]:
    """Yield what differs from the rows below a folder."""
    for number, _, before, says in _told(database, folder, told):
        if says is not None and before != _noted(says):
            yield {"number": number, "title": says.title, "cwd": says.cwd, "told": _noted(says)}


def _told(
    database: sqlite3.Connection, folder: str, told: Mapping[str, Told]
) -> Iterator[tuple[int, str, str | None, Told | None]]:
    """Yield number and path of each row below a folder, what a list said of it before, and what it says now."""
    below = os.fsencode(f"{folder}/")
    select = "SELECT number, path, id, told FROM sessions WHERE path > ? AND path < ?"
    for number, stored, known, before in database.execute(select, (below, below[:-1] + b"0")):
        # A topic of a chat has the id of that chat, but a file of its own.
        path = os.fsdecode(stored)
        yield number, path, before, told.get(stem_of(path)) or told.get(known)


def _noted(says: Told | None) -> str | None:
    return None if says is None else encode_plain(says).decode("utf-8", "surrogatepass")


def _list_of(fs: Filesystem, folder: str) -> _List | None:
    """Return the list that names the sessions in a folder."""
    above = posixpath.dirname(folder)
    for path in (f"{folder}/{LIST}", f"{above}/{LIST}", f"{above}/{NAMES}"):
        try:
            status = fs.lstat(path)
        except OSError:
            continue  # there is none
        return _List(path, mark_of(status)) if status.st_size <= _LARGEST else None
    return None


def _read(fs: Filesystem, found: _List, formats: Formats) -> Mapping[str, Told]:
    """Return the content of a list, by session ids or file names."""
    try:
        data = atomic.read_all(fs, found.path)
    except OSError:
        return {}  # an unreadable list says nothing
    return formats.titles(data)
