"""The database of Goose.

    sessions    one row for each session: folder, name, times, `parent_session_id` of a sub-agent
    messages    one row for each message: a list of items in `content_json`, and in `metadata_json` who sees it

Rows are in order of `created_timestamp`, then of `id`. A session is rendered so:

    a prompt                             a user message
    what follows each prompt             a custom message with time and folder, which only the model sees
    an answer                            an assistant message; a further call of the same answer is a row of its own
    a response of a tool                 a tool result
    a summary, which only the model      a compaction, and what is sent in place of the rows before it; those stay as they were
      sees, and the note after it          when the model saw them
    a row that the model does not see    a message that is excluded from the context, such as a command

A compaction writes all rows of its session anew, with the same `message_id`.
"""

from __future__ import annotations

import errno
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

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

NAME = "goose"
_NEWEST = 16  # the version of the tables that this was written for
_OWN_COLUMNS = ("id", "name", "working_dir", "created_at", "updated_at")
_APIS = {"anthropic": "anthropic-messages", "google": "google-generative-ai"}
_CHAT = "openai-completions"
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")


class Sessions:
    """The sessions of a database."""

    # -- listing

    def stored(self, fs: Filesystem, place: str) -> Iterator[Stored]:
        """Yield every session, with a mark made from its rows, its times and its name."""
        inode = fs.lstat(place).st_ino & INODES
        with reading(place) as database:
            query = "SELECT session_id, count(*), max(id) FROM messages GROUP BY session_id"
            rows = {str(session): (count, last) for session, count, last in database.rows(query)}
            sessions = {str(row["id"]): row for row in database.records("SELECT * FROM sessions")}
        parents = {each: _text(row.get("parent_session_id")) for each, row in sessions.items()}
        looks = Looks(place)
        for session_id, row in sessions.items():
            told = zlib.crc32(repr(sorted(row.items())).encode("utf-8", "replace"))
            updated = _milliseconds(row.get("updated_at")) or _milliseconds(row.get("created_at")) or 0
            count, last = rows.get(session_id, (0, 0))
            mark = (0, updated * 1_000_000, inode, count << 31 | last & 0x7FFFFFFF, told)
            path = path_of(place, session_id, parents)
            yield Stored(path, mark, row.get("session_type") == "sub_agent", partial(_look, looks, row))

    # -- one session

    def about(self, place: str, path: str) -> Mapping[str, Any]:
        """Return the name of a sub-agent's task."""
        with reading(place) as database:
            row = next(database.records("SELECT * FROM sessions WHERE id = ?", (stem_of(path),)), {})
        recipe = object_in(row.get("recipe_json"))
        return {"agentType": row.get("session_type"), "description": recipe.get("prompt") or row.get("name")}

    def render(self, fs: Filesystem, place: str, path: str) -> Iterator[Entry | Finding]:
        """Yield a session as a header and entries."""
        with reading(place) as database:
            session = next(database.records("SELECT * FROM sessions WHERE id = ?", (stem_of(path),)), None)
            if session is None:
                raise FileNotFoundError(errno.ENOENT, "the database has no such session", path)
            if database.problem is not None:
                yield damaged(database.problem)
            yield from _Rendering(database, session).lines()


def _look(looks: Looks, row: Json) -> Glance:
    """Return what a listing shows of a session."""
    query = (
        "SELECT content_json, metadata_json FROM messages WHERE session_id = ? AND role = 'user'"
        " ORDER BY created_timestamp, id LIMIT 8"
    )
    first = looks.first(query, (row["id"],), lambda found: _said(Row("", "user", *found)))
    newest = "SELECT role FROM messages WHERE session_id = ? ORDER BY created_timestamp DESC, id DESC LIMIT 1"
    last = looks.first(newest, (row["id"],), lambda found: str(found[0]))
    stopped = {"role": last, "stopReason": "stop"}
    created = time_of(_milliseconds(row.get("created_at")))
    return glance(str(row["id"]), row.get("working_dir"), row.get("name"), created, first, stopped)


class Row(NamedTuple):
    """A row of the messages."""

    id: str
    role: str
    content: object
    metadata: object
    at: int | None = None

    @property
    def facts(self) -> Json:
        """Who sees the row, which model answered, and the usage."""
        return object_in(self.metadata)

    @property
    def items(self) -> list[Entry]:
        """The items of the content."""
        return objects(value_in(self.content))

    @property
    def for_agent(self) -> bool:
        """Whether the model sees it now."""
        return self.facts.get("agentVisible") is not False

    @property
    def only_for_agent(self) -> bool:
        """Whether people never see it."""
        return self.facts.get("userVisible") is False


def _said(row: Row) -> str:
    """Return the text of a prompt."""
    texts = [{"type": "text", "text": item.get("text")} for item in row.items if item.get("type") == "text"]
    return "" if row.only_for_agent else spoken(texts)


class _Rendering:
    """Turns the rows of one session into entries."""

    def __init__(self, database: Database, session: Json) -> None:
        self._database = database
        self._session = session
        self._entries = Lines()
        self._names: dict[str, str] = {}  # of the tools, by call

    def lines(self) -> Iterator[Entry | Finding]:
        session = self._session
        yield present(
            {
                "type": "session",
                "version": 3,
                "id": session["id"],
                "timestamp": time_of(_milliseconds(session.get("created_at"))),
                "cwd": session.get("working_dir") or "",
                "title": session.get("name") or None,
                "format": NAME,
                "modified": time_of(_milliseconds(session.get("updated_at"))),
                NAME: present({name: value for name, value in session.items() if name not in _OWN_COLUMNS}),
            }
        )
        version = next(iter(self._database.rows("SELECT max(version) FROM schema_version")), (None,))[0]
        if isinstance(version, int) and version > _NEWEST:
            yield damaged(f"the tables have version {version}; this reads up to {_NEWEST}, so something may be missing")
        rows = list(self._rows())
        compaction = max((at for at in range(len(rows)) if _is_summary(rows, at)), default=-1)
        at = 0
        while at < len(rows):
            if _is_summary(rows, at):
                yield self._compaction(rows, at, last=at == compaction)
                at += 2
                continue
            # What the model saw before a compaction is told by nothing but the kind of the row.
            hidden = not rows[at].for_agent and (at > compaction or _is_command(rows, at))
            yield from self._row(rows[at], hidden=hidden)
            at += 1

    def _rows(self) -> Iterator[Row]:
        query = (
            "SELECT id, message_id, role, content_json, metadata_json, created_timestamp FROM messages"
            " WHERE session_id = ? ORDER BY created_timestamp, id"
        )
        for row_id, message_id, role, content, metadata, created in self._database.rows(query, (self._session["id"],)):
            seconds = number(created)
            at = (
                None if seconds is None else seconds * 1000 if seconds < 1 << 36 else seconds
            )  # older ones: milliseconds
            yield Row(str(message_id or f"row-{row_id}"), str(role), content, metadata, at)

    # -- rows

    def _row(self, row: Row, *, hidden: bool) -> Iterator[Entry | Finding]:
        if not isinstance(value_in(row.content), list):
            yield damaged(f"the message {row.id} is not a list of items")
            yield self._entry("custom", row, customType=f"{NAME}.message", data={"content": row.content})
            return
        for message, rest in self._messages(row):
            own = present({**_kept(row.facts), "items": rest or None})
            extra: Entry = {NAME: own} if own else {}
            if hidden:
                message["excludeFromContext"] = True
            if row.only_for_agent and message["role"] == "user":
                sort = "turn-context" if row.facts.get("turnContext") else "agent-only"
                members = {"customType": f"{NAME}.{sort}", "content": message["content"], "display": False}
                kind = "custom" if hidden else "custom_message"
                yield self._entry(kind, row, **members, **extra)
            else:
                yield self._entry("message", row, message=message, **extra)

    def _messages(self, row: Row) -> Iterator[tuple[Entry, list[Entry]]]:
        """Yield the messages of a row, each with items that have no counterpart."""
        if row.role == "assistant":
            yield self._answer(row)
            return
        content: list[Entry] = []
        rest: list[Entry] = []
        results = 0
        for item in row.items:
            if item.get("type") == "toolResponse":
                if content:
                    yield {"role": "user", "content": content, "timestamp": row.at}, []
                    content = []
                yield self._result(row, item), []
                results += 1
            elif (part := _part(item)) is not None:
                content.append(part)
            else:
                rest.append(item)
        if content or rest or not results:
            yield {"role": "user", "content": content, "timestamp": row.at}, rest

    def _answer(self, row: Row) -> tuple[Entry, list[Entry]]:
        content: list[Entry] = []
        rest: list[Entry] = []
        chosen = mapping(row.facts.get("inference"))
        provider = _text(chosen.get("provider"))
        api = None if provider is None else _APIS.get(provider, _CHAT)
        for item in row.items:
            if item.get("type") in ("toolRequest", "frontendToolRequest"):
                content.append(self._call(item))
            elif (part := _part(item, api)) is not None:
                content.append(part)
            else:
                rest.append(item)
        calls = any(part["type"] == "toolCall" for part in content)
        usage = row.facts.get("usage")
        answer: Entry = {
            "role": "assistant",
            "content": content,
            "provider": provider,
            "api": api,
            "model": _text(chosen.get("requestedModel")),
            "usage": _usage(usage) if isinstance(usage, Mapping) else None,
            "stopReason": "toolUse" if calls else "stop",
            "timestamp": row.at,
        }
        return present(answer), rest

    def _call(self, item: Json) -> Entry:
        call_id = str(item.get("id") or "")
        asked = mapping(item.get("toolCall"))
        value = mapping(asked.get("value"))
        self._names[call_id] = str(value.get("name") or "")
        given = value.get("arguments")
        call = {"type": "toolCall", "id": call_id, "name": self._names[call_id]}
        failed = {"error": asked["error"]} if asked.get("error") else {}
        return {**call, "arguments": given if isinstance(given, dict) else {}, **failed}

    def _result(self, row: Row, item: Json) -> Entry:
        call_id = str(item.get("id") or "")
        result = mapping(item.get("toolResult"))
        value = result.get("value")
        # Older rows have the contents themselves as the value.
        parts = objects(value if isinstance(value, list) else mapping(value).get("content"))
        content = [part for each in parts if (part := _shown(each)) is not None]
        failed = result.get("status") == "error"
        if failed and not content:
            content = [{"type": "text", "text": str(result.get("error") or "")}]
        details = {name: kept for name, kept in mapping(value).items() if name not in ("content", "isError")}
        return {
            "role": "toolResult",
            "toolCallId": call_id,
            "toolName": self._names.get(call_id, ""),
            "content": content,
            "isError": failed or mapping(value).get("isError") is True,
            "timestamp": row.at,
            **({"details": details} if details else {}),
        }

    def _compaction(self, rows: Sequence[Row], at: int, *, last: bool) -> Entry:
        """Return a compaction. `last`: what the model sees of earlier rows is sent before the summary."""
        kept = [row for row in rows[:at] if row.for_agent] if last else []
        messages = [message for row in (*kept, rows[at], rows[at + 1]) for message, _ in self._messages(row)]
        summary = "\n".join(str(item.get("text") or "") for item in rows[at].items if item.get("type") == "text")
        return self._entry(
            "compaction",
            rows[at],
            summary=summary,
            tokensBefore=self._before(rows[:at]),
            replacement=messages,
            **{NAME: {"note": rows[at + 1].id}},
        )

    def _before(self, rows: Sequence[Row]) -> int:
        """Return how many tokens the last answer before a compaction was told to have read."""
        usages = (mapping(row.facts.get("usage")) for row in reversed(rows))
        return next((given for usage in usages if (given := number(usage.get("inputTokens")))), 0)

    def _entry(self, kind: str, row: Row, **members: Any) -> Entry:
        return self._entries.entry(kind, row.id, time_of(row.at), **members)


# -- which rows are what


def _is_summary(rows: Sequence[Row], at: int) -> bool:
    """Return whether a row is a summary: nobody sees it but the model, and the note of the program after it."""
    if at + 1 >= len(rows):
        return False
    row, note = rows[at], rows[at + 1]
    return (
        row.role == "user"
        and note.role == "assistant"
        and row.only_for_agent
        and note.only_for_agent
        and not row.facts.get("turnContext")
    )


def _is_command(rows: Sequence[Row], at: int) -> bool:
    """Return whether a row is a command to the program, or its reply, which no model has seen."""
    row = rows[at]
    if row.role == "assistant":
        return at > 0 and rows[at - 1].role == "user" and _is_command(rows, at - 1)
    after = rows[at + 1] if at + 1 < len(rows) else None
    answered = after is not None and after.role == "assistant" and not after.facts.get("inference")
    return answered and not row.only_for_agent and _said(row).startswith("/")


# -- values


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _milliseconds(value: object) -> int | None:
    """Return a time such as `2026-11-16 22:08:24` (UTC) in milliseconds."""
    if not isinstance(value, str) or not _TIME.match(value):
        return None
    try:
        return int(datetime.fromisoformat(value[:19]).replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return None


def _kept(facts: Json) -> Entry:
    """Return what the metadata says besides what a message has."""
    kept = {name: value for name, value in facts.items() if name not in ("inference", "turnContext")}
    usage = mapping(facts.get("usage"))
    measured = {name: usage[name] for name in ("costSource", "elapsedMs", "timeToFirstTokenMs") if name in usage}
    return kept | ({"usage": measured} if "usage" in kept else {})


def _part(item: Json, api: str | None = None) -> Entry | None:
    """Return a text, an image or a thought; `None` for any other item."""
    kind = item.get("type")
    if kind == "thinking":
        signature = item.get("signature") or ("reasoning_content" if api == _CHAT else None)
        thought: Entry = {"type": "thinking", "thinking": str(item.get("thinking") or "")}
        return thought | ({"thinkingSignature": signature} if signature else {})
    if kind == "redactedThinking":
        return {"type": "thinking", "thinking": "", "redacted": True, "thinkingSignature": str(item.get("data") or "")}
    return _shown(item)


def _shown(item: Json) -> Entry | None:
    kind = item.get("type")
    if kind == "text":
        return {"type": "text", "text": str(item.get("text") or "")}
    if kind == "image":
        return {"type": "image", "data": str(item.get("data") or ""), "mimeType": str(item.get("mimeType") or "")}
    resource = mapping(item.get("resource"))
    if kind == "resource" and isinstance(resource.get("text"), str):
        return {"type": "text", "text": resource["text"]}
    return None


def _usage(usage: Json) -> Entry:
    """Return the usage of an answer. The program counts what was read from the cache and written to it as input."""
    given, read, written = (number(usage.get(name)) for name in ("inputTokens", "cacheReadTokens", "cacheWriteTokens"))
    found: Entry = {
        "input": None if given is None else max(0, given - (read or 0) - (written or 0)),
        "output": number(usage.get("outputTokens")),
        "cacheRead": read,
        "cacheWrite": written,
        "totalTokens": number(usage.get("totalTokens")),
    }
    cost = usage.get("cost")
    if isinstance(cost, int | float) and not isinstance(cost, bool):
        found["cost"] = {"total": cost}
    return present(found)
