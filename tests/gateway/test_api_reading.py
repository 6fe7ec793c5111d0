"""Reading over HTTP: history, previews, context, search, usage, status, and silent replies."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from msgspec.structs import fields

from http_rig import Http, Json, http
from sessile import Library, import_session
from sessile.core.delivery import NO_REPLY
from sessile.gateway.events import Event
from sessile.gateway.http import conversations
from sessile.gateway.http.state import Status
from sessile.gateway.turns.replies import shown, shown_message, text_of
from sessile.storage.layout import Source
from sessile.upkeep.keep import Keeper
from view_rig import furnished

pytestmark = [pytest.mark.anyio, pytest.mark.mission("Y1")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def append(gate: Http, *messages: Json, key: str = "main") -> list[str]:
    """Append messages to the session of a key without a turn."""
    path = gate.gateway.conversations.path_of(key)
    assert path is not None
    with gate.gateway.opened(path) as session:
        return [session.append_message(message).id for message in messages]


def said(role: str, text: str) -> Json:
    return {"role": role, "content": [{"type": "text", "text": text}]}


# -- history


async def test_a_history_comes_in_pages_from_the_end(tmp_path: Path) -> None:
    """History is paged from the end, and the pages together are the live branch."""
    async with http(tmp_path) as gate:
        for number in range(5):
            await gate.say(f"n{number}")
        whole = await gate.get("/v1/session/history", key="main")
        assert whole["before"] is None and len(whole["entries"]) == 10
        assert whole["leaf"] == whole["entries"][-1]["id"]
        pages: list[Json] = []
        before: Json = {}
        while True:
            page = await gate.get("/v1/session/history", sessionId=whole["sessionId"], limit=3, **before)
            pages[:0] = page["entries"]
            if page["before"] is None:
                break
            before = {"before": page["before"]}
        assert pages == whole["entries"]


async def test_a_page_of_history_has_so_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of history is limited in bytes; a larger entry is returned without its content."""
    monkeypatch.setattr(conversations, "MAX_BYTES", 3_000)
    async with http(tmp_path) as gate:
        await gate.say("hi")
        ids = append(gate, said("user", "x" * 2_000), said("user", "y" * 2_000), said("user", "z" * 9_000))
        page = await gate.get("/v1/session/history", key="main")
        assert [entry["id"] for entry in page["entries"]] == ids[1:]
        assert page["entries"][-1]["omitted"]["bytes"] > 9_000 and "message" not in page["entries"][-1]
        assert page["before"] == ids[1]
        page = await gate.get("/v1/session/history", key="main", before=page["before"])
        assert len(page["entries"]) == 3 and page["entries"][-1]["id"] == ids[0]


async def test_a_history_has_images_unless_they_are_larger_than_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client gets the image itself, or its reference."""
    monkeypatch.setattr(conversations, "MAX_BYTES", 6_000)
    async with http(tmp_path) as gate:
        await gate.say("hi")
        images = [{"type": "image", "data": "QUJD" * count, "mimeType": "image/png"} for count in (500, 2_000)]
        append(gate, *({"role": "user", "content": [image]} for image in images))
        entries = (await gate.get("/v1/session/history", key="main"))["entries"]
        small, big = (entry["message"]["content"][0] for entry in entries[-2:])
        assert small == images[0]
        assert big["data"].startswith("blob:sha256:")


async def test_what_there_is_no_history_of_is_told(tmp_path: Path) -> None:
    """History and context return 404 for an unknown key, session or entry, and 400 for an invalid query."""
    async with http(tmp_path) as gate:
        await gate.ask("PATCH", "/v1/session", {"key": "hook:a"}, body={"changes": {"label": "x"}})
        session = (await gate.say("hi"))["sessionId"]
        refused = {
            404: [
                {"key": "none"},
                {"key": "hook:a"},
                {"sessionId": "none"},
                {"key": "main", "before": "none"},
            ],
            400: [{}, {"key": "main", "sessionId": session}, {"sessionId": "../x"}, {"key": "main", "limit": 0}],
        }
        for status, queries in refused.items():
            for query in queries:
                for path in ("/v1/session/history", "/v1/session/context"):
                    if path.endswith("history") or not {"before", "limit"} & set(query):
                        assert (await gate.refusal("GET", path, query))[0] == status, query


async def test_looking_changes_no_file(tmp_path: Path) -> None:
    """Read requests change no session or binding file."""
    async with http(tmp_path) as gate:
        await gate.say("hello")
        await gate.gateway.call(gate.gateway.conversations.flush)

        def state() -> dict[str, str]:
            folders = (tmp_path / "sessions", tmp_path / "agents")
            files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
            return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

        before = state()
        await gate.get("/v1/session/history", key="main")
        await gate.get("/v1/session/context", key="main")
        await gate.get("/v1/session/preview", key="main")
        await gate.get("/v1/search", q="hello")
        await gate.get("/v1/usage")
        await gate.get("/v1/status", key="main")
        await gate.get("/v1/sessions")
        assert state() == before and len(before) >= 2


# -- previews


async def test_previews_have_first_and_last_words(tmp_path: Path) -> None:
    """Previews are in the requested order, shorten long text, and have a status for each key."""
    async with http(tmp_path) as gate:
        await gate.say("the first words")
        await gate.say("b" * 100)
        await gate.ask("PATCH", "/v1/session", {"key": "hook:new"}, body={"changes": {"label": "x"}})
        await gate.post("/v1/session/reset", key="hook:empty")
        wanted = ["hook:new", "main", "none", "hook:empty", "agent::"]
        told = await gate.get("/v1/session/preview", key=wanted, limit=2, maxChars=40)
        assert [one["key"] for one in told["previews"]] == wanted
        assert [one["status"] for one in told["previews"]] == ["missing", "ok", "missing", "empty", "error"]
        main = told["previews"][1]
        assert main["first"] == "the first words"
        assert [item["role"] for item in main["items"]] == ["user", "assistant"]
        assert main["items"][0]["text"] == "b" * 39 + "…"


# -- the context, search, usage, status


@pytest.mark.promise("P19")
async def test_the_context_reads_across_a_missing_parent_on_request(tmp_path: Path) -> None:
    """Without `bridge` the history ends there; both answers have the finding."""
    async with http(tmp_path) as gate:
        for text in ("one", "two", "three"):
            await gate.say(text)
        path = gate.gateway.conversations.path_of("main")
        assert path is not None
    file = Path(path)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(line for line in lines if b'"two"' not in line))
    async with http(tmp_path) as gate:
        ended = await gate.get("/v1/session/context", key="main")
        bridged = await gate.get("/v1/session/context", key="main", bridge="true")
        assert len(ended["findings"]) == len(bridged["findings"]) == 1
        assert bridged["messages"][-len(ended["messages"]) :] == ended["messages"]
        assert len(bridged["messages"]) == len(ended["messages"]) + 2
        assert bridged["tokens"] > 0


async def test_the_context_is_what_the_model_sees(tmp_path: Path) -> None:
    """After a compaction, the context is the summary and the kept messages."""
    async with http(tmp_path) as gate:
        first = await gate.say("one")
        path = gate.gateway.conversations.path_of("main")
        assert path is not None
        with gate.gateway.opened(path) as session:
            session.append_compaction("what was said", first["reply"]["entryId"], 100)
        told = await gate.get("/v1/session/context", key="main")
        assert [message["role"] for message in told["messages"]] == ["compactionSummary", "assistant"]
        assert told["sources"][1] == first["reply"]["entryId"]
        assert told["tokens"] > 0 and told["findings"] == []


async def test_words_are_found_with_their_conversation(tmp_path: Path) -> None:
    """Search returns the matching conversation with the positions of the words."""
    async with http(tmp_path) as gate:
        await gate.say("the webhook fails", key="hook:a")
        await gate.say("something else")
        told = await gate.get("/v1/search", q="webhook")
        assert {hit["key"] for hit in told["hits"]} == {"agent:main:hook:a"}
        hit = told["hits"][0]
        (start, end), *_ = hit["marks"]
        assert hit["text"][start:end] == "webhook" and hit["entryId"]
        assert (await gate.get("/v1/search", q="nowhere"))["hits"] == []
        assert len((await gate.get("/v1/search", q="webhook", limit=1))["hits"]) == 1


async def test_a_session_that_is_imported_and_kept_is_found_and_counted_once(tmp_path: Path) -> None:
    """A session that was both imported and archived is found and counted once."""
    async with http(tmp_path) as gate:
        store, path = gate.gateway.store, furnished(tmp_path / "home").write_claude("Which walrus?", "This one.")
        done = import_session(store, str(path))
        folder = path.parent.parent
        with Library(store, [Source("claude", str(folder.parent), str(folder))]) as library:
            Keeper(library).keep(str(path))
        hits = (await gate.get("/v1/search", q="walrus"))["hits"]
        assert [hit["sessionId"] for hit in hits] == [done.id]
        used = await gate.get("/v1/usage", days=3_660)
        assert [one["sessionId"] for one in used["sessions"]] == [done.id]
        assert used["total"]["answers"] == 1


async def test_usage_is_added_up_for_a_key_an_agent_or_all(tmp_path: Path) -> None:
    """Usage can be summed for a key, an agent or everything, and includes earlier sessions of a conversation."""
    async with http(tmp_path) as gate:
        await gate.say("one")
        await gate.post("/v1/session/reset", key="main")
        await gate.say("two")
        await gate.say("three", key="agent:ops:main")
        every = await gate.get("/v1/usage")
        assert (every["total"]["answers"], every["total"]["input"], every["total"]["cost"]) == (3, 30, None)
        assert [row["answers"] for row in every["daily"]] == [3] and len(every["sessions"]) == 3
        main = await gate.get("/v1/usage", key="main", days=1)
        assert main["total"]["answers"] == 2 and {row["key"] for row in main["sessions"]} == {"agent:main:main"}
        assert (await gate.get("/v1/usage", agent="ops"))["total"]["answers"] == 1
        assert (await gate.get("/v1/usage", agent="nobody"))["total"]["answers"] == 0
        assert (await gate.refusal("GET", "/v1/usage", {"key": "main", "agent": "ops"}))[0] == 400
        assert (await gate.refusal("GET", "/v1/usage", {"key": "none"}))[0] == 404


@pytest.mark.mission("Y12")
async def test_the_status_tells_of_store_files_that_are_broken(tmp_path: Path) -> None:
    """A broken store file is reported as a problem, and the gateway continues with the last valid state."""
    async with http(tmp_path) as gate:
        await gate.say("hello")
        await gate.gateway.call(gate.gateway.conversations.flush)
        healthy = await gate.get("/v1/status", key="main")
        assert set(healthy) == {field.encode_name for field in fields(Status)}
        assert healthy["problems"] == [] and healthy["conversations"] == 1
        assert healthy["conversation"]["key"] == "agent:main:main" and healthy["conversation"]["lines"]
        file = tmp_path / "agents/main/sessions/sessions.json"
        good = file.read_bytes()
        file.write_text("{ broken")
        (problem,) = (await gate.get("/v1/status"))["problems"]
        assert "line 1" in problem["message"]
        assert (await gate.say("still there"))["reply"]["text"] == "re: still there"
        file.write_bytes(good)
        assert (await gate.get("/v1/status"))["problems"] == []
        assert (await gate.refusal("GET", "/v1/status", {"key": "none"}))[0] == 404


# -- silent replies


def test_of_a_silent_answer_only_that_it_was_is_shown() -> None:
    """A silent reply is shown without its content; a reply that only mentions the token is unchanged."""
    words = {"role": "assistant", "content": [{"type": "text", "text": f" {NO_REPLY} secret"}], "usage": {"input": 3}}
    entry = {"type": "message", "id": "a", "parentId": None, "timestamp": "t", "message": words, "extra": "secret"}
    told = shown(entry)
    assert told is not None and told["silent"] is True and told["message"]["usage"] == {"input": 3}
    assert "secret" not in json.dumps(told) and NO_REPLY not in json.dumps(told)
    assert "secret" not in json.dumps(shown_message(words)) and text_of(entry) is None
    mentioned = {**entry, "message": said("assistant", f"I say {NO_REPLY} when")}
    assert shown(mentioned) == mentioned and text_of(mentioned) == ("assistant", f"I say {NO_REPLY} when")
    user = {**entry, "message": said("user", NO_REPLY)}
    assert shown(user) == user
    assert shown({"type": "custom", "customType": "sessile.leaf", "id": "b"}) is None


@pytest.mark.mission("Y11")
async def test_no_surface_delivers_a_silent_answer(tmp_path: Path) -> None:
    """History, preview, context, search, events, replies, streams and turns never contain a silent reply."""
    async with http(tmp_path) as gate:
        gate.runner.say = lambda text: f"{NO_REPLY} unspoken"
        session = (await gate.say("first"))["sessionId"]
        events = await gate.gateway.hub.subscribe(session, f"{session}:0")
        heard: list[Event] = []
        with events:
            sent = await gate.say("psst")
            while len([event for event in heard if event.kind == "entry"]) < 4:
                heard.append(await anext(events))
        assert sent["reply"]["silent"] is True and sent["reply"]["delivered"] == ""
        streamed = await gate.client.post("/v1/chat/send", json={"message": "psst", "stream": True})
        pages = [
            await gate.get("/v1/session/history", key="main"),
            await gate.get("/v1/session/preview", key="main"),
            await gate.get("/v1/session/context", key="main"),
            await gate.get("/v1/search", q="unspoken"),
            await gate.get("/v1/search", q=NO_REPLY),
            await gate.get("/v1/chat/turn", key="main", turn=sent["turn"]),
            [event.data for event in heard],
            sent,
            streamed.text,
        ]
        for number, page in enumerate(pages):
            assert "unspoken" not in json.dumps(page) and NO_REPLY not in json.dumps(page), number
        assert await gate.texts() == ["first", "…", "psst", "…", "psst", "…"]
        assert len([event for event in heard if event.data.get("silent")]) == 2
