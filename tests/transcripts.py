"""Sessions prepared for display, for tests of their renderers."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from builders import AT_MS, Json, entry
from sessile.render.shown import Transcript

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(3000)).decode()


def transcript(entries: Iterable[Json], **members: Any) -> Transcript:
    """Return a session with these entries."""
    plain: Json = {
        "id": "s1",
        "title": "A session",
        "cwd": "/work/app",
        "created": AT_MS,
        "entries": entries,
        "entry_count": len(entries) if isinstance(entries, list) else 0,
        "leaf": None,
        "labels": {},
        "gaps": (),
        "depth": "tools",
        "notes": (),
    }
    return Transcript(**plain | members)


def called(entry_id: str, parent_id: str | None, text: str, *calls: tuple[str, str, Any], **members: Any) -> Json:
    """Return an answer that calls tools, each given as (call id, name, arguments)."""
    content: list[Json] = [{"type": "thinking", "thinking": f"thought of {entry_id}"}, {"type": "text", "text": text}]
    content += [{"type": "toolCall", "id": key, "name": name, "arguments": given} for key, name, given in calls]
    message = {"role": "assistant", "content": content, "provider": "p", "model": "m", **members}
    return entry("message", entry_id, parent_id, message=message)


def resulted(entry_id: str, parent_id: str | None, call_id: str, text: str, failed: bool = False) -> Json:
    """Return a tool result."""
    content = [{"type": "text", "text": text}]
    message = {"role": "toolResult", "toolCallId": call_id, "toolName": "bash", "content": content, "isError": failed}
    return entry("message", entry_id, parent_id, message=message)
