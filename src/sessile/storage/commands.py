"""Programs of this machine that are given a text and answer with one."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import NamedTuple


class Ran(NamedTuple):
    """What a program did."""

    code: int
    out: bytes
    err: bytes


class NoAnswer(Exception):
    """The program is not there, or did not end in time."""


def run(command: Sequence[str], given: bytes, *, timeout: float) -> Ran:
    """Run a program without a shell, with some bytes on its stdin; it is ended if it takes longer than that many seconds."""
    try:
        done = subprocess.run(list(command), input=given, capture_output=True, timeout=timeout, check=False)
    except FileNotFoundError as error:
        raise NoAnswer("there is no such command") from error
    except subprocess.TimeoutExpired as error:
        raise NoAnswer(f"it took longer than {timeout:g} s") from error
    except OSError as error:
        raise NoAnswer(error.strerror or str(error)) from error
    return Ran(done.returncode, done.stdout, done.stderr)
