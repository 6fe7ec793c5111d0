"""Session files without opening them as sessions: find them, describe them, read their records.

Listings read the first bytes of a file, and more only if its header is longer. What these bytes do not show is unknown
(`None`), never zero. Whole files are read only on request.
"""

from __future__ import annotations

import errno
import os
import posixpath
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from sessile.core.text import clean_name, parse_timestamp
from sessile.errors import storage_failure, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem, Stat
from sessile.storage.drafts import is_draft
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.head import HEAD, Record, Start, read_start, start_of
from sessile.storage.locks import is_held
from sessile.storage.walk import find_session_files

_NOT_READABLE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO)
NO_MESSAGES = "(no messages)"


class SessionInfo(msgspec.Struct, frozen=True):
    """What a listing shows about a session; `None` is unknown.

    Attributes:
        path: The path of the session's file.
        id: The session id.
        cwd: The project: the working folder of the session; empty if unknown.
        title: The title.
        parent_session_path: The file that the session was forked from.
        created: When the session was created, in UTC.
        modified: When the file was last modified, in UTC.
        size: The size of the file in bytes.
        first_message: The text of the first message of the user.
        message_count: The number of messages on all branches.
        all_messages_text: The texts of all messages of the user and the assistant.
        draft: Whether no assistant has answered yet. Other programs do not list a draft.

    Example:
        ```python
        for info in store.list("/work/app"):
            print(info.modified, info.title or info.first_message)
        ```
    """

    path: str
    id: str
    cwd: str
    title: str | None
    parent_session_path: str | None
    created: datetime | None
    modified: datetime
    size: int
    first_message: str | None
    message_count: int | None = None
    all_messages_text: str | None = None
    draft: bool = False


class RecentSession(msgspec.Struct, frozen=True):
    """One line of a welcome screen.

    Attributes:
        path: The path of the session's file.
        name: A short name: the title, the first message or the id.
        time_ago: How long ago it was modified, in words.
        modified: When it was modified, in UTC.
        draft: Whether no assistant has answered yet. Other programs do not list a draft.
    """

    path: str
    name: str
    time_ago: str
    modified: datetime
    draft: bool = False


class FoundHeader(NamedTuple):
    """The header of a session file, and when the file was last modified (nanoseconds since 1970)."""

    header: Record
    modified_ns: int


def read_header(fs: Filesystem, path: str) -> FoundHeader | None:
    """Return the header of a session file; `None` if it is not a session or may not be read.

    Raises:
        StorageFailure: The disk failed.
    """
    found = _read(fs, path, full=False)
    return None if found is None else FoundHeader(found[1].header, found[0].st_mtime_ns)


def describe(fs: Filesystem, path: str, *, full: bool = False) -> SessionInfo | None:
    """Describe a session file; return `None` if it is not a session or may not be read.

    Args:
        fs: The filesystem.
        path: The path of the file.
        full: Read the whole file, for counts and texts.

    Raises:
        StorageFailure: The disk failed.
    """
    found = _read(fs, path, full)
    return None if found is None else _described(path, *found, full=full)


def listed(fs: Filesystem, path: str, *, full: bool = False) -> SessionInfo | None:
    """Describe a session file for a listing; `None` also for a draft without entries, which is removed when it is closed."""
    found = _read(fs, path, full)
    if found is None or (is_draft(path) and not found[1].entries and found[0].st_size <= HEAD):
        return None
    return _described(path, *found, full=full)


def _described(path: str, stat: Stat, start: Start, *, full: bool) -> SessionInfo:
    slot, header, entries = start
    complete = full or stat.st_size <= HEAD
    texts = [text for entry in entries if (text := _spoken(entry))]
    first = next((text for entry in entries if _role(entry) == "user" and (text := _spoken(entry))), None)
    return SessionInfo(
        path=path,
        id=header["id"],
        cwd=_string(header.get("cwd")) or "",
        title=_title(header, slot, entries, complete),
        parent_session_path=_string(header.get("parentSession")),
        created=_moment(parse_timestamp(header.get("timestamp"))),
        modified=datetime.fromtimestamp(stat.st_mtime_ns / 1e9, UTC),
        size=stat.st_size,
        first_message=first or (NO_MESSAGES if complete else None),
        message_count=sum(entry["type"] == "message" for entry in entries) if complete else None,
        all_messages_text=" ".join(texts) if complete else None,
        draft=is_draft(path),
    )


def _read(fs: Filesystem, path: str, full: bool) -> tuple[Stat, Start] | None:
    """The status of a file, and the records in its first bytes or in the whole file."""
    try:
        fd = fs.open(path, os.O_RDONLY)
        try:
            stat = fs.fstat(fd)
            start = read_start(fs, fd, stat.st_size, full=full)
        finally:
            fs.close(fd)
    except OSError as error:
        if error.errno in _NOT_READABLE:
            return None
        raise storage_failure(error, path, "read the session") from error
    return None if start is None else (stat, start)


def load_entries_from_file(path: str | os.PathLike[str]) -> list[Record]:
    """Return the records of a session file as dicts, header first; empty if it is missing or not a session."""
    with storage_failures(os.fspath(path), "read the session"):
        try:
            data = atomic.read_all(PosixFilesystem(), os.path.abspath(path))
        except (FileNotFoundError, NotADirectoryError):
            return []
    start = start_of(data)
    if start is None:
        return []
    slot, header, entries = start
    if slot:
        header = {name: value for name, value in header.items() if name != "title"}
        header |= {"title": slot["title"]} if slot.get("title") else {}
    return [header, *entries]


def _title(header: Record, slot: Record, entries: Iterable[Record], complete: bool) -> str | None:
    """The current title. If only the first bytes are known, title line and header are newer than the entries in them."""
    title = _string(slot.get("title")) if slot else _string(header.get("title"))
    if title and not complete:
        return title
    summary = None
    for entry in entries:
        if entry["type"] == "session_info":
            title = _string(entry.get("name"))
        elif entry["type"] == "title_change":
            title = _string(entry.get("title"))
        elif entry["type"] == "compaction":
            summary = _string(entry.get("shortSummary")) or summary
    return title or summary or None


def _role(entry: Record) -> str | None:
    message = entry.get("message")
    return _string(message.get("role")) if isinstance(message, dict) else None


def _spoken(entry: Record) -> str:
    """The text of a user's or assistant's message."""
    if _role(entry) not in ("user", "assistant"):
        return ""
    content = entry["message"].get("content")
    if isinstance(content, str):
        return content.strip()
    blocks = content if isinstance(content, list) else []
    texts = (block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") == "text")
    return " ".join(text for text in texts if isinstance(text, str)).strip()


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


def newest_session(fs: Filesystem, folder: str) -> str | None:
    """Return the path of the session file in a folder that was modified last; `None` if there is none.

    A draft that a process writes is left out, because no other process can continue it.
    """
    infos = (listed(fs, path) for path in find_session_files(fs, folder))
    found = sorted((info for info in infos if info is not None), key=lambda info: info.modified, reverse=True)
    return next((info.path for info in found if not (info.draft and is_held(fs, info.path))), None)


def find_most_recent_session(session_dir: str | os.PathLike[str]) -> str | None:
    """Return the path of the session file in a folder that was modified last; `None` if there is none."""
    return newest_session(PosixFilesystem(), os.path.abspath(session_dir))


def get_recent_sessions(session_dir: str | os.PathLike[str], limit: int = 3) -> list[RecentSession]:
    """Return the sessions of a folder that were modified last, newest first, for a welcome screen."""
    fs = PosixFilesystem()
    infos = [listed(fs, path) for path in find_session_files(fs, os.path.abspath(session_dir))]
    found = sorted((info for info in infos if info is not None), key=lambda info: info.modified, reverse=True)
    now = datetime.fromtimestamp(time.time(), UTC)
    return [RecentSession(i.path, _short_name(i), age(i.modified, now), i.modified, i.draft) for i in found[:limit]]


def _short_name(info: SessionInfo) -> str:
    message = info.first_message if info.first_message != NO_MESSAGES else None
    names = (clean_name((text or "").strip().split("\n")[0]) for text in (info.title, message, info.id))
    name = next(filter(None, names), posixpath.basename(info.path))
    return name if len(name) <= 40 else name[:39] + "…"


def age(moment: datetime, now: datetime) -> str:
    """Return how long before `now` a moment was, in words: "5m ago"."""
    minutes = int((now - moment).total_seconds() // 60)
    if minutes < 1:
        return "just now"
    if minutes < 60:
        return f"{minutes}m ago"
    if minutes < 24 * 60:
        return f"{minutes // 60}h ago"
    if minutes < 7 * 24 * 60:
        return f"{minutes // (24 * 60)}d ago"
    return f"{moment:%Y-%m-%d}"
