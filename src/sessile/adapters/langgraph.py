"""A checkpointer for LangGraph that keeps every thread as a session: readable, searchable, and stored once.

    from sessile import Store
    from sessile.adapters.langgraph import SessileSaver

    graph = builder.compile(checkpointer=SessileSaver(Store("sessions")))

Rules:

- A thread is a session. What people, models and tools said are its messages, each once; checkpoints and writes are custom
  entries that name them. A version of a list costs what is new in it. A fork is a branch of the session.
- What is read back is data: of other types than LangGraph's own only those are made that `allowed_types` names, everything else
  comes as the plain values that it was made of, and pickles are refused. Pass a `serde` to decide otherwise; one that is not
  LangGraph's `JsonPlusSerializer` gets every value, and then nothing can be read without it.
- Many threads and processes may use one thread of LangGraph at once: what was acknowledged stays, file order decides.
- Nothing is lost: `delete_thread` moves the session to the trash of the store (`store.deletions()` lists it, `store.undo(token)`
  or `sessile undo` brings it back); `delete_for_runs` and `prune` only hide checkpoints, and `restore` shows them again. The
  history of a DeltaChannel goes on through hidden ones.

The async methods are the same ones on threads. It does not know graphs.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self, cast

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
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from sessile import NamedSessions, Store
from sessile.adapters.langgraph_thread import CHECKPOINT, WRITES, Place, Thread
from sessile.adapters.langgraph_values import Packed, Packer
from sessile.errors import Invalid

PROGRAM = "langgraph"
SCOPE = ""  # LangGraph has none: a thread id is all

_KEPT = 64  # threads whose checkpoints stay known


class SessileSaver(BaseCheckpointSaver[str]):
    """Keeps the checkpoints of LangGraph in a store. Safe to use from many threads."""

    def __init__(
        self,
        store: Store,
        *,
        allowed_types: Iterable[type | tuple[str, ...]] = (),
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde or JsonPlusSerializer(allowed_msgpack_modules=list(allowed_types) or None))
        self.sessions = NamedSessions(store, PROGRAM, keep_open=_KEPT)
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
        """Let go of all sessions; the next call opens what it needs."""
        with self._lock:
            self._threads.clear()
            self.sessions.close()

    def _find(self, thread_id: object) -> Thread | None:
        """A thread with all that was appended to it; `None` if there is none."""
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
        if len(self._threads) > _KEPT:
            self._threads.popitem(last=False)
        return thread

    # -- reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or the latest of its namespace."""
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
        """The checkpoints of a thread, or of all, the largest id first."""
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
        """What was written to channels on the way to a checkpoint since each had a value, and that value.

        The way goes through deleted checkpoints too: pruning cuts no history.
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
        """Store a checkpoint below the one that the config names, with the values that are new in it."""
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
            # Some callers store values without a version, or change one and keep it. What was given is what is read back.
            own += [
                [name, versions.get(name), packer.pack(value)]
                for name, value in values.items()
                if name not in new_versions and not thread.has_value(ns, name, versions.get(name))
            ]
            told = get_checkpoint_metadata(config, metadata)
            data = {
                "ns": ns,
                "id": checkpoint["id"],
                "parent": parent,
                "run": told.get("run_id"),
                "checkpoint": packer.whole(rest),
                "metadata": packer.whole(told),
                "values": own,
            }
            thread.append(CHECKPOINT, data, packer, (ns, parent or ""))
        return _config(wanted["thread_id"], ns, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task has written below a checkpoint; of two with one number the first counts, of special ones the last."""
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
        """A larger version; the letters behind it tell versions of two branches apart."""
        number = int(str(current).split(".")[0]) if current is not None else 0
        return f"{number + 1:010d}.{secrets.token_hex(4)}"

    # -- deleting and copying

    def delete_thread(self, thread_id: str) -> None:
        """Move a thread to the trash of the store, from where `store.undo` brings it back."""
        with self._lock:
            self._threads.pop(str(thread_id), None)
            self.sessions.delete(SCOPE, str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Hide the checkpoints of some runs, in whatever threads."""
        runs = set(run_ids)
        for named in self.sessions.list(SCOPE) if runs else ():
            if (thread := self._find(named.name)) is not None:
                with thread.lock:
                    thread.catch_up()
                    thread.hide([(ns, name) for ns, name in thread.visible() if thread.saved[ns][name].run in runs])

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Hide all but the latest checkpoint of each namespace, or with "delete" move the threads to the trash."""
        if strategy not in ("keep_latest", "delete"):
            raise Invalid(f"{strategy!r} is no way to prune", hint="use 'keep_latest' or 'delete'")
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
            elif (thread := self._find(thread_id)) is not None:
                with thread.lock:
                    thread.catch_up()
                    latest = {ns: thread.latest(ns) for ns in thread.saved}
                    thread.hide([(ns, name) for ns, name in thread.visible() if name != latest[ns]])

    def restore(self, thread_id: str) -> int:
        """Show the checkpoints of a thread again that were hidden; gives how many."""
        thread = self._find(thread_id)
        if thread is None:
            return 0
        with thread.lock:
            thread.catch_up()
            return thread.show()

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Append everything that a thread holds to another one."""
        thread = self._find(source_thread_id)
        if thread is not None:
            thread.copy_to(self._open(target_thread_id).session)

    # -- the same on threads

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
    """The checkpoint that a config means."""
    ns = cast(str, config["configurable"].get("checkpoint_ns", ""))
    checkpoint_id = get_checkpoint_id(config) or thread.latest(ns)
    return None if checkpoint_id is None else (ns, checkpoint_id)
