"""The table of sessions in the catalog: its columns, and how a listing asks for rows.

A row is known in three steps: from the ends of the file (`look`), from every line (`count`), and by its words (`index`). What
a step has not told yet is `None`. A listing says how many rows it hides, and why, and how many it could not judge.

What a listing does not show stands behind what it does: SQLite reads a row no further than it must.

By what sessions could be chosen further, asked of the catalog: how many a filter lets through, by project, model and more.

Rules: a facet counts what the filter matches without that facet, and each number is what a listing would have that chooses it:
a project is a folder with all below it, a model is any whose name holds that one. What is hidden is not counted.

What sessions have used, asked of the catalog: the rows from which `core.statistics` makes its tables.

Rules: a filter chooses sessions, but its times choose what was used in them, whenever a file was last touched. Its order and
page mean nothing here. Rows are kept as they are stored, and become objects one at a time when a table is made.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

import msgspec

from sessile.core.codec import decode, encode_plain
from sessile.core.digest import Counts
from sessile.core.statistics import SessionUsage, Usage
from sessile.core.text import parse_timestamp, utc_datetime, without_surrogates
from sessile.core.usage import QUARTER
from sessile.core.words import fold
from sessile.errors import InvalidQuery
from sessile.storage.layout import JOURNAL

# --- catalog rows

COUNTS = Counts.__struct_fields__
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_OBJECTS = ("roles", "models")  # stored as JSON

SESSIONS = (
    "CREATE TABLE sessions (number INTEGER PRIMARY KEY, path BLOB NOT NULL,"
    # The file as it was when the row was made; without a size it is looked at again every time.
    " size INTEGER, mtime_ns INTEGER NOT NULL, inode INTEGER NOT NULL, sub_agent INTEGER NOT NULL,"
    # What its ends say.
    " format TEXT, problem TEXT, id TEXT, cwd TEXT, title TEXT, created TEXT, parent TEXT, first_text TEXT,"
    " last_role TEXT, last_status TEXT, header_title TEXT, header_at INTEGER, version INTEGER, origin TEXT,"
    # How far its lines were counted and indexed, and what they say.
    " covered INTEGER NOT NULL DEFAULT 0, counted INTEGER NOT NULL DEFAULT 0, indexed INTEGER NOT NULL DEFAULT 0,"
    " searchable INTEGER NOT NULL DEFAULT 0, passages INTEGER NOT NULL DEFAULT 0,"
    f" {', '.join(COUNTS)},"
    # What was used when, and what is needed to go on counting.
    " spending BLOB, fit BLOB, state BLOB)",
    # A listing that is up to date, and a search, are answered from these alone, but for the rows that they show.
    "CREATE INDEX files ON sessions"
    " (path, number, size, mtime_ns, inode, format, sub_agent, counted, messages, indexed, searchable)",
    "CREATE INDEX newest ON sessions (mtime_ns)",
    "CREATE INDEX ids ON sessions (id)",
    "CREATE INDEX origins ON sessions (origin) WHERE origin IS NOT NULL",
    "CREATE INDEX titled ON sessions (mtime_ns) WHERE title IS NOT NULL",
)

SUB_AGENTS = "/subagents/"  # what leads from the name of a session to what Claude Code keeps of its sub-agents
_PATH = "CAST(sessions.path AS TEXT)"
_SESSION = f"substr({_PATH}, 1, instr({_PATH}, '{SUB_AGENTS}') - 1) || '{JOURNAL}'"  # of a sub-agent
_IS_ORIGIN = "EXISTS (SELECT 1 FROM sessions own WHERE own.origin = {})"
_HIDDEN = {  # why a row is not shown; the first of the reasons that are asked for counts
    "unreadable": "format IS NULL",
    "sub_agent": "sub_agent",
    # Of another agent, with a copy in a store of ours; sub-agents were copied with their session.
    "imported": f"({_IS_ORIGIN.format(_PATH)} OR (sub_agent AND {_IS_ORIGIN.format(_SESSION)}))",
    "empty": "counted AND messages = 0",
    "one_shot": "counted AND user_messages = 1 AND title IS NULL AND labels = 0",
}
HIDE = ("unreadable", "empty", "sub_agent", "imported")
HAS = {
    "branch": "branches > 1",
    "error": "(errors > 0 OR tool_failures > 0)",
    "image": "images > 0",
    "compaction": "compactions > 0",
    "label": "labels > 0",
    "finding": "findings > 0",
}
SORTS = {
    "recent": "mtime_ns",
    "started": "moment(created)",  # as the header has it, which may be any text
    "cost": "cost",
    "tokens": "total_tokens",
    "messages": "messages",
    "size": "size",
}
NOTEBOOK_ROWS = 50
_KNOWN = "SELECT path, number, size, mtime_ns, inode FROM sessions"
SHOWN = (
    "number, path, size, mtime_ns, sub_agent, format, problem, id, cwd, title, created, parent, first_text,"
    f" last_role, last_status, counted, searchable, {', '.join(COUNTS)}"
)


Known = tuple[bytes, int, int | None, int, int]
"""What the catalog has of a file: path, number of its row, mark."""


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
        from sessile.core.notebook import table  # only notebooks need it

        caption = f"{len(self.rows):,} of {self.total:,} sessions"
        caption += f", {len(self.unread):,} files not read yet" if self.unread else ""
        columns = ("modified", "title", "project", "messages", "id")
        return table(caption, columns, (_shown_in_notebook(row) for row in self.rows[:NOTEBOOK_ROWS]))


def _shown_in_notebook(row: SessionRow) -> tuple[object, ...]:
    messages = None if row.counts is None else f"{row.counts.messages:,}"
    return f"{row.modified:%Y-%m-%d %H:%M}", row.title or row.first_text or row.problem, row.cwd, messages, row.id


class Filter(NamedTuple):
    """Which sessions to list or search. All conditions must hold; the default matches everything that is not hidden.

    Attributes:
        project: The path of a project folder, or a name without a slash for all folders of that name. Folders below it match.
        since: Only sessions modified at this time or later. It must have a time zone.
        until: Only sessions modified before this time. It must have a time zone.
        model: Only sessions with answers of a model whose name contains this text.
        has: Only sessions that have all of these: "branch", "error", "image", "compaction", "label", "finding".
        words: Only sessions with all of these words in the title or the first message.
        named: Only sessions with a title.
        id_prefix: Only sessions whose id starts with this text.
        hide: Which matching sessions to hide: "unreadable", "empty", "sub_agent", "imported", "one_shot".
        limit: The maximum number of rows; all if `None`.
        offset: The number of rows to skip.
        sort: The order, largest or newest first: "recent", "started", "cost", "tokens", "messages" or "size". Unknown values
            come last.
        below: Only files in these folders.
        pinned: Only sessions with these ids.
        worktrees: Folders that count as the project folder.

    Example:
        ```python
        last_week = datetime.now(UTC) - timedelta(days=7)
        library.list(Filter(project="/work/app", since=last_week, sort="cost", limit=10))
        ```
    """

    project: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    model: str | None = None
    has: Collection[str] = ()
    words: Sequence[str] = ()
    named: bool = False
    id_prefix: str | None = None
    hide: Collection[str] = HIDE
    limit: int | None = None
    offset: int = 0
    sort: str = "recent"
    below: Sequence[str] | None = None
    pinned: Collection[str] | None = None
    worktrees: Sequence[str] = ()


EVERYTHING = Filter()


class Asked(Protocol):
    """A filter as a question to the table of sessions, in whatever database that is."""

    def shown(self, columns: str) -> Iterable[Any]:
        """Columns of all rows that are shown, newest first."""
        ...

    def hidden(self) -> tuple[int, dict[str, int]]:
        """How many rows are shown, and how many are hidden for what reason."""
        ...

    def uncounted(self) -> int:
        """How many rows may match once they are counted."""
        ...


class Question:
    """A filter as SQL: which rows match, and which of them are shown.

    `copied` are folders with exact copies of other agents' sessions. `imported` are the paths of sessions that were taken into a
    store of ours, if that is in another catalog.
    """

    def __init__(
        self,
        database: sqlite3.Connection,
        places: Sequence[str],
        wanted: Filter,
        imported: Container[bytes] | None = None,
        copied: Sequence[str] = (),
    ) -> None:
        database.create_function("fold", 1, fold, deterministic=True)
        database.create_function("moment", 1, parse_timestamp, deterministic=True)
        self._db = database
        self._wanted = wanted
        self._cheap, self._values = _cheap(places, wanted)
        self._dear, more = _dear(wanted)
        self._values |= more
        if imported is not None:
            database.create_function("is_imported", 1, imported.__contains__)
            why = _HIDDEN | {"imported": "is_imported(path)"}
        else:
            condition, more = _imported(copied)
            why = _HIDDEN | {"imported": condition}
            self._values |= more
        self._where = " AND ".join([*self._cheap, *self._dear])
        for reason in wanted.hide:
            check("a listing cannot hide what is", reason, _HIDDEN)
        hide = {*wanted.hide} - ({"imported"} if wanted.below is not None else set())  # who names a folder means it
        reasons = [f"WHEN {when} THEN '{name}'" for name, when in why.items() if name in hide]
        self._reason = f"CASE {' '.join(reasons)} END" if reasons else "NULL"
        self._is_shown = f"{self._where} AND {self._reason} IS NULL"

    def shown(self, columns: str) -> sqlite3.Cursor:
        """Columns of all rows that are shown, newest first."""
        select = f"SELECT {columns} FROM sessions WHERE {self._is_shown} {_order('recent')}"
        return self._db.execute(select, self._values)

    def page(self, columns: str) -> sqlite3.Cursor:
        """Columns of the rows of one page; they are chosen by number first, since sorting whole rows is slow."""
        order = _order(self._wanted.sort)
        limit = -1 if self._wanted.limit is None else in_64_bits(self._wanted.limit)
        chosen = f"SELECT number FROM sessions WHERE {self._is_shown} {order} LIMIT :limit OFFSET :offset"
        select = f"SELECT {columns} FROM sessions WHERE number IN ({chosen}) {order}"
        return self._db.execute(select, self._values | {"limit": limit, "offset": in_64_bits(self._wanted.offset)})

    def hidden(self) -> tuple[int, dict[str, int]]:
        """How many rows are shown, and how many are hidden for what reason."""
        count = f"SELECT {self._reason} AS reason, count(*) FROM sessions WHERE {self._where} GROUP BY reason"
        found = dict(self._db.execute(count, self._values).fetchall())
        return found.get(None, 0), {reason: found[reason] for reason in sorted(self._wanted.hide) if reason in found}

    def uncounted(self) -> int:
        """How many rows may match once they are counted."""
        where = " AND ".join([*self._cheap, "NOT counted", "format IS NOT NULL"])
        (found,) = self._db.execute(f"SELECT count(*) FROM sessions WHERE {where}", self._values).fetchone()
        return int(found)

    def unjudged(self) -> int:
        """How many rows the filter cannot judge because they are not counted yet."""
        return self.uncounted() if self._dear else 0


def known_files(database: sqlite3.Connection) -> dict[str, Known]:
    """What the catalog has of every file."""
    return {row[0].decode("utf-8", "surrogateescape"): row for row in database.execute(_KNOWN)}


def listing(question: Question) -> Listing:
    """The rows that a question is about."""
    return Listing([row_of(row) for row in question.page(SHOWN)], *question.hidden(), question.unjudged())


def _order(sort: str) -> str:
    check("sessions cannot be sorted by", sort, SORTS)
    return f"ORDER BY {SORTS[sort]} DESC, mtime_ns DESC, number DESC"  # what is unknown is least


def _cheap(places: Sequence[str], wanted: Filter) -> tuple[list[str], dict[str, Any]]:
    """Conditions that the ends of a file can answer."""
    condition, values = within(places)
    conditions = [condition]
    if wanted.below is not None:
        condition, more = within(wanted.below, "below")
        conditions.append(condition)
        values |= more
    if wanted.project is not None:
        places_of_it = []
        for number, folder in enumerate((wanted.project, *wanted.worktrees)):
            name = f":project{number}"
            at_path = f"cwd = {name} OR substr(cwd, 1, length({name}) + 1) = {name} || '/'"
            places_of_it.append(at_path if "/" in folder else f"instr(cwd || '/', '/' || {name} || '/')")
            values[name[1:]] = folder.rstrip("/")
        conditions.append(f"({' OR '.join(places_of_it)})")
    if wanted.since is not None:
        conditions.append("mtime_ns >= :since")
        values["since"] = nanoseconds(wanted.since)
    if wanted.until is not None:
        conditions.append("mtime_ns < :until")
        values["until"] = nanoseconds(wanted.until)
    if wanted.id_prefix is not None:
        conditions.append("id BETWEEN :prefix AND :prefix || char(0x10FFFF)")
        values["prefix"] = wanted.id_prefix
    if wanted.pinned is not None:
        conditions.append("id IN (SELECT value FROM json_each(:pinned))")
        values["pinned"] = encode_plain([storable(session_id) for session_id in wanted.pinned]).decode()
    if wanted.named:
        conditions.append("title IS NOT NULL")
    for number, word in enumerate(wanted.words):
        conditions.append(f"instr(fold(coalesce(title, '') || char(10) || coalesce(first_text, '')), :word{number})")
        values[f"word{number}"] = fold(word)
    return conditions, {name: storable(value) for name, value in values.items()}


def _dear(wanted: Filter) -> tuple[list[str], dict[str, Any]]:
    """Conditions that need every line."""
    for name in wanted.has:
        check("a session cannot be asked whether it has", name, HAS)
    conditions = [HAS[name] for name in wanted.has]
    values = {}
    if wanted.model is not None:
        conditions.append("instr(lower(CAST(models AS TEXT)), lower(:model))")
        values["model"] = storable(wanted.model)
    return conditions, values


def _imported(copied: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The condition that a row is of another agent and was imported, or is a copy of what was imported.

    A copy lies below the folder of copies as its original does below its agent's, which nobody may know by now.
    """
    conditions = [_HIDDEN["imported"]]
    values: dict[str, Any] = {}
    for number, folder in enumerate(copied):
        name = f"copied{number}"
        condition, more = within([folder], name)
        rest = f"CAST(substr(sessions.path, :{name}_length + 1) AS TEXT)"
        own = f"own.id = sessions.id AND substr(own.origin, -length({rest})) = {rest}"
        conditions.append(f"({condition} AND EXISTS (SELECT 1 FROM sessions own WHERE {own}))")
        values |= {**more, f"{name}_length": len(os.fsencode(folder.rstrip("/")))}
    return f"({' OR '.join(conditions)})", values


def within(places: Sequence[str], name: str = "place") -> tuple[str, dict[str, Any]]:
    """The condition that a row lies below one of these folders; `name` keeps its values apart from others."""
    conditions = ["0"]
    values: dict[str, Any] = {}
    for number, place in enumerate(places):
        folder = os.fsencode(place.rstrip("/"))
        conditions.append(f"path BETWEEN :{name}{number} AND :{name}{number}_end")
        values |= {f"{name}{number}": folder + b"/", f"{name}{number}_end": folder + b"/\xff"}
    return f"({' OR '.join(conditions)})", values


def storable(value: Any) -> Any:
    """UTF-8, and so SQLite, has no lone surrogates."""
    return without_surrogates(value) if isinstance(value, str) else value


def in_64_bits(number: int) -> int:
    """The nearest number that databases hold: the year 9999 is further away, in nanoseconds, than they can count."""
    return max(-(2**63), min(number, 2**63 - 1))


def nanoseconds(moment: datetime) -> int:
    """A moment as databases hold it: nanoseconds since 1970. Raise `InvalidQuery` if it has no time zone."""
    if moment.tzinfo is None:
        raise InvalidQuery(
            f"invalid time {moment.isoformat()!r}: it must have a time zone",
            hint="use datetime.now(UTC) or astimezone()",
        )
    return in_64_bits((moment - _EPOCH) // _MICROSECOND * 1000)


def counts_as_columns(counts: Counts) -> list[Any]:
    """The values of the columns `COUNTS`."""
    return [encode_plain(value) if isinstance(value, dict) else value for value in msgspec.structs.astuple(counts)]


def row_of(columns: Sequence[Any]) -> SessionRow:
    """The row that these values of the columns `SHOWN` stand for."""
    number, path, size, modified, sub_agent, *told, created, parent, said, role, status, counted, searchable = columns[
        : -len(COUNTS)
    ]
    counts = None
    if counted:
        values = dict(zip(COUNTS, columns[-len(COUNTS) :], strict=True))
        counts = Counts(**values | {name: decode(values[name]) for name in _OBJECTS})
    path, created = path.decode("utf-8", "surrogateescape"), parse_timestamp(created)
    about = (number, path, size, modified, bool(sub_agent), *told, created, parent, said, role, status)
    return SessionRow._make((*about, bool(searchable), counts))


def check(trouble: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that a filter cannot mean."""
    if name not in known:
        raise InvalidQuery(f"{trouble} {name!r}", hint=f"use one of {', '.join(known)}")


# --- catalog facets


class Facets(NamedTuple):
    """Sessions by what they have in common, the most first; folders by the name that they were given."""

    below: dict[str, int]
    project: dict[str, int]
    model: dict[str, int]
    has: dict[str, int]


def facets(ask: Callable[[Filter], Asked], wanted: Filter, folders: Mapping[str, Sequence[str]]) -> Facets:
    """The facets of what a filter lets through; `folders` are names for places to choose by."""

    def question(**without: object) -> Asked:
        return ask(wanted._replace(**without))  # type: ignore[arg-type]

    below = {name: question(below=paths).hidden()[0] for name, paths in folders.items()}
    has = {name: question(has=(name,)).hidden()[0] for name in HAS}
    return Facets(
        _most_first(below),
        _most_first(_projects(question(project=None, worktrees=()))),
        _most_first(_models(question(model=None))),
        _most_first(has),
    )


def _projects(question: Asked) -> dict[str, int]:
    """How many sessions are of each folder, or of one below it."""
    found = Counter(cwd for (cwd,) in question.shown("cwd") if cwd)
    sums = dict(found)
    for folder, count in found.items():
        above = folder
        while (above := above.rpartition("/")[0]) != "":
            if above in sums:
                sums[above] += count
    return sums


def _models(question: Asked) -> dict[str, int]:
    """How many sessions have answers of each model, or of one whose name holds that."""
    found = Counter(raw for (raw,) in question.shown("models") if raw)
    several = [(tuple(decode(raw)), count) for raw, count in found.items()]
    names = {name for models, _ in several for name in models}
    return {
        name: sum(count for models, count in several if any(name.lower() in model.lower() for model in models))
        for name in names
    }


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count}


# --- catalog usage

USED = Filter(hide=("imported",))  # what sub-agents use is used; what was imported is not used twice
_QUARTER = QUARTER * 1_000_000  # nanoseconds


def usage(ask: Callable[[Filter], Asked], wanted: Filter) -> Usage:
    """What was used, in the quarter-hours that the filter's times touch."""
    question = ask(wanted._replace(since=None, until=None))
    rows = question.shown("id, cwd, title, spending")
    sessions = [SessionUsage(*row) for row in rows if row[-1] is not None]  # else it has used nothing
    _, hidden = question.hidden()
    return Usage(
        sessions=sessions,
        since=None if wanted.since is None else nanoseconds(wanted.since) // _QUARTER,
        until=None if wanted.until is None else -(-nanoseconds(wanted.until) // _QUARTER),
        hidden=hidden,
        uncounted=question.uncounted(),
    )
