"""Other agents' sessions: opened in place for reading. What can be written there, `in_place` writes.

It is apart from `store` because programs that only use sessions of ours need not load the formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime

from sessile.core.lines import Finding
from sessile.core.text import parse_timestamp
from sessile.core.troubles import TROUBLES, Problem, problem
from sessile.discovery import SessionInfo
from sessile.errors import NotASession, Unsupported, storage_failures
from sessile.formats.capabilities import capabilities_of, possible
from sessile.storage.base import Filesystem
from sessile.storage.foreign import ForeignReader, format_of
from sessile.storage.foreign_rows import glance_foreign
from sessile.storage.packed import open_rows

_HINT = "it was not changed; no format that is known begins so; sessile check says what it holds"


def open_foreign(fs: Filesystem, path: str, index_path: str | None = None) -> ForeignReader:
    """The file of another agent, recognised by what it holds."""
    with storage_failures(path, "look at the file"):
        known = format_of(fs, path)
        if known is None:
            raise NotASession(path=path, hint=_HINT)
        return ForeignReader(fs, path, known, index_path=index_path)


def format_name(fs: Filesystem, path: str) -> str:
    """The name of the format of another agent's file."""
    with closing(open_foreign(fs, path)) as reader:
        return reader.format.name


def refusal(name: str, path: str) -> Unsupported:
    """What is to be said of a file that is not written because it is not ours, and what could be done instead."""
    rest = f"or say in_place=True: {possible(name)}" if capabilities_of(name) else possible(name)
    return Unsupported(
        f"this is a session of {name}, which is read in place",
        path=path,
        hint=f"fork it, and go on in the copy; {rest}",
    )


def describe_foreign(fs: Filesystem, path: str) -> SessionInfo | None:
    """What the two ends of another agent's file tell of it; `None` if it is no session, or one that nobody lists."""
    with storage_failures(path, "look at a session"):
        fd, _, _ = open_rows(fs, path)
        try:
            status = fs.fstat(fd)
            found = glance_foreign(fs, fd, status.st_size, path)
        finally:
            fs.close(fd)
    if found is None:
        return None
    _, seen = found
    created = parse_timestamp(seen.created)
    return SessionInfo(
        path=path,
        id=seen.id,
        cwd=seen.cwd,
        title=seen.title or None,
        parent_session_path=None,
        created=None if created is None else datetime.fromtimestamp(created / 1000, UTC),
        modified=datetime.fromtimestamp(status.st_mtime_ns / 1e9, UTC),
        size=status.st_size,
        first_message=seen.first_text or None,
    )


def problems_of(findings: Iterable[Finding]) -> Iterator[Problem]:
    """What is not as it should be in another agent's file; none of it is for us to repair."""
    for code, offset, length, detail in findings:
        kind = code if code in TROUBLES else "not_an_entry"
        found = problem(kind, detail)._replace(repairable=False)
        yield found._replace(offset=offset, length=length) if offset >= 0 else found
