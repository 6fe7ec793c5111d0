"""How names move in a database: files in one statement if the new name is free, everything else in a transaction.

Rules: it fails as Linux does. Both names are locked before anything is decided. A folder takes along every name below it;
names that are made there meanwhile are either taken along too or find that their folder has gone, never lost between.
"""

from __future__ import annotations

import errno

from psycopg.errors import UniqueViolation

from sessile.storage.postgres.database import Cursor, Database
from sessile.storage.postgres.names import NOW, PARENT, Names, placed
from sessile.storage.postgres.paths import ROOT, Key, failure, key

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
    """Move a name, replacing what the new one means; whether a file lost its last name by that."""
    old, new = key(source), key(target)
    if ROOT in (old, new):
        raise failure(errno.EBUSY, source, target)
    while True:
        arguments = {**placed(target), "source_folder": old.folder, "source_base": old.base}
        try:
            if database.query(_MOVE_FILE, arguments):
                return False
        except UniqueViolation:
            pass  # the new name was taken in this very moment
        done = database.transact(lambda cursor: _rename(cursor, names, source, target))
        if done is not None:
            return done


def _rename(cursor: Cursor, names: Names, source: str, target: str) -> bool | None:
    """The same with both names locked; None if a file can move at once now, because its new name has become free."""
    old, new = key(source), key(target)
    held = {Key(folder, base): file for folder, base, file in cursor.execute(_HOLD_BOTH, (*old, *new)).fetchall()}
    if old not in held:
        names.look(source, cursor=cursor)  # says what is wrong with its folder
        names.look(target, cursor=cursor)  # and this, with that of the new name, which comes before the name itself
        raise failure(errno.ENOENT, source, target)
    file, moves_folder = held[old], held[old] is None
    if moves_folder and new.path.startswith(old.path + b"/"):
        raise failure(errno.EINVAL, source, target)
    if old == new or (new in held and file is not None and held[new] == file):
        return False  # two names of one file: POSIX says that both stay
    if new not in held:
        names.look(target, cursor=cursor)  # says what is wrong with the folder
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
        "behind": old.path + b"0",  # the byte behind the slash
    }
    # Until nothing is left: a folder that was made while we waited for another is not locked before it has moved.
    while cursor.execute(_MOVE_BELOW, below).rowcount:
        pass
