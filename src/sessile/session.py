"""A session: one append-only tree of entries with a leaf, under which the next entry is appended.

`SessionView` is the reading half: entries, tree, labels and the context at any entry. It needs only a journal. `Session` adds
everything that writes; a `Store` creates and opens sessions.

Rules:

- An append adds entries below the leaf, and the last one becomes the new leaf. It returns receipts once the entries are
  durable, or raises. Existing lines never change, except through the `rewrite_*` methods, which keep the file as it was.
- Memory never runs ahead of the journal: a session shows exactly what opening its file again would show.
- Bodies are decoded when they are read. Questions about the whole tree read ids and flags only, and the context reads no
  further back than the first entry that the last compaction kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from sessile import fork
from sessile.core import entries as make
from sessile.core import large
from sessile.core.codec import Plain, decode, encode, encode_plain, plain
from sessile.core.context import (
    LAST_ENTRY,
    LeafId,
    Live,
    SessionContext,
    first_kept,
    fold_path,
    live_part,
    missing_parent,
)
from sessile.core.digest import spoken, title_of
from sessile.core.entries import Content, Entry, Payload, Restore, with_base
from sessile.core.ids import derived_entry_id, new_entry_id
from sessile.core.kinds import BOUNDARY, CHAIN, LEAF_MARKER, MARKER, MARKERS, TAG, TITLE, State, fold, kind_of
from sessile.core.lines import MAX_LINE as MAX_READ
from sessile.core.lines import Finding
from sessile.core.messages.request import folded
from sessile.core.text import clean_name, clean_tag, iso_timestamp, parse_timestamp
from sessile.core.tree import NOWHERE, Tree
from sessile.core.visible import html_fields, visible_line
from sessile.errors import (
    EntryNotFound,
    Invalid,
    InvalidEntry,
    LeafMoved,
    ReadOnly,
    SessileError,
    TooLarge,
    Unsupported,
)
from sessile.render.outline import EVERYTHING, Only, OutlineRow, RunCounts, outline
from sessile.render.shown import Call, Shown, show
from sessile.storage import drafts
from sessile.storage.base import NATIVE, Blobs, Journal, News, OwnJournal, ReadableJournal, Row
from sessile.storage.layout import DRAFT, artifacts_of

if TYPE_CHECKING:
    from sessile.agents.reader import ForeignReader
    from sessile.core.messages.neutral import MessageLike
    from sessile.store import Store

KEY = "sessile.key"  # the member of an entry that holds its idempotency key
MAX_LINE = 8 * 1024 * 1024  # bytes of one line, which is one write; larger strings are moved to blobs before
_READ_AT_ONCE = 64  # lines that `iter_lines` reads at once

OnLeafMoved = Literal["branch", "follow", "fail"]
ON_LEAF_MOVED = get_args(OnLeafMoved)

Edit = Callable[[Entry], Mapping[str, Any] | None]
"""Returns the new members of an entry, or `None` to leave it as it is."""


class Receipt(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Proof that an entry is durable, and where it is.

    Attributes:
        id: The id of the entry.
        parent_id: The id of its parent; `None` for a root.
        path: The file that holds it.
        position: Its position in the journal. Opaque: in files it is an offset in bytes.
        durability: What the entry survives: "power" (a power cut) or "process" (the death of the process).
        diverged: Whether another writer appended below the same parent.
        repeated: Whether an earlier call with the same key had appended the entry already.

    Example:
        ```python
        receipt = session.append_message({"role": "user", "content": "hello"})
        session.branch(receipt.id)
        ```
    """

    id: str
    parent_id: str | None
    path: str
    position: Any
    durability: str
    diverged: bool = False
    repeated: bool = False


class TreeNode:
    """An entry with its children and its label, as `Session.get_tree` returns it.

    Attributes:
        entry (Entry): The entry.
        children (list[TreeNode]): The nodes below it, oldest first.
        label (str | None): The entry's current label.

    Example:
        ```python
        for root in session.get_tree():
            print(root.entry.id, len(root.children), root.label)
        ```
    """

    __slots__ = ("children", "entry", "label")

    def __init__(self, entry: Entry, children: list[TreeNode], label: str | None) -> None:
        self.entry = entry
        self.children = children
        self.label = label

    def __repr__(self) -> str:
        label = "" if self.label is None else f" {_short(self.label)!r}"
        return visible_line(f"<TreeNode {self.entry.id}{label} children={len(self.children)}>")


class SessionView:
    """The reading half of a session: a journal, and the leaf at which it is read.

    Args:
        journal: The journal to read. It is closed if it cannot be read.
        blobs: Where large content of the entries is stored.
        findings: Problems that were found while the journal was made from a file of an older version.
    """

    def __init__(self, journal: ReadableJournal, blobs: Blobs, findings: Sequence[Finding] = ()) -> None:
        self._lock = threading.RLock()
        self._blobs = blobs
        self._earlier_findings = findings
        try:
            self._show(journal)
        except BaseException:
            journal.close()
            raise

    def _show(self, journal: ReadableJournal) -> None:
        """Show a journal from its beginning."""
        self._journal = journal
        self._header: Payload = decode(journal.header())
        self._live: Live | None = None
        self._live_findings: list[Finding] = []
        self._state = State()
        self._missing_blobs: dict[str, Finding] = {}
        self._restore = _restoring(self._blobs, self._missing_blobs)
        self._markers: dict[str, str | None] = {}  # leaf markers that others may append to, and the leaf of each
        self._leaf = self._stored_leaf = self._leaf_at(journal.last())

    def _leaf_at(self, row: Row | None) -> str | None:
        """The leaf of a journal that ends with `row`: that entry, or what a marker at the end points to."""
        if row is None or not row.flags & MARKER:
            return None if row is None else row.id
        trail = list(takewhile(lambda step: step.flags & MARKER, self._journal.up(row)))
        leaf = trail[-1].parent_id or None
        if leaf is not None and (self._journal.find(leaf) is None or any(step.id == leaf for step in trail)):
            # The entry that the marker points to is gone: the last entry is better than none.
            leaf = next((entry.id for entry in reversed(self.get_entries())), None)
        self._markers |= dict.fromkeys((step.id for step in trail), leaf)
        return leaf

    def __repr__(self) -> str:
        title = self._header.get("title")
        shown = f" {_short(title)!r}" if isinstance(title, str) and title else ""
        name = f"{type(self).__name__} {self.id}{shown} leaf={self._leaf} path={self.path!r}{self._remarks()}"
        return visible_line(f"<{name}>")

    def _remarks(self) -> str:
        return ""

    def _repr_html_(self) -> str:
        return html_fields(
            type(self).__name__,
            {
                "title": self.title,
                "id": self.id,
                "project": self.cwd,
                "file": self.path,
                "format": self.format,
                "entries": f"{self.count_entries():,}",
                "leaf": self.leaf_id,
                "findings": f"{len(self.findings):,}" if self.findings else None,
            },
        )

    # -- what it is

    @property
    def id(self) -> str:
        """The session id."""
        return str(self._header["id"])

    @property
    def path(self) -> str:
        """The path of the session's file. It changes once, when a draft is published; both paths open the session then."""
        return self._journal.path

    @property
    def cwd(self) -> str:
        """The project: the working folder that the session was created for; empty if unknown."""
        cwd = self._header.get("cwd")
        return cwd if isinstance(cwd, str) else ""

    @property
    def header(self) -> Payload:
        """The decoded header line. A title line before it (as oh-my-pi writes it) is merged into it."""
        slot = self._title_slot()
        if not slot:
            return dict(self._header)
        named = {"title": slot.get("title") or None, "titleSource": slot.get("source")}
        header = {name: value for name, value in self._header.items() if name not in named}
        return header | {name: value for name, value in named.items() if value is not None}

    def _title_slot(self) -> Payload:
        """The decoded title line before the header; empty if there is none."""
        line = self._journal.slot()
        return {} if line is None else decode(line)

    @property
    def leaf_id(self) -> str | None:
        """The id of the entry below which the next entry is appended; `None` is before the first entry."""
        return self._leaf

    @property
    def title(self) -> str | None:
        """The current title; `None` if the session has none."""
        row = self._journal.title()
        if row is not None:
            entry = self._entry(row).stored
            name = entry.get("name") if entry["type"] == "session_info" else entry.get("title")
            return name if isinstance(name, str) and name else None
        title = self.header.get("title")
        return title if isinstance(title, str) and title else None

    @property
    def first_text(self) -> str | None:
        """The beginning of the first message of the user on one line; `None` if there is none near the start."""
        for entry in islice(self.iter_entries(), _FIRST_ENTRIES):
            message = entry.stored.get("message")
            if isinstance(message, dict) and message.get("role") == "user" and (text := spoken(message.get("content"))):
                return text
        return None

    @property
    def shown_title(self) -> str:
        """The title as listings show it: the title, else the beginning of the first prompt, else "(no title)"."""
        title = self.title
        return title_of(title, None if title else self.first_text)

    @property
    def title_source(self) -> str | None:
        """Who set the title: "user" or "auto"; `None` if there is no title or the source is unknown."""
        row = self._journal.title()
        source = self.header.get("titleSource") if row is None else self._entry(row).stored.get("source", "user")
        return source if isinstance(source, str) and self.title else None

    @property
    def tag(self) -> str | None:
        """The current tag, set on any branch; `None` if there is none."""
        for row in reversed([row for row in self._journal.rows() if row.flags in (CHAIN, MARKER)]):
            entry = self._entry(row).stored
            custom = entry.get("data") if row.flags & MARKER else entry  # a marker wraps the row it was made from
            if isinstance(custom, dict) and custom.get("customType") in (TAG, "claude.tag"):
                data = custom.get("data")
                tag = data.get("tag") if isinstance(data, dict) else None
                return tag if isinstance(tag, str) and tag else None
        return None

    @property
    def format(self) -> str:
        """The format of the session's file: "native", or the name of another agent's format, such as "claude"."""
        reader = self._foreign_reader()
        return NATIVE if reader is None else reader.format.name

    @property
    def artifacts(self) -> str:
        """The path of the folder for files of the session's tools and sub-agents. It may not exist."""
        return artifacts_of(self.path)

    @property
    def findings(self) -> Sequence[Finding]:
        """Everything in the file that could not be read or is not valid."""
        return [*self._earlier_findings, *self._journal.findings(), *self._missing_blobs.values()]

    def get_gaps(self) -> list[tuple[str | None, str]]:
        """Return what could not be read, in file order.

        Returns:
            Pairs of the id of the entry before the gap (`None` at the beginning of the file) and a description.
        """
        places = sorted((finding for finding in self.findings if finding.offset >= 0), key=lambda found: found.offset)
        return [(self._journal.entry_before(finding.offset), finding.detail) for finding in places]

    # -- entries

    def iter_entries(self) -> Iterator[Entry]:
        """Yield all entries of all branches, in file order. Leaf markers are left out."""
        return (self._entry(row) for row in self._journal.rows() if not row.flags & MARKER)

    def get_entries(self) -> list[Entry]:
        """Return all entries of all branches, in file order. Leaf markers are left out."""
        return list(self.iter_entries())

    def iter_lines(self, start: int = 0) -> Iterator[Entry]:
        """Yield every entry line in file order, including leaf markers.

        Args:
            start: The number of lines to skip.
        """
        rows = self._journal.rows(start)
        while batch := list(islice(rows, _READ_AT_ONCE)):
            yield from self.read_rows(batch)

    def get_entry(self, entry_id: str) -> Entry | None:
        """Return the entry with this id, or `None`. If two entries have the same id, the later one counts."""
        row = self._journal.find(entry_id)
        return None if row is None or row.flags & MARKER else self._entry(row)

    def get_full_entry(self, entry_id: str) -> Payload:
        """Return an entry as it was appended, with images and large texts restored from their blobs.

        This is `get_entry(entry_id).body`, read at once.

        Raises:
            EntryNotFound: There is no such entry.
        """
        return self._entry(self._row(entry_id)).body

    def blob_pieces(self, digest: str) -> Iterator[bytes]:
        """Yield the bytes of a blob that an entry refers to, in pieces.

        Args:
            digest: The SHA-256 hash of the blob, in hexadecimal.
        """
        return self._blobs.pieces(digest)

    def count_entries(self) -> int:
        """Return the number of entries on all branches."""
        return self._journal.count()

    # -- rows: entries that are not read yet, for programs that look at large sessions

    def iter_rows(self, start: int = 0) -> Iterator[Row]:
        """Yield the row (id, parent, flags, position) of every line in file order, without reading the line.

        Args:
            start: The number of rows to skip.
        """
        return self._journal.rows(start)

    def walk_up(self, from_id: str | None = None, *, bridge: bool = False) -> Iterator[Row]:
        """Yield the rows from an entry up to its root, without reading them; leaf markers are included.

        Args:
            from_id: Where to start; the leaf if `None`.
            bridge: Continue at the nearest earlier entry where a parent is missing, as `context` does.
        """
        start = self._leaf if from_id is None else from_id
        row = None if start is None else self._journal.find(start)
        if row is None:
            return iter(())
        return iter(_bridged_path(self._journal, row)[0]) if bridge else self._journal.up(row)

    def read_row(self, row: Row) -> Payload:
        """Return the entry of a row with its long texts, but with references to images: `Entry.readable`."""
        return self._entry(row).readable

    def read_rows(self, rows: Sequence[Row]) -> Iterator[Entry]:
        """Yield the entries of some rows. Adjacent lines are read at once."""
        lines = zip(rows, self._journal.read_many(rows), strict=True)
        return (Entry(row.id, row.parent_id, raw, None, self._restore) for row, raw in lines)

    # -- the tree

    def get_branch(self, from_id: str | None = None) -> list[Entry]:
        """Return the path from the root to an entry.

        Args:
            from_id: The last entry of the path; the leaf if `None`.
        """
        return list(self.iter_branch(from_id))

    def iter_branch(self, from_id: str | None = None) -> Iterator[Entry]:
        """Yield the path from the root to an entry, or to the leaf, one entry at a time."""
        rows = self._rows_to(self._leaf if from_id is None else from_id)
        return (self._entry(row) for row in rows if not row.flags & MARKER)

    def get_children(self, entry_id: str | None) -> list[Entry]:
        """Return the direct children of an entry, in file order; the roots if `entry_id` is `None`."""
        rows, tree = self._tree()
        number = NOWHERE if entry_id is None else tree.number(entry_id)
        return [] if number is None else [self._entry(rows[child]) for child in tree.children(number)]

    def get_heads(self) -> list[Entry]:
        """Return the entries without children: the last entry of every branch."""
        rows, tree = self._tree()
        return [self._entry(rows[number]) for number in tree.heads()]

    def get_abandoned(self) -> list[Entry]:
        """Return the heads of the branches that the leaf is not on."""
        rows, tree = self._tree()
        leaf = None if self._leaf is None else tree.number(self._leaf)
        current = set() if leaf is None else set(tree.path(leaf))
        return [self._entry(rows[number]) for number in tree.heads() if number not in current]

    def get_common_ancestor(self, first_id: str, second_id: str) -> str | None:
        """Return the id of the deepest entry on the paths to both entries; `None` if they have different roots.

        Raises:
            EntryNotFound: One of the entries does not exist.
        """
        rows, tree = self._tree()
        first, second = (tree.number(self._row(entry_id).id) for entry_id in (first_id, second_id))
        if first is None or second is None:
            return None
        ancestor = tree.common_ancestor(first, second)
        return None if ancestor == NOWHERE else rows[ancestor].id

    def get_tree(self) -> list[TreeNode]:
        """Return all entries as trees: roots in file order, children by time."""
        rows, tree = self._tree()
        labels = self._journal.labels()
        nodes = {
            number: TreeNode(self._entry(row), [], labels.get(row.id))
            for number, row in enumerate(rows)
            if not row.flags & MARKER
        }
        for number, node in nodes.items():
            children = [nodes[child] for child in tree.children(number)]
            if len(children) > 1:
                children.sort(key=lambda child: parse_timestamp(child.entry.get("timestamp")) or 0)
            node.children = children
        return [nodes[number] for number in tree.children(NOWHERE)]

    def get_label(self, entry_id: str) -> str | None:
        """Return the current label of an entry, or `None`."""
        return self._journal.labels().get(entry_id)

    def get_labels(self) -> Mapping[str, str]:
        """Return the labels of all labelled entries, by entry id; the most recent label comes last."""
        return self._journal.labels()

    def get_outline(self, *, only: Collection[Only] | None = None, full: bool = False) -> list[OutlineRow]:
        """Return the branches of the session for display.

        Args:
            only: The kinds of entries to show; all if `None`.
            full: Show every entry, instead of collapsing straight runs.
        """
        return list(self.iter_outline(only=only, full=full))

    def iter_outline(self, *, only: Collection[Only] | None = None, full: bool = False) -> Iterator[OutlineRow]:
        """Yield the rows of `get_outline` one at a time."""
        rows, tree = self._tree()
        read = lambda number: self._entry(rows[number]).stored  # noqa: E731
        return _outlined(tree, read, self._leaf, self.get_labels(), only, full)

    # -- the context

    def context(self, leaf_id: LeafId = LAST_ENTRY, *, bridge: bool = False) -> SessionContext:
        """Return what the model sees at the leaf, or at any other entry.

        Args:
            leaf_id: The entry at which the context ends; `None` is before the first entry.
            bridge: Continue at the nearest earlier entry where a parent is missing, instead of ending the history there.

        Returns:
            The messages and the state (models, thinking level, mode) of the path.

        Raises:
            EntryNotFound: There is no such entry.
        """
        with self._lock:
            at = self._leaf if not isinstance(leaf_id, str | None) else leaf_id
            if at is None:
                return SessionContext()
            if bridge or at != self._leaf:
                return SessionContext.at(*self._context_at(at, _bridged_at if bridge else _live_at))
            if self._live is None:
                self._state, self._live, self._live_findings = self._context_at(at, _live_at)
            return SessionContext.at(self._state, self._live, self._live_findings)

    def _context_at(self, entry_id: str, build: _Build) -> tuple[State, Live, list[Finding]]:
        try:
            return build(self._journal, self._row(entry_id), self._bodies)
        except LeafMoved:  # another program rewrote the file between the look at its rows and the reading of its lines
            return build(self._journal, self._row(entry_id), self._bodies)

    def build_session_context(self, leaf_id: LeafId = LAST_ENTRY) -> SessionContext:
        """Return `context(leaf_id)`. The name is the one that other agents of the pi family use."""
        return self.context(leaf_id)

    def get_state(self, entry_id: str) -> State:
        """Return the models, thinking level, mode and rules that are set on the path to an entry.

        This is the state of `context`, without reading any messages.

        Raises:
            EntryNotFound: There is no such entry.
        """
        return self._journal.state(self._row(entry_id))

    # -- for other modules of the engine

    def _header_line(self) -> bytes:
        """The header line as it is in the journal."""
        return self._journal.header()

    def _iter_raw(self) -> Iterator[bytes]:
        """Yield every line as a native session stores it; a title beside another agent's conversation becomes a marker."""
        for row in self._journal.rows():
            entry = self._entry(row)
            if row.flags & MARKER and row.flags & TITLE:
                base = {name: entry.get(name) for name in ("id", "parentId", "timestamp")}
                name = entry.stored.get("name")
                marker = {"type": "custom", **base, "customType": LEAF_MARKER, "data": {"name": name}}
                yield encode_plain(marker)
            else:
                yield entry.raw

    def _file_pieces(self) -> Iterator[bytes] | None:
        """The bytes of another agent's file, in pieces; `None` if the session is native."""
        reader = self._foreign_reader()
        return None if reader is None else reader.pieces()

    def _foreign_reader(self) -> ForeignReader | None:
        """The journal, if the file belongs to another agent."""
        from sessile.agents.reader import ForeignReader  # most sessions are native

        return self._journal if isinstance(self._journal, ForeignReader) else None

    # -- reading rows

    def _row(self, entry_id: str) -> Row:
        row = self._journal.find(entry_id)
        if row is None or row.flags & MARKER:
            raise EntryNotFound(
                f"entry not found: {entry_id!r}", path=self.path, hint="list the entries of the session"
            )
        return row

    def _entry(self, row: Row) -> Entry:
        return Entry(row.id, row.parent_id, self._journal.read(row), None, self._restore)

    def _rows_to(self, entry_id: str | None) -> list[Row]:
        """The rows from the root to an entry, including leaf markers."""
        row = None if entry_id is None else self._journal.find(entry_id)
        return [] if row is None else list(self._journal.up(row))[::-1]

    def _tree(self) -> tuple[list[Row], Tree]:
        rows = list(self._journal.rows())
        return rows, Tree(rows)

    def _bodies(self, rows: Sequence[Row]) -> Iterator[Payload]:
        return map(self._resolved, self._journal.read_many(rows))

    def _resolved(self, raw: bytes) -> Payload:
        """A decoded line with the content of its blobs."""
        body: Payload = decode(raw)
        return self._restore(body, True) if large.may_hold_refs(raw) else body


class Session(SessionView):
    """One open session, for reading and appending. Created by a `Store`; safe to use from several threads.

    Every `append_*` method appends one entry below the leaf and returns its `Receipt`. All of them accept the two keyword
    arguments of `append_many` that make an append safe to repeat and safe beside other writers:

    - `key`: an idempotency key. If an entry was appended under this key before, nothing is appended and the receipt of
      that entry is returned, with `repeated` set.
    - `on_leaf_moved`: what to do if another writer has appended below the leaf since this session last looked: "branch"
      (append below the old leaf and set `diverged` in the receipt; the default), "follow" (append below the new entries)
      or "fail" (raise `LeafMoved`).

    Args:
        store: The store that opened the session.
        journal: The journal to read.
        writer: The same journal, if it may be written.
        ours: Whether the file belongs to the store, as opposed to another agent's.
        findings: Problems found while reading an older version of the file.

    Attributes:
        notices (list[str]): What opening the session changed, for the user to read.

    Example:
        ```python
        with Store("~/.my-agent").create("/work/app") as session:
            session.append_message({"role": "user", "content": "hello"})
            messages = session.context().messages
        ```
    """

    def __init__(
        self,
        store: Store,
        journal: ReadableJournal,
        writer: Journal | None = None,
        *,
        ours: bool = True,
        findings: Sequence[Finding] = (),
    ) -> None:
        super().__init__(journal, store.blobs.of_session(journal.path), findings)
        self.notices: list[str] = []
        self._store = store
        self._writer = writer
        self._ours = ours and not store.layout.is_agents
        self._closed = False

    @classmethod
    def in_memory(cls, cwd: str = "/") -> Session:
        """Create a session without a file. It is lost when the process ends.

        Args:
            cwd: The project that the session is for.
        """
        from sessile.store import Store  # imports this module

        return Store.in_memory().create(cwd, publish=True)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _remarks(self) -> str:
        states = {"draft": self.is_draft, "read-only": self.readonly, "closed": self._closed}
        shown = " ".join(name for name, holds in states.items() if holds)
        return f" ({shown})" if shown else ""

    @property
    def is_draft(self) -> bool:
        """Whether no assistant has answered yet. Listings of other programs do not show a draft."""
        return self._journal.path.endswith(DRAFT)

    @property
    def readonly(self) -> bool:
        """Whether the session was opened for reading only."""
        return self._writer is None

    # -- appending

    def append_many(
        self,
        entries: Iterable[Payload],
        expected_leaf: str | None = None,
        key: str | None = None,
        on_leaf_moved: OnLeafMoved = "branch",
    ) -> list[Receipt]:
        """Append several entries as a chain, each below the one before, with one sync.

        Args:
            entries: The entries: dicts with `type` and the members of that type. Ids and timestamps are added.
            expected_leaf: The id of the entry to append below, or "root" for before the first entry; the leaf if `None`.
            key: An idempotency key. Entries that were appended under this key before are not appended again.
            on_leaf_moved: What to do if another writer has appended there: "branch" off, "follow" its entries, or "fail".

        Returns:
            One receipt for each entry.

        Raises:
            EntryNotFound: `expected_leaf` does not exist.
            InvalidEntry: An entry has no type, or a type that only the session may write; or it has a member that JSON has
                no counterpart for, such as bytes or a set. A tuple is stored as a list.
            LeafMoved: Another writer has appended, and `on_leaf_moved` is "fail".
            ReadOnly: The session was opened for reading.
            StorageFailure: The entries could not be stored. Nothing was appended.
            TooLarge: An entry is longer than 8 MiB after its large strings were moved to blobs; in memory, longer than 48 MiB.
        """
        payloads = [_checked(payload, self.path) for payload in entries]
        if not payloads:
            return []
        with self._lock:
            writer = self._writing()
            ids = self._ids(len(payloads), key)
            present = [] if key is None else self._present(ids, key)
            if len(present) == len(ids):
                return present
            if present:  # the earlier call was interrupted between two lines: continue after the last one
                expected_leaf = present[-1].id
            parent, moved = self._parent(expected_leaf, on_leaf_moved)
            missing, new_ids = payloads[len(present) :], ids[len(present) :]
            markers = [marker for marker, leaf in self._markers.items() if leaf == parent]
            try:
                limit = MAX_LINE if self._shrinks else MAX_READ
                batch = _Batch(
                    missing, new_ids, key, parent, self._now(), self._stored, on_leaf_moved, moved, markers, limit
                )
            except Invalid as error:
                error.path = self.path
                raise
            try:
                appended = writer.append(batch.lines, batch.revise)
                if not appended.positions:  # another process has appended with the same key
                    return self.append_many(payloads, key=key)
                self._advance(batch)
            except BaseException as error:
                if not isinstance(
                    error, SessileError
                ):  # an interruption; after its own failures a journal is unchanged
                    self._recover_leaf(batch)
                raise
        writer.commit(appended.mark)
        if self.is_draft and any(_is_answer(payload) for payload in payloads):
            self.publish()
        durability = self._store.durability
        parents = [batch.parent, *new_ids]
        return present + [
            Receipt(entry_id, parents[i], self.path, appended.positions[i], durability, batch.diverged)
            for i, entry_id in enumerate(new_ids)
        ]

    def append_message(
        self,
        message: MessageLike | Iterable[MessageLike],
        *,
        key: str | None = None,
        on_leaf_moved: OnLeafMoved = "branch",
    ) -> Receipt:
        """Append a message of the user, the assistant or a tool.

        The message may have our own shape or that of the Anthropic, OpenAI chat, OpenAI Responses or Gemini API, as a dict or
        as an object of the vendor's client; a whole answer with its usage, too. One message of an API may become several
        stored ones: an Anthropic user message with two tool results becomes two. They are written at once.

        Args:
            message: The message.
            key: See `append_many`.
            on_leaf_moved: See `append_many`.

        Returns:
            The receipt of the message, or of the last one if it became several. `append_messages` returns all.

        Raises:
            InvalidEntry: The message is not understood; the error names the member. What an extension invents is appended
                with `append_entry`.
        """
        if make.is_ours(message):
            return self._append(make.message(message), key, on_leaf_moved)  # type: ignore[arg-type]
        return self.append_messages(message, key=key, on_leaf_moved=on_leaf_moved)[-1]

    def append_messages(
        self,
        messages: MessageLike | Iterable[MessageLike],
        *,
        key: str | None = None,
        on_leaf_moved: OnLeafMoved = "branch",
    ) -> list[Receipt]:
        """Append several messages with one write, each below the one before.

        Args:
            messages: Messages as `append_message` takes them, all of one API or of several.
            key: See `append_many`.
            on_leaf_moved: See `append_many`.

        Returns:
            One receipt for each stored message, in their order. Adjacent items of an answer of the Responses API are one
            message, and a message with several tool results is several.

        Raises:
            InvalidEntry: A message is not understood, or there is none.
        """
        from sessile.core.messages.neutral import neutral  # most messages are ours

        try:
            found = neutral(messages, self.context().messages)
        except InvalidEntry as error:
            error.path = self.path
            raise
        if not found:
            raise InvalidEntry("no message to append", path=self.path, hint="pass at least one message")
        return self.append_many([make.message(message) for message in found], None, key, on_leaf_moved)

    def append_entry(self, entry: Payload, *, key: str | None = None, on_leaf_moved: OnLeafMoved = "branch") -> Receipt:
        """Append an entry of any type, also one that an extension has invented.

        Its members are stored as they are and survive; readers that do not know the type show it and go on. A message with a
        role or with parts that `append_message` refuses can be appended this way.

        Args:
            entry: A dict with `type` and any other members. Id and timestamp are added.
            key: See `append_many`.
            on_leaf_moved: See `append_many`.

        Raises:
            InvalidEntry: The entry has no type, or a type that only the session may write.
        """
        return self._append(entry, key, on_leaf_moved)

    def append_thinking_level_change(
        self, level: str | None, *, key: str | None = None, on_leaf_moved: OnLeafMoved = "branch"
    ) -> Receipt:
        """Set the thinking level from here on; `None` clears it."""
        return self._append(make.thinking_level_change(level), key, on_leaf_moved)

    def append_model_change(
        self, model: str, role: str | None = None, *, key: str | None = None, on_leaf_moved: OnLeafMoved = "branch"
    ) -> Receipt:
        """Set the model from here on.

        Args:
            model: "provider/model".
            role: The role that the model is for; the default model if `None`.
            key: See `append_many`.
            on_leaf_moved: See `append_many`.
        """
        return self._append(make.model_change(model, role), key, on_leaf_moved)

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
        key: str | None = None,
        on_leaf_moved: OnLeafMoved = "branch",
    ) -> Receipt:
        """Replace the context so far by a summary. Entries stay in the file; only the context changes.

        System prompt and tools stay: the entry carries them on.

        Args:
            summary: The text that the model sees instead of the replaced entries.
            first_kept_entry_id: The first entry that the model still sees word for word; `None` keeps none.
            tokens_before: The size of the context before the compaction, in tokens.
            short_summary: One line for listings.
            details: Data of the program that made the summary, such as lists of files.
            from_extension: Whether an extension made the summary.
            preserve_data: Data that the next compaction gets.
            key: See `append_many`.
            on_leaf_moved: See `append_many`.
        """
        payload = make.compaction(
            summary,
            first_kept_entry_id,
            tokens_before,
            short_summary=short_summary,
            details=details,
            from_extension=from_extension,
            preserve_data=preserve_data,
        )
        carried = folded(self.context().messages)
        if carried is not None:
            payload["systemMessage"] = carried
        return self._append(payload, key, on_leaf_moved)

    def append_custom_entry(
        self, custom_type: str, data: Any = None, *, key: str | None = None, on_leaf_moved: OnLeafMoved = "branch"
    ) -> Receipt:
        """Append data of an extension. The model does not see it.

        Args:
            custom_type: The name of the kind of data, chosen by the extension.
            data: Any JSON value.
            key: See `append_many`.
            on_leaf_moved: See `append_many`.
        """
        return self._append(make.custom(custom_type, data), key, on_leaf_moved)

    def append_custom_message_entry(
        self,
        custom_type: str,
        content: Content,
        display: bool = True,
        details: Any = None,
        attribution: str = "agent",
        *,
        key: str | None = None,
        on_leaf_moved: OnLeafMoved = "branch",
    ) -> Receipt:
        """Append a message of an extension. The model sees it.

        Args:
            custom_type: The name of the kind of message, chosen by the extension.
            content: A text, or a list of content blocks.
            display: Whether to show the message to people.
            details: Any JSON value, for the extension.
            attribution: Whose message it is: "agent" or "user".
            key: See `append_many`.
            on_leaf_moved: See `append_many`.
        """
        payload = make.custom_message(custom_type, content, display, details, attribution)
        return self._append(payload, key, on_leaf_moved)

    def append_label_change(
        self, target_id: str, label: str | None, *, key: str | None = None, on_leaf_moved: OnLeafMoved = "branch"
    ) -> Receipt:
        """Label an entry; `None` removes its label.

        Raises:
            EntryNotFound: There is no entry `target_id`.
        """
        self._row(target_id)
        return self._append(make.label(target_id, label), key, on_leaf_moved)

    def append_mode_change(
        self, mode: str, data: Any = None, *, key: str | None = None, on_leaf_moved: OnLeafMoved = "branch"
    ) -> Receipt:
        """Set the mode of the agent (such as "plan") from here on, with any data that belongs to it."""
        return self._append(make.mode_change(mode, data), key, on_leaf_moved)

    def append_ttsr_injection(
        self, injected_rules: Sequence[str], *, key: str | None = None, on_leaf_moved: OnLeafMoved = "branch"
    ) -> Receipt:
        """Record the names of rules that were injected into the model's output stream."""
        return self._append(make.ttsr_injection(injected_rules), key, on_leaf_moved)

    def append_session_init(
        self,
        system_prompt: str,
        task: str,
        tools: Sequence[str],
        output_schema: Any = None,
        *,
        key: str | None = None,
        on_leaf_moved: OnLeafMoved = "branch",
    ) -> Receipt:
        """Record what a sub-agent was started with.

        Args:
            system_prompt: Its system prompt.
            task: Its task.
            tools: The names of its tools.
            output_schema: The JSON schema of its answer.
            key: See `append_many`.
            on_leaf_moved: See `append_many`.
        """
        return self._append(make.session_init(system_prompt, task, tools, output_schema), key, on_leaf_moved)

    def append_context_edit(
        self,
        target_id: str,
        content: Content | None,
        *,
        key: str | None = None,
        on_leaf_moved: OnLeafMoved = "branch",
    ) -> Receipt:
        """Change what an entry adds to the context. The entry itself stays as it is.

        Args:
            target_id: The entry to change.
            content: Its new content; `None` removes it from the context.
            key: See `append_many`.
            on_leaf_moved: See `append_many`.

        Raises:
            EntryNotFound: There is no entry `target_id`.
        """
        self._row(target_id)
        return self._append(make.context_edit(target_id, content), key, on_leaf_moved)

    def append_reset_boundary(self, *, key: str | None = None, on_leaf_moved: OnLeafMoved = "branch") -> Receipt:
        """Start with an empty context: from here on the model sees only what follows."""
        return self._append(make.reset_boundary(), key, on_leaf_moved)

    def _append(self, payload: Payload, key: str | None = None, on_leaf_moved: OnLeafMoved = "branch") -> Receipt:
        return self.append_many((payload,), None, key, on_leaf_moved)[0]

    # -- moving the leaf

    def branch(self, entry_id: str, *, durable: bool = False) -> None:
        """Move the leaf to an existing entry: the next append starts a branch there.

        Args:
            entry_id: The new leaf.
            durable: Store the leaf at once, instead of on close.

        Raises:
            EntryNotFound: There is no such entry.
            Unsupported: `durable` is set, and the file belongs to another agent.
        """
        self._move_leaf(self._row(entry_id).id, durable)

    def reset_leaf(self, *, durable: bool = False) -> None:
        """Move the leaf before the first entry: the next append starts a new root."""
        self._move_leaf(None, durable)

    def follow(self) -> bool:
        """Move the leaf to where it would be if the session were opened now, after entries of other writers.

        Returns:
            Whether the leaf moved.
        """
        with self._lock:
            leaf = self._leaf_at(self._writing().follow())
            if leaf == self._leaf:
                return False
            self._leaf = self._stored_leaf = leaf
            self._live = None
            return True

    def branch_with_summary(
        self, entry_id: str | None, summary: str, details: Any = None, from_extension: bool | None = None
    ) -> Receipt:
        """Move the leaf and append a summary of the branch that is left.

        Args:
            entry_id: The new leaf; `None` is before the first entry.
            summary: What happened on the branch that is left.
            details: Data of the program that made the summary.
            from_extension: Whether an extension made the summary.

        Raises:
            EntryNotFound: There is no such entry.
        """
        with self._lock:
            self._writing()
            before = self._leaf
            self._move_leaf(None if entry_id is None else self._row(entry_id).id, durable=False)
            try:
                return self._append(make.branch_summary(entry_id or make.ROOT, summary, details, from_extension))
            except BaseException:
                self._move_leaf(before, durable=False)
                raise

    # -- title and tag

    def set_session_name(self, name: str, source: Literal["user", "auto"] = "user") -> bool:
        """Set the title.

        Args:
            name: The title. Control characters are replaced by spaces.
            source: Who chose it. An "auto" title never replaces one of the user.

        Returns:
            Whether the title was set.
        """
        name = clean_name(name)
        with self._lock:
            self._writing()
            if not name or (source == "auto" and self.title_source == "user"):
                return False
            named = make.session_info(name, self.title, source)
            if self._ours:  # before the entry, which decides: if this fails, nothing has changed
                self._rewrite_header(title=name, titleSource=source)
            self._append(named)
            return True

    def set_tag(self, tag: str | None) -> str | None:
        """Tag the session; `None` removes the tag.

        Returns:
            The tag as it is stored: normalized, without invisible characters.

        Raises:
            Invalid: The tag has no visible character.
        """
        cleaned = None if tag is None else clean_tag(tag)
        if cleaned == "":
            raise Invalid(
                "invalid tag: it must have a visible character", path=self.path, hint="pass None to remove the tag"
            )
        if not self._ours:
            raise Unsupported(
                "only our own sessions have tags", path=self.path, hint="fork the session and tag the fork"
            )
        self._append(make.custom(TAG, {"tag": cleaned}))
        return cleaned

    # -- rewriting and moving

    def rewrite_entries(self, edit: Edit) -> str:
        """Replace the content of entries. Ids, parents and types cannot change.

        Args:
            edit: Called with every entry; returns its new members, or `None` to leave it as it is, byte for byte.

        Returns:
            The path of the file as it was before, in the store's folder of originals.

        Raises:
            InvalidEntry: `edit` changed an id, a parent or a type.
        """
        with self._lock:
            writer = self._writing()
            original = self._store.original_path(writer.path)
            writer.replace(lambda raw: _rewritten(raw, edit, self._restore, self._put), keep=original)
            self._live = None
            return self._store._keep_once(original)

    def rewrite_tool_call(self, call_id: str, arguments: Mapping[str, Any]) -> str:
        """Replace the arguments of a tool call in every message that contains it.

        Returns:
            The path of the file as it was before.

        Raises:
            EntryNotFound: No message contains the call.
        """
        with self._lock:
            self._writing()
            rewrite = _ToolCallRewrite(call_id, arguments)
            if not any(rewrite.concerns(entry) for entry in self.iter_entries()):
                raise EntryNotFound(f"tool call not found: {call_id!r}", path=self.path)
            return self.rewrite_entries(rewrite)

    def move_to(self, cwd: str) -> None:
        """Move the session and its artifacts to another project.

        Raises:
            SessionExists: The other project has a file of the same name.
            Unsupported: The session belongs to another agent.
        """
        with self._lock:
            writer = self._own_journal()
            if cwd != self.cwd:
                before = self.path
                fork.relocate(self._store, writer, cwd)
                members: Payload = {"cwd": cwd}
                if self.path != before and not self.is_draft:
                    members["previousSessionFiles"] = [*self._header.get("previousSessionFiles", ()), before]
                self._rewrite_header(**members)
                self._store._leave_breadcrumb(self)

    # -- other sessions

    def new_session(self, parent_session: str | None = None) -> Session:
        """Create an empty session in the same project.

        Args:
            parent_session: The path of the session that it continues, noted in its header.
        """
        return self._store.create(self.cwd, parent_session=parent_session)

    def fork(self) -> Session:
        """Copy the whole session, with all branches and artifacts, to a new session at the same leaf.

        Raises:
            StorageFailure: An append failed, so the copy would be incomplete.
        """
        self._check_complete()
        return fork.fork(self._store, self, self.cwd)

    def create_branched_session(self, leaf_id: str) -> Session:
        """Copy the path to an entry to a new session.

        Raises:
            EntryNotFound: There is no such entry.
            StorageFailure: An append failed, so the copy would be incomplete.
        """
        self._check_complete()
        path = [self._entry(step) for step in self._rows_to(self._row(leaf_id).id)]
        return fork.branch_off(self._store, self, path)

    def set_session_file(self, path: str) -> None:
        """Close this session's file and continue in another one, with the same object."""
        with self._lock:
            other = self._store.open(path)
            try:
                self.close()
            finally:
                self._blobs = other._blobs
                self._show(other._journal)
                self.notices += other.notices
                self._writer, self._ours, self._closed = other._writer, other._ours, False

    # -- durability

    def publish(self) -> None:
        """Make a draft visible to other programs before an assistant has answered."""
        with self._lock:
            self._check_complete()
            if self.is_draft:
                drafts.publish(self._own_journal())

    def flush(self) -> None:
        """Make everything that was appended durable.

        Raises:
            StorageFailure: The storage did not confirm it, or an append failed before.
        """
        if self._writer is not None:
            self._writer.flush()

    def reopen(self) -> None:
        """Read the file again, after a storage failure or another program's change made the session unusable."""
        with self._lock:
            writer = self._may_write()
            writer.reopen()
            self._closed = False
            self._show(writer)

    def close(self) -> None:
        """Store the leaf if it is not the last entry, and release the file.

        A session that is dropped without `close()` releases its file, too, but does not store the leaf.

        Raises:
            StorageFailure: The first error of an append that was not reported yet.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                if self._writer is not None and self._writer.failure is None:
                    self._mark_leaf()
                    if self.is_draft and self._journal.last() is None:
                        drafts.discard(self._store.fs, self._own_journal())
            finally:
                self._journal.close()

    # -- for imports

    def _adopt(self, batches: Iterable[Sequence[bytes]]) -> int:
        """Append lines that have ids and parents already, and return their number. End with `_adopt_last`."""
        count = 0
        with self._lock:
            writer = self._writing()
            for lines in batches:
                writer.commit(writer.append(lines, lambda news, same=lines: same).mark)  # type: ignore[misc]
                count += len(lines)
        return count

    def _adopt_last(self, entry: Payload, leaf: str | None) -> None:
        """Append the entry that ends an import, and move the leaf to an entry that is known to exist, or to this one."""
        with self._lock:  # nothing is looked up: indexing what was just written takes as long as writing it
            self._adopt([[encode(entry)]])
            self._stored_leaf, self._live = str(entry["id"]), None
            self._leaf = leaf or self._stored_leaf

    # -- parts of an append

    def _parent(self, expected: str | None, on_leaf_moved: OnLeafMoved) -> tuple[str | None, bool]:
        """The entry to append below, and whether it has children of another writer."""
        if on_leaf_moved not in ON_LEAF_MOVED:
            raise Invalid(f"invalid on_leaf_moved {on_leaf_moved!r}", hint=f"use one of {', '.join(ON_LEAF_MOVED)}")
        if expected is None or expected == (self._leaf or make.ROOT):
            return self._leaf, False
        parent = None if expected == make.ROOT else self._row(expected).id
        tip = _last_below((parent,), self._journal.rows())
        if tip is None:
            return parent, False
        if on_leaf_moved == "fail":
            raise _leaf_moved(parent, self.path)
        return (tip, False) if on_leaf_moved == "follow" else (parent, True)

    def _writing(self) -> Journal:
        """The journal, for writing. Raise the latched error if a write failed before."""
        writer = self._may_write()
        if writer.failure is not None:
            raise writer.failure
        return writer

    def _may_write(self) -> Journal:
        """The journal of a session that is not read-only, usable or not."""
        if self._writer is None:
            raise ReadOnly(path=self.path, hint="open the session for writing, or fork it")
        return self._writer

    def _check_complete(self) -> None:
        """Raise the latched error if a write failed: what was meant to be in the session is not in the file."""
        if self._writer is not None and self._writer.failure is not None:
            raise self._writer.failure

    def _own_journal(self) -> OwnJournal:
        """The journal, if it belongs to the store and can be renamed."""
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
        """Receipts of the entries that an earlier call with the same key has appended; they are durable on return."""
        rows = []
        for entry_id in ids:
            row = self._journal.find(entry_id)
            if row is None:
                break
            rows.append(row)
        if not rows:
            return []
        if self._entry(rows[0]).stored.get(KEY) != key:
            raise InvalidEntry(f"the id derived from key {key!r} belongs to another entry", hint="use another key")
        self.flush()
        durability = self._store.durability
        return [Receipt(r.id, r.parent_id, self.path, r.position, durability, repeated=True) for r in rows]

    def _recover_leaf(self, batch: _Batch) -> None:
        """After an interruption, move the leaf behind what was written: only the file can tell."""
        self._live = None
        with suppress(SessileError):  # the interruption is raised; the next append reports the storage
            written = [entry_id for entry_id in batch.ids if self._journal.find(entry_id) is not None]
            if written:
                self._leaf = self._stored_leaf = written[-1]

    def _advance(self, batch: _Batch) -> None:
        """Apply what was just written to the leaf, the state and the context in memory."""
        if batch.parent != self._leaf:
            self._live = None
        for number, entry in enumerate(batch.entries):
            if kind_of(entry["type"]).flags & BOUNDARY:
                self._live = None
            elif self._live is not None:
                body = batch.body(number) or self._resolved(batch.lines[number])
                self._live.add(body)
                self._state = fold(self._state, body)
        self._leaf = self._stored_leaf = batch.ids[-1]

    def _move_leaf(self, leaf: str | None, durable: bool) -> None:
        with self._lock:
            if durable:
                self._writing()
                if not self._ours:
                    raise Unsupported(
                        "the leaf cannot be stored in another agent's file", path=self.path, hint="fork the session"
                    )
            if leaf != self._leaf:
                self._leaf, self._live = leaf, None
            if durable:
                self._mark_leaf()

    def _mark_leaf(self) -> None:
        """Store the leaf in the file, unless opening the file finds it anyway or another writer has appended."""
        if self._leaf == self._stored_leaf or not self._ours:
            return
        marker = make.with_base(make.leaf_marker(), self._ids(1, None)[0], self._leaf, self._now())
        line = encode(marker)
        writer = self._writing()
        appended = writer.append([line], lambda news: () if news.rows() else (line,))
        if appended.positions:
            writer.commit(appended.mark)
            self._stored_leaf = self._leaf
            self._markers[marker["id"]] = self._leaf

    def _rewrite_header(self, **members: Any) -> None:
        header, old = {**self._header, **members}, self._journal.header()
        self._writing().replace(lambda raw: encode(header) if raw == old else None)
        self._header = header

    def _stored(self, entry: Payload) -> Payload:
        """An entry with its large content moved to blobs."""
        return large.shrink(entry, self._put)

    @property
    def _put(self) -> large.Put | None:
        """Stores a blob; `None` if everything stays in the lines."""
        blobs = self._blobs
        return (lambda data: blobs.put(data).hash) if self._shrinks else None

    @property
    def _shrinks(self) -> bool:
        """Whether large content goes to blobs: not in memory, nor in files that another program reads."""
        return self._ours and not self._store.is_memory

    def _now(self) -> str:
        return iso_timestamp(self._store.now())


def _restoring(blobs: Blobs, missing: dict[str, Finding]) -> Restore:
    """A function that puts the content of blobs into a decoded line. Entries hold it, so it does not hold the session."""

    def note(digest: str) -> None:
        missing[digest] = Finding("missing_blob", -1, 0, f"blob {digest} is missing or damaged")

    return lambda stored, media: large.restore(stored, blobs.get, note, media=media)


# -- appending


class _Batch:
    """A chain of entries, encoded below one parent; encoded again if the parent changes.

    `markers` are leaf markers of the parent: what another program appends below one of them is below the parent. `shrink`
    moves the large content of an entry to blobs.
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
        limit: int = MAX_LINE,
    ) -> None:
        self._limit = limit
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
        if len(line) > self._limit:
            raise TooLarge(
                f"the entry has {len(line)} bytes; the limit is {self._limit}",
                hint="store large data as an artifact, and append its path",
            )
        return line

    def body(self, number: int) -> Payload | None:
        """An entry as it would be read from its line; `None` if it has to be read to know."""
        is_known = not self._copies[number].large and not large.may_hold_refs(self.lines[number])
        return self.entries[number] if is_known else None

    def revise(self, news: News) -> Sequence[bytes]:
        """Other writers have appended: apply `on_leaf_moved` if that was below our parent."""
        if self._key is not None and any(row.id == self.ids[0] for row in news.rows()):
            return ()
        if self.parent is not None and not any(map(news.child_of, (self.parent, *self._markers))):
            return self.lines
        tip = _last_below((self.parent, *self._markers), news.rows())
        if tip is None:
            return self.lines
        if self._on_leaf_moved == "fail":
            raise _leaf_moved(self.parent)
        if self._on_leaf_moved == "follow":
            self._markers = ()
            self._hang_from(tip)
        else:
            self.diverged = True
        return self.lines


def _checked(payload: Payload, path: str) -> Payload:
    """The payload itself, if callers may append it; only the session writes markers and headers."""
    entry_type = payload.get("type") if isinstance(payload, dict) else None
    if not isinstance(entry_type, str) or entry_type in ("", "session", "title"):
        raise InvalidEntry(
            "invalid entry: it must be a dict with a type", path=path, hint='"session" and "title" are not entry types'
        )
    if payload.get("customType") in MARKERS:
        raise InvalidEntry(
            f"the custom type {payload['customType']!r} is reserved", path=path, hint="use branch(…, durable=True)"
        )
    return payload


def _is_answer(payload: Payload) -> bool:
    """Whether an entry is a message of an assistant."""
    message = payload.get("message")
    return isinstance(message, Mapping) and message.get("role") == "assistant"


def _leaf_moved(parent: str | None, path: str | None = None) -> LeafMoved:
    return LeafMoved(
        f"another writer has appended below {parent or 'the root'}",
        path=path,
        hint="read the new entries, then append again",
    )


def _last_below(parents: Iterable[str | None], rows: Iterable[Row]) -> str | None:
    """The last of some rows that descends from one of `parents`, directly or through a leaf marker."""
    descendants = set(parents)
    last = None
    for row in rows:
        if row.parent_id in descendants:
            descendants.add(row.id)
            if row.flags & CHAIN:
                last = row.id
    return last


# -- the live part of a path

_Bodies = Callable[[Sequence[Row]], Iterator[dict[str, Any]]]
_Build = Callable[[ReadableJournal, Row, _Bodies], tuple[State, Live, list[Finding]]]


def _live_at(journal: ReadableJournal, leaf: Row, bodies: _Bodies) -> tuple[State, Live, list[Finding]]:
    """The state and the live part of the path to `leaf`, reading back to the first kept entry only."""
    steps = journal.up(leaf)
    after: list[Row] = []
    for step in steps:
        after.append(step)
        if step.flags & BOUNDARY:
            break
    findings = _findings_at_end(after)
    boundary = after.pop() if after[-1].flags & BOUNDARY else None
    compaction = None if boundary is None else next(bodies((boundary,)))
    kept: list[Row] = []
    if compaction is not None and boundary is not None and compaction.get("type") == "compaction":
        kept, missed = _kept(journal, boundary, steps, first_kept(compaction))
        findings += missed
    else:
        compaction = None
    live = Live(compaction, bodies(kept[::-1]), bodies(after[::-1]))
    return journal.state(leaf), live, findings


def _kept(
    journal: ReadableJournal, compaction: Row, steps: Iterator[Row], first: str | None
) -> tuple[list[Row], list[Finding]]:
    """The rows above a compaction up to the first kept one; none, and why, if that is not on the path."""
    if first is None or journal.find(first) is None:
        return [], []
    kept = []
    for step in steps:
        kept.append(step)
        if step.id == first:
            return kept, []
    return [], _findings_at_end([compaction, *kept], whole=True)


def _findings_at_end(path: list[Row], *, whole: bool = False) -> list[Finding]:
    """What is wrong where a walk ended: at a boundary, or with `whole` only at a root."""
    last = path[-1]
    if (last.flags & BOUNDARY and not whole) or last.parent_id is None:
        return []
    if any(row.id == last.parent_id for row in path):
        return [Finding("cycle", -1, 0, f"the ancestors of entry {path[0].id} form a cycle")]
    return [missing_parent(last.id, last.parent_id)]


def _bridged_at(journal: ReadableJournal, leaf: Row, bodies: _Bodies) -> tuple[State, Live, list[Finding]]:
    """The same, but a missing parent is replaced by the nearest earlier entry of the chain."""
    path, findings = _bridged_path(journal, leaf)
    entries = list(bodies(path[::-1]))
    return fold_path(entries), live_part(entries), findings


def _bridged_path(journal: ReadableJournal, leaf: Row) -> tuple[list[Row], list[Finding]]:
    """The rows from `leaf` up to its root, across missing parents, and what is missing."""
    rows = list(journal.rows())
    tree = Tree(rows)
    bridges = tree.bridges()
    path: list[Row] = []
    findings: list[Finding] = []
    visited: set[str] = set()
    row: Row | None = leaf
    while row is not None and row.id not in visited:
        for step in journal.up(row):
            if step.id in visited:
                break
            visited.add(step.id)
            path.append(step)
        end = path[-1]
        row = None
        if end.parent_id and tree.number(end.parent_id) is None:
            number = tree.number(end.id)
            at = None if number is None else bridges.get(number)
            row = None if at is None else rows[at]
            findings.append(missing_parent(end.id, end.parent_id, None if row is None else row.id))
        elif end.parent_id:
            findings.append(Finding("cycle", -1, 0, f"the ancestors of entry {leaf.id} form a cycle"))
    return path, findings


# -- rewriting


def _rewritten(raw: bytes, edit: Edit, restore: Restore, put: large.Put | None) -> bytes | None:
    """The line that replaces `raw`; `None` if it stays."""
    body = decode(raw)
    if body.get("type") == "session" or not isinstance(body.get("id"), str) or body.get("customType") in MARKERS:
        return None
    new = edit(Entry(body["id"], body.get("parentId"), raw, None, restore))
    if new is None:
        return None
    if any(new.get(name) != body.get(name) for name in ("id", "parentId", "type")):
        raise InvalidEntry(f"the id, type and parent of entry {body['id']} must not change")
    return encode(large.shrink(_without_stale_texts(dict(new), body), put))


def _without_stale_texts(new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """The new body without the full versions of shortened texts that have changed."""
    full = new.get(large.FULL)
    if not isinstance(full, dict):
        return new
    at = large.at_pointer
    unchanged = {pointer: ref for pointer, ref in full.items() if at(new, pointer) == at(old, pointer) is not None}
    rest = {name: value for name, value in new.items() if name != large.FULL}
    return rest | {large.FULL: unchanged} if unchanged else rest


class _ToolCallRewrite:
    """An `Edit` that replaces the arguments of one tool call."""

    def __init__(self, call_id: str, arguments: Mapping[str, Any]) -> None:
        self._call_id = call_id
        self._arguments = dict(arguments)
        self._quoted = encode({"id": call_id})[1:-1]

    def concerns(self, entry: Entry) -> bool:
        """Whether the entry contains the call."""
        return self._quoted in entry.raw and any(map(self._is_call, _content(entry)))

    def __call__(self, entry: Entry) -> Mapping[str, Any] | None:
        if not self.concerns(entry):
            return None
        blocks = [{**b, "arguments": self._arguments} if self._is_call(b) else b for b in _content(entry)]
        return {**entry.stored, "message": {**entry.stored["message"], "content": blocks}}

    def _is_call(self, block: object) -> bool:
        return isinstance(block, Mapping) and block.get("type") == "toolCall" and block.get("id") == self._call_id


def _content(entry: Entry) -> list[Any]:
    message = entry.stored.get("message")
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list) else []


# -- the outline

_COUNTED = 5000  # entries of collapsed runs that are read to count calls in them; beyond that only entries are counted
_FIRST_ENTRIES = 1000  # entries in which the first prompt is looked for
_NEAR = 64  # steps up from a tool result to the call that it answers


def _outlined(
    tree: Tree,
    read: Callable[[int], Payload],
    leaf: str | None,
    labels: Mapping[str, str],
    only: Collection[Only] | None,
    full: bool,
) -> Iterator[OutlineRow]:
    """The outline of a tree; `read` returns the line of an entry by its number."""
    left = _COUNTED

    def look(number: int) -> Shown:
        return show(read(number), _calls_before(tree, read, number))

    def count(numbers: Sequence[int]) -> RunCounts | None:
        nonlocal left
        left -= len(numbers)
        if left < 0:
            return None
        calls = failed = 0
        for shown in (show(read(number)) for number in numbers):
            calls += sum(isinstance(part, Call) for part in shown.parts)
            failed += shown.failed
        return RunCounts(calls, failed)

    wanted = EVERYTHING if only is None else only
    return outline(tree, look, leaf=leaf, labels=labels, count=count, only=wanted, full=full)


def _calls_before(tree: Tree, read: Callable[[int], Payload], number: int) -> dict[str, Call]:
    """The calls that a tool result may answer: those of the nearest assistant message above it."""
    message = read(number).get("message")
    if not isinstance(message, dict) or message.get("role") != "toolResult":
        return {}
    for _ in range(_NEAR):
        number = tree.parents[number]
        if number == NOWHERE:
            break
        calls = [part for part in show(read(number)).parts if isinstance(part, Call)]
        if calls:
            return {call.id: call for call in calls}
    return {}


def _short(text: str) -> str:
    """A text on one line, short enough for a repr."""
    line = clean_name(text)
    return line if len(line) <= 60 else line[:59] + "…"
