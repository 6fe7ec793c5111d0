"""Operations on the whole gateway: search, usage, status, live events and maintenance.

Rules: only sessions of the gateway's own store are read. Silent answers are never found. `null` means unknown. What
blocks runs on the gateway's threads.
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
from sessile.gateway.conversations.maintenance import undo_maintenance
from sessile.gateway.conversations.registry import ConversationFilter
from sessile.gateway.http.conversations import AgentText, IdText, KeyText, conversation_of, place_of
from sessile.gateway.http.problems import public_text
from sessile.gateway.http.streams import EventStream, Waiting
from sessile.gateway.http.wire import RequestModel, ResponseModel, Routes
from sessile.gateway.turns.commands import chat_status
from sessile.gateway.turns.replies import is_silent_answer
from sessile.library import Library
from sessile.render.status import Status as ChatStatus
from sessile.render.status import session_kind, session_row, status_lines
from sessile.render.wording import prices_date
from sessile.storage.filters import Filter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessile.core.statistics import StatRow
    from sessile.gateway.conversations.maintenance import MaintenancePlan
    from sessile.gateway.conversations.registry import Conversation
    from sessile.gateway.service import Gateway
    from sessile.storage.search import Hit

routes = Routes()

Json = dict[str, Any]

_RECENT = 5  # conversations shown in the status of the gateway
_CATCH_UP = 5.0  # seconds to wait for the catalog; answers report what it does not cover yet
_DAY = 24 * 60 * 60 * 1000  # milliseconds
_EVERY = ConversationFilter(include_global=True, include_unknown=True)


# -- search


class SearchQuery(RequestModel, frozen=True):
    """The words that an entry must contain, and the maximum number of hits."""

    q: Annotated[str, Meta(min_length=1, max_length=1_000)]
    limit: Annotated[int, Meta(ge=1, le=200)] = 20


class Found(ResponseModel, frozen=True):
    """A matching entry. `marks` are ranges of the text that match. A lower `rank` is better."""

    session_id: str
    key: str | None
    entry_id: str | None
    field: str
    text: str
    marks: tuple[tuple[int, int], ...]
    rank: float | None


class Searched(ResponseModel, frozen=True):
    """The best hits, sessions whose titles match, and ignored words.

    `hidden` counts matches that are not among the hits, by field. `pending` sessions were not searched at all, `unscanned` ones
    not for tool results and other data, which are read if there are few hits.
    """

    hits: tuple[Found, ...]
    titles: tuple[str, ...]
    hidden: dict[str, int]
    pending: int
    unscanned: int
    ignored: tuple[str, ...]


@routes.get("/v1/search", query=SearchQuery, answers={200: Searched})
async def search(gateway: Gateway, query: SearchQuery) -> Searched:
    """Search the sessions of the store. To search the sessions of all agents, use /v1/view/search."""
    return await gateway.call(_search, gateway, query)


def _search(gateway: Gateway, query: SearchQuery) -> Searched:
    keys = {one.session_id: one.text for one in gateway.conversations.list().rows}
    with _library(gateway) as library:
        library.catch_up("index", deadline=time.monotonic() + _CATCH_UP)
        results = library.search(query.q, _once(library), limit=query.limit, timeout=_CATCH_UP)
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
    by_title = tuple(found for path in results.titles if (found := titles.get(path)) is not None)
    return Searched(
        hits=tuple(hits),
        titles=by_title,
        hidden=results.hidden,
        pending=results.pending,
        unscanned=results.unscanned,
        ignored=tuple(results.ignored),
    )


def _delivered(gateway: Gateway, hits: Sequence[Hit]) -> list[Hit]:
    """Return the hits without those in silent answers."""
    silent = set()
    for path in dict.fromkeys(hit.path for hit in hits):
        with gateway.store.open(path, readonly=True) as session:
            for hit in hits:
                entry = session.get_entry(hit.entry_id) if hit.path == path and hit.entry_id is not None else None
                message = None if entry is None else entry.stored.get("message")
                if isinstance(message, dict) and is_silent_answer(message):
                    silent.add((path, hit.entry_id))
    return [hit for hit in hits if (hit.path, hit.entry_id) not in silent]


def _once(library: Library) -> Filter | None:
    """Return the filter that finds each session once. It takes time, so it is used only if there may be imported copies."""
    return Filter(hide=("imported",)) if len(library.sources) > len(library.given) else None


def _library(gateway: Gateway) -> Library:
    return Library(gateway.store, cache=gateway.store.layout.cache, auto_catch_up=False)


# -- usage


class UsageQuery(RequestModel, frozen=True):
    """One conversation, one agent, or all; and the number of days."""

    key: KeyText | None = None
    agent: AgentText | None = None
    days: Annotated[int, Meta(ge=1, le=3_660)] = 30


class Spent(ResponseModel, frozen=True):
    """Usage. `null` means unknown. `unpriced` is the number of answers without a known price."""

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


class SpentBy(ResponseModel, frozen=True):
    """Usage of one session. `key` is `null` if no conversation has it."""

    key: str | None
    session_id: str
    spent: Spent


class Used(ResponseModel, frozen=True):
    """Usage since a time, by day in the gateway's time zone, by model and by session; `prices` is the date of the prices."""

    since: int
    total: Spent
    daily: tuple[Spent, ...]
    models: tuple[Spent, ...]
    sessions: tuple[SpentBy, ...]
    uncounted: int
    undated: int
    prices: str


@routes.get("/v1/usage", query=UsageQuery, answers={200: Used}, problems=(404,))
async def usage(gateway: Gateway, query: UsageQuery) -> Used:
    """Return tokens and cost by day, model and session."""
    if query.key is not None and query.agent is not None:
        raise InvalidQuery("key and agent exclude each other", hint="pass one of them, or none for all")
    return await gateway.call(_usage, gateway, query)


def _usage(gateway: Gateway, query: UsageQuery) -> Used:
    if query.key is not None:
        chosen: Sequence[Conversation] = [conversation_of(gateway, query.key)]
    else:
        chosen = gateway.conversations.list(agent=query.agent).rows
    keys = {session_id: one.text for one in reversed(chosen) for session_id in _sessions_of(one)}
    all_sessions = query.key is None and query.agent is None
    since = gateway.store.now() - query.days * _DAY
    wanted = Filter(hide=("imported",), since=utc_datetime(since * 1000), pinned=None if all_sessions else tuple(keys))
    with _library(gateway) as library:
        library.catch_up("count", deadline=time.monotonic() + _CATCH_UP)
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
        prices=prices_date()["date"],
    )


def _sessions_of(conversation: Conversation) -> list[str]:
    current = [] if conversation.session_id is None else [conversation.session_id]
    return [*current, *(one.session_id for one in conversation.previous)]


def _spent(row: StatRow) -> Spent:
    members = row._asdict()
    return Spent(**{name: members[name] for name in Spent.__struct_fields__})


# -- status


class StatusQuery(RequestModel, frozen=True):
    """The conversation to include, if any."""

    key: KeyText | None = None


class Status(ResponseModel, frozen=True):
    """The status of the gateway, and of the conversation in the query."""

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


@routes.get("/v1/status", query=StatusQuery, answers={200: Status}, problems=(404,))
async def status(gateway: Gateway, query: StatusQuery) -> dict[str, Any]:
    """Return the status of the gateway, including problems with its store files."""
    return await status_of(gateway, query.key)


async def status_of(gateway: Gateway, key: str | None = None) -> Json:
    """Return the status of the gateway, and of the conversation with `key`."""
    conversation = None
    if key is not None:
        status = await chat_status(gateway, await gateway.call(conversation_of, gateway, key))
        conversation = {**_document(status), "lines": status_lines(status)}
    states = Counter(turn.state for turn in gateway.turns.live())
    return {
        **await gateway.call(_whole, gateway),
        "turns": {state: states[state] for state in ("running", "queued")},
        "conversation": conversation,
    }


def _document(status: ChatStatus) -> Json:
    """Return the status of a conversation as a JSON object."""
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
            {"path": problem.path, "message": public_text(problem.message, problem.path), "hint": problem.hint}
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
        kind = "unknown"  # a key edited by hand
    members = session_row(row.text, kind, row.entry, now)
    return {**members, "contextWindow": members["contextWindow"] or gateway.window_of(row.agent, row.entry)}


# -- events


class EventsQuery(RequestModel, frozen=True):
    """One session, by its id or its conversation, or all sessions with activity."""

    session: IdText | None = None
    key: KeyText | None = None


class EventsHeaders(RequestModel, frozen=True, rename={"last_event_id": "last-event-id"}):
    """The last event that the client received."""

    last_event_id: Annotated[str, Meta(max_length=200)] | None = None


@routes.get("/v1/events", query=EventsQuery, headers=EventsHeaders, problems=(404, 409), streams=True)
async def events(gateway: Gateway, query: EventsQuery, headers: EventsHeaders) -> Waiting:
    """Stream live events of one session or of all, continuing after Last-Event-ID."""
    session_id = query.session
    if query.key is not None:
        if session_id is not None:
            raise InvalidQuery("key and session exclude each other", hint="pass one of them")
        session_id = (await gateway.call(place_of, gateway, query.key, None)).session_id

    async def stream() -> EventStream:
        return EventStream(await gateway.hub.subscribe(session_id, headers.last_event_id or None))

    # If subscribing takes time, clients that have given up and come again must not count twice.
    return Waiting(stream)


# -- maintenance


class Agent(RequestModel, frozen=True):
    """The agent; the default agent if omitted."""

    agent: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class Leaving(ResponseModel, frozen=True):
    """A conversation that would be archived, and why."""

    key: str
    session_id: str | None
    updated_at: int | None
    why: str


class Planned(ResponseModel, frozen=True):
    """What maintenance would do."""

    agent: str
    mode: str
    going: tuple[Leaving, ...]
    staying: int
    told: tuple[str, ...]


class Tidied(ResponseModel, frozen=True):
    """What maintenance did. The token undoes it."""

    agent: str
    mode: str
    removed: tuple[str, ...]
    refused: dict[str, str]
    told: tuple[str, ...]
    token: str | None


class UndoBody(RequestModel, frozen=True):
    """The token returned by maintenance."""

    token: Annotated[str, Meta(min_length=1, max_length=200)]


class Restored(ResponseModel, frozen=True):
    """The restored conversations, those whose key is in use again, and sessions that no longer exist."""

    keys: tuple[str, ...]
    refused: tuple[str, ...]
    missing: tuple[str, ...]


@routes.get("/v1/maintenance", query=Agent, answers={200: Planned})
async def plan(gateway: Gateway, query: Agent) -> Planned:
    """Show which conversations maintenance would archive. Nothing is changed."""
    found = await gateway.call(gateway.maintenance.plan, _agent_of(gateway, query))
    going = tuple(Leaving(key=e.key, session_id=e.session_id, updated_at=e.updated_at, why=e.why) for e in found.going)
    return Planned(agent=found.agent, mode=found.mode, going=going, staying=len(found.staying), told=found.summary)


@routes.post("/v1/maintenance", body=Agent, answers={200: Tidied}, problems=(409,))
async def tidy(gateway: Gateway, body: Agent) -> Tidied:
    """Archive the conversations that are due, if the maintenance mode is `enforce`."""
    found: MaintenancePlan = await gateway.call(gateway.maintenance.plan, _agent_of(gateway, body))
    done = await gateway.call(gateway.maintenance.apply, found)
    if done.failure is not None:
        raise done.failure
    return Tidied(
        agent=found.agent,
        mode=found.mode,
        removed=done.removed,
        refused=dict(done.refused),
        told=done.summary,
        token=done.token,
    )


@routes.post("/v1/maintenance/undo", body=UndoBody, answers={200: Restored}, problems=(404, 409))
async def undo(gateway: Gateway, body: UndoBody) -> Restored:
    """Undo maintenance: restore archived conversations."""
    done = await gateway.call(undo_maintenance, gateway.conversations, body.token)
    return Restored(keys=done.keys, refused=done.refused, missing=done.missing)


def _agent_of(gateway: Gateway, selected: Agent) -> str:
    return selected.agent or gateway.config.agents.default_id
