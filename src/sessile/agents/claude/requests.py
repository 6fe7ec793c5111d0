"""The requests of Claude Code: what it sent after an entry of a transcript, or sends next.

Newer releases record each request in the transcript:

    api-request        parameters, the hash of the shape, and the hashes of the messages, relative to an earlier request
    api-request-shape  system prompt and tools
    api-request-blob   a message that is not simply one or more rows of the conversation

Such a request is put together from these rows, and every message is compared with its hash. Where no request is recorded
(older releases, forks, the next request of a session), it is made from the rows of the conversation by these rules:

- After a compaction: the summary, the messages that it preserved, then everything after it.
- Rows of one response are one message. Errors of the API, and notes for the user, are not sent.
- Rows of the user up to the next response are one message; a line break is added where two texts meet.
- The text of an attachment is in its row (`rendered`). Attachments come before the prompts that they were made for, but not
  before a response or the result of a tool. The texts of one attachment are messages of their own after a response.
- For models that know system messages, attachments for the system role become one after the message of the user, without
  their tags. The first one also states the effort.
- System prompt and tools are those of the last `prompt_snapshot`; that of a new conversation is written after its first answer.
  Tools are sent by name.
- Only what follows the last recorded request is made this way; its own messages are known.

The first block of the system prompt is not in the transcript. Cache marks are left out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sessile.agents.claude import ClaudeCode
from sessile.agents.claude import rows as kinds
from sessile.agents.claude.rows import OBJECT, TranscriptState, mapping_of, text_of, type_of, uuid_of
from sessile.agents.claude.translation import SYNTHETIC, blocks_of, definition_of, lenient, rendered
from sessile.core.kinds import BOUNDARY
from sessile.core.lines import Head, Line, Scanner
from sessile.core.messages.request import Request, RequestNote
from sessile.storage.base import Row as Place

if TYPE_CHECKING:
    from sessile.agents.reader import ForeignReader

Row = Mapping[str, Any]
Block = dict[str, Any]
Message = dict[str, Any]

NO_PROMPT, NO_TOOLS, BILLING = ClaudeCode.dialect.gaps
PLACEHOLDER = "placeholder for deferred tools: not stored in this transcript"
NOTIFICATION = "words around a task notification: not stored in its row"

_REQUEST, _SHAPE, _BLOB = "api-request", "api-request-shape", "api-request-blob"
_RECORDS = (_REQUEST, _SHAPE, _BLOB)
_TRIES = 3  # recorded requests that are tried as the beginning of one that is not recorded
_PARAMETERS = ("model", "max_tokens", "thinking", "context_management", "output_config")
_TAGGED = re.compile(r"\A<([\w-]+)>\n?(.*?)\n?</\1>\s*\Z", re.DOTALL)


def request_at(reader: ForeignReader, entry_id: str, *, recorded: bool = True) -> Request | None:
    """Return the request that was sent, or would be sent, after an entry; `None` if there is no such entry.

    Args:
        reader: The transcript.
        entry_id: The entry; the id of an `api-request` row means that request.
        recorded: Use the requests that the transcript records.
    """
    place = reader.find(entry_id)
    if place is None:
        return None
    log = Log(reader, recorded=recorded)
    path = Path(reader, place)
    uuid = entry_id.partition("/")[0]
    own = log.request_at(place.position[0])
    answer = log.answer_to(uuid)
    built = Built(path, log, answer if own is None else None)
    if not recorded:
        return built.request()
    chosen = own or log.recorded_after(uuid, answer)
    if chosen is not None:
        return _recorded(log, chosen, built)
    named = None if answer is None else text_of(answer, "requestRef")
    # The rows of a fork are copies; the requests are recorded in the session that they were copied from.
    original = None if named is None else reader.beside(f'"id":"{named}"'.encode())
    if named is None or original is None:
        return _continued(log, built)
    with closing(original):
        elsewhere = Log(original)
        return _recorded(elsewhere, named, built) if elsewhere.has(named) else _continued(log, built)


# -- the rows of a transcript


class _Scanned(Head):
    """The members of any row that tell where it belongs."""

    uuid: str | None = None
    parentUuid: str | None = None
    requestRef: str | None = None
    hash: str | None = None
    shapeHash: str | None = None


_decode_scanned = msgspec.json.Decoder(_Scanned).decode
_Position = tuple[int, int]


class Log:
    """Where the recorded requests of a transcript are, and the rows that follow each row of the conversation."""

    def __init__(self, reader: ForeignReader, *, recorded: bool = True) -> None:
        self._reader = reader
        self._requests: dict[str, Row] = {}
        self._after: dict[str | None, list[str]] = {}  # the requests recorded after a row, before the next one
        self._offsets: dict[int, str] = {}
        self._stored: dict[tuple[str, str], _Position] = {}
        self._children: dict[str, list[_Position]] = {}
        self._claimed: set[str] = set()  # requests that an answer names
        self.state = TranscriptState()
        last: str | None = None
        for line in _lines(reader):
            head = line.head
            if not isinstance(head, _Scanned):
                continue
            position = line.offset, len(line.raw)
            if head.type in _RECORDS and not recorded:
                continue
            if head.type == _REQUEST:
                row = lenient(line.raw)
                if isinstance(row.get("id"), str):
                    self._requests[row["id"]] = row
                    self._offsets[line.offset] = row["id"]
                    self._after.setdefault(last, []).append(row["id"])
            elif head.type == _BLOB and head.hash is not None:
                self._stored[_BLOB, head.hash] = position
            elif head.type == _SHAPE and head.shapeHash is not None:
                self._stored[_SHAPE, head.shapeHash] = position
            elif head.type == kinds.CONTENT_REPLACEMENT:
                self.state.apply(lenient(line.raw))
            elif head.uuid is not None and head.type in kinds.TRANSCRIPT_MESSAGES:
                last = head.uuid
                if head.parentUuid is not None:
                    self._children.setdefault(head.parentUuid, []).append(position)
                if head.requestRef is not None:
                    self._claimed.add(head.requestRef)

    def children(self, uuid: str) -> Iterator[Row]:
        """Yield the rows that follow a row, in file order."""
        return (self._read(position) for position in self._children.get(uuid, ()))

    def answer_to(self, uuid: str) -> Row | None:
        """Return the first row of the model's answer to a row, if there is one."""
        return next((row for row in self.children(uuid) if _is_answer(row)), None)

    def request_at(self, offset: int) -> str | None:
        """Return the id of the request recorded at an offset."""
        return self._offsets.get(offset)

    def recorded_after(self, uuid: str, answer: Row | None) -> str | None:
        """Return the request that an answer names, else the first one recorded after the row that got no answer."""
        named = None if answer is None else text_of(answer, "requestRef")
        if answer is not None:
            return named if named in self._requests else None
        return next((sent for sent in self._after.get(uuid, ()) if sent not in self._claimed), None)

    def has(self, request_id: str) -> bool:
        """Return whether a request is recorded."""
        return request_id in self._requests

    def request(self, request_id: str) -> Row:
        """Return the row of a recorded request."""
        return self._requests[request_id]

    def hashes(self, request_id: str) -> list[str] | None:
        """Return the hashes of a request's messages; `None` if a request that it builds on is missing."""
        chain: list[Row] = []
        at: object = request_id
        while at is not None:
            row = self._requests.get(at) if isinstance(at, str) else None
            if row is None or len(chain) > len(self._requests):
                return None
            chain.append(row)
            at = row.get("base")
        hashes: list[str] = []
        for row in reversed(chain):
            keep, tail = row.get("keep"), row.get("tail")
            if not isinstance(keep, int) or not isinstance(tail, list) or keep > len(hashes):
                return None
            hashes = [*hashes[:keep], *map(str, tail)]
        return hashes

    def blob(self, digest: str) -> Message | None:
        """Return the stored message of a hash."""
        position = self._stored.get((_BLOB, digest))
        message = None if position is None else self._read(position).get("message")
        return dict(message) if isinstance(message, OBJECT) and isinstance(message.get("role"), str) else None

    def shape(self, digest: object) -> Row | None:
        """Return the stored system prompt and tools of a hash."""
        position = self._stored.get((_SHAPE, str(digest)))
        shape = None if position is None else self._read(position).get("shape")
        return shape if isinstance(shape, OBJECT) else None

    def shapes(self) -> Iterator[Row]:
        """Yield every stored system prompt with tools."""
        digests = [digest for kind, digest in self._stored if kind == _SHAPE]
        return (shape for digest in digests if (shape := self.shape(digest)) is not None)

    def wrapped(self, text: str) -> str | None:
        """Return a stored text that has another one in it, such as a notification with the words around it."""
        for kind, digest in self._stored:
            message = self.blob(digest) if kind == _BLOB else None
            for part in () if message is None else _texts(message.get("content")):
                if text in part and len(part) > len(text):
                    return part
        return None

    def _read(self, position: _Position) -> Row:
        return lenient(self._reader.raw(Place("", None, 0, position)))


def _lines(reader: ForeignReader) -> Iterator[Line]:
    scanner = Scanner(decode=_decode_scanned)
    for piece in (*reader.pieces(), b"\n"):
        yield from (item for item in scanner.feed(piece) if isinstance(item, Line))


class Path:
    """The rows that the model sees at an entry: the summary of the last compaction, what it preserved, and what follows."""

    def __init__(self, reader: ForeignReader, place: Place) -> None:
        self.sources: dict[str, str] = {}  # the entry of each row, by uuid
        self.earlier: list[Row] = []  # rows before the last compaction, newest first
        after: list[Row] = []
        summary: Row | None = None
        offset = -1
        for step in reader.up(place):
            if step.position[0] == offset:
                continue  # another result of the same row
            offset = step.position[0]
            row = lenient(reader.raw(step))
            self.sources.setdefault(uuid_of(row) or "", step.id)
            if summary is not None:
                self.earlier.append(row)
                if len(self.earlier) > 1 and _is_snapshot(row) and self._kept_from(row):
                    break
            elif step.flags & BOUNDARY and row.get("isCompactSummary") is True:
                summary = row
            else:
                after.append(row)
        after.reverse()
        kept = [] if summary is None else [summary, *self._preserved(after)]
        self.rows: list[Row] = [*kept, *after]
        self.begin = len(kept)

    def _kept_from(self, row: Row) -> bool:
        """Return whether everything that a compaction preserved has been read."""
        first = _first_preserved(self.earlier[0])
        return first is None or any(uuid_of(earlier) == first for earlier in self.earlier)

    def _preserved(self, after: Sequence[Row]) -> list[Row]:
        boundary = self.earlier[0] if self.earlier and kinds.is_compact_boundary(self.earlier[0]) else {}
        metadata = mapping_of(boundary, "compactMetadata")
        present = {uuid_of(row) for row in after}
        older = {uuid_of(row): row for row in reversed(self.earlier)}
        named = mapping_of(metadata, "preservedMessages").get("uuids")
        if isinstance(named, list):
            return [older[uuid] for uuid in named if uuid in older and uuid not in present]
        segment = mapping_of(metadata, "preservedSegment")
        uuids = list(older)
        head, tail = segment.get("headUuid"), segment.get("tailUuid")
        if head not in older or tail not in older:
            return []
        return [older[uuid] for uuid in uuids[uuids.index(head) : uuids.index(tail) + 1] if uuid not in present]


def _first_preserved(boundary: Row) -> str | None:
    metadata = mapping_of(boundary, "compactMetadata")
    named = mapping_of(metadata, "preservedMessages").get("uuids")
    if isinstance(named, list) and named:
        return str(named[0])
    return text_of(mapping_of(metadata, "preservedSegment"), "headUuid")


def _is_answer(row: Row) -> bool:
    """Return whether a row is part of an answer of a model, not a text of the program."""
    return type_of(row) == kinds.ASSISTANT and text_of(mapping_of(row, "message"), "model") != SYNTHETIC


def _is_snapshot(row: Row) -> bool:
    return text_of(mapping_of(row, "attachment"), "type") == "prompt_snapshot"


# -- recorded requests


class _Checked(NamedTuple):
    """The messages of a recorded request, and how many of them do not have their hash."""

    messages: list[Message]
    unlike: int


def _recorded(log: Log, request_id: str, built: Built) -> Request:
    """Return a recorded request; if the record is incomplete, the one that the rows give."""
    made = built.request()
    hashes = log.hashes(request_id)
    checked = None if hashes is None else _checked(log, hashes, made["messages"], len(hashes) == len(made["messages"]))
    if checked is None:
        text = f"the record of request {request_id} is incomplete; the request was made from the rows"
        made.notes.append(RequestNote(None, "made", text))
        return made
    return _completed(log, request_id, checked, made)


def _continued(log: Log, built: Built) -> Request:
    """Return a request that is not recorded: the last recorded one before it, and what the rows add to that."""
    made = built.request()
    for request_id, count in built.requests_before(log):
        hashes = log.hashes(request_id)
        later = made["messages"][-count:]
        if hashes is None or len(hashes) + count != len(made["messages"]):
            continue
        checked = _checked(log, hashes, made["messages"], True)
        if checked is not None:
            request = _completed(log, request_id, checked._replace(messages=checked.messages + later), made)
            request.notes += [note for note in made.notes if note.did == "dropped"]
            return request
    return made


def _checked(log: Log, hashes: Sequence[str], made: Sequence[Message], aligned: bool) -> _Checked | None:
    """Return the messages with these hashes; `None` if one is neither stored nor among those that the rows give.

    With `aligned`, a message that has another hash is taken by its place.
    """
    by_hash = {digest_of(message): message for message in made}
    messages: list[Message] = []
    unlike = 0
    for place, digest in enumerate(hashes):
        message = log.blob(digest)
        if message is None:
            message = by_hash.get(digest)
        if message is None and aligned:
            message = made[place]
        if message is None:
            return None
        unlike += digest_of(message) != digest
        messages.append(_without_marks(message))
    return _Checked(messages, unlike)


def _completed(log: Log, request_id: str, checked: _Checked, made: Request) -> Request:
    """Return the messages of a recorded request with its parameters, system prompt and tools."""
    row = log.request(request_id)
    shape, unlike = log.shape(row.get("shapeHash")), checked.unlike
    request = Request(_parameters(row), gaps=(BILLING,))
    if shape is None:
        request |= {name: made[name] for name in ("system", "tools") if name in made}
        request.gaps = made.gaps
        request.notes.append(RequestNote(None, "made", f"system prompt and tools of request {request_id} are missing"))
    else:
        request |= {name: _without_marks(shape[name]) for name in ("system", "tools") if name in shape}
        unlike += digest_of(shape) != row.get("shapeHash")
    request["messages"] = checked.messages
    if unlike:
        text = (
            f"{unlike} of {len(checked.messages) + 1} parts do not have their recorded hash: the transcript was changed"
        )
        request.notes.append(RequestNote(None, "changed", text))
    return request


def _parameters(row: Row) -> Message:
    given = mapping_of(row, "params")
    return {name: given[name] for name in _PARAMETERS if name in given}


def digest_of(value: Row) -> str:
    """Return the hash that Claude Code records of a message or a shape."""
    plain = _without_marks(value)
    if isinstance(plain.get("content"), str):
        plain["content"] = [{"type": "text", "text": plain["content"]}]
    text = json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _without_marks(value: Any) -> Any:
    """Return a copy without marks for the cache."""
    if isinstance(value, OBJECT):
        return {name: _without_marks(item) for name, item in value.items() if name != "cache_control"}
    return [_without_marks(item) for item in value] if isinstance(value, list) else value


# -- requests made from the rows


class _Turn(NamedTuple):
    """Something that is sent: an answer (with the id of its response), a row of the user, or an attachment."""

    kind: str
    content: Any
    response: str | None = None


class Built:
    """A request that is made from the rows of a path, for the model that gave the answer, or gave the last one."""

    def __init__(self, path: Path, log: Log, answer: Row | None) -> None:
        self._path = path
        self._log = log
        self._notes: list[RequestNote] = []
        self._gaps: list[str] = []
        self._snapshots = self._find_snapshots(answer)
        last = answer or next((row for row in reversed(path.rows) if _is_answer(row)), None)
        self._effort = None if last is None else text_of(last, "perTurnEffort")
        self._has_system_turns = self._knows_system_turns(last)
        self._model = text_of(mapping_of(last, "message"), "model")

    def request(self) -> Request:
        """Return the request."""
        messages = self._with_effort(self._wire(self._path.rows))
        request = Request({} if self._model is None else {"model": self._model})
        prompt = next((found for row in self._snapshots if (found := row.get("systemPrompt"))), None)
        if isinstance(prompt, list):
            prefix = next((found for row in self._snapshots if (found := text_of(row, "cliPrefix"))), None)
            texts = [prefix, "\n\n".join(map(str, prompt))]
            request["system"] = [{"type": "text", "text": text} for text in texts if text]
            self._gaps.append(BILLING if prefix else "system blocks 1 and 2: stored after the first answer")
        else:
            self._gaps.append(NO_PROMPT)
        request["messages"] = messages
        tools = next((found for row in self._snapshots if (found := row.get("tools"))), None)
        if isinstance(tools, list):
            request["tools"] = self._tools([definition_of(tool) for tool in tools if isinstance(tool, OBJECT)])
        else:
            self._gaps.append(NO_TOOLS)
        request.notes, request.gaps = self._notes.copy(), list(dict.fromkeys(self._gaps))
        self._notes, self._gaps = [], []
        return request

    def requests_before(self, log: Log) -> Iterator[tuple[str, int]]:
        """Yield recorded requests that these rows continue, newest first, and how many messages come after each."""
        rows = self._path.rows
        first: dict[str, int] = {}  # the first row of each response
        for place in range(self._path.begin, len(rows)):
            if _is_answer(rows[place]):
                first.setdefault(str(text_of(rows[place], "requestRef")), place)
        for request_id, place in list(first.items())[: -_TRIES - 1 : -1]:
            if log.has(request_id) and self._knows_system_turns(rows[place]) == self._has_system_turns:
                yield request_id, len(self._wire(rows[place:]))
        self._notes, self._gaps = [], []

    def _find_snapshots(self, answer: Row | None) -> list[Row]:
        """Return the snapshots of system prompt and tools, the one that counts first."""
        found = [row for row in reversed(self._path.rows) if _is_snapshot(row)] or [
            row for row in self._path.earlier if _is_snapshot(row)
        ]
        seen: set[str | None] = set()
        at = answer
        while at is not None and uuid_of(at) not in seen:  # a snapshot after the answer is that of its request
            seen.add(uuid_of(at))
            following = list(self._log.children(uuid_of(at) or ""))
            found = [row for row in following if _is_snapshot(row)] + found
            response = text_of(mapping_of(at, "message"), "id")
            at = next((row for row in following if text_of(mapping_of(row, "message"), "id") == response), None)
        return [mapping_of(row, "attachment") for row in found]

    def _tools(self, tools: list[Message]) -> list[Message]:
        """Return the tools of a snapshot as they are sent: with the placeholder for deferred ones, if a record has it."""
        tools.sort(key=lambda tool: str(tool.get("name")))
        for shape in self._log.shapes():
            listed = [_without_marks(tool) for tool in shape.get("tools") or () if isinstance(tool, OBJECT)]
            if [tool for tool in listed if tool.get("defer_loading") is not True] == tools:
                return listed
        if any(tool.get("name") == "ToolSearch" for tool in tools):
            self._gaps.append(PLACEHOLDER)
        return tools

    def _knows_system_turns(self, answer: Row | None) -> bool:
        if answer is not None and "perTurnEffort" in answer:
            return answer["perTurnEffort"] is not None
        told = next((row["systemTurns"] for row in self._snapshots if "systemTurns" in row), None)
        return told is True or (told is None and any(row.get("renderedRole") == "system" for row in self._path.rows))

    def _wire(self, rows: Sequence[Row]) -> list[Message]:
        """Return the messages that rows are sent as."""
        messages: list[Message] = []
        run: list[_Turn] = []
        for turn in self._turns(rows):
            if turn.kind != "answer":
                run.append(turn)
                continue
            self._add_run(messages, run)
            run = []
            earlier = _same_response(messages, turn.response)
            if earlier is None:
                messages.append({"role": "assistant", "content": list(turn.content)})
                messages[-1]["id"] = turn.response
            else:
                earlier["content"] += turn.content
        self._add_run(messages, run)
        for message in messages:
            message.pop("id", None)
        return messages

    def _with_effort(self, messages: list[Message]) -> list[Message]:
        """State the effort in the system message after the first message of the user."""
        if not self._has_system_turns or self._effort is None or not messages:
            return messages
        place = next((place for place, message in enumerate(messages) if message["role"] == "user"), 0) + 1
        while place < len(messages) and messages[place]["role"] == "user":
            place += 1
        if place == len(messages) or messages[place]["role"] != "system":
            messages.insert(place, {"role": "system", "content": []})
        messages[place]["output_config"] = {"effort": self._effort}
        return messages

    def _add_run(self, messages: list[Message], run: Sequence[_Turn]) -> None:
        """Add what the user and the program say between two answers."""
        own: list[Message] = []
        system: list[str] = []
        for turn in _before_prompts(run):
            if turn.kind == "system" and self._has_system_turns:
                system += [_untagged(text) for part in turn.content for text in _texts(part)]
            elif turn.kind == "user":
                _merge(own, turn.content, seam=True)
            elif own:
                for part in turn.content:
                    _merge(own, part, seam=False)
            else:
                own += [{"role": "user", "content": part} for part in turn.content]
        if own and messages and messages[-1]["role"] == "user":  # after the results of calls
            for message in own:
                _merge(messages, message["content"], seam=True)
        else:
            messages += own
        if system:
            messages.append({"role": "system", "content": [{"type": "text", "text": "\n\n".join(system)}]})

    def _turns(self, rows: Sequence[Row]) -> Iterator[_Turn]:
        for row in rows:
            kind = type_of(row)
            if kind == kinds.ASSISTANT:
                yield from self._answer(row)
            elif kind == kinds.USER:
                yield from self._user(row)
            elif kind == kinds.ATTACHMENT:
                yield from self._attachment(row)
            elif text_of(row, "subtype") == "local_command" and text_of(row, "content"):
                yield _Turn("user", row["content"])

    def _answer(self, row: Row) -> Iterator[_Turn]:
        message = mapping_of(row, "message")
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else blocks_of(content)
        if row.get("isApiErrorMessage") is True:
            self._note(row, "dropped", "an error of the API is not sent")
        elif blocks:
            yield _Turn("answer", list(map(dict, blocks)), text_of(message, "id") or uuid_of(row))

    def _user(self, row: Row) -> Iterator[_Turn]:
        if row.get("isVisibleInTranscriptOnly") is True and row.get("isCompactSummary") is not True:
            return
        content = mapping_of(row, "message").get("content")
        if isinstance(content, str):
            if text_of(mapping_of(row, "origin"), "kind") == "task-notification":
                wrapped = self._log.wrapped(content)
                if wrapped is None:
                    self._gaps.append(NOTIFICATION)
                content = wrapped or content
            yield _Turn("user", content)
        elif blocks := [self._replaced(block) for block in blocks_of(content)]:
            yield _Turn("user", blocks)

    def _replaced(self, block: Row) -> Block:
        """Return a block; the content of a large result may have been replaced later."""
        replacement = None
        if block.get("type") == "tool_result":
            replacement = self._log.state.replacement_of(str(block.get("tool_use_id")))
        return {**block} if replacement is None else {**block, "content": replacement}

    def _attachment(self, row: Row) -> Iterator[_Turn]:
        attachment = mapping_of(row, "attachment")
        if parts := rendered(row):
            yield _Turn("system" if row.get("renderedRole") == "system" else "attached", parts)
        elif not _is_snapshot(row) and "rendered" not in row and attachment.get("context") != {}:
            kind = text_of(attachment, "type") or "unknown"
            self._note(row, "dropped", f"the words of the attachment {kind} are not stored")

    def _note(self, row: Row, did: str, text: str) -> None:
        uuid = uuid_of(row) or ""
        self._notes.append(RequestNote(self._path.sources.get(uuid, uuid), did, text))


def _untagged(text: str) -> str:
    found = _TAGGED.match(text)
    return found.group(2) if found else text


def _texts(content: object) -> list[str]:
    return [content] if isinstance(content, str) else [str(block.get("text")) for block in blocks_of(content)]


def _has_results(content: object) -> bool:
    return any(block.get("type") == "tool_result" for block in blocks_of(content))


def _before_prompts(run: Iterable[_Turn]) -> list[_Turn]:
    """Return attachments before the rows of the user, but not before the results of calls."""
    ordered: list[_Turn] = []
    place = 0
    for turn in run:
        if turn.kind != "user":
            ordered.insert(place, turn)
            place += 1
            continue
        ordered.append(turn)
        if _has_results(turn.content):
            place = len(ordered)
    return ordered


def _same_response(messages: Sequence[Message], response: str | None) -> Message | None:
    """Return the message of a response whose other rows were followed by nothing but results of its calls."""
    for message in reversed(messages):
        if message["role"] == "assistant":
            return message if response is not None and message.get("id") == response else None
        if message["role"] != "user" or not _has_results(message["content"]):
            return None
    return None


def _merge(messages: list[Message], content: Any, *, seam: bool) -> None:
    """Add a content to the last message, or begin one; results of calls come first."""
    if not messages:
        messages.append({"role": "user", "content": content})
        return
    before, after = _as_blocks(messages[-1]["content"]), _as_blocks(content)
    if seam and before and after and before[-1].get("type") == after[0].get("type") == "text":
        before[-1] = {**before[-1], "text": f"{before[-1]['text']}\n"}
    merged = before + after
    results = [block for block in merged if block.get("type") == "tool_result"]
    messages[-1]["content"] = results + [block for block in merged if block.get("type") != "tool_result"]


def _as_blocks(content: Any) -> list[Block]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
