"""Who hangs from whom, for a check of a session of any size: the rules of `Tree` in a few bytes an entry.

Rules are those of the tree: of two entries with one id the later is meant; a parent that is missing, or is the entry
itself, makes a root; a circle is cut at its earliest entry. Markers are entries here, because a check looks at all lines.
Everything is iterative and linear. It knows ids, not bodies or places.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from sessile.core.id_table import IdTable

NOWHERE = -1
_ON_THE_TRAIL, _ROOTED, _ADRIFT = 1, 2, 3


class Oddity(NamedTuple):
    """Something about the parents of one entry; entries are numbers in the order in which they were added."""

    code: str
    entry: int
    detail: str


class Kinship:
    """Add entries in file order, then `settle`; `parents` is then the tree."""

    def __init__(self) -> None:
        self.parents = array("i")  # before `settle` the numbers of ids, after it those of entries
        self._ids = IdTable()
        self._own = array("i")
        self._meant = array("i")  # for each id the entry that is meant by it

    def __len__(self) -> int:
        return len(self._own)

    def add(self, entry_id: str, parent_id: str | None) -> bool:
        """Add the next entry; says whether its id is new."""
        own = self.number(entry_id)
        new = self._meant[own] == NOWHERE
        self._meant[own] = len(self._own)
        self._own.append(own)
        self.parents.append(self.number(parent_id) if parent_id else NOWHERE)
        return new

    def number(self, entry_id: str) -> int:
        """A number for an id, whether there is such an entry or not."""
        number = self._ids.number(entry_id)
        if number == len(self._meant):
            self._meant.append(NOWHERE)
        return number

    def entry(self, number: int) -> int:
        """The entry that is meant by the id with that number, or `NOWHERE`."""
        return self._meant[number]

    def name(self, entry: int) -> str:
        """The id of an entry."""
        return self._ids.text(self._own[entry])

    def settle(self) -> Iterator[Oddity]:
        """Resolve all parents; gives what is not as it should be."""
        for entry, wanted in enumerate(self.parents):
            if wanted == NOWHERE:
                continue
            parent = self._meant[wanted]
            if parent == NOWHERE:
                missing = self._ids.text(wanted)
                yield Oddity(
                    "missing_parent", entry, f"entry {self.name(entry)} hangs from {missing}, which is not here"
                )
            elif wanted == self._own[entry]:
                yield Oddity("cycle", entry, f"entry {self.name(entry)} is its own parent")
                parent = NOWHERE
            elif parent > entry:
                own, later = self.name(entry), self.name(parent)
                yield Oddity("forward_parent", entry, f"entry {own} comes before its parent {later}")
            self.parents[entry] = parent
        yield from self._cut_circles()

    def _cut_circles(self) -> Iterator[Oddity]:
        parents = self.parents
        fate = bytearray(len(parents))
        for start in range(len(parents)):
            trail = array("i")
            entry = start
            while entry != NOWHERE and not fate[entry]:
                fate[entry] = _ON_THE_TRAIL
                trail.append(entry)
                entry = parents[entry]
            end = _ROOTED if entry == NOWHERE else fate[entry]
            if end == _ON_THE_TRAIL:
                first = min(trail[trail.index(entry) :])
                parents[first] = NOWHERE
                yield Oddity("cycle", first, f"entry {self.name(first)} is its own ancestor")
                end = _ADRIFT
            for entry in trail:
                fate[entry] = end
        adrift = fate.count(_ADRIFT)
        if adrift:
            detail = f"no root leads to {adrift} entries: they hang from a circle"
            yield Oddity("unreachable", fate.index(_ADRIFT), detail)

    def path(self, entry: int) -> Iterator[int]:
        """From an entry to its root."""
        while entry != NOWHERE:
            yield entry
            entry = self.parents[entry]


class Lineage:
    """Answers whether one entry is an ancestor of another, for many pairs of a settled tree."""

    def __init__(self, parents: array[int]) -> None:
        first, sibling = _children(parents)
        self._enter = array("i", [0]) * len(parents)
        self._leave = array("i", [0]) * len(parents)
        clock = 0
        for root in range(len(parents)):
            entry = root if parents[root] == NOWHERE else NOWHERE
            while entry != NOWHERE:
                self._enter[entry] = clock
                clock += 1
                if first[entry] != NOWHERE:
                    entry = first[entry]
                    continue
                self._leave[entry] = clock
                while entry != root and sibling[entry] == NOWHERE:
                    entry = parents[entry]
                    self._leave[entry] = clock
                entry = NOWHERE if entry == root else sibling[entry]

    def leads(self, ancestor: int, entry: int) -> bool:
        """Whether `ancestor` is on the path to `entry`."""
        return self._enter[ancestor] <= self._enter[entry] < self._leave[ancestor]


def _children(parents: array[int]) -> tuple[array[int], array[int]]:
    """The first child of each entry, and the next child of the same parent."""
    first = array("i", [NOWHERE]) * len(parents)
    sibling = array("i", [NOWHERE]) * len(parents)
    for child in reversed(range(len(parents))):
        parent = parents[child]
        if parent != NOWHERE:
            sibling[child] = first[parent]
            first[parent] = child
    return first, sibling
