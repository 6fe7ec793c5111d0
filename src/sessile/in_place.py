"""Sessions of other agents that are written where they are.

    with store.open("…/3f6c….jsonl", in_place=True) as session:
        session.append_message({"role": "user", "content": "go on"})
        session.set_session_name("Webhook retries")

Rules: only the agent's own writer touches the file, and only by appending. What the agent has no counterpart for raises
`Unsupported` and writes nothing. Content stays whole in the file, also where ours would go to a blob. The leaf is where the other
agent would continue; one that was moved without an append is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NoReturn

from sessile.agents.base import Agent, read_only, unsupported
from sessile.agents.writer import RowsJournal
from sessile.core.entries import Payload
from sessile.core.text import clean_name
from sessile.errors import Unsupported
from sessile.session import OnLeafMoved, Receipt, Session

if TYPE_CHECKING:
    from sessile.store import Store


def open_in_place(store: Store, path: str, agent: Agent, *, in_place: bool) -> Session:
    """Open another agent's session for writing, if the caller allows it and the agent has a writer."""
    if store.layout.keeps(path):
        raise Unsupported("this is a kept copy of a session, byte for byte", path=path, hint="fork it")
    if not in_place:
        raise read_only(agent, path)
    return InPlaceSession(store, agent.open_for_writing(store.place, path))


class InPlaceSession(Session):
    """A session of another agent that is written where it is."""

    def __init__(self, store: Store, journal: RowsJournal) -> None:
        super().__init__(store, journal, journal, ours=False)
        self._rows = journal
        self.notices = journal.notices

    def append_many(
        self,
        entries: Iterable[Payload],
        expected_leaf: str | None = None,
        key: str | None = None,
        on_leaf_moved: OnLeafMoved = "branch",
    ) -> list[Receipt]:
        """Append entries; where the agent has no branches, what another process appended is followed."""
        if on_leaf_moved == "branch" and "branch" not in self._rows.agent.capabilities:
            on_leaf_moved = "follow"
        return super().append_many(entries, expected_leaf, key, on_leaf_moved)

    def set_session_name(self, name: str, source: Literal["user", "auto"] = "user") -> bool:
        """Name the session as its agent does; an automatic name never replaces another. Return whether it was set."""
        name = clean_name(name)
        with self._lock:
            self._writing()
            if not name or not self._rows.set_title(name, automatic=source == "auto", current=self.title):
                return False
            if "branch" not in self._rows.agent.capabilities:  # the title is not in the file, but in a list
                self._header = {**self._header, "title": name}
            return True

    def set_tag(self, tag: str | None) -> str | None:
        """Tag the session as its agent does; `None` removes the tag. Return the tag as it is stored."""
        with self._lock:
            return self._rows.set_tag(tag)

    def set_session_file(self, path: str) -> NoReturn:
        """Raise: open the other session instead."""
        raise Unsupported("cannot switch a session of another agent", path=self.path, hint="open the other one")

    def _ids(self, count: int, key: str | None) -> list[str]:
        return [self._rows.row_id(entry_id) for entry_id in super()._ids(count, key)]

    def _move_leaf(self, leaf: str | None, durable: bool) -> None:
        if leaf != self._leaf and "branch" not in self._rows.agent.capabilities:
            raise unsupported(self._rows.agent, "branches", self.path)
        super()._move_leaf(leaf, durable)

    def _stored(self, entry: Payload) -> Payload:
        return entry
