"""Diagnosis and repair of session files: what is wrong with a file, and how to make it readable again.

`TROUBLES` is the table of problems. A note is harmless; a warning is something that readers work around; damage is bytes or
content that cannot be read, by Sessile or by other programs.

`Diagnosis` is fed every item of the scanner with its line number, then finished. It holds a few dozen bytes per entry and no
bodies, keeps the first problems of each kind and counts the rest, so that a file of any size can be checked. Its rules about
parents are those of `core/tree.py`, except that leaf markers are entries, because a check looks at all lines.

`Mending` describes the repaired file as ranges copied byte for byte from the old one and the few bytes that are added. Lines
without damage are never changed. On a damaged line every entry gets its own line and the rest is removed. Valid JSON that is not
an entry stays, and so do lines that are too long to be read. Nothing is invented.

A bridge connects an entry whose parent is missing to the nearest earlier entry. Only a repair that is asked to builds one. The
line gets the new parent, and keeps the old one in the member `sessile.bridged`, so that the bridge can be removed again.

Reading bytes and checking blobs are arguments; nothing here opens a file.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Literal, NamedTuple

from sessile.core.codec import decode, encode, encode_plain, member_span
from sessile.core.context import first_kept
from sessile.core.ids import IdTable, check_session_id
from sessile.core.kinds import CHAIN, LABEL, MARKER, flags_of
from sessile.core.large import blob_refs, may_hold_refs
from sessile.core.lines import Finding, Item, Line, Scanner
from sessile.core.migrate import VERSION, version_of
from sessile.core.text import parse_timestamp
from sessile.core.tree import NOWHERE, bridges
from sessile.errors import InvalidId

BRIDGED = "sessile.bridged"
"""The member that holds the missing parent of an entry that was bridged."""

# -- the table of problems

Severity = Literal["note", "warning", "damage"]


class Problem(NamedTuple):
    """A problem of a file; members that are unknown or do not apply are `None`.

    `excerpt` shows a few characters of the bytes concerned, with a dot for what cannot be printed.
    """

    kind: str
    message: str
    offset: int | None
    length: int | None
    line: int | None
    entry_id: str | None
    severity: Severity
    repairable: bool
    excerpt: str = ""


class Trouble(NamedTuple):
    """A row of the table: `remedy` is what a repair does, `None` if it changes nothing."""

    severity: Severity
    remedy: str | None = None


_REMOVED = "removed; the original file is kept"

TROUBLES: dict[str, Trouble] = {
    # lines
    "torn_tail": Trouble("damage", _REMOVED),
    "nul_run": Trouble("damage", _REMOVED),
    "not_json": Trouble("damage", _REMOVED),
    "bad_utf8": Trouble("damage", _REMOVED),
    "bom": Trouble("damage", _REMOVED),
    "glued": Trouble("damage", "each entry gets its own line"),
    "too_long": Trouble("damage"),
    "bad_utf8_inside": Trouble("warning"),
    "not_an_entry": Trouble("warning"),
    "blank": Trouble("note"),
    # the header
    "no_header": Trouble("damage", "a header is created from the file name and the first date"),
    "bad_header": Trouble("damage", "a header is inserted before it; the line stays"),
    "long_header": Trouble("note"),
    "hidden_header": Trouble("warning"),
    "second_header": Trouble("warning"),
    "unsafe_id": Trouble("warning"),
    "old_version": Trouble("note"),
    "new_version": Trouble("warning"),
    # the tree
    "no_id": Trouble("warning"),
    "duplicate_id": Trouble("warning"),
    "missing_parent": Trouble("warning"),
    "forward_parent": Trouble("warning"),
    "cycle": Trouble("warning"),
    "unreachable": Trouble("warning"),
    "bridged": Trouble("note"),
    # references
    "lost_label": Trouble("note"),
    "lost_cut": Trouble("warning"),
    "unanswered_call": Trouble("note"),
    "uncalled_result": Trouble("note"),
    "missing_blob": Trouble("damage"),
    "damaged_blob": Trouble("damage"),
    # a database or document of another agent
    "damaged_source": Trouble("damage"),
    # a transcript of Claude Code
    "dangling_parent": Trouble("warning"),
    "parent_before_boundary": Trouble("warning"),
    "boundary_with_parent": Trouble("warning"),
    "double_boundary": Trouble("note"),
    "progress_in_chain": Trouble("note"),
    "repeated_uuid": Trouble("note"),
    "foreign_session": Trouble("warning"),
    "path_mismatch": Trouble("warning"),
    # the file
    "unreadable": Trouble("damage"),
    "draft": Trouble("note", "published under its final name"),
    "second_draft": Trouble("warning"),
    "permissions": Trouble("warning"),
    # beside the file
    "wrong_cache": Trouble("warning"),
}

UNREADABLE = frozenset({"torn_tail", "nul_run", "not_json", "bad_utf8", "bom", "too_long"})
"""The kinds whose bytes cannot be read."""

REASONS: dict[str, str] = {
    "too_long": "stays: the line is too long to be read, and may be intact",
    "bad_utf8_inside": "stays: the entry can be read, with U+FFFD in place of the bytes",
    "not_an_entry": "stays: another program may use it",
    "missing_parent": "stays: readers treat the entry as a root; --bridge connects it to the entry before it",
    "bridged": "stays: --unbridge removes the bridge",
    "forward_parent": "stays: a repair never reorders lines",
    "cycle": "stays: readers cut the cycle at its earliest entry",
    "unreachable": "stays: readers cut the cycle at its earliest entry",
    "duplicate_id": "stays: readers use the later entry; both lines are kept",
    "missing_blob": "stays: look for the blob in the trash or in a backup",
    "damaged_blob": "stays: look for the blob in the trash or in a backup",
    "old_version": "stays: opening the session for writing migrates it",
    "second_draft": "stays: read both files, then move the one that you do not need to another folder",
    "permissions": "stays: change the permissions of the file",
    "wrong_cache": "the session is not concerned; a check has already removed the wrong part of the cache",
}
"""Why a repair changes nothing."""


def problem(
    kind: str,
    message: str,
    *,
    offset: int | None = None,
    length: int | None = None,
    line: int | None = None,
    entry_id: str | None = None,
    excerpt: str = "",
) -> Problem:
    """Make a problem of a kind in the table."""
    severity, remedy = TROUBLES[kind]
    return Problem(kind, message, offset, length, line, entry_id, severity, remedy is not None, excerpt)


def remedy(kind: str) -> str:
    """Return what a repair does about a kind of problem."""
    return TROUBLES[kind].remedy or REASONS.get(kind, "stays unchanged")


def printable(raw: bytes) -> str:
    """Return bytes as text that is safe to print in a terminal."""
    return "".join(c if c.isprintable() else "·" for c in raw.decode("utf-8", "replace"))


# -- diagnosis

MOST_OF_A_KIND = 1000  # problems reported of each kind; a file of garbage would otherwise fill the memory
EXCERPT = 32  # bytes
FAMILY_PREFIX = 4096  # bytes in which other agents look for the header
LISTED_PREFIX = 1 << 20  # bytes in which listings look for the header

_REFERENCE = re.compile(rb'"blob:sha256:([0-9a-f]{64})"')

Peek = Callable[[int, int], bytes]
"""Return bytes of the file, given offset and length."""
BlobState = Callable[[str], str | None]
"""Return what is wrong with the blob of a hash: "missing_blob", "damaged_blob" or `None`."""
Numbered = tuple[int, Item]


def numbered(chunks: Iterable[bytes], scanner: Scanner) -> Iterator[Numbered]:
    """Yield every item of a file, given in chunks, with its line number from 1."""
    line, counted = 1, 0
    for chunk in chunks:
        start = scanner.offset
        for item in scanner.feed(chunk):
            at = max(item.offset - start, counted)  # a line that started in an earlier chunk has no newline since
            line += chunk.count(b"\n", counted, at)
            counted = at
            yield line, item
        line += chunk.count(b"\n", counted)
        counted = 0
    for item in scanner.finish():
        yield line, item


class Diagnosis:
    """The problems of one file, in the order in which they are found."""

    def __init__(self, peek: Peek, blob: BlobState) -> None:
        self.problems: list[Problem] = []
        self.session_id: str | None = None
        self.header_at: int | None = None  # offset of the first record that is not a title slot
        self.first_date: str | None = None
        self.cwd: str | None = None
        self.entries = 0
        self.with_ids = 0
        self.accounted = 0
        self._counts: Counter[str] = Counter()
        self._version: int | None = None
        self._peek, self._blob = peek, blob
        self._tree = CompactTree()
        self._offsets, self._lines = array("Q"), array("Q")
        self._ends = bytearray()  # whether each entry can be the end of a bridge
        self._labels = _Links()
        self._cuts = _Links()
        self._tools = IdTable()
        self._calls = _Links()
        self._results = _Links()
        self._blobs: dict[bytes, str | None] = {}

    def add(self, number: int, item: Item) -> None:
        """Add the next item of the file."""
        if isinstance(item, Finding):
            self.accounted += item.length
            self._take_finding(number, item)
            return
        self.accounted += len(item.raw)
        head = item.head
        if head.type == "title" and head.id is None:
            return
        if self.header_at is None:
            self.header_at = item.offset
            self._take_first(number, item)
        elif head.type == "session":
            self._report("second_header", "another header; ignored", number, item)
            self._remember(decode(item.raw))
        if head.type != "session":
            self._take_entry(number, item)

    def finish(self) -> list[Problem]:
        """Return all problems; call it once, at the end."""
        if self.header_at is None:
            self._report("no_header", "the file contains no header and no entry")
        for code, entry, detail in self._tree.settle():
            self._report_entry(code, entry, detail)
        self._examine_labels()
        self._examine_cuts()
        self._examine_tools()
        for kind, count in self._counts.items():
            if count > MOST_OF_A_KIND:
                self.problems.append(problem(kind, f"{count - MOST_OF_A_KIND:,} more of this kind"))
        return sorted(self.problems, key=lambda p: float("inf") if p.offset is None else p.offset)

    def bridges(self) -> dict[int, str]:
        """Return the new parents of entries whose parent is missing, by the offset of their lines; after `finish`."""
        tree = self._tree

        def may_be_parent(entry: int) -> bool:
            return bool(self._ends[entry]) and tree.is_meant(entry)

        found = bridges(tree.parents, tree.missing, may_be_parent)
        return {self._offsets[entry]: tree.name(parent) for entry, parent in found.items()}

    # -- lines

    def _take_finding(self, number: int, finding: Finding) -> None:
        kind = "bad_utf8_inside" if finding.code == "bad_utf8" and not finding.length else finding.code
        self._report(kind, finding.detail, number, finding)

    def _take_first(self, number: int, line: Line) -> None:
        """Check the first record, which must be the header."""
        record = decode(line.raw)
        self._remember(record)
        if line.head.type != "session":
            self._report(
                "no_header", f"the file starts with an entry of type {line.head.type}, not with a header", number, line
            )
            return
        if line.head.id is None:
            self._report("bad_header", "the header has no session id", number, line)
            return
        self.session_id = line.head.id
        self._version = version_of(record)
        try:
            check_session_id(self.session_id)
        except InvalidId as error:
            self._report("unsafe_id", error.message, number, line)
        if self._version < VERSION:
            detail = f"the file has version {self._version}; the current version is {VERSION}"
            self._report("old_version", detail, number, line)
        elif self._version > VERSION:
            detail = f"the file has version {self._version}; this release supports {VERSION} and opens it read-only"
            self._report("new_version", detail, number, line)
        end = line.offset + len(line.raw)
        if end > LISTED_PREFIX:
            self._report("hidden_header", "the header ends after the part of the file that listings read", number, line)
        elif end > FAMILY_PREFIX:
            self._report(
                "long_header", "the header is longer than the part of the file that some agents read", number, line
            )

    def _remember(self, record: dict[str, Any]) -> None:
        """Remember what a new header would need."""
        date, cwd = record.get("timestamp"), record.get("cwd")
        if self.first_date is None and isinstance(date, str) and parse_timestamp(date) is not None:
            self.first_date = date
        if self.cwd is None and isinstance(cwd, str):
            self.cwd = cwd

    def _take_entry(self, number: int, line: Line) -> None:
        self.entries += 1
        head = line.head
        if head.id is None:
            if self._version is None or self._version > 1:
                self._report("no_id", f"an entry of type {head.type} has no id, so it cannot be a parent", number, line)
        else:
            self.with_ids += 1
            self._offsets.append(line.offset)
            self._lines.append(number)
            if not self._tree.add(head.id, head.parentId):
                detail = f"entry {head.id} appears more than once; the later one is used"
                self._report("duplicate_id", detail, number, line)
            self._ends.append(flags_of(head) & (CHAIN | MARKER) == CHAIN)
            self._take_links(len(self._tree) - 1, line)
            if is_bridged(line.raw):
                detail = f"entry {head.id} was connected to {head.parentId}, because its parent is missing"
                self._report("bridged", detail, number, line)
        if may_hold_refs(line.raw):
            self._take_blobs(number, line)

    def _take_links(self, entry: int, line: Line) -> None:
        """Remember what an entry refers to, until all entries are known."""
        role = line.head.message.role if line.head.message is not None else None
        if flags_of(line.head) & LABEL:
            target = decode(line.raw).get("targetId")
            self._labels.add(entry, self._tree.number(target) if isinstance(target, str) else NOWHERE)
        elif line.head.type == "compaction":
            kept = first_kept(decode(line.raw))
            if kept is not None:
                self._cuts.add(entry, self._tree.number(kept))
        elif role == "toolResult":
            call = decode(line.raw)["message"].get("toolCallId")
            if isinstance(call, str):
                self._results.add(entry, self._tools.number(call))
        elif role == "assistant" and b'"toolCall"' in line.raw:
            for call in _calls(decode(line.raw)["message"].get("content")):
                self._calls.add(entry, self._tools.number(call))

    def _take_blobs(self, number: int, line: Line) -> None:
        for digest in sorted(_blobs(line.raw)):
            key = bytes.fromhex(digest)
            if key not in self._blobs:
                self._blobs[key] = self._blob(digest)
            state = self._blobs[key]
            if state is not None:
                what = "is missing" if state == "missing_blob" else "does not match its hash"
                self._report(state, f"the blob {digest} {what}", number, line)

    # -- links

    def _examine_labels(self) -> None:
        for entry, target in self._labels:
            if target == NOWHERE or self._tree.entry(target) == NOWHERE:
                self._report_entry("lost_label", entry, f"the target of label {self._tree.name(entry)} is missing")

    def _examine_cuts(self) -> None:
        ancestry = Ancestry(self._tree.parents) if len(self._cuts) else None
        for entry, kept in self._cuts:
            target = self._tree.entry(kept)
            if target == NOWHERE or (ancestry is not None and not ancestry.leads(target, entry)):
                detail = f"the first kept entry of compaction {self._tree.name(entry)} is not on its path"
                self._report_entry("lost_cut", entry, detail)

    def _examine_tools(self) -> None:
        """Check that calls and results on the active branch belong together."""
        if not len(self._calls) and not len(self._results):
            return
        active = bytearray(len(self._tree))
        for entry in self._tree.path(len(self._tree) - 1):  # a leaf marker is a child of the leaf
            active[entry] = 1
        called, answered = bytearray(len(self._tools)), bytearray(len(self._tools))
        for links, seen in ((self._calls, called), (self._results, answered)):
            for entry, call in links:
                seen[call] |= active[entry]
        for entry, call in self._calls:
            if active[entry] and not answered[call]:
                self._report_entry("unanswered_call", entry, f"tool call {self._tools.text(call)} has no result")
        for entry, call in self._results:
            if active[entry] and not called[call]:
                detail = f"the result of tool call {self._tools.text(call)} has no call on the branch"
                self._report_entry("uncalled_result", entry, detail)

    # -- reporting

    def _report(self, kind: str, message: str, number: int | None = None, item: Item | None = None) -> None:
        self._counts[kind] += 1
        if self._counts[kind] > MOST_OF_A_KIND:
            return
        if item is None:
            self.problems.append(problem(kind, message))
        elif isinstance(item, Finding):
            excerpt = printable(self._peek(item.offset, min(EXCERPT, item.length)))
            self.problems.append(
                problem(kind, message, offset=item.offset, length=item.length, line=number, excerpt=excerpt)
            )
        else:
            offset, raw, head = item
            excerpt = printable(raw[:EXCERPT])
            self.problems.append(
                problem(kind, message, offset=offset, length=len(raw), line=number, entry_id=head.id, excerpt=excerpt)
            )

    def _report_entry(self, kind: str, entry: int, message: str) -> None:
        """Report a problem of an entry whose line is no longer at hand."""
        self._counts[kind] += 1
        if self._counts[kind] <= MOST_OF_A_KIND:
            offset, line = self._offsets[entry], self._lines[entry]
            self.problems.append(problem(kind, message, offset=offset, line=line, entry_id=self._tree.name(entry)))


class _Links:
    """Pairs of numbers: an entry, and what it refers to."""

    def __init__(self) -> None:
        self._from, self._to = array("i"), array("i")

    def add(self, entry: int, target: int) -> None:
        self._from.append(entry)
        self._to.append(target)

    def __len__(self) -> int:
        return len(self._from)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._from, self._to, strict=True)


def _blobs(raw: bytes) -> set[str]:
    """Return the hashes of the blobs that an entry references."""
    try:
        return blob_refs(decode(raw))
    except RecursionError:
        return {found.decode() for found in _REFERENCE.findall(raw)}  # too deep to tell references from text


def _calls(content: Any) -> list[str]:
    """Return the ids of the tool calls in the content of a message."""
    blocks = content if isinstance(content, list) else []
    found = (block.get("id") for block in blocks if isinstance(block, dict) and block.get("type") == "toolCall")
    return [call for call in found if isinstance(call, str)]


# -- parents

_VISITING, _ROOTED, _DETACHED = 1, 2, 3


class TreeProblem(NamedTuple):
    """A problem with the parent of an entry; entries are numbered in the order in which they were added."""

    code: str
    entry: int
    detail: str


class CompactTree:
    """The parents of a session of any size, in a few bytes per entry.

    Add entries in file order, then `settle`; `parents` is then the tree. Everything is iterative and linear.
    """

    def __init__(self) -> None:
        self.parents = array("i")  # numbers of ids before `settle`, of entries after it
        self.missing = array("i")  # entries whose parent is missing, after `settle`
        self._ids = IdTable()
        self._own = array("i")
        self._meant = array("i")  # the entry of each id

    def __len__(self) -> int:
        return len(self._own)

    def add(self, entry_id: str, parent_id: str | None) -> bool:
        """Add the next entry; return whether its id is new."""
        own = self.number(entry_id)
        new = self._meant[own] == NOWHERE
        self._meant[own] = len(self._own)
        self._own.append(own)
        self.parents.append(self.number(parent_id) if parent_id else NOWHERE)
        return new

    def number(self, entry_id: str) -> int:
        """Return the number of an id, whether there is such an entry or not."""
        number = self._ids.number(entry_id)
        if number == len(self._meant):
            self._meant.append(NOWHERE)
        return number

    def entry(self, number: int) -> int:
        """Return the entry of the id with that number, or `NOWHERE`."""
        return self._meant[number]

    def is_meant(self, entry: int) -> bool:
        """Return whether the id of an entry means this entry, not a later one."""
        return self._meant[self._own[entry]] == entry

    def name(self, entry: int) -> str:
        """Return the id of an entry."""
        return self._ids.text(self._own[entry])

    def settle(self) -> Iterator[TreeProblem]:
        """Resolve all parents; yield the problems."""
        for entry, wanted in enumerate(self.parents):
            if wanted == NOWHERE:
                continue
            parent = self._meant[wanted]
            if parent == NOWHERE:
                missing = self._ids.text(wanted)
                self.missing.append(entry)
                yield TreeProblem(
                    "missing_parent", entry, f"the parent {missing} of entry {self.name(entry)} is missing"
                )
            elif wanted == self._own[entry]:
                yield TreeProblem("cycle", entry, f"entry {self.name(entry)} is its own parent")
                parent = NOWHERE
            elif parent > entry:
                own, later = self.name(entry), self.name(parent)
                yield TreeProblem("forward_parent", entry, f"entry {own} comes before its parent {later}")
            self.parents[entry] = parent
        yield from self._cut_cycles()

    def _cut_cycles(self) -> Iterator[TreeProblem]:
        parents = self.parents
        fate = bytearray(len(parents))
        for start in range(len(parents)):
            trail = array("i")
            entry = start
            while entry != NOWHERE and not fate[entry]:
                fate[entry] = _VISITING
                trail.append(entry)
                entry = parents[entry]
            end = _ROOTED if entry == NOWHERE else fate[entry]
            if end == _VISITING:
                first = min(trail[trail.index(entry) :])
                parents[first] = NOWHERE
                yield TreeProblem("cycle", first, f"entry {self.name(first)} is its own ancestor")
                end = _DETACHED
            for entry in trail:
                fate[entry] = end
        detached = fate.count(_DETACHED)
        if detached:
            detail = f"{detached} entries are not connected to a root because of a cycle"
            yield TreeProblem("unreachable", fate.index(_DETACHED), detail)

    def path(self, entry: int) -> Iterator[int]:
        """Yield an entry and its ancestors up to the root."""
        while entry != NOWHERE:
            yield entry
            entry = self.parents[entry]


class Ancestry:
    """Test whether one entry is an ancestor of another, for many pairs of a settled tree."""

    def __init__(self, parents: array[int]) -> None:
        first, sibling = _children(parents)
        self._enter = array("i", [0]) * len(parents)
        self._leave = array("i", [0]) * len(parents)
        clock = 0
        for root in range(len(parents)):
            entry = root if parents[root] == NOWHERE else NOWHERE
            while entry != NOWHERE:
                self._enter[entry] = clock
                clock += 1
                if first[entry] != NOWHERE:
                    entry = first[entry]
                    continue
                self._leave[entry] = clock
                while entry != root and sibling[entry] == NOWHERE:
                    entry = parents[entry]
                    self._leave[entry] = clock
                entry = NOWHERE if entry == root else sibling[entry]

    def leads(self, ancestor: int, entry: int) -> bool:
        """Return whether `ancestor` is on the path to `entry`."""
        return self._enter[ancestor] <= self._enter[entry] < self._leave[ancestor]


def _children(parents: array[int]) -> tuple[array[int], array[int]]:
    """Return the first child of each entry, and the next sibling of each entry."""
    first = array("i", [NOWHERE]) * len(parents)
    sibling = array("i", [NOWHERE]) * len(parents)
    for child in reversed(range(len(parents))):
        parent = parents[child]
        if parent != NOWHERE:
            sibling[child] = first[parent]
            first[parent] = child
    return first, sibling


# -- repair


class Copy(NamedTuple):
    """The bytes of the old file from `start` up to `end`, exclusive."""

    start: int
    end: int


Piece = Copy | bytes

_MEMBER = b',"' + BRIDGED.encode() + b'":'
_NO_BRIDGES: Mapping[int, str] = {}


def is_bridged(raw: bytes) -> bool:
    """Return whether a repair has connected an entry whose parent is missing to another entry."""
    return _MEMBER[1:-1] in raw and isinstance(decode(raw).get(BRIDGED), str)


class Mending:
    """One pass of a repair over a file.

    `bridges` are the new parents of entries, by the offset of their lines; `None` removes the bridges that are there.
    """

    def __init__(
        self,
        peek: Peek,
        header: bytes | None = None,
        header_at: int | None = None,
        bridges: Mapping[int, str] | None = _NO_BRIDGES,
    ) -> None:
        self.salvaged = 0  # entries recovered from damaged lines
        self._bridges = bridges
        self._peek = peek
        self._header = header
        self._header_at = header_at

    def pieces(self, items: Iterable[Numbered], size: int) -> Iterator[Piece]:
        """Yield the new file. The header is inserted before the record at `header_at`, or first if there is none."""
        copied = 0
        if self._header is not None and self._header_at is None:
            yield self._header + b"\n"
        for _, group in groupby(items, key=lambda pair: pair[0]):
            line = [item for _, item in group]
            if not self._needs_mending(line):
                continue
            start, end = line[0].offset, max(map(_end, line))
            if start > copied:
                yield Copy(copied, start)
            kept = list(self._kept(line))
            for number, pieces in enumerate(kept):
                if number:
                    yield b"\n"
                yield from pieces
            copied = end if kept else self._after_line_end(end)
        if copied < size:
            yield Copy(copied, size)

    def _needs_mending(self, line: list[Item]) -> bool:
        return any(
            _is_mended(item) if isinstance(item, Finding) else self._is_headers_place(item) or self._is_bridge(item)
            for item in line
        )

    def _is_bridge(self, line: Line) -> bool:
        """Whether a bridge at this line is built or removed."""
        return is_bridged(line.raw) if self._bridges is None else line.offset in self._bridges

    def _is_headers_place(self, item: Item) -> bool:
        return self._header is not None and item.offset == self._header_at

    def _kept(self, line: list[Item]) -> Iterator[list[Piece]]:
        """Yield the pieces of each line that replaces a line."""
        damaged = any(isinstance(item, Finding) and _is_mended(item) for item in line)
        for item in line:
            if isinstance(item, Line):
                if self._header is not None and self._is_headers_place(item):
                    yield [self._header]
                yield self._bridging(item) if self._is_bridge(item) else [Copy(item.offset, _end(item))]
                self.salvaged += damaged
            elif item.length and not _is_mended(item) and item.code != "blank":
                yield [Copy(item.offset, _end(item))]

    def _bridging(self, line: Line) -> list[Piece]:
        """Return a line with its bridge, or without; all other bytes stay."""
        parent = member_span(line.raw, "parentId")
        if parent is None:
            return [Copy(line.offset, _end(line))]  # nothing that reads the line sees a parent
        start = parent[0]
        if self._bridges is None:
            bridged = member_span(line.raw, BRIDGED)
            if bridged is None or not line.raw[parent[1] :].startswith(_MEMBER):  # another program has rewritten it
                body = decode(line.raw)
                return [encode({**body, "parentId": body.pop(BRIDGED)})]
            return [Copy(line.offset, line.offset + start), Copy(line.offset + bridged[0], _end(line))]
        added = encode_plain(self._bridges[line.offset]) + _MEMBER
        return [Copy(line.offset, line.offset + start), added, Copy(line.offset + start, _end(line))]

    def _after_line_end(self, at: int) -> int:
        """Return the start of the next line if nothing but the line end follows."""
        while self._peek(at, 1) == b"\r":
            at += 1
        return at + 1 if self._peek(at, 1) == b"\n" else at


def _is_mended(finding: Finding) -> bool:
    if finding.code == "bad_utf8" and not finding.length:
        return False  # the entry can be read
    return TROUBLES[finding.code].remedy is not None


def _end(item: Item) -> int:
    return item.offset + (len(item.raw) if isinstance(item, Line) else item.length)
