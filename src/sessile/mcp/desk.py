"""What the tools work with: the library, the scope, the veils, and how a person gets to what they tell.

Rules: everything here blocks, and only reads; what is kept is the cache of the library. A session outside of the scope is as
if it did not exist. May be used from any thread.
"""

from __future__ import annotations

import posixpath
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from sessile import Filter, Presence
from sessile.core.dates import parse_moment
from sessile.core.digest import FIRST_TEXT
from sessile.core.visible import visible_line
from sessile.errors import Ambiguous, Refused, SessileError, SessionNotFound
from sessile.gateway.shelf import Shelf
from sessile.mcp.scope import Scope
from sessile.mcp.shapes import Card, Choosing, Link
from sessile.mcp.veil import Veil, Veils
from sessile.render.wording import moment

if TYPE_CHECKING:
    from datetime import tzinfo

    from sessile import Library, SessionRow, Store

PATIENCE = 10.0  # seconds after which a call answers with what it has
_MOST_CANDIDATES = 10  # that an error about an ambiguous name lists
_FRESH = 2.0  # seconds for which the address of the page is believed
_MILLION = 1_000_000  # nanoseconds in a millisecond
_HIDDEN = "[REDACTED:path]"
_SEQUENCE = re.compile(r"(?:^|\s)\[(?:[0-9;?]{1,12}[A-Za-z]|[mK])")
_HINT = "list_sessions and search_sessions tell which there are"


class Call:
    """One call that somebody waits for, as long as they do."""

    def __init__(self, seconds: float = PATIENCE) -> None:
        self.deadline = time.monotonic() + seconds
        self._given_up = threading.Event()

    def give_up(self) -> None:
        """Nobody waits any more."""
        self._given_up.set()

    def is_late(self) -> bool:
        """Whether it is time to answer with what there is; raises if nobody waits for that."""
        if self._given_up.is_set():
            raise Refused("the call was cancelled")
        return time.monotonic() > self.deadline


class Links(NamedTuple):
    """How a person gets to what was found: `command` calls up this very store, `page` is where its gateway runs, if one does."""

    command: str
    page: Callable[[], str | None]

    def to(self, veil: Veil, row: SessionRow, entry: str | None = None) -> Link:
        """The way to a session, or to an entry of it."""
        name = (
            path_of(veil, row) if row.id is None or row.sub_agent else row.id
        )  # a sub-agent may have its session's id
        address = name if entry is None else f"{name}#{entry}"
        told = veil.line(f"{self.command} show {shlex.quote(address)}", most=5_000) or ""
        return Link(command=told, page=self._page(veil, row, entry))

    def _page(self, veil: Veil, row: SessionRow, entry: str | None) -> str | None:
        url = self.page()
        if url is None or row.id is None or row.sub_agent:
            return None
        address = f"{url}/s/{quote(row.id, safe='')}"
        if entry is not None:
            from sessile.render.fragments import anchor_of  # the page's own words: only who has a page needs them

            address += f"#{anchor_of(entry)}"
        return veil.line(address, most=5_000)


class Page:
    """Where the gateway of a store shows its page: asked anew when somebody may have started or ended one."""

    def __init__(self, store: Store) -> None:
        self._presence = Presence(store)
        self._known: tuple[float, str | None] | None = None  # when it was asked, and the answer

    def __call__(self) -> str | None:
        """The address; `None` if none runs on this machine."""
        known, now = self._known, time.monotonic()
        if known is None or now - known[0] > _FRESH:
            known = self._known = (now, self._look())
        return known[1]

    def _look(self) -> str | None:
        try:
            found = self._presence.running()
        except SessileError:
            return None  # what cannot be read is no way to anywhere; the command is
        is_here = found is not None and found.host in ("", socket.gethostname())
        return found.url.rstrip("/") if found is not None and is_here else None


class Desk:
    """Everything that a tool needs; `zone` is where a day begins."""

    def __init__(
        self, make: Callable[[], Library], store: Store, *, scope: Scope, veils: Veils, links: Links, zone: tzinfo
    ) -> None:
        self.store = store
        self.shelf = Shelf(make)
        self.scope = scope
        self.veils = veils
        self.links = links
        self._zone = zone

    def begin(self) -> None:
        """Look at all files before anybody asks."""
        threading.Thread(target=self._look, name="sessile-look", daemon=True).start()

    def _look(self) -> None:
        with suppress(SessileError), self.shelf.asked():  # what goes wrong is told to whoever asks next
            pass

    def close(self) -> None:
        """Let go of the library."""
        self.shelf.close()

    def chosen(self, library: Library, asked: Choosing) -> Filter:
        """The filter for what a call asks for, within the scope."""
        since, until = (None if text is None else self._moment(text) for text in (asked.since, asked.until))
        return self.scope.chosen(library, asked.agent, asked.project)._replace(since=since, until=until)

    def _moment(self, text: str) -> int:
        return parse_moment(text, int(time.time() * 1000), self._zone) * _MILLION

    def find(self, name: str) -> SessionRow:
        """The one session in the scope that has this path, this id, or an id that begins so."""
        with self.shelf.asked() as library:
            wanted = self.scope.chosen(library)
            rows = _at_path(library, wanted, name) if "/" in name else _by_id(library, wanted, name)
        if not rows:
            raise SessionNotFound(f"there is no session {name[:80]!r} that this server shows", hint=_HINT)
        if len(rows) > 1:
            veil = self.veils.plain()
            told = [
                {"id": veil.line(row.id), "title": veil.line(catalogued(row.title)), "path": path_of(veil, row)}
                for row in rows[:_MOST_CANDIDATES]
            ]
            hint = "say more of the id, or the path"
            raise Ambiguous(f"session {name[:80]!r} is ambiguous ({len(rows)})", hint=hint, candidates=told)
        return rows[0]

    def card(self, library: Library, row: SessionRow, veil: Veil) -> Card:
        """What is told of a session."""
        counts = row.counts
        return Card(
            id=veil.line(row.id, 1_000),
            path=path_of(veil, row),
            agent=veil.line(library.agent_of(row.path)),
            project=veil.line(row.cwd, 4_000),
            title=veil.line(catalogued(row.title)),
            first_text=veil.line(catalogued(row.first_text)),
            created=iso(row.created),
            modified=iso(row.modified // _MILLION),
            entries=None if counts is None else counts.entries,
            messages=None if counts is None else counts.messages,
            branches=None if counts is None else counts.branches,
            sub_agent=row.sub_agent,
            problem=veil.line(row.problem),
            link=self.links.to(veil, row),
        )


def _at_path(library: Library, wanted: Filter, path: str) -> list[SessionRow]:
    folder = posixpath.dirname(path)
    if wanted.below is not None and not any(path.startswith(f"{place}/") for place in wanted.below):
        return []
    return [row for row in library.list(wanted._replace(below=[folder])).rows if row.path == path]


def _by_id(library: Library, wanted: Filter, name: str) -> list[SessionRow]:
    rows = library.list(wanted._replace(id_prefix=name, hide=("unreadable",))).rows
    rows = [row for row in rows if row.id == name] or rows
    if len({row.id for row in rows}) == 1:  # a sub-agent has a path; of an imported session one's own copy is meant
        rows = [row for row in rows if not row.sub_agent] or rows
        layout = library.store.layout
        rows = [row for row in rows if layout.owns(row.path)] or rows
        rows = [row for row in rows if not layout.keeps(row.path)] or rows
    return rows


def path_of(veil: Veil, row: SessionRow) -> str:
    """The path of a session as it may be told; the folder of its file may spell a secret of its project in another way."""
    project = row.cwd or ""
    return (
        _HIDDEN if veil.line(project, len(project) + 1) != visible_line(project) else veil.line(row.path, 4_000) or ""
    )


def catalogued(text: str | None) -> str | None:
    """A text as catalogs keep it, up to where half a secret could stand: it has no shape any more.

    That is a last word that may be cut, and what an escape sequence has left, of which the catalog keeps no more than a part.
    """
    if text is None:
        return None
    left = _SEQUENCE.search(text)
    if left is not None:
        return f"{text[: left.start()]}…"
    return text if len(text) < FIRST_TEXT else f"{text.rpartition(' ')[0]}…"


def iso(milliseconds: int | None) -> str | None:
    """A moment in ISO 8601; `None` if it is unknown, or no calendar has it."""
    return moment(milliseconds) or None
