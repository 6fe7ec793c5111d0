"""Conversations over HTTP: lists, settings, delete and undo, resets, compactions, forks and rewinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import anyio
import pytest

from http_rig import Http, Json, http
from sessile.agents.openclaw.entries import patchable
from sessile.agents.openclaw.keys import KINDS
from sessile.gateway.http.conversations import KeyKind
from sessile.gateway.turns.turn import Message

pytestmark = [pytest.mark.anyio, pytest.mark.mission("Y1")]

MAIN = "agent:main:main"
ACME: Json = {"models": {"providers": {"acme": {"baseUrl": "http://127.0.0.1:1/v1", "apiKey": "none"}}}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def keys(gate: Http, **query: Any) -> list[str]:
    """Return the keys of the listed conversations."""
    return [row["key"] for row in (await gate.get("/v1/sessions", **query))["sessions"]]


# -- lists


async def test_a_list_has_what_is_known_of_each_conversation(tmp_path: Path) -> None:
    """The list is sorted newest first, and unknown values are null."""
    async with http(tmp_path) as gate:
        await gate.say("hello")
        await gate.ask(
            "PATCH", "/v1/session", {"key": "main"}, body={"changes": {"label": "Home", "verboseLevel": "on"}}
        )
        await gate.ask("PATCH", "/v1/session", {"key": "ops"}, body={"changes": {"subject": "Later"}})
        listed = await gate.get("/v1/sessions")
        assert (listed["count"], listed["hidden"]) == (2, 0)
        later, main = listed["sessions"]
        assert (later["key"], later["title"], later["sessionId"], later["inputTokens"]) == (
            "agent:main:ops",
            "Later",
            None,
            None,
        )
        assert (main["key"], main["title"], main["kind"], main["agent"]) == (MAIN, "Home", "direct", "main")
        assert (main["inputTokens"], main["outputTokens"], main["contextTokens"], main["live"]) == (10, 5, 15, 0)
        assert main["flags"]["verboseLevel"] == "on"


async def test_a_list_comes_in_pages_and_is_filtered(tmp_path: Path) -> None:
    """The list is paged, and every documented filter works."""
    async with http(tmp_path) as gate:
        for number in range(5):
            await gate.ask(
                "PATCH", "/v1/session", {"key": f"hook:h{number}"}, body={"changes": {"label": f"L{number}"}}
            )
        await gate.say("hi", key="agent:ops:main")
        every = await keys(gate)
        assert len(every) == 6
        pages = [await keys(gate, limit=2, offset=offset) for offset in (0, 2, 4, 6)]
        assert [key for page in pages for key in page] == every and pages[3] == []
        assert await keys(gate, agent="ops") == ["agent:ops:main"]
        assert await keys(gate, label="L3") == ["agent:main:hook:h3"]
        assert await keys(gate, search="l4") == ["agent:main:hook:h4"]
        assert await keys(gate, kinds=["main", "cron"]) == ["agent:ops:main"]
        assert len(await keys(gate, active=5)) == 6
        assert await keys(gate, spawnedBy="agent:main:main") == []
        assert (await gate.get("/v1/sessions", label="L3"))["hidden"] == 5


def test_every_kind_of_key_can_be_asked_for() -> None:
    """The `kinds` filter accepts every kind in the table of keys."""
    assert tuple(kind for part in get_args(KeyKind) for kind in get_args(part)) == KINDS


async def test_a_conversation_that_answers_is_live_in_the_list(tmp_path: Path) -> None:
    """A conversation is live while its turn runs."""
    async with http(tmp_path) as gate:
        gate.runner.gate = anyio.Event()
        turn = await gate.gateway.turns.send(Message(text="a b", source="main"))
        assert (await gate.get("/v1/sessions"))["sessions"][0]["live"] == 1
        gate.runner.gate.set()
        await turn.wait()
        while gate.gateway.turns.live():
            await anyio.sleep(0.001)
        assert (await gate.get("/v1/sessions"))["sessions"][0]["live"] == 0


# -- one conversation


async def test_a_conversation_is_found_by_any_spelling_of_its_key(tmp_path: Path) -> None:
    """Any spelling of a key finds the conversation; unknown keys return 404 and invalid keys 400."""
    async with http(tmp_path, {"session": {"reset": {"mode": "daily", "atHour": 4}}}) as gate:
        await gate.say("hello")
        first = await gate.get("/v1/session", key=" MAIN ")
        assert first["session"]["key"] == MAIN
        assert first["entry"]["sessionId"] == first["session"]["sessionId"]
        assert (first["previous"], first["resets"]["atHour"]) == ([], 4)
        assert await gate.refusal("GET", "/v1/session", {"key": "nobody"}) == (404, "conversation not found: 'nobody'")
        assert (await gate.refusal("GET", "/v1/session", {"key": "agent::"}))[0] == 400
        for path in ("/v1/session", "/v1/status"):
            unknown = await gate.ask("GET", path, {"key": "nobody"}, status=404)
            assert unknown["hint"] == "list them with GET /v1/sessions or `sessile sessions`"


@pytest.mark.mission("Y5")
async def test_settings_are_changed_cleared_and_compared_first(tmp_path: Path) -> None:
    """Settings can be set, cleared and compared; read-only members, invalid values and stale `expected` are refused."""
    async with http(tmp_path, ACME) as gate:

        async def patch(changes: Json, status: int = 200, **more: Any) -> Json:
            body = {"changes": changes, **more}
            return await gate.ask("PATCH", "/v1/session", {"key": "main"}, body=body, status=status)

        told = await patch({"thinkingLevel": "high", "model": "acme/large"})
        assert told["entry"]["thinkingLevel"] == "high" and told["model"] == "acme/large"
        told = await patch({"thinkingLevel": None, "model": None}, expected={"thinkingLevel": "high"})
        assert "thinkingLevel" not in told["entry"] and told["model"] is None
        assert "thinkingLevel is" in (await patch({"label": "x"}, 409, expected={"thinkingLevel": "high"}))["detail"]
        assert "cannot change 'sessionId'" in (await patch({"sessionId": "x"}, 400))["detail"]
        assert "invalid sendPolicy" in (await patch({"sendPolicy": "perhaps"}, 400))["detail"]
        refused = await patch({"thinkingLevel": "banana"}, 400)
        assert refused["detail"] == "invalid thinkingLevel 'banana'"
        assert refused["hint"] == "use one of off, minimal, low, medium, high, xhigh"  # the same hint as /think


@pytest.mark.mission("Y5")
async def test_the_documentation_says_what_can_be_changed(tmp_path: Path) -> None:
    """The API document names every setting that can be changed and its values."""
    async with http(tmp_path) as gate:
        told = (await gate.get("/v1/openapi.json"))["components"]["schemas"]["PatchBody"]["properties"]["changes"]
        for name, values in patchable().items():
            assert name in told["description"] and ", ".join(values) in told["description"]


async def test_a_model_that_cannot_answer_is_refused_when_it_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choosing a model of an unknown provider returns 400, and the conversation is unchanged."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with http(tmp_path) as gate:
        first = await gate.say("hello")
        for changes in ({"model": "nobody/large"}, {"modelOverride": "large", "providerOverride": "nobody"}):
            refused = await gate.refusal("PATCH", "/v1/session", {"key": "main"}, body={"changes": changes})
            assert refused[0] == 400
        refused = await gate.refusal("POST", "/v1/session/reset", body={"key": "main", "model": "nobody/large"})
        assert refused[0] == 400
        assert (await gate.say("still"))["sessionId"] == first["sessionId"]


# -- deleting


async def test_a_deleted_conversation_comes_back_whole(tmp_path: Path) -> None:
    """Undo restores a deleted conversation completely, and its token works once."""
    async with http(tmp_path) as gate:
        await gate.say("keep me", key="hook:a")
        deleted = await gate.ask("DELETE", "/v1/session", {"key": "hook:a"})
        assert await keys(gate) == []
        assert (await gate.refusal("GET", "/v1/session/history", {"sessionId": deleted["sessionId"]}))[0] == 404
        back = await gate.post("/v1/session/undo", token=deleted["token"])
        assert back["session"]["sessionId"] == deleted["sessionId"]
        assert await gate.texts("hook:a") == ["keep me", "re: keep me"]
        await gate.say("more", key="hook:a")
        assert len(await gate.texts("hook:a")) == 4
        assert (await gate.refusal("POST", "/v1/session/undo", body={"token": deleted["token"]}))[0] == 404
        assert (await gate.refusal("POST", "/v1/session/undo", body={"token": "../../etc"}))[0] == 404


async def test_what_must_not_be_deleted_is_refused(tmp_path: Path) -> None:
    """The main conversation and a busy, changed or unknown conversation cannot be deleted."""
    async with http(tmp_path) as gate:
        await gate.say("hi")
        assert (await gate.refusal("DELETE", "/v1/session", {"key": "main"}))[0] == 400
        await gate.say("hi", key="hook:a")
        other = {"key": "hook:a", "expected": "00000000-0000-7000-8000-000000000000"}
        assert (await gate.refusal("DELETE", "/v1/session", other))[0] == 409
        assert (await gate.refusal("DELETE", "/v1/session", {"key": "hook:none"}))[0] == 404
        gate.runner.gate = anyio.Event()
        turn = await gate.gateway.turns.send(Message(text="a b", source="hook:a"))
        assert await gate.refusal("DELETE", "/v1/session", {"key": "hook:a"}) == (
            409,
            "a turn is running in this session",
        )
        gate.runner.gate.set()
        await turn.wait()


async def test_a_conversation_that_nobody_spoke_in_can_be_deleted(tmp_path: Path) -> None:
    """A conversation with a label but no session can be deleted."""
    async with http(tmp_path) as gate:
        await gate.ask("PATCH", "/v1/session", {"key": "hook:a"}, body={"changes": {"label": "x"}})
        deleted = await gate.ask("DELETE", "/v1/session", {"key": "hook:a"})
        assert deleted["sessionId"] is None and await keys(gate) == []


# -- resets


@pytest.mark.mission("Y4")
async def test_a_reset_begins_anew_and_resuming_takes_it_back(tmp_path: Path) -> None:
    """A reset starts a new session and resume returns to the previous one; a stale `expected` returns 409."""
    async with http(tmp_path, ACME) as gate:
        await gate.say("one")
        begun = await gate.post("/v1/session/reset", key="main", reason="new", model="acme/large")
        assert "/resume" in begun["notice"] and begun["sessionId"] != begun["previousId"]
        assert await gate.texts() == []
        assert (await gate.get("/v1/session", key="main"))["model"] == "acme/large"
        stale = {"key": "main", "expected": begun["previousId"]}
        assert (await gate.refusal("POST", "/v1/session/reset", body=stale))[0] == 409
        back = await gate.post("/v1/session/resume", key="main", expected=begun["sessionId"])
        assert (back["sessionId"], back["previousId"]) == (begun["previousId"], begun["sessionId"])
        assert await gate.texts() == ["one", "re: one"]
        assert (await gate.refusal("POST", "/v1/session/resume", body={"key": "main", "back": 9}))[0] == 404


@pytest.mark.mission("Y4")
async def test_a_first_session_has_none_to_go_back_to(tmp_path: Path) -> None:
    """Resetting a new conversation returns no previous session and no resume hint."""
    async with http(tmp_path) as gate:
        begun = await gate.post("/v1/session/reset", key="hook:new")
        assert (begun["previousId"], begun["notice"]) == (None, "🧭 New session.")


# -- trees


@pytest.mark.mission("Y9")
async def test_a_compaction_says_what_became_of_it(tmp_path: Path) -> None:
    """A short session has nothing to compact; a long one is compacted and counted."""
    async with http(tmp_path) as gate:
        await gate.say("short")
        assert (await gate.post("/v1/session/compact", key="main"))["status"] == "nothing"
        await gate.gateway.call(_fill, gate)
        told = await gate.post("/v1/session/compact", key="main", instructions="keep numbers")
        assert told["status"] == "compacted" and told["tokensAfter"] < told["tokensBefore"] and told["entryId"]
        assert (await gate.get("/v1/session", key="main"))["entry"]["compactionCount"] == 1
        assert (await gate.get("/v1/session/history", key="main"))["entries"][-1]["type"] == "compaction"
        assert (await gate.refusal("POST", "/v1/session/compact", body={"key": "none"}))[0] == 404


def _fill(gate: Http) -> None:
    path = gate.gateway.conversations.path_of("main")
    assert path is not None
    with gate.gateway.opened(path) as session:
        for number in range(40):
            words = [{"type": "text", "text": f"{number} " * 2_000}]
            session.append_message({"role": "user", "content": words})
            session.append_message({"role": "assistant", "content": words, "stopReason": "stop"})


async def test_a_compaction_waits_for_nobody(tmp_path: Path) -> None:
    """Compact, rewind and inject return 409 while a turn runs."""
    async with http(tmp_path) as gate:
        gate.runner.gate = anyio.Event()
        turn = await gate.gateway.turns.send(Message(text="a b", source="main"))
        for path, body in (
            ("/v1/session/compact", {"key": "main"}),
            ("/v1/session/rewind", {"key": "main", "entry": turn.id}),
            ("/v1/chat/inject", {"key": "main", "message": "x"}),
        ):
            assert (await gate.refusal("POST", path, body=body))[0] == 409, path
        gate.runner.gate.set()
        await turn.wait()


async def test_a_fork_is_a_session_of_its_own(tmp_path: Path) -> None:
    """A fork copies a whole session or a part, and `to` binds it to a new key."""
    async with http(tmp_path) as gate:
        first = await gate.say("one")
        await gate.say("two")
        whole = await gate.post("/v1/session/fork", key="main", to="hook:copy")
        assert whole["key"] == "agent:main:hook:copy" and whole["fromSessionId"] == first["sessionId"]
        assert await gate.texts("hook:copy") == ["one", "re: one", "two", "re: two"]
        await gate.say("three", key="hook:copy")
        assert len(await gate.texts("hook:copy")) == 6 and len(await gate.texts()) == 4
        part = await gate.post("/v1/session/fork", sessionId=first["sessionId"], entry=first["reply"]["entryId"])
        history = await gate.get("/v1/session/history", sessionId=part["sessionId"])
        assert part["key"] is None and len(history["entries"]) == 2
        assert (await gate.refusal("POST", "/v1/session/fork", body={"key": "main", "to": "hook:copy"}))[0] == 409
        assert (await gate.refusal("POST", "/v1/session/fork", body={"key": "main", "entry": "none"}))[0] == 404
        assert (await gate.refusal("POST", "/v1/session/fork", body={}))[0] == 400
        both = {"key": "main", "sessionId": first["sessionId"]}
        assert (await gate.refusal("POST", "/v1/session/fork", body=both))[0] == 400


async def test_rewinding_goes_back_and_loses_nothing(tmp_path: Path) -> None:
    """A rewind returns the text of the message and keeps the abandoned branch, also after a restart."""
    async with http(tmp_path) as gate:
        await gate.say("one")
        second = await gate.say("two")
        left = second["reply"]["entryId"]
        stale = {"key": "main", "entry": second["turn"], "expectedLeaf": second["turn"]}
        assert (await gate.refusal("POST", "/v1/session/rewind", body=stale))[0] == 409
        assert (await gate.refusal("POST", "/v1/session/rewind", body={"key": "main", "entry": "none"}))[0] == 404
        went = await gate.post("/v1/session/rewind", key="main", entry=second["turn"], expectedLeaf=left)
        assert (went["text"], went["left"], went["summaryId"]) == ("two", left, None)
        assert await gate.texts() == ["one", "re: one"]
    async with http(tmp_path) as gate:
        await gate.say("other")
        assert await gate.texts() == ["one", "re: one", "other", "re: other"]
        back = await gate.post("/v1/session/rewind", key="main", entry=left)
        assert back["leaf"] == left and await gate.texts() == ["one", "re: one", "two", "re: two"]


async def test_rewinding_can_sum_up_what_is_left(tmp_path: Path) -> None:
    """A rewind with `summarize` makes the branch summary the new leaf."""
    async with http(tmp_path) as gate:
        first = await gate.say("one")
        await gate.say("a plan with details")
        went = await gate.post("/v1/session/rewind", key="main", entry=first["reply"]["entryId"], summarize=True)
        assert went["summaryId"] == went["leaf"]
        entries = (await gate.get("/v1/session/history", key="main"))["entries"]
        assert [entry["type"] for entry in entries] == ["message", "message", "branch_summary"]


async def test_a_reset_and_a_rewind_are_told_to_those_who_listen(tmp_path: Path) -> None:
    """Subscribers of a session receive its rewinds and resets."""
    async with http(tmp_path) as gate:
        first = await gate.say("one")
        events = await gate.gateway.hub.subscribe(first["sessionId"])
        with events:
            await anext(events)
            await gate.post("/v1/session/rewind", key="main", entry=first["turn"])
            rewound = await anext(events)
            assert (rewound.kind, rewound.data["notice"]) == ("notice", "rewound")
            begun = await gate.post("/v1/session/reset", key="main")
            reset = await anext(events)
            assert (reset.kind, reset.data["sessionId"]) == ("reset", begun["sessionId"])
