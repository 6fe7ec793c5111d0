"""`sessions.json` of one agent: read strictly, changed under a lock, safe while somebody edits it by hand.

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
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sessile.errors import Conflict, NotFound, SessionBusy, storage_failures
from sessile.formats.yoyoclaw.document import BrokenStore, StoreDocument, parse_store
from sessile.formats.yoyoclaw.entries import SessionEntry
from sessile.storage import atomic, processes, shared_file
from sessile.storage.base import Filesystem
from sessile.storage.claim_file import claimed
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.shared_file import Seen
from sessile.stores.yoyoclaw.binding_store import Changes, Entries, differs, spelling_of, update_one

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
        claim = f'{{"pid":{processes.own_pid()},"startedAt":{now},'.encode("ascii") + _MARK + b"}"
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
