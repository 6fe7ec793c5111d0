"""One thread of LangGraph: a session, and what is known of the checkpoints in it.

Entries beside the messages are custom ones: `langgraph.checkpoint`, `langgraph.writes`, `langgraph.parts` (values too many for
one line), `langgraph.deleted` and `langgraph.restored`. What is known is a fold over them in file order, which goes on where it
ended, so that what other processes append is read once. Bodies are read when somebody asks for them.

Rules: file order decides between writers. Nothing is ever taken out: a deleted checkpoint is one that nobody is shown, and the
chain of parents goes on through it. A checkpoint that is not begun where the session stands hangs from its parent, so that a
fork in LangGraph is a branch of the session. With durability "async" LangGraph may store a write before its checkpoint: then
what the write says stands before the checkpoint, also for those who fork there. Checkpoints do not depend on it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from langgraph.checkpoint.base import writes_sort_key
from langgraph.checkpoint.serde.base import SerializerProtocol

from sessile import Session
from sessile.adapters.langgraph_messages import MEMBER
from sessile.adapters.langgraph_values import TALK, Packed, Packer, Unpacker, mentions
from sessile.core import entries as make
from sessile.core.codec import encode_plain
from sessile.core.entries import BASE, Entry, Payload
from sessile.core.large import FULL, may_hold_refs
from sessile.errors import Damaged

CHECKPOINT, WRITES, PARTS = "langgraph.checkpoint", "langgraph.writes", "langgraph.parts"
DELETED, RESTORED = "langgraph.deleted", "langgraph.restored"
KINDS = frozenset((CHECKPOINT, WRITES, PARTS, DELETED, RESTORED))

_BATCH = 256  # entries that are read at once
_LATE = 4  # checkpoints that may be stored before a write that led to them
_ROOM = 1_000_000  # bytes of parts that go into one line

Place = tuple[str, str]
"""A checkpoint: its namespace and its id."""
Version = str | int | float


class Saved(NamedTuple):
    """Where a checkpoint is, and what must be known without reading it."""

    row: Any
    parent: str | None
    run: Any


class Write(NamedTuple):
    """Where a write is: which of those of an entry."""

    path: str
    channel: str
    row: Any
    number: int


class Thread:
    """The checkpoints of one thread. Hold `lock` from `catch_up` to the end of what rests on it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lock = threading.RLock()
        self.saved: dict[str, dict[str, Saved]] = {}
        self.gone: set[Place] = set()
        self.hidden: dict[str, str] = {}
        self._writes: dict[Place, dict[tuple[str, int], Write]] = {}
        self._values: dict[tuple[str, str, Version], Any] = {}  # the row that holds a value; None: there is none
        self._parts: dict[str, Any] = {}
        self._told: dict[str, dict[str, int]] = {}  # the entries of each message, and how many messages were before
        self._free: Counter[str] = Counter()  # entries of messages that no id has claimed
        self._claimed: set[tuple[str, str]] = set()
        self._count = 0
        self._last: str | None = None  # the checkpoint of the main graph that was stored last, by whomever
        self._mine: tuple[str | None, str] | None = None  # the one that we were at last, and our last entry

    # -- learning

    def catch_up(self) -> None:
        """Learn what was appended since, by whomever."""
        rows = self.session.iter_rows(self._count)
        while batch := list(islice(rows, _BATCH)):
            for row, entry in zip(batch, self.session.read_rows(batch), strict=True):
                self._learn(row, entry)
            self._count += len(batch)

    def _learn(self, row: Any, entry: Entry) -> None:
        if entry.type == "message" and MEMBER in entry:
            name = entry[MEMBER]["part"]
            self._parts[name] = row
            self._told.setdefault(name, {})[entry.id] = len(self._told)
            self._free[name] += not entry[MEMBER].get("again", False)
        kind = entry.get("customType")
        if kind not in KINDS:
            return
        data = entry["data"]
        for name, part in data.get("parts", ()):
            self._parts[name] = row
            self._hear(part)
        if kind == CHECKPOINT:
            self._learn_checkpoint(row, data)
        elif kind == WRITES:
            self._learn_writes(row, data)
        elif kind == DELETED:
            self.gone.update((ns, checkpoint_id) for ns, checkpoint_id in data["checkpoints"])
        elif kind == RESTORED:
            self.gone.difference_update((ns, checkpoint_id) for ns, checkpoint_id in data["checkpoints"])

    def _learn_checkpoint(self, row: Any, data: Payload) -> None:
        place = ns, checkpoint_id = data["ns"], data["id"]
        if place in self.gone:  # it begins anew
            self.gone.remove(place)
            self._writes.pop(place, None)
        self.saved.setdefault(ns, {})[checkpoint_id] = Saved(row, data["parent"], data.get("run"))
        for channel, version, packed in data["values"]:
            self._hear(packed)
            if version is not None:
                self._values[ns, channel, version] = None if packed is None else row
        if not ns:
            self._last = checkpoint_id

    def _learn_writes(self, row: Any, data: Payload) -> None:
        place = data["ns"], data["id"]
        known = self._writes.setdefault(place, {})
        for number, (index, channel, packed) in enumerate(data["writes"]):
            self._hear(packed)
            key = data["task"], index
            if index < 0 or key not in known:
                known[key] = Write(data["path"], channel, row, number)

    def _hear(self, packed: Any) -> None:
        for mark, name, *rest in mentions(packed):
            if mark == TALK:
                self.claim(name, rest[0])

    def has(self, name: str) -> bool:
        """Whether there is a part of that name."""
        return name in self._parts

    def claim(self, name: str, message_id: str | None) -> bool:
        """Whether a message has an entry: one without id has any, one with an id has its own or takes a free one."""
        if message_id is None:
            return name in self._parts
        if (name, message_id) in self._claimed:
            return True
        if not self._free[name]:
            return False
        self._free[name] -= 1
        self._claimed.add((name, message_id))
        return True

    def has_value(self, ns: str, channel: str, version: Version | None) -> bool:
        """Whether a version of a channel is stored with a value."""
        return version is not None and self._values.get((ns, channel, version)) is not None

    def has_write(self, place: Place, task: str, index: int) -> bool:
        """Whether a task has made that write."""
        return (task, index) in self._writes.get(place, {})

    def visible(self, ns: str | None = None) -> Iterator[Place]:
        """The checkpoints of a namespace, or of all, that are not deleted."""
        for namespace in [*self.saved] if ns is None else [ns]:
            for checkpoint_id in [*self.saved.get(namespace, ())]:
                if (namespace, checkpoint_id) not in self.gone:
                    yield namespace, checkpoint_id

    def latest(self, ns: str) -> str | None:
        """The largest id of a namespace, whichever was written last."""
        return max((checkpoint_id for _, checkpoint_id in self.visible(ns)), default=None)

    def ancestors(self, place: Place) -> Iterator[Place]:
        """The checkpoints above one, the nearest first, deleted ones too; a parent that comes again ends the way."""
        ns, checkpoint_id = place
        saved = self.saved.get(ns, {})
        seen = {checkpoint_id}
        while (known := saved.get(checkpoint_id)) and known.parent in saved and known.parent not in seen:
            checkpoint_id = known.parent
            seen.add(checkpoint_id)
            yield ns, checkpoint_id

    # -- writing

    def append(self, kind: str, data: Payload, packer: Packer | None = None, below: Place = ("", "")) -> None:
        """Append an entry, and before it what its values need; `below` is the checkpoint that it belongs to or comes from."""
        entries, parts = [*packer.messages] if packer else [], list[Any]()
        room = _ROOM
        for name, part in packer.parts.items() if packer else ():
            room -= len(encode_plain(part))
            parts.append([name, part])
            if room < 0:
                entries.append(make.custom(PARTS, {"parts": parts}))
                parts, room = [], _ROOM
        entries.append(make.custom(kind, data | ({"parts": parts} if parts else {})))
        standing, leaf = self._where(below, late=kind == WRITES)
        if packer and leaf is not None and (self._mine is None or leaf != self._mine[1]):
            entries[:0] = self._untold(leaf, [packed for *_, packed in data.get("values", ())], packer)
        receipts = self.session.append_many(
            entries, expected_leaf=leaf, on_leaf_moved="follow" if leaf is None else "branch"
        )
        self.hidden |= packer.hidden if packer else {}
        self._mine = data["id"] if kind == CHECKPOINT and not data["ns"] else standing, receipts[-1].id

    def _where(self, below: Place, *, late: bool) -> tuple[str | None, str | None]:
        """The checkpoint of the main graph that new entries belong to, and the entry to hang them from; `None` is the leaf.

        LangGraph stores writes beside the checkpoints that come of them: some are `late`, and go where we are by then.
        """
        ns, wanted = below
        current = self._mine[0] if self._mine else self._last
        here = bool(ns) or wanted not in self.saved.get("", ()) or wanted == current
        if late and current is not None and not here:
            here = ("", wanted) in islice(self.ancestors(("", current)), _LATE)
        if here and self._mine:
            return self._mine
        if here or wanted == self._last:
            self.session.follow()
            return self._last, None
        return wanted, str(self.saved[""][wanted].row.id)

    def _untold(self, leaf: str, packed: Iterable[Packed | None], packer: Packer) -> list[Payload]:
        """The messages of values that a branch is begun with, and that were said on other branches only, to be told again."""
        new = {entry[MEMBER]["part"]: entry for entry in packer.messages}
        on_path = {row.id for row in self.session.walk_up(leaf)}
        parts = self._gathered(packed, packer.parts | new)
        told = [name for name, part in parts.items() if isinstance(part, dict) and name not in new]
        untold = [name for name in told if on_path.isdisjoint(self._told[name])]
        return [
            make.message(parts[name]["message"]) | {MEMBER: parts[name][MEMBER] | {"again": True}}
            for name in sorted(untold, key=lambda name: min(self._told[name].values()))
        ]

    def hide(self, places: Sequence[Place]) -> None:
        """Show some checkpoints to nobody any more."""
        if places:
            self.append(DELETED, {"checkpoints": places})

    def show(self) -> int:
        """Show all that were hidden; gives how many."""
        places = sorted(self.gone)
        if places:
            self.append(RESTORED, {"checkpoints": places})
        return len(places)

    def copy_to(self, target: Session) -> None:
        """Append all that this thread holds to another session."""
        rows = self.session.iter_rows()
        while batch := list(islice(rows, _BATCH)):
            bodies = [body for body in self._bodies(batch) if MEMBER in body or body.get("customType") in KINDS]
            copies = [{name: value for name, value in body.items() if name not in BASE[1:]} for body in bodies]
            target.append_many(copies, on_leaf_moved="follow")

    # -- reading

    def _bodies(self, rows: Sequence[Any]) -> Iterator[Payload]:
        for entry in self.session.read_rows(rows):
            whole = FULL not in entry and not may_hold_refs(entry.raw)
            yield entry.body if whole else self.session.get_full_entry(entry.id)

    def checkpoint(self, place: Place) -> Payload:
        """The data of a checkpoint's entry."""
        (body,) = self._bodies([self.saved[place[0]][place[1]].row])
        data: Payload = body["data"]
        return data

    def values(self, ns: str, data: Payload, versions: dict[str, Version]) -> dict[str, Packed]:
        """The values of the channels of a checkpoint: its own, and those that have the same version as before."""
        own = {channel: packed for channel, _, packed in data["values"]}
        rows = {
            channel: row
            for channel, version in versions.items()
            if channel not in own and (row := self._values.get((ns, channel, version))) is not None
        }
        needed = list({row.id: row for row in rows.values()}.values())
        found = {row.id: body["data"]["values"] for row, body in zip(needed, self._bodies(needed), strict=True)}
        for channel, row in rows.items():
            own[channel] = next(packed for name, _, packed in found[row.id] if name == channel)
        return {channel: packed for channel, packed in own.items() if packed is not None}

    def writes(self, place: Place) -> list[tuple[str, str, Packed]]:
        """The task, the channel and the value of each write, in the order in which they are applied."""
        known = self._writes.get(place, {})
        ordered = sorted(known.items(), key=lambda item: writes_sort_key(item[1].path, *item[0]))
        rows = list({write.row.id: write.row for _, write in ordered}.values())
        found = {row.id: body["data"]["writes"] for row, body in zip(rows, self._bodies(rows), strict=True)}
        return [(task, write.channel, found[write.row.id][write.number][2]) for (task, _), write in ordered]

    def unpacker(self, packed: Iterable[Packed], serde: SerializerProtocol) -> Unpacker:
        """What unpacks these values, once the parts that they need are read."""
        return Unpacker(self._gathered(packed, {}), serde, self.hidden)

    def _gathered(self, packed: Iterable[Packed | None], new: Mapping[str, Any]) -> dict[str, Any]:
        """All parts that some values need, by their names; `new` are those that are not stored yet."""
        parts: dict[str, Any] = {}
        waiting = {name for value in packed for _, name, *_ in mentions(value)}
        while waiting:
            rows = {row.id: row for row in (self._row_of(name) for name in waiting if name not in new)}
            found = dict(new)
            for body in self._bodies(list(rows.values())):
                found |= {body[MEMBER]["part"]: body} if MEMBER in body else dict(body["data"]["parts"])
            parts |= {name: found[name] for name in waiting}
            waiting = {name for part in waiting for _, name, *_ in mentions(found[part])} - parts.keys()
        return parts

    def _row_of(self, name: str) -> Any:
        row = self._parts.get(name)
        if row is None:
            raise Damaged(
                f"part {name} of a checkpoint is missing", path=self.session.path, hint="look at it with sessile doctor"
            )
        return row
