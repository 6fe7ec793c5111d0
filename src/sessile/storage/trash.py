"""The trash: where deleted sessions go, and how they come back.

Each deletion is a folder of its own with the files and a manifest that says where they were. Nothing in the trash ends in
`.jsonl` at a place that a listing looks at, and nothing is ever removed from it by itself.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from sessile.errors import Conflict, NotFound, storage_failure
from sessile.storage import atomic
from sessile.storage.base import Filesystem

_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Deletion:
    """One deletion: the token that undoes it, and the paths that were moved."""

    token: str
    paths: tuple[str, ...]


class Trash:
    """The trash folder of a store."""

    def __init__(self, fs: Filesystem, folder: str) -> None:
        self._fs = fs
        self._folder = folder

    def move(self, paths: Sequence[str], token: str) -> Deletion:
        """Move files and folders here; the manifest is durable before the first one moves."""
        folder = f"{self._folder}/{token}"
        atomic.make_folders(self._fs, folder)
        deletion = Deletion(token, tuple(paths))
        atomic.replace(self._fs, f"{folder}/{_MANIFEST}", (msgspec.json.encode(deletion),))
        for number, path in enumerate(paths):
            self._rename(path, f"{folder}/{number}")
        return deletion

    def undo(self, token: str) -> Deletion:
        """Put everything of a deletion back where it was."""
        deletion = self._read(token)
        folder = f"{self._folder}/{token}"
        for number, path in enumerate(deletion.paths):
            if not atomic.exists(self._fs, f"{folder}/{number}"):
                continue  # was never moved, or is back already
            if atomic.exists(self._fs, path):
                raise Conflict("something else has that name now", path=path, hint="move it away, then undo again")
            atomic.make_folders(self._fs, posixpath.dirname(path))
            self._rename(f"{folder}/{number}", path)
        self._fs.unlink(f"{folder}/{_MANIFEST}")
        self._fs.rmdir(folder)
        return deletion

    def list(self) -> tuple[Deletion, ...]:
        """All deletions, oldest first."""
        try:
            tokens = self._fs.names(self._folder)
        except FileNotFoundError:
            return ()
        return tuple(self._read(token) for token in tokens if atomic.exists(self._fs, self._manifest(token)))

    def _manifest(self, token: str) -> str:
        return f"{self._folder}/{token}/{_MANIFEST}"

    def _read(self, token: str) -> Deletion:
        if "/" in token or token in ("", ".", ".."):
            raise NotFound(f"there is no deletion {token!r}")
        try:
            return msgspec.json.decode(atomic.read_all(self._fs, self._manifest(token)), type=Deletion)
        except FileNotFoundError as error:
            raise NotFound(f"there is no deletion {token!r}", hint="see what is in the trash") from error

    def _rename(self, source: str, target: str) -> None:
        try:
            self._fs.rename(source, target)
            self._fs.sync_directory(posixpath.dirname(target))
            self._fs.sync_directory(posixpath.dirname(source))
        except OSError as error:
            raise storage_failure(error, source, "move a file") from error
