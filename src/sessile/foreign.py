"""Other agents' sessions: opened in place for reading, and never for writing.

It is apart from `store` because programs that only use sessions of ours need not load the formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from sessile.core.troubles import TROUBLES, Problem, problem
from sessile.errors import NotASession, Unsupported, storage_failures
from sessile.formats.registry import FORMATS
from sessile.storage.base import Filesystem
from sessile.storage.foreign import ForeignReader, format_of


def open_foreign(fs: Filesystem, path: str, index_path: str | None = None) -> ForeignReader:
    """The file of another agent, recognised by what it holds."""
    with storage_failures(path, "look at the file"):
        known = format_of(fs, path, FORMATS)
    if known is None:
        raise NotASession(path=path, hint="it was not changed; no format that is known begins so")
    return ForeignReader(fs, path, known, index_path=index_path)


def refuse_to_write(fs: Filesystem, path: str) -> None:
    """Raise what is to be said of a file that cannot be written because it is not ours."""
    with closing(open_foreign(fs, path)) as reader:
        raise Unsupported(
            f"this is a session of {reader.format.name}, which is read in place",
            path=path,
            hint="fork it, and go on in the copy",
        )


def problems_of(reader: ForeignReader) -> Iterator[Problem]:
    """What is not as it should be in another agent's file; none of it is for us to repair."""
    for code, offset, length, detail in reader.findings():
        kind = code if code in TROUBLES else "not_an_entry"
        found = problem(kind, detail)._replace(repairable=False)
        yield found._replace(offset=offset, length=length) if offset >= 0 else found
