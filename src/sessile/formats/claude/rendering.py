"""Entries of ours as rows of a Claude Code transcript.

    messages, tool results     user and assistant rows
    compactions                a boundary and a summary, with what was kept as a preserved segment, or row by row
    everything else            system rows that Claude Code passes over; they stay in the chain, so that it holds together

Rules: a row's uuid is made from session and entry id, so the same entry gives the same row whenever it is converted. Each row
carries what has no counterpart there under `sessile`, and `entry_of` makes the same entry of it again. What was converted
from a Claude transcript and not changed is not made anew: whoever writes the file copies its bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sessile.core.text import iso_timestamp, parse_timestamp
from sessile.formats.claude.blocks import from_blocks, to_blocks

Row = dict[str, Any]

MEMBER = "sessile"
BOUNDARY = "boundary"  # the type of the row that a compaction begins with: the summary stands for both
_REASONS = {"stop": "end_turn", "toolUse": "tool_use", "length": "max_tokens", "error": "end_turn"}
_USAGE = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cacheRead": "cache_read_input_tokens",
    "cacheWrite": "cache_creation_input_tokens",
}
_VERSION = "2.1.0"  # of the rows: what they look like, not who wrote them


def uuid_for(session_id: str, entry_id: str, part: str = "") -> str:
    """The uuid of an entry's row; always the same for the same entry."""
    digest = hashlib.sha256(f"{session_id}\0{entry_id}\0{part}".encode("utf-8", "surrogatepass")).hexdigest()
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"


class Rendering:
    """Makes the rows of one session; `counts` says how many entries of a type have no counterpart.

    `uuid_of` gives the uuid of an entry's row, where some of them stand in the file already. `kept_by` gives the uuids of the
    rows that a compaction keeps: a segment is followed along the links of the file, in which the results of parallel calls
    hang from their calls, and the way from its last row may lead past the first, to everything that was summed up.
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

    def rows(self, entry: Mapping[str, Any]) -> Iterator[Row]:
        """The rows of one entry: two of a compaction, one of any other."""
        kind = str(entry.get("type"))
        message = entry.get("message")
        if kind == "message" and isinstance(message, Mapping):
            yield self._message(entry, message)
        elif kind == "compaction":
            yield from self._compaction(entry)
        else:
            self.counts[kind] = self.counts.get(kind, 0) + 1
            yield self._row(entry, "system", subtype="sessile", content="", level="info", isMeta=True, **_kept(entry))

    def _row(self, entry: Mapping[str, Any], kind: str, **members: Any) -> Row:
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

    def _message(self, entry: Mapping[str, Any], message: Mapping[str, Any]) -> Row:
        role = message.get("role")
        if role == "assistant":
            answer = _answer(message, self._uuid_of(str(entry.get("id"))))
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
            said = content if isinstance(content, str) else to_blocks(message.get("content"))
            return self._row(
                entry, "user", message={"role": "user", "content": said}, **_without_content(entry, message)
            )
        self.counts[f"message of {role}"] = self.counts.get(f"message of {role}", 0) + 1
        return self._row(entry, "system", subtype="sessile", content="", level="info", isMeta=True, **_kept(entry))

    def _compaction(self, entry: Mapping[str, Any]) -> Iterator[Row]:
        boundary = uuid_for(self._session, str(entry.get("id")), "boundary")
        metadata = {"trigger": "auto", "preTokens": entry.get("tokensBefore") or 0, **self._kept(entry)}
        begin = self._row(entry, "system", subtype="compact_boundary", content="Conversation compacted", level="info")
        begin |= {"compactMetadata": metadata, "logicalParentUuid": begin["parentUuid"], "parentUuid": None}
        yield {**begin, "uuid": boundary, MEMBER: {"type": BOUNDARY}}
        summary = {"role": "user", "content": entry.get("summary") or ""}
        yield {
            **self._row(entry, "user", message=summary, isCompactSummary=True, **_without_summary(entry)),
            "parentUuid": boundary,
        }

    def _kept(self, entry: Mapping[str, Any]) -> Row:
        """What a boundary says of the rows that stay in the context."""
        entry_id, parent, first = str(entry.get("id")), entry.get("parentId"), entry.get("firstKeptEntryId")
        if self._kept_by is not None:
            uuids = list(self._kept_by(entry))
            return {"preservedMessages": {"anchorUuid": self._uuid_of(entry_id), "uuids": uuids}} if uuids else {}
        if not (isinstance(first, str) and isinstance(parent, str)) or first == entry_id:
            return {}
        ends = {"headUuid": self._uuid_of(first), "tailUuid": self._uuid_of(parent)}
        return {"preservedSegment": {**ends, "anchorUuid": self._uuid_of(entry_id)}}


def _kept(entry: Mapping[str, Any]) -> Row:
    return {MEMBER: dict(entry)}


def _without_content(entry: Mapping[str, Any], message: Mapping[str, Any]) -> Row:
    """The entry without its content, if the row tells it exactly."""
    content = message.get("content")
    exact = isinstance(content, str) and message.get("role") == "user"
    if isinstance(content, list):
        exact = from_blocks(to_blocks(content)) == content
    rest = {name: value for name, value in message.items() if name != "content"} if exact else message
    return {MEMBER: {**entry, "message": rest}}


def _without_summary(entry: Mapping[str, Any]) -> Row:
    return {MEMBER: {name: value for name, value in entry.items() if name != "summary"}}


def entry_of(row: Mapping[str, Any], translated: Mapping[str, Any]) -> dict[str, Any] | None:
    """The entry that a row was made of; `translated` is what the row says by itself. `None` if it was not made by us."""
    kept = row.get(MEMBER)
    if not isinstance(kept, Mapping) or not isinstance(kept.get("type"), str):
        return None
    entry = dict(kept)
    inner, told = kept.get("message"), translated.get("message")
    if isinstance(inner, Mapping) and isinstance(told, Mapping) and "content" not in inner and "content" in told:
        entry["message"] = {"role": inner.get("role"), "content": told["content"], **inner}
    if kept["type"] == "compaction" and "summary" in translated:
        entry.setdefault("summary", translated["summary"])
    return entry


def _answer(message: Mapping[str, Any], uuid: str) -> Row:
    usage = message.get("usage")
    counts = usage if isinstance(usage, Mapping) else {}
    # Rows with one id are read as one answer, on whatever branches they stand: one that has none needs one of its own.
    answer: Row = {"id": message.get("responseId") or f"msg_{uuid}", "type": "message", "role": "assistant"}
    answer |= {"model": message.get("model") or "unknown", "content": to_blocks(message.get("content"))}
    answer["stop_reason"] = _REASONS.get(str(message.get("stopReason")), "end_turn")
    answer["usage"] = {theirs: counts[ours] for ours, theirs in _USAGE.items() if isinstance(counts.get(ours), int)}
    return answer


def _time(value: object) -> str:
    return iso_timestamp(parse_timestamp(value) or 0)
