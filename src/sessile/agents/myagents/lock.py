"""MyAgents' lock: a folder that exists while the lock is held.

Rules of MyAgents: `mkdir` takes the lock, with three more tries 10 ms apart. A lock is stale 30 s after its
modification time. Later versions put a file `owner` into it, `<kind>:<pid>:<start>`: while that process lives its lock
is never broken, and once it is dead the lock is broken at once. For any other owner the age decides. Breaking is a
rename to a unique name, so only one of several processes succeeds. Only a lock that is still ours is released.

We write an owner only where a later version is installed: the first version breaks a stale lock with `rmdir`, which
fails if a file is in it, so the lock of a dead process would lock it out forever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sessile.errors import SessionBusy, storage_failure, storage_failures
from sessile.storage import atomic, locks
from sessile.storage.base import Filesystem, Stat

RETRIES = 3
PATIENT = 500  # 5 s, as long as later versions wait: for commands of a user, who would rather wait than be refused
PAUSE = 0.010
STALE_NS = 30_000_000_000

_OWNER = "owner"
_PROCESS_KINDS = ("node", "rust")
_SPACE = b" \t\r\n\v\f"
_PARTS = 3
_LARGEST_PID = 0x7FFFFFFF


class _Seen(NamedTuple):
    """What tells one lock from the next one of the same name."""

    inode: int
    device: int
    modified: int
    owner: bytes | None


class DirectoryLock:
    """One lock folder. It is not reentrant."""

    def __init__(
        self,
        fs: Filesystem,
        path: str,
        *,
        owner: bool = False,
        clock: Callable[[], int] = time.time_ns,
        pause: Callable[[float], None] = time.sleep,
        alive: Callable[[int], bool] = locks.is_alive,
    ) -> None:
        self.path = path
        self._fs = fs
        self._owner = f"node:{locks.own_pid()}:{clock() // 1_000_000}".encode("ascii") if owner else None
        self._clock = clock
        self._pause = pause
        self._alive = alive
        self._held: _Seen | None = None

    @contextmanager
    def held(self, retries: int = RETRIES) -> Iterator[None]:
        """Hold the lock; raise `SessionBusy` if it cannot be taken."""
        self._take(retries)
        try:
            yield
        finally:
            self._release()

    def check(self) -> None:
        """Raise unless the lock is still ours: a process that was suspended for 30 s may have lost it."""
        if self._held is None or self._look() != self._held:
            raise SessionBusy("another program has broken the lock", path=self.path, hint="try again")

    def is_held_by_another(self) -> bool:
        """Return whether another process holds the lock right now."""
        return self._held is None and self._look() is not None

    def wait(self) -> None:
        """Wait as long as between two tries."""
        self._pause(PAUSE)

    def _take(self, retries: int) -> None:
        for tries_left in range(retries, -1, -1):
            if self._try():
                return
            seen = self._look()
            if seen is None:
                continue  # just released
            if self._is_stale(seen):
                self._break(seen)
            elif tries_left:
                self._pause(PAUSE)
        raise SessionBusy(
            "another program holds MyAgents' lock",
            path=self.path,
            hint="try again; if MyAgents is not running, the lock becomes stale after 30 s",
        )

    def _try(self) -> bool:
        with storage_failures(self.path, "take MyAgents' lock"):
            try:
                self._fs.mkdir(self.path)
            except FileExistsError:
                return False
            try:
                if self._owner is not None:
                    atomic.write_new(self._fs, f"{self.path}/{_OWNER}", (self._owner,), durable=False)
                self._held = self._look()
            except BaseException:
                self._remove(self.path)
                raise
        return True

    def _look(self, path: str | None = None) -> _Seen | None:
        """Return the current lock, or that at another path."""
        path = path or self.path
        try:
            status: Stat = self._fs.lstat(path)
            return _Seen(status.st_ino, status.st_dev, status.st_mtime_ns, self._read_owner(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_failure(error, self.path, "read MyAgents' lock") from error

    def _read_owner(self, path: str) -> bytes | None:
        try:
            return atomic.read_all(self._fs, f"{path}/{_OWNER}")
        except FileNotFoundError:
            return None

    def _is_stale(self, seen: _Seen) -> bool:
        pid = _pid_in(seen.owner)
        if pid is not None:
            return not self._alive(pid)
        return self._clock() - seen.modified > STALE_NS

    def _break(self, seen: _Seen) -> None:
        """Remove a stale lock, if it is still the one that was read."""
        if self._look() != seen:
            return
        tomb = atomic.temp_beside(self.path)
        try:
            self._fs.rename(self.path, tomb)
            if self._look(tomb) != seen:
                self._fs.rename(tomb, self.path)  # another process has just taken the lock
                return
        except OSError:
            return  # another process was faster
        self._remove(tomb)

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None and self._look() == held:
            self._remove(self.path)

    def _remove(self, folder: str) -> None:
        """Remove a lock folder; if that fails, it becomes stale."""
        if self._owner is not None or atomic.exists(self._fs, f"{folder}/{_OWNER}"):
            atomic.remove(self._fs, f"{folder}/{_OWNER}")
        try:
            self._fs.rmdir(folder)
        except OSError:
            pass  # already removed, or just taken by another process


def _pid_in(owner: bytes | None) -> int | None:
    """Return the process id in an owner file."""
    parts = (owner or b"").strip(_SPACE).split(b":")
    if len(parts) != _PARTS or parts[0].decode("latin-1") not in _PROCESS_KINDS:
        return None
    digits = parts[1]
    if not digits.isdigit() or len(digits) > len(str(_LARGEST_PID)):
        return None
    pid = int(digits)
    return pid if 0 < pid <= _LARGEST_PID else None
