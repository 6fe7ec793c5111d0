"""What a session shows: its entries, its tree, its labels, and the context at any of them.

Everything here only reads. Bodies are decoded when looked at; whole-tree questions read ids and flags only.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from sessile import resume
from sessile.core import large
from sessile.core.codec import decode, encode_plain
from sessile.core.context import LAST_ENTRY, LeafId, Live, SessionContext
from sessile.core.entries import Entry, Payload
from sessile.core.kinds import CHAIN, LEAF_MARKER, MARKER, TAG, TITLE, State
from sessile.core.lines import Finding
from sessile.core.text import parse_timestamp
from sessile.core.tree import NOWHERE, Tree
from sessile.errors import EntryNotFound
from sessile.storage.base import NATIVE, Blobs, ReadableJournal, Row
from sessile.storage.drafts import published_path
from sessile.storage.layout import artifacts_of

if TYPE_CHECKING:
    from sessile.core.outline import Only, OutlineRow


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
        return published_path(self._journal.path)

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
        from sessile.storage.foreign import ForeignReader  # most sessions are

        return self._journal.pieces() if isinstance(self._journal, ForeignReader) else None

    @property
    def format(self) -> str:
        """The name of the format that the session's file has; ours is "native"."""
        from sessile.storage.foreign import ForeignReader

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
                return SessionContext.at(*resume.bridged_at(self._journal, self._row(at), self._bodies))
            if at != self._leaf:
                return SessionContext.at(*resume.live_at(self._journal, self._row(at), self._bodies))
            if self._live is None:
                found = resume.live_at(self._journal, self._row(at), self._bodies)
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
        from sessile.looking import outlined

        rows, tree = self._tree()
        read = lambda number: self._entry(rows[number])  # noqa: E731
        return outlined(tree, read, self._leaf, self.get_labels(), only, full)
