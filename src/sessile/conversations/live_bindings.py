"""The bindings of one agent while a gateway runs: a copy in memory, what was counted since, and what holds if the file breaks.

Rules, of a table in a database as of a file:
- Reading costs one look at the file. It is read again only if somebody changed it.
- A broken file is told (`problem`), and what was good last stays in force until it is mended. Nothing is written meanwhile.
- Counts are held in memory, seen by every reader at once, and written with the next change or by `flush`, as sums onto what the
  file holds then. An entry that somebody deleted is not brought back by them.
- A change is decided under the lock of the store, on the entries as they are at that moment: of many who want one thing, in
  threads or processes, one does it, and the others find it done.

What entries mean, and when to flush, is for the caller to say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from sessile.formats.yoyoclaw.counting import Count, added, counted
from sessile.formats.yoyoclaw.document import BrokenStore
from sessile.formats.yoyoclaw.entries import SessionEntry
from sessile.formats.yoyoclaw.keys import MAIN
from sessile.formats.yoyoclaw.normal import fold_key
from sessile.stores.yoyoclaw.binding_store import BindingStore, Changes, Entries, Snapshot

_Counts = Mapping[tuple[str, str], Count]  # by key and session


class LiveBindings:
    """The entries of one agent, by key. `canonical` gives the one spelling of a key that a file may spell otherwise."""

    def __init__(self, store: BindingStore, canonical: Callable[[str], str]) -> None:
        self.path = store.path
        self._store = store
        self._canonical = canonical
        self._writing = threading.RLock()  # one change at a time; a reader waits for it only if the file has changed
        self._guard = threading.Lock()  # for the members below, which belong together
        self._loaded: Snapshot | None = None
        self._good: Entries | None = None
        self._edited = False  # by somebody else, since the last good copy was kept
        self._broken: tuple[object, BrokenStore] | None = None
        self._counts: dict[tuple[str, str], Count] = {}
        self._on_the_way: _Counts = {}

    # -- reading

    @property
    def problem(self) -> BrokenStore | None:
        """Why the last good copy is in force instead of the file; `None` if it is not."""
        self.entries()
        return None if self._broken is None else self._broken[1]

    def entries(self) -> Entries:
        """All entries under the names that the file has for them, without what was counted since."""
        known = self._store.known()
        if known is not None and known is self._loaded:
            return known.entries
        with self._writing:
            return self._reload()

    def get(self, key: str) -> SessionEntry | None:
        """The entry of a key as it stands now, with everything that was counted."""
        entries, counts = self._now()
        return _with_counts(key, entries.get(self.name(key, entries)), counts)

    def current(self) -> dict[str, SessionEntry]:
        """All entries as they stand now, under the names that the file has for them."""
        found, counts = self._now()
        entries = dict(found)
        for key in {key for some in counts for key, _ in list(some)}:
            name = self.name(key, entries)
            if (entry := _with_counts(key, entries.get(name), counts)) is not None:
                entries[name] = entry
        return entries

    def _now(self) -> tuple[Entries, tuple[_Counts, _Counts]]:
        """Entries and the counts that they do not hold yet, of one moment."""
        entries = self.entries()
        with self._guard:
            return (entries if self._good is None else self._good), (self._on_the_way, self._counts)

    def name(self, key: str, entries: Entries) -> str:
        """The name under which entries have a key: as it is, else the newest that is only spelled otherwise."""
        if key in entries:
            return key
        folded = fold_key(key)
        spellings = {folded, folded.split(":", 2)[-1]}  # with its agent and without
        main = ":".join((*folded.split(":")[:2], MAIN))
        if self._canonical(main) == key:
            spellings |= {main, MAIN}
        same = [other for other in entries if fold_key(other) in spellings and self._canonical(other) == key]
        return max(same, key=lambda other: entries[other].updated_at or 0, default=key)

    def _reload(self) -> Entries:
        seen = self._store.look()
        if self._broken is not None and self._broken[0] == seen and self._good is not None:
            return self._good
        try:
            return self._adopt(self._store.load())
        except BrokenStore as error:
            good = self._good if self._good is not None else self._store.good_entries()
            if good is None:
                raise
            with self._guard:
                self._broken, self._good, self._loaded = (seen, error), good, None
            return good

    def _adopt(self, loaded: Snapshot) -> Entries:
        with self._guard:
            self._edited = self._edited or self._good is not None
            self._loaded, self._good, self._broken = loaded, loaded.entries, None
        return loaded.entries

    # -- changing

    def count(self, key: str, count: Count) -> None:
        """Hold something to be counted."""
        with self._guard:
            place = (key, count.session_id)
            self._counts[place] = added(self._counts.get(place), count)

    def change(self, decide: Callable[[Entries], Changes], now: int) -> None:
        """Write what `decide` makes of the entries, and what was counted; it is durable when this returns."""
        with self._writing:
            with self._guard:
                self._on_the_way, self._counts = self._counts, {}
            counts = self._on_the_way

            def decide_all(entries: Entries) -> Changes:
                sums = self._sums(entries, counts)
                return {**sums, **decide({**entries, **sums})}

            try:
                self._store.update_all(decide_all, now=now, keep=self._edited)
            except BaseException:
                self._take_back(counts)
                raise
            with self._guard:  # the entries that hold the counts, and the counts no more: a reader sees both or neither
                if self._store.last is not None:
                    self._loaded, self._good, self._broken = self._store.last, self._store.last.entries, None
                self._on_the_way, self._edited = {}, False

    def flush(self, now: int) -> None:
        """Write what was counted, and keep what somebody edited as the last good copy.

        Whoever writes at this moment is waited for: behind this everything is written, also by another thread.
        """
        with self._writing:
            if self._counts or self._edited:
                self.change(lambda entries: {}, now)

    def _sums(self, entries: Entries, counts: _Counts) -> dict[str, SessionEntry]:
        sums: dict[str, SessionEntry] = {}
        for (key, _), count in counts.items():
            name = self.name(key, entries)
            if name in entries:
                sums[name] = counted(sums.get(name, entries[name]), count)
        return sums

    def _take_back(self, counts: _Counts) -> None:
        """Hold counts that were not written, before those that came meanwhile."""
        with self._guard:
            late, self._counts, self._on_the_way = self._counts, dict(counts), {}
            for place, count in late.items():
                self._counts[place] = added(self._counts.get(place), count)


def _with_counts(key: str, entry: SessionEntry | None, counts: tuple[_Counts, ...]) -> SessionEntry | None:
    if entry is None or entry.session_id is None:
        return entry
    for some in counts:
        count = some.get((key, entry.session_id))
        entry = entry if count is None else counted(entry, count)
    return entry
