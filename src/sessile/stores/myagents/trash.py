"""Deleted sessions of MyAgents: everything of them goes to our trash, and comes back from there.

Order: the note of what was where is durable first, then every file has a second name (or a copy, on another disk) in the trash,
and only then, with the index locked, do the files go, and the row last. Whoever is interrupted leaves a session that is still
listed, or a deletion that can be taken back. Nothing is ever removed from the trash by itself. A note can be read as one of
the store whose trash this is (`storage.trash`), which has no row to put back and leaves that to us.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from sessile.core.codec import decode, encode
from sessile.errors import Conflict, Damaged, LeafMoved, NotFound, SessionNotFound, UnsafePath, storage_failures
from sessile.formats.myagents.types import Metadata
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.layout import can_be_named
from sessile.storage.survey import files_below, is_kept
from sessile.stores.myagents.directory_lock import PATIENT
from sessile.stores.myagents.index import Index
from sessile.stores.myagents.places import Places, new_stamp

_NOTE = "manifest.json"


class Deletion(msgspec.Struct, frozen=True):
    """One deletion: the token that undoes it, the session, its row in the index, the files below MyAgents' folder `root`."""

    token: str
    session_id: str
    row: dict[str, Any] | None
    paths: tuple[str, ...]
    root: str | None = None


class Trash:
    """The trash for one MyAgents folder."""

    def __init__(self, fs: Filesystem, places: Places, index: Index, stamp: Callable[[], str] = new_stamp) -> None:
        self._fs = fs
        self._places = places
        self._index = index
        self._stamp = stamp

    def delete(self, session_id: str) -> Deletion:
        """Move a session with its attachments to the trash."""
        row = self._index.find(session_id)
        files = self.files_of(session_id)
        if row is None and not files:
            raise SessionNotFound(f"there is no session {session_id} in MyAgents' folder", path=self._places.root)
        noted = None if row is None else dict(row.value)
        deletion = self.keep(session_id, files, noted)

        def clear(last: Metadata | None) -> None:
            nonlocal deletion
            if last is not None and last.value != noted:
                deletion = msgspec.structs.replace(deletion, row=dict(last.value))
                self._write_note(deletion)
            self.let_go(deletion, files)

        self._index.remove(session_id, clear)
        return deletion

    def keep(self, session_id: str, files: Sequence[str], row: dict[str, Any] | None) -> Deletion:
        """Give files a second name in the trash; they stay where they are."""
        names = tuple(posixpath.relpath(path, self._places.root) for path in files)
        deletion = Deletion(self._stamp(), session_id, row, names, self._places.root)
        folder = f"{self._places.trash}/{deletion.token}"
        atomic.make_folders(self._fs, folder)
        self._write_note(deletion)
        for number, path in enumerate(files):
            with storage_failures(path, "move a file to the trash"):
                atomic.keep(self._fs, path, f"{folder}/{number}")
        return deletion

    def _write_note(self, deletion: Deletion) -> None:
        atomic.replace(self._fs, self._note(deletion.token), (encode(msgspec.to_builtins(deletion)),))

    def let_go(self, deletion: Deletion, files: Sequence[str]) -> None:
        """Remove files from where they were, if the trash has them as they are now."""
        for number, path in enumerate(files):
            with storage_failures(path, "remove a file"):
                if not atomic.exists(self._fs, path):
                    continue
                if not is_kept(self._fs, path, f"{self._places.trash}/{deletion.token}/{number}"):
                    raise LeafMoved("another program wrote into the session; it stays", path=path, hint="try again")
                self._fs.unlink(path)
        for folder in {posixpath.dirname(path) for path in files}:
            with storage_failures(folder, "remove a folder"):
                self._fs.sync_directory(folder)
                if posixpath.dirname(folder) == self._places.attachments and not self._fs.names(folder):
                    self._fs.rmdir(folder)

    def files_of(self, session_id: str) -> list[str]:
        """Every file of a session."""
        places = self._places
        paths = (
            places.session(session_id),
            places.legacy(session_id),
            places.archive(session_id),
            places.transcript_v2(session_id),
            places.attachments_of(session_id),
        )
        return [path for top in paths for path, _ in files_below(self._fs, top)]

    # -- taking back

    def undo(self, token: str) -> Deletion:
        """Put the files of a deletion back where they were, then its row into the index."""
        deletion = self._read(token)
        folder = f"{self._places.trash}/{token}"
        targets = [self._checked(deletion.session_id, name) for name in deletion.paths]
        for number, path in enumerate(targets):
            kept = f"{folder}/{number}"
            if not atomic.exists(self._fs, kept):
                continue  # is back already
            self._put_back(kept, path)
        if deletion.row is not None and self._index.find(deletion.session_id) is None:
            self._index.create(Metadata(deletion.row), PATIENT)
        with storage_failures(folder, "empty the trash of it"):
            for number in range(len(targets)):
                atomic.remove(self._fs, f"{folder}/{number}")
            self._fs.unlink(f"{folder}/{_NOTE}")
            self._fs.rmdir(folder)
            self._fs.sync_directory(self._places.trash)
        return deletion

    def _put_back(self, kept: str, path: str) -> None:
        with storage_failures(path, "put a file back"):
            if atomic.exists(self._fs, path):
                if is_kept(self._fs, path, kept):
                    return  # an interrupted deletion or undo has left it there
                raise Conflict("something else has that name now", path=path, hint="move it away, then undo again")
            atomic.keep(self._fs, kept, path)

    def list(self) -> tuple[Deletion, ...]:
        """All deletions, oldest first."""
        with storage_failures(self._places.trash, "look into the trash"):
            try:
                tokens = self._fs.names(self._places.trash)
            except FileNotFoundError:
                return ()
        return tuple(self._read(token) for token in tokens if atomic.exists(self._fs, self._note(token)))

    def _note(self, token: str) -> str:
        return f"{self._places.trash}/{token}/{_NOTE}"

    def _read(self, token: str) -> Deletion:
        if "/" in token or token in ("", ".", "..") or not can_be_named(token):
            raise NotFound(f"there is no deletion {token!r}")
        with storage_failures(self._note(token), "look into the trash"):
            try:
                data = atomic.read_all(self._fs, self._note(token))
            except (FileNotFoundError, NotADirectoryError) as error:
                raise NotFound(f"there is no deletion {token!r}", hint="see what is in the trash") from error
        try:
            return msgspec.convert(decode(data), Deletion)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Damaged("the note of what was deleted cannot be read", path=self._note(token)) from error

    def _checked(self, session_id: str, name: str) -> str:
        """Where a file was: in a folder of sessions, or among the attachments of that one."""
        whole = posixpath.normpath(posixpath.join(self._places.root, name))
        folders = (self._places.sessions, self._places.transcripts_v2, self._places.attachments_of(session_id))
        if not any(whole.startswith(folder + "/") for folder in folders):
            raise UnsafePath("the trash names a file that is no part of a session", path=name)
        return whole
