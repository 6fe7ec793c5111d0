"""Searching: words, substrings and regular expressions in all sessions, and prompts in the history."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import click

from sessile.cli.command import App, verb
from sessile.cli.listing import chosen, filters, marked_title
from sessile.cli.output import Cell, Column
from sessile.core.visible import cut, visible_line, width
from sessile.core.words import FIELDS, INDEXED, Excerpt, Field, Query, Span, excerpt, marked, passages
from sessile.errors import Invalid, SessileError
from sessile.render.styled import Line, clipped
from sessile.render.styled import Span as Piece
from sessile.render.wording import many
from sessile.storage.catalog_rows import SessionRow
from sessile.storage.filters import Filter
from sessile.storage.history import HistoryEntry, HistoryStorage
from sessile.storage.search import Needle, WordNeedle

_INDEX_TIME = 3.0  # seconds for indexing new sessions at a terminal; the rest is reported
_COUNT_TIME = 0.3  # seconds for counting hits in fields that are not searched
_MINIMUM_TITLE = 24  # columns that a title keeps
_LIMIT = 20  # default number of hits
_WORDS = {"text": "text", "thinking": "thinking", "tool_input": "tool input", "tool_result": "tool results"}


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
    'sessile search -F "retry(" --in tool_result  a substring in tool output',
    "sessile search -E 'Error: \\w+' --since 7d    a regular expression",
    "sessile search 会话 -o | sessile show -       only ids, for another verb",
    name="search",
)
@click.argument("query", nargs=-1, required=True)
@click.option("-F", "--literal", is_flag=True, help="Search for a substring.")
@click.option("-E", "--regex", is_flag=True, help="Search for a regular expression.")
@click.option(
    "--in", "where", metavar="FIELDS", help=f"Fields to search: {', '.join(FIELDS)}, or all (all but tool_result)."
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
    """Search messages, thinking, tool calls and tool output in all sessions and branches.

    All words must occur, in any order. Use "…" for a phrase and a trailing * for a prefix. A capital letter makes the
    search case-sensitive.
    """
    if literal and regex:
        raise Invalid("-F and -E exclude each other", hint="pass one of them")
    text = " ".join(query)
    fields = _fields(where)
    wanted = chosen(app, **options)
    by_words = not (literal or regex)
    _update(app, words=by_words)
    notices: list[str] = []
    searching = _Search(app, text, fields, wanted, notices)
    hits = searching.words(limit) if by_words else searching.scan(regex)
    if only_count:
        return _print_counts(app, searching.words(None) if by_words else hits, notices)
    shown = list(_printed(app, islice(hits, limit + 1), limit) if jsonl else islice(hits, limit + 1))
    more, shown = len(shown) > limit, shown[:limit]
    hidden = searching.unsearched() if by_words else {}
    notices += searching.unreadable() if by_words else ()
    if app.json and not jsonl:
        app.out.document(
            "search/1", map(_described, shown), hidden=hidden, more=more, titles=searching.titles, notices=notices
        )
    elif only_ids:
        for path_or_id in dict.fromkeys(hit.session_id or hit.path for hit in shown):
            app.out.line(visible_line(path_or_id))
    elif not jsonl:
        _print(app, shown, searching.titles, text if around is not None else None, around or 0)
    for notice in notices:
        app.out.note(f"note: {notice}")
    _print_rest(app, searching, hidden, more, limit)
    if not shown and not searching.titles:
        elsewhere = searching.elsewhere() if by_words else 0
        if elsewhere:
            app.out.note(f"nothing found; {elsewhere:,} hits in sessions that the options exclude")
        else:
            app.out.note("nothing found")
        return 1
    return 0


def _fields(where: str | None) -> tuple[Field, ...]:
    if where is None:
        return INDEXED
    names = [name.strip().replace("-", "_") for name in where.split(",") if name.strip()]
    unknown = [name for name in names if name not in (*FIELDS, "all")]
    if unknown or not names:
        raise Invalid(f"unknown field {where[:40]!r}", hint=f"use {', '.join(FIELDS)}, all")
    return FIELDS if "all" in names else tuple(field for field in FIELDS if field in names)


def _update(app: App, *, words: bool) -> None:
    """Update the index, for a limited time at a terminal; an interruption keeps what is done."""
    deadline = time.monotonic() + _INDEX_TIME if app.out.is_terminal else None
    with app.out.progress("Indexing text for search") as progress:
        app.library.catch_up("index" if words else "look", progress=progress, deadline=deadline)
    app.say_notices()


class _Search:
    """One search: its hits, and what it did not cover."""

    def __init__(self, app: App, text: str, fields: Sequence[Field], wanted: Filter, notices: list[str]) -> None:
        self.titles: list[str] = []
        self.pending = 0
        self.uncounted = 0
        self._app = app
        self._text = text
        self._fields = fields
        self._wanted = wanted
        self._notices = notices
        self._matches: dict[str, int] = {}

    def words(self, limit: int | None) -> Iterator[_Hit]:
        """Yield entries with all words: from the index, best first, then from tool results, newest first."""
        indexed = [field for field in self._fields if field in INDEXED]
        found = self._app.library.search(self._text, self._narrowed(), fields=indexed, limit=(limit or 1_000_000) + 1)
        self.titles, self.pending, self._matches = found.titles, found.pending, found.matches
        self._notices += [f"ignored {part!r}, which is not a word; use -F" for part in found.ignored]
        yield from (_Hit(*hit) for hit in found.hits)
        if "tool_result" in self._fields:
            yield from self._scan(WordNeedle(Query(self._text)), ["tool_result"])

    def scan(self, regex: bool) -> Iterator[_Hit]:
        """Yield texts that contain the substring or match the regular expression."""
        return self._scan(Needle(self._text, regex=regex), self._fields)

    def _scan(self, needle: Needle, fields: Sequence[Field]) -> Iterator[_Hit]:
        for row, match in self._app.library.scan(needle, self._wanted, fields=fields, notices=self._notices):
            yield _Hit(row.path, row.id, match.entry_id, match.offset, match.field, match.excerpt, None)

    def _narrowed(self) -> Filter | None:
        """Return the filter, or `None` if it matches all sessions, which is faster."""
        return None if self._wanted == Filter(hide=self._wanted.hide) else self._wanted

    def unsearched(self) -> dict[str, int]:
        """Count hits in fields that were not searched."""
        hidden = {field: count for field, count in self._matches.items() if field not in self._fields and count}
        if "tool_result" not in self._fields and Query(self._text).terms:
            deadline = time.monotonic() + _COUNT_TIME
            count, self.uncounted = self._app.library.count_results(self._text, self._wanted, deadline=deadline)
            hidden |= {"tool_result": count} if count else {}
        return hidden

    def unreadable(self) -> list[str]:
        """Return a notice about lines that could not be indexed; a scan reports them per file."""
        damaged = self._wanted._replace(has=(*self._wanted.has, "finding"), limit=0)
        count = self._app.library.list(damaged).total
        sessions = many(count, "session has", "sessions have")
        return [f"{sessions} unreadable lines, which were not searched – {self._app.command} doctor"] if count else []

    def elsewhere(self) -> int:
        """Count hits in sessions that the filter excludes."""
        return sum(self._app.library.search(self._text, limit=1).matches.values()) if self._narrowed() else 0


def _print_rest(app: App, searching: _Search, hidden: dict[str, int], more: bool, limit: int) -> None:
    if app.json:
        return
    for field, count in hidden.items():
        least = "at least " if field == "tool_result" and searching.uncounted else ""
        app.out.note(f"+{least}{count:,} in {_WORDS[field]}. Show: --in {field}")
    if more:
        app.out.note(f"… more than {limit} hits. Show: -n {limit * 5}")
    if searching.pending:
        pending = many(searching.pending, "session is", "sessions are")
        app.out.note(f"… {pending} not indexed yet; search again to continue")


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
    title = visible_line(marked_title(row) or "(no title)")
    if app.out.columns is not None:
        title = cut(title, max(_MINIMUM_TITLE, app.out.columns - len(name) - width(facts)))
    line = (Piece(name, "id"), Piece(title, "strong"), Piece(facts, "dim"))
    return line if app.out.columns is None else clipped(line, app.out.columns)


def _hit_lines(hit: _Hit) -> list[Line]:
    return [(*_entry_name(hit), Piece(f"{_WORDS[hit.field]}: ", "dim"), *_marked(hit.excerpt))]


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
    text = passages(entry).get(hit.field) if entry is not None else None
    if text is None:
        yield from _hit_lines(hit)
        return
    yield (*_entry_name(hit), Piece(f"{_WORDS[hit.field]}:", "dim"))
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


def _print_counts(app: App, hits: Iterable[_Hit], notices: list[str]) -> int:
    counts = dict.fromkeys(FIELDS, 0)
    sessions = set()
    for hit in hits:
        counts[hit.field] += 1
        sessions.add(hit.path)
    for notice in notices:
        app.out.note(f"note: {notice}")
    if app.json:
        app.out.document("search.count/1", counts=counts, sessions=len(sessions))
    else:
        columns = [Column("hits", right=True), Column("in")]
        app.out.table(columns, ([Cell(str(count)), Cell(_WORDS[field])] for field, count in counts.items() if count))
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
                entries = history.search(" ".join(words), limit) if words else history.get_recent(limit)
        except SessileError as error:
            app.out.note(f"note: {error}")
            continue
        found += [(entry, source.agent) for entry in entries]
    found.sort(key=lambda item: item[0].created_at, reverse=True)
    found = found[:limit]
    if app.json:
        items = (
            {"prompt": entry.prompt, "cwd": entry.cwd, "agent": agent, "created": app.out.iso(_milliseconds(entry))}
            for entry, agent in found
        )
        app.out.document("history/1", items)
    else:
        columns = [Column("when", right=True), Column("agent"), Column("prompt", wide=True)]
        app.out.table(columns, ([app.out.moment(_milliseconds(e)), Cell(agent), Cell(e.prompt)] for e, agent in found))
        if not found:
            app.out.note("no prompt matches" if words else "the history is empty")
    return 0 if found else 1


def _milliseconds(entry: HistoryEntry) -> int:
    return int(entry.created_at.timestamp() * 1000)
