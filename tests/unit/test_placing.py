"""Conversations as the sessions of other agents: what each of them gets of odd messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from resuming import picture
from sessile.agents.base import Placed
from sessile.agents.registry import AGENTS
from sessile.core.conversation import Conversation
from sessile.errors import Unsupported

AT = 1_794_900_000_000
CLAUDE = {"provider": "anthropic", "api": "anthropic-messages", "model": "claude-sonnet-4-5"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}


def place(to: str, *messages: dict[str, Any], origin: str | None = None, **how: Any) -> Placed:
    """Place a conversation in a home at /home/u."""
    agent = AGENTS.get(to)
    assert agent is not None
    facts = {"cwd": "/work/app", "title": None} | how
    told = Conversation("s1", origin, facts["cwd"], facts["title"], AT, messages)
    return agent.place(told, "/home/u", how.get("environ", {}))


def rows(copy: Placed) -> list[dict[str, Any]]:
    """Return the rows of a placed session."""
    return [json.loads(line) for line in copy.lines]


def user(content: Any) -> dict[str, Any]:
    """Return a message of the user."""
    return {"role": "user", "content": content, "timestamp": AT}


def answer(*blocks: dict[str, Any], **members: Any) -> dict[str, Any]:
    """Return an answer of Claude."""
    return {"role": "assistant", "content": list(blocks), "timestamp": AT, **CLAUDE, **members}


def call(call_id: Any, name: Any, arguments: Any = None) -> dict[str, Any]:
    """Return a tool call."""
    return {"type": "toolCall", "id": call_id, "name": name, "arguments": arguments or {}}


@pytest.mark.mission("N3")
@pytest.mark.parametrize("to", ["claude", "codex", "pi", "omp", "xcsh"])
def test_every_call_has_a_name_an_id_and_a_result(to: str) -> None:
    """Empty names and refused ids are repaired alike in calls and results; a stopped call gets a result, too."""
    copy = place(
        to,
        user("go"),
        answer(call("a/b:ü", ""), call("call_1", "my tool")),
        {"role": "toolResult", "toolCallId": "a/b:ü", "toolName": "", "content": "one", "timestamp": AT},
        answer(call("x" * 90, "t"), stopReason="aborted"),
        user("and?"),
    )
    text = b"".join(copy.lines).decode()
    assert "a/b" not in text and "my tool" not in text and "x" * 90 not in text
    assert text.count("unknown_tool") in (1, 2) and "my_tool" in text
    assert sum("has no result; one was added" in note for note in copy.notes) == 2
    if to == "claude":
        blocks = [block for row in rows(copy) for block in row["message"]["content"] if isinstance(block, dict)]
        uses = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert uses == [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert len(set(uses)) == 3 and "call_1" in uses


@pytest.mark.mission("N3")
def test_thinking_goes_only_where_its_signature_is_accepted() -> None:
    """Claude Code gets thoughts that Claude signed, Codex its own reasoning, oh-my-pi a text instead of a foreign thought."""
    signed = {"type": "thinking", "thinking": "hm", "thinkingSignature": "c2lnbmF0dXJl"}
    foreign = {"type": "thinking", "thinking": "hm", "thinkingSignature": json.dumps(REASONING)}
    said = {"type": "text", "text": "yes"}
    openai = {"provider": "openai", "api": "openai-responses", "model": "gpt-5.5"}
    anthropic, other = [user("?"), answer(signed, said)], [user("?"), answer(foreign, said, **openai)]
    assert rows(place("claude", *anthropic))[1]["message"]["content"][0]["signature"] == "c2lnbmF0dXJl"
    assert [block["type"] for block in rows(place("claude", *other))[1]["message"]["content"]] == ["text"]
    kinds = [row["payload"].get("type") for row in rows(place("codex", *other, origin="codex"))]
    assert "reasoning" in kinds
    for messages, origin in ((other, "pi"), (anthropic, None)):
        text = b"".join(place("codex", *messages, origin=origin).lines)
        assert b"reasoning" not in text and b"hm" not in text
    assert rows(place("pi", *other))[2]["message"]["content"][0]["thinking"] == "hm"
    assert rows(place("omp", *other))[2]["message"]["content"][0]["text"] == "<thinking>\nhm\n</thinking>"
    assert rows(place("omp", *anthropic))[2]["message"]["content"][0] == signed


@pytest.mark.mission("N3")
@pytest.mark.parametrize("to", ["claude", "codex", "pi", "omp"])
def test_what_an_agent_has_no_form_for_becomes_a_text(to: str) -> None:
    """Unknown roles and parts, documents and images of answers reach the model in some form, each with a note."""
    document = {"type": "document", "text": "the text of a document", "name": "a.txt"}
    made = {"type": "image", "data": picture(3), "mimeType": "image/png"}
    odd = {"type": "other", "api": "x", "value": {"odd": "an odd part"}}
    copy = place(
        to,
        {"role": "system", "content": "You are another agent."},
        answer({"type": "text", "text": "the agent begins"}, made),
        user([document, odd]),
        {"role": "weather", "content": "it rains", "timestamp": AT},
        {"role": "bashExecution", "command": "secret", "output": "", "excludeFromContext": True},
    )
    text = b"".join(copy.lines).decode()
    for part in ("the agent begins", "the text of a document", "an odd part", "it rains", picture(3)):
        assert part in text, part
    assert "You are another agent" not in text
    assert any("system prompt" in note for note in copy.notes) and any("weather" in note for note in copy.notes)
    kept = [row for row in rows(copy) if "secret" in str(row)]
    assert [row["message"]["excludeFromContext"] for row in kept] == [True] * (to in ("pi", "omp"))
    if to == "claude":
        assert rows(copy)[0]["type"] == "user"


@pytest.mark.mission("N3")
def test_names_and_places_follow_the_rules_of_each_agent() -> None:
    """Variables move the homes; oh-my-pi has short names below the home; ids depend on the conversation alone."""
    asked = user("x")
    moved = place("claude", asked, environ={"CLAUDE_CONFIG_DIR": "/c"})
    assert moved.path == f"/c/projects/-work-app/{moved.id}.jsonl"
    assert place("codex", asked, environ={"CODEX_HOME": "/x"}).path.startswith(
        "/x/sessions/2026/11/17/rollout-2026-11-17T"
    )
    assert "/p/sessions/--work-app--/" in place("pi", asked, environ={"PI_CODING_AGENT_DIR": "/p"}).path
    assert "/home/u/.omp/agent/sessions/-code-app/" in place("omp", asked, cwd="/home/u/code/app").path
    assert "/home/u/.omp/agent/sessions/-tmp-app/" in place("omp", asked, cwd="/tmp/app").path
    assert "/home/u/.omp/agent/sessions/--srv-app--/" in place("omp", asked, cwd="/srv/app").path
    for agent in ("claude", "codex", "pi", "omp"):
        same, other = place(agent, asked), place(agent, user("y"))
        assert same == place(agent, asked) and same.id != other.id and same.path != other.path
    assert place("codex", asked).id[14] == place("pi", asked).id[14] == "7"


def test_the_family_keeps_the_two_ids_of_a_call() -> None:
    """pi stores both ids of a call of the Responses API in one; Codex and Claude Code get one."""
    messages = user("?"), answer(call("call_1|fc_2", "t"))
    assert "call_1|fc_2" in str(place("pi", *messages).lines)
    assert "|" not in str(place("claude", *messages).lines) and "|" not in str(place("codex", *messages).lines)


def test_a_summary_is_a_compaction_for_the_family() -> None:
    """It is the first entry and keeps everything after it, so that a next compaction knows where the last one ended."""
    _, first, second, name = rows(
        place("pi", {"role": "compactionSummary", "summary": "long ago", "tokensBefore": 7}, user("go on"), title="T")
    )
    assert (first["type"], first["summary"], first["firstKeptEntryId"]) == ("compaction", "long ago", second["id"])
    assert (name["type"], name["name"], name["parentId"]) == ("session_info", "T", second["id"])


def test_a_long_output_is_whole_for_codex() -> None:
    """Codex cuts outputs when it sends them, unless their row allows more tokens."""
    result = {"role": "toolResult", "toolCallId": "c", "toolName": "t", "content": "x" * 100_000, "timestamp": AT}
    (row,) = [row for row in rows(place("codex", user("?"), answer(call("c", "t")), result)) if "metadata" in row]
    assert row["metadata"]["fallback_token_limit_override"] > 100_000


def test_an_agent_without_a_writer_says_so() -> None:
    """The hint names a way out."""
    with pytest.raises(Unsupported, match="cannot place a session for myagents"):
        place("myagents", user("x"))
