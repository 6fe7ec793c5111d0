"""Checking session files, and repairing them.

A check reads the file from end to end with the careful scanner, never through an index or a cache, and never writes. A repair
keeps the file as it was, then puts a readable one in its place: what could be read stays byte for byte, what could not is
left out, nothing is invented. Both work on files that no session can be opened from.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from sessile.agents.reader import is_packed
from sessile.core import entries as make
from sessile.core.codec import encode
from sessile.core.diagnosis import UNREADABLE, Copy, Diagnosis, Mending, Piece, Problem, numbered, problem, remedy
from sessile.core.ids import check_session_id, new_session_id
from sessile.core.lines import Finding, Scanner
from sessile.core.text import iso_timestamp, parse_timestamp
from sessile.errors import (
    Invalid,
    InvalidId,
    NotASession,
    NotFound,
    SessionNotFound,
    StorageFailure,
    UnsafePath,
    Unsupported,
    storage_failures,
)
from sessile.storage import atomic, drafts
from sessile.storage.base import CHUNK
from sessile.storage.blobs import digest_of
from sessile.storage.layout import JOURNAL, artifacts_of
from sessile.storage.session_bytes import RawFile, is_held, journals

if TYPE_CHECKING:
    from sessile.storage.base import Blobs, Filesystem
    from sessile.store import Store

PATIENCE = 10.0  # seconds that a repair waits for another process
_NO_TIME = ("00", "00", "00", "000")

__all__ = ["Problem", "Repaired", "RepairPlan", "Report", "Step", "check", "check_all", "plan_repair", "repair"]


class Report(NamedTuple):
    """What a check found in the `size` bytes that it read.

    Lines, findings and line ends together are `bytes_accounted`, which is `size`, always. `rows` are counts of what became of
    the rows of a transcript of Claude Code: how many were read, loaded, are in the conversation, are progress or boundaries.
    """

    path: str
    id: str | None
    size: int
    entries: int
    problems: tuple[Problem, ...]
    bytes_accounted: int
    rows: Mapping[str, int] | None = None
    is_session: bool = True  # else nothing in it says so: no header, no entry with an id, nor the folder that it is in

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged; notes and warnings may still be there."""
        return not any(problem.severity == "damage" for problem in self.problems)

    @property
    def repairable(self) -> bool:
        """Whether a repair would change anything."""
        return self.is_session and any(problem.repairable for problem in self.problems)

    @property
    def summary(self) -> str | None:
        """The unreadable lines in one line of text; `None` if there are none."""
        unreadable = [(p.line, p.length) for p in self.problems if p.kind in UNREADABLE and p.line and p.length]
        if not unreadable:
            return None
        lines, size = {line for line, _ in unreadable}, sum(length for _, length in unreadable)
        told = f"{size:,} byte{'' if size == 1 else 's'}"
        if len(lines) == 1:
            return f"1 unreadable line (line {min(lines)}, {told})"
        return f"{len(lines):,} unreadable lines (the first is line {min(lines)}, {told})"


class Step(NamedTuple):
    """What a repair does about one problem."""

    problem: Problem
    action: str


class RepairPlan(NamedTuple):
    """What a repair would do; nothing has been changed."""

    path: str
    steps: tuple[Step, ...]
    dropped_bytes: int
    salvaged: int

    @property
    def changes(self) -> bool:
        """Whether the file would be rewritten at all."""
        return any(step.problem.repairable for step in self.steps)


class Repaired(NamedTuple):
    """What a repair did. `original` is where the file as it was is kept; `None` if nothing had to be changed.

    `salvaged` entries stood on damaged lines, `dropped_bytes` of the old file are not in the new one.
    """

    path: str
    original: str | None
    kept_entries: int
    salvaged: int
    dropped_bytes: int
    problems_before: tuple[Problem, ...]
    problems_after: tuple[Problem, ...]


# -- checking


def check(store: Store, ref: str) -> Report:
    """Read one session file from end to end: that of a session id, or any by its absolute path.

    Another agent's file is read as that agent's rows.
    """
    path = _locate(store, ref)
    report = _check_foreign(store, path)
    if report is not None:
        return report
    with RawFile(store.fs, path) as file:
        held = drafts.is_draft(path) and file.is_held()
        return _Examined(store, file).report(_look_around(store, path, held=held))


def _check_foreign(store: Store, path: str) -> Report | None:
    """The report on a file of another agent; `None` if it is none."""
    from sessile.agents.reader import open_foreign, problems_of

    try:
        reader = open_foreign(store.fs, path)
    except (NotASession, SessionNotFound, StorageFailure):
        return None  # what it is instead is found out below
    with closing(reader):
        size = sum(map(len, reader.pieces()))
        findings, rows = reader.findings(), None
        if reader.format.name == "claude" and not is_packed(path):
            findings, rows = _explain(store.fs, path)
        return Report(path, reader.session_id, size, reader.count(), tuple(problems_of(findings)), size, rows)


def _explain(fs: Filesystem, path: str) -> tuple[Sequence[Finding], Mapping[str, int]]:
    """What is wrong with a transcript of Claude Code, and what became of its rows."""
    from sessile.agents.claude.checking import check_transcript

    told = check_transcript(fs, path)
    rows = {
        "read": told.rows_read,
        "loaded": told.rows_loaded,
        "in_conversation": told.rows_in_chain,
        "progress": told.rows_of_progress,
        "boundaries": told.boundaries,
    }
    return told.findings, rows


def _refuse_foreign(store: Store, path: str) -> None:
    from sessile.agents.reader import format_name

    try:
        format_name(store.fs, path)
    except (NotASession, SessionNotFound, StorageFailure):
        return  # what it is instead is found out later
    hint = "import it: sessile import; what could be read is then in your own store"
    raise Unsupported("another agent's file is not repaired", path=path, hint=hint)


def _refuse_strange(report: Report) -> None:
    if not report.is_session:
        raise NotASession(path=report.path, hint="it was not changed; perhaps another agent wrote it")


def check_all(store: Store) -> Iterator[Report]:
    """A report on every session and draft of the store, by project; a file that cannot be read does not stop it."""
    for path, _ in journals(store.fs, store.layout.sessions):
        try:
            yield check(store, path)
        except SessionNotFound:
            continue  # moved or deleted since
        except StorageFailure as error:
            yield Report(path, None, 0, 0, (problem("unreadable", error.message),), 0)


class _Examined:
    """A file that was read once, carefully."""

    def __init__(self, store: Store, file: RawFile) -> None:
        scanner = Scanner()
        blobs = store.blobs.of_session(file.path)
        self.diagnosis = Diagnosis(file.peek, lambda digest: _blob_state(blobs, digest))
        for number, item in numbered(file.chunks(), scanner):
            self.diagnosis.add(number, item)
        self.path = file.path
        self.is_session = bool(not self.lacks_header or self.diagnosis.with_ids or store.layout.owns(file.path))
        self.size = scanner.offset  # what was read: another program may have cut the file meanwhile
        self.accounted = self.diagnosis.accounted + scanner.newline_bytes
        self.problems = self.diagnosis.finish()

    @property
    def lacks_header(self) -> bool:
        """Whether there is no header in its place."""
        return self.diagnosis.session_id is None

    def mending(self, store: Store, file: RawFile) -> Mending:
        """The way to make it readable."""
        if not self.lacks_header:
            return Mending(file.peek)
        return Mending(file.peek, _new_header(store, self.path, self.diagnosis), self.diagnosis.header_at)

    def report(self, beside: list[Problem]) -> Report:
        diagnosis = self.diagnosis
        found = (*self.problems, *beside)
        return Report(
            self.path,
            diagnosis.session_id,
            self.size,
            diagnosis.entries,
            found,
            self.accounted,
            is_session=self.is_session,
        )


def _blob_state(blobs: Blobs, digest: str) -> str | None:
    try:
        return None if digest_of(blobs.pieces(digest)) == digest else "damaged_blob"
    except NotFound:
        return "missing_blob"
    except UnsafePath:
        return "damaged_blob"  # a link or a folder in its place


def _look_around(store: Store, path: str, *, held: bool) -> list[Problem]:
    """What is wrong with the file itself and beside it. `held` says whether somebody has the file open as a draft."""
    found = []
    draft = drafts.draft_path(drafts.published_path(path))
    if draft != path:
        held = not atomic.exists(store.fs, draft) or is_held(store.fs, draft)
    if not held:
        found.append(problem("draft", f"{posixpath.basename(draft)} was left behind, perhaps by a crash"))
    if store.layout.owns(path):
        for name in (path, posixpath.dirname(path), artifacts_of(path)):
            found += _permissions(store.fs, name)
    return found


def _permissions(fs: Filesystem, path: str) -> list[Problem]:
    if not atomic.exists(fs, path):
        return []
    with storage_failures(path, "look at the permissions"):
        mode = stat.S_IMODE(fs.lstat(path).st_mode)
    if not mode & 0o077:
        return []
    return [problem("permissions", f"others may look at {posixpath.basename(path)}: its mode is {mode:04o}")]


# -- repairing


def plan_repair(store: Store, ref: str) -> RepairPlan:
    """What `repair` would do to a file, problem by problem. Nothing is changed."""
    path = _locate(store, ref)
    _refuse_foreign(store, path)
    with RawFile(store.fs, path) as file:
        held = drafts.is_draft(path) and file.is_held()
        examined = _Examined(store, file)
        report = examined.report(_look_around(store, path, held=held))
        _refuse_strange(report)
        mending = examined.mending(store, file)
        pieces = mending.pieces(numbered(file.chunks(), Scanner()), report.size)
        copied = sum(piece.end - piece.start for piece in pieces if isinstance(piece, Copy))
    steps = tuple(Step(problem, remedy(problem.kind)) for problem in report.problems)
    return RepairPlan(path, steps, report.size - copied, mending.salvaged)


def repair(store: Store, ref: str, *, in_place: bool = False, patience: float = PATIENCE) -> Repaired:
    """Make a damaged file readable, under its lock; the file as it was is kept among the originals of the store.

    A file that is not the store's own is refused unless `in_place` is set, and never gets a header if no entry in it has an id:
    it may be another program's. A file without repairable damage is not touched.
    """
    path = _locate(store, ref)
    _refuse_foreign(store, path)
    if not store.layout.owns(path) and not in_place:
        raise Invalid(
            "the file is not one of this store", path=path, hint="repair it in place if no other program uses it now"
        )
    with RawFile(store.fs, path) as file:
        file.hold(patience)
        examined = _Examined(store, file)
        before = examined.report(_look_around(store, path, held=False))
        _refuse_strange(before)
        if not before.repairable:
            return Repaired(path, None, before.entries, 0, 0, before.problems, before.problems)
        original = store.original_path(path)
        mending = examined.mending(store, file)
        copied = _Copied(file)
        pieces = mending.pieces(numbered(file.chunks(), Scanner()), file.size)
        file.replace(copied.chunks(pieces), original)
    after = check(store, path)
    dropped = before.size - copied.bytes
    return Repaired(path, original, after.entries, mending.salvaged, dropped, before.problems, after.problems)


class _Copied:
    """The pieces of a new file as bytes, in blocks; afterwards it knows how much of them is from the old one."""

    def __init__(self, file: RawFile) -> None:
        self.bytes = 0
        self._file = file

    def chunks(self, pieces: Iterable[Piece]) -> Iterator[bytes]:
        """The content of the new file."""
        block: list[bytes] = []
        held = 0
        for data in self._read(pieces):
            block.append(data)
            held += len(data)
            if held >= CHUNK:
                yield b"".join(block)
                block, held = [], 0
        if block:
            yield b"".join(block)

    def _read(self, pieces: Iterable[Piece]) -> Iterator[bytes]:
        for piece in pieces:
            if isinstance(piece, bytes):
                yield piece
                continue
            for data in self._file.chunks(piece.start, piece.end):
                self.bytes += len(data)
                yield data


def _new_header(store: Store, path: str, diagnosis: Diagnosis) -> bytes:
    """A header for a file that has none. What nobody knows stays empty: the folder of the project can be set later."""
    stem = posixpath.basename(drafts.published_path(path)).removesuffix(JOURNAL)
    stamp, _, session_id = stem.partition("_")
    try:
        check_session_id(session_id)
    except InvalidId:
        session_id = new_session_id(store.now(), store.random)
    date = diagnosis.first_date or _date_in(stamp) or iso_timestamp(store.now())
    header = make.header(session_id, date, diagnosis.cwd or "")
    if diagnosis.entries and not diagnosis.with_ids:
        del header["version"]  # entries without ids are those of version 1
    return encode(header)


def _date_in(stamp: str) -> str | None:
    """The date that a file name begins with."""
    day, _, time = stamp.partition("T")
    hours, minutes, seconds, fraction = (*time.removesuffix("Z").split("-"), *_NO_TIME)[:4]
    date = f"{day}T{hours}:{minutes}:{seconds}.{fraction}Z"
    return date if parse_timestamp(date) is not None else None


# -- files


def _locate(store: Store, ref: str) -> str:
    """The file that is meant: an absolute path, or the id of a session, whose header may be lost."""
    if posixpath.isabs(ref):
        return posixpath.normpath(ref)
    ending = f"_{check_session_id(ref)}"
    for path, _ in journals(store.fs, store.layout.sessions):
        if posixpath.splitext(path)[0].endswith(ending):
            return path
    raise SessionNotFound(f"there is no session {ref!r}", path=store.layout.sessions, hint="list the sessions")
