"""What the journal of an OpenAI Agents session says, read in the order in which it was written.

The entries of a session are a log of what was done to its lines of items: every branch is a line, the first is called "main".

    item entries (see openai_agents_items)     one item more on its line; with `more`, so many entries belong to it
    openai.pop, openai.clear, openai.replace   items less on the line; they stay in the journal, `openai.undo` brings them back
    openai.branch, openai.delete_branch        a line that begins with a part of another, or ends
    openai.usage                               what the answer to a turn has used

Rules: all processes read the same log, so they agree on every line without asking each other. A note that does not apply where
it came to stand (another process was faster) does nothing, for everybody; its writer finds out by reading on. Entries that
belong together and were torn by a crash count for nothing. The tree of the session shows the same lines to people; only if one
process takes items away in the very moment in which another adds some may it show more than the line has. An item points to the
one before it, so a line is one pointer, and a branch costs one entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from sessile.adapters.openai_agents_items import MEMBER, text_of
from sessile.core.entries import Entry, Payload, custom

MAIN = "main"

POP, CLEAR, REPLACE, UNDO = "openai.pop", "openai.clear", "openai.replace", "openai.undo"
BRANCH, DELETE, USAGE = "openai.branch", "openai.delete_branch", "openai.usage"


class Item:
    """One item on a line: its JSON, and the item before it."""

    __slots__ = ("at", "before", "id", "text")

    def __init__(self, id: str, text: bytes, before: Item | None, at: str) -> None:  # noqa: A002
        self.id = id
        self.text = text
        self.before = before
        self.at = at


class Place(NamedTuple):
    """Where a line ends and, if its oldest items were dropped, where it begins."""

    tip: Item | None = None
    first: Item | None = None

    def up(self) -> Iterator[Item]:
        """The items of the line, newest first."""
        item = self.tip
        while item is not None:
            yield item
            item = None if item is self.first else item.before

    def shorter(self) -> Place:
        """The line without its newest item."""
        return Place() if self.tip is None or self.tip is self.first else Place(self.tip.before, self.first)


class Removal(NamedTuple):
    """What a pop, a clearing or a replacement has done, so that it can be taken back."""

    before: Place
    after: Place
    branches: tuple[str, ...] = ()


class Line:
    """A branch: where it stands, and the entry that the next one hangs from."""

    def __init__(self, place: Place, hangs_from: str | None, created: str) -> None:
        self.place = place
        self.hangs_from = hangs_from
        self.created = created
        self.deleted = False
        self.removals: list[Removal] = []
        self.usage: dict[str, Payload] = {}  # by the id of the item that began the turn

    def remove(self, after: Place, branches: tuple[str, ...] = ()) -> None:
        """Go to another place, remembering this one."""
        self.removals.append(Removal(self.place, after, branches))
        self.place = after

    def undoable(self) -> Removal | None:
        """The latest removal, as long as nothing was added behind it."""
        return self.removals[-1] if self.removals and self.place == self.removals[-1].after else None


class Log:
    """All lines of a session, as far as its journal was read."""

    def __init__(self) -> None:
        self.count = 0  # entries that were read
        self.lines = {MAIN: Line(Place(), None, "")}
        self._items: dict[str, Item] = {}
        self._torn: list[tuple[Entry, bytes]] = []  # items whose companions have not come yet

    def line(self, branch: str) -> Line:
        """The line of a branch; of one that is deleted or unknown, the main one."""
        return self.lines[branch if self.has(branch) else MAIN]

    def has(self, branch: str) -> bool:
        """Whether there is such a branch, and it was not deleted."""
        return branch in self.lines and not self.lines[branch].deleted

    def read(self, entries: Iterable[Entry]) -> dict[str, Any]:
        """Take in the next entries; gives what each note among them came to, by its id."""
        outcomes = {}
        for entry in entries:
            self.count += 1
            note = entry.get("customType") if entry.type == "custom" else None
            if self._torn and entry.parent_id != self._torn[-1][0].id:
                self._torn = []
            apply = _NOTES.get(note) if isinstance(note, str) else None
            if apply is not None:
                outcomes[entry.id] = apply(self, entry, entry.get("data") or {}, self._complete())
            elif (text := text_of(entry)) is not None:
                self._torn.append((entry, text))
                if "more" not in entry[MEMBER]:
                    self._add(self.line(entry[MEMBER].get("branch", MAIN)), self._complete())
        return outcomes

    def _complete(self) -> list[tuple[Entry, bytes]]:
        """The items that came before an entry and belong to it."""
        items, self._torn = self._torn, []
        return items

    def every_item(self) -> list[Item]:
        """All items that ever stood on a line, in the order of the journal."""
        return list(self._items.values())

    def _add(self, line: Line, items: Iterable[tuple[Entry, bytes]]) -> None:
        for entry, text in items:
            tip = Item(entry.id, text, line.place.tip, entry.timestamp or "")
            line.place = Place(tip, line.place.first)
            line.hangs_from = entry.id
            line.created = line.created or tip.at
            self._items[entry.id] = tip

    # -- what each note does; gives what its writer wants to know

    def _pop(self, entry: Entry, data: Payload, _: Any) -> Item | None:
        line = self.line(data.get("branch", MAIN))
        popped = line.place.tip
        if popped is not None:
            line.remove(line.place.shorter())
            line.hangs_from = entry.id
        return popped

    def _clear(self, entry: Entry, data: Payload, _: Any) -> bool:
        others = tuple(name for name, line in self.lines.items() if name != MAIN and not line.deleted)
        for name in others:
            self.lines[name].deleted = True
        self.lines[MAIN].remove(Place(), others)
        self.lines[MAIN].hangs_from = entry.id
        return True

    def _replace(self, entry: Entry, data: Payload, output: list[tuple[Entry, bytes]]) -> bool:
        line = self.line(data.get("branch", MAIN))
        tip = line.place.tip
        if len(output) != data.get("count") or (tip.id if tip else None) != data.get("after"):
            return False
        before = line.place
        first = self._items.get(data.get("first", ""))
        line.place = Place(self._items.get(data.get("keep") or ""), first)
        self._add(line, output)
        line.removals.append(Removal(before, line.place))
        line.hangs_from = entry.id
        return True

    def _undo(self, entry: Entry, data: Payload, _: Any) -> bool:
        line = self.line(data.get("branch", MAIN))
        removal = line.undoable()
        if removal is None:
            return False
        line.removals.pop()
        line.place = removal.before
        line.hangs_from = entry.id
        for name in removal.branches:
            self.lines[name].deleted = False
        return True

    def _branch(self, entry: Entry, data: Payload, _: Any) -> bool:
        name = data.get("branch")
        if not isinstance(name, str) or name in self.lines:
            return False
        source = self.line(data.get("of", MAIN)).place
        tip = self._items.get(data.get("keep") or "")
        first = source.first if tip is not None else None
        self.lines[name] = Line(Place(tip, first), entry.id, entry.timestamp or "")
        return True

    def _delete(self, entry: Entry, data: Payload, _: Any) -> bool:
        line = self.lines.get(data.get("branch", MAIN))
        if line is None or line.deleted:
            return False
        line.deleted = True
        self.lines[MAIN].hangs_from = entry.id
        return True

    def _usage(self, entry: Entry, data: Payload, _: Any) -> bool:
        line = self.line(data.get("branch", MAIN))
        line.usage[str(data.get("turn"))] = data.get("usage") or {}
        line.hangs_from = entry.id
        return True


_NOTES: Mapping[str, Any] = {
    POP: Log._pop,
    CLEAR: Log._clear,
    REPLACE: Log._replace,
    UNDO: Log._undo,
    BRANCH: Log._branch,
    DELETE: Log._delete,
    USAGE: Log._usage,
}


def note(kind: str, branch: str, **data: Any) -> Payload:
    """An entry that says what was done to a line."""
    return custom(kind, {"branch": branch, **data})
