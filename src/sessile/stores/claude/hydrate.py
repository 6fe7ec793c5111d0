"""Filling the local transcript of a session from a remote copy.

The order is the documented one: switch to the session, fetch, write the file, and whatever happened let new rows go to the remote
side from then on, never before. But where the documents truncate, nothing is lost here: an empty answer or a failure leaves the
local file as it is, and an answer takes its place at once while the old file stays in our own root.

Nothing is raised for what goes wrong on the way: it is told by a code and numbers, which never hold any content. Where rows
come from is the caller's choice (`remote` makes sources for URLs, folders and stores).
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sessile.core.codec import encode
from sessile.errors import ExtensionFailed, InvalidEntry, SessileError
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.line_file import HeldFile, held
from sessile.stores.claude.remote import Fetch, Mirror
from sessile.stores.claude.transcript import Diagnostic, Transcript, outside

HYDRATED = "hydrated"
UNCHANGED = "unchanged"
REMOTE_EMPTY = "remote_empty"
REMOTE_FAILED = "remote_failed"
REMOTE_INVALID = "remote_invalid"
STORAGE_FAILED = "storage_failed"


@dataclass(frozen=True)
class Hydration:
    """What came of it; true if the local file now holds the remote rows."""

    code: str
    rows: int = 0
    kept: str | None = None  # where the file lies that was here before
    kind: str | None = None  # the class of the error

    def __bool__(self) -> bool:
        return self.rows > 0


def hydrate_session(
    transcript: Transcript,
    session_id: str,
    fetch: Fetch,
    *,
    project_dir: str | None = None,
    mirror: Mirror | None = None,
) -> Hydration:
    """Make the session current and fill its file from the remote side; new rows then go to `mirror` too."""
    transcript.switch_session(session_id, project_dir)
    transcript.mirror_to(None)
    try:
        result = _fill(transcript, transcript.transcript_path(), session_id, fetch)
    finally:
        transcript.mirror_to(mirror)
    if result.code not in (HYDRATED, UNCHANGED):
        transcript.diagnostics.append(Diagnostic(result.code, result.rows, result.kind))
    return result


def _fill(transcript: Transcript, path: str, session_id: str, fetch: Fetch) -> Hydration:
    try:
        rows = outside(lambda: list(fetch(session_id) or ()))
    except ExtensionFailed as error:
        return Hydration(REMOTE_FAILED, kind=type(error.__cause__).__name__)
    if not rows:
        return Hydration(REMOTE_EMPTY)
    try:
        lines = [_line(row) for row in rows]
    except (InvalidEntry, TypeError, ValueError) as error:
        return Hydration(REMOTE_INVALID, kind=type(error).__name__)
    try:
        kept, changed = _put(transcript.fs, path, lines, f"{transcript.home}/originals")
    except SessileError as error:
        return Hydration(STORAGE_FAILED, kind=type(error).__name__)
    return Hydration(HYDRATED if changed else UNCHANGED, len(lines), kept)


def _line(row: Mapping[str, Any] | bytes) -> bytes:
    if isinstance(row, bytes):
        line = row.removesuffix(b"\n")
        if not line or b"\n" in line:
            raise InvalidEntry("a row must be one line")
        return line
    if not isinstance(row, Mapping):
        raise InvalidEntry("a row must be an object")
    return encode(dict(row))


def _put(fs: Filesystem, path: str, lines: list[bytes], originals: str) -> tuple[str | None, bool]:
    """Put a file with these lines in place; says where the old one is kept, and whether anything changed."""
    atomic.make_folders(fs, posixpath.dirname(path), below_links=True)
    content = [line + b"\n" for line in lines]
    with held(fs, path, create=True) as file:
        old = _digest(file.chunks(0, file.size))
        if old == _digest(content):
            return None, False
        kept = _keep(fs, file, old, originals) if file.size else None
        file.replace(content)
    return kept, True


def _keep(fs: Filesystem, file: HeldFile, digest: str, originals: str) -> str:
    """Copy the file as it is, durably; what was kept before under the same digest is the same."""
    name = f"{originals}/{posixpath.basename(file.path).removesuffix('.jsonl')}/{digest[:16]}.transcript"
    if not atomic.exists(fs, name):
        atomic.make_folders(fs, posixpath.dirname(name))
        atomic.replace(fs, name, file.chunks(0, file.size))
    return name


def _digest(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
