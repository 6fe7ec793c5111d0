"""What a place for the bindings of one agent must offer: entries by key, changed one decision at a time.

    sessions.json of a folder       `SessionStore`: others may edit it, so it may be broken, and a good copy is kept
    a table of a database           `TableStore`: many processes change it, and it is always whole

Rules: a change is a function of what is there now. It may be asked again, because somebody else was faster; what it gives is
written all at once or not at all. What was read or written last is kept in memory, and looking whether it still holds is cheap.

`sessions.json` of one agent: read strictly, changed under a lock, safe while somebody edits it by hand.

Rules:
- A broken file stops everything with its line and column; it never loads as empty, and nothing is written over it.
- A change is a function of what the file holds now. It is asked under the lock, and asked again if somebody saved the file
  meanwhile; entries that it does not touch keep their text.
- Values that this object wrote win over a stale edit: an entry that went back in time (`updatedAt`) gets them again, and
  keeps the members that are new to it. An entry that is gone was deleted by somebody and stays gone.
- Before the file is written, what it will hold is kept in `keep`, a folder of ours for this store alone. So there is a last
  good copy whenever the file is broken. If the file was deleted, the copy is set aside before a new store begins.
- Reading takes no lock and writes nothing. What was read or written last is kept in memory, and taken as long as the file is
  the same by inode, size and time.

The lock is `<store>.lock` as its owner makes it, so both can be at work. There is no clock here: `now`, in milliseconds, is
an argument. What entries mean is not known here.

The bindings of one agent in a database, for many gateways at once.

Rules: what is known is brought up to date by what changed since. A change is decided on entries of one revision and written only
if that is still the newest one; else it is decided again. Nobody holds a lock meanwhile, so a process that stands still hinders
nobody. There is no editor who saves half a file, and so no copy that would have to be kept.

`path` is the name that the store file of the agent has in a folder; others look there for the agents that there are.

A lock that other programs understand: a file that is there while somebody holds it, in their format.

The others create it exclusively and remove it when they are done; one that was left behind by a crash is broken when it is
older than they agree upon. We moreover hold `flock` on ours from before it is seen until it is gone, so that what a dead
process of ours left is told from what a living one holds, and taken over at once. `mark` are bytes that only our claims hold.

It does not know what the lock is for. Ages are counted from `now`, which the caller gives.
"""

from __future__ import annotations

import os
import posixpath
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from sessile.agents.openclaw.document import BrokenStore, StoreDocument, parse_members, parse_store, written_value
from sessile.agents.openclaw.entries import SessionEntry
from sessile.agents.openclaw.keys import fold_key, normalize_key
from sessile.errors import Conflict, NotFound, SessionBusy, storage_failures
from sessile.storage import atomic, locks, log, shared_file
from sessile.storage.base import Filesystem, Stat
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.postgres.binding_table import BindingTable
from sessile.storage.shared_file import Seen

# --- binding store

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


# --- claim file

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
_PAUSE = 0.005  # seconds
_FEW = 4096  # bytes; a claim is one small object


@contextmanager
def claimed(
    fs: Filesystem, path: str, content: bytes, *, mark: bytes, now: int, stale_after: int, patience: float
) -> Iterator[None]:
    """Hold the lock file; `now` and `stale_after` are in milliseconds, `patience` in seconds."""
    temp = atomic.temp_beside(path)
    with storage_failures(path, "lock the store"):
        fd = fs.open(temp, _NEW)
    try:
        with storage_failures(path, "lock the store"):
            try:
                fs.lock(fd)  # nobody knows the file yet
                atomic.write_all(fs, fd, content)
                _publish(fs, temp, path, mark, now, stale_after, patience)
            finally:
                atomic.remove(fs, temp)
        yield
    finally:
        _release(fs, path, fd)


def _release(fs: Filesystem, path: str, fd: int) -> None:
    """Take our claim away. One that cannot be removed is nobody's as soon as the file is closed."""
    try:
        try:
            if _is(fs, path, fs.fstat(fd)):
                fs.unlink(path)
        finally:
            fs.close(fd)
    except OSError as error:
        log.warning("the lock %s stays behind: %s", path, error)


def _publish(fs: Filesystem, temp: str, path: str, mark: bytes, now: int, stale_after: int, patience: float) -> None:
    """Give the claim its name, as soon as nobody else's has it."""
    begun = time.monotonic()
    while True:
        try:
            fs.link(temp, path)
            return
        except FileExistsError:
            waited = time.monotonic() - begun
            if _cleared(fs, path, mark, now + int(waited * 1000) - stale_after):
                continue
            if waited >= patience:
                raise SessionBusy(
                    f"another program has held the lock of the store for {waited:.0f} s",
                    path=path,
                    hint="try again; if no gateway runs any more, delete the lock file",
                ) from None
            time.sleep(_PAUSE)


def _cleared(fs: Filesystem, path: str, mark: bytes, stale_before: int) -> bool:
    """Take away a claim that nobody holds any more; says whether it is worth trying again at once."""
    try:
        fd = fs.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        status = fs.fstat(fd)
        ours = mark in fs.read(fd, _FEW, 0)
        # Of several who find it abandoned, one gets its lock; the others find another file of that name, or none.
        if not (ours or status.st_mtime_ns // 1_000_000 < stale_before) or not fs.lock(fd):
            return False
        if not _is(fs, path, status):
            return True
        fs.unlink(path)
        return True
    finally:
        fs.close(fd)


def _is(fs: Filesystem, path: str, status: Stat) -> bool:
    """Whether a name still means that file."""
    try:
        named = fs.lstat(path)
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (status.st_dev, status.st_ino)


# --- session store

STALE_AFTER = 30_000  # milliseconds; what the owner of the format agrees upon
GOOD = ".good"

_MARK = b'"holder":"sessile"'
_TRIES = 20  # a program that saves the file during each of them is no person
SETTLE = 0.05  # seconds in which an editor has written all of a file


class Restored(NamedTuple):
    """What a restoration did: the copy that is the store again, and where the broken file is."""

    copy: str
    broken: str | None


class Loaded(NamedTuple):
    """What the file holds, what it was when that was read (`None` for no file), and its entries without stale edits."""

    document: StoreDocument
    seen: Seen | None
    entries: Entries


class _Written(NamedTuple):
    """What this object wrote last for a key, and the members that it took away by that."""

    entry: SessionEntry
    removed: frozenset[str]


class SessionStore:
    """The entries of one store file.

    `patience` is how many seconds a change waits for the lock, `settle` how many an editor gets to finish a file.
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
        self.good = f"{keep}/{posixpath.basename(path)}{GOOD}"
        self._keep = keep
        self._fs = fs if fs is not None else PosixFilesystem()
        self._patience = patience
        self._settle = settle
        self._written: dict[str, _Written] = {}
        self.last: Loaded | None = None  # what was read or written last, whatever the file is by now

    # -- reading

    def read(self) -> dict[str, SessionEntry]:
        """All entries by key, in the order of the file; of a missing file, none."""
        return dict(self.load().entries)

    def document(self) -> StoreDocument:
        """The file as it is, for those who look for what is odd in it."""
        return self.load().document

    def get(self, key: str) -> SessionEntry | None:
        """The entry of a key, under any spelling."""
        entries = self.read()
        return entries.get(spelling_of(key, entries))

    def look(self) -> Seen | None:
        """What the file is now; `None` if there is none."""
        return shared_file.look(self._fs, self.path)

    def known(self) -> Loaded | None:
        """What was read or written last, if the file is still that; `None` if it has to be read."""
        last = self.last
        return last if last is not None and last.seen == self.look() else None

    def load(self) -> Loaded:
        """The store as it is; it is read only if it is not known."""
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
        """The store as it is, and what the file was."""
        kept = atomic.exists(self._fs, self.good)
        found = shared_file.read(self._fs, self.path)
        if found is not None:
            try:
                return parse_store(found[0], self.path), found[1]
            except BrokenStore:
                pass
        elif not kept:
            return StoreDocument.empty(), None
        time.sleep(self._settle)  # an editor may be in the middle of saving it: half a file, or none for a moment
        found = shared_file.read(self._fs, self.path)
        if found is None:
            return StoreDocument.empty(), None
        try:
            return parse_store(found[0], self.path), found[1]
        except BrokenStore as error:
            if not kept:
                raise
            hint = f"mend it there, or restore the last good copy, {self.good}"
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
        """Put what `change` makes of the entry of a key in its place; gives the entry that is there then.

        `change` gets `None` for a key without entry, and gives `None` to leave everything as it is. It may be asked again.
        """
        return update_one(self, key, change, now)

    def compare_and_set(self, key: str, expected: SessionEntry | None, new: SessionEntry | None, *, now: int) -> None:
        """Put an entry in place of the one that is expected (`None` for no entry); raises `Conflict` if there is another."""

        def change(entries: Entries) -> Changes:
            spelling = spelling_of(key, entries)
            if entries.get(spelling) != expected:
                raise Conflict(
                    f"the entry of {key[:120]!r} is not what was expected",
                    path=self.path,
                    hint="read it again, then decide again",
                )
            return {spelling: new}

        self.update_all(change, now=now)

    def update_all(self, change: Callable[[Entries], Changes], *, now: int, keep: bool = False) -> Changes:
        """Apply the changes that `change` finds in all entries, at once; `None` removes one. Gives what was written.

        With `keep`, a file that needs no change becomes the last good copy: somebody else may have edited it.
        """
        with self._locked(now):
            for _ in range(_TRIES):
                loaded = self.load()
                entries, stored = loaded.entries, loaded.document.entries
                wanted = {**entries, **change(entries)}
                changes = {key: new for key, new in wanted.items() if differs(stored.get(key), new)}
                if not changes or self._save(loaded, changes, now):
                    self._remember(entries, changes)
                    if keep and not changes:
                        self.keep_good_copy()
                    return changes
        raise SessionBusy(
            "another program saves the store without pause", path=self.path, hint="end it, then try again"
        )

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
            # Every stale entry is among the changes: the file and what holds are the same now.
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
        with claimed(
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
        """The entries of the last good copy; `None` if there is none."""
        found = shared_file.read(self._fs, self.good)
        return None if found is None else parse_store(found[0], self.good).entries

    def keep_good_copy(self) -> None:
        """Keep the file as it is now as the last good copy, after somebody edited it; raises if it is broken."""
        loaded = self.load()
        data = loaded.document.text.encode()
        kept = shared_file.read(self._fs, self.good)
        if loaded.seen is not None and (kept is None or kept[0] != data):
            atomic.make_folders(self._fs, self._keep)
            atomic.replace(self._fs, self.good, (data,))

    def restore(self, *, now: int) -> Restored:
        """Put the last good copy in place of a broken or missing file, which is kept beside the copy."""
        with self._locked(now):
            try:
                seen = self.load().seen
            except BrokenStore:
                pass
            else:
                if seen is not None:
                    raise Conflict("the store is not broken; nothing was changed", path=self.path)
            if not atomic.exists(self._fs, self.good):
                raise NotFound("there is no good copy of the store", path=self.good, hint="mend the file by hand")
            with storage_failures(self.good, "restore the store"):
                good = atomic.read_all(self._fs, self.good)
                parse_store(good, self.good)
                broken = shared_file.read(self._fs, self.path)
                aside = None
                if broken is not None:
                    aside = f"{self._keep}/{posixpath.basename(self.path)}.broken-{now}"
                    atomic.replace(self._fs, aside, (broken[0],))
            if not shared_file.replace(self._fs, self.path, good, None if broken is None else broken[1]):
                raise Conflict("somebody saved the store meanwhile; nothing was changed", path=self.path)
            return Restored(self.good, aside)


# --- table store

_TABLE_STORE_TRIES = 200  # each one means that somebody else got something done
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
        for tried in range(_TABLE_STORE_TRIES):
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
