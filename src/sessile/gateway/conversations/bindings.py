"""Bindings: which session each key has, kept in memory while a gateway runs, and the sessions behind them.

    LiveBindings       the entries of one agent, with the counters that are not written yet
    LiveAgents         the live bindings of all agents, and the timer that writes counters
    BoundSessions      the session files that entries name, and new sessions for them
    sync_bindings      copies bindings from one store to another

Rules, for a file and for a table in a database:
- Reading costs one look at the file. It is read again only if it was changed.
- A broken file is reported (`problem`), and the last good copy stays in force until it is repaired. Nothing is written
  until then.
- Counters are held in memory, visible to every reader, and added to the file with the next change or by `flush`. They
  never restore a deleted entry. Counters that could not be written are logged and tried again with the next count.
- A change is decided under the lock of the store, on the current entries: of several threads or processes that want the
  same, one does it and the others find it done.
- A session is created in the workspace of its agent and is listed at once. An entry may name a file (`sessionFile`),
  which must be among the sessions of the agent or the store. Otherwise the file is found by its id, usually without
  listing folders: our ids contain the time that is part of the file name.
- A thread starts with a copy of its parent if that is not too long by the parent's entry or its context.
- Syncing adds missing keys, and replaces entries that are older. Nothing is removed, and paths are adapted. Sessions
  are copied before.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from sessile import fork
from sessile.agents.openclaw.binding_store import BindingStore, Changes, Entries, Snapshot, own_bindings
from sessile.agents.openclaw.document import BrokenStore
from sessile.agents.openclaw.entries import Count, SessionEntry, added, counted
from sessile.agents.openclaw.keys import MAIN, SessionKey, fold_key, normalize_agent_id, normalize_key
from sessile.agents.openclaw.paths import StateFolder, agents_in
from sessile.core import entries as make
from sessile.core.codec import encode
from sessile.core.ids import new_session_id
from sessile.core.text import iso_timestamp
from sessile.core.tokens import context_tokens
from sessile.errors import InvalidId, SessileError, SessionNotFound, UnsafePath
from sessile.gateway.conversations.inbound import Keys
from sessile.storage import atomic, log
from sessile.storage.layout import file_name
from sessile.store import Store

_Counts = Mapping[tuple[str, str], Count]  # by key and session


class LiveBindings:
    """The entries of one agent, by key. `canonical` returns the canonical spelling of a key in the file."""

    def __init__(self, store: BindingStore, canonical: Callable[[str], str]) -> None:
        self.path = store.path
        self._store = store
        self._canonical = canonical
        self._writing = threading.RLock()  # one change at a time; readers wait only if the file has changed
        self._guard = threading.Lock()  # for the members below, which change together
        self._loaded: Snapshot | None = None
        self._good: Entries | None = None
        self._edited = False  # by another process, since the last good copy was saved
        self._broken: tuple[object, BrokenStore] | None = None
        self._counts: dict[tuple[str, str], Count] = {}
        self._writing_counts: _Counts = {}

    # -- reading

    @property
    def problem(self) -> BrokenStore | None:
        """Return why the last good copy is in force instead of the file; `None` if the file is good."""
        self.entries()
        return None if self._broken is None else self._broken[1]

    def entries(self) -> Entries:
        """Return all entries by the names in the file, without unwritten counters."""
        known = self._store.known()
        if known is not None and known is self._loaded:
            return known.entries
        with self._writing:
            return self._reload()

    def get(self, key: str) -> SessionEntry | None:
        """Return the current entry of a key, including counters."""
        entries, counts = self._now()
        return _with_counts(key, entries.get(self.name(key, entries)), counts)

    def current(self) -> dict[str, SessionEntry]:
        """Return all current entries by the names in the file, including counters."""
        found, counts = self._now()
        entries = dict(found)
        for key in {key for some in counts for key, _ in list(some)}:
            name = self.name(key, entries)
            if (entry := _with_counts(key, entries.get(name), counts)) is not None:
                entries[name] = entry
        return entries

    def _now(self) -> tuple[Entries, tuple[_Counts, _Counts]]:
        """Return entries and the counters not in them, as of one moment."""
        entries = self.entries()
        with self._guard:
            return (entries if self._good is None else self._good), (self._writing_counts, self._counts)

    def name(self, key: str, entries: Entries) -> str:
        """Return the name of a key in the entries: the key itself, or its newest other spelling."""
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
        """Add to the counters."""
        with self._guard:
            place = (key, count.session_id)
            self._counts[place] = added(self._counts.get(place), count)

    def change(self, decide: Callable[[Entries], Changes], now: int) -> None:
        """Apply the changes that `decide` returns, and the counters. They are durable when this returns."""
        with self._writing:
            with self._guard:
                self._writing_counts, self._counts = self._counts, {}
            counts = self._writing_counts

            def decide_all(entries: Entries) -> Changes:
                sums = self._sums(entries, counts)
                return {**sums, **decide({**entries, **sums})}

            try:
                self._store.update_all(decide_all, now=now, keep=self._edited)
            except BaseException:
                self._restore_counts(counts)
                raise
            with self._guard:  # entries and counters change together: a reader sees both or neither
                if self._store.last is not None:
                    self._loaded, self._good, self._broken = self._store.last, self._store.last.entries, None
                self._writing_counts, self._edited = {}, False

    def flush(self, now: int) -> None:
        """Write the counters, and save edited entries as the last good copy.

        Waits for a concurrent change, so that afterwards everything is written.
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

    def _restore_counts(self, counts: _Counts) -> None:
        """Put counters back that were not written, before newer ones."""
        with self._guard:
            late, self._counts, self._writing_counts = self._counts, dict(counts), {}
            for place, count in late.items():
                self._counts[place] = added(self._counts.get(place), count)


def _with_counts(key: str, entry: SessionEntry | None, counts: tuple[_Counts, ...]) -> SessionEntry | None:
    if entry is None or entry.session_id is None:
        return entry
    for some in counts:
        count = some.get((key, entry.session_id))
        entry = entry if count is None else counted(entry, count)
    return entry


# -- sessions

Reason = Literal["new", "daily", "idle", "reset"]

_TIME_DIGITS = 12  # hexadecimal digits of the time at the start of our ids


class Bound(NamedTuple):
    """A key and its session. `reason` is why the session is new, `previous_id` is the session that it replaced."""

    key: SessionKey
    text: str
    agent: str
    session_id: str
    path: str
    entry: SessionEntry
    is_new: bool
    reason: Reason | None
    previous_id: str | None


class Parent(NamedTuple):
    """The session that a thread continues: its file, and the entry of its key."""

    path: str
    entry: SessionEntry


class NewSession(NamedTuple):
    """A new session, and whether it is a copy of a parent."""

    session_id: str
    path: str
    forked: bool


class BoundSessions:
    """The sessions of a store, as bindings name them."""

    def __init__(self, store: Store, home: StateFolder, workspace: Callable[[str], str], max_tokens: int) -> None:
        self._store = store
        self._home = home
        self._workspace = workspace
        self._max_tokens = max_tokens
        self._paths: dict[str, str] = {}

    def path_of(self, agent: str, entry: SessionEntry) -> str | None:
        """Return the file of an entry's session; `None` if there is none."""
        named = self._named(agent, entry)
        if named is not None and atomic.exists(self._store.fs, named):
            return named
        session_id = entry.session_id
        if session_id is None:
            return None
        known = self._paths.get(session_id)
        if known is not None and atomic.exists(self._store.fs, known):
            return known
        usual = self._usual(agent, session_id)
        if usual is not None and atomic.exists(self._store.fs, usual):
            self._paths[session_id] = usual
            return usual
        try:
            found = self._store.find(session_id)
        except InvalidId as error:
            error.path, error.hint = self._home.store(agent), "correct the sessionId there, or delete the entry"
            raise
        if found is not None:
            self._paths[session_id] = found
        return found

    def _named(self, agent: str, entry: SessionEntry) -> str | None:
        if not entry.session_file:
            return None
        folder = self._home.sessions(agent)
        path = posixpath.normpath(posixpath.join(folder, entry.session_file))
        if not (path.startswith(f"{folder}/") or self._store.layout.owns(path)):
            hint = f"sessionFile must be below {folder}"
            raise UnsafePath("sessionFile is outside the sessions folder", path=path, hint=hint)
        return path

    def _usual(self, agent: str, session_id: str) -> str | None:
        """Return the expected file of a native session."""
        try:
            began = int(session_id.replace("-", "")[:_TIME_DIGITS], 16)
            return self._path(agent, session_id, began)
        except (ValueError, InvalidId):
            return None  # not a native id

    def _path(self, agent: str, session_id: str, now: int) -> str:
        return f"{self._store.layout.folder(self._workspace(agent))}/{file_name(iso_timestamp(now), session_id)}"

    # -- creating

    def existing(self, session_id: str) -> NewSession:
        """Return an existing session of the store, to be bound to a key."""
        path = self._store.find(session_id)
        if path is None:
            raise SessionNotFound(f"session not found: {session_id!r}", hint="list sessions with `sessile ls`")
        self._paths[session_id] = path
        return NewSession(session_id, path, forked=False)

    def begin(self, agent: str, now: int, parent: Parent | None) -> NewSession:
        """Create a session in the workspace of an agent, with a copy of `parent` if that is short enough. It is durable."""
        if parent is not None and self._is_short(parent):
            return self._fork(agent, parent)
        session_id = new_session_id(now, self._store.random)
        path = self._path(agent, session_id, now)
        header = make.header(session_id, iso_timestamp(now), self._workspace(agent))
        self._store.begin(path, [encode(header)]).close()
        self._paths[session_id] = path
        return NewSession(session_id, path, forked=False)

    def discard(self, begun: NewSession) -> None:
        """Delete a new session that no key is bound to."""
        self._paths.pop(begun.session_id, None)
        atomic.remove(self._store.fs, begun.path)

    def _fork(self, agent: str, parent: Parent) -> NewSession:
        with (
            self._store.open(parent.path, readonly=True) as source,
            fork.fork(self._store, source, self._workspace(agent)) as copy,
        ):
            self._paths[copy.id] = copy.path
            return NewSession(copy.id, copy.path, forked=True)

    def _is_short(self, parent: Parent) -> bool:
        """Return whether a parent is short enough to be copied into a thread. A limit of 0 means no limit."""
        if self._max_tokens <= 0:
            return True
        tokens = parent.entry.known("contextTokens")
        if tokens is None:
            with self._store.open(parent.path, readonly=True) as session:
                tokens = context_tokens(session.context().messages).tokens
        return bool(tokens <= self._max_tokens)


# -- agents


class LiveAgents:
    """The live bindings of all agents.

    `canonical` returns the canonical spelling of a key in an agent's store file. With `hold=None` there is no timer.
    """

    def __init__(self, store: Store, canonical: Callable[[str, str], str], hold: float | None) -> None:
        self._store = store
        self._canonical = canonical
        self._hold = hold
        self._guard = threading.Lock()
        self._live: dict[str, LiveBindings] = {}
        self._timer: threading.Timer | None = None
        self._closed = False

    def of(self, agent: str) -> LiveBindings:
        """Return the bindings of an agent."""
        agent = normalize_agent_id(agent)
        with self._guard:
            if agent not in self._live:
                bindings = own_bindings(self._store, agent)
                self._live[agent] = LiveBindings(bindings, lambda text: self._canonical(agent, text))
            return self._live[agent]

    def count(self, agent: str, key: str, count: Count) -> None:
        """Add to the counters, and start the timer that writes them."""
        self.of(agent).count(key, count)
        with self._guard:
            if self._timer is None and self._hold is not None and not self._closed:
                self._timer = threading.Timer(self._hold, self._write_counts)
                self._timer.daemon = True
                self._timer.start()

    def _write_counts(self) -> None:
        with self._guard:
            self._timer = None
        for error in self._flush(self._store.now()):
            log.warning("cannot write counters yet: %s", error)

    def flush(self, now: int) -> None:
        """Write counters. If several files fail, raise the first error after trying all."""
        failed = self._flush(now)
        if failed:
            raise failed[0]

    def close(self) -> None:
        """Write counters, and start no timer any more."""
        with self._guard:
            timer, self._timer, self._closed = self._timer, None, True
        if timer is not None:
            timer.cancel()
        self.flush(self._store.now())

    def _flush(self, now: int) -> list[SessileError]:
        with self._guard:
            agents = [*self._live.values()]
        failed = []
        for live in agents:
            try:
                live.flush(now)
            except SessileError as error:
                failed.append(error)
        return failed


class Internals(NamedTuple):
    """The parts of `Conversations` that maintenance needs."""

    store: Store
    home: StateFolder
    keys: Keys
    agents: LiveAgents
    sessions: BoundSessions


# -- syncing

_FILE = "sessionFile"


def sync_bindings(source: Store, target: Store, *, preview: bool = False) -> int:
    """Copy the bindings of all agents. Return how many entries the target gets, or would get with `preview`."""
    return sum(_sync_agent(source, target, agent, preview) for agent in agents_in(source.fs, source.layout.root))


def _sync_agent(source: Store, target: Store, agent: str, preview: bool) -> int:
    theirs = own_bindings(source, agent).read()
    if not theirs:
        return 0
    moved = {key: _moved(entry, source, target) for key, entry in theirs.items()}
    ours = own_bindings(target, agent)
    wanted = _newer(moved, ours.read())
    if wanted and not preview:
        wanted = ours.update_all(lambda current: _newer(moved, current), now=target.now())
    return len(wanted)


def _newer(theirs: Entries, ours: Entries) -> Changes:
    """Return the entries that are missing or older in the target, by the target's names of their keys."""
    spelled = {normalize_key(name): name for name in ours}
    changes: dict[str, SessionEntry | None] = {}
    for key, entry in theirs.items():
        name = key if key in ours else spelled.get(normalize_key(key), key)
        mine = ours.get(name)
        if mine is None or (entry.updated_at or 0) > (mine.updated_at or 0):
            changes[name] = entry
    return changes


def _moved(entry: SessionEntry, source: Store, target: Store) -> SessionEntry:
    """Return the entry with the session path of the target."""
    path, place = entry.session_file, f"{source.layout.sessions}/"
    if path is None or not path.startswith(place):
        return entry
    return SessionEntry({**entry.members, _FILE: f"{target.layout.sessions}/{path[len(place) :]}"})
