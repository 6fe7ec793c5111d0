"""Check session files, and repair them.

Both work on files that cannot be opened as a session.

Rules:

- A check reads the whole file with the scanner, never through an index or a cache, and never changes it. Then it compares the
  index and, with a library, the rows and words of the catalog with the file. What differs is reported as a problem of the
  cache and removed, so that the next reader makes it again.
- A repair first keeps a copy of the original, then replaces the file with a readable one. Readable lines stay byte for byte,
  unreadable bytes are dropped, and nothing is made up.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from sessile.agents.reader import ForeignReader, agent_of, open_foreign, problems_of
from sessile.core import entries as make
from sessile.core.codec import encode
from sessile.core.diagnosis import UNREADABLE, Copy, Diagnosis, Mending, Piece, Problem, numbered, problem, remedy
from sessile.core.ids import check_session_id, new_session_id
from sessile.core.lines import Scanner
from sessile.core.text import iso_timestamp, parse_timestamp
from sessile.errors import (
    Invalid,
    InvalidId,
    NotASession,
    NotFound,
    SessileError,
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
from sessile.storage.packed import is_packed
from sessile.storage.reader import JournalReader
from sessile.storage.session_bytes import RawFile, journals

if TYPE_CHECKING:
    from sessile.library import Library
    from sessile.storage.base import Blobs, Filesystem
    from sessile.store import Store

PATIENCE = 10.0  # seconds that a repair waits for the lock of another process
_NO_TIME = ("00", "00", "00", "000")

__all__ = ["Problem", "Repaired", "RepairPlan", "Report", "Step", "check", "check_all", "plan_repair", "repair"]


class Report(NamedTuple):
    """The result of a check of `size` bytes.

    `bytes_accounted` is the sum of lines, findings and line ends, and always equals `size`. `rows` counts the rows of a Claude
    Code transcript: how many were read, loaded, are in the conversation, are progress or boundaries.
    """

    path: str
    id: str | None
    size: int
    entries: int
    problems: tuple[Problem, ...]
    bytes_accounted: int
    rows: Mapping[str, int] | None = None
    is_session: bool = True  # False: no header, no entry with an id, and not in the store's folder
    agent: str | None = None  # the agent whose file it is; `None` for a session of ours

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged; there may still be notes and warnings."""
        return not any(problem.severity == "damage" for problem in self.problems)

    @property
    def repairable(self) -> bool:
        """Whether a repair would change anything."""
        return self.is_session and any(problem.repairable for problem in self.problems)

    @property
    def gaps(self) -> int:
        """The number of entries whose parent is missing, as far as they are listed."""
        return sum(problem.kind in ("missing_parent", "dangling_parent") for problem in self.problems)

    @property
    def summary(self) -> str | None:
        """A one-line summary of the unreadable lines; `None` if there are none."""
        unreadable = [(p.line, p.length) for p in self.problems if p.kind in UNREADABLE and p.line and p.length]
        if not unreadable:
            return None
        lines, size = {line for line, _ in unreadable}, sum(length for _, length in unreadable)
        amount = f"{size:,} byte{'' if size == 1 else 's'}"
        if len(lines) == 1:
            return f"1 unreadable line (line {min(lines)}, {amount})"
        return f"{len(lines):,} unreadable lines (the first is line {min(lines)}, {amount})"


class Step(NamedTuple):
    """What a repair does about one problem."""

    problem: Problem
    action: str


class RepairPlan(NamedTuple):
    """What a repair would do. Nothing has been changed."""

    path: str
    steps: tuple[Step, ...]
    dropped_bytes: int
    salvaged: int

    @property
    def changes(self) -> bool:
        """Whether the file would be rewritten."""
        return any(step.problem.repairable for step in self.steps)


class Repaired(NamedTuple):
    """What a repair did. `original` is the path of the kept original; `None` if nothing had to be changed.

    `salvaged` is the number of entries found on damaged lines; `dropped_bytes` of the old file are not in the new one.
    """

    path: str
    original: str | None
    kept_entries: int
    salvaged: int
    dropped_bytes: int
    problems_before: tuple[Problem, ...]
    problems_after: tuple[Problem, ...]


# -- checking


def check(store: Store, ref: str, *, library: Library | None = None) -> Report:
    """Check one session file. Nothing is changed, except that wrong parts of the cache are removed.

    A file of another agent is checked with that agent's reader.

    Args:
        store: The store.
        ref: A session id, or the absolute path of a file.
        library: Also compare the catalog of this library with the file.

    Returns:
        The report: every problem with its position. Its `ok` is true if nothing is damaged.

    Raises:
        SessionNotFound: There is no such session.

    Example:
        ```python
        report = check(store, session_id)
        for problem in report.problems:
            print(problem.severity, problem.kind, problem.message)
        ```
    """
    path = _locate(store, ref)
    report = _check_foreign(store, path)
    if report is None:
        with RawFile(store.fs, path) as file:
            held = drafts.is_draft(path) and file.is_held()
            report = _Examined(store, file).report(_look_around(store, path, held=held))
    wrong = _check_caches(store, path, library)
    return report._replace(problems=(*report.problems, *wrong)) if wrong else report


def _check_caches(store: Store, path: str, library: Library | None) -> list[Problem]:
    """Compare the caches with the file, and remove what differs."""
    found = []
    differences = _index_differences(store, path)
    if differences:
        atomic.remove(store.fs, store.layout.index(drafts.published_path(path)))
        found.append(_wrong_cache("index", differences))
    differences = [] if library is None else library.compare(path)
    if library is not None and differences:
        library.forget(path)
        found.append(_wrong_cache("catalog", differences))
    return found


def _index_differences(store: Store, path: str) -> Sequence[str]:
    index = store.layout.index(drafts.published_path(path))
    try:
        if not atomic.exists(store.fs, index):
            return ()
        agent = agent_of(store.fs, path)
        if agent is None:
            reader = JournalReader(store.fs, path, index_path=index)
        else:
            reader = ForeignReader(store.fs, path, agent, index_path=index)
    except (SessileError, OSError):
        return ()  # no reader would use the index, and the report says why
    with closing(reader):
        return reader.compare_index()


def _wrong_cache(name: str, differences: Sequence[str]) -> Problem:
    more = f" and {len(differences) - 1} more" if len(differences) > 1 else ""
    message = f"the {name} did not match the file, and was removed ({differences[0]}{more})"
    return problem("wrong_cache", f"{message}; it is made again when it is needed")


def _check_foreign(store: Store, path: str) -> Report | None:
    """Return the report on a file of another agent; `None` if it is not one."""
    try:
        reader = open_foreign(store.fs, path)
    except (NotASession, SessionNotFound, StorageFailure):
        return None  # the caller reports what it is instead
    with closing(reader):
        size = sum(map(len, reader.pieces()))
        findings, rows = reader.findings(), None
        explained = None if is_packed(path) or reader.agent.rendered else reader.agent.check(store.fs, path)
        if explained is not None:
            findings, rows = explained
        problems = tuple(problems_of(findings))
        return Report(path, reader.session_id, size, reader.count(), problems, size, rows, agent=reader.agent.name)


def _refuse_foreign(store: Store, path: str) -> None:
    try:
        if agent_of(store.fs, path) is None:
            return
    except (SessionNotFound, StorageFailure):
        return  # the repair reports what it is instead
    hint = "run `sessile import` to copy the readable part into your own store"
    raise Unsupported("files of other agents cannot be repaired", path=path, hint=hint)


def _require_session(report: Report) -> None:
    if not report.is_session:
        raise NotASession(path=report.path, hint="check the path; nothing was changed")


def check_all(store: Store, *, library: Library | None = None) -> Iterator[Report]:
    """Yield a report on every session and draft of the store, by project; a file that cannot be read does not stop it.

    With a library, its catalog is compared with the files.
    """
    for path, _ in journals(store.fs, store.layout.sessions):
        try:
            yield check(store, path, library=library)
        except SessionNotFound:
            continue  # moved or deleted by another process
        except StorageFailure as error:
            yield Report(path, None, 0, 0, (problem("unreadable", error.message),), 0)


class _Examined:
    """A session file that was read once with the scanner."""

    def __init__(self, store: Store, file: RawFile, bridge: bool | None = None) -> None:
        scanner = Scanner()
        blobs = store.blobs.of_session(file.path)
        self.diagnosis = Diagnosis(file.peek, lambda digest: _blob_state(blobs, digest))
        for number, item in numbered(file.chunks(), scanner):
            self.diagnosis.add(number, item)
        self.path = file.path
        self.is_session = bool(not self.lacks_header or self.diagnosis.with_ids or store.layout.owns(file.path))
        self.size = scanner.offset  # bytes read: another program may have truncated the file
        self.accounted = self.diagnosis.accounted + scanner.newline_bytes
        self.problems = self.diagnosis.finish()
        self.bridges: dict[int, str] | None = self.diagnosis.bridges() if bridge else {} if bridge is None else None

    @property
    def lacks_header(self) -> bool:
        """Whether the header is missing."""
        return self.diagnosis.session_id is None

    def mending(self, store: Store, file: RawFile) -> Mending:
        """Return what makes the file readable."""
        if not self.lacks_header:
            return Mending(file.peek, bridges=self.bridges)
        header = _new_header(store, self.path, self.diagnosis)
        return Mending(file.peek, header, self.diagnosis.header_at, self.bridges)

    def action(self, problem: Problem) -> str:
        """Return what the repair does about a problem."""
        if problem.kind == "bridged" and self.bridges is None:
            return "the bridge is removed; the entry gets its missing parent back"
        if problem.kind == "missing_parent" and self.bridges:
            if problem.offset is None:  # it says how many more there are
                return "the same"
            parent = self.bridges.get(problem.offset)
            return (
                "stays: no entry comes before it" if parent is None else f"connected to the entry before it, {parent}"
            )
        return remedy(problem.kind)

    def report(self, beside: list[Problem]) -> Report:
        diagnosis = self.diagnosis
        found = (*map(self._with_bridges, self.problems), *beside)
        return Report(
            self.path,
            diagnosis.session_id,
            self.size,
            diagnosis.entries,
            found,
            self.accounted,
            is_session=self.is_session,
        )

    def _with_bridges(self, problem: Problem) -> Problem:
        """Mark the problems that this repair solves by building bridges or removing them."""
        if self.bridges is None:
            return problem._replace(repairable=True) if problem.kind == "bridged" else problem
        bridged = problem.kind == "missing_parent" and problem.offset in self.bridges
        return problem._replace(repairable=True) if bridged else problem


def _blob_state(blobs: Blobs, digest: str) -> str | None:
    try:
        return None if digest_of(blobs.pieces(digest)) == digest else "damaged_blob"
    except NotFound:
        return "missing_blob"
    except UnsafePath:
        return "damaged_blob"  # there is a link or a folder instead


def _look_around(store: Store, path: str, *, held: bool) -> list[Problem]:
    """Return problems with drafts and permissions. `held` is whether a process writes the file as a draft."""
    found = []
    published, draft = drafts.published_path(path), drafts.draft_path(path)
    if atomic.exists(store.fs, published) and atomic.exists(store.fs, draft):
        both = f"there are two files of one name: {posixpath.basename(published)} and {posixpath.basename(draft)}"
        found.append(problem("second_draft", both))
    elif drafts.is_draft(path) and not held:
        found.append(problem("draft", "the draft has no writer any more, and other programs do not list it"))
    if store.layout.owns(path):
        for name in (path, posixpath.dirname(path), artifacts_of(path)):
            found += _permissions(store.fs, name)
    return found


def _permissions(fs: Filesystem, path: str) -> list[Problem]:
    if not atomic.exists(fs, path):
        return []
    with storage_failures(path, "read the permissions"):
        mode = stat.S_IMODE(fs.lstat(path).st_mode)
    if not mode & 0o077:
        return []
    return [problem("permissions", f"other users can read {posixpath.basename(path)}: its mode is {mode:04o}")]


# -- repairing


def plan_repair(store: Store, ref: str, *, bridge: bool | None = None) -> RepairPlan:
    """Return what `repair` would do, problem by problem. Nothing is changed."""
    path = _locate(store, ref)
    _refuse_foreign(store, path)
    with RawFile(store.fs, path) as file:
        held = drafts.is_draft(path) and file.is_held()
        examined = _Examined(store, file, bridge)
        report = examined.report(_look_around(store, path, held=held))
        _require_session(report)
        mending = examined.mending(store, file)
        pieces = mending.pieces(numbered(file.chunks(), Scanner()), report.size)
        copied = sum(piece.end - piece.start for piece in pieces if isinstance(piece, Copy))
    steps = tuple(Step(problem, examined.action(problem)) for problem in report.problems)
    return RepairPlan(path, steps, report.size - copied, mending.salvaged)


def repair(
    store: Store, ref: str, *, in_place: bool = False, bridge: bool | None = None, patience: float = PATIENCE
) -> Repaired:
    """Make a damaged file readable, under its lock. The original is kept in the store's folder of originals.

    A file without repairable damage is not touched. A draft that no process writes is published. A file outside the store
    never gets a header if no entry in it has an id: it may belong to another program.

    Args:
        store: The store.
        ref: A session id, or the absolute path of a file.
        in_place: Also repair a file outside the store.
        bridge: Connect entries whose parent is missing to the nearest earlier entry; `False` removes such bridges.
        patience: How long to wait for the lock of another process, in seconds.

    Returns:
        Where the original is, and what was salvaged and dropped.

    Raises:
        Invalid: The file is outside the store, and `in_place` is not set.
        SessionBusy: Another process has locked the file.
        SessionNotFound: There is no such session.

    Example:
        ```python
        if not check(store, session_id).ok:
            print(repair(store, session_id).original)
        ```
    """
    path = _locate(store, ref)
    _refuse_foreign(store, path)
    if not store.layout.owns(path) and not in_place:
        hint = "make sure that no other program uses the file, then pass in_place=True"
        raise Invalid("the file is not in this store", path=path, hint=hint)
    with RawFile(store.fs, path) as file:
        file.hold(min(patience, drafts.PATIENCE) if drafts.is_draft(path) else patience)
        examined = _Examined(store, file, bridge)
        before = examined.report(_look_around(store, path, held=False))
        _require_session(before)
        damaged = any(problem.repairable and problem.kind != "draft" for problem in before.problems)
        if not damaged and not before.repairable:
            return Repaired(path, None, before.entries, 0, 0, before.problems, before.problems)
        mending = examined.mending(store, file)
        copied = _Copied(file)
        original = store.original_path(path) if damaged else None
        if original is not None:
            pieces = mending.pieces(numbered(file.chunks(), Scanner()), file.size)
            file.replace(copied.chunks(pieces), original)
            original = store._keep_once(original)
    if drafts.is_draft(path) and drafts.recover_one(store.fs, store.journals, path):
        path = drafts.published_path(path)
    after = check(store, path)
    dropped = 0 if original is None else before.size - copied.bytes
    return Repaired(path, original, after.entries, mending.salvaged, dropped, before.problems, after.problems)


class _Copied:
    """Turns the pieces of a new file into blocks of bytes, and counts the `bytes` that are from the old file."""

    def __init__(self, file: RawFile) -> None:
        self.bytes = 0
        self._file = file

    def chunks(self, pieces: Iterable[Piece]) -> Iterator[bytes]:
        """Yield the content of the new file."""
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
    """Return a header for a file that has none. An unknown project folder stays empty: it can be set later."""
    stem = posixpath.basename(drafts.published_path(path)).removesuffix(JOURNAL)
    stamp, _, session_id = stem.partition("_")
    try:
        check_session_id(session_id)
    except InvalidId:
        session_id = new_session_id(store.now(), store.random)
    date = diagnosis.first_date or _date_in(stamp) or iso_timestamp(store.now())
    header = make.header(session_id, date, diagnosis.cwd or "")
    if diagnosis.entries and not diagnosis.with_ids:
        del header["version"]  # entries without ids are version 1
    return encode(header)


def _date_in(stamp: str) -> str | None:
    """Return the date at the start of a file name."""
    day, _, time = stamp.partition("T")
    hours, minutes, seconds, fraction = (*time.removesuffix("Z").split("-"), *_NO_TIME)[:4]
    date = f"{day}T{hours}:{minutes}:{seconds}.{fraction}Z"
    return date if parse_timestamp(date) is not None else None


# -- files


def _locate(store: Store, ref: str) -> str:
    """Return the path of a session file, given by absolute path or by session id; its header may be missing."""
    if posixpath.isabs(ref):
        return drafts.located(store.fs, posixpath.normpath(ref))
    ending = f"_{check_session_id(ref)}"
    files = (path for path, _ in journals(store.fs, store.layout.sessions))
    named = [path for path in files if posixpath.splitext(path)[0].endswith(ending)]
    if named:
        return min(named, key=drafts.is_draft)
    raise SessionNotFound(
        f"session not found: {ref!r}", path=store.layout.sessions, hint="run `sessile ls` to list sessions"
    )
