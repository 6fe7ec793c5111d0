"""What storage needs to know about session files that are not in the native format.

Storage does not import agents: the catalog, the search and the database get an object with these methods from their caller.
`sessile.agents.registry.AGENTS` is the one that knows every agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sessile.core.lines import Finding, Item, Line, Scanner

if TYPE_CHECKING:
    from sessile.storage.base import Filesystem
    from sessile.storage.head import Glance
    from sessile.storage.walk import Mark

Record = dict[str, Any]


class Told(NamedTuple):
    """Title and project of a session in its agent's own list of sessions; `None` where the list has none."""

    title: str | None = None
    cwd: str | None = None


class Stored(NamedTuple):
    """A session that its agent lists itself, because it is not simply a file.

    Attributes:
        path: Its path, below the place that was listed. One inside of a database has the database's path as its folder.
        mark: Changes whenever the session does. For a part of a file: zero, when it was changed in nanoseconds, and any
            three numbers. The size in bytes is noted when the session is read.
        sub_agent: Whether it belongs to a sub-agent.
        look: Returns what a listing shows, without reading the whole session; if it is `None`, the session is read.
    """

    path: str
    mark: Mark
    sub_agent: bool = False
    look: Callable[[], Glance | None] | None = None


class EntryReader(Protocol):
    """Turns the lines of one file into entries, in order."""

    def scanner(self, offset: int) -> Scanner:
        """Return a scanner that splits the file into lines, starting at `offset`."""
        ...

    def saved(self) -> Any:
        """Return what is needed to continue later, as plain JSON."""
        ...

    def split(self, lines: Iterable[tuple[int, bytes | None]]) -> Iterator[tuple[int, Record | None]]:
        """Yield each entry with its offset, and `None` for a damaged line."""
        ...

    def judged(self, items: Iterable[Item]) -> Iterator[tuple[int, Record | None]]:
        """Do the same for lines that the scanner has already looked at."""
        ...


class Formats(Protocol):
    """The formats of other agents."""

    def unpack(self, suffix: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the rows of a file whose rows are not its bytes; raise `ValueError` where it is damaged."""
        ...

    def stored(self, fs: Filesystem, agent: str, place: str, notices: list[str]) -> Iterable[Stored] | None:
        """Return the sessions below a place of an agent that lists them itself; `None` if they are files, to be found by a walk.

        What cannot be listed goes to `notices`.
        """
        ...

    def renderer(self, path: str, first: bytes) -> str | None:
        """Return the agent that renders the session at a path, by the path and the first bytes of the file; usually `None`.

        There are no first bytes if the path is inside of a file.
        """
        ...

    def render(self, fs: Filesystem, agent: str, path: str) -> Iterator[Record | Finding]:
        """Yield the native header and entries of a session that an agent renders, and a finding for what cannot be read."""
        ...

    def join(self, fs: Filesystem, path: str) -> Iterator[bytes | Finding]:
        """Yield the rows of all files of a session up to this one, and what is wrong with them."""
        ...

    def glance(self, fs: Filesystem, fd: int, size: int, path: str) -> tuple[str, Glance] | None:
        """Return the format of an open file and what its two ends show; `None` if no agent recognises it."""
        ...

    def entry_reader(self, name: str, saved: Any, start: int) -> EntryReader:
        """Return a reader for a file in that format, continuing from `saved` at the offset `start`."""
        ...

    def scanner(self, name: str, offset: int) -> Scanner:
        """Return a scanner for a file in that format."""
        ...

    def is_nested(self, name: str) -> bool:
        """Return whether texts in that format are JSON inside JSON."""
        ...

    def entries(self, name: str, line: Line) -> Iterator[tuple[str | None, Record]]:
        """Yield the entries of one line of a file in that format, with their ids."""
        ...

    def titles(self, data: bytes) -> Mapping[str, Told]:
        """Return the titles and projects in an agent's own list of sessions, by session id or file name."""
        ...
