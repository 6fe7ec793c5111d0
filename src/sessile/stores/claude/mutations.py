"""Changing sessions of Claude Code from outside: rename, tag, fork, delete, archive.

Rules:

- A title or a tag is one row appended on a line of its own, also where the last row has lost its line end.
- A fork is a new file that appears whole. A deleted session goes to our own trash together with its folder, and comes back by
  `undo`. An archived one stays where it is; a note in its folder says so.
- Of several files with one id the newest is meant, as listings show that one. An empty file is no session.
"""

from __future__ import annotations

import posixpath
import secrets
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from sessile.core.codec import decode, encode, encode_plain
from sessile.core.lines import Line, Scanner
from sessile.core.text import iso_timestamp
from sessile.errors import SessileError, SessionExists, SessionNotFound, storage_failures
from sessile.formats.claude import side_rows
from sessile.formats.claude.first_prompt import first_prompt
from sessile.formats.claude.forking import Fork
from sessile.formats.claude.lite import WINDOW
from sessile.formats.claude.notes import ARCHIVE_NOTE
from sessile.formats.claude.rows import AI_TITLE, CUSTOM_TITLE, LAST_WINS, text_of, type_of
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.raw_file import CHUNK, RawFile
from sessile.storage.trash import Deletion, Trash
from sessile.stores.claude.appending import Batch, TranscriptFile
from sessile.stores.claude.paths import TRANSCRIPT, projects_dir, session_of, session_path
from sessile.stores.claude.places import Places, Worktrees
from sessile.stores.claude.tombstones import TOMBSTONES, KeptRow, kept_rows, restore_row


class Forked(NamedTuple):
    """A new session and its file."""

    session_id: str
    path: str


class Mutations:
    """The sessions below a config home of Claude Code; what is taken out of it goes to `home`, a folder of ours."""

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
        """The transcript of a session: of those of a working directory and its worktrees the first, of all others the newest."""
        found: list[tuple[int, str]] = []
        session_path("", session_id)  # an id that cannot be one is another mistake than one that is not there
        problems: list[SessileError] = []
        places = Places(self._fs, self._config_home, self._worktrees, problems)
        for folder in places.folders_to_search(directory, "ts"):
            path = session_path(folder.path, session_id)
            with storage_failures(path, "look for the session"):
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
        where = "any project folder" if directory is None else f"the project folders of {directory}"
        raise SessionNotFound(f"session {session_id} is not in {where}", path=projects_dir(self._config_home))

    def rename(self, session_id: str, title: str, directory: str | None = None) -> None:
        """Give a session another title."""
        self._append(self.find(session_id, directory), side_rows.title_row(session_id, title))

    def tag(self, session_id: str, tag: str | None, directory: str | None = None) -> None:
        """Tag a session; `None` clears the tag."""
        self._append(self.find(session_id, directory), side_rows.tag_row(session_id, tag))

    def delete(self, session_id: str, directory: str | None = None) -> Deletion:
        """Move a session and its folder to the trash; the token undoes it."""
        path = self.find(session_id, directory)
        folder = _folder(path)
        paths = [path, folder] if atomic.exists(self._fs, folder) else [path]
        token = f"{int(self._clock() * 1000)}-{secrets.token_hex(3)}-{session_id}"
        return self.trash.move(paths, token, projects_dir(self._config_home))

    def undo(self, token: str) -> Deletion:
        """Put a deleted session back where it was."""
        return self.trash.undo(token, [projects_dir(self._config_home)])

    def kept_rows(self, session_id: str | None = None) -> list[KeptRow]:
        """The rows that were removed from transcripts and are kept, of one session or of all."""
        found = kept_rows(self._fs, self._tombstones)
        return [kept for kept in found if session_id in (None, session_of(posixpath.basename(kept.path)))]

    def restore(self, kept: KeptRow) -> bool:
        """Put a removed row back; false if its transcript has a row with its uuid again."""
        return restore_row(TranscriptFile(self._fs, kept.path), kept)

    def archive(self, session_id: str, directory: str | None = None) -> None:
        """Say that a session is archived."""
        self._set_archived(self.find(session_id, directory), True)

    def unarchive(self, session_id: str, directory: str | None = None) -> None:
        """Say that a session is not archived any more."""
        self._set_archived(self.find(session_id, directory), False)

    def fork(
        self, session_id: str, *, up_to: str | None = None, title: str | None = None, directory: str | None = None
    ) -> Forked:
        """Copy a session, up to a message or whole, into a new one beside it."""
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

    # -- inside

    def _append(self, path: str, row: dict[str, Any]) -> None:
        TranscriptFile(self._fs, path).append(lambda known: Batch([row]), look=False)

    def _set_archived(self, path: str, archived: bool) -> None:
        note = encode({"archived": archived, "at": self._now(), "by": "sdk"})
        atomic.make_folders(self._fs, _folder(path), below_links=True)
        atomic.replace(self._fs, f"{_folder(path)}/{ARCHIVE_NOTE}", (note,))

    def _now(self) -> str:
        return iso_timestamp(int(self._clock() * 1000))


def _folder(path: str) -> str:
    """The folder of what belongs to a session: agents, large results, notes."""
    return path.removesuffix(TRANSCRIPT)


def _rows(file: RawFile) -> Iterator[Any]:
    """The rows of a file, as far as it went when it was opened."""
    scanner = Scanner()
    for chunk in file.chunks():
        yield from (decode(item.raw) for item in scanner.feed(chunk) if isinstance(item, Line))
    yield from (decode(item.raw) for item in scanner.finish() if isinstance(item, Line))


def _title(row: object) -> dict[str, str]:
    """The title that a row gives, by the kind of the row."""
    kind = type_of(row)
    title = text_of(row, str(LAST_WINS[kind])) if kind in (CUSTOM_TITLE, AI_TITLE) else None
    return {str(kind): title} if title else {}


def _first_prompt(file: RawFile) -> str | None:
    return first_prompt(file.peek(0, WINDOW))


def _content(fork: Fork, file: RawFile, title: str | None, derived: str | None) -> Iterator[bytes]:
    """The lines of a fork, in pieces of some size: a write for each of them would take most of the time."""
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
