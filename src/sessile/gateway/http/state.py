"""Operations that look at everything: search, usage, the state of the gateway, live events.

Rules: only the sessions of the gateway's own store are looked at. An answer that was not to be delivered is not found.

What the gateway tells of itself and of a conversation: the values of `/status`, and the document of its state.

Rules: what is unknown is `None`. The size of a context is that of the session's own entries, which say whether a provider
reported it; counters are those of the conversation's entry. Everything that blocks runs on the gateway's threads.

How the values look as text is `render.status`'s business.

Maintenance over HTTP: what would go, let it go, take it back.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from sessile import __version__
from sessile.core import statistics
from sessile.core.text import utc_datetime
from sessile.errors import InvalidId, InvalidQuery
from sessile.gateway.conversations.bindings import Bound
from sessile.gateway.conversations.conversations import ConversationFilter
from sessile.gateway.conversations.maintenance import undo_maintenance
from sessile.gateway.http.problems import tellable
from sessile.gateway.http.sessions import AgentText as sessions_api_AgentText
from sessile.gateway.http.sessions import IdText, KeyText, conversation_of, place_of
from sessile.gateway.http.streams import EventStream
from sessile.gateway.http.wire import Taken, Told
from sessile.gateway.turns.replies import is_silent_answer
from sessile.gateway.turns.turn import sending_of, toggles_of
from sessile.library import Library
from sessile.render.status import Queue, session_kind, session_row, status_lines
from sessile.render.status import Status as status_text_Status
from sessile.storage.filters import Filter
from sessile.upkeep.compactor import Compactor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessile.core.statistics import StatRow
    from sessile.core.tokens import Snapshot
    from sessile.gateway.conversations.conversations import Conversation
    from sessile.gateway.conversations.maintenance import MaintenancePlan
    from sessile.gateway.service import Gateway
    from sessile.gateway.turns.turn import Turn
    from sessile.storage.search import Hit


# --- reporting

Json = dict[str, Any]

_RECENT = 5  # conversations that a look at the whole gateway shows
_EVERY = ConversationFilter(include_global=True, include_unknown=True)


async def chat_status(gateway: Gateway, conversation: Bound | Conversation) -> status_text_Status:
    """Everything that `/status` tells of a conversation."""
    turns = turns_of(gateway, conversation.text)  # they live on the event loop
    return await gateway.call(_chat_status, gateway, conversation, sum(turn.state == "queued" for turn in turns))


async def status_of(gateway: Gateway, key: str | None = None) -> Json:
    """The state of the whole gateway as one document, and of a conversation if its key is given."""
    told = None
    if key is not None:
        status = await chat_status(gateway, await gateway.call(conversation_of, gateway, key))
        told = {**_document(status), "lines": status_lines(status)}
    states = Counter(turn.state for turn in gateway.turns.live())
    return {
        **await gateway.call(_whole, gateway),
        "turns": {state: states[state] for state in ("running", "queued")},
        "conversation": told,
    }


def turns_of(gateway: Gateway, key: str) -> list[Turn]:
    """The turns of a conversation that run or wait, also those of a session that it has left."""
    return [turn for turn in gateway.turns.live() if turn.key == key]


# -- one conversation


def _chat_status(gateway: Gateway, conversation: Bound | Conversation, waiting: int) -> status_text_Status:
    key, agent = conversation.text, conversation.agent
    current = gateway.conversations.get(key)
    entry = conversation.entry if current is None else current.entry
    toggles = toggles_of(entry)
    size = _size(gateway, conversation)
    settings = gateway.config.runner_of(agent, toggles.model)
    in_group = session_kind(conversation.key, entry.known("chatType")) == "group"
    return status_text_Status(
        version=__version__,
        now=gateway.store.now(),
        zone=gateway.zone,
        key=key,
        updated_at=_whole_number(entry.updated_at),
        model=gateway.model_of(agent, entry),
        auth=_auth(gateway, settings.provider),
        input_tokens=_whole_number(entry.known("inputTokens")),
        output_tokens=_whole_number(entry.known("outputTokens")),
        cost=entry.known("estimatedCostUsd"),
        context_tokens=None if size is None else size.tokens,
        context_estimated=size is not None and size.source == "estimate",
        context_window=gateway.window_of(agent, entry),
        compactions=_whole_number(entry.known("compactionCount")),
        runtime=settings.name,
        thinking=toggles.thinking,
        verbose=toggles.verbose,
        reasoning=toggles.reasoning,
        elevated=entry.known("elevatedLevel"),
        activation=entry.known("groupActivation") if in_group else None,
        queue=Queue(toggles.queue, depth=waiting, cap=gateway.config.limits.queued_turns),
        resets=gateway.conversations.policy(key),
        sending=sending_of(gateway.config.session.sending, key, entry).allowed,
    )


def _size(gateway: Gateway, conversation: Bound | Conversation) -> Snapshot | None:
    """How large the context of the current session is; `None` if there is none."""
    path = conversation.path if isinstance(conversation, Bound) else gateway.conversations.path_of(conversation.text)
    if path is None:
        return None
    with gateway.store.open(path, readonly=True) as session:  # to look at a session never makes one
        return Compactor(session).size()


def _auth(gateway: Gateway, provider: str | None) -> str | None:
    """How a provider knows us, as far as the configuration says."""
    settings = gateway.config.models.providers.get(provider or "")
    if settings is None:
        return None
    if settings.api_key is not None:
        return "api-key"
    return None if settings.api_key_env is None else f"api-key ({settings.api_key_env})"


def _whole_number(value: float | None) -> int | None:
    return None if value is None else int(value)


def _document(status: status_text_Status) -> Json:
    """A status as programs read it."""
    queue, resets = status.queue, status.resets
    return {
        "key": status.key,
        "updatedAt": status.updated_at,
        "model": status.model,
        "runtime": status.runtime,
        "inputTokens": status.input_tokens,
        "outputTokens": status.output_tokens,
        "estimatedCostUsd": status.cost,
        "contextTokens": status.context_tokens,
        "contextEstimated": status.context_estimated,
        "contextWindow": status.context_window,
        "compactionCount": status.compactions,
        "thinkingLevel": status.thinking,
        "verboseLevel": status.verbose,
        "reasoningLevel": status.reasoning,
        "queue": None if queue is None else {"mode": queue.mode, "depth": queue.depth, "cap": queue.cap},
        "reset": None if resets is None else {"atHour": resets.at_hour, "idleMinutes": resets.idle_minutes},
        "sending": status.sending,
    }


# -- the whole gateway


def _whole(gateway: Gateway) -> Json:
    now = gateway.store.now()
    rows = gateway.conversations.list(_EVERY).rows
    counts = Counter(row.agent for row in rows)
    return {
        "version": __version__,
        "startedAt": gateway.started_at,
        "uptimeMs": now - gateway.started_at,
        "now": now,
        "root": gateway.store.name,
        "agents": [_agent(gateway, agent, counts[agent]) for agent in gateway.conversations.agents()],
        "conversations": len(rows),
        "recent": [_recent(gateway, row, now) for row in rows[:_RECENT]],
        "problems": [
            {"path": problem.path, "message": tellable(problem.message, problem.path), "hint": problem.hint}
            for problem in gateway.conversations.problems()
        ],
    }


def _agent(gateway: Gateway, agent: str, conversations: int) -> Json:
    return {
        "id": agent,
        "model": gateway.model_of(agent, {}),
        "contextWindow": gateway.window_of(agent, {}),
        "runner": gateway.config.runner_of(agent).name,
        "workspace": gateway.workspace(agent),
        "conversations": conversations,
    }


def _recent(gateway: Gateway, row: Conversation, now: int) -> Json:
    try:
        kind = session_kind(row.key, row.entry.known("chatType"))
    except InvalidId:
        kind = "unknown"  # somebody wrote the key by hand
    told = session_row(row.text, kind, row.entry, now)
    return {**told, "contextWindow": told["contextWindow"] or gateway.window_of(row.agent, row.entry)}


# --- looking api

_FILLING = 5.0  # seconds that somebody waits for the catalog; answers say what is missing in it
_DAY = 24 * 60 * 60 * 1000  # milliseconds


# -- search


class SearchQuery(Taken, frozen=True):
    """Words, all of which an entry must hold."""

    q: Annotated[str, Meta(min_length=1, max_length=1_000)]
    limit: Annotated[int, Meta(ge=1, le=200)] = 20


class Found(Told, frozen=True):
    """An entry with the words; `marks` are places in the text. `rank` is the better the lower."""

    session_id: str
    key: str | None
    entry_id: str | None
    field: str
    text: str
    marks: tuple[tuple[int, int], ...]
    rank: float | None


class Searched(Told, frozen=True):
    """The best hits, the sessions whose titles have the words, and what was not looked at."""

    hits: tuple[Found, ...]
    titles: tuple[str, ...]
    pending: int
    ignored: tuple[str, ...]


async def search(gateway: Gateway, query: SearchQuery) -> Searched:
    """Find what was said in the sessions of the store."""
    return await gateway.call(_search, gateway, query)


def _search(gateway: Gateway, query: SearchQuery) -> Searched:
    keys = {one.session_id: one.text for one in gateway.conversations.list().rows}
    with _library(gateway) as library:
        library.catch_up("index", deadline=time.monotonic() + _FILLING)
        results = library.search(query.q, _once(library), limit=query.limit, count=False)
        titles = {row.path: row.id for row in library.list(Filter(hide=())).rows} if results.titles else {}
    hits = [
        Found(
            session_id=hit.session_id,
            key=keys.get(hit.session_id),
            entry_id=hit.entry_id,
            field=hit.field,
            text=hit.excerpt.text,
            marks=tuple((start, end) for start, end in hit.excerpt.marks),
            rank=hit.rank,
        )
        for hit in _delivered(gateway, results.hits)
    ]
    named = tuple(found for path in results.titles if (found := titles.get(path)) is not None)
    return Searched(hits=tuple(hits), titles=named, pending=results.pending, ignored=tuple(results.ignored))


def _delivered(gateway: Gateway, hits: Sequence[Hit]) -> list[Hit]:
    """The hits without those in answers that were not to be delivered."""
    silent = set()
    for path in dict.fromkeys(hit.path for hit in hits):
        with gateway.store.open(path, readonly=True) as session:
            for hit in hits:
                entry = session.get_entry(hit.entry_id) if hit.path == path and hit.entry_id is not None else None
                message = None if entry is None else entry.get("message")
                if isinstance(message, dict) and is_silent_answer(message):
                    silent.add((path, hit.entry_id))
    return [hit for hit in hits if (hit.path, hit.entry_id) not in silent]


def _once(library: Library) -> Filter | None:
    """What finds each session once: to choose takes time, and is needed only if there are copies of what may be imported."""
    return Filter(hide=("imported",)) if len(library.sources) > len(library.given) else None


def _library(gateway: Gateway) -> Library:
    return Library(gateway.store, cache=gateway.store.layout.cache, auto_catch_up=False)


# -- usage


class UsageQuery(Taken, frozen=True):
    """Of one conversation, of one agent, or of all; in the last days."""

    key: KeyText | None = None
    agent: sessions_api_AgentText | None = None
    days: Annotated[int, Meta(ge=1, le=3_660)] = 30


class Spent(Told, frozen=True):
    """What was used; `None` is unknown. `unpriced` are answers of which nobody knows what they cost."""

    name: str
    sessions: int
    answers: int | None
    input: int | None
    output: int | None
    cache_read: int | None
    cache_write: int | None
    total: int | None
    cost: float | None
    unpriced: int | None


class SpentBy(Told, frozen=True):
    """What the sessions of one conversation used; `None` is for those that no conversation has."""

    key: str | None
    session_id: str
    spent: Spent


class Used(Told, frozen=True):
    """What was used since a moment, by day in the zone of the gateway, by model and by session."""

    since: int
    total: Spent
    daily: tuple[Spent, ...]
    models: tuple[Spent, ...]
    sessions: tuple[SpentBy, ...]
    uncounted: int
    undated: int


async def usage(gateway: Gateway, query: UsageQuery) -> Used:
    """Tokens and money."""
    if query.key is not None and query.agent is not None:
        raise InvalidQuery("name either a key or an agent", hint="or none, for all")
    return await gateway.call(_usage, gateway, query)


def _usage(gateway: Gateway, query: UsageQuery) -> Used:
    if query.key is not None:
        chosen: Sequence[Conversation] = [conversation_of(gateway, query.key)]
    else:
        chosen = gateway.conversations.list(agent=query.agent).rows
    keys = {session_id: one.text for one in reversed(chosen) for session_id in _sessions_of(one)}
    everything = query.key is None and query.agent is None
    since = gateway.store.now() - query.days * _DAY
    wanted = Filter(hide=("imported",), since=utc_datetime(since * 1000), pinned=None if everything else tuple(keys))
    with _library(gateway) as library:
        library.catch_up("count", deadline=time.monotonic() + _FILLING)
        used = library.usage(wanted)
    daily = statistics.daily(used, gateway.zone)
    return Used(
        since=since,
        total=_spent(daily.total),
        daily=tuple(map(_spent, daily.rows)),
        models=tuple(map(_spent, statistics.by_model(used).rows)),
        sessions=tuple(
            SpentBy(key=keys.get(row.name), session_id=row.name, spent=_spent(row))
            for row in statistics.by_session(used).rows
        ),
        uncounted=used.uncounted,
        undated=daily.undated,
    )


def _sessions_of(conversation: Conversation) -> list[str]:
    current = [] if conversation.session_id is None else [conversation.session_id]
    return [*current, *(one.session_id for one in conversation.previous)]


def _spent(row: StatRow) -> Spent:
    members = row._asdict()
    return Spent(**{name: members[name] for name in Spent.__struct_fields__})


# -- the gateway


class StatusQuery(Taken, frozen=True):
    """Of the gateway, and of a conversation if one is named."""

    key: KeyText | None = None


class Status(Told, frozen=True):
    """The state of the gateway; `conversation` is that of the one that was named."""

    version: str
    started_at: int
    uptime_ms: int
    now: int
    root: str
    agents: tuple[dict[str, Any], ...]
    conversations: int
    recent: tuple[dict[str, Any], ...]
    problems: tuple[dict[str, Any], ...]
    turns: dict[str, int]
    conversation: dict[str, Any] | None


async def status(gateway: Gateway, query: StatusQuery) -> dict[str, Any]:
    """How the gateway is, and what is wrong with its store files."""
    return await status_of(gateway, query.key)


class EventsQuery(Taken, frozen=True):
    """Of one session, by its id or by its conversation, or of all that something happens in."""

    session: IdText | None = None
    key: KeyText | None = None


class EventsHeaders(Taken, frozen=True, rename={"last_event_id": "last-event-id"}):
    """Where a client goes on."""

    last_event_id: Annotated[str, Meta(max_length=200)] | None = None


async def events(gateway: Gateway, query: EventsQuery, headers: EventsHeaders) -> EventStream:
    """Live events: entries, words, turns and notices."""
    session_id = query.session
    if query.key is not None:
        if session_id is not None:
            raise InvalidQuery("name either a key or a session", hint="just one of them")
        session_id = (await gateway.call(place_of, gateway, query.key, None)).session_id
    return EventStream(await gateway.hub.subscribe(session_id, headers.last_event_id or None))


# --- upkeep api

AgentText = Annotated[str, Meta(min_length=1, max_length=200)]
Token = Annotated[str, Meta(min_length=1, max_length=200)]


class Agent(Taken, frozen=True):
    """Whose conversations are looked after."""

    agent: AgentText | None = None  # the default one


class Leaving(Told, frozen=True):
    """A conversation that would go, and why."""

    key: str
    session_id: str | None
    updated_at: int | None
    why: str


class Planned(Told, frozen=True):
    """What maintenance would do."""

    agent: str
    mode: str
    going: tuple[Leaving, ...]
    staying: int
    told: tuple[str, ...]


class Tidied(Told, frozen=True):
    """What maintenance did; the token takes it back."""

    agent: str
    mode: str
    removed: tuple[str, ...]
    refused: dict[str, str]
    told: tuple[str, ...]
    token: str | None


class UndoBody(Taken, frozen=True):
    """Which maintenance is taken back."""

    token: Token


class Restored(Told, frozen=True):
    """The conversations that are back, and those whose key has a newer one by now."""

    keys: tuple[str, ...]
    refused: tuple[str, ...]
    missing: tuple[str, ...]


async def plan(gateway: Gateway, query: Agent) -> Planned:
    """What would go; nothing is changed."""
    found = await gateway.call(gateway.upkeep.plan, _upkeep_api_agent(gateway, query))
    going = tuple(Leaving(key=e.key, session_id=e.session_id, updated_at=e.updated_at, why=e.why) for e in found.going)
    return Planned(agent=found.agent, mode=found.mode, going=going, staying=len(found.staying), told=found.told)


async def tidy(gateway: Gateway, body: Agent) -> Tidied:
    """Archive and remove what maintenance says, if its mode is `enforce`."""
    found: MaintenancePlan = await gateway.call(gateway.upkeep.plan, _upkeep_api_agent(gateway, body))
    done = await gateway.call(gateway.upkeep.apply, found)
    if done.failure is not None:
        raise done.failure
    return Tidied(
        agent=found.agent,
        mode=found.mode,
        removed=done.removed,
        refused=dict(done.refused),
        told=done.told,
        token=done.token,
    )


async def undo(gateway: Gateway, body: UndoBody) -> Restored:
    """Bring back what maintenance has removed."""
    done = await gateway.call(undo_maintenance, gateway.conversations, body.token)
    return Restored(keys=done.keys, refused=done.refused, missing=done.missing)


def _upkeep_api_agent(gateway: Gateway, asked: Agent) -> str:
    return asked.agent or gateway.config.agents.default_id
