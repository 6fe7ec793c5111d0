"""The bindings of one agent in a database, for many gateways at once.

Rules: what is known is brought up to date by what changed since. A change is decided on entries of one revision and written only
if that is still the newest one; else it is decided again. Nobody holds a lock meanwhile, so a process that stands still hinders
nobody. There is no editor who saves half a file, and so no copy that would have to be kept.

`path` is the name that the store file of the agent has in a folder; others look there for the agents that there are.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sessile.errors import SessionBusy
from sessile.formats.yoyoclaw.document import StoreDocument, parse_members, written_value
from sessile.formats.yoyoclaw.entries import SessionEntry
from sessile.storage.postgres.bindings import BindingTable
from sessile.stores.yoyoclaw.binding_store import Changes, Entries, differs, spelling_of, update_one

_TRIES = 200  # each one means that somebody else got something done
_LONGEST_PAUSE = 0.02  # seconds


class Revision(NamedTuple):
    """The entries of one revision, and the texts that they were read from."""

    number: int
    entries: Entries
    bodies: Mapping[str, bytes]


class TableStore:
    """The entries of one agent. `begin` is called before the first one is written."""

    def __init__(self, path: str, table: BindingTable, begin: Callable[[], None]) -> None:
        self.path = path
        self.good = path
        self._table = table
        self._begin = begin
        self.last: Revision | None = None

    # -- reading

    def look(self) -> int:
        """The newest revision."""
        return self._table.revision()

    def known(self) -> Revision | None:
        """What was read or written last, if nobody has changed anything since."""
        last = self.last
        return last if last is not None and last.number == self.look() else None

    def load(self) -> Revision:
        """The newest revision; of what is known, only what changed since is read."""
        last = self.last or Revision(0, {}, {})
        number, changed = self._table.behind(last.number)
        if not changed:
            self.last = last
            return last
        fresh = {key: body for key, body in changed.items() if body is not None}
        read = parse_members(fresh, self.path)
        bodies = {key: body for key, body in last.bodies.items() if key not in changed} | fresh
        entries = {key: entry for key, entry in last.entries.items() if key not in changed} | read
        self.last = Revision(number, entries, bodies)
        return self.last

    def read(self) -> dict[str, SessionEntry]:
        """All entries by key."""
        return dict(self.load().entries)

    def get(self, key: str) -> SessionEntry | None:
        """The entry of a key, under any spelling."""
        entries = self.load().entries
        return entries.get(spelling_of(key, entries))

    def document(self) -> StoreDocument:
        """All entries as the text of a `sessions.json`."""
        return StoreDocument.of(self.load().bodies, self.path)

    def good_entries(self) -> Entries | None:
        """There is no copy: what is in the database is whole."""
        return None

    # -- changing

    def update(
        self, key: str, change: Callable[[SessionEntry | None], SessionEntry | None], *, now: int
    ) -> SessionEntry | None:
        """Put what `change` makes of the entry of a key in its place; gives the entry that is there then."""
        return update_one(self, key, change, now)

    def update_all(self, change: Callable[[Entries], Changes], *, now: int, keep: bool = False) -> Changes:
        """Apply the changes that `change` finds in all entries, at once; `None` removes one. Gives what was written."""
        for tried in range(_TRIES):
            revision = self.load()
            wanted = change(revision.entries)
            changes = {key: new for key, new in wanted.items() if differs(revision.entries.get(key), new)}
            if not changes or self._write(revision, changes):
                return changes
            time.sleep(random.uniform(0, min(0.001 * (tried + 1), _LONGEST_PAUSE)))
        raise SessionBusy("other gateways change the bindings without pause", path=self.path, hint="try again")

    def _write(self, revision: Revision, changes: Changes) -> bool:
        if not revision.number:
            self._begin()
        new = {key: None if entry is None else written_value(key, entry) for key, entry in changes.items()}
        number = self._table.change(revision.number, new)
        if number is None:
            return False
        texts = {key: body for key, body in new.items() if body is not None}
        bodies = {key: body for key, body in revision.bodies.items() if key not in new} | texts
        entries = {key: entry for key, entry in revision.entries.items() if key not in new}
        self.last = Revision(number, entries | parse_members(texts, self.path), bodies)
        return True
