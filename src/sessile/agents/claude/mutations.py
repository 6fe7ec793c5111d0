"""Change sessions of Claude Code: rename, tag, fork, delete, archive.

Rules:

- A title or a tag is one row, appended on its own line even if the last row has no line end.
- A fork is a new file that appears atomically. A deleted session goes to our own trash together with its folder, and
  `undo` restores it. An archived session stays where it is; a note in its folder marks it.
- If several files have the same id, the newest is used, as in listings. An empty file is not a session.

Rules of a fork:

- Rows keep their order, including abandoned branches and rows before a compaction. Sidechains, progress, snapshots,
  tags and queue rows are not copied. A child of a progress row becomes a child of the message before it.
- Every uuid is replaced, also in the metadata of compactions and queued prompts. A link to a row that is not copied is
  removed, but an unknown uuid in such metadata stays.
- A fork up to a compaction ends before it. A fork up to the summary drops the messages that were preserved after the
  summary.
- The last row has the current time, and each row names its original.
- New uuids are derived from the fork's id and the old uuid, so a file of any size is forked in two passes that hold
  only uuids.
"""

from __future__ import annotations

import hashlib
import posixpath
import secrets
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from sessile.agents.claude import rows
from sessile.agents.claude.listing import ARCHIVE_NOTE, WINDOW, Places, Worktrees, first_prompt
from sessile.agents.claude.paths import TRANSCRIPT, projects_dir, session_of, session_path
from sessile.agents.claude.rows import (
    AI_TITLE,
    ATTACHMENT,
    CONTENT_REPLACEMENT,
    CUSTOM_TITLE,
    LAST_WINS,
    RELOCATED,
    Row,
    is_compact_boundary,
    is_progress,
    is_transcript_message,
    mapping_of,
    parent_of,
    text_of,
    type_of,
    uuid_of,
)
from sessile.agents.claude.transcript_file import TOMBSTONES, Batch, KeptRow, TranscriptFile, kept_rows, restore_row
from sessile.core.codec import decode, encode, encode_plain
from sessile.core.ids import IdTable
from sessile.core.lines import Line, Scanner
from sessile.core.text import iso_timestamp
from sessile.errors import EntryNotFound, Invalid, SessileError, SessionExists, SessionNotFound, storage_failures
from sessile.storage import atomic
from sessile.storage.base import CHUNK, Filesystem
from sessile.storage.session_bytes import RawFile
from sessile.storage.trash import Deletion, Trash

UNTITLED = "Forked session"

# Members about the source session, and links that only that session needs.
_DROPPED = (
    "teamName",
    "agentName",
    "sessionKind",
    "slug",
    "sourceToolAssistantUUID",
    "summarizedTurnPromptUuids",
    "droppedPromptUuids",
    "turnAttributionKey",
)
_SEGMENT = ("headUuid", "anchorUuid", "tailUuid")
_LISTS = ("uuids", "allUuids")


class Forked(NamedTuple):
    """A new session and its file."""

    session_id: str
    path: str


class Mutations:
    """Changes to the sessions below a config home of Claude Code; removed data goes to `home`, our own folder."""

    def __init__(
        self,
        fs: Filesystem,
        config_home: str,
        home: str,
        *,
        worktrees: Worktrees = lambda directory: (),
        clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self.trash = Trash(fs, f"{home}/trash")
        self._fs = fs
        self._tombstones = f"{home}/{TOMBSTONES}"
        self._config_home = config_home
        self._worktrees = worktrees
        self._clock = clock
        self._new_id = new_id

    def find(self, session_id: str, directory: str | None = None) -> str:
        """Return a session's transcript: the first of a directory and its worktrees, or the newest of all folders."""
        found: list[tuple[int, str]] = []
        session_path("", session_id)  # raises for an invalid id, which is not the same error as a missing session
        problems: list[SessileError] = []
        places = Places(self._fs, self._config_home, self._worktrees, problems)
        for folder in places.folders_to_search(directory, "ts"):
            path = session_path(folder.path, session_id)
            with storage_failures(path, "find the session"):
                try:
                    status = self._fs.lstat(path)
                except (FileNotFoundError, NotADirectoryError):
                    continue
            if stat.S_ISREG(status.st_mode) and status.st_size:
                found.append((status.st_mtime_ns, path))
        if found:
            return found[0][1] if directory is not None else max(found)[1]
        if problems:
            raise problems[0]
        where = "" if directory is None else f" in the project folders of {directory}"
        raise SessionNotFound(f"session not found{where}: {session_id!r}", path=projects_dir(self._config_home))

    def rename(self, session_id: str, title: str, directory: str | None = None) -> None:
        """Set the title of a session."""
        self._append(self.find(session_id, directory), rows.title_row(session_id, title))

    def tag(self, session_id: str, tag: str | None, directory: str | None = None) -> None:
        """Tag a session; `None` clears the tag."""
        self._append(self.find(session_id, directory), rows.tag_row(session_id, tag))

    def delete(self, session_id: str, directory: str | None = None) -> Deletion:
        """Move a session and its folder to the trash; pass the token to `undo` to restore it."""
        path = self.find(session_id, directory)
        folder = _folder(path)
        paths = [path, folder] if atomic.exists(self._fs, folder) else [path]
        token = f"{int(self._clock() * 1000)}-{secrets.token_hex(3)}-{session_id}"
        return self.trash.move(paths, token, projects_dir(self._config_home))

    def undo(self, token: str) -> Deletion:
        """Restore a deleted session."""
        return self.trash.undo(token, [projects_dir(self._config_home)])

    def kept_rows(self, session_id: str | None = None) -> list[KeptRow]:
        """Return the rows that were removed from transcripts, of one session or of all."""
        found = kept_rows(self._fs, self._tombstones)
        return [kept for kept in found if session_id in (None, session_of(posixpath.basename(kept.path)))]

    def restore(self, kept: KeptRow) -> bool:
        """Restore a removed row; return false if its transcript has a row with its uuid again."""
        return restore_row(TranscriptFile(self._fs, kept.path), kept)

    def archive(self, session_id: str, directory: str | None = None) -> None:
        """Mark a session as archived."""
        self._set_archived(self.find(session_id, directory), True)

    def unarchive(self, session_id: str, directory: str | None = None) -> None:
        """Mark a session as not archived."""
        self._set_archived(self.find(session_id, directory), False)

    def fork(
        self, session_id: str, *, up_to: str | None = None, title: str | None = None, directory: str | None = None
    ) -> Forked:
        """Copy a session, as a whole or up to a message, into a new one beside it."""
        source = self.find(session_id, directory)
        new_id = self._new_id()
        path = session_path(posixpath.dirname(source), new_id)
        if atomic.exists(self._fs, path):
            raise SessionExists(path=path)
        fork = Fork(session_id, new_id, now=self._now(), up_to=up_to)
        with RawFile(self._fs, source) as file:
            titles: dict[str, str] = {}
            for row in _rows(file):
                fork.learn(row)
                titles |= _title(row)
            fork.check()
            derived = titles.get(CUSTOM_TITLE) or titles.get(AI_TITLE) or _first_prompt(file)
            atomic.replace(self._fs, path, _content(fork, file, title, derived))
        return Forked(new_id, path)

    def _append(self, path: str, row: dict[str, Any]) -> None:
        TranscriptFile(self._fs, path).append(lambda known: Batch([row]), catch_up=False)

    def _set_archived(self, path: str, archived: bool) -> None:
        note = encode({"archived": archived, "at": self._now(), "by": "sdk"})
        atomic.make_folders(self._fs, _folder(path), below_links=True)
        atomic.replace(self._fs, f"{_folder(path)}/{ARCHIVE_NOTE}", (note,))

    def _now(self) -> str:
        return iso_timestamp(int(self._clock() * 1000))


def _folder(path: str) -> str:
    """Return the folder for the session's agents, large results and notes."""
    return path.removesuffix(TRANSCRIPT)


def _rows(file: RawFile) -> Iterator[Any]:
    """Yield the rows of a file, up to its size when it was opened."""
    scanner = Scanner()
    for chunk in file.chunks():
        yield from (decode(item.raw) for item in scanner.feed(chunk) if isinstance(item, Line))
    yield from (decode(item.raw) for item in scanner.finish() if isinstance(item, Line))


def _title(row: object) -> dict[str, str]:
    """Return the title in a row, by the type of the row."""
    kind = type_of(row)
    title = text_of(row, str(LAST_WINS[kind])) if kind in (CUSTOM_TITLE, AI_TITLE) else None
    return {str(kind): title} if title else {}


def _first_prompt(file: RawFile) -> str | None:
    return first_prompt(file.peek(0, WINDOW))


def _content(fork: Fork, file: RawFile, title: str | None, derived: str | None) -> Iterator[bytes]:
    """Yield the lines of a fork in larger chunks, to save writes."""
    lines: list[bytes] = []
    size = 0
    copies = (fork.copy(row) for row in _rows(file))
    for row in chain((copied for copied in copies if copied is not None), fork.closing(title, derived)):
        lines.append(encode_plain(row) + b"\n")
        size += len(lines[-1])
        if size >= CHUNK:
            yield b"".join(lines)
            lines, size = [], 0
    yield b"".join(lines)


# -- forks


class Fork:
    """A fork of session `source` into session `target`: `learn` every row, `check`, then `copy` every row."""

    def __init__(self, source: str, target: str, *, now: str, up_to: str | None = None) -> None:
        self._source = source
        self._target = target
        self._now = now
        self._up_to = up_to
        self._ended = False
        self._uuids = IdTable()
        self._progress: dict[str, str | None] = {}
        self._replacements: list[Any] = []
        self._moved_to: str | None = None
        self._learned = 0  # rows that will be copied
        self._copied = 0

    # -- the first pass

    def learn(self, row: object) -> None:
        """Record a row of the source."""
        if type_of(row) == CONTENT_REPLACEMENT and text_of(row, "sessionId") == self._source:
            replacements = row.get("replacements") if isinstance(row, Mapping) else None
            if isinstance(replacements, list):
                self._replacements += [each for each in replacements if isinstance(each, Mapping)]
        if type_of(row) == RELOCATED and text_of(row, "sessionId") == self._source:
            self._moved_to = text_of(row, "relocatedCwd") or self._moved_to
        uuid = uuid_of(row)
        if uuid is None or self._ended or not _belongs(row):
            return
        if uuid == self._up_to:
            self._ended = True
            if is_compact_boundary(row):
                return
        self._uuids.number(uuid)
        if is_progress(row):
            self._progress[uuid] = parent_of(row)
        else:
            self._progress.pop(uuid, None)  # of two rows with the same uuid the later counts
            self._learned += 1

    def check(self) -> None:
        """Raise if there is nothing to fork."""
        if self._up_to is not None and not self._ended:
            raise EntryNotFound(f"message not found in session {self._source}: {self._up_to!r}")
        if not self._learned:
            raise Invalid(f"session {self._source} has no messages to fork")

    # -- the second pass

    def copy(self, row: object) -> dict[str, Any] | None:
        """Return the fork's copy of a row, or `None` if it is not copied."""
        uuid = uuid_of(row)
        if uuid is None or not isinstance(row, Mapping) or not _belongs(row) or is_progress(row):
            return None
        if self._copied == self._learned:
            return None
        self._copied += 1
        copied = {
            **row,
            "uuid": self._new(uuid),
            "parentUuid": self._parent(row),
            "logicalParentUuid": self._mapped(text_of(row, "logicalParentUuid")),
            "sessionId": self._target,
            "timestamp": self._now if self._copied == self._learned else row.get("timestamp", self._now),
            "isSidechain": False,
            "forkedFrom": {"sessionId": self._source, "messageUuid": uuid},
        }
        if is_compact_boundary(row) and isinstance(row.get("compactMetadata"), Mapping):
            copied["compactMetadata"] = self._metadata(mapping_of(row, "compactMetadata"))
        attachment = row.get("attachment")
        if type_of(row) == ATTACHMENT and isinstance(attachment, Mapping):
            sent_as = self._mapped(text_of(attachment, "source_uuid"))
            copied["attachment"] = {**attachment, "source_uuid": sent_as} if sent_as is not None else attachment
        return {name: value for name, value in copied.items() if name not in _DROPPED}

    def closing(self, title: str | None, derived: str | None) -> list[dict[str, Any]]:
        """Return the rows after the conversation: content replacements, the current directory, and the title."""
        title = (title or "").strip() or f"{derived or UNTITLED} (fork)"
        rows: list[dict[str, Any]] = []
        if self._replacements:
            rows.append(
                {"type": CONTENT_REPLACEMENT, "sessionId": self._target, "replacements": self._replacements}
                | self._mark("replacements")
            )
        if self._moved_to is not None:
            rows.append({"type": RELOCATED, "sessionId": self._target, "relocatedCwd": self._moved_to})
        name = {"type": CUSTOM_TITLE, "sessionId": self._target, "customTitle": title}
        return [*rows, name | self._mark("title")]

    # -- links

    def _new(self, uuid: str) -> str:
        return derived_uuid(self._target, uuid)

    def _mark(self, name: str) -> dict[str, str]:
        return {"uuid": self._new(name), "timestamp": self._now}

    def _mapped(self, uuid: str | None) -> str | None:
        return self._new(uuid) if uuid is not None and uuid in self._uuids else None

    def _parent(self, row: Row) -> str | None:
        """Return the new uuid of the nearest ancestor that is copied; None for a cycle of progress rows."""
        parent = parent_of(row)
        passed = set()
        while parent in self._progress and parent not in passed:
            passed.add(parent)
            parent = self._progress[parent]
        return None if parent in passed else self._mapped(parent)

    def _metadata(self, metadata: Row) -> dict[str, Any]:
        """Return the metadata of a compaction with new uuids, without the preserved messages that the fork ends before."""
        changed = {
            name: value for name, value in metadata.items() if name != "runningTurnSends"
        }  # about a running turn
        for name in ("preservedSegment", "preservedMessages"):
            hint = metadata.get(name)
            if not isinstance(hint, Mapping):
                continue
            if self._up_to is not None and hint.get("anchorUuid") == self._up_to:
                del changed[name]
            else:
                changed[name] = {member: self._with_new_uuids(member, value) for member, value in hint.items()}
        return changed

    def _with_new_uuids(self, member: str, value: Any) -> Any:
        if member in _SEGMENT and isinstance(value, str):
            return self._preserved(value)
        if member in _LISTS and isinstance(value, list):
            return [self._preserved(uuid) if isinstance(uuid, str) else uuid for uuid in value]
        return value

    def _preserved(self, uuid: str) -> str:
        """Return the new uuid of a preserved row; the old one if the row is not copied."""
        return uuid if uuid in self._progress else self._mapped(uuid) or uuid


def derived_uuid(*parts: str) -> str:
    """Return a UUID that depends only on the parts."""
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
    value = int.from_bytes(digest[:16], "big")
    value = value & ~(0xF << 76) | 0x4 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _belongs(row: object) -> bool:
    """Return whether a row is part of the conversation itself, or progress in it."""
    sidechain = isinstance(row, Mapping) and bool(row.get("isSidechain"))
    return (is_transcript_message(row) or is_progress(row)) and not sidechain
