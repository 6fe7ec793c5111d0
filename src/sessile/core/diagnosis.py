"""What the lines of a session file say about its health.

Feed it every item of the careful scanner with the number of its line, then `finish`. It holds a few dozen bytes an entry and
no body, keeps the first problems of each kind and counts the rest, so that a file of any size can be examined. The bytes for
excerpts and the state of blobs are arguments; nothing here opens a file.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sessile.core.codec import decode
from sessile.core.context import first_kept
from sessile.core.id_table import IdTable
from sessile.core.ids import check_session_id
from sessile.core.kinds import LABEL, flags_of
from sessile.core.kinship import NOWHERE, Kinship, Lineage
from sessile.core.large import blob_refs, may_hold_refs
from sessile.core.lines import Finding, Item, Line, Scanner
from sessile.core.migrate import VERSION, version_of
from sessile.core.text import parse_timestamp
from sessile.core.troubles import Problem, printable, problem
from sessile.errors import InvalidId

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
