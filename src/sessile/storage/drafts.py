"""Drafts: sessions that no assistant has answered yet.

A draft is a journal under a name that no listing shows. It stays locked as long as its session lives, so one whose lock
can be taken was left behind by a crash or a closed session.
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
    """The name of a session's draft."""
    return path.removesuffix(JOURNAL) + DRAFT


def published_path(path: str) -> str:
    """The name that a draft gets when it is published; of anything else the name itself."""
    return path.removesuffix(DRAFT) + JOURNAL if path.endswith(DRAFT) else path


def is_draft(path: str) -> bool:
    """Whether a file is a draft, by its name."""
    return path.endswith(DRAFT)


def publish(journal: OwnJournal) -> None:
    """Show a draft in listings: give it its final name, and its lock back."""
    journal.flush()
    try:
        journal.rename(published_path(journal.path))
    finally:
        try:
            _release(journal)
        except BaseException:
            _release(journal)  # once more, if an interruption came first
            raise


def _release(journal: OwnJournal) -> None:
    """Free a session that has its final name, even if that is all that was done."""
    if not is_draft(journal.path):
        journal.release()


def discard(fs: Filesystem, journal: OwnJournal) -> None:
    """Remove a draft in which there is nothing but the header that we wrote."""
    try:
        fs.unlink(journal.path)
    except OSError as error:
        raise storage_failure(error, journal.path, "remove an empty draft") from error


def recover(fs: Filesystem, journals: Journals, folder: str) -> list[str]:
    """Publish the drafts in a folder that nobody holds and in which somebody said something; gives their paths."""
    with storage_failures(folder, "look for drafts"):
        try:
            names = [name for name in fs.names(folder) if is_draft(name)]
        except (FileNotFoundError, NotADirectoryError):
            return []
    recovered = []
    for name in names:
        path = published_path(posixpath.join(folder, name))
        try:
            if _take_over(fs, journals, path, lambda journal: any(row.flags & TALK for row in journal.rows())):
                recovered.append(path)
        except SessileError:
            continue  # its owner lives, its header was never finished, or the folder is read-only: it stays as it is
    return recovered


def recover_one(fs: Filesystem, journals: Journals, path: str) -> bool:
    """Publish the draft of one session, if it has one; raises SessionBusy if somebody still holds it."""
    return atomic.exists(fs, draft_path(path)) and _take_over(fs, journals, path, lambda journal: True)


def _take_over(fs: Filesystem, journals: Journals, path: str, wanted: Callable[[OwnJournal], bool]) -> bool:
    journal = journals.open(draft_path(path), patience=0)
    try:
        journal.hold()
        # The owner may have published it, or another process taken it over, before the lock was ours.
        if not atomic.exists(fs, journal.path) or atomic.exists(fs, path) or not wanted(journal):
            return False
        publish(journal)
        return True
    finally:
        journal.close()
