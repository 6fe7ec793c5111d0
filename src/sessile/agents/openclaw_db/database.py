"""The database of one of OpenClaw's agents.

    session_nodes       one row for each key (`agent:main:research`): label, display name, who spawned it
    session_windows     one row for each session id; a key has several after a rewind
    transcript_events   the rows of each session, in order of `seq`; JSON in `event_json`, or packed in `event_zstd`
    trajectory_runtime_events   a trace of each turn; of it, only the prompts are read that differ from the stored ones

Rows are a tree like that of pi, with a few kinds of its own:

    reset        everything before it leaves the context; the session goes on
    leaf         the conversation goes on at `targetId`; what is left behind stays as a branch

A long result may be sent with another text than it is stored with, as rows of the program's state say; such a row is followed
by edits of the context.

A prompt may have been sent in other words than it is stored: with the place of an attachment, or with an earlier prompt that was
not answered. It has these as `submitted`. Prompts that the program makes itself, such as one to report what a sub-agent found,
are only in the trace, and become custom messages. Both are sent only until they are answered.

Messages with `excludeFromContext`, and answers of the gateway itself, are kept but not sent. Images of prompts are files in
`media/inbound` of the state folder. A fork, and a session after a rewind, has copies of the rows before it, with the same ids,
and names the session that it was made from (`parentSession`). `contextTokens` of a node is the size of the model's window.
"""

from __future__ import annotations

import binascii
import errno
import posixpath
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sessile.agents.base import Entry
from sessile.agents.tables import (
    Json,
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
)
from sessile.core.digest import spoken
from sessile.core.lines import Finding
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.foreign_sqlite import Database, reading
from sessile.storage.formats import Stored
from sessile.storage.head import Glance
from sessile.storage.layout import JOURNAL, stem_of
from sessile.storage.packed import unzstd
from sessile.storage.walk import INODES

NAME = "openclaw-db"
DATABASE = "openclaw-agent.sqlite"
SUBMITTED = "submitted"  # the member of a prompt with the words in which it was sent first
OWN_PROMPT = f"{NAME}.prompt"  # the type of a custom message with a prompt of the program
_NEWEST = 23  # the version of the tables that this was written for
_STATE = "openclaw.cache-ttl"  # the type of rows with what is sent of earlier results
_INBOUND = "media://inbound/"
_LARGEST_ARCHIVE = 1 << 30  # bytes, also when it is unpacked
_LARGEST_IMAGE = 32 << 20  # bytes
_ROWS = "SELECT seq, event_json, event_zstd, created_at FROM transcript_events WHERE session_id = ?"


class Sessions:
    """The sessions of a database."""

    # -- listing

    def stored(self, fs: Filesystem, place: str) -> Iterator[Stored]:
        """Yield every session that has rows, with a mark made from their number, the times and the names."""
        inode = fs.lstat(place).st_ino & INODES
        with reading(place) as database:
            query = "SELECT session_id, count(*), max(seq), max(created_at) FROM transcript_events GROUP BY session_id"
            rows = {str(session): values for session, *values in database.rows(query)}
            nodes, windows = _listed(database)
        parents = {session_id: _starter(nodes, windows, session_id) for session_id in rows}
        looks = Looks(place)
        for session_id, (count, last, created) in rows.items():
            window = windows.get(session_id, {})
            node = nodes.get(str(window.get("session_key")), {})
            told = zlib.crc32(repr((_title(node, window), node.get("archived_at"), parents[session_id])).encode())
            updated = number(window.get("transcript_updated_at")) or number(created) or 0
            mark = (0, updated * 1_000_000, inode, count << 31 | last & 0x7FFFFFFF, told)
            path = path_of(place, session_id, parents)
            look = partial(_look, looks, session_id, _title(node, window))
            yield Stored(path, mark, bool(_spawner(node, window)), look)

    # -- one session

    def about(self, place: str, path: str) -> Mapping[str, Any]:
        """Return the label of a sub-agent."""
        with reading(place) as database:
            nodes, windows = _listed(database)
        window = windows.get(stem_of(path), {})
        node = nodes.get(str(window.get("session_key")), {})
        role = object_in(node.get("entry_json")).get("subagentRole")
        return {"agentType": role or "subagent", "description": _title(node, window)}

    def render(self, fs: Filesystem, place: str, path: str) -> Iterator[Entry | Finding]:
        """Yield a session as a header and entries."""
        with reading(place) as database:
            session_id = stem_of(path)
            nodes, windows = _listed(database)
            first = next(database.rows(f"{_ROWS} ORDER BY seq LIMIT 1", (session_id,)), None)
            if first is None:
                raise FileNotFoundError(errno.ENOENT, "the database has no such session", path)
            if database.problem is not None:
                yield damaged(database.problem)
            window = windows.get(session_id, {})
            node = nodes.get(str(window.get("session_key")), {})
            version = next(database.rows("PRAGMA user_version"), (0,))[0]
            if isinstance(version, int) and version > _NEWEST:
                yield damaged(
                    f"the tables have version {version}; this reads up to {_NEWEST}: something may be missing"
                )
            rows = partial(_stored_rows, database, session_id)
            submitted = _submissions(database, session_id)
            yield from _Rendering(fs, place, rows, session_id, node, window, submitted).lines()


def archived(fs: Filesystem, path: str) -> Iterator[Entry | Finding]:
    """Yield the session in an archive, which has the rows of one that was deleted."""
    if fs.lstat(path).st_size > _LARGEST_ARCHIVE:
        raise ValueError(f"the archive is larger than {_LARGEST_ARCHIVE} bytes")
    lines = unzstd(atomic.read_all(fs, path), _LARGEST_ARCHIVE).split(b"\n")
    rows = [(seq, line, None, None) for seq, line in enumerate(lines) if line.strip()]
    # As if it were in the database, whose folder is beside that of the archives.
    place = f"{posixpath.dirname(posixpath.dirname(path))}/agent/{DATABASE}"
    session_id = posixpath.basename(path).partition(JOURNAL)[0]
    yield from _Rendering(fs, place, partial(_archived_rows, rows), session_id, {}, {}, []).lines()


Rows = Callable[[bool], Iterable[tuple[Any, ...]]]
"""Returns the rows of a session; with `True`, the newest ones, newest first."""


def _stored_rows(database: Database, session_id: str, newest: bool) -> Iterable[tuple[Any, ...]]:
    return database.rows(f"{_ROWS} ORDER BY seq {'DESC LIMIT 8' if newest else ''}", (session_id,))


def _archived_rows(rows: Sequence[tuple[Any, ...]], newest: bool) -> Iterable[tuple[Any, ...]]:
    return reversed(rows) if newest else rows


def _listed(database: Database) -> tuple[dict[str, Json], dict[str, Json]]:
    """Return the nodes by key and the windows by session id."""
    nodes: dict[str, Json] = {str(row["session_key"]): row for row in database.records("SELECT * FROM session_nodes")}
    windows: dict[str, Json] = {
        str(row["session_id"]): row for row in database.records("SELECT * FROM session_windows")
    }
    return nodes, windows


def _title(node: Json, window: Json) -> str | None:
    """Return the label that a person gave, else the display name."""
    names = (node.get("label"), node.get("display_name"), window.get("display_name"))
    return next((name for name in names if isinstance(name, str) and name.strip()), None)


def _spawner(node: Json, window: Json) -> str | None:
    """Return the key of the session that started a sub-agent."""
    key = node.get("spawned_by") or window.get("spawned_by")
    return key if isinstance(key, str) and key else None


def _starter(nodes: Mapping[str, Json], windows: Mapping[str, Json], session_id: str) -> str | None:
    """Return the session that started a sub-agent: of several with its key, the last one at that time."""
    window = windows.get(session_id, {})
    node = nodes.get(str(window.get("session_key")), {})
    key = _spawner(node, window)
    if key is None:
        return None
    born = number(window.get("created_at")) or 0
    same = [(number(each.get("created_at")) or 0, name) for name, each in windows.items() if each["session_key"] == key]
    earlier = [name for created, name in sorted(same) if created <= born]
    current = nodes.get(key, {}).get("current_session_id")
    return earlier[-1] if earlier else current if isinstance(current, str) else None


def _look(looks: Looks, session_id: str, title: str | None) -> Glance:
    """Return what a listing shows of a session."""
    ordered = f"{_ROWS} ORDER BY seq LIMIT 40"
    header: Entry = {}
    first = ""
    last: Json = {}
    try:
        for row in looks.database.rows(ordered, (session_id,)):
            event = _event(row)
            header = event if event.get("type") == "session" else header
            message = mapping(event.get("message"))
            if message.get("role") == "user" and (first := spoken(message.get("content"))):
                break
        for row in looks.database.rows(f"{_ROWS} ORDER BY seq DESC LIMIT 8", (session_id,)):
            last = mapping(_event(row).get("message"))
            if last.get("role") in ("user", "assistant", "toolResult"):
                break
    except ValueError:
        pass  # what cannot be read here is a finding when the session is read
    return glance(session_id, header.get("cwd"), title, header.get("timestamp"), first, last)


def _event(row: tuple[Any, ...]) -> Entry:
    """Return the JSON object of a row; an empty one if it is damaged."""
    _, plain, packed, _ = row
    return object_in(plain if plain is not None else unzstd(packed) if isinstance(packed, bytes) else None)


# -- one session


class _Rendering:
    """Turns the rows of one session into entries."""

    def __init__(
        self,
        fs: Filesystem,
        place: str,
        rows: Rows,
        session_id: str,
        node: Json,
        window: Json,
        submitted: list[_Submission],
    ) -> None:
        self._fs = fs
        self._place = place
        self._rows = rows
        self._id = session_id
        self._node = node
        self._window = window
        self._submitted = submitted
        self._results: dict[str, tuple[str, Any]] = {}  # by call and time: the entry of a result, and its content
        self._cut: dict[str, list[str]] = {}  # by entry: the texts of a result that are sent in place of its own
        self._moved: dict[str, str] = {}  # by entry: the last one that was put after it

    def lines(self) -> Iterator[Entry | Finding]:
        rows = self._events()
        opening: list[Finding] = []
        first: Entry = {}
        begun: tuple[int, Entry] | None = None
        for seq, event in rows:
            if isinstance(event, Finding):
                opening.append(event)
            elif event.get("type") == "session" and not first:
                first = event
                break
            else:
                begun = seq, event
                break
        yield self._header(first)
        yield from opening
        if begun is not None:
            yield from self._entries(*begun)
        for seq, event in rows:
            if isinstance(event, Finding):
                yield event
            else:
                yield from self._entries(seq, event)

    def _events(self, *, newest: bool = False) -> Iterator[tuple[int, Entry | Finding]]:
        for row in self._rows(newest):
            try:
                event = _event(row)
            except ValueError as error:
                yield row[0], damaged(f"row {row[0]} cannot be unpacked: {error}")
                continue
            if event:
                yield row[0], event
            else:
                yield row[0], damaged(f"row {row[0]} is not a JSON object")

    def _header(self, first: Json) -> Entry:
        kept = {name: value for name, value in first.items() if name not in ("type", "version", "id", "parentSession")}
        own = {
            "sessionKey": self._window.get("session_key"),
            "node": present({name: value for name, value in self._node.items() if name != "entry_json"}),
            "window": present(dict(self._window)),
            "entry": object_in(self._node.get("entry_json")) if self._is_current else None,
        }
        updated = self._window.get("transcript_updated_at")
        return present(
            {
                **kept,
                "type": "session",
                "version": 3,
                "id": self._id,
                "timestamp": first.get("timestamp") or time_of(self._window.get("created_at")),
                "cwd": first.get("cwd") or "",
                "title": _title(self._node, self._window),
                "format": NAME,
                "modified": time_of(updated),
                "parentSession": self._source(first.get("parentSession")),
                "leaf": self._leaf(),
                NAME: present(own),
            }
        )

    @property
    def _is_current(self) -> bool:
        return self._node.get("current_session_id") == self._id

    def _source(self, named: object) -> str | None:
        """Return the path of the session that this one has copies of: it was forked, or rewound."""
        previous = self._window.get("previous_session_id")
        if isinstance(named, str) and named.startswith("sqlite:"):
            _, agent, session_id, *_ = [*named.split(":", 3), "", ""]
            agents = posixpath.dirname(posixpath.dirname(posixpath.dirname(self._place)))
            return f"{agents}/{agent}/agent/{DATABASE}/{session_id}{JOURNAL}"
        if isinstance(named, str) and named:
            return named
        source = previous or self._node.get("fork_source_session_id")
        return f"{self._place}/{source}{JOURNAL}" if isinstance(source, str) and source else None

    def _leaf(self) -> str | None:
        """Return the entry from which the conversation continues: the last row, or the target of a leaf."""
        for _, event in self._events(newest=True):
            if isinstance(event, Finding):
                continue
            name = "targetId" if event.get("type") == "leaf" else "id"
            return event[name] if isinstance(event.get(name), str) and event.get("type") != "session" else None
        return None

    # -- rows

    def _entries(self, seq: int, event: Entry) -> Iterator[Entry | Finding]:
        kind = event.get("type")
        entry: Entry = {**event, "id": event.get("id") or f"row-{seq}"}
        if entry.get("parentId") in self._moved:
            entry["parentId"] = self._moved[entry["parentId"]]
        if kind == "session":
            entry |= {"type": "custom", "customType": f"{NAME}.session", "data": dict(event)}
        elif kind == "leaf":
            target = event.get("targetId")
            parent = target if isinstance(target, str) else event.get("parentId")
            entry |= {"type": "custom", "customType": f"{NAME}.leaf", "data": dict(event), "parentId": parent}
        elif kind == "reset":
            # With something to keep, it is a compaction without a summary.
            keeps = isinstance(event.get("firstKeptEntryId"), str)
            kept = {"type": "compaction", "summary": "", "tokensBefore": 0, "replacement": []}
            entry |= kept if keeps else {"type": "reset_boundary"}
        elif kind == "message" and isinstance(event.get("message"), dict):
            message, findings = self._message(event["message"], event.get("parentId"))
            yield from findings
            entry["message"] = message
            self._note_result(entry)
        if kind != "leaf" and mapping(event.get("message")).get("role") != "user":
            own = self._own_prompt(event.get("parentId"), event)
            if own is not None:
                yield own
                entry["parentId"] = own["id"]
        yield entry
        if event.get("customType") == _STATE:
            yield from self._edits(entry)

    def _note_result(self, entry: Entry) -> None:
        message = entry["message"]
        if message.get("role") == "toolResult":
            key = f"tool:{message.get('toolCallId')}:{message.get('timestamp')}"
            self._results[_plain(key)] = (entry["id"], message.get("content"))

    def _edits(self, entry: Entry) -> Iterator[Entry]:
        """Yield an edit for each result of which other texts are sent from a row with that state on, or its own again."""
        cut: dict[str, list[str]] = {}
        for frozen in objects(mapping(entry.get("data")).get("frozenToolResults")):
            target, _ = self._results.get(_plain(str(frozen.get("key"))), (None, None))
            texts = frozen.get("texts")
            if target is not None and isinstance(texts, list):
                cut[target] = [text for text in texts if isinstance(text, str)]
        contents = dict(self._results.values())
        last = entry["id"]
        for target in sorted({*cut, *self._cut}):
            if cut.get(target) == self._cut.get(target):
                continue
            content = [{"type": "text", "text": text} for text in cut[target]] if target in cut else contents[target]
            edit_id = f"{entry['id']}-{target}"
            edit = {"type": "context_edit", "id": edit_id, "parentId": last, "timestamp": entry.get("timestamp")}
            yield {**edit, "targetId": target, "replacement": {"content": content}}
            last = edit_id
        self._cut = cut
        if last != entry["id"]:
            self._moved[entry["id"]] = last

    def _own_prompt(self, parent: object, event: Json) -> Entry | None:
        """Return the prompt of the program that was sent between an entry and the next."""
        found = [each for each in self._submitted if each.after == parent and each.run]
        run = mapping(mapping(event.get("message")).get("__openclaw")).get("runId")
        found = [each for each in found if each.run == run] if isinstance(run, str) else found
        if not isinstance(parent, str) or not found:
            return None
        prompt = found[-1]
        self._submitted.remove(prompt)
        return {
            "type": "custom_message",
            "id": f"{parent}-prompt",
            "parentId": self._moved.get(parent, parent),
            "timestamp": time_of(prompt.at),
            "customType": OWN_PROMPT,
            "content": [{"type": "text", "text": prompt.text}],
            "display": False,
        }

    def _message(self, message: Entry, parent: object) -> tuple[Entry, list[Finding]]:
        findings: list[Finding] = []
        if message.get("role") == "user":
            message = self._as_submitted(message, parent)
            media = objects(mapping(message.get("__openclaw")).get("media"))
            images = [image for each in media if (image := self._image(each, findings)) is not None]
            if images:
                content = message.get("content")
                blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
                message = {**message, "content": [*blocks, *images]}
        elif message.get("role") == "assistant" and message.get("model") == "gateway-injected":
            message = {**message, "excludeFromContext": True}
        return message, findings

    def _image(self, media: Json, findings: list[Finding]) -> Entry | None:
        """Return an image of a prompt from the files that came in."""
        address, kind = media.get("url"), media.get("contentType")
        if not isinstance(address, str) or not address.startswith(_INBOUND) or media.get("kind") != "image":
            return None
        name = posixpath.basename(address.removeprefix(_INBOUND))
        state = self._place
        for _ in range(4):  # agents/<agent>/agent/<database>
            state = posixpath.dirname(state)
        try:
            if self._fs.lstat(f"{state}/media/inbound/{name}").st_size > _LARGEST_IMAGE:
                findings.append(damaged(f"the image {name} is larger than {_LARGEST_IMAGE} bytes"))
                return None
            data = atomic.read_all(self._fs, f"{state}/media/inbound/{name}")
        except OSError:
            findings.append(damaged(f"the image {name} is not in media/inbound any more"))
            return None
        encoded = binascii.b2a_base64(data, newline=False).decode()
        return {"type": "image", "data": encoded, "mimeType": kind if isinstance(kind, str) else "image/png"}

    def _as_submitted(self, message: Entry, parent: object) -> Entry:
        """Return a prompt with the words in which it was sent, if they are others."""
        key = message.get("idempotencyKey")
        run = key.removesuffix(":user") if isinstance(key, str) else None
        prompt = next((each for each in self._submitted if each.run == run), None)
        if prompt is None and message.get("provenance"):  # the stub of a prompt of the program has a key of its own
            prompt = next((each for each in self._submitted if each.after == parent), None)
        if prompt is None:
            return message
        self._submitted.remove(prompt)
        return message if prompt.text == message.get("content") else {**message, SUBMITTED: prompt.text}


class _Submission(NamedTuple):
    """A prompt as it was sent."""

    run: str | None
    text: str
    after: str | None  # the last entry before it
    at: int | None


def _submissions(database: Database, session_id: str) -> list[_Submission]:
    """Return the prompts in the trace of a session, in order; none if there is no trace that can be read."""
    query = (
        "SELECT run_id, json_extract(event_json, '$.data.prompt'), json_extract(event_json, '$.data.transcriptLeafId'),"
        " created_at FROM trajectory_runtime_events WHERE session_id = ?"
        " AND json_extract(event_json, '$.type') = 'context.compiled' ORDER BY seq"
    )
    try:
        rows = list(database.rows(query, (session_id,)))
    except ValueError:
        return []  # an aid for people who look for errors, which later releases may store in another way
    # A text that was too long for the trace is not a JSON string but an object.
    return [
        _Submission(run, _unredacted(text, run), after, number(at)) for run, text, after, at in rows if _is_whole(text)
    ]


def _plain(key: str) -> str:
    """Return the key of a result without what ids lose when they are sent."""
    return "".join(letter for letter in key if letter.isalnum() or letter == ":")


def _unredacted(text: str, run: object) -> str:
    """Return the prompt of an announcement with the name of its tool, which the trace takes for a secret."""
    announced = isinstance(run, str) and run.startswith("announce:")
    return text.replace("sourceTool=<redacted>", "sourceTool=subagent_announce") if announced else text


def _is_whole(text: object) -> bool:
    return isinstance(text, str) and not text.startswith('{"truncated":')
