"""Sessions of all agents as the page lists them: what a card tells, and the questions that choose sessions.

Rules: what is unknown is `None`. A session can be written from here only if it lies in one's own store. Texts are told as they
are stored: whoever shows them escapes them.

What takes a library blocks.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from sessile import Filter, find_leaf
from sessile.core.dates import parse_moment
from sessile.errors import NotFound, SessileError
from sessile.gateway.wire import Told

if TYPE_CHECKING:
    from sessile import Library, SessionRow
    from sessile.gateway.service import Gateway
    from sessile.gateway.viewing import View

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
        if known is None or known[:2] != (row.size, row.modified):
            if len(self._known) >= _MOST_TAGS:
                self._known.clear()
            known = self._known[row.path] = (row.size, row.modified, _read_tag(library, row.path))
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
        modified=row.modified // _MILLION,
        created=row.created,
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
        since=None if since is None else moment(gateway, since) * _MILLION,
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
