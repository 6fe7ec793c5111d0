"""The outline of a session's tree: which rows it has, as plain values.

Terminal, export and page are views of this module:

    outline(…)          rows for the terminal and for `Session.get_outline`; `render.terminal` prints them
    page_outline(…)     rows for an exported page; `render.page` writes them as HTML
    entry_line(…)       one entry for the page's script, which filters and folds rows while entries are still arriving

Rules:

- Only forks indent. Straight runs of two or more entries are elided to one row that says how many there are.
- Always shown: the heads of all branches and the leaf. Shown unless `only` excludes them: the start of each branch, labelled
  entries, compactions and branch summaries. A page also shows every prompt, and the entry at which branches part.
- In a terminal, entries that only change a setting (a label, a title, a model) make no branch: they are counted on the row of
  their parent. The branch of the leaf comes last. A page keeps file order and treats settings like any entry.
- Every entry is one row, or is counted on exactly one.

The walk is iterative and linear. Bodies are read only for rows that are shown and for entries that may be branch summaries;
a page knows them all. How rows look is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from sessile.core.kinds import BOUNDARY, MESSAGE, TALK
from sessile.core.tree import NOWHERE, Tree
from sessile.core.visible import visible_line
from sessile.render.shown import DEPTHS, Call, Depth, Shown, Text, Who

MAX_LEVELS = 12  # deeper branches are drawn at this depth: a terminal is not wide
MAX_LINE = 100  # characters of an entry's line on a page: more than fits beside a transcript
_PROMPT_SEARCH = 8  # messages at the start of a session among which the first prompt is searched

Only = Literal["forks", "labels", "compactions", "prompts"]
EVERYTHING: frozenset[Only] = frozenset(("forks", "labels", "compactions"))
_PAGE: frozenset[Only] = EVERYTHING | {"prompts"}
Glyph = Literal["○", "✗", "◇", "●", "◆", "@", "·", "~"]


class RunCounts(NamedTuple):
    """What a run of elided entries contains."""

    tools: int
    failed: int


class OutlineRow(NamedTuple):
    """An entry, or a run of elided entries."""

    level: int  # number of forks above it
    lead: str  # the lines drawn before it: two columns for each level
    glyph: Glyph
    number: int  # of the entry; of a run, the number of its first entry
    id: str
    shown: Shown | None  # `None` for a run
    entries: int  # entries of a run that are not settings; 1 for an entry
    settings: int  # settings counted on this row
    counts: RunCounts | None  # of a run, if known
    label: str | None
    is_head: bool
    is_leaf: bool
    is_active: bool  # on the path to the leaf
    branch: int  # which branch of its fork it starts, from 1; 0 if it starts none
    branches: int


Look = Callable[[int], Shown]
"""Return an entry, by number, as people see it."""
Count = Callable[[Sequence[int]], RunCounts | None]
"""Count what entries contain, or return `None` if reading them would take too long."""


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
    """Yield the rows of a tree from top to bottom. The active branch comes last. `full` elides nothing."""
    leaf_number = None if leaf is None else tree.number(leaf)
    # Of entries that share an id, the later one counts.
    numbered = {at: text for entry_id, text in (labels or {}).items() if (at := tree.number(entry_id)) is not None}
    return _Outline(tree, look, count, leaf_number, numbered, frozenset(only), full=full).rows()


def page_outline(tree: Tree, look: Look, *, leaf: int | None, labels: Mapping[int, str]) -> Iterator[OutlineRow]:
    """Yield the rows of a page's tree from top to bottom, in file order. Leaf and labels are given by entry number."""

    def count(numbers: Sequence[int]) -> RunCounts:
        shown = [look(number) for number in numbers]
        return RunCounts(sum(one.who in ("tool", "shell") for one in shown), sum(one.failed for one in shown))

    return _Outline(tree, look, count, leaf, labels, _PAGE, for_page=True).rows()


# -- one line for each entry, for pages


class EntryLine(NamedTuple):
    """An entry as the page's script knows it.

    `mark` holds who in bits 0 to 2 (in the order of `Who`), the least depth that shows it in bits 3 and 4, and whether it
    failed in bit 5; bit 6 marks an entry that is never shown. `tokens` is the size of the context after a model's answer.
    """

    mark: int
    line: str
    tokens: int | None = None


_WHO: tuple[Who, ...] = ("user", "assistant", "system", "tool", "shell", "summary", "setting", "note")
_FAILED = 1 << 5
HIDDEN = EntryLine(1 << 6, "")
"""The line of a leaf marker."""
_NO_TEXT: dict[Depth, Text] = {depth: Text("", depth) for depth in DEPTHS}


def without_content(shown: Shown, call: Call | None) -> Shown:
    """Return an entry with only what a row of a page needs: its line as the headline, its depth, and no content.

    A result's line is that of the call it answers.
    """
    line = call.summary if call and call.summary else shown.headline
    is_named = shown.who in ("tool", "shell", "note", "summary") and shown.name != line
    line = visible_line(f"{shown.name} · {line}" if is_named else line)[:MAX_LINE]
    parts = (_NO_TEXT[shown.depth],)
    # Not `_replace`, which takes three times as long: there is one for each entry of a session.
    return Shown(
        shown.id, None, shown.type, shown.who, shown.name, line, parts, shown.failed, shown.at, None, None, None
    )


def entry_line(row: Shown, tokens: int | None = None) -> EntryLine:
    """Return the line of an entry that `without_content` has prepared."""
    mark = _WHO.index(row.who) | DEPTHS.index(row.depth) << 3 | (_FAILED if row.failed else 0)
    return EntryLine(mark, row.headline, tokens)


# -- rows


class _Branch(NamedTuple):
    """Where a branch starts, and how it is drawn."""

    start: int
    level: int
    first: str  # the lead of its first row
    rest: str
    place: int
    of: int


_Piece = tuple[Shown | None, list[int], int]
"""A row in the making: the shown entry, or `None` for a run; its entries; the settings counted on it."""


class _Outline:
    def __init__(
        self,
        tree: Tree,
        look: Look,
        count: Count,
        leaf: int | None,
        labels: Mapping[int, str],
        only: frozenset[Only],
        *,
        full: bool = False,
        for_page: bool = False,
    ) -> None:
        self._tree, self._look, self._count = tree, look, count
        self._labels, self._only, self._full, self._for_page = labels, only, full, for_page
        self._leaf = NOWHERE if leaf is None else leaf
        self._active = bytearray(len(tree.nodes))
        for step in tree.path(self._leaf):
            self._active[step] = 1
        self._twigs: dict[int, int] = {}  # settings that hang beside the branch, counted by the entry they hang from
        self._is_branch = self._find_branches()

    def _find_branches(self) -> bytearray:
        """Mark the entries that are part of a branch: all but settings that lead to nothing else."""
        tree = self._tree
        if self._for_page:
            return bytearray(b"\1" * len(tree.nodes))
        order = list(tree.children(NOWHERE))
        for number in order:  # grows while it is walked
            order += tree.children(number)
        marked = bytearray(len(tree.nodes))
        for number in reversed(order):
            if self._active[number] or number in self._labels or not self._is_setting(number):
                marked[number] = 1
            parent = tree.parents[number]
            if parent == NOWHERE:
                marked[number] = 1  # it has no parent that could count it
            elif marked[number]:
                marked[parent] = 1
            else:
                self._twigs[parent] = self._twigs.get(parent, 0) + 1 + self._twigs.pop(number, 0)
        return marked

    def _is_setting(self, number: int) -> bool:
        return not self._for_page and not self._tree.nodes[number].flags & (TALK | MESSAGE | BOUNDARY)

    # -- branches

    def rows(self) -> Iterator[OutlineRow]:
        """Yield all rows, one branch after the other."""
        waiting = self._fork(NOWHERE, 0, "")
        while waiting:
            branch = waiting.pop()
            path = self._straight(branch.start)
            following = self._fork(path[-1], branch.level, branch.rest)
            yield from self._rows(branch, path, NOWHERE if following else path[-1])
            waiting += following

    def _branches(self, number: int) -> list[int]:
        return [child for child in self._tree.children(number) if self._is_branch[child]]

    def _straight(self, start: int) -> list[int]:
        """Return the entries from `start` to the next fork or head."""
        path = [start]
        while len(children := self._branches(path[-1])) == 1:
            path += children
        return path

    def _fork(self, number: int, level: int, lead: str) -> list[_Branch]:
        """Return the branches that start below an entry, in reverse order."""
        starts = self._branches(number)
        if len(starts) < 2:
            return [_Branch(start, level, lead, lead, 0, 0) for start in starts]
        if not self._for_page:
            starts.sort(key=lambda start: self._active[start])
        deeper = level < MAX_LEVELS
        branches = []
        for place, start in enumerate(starts, 1):
            last = place == len(starts)
            first = lead + ("└─" if last else "├─")
            rest = lead + ("  " if last else "│ ") if deeper else lead
            branches.append(_Branch(start, level + 1, first, rest, place, len(starts)))
        return branches[::-1]

    # -- the rows of one branch

    def _rows(self, branch: _Branch, path: Sequence[int], head: int) -> Iterator[OutlineRow]:
        """Yield the rows of a straight part of the tree; `head` is its last entry if the branch ends there."""
        for shown, numbers, settings in self._pieces(path, self._always(branch, path, head)):
            yield self._row(branch, shown, numbers, settings, numbers[0] == head)
            branch = branch._replace(first=branch.rest, place=0, of=0)
            if self._full:
                for number in self._hanging(numbers[0]):
                    yield self._row(branch, self._look(number), [number], 0, False)

    def _always(self, branch: _Branch, path: Sequence[int], head: int) -> set[int]:
        """Return the entries that are shown whatever they are."""
        if self._for_page:
            return {path[-1], self._leaf, path[0] if branch.place else NOWHERE}
        return {head, self._leaf, self._opening(path)}

    def _pieces(self, path: Sequence[int], always: set[int]) -> Iterator[_Piece]:
        """Divide a path into shown entries and runs, each with the settings that are counted on it."""
        last: _Piece | None = None  # settings after it are counted on it
        waiting = 0  # settings before the first piece
        for shown, numbers in self._runs(path, always):
            settings = sum(map(self._is_setting, numbers)) if shown is None else 0
            idle = shown is None and settings == len(numbers)
            if not self._full:
                settings += sum(self._twigs.get(number, 0) for number in numbers)
            if not idle:
                if last is not None:
                    yield last
                last = (shown, numbers, settings + waiting)
                waiting = 0
            elif last is not None:
                last = (*last[:2], last[2] + settings)
            else:
                waiting += settings
        yield last or (None, list(path), waiting)

    def _runs(self, path: Sequence[int], always: set[int]) -> Iterator[tuple[Shown | None, list[int]]]:
        run: list[int] = []
        for number in path:
            shown = self._look(number) if self._full or number in always else self._look_if_shown(number)
            if shown is None:
                run.append(number)
                continue
            yield from self._run(run)
            run = []
            yield shown, [number]
        yield from self._run(run)

    def _run(self, run: list[int]) -> Iterator[tuple[Shown | None, list[int]]]:
        """Yield a run of elided entries. A single entry is shown: it takes no more room."""
        places = [place for place, number in enumerate(run) if not self._is_setting(number)]
        if len(places) != 1 or not self._only >= EVERYTHING:
            if run:
                yield None, run
            return
        place = places[0]
        if place:
            yield None, run[:place]
        yield self._look(run[place]), [run[place]]
        if run[place + 1 :]:
            yield None, run[place + 1 :]

    def _opening(self, path: Sequence[int]) -> int:
        """Return the message that shows what a branch is about: its first; at the root the first prompt, if it comes soon."""
        if "forks" not in self._only or self._full:
            return NOWHERE
        nodes = self._tree.nodes
        first = NOWHERE
        searched = 0
        for number in path:
            if not nodes[number].flags & MESSAGE:
                continue
            first = number if first == NOWHERE else first
            if self._tree.parents[path[0]] != NOWHERE or searched == _PROMPT_SEARCH:
                break
            if self._look(number).who == "user":
                return number
            searched += 1
        return first

    def _look_if_shown(self, number: int) -> Shown | None:
        """Return an entry that is shown for what it is; `None` if it belongs into a run."""
        if number in self._labels and "labels" in self._only:
            return self._look(number)
        if "prompts" in self._only:
            shown = self._look(number)
            return shown if shown.depth == "prompts" else None
        if "compactions" not in self._only:
            return None
        flags = self._tree.nodes[number].flags
        if flags & BOUNDARY:
            return self._look(number)
        if flags & TALK and not flags & MESSAGE:  # a branch summary, or a note
            shown = self._look(number)
            return shown if shown.who == "summary" else None
        return None

    def _row(
        self, branch: _Branch, shown: Shown | None, numbers: Sequence[int], settings: int, is_head: bool
    ) -> OutlineRow:
        number = numbers[0]
        label = self._labels.get(number) if shown else None
        is_leaf = shown is not None and number == self._leaf
        return OutlineRow(
            level=branch.level,
            lead=branch.first,
            glyph=_glyph(shown, label, is_leaf, self._is_setting(number)),
            number=number,
            id=self._tree.nodes[number].id,
            shown=shown,
            entries=1 if shown else sum(not self._is_setting(number) for number in numbers),
            settings=settings,
            counts=None if shown else self._count(numbers),
            label=label,
            is_head=is_head,
            is_leaf=is_leaf,
            is_active=bool(self._active[number]),
            branch=branch.place,
            branches=branch.of,
        )

    def _hanging(self, number: int) -> Iterator[int]:
        """Yield the settings that hang beside the branch, parents first."""
        waiting = [child for child in self._tree.children(number) if not self._is_branch[child]][::-1]
        while waiting:
            twig = waiting.pop()
            yield twig
            waiting += self._tree.children(twig)[::-1]


def _glyph(shown: Shown | None, label: str | None, leaf: bool, setting: bool) -> Glyph:
    if shown is None:
        return "~"
    if leaf:
        return "@"
    if shown.failed:
        return "✗"
    if label:
        return "●"
    if shown.who == "summary":
        return "◇" if shown.name == "branch summary" else "◆"
    return "·" if setting else "○"
