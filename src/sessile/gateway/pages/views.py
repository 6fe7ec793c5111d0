"""Open sessions of the page: sessions of any agent, opened by name, read-only, and kept open for further requests.

    with views.opened("6513a0c2") as view:
        view.tree.path(view.leaf)               by number
        view.read([0, 1, 2])

Entries are named by number: the position of the row in the file, including leaf markers. Numbers are the same in every
response, and stay the same when a file grows.

Rules: an open session is compared with its file at each request. If the file has grown, what is known about earlier
rows is kept; after any other change the session is reopened. Only files in folders of the library are opened, by
whatever name. Few sessions are kept open. May be used from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from sessile.core.kinds import MARKER
from sessile.core.tree import NOWHERE, Tree
from sessile.errors import EntryNotFound, SessionNotFound, storage_failures
from sessile.gateway.handles import Handles
from sessile.library import find_leaf
from sessile.storage.atomic import status_of
from sessile.storage.base import stamp_of

if TYPE_CHECKING:
    from sessile.core.context import Entry as Body
    from sessile.core.entries import Entry
    from sessile.gateway.handles import Shelf
    from sessile.library import Library
    from sessile.render.outline import EntryLine
    from sessile.session import Session
    from sessile.storage.base import Row, Stamp
    from sessile.store import Store

SessionName = Annotated[
    str, Meta(min_length=1, max_length=1_000, description="Id of a session, or another name of it.")
]
EntryName = Annotated[str, Meta(min_length=1, max_length=1_000)]
EntryNumber = Annotated[int, Meta(ge=0, le=2**31, description="Position of an entry in its file.")]

_MAX_OPEN = 4  # sessions that stay open; a row takes about 300 bytes
_MAX_KNOWN = 1024  # sessions whose path and agent are known without looking for them
_HINT = "list sessions with `sessile ls`, and their folders with `sessile sources`"


class View:
    """An open session, with its entries by number."""

    def __init__(self, session: Session, agent: str, is_own: bool, mark: Stamp, before: View | None = None) -> None:
        self.session = session
        self.agent = agent
        self.is_own = is_own
        self.mark = mark
        # What was known before the file grew. Its last line may have been incomplete, and is read again.
        known = [] if before is None else before.rows[:-1]
        self.rows: Sequence[Row] = [*known, *session.iter_rows(len(known))]
        self.lines: dict[int, EntryLine] = {}  # by number, as far as requested: lines of the outline
        self.kinds: dict[int, Body] = {}  # by number, as far as requested: what decides about the context
        if before is not None:
            self.lines |= {number: line for number, line in list(before.lines.items()) if number < len(known)}
            self.kinds |= {number: kind for number, kind in list(before.kinds.items()) if number < len(known)}

    @property
    def path(self) -> str:
        """Return the file of the session."""
        return self.session.path

    @cached_property
    def tree(self) -> Tree:
        """Return the tree of entries."""
        return Tree(self.rows)

    @cached_property
    def heads(self) -> list[int]:
        """Return the heads of all branches."""
        return self.tree.heads()

    @cached_property
    def leaf(self) -> int | None:
        """Return the leaf; `None` is before the first entry."""
        number = None if self.session.leaf_id is None else self.tree.number(self.session.leaf_id)
        if number is not None and self.is_marker(number):
            number = self.tree.parents[number]
        return None if number == NOWHERE else number

    @cached_property
    def labels(self) -> Mapping[int, str]:
        """Return the labels of entries."""
        named = ((self.tree.number(entry_id), text) for entry_id, text in self.session.get_labels().items())
        return {number: text for number, text in named if number is not None and not self.is_marker(number)}

    @cached_property
    def gaps(self) -> Mapping[int, Sequence[str]]:
        """Return what could not be read, by the entry before it; -1 is before the first."""
        found: dict[int, list[str]] = {}
        for entry_id, text in self.session.get_gaps():
            number = None if entry_id is None else self.tree.number(entry_id)
            if number is not None and self.is_marker(number):
                number = next((n for n in range(number, -1, -1) if not self.is_marker(n)), None)
            found.setdefault(NOWHERE if number is None else number, []).append(text)
        return found

    def is_marker(self, number: int) -> bool:
        """Return whether a row is a leaf marker, which is never shown."""
        return bool(self.rows[number].flags & MARKER)

    def check(self, number: int) -> int:
        """Return the number if it is that of an entry. Raise `EntryNotFound` otherwise."""
        if not 0 <= number < len(self.rows) or self.is_marker(number):
            raise EntryNotFound(
                f"entry not found: {number}", path=self.path, hint="list entries with GET /v1/view/outline"
            )
        return number

    def read(self, numbers: Sequence[int]) -> Iterator[tuple[int, Entry]]:
        """Yield entries with their numbers."""
        return zip(numbers, self.session.read_rows([self.rows[number] for number in numbers]), strict=True)

    def numbers_of(self, entry_ids: Iterable[str | None]) -> list[int]:
        """Return the numbers of existing entries."""
        found = (None if entry_id is None else self.tree.number(entry_id) for entry_id in entry_ids)
        return [number for number in found if number is not None]

    def close(self) -> None:
        """Close the session."""
        self.session.close()


class Views:
    """The open sessions of the page. `shelf` has the library of all sessions."""

    def __init__(self, store: Store, shelf: Shelf, most: int = _MAX_OPEN) -> None:
        self._store = store
        self._shelf = shelf
        self._handles = Handles(self._open, most)
        self._lock = threading.Lock()
        self._paths: dict[str, str] = {}  # by session id, the oldest first
        self._agents: dict[str, str] = {}  # by path, the oldest first
        self._grown: dict[str, View] = {}  # by path: the view before the file grew

    @contextmanager
    def opened(self, name: str) -> Iterator[View]:
        """Yield the session with that id, or any name that `Library.find` accepts, as its file is now."""
        path = self._path(name)
        self._catch_up(path)
        with self._handles.opened(path) as view:
            if view.session.id == name:  # a sub-agent may have the id of its session
                self._remember(self._paths, name, path)
            yield view

    def drop(self, path: str) -> None:
        """Close the session of a file that was moved."""
        with self._lock:
            for name in [name for name, known in self._paths.items() if known == path]:
                del self._paths[name]
        self._handles.drop(path)

    def close(self) -> None:
        """Close all sessions."""
        self._handles.close()

    # -- names

    def learn(self, path: str, agent: str) -> None:
        """Remember the agent of a file that the library has listed, so that opening it need not ask the library again."""
        self._remember(self._agents, path, agent)

    def _path(self, name: str) -> str:
        with self._lock:
            known = name if name in self._agents else self._paths.get(name)
        if known is not None:
            if self._mark(known) is not None:
                return known
            self.drop(known)
        with self._shelf.asked() as library:
            path = library.find(name, fresh=False)  # the shelf has just looked, and a look for every session adds up
            if self._mark(path) is None:  # it has moved since
                path = library.find(name)
            self._remember(self._agents, path, _agent_of(library, path))
        return path

    def _agent(self, path: str) -> str:
        with self._lock:
            agent = self._agents.get(path)
        if agent is not None:
            return agent
        with self._shelf.asked() as library:  # forgotten meanwhile
            return _agent_of(library, path)

    def _remember(self, known: dict[str, str], name: str, value: str) -> None:
        with self._lock:
            if known.get(name) != value:
                known[name] = value
                if len(known) > _MAX_KNOWN:
                    del known[next(iter(known))]

    # -- files

    def _mark(self, path: str) -> Stamp | None:
        with storage_failures(path, "check the session"):
            try:
                stat = status_of(self._store.fs, path)
            except FileNotFoundError:
                return None
        return stamp_of(stat)

    def _catch_up(self, path: str) -> None:
        """Close a session whose file has changed."""
        with self._handles.opened(path) as view:
            mark = self._mark(path)
            if mark == view.mark:
                return
            if mark is not None and mark[:2] == view.mark[:2] and mark[2] > view.mark[2]:
                with self._lock:
                    self._grown[path] = view
        self._handles.drop(path)

    def _open(self, path: str) -> View:
        agent = self._agent(path)
        with self._lock:
            before = self._grown.pop(path, None)
        mark = self._mark(path)
        if mark is None:
            raise SessionNotFound("the session file no longer exists", path=path, hint=_HINT)
        session = self._store.open(path, readonly=True)
        return View(session, agent, self._store.layout.owns(path), mark, before)


def _agent_of(library: Library, path: str) -> str:
    """Return the agent of a file. Raise if it is in no folder of the library."""
    agent = library.agent_of(path)
    if agent is None:
        raise SessionNotFound("this file is not in a session folder", path=path, hint=_HINT)
    return agent


def entry_named(view: View, name: str) -> str:
    """Return the id of an entry that is named by its id or label, its number, or a prefix of its id."""
    session = view.session
    if name.isdecimal() and session.get_entry(name) is None and name not in session.get_labels().values():
        number = int(name)
        if number < len(view.rows):
            return view.rows[view.check(number)].id
    return find_leaf(session, name)
