"""Seeds for fuzzing: the corpus of damaged files, and a small file of every format with every kind of row."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from backports import zstd

from builders import AT, Json, entry, said
from poisoned_rows import claude_rows, codex_rows, header, myagents_rows, told_entries
from yoyoclaw import GROUP, MAIN, NOW, stored

_TESTS = Path(__file__).parents[1]
CRASHES = Path(__file__).with_name("crashes")  # inputs that once broke a law, by target


def rows(records: Iterable[Json]) -> bytes:
    """Return records as the lines of a file."""
    return b"".join(json.dumps(record, separators=(",", ":")).encode() + b"\n" for record in records)


def crashes(target: str) -> list[bytes]:
    """Return the inputs that once broke the law of a target."""
    return [path.read_bytes() for path in sorted((CRASHES / target).glob("*"))]


@cache
def sessions() -> Sequence[bytes]:
    """Return native session files: damaged ones, and one with every kind of entry."""
    corpus = [path.read_bytes() for path in sorted((_TESTS / "corpus").glob("*.jsonl"))]
    image = {"type": "image", "data": "iVBORw0K", "mimeType": "image/png"}
    kinds: list[Json] = [
        header("s"),
        said("k1", None, "hello"),
        entry("thinking_level_change", "k2", "k1", thinkingLevel="high"),
        entry("model_change", "k3", "k2", provider="anthropic", modelId="m", model="anthropic/m", role="default"),
        entry("mode_change", "k4", "k3", mode="plan", data={"a": 1}),
        entry("ttsr_injection", "k5", "k4", injectedRules=["r"]),
        entry("session_init", "k6", "k5", systemPrompt="be good", task="t", tools=["read"], outputSchema=None),
        entry("session_info", "k7", "k6", name="a name", source="user"),
        entry("label", "k8", "k7", targetId="k1", label="start"),
        entry("custom", "k9", "k8", customType="sessile.leaf", data=None),
        entry("custom_message", "k10", "k9", customType="note", content="note", display=True, details={}),
        entry("branch_summary", "k11", "k10", fromId="k1", summary="was tried", details={"readFiles": ["a"]}),
        entry("compaction", "k12", "k11", summary="so far", firstKeptEntryId="k1", tokensBefore=1000, details={}),
        entry("context_edit", "k13", "k12", targetId="k1", replacement={"content": "edited"}),
        entry("service_tier_change", "k14", "k13", serviceTier="flex"),
        entry("mcp_tool_selection", "k15", "k14", selectedToolNames=["x"]),
        entry("context_change", "k16", "k15", context={"a": "b"}),
        entry("message", "k17", "k16", message={"role": "bashExecution", "command": "ls", "output": "a", "exitCode": 1}),
        entry("message", "k18", "k17", message={"role": "pythonExecution", "code": "1", "output": "1", "exitCode": 0}),
        entry("message", "k19", "k18", message={"role": "fileMention", "files": [{"path": "a", "content": "b"}]}),
        entry("message", "k20", "k19", message={"role": "user", "content": [image]}),
        entry("reset_boundary", "k21", "k20"),
        said("k22", "k21", "again"),
    ]  # fmt: skip
    old: list[Json] = [
        {"type": "session", "id": "old", "timestamp": AT, "cwd": "/"},
        {"type": "message", "timestamp": AT, "message": {"role": "hookMessage", "content": "x"}},
        {"type": "compaction", "timestamp": AT, "summary": "x", "firstKeptEntryIndex": 1},
    ]
    small = [data for data in corpus if len(data) < 16 * 1024]
    return [*small, rows(kinds), rows([header("t"), *told_entries("t", "s1")]), rows(old)]


@cache
def claude() -> Sequence[bytes]:
    """Return transcripts of Claude Code."""
    parent = None
    found: list[Json] = []
    for variant in range(3):
        found += claude_rows("11111111-1111-4111-8111-111111111111", variant, parent)
        parent = next((row["uuid"] for row in reversed(found) if "uuid" in row), None)
    cases: list[bytes] = [rows(found)]
    for corpus in ("branches", "compaction"):
        path = _TESTS / "fixtures" / "claude" / f"{corpus}.files.json.gz"
        files = json.loads(gzip.decompress(path.read_bytes()))
        texts = sorted(
            {text.encode("utf-8", "surrogatepass") for text in files.values() if isinstance(text, str)}, key=len
        )
        cases += [text for text in texts if len(text) < 12 * 1024][:40]
    return cases


@cache
def codex() -> Sequence[bytes]:
    """Return rollouts of Codex, in the current and the first formats."""
    early: list[Json] = [
        {"id": "c", "timestamp": AT, "instructions": "x", "git": {}},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
    ]
    meta: Json = {
        "id": "c",
        "model_provider": "p",
        "base_instructions": {"text": "b"},
        "subagent_history_start_ordinal": 3,
    }
    usage = {"input_tokens": 9, "cached_input_tokens": 2, "output_tokens": 3, "total_tokens": 12}
    current: list[tuple[str, Json]] = [
        ("session_meta", meta),
        ("turn_context", {"model": "m"}),
        *(("response_item", item) for item in _ITEMS),
        ("token_usage_record", {"response_id": "r", "usage": usage}),
        ("event_msg", {"type": "token_count", "info": {"last_token_usage": usage, "total_token_usage": usage}}),
        ("compacted", {"message": "s", "replacement_history": _ITEMS, "compaction_response_id": "r"}),
        ("sessile.rewind", {"to": "@0"}),
        ("session_meta", meta | {"history_base": {"thread_id": "c", "end_ordinal_exclusive": 2, "end_byte_offset": 9}}),
        ("response_item", _ITEMS[0]),
    ]
    numbered = [
        {"timestamp": AT, "ordinal": number, "type": kind, "payload": payload}
        for number, (kind, payload) in enumerate(current)
    ]
    return [rows(codex_rows("c")), rows(early), rows(numbered)]


_NOTED = "internal_chat_message_metadata_passthrough"
_ITEMS: list[Json] = [
    {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "q"},
            {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
        ],
        _NOTED: {"turn_id": "t", "content_item_kinds": ["user.text", "user.image"]},
    },
    {
        "type": "message",
        "role": "developer",
        "content": "b",
        _NOTED: {"content_item_kinds": ["model.base_instructions"]},
    },
    {
        "type": "additional_tools",
        "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "x"}]}],
    },
    {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "e"},
    {"type": "function_call", "name": "f", "arguments": '{"a": 1}', "call_id": "1", "namespace": "n"},
    {"type": "custom_tool_call", "name": "x", "input": "*** Begin Patch", "call_id": "2"},
    {"type": "function_call_output", "call_id": "1", "output": '{"output": "o", "metadata": {"exit_code": 1}}'},
    {"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "Exit code: 1"}]},
    {"type": "tool_search_output", "call_id": "3", "tools": []},
    {"type": "agent_message", "content": [{"type": "encrypted_content", "encrypted_content": "e"}]},
]


@cache
def codex_items() -> Sequence[bytes]:
    """Return items of Codex, and all of them in a list."""
    return [json.dumps(_ITEMS).encode(), *(json.dumps(item).encode() for item in _ITEMS)]


@cache
def myagents() -> Sequence[bytes]:
    """Return messages of MyAgents, and an operation log of its later versions."""
    header_v2 = {"type": "header", "schemaVersion": 2, "sessionId": "s", "createdAt": AT}
    return [rows(myagents_rows()), json.dumps(myagents_rows()).encode(), rows([header_v2])]


@cache
def myagents_index() -> Sequence[bytes]:
    """Return an index of MyAgents."""
    listed = {
        "id": "s",
        "agentDir": "/work",
        "title": "t",
        "createdAt": AT,
        "lastActiveAt": AT,
        "stats": {"messageCount": 2},
    }
    return [json.dumps([listed, {**listed, "id": "t", "pinned": True}], indent=2).encode(), b"[]"]


@cache
def bindings() -> Sequence[bytes]:
    """Return binding stores of YoyoClaw."""
    entries = {
        MAIN: {
            "sessionId": "s",
            "updatedAt": NOW,
            "inputTokens": 5,
            "model": "m",
            "label": "x",
            "thinkingLevel": "high",
        },
        GROUP: {
            "sessionId": "t",
            "sessionFile": "t.jsonl",
            "updatedAt": NOW,
            "deliveryContext": {"channel": "telegram"},
        },
    }
    return [stored(entries), b"{}", json.dumps(entries).encode()]


def texts(*values: str) -> Sequence[bytes]:
    """Return short texts."""
    return [value.encode() for value in values]


@cache
def packed() -> Sequence[bytes]:
    """Return compressed session files."""
    plain = sessions()[-2]
    return [gzip.compress(plain), zstd.compress(plain), gzip.compress(plain[:100]) + gzip.compress(plain[100:])]
