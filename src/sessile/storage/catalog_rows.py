"""The table of sessions in the catalog: its columns, and how a listing asks for rows.

A row is known in three steps: from the ends of the file (`look`), from every line (`count`), and by its words (`index`). What
a step has not told yet is `None`. A listing says how many rows it hides, and why, and how many it could not judge.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from sessile.core.codec import decode, encode_plain
from sessile.core.digest import Counts
from sessile.core.text import parse_timestamp
from sessile.core.words import fold
from sessile.errors import InvalidQuery

COUNTS = Counts.__struct_fields__
_OBJECTS = ("roles", "models")  # stored as JSON

SESSIONS = (
    "CREATE TABLE sessions (number INTEGER PRIMARY KEY, path BLOB NOT NULL,"
    # The file as it was when the row was made; without a size it is looked at again every time.
    " size INTEGER, mtime_ns INTEGER NOT NULL, inode INTEGER NOT NULL, sub_agent INTEGER NOT NULL,"
    # What its ends say.
    " format TEXT, problem TEXT, id TEXT, cwd TEXT, title TEXT, created TEXT, parent TEXT, first_text TEXT,"
    " last_role TEXT, last_status TEXT, header_title TEXT, header_at INTEGER, version INTEGER,"
    # How far its lines were counted and indexed, and what is needed to go on.
    " covered INTEGER NOT NULL DEFAULT 0, fit BLOB, state BLOB, counted INTEGER NOT NULL DEFAULT 0,"
    " indexed INTEGER NOT NULL DEFAULT 0, searchable INTEGER NOT NULL DEFAULT 0, passages INTEGER NOT NULL DEFAULT 0,"
    f" {', '.join(COUNTS)})",
    # A listing that is up to date, and a search, are answered from these alone, but for the rows that they show.
    "CREATE INDEX files ON sessions"
    " (path, number, size, mtime_ns, inode, format, sub_agent, counted, messages, indexed, searchable)",
    "CREATE INDEX newest ON sessions (mtime_ns)",
    "CREATE INDEX titled ON sessions (mtime_ns) WHERE title IS NOT NULL",
)

HIDE = ("unreadable", "empty", "sub_agent")
_REASON = (
    "CASE WHEN format IS NULL THEN 'unreadable' WHEN sub_agent THEN 'sub_agent'"
    " WHEN counted AND messages = 0 THEN 'empty'"
    "{one_shot} END"
)
_ONE_SHOT = " WHEN counted AND user_messages = 1 AND title IS NULL AND labels = 0 THEN 'one_shot'"
HAS = {
    "branch": "branches > 1",
    "error": "(errors > 0 OR tool_failures > 0)",
    "image": "images > 0",
    "compaction": "compactions > 0",
    "label": "labels > 0",
    "finding": "findings > 0",
}
_SHOWN = (
    "number, path, size, mtime_ns, sub_agent, format, problem, id, cwd, title, created, parent, first_text,"
    f" last_role, last_status, counted, searchable, {', '.join(COUNTS)}"
)


class SessionRow(NamedTuple):
    """What the catalog knows of a session; `None` is unknown. `counts` is `None` until every line was counted."""

    number: int  # of the row in this catalog
    path: str
    size: int | None
    modified: int  # nanoseconds since 1970
    sub_agent: bool
    format: str | None  # None: no session, and `problem` says why
    problem: str | None
    id: str | None
    cwd: str | None
    title: str | None
    created: int | None  # milliseconds since 1970
    parent: str | None
    first_text: str | None
    last_role: str | None
    last_status: str | None
    searchable: bool
    counts: Counts | None


class Listing(NamedTuple):
    """Rows, newest first, and what is not among them."""

    rows: list[SessionRow]
    total: int  # rows that match, shown or cut off by the limit
    hidden: dict[str, int]  # rows that match, by the reason why they are not shown
    unjudged: int  # rows of which a filter needs counts that nobody has made yet


class Filter(NamedTuple):
    """What to list. Times are nanoseconds since 1970; `words` are sought in title and first text."""

    project: str | None = None
    since: int | None = None
    until: int | None = None
    model: str | None = None
    has: Collection[str] = ()
    words: Sequence[str] = ()
    named: bool = False
    id_prefix: str | None = None
    hide: Collection[str] = HIDE
    limit: int | None = None


EVERYTHING = Filter()


def listing(database: sqlite3.Connection, places: Sequence[str], wanted: Filter) -> Listing:
    """The rows below these places that a filter lets through."""
    database.create_function("fold", 1, fold, deterministic=True)
    cheap, values = _cheap(places, wanted)
    dear, more = _dear(wanted)
    where = " AND ".join([*cheap, *dear]) or "1"
    hide = [_quoted(reason) for reason in wanted.hide]
    reason = _REASON.format(one_shot=_ONE_SHOT if "one_shot" in wanted.hide else "")  # needs more columns than the rest
    is_shown = f"coalesce({reason}, '') NOT IN ({', '.join(hide)})"
    values |= more
    select = (
        f"SELECT {_SHOWN} FROM sessions WHERE {where} AND {is_shown} ORDER BY mtime_ns DESC, number DESC LIMIT :limit"
    )
    rows = [
        _row(row) for row in database.execute(select, values | {"limit": -1 if wanted.limit is None else wanted.limit})
    ]
    count = f"SELECT {reason} AS reason, count(*) FROM sessions WHERE {where} GROUP BY reason"
    reasons = dict(database.execute(count, values).fetchall())
    hidden = {reason: reasons[reason] for reason in sorted(wanted.hide) if reasons.get(reason)}
    unjudged = 0
    if dear:
        unknown = f"SELECT count(*) FROM sessions WHERE {' AND '.join([*cheap, 'NOT counted', 'format IS NOT NULL'])}"
        (unjudged,) = database.execute(unknown, values).fetchone()
    return Listing(rows, sum(reasons.values()) - sum(hidden.values()), hidden, unjudged)


def _cheap(places: Sequence[str], wanted: Filter) -> tuple[list[str], dict[str, Any]]:
    """Conditions that the ends of a file can answer."""
    condition, values = within(places)
    conditions = [condition]
    if wanted.project is not None:
        conditions.append("(cwd = :project OR substr(cwd, 1, length(:project) + 1) = :project || '/')")
        values["project"] = wanted.project.rstrip("/")
    if wanted.since is not None:
        conditions.append("mtime_ns >= :since")
        values["since"] = wanted.since
    if wanted.until is not None:
        conditions.append("mtime_ns < :until")
        values["until"] = wanted.until
    if wanted.id_prefix is not None:
        conditions.append("substr(id, 1, length(:prefix)) = :prefix")
        values["prefix"] = wanted.id_prefix
    if wanted.named:
        conditions.append("title IS NOT NULL")
    for number, word in enumerate(wanted.words):
        conditions.append(f"instr(fold(coalesce(title, '') || char(10) || coalesce(first_text, '')), :word{number})")
        values[f"word{number}"] = fold(word)
    return conditions, {name: storable(value) for name, value in values.items()}


def _dear(wanted: Filter) -> tuple[list[str], dict[str, Any]]:
    """Conditions that need every line."""
    unknown = [name for name in wanted.has if name not in HAS]
    if unknown:
        raise InvalidQuery(
            f"a session cannot be asked whether it has {unknown[0]!r}", hint=f"use one of {', '.join(HAS)}"
        )
    conditions = [HAS[name] for name in wanted.has]
    values = {}
    if wanted.model is not None:
        conditions.append("instr(lower(CAST(models AS TEXT)), lower(:model))")
        values["model"] = storable(wanted.model)
    return conditions, values


def within(places: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The condition that a row lies below one of these folders."""
    conditions = ["0"]
    values: dict[str, Any] = {}
    for number, place in enumerate(places):
        folder = os.fsencode(place.rstrip("/"))
        conditions.append(f"path BETWEEN :from{number} AND :to{number}")
        values |= {f"from{number}": folder + b"/", f"to{number}": folder + b"/\xff"}
    return f"({' OR '.join(conditions)})", values


def storable(value: Any) -> Any:
    """UTF-8, and so SQLite, has no lone surrogates."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) and not value.isascii() else value


def counts_as_columns(counts: Counts) -> list[Any]:
    """The values of the columns `COUNTS`."""
    return [encode_plain(value) if isinstance(value, dict) else value for value in msgspec.structs.astuple(counts)]


def _row(columns: Sequence[Any]) -> SessionRow:
    *about, counted, searchable = columns[: -len(COUNTS)]
    counts = None
    if counted:
        values = dict(zip(COUNTS, columns[-len(COUNTS) :], strict=True))
        counts = Counts(**values | {name: decode(values[name]) for name in _OBJECTS})
    row = SessionRow._make([*about, bool(searchable), counts])
    return row._replace(path=os.fsdecode(about[1]), sub_agent=bool(row.sub_agent), created=parse_timestamp(row.created))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
