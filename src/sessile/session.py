"""A session: one append-only tree with a leaf, where the next entry will hang.

Every append makes exactly one entry below the leaf, which becomes the new leaf; existing lines never change. An append
returns a receipt when the entry is durable, or raises. Memory never runs ahead of the journal: what a session shows is what
reopening it would show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sessile import transfer
from sessile.batch import KEY, Batch, OnLeafMoved, Receipt, leaf_moved
from sessile.core import entries as make
from sessile.core.codec import encode
from sessile.core.context import LAST_ENTRY, LeafId
from sessile.core.entries import Content, Entry, Payload
from sessile.core.ids import derived_entry_id, new_entry_id
from sessile.core.kinds import BOUNDARY, fold, kind_of
from sessile.core.text import clean_name, iso_timestamp
from sessile.errors import EntryNotFound, InvalidEntry, ReadOnly
from sessile.rewriting import ToolCallRewrite, rewritten
from sessile.storage import drafts
from sessile.view import SessionView

if TYPE_CHECKING:
    from sessile.store import Store


class Session(SessionView):
    """One open session. Made by a `Store`; safe to use from many threads."""

    def __init__(self, store: Store, journal: Any, *, writable: bool, draft: bool = False, ours: bool = True) -> None:
        super().__init__(journal, store.blobs)
        self.notices: list[str] = []
        self._store = store
        self._writable = writable
        self._draft = draft
        self._ours = ours

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
        return self._draft

    @property
    def readonly(self) -> bool:
        return not self._writable

    # -- appending

    def append_message(self, message: Payload) -> Receipt:
        """Append a user, assistant, tool result or other message."""
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidEntry("a message is a dict with a role", path=self.path)
        return self._append(make.message(message))

    def append_thinking_level_change(self, level: str | None) -> Receipt:
        return self._append(make.thinking_level_change(level))

    def append_model_change(self, model: str, role: str | None = None) -> Receipt:
        """`model` is "provider/id"; without a role it is the default model."""
        return self._append(make.model_change(model, role))

    def append_compaction(
        self,
        summary: str,
        first_kept_entry_id: str | None,
        tokens_before: int,
        *,
        short_summary: str | None = None,
        details: Any = None,
        from_extension: bool | None = None,
        preserve_data: Any = None,
    ) -> Receipt:
        """From here on the model sees the summary, the entries from the first kept one, and what follows."""
        payload = make.compaction(
            summary,
            first_kept_entry_id,
            tokens_before,
            short_summary=short_summary,
            details=details,
            from_extension=from_extension,
            preserve_data=preserve_data,
        )
        return self._append(payload)

    def append_custom_entry(self, custom_type: str, data: Any = None) -> Receipt:
        """An extension's own data; not in the context."""
        return self._append(make.custom(custom_type, data))

    def append_custom_message_entry(
        self, custom_type: str, content: Content, display: bool = True, details: Any = None, attribution: str = "agent"
    ) -> Receipt:
        """An extension's message; in the context, shown to people only if `display` is true."""
        return self._append(make.custom_message(custom_type, content, display, details, attribution))

    def append_label_change(self, target_id: str, label: str | None) -> Receipt:
        """Name an entry; `None` takes the name away."""
        self._row(target_id)
        return self._append(make.label(target_id, label))

    def append_mode_change(self, mode: str, data: Any = None) -> Receipt:
        return self._append(make.mode_change(mode, data))

    def append_ttsr_injection(self, injected_rules: Sequence[str]) -> Receipt:
        return self._append(make.ttsr_injection(injected_rules))

    def append_session_init(
        self, system_prompt: str, task: str, tools: Sequence[str], output_schema: Any = None
    ) -> Receipt:
        return self._append(make.session_init(system_prompt, task, tools, output_schema))

    def append_context_edit(self, target_id: str, content: Content | None) -> Receipt:
        """Change what an entry puts into the context, or with `None` take it out; the entry itself stays."""
        self._row(target_id)
        return self._append(make.context_edit(target_id, content))

    def append_reset_boundary(self) -> Receipt:
        """From here on the model sees only what follows."""
        return self._append(make.reset_boundary())

    def _append(self, payload: Payload) -> Receipt:
        return self.append_many((payload,))[0]

    def append_many(
        self,
        entries: Iterable[Payload],
        expected_leaf: LeafId = LAST_ENTRY,
        key: str | None = None,
        on_leaf_moved: OnLeafMoved = "branch",
    ) -> list[Receipt]:
        """Append entries (each a dict with `type` and its members) as a chain, with one sync.

        They hang from `expected_leaf`, if given, else from the leaf. If another writer has appended there meanwhile,
        `on_leaf_moved` decides: a branch of their own, below the other writer's entries, or not at all. With a `key` the
        call can be repeated: entries that were appended under that key are not appended again.
        """
        payloads = [self._checked(payload) for payload in entries]
        if not payloads:
            return []
        with self._lock:
            self._check_writable()
            parent = expected_leaf if isinstance(expected_leaf, str | None) else self._leaf
            moved = parent != self._leaf
            if moved and on_leaf_moved != "branch":
                if on_leaf_moved == "fail":
                    raise leaf_moved(parent, self.path)
                parent, moved = self._leaf, False
            ids = self._ids(len(payloads), key)
            if key is not None:
                present = self._present(ids, key)
                if present:
                    return present
            batch = Batch(payloads, ids, key, parent, self._now(), self._put, on_leaf_moved, moved)
            appended = self._journal.append(batch.lines, batch.revise)
            if not appended.positions:
                return self._present(ids, key or "")
            self._follow(batch)
        self._journal.commit(appended.mark)
        if self._draft and any(_is_answer(payload) for payload in payloads):
            self.publish()
        durability = self._store.durability
        parents = [batch.parent, *ids]
        return [
            Receipt(entry_id, parents[i], self.path, appended.positions[i], durability, batch.diverged)
            for i, entry_id in enumerate(ids)
        ]

    def _checked(self, payload: Payload) -> Payload:
        entry_type = payload.get("type") if isinstance(payload, dict) else None
        if not isinstance(entry_type, str) or entry_type in ("", "session", "title"):
            raise InvalidEntry("an entry is a dict with a type", path=self.path, hint="the header is no entry")
        return payload

    def _check_writable(self) -> None:
        if not self._writable:
            raise ReadOnly(path=self.path, hint="open it for writing, or fork it")

    def _ids(self, count: int, key: str | None) -> list[str]:
        if key is not None:
            return [derived_entry_id(self.id, key, number) for number in range(count)]
        return [new_entry_id(self._store.random) for _ in range(count)]

    def _present(self, ids: Sequence[str], key: str) -> list[Receipt]:
        """Receipts of the entries that an earlier call with the same key has appended."""
        rows = [row for entry_id in ids if (row := self._journal.find(entry_id)) is not None]
        if rows and self._entry(rows[0]).get(KEY) != key:
            raise InvalidEntry(f"the key {key!r} gives an id that another entry has", hint="use another key")
        durability = self._store.durability
        return [Receipt(r.id, r.parent_id, self.path, r.position, durability, repeated=True) for r in rows]

    def _follow(self, batch: Batch) -> None:
        """Bring what is known in memory up to what was just written."""
        if batch.parent != self._leaf:
            self._live = None
        for line, payload in zip(batch.lines, batch.payloads, strict=True):
            kind = kind_of(payload["type"])
            if payload["type"] == "label":
                self._apply_label(payload)
            if kind.flags & BOUNDARY:
                self._live = None
            elif self._live is not None:
                body = self._resolved(line)
                self._live.add(body)
                self._state = fold(self._state, body)
        if batch.others:
            self._labels = None
        self._leaf = self._resting = batch.ids[-1]

    # -- moving the leaf

    def branch(self, entry_id: str, *, durable: bool = False) -> None:
        """Move the leaf to an earlier entry: the next append begins a branch there."""
        self._move_leaf(self._row(entry_id).id, durable)

    def reset_leaf(self, *, durable: bool = False) -> None:
        """Move the leaf before the first entry: the next append begins a new root."""
        self._move_leaf(None, durable)

    def _move_leaf(self, leaf: str | None, durable: bool) -> None:
        with self._lock:
            if leaf != self._leaf:
                self._leaf, self._live = leaf, None
            if durable:
                self._check_writable()
                self._mark_leaf()

    def branch_with_summary(
        self, entry_id: str | None, summary: str, details: Any = None, from_extension: bool | None = None
    ) -> Receipt:
        """Move the leaf and append what was learned on the branch that is left."""
        with self._lock:
            self._check_writable()
            self._move_leaf(None if entry_id is None else self._row(entry_id).id, durable=False)
            return self._append(make.branch_summary(entry_id or make.ROOT, summary, details, from_extension))

    def _mark_leaf(self) -> None:
        """Store the leaf for the next one who opens, unless the journal gives it anyway or others went on."""
        if self._leaf == self._resting or not self._ours:
            return
        marker = make.with_base(make.leaf_marker(), self._ids(1, None)[0], self._leaf, self._now())
        appended = self._journal.append([encode(marker)], lambda news: ())
        self._journal.commit(appended.mark)
        if appended.positions:
            self._resting = self._leaf

    def _put(self, data: bytes) -> str:
        return self._blobs.put(data).hash

    def _now(self) -> str:
        return iso_timestamp(self._store.now())

    # -- names, rewriting, moving

    def set_session_name(self, name: str, source: Literal["user", "auto"] = "user") -> bool:
        """Name the session; an automatic name never replaces one that a person gave. Says whether it was set."""
        name = clean_name(name)
        with self._lock:
            if not name or (source == "auto" and self._header.get("titleSource") == "user"):
                return False
            previous = self.title
            self._append(make.session_info(name, previous))
            if self._ours:
                self._rewrite_header(title=name, titleSource=source)
            else:
                self._header |= {"titleSource": source}
            return True

    def _rewrite_header(self, **members: Any) -> None:
        header = {**self._header, **members}
        old = self._journal.header()
        self._journal.replace(lambda raw: encode(header) if raw == old else None)
        self._header = header

    def rewrite_entries(self, edit: Callable[[Entry], Mapping[str, Any] | None]) -> str | None:
        """Put what `edit` returns in place of entries; `None` leaves one as it is, byte for byte.

        The file as it was stays in the store's `originals`; its path is returned. Ids and parents cannot be changed.
        """
        with self._lock:
            self._check_writable()
            kept = self._store.original_path(self._journal.path)
            self._journal.replace(lambda raw: rewritten(raw, edit, self._put), keep=kept)
            self._live = self._labels = None
            return kept

    def rewrite_tool_call(self, call_id: str, arguments: Mapping[str, Any]) -> str | None:
        """Replace the arguments of a tool call, wherever it stands; gives the path of the file as it was."""
        with self._lock:
            rewrite = ToolCallRewrite(call_id, arguments)
            if not any(rewrite.concerns(entry) for entry in self.iter_entries()):
                raise EntryNotFound(f"there is no tool call {call_id}", path=self.path)
            return self.rewrite_entries(rewrite)

    def move_to(self, cwd: str) -> None:
        """Move the session, with its artifacts, to another project."""
        with self._lock:
            self._check_writable()
            if cwd != self.cwd:
                previous = [*self._header.get("previousSessionFiles", ()), self.path]
                self._rewrite_header(cwd=cwd, previousSessionFiles=previous)
                transfer.relocate(self._store, self._journal, cwd)
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
        return transfer.branch_off(self._store, self, self._row(leaf_id).id)

    def set_session_file(self, path: str) -> None:
        """Leave this session as it is and go on in another file."""
        with self._lock:
            other = self._store.open(path)
            try:
                self.close()
            finally:
                self._look_at(other._journal)
                self._writable, self._draft, self._ours = other._writable, other._draft, other._ours

    # -- durability

    def publish(self) -> None:
        """Show a draft in listings before an assistant has answered."""
        with self._lock:
            if self._draft:
                drafts.publish(self._journal)
                self._draft = False

    def flush(self) -> None:
        """Make everything durable that was appended."""
        if self._writable:
            self._journal.flush()

    def reopen(self) -> None:
        """Begin anew from the file after a failure."""
        with self._lock:
            self._journal.reopen()
            self._look_at(self._journal)

    def close(self) -> None:
        """Store the leaf if need be, free the file, then raise the first error that appending met."""
        with self._lock:
            try:
                if self._writable and not self._journal.failed:
                    self._mark_leaf()
                    if self._draft and self._journal.last() is None:
                        drafts.discard(self._store.fs, self._journal)
            finally:
                self._journal.close()


def _is_answer(payload: Payload) -> bool:
    message = payload.get("message")
    return isinstance(message, Mapping) and message.get("role") == "assistant"
