"""What a page knows of all entries of a session before it shows one: the tree, one line each, and what answers what.

Rules: entries are gone through once, and only what a row of the tree needs is kept of each. The order is that of the tree,
depth first, children in file order; the level of an entry grows only at forks. Everything is iterative.

It does not know markup, except for the anchors that rows and entries share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.core.kinds import MARKER, MARKERS
from sessile.core.parts import Call, Depth, Shown, Who
from sessile.core.shown import show
from sessile.core.tree import NOWHERE, Node, Tree
from sessile.core.visible import visible_line
from sessile.render.fragments import LONGEST_ANCHOR, Place, anchor_of

_LINE = 100  # characters of a row: more than fits beside a transcript
_NEAR = 64  # entries between a call and its result, at most


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
    calls: dict[str, Call] = {}
    for number, entry in enumerate(entries):
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


class PageTree:
    """The tree of a session with a row for each entry, addressed by the number of the entry in the file."""

    def __init__(self, entries: Iterable[Mapping[str, Any]], leaf: str | None, labels: Mapping[str, str]) -> None:
        nodes: list[Node] = []
        self.rows: dict[int, Row] = {}
        pairs: list[tuple[int, int, str]] = []  # the entry of a call, that of its result, the id of the call
        made: dict[str, int] = {}
        for number, shown, call in seen_entries(_counted(entries, nodes)):
            self.rows[number] = Row(shown.who, _line(shown, call), shown.depth, shown.failed)
            if shown.call_id in made:
                pairs.append((made[shown.call_id], number, shown.call_id))
            made.update((part.id, number) for part in shown.parts if isinstance(part, Call) and part.id)
        self.tree = Tree(nodes)
        self.anchors = self._anchors()
        named = ((self.tree.number(entry_id), text) for entry_id, text in labels.items())
        self.labels = {number: text for number, text in named if number is not None}
        self.answered = self._answered(pairs)
        self.order: list[int] = []
        self.levels: dict[int, int] = {}
        self._turns: dict[int, int] = {}  # of an entry that begins a branch: which one
        self._put_in_order()
        self.leaf = self._leaf(leaf)
        self.path = self.tree.path(self.leaf) if self.leaf is not None else []

    def _anchors(self) -> list[str]:
        """One anchor for each entry; entries with the same id, or one that had to be cut, are told apart by their number."""
        anchors = []
        for number, node in enumerate(self.tree.nodes):
            is_meant = self.tree.number(node.id) == number and len(node.id) <= LONGEST_ANCHOR
            anchors.append(anchor_of(node.id) if is_meant else f"{anchor_of(node.id)}:{number}")
        return anchors

    def _answered(self, pairs: Sequence[tuple[int, int, str]]) -> dict[int, set[str]]:
        """The calls of each entry whose result is on every branch that goes through it."""
        answered: dict[int, set[str]] = {}
        for maker, result, call_id in pairs:
            number = self.tree.parents[result]
            for _ in range(_NEAR):
                if number == NOWHERE or len(self.tree.children(number)) != 1:
                    break
                if number == maker:
                    answered.setdefault(maker, set()).add(call_id)
                    break
                number = self.tree.parents[number]
        return answered

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
        """The tip that is shown first: the leaf that was asked for, else the last entry."""
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
        """Which of the branches at a fork an entry begins; `None` if it begins none."""
        turn = self._turns.get(number)
        if turn is None:
            return None
        beside = self.tree.children(self.tree.parents[number])
        previous = self.anchors[beside[turn - 1]] if turn else None
        following = self.anchors[beside[turn + 1]] if turn + 1 < len(beside) else None
        return Place(turn + 1, len(beside), previous, following)


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
