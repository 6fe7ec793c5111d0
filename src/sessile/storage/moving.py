"""Moving a file or a folder to another place, also where a rename does not reach.

On one device a move is a rename, at once and durable when it returns. To another device everything is copied, made durable and
given its name there before the first thing is removed here: a kill leaves the whole at one of the two places, or at both, and
what fails before that leaves nothing there. Symbolic links are refused then, before anything is copied, and never followed.
"""

from __future__ import annotations

import errno
import posixpath
import stat
from collections.abc import Sequence
from contextlib import suppress

from sessile.errors import SessileError, UnsafePath
from sessile.storage import atomic
from sessile.storage.base import Filesystem, Stat
from sessile.storage.raw_file import RawFile
from sessile.storage.survey import below


def move(fs: Filesystem, source: str, target: str) -> None:
    """Give what is at `source` the name `target`, which must be free, in a folder that exists."""
    try:
        fs.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _move_across(fs, source, target)
        return
    fs.sync_directory(posixpath.dirname(target))
    fs.sync_directory(posixpath.dirname(source))


def _move_across(fs: Filesystem, source: str, target: str) -> None:
    everything = list(below(fs, source))
    for path, status in everything:
        if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
            raise UnsafePath("only plain files and folders can be moved to another device", path=path)
    made = atomic.temp_beside(target)
    try:
        _copy(fs, everything, source, made)
        fs.rename(made, target)
        made = target
        fs.sync_directory(posixpath.dirname(target))
    except BaseException:
        with suppress(OSError, SessileError):  # what went wrong before counts more
            _remove(fs, list(below(fs, made)))
        raise
    _remove(fs, everything)
    fs.sync_directory(posixpath.dirname(source))


def _copy(fs: Filesystem, everything: Sequence[tuple[str, Stat]], source: str, target: str) -> None:
    for path, status in everything:
        copy = target + path[len(source) :]
        if stat.S_ISDIR(status.st_mode):
            fs.mkdir(copy)
        else:
            with RawFile(fs, path) as file:
                atomic.write_new(fs, copy, file.chunks())
            atomic.set_modified(fs, copy, status.st_mtime_ns)
    for path, status in everything:
        if stat.S_ISDIR(status.st_mode):
            fs.sync_directory(target + path[len(source) :])


def _remove(fs: Filesystem, everything: Sequence[tuple[str, Stat]]) -> None:
    """Remove what `below` has found, each folder after what it holds."""
    for path, status in reversed(everything):
        (fs.rmdir if stat.S_ISDIR(status.st_mode) else fs.unlink)(path)
