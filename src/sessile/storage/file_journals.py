"""The journals of a store that lies in files: each is a file, with its index in the cache."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from sessile.errors import SessionExists
from sessile.storage import atomic, drafts
from sessile.storage.base import Filesystem
from sessile.storage.journal import FileJournal
from sessile.storage.layout import Layout
from sessile.storage.reader import JournalReader


class FileJournals:
    """The journals below one root. With `power`, what is committed survives a power cut."""

    def __init__(self, fs: Filesystem, layout: Layout, *, power: bool, patience: float) -> None:
        self._fs = fs
        self._layout = layout
        self._power = power
        self._patience = patience
        self._folders: set[str] = set()

    def create(self, path: str, pieces: Iterable[bytes]) -> None:
        """A new file with just these bytes."""
        atomic.make_folders(self._fs, posixpath.dirname(path), self._folders)
        if atomic.exists(self._fs, path):
            raise SessionExists(path=path)
        atomic.replace(self._fs, path, pieces)

    def obtain(self, path: str, header: bytes) -> None:
        """A file that begins with that header, unless it holds something already."""
        atomic.make_folders(self._fs, posixpath.dirname(path), self._folders)
        atomic.fill_blank(self._fs, path, header + b"\n")

    def open(self, path: str, *, patience: float | None = None) -> FileJournal:
        """The file for writing."""
        return FileJournal(
            self._fs,
            path,
            index_path=self._index(path),
            power=self._power,
            patience=self._patience if patience is None else patience,
        )

    def read(self, path: str) -> JournalReader:
        """The file for reading."""
        return JournalReader(self._fs, path, index_path=self._index(path))

    def _index(self, path: str) -> str:
        return self._layout.index(drafts.published_path(path))
