"""Translate between rows of a Claude Code transcript and our entries.

Reading:

    user, assistant              a message, or one per tool result
    user, compact summary        a compaction; the boundary before it names the preserved rows
    meta, attachment             custom messages: what the program added to the conversation for the model
    prompt snapshot              a system message with the system prompt and the tools
    other system rows            custom entries that hold the whole row
    progress, rows without uuid  markers; a title names the session

- In the file, the results of parallel calls are children of their own calls. Here they form one chain after the last
  call, so a path holds all of them, as the model saw them.
- A compaction is a root in the file. Here it is a child of what it summarizes (`logicalParentUuid`), so nothing is cut
  off.
- A fork of a compacted session begins with the boundary, and the preserved rows follow the summary.
- Results have the name of their tool, from the row with the call. A text that no model wrote has no
  provider, so that its model does not count as one.
- Of rows with the same `message.id` only the usage of the first counts; all of them have it as `responseId`.
- Reading never raises. `chain` decides what Claude Code itself shows at a leaf; this module is for trees, searches and
  exports.

Writing:

    messages, tool results     user and assistant rows
    compactions                a boundary and a summary, with the preserved rows as a segment or one by one
    everything else            system rows that Claude Code ignores, which keep the chain connected

- A row's uuid is derived from session and entry id, so an entry always gives the same row.
- Members without a counterpart are stored in the row under `sessile`, and `entry_of` restores the same entry.
- Unchanged rows of a converted Claude transcript are not rendered: the writer copies their bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from sessile.agents.base import NOTHING_TOLD, Entry, Glimpse, Known, Look
from sessile.agents.claude.listing import LiteFile, first_prompt, session_info, starts_as_sidechain, title_of
from sessile.agents.claude.rows import OBJECT, NewRow, lines_of, mapping_of, text_of
from sessile.core.codec import decode, encode_plain
from sessile.core.kinds import CHAIN, LEAF_MARKER, MARKER, TITLE, flags_of
from sessile.core.lines import Head, Line, MessageHead, Scanner
from sessile.core.text import iso_timestamp, parse_timestamp
from sessile.storage.formats import Told

NAME = "claude"
_SPILLS = "tool-results"  # the folder of a session with outputs that were too large
_SAVED = re.compile(r"<persisted-output>\n[^\n]*saved to: ([^\n]+)")
_OPEN_RESPONSES = 16  # the minimum number of responses that are remembered because results may follow
_RESULT = b'"tool_result"'


class _Message(MessageHead):
    id: str | None = None


class _Row(Head):
    """The head of a row, with the members of Claude Code."""

    uuid: str | None = None
    parentUuid: str | None = None
    logicalParentUuid: str | None = None
    subtype: str | None = None
    isSidechain: bool | None = None
    isMeta: bool | None = None
    isCompactSummary: bool | None = None
    teamName: str | None = None
    message: _Message | None = None
    sessile: Head | None = None  # the entry that the row was rendered from


_decode_row = msgspec.json.Decoder(_Row).decode
_MESSAGE_FLAGS = {role: flags_of(Head("message", message=MessageHead(role))) for role in ("user", "assistant")}


class Claude:
    """The format of Claude Code."""

    name = NAME
    nested = False

    def scanner(self, offset: int) -> Scanner:
        """Return a scanner that decodes each row once, as far as the translator needs it."""
        return Scanner(offset, decode=_decode_row)

    def recognises(self, first: bytes) -> bool:
        """Return whether rows have a session id, and a uuid or type; ours start with a header."""
        for row in map(lenient, islice(lines_of(first), 20)):
            if row.get("type") == "session":
                return False
            if isinstance(row.get("sessionId"), str) and ("uuid" in row or "type" in row):
                return True
            if row.get("type") == "summary" and isinstance(row.get("leafUuid"), str):
                return True
        return False

    def header(self, stem: str, first: bytes, told: Told = NOTHING_TOLD) -> Entry:
        """Return a header with the id from the file name, and folder and time from the first rows that have them."""
        cwd = at = None
        for row in map(lenient, lines_of(first)):
            cwd = text_of(row, "cwd") if cwd is None else cwd
            at = text_of(row, "timestamp") if at is None else at
            if cwd is not None and at is not None:
                break
        header = {"type": "session", "version": 3, "id": stem, "timestamp": at, "cwd": cwd or "", "format": NAME}
        return {name: value for name, value in header.items() if value is not None}

    def glimpse(self, stem: str, first: bytes, last: bytes) -> Glimpse | None:
        """Return title and first prompt as Claude Code shows them."""
        if starts_as_sidechain(first):
            return Glimpse()
        prompt = first_prompt(first)
        if prompt is not None:
            return Glimpse(title_of(first, last) or "", prompt)
        info = session_info(stem, LiteFile(first, last, 0, len(first)))
        return Glimpse() if info is None else Glimpse(info.custom_title or "", info.summary)

    def translator(self, saved: Any = None) -> Rows:
        """Return a translator for the start of a file, or for a saved state."""
        return Rows(msgspec.convert(saved, _Saved) if saved is not None else _Saved())

    def ids_of(self, raw: bytes, offset: int) -> Sequence[str]:
        """Return the uuid of a row, or its offset; of several results, all but the last get a number."""
        row = _head(raw)
        if row.sessile is not None and row.sessile.id is not None:
            return tuple(dict.fromkeys(filter(None, (row.sessile.id, row.uuid))))
        return _ids(row, raw) if row.uuid is not None else (_offset_id(offset),)

    def entry(self, raw: bytes, entry_id: str, parent_id: str | None, look: Look) -> Entry:
        """Return a row as one of our entries."""
        row: dict[str, Any] = part_of(decode(raw), entry_id)
        base = {"id": entry_id, "parentId": parent_id, "timestamp": row.get("timestamp")}
        entry = {"type": "custom", **base, **body_of(row, parent_id, look)}
        original = entry_of(row, entry)
        if original is not None and original.get("id") not in (None, entry_id):
            return {"type": "custom", **base, "customType": LEAF_MARKER}
        return original or entry


class _Saved(msgspec.Struct):
    """The state of a translator between rows."""

    leaf: str | None = None
    named: int = 0  # the rank of the title: 0 none, 1 summary, 2 generated, 3 by the user
    ends: dict[str, str] = {}  # where the results of the last responses belong, by message id
    answers: dict[str, str] = {}  # the message id of each row of these responses


class Rows:
    """The translator of one transcript."""

    def __init__(self, saved: _Saved) -> None:
        self._saved = saved

    @property
    def leaf(self) -> str | None:
        """The last row of the main conversation."""
        return self._saved.leaf

    def saved(self) -> Any:
        """Return the state that is needed to continue later."""
        return msgspec.to_builtins(self._saved)

    def take(self, line: Line) -> Sequence[Known]:
        """Return the entries of the next row."""
        row = line.head if isinstance(line.head, _Row) else _head(line.raw)
        if row.uuid is None:
            return (self._unchained(row, line.offset),)
        if row.sessile is not None:
            return self._rendered(row.uuid, row.sessile)
        known = self._chained(row, row.uuid)
        ids = _ids(row, line.raw)
        if len(ids) == 1:
            return (known,)
        parents = (known.head.parentId, *ids)
        head = known.head
        return [
            Known(Head(head.type, entry_id, parent, None, head.message))
            for entry_id, parent in zip(ids, parents, strict=False)
        ]

    def _chained(self, row: _Row, uuid: str) -> Known:
        parent = row.parentUuid
        if row.type == "progress":
            return Known(Head("custom", uuid, parent, LEAF_MARKER), MARKER)
        if row.subtype == "compact_boundary" and self._saved.leaf is not None:
            parent = parent or row.logicalParentUuid
        parent = self._parent_after_results(row, parent)
        if not (row.isSidechain or row.teamName):
            self._saved.leaf = uuid
        if row.isCompactSummary:
            return Known(Head("compaction", uuid, parent))
        if row.type in ("user", "assistant") and not row.isMeta:
            model = None if row.message is None else row.message.model
            message = MessageHead(row.type, None if model == SYNTHETIC else PROVIDER, model)
            return Known(Head("message", uuid, parent, None, message), _MESSAGE_FLAGS[row.type])
        return Known(Head("custom", uuid, parent, f"claude.{row.type}"), CHAIN)

    def _rendered(self, uuid: str, ours: Head) -> Sequence[Known]:
        """Return the entry that a row was rendered from, and a marker if the row has another id."""
        if ours.id is None:
            return (Known(Head("custom", uuid, self._saved.leaf, LEAF_MARKER), MARKER),)
        # Our marker names the entry at which the conversation continues.
        self._saved.leaf = ours.parentId if flags_of(ours) & MARKER else ours.id
        if ours.id == uuid:
            return (Known(ours),)
        return Known(ours), Known(Head("custom", uuid, ours.id, LEAF_MARKER), MARKER)

    def _unchained(self, row: _Row, offset: int) -> Known:
        """Return a row beside the conversation; a title of the highest rank so far names the session."""
        rank = ("summary", "ai-title", "custom-title").index(row.type) + 1 if row.type in TITLES else 0
        names = rank and rank >= self._saved.named
        if names:
            self._saved.named = rank
        kind, custom = ("session_info", None) if names else ("custom", LEAF_MARKER)
        head = Head(kind, _offset_id(offset), self._saved.leaf, custom)
        return Known(head, MARKER | TITLE if names else MARKER)

    def _parent_after_results(self, row: _Row, parent: str | None) -> str | None:
        """Return the parent of a row; that of a result is the last row of the response that it belongs to."""
        saved = self._saved
        answer = saved.answers.get(parent or "")
        if row.type == "assistant" and row.message is not None and row.message.id is not None:
            own = row.message.id
            if answer == own:
                parent = saved.ends[own]
            self._note(row.uuid or "", own)
        elif row.type == "user" and answer is not None:
            parent = saved.ends[answer]
            if parent != row.uuid:
                self._note(row.uuid or "", answer)
        return parent

    def _note(self, uuid: str, answer: str) -> None:
        saved = self._saved
        saved.ends.pop(answer, None)
        saved.ends[answer] = uuid
        saved.answers[uuid] = answer
        if len(saved.ends) > 2 * _OPEN_RESPONSES:  # forget many at once, since it goes through all of them
            saved.ends = dict(islice(saved.ends.items(), _OPEN_RESPONSES, None))
            saved.answers = {row: kept for row, kept in saved.answers.items() if kept in saved.ends}


def _ids(row: _Row, raw: bytes) -> Sequence[str]:
    """Return the ids of the entries of a row with a uuid."""
    uuid = str(row.uuid)
    if row.type != "user" or row.isCompactSummary or row.isMeta or raw.count(_RESULT) < 2:
        return (uuid,)
    count = len(results_of(lenient(raw)))
    return [*(f"{uuid}/{number}" for number in range(1, count)), uuid]


def _head(raw: bytes) -> _Row:
    """Return the head of a row; a row with members of unexpected types is decoded as a whole."""
    try:
        return _decode_row(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        row = lenient(raw)
    message = mapping_of(row, "message")
    return _Row(
        type=text_of(row, "type") or "unknown",
        uuid=text_of(row, "uuid"),
        parentUuid=text_of(row, "parentUuid"),
        logicalParentUuid=text_of(row, "logicalParentUuid"),
        subtype=text_of(row, "subtype"),
        isSidechain=row.get("isSidechain") is True,
        isMeta=row.get("isMeta") is True,
        isCompactSummary=row.get("isCompactSummary") is True,
        teamName=text_of(row, "teamName"),
        message=_Message(text_of(message, "role"), None, text_of(message, "model"), text_of(message, "id")),
        sessile=_entry_head(mapping_of(row, MEMBER)),
    )


def _entry_head(kept: Mapping[str, Any]) -> Head | None:
    kind, message = text_of(kept, "type"), mapping_of(kept, "message")
    if kind is None:
        return None
    head = MessageHead(text_of(message, "role"), text_of(message, "provider"), text_of(message, "model"))
    return Head(
        kind, text_of(kept, "id"), text_of(kept, "parentId"), text_of(kept, "customType"), head if message else None
    )


def _offset_id(offset: int) -> str:
    return f"@{offset:x}"


# -- rows as entries

PROVIDER = "anthropic"
SYNTHETIC = "<synthetic>"  # the model of a text that no model wrote
_STOP_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "toolUse",
    "max_tokens": "length",
    "refusal": "error",
}
TITLES = {"custom-title": "customTitle", "ai-title": "aiTitle", "summary": "summary"}


def lenient(raw: bytes) -> dict[str, Any]:
    """Return a row, or an empty one if the bytes are not an object."""
    try:
        row = decode(raw)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def body_of(row: Mapping[str, Any], parent_id: str | None, look: Look) -> Entry:
    """Return the members of a row's entry, without id, parent and timestamp."""
    kind = text_of(row, "type") or "unknown"
    if kind in TITLES and "uuid" not in row:
        return {"type": "session_info", "name": text_of(row, TITLES[kind]) or ""}
    if row.get("isCompactSummary") is True:
        return _compaction(row, parent_id, look)
    if kind == "user" and row.get("isMeta") is not True:
        return {"type": "message", "message": _user_message(row, look)}
    if kind == "assistant":
        return {"type": "message", "message": _assistant_message(row)}
    if kind == "user":
        content = from_content(mapping_of(row, "message").get("content"))
        return {"type": "custom_message", "customType": "claude.meta", "content": content, "display": False}
    if kind == "attachment":
        return _attachment(row)
    if text_of(row, "subtype") == "local_command" and text_of(row, "content"):
        return {
            "type": "custom_message",
            "customType": "claude.local_command",
            "content": row["content"],
            "display": True,
        }
    return {"customType": f"claude.{kind}", "data": dict(row)}


def _attachment(row: Mapping[str, Any]) -> Entry:
    """Return what an attachment adds to the conversation; as data if its words are not stored."""
    attachment = mapping_of(row, "attachment")
    kind = text_of(attachment, "type") or "unknown"
    if kind == "prompt_snapshot":
        return {"type": "message", "message": _prompt(attachment, parse_timestamp(row.get("timestamp")))}
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in rendered(row)]
    blocks = [block for part in content for block in (part if isinstance(part, list) else [part])]
    if not blocks:
        return {"customType": "claude.attachment", "data": dict(row)}
    sent: Entry = {"type": "custom_message", "customType": f"claude.{kind}", "content": from_blocks(blocks)}
    return sent | {"display": False, "details": dict(attachment)}


def _prompt(snapshot: Mapping[str, Any], at: int | None) -> Entry:
    """Return a snapshot of the system prompt and the tools as a system message, which replaces earlier ones."""
    prompt, tools = snapshot.get("systemPrompt"), snapshot.get("tools")
    texts = [text_of(snapshot, "cliPrefix"), "\n\n".join(map(str, prompt)) if isinstance(prompt, list) else None]
    message: Entry = {"role": "system", "content": [{"type": "text", "text": text} for text in texts if text]}
    message |= {"replaces": True, "timestamp": at}
    return message | ({"toolsAdded": [_tool(tool) for tool in blocks_of(tools)]} if isinstance(tools, list) else {})


def _tool(tool: Mapping[str, Any]) -> Entry:
    given = definition_of(tool)
    known = {name: given[name] for name in ("name", "description") if name in given}
    return known | ({"parameters": given["input_schema"]} if "input_schema" in given else {})


def definition_of(tool: Mapping[str, Any]) -> Entry:
    """Return the definition of a tool in a snapshot, as it is sent."""
    schema = tool.get("schema")
    return dict(schema) if isinstance(schema, OBJECT) else dict(tool)


def rendered(row: Mapping[str, Any]) -> list[Any]:
    """Return the contents that an attachment was sent as, texts or blocks; of older rows, as far as the words are known."""
    told = row.get("rendered")
    if isinstance(told, list):
        contents = [part.get("content") for part in told if isinstance(part, OBJECT)]
        return [content if isinstance(content, str) else list(map(dict, blocks_of(content))) for content in contents]
    attachment = mapping_of(row, "attachment")
    kind = text_of(attachment, "type")
    if kind == "queued_command":
        prompt = attachment.get("prompt")
        parts = [prompt] if isinstance(prompt, str) else [list(map(dict, blocks_of(prompt)))]
        return [part for part in parts if part]
    file = mapping_of(mapping_of(attachment, "content"), "file")
    if kind == "file" and isinstance(file.get("content"), str):
        path = encode_plain({"file_path": file.get("filePath")}).decode("utf-8", "surrogatepass")
        first = file["startLine"] if isinstance(file.get("startLine"), int) else 1
        lines = "\n".join(f"{number}\t{line}" for number, line in enumerate(file["content"].split("\n"), first))
        return [
            _reminder(f"Called the Read tool with the following input: {path}"),
            _reminder(f"Result of calling the Read tool:\n{lines}"),
        ]
    return []


def _reminder(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"


def _compaction(row: Mapping[str, Any], parent_id: str | None, look: Look) -> Entry:
    """Return the compaction of a summary row, with the sizes and preserved rows of the boundary before it."""
    boundary = lenient(look(parent_id) or b"") if parent_id else {}
    metadata = mapping_of(boundary, "compactMetadata")
    kept = mapping_of(metadata, "preservedMessages").get("uuids")
    first = kept[0] if isinstance(kept, list) and kept else mapping_of(metadata, "preservedSegment").get("headUuid")
    entry: Entry = {"type": "compaction", "summary": plain(mapping_of(row, "message").get("content"))}
    entry["firstKeptEntryId"] = first if isinstance(first, str) else row.get("uuid")
    tokens = metadata.get("preTokens")
    entry["tokensBefore"] = tokens if isinstance(tokens, int) else 0
    return entry | ({"tokensAfter": metadata["postTokens"]} if isinstance(metadata.get("postTokens"), int) else {})


def results_of(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tool results in a row."""
    content = mapping_of(row, "message").get("content")
    return [block for block in blocks_of(content) if block.get("type") == "tool_result"]


def part_of(row: dict[str, Any], entry_id: str) -> dict[str, Any]:
    """Return a row of several tool results with only that of the entry; the last one keeps the other blocks."""
    is_message = row.get("type") == "user" and row.get("isMeta") is not True and row.get("isCompactSummary") is not True
    results = results_of(row) if is_message else ()
    if len(results) < 2:
        return row
    _, slash, number = entry_id.rpartition("/")
    own = results[int(number) - 1 if slash and number.isdecimal() else -1]
    content = blocks_of(mapping_of(row, "message").get("content"))
    rest = [] if slash else [block for block in content if block.get("type") != "tool_result"]
    return {**row, "message": {**row["message"], "content": [own, *rest]}}


def _user_message(row: Mapping[str, Any], look: Look) -> Entry:
    content = mapping_of(row, "message").get("content")
    results = results_of(row)
    at = parse_timestamp(row.get("timestamp"))
    if len(results) != 1:
        return {"role": "user", "content": from_content(content), "timestamp": at}
    (result,) = results
    rest = [block for block in blocks_of(content) if block is not result]
    call = text_of(result, "tool_use_id") or ""
    message: Entry = {"role": "toolResult", "toolCallId": call, "toolName": _name_of(call, row, look)}
    inner = from_content(result.get("content"))
    texts = [{"type": "text", "text": inner}] if isinstance(inner, str) else inner
    message |= {"content": texts + from_blocks(rest), "isError": result.get("is_error") is True, "timestamp": at}
    told = mapping_of(row, "toolUseResult")
    found = {"diff": _diff(told.get("structuredPatch")), "fullOutput": _spilled(told, texts)}
    details = {name: value for name, value in found.items() if value}
    return message | ({"details": details} if details else {})


def _spilled(told: Mapping[str, Any], content: Sequence[Mapping[str, Any]]) -> str:
    """Return the file with the whole output of a tool, as a name in the folder of the session; "" if nothing was cut."""
    path = text_of(told, "persistedOutputPath") or ""
    if not path and content:
        given = _SAVED.match(text_of(content[0], "text") or "")
        path = given.group(1) if given else ""
    _, folder, name = path.replace("\\", "/").rpartition(f"{_SPILLS}/")
    return f"{_SPILLS}/{name}" if folder and name and "/" not in name else ""


def _name_of(call: str, row: Mapping[str, Any], look: Look) -> str:
    """Return the name of the tool that a row answers; the row with the call is its parent, or named as its source."""
    for uuid in (text_of(row, "sourceToolAssistantUUID"), text_of(row, "parentUuid")):
        asked = mapping_of(lenient(look(uuid) or b""), "message").get("content") if uuid else None
        for block in blocks_of(asked):
            if block.get("type") == "tool_use" and block.get("id") == call:
                return text_of(block, "name") or ""
    return ""


def _diff(patch: object) -> str:
    hunks = patch if isinstance(patch, list) else []
    lines = (line for hunk in hunks if isinstance(hunk, dict) for line in hunk.get("lines") or ())
    return "\n".join(line for line in lines if isinstance(line, str))


def _assistant_message(row: Mapping[str, Any]) -> Entry:
    message = mapping_of(row, "message")
    content = message.get("content")
    answer: Entry = {
        "role": "assistant",
        "content": [{"type": "text", "text": content}] if isinstance(content, str) else from_blocks(content),
        "api": "anthropic-messages",
        "provider": PROVIDER,
        "model": text_of(message, "model") or "unknown",
    }
    if answer["model"] == SYNTHETIC:
        del answer["provider"]
    if isinstance(message.get("id"), str):
        answer["responseId"] = message["id"]
    answer["usage"] = _usage(mapping_of(message, "usage"))
    answer["stopReason"] = _STOP_REASONS.get(text_of(message, "stop_reason") or "", "stop")
    if row.get("isApiErrorMessage") is True:
        answer |= {"stopReason": "error", "errorMessage": plain(content)}
    answer["timestamp"] = parse_timestamp(row.get("timestamp"))
    return answer


_USAGE = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cacheRead": "cache_read_input_tokens",
    "cacheWrite": "cache_creation_input_tokens",
}


def _usage(usage: Mapping[str, Any]) -> Entry:
    counts = {ours: usage[theirs] for ours, theirs in _USAGE.items() if isinstance(usage.get(theirs), int)}
    hour = mapping_of(usage, "cache_creation").get("ephemeral_1h_input_tokens")  # has its own price
    counts |= {"totalTokens": sum(counts.values())} if counts else {}
    return counts | ({"cacheWrite1h": hour} if isinstance(hour, int) and hour else {})


# -- entries as rows

MEMBER = "sessile"  # the member of a row that holds the entry
BOUNDARY = "boundary"  # the type of a compaction's first row; the summary stands for both
_CLAUDE_STOP_REASONS = {"stop": "end_turn", "toolUse": "tool_use", "length": "max_tokens", "error": "end_turn"}
_VERSION = "2.1.0"  # the version of the row format


def uuid_for(session_id: str, entry_id: str, part: str = "") -> str:
    """Return the uuid of an entry's row; always the same for the same entry."""
    digest = hashlib.sha256(f"{session_id}\0{entry_id}\0{part}".encode("utf-8", "surrogatepass")).hexdigest()
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"


class Rendering:
    """Render the rows of one session; `counts` holds the number of entries without a counterpart, by type.

    `uuid_of` returns the uuid of an entry's row, for entries that are in the file already. `kept_by` returns the uuids
    of the rows that a compaction preserves. Without it the rows are named as a segment, which is wrong if tool results
    in the file are children of parallel calls: the way up from the last row may then miss the first one.
    """

    def __init__(
        self,
        session_id: str,
        cwd: str,
        uuid_of: Callable[[str], str] | None = None,
        kept_by: Callable[[Mapping[str, Any]], Sequence[str]] | None = None,
    ) -> None:
        self.counts: dict[str, int] = {}
        self._session = session_id
        self._cwd = cwd
        self._uuid_of = uuid_of or (lambda entry_id: uuid_for(session_id, entry_id))
        self._kept_by = kept_by

    def rows(self, entry: Mapping[str, Any]) -> Iterator[NewRow]:
        """Yield the rows of one entry: two for a compaction, otherwise one."""
        kind = str(entry.get("type"))
        message = entry.get("message")
        if kind == "message" and isinstance(message, Mapping):
            yield self._message(entry, message)
        elif kind == "compaction":
            yield from self._compaction(entry)
        else:
            self.counts[kind] = self.counts.get(kind, 0) + 1
            yield self._row(entry, "system", subtype="sessile", content="", level="info", isMeta=True, **_whole(entry))

    def _row(self, entry: Mapping[str, Any], kind: str, **members: Any) -> NewRow:
        parent = entry.get("parentId")
        return {
            "parentUuid": self._uuid_of(parent) if isinstance(parent, str) else None,
            "isSidechain": False,
            "userType": "external",
            "cwd": self._cwd,
            "sessionId": self._session,
            "version": _VERSION,
            "type": kind,
            **members,
            "uuid": self._uuid_of(str(entry.get("id"))),
            "timestamp": _time(entry.get("timestamp")),
        }

    def _message(self, entry: Mapping[str, Any], message: Mapping[str, Any]) -> NewRow:
        role = message.get("role")
        if role == "assistant":
            answer = _claude_message(message, self._uuid_of(str(entry.get("id"))))
            return self._row(entry, "assistant", message=answer, **_without_content(entry, message))
        if role == "toolResult":
            block = {
                "type": "tool_result",
                "tool_use_id": message.get("toolCallId"),
                "content": to_blocks(message.get("content")),
            }
            block |= {"is_error": True} if message.get("isError") is True else {}
            return self._row(
                entry, "user", message={"role": "user", "content": [block]}, **_without_content(entry, message)
            )
        if role == "user":
            content = message.get("content")
            blocks = content if isinstance(content, str) else to_blocks(content)
            return self._row(
                entry, "user", message={"role": "user", "content": blocks}, **_without_content(entry, message)
            )
        self.counts[f"message of {role}"] = self.counts.get(f"message of {role}", 0) + 1
        return self._row(entry, "system", subtype="sessile", content="", level="info", isMeta=True, **_whole(entry))

    def _compaction(self, entry: Mapping[str, Any]) -> Iterator[NewRow]:
        boundary = uuid_for(self._session, str(entry.get("id")), "boundary")
        metadata = {"trigger": "auto", "preTokens": entry.get("tokensBefore") or 0, **self._preserved(entry)}
        row = self._row(entry, "system", subtype="compact_boundary", content="Conversation compacted", level="info")
        row |= {"compactMetadata": metadata, "logicalParentUuid": row["parentUuid"], "parentUuid": None}
        yield {**row, "uuid": boundary, MEMBER: {"type": BOUNDARY}}
        summary = {"role": "user", "content": entry.get("summary") or ""}
        yield {
            **self._row(entry, "user", message=summary, isCompactSummary=True, **_without_summary(entry)),
            "parentUuid": boundary,
        }

    def _preserved(self, entry: Mapping[str, Any]) -> NewRow:
        """Return the metadata about the rows that stay in the context."""
        entry_id, parent, first = str(entry.get("id")), entry.get("parentId"), entry.get("firstKeptEntryId")
        if self._kept_by is not None:
            uuids = list(self._kept_by(entry))
            return {"preservedMessages": {"anchorUuid": self._uuid_of(entry_id), "uuids": uuids}} if uuids else {}
        if not (isinstance(first, str) and isinstance(parent, str)) or first == entry_id:
            return {}
        ends = {"headUuid": self._uuid_of(first), "tailUuid": self._uuid_of(parent)}
        return {"preservedSegment": {**ends, "anchorUuid": self._uuid_of(entry_id)}}


def _whole(entry: Mapping[str, Any]) -> NewRow:
    return {MEMBER: dict(entry)}


def _without_content(entry: Mapping[str, Any], message: Mapping[str, Any]) -> NewRow:
    """Return the entry without its content if the row expresses the content exactly."""
    content = message.get("content")
    exact = isinstance(content, str) and message.get("role") == "user"
    if isinstance(content, list):
        exact = from_blocks(to_blocks(content)) == content
    rest = {name: value for name, value in message.items() if name != "content"} if exact else message
    return {MEMBER: {**entry, "message": rest}}


def _without_summary(entry: Mapping[str, Any]) -> NewRow:
    return {MEMBER: {name: value for name, value in entry.items() if name != "summary"}}


def entry_of(row: Mapping[str, Any], translated: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the entry that a row was rendered from, or `None`; `translated` is the entry that the row itself gives."""
    kept = row.get(MEMBER)
    if not isinstance(kept, Mapping) or not isinstance(kept.get("type"), str):
        return None
    entry = dict(kept)
    inner, outer = kept.get("message"), translated.get("message")
    if isinstance(inner, Mapping) and isinstance(outer, Mapping) and "content" not in inner and "content" in outer:
        entry["message"] = {"role": inner.get("role"), "content": outer["content"], **inner}
    if kept["type"] == "compaction" and "summary" in translated:
        entry.setdefault("summary", translated["summary"])
    return entry


def _claude_message(message: Mapping[str, Any], uuid: str) -> NewRow:
    usage = message.get("usage")
    counts = usage if isinstance(usage, Mapping) else {}
    # Rows with the same id are read as one response, even on different branches, so each needs its own.
    answer: NewRow = {"id": message.get("responseId") or f"msg_{uuid}", "type": "message", "role": "assistant"}
    answer |= {"model": message.get("model") or "unknown", "content": to_blocks(message.get("content"))}
    answer["stop_reason"] = _CLAUDE_STOP_REASONS.get(str(message.get("stopReason")), "end_turn")
    answer["usage"] = {theirs: counts[ours] for ours, theirs in _USAGE.items() if isinstance(counts.get(ours), int)}
    return answer


def _time(value: object) -> str:
    return iso_timestamp(parse_timestamp(value) or 0)


# -- blocks

Block = dict[str, Any]


def blocks_of(content: object) -> list[Mapping[str, Any]]:
    """Return the blocks of a content."""
    return [block for block in content if isinstance(block, OBJECT)] if isinstance(content, list) else []


def plain(content: object) -> str:
    """Return the text of a content, without its other blocks."""
    if isinstance(content, str):
        return content
    return "\n".join(text for block in blocks_of(content) if (text := text_of(block, "text")))


def from_content(content: object) -> Any:
    """Return Claude's content in our format."""
    return content if isinstance(content, str) else from_blocks(content)


def from_blocks(content: object) -> list[Block]:
    """Return Claude's blocks in our format; unknown blocks are unchanged."""
    return [_from_block(block) for block in blocks_of(content)]


def to_blocks(content: object) -> list[Block]:
    """Return our content as Claude's blocks; unknown blocks are unchanged."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_to_block(block) for block in blocks_of(content)]


def _from_block(block: Mapping[str, Any]) -> Block:
    kind = block.get("type")
    source = mapping_of(block, "source")
    if kind == "thinking":
        return {"type": "thinking", "thinking": block.get("thinking"), "thinkingSignature": block.get("signature")}
    if kind == "redacted_thinking":
        return {"type": "thinking", "thinking": "", "redacted": True, "thinkingSignature": block.get("data")}
    if kind == "tool_use":
        return {"type": "toolCall", "id": block.get("id"), "name": block.get("name"), "arguments": block.get("input")}
    if kind == "image" and isinstance(source.get("data"), str):
        return {"type": "image", "data": source["data"], "mimeType": text_of(source, "media_type") or "image/png"}
    if kind == "tool_result":
        return {"type": "text", "text": plain(block.get("content"))}
    return dict(block)


def _to_block(block: Mapping[str, Any]) -> Block:
    kind = block.get("type")
    if kind == "thinking" and block.get("redacted"):
        return {"type": "redacted_thinking", "data": block.get("thinkingSignature") or ""}
    if kind == "thinking":
        signature = block.get("thinkingSignature") or ""
        return {"type": "thinking", "thinking": block.get("thinking") or "", "signature": signature}
    if kind == "toolCall":
        return {"type": "tool_use", "id": block.get("id"), "name": block.get("name"), "input": block.get("arguments")}
    if kind == "image" and isinstance(block.get("data"), str):
        source = {"type": "base64", "media_type": block.get("mimeType"), "data": block["data"]}
        return {"type": "image", "source": source}
    return dict(block)
