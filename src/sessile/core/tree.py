"""The tree of a session, built from any list of entries, however damaged; and the lines of a branch as a new session.

Rules of the tree:
- If two entries have the same id, the later one is used; both stay.
- An entry whose parent is missing, or is the entry itself, is a root.
- A cycle is cut at its earliest entry.
- Leaf markers are not nodes: their children are children of their parent.

Everything is iterative and linear. The tree knows ids and flags, not bodies.

`branched_lines` leaves out labels and leaf markers on the path and connects their children to their parent. Labels whose target
is on the path are appended as new entries at the end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from sessile.core import entries
from sessile.core.codec import encode
from sessile.core.entries import Entry
from sessile.core.kinds import CHAIN, LABEL, MARKER, MARKERS, kind_of
from sessile.core.lines import Finding

NOWHERE = -1


class TreeEntry(Protocol):
    """What the tree knows of an entry. Rows of a journal are such entries."""

    @property
    def id(self) -> str: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def flags(self) -> int: ...


class Node(NamedTuple):
    """A plain `TreeEntry`."""

    id: str
    parent_id: str | None
    flags: int


class Tree:
    """Parents, children, heads and roots; entries are numbered by their position in the list."""

    def __init__(self, nodes: Iterable[TreeEntry]) -> None:
        self.nodes: Sequence[TreeEntry] = list(nodes)
        self.findings: list[Finding] = []
        self._number: dict[str, int] = {}
        for number, node in enumerate(self.nodes):
            if node.id in self._number:
                self._report("duplicate_id", f"entry {node.id} appears more than once; the later one is used")
            self._number[node.id] = number
        self._missing: list[int] = []  # entries whose parent is missing
        self.parents = self._stored = self._resolve()
        self._skip_markers()
        self._children: dict[int, list[int]] | None = None

    def _report(self, code: str, detail: str) -> None:
        self.findings.append(Finding(code, -1, 0, detail))

    def _resolve(self) -> list[int]:
        parents = []
        forward = False
        for number, node in enumerate(self.nodes):
            parent_id = node.parent_id
            parent = self._number.get(parent_id, NOWHERE) if parent_id else NOWHERE
            if parent == NOWHERE:
                if parent_id:
                    self._missing.append(number)
                    self._report("missing_parent", f"the parent {parent_id} of entry {node.id} is missing")
            elif parent >= number:
                if parent_id == node.id:
                    self._report("cycle", f"entry {node.id} is its own parent")
                    parent = NOWHERE
                else:
                    self._report("forward_parent", f"entry {node.id} comes before its parent {parent_id}")
                    forward = True
            parents.append(parent)
        if forward:  # cycles need a parent that comes later
            self._cut_cycles(parents)
        return parents

    def _cut_cycles(self, parents: list[int]) -> None:
        done = bytearray(len(parents))
        for start in range(len(parents)):
            trail = []
            number = start
            while number != NOWHERE and not done[number]:
                done[number] = 1  # on the trail of this start
                trail.append(number)
                number = parents[number]
            if number != NOWHERE and done[number] == 1:
                first = min(trail[trail.index(number) :])
                parents[first] = NOWHERE
                self._report("cycle", f"entry {self.nodes[first].id} is its own ancestor")
            for number in trail:
                done[number] = 2

    def _skip_markers(self) -> None:
        if not any(node.flags & MARKER for node in self.nodes):
            return
        self.parents = self._stored.copy()
        for number in range(len(self.parents)):
            passed = [number]
            parent = self.parents[number]
            while parent != NOWHERE and self.nodes[parent].flags & MARKER:
                passed.append(parent)
                parent = self.parents[parent]
            for entry in passed:  # the markers too, so that a long run of them is walked once
                self.parents[entry] = parent

    def number(self, entry_id: str) -> int | None:
        """Return the number of an entry; of duplicates, the later one."""
        return self._number.get(entry_id)

    def children(self, number: int) -> list[int]:
        """Return the children of an entry in file order, without markers; those of `NOWHERE` are the roots."""
        if self._children is None:
            self._children = {}
            for child, parent in enumerate(self.parents):
                if not self.nodes[child].flags & MARKER:
                    self._children.setdefault(parent, []).append(child)
        return self._children.get(number, [])

    def heads(self) -> list[int]:
        """Return the entries without children, in file order."""
        shown = [number for number, node in enumerate(self.nodes) if not node.flags & MARKER]
        parents = {self.parents[number] for number in shown}
        return [number for number in shown if number not in parents]

    def path(self, number: int) -> list[int]:
        """Return the numbers from the root to an entry."""
        path = []
        while number != NOWHERE:
            path.append(number)
            number = self.parents[number]
        path.reverse()
        return path

    def common_ancestor(self, first: int, second: int) -> int:
        """Return the deepest entry on both paths, or `NOWHERE`."""
        ancestors = set(self.path(first))
        while second != NOWHERE and second not in ancestors:
            second = self.parents[second]
        return second

    def bridges(self) -> dict[int, int]:
        """Return where to continue, for each entry whose parent is missing: see `bridges`."""

        def may_be_parent(number: int) -> bool:
            node = self.nodes[number]
            return node.flags & (CHAIN | MARKER) == CHAIN and self._number[node.id] == number

        return bridges(self._stored, self._missing, may_be_parent)


_PASSED = 1000  # descendants that are passed over on the way to the entry before; more are hardly an accident


def bridges(parents: Sequence[int], missing: Iterable[int], may_be_parent: Callable[[int], bool]) -> dict[int, int]:
    """Return a new parent for entries whose parent is missing: the nearest earlier entry that may be one.

    An earlier entry that descends from the entry itself is passed over, because the bridge would close a cycle. An entry
    without any other earlier entry gets none.

    Args:
        parents: The parent of each entry, or `NOWHERE`; without cycles.
        missing: The entries whose parent is missing, in file order.
        may_be_parent: Whether an entry can be the end of a bridge.
    """
    found: dict[int, int] = {}
    missing = list(missing)
    if not missing:
        return found
    up = list(parents)  # parents and bridges; shortened by each look for a root
    ends = [number for number in range(missing[-1]) if may_be_parent(number)]
    for entry in missing:
        before = bisect_left(ends, entry) - 1
        for place in range(before, max(before - _PASSED, -1), -1):
            if _root(up, ends[place]) != entry:
                found[entry] = up[entry] = ends[place]
                break
    return found


def _root(up: list[int], entry: int) -> int:
    """Return the root of an entry, and shorten the way to it."""
    root = entry
    while up[root] != NOWHERE:
        root = up[root]
    while up[entry] != NOWHERE:
        up[entry], entry = root, up[entry]
    return root


def branched_lines(
    path: Iterable[Entry], labels: Mapping[str, str], new_id: Callable[[], str], timestamp: str
) -> list[bytes]:
    """Return the lines of a session with only this path (root first). Lines that need no change are copied unchanged."""
    lines: list[bytes] = []
    dropped: list[str] = []  # a compaction may name one of them as its first kept entry
    replacements: dict[str, str] = {}
    last: str | None = None
    kept = []
    for entry in path:
        if kind_of(entry.type).flags & LABEL or entry.stored.get("customType") in MARKERS:
            dropped.append(entry.id)
            continue
        replacements.update(dict.fromkeys(dropped, entry.id))
        dropped.clear()
        lines.append(_chained(entry, last, replacements))
        kept.append(entry.id)
        last = entry.id
    for target in kept:
        if target in labels:
            entry_id = new_id()
            lines.append(encode(entries.with_base(entries.label(target, labels[target]), entry_id, last, timestamp)))
            last = entry_id
    return lines


def _chained(entry: Entry, parent_id: str | None, replacements: Mapping[str, str]) -> bytes:
    first_kept = entry.stored.get("firstKeptEntryId") if entry.type == "compaction" else None
    moved = replacements.get(first_kept) if isinstance(first_kept, str) else None
    if entry.parent_id == parent_id and moved is None:
        return entry.raw
    body = {**entry.stored, "parentId": parent_id}
    return encode(body if moved is None else body | {"firstKeptEntryId": moved})
