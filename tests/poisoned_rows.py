"""Templates of agents' rows with a mark in every text, to be replaced by payloads."""

from __future__ import annotations

from builders import AT, Json, entry
from sessile.core.kinds import TAG

MARK = "§"
NEEDLE = "needle"  # in every searched text
USAGE = {"input": 30_000, "output": 100, "totalTokens": 30_100, "cost": {"total": 0.1}}


def header(session_id: str) -> Json:
    """Return the header of a native session."""
    return {
        "type": "session",
        "version": 3,
        "id": session_id,
        "timestamp": AT,
        "cwd": f"/work/{MARK}",
        "title": f"{MARK} {NEEDLE}",
        "parentSession": MARK,
        "tag": MARK,
        MARK: MARK,
    }


def told_entries(name: str, parent: str) -> list[Json]:
    """Return entries with special rendering: known tools with edits, a failed answer with a price, manual entries."""
    calls = [
        {"type": "toolCall", "id": f"{name}-{tool}", "name": tool, "arguments": arguments}
        for tool, arguments in (
            ("edit", {"path": MARK, "oldText": MARK, "newText": MARK, "edits": [{"oldText": MARK, "newText": MARK}]}),
            ("Edit", {"file_path": MARK, "old_string": MARK, "new_string": MARK}),
            ("write", {"path": MARK, "content": MARK}),
            ("read", {"path": MARK}),
            ("bash", {"command": MARK, "description": MARK}),
            ("grep", {"pattern": MARK, "path": MARK}),
            ("todo_write", {"todos": [{"content": MARK, "status": MARK}]}),
            ("task", {"prompt": MARK, "agent": MARK}),
        )
    ]
    secret = "password=ghp_N0tARealKeyN0tARealKeyN0tARealKeyN0t"
    answer = {"role": "assistant", "provider": "anthropic", "usage": USAGE, "stopReason": "error"}
    said: list[tuple[str, Json]] = [
        ("asks", {"role": "user", "content": f"{NEEDLE} {MARK} {secret} {MARK}"}),
        ("calls", {**answer, "model": MARK, "content": [{"type": "text", "text": f"{NEEDLE} {MARK}"}, *calls]}),
        *((f"result-{call['name']}", _result(call)) for call in calls),
        ("fails", {**answer, "model": f"m/{MARK}", "errorMessage": f"{NEEDLE} {MARK}", "content": []}),
        ("thinks", {**answer, "content": [{"type": "thinking", "thinking": f"{NEEDLE} {MARK}", "signature": MARK}]}),
        ("last", {**answer, "stopReason": "stop", "content": [{"type": "text", "text": f"done {MARK}"}]}),
    ]
    rows: list[Json] = [entry("custom", f"{name}-tag", parent, customType=TAG, data={"tag": MARK})]
    for kind, message in said:
        rows.append(entry("message", f"{name}-{kind}", rows[-1]["id"], message=message))
    return rows


def _result(call: Json) -> Json:
    content = [{"type": "text", "text": f"\x1b[31m{NEEDLE} {MARK}\x1b[0m\n{MARK}"}]
    details = {"diff": f"--- {MARK}\n+++ {MARK}\n@@ {MARK}\n+{MARK}\n-{MARK}\n", "path": MARK, "exitCode": 1}
    base = {"role": "toolResult", "toolCallId": call["id"], "toolName": call["name"]}
    return {**base, "content": content, "details": details, "isError": True}


def claude_rows(session_id: str, variant: int, parent: str | None) -> list[Json]:
    """Return all kinds of Claude Code rows with a mark in every text."""
    base = {
        "sessionId": session_id,
        "cwd": f"/work/{MARK}",
        "version": MARK,
        "gitBranch": MARK,
        "userType": MARK,
        "slug": MARK,
    }
    names = iter(f"{variant:08d}-{n:04d}-4000-8000-000000000000" for n in range(1, 100))
    tool = {"type": "tool_use", "id": MARK, "name": MARK, "input": {"command": MARK, MARK: MARK, "file_path": MARK}}
    known = {
        "type": "tool_use",
        "id": f"known{variant}",
        "name": "Edit",
        "input": {"file_path": MARK, "old_string": MARK, "new_string": MARK},
    }
    picture = {"type": "image", "source": {"type": MARK, "media_type": MARK, "data": MARK}}
    result = {
        "type": "tool_result",
        "tool_use_id": f"known{variant}",
        "content": [{"type": "text", "text": MARK}],
        "is_error": True,
    }
    spoken: list[Json] = [
        {"type": "user", "message": {"role": "user", "content": f"{NEEDLE} {MARK}"}},
        {
            "type": "user",
            "message": {"role": MARK, "content": [{"type": "text", "text": MARK}, picture, {"type": MARK, MARK: MARK}]},
        },
        {
            "type": "assistant",
            "requestId": MARK,
            "message": {
                "id": f"msg{variant}",
                "role": "assistant",
                "model": MARK,
                "stop_reason": MARK,
                "content": [{"type": "thinking", "thinking": MARK}, {"type": "text", "text": MARK}, tool, known],
            },
        },
        {
            "type": "user",
            "message": {"role": "user", "content": [result]},
            "toolUseResult": {"stdout": MARK, "filePath": MARK, MARK: MARK},
        },
        {
            "type": "assistant",
            "isApiErrorMessage": True,
            "error": MARK,
            "message": {
                "id": MARK,
                "role": "assistant",
                "model": "<synthetic>",
                "content": [{"type": "text", "text": MARK}],
            },
        },
        {"type": "system", "subtype": MARK, "content": MARK, "level": MARK},
        {
            "type": "system",
            "subtype": "compact_boundary",
            "content": MARK,
            "compactMetadata": {"trigger": MARK, "preTokens": 5},
        },
        {"type": "user", "isCompactSummary": True, "message": {"role": "user", "content": MARK}},
        {"type": "attachment", "attachment": {"type": MARK, "filename": MARK, "content": MARK}},
        {"type": "progress", "data": {"type": MARK, "message": MARK}},
        {"type": MARK, MARK: MARK},
    ]
    rows: list[Json] = []
    for row in spoken:
        rows.append(row | base | {"uuid": next(names), "parentUuid": parent, "timestamp": AT})
        parent = rows[-1]["uuid"]
    return [
        *rows,
        {"type": "summary", "summary": MARK, "leafUuid": parent},
        {"type": "custom-title", "customTitle": MARK, "sessionId": session_id},
        {"type": "ai-title", "aiTitle": MARK, "sessionId": session_id},
        {"type": "tag", "tag": MARK, "sessionId": session_id},
        {"type": "agent-name", "agentName": MARK, "sessionId": session_id},
        {"type": "queue-operation", "operation": MARK, "content": MARK, "sessionId": session_id, "timestamp": AT},
    ]


def codex_rows(session_id: str) -> list[Json]:
    """Return all kinds of Codex rows."""
    items: list[tuple[str, Json]] = [
        (
            "session_meta",
            {
                "id": session_id,
                "timestamp": AT,
                "cwd": f"/work/{MARK}",
                "originator": MARK,
                "instructions": MARK,
                "git": {"branch": MARK},
            },
        ),
        ("turn_context", {"model": MARK, "cwd": MARK, "effort": MARK}),
        (
            "response_item",
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": f"{NEEDLE} {MARK}"},
                    {"type": "input_image", "image_url": MARK},
                ],
            },
        ),
        (
            "response_item",
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": MARK}], "encrypted_content": MARK},
        ),
        ("response_item", {"type": "function_call", "name": MARK, "arguments": MARK, "call_id": MARK}),
        ("response_item", {"type": "function_call_output", "call_id": MARK, "output": MARK}),
        (
            "response_item",
            {
                "type": "custom_tool_call",
                "name": "apply_patch",
                "input": f"*** Update File: {MARK}\n+{MARK}",
                "call_id": "c",
            },
        ),
        (
            "response_item",
            {"type": "local_shell_call", "action": {"type": "exec", "command": [MARK, MARK]}, "call_id": "d"},
        ),
        (
            "response_item",
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": MARK}]},
        ),
        ("event_msg", {"type": "error", "message": MARK}),
        ("event_msg", {"type": MARK, MARK: MARK}),
        ("compacted", {"message": MARK}),
        (MARK, {MARK: MARK}),
    ]
    return [{"timestamp": AT, "type": kind, "payload": payload} for kind, payload in items]


def myagents_rows() -> list[Json]:
    """Return MyAgents rows: a prompt, an answer with blocks, and another kind."""
    blocks = [
        {"type": "thinking", "thinking": MARK},
        {"type": "tool_use", "tool": {"id": "t1", "name": MARK, "input": {"path": MARK, MARK: MARK}, "result": MARK}},
        {"type": "text", "text": MARK},
    ]
    attachment = {"id": MARK, "name": MARK, "mimeType": MARK, "path": MARK}
    return [
        {
            "id": MARK,
            "role": "user",
            "content": f"{NEEDLE} {MARK}",
            "timestamp": AT,
            "attachments": [attachment],
            "metadata": {MARK: MARK},
        },
        {
            "id": MARK,
            "role": "assistant",
            "content": blocks,
            "timestamp": AT,
            "usage": {"model": MARK, "inputTokens": 5},
        },
        {"id": MARK, "role": MARK, "content": MARK, "timestamp": AT},
    ]
