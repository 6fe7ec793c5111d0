"""Remote copies of sessions: fetch the rows of a session, send new rows, and fill a local transcript from a copy.

A source is a callable that returns the rows of a session, or `None` if it does not know the session. A mirror receives
the rows that were written. This module has them for a URL, for another folder of Claude Code (a mounted copy), and for
a store of the Claude Agent SDK.

A URL contains `{session_id}`. `GET` returns one row per line, or a list of rows; 404 means an unknown session. New rows
are sent with `POST`, one per line; `{agent_id}` in the path or query is the agent that wrote them. Plain HTTP is only
allowed for this machine. Only the given host is connected to, and redirects are not followed.

Hydration switches to the session, fetches, writes the file, and only then sends new rows to the mirror, even after a
failure. An empty or failed answer leaves the local file unchanged; otherwise the file is replaced atomically, and the
old one is saved in our own root. Problems do not raise: they are reported as a code and numbers, never with content.
"""

from __future__ import annotations

import hashlib
import posixpath
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sessile.agents.claude.sdk import ClaudeSessions
from sessile.agents.claude.transcript import Diagnostic, Mirror, Transcript, call_remote
from sessile.core.codec import decode, encode
from sessile.errors import ExtensionFailed, Invalid, InvalidEntry, SessileError
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.line_file import HeldFile, held
from sessile.storage.session_bytes import RawFile
from sessile.vendors.clients import open_direct

Rows = Iterable[Mapping[str, Any] | bytes]

Fetch = Callable[[str], Rows | None]
"""Return the rows of a session in order, as values or as lines; `None` if the session is unknown."""

HYDRATED = "hydrated"
UNCHANGED = "unchanged"
REMOTE_EMPTY = "remote_empty"
REMOTE_FAILED = "remote_failed"
REMOTE_INVALID = "remote_invalid"
STORAGE_FAILED = "storage_failed"

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_MEDIA_TYPE = "application/x-ndjson"
_NOT_FOUND = 404


@dataclass(frozen=True)
class Hydration:
    """The result of `hydrate_session`; true if the local file now holds the remote rows."""

    code: str
    rows: int = 0
    kept: str | None = None  # the path of the saved old file
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
    """Make the session current and fill its file from the remote copy; then send new rows to `mirror` too."""
    transcript.switch_session(session_id, project_dir)
    transcript.mirror_to(None)
    try:
        result = _fill(transcript, transcript.transcript_path(), session_id, fetch)
    finally:
        transcript.mirror_to(mirror)
    if result.code not in (HYDRATED, UNCHANGED):
        transcript.diagnostics.append(Diagnostic(result.code, result.rows, result.kind))
    return result


class Address(NamedTuple):
    """The URL of a remote copy with its placeholders, and the headers of each request."""

    url: str
    headers: Mapping[str, str] = {}
    timeout: float = 60.0  # seconds per response


def fetch_from_url(address: Address) -> Fetch:
    """Return a source for a URL."""
    _check_address(address)

    def fetch(session_id: str) -> Rows | None:
        try:
            body = _request(address, session_id, None, None)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == _NOT_FOUND:
                    return None
            raise
        if body.lstrip().startswith(b"["):
            rows: list[Mapping[str, Any]] = decode(body)
            return rows
        return [line for line in body.split(b"\n") if line.strip()]

    return fetch


def mirror_to_url(address: Address) -> Mirror:
    """Return a mirror for a URL. A failed request raises, and the transcript goes on without it."""
    _check_address(address)

    def send(session_id: str, agent_id: str | None, lines: Sequence[bytes]) -> None:
        _request(address, session_id, agent_id, b"".join(line + b"\n" for line in lines))

    return send


def fetch_from_folder(fs: Filesystem, config_home: str) -> Fetch:
    """Return a source for another folder of Claude Code; lines are passed on unchanged, one at a time."""
    sessions = ClaudeSessions(fs, config_home)

    def fetch(session_id: str) -> Rows | None:
        path = sessions.find(session_id)
        return None if path is None else _lines(fs, path)

    return fetch


def fetch_from_store(load: Callable[[Mapping[str, str]], Rows | None], project_key: str) -> Fetch:
    """Return a source for a store with the `load` method of the Claude Agent SDK."""
    return lambda session_id: load({"project_key": project_key, "session_id": session_id})


def _fill(transcript: Transcript, path: str, session_id: str, fetch: Fetch) -> Hydration:
    try:
        rows = call_remote(lambda: list(fetch(session_id) or ()))
    except ExtensionFailed as error:
        return Hydration(REMOTE_FAILED, kind=type(error.__cause__).__name__)
    if not rows:
        return Hydration(REMOTE_EMPTY)
    try:
        lines = [_line(row) for row in rows]
    except (InvalidEntry, TypeError, ValueError) as error:
        return Hydration(REMOTE_INVALID, kind=type(error).__name__)
    try:
        kept, changed = _replace(transcript.fs, path, lines, f"{transcript.home}/originals")
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


def _replace(fs: Filesystem, path: str, lines: list[bytes], originals: str) -> tuple[str | None, bool]:
    """Replace the file by one with these lines; return where the old one is saved, and whether anything changed."""
    atomic.make_folders(fs, posixpath.dirname(path), below_links=True)
    content = [line + b"\n" for line in lines]
    with held(fs, path, create=True) as file:
        old = _digest(file.chunks(0, file.size))
        if old == _digest(content):
            return None, False
        kept = _save(fs, file, old, originals) if file.size else None
        file.replace(content)
    return kept, True


def _save(fs: Filesystem, file: HeldFile, digest: str, originals: str) -> str:
    """Save a durable copy of the file, named after its digest."""
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


def _lines(fs: Filesystem, path: str) -> Iterator[bytes]:
    with RawFile(fs, path) as file:
        rest = b""
        for chunk in file.chunks():
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (line for line in whole if line)
        if rest:
            yield rest


def _check_address(address: Address) -> None:
    parts = urllib.parse.urlsplit(address.url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOCAL_HOSTS):
        raise Invalid(
            "invalid address of a remote copy: it must start with https://",
            hint="plain http is accepted for localhost only",
        )
    if "{session_id}" not in address.url:
        raise Invalid(
            "invalid address of a remote copy: it does not contain {session_id}", hint="put {session_id} into the URL"
        )


def _request(address: Address, session_id: str, agent_id: str | None, body: bytes | None) -> bytes:
    """Send one request and return the body of the response."""
    url = address.url.replace("{session_id}", urllib.parse.quote(session_id, safe=""))
    url = url.replace("{agent_id}", urllib.parse.quote(agent_id or "", safe=""))
    headers = {"Accept": f"{_MEDIA_TYPE}, application/json", **address.headers}
    if body is not None:
        headers["Content-Type"] = _MEDIA_TYPE
    request = urllib.request.Request(url, data=body, headers=headers)  # the scheme was checked
    with open_direct(request, address.timeout) as answer:
        data: bytes = answer.read()
        return data
