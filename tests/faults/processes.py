"""Forked processes that report through a pipe and may be killed at any moment."""

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
    """A forked process that runs `work(tell)`. `finish` returns its reports."""

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
        """Wait for the next report of the child. Raise if the child ended."""
        chunk = os.read(self._read_end, 1 << 16)
        if not chunk:
            raise AssertionError(f"the process has ended after {self.told()}")
        self._told += chunk

    def listen(self, seconds: float) -> bool:
        """Read the child's reports for some seconds. Return whether it still runs."""
        end = time.monotonic() + seconds
        while select.select([self._read_end], [], [], max(0.0, end - time.monotonic()))[0]:
            if not (chunk := os.read(self._read_end, 1 << 16)):
                return False
            self._told += chunk
        return True

    def stop(self) -> None:
        """Stop the child between two system calls, and read its reports."""
        os.kill(self.pid, signal.SIGSTOP)
        while self.listen(0.0005):
            with open(f"/proc/{self.pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in "Tt":
                    break
        self.listen(0)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def words(self) -> int:
        """Return the number of reports so far."""
        return self._told.count(b"\n")

    def told(self) -> list[Any]:
        """Return the reports so far."""
        return [json.loads(line) for line in self._told.split(b"\n")[:-1]]

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def finish(self) -> list[Any]:
        """Wait for the end of the child and return all its reports. Raise if it failed by itself."""
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
    while data:  # no store uses `writev`, so rigs that trace system calls can tell reports from work
        data = data[os.writev(fd, [data]) :]


def killed_after(seconds: float, work: Callable[[Tell], object], words: int = 1) -> list[Any]:
    """Kill a process some time after its first `words` reports. Return its reports."""
    child = Child(work)
    while child.words() < words:
        child.wait_for_word()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:  # sleep is not precise enough for tenths of milliseconds
        time.sleep(0)
    child.kill()
    return child.finish()


@contextmanager
def fast_folder() -> Iterator[str]:
    """Return a folder in memory if possible: a rig that only kills processes does not need a disk."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="sessile-", dir=place) as folder:
        yield folder
