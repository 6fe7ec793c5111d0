"""Maintenance of the conversations of an agent: a plan that says which would go and which stay, an archive, then the removal.

What goes, in this order, as `session.maintenance` says it:

    old         nobody has used it for `pruneAfter`; one that does not say when it was used is not old
    too many    the oldest of those beyond the newest `maxEntries`; those that do not say how old they are first
    disk        the oldest until everything fits into four fifths of `maxDiskBytes`, if it has outgrown that

Rules:
- The main conversation stays, and so does what is pinned, what the caller says is live, and what a process has open.
- A plan changes nothing. In mode `warn` applying it changes nothing either.
- Entries are archived durably before they are taken out, under the lock of the store, and only if they are still what the plan
  has seen. `undo_maintenance` puts them back.
- Sessions stay where they are, unless the disk is the reason. Then they go to the trash, those without a conversation first; what
  `prune` spares, and what any conversation of any agent names, now or as an earlier session, does not. Emptying the trash is for
  a person to do.

The files of sessions that bindings name: found for many entries at once, and brought back from the trash.

Only sessions in the store's own folders are known here, so that nobody else's file is ever moved. An entry that names a file
which it may not name has none.

Upkeep: conversations that nobody uses any more are told of, or archived, as `session.maintenance` says.

It is looked at when the gateway starts and every few hours. In mode `warn`, the default, nothing goes; the log says what would.
Whatever fails is told and tried again the next time.
"""

from __future__ import annotations

import logging
import posixpath
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import anyio

from sessile.agents.openclaw.entries import SessionEntry
from sessile.agents.openclaw.keys import normalize_agent_id, render_key
from sessile.core.resets import previous_sessions
from sessile.errors import InvalidId, SessileError, SessionNotFound, UnsafePath
from sessile.gateway.conversations.removed import Archives
from sessile.storage import session_bytes
from sessile.storage.layout import JOURNAL, artifacts_of, stem_of
from sessile.storage.locks import Identity, identity, open_files
from sessile.storage.session_bytes import RawFile
from sessile.upkeep.prune import Candidate, PrunePlan, PruneRule, apply_prune, plan_prune

if TYPE_CHECKING:
    from sessile.agents.openclaw.binding_store import Changes, Entries
    from sessile.config import Maintenance
    from sessile.gateway.conversations.conversations import Conversations
    from sessile.gateway.service import Gateway
    from sessile.storage.base import Filesystem
    from sessile.storage.trash import Deletion


# --- binding files


class BindingFiles:
    """The folders of a store are looked at once, when the first file is asked for."""

    def __init__(self, conversations: Conversations) -> None:
        self._all = conversations
        self._store = conversations.upkeep.store
        self._known: Mapping[str, str] | None = None

    def of(self, agent: str, entry: SessionEntry) -> set[str]:
        """The files of the session that an entry has, and of those that it had before."""
        known = self._by_id()
        found = {known[session_id] for session_id in _ids(entry) if session_id in known}
        if entry.session_file:
            try:
                named = self._all.upkeep.sessions.path_of(agent, entry)
            except (UnsafePath, InvalidId):
                named = None  # whoever speaks in the conversation is told
            if named is not None and self._store.layout.owns(named):
                found.add(named)
        return found

    def of_all(self, agents: Iterable[str]) -> Iterator[str]:
        """The files that all conversations of some agents name."""
        for agent in agents:
            for entry in self._all.upkeep.agents.of(agent).current().values():
                yield from self.of(agent, entry)

    def bring_back(self, entries: Iterable[SessionEntry]) -> tuple[str, ...]:
        """Put the sessions of entries back from the trash; gives the ids of those that are nowhere."""
        known = self._by_id()
        trashed = {
            _id_in(path): deletion.token
            for deletion in self._store.deletions()
            for path in deletion.paths
            if path.endswith(JOURNAL)
        }
        lost = [session_id for entry in entries for session_id in _ids(entry) if session_id not in known]
        missing = []
        for session_id in dict.fromkeys(lost):
            if session_id in trashed:
                self._store.undo(trashed[session_id])
            else:
                missing.append(session_id)
        return tuple(missing)

    def _by_id(self) -> Mapping[str, str]:
        if self._known is None:
            found = session_bytes.journals(self._store.fs, self._store.layout.sessions)
            paths = [path for path, linked in found if path.endswith(JOURNAL) and not linked]
            self._known = {_id_in(path): path for path in paths}
        return self._known


def _ids(entry: SessionEntry) -> Iterator[str]:
    """The session that an entry has, and those that it had before."""
    if entry.session_id is not None:
        yield entry.session_id
    yield from (previous.session_id for previous in previous_sessions(entry))


def _id_in(path: str) -> str:
    """The id in the name of a session file, behind the time."""
    return stem_of(path).partition("_")[2]


# --- maintenance

HIGH_WATER = 0.8  # of `maxDiskBytes`: what is documented, so that not every message brings the next run

Reason = Literal["old", "too many", "disk"]
Stays = Literal["main", "live", "pinned", "open", "undated", "newest"]


class Going(NamedTuple):
    """A conversation that would go, and why; times are milliseconds, what is unknown is `None`."""

    key: str
    session_id: str | None
    updated_at: int | None
    why: Reason
    entry: SessionEntry


class Staying(NamedTuple):
    """A conversation that stays, and why."""

    key: str
    session_id: str | None
    updated_at: int | None
    why: Stays


class MaintenancePlan(NamedTuple):
    """What maintenance would do; nothing has been changed.

    `sessions` would go to the trash. `bytes` is what everything takes now, `None` if there is no limit for it. `too_many` and
    `too_large` are what remains beyond the limits, because all of it has a reason to stay.
    """

    agent: str
    path: str
    mode: Literal["warn", "enforce"]
    at: int
    going: tuple[Going, ...]
    staying: tuple[Staying, ...]
    sessions: PrunePlan | None = None
    bytes: int | None = None
    too_many: int = 0
    too_large: int = 0

    @property
    def told(self) -> tuple[str, ...]:
        """What a person should know of it, in sentences; none if all is well."""
        how = "to be archived" if self.mode == "enforce" else "would be archived in mode enforce"
        reasons = Counter(row.why for row in self.going)
        found = [f"{_many(number, 'conversation')} of {self.agent}: {why}, {how}" for why, number in reasons.items()]
        if self.sessions is not None and self.sessions.candidates:
            where = "to the trash" if self.mode == "enforce" else "would go to the trash in mode enforce"
            size = f"{self.sessions.bytes:,} bytes"
            found.append(f"{_many(len(self.sessions.candidates), 'session')} of {self.agent}: {size}, {where}")
        if self.too_many:
            found.append(f"{_many(self.too_many, 'conversation')} of {self.agent}: beyond maxEntries, but in use")
        if self.too_large:
            found.append(f"{_many(self.too_large, 'byte')} of {self.agent}: beyond maxDiskBytes, but in use")
        return tuple(found)


class Maintained(NamedTuple):
    """What maintenance did: the archive and its token, the keys that went, sessions in the trash, and what was left after all.

    `failure` is what stopped it in the middle, if anything did; `told` are the sentences of the plan.
    """

    told: tuple[str, ...]
    token: str | None = None
    archive: str | None = None
    removed: tuple[str, ...] = ()
    deletions: tuple[Deletion, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    failure: SessileError | None = None


class Undone(NamedTuple):
    """What was put back. The keys in `refused` have another session by now; no file was found of the sessions in `missing`."""

    keys: tuple[str, ...]
    refused: tuple[str, ...]
    missing: tuple[str, ...]


# -- the plan


def plan_maintenance(
    conversations: Conversations,
    agent: str,
    rules: Maintenance,
    now: int | None = None,
    *,
    live: Collection[str] = (),
    pinned: Collection[str] = (),
) -> MaintenancePlan:
    """What maintenance would do for an agent. `live` are keys or ids of sessions in use, `pinned` are ids of sessions."""
    agent = normalize_agent_id(agent)
    moment = conversations.upkeep.store.now() if now is None else now
    return _Choice(conversations, agent, frozenset(live), frozenset(pinned)).plan(rules, moment)


class _Choice:
    """Which conversations of an agent go, as it is being found out."""

    def __init__(self, conversations: Conversations, agent: str, live: frozenset[str], pinned: frozenset[str]) -> None:
        self._all = conversations
        self._agent = agent
        self._pinned = pinned
        self._store = conversations.upkeep.store
        self._files = BindingFiles(conversations)
        bindings = conversations.upkeep.agents.of(agent)
        self._path = bindings.path
        self._entries = bindings.current()
        self._going: dict[str, Reason] = {}
        self._stays = dict(self._protected(live))
        self._oldest_first = sorted(self._entries, key=lambda name: _age(self._entries[name]))

    def _protected(self, live: frozenset[str]) -> Iterator[tuple[str, Stays]]:
        keys = self._all.upkeep.keys
        main = self._all.upkeep.agents.of(self._agent).name(render_key(keys.routing.main(self._agent)), self._entries)
        for name, entry in self._entries.items():
            if name == main:
                yield name, "main"
            elif _is_live(name, keys.spelling(self._agent, name), entry, live):
                yield name, "live"
            elif entry.get("pinnedAt") or entry.session_id in self._pinned:
                yield name, "pinned"

    def plan(self, rules: Maintenance, now: int) -> MaintenancePlan:
        for name in self._oldest_first:
            updated = self._entries[name].updated_at
            if updated is not None and updated < now - rules.prune_after_ms:
                self._go(name, "old")
        for name in self._oldest_first:
            if self._left() > rules.max_entries:
                self._go(name, "too many")
        disk = None if rules.max_disk_bytes is None else self._fit(rules.max_disk_bytes, now)
        entries = self._entries.items()
        return MaintenancePlan(
            agent=self._agent,
            path=self._path,
            mode=rules.mode,
            at=now,
            going=tuple(
                Going(name, entry.session_id, entry.updated_at, self._going[name], entry)
                for name, entry in entries
                if name in self._going
            ),
            staying=tuple(
                Staying(name, entry.session_id, entry.updated_at, self._why(name, entry))
                for name, entry in entries
                if name not in self._going
            ),
            sessions=None if disk is None else disk.sessions,
            bytes=None if disk is None else disk.bytes,
            too_many=max(0, self._left() - rules.max_entries),
            too_large=0 if disk is None else disk.too_large,
        )

    def _left(self) -> int:
        return len(self._entries) - len(self._going)

    def _go(self, name: str, why: Reason) -> bool:
        """Let a conversation go unless something keeps it; says whether it goes by this."""
        if name in self._going or name in self._stays:
            return False
        if any(self._is_open(path) for path in self._files.of(self._agent, self._entries[name])):
            self._stays[name] = "open"
            return False
        self._going[name] = why
        return True

    @cached_property
    def _in_use(self) -> frozenset[Identity]:
        return open_files() or frozenset()

    def _is_open(self, path: str) -> bool:
        in_use = self._in_use  # known before we open the file ourselves
        try:
            with RawFile(self._store.fs, path) as file:
                return identity(file.stat) in in_use or file.is_held()
        except (SessionNotFound, UnsafePath):
            return False  # nobody can have it open as a session

    def _why(self, name: str, entry: SessionEntry) -> Stays:
        return self._stays.get(name) or ("undated" if entry.updated_at is None else "newest")

    # -- the disk

    def _fit(self, limit: int, now: int) -> _Disk:
        """Choose sessions for the trash, and the conversations that they take along, until the rest fits."""
        fs, files = self._store.fs, self._files
        own = {name: files.of(self._agent, entry) for name, entry in self._entries.items()}
        archived = [files.of(self._agent, entry) for entry in self._archived()]
        named = {path for paths in (*own.values(), *archived) for path in paths}
        total = used = session_bytes.bytes_below(fs, posixpath.dirname(self._path)) + sum(
            _size(fs, path) for path in named
        )
        if total <= limit:
            return _Disk(None, used, 0)
        prune = plan_prune(self._store, PruneRule(named=named), pinned=self._pinned, now=now / 1000)
        movable = {one.path: one for one in prune.candidates}
        held = Counter(files.of_all(other for other in self._all.agents() if other != self._agent))
        for name, paths in own.items():
            held.update(() if name in self._going else paths)
        chosen: dict[str, Candidate] = {}
        target = int(limit * HIGH_WATER)

        def take(paths: Iterable[str]) -> int:
            free = {path: movable[path] for path in paths if path in movable and not held[path] and path not in chosen}
            chosen.update(free)
            return sum(one.size for one in free.values())

        for path in sorted(movable, key=lambda path: movable[path].modified):
            if total > target:
                total -= take([path])
        for name in self._oldest_first:
            alone = [path for path in own[name] if path in movable and held[path] == 1]
            if total > target and alone and self._go(name, "disk"):
                held.subtract(own[name])
                total -= take(alone)
        sessions = prune._replace(candidates=tuple(chosen.values()), spared=(), bytes=used - total)
        return _Disk(sessions, used, max(0, total - limit))

    def _archived(self) -> Iterator[SessionEntry]:
        upkeep = self._all.upkeep
        for archive in Archives(upkeep.store, upkeep.home).list(self._agent):
            yield from map(SessionEntry, archive.entries.values())


class _Disk(NamedTuple):
    """The sessions that go to the trash, all that there was, and what is too much afterwards."""

    sessions: PrunePlan | None
    bytes: int
    too_large: int


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _age(entry: SessionEntry) -> int:
    return -1 if entry.updated_at is None else entry.updated_at


def _is_live(name: str, spelling: str, entry: SessionEntry, live: frozenset[str]) -> bool:
    return name in live or spelling in live or entry.session_id in live


def _size(fs: Filesystem, path: str) -> int:
    return session_bytes.bytes_below(fs, path) + session_bytes.bytes_below(fs, artifacts_of(path))


# -- applying it, and taking it back


def apply_maintenance(
    conversations: Conversations,
    plan: MaintenancePlan,
    *,
    live: Collection[str] = (),
    pinned: Collection[str] = (),
    now: int | None = None,
) -> Maintained:
    """Do what a plan says, except for what was used since; in mode `warn` only say it. `live` and `pinned` as for the plan."""
    if plan.mode != "enforce":
        return Maintained(plan.told)
    upkeep = conversations.upkeep
    moment = upkeep.store.now() if now is None else now
    archives = Archives(upkeep.store, upkeep.home)
    token = archives.new_token(plan.agent, moment)
    bindings = upkeep.agents.of(plan.agent)
    removed: list[str] = []
    refused: dict[str, str] = {}

    def change(entries: Entries) -> Changes:
        going: dict[str, SessionEntry] = {}
        refused.clear()
        for row in plan.going:
            entry = entries.get(row.key)
            if entry != row.entry or entry is None:
                refused[row.key] = "it was used since the plan was made"
            elif _is_live(row.key, upkeep.keys.spelling(plan.agent, row.key), entry, frozenset(live)):
                refused[row.key] = "it is live"
            elif entry.session_id in pinned:
                refused[row.key] = "it is pinned"
            else:
                going[row.key] = entry
        removed[:] = going
        if going:
            archives.write(token, going, {row.key: row.why for row in plan.going}, moment)
        return dict.fromkeys(going)

    if plan.going:
        bindings.change(change, moment)
    done = Maintained(plan.told, refused=tuple(refused.items()))
    if removed:
        done = done._replace(token=token, archive=archives.path_of(token), removed=tuple(removed))
    if plan.sessions is None:
        return done
    held = frozenset(BindingFiles(conversations).of_all(conversations.agents()))
    free = tuple(one for one in plan.sessions.candidates if one.path not in held)
    pruned = apply_prune(upkeep.store, plan.sessions._replace(candidates=free), pinned=pinned)
    return done._replace(deletions=pruned.deletions, refused=done.refused + pruned.refused, failure=pruned.failure)


def undo_maintenance(conversations: Conversations, token: str, *, now: int | None = None) -> Undone:
    """Put the conversations of an archive back, as used just now, and their sessions back from the trash.

    A key that has another session by now keeps it; then the archive stays.
    """
    upkeep = conversations.upkeep
    moment = upkeep.store.now() if now is None else now
    archives = Archives(upkeep.store, upkeep.home)
    archive = archives.get(token)
    entries = {key: SessionEntry(members) for key, members in archive.entries.items()}
    missing = BindingFiles(conversations).bring_back(entries.values())
    bindings = upkeep.agents.of(archive.agent)
    refused: list[str] = []

    def change(current: Entries) -> Changes:
        refused.clear()
        back: dict[str, SessionEntry] = {}
        for key, entry in entries.items():
            name = bindings.name(upkeep.keys.spelling(archive.agent, key), current)
            if name not in current:
                back[key] = entry.touched({}, moment)  # or the next run would take it out again
            elif current[name].session_id != entry.session_id:
                refused.append(key)
        return back

    bindings.change(change, moment)
    if not refused:
        archives.remove(token)
    return Undone(tuple(key for key in entries if key not in refused), tuple(refused), missing)


# --- upkeep

_LOG = logging.getLogger(__name__)
_INTERVAL = 6 * 3600.0  # seconds


class Upkeep:
    """Looks after the conversations of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def run(self) -> None:
        """Look after all agents, again and again."""
        while True:
            try:
                await self._gateway.call(self._look)
            except SessileError as error:
                _LOG.warning("conversations were not looked after: %s", error.message)
            await anyio.sleep(_INTERVAL)

    def plan(self, agent: str) -> MaintenancePlan:
        """What would go now; blocks."""
        rules = self._gateway.config.session.maintenance
        return plan_maintenance(self._gateway.conversations, agent, rules, live=self._live(), pinned=self._pinned())

    def apply(self, plan: MaintenancePlan) -> Maintained:
        """Archive and remove what a plan says, if the mode is `enforce`; blocks."""
        return apply_maintenance(self._gateway.conversations, plan, live=self._live(), pinned=self._pinned())

    def _look(self) -> None:
        for agent in self._gateway.conversations.agents():
            plan = self.plan(agent)
            done = self.apply(plan)
            for told in done.told if plan.going or plan.sessions or done.failure else ():
                _LOG.warning("%s", told)
            if done.failure is not None:
                _LOG.warning("maintenance of %s has stopped: %s", agent, done.failure)

    def _live(self) -> set[str]:
        return self._gateway.turns.busy()

    def _pinned(self) -> list[str]:
        return self._gateway.store.pins.names()
