"""The bindings of one agent while a gateway runs: a copy in memory, what was counted since, and what holds if the file breaks.

Rules, of a table in a database as of a file:
- Reading costs one look at the file. It is read again only if somebody changed it.
- A broken file is told (`problem`), and what was good last stays in force until it is mended. Nothing is written meanwhile.
- Counts are held in memory, seen by every reader at once, and written with the next change or by `flush`, as sums onto what the
  file holds then. An entry that somebody deleted is not brought back by them.
- A change is decided under the lock of the store, on the entries as they are at that moment: of many who want one thing, in
  threads or processes, one does it, and the others find it done.

What entries mean, and when to flush, is for the caller to say.

The live bindings of all agents, and the timer that writes what was counted in them.

The first count starts the timer; when it is over, all counts since then are written at once. What could not be written then,
such as while a file is broken, is told in the log and tried again with the next count.

The sessions that keys are bound to: where their files are, and how one begins.

Rules: a session is one of the store, in the workspace of its agent, and shows in listings at once. An entry may name a file
itself (`sessionFile`); it is taken if it lies among the agent's sessions or the store's. Else the file is found by the id,
mostly without looking around: ids of ours tell the time that is in the name.

A thread begins with all that was said in its parent, if that is not too long. How long it is says the parent's entry, else its
own context. Bindings are not known here.

Bringing the bindings of a gateway from one store to another: which key has which session.

Rules: a key that the target does not have comes; of one that both have the newer entry holds, and of two of one age the target's.
Nothing is removed. Paths of sessions in the source become those of the target. Sessions are brought before (`syncing`).
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

# --- live bindings

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


# --- bound sessions

Reason = Literal["new", "daily", "idle", "reset"]

_TIME_DIGITS = 12  # hexadecimal, at the start of an id of ours


class Bound(NamedTuple):
    """A key and its session. `reason` says why the session is new, `previous_id` which one it took the place of."""

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


class Begun(NamedTuple):
    """A session that was just begun, and whether it holds what was said in a parent."""

    session_id: str
    path: str
    forked: bool


class BoundSessions:
    """The sessions of a store as bindings name them."""

    def __init__(self, store: Store, home: StateFolder, workspace: Callable[[str], str], max_tokens: int) -> None:
        self._store = store
        self._home = home
        self._workspace = workspace
        self._max_tokens = max_tokens
        self._paths: dict[str, str] = {}

    def path_of(self, agent: str, entry: SessionEntry) -> str | None:
        """The file of the session that an entry names; `None` if there is none."""
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
            error.path, error.hint = self._home.store(agent), "mend the sessionId there, or delete the entry"
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
            hint = f"sessionFile is a name below {folder}"
            raise UnsafePath("the entry names a file outside of the sessions", path=path, hint=hint)
        return path

    def _usual(self, agent: str, session_id: str) -> str | None:
        """Where a session of ours lies unless somebody moved it."""
        try:
            began = int(session_id.replace("-", "")[:_TIME_DIGITS], 16)
            return self._path(agent, session_id, began)
        except (ValueError, InvalidId):
            return None  # not an id of ours

    def _path(self, agent: str, session_id: str, now: int) -> str:
        return f"{self._store.layout.folder(self._workspace(agent))}/{file_name(iso_timestamp(now), session_id)}"

    # -- beginning

    def existing(self, session_id: str) -> Begun:
        """A session of the store that is there already, as one that a key can have."""
        path = self._store.find(session_id)
        if path is None:
            raise SessionNotFound(f"there is no session {session_id}", hint="list the sessions")
        self._paths[session_id] = path
        return Begun(session_id, path, forked=False)

    def begin(self, agent: str, now: int, parent: Parent | None) -> Begun:
        """A new session in the workspace of an agent, durable; with what was said in the parent, if it is given."""
        if parent is not None and self._is_short(parent):
            return self._fork(agent, parent)
        session_id = new_session_id(now, self._store.random)
        path = self._path(agent, session_id, now)
        header = make.header(session_id, iso_timestamp(now), self._workspace(agent))
        self._store.begin(path, [encode(header)]).close()
        self._paths[session_id] = path
        return Begun(session_id, path, forked=False)

    def discard(self, begun: Begun) -> None:
        """Take a session away that was begun just now, and that no key has."""
        self._paths.pop(begun.session_id, None)
        atomic.remove(self._store.fs, begun.path)

    def _fork(self, agent: str, parent: Parent) -> Begun:
        with (
            self._store.open(parent.path, readonly=True) as source,
            fork.fork(self._store, source, self._workspace(agent)) as copy,
        ):
            self._paths[copy.id] = copy.path
            return Begun(copy.id, copy.path, forked=True)

    def _is_short(self, parent: Parent) -> bool:
        """Whether a parent is short enough to be continued by a thread; a limit of 0 is none."""
        if self._max_tokens <= 0:
            return True
        tokens = parent.entry.known("contextTokens")
        if tokens is None:
            with self._store.open(parent.path, readonly=True) as session:
                tokens = context_tokens(session.context().messages).tokens
        return bool(tokens <= self._max_tokens)


# --- live agents


class LiveAgents:
    """`canonical` gives the spelling of a key in the store file of an agent; with `hold=None` there is no timer."""

    def __init__(self, store: Store, canonical: Callable[[str, str], str], hold: float | None) -> None:
        self._store = store
        self._canonical = canonical
        self._hold = hold
        self._guard = threading.Lock()
        self._live: dict[str, LiveBindings] = {}
        self._timer: threading.Timer | None = None
        self._closed = False

    def of(self, agent: str) -> LiveBindings:
        """The bindings of an agent."""
        agent = normalize_agent_id(agent)
        with self._guard:
            if agent not in self._live:
                bindings = own_bindings(self._store, agent)
                self._live[agent] = LiveBindings(bindings, lambda text: self._canonical(agent, text))
            return self._live[agent]

    def count(self, agent: str, key: str, count: Count) -> None:
        """Hold something to be counted, until the timer is over."""
        self.of(agent).count(key, count)
        with self._guard:
            if self._timer is None and self._hold is not None and not self._closed:
                self._timer = threading.Timer(self._hold, self._time_is_over)
                self._timer.daemon = True
                self._timer.start()

    def _time_is_over(self) -> None:
        with self._guard:
            self._timer = None
        for error in self._flush(self._store.now()):
            log.warning("counters are not written yet: %s", error)

    def flush(self, now: int) -> None:
        """Write what was counted; of several errors the first is raised, after everything was tried."""
        failed = self._flush(now)
        if failed:
            raise failed[0]

    def close(self) -> None:
        """Write what was counted, and start no timer any more."""
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


class Upkeep(NamedTuple):
    """What those need of conversations who look after them, and do not speak in them."""

    store: Store
    home: StateFolder
    keys: Keys
    agents: LiveAgents
    sessions: BoundSessions


# --- syncing

_FILE = "sessionFile"


def sync_bindings(source: Store, target: Store, *, preview: bool = False) -> int:
    """Bring the bindings of all agents; gives how many entries the target got, or would get."""
    return sum(_bring(source, target, agent, preview) for agent in agents_in(source.fs, source.layout.root))


def _bring(source: Store, target: Store, agent: str, preview: bool) -> int:
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
    """The entries that the target lacks, under the names that it has for their keys."""
    spelled = {normalize_key(name): name for name in ours}
    changes: dict[str, SessionEntry | None] = {}
    for key, entry in theirs.items():
        name = key if key in ours else spelled.get(normalize_key(key), key)
        mine = ours.get(name)
        if mine is None or (entry.updated_at or 0) > (mine.updated_at or 0):
            changes[name] = entry
    return changes


def _moved(entry: SessionEntry, source: Store, target: Store) -> SessionEntry:
    """The entry with the place that its session has in the target."""
    path, place = entry.session_file, f"{source.layout.sessions}/"
    if path is None or not path.startswith(place):
        return entry
    return SessionEntry({**entry.members, _FILE: f"{target.layout.sessions}/{path[len(place) :]}"})
