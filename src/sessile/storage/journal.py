"""The journal of a session in a file: the append protocol.

An append is, in this order: thread lock, file lock, check that path and descriptor are one file and that the process did
not fork, look at what others appended, a newline if the last byte is not one, one write, a look whether the end is where it
must be, unlock, sync, return. Existing bytes are never altered. A write that fails is taken back if it is still ours; the
error is latched and raised by every later append until the journal is reopened. A failed sync is never retried: the kernel
may have dropped the pages and would say yes the second time.

It knows lines, ids and parents, not what entries mean.
"""

from __future__ import annotations

import logging
import os
import posixpath
import threading
from collections.abc import Callable, Iterator, Sequence

from sessile.core.lines import Line
from sessile.errors import LeafMoved, SessileError, SessionNotFound, StorageFailure, SyncFailed, storage_failure
from sessile.storage import atomic
from sessile.storage.base import Appended, Filesystem, Revise
from sessile.storage.lock import acquire
from sessile.storage.reader import CHUNK, FileNews, JournalReader

_log = logging.getLogger("sessile")


class FileJournal(JournalReader):
    """One session file, open for reading and appending.

    With `power` a commit survives a power cut, without it only the end of the process. `patience` is how many seconds an
    append waits for another process.
    """

    _flags = os.O_RDWR | os.O_APPEND

    def __init__(
        self,
        fs: Filesystem,
        path: str,
        *,
        index_path: str | None = None,
        power: bool = True,
        patience: float = 10.0,
    ) -> None:
        self._power = power
        self._patience = patience
        self._held = False
        self._failure: SessileError | None = None
        self._sync_turn = threading.Condition(threading.Lock())
        super().__init__(fs, path, index_path=index_path)

    def _open(self) -> None:
        self._pid = os.getpid()
        self._ended = 0  # the size that our last append left
        self._written = self._synced = 0
        self._syncing = False
        super()._open()

    def reopen(self) -> None:
        """Begin anew after a failure, or after the file was replaced."""
        with self._mutex:
            self._close_descriptor()
            self._failure = None
            self._open()

    @property
    def failed(self) -> bool:
        """Whether an error is latched."""
        return self._failure is not None

    def close(self) -> None:
        """Free the descriptor and with it the lock, then raise the first error that was latched."""
        super().close()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def append(self, lines: Sequence[bytes], revise: Revise) -> Appended:
        with self._mutex:
            self._check_usable()
            self._lock_file()
            try:
                return self._append_locked(lines, revise)
            finally:
                if not self._held:
                    self._fs.unlock(self._fd)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._fd < 0:
            raise StorageFailure("the session is closed", path=self.path, hint="open it again")
        if os.getpid() != self._pid:
            # A forked child shares its parent's lock: it needs a descriptor of its own.
            self._fd = -1
            self._held = False
            self._open()

    def _lock_file(self) -> None:
        """Take the lock of the file that has our name now."""
        while True:
            if not self._held:
                acquire(self._fs, self._fd, self.path, self._patience)
            try:
                if self._fs.lstat(self.path).st_ino == self._identity:
                    return
            except OSError as error:
                self._fs.unlock(self._fd)
                raise self._latch(storage_failure(error, self.path, "append to the session")) from error
            self._follow_replacement()

    def _follow_replacement(self) -> None:
        """Another program put a new file in the place of ours: go on there, if it is the same session."""
        session_id = self.session_id
        self._close_descriptor()
        try:
            self._open()
            if self.session_id != session_id:
                raise SessionNotFound("another session has taken the place of this one", path=self.path)
        except SessileError as error:
            raise self._latch(error) from None
        self._seen = 0

    def _append_locked(self, lines: Sequence[bytes], revise: Revise) -> Appended:
        fs, fd = self._fs, self._fd
        size = fs.fstat(fd).st_size
        if size != self._seen:
            lines = revise(FileNews(self, self._seen if size > self._seen else 0, size))
            if not lines:
                self._seen = size
                return Appended((), self._written)
        data = b"\n".join(lines) + b"\n"
        if size != self._ended and size and fs.read(fd, 1, size - 1) != b"\n":
            data = b"\n" + data
        try:
            written = fs.write(fd, data)
        except OSError as error:
            self._take_back(size)
            raise self._latch(storage_failure(error, self.path, "append to the session")) from error
        end = fs.fstat(fd).st_size
        if written != len(data) or end != size + written:
            end = self._settle(size, written, data)
        self._seen = self._ended = self._written = end
        at = end - len(data) + (data[0] == 10)
        positions = []
        for line in lines:
            positions.append((at, len(line)))
            at += len(line) + 1
        return Appended(positions, end)

    def _settle(self, size: int, written: int, data: bytes) -> int:
        """The write was short, or a writer without lock came between: make sure that our lines stand on their own."""
        if written < len(data):
            # A full disk shows as a short write; what follows says why.
            try:
                rest = self._fs.write(self._fd, data[written:])
            except OSError as error:
                self._take_back(size, written)
                raise self._latch(storage_failure(error, self.path, "append to the session")) from error
            if written + rest < len(data):
                self._take_back(size, written + rest)
                raise self._latch(StorageFailure("the storage took only a part of the line", path=self.path))
        for _ in range(100):
            end = self._fs.fstat(self._fd).st_size
            start = self._read(max(0, size - 1), end - max(0, size - 1)).rfind(data) + max(0, size - 1)
            body = start + (data[0] == 10)
            if start >= max(0, size - 1) and (body == 0 or self._read(body - 1, 1) == b"\n"):
                return start + len(data)
            # Our line was glued to a fragment of the other writer: write it once more, on a line of its own.
            size = end
            data = data if data[0] == 10 else b"\n" + data
            try:
                self._fs.write(self._fd, data)
            except OSError as error:
                raise self._latch(storage_failure(error, self.path, "append to the session")) from error
        raise self._latch(StorageFailure("another program writes into the session without pause", path=self.path))

    def _take_back(self, size: int, written: int = 0) -> None:
        """Remove a part of a line, if nobody has written behind it; else end it with a newline."""
        try:
            end = self._fs.fstat(self._fd).st_size
            if end > size + written:
                self._fs.write(self._fd, b"\n")
            elif end > size:
                self._fs.truncate(self._fd, size)
        except OSError as error:
            _log.warning("a fragment stays at the end of %s: %s", self.path, error)

    def _latch(self, error: SessileError) -> SessileError:
        if self._failure is None:
            self._failure = error
            _log.error("writing to %s failed: %s", self.path, error.message)
        return error

    def commit(self, mark: int) -> None:
        """Wait until the bytes before `mark` are durable. The first who waits syncs for all."""
        if not self._power:
            return
        turn = self._sync_turn
        with turn:
            while True:
                if self._failure is not None:
                    raise self._failure
                if self._synced >= mark:
                    return
                if not self._syncing:
                    break
                turn.wait()
            self._syncing = True
        self._sync()

    def flush(self) -> None:
        """Make everything durable that was written."""
        with self._sync_turn:
            while self._syncing:
                self._sync_turn.wait()
            if self._failure is not None:
                raise self._failure
            if self._fd < 0:
                return
            self._syncing = True
        self._sync()

    def _sync(self) -> None:
        target = self._written
        failure: SessileError | None = None
        try:
            self._fs.sync(self._fd)
        except OSError as error:
            failure = SyncFailed(
                f"the storage did not confirm that data is durable: {error.strerror}",
                path=self.path,
                hint="what was acknowledged before is safe; check the disk, then reopen the session",
                code=error.errno,
            )
        with self._sync_turn:
            self._syncing = False
            if failure is None:
                self._synced = max(self._synced, target)
            else:
                self._latch(failure)
            self._sync_turn.notify_all()
        if failure is not None:
            raise failure

    # -- replacing

    def replace(self, edit: Callable[[bytes], bytes | None], keep: str | None = None) -> None:
        """Rewrite the file: bytes that are no entry, and entries that `edit` leaves alone, stay as they are.

        With `keep` the old file stays reachable under that name.
        """
        with self._mutex:
            self._check_usable()
            self._lock_file()
            temp = atomic.temp_beside(self.path)
            try:
                size = self._fs.fstat(self._fd).st_size
                atomic.write_new(self._fs, temp, self._edited(edit, size))
                if self._fs.fstat(self._fd).st_size != size:
                    self._fs.unlink(temp)
                    raise LeafMoved(
                        "another program wrote into the session during the rewrite; nothing was changed",
                        path=self.path,
                        hint="try again",
                    )
                if keep is not None:
                    atomic.make_folders(self._fs, posixpath.dirname(keep))
                    self._fs.link(self.path, keep)
                    self._fs.sync_directory(posixpath.dirname(keep))
                self._fs.rename(temp, self.path)
                self._fs.sync_directory(posixpath.dirname(self.path))
            except OSError as error:
                raise self._latch(storage_failure(error, self.path, "rewrite the session")) from error
            finally:
                held, self._held = self._held, False
                self._fs.unlock(self._fd)
            self._close_descriptor()
            self._open()
            if held:
                self.hold()

    def _edited(self, edit: Callable[[bytes], bytes | None], size: int) -> Iterator[bytes]:
        copied = 0
        for item in self._scan(0, size):
            if isinstance(item, Line) and (new := edit(item.raw)) is not None:
                yield from self._copy(copied, item.offset)
                yield new
                copied = item.offset + len(item.raw)
        yield from self._copy(copied, size)

    def _copy(self, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            chunk = self._read(start, min(CHUNK, end - start))
            if not chunk:
                break
            yield chunk
            start += len(chunk)

    # -- drafts

    def hold(self) -> None:
        """Keep the lock until `release` or the end of the process."""
        with self._mutex:
            acquire(self._fs, self._fd, self.path, self._patience)
            self._held = True

    def rename(self, path: str) -> None:
        """Give the file another name in an existing folder; the name is durable when this returns."""
        with self._mutex:
            self._check_usable()
            try:
                self._fs.rename(self.path, path)
                self._fs.sync_directory(posixpath.dirname(path))
                if posixpath.dirname(path) != posixpath.dirname(self.path):
                    self._fs.sync_directory(posixpath.dirname(self.path))
            except OSError as error:
                raise self._latch(storage_failure(error, self.path, "rename the session")) from error
            self.path = path

    def release(self) -> None:
        """Give the lock back."""
        with self._mutex:
            self._held = False
            self._fs.unlock(self._fd)
