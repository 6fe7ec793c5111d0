"""Chat over HTTP: sending, waiting, streaming, aborting, injecting and disconnecting."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import httpx
import pytest

from event_streams import EventSource, Received
from http_rig import BEARER, Http, Json, http, served

pytestmark = [pytest.mark.anyio, pytest.mark.mission("Y13")]

MAIN = "agent:main:main"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def events_of(response: httpx.Response) -> list[Received]:
    assert response.headers["content-type"] == "text/event-stream"
    return list(EventSource().feed(response.content))


async def idle(gate: Http) -> None:
    """Wait until no turn is running or queued."""
    with anyio.fail_after(10):
        while gate.gateway.turns.live():
            await anyio.sleep(0.001)


# -- sending


async def test_a_message_is_acknowledged_when_it_is_durable(tmp_path: Path) -> None:
    """A message is acknowledged with 202 as soon as it is durable, before the reply; the turn can then be polled."""
    async with http(tmp_path) as gate:
        gate.runner.gate = anyio.Event()
        sent = await gate.ask("POST", "/v1/chat/send", body={"message": "one two"}, status=202)
        assert (sent["key"], sent["reply"], sent["repeated"]) == (MAIN, None, False)
        assert await gate.texts() == ["one two"]
        again = await gate.get("/v1/chat/turn", key="main", turn=sent["turn"])
        assert again["state"] in ("queued", "running") and again["reply"] is None
        gate.runner.gate.set()
        await idle(gate)
        done = await gate.get("/v1/chat/turn", key="main", turn=sent["turn"])
        assert done["state"] == "done" and done["reply"]["text"] == "re: one two"
        assert await gate.texts() == ["one two", "re: one two"]


async def test_who_waits_gets_the_reply(tmp_path: Path) -> None:
    """With `wait`, the response contains the complete reply."""
    async with http(tmp_path) as gate:
        sent = await gate.say("hello")
        reply = sent["reply"]
        assert (reply["text"], reply["delivered"], reply["stop"], reply["silent"]) == (
            "re: hello",
            "re: hello",
            "stop",
            False,
        )
        assert (reply["error"], reply["withheld"], reply["usage"]["input"]) == (None, None, 10)
        history = await gate.get("/v1/session/history", key="main")
        assert [entry["id"] for entry in history["entries"]] == [sent["turn"], reply["entryId"]]


async def test_who_streams_hears_the_words_as_they_come(tmp_path: Path) -> None:
    """With `stream`, the response is the turn, its deltas, and then the reply."""
    async with http(tmp_path) as gate:
        response = await gate.client.post("/v1/chat/send", json={"message": "a b", "stream": True})
        events = events_of(response)
        kinds = [event.kind for event in events]  # deltas that are not sent when the turn ends are sent as one
        assert (kinds[0], set(kinds[1:-1]), kinds[-1]) == ("turn", {"delta"}, "reply")
        assert "".join(json.loads(event.data)["text"] for event in events[1:-1]) == "re: a b"
        assert json.loads(events[-1].data)["reply"]["text"] == "re: a b"


async def test_a_message_sent_twice_is_one_message(tmp_path: Path) -> None:
    """A repeated message with the same idempotency key returns the same turn."""
    async with http(tmp_path) as gate:
        first = await gate.say("once", idempotencyKey="k1")
        again = await gate.say("once", idempotencyKey="k1")
        assert again["turn"] == first["turn"] and again["reply"]["text"] == first["reply"]["text"]
        late = await gate.ask("POST", "/v1/chat/send", body={"message": "once", "key": "main", "idempotencyKey": "k1"})
        assert late["turn"] == first["turn"]
        assert await gate.texts() == ["once", "re: once"] and len(gate.runner.asked) == 1


async def test_a_message_finds_its_conversation_by_where_it_comes_from(tmp_path: Path) -> None:
    """An inbound message is routed to the conversation of its group and topic, and its route is stored."""
    async with http(tmp_path) as gate:
        inbound = {
            "channel": "telegram",
            "peer": "-100",
            "chatType": "group",
            "thread": 7,
            "isForum": True,
            "to": "-100",
        }
        sent = await gate.post("/v1/chat/send", message="hi", inbound=inbound, wait=True)
        assert sent["key"] == "agent:main:telegram:group:-100:topic:7"
        entry = (await gate.get("/v1/session", key=sent["key"]))["entry"]
        assert entry["deliveryContext"]["to"] == "-100" and entry["chatType"] == "group"


async def test_images_are_part_of_the_message(tmp_path: Path) -> None:
    """Images are stored as part of the message; invalid data and unsupported types return 400."""
    async with http(tmp_path) as gate:
        image = {"data": PIXEL, "mimeType": "image/png"}
        await gate.say("look", images=[image])
        content = gate.runner.asked[-1].messages[-1]["content"]
        assert [block["type"] for block in content] == ["text", "image"]
        assert content[1]["mimeType"] == "image/png"
        wrong = {"message": "x", "images": [{"data": "%%%", "mimeType": "image/png"}]}
        assert (await gate.refusal("POST", "/v1/chat/send", body=wrong))[0] == 400
        wrong = {"message": "x", "images": [{"data": PIXEL, "mimeType": "text/html"}]}
        assert (await gate.refusal("POST", "/v1/chat/send", body=wrong))[0] == 400


async def test_commands_are_answered_at_once(tmp_path: Path) -> None:
    """Commands are answered without the model, and only for authorised senders."""
    async with http(tmp_path) as gate:
        first = await gate.say("hello")
        sent = await gate.post("/v1/chat/send", message="/new", key="main")
        assert sent["reply"]["stop"] == "command" and sent["sessionId"] != first["sessionId"]
        assert len(gate.runner.asked) == 1
        status = await gate.say("/status")
        assert "agent:main:main" in status["reply"]["delivered"]
        before = (await gate.get("/v1/session", key="main"))["session"]["sessionId"]
        await gate.say("/new", authorised=False)
        assert (await gate.get("/v1/session", key="main"))["session"]["sessionId"] == before


async def test_what_the_send_policy_holds_back_is_not_in_the_reply(tmp_path: Path) -> None:
    """A reply withheld by the send policy is delivered empty, with the reason in `withheld`."""
    async with http(tmp_path) as gate:
        await gate.ask("PATCH", "/v1/session", {"key": "main"}, body={"changes": {"sendPolicy": "deny"}})
        sent = await gate.say("secret")
        assert sent["reply"]["delivered"] == "" and sent["reply"]["withheld"]
        response = await gate.client.post("/v1/chat/send", json={"message": "x", "stream": True})
        assert [event.kind for event in events_of(response)] == ["turn", "reply"]


async def test_a_message_that_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    """An invalid message returns 400, and nothing is stored."""
    async with http(tmp_path) as gate:
        bad: list[Json] = [
            {},
            {"message": "  "},
            {"message": 3},
            {"message": "x", "key": "main", "inbound": {}},
            {"message": "x", "wait": True, "stream": True},
            {"message": "x", "key": ""},
            {"message": "x", "key": "agent::"},
            {"message": "x", "queue": "never"},
            {"message": "x", "inbound": {"chatType": "seance", "channel": "a", "peer": "b"}},
            {"message": "x", "inbound": {"unknown": 1}},
            {"message": "x", "mesage": "y"},
        ]
        for body in bad:
            assert (await gate.refusal("POST", "/v1/chat/send", body=body))[0] == 400, body
        assert "mesage" in (await gate.refusal("POST", "/v1/chat/send", body=bad[-1]))[1]
        assert (await gate.get("/v1/sessions"))["count"] == 0


@pytest.mark.promise("P39")
async def test_more_than_so_many_waiting_messages_are_refused(tmp_path: Path) -> None:
    """A message beyond the limit of queued turns returns 429 with Retry-After."""
    async with http(tmp_path, {"limits": {"queuedTurns": 2}}) as gate:
        gate.runner.gate = anyio.Event()
        for _ in range(3):
            await gate.ask("POST", "/v1/chat/send", body={"message": "x"}, status=202)
        response = await gate.client.post("/v1/chat/send", json={"message": "x"})
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
        gate.runner.gate.set()
        await idle(gate)


# -- aborting


async def test_a_turn_is_stopped_and_says_so(tmp_path: Path) -> None:
    """Aborting stops one turn, or the running turn and all queued turns; the reply says "aborted"."""
    async with http(tmp_path) as gate:
        gate.runner.gate = anyio.Event()
        bodies = [{"message": f"m {number}"} for number in range(3)]
        turns = [(await gate.ask("POST", "/v1/chat/send", body=body, status=202))["turn"] for body in bodies]
        assert (await gate.post("/v1/chat/abort", key="main", turn=turns[1]))["turns"] == [turns[1]]
        stopped = await gate.post("/v1/chat/abort", key="main")
        assert set(stopped["turns"]) >= {turns[0], turns[2]}
        await idle(gate)
        told = await gate.get("/v1/chat/turn", key="main", turn=turns[0])
        assert told["reply"]["stop"] == "aborted"
        assert (await gate.post("/v1/chat/abort", key="main"))["turns"] == []
        assert (await gate.refusal("POST", "/v1/chat/abort", body={"key": "none"}))[0] == 404
        assert (await gate.refusal("GET", "/v1/chat/turn", {"key": "main", "turn": "none"}))[0] == 404


# -- injecting


async def test_what_is_injected_is_in_the_conversation_and_unanswered(tmp_path: Path) -> None:
    """An injected message is stored with its role, gets no reply, and is stored once per idempotency key."""
    async with http(tmp_path) as gate:
        session = (await gate.say("hello"))["sessionId"]
        events = await gate.gateway.hub.subscribe(session)
        with events:
            await anext(events)
            first = await gate.post("/v1/chat/inject", key="main", message="from outside", idempotencyKey="i")
            assert (await anext(events)).data["id"] == first["entryId"]
        again = await gate.post("/v1/chat/inject", key="main", message="from outside", idempotencyKey="i")
        assert again["entryId"] == first["entryId"] and again["repeated"]
        await gate.post("/v1/chat/inject", key="main", message="I said", role="user")
        await gate.post("/v1/chat/inject", key="main", message="a note", role="note")
        context = (await gate.get("/v1/session/context", key="main"))["messages"]
        assert [message["role"] for message in context] == ["user", "assistant", "assistant", "user", "custom"]
        assert len(gate.runner.asked) == 1
        assert (await gate.refusal("POST", "/v1/chat/inject", body={"key": "none", "message": "x"}))[0] == 404
        wrong = {"key": "main", "message": "x", "role": "system"}
        assert (await gate.refusal("POST", "/v1/chat/inject", body=wrong))[0] == 400


# -- through a real server


def wait_for(client: httpx.Client, turn: Json) -> Json:
    """Return the turn when it is done."""
    deadline = time.monotonic() + 10
    while True:
        answer = client.get("/v1/chat/turn", params={"key": turn["key"], "turn": turn["turn"]})
        assert answer.status_code == 200, answer.text
        told: Json = answer.json()
        if told["state"] == "done":
            return told
        assert time.monotonic() < deadline
        time.sleep(0.01)


def send_and_go_away(address: str, body: Json) -> None:
    """Send a message and disconnect, retrying on 429 because a closed connection is released with a short delay."""
    deadline = time.monotonic() + 20
    while True:
        with httpx.Client(base_url=address, headers=BEARER, timeout=httpx.Timeout(10, read=0.2)) as client:
            try:
                refused = client.post("/v1/chat/send", json=body)
            except httpx.ReadTimeout:
                return
        assert refused.status_code == 429 and time.monotonic() < deadline, refused.text
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["wait", "stream"])
def test_who_goes_away_stops_nothing(tmp_path: Path, how: str) -> None:
    """A turn continues after its client disconnects, and the connection is released."""
    with served(tmp_path, {"limits": {"connections": 4}}) as (address, runner):
        gate = anyio.Event()
        runner.gate = gate
        with httpx.Client(base_url=address, headers=BEARER, timeout=10) as client:
            for number in range(6):  # more than the limit of connections
                body = {"message": "a b", "key": f"hook:h{number}", how: True}
                send_and_go_away(address, body)
            deadline = time.monotonic() + 20
            while "entries" not in (history := client.get("/v1/session/history", params={"key": "hook:h5"}).json()):
                assert time.monotonic() < deadline  # the message may be stored after its client disconnects
                time.sleep(0.01)
            runner.gate = None
            gate.set()
            turn = {"key": "hook:h5", "turn": history["entries"][0]["id"]}
            assert wait_for(client, turn)["reply"]["text"] == "re: a b"


def test_turns_are_read_and_aborted_while_all_chats_are_taken(tmp_path: Path) -> None:
    """A client that waits for a reply takes a chat. Reading and aborting need none."""
    with served(tmp_path, {"limits": {"connections": 1}}) as (address, runner), ThreadPoolExecutor(1) as pool:
        runner.gate = anyio.Event()
        with httpx.Client(base_url=address, headers=BEARER, timeout=10) as client:
            waiting = pool.submit(
                httpx.post, f"{address}/v1/chat/send", json={"message": "a", "wait": True}, headers=BEARER, timeout=10
            )
            deadline = time.monotonic() + 10
            while not runner.asked:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert client.post("/v1/chat/send", json={"message": "b"}).status_code == 429
            entries = client.get("/v1/session/history", params={"key": "main"}).json()["entries"]
            told = client.get("/v1/chat/turn", params={"key": "main", "turn": entries[0]["id"]})
            assert told.json()["state"] == "running"
            assert client.post("/v1/chat/abort", json={"key": "main"}).json()["turns"] == [entries[0]["id"]]
            assert waiting.result().json()["reply"]["stop"] == "aborted"


def test_words_and_entries_arrive_live(tmp_path: Path) -> None:
    """Deltas arrive before the durable entries; Last-Event-ID returns the missed entries."""
    with served(tmp_path) as (address, runner), httpx.Client(base_url=address, headers=BEARER, timeout=10) as client:
        first = client.post("/v1/chat/send", json={"message": "one", "wait": True}).json()
        session = first["sessionId"]
        source = EventSource()
        with client.stream("GET", "/v1/events", params={"session": session}) as stream:
            pieces = stream.iter_raw()
            heard = list(source.feed(next(pieces)))
            gate = runner.gate = anyio.Event()
            client.post("/v1/chat/send", json={"message": "two"})
            while not any(event.kind == "delta" for event in heard):
                heard += source.feed(next(pieces))
            runner.gate = None
            gate.set()
            assert client.get("/healthz").status_code == 200  # wakes the event loop so that it notices the gate
            while sum(event.kind == "entry" for event in heard) < 2:
                heard += source.feed(next(pieces))
        kinds = [event.kind for event in heard]
        assert kinds.index("delta") < len(kinds) - 1 - kinds[::-1].index("entry")
        texts = [
            json.loads(event.data)["data"]["message"]["content"][0]["text"] for event in heard if event.kind == "entry"
        ]
        assert texts == ["two", "re: two"]
        behind = {"Last-Event-ID": f"{session}:1"}
        again = EventSource()
        with client.stream("GET", "/v1/events", params={"key": "main"}, headers=behind) as stream:
            heard = []
            for piece in stream.iter_raw():
                heard += [event for event in again.feed(piece) if event.kind == "entry"]
                if len(heard) == 3:
                    break
        assert [event.last_id for event in heard] == [f"{session}:{number}" for number in (2, 3, 4)]


async def test_events_that_cannot_be_followed_are_refused(tmp_path: Path) -> None:
    """Invalid event requests are rejected before the stream starts."""
    async with http(tmp_path) as gate:
        session = (await gate.say("x"))["sessionId"]
        for status, query in (
            (404, {"session": "none"}),
            (404, {"key": "none"}),
            (400, {"session": session, "key": "main"}),
            (400, {"session": "../x"}),
        ):
            assert (await gate.refusal("GET", "/v1/events", query))[0] == status, query
        headers = {"Last-Event-ID": "nonsense"}
        response = await gate.client.get("/v1/events", params={"session": session}, headers=headers)
        assert response.status_code == 400
