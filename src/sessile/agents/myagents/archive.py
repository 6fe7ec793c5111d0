"""Old sessions of MyAgents: packed where they lie, or moved to the trash, after a look at what that would be.

An archive is the session file in gzip, beside where that was, and is read in place. It is compared with the original before
that goes to the trash. Expiry proposes; nothing happens until a person has seen the plan. Proposed are only sessions that
are closed, were neither used nor written for 30 days, and that nobody has pinned or put on a schedule. A session whose last
use is not known is never proposed.

Session files of MyAgents that its index does not name: shown, and taken into the index when somebody asks for it.

A damaged index, a deletion of the first versions or a copied file leave them. MyAgents never shows them; nothing of them is
lost. Showing looks at names and sizes alone. The file itself is not touched, whatever is done here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from sessile.agents.myagents import types
from sessile.agents.myagents.lock import PATIENT
from sessile.agents.myagents.store import Deletion, MyAgentsStore, unpacked
from sessile.agents.myagents.types import DEFAULT, Message, Metadata, check_session_id, is_session_id, title_of
from sessile.core.lines import Finding
from sessile.core.text import iso_timestamp, parse_timestamp
from sessile.errors import Damaged, Invalid, LeafMoved, SessionBusy, SessionExists, SessionNotFound, storage_failures
from sessile.storage import atomic
from sessile.storage.session_bytes import RawFile, bytes_below, is_held

# --- archive

DAYS = 30

_DAY_MS = 86_400_000
_GZIP = 31
_BEST = 9


class Proposal(NamedTuple):
    """A session that may go: its row, when it was last used (milliseconds), how much it takes with its attachments."""

    row: Metadata
    last_used: int
    bytes: int


class Spared(NamedTuple):
    """A session that stays, and why."""

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
    """Packing and expiry for one MyAgents folder. `is_open` says whether a program has a session open."""

    def __init__(self, store: MyAgentsStore, is_open: Callable[[str], bool] = lambda session_id: False) -> None:
        self._store = store
        self._fs = store.fs
        self._places = store.places
        self._is_open = is_open

    # -- expiry

    def plan(self, now: int, days: int = DAYS) -> Plan:
        """What would go at a moment (milliseconds), and what is spared; nothing is changed."""
        proposals, spared = [], []
        for row in self._store.list_sessions():
            last_used = self._last_used(row)
            why = self._why_spared(row, last_used, now, days)
            if why is None and last_used is not None:
                proposals.append(Proposal(row, last_used, self._size(row.id)))
            else:
                spared.append(Spared(row, why or "its last use is not known"))
        return Plan(tuple(proposals), tuple(spared), now, days)

    def apply(self, plan: Plan) -> list[Deletion]:
        """Move the proposed sessions to the trash; one that was used since the plan was made stays."""
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
            return "its last use is not known"
        if now - last_used <= days * _DAY_MS:
            return f"used within the last {days} days"
        if row.pinned:
            return "pinned"
        if row.value.get("cronTaskId"):
            return "on a schedule"
        if self._in_use(row.id):
            return "open"
        return None

    def _in_use(self, session_id: str) -> bool:
        path = self._places.session(session_id)
        locked = atomic.exists(self._fs, self._places.session_lock(session_id))
        return locked or self._is_open(session_id) or (atomic.exists(self._fs, path) and is_held(self._fs, path))

    def _last_used(self, row: Metadata) -> int | None:
        """The later of what the index says and the time of the file; `None` if the id or the time cannot be read."""
        if not is_session_id(row.id) or row.last_active_ms is None:
            return None
        moments = [row.last_active_ms]
        for path in self._forms(row.id):
            with storage_failures(path, "look at a session"):
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
        """Put a gzip archive in place of a session file, which goes to the trash; one that is open stays."""
        if self._in_use(session_id):
            raise SessionBusy(
                "the session is open", path=self._places.session(session_id), hint="close it in its program first"
            )
        self._store.files.make_writable(session_id)
        path, archive = self._places.session(session_id), self._places.archive(session_id)
        if not atomic.exists(self._fs, path):
            raise SessionNotFound(f"there is no file of {session_id}", path=path)
        with RawFile(self._fs, path) as file:
            held = self._held(archive, file) if atomic.exists(self._fs, archive) else 0
            if held is None:
                raise _other(archive)
            if held < file.size or not file.size:  # what an interrupted attempt has left is made anew
                atomic.replace(self._fs, archive, packed(file.chunks()))
                held = self._held(archive, file)
            if held != file.size:
                raise Damaged("the archive does not hold what the session does; both stay", path=archive)
            return self._away(session_id, path, file.size)

    def unpack(self, session_id: str) -> Deletion:
        """Put a session file in place of its archive, which goes to the trash."""
        path, archive = self._places.session(session_id), self._places.archive(session_id)
        if not atomic.exists(self._fs, archive):
            raise SessionNotFound(f"there is no archive of {session_id}", path=archive)
        damage: list[Finding] = []
        with RawFile(self._fs, archive) as file:
            for _ in unpacked(file.chunks(), damage):
                pass
            if damage:
                raise Damaged(damage[0].detail, path=archive, hint="what is whole in it can be read in place")
            if not atomic.exists(self._fs, path):
                atomic.replace(self._fs, path, unpacked(file.chunks(), damage))
        with RawFile(self._fs, path) as original:
            if self._held(archive, original) is None:
                raise _other(path)
        return self._away(session_id, archive, None)

    def _away(self, session_id: str, path: str, size: int | None) -> Deletion:
        """Move one form of a session to the trash, if nobody has written to it."""
        deletion = self._store.trash.keep(session_id, [path], None)
        with storage_failures(path, "look at a session"):
            if size is not None and self._fs.lstat(path).st_size != size:
                raise LeafMoved("another program wrote into the session; it stays", path=path, hint="try again")
        self._store.trash.let_go(deletion, [path])
        self._store.files.forget(session_id)
        return deletion

    def _held(self, archive: str, original: RawFile) -> int | None:
        """How many bytes of a file, from its start, its archive holds; `None` if it holds anything else."""
        damage: list[Finding] = []
        offset = 0
        with RawFile(self._fs, archive) as file:
            for piece in unpacked(file.chunks(), damage):
                if original.peek(offset, len(piece)) != piece:
                    return None
                offset += len(piece)
        return None if damage else offset


def _other(path: str) -> SessionExists:
    return SessionExists(
        "the file and the archive of that session hold different messages; both stay", path=path, hint="read both"
    )


def packed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks as one gzip archive, without a name or a time in it."""
    packer = zlib.compressobj(_BEST, zlib.DEFLATED, _GZIP)
    for chunk in chunks:
        yield packer.compress(chunk)
    yield packer.flush()


# --- orphans

_ENDINGS = (".jsonl.gz", ".jsonl", ".json")


class Orphan(NamedTuple):
    """Files of one session without a row; `session_id` is `None` if the name of the file cannot be that of a session."""

    session_id: str | None
    paths: tuple[str, ...]
    bytes: int
    modified: int  # nanoseconds, of the newest file


def orphans(store: MyAgentsStore) -> list[Orphan]:
    """The sessions that have a file and no row, by name."""
    known = store.index.rows()
    found: dict[str, Orphan] = {}
    for name, path in _session_files(store):
        if name in known:
            continue
        with storage_failures(path, "look at a session"):
            try:
                status = store.fs.lstat(path)
            except FileNotFoundError:
                continue  # gone since
        before = found.get(name, Orphan(name if is_session_id(name) else None, (), 0, 0))
        size, modified = before.bytes + status.st_size, max(before.modified, status.st_mtime_ns)
        found[name] = Orphan(before.session_id, (*before.paths, path), size, modified)
    return [found[name] for name in sorted(found)]


def _session_files(store: MyAgentsStore) -> Iterator[tuple[str, str]]:
    """The name of a session and the path of a file of it, for every file that looks like one."""
    for folder in (store.places.sessions, store.places.transcripts_v2):
        with storage_failures(folder, "look for sessions"):
            try:
                names = store.fs.names(folder)
            except (FileNotFoundError, NotADirectoryError):
                continue
        for name in names:
            ending = next((each for each in _ENDINGS if name.endswith(each)), None)
            if ending is not None and not name.startswith("."):
                yield name.removesuffix(ending), f"{folder}/{name}"


def adopt(store: MyAgentsStore, session_id: str, agent_dir: str, title: str | None = None) -> Metadata:
    """Give a session file a row in the index: times, title and statistics are those of its messages."""
    loaded = store.load(check_session_id(session_id))
    if loaded.path is None:
        raise SessionNotFound(f"there is no file of {session_id} to adopt", path=store.places.session(session_id))
    if not agent_dir:
        raise Invalid(
            "a session of MyAgents belongs to a folder", path=loaded.path, hint="say in which folder the agent worked"
        )
    with storage_failures(loaded.path, "look at a session"):
        written = store.fs.lstat(loaded.path).st_mtime_ns // 1_000_000
    messages = loaded.messages
    moments = [at for at in (parse_timestamp(message.timestamp) for message in messages) if at is not None] or [written]
    row = Metadata(
        {
            "id": session_id,
            "agentDir": agent_dir,
            "title": title or _title(messages),
            "createdAt": iso_timestamp(min(moments)),
            "lastActiveAt": iso_timestamp(max(moments)),
            "stats": types.recount(messages),
        }
    )
    store.index.create(row, PATIENT)
    return row


def _title(messages: list[Message]) -> str:
    """What MyAgents would have called the session."""
    return next((title_of(message.text) for message in messages if message.role == "user"), DEFAULT)
