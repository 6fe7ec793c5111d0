"""Handling files through the seam, as tests of file systems do it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

from sessile.storage.base import Filesystem

Arguments = ParamSpec("Arguments")

_APPEND = os.O_CREAT | os.O_RDWR | os.O_APPEND


@contextmanager
def opened(filesystem: Filesystem, path: str, flags: int) -> Iterator[int]:
    """A descriptor for the length of a block."""
    fd = filesystem.open(path, flags)
    try:
        yield fd
    finally:
        filesystem.close(fd)


def put(filesystem: Filesystem, path: str, data: bytes) -> None:
    """Append `data` to a file, made if missing."""
    with opened(filesystem, path, _APPEND) as fd:
        assert filesystem.write(fd, data) == len(data)


def get(filesystem: Filesystem, path: str) -> bytes:
    """The whole content of a file."""
    with opened(filesystem, path, os.O_RDONLY) as fd:
        return filesystem.read(fd, filesystem.fstat(fd).st_size, 0)


def error(call: Callable[Arguments, object], *args: Arguments.args, **kwargs: Arguments.kwargs) -> int | None:
    """The number of the `OSError` that a call raises, or None if it succeeds."""
    try:
        call(*args, **kwargs)
        return None
    except OSError as failure:
        return failure.errno
