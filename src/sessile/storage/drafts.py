"""Drafts: sessions that have no assistant message yet.

A draft is a journal under a name that no other agent lists. Our own listings show it, and it is read like any other session.
It stays locked while its session is open, so a draft whose lock is free was left by a crash or a closed session: opening it for
writing publishes it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from sessile.core.kinds import TALK
from sessile.errors import SessileError, SessionBusy, SessionNotFound, storage_failure, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem, Journals, OwnJournal
from sessile.storage.layout import DRAFT, JOURNAL

PATIENCE = 0.25  # seconds; another process that recovers the draft, or looks whether it is held, needs less


def draft_path(path: str) -> str:
    """Return the path of a session's draft; that of a draft is returned as it is."""
    return path if is_draft(path) else path.removesuffix(JOURNAL) + DRAFT


def published_path(path: str) -> str:
    """Return the path that a draft gets when it is published; any other path is returned as it is."""
    return path.removesuffix(DRAFT) + JOURNAL if path.endswith(DRAFT) else path


def is_draft(path: str) -> bool:
    """Return whether a file is a draft, by its name."""
    return path.endswith(DRAFT)


def located(fs: Filesystem, path: str) -> str:
    """Return where a session is now, given the path of its draft or the one that it gets when it is published.

    A path where neither of the two exists is returned as it is.
    """
    other = published_path(path) if is_draft(path) else draft_path(path) if path.endswith(JOURNAL) else path
    return path if other == path or atomic.exists(fs, path) or not atomic.exists(fs, other) else other


def publish(journal: OwnJournal) -> None:
    """Give a draft its final name, so that other agents list it, and release its lock."""
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
        path = posixpath.join(folder, name)
        try:
            if _take_over(fs, journals, path, 0, lambda journal: any(row.flags & TALK for row in journal.rows())):
                recovered.append(published_path(path))
        except SessileError:
            continue  # its owner is alive, its header is incomplete, or the folder is read-only: leave it
    return recovered


def recover_one(fs: Filesystem, journals: Journals, path: str) -> bool:
    """Publish the draft of one session, given either of its paths. Return whether there was one.

    Raises:
        SessionBusy: Another process writes the draft.
    """
    draft = draft_path(path)
    if not atomic.exists(fs, draft):
        return False
    try:
        return _take_over(fs, journals, draft, PATIENCE, lambda journal: True)
    except SessionNotFound:
        return False  # its owner has published or removed it, or another process recovered it
    except SessionBusy as error:
        hint = f"it is a draft, which only one process can write: open it for reading, or {error.hint}"
        raise SessionBusy(error.message, path=draft, hint=hint) from None


def _take_over(
    fs: Filesystem, journals: Journals, draft: str, patience: float, wanted: Callable[[OwnJournal], bool]
) -> bool:
    journal = journals.open(draft, patience=patience)
    try:
        journal.hold()
        # The owner may have published it, or another process recovered it, before we had the lock.
        if not atomic.exists(fs, draft) or atomic.exists(fs, published_path(draft)) or not wanted(journal):
            return False
        publish(journal)
        return True
    finally:
        journal.close()
