"""The rows of a fork: a copy of a conversation under new uuids, up to a message or whole.

Rules:

- Rows keep their order, abandoned branches and what lies before a compaction included; sidechains, progress, snapshots, tags
  and queue rows are not copied. A row that hung from progress hangs from the message before it.
- Every uuid becomes a new one, also in the hints by which a compaction finds what it kept and where a queued prompt says what
  it was sent as; a link to what is not copied is cut, but an unknown uuid in such a place stays as it is.
- A fork up to a compaction ends before it. One up to the summary does not keep what was kept behind the summary.
- The last row is of now: a fork is as new as its making. Each row says which one it was.
- A new uuid is made of the fork's id and the old one. So a file of any size is forked in two passes that hold its uuids only.

It does not know files: rows are shown to `learn` once, all of them, then given to `copy` one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sessile.core.id_table import IdTable
from sessile.errors import EntryNotFound, Invalid
from sessile.formats.claude.rows import (
    ATTACHMENT,
    CONTENT_REPLACEMENT,
    CUSTOM_TITLE,
    RELOCATED,
    Row,
    is_compact_boundary,
    is_progress,
    is_transcript_message,
    mapping_of,
    parent_of,
    text_of,
    type_of,
    uuid_of,
)

UNTITLED = "Forked session"

# What a row says of the session that it is copied from, and links that only that session needs.
_DROPPED = (
    "teamName",
    "agentName",
    "sessionKind",
    "slug",
    "sourceToolAssistantUUID",
    "summarizedTurnPromptUuids",
    "droppedPromptUuids",
    "turnAttributionKey",
)
_SEGMENT = ("headUuid", "anchorUuid", "tailUuid")
_LISTS = ("uuids", "allUuids")


class Fork:
    """A fork of the session `source` into the session `target`."""

    def __init__(self, source: str, target: str, *, now: str, up_to: str | None = None) -> None:
        self._source = source
        self._target = target
        self._now = now
        self._up_to = up_to
        self._ended = False
        self._uuids = IdTable()
        self._progress: dict[str, str | None] = {}
        self._replacements: list[Any] = []
        self._moved_to: str | None = None
        self._learned = 0  # rows that will be copied
        self._copied = 0

    # -- the first pass

    def learn(self, row: object) -> None:
        """Take note of a row of the source."""
        if type_of(row) == CONTENT_REPLACEMENT and text_of(row, "sessionId") == self._source:
            replacements = row.get("replacements") if isinstance(row, Mapping) else None
            if isinstance(replacements, list):
                self._replacements += [each for each in replacements if isinstance(each, Mapping)]
        if type_of(row) == RELOCATED and text_of(row, "sessionId") == self._source:
            self._moved_to = text_of(row, "relocatedCwd") or self._moved_to
        uuid = uuid_of(row)
        if uuid is None or self._ended or not _belongs(row):
            return
        if uuid == self._up_to:
            self._ended = True
            if is_compact_boundary(row):
                return
        self._uuids.number(uuid)
        if is_progress(row):
            self._progress[uuid] = parent_of(row)
        else:
            self._progress.pop(uuid, None)  # of two rows with one uuid the later counts
            self._learned += 1

    def check(self) -> None:
        """Raise if there is nothing to fork."""
        if self._up_to is not None and not self._ended:
            raise EntryNotFound(f"message {self._up_to} is not in session {self._source}")
        if not self._learned:
            raise Invalid(f"session {self._source} has no messages to fork")

    # -- the second pass

    def copy(self, row: object) -> dict[str, Any] | None:
        """The row of the fork for one of the source, `None` if it is not copied."""
        uuid = uuid_of(row)
        if uuid is None or not isinstance(row, Mapping) or not _belongs(row) or is_progress(row):
            return None
        if self._copied == self._learned:
            return None
        self._copied += 1
        copied = {
            **row,
            "uuid": self._new(uuid),
            "parentUuid": self._parent(row),
            "logicalParentUuid": self._mapped(text_of(row, "logicalParentUuid")),
            "sessionId": self._target,
            "timestamp": self._now if self._copied == self._learned else row.get("timestamp", self._now),
            "isSidechain": False,
            "forkedFrom": {"sessionId": self._source, "messageUuid": uuid},
        }
        if is_compact_boundary(row) and isinstance(row.get("compactMetadata"), Mapping):
            copied["compactMetadata"] = self._metadata(mapping_of(row, "compactMetadata"))
        attachment = row.get("attachment")
        if type_of(row) == ATTACHMENT and isinstance(attachment, Mapping):
            sent_as = self._mapped(text_of(attachment, "source_uuid"))
            copied["attachment"] = {**attachment, "source_uuid": sent_as} if sent_as is not None else attachment
        return {name: value for name, value in copied.items() if name not in _DROPPED}

    def closing(self, title: str | None, derived: str | None) -> list[dict[str, Any]]:
        """The rows behind the conversation: what replaces large contents, where the session has moved to, and the title."""
        title = (title or "").strip() or f"{derived or UNTITLED} (fork)"
        rows: list[dict[str, Any]] = []
        if self._replacements:
            rows.append(
                {"type": CONTENT_REPLACEMENT, "sessionId": self._target, "replacements": self._replacements}
                | self._mark("replacements")
            )
        if self._moved_to is not None:
            rows.append({"type": RELOCATED, "sessionId": self._target, "relocatedCwd": self._moved_to})
        named = {"type": CUSTOM_TITLE, "sessionId": self._target, "customTitle": title}
        return [*rows, named | self._mark("title")]

    # -- links

    def _new(self, uuid: str) -> str:
        return derived_uuid(self._target, uuid)

    def _mark(self, name: str) -> dict[str, str]:
        return {"uuid": self._new(name), "timestamp": self._now}

    def _mapped(self, uuid: str | None) -> str | None:
        return self._new(uuid) if uuid is not None and uuid in self._uuids else None

    def _parent(self, row: Row) -> str | None:
        """The nearest row above that is copied; progress that goes in a circle leads nowhere."""
        parent = parent_of(row)
        passed = set()
        while parent in self._progress and parent not in passed:
            passed.add(parent)
            parent = self._progress[parent]
        return None if parent in passed else self._mapped(parent)

    def _metadata(self, metadata: Row) -> dict[str, Any]:
        """The metadata of a compaction with its hints in new uuids, without those that the fork ends before."""
        changed = {name: value for name, value in metadata.items() if name != "runningTurnSends"}  # of a turn elsewhere
        for name in ("preservedSegment", "preservedMessages"):
            hint = metadata.get(name)
            if not isinstance(hint, Mapping):
                continue
            if self._up_to is not None and hint.get("anchorUuid") == self._up_to:
                del changed[name]
            else:
                changed[name] = {member: self._hinted(member, value) for member, value in hint.items()}
        return changed

    def _hinted(self, member: str, value: Any) -> Any:
        if member in _SEGMENT and isinstance(value, str):
            return self._kept(value)
        if member in _LISTS and isinstance(value, list):
            return [self._kept(uuid) if isinstance(uuid, str) else uuid for uuid in value]
        return value

    def _kept(self, uuid: str) -> str:
        """The new uuid of a row that a compaction kept; of one that is not copied the old one."""
        return uuid if uuid in self._progress else self._mapped(uuid) or uuid


def derived_uuid(*parts: str) -> str:
    """The same UUID for the same parts."""
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
    value = int.from_bytes(digest[:16], "big")
    value = value & ~(0xF << 76) | 0x4 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _belongs(row: object) -> bool:
    """Whether a row is a part of the conversation itself, or progress in it."""
    sidechain = isinstance(row, Mapping) and bool(row.get("isSidechain"))
    return (is_transcript_message(row) or is_progress(row)) and not sidechain
