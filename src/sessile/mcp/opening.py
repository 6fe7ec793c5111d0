"""`open_session`: a window of one branch of a session, as much of it as a call asks for.

Rules: entries are redacted as a whole before anything of them is cut. A window has at most so many entries and so many bytes
of text; where that ends, a cursor goes on, also in the middle of an entry. What the depth does not show is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sessile import find_leaf
from sessile.core.parts import Call as ToolCall
from sessile.core.parts import Data, Diff, Image, Output, Shown, Text, Thinking
from sessile.core.parts import Part as ShownPart
from sessile.core.shown import as_json, show, show_all
from sessile.errors import EntryNotFound
from sessile.mcp import windows
from sessile.mcp.cursors import cursor_of, place_of
from sessile.mcp.desk import Call, Desk, iso
from sessile.mcp.shapes import NOTICE, EntryTold, OpenAnswer, OpenSession, Part
from sessile.mcp.veil import LARGEST, Veil
from sessile.mcp.windows import Window
from sessile.render.text import count_hidden, hidden_words, is_shown
from sessile.render.wording import image_word

if TYPE_CHECKING:
    from sessile import Row, Session, SessionRow

_READ = 32 << 20  # bytes of entries that one call reads
_GAPS = 5  # places that could not be read, told one by one
_NAMES = 200  # characters of a name


class _Place(msgspec.Struct, frozen=True):
    """Where to go on: before an entry, or behind it; with characters of it that were told already, in it."""

    tip: str | None
    entry: str
    backwards: bool
    told: int = 0


class _Read(NamedTuple):
    """A row with its entry, as everybody may see it; `size` is that of its texts, for one of which nothing is shown 0."""

    row: Row
    body: Mapping[str, Any]
    texts: Sequence[Part]
    size: int
    is_shown: bool


def open_session(desk: Desk, call: Call, asked: OpenSession) -> OpenAnswer:
    """The window that a call asks for."""
    place = place_of(asked, _Place)
    row = desk.find(asked.session)
    with desk.store.open(row.path, readonly=True) as session:
        veil = desk.veils.over(session)
        tip = _tip(session, asked) if place is None else place.tip
        window = _window(session, asked, place, tip)
        return _Opening(desk, call, asked, session, row, veil).answer(window, tip, 0 if place is None else place.told)


def _tip(session: Session, asked: OpenSession) -> str | None:
    """Where the branch ends: as the call says, at the leaf, or at an entry that is on another branch."""
    if asked.branch is not None:
        return find_leaf(session, asked.branch)
    leaf = session.leaf_id
    if asked.entry is None or leaf is None:
        return leaf
    if session.get_entry(asked.entry) is None:
        hint = "search_sessions and open_session tell ids of entries"
        raise EntryNotFound(f"there is no entry {asked.entry[:80]!r} in this session", hint=hint)
    return leaf if windows.is_on(session, asked.entry, leaf) else asked.entry


def _window(session: Session, asked: OpenSession, place: _Place | None, tip: str | None) -> Window:
    if place is not None:
        if place.backwards:
            return windows.before(session, place.entry, tip)
        return windows.after(session, place.entry, tip, inclusive=place.told > 0)
    if asked.entry is not None:
        return windows.around(session, asked.entry, tip)
    if tip is None:
        return Window([], 0, 0, 0)
    return windows.end_of(session, tip) if asked.start == "end" else windows.beginning_of(session, tip)


class _Opening:
    """One answer in the making."""

    def __init__(
        self, desk: Desk, call: Call, asked: OpenSession, session: Session, row: SessionRow, veil: Veil
    ) -> None:
        self._desk = desk
        self._call = call
        self._asked = asked
        self._session = session
        self._row = row
        self._veil = veil
        self._bytes = 0  # of entries that were read

    def answer(self, window: Window, tip: str | None, told: int) -> OpenAnswer:
        """The answer for a window; `told` are the characters of its first entry that were told already."""
        first, entries = self._chosen(window, told)
        end = first + len(entries)
        shown = list(self._told(entries, told))
        hidden: Counter[str] = Counter()
        for each in entries:
            count_hidden(hidden, show(each.body), self._asked.depth)
        cut = shown[-1].cut if shown else 0
        with self._desk.shelf.asked() as library:
            card = self._desk.card(library, self._row, self._veil)
        earlier = None if window.earlier is None else window.earlier + first
        later = None if window.later is None else window.later + len(window.rows) - end
        return OpenAnswer(
            notice=NOTICE,
            scope=self._desk.scope.words(),
            session=card,
            tip=self._veil.line(tip, 1_000),
            on_active_branch=self._is_active(tip),
            entries=tuple(shown),
            earlier=earlier,
            later=later,
            left_out=tuple(self._left_out(hidden, earlier, later, cut)),
            previous=self._cursor(tip, entries[0].row.id, backwards=True) if entries and earlier != 0 else None,
            next=self._next(tip, entries, later, cut),
        )

    def _is_active(self, tip: str | None) -> bool:
        """Whether what is shown leads to where the session goes on."""
        leaf = self._session.leaf_id
        return tip == leaf or (tip is not None and windows.is_on(self._session, tip, leaf))

    # -- choosing

    def _chosen(self, window: Window, told: int) -> tuple[int, list[_Read]]:
        """The rows of a window that fit, which lie together, and the place of the first of them."""
        rows, read = window.rows, dict[int, _Read]()
        room, places = self._asked.max_bytes, self._asked.limit
        low, high = window.at, window.at - 1  # what is chosen lies from low to high
        open_ends = {True: True, False: True}  # downwards, upwards
        forward = True
        while places > 0 and room > 0 and any(open_ends.values()):
            forward = forward if open_ends[forward] else not forward
            at = high + 1 if forward else low - 1
            is_late = bool(read) and (self._call.is_late() or self._bytes > _READ)  # one entry is always told
            if not 0 <= at < len(rows) or is_late:
                open_ends[forward] = False
                continue
            each = read[at] = self._read(rows[at])
            size = _fitting(each.texts, told, each.size)[2] if at == window.at else each.size
            if each.is_shown and size > room and places < self._asked.limit:
                open_ends[forward] = False
                continue
            low, high = (low, at) if forward else (at, high)
            room -= size if each.is_shown else 0
            places -= each.is_shown
            forward = not forward  # around an entry, both sides in turn
        return low, [read[at] for at in range(low, high + 1)]

    def _read(self, row: Row) -> _Read:
        entry = next(iter(self._session.read_rows([row])))
        self._bytes += len(entry.raw)
        if len(entry.raw) > LARGEST:
            told = f"an entry of {len(entry.raw):,} bytes, more than is looked at here"
            body: Mapping[str, Any] = {"type": "custom", "id": row.id, "customType": told}
            return _Read(row, body, [Part(kind="data", name=None, text=told)], len(told), True)
        body = self._veil.value(entry.body)
        seen = show(body)
        texts = [self._part(part) for part in seen.at_depth(self._asked.depth)]
        size = sum(len(part.text.encode()) for part in texts)
        return _Read(row, body, texts, size, is_shown(seen, self._asked.depth))

    def _part(self, part: ShownPart) -> Part:
        kind, name, text = _PARTS[type(part)](part)
        return Part(kind=kind, name=self._veil.line(name, _NAMES), text=self._veil.text(text))

    # -- telling

    def _told(self, entries: Sequence[_Read], told: int) -> Iterator[EntryTold]:
        labels, room = self._session.get_labels(), self._asked.max_bytes
        for number, (each, seen) in enumerate(zip(entries, show_all(each.body for each in entries), strict=True)):
            if not each.is_shown:
                continue
            skipped = told if number == 0 else 0
            parts, cut, used = _fitting(each.texts, skipped, room)
            room -= used
            yield self._entry(each.row, seen, labels.get(each.row.id), parts, skipped, cut)

    def _entry(
        self, row: Row, seen: Shown, label: str | None, parts: Sequence[Part], skipped: int, cut: int
    ) -> EntryTold:
        line = self._veil.line
        return EntryTold(
            id=line(row.id, 1_000),
            kind=line(seen.type, _NAMES) or "",
            who=seen.who,
            name=line(seen.name, _NAMES) or "",
            at=iso(seen.at),
            model=line(seen.model, _NAMES),
            failed=seen.failed,
            label=line(label, _NAMES),
            parts=tuple(parts),
            skipped=skipped,
            cut=cut,
            link=self._desk.links.to(self._veil, self._row, row.id),
        )

    def _next(self, tip: str | None, entries: Sequence[_Read], later: int | None, cut: int) -> str | None:
        if not entries or (later == 0 and not cut):
            return None
        last = entries[-1]
        shown = sum(len(part.text) for part in last.texts) - cut if cut else 0
        return self._cursor(tip, last.row.id, backwards=False, told=shown)

    def _cursor(self, tip: str | None, entry: str, *, backwards: bool, told: int = 0) -> str:
        return cursor_of(_Place(tip, entry, backwards, told), self._asked)

    def _left_out(self, hidden: Mapping[str, int], earlier: int | None, later: int | None, cut: int) -> Iterator[str]:
        for count, word, cursor in ((earlier, "earlier", "previous"), (later, "later", "next")):
            if count != 0:
                many = f"more than {windows.COUNTED:,}" if count is None else f"{count:,}"
                yield f"{many} {word} entries of this branch; call again with the cursor `{cursor}`"
        if cut:
            yield f"{cut:,} characters of the last entry; call again with the cursor `next`"
        if hidden:
            yield hidden_words(hidden, self._asked.depth)
        if not self._veil.complete:
            yield "the session is not yet read to its end for secrets that only their surroundings give away"
        gaps = self._session.get_gaps()
        yield from (f"unreadable: {self._veil.line(message)}" for _, message in gaps[:_GAPS])
        if len(gaps) > _GAPS:
            yield f"{len(gaps) - _GAPS:,} more places could not be read"


def _fitting(texts: Sequence[Part], skipped: int, room: int) -> tuple[list[Part], int, int]:
    """The texts behind so many characters, as far as they fit; the characters that do not, and the bytes that do."""
    parts: list[Part] = []
    cut = used = 0
    for part in texts:
        text = part.text[skipped:]
        skipped = max(0, skipped - len(part.text))
        kept = text.encode()[: max(0, room - used)].decode("utf-8", "ignore")
        cut += len(text) - len(kept)
        used += len(kept.encode())
        if kept or not part.text:
            parts.append(msgspec.structs.replace(part, text=kept))
    return parts, cut, used


# What each sort of part is told as: its kind, its name, its text.
_PARTS: dict[type, Callable[[Any], tuple[Any, str | None, str]]] = {
    Text: lambda part: ("text", None, part.text),
    Thinking: lambda part: ("thinking", "sealed by the provider" if part.hidden else None, part.text),
    ToolCall: lambda part: ("call", part.name, "" if part.arguments is None else as_json(part.arguments)),
    Output: lambda part: ("output", None, part.text),
    Diff: lambda part: ("diff", part.path, part.text),
    Image: lambda part: ("image", None, image_word(part)),
    Data: lambda part: ("data", part.name, part.value if isinstance(part.value, str) else as_json(part.value)),
}
