"""Small entries and messages for tests of the core."""

from __future__ import annotations

import hashlib
from typing import Any

Json = dict[str, Any]

AT = "2026-02-16T10:20:30.000Z"
AT_MS = 1_771_237_230_000


def entry(kind: str, entry_id: str, parent_id: str | None, **members: Any) -> Json:
    """Return an entry with its base members first."""
    return {"type": kind, "id": entry_id, "parentId": parent_id, "timestamp": AT, **members}


def user(text: str) -> Json:
    return {"role": "user", "content": text, "timestamp": AT_MS}


def assistant(text: str, provider: str = "p", model: str = "m") -> Json:
    return {"role": "assistant", "content": [{"type": "text", "text": text}], "provider": provider, "model": model}


def said(entry_id: str, parent_id: str | None, text: str | None = None) -> Json:
    """Return a user message; its text defaults to the id of its entry."""
    return entry("message", entry_id, parent_id, message=user(entry_id if text is None else text))


def answered(entry_id: str, parent_id: str | None, provider: str = "p", model: str = "m") -> Json:
    """Return an assistant message; its text is the id of its entry."""
    return entry("message", entry_id, parent_id, message=assistant(entry_id, provider, model))


def texts(messages: list[Json]) -> list[str]:
    """Return the texts or summaries of messages."""
    found = []
    for message in messages:
        content = message.get("content", message.get("summary"))
        found.append(
            content if isinstance(content, str) else "|".join(block.get("text", "") for block in content or [])
        )
    return found


class Blobs:
    """An in-memory store of blobs."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.missing: list[str] = []

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.stored[digest] = data
        return digest

    def get(self, digest: str) -> bytes | None:
        return self.stored.get(digest)

    def miss(self, digest: str) -> None:
        self.missing.append(digest)
