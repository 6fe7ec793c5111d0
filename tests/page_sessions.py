"""Sessions with everything that a page shows: branches, tools, labels, markers, compactions, edits and damage."""

from __future__ import annotations

from typing import Any

from builders import assistant, user
from http_rig import Http
from sessile import Session, Store
from sessile.render.page import PageTree
from sessions import append_raw, begun

Json = dict[str, Any]


def calling(text: str, call: str, tokens: int | None = None) -> Json:
    """Return an answer that calls a tool; `tokens` is the provider's count."""
    message = assistant(text, "anthropic", "claude-opus-4-5")
    message["content"].append({"type": "toolCall", "id": call, "name": "bash", "arguments": {"command": f"run {call}"}})
    return message if tokens is None else message | counted(tokens)


def counted(tokens: int) -> Json:
    """Return the usage of an answer with ten output tokens."""
    return {"usage": {"input": tokens - 10, "output": 10, "totalTokens": tokens}, "stopReason": "stop"}


def result(call: str, text: str, failed: bool = False) -> Json:
    """Return a tool result."""
    content = [{"type": "text", "text": text}]
    return {"role": "toolResult", "toolCallId": call, "toolName": "bash", "content": content, "isError": failed}


def told_story(store: Store) -> Session:
    """Write a session with two branches, a label, a leaf marker and a failed tool, and close it."""
    with begun(store) as session:
        first = session.append_message(user("Fix the *webhook*")).id
        session.append_message(calling("I look", "c1", 1_000))
        session.append_message(result("c1", "boom\nsecond line", failed=True))
        tip = session.append_message(assistant("It is broken")).id
        session.append_label_change(first, "start")
        session.branch(first, durable=True)
        session.append_message(assistant("Another way", "anthropic", "claude-opus-4-5") | counted(2_000))
        session.append_message(user("Go on"))
        session.branch(tip, durable=True)
        session.append_thinking_level_change("high")
    return session


def long_story(store: Store) -> Session:
    """Write a path with two compactions, edits, a reset and a command excluded from the context, and close it."""
    with begun(store) as session:
        ids = [session.append_message(user(f"prompt {number}")).id for number in range(4)]
        session.append_message(assistant("one") | counted(500))
        session.append_compaction("the beginning", first_kept_entry_id=ids[2], tokens_before=500)
        ids += [session.append_message(user("prompt 4")).id, session.append_message(user("prompt 5")).id]
        session.append_context_edit(ids[4], None)
        session.append_context_edit(ids[5], "shorter")
        session.append_message({"role": "bashExecution", "command": "ls", "output": "a", "excludeFromContext": True})
        session.append_message({"role": "bashExecution", "command": "id", "output": "b"})
        session.append_message(assistant("two"))
        session.append_compaction("more", first_kept_entry_id=ids[5], tokens_before=700)
        session.append_custom_entry("note", {"x": 1})
        session.append_message(user("prompt 6"))
        session.append_message(assistant("three"))
        session.append_reset_boundary()
        session.append_message(user("prompt 7"))
        session.append_message(assistant("four") | counted(50))
    return session


def damaged_story(store: Store) -> Session:
    """Write a session with unreadable lines after the header and after its first entry, and close it."""
    with begun(store) as session:
        pass
    append_raw(session.path, "not json at all")
    append_raw(session.path, {"type": "message", "id": "aaaaaaa1", "parentId": None, "message": user("hello")})
    append_raw(session.path, '{"type": "message", "id": ')
    append_raw(session.path, {"type": "message", "id": "aaaaaaa2", "parentId": "aaaaaaa1", "message": assistant("hi")})
    return session


def whole_tree(session: Session) -> PageTree:
    """Return an export's view of a session, with every line counted."""
    entries = [entry.body for entry in session.iter_lines()]
    return PageTree(entries, session.leaf_id, session.get_labels())


async def outlined(gate: Http, session_id: str, size: int = 5_000) -> Json:
    """Return the whole outline of a session, requested in parts."""
    whole: Json = {}
    start = total = 0
    while start < total or not whole:
        part = await gate.get("/v1/view/outline", id=session_id, **{"from": start, "to": start + size})
        for name, column in part.items():
            whole[name] = whole.get(name, []) + column if isinstance(column, list) else column
        start, total = part["to"], part["total"]
    return whole
