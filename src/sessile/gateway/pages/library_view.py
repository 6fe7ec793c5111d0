"""Operations of the page that show all sessions: the overview, the list with its facets, search, and statistics.

Rules:
- Lists and statistics report only what the catalog knows, and how much it does not know yet. No session is opened for
  them. What a list hides is counted by reason. `null` means unknown.
- Search uses the index. What is not indexed is read on request or if there are few hits, as far as the time allows. What was
  not searched is reported: fields with matches, sessions that are not indexed yet, an exceeded time limit.
- Charts are drawn here, each with its table. Answers without a price or a time are reported in the notes, and not
  counted as zero.
- Texts are returned as they are stored. The page escapes them.

Everything that uses the library blocks.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta

from sessile.core import statistics
from sessile.core.dates import parse_moment
from sessile.core.text import utc_datetime
from sessile.core.usage import UNDATED
from sessile.core.words import FIELDS, Field, Query, marked
from sessile.errors import InvalidQuery, NotFound, SessileError
from sessile.gateway.http.problems import public_text
from sessile.gateway.http.wire import RequestModel, ResponseModel, Routes
from sessile.render import charts
from sessile.render.wording import many, price_notes
from sessile.storage.filters import HIDE, Filter
from sessile.upkeep.keep import expiring

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessile.core.statistics import Table, Usage
    from sessile.gateway.service import Gateway
    from sessile.library import Library
    from sessile.render.charts import Chart
    from sessile.storage.catalog_rows import SessionRow
    from sessile.storage.search import Hit, Results


routes = Routes()

NameText = Annotated[str, Meta(min_length=1, max_length=1_000)]

_NATIVE = "native"  # the format of writable files
_MAX_TAGS = 10_000  # that are cached
_MILLION = 1_000_000  # nanoseconds in a millisecond

_RECENT = 5  # sessions of the overview
_SOON = 7  # days ahead of a warning
_ACTIVITY, _COSTS = "26w", "30d"  # range of the charts of the overview

_MAX_DAYS = 366  # of a chart; for a longer range weeks are shown
_MAX_WEEKS = 520

_SCANNING = 10.0  # seconds for reading what is not indexed; `Rest` takes less if there are hits
_PROBLEMS = 3  # files that could not be read; more are only counted
_TITLES = 20  # sessions that are returned because of their titles


# -- overview


class Warned(ResponseModel, frozen=True):
    """A warning, and the page that shows it."""

    kind: Literal["damaged", "unreadable", "expiring", "store", "pending", "notice"]
    text: str
    href: str | None = None


class SourceTold(ResponseModel, frozen=True):
    """A folder with sessions. `newest` is the time of the last change."""

    agent: str
    path: str
    sessions: int
    newest: int | None


class TableTold(ResponseModel, frozen=True):
    """The table of a chart."""

    columns: list[str]
    rows: list[list[Any]]


class SvgTable(ResponseModel, frozen=True):
    """A chart, and its table."""

    svg: str
    table: TableTold


class Overview(ResponseModel, frozen=True):
    """The first page: recent sessions, warnings, sources, and activity."""

    recent: tuple[SessionCard, ...]
    warnings: tuple[Warned, ...]
    sources: tuple[SourceTold, ...]
    heatmap: SvgTable
    costs: SvgTable


@routes.get("/v1/view/overview", answers={200: Overview})
async def view_overview(gateway: Gateway) -> Overview:
    """Return an overview of all sessions."""
    return await gateway.call(_overview, gateway)


def _overview(gateway: Gateway) -> Overview:
    with gateway.shelf.asked() as library:
        recent = cards(library, library.list(Filter(limit=_RECENT)).rows, gateway.tags)
        warnings = tuple(_warnings(gateway, library))
        sources = tuple(_sources(library))
        lately, longer = (library.usage(used_since(gateway, library, since)) for since in (_COSTS, _ACTIVITY))
    return Overview(
        recent=recent,
        warnings=warnings,
        sources=sources,
        heatmap=_drawn(charts.activity(longer, gateway.zone, *days_since(gateway, _ACTIVITY))),
        costs=_drawn(charts.costs(lately, gateway.zone, *days_since(gateway, _COSTS))),
    )


def _drawn(chart: Chart) -> SvgTable:
    return SvgTable(svg=chart.svg, table=TableTold(columns=chart.columns, rows=chart.rows))


def _sources(library: Library) -> Iterator[SourceTold]:
    for source in library.sources:
        listing = library.list(Filter(below=[source.sessions], limit=1))
        newest = listing.rows[0].modified_ns // 1_000_000 if listing.rows else None
        yield SourceTold(agent=source.agent, path=source.sessions, sessions=listing.total, newest=newest)


def _warnings(gateway: Gateway, library: Library) -> Iterator[Warned]:
    for broken in gateway.conversations.problems():
        yield Warned(kind="store", text=f"conversations: {public_text(broken.message, broken.path)}", href="/gateway")
    listing = library.list(Filter(has=("finding",), limit=0))
    if listing.total:
        text = f"{many(listing.total, 'session has', 'sessions have')} unreadable lines"
        yield Warned(kind="damaged", text=text, href="/sessions?has=finding")
    unreadable = library.list(Filter(limit=0)).hidden.get("unreadable", 0)
    if unreadable:
        text = f"{many(unreadable, 'file is', 'files are')} not readable as a session"
        yield Warned(kind="unreadable", text=text, href="/sessions?all=true")
    yield from _expiring(gateway, library)
    if gateway.shelf.pending:
        text = f"{many(gateway.shelf.pending, 'session is', 'sessions are')} still being read: numbers are incomplete"
        yield Warned(kind="pending", text=text)
    for notice in library.notices:
        yield Warned(kind="notice", text=notice)


def _expiring(gateway: Gateway, library: Library) -> Iterator[Warned]:
    """Yield sessions that other agents will delete soon, and agents for which that is unknown."""
    for outlook in expiring(library, now=gateway.store.now(), within_days=_SOON, follow=os.path.realpath):
        agent, count = outlook.source.agent, len(outlook.sessions)
        href = f"/sessions?agent={quote(agent)}"
        if outlook.problem is not None:
            unknown = f"unknown when {agent} deletes sessions, because of its {outlook.problem}"
            yield Warned(kind="expiring", text=f"{unknown}; run `sessile keep --all` to keep them", href=href)
        elif count:
            expire = many(count, f"session of {agent} expires", f"sessions of {agent} expire")
            them = "it" if count == 1 else "them"
            text = f"{expire} within {_SOON} days; run `sessile keep` to keep {them}"
            yield Warned(kind="expiring", text=text, href=href)


# -- list


class SessionsQuery(RequestModel, frozen=True):
    """Filters of the list: words of title or first prompt, agent, project, model, properties and time."""

    q: Annotated[str, Meta(max_length=1_000)] = ""
    agent: NameText | None = None
    project: NameText | None = None
    model: NameText | None = None
    has: tuple[Annotated[str, Meta(max_length=100)], ...] = ()
    since: NameText | None = None
    sort: Literal["recent", "started", "cost", "tokens", "messages", "size"] = "recent"
    all: bool = False
    offset: Annotated[int, Meta(ge=0, le=2**31)] = 0
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class FacetCounts(ResponseModel, frozen=True):
    """How many sessions each filter value would leave, the largest first."""

    agent: dict[str, int]
    project: dict[str, int]
    model: dict[str, int]
    has: dict[str, int]


class SessionList(ResponseModel, frozen=True):
    """A page of sessions, the number of matches, of hidden sessions by reason, and of sessions that could not be judged yet."""

    total: int
    hidden: dict[str, int]
    unjudged: int
    rows: tuple[SessionCard, ...]
    facets: FacetCounts


@routes.get("/v1/view/sessions", query=SessionsQuery, answers={200: SessionList}, problems=(404,))
async def view_sessions(gateway: Gateway, query: SessionsQuery) -> SessionList:
    """List the sessions of all agents."""
    return await gateway.call(_sessions, gateway, query)


def _sessions(gateway: Gateway, query: SessionsQuery) -> SessionList:
    with gateway.shelf.asked() as library:
        wanted = chosen(gateway, library, agent=query.agent, project=query.project, since=query.since)._replace(
            words=query.q.split(),
            model=query.model,
            has=several(query.has),
            sort=query.sort,
            hide=() if query.all else HIDE,
        )
        listing = library.list(wanted._replace(limit=query.limit, offset=query.offset))
        facets = library.facets(wanted)
        return SessionList(
            total=listing.total,
            hidden=listing.hidden,
            unjudged=listing.unjudged,
            rows=cards(library, listing.rows, gateway.tags),
            facets=FacetCounts(agent=facets.below, project=facets.project, model=facets.model, has=facets.has),
        )


# -- search


class SearchQuery(RequestModel, frozen=True):
    """The words that an entry must contain ("…" is a phrase, a trailing * any ending), the fields to search, and filters."""

    q: Annotated[str, Meta(min_length=1, max_length=1_000)]
    where: tuple[Annotated[str, Meta(max_length=100)], ...] = msgspec.field(name="in", default=())
    agent: NameText | None = None
    project: NameText | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class Piece(ResponseModel, frozen=True):
    """A part of an excerpt."""

    text: str
    match: bool


class HitTold(ResponseModel, frozen=True):
    """A matching entry. `number` and `branch` are `null` if it is no longer in its session."""

    number: int | None
    entry: str | None
    field: Field
    excerpt: tuple[Piece, ...]
    branch: Literal["active", "abandoned"] | None


class Group(ResponseModel, frozen=True):
    """A session with its hits."""

    session: SessionCard
    hits: tuple[HitTold, ...]


class SearchedAll(ResponseModel, frozen=True):
    """The best hits, matches by field, sessions with matching titles, notes, and what was not searched.

    With few hits, those in fields that were not asked for follow. `pending` sessions were not searched at all, `unscanned` ones
    not for tool results and other data; `excluded` matches are in sessions that the filters leave out.
    """

    groups: tuple[Group, ...]
    matches: dict[str, int]
    pending: int
    unscanned: int
    excluded: int
    titles: tuple[SessionCard, ...]
    notes: tuple[str, ...]


@routes.get("/v1/view/search", query=SearchQuery, answers={200: SearchedAll}, problems=(404,))
async def view_search(gateway: Gateway, query: SearchQuery) -> SearchedAll:
    """Search the sessions of all agents."""
    return await gateway.call(_search, gateway, query, _fields(query.where))


def _fields(where: Sequence[str]) -> tuple[Field, ...] | None:
    names = several(where)
    unknown = [name for name in names if name not in (*FIELDS, "all")]
    if unknown:
        raise InvalidQuery(f"unknown field {unknown[0][:40]!r}", hint=f"use {', '.join(FIELDS)} or all")
    return None if not names else FIELDS if "all" in names else tuple(field for field in FIELDS if field in names)


def _search(gateway: Gateway, query: SearchQuery, fields: Sequence[Field] | None) -> SearchedAll:
    with gateway.shelf.asked() as library:
        wanted = chosen(gateway, library, agent=query.agent, project=query.project)._replace(hide=())
        narrowed = None if wanted == Filter(hide=()) else wanted  # without filters the index is faster
        results = library.search(query.q, narrowed, fields=fields, limit=query.limit, scan=False)
        rows = library.list(wanted).rows
        everything = library.list(Filter(hide=())).rows if narrowed is not None and not results.hits else []
    known = {row.path for row in rows}
    beyond = [row for row in everything if row.path not in known]
    # Files are read without the library, so that other requests need not wait.
    results = library.scan_rest(
        results, query.q, rows, fields=fields, limit=query.limit, beyond=beyond, timeout=_SCANNING
    )
    with gateway.shelf.asked() as library:
        found = _rows(library, results, query.q)
        by_path = dict(zip(found, cards(library, found.values(), gateway.tags), strict=True))
    return SearchedAll(
        groups=tuple(_groups(gateway, results.hits, by_path)),
        matches=results.matches,
        pending=results.pending,
        unscanned=results.unscanned,
        excluded=results.excluded,
        titles=tuple(by_path[path] for path in results.titles[:_TITLES] if path in by_path),
        notes=tuple(_problems(results)),
    )


def _problems(results: Results) -> Iterator[str]:
    """Yield what was ignored or could not be read."""
    yield from (f"{part!r} is not a word, and was ignored" for part in results.ignored)
    if len(results.problems) > _PROBLEMS:
        yield f"{len(results.problems):,} files or lines were not searched: run sessile doctor"
    else:
        yield from results.problems


def _rows(library: Library, results: Results, text: str) -> dict[str, SessionRow]:
    """Return the rows of sessions with hits or matching titles, by path."""
    ids, titles = {hit.session_id for hit in results.hits}, results.titles[:_TITLES]
    paths = {*(hit.path for hit in results.hits), *titles}
    rows = library.list(Filter(pinned=tuple(ids), hide=())).rows if ids else []
    if not paths <= {row.path for row in rows}:
        words = [term.text.rstrip("*") for term in Query(text).terms]
        rows += library.list(Filter(words=words, hide=())).rows if titles else []
    return {row.path: row for row in rows if row.path in paths}


def _groups(gateway: Gateway, found: Sequence[Hit], by_path: dict[str, SessionCard]) -> Iterator[Group]:
    """Yield the hits of each session, the session with the best hit first."""
    for path in dict.fromkeys(hit.path for hit in found):
        if path in by_path:
            hits = [hit for hit in found if hit.path == path]
            if (agent := by_path[path].agent) is not None:
                gateway.views.learn(path, agent)  # the library is busy: one question for each session adds up
            places = _places(gateway, path, [hit.entry_id for hit in hits])
            yield Group(
                session=by_path[path],
                hits=tuple(
                    HitTold(
                        number=number,
                        entry=hit.entry_id,
                        field=hit.field,
                        excerpt=tuple(Piece(text=text, match=is_match) for text, is_match in marked(hit.excerpt)),
                        branch=None if number is None else "active" if is_active else "abandoned",
                    )
                    for hit, (number, is_active) in zip(hits, places, strict=True)
                ),
            )


def _places(gateway: Gateway, path: str, entries: Sequence[str | None]) -> list[tuple[int | None, bool]]:
    """Return the numbers of entries, and whether they are on the current branch."""
    try:
        with gateway.views.opened(path) as view:
            active = frozenset() if view.leaf is None else frozenset(view.tree.path(view.leaf))
            numbers = [None if entry is None else view.tree.number(entry) for entry in entries]
    except SessileError:
        return [(None, False)] * len(entries)  # it was deleted a moment ago; the excerpts are still right
    return [(number, number in active) for number in numbers]


# -- statistics


class StatsQuery(RequestModel, frozen=True):
    """The start time, whether to group by day or week, and filters."""

    since: NameText = "30d"
    by: Literal["day", "week"] = "day"
    agent: NameText | None = None
    project: NameText | None = None


class ChartTold(ResponseModel, frozen=True):
    """A chart: SVG without scripts, and its table."""

    name: str
    title: str
    svg: str
    columns: list[str]
    rows: list[list[Any]]


class Statistics(ResponseModel, frozen=True):
    """Usage since a time. `notes` report what is not in the charts."""

    since: int
    by: Literal["day", "week"]
    charts: tuple[ChartTold, ...]
    notes: tuple[str, ...]


@routes.get("/v1/view/stats", query=StatsQuery, answers={200: Statistics}, problems=(404,))
async def view_stats(gateway: Gateway, query: StatsQuery) -> Statistics:
    """Return tokens, cost and tools of all sessions, as charts with tables."""
    return await gateway.call(_stats, gateway, query)


def _stats(gateway: Gateway, query: StatsQuery) -> Statistics:
    with gateway.shelf.asked() as library:
        usage = library.usage(used_since(gateway, library, query.since, agent=query.agent, project=query.project))
    first, last = days_since(gateway, query.since)
    weeks = query.by == "week" or (last - first).days > _MAX_DAYS
    if (last - first).days > _MAX_WEEKS * 7:
        first = _earliest(gateway, usage, last)
    zone = gateway.zone
    drawn = (
        charts.costs(usage, zone, first, last, weeks=weeks),
        charts.tokens(usage, zone, first, last, weeks=weeks),
        charts.cache_hits(usage, zone, first, last, weeks=weeks),
        charts.tools(usage),
        charts.models(usage),
        charts.projects(usage),
        charts.sessions(usage),
    )
    return Statistics(
        since=moment(gateway, query.since),
        by="week" if weeks else "day",
        charts=tuple(ChartTold(**chart._asdict()) for chart in drawn),
        notes=tuple(_notes(usage, statistics.daily(usage, zone), weeks=weeks and query.by == "day")),
    )


def used_since(
    gateway: Gateway, library: Library, since: str, *, agent: str | None = None, project: str | None = None
) -> Filter:
    """Return the filter for usage since a time."""
    # Sub-agents cost money, too; imported copies were paid already.
    return chosen(gateway, library, agent=agent, project=project, since=since)._replace(hide=("imported",))


def days_since(gateway: Gateway, since: str) -> tuple[date, date]:
    """Return the first day and today, in the time zone of the gateway."""
    first, last = (
        datetime.fromtimestamp(at / 1000, gateway.zone).date() for at in (moment(gateway, since), gateway.store.now())
    )
    return min(first, last), last


def _earliest(gateway: Gateway, usage: Usage, last: date) -> date:
    """Return the first day with any usage, where the axis starts."""
    days = [row.name for row in statistics.daily(usage, gateway.zone).rows if row.name != UNDATED]
    return min((date.fromisoformat(day) for day in days), default=last)


def _notes(usage: Usage, table: Table, *, weeks: bool) -> Iterator[str]:
    if weeks:
        yield "shown by week, because there are too many days"
    if usage.uncounted:
        yield f"{many(usage.uncounted, 'session')} not counted yet, and left out"
    for reason, count in usage.hidden.items():
        yield f"{many(count, 'session')} left out: {reason.replace('_', ' ')}"
    yield from price_notes(table.total, statistics.unpriced(usage))
    if len(usage.sessions) > charts.MAX_ROWS:
        yield f"tables show the first {charts.MAX_ROWS} of {len(usage.sessions):,} sessions"
    if table.undated:
        yield f"{many(table.undated, 'answer')} without a time left out"


# -- cards


class Last(ResponseModel, frozen=True):
    """The end of a session: the role of the last message, and its status."""

    role: str | None
    status: str | None


class SessionCard(ResponseModel, frozen=True):
    """A session in a list.

    `null` means unknown. Times are in milliseconds since 1970. `failures` are failed answers and tools.
    """

    id: str | None
    agent: str | None
    title: str | None
    project: str | None
    cwd: str | None
    first: str | None
    last: Last
    modified: int
    created: int | None
    entries: int | None
    messages: int | None
    branches: int | None
    compactions: int | None
    failures: int | None
    cost: float | None
    tokens: int | None
    pinned: bool
    draft: bool
    tag: str | None
    parent: str | None
    sub_agents: int
    size: int | None
    writable: bool
    problem: str | None


def cards(library: Library, rows: Iterable[SessionRow], tags: Tags) -> tuple[SessionCard, ...]:
    """Return the cards of sessions."""
    pins = frozenset(library.pins.names())
    return tuple(_card(library, row, pins, tags.of(library, row)) for row in rows)


def _card(library: Library, row: SessionRow, pins: frozenset[str], tag: str | None) -> SessionCard:
    counts = row.counts
    return SessionCard(
        id=row.id,
        agent=library.agent_of(row.path),
        title=row.title,
        project=posixpath.basename((row.cwd or "").rstrip("/")) or None,
        cwd=row.cwd,
        first=row.first_text,
        last=Last(role=row.last_role, status=row.last_status),
        modified=row.modified_ns // _MILLION,
        created=row.created_ms,
        entries=None if counts is None else counts.entries,
        messages=None if counts is None else counts.messages,
        branches=None if counts is None else counts.branches,
        compactions=None if counts is None else counts.compactions,
        failures=None if counts is None else counts.errors + counts.tool_failures,
        cost=None if counts is None else counts.cost,
        tokens=None if counts is None else counts.total_tokens,
        pinned=row.id in pins,
        draft=row.draft,
        tag=tag,
        parent=_parent(row),
        sub_agents=library.count_agents(row.path),
        size=row.size,
        writable=is_writable(library, row),
        problem=row.problem,
    )


def _parent(row: SessionRow) -> str | None:
    """Return the id of the parent session. Headers name its file, which ends with the id."""
    if row.parent is None:
        return None
    name = posixpath.basename(row.parent)
    return name.removesuffix(".jsonl").rpartition("_")[2] if name.endswith(".jsonl") else name or None


class Tags:
    """The tags of native sessions, which the catalog does not have. A tag is read once for each state of its file.

    Used by one thread at a time. Tags of other agents' sessions are `None`, because reading their files takes too long
    for a list.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[int | None, int, str | None]] = {}  # by path: size, time of change, tag

    def of(self, library: Library, row: SessionRow) -> str | None:
        """Return the tag of a session; `None` if it has none, or it is unknown."""
        if not is_writable(library, row):
            return None
        known = self._known.get(row.path)
        if known is None or known[:2] != (row.size, row.modified_ns):
            if len(self._known) >= _MAX_TAGS:
                self._known.clear()
            known = self._known[row.path] = (row.size, row.modified_ns, _read_tag(library, row.path))
        return known[2]


def _read_tag(library: Library, path: str) -> str | None:
    try:
        with library.store.open(path, readonly=True) as session:
            return session.tag
    except SessileError:
        return None  # it was deleted a moment ago


def is_writable(library: Library, row: SessionRow) -> bool:
    """Return whether a session can be written here."""
    return row.format == _NATIVE and library.store.layout.owns(row.path)


# -- filters


def chosen(
    gateway: Gateway,
    library: Library,
    *,
    agent: str | None = None,
    project: str | None = None,
    since: str | None = None,
) -> Filter:
    """Return a filter by agent, by project (its folder or name), and by time of change."""
    return Filter(
        project=project,
        below=None if agent is None else _folders(library, agent),
        since=None if since is None else utc_datetime(moment(gateway, since) * 1000),
    )


def moment(gateway: Gateway, since: str) -> int:
    """Parse a time, and return it in milliseconds since 1970."""
    return parse_moment(since, gateway.store.now(), gateway.zone)


def several(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the values of a parameter that may be repeated or comma-separated."""
    parts = (part.strip() for text in texts for part in text.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def _folders(library: Library, agent: str) -> list[str]:
    folders = [source.sessions for source in library.sources if source.agent == agent]
    if not folders:
        known = ", ".join(sorted({source.agent for source in library.sources}))
        raise NotFound(f"no sessions of agent {agent[:40]!r} found", hint=f"known agents: {known}")
    return folders
