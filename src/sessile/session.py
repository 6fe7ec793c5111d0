"""A session: one append-only tree with a leaf, where the next entry will hang.

Every append makes exactly one entry below the leaf, which becomes the new leaf; existing lines never change. An append
returns a receipt when the entry is durable, or raises. Memory never runs ahead of the journal: what a session shows is what
reopening it would show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from sessile import transfer
from sessile.batch import KEY, ON_LEAF_MOVED, Batch, OnLeafMoved, Receipt, checked, is_answer, last_below, leaf_moved
from sessile.core import entries as make
from sessile.core import large
from sessile.core.codec import encode
from sessile.core.entries import Entry, Payload
from sessile.core.ids import derived_entry_id, new_entry_id
from sessile.core.kinds import BOUNDARY, fold, kind_of
from sessile.core.lines import Finding
from sessile.core.text import clean_name, iso_timestamp
from sessile.errors import EntryNotFound, Invalid, InvalidEntry, ReadOnly, SessileError, Unsupported
from sessile.rewriting import ToolCallRewrite, rewritten
from sessile.storage import drafts
from sessile.storage.base import Journal, OwnJournal, ReadableJournal
from sessile.verbs import AppendVerbs

if TYPE_CHECKING:
    from sessile.store import Store


class Session(AppendVerbs):
    """One open session. Made by a `Store`; safe to use from many threads."""

    def __init__(
        self,
        store: Store,
        journal: ReadableJournal,
        writer: Journal | None = None,
        *,
        draft: bool = False,
        ours: bool = True,
        findings: Sequence[Finding] = (),
    ) -> None:
        super().__init__(journal, store.blobs.of_session(journal.path), findings)
        self.notices: list[str] = []
        self._store = store
        self._writer = writer  # the journal itself, if it may be written
        self._draft = draft  # begun as one; its name tells whether it still is
        self._ours = ours
        self._closed = False

    @classmethod
    def in_memory(cls, cwd: str = "/") -> Session:
        """A session without a file."""
        from sessile.store import Store

        return Store.in_memory().create(cwd, publish=True)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- what it is

    @property
    def is_draft(self) -> bool:
        """Whether no assistant has answered yet, so that no listing shows the session."""
        return self._draft and drafts.is_draft(self._journal.path)

    @property
    def readonly(self) -> bool:
        return self._writer is None

    # -- appending

    def append_many(
        self,
        entries: Iterable[Payload],
        expected_leaf: str | None = None,
        key: str | None = None,
        on_leaf_moved: OnLeafMoved = "branch",
    ) -> list[Receipt]:
        """Append entries (each a dict with `type` and its members) as a chain, with one sync.

        They hang from `expected_leaf`, if given ("root" is before the first entry), else from the leaf. If another writer
        has appended there meanwhile, `on_leaf_moved` decides: "branch" off, "follow" the other's entries, or "fail". With a
        `key` the call can be repeated: entries that were appended under that key are not appended again.
        """
        payloads = [checked(payload, self.path) for payload in entries]
        if not payloads:
            return []
        with self._lock:
            writer = self._writing()
            ids = self._ids(len(payloads), key)
            present = [] if key is None else self._present(ids, key)
            if len(present) == len(ids):
                return present
            if present:  # a crash came between two lines of the earlier call: go on behind the last one
                expected_leaf = present[-1].id
            parent, moved = self._parent(expected_leaf, on_leaf_moved)
            missing, new_ids = payloads[len(present) :], ids[len(present) :]
            markers = [marker for marker, leaf in self._markers.items() if leaf == parent]
            try:
                batch = Batch(missing, new_ids, key, parent, self._now(), self._stored, on_leaf_moved, moved, markers)
            except Invalid as error:
                error.path = self.path
                raise
            try:
                appended = writer.append(batch.lines, batch.revise)
                if not appended.positions:  # another process was faster with the same key
                    return self.append_many(payloads, key=key)
                self._follow(batch)
            except BaseException as error:
                if not isinstance(error, SessileError):  # an interruption; of its own failures a journal leaves nothing
                    self._stand_where_it_was_cut(batch)
                raise
        writer.commit(appended.mark)
        if self.is_draft and any(is_answer(payload) for payload in payloads):
            self.publish()
        durability = self._store.durability
        parents = [batch.parent, *new_ids]
        return present + [
            Receipt(entry_id, parents[i], self.path, appended.positions[i], durability, batch.diverged)
            for i, entry_id in enumerate(new_ids)
        ]

    def adopt(self, batches: Iterable[Sequence[bytes]]) -> int:
        """Append entries that have ids and parents already, as they are; for imports, which end with `adopt_last`."""
        count = 0
        with self._lock:
            writer = self._writing()
            for lines in batches:
                writer.commit(writer.append(lines, lambda news, same=lines: same).mark)  # type: ignore[misc]
                count += len(lines)
        return count

    def adopt_last(self, entry: Payload, leaf: str | None) -> None:
        """Append the entry that ends an import, and stand on a leaf that is known to be there, or else on that entry."""
        with self._lock:  # nothing is looked up: to index what was just written takes as long as to write it
            self.adopt([[encode(entry)]])
            self._resting, self._live = str(entry["id"]), None
            self._leaf = leaf or self._resting

    def _parent(self, expected: str | None, on_leaf_moved: OnLeafMoved) -> tuple[str | None, bool]:
        """Where to hang entries, and whether something else hangs there already."""
        if on_leaf_moved not in ON_LEAF_MOVED:
            raise Invalid(f"{on_leaf_moved!r} says nothing about a moved leaf", hint=f"use one of {ON_LEAF_MOVED}")
        if expected is None or expected == (self._leaf or make.ROOT):
            return self._leaf, False
        parent = None if expected == make.ROOT else self._row(expected).id
        tip = last_below((parent,), self._journal.rows())
        if tip is None:
            return parent, False
        if on_leaf_moved == "fail":
            raise leaf_moved(parent, self.path)
        return (tip, False) if on_leaf_moved == "follow" else (parent, True)

    def _writing(self) -> Journal:
        """The journal, for those who want to write."""
        if self._writer is None:
            raise ReadOnly(path=self.path, hint="open it for writing, or fork it")
        return self._writer

    def _named(self) -> OwnJournal:
        """The journal as one of the store's own, for those who give it another name."""
        writer = self._writing()
        if not isinstance(writer, OwnJournal):
            raise Unsupported(
                "this session cannot be moved", path=self.path, hint="fork it (sessile fork --cwd FOLDER)"
            )
        return writer

    def _ids(self, count: int, key: str | None) -> list[str]:
        if key is not None:
            return [derived_entry_id(self.id, key, number) for number in range(count)]
        return [new_entry_id(self._store.random) for _ in range(count)]

    def _present(self, ids: Sequence[str], key: str) -> list[Receipt]:
        """Receipts of the entries that an earlier call with the same key has appended, durable by now."""
        rows = []
        for entry_id in ids:
            row = self._journal.find(entry_id)
            if row is None:
                break
            rows.append(row)
        if not rows:
            return []
        if self._entry(rows[0]).get(KEY) != key:
            raise InvalidEntry(f"the key {key!r} gives an id that another entry has", hint="use another key")
        self.flush()
        durability = self._store.durability
        return [Receipt(r.id, r.parent_id, self.path, r.position, durability, repeated=True) for r in rows]

    def _stand_where_it_was_cut(self, batch: Batch) -> None:
        """Go on behind what an interrupted append has written: only the file knows whether that is anything."""
        self._live = None
        with suppress(SessileError):  # the interruption goes first; who appends next hears of the storage
            written = [entry_id for entry_id in batch.ids if self._journal.find(entry_id) is not None]
            if written:
                self._leaf = self._resting = written[-1]

    def _follow(self, batch: Batch) -> None:
        """Bring what is known in memory up to what was just written."""
        if batch.parent != self._leaf:
            self._live = None
        for number, entry in enumerate(batch.entries):
            if kind_of(entry["type"]).flags & BOUNDARY:
                self._live = None
            elif self._live is not None:
                body = batch.body(number) or self._resolved(batch.lines[number])
                self._live.add(body)
                self._state = fold(self._state, body)
        self._leaf = self._resting = batch.ids[-1]

    # -- moving the leaf

    def branch(self, entry_id: str, *, durable: bool = False) -> None:
        """Move the leaf to an earlier entry: the next append begins a branch there."""
        self._move_leaf(self._row(entry_id).id, durable)

    def reset_leaf(self, *, durable: bool = False) -> None:
        """Move the leaf before the first entry: the next append begins a new root."""
        self._move_leaf(None, durable)

    def follow(self) -> bool:
        """Move the leaf to where opening the journal gives it now, also by what others have appended; whether it moved."""
        with self._lock:
            leaf = self._reopened_leaf(self._writing().follow())
            if leaf == self._leaf:
                return False
            self._leaf = self._resting = leaf
            self._live = None
            return True

    def _move_leaf(self, leaf: str | None, durable: bool) -> None:
        with self._lock:
            if durable:
                self._writing()
                if not self._ours:
                    raise Unsupported("the leaf is not stored in other programs' files", path=self.path, hint="fork it")
            if leaf != self._leaf:
                self._leaf, self._live = leaf, None
            if durable:
                self._mark_leaf()

    def branch_with_summary(
        self, entry_id: str | None, summary: str, details: Any = None, from_extension: bool | None = None
    ) -> Receipt:
        """Move the leaf and append what was learned on the branch that is left."""
        with self._lock:
            self._writing()
            before = self._leaf
            self._move_leaf(None if entry_id is None else self._row(entry_id).id, durable=False)
            try:
                return self._append(make.branch_summary(entry_id or make.ROOT, summary, details, from_extension))
            except BaseException:
                self._move_leaf(before, durable=False)
                raise

    def _mark_leaf(self) -> None:
        """Store the leaf for the next one who opens, unless the journal gives it anyway or others went on."""
        if self._leaf == self._resting or not self._ours:
            return
        marker = make.with_base(make.leaf_marker(), self._ids(1, None)[0], self._leaf, self._now())
        line = encode(marker)
        writer = self._writing()
        appended = writer.append([line], lambda news: () if news.rows() else (line,))
        if appended.positions:
            writer.commit(appended.mark)
            self._resting = self._leaf
            self._markers[marker["id"]] = self._leaf

    def _stored(self, entry: Payload) -> Payload:
        """An entry with its large content in blobs."""
        return large.shrink(entry, self._put)

    def _put(self, data: bytes) -> str:
        return self._blobs.put(data).hash

    def _now(self) -> str:
        return iso_timestamp(self._store.now())

    # -- names, rewriting, moving

    def set_session_name(self, name: str, source: Literal["user", "auto"] = "user") -> bool:
        """Name the session; an automatic name never replaces one that a person gave. Says whether it was set."""
        name = clean_name(name)
        with self._lock:
            if not name or (source == "auto" and self.title_source == "user"):
                return False
            named = make.session_info(name, self.title, source)
            if self._ours:  # before the entry, which is what counts: if this fails, nothing has changed
                self._rewrite_header(title=name, titleSource=source)
            self._append(named)
            return True

    def _rewrite_header(self, **members: Any) -> None:
        header, old = {**self._header, **members}, self._journal.header()
        self._writing().replace(lambda raw: encode(header) if raw == old else None)
        self._header = header

    def rewrite_entries(self, edit: Callable[[Entry], Mapping[str, Any] | None]) -> str:
        """Put what `edit` returns in place of entries; `None` leaves one as it is, byte for byte.

        The file as it was stays in the store's `originals`; its path is returned. Ids and parents cannot be changed.
        """
        with self._lock:
            writer = self._writing()
            kept = self._store.original_path(writer.path)
            writer.replace(lambda raw: rewritten(raw, edit, self._put), keep=kept)
            self._live = None
            return kept

    def rewrite_tool_call(self, call_id: str, arguments: Mapping[str, Any]) -> str:
        """Replace the arguments of a tool call, wherever it stands; gives the path of the file as it was."""
        with self._lock:
            rewrite = ToolCallRewrite(call_id, arguments)
            if not any(rewrite.concerns(entry) for entry in self.iter_entries()):
                raise EntryNotFound(f"there is no tool call {call_id}", path=self.path)
            return self.rewrite_entries(rewrite)

    def move_to(self, cwd: str) -> None:
        """Move the session, with its artifacts, to another project."""
        with self._lock:
            writer = self._named()
            if cwd != self.cwd:
                before = self.path
                transfer.relocate(self._store, writer, cwd)
                members: Payload = {"cwd": cwd}
                if self.path != before and not self.is_draft:
                    members["previousSessionFiles"] = [*self._header.get("previousSessionFiles", ()), before]
                self._rewrite_header(**members)
                self._store.leave_breadcrumb(self)

    # -- other sessions

    def new_session(self, parent_session: str | None = None) -> Session:
        """A new, empty session in the same project."""
        return self._store.create(self.cwd, parent_session=parent_session)

    def fork(self) -> Session:
        """A copy of the whole session, all branches and artifacts, as a session of its own at the same leaf."""
        return transfer.fork(self._store, self, self.cwd)

    def create_branched_session(self, leaf_id: str) -> Session:
        """The path to an entry as a session of its own."""
        path = [self._entry(step) for step in self._path(self._row(leaf_id).id)]
        return transfer.branch_off(self._store, self, path)

    def set_session_file(self, path: str) -> None:
        """Leave this session as it is and go on in another file."""
        with self._lock:
            other = self._store.open(path)
            try:
                self.close()
            finally:
                self._blobs = other._blobs
                self._look_at(other._journal)
                self.notices += other.notices
                self._writer, self._draft, self._ours, self._closed = other._writer, other._draft, other._ours, False

    # -- durability

    def publish(self) -> None:
        """Show a draft in listings before an assistant has answered."""
        with self._lock:
            if self.is_draft:
                drafts.publish(self._named())

    def flush(self) -> None:
        """Make everything durable that was appended."""
        if self._writer is not None:
            self._writer.flush()

    def reopen(self) -> None:
        """Begin anew from the file after a failure."""
        with self._lock:
            writer = self._writing()
            writer.reopen()
            self._closed = False
            self._look_at(writer)

    def close(self) -> None:
        """Store the leaf if need be, free the file, then raise the first error that appending met."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                if self._writer is not None and not self._writer.failed:
                    self._mark_leaf()
                    if self.is_draft and self._journal.last() is None:
                        drafts.discard(self._store.fs, self._named())
            finally:
                self._journal.close()
