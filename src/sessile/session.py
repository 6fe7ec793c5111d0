"""A session: one append-only tree with a leaf, where the next entry will hang.

Every append makes exactly one entry below the leaf, which becomes the new leaf; existing lines never change. An append
returns a receipt when the entry is durable, or raises. Memory never runs ahead of the journal: what a session shows is what
reopening it would show.

What a session shows: its entries, its tree, its labels, and the context at any of them.

Everything here only reads. Bodies are decoded when looked at; whole-tree questions read ids and flags only.

What can be appended to a session: one verb for each kind of entry.

A verb checks what it is given, makes the members of its kind and hands them to `append_many`. Kinds without a verb are
appended there as they are.

Entries on their way into a journal: encoded for a parent, and the receipts that come back.

If another writer was faster, a batch finds out under the journal's lock whether its parent has gained a child meanwhile, and
then does as the caller wished: branch, follow, or fail.

Putting other content in place of entries that exist.

The only way in which lines of a session ever change, and always by a verb of the caller: the file as it was is kept, ids,
parents and types stay, and what is not edited stays byte for byte.

The context at any entry of a journal, reading no more than its live part.

From the leaf the path is followed back to the last boundary and from there to the first entry that it kept; what lies
further back is not read. The state of the whole path comes from the journal.

How a session is read for its outline: bodies only of what is shown, and of short runs.

It is apart from `view` because programs that only append and resume need not load it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
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
from sessile.core.entries import Content, Entry, Payload, with_base
from sessile.core.ids import derived_entry_id, new_entry_id
from sessile.core.kinds import BOUNDARY, CHAIN, LEAF_MARKER, MARKER, MARKERS, TAG, TITLE, State, fold, kind_of
from sessile.core.lines import Finding
from sessile.core.text import clean_name, clean_tag, iso_timestamp, parse_timestamp
from sessile.core.tree import NOWHERE, Tree
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
from sessile.storage.drafts import published_path
from sessile.storage.layout import DRAFT, artifacts_of

if TYPE_CHECKING:
    from sessile.store import Store


# --- resume

Bodies = Callable[[Sequence[Row]], Iterator[dict[str, Any]]]
"""Gives the decoded entries of rows."""


def live_at(journal: ReadableJournal, leaf: Row, bodies: Bodies) -> tuple[State, Live, list[Finding]]:
    """The state and the live part of the path that ends at `leaf`."""
    steps = journal.up(leaf)
    after: list[Row] = []
    for step in steps:
        after.append(step)
        if step.flags & BOUNDARY:
            break
    findings = _end_of(after)
    boundary = after.pop() if after[-1].flags & BOUNDARY else None
    compaction = None if boundary is None else next(bodies((boundary,)))
    kept: list[Row] = []
    if compaction is not None and compaction.get("type") == "compaction":
        kept = _kept(journal, steps, first_kept(compaction))
    else:
        compaction = None
    live = Live(compaction, bodies(kept[::-1]), bodies(after[::-1]))
    return journal.state(leaf), live, findings


def _kept(journal: ReadableJournal, steps: Iterator[Row], first: str | None) -> list[Row]:
    """The rows behind a compaction down to the first kept one; none if that is not on the path."""
    if first is None or journal.find(first) is None:
        return []
    kept = []
    for step in steps:
        kept.append(step)
        if step.id == first:
            return kept
    return []


def _end_of(path: list[Row]) -> list[Finding]:
    """What is wrong where a walk to the root ended."""
    last = path[-1]
    if last.flags & BOUNDARY or last.parent_id is None:
        return []
    if any(row.id == last.parent_id for row in path):
        return [Finding("cycle", -1, 0, f"the ancestors of entry {path[0].id} form a circle")]
    return [missing_parent(last.id, last.parent_id)]


def bridged_at(journal: ReadableJournal, leaf: Row, bodies: Bodies) -> tuple[State, Live, list[Finding]]:
    """As `live_at`, but a missing parent is bridged to the nearest earlier entry of the chain."""
    rows = list(journal.rows())
    places = {row.id: number for number, row in enumerate(rows)}
    path: list[Row] = []
    findings: list[Finding] = []
    seen: set[str] = set()
    row: Row | None = leaf
    while row is not None and row.id not in seen:
        for step in journal.up(row):
            if step.id in seen:
                break
            seen.add(step.id)
            path.append(step)
        end = path[-1]
        row = None
        if end.parent_id is not None and end.parent_id not in places:
            earlier = (rows[number] for number in range(places[end.id] - 1, -1, -1))
            row = next((r for r in earlier if r.flags & CHAIN and not r.flags & MARKER), None)
            findings.append(missing_parent(end.id, end.parent_id))
    entries = list(bodies(path[::-1]))
    return fold_path(entries), live_part(entries), findings


# --- view

_BATCH = 64  # lines that are read at once


class TreeNode:
    """An entry with its children and its label."""

    __slots__ = ("children", "entry", "label")

    def __init__(self, entry: Entry, children: list[TreeNode], label: str | None) -> None:
        self.entry = entry
        self.children = children
        self.label = label


class SessionView:
    """The reading half of a session: a journal, and the leaf that somebody stands on."""

    def __init__(self, journal: ReadableJournal, blobs: Blobs, findings: Sequence[Finding] = ()) -> None:
        self._lock = threading.RLock()
        self._blobs = blobs
        self._found_before = findings  # by whoever made the journal from a file of an older version
        try:
            self._look_at(journal)
        except BaseException:
            journal.close()  # nobody else has it yet
            raise

    def _look_at(self, journal: ReadableJournal) -> None:
        """Show a journal from its beginning."""
        self._journal = journal
        self._header: Payload = decode(journal.header())
        self._live: Live | None = None
        self._live_findings: list[Finding] = []
        self._state = State()
        self._missing_blobs: dict[str, Finding] = {}
        self._markers: dict[str, str | None] = {}  # leaf markers that others may hang entries from, and what they mark
        self._leaf = self._resting = self._reopened_leaf(journal.last())

    def _reopened_leaf(self, row: Row | None) -> str | None:
        """The leaf that opening the journal gives: its last entry, or where a marker at its end points."""
        if row is None or not row.flags & MARKER:
            return None if row is None else row.id
        trail = list(takewhile(lambda step: step.flags & MARKER, self._journal.up(row)))
        leaf = trail[-1].parent_id or None
        if leaf is not None and (self._journal.find(leaf) is None or any(step.id == leaf for step in trail)):
            # The marker outlived what it points to: better the last entry than none.
            leaf = next((entry.id for entry in reversed(self.get_entries())), None)
        self._markers |= dict.fromkeys((step.id for step in trail), leaf)
        return leaf

    @property
    def id(self) -> str:
        return str(self._header["id"])

    @property
    def path(self) -> str:
        """The session's file; of a draft, the file that it will have."""
        path = self._journal.path
        return (
            published_path(path) if path.endswith(DRAFT) else path
        )  # every receipt asks: no call for what is no draft

    @property
    def cwd(self) -> str:
        cwd = self._header.get("cwd")
        return cwd if isinstance(cwd, str) else ""

    @property
    def header(self) -> Payload:
        """The header line, decoded; a title slot before it counts as part of it."""
        slot = self._title_slot()
        if not slot:
            return dict(self._header)
        named = {"title": slot.get("title") or None, "titleSource": slot.get("source")}
        header = {name: value for name, value in self._header.items() if name not in named}
        return header | {name: value for name, value in named.items() if value is not None}

    def _title_slot(self) -> Payload:
        """The line before the header in which oh-my-pi keeps the title; empty if there is none."""
        line = self._journal.slot()
        return {} if line is None else decode(line)

    def header_line(self) -> bytes:
        """The header as it stands in the journal."""
        return self._journal.header()

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
        title = self.header.get("title")
        return title if isinstance(title, str) and title else None

    @property
    def title_source(self) -> str | None:
        """Who gave the name: "user", "auto", or `None` if nobody did or nobody knows."""
        row = self._journal.title()
        source = self.header.get("titleSource") if row is None else self._entry(row).get("source", "user")
        return source if isinstance(source, str) and self.title else None

    @property
    def tag(self) -> str | None:
        """The tag that the session was given last, on whatever branch; of other agents', theirs."""
        for row in reversed([row for row in self._journal.rows() if row.flags in (CHAIN, MARKER)]):
            entry = self._entry(row)
            told = entry.get("data") if row.flags & MARKER else entry.body  # a marker holds what it was made of
            if isinstance(told, dict) and told.get("customType") in (TAG, "claude.tag"):
                data = told.get("data")
                tag = data.get("tag") if isinstance(data, dict) else None
                return tag if isinstance(tag, str) and tag else None
        return None

    @property
    def artifacts(self) -> str:
        """The folder for what tools and sub-agents of this session spill. It may not exist."""
        return artifacts_of(self.path)

    @property
    def findings(self) -> Sequence[Finding]:
        """Everything in the file that is not as it should be."""
        return [*self._found_before, *self._journal.findings(), *self._missing_blobs.values()]

    def get_gaps(self) -> list[tuple[str | None, str]]:
        """What could not be read, each with the id of the entry before it; `None` is before the first."""
        places = sorted((finding for finding in self.findings if finding.offset >= 0), key=lambda found: found.offset)
        return [(self._journal.entry_before(finding.offset), finding.detail) for finding in places]

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.path}>"

    # -- entries

    def _entry(self, row: Row) -> Entry:
        return Entry(row.id, row.parent_id, self._journal.read(row))

    def _bodies(self, rows: Sequence[Row]) -> Iterator[Payload]:
        return map(self._resolved, self._journal.read_many(rows))

    def _resolved(self, raw: bytes) -> Payload:
        body: Payload = decode(raw)
        if large.may_hold_refs(raw):
            body = large.resolve(body, self._blobs.get, self._note_missing_blob)
        return body

    def _note_missing_blob(self, digest: str) -> None:
        self._missing_blobs[digest] = Finding("missing_blob", -1, 0, f"blob {digest} is missing or damaged")

    def _row(self, entry_id: str) -> Row:
        row = self._journal.find(entry_id)
        if row is None or row.flags & MARKER:
            raise EntryNotFound(f"Entry {entry_id} not found", path=self.path, hint="list the entries of the session")
        return row

    def iter_entries(self) -> Iterator[Entry]:
        """Every entry of the user's, in file order, one at a time."""
        return (self._entry(row) for row in self._journal.rows() if not row.flags & MARKER)

    def iter_lines(self, start: int = 0) -> Iterator[Entry]:
        """Every entry in file order, leaf markers among them; `start` leaves out so many at the beginning."""
        rows = self._journal.rows(start)
        while batch := list(islice(rows, _BATCH)):
            yield from self.read_rows(batch)

    def iter_rows(self, start: int = 0) -> Iterator[Row]:
        """The rows of the same entries, not read yet."""
        return self._journal.rows(start)

    def read_rows(self, rows: Sequence[Row]) -> Iterator[Entry]:
        """The entries of some rows; those that lie together are read at once."""
        return (Entry(row.id, row.parent_id, raw) for row, raw in zip(rows, self._journal.read_many(rows), strict=True))

    def iter_raw(self) -> Iterator[bytes]:
        """Every line as a session of ours has it; a name that another agent has noted beside the conversation is a marker."""
        for row in self._journal.rows():
            entry = self._entry(row)
            if row.flags & MARKER and row.flags & TITLE:
                base = {name: entry.get(name) for name in ("id", "parentId", "timestamp")}
                marker = {"type": "custom", **base, "customType": LEAF_MARKER, "data": {"name": entry.get("name")}}
                yield encode_plain(marker)
            else:
                yield entry.raw

    def get_entries(self) -> list[Entry]:
        """Every entry of the user's, in file order."""
        return list(self.iter_entries())

    def get_entry(self, entry_id: str) -> Entry | None:
        """The entry with that id; of duplicates the later."""
        row = self._journal.find(entry_id)
        return None if row is None or row.flags & MARKER else self._entry(row)

    def get_full_entry(self, entry_id: str) -> Payload:
        """The entry as it was appended: images and cut texts are put back from their blobs."""
        return large.restore(self._entry(self._row(entry_id)).body, self._blobs.get, self._note_missing_blob)

    def file_pieces(self) -> Iterator[bytes] | None:
        """The bytes of another agent's file as they are, piece by piece; `None` if the session is one of ours."""
        from sessile.agents.reader import ForeignReader  # most sessions are

        return self._journal.pieces() if isinstance(self._journal, ForeignReader) else None

    @property
    def format(self) -> str:
        """The name of the format that the session's file has; ours is "native"."""
        from sessile.agents.reader import ForeignReader

        return self._journal.format.name if isinstance(self._journal, ForeignReader) else NATIVE

    def blob_pieces(self, digest: str) -> Iterator[bytes]:
        """The bytes of a blob that an entry names, piece by piece."""
        return self._blobs.pieces(digest)

    def get_branch(self, from_id: str | None = None) -> list[Entry]:
        """The path from the root to an entry, or to the leaf."""
        return list(self.iter_branch(from_id))

    def iter_branch(self, from_id: str | None = None) -> Iterator[Entry]:
        """The path from the root to an entry, or to the leaf, one entry at a time."""
        steps = self._path(self._leaf if from_id is None else from_id)
        return (self._entry(step) for step in steps if not step.flags & MARKER)

    def _path(self, entry_id: str | None) -> list[Row]:
        """The rows from the root to an entry, leaf markers among them."""
        row = None if entry_id is None else self._journal.find(entry_id)
        return [] if row is None else list(self._journal.up(row))[::-1]

    def walk_up(self, from_id: str | None = None) -> Iterator[Row]:
        """The rows from an entry, or from the leaf, to the root, not read yet; leaf markers are among them."""
        start = self._leaf if from_id is None else from_id
        row = None if start is None else self._journal.find(start)
        return iter(()) if row is None else self._journal.up(row)

    def read_row(self, row: Row) -> Payload:
        """The entry of a row, with its images."""
        return self._entry(row).body

    def get_children(self, entry_id: str | None) -> list[Entry]:
        """The entries that hang from an entry, in file order; those of `None` are the roots."""
        rows, tree = self._tree()
        number = NOWHERE if entry_id is None else tree.number(entry_id)
        return [] if number is None else [self._entry(rows[child]) for child in tree.children(number)]

    def get_heads(self) -> list[Entry]:
        """The entries without children: where branches end."""
        rows, tree = self._tree()
        return [self._entry(rows[number]) for number in tree.heads()]

    def get_abandoned(self) -> list[Entry]:
        """The heads of the branches that the leaf is not on."""
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
        labels = self._journal.labels()
        nodes = {
            number: TreeNode(self._entry(row), [], labels.get(row.id))
            for number, row in enumerate(rows)
            if not row.flags & MARKER
        }
        for number, node in nodes.items():
            children = [nodes[child] for child in tree.children(number)]
            if len(children) > 1:
                children.sort(key=lambda child: parse_timestamp(child.entry.timestamp) or 0)
            node.children = children
        return [nodes[number] for number in tree.children(NOWHERE)]

    def _tree(self) -> tuple[list[Row], Tree]:
        rows = list(self._journal.rows())
        return rows, Tree(rows)

    def get_label(self, entry_id: str) -> str | None:
        """The label that an entry was given last."""
        return self._journal.labels().get(entry_id)

    def get_labels(self) -> Mapping[str, str]:
        """The labels of all entries that have one, the latest last."""
        return self._journal.labels()

    def count_entries(self) -> int:
        """How many entries the session holds on all branches."""
        return self._journal.count()

    # -- the context

    def context(self, leaf_id: LeafId = LAST_ENTRY, *, bridge: bool = False) -> SessionContext:
        """What the model sees at the leaf, or at any entry. With `bridge`, missing parents do not end the history."""
        with self._lock:
            at = self._leaf if not isinstance(leaf_id, str | None) else leaf_id
            if at is None:
                return SessionContext()
            if bridge:
                return SessionContext.at(*bridged_at(self._journal, self._row(at), self._bodies))
            if at != self._leaf:
                return SessionContext.at(*live_at(self._journal, self._row(at), self._bodies))
            if self._live is None:
                found = live_at(self._journal, self._row(at), self._bodies)
                self._state, self._live, self._live_findings = found
            return SessionContext.at(self._state, self._live, self._live_findings)

    def get_state(self, entry_id: str) -> State:
        """What the entries of a path have set, from the root to one entry."""
        return self._journal.state(self._row(entry_id))

    def build_session_context(self, leaf_id: LeafId = LAST_ENTRY) -> SessionContext:
        """The context under the name that the documents use."""
        return self.context(leaf_id)

    # -- for people

    def get_outline(self, *, only: Collection[Only] | None = None, full: bool = False) -> list[OutlineRow]:
        """The branches of the session, with straight runs elided; `full` shows every entry."""
        return list(self.iter_outline(only=only, full=full))

    def iter_outline(self, *, only: Collection[Only] | None = None, full: bool = False) -> Iterator[OutlineRow]:
        """The same, one row at a time."""

        rows, tree = self._tree()
        read = lambda number: self._entry(rows[number])  # noqa: E731
        return outlined(tree, read, self._leaf, self.get_labels(), only, full)


# --- batch

KEY = "sessile.key"
MAX_LINE = 8 * 1024 * 1024  # one line is one write; larger strings have gone to blobs before

OnLeafMoved = Literal["branch", "follow", "fail"]
ON_LEAF_MOVED = get_args(OnLeafMoved)


class Receipt(msgspec.Struct, frozen=True):
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


class Batch:
    """Entries that hang from each other, encoded for one parent; encoded again if the parent changes.

    `markers` are leaf markers of the parent: what another program hangs from one hangs from the parent. `shrink` makes an
    entry with large content fit to be stored.
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
    ) -> None:
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
        if len(line) > MAX_LINE:
            raise TooLarge(
                f"an entry of {len(line)} bytes is over the limit of {MAX_LINE}",
                hint="store large data as an artifact, and append where it lies",
            )
        return line

    def body(self, number: int) -> Payload | None:
        """An entry as reading its line gives it; `None` if only reading it can tell."""
        copy = self._copies[number]
        return self.entries[number] if copy.exact and not copy.large else None

    def revise(self, news: News) -> Sequence[bytes]:
        """Others have appended: find out whether below our parent, and do as the caller wished."""
        if self._key is not None and any(row.id == self.ids[0] for row in news.rows()):
            return ()
        if self.parent is not None and not any(map(news.child_of, (self.parent, *self._markers))):
            return self.lines
        tip = last_below((self.parent, *self._markers), news.rows())
        if tip is None:
            return self.lines
        if self._on_leaf_moved == "fail":
            raise leaf_moved(self.parent)
        if self._on_leaf_moved == "follow":
            self._markers = ()
            self._hang_from(tip)
        else:
            self.diverged = True
        return self.lines


def checked(payload: Payload, path: str) -> Payload:
    """The payload itself if somebody may append it; markers and headers are for the session to write."""
    entry_type = payload.get("type") if isinstance(payload, dict) else None
    if not isinstance(entry_type, str) or entry_type in ("", "session", "title"):
        raise InvalidEntry("an entry is a dict with a type", path=path, hint="the header is no entry")
    if payload.get("customType") in MARKERS:
        raise InvalidEntry(f"{payload['customType']} is reserved", path=path, hint="use branch(…, durable=True)")
    return payload


def is_answer(payload: Payload) -> bool:
    """Whether an entry is what an assistant said."""
    message = payload.get("message")
    return isinstance(message, Mapping) and message.get("role") == "assistant"


def leaf_moved(parent: str | None, path: str | None = None) -> LeafMoved:
    """The error for a caller who wanted to be alone."""
    return LeafMoved(
        f"another writer has appended below {parent or 'the root'}",
        path=path,
        hint="look at what is new, then append again",
    )


def last_below(parents: Iterable[str | None], rows: Iterable[Row]) -> str | None:
    """The last of some entries that descends from one of `parents`, directly or through a leaf marker."""
    line = set(parents)
    last = None
    for row in rows:
        if row.parent_id in line:
            line.add(row.id)
            if row.flags & CHAIN:
                last = row.id
    return last


# --- verbs


class AppendVerbs(SessionView, ABC):
    """A session that can be appended to, once somebody says how."""

    @abstractmethod
    def append_many(
        self,
        entries: Iterable[Payload],
        expected_leaf: str | None = None,
        key: str | None = None,
        on_leaf_moved: OnLeafMoved = "branch",
    ) -> list[Receipt]:
        """Append entries as a chain."""

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

    def set_tag(self, tag: str | None) -> str | None:
        """Tag the session; `None` takes the tag away. Gives the tag as it is kept."""
        cleaned = None if tag is None else clean_tag(tag)
        if cleaned == "":
            raise Invalid("a tag needs a visible character", path=self.path, hint="use None to take the tag away")
        self._append(make.custom(TAG, {"tag": cleaned}))
        return cleaned

    def _append(self, payload: Payload) -> Receipt:
        return self.append_many((payload,))[0]


# --- rewriting

Edit = Callable[[Entry], Mapping[str, Any] | None]
"""Gives the new members of an entry, or `None` to leave it alone."""


def rewritten(raw: bytes, edit: Edit, put: large.Put) -> bytes | None:
    """The line that takes the place of `raw`, if any."""
    body = decode(raw)
    if body.get("type") == "session" or not isinstance(body.get("id"), str) or body.get("customType") in MARKERS:
        return None
    new = edit(Entry(body["id"], body.get("parentId"), raw, body))
    if new is None:
        return None
    if any(new.get(name) != body.get(name) for name in ("id", "parentId", "type")):
        raise InvalidEntry(f"entry {body['id']} must keep its id, type and parent when it is rewritten")
    return encode(large.shrink(_without_stale_texts(dict(new), body), put))


def _without_stale_texts(new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """The new body without the full texts of strings that are no longer what was cut from them."""
    full = new.get(large.FULL)
    if not isinstance(full, dict):
        return new
    kept = {pointer: ref for pointer, ref in full.items() if _at(new, pointer) == _at(old, pointer) is not None}
    rest = {name: value for name, value in new.items() if name != large.FULL}
    return rest | {large.FULL: kept} if kept else rest


def _at(value: Any, pointer: str) -> Any:
    """What a JSON pointer names; `None` if it leads nowhere."""
    for step in (step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]):
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value


class ToolCallRewrite:
    """An edit that gives a tool call other arguments."""

    def __init__(self, call_id: str, arguments: Mapping[str, Any]) -> None:
        self._call_id = call_id
        self._arguments = dict(arguments)
        self._quoted = encode({"id": call_id})[1:-1]

    def concerns(self, entry: Entry) -> bool:
        """Whether the entry holds the call."""
        return self._quoted in entry.raw and any(map(self._is_call, _content(entry)))

    def __call__(self, entry: Entry) -> Mapping[str, Any] | None:
        if not self.concerns(entry):
            return None
        blocks = [{**b, "arguments": self._arguments} if self._is_call(b) else b for b in _content(entry)]
        return {**entry.body, "message": {**entry["message"], "content": blocks}}

    def _is_call(self, block: object) -> bool:
        return isinstance(block, Mapping) and block.get("type") == "toolCall" and block.get("id") == self._call_id


def _content(entry: Entry) -> list[Any]:
    message = entry.get("message")
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list) else []


# --- session


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
        return self._draft and self._journal.path.endswith(DRAFT)

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
                fork.relocate(self._store, writer, cwd)
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
        return fork.fork(self._store, self, self.cwd)

    def create_branched_session(self, leaf_id: str) -> Session:
        """The path to an entry as a session of its own."""
        path = [self._entry(step) for step in self._path(self._row(leaf_id).id)]
        return fork.branch_off(self._store, self, path)

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


# --- looking

_COUNTED = 5000  # entries in elided runs that are read to say what is in them; of more, only the number is told
_NEAR = 64  # steps from a result up to the call that it answers


def outlined(
    tree: Tree,
    read: Callable[[int], Entry],
    leaf: str | None,
    labels: Mapping[str, str],
    only: Collection[Only] | None,
    full: bool,
) -> Iterator[OutlineRow]:
    """The outline of a tree whose entries `read` gives by their numbers."""
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


def _calls_before(tree: Tree, read: Callable[[int], Entry], number: int) -> dict[str, Call]:
    """The calls that a result may answer: those of the nearest answer above it."""
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
