"""The journal of a session in a file: the append protocol.

An append takes these steps: thread lock; file lock; check that the path still means the open file and that the process
did not fork; look at what others appended; add a newline if the last byte is not one; one write; check that the end is
where it must be; unlock; sync; return.

Rules:

- Existing bytes never change, except by `replace`, which puts a whole new file in place.
- A failed write is taken back if it is still the end of the file. The error is latched: every later write and flush raises it
  until the journal is reopened. So is the error of a failed sync, which is never retried, because the kernel may have dropped the
  data and would report success the second time.
- Syncs are shared: many threads wait for their data to be durable, and one of them syncs for all (`GroupCommit`).

A journal knows lines, ids and parents, not what entries mean. Its index is a cache (`storage.index`).
"""

from __future__ import annotations

import os
import posixpath
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from sessile.core.lines import Line, read_head
from sessile.errors import (
    LeafMoved,
    SessileError,
    SessionExists,
    SessionNotFound,
    StorageFailure,
    SyncFailed,
    second_name,
    storage_failure,
    storage_failures,
)
from sessile.storage import atomic, drafts, log
from sessile.storage.base import Appended, Filesystem, Revise, Row, Stamp, Stat, stamp_of
from sessile.storage.index import IndexDamaged
from sessile.storage.layout import Layout
from sessile.storage.line_file import find_or_repeat, write_lines
from sessile.storage.locks import NO_LOCKS, identity, lock_failure, wait_for
from sessile.storage.reader import GROWN, FileNews, Grown, JournalReader

_REMEMBERED = 64 * 1024  # bytes of our last line that show whether it is still there
_ID_WITHIN = 256  # bytes; type and id come first in our lines


class FileJournal(JournalReader):
    """One session file, open for reading and appending.

    With `power` a commit survives a power cut; without it, the end of the process. An append waits at most `patience` seconds
    for another process. A file of our own, whose rewrites keep the old file in `originals`, must not have a second name.
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
        originals: str | None = None,
    ) -> None:
        self._originals = originals
        self._power = power
        self._patience = patience
        self._held = False
        self._failure: SessileError | None = None
        self._unsure = False  # after a failed sync: what can be read may not be on the disk
        self._commits = GroupCommit()
        super().__init__(fs, path, index_path=index_path)

    def _begin(self, fd: int) -> None:
        self._pid = os.getpid()
        self._grown: Grown | None = None
        self._tip = (0, b"")  # where our last line is, and its first bytes
        self._ended = 0  # the size that our last append left
        self._name_is_durable = False  # the process that made the file may have died before its sync
        super()._begin(fd)

    def _open_again(self) -> None:
        """Continue in the file that has our name now, if it is the same session."""
        session_id = self.session_id
        with self._commits.paused():
            self._close_descriptor()
            self._open()
            if self.session_id != session_id:
                self.session_id = session_id
                self._close_descriptor()
                raise SessionNotFound("another session has replaced this one", path=self.path)

    def _close_descriptor(self) -> None:
        self._drop_growth()
        super()._close_descriptor()

    def reopen(self) -> None:
        """Start over after a failure, or after the file was replaced."""
        with self._mutex:
            held, self._held = self._held, False
            self._open_again()
            self._failure = None
            self._commits.start_over()
            if held:
                self.hold()
            if self._unsure:
                # The kernel may still show data that it has dropped: only a new file brings it to the disk.
                self.replace(lambda raw: None)
                self._unsure = False

    @property
    def failure(self) -> SessileError | None:
        """The latched error, if any."""
        return self._failure

    def close(self) -> None:
        """Close the descriptor, which releases the lock, then raise the latched error if there is one."""
        with self._mutex:
            try:
                with self._commits.paused():
                    super().close()
            finally:
                self._held = False
                failure, self._failure = self._failure, None
                if failure is not None:
                    raise failure

    # -- appending

    def append(self, lines: Sequence[bytes], revise: Revise) -> Appended:
        with self._mutex:
            self._check_usable()
            while True:
                try:
                    appended = self._append_locked(lines, revise, self._lock_file())
                finally:
                    try:
                        self._unlock()
                    except BaseException:
                        self._unlock()  # again, if an interruption came first: the lock must not stay
                        raise
                if appended is not None:
                    return appended

    def follow(self) -> Row | None:
        with self._mutex:
            last = self.last()
            self._seen = self._indexed
            return last

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._fd < 0:
            raise StorageFailure("the session is closed", path=self.path, hint="open it again")
        if os.getpid() != self._pid:
            # A forked child shares its parent's lock: it needs a descriptor of its own.
            self._commits = GroupCommit()
            self._held = False
            seen = self._seen
            self._open_again()
            self._seen = seen  # what the parent process appended is news

    def _lock_file(self) -> Stat:
        """Lock the file that has our name now and return its status."""
        locked = self._held
        while True:
            if not locked:
                try:
                    locked = self._fs.lock(self._fd)
                except OSError as error:
                    raise lock_failure(error, self.path) from error
                if not locked:
                    wait_for(self._fs, self._fd, self.path, self._patience)
            try:
                stat = self._fs.lstat(self.path)
            except OSError as error:
                self._unlock()
                raise self._latch(storage_failure(error, self.path, "append to the session")) from error
            if stat.st_ino == self._identity:
                return stat if stat.st_nlink == 1 or self._originals is None else self._single(stat, self._originals)
            try:
                self._open_again()
            except SessileError as error:
                raise self._latch(error) from None
            self._seen = 0  # everything is news
            locked = False

    def _single(self, stat: Stat, originals: str) -> Stat:
        """Remove the names that killed rewrites have given to our file, whose lock we hold. Raise if others remain."""
        fs = self._fs
        try:
            with storage_failures(self.path, "look for other names of the session"), suppress(FileNotFoundError):
                for path in (f"{originals}/{name}" for name in fs.names(originals)):
                    if identity(fs.lstat(path)) == identity(stat):  # the rewrite did not happen
                        fs.unlink(path)
                stat = fs.lstat(self.path)
            if stat.st_nlink > 1:
                raise second_name(self.path)
        except SessileError:
            self._unlock()
            raise
        return stat

    def check_single(self) -> None:
        """Raise if the file has a second name that is not ours."""
        with self._mutex:
            if self._originals is not None and self._stat().st_nlink > 1:
                try:
                    self._lock_file()
                finally:
                    self._unlock()

    def _unlock(self) -> None:
        if self._fd >= 0 and not self._held:
            try:
                self._fs.unlock(self._fd)
            except OSError as error:
                if error.errno in NO_LOCKS:
                    return  # the attempt to take the lock has raised already
                raise self._latch(storage_failure(error, self.path, "unlock the session")) from error

    def _append_locked(self, lines: Sequence[bytes], revise: Revise, now: Stat) -> Appended | None:
        """Write the lines at the end of the file, which is `now`; `None` if the file lost its name before the write."""
        size, before = now.st_size, stamp_of(now)
        changed = before != self._left
        if changed or size != self._seen:
            self._check_header()
            news = FileNews(self, self._seen if size > self._seen else 0, size)
            if size != self._seen:
                lines = revise(news)
            if lines:
                self._check_parent(lines[0], news)
        if not lines:
            return Appended([], self._commits.next_mark())
        body = b"\n".join((*lines, b""))  # copied once
        whole = (size == self._ended and not changed) or self._read(size - 1, 1) == b"\n"
        data = body if whole else b"\n" + body
        try:
            stat = write_lines(self._fs, self._fd, self.path, size, data)
            if not stat.st_nlink:
                return None
            end: int | None = stat.st_size
            if end != size + len(data):
                end = find_or_repeat(self._fs, self._fd, self.path, size, body, self._check_header)
                if end is None:
                    return None
        except SessileError as error:
            self._latch(error)
            raise
        self._ended = end
        # What a writer without the lock has put before our lines is still news.
        self._seen = end if end - size <= len(body) + 1 else size
        self._note_growth(before, stat if end == size + len(data) else None)
        if self._asked:
            self._show_index(body, end)
        positions = []
        start = end - len(body)
        for line in lines:
            positions.append((start, len(line)))
            start += len(line) + 1
        self._tip = (positions[-1][0], lines[-1][:_REMEMBERED])
        return Appended(positions, self._commits.next_mark())

    def _note_growth(self, before: Stamp, after: Stat | None) -> None:
        """Note that our append has led from one state of the file to another; `None` if others have appended as well."""
        grown = self._grown
        if after is None:
            self._drop_growth()
            return
        self._left = left = stamp_of(after)
        if before != self._stamp:  # the index is not known to agree with the file before our append
            self._drop_growth()
            return
        self._stamp = left
        if grown is None:
            self._grown = grown = Grown(before, self._index.stamped)
            GROWN[before[:2]] = grown
        grown.last = left

    def _drop_growth(self) -> None:
        grown, self._grown = self._grown, None
        if grown is not None and grown.last is not None and GROWN.get(place := grown.last[:2]) is grown:
            del GROWN[place]

    def _check_header(self) -> None:
        """Raise if the file, which another program has changed, is no longer this session."""
        if self._read(self._header.offset, len(self._header.raw)) != self._header.raw:
            raise self._latch(
                SessionNotFound(
                    "another program has emptied or overwritten the session file",
                    path=self.path,
                    hint="nothing was written; restore the file, or continue in a new session",
                )
            )

    def _check_parent(self, line: bytes, news: FileNews) -> None:
        """Raise unless the parent of a line is in the file, which another program has changed."""
        try:
            parent_id = read_head(line).parentId
        except ValueError:
            return  # not an entry, so it has no parent
        if parent_id and not self._is_in_file(parent_id, news):
            raise LeafMoved(
                f"entry {parent_id}, the parent of the new entry, is no longer in the file: another program has"
                " truncated or overwritten it",
                path=self.path,
                hint="nothing was written; reopen the session to continue from what the file holds now",
            )

    def _is_in_file(self, entry_id: str, news: FileNews) -> bool:
        """Return whether an entry is in the file now. Look at the likely places first: the file may be large."""
        offset, start = self._tip
        named = b'"id":"%b"' % entry_id.encode("utf-8", "surrogatepass")
        # Only near the start of its line: a body may contain the same text.
        if start.find(named, 0, _ID_WITHIN) > 0 and self._read(offset, len(start)) == start:
            return True
        with suppress(IndexDamaged, ValueError):
            number = self._index.find(entry_id)
            if number is not None:
                place = self._index.place(number)
                if read_head(self._read(place.offset, place.length)).id == entry_id:
                    return True
        return any(row.id == entry_id for row in news.rows()) or self.find(entry_id) is not None

    def _latch(self, error: SessileError) -> SessileError:
        if self._failure is None:
            self._failure = error
            log.error("writing to %s failed: %s", self.path, error.message)
        return error

    # -- durability

    def commit(self, mark: int) -> None:
        """Wait until the append with that mark is durable. The first thread that waits syncs for all."""
        if self._power:
            self._commits.wait_for(mark, self._sync)

    def flush(self) -> None:
        """Make everything durable that was written. Raise if it may be incomplete."""
        with self._mutex:
            self._check_usable()
        self._commits.flush(self._sync)

    def _sync(self) -> None:
        try:
            self._fs.sync(self._fd)
            if not self._name_is_durable:
                self._fs.sync_directory(posixpath.dirname(self.path))
                self._name_is_durable = True
        except OSError as error:
            failure = SyncFailed(
                f"the storage did not confirm that the data is durable: {error.strerror or error}",
                path=self.path,
                hint="everything acknowledged before is safe; check the disk, then reopen the session",
                code=error.errno,
            )
            self._unsure = True
            raise self._latch(failure) from error

    # -- replacing

    def replace(self, edit: Callable[[bytes], bytes | None], keep: str | None = None) -> None:
        """Rewrite the file. Bytes that are not an entry, and entries for which `edit` returns `None`, stay as they are.

        With `keep` the old file stays reachable under that name.
        """
        with self._mutex:
            self._check_usable()
            opened: list[int] = []
            try:
                changed = stamp_of(self._lock_file()) != self._left
                self._rewrite(edit, keep, opened)
                seen = self._seen + self._shift
                with self._commits.paused():
                    self._fd, opened[0] = opened[0], self._fd  # from here on `opened` holds the old one
                    self._begin(self._fd)
                    self._seen = seen  # what others have appended is still news
                    if changed:
                        self._left = None  # the next append looks for its parent, which may be gone
                    self._commits.all_durable()  # the new file was synced as a whole
            finally:
                try:
                    self._unlock_and_close(opened)
                except BaseException:
                    self._unlock_and_close(opened)  # again, if an interruption came first
                    raise

    def _unlock_and_close(self, opened: list[int]) -> None:
        """Release the lock and close the descriptor not in use: of the old file, or of the new one after a failure."""
        with storage_failures(self.path, "close the session"):
            try:
                for fd in opened:
                    self._fs.unlock(fd)
                self._unlock()
            finally:  # closing unlocks, too
                while opened:
                    self._fs.close(opened.pop())

    def _rewrite(self, edit: Callable[[bytes], bytes | None], keep: str | None, opened: list[int]) -> None:
        """Put the new file in place; its descriptor is added to `opened`.

        It holds the lock before any other process can know the file, so that a draft is never without its lock.
        """
        fs = self._fs
        size = self._stat().st_size

        def check(temp: str) -> None:
            if self._stat().st_size != size:
                raise LeafMoved(
                    "another program wrote into the session during the rewrite; nothing was changed",
                    path=self.path,
                    hint="try again",
                )

        try:
            atomic.put_in_place(fs, self.path, self._edited(edit, size), keep_as=keep, before=check, held=opened)
        except SessileError:
            raise
        except OSError as error:
            raise self._latch(storage_failure(error, self.path, "rewrite the session")) from error

    def _edited(self, edit: Callable[[bytes], bytes | None], size: int) -> Iterator[bytes]:
        copied = 0
        self._shift = 0  # how far `_seen` moves
        for item in self._scan(0, size):
            if isinstance(item, Line) and (new := edit(item.raw)) is not None:
                self._shift += len(new) - len(item.raw) if item.offset < self._seen else 0
                yield from self._chunks(copied, item.offset)
                yield new
                copied = item.offset + len(item.raw)
        yield from self._chunks(copied, size)

    # -- drafts

    def hold(self) -> None:
        """Hold the lock until `release` or the end of the process."""
        with self._mutex:
            self._check_usable()
            self._lock_file()
            self._held = True

    def release(self) -> None:
        """Release the lock."""
        with self._mutex:
            self._held = False
            self._unlock()

    def rename(self, path: str) -> None:
        """Rename the file, durably, to a free name in an existing folder."""
        with self._mutex:
            self._check_usable()
            if atomic.exists(self._fs, path):
                raise SessionExists(path=path, hint="the name is already in use; nothing was changed")
            try:
                before = stamp_of(self._stat())
                self._fs.rename(self.path, path)
                old, self.path = self.path, path  # at once: the file is there, durable or not
                if before == self._left:
                    self._note_growth(before, self._stat())  # renaming changes one of its times
                self._fs.sync_directory(posixpath.dirname(path))
                if posixpath.dirname(path) != posixpath.dirname(old):
                    self._fs.sync_directory(posixpath.dirname(old))
            except BaseException as error:
                if self._is_at(path):  # an interruption came after the rename
                    self.path = path
                if isinstance(error, OSError):
                    raise self._latch(storage_failure(error, self.path, "rename the session")) from error
                raise

    def _is_at(self, path: str) -> bool:
        try:
            return self._fs.lstat(path).st_ino == self._identity
        except OSError:
            return False


class GroupCommit:
    """Numbered appends of one journal, and how far they are durable.

    No number is used twice. The first thread that waits calls `sync`; threads that come during the sync wait for the next
    one, which covers all of them. After a failed sync every call raises until `start_over`. `sync` is an argument of the
    calls, because a journal that is part of a cycle would be released late.
    """

    def __init__(self) -> None:
        # A plain lock: code in Python around one can be interrupted between taking and releasing it.
        self._turn = threading.Lock()
        self._written = 0
        self._synced = 0
        self._failure: SessileError | None = None
        self._failing = False
        self._lost: list[range] = []  # marks that no later sync can confirm

    def next_mark(self) -> int:
        """Return the mark of an append that was just written. The caller makes sure that only one thread appends."""
        self._written += 1
        return self._written

    def wait_for(self, mark: int, sync: Callable[[], None]) -> None:
        """Return when the append with that mark is durable."""
        self._wait(mark, sync)

    def flush(self, sync: Callable[[], None]) -> None:
        """Sync, even if everything is known to be durable."""
        self._wait(None, sync)

    def _wait(self, mark: int | None, sync: Callable[[], None]) -> None:
        with self._turn:
            lost = any(mark in marks for marks in self._lost)
            if mark is not None and mark <= self._synced and not lost:
                return
            if self._failure is not None and (self._failing or lost):
                raise self._failure
            target = self._written
            try:
                sync()
            except SessileError as error:
                self._failure, self._failing = error, True
                raise
            self._synced = max(self._synced, target)

    def start_over(self) -> None:
        """Allow syncs again after a failure. What was written before stays unconfirmed."""
        with self._turn:
            if self._failing:
                self._failing = False
                self._lost.append(range(self._synced + 1, self._written + 1))

    def paused(self) -> threading.Lock:
        """Return a lock to hold while the descriptor changes, so that no sync uses it."""
        return self._turn

    def all_durable(self) -> None:
        """Note that everything written so far is durable."""
        self._synced = self._written


class FileJournals:
    """The journals below one root. With `power`, commits survive a power cut."""

    def __init__(self, fs: Filesystem, layout: Layout, *, power: bool, patience: float) -> None:
        self._fs = fs
        self._layout = layout
        self._power = power
        self._patience = patience
        self._folders: set[str] = set()

    def create(self, path: str, pieces: Iterable[bytes]) -> None:
        """Create a file with just these bytes."""
        with atomic.folders_for(self._fs, posixpath.dirname(path), self._folders):
            if atomic.exists(self._fs, path):
                raise SessionExists(path=path)
            atomic.replace(self._fs, path, pieces, sweeps=False)  # `Store.create` has looked at the folder

    def obtain(self, path: str, header: bytes) -> None:
        """Make sure that there is a file; a missing or empty one gets that header."""
        with atomic.folders_for(self._fs, posixpath.dirname(path), self._folders):
            atomic.fill_blank(self._fs, path, header + b"\n")

    def open(self, path: str, *, patience: float | None = None) -> FileJournal:
        """Open the file for writing."""
        journal = FileJournal(
            self._fs,
            path,
            index_path=self._index(path),
            power=self._power,
            patience=self._patience if patience is None else patience,
            originals=self._layout.originals if self._layout.owns(path) else None,
        )
        try:
            journal.check_single()
        except BaseException:
            journal.close()
            raise
        return journal

    def read(self, path: str) -> JournalReader:
        """Open the file for reading."""
        return JournalReader(self._fs, path, index_path=self._index(path))

    def _index(self, path: str) -> str:
        return self._layout.index(drafts.published_path(path))
