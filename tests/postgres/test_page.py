"""The gateway on a database, over HTTP, returns the same data for the page as on a folder with the same sessions."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from builders import assistant, user
from event_streams import EventSource, Received
from http_rig import BEARER, Http, http, served
from page_sessions import damaged_story, long_story, told_story
from sessile import Store, sync
from sessile.storage.layout import Source
from view_rig import PNG, Household, furnished, settled

pytestmark = [pytest.mark.anyio, pytest.mark.mission("B8")]

ROOT = "/sessile:postgresql"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def home(tmp_path: Path) -> Household:
    """Sessions with branches, tools, labels, compactions, an image and damage."""
    home = furnished(tmp_path)
    for tell in (told_story, long_story, damaged_story):
        tell(home.own)
    with home.begin(home.own, "Pictures", cwd="/work/web") as session:
        image = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(PNG).decode()}
        session.append_message({"role": "user", "content": [{"type": "text", "text": "look"}, image]})
        session.append_message(assistant("I see"))
    return home


@pytest.fixture
def url(home: Household, postgres_url: str) -> str:
    """The same sessions in a database."""
    with Store(postgres_url) as store:
        assert {done.state for done in sync(home.own, store)} == {"new"}
    return postgres_url


@asynccontextmanager
async def on_database(url: str, sources: Sequence[Source] = ()) -> AsyncIterator[Http]:
    """A gateway on a database."""
    with Store(url, durability="process") as store:
        async with http(Path("/nowhere"), store=store, sources=sources) as client:
            yield client


@asynccontextmanager
async def on_folder(home: Household) -> AsyncIterator[Http]:
    """A gateway on a folder."""
    async with http(home.root / "own", sources=home.sources) as client:
        yield client


async def answers(client: Http, home: Household) -> dict[str, Any]:
    """Return the page's requests and their answers, without the location of the store."""
    await settled(client)
    found: dict[str, Any] = {}

    async def ask(path: str, **query: Any) -> Any:
        response = await client.client.get(path, params=query)
        text = response.text.replace(str(home.root / "own"), "ROOT").replace(ROOT, "ROOT")
        found[f"{path} {query}"] = (response.status_code, response.headers["content-type"], text)
        return response

    for query in ({}, {"all": "true"}, {"has": "branch"}, {"sort": "size"}, {"project": "/work/web"}):
        await ask("/v1/view/sessions", **query)
    for query in ({"q": "zebra", "in": "tool_result"}, {"q": "albatross"}, {"q": "nobodysaidthis"}):
        await ask("/v1/view/search", **query)
    await ask("/v1/view/overview")
    await ask("/v1/view/stats", since="2020-01-01", by="week")
    for info in (*home.own.list_all(), *home.pi.list_all()):
        told = (await ask("/v1/view/session", id=info.id)).json()
        await ask("/v1/view/outline", id=info.id)
        await ask("/v1/view/entries", id=info.id, **{"from": 0, "to": 50})
        await ask("/v1/view/find", id=info.id, q="a")
        await ask("/v1/view/share", id=info.id)
        await ask("/v1/view/export", id=info.id, form="md")
        await ask("/v1/view/export", id=info.id, form="jsonl")
        for number in range(told["total"]):
            await ask("/v1/view/raw", id=info.id, number=number)
            await ask("/v1/view/saw", id=info.id, at=number)
    return found


async def test_the_page_is_told_the_same_of_a_database_as_of_a_folder(home: Household, url: str) -> None:
    """Lists, facets, outlines, entries, contexts, searches, statistics and exports are the same."""
    async with on_folder(home) as client:
        expected = await answers(client, home)
    async with on_database(url, home.sources) as client:
        found = await answers(client, home)
    assert sum(status == 200 for status, *_ in expected.values()) > 120
    assert [asked for asked in expected if found[asked] != expected[asked]] == []


async def test_pictures_come_from_the_database(home: Household, url: str) -> None:
    """Images are served byte for byte from the database, without the original folder."""
    with Store(url) as store:
        (session_id,) = [info.id for info in store.list("/work/web")]
        with store.open(session_id, readonly=True) as session:
            digest = session.get_entries()[1].stored["message"]["content"][1]["data"].rpartition(":")[2]
    async with on_database(url) as client:
        response = await client.client.get("/v1/view/blob", params={"id": session_id, "digest": digest})
        assert (response.status_code, response.content) == (200, PNG)


async def test_what_the_page_changes_is_in_the_database(home: Household, url: str) -> None:
    """Names, labels, tags, pins, branches and forks are stored, and the next list shows them."""
    (info,) = [info for info in home.own.list_all() if info.title == "Webhook retries"]
    async with on_database(url) as client:
        await client.get("/v1/view/sessions")
        await client.post("/v1/view/session/rename", id=info.id, title="Renamed")
        await client.post("/v1/view/session/tag", id=info.id, tag="drawer")
        await client.post("/v1/view/session/pin", id=info.id)
        await client.post("/v1/view/session/label", id=info.id, number=0, label="start")
        leaf = (await client.post("/v1/view/session/branch", id=info.id, number=1))["leaf"]
        fork = await client.post("/v1/view/session/fork", id=info.id, number=1, cwd="/work/fork")
        cards = {card["id"]: card for card in (await client.get("/v1/view/sessions"))["rows"]}
    card = cards[info.id]
    assert (card["title"], card["tag"], card["pinned"]) == ("Renamed", "drawer", True)
    assert cards[fork["id"]]["cwd"] == "/work/fork"
    with Store(url) as store, store.open(info.id, readonly=True) as session:
        assert (session.title, session.tag, session.leaf_id) == ("Renamed", "drawer", leaf)
        assert "start" in session.get_labels().values()


async def test_conversations_go_on_in_the_database(postgres_url: str) -> None:
    """Conversations are listed, read, reset, deleted and restored, and a second gateway continues them."""
    async with on_database(postgres_url) as client:
        first = await client.say("hello aardvark")
        assert first["reply"]["text"] == "re: hello aardvark"
        await client.say("and again", key="hook:ci")
        assert [row["key"] for row in (await client.get("/v1/sessions"))["sessions"]] == [
            "agent:main:hook:ci",
            "agent:main:main",
        ]
        reset = await client.post("/v1/session/reset", key="main")
        assert reset["sessionId"] != first["sessionId"]
        await client.say("anew")
        assert await client.texts() == ["anew", "re: anew"]
        deleted = await client.ask("DELETE", "/v1/session", {"key": "hook:ci"})
        assert len((await client.get("/v1/sessions"))["sessions"]) == 1
        await client.post("/v1/session/undo", token=deleted["token"])
        status = await client.get("/v1/status")
        assert (status["conversations"], status["root"]) == (2, client.gateway.store.name)
    async with on_database(postgres_url) as client:
        assert await client.texts() == ["anew", "re: anew"]
        assert await client.texts("hook:ci") == ["and again", "re: and again"]
        await client.say("on")
        assert (await client.texts())[-1] == "re: on"


def test_words_and_entries_arrive_live_also_those_of_others(postgres_url: str) -> None:
    """Over a real connection, deltas, entries and the appends of another process arrive."""
    with (
        Store(postgres_url, durability="process") as store,
        served(Path("/nowhere"), store=store) as (address, _),
        httpx.Client(base_url=address, headers=BEARER, timeout=10) as client,
        Store(postgres_url) as other,
    ):
        session_id = client.post("/v1/chat/send", json={"message": "one", "wait": True}).json()["sessionId"]
        source = EventSource()
        with client.stream("GET", "/v1/events", params={"session": session_id}) as stream:
            pieces = stream.iter_raw()
            heard = list(source.feed(next(pieces)))
            client.post("/v1/chat/send", json={"message": "two", "wait": True})
            while len(said(heard)) < 2:
                heard += source.feed(next(pieces))
            with other.open(session_id) as session:
                session.append_message(user("from elsewhere"))
            while len(said(heard)) < 3:
                heard += source.feed(next(pieces))
        assert "delta" in {event.kind for event in heard}
        assert said(heard) == ["two", "re: two", "from elsewhere"]
        again = EventSource()
        heard = []
        with client.stream(
            "GET", "/v1/events", params={"key": "main"}, headers={"Last-Event-ID": f"{session_id}:1"}
        ) as stream:
            for piece in stream.iter_raw():
                heard += again.feed(piece)
                if len(said(heard)) == 4:
                    break
        assert said(heard) == ["re: one", "two", "re: two", "from elsewhere"]


def said(events: list[Received]) -> list[str]:
    """Return the texts of the entries among the events."""
    contents = [json.loads(event.data)["data"]["message"]["content"] for event in events if event.kind == "entry"]
    return [content if isinstance(content, str) else content[0]["text"] for content in contents]
