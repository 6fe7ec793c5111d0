"""Find the sessions below some folders, with their sizes and times; no session is opened.

Most are files. An agent that keeps its sessions in another way lists them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sessile.errors import storage_failures
from sessile.storage.base import Filesystem
from sessile.storage.layout import DRAFT, GZIP, JOURNAL, LEGACY, LIST, ZSTD, session_files

if TYPE_CHECKING:
    from sessile.storage.formats import Formats
    from sessile.storage.head import Glance

_MAX_DEPTH = 8  # levels of folders, for sub-agents of sub-agents
_ASIDE = (f"{JOURNAL}.reset.", f"{JOURNAL}.deleted.")  # how gateways name old transcripts of a conversation
_SUB_AGENTS = ("subagents", "workflows")
_TICK = 50_000_000  # nanoseconds after which the clock of any local file system has advanced
_COARSE_TICK = (
    3_000_000_000  # the same where times have no fractions of milliseconds: FAT, HFS+, some network file systems
)
INODES = 2**63 - 1  # mask: SQLite has no larger numbers


Mark = tuple[int | None, int, int, int, int | None]
"""Size, modification time, inode, device and change time. The last one changes with every edit, and no program can set it.

It is a plain tuple, because a listing makes one for every file; `base.stamp_of` is the same for a single file.
"""


class Status(Protocol):
    """The part of the result of `lstat` that a walk needs."""

    @property
    def st_ino(self) -> int: ...
    @property
    def st_dev(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...
    @property
    def st_ctime_ns(self) -> int: ...


def mark_of(status: Status) -> Mark:
    """Return the mark of a file, in numbers that SQLite has."""
    inode, device = status.st_ino & INODES, status.st_dev & INODES
    return status.st_size, status.st_mtime_ns, inode, device, status.st_ctime_ns


def settled(mark: Mark, now: int) -> Mark:
    """Return a mark without its change time if another change could still get the same one: git calls that racily clean."""
    changed = mark[4] or 0
    tick = _TICK if changed % 1_000_000 else _COARSE_TICK
    return (*mark[:4], None) if abs(now - changed) < tick else mark


class Folders(Protocol):
    """The part of a file system that a walk needs."""

    def lstat(self, path: str) -> Status: ...

    def names(self, path: str) -> list[str]: ...


Look = Callable[[], "Glance | None"]


class Found(NamedTuple):
    """The sessions that were found, which of them belong to sub-agents, and those that agents look at themselves."""

    marks: dict[str, Mark]
    sub_agents: set[str]
    looks: Mapping[str, tuple[str, Look]] = MappingProxyType({})


def find(
    fs: Filesystem, places: Iterable[str], owners: Mapping[str, str], formats: Formats, notices: list[str]
) -> Found:
    """Find every session below some places; `owners` are the agents that places belong to, as far as they are known."""
    looks: dict[str, tuple[str, Look]] = {}
    found = Found({}, set(), looks)
    for place in places:
        owner = owners.get(place)
        stored = None if owner is None else formats.stored(fs, owner, place.rstrip("/"), notices)
        if owner is None or stored is None:
            _visit(fs, place.rstrip("/"), 0, False, found, notices)
            continue
        for path, mark, sub_agent, look in stored:
            found.marks[path] = mark
            if look is not None:
                looks[path] = owner, look
            if sub_agent:
                found.sub_agents.add(path)
    return found


def walk(fs: Folders, places: Iterable[str], notices: list[str]) -> Found:
    """Find every session file below some folders, without opening any. Folders that cannot be read go to `notices`."""
    found = Found({}, set())
    for place in places:
        _visit(fs, place.rstrip("/"), 0, False, found, notices)
    return found


def _visit(fs: Folders, folder: str, level: int, sub_agents: bool, found: Found, notices: list[str]) -> None:
    try:
        names = fs.names(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        notices.append(f"the folder {folder} cannot be read: {error.strerror or error}")
        return
    journals = session_files(names)
    if len(journals) < len(names):
        journals += _stored_otherwise(names, level)
    lstat, marks = fs.lstat, found.marks
    for name in journals:
        path = f"{folder}/{name}"
        try:
            status = lstat(path)
        except OSError:
            continue  # deleted since
        # `mark_of`, without a call for every file.
        inode, device = status.st_ino & INODES, status.st_dev & INODES
        marks[path] = (status.st_size, status.st_mtime_ns, inode, device, status.st_ctime_ns)
        if sub_agents:
            found.sub_agents.add(path)
    if level == _MAX_DEPTH or len(names) == len(journals):
        return
    stems = {name.removesuffix(JOURNAL).removesuffix(DRAFT) for name in journals}
    for name in names:
        if name in stems:
            _visit(fs, f"{folder}/{name}", level + 1, True, found, notices)
        elif _leads_on(name, level, sub_agents):
            _visit(fs, f"{folder}/{name}", level + 1, sub_agents, found, notices)


def _stored_otherwise(names: Sequence[str], level: int) -> list[str]:
    """Return the names of sessions that are packed, set aside, or in an old format."""
    present = set(names)
    found = [
        name
        for name in names
        if (name.endswith((JOURNAL + GZIP, JOURNAL + ZSTD)) and name.partition(JOURNAL)[0] + JOURNAL not in present)
        or any(part in name for part in _ASIDE)
        or (level == 0 and name.endswith(LEGACY) and name != LIST)
    ]
    return [name for name in found if not name.startswith(".")]


def _leads_on(name: str, level: int, sub_agents: bool) -> bool:
    """Return whether a folder may be that of a project, a date, or sub-agents."""
    if name.startswith(".") or JOURNAL in name:
        return False
    return level == 0 or name.isdecimal() or (sub_agents and name in _SUB_AGENTS)


def find_session_files(fs: Filesystem, folder: str) -> list[str]:
    """Return the paths of the session files in a folder, drafts included; none if it does not exist."""
    with storage_failures(folder, "list the sessions"):
        try:
            names = fs.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
    return [f"{folder}/{name}" for name in session_files(names)]
