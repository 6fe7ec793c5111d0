"""Bringing sessions from one store to another: between folders and databases, as often as one likes.

    for done in sync(Store("~/.sessile"), Store("postgresql://me@db/sessions")):
        print(done.state, done.path)

Rules: the source is only read, and nothing is deleted or changed in the target: a session that is not there is copied byte for
byte, and one that is there gets the entries that it lacks. So two copies that went on by themselves end with the entries of
both, as branches, if each is brought to the other. An entry that both have with another content was rewritten in one of them:
that is told, and both stay as they are. Blobs and artifacts come before the lines that name them; whatever is interrupted goes
on the next time, because a session is either not there or whole, and entries are found by their ids.

Drafts, trash and caches stay where they are.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice, zip_longest
from typing import Literal, NamedTuple

from sessile.core.codec import decode
from sessile.core.hashes import sha256
from sessile.core.migrate import VERSION, version_of
from sessile.errors import Conflict, NotFound, SessileError, SessionExists, StorageFull, storage_failures
from sessile.storage import atomic, survey
from sessile.storage.base import News, ReadableOwnJournal, Row
from sessile.storage.layout import JOURNAL, artifacts_of, stem_of
from sessile.storage.raw_file import RawFile
from sessile.store import Store

State = Literal["new", "grown", "same", "failed"]

_BATCH = 256  # entries that are appended with one sync
_TAIL = 4096  # bytes at the end of two files of one size and time that are the same only if the files are


class Synced(NamedTuple):
    """What became of one session: where it is in the target, and how much was added there."""

    source: str
    path: str
    state: State
    entries: int = 0
    bytes: int = 0
    blobs: int = 0
    files: int = 0  # artifacts
    error: SessileError | None = None


class SyncProgress(NamedTuple):
    """How far a sync is."""

    done: int
    total: int


def sync(
    source: Store, target: Store, *, preview: bool = False, progress: Callable[[SyncProgress], None] | None = None
) -> Iterator[Synced]:
    """Bring every session of a store to another, one after the other; with `preview` only say what would be done.

    A session that fails is told with its error, and the others go on; only a full disk ends everything.
    """
    found = [path for path, linked in survey.journals(source.fs, source.layout.sessions) if path.endswith(JOURNAL)]
    there = {stem_of(path): path for path, _ in survey.journals(target.fs, target.layout.sessions)}
    for number, path in enumerate(found):
        wanted = target.layout.sessions + path[len(source.layout.sessions) :]
        work = _Sync(source, target, path, there.get(stem_of(path), wanted), preview)
        try:
            done = work.run()
        except StorageFull:
            raise
        except NotFound:
            continue  # deleted while we were looking
        except SessileError as error:
            done = Synced(path, work.path, "failed", error=error)
        yield done
        if progress is not None:
            progress(SyncProgress(number + 1, len(found)))
    pinned = source.pins.names()
    if pinned and not preview:
        target.pins.add(*pinned)


class _Sync:
    """One session on its way."""

    def __init__(self, source: Store, target: Store, original: str, path: str, preview: bool) -> None:
        self._source = source
        self._target = target
        self._original = original
        self.path = path
        self._preview = preview

    def run(self) -> Synced:
        if not atomic.exists(self._target.fs, self.path):
            return self._copied()
        if self._is_same():
            return Synced(self._original, self.path, "same", files=self._bring_artifacts())
        return self._merged()

    def _copied(self) -> Synced:
        """A session that is not there yet."""
        with RawFile(self._source.fs, self._original) as file:
            if self._preview:
                return Synced(self._original, self.path, "new", bytes=file.size)
            blobs, files = self._bring_blobs(), self._bring_artifacts()
            try:
                self._target.journals.create(self.path, file.chunks())
            except SessionExists:  # another sync was faster
                return self._merged()
            atomic.set_modified(self._target.fs, self.path, file.stat.st_mtime_ns)
            with closing(self._target.journals.read(self.path)) as made:
                return Synced(self._original, self.path, "new", made.count(), file.size, blobs, files)

    def _merged(self) -> Synced:
        """A session that is there: it gets what it lacks."""
        with (
            closing(self._source.journals.read(self._original)) as theirs,
            closing(self._target.journals.read(self.path)) as ours,
        ):
            missing = self._missing(theirs, ours)
            if self._preview or not missing:
                state: State = "grown" if missing else "same"
                files = 0 if self._preview else self._bring_artifacts()
                return Synced(self._original, self.path, state, len(missing), files=files)
            blobs, files = self._bring_blobs(), self._bring_artifacts()
            added = self._append(theirs, missing)
        self._date()
        return Synced(self._original, self.path, "grown", len(missing), added, blobs, files)

    def _missing(self, theirs: ReadableOwnJournal, ours: ReadableOwnJournal) -> Sequence[Row]:
        """The entries that only the source has."""
        if any(version_of(decode(journal.header())) < VERSION for journal in (theirs, ours)):
            hint = "open both for writing once, which brings them up to date, and begin again"
            raise Conflict("the two copies differ, and one has no ids yet", path=self._original, hint=hint)
        have = {row.id: digest for row, digest in _digests(ours)}
        missing, rewritten = [], []
        for row, digest in _digests(theirs):
            if row.id not in have:
                missing.append(row)
            elif have[row.id] != digest:
                rewritten.append(row.id)
        if rewritten:
            those = "1 entry was" if len(rewritten) == 1 else f"{len(rewritten)} entries were"
            told = f"{those} rewritten in one of the two copies, such as {rewritten[0]}"
            raise Conflict(told, path=self._original, hint="delete the copy that you do not want, and begin again")
        return missing

    def _append(self, theirs: ReadableOwnJournal, missing: Sequence[Row]) -> int:
        added = 0
        with closing(self._target.journals.open(self.path)) as journal:
            rows = iter(missing)
            while batch := list(islice(rows, _BATCH)):
                lines = dict(zip((row.id for row in batch), theirs.read_many(batch), strict=True))

                def revise(news: News, lines: dict[str, bytes] = lines) -> Sequence[bytes]:
                    taken = {row.id for row in news.rows()}  # another sync was faster
                    return [line for entry_id, line in lines.items() if entry_id not in taken]

                journal.commit(journal.append(list(lines.values()), revise).mark)
                added += sum(map(len, lines.values()))
        return added

    def _date(self) -> None:
        """Give a copy that has all bytes of its original, and no others, the time of that, as one that is new gets it."""
        with storage_failures(self.path, "look at the copy"):
            original, copy = self._source.fs.lstat(self._original), self._target.fs.lstat(self.path)
        if copy.st_size == original.st_size:
            atomic.set_modified(self._target.fs, self.path, original.st_mtime_ns)

    def _is_same(self) -> bool:
        """Whether the two files have the same bytes: of a copy that has the time of its original, the end tells."""
        with RawFile(self._source.fs, self._original) as one, RawFile(self._target.fs, self.path) as two:
            if one.size != two.size:
                return False
            untouched = one.stat.st_mtime_ns == two.stat.st_mtime_ns
            start = max(0, one.size - _TAIL) if untouched else 0
            return all(mine == its for mine, its in zip_longest(one.chunks(start), two.chunks(start)))

    # -- what belongs to a session

    def _bring_blobs(self) -> int:
        """Store the blobs that a session names; one that the source has lost cannot be brought."""
        there, here = self._source.blobs, self._target.blobs
        brought = 0
        for digest in sorted(survey.references(self._source.fs, self._original)):
            if here.has(digest) or (data := there.get(digest)) is None:
                continue
            here.put(data)
            brought += 1
        return brought

    def _bring_artifacts(self) -> int:
        """Copy the files in the folder beside a session that are not there."""
        if self._preview:
            return 0
        folder, place = artifacts_of(self._original), artifacts_of(self.path)
        brought = 0
        for path, _ in survey.files_below(self._source.fs, folder):
            copy = place + path[len(folder) :]
            if not atomic.exists(self._target.fs, copy):
                atomic.make_folders(self._target.fs, posixpath.dirname(copy))
                with RawFile(self._source.fs, path) as file:
                    atomic.replace(self._target.fs, copy, file.chunks())
                    atomic.set_modified(self._target.fs, copy, file.stat.st_mtime_ns)
                brought += 1
        return brought


def _digests(journal: ReadableOwnJournal) -> Iterator[tuple[Row, bytes]]:
    """Every row with a hash of its line."""
    rows = iter(journal.rows())
    while batch := list(islice(rows, _BATCH)):
        for row, raw in zip(batch, journal.read_many(batch), strict=True):
            yield row, sha256(raw).digest()[:16]
