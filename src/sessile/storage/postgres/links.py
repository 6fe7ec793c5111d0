"""What a new entry takes over from the one that it hangs from: the state of its path, and where its context begins.

A path never changes while ids are unique and parents come first, so both can be kept with each entry. An entry whose parent is
not there has no known state, nor has anything below it: the parent may still come.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict

from sessile.core.codec import decode
from sessile.core.context import first_kept
from sessile.core.kinds import BOUNDARY, MESSAGE, STATE, State, fold
from sessile.core.lines import Line

NOTHING = 0  # the state of a path that has set nothing; no entry begins a file

_REMEMBERED = 16  # entries that the next one is likely to hang from
_MANY = 64
_MAX_STATE = 16 * 1024  # bytes; a larger state is folded from its path

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(State).decode


class Link(NamedTuple):
    """What is known of an entry by those who hang from it."""

    start: int
    state: int | None
    cut: int
    value: State | None  # what `state` means


class Hung(NamedTuple):
    """What an entry has from its parent, and what it adds."""

    state: int | None
    cut: int
    after: bytes | None
    orphan: bool
    double: bool


def link_of(start: int, state: int | None, cut: int, after: bytes | None) -> Link:
    """A link as the database has it; `after` is the state at `state`."""
    return Link(start, state, cut, State() if state == NOTHING else None if after is None else _decode(after))


def state_of(state: int | None, after: bytes | None) -> State | None:
    """The state behind an entry; `None` if it has to be folded."""
    return link_of(0, state, 0, after).value


class Links:
    """The entries that new ones may hang from.

    With `whole` every entry that was there is known. Else `unknown` collects the ids that were asked for in vain, to be looked
    up and told by `learn`; `added` are those of the new entries, which could be there as well.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self.unknown: set[str] = set()
        self.added: set[str] = set()
        self._whole = whole
        self._absent: set[str] = set()
        self._links: dict[str, Link] = {}

    def __len__(self) -> int:
        return len(self._links)

    def learn(self, found: Iterable[tuple[str, Link]], sought: Iterable[str] = ()) -> None:
        """Note what was found of the ids that were sought; the others are not there."""
        self._links.update(found)
        self._absent = {entry_id for entry_id in sought if entry_id not in self._links}

    def copied(self) -> Links:
        """The same knowledge, to try something with."""
        copy = Links(whole=self._whole)
        copy._links = dict(self._links)
        copy._absent = self._absent
        return copy

    def forget_old(self) -> None:
        """Keep the newest only: a session of a million entries is no reason to hold a million links."""
        links = self._links
        if len(links) > _MANY:
            self._links = {entry_id: links[entry_id] for entry_id in list(links)[-_REMEMBERED:]}
        self._absent, self.added = set(), set()

    def add(self, line: Line, flags: int) -> Hung:
        """Hang the next entry of the journal."""
        start, head = line.offset, line.head
        entry_id, parent_id = str(head.id), head.parentId
        state: int | None = NOTHING
        value: State | None = None
        cut = start
        orphan = False
        if parent_id:
            parent = self._find(parent_id)
            if parent is None:
                state, orphan = None, True
            else:
                _, state, cut, value = parent
        else:
            value = State()
        if flags & BOUNDARY:
            cut = self._first_kept(line)
        after = None
        if flags & STATE and value is not None:
            state, value, after = _after(state, value, line, flags)
        double = entry_id in self._links
        if double:
            del self._links[entry_id]  # the newest come last
        self._links[entry_id] = Link(start, state, cut, value)
        if not self._whole:
            self.added.add(entry_id)
        return Hung(state, cut, after, orphan, double)

    def _find(self, entry_id: str) -> Link | None:
        link = self._links.get(entry_id)
        if link is None and not self._whole and entry_id not in self._absent:
            self.unknown.add(entry_id)
        return link

    def _first_kept(self, line: Line) -> int:
        if line.head.type != "compaction":
            return line.offset
        kept = first_kept(decode(line.raw))
        link = None if kept is None else self._find(kept)
        return line.offset if link is None else link.start


def _after(state: int | None, value: State, line: Line, flags: int) -> tuple[int | None, State | None, bytes | None]:
    """The state behind an entry that may change it; most answers repeat their model."""
    entry: dict[str, Any]
    if flags & MESSAGE:
        assert line.head.message is not None  # that is how the flags know
        entry = {"type": "message", "message": asdict(line.head.message)}
    else:
        entry = decode(line.raw)
    new = fold(value, entry)
    if new == value:
        return state, value, None
    try:
        encoded = _encode(new)
    except (ValueError, OverflowError):
        return None, None, None  # a lone surrogate, or a huge integer
    return (line.offset, new, encoded) if len(encoded) <= _MAX_STATE else (None, None, None)
