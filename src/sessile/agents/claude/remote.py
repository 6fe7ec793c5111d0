"""Remote copies of sessions: where the rows of one are fetched from, and where new ones are sent to.

A source is a callable that gives the rows of a session, or `None` if it does not know it; a mirror takes the rows that were
written. Made here are those for a URL, for another folder of Claude Code (a mounted copy), and for a store of the Claude Agent
SDK. Anything else is a function of the caller's.

A URL names the session by `{session_id}`. `GET` answers with one row a line, or with a list of rows; 404 is a session that it
does not know. New rows are sent by `POST`, one a line, and `{agent_id}` in a query or path is the agent that wrote them. Plain
HTTP is for this machine only: rows hold whatever was said. Only the named host is connected to, and no redirect is followed.
"""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.agents.claude.sdk import ClaudeSessions
from sessile.core.codec import decode
from sessile.errors import Invalid
from sessile.storage.base import Filesystem
from sessile.storage.session_bytes import RawFile
from sessile.vendors.clients import open_direct

Rows = Iterable[Mapping[str, Any] | bytes]

Fetch = Callable[[str], Rows | None]
"""Gives the rows of a session in order, as values or as lines; `None` if the remote side does not know it."""

Mirror = Callable[[str, str | None, Sequence[bytes]], None]
"""Takes the rows that were written: the session id, the id of the agent or None, and the lines."""

_HERE = ("localhost", "127.0.0.1", "::1")
_MEDIA_TYPE = "application/x-ndjson"
_UNKNOWN = 404


class Address(NamedTuple):
    """Where a remote side is: the URL with its placeholders, and what each request says besides."""

    url: str
    headers: Mapping[str, str] = {}
    timeout: float = 60.0  # seconds for each answer


def fetch_from_url(address: Address) -> Fetch:
    """A source behind a URL."""
    _checked(address)

    def fetch(session_id: str) -> Rows | None:
        try:
            body = _ask(address, session_id, None, None)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == _UNKNOWN:
                    return None
            raise
        if body.lstrip().startswith(b"["):
            rows: list[Mapping[str, Any]] = decode(body)
            return rows
        return [line for line in body.split(b"\n") if line.strip()]

    return fetch


def mirror_to_url(address: Address) -> Mirror:
    """A mirror behind a URL; a request that fails raises, and whoever writes goes on without it."""
    _checked(address)

    def send(session_id: str, agent_id: str | None, lines: Sequence[bytes]) -> None:
        _ask(address, session_id, agent_id, b"".join(line + b"\n" for line in lines))

    return send


def fetch_from_folder(fs: Filesystem, config_home: str) -> Fetch:
    """A source that is the folder of another Claude Code; its lines come as they are, one at a time."""
    sessions = ClaudeSessions(fs, config_home)

    def fetch(session_id: str) -> Rows | None:
        path = sessions.find(session_id)
        return None if path is None else _lines(fs, path)

    return fetch


def fetch_from_store(load: Callable[[Mapping[str, str]], Rows | None], project_key: str) -> Fetch:
    """A source that is a store with the `load` of the Claude Agent SDK, called with the key of the session."""
    return lambda session_id: load({"project_key": project_key, "session_id": session_id})


def _lines(fs: Filesystem, path: str) -> Iterator[bytes]:
    with RawFile(fs, path) as file:
        rest = b""
        for chunk in file.chunks():
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (line for line in whole if line)
        if rest:
            yield rest


def _checked(address: Address) -> None:
    parts = urllib.parse.urlsplit(address.url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _HERE):
        raise Invalid(
            "the address of a remote side must begin with https://",
            hint="plain http is accepted for localhost only: what was said would be open to anybody on the way",
        )
    if "{session_id}" not in address.url:
        raise Invalid("the address of a remote side does not name the session", hint="put {session_id} into the URL")


def _ask(address: Address, session_id: str, agent_id: str | None, body: bytes | None) -> bytes:
    """One request; the answer as it is."""
    url = address.url.replace("{session_id}", urllib.parse.quote(session_id, safe=""))
    url = url.replace("{agent_id}", urllib.parse.quote(agent_id or "", safe=""))
    headers = {"Accept": f"{_MEDIA_TYPE}, application/json", **address.headers}
    if body is not None:
        headers["Content-Type"] = _MEDIA_TYPE
    request = urllib.request.Request(url, data=body, headers=headers)  # the scheme was looked at
    with open_direct(request, address.timeout) as answer:
        data: bytes = answer.read()
        return data
