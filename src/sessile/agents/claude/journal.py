"""A transcript of Claude Code as a journal of ours: read in place, and appended to where it lies.

    message of a person, a model, a tool     an ordinary row, below the row of its parent
    compaction                               a boundary and a summary, with the rows that were kept named one by one
    everything else                          refused: it has no counterpart there

Rules: rows are written by `TranscriptFile`, one write a call. An entry and its row have one id, so that what Claude Code hangs
from the row hangs from the entry. What the row cannot tell stands in it under `sessile`; our reader gives back the same entry.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sessile.agents.base import Agent, unsupported
from sessile.agents.claude import ClaudeCode
from sessile.agents.claude.appending import Batch, Known, TranscriptFile
from sessile.agents.claude.paths import is_uuid, session_of
from sessile.agents.claude.rows import AI_TITLE, tag_row, text_of, title_row, value_row
from sessile.agents.claude.transcript import REACH
from sessile.agents.claude.translation import Rendering, uuid_for
from sessile.agents.writer import Choose, Entry, RowsJournal
from sessile.core.codec import decode
from sessile.core.kinds import MARKER
from sessile.errors import Unsupported
from sessile.storage.base import Filesystem


def check_writable(path: str) -> None:
    """Raise if a transcript is not the main one of a session: those of sub-agents belong to their session."""
    if session_of(posixpath.basename(path)) is None:
        raise Unsupported(
            "only a transcript under its own name can be written: <session id>.jsonl",
            path=path,
            hint="fork it (sessile fork), and go on in the copy",
        )


class TranscriptJournal(RowsJournal):
    """The transcript of one session, open for reading and appending."""

    def __init__(
        self,
        fs: Filesystem,
        path: str,
        *,
        index_path: str | None = None,
        power: bool = True,
        patience: float = 10.0,
        agent: Agent | None = None,
    ) -> None:
        check_writable(path)
        self._transcript = TranscriptFile(fs, path, power=power, patience=patience, reach=REACH, ends_only=True)
        super().__init__(fs, path, agent or ClaudeCode(), index_path=index_path)
        self._cwd = str(decode(self.header()).get("cwd") or "")

    def _reset(self) -> None:
        self._transcript.reset()

    def set_title(self, name: str, *, automatic: bool, current: str | None) -> bool:
        """Name the session as Claude Code does."""
        if automatic and current is not None:
            return False
        self.note(value_row(self.session_id, AI_TITLE, name) if automatic else title_row(self.session_id, name))
        return True

    def set_tag(self, tag: str | None) -> str | None:
        """Tag the session as Claude Code does; `None` removes the tag."""
        row = tag_row(self.session_id, tag)
        self.note(row)
        return str(row["tag"]) or None

    def row_id(self, entry_id: str) -> str:
        """Return the uuid of the entry's row, so that what Claude Code appends to it is found."""
        return uuid_for(self.session_id, entry_id)

    def note(self, row: dict[str, Any]) -> None:
        """Write a row beside the conversation, such as a title; a large file is not read for it."""
        with self._mutex:
            self._check_usable()
            if not self._latched(lambda: self._transcript.append(lambda known: Batch([row]), look=False)).rows:
                raise self._gone()

    def flush(self) -> None:
        """Make everything durable that was written."""
        self._latched(self._transcript.flush)

    # -- entries as rows

    def _check(self, entries: Sequence[Entry]) -> None:
        self._rendered(entries)

    def _write(self, choose: Choose) -> Sequence[Entry]:
        def plan(known: Known) -> Batch:
            chosen = choose()
            return Batch(self._rendered(chosen), chosen)

        written: Sequence[Entry] = self._transcript.append(plan).answer
        return written

    def _rendered(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        batch = {str(entry["id"]): entry for entry in entries}
        rendering = Rendering(
            self.session_id,
            self._cwd,
            lambda entry_id: self._uuid(entry_id, batch),
            lambda compaction: self._kept(compaction, batch),
        )
        for entry in entries:
            if entry["type"] != "compaction":
                self._check_said(entry)
        return [row for entry in entries for row in rendering.rows(entry)]

    def _uuid(self, entry_id: str, batch: Collection[str]) -> str:
        """The uuid of an entry's row: of one that is about to be written, its own id."""
        if entry_id in batch:
            return entry_id if is_uuid(entry_id) else uuid_for(self.session_id, entry_id)
        uuid = text_of(decode(self.raw(self._present(entry_id))), "uuid")
        if uuid is None:
            raise unsupported(
                self.agent, f"way to go on from {entry_id}, which is no part of the conversation", self.path
            )
        return uuid

    def _kept(self, compaction: Entry, batch: Mapping[str, Entry]) -> Sequence[str]:
        """The rows before a compaction that stay in the context, oldest first; none if its first is not before it."""
        first = compaction.get("firstKeptEntryId")
        kept: list[str] = []
        for entry_id in self._before(compaction, batch) if isinstance(first, str) else ():
            kept.append(entry_id)
            if entry_id == first:
                # A row may be several entries.
                return list(dict.fromkeys(self._uuid(each, batch) for each in reversed(kept)))
        return ()

    def _before(self, entry: Entry, batch: Mapping[str, Entry]) -> Iterator[str]:
        """The entries on the way from one to the root."""
        parent = entry.get("parentId")
        while isinstance(parent, str) and parent in batch:
            yield parent
            parent = batch[parent].get("parentId")
        if isinstance(parent, str):
            yield from (row.id for row in self.up(self._present(parent)) if not row.flags & MARKER)
