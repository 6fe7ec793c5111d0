"""Check a transcript: what it contains, what a reader loads of it, and what is wrong with it.

Nothing is changed. Findings are bytes that are not rows (torn, glued, NUL, not UTF-8), links that lead nowhere or to
the wrong place, and rows of another session or folder. They are in file order; a problem of the whole session is
reported once, with a count.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from sessile.agents.claude.chain import ABSENT, ASSISTANT, BOUNDARY, OFF_MAIN, PROGRESS, USER, Heads, conversation
from sessile.agents.claude.paths import session_of, slug
from sessile.agents.claude.rows import View
from sessile.core.lines import Finding, Item, Line, Scanner
from sessile.storage.base import Filesystem
from sessile.storage.session_bytes import RawFile


@dataclass(frozen=True, slots=True)
class TranscriptReport:
    """The result of a check: rows in the file, in the tree and in the conversation, and the findings."""

    path: str
    rows_read: int
    rows_loaded: int
    rows_in_chain: int
    rows_of_progress: int
    boundaries: int
    findings: tuple[Finding, ...]
    rows_beside: Mapping[str, int]  # rows beside the conversation, by type


class _Origin(msgspec.Struct, gc=False):
    sessionId: str | None = None
    cwd: str | None = None
    uuid: str | None = None


_decode_origin = msgspec.json.Decoder(_Origin).decode


def check_transcript(fs: Filesystem, path: str, *, view: View = "ts") -> TranscriptReport:
    """Check every row of a transcript."""
    heads, origins = Heads(view), _Origins(path)
    findings: list[Finding] = []
    with RawFile(fs, path) as file:
        scanner = Scanner()
        for chunk in file.chunks():
            heads.feed(chunk)
            origins.take(scanner.feed(chunk), findings)
        heads.finish()
        origins.take(scanner.finish(), findings)
    findings += [*_links(heads), *_boundaries(heads), *origins.findings()]
    chain = conversation(heads, lambda row: "").rows
    in_chain = sum(heads.kind[row] == PROGRESS for row in chain)
    if in_chain:
        first = next(row for row in chain if heads.kind[row] == PROGRESS)
        detail = f"{in_chain} progress rows are links of the conversation; readers skip them"
        findings.append(Finding("progress_in_chain", heads.place(first)[0], 0, detail))
    findings.sort(key=lambda finding: finding.offset)
    return TranscriptReport(
        path=path,
        rows_read=origins.rows,
        rows_loaded=sum(kind != PROGRESS for kind in heads.kind),
        rows_in_chain=len(chain) - in_chain,
        rows_of_progress=sum(kind == PROGRESS for kind in heads.kind),
        boundaries=len(heads.boundaries),
        findings=tuple(findings),
        rows_beside=dict(sorted(origins.beside.items())),
    )


def _links(heads: Heads) -> Iterator[Finding]:
    """Yield findings about parents that are missing, or that are before the last boundary while the row is after it."""
    last = max(heads.boundaries, default=ABSENT)
    for row in range(len(heads)):
        number = heads.uuid[row]
        offset, _ = heads.place(row)
        if heads.row_of[number] != row:
            yield Finding("repeated_uuid", offset, 0, "a later row has the same uuid and replaces this one")
        parent = heads.parent[row]
        if parent == ABSENT:
            continue
        above = heads.row_of[parent]
        if above == ABSENT:
            yield Finding("dangling_parent", offset, 0, "the parent is not in the file; the rows above it are lost")
        elif above < last < row and not heads.flags[row] & OFF_MAIN and heads.kind[row] != PROGRESS:
            detail = "the parent is before the compaction, so the conversation includes the compacted rows"
            yield Finding("parent_before_boundary", offset, 0, detail)


def _boundaries(heads: Heads) -> Iterator[Finding]:
    """Yield findings about boundaries with no message between them, or with a parent."""
    message_since = True
    for row in range(len(heads)):
        if heads.flags[row] & BOUNDARY:
            offset, _ = heads.place(row)
            if not message_since:
                yield Finding("double_boundary", offset, 0, "there is no message since the previous boundary")
            if heads.parent[row] != ABSENT:
                yield Finding(
                    "boundary_with_parent",
                    offset,
                    0,
                    "a boundary must not have a parent; this one leads to compacted rows",
                )
            message_since = False
        elif heads.kind[row] in (USER, ASSISTANT):
            message_since = True


class _Origins:
    """The sessions and folders that the rows name."""

    def __init__(self, path: str) -> None:
        self.rows = 0
        self._session = session_of(posixpath.basename(path))  # None for a sub-agent, whose rows name the parent's id
        self._folder = posixpath.basename(posixpath.dirname(path))
        self._foreign: Counter[str] = Counter()
        self._first: dict[str, int] = {}
        self._cwd: tuple[str, int] | None = None
        self.beside: Counter[str] = Counter()

    def take(self, items: Iterator[Item], findings: list[Finding]) -> None:
        """Count the rows, and add the findings of the scanner."""
        for item in items:
            if isinstance(item, Line):
                self.rows += 1
                self._check(item)
            else:
                findings.append(item)

    def _check(self, line: Line) -> None:
        try:
            origin = _decode_origin(line.raw)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return  # members of other types
        if origin.uuid is None:
            self.beside[line.head.type] += 1
        if origin.sessionId and self._session and origin.sessionId != self._session:
            self._foreign[origin.sessionId] += 1
            self._first.setdefault(origin.sessionId, line.offset)
        if origin.cwd and self._cwd is None:
            self._cwd = origin.cwd, line.offset

    def findings(self) -> Iterator[Finding]:
        """Yield findings about rows of another session or folder."""
        for session_id, count in self._foreign.items():
            detail = f"{count} rows belong to session {session_id}"
            yield Finding("foreign_session", self._first[session_id], 0, detail)
        if self._session and self._cwd and slug(self._cwd[0]) != self._folder:
            cwd, offset = self._cwd
            detail = f"started in {cwd}, whose folder is {slug(cwd)}, but the file is in {self._folder}"
            yield Finding("path_mismatch", offset, 0, detail)
