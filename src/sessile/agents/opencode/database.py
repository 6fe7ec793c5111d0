"""The database of OpenCode and of programs made from it.

    session    one row for each session: project folder, title, times, `parent_id` of a sub-agent, `revert`
    message    one row for each prompt, and for each step of an answer; JSON in `data`
    part       the content of messages: text, reasoning, tool calls together with their results, files; JSON in `data`

Ids are in order of time. A session is rendered so:

    a prompt                            a user message; texts of the program itself are marked `synthetic`
    a step of an answer                 an assistant message, then a tool result for each finished call
    a request for a compaction          a compaction, with the summary that the next message has, and what is sent in its place
    messages after a revert             the rest of the conversation, left behind: the leaf is before them
    steps, snapshots, patches, times    members of the entry that they belong to (`opencode`)

Listing needs the session table and two indexes, whatever the size of the database. Opening a session reads its own rows.
"""

from __future__ import annotations

import errno
import posixpath
import weakref
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from sessile.agents.base import Entry
from sessile.core.codec import decode
from sessile.core.digest import FIRST_TEXT, shown, spoken
from sessile.core.lines import Finding
from sessile.core.text import iso_timestamp
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.foreign_sqlite import Database, reading
from sessile.storage.formats import Stored
from sessile.storage.head import Glance
from sessile.storage.layout import JOURNAL, stem_of
from sessile.storage.walk import INODES

SUB_AGENTS = "subagents"
_DEEPEST = 8  # levels of sub-agents
_LARGEST_OUTPUT = 16 << 20  # bytes of a tool's output that is in a file of its own
_ASKED = "What did we do so far?"  # what the program sends in place of what was compacted, before the summary
_REASONING = "reasoning_content"  # the member in which thoughts without a signature are sent back
_APIS = {"anthropic": "anthropic-messages", "openai": "openai-responses", "google": "google-generative-ai"}
_REASONS = {"stop": "stop", "tool-calls": "toolUse", "length": "length"}
_OWN_COLUMNS = ("id", "directory", "title", "time_created", "time_updated")
_LISTED = (*_OWN_COLUMNS, "parent_id", "revert")

Json = Mapping[str, Any]


class Sessions:
    """The sessions of one program's database; `name` is the agent, and the name of members that only it has."""

    def __init__(self, name: str) -> None:
        self._name = name

    # -- listing

    def stored(self, fs: Filesystem, place: str) -> Iterator[Stored]:
        """Yield every session, with a mark made from the numbers of its rows, its time and its title."""
        inode = fs.lstat(place).st_ino & INODES
        with reading(place) as database:
            messages = dict(database.rows("SELECT session_id, count(*) FROM message GROUP BY session_id"))
            parts = dict(database.rows("SELECT session_id, count(*) FROM part GROUP BY session_id"))
            events = (
                dict(database.rows("SELECT aggregate_id, seq FROM event_sequence"))
                if database.columns("event_sequence") >= {"aggregate_id", "seq"}
                else {}
            )
            columns = ", ".join(name for name in _LISTED if name in database.columns("session"))
            sessions = {str(row["id"]): row for row in database.records(f"SELECT {columns} FROM session")}
        looks = _Looks(place)
        for session_id, row in sessions.items():
            told = zlib.crc32(f"{row.get('title')}\0{row.get('revert')}".encode("utf-8", "replace"))
            updated = _number(row.get("time_updated")) or _number(row.get("time_created")) or 0
            rows = messages.get(session_id, 0) << 31 | parts.get(session_id, 0)
            mark = (0, updated * 1_000_000, inode, rows, (_number(events.get(session_id)) or 0) << 32 | told)
            path = _path_of(place, session_id, sessions)
            yield Stored(path, mark, bool(row.get("parent_id")), partial(looks.glance, row))

    # -- one session

    def about(self, place: str, path: str) -> Mapping[str, Any]:
        """Return what kind of sub-agent a session is, and its task."""
        with reading(place) as database:
            row = next(database.records("SELECT * FROM session WHERE id = ?", (stem_of(path),)), {})
        return {"agentType": row.get("agent"), "description": row.get("title")}

    def render(self, fs: Filesystem, place: str, path: str) -> Iterator[Entry | Finding]:
        """Yield a session as a header and entries."""
        with reading(place) as database:
            session = next(database.records("SELECT * FROM session WHERE id = ?", (stem_of(path),)), None)
            if session is None:
                raise FileNotFoundError(errno.ENOENT, "the database has no such session", path)
            if database.problem is not None:
                yield Finding("damaged_source", -1, 0, database.problem)
            yield from _Rendering(self._name, fs, place, database, session).lines()


def _path_of(place: str, session_id: str, sessions: Mapping[str, Json]) -> str:
    """Return the path of a session: that of a sub-agent is in the folder of the session that started it."""
    above: list[str] = []
    parent = sessions[session_id].get("parent_id")
    while (
        isinstance(parent, str) and parent in sessions and parent not in (*above, session_id) and len(above) < _DEEPEST
    ):
        above.append(parent)
        parent = sessions[parent].get("parent_id")
    folders = "".join(f"{each}/{SUB_AGENTS}/" for each in reversed(above))
    return f"{place}/{folders}{session_id}{JOURNAL}"


class _Looks:
    """Looks at sessions for a listing, over one connection, which is closed with the last look."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._stack = ExitStack()
        self._database: Database | None = None
        weakref.finalize(self, self._stack.close)

    def glance(self, row: Json) -> Glance:
        """Return what a listing shows of a session."""
        if self._database is None:
            self._database = self._stack.enter_context(reading(self._place))
        first, last = "", {}
        newest = "SELECT data FROM message WHERE session_id = ? ORDER BY time_created DESC, id DESC LIMIT 1"
        oldest = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id LIMIT 3"
        try:
            for message_id, data in self._database.rows(oldest, (row["id"],)):
                if _object(data).get("role") == "user":
                    first = spoken(_texts(self._database, message_id))
                    break
            for (data,) in self._database.rows(newest, (row["id"],)):
                last = _object(data)
        except ValueError:
            pass  # what cannot be read here is a finding when the session is read
        title = shown(row.get("title")) or ""
        return Glance(
            id=str(row["id"]),
            cwd=shown(row.get("directory")) or "",
            title=title,
            created=_time(row.get("time_created")) or "",
            parent="",
            first_text=(shown(first) or "")[:FIRST_TEXT],
            last_role=str(last.get("role") or ""),
            last_status=_stop_reason(last) if last.get("role") == "assistant" else "",
            header_title=title,
            header_at=0,
            version=3,
        )


def _texts(database: Database, message_id: str) -> list[Entry]:
    parts = (
        _object(data)
        for (data,) in database.rows("SELECT data FROM part WHERE message_id = ? ORDER BY id", (message_id,))
    )
    return [{"type": "text", "text": part.get("text")} for part in parts if _is_said(part)]


def _is_said(part: Json) -> bool:
    """Return whether a part is a text that was typed, not one that the program added."""
    return part.get("type") == "text" and not part.get("synthetic")


class _Rendering:
    """Turns the rows of one session into entries."""

    def __init__(self, name: str, fs: Filesystem, place: str, database: Database, session: Json) -> None:
        self._name = name
        self._fs = fs
        self._place = place
        self._database = database
        self._session = session
        self._last: str | None = None  # the entry to which the next one belongs
        self._compacting: Json | None = None  # the request for a compaction, until the summary follows

    def lines(self) -> Iterator[Entry | Finding]:
        session = self._session
        reverted = _object(session.get("revert")).get("messageID")
        query = "SELECT id, time_created, data FROM message WHERE session_id = ? ORDER BY id"
        rows = self._database.rows(query, (session["id"],))
        removed = self._removed()
        if not isinstance(reverted, str) and not removed:
            yield self._header()
            for message_id, created, data in rows:
                yield from self._message(message_id, _object(data), created, self._parts(message_id))
        else:  # the leaf is in the header, which comes first
            entries: list[Entry | Finding] = []
            leaf = None
            there = [(message_id, _object(data), created, None) for message_id, created, data in rows]
            gone = [(message_id, message, None, parts) for message_id, (message, parts) in removed.items()]
            for message_id, message, created, parts in sorted([*there, *gone], key=lambda row: str(row[0])):
                is_left = parts is not None or (isinstance(reverted, str) and message_id >= reverted)
                if not is_left:
                    self._last = leaf
                entries += self._message(
                    message_id, message, created, self._parts(message_id) if parts is None else parts
                )
                if not is_left:
                    leaf = self._last
            yield {**self._header(), **({"leaf": leaf} if leaf else {})}
            yield from entries
        yield from self._unread()

    def _parts(self, message_id: str) -> list[tuple[str, Entry]]:
        query = "SELECT id, data FROM part WHERE message_id = ? ORDER BY id"
        return [(part_id, _object(data)) for part_id, data in self._database.rows(query, (message_id,))]

    def _removed(self) -> dict[str, tuple[Entry, list[tuple[str, Entry]]]]:
        """Return the messages that a revert has removed: the log of events still has them."""
        if not self._database.columns("event") >= {"aggregate_id", "seq", "type", "data"}:
            return {}
        query = "SELECT data FROM event WHERE aggregate_id = ? AND type GLOB ? ORDER BY seq"
        session_id = self._session["id"]
        names = {
            _object(data).get("messageID") for (data,) in self._database.rows(query, (session_id, "message.removed*"))
        }
        messages: dict[str, Entry] = {}
        parts: dict[str, dict[str, Entry]] = {}
        for (data,) in self._database.rows(query, (session_id, "message.*updated*")) if names else ():
            event = _object(data)
            info, part = event.get("info"), event.get("part")
            if isinstance(info, dict) and info.get("id") in names:
                messages[info["id"]] = {name: value for name, value in info.items() if name not in ("id", "sessionID")}
            if isinstance(part, dict) and part.get("messageID") in names and isinstance(part.get("id"), str):
                own = {name: value for name, value in part.items() if name not in ("id", "sessionID", "messageID")}
                parts.setdefault(part["messageID"], {})[part["id"]] = own
        return {name: (message, sorted(parts.get(name, {}).items())) for name, message in messages.items()}

    def _header(self) -> Entry:
        session = self._session
        header: Entry = {
            "type": "session",
            "version": 3,
            "id": session["id"],
            "timestamp": _time(session.get("time_created")),
            "cwd": session.get("directory") or "",
            "title": session.get("title"),
            "format": self._name,
            "modified": _time(session.get("time_updated")),
            self._name: {
                name: value for name, value in session.items() if name not in _OWN_COLUMNS and value is not None
            },
        }
        return {name: value for name, value in header.items() if value is not None}

    def _unread(self) -> Iterator[Finding]:
        """Yield what a newer release may have stored elsewhere."""
        if not self._database.columns("session_message"):
            return
        query = "SELECT count(*) FROM session_message WHERE session_id = ?"
        ((count,),) = self._database.rows(query, (self._session["id"],))
        if count:
            yield Finding(
                "damaged_source", -1, 0, f"{count} rows of session_message are not read: a newer release wrote them"
            )

    # -- messages

    def _message(
        self, message_id: str, message: Entry, created: object, parts: list[tuple[str, Entry]]
    ) -> Iterator[Entry | Finding]:
        if not message or any(not part for _, part in parts):
            yield Finding("damaged_source", -1, 0, f"the message {message_id} has rows that are not JSON objects")
        times = message.get("time")
        at = _number(times.get("created") if isinstance(times, Mapping) else None) or _number(created)
        role = message.get("role")
        if role == "user":
            yield from self._prompt(message_id, at, message, parts)
        elif role == "assistant" and message.get("summary") is True and self._compacting is not None:
            yield self._compaction(message_id, at, message, parts)
        elif role == "assistant":
            yield from self._answer(message_id, at, message, parts)
        else:
            kept = {"message": message, "parts": [{"id": part_id, **part} for part_id, part in parts]}
            yield self._entry("custom", message_id, at, customType=f"{self._name}.message", data=kept)

    def _prompt(
        self, message_id: str, at: int | None, message: Json, parts: list[tuple[str, Entry]]
    ) -> Iterator[Entry]:
        compaction = next(((part_id, part) for part_id, part in parts if part.get("type") == "compaction"), None)
        if compaction is not None:
            self._compacting = {**compaction[1], "message": message_id}
            kept = {"message": message, "parts": [{"id": part_id, **part} for part_id, part in parts]}
            yield self._entry("custom", message_id, at, customType=f"{self._name}.compaction", data=kept)
            return
        content: list[Entry] = []
        rest: list[Entry] = []
        for part_id, part in parts:
            if part.get("type") == "text" and not part.get("ignored"):
                content.append(_marked(part))
            elif (block := _file_block(part)) is not None:
                content.append(block)
            else:
                rest.append({"id": part_id, **part})
        yield self._entry(
            "message",
            message_id,
            at,
            message={"role": "user", "content": content, "timestamp": at},
            own=(message, rest),
        )

    def _answer(
        self, message_id: str, at: int | None, message: Json, parts: list[tuple[str, Entry]]
    ) -> Iterator[Entry]:
        content: list[Entry] = []
        rest: list[Entry] = []
        calls: list[tuple[str, Entry]] = []
        for part_id, part in parts:
            kind = part.get("type")
            if kind == "text":
                content.append(_marked(part))
            elif kind == "reasoning":
                content.append(_thought(part))
            elif kind == "tool":
                calls.append((part_id, part))
                state = part.get("state")
                given = state.get("input") if isinstance(state, Mapping) else None
                call = {"type": "toolCall", "id": part.get("callID") or part_id, "name": part.get("tool") or ""}
                content.append({**call, "arguments": given if isinstance(given, dict) else {}})
            else:
                rest.append({"id": part_id, **part})
        answer: Entry = {"role": "assistant", "content": content, **_named(message)}
        if (api := _api(message, parts)) is not None:
            answer["api"] = api
        reason = _stop_reason(message)
        if reason == "aborted" and calls and "error" not in message:  # its calls are answered with a text that says so
            reason = "toolUse"
        answer |= {"usage": _usage(message), "stopReason": reason, "timestamp": at}
        if (failure := _failure(message)) is not None:
            answer["errorMessage"] = failure
        yield self._entry("message", message_id, at, message=answer, own=(message, rest))
        for part_id, part in calls:
            result = self._result(part_id, part)
            if result is not None:
                yield result

    def _result(self, part_id: str, part: Json) -> Entry | None:
        """Return the result of a call; none if it is still running, or was killed."""
        state = part.get("state")
        if not isinstance(state, Mapping) or state.get("status") not in ("completed", "error"):
            return None
        failed = state["status"] == "error"
        text = state.get("error") if failed else state.get("output")
        content: list[Entry] = [{"type": "text", "text": text if isinstance(text, str) else ""}]
        attached = state.get("attachments")
        for attachment in attached if isinstance(attached, list) else ():
            if isinstance(attachment, Mapping) and (block := _file_block(attachment)) is not None:
                content.append(block)
        metadata = state.get("metadata")
        times = state.get("time")
        at = _number(times.get("end")) if isinstance(times, Mapping) else None
        details = {
            name: value
            for name, value in state.items()
            if name not in ("status", "input", "output", "error", "attachments")
        }
        message: Entry = {
            "role": "toolResult",
            "toolCallId": part.get("callID") or part_id,
            "toolName": part.get("tool") or "",
            "content": content,
            "isError": failed,
            "timestamp": at,
            "details": details,
        }
        if isinstance(metadata, Mapping) and (whole := self._whole_output(metadata.get("outputPath"))) is not None:
            message["wholeOutput"] = whole
        return self._entry("message", part_id, at, message=message)

    def _whole_output(self, path: object) -> str | None:
        """Return the output of a tool that was too long for the model, from the file that the program keeps it in.

        The home may have been copied from elsewhere, so only the name of the file counts.
        """
        if not isinstance(path, str) or not path:
            return None
        file = f"{posixpath.dirname(self._place)}/tool-output/{posixpath.basename(path)}"
        try:
            if self._fs.lstat(file).st_size > _LARGEST_OUTPUT:
                return None
            return atomic.read_all(self._fs, file).decode("utf-8", "replace")
        except OSError:
            return None  # the program deletes these files after some days

    def _compaction(self, message_id: str, at: int | None, message: Json, parts: list[tuple[str, Entry]]) -> Entry:
        request, self._compacting = self._compacting or {}, None
        texts = [_marked(part) for _, part in parts if part.get("type") == "text"]
        summary = "\n".join(str(text.get("text") or "") for text in texts)
        answer = {"role": "assistant", "content": texts, **_named(message), "stopReason": "stop", "timestamp": at}
        asked = {"role": "user", "content": [{"type": "text", "text": _ASKED}], "timestamp": at}
        kept = request.get("tail_start_id")
        rest = [{"id": part_id, **part} for part_id, part in parts if part.get("type") != "text"]
        return self._entry(
            "compaction",
            message_id,
            at,
            summary=summary,
            tokensBefore=_usage(message).get("input", 0),
            **({"firstKeptEntryId": kept} if isinstance(kept, str) else {}),
            replacement=[asked, answer],
            usage=_usage(message),
            **_named(message),
            own=(message, rest),
        )

    def _entry(
        self, kind: str, entry_id: str, at: int | None, *, own: tuple[Json, list[Entry]] | None = None, **members: Any
    ) -> Entry:
        """Return an entry that follows the last one. `own` is the row, and parts that have no counterpart."""
        entry: Entry = {"type": kind, "id": entry_id, "parentId": self._last, "timestamp": _time(at), **members}
        if own is not None:
            message, parts = own
            known = ("role", "time", "modelID", "providerID", "cost", "tokens")
            extra = {name: value for name, value in message.items() if name not in known}
            entry[self._name] = {**extra, **({"parts": parts} if parts else {})}
        self._last = entry_id
        return entry


# -- values


def _object(data: object) -> dict[str, Any]:
    """Return the JSON object in a column; an empty one if there is none."""
    if not isinstance(data, str | bytes):
        return {}
    try:
        value = decode(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53 else None


def _time(value: object) -> str | None:
    milliseconds = _number(value)
    return None if milliseconds is None or not 0 <= milliseconds < 253402300800000 else iso_timestamp(milliseconds)


def _marked(part: Json) -> Entry:
    text: Entry = {"type": "text", "text": part.get("text") if isinstance(part.get("text"), str) else ""}
    return {**text, "synthetic": True} if part.get("synthetic") else text


def _thought(part: Json) -> Entry:
    thought: Entry = {"type": "thinking", "thinking": part.get("text") if isinstance(part.get("text"), str) else ""}
    metadata = part.get("metadata")
    if not metadata:
        thought["thinkingSignature"] = _REASONING
    for own in metadata.values() if isinstance(metadata, Mapping) else ():
        if isinstance(own, Mapping) and isinstance(own.get("signature"), str):
            thought["thinkingSignature"] = own["signature"]
        if isinstance(own, Mapping) and isinstance(own.get("redactedData"), str):
            thought |= {"redacted": True, "thinkingSignature": own["redactedData"]}
    return thought


def _file_block(part: Json) -> Entry | None:
    """Return the image or document of a file part; `None` for a file whose text the program has put into the prompt."""
    address, kind = part.get("url"), part.get("mime")
    if part.get("type") != "file" or not isinstance(address, str) or not isinstance(kind, str):
        return None
    if not address.startswith("data:"):
        return None
    data = address.partition(";base64,")[2]
    if kind.startswith("image/"):
        return {"type": "image", "mimeType": kind, "data": data}
    named = {"name": part["filename"]} if isinstance(part.get("filename"), str) else {}
    return {"type": "document", "mimeType": kind, "data": data, **named}


def _named(message: Json) -> Entry:
    """Return the model of an answer."""
    names = {"provider": message.get("providerID"), "model": message.get("modelID")}
    return {name: value for name, value in names.items() if isinstance(value, str)}


def _api(message: Json, parts: list[tuple[str, Entry]]) -> str | None:
    """Return the API of an answer, if it can be told: it is not stored, but its thoughts and some names of providers tell it."""
    thoughts = [part.get("metadata") for _, part in parts if part.get("type") == "reasoning"]
    for metadata in thoughts:
        names = [name for name in metadata if name in _APIS] if isinstance(metadata, Mapping) else []
        return _APIS[names[0]] if names else "openai-completions"
    return _APIS.get(str(message.get("providerID")))


def _usage(message: Json) -> Entry:
    """Return the usage of an answer. The program counts reasoning apart from the output, of which it is a part."""
    tokens = message.get("tokens")
    tokens = tokens if isinstance(tokens, Mapping) else {}
    cache = tokens.get("cache")
    cache = cache if isinstance(cache, Mapping) else {}
    reasoning = _number(tokens.get("reasoning")) or 0
    output = _number(tokens.get("output"))
    usage: Entry = {
        "input": _number(tokens.get("input")),
        "output": None if output is None else output + reasoning,
        "reasoning": reasoning,
        "cacheRead": _number(cache.get("read")),
        "cacheWrite": _number(cache.get("write")),
        "totalTokens": _number(tokens.get("total")),
    }
    cost = message.get("cost")
    if isinstance(cost, int | float) and not isinstance(cost, bool):
        usage["cost"] = {"total": cost}
    return {name: value for name, value in usage.items() if value is not None}


def _stop_reason(message: Json) -> str:
    error = message.get("error")
    if isinstance(error, Mapping):
        return "aborted" if error.get("name") == "MessageAbortedError" else "error"
    finish = message.get("finish")
    if isinstance(finish, str):
        return _REASONS.get(finish, finish)
    times = message.get("time")
    return "stop" if isinstance(times, Mapping) and times.get("completed") else "aborted"


def _failure(message: Json) -> str | None:
    error = message.get("error")
    if not isinstance(error, Mapping):
        return None
    data = error.get("data")
    said = data.get("message") if isinstance(data, Mapping) else None
    return said if isinstance(said, str) else str(error.get("name") or "error")
