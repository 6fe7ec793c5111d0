"""Explaining a transcript: what was read, what a reader loads of it, and what is wrong with it, with the place of each thing.

Rules: nothing is changed. Every byte that no row covers is told as the scanner finds it (torn, glued, NUL, not UTF-8), every
link that leads nowhere or where it should not, and rows that belong to another session or folder. One line a thing, in the
order of the file; a thing that a whole session does is told once, with how often.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from sessile.agents.claude.chain import ASSISTANT, BOUNDARY, NOBODY, OFF_MAIN, PROGRESS, USER, Heads, conversation
from sessile.agents.claude.paths import session_of, slug
from sessile.agents.claude.rows import View
from sessile.core.lines import Finding, Item, Line, Scanner
from sessile.storage.base import Filesystem
from sessile.storage.session_bytes import RawFile


@dataclass(frozen=True, slots=True)
class TranscriptReport:
    """What a check says: rows that were read, those that make up the tree, those in the conversation, and findings."""

    path: str
    rows_read: int
    rows_loaded: int
    rows_in_chain: int
    rows_of_progress: int
    boundaries: int
    findings: tuple[Finding, ...]


class _Origin(msgspec.Struct, gc=False):
    sessionId: str | None = None
    cwd: str | None = None


_decode_origin = msgspec.json.Decoder(_Origin).decode


def check_transcript(fs: Filesystem, path: str, *, view: View = "ts") -> TranscriptReport:
    """Look at every row of a transcript and say what is wrong with it."""
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
        detail = f"{in_chain} rows of progress are links of the conversation; they are bridged"
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
    )


def _links(heads: Heads) -> Iterator[Finding]:
    """Parents that are missing, or that lie before the last boundary while the row lies behind it."""
    last = max(heads.boundaries, default=NOBODY)
    for row in range(len(heads)):
        number = heads.uuid[row]
        offset, _ = heads.place(row)
        if heads.row_of[number] != row:
            yield Finding("repeated_uuid", offset, 0, "a later row has the same uuid; it counts")
        parent = heads.parent[row]
        if parent == NOBODY:
            continue
        above = heads.row_of[parent]
        if above == NOBODY:
            yield Finding("dangling_parent", offset, 0, "the parent is not in the file; what lies above it is cut off")
        elif above < last < row and not heads.flags[row] & OFF_MAIN and heads.kind[row] != PROGRESS:
            detail = "the parent lies before the compaction, so the conversation goes back behind it"
            yield Finding("parent_before_boundary", offset, 0, detail)


def _boundaries(heads: Heads) -> Iterator[Finding]:
    """Boundaries with nothing said between them, or that hang from the history that they end."""
    spoken_since = True
    for row in range(len(heads)):
        if heads.flags[row] & BOUNDARY:
            offset, _ = heads.place(row)
            if not spoken_since:
                yield Finding("double_boundary", offset, 0, "nothing was said since the boundary before")
            if heads.parent[row] != NOBODY:
                yield Finding(
                    "boundary_with_parent", offset, 0, "a boundary has no parent; this one leads to old history"
                )
            spoken_since = False
        elif heads.kind[row] in (USER, ASSISTANT):
            spoken_since = True


class _Origins:
    """The sessions and folders that rows say they belong to."""

    def __init__(self, path: str) -> None:
        self.rows = 0
        self._session = session_of(
            posixpath.basename(path)
        )  # a sub-agent has the id of its parent, which the folder tells
        self._folder = posixpath.basename(posixpath.dirname(path))
        self._foreign: Counter[str] = Counter()
        self._first: dict[str, int] = {}
        self._cwd: tuple[str, int] | None = None

    def take(self, items: Iterator[Item], findings: list[Finding]) -> None:
        """Count rows, and keep what the scanner has found."""
        for item in items:
            if isinstance(item, Line):
                self.rows += 1
                self._look(item)
            else:
                findings.append(item)

    def _look(self, line: Line) -> None:
        try:
            origin = _decode_origin(line.raw)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return  # members of other types tell nothing
        if origin.sessionId and self._session and origin.sessionId != self._session:
            self._foreign[origin.sessionId] += 1
            self._first.setdefault(origin.sessionId, line.offset)
        if origin.cwd and self._cwd is None:
            self._cwd = origin.cwd, line.offset

    def findings(self) -> Iterator[Finding]:
        """What does not belong where it is."""
        for session_id, count in self._foreign.items():
            detail = f"{count} rows say that they belong to session {session_id}"
            yield Finding("foreign_session", self._first[session_id], 0, detail)
        if self._session and self._cwd and slug(self._cwd[0]) != self._folder:
            cwd, offset = self._cwd
            detail = f"begun in {cwd}, which has the folder {slug(cwd)}, but lies in {self._folder}"
            yield Finding("path_mismatch", offset, 0, detail)
