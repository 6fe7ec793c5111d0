"""Maintenance of an agent's conversations: a plan of what to archive, the archive, and the removal.

Conversations are archived for these reasons, in this order, by the rules of `session.maintenance`:

    old         not used for `pruneAfter`; a conversation without a time is not old
    too many    the oldest beyond the newest `maxEntries`; those without a time first
    disk        the oldest until everything fits into 80 % of `maxDiskBytes`, if that is exceeded

Rules:
- The main conversation stays, and so do pinned and live conversations and those that a process has open.
- A plan changes nothing. In mode `warn`, the default, applying it changes nothing either; the log reports what would be
  archived.
- Entries are archived durably before they are removed, under the lock of the store, and only if they have not changed
  since the plan was made. `undo_maintenance` restores them.
- Sessions stay where they are, unless disk space is the reason. Then they are moved to the trash, those without a
  conversation first. Sessions that `prune` spares, or that any conversation of any agent names, stay. The trash is
  never emptied automatically.
- Only files in the store's own folders are moved.
- The gateway runs maintenance at its start and every few hours. Failures are logged and tried again.
"""

from __future__ import annotations

import logging
import posixpath
import time
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
    from sessile.gateway.conversations.registry import Conversations
    from sessile.gateway.service import Gateway
    from sessile.storage.base import Filesystem
    from sessile.storage.trash import Deletion


# -- files of bindings


class BindingFiles:
    """The session files that bindings name. The folders of the store are listed once, on first use."""

    def __init__(self, conversations: Conversations) -> None:
        self._all = conversations
        self._store = conversations.internals.store
        self._known: Mapping[str, str] | None = None

    def of(self, agent: str, entry: SessionEntry) -> set[str]:
        """Return the files of an entry's current and earlier sessions."""
        known = self._by_id()
        found = {known[session_id] for session_id in _ids(entry) if session_id in known}
        if entry.session_file:
            try:
                named = self._all.internals.sessions.path_of(agent, entry)
            except (UnsafePath, InvalidId):
                named = None  # reported when the conversation is used
            if named is not None and self._store.layout.owns(named):
                found.add(named)
        return found

    def of_all(self, agents: Iterable[str]) -> Iterator[str]:
        """Yield the files of all conversations of some agents."""
        for agent in agents:
            for entry in self._all.internals.agents.of(agent).current().values():
                yield from self.of(agent, entry)

    def restore(self, entries: Iterable[SessionEntry]) -> tuple[str, ...]:
        """Restore the sessions of entries from the trash. Return the ids of those that are missing."""
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
    """Yield the ids of an entry's current and earlier sessions."""
    if entry.session_id is not None:
        yield entry.session_id
    yield from (previous.session_id for previous in previous_sessions(entry))


def _id_in(path: str) -> str:
    """Return the id in the name of a session file, after the time."""
    return stem_of(path).partition("_")[2]


# -- results

_LOG = logging.getLogger(__name__)
_INTERVAL = 6 * 3600.0  # seconds between two runs of the gateway
_JUMP = 3600.0  # seconds; a clock that is corrected by less makes no session old
_SETTLING = 86_400.0  # seconds after a jump before the clock is believed

HIGH_WATER = 0.8  # of `maxDiskBytes`, as documented, so that not every message triggers the next run

Reason = Literal["old", "too many", "disk"]
Stays = Literal["main", "live", "pinned", "open", "undated", "newest"]


class Going(NamedTuple):
    """A conversation to archive, and why. Times are in milliseconds; `None` means unknown."""

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
    """What maintenance would do. Nothing has been changed.

    `sessions` would be moved to the trash. `bytes` is the current size, `None` if it is not limited. `too_many` and
    `too_large` are what remains above the limits, because it is in use.
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
    def summary(self) -> tuple[str, ...]:
        """Return the plan as sentences for the user; empty if nothing is to be done."""
        action = "to be archived" if self.mode == "enforce" else "would be archived in mode enforce"
        reasons = Counter(row.why for row in self.going)
        found = [f"{_many(number, 'conversation')} of {self.agent}: {why}, {action}" for why, number in reasons.items()]
        if self.sessions is not None and self.sessions.candidates:
            action = (
                "to be moved to the trash" if self.mode == "enforce" else "would be moved to the trash in mode enforce"
            )
            size = f"{self.sessions.bytes:,} bytes"
            found.append(f"{_many(len(self.sessions.candidates), 'session')} of {self.agent}: {size}, {action}")
        if self.too_many:
            found.append(f"{_many(self.too_many, 'conversation')} of {self.agent}: above maxEntries, but in use")
        if self.too_large:
            found.append(f"{_many(self.too_large, 'byte')} of {self.agent}: above maxDiskBytes, but in use")
        return tuple(found)


class Maintained(NamedTuple):
    """What maintenance did: the archive and its token, the removed keys, the sessions in the trash, and what was skipped.

    `failure` is the error that stopped it, if any. `summary` are the sentences of the plan.
    """

    summary: tuple[str, ...]
    token: str | None = None
    archive: str | None = None
    removed: tuple[str, ...] = ()
    deletions: tuple[Deletion, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    failure: SessileError | None = None


class Undone(NamedTuple):
    """What was restored.

    The keys in `refused` have another session by now; the files of the sessions in `missing` were not found.
    """

    keys: tuple[str, ...]
    refused: tuple[str, ...]
    missing: tuple[str, ...]


# -- planning


def plan_maintenance(
    conversations: Conversations,
    agent: str,
    rules: Maintenance,
    now: int | None = None,
    *,
    live: Collection[str] = (),
    pinned: Collection[str] = (),
) -> MaintenancePlan:
    """Return what maintenance would do for an agent. `live` are keys or session ids in use, `pinned` are session ids."""
    agent = normalize_agent_id(agent)
    moment = conversations.internals.store.now() if now is None else now
    return _Planner(conversations, agent, frozenset(live), frozenset(pinned)).plan(rules, moment)


class _Planner:
    """Decides which conversations of an agent to archive."""

    def __init__(self, conversations: Conversations, agent: str, live: frozenset[str], pinned: frozenset[str]) -> None:
        self._all = conversations
        self._agent = agent
        self._pinned = pinned
        self._store = conversations.internals.store
        self._files = BindingFiles(conversations)
        bindings = conversations.internals.agents.of(agent)
        self._path = bindings.path
        self._entries = bindings.current()
        self._going: dict[str, Reason] = {}
        self._stays = dict(self._protected(live))
        self._oldest_first = sorted(self._entries, key=lambda name: _age(self._entries[name]))

    def _protected(self, live: frozenset[str]) -> Iterator[tuple[str, Stays]]:
        keys = self._all.internals.keys
        main = self._all.internals.agents.of(self._agent).name(
            render_key(keys.routing.main(self._agent)), self._entries
        )
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
                self._archive(name, "old")
        for name in self._oldest_first:
            if self._left() > rules.max_entries:
                self._archive(name, "too many")
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

    def _archive(self, name: str, why: Reason) -> bool:
        """Mark a conversation to be archived unless something keeps it. Return whether it was marked by this call."""
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
        in_use = self._in_use  # before this process opens the file itself
        try:
            with RawFile(self._store.fs, path) as file:
                return identity(file.stat) in in_use or file.is_held()
        except (SessionNotFound, UnsafePath):
            return False  # it cannot be open as a session

    def _why(self, name: str, entry: SessionEntry) -> Stays:
        return self._stays.get(name) or ("undated" if entry.updated_at is None else "newest")

    # -- disk space

    def _fit(self, limit: int, now: int) -> _Disk:
        """Choose sessions for the trash, and the conversations that lose their sessions, until the rest fits."""
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
            if total > target and alone and self._archive(name, "disk"):
                held.subtract(own[name])
                total -= take(alone)
        sessions = prune._replace(candidates=tuple(chosen.values()), spared=(), bytes=used - total)
        return _Disk(sessions, used, max(0, total - limit))

    def _archived(self) -> Iterator[SessionEntry]:
        internals = self._all.internals
        for archive in Archives(internals.store, internals.home).list(self._agent):
            yield from map(SessionEntry, archive.entries.values())


class _Disk(NamedTuple):
    """The sessions to move to the trash, the size before, and what is above the limit afterwards."""

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


# -- applying and undoing


def apply_maintenance(
    conversations: Conversations,
    plan: MaintenancePlan,
    *,
    live: Collection[str] = (),
    pinned: Collection[str] = (),
    now: int | None = None,
) -> Maintained:
    """Apply a plan, except for what was used since; in mode `warn` change nothing. `live` and `pinned` as for the plan."""
    if plan.mode != "enforce":
        return Maintained(plan.summary)
    internals = conversations.internals
    moment = internals.store.now() if now is None else now
    archives = Archives(internals.store, internals.home)
    token = archives.new_token(plan.agent, moment)
    bindings = internals.agents.of(plan.agent)
    removed: list[str] = []
    refused: dict[str, str] = {}

    def change(entries: Entries) -> Changes:
        going: dict[str, SessionEntry] = {}
        refused.clear()
        for row in plan.going:
            entry = entries.get(row.key)
            if entry != row.entry or entry is None:
                refused[row.key] = "used since the plan was made"
            elif _is_live(row.key, internals.keys.spelling(plan.agent, row.key), entry, frozenset(live)):
                refused[row.key] = "in use"
            elif entry.session_id in pinned:
                refused[row.key] = "pinned"
            else:
                going[row.key] = entry
        removed[:] = going
        if going:
            archives.write(token, going, {row.key: row.why for row in plan.going}, moment)
        return dict.fromkeys(going)

    if plan.going:
        bindings.change(change, moment)
    done = Maintained(plan.summary, refused=tuple(refused.items()))
    if removed:
        done = done._replace(token=token, archive=archives.path_of(token), removed=tuple(removed))
    if plan.sessions is None:
        return done
    held = frozenset(BindingFiles(conversations).of_all(conversations.agents()))
    free = tuple(one for one in plan.sessions.candidates if one.path not in held)
    pruned = apply_prune(internals.store, plan.sessions._replace(candidates=free), pinned=pinned)
    return done._replace(deletions=pruned.deletions, refused=done.refused + pruned.refused, failure=pruned.failure)


def undo_maintenance(conversations: Conversations, token: str, *, now: int | None = None) -> Undone:
    """Restore the conversations of an archive, as used just now, and their sessions from the trash.

    A key that has another session keeps it; then the archive stays.
    """
    internals = conversations.internals
    moment = internals.store.now() if now is None else now
    archives = Archives(internals.store, internals.home)
    archive = archives.get(token)
    entries = {key: SessionEntry(members) for key, members in archive.entries.items()}
    missing = BindingFiles(conversations).restore(entries.values())
    bindings = internals.agents.of(archive.agent)
    refused: list[str] = []

    def change(current: Entries) -> Changes:
        refused.clear()
        back: dict[str, SessionEntry] = {}
        for key, entry in entries.items():
            name = bindings.name(internals.keys.spelling(archive.agent, key), current)
            if name not in current:
                back[key] = entry.touched({}, moment)  # otherwise the next run would archive it again
            elif current[name].session_id != entry.session_id:
                refused.append(key)
        return back

    bindings.change(change, moment)
    if not refused:
        archives.remove(token)
    return Undone(tuple(key for key in entries if key not in refused), tuple(refused), missing)


# -- in the gateway


class MaintenanceTask:
    """Runs maintenance for all agents of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._ahead: float | None = None  # seconds that the clock is ahead of the time since the machine was started
        self._settled = 0.0  # when it may be trusted again

    async def run(self) -> None:
        """Run maintenance for all agents until cancelled."""
        while True:
            try:
                if self._clock_jumped():
                    _LOG.warning(
                        "the clock has jumped; maintenance waits, because it would take used sessions for old ones"
                    )
                else:
                    await self._gateway.call(self._run_once)
            except SessileError as error:
                _LOG.warning("maintenance failed: %s", error.message)
            await anyio.sleep(_INTERVAL)

    def _clock_jumped(self) -> bool:
        """Return whether the clock has moved otherwise than time has passed, within the last day."""
        passed = time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))  # counts while asleep, too
        ahead, before = self._gateway.store.now() / 1000 - passed, self._ahead
        if before is None or abs(ahead - before) > _JUMP:
            self._ahead = ahead
            self._settled = passed if before is None else passed + _SETTLING
        return passed < self._settled

    def plan(self, agent: str) -> MaintenancePlan:
        """Return what would be archived now. Blocks."""
        rules = self._gateway.config.session.maintenance
        return plan_maintenance(self._gateway.conversations, agent, rules, live=self._live(), pinned=self._pinned())

    def apply(self, plan: MaintenancePlan) -> Maintained:
        """Apply a plan, if the mode is `enforce`. Blocks."""
        return apply_maintenance(self._gateway.conversations, plan, live=self._live(), pinned=self._pinned())

    def _run_once(self) -> None:
        for agent in self._gateway.conversations.agents():
            plan = self.plan(agent)
            done = self.apply(plan)
            for line in done.summary if plan.going or plan.sessions or done.failure else ():
                _LOG.warning("%s", line)
            if done.failure is not None:
                _LOG.warning("maintenance of %s stopped: %s", agent, done.failure)

    def _live(self) -> set[str]:
        return self._gateway.turns.busy()

    def _pinned(self) -> list[str]:
        return self._gateway.store.pins.names()
