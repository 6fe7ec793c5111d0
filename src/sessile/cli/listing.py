"""Listing sessions: `ls`, the filter options that other verbs share, and warnings about sessions that expire soon."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from sessile.agents.registry import AGENTS
from sessile.cli.arguments import other_worktrees
from sessile.cli.command import App, verb
from sessile.cli.output import Cell, Column, money, size_of
from sessile.core.text import utc_datetime
from sessile.core.usage import amount
from sessile.errors import Invalid, NotFound
from sessile.library import INSIDE_TIMEOUT
from sessile.render.styled import Style
from sessile.render.wording import many
from sessile.storage.catalog_rows import SessionRow
from sessile.storage.drafts import published_path
from sessile.storage.filters import HIDE, Filter

if TYPE_CHECKING:
    from sessile.upkeep.keep import Outlook

_LONG_PATH = 28  # characters of a path that is not shortened
_SHORT = 8  # minimum length of a shortened id
_TERMINAL_LIMIT = 50  # default number of rows at a terminal
_HAS = ("branch", "error", "image", "compaction", "label", "finding")
_SORTS = ("recent", "started", "cost", "tokens", "messages", "size")
_SORT_COLUMN = {"recent": "age"}  # the column that shows an order, where its name differs

_COLUMNS = {
    "id": Column("id"),
    "age": Column("age", right=True),
    "started": Column("started", right=True),
    "agent": Column("agent"),
    "project": Column("project", soft=True),
    "title": Column("title", wide=True),
    "messages": Column("messages", right=True),
    "branches": Column("branches", right=True),
    "tokens": Column("tokens", right=True),
    "cost": Column("cost", right=True),
    "size": Column("size", right=True),
    "model": Column("model", soft=True),
    "status": Column("status"),
    "path": Column("path", soft=True),
}
_DEFAULT = ("id", "age", "agent", "project", "messages", "title")
_LONG = ("id", "age", "agent", "project", "messages", "branches", "tokens", "cost", "size", "model", "title")


# -- filters


def filters(function: Any) -> Any:
    """Add the options that filter sessions to a verb."""
    options = (
        click.option(
            "-p", "--project", metavar="FOLDER", help="Only this project and its git worktrees; . is this folder."
        ),
        click.option("-a", "--agent", metavar="NAME", help="Only this agent: sessile, pi, claude, codex …"),
        click.option("--since", metavar="WHEN", help="Changed since then: 14d, yesterday, 2026-11-01 …"),
        click.option("--until", metavar="WHEN", help="Changed before then."),
        click.option("--model", metavar="NAME", help="Only sessions with answers of this model."),
        click.option(
            "--has", metavar="WHAT", help=f"Only sessions with {', '.join(_HAS)}; separate several with commas."
        ),
        click.option("--named", is_flag=True, help="Only sessions with a title."),
        click.option("--pinned", is_flag=True, help="Only pinned sessions."),
        click.option(
            "-A", "--all", "everything", is_flag=True, help="Include empty sessions, sub-agents and unreadable files."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _moment(app: App, text: str | None) -> datetime | None:
    if text is None:
        return None
    from sessile.core.dates import parse_moment  # saves start-up time: most listings have no date

    return utc_datetime(parse_moment(text, int(time.time() * 1000), app.out.zone) * 1000)


def chosen(app: App, *, words: Sequence[str] = (), **options: Any) -> Filter:
    """Return the filter for the options of `filters`."""
    since, until = (_moment(app, options[name]) for name in ("since", "until"))
    has = tuple(name.strip() for name in (options["has"] or "").split(",") if name.strip())
    project = None if options["project"] is None else project_of(app, options["project"])
    return Filter(
        project=project,
        worktrees=() if project is None or "/" not in project else other_worktrees(project, app.out.note),
        below=None if options["agent"] is None else _places_of(app, options["agent"]),
        model=options["model"],
        has=has,
        words=words,
        named=options["named"],
        pinned=app.library.pins.names() if options["pinned"] else None,
        since=since,
        until=until,
        hide=() if options["everything"] else HIDE,
    )


def project_of(app: App, project: str) -> str:
    """Return the folder of a project, or its name if there is no such folder here."""
    path = os.path.abspath(os.path.join(app.here, os.path.expanduser(project)))
    return path if "/" in project or project.startswith(".") or os.path.isdir(path) else project


def _places_of(app: App, agent: str) -> list[str]:
    places = [source.sessions for source in app.library.sources if source.agent == agent]
    if not places:
        known = sorted({source.agent for source in app.library.sources})
        raise NotFound(f"no sessions of agent {agent[:40]!r}", hint=f"available agents: {', '.join(known)}")
    return places


def catch_up(app: App, *, everything: bool = True) -> int:
    """Read and count what has changed: a list that is half read would have to be asked for again.

    Without `everything`, sessions inside of databases are only counted for a moment, because they may be many gigabytes, and
    their databases tell the rest. Return how many are not counted.
    """
    with app.out.progress("Reading sessions") as progress:
        done = app.library.catch_up("count", progress=progress, inside=None if everything else INSIDE_TIMEOUT)
    app.say_notices()
    return done.uncounted


# -- ls


@verb(
    "sessile ls                            the newest sessions",
    "sessile ls webhook --since 2w         a word in the title or first prompt, last two weeks",
    "sessile ls -p . --sort cost -l        most expensive in this project, more columns",
    "sessile ls --has branch,error --json  for programs",
    name="ls",
)
@click.argument("words", nargs=-1)
@filters
@click.option("--sort", type=click.Choice(_SORTS), default="recent", help="Sort order (recent).")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(0),
    help=f"Maximum number of sessions; 0 for all (terminal: {_TERMINAL_LIMIT}).",
)
@click.option("-l", "--long", is_flag=True, help="Show more columns.")
@click.option("--columns", metavar="NAMES", help=f"Columns to show: {', '.join(_COLUMNS)}.")
@click.option("--header", is_flag=True, help="Print column names in a pipe too.")
@click.option("--tree", is_flag=True, help="Nest forks and sub-agents below their parents.")
def ls_verb(
    app: App,
    words: tuple[str, ...],
    sort: str,
    limit: int | None,
    long: bool,
    columns: str | None,
    header: bool,
    tree: bool,
    **options: Any,
) -> int:
    """List sessions, newest first. WORDS must occur in the title or the first prompt."""
    names = _names(columns, long, sort if app.out.is_terminal else None)
    wanted = chosen(app, words=words, **options)._replace(sort=sort)
    uncounted = catch_up(app, everything=long or tree or columns is not None or wanted.needs_counts)
    if limit is None:
        limit = _TERMINAL_LIMIT if app.out.is_terminal and not app.json else 0
    if tree:
        wanted = wanted._replace(hide=[reason for reason in wanted.hide if reason != "sub_agent"])
    listing = app.library.list(wanted._replace(limit=limit or None))
    rows = list(_nested(listing.rows)) if tree else [(row, 0) for row in listing.rows]
    pins = set(app.library.pins.names())
    hidden = {**listing.hidden, **({"beyond_limit": more} if (more := listing.total - len(listing.rows)) else {})}
    if app.json:
        items = (described(app, row, pins) for row, _ in rows)
        app.out.document(
            "ls/1", items, hidden=hidden, excluded=excluded_by(app, wanted), unjudged=listing.unjudged, next=None
        )
    else:
        short = _short_ids(app, [row for row, _ in rows])
        cells = ([_cell(app, name, row, depth, short, pins) for name in names] for row, depth in rows)
        app.out.table([_COLUMNS[name] for name in names], cells, header=header)
        if more and rows:
            app.out.note(f"… {more:,} more. Show: -n 0")
        if uncounted:
            app.out.note(
                f"… {many(uncounted, 'session', 'sessions')} in databases not counted yet. Count: {app.command} ls -l"
            )
        if listing.unjudged:
            app.out.note(f"… {listing.unjudged:,} could not be filtered: not counted yet")
        if rows:
            app.out.hidden(listing.hidden, "-A")
            say_excluded(app, wanted, options, words)
        else:
            _widen(app, wanted, options, words)
        if options["everything"]:
            say_copies(app)
    warn(app)
    return 0 if rows else 1


def print_newest(app: App, count: int) -> None:
    """Print the newest sessions as `ls` does."""
    rows = app.library.list(Filter(limit=count)).rows
    short, pins = _short_ids(app, rows), set(app.library.pins.names())
    cells = ([_cell(app, name, row, 0, short, pins) for name in _DEFAULT] for row in rows)
    app.out.table([_COLUMNS[name] for name in _DEFAULT], cells)


def _names(columns: str | None, long: bool, sort: str | None) -> Sequence[str]:
    if columns is None:
        default = _LONG if long else _DEFAULT
        # At a terminal the sort column is shown; programs get a fixed set of columns.
        by = None if sort is None else _SORT_COLUMN.get(sort, sort)
        return default if by is None or by in default else (*default[:-1], by, default[-1])
    names = [name.strip() for name in columns.split(",") if name.strip()]
    unknown = [name for name in names if name not in _COLUMNS]
    if unknown or not names:
        raise Invalid(f"unknown column {(unknown or [columns])[0][:40]!r}", hint=f"use {', '.join(_COLUMNS)}")
    return names


EXCLUDING = {  # options that narrow a selection, by the name of their value
    "project": "-p",
    "agent": "-a",
    "since": "--since",
    "until": "--until",
    "model": "--model",
    "has": "--has",
    "named": "--named",
    "pinned": "--pinned",
}


def given_options(options: Mapping[str, Any]) -> str:
    """Return the options that narrow the selection, as they are typed."""
    return " ".join(option for name, option in EXCLUDING.items() if options.get(name))


def excluded_by(app: App, wanted: Filter) -> int:
    """Return how many sessions a filter excludes, without those that it hides."""
    everything = Filter(hide=wanted.hide, limit=0)
    if wanted._replace(limit=0, sort=everything.sort) == everything:
        return 0
    listing, matching = app.library.list(everything), app.library.list(wanted._replace(limit=0))
    return max(0, listing.total - matching.total)


def say_excluded(app: App, wanted: Filter, options: Mapping[str, Any], words: Sequence[str] = ()) -> None:
    """Print how many sessions the options exclude, and how to see them."""
    if excluded := excluded_by(app, wanted):
        without = " ".join(filter(None, (given_options(options), *words)))
        app.out.note(f"… {excluded:,} excluded by the options. Show: without {without}")


def _widen(app: App, wanted: Filter, options: Mapping[str, Any], words: Sequence[str]) -> None:
    """Print what a wider filter would find, and how, after an empty result."""
    everything = app.library.list(Filter(hide=(), limit=0)).total
    if not everything:
        app.out.note("no sessions yet; run `sessile sources` to see the folders, `sessile demo` to try it out")
        return
    wider = {
        "in other projects (without -p)": wanted._replace(project=None) if wanted.project else None,
        "at other times (without --since, --until)": wanted._replace(since=None, until=None)
        if wanted.since or wanted.until
        else None,
        "of other agents (without -a)": wanted._replace(below=None) if wanted.below else None,
        "among hidden sessions (-A)": wanted._replace(hide=()) if wanted.hide else None,
    }
    found = {where: app.library.list(question).total for where, question in wider.items() if question is not None}
    elsewhere = ", ".join(f"{count} {where}" for where, count in found.items() if count)
    without = " ".join(filter(None, (given_options(options), *words)))
    rest = f"{many(everything, 'session')} in total (ls -A)" if without else ""
    app.out.note("; ".join(filter(None, ("no session matches", elsewhere or rest))))


def _nested(rows: Sequence[SessionRow]) -> Iterator[tuple[SessionRow, int]]:
    """Yield sessions with their depth: forks and sub-agents follow their parent."""
    by_path = {published_path(row.path): row for row in rows}  # forks name a draft as it will be named
    children: dict[str | None, list[SessionRow]] = {}
    for row in rows:
        parents = (row.parent, *_owners(row.path))
        parent = next((path for path in parents if path in by_path and by_path[path] is not row), None)
        children.setdefault(parent, []).append(row)
    waiting = [(row, 0) for row in reversed(children.get(None, []))]
    seen: set[str] = set()
    while waiting:
        row, depth = waiting.pop()
        if row.path not in seen:
            seen.add(row.path)
            yield row, depth
            waiting += [(child, depth + 1) for child in reversed(children.get(published_path(row.path), []))]
    yield from ((row, 0) for row in rows if row.path not in seen)  # cycles of forks


def _owners(path: str) -> Iterator[str]:
    """Yield the session files whose artifacts folder would contain a file, nearest first."""
    while (folder := os.path.dirname(path)) != path:
        yield f"{folder}.jsonl"
        path = folder


def _short_ids(app: App, rows: Sequence[SessionRow]) -> dict[str, str]:
    """Return the shortest unique prefix of each id; the whole id in a pipe."""
    ids = sorted({row.id for row in rows if row.id})
    if app.out.columns is None:
        return {whole: whole for whole in ids}
    lengths = dict.fromkeys(ids, _SHORT)
    for first, second in pairwise(ids):
        shared = 1 + next((n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))
        lengths[first] = max(lengths[first], shared)
        lengths[second] = max(lengths[second], shared)
    return {whole: whole[:length] for whole, length in lengths.items()}


def _cell(app: App, name: str, row: SessionRow, depth: int, short: dict[str, str], pins: set[str]) -> Cell:
    counts = row.counts
    if name == "id":
        return Cell(short.get(row.id or "", "-"), "id", row.id or "")
    if name == "age":
        return app.out.moment(row.modified_ns // 1_000_000)
    if name == "started":
        return app.out.moment(row.created_ms)
    if name == "title":
        below = f"└{'─' * (2 * depth - 1)} " if depth else ""
        marks = ("pinned, " if app.out.plain else "★ ") if row.id in pins else ""
        title = marked_title(row) or row.problem or "(empty)"
        style: Style = "strong" if row.title else "dim" if row.problem else "plain"
        return Cell(below + marks + title, style, title)
    if name == "project":
        return Cell(_short(app.tilde(row.cwd or "")), "plain", row.cwd or "")
    if name == "size":
        return Cell(size_of(row.size), "plain", "" if row.size is None else str(row.size))
    texts = {
        "agent": app.library.agent_of(row.path) or "",
        "path": row.path,
        "status": " ".join(filter(None, (row.last_role, row.last_status))),
        "messages": None if counts is None else str(counts.messages),
        "branches": None if counts is None else str(counts.branches),
        "tokens": None if counts is None or counts.total_tokens is None else amount(counts.total_tokens),
        "cost": None if counts is None else money(counts.cost) + ("+" if counts.cost and counts.unpriced else ""),
        "model": None if counts is None else ", ".join(sorted(counts.models, key=lambda m: -counts.models[m])[:2]),
    }
    text = texts[name]
    if name in ("tokens", "cost") and counts is not None:
        exact = counts.total_tokens if name == "tokens" else counts.cost
        return Cell(text or "n/a", "plain", "" if exact is None else str(exact))
    return Cell("?", "dim", "") if text is None else Cell(text)


def marked_title(row: SessionRow) -> str:
    """Return the title of a session, or the beginning of its first message, with a mark for a draft; empty if unknown."""
    return ("(draft) " if row.draft else "") + (row.title or row.first_text or "")


def _short(path: str) -> str:
    """Shorten a long path to its last two names."""
    return path if len(path) <= _LONG_PATH else "…/" + "/".join(path.split("/")[-2:])


def described(app: App, row: SessionRow, pins: set[str]) -> dict[str, Any]:
    """Return a session for a JSON document; unknown values are null."""
    return {
        "id": row.id,
        "path": row.path,
        "agent": app.library.agent_of(row.path),
        "format": row.format,
        "problem": row.problem,
        "project": row.cwd,
        "title": row.title,
        "first_text": row.first_text,
        "created": app.out.iso(row.created_ms),
        "modified": app.out.iso(row.modified_ns // 1_000_000),
        "size": row.size,
        "parent": row.parent,
        "sub_agent": row.sub_agent,
        "draft": row.draft,
        "pinned": row.id in pins,
        "last_role": row.last_role,
        "last_status": row.last_status,
        "counts": row.counts,
    }


# -- sessions that expire

SOON = 7  # days that a warning looks ahead


def soon(app: App) -> Sequence[Outlook]:
    """Return the sessions that expire soon, by source; only agents that delete sessions have any."""
    if not any((agent := AGENTS.get(source.agent)) and agent.expiry for source in app.library.given):
        return ()
    from sessile.upkeep.keep import expiring  # most listings do not need it

    return expiring(app.library, now=app.store.now(), within_days=SOON, follow=os.path.realpath)


def warn(app: App) -> None:
    """Print how many sessions expire soon, one line per source, and what to do."""
    for outlook in soon(app):
        say_problem(app, outlook)
        count, agent = len(outlook.sessions), outlook.source.agent
        if count:
            expiring = many(count, f"session of {agent} expires", f"sessions of {agent} expire")
            app.out.note(f"{expiring} within {SOON} days; keep {'it' if count == 1 else 'them'}: {app.command} keep")


def say_problem(app: App, outlook: Outlook) -> None:
    """Print why the expiry of an agent's sessions is unknown, and the safe thing to do."""
    if outlook.problem is not None:
        where = app.tilde(outlook.source.root)
        problem = f"unknown when {outlook.source.agent} deletes sessions: {where}/{outlook.problem}"
        app.out.note(f"note: {problem}; keep all: {app.command} keep --all")


def say_copies(app: App) -> None:
    """Print how many kept copies are not listed because their originals are."""
    if app.library.copies:
        copies = many(len(app.library.copies), "kept copy is", "kept copies are")
        originals = "its original is" if len(app.library.copies) == 1 else "the originals are"
        app.out.note(f"… {copies} not listed: {originals}")
