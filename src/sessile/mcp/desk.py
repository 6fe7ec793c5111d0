"""What the tools work with: the library, the scope, the veils, and how a person gets to what they tell.

Rules: everything here blocks, and only reads; what is kept is the cache of the library. A session outside of the scope is as
if it did not exist. May be used from any thread.

What a server shows: everything, or the sessions of an agent, of a project, or both.

Rules: whoever starts the server chooses its scope. What a call asks for narrows it; what lies outside is refused, or is as if
it did not exist: it is not found, not counted, and not named in an error.

What leaves the server: stored text without secrets, and without anything that could drive a terminal.

    veil = veils.over(session)      for the entries of a session
    veil = veils.plain()            for what belongs to none: lists, errors

Rules:

- Whoever starts the server decides whether secrets are shown; no call can.
- A text is made visible first and redacted then: what was hidden between the letters of a secret does not save it. It is redacted
  as a whole and cut afterwards: half a secret has no shape.
- A secret that only its surroundings give away (`PASSWORD=…`) is hidden wherever else the session has it: the veil reads the
  session for that, as far as the time reaches, and says if it was too short.
- The same secret has the same placeholder in all answers about a session.

May be used from any thread.
"""

from __future__ import annotations

import posixpath
import re
import shlex
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from sessile.core.dates import parse_moment
from sessile.core.digest import FIRST_TEXT
from sessile.core.redact import Redactor
from sessile.core.text import utc_datetime
from sessile.core.visible import visible, visible_line, without_colours
from sessile.errors import Ambiguous, NotFound, Refused, SessileError, SessionNotFound, TooLarge
from sessile.gateway.conversations.presence import Presence
from sessile.gateway.handles import Shelf
from sessile.mcp.shapes import Card, Choosing, Link
from sessile.render.wording import moment
from sessile.storage.filters import Filter

if TYPE_CHECKING:
    from datetime import tzinfo

    from sessile.library import Library
    from sessile.session import Session
    from sessile.storage.catalog_rows import SessionRow
    from sessile.store import Store


# --- scope

_SCOPE_HINT = "leave it out: the server shows all that it may"


class Scope(NamedTuple):
    """The sessions that may be shown. `worktrees` are folders that count as the project, too."""

    agent: str | None = None
    project: str | None = None
    worktrees: Sequence[str] = ()

    def words(self) -> str:
        """The scope for whoever reads an answer."""
        told = [f"agent {self.agent}" if self.agent else "", f"project {self.project}" if self.project else ""]
        return " and ".join(filter(None, told)) or "all sessions"

    def chosen(self, library: Library, agent: str | None = None, project: str | None = None) -> Filter:
        """The filter for what is in the scope and is asked for, with nothing hidden."""
        named = self.agent if agent is None else self._agent(agent)
        below = None if named is None else folders_of(library, named)
        if project is None:
            return Filter(project=self.project, worktrees=self.worktrees, below=below, hide=())
        return Filter(project=self._project(project), below=below, hide=())

    def _agent(self, agent: str) -> str:
        if self.agent not in (None, agent):
            raise Refused(f"this server shows only sessions of {self.agent}", hint=_SCOPE_HINT)
        return agent

    def _project(self, project: str) -> str:
        """A folder within the scope; a name that only looks like one of its folders is not taken for it."""
        if self.project is None:
            return posixpath.normpath(project) if "/" in project else project
        wanted = posixpath.normpath(project)
        if not any(wanted == place or wanted.startswith(f"{place}/") for place in (self.project, *self.worktrees)):
            raise Refused(f"this server shows only sessions of the project {self.project}", hint=_SCOPE_HINT)
        return wanted


def folders_of(library: Library, agent: str) -> list[str]:
    """The folders in which an agent keeps its sessions."""
    folders = [source.sessions for source in library.sources if source.agent == agent]
    if not folders:
        known = sorted({source.agent for source in library.sources})
        raise NotFound(f"no sessions of {agent[:40]!r} were found", hint=f"there are those of {', '.join(known)}")
    return folders


# --- veil

LARGEST = 8 << 20  # bytes of an entry that is looked at: more than a line of ours can have
_LEARNING = 1.0  # seconds that a call may spend on reading a session for its secrets
_SESSIONS = 64  # whose secrets are remembered
_NESTED = "(nested too deeply to be shown)"


class Veil:
    """Hides secrets in texts that belong together."""

    def __init__(self, redactor: Redactor | None) -> None:
        self._redactor = redactor
        self._lock = threading.Lock()
        self._learning = threading.Lock()
        self._seen = 0  # lines of the session that were read
        self.complete = redactor is None

    def text(self, text: str) -> str:
        """A stored text as it may leave."""
        shown = visible(without_colours(text))
        if self._redactor is None:
            return shown
        with self._lock:
            return self._redactor.redact(shown)

    def line(self, text: str | None, most: int = 500) -> str | None:
        """The same on one line, and cut where it gets long; `None` stays `None`."""
        if text is None:
            return None
        told = visible_line(self.text(text))
        return told if len(told) <= most else f"{told[: most - 1]}…"

    def value(self, value: Any) -> Any:
        """A stored JSON value without secrets; names of members tell which texts are."""
        if self._redactor is None:
            return value
        with self._lock:
            try:
                return self._redactor.redact_value(value)
            except TooLarge:
                return {"type": "custom", "customType": _NESTED}

    def learn(self, session: Session, seconds: float = _LEARNING) -> None:
        """Read a session for secrets, from where the last call stopped."""
        if self._redactor is None:
            return
        deadline = time.monotonic() + seconds
        with self._learning:
            self.complete = False
            for entry in session.iter_lines(self._seen):
                if time.monotonic() > deadline:
                    return
                if len(entry.raw) <= LARGEST:
                    self.value(entry.body)
                self._seen += 1
            self.complete = True


class Veils:
    """The veils of a server; with `show_secrets` they hide none."""

    def __init__(self, *, show_secrets: bool = False) -> None:
        self._show_secrets = show_secrets
        self._lock = threading.Lock()
        self._over: OrderedDict[tuple[str, str], Veil] = OrderedDict()

    @property
    def hide(self) -> bool:
        """Whether secrets are hidden."""
        return not self._show_secrets

    def plain(self) -> Veil:
        """A veil that knows of no session."""
        return Veil(None if self._show_secrets else Redactor())

    def over(self, session: Session) -> Veil:
        """The veil of a session, which has read as much of it as the time allows."""
        key = (session.path, session.id)
        with self._lock:
            veil = self._over.setdefault(key, self.plain())
            self._over.move_to_end(key)
            if len(self._over) > _SESSIONS:
                self._over.popitem(last=False)
        veil.learn(session)
        return veil


# --- desk

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
            from sessile.render.html import anchor_of  # the page's own words: only who has a page needs them

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

    def _moment(self, text: str) -> datetime:
        return utc_datetime(parse_moment(text, int(time.time() * 1000), self._zone) * 1000)

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
            created=iso(row.created_ms),
            modified=iso(row.modified_ns // _MILLION),
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
