"""Operations that look at everything: search, usage, the state of the gateway, live events.

Rules: only the sessions of the gateway's own store are looked at. An answer that was not to be delivered is not found.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from sessile import Filter, Library
from sessile.core import statistics
from sessile.errors import InvalidQuery
from sessile.gateway.delivering import is_silent_answer
from sessile.gateway.reporting import status_of
from sessile.gateway.sessions_api import AgentText, IdText, KeyText, conversation_of, place_of
from sessile.gateway.sse import EventStream
from sessile.gateway.wire import Taken, Told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessile import Conversation, Hit
    from sessile.core.statistics import StatRow
    from sessile.gateway.service import Gateway

_FILLING = 5.0  # seconds that somebody waits for the catalog; answers say what is missing in it
_DAY = 24 * 60 * 60 * 1_000_000_000  # nanoseconds


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
    return Library(gateway.store, cache=gateway.store.layout.cache)


# -- usage


class UsageQuery(Taken, frozen=True):
    """Of one conversation, of one agent, or of all; in the last days."""

    key: KeyText | None = None
    agent: AgentText | None = None
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
    since = gateway.store.now() * 1_000_000 - query.days * _DAY
    wanted = Filter(hide=("imported",), since=since, pinned=None if everything else tuple(keys))
    with _library(gateway) as library:
        library.catch_up("count", deadline=time.monotonic() + _FILLING)
        used = library.usage(wanted)
    daily = statistics.daily(used, gateway.zone)
    return Used(
        since=since // 1_000_000,
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
