"""Processes that are forked warm, report through a pipe, and may be killed at any moment."""

from __future__ import annotations

import json
import os
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
        """Return when the child has told something."""
        self._told = os.read(self._read_end, 1 << 16)

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
    while data:
        data = data[os.write(fd, data) :]


def killed_after(seconds: float, work: Callable[[Tell], object]) -> list[Any]:
    """What a process told that was killed some time after its first word."""
    child = Child(work)
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
