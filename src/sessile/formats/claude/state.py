"""The state of a session beside its conversation, read back from the rows that carry it.

Rules: rows are applied in file order. A value of which a session has one is the last that was said; queued prompts wait until
they are taken; of each message the newest snapshot of files counts, with the changes that later rows add; of attributions
only the last; replacements of contents add up. What a row does not say is left as it was, and a queue operation that we do
not know changes nothing and is kept.

It does not know the chain, nor rows of other types.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sessile.formats.claude import rows as kinds
from sessile.formats.claude.rows import LAST_WINS, Row, mapping_of, text_of, type_of

STATE_TYPES = frozenset(
    {
        *LAST_WINS,
        kinds.SUMMARY,
        kinds.QUEUE_OPERATION,
        kinds.FILE_HISTORY_SNAPSHOT,
        kinds.FILE_HISTORY_DELTA,
        kinds.ATTRIBUTION_SNAPSHOT,
        kinds.CONTENT_REPLACEMENT,
    }
)


@dataclass(slots=True)
class TranscriptState:
    """What the rows of a transcript have said so far; `apply` adds a row."""

    values: dict[str, Any] = field(default_factory=dict)  # by type: a title, a tag, a mode, …
    summaries: dict[str, str] = field(default_factory=dict)  # by the uuid of the leaf
    queue: list[Row] = field(default_factory=list)  # the operations whose content still waits
    unknown_operations: list[Row] = field(default_factory=list)
    snapshots: dict[str, Row] = field(default_factory=dict)  # by the uuid of the message
    attribution: Row | None = None
    replacements: list[Row] = field(default_factory=list)  # the rows, each with a list of its own

    def apply(self, row: Row) -> None:
        """Take in one row; of a type that carries no state it changes nothing."""
        kind = type_of(row) or ""
        if kind in LAST_WINS:
            self._set(kind, row)
        elif kind == kinds.SUMMARY:
            leaf, summary = text_of(row, "leafUuid"), text_of(row, "summary")
            if leaf is not None and summary is not None:
                self.summaries[leaf] = summary
        elif kind == kinds.QUEUE_OPERATION:
            self._operate(row)
        elif kind == kinds.FILE_HISTORY_SNAPSHOT:
            self._snapshot(row)
        elif kind == kinds.FILE_HISTORY_DELTA:
            self._change(row)
        elif kind == kinds.ATTRIBUTION_SNAPSHOT:
            self.attribution = row
        elif kind == kinds.CONTENT_REPLACEMENT:
            self.replacements.append(row)

    def replacement_of(self, tool_use_id: str) -> Any:
        """What stands in the place of a tool's result, the newest; None if nothing does."""
        for row in reversed(self.replacements):
            listed = row.get("replacements")
            for replacement in reversed(listed if isinstance(listed, list) else []):
                if text_of(replacement, "toolUseId") == tool_use_id:
                    return replacement.get("replacement")
        return None

    def _set(self, kind: str, row: Row) -> None:
        member = LAST_WINS[kind]
        if member is None:
            self.values[kind] = row
        elif member in row:
            self.values[kind] = row[member]

    def _operate(self, row: Row) -> None:
        operation = text_of(row, "operation")
        if operation == "enqueue":
            self.queue.append(row)
        elif operation in ("dequeue", "remove"):
            self._take(row.get("content"))
        elif operation == "popAll":
            self.queue.clear()
        else:
            self.unknown_operations.append(row)

    def _take(self, content: Any) -> None:
        """Take the first with this content out of the queue; if none is named, the first of all."""
        for place, waiting in enumerate(self.queue):
            if content is None or waiting.get("content") == content:
                del self.queue[place]
                return

    def _snapshot(self, row: Row) -> None:
        snapshot = mapping_of(row, "snapshot")
        # An update says something new of the message that its snapshot was made for, from where another one stands.
        said = text_of(snapshot, "messageId") if row.get("isSnapshotUpdate") is True else None
        message = said or text_of(row, "messageId") or text_of(snapshot, "messageId")
        if message is not None:
            self.snapshots[message] = snapshot

    def _change(self, row: Row) -> None:
        message = text_of(row, "snapshotMessageId") or text_of(row, "messageId")
        path = text_of(row, "trackingPath")
        if message is None or path is None:
            return
        before = self.snapshots.get(message, {"messageId": message})
        backups = {**mapping_of(before, "trackedFileBackups"), path: row.get("backup")}
        self.snapshots[message] = {**before, "trackedFileBackups": backups}
