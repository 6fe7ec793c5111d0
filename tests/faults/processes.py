"""Processes that are forked warm, report through a pipe, and may be killed at any moment."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Tell = Callable[[Any], None]


class Child:
    """A forked process that runs `work(tell)`; what it tells is read with `finish`."""

    def __init__(self, work: Callable[[Tell], object]) -> None:
        self._told = b""
        self._read_end, write_end = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # pytest-xdist has threads; the child touches none
            self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self._read_end)
                work(lambda told: _write(write_end, json.dumps(told).encode() + b"\n"))
                status = 0
            except BaseException:
                _write(write_end, json.dumps({"failed": traceback.format_exc()}).encode() + b"\n")
            finally:
                os._exit(status)
        os.close(write_end)

    def wait_for_word(self) -> None:
        """Return when the child has told something more; raises if it ended before."""
        chunk = os.read(self._read_end, 1 << 16)
        if not chunk:
            raise AssertionError(f"the process has ended after {self.told()}")
        self._told += chunk

    def listen(self, seconds: float) -> bool:
        """Take in what the child tells in that time; says whether it is still there."""
        end = time.monotonic() + seconds
        while select.select([self._read_end], [], [], max(0.0, end - time.monotonic()))[0]:
            if not (chunk := os.read(self._read_end, 1 << 16)):
                return False
            self._told += chunk
        return True

    def stop(self) -> None:
        """Stop the child where it is, between two of its system calls, and take in what it has told."""
        os.kill(self.pid, signal.SIGSTOP)
        while self.listen(0.0005):
            with open(f"/proc/{self.pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in "Tt":
                    break
        self.listen(0)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def words(self) -> int:
        """How often the child has told something so far."""
        return self._told.count(b"\n")

    def told(self) -> list[Any]:
        """What the child has told so far."""
        return [json.loads(line) for line in self._told.split(b"\n")[:-1]]

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def finish(self) -> list[Any]:
        """Everything that the child told before its end; raises if it failed by itself."""
        chunks = [self._told]
        while chunk := os.read(self._read_end, 1 << 16):
            chunks.append(chunk)
        os.close(self._read_end)
        os.waitpid(self.pid, 0)
        lines = b"".join(chunks).split(b"\n")
        told = [json.loads(line) for line in lines[:-1] if line]
        for event in told:
            if isinstance(event, dict) and "failed" in event:
                raise AssertionError(event["failed"])
        return told


def _write(fd: int, data: bytes) -> None:
    while data:  # by a call that no store makes, so that rigs that watch system calls can tell them apart
        data = data[os.writev(fd, [data]) :]


def killed_after(seconds: float, work: Callable[[Tell], object], words: int = 1) -> list[Any]:
    """What a process told that was killed some time after so many words."""
    child = Child(work)
    while child.words() < words:
        child.wait_for_word()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:  # sleeping is not exact enough for tenths of milliseconds
        time.sleep(0)
    child.kill()
    return child.finish()


@contextmanager
def fast_folder() -> Iterator[str]:
    """A folder in memory where there is one: a rig that only kills processes need not wait for a disk."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="sessile-", dir=place) as folder:
        yield folder
