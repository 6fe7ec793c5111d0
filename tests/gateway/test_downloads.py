"""File responses: complete, failed and abandoned downloads, and safe file names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import anyio
import pytest
from anyio import to_thread
from hypothesis import given
from hypothesis import strategies as st

from sessile.errors import StorageFailure
from sessile.gateway.http.streams import Download, disposition

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Client:
    """A client that records messages, and may disconnect or stop reading after a number of them."""

    def __init__(self, leaves_after: int | None = None, stalls_after: int | None = None) -> None:
        self.sent: list[dict[str, Any]] = []
        self._leaves_after, self._stalls_after = leaves_after, stalls_after
        self._gone = anyio.Event()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def is_whole(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False

    async def receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self._stalls_after is not None and len(self.sent) >= self._stalls_after:
            await anyio.sleep_forever()
        self.sent.append(message)
        if self._leaves_after is not None and len(self.sent) >= self._leaves_after:
            self._gone.set()
            await anyio.sleep(0.05)


class File:
    """A source of pieces that records when it is closed."""

    def __init__(self, pieces: int, size: int = 300_000, fails_at: int | None = None) -> None:
        self.made = 0
        self.closed = False
        self._pieces, self._size, self._fails_at = pieces, size, fails_at

    def read(self) -> Iterator[bytes]:
        for number in range(self._pieces):
            if number == self._fails_at:
                raise StorageFailure("the disk is gone")
            self.made += 1
            yield bytes([number % 256]) * self._size

    def close(self) -> None:
        self.closed = True


async def sent(file: File, client: Client, method: str = "GET", **options: Any) -> None:
    """Answer one request with a file."""
    with ExitStack() as opened:
        opened.callback(file.close)
        response = Download(to_thread.run_sync, file.read(), opened.pop_all(), "text/x", {"a": "b"}, **options)
    with anyio.fail_after(10):
        await response({"method": method}, client.receive, client.send)


async def test_a_file_comes_whole_and_is_closed() -> None:
    """A file is sent completely and in order, small pieces are combined, and the file is closed."""
    file, client = File(1_000, size=1_000), Client()
    await sent(file, client)
    assert client.body == b"".join(file.read()) and client.is_whole and file.closed
    assert client.sent[0]["headers"] == [(b"content-type", b"text/x"), (b"a", b"b")]
    assert len(client.sent) < 10


async def test_head_has_no_body_and_makes_little() -> None:
    """HEAD sends no body and reads only the first piece, which may fail."""
    file, client = File(100), Client()
    await sent(file, client, "HEAD")
    assert client.body == b"" and client.is_whole and file.closed and file.made == 1


async def test_what_fails_before_the_first_piece_is_an_error_and_nothing_was_sent() -> None:
    """A failure before the first piece is raised before anything is sent."""
    file, client = File(3, fails_at=0), Client()
    with pytest.raises(StorageFailure):
        await sent(file, client)
    assert client.sent == [] and file.closed


async def test_what_fails_later_is_never_taken_for_the_whole() -> None:
    """After a later failure, the response is never marked as complete."""
    file, client = File(9, fails_at=2), Client()
    with pytest.raises(BaseExceptionGroup):
        await sent(file, client)
    assert client.body and not client.is_whole and file.closed


async def test_whoever_leaves_ends_the_making() -> None:
    """A disconnected client stops the download."""
    file, client = File(1_000), Client(leaves_after=3)
    await sent(file, client)
    assert file.made < 10 and file.closed and not client.is_whole


async def test_whoever_takes_nothing_is_given_up() -> None:
    """A client that stops reading times out, and the file is closed."""
    file, client = File(1_000), Client(stalls_after=3)
    await sent(file, client, timeout=0.05)
    assert file.made < 10 and file.closed and not client.is_whole


@given(st.text())
def test_a_name_is_safe_whatever_it_was(name: str) -> None:
    """Any title becomes an ASCII header with one safe file name."""
    told = disposition(name, "html")
    told.encode("ascii")
    plain = told.partition('filename="')[2].partition('"')[0]
    assert (
        plain.endswith(".html") and not plain.startswith((".", "-", " ")) and not set(plain) & set('/\\:*?"<>|\r\n\0')
    )
    assert told.count('"') == 2 and "\n" not in told and "\r" not in told and len(told) < 1_200
