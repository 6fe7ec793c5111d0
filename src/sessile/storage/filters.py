"""Filters for listings of sessions, and the SQL that they become.

One builder serves both catalogs. A `Dialect` holds what SQLite and PostgreSQL spell differently.

Rules:

- A selection counts the rows that match, the rows it hides, by reason, and the rows it cannot judge yet.
- Conditions on the ends of a file can be judged at once. Conditions on counts need every line: a row that is not counted yet
  does not match, and is reported as not judged.
- Values are always bound, never written into the SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

from sessile.core.codec import encode_plain
from sessile.core.text import without_surrogates
from sessile.core.words import fold
from sessile.errors import InvalidQuery

HIDE = ("unreadable", "empty", "sub_agent", "imported")  # what a listing hides by default

_HIDDEN = {  # the first of the given reasons that applies to a row is the one that is reported
    "unreadable": "format IS NULL",
    "sub_agent": "sub_agent",
    "imported": "",  # differs from catalog to catalog
    # A fork that has not gone on may have its history in the file of its parent.
    "empty": "counted AND messages = 0 AND (parent IS NULL OR format = 'native')",
    "one_shot": "counted AND user_messages = 1 AND title IS NULL AND labels = 0",
}
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
    "started": "",  # differs from dialect to dialect
    "cost": "cost",
    "tokens": "total_tokens",
    "messages": "messages",
    "size": "size",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST = "\U0010ffff"  # sorts after every other character

Values = dict[str, Any]
Condition = tuple[str, Values]
"""A condition in SQL and the values that it binds."""


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

    @property
    def needs_counts(self) -> bool:
        """Whether the rows and their order depend on what is counted in sessions."""
        return bool(self.has) or self.model is not None or self.sort not in ("recent", "started")


EVERYTHING = Filter()


# -- dialects


class Dialect(Protocol):
    """What a database spells in its own way."""

    table: str  # of the sessions
    started: str  # when a session was created, as a number
    models: str  # the models of a session, as text
    words: str  # title and first text, folded
    no_limit: int | None

    def value(self, name: str, kind: str = "") -> str:
        """Return the placeholder of a bound value; `kind` is its type in SQL."""
        ...

    def storable(self, value: Any) -> Any:
        """Return a value with the characters replaced that the database cannot store."""
        ...

    def contains(self, text: str, part: str) -> str:
        """Return the condition that one text contains another."""
        ...

    def starts_with(self, text: str, prefix: str) -> str:
        """Return the condition that a text starts with another."""
        ...

    def lower(self, text: str) -> str:
        """Return the text with ASCII letters in lower case."""
        ...

    def is_one_of(self, column: str, name: str, texts: Sequence[str]) -> Condition:
        """Return the condition that a column has one of these values."""
        ...


class _Sqlite:
    table = "sessions"
    started = "moment(created)"  # as in the header, which may be any text; see `catalog_rows.select`
    models = "CAST(models AS TEXT)"
    words = "fold(coalesce(title, '') || char(10) || coalesce(first_text, ''))"
    no_limit: int | None = -1

    def value(self, name: str, kind: str = "") -> str:
        return f":{name}"

    def storable(self, value: Any) -> Any:
        return storable(value)

    def contains(self, text: str, part: str) -> str:
        return f"instr({text}, {part}) > 0"

    def starts_with(self, text: str, prefix: str) -> str:
        return f"substr({text}, 1, length({prefix})) = {prefix}"

    def lower(self, text: str) -> str:
        return f"lower({text})"

    def is_one_of(self, column: str, name: str, texts: Sequence[str]) -> Condition:
        return f"{column} IN (SELECT value FROM json_each(:{name}))", {name: encode_plain(texts).decode()}


class _Postgres:
    table = "catalog"
    started = "started"
    models = "convert_from(models, 'UTF8')"
    words = "coalesce(folded_title, '') || chr(10) || coalesce(folded_text, '')"
    no_limit: int | None = None

    def value(self, name: str, kind: str = "") -> str:
        return f"%({name})s::{kind}" if kind else f"%({name})s"

    def storable(self, value: Any) -> Any:
        return storable(value).replace("\0", "\ufffd") if isinstance(value, str) else value

    def contains(self, text: str, part: str) -> str:
        return f"strpos({text}, {part}) > 0"

    def starts_with(self, text: str, prefix: str) -> str:
        return f"starts_with({text}, {prefix})"

    def lower(self, text: str) -> str:
        return f'lower({text} COLLATE "C")'

    def is_one_of(self, column: str, name: str, texts: Sequence[str]) -> Condition:
        return f"{column} = ANY(%({name})s::text[])", {name: list(texts)}


SQLITE: Dialect = _Sqlite()
POSTGRES: Dialect = _Postgres()


# -- selections


class Selection(Protocol):
    """The rows that a filter selects, in one catalog or several."""

    def shown(self, columns: str) -> Iterable[Any]:
        """Return columns of all rows that are shown, newest first."""
        ...

    def totals(self) -> tuple[int, dict[str, int]]:
        """Return the number of rows that are shown, and of those that are hidden, by reason."""
        ...

    def uncounted(self) -> int:
        """Return the number of rows that may match once they are counted."""
        ...


class SqlSelection:
    """The rows that a filter selects in one catalog.

    `run` executes a statement with its values and returns the rows. `imported` is the condition that a session was imported.
    """

    def __init__(
        self,
        dialect: Dialect,
        run: Callable[[str, Values], Iterable[Any]],
        places: Sequence[str],
        wanted: Filter,
        imported: Condition,
    ) -> None:
        self._dialect = dialect
        self._run = run
        self._wanted = wanted
        from_ends = _from_ends(dialect, places, wanted)
        from_counts = _from_counts(dialect, wanted)
        self._from_ends = [condition for condition, _ in from_ends]
        self._needs_counts = bool(from_counts)
        self._where = " AND ".join([*self._from_ends, *(condition for condition, _ in from_counts)])
        self._reason = _reason(wanted, imported[0])
        self._is_shown = f"{self._where} AND {self._reason} IS NULL"
        self._values: Values = {}
        for _, values in (*from_ends, *from_counts, imported):
            self._values |= {name: dialect.storable(value) for name, value in values.items()}

    def shown(self, columns: str) -> Iterable[Any]:
        """Return columns of all rows that are shown, newest first."""
        return self._select(f"{columns} FROM {self._dialect.table} WHERE {self._is_shown} {self._order('recent')}")

    def page(self, columns: str) -> Iterable[Any]:
        """Return columns of the rows of one page. They are selected by number first, since sorting whole rows is slow."""
        dialect, wanted, order = self._dialect, self._wanted, self._order(self._wanted.sort)
        values = {
            "limit": dialect.no_limit if wanted.limit is None else in_64_bits(wanted.limit),
            "offset": in_64_bits(wanted.offset),
        }
        paging = f"LIMIT {dialect.value('limit', 'bigint')} OFFSET {dialect.value('offset', 'bigint')}"
        numbers = f"SELECT number FROM {dialect.table} WHERE {self._is_shown} {order} {paging}"
        return self._select(f"{columns} FROM {dialect.table} WHERE number IN ({numbers}) {order}", values)

    def totals(self) -> tuple[int, dict[str, int]]:
        """Return the number of rows that are shown, and of those that are hidden, by reason."""
        rows = self._select(f"{self._reason}, count(*) FROM {self._dialect.table} WHERE {self._where} GROUP BY 1")
        counts: dict[str | None, int] = dict(iter(rows))
        return counts.get(None, 0), {name: counts[name] for name in sorted(self._wanted.hide) if name in counts}

    def uncounted(self) -> int:
        """Return the number of rows that may match once they are counted."""
        where = " AND ".join([*self._from_ends, "NOT counted", "format IS NOT NULL"])
        ((count,),) = self._select(f"count(*) FROM {self._dialect.table} WHERE {where}")
        return int(count)

    def unjudged(self) -> int:
        """Return the number of rows that the filter cannot judge because they are not counted yet."""
        return self.uncounted() if self._needs_counts else 0

    def _select(self, select: str, values: Mapping[str, Any] | None = None) -> Iterable[Any]:
        return self._run(f"SELECT {select}", {**self._values, **(values or {})})

    def _order(self, sort: str) -> str:
        _check("sort", sort, SORTS)
        column = self._dialect.started if sort == "started" else SORTS[sort]
        return f"ORDER BY {column} DESC NULLS LAST, mtime_ns DESC, number DESC"


def within(places: Sequence[str], name: str = "place", *, column: str = "path", dialect: Dialect = SQLITE) -> Condition:
    """Return the condition that a path is below one of these folders; `name` keeps its values apart from others."""
    conditions = ["false"]
    values: Values = {}
    for number, place in enumerate(places):
        first, last = f"{name}{number}", f"{name}{number}_end"
        folder = place.rstrip("/").encode("utf-8", "surrogateescape")
        conditions.append(f"{column} BETWEEN {dialect.value(first)} AND {dialect.value(last)}")
        values |= {first: folder + b"/", last: folder + b"/\xff"}
    return f"({' OR '.join(conditions)})", values


def storable(value: Any) -> Any:
    """Return a value without lone surrogates, which UTF-8 and so SQLite cannot store."""
    return without_surrogates(value) if isinstance(value, str) else value


def in_64_bits(number: int) -> int:
    """Return the nearest number that databases can store: the year 9999 in nanoseconds exceeds 64 bits."""
    return max(-(2**63), min(number, 2**63 - 1))


def nanoseconds(moment: datetime) -> int:
    """Return a moment as catalogs store it: in nanoseconds since 1970. Raise `InvalidQuery` if it has no time zone."""
    if moment.tzinfo is None:
        raise InvalidQuery(
            f"invalid time {moment.isoformat()!r}: it must have a time zone",
            hint="use datetime.now(UTC) or astimezone()",
        )
    return in_64_bits((moment - _EPOCH) // _MICROSECOND * 1000)


def _from_ends(dialect: Dialect, places: Sequence[str], wanted: Filter) -> list[Condition]:
    """Return the conditions that the ends of a file can answer."""
    value = dialect.value
    conditions = [within(places, dialect=dialect)]
    if wanted.below is not None:
        conditions.append(within(wanted.below, "below", dialect=dialect))
    if wanted.project is not None:
        conditions.append(_in_project(dialect, (wanted.project, *wanted.worktrees)))
    if wanted.since is not None:
        conditions.append((f"mtime_ns >= {value('since', 'bigint')}", {"since": nanoseconds(wanted.since)}))
    if wanted.until is not None:
        conditions.append((f"mtime_ns < {value('until', 'bigint')}", {"until": nanoseconds(wanted.until)}))
    if wanted.id_prefix is not None:
        ends = {"prefix": wanted.id_prefix, "prefix_end": wanted.id_prefix + _LAST}
        conditions.append((f"id BETWEEN {value('prefix')} AND {value('prefix_end')}", ends))
    if wanted.pinned is not None:
        pinned = [dialect.storable(session_id) for session_id in wanted.pinned]
        conditions.append(dialect.is_one_of("id", "pinned", pinned))
    if wanted.named:
        conditions.append(("title IS NOT NULL", {}))
    for number, word in enumerate(wanted.words):
        name = f"word{number}"
        conditions.append((dialect.contains(dialect.words, value(name, "text")), {name: fold(word)}))
    return conditions


def _in_project(dialect: Dialect, folders: Sequence[str]) -> Condition:
    """Return the condition that a session is of one of these folders or of a folder below; or of a folder of that name."""
    conditions: list[str] = []
    values: Values = {}
    for number, folder in enumerate(folders):
        name = f"project{number}"
        path = dialect.value(name, "text")
        if "/" in folder:
            conditions += [f"cwd = {path}", dialect.starts_with("cwd", f"{path} || '/'")]
        else:
            conditions.append(dialect.contains("cwd || '/'", f"'/' || {path} || '/'"))
        values[name] = folder.rstrip("/")
    return f"({' OR '.join(conditions)})", values


def _from_counts(dialect: Dialect, wanted: Filter) -> list[Condition]:
    """Return the conditions that need every line."""
    for name in wanted.has:
        _check("has", name, HAS)
    conditions: list[Condition] = [(HAS[name], {}) for name in wanted.has]
    if wanted.model is not None:
        model = dialect.lower(dialect.value("model", "text"))
        conditions.append((dialect.contains(dialect.lower(dialect.models), model), {"model": wanted.model}))
    return conditions


def _reason(wanted: Filter, imported: str) -> str:
    """Return the expression for why a row is hidden; NULL if it is shown."""
    for name in wanted.hide:
        _check("hide", name, _HIDDEN)
    hide = {*wanted.hide}
    if wanted.below is not None:
        hide.discard("imported")  # a folder that is named is shown as it is
    reasons = [f"WHEN {when or imported} THEN '{name}'" for name, when in _HIDDEN.items() if name in hide]
    return f"CASE {' '.join(reasons)} END" if reasons else "CAST(NULL AS TEXT)"


def _check(field: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise InvalidQuery(f"invalid {field} {name!r}", hint=f"use one of {', '.join(known)}")
