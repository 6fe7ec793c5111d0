"""What a page knows of all entries of a session before it shows one: the tree, one line each, and what answers what.

Rules: entries are gone through once, and only what a row of the tree needs is kept of each. The order is that of the tree,
depth first, children in file order; the level of an entry grows only where it branches. Everything is iterative.

It does not know markup, except for the anchors that rows and entries share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from sessile.core.kinds import MARKER, MARKERS
from sessile.core.parts import DEPTHS, Call, Depth, Shown, Who
from sessile.core.shown import show
from sessile.core.tree import NOWHERE, Node, Tree
from sessile.core.visible import visible_line
from sessile.render.fragments import LONGEST_ANCHOR, Place, anchor_of

_LINE = 100  # characters of a row: more than fits beside a transcript
NEAR = 64  # entries between a call and its result, at most

_WHO: tuple[Who, ...] = ("user", "assistant", "system", "tool", "shell", "summary", "setting", "note")
_FAILED = 1 << 5
_ESCAPED = re.compile(r"\.(10[0-9a-f]{4}|[0-9a-f]{1,5})\.")
_DIGITS = 10  # of a number that is surely too large


class Row(NamedTuple):
    """What the tree shows of an entry."""

    who: Who
    line: str
    depth: Depth
    failed: bool


class Seen(NamedTuple):
    """An entry on its way to the page."""

    number: int  # in the file
    shown: Shown
    call: Call | None  # that it answers


def is_marker(entry: Mapping[str, Any]) -> bool:
    """Whether an entry only stores the leaf: it is nobody's words."""
    return entry.get("type") == "custom" and entry.get("customType") in MARKERS


def seen_entries(entries: Iterable[Mapping[str, Any]]) -> Iterator[Seen]:
    """Entries in file order as people see them, each with the call that it answers; markers are left out."""
    return seen_numbered(enumerate(entries))


def seen_numbered(entries: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[Seen]:
    """The same of entries that know their numbers; calls are those of the entries that are given."""
    calls: dict[str, Call] = {}
    for number, entry in entries:
        if is_marker(entry):
            continue
        shown = show(entry, calls)
        yield Seen(number, shown, calls.get(shown.call_id or ""))
        for part in shown.parts:
            if isinstance(part, Call) and part.id:
                calls[part.id] = part._replace(arguments=_path_of(part.arguments))


def _path_of(arguments: object) -> dict[str, Any]:
    """Of what a call was given, what its result is told with: a session's worth of arguments need not fit in memory."""
    path = arguments.get("path") if isinstance(arguments, dict) else None
    return {"path": path} if isinstance(path, str) else {}


class Pairs:
    """The calls of entries and the entries that answer them, noted in file order."""

    def __init__(self) -> None:
        self._made: dict[str, int] = {}  # by the id of a call: the entry that makes it
        self._pairs: list[tuple[int, int, str]] = []  # the entry of a call, that of its result, the id of the call

    def note(self, seen: Seen) -> None:
        """Note what an entry calls and answers."""
        shown, number = seen.shown, seen.number
        if shown.call_id in self._made:
            self._pairs.append((self._made[shown.call_id], number, shown.call_id))
        self._made.update((part.id, number) for part in shown.parts if isinstance(part, Call) and part.id)

    def answered(self, tree: Tree) -> dict[int, set[str]]:
        """The calls of each entry whose result is on every branch that goes through it."""
        answered: dict[int, set[str]] = {}
        for maker, result, call_id in self._pairs:
            number = tree.parents[result]
            for _ in range(NEAR):
                if number == NOWHERE or len(tree.children(number)) != 1:
                    break
                if number == maker:
                    answered.setdefault(maker, set()).add(call_id)
                    break
                number = tree.parents[number]
        return answered


def row_of(seen: Seen) -> Row:
    """What the tree shows of an entry."""
    shown = seen.shown
    return Row(shown.who, _line(shown, seen.call), shown.depth, shown.failed)


def mark_of(row: Row) -> int:
    """All of a row but its line as one number: who in three bits, the depth in two, whether it failed."""
    return _WHO.index(row.who) | DEPTHS.index(row.depth) << 3 | (_FAILED if row.failed else 0)


def anchor_at(tree: Tree, number: int) -> str:
    """The anchor of an entry; entries with the same id, or one that had to be cut, are told apart by their number."""
    entry_id = tree.nodes[number].id
    is_meant = tree.number(entry_id) == number and len(entry_id) <= LONGEST_ANCHOR
    return anchor_of(entry_id) if is_meant else f"{anchor_of(entry_id)}:{number}"


def number_at(tree: Tree, anchor: str) -> int | None:
    """The entry that has an anchor; `None` if there is none."""
    plain, colon, number = anchor.removeprefix("e-").rpartition(":")
    if colon and number.isdecimal() and len(number) < _DIGITS:
        found: int | None = int(number) if int(number) < len(tree.nodes) else None
    else:
        found = tree.number(_ESCAPED.sub(lambda match: chr(int(match[1], 16)), plain if colon else number))
    return found if found is not None and anchor_at(tree, found) == anchor else None


def place_at(tree: Tree, number: int, turn: int | None = None) -> Place | None:
    """Which of the branches that part here an entry begins; `None` if it begins none. `turn` is that, if it is known."""
    beside = tree.children(tree.parents[number])
    if len(beside) < 2:
        return None
    turn = beside.index(number) if turn is None else turn
    previous = anchor_at(tree, beside[turn - 1]) if turn else None
    following = anchor_at(tree, beside[turn + 1]) if turn + 1 < len(beside) else None
    return Place(turn + 1, len(beside), previous, following)


class PageTree:
    """The tree of a session with a row for each entry, addressed by the number of the entry in the file."""

    def __init__(self, entries: Iterable[Mapping[str, Any]], leaf: str | None, labels: Mapping[str, str]) -> None:
        nodes: list[Node] = []
        self.rows: dict[int, Row] = {}
        pairs = Pairs()
        for seen in seen_entries(_counted(entries, nodes)):
            self.rows[seen.number] = row_of(seen)
            pairs.note(seen)
        self.tree = Tree(nodes)
        self.anchors = [anchor_at(self.tree, number) for number in range(len(nodes))]
        named = ((self.tree.number(entry_id), text) for entry_id, text in labels.items())
        self.labels = {number: text for number, text in named if number is not None}
        self.answered = pairs.answered(self.tree)
        self.order: list[int] = []
        self.levels: dict[int, int] = {}
        self._turns: dict[int, int] = {}  # of an entry that begins a branch: which one
        self._put_in_order()
        self.leaf = self._leaf(leaf)
        self.path = self.tree.path(self.leaf) if self.leaf is not None else []

    def _put_in_order(self) -> None:
        waiting: list[tuple[int, int]] = []
        number, level = NOWHERE, 0
        while True:
            children = self.tree.children(number)
            if len(children) > 1:
                self._turns.update((child, turn) for turn, child in enumerate(children))
                level += number != NOWHERE
            waiting.extend((child, level) for child in reversed(children))
            if not waiting:
                return
            number, level = waiting.pop()
            self.order.append(number)
            self.levels[number] = level

    def _leaf(self, leaf: str | None) -> int | None:
        """The entry whose branch is shown first: the leaf that was asked for, else the last entry."""
        number = self.tree.number(leaf) if leaf is not None else None
        if number is not None and number not in self.rows:
            number = self.tree.parents[number]  # a marker means what it hangs from
        if number is None or number == NOWHERE:
            number = max(self.rows, default=None)
        return number

    def begins_branch(self, number: int) -> bool:
        """Whether a branch begins with an entry."""
        return number in self._turns

    def place(self, number: int) -> Place | None:
        """Which of the branches that part here an entry begins; `None` if it begins none."""
        turn = self._turns.get(number)
        return None if turn is None else place_at(self.tree, number, turn)


def _counted(entries: Iterable[Mapping[str, Any]], nodes: list[Node]) -> Iterator[Mapping[str, Any]]:
    """The entries, noting on the way how they hang together."""
    for entry in entries:
        entry_id, parent_id = entry.get("id"), entry.get("parentId")
        if isinstance(entry_id, str) and entry_id:
            parent = parent_id if isinstance(parent_id, str) else None
        else:  # as in files of version 1, which are one chain; no file holds an id like this
            entry_id, parent = f"\0{len(nodes)}", nodes[-1].id if nodes else None
        nodes.append(Node(entry_id, parent, MARKER if is_marker(entry) else 0))
        yield entry


def _line(shown: Shown, call: Call | None) -> str:
    line = call.summary if call and call.summary else shown.headline
    named = shown.who in ("tool", "shell", "note", "summary") and shown.name != line
    return visible_line(f"{shown.name} · {line}" if named else line)[:_LINE]
