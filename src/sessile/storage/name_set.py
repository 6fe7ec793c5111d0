"""A set of names in a small file of ours, such as the sessions that somebody pinned: read whole, replaced whole, under a lock.

The file is a JSON array that people may edit. One that cannot be read is reported and never overwritten.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from sessile.errors import Damaged, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.lock import locked

_PATIENCE = 5.0  # seconds


class NameSet:
    """The names in one file, in the order in which they were added."""

    def __init__(self, fs: Filesystem, path: str) -> None:
        self._fs = fs
        self._path = path

    def names(self) -> list[str]:
        """All names; none if there is no file."""
        with storage_failures(self._path, "read the list"):
            try:
                data = atomic.read_all(self._fs, self._path)
            except (FileNotFoundError, NotADirectoryError):
                return []
        try:
            return msgspec.json.decode(data, type=list[str])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Damaged(
                f"the list is no JSON array of names: {error}",
                path=self._path,
                hint="mend it in an editor, or move it away to begin anew",
            ) from error

    def add(self, *new: str) -> bool:
        """Add some names; says whether one of them is new."""
        return self._change(lambda names: [*dict.fromkeys((*names, *new))])

    def remove(self, name: str) -> bool:
        """Take a name out; says whether it was there."""
        return self._change(lambda names: [known for known in names if known != name])

    def _change(self, change: Callable[[list[str]], list[str]]) -> bool:
        with self._locked():
            before = self.names()
            after = change(before)
            if after != before:
                encoded = msgspec.json.format(msgspec.json.encode(after), indent=1)
                atomic.replace(self._fs, self._path, (encoded + b"\n",))
            return after != before

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock is a file of its own: the list itself is replaced."""
        atomic.make_folders(self._fs, posixpath.dirname(self._path))
        with locked(self._fs, f"{self._path}.lock", _PATIENCE):
            yield
