"""Which files the processes of this machine have open, where the system can tell.

An idle session holds no lock, only a descriptor. Linux shows those of the user's own processes below `/proc`; other systems
and sandboxes do not, and then the answer is `None`: unknown.
"""

from __future__ import annotations

import os

from sessile.storage.base import Stat

_PROCESSES = "/proc"

Identity = tuple[int, int]
"""Device and inode of a file."""


def identity(status: Stat) -> Identity:
    """What tells a file from all others."""
    return status.st_dev, status.st_ino


def open_files() -> frozenset[Identity] | None:
    """Every file that a process of ours has open, this one included."""
    try:
        processes = [name for name in os.listdir(_PROCESSES) if name.isdigit()]
    except OSError:
        return None
    found = {status for process in processes for status in _descriptors(f"{_PROCESSES}/{process}/fd")}
    return frozenset(found) if found else None


def _descriptors(folder: str) -> list[Identity]:
    """The files of one process; none if it is not ours, or has ended."""
    found = []
    try:
        for name in os.listdir(folder):
            try:
                found.append(identity(os.stat(f"{folder}/{name}")))
            except OSError:
                continue  # closed since, or on a file system that tells nothing
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        pass
    return found
