"""The async facade: the methods of `Store` and `Session`, run on worker threads. It has no logic of its own.

    store = AsyncStore(Store("~/.my-agent"))
    async with await store.create("/work/app") as session:
        await session.append_message({"role": "user", "content": "hello"})

Calls on one session run one at a time, in the order in which they were made. Cancellation never interrupts a call that has
started: it either did not run, or ran to its end. Works with asyncio and trio; requires the `aio` extra.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio
from anyio import to_thread

from sessile.core.entries import Entry
from sessile.session import Session
from sessile.store import Store

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=Callable[..., Any])


class _Worker:
    """Runs calls on threads, one at a time."""

    def __init__(self) -> None:
        self._turn = anyio.Lock()

    async def run(self, call: Callable[[], R]) -> R:
        async with self._turn:
            # anyio waits for the thread even if the caller is cancelled.
            return await to_thread.run_sync(call)


def _of_session(
    method: Callable[Concatenate[Session, P], R],
) -> Callable[Concatenate[AsyncSession, P], Coroutine[Any, Any, R]]:
    async def call(self: AsyncSession, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._worker.run(lambda: method(self.sync, *args, **kwargs))

    return _named(call, method)


def _session_of_session(
    method: Callable[Concatenate[Session, P], Session],
) -> Callable[Concatenate[AsyncSession, P], Coroutine[Any, Any, AsyncSession]]:
    async def call(self: AsyncSession, /, *args: P.args, **kwargs: P.kwargs) -> AsyncSession:
        return AsyncSession(await self._worker.run(lambda: method(self.sync, *args, **kwargs)))

    return _named(call, method)


def _of_store(
    method: Callable[Concatenate[Store, P], R],
) -> Callable[Concatenate[AsyncStore, P], Coroutine[Any, Any, R]]:
    async def call(self: AsyncStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._worker.run(lambda: method(self.sync, *args, **kwargs))

    return _named(call, method)


def _session_of_store(
    method: Callable[Concatenate[Store, P], Session],
) -> Callable[Concatenate[AsyncStore, P], Coroutine[Any, Any, AsyncSession]]:
    async def call(self: AsyncStore, /, *args: P.args, **kwargs: P.kwargs) -> AsyncSession:
        return AsyncSession(await self._worker.run(lambda: method(self.sync, *args, **kwargs)))

    return _named(call, method)


def _fetched(entry: Entry | None) -> Entry | None:
    """Return an entry that needs no file any more."""
    if entry is not None:
        _ = entry.body
    return entry


def _named(call: C, method: Callable[..., Any]) -> C:
    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class AsyncSession:
    """A session whose methods are awaited: all methods of `Session`, with the same arguments.

    Images and long texts that are in blobs come with the entries of `iter_entries` and `get_entry`. Entries in lists and trees
    fetch them when they are first used, which reads files: use `get_full_entry` for those that have any.

    Args:
        session: The session.

    Attributes:
        sync (Session): The session itself, for its properties.
    """

    def __init__(self, session: Session) -> None:
        self.sync = session
        self._worker = _Worker()

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def iter_entries(self) -> AsyncIterator[Entry]:
        """Yield all entries of all branches, in file order. Leaf markers are left out."""
        entries = self.sync.iter_entries()
        while (entry := await self._worker.run(lambda: _fetched(next(entries, None)))) is not None:
            yield entry

    async def get_entry(self, entry_id: str) -> Entry | None:
        """Return the entry with this id, or `None`. If two entries have the same id, the later one counts."""
        return await self._worker.run(lambda: _fetched(self.sync.get_entry(entry_id)))

    append_message = _of_session(Session.append_message)
    append_messages = _of_session(Session.append_messages)
    append_entry = _of_session(Session.append_entry)
    append_thinking_level_change = _of_session(Session.append_thinking_level_change)
    append_model_change = _of_session(Session.append_model_change)
    append_compaction = _of_session(Session.append_compaction)
    append_custom_entry = _of_session(Session.append_custom_entry)
    append_custom_message_entry = _of_session(Session.append_custom_message_entry)
    append_label_change = _of_session(Session.append_label_change)
    append_mode_change = _of_session(Session.append_mode_change)
    append_ttsr_injection = _of_session(Session.append_ttsr_injection)
    append_session_init = _of_session(Session.append_session_init)
    append_context_edit = _of_session(Session.append_context_edit)
    append_reset_boundary = _of_session(Session.append_reset_boundary)
    append_many = _of_session(Session.append_many)
    branch = _of_session(Session.branch)
    reset_leaf = _of_session(Session.reset_leaf)
    follow = _of_session(Session.follow)
    branch_with_summary = _of_session(Session.branch_with_summary)
    get_entries = _of_session(Session.get_entries)
    get_full_entry = _of_session(Session.get_full_entry)
    get_branch = _of_session(Session.get_branch)
    get_children = _of_session(Session.get_children)
    get_heads = _of_session(Session.get_heads)
    get_abandoned = _of_session(Session.get_abandoned)
    get_common_ancestor = _of_session(Session.get_common_ancestor)
    get_tree = _of_session(Session.get_tree)
    blob_pieces = _of_session(Session.blob_pieces)
    count_entries = _of_session(Session.count_entries)
    get_gaps = _of_session(Session.get_gaps)
    get_label = _of_session(Session.get_label)
    get_outline = _of_session(Session.get_outline)
    get_labels = _of_session(Session.get_labels)
    context = _of_session(Session.context)
    build_session_context = _of_session(Session.build_session_context)
    set_session_name = _of_session(Session.set_session_name)
    set_tag = _of_session(Session.set_tag)
    rewrite_entries = _of_session(Session.rewrite_entries)
    rewrite_tool_call = _of_session(Session.rewrite_tool_call)
    move_to = _of_session(Session.move_to)
    set_session_file = _of_session(Session.set_session_file)
    publish = _of_session(Session.publish)
    flush = _of_session(Session.flush)
    reopen = _of_session(Session.reopen)
    close = _of_session(Session.close)
    new_session = _session_of_session(Session.new_session)
    fork = _session_of_session(Session.fork)
    create_branched_session = _session_of_session(Session.create_branched_session)


class AsyncStore:
    """A store whose methods are awaited: all methods of `Store`, with the same arguments.

    Args:
        store: The store.

    Attributes:
        sync (Store): The store itself, for its properties.
    """

    def __init__(self, store: Store) -> None:
        self.sync = store
        self._worker = _Worker()

    create = _session_of_store(Store.create)
    open = _session_of_store(Store.open)
    continue_recent = _session_of_store(Store.continue_recent)
    fork_from = _session_of_store(Store.fork_from)
    obtain = _session_of_store(Store.obtain)
    close = _of_store(Store.close)
    find = _of_store(Store.find)
    list = _of_store(Store.list)
    list_all = _of_store(Store.list_all)
    delete = _of_store(Store.delete)
    erase = _of_store(Store.erase)
    undo = _of_store(Store.undo)
    deletions = _of_store(Store.deletions)
