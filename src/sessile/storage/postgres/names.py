"""A `Filesystem` in a database: names, folders and the content of files, for everything of a store that is not a journal.

Rules:

- It answers as Linux does, with the same error numbers. A database that cannot be reached is a `StorageFailure`, which is an
  `OSError` too. What is written is committed, so syncing does nothing.
- The lock of a file is a lease: it ends some seconds after its holder dies, and a holder that could not renew it can no longer
  write through that descriptor.
- Journals can be read, renamed, linked and unlinked here; `journals` writes them.
- Folders have no time of modification. There are no symbolic links and no permissions: those of the database apply.
- A path is absolute, without `.` and `..`. A name has at most 255 bytes, and a path as many as an index of the database holds.
  `/` is the empty name in the empty folder.
- Making a name locks its folder until the name is made, so that no name is left without a folder; removing or moving a folder
  waits for that. The normal case is one query; only if something is wrong, a second one finds out what. If that finds nothing
  wrong, another process was faster, and the first one is tried again.
- A file moves in one statement if the new name is free; everything else is a transaction, in which both names are locked first.
  A folder takes along every name below it; a name that is made there at the same time is moved too, or fails because its folder
  is gone.
- The content of a file is stored in pieces. A missing piece, and the part after the end of a short one, are zeros. The piece in
  which a file ends always exists up to that end, so that appending is one statement that does not depend on the size. Every
  change locks the row of the file first. A journal reads as its rows.
- A file that lost its last name is kept for an hour, because it may be open in another process. A temporary file is removed when
  it is closed, or after a week if its process died.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from typing import Any, NamedTuple

from psycopg.errors import UniqueViolation

from sessile.errors import StorageFailure
from sessile.storage.postgres.database import Cursor, Database
from sessile.storage.postgres.leases import Leases

_ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR
_SWEEP_EVERY = 60.0  # seconds between two sweeps of files without a name


class PostgresStat(NamedTuple):
    """The status of a file or folder in a database."""

    st_mode: int
    st_ino: int
    st_dev: int
    st_nlink: int
    st_uid: int
    st_size: int
    st_mtime_ns: int

    @property
    def st_ctime_ns(self) -> int:
        return self.st_mtime_ns  # the database keeps one time: that of the last change


@dataclass(eq=False, slots=True)
class _OpenFile:
    """One open file description, which may have the lock of the file."""

    path: str
    found: Found
    readable: bool
    writable: bool
    appends: bool
    temporary: bool = False
    position: int = 0
    stale: bool = True  # whether the status from opening must not be used (again)
    read_to: int | None = None  # how far the content from opening was read; None: it must not be used
    token: int | None = None  # of the lease, while this description has the lock
    guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def file(self) -> int:
        if self.found.file is None:
            raise failure(errno.EISDIR, self.path)
        return self.found.file

    @property
    def lease(self) -> str:
        return f"file:{key(self.path).path!r}" if self.found.file is None else f"file:{self.found.file}"


class PostgresFilesystem:
    """The files of one database."""

    def __init__(self, database: Database, leases: Leases) -> None:
        self.names_in = Names(database)
        self._contents = Contents(database)
        self._database = database
        self._leases = leases
        self._descriptors = count(3)
        self._open: dict[int, _OpenFile] = {}
        self._device = zlib.crc32(database.place.encode())
        self._user = os.getuid()
        self._swept = time.monotonic()

    # -- files

    def open(self, path: str, flags: int) -> int:
        if flags & os.O_CREAT and flags & os.O_DIRECTORY:
            raise failure(errno.EINVAL, path)
        access = flags & _ACCESS
        found = self._found(path, flags, content=access == os.O_RDONLY)
        opened = _OpenFile(path, found, access != os.O_WRONLY, access != os.O_RDONLY, bool(flags & os.O_APPEND))
        if found.file is not None and flags & os.O_TRUNC and found.size:
            self._contents.resize(found.file, 0)
        elif access == os.O_RDONLY:
            opened.stale, opened.read_to = False, None if found.ahead is None else 0
        return self._described(opened)

    def temporary(self) -> int:
        found = make_temporary(self._database)
        return self._described(_OpenFile("", found, True, True, appends=False, temporary=True))

    def close(self, fd: int) -> None:
        opened = self._opened(fd)
        del self._open[fd]
        self._release(opened)
        if opened.temporary:
            remove_unnamed(self._database, opened.file)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        opened = self._opened(fd)
        if not opened.readable:
            raise failure(errno.EBADF)
        file = opened.file
        if offset < 0:
            raise failure(errno.EINVAL)
        with opened.guard:
            data = _read_ahead(opened, size, offset)
        return self._contents.read(file, size, offset, journal=bool(opened.found.journal)) if data is None else data

    def write(self, fd: int, data: bytes) -> int:
        opened = self._opened(fd)
        if not opened.writable:
            raise failure(errno.EBADF)
        self._check_lock(opened)
        if not data:
            return 0
        with opened.guard:
            if opened.appends:
                return self._contents.append(opened.file, data)
            written = self._contents.put(opened.file, data, opened.position)
            opened.position += written
            return written

    def truncate(self, fd: int, size: int) -> None:
        opened = self._opened(fd)
        if size < 0 or not opened.writable:
            raise failure(errno.EINVAL)
        self._check_lock(opened)
        self._contents.resize(opened.file, size)

    def sync(self, fd: int) -> None:
        self._opened(fd)

    def fstat(self, fd: int) -> PostgresStat:
        opened = self._opened(fd)
        if opened.found.file is not None and opened.stale:
            return self._stat(opened.path, self._contents.status(opened.found.file))
        opened.stale = True  # it may change from now on
        return self._stat(opened.path, opened.found)

    def set_modified(self, fd: int, nanoseconds: int) -> None:
        opened = self._opened(fd)
        opened.stale = True
        self._contents.set_modified(opened.file, nanoseconds)

    # -- locks

    def lock(self, fd: int) -> bool:
        opened = self._opened(fd)
        if opened.token is not None and self._leases.token(opened.lease) == opened.token:
            return True
        opened.stale, opened.read_to = True, None  # the previous holder of the lock may have changed the file
        opened.token = self._leases.take(opened.lease)
        return opened.token is not None

    def unlock(self, fd: int) -> None:
        self._release(self._opened(fd))

    def lock_holder(self, fd: int) -> int | None:
        """Return the id of the process that has the lock, if it runs on this machine."""
        holder = self._leases.holder(self._opened(fd).lease)
        host, _, rest = (holder or "").rpartition(":")[0].rpartition(":")
        return int(rest) if host == socket.gethostname() else None

    # -- names

    def lstat(self, path: str) -> PostgresStat:
        return self._stat(path, self.names_in.existing(path))

    def names(self, path: str) -> list[str]:
        return self.names_in.names(path)

    def mkdir(self, path: str) -> None:
        self.names_in.make_folder(path)

    def rename(self, source: str, target: str) -> None:
        if rename(self._database, self.names_in, source, target):
            self._sweep_sometimes()

    def link(self, source: str, target: str) -> None:
        self.names_in.link(source, target)

    def unlink(self, path: str) -> None:
        if self.names_in.unlink(path):
            self._sweep_sometimes()

    def rmdir(self, path: str) -> None:
        self.names_in.remove_folder(path)

    def sync_directory(self, path: str) -> None:
        self.names_in.folder(path)

    # -- helpers

    def _found(self, path: str, flags: int, *, content: bool) -> Found:
        """Return the file to open; create it if the flags say so."""
        exclusive = flags & os.O_CREAT and flags & os.O_EXCL
        while True:
            found = None if exclusive else self.names_in.look(path, content=content)
            if found is None:
                if not flags & os.O_CREAT:
                    raise failure(errno.ENOENT, path)
                found = self.names_in.make_file(path)
                if found is not None:
                    return found
                if exclusive and self.names_in.look(path) is not None:
                    raise failure(errno.EEXIST, path)
                continue  # another process was faster
            if found.file is None:
                if flags & (os.O_CREAT | os.O_TRUNC | _ACCESS):
                    raise failure(errno.EISDIR, path)
            elif flags & os.O_DIRECTORY:
                raise failure(errno.ENOTDIR, path)
            elif found.journal and flags & (os.O_TRUNC | _ACCESS):
                raise failure(errno.EROFS, path)
            return found

    def _described(self, opened: _OpenFile) -> int:
        fd = next(self._descriptors)
        self._open[fd] = opened
        return fd

    def _opened(self, fd: int) -> _OpenFile:
        try:
            return self._open[fd]
        except KeyError:
            raise failure(errno.EBADF) from None

    def _release(self, opened: _OpenFile) -> None:
        token, opened.token = opened.token, None
        if token is not None and self._leases.token(opened.lease) == token:
            self._leases.release(opened.lease)

    def _check_lock(self, opened: _OpenFile) -> None:
        """Raise if the file was locked and the lock was lost."""
        if opened.token is not None and self._leases.token(opened.lease) != opened.token:
            hint = "open the file again; the database could not be reached for too long"
            raise StorageFailure("the lock of the file was lost", path=opened.path, hint=hint, code=errno.ENOLCK)

    def _stat(self, path: str, found: Found) -> PostgresStat:
        if found.file is None:
            number = int.from_bytes(blake2b(key(path).path, digest_size=8).digest()) >> 1
            return PostgresStat(stat.S_IFDIR | 0o700, number, self._device, 1, self._user, 0, 0)
        assert found.links is not None and found.size is not None and found.modified is not None
        mode = stat.S_IFREG | 0o600
        return PostgresStat(mode, found.file, self._device, found.links, self._user, found.size, found.modified)

    def _sweep_sometimes(self) -> None:
        """Remove files that have had no name for an hour, at most once a minute."""
        now = time.monotonic()
        if now - self._swept >= _SWEEP_EVERY:
            self._swept = now
            try:
                sweep(self._database)
            except StorageFailure:
                pass  # the operation itself is done; the next one sweeps


def _read_ahead(opened: _OpenFile, size: int, offset: int) -> bytes | None:
    """Return content that was read when opening, each byte once and in order; None if it must be queried."""
    ahead, total = opened.found.ahead, opened.found.size
    if opened.read_to != offset or ahead is None or total is None:
        opened.read_to = None
        return None
    if offset + size > len(ahead) and len(ahead) < total:
        opened.read_to = None
        return None
    part = ahead[offset : offset + size]
    opened.read_to = offset + len(part) if part or not size else None
    return part


# -- names

NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000"
"""The time of the database in nanoseconds."""

AHEAD = 65536  # bytes that are read when a file is opened

_LOOK = """
    SELECT name.folder IS NOT NULL, name.file, journal, size, modified, links, {content}
    FROM unnest(%s::bytea[], %s::bytea[]) WITH ORDINALITY AS wanted (folder, base, depth)
    LEFT JOIN name ON name.folder = wanted.folder AND name.base = wanted.base
    LEFT JOIN file ON file.id = name.file
    {piece}
    ORDER BY depth"""
_STATUS = _LOOK.format(content="NULL", piece="")
_CONTENT = _LOOK.format(
    content=f"CASE WHEN size = 0 THEN '' ELSE substring(piece.data FROM 1 FOR {AHEAD}) END",
    piece="LEFT JOIN piece ON piece.file = name.file AND piece.number = 0 AND NOT journal",
)

PARENT = """
    parent AS (
        SELECT folder AS above FROM name WHERE folder = %(parent_folder)s AND base = %(parent_base)s AND file IS NULL
        FOR KEY SHARE)"""
"""The folder of a new name, locked until the end of the transaction."""

MAKE_FOLDER = f"""
    WITH {PARENT}
    INSERT INTO name (folder, base) SELECT %(folder)s::bytea, %(base)s::bytea FROM parent
    ON CONFLICT DO NOTHING RETURNING base"""
_MAKE_FILE = f"""
    WITH {PARENT}, named AS (
        INSERT INTO name (folder, base, file) SELECT %(folder)s::bytea, %(base)s::bytea, nextval('file_number') FROM parent
        ON CONFLICT DO NOTHING RETURNING file)
    INSERT INTO file (id, journal, size, modified, links) SELECT file, false, 0, {NOW}, 1 FROM named
    RETURNING id, journal, size, modified, links, NULL::bytea"""
_LINK = f"""
    WITH {PARENT}, source AS (
        SELECT file FROM name WHERE folder = %(source_folder)s AND base = %(source_base)s AND file IS NOT NULL
        FOR KEY SHARE),
    named AS (
        INSERT INTO name (folder, base, file) SELECT %(folder)s::bytea, %(base)s::bytea, source.file FROM source, parent
        ON CONFLICT DO NOTHING RETURNING file)
    UPDATE file SET links = links + 1, unnamed = NULL FROM named WHERE file.id = named.file RETURNING file.id"""
_UNLINK = f"""
    WITH gone AS (DELETE FROM name WHERE folder = %s AND base = %s AND file IS NOT NULL RETURNING file)
    UPDATE file SET links = links - 1, unnamed = CASE WHEN links = 1 THEN {NOW} END FROM gone WHERE file.id = gone.file
    RETURNING links"""
_NAMES = "SELECT base FROM name WHERE folder = %s"
_HOLD = "SELECT file FROM name WHERE folder = %s AND base = %s FOR UPDATE"
_REMOVE_FOLDER = """
    DELETE FROM name WHERE folder = %(folder)s AND base = %(base)s
    AND NOT EXISTS (SELECT 1 FROM name AS inner_name WHERE inner_name.folder = %(path)s)"""


class Found(NamedTuple):
    """What a name refers to: a file, or a folder if `file` is None. `ahead` is the start of the content, if requested."""

    file: int | None
    journal: bool | None = None
    size: int | None = None
    modified: int | None = None
    links: int | None = None
    ahead: bytes | None = None


class Names:
    """The names in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def look(self, path: str, *, content: bool = False, cursor: Cursor | None = None) -> Found | None:
        """Return what a path refers to, or None; raise if its folder does not exist."""
        levels = keys(path)
        sql = _CONTENT if content else _STATUS
        arguments = ([level.folder for level in levels], [level.base for level in levels])
        if cursor is not None:
            return _found(cursor.execute(sql, arguments).fetchall(), path)
        return _found(self._database.query(sql, arguments, again=True), path)

    def existing(self, path: str, *, content: bool = False, cursor: Cursor | None = None) -> Found:
        """Return what a path refers to; raise ENOENT if there is nothing."""
        found = self.look(path, content=content, cursor=cursor)
        if found is None:
            raise failure(errno.ENOENT, path)
        return found

    def folder(self, path: str) -> None:
        """Raise if a path is not a folder."""
        if self.existing(path).file is not None:
            raise failure(errno.ENOTDIR, path)

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        found = self._database.query(_NAMES, (key(path).path,), again=True)
        if not found:
            self.folder(path)
        return sorted(decoded(base) for (base,) in found)

    def make_file(self, path: str) -> Found | None:
        """Create an empty file; return None if the name is taken or its folder is missing."""
        made = self._database.query(_MAKE_FILE, placed(path))
        return Found(*made[0]) if made else None

    def make_folder(self, path: str) -> None:
        """Create a folder."""
        arguments = placed(path)
        self._retry(
            lambda: bool(self._database.query(MAKE_FOLDER, arguments)),
            lambda: errno.EEXIST if self.look(path) is not None else None,
            path,
        )

    def link(self, source: str, target: str) -> None:
        """Give a file a second name."""
        arguments = {**placed(target), "source_folder": key(source).folder, "source_base": key(source).base}

        def wrong() -> int | None:
            found = self.existing(source)
            if self.look(target) is not None:
                return errno.EEXIST
            return errno.EPERM if found.file is None else None

        self._retry(lambda: bool(self._database.query(_LINK, arguments)), wrong, source, target)

    def unlink(self, path: str) -> bool:
        """Remove a name of a file; return whether it was the last one."""
        links: list[int] = []

        def done() -> bool:
            links.extend(left for (left,) in self._database.query(_UNLINK, key(path)))
            return bool(links)

        self._retry(done, lambda: errno.EISDIR if self.existing(path).file is None else None, path)
        return links == [0]

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""
        place = key(path)
        if place == ROOT:
            raise failure(errno.EBUSY, path)

        def remove(cursor: Cursor) -> None:
            held = cursor.execute(_HOLD, place).fetchone()
            if held is None or held[0] is not None:
                raise failure(errno.ENOENT if self.existing(path, cursor=cursor).file is None else errno.ENOTDIR, path)
            # Only under the lock: names that were being made in it are there now, and no others can be made.
            cursor.execute(_REMOVE_FOLDER, {"folder": place.folder, "base": place.base, "path": place.path})
            if not cursor.rowcount:
                raise failure(errno.ENOTEMPTY, path)

        self._database.transact(remove)

    def _retry(
        self, done: Callable[[], bool], wrong: Callable[[], int | None], path: str, target: str | None = None
    ) -> None:
        """Try until it is done or `wrong` returns an error number; an obstacle may be gone when `wrong` looks."""
        while not done():
            code = wrong()
            if code is not None:
                raise failure(code, path, target)


def placed(path: str) -> dict[str, Any]:
    """Return the arguments for a new name: its key, and the key of the folder that must exist."""
    *above, place = keys(path)
    parent = above[-1] if above else place  # `/` always exists
    return {
        "folder": place.folder,
        "base": place.base,
        "parent_folder": parent.folder,
        "parent_base": parent.base,
    }


def _found(rows: Sequence[tuple[Any, ...]], path: str) -> Found | None:
    *above, (there, *status) = rows
    for parent_there, file, *_ in above:
        if not parent_there:
            raise failure(errno.ENOENT, path)
        if file is not None:
            raise failure(errno.ENOTDIR, path)
    return Found(*status) if there else None


# -- renaming

_MOVE_FILE = f"""
    WITH {PARENT}
    UPDATE name SET folder = %(folder)s, base = %(base)s FROM parent
    WHERE name.folder = %(source_folder)s AND name.base = %(source_base)s AND name.file IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM name AS taken WHERE taken.folder = %(folder)s AND taken.base = %(base)s)
    RETURNING name.file"""
_HOLD_BOTH = """
    SELECT folder, base, file FROM name
    WHERE (folder = %s AND base = %s) OR (folder = %s AND base = %s) ORDER BY folder, base FOR UPDATE"""
_HOLD_PARENT = f"WITH {PARENT} SELECT above FROM parent"
_REMOVE = "DELETE FROM name WHERE folder = %s AND base = %s"
_REPLACE = f"""
    WITH replaced AS (
        UPDATE name SET file = %(file)s WHERE folder = %(folder)s AND base = %(base)s RETURNING %(replaced)s::bigint AS old)
    UPDATE file SET links = links - 1, unnamed = CASE WHEN links = 1 THEN {NOW} END FROM replaced WHERE id = replaced.old
    RETURNING links"""
_OCCUPIED = "SELECT 1 FROM name WHERE folder = %s LIMIT 1"
_MOVE = "UPDATE name SET folder = %s, base = %s WHERE folder = %s AND base = %s"
_MOVE_BELOW = """
    UPDATE name SET folder = %(new)s::bytea || substring(folder FROM %(length)s::int + 1)
    WHERE folder = %(old)s OR (folder >= %(first)s AND folder < %(behind)s)"""


def rename(database: Database, names: Names, source: str, target: str) -> bool:
    """Move a name and replace the target; return whether a file lost its last name."""
    old, new = key(source), key(target)
    if ROOT in (old, new):
        raise failure(errno.EBUSY, source, target)
    while True:
        arguments = {**placed(target), "source_folder": old.folder, "source_base": old.base}
        try:
            if database.query(_MOVE_FILE, arguments):
                return False
        except UniqueViolation:
            pass  # the new name was taken at the same moment
        done = database.transact(lambda cursor: _rename(cursor, names, source, target))
        if done is not None:
            return done


def _rename(cursor: Cursor, names: Names, source: str, target: str) -> bool | None:
    """Move a name with both names locked; return None if the new name is free, so that a file can move in one statement."""
    old, new = key(source), key(target)
    held = {Key(folder, base): file for folder, base, file in cursor.execute(_HOLD_BOTH, (*old, *new)).fetchall()}
    if old not in held:
        names.look(source, cursor=cursor)  # raises if its folder is missing
        names.look(target, cursor=cursor)  # Linux reports a missing target folder before a missing source
        raise failure(errno.ENOENT, source, target)
    file, moves_folder = held[old], held[old] is None
    if moves_folder and new.path.startswith(old.path + b"/"):
        raise failure(errno.EINVAL, source, target)
    if old == new or (new in held and file is not None and held[new] == file):
        return False  # two names of one file: POSIX keeps both
    if new not in held:
        names.look(target, cursor=cursor)  # raises if the folder is missing
        if not moves_folder:
            return None
        if not cursor.execute(_HOLD_PARENT, placed(target)).fetchone():
            raise failure(errno.ENOENT, source, target)
    elif moves_folder and held[new] is not None:
        raise failure(errno.ENOTDIR, source, target)
    elif not moves_folder and held[new] is None:
        raise failure(errno.EISDIR, source, target)
    elif not moves_folder:
        return _replace(cursor, old, new, file, held[new])
    else:
        if cursor.execute(_OCCUPIED, (new.path,)).fetchone():
            raise failure(errno.ENOTEMPTY, source, target)
        cursor.execute(_REMOVE, new)
    _move_folder(cursor, old, new)
    return False


def _replace(cursor: Cursor, old: Key, new: Key, file: int, replaced: int) -> bool:
    cursor.execute(_REMOVE, old)
    cursor.execute(_REPLACE, {"file": file, "folder": new.folder, "base": new.base, "replaced": replaced})
    return cursor.fetchone() == (0,)


def _move_folder(cursor: Cursor, old: Key, new: Key) -> None:
    cursor.execute(_MOVE, (*new, *old))
    below = {
        "old": old.path,
        "new": new.path,
        "length": len(old.path),
        "first": old.path + b"/",
        "behind": old.path + b"0",  # the byte after the slash
    }
    # Until nothing is left: a folder that was made while we waited for a lock is not locked before it has moved.
    while cursor.execute(_MOVE_BELOW, below).rowcount:
        pass


# -- contents

PIECE = 1 << 18  # bytes
_MAX_WRITE = 1 << 22  # bytes of one write

_TOUCH = f"modified = {NOW} WHERE id = %(file)s AND NOT journal"
_APPEND = f"""
    WITH head AS (
        UPDATE file SET size = size + %(length)s, {_TOUCH} RETURNING id, size - %(length)s AS at)
    INSERT INTO piece (file, number, data)
    SELECT head.id, number, substring(
        %(data)s::bytea FROM (greatest(at, number * {PIECE}) - at + 1)::int
        FOR (least(at + %(length)s, (number + 1) * {PIECE}) - greatest(at, number * {PIECE}))::int)
    FROM head CROSS JOIN LATERAL generate_series(at / {PIECE}, (at + %(length)s - 1) / {PIECE}) AS number
    ON CONFLICT (file, number) DO UPDATE SET data = piece.data || excluded.data
    RETURNING number"""
# The first `skipped` bytes of the first piece stay; a shorter piece is filled up with zeros.
_PUT = f"""
    WITH head AS (
        UPDATE file SET size = greatest(size, %(at)s::bigint + %(length)s), {_TOUCH} RETURNING id)
    INSERT INTO piece (file, number, data)
    SELECT head.id, new.number, new.data FROM head, unnest(%(numbers)s::bigint[], %(parts)s::bytea[]) AS new (number, data)
    ON CONFLICT (file, number) DO UPDATE SET data =
        CASE WHEN piece.number = %(first)s::bigint AND %(skipped)s::int > 0 THEN
            substring(piece.data || %(zeros)s::bytea FROM 1 FOR %(skipped)s::int)
            || substring(excluded.data FROM %(skipped)s::int + 1)
        ELSE excluded.data END
        || substring(piece.data FROM octet_length(excluded.data) + 1)
    RETURNING number"""
_CUT = f"""
    WITH head AS (UPDATE file SET size = %(size)s, {_TOUCH} RETURNING id),
    gone AS (DELETE FROM piece USING head WHERE piece.file = head.id AND piece.number >= %(behind)s RETURNING number)
    SELECT id FROM head"""
_END = """
    INSERT INTO piece (file, number, data) VALUES (%(file)s, %(last)s, %(zeros)s)
    ON CONFLICT (file, number) DO UPDATE
    SET data = substring(piece.data || %(zeros)s FROM 1 FOR octet_length(%(zeros)s))"""
# Both return the size and, if there are any, offsets in the file and the bytes there.
_READ = f"""
    SELECT file.size, piece.number * {PIECE}, piece.data
    FROM file LEFT JOIN piece ON piece.file = file.id AND piece.number BETWEEN %(begin)s / {PIECE} AND %(end)s / {PIECE}
    WHERE file.id = %(file)s AND NOT journal"""
_READ_JOURNAL = r"""
    SELECT file.size, start, body || coalesce(gap, '\x0a'::bytea)
    FROM file LEFT JOIN entry ON entry.file = file.id AND start <= %(end)s
        AND start >= coalesce((SELECT max(start) FROM entry WHERE file = %(file)s AND start <= %(begin)s), 0)
    WHERE file.id = %(file)s AND journal"""
_CONTENTS_STATUS = "SELECT id, journal, size, modified, links FROM file WHERE id = %s"
_MODIFIED = "UPDATE file SET modified = %s WHERE id = %s"


class Contents:
    """The bytes of files, by their numbers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def status(self, file: int) -> Found:
        """Return the status of a file."""
        found = self._database.query(_CONTENTS_STATUS, (file,), again=True)
        if not found:
            raise failure(errno.ESTALE)
        return Found(*found[0])

    def read(self, file: int, size: int, offset: int, *, journal: bool) -> bytes:
        """Return at most `size` bytes from `offset`; `journal` is whether the file was a journal when last looked at."""
        arguments = {"file": file, "begin": offset, "end": offset + max(size, 1) - 1}
        rows = self._database.query(_READ_JOURNAL if journal else _READ, arguments, again=True)
        if not rows:  # it has become a journal in the meantime, or is gone
            rows = self._database.query(_READ if journal else _READ_JOURNAL, arguments, again=True)
        if not rows:
            raise failure(errno.ESTALE)
        content = bytearray(max(min(size, rows[0][0] - offset), 0))
        for _, begin, data in rows:
            if begin is not None:
                _overlay(content, begin - offset, data)
        return bytes(content)

    def append(self, file: int, data: bytes) -> int:
        """Write at the current end; return the number of bytes written."""
        data = data[:_MAX_WRITE]
        done = self._database.query(_APPEND, {"file": file, "data": data, "length": len(data)})
        if not done:
            raise self._unwritable(file)
        return len(data)

    def put(self, file: int, data: bytes, at: int) -> int:
        """Write at an offset; return the number of bytes written."""
        data = data[:_MAX_WRITE]
        first, skipped = divmod(at, PIECE)
        parts = [bytes(skipped) + data[: PIECE - skipped]]
        parts.extend(data[begin : begin + PIECE] for begin in range(PIECE - skipped, len(data), PIECE))
        arguments: dict[str, Any] = {
            "file": file,
            "at": at,
            "length": len(data),
            "first": first,
            "skipped": skipped,
            "zeros": bytes(skipped),
            "numbers": list(range(first, first + len(parts))),
            "parts": parts,
        }
        if not self._database.query(_PUT, arguments, again=True):
            raise self._unwritable(file)
        return len(data)

    def resize(self, file: int, size: int) -> None:
        """Truncate a file, or extend it with zeros."""
        last, rest = divmod(size, PIECE)
        arguments = {"file": file, "size": size, "behind": last + (rest > 0), "last": last, "zeros": bytes(rest)}

        def resize(cursor: Cursor) -> bool:
            if not cursor.execute(_CUT, arguments).fetchone():
                return False
            cursor.execute(_END, arguments)
            return True

        # If the size is a multiple of a piece, there is no partial last piece.
        done = (
            self._database.transact(resize, again=True) if rest else self._database.query(_CUT, arguments, again=True)
        )
        if not done:
            raise self._unwritable(file)

    def set_modified(self, file: int, nanoseconds: int) -> None:
        """Set the time of modification."""
        self._database.query(_MODIFIED, (nanoseconds, file), again=True)

    def _unwritable(self, file: int) -> OSError:
        return failure(errno.EROFS if self.status(file).journal else errno.ESTALE)


def _overlay(content: bytearray, at: int, data: bytes) -> None:
    """Copy `data`, which starts `at` this offset, into `content`, as far as it overlaps."""
    begin, end = max(at, 0), min(at + len(data), len(content))
    if begin < end:
        content[begin:end] = memoryview(data)[begin - at : end - at]


# -- files without a name

_HOUR = 3600.0
_WEEK = 7 * 24 * 3600 * 10**9
_AT_ONCE = 100  # files

_MAKE = f"""
    INSERT INTO file (id, journal, size, modified, links, unnamed)
    VALUES (nextval('file_number'), false, 0, {NOW}, 0, {NOW} + {_WEEK})
    RETURNING id, journal, size, modified, links"""
_UNNAMED = f"""
    SELECT id FROM file WHERE links = 0 AND unnamed <= {NOW} - %s::bigint
    ORDER BY unnamed LIMIT {_AT_ONCE} FOR UPDATE SKIP LOCKED"""
_UNNAMED_REMOVE = (
    "DELETE FROM piece WHERE file = ANY(%s)",
    "DELETE FROM entry WHERE file = ANY(%s)",
    "DELETE FROM file WHERE id = ANY(%s)",
)


def make_temporary(database: Database) -> Found:
    """Create a file without a name."""
    return Found(*database.query(_MAKE)[0])


def remove_unnamed(database: Database, file: int) -> None:
    """Remove a temporary file and its content."""
    database.transact(lambda cursor: _remove(cursor, [file]), again=True)


def sweep(database: Database, older_than: float = _HOUR) -> int:
    """Remove files that lost their last name at least `older_than` seconds ago; return how many."""

    def remove_old(cursor: Cursor) -> int:
        found = [file for (file,) in cursor.execute(_UNNAMED, (int(older_than * 1e9),)).fetchall()]
        if found:
            _remove(cursor, found)
        return len(found)

    total = 0
    while removed := database.transact(remove_old, again=True):
        total += removed
    return total


_FORGET = (
    "DELETE FROM passage WHERE number IN (SELECT number FROM catalog WHERE path = ANY(%(paths)s) OR id = %(session)s)",
    "DELETE FROM catalog WHERE path = ANY(%(paths)s) OR id = %(session)s",
    "DELETE FROM turn WHERE session = %(session)s",
    "DELETE FROM lane WHERE session = %(session)s",
)
_REWRITTEN = "file, piece, entry, catalog, passage, turn, lane, binding, name"


def forget(database: Database, paths: Sequence[str], session_id: str) -> None:
    """Remove what is left of erased files: their rows in the catalog, turns, and the bytes of deleted rows.

    PostgreSQL keeps those bytes until a table is written anew, which makes other processes wait.
    """
    sweep(database, older_than=0)
    values = {"paths": [key(path).path for path in paths], "session": session_id}

    def remove(cursor: Cursor) -> None:
        for statement in _FORGET:
            cursor.execute(statement, values)

    database.transact(remove, again=True)
    database.query(f"VACUUM (FULL) {_REWRITTEN}", again=True, prepare=False)


def _remove(cursor: Cursor, files: list[int]) -> None:
    for statement in _UNNAMED_REMOVE:
        cursor.execute(statement, (files,))


# -- paths

_LONGEST_NAME = 255  # bytes
_LONGEST_PATH = 2000  # bytes; an index entry of PostgreSQL holds 2,700


class Key(NamedTuple):
    """The key of a name: its folder and the name itself."""

    folder: bytes
    base: bytes

    @property
    def path(self) -> bytes:
        """The path of this key; for a folder, this is the `folder` of the names in it."""
        if not self.base:
            return b"/"
        return self.folder.rstrip(b"/") + b"/" + self.base


ROOT = Key(b"", b"")


def keys(path: str) -> list[Key]:
    """Return the keys of all folders from `/` to a path, and of the path itself."""
    try:
        encoded = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise failure(errno.EILSEQ, path) from None
    parts = [part for part in encoded.split(b"/") if part]
    if not encoded.startswith(b"/") or b"\0" in encoded or b"." in parts or b".." in parts:
        raise failure(errno.EINVAL, path)
    if len(encoded) > _LONGEST_PATH or any(len(part) > _LONGEST_NAME for part in parts):
        raise failure(errno.ENAMETOOLONG, path)
    found = [ROOT]
    for part in parts:
        found.append(Key(found[-1].path, part))
    return found


def key(path: str) -> Key:
    """Return the key of a path."""
    return keys(path)[-1]


def decoded(base: bytes) -> str:
    """Return a name as text."""
    return base.decode("utf-8", "surrogateescape")


def failure(code: int, path: str | None = None, target: str | None = None) -> OSError:
    """Return the error that the system call would raise."""
    return OSError(code, os.strerror(code), path, None, target)
