"""Entries on their way into a journal: encoded for a parent, and the receipts that come back.

If another writer was faster, a batch finds out under the journal's lock whether its parent has gained a child meanwhile, and
then does as the caller wished: branch, follow, or fail.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from sessile.core.codec import encode, encode_plain
from sessile.core.entries import Payload, with_base
from sessile.core.kinds import CHAIN, MARKERS
from sessile.core.plain import Plain, plain
from sessile.errors import InvalidEntry, LeafMoved, TooLarge
from sessile.storage.base import News, Row

KEY = "sessile.key"
MAX_LINE = 8 * 1024 * 1024  # one line is one write; larger strings have gone to blobs before

OnLeafMoved = Literal["branch", "follow", "fail"]
ON_LEAF_MOVED = get_args(OnLeafMoved)


class Receipt(msgspec.Struct, frozen=True):
    """Proof that an entry is durable, and where.

    `diverged` says that another writer has appended below the same parent; `repeated` that the entry was there already,
    under the same key.
    """

    id: str
    parent_id: str | None
    path: str
    position: Any
    durability: str
    diverged: bool = False
    repeated: bool = False


class Batch:
    """Entries that hang from each other, encoded for one parent; encoded again if the parent changes.

    `markers` are leaf markers of the parent: what another program hangs from one hangs from the parent. `shrink` makes an
    entry with large content fit to be stored.
    """

    def __init__(
        self,
        payloads: Sequence[Payload],
        ids: Sequence[str],
        key: str | None,
        parent: str | None,
        timestamp: str,
        shrink: Callable[[Payload], Payload],
        on_leaf_moved: OnLeafMoved = "branch",
        diverged: bool = False,
        markers: Collection[str] = (),
    ) -> None:
        given = payloads if key is None else [{**payload, KEY: key} for payload in payloads]
        self._copies = [plain(payload) for payload in given]
        self.ids = ids
        self.diverged = diverged
        self._key = key
        self._timestamp = timestamp
        self._shrink = shrink
        self._on_leaf_moved = on_leaf_moved
        self._markers = markers
        self._hang_from(parent)

    def _hang_from(self, parent: str | None) -> None:
        self.parent = parent
        parents = (parent, *self.ids)
        self.entries = [
            with_base(copy.value, entry_id, parent_id, self._timestamp)
            for copy, entry_id, parent_id in zip(self._copies, self.ids, parents, strict=False)
        ]
        self.lines = [self._encode(*pair) for pair in zip(self.entries, self._copies, strict=True)]

    def _encode(self, entry: Payload, copy: Plain) -> bytes:
        line = encode(self._shrink(entry)) if copy.large else encode_plain(entry)
        if len(line) > MAX_LINE:
            raise TooLarge(
                f"an entry of {len(line)} bytes is over the limit of {MAX_LINE}",
                hint="store large data as an artifact, and append where it lies",
            )
        return line

    def body(self, number: int) -> Payload | None:
        """An entry as reading its line gives it; `None` if only reading it can tell."""
        copy = self._copies[number]
        return self.entries[number] if copy.exact and not copy.large else None

    def revise(self, news: News) -> Sequence[bytes]:
        """Others have appended: find out whether below our parent, and do as the caller wished."""
        if self._key is not None and any(row.id == self.ids[0] for row in news.rows()):
            return ()
        if self.parent is not None and not any(map(news.child_of, (self.parent, *self._markers))):
            return self.lines
        tip = last_below((self.parent, *self._markers), news.rows())
        if tip is None:
            return self.lines
        if self._on_leaf_moved == "fail":
            raise leaf_moved(self.parent)
        if self._on_leaf_moved == "follow":
            self._markers = ()
            self._hang_from(tip)
        else:
            self.diverged = True
        return self.lines


def checked(payload: Payload, path: str) -> Payload:
    """The payload itself if somebody may append it; markers and headers are for the session to write."""
    entry_type = payload.get("type") if isinstance(payload, dict) else None
    if not isinstance(entry_type, str) or entry_type in ("", "session", "title"):
        raise InvalidEntry("an entry is a dict with a type", path=path, hint="the header is no entry")
    if payload.get("customType") in MARKERS:
        raise InvalidEntry(f"{payload['customType']} is reserved", path=path, hint="use branch(…, durable=True)")
    return payload


def is_answer(payload: Payload) -> bool:
    """Whether an entry is what an assistant said."""
    message = payload.get("message")
    return isinstance(message, Mapping) and message.get("role") == "assistant"


def leaf_moved(parent: str | None, path: str | None = None) -> LeafMoved:
    """The error for a caller who wanted to be alone."""
    return LeafMoved(
        f"another writer has appended below {parent or 'the root'}",
        path=path,
        hint="look at what is new, then append again",
    )


def last_below(parents: Iterable[str | None], rows: Iterable[Row]) -> str | None:
    """The last of some entries that descends from one of `parents`, directly or through a leaf marker."""
    line = set(parents)
    last = None
    for row in rows:
        if row.parent_id in line:
            line.add(row.id)
            if row.flags & CHAIN:
                last = row.id
    return last
