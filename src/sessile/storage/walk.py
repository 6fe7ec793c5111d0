"""Finding session files below folders: names and what `lstat` says of them, nothing is opened.

A place holds session files, or folders of projects or dates with such files. A session may be packed, or set aside by its agent
under a longer name (`….jsonl.reset.<time>`); where it also stands there as it is, that one counts. Beside a session file,
without `.jsonl`, may be its artifacts folder; session files in there are those of sub-agents. Links to folders are followed,
because people put their sessions on other disks; no deeper than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from sessile.storage.layout import GZIP, JOURNAL, LEGACY, LIST, ZSTD, session_files

_DEEPEST = 8  # folders of sub-agents of sub-agents
_ASIDE = (f"{JOURNAL}.reset.", f"{JOURNAL}.deleted.")  # how gateways name transcripts that a conversation has left
_SUB_AGENTS = ("subagents", "workflows")
INODES = 2**63 - 1  # SQLite has no larger numbers


Mark = tuple[int | None, int, int]
"""Size, time of modification and inode: what changes when somebody writes a file."""


class Status(Protocol):
    """The part of what `lstat` says that a walk looks at."""

    @property
    def st_ino(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...


class Folders(Protocol):
    """The part of a file system that a walk needs."""

    def lstat(self, path: str) -> Status: ...

    def names(self, path: str) -> list[str]: ...


class Found(NamedTuple):
    """The session files that a walk met, and which of them are sub-agents'."""

    marks: dict[str, Mark]
    sub_agents: set[str]


def walk(fs: Folders, places: Iterable[str], notices: list[str]) -> Found:
    """Every session file below some folders; a folder that cannot be read is noted."""
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
            continue  # gone since
        marks[path] = (status.st_size, status.st_mtime_ns, status.st_ino & INODES)
        if sub_agents:
            found.sub_agents.add(path)
    if level == _DEEPEST or len(names) == len(journals):
        return
    stems = {name.removesuffix(JOURNAL) for name in journals}
    for name in names:
        if name in stems:
            _visit(fs, f"{folder}/{name}", level + 1, True, found, notices)
        elif _leads_on(name, level, sub_agents):
            _visit(fs, f"{folder}/{name}", level + 1, sub_agents, found, notices)


def _stored_otherwise(names: Sequence[str], level: int) -> list[str]:
    """The names of sessions that are packed, set aside, or stored in an old form."""
    there = set(names)
    found = [
        name
        for name in names
        if (name.endswith((JOURNAL + GZIP, JOURNAL + ZSTD)) and name.partition(JOURNAL)[0] + JOURNAL not in there)
        or any(part in name for part in _ASIDE)
        or (level == 0 and name.endswith(LEGACY) and name != LIST)
    ]
    return [name for name in found if not name.startswith(".")]


def _leads_on(name: str, level: int, sub_agents: bool) -> bool:
    """Whether a folder is one of a project, of a date, or of a kind of sub-agents."""
    if name.startswith(".") or JOURNAL in name:
        return False
    return level == 0 or name.isdecimal() or (sub_agents and name in _SUB_AGENTS)
