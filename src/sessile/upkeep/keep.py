"""Keep copies of other agents' sessions before the agent deletes them.

    for outlook in expiring(library, now=store.now()):
        for session in outlook.sessions:
            keeper.keep(session.path)

Rules:

- Only `<root>/kept` is written to; the originals are only read.
- A copy has the content and the time of modification of its original, with the folder of sub-agents and tool results beside it.
  The previous content of a copy is never lost.
- The transcript is copied last: if it is there, everything that belongs to it is too, except files that could not be read, which
  are reported. A session counts as kept if its copy has the same size and time.
- If it is unknown when an agent deletes sessions, the reason is reported and its sessions have no deadline.
- What an agent stores of a session elsewhere (file checkpoints, prompt history) is not copied.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from sessile.agents.base import DAY, Agent, Period, deadline
from sessile.agents.registry import AGENTS
from sessile.core.text import utc_datetime
from sessile.errors import Conflict, NotFound, Refused, SessileError, StorageFailure, StorageFull, Unsupported
from sessile.storage import atomic
from sessile.storage.filters import HIDE, Filter
from sessile.storage.layout import Source, artifacts_of
from sessile.storage.locks import locked

if TYPE_CHECKING:
    from sessile.library import Library

_UNOWNED = "folder"  # the agent name of a folder that the user has added: no agent owns it
_PATIENCE = 60.0  # seconds to wait for the lock; another process may be copying a large file


class Expiring(NamedTuple):
    """A session that its agent will delete; the deadline is in milliseconds since 1970, or `None` if unknown."""

    path: str
    deadline: int | None


class Outlook(NamedTuple):
    """The sessions that an agent will delete from a folder; `problem` is why that is unknown, if it is."""

    source: Source
    sessions: list[Expiring]
    problem: str | None


class Kept(NamedTuple):
    """The result of keeping a session: the copy, the files that were written, and those that were set aside or left out."""

    path: str
    agent: str
    copy: str
    written: list[str]
    bytes: int  # of the files that were written
    unchanged: int  # files whose copies were up to date
    aside: list[str]  # files with the previous content of copies that their originals no longer have
    left_out: list[str]  # links and special files, which are not copied
    failed: list[SessileError]  # errors of files that could not be copied


def expiring(
    library: Library,
    *,
    now: int,
    within_days: float | None = 7,
    hide: Collection[str] = HIDE,
    follow: Callable[[str], str] | None = None,
) -> list[Outlook]:
    """Return the sessions that agents will delete within some days, or ever, and that are not kept; earliest deadline first.

    The answer is as of the last catch-up of the library. `follow` resolves links of settings files, because the storage does not
    follow links.
    """
    found = []
    for source in library.given:
        agent = AGENTS.get(source.agent)
        if agent is not None and agent.expiry is not None:
            period = _period(library, source, agent, follow)
            wanted = Filter(below=[source.sessions], hide=hide)
            marks = _marks(library, wanted, period, now, within_days)
            soon = _endangered(library, agent, source)
            if soon:
                marks = [*marks, *(mark for mark in library.marks(wanted) if mark[0] in soon and mark not in marks)]
            sessions = [
                Expiring(path, now if path in soon else deadline(modified // 1_000_000, period))
                for path, size, modified in reversed(marks)
                if library.copies.get(path, ())[:2] != (size, modified)
            ]
            found.append(Outlook(source, sessions, period.problem))
    return found


def _marks(
    library: Library, wanted: Filter, period: Period, now: int, within_days: float | None
) -> Sequence[tuple[str, int | None, int]]:
    """Return the files whose deadline is within some days, newest first.

    Without a limit all files are returned; with a limit, none if the period is unknown.
    """
    if period.length is None and (within_days is not None or period.problem is None):
        return ()
    if within_days is not None and period.length is not None:
        wanted = wanted._replace(until=utc_datetime((now + int(within_days * DAY) - period.length + 1) * 1000))
    return library.marks(wanted)


def _endangered(library: Library, agent: Agent, source: Source) -> Collection[str]:
    """Return the sessions that an agent deletes at its next start."""
    try:
        return set(agent.endangered(library.store.fs, source.sessions))
    except OSError:
        return ()  # a folder that cannot be read is reported by the catalog


def _period(library: Library, source: Source, agent: Agent, follow: Callable[[str], str] | None) -> Period:
    """Return how long the agent of a folder keeps sessions, according to its settings."""
    settings = {}
    for name in agent.expiry.settings if agent.expiry is not None else ():
        try:
            path = f"{source.root}/{name}"
            settings[name] = atomic.read_all(library.store.fs, path if follow is None else follow(path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return Period(None, f"{name} cannot be read: {error.strerror or error}")
    return agent.period(settings)


class Keeper:
    """Copies sessions of other agents into the archive of a store."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._store = library.store
        self._folders: set[str] = set()  # folders whose names are durable

    def keep(self, path: str) -> Kept:
        """Copy a session with its belongings; files that are up to date are not written again."""
        path = posixpath.normpath(path)
        source = self._source_of(path)
        place = f"{self._store.layout.kept}/{source.agent}"
        target = place + path[len(source.sessions) :]
        kept = Kept(path, source.agent, target, [], 0, 0, [], [], [])
        self._make_folders(place)
        # One process at a time: the content that is set aside must be the content that is replaced.
        with locked(self._store.fs, f"{self._store.layout.kept}/.lock", _PATIENCE):
            for original in self._belongings(path, kept):
                copy = place + original[len(source.sessions) :]
                try:
                    kept = self._copy(original, copy, kept)
                except NotFound:
                    continue  # deleted in the meantime
                except StorageFull:
                    raise
                except (StorageFailure, Conflict) as error:
                    kept.failed.append(error)  # copy the session even if a file beside it cannot be copied
            return self._copy(path, target, kept)

    def _source_of(self, path: str) -> Source:
        """Return the folder of the agent that owns a session."""
        if self._store.layout.keeps(path):
            hint = "run `sessile resume` or `sessile fork` to continue it"
            raise Refused("this session is a kept copy already", path=path, hint=hint)
        source = next((each for each in self._library.given if path.startswith(f"{each.sessions}/")), None)
        if source is not None and source.root == self._store.layout.root:
            raise Refused("this session is in your own store, which never deletes sessions", path=path)
        if source is not None and not atomic.exists(self._store.fs, path) and atomic.is_there(self._store.fs, path):
            hint = "run `sessile import` to copy it into your own store"
            raise Unsupported(f"this session is inside of a database of {source.agent}", path=path, hint=hint)
        if source is None or source.agent == _UNOWNED:
            hint = "run `sessile import` to copy it into your own store"
            raise Unsupported("this session does not belong to a known agent", path=path, hint=hint)
        return source

    def _belongings(self, path: str, kept: Kept) -> Iterator[str]:
        """Yield the files in the folder beside a session; links and special files are left out."""
        try:
            for name, status in _session_bytes().below(self._store.fs, artifacts_of(path)):
                if stat.S_ISREG(status.st_mode):
                    yield name
                elif not stat.S_ISDIR(status.st_mode):
                    kept.left_out.append(name)
            agent = AGENTS.get(kept.agent)
            if agent is not None:
                yield from agent.belongings(self._store.fs, path)
        except StorageFailure as error:
            kept.failed.append(error)  # the folder cannot be read

    def _copy(self, original: str, target: str, kept: Kept) -> Kept:
        self._make_folders(posixpath.dirname(target))
        done = _session_bytes().copy_file(self._store.fs, original, target)
        if not done.written:
            return kept._replace(unchanged=kept.unchanged + 1)
        kept.written.append(target)
        if done.aside is not None:
            kept.aside.append(done.aside)
        return kept._replace(bytes=kept.bytes + done.size)

    def _make_folders(self, folder: str) -> None:
        """Make a folder in the archive durable, with those above it: a process may have died before it synced them."""
        path = self._store.layout.root
        for name in folder[len(path) + 1 :].split("/"):
            path = f"{path}/{name}"
            atomic.make_folders(self._store.fs, path, self._folders)


def _session_bytes() -> ModuleType:
    from sessile.storage import session_bytes  # saves start-up time: a listing uses `expiring` only

    return session_bytes
