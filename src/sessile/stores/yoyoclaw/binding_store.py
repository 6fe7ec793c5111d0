"""What a place for the bindings of one agent must offer: entries by key, changed one decision at a time.

    sessions.json of a folder       `SessionStore`: others may edit it, so it may be broken, and a good copy is kept
    a table of a database           `TableStore`: many processes change it, and it is always whole

Rules: a change is a function of what is there now. It may be asked again, because somebody else was faster; what it gives is
written all at once or not at all. What was read or written last is kept in memory, and looking whether it still holds is cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from sessile.formats.yoyoclaw.document import StoreDocument
from sessile.formats.yoyoclaw.entries import SessionEntry
from sessile.formats.yoyoclaw.normal import fold_key, normalize_key

Entries = Mapping[str, SessionEntry]
Changes = Mapping[str, SessionEntry | None]


class Snapshot(Protocol):
    """All entries of one moment."""

    @property
    def entries(self) -> Entries: ...


class BindingStore(Protocol):
    """The bindings of one agent."""

    @property
    def path(self) -> str:
        """Where they are, for messages."""
        ...

    @property
    def good(self) -> str:
        """Where the last good copy is, if there is one."""
        ...

    @property
    def last(self) -> Snapshot | None:
        """What was read or written last, whatever is there by now."""
        ...

    def look(self) -> object:
        """Something that is another after every change."""
        ...

    def known(self) -> Snapshot | None:
        """What was read or written last, if it still holds; `None` if it has to be read."""
        ...

    def load(self) -> Snapshot:
        """What is there now; raises `BrokenStore` if that cannot be read."""
        ...

    def read(self) -> dict[str, SessionEntry]:
        """All entries by key."""
        ...

    def document(self) -> StoreDocument:
        """All of it as the text of a `sessions.json`."""
        ...

    def update(
        self, key: str, change: Callable[[SessionEntry | None], SessionEntry | None], *, now: int
    ) -> SessionEntry | None:
        """Put what `change` makes of the entry of a key in its place; `None` leaves everything as it is."""
        ...

    def update_all(self, change: Callable[[Entries], Changes], *, now: int, keep: bool = False) -> Changes:
        """Apply the changes that `change` finds in all entries, at once; `None` removes one. Gives what was written."""
        ...

    def good_entries(self) -> Entries | None:
        """The entries of the last good copy; `None` if there is none."""
        ...


def differs(stored: SessionEntry | None, wanted: SessionEntry | None) -> bool:
    """Whether an entry has to be written; most are the very same object."""
    return stored is not wanted and stored != wanted


def spelling_of(key: str, entries: Entries) -> str:
    """The name under which a store has a key: as it is, else the newest that differs only in spelling."""
    if key in entries:
        return key
    folded, normal = fold_key(key), normalize_key(key)
    same = [other for other in entries if fold_key(other) == folded and normalize_key(other) == normal]
    return max(same, key=lambda other: entries[other].updated_at or 0, default=key)


def update_one(
    store: BindingStore, key: str, change: Callable[[SessionEntry | None], SessionEntry | None], now: int
) -> SessionEntry | None:
    """Put what `change` makes of the entry of a key in its place, as a change of all entries; gives what is there then."""
    result: SessionEntry | None = None

    def change_one(entries: Entries) -> Changes:
        nonlocal result
        spelling = spelling_of(key, entries)
        new = change(entries.get(spelling))
        result = entries.get(spelling) if new is None else new
        return {} if new is None else {spelling: new}

    store.update_all(change_one, now=now)
    return result
