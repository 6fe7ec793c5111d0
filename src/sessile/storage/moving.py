"""Moving a file or a folder to another place, also where a rename does not reach.

On one device a move is a rename, at once and durable when it returns. To another device everything is copied, made durable and
given its name there before the first thing is removed here: a kill leaves the whole at one of the two places, or at both.
Symbolic links are refused there, never followed.
"""

from __future__ import annotations

import errno
import posixpath
import stat

from sessile.errors import UnsafePath
from sessile.storage import atomic
from sessile.storage.base import Filesystem
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
    temp = atomic.temp_beside(target)
    for path, status in everything:
        copy = temp + path[len(source) :]
        if stat.S_ISDIR(status.st_mode):
            fs.mkdir(copy)
        elif stat.S_ISREG(status.st_mode):
            with RawFile(fs, path) as file:
                atomic.write_new(fs, copy, file.chunks())
            atomic.set_modified(fs, copy, status.st_mtime_ns)
        else:
            raise UnsafePath("only plain files and folders can be moved to another device", path=path)
    for path, status in everything:
        if stat.S_ISDIR(status.st_mode):
            fs.sync_directory(temp + path[len(source) :])
    fs.rename(temp, target)
    fs.sync_directory(posixpath.dirname(target))
    for path, status in reversed(everything):
        (fs.rmdir if stat.S_ISDIR(status.st_mode) else fs.unlink)(path)
    fs.sync_directory(posixpath.dirname(source))
