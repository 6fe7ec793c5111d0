"""The outline of a session's tree: where it forks, what was named or summed up, and where it ends; the rest is counted.

Rules:

- Only forks indent, and only so far. Straight runs of two or more are elided to one row that says how many they are.
- Always shown: the tips of all branches and the leaf. Shown unless `only` leaves them out: how each branch begins, labelled
  entries, compactions, branch summaries.
- What only sets something (a label, a title, a model) makes no branch: it is counted on the row that it hangs from.
- Every entry is one row, or counted on exactly one.

Bodies are looked at for the rows that are shown, and for what may be a branch summary. The walk is iterative and linear.
How rows look is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from sessile.core.kinds import BOUNDARY, MESSAGE, TALK
from sessile.core.tree import NOWHERE, Tree
from sessile.render.shown import Shown

MOST_LEVELS = 12  # deeper branches are drawn at this depth: a terminal is not wide
_SEARCHED = 8  # messages at the beginning of a session among which the first prompt is looked for

Only = Literal["forks", "labels", "compactions"]
EVERYTHING: frozenset[Only] = frozenset(("forks", "labels", "compactions"))
Glyph = Literal["○", "✗", "◇", "●", "◆", "@", "·", "~"]


class RunCounts(NamedTuple):
    """What is in a run of entries that are not shown."""

    tools: int
    failed: int


class OutlineRow(NamedTuple):
    """An entry, or a run of entries between two that are shown."""

    level: int  # forks above it
    lead: str  # what is drawn before it: two columns for each level
    glyph: Glyph
    number: int  # of the entry; of a run, of its first
    id: str
    shown: Shown | None  # `None` for a run
    entries: int  # of a run that somebody would read; 1 for an entry
    settings: int  # entries counted here that only set something
    counts: RunCounts | None  # of a run, where they are known
    label: str | None
    is_head: bool
    is_leaf: bool
    is_active: bool  # on the path to the leaf
    branch: int  # which one of its fork it begins, from 1; 0 if it begins none
    branches: int


Look = Callable[[int], Shown]
"""Gives an entry by its number, as people see it."""
Count = Callable[[Sequence[int]], RunCounts | None]
"""Counts what is in entries, or gives `None` where reading them would take too long."""


def outline(
    tree: Tree,
    look: Look,
    *,
    leaf: str | None = None,
    labels: Mapping[str, str] | None = None,
    count: Count = lambda numbers: None,
    only: Collection[Only] = EVERYTHING,
    full: bool = False,
) -> Iterator[OutlineRow]:
    """The rows of a tree from top to bottom: branches in file order, the active one last. `full` elides nothing."""
    return _Outline(tree, look, count, leaf, labels or {}, frozenset(only), full).rows()


class _Branch(NamedTuple):
    """Where a branch begins, and how it is drawn."""

    start: int
    level: int
    first: str  # the lead of its first row
    rest: str
    place: int
    of: int


class _Outline:
    def __init__(
        self,
        tree: Tree,
        look: Look,
        count: Count,
        leaf: str | None,
        labels: Mapping[str, str],
        only: frozenset[Only],
        full: bool,
    ) -> None:
        self._tree, self._look, self._count = tree, look, count
        self._only, self._full = only, full
        number = None if leaf is None else tree.number(leaf)
        self._leaf = NOWHERE if number is None else number
        self._active = bytearray(len(tree.nodes))
        for step in tree.path(self._leaf):
            self._active[step] = 1
        # Of entries with one id the later is meant, by a label too.
        self._labels = {at: text for entry_id, text in labels.items() if (at := tree.number(entry_id)) is not None}
        self._twigs: dict[int, int] = {}  # how many settings hang beside the branch, by the entry that they hang from
        self._talks = self._told()

    def _told(self) -> bytearray:
        """Which entries people would read, or lead to one that they would: the others are settings and their twigs."""
        tree = self._tree
        order = list(tree.children(NOWHERE))
        for number in order:  # grows while it is walked
            order += tree.children(number)
        talks = bytearray(len(tree.nodes))
        for number in reversed(order):
            if self._active[number] or number in self._labels or not self._is_setting(number):
                talks[number] = 1
            parent = tree.parents[number]
            if parent == NOWHERE:
                talks[number] = 1  # it hangs from nothing that could count it
            elif talks[number]:
                talks[parent] = 1
            else:
                self._twigs[parent] = self._twigs.get(parent, 0) + 1 + self._twigs.pop(number, 0)
        return talks

    def _is_setting(self, number: int) -> bool:
        return not self._tree.nodes[number].flags & (TALK | MESSAGE | BOUNDARY)

    # -- branches

    def rows(self) -> Iterator[OutlineRow]:
        """All rows, one branch after the other."""
        waiting = self._fork(NOWHERE, 0, "")
        while waiting:
            branch = waiting.pop()
            path = self._straight(branch.start)
            following = self._fork(path[-1], branch.level, branch.rest)
            yield from self._rows(branch, path, NOWHERE if following else path[-1])
            waiting += following

    def _branches(self, number: int) -> list[int]:
        return [child for child in self._tree.children(number) if self._talks[child]]

    def _straight(self, start: int) -> list[int]:
        """The entries from one up to the next fork or tip."""
        path = [start]
        while len(children := self._branches(path[-1])) == 1:
            path += children
        return path

    def _fork(self, number: int, level: int, lead: str) -> list[_Branch]:
        """The branches that begin at an entry, the first one last."""
        starts = self._branches(number)
        if len(starts) < 2:
            return [_Branch(start, level, lead, lead, 0, 0) for start in starts]
        starts.sort(key=lambda start: self._active[start])
        deeper = level < MOST_LEVELS
        branches = []
        for place, start in enumerate(starts, 1):
            last = place == len(starts)
            first = lead + ("└─" if last else "├─")
            rest = lead + ("  " if last else "│ ") if deeper else lead
            branches.append(_Branch(start, level + 1, first, rest, place, len(starts)))
        return branches[::-1]

    # -- rows

    def _rows(self, branch: _Branch, path: Sequence[int], tip: int) -> Iterator[OutlineRow]:
        """The rows of a straight part of the tree, and of its tip if it has one."""
        for seen, numbers, settings in self._pieces(path, tip):
            yield self._row(branch, seen, numbers, settings, numbers[0] == tip)
            branch = branch._replace(first=branch.rest, place=0, of=0)
            if self._full:
                for number in self._hanging(numbers[0]):
                    yield self._row(branch, self._look(number), [number], 0, False)

    def _pieces(self, path: Sequence[int], tip: int) -> Iterator[tuple[Shown | None, list[int], int]]:
        """The path as entries that are shown and runs between them, each with the settings that are counted on it."""
        always = {tip, self._leaf, self._opening(path)}
        last: tuple[Shown | None, list[int], int] | None = None  # settings behind it are counted on it
        waiting = 0  # settings before the first piece
        for seen, numbers in self._runs(path, always):
            settings = sum(map(self._is_setting, numbers)) if seen is None else 0
            idle = seen is None and settings == len(numbers)
            if not self._full:
                settings += sum(self._twigs.get(number, 0) for number in numbers)
            if not idle:
                if last is not None:
                    yield last
                last = (seen, numbers, settings + waiting)
                waiting = 0
            elif last is not None:
                last = (*last[:2], last[2] + settings)
            else:
                waiting += settings
        yield last or (None, list(path), waiting)

    def _runs(self, path: Sequence[int], always: set[int]) -> Iterator[tuple[Shown | None, list[int]]]:
        run: list[int] = []
        for number in path:
            seen = self._look(number) if self._full or number in always else self._seen(number)
            if seen is None:
                run.append(number)
                continue
            yield from self._run(run)
            run = []
            yield seen, [number]
        yield from self._run(run)

    def _run(self, run: list[int]) -> Iterator[tuple[Shown | None, list[int]]]:
        """Entries that nothing else shows; one alone is shown all the same, as it takes no more room."""
        talk = [place for place, number in enumerate(run) if not self._is_setting(number)]
        if len(talk) != 1 or self._only != EVERYTHING:
            if run:
                yield None, run
            return
        place = talk[0]
        if place:
            yield None, run[:place]
        yield self._look(run[place]), [run[place]]
        if run[place + 1 :]:
            yield None, run[place + 1 :]

    def _opening(self, path: Sequence[int]) -> int:
        """The message that tells what a branch is about: its first; at the root the first prompt, if it comes soon."""
        if "forks" not in self._only or self._full:
            return NOWHERE
        nodes = self._tree.nodes
        first = NOWHERE
        searched = 0
        for number in path:
            if not nodes[number].flags & MESSAGE:
                continue
            first = number if first == NOWHERE else first
            if self._tree.parents[path[0]] != NOWHERE or searched == _SEARCHED:
                break
            if self._look(number).who == "user":
                return number
            searched += 1
        return first

    def _seen(self, number: int) -> Shown | None:
        """What is shown of an entry for what it is, or `None` if it goes into a run."""
        if number in self._labels and "labels" in self._only:
            return self._look(number)
        if "compactions" not in self._only:
            return None
        flags = self._tree.nodes[number].flags
        if flags & BOUNDARY:
            return self._look(number)
        if flags & TALK and not flags & MESSAGE:  # a branch summary, or a note
            seen = self._look(number)
            return seen if seen.who == "summary" else None
        return None

    def _row(
        self, branch: _Branch, seen: Shown | None, numbers: Sequence[int], settings: int, is_head: bool
    ) -> OutlineRow:
        number = numbers[0]
        label = self._labels.get(number) if seen else None
        is_leaf = seen is not None and number == self._leaf
        return OutlineRow(
            level=branch.level,
            lead=branch.first,
            glyph=_glyph(seen, label, is_leaf, self._is_setting(number)),
            number=number,
            id=self._tree.nodes[number].id,
            shown=seen,
            entries=1 if seen else sum(not self._is_setting(number) for number in numbers),
            settings=settings,
            counts=None if seen else self._count(numbers),
            label=label,
            is_head=is_head,
            is_leaf=is_leaf,
            is_active=bool(self._active[number]),
            branch=branch.place,
            branches=branch.of,
        )

    def _hanging(self, number: int) -> Iterator[int]:
        """The settings that hang beside the branch, parents first."""
        waiting = [child for child in self._tree.children(number) if not self._talks[child]][::-1]
        while waiting:
            twig = waiting.pop()
            yield twig
            waiting += self._tree.children(twig)[::-1]


def _glyph(seen: Shown | None, label: str | None, leaf: bool, setting: bool) -> Glyph:
    if seen is None:
        return "~"
    if leaf:
        return "@"
    if seen.failed:
        return "✗"
    if label:
        return "●"
    if seen.who == "summary":
        return "◇" if seen.name == "branch summary" else "◆"
    return "·" if setting else "○"
