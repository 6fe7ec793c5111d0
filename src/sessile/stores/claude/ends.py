"""The two ends of a transcript and the notes beside it: all that a listing reads of a session, however large it is."""

from __future__ import annotations

import posixpath

from sessile.errors import NotFound, SessileError
from sessile.formats.claude.lite import WINDOW, LiteFile, begun_in
from sessile.formats.claude.notes import ARCHIVE_NOTE, LONGEST_NOTE, NO_NOTES, TITLE_NOTE, Notes, notes_of
from sessile.formats.claude.slug import hyphenated
from sessile.storage.base import Filesystem
from sessile.storage.raw_file import RawFile
from sessile.stores.claude.paths import TRANSCRIPT, session_of

_CHAIN = b'"parentUuid":'  # what a file holds in which something was said


def read_ends(fs: Filesystem, path: str) -> LiteFile | None:
    """The two ends of a file, or None if it is empty or gone."""
    try:
        file = RawFile(fs, path)
    except SessileError as error:
        if isinstance(error, NotFound) or isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    with file:
        head = file.peek(0, WINDOW)
        tail = file.peek(file.size - WINDOW, WINDOW) if file.size > WINDOW else head
        return LiteFile(head, tail, file.stat.st_mtime_ns, file.size) if head else None


def read_notes(fs: Filesystem, transcript: str) -> Notes:
    """What the folder of a session notes; most sessions have none."""
    folder = transcript.removesuffix(TRANSCRIPT)
    try:
        fs.lstat(folder)
    except OSError:
        return NO_NOTES
    return notes_of(_note(fs, f"{folder}/{TITLE_NOTE}"), _note(fs, f"{folder}/{ARCHIVE_NOTE}"))


def has_conversation(fs: Filesystem, path: str) -> bool:
    """Whether something was said in a transcript; of a large one it is taken for granted."""
    try:
        ends = read_ends(fs, path)
    except SessileError:
        return False  # nobody can go on in it
    return ends is not None and (_CHAIN in ends.head or ends.size > WINDOW)


def holds_session_of(fs: Filesystem, folder: str, directory: str) -> bool:
    """Whether a project folder has a session that was begun in a directory, up to what a slug tells of it."""
    for name in fs.names(folder):
        if session_of(name) is None and not name.endswith(TRANSCRIPT):
            continue
        try:
            ends = read_ends(fs, posixpath.join(folder, name))
        except SessileError:
            continue  # it tells nothing
        begun = None if ends is None else begun_in(ends)
        if begun is not None and hyphenated(begun) == hyphenated(directory):
            return True
    return False


def _note(fs: Filesystem, path: str) -> bytes | None:
    """A note, as far as it is one: whatever cannot be read says nothing, as in the SDK."""
    try:
        with RawFile(fs, path) as file:
            return file.peek(0, file.size) if file.size <= LONGEST_NOTE else None
    except SessileError:
        return None
