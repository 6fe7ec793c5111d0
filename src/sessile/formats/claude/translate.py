"""Rows of a Claude Code transcript as entries of ours.

    user, assistant              a message; of tool results, one for each; blocks in our shapes
    user that sums up            a compaction; what it kept is told by the boundary before it
    system, attachment, meta     custom entries: nothing of them is lost
    progress, rows without uuid  markers; a title names the session

Rules:

- The results of parallel calls hang from their calls, each on a twig of its own. Here they form one chain behind the last
  call, so that a path holds all of them, as the model saw it.
- A compaction hangs from what it summed up (`logicalParentUuid`): there it is a root, here nothing is cut off.
- Of rows that share a `message.id` only usage of the first counts; all of them name it (`responseId`).

What the agent itself would show at a leaf is in `chain`; this is for trees, searches and exports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from sessile.core.codec import decode
from sessile.core.kinds import CHAIN, LEAF_MARKER, MARKER, TITLE, flags_of
from sessile.core.lines import Head, Line, MessageHead, Scanner
from sessile.formats.base import NOTHING_TOLD, Entry, Glimpse, Known, Look, Told
from sessile.formats.claude.bodies import PROVIDER, TITLES, body_of, lenient, part_of, results_of
from sessile.formats.claude.first_prompt import first_prompt
from sessile.formats.claude.lite import LiteFile, begins_as_sidechain, session_info, title_of
from sessile.formats.claude.members import lines_of
from sessile.formats.claude.rendering import MEMBER, entry_of
from sessile.formats.claude.rows import mapping_of, text_of

NAME = "claude"
_OPEN = 16  # answers, at least, whose results may still come; more calls than that are never open at once
_RESULT = b'"tool_result"'


class _Message(MessageHead):
    id: str | None = None


class _Row(Head):
    """The head of a row, with what only rows of Claude Code have."""

    uuid: str | None = None
    parentUuid: str | None = None
    logicalParentUuid: str | None = None
    subtype: str | None = None
    isSidechain: bool | None = None
    isMeta: bool | None = None
    isCompactSummary: bool | None = None
    teamName: str | None = None
    message: _Message | None = None
    sessile: Head | None = None  # what we have made the row of


_decode_row = msgspec.json.Decoder(_Row).decode
_SPOKEN = {role: flags_of(Head("message", message=MessageHead(role))) for role in ("user", "assistant")}


class Claude:
    """The format of Claude Code."""

    name = NAME
    nested = False

    def scanner(self, offset: int) -> Scanner:
        """Each row is decoded once, as far as the translator needs it."""
        return Scanner(offset, decode=_decode_row)

    def recognises(self, first: bytes) -> bool:
        """Its rows have a session id, and a uuid or one of its types; ours begin with a header."""
        for row in map(lenient, islice(lines_of(first), 20)):
            if row.get("type") == "session":
                return False
            if isinstance(row.get("sessionId"), str) and ("uuid" in row or "type" in row):
                return True
            if row.get("type") == "summary" and isinstance(row.get("leafUuid"), str):
                return True
        return False

    def header(self, stem: str, first: bytes, told: Told = NOTHING_TOLD) -> Entry:
        """Id from the name of the file; folder and time from the first rows that tell them."""
        cwd = at = None
        for row in map(lenient, lines_of(first)):
            cwd = text_of(row, "cwd") if cwd is None else cwd
            at = text_of(row, "timestamp") if at is None else at
            if cwd is not None and at is not None:
                break
        header = {"type": "session", "version": 3, "id": stem, "timestamp": at, "cwd": cwd or "", "format": NAME}
        return {name: value for name, value in header.items() if value is not None}

    def glimpse(self, stem: str, first: bytes, last: bytes) -> Glimpse | None:
        """Title and first prompt as Claude Code itself tells them."""
        if begins_as_sidechain(first):
            return Glimpse()
        prompt = first_prompt(first)
        if prompt is not None:
            return Glimpse(title_of(first, last) or "", prompt)
        info = session_info(stem, LiteFile(first, last, 0, len(first)))
        return Glimpse() if info is None else Glimpse(info.custom_title or "", info.summary)

    def translator(self, saved: Any = None) -> Rows:
        """From the beginning of a file, or from where one was saved."""
        return Rows(msgspec.convert(saved, _Saved) if saved is not None else _Saved())

    def ids_of(self, raw: bytes, offset: int) -> Sequence[str]:
        """The uuid of a row, its place if it has none; of several results, all but the last have a number behind it."""
        row = _head(raw)
        if row.sessile is not None and row.sessile.id is not None:
            return tuple(dict.fromkeys(filter(None, (row.sessile.id, row.uuid))))
        return _ids(row, raw) if row.uuid is not None else (_placed(offset),)

    def entry(self, raw: bytes, entry_id: str, parent_id: str | None, look: Look) -> Entry:
        """A row as one of our entries."""
        row: dict[str, Any] = part_of(decode(raw), entry_id)
        base = {"id": entry_id, "parentId": parent_id, "timestamp": row.get("timestamp")}
        entry = {"type": "custom", **base, **body_of(row, parent_id, look)}
        made_of = entry_of(row, entry)
        if made_of is not None and made_of.get("id") not in (None, entry_id):
            return {"type": "custom", **base, "customType": LEAF_MARKER}
        return made_of or entry


class _Saved(msgspec.Struct):
    """What a translator keeps between rows."""

    leaf: str | None = None
    named: int = 0  # 0 nobody, 1 by a summary, 2 by a model, 3 by a person
    ends: dict[str, str] = {}  # of the last answers: where their results hang, by message id
    answers: dict[str, str] = {}  # the message id of each row of these answers


class Rows:
    """Goes through the rows of one transcript."""

    def __init__(self, saved: _Saved) -> None:
        self._saved = saved

    @property
    def leaf(self) -> str | None:
        """The last row of the main conversation."""
        return self._saved.leaf

    def saved(self) -> Any:
        """What is needed to go on later."""
        return msgspec.to_builtins(self._saved)

    def take(self, line: Line) -> Sequence[Known]:
        """What the next row is."""
        row = line.head if isinstance(line.head, _Row) else _head(line.raw)
        if row.uuid is None:
            return (self._unchained(row, line.offset),)
        if row.sessile is not None:
            return self._returned(row.uuid, row.sessile)
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
        if row.subtype == "compact_boundary":
            parent = parent or row.logicalParentUuid
        parent = self._behind_results(row, parent)
        if not (row.isSidechain or row.teamName):
            self._saved.leaf = uuid
        if row.isCompactSummary:
            return Known(Head("compaction", uuid, parent))
        if row.type in ("user", "assistant") and not row.isMeta:
            model = None if row.message is None else row.message.model
            said = MessageHead(row.type, PROVIDER, model)
            return Known(Head("message", uuid, parent, None, said), _SPOKEN[row.type])
        return Known(Head("custom", uuid, parent, f"claude.{row.type}"), CHAIN)

    def _returned(self, uuid: str, ours: Head) -> Sequence[Known]:
        """A row that was made of an entry of ours is that entry; what Claude Code hangs from the row hangs from a marker."""
        if ours.id is None:
            return (Known(Head("custom", uuid, self._saved.leaf, LEAF_MARKER), MARKER),)
        # A marker of ours says where the conversation goes on.
        self._saved.leaf = ours.parentId if flags_of(ours) & MARKER else ours.id
        if ours.id == uuid:
            return (Known(ours),)
        return Known(ours), Known(Head("custom", uuid, ours.id, LEAF_MARKER), MARKER)

    def _unchained(self, row: _Row, offset: int) -> Known:
        """A row beside the conversation; the title that counts most is the session's."""
        rank = ("summary", "ai-title", "custom-title").index(row.type) + 1 if row.type in TITLES else 0
        names = rank and rank >= self._saved.named
        if names:
            self._saved.named = rank
        kind, custom = ("session_info", None) if names else ("custom", LEAF_MARKER)
        head = Head(kind, _placed(offset), self._saved.leaf, custom)
        return Known(head, MARKER | TITLE if names else MARKER)

    def _behind_results(self, row: _Row, parent: str | None) -> str | None:
        """The parent of a row: of a result, the last row of the answer that it belongs to."""
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
        if len(saved.ends) > 2 * _OPEN:  # many are forgotten at once, because all that is kept is gone through for that
            saved.ends = dict(islice(saved.ends.items(), _OPEN, None))
            saved.answers = {row: kept for row, kept in saved.answers.items() if kept in saved.ends}


def _ids(row: _Row, raw: bytes) -> Sequence[str]:
    """The ids of the entries that a row with a uuid is."""
    uuid = str(row.uuid)
    if row.type != "user" or row.isCompactSummary or row.isMeta or raw.count(_RESULT) < 2:
        return (uuid,)
    count = len(results_of(lenient(raw)))
    return [*(f"{uuid}/{number}" for number in range(1, count)), uuid]


# -- heads


def _head(raw: bytes) -> _Row:
    """What is looked at of a row; one whose members have other types than usual is decoded as a whole."""
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
        sessile=_ours(mapping_of(row, MEMBER)),
    )


def _ours(kept: Mapping[str, Any]) -> Head | None:
    kind, message = text_of(kept, "type"), mapping_of(kept, "message")
    if kind is None:
        return None
    said = MessageHead(text_of(message, "role"), text_of(message, "provider"), text_of(message, "model"))
    return Head(
        kind, text_of(kept, "id"), text_of(kept, "parentId"), text_of(kept, "customType"), said if message else None
    )


def _placed(offset: int) -> str:
    return f"@{offset:x}"
