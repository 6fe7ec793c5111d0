"""The OpenAI-compatible API: the official client, streaming, sessions by header and by user, and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import openai
import pytest
from openai import OpenAI

from event_streams import EventSource
from gateways import Clock, Scripted, lines
from http_rig import BEARER, TOKEN, Json, http, served
from sessile.core.delivery import NO_REPLY
from sessile.errors import RunnerFailed

pytestmark = [pytest.mark.anyio, pytest.mark.mission("Y13")]

PATH = "/v1/chat/completions"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
KEY = "x-sessile-session-key"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def user(text: str) -> Any:
    return {"role": "user", "content": text}


# -- the official client


class Official:
    """The official client, connected to a running gateway."""

    def __init__(self, address: str, runner: Scripted) -> None:
        self.client = OpenAI(base_url=f"{address}/v1", api_key=TOKEN, timeout=10)
        self.http = httpx.Client(base_url=address, headers=BEARER, timeout=10)
        self.runner = runner

    def history(self, key: str) -> list[str]:
        entries = self.http.get("/v1/session/history", params={"key": key}).json()["entries"]
        return [entry["message"]["content"][0]["text"] for entry in entries]


@pytest.fixture
def official(tmp_path: Path) -> Iterator[Official]:
    with served(tmp_path, {"agents": {"list": [{"id": "main"}, {"id": "ops"}]}}) as (address, runner):
        one = Official(address, runner)
        yield one
        one.client.close()
        one.http.close()


def test_the_official_client_gets_an_answer(official: Official) -> None:
    """The response has the content, usage, finish reason and requested model."""
    answer = official.client.chat.completions.create(model="gpt-4o", messages=[user("hello")], temperature=0.2)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("re: hello", "stop")
    assert answer.model == "gpt-4o" and answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (10, 5, 15)


def test_the_official_client_streams(official: Official) -> None:
    """Words are streamed as they come, followed by one finish reason and the usage."""
    chunks = list(
        official.client.chat.completions.create(
            model="gpt-4o", messages=[user("a b c")], stream=True, stream_options={"include_usage": True}
        )
    )
    words = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(words) == "re: a b c" and len([word for word in words if word]) > 1
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 15 and chunks[-1].choices == []
    assert {chunk.model for chunk in chunks} == {"gpt-4o"} and len({chunk.id for chunk in chunks}) == 1


def test_a_session_is_kept_by_the_header(official: Official) -> None:
    """The session header continues a session under both of its names; only the last message is appended."""
    create = official.client.chat.completions.create
    create(model="m", messages=[user("one")], extra_headers={KEY: "hook:h"})
    create(model="m", messages=[user("x"), user("two")], extra_headers={"x-openclaw-session-key": "hook:h"})
    assert official.history("hook:h") == ["one", "re: one", "two", "re: two"]


def test_a_session_is_kept_by_the_user(official: Official) -> None:
    """The `user` member continues a session, and different user names never share one."""
    create = official.client.chat.completions.create
    names = ["ann", "Ann", "a/../b", "ann:thread:1", "Ä" * 200, "global", "ann "]
    for name in names:
        create(model="m", messages=[user(name)], user=name)
    create(model="m", messages=[user("again")], user="ann")
    assert official.history("openai-user:ann") == ["ann", "re: ann", "again", "re: again"]
    assert official.http.get("/v1/sessions").json()["count"] == len(names)


def test_without_a_name_each_request_is_a_conversation_of_its_own(official: Official) -> None:
    """A request without a session starts a new one with the earlier messages; the response header returns its key."""
    raw = official.client.chat.completions.with_raw_response
    before: Any = [
        {"role": "system", "content": "be brief"},
        user("one"),
        {"role": "assistant", "content": "1", "tool_calls": [_call("f", '{"a": 1}')]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
        {"role": "assistant", "content": [{"type": "text", "text": "so"}]},
    ]
    first = raw.create(model="m", messages=[*before, user("two")])
    key = first.headers[KEY]
    assert key.startswith("agent:main:openai:")
    assert raw.create(model="m", messages=[user("one")]).headers[KEY] != key
    assert official.history(key) == ["one", "1", "done", "so", "two", "re: two"]
    asked = official.runner.asked[0]
    assert asked.system is not None and "be brief" in asked.system
    assert [message["role"] for message in asked.messages] == ["user", "assistant", "toolResult", "assistant", "user"]
    # With the key, the session continues and known messages are not stored again.
    raw.create(model="m", messages=[*before, user("two"), user("three")], extra_headers={KEY: key})
    assert official.history(key)[-2:] == ["three", "re: three"] and len(official.history(key)) == 8


def _call(name: str, arguments: str) -> Json:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_model_names_an_agent(official: Official) -> None:
    """A model name can select an agent, and the models list contains all agents."""
    names = [model.id for model in official.client.models.list()]
    assert names == ["sessile", "sessile/main", "sessile/ops"]
    raw = official.client.chat.completions.with_raw_response
    for model in ("sessile/ops", "openclaw:ops"):
        answer = raw.create(model=model, messages=[user("hi")])
        assert answer.headers[KEY].startswith("agent:ops:") and answer.parse().model == model


def test_errors_are_those_of_openai(official: Official) -> None:
    """Errors raise the client's own exception classes, and a failed turn is not retried."""
    create = official.client.chat.completions.create
    with pytest.raises(openai.BadRequestError, match="client-side tools"):
        create(model="m", messages=[user("x")], tools=[{"type": "function", "function": {"name": "f"}}])
    with pytest.raises(openai.BadRequestError, match="last message"):
        create(model="m", messages=[{"role": "assistant", "content": "x"}])
    with pytest.raises(openai.AuthenticationError):
        OpenAI(base_url=official.client.base_url, api_key="wrong").chat.completions.create(
            model="m", messages=[user("x")]
        )

    def fail(text: str) -> str:
        raise RunnerFailed("the endpoint is on fire")

    official.runner.say = fail
    with pytest.raises(openai.InternalServerError, match="on fire"):
        create(model="m", messages=[user("x")], user="ann")
    assert len(official.runner.asked) == 1
    with pytest.raises(openai.APIError, match="on fire"):
        list(create(model="m", messages=[user("x")], user="ann", stream=True))


def test_the_same_idempotency_key_is_one_turn(official: Official) -> None:
    """The same idempotency key returns the same turn, even for an unnamed session."""
    raw = official.client.chat.completions.with_raw_response
    both = [raw.create(model="m", messages=[user("x")], extra_headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert len({answer.headers[KEY] for answer in both}) == 1
    assert len({answer.parse().id for answer in both}) == 1 and len(official.runner.asked) == 1


# -- plain HTTP


async def ask(gate: Any, **body: Any) -> httpx.Response:
    found: httpx.Response = await gate.client.post(PATH, json={"model": "m", **body})
    return found


async def test_commands_and_notices_are_in_the_words(tmp_path: Path) -> None:
    """Command replies and notices are part of the message content."""
    async with http(tmp_path) as gate:
        answer = await ask(gate, messages=[user("/status")], user="ann")
        assert "openai-user:ann" in answer.json()["choices"][0]["message"]["content"]
        streamed = await ask(gate, messages=[user("/new")], user="ann", stream=True)
        assert "New session" in _words(streamed)


@pytest.mark.mission("Y4")
async def test_a_client_that_sends_everything_hears_of_a_new_session_and_keeps_what_was_said(tmp_path: Path) -> None:
    """After an automatic reset, the reply shows a notice, and the new session has the client's earlier messages."""
    clock = Clock()
    async with http(tmp_path, {"session": {"reset": {"mode": "daily"}}}, clock=clock) as gate:
        await ask(gate, messages=[user("one")], user="ann")
        clock.now += 86_400
        said = [user("one"), {"role": "assistant", "content": "re: one"}, user("two")]
        answer = (await ask(gate, messages=said, user="ann")).json()["choices"][0]["message"]["content"]
        assert "04:00" in answer and "/resume" in answer and answer.endswith("re: two")
        assert [text for _, text in lines(gate.gateway, "openai-user:ann")] == ["one", "re: one", "two", "re: two"]


@pytest.mark.mission("Y11")
async def test_a_silent_answer_is_empty(tmp_path: Path) -> None:
    """A silent reply is empty, streamed or not."""
    async with http(tmp_path) as gate:
        gate.runner.say = lambda text: f"{NO_REPLY} unspoken"
        answer = await ask(gate, messages=[user("x")])
        assert answer.json()["choices"][0] == {
            "index": 0,
            "message": {"role": "assistant", "content": ""},
            "finish_reason": "stop",
        }
        streamed = await ask(gate, messages=[user("x")], stream=True)
        assert _words(streamed) == "" and "unspoken" not in streamed.text and NO_REPLY not in streamed.text


def _words(response: httpx.Response) -> str:
    *events, last = EventSource().feed(response.content)
    assert last.data == "[DONE]"
    chunks = [json.loads(event.data) for event in events]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])


async def test_images_are_taken_as_data_and_never_fetched(tmp_path: Path) -> None:
    """Images are accepted as data URLs; other URLs are rejected and never fetched."""
    async with http(tmp_path) as gate:
        data = f"data:image/png;base64,{PIXEL}"
        content: list[Json] = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": data}}]
        assert (await ask(gate, messages=[{"role": "user", "content": content}])).status_code == 200
        assert gate.runner.asked[0].messages[0]["content"][1]["mimeType"] == "image/png"
        content[1]["image_url"] = {"url": "http://169.254.169.254/latest"}
        refused = await ask(gate, messages=[{"role": "user", "content": content}])
        assert refused.status_code == 400 and "data URL" in refused.json()["error"]["message"]


async def test_what_cannot_be_meant_is_told_as_openai_does(tmp_path: Path) -> None:
    """Invalid requests return 400 in OpenAI's error format, and nothing is stored."""
    async with http(tmp_path) as gate:
        bad: list[Json] = [
            {},
            {"messages": []},
            {"messages": [user("x")], "n": 2},
            {"messages": [user("  ")]},
            {"messages": [{"role": "wizard", "content": "x"}]},
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            {"messages": [{"role": "user", "content": [{"type": "nonsense"}]}, user("x")]},
        ]
        for body in bad:
            response = await ask(gate, **body)
            told = response.json()["error"]
            assert response.status_code == 400 and told["type"] == "invalid_request_error" and told["message"], body
        named = {KEY: "agent::"}
        response = await gate.client.post(PATH, json={"model": "m", "messages": [user("x")]}, headers=named)
        assert response.status_code == 400
        assert (await gate.get("/v1/sessions"))["count"] == 0


async def test_too_many_are_told_when_to_come_back(tmp_path: Path) -> None:
    """A request beyond the queue limit returns 429 with Retry-After."""
    async with http(tmp_path, {"limits": {"queuedTurns": 1}}) as gate:
        gate.runner.gate = anyio.Event()
        for _ in range(2):
            await gate.ask("POST", "/v1/chat/send", body={"message": "x", "key": "openai-user:ann"}, status=202)
        response = await ask(gate, messages=[user("x")], user="ann")
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
        assert response.json()["error"]["type"] == "rate_limit_error"
        gate.runner.gate.set()
