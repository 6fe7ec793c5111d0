"""A session of the OpenAI Agents SDK that keeps everything.

    await Runner.run(agent, "hello", session=SessileSession("user-1", Store("~/chats")))

It is the SDK's `Session`, on any store of ours. Every item is an entry that `sessile show` and `sessile search` can read. Many
processes may use one session at once: what each adds stays, in the order in which it was written.

Rules: nothing that was acknowledged is ever lost. `pop_item`, `clear_session` and what compaction puts in place of the history
append a note that says so; the items stay in the journal, on a branch of the tree that was left (`sessile tree` shows it).
`undo` takes back the latest of these notes, again and again, as long as no item was added behind it. `history` gives every
item that the session ever held, and says which are gone. To change the history takes one entry, or several that count only
together: a caller who is cancelled, or a process that dies, leaves all of it or nothing.

Two things are as the SDK's own sessions have them: a negative limit is none, and a closed session raises `RuntimeError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple, Self, TypeVar

from agents import RunContextWrapper, SessionSettings, TResponseInputItem
from agents.memory.session_settings import resolve_session_limit

from sessile import NamedSessions, Session, Store
from sessile.adapters.openai_agents_items import MEMBER, entry_of, items_of, written
from sessile.adapters.openai_agents_log import CLEAR, MAIN, POP, REPLACE, UNDO, Item, Log, note
from sessile.core.entries import Entry, Payload

PROGRAM = "openai-agents"

R = TypeVar("R")
Items = list[TResponseInputItem]
Expired = Callable[[TResponseInputItem], bool]


class Kept(NamedTuple):
    """An item that the session holds or held: its entry, the item, and whether `get_items` still gives it."""

    entry_id: str
    item: TResponseInputItem
    present: bool


class Snapshot(NamedTuple):
    """The newest items, whether they are all, and how to put others in place of the last of them."""

    items: Items
    complete: bool
    replace_suffix: Callable[[int, Items], Awaitable[bool]]


class SessileSession:
    """The history of one conversation, in a store. `scope` keeps the sessions of different users or teams apart.

    The verbs of the protocol take the run's `wrapper`, so that a class made from this one gets it; this one does not need it.
    """

    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        store: Store,
        *,
        scope: str = "",
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_id = session_id
        self.scope = scope
        self.session_settings = SessionSettings().resolve(session_settings)
        self._store = store
        self._sessions = NamedSessions(store, PROGRAM)
        self._session: Session | None = None
        self._log = Log()
        self._branch = MAIN
        self._closed = False
        # One thread: what is asked first is done first.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"sessile {session_id}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    # -- the protocol of the SDK

    async def get_items(self, limit: int | None = None, *, wrapper: RunContextWrapper[Any] | None = None) -> Items:
        """The latest items, oldest first; without a limit, as many as the settings say."""
        return await self._run(lambda: self._newest(self._branch, self._limit(limit)))

    async def add_items(self, items: Items, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Add items behind the others: all of them or, if one cannot be written, none."""
        self._check_open()
        branch = self._branch
        entries = self._entries(items)
        if entries:
            await self._run(lambda: self._append(branch, [*_together(entries[:-1], 1), _on(branch, entries[-1])]))

    async def pop_item(self, *, wrapper: RunContextWrapper[Any] | None = None) -> TResponseInputItem | None:
        """Take the newest item off the history and give it; the journal keeps it."""
        branch = self._branch
        popped = await self._run(lambda: self._pop(branch))
        return None if popped is None else items_of([popped.text])[0]

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Begin with an empty history, on the main branch; the journal keeps what was."""
        await self._run(self._clear)

    # -- what goes beyond it

    async def undo(self) -> bool:
        """Take back the latest pop, clearing or replacement; not if there is none, or if items were added behind it."""
        branch = self._branch
        return await self._run(lambda: self._undo(branch))

    async def history(self) -> list[Kept]:
        """Every item that was ever added, on whatever branch, in the order of the journal."""
        return await self._run(self._history)

    def close(self) -> None:
        """Wait for what was asked, then let go of the session's file."""
        if not self._closed:
            self._closed = True
            self._worker.submit(self._sessions.close).result()
            self._worker.shutdown()

    # -- what the SDK's compaction asks a session for

    async def _get_compaction_snapshot(self, limit: int, *, prune_prefix: Expired | None = None) -> Snapshot | None:
        """The newest items, and a way to replace the last of them that does nothing if the history has changed."""
        if type(self).add_items is not SessileSession.add_items:
            return None  # a session that stores items in another form has to say itself how to replace them
        branch = self._branch
        seen = await self._run(lambda: self._seen(branch, limit + 1))
        window = seen[-limit:] if limit > 0 else []

        async def replace_suffix(start: int, output: Items) -> bool:
            if not window[start:]:
                return False
            entries = self._entries(output)
            return await self._run(lambda: self._replace(branch, window[-1], window[start], entries, prune_prefix))

        return Snapshot(items_of([item.text for item in window]), len(seen) <= limit, replace_suffix)

    async def _atomic_replace_items(self, items: Items) -> bool:
        """Put others in place of all items, unless somebody adds one meanwhile."""
        if type(self).add_items is not SessileSession.add_items:
            return False
        branch, entries = self._branch, self._entries(items)

        def replace() -> bool:
            seen = self._seen(branch, -1)
            return self._replace(branch, seen[-1] if seen else None, seen[0] if seen else None, entries, None)

        return await self._run(replace)

    # -- on the worker's thread

    def _newest(self, branch: str, limit: int | None) -> Items:
        return items_of([item.text for item in self._seen(branch, -1 if limit is None else limit)])

    def _seen(self, branch: str, limit: int) -> list[Item]:
        """The newest items of a branch, oldest first; a negative limit is none."""
        self._catch_up()
        items = self._log.line(branch).place.up()
        return list(items if limit < 0 else islice(items, limit))[::-1]

    def _pop(self, branch: str) -> Item | None:
        self._catch_up()
        if self._log.line(branch).place.tip is None:
            return None
        popped: Item | None = self._note(note(POP, branch), below=lambda: self._log.line(branch).place.shorter().tip)
        return popped

    def _clear(self) -> None:
        self._catch_up()
        if self._session is not None:
            self._note(note(CLEAR, MAIN), below=lambda: None)
        self._branch = MAIN

    def _undo(self, branch: str) -> bool:
        self._catch_up()
        removal = self._log.line(branch).undoable()
        return removal is not None and bool(self._note(note(UNDO, branch), below=lambda: removal.before.tip))

    def _replace(
        self, branch: str, tip: Item | None, start: Item | None, output: list[Payload], expired: Expired | None
    ) -> bool:
        self._catch_up()
        line = self._log.line(branch)
        if line.place.tip is not tip:
            return False
        kept = list(line.place.up())[::-1]
        kept = kept[: kept.index(start)] if start is not None else []
        if expired is not None:
            kept = _without_first(kept, expired)
        first = {"first": kept[0].id} if kept and kept[0].before is not None else {}
        keep, after = kept[-1].id if kept else None, tip.id if tip else None
        done = note(REPLACE, branch, after=after, keep=keep, count=len(output), **first)
        return bool(self._note(*_together(output, 1), done, below=lambda: kept[-1] if kept else None))

    def _history(self) -> list[Kept]:
        self._catch_up()
        present = {item.id for line in self._log.lines.values() if not line.deleted for item in line.place.up()}
        every = self._log.every_item()
        items = items_of([item.text for item in every])
        return [Kept(item.id, value, item.id in present) for item, value in zip(every, items, strict=True)]

    # -- the journal

    def _append(self, branch: str, entries: Sequence[Payload]) -> None:
        """Append items behind the last entry of a branch, also behind those that others append at this moment."""
        session = self._standing_on(lambda: self._log.line(branch).hangs_from)
        session.append_many(entries, on_leaf_moved="follow")

    def _note(self, *entries: Payload, below: Callable[[], Item | None]) -> Any:
        """Append a note, with what belongs to it, where the line goes on; gives what it came to."""
        session = self._standing_on(lambda: None if (item := below()) is None else item.id)
        receipts = session.append_many(entries)
        return self._catch_up()[receipts[-1].id]

    def _standing_on(self, place: Callable[[], str | None]) -> Session:
        """The session, with its leaf where an entry shall hang: looked up again until nothing new has come meanwhile."""
        session = self._sessions.open(self.scope, self.session_id)
        self._catch_up()
        while session.leaf_id != (entry_id := place()):
            if entry_id is None:
                session.reset_leaf()
            else:
                session.branch(entry_id)
            self._catch_up()
        return session

    def _catch_up(self) -> dict[str, Any]:
        """Read what was appended since, by whomever; a session that was deleted begins anew."""
        session = self._sessions.find(self.scope, self.session_id)
        if session is not self._session:
            self._session, self._log = session, Log()
        outcomes: dict[str, Any] = {}
        if session is not None:
            outcomes = self._log.read(_whole(session, entry) for entry in session.iter_lines(self._log.count))
        if not self._log.has(self._branch):
            self._branch = MAIN
        return outcomes

    def _entries(self, items: Items) -> list[Payload]:
        now = self._store.now()
        return [entry_of(item, written(item), now) for item in items]

    def _limit(self, limit: int | None) -> int | None:
        return resolve_session_limit(limit, self.session_settings)

    # -- threads

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"{type(self).__name__} is closed")

    async def _run(self, call: Callable[[], R]) -> R:
        """Do something on the worker's thread, to its end: one who is cancelled meanwhile is told so afterwards."""
        self._check_open()
        work = asyncio.get_running_loop().run_in_executor(self._worker, call)
        cancelled: asyncio.CancelledError | None = None
        while not work.done():
            try:
                await asyncio.wait((work,))
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
        if cancelled is None:
            return work.result()
        work.exception()  # the caller hears of being cancelled, not of this
        raise cancelled


def _whole(session: Session, entry: Entry) -> Entry:
    """An entry with its images and long texts."""
    if b"blob:sha256:" not in entry.raw:
        return entry
    return Entry(entry.id, entry.parent_id, entry.raw, session.get_full_entry(entry.id))


def _on(branch: str, entry: Payload) -> Payload:
    """The entry of an item on a branch."""
    return entry if branch == MAIN else {**entry, MEMBER: {**entry[MEMBER], "branch": branch}}


def _together(entries: Sequence[Payload], following: int) -> Iterable[Payload]:
    """Entries that count only together with as many that follow them."""
    total = len(entries) + following - 1
    for number, entry in enumerate(entries):
        yield {**entry, MEMBER: {**entry[MEMBER], "more": total - number}}


def _without_first(items: list[Item], expired: Expired) -> list[Item]:
    """The items from the first on that has not expired."""
    values = items_of([item.text for item in items])
    return items[next((number for number, value in enumerate(values) if not expired(value)), len(items)) :]
