"""Old sessions of MyAgents: packed in place, or moved to the trash after a preview.

An archive is the session file in gzip, in the same folder, and is read in place. It is compared with the original
before that goes to the trash. Expiry only makes a plan; nothing happens until the user applies it. A plan contains only
sessions that are closed, were neither used nor written for 30 days, and are neither pinned nor scheduled. A session
whose last use is unknown is never in it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from sessile.agents.myagents.store import Deletion, MyAgentsStore, unpacked
from sessile.agents.myagents.types import Metadata, is_session_id
from sessile.core.lines import Finding
from sessile.errors import Damaged, LeafMoved, SessionBusy, SessionExists, SessionNotFound, storage_failures
from sessile.storage import atomic
from sessile.storage.session_bytes import RawFile, bytes_below, is_held

DAYS = 30

_DAY_MS = 86_400_000
_GZIP = 31
_BEST = 9


class Proposal(NamedTuple):
    """A session that may be deleted: its row, its last use (milliseconds), its size with attachments."""

    row: Metadata
    last_used: int
    bytes: int


class Spared(NamedTuple):
    """A session that is not deleted, and why."""

    row: Metadata
    why: str


class Plan(NamedTuple):
    """What expiry would do."""

    proposals: tuple[Proposal, ...]
    spared: tuple[Spared, ...]
    now: int
    days: int

    @property
    def bytes(self) -> int:
        return sum(proposal.bytes for proposal in self.proposals)


class Archive:
    """Packing and expiry for one MyAgents folder. `is_open` returns whether a program has a session open."""

    def __init__(self, store: MyAgentsStore, is_open: Callable[[str], bool] = lambda session_id: False) -> None:
        self._store = store
        self._fs = store.fs
        self._places = store.places
        self._is_open = is_open

    # -- expiry

    def plan(self, now: int, days: int = DAYS) -> Plan:
        """Return what would be deleted at a time (milliseconds), and what is spared; nothing is changed."""
        proposals, spared = [], []
        for row in self._store.list_sessions():
            last_used = self._last_used(row)
            why = self._why_spared(row, last_used, now, days)
            if why is None and last_used is not None:
                proposals.append(Proposal(row, last_used, self._size(row.id)))
            else:
                spared.append(Spared(row, why or "last use unknown"))
        return Plan(tuple(proposals), tuple(spared), now, days)

    def apply(self, plan: Plan) -> list[Deletion]:
        """Move the sessions of a plan to the trash; one that was used since stays."""
        deletions = []
        for proposal in plan.proposals:
            row = self._store.get(proposal.row.id)
            if row is None or (self._last_used(row), self._size(row.id)) != (proposal.last_used, proposal.bytes):
                continue
            if self._why_spared(row, proposal.last_used, plan.now, plan.days) is None:
                deletions.append(self._store.delete(row.id))
        return deletions

    def _why_spared(self, row: Metadata, last_used: int | None, now: int, days: int) -> str | None:
        if last_used is None:
            return "last use unknown"
        if now - last_used <= days * _DAY_MS:
            return f"used within the last {days} days"
        if row.pinned:
            return "pinned"
        if row.value.get("cronTaskId"):
            return "scheduled"
        if self._in_use(row.id):
            return "open"
        return None

    def _in_use(self, session_id: str) -> bool:
        path = self._places.session(session_id)
        locked = atomic.exists(self._fs, self._places.session_lock(session_id))
        return locked or self._is_open(session_id) or (atomic.exists(self._fs, path) and is_held(self._fs, path))

    def _last_used(self, row: Metadata) -> int | None:
        """Return the later of the time in the index and that of the file; `None` if the id or the time is invalid."""
        if not is_session_id(row.id) or row.last_active_ms is None:
            return None
        moments = [row.last_active_ms]
        for path in self._forms(row.id):
            with storage_failures(path, "read the status of a session"):
                moments.append(self._fs.lstat(path).st_mtime_ns // 1_000_000)
        return max(moments)

    def _forms(self, session_id: str) -> list[str]:
        places = self._places
        forms = (places.session, places.legacy, places.transcript_v2)
        return [path(session_id) for path in forms if atomic.exists(self._fs, path(session_id))]

    def _size(self, session_id: str) -> int:
        tops = [*self._forms(session_id), self._places.archive(session_id), self._places.attachments_of(session_id)]
        return sum(bytes_below(self._fs, top) for top in tops)

    # -- archives

    def pack(self, session_id: str) -> Deletion:
        """Replace a session file by a gzip archive; the file goes to the trash. An open session is refused."""
        if self._in_use(session_id):
            raise SessionBusy(
                "the session is open", path=self._places.session(session_id), hint="close it in its program first"
            )
        self._store.files.make_writable(session_id)
        path, archive = self._places.session(session_id), self._places.archive(session_id)
        if not atomic.exists(self._fs, path):
            raise SessionNotFound(f"the session has no file: {session_id!r}", path=path)
        with RawFile(self._fs, path) as file:
            held = self._held(archive, file) if atomic.exists(self._fs, archive) else 0
            if held is None:
                raise _different(archive)
            if held < file.size or not file.size:  # replace what an interrupted attempt has left
                atomic.replace(self._fs, archive, packed(file.chunks()))
                held = self._held(archive, file)
            if held != file.size:
                raise Damaged("the archive differs from the session, so both were kept", path=archive)
            return self._to_trash(session_id, path, file.size)

    def unpack(self, session_id: str) -> Deletion:
        """Replace an archive by the session file; the archive goes to the trash."""
        path, archive = self._places.session(session_id), self._places.archive(session_id)
        if not atomic.exists(self._fs, archive):
            raise SessionNotFound(f"the session has no archive: {session_id!r}", path=archive)
        damage: list[Finding] = []
        with RawFile(self._fs, archive) as file:
            for _ in unpacked(file.chunks(), damage):
                pass
            if damage:
                raise Damaged(damage[0].detail, path=archive, hint="its undamaged part can be read in place")
            if not atomic.exists(self._fs, path):
                atomic.replace(self._fs, path, unpacked(file.chunks(), damage))
        with RawFile(self._fs, path) as original:
            if self._held(archive, original) is None:
                raise _different(path)
        return self._to_trash(session_id, archive, None)

    def _to_trash(self, session_id: str, path: str, size: int | None) -> Deletion:
        """Move one form of a session to the trash, unless another program has written to it."""
        deletion = self._store.trash.keep(session_id, [path], None)
        with storage_failures(path, "read the status of a session"):
            if size is not None and self._fs.lstat(path).st_size != size:
                raise LeafMoved(
                    "another program has changed the session, so it was not removed", path=path, hint="try again"
                )
        self._store.trash.remove_originals(deletion, [path])
        self._store.files.forget(session_id)
        return deletion

    def _held(self, archive: str, original: RawFile) -> int | None:
        """Return how many bytes of a file, from its start, its archive holds; `None` if it holds anything else."""
        damage: list[Finding] = []
        offset = 0
        with RawFile(self._fs, archive) as file:
            for piece in unpacked(file.chunks(), damage):
                if original.peek(offset, len(piece)) != piece:
                    return None
                offset += len(piece)
        return None if damage else offset


def _different(path: str) -> SessionExists:
    return SessionExists(
        "the file and the archive of the session hold different messages, so both were kept",
        path=path,
        hint="read both",
    )


def packed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Compress the chunks as one gzip archive, without a name or time in it."""
    packer = zlib.compressobj(_BEST, zlib.DEFLATED, _GZIP)
    for chunk in chunks:
        yield packer.compress(chunk)
    yield packer.flush()
