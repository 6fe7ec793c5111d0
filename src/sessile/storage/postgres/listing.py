"""A filter as a question to the catalog in a database: the same rows, in the same order, as the catalog in a file gives.

Rules are those of `catalog_rows`: a listing says how many rows it hides, and why, and how many it could not judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sessile.core.text import without_surrogates
from sessile.core.words import fold
from sessile.storage.catalog_rows import HAS, SHOWN, SORTS, Filter, Listing, check, in_64_bits, row_of
from sessile.storage.postgres.database import Database

_HIDDEN = {  # why a row is not shown; the first of the reasons that are asked for counts
    "unreadable": "format IS NULL",
    "sub_agent": "sub_agent",
    "imported": "EXISTS (SELECT 1 FROM catalog own WHERE own.origin = catalog.path)",
    "empty": "counted AND messages = 0",
    "one_shot": "counted AND user_messages = 1 AND title IS NULL AND labels = 0",
}
_SORTS = SORTS | {"started": "started"}
_LAST = "\U0010ffff"


class PostgresQuestion:
    """A filter as SQL: which rows match, and which of them are shown."""

    def __init__(self, database: Database, places: Sequence[str], wanted: Filter) -> None:
        self._database = database
        self._wanted = wanted
        self._cheap, self._values = _cheap(places, wanted)
        self._dear, more = _dear(wanted)
        self._values |= more
        self._where = " AND ".join([*self._cheap, *self._dear])
        for reason in wanted.hide:
            check("a listing cannot hide what is", reason, _HIDDEN)
        hide = {*wanted.hide} - ({"imported"} if wanted.below is not None else set())  # who names a folder means it
        reasons = [f"WHEN {when} THEN '{name}'" for name, when in _HIDDEN.items() if name in hide]
        self._reason = f"CASE {' '.join(reasons)} END" if reasons else "NULL::text"
        self._is_shown = f"{self._where} AND {self._reason} IS NULL"

    def shown(self, columns: str) -> list[tuple[Any, ...]]:
        """Columns of all rows that are shown, newest first."""
        return self._ask(f"SELECT {columns} FROM catalog WHERE {self._is_shown} {_order('recent')}")

    def page(self, columns: str) -> list[tuple[Any, ...]]:
        """Columns of the rows of one page."""
        limit = None if self._wanted.limit is None else in_64_bits(self._wanted.limit)
        page = {"limit": limit, "offset": in_64_bits(self._wanted.offset)}
        limits = "LIMIT %(limit)s::bigint OFFSET %(offset)s::bigint"
        return self._ask(
            f"SELECT {columns} FROM catalog WHERE {self._is_shown} {_order(self._wanted.sort)} {limits}", **page
        )

    def hidden(self) -> tuple[int, dict[str, int]]:
        """How many rows are shown, and how many are hidden for what reason."""
        found = self._ask(f"SELECT {self._reason}, count(*) FROM catalog WHERE {self._where} GROUP BY 1")
        counts: dict[str | None, int] = dict(found)
        return counts.get(None, 0), {name: counts[name] for name in sorted(self._wanted.hide) if name in counts}

    def uncounted(self) -> int:
        """How many rows may match once they are counted."""
        where = " AND ".join([*self._cheap, "NOT counted", "format IS NOT NULL"])
        ((found,),) = self._ask(f"SELECT count(*) FROM catalog WHERE {where}")
        return int(found)

    def unjudged(self) -> int:
        """How many rows the filter cannot judge because they are not counted yet."""
        return self.uncounted() if self._dear else 0

    def _ask(self, select: str, **more: Any) -> list[tuple[Any, ...]]:
        return self._database.query(select, self._values | more, again=True)


def listing(database: Database, places: Sequence[str], wanted: Filter) -> Listing:
    """The rows below these places that a filter lets through."""
    question = PostgresQuestion(database, places, wanted)
    return Listing([row_of(row) for row in question.page(SHOWN)], *question.hidden(), question.unjudged())


def within(places: Sequence[str], name: str = "place", *, column: str = "path") -> tuple[str, dict[str, Any]]:
    """The condition that a path lies below one of these folders; `name` keeps its values apart from others."""
    conditions = ["false"]
    values: dict[str, Any] = {}
    for number, place in enumerate(places):
        folder = place.rstrip("/").encode("utf-8", "surrogateescape")
        conditions.append(f"{column} BETWEEN %({name}{number})s AND %({name}{number}_end)s")
        values |= {f"{name}{number}": folder + b"/", f"{name}{number}_end": folder + b"/\xff"}
    return f"({' OR '.join(conditions)})", values


def storable(value: Any) -> Any:
    """A text of PostgreSQL has neither lone surrogates nor NUL."""
    return without_surrogates(value).replace("\0", "\ufffd") if isinstance(value, str) else value


def _order(sort: str) -> str:
    check("sessions cannot be sorted by", sort, _SORTS)
    return f"ORDER BY {_SORTS[sort]} DESC NULLS LAST, mtime_ns DESC, number DESC"


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
            name = f"%(project{number})s::text"
            at_path = f"cwd = {name} OR starts_with(cwd, {name} || '/')"
            places_of_it.append(at_path if "/" in folder else f"strpos(cwd || '/', '/' || {name} || '/') > 0")
            values[f"project{number}"] = folder.rstrip("/")
        conditions.append(f"({' OR '.join(places_of_it)})")
    if wanted.since is not None:
        conditions.append("mtime_ns >= %(since)s::bigint")
        values["since"] = in_64_bits(wanted.since)
    if wanted.until is not None:
        conditions.append("mtime_ns < %(until)s::bigint")
        values["until"] = in_64_bits(wanted.until)
    if wanted.id_prefix is not None:
        conditions.append("id BETWEEN %(prefix)s AND %(prefix_end)s")
        values |= {"prefix": wanted.id_prefix, "prefix_end": wanted.id_prefix + _LAST}
    if wanted.pinned is not None:
        conditions.append("id = ANY(%(pinned)s::text[])")
        values["pinned"] = [storable(session_id) for session_id in wanted.pinned]
    if wanted.named:
        conditions.append("title IS NOT NULL")
    for number, word in enumerate(wanted.words):
        told = "coalesce(folded_title, '') || chr(10) || coalesce(folded_text, '')"
        conditions.append(f"strpos({told}, %(word{number})s::text) > 0")
        values[f"word{number}"] = fold(word)
    return conditions, {name: storable(value) for name, value in values.items()}


def _dear(wanted: Filter) -> tuple[list[str], dict[str, Any]]:
    """Conditions that need every line."""
    for name in wanted.has:
        check("a session cannot be asked whether it has", name, HAS)
    conditions = [HAS[name] for name in wanted.has]
    values = {}
    if wanted.model is not None:
        told = """lower(convert_from(models, 'UTF8') COLLATE "C")"""
        conditions.append(f"""strpos({told}, lower(%(model)s::text COLLATE "C")) > 0""")
        values["model"] = storable(wanted.model)
    return conditions, values
