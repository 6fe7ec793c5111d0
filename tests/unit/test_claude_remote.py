"""Sources and mirrors of remote copies: URLs, folders of another Claude Code, stores of the SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from claude_rows import CONFIG, FOLDER, OTHER, PATH, SESSION, rows_in, transcript, user
from figures import measured
from sessile.agents.claude.remote import (
    Address,
    fetch_from_folder,
    fetch_from_store,
    fetch_from_url,
    hydrate_session,
    mirror_to_url,
)
from sessile.agents.claude.transcript import Diagnostic
from sessile.errors import Invalid
from sessile.storage import atomic
from sessile.storage.memory import MemoryFilesystem

pytestmark = pytest.mark.mission("C9")

LINES = b'{"type": "user",  "uuid":"x"}\n\n{"type":"tag"}\n'


class Remote:
    """The answers of the remote side, and the requests it got."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body
        self.elsewhere: str | None = None
        self.asked: list[tuple[str, str, str | None, bytes]] = []
        self.url = ""


@contextmanager
def remote(status: int = 200, body: bytes = LINES) -> Iterator[Remote]:
    """Start a local server with one answer for everything."""
    side = Remote(status, body)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            said = (self.command, self.path, self.headers.get("Authorization"), self.rfile.read(length))
            side.asked.append(said)
            self.send_response(side.status)
            self.send_header("Content-Length", str(len(side.body)))
            if side.elsewhere is not None:
                self.send_header("Location", side.elsewhere)
            self.end_headers()
            self.wfile.write(side.body)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        side.url = f"http://127.0.0.1:{server.server_port}/sessions/{{session_id}}?agent={{agent_id}}"
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield side
        server.shutdown()
        thread.join()


def content(writer: Any) -> bytes:
    return atomic.read_all(writer.fs, PATH)


def test_a_session_is_filled_from_a_url_and_new_rows_go_there() -> None:
    """Lines are copied unchanged; only after the attempt new rows are posted, with the agent that wrote them."""
    with remote() as side:
        address = Address(side.url, {"Authorization": "Bearer t"})
        writer = transcript(session_id=OTHER)
        writer.record_transcript([user("before")])
        hydration = hydrate_session(writer, SESSION, fetch_from_url(address), mirror=mirror_to_url(address))
        assert (hydration.code, hydration.rows) == ("hydrated", 2)
        assert content(writer) == LINES.replace(b"\n\n", b"\n")
        assert side.asked == [("GET", f"/sessions/{SESSION}?agent=", "Bearer t", b"")]
        writer.record_transcript([user("A")])
        writer.record_sidechain_transcript([user("S")], "a1")
        (_, first, second) = side.asked
        assert (first[:3], rows_in(first[3])[0]["uuid"]) == (
            ("POST", f"/sessions/{SESSION}?agent=", "Bearer t"),
            user("A")["uuid"],
        )
        assert second[1] == f"/sessions/{SESSION}?agent=a1"


def test_a_list_of_rows_is_an_answer_too() -> None:
    """A server may answer with one JSON list."""
    with remote(body=json.dumps([user("A"), user("B")]).encode()) as side:
        writer = transcript(session_id=OTHER)
        assert hydrate_session(writer, SESSION, fetch_from_url(Address(side.url))).rows == 2
        assert rows_in(content(writer)) == [user("A"), user("B")]


@pytest.mark.parametrize(
    ("status", "body", "code", "kind"),
    [
        (404, b"who?", "remote_empty", None),
        (200, b"", "remote_empty", None),
        (500, b"secret text", "remote_failed", "HTTPError"),
        (403, b"secret text", "remote_failed", "HTTPError"),
        (200, b"[secret", "remote_failed", None),
    ],
)
def test_what_goes_wrong_is_told_by_a_code(status: int, body: bytes, code: str, kind: str | None) -> None:
    """The local file does not change, and no diagnostic contains anything of the answer."""
    with remote(status, body) as side:
        writer = transcript()
        writer.record_transcript([user("A")])
        before = content(writer)
        hydration = hydrate_session(writer, SESSION, fetch_from_url(Address(side.url)))
        assert (hydration.code, bool(hydration)) == (code, False)
        assert kind in (None, hydration.kind)
        assert content(writer) == before
        assert [each.code for each in writer.diagnostics] == [code]
        assert "secret" not in repr(writer.diagnostics)


@pytest.mark.promise("P42")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies of the environment are not used either: both would get our credentials and the rows."""
    with remote(status) as side, remote() as other:
        side.elsewhere = other.url.partition("{")[0] + "x"
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, other.url.partition("/sessions")[0])
        monkeypatch.setenv("no_proxy", "")
        address = Address(side.url, {"Authorization": "Bearer secret"})
        writer = transcript()
        hydration = hydrate_session(writer, SESSION, fetch_from_url(address))
        assert (hydration.code, hydration.kind) == ("remote_failed", "HTTPError")
        assert len(side.asked) == 1 and other.asked == []
    measured("P42", "redirects to another host", tried=1, followed=0)


def test_nobody_there_is_told_by_a_code_and_stops_no_writer() -> None:
    """A missing remote side fails the hydration and later the mirror, but never a call that records."""
    with remote() as side:
        address = Address(side.url, timeout=5)
    writer = transcript(session_id=OTHER)
    hydrate_session(writer, SESSION, fetch_from_url(address), mirror=mirror_to_url(address))
    writer.record_transcript([user("A")])
    assert [each.code for each in writer.diagnostics] == ["remote_failed", "mirror_failed"]
    assert writer.diagnostics[1] == Diagnostic("mirror_failed", 1, "URLError")
    assert len(rows_in(content(writer))) == 1


@pytest.mark.parametrize("url", ["http://example.org/{session_id}", "file:///{session_id}", "https://example.org/all"])
def test_an_address_that_is_open_to_all_or_names_no_session_is_refused(url: str) -> None:
    """Rows use TLS or stay on this machine."""
    for make in (fetch_from_url, mirror_to_url):
        with pytest.raises(Invalid, match="address"):
            make(Address(url))


def test_a_session_is_filled_from_the_folder_of_another_claude_code() -> None:
    """Lines are copied byte for byte, including a torn last one; a missing session is an empty answer."""
    fs = MemoryFilesystem()
    data = b'{"type": "user",  "uuid":"x"}\n{"type":"user","uuid":"y"}'
    atomic.make_folders(fs, f"/backup{FOLDER.removeprefix(CONFIG)}")
    atomic.replace(fs, f"/backup{PATH.removeprefix(CONFIG)}", (data,))
    writer = transcript(fs, session_id=OTHER)
    fetch = fetch_from_folder(fs, "/backup")
    assert hydrate_session(writer, SESSION, fetch).rows == 2
    assert content(writer) == data + b"\n"
    assert hydrate_session(writer, OTHER, fetch).code == "remote_empty"


def test_a_session_is_filled_from_a_store_of_the_sdk() -> None:
    """The store gets its own key, and `None` is an empty answer."""
    kept = {(FOLDER, SESSION): [user("A")]}
    fetch = fetch_from_store(lambda key: kept.get((key["project_key"], key["session_id"])), FOLDER)
    writer = transcript(session_id=OTHER)
    assert hydrate_session(writer, SESSION, fetch).rows == 1
    assert hydrate_session(writer, OTHER, fetch).code == "remote_empty"
