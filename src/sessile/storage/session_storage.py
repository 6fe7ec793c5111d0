"""The documented storage operations on text files, on disk and in memory.

They are for programs that write sessions in their own way; `Store` does not use them. Rules: text is UTF-8; files are
replaced atomically; the first error of a writer is raised again by every later call; only `unlink` deletes, so deleting a
session needs a trash.
"""

from __future__ import annotations

import codecs
import os
import posixpath
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Literal

from sessile.errors import InvalidConfig, SessileError, StorageFailure, storage_failure
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.memory import MemoryFilesystem
from sessile.storage.trash import Deletion, Trash

OnError = Callable[[SessileError], object]

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_FLAGS = {"a": _APPEND, "w": _APPEND | os.O_TRUNC}


@dataclass(frozen=True, slots=True)
class FileStat:
    """Size and modification time of a file."""

    size: int
    mtime_ms: float
    mtime: datetime


class SessionStorageWriter(atomic.Descriptor):
    """Writes lines to one file. After an error every operation raises it again; `on_error` is called once."""

    def __init__(self, fs: Filesystem, path: str, flags: int, on_error: OnError | None) -> None:
        self._fs = fs
        self._path = path
        self._on_error = on_error
        self._error: SessileError | None = None
        with self._latched("open"):
            self._fd = fs.open(path, flags)

    def write_line(self, line: str) -> None:
        """Write a line, which includes its newline."""
        with self._latched("write"):
            atomic.write_all(self._fs, self._fd, line.encode("utf-8", "surrogatepass"))

    def flush(self) -> None:
        """Raise the first error, if any. Lines are never buffered: `write_line` writes them at once."""
        with self._latched("flush"):
            pass

    def fsync(self) -> None:
        """Make everything that was written durable."""
        with self._latched("sync"):
            self._fs.sync(self._fd)

    def close(self) -> None:
        """Close the file, then raise the first error, if any. Closing twice does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                self._fs.close(fd)
            except OSError as error:
                self._latch(storage_failure(error, self._path, "close a file"))
            if self._error is not None:
                raise self._error

    def get_error(self) -> SessileError | None:
        """Return the first error, if any."""
        return self._error

    @contextmanager
    def _latched(self, doing: str) -> Iterator[None]:
        if self._error is not None:
            raise self._error
        if self._fd < 0 and doing != "open":
            raise StorageFailure("the writer is closed", path=self._path, hint="open a new one")
        try:
            yield
        except OSError as error:
            failure = storage_failure(error, self._path, f"{doing} a file")
            self._latch(failure)
            raise failure from error

    def _latch(self, failure: SessileError) -> None:
        if self._error is None:
            self._error = failure
            if self._on_error is not None:
                self._on_error(failure)


class SessionStorage:
    """The operations on any file system. `trash` is the folder that deleted sessions are moved to."""

    def __init__(self, fs: Filesystem, *, trash: str | None = None) -> None:
        self._fs = fs
        self._trash = None if trash is None else Trash(fs, _absolute(trash))

    def ensure_dir_sync(self, path: str) -> None:
        """Make a folder and its parents, if they are missing."""
        atomic.make_folders(self._fs, _absolute(path))

    def exists_sync(self, path: str) -> bool:
        """Return whether anything has that name."""
        return atomic.exists(self._fs, _absolute(path))

    def write_text_sync(self, path: str, content: str) -> None:
        """Replace the content of a file atomically and durably. Its folder is made if it is missing."""
        path = _absolute(path)
        atomic.make_folders(self._fs, posixpath.dirname(path))
        atomic.replace(self._fs, path, (content.encode("utf-8", "surrogatepass"),))

    def stat_sync(self, path: str) -> FileStat:
        """Return the size and modification time of a file."""
        with _typed(path, "look at"):
            info = self._fs.lstat(_absolute(path))
        moment = datetime.fromtimestamp(info.st_mtime_ns / 1e9, tz=UTC)
        return FileStat(info.st_size, info.st_mtime_ns / 1e6, moment)

    def list_files_sync(self, folder: str, pattern: str) -> list[str]:
        """Return the sorted paths of the files in a folder that match `*`, `*.ext` or a name; none if there is no folder."""
        folder = _absolute(folder)
        with _typed(folder, "list"):
            try:
                names = self._fs.names(folder)
            except (FileNotFoundError, NotADirectoryError):
                return []
            paths = [posixpath.join(folder, name) for name in names if fnmatchcase(name, _glob(pattern))]
            return [path for path in paths if stat.S_ISREG(self._fs.lstat(path).st_mode)]

    def exists(self, path: str) -> bool:
        """Return whether anything has that name."""
        return self.exists_sync(path)

    def read_text(self, path: str) -> str:
        """Return the content of a file; bytes that are not UTF-8 become U+FFFD."""
        with _typed(path, "read"):
            return atomic.read_all(self._fs, _absolute(path)).decode("utf-8", "replace")

    def read_text_prefix(self, path: str, size: int) -> str:
        """Return the complete characters in the first `size` bytes of a file."""
        with _typed(path, "read"):
            fd = self._fs.open(_absolute(path), os.O_RDONLY)
            try:
                data = self._fs.read(fd, max(0, size), 0)
            finally:
                self._fs.close(fd)
        return codecs.getincrementaldecoder("utf-8")("replace").decode(data)

    def write_text(self, path: str, content: str) -> None:
        """Replace the content of a file atomically and durably."""
        self.write_text_sync(path, content)

    def rename(self, source: str, target: str) -> None:
        """Rename a file durably, replacing what has that name."""
        source, target = _absolute(source), _absolute(target)
        with _typed(source, "rename"):
            self._fs.rename(source, target)
            for folder in dict.fromkeys(map(posixpath.dirname, (target, source))):
                self._fs.sync_directory(folder)

    def unlink(self, path: str) -> None:
        """Delete a file permanently."""
        with _typed(path, "remove"):
            self._fs.unlink(_absolute(path))

    def open_writer(
        self, path: str, flags: Literal["a", "w"] = "a", on_error: OnError | None = None
    ) -> SessionStorageWriter:
        """Return a writer that appends to a file or, with "w", truncates it first. Its folder is made if it is missing."""
        path = _absolute(path)
        atomic.make_folders(self._fs, posixpath.dirname(path))
        return SessionStorageWriter(self._fs, path, _FLAGS[flags], on_error)

    def delete_session_with_artifacts(self, path: str) -> Deletion:
        """Move a session and its artifacts to the trash. `Trash.undo` restores them."""
        if self._trash is None:
            raise InvalidConfig(
                "cannot delete a session: this storage has no trash",
                path=path,
                hint="pass trash=<a folder on the same disk>",
            )
        path = _absolute(path)
        self.stat_sync(path)  # raises if there is no such session
        artifacts = path.removesuffix(".jsonl")
        paths = [path] + ([artifacts] if artifacts != path and self.exists_sync(artifacts) else [])
        return self._trash.move(paths, f"{posixpath.basename(artifacts)}-{secrets.token_hex(4)}")


class FileSessionStorage(SessionStorage):
    """Storage operations on disk."""

    def __init__(self, *, trash: str | None = None) -> None:
        super().__init__(PosixFilesystem(), trash=trash)


class MemorySessionStorage(SessionStorage):
    """Storage operations in memory."""

    def __init__(self, *, trash: str | None = None) -> None:
        super().__init__(MemoryFilesystem(clock=time.time_ns), trash=trash)


_absolute = posixpath.abspath


@contextmanager
def _typed(path: str, doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storage_failure(error, path, f"{doing} a file") from error


def _glob(pattern: str) -> str:
    """Escape everything but the star, which is the only wildcard."""
    return "".join(char if char == "*" else f"[{char}]" if char in "?[" else char for char in pattern)
