"""Processes and their machine: whether one is alive, for locks of foreign stores that name their holder by its number."""

from __future__ import annotations

import os
import socket

_LARGEST = 0x7FFFFFFF


def own_pid() -> int:
    """The number of this process."""
    return os.getpid()


def own_host() -> str:
    """The name of this machine."""
    return socket.gethostname()


def is_alive(pid: int) -> bool:
    """Whether there is a process of that number, ours to signal or not."""
    if not 0 < pid <= _LARGEST:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
