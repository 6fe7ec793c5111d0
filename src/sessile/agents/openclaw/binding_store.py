"""The bindings of one agent (session key → entry), in a file or in a database.

    sessions.json in a folder       `SessionStore`: other programs and editors may change it, so a good copy is kept
    a table in a database           `TableStore`: many gateways change it, and it is always valid

A change is a function of the current entries. It may be called again if another process was faster; its result is
written completely or not at all. What was read or written last is kept in memory, and checking whether it is still
current is cheap.

Rules of `sessions.json`:

- A broken file raises with line and column; it is never loaded as empty, and never overwritten.
- A change is computed under the lock, and again if the file was saved since. Entries that it does not touch keep their
  text.
- Values that this object wrote win over a stale edit: an entry whose `updatedAt` went back gets them again, and keeps
  members that are new. A deleted entry stays deleted.
- Before the file is written, its new content is saved in `keep`, our folder for this store. If the file was
  deleted, the copy is set aside before a new store starts.
- Reading takes no lock and writes nothing. The content in memory is used while the file has the same inode, size and
  time.
- The lock is `<store>.lock` in the owner's format, so both programs can work at the same time.

Rules of the table: what is in memory is updated with the changes since. A change is written only if its revision is
still the newest, otherwise it is computed again. No lock is held in between. `path` is the path of the store file in a
folder; it is used to list agents.

Times (`now`) are arguments, in milliseconds. The meaning of entries is not known here.
"""

from __future__ import annotations

import posixpath
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sessile.agents.openclaw.document import BrokenStore, StoreDocument, parse_members, parse_store, written_value
from sessile.agents.openclaw.entries import SessionEntry
from sessile.agents.openclaw.keys import fold_key, normalize_agent_id, normalize_key
from sessile.agents.openclaw.paths import StateFolder
from sessile.errors import Conflict, NotFound, SessionBusy, storage_failures
from sessile.storage import atomic, locks, shared_file
from sessile.storage.base import Filesystem
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.shared_file import Seen

if TYPE_CHECKING:
    from sessile.storage.postgres.binding_table import BindingTable
    from sessile.store import Store

STALE_AFTER = 30_000  # milliseconds; the limit of the format's owner
SETTLE = 0.05  # seconds that an editor gets to finish saving a file

_GOOD = ".good"
_MARK = b'"holder":"sessile"'
_FILE_TRIES = 20  # the file must have been saved during each of them
_TABLE_TRIES = 200  # another gateway must have succeeded during each of them
_LONGEST_PAUSE = 0.02  # seconds

Entries = Mapping[str, SessionEntry]
Changes = Mapping[str, SessionEntry | None]


class Snapshot(Protocol):
    """All entries at one moment."""

    @property
    def entries(self) -> Entries: ...


class BindingStore(Protocol):
    """The bindings of one agent."""

    @property
    def path(self) -> str:
        """The path, for messages."""
        ...

    @property
    def good(self) -> str:
        """The path of the last good copy, if there is one."""
        ...

    @property
    def last(self) -> Snapshot | None:
        """What was read or written last, even if it is no longer current."""
        ...

    def look(self) -> object:
        """Return a value that differs after every change."""
        ...

    def known(self) -> Snapshot | None:
        """Return what was read or written last if it is still current, else `None`."""
        ...

    def load(self) -> Snapshot:
        """Return the current entries; raise `BrokenStore` if they cannot be read."""
        ...

    def read(self) -> dict[str, SessionEntry]:
        """Return all entries by key."""
        ...

    def document(self) -> StoreDocument:
        """Return all entries as the text of a `sessions.json`."""
        ...

    def update(
        self, key: str, change: Callable[[SessionEntry | None], SessionEntry | None], *, now: int
    ) -> SessionEntry | None:
        """Replace the entry of a key by the result of `change`, unless that is `None`."""
        ...

    def update_all(self, change: Callable[[Entries], Changes], *, now: int, keep: bool = False) -> Changes:
        """Apply the changes that `change` returns for all entries, and return what was written; `None` removes one."""
        ...

    def good_entries(self) -> Entries | None:
        """Return the entries of the last good copy, or `None`."""
        ...


def own_bindings(store: Store, agent: str) -> BindingStore:
    """Return the bindings of an agent in a native store: a file, or a table if the store is in a database."""
    home = StateFolder(store.layout.root)
    path = home.store(agent)
    if store.database is None:
        return SessionStore(path, keep=f"{home.agent(agent)}/kept", fs=store.fs)
    from sessile.storage.postgres.binding_table import BindingTable  # needs psycopg, which is optional

    table = BindingTable(store.database, normalize_agent_id(agent))
    return TableStore(path, table, lambda: atomic.make_folders(store.fs, home.sessions(agent)))


# -- sessions.json


class Restored(NamedTuple):
    """The result of a restoration: the copy that was restored, and where the broken file was saved."""

    copy: str
    broken: str | None


class Loaded(NamedTuple):
    """The file's content, its state when that was read (`None` for no file), and its entries without stale edits."""

    document: StoreDocument
    seen: Seen | None
    entries: Entries


class _Written(NamedTuple):
    """What this object wrote last for a key, and the members that it removed."""

    entry: SessionEntry
    removed: frozenset[str]


class SessionStore:
    """The entries of one `sessions.json`.

    `patience` is the number of seconds to wait for the lock, `settle` the number that an editor gets to finish a file.
    """

    def __init__(
        self,
        path: str,
        *,
        keep: str,
        fs: Filesystem | None = None,
        patience: float = 10.0,
        settle: float = SETTLE,
    ) -> None:
        self.path = path
        self.good = f"{keep}/{posixpath.basename(path)}{_GOOD}"
        self._keep = keep
        self._fs = fs if fs is not None else PosixFilesystem()
        self._patience = patience
        self._settle = settle
        self._written: dict[str, _Written] = {}
        self.last: Loaded | None = None  # what was read or written last, even if the file has changed since

    # -- reading

    def read(self) -> dict[str, SessionEntry]:
        """Return all entries by key, in file order; none if the file is missing."""
        return dict(self.load().entries)

    def document(self) -> StoreDocument:
        """Return the file's document, for diagnostics."""
        return self.load().document

    def get(self, key: str) -> SessionEntry | None:
        """Return the entry of a key, in any spelling."""
        entries = self.read()
        return entries.get(spelling_of(key, entries))

    def look(self) -> Seen | None:
        """Return the state of the file, or `None` if it is missing."""
        return shared_file.look(self._fs, self.path)

    def known(self) -> Loaded | None:
        """Return what was read or written last if the file is unchanged, else `None`."""
        last = self.last
        return last if last is not None and last.seen == self.look() else None

    def load(self) -> Loaded:
        """Return the store's current content; the file is read only if it has changed."""
        loaded = self.known()
        if loaded is None:
            document, seen = self._read()
            stale = {
                key: fresh
                for key in self._written.keys() & document.entries.keys()
                if (fresh := self._fresh(key, document.entries[key])) is not document.entries[key]
            }
            loaded = Loaded(document, seen, {**document.entries, **stale})
            self.last = loaded
        return loaded

    def _read(self) -> tuple[StoreDocument, Seen | None]:
        """Return the document, and the state of the file."""
        kept = atomic.exists(self._fs, self.good)
        found = shared_file.read(self._fs, self.path)
        if found is not None:
            try:
                return parse_store(found[0], self.path), found[1]
            except BrokenStore:
                pass
        elif not kept:
            return StoreDocument.empty(), None
        time.sleep(self._settle)  # an editor may be saving it: half a file, or none for a moment
        found = shared_file.read(self._fs, self.path)
        if found is None:
            return StoreDocument.empty(), None
        try:
            return parse_store(found[0], self.path), found[1]
        except BrokenStore as error:
            if not kept:
                raise
            hint = f"fix it there, or restore the last good copy, {self.good}"
            raise BrokenStore(error.detail, error.place, path=self.path, hint=hint) from error

    def _fresh(self, key: str, entry: SessionEntry) -> SessionEntry:
        ours = self._written.get(key)
        if ours is None or (entry.updated_at or 0) >= (ours.entry.updated_at or 0):
            return entry
        known = ours.removed | set(ours.entry)
        added = {name: value for name, value in entry.members.items() if name not in known}
        return SessionEntry({**ours.entry.members, **added})

    # -- changing

    def update(
        self, key: str, change: Callable[[SessionEntry | None], SessionEntry | None], *, now: int
    ) -> SessionEntry | None:
        """Replace the entry of a key by the result of `change`, and return the entry that is there then.

        `change` receives `None` for a key without an entry, and returns `None` to change nothing. It may be called
        again.
        """
        return update_one(self, key, change, now)

    def compare_and_set(self, key: str, expected: SessionEntry | None, new: SessionEntry | None, *, now: int) -> None:
        """Replace the expected entry (`None` for no entry); raise `Conflict` if the entry is another one."""

        def change(entries: Entries) -> Changes:
            spelling = spelling_of(key, entries)
            if entries.get(spelling) != expected:
                raise Conflict(
                    f"the entry of {key[:120]!r} has changed",
                    path=self.path,
                    hint="read it again, then try again",
                )
            return {spelling: new}

        self.update_all(change, now=now)

    def update_all(self, change: Callable[[Entries], Changes], *, now: int, keep: bool = False) -> Changes:
        """Apply the changes that `change` returns for all entries, and return what was written; `None` removes one.

        With `keep`, a file that needs no change becomes the last good copy: another program may have edited it.
        """
        with self._locked(now):
            for _ in range(_FILE_TRIES):
                loaded = self.load()
                entries, stored = loaded.entries, loaded.document.entries
                wanted = {**entries, **change(entries)}
                changes = {key: new for key, new in wanted.items() if differs(stored.get(key), new)}
                if not changes or self._save(loaded, changes, now):
                    self._remember(entries, changes)
                    if keep and not changes:
                        self.keep_good_copy()
                    return changes
        raise SessionBusy("another program keeps saving the store", path=self.path, hint="stop it, then try again")

    def _save(self, loaded: Loaded, changes: Changes, now: int) -> bool:
        document = loaded.document.changed(changes)
        data = document.text.encode()
        atomic.make_folders(self._fs, self._keep)
        if loaded.seen is None and atomic.exists(self._fs, self.good):
            with storage_failures(self.good, "set the last good copy aside"):
                self._fs.rename(self.good, f"{self.good}.{now}")
        atomic.replace(self._fs, self.good, (data,))
        seen = shared_file.replace(self._fs, self.path, data, loaded.seen)
        if seen is not None:
            # Every stale entry is among the changes, so the file now holds the current entries.
            self.last = Loaded(document, seen, document.entries)
        return seen is not None

    def _remember(self, before: Entries, changes: Changes) -> None:
        for key, new in changes.items():
            if new is None:
                self._written.pop(key, None)
                continue
            earlier = self._written[key].removed if key in self._written else frozenset()
            self._written[key] = _Written(new, (earlier | frozenset(before.get(key, ()))) - set(new))

    @contextmanager
    def _locked(self, now: int) -> Iterator[None]:
        claim = f'{{"pid":{locks.own_pid()},"startedAt":{now},'.encode("ascii") + _MARK + b"}"
        atomic.make_folders(self._fs, posixpath.dirname(self.path))
        with shared_file.lock_file(
            self._fs,
            f"{self.path}.lock",
            claim,
            mark=_MARK,
            now=now,
            stale_after=STALE_AFTER,
            patience=self._patience,
        ):
            yield

    # -- the last good copy

    def good_entries(self) -> Entries | None:
        """Return the entries of the last good copy, or `None`."""
        found = shared_file.read(self._fs, self.good)
        return None if found is None else parse_store(found[0], self.good).entries

    def keep_good_copy(self) -> None:
        """Save the current file as the last good copy, after another program edited it; raise if it is broken."""
        loaded = self.load()
        data = loaded.document.text.encode()
        kept = shared_file.read(self._fs, self.good)
        if loaded.seen is not None and (kept is None or kept[0] != data):
            atomic.make_folders(self._fs, self._keep)
            atomic.replace(self._fs, self.good, (data,))

    def restore(self, *, now: int) -> Restored:
        """Replace a broken or missing file by the last good copy; the broken file is saved beside the copy."""
        with self._locked(now):
            try:
                seen = self.load().seen
            except BrokenStore:
                pass
            else:
                if seen is not None:
                    raise Conflict("the store is not broken, so it was not changed", path=self.path)
            if not atomic.exists(self._fs, self.good):
                raise NotFound("no good copy of the store", path=self.good, hint="fix the file by hand")
            with storage_failures(self.good, "restore the store"):
                good = atomic.read_all(self._fs, self.good)
                parse_store(good, self.good)
                broken = shared_file.read(self._fs, self.path)
                aside = None
                if broken is not None:
                    aside = f"{self._keep}/{posixpath.basename(self.path)}.broken-{now}"
                    atomic.replace(self._fs, aside, (broken[0],))
            if not shared_file.replace(self._fs, self.path, good, None if broken is None else broken[1]):
                raise Conflict("another program has just saved the store, so it was not changed", path=self.path)
            return Restored(self.good, aside)


# -- a table in a database


class Revision(NamedTuple):
    """The entries of one revision, and the texts that they were read from."""

    number: int
    entries: Entries
    bodies: Mapping[str, bytes]


class TableStore:
    """The entries of one agent in a database. `begin` is called before the first one is written."""

    def __init__(self, path: str, table: BindingTable, begin: Callable[[], object]) -> None:
        self.path = path
        self.good = path
        self._table = table
        self._begin = begin
        self.last: Revision | None = None

    # -- reading

    def look(self) -> int:
        """Return the number of the newest revision."""
        return self._table.revision()

    def known(self) -> Revision | None:
        """Return what was read or written last if it is the newest revision, else `None`."""
        last = self.last
        return last if last is not None and last.number == self.look() else None

    def load(self) -> Revision:
        """Return the newest revision, reading only the changes since the known one."""
        last = self.last or Revision(0, {}, {})
        number, changed = self._table.changes_since(last.number)
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
        """Return all entries by key."""
        return dict(self.load().entries)

    def get(self, key: str) -> SessionEntry | None:
        """Return the entry of a key, in any spelling."""
        entries = self.load().entries
        return entries.get(spelling_of(key, entries))

    def document(self) -> StoreDocument:
        """Return all entries as the text of a `sessions.json`."""
        return StoreDocument.of(self.load().bodies, self.path)

    def good_entries(self) -> Entries | None:
        """Return `None`: there is no copy, because a database cannot hold half a store."""
        return None

    # -- changing

    def update(
        self, key: str, change: Callable[[SessionEntry | None], SessionEntry | None], *, now: int
    ) -> SessionEntry | None:
        """Replace the entry of a key by the result of `change`, and return the entry that is there then."""
        return update_one(self, key, change, now)

    def update_all(self, change: Callable[[Entries], Changes], *, now: int, keep: bool = False) -> Changes:
        """Apply the changes that `change` returns for all entries, and return what was written; `None` removes one."""
        for tried in range(_TABLE_TRIES):
            revision = self.load()
            wanted = change(revision.entries)
            changes = {key: new for key, new in wanted.items() if differs(revision.entries.get(key), new)}
            if not changes or self._write(revision, changes):
                return changes
            time.sleep(random.uniform(0, min(0.001 * (tried + 1), _LONGEST_PAUSE)))
        raise SessionBusy("other gateways keep changing the bindings", path=self.path, hint="try again")

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


# -- shared by both


def differs(stored: SessionEntry | None, wanted: SessionEntry | None) -> bool:
    """Return whether an entry has to be written; most are the same object."""
    return stored is not wanted and stored != wanted


def spelling_of(key: str, entries: Entries) -> str:
    """Return the key under which a store has an entry: as given, else the newest that differs only in spelling."""
    if key in entries:
        return key
    folded, normal = fold_key(key), normalize_key(key)
    same = [other for other in entries if fold_key(other) == folded and normalize_key(other) == normal]
    return max(same, key=lambda other: entries[other].updated_at or 0, default=key)


def update_one(
    store: BindingStore, key: str, change: Callable[[SessionEntry | None], SessionEntry | None], now: int
) -> SessionEntry | None:
    """Replace the entry of a key as a change of all entries, and return the entry that is there then."""
    result: SessionEntry | None = None

    def change_one(entries: Entries) -> Changes:
        nonlocal result
        spelling = spelling_of(key, entries)
        new = change(entries.get(spelling))
        result = entries.get(spelling) if new is None else new
        return {} if new is None else {spelling: new}

    store.update_all(change_one, now=now)
    return result
