"""Rows of Codex: what each item becomes, what rows around it tell, and the request that is made of them again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agent_records
from sessile import Library, Store
from sessile.agents.codex.items import PASSED, item_of, message_of
from sessile.agents.codex.replay import replay
from sessile.agents.registry import AGENTS
from sessile.core.sending import request_for
from sessile.session import Session
from sessile.storage.layout import Source

THREAD = "01a1e659-4481-7992-a097-3b7937fe9b7d"
AT = "2026-05-01T10:00:00.000Z"
META = {
    "id": THREAD,
    "timestamp": AT,
    "cwd": "/work/app",
    "model_provider": "acme",
    "base_instructions": {"text": "be brief"},
}


def item(kind: str, **members: Any) -> dict[str, Any]:
    return {"type": "response_item", "payload": {"type": kind, **members}}


def said(role: str, text: str, *kinds: str) -> dict[str, Any]:
    part = "output_text" if role == "assistant" else "input_text"
    noted = {PASSED: {"content_item_kinds": list(kinds)}} if kinds else {}
    return item("message", role=role, content=[{"type": part, "text": text}], **noted)


def used(response: str, tokens: int, cached: int = 0) -> dict[str, Any]:
    usage = {"input_tokens": tokens, "cached_input_tokens": cached, "output_tokens": 2, "total_tokens": tokens + 2}
    return {"type": "token_usage_record", "payload": {"response_id": response, "usage": usage}}


def counted(total: int, last: int) -> dict[str, Any]:
    """Return the event that older rollouts have instead."""
    info = {
        "total_token_usage": {"total_tokens": total},
        "last_token_usage": {"input_tokens": last, "total_tokens": last},
    }
    return {"type": "event_msg", "payload": {"type": "token_count", "info": info}}


def opened(tmp_path: Path, rows: list[dict[str, Any]], *, numbered: bool = True) -> Session:
    first = {"type": "session_meta", "payload": META}
    whole = [first, {"type": "turn_context", "payload": {"model": "gpt-x"}}, *rows]
    path = tmp_path / "sessions" / f"rollout-2026-05-01T10-00-00-{THREAD}.jsonl"
    path.parent.mkdir(exist_ok=True)
    numbers = [{"ordinal": number} if numbered else {} for number in range(len(whole))]
    lines = [json.dumps({"timestamp": AT, **row, **number}) for row, number in zip(whole, numbers, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return Store(str(tmp_path / "store")).open(path, readonly=True)


def answers(session: Session) -> list[dict[str, Any]]:
    return [message for message in session.context().messages if message["role"] == "assistant"]


CALL = item("function_call", name="exec_command", arguments='{"cmd":"ls"}', call_id="c1", namespace="functions")
PATCH = item("custom_tool_call", name="apply_patch", input="*** Begin Patch\n", call_id="c2")


@pytest.mark.mission("N2")
def test_a_response_has_its_usage_once_and_every_row_its_model(tmp_path: Path) -> None:
    """A response is several rows; the first of them has the usage, which its parent entry led to."""
    rows = [
        said("user", "q", "user.text"),
        item("reasoning", summary=[], content=None, encrypted_content="sealed"),
        CALL,
    ]
    rows += [used("resp_1", 10, 4), item("function_call_output", call_id="c1", output="a.txt")]
    rows += [said("assistant", "done"), used("resp_2", 20)]
    with opened(tmp_path, rows) as session:
        thought, call, last = answers(session)
        assert thought["usage"] == {"input": 6, "cacheRead": 4, "output": 2, "totalTokens": 12}
        assert "usage" not in call and last["usage"]["totalTokens"] == 22
        assert {(each["provider"], each["model"]) for each in (thought, call, last)} == {("acme", "gpt-x")}
        assert json.loads(thought["content"][0]["thinkingSignature"])["encrypted_content"] == "sealed"
        assert [each["responseId"] for each in (thought, call, last)] == ["resp_1", "resp_1", "resp_2"]


@pytest.mark.mission("N2")
def test_events_of_older_rollouts_that_repeat_the_usage_count_once(tmp_path: Path) -> None:
    """`token_count` tells the same usage several times; sums are those of the responses."""
    rows = [
        said("user", "q"),
        CALL,
        counted(10, 10),
        counted(10, 10),
        item("function_call_output", call_id="c1", output="a"),
    ]
    rows += [counted(10, 10), said("assistant", "done"), counted(30, 20), counted(30, 20)]
    with opened(tmp_path, rows, numbered=False) as session:
        assert [message.get("usage", {}).get("totalTokens") for message in answers(session)] == [10, 20]
    with Library(
        Store(str(tmp_path / "store")), [Source("codex", str(tmp_path), str(tmp_path / "sessions"))]
    ) as library:
        library.catch_up("count")
        (row,) = library.list().rows
        assert row.counts is not None and (row.counts.total_tokens, row.counts.models) == (30, {"acme/gpt-x": 2})


@pytest.mark.mission("N2")
def test_calls_stay_in_the_form_in_which_they_were_made(tmp_path: Path) -> None:
    """A patch is text; arguments are an object; results name the tool of their call and whether it failed."""
    failed = "Chunk ID: 1\nWall time: 0.1 seconds\nProcess exited with code 2\nOutput:\nProcess exited with code 0"
    rows = [said("user", "q", "user.text"), CALL, PATCH, used("resp_1", 10)]
    rows += [item("function_call_output", call_id="c1", output=failed)]
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "high"}
    rows += [item("custom_tool_call_output", call_id="c2", output=[{"type": "input_text", "text": "ok"}, image])]
    with opened(tmp_path, rows) as session:
        call, patch = (message["content"][0] for message in answers(session))
        assert call["arguments"] == {"cmd": "ls"} and "custom" not in call
        assert (patch["arguments"], patch["custom"]) == ({"input": "*** Begin Patch\n"}, True)
        results = [message for message in session.context().messages if message["role"] == "toolResult"]
        assert [(each["toolName"], each["isError"]) for each in results] == [
            ("exec_command", True),
            ("apply_patch", False),
        ]
        assert results[1]["content"][1] == {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="}


@pytest.mark.mission("N2")
def test_only_what_a_person_wrote_is_a_prompt(tmp_path: Path) -> None:
    """Notes of the harness are in the context, in their place and role, but they are no prompts and no titles."""
    rows = [
        said("developer", "be careful", "permissions.instructions"),
        said("user", "cwd", "environments.environment_context"),
    ]
    rows += [said("user", "question", "user.text"), said("user", "stopped", "generic.turn_aborted")]
    with opened(tmp_path, rows) as session:
        messages = session.context().messages
        assert [message["role"] for message in messages] == ["system", "developer", "custom", "user", "custom"]
        assert messages[1]["content"] == [{"type": "text", "text": "be careful"}]
    with Library(
        Store(str(tmp_path / "store")), [Source("codex", str(tmp_path), str(tmp_path / "sessions"))]
    ) as library:
        library.catch_up("count")
        (row,) = library.list().rows
        assert row.counts is not None and (row.first_text, row.counts.user_messages) == ("question", 1)


@pytest.mark.mission("N2")
def test_a_compaction_leaves_the_history_that_codex_kept(tmp_path: Path) -> None:
    """The replacement is the context: prompts, notes in the middle and the summary, with the system prompt before them."""
    summary = said("user", "Another model wrote: short", "compaction.summary")["payload"]
    kept = [said("user", "old question", "user.text")["payload"], said("developer", "note", "x.y")["payload"], summary]
    output = said("assistant", "short") | {"metadata": {"compaction_output": True}}
    rows = [said("user", "old question", "user.text"), said("assistant", "long answer"), used("resp_1", 500)]
    rows += [output, used("resp_2", 30)]
    payload = {"message": "Another model wrote: short", "replacement_history": kept, "compaction_response_id": "resp_2"}
    rows += [{"type": "compacted", "payload": payload}, said("user", "new question", "user.text")]
    with opened(tmp_path, rows) as session:
        context = session.context()
        texts = [part["text"] for message in context.messages for part in message["content"]]
        assert texts == ["old question", "note", "Another model wrote: short", "new question"]
        assert context.system == "be brief"
        (entry,) = [entry for entry in session.iter_entries() if entry["type"] == "compaction"]
        assert (entry["tokensBefore"], entry["summary"]) == (502, "short")


@pytest.mark.mission("N2")
def test_the_base_instructions_are_the_system_prompt_once(tmp_path: Path) -> None:
    """Models with tools in the input get the instructions as an item: it replaces those of the first row."""
    tools = [
        {"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec", "description": "runs"}]}
    ]
    rows = [
        item("additional_tools", role="developer", tools=tools),
        said("developer", "be brief", "model.base_instructions"),
    ]
    rows += [said("user", "question", "user.text")]
    with opened(tmp_path, rows) as session:
        context = session.context()
        assert context.system == "be brief"
        assert [(tool["name"], tool["custom"], tool["namespace"]) for tool in context.tools] == [
            ("exec", True, "functions")
        ]
        made = replay("responses", context.messages, context.sources)
    assert made is not None and [each["type"] for each in made["input"]] == ["additional_tools", "message", "message"]
    assert not any(gap.startswith("tools") for gap in made.gaps)


@pytest.mark.mission("N2")
def test_a_call_without_a_result_gets_the_word_of_codex(tmp_path: Path) -> None:
    """A session that was killed in a tool is sent with `aborted` right after the call, and a note says so."""
    with opened(tmp_path, [said("user", "q", "user.text"), CALL, PATCH, said("user", "again", "user.text")]) as session:
        context = session.context()
        made = replay("responses", context.messages, context.sources)
    assert made is not None
    assert made["input"][0] == {
        "type": "message",
        "role": "developer",
        "content": [{"type": "input_text", "text": "be brief"}],
    }
    results = [each for each in made["input"] if each["type"].endswith("_output")]
    assert [(each["type"], each["call_id"], each["output"]) for each in results] == [
        ("function_call_output", "c1", "aborted"),
        ("custom_tool_call_output", "c2", "aborted"),
    ]
    assert [note.did for note in made.notes] == ["made", "made"]


def test_a_changed_message_is_sent_as_it_is_now() -> None:
    """An item is made from what the message says, so a removed secret is not sent."""
    message = message_of(said("user", "the key is 1234", "user.text")["payload"])
    message["content"][0]["text"] = "the key is gone"
    made = item_of(message)
    assert made is not None and made["content"] == [{"type": "input_text", "text": "the key is gone"}]
    message["content"] = []
    assert item_of(message) is None


# -- the record of the real program


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return agent_records.unpack("codex", tmp_path_factory.mktemp("codex"))


def _rows(record: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted((record / "home" / ".codex").rglob("rollout-*.jsonl")):
        yield from ((path, json.loads(line)) for line in path.read_text().splitlines())


def _library(record: Path, tmp_path: Path) -> Library:
    agent = AGENTS.get("codex")
    assert agent is not None
    sources = agent.sources(str(record / "home"), {}, lambda path: [])
    return Library(Store(str(tmp_path / "store")), sources)


@pytest.mark.mission("N2")
def test_every_item_of_the_record_is_given_back_as_it_was(record: Path) -> None:
    """An item as a message, and that as an item again, is the same item without Codex's notes on it."""
    items = [row["payload"] for _, row in _rows(record) if row["type"] == "response_item"]
    items += [
        each for _, row in _rows(record) if row["type"] == "compacted" for each in row["payload"]["replacement_history"]
    ]
    assert len(items) > 300
    for each in items:
        assert item_of(message_of(each)) == {name: value for name, value in each.items() if name != PASSED}


@pytest.mark.mission("N4")
def test_every_thread_of_the_record_is_listed_once_with_its_own_tokens(record: Path, tmp_path: Path) -> None:
    """Threads of forks, rewinds and sub-agents, current or archived: each has the usage of its own responses."""
    spent: dict[str, int] = {}
    for path, row in _rows(record):
        thread = path.stem.partition("_")[0][-36:]
        spent.setdefault(thread, 0)
        if row["type"] == "token_usage_record":
            spent[thread] += row["payload"]["usage"]["total_tokens"]
    with _library(record, tmp_path) as library:
        library.catch_up("count")
        rows = {row.id: row for row in library.list().rows}
    assert len(rows) == 12
    assert {known: (row.counts and row.counts.total_tokens) or 0 for known, row in rows.items()} == spent
    names = [json.loads(line) for line in (record / "home" / ".codex" / "session_index.jsonl").read_text().splitlines()]
    assert all(rows[each["id"]].title == each["thread_name"] for each in names)


@pytest.mark.mission("N4")
def test_every_prompt_of_the_record_is_found(record: Path, tmp_path: Path) -> None:
    """A search for what a person typed finds it, also where it was taken back or compacted away."""
    typed = [json.loads(line) for line in (record / "home" / ".codex" / "history.jsonl").read_text().splitlines()]
    assert len(typed) > 5
    with _library(record, tmp_path) as library:
        for prompt in typed:
            words = "".join(each if each.isalnum() else " " for each in prompt["text"])
            if prompt["text"].startswith("/"):
                continue  # a command of the screen
            hits = library.search(words, fields=["text"]).hits
            assert prompt["session_id"] in {hit.session_id for hit in hits}, prompt


@pytest.mark.mission("N2")
def test_another_api_gets_everything_that_codex_said(record: Path, tmp_path: Path) -> None:
    """Every text, call, result and image of a context is in the request to Anthropic, in order."""
    with _library(record, tmp_path) as library:
        library.catch_up()
        paths = [row.path for row in library.list().rows]
    for path in paths:
        with Store(str(tmp_path / "store")).open(path, readonly=True) as session:
            context = session.context()
        request = request_for(context, "anthropic")
        flat = json.dumps([request.get("system"), request["messages"]], ensure_ascii=False)
        at = 0
        for message in context.messages:
            if message["role"] == "system":
                continue
            for part in message["content"]:
                text = json.dumps(part.get("text") or part.get("data") or part.get("name") or "", ensure_ascii=False)[
                    1:-1
                ]
                found = flat.find(text.strip(), at)
                assert found >= 0, (path, part)
                at = found if part["type"] == "toolCall" else at
