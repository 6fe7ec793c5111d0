"""Drafts: sessions that have no assistant message yet.

A draft is a journal under a name that no other agent lists. It stays locked while its session is open, so a draft whose lock
is free was left by a crash or a closed session.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from sessile.core.kinds import TALK
from sessile.errors import SessileError, storage_failure, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem, Journals, OwnJournal
from sessile.storage.layout import DRAFT, JOURNAL


def draft_path(path: str) -> str:
    """Return the path of a session's draft."""
    return path.removesuffix(JOURNAL) + DRAFT


def published_path(path: str) -> str:
    """Return the path that a draft gets when it is published; any other path is returned as it is."""
    return path.removesuffix(DRAFT) + JOURNAL if path.endswith(DRAFT) else path


def is_draft(path: str) -> bool:
    """Return whether a file is a draft, by its name."""
    return path.endswith(DRAFT)


def publish(journal: OwnJournal) -> None:
    """Give a draft its final name, so that listings show it, and release its lock."""
    journal.flush()
    try:
        journal.rename(published_path(journal.path))
    finally:
        try:
            _release(journal)
        except BaseException:
            _release(journal)  # again, if an interruption came first
            raise


def _release(journal: OwnJournal) -> None:
    """Release the lock if the session has its final name, even if nothing else was done."""
    if not is_draft(journal.path):
        journal.release()


def discard(fs: Filesystem, journal: OwnJournal) -> None:
    """Remove a draft that holds nothing but its header."""
    try:
        fs.unlink(journal.path)
    except OSError as error:
        raise storage_failure(error, journal.path, "remove an empty draft") from error


def recover(fs: Filesystem, journals: Journals, folder: str) -> list[str]:
    """Publish the drafts in a folder that no process holds and that contain a message. Return their paths.

    What dead writers left in the folder is removed if its bytes are elsewhere.
    """
    with storage_failures(folder, "look for drafts"):
        try:
            names = fs.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
    atomic.sweep(fs, folder, names)
    recovered = []
    for name in filter(is_draft, names):
        path = published_path(posixpath.join(folder, name))
        try:
            if _take_over(fs, journals, path, lambda journal: any(row.flags & TALK for row in journal.rows())):
                recovered.append(path)
        except SessileError:
            continue  # its owner is alive, its header is incomplete, or the folder is read-only: leave it
    return recovered


def recover_one(fs: Filesystem, journals: Journals, path: str) -> bool:
    """Publish the draft of one session and return whether there was one. Raise SessionBusy if a process holds it."""
    return atomic.exists(fs, draft_path(path)) and _take_over(fs, journals, path, lambda journal: True)


def _take_over(fs: Filesystem, journals: Journals, path: str, wanted: Callable[[OwnJournal], bool]) -> bool:
    journal = journals.open(draft_path(path), patience=0)
    try:
        journal.hold()
        # The owner may have published it, or another process recovered it, before we had the lock.
        if not atomic.exists(fs, journal.path) or atomic.exists(fs, path) or not wanted(journal):
            return False
        publish(journal)
        return True
    finally:
        journal.close()
