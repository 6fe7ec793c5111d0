"""The transcripts of a folder, and which file belongs to a key. What their names say is known to `formats.yoyoclaw.names`.

Nothing is opened. A `sessionFile` counts only if it lies in one of the folders: an entry may not point anywhere else.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sessile.errors import storage_failures
from sessile.formats.yoyoclaw.entries import SessionEntry
from sessile.formats.yoyoclaw.names import Transcript, read_name, transcript_name
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.stores.yoyoclaw.paths import names_in

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class Lookup(NamedTuple):
    """The transcript of a key: its path if there is one, and a `sessionFile` that was refused."""

    path: str | None
    refused: str | None = None


class Contents(NamedTuple):
    """What lies in a folder: transcripts and archives by name, and what is called like one but is no plain file."""

    transcripts: list[Transcript]
    others: list[str]


def contents_of(fs: Filesystem, folder: str) -> Contents:
    """The transcripts and archives of a folder."""
    found = Contents([], [])
    for name in names_in(fs, folder):
        file = read_name(f"{folder}/{name}")
        if file is not None and _is(atomic.is_plain, fs, file.path):
            found.transcripts.append(file)
        elif file is not None:
            found.others.append(file.path)
    return found


def find_transcript(fs: Filesystem, entry: SessionEntry, folders: Sequence[str], topic: str | None = None) -> Lookup:
    """The transcript of an entry: `sessionFile`, else by session id (and topic) in each of the folders."""
    refused = None
    named = entry.session_file
    if named:
        path = posixpath.normpath(posixpath.join(folders[0], named))
        if not any(_holds(fs, folder, path) for folder in folders):
            refused = named
        elif _is(atomic.is_plain, fs, path):
            return Lookup(path)
    session_id = entry.session_id
    if session_id is None or "/" in session_id or "\0" in session_id:
        return Lookup(None, refused)
    names = [transcript_name(session_id)]
    if topic is not None:
        names.insert(0, transcript_name(session_id, topic))
    paths = (f"{folder}/{name}" for name in names for folder in folders)
    return Lookup(next((path for path in paths if _is(atomic.is_plain, fs, path)), None), refused)


def _holds(fs: Filesystem, folder: str, path: str) -> bool:
    """Whether a path lies in a folder; one that goes through a link leads somewhere else."""
    if not path.startswith(f"{folder}/"):
        return False
    below = path[len(folder) + 1 :].split("/")[:-1]
    between = (posixpath.join(folder, *below[: depth + 1]) for depth in range(len(below)))
    return not any(_is(_no_folder, fs, inner) for inner in between)


def _no_folder(fs: Filesystem, path: str) -> bool:
    return not atomic.is_folder(fs, path)


def _is(kind: Callable[[Filesystem, str], bool], fs: Filesystem, path: str) -> bool:
    """Whether there is something of that name and kind. Stores hold any text: a name that no file can have is nobody's."""
    with storage_failures(path, "look at a file"):
        try:
            return kind(fs, path)
        except ValueError:  # a NUL, or half an emoji
            return False
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
            return False
