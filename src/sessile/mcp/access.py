"""What the MCP tools may read, and how it leaves the server: scope, redaction and links.

Rules:

- The user who starts the server chooses its scope, and whether secrets are shown. A call can narrow the scope, never widen
  it. Sessions outside of it are not found, not counted and not named in errors.
- Text is made visible first and redacted then, so that invisible characters cannot hide a secret. It is redacted as a
  whole and cut afterwards.
- Secrets that only their context gives away (`PASSWORD=…`) are hidden everywhere in the session. The mask reads the session
  for that within a time limit, and says if it was not enough. A secret has the same placeholder in all answers.
- Everything here is read-only, blocks, and may be used from any thread.
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

from sessile.core.codec import encode_plain
from sessile.core.dates import parse_moment
from sessile.core.digest import FIRST_TEXT
from sessile.core.redact import Redactor
from sessile.core.text import utc_datetime
from sessile.core.visible import visible, visible_line, without_colours
from sessile.errors import Ambiguous, NotFound, Refused, SessileError, SessionNotFound, TooLarge
from sessile.gateway.conversations.presence import Presence
from sessile.gateway.handles import Shelf
from sessile.mcp.shapes import Card, Link, Selection
from sessile.render.wording import moment
from sessile.storage.drafts import located
from sessile.storage.filters import Filter

if TYPE_CHECKING:
    from datetime import tzinfo

    from sessile.core.entries import Entry, Payload
    from sessile.library import Library
    from sessile.session import Session
    from sessile.storage.catalog_rows import SessionRow
    from sessile.store import Store


# -- scope

_SCOPE_HINT = "omit it: the server shows everything in its scope"


class Scope(NamedTuple):
    """The sessions that may be shown; `worktrees` are more folders of the project."""

    agent: str | None = None
    project: str | None = None
    worktrees: Sequence[str] = ()

    def words(self) -> str:
        """Return the scope in words."""
        parts = [f"agent {self.agent}" if self.agent else "", f"project {self.project}" if self.project else ""]
        return " and ".join(filter(None, parts)) or "all sessions"

    def chosen(self, library: Library, agent: str | None = None, project: str | None = None) -> Filter:
        """Return the filter for the scope, narrowed to an agent and a project."""
        named = self.agent if agent is None else self._agent(agent)
        below = None if named is None else folders_of(library, named)
        if project is None:
            return Filter(project=self.project, worktrees=self.worktrees, below=below, hide=())
        return Filter(project=self._project(project), below=below, hide=())

    def _agent(self, agent: str) -> str:
        if self.agent not in (None, agent):
            raise Refused(f"this server shows only sessions of agent {self.agent}", hint=_SCOPE_HINT)
        return agent

    def _project(self, project: str) -> str:
        """Return a folder within the scope; raise for any other."""
        if self.project is None:
            return posixpath.normpath(project) if "/" in project else project
        wanted = posixpath.normpath(project)
        if not any(wanted == place or wanted.startswith(f"{place}/") for place in (self.project, *self.worktrees)):
            raise Refused(f"this server shows only sessions of project {self.project}", hint=_SCOPE_HINT)
        return wanted


def folders_of(library: Library, agent: str) -> list[str]:
    """Return the folders of an agent; raise if it has none."""
    folders = [source.sessions for source in library.sources if source.agent == agent]
    if not folders:
        known = sorted({source.agent for source in library.sources})
        raise NotFound(f"no sessions of agent {agent[:40]!r}", hint=f"available agents: {', '.join(known)}")
    return folders


# -- masks

MAX_ENTRY = 8 << 20  # bytes; more than a native line can have
_LEARNING_TIME = 1.0  # seconds for reading a session for its secrets, per call
_MAX_MASKS = 64  # sessions whose secrets are remembered
_NESTED = "(nested too deeply to be shown)"


class Mask:
    """Hides secrets in the texts of one session."""

    def __init__(self, redactor: Redactor | None) -> None:
        self._redactor = redactor
        self._lock = threading.Lock()
        self._learning = threading.Lock()
        self._lines = 0  # lines of the session that were read
        self.complete = redactor is None

    def text(self, text: str) -> str:
        """Return a text, visible and redacted."""
        shown = visible(without_colours(text))
        if self._redactor is None:
            return shown
        with self._lock:
            return self._redactor.redact(shown)

    def line(self, text: str | None, limit: int = 500) -> str | None:
        """Return a text on one line, cut to `limit` characters; `None` stays `None`."""
        if text is None:
            return None
        shown = visible_line(self.text(text))
        return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"

    def value(self, value: Any) -> Any:
        """Return a JSON value without secrets; names of members help to find them."""
        if self._redactor is None:
            return value
        with self._lock:
            try:
                return self._redactor.redact_value(value)
            except TooLarge:
                return {"type": "custom", "customType": _NESTED}

    def learn(self, session: Session, seconds: float = _LEARNING_TIME) -> None:
        """Read a session for secrets, continuing where the last call stopped."""
        if self._redactor is None:
            return
        deadline = time.monotonic() + seconds
        with self._learning:
            self.complete = False
            for entry in session.iter_lines(self._lines):
                if time.monotonic() > deadline:
                    return
                if len(entry.raw) <= MAX_ENTRY:
                    self.value(readable(entry))
                self._lines += 1
            self.complete = True


def readable(entry: Entry) -> Payload:
    """Return an entry with its long texts, if they are not too large to be shown; images are references."""
    whole = entry.readable
    return whole if whole is entry.stored or len(encode_plain(whole)) <= MAX_ENTRY else entry.stored


class Masks:
    """The masks of all sessions; with `show_secrets` they hide nothing."""

    def __init__(self, *, show_secrets: bool = False) -> None:
        self._show_secrets = show_secrets
        self._lock = threading.Lock()
        self._by_session: OrderedDict[tuple[str, str], Mask] = OrderedDict()

    @property
    def hide(self) -> bool:
        """Whether secrets are hidden."""
        return not self._show_secrets

    def plain(self) -> Mask:
        """Return a mask for texts that belong to no session, such as errors."""
        return Mask(None if self._show_secrets else Redactor())

    def over(self, session: Session) -> Mask:
        """Return the mask of a session, which has read the session as far as time allows."""
        key = (session.path, session.id)
        with self._lock:
            mask = self._by_session.setdefault(key, self.plain())
            self._by_session.move_to_end(key)
            if len(self._by_session) > _MAX_MASKS:
                self._by_session.popitem(last=False)
        mask.learn(session)
        return mask


# -- access

CALL_TIME = 10.0  # seconds after which a call returns what it has
_MAX_CANDIDATES = 10  # sessions in an error about an ambiguous name
_PAGE_AGE = 2.0  # seconds for which the URL of the page is cached
_MILLION = 1_000_000  # nanoseconds in a millisecond
_HIDDEN = "[REDACTED:path]"
_SEQUENCE = re.compile(r"(?:^|\s)\[(?:[0-9;?]{1,12}[A-Za-z]|[mK])")
_HINT = "list_sessions and search_sessions return session ids"


class Call:
    """The deadline and cancellation of one call."""

    def __init__(self, seconds: float = CALL_TIME) -> None:
        self.deadline = time.monotonic() + seconds
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Stop the call at its next check."""
        self._cancelled.set()

    def is_late(self) -> bool:
        """Return whether the deadline has passed; raise if the call was cancelled."""
        if self._cancelled.is_set():
            raise Refused("the call was cancelled")
        return time.monotonic() > self.deadline


class Links(NamedTuple):
    """Links for people: `command` opens this store on the command line, `page` returns the URL of its gateway."""

    command: str
    page: Callable[[], str | None]

    def to(self, mask: Mask, row: SessionRow, entry: str | None = None) -> Link:
        """Return the link to a session or an entry."""
        name = (
            path_of(mask, row) if row.id is None or row.sub_agent else row.id
        )  # a sub-agent may have its session's id
        # Masked first and quoted then: a mask that removed a quote would let the shell run the rest.
        address = mask.line(name if entry is None else f"{name}#{entry}", 4_000) or ""
        quoted = f"-- {shlex.quote(address)}" if address.startswith("-") else shlex.quote(address)
        command = f"{mask.line(self.command)} show {quoted}"
        return Link(command=command, page=self._page(mask, row, entry))

    def _page(self, mask: Mask, row: SessionRow, entry: str | None) -> str | None:
        url = self.page()
        if url is None or row.id is None or row.sub_agent:
            return None
        address = f"{url}/s/{quote(row.id, safe='')}"
        if entry is not None:
            from sessile.render.html import anchor_of  # only needed with a page

            address += f"#{anchor_of(entry)}"
        return mask.line(address, 5_000)


class Page:
    """The URL of the gateway's page, looked up again when it is no longer fresh."""

    def __init__(self, store: Store) -> None:
        self._presence = Presence(store)
        self._known: tuple[float, str | None] | None = None  # when it was looked up, and the URL

    def __call__(self) -> str | None:
        """Return the URL; `None` if no gateway is running on this machine."""
        known, now = self._known, time.monotonic()
        if known is None or now - known[0] > _PAGE_AGE:
            known = self._known = (now, self._look())
        return known[1]

    def _look(self) -> str | None:
        try:
            found = self._presence.running()
        except SessileError:
            return None  # the link still has its command
        is_here = found is not None and found.host in ("", socket.gethostname())
        return found.url.rstrip("/") if found is not None and is_here else None


class Access:
    """Everything that a tool needs; `zone` is the time zone of dates in arguments."""

    def __init__(
        self, make: Callable[[], Library], store: Store, *, scope: Scope, masks: Masks, links: Links, zone: tzinfo
    ) -> None:
        self.store = store
        self.shelf = Shelf(make)
        self.scope = scope
        self.masks = masks
        self.links = links
        self._zone = zone

    def begin(self) -> None:
        """Update the catalog in the background, before the first call."""
        threading.Thread(target=self._look, name="sessile-look", daemon=True).start()

    def _look(self) -> None:
        with suppress(SessileError), self.shelf.asked():  # the next call reports the error
            pass

    def close(self) -> None:
        """Close the library."""
        self.shelf.close()

    def chosen(self, library: Library, arguments: Selection) -> Filter:
        """Return the filter for the arguments, within the scope."""
        since, until = (None if text is None else self._moment(text) for text in (arguments.since, arguments.until))
        return self.scope.chosen(library, arguments.agent, arguments.project)._replace(since=since, until=until)

    def _moment(self, text: str) -> datetime:
        return utc_datetime(parse_moment(text, int(time.time() * 1000), self._zone) * 1000)

    def find(self, name: str) -> SessionRow:
        """Return the session in the scope with this path, id or id prefix; raise if there is none or more than one."""
        with self.shelf.asked() as library:
            wanted = self.scope.chosen(library)
            rows = _at_path(library, wanted, name) if "/" in name else _by_id(library, wanted, name)
        if not rows:
            raise SessionNotFound(f"session not found: {name[:80]!r}", hint=_HINT)
        if len(rows) > 1:
            mask = self.masks.plain()
            candidates = [
                {"id": mask.line(row.id), "title": mask.line(catalogued(row.title)), "path": path_of(mask, row)}
                for row in rows[:_MAX_CANDIDATES]
            ]
            hint = "pass more of the id, or the path"
            raise Ambiguous(f"session {name[:80]!r} is ambiguous ({len(rows)})", hint=hint, candidates=candidates)
        return rows[0]

    def card(self, library: Library, row: SessionRow, mask: Mask) -> Card:
        """Return the description of a session."""
        counts = row.counts
        return Card(
            id=mask.line(row.id, 1_000),
            path=path_of(mask, row),
            agent=mask.line(library.agent_of(row.path)),
            project=mask.line(row.cwd, 4_000),
            title=mask.line(catalogued(row.title)),
            first_text=mask.line(catalogued(row.first_text)),
            created=iso(row.created_ms),
            modified=iso(row.modified_ns // _MILLION),
            entries=None if counts is None else counts.entries,
            messages=None if counts is None else counts.messages,
            branches=None if counts is None else counts.branches,
            sub_agent=row.sub_agent,
            draft=row.draft,
            problem=mask.line(row.problem),
            link=self.links.to(mask, row),
        )


def _at_path(library: Library, wanted: Filter, path: str) -> list[SessionRow]:
    path = located(library.store.fs, path)
    folder = posixpath.dirname(path)
    if wanted.below is not None and not any(path.startswith(f"{place}/") for place in wanted.below):
        return []
    return [row for row in library.list(wanted._replace(below=[folder])).rows if row.path == path]


def _by_id(library: Library, wanted: Filter, name: str) -> list[SessionRow]:
    rows = library.list(wanted._replace(id_prefix=name, hide=("unreadable",))).rows
    rows = [row for row in rows if row.id == name] or rows
    if len({row.id for row in rows}) == 1:  # sub-agents are opened by path; prefer the user's own copies
        rows = [row for row in rows if not row.sub_agent] or rows
        layout = library.store.layout
        rows = [row for row in rows if layout.owns(row.path)] or rows
        rows = [row for row in rows if not row.draft] or rows
        rows = [row for row in rows if not layout.keeps(row.path)] or rows
    return rows


def path_of(mask: Mask, row: SessionRow) -> str:
    """Return the masked path; hidden if the project has a secret, which the folder's name may spell differently."""
    project = row.cwd or ""
    return (
        _HIDDEN if mask.line(project, len(project) + 1) != visible_line(project) else mask.line(row.path, 4_000) or ""
    )


def catalogued(text: str | None) -> str | None:
    """Cut a text of the catalog before anything that may be half a secret, which could not be recognized.

    That is the last word of a text that was cut, and what follows the rest of an escape sequence.
    """
    if text is None:
        return None
    left = _SEQUENCE.search(text)
    if left is not None:
        return f"{text[: left.start()]}…"
    return text if len(text) < FIRST_TEXT else f"{text.rpartition(' ')[0]}…"


def iso(milliseconds: int | None) -> str | None:
    """Return a time in ISO 8601; `None` if it is unknown or out of range."""
    return moment(milliseconds) or None
