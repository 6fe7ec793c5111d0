"""Conversations of a store: from a message to its session, through keys that are bound to sessions.

    inbound → key → binding (`sessions.json` of the agent) → session of the store, in the agent's workspace

Rules:
- When `resolve` returns a session, its file and its binding are durable. If several threads or processes ask for a key
  at once, one creates the session and all get it. A session whose creator died before it was bound stays behind, empty.
- Whether a session is still fresh is checked when a message arrives, never in the background. Earlier sessions are
  remembered, and `resume` goes back to them.
- What a message says about its chat has precedence over the stored entry. System messages never end a session.
- A binding whose session has no file any more gets a new session.
- Counters and times are written at most once in `hold` seconds, and by `close`. Readers of this process see them at
  once.
- A store file that was edited is reloaded. A broken one is reported by `problems`: the last good copy stays in force
  for existing bindings, and a message that needs a new session is rejected with line and column of the error.
- Lists: if two stores have the same key, the later change wins, member by member, and the other fills gaps. The keys
  `global` and `unknown` are listed on request only. A conversation without a time of change is the oldest, and not
  active.

This module runs no turns and keeps no session open. All methods may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, tzinfo
from functools import partial
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from sessile.agents.openclaw.binding_store import Changes, Entries
from sessile.agents.openclaw.document import BrokenStore
from sessile.agents.openclaw.entries import (
    Count,
    SessionEntry,
    check_against,
    check_expected,
    checked_patch,
    combine_entries,
    count_usage,
    merge_entries,
    model_override,
    unknown_names,
)
from sessile.agents.openclaw.keys import GLOBAL, OTHER, UNKNOWN, SessionKey, normalize_agent_id, parse_key, render_key
from sessile.agents.openclaw.paths import PLACEHOLDER, STORE_FILE, StateFolder, agents_in
from sessile.core import resets
from sessile.core.resets import Previous, ResetConfig, ResetPolicy, previous_sessions, roll_over, with_session
from sessile.core.resets import resume as resumed
from sessile.core.usage import Usage
from sessile.errors import Conflict, Invalid, InvalidConfig, InvalidId, NotFound, SessionNotFound
from sessile.gateway.conversations.bindings import (
    Bound,
    BoundSessions,
    Internals,
    LiveAgents,
    LiveBindings,
    NewSession,
    Parent,
    Reason,
)
from sessile.gateway.conversations.inbound import Asked, Inbound, Keys, Routing, members_of, parent_key_of
from sessile.gateway.conversations.removed import DeletedBinding, DeletedBindings
from sessile.store import Store

_SEARCHED = ("displayName", "label", "subject", "sessionId")
_MINUTE = 60_000  # milliseconds


class Conversation(NamedTuple):
    """A key and its entry. `session_id` is `None` if the conversation has no session yet."""

    text: str
    agent: str
    entry: SessionEntry

    @property
    def key(self) -> SessionKey:
        return parse_key(self.text)

    @property
    def session_id(self) -> str | None:
        return self.entry.session_id

    @property
    def previous(self) -> tuple[Previous, ...]:
        """Return the earlier sessions, newest first."""
        return previous_sessions(self.entry)


class ConversationList(NamedTuple):
    """A list: the path of the store file, the rows, and how many the filter or the limit hides."""

    path: str
    rows: tuple[Conversation, ...]
    hidden: int


class ConversationFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of a list. `None` does not restrict."""

    active_minutes: float | None = None
    search: str | None = None
    label: str | None = None
    spawned_by: str | None = None
    kinds: tuple[str, ...] | None = None
    limit: int | None = None
    include_global: bool = False
    include_unknown: bool = False


def by_key(entries: Mapping[str, SessionEntry], spelling: Callable[[str], str]) -> dict[str, SessionEntry]:
    """Return the entries of a store file by canonical key."""
    found: dict[str, SessionEntry] = {}
    for name, entry in entries.items():
        key = spelling(name)
        found[key] = merge_entries(found[key], entry) if key in found else entry
    return found


def listed(
    stores: Mapping[str, Mapping[str, SessionEntry]],
    path: str,
    wanted: ConversationFilter,
    now: int,
    default_agent: str,
) -> ConversationList:
    """Return the conversations of some agents that pass a filter. `stores` are entries by agent and canonical key."""
    combined = combine_entries(stores)
    rows = [
        Conversation(text, _agent(text, default_agent), entry)
        for text, entry in combined.items()
        if _passes(text, entry, wanted, now)
    ]
    shown = rows if wanted.limit is None else rows[: max(wanted.limit, 0)]
    return ConversationList(path, tuple(shown), len(combined) - len(shown))


def _agent(text: str, default: str) -> str:
    first, _, rest = text.partition(":")
    return rest.partition(":")[0] if first == "agent" else default


def _passes(text: str, entry: SessionEntry, wanted: ConversationFilter, now: int) -> bool:
    if (text == GLOBAL and not wanted.include_global) or (text == UNKNOWN and not wanted.include_unknown):
        return False
    if wanted.active_minutes is not None and (entry.updated_at or 0) < now - wanted.active_minutes * _MINUTE:
        return False
    if wanted.label is not None and entry.get("label") != wanted.label:
        return False
    if wanted.spawned_by is not None and entry.get("spawnedBy") != wanted.spawned_by:
        return False
    if wanted.search and not _found(wanted.search.strip().lower(), [text, *map(entry.get, _SEARCHED)]):
        return False
    return wanted.kinds is None or _kind(text) in wanted.kinds


def _kind(text: str) -> str:
    try:
        return parse_key(text).kind
    except InvalidId:
        return OTHER  # a key edited by hand: it is listed, but cannot be used


def _found(text: str, values: Sequence[Any]) -> bool:
    return any(isinstance(value, str) and text in value.lower() for value in values)


# -- resets


class SessionEnds:
    """When sessions end, by configuration. `zone` is the time zone of policies without one.

    Raise `InvalidConfig` at once if a time zone is unknown.
    """

    def __init__(self, config: ResetConfig, zone: tzinfo) -> None:
        self._config = config
        self._zone = zone
        self._zones = {name: _zone_named(name, place) for place, name in resets.zones_named(config).items()}

    def policy(self, asked: Asked, entry: SessionEntry) -> ResetPolicy:
        """Return the reset policy of a conversation."""
        inbound = asked.inbound or Inbound()
        kind = resets.conversation_type(
            asked.key,
            chat_type=inbound.chat_type or entry.known("chatType"),
            in_thread=bool(inbound.parent_key or entry.known("parentSessionKey")),
        )
        channel = inbound.channel or asked.key.channel or entry.known("channel")
        return resets.resolve_policy(self._config, kind, channel)

    def reason(self, asked: Asked, entry: SessionEntry, now: int) -> resets.Reason | None:
        """Return why the session of an entry is over; `None` if it is not."""
        if asked.inbound is not None and asked.inbound.system:
            return None
        policy = self.policy(asked, entry)
        return resets.freshness(resets.times_of(entry), policy, now, self._zone_of(policy)).reason

    def _zone_of(self, policy: ResetPolicy) -> tzinfo:
        return self._zone if policy.time_zone is None else self._zones[policy.time_zone]


def _zone_named(name: str, place: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        hint = "use a name such as Europe/Berlin"
        raise InvalidConfig(f"invalid time zone {name[:80]!r} in {place}", hint=hint) from error


# -- conversations

_LIST_HINT = "list them with `sessile sessions` or GET /v1/sessions"

ResetReason = Literal["new", "reset"]

HOLD = 1.0  # seconds
PARENT_FORK_MAX_TOKENS = 100_000  # as documented; a thread of a longer chat starts empty


class Conversations:
    """All conversations of a store.

    `workspace` returns the folder in which an agent works. `zone` is the time zone of daily resets without one. With
    `hold=None` counters are written by `flush` and `close` only.
    """

    def __init__(
        self,
        store: Store,
        *,
        workspace: Callable[[str], str],
        routing: Routing | None = None,
        resets: ResetConfig | None = None,
        zone: tzinfo = UTC,
        parent_fork_max_tokens: int = PARENT_FORK_MAX_TOKENS,
        hold: float | None = HOLD,
    ) -> None:
        self._store = store
        self._keys = Keys(routing or Routing())
        self._ends = SessionEnds(resets or ResetConfig(), zone)
        self._home = StateFolder(store.layout.root)
        self._everywhere = f"{self._home.root}/agents/{PLACEHOLDER}/sessions/{STORE_FILE}"
        self._agents = LiveAgents(store, self._keys.spelling, hold)
        self._sessions = BoundSessions(store, self._home, workspace, parent_fork_max_tokens)
        self._deleted = DeletedBindings(store, self._home)
        self.internals = Internals(store, self._home, self._keys, self._agents, self._sessions)

    def __enter__(self) -> Conversations:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- sessions of conversations

    def resolve(self, source: Inbound | SessionKey | str, now: int | None = None) -> Bound:
        """Return the session of a message. Start one if needed."""
        moment = self._moment(now)
        asked = self._keys.asked(source)
        live = self._agents.of(asked.agent)
        entry = live.get(asked.text)
        bound = self._current(asked, entry, moment)
        if bound is None:
            bound = self._begin(live, asked, moment)
        self._note(bound, asked, moment)
        return bound

    def reset(
        self,
        key: SessionKey | str,
        reason: ResetReason = "reset",
        model: str | None = None,
        *,
        session_id: str | None = None,
        expected: str | None = None,
        now: int | None = None,
    ) -> Bound:
        """Start a new session for a key, with `model` from now on if given. `expected` is the id of the current session.

        With `session_id`, bind an existing session, such as a copy.
        """
        moment = self._moment(now)
        override = {} if model is None else model_override(model)
        asked = self._keys.asked(key)
        begun = None if session_id is None else self._sessions.existing(session_id)
        return self._begin(self._agents.of(asked.agent), asked, moment, reason, override, expected, begun)

    def resume(
        self, key: SessionKey | str, back: int = 1, *, expected: str | None = None, now: int | None = None
    ) -> Bound:
        """Go back to an earlier session of a key, counted from 1. The current session becomes the newest of the earlier ones.

        With `expected`, the id that a reset returned, undo just that reset or raise `Conflict`.
        """
        moment = self._moment(now)
        asked = self._keys.asked(key)
        live = self._agents.of(asked.agent)
        bound: list[Bound] = []

        def change(entries: Entries) -> Changes:
            name = live.name(asked.text, entries)
            entry = entries.get(name, SessionEntry({}))
            _check_session(entry, expected, live.path)
            new = SessionEntry(resumed(entry, back, moment))
            path = self._sessions.path_of(asked.agent, new)
            if path is None:
                hint = "it may be in the trash: run `sessile trash`"
                raise SessionNotFound(f"the file of session {new.session_id} is missing", path=live.path, hint=hint)
            bound[:] = [_bound(asked, new, path, previous_id=entry.session_id)]
            return {name: new}

        live.change(change, moment)
        return bound[0]

    def _current(self, asked: Asked, entry: SessionEntry | None, now: int) -> Bound | None:
        """Return the current session of a key, if it is not over."""
        if entry is None or entry.session_id is None or self._ends.reason(asked, entry, now) is not None:
            return None
        path = self._sessions.path_of(asked.agent, entry)
        return None if path is None else _bound(asked, entry, path)

    def _begin(
        self,
        live: LiveBindings,
        asked: Asked,
        now: int,
        forced: ResetReason | None = None,
        override: Mapping[str, Any] | None = None,
        expected: str | None = None,
        begun: NewSession | None = None,
    ) -> Bound:
        """Start a new session for a key, unless another process was faster. `forced` starts one in any case."""
        parent = parent_key_of(asked.inbound, asked.key, self._keys.routing)
        source = None if parent is None or forced else self._parent(parent)
        bound: list[Bound] = []
        made = [] if begun is None else [begun]  # once, however often `change` is called

        def change(entries: Entries) -> Changes:
            name = live.name(asked.text, entries)
            entry = entries.get(name)
            old = entry or SessionEntry({})
            if forced is None and (found := self._current(asked, entry, now)) is not None:
                bound[:] = [found]
                return {}
            _check_session(old, expected, live.path)
            over = self._ends.reason(asked, old, now) if old.session_id is not None else None
            reason: Reason = forced or over or "new"
            if not made:
                forkable = None if old.session_id or old.get("forkedFromParent") else source
                made.append(self._sessions.begin(asked.agent, now, forkable))
            session_id, path, forked = made[0]
            patch = {} if asked.inbound is None else members_of(asked.inbound, asked.key, parent)
            patch |= {**(override or {}), **({"forkedFromParent": True} if forked else {})}
            new = SessionEntry(roll_over(old, session_id, now, reason)).changed(patch)
            bound[:] = [_bound(asked, new, path, reason, old.session_id)]
            return {name: new}

        live.change(change, now)
        if begun is None and made and made[0].session_id != bound[0].session_id:
            self._sessions.discard(made[0])  # another process was faster, in a store without locks
        return bound[0]

    def policy(self, source: Inbound | SessionKey | str) -> ResetPolicy:
        """Return when sessions of a conversation end automatically."""
        asked = self._keys.asked(source)
        return self._ends.policy(asked, self._agents.of(asked.agent).get(asked.text) or SessionEntry({}))

    def _parent(self, parent: SessionKey) -> Parent | None:
        """Return the session that a thread continues, and its entry."""
        agent = parent.agent or self._keys.routing.default_agent
        live = self._agents.of(agent)
        entry = live.get(render_key(parent))
        path = None if entry is None else self._sessions.path_of(agent, entry)
        return None if entry is None or path is None else Parent(path, entry)

    def _note(self, bound: Bound, asked: Asked, now: int) -> None:
        """Record what a message says about its chat, and the time. A new binding has both already."""
        if bound.is_new or (asked.inbound is not None and asked.inbound.system):
            return
        members: dict[str, Any] = {}
        if asked.inbound is not None:
            current = members_of(asked.inbound, asked.key, parent_key_of(asked.inbound, asked.key, self._keys.routing))
            members = {name: value for name, value in current.items() if bound.entry.get(name) != value}
        count = Count(session_id=bound.session_id, at=now, members=members, interacted=now)
        self._agents.count(asked.agent, asked.text, count)

    # -- reading

    def get(self, key: SessionKey | str) -> Conversation | None:
        """Return a conversation; `None` if there is none."""
        asked = self._keys.asked(key)
        entry = self._agents.of(asked.agent).get(asked.text)
        return None if entry is None else Conversation(asked.text, asked.agent, entry)

    def bound(self, key: str, session_id: str) -> Bound | None:
        """Return a conversation with its current session or an earlier one; `None` if it does not have that session."""
        asked, found = self._keys.asked(key), self.get(key)
        members = None if found is None else with_session(found.entry, session_id)
        entry = SessionEntry(members or {})
        path = self._sessions.path_of(asked.agent, entry)
        return None if path is None else _bound(asked, entry, path)

    def path_of(self, key: SessionKey | str) -> str | None:
        """Return the file of a key's session; `None` if there is none."""
        asked = self._keys.asked(key)
        live = self._agents.of(asked.agent)
        entry = live.get(asked.text)
        return None if entry is None else self._sessions.path_of(asked.agent, entry)

    def list(
        self, wanted: ConversationFilter | None = None, *, agent: str | None = None, now: int | None = None
    ) -> ConversationList:
        """Return the conversations of all agents, or of one, newest first."""
        agents = self.agents() if agent is None else [normalize_agent_id(agent)]
        stores = {name: by_key(self._agents.of(name).current(), partial(self._keys.spelling, name)) for name in agents}
        path = self._home.store(agents[0]) if len(agents) == 1 else self._everywhere
        return listed(stores, path, wanted or ConversationFilter(), self._moment(now), self._keys.routing.default_agent)

    def agents(self) -> Sequence[str]:
        """Return the agents that have bindings, and the default agent."""
        return agents_in(self._store.fs, self._home.root, self._keys.routing.default_agent)

    def problems(self) -> Sequence[BrokenStore]:
        """Return the broken store files, whose last good copies are in force."""
        found = [self._agents.of(agent).problem for agent in self.agents()]
        return [problem for problem in found if problem is not None]

    # -- changing

    def patch(
        self,
        key: SessionKey | str,
        changes: Mapping[str, Any],
        expected: Mapping[str, Any] | None = None,
        *,
        now: int | None = None,
    ) -> Conversation:
        """Change members of an entry.

        Create it if needed. `None` clears a member. `expected` are values that members must have.
        """
        moment = self._moment(now)
        patch = checked_patch(changes)
        asked = self._keys.asked(key)
        live = self._agents.of(asked.agent)

        def change(entries: Entries) -> Changes:
            name = live.name(asked.text, entries)
            check_expected(entries.get(name), expected)
            check_against(patch, name, asked.key.kind, entries)
            return {name: entries.get(name, SessionEntry({})).touched(patch, moment)}

        live.change(change, moment)
        entry = live.get(asked.text)
        if entry is None:
            raise Conflict("the conversation was deleted concurrently", path=live.path, hint="try again")
        return Conversation(asked.text, asked.agent, entry)

    def delete(self, key: SessionKey | str, *, expected: str | None = None, now: int | None = None) -> DeletedBinding:
        """Remove a binding and move its session to the trash. `undo` restores both.

        Earlier sessions stay. So does a session that another key has, too, or that is outside the store.
        """
        moment = self._moment(now)
        asked = self._keys.asked(key)
        if asked.key == self._keys.routing.main(asked.agent):
            raise Invalid("the main conversation cannot be deleted", hint="reset it instead")
        live = self._agents.of(asked.agent)
        entry = live.get(asked.text)
        if entry is None:
            raise NotFound(f"conversation not found: {asked.text[:120]!r}", path=live.path, hint=_LIST_HINT)
        _check_session(entry, expected, live.path)
        path = None if entry.session_id is None else self._sessions.path_of(asked.agent, entry)
        note = self._deleted.note(asked.agent, asked.text, entry, path, moment)
        shared: list[bool] = []

        def change(entries: Entries) -> Changes:
            name = live.name(asked.text, entries)
            _check_session(entries.get(name, SessionEntry({})), entry.session_id, live.path)
            shared[:] = [any(e.session_id == entry.session_id for other, e in entries.items() if other != name)]
            return {name: None} if name in entries else {}

        live.change(change, moment)
        if path is not None and not shared[0] and self._store.layout.owns(path):
            self._store.delete(path, force=True)  # another gateway may still have it open, without a turn
        return note

    def undo(self, token: str, *, now: int | None = None) -> Conversation:
        """Undo a deletion: restore session and binding. Raise `Conflict` if the key is in use again."""
        moment = self._moment(now)
        note = self._deleted.get(token)
        live = self._agents.of(note.agent)
        entry = SessionEntry(note.entry)
        self._deleted.restore(note)

        def change(entries: Entries) -> Changes:
            name = live.name(note.key, entries)
            if name in entries and entries[name] != entry:
                hint = f"the session is {note.path}; delete the new conversation to restore the old one"
                raise Conflict("the key has a new conversation", path=live.path, hint=hint)
            return {name: entry}

        live.change(change, moment)
        self._deleted.forget(note)
        return Conversation(note.key, note.agent, entry)

    # -- counting

    def count(
        self,
        key: SessionKey | str,
        session_id: str,
        *,
        usage: Usage | None = None,
        cost: float | None = None,
        compactions: int = 0,
        members: Mapping[str, Any] | None = None,
        now: int | None = None,
    ) -> None:
        """Add the usage of a turn to the counters of its session, and set documented members.

        Do nothing if the key has another session by now: the transcript has the numbers.
        """
        values = dict(members or {})
        if odd := unknown_names(values):
            raise Invalid(f"unknown counter {odd[0][:80]!r}", hint="use the names of `sessions.json`")
        asked = self._keys.asked(key)
        moment = self._moment(now)
        sums = count_usage(usage, cost, compactions)
        counted = Count(session_id=session_id, at=moment, sums=sums, members=values)
        self._agents.count(asked.agent, asked.text, counted)

    def flush(self, *, now: int | None = None) -> None:
        """Write counters. If several files fail, raise the first error after trying all."""
        self._agents.flush(self._moment(now))

    def close(self) -> None:
        """Write counters, and stop writing automatically."""
        self._agents.close()

    def _moment(self, now: int | None) -> int:
        return self._store.now() if now is None else now


def _bound(
    asked: Asked,
    entry: SessionEntry,
    path: str,
    reason: Reason | None = None,
    previous_id: str | None = None,
) -> Bound:
    session_id = entry.session_id or ""
    return Bound(*asked[:3], session_id, path, entry, reason is not None, reason, previous_id)


def _check_session(entry: SessionEntry | None, expected: str | None, path: str) -> None:
    """Raise `Conflict` if a key does not have the expected session."""
    current = None if entry is None else entry.session_id
    if expected is not None and current != expected:
        raise Conflict(f"the conversation has the session {current} by now", path=path, hint="reload it and try again")
