"""Sessions for the page: any agent's, opened by name, for reading only, and kept open for the next question about them.

    with views.opened("6513a0c2") as view:
        view.tree.path(view.leaf)               by number
        view.read([0, 1, 2])

An entry is named by its number: the place of its row in the file, leaf markers counted. Numbers are the same in every answer,
and stay when a file grows.

Rules: what is open is compared with its file at each question; one that has grown keeps what is known of its first rows, and any
other change begins anew. Only files below the folders that the library looks into are opened, by whatever name. Few
sessions are kept open. May be used from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, NamedTuple

from msgspec import Meta

from sessile.core.kinds import MARKER
from sessile.core.tree import NOWHERE, Tree
from sessile.errors import EntryNotFound, SessionNotFound, storage_failures
from sessile.gateway.handles import Handles

if TYPE_CHECKING:
    from sessile.core.context import Entry as Body
    from sessile.core.entries import Entry
    from sessile.gateway.handles import Shelf
    from sessile.render.outline import EntryLine
    from sessile.session import Session
    from sessile.storage.base import Row
    from sessile.store import Store

NameText = Annotated[
    str, Meta(min_length=1, max_length=500, description="The id of a session, or what else names it in a command.")
]
NumberText = Annotated[int, Meta(ge=0, le=2**31, description="The place of an entry in its file.")]

_MOST = 4  # sessions that stay open; a row of a large one takes some 300 bytes
_HINT = "sessile ls shows what there is, sessile sources where that is looked for"


class Mark(NamedTuple):
    """What tells one state of a file from another."""

    inode: int
    size: int
    modified: int


class View:
    """One session, open for reading, with its entries by number."""

    def __init__(self, session: Session, agent: str, is_own: bool, mark: Mark, before: View | None = None) -> None:
        self.session = session
        self.agent = agent
        self.is_own = is_own
        self.mark = mark
        # What was known before the file grew; its last line may have had no end, and is read again.
        known = [] if before is None else before.rows[:-1]
        self.rows: Sequence[Row] = [*known, *session.iter_rows(len(known))]
        self.lines: dict[int, EntryLine] = {}  # by number, as far as somebody asked: what an outline tells of entries
        self.kinds: dict[int, Body] = {}  # by number, as far as somebody asked: what decides about the context
        if before is not None:
            self.lines |= {number: line for number, line in list(before.lines.items()) if number < len(known)}
            self.kinds |= {number: kind for number, kind in list(before.kinds.items()) if number < len(known)}

    @property
    def path(self) -> str:
        """The file of the session."""
        return self.session.path

    @cached_property
    def tree(self) -> Tree:
        """What hangs from what."""
        return Tree(self.rows)

    @cached_property
    def heads(self) -> list[int]:
        """The heads of all branches."""
        return self.tree.heads()

    @cached_property
    def leaf(self) -> int | None:
        """Where the next entry will hang; `None` is before the first."""
        number = None if self.session.leaf_id is None else self.tree.number(self.session.leaf_id)
        if number is not None and self.is_marker(number):
            number = self.tree.parents[number]
        return None if number == NOWHERE else number

    @cached_property
    def labels(self) -> Mapping[int, str]:
        """The labels of entries."""
        named = ((self.tree.number(entry_id), text) for entry_id, text in self.session.get_labels().items())
        return {number: text for number, text in named if number is not None and not self.is_marker(number)}

    @cached_property
    def gaps(self) -> Mapping[int, Sequence[str]]:
        """What could not be read, by the entry before it; before the first is -1."""
        found: dict[int, list[str]] = {}
        for entry_id, text in self.session.get_gaps():
            number = None if entry_id is None else self.tree.number(entry_id)
            if number is not None and self.is_marker(number):
                number = next((n for n in range(number, -1, -1) if not self.is_marker(n)), None)
            found.setdefault(NOWHERE if number is None else number, []).append(text)
        return found

    def is_marker(self, number: int) -> bool:
        """Whether a number is that of a row that nobody sees."""
        return bool(self.rows[number].flags & MARKER)

    def check(self, number: int) -> int:
        """The number, if an entry has it; raises `EntryNotFound`."""
        if not 0 <= number < len(self.rows) or self.is_marker(number):
            raise EntryNotFound(f"there is no entry {number}", path=self.path, hint="the outline says which there are")
        return number

    def read(self, numbers: Sequence[int]) -> Iterator[tuple[int, Entry]]:
        """Some entries, each with its number."""
        return zip(numbers, self.session.read_rows([self.rows[number] for number in numbers]), strict=True)

    def numbers_of(self, entry_ids: Iterable[str | None]) -> list[int]:
        """The numbers of entries that are there."""
        found = (None if entry_id is None else self.tree.number(entry_id) for entry_id in entry_ids)
        return [number for number in found if number is not None]

    def close(self) -> None:
        """Let go of the file."""
        self.session.close()


class Views:
    """The sessions that the page looks at; `shelf` has the library of all of them."""

    def __init__(self, store: Store, shelf: Shelf, most: int = _MOST) -> None:
        self._store = store
        self._shelf = shelf
        self._handles = Handles(self._open, most)
        self._lock = threading.Lock()
        self._paths: dict[str, str] = {}  # by the id of a session
        self._agents: dict[str, str] = {}  # by path
        self._grown: dict[str, View] = {}  # by path: what was known before

    @contextmanager
    def opened(self, name: str) -> Iterator[View]:
        """The session with that id, or whatever else `Library.find` takes; as its file is now."""
        path = self._path(name)
        self._catch_up(path)
        with self._handles.opened(path) as view:
            if view.session.id == name:  # a sub-agent may have the id of its session
                with self._lock:
                    self._paths[name] = path
            yield view

    def drop(self, path: str) -> None:
        """A file was moved away."""
        with self._lock:
            self._paths = {name: known for name, known in self._paths.items() if known != path}
        self._handles.drop(path)

    def close(self) -> None:
        """Let go of everything."""
        self._handles.close()

    # -- names

    def _path(self, name: str) -> str:
        with self._lock:
            known = self._paths.get(name)
        if known is not None:
            if self._mark(known) is not None:
                return known
            self.drop(known)
        with self._shelf.asked() as library:
            path = library.find(name)
            agent = library.agent_of(path)
        if agent is None:
            raise SessionNotFound("this file is in no folder that is looked at", path=path, hint=_HINT)
        with self._lock:
            self._agents[path] = agent
        return path

    # -- files

    def _mark(self, path: str) -> Mark | None:
        with storage_failures(path, "look at the session"):
            try:
                stat = self._store.fs.lstat(path)
            except FileNotFoundError:
                return None
        return Mark(stat.st_ino, stat.st_size, stat.st_mtime_ns)

    def _catch_up(self, path: str) -> None:
        """Let go of a session whose file is not as it was."""
        with self._handles.opened(path) as view:
            mark = self._mark(path)
            if mark == view.mark:
                return
            if mark is not None and mark.inode == view.mark.inode and mark.size > view.mark.size:
                with self._lock:
                    self._grown[path] = view
        self._handles.drop(path)

    def _open(self, path: str) -> View:
        with self._lock:
            agent, before = self._agents[path], self._grown.pop(path, None)
        mark = self._mark(path)
        if mark is None:
            raise SessionNotFound("the file of the session is gone", path=path, hint=_HINT)
        session = self._store.open(path, readonly=True)
        return View(session, agent, self._store.layout.owns(path), mark, before)
