"""A session: one append-only tree with a leaf, where the next entry will hang.

Every append makes exactly one entry below the leaf, which becomes the new leaf; existing lines never change. An append
returns a receipt when the entry is durable, or raises. Memory never runs ahead of the journal: what a session shows is what
reopening it would show.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sessile import resume
from sessile.core import entries as make
from sessile.core import large
from sessile.core.codec import decode, encode
from sessile.core.context import LAST_ENTRY, LeafId, Live, SessionContext
from sessile.core.entries import Content, Entry, Payload
from sessile.core.ids import derived_entry_id, new_entry_id
from sessile.core.kinds import BOUNDARY, CHAIN, MARKER, State, fold, kind_of
from sessile.core.lines import Finding
from sessile.core.text import clean_name, iso_timestamp
from sessile.core.tree import NOWHERE, Node, Tree
from sessile.errors import EntryNotFound, InvalidEntry, LeafMoved, ReadOnly, TooLarge
from sessile.storage.base import News, Row
from sessile.storage.layout import artifacts_of

if TYPE_CHECKING:
    from sessile.store import Store

KEY = "sessile.key"
MAX_LINE = 8 * 1024 * 1024  # one line is one write; larger strings have gone to blobs before

OnLeafMoved = Literal["branch", "follow", "fail"]


@dataclass(frozen=True, slots=True)
class Receipt:
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


@dataclass(slots=True, repr=False)
class TreeNode:
    """An entry with its children and its label."""

    entry: Entry
    children: list[TreeNode]
    label: str | None


class Session:
    """One open session. Made by a `Store`; safe to use from many threads."""

    def __init__(self, store: Store, journal: Any, *, writable: bool, draft: bool = False, ours: bool = True) -> None:
        self.notices: list[str] = []
        self._store = store
        self._lock = threading.RLock()
        self._bind(journal, writable=writable, draft=draft, ours=ours)

    def _bind(self, journal: Any, *, writable: bool, draft: bool, ours: bool) -> None:
        self._journal = journal
        self._writable = writable
        self._draft = draft
        self._ours = ours
        self._header: Payload = decode(journal.header())
        self._labels: dict[str, str] | None = None
        self._live: Live | None = None
        self._state = State()
        self._live_findings: list[Finding] = []
        self._missing_blobs: dict[str, Finding] = {}
        self._leaf = self._resting = self._reopened_leaf()

    def _reopened_leaf(self) -> str | None:
        """The leaf that opening the journal gives: its last entry, or where a marker at its end points."""
        row = self._journal.last()
        while row is not None and row.flags & MARKER:
            if row.parent_id is None:
                return None
            row = self._journal.find(row.parent_id)
        return None if row is None else row.id

    @classmethod
    def in_memory(cls, cwd: str = "/") -> Session:
        """A session without a file."""
        from sessile.store import Store

        return Store.in_memory().create(cwd, publish=True)

    # -- what it is

    @property
    def id(self) -> str:
        return str(self._header["id"])

    @property
    def path(self) -> str:
        """The session's file; of a draft, the file that it will have."""
        return self._store.final_path(self._journal.path)

    @property
    def cwd(self) -> str:
        cwd = self._header.get("cwd")
        return cwd if isinstance(cwd, str) else ""

    @property
    def header(self) -> Payload:
        """The first line of the file, decoded."""
        return dict(self._header)

    @property
    def is_draft(self) -> bool:
        """Whether no assistant has answered yet, so that no listing shows the session."""
        return self._draft

    @property
    def readonly(self) -> bool:
        return not self._writable

    @property
    def leaf_id(self) -> str | None:
        """Where the next entry will hang; `None` is before the first."""
        return self._leaf

    @property
    def title(self) -> str | None:
        """The name that the session was given last."""
        row = self._journal.title()
        if row is not None:
            entry = self._entry(row)
            name = entry.get("name") if entry.type == "session_info" else entry.get("title")
            return name if isinstance(name, str) and name else None
        title = self._header.get("title")
        return title if isinstance(title, str) and title else None

    @property
    def artifacts(self) -> str:
        """The folder for what tools and sub-agents of this session spill. It may not exist."""
        return artifacts_of(self.path)

    @property
    def findings(self) -> Sequence[Finding]:
        """Everything in the file that is not as it should be."""
        return [*self._journal.findings(), *self._missing_blobs.values()]

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.path}>"

    # -- reading

    def _entry(self, row: Row) -> Entry:
        return Entry(row.id, row.parent_id, self._journal.read(row))

    def _body(self, row: Row) -> Payload:
        return self._resolved(self._journal.read(row))

    def _resolved(self, raw: bytes) -> Payload:
        body: Payload = decode(raw)
        if large.may_hold_refs(raw):
            body = large.resolve(body, self._store.blobs.get, self._note_missing_blob)
        return body

    def _note_missing_blob(self, digest: str) -> None:
        self._missing_blobs[digest] = Finding("missing_blob", -1, 0, f"blob {digest} is missing or damaged")

    def _row(self, entry_id: str) -> Row:
        row: Row | None = self._journal.find(entry_id)
        if row is None or row.flags & MARKER:
            raise EntryNotFound(f"Entry {entry_id} not found", path=self.path, hint="list the entries of the session")
        return row

    def iter_entries(self) -> Iterator[Entry]:
        """Every entry of the user's, in file order, one at a time."""
        return (self._entry(row) for row in self._journal.rows() if not row.flags & MARKER)

    def iter_lines(self) -> Iterator[Entry]:
        """Every entry in file order, leaf markers among them."""
        return map(self._entry, self._journal.rows())

    def get_entries(self) -> list[Entry]:
        """Every entry of the user's, in file order."""
        return list(self.iter_entries())

    def get_entry(self, entry_id: str) -> Entry | None:
        """The entry with that id; of duplicates the later."""
        row = self._journal.find(entry_id)
        return None if row is None or row.flags & MARKER else self._entry(row)

    def get_full_entry(self, entry_id: str) -> Payload:
        """The entry as it was appended: images and cut texts are put back from their blobs."""
        return large.restore(self._entry(self._row(entry_id)).body, self._store.blobs.get, self._note_missing_blob)

    def get_branch(self, from_id: str | None = None) -> list[Entry]:
        """The path from the root to an entry, or to the leaf."""
        target = self._leaf if from_id is None else from_id
        row = None if target is None else self._journal.find(target)
        if row is None:
            return []
        path = [self._entry(step) for step in self._journal.up(row) if not step.flags & MARKER]
        path.reverse()
        return path

    def get_children(self, entry_id: str | None) -> list[Entry]:
        """The entries that hang from an entry, in file order; those of `None` are the roots."""
        rows, tree = self._tree()
        number = NOWHERE if entry_id is None else tree.number(entry_id)
        return [] if number is None else [self._entry(rows[child]) for child in tree.children(number)]

    def get_heads(self) -> list[Entry]:
        """The entries without children: the tips of all branches."""
        rows, tree = self._tree()
        return [self._entry(rows[number]) for number in tree.heads()]

    def get_abandoned(self) -> list[Entry]:
        """The tips of the branches that the leaf is not on."""
        rows, tree = self._tree()
        leaf = None if self._leaf is None else tree.number(self._leaf)
        current = set() if leaf is None else set(tree.path(leaf))
        return [self._entry(rows[number]) for number in tree.heads() if number not in current]

    def get_common_ancestor(self, first_id: str, second_id: str) -> str | None:
        """The deepest entry that is on the paths of both."""
        rows, tree = self._tree()
        first, second = (tree.number(self._row(entry_id).id) for entry_id in (first_id, second_id))
        if first is None or second is None:
            return None
        ancestor = tree.common_ancestor(first, second)
        return None if ancestor == NOWHERE else rows[ancestor].id

    def get_tree(self) -> list[TreeNode]:
        """All entries as trees: roots in file order, children by time."""
        rows, tree = self._tree()
        labels = self._all_labels()
        nodes = {
            number: TreeNode(self._entry(row), [], labels.get(row.id))
            for number, row in enumerate(rows)
            if not row.flags & MARKER
        }
        for number, node in nodes.items():
            children = [nodes[child] for child in tree.children(number)]
            if len(children) > 1:
                children.sort(key=lambda child: child.entry.timestamp or "")
            node.children = children
        return [nodes[number] for number in tree.children(NOWHERE)]

    def _tree(self) -> tuple[list[Row], Tree]:
        rows = list(self._journal.rows())
        return rows, Tree(Node(row.id, row.parent_id, row.flags) for row in rows)

    def get_label(self, entry_id: str) -> str | None:
        """The label that an entry was given last."""
        return self._all_labels().get(entry_id)

    def _all_labels(self) -> dict[str, str]:
        with self._lock:
            if self._labels is None:
                self._labels = {}
                for row in self._journal.labels():
                    self._apply_label(self._entry(row))
            return self._labels

    def _apply_label(self, entry: Mapping[str, Any]) -> None:
        if self._labels is not None:
            target, text = entry.get("targetId"), entry.get("label")
            if isinstance(target, str):
                self._labels.pop(target, None)
                if isinstance(text, str) and text:
                    self._labels[target] = text

    # -- the context

    def context(self, leaf_id: LeafId = LAST_ENTRY, *, bridge: bool = False) -> SessionContext:
        """What the model sees at the leaf, or at any entry. With `bridge`, missing parents do not end the history."""
        with self._lock:
            at = self._leaf if not isinstance(leaf_id, str | None) else leaf_id
            if at is None:
                return SessionContext()
            if bridge:
                return SessionContext.at(*resume.bridged_at(self._journal, self._row(at), self._body))
            if at != self._leaf:
                return SessionContext.at(*resume.live_at(self._journal, self._row(at), self._body))
            if self._live is None:
                found = resume.live_at(self._journal, self._row(at), self._body)
                self._state, self._live, self._live_findings = found
            return SessionContext.at(self._state, self._live, self._live_findings)

    def build_session_context(self, leaf_id: LeafId = LAST_ENTRY) -> SessionContext:
        """The context under the name that the documents use."""
        return self.context(leaf_id)

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
                    raise self._leaf_moved(parent)
                parent, moved = self._leaf, False
            ids = self._ids(len(payloads), key)
            if key is not None:
                present = self._present(ids, key)
                if present:
                    return present
            batch = _Batch(self, payloads, ids, key, parent, on_leaf_moved, moved)
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

    def _leaf_moved(self, parent: str | None) -> LeafMoved:
        return LeafMoved(
            f"another writer has appended below {parent or 'the root'}",
            path=self.path,
            hint="look at what is new, then append again",
        )

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

    def _encode(self, payload: Payload, entry_id: str, parent_id: str | None, timestamp: str) -> bytes:
        entry = make.with_base(payload, entry_id, parent_id, timestamp)
        line = encode(entry)
        if large.may_be_large(line):
            line = encode(large.shrink(entry, lambda data: self._store.blobs.put(data).hash))
            if len(line) > MAX_LINE:
                raise TooLarge(
                    f"an entry of {len(line)} bytes is over the limit of {MAX_LINE}",
                    path=self.path,
                    hint="store large data as artifacts and append where it lies",
                )
        return line

    def _follow(self, batch: _Batch) -> None:
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
            self._journal.replace(lambda raw: self._edited(raw, edit), keep=kept)
            self._live = self._labels = None
            return kept

    def _edited(self, raw: bytes, edit: Callable[[Entry], Mapping[str, Any] | None]) -> bytes | None:
        body = decode(raw)
        if body.get("type") == "session" or not isinstance(body.get("id"), str):
            return None
        new = edit(Entry(body["id"], body.get("parentId"), raw, body))
        if new is None:
            return None
        same = all(new.get(name) == body.get(name) for name in ("id", "parentId", "type"))
        if not same:
            raise InvalidEntry(f"entry {body['id']} must keep its id, type and parent when it is rewritten")
        return encode(large.shrink(dict(new), lambda data: self._store.blobs.put(data).hash))

    def rewrite_tool_call(self, call_id: str, arguments: Mapping[str, Any]) -> str | None:
        """Replace the arguments of a tool call, wherever it stands; gives the path of the file as it was."""
        found = False

        def edit(entry: Entry) -> Mapping[str, Any] | None:
            nonlocal found
            message = entry.get("message")
            if not isinstance(message, Mapping):
                return None
            content = message.get("content")
            if not isinstance(content, list) or not any(_is_call(block, call_id) for block in content):
                return None
            found = True
            blocks = [{**b, "arguments": dict(arguments)} if _is_call(b, call_id) else b for b in content]
            return {**entry.body, "message": {**message, "content": blocks}}

        with self._lock:
            quoted = encode({"id": call_id})[1:-1]
            if not any(quoted in entry.raw for entry in self.iter_entries()):
                raise EntryNotFound(f"there is no tool call {call_id}", path=self.path)
            kept = self.rewrite_entries(edit)
            if not found:
                raise EntryNotFound(f"there is no tool call {call_id}", path=self.path)
            return kept

    def move_to(self, cwd: str) -> None:
        """Move the session, with its artifacts, to another project."""
        with self._lock:
            self._check_writable()
            if cwd != self.cwd:
                previous = [*self._header.get("previousSessionFiles", ()), self.path]
                self._rewrite_header(cwd=cwd, previousSessionFiles=previous)
                self._store.relocate(self._journal, cwd)

    # -- other sessions

    def new_session(self, parent_session: str | None = None) -> Session:
        """A new, empty session in the same project."""
        return self._store.create(self.cwd, parent_session=parent_session)

    def fork(self) -> Session:
        """A copy of the whole session, all branches and artifacts, as a session of its own at the same leaf."""
        return self._store.copy_session(self, self.cwd, leaf=self._leaf)

    def create_branched_session(self, leaf_id: str) -> Session:
        """The path to an entry as a session of its own."""
        return self._store.branch_off(self, self.get_branch(self._row(leaf_id).id), self._all_labels())

    def set_session_file(self, path: str) -> None:
        """Leave this session as it is and go on in another file."""
        with self._lock:
            other = self._store.open(path)
            try:
                self.close()
            finally:
                self._bind(other._journal, writable=other._writable, draft=other._draft, ours=other._ours)

    # -- durability

    def publish(self) -> None:
        """Show a draft in listings before an assistant has answered."""
        with self._lock:
            if self._draft:
                self._store.publish(self._journal)
                self._draft = False

    def flush(self) -> None:
        """Make everything durable that was appended."""
        if self._writable:
            self._journal.flush()

    def reopen(self) -> None:
        """Begin anew from the file after a failure."""
        with self._lock:
            self._journal.reopen()
            self._bind(self._journal, writable=self._writable, draft=self._draft, ours=self._ours)

    def close(self) -> None:
        """Store the leaf if need be, free the file, then raise the first error that appending met."""
        with self._lock:
            try:
                if self._writable and not self._journal.failed:
                    self._mark_leaf()
            finally:
                self._journal.close()


class _Batch:
    """Entries on their way into the journal, encoded for one parent; encoded again if the parent changes."""

    def __init__(
        self,
        session: Session,
        payloads: list[Payload],
        ids: list[str],
        key: str | None,
        parent: str | None,
        on_leaf_moved: OnLeafMoved,
        diverged: bool,
    ) -> None:
        self.payloads = payloads if key is None else [{**payload, KEY: key} for payload in payloads]
        self.ids = ids
        self.diverged = diverged
        self.others = False
        self._session = session
        self._on_leaf_moved = on_leaf_moved
        self._timestamp = session._now()
        self._key = key
        self._set_parent(parent)

    def _set_parent(self, parent: str | None) -> None:
        self.parent = parent
        parents = [parent, *self.ids]
        self.lines = [
            self._session._encode(payload, entry_id, parent_id, self._timestamp)
            for payload, entry_id, parent_id in zip(self.payloads, self.ids, parents, strict=False)
        ]

    def revise(self, news: News) -> Sequence[bytes]:
        """Others have appended: find out whether below our parent, and do as the caller wished."""
        self.others = True
        if self._key is not None and any(row.id == self.ids[0] for row in news.rows()):
            return ()
        if self.parent is not None and not news.child_of(self.parent):
            return self.lines
        below = _below(self.parent, news.rows())
        if below is None:
            return self.lines
        if self._on_leaf_moved == "fail":
            raise self._session._leaf_moved(self.parent)
        if self._on_leaf_moved == "follow":
            self._set_parent(below)
        else:
            self.diverged = True
        return self.lines


def _below(parent: str | None, rows: Sequence[Row]) -> str | None:
    """The last of the new entries that descends from `parent`, directly or through a leaf marker."""
    line: set[str | None] = {parent}
    last = None
    for row in rows:
        if row.parent_id in line:
            line.add(row.id)
            if row.flags & CHAIN:
                last = row.id
    return last


def _is_answer(payload: Payload) -> bool:
    message = payload.get("message")
    return isinstance(message, Mapping) and message.get("role") == "assistant"


def _is_call(block: object, call_id: str) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "toolCall" and block.get("id") == call_id
