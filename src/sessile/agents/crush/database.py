"""The database of Crush. Not verified: written from notes on the program, never tried on its own files.

    sessions    one row for each session: title, `parent_session_id` of a sub-agent, `summary_message_id` after a compaction
    messages    one row for each message: a list of parts in `parts`, each with a type and its data

The comments of the tables say milliseconds, and their triggers write seconds; both are read. A session is rendered so:

    a prompt                     a user message; a command that the user ran is a `bashExecution`
    an answer                    an assistant message
    a message of role `tool`     a tool result for each of its parts
    a summary                    a compaction: what is sent begins with its text, as a prompt
"""

from __future__ import annotations

import errno
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from sessile.agents.base import Entry
from sessile.agents.tables import (
    Json,
    Lines,
    Looks,
    damaged,
    glance,
    mapping,
    number,
    object_in,
    objects,
    path_of,
    present,
    time_of,
    value_in,
)
from sessile.core.digest import spoken
from sessile.core.lines import Finding
from sessile.storage.base import Filesystem
from sessile.storage.foreign_sqlite import Database, reading
from sessile.storage.formats import Stored
from sessile.storage.head import Glance
from sessile.storage.layout import stem_of
from sessile.storage.walk import INODES

NAME = "crush"
_OWN_COLUMNS = ("id", "title", "created_at", "updated_at")
_REASONS = {
    "end_turn": "stop",
    "max_tokens": "length",
    "tool_use": "toolUse",
    "canceled": "aborted",
    "error": "error",
    "permission_denied": "aborted",
}
_MESSAGES = "SELECT * FROM messages WHERE session_id = ? ORDER BY created_at, rowid"


class Sessions:
    """The sessions of a database."""

    def stored(self, fs: Filesystem, place: str) -> Iterator[Stored]:
        """Yield every session, with a mark made from its rows, its times and its title."""
        inode = fs.lstat(place).st_ino & INODES
        with reading(place) as database:
            query = "SELECT session_id, count(*), max(updated_at) FROM messages GROUP BY session_id"
            rows = {str(session): (count, last) for session, count, last in database.rows(query)}
            sessions = {str(row["id"]): row for row in database.records("SELECT * FROM sessions")}
        parents = {each: _text(row.get("parent_session_id")) for each, row in sessions.items()}
        looks = Looks(place)
        for session_id, row in sessions.items():
            count, last = rows.get(session_id, (0, 0))
            told = zlib.crc32(repr(sorted(row.items())).encode("utf-8", "replace"))
            updated = max(_milliseconds(row.get("updated_at")) or 0, _milliseconds(last) or 0)
            mark = (0, updated * 1_000_000, inode, count, told)
            look = partial(_look, looks, row, _project(place))
            yield Stored(path_of(place, session_id, parents), mark, parents[session_id] is not None, look)

    def about(self, place: str, path: str) -> Mapping[str, Any]:
        """Return the title of a sub-agent."""
        with reading(place) as database:
            row = next(database.records("SELECT * FROM sessions WHERE id = ?", (stem_of(path),)), {})
        return {"agentType": "agent", "description": row.get("title")}

    def render(self, fs: Filesystem, place: str, path: str) -> Iterator[Entry | Finding]:
        """Yield a session as a header and entries."""
        with reading(place) as database:
            session = next(database.records("SELECT * FROM sessions WHERE id = ?", (stem_of(path),)), None)
            if session is None:
                raise FileNotFoundError(errno.ENOENT, "the database has no such session", path)
            if database.problem is not None:
                yield damaged(database.problem)
            yield from _Rendering(database, session, _project(place)).lines()


def _project(place: str) -> str:
    """Return the project of a database: the folder of its folder `.crush`."""
    folder = place.rpartition("/")[0]
    return folder.removesuffix("/.crush") if folder.endswith("/.crush") else folder


def _look(looks: Looks, row: Json, project: str) -> Glance:
    """Return what a listing shows of a session."""
    query = "SELECT parts FROM messages WHERE session_id = ? AND role = 'user' ORDER BY created_at, rowid LIMIT 8"
    first = looks.first(query, (row["id"],), lambda found: _said(found[0]))
    newest = "SELECT role FROM messages WHERE session_id = ? ORDER BY created_at DESC, rowid DESC LIMIT 1"
    role = looks.first(newest, (row["id"],), lambda found: "toolResult" if found[0] == "tool" else str(found[0]))
    created = time_of(_milliseconds(row.get("created_at")))
    return glance(str(row["id"]), project, row.get("title"), created, first, {"role": role, "stopReason": "stop"})


def _said(parts: object) -> str:
    return spoken([{"type": "text", "text": data.get("text")} for kind, data in _parts(parts) if kind == "text"])


def _parts(column: object) -> list[tuple[str, Json]]:
    """Return the parts of a message, each with its type."""
    return [(str(part.get("type")), mapping(part.get("data"))) for part in objects(value_in(column))]


class _Rendering:
    """Turns the rows of one session into entries."""

    def __init__(self, database: Database, session: Json, project: str) -> None:
        self._database = database
        self._session = session
        self._project = project
        self._entries = Lines()

    def lines(self) -> Iterator[Entry | Finding]:
        session = self._session
        yield present(
            {
                "type": "session",
                "version": 3,
                "id": session["id"],
                "timestamp": time_of(_milliseconds(session.get("created_at"))),
                "cwd": self._project,
                "title": session.get("title") or None,
                "format": NAME,
                "modified": time_of(_milliseconds(session.get("updated_at"))),
                NAME: present({name: value for name, value in session.items() if name not in _OWN_COLUMNS}),
            }
        )
        for row in self._database.records(_MESSAGES, (session["id"],)):
            yield from self._row(row)

    def _row(self, row: Json) -> Iterator[Entry | Finding]:
        at = _milliseconds(row.get("created_at"))
        row_id = str(row.get("id"))
        if not isinstance(value_in(row.get("parts")), list):
            yield damaged(f"the message {row_id} is not a list of parts")
            yield self._entry("custom", row_id, at, customType=f"{NAME}.message", data=dict(row))
            return
        parts = _parts(row.get("parts"))
        role = row.get("role")
        if row.get("is_summary_message") or row_id == self._session.get("summary_message_id"):
            yield self._compaction(row, row_id, at, parts)
        elif role == "assistant":
            yield self._answer(row, row_id, at, parts)
        elif role in ("user", "tool"):
            yield from self._others(row_id, at, parts)
        else:
            yield self._entry("custom", row_id, at, customType=f"{NAME}.{role}", data=dict(row))

    def _others(self, row_id: str, at: int | None, parts: list[tuple[str, Json]]) -> Iterator[Entry]:
        content: list[Entry] = []
        rest: list[Entry] = []
        made = 0
        for kind, data in parts:
            message: Entry | None = None
            if kind == "tool_result":
                message = _result(data, at)
            elif kind == "shell_command":
                known = {
                    "command": data.get("command"),
                    "output": data.get("output"),
                    "exitCode": data.get("exit_code"),
                }
                message = {"role": "bashExecution", **known, "timestamp": at}
            elif (part := _part(kind, data)) is not None:
                content.append(part)
            else:
                rest.append({"type": kind, "data": dict(data)})
            if message is not None:
                yield self._entry("message", row_id, at, message=message)
                made += 1
        if content or not made:
            message = {"role": "user", "content": content, "timestamp": at}
            yield self._entry("message", row_id, at, message=message, **({NAME: {"parts": rest}} if rest else {}))

    def _answer(self, row: Json, row_id: str, at: int | None, parts: list[tuple[str, Json]]) -> Entry:
        content: list[Entry] = []
        rest: list[Entry] = []
        finish: Json = {}
        for kind, data in parts:
            if kind == "tool_call":
                given = object_in(data.get("input"))
                call = {"type": "toolCall", "id": str(data.get("id") or ""), "name": str(data.get("name") or "")}
                content.append({**call, "arguments": given})
            elif kind == "finish":
                finish = data
            elif (part := _part(kind, data)) is not None:
                content.append(part)
            else:
                rest.append({"type": kind, "data": dict(data)})
        reason = str(finish.get("reason") or "")
        failed = " ".join(str(finish[name]) for name in ("message", "details") if finish.get(name))
        answer = {
            "role": "assistant",
            "content": content,
            "provider": _text(row.get("provider")),
            "api": _api(row.get("provider")),
            "model": _text(row.get("model")),
            "stopReason": _REASONS.get(reason, reason or "aborted"),
            "errorMessage": failed or None,
            "timestamp": at,
        }
        return self._entry("message", row_id, at, message=present(answer), **({NAME: {"parts": rest}} if rest else {}))

    def _compaction(self, row: Json, row_id: str, at: int | None, parts: list[tuple[str, Json]]) -> Entry:
        summary = "\n".join(str(data.get("text") or "") for kind, data in parts if kind == "text")
        told = {"role": "user", "content": [{"type": "text", "text": summary}], "timestamp": at}
        model = present({"provider": _text(row.get("provider")), "model": _text(row.get("model"))})
        return self._entry("compaction", row_id, at, summary=summary, tokensBefore=0, replacement=[told], **model)

    def _entry(self, kind: str, entry_id: str, at: int | None, **members: Any) -> Entry:
        return self._entries.entry(kind, entry_id, time_of(at), **members)


# -- values


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _milliseconds(value: object) -> int | None:
    """Return a time in milliseconds; it may be stored in seconds."""
    found = number(value)
    return found if found is None or found >= 1 << 36 else found * 1000


def _api(provider: object) -> str | None:
    if not isinstance(provider, str) or not provider:
        return None
    known = {"anthropic": "anthropic-messages", "gemini": "google-generative-ai", "openai": "openai-responses"}
    return known.get(provider, "openai-completions")


def _part(kind: str, data: Json) -> Entry | None:
    """Return a text, a thought, an image or a document; `None` for any other part."""
    if kind == "text":
        return {"type": "text", "text": str(data.get("text") or "")}
    if kind == "reasoning":
        signature = _text(data.get("signature")) or _text(data.get("thought_signature"))
        thought: Entry = {"type": "thinking", "thinking": str(data.get("thinking") or "")}
        rest = {NAME: {"responses_data": data["responses_data"]}} if data.get("responses_data") else {}
        return thought | ({"thinkingSignature": signature} if signature else {}) | rest
    if kind == "image_url":
        address = _text(data.get("url")) or _text(data.get("URL")) or ""
        mime, found, encoded = address.removeprefix("data:").partition(";base64,")
        return {"type": "image", "mimeType": mime, "data": encoded} if found else {"type": "image", "url": address}
    if kind == "binary":
        names = {each.lower().replace("_", ""): value for each, value in data.items()}
        mime = str(names.get("mimetype") or "application/octet-stream")
        encoded = str(names.get("data") or "")
        if mime.startswith("image/"):
            return {"type": "image", "mimeType": mime, "data": encoded}
        return present({"type": "document", "mimeType": mime, "data": encoded, "name": _text(names.get("path"))})
    return None


def _result(data: Json, at: int | None) -> Entry:
    content: list[Entry] = [{"type": "text", "text": str(data.get("content") or "")}]
    mime = _text(data.get("mime_type"))
    if mime is not None and data.get("data"):
        kind = "image" if mime.startswith("image/") else "document"
        content.append({"type": kind, "mimeType": mime, "data": str(data["data"])})
    result = {
        "role": "toolResult",
        "toolCallId": str(data.get("tool_call_id") or ""),
        "toolName": str(data.get("name") or ""),
        "content": content,
        "isError": data.get("is_error") is True,
        "timestamp": at,
        "details": {"metadata": data["metadata"]} if data.get("metadata") else None,
    }
    return present(result)
