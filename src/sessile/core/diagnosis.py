"""What the lines of a session file say about its health.

Feed it every item of the careful scanner with the number of its line, then `finish`. It holds a few dozen bytes an entry and
no body, keeps the first problems of each kind and counts the rest, so that a file of any size can be examined. The bytes for
excerpts and the state of blobs are arguments; nothing here opens a file.

Who hangs from whom, for a check of a session of any size: the rules of `Tree` in a few bytes an entry.

Rules are those of the tree: of two entries with one id the later is meant; a parent that is missing, or is the entry
itself, makes a root; a circle is cut at its earliest entry. Markers are entries here, because a check looks at all lines.
Everything is iterative and linear. It knows ids, not bodies or places.

How a damaged session file becomes a readable one without losing or inventing anything.

The new file is told in pieces: ranges that are copied from the old one byte for byte, and the few bytes that are added. A line
without damage is never touched. On a line with damage every entry gets a line of its own and the rest is left out; what is
JSON but no entry stays, and so does a line that is too long to be read. It does not know where the bytes come from.

The table of what can be wrong with a session file: how bad it is, and what a repair does about it.

A note is nothing to worry about; a warning is something that a reader works around; damage is bytes or content that
cannot be read, by us or by others. A repair mends the damage that it can without inventing anything.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, Literal, NamedTuple

from sessile.core.codec import decode
from sessile.core.context import first_kept
from sessile.core.ids import IdTable, check_session_id
from sessile.core.kinds import LABEL, flags_of
from sessile.core.large import blob_refs, may_hold_refs
from sessile.core.lines import Finding, Item, Line, Scanner
from sessile.core.migrate import VERSION, version_of
from sessile.core.text import parse_timestamp
from sessile.errors import InvalidId

# --- kinship

NOWHERE = -1
_ON_THE_TRAIL, _ROOTED, _ADRIFT = 1, 2, 3


class Oddity(NamedTuple):
    """Something about the parents of one entry; entries are numbers in the order in which they were added."""

    code: str
    entry: int
    detail: str


class Kinship:
    """Add entries in file order, then `settle`; `parents` is then the tree."""

    def __init__(self) -> None:
        self.parents = array("i")  # before `settle` the numbers of ids, after it those of entries
        self._ids = IdTable()
        self._own = array("i")
        self._meant = array("i")  # for each id the entry that is meant by it

    def __len__(self) -> int:
        return len(self._own)

    def add(self, entry_id: str, parent_id: str | None) -> bool:
        """Add the next entry; says whether its id is new."""
        own = self.number(entry_id)
        new = self._meant[own] == NOWHERE
        self._meant[own] = len(self._own)
        self._own.append(own)
        self.parents.append(self.number(parent_id) if parent_id else NOWHERE)
        return new

    def number(self, entry_id: str) -> int:
        """A number for an id, whether there is such an entry or not."""
        number = self._ids.number(entry_id)
        if number == len(self._meant):
            self._meant.append(NOWHERE)
        return number

    def entry(self, number: int) -> int:
        """The entry that is meant by the id with that number, or `NOWHERE`."""
        return self._meant[number]

    def name(self, entry: int) -> str:
        """The id of an entry."""
        return self._ids.text(self._own[entry])

    def settle(self) -> Iterator[Oddity]:
        """Resolve all parents; gives what is not as it should be."""
        for entry, wanted in enumerate(self.parents):
            if wanted == NOWHERE:
                continue
            parent = self._meant[wanted]
            if parent == NOWHERE:
                missing = self._ids.text(wanted)
                yield Oddity(
                    "missing_parent", entry, f"entry {self.name(entry)} hangs from {missing}, which is not here"
                )
            elif wanted == self._own[entry]:
                yield Oddity("cycle", entry, f"entry {self.name(entry)} is its own parent")
                parent = NOWHERE
            elif parent > entry:
                own, later = self.name(entry), self.name(parent)
                yield Oddity("forward_parent", entry, f"entry {own} comes before its parent {later}")
            self.parents[entry] = parent
        yield from self._cut_circles()

    def _cut_circles(self) -> Iterator[Oddity]:
        parents = self.parents
        fate = bytearray(len(parents))
        for start in range(len(parents)):
            trail = array("i")
            entry = start
            while entry != NOWHERE and not fate[entry]:
                fate[entry] = _ON_THE_TRAIL
                trail.append(entry)
                entry = parents[entry]
            end = _ROOTED if entry == NOWHERE else fate[entry]
            if end == _ON_THE_TRAIL:
                first = min(trail[trail.index(entry) :])
                parents[first] = NOWHERE
                yield Oddity("cycle", first, f"entry {self.name(first)} is its own ancestor")
                end = _ADRIFT
            for entry in trail:
                fate[entry] = end
        adrift = fate.count(_ADRIFT)
        if adrift:
            detail = f"no root leads to {adrift} entries: they hang from a circle"
            yield Oddity("unreachable", fate.index(_ADRIFT), detail)

    def path(self, entry: int) -> Iterator[int]:
        """From an entry to its root."""
        while entry != NOWHERE:
            yield entry
            entry = self.parents[entry]


class Lineage:
    """Answers whether one entry is an ancestor of another, for many pairs of a settled tree."""

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
        """Whether `ancestor` is on the path to `entry`."""
        return self._enter[ancestor] <= self._enter[entry] < self._leave[ancestor]


def _children(parents: array[int]) -> tuple[array[int], array[int]]:
    """The first child of each entry, and the next child of the same parent."""
    first = array("i", [NOWHERE]) * len(parents)
    sibling = array("i", [NOWHERE]) * len(parents)
    for child in reversed(range(len(parents))):
        parent = parents[child]
        if parent != NOWHERE:
            sibling[child] = first[parent]
            first[parent] = child
    return first, sibling


# --- troubles

Severity = Literal["note", "warning", "damage"]


class Problem(NamedTuple):
    """One thing that is not as it should be; what is unknown, or does not apply, is `None`.

    `excerpt` shows a few characters of the bytes that it is about; what cannot be printed is a dot.
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
    """One row of the table: `remedy` is what a repair does, `None` if it leaves the thing alone."""

    severity: Severity
    remedy: str | None = None


_TAKEN_OUT = "is taken out; the file as it was is kept"

TROUBLES: dict[str, Trouble] = {
    # what the scanner finds
    "torn_tail": Trouble("damage", _TAKEN_OUT),
    "nul_run": Trouble("damage", _TAKEN_OUT),
    "not_json": Trouble("damage", _TAKEN_OUT),
    "bad_utf8": Trouble("damage", _TAKEN_OUT),
    "bom": Trouble("damage", _TAKEN_OUT),
    "glued": Trouble("damage", "each entry gets a line of its own"),
    "too_long": Trouble("damage"),
    "bad_utf8_inside": Trouble("warning"),
    "not_an_entry": Trouble("warning"),
    "blank": Trouble("note"),
    # the header
    "no_header": Trouble("damage", "a header is made from the file name and the first date"),
    "bad_header": Trouble("damage", "a header is made before it; the line stays"),
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
    # what entries name
    "lost_label": Trouble("note"),
    "lost_cut": Trouble("warning"),
    "unanswered_call": Trouble("note"),
    "uncalled_result": Trouble("note"),
    "missing_blob": Trouble("damage"),
    "damaged_blob": Trouble("damage"),
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
    "draft": Trouble("note"),
    "permissions": Trouble("warning"),
}

UNREADABLE = frozenset({"torn_tail", "nul_run", "not_json", "bad_utf8", "bom", "too_long"})
"""The kinds whose bytes nobody can read."""

REASONS: dict[str, str] = {
    "too_long": "stays: it is longer than what is read, and may be whole",
    "bad_utf8_inside": "stays: the entry can be read, with U+FFFD for the bytes",
    "not_an_entry": "stays: another program may know what it means",
    "missing_parent": "stays: readers take the entry for a root, and no parent is invented",
    "forward_parent": "stays: the order of lines is never changed",
    "cycle": "stays: readers cut the circle at its earliest entry",
    "unreachable": "stays: readers cut the circle at its earliest entry",
    "duplicate_id": "stays: readers take the later entry, and both lines are kept",
    "missing_blob": "stays: look for the blob in the trash or in a backup",
    "damaged_blob": "stays: look for the blob in the trash or in a backup",
    "old_version": "stays: opening the session for writing brings it up to date",
    "draft": "stays: opening the session recovers it",
    "permissions": "stays: change them yourself",
}
"""Why a repair leaves something alone, where that needs saying."""


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
    """A problem of a kind that the table knows."""
    severity, remedy = TROUBLES[kind]
    return Problem(kind, message, offset, length, line, entry_id, severity, remedy is not None, excerpt)


def remedy(kind: str) -> str:
    """What a repair does about a kind of problem."""
    return TROUBLES[kind].remedy or REASONS.get(kind, "stays as it is")


def printable(raw: bytes) -> str:
    """Bytes as a person may look at them: nothing in it can drive a terminal."""
    return "".join(c if c.isprintable() else "·" for c in raw.decode("utf-8", "replace"))


# --- diagnosis

MOST_OF_A_KIND = 1000  # problems kept in full; a file of garbage would otherwise fill the memory
EXCERPT = 32  # bytes
FAMILY_PREFIX = 4096  # others read no more than this to find the header
LISTED_PREFIX = 1 << 20  # nor do our listings read more than this

_REFERENCE = re.compile(rb'"blob:sha256:([0-9a-f]{64})"')

Peek = Callable[[int, int], bytes]
"""Gives bytes of the file: offset and length."""
BlobState = Callable[[str], str | None]
"""What is wrong with the blob of a hash: "missing_blob", "damaged_blob" or `None`."""
Numbered = tuple[int, Item]


def numbered(chunks: Iterable[bytes], scanner: Scanner) -> Iterator[Numbered]:
    """Every item of a file that comes in pieces, with the number of its line, from 1."""
    line, counted = 1, 0
    for chunk in chunks:
        start = scanner.offset
        for item in scanner.feed(chunk):
            at = max(item.offset - start, counted)  # a line that began in an earlier piece has no newline since
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
        self.header_at: int | None = None  # where the first record is that is no title slot
        self.first_date: str | None = None
        self.cwd: str | None = None
        self.entries = 0
        self.with_ids = 0
        self.accounted = 0
        self._counts: Counter[str] = Counter()
        self._version: int | None = None
        self._peek, self._blob = peek, blob
        self._kin = Kinship()
        self._offsets, self._lines = array("Q"), array("Q")
        self._labels = _Links()
        self._cuts = _Links()
        self._tools = IdTable()
        self._calls = _Links()
        self._results = _Links()
        self._blobs: dict[bytes, str | None] = {}

    def add(self, number: int, item: Item) -> None:
        """Take the next item of the file."""
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
        """Everything that was found; to be asked once, at the end."""
        if self.header_at is None:
            self._report("no_header", "the file holds no header and no entry")
        for code, entry, detail in self._kin.settle():
            self._report_entry(code, entry, detail)
        self._examine_labels()
        self._examine_cuts()
        self._examine_tools()
        for kind, count in self._counts.items():
            if count > MOST_OF_A_KIND:
                self.problems.append(problem(kind, f"{count - MOST_OF_A_KIND:,} more of this kind"))
        return sorted(self.problems, key=lambda p: float("inf") if p.offset is None else p.offset)

    # -- lines

    def _take_finding(self, number: int, finding: Finding) -> None:
        kind = "bad_utf8_inside" if finding.code == "bad_utf8" and not finding.length else finding.code
        self._report(kind, finding.detail, number, finding)

    def _take_first(self, number: int, line: Line) -> None:
        """The first record must be the header."""
        record = decode(line.raw)
        self._remember(record)
        if line.head.type != "session":
            self._report("no_header", f"the file begins with a {line.head.type} entry, not with a header", number, line)
            return
        if line.head.id is None:
            self._report("bad_header", "the header names no session", number, line)
            return
        self.session_id = line.head.id
        self._version = version_of(record)
        try:
            check_session_id(self.session_id)
        except InvalidId as error:
            self._report("unsafe_id", error.message, number, line)
        if self._version < VERSION:
            detail = f"the file has version {self._version}, the current one is {VERSION}"
            self._report("old_version", detail, number, line)
        elif self._version > VERSION:
            detail = f"the file has version {self._version}; this release knows {VERSION} and will only read it"
            self._report("new_version", detail, number, line)
        end = line.offset + len(line.raw)
        if end > LISTED_PREFIX:
            self._report("hidden_header", "the header ends so far behind that no listing finds it", number, line)
        elif end > FAMILY_PREFIX:
            self._report("long_header", "the header is longer than what some agents read of it", number, line)

    def _remember(self, record: dict[str, Any]) -> None:
        """Note what a header needs, in case that there is none in its place."""
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
                self._report("no_id", f"a {head.type} entry without an id; nothing can hang from it", number, line)
        else:
            self.with_ids += 1
            self._offsets.append(line.offset)
            self._lines.append(number)
            if not self._kin.add(head.id, head.parentId):
                detail = f"entry {head.id} appears more than once; the later one is meant"
                self._report("duplicate_id", detail, number, line)
            self._take_links(len(self._kin) - 1, line)
        if may_hold_refs(line.raw):
            self._take_blobs(number, line)

    def _take_links(self, entry: int, line: Line) -> None:
        """Remember what an entry names, until all entries are known."""
        role = line.head.message.role if line.head.message is not None else None
        if flags_of(line.head) & LABEL:
            target = decode(line.raw).get("targetId")
            self._labels.add(entry, self._kin.number(target) if isinstance(target, str) else NOWHERE)
        elif line.head.type == "compaction":
            kept = first_kept(decode(line.raw))
            if kept is not None:
                self._cuts.add(entry, self._kin.number(kept))
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
                what = "is not there" if state == "missing_blob" else "is not what its name says"
                self._report(state, f"the blob {digest} {what}", number, line)

    # -- links

    def _examine_labels(self) -> None:
        for entry, target in self._labels:
            if target == NOWHERE or self._kin.entry(target) == NOWHERE:
                self._report_entry(
                    "lost_label", entry, f"label {self._kin.name(entry)} names an entry that is not here"
                )

    def _examine_cuts(self) -> None:
        lineage = Lineage(self._kin.parents) if len(self._cuts) else None
        for entry, kept in self._cuts:
            target = self._kin.entry(kept)
            if target == NOWHERE or (lineage is not None and not lineage.leads(target, entry)):
                detail = f"compaction {self._kin.name(entry)} keeps entries from one on that is not on its path"
                self._report_entry("lost_cut", entry, detail)

    def _examine_tools(self) -> None:
        """On the active branch, calls and results belong together."""
        if not len(self._calls) and not len(self._results):
            return
        active = bytearray(len(self._kin))
        for entry in self._kin.path(len(self._kin) - 1):  # a marker of the leaf hangs from it
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
                detail = f"a result for tool call {self._tools.text(call)}, which is not on the branch"
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
        """Report something about an entry whose line was passed long ago."""
        self._counts[kind] += 1
        if self._counts[kind] <= MOST_OF_A_KIND:
            offset, line = self._offsets[entry], self._lines[entry]
            self.problems.append(problem(kind, message, offset=offset, line=line, entry_id=self._kin.name(entry)))


class _Links:
    """Pairs of numbers: an entry, and what it names."""

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
    """The hashes of the blobs that an entry names."""
    try:
        return blob_refs(decode(raw))
    except RecursionError:
        return {found.decode() for found in _REFERENCE.findall(raw)}  # too deep to tell a reference from a mere text


def _calls(content: Any) -> list[str]:
    """The ids of the tool calls in the content of a message."""
    blocks = content if isinstance(content, list) else []
    found = (block.get("id") for block in blocks if isinstance(block, dict) and block.get("type") == "toolCall")
    return [call for call in found if isinstance(call, str)]


# --- mending


class Copy(NamedTuple):
    """Bytes of the old file, from `start` to before `end`."""

    start: int
    end: int


Piece = Copy | bytes


class Mending:
    """One pass over a file; afterwards it knows what was done."""

    def __init__(self, peek: Peek, header: bytes | None = None, header_at: int | None = None) -> None:
        self.salvaged = 0  # entries that stood on a damaged line
        self._peek = peek
        self._header = header
        self._header_at = header_at

    def pieces(self, items: Iterable[Numbered], size: int) -> Iterator[Piece]:
        """The new file. `header` goes before the record at `header_at`, or first if there is none."""
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
            for number, piece in enumerate(kept):
                if number:
                    yield b"\n"
                yield piece
            copied = end if kept else self._behind_line_end(end)
        if copied < size:
            yield Copy(copied, size)

    def _needs_mending(self, line: list[Item]) -> bool:
        return any(_is_mended(item) if isinstance(item, Finding) else self._is_headers_place(item) for item in line)

    def _is_headers_place(self, item: Item) -> bool:
        return self._header is not None and item.offset == self._header_at

    def _kept(self, line: list[Item]) -> Iterator[Piece]:
        damaged = any(isinstance(item, Finding) and _is_mended(item) for item in line)
        for item in line:
            if isinstance(item, Line):
                if self._header is not None and self._is_headers_place(item):
                    yield self._header
                yield Copy(item.offset, _end(item))
                self.salvaged += damaged
            elif item.length and not _is_mended(item) and item.code != "blank":
                yield Copy(item.offset, _end(item))

    def _behind_line_end(self, at: int) -> int:
        """Where the next line begins, if this one has nothing more than its end."""
        while self._peek(at, 1) == b"\r":
            at += 1
        return at + 1 if self._peek(at, 1) == b"\n" else at


def _is_mended(finding: Finding) -> bool:
    if finding.code == "bad_utf8" and not finding.length:
        return False  # the entry itself can be read
    return TROUBLES[finding.code].remedy is not None


def _end(item: Item) -> int:
    return item.offset + (len(item.raw) if isinstance(item, Line) else item.length)
