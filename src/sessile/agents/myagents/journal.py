"""A session of MyAgents as a journal: read in place, and appended to in its own format.

    message of a user or a model     a row
    result of a tool                 a part of the row of its call, if both are in one call of `append_many`
    everything else                  refused: it has no counterpart there

Rules:

- `MyAgentsStore` writes the rows and updates the index. A busy or damaged index delays nothing; it is reported as a
  notice.
- Rows have no branches: new rows are appended after the current last row and become its children. A row therefore does
  not store parents, only the entries that it was rendered from.
- Rows are never changed, so a tool result that is appended alone is refused: it would need the row of its call.
- MyAgents counts rows. If it has the session open while we append, it skips as many of its own rows, and must load the
  session again before it continues.
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
    """The messages of one session, open for reading and appending; problems beside that are in `notices`."""

    def __init__(
        self, theirs: MyAgentsStore, session_id: str, *, index_path: str | None = None, agent: Agent | None = None
    ) -> None:
        self._theirs = theirs
        path = theirs.places.session(session_id)
        super().__init__(theirs.fs, path, agent or MyAgents(), index_path=index_path)

    def set_title(self, name: str, *, automatic: bool, current: str | None) -> bool:
        """Name the session in MyAgents' list."""
        self._check_usable()
        set_name = self._theirs.suggest if automatic else self._theirs.rename
        return set_name(self.session_id, name) is not None

    def _reset(self) -> None:
        self._theirs.files.forget(self.session_id)

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
        if saved.pending is not None:
            self.notices.append(f"the message is stored, but MyAgents' index has not counted it yet: {saved.pending}")
        return written

    def _check_place(self, entries: Sequence[Entry]) -> None:
        """Raise unless entries continue the last one: there are no branches."""
        last = self.last()
        parent = entries[0].get("parentId") if entries else None
        if entries and last is not None and parent != last.id:
            if isinstance(parent, str):
                self._present(parent)
            raise unsupported(self.agent, "branches", self.path)

    def _rendered(self, entries: Sequence[Entry], number: int) -> list[Json]:
        """Return the rows of entries; `number` is the id of the first one."""
        rendering = Rendering(lambda entry_id: True, number - 1)
        placed = [{name: value for name, value in entry.items() if name != "parentId"} for entry in entries]
        rows: list[Json] = [decode(row) for row in rendering.rows(placed)]
        if rendering.counts:
            raise Unsupported(
                "a tool result must be appended together with the message that calls the tool",
                path=self.path,
                hint="use append_many([call, result]), or run `sessile fork` and continue in the copy",
            )
        return rows
