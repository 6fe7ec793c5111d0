"""The tree of a session: who hangs from whom, for any list of entries however damaged.

Rules: of two entries with one id the later is meant, both stay; a parent that is missing, or is the entry itself, makes a
root; a circle is cut at its earliest entry. Leaf markers are no nodes: what hangs from one hangs from its parent.
Everything is iterative and linear. The tree knows ids and flags, not bodies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sessile.core.kinds import MARKER
from sessile.core.lines import Finding

NOWHERE = -1


class Node(NamedTuple):
    """What the tree knows of an entry."""

    id: str
    parent_id: str | None
    flags: int


class Tree:
    """Parents, children, heads and roots, addressed by the number of an entry in the list."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: Sequence[Node] = list(nodes)
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
        for number, node in enumerate(self.nodes):
            parent = self._number.get(node.parent_id, NOWHERE) if node.parent_id else NOWHERE
            if node.parent_id and parent == NOWHERE:
                self._report("missing_parent", f"entry {node.id} hangs from {node.parent_id}, which is not here")
            elif parent != NOWHERE and node.parent_id == node.id:
                self._report("cycle", f"entry {node.id} is its own parent")
                parent = NOWHERE
            elif parent > number:
                self._report("forward_parent", f"entry {node.id} comes before its parent {node.parent_id}")
            parents.append(parent)
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
        return [n for n, node in enumerate(self.nodes) if not node.flags & MARKER and not self.children(n)]

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
