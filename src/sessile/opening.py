"""From a file to a session: blank ones are begun, old versions brought up to date, other agents' recognised.

Opening for reading changes nothing: a file of an older version is brought up to date in memory. Whatever opening for writing
changes is kept as it was, and the session's notices say where.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sessile.core import entries as make
from sessile.core.codec import decode, encode
from sessile.core.ids import new_session_id
from sessile.core.lines import Finding, Line
from sessile.core.migrate import VERSION, migrate_session_entries, version_of
from sessile.core.text import iso_timestamp
from sessile.errors import (
    NotASession,
    SessionNotFound,
    UnsafePath,
    UnsupportedVersion,
    storage_failure,
    storage_failures,
)
from sessile.session import Session
from sessile.storage import atomic, drafts
from sessile.storage.base import OwnJournal

if TYPE_CHECKING:
    from sessile.store import Store


def open_for_writing(store: Store, path: str, cwd: str | None, *, in_place: bool) -> Session:
    """The session in a file, begun for `cwd` if the file is missing or empty."""
    notices = []
    if _is_blank(store, path) and not drafts.recover_one(store.fs, store.journals, path):
        if in_place:
            raise SessionNotFound("there is no session to write into", path=path)
        store.journals.obtain(path, _first_line(store, path, cwd))
    try:
        journal = store.journals.open(path)
    except NotASession:
        if not store.layout.owns(path):
            from sessile import in_place as foreign

            return foreign.open_for_writing(store, path, in_place=in_place)
        notices.append(_start_over(store, path, cwd))
        journal = store.journals.open(path)
    notices += _migrate(store, journal)
    session = Session(store, journal, journal, ours=store.layout.owns(path))
    session.notices += notices
    store.leave_breadcrumb(session)
    return session


def open_for_reading(store: Store, path: str) -> Session:
    """The session in a file, as it is."""
    draft = drafts.draft_path(path)
    if not atomic.exists(store.fs, path) and atomic.exists(store.fs, draft):
        path = draft
    try:
        reader = store.journals.read(path)
    except NotASession:
        from sessile.foreign import open_foreign

        index_path = store.layout.index(drafts.published_path(path))
        return Session(store, open_foreign(store.fs, path, index_path), ours=False)
    findings: Sequence[Finding] = ()
    if version_of(decode(reader.header())) < VERSION:
        from sessile.storage.memory import MemoryFilesystem
        from sessile.storage.reader import JournalReader

        items = list(reader.items())
        reader.close()
        findings = [item for item in items if isinstance(item, Finding)]
        copy = MemoryFilesystem()
        atomic.make_folders(copy, posixpath.dirname(path))
        atomic.write_new(copy, path, (line + b"\n" for line in _migrated(items)))
        reader = JournalReader(copy, path)
    return Session(store, reader, ours=store.layout.owns(path), findings=findings)


def _is_blank(store: Store, path: str) -> bool:
    try:
        if atomic.is_plain(store.fs, path):
            return store.fs.lstat(path).st_size == 0
    except FileNotFoundError:
        return True
    except OSError as error:
        raise storage_failure(error, path, "open the session") from error
    raise UnsafePath(path=path, hint="symbolic links are not followed when writing")


def _first_line(store: Store, path: str, cwd: str | None) -> bytes:
    """The header of a new session in a given file."""
    now = store.now()
    folder = cwd if cwd is not None else posixpath.dirname(path)
    return encode(make.header(new_session_id(now, store.random), iso_timestamp(now), folder))


def _start_over(store: Store, path: str, cwd: str | None) -> str:
    """A new session in place of a file of ours that holds none; says where the old bytes are."""
    aside = f"{path}.invalid-{store.now()}"
    with storage_failures(path, "keep what was in the file"):
        atomic.keep(store.fs, path, aside)
    atomic.replace(store.fs, path, (_first_line(store, path, cwd) + b"\n",))
    return f"the file was no session; what it held is now in {aside}"


def _migrate(store: Store, journal: OwnJournal) -> Sequence[str]:
    """Bring the file of an older version up to date; says where the file is as it was."""
    version = version_of(decode(journal.header()))
    if version == VERSION:
        return ()
    try:
        if version > VERSION:
            hint = f"this release writes version {VERSION}; open it for reading"
            raise UnsupportedVersion(f"the session has version {version}", path=journal.path, hint=hint)
        kept = store.original_path(journal.path)
        lines = iter(_migrated(journal.items()))
        # A line that came meanwhile stays as it is; the rewrite notices that the file has grown, and gives up.
        journal.replace(lambda raw: next(lines, None), keep=kept)
    except BaseException:
        journal.close()
        raise
    return (f"the file had version {version} and now has {VERSION}; as it was, it is in {kept}",)


def _migrated(items: Iterable[Any]) -> list[bytes]:
    """Every line brought to the current version, in order; one that needs no change stays as it is."""
    lines = [item.raw for item in items if isinstance(item, Line)]
    records = [decode(line) for line in lines]
    migrate_session_entries(records)
    return [line if decode(line) == record else encode(record) for line, record in zip(lines, records, strict=True)]
