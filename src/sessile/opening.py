"""Open a session file: create it, recover a draft, migrate an old version, or read another agent's file.

Opening for reading changes nothing: a file of an older version is migrated in memory. What opening for writing changes is kept,
and the session's notices say where. This is apart from `store` because a listing opens no session.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from sessile.agents.base import Agent
from sessile.core import entries as make
from sessile.core.codec import decode, encode
from sessile.core.ids import new_session_id
from sessile.core.lines import Finding, Line
from sessile.core.migrate import VERSION, migrate_session_entries, version_of
from sessile.core.text import iso_timestamp
from sessile.errors import (
    NotASession,
    SessionExists,
    SessionNotFound,
    UnsafePath,
    Unsupported,
    UnsupportedVersion,
    storage_failure,
    storage_failures,
)
from sessile.session import Session
from sessile.storage import atomic, drafts
from sessile.storage.base import OwnJournal
from sessile.storage.layout import root_of
from sessile.storage.reader import JournalReader

if TYPE_CHECKING:
    from sessile.store import Store

Opened = TypeVar("Opened")

_RECOVERED = "the session was a draft without a writer; it is published now, so that other programs list it, too"
_HINT = "no known agent writes such files; run `sessile check` to see what is in it; the file was not changed"


def open_for_writing(store: Store, path: str, cwd: str | None, *, in_place: bool) -> Session:
    """Open the session in a file, or create it for `cwd` if the file is missing or empty."""
    notices: list[str] = []
    if drafts.is_draft(path):
        path = _published(store, path, notices)
    elif _is_blank(store, path) and drafts.recover_one(store.fs, store.journals, path):
        notices.append(_RECOVERED)
    elif _is_blank(store, path):
        if in_place:
            raise SessionNotFound(path=path, hint="only an existing session can be written in place")
        store.journals.obtain(path, _first_line(store, path, cwd))
    found = _native(store, path, store.journals.open)
    if isinstance(found, Agent):
        from sessile.in_place import open_in_place  # most programs need only native sessions

        return open_in_place(store, path, found, in_place=in_place)
    if found is None:
        if not store.layout.owns(path):
            raise NotASession(path=path, hint=_HINT)
        notices.append(_start_over(store, path, cwd))
        found = store.journals.open(path)
    journal = found
    if not in_place and (root := _other_root(store, path)) is not None:
        journal.close()
        hint = f"fork it, open it with Store({root!r}), or pass in_place=True"
        raise Unsupported("this session belongs to another program or store, and is only read", path=path, hint=hint)
    notices += _migrate(store, journal)
    session = Session(store, journal, journal, ours=store.layout.owns(path))
    session.notices += notices
    store._leave_breadcrumb(session)
    return session


def _other_root(store: Store, path: str) -> str | None:
    """The root of another store, such as the home of pi, that a file lies in."""
    root = None if store.layout.owns(path) else root_of(path)
    return None if root == store.layout.root else root


def _published(store: Store, draft: str, notices: list[str]) -> str:
    """Publish a draft and return its new path. Another process may have done so since the caller found the draft."""
    path = drafts.published_path(draft)
    if drafts.recover_one(store.fs, store.journals, draft):
        notices.append(_RECOVERED)
    elif atomic.exists(store.fs, draft):
        hint = "the draft can be opened for reading; move one of the two files to another folder, then try again"
        raise SessionExists("the draft cannot be published: there is another file of its name", path=path, hint=hint)
    elif not atomic.exists(store.fs, path):
        raise SessionNotFound(path=draft, hint="list the sessions")
    return path


def open_for_reading(store: Store, path: str) -> Session:
    """Open the session in a file, and change nothing."""
    path = drafts.located(store.fs, path)
    try:
        found = _native(store, path, store.journals.read)
    except SessionNotFound:
        path, before = drafts.located(store.fs, path), path
        if path == before:
            raise
        found = _native(store, path, store.journals.read)  # its writer published it in between
    if isinstance(found, Agent):
        index_path = store.layout.index(drafts.published_path(path))
        with storage_failures(path, "open the session"):
            return Session(store, _foreign().ForeignReader(store.fs, path, found, index_path=index_path), ours=False)
    if found is None:
        raise NotASession(path=path, hint=_HINT)
    reader = found
    findings: Sequence[Finding] = ()
    if version_of(decode(reader.header())) < VERSION:
        from sessile.storage.memory import MemoryFilesystem  # old versions are rare

        items = list(reader.items())
        reader.close()
        findings = [item for item in items if isinstance(item, Finding)]
        copy = MemoryFilesystem()
        atomic.make_folders(copy, posixpath.dirname(path))
        atomic.write_new(copy, path, (line + b"\n" for line in _migrated(items)))
        reader = JournalReader(copy, path)
    return Session(store, reader, ours=store.layout.owns(path), findings=findings)


def _native(store: Store, path: str, open_journal: Callable[[str], Opened]) -> Opened | Agent | None:
    """Open a native file; return the agent of another agent's file, and `None` if no agent recognises it.

    Files below our own sessions folder are native, so the registry is asked only if one of them turns out not to be.
    """
    ours = store.layout.owns(path)
    agent = None if ours else _agent_of(store, path)
    if agent is not None:
        return agent
    try:
        return open_journal(path)
    except NotASession:
        return _agent_of(store, path) if ours else None


def _agent_of(store: Store, path: str) -> Agent | None:
    agent: Agent | None = _foreign().agent_of(store.fs, path)
    return agent


def _foreign() -> ModuleType:
    from sessile.agents import reader  # most programs need only native sessions

    return reader


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
    """The header line of a new session in a given file."""
    now = store.now()
    project = store._project_of(path) if cwd is None else cwd
    return encode(make.header(new_session_id(now, store.random), iso_timestamp(now), project))


def _start_over(store: Store, path: str, cwd: str | None) -> str:
    """Replace a file of the store that is not a session by a new session; return where the old bytes are."""
    aside = f"{path}.invalid-{store.now()}"
    with storage_failures(path, "keep the content of the file"):
        atomic.keep(store.fs, path, aside)
    atomic.replace(store.fs, path, (_first_line(store, path, cwd) + b"\n",))
    return f"the file was not a session; its content is now in {aside}"


def _migrate(store: Store, journal: OwnJournal) -> Sequence[str]:
    """Migrate the file of an older version; return where the original is."""
    version = version_of(decode(journal.header()))
    if version == VERSION:
        return ()
    try:
        if version > VERSION:
            hint = f"this release writes version {VERSION}; open the session for reading"
            raise UnsupportedVersion(f"the session has version {version}", path=journal.path, hint=hint)
        original = store.original_path(journal.path)
        lines = iter(_migrated(journal.items()))
        # If another process appends in the meantime, the rewrite notices that the file has grown, and fails.
        journal.replace(lambda raw: next(lines, None), keep=original)
        original = store._keep_once(original)
    except BaseException:
        journal.close()
        raise
    return (f"the file was migrated from version {version} to {VERSION}; the original is in {original}",)


def _migrated(items: Iterable[Any]) -> list[bytes]:
    """All lines in the current version. A line that needs no change stays as it is, byte for byte."""
    lines = [item.raw for item in items if isinstance(item, Line)]
    records = [decode(line) for line in lines]
    migrate_session_entries(records)
    return [line if decode(line) == record else encode(record) for line, record in zip(lines, records, strict=True)]
