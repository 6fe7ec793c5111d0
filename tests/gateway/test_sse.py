"""The encoding of server-sent events and the response that sends them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_streams import EventSource, Received
from sessile.errors import Invalid
from sessile.gateway.events import Event, Hub
from sessile.gateway.http.streams import EventStream, comment, encode_event, frame, retry_after
from sessions import begun, say, store_at

LINE_ENDS = st.sampled_from(
    ["\n", "\r", "\r\n", "\n\n", "\r\r", "\n\r", "data: x\n\n", "\nid: 7\n", "\x85", "\u2028", "\0"]
)
TEXTS = st.lists(LINE_ENDS | st.text(max_size=8), max_size=8).map("".join)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def received(stream: bytes) -> list[Received]:
    return list(EventSource().feed(stream))


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_data_arrives_as_it_was_and_nothing_else_does(texts: list[str]) -> None:
    """Any text arrives as the data of one event, with normalised line endings."""
    stream = b"".join(frame(text, event="entry", event_id=f"s:{number}") for number, text in enumerate(texts))
    expected = [text.replace("\r\n", "\n").replace("\r", "\n") for text in texts]
    assert received(stream) == [Received("entry", text, f"s:{number}") for number, text in enumerate(expected)]


@given(st.dictionaries(TEXTS, TEXTS | st.integers() | st.none(), max_size=3), TEXTS)
def test_an_event_of_the_hub_arrives_with_its_data(data: dict[str, Any], session_id: str) -> None:
    """An encoded event keeps its kind, id and data, whatever text it contains."""
    (event,) = received(encode_event(Event("s1:4", session_id, "delta", data)))
    assert (event.kind, event.last_id) == ("delta", "s1:4")
    assert json.loads(event.data) == {"sessionId": session_id, "data": data}


@given(TEXTS)
def test_a_comment_is_passed_over(text: str) -> None:
    """A comment never produces an event."""
    source = EventSource()
    assert not list(source.feed(comment(text)))
    assert source.comments and not source.last_id


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\0b", "\r\n"])
def test_an_id_or_a_name_with_a_line_end_is_refused(bad: str) -> None:
    """An id or event name with a line ending or NUL is rejected."""
    with pytest.raises(Invalid):
        frame("x", event_id=bad)
    with pytest.raises(Invalid):
        frame("x", event=bad)


def test_what_json_cannot_hold_is_sent_all_the_same() -> None:
    """Infinite numbers become null, and lone surrogates are escaped."""
    (event,) = received(encode_event(Event(None, "s1", "entry", {"a": float("inf"), "b": "\ud800", "c": 1})))
    assert json.loads(event.data)["data"] == {"a": None, "b": "\ud800", "c": 1}
    (event,) = received(encode_event(Event(None, "s1", "entry", {"a": float("-inf")})))
    assert json.loads(event.data)["data"] == {"a": None}


def test_an_event_without_id_keeps_the_last_one_and_an_empty_id_clears_it() -> None:
    """An event without an id keeps the last id, and an empty id clears it."""
    source = EventSource()
    list(source.feed(frame("x", event_id="s:1") + frame("y")))
    assert source.last_id == "s:1"
    list(source.feed(frame("z", event_id="")))
    assert source.last_id == ""


def test_a_client_is_told_when_to_come_back() -> None:
    """The retry field sets the client's reconnection time."""
    source = EventSource()
    assert not list(source.feed(retry_after(1500)))
    assert source.retry == 1500


class Wire:
    """The server's side of one connection."""

    def __init__(self, *, stuck: bool = False) -> None:
        self.sent: list[Any] = []
        self.gone = anyio.Event()
        self.source = EventSource()
        self.received: list[Received] = []
        self._stuck = stuck

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body":
            if self._stuck:
                await anyio.sleep_forever()
            self.received += self.source.feed(message["body"])


@pytest.mark.anyio
async def test_a_response_sends_events_and_breaks_silence(tmp_path: Path) -> None:
    """The response sends headers, retry, events and keep-alive comments; a disconnect ends the subscription."""
    store = store_at(tmp_path)
    session = begun(store)
    hub = Hub(lambda name: store.open(name, readonly=True), store.fs.lstat, interval=0.02, clients=1)
    async with anyio.create_task_group() as group:
        group.start_soon(hub.run)
        wire = Wire()
        stream = EventStream(await hub.subscribe(session.id), keep_alive=0.05)
        async with anyio.create_task_group() as answering:
            answering.start_soon(stream, {}, wire.receive, wire.send)
            say(session, "hello")
            with anyio.fail_after(5):
                while not wire.source.comments or len(wire.received) < 2:
                    await anyio.sleep(0.01)
            wire.gone.set()
        await hub.subscribe(session.id)  # the only slot is free again
        group.cancel_scope.cancel()
    assert dict(wire.sent[0]["headers"])[b"content-type"] == b"text/event-stream"
    assert wire.source.retry
    assert [(event.kind, event.last_id) for event in wire.received] == [
        ("notice", f"{session.id}:0"),
        ("entry", f"{session.id}:1"),
    ]
    assert json.loads(wire.received[1].data)["data"]["message"]["content"] == "hello"
    session.close()


@pytest.mark.anyio
async def test_a_client_that_takes_nothing_is_cut_off(tmp_path: Path) -> None:
    """A client that stops reading is disconnected after the timeout."""
    store = store_at(tmp_path)
    session = begun(store)
    hub = Hub(lambda name: store.open(name, readonly=True), store.fs.lstat, clients=1)
    async with anyio.create_task_group() as group:
        group.start_soon(hub.run)
        wire = Wire(stuck=True)
        with anyio.fail_after(5):
            await EventStream(await hub.subscribe(session.id), timeout=0.05)({}, wire.receive, wire.send)
            await hub.subscribe(session.id)
        group.cancel_scope.cancel()
    session.close()


@pytest.mark.anyio
async def test_a_response_ends_behind_the_last_event(tmp_path: Path) -> None:
    """When the hub closes, the client gets a "closing" notice and the response is completed."""
    store = store_at(tmp_path)
    session = begun(store)
    hub = Hub(lambda name: store.open(name, readonly=True), store.fs.lstat)
    wire = Wire()
    async with anyio.create_task_group() as group:
        group.start_soon(hub.run)
        stream = EventStream(await hub.subscribe(session.id))
        async with anyio.create_task_group() as answering:
            answering.start_soon(stream, {}, wire.receive, wire.send)
            with anyio.fail_after(5):
                while not wire.received:
                    await anyio.sleep(0.01)
            hub.close()
        group.cancel_scope.cancel()
    assert json.loads(wire.received[-1].data)["data"]["notice"] == "closing"
    assert wire.source.last_id == f"{session.id}:0"
    assert wire.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    session.close()
