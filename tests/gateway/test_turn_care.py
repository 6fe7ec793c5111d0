"""Context handling of a turn: compactions, memory notes and overflow recovery, with a model server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateways import Clock, ask, gateway_in, lines, running
from model_server import ModelServer, serving
from sessile.gateway.service import Gateway
from sessile.gateway.turns.context_window import FLUSHED
from sessile.gateway.turns.turn import Message

pytestmark = [pytest.mark.anyio, pytest.mark.mission("Y9")]

WINDOW = 20_000
LONG = "word " * 600  # about 750 tokens


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def configured(server: ModelServer, workspace: Path | None = None, **agent: Any) -> dict[str, Any]:
    """Return a configuration with a model of the server."""
    compaction = {"reserveTokens": 2000, "reserveTokensFloor": 0, "keepRecentTokens": 500}
    defaults: dict[str, Any] = {"model": "local/m", "compaction": compaction} | agent
    if workspace is not None:
        workspace.mkdir(exist_ok=True)
        defaults["workspace"] = str(workspace)
    model = {"id": "m", "contextWindow": WINDOW}
    provider = {"baseUrl": f"{server.url}/v1", "api": "openai", "models": [model]}
    return {"agents": {"defaults": defaults}, "models": {"providers": {"local": provider}}}


def used(tokens: int) -> dict[str, Any]:
    """Return the usage that makes the server report a context of this size."""
    return {"prompt_tokens": tokens - 10, "completion_tokens": 10, "total_tokens": tokens}


def prompts(server: ModelServer) -> list[str]:
    """Return the last message of each request."""
    return [_text(asked.body["messages"][-1]["content"]) for asked in server.asked]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def entry_of(gateway: Gateway, key: str = "main") -> dict[str, Any]:
    found = gateway.conversations.get(key)
    assert found is not None
    return dict(found.entry)


def kinds(gateway: Gateway) -> list[str]:
    path = gateway.conversations.path_of("main")
    assert path is not None
    with gateway.store.open(path, readonly=True) as session:
        return [entry.get("customType") or entry.type for entry in session.get_branch()]


async def settled(gateway: Gateway) -> None:
    """Wait until all turns and their follow-up work are done."""
    while gateway.turns.live():
        await anyio.sleep(0.002)


async def test_a_model_behind_an_endpoint_answers_with_all_that_was_said(tmp_path: Path) -> None:
    """Each request contains the whole conversation."""
    with serving() as server:
        server.say("Hello, Ada.")
        server.say("You are Ada.", usage=used(120))
        async with running(gateway_in(tmp_path, configured(server))) as gateway:
            assert (await ask(gateway, "I am Ada.")).text == "Hello, Ada."
            reply = await ask(gateway, "Who am I?")
            assert (reply.text, reply.model) == ("You are Ada.", "local/m")
            said = [_text(message["content"]) for message in server.asked[1].body["messages"]]
            assert said == ["I am Ada.", "Hello, Ada.", "Who am I?"]
            assert (entry_of(gateway)["contextTokens"], entry_of(gateway)["contextWindow"]) == (120, WINDOW)


async def test_an_overflow_is_compacted_and_tried_once_more(tmp_path: Path) -> None:
    """After a context overflow, the session is compacted and the request is retried once."""
    with serving() as server:
        server.say("fine", usage=used(3000))
        async with running(gateway_in(tmp_path, configured(server))) as gateway:
            for number in range(4):
                await ask(gateway, f"{number} {LONG}")
            server.fail(400, "This model's maximum context length is 20000 tokens, however you requested 25000 tokens")
            server.say("## Goal\nwords")
            server.say("short")
            server.say("after all")
            server.next()  # otherwise the last response would be repeated
            reply = await ask(gateway, "go on")
            assert (reply.text, reply.error) == ("after all", None)
            assert entry_of(gateway)["compactionCount"] == 1
            assert "compaction" in kinds(gateway)
            assert prompts(server)[-1] == "go on" and "words" in json.dumps(server.asked[-1].body)


@pytest.mark.mission("Y11")
async def test_an_overflow_that_is_told_as_an_answer_is_compacted_too_and_silence_holds_in_the_second_try(
    tmp_path: Path,
) -> None:
    """An overflow reported as a stop reason is also compacted, and the retried reply may be silent."""
    with serving() as server:
        server.say("fine", usage=used(3000))
        async with running(gateway_in(tmp_path, configured(server))) as gateway:
            for number in range(4):
                await ask(gateway, f"{number} {LONG}")
            server.say("", stop="context_length_exceeded")
            server.say("## Goal\nwords")
            server.say("short")
            server.say("NO_REPLY unspoken")
            server.next()
            turn = await gateway.turns.send(Message(text="go on", source="main"))
            reply = await turn.wait()
            assert (reply.silent, reply.error, turn.delivered_text) == (True, None, "")
            assert entry_of(gateway)["compactionCount"] == 1


async def test_an_overflow_that_stays_is_told_and_not_tried_for_ever(tmp_path: Path) -> None:
    """If the retry overflows too, the turn fails with the provider's message after two requests."""
    with serving() as server:
        server.say("fine", usage=used(3000))
        async with running(gateway_in(tmp_path, configured(server))) as gateway:
            for number in range(4):
                await ask(gateway, f"{number} {LONG}")
            refusal = "This model's maximum context length is 20000 tokens, however you requested 25000 tokens"
            server.fail(400, refusal)
            server.say("## Goal\nwords")
            server.say("short")
            server.fail(400, refusal)
            server.next()
            reply = await ask(gateway, "go on")
            assert reply.stop == "error" and "maximum context length" in (reply.error or "")
            assert prompts(server).count("go on") == 2


async def test_a_context_that_is_too_full_is_compacted_behind_the_turn(tmp_path: Path) -> None:
    """A full context is compacted after the reply; a verbose conversation gets a notice with the next one."""
    with serving() as server:
        server.say("fine", usage=used(3000))
        async with running(gateway_in(tmp_path, configured(server, compaction=_quiet()))) as gateway:
            gateway.conversations.patch("main", {"verboseLevel": "on"})
            for number in range(3):
                await ask(gateway, f"{number} {LONG}")
            server.say("full", usage=used(WINDOW - 1000))
            server.say("## Goal\nsum")
            server.say("short")
            server.say("fine", usage=used(3000))
            server.next()
            assert (await ask(gateway, "more")).text == "full"
            await settled(gateway)
            assert entry_of(gateway)["compactionCount"] == 1
            reply = await ask(gateway, "still there?")
            assert reply.notices == ("🧹 Auto-compaction complete (count 1).",)


async def test_a_summary_that_fails_is_told_and_stops_nothing(tmp_path: Path) -> None:
    """A failed summary leaves the history unchanged and is reported in the next reply."""
    with serving() as server:
        server.say("fine", usage=used(3000))
        async with running(gateway_in(tmp_path, configured(server, compaction=_quiet()))) as gateway:
            for number in range(3):
                await ask(gateway, f"{number} {LONG}")
            server.say("full", usage=used(WINDOW - 1000))
            server.say("")
            server.say("")
            server.say("fine", usage=used(3000))
            server.next()
            await ask(gateway, "more")
            await settled(gateway)
            assert "compaction" not in kinds(gateway)
            assert entry_of(gateway)["compactionCount"] == 0
            reply = await ask(gateway, "still there?")
            assert any("Nothing was removed" in notice for notice in reply.notices)


def _quiet() -> dict[str, Any]:
    """Return compaction settings without memory notes."""
    settings = {"reserveTokens": 2000, "reserveTokensFloor": 0, "keepRecentTokens": 500}
    return {**settings, "memoryFlush": {"enabled": False}}


# -- memory notes


@pytest.mark.mission("Y10")
async def test_notes_are_kept_before_a_compaction_once(tmp_path: Path) -> None:
    """Notes are written once before a compaction to the file of the day, and are not part of the conversation."""
    with serving() as server:
        config = configured(server, tmp_path / "work")
        gateway = gateway_in(tmp_path / "root", config, clock=Clock())
        server.say("fine", usage=used(WINDOW - 2000 - 4000))
        async with running(gateway):
            await ask(gateway, "I like tea.")
            server.say("- likes tea")
            server.say("fine", usage=used(WINDOW - 2000 - 3900))
            server.next()
            assert (await ask(gateway, "And?")).text == "fine"
            notes = (tmp_path / "work" / "memory" / "2026-02-16.md").read_text()
            assert "- likes tea" in notes and "12:00" in notes
            assert "2026-02-16" in prompts(server)[1]
            assert [text for _, text in lines(gateway)] == ["I like tea.", "fine", "And?", "fine"]
            assert FLUSHED in kinds(gateway)
            assert entry_of(gateway)["memoryFlush"]["kind"] == "written"
            assert entry_of(gateway)["memoryFlushCompactionCount"] == 0
            await ask(gateway, "Once more?")
            assert len(server.asked) == 4
            assert "I like tea." in json.dumps(server.asked[1].body) and "And?" not in json.dumps(server.asked[1].body)


@pytest.mark.mission("Y10")
async def test_nothing_to_note_is_silence(tmp_path: Path) -> None:
    """A silent reply writes no file, and the model is not asked again in this cycle."""
    with serving() as server:
        gateway = gateway_in(tmp_path / "root", configured(server, tmp_path / "work"))
        server.say("fine", usage=used(WINDOW - 2000 - 4000))
        async with running(gateway):
            await ask(gateway, "a")
            server.say("NO_REPLY")
            server.say("fine", usage=used(WINDOW - 2000 - 3900))
            server.next()
            await ask(gateway, "b")
            await ask(gateway, "c")
            assert not (tmp_path / "work" / "memory").exists()
            assert (entry_of(gateway)["memoryFlush"]["kind"], len(server.asked)) == ("silent", 4)


@pytest.mark.mission("Y10")
@pytest.mark.parametrize("access", ["ro", "none"])
async def test_no_notes_where_they_may_not_be_written(tmp_path: Path, access: str) -> None:
    """Without write access to the workspace, the model is not asked for notes."""
    with serving() as server:
        config = configured(server, tmp_path / "work", workspaceAccess=access)
        server.say("fine", usage=used(WINDOW - 2000 - 4000))
        async with running(gateway_in(tmp_path / "root", config)) as gateway:
            await ask(gateway, "a")
            await ask(gateway, "b")
            assert len(server.asked) == 2


@pytest.mark.mission("Y10")
async def test_notes_that_fail_are_tried_three_times_and_then_told(tmp_path: Path) -> None:
    """Failed notes are retried three times and then reported once; the turns continue."""
    with serving() as server:
        gateway = gateway_in(tmp_path / "root", configured(server, tmp_path / "work"))
        server.say("fine", usage=used(WINDOW - 2000 - 4000))
        async with running(gateway):
            await ask(gateway, "a")
            told = []
            for _ in range(4):
                server.fail(400, "no notes today")
                server.say("fine", usage=used(WINDOW - 2000 - 3900))
                server.next()
                reply = await ask(gateway, "b")
                told.append(len(reply.notices))
                if reply.text != "fine":
                    break
            assert told == [0, 0, 1, 0]
            assert entry_of(gateway)["memoryFlush"]["failureCount"] == 3


# -- replies of models


async def test_a_model_that_fails_is_told_and_does_not_spoil_the_session(tmp_path: Path) -> None:
    """A failed turn reports the error, and the next request does not contain it."""
    with serving() as server:
        server.fail(400, "the cluster is on fire")
        async with running(gateway_in(tmp_path, configured(server))) as gateway:
            reply = await ask(gateway, "a")
            assert reply.stop == "error" and "on fire" in (reply.error or "") and reply.text == ""
            server.say("better")
            server.next()
            assert (await ask(gateway, "b")).text == "better"
            assert "on fire" not in json.dumps(server.asked[-1].body)


async def test_a_model_that_calls_a_tool_gets_an_answer_to_it(tmp_path: Path) -> None:
    """A tool call is stored, and the next request contains a placeholder result."""
    with serving() as server:
        server.say("let me see", calls=True, stop="tool_calls")
        async with running(gateway_in(tmp_path, configured(server))) as gateway:
            reply = await ask(gateway, "a")
            assert (reply.stop, reply.text) == ("toolUse", "let me see")
            server.say("fine")
            server.next()
            assert (await ask(gateway, "b")).text == "fine"
            roles = [message["role"] for message in server.asked[-1].body["messages"]]
            assert roles == ["user", "assistant", "tool", "user"]


@pytest.mark.mission("Y11")
async def test_a_silent_model_is_not_heard_in_any_stream(tmp_path: Path) -> None:
    """A silent reply in pieces is not delivered."""
    with serving() as server:
        server.say("NO_REPLY")
        async with running(gateway_in(tmp_path, configured(server))) as gateway:
            reply = await ask(gateway, "a")
            assert (reply.silent, reply.delivered) == (True, "")


@pytest.mark.mission("Y5")
async def test_toggles_act_in_the_turn(tmp_path: Path) -> None:
    """The thinking, reasoning and usage settings apply to the turn."""
    with serving() as server:
        server.say("fine", thinking="hmm")
        async with running(gateway_in(tmp_path, configured(server))) as gateway:
            await ask(gateway, "/think high")
            await ask(gateway, "/reasoning on")
            await ask(gateway, "/usage tokens")
            reply = await ask(gateway, "a")
            assert (reply.text, reply.reasoning) == ("fine", "hmm")
            assert reply.delivered.startswith("hmm\n\nfine\n\n🧮 ")
            assert server.asked[0].body.get("reasoning_effort") == "high"


@pytest.mark.mission("Y5")
async def test_a_model_that_was_chosen_is_asked(tmp_path: Path) -> None:
    """The chosen model is used until the choice is reset."""
    with serving() as server:
        config = configured(server)
        config["models"]["providers"]["local"]["models"].append({"id": "other"})
        server.say("fine")
        async with running(gateway_in(tmp_path, config)) as gateway:
            await ask(gateway, "/model local/other")
            await ask(gateway, "a")
            await ask(gateway, "/model default")
            await ask(gateway, "b")
            assert [asked.body["model"] for asked in server.asked] == ["other", "m"]


async def test_a_program_answers_in_the_workspace_of_its_agent(tmp_path: Path) -> None:
    """A command runs in the workspace of its agent."""
    (tmp_path / "work").mkdir()
    defaults = {"runner": "command", "command": ["pwd"], "workspace": str(tmp_path / "work")}
    async with running(gateway_in(tmp_path / "root", {"agents": {"defaults": defaults}})) as gateway:
        assert (await ask(gateway, "where are you?")).text == str(tmp_path / "work")
