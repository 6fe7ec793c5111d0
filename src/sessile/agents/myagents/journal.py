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

from sessile.agents.base import Agent, Place, unsupported
from sessile.agents.myagents import MyAgents
from sessile.agents.myagents.listed import myagents_at
from sessile.agents.myagents.messages import Row
from sessile.agents.myagents.places import session_at
from sessile.agents.myagents.store import MyAgentsStore
from sessile.agents.myagents.translation import Rendering, next_number
from sessile.agents.myagents.types import Json
from sessile.agents.writer import Choose, Entry, RowsJournal
from sessile.core.codec import decode
from sessile.errors import Unsupported


def open_messages(place: Place, path: str, agent: Agent) -> MessagesJournal:
    """Open a session in MyAgents' own folder for appending."""
    home, session_id = session_at(path) or ("/", "")
    theirs = myagents_at(place, home)
    kept = theirs.files.make_writable(session_id) if session_id else []
    if not session_id or path not in (theirs.places.session(session_id), theirs.places.legacy(session_id)):
        raise Unsupported(
            "only a session in MyAgents' own folder can be written: sessions/<session id>.jsonl",
            path=path,
            hint="fork it (sessile fork) and continue in the copy",
        )
    index_path = place.index_path(theirs.places.session(session_id))
    journal = MessagesJournal(theirs, session_id, index_path=index_path, agent=agent)
    journal.notices += [f"the session was stored before JSONL; the original is in {original}" for original in kept]
    return journal


class MessagesJournal(RowsJournal):
    """The messages of one session, open for reading and appending; `notices` says what did not work beside that."""

    def __init__(
        self, theirs: MyAgentsStore, session_id: str, *, index_path: str | None = None, agent: Agent | None = None
    ) -> None:
        self._theirs = theirs
        path = theirs.places.session(session_id)
        super().__init__(theirs.fs, path, agent or MyAgents(), index_path=index_path)

    def set_title(self, name: str, *, automatic: bool, current: str | None) -> bool:
        """Name the session in MyAgents' list."""
        set_name = self._theirs.suggest if automatic else self._theirs.rename
        return set_name(self.session_id, name) is not None

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
            raise unsupported(self.agent, "branches", self.path)

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
