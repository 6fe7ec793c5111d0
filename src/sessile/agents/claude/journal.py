"""A Claude Code transcript as a journal: read in place, and appended to in its own format.

    message of a user, model or tool     an ordinary row, the child of its parent's row
    compaction                           a boundary and a summary, with the preserved rows named one by one
    everything else                      refused: it has no counterpart there

`TranscriptFile` writes the rows, one write per call. An entry and its row have the same id, so the rows that Claude
Code adds below become children of the entry. Members of the entry that the row cannot express are stored in it under
`sessile`, and our reader returns the same entry.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sessile.agents.base import Agent, unsupported
from sessile.agents.claude import ClaudeCode
from sessile.agents.claude.paths import is_uuid, session_of
from sessile.agents.claude.rows import AI_TITLE, tag_row, text_of, title_row, value_row
from sessile.agents.claude.transcript import REACH
from sessile.agents.claude.transcript_file import Batch, Known, TranscriptFile
from sessile.agents.claude.translation import Rendering, uuid_for
from sessile.agents.writer import Choose, Entry, RowsJournal
from sessile.core.codec import decode
from sessile.core.kinds import MARKER
from sessile.errors import Unsupported
from sessile.storage.base import Filesystem


def check_writable(path: str) -> None:
    """Raise if the path is not the main transcript of a session; those of sub-agents belong to their session."""
    if session_of(posixpath.basename(path)) is None:
        raise Unsupported(
            "only the main transcript of a session can be written: <session id>.jsonl",
            path=path,
            hint="run `sessile fork`, and continue in the copy",
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
        """Append a row beside the conversation, such as a title, without reading a large file."""
        with self._mutex:
            self._check_usable()
            if not self._latched(lambda: self._transcript.append(lambda known: Batch([row]), catch_up=False)).rows:
                raise self._gone()

    def _sync(self) -> None:
        self._transcript.flush()

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
            lambda compaction: self._preserved(compaction, batch),
        )
        for entry in entries:
            if entry["type"] != "compaction":
                self._check_said(entry)
        return [row for entry in entries for row in rendering.rows(entry)]

    def _uuid(self, entry_id: str, batch: Collection[str]) -> str:
        """Return the uuid of an entry's row; an entry that is about to be written uses its own id."""
        if entry_id in batch:
            return entry_id if is_uuid(entry_id) else uuid_for(self.session_id, entry_id)
        uuid = text_of(decode(self.raw(self._present(entry_id))), "uuid")
        if uuid is None:
            raise unsupported(
                self.agent, f"way to continue from {entry_id}, which is not part of the conversation", self.path
            )
        return uuid

    def _preserved(self, compaction: Entry, batch: Mapping[str, Entry]) -> Sequence[str]:
        """Return the rows before a compaction that stay in the context, oldest first; none if the first is not found."""
        first = compaction.get("firstKeptEntryId")
        kept: list[str] = []
        for entry_id in self._ancestors(compaction, batch) if isinstance(first, str) else ():
            kept.append(entry_id)
            if entry_id == first:
                # A row may be several entries.
                return list(dict.fromkeys(self._uuid(each, batch) for each in reversed(kept)))
        return ()

    def _ancestors(self, entry: Entry, batch: Mapping[str, Entry]) -> Iterator[str]:
        """Yield the ancestors of an entry."""
        parent = entry.get("parentId")
        while isinstance(parent, str) and parent in batch:
            yield parent
            parent = batch[parent].get("parentId")
        if isinstance(parent, str):
            yield from (row.id for row in self.up(self._present(parent)) if not row.flags & MARKER)
