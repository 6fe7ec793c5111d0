"""The tree of a session: who hangs from whom, for any list of entries however damaged.

Rules: of two entries with one id the later is meant, both stay; a parent that is missing, or is the entry itself, makes a
root; a circle is cut at its earliest entry. Leaf markers are no nodes: what hangs from one hangs from its parent.
Everything is iterative and linear. The tree knows ids and flags, not bodies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from sessile.core.kinds import MARKER
from sessile.core.lines import Finding

NOWHERE = -1


class Hanging(Protocol):
    """What the tree knows of an entry; a journal's rows are such."""

    @property
    def id(self) -> str: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def flags(self) -> int: ...


class Node(NamedTuple):
    """The same, alone."""

    id: str
    parent_id: str | None
    flags: int


class Tree:
    """Parents, children, heads and roots, addressed by the number of an entry in the list."""

    def __init__(self, nodes: Iterable[Hanging]) -> None:
        self.nodes: Sequence[Hanging] = list(nodes)
        self.findings: list[Finding] = []
        self._number: dict[str, int] = {}
        for number, node in enumerate(self.nodes):
            if node.id in self._number:
                self._report("duplicate_id", f"entry {node.id} appears more than once; the later one is meant")
            self._number[node.id] = number
        self.parents = self._resolve()
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
                    self._report("missing_parent", f"entry {node.id} hangs from {parent_id}, which is not here")
            elif parent >= number:
                if parent_id == node.id:
                    self._report("cycle", f"entry {node.id} is its own parent")
                    parent = NOWHERE
                else:
                    self._report("forward_parent", f"entry {node.id} comes before its parent {parent_id}")
                    forward = True
            parents.append(parent)
        if forward:  # without one, every step leads towards the beginning
            self._cut_circles(parents)
        return parents

    def _cut_circles(self, parents: list[int]) -> None:
        done = bytearray(len(parents))
        for start in range(len(parents)):
            trail = []
            number = start
            while number != NOWHERE and not done[number]:
                done[number] = 1  # on the trail of this round
                trail.append(number)
                number = parents[number]
            if number != NOWHERE and done[number] == 1:
                circle = trail[trail.index(number) :]
                first = min(circle)
                parents[first] = NOWHERE
                self._report("cycle", f"entry {self.nodes[first].id} is its own ancestor")
            for number in trail:
                done[number] = 2

    def _skip_markers(self) -> None:
        if not any(node.flags & MARKER for node in self.nodes):
            return
        for number in range(len(self.parents)):
            passed = [number]
            parent = self.parents[number]
            while parent != NOWHERE and self.nodes[parent].flags & MARKER:
                passed.append(parent)
                parent = self.parents[parent]
            for entry in passed:  # the markers too, so that a long row of them is walked once
                self.parents[entry] = parent

    def number(self, entry_id: str) -> int | None:
        """The number of an entry; of duplicates the later."""
        return self._number.get(entry_id)

    def children(self, number: int) -> list[int]:
        """The children of an entry in file order; those of `NOWHERE` are the roots. Markers are left out."""
        if self._children is None:
            self._children = {}
            for child, parent in enumerate(self.parents):
                if not self.nodes[child].flags & MARKER:
                    self._children.setdefault(parent, []).append(child)
        return self._children.get(number, [])

    def heads(self) -> list[int]:
        """The entries without children, in file order."""
        shown = [number for number, node in enumerate(self.nodes) if not node.flags & MARKER]
        parents = {self.parents[number] for number in shown}
        return [number for number in shown if number not in parents]

    def path(self, number: int) -> list[int]:
        """The numbers from the root to an entry."""
        path = []
        while number != NOWHERE:
            path.append(number)
            number = self.parents[number]
        path.reverse()
        return path

    def common_ancestor(self, first: int, second: int) -> int:
        """The deepest entry on both paths, or `NOWHERE`."""
        ancestors = set(self.path(first))
        while second != NOWHERE and second not in ancestors:
            second = self.parents[second]
        return second
