"""Searching: words, substrings and regular expressions in all sessions, and prompts in the history."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import click

from sessile.agents.reader import agent_of
from sessile.agents.registry import AGENTS
from sessile.cli.command import App, verb
from sessile.cli.listing import chosen, filters, given_options, marked_title
from sessile.cli.output import Cell, Column
from sessile.core.digest import NO_TITLE
from sessile.core.visible import cut, visible_line, width
from sessile.core.words import FEW, FIELDS, INDEXED, NOT_INDEXED, Excerpt, Field, Query, Span, excerpt, marked, passages
from sessile.errors import Invalid, SessileError
from sessile.render.styled import Line, clipped
from sessile.render.styled import Span as Piece
from sessile.render.wording import many
from sessile.storage.base import NATIVE
from sessile.storage.catalog_rows import SessionRow
from sessile.storage.catch_up import Enough
from sessile.storage.filters import Filter
from sessile.storage.history import HistoryEntry, HistoryStorage
from sessile.storage.search import Needle, WordNeedle, scan_file
from sessile.storage.session_bytes import files_below

_INDEX_TIME = (
    3.0  # seconds for indexing new sessions at a terminal; the rest is read directly, and indexed another time
)
_EXCLUDED_TIME = 2.0  # seconds for counting hits in sessions that the options exclude
_MINIMUM_TITLE = 24  # columns that a title keeps
_LIMIT = 20  # default number of hits
_WORDS = {
    "text": "text",
    "thinking": "thinking",
    "tool_input": "tool input",
    "tool_result": "tool results",
    "other": "other data (system prompts, custom entries, details)",
}
_SHORT = _WORDS | {"other": "other data"}
_MOST_NOTICES = 3  # files that could not be read; more are only counted


class _Hit(NamedTuple):
    """A hit, from the index or from a scan."""

    path: str
    session_id: str | None
    entry_id: str | None
    offset: int
    field: Field
    excerpt: Excerpt
    rank: float | None


@verb(
    "sessile search webhook retry                 all words, best hits first",
    'sessile search -F "retry(" --in tool_result  a substring, only in tool output',
    "sessile search -E 'Error: \\w+' --since 7d    a regular expression",
    "sessile search 会话 -o | sessile show -       only ids, for another verb",
    name="search",
)
@click.argument("query", nargs=-1, required=True)
@click.option("-F", "--literal", is_flag=True, help="Search for a substring.")
@click.option("-E", "--regex", is_flag=True, help="Search for a regular expression.")
@click.option(
    "--in",
    "where",
    metavar="FIELDS",
    help=f"Only these fields: {', '.join(FIELDS)}, or all. Without it, the first three, and all if there are few hits.",
)
@click.option(
    "-C", "--context", "around", type=click.IntRange(0, 100), help="Number of lines to show before and after."
)
@click.option("--count", "only_count", is_flag=True, help="Print only the number of hits by field.")
@click.option("-o", "--only-ids", is_flag=True, help="Print only session ids.")
@click.option("-n", "--limit", type=click.IntRange(1), default=_LIMIT, help=f"Maximum number of hits ({_LIMIT}).")
@click.option("--jsonl", is_flag=True, help="Print each hit as a JSON line, as it is found.")
@filters
def search_verb(
    app: App,
    query: tuple[str, ...],
    literal: bool,
    regex: bool,
    where: str | None,
    around: int | None,
    only_count: bool,
    only_ids: bool,
    limit: int,
    jsonl: bool,
    **options: Any,
) -> int:
    """Search messages, thinking, tool calls and, if there are few hits, everything else, in all sessions and branches.

    All words must occur, in any order. Use "…" for a phrase and a trailing * for a prefix. A capital letter makes the
    search case-sensitive. With fewer than five hits, tool results and other data are searched too; hits say where they are.
    What was found but not shown is counted, with the option that shows it.
    """
    if literal and regex:
        raise Invalid("-F and -E exclude each other", hint="pass one of them")
    text = " ".join(query)
    fields = FIELDS if only_count and where is None else _fields(where)
    wanted = chosen(app, **options)._replace(hide=())  # a hidden session may have the words, too
    by_words = not (literal or regex)
    unindexed = _update(app, words=by_words)
    searching = _Search(app, text, fields, wanted, limit)
    if only_count:
        return _print_counts(app, searching.words(1_000_000) if by_words else searching.scan(regex), searching)
    hits = searching.words(limit + 1) if by_words else searching.scan(regex)
    shown = list(_printed(app, islice(hits, limit + 1), limit) if jsonl else islice(hits, limit + 1))
    more, shown = len(shown) > limit, shown[:limit]
    hidden = searching.hidden(shown)
    is_empty = not shown and not searching.titles
    trash = searching.count_trash(by_words, regex) if is_empty and (not by_words or Query(text).terms) else 0
    if app.json and not jsonl:
        app.out.document(
            "search/1",
            map(_described, shown),
            hidden=hidden,
            more=more,
            titles=searching.titles,
            unscanned=searching.unscanned,
            excluded=searching.excluded,
            unread=searching.pending,
            trash=trash,
            notices=searching.notices(),
        )
    elif only_ids:
        for path_or_id in dict.fromkeys(hit.session_id or hit.path for hit in shown):
            app.out.line(visible_line(path_or_id))
    elif not jsonl:
        _print(app, shown, searching.titles, text if around is not None else None, around or 0)
    for notice in searching.notices():
        app.out.note(f"note: {notice}")
    if is_empty:
        app.out.note("nothing found" if where is None else f"nothing found in {_listed(fields or ())}")
    if not app.json:
        _print_rest(app, searching, hidden, limit if more else None, unindexed, options)
        if trash:
            app.out.note(f"+{trash:,} in deleted sessions. Show: {app.command} trash")
    return 1 if is_empty else 0


def _listed(fields: Sequence[Field]) -> str:
    return ", ".join(_SHORT[field] for field in fields)


def _fields(where: str | None) -> tuple[Field, ...] | None:
    if where is None:
        return None
    names = [name.strip().replace("-", "_") for name in where.split(",") if name.strip()]
    unknown = [name for name in names if name not in (*FIELDS, "all")]
    if unknown or not names:
        raise Invalid(f"unknown field {where[:40]!r}", hint=f"use {', '.join(FIELDS)}, all")
    return FIELDS if "all" in names else tuple(field for field in FIELDS if field in names)


def _update(app: App, *, words: bool) -> int:
    """Update the index, for a limited time at a terminal. Return how many sessions are not indexed yet."""
    deadline = time.monotonic() + _INDEX_TIME if app.out.is_terminal else None
    with app.out.progress("Indexing text for search") as progress:
        caught_up = app.library.catch_up("index" if words else "look", progress=progress, deadline=deadline)
    app.say_notices()
    return caught_up.unindexed if words else 0


class _Search:
    """One search: its hits, and what it did not cover."""

    def __init__(self, app: App, text: str, fields: Sequence[Field] | None, wanted: Filter, limit: int) -> None:
        self.titles: Sequence[str] = []
        self.pending = 0
        self.unscanned = 0
        self.excluded = 0
        self._app = app
        self._text = text
        self._fields = fields
        self._asked = INDEXED if fields is None else fields
        self._wanted = wanted
        self._limit = limit
        self._matches: dict[str, int] = {}
        self._ignored: list[str] = []
        self._notices: list[str] = []

    def words(self, limit: int) -> Iterator[_Hit]:
        """Yield entries with all words: from the index, best first, then from what it does not have, newest first."""
        with self._app.out.progress("Searching") as progress:
            found = self._app.library.search(
                self._text, self._narrowed(), fields=self._fields, limit=limit, timeout=None, progress=progress
            )
        self.titles, self.pending, self._matches = found.titles, found.pending, found.matches
        self.unscanned, self.excluded = found.unscanned, found.excluded
        self._ignored = [f"ignored {part!r}, which is not a word; use -F" for part in found.ignored]
        self._notices += found.problems
        yield from (_Hit(*hit) for hit in found.hits)

    def scan(self, regex: bool) -> Iterator[_Hit]:
        """Yield texts that contain the substring or match the regular expression, newest first; others if there are few."""
        needle = Needle(self._text, regex=regex)
        beside: list[_Hit] = []
        found = 0
        self.unscanned = 1  # unless all of it is read
        for hit in self._scanned(needle, self._wanted):
            self._matches[hit.field] = self._matches.get(hit.field, 0) + 1
            if hit.field in self._asked:
                found += 1
                yield hit
            elif len(beside) <= self._limit:
                beside.append(hit)
        self.unscanned = 0
        yield from beside if self._fields is None and found < FEW else ()
        if not found and not beside and self._narrowed() is not None:
            self._count_excluded(needle)

    def _scanned(self, needle: Needle, wanted: Filter) -> Iterator[_Hit]:
        for row, match in self._app.library.scan(needle, wanted, fields=FIELDS, notices=self._notices):
            yield _Hit(row.path, row.id, match.entry_id, match.offset, match.field, match.excerpt, None)

    def _count_excluded(self, needle: Needle) -> None:
        library, deadline = self._app.library, time.monotonic() + _EXCLUDED_TIME
        known = {row.path for row in library.list(self._wanted).rows}
        rows = [row for row in library.list(Filter(hide=())).rows if row.path not in known]
        found = library.scan_rows(rows, needle, fields=FIELDS, notices=[], deadline=deadline)
        self.excluded = sum(1 for _ in found)

    def count_trash(self, by_words: bool, regex: bool) -> int:
        """Count the hits in deleted sessions, for a limited time."""
        fs, deadline, found = self._app.store.fs, time.monotonic() + _EXCLUDED_TIME, 0
        needle = WordNeedle(Query(self._text)) if by_words else Needle(self._text, regex=regex)
        try:
            for path, _ in files_below(fs, self._app.store.layout.trash):
                agent = agent_of(fs, path)
                name = NATIVE if agent is None else agent.name
                found += sum(
                    1 for _ in scan_file(fs, path, needle, AGENTS, fields=FIELDS, name=name, deadline=deadline)
                )
        except (Enough, SessileError, OSError):
            pass  # it is a hint
        return found

    def _narrowed(self) -> Filter | None:
        """Return the filter, or `None` if it matches all sessions, which is faster."""
        return None if self._wanted == Filter(hide=()) else self._wanted

    def hidden(self, shown: Sequence[_Hit]) -> dict[str, int]:
        """Count the hits in fields that were not asked for, without those that are shown."""
        counts = {field: self._matches.get(field, 0) for field in FIELDS if field not in self._asked}
        for hit in shown:
            if hit.field in counts:
                counts[hit.field] -= 1
        return {field: count for field, count in counts.items() if count > 0}

    def notices(self) -> list[str]:
        """Return what could not be searched: files, and lines of files."""
        damaged = self._wanted._replace(has=(*self._wanted.has, "finding"), limit=0)
        count = self._app.library.list(damaged).total
        doctor = f"{self._app.command} doctor"
        notices = self._notices
        if len(notices) > _MOST_NOTICES:
            notices = [f"{many(len(notices), 'file or line was', 'files or lines were')} not searched – {doctor}"]
        if count:
            sessions = many(count, "session has", "sessions have")
            notices = [*notices, f"{sessions} unreadable lines, which were not searched – {doctor}"]
        return [*self._ignored, *notices]


def _print_rest(
    app: App, searching: _Search, hidden: dict[str, int], limit: int | None, unindexed: int, options: dict[str, Any]
) -> None:
    """Print what was not shown, and the options that show it."""
    least = "at least " if searching.unscanned else ""
    for field, count in hidden.items():
        indexed = field in INDEXED
        app.out.note(f"+{'' if indexed else least}{count:,} in {_WORDS[field]}. Show: --in {field}")
    if limit is not None:
        app.out.note(f"… more than {limit} hits. Show: -n {limit * 5}")
    elif searching.unscanned and not any(field in hidden for field in NOT_INDEXED):
        app.out.note(f"… not all {_listed(NOT_INDEXED)} were read. Show: --in {','.join(NOT_INDEXED)}")
    if searching.excluded:
        given = given_options(options)
        app.out.note(f"+{searching.excluded:,} in sessions that the options exclude. Show: without {given}")
    if searching.pending:
        pending = many(searching.pending, "session was", "sessions were")
        app.out.note(f"… {pending} not searched: the time was up")
    elif unindexed:
        waiting = many(unindexed, "session is", "sessions are")
        app.out.note(f"… {waiting} not indexed yet; {'it was' if unindexed == 1 else 'they were'} read directly")


def _print(app: App, hits: Sequence[_Hit], titles: Sequence[str], query: str | None, around: int) -> None:
    """Print hits by session; the session with the best hit comes first."""
    rows = {row.path: row for row in app.library.list(Filter(hide=())).rows} if hits or titles else {}
    paths = dict.fromkeys([*(hit.path for hit in hits), *titles])
    by_path = {path: [hit for hit in hits if hit.path == path] for path in paths}
    if app.out.columns is None and not app.plain:
        columns = [Column(name) for name in ("session", "entry", "field", "text")]
        app.out.table(
            columns,
            ([Cell(h.session_id or ""), Cell(h.entry_id or ""), Cell(h.field), Cell(h.excerpt.text)] for h in hits),
        )
        return
    for path, found in by_path.items():
        row = rows.get(path)
        app.out.lines([_heading(app, path, row, bool(found))])
        for hit in found:
            lines = _hit_lines(hit) if query is None else _in_context(app, hit, query, around)
            app.out.lines(line if app.out.columns is None else clipped(line, app.out.columns) for line in lines)


def _heading(app: App, path: str, row: SessionRow | None, has_hits: bool) -> Line:
    """Return the line about a session with hits, or with a matching title."""
    if row is None:
        return (Piece(visible_line(path), "strong"),)
    age = app.out.moment(row.modified_ns // 1_000_000).text
    name = f"{'session ' if app.out.plain else ''}{visible_line(row.id or '')[:8]}  "
    facts = f"  {visible_line(app.tilde(row.cwd or ''))}  {app.library.agent_of(path) or ''}  {age}"
    facts += "" if has_hits else "  (title matches)"
    title = visible_line(marked_title(row) or NO_TITLE)
    if app.out.columns is not None:
        title = cut(title, max(_MINIMUM_TITLE, app.out.columns - len(name) - width(facts)))
    line = (Piece(name, "id"), Piece(title, "strong"), Piece(facts, "dim"))
    return line if app.out.columns is None else clipped(line, app.out.columns)


def _hit_lines(hit: _Hit) -> list[Line]:
    return [(*_entry_name(hit), Piece(f"{_SHORT[hit.field]}: ", "dim"), *_marked(hit.excerpt))]


def _entry_name(hit: _Hit) -> Line:
    """Return the id of the entry; entries of very old files have none."""
    return (Piece("  "), Piece(f"#{visible_line(hit.entry_id)}  ", "id")) if hit.entry_id else (Piece("  "),)


def _marked(part: Excerpt) -> Iterator[Piece]:
    """Yield the excerpt on one line, with its matches marked."""
    for text, is_match in marked(part):
        yield Piece(_spaced(text), "mark") if is_match else Piece(_spaced(text))


def _spaced(text: str) -> str:
    """Make a part of a line visible, keeping a space at either end."""
    shown = visible_line(text)
    before = " " if text[:1].isspace() and shown else ""
    return before + shown + (" " if text[-1:].isspace() else "")


def _in_context(app: App, hit: _Hit, query: str, around: int) -> Iterator[Line]:
    """Yield the lines of the text around its first match."""
    try:
        with app.store.open(hit.path, readonly=True) as session:
            entry = None if hit.entry_id is None else session.get_entry(hit.entry_id)
    except SessileError:
        entry = None  # the session is gone; the excerpt is still right
    text = passages(entry.readable).get(hit.field) if entry is not None else None
    if text is None:
        yield from _hit_lines(hit)
        return
    yield (*_entry_name(hit), Piece(f"{_SHORT[hit.field]}:", "dim"))
    spans = Query(query).find(text) or [(text.find(query), text.find(query) + len(query))]
    for line in _lines_around(text, spans[0], around):
        yield (Piece("    "), *line)


def _lines_around(text: str, span: Span, around: int) -> Iterator[list[Piece]]:
    start, end = max(0, span[0]), max(0, span[1])
    first, last = text.count("\n", 0, start), text.count("\n", 0, end)
    place = 0
    for number, line in enumerate(text.split("\n")):
        if first - around <= number <= last + around:
            inside = [(max(0, start - place), min(len(line), end - place))] if first <= number <= last else []
            yield list(_marked(excerpt(line, inside)))
        place += len(line) + 1


def _print_counts(app: App, hits: Iterable[_Hit], searching: _Search) -> int:
    counts = dict.fromkeys(FIELDS, 0)
    sessions = set()
    for hit in hits:
        counts[hit.field] += 1
        sessions.add(hit.path)
    for notice in searching.notices():
        app.out.note(f"note: {notice}")
    if app.json:
        app.out.document("search.count/1", counts=counts, sessions=len(sessions))
    else:
        columns = [Column("hits", right=True), Column("in")]
        app.out.table(columns, ([Cell(str(count)), Cell(_SHORT[field])] for field, count in counts.items() if count))
        app.out.note(f"in {many(len(sessions), 'session')}" if sessions else "nothing found")
    return 0 if sessions else 1


def _printed(app: App, hits: Iterable[_Hit], limit: int) -> Iterator[_Hit]:
    """Print up to `limit` hits as JSON lines, and pass all of them on."""
    for number, hit in enumerate(hits):
        if number < limit:
            app.out.record("search.hit/1", _described(hit))
        yield hit


def _described(hit: _Hit) -> dict[str, Any]:
    return {
        "session": hit.session_id,
        "path": hit.path,
        "entry": hit.entry_id,
        "offset": hit.offset,
        "field": hit.field,
        "text": hit.excerpt.text,
        "marks": hit.excerpt.marks,
        "rank": hit.rank,
    }


# -- history


@verb(
    "sessile history                the latest prompts",
    "sessile history webhook        prompts with a word",
    "sessile history --json -n 100",
    name="history",
)
@click.argument("words", nargs=-1)
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=50, help="Maximum number of prompts (50).")
def history_verb(app: App, words: tuple[str, ...], limit: int) -> int:
    """Search the prompts that you typed, in your own history and those of other agents."""
    found = []
    for source in app.library.sources:
        try:
            with HistoryStorage(f"{source.root}/history.db", readonly=True) as history:
                entries = history.search(" ".join(words), limit + 1) if words else history.get_recent(limit + 1)
        except SessileError as error:
            app.out.note(f"note: {error}")
            continue
        found += [(entry, source.agent) for entry in entries]
    found.sort(key=lambda item: item[0].created_at, reverse=True)
    more, found = len(found) > limit, found[:limit]
    if app.json:
        items = (
            {"prompt": entry.prompt, "cwd": entry.cwd, "agent": agent, "created": app.out.iso(_milliseconds(entry))}
            for entry, agent in found
        )
        app.out.document("history/1", items, more=more)
    else:
        columns = [Column("when", right=True), Column("agent"), Column("prompt", wide=True)]
        app.out.table(columns, ([app.out.moment(_milliseconds(e)), Cell(agent), Cell(e.prompt)] for e, agent in found))
        if not found:
            app.out.note("no prompt matches" if words else "the history is empty")
        elif more:
            app.out.note(f"… more than {limit} prompts. Show: -n {min(1000, limit * 5)}")
    return 0 if found else 1


def _milliseconds(entry: HistoryEntry) -> int:
    return int(entry.created_at.timestamp() * 1000)
