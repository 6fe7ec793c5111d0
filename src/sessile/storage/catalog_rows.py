"""The table of sessions in the catalog: its columns, its rows, and what listings, facets and statistics read from it.

A row is filled in three steps: from the ends of the file (`look`), from every line (`count`), and by its words (`index`).
Values that are not known yet are `None`. The columns that a listing does not show come last: SQLite reads a row only as far as
needed.

Rules:

- A facet counts what the filter selects without that facet. Each number is the length of the listing that chooses it: a project
  is a folder with everything below it, a model is any whose name contains that one. Hidden sessions are not counted.
- For usage, a filter selects sessions, and its times select what was used in them, whenever a file was last changed. Its order
  and page have no meaning there. Rows stay as they are stored, and become objects one at a time when a table is made.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sessile.core.codec import decode, encode_plain
from sessile.core.digest import Counts
from sessile.core.text import parse_timestamp, utc_datetime
from sessile.core.usage import QUARTER
from sessile.core.visible import html_table
from sessile.core.words import INDEXED, fold
from sessile.storage.filters import (
    HAS,
    SQLITE,
    Condition,
    Filter,
    Selection,
    SqlSelection,
    Values,
    nanoseconds,
    within,
)
from sessile.storage.layout import DRAFT, JOURNAL

if TYPE_CHECKING:
    from sessile.core.statistics import Usage

COUNTS = Counts.__struct_fields__
_OBJECTS = ("roles", "models")  # stored as JSON

SESSIONS = (
    "CREATE TABLE sessions (number INTEGER PRIMARY KEY, path BLOB NOT NULL,"
    # The file when the row was made. Without a size, or a change time, it is looked at again every time.
    " size INTEGER, mtime_ns INTEGER NOT NULL, inode INTEGER NOT NULL, device INTEGER NOT NULL, ctime_ns INTEGER,"
    " sub_agent INTEGER NOT NULL,"
    # From the ends of the file.
    " format TEXT, problem TEXT, id TEXT, cwd TEXT, title TEXT, created TEXT, parent TEXT, first_text TEXT,"
    " last_role TEXT, last_status TEXT, header_title TEXT, header_at INTEGER, version INTEGER, origin TEXT,"
    # What its agent's list says of it, and whether an entry has given it a name, which counts more.
    " told TEXT, named INTEGER NOT NULL DEFAULT 0,"
    # How far its lines were counted and indexed, and the counts.
    " covered INTEGER NOT NULL DEFAULT 0, counted INTEGER NOT NULL DEFAULT 0, indexed INTEGER NOT NULL DEFAULT 0,"
    " searchable INTEGER NOT NULL DEFAULT 0, passages INTEGER NOT NULL DEFAULT 0,"
    f" {', '.join(COUNTS)},"
    # What was used when, the hash of the lines that were counted, and the state to continue counting from.
    " spending BLOB, fit BLOB, state BLOB)",
    # These indexes alone answer a listing that is up to date, and a search, except for the rows that are shown.
    "CREATE INDEX files ON sessions"
    " (path, number, size, mtime_ns, inode, device, ctime_ns, format, sub_agent, counted, messages, indexed, searchable)",
    "CREATE INDEX newest ON sessions (mtime_ns)",
    "CREATE INDEX ids ON sessions (id)",
    "CREATE INDEX origins ON sessions (origin) WHERE origin IS NOT NULL",
    "CREATE INDEX titled ON sessions (mtime_ns) WHERE title IS NOT NULL",
)

TEXTS = (
    f"CREATE VIRTUAL TABLE texts USING fts5({', '.join(INDEXED)}, content = '',"
    ' tokenize = "unicode61 remove_diacritics 2")',
    # Words are collected in memory and written at the end of a transaction. The default of one megabyte makes many segments
    # that must be merged.
    f"INSERT INTO texts (texts, rank) VALUES ('hashsize', {8 << 20})",
    "CREATE VIRTUAL TABLE titles USING fts5(title, tokenize = 'trigram')",
    "CREATE TABLE gone (number INTEGER PRIMARY KEY, passages INTEGER NOT NULL)",
)

SUB_AGENTS = "/subagents/"  # follows the name of a session in the paths of its sub-agents' files (Claude Code)
_PATH = "CAST(sessions.path AS TEXT)"
_SESSION = f"substr({_PATH}, 1, instr({_PATH}, '{SUB_AGENTS}') - 1) || '{JOURNAL}'"  # of a sub-agent
_IS_ORIGIN = "EXISTS (SELECT 1 FROM sessions own WHERE own.origin = {})"
# Another agent's session that was copied into a native store; sub-agents are copied with their session.
_IMPORTED = f"({_IS_ORIGIN.format(_PATH)} OR (sub_agent AND {_IS_ORIGIN.format(_SESSION)}))"
_HAS_ORIGINS = "SELECT EXISTS (SELECT 1 FROM sessions WHERE origin IS NOT NULL)"
_KNOWN = "SELECT path, number, size, mtime_ns, inode, device, ctime_ns FROM sessions"
SHOWN = (
    "number, path, size, mtime_ns, sub_agent, format, problem, id, cwd, title, created, parent, first_text,"
    f" last_role, last_status, counted, searchable, {', '.join(COUNTS)}"
)


Known = tuple[bytes, int, int | None, int, int, int, int | None]
"""A file in the catalog: its path, the number of its row, and its `Mark`."""


class SessionRow(NamedTuple):
    """What the catalog knows about a session; `None` is unknown.

    Attributes:
        number: The number of the row in this catalog.
        path: The path of the session's file.
        size: The size of the file in bytes.
        modified_ns: When the file was last modified, in nanoseconds since 1970; `modified` is the same as a `datetime`.
        sub_agent: Whether the file is the transcript of a sub-agent.
        format: The format of the file: "native" or that of another agent; `None` if it is not a session.
        problem: Why the file could not be read.
        id: The session id.
        cwd: The project: the working folder of the session.
        title: The title of the session.
        created_ms: When the session was created, in milliseconds since 1970; `created` is the same as a `datetime`.
        parent: The session that this one was forked from.
        first_text: The beginning of the first message of the user.
        last_role: The role of the last message.
        last_status: How the last message ended.
        searchable: Whether the words of the session are indexed.
        counts: Numbers of entries, messages, tokens and more; `None` until every line was counted.

    Example:
        ```python
        for row in library.list(Filter(limit=10)).rows:
            print(f"{row.modified:%Y-%m-%d %H:%M}", row.title or row.first_text)
        ```
    """

    number: int
    path: str
    size: int | None
    modified_ns: int
    sub_agent: bool
    format: str | None
    problem: str | None
    id: str | None
    cwd: str | None
    title: str | None
    created_ms: int | None
    parent: str | None
    first_text: str | None
    last_role: str | None
    last_status: str | None
    searchable: bool
    counts: Counts | None

    @property
    def draft(self) -> bool:
        """Whether no assistant has answered yet. Other programs do not list a draft."""
        return self.path.endswith(DRAFT)

    @property
    def modified(self) -> datetime:
        """When the file was last modified, in UTC."""
        return utc_datetime(self.modified_ns // 1000)

    @property
    def created(self) -> datetime | None:
        """When the session was created, in UTC; `None` if unknown."""
        return None if self.created_ms is None else utc_datetime(self.created_ms * 1000)


class Listing(NamedTuple):
    """One page of sessions, and what is not on it.

    Attributes:
        rows: The sessions of the page, in the order of the filter.
        total: How many sessions match, on this page or another.
        hidden: How many more sessions match but are hidden, by reason: "unreadable", "empty", "sub_agent", "imported" …
        unjudged: How many sessions the filter cannot judge, because their lines are not counted yet.
        unread: The paths of session files that were not read completely when the time was up: they may be shown without
            counts, or be missing where the filter needs counts. Only `Library.list` sets it.

    Example:
        ```python
        listing = library.list(Filter(project="/work/app", limit=20))
        print(f"{len(listing.rows)} of {listing.total}, {len(listing.unread)} not read yet")
        ```
    """

    rows: list[SessionRow]
    total: int
    hidden: dict[str, int]
    unjudged: int
    unread: Sequence[str] = ()

    def _repr_html_(self) -> str:
        caption = f"{len(self.rows):,} of {self.total:,} sessions"
        caption += f", {len(self.unread):,} files not read yet" if self.unread else ""
        columns = ("modified", "title", "project", "messages", "id")
        return html_table(caption, columns, map(_shown_in_notebook, self.rows))


def _shown_in_notebook(row: SessionRow) -> tuple[object, ...]:
    messages = None if row.counts is None else f"{row.counts.messages:,}"
    return f"{row.modified:%Y-%m-%d %H:%M}", row.title or row.first_text or row.problem, row.cwd, messages, row.id


def select(
    database: sqlite3.Connection,
    places: Sequence[str],
    wanted: Filter,
    imported: Container[bytes] | None = None,
    copied: Sequence[str] = (),
) -> SqlSelection:
    """Return the rows below `places` that a filter selects.

    `copied` are folders with exact copies of other agents' sessions. `imported` are the paths of imported sessions, if the
    sessions of the store are in another catalog.
    """
    database.create_function("fold", 1, fold, deterministic=True)
    database.create_function("moment", 1, parse_timestamp, deterministic=True)
    if imported is None:
        ((has_origins,),) = database.execute(_HAS_ORIGINS)
        # Without a session that was imported, there is nothing to compare each row with.
        condition = _imported(copied) if has_origins else ("false", {})
    else:
        database.create_function("is_imported", 1, imported.__contains__)
        condition = ("is_imported(path)", {})
    return SqlSelection(SQLITE, database.execute, places, wanted, condition)


def known_files(database: sqlite3.Connection) -> dict[str, Known]:
    """Return every file in the catalog, by path."""
    return {row[0].decode("utf-8", "surrogateescape"): row for row in database.execute(_KNOWN)}


def listing(selection: SqlSelection) -> Listing:
    """Return the page of a selection, with what is not on it."""
    return Listing([row_of(row) for row in selection.page(SHOWN)], *selection.totals(), selection.unjudged())


def _imported(copied: Sequence[str]) -> Condition:
    """Return the condition that a session of another agent was imported, or is a copy of an imported one.

    A copy has the same path below the folder of copies as its original had below its agent's folder, which may be unknown.
    """
    conditions = [_IMPORTED]
    values: Values = {}
    for number, folder in enumerate(copied):
        name = f"copied{number}"
        condition, more = within([folder], name)
        rest = f"CAST(substr(sessions.path, :{name}_length + 1) AS TEXT)"
        own = f"own.id = sessions.id AND substr(own.origin, -length({rest})) = {rest}"
        conditions.append(f"({condition} AND EXISTS (SELECT 1 FROM sessions own WHERE {own}))")
        values |= {**more, f"{name}_length": len(folder.rstrip("/").encode("utf-8", "surrogateescape"))}
    return f"({' OR '.join(conditions)})", values


def counts_as_columns(counts: Counts) -> list[Any]:
    """Return the values of the columns `COUNTS`."""
    return [encode_plain(value) if isinstance(value, dict) else value for value in msgspec.structs.astuple(counts)]


def row_of(columns: Sequence[Any]) -> SessionRow:
    """Return the row that has these values in the columns `SHOWN`."""
    shown = columns[: -len(COUNTS)]
    number, path, size, modified, sub_agent, *texts, created, parent, text, role, status, counted, searchable = shown
    counts = None
    if counted:
        values = dict(zip(COUNTS, columns[-len(COUNTS) :], strict=True))
        counts = Counts(**values | {name: decode(values[name]) for name in _OBJECTS})
    path, created = path.decode("utf-8", "surrogateescape"), parse_timestamp(created)
    about = (number, path, size, modified, bool(sub_agent), *texts, created, parent, text, role, status)
    return SessionRow._make((*about, bool(searchable), counts))


# -- facets


class Facets(NamedTuple):
    """Numbers of sessions by folder, project, model and what they have, in descending order."""

    below: dict[str, int]
    project: dict[str, int]
    model: dict[str, int]
    has: dict[str, int]


def facets(
    selection_for: Callable[[Filter], Selection], wanted: Filter, folders: Mapping[str, Sequence[str]]
) -> Facets:
    """Return the facets of what a filter selects; `folders` are lists of places by name."""

    def changed(**fields: object) -> Selection:
        return selection_for(wanted._replace(**fields))  # type: ignore[arg-type]

    below = {name: changed(below=paths).totals()[0] for name, paths in folders.items()}
    has = {name: changed(has=(name,)).totals()[0] for name in HAS}
    return Facets(
        _most_first(below),
        _most_first(_projects(changed(project=None, worktrees=()))),
        _most_first(_models(changed(model=None))),
        _most_first(has),
    )


def _projects(selection: Selection) -> dict[str, int]:
    """Count the sessions of each folder and of the folders below it."""
    found = Counter(cwd for (cwd,) in selection.shown("cwd") if cwd)
    sums = dict(found)
    for folder, count in found.items():
        above = folder
        while (above := above.rpartition("/")[0]) != "":
            if above in sums:
                sums[above] += count
    return sums


def _models(selection: Selection) -> dict[str, int]:
    """Count the sessions with answers of each model, or of one whose name contains that name."""
    found = Counter(raw for (raw,) in selection.shown("models") if raw)
    several = [(tuple(decode(raw)), count) for raw, count in found.items()]
    names = {name for models, _ in several for name in models}
    return {
        name: sum(count for models, count in several if any(name.lower() in model.lower() for model in models))
        for name in names
    }


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count}


# -- usage

USED = Filter(hide=("imported",))  # sub-agents count; imported sessions would count twice
_QUARTER = QUARTER * 1_000_000  # nanoseconds


def usage(selection_for: Callable[[Filter], Selection], wanted: Filter) -> Usage:
    """Return what was used in the quarter-hours that the filter's times touch."""
    from sessile.core.statistics import SessionUsage, Usage  # listings start faster without it

    selection = selection_for(wanted._replace(since=None, until=None))
    rows = selection.shown("id, cwd, title, spending")
    sessions = [SessionUsage(*row) for row in rows if row[-1] is not None]  # others used nothing
    _, hidden = selection.totals()
    return Usage(
        sessions=sessions,
        since=None if wanted.since is None else nanoseconds(wanted.since) // _QUARTER,
        until=None if wanted.until is None else -(-nanoseconds(wanted.until) // _QUARTER),
        hidden=hidden,
        uncounted=selection.uncounted(),
    )
