"""Session for the OpenAI Agents SDK, backed by a `Store`.

    await Runner.run(agent, "hello", session=SessileSession("user-1", Store("~/chats")))

Every item is an entry that `sessile show` and `sessile search` can read. Several processes may use a session at once: their items
are kept in the order in which they were written.

Rules:

- Nothing is lost. `pop_item`, `clear_session` and compaction append a note; the items stay in the journal, on an abandoned
  branch of the tree. `undo` reverts the latest note, as long as no item was added after it. `history` returns every item.
- A change is one entry, or several that are valid only together. A cancelled call or a crash leaves all of it or nothing.
- The journal is a log of changes to lines of items; each branch is a line, and the first one is "main". Item entries add an
  item; the notes `openai.pop`, `.clear`, `.replace`, `.undo`, `.branch`, `.delete_branch` and `.usage` change the lines. All
  processes read the same log and agree on every line. A note that no longer applies when it is read is ignored by all.
- An item points to the one before it, so that a line is one pointer and a branch costs one entry.
- An item is a `message` entry if it has content, else a `custom` entry. The item itself is in the member `openai`. Text is stored
  once: where the message has it, the item has `null`, and `taken` says where it belongs. An item that a line would change (NaN,
  whole floats, dropped members) is stored as JSON text.
- As in the SDK's own sessions, a negative limit means no limit, and a closed session raises `RuntimeError`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple, Self, TypeVar

from agents import RunContextWrapper, SessionSettings, TResponseInputItem
from agents.memory.session_settings import resolve_session_limit

from sessile.adapters.named_sessions import NamedSessions
from sessile.adapters.shared_text import Path, compact, put, values_of, without
from sessile.core.codec import decode, encode_plain, plain
from sessile.core.entries import Entry, Payload, custom, custom_message, message
from sessile.errors import SessileError
from sessile.session import Session
from sessile.store import Store

PROGRAM = "openai-agents"
MEMBER = "openai"  # the member of an entry with its item
MAIN = "main"

POP, CLEAR, REPLACE, UNDO = "openai.pop", "openai.clear", "openai.replace", "openai.undo"
BRANCH, DELETE, USAGE = "openai.branch", "openai.delete_branch", "openai.usage"

R = TypeVar("R")
Items = list[TResponseInputItem]
Expired = Callable[[TResponseInputItem], bool]


class Kept(NamedTuple):
    """An item of the history: its entry, the item, and whether it is still present on a branch."""

    entry_id: str
    item: TResponseInputItem
    present: bool


class Snapshot(NamedTuple):
    """The newest items, whether they are complete, and a function that replaces the last of them."""

    items: Items
    complete: bool
    replace_suffix: Callable[[int, Items], Awaitable[bool]]


class SessileSession:
    """The history of one conversation, in a store.

    Args:
        session_id: The id of the conversation; any text.
        store: The store; it may be a folder, a database or in memory. Several processes may share it.
        scope: Separates the sessions of different users or teams.
        session_settings: The SDK's settings, such as the default limit of `get_items`.

    Methods of the protocol take the run's `wrapper` for subclasses; this class ignores it.

    Example:
        ```python
        async with SessileSession("user-1", Store("~/chats")) as session:
            await Runner.run(agent, "hello", session=session)
        ```
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
        # One thread, so that calls run in order.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"sessile {session_id}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    # -- the protocol of the SDK

    async def get_items(self, limit: int | None = None, *, wrapper: RunContextWrapper[Any] | None = None) -> Items:
        """Return the latest items, oldest first; `limit` defaults to the session settings."""
        return await self._run(lambda: self._newest(self._branch, self._limit(limit)))

    async def add_items(self, items: Items, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Append items: all of them or, if one cannot be stored, none.

        Raises:
            TypeError, ValueError: An item has no JSON form.
        """
        self._check_open()
        branch = self._branch
        entries = self._entries(items)
        if entries:
            await self._run(lambda: self._append(branch, [*_together(entries[:-1], 1), _on(branch, entries[-1])]))

    async def pop_item(self, *, wrapper: RunContextWrapper[Any] | None = None) -> TResponseInputItem | None:
        """Remove the newest item from the history and return it; `None` if the history is empty. The journal keeps it."""
        branch = self._branch
        popped = await self._run(lambda: self._pop(branch))
        return None if popped is None else items_of([popped.text])[0]

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Clear the history and switch to the main branch; the journal keeps the items."""
        await self._run(self._clear)

    # -- more than the protocol

    async def undo(self) -> bool:
        """Undo the latest pop, clearing or replacement; return whether there was one without later items."""
        branch = self._branch
        return await self._run(lambda: self._undo(branch))

    async def history(self) -> list[Kept]:
        """Return every item that was ever added, on any branch, in the order of the journal."""
        return await self._run(self._history)

    def close(self) -> None:
        """Finish pending calls and close the session file."""
        if not self._closed:
            self._closed = True
            self._worker.submit(self._sessions.close).result()
            self._worker.shutdown()

    # -- compaction by the SDK

    async def _get_compaction_snapshot(self, limit: int, *, prune_prefix: Expired | None = None) -> Snapshot | None:
        """Return the newest items and a function that replaces the last of them unless the history has changed."""
        if type(self).add_items is not SessileSession.add_items:
            return None  # a subclass that changes how items are stored must replace them itself
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
        """Replace all items, unless the history changes at the same time; return whether it was done."""
        if type(self).add_items is not SessileSession.add_items:
            return False
        branch, entries = self._branch, self._entries(items)

        def replace() -> bool:
            seen = self._seen(branch, -1)
            return self._replace(branch, seen[-1] if seen else None, seen[0] if seen else None, entries, None)

        return await self._run(replace)

    # -- in the worker thread

    def _newest(self, branch: str, limit: int | None) -> Items:
        return items_of([item.text for item in self._seen(branch, -1 if limit is None else limit)])

    def _seen(self, branch: str, limit: int) -> list[Item]:
        """Return the newest items of a branch, oldest first; a negative limit means no limit."""
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
        """Append items to a branch, after entries that other processes append at the same time."""
        session = self._at(lambda: self._log.line(branch).hangs_from)
        session.append_many(entries, on_leaf_moved="follow")

    def _note(self, *entries: Payload, below: Callable[[], Item | None]) -> Any:
        """Append a note with its items below an item, and return its result."""
        session = self._at(lambda: None if (item := below()) is None else item.id)
        receipts = session.append_many(entries)
        return self._catch_up()[receipts[-1].id]

    def _at(self, place: Callable[[], str | None]) -> Session:
        """Return the session with its leaf at a place; repeat until no new entries arrive in between."""
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
        """Read new entries of all processes; a deleted session starts over."""
        session = self._sessions.find(self.scope, self.session_id)
        if session is not self._session:
            self._session, self._log = session, Log()
        outcomes: dict[str, Any] = {}
        if session is not None:
            outcomes = self._log.read(session.iter_lines(self._log.count))
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
        """Run a call in the worker thread; a cancellation takes effect after it has finished."""
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
        work.exception()  # the cancellation hides it
        raise cancelled


def _on(branch: str, entry: Payload) -> Payload:
    """Return the entry of an item on a branch."""
    return entry if branch == MAIN else {**entry, MEMBER: {**entry[MEMBER], "branch": branch}}


def _together(entries: Sequence[Payload], following: int) -> Iterable[Payload]:
    """Yield entries that are valid only together with those that follow them."""
    total = len(entries) + following - 1
    for number, entry in enumerate(entries):
        yield {**entry, MEMBER: {**entry[MEMBER], "more": total - number}}


def _without_first(items: list[Item], expired: Expired) -> list[Item]:
    """Return the items from the first one that has not expired."""
    values = items_of([item.text for item in items])
    return items[next((number for number, value in enumerate(values) if not expired(value)), len(items)) :]


# -- the log


class Item:
    """An item on a line: its JSON, and the item before it."""

    __slots__ = ("at", "before", "id", "text")

    def __init__(self, id: str, text: bytes, before: Item | None, at: str) -> None:  # noqa: A002
        self.id = id
        self.text = text
        self.before = before
        self.at = at


class Place(NamedTuple):
    """The last item of a line and, if its oldest items were dropped, the first."""

    tip: Item | None = None
    first: Item | None = None

    def up(self) -> Iterator[Item]:
        """Yield the items of the line, newest first."""
        item = self.tip
        while item is not None:
            yield item
            item = None if item is self.first else item.before

    def shorter(self) -> Place:
        """Return the line without its newest item."""
        return Place() if self.tip is None or self.tip is self.first else Place(self.tip.before, self.first)


class Removal(NamedTuple):
    """A pop, clearing or replacement, which can be undone."""

    before: Place
    after: Place
    branches: tuple[str, ...] = ()


class Line:
    """A branch: its items, and the parent of its next entry."""

    def __init__(self, place: Place, hangs_from: str | None, created: str) -> None:
        self.place = place
        self.hangs_from = hangs_from
        self.created = created
        self.deleted = False
        self.removals: list[Removal] = []
        self.usage: dict[str, Payload] = {}  # by the id of the first item of the turn

    def remove(self, after: Place, branches: tuple[str, ...] = ()) -> None:
        """Move to another place and remember the old one."""
        self.removals.append(Removal(self.place, after, branches))
        self.place = after

    def undoable(self) -> Removal | None:
        """Return the latest removal, if nothing was added after it."""
        return self.removals[-1] if self.removals and self.place == self.removals[-1].after else None


class Log:
    """The lines of a session, as far as its journal was read."""

    def __init__(self) -> None:
        self.count = 0  # entries read
        self.lines = {MAIN: Line(Place(), None, "")}
        self._items: dict[str, Item] = {}
        self._incomplete: list[tuple[Entry, bytes]] = []  # items whose companions are still missing

    def line(self, branch: str) -> Line:
        """Return the line of a branch; the main one if the branch is deleted or unknown."""
        return self.lines[branch if self.has(branch) else MAIN]

    def has(self, branch: str) -> bool:
        """Return whether a branch exists and is not deleted."""
        return branch in self.lines and not self.lines[branch].deleted

    def read(self, entries: Iterable[Entry]) -> dict[str, Any]:
        """Apply the next entries; return the result of each note by its id."""
        outcomes = {}
        for entry in entries:
            self.count += 1
            note = entry.get("customType") if entry.type == "custom" else None
            if self._incomplete and entry.parent_id != self._incomplete[-1][0].id:
                self._incomplete = []
            apply = _NOTES.get(note) if isinstance(note, str) else None
            if apply is not None:
                outcomes[entry.id] = apply(self, entry, entry.get("data") or {}, self._complete())
            elif (text := text_of(entry)) is not None:
                self._incomplete.append((entry, text))
                if "more" not in entry[MEMBER]:
                    self._add(self.line(entry[MEMBER].get("branch", MAIN)), self._complete())
        return outcomes

    def _complete(self) -> list[tuple[Entry, bytes]]:
        """Return the items before an entry that belong to it."""
        items, self._incomplete = self._incomplete, []
        return items

    def every_item(self) -> list[Item]:
        """Return all items that were ever on a line, in the order of the journal."""
        return list(self._items.values())

    def _add(self, line: Line, items: Iterable[tuple[Entry, bytes]]) -> None:
        for entry, text in items:
            tip = Item(entry.id, text, line.place.tip, entry.get("timestamp") or "")
            line.place = Place(tip, line.place.first)
            line.hangs_from = entry.id
            line.created = line.created or tip.at
            self._items[entry.id] = tip

    # -- notes; each returns the result for its writer

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
        self.lines[name] = Line(Place(tip, first), entry.id, entry.get("timestamp") or "")
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
    """Return the entry of a note about a line."""
    return custom(kind, {"branch": branch, **data})


# -- items as entries

Part = tuple[Payload, Path | None]
"""A part of a message, and the path of its text in the item; `None` if it is stored there too."""

_ARGUMENTS = {"function_call": "arguments", "mcp_call": "arguments", "custom_tool_call": "input"}
_SUSPECT = re.compile(r"NaN|Infinity|\.0|partialJson|jsonlEvents|[eE][+-]?\d")
_DATA_URL = re.compile(r"data:(image/[\w.+-]+);base64,([A-Za-z0-9+/]+={0,2})")


def written(item: Any) -> str:
    """Return the item as JSON; raise `TypeError` or `ValueError` if that is not possible."""
    return json.dumps(item)


def entry_of(item: Any, text: str, now: int) -> Payload:
    """Return the entry for an item, whose JSON is `text`."""
    if _SUSPECT.search(text) and not _survives(item, text):
        shown = [part if part["type"] != "toolCall" else part | {"arguments": {}} for part, _ in _parts(item)]
        return {**_payload(item, shown, now), MEMBER: {"json": text}}
    parts = _parts(item)
    payload = _payload(item, [part for part, _ in parts], now)
    taken = [path for _, path in parts]
    kept: Payload = {"item": without(item, taken)}
    return {**payload, MEMBER: kept | ({"taken": taken} if any(taken) else {})}


def text_of(entry: Mapping[str, Any]) -> bytes | None:
    """Return the JSON of an entry's item; `None` if it has none."""
    kept = entry.get(MEMBER)
    if not isinstance(kept, dict):
        return None
    if isinstance(kept.get("json"), str):
        return str(kept["json"]).encode()
    if "item" not in kept:
        return None
    item = kept["item"]
    for path, value in zip(kept.get("taken", ()), values_of(entry), strict=False):
        if path is not None:
            put(item, path, compact(value) if isinstance(value, dict) else value)
    return encode_plain(item)


def items_of(texts: Sequence[bytes]) -> list[Any]:
    """Return the items of JSON texts; the caller may change them."""
    joined = b"[" + b",".join(texts) + b"]"
    try:
        return list(decode(joined))
    except ValueError:  # NaN and infinity, which the SDK writes although they are not JSON
        return list(json.loads(joined))


def _survives(item: Any, text: str) -> bool:
    """Return whether a line preserves the item; whole floats and infinity, for example, are not preserved."""
    if "partialJson" in text or "jsonlEvents" in text:
        return False
    try:
        return json.dumps(decode(encode_plain(plain(item).value))) == text
    except SessileError:
        return False


def _payload(item: Any, parts: Sequence[Payload], now: int) -> Payload:
    kind, role = _kind(item), item.get("role") if isinstance(item, dict) else None
    content: Any = list(parts)
    if role in ("user", "assistant", "system", "developer") and kind == "message":
        if role == "user":
            one = content[0]["text"] if len(content) == 1 and isinstance(item.get("content"), str) else content
            return message({"role": "user", "content": one, "timestamp": now})
        if role == "assistant":
            return message(_answer(content, "stop", now))
        return custom_message("openai.instructions", content, display=False)
    if kind == "reasoning":
        return message(_answer(content, "stop", now))
    if content and kind.endswith("_call"):
        return message(_answer(content, "toolUse", now))
    if content and kind.endswith("_call_output"):
        call = {"role": "toolResult", "toolCallId": str(item.get("call_id") or ""), "toolName": ""}
        return message({**call, "content": content, "isError": False, "timestamp": now})
    return custom(f"openai.{kind}")


def _answer(content: Sequence[Payload], stop: str, now: int) -> Payload:
    return {"role": "assistant", "content": content, "stopReason": stop, "timestamp": now}


def _kind(item: Any) -> str:
    kind = item.get("type", "message" if "role" in item else "item") if isinstance(item, dict) else "item"
    return kind if isinstance(kind, str) and kind else "item"


def _parts(item: Any) -> list[Part]:
    """Return the parts of a message for the item."""
    kind = _kind(item)
    if not isinstance(item, dict):
        return []
    if kind == "message":
        return _said(item.get("content"), ["content"])
    if kind == "reasoning":
        thoughts = [*_said(item.get("summary"), ["summary"]), *_said(item.get("content"), ["content"])]
        return [({"type": "thinking", "thinking": part["text"]}, path) for part, path in thoughts if "text" in part]
    if kind.endswith("_call"):
        return [_call(item, kind)]
    if kind.endswith("_call_output"):
        return _said(item.get("output"), ["output"])
    return []


def _said(content: Any, at: Path) -> list[Part]:
    if isinstance(content, str):
        return [({"type": "text", "text": content}, at)]
    blocks = enumerate(content) if isinstance(content, list) else ()
    return [part for number, block in blocks for part in _block(block, [*at, number])]


def _block(block: Any, at: Path) -> Iterable[Part]:
    if not isinstance(block, dict):
        return
    name = next((name for name in ("text", "refusal") if isinstance(block.get(name), str)), None)
    if name is not None:
        yield {"type": "text", "text": block[name]}, [*at, name]
    url = block.get("image_url")
    image = _DATA_URL.fullmatch(url) if isinstance(url, str) else None
    if image is not None:
        yield {"type": "image", "mimeType": image[1], "data": image[2]}, [*at, "image_url"]


def _call(item: Mapping[str, Any], kind: str) -> Part:
    member = _ARGUMENTS.get(kind, "action")
    given = item.get(member)
    call = {"type": "toolCall", "id": str(item.get("call_id") or item.get("id") or ""), "name": _name(item, kind)}
    if not isinstance(given, str):
        return call | {"arguments": given if isinstance(given, dict) else {}}, None
    try:
        arguments = decode(given.encode("utf-8", "surrogatepass"))
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return call | {"arguments": {"input": given}}, None
    # The text is omitted from the item only if encoding the arguments reproduces it.
    return call | {"arguments": arguments}, [member] if compact(plain(arguments).value) == given else None


def _name(item: Mapping[str, Any], kind: str) -> str:
    name = item.get("name")
    return name if isinstance(name, str) and name else kind.removesuffix("_call")
