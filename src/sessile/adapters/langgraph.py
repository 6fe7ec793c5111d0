"""Checkpointer for LangGraph, backed by a `Store`: every thread is a session.

    from sessile import Store
    from sessile.adapters.langgraph import SessileSaver

    graph = builder.compile(checkpointer=SessileSaver(Store("sessions")))

Rules:

- Messages of users, models and tools are the session's messages, each stored once. Checkpoints and writes are custom entries
  that refer to them: `langgraph.checkpoint`, `.writes`, `.parts` (values too large for one line), `.deleted` and `.restored`. A
  new version of a list costs only what is new in it.
- A fork is a branch of the session. With durability "async" LangGraph may store a write before its checkpoint; its messages then
  precede the checkpoint, also for forks. Checkpoints do not depend on it.
- Only LangGraph's own types and those in `allowed_types` are restored; other values become plain data, and pickles are refused.
  Pass a `serde` to change that. A serializer other than LangGraph's `JsonPlusSerializer` gets every value, and nothing can be
  read without it.
- Several threads and processes may use one LangGraph thread at once. File order decides between writers.
- Nothing is lost. `delete_thread` moves the session to the trash of the store; `delete_for_runs` and `prune` only hide
  checkpoints, and `restore` shows them again. The history of a DeltaChannel continues through hidden ones.
- The async methods run the sync ones in threads.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Self, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from sessile.adapters.langgraph_values import MEMBER, TALK, Packed, Packer, Unpacker, mentions
from sessile.adapters.named_sessions import NamedSessions
from sessile.core import entries as make
from sessile.core.codec import encode_plain
from sessile.core.entries import BASE, Payload
from sessile.errors import Damaged, Invalid
from sessile.session import Session
from sessile.store import Store

PROGRAM = "langgraph"
SCOPE = ""  # LangGraph has only thread ids

_MAX_THREADS = 64  # threads whose checkpoints stay in memory
CHECKPOINT, WRITES, PARTS = "langgraph.checkpoint", "langgraph.writes", "langgraph.parts"
DELETED, RESTORED = "langgraph.deleted", "langgraph.restored"
KINDS = frozenset((CHECKPOINT, WRITES, PARTS, DELETED, RESTORED))

_BATCH = 256  # entries read at once
_LATE = 4  # checkpoints that may be stored before one of their writes
_MAX_PARTS = 1_000_000  # bytes of parts in one line

Place = tuple[str, str]
"""A checkpoint: its namespace and its id."""
Version = str | int | float


class SessileSaver(BaseCheckpointSaver[str]):
    """A LangGraph checkpointer that keeps each thread as a session. It is thread-safe.

    Args:
        store: The store; it may be a folder, a database or in memory. Several processes may share it.
        allowed_types: More types that may be restored: classes or (module, name) tuples.
        serde: A serializer for all values, for example one that encrypts.

    Example:
        ```python
        with SessileSaver(Store("sessions")) as saver:
            graph = builder.compile(checkpointer=saver)
            graph.invoke({"messages": ["hello"]}, {"configurable": {"thread_id": "1"}})
        ```
    """

    def __init__(
        self,
        store: Store,
        *,
        allowed_types: Iterable[type | tuple[str, ...]] = (),
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde or JsonPlusSerializer(allowed_msgpack_modules=list(allowed_types) or None))
        self.sessions = NamedSessions(store, PROGRAM, keep_open=_MAX_THREADS)
        self._threads: OrderedDict[str, Thread] = OrderedDict()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close all sessions; the next call opens them again."""
        with self._lock:
            self._threads.clear()
            self.sessions.close()

    def _find(self, thread_id: object) -> Thread | None:
        """Return a thread; `None` if it does not exist."""
        with self._lock:
            session = self.sessions.find(SCOPE, str(thread_id))
            return None if session is None else self._known(str(thread_id), session)

    def _open(self, thread_id: object) -> Thread:
        with self._lock:
            return self._known(str(thread_id), self.sessions.open(SCOPE, str(thread_id)))

    def _known(self, name: str, session: Any) -> Thread:
        thread = self._threads.get(name)
        if thread is None or thread.session is not session:
            thread = self._threads[name] = Thread(session)
        self._threads.move_to_end(name)
        if len(self._threads) > _MAX_THREADS:
            self._threads.popitem(last=False)
        return thread

    # -- reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the config names, or the latest of its namespace; `None` if there is none."""
        thread = self._find(config["configurable"]["thread_id"])
        if thread is None:
            return None
        with thread.lock:
            thread.catch_up()
            place = _place(thread, config)
            if place is None or place in thread.gone or place[1] not in thread.saved.get(place[0], ()):
                return None
            return self._tuple(thread, place, config)

    def _tuple(self, thread: Thread, place: Place, config: RunnableConfig) -> CheckpointTuple:
        thread_id = config["configurable"]["thread_id"]
        ns, checkpoint_id = place
        data = thread.checkpoint(place)
        checkpoint = self._plain(thread, data["checkpoint"])
        values = thread.values(ns, data, checkpoint["channel_versions"])
        writes = thread.writes(place)
        unpack = thread.unpacker([*values.values(), *(packed for _, _, packed in writes)], self.serde).unpack
        parent = data["parent"]
        return CheckpointTuple(
            config if get_checkpoint_id(config) else _config(thread_id, ns, checkpoint_id),
            cast(
                Checkpoint,
                checkpoint | {"channel_values": {channel: unpack(packed) for channel, packed in values.items()}},
            ),
            self._plain(thread, data["metadata"]),
            _config(thread_id, ns, parent) if parent else None,
            [(task, channel, unpack(packed)) for task, channel, packed in writes],
        )

    def _plain(self, thread: Thread, packed: Packed) -> Any:
        return thread.unpacker([packed], self.serde).unpack(packed)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints of a thread, or of all threads, largest id first.

        Args:
            config: The thread, and optionally a namespace and a checkpoint.
            filter: Metadata that must match.
            before: Only checkpoints with a smaller id than this one.
            limit: Maximum number of checkpoints.
        """
        wanted = config["configurable"] if config else {}
        ns, only = wanted.get("checkpoint_ns"), get_checkpoint_id(config) if config else None
        end = get_checkpoint_id(before) if before else None
        names = [wanted["thread_id"]] if config else [named.name for named in self.sessions.list(SCOPE)]
        found = []
        for name in names:
            if (thread := self._find(name)) is None:
                continue
            with thread.lock:
                thread.catch_up()
                found += [(place[1], place[0], name, thread) for place in thread.visible(ns)]
        left = len(found) if limit is None else limit
        for checkpoint_id, namespace, name, thread in sorted(found, key=lambda item: item[:2], reverse=True):
            if (only and checkpoint_id != only) or (end and checkpoint_id >= end):
                continue
            if left <= 0:
                return
            with thread.lock:
                place = namespace, checkpoint_id
                if filter and not self._matches(thread, place, filter):
                    continue
                listed = self._tuple(thread, place, {"configurable": {"thread_id": name}})
            left -= 1
            yield listed

    def _matches(self, thread: Thread, place: Place, wanted: Mapping[str, Any]) -> bool:
        metadata = self._plain(thread, thread.checkpoint(place)["metadata"])
        return all(metadata.get(name) == value for name, value in wanted.items())

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes to channels on the path to a checkpoint since their last value, and that value.

        The path includes hidden checkpoints, so that pruning does not cut the history.
        """
        thread = self._find(config["configurable"]["thread_id"]) if channels else None
        writes: dict[str, Any] = {channel: [] for channel in channels}
        seeds: dict[str, Packed] = {}
        if thread is None:
            return {channel: {"writes": []} for channel in channels}
        with thread.lock:
            thread.catch_up()
            start = _place(thread, config)
            for place in thread.ancestors(start) if start else ():
                open_channels = [channel for channel in channels if channel not in seeds]
                if not open_channels:
                    break
                for write in reversed(thread.writes(place)):
                    if write[1] in open_channels:
                        writes[write[1]].append(write)
                data = thread.checkpoint(place)
                versions = self._plain(thread, data["checkpoint"])["channel_versions"]
                values = thread.values(place[0], data, {c: v for c, v in versions.items() if c in open_channels})
                seeds |= {channel: values[channel] for channel in open_channels if channel in values}
            packed = [*seeds.values(), *(write[2] for written in writes.values() for write in written)]
            unpack = thread.unpacker(packed, self.serde).unpack
            history: dict[str, DeltaChannelHistory] = {}
            for channel, written in writes.items():
                history[channel] = {"writes": [(task, name, unpack(value)) for task, name, value in reversed(written)]}
                if channel in seeds:
                    history[channel]["seed"] = unpack(seeds[channel])
            return history

    # -- writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, with the values that are new in it, as a child of the one in the config.

        Returns:
            The config of the new checkpoint.
        """
        wanted = config["configurable"]
        ns, parent = wanted.get("checkpoint_ns", ""), get_checkpoint_id(config)
        rest: dict[str, Any] = {name: value for name, value in checkpoint.items() if name != "channel_values"}
        values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
        thread = self._open(wanted["thread_id"])
        with thread.lock:
            thread.catch_up()
            packer = Packer(self.serde, thread)
            own = [
                [name, new, packer.pack(values[name]) if name in values else None] for name, new in new_versions.items()
            ]
            # Some callers store values without a version, or change a value but keep its version.
            own += [
                [name, versions.get(name), packer.pack(value)]
                for name, value in values.items()
                if name not in new_versions and not thread.has_value(ns, name, versions.get(name))
            ]
            full_metadata = get_checkpoint_metadata(config, metadata)
            data = {
                "ns": ns,
                "id": checkpoint["id"],
                "parent": parent,
                "run": full_metadata.get("run_id"),
                "checkpoint": packer.whole(rest),
                "metadata": packer.whole(full_metadata),
                "values": own,
            }
            thread.append(CHECKPOINT, data, packer, (ns, parent or ""))
        return _config(wanted["thread_id"], ns, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task; of two with the same index the first is kept, of special channels the last."""
        wanted = config["configurable"]
        place = wanted.get("checkpoint_ns", ""), wanted["checkpoint_id"]
        indexed = [
            (WRITES_IDX_MAP.get(channel, number), channel, value) for number, (channel, value) in enumerate(writes)
        ]
        thread = self._open(wanted["thread_id"])
        with thread.lock:
            thread.catch_up()
            packer = Packer(self.serde, thread)
            fresh = [
                [index, channel, packer.pack(value)]
                for index, channel, value in indexed
                if index < 0 or not thread.has_write(place, task_id, index)
            ]
            if fresh:
                data = {"ns": place[0], "id": place[1], "task": task_id, "path": task_path, "writes": fresh}
                thread.append(WRITES, data, packer, place)

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return the next version; its random suffix distinguishes versions of two branches."""
        number = int(str(current).split(".")[0]) if current is not None else 0
        return f"{number + 1:010d}.{secrets.token_hex(4)}"

    # -- deleting and copying

    def delete_thread(self, thread_id: str) -> None:
        """Move a thread to the trash of the store; `Store.undo` restores it."""
        with self._lock:
            self._threads.pop(str(thread_id), None)
            self.sessions.delete(SCOPE, str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Hide the checkpoints of some runs, in all threads."""
        runs = set(run_ids)
        for named in self.sessions.list(SCOPE) if runs else ():
            if (thread := self._find(named.name)) is not None:
                with thread.lock:
                    thread.catch_up()
                    thread.hide([(ns, name) for ns, name in thread.visible() if thread.saved[ns][name].run in runs])

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Hide all but the latest checkpoint of each namespace, or move the threads to the trash.

        Args:
            thread_ids: The threads.
            strategy: "keep_latest" or "delete".

        Raises:
            Invalid: The strategy is unknown.
        """
        if strategy not in ("keep_latest", "delete"):
            raise Invalid(f"invalid strategy {strategy!r}", hint="use 'keep_latest' or 'delete'")
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
            elif (thread := self._find(thread_id)) is not None:
                with thread.lock:
                    thread.catch_up()
                    latest = {ns: thread.latest(ns) for ns in thread.saved}
                    thread.hide([(ns, name) for ns, name in thread.visible() if name != latest[ns]])

    def restore(self, thread_id: str) -> int:
        """Show the hidden checkpoints of a thread again and return their number."""
        thread = self._find(thread_id)
        if thread is None:
            return 0
        with thread.lock:
            thread.catch_up()
            return thread.show()

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Append all checkpoints of a thread to another one."""
        thread = self._find(source_thread_id)
        if thread is not None:
            thread.copy_to(self._open(target_thread_id).session)

    # -- async

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `get_tuple`."""
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As `list`."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (listed := await asyncio.to_thread(next, found, None)) is not None:
            yield listed

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As `get_delta_channel_history`."""
        return await asyncio.to_thread(partial(self.get_delta_channel_history, config=config, channels=channels))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As `put`."""
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As `put_writes`."""
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """As `delete_thread`."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As `delete_for_runs`."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """As `prune`."""
        await asyncio.to_thread(partial(self.prune, thread_ids, strategy=strategy))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As `copy_thread`."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)


def _config(thread_id: Any, ns: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}


def _place(thread: Thread, config: RunnableConfig) -> Place | None:
    """Return the checkpoint that a config means."""
    ns = cast(str, config["configurable"].get("checkpoint_ns", ""))
    checkpoint_id = get_checkpoint_id(config) or thread.latest(ns)
    return None if checkpoint_id is None else (ns, checkpoint_id)


# -- threads


class Saved(NamedTuple):
    """The row of a checkpoint, its parent and its run."""

    row: Any
    parent: str | None
    run: Any


class Write(NamedTuple):
    """The row of a write, and its number in the entry."""

    path: str
    channel: str
    row: Any
    number: int


class Thread:
    """The checkpoints of one thread: a fold over its entries in file order.

    Hold `lock` from `catch_up` to the end of what depends on it.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lock = threading.RLock()
        self.saved: dict[str, dict[str, Saved]] = {}
        self.gone: set[Place] = set()
        self.hidden: dict[str, str] = {}
        self._writes: dict[Place, dict[tuple[str, int], Write]] = {}
        self._values: dict[tuple[str, str, Version], Any] = {}  # the row of a value; None: no value
        self._parts: dict[str, Any] = {}
        self._entries: dict[str, dict[str, int]] = {}  # by message: its entries, and the number of messages before
        self._free: Counter[str] = Counter()  # entries of messages that are not claimed by an id
        self._claimed: set[tuple[str, str]] = set()
        self._count = 0
        self._last: str | None = None  # the latest checkpoint of the main graph
        self._mine: tuple[str | None, str] | None = None  # our latest checkpoint and our last entry

    # -- catching up

    def catch_up(self) -> None:
        """Read new entries of all processes."""
        rows = self.session.iter_rows(self._count)
        while batch := list(islice(rows, _BATCH)):
            for row, entry in zip(batch, self.session.read_rows(batch), strict=True):
                self._learn(row, entry.stored)
            self._count += len(batch)

    def _learn(self, row: Any, entry: Payload) -> None:
        if entry["type"] == "message" and MEMBER in entry:
            name = entry[MEMBER]["part"]
            self._parts[name] = row
            self._entries.setdefault(name, {})[row.id] = len(self._entries)
            self._free[name] += not entry[MEMBER].get("again", False)
        kind = entry.get("customType")
        if kind not in KINDS:
            return
        data = entry["data"]
        for name, part in data.get("parts", ()):
            self._parts[name] = row
            self._claim_messages(part)
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
        if place in self.gone:  # it starts over
            self.gone.remove(place)
            self._writes.pop(place, None)
        self.saved.setdefault(ns, {})[checkpoint_id] = Saved(row, data["parent"], data.get("run"))
        for channel, version, packed in data["values"]:
            self._claim_messages(packed)
            if version is not None:
                self._values[ns, channel, version] = None if packed is None else row
        if not ns:
            self._last = checkpoint_id

    def _learn_writes(self, row: Any, data: Payload) -> None:
        place = data["ns"], data["id"]
        known = self._writes.setdefault(place, {})
        for number, (index, channel, packed) in enumerate(data["writes"]):
            self._claim_messages(packed)
            key = data["task"], index
            if index < 0 or key not in known:
                known[key] = Write(data["path"], channel, row, number)

    def _claim_messages(self, packed: Any) -> None:
        for mark, name, *rest in mentions(packed):
            if mark == TALK:
                self.claim(name, rest[0])

    def has(self, name: str) -> bool:
        """Return whether a part of this name is stored."""
        return name in self._parts

    def claim(self, name: str, message_id: str | None) -> bool:
        """Return whether a message has an entry: any one without an id; with an id its own one, or a free one."""
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
        """Return whether a version of a channel has a stored value."""
        return version is not None and self._values.get((ns, channel, version)) is not None

    def has_write(self, place: Place, task: str, index: int) -> bool:
        """Return whether a write of a task is stored."""
        return (task, index) in self._writes.get(place, {})

    def visible(self, ns: str | None = None) -> Iterator[Place]:
        """Yield the checkpoints of a namespace, or of all, that are not hidden."""
        for namespace in [*self.saved] if ns is None else [ns]:
            for checkpoint_id in [*self.saved.get(namespace, ())]:
                if (namespace, checkpoint_id) not in self.gone:
                    yield namespace, checkpoint_id

    def latest(self, ns: str) -> str | None:
        """Return the largest id of a namespace."""
        return max((checkpoint_id for _, checkpoint_id in self.visible(ns)), default=None)

    def ancestors(self, place: Place) -> Iterator[Place]:
        """Yield the ancestors of a checkpoint, nearest first, including hidden ones; a cycle ends it."""
        ns, checkpoint_id = place
        saved = self.saved.get(ns, {})
        seen = {checkpoint_id}
        while (known := saved.get(checkpoint_id)) and known.parent in saved and known.parent not in seen:
            checkpoint_id = known.parent
            seen.add(checkpoint_id)
            yield ns, checkpoint_id

    # -- writing

    def append(self, kind: str, data: Payload, packer: Packer | None = None, below: Place = ("", "")) -> None:
        """Append an entry with the messages and parts of its values; `below` is its checkpoint or parent."""
        entries, parts = [*packer.messages] if packer else [], list[Any]()
        room = _MAX_PARTS
        for name, part in packer.parts.items() if packer else ():
            room -= len(encode_plain(part))
            parts.append([name, part])
            if room < 0:
                entries.append(make.custom(PARTS, {"parts": parts}))
                parts, room = [], _MAX_PARTS
        entries.append(make.custom(kind, data | ({"parts": parts} if parts else {})))
        current, leaf = self._parent(below, late=kind == WRITES)
        if packer and leaf is not None and (self._mine is None or leaf != self._mine[1]):
            entries[:0] = self._missing_on_branch(leaf, [packed for *_, packed in data.get("values", ())], packer)
        receipts = self.session.append_many(
            entries, expected_leaf=leaf, on_leaf_moved="follow" if leaf is None else "branch"
        )
        self.hidden |= packer.hidden if packer else {}
        self._mine = data["id"] if kind == CHECKPOINT and not data["ns"] else current, receipts[-1].id

    def _parent(self, below: Place, *, late: bool) -> tuple[str | None, str | None]:
        """Return the checkpoint of the main graph for new entries, and their parent entry; `None` is the leaf.

        LangGraph may store writes after the checkpoints that result from them; such `late` writes go to the current place.
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

    def _missing_on_branch(self, leaf: str, packed: Iterable[Packed | None], packer: Packer) -> list[Payload]:
        """Return the messages of the values of a new branch that exist only on other branches, to be repeated."""
        new = {entry[MEMBER]["part"]: entry for entry in packer.messages}
        on_path = {row.id for row in self.session.walk_up(leaf)}
        parts = self._gathered(packed, packer.parts | new)
        stored = [name for name, part in parts.items() if isinstance(part, dict) and name not in new]
        missing = [name for name in stored if on_path.isdisjoint(self._entries[name])]
        return [
            make.message(parts[name]["message"]) | {MEMBER: parts[name][MEMBER] | {"again": True}}
            for name in sorted(missing, key=lambda name: min(self._entries[name].values()))
        ]

    def hide(self, places: Sequence[Place]) -> None:
        """Hide checkpoints."""
        if places:
            self.append(DELETED, {"checkpoints": places})

    def show(self) -> int:
        """Show all hidden checkpoints and return their number."""
        places = sorted(self.gone)
        if places:
            self.append(RESTORED, {"checkpoints": places})
        return len(places)

    def copy_to(self, target: Session) -> None:
        """Append all entries of this thread to another session."""
        rows = self.session.iter_rows()
        while batch := list(islice(rows, _BATCH)):
            bodies = [body for body in self._bodies(batch) if MEMBER in body or body.get("customType") in KINDS]
            copies = [{name: value for name, value in body.items() if name not in BASE[1:]} for body in bodies]
            target.append_many(copies, on_leaf_moved="follow")

    # -- reading

    def _bodies(self, rows: Sequence[Any]) -> Iterator[Payload]:
        for entry in self.session.read_rows(rows):
            yield entry.body

    def checkpoint(self, place: Place) -> Payload:
        """Return the data of a checkpoint's entry."""
        (body,) = self._bodies([self.saved[place[0]][place[1]].row])
        data: Payload = body["data"]
        return data

    def values(self, ns: str, data: Payload, versions: dict[str, Version]) -> dict[str, Packed]:
        """Return the channel values of a checkpoint: its own, and unchanged ones of earlier checkpoints."""
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
        """Return the task, channel and value of each write, in the order in which they are applied."""
        known = self._writes.get(place, {})
        ordered = sorted(known.items(), key=lambda item: writes_sort_key(item[1].path, *item[0]))
        rows = list({write.row.id: write.row for _, write in ordered}.values())
        found = {row.id: body["data"]["writes"] for row, body in zip(rows, self._bodies(rows), strict=True)}
        return [(task, write.channel, found[write.row.id][write.number][2]) for (task, _), write in ordered]

    def unpacker(self, packed: Iterable[Packed], serde: SerializerProtocol) -> Unpacker:
        """Return an unpacker for these values, with the parts that they need."""
        return Unpacker(self._gathered(packed, {}), serde, self.hidden)

    def _gathered(self, packed: Iterable[Packed | None], new: Mapping[str, Any]) -> dict[str, Any]:
        """Return all parts that the values need, by name; `new` ones are not stored yet."""
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
            raise Damaged(f"part {name} of a checkpoint is missing", path=self.session.path, hint="run `sessile check`")
        return row
