"""A session of MyAgents as a journal of ours: read in place, and appended to where it lies.

    message of a person or a model      a row
    result of a tool                    a part of the row of its call, if both come in one call of `append_many`
    everything else                     refused: it has no counterpart there

Rules:

- Rows are written by `MyAgentsStore`, which tells the index; a list that is busy or damaged delays nothing, and is a notice.
- Rows form one line: what is appended stands behind whatever the file holds at that moment, and hangs from that. A row
  therefore does not say what it hangs from, only which entries it was made of.
- A row that is written stays as it is, so a result that comes alone is refused: it would need the row of its call.
- MyAgents counts rows. One that has the session open while we append leaves out as many of its own: it has to load the
  session again before it goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

from sessile.agents.base import unsupported
from sessile.agents.myagents.messages import Row
from sessile.agents.myagents.store import MyAgentsStore
from sessile.agents.myagents.translation import NAME, MyAgents, Rendering, next_number
from sessile.agents.myagents.types import Json
from sessile.agents.writer import Choose, Entry, RowsJournal
from sessile.core.codec import decode
from sessile.errors import Unsupported


class MessagesJournal(RowsJournal):
    """The messages of one session, open for reading and appending; `notices` says what did not work beside that."""

    def __init__(self, theirs: MyAgentsStore, session_id: str, *, index_path: str | None = None) -> None:
        self.notices: list[str] = []
        self._theirs = theirs
        super().__init__(theirs.fs, theirs.places.session(session_id), MyAgents(), index_path=index_path)

    def _reset(self) -> None:
        self._theirs.files.forget(self.session_id)

    def flush(self) -> None:
        """Everything that was written is durable already."""

    # -- entries as rows

    def _check(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._check_said(entry)
        self._rendered(entries, 0)

    def _write(self, choose: Choose) -> Sequence[Entry]:
        written: Sequence[Entry] = ()

        def rows(latest: Sequence[Row]) -> Sequence[Json]:
            nonlocal written
            written = choose()
            self._check_place(written)
            number = 0
            for row in latest:
                number = next_number(row.message.id, number)
            return self._rendered(written, number)

        saved = self._theirs.append(self.session_id, rows)
        if saved.owed is not None:
            self.notices.append(f"the message is stored, but MyAgents' list has not counted it yet: {saved.owed}")
        return written

    def _check_place(self, entries: Sequence[Entry]) -> None:
        """Raise unless entries hang from the end of the conversation: there are no branches."""
        last = self.last()
        parent = entries[0].get("parentId") if entries else None
        if entries and last is not None and parent != last.id:
            if isinstance(parent, str):
                self._present(parent)
            raise unsupported(NAME, "branches", self.path)

    def _rendered(self, entries: Sequence[Entry], number: int) -> list[Json]:
        """The rows of entries; `number` is the id of the first one."""
        rendering = Rendering(lambda entry_id: True, number - 1)
        placed = [{name: value for name, value in entry.items() if name != "parentId"} for entry in entries]
        rows: list[Json] = [decode(row) for row in rendering.rows(placed)]
        if rendering.counts:
            raise Unsupported(
                "the result of a tool belongs to the message that called it, which is written already or missing",
                path=self.path,
                hint="append both at once: append_many([the call, its result]); or fork it (sessile fork)",
            )
        return rows
