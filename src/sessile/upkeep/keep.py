"""Keeping other agents' sessions: which of them their owner is about to delete, and copies that stay.

    for outlook in expiring(library, now=store.now()):
        for session in outlook.sessions:
            keeper.keep(session.path)

Rules: nothing is written but below `<root>/kept`, and the originals are only read. A copy has the bytes and the time of
modification of its original, and the folder of sub-agents and tool results beside it; what a copy held before is never lost.
The transcript is copied last: where it is, what belongs to it is, but for files that nobody could read, which are told. A
session whose copy has its size and time is kept.

Where nobody can tell how long an agent waits, it is said why, and its sessions have no deadline. Which folders there are, and
what time it is, are arguments. What an agent stores of a session elsewhere (checkpoints of files, the history of prompts) is
not copied.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sessile.agents.expiry import DAY, RULES, Period, Rule, deadline, period_of
from sessile.core.text import utc_datetime
from sessile.errors import Conflict, NotFound, Refused, SessileError, StorageFailure, StorageFull, Unsupported
from sessile.storage import atomic
from sessile.storage.catalog_rows import HIDE, Filter
from sessile.storage.layout import Source, artifacts_of
from sessile.storage.locks import locked

if TYPE_CHECKING:
    from sessile.library import Library

_UNOWNED = "folder"  # what a folder is called that somebody has added: no agent owns it
_PATIENCE = 60.0  # seconds; another process may be copying a large file


class Expiring(NamedTuple):
    """A session that its owner will delete; the deadline, in milliseconds since 1970, is `None` if it is unknown."""

    path: str
    deadline: int | None


class Outlook(NamedTuple):
    """What an agent that deletes its sessions will delete from a folder; if that cannot be told, why."""

    source: Source
    sessions: list[Expiring]
    problem: str | None


class Kept(NamedTuple):
    """What keeping a session did: the copy, which files of it were written, and what was put aside or left out."""

    path: str
    agent: str
    copy: str
    written: list[str]
    bytes: int  # of the files that were written
    unchanged: int  # files whose copies were up to date
    aside: list[str]  # where the bytes are that a copy had, and that its original has no longer
    left_out: list[str]  # links and the like, which are not copied
    failed: list[SessileError]  # files that could not be copied, while the others were


def expiring(
    library: Library,
    *,
    now: int,
    within_days: float | None = 7,
    hide: Collection[str] = HIDE,
    follow: Callable[[str], str] | None = None,
) -> list[Outlook]:
    """The sessions that their owners will delete within some days, or ever, and that are not kept, the next ones first.

    It is as of the last catch-up of the library. `follow` says which file a link stands for: people keep their settings
    elsewhere, and the storage follows no links.
    """
    found = []
    for source in library.given:
        rule = RULES.get(source.agent)
        if rule is not None:
            period = _period(library, source, rule, follow)
            marks = _marks(library, Filter(below=[source.sessions], hide=hide), period, now, within_days)
            sessions = [
                Expiring(path, deadline(modified // 1_000_000, period))
                for path, size, modified in reversed(marks)
                if library.copies.get(path, ())[:2] != (size, modified)
            ]
            found.append(Outlook(source, sessions, period.problem))
    return found


def _marks(
    library: Library, wanted: Filter, period: Period, now: int, within_days: float | None
) -> Sequence[tuple[str, int | None, int]]:
    """The files whose deadline comes within some days, newest first; without a limit all, and else none if it is unknown."""
    if within_days is not None:
        if period.length is None:
            return ()
        wanted = wanted._replace(until=utc_datetime((now + int(within_days * DAY) - period.length + 1) * 1000))
    return library.marks(wanted)


def _period(library: Library, source: Source, rule: Rule, follow: Callable[[str], str] | None) -> Period:
    """How long the owner of a folder keeps a session, by its settings."""
    settings = {}
    for name in rule.settings:
        try:
            path = f"{source.root}/{name}"
            settings[name] = atomic.read_all(library.store.fs, path if follow is None else follow(path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return Period(None, f"{name} cannot be read: {error.strerror or error}")
    return period_of(rule, settings)


class Keeper:
    """Copies sessions of other agents into the archive of one's own store."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._store = library.store
        self._folders: set[str] = set()  # of which the names are durable

    def keep(self, path: str) -> Kept:
        """Copy a session with what belongs to it; what is up to date is not written again."""
        path = posixpath.normpath(path)
        source = self._source_of(path)
        place = f"{self._store.layout.kept}/{source.agent}"
        target = place + path[len(source.sessions) :]
        kept = Kept(path, source.agent, target, [], 0, 0, [], [], [])
        self._make_folders(place)
        # One process at a time: what is put aside must be what is replaced.
        with locked(self._store.fs, f"{self._store.layout.kept}/.lock", _PATIENCE):
            for original in self._belongings(path, kept):
                copy = place + original[len(source.sessions) :]
                try:
                    kept = self._copy(original, copy, kept)
                except NotFound:
                    continue  # deleted while we were looking
                except StorageFull:
                    raise
                except (StorageFailure, Conflict) as error:
                    kept.failed.append(error)  # the session itself is worth more than what lies beside it
            return self._copy(path, target, kept)

    def _source_of(self, path: str) -> Source:
        """The folder of another agent that a session lies in."""
        if self._store.layout.keeps(path):
            raise Refused("this is the copy that was kept", path=path, hint="sessile resume and fork go on with it")
        source = next((each for each in self._library.given if path.startswith(f"{each.sessions}/")), None)
        if source is not None and source.root == self._store.layout.root:
            raise Refused("this session is in your own store, where nothing is deleted", path=path)
        if source is None or source.agent == _UNOWNED:
            raise Unsupported(
                "no agent is known to own this session", path=path, hint="sessile import copies it into your own store"
            )
        return source

    def _belongings(self, path: str, kept: Kept) -> Iterator[str]:
        """The files in the folder beside a session; what is neither a file nor a folder is left out."""
        from sessile.storage.session_bytes import below

        try:
            for name, status in below(self._store.fs, artifacts_of(path)):
                if stat.S_ISREG(status.st_mode):
                    yield name
                elif not stat.S_ISDIR(status.st_mode):
                    kept.left_out.append(name)
        except StorageFailure as error:
            kept.failed.append(error)  # a folder that cannot be read

    def _copy(self, original: str, target: str, kept: Kept) -> Kept:
        from sessile.storage.session_bytes import copy_file

        self._make_folders(posixpath.dirname(target))
        done = copy_file(self._store.fs, original, target)
        if not done.written:
            return kept._replace(unchanged=kept.unchanged + 1)
        kept.written.append(target)
        if done.aside is not None:
            kept.aside.append(done.aside)
        return kept._replace(bytes=kept.bytes + done.size)

    def _make_folders(self, folder: str) -> None:
        """Make a folder below the archive; those above it may have been left by a process that died before it was done."""
        path = self._store.layout.root
        for name in folder[len(path) + 1 :].split("/"):
            path = f"{path}/{name}"
            atomic.make_folders(self._store.fs, path, self._folders)
