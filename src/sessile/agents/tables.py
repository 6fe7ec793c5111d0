"""Sessions in the tables of a database: what agents with such sessions have in common.

    class Goose(TableAgent):
        reader = Sessions()                      lists the sessions of a database, and renders one

A session has the path `…/sessions.db/<id>.jsonl`; that of a sub-agent is in the folder of the session that started it:
`…/sessions.db/<id>/subagents/<id>.jsonl`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

from sessile.agents.base import Agent, Entry
from sessile.core.codec import decode
from sessile.core.digest import FIRST_TEXT, shown
from sessile.core.lines import Finding
from sessile.core.text import iso_timestamp
from sessile.storage.foreign_sqlite import Database, reading
from sessile.storage.head import Glance
from sessile.storage.layout import JOURNAL, Source

if TYPE_CHECKING:
    from sessile.storage.base import Filesystem
    from sessile.storage.formats import Stored

SUB_AGENTS = "subagents"
_DEEPEST = 8  # levels of sub-agents
_LAST_TIME = 253402300800000  # the year 10000, in milliseconds

Json = Mapping[str, Any]


class Reader(Protocol):
    """Reads the sessions of one program's databases."""

    def stored(self, fs: Filesystem, place: str) -> Iterable[Stored]:
        """Return every session of a database."""
        ...

    def render(self, fs: Filesystem, place: str, path: str) -> Iterator[Entry | Finding]:
        """Yield one session."""
        ...

    def about(self, place: str, path: str) -> Mapping[str, Any]:
        """Return the kind (`agentType`) and the task (`description`) of a sub-agent."""
        ...


class TableAgent(Agent):
    """An agent whose sessions are in tables of a database. Set `reader`, and `database` or `is_database`."""

    rendered = True
    database: str = ""
    reader: Reader

    def is_database(self, name: str) -> bool:
        """Return whether a file of that name is one of its databases."""
        return name == self.database

    def databases(self, folder: str, names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the databases in a folder."""
        return [Source(self.name, folder, f"{folder}/{name}") for name in names(folder) if self.is_database(name)]

    def sources_at(self, folder: str, names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the databases in a home folder, or in the folder itself."""
        return [*super().sources_at(folder, names), *self.databases(folder, names)]

    def stored(self, fs: Filesystem, place: str) -> Iterable[Stored] | None:
        """Return the sessions of a database."""
        return self.reader.stored(fs, place) if self.is_database(place.rpartition("/")[2]) else None

    def renders(self, path: str, first: bytes) -> bool:
        """Return whether a path is inside of a database."""
        return not first and self.database_of(path) is not None

    def render(self, fs: Filesystem, path: str) -> Iterator[Entry | Finding]:
        """Yield one session of a database."""
        return self.reader.render(fs, self.database_of(path) or path, path)

    def sub_agents_of(self, fs: Filesystem, path: str) -> Sequence[str] | None:
        """Return the sessions that were started by a session, and by those."""
        place = self.database_of(path)
        if place is None:
            return None
        below = f"{path.removesuffix(JOURNAL)}/"
        return sorted(stored.path for stored in self.reader.stored(fs, place) if stored.path.startswith(below))

    def describe_sub_agent(self, fs: Filesystem, path: str) -> Mapping[str, Any]:
        """Return the kind and the task of a sub-agent."""
        return self.reader.about(self.database_of(path) or path, path)

    def database_of(self, path: str) -> str | None:
        """Return the database that a path is inside of."""
        parts = path.split("/")
        ends = (number for number, part in enumerate(parts[:-1], 1) if self.is_database(part))
        return next(("/".join(parts[:end]) for end in ends), None)


# -- listing


class Looks:
    """Looks at sessions for a listing, over one connection, which is closed with the last look."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._stack = ExitStack()
        self._opened: Database | None = None
        weakref.finalize(self, self._stack.close)

    @property
    def database(self) -> Database:
        """The connection."""
        if self._opened is None:
            self._opened = self._stack.enter_context(reading(self._place))
        return self._opened

    def first(self, query: str, values: Sequence[Any], of: Callable[[tuple[Any, ...]], str]) -> str:
        """Return the first text that rows of a query have; what cannot be read here is a finding when the session is read."""
        try:
            return next((text for row in self.database.rows(query, values) if (text := of(row))), "")
        except ValueError:
            return ""


def glance(session_id: str, cwd: object, title: object, created: str | None, first: str, last: Json | None) -> Glance:
    """Return what a listing shows of a session; `last` is the last message."""
    named = shown(title) or ""
    role = str((last or {}).get("role") or "")
    return Glance(
        id=session_id,
        cwd=shown(cwd) or "",
        title=named,
        created=created or "",
        parent="",
        first_text=(shown(first) or "")[:FIRST_TEXT],
        last_role=role,
        last_status=str((last or {}).get("stopReason") or "") if role == "assistant" else "",
        header_title=named,
        header_at=0,
        version=3,
    )


def path_of(place: str, session_id: str, parents: Mapping[str, str | None]) -> str:
    """Return the path of a session; `parents` has the session that started each."""
    above: list[str] = []
    parent = parents.get(session_id)
    while parent is not None and parent in parents and parent not in (*above, session_id) and len(above) < _DEEPEST:
        above.append(parent)
        parent = parents.get(parent)
    folders = "".join(f"{each}/{SUB_AGENTS}/" for each in reversed(above))
    return f"{place}/{folders}{session_id}{JOURNAL}"


# -- one session


class Lines:
    """Makes entries, each a child of the one before, with ids that occur once."""

    def __init__(self) -> None:
        self.last: str | None = None
        self._seen: dict[str, int] = {}

    def entry(self, kind: str, entry_id: str, at: str | None, **members: Any) -> Entry:
        """Return an entry that follows the last one."""
        count = self._seen[entry_id] = self._seen.get(entry_id, 0) + 1
        entry_id = entry_id if count == 1 else f"{entry_id}-{count}"
        entry: Entry = {"type": kind, "id": entry_id, "parentId": self.last, "timestamp": at, **members}
        self.last = entry_id
        return entry


def damaged(text: str) -> Finding:
    """Return the finding for what cannot be read."""
    return Finding("damaged_source", -1, 0, text)


# -- values


def value_in(data: object) -> Any:
    """Return the JSON value in a column; `None` if there is none."""
    if not isinstance(data, str | bytes):
        return None
    try:
        return decode(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)
    except (ValueError, RecursionError):
        return None


def object_in(data: object) -> dict[str, Any]:
    """Return the JSON object in a column; an empty one if there is none."""
    value = value_in(data)
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[dict[str, Any]]:
    """Return the objects of a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def mapping(value: object) -> Json:
    """Return a value that is an object; an empty one for any other."""
    return value if isinstance(value, Mapping) else {}


def number(value: object) -> int | None:
    """Return a number that is one, without fractions."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53 else None


def time_of(value: object) -> str | None:
    """Return a time in milliseconds as an ISO timestamp."""
    milliseconds = number(value)
    return None if milliseconds is None or not 0 <= milliseconds < _LAST_TIME else iso_timestamp(milliseconds)


def present(members: Entry) -> Entry:
    """Return the members that have a value."""
    return {name: value for name, value in members.items() if value is not None}
