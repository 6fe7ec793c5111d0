"""Operations that look at all sessions: the list with its facets, and the overview.

Rules: only what the catalog knows is told, and how much it does not know yet; nothing is opened for it. What a list hides is
counted by the reason.

Searching all sessions for the page: hits by session, the best first, each with its entry and its branch.

Rules: words are found by the index; what tools printed is not in it, and is read only if somebody asks for it, as far as the
time reaches. What was not searched is said: fields that have matches, sessions that are not indexed yet, time that was too short.

Statistics for the page: charts of what all sessions used, drawn here, each with its table.

Rules: what nobody priced, dated or counted yet is said in the notes, and not counted as nothing.

Sessions of all agents as the page lists them: what a card tells, and the questions that choose sessions.

Rules: what is unknown is `None`. A session can be written from here only if it lies in one's own store. Texts are told as they
are stored: whoever shows them escapes them.

What takes a library blocks.
"""

from __future__ import annotations

import os
import posixpath
import time
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
from sessile.core.words import FIELDS, INDEXED, Excerpt, Field, Query, marked
from sessile.errors import InvalidQuery, NotFound, SessileError
from sessile.gateway.http.problems import tellable
from sessile.gateway.http.wire import Taken, Told
from sessile.library import find_leaf
from sessile.render import charts
from sessile.render import charts as usage_charts
from sessile.render.wording import many
from sessile.storage.filters import HIDE, Filter
from sessile.storage.search import WordNeedle
from sessile.upkeep.keep import expiring

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessile.core.statistics import Table, Usage
    from sessile.gateway.pages.viewing import View
    from sessile.gateway.service import Gateway
    from sessile.library import Library
    from sessile.render.charts import Chart
    from sessile.storage.catalog_rows import SessionRow
    from sessile.storage.search import Hit, Results


# --- view cards

IdText = Annotated[
    str, Meta(min_length=1, max_length=1_000, description="The id of a session, or any other name of it.")
]
NameText = Annotated[str, Meta(min_length=1, max_length=1_000)]
NumberOf = Annotated[int, Meta(ge=0, le=2**31, description="The place of an entry in the file.")]

_NATIVE = "native"  # the format of files that can be written
_MOST_TAGS = 10_000  # that are remembered
_MILLION = 1_000_000  # nanoseconds in a millisecond


class Last(Told, frozen=True):
    """How a session ended: who spoke last, and how that stands."""

    role: str | None
    status: str | None


class Tags:
    """The tags of one's own sessions, which no catalog knows: each is read once for each state of its file.

    One thread at a time may ask; those of other agents are `None`, since reading their files takes too long for a list.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[int | None, int, str | None]] = {}  # by path: size, time of change, tag

    def of(self, library: Library, row: SessionRow) -> str | None:
        """The tag of a session; `None` if it has none, or nobody can tell."""
        if not is_writable(library, row):
            return None
        known = self._known.get(row.path)
        if known is None or known[:2] != (row.size, row.modified_ns):
            if len(self._known) >= _MOST_TAGS:
                self._known.clear()
            known = self._known[row.path] = (row.size, row.modified_ns, _read_tag(library, row.path))
        return known[2]


def _read_tag(library: Library, path: str) -> str | None:
    try:
        with library.store.open(path, readonly=True) as session:
            return session.tag
    except SessileError:
        return None  # it was there a moment ago


def is_writable(library: Library, row: SessionRow) -> bool:
    """Whether a session can be written from here."""
    return row.format == _NATIVE and library.store.layout.owns(row.path)


class SessionCard(Told, frozen=True):
    """A session in a list; `None` is unknown. Times are milliseconds since 1970; `failures` are failed answers and tools."""

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
    tag: str | None
    parent: str | None
    sub_agents: int
    size: int | None
    writable: bool
    problem: str | None


def cards(library: Library, rows: Iterable[SessionRow], tags: Tags) -> tuple[SessionCard, ...]:
    """The cards of some sessions."""
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
        tag=tag,
        parent=_parent(row),
        sub_agents=library.count_agents(row.path),
        size=row.size,
        writable=is_writable(library, row),
        problem=row.problem,
    )


def _parent(row: SessionRow) -> str | None:
    """The id of the session that this one comes from; headers name its file, which ends with the id."""
    if row.parent is None:
        return None
    name = posixpath.basename(row.parent)
    return name.removesuffix(".jsonl").rpartition("_")[2] if name.endswith(".jsonl") else name or None


# -- choosing


def chosen(
    gateway: Gateway,
    library: Library,
    *,
    agent: str | None = None,
    project: str | None = None,
    since: str | None = None,
) -> Filter:
    """The filter for sessions of an agent, of a project by its folder or the name of it, and changed since a moment."""
    return Filter(
        project=project,
        below=None if agent is None else _folders(library, agent),
        since=None if since is None else utc_datetime(moment(gateway, since) * 1000),
    )


def moment(gateway: Gateway, since: str) -> int:
    """The moment that a text means, in milliseconds since 1970."""
    return parse_moment(since, gateway.store.now(), gateway.zone)


def several(texts: Sequence[str]) -> tuple[str, ...]:
    """What was said several times, or with commas between."""
    parts = (part.strip() for text in texts for part in text.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def _folders(library: Library, agent: str) -> list[str]:
    folders = [source.sessions for source in library.sources if source.agent == agent]
    if not folders:
        known = ", ".join(sorted({source.agent for source in library.sources}))
        raise NotFound(f"no sessions of {agent[:40]!r} were found", hint=f"there are those of {known}")
    return folders


# -- entries


def entry_named(view: View, name: str) -> str:
    """The id of an entry that was named by its id or label, its number, or the beginning of its id."""
    session = view.session
    if name.isdecimal() and session.get_entry(name) is None and name not in session.get_labels().values():
        number = int(name)
        if number < len(view.rows):
            return view.rows[view.check(number)].id
    return find_leaf(session, name)


# --- view stats

_MOST_DAYS = 366  # that fit side by side; beyond, weeks are shown
_MOST_WEEKS = 520


class StatsQuery(Taken, frozen=True):
    """Since when, and whether by day or by week."""

    since: NameText = "30d"
    by: Literal["day", "week"] = "day"
    agent: NameText | None = None
    project: NameText | None = None


class ChartTold(Told, frozen=True):
    """A chart: SVG without script, and the table of what it shows."""

    name: str
    title: str
    svg: str
    columns: list[str]
    rows: list[list[Any]]


class Statistics(Told, frozen=True):
    """What was used since a moment; `notes` say what is not in the charts."""

    since: int
    by: Literal["day", "week"]
    charts: tuple[ChartTold, ...]
    notes: tuple[str, ...]


async def view_stats(gateway: Gateway, query: StatsQuery) -> Statistics:
    """Tokens, money and tools of all sessions, as charts."""
    return await gateway.call(_stats, gateway, query)


def _stats(gateway: Gateway, query: StatsQuery) -> Statistics:
    with gateway.shelf.asked() as library:
        usage = library.usage(used_since(gateway, library, query.since, agent=query.agent, project=query.project))
    first, last = days_since(gateway, query.since)
    weeks = query.by == "week" or (last - first).days > _MOST_DAYS
    if (last - first).days > _MOST_WEEKS * 7:
        first = _earliest(gateway, usage, last)
    zone = gateway.zone
    charts = (
        usage_charts.costs(usage, zone, first, last, weeks=weeks),
        usage_charts.tokens(usage, zone, first, last, weeks=weeks),
        usage_charts.cache_hits(usage, zone, first, last, weeks=weeks),
        usage_charts.tools(usage),
        usage_charts.models(usage),
        usage_charts.projects(usage),
        usage_charts.sessions(usage),
    )
    return Statistics(
        since=moment(gateway, query.since),
        by="week" if weeks else "day",
        charts=tuple(ChartTold(**chart._asdict()) for chart in charts),
        notes=tuple(_notes(usage, statistics.daily(usage, zone), weeks=weeks and query.by == "day")),
    )


def used_since(
    gateway: Gateway, library: Library, since: str, *, agent: str | None = None, project: str | None = None
) -> Filter:
    """The filter for what was used since then."""
    # What a sub-agent costs is paid, too; what was imported is not paid twice.
    return chosen(gateway, library, agent=agent, project=project, since=since)._replace(hide=("imported",))


def days_since(gateway: Gateway, since: str) -> tuple[date, date]:
    """The first day and today, in the zone of the gateway."""
    first, last = (
        datetime.fromtimestamp(at / 1000, gateway.zone).date() for at in (moment(gateway, since), gateway.store.now())
    )
    return min(first, last), last


def _earliest(gateway: Gateway, usage: Usage, last: date) -> date:
    """The first day on which anything was used: an axis need not begin before it."""
    days = [row.name for row in statistics.daily(usage, gateway.zone).rows if row.name != UNDATED]
    return min((date.fromisoformat(day) for day in days), default=last)


def _notes(usage: Usage, table: Table, *, weeks: bool) -> Iterator[str]:
    if weeks:
        yield "by week, since there are more days than fit side by side"
    if usage.uncounted:
        yield f"{many(usage.uncounted, 'session is', 'sessions are')} not counted yet, and left out"
    for reason, count in usage.hidden.items():
        yield f"{many(count, 'session')} left out: {reason.replace('_', ' ')}"
    total = table.total
    if total.unpriced:
        told = f"{total.unpriced:,} of {many(total.answers or 0, 'answer')}"
        yield f"{told} {'has' if total.unpriced == 1 else 'have'} no price: the cost is at least what is shown"
    if len(usage.sessions) > usage_charts.MAX_ROWS:
        yield f"tables have the first {usage_charts.MAX_ROWS} of {len(usage.sessions):,} sessions"
    if table.undated:
        yield f"{many(table.undated, 'answer without a time is', 'answers without a time are')} left out"


# --- view sessions

_RECENT = 5  # sessions that somebody may want to go on with
_SOON = 7  # days that a warning looks ahead
_ACTIVITY, _COSTS = "26w", "30d"  # how far back the charts of the overview go


# -- the list


class SessionsQuery(Taken, frozen=True):
    """Which sessions are listed: words of title or first prompt, and what they have in common."""

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


class FacetCounts(Told, frozen=True):
    """How many sessions each choice would leave, the most first."""

    agent: dict[str, int]
    project: dict[str, int]
    model: dict[str, int]
    has: dict[str, int]


class SessionList(Told, frozen=True):
    """A page of sessions, how many there are in all, how many are hidden, and how many nobody could judge yet."""

    total: int
    hidden: dict[str, int]
    unjudged: int
    rows: tuple[SessionCard, ...]
    facets: FacetCounts


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


# -- the overview


class Warned(Told, frozen=True):
    """Something that a person should know, and the page that shows it."""

    kind: Literal["damaged", "unreadable", "expiring", "store", "pending", "notice"]
    text: str
    href: str | None = None


class SourceTold(Told, frozen=True):
    """A folder with sessions; `newest` is when one of them was changed last."""

    agent: str
    path: str
    sessions: int
    newest: int | None


class TableTold(Told, frozen=True):
    """What a chart shows, in numbers."""

    columns: list[str]
    rows: list[list[Any]]


class SvgTable(Told, frozen=True):
    """A chart, and its table."""

    svg: str
    table: TableTold


class Overview(Told, frozen=True):
    """The first page: where to go on, what to know, and what was done."""

    recent: tuple[SessionCard, ...]
    warnings: tuple[Warned, ...]
    sources: tuple[SourceTold, ...]
    heatmap: SvgTable
    costs: SvgTable


async def view_overview(gateway: Gateway) -> Overview:
    """What there is, at a glance."""
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
        yield Warned(kind="store", text=f"conversations: {tellable(broken.message, broken.path)}", href="/gateway")
    listing = library.list(Filter(has=("finding",), limit=0))
    if listing.total:
        told = many(listing.total, "session has lines that", "sessions have lines that")
        yield Warned(kind="damaged", text=f"{told} could not be read", href="/sessions?has=finding")
    unreadable = library.list(Filter(limit=0)).hidden.get("unreadable", 0)
    if unreadable:
        told = many(unreadable, "file is no session that", "files are no sessions that")
        yield Warned(kind="unreadable", text=f"{told} can be read", href="/sessions?all=true")
    yield from _expiring(gateway, library)
    if gateway.shelf.pending:
        told = many(gateway.shelf.pending, "session is", "sessions are")
        yield Warned(kind="pending", text=f"{told} not indexed yet: numbers and search go on growing")
    for notice in library.notices:
        yield Warned(kind="notice", text=notice)


def _expiring(gateway: Gateway, library: Library) -> Iterator[Warned]:
    """What other agents are about to delete, and of which of them nobody can tell that."""
    for outlook in expiring(library, now=gateway.store.now(), within_days=_SOON, follow=os.path.realpath):
        agent, count = outlook.source.agent, len(outlook.sessions)
        href = f"/sessions?agent={quote(agent)}"
        if outlook.problem is not None:
            told = f"it is unknown when {agent} deletes sessions, because of its {outlook.problem}"
            yield Warned(kind="expiring", text=f"{told}; sessile keep --all keeps them", href=href)
        elif count:
            told = many(count, f"session of {agent} expires", f"sessions of {agent} expire")
            kept = "it" if count == 1 else "them"
            yield Warned(kind="expiring", text=f"{told} within {_SOON} days; sessile keep keeps {kept}", href=href)


# --- view search

_SCANNING = 2.0  # seconds for reading what tools printed
_COUNTING = 0.3  # seconds for counting it where nobody asked
_TITLES = 20  # sessions that are named for their titles


class SearchQuery(Taken, frozen=True):
    """Words, all of which an entry must hold; "…" is a phrase, and a trailing * any ending."""

    q: Annotated[str, Meta(min_length=1, max_length=1_000)]
    where: tuple[Annotated[str, Meta(max_length=100)], ...] = msgspec.field(name="in", default=())
    agent: NameText | None = None
    project: NameText | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class Piece(Told, frozen=True):
    """A part of an excerpt."""

    text: str
    match: bool


class HitTold(Told, frozen=True):
    """An entry with the words; number and branch are `None` where it cannot be found in its session any more."""

    number: int | None
    entry: str | None
    field: Field
    excerpt: tuple[Piece, ...]
    branch: Literal["active", "abandoned"] | None


class Group(Told, frozen=True):
    """A session with its hits."""

    session: SessionCard
    hits: tuple[HitTold, ...]


class SearchedAll(Told, frozen=True):
    """The best hits; matches by field, asked for or not; how many sessions wait for the index; what else to know."""

    groups: tuple[Group, ...]
    matches: dict[str, int]
    pending: int
    titles: tuple[SessionCard, ...]
    notes: tuple[str, ...]


class _Found(msgspec.Struct):
    """What a search has found so far."""

    hits: list[tuple[str, str | None, Field, Excerpt]]  # path, entry, field, excerpt
    matches: dict[str, int]
    notes: list[str]


async def view_search(gateway: Gateway, query: SearchQuery) -> SearchedAll:
    """Find words in the sessions of all agents."""
    return await gateway.call(_search, gateway, query, _fields(query.where))


def _fields(where: Sequence[str]) -> tuple[Field, ...]:
    names = several(where)
    unknown = [name for name in names if name not in (*FIELDS, "all")]
    if unknown:
        raise InvalidQuery(f"there is no field {unknown[0][:40]!r}", hint=f"there are {', '.join(FIELDS)}, all")
    return INDEXED if not names else FIELDS if "all" in names else tuple(field for field in FIELDS if field in names)


def _search(gateway: Gateway, query: SearchQuery, fields: Sequence[Field]) -> SearchedAll:
    with gateway.shelf.asked() as library:
        wanted = chosen(gateway, library, agent=query.agent, project=query.project)._replace(hide=())
        indexed = [field for field in fields if field in INDEXED]
        narrowed = None if wanted == Filter(hide=()) else wanted  # the index need not be told that all are meant
        results = library.search(query.q, narrowed, fields=indexed, limit=query.limit)
        found = _found(results)
        rows = library.list(wanted).rows if "tool_result" in fields else []
        if "tool_result" not in fields and Query(query.q).terms:
            _count_results(library, query.q, wanted, found)
    _scan_results(library, rows, query, found)
    with gateway.shelf.asked() as library:
        known = _rows(library, {*(hit.session_id for hit in results.hits)}, found, results.titles, query.q)
        told = dict(zip(known, cards(library, known.values(), gateway.tags), strict=True))
    return SearchedAll(
        groups=tuple(_groups(gateway, found, told)),
        matches=found.matches,
        pending=results.pending,
        titles=tuple(told[path] for path in results.titles[:_TITLES] if path in told),
        notes=tuple(found.notes),
    )


def _found(results: Results) -> _Found:
    notes = [f"{part!r} is no word, and was not looked for" for part in results.ignored]
    return _Found([_hit(hit) for hit in results.hits], dict(results.matches), notes)


def _hit(hit: Hit) -> tuple[str, str | None, Field, Excerpt]:
    return hit.path, hit.entry_id, hit.field, hit.excerpt


# -- what tools printed


def _count_results(library: Library, text: str, wanted: Filter, found: _Found) -> None:
    count, uncounted = library.count_results(text, wanted, deadline=time.monotonic() + _COUNTING)
    found.matches["tool_result"] = count
    if uncounted:
        found.notes.append("what tools printed was not counted to the end: there may be more matches in it")


def _scan_results(library: Library, rows: Sequence[SessionRow], query: SearchQuery, found: _Found) -> None:
    if not rows or not Query(query.q).terms:
        return
    needle, deadline = WordNeedle(Query(query.q)), time.monotonic() + _SCANNING
    count = 0
    for row, match in library.scan_rows(rows, needle, fields=("tool_result",), notices=found.notes, deadline=deadline):
        count += 1
        if len(found.hits) < query.limit:
            found.hits.append((row.path, match.entry_id, match.field, match.excerpt))
    found.matches["tool_result"] = count


# -- by session


def _rows(library: Library, ids: set[str], found: _Found, titles: Sequence[str], text: str) -> dict[str, SessionRow]:
    """The rows of sessions with hits, and of those whose titles have the words, by path."""
    paths = {*(path for path, *_ in found.hits), *titles[:_TITLES]}
    rows = library.list(Filter(pinned=tuple(ids), hide=())).rows if ids else []
    if not paths <= {row.path for row in rows}:
        words = [term.text.rstrip("*") for term in Query(text).terms]
        rows += library.list(Filter(words=words, hide=())).rows if titles else []
    if not paths <= {row.path for row in rows}:
        rows = library.list(Filter(hide=())).rows  # those in which only a tool printed it
    return {row.path: row for row in rows if row.path in paths}


def _groups(gateway: Gateway, found: _Found, told: dict[str, SessionCard]) -> Iterator[Group]:
    """The hits of each session, the session with the best one first."""
    for path in dict.fromkeys(path for path, *_ in found.hits):
        if path in told:
            hits = [hit[1:] for hit in found.hits if hit[0] == path]
            places = _places(gateway, path, [entry for entry, *_ in hits])
            yield Group(
                session=told[path],
                hits=tuple(
                    HitTold(
                        number=number,
                        entry=entry,
                        field=field,
                        excerpt=tuple(Piece(text=text, match=is_match) for text, is_match in marked(part)),
                        branch=None if number is None else "active" if is_active else "abandoned",
                    )
                    for (entry, field, part), (number, is_active) in zip(hits, places, strict=True)
                ),
            )


def _places(gateway: Gateway, path: str, entries: Sequence[str | None]) -> list[tuple[int | None, bool]]:
    """Where entries are in their session, and whether the leaf's branch has them."""
    try:
        with gateway.views.opened(path) as view:
            active = frozenset() if view.leaf is None else frozenset(view.tree.path(view.leaf))
            numbers = [None if entry is None else view.tree.number(entry) for entry in entries]
    except SessileError:
        return [(None, False)] * len(entries)  # it was there a moment ago; the excerpts are still right
    return [(number, number in active) for number in numbers]
