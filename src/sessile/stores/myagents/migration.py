"""From a session in one JSON object to JSONL, so that an interruption at any step loses nothing.

Order: the JSONL file is written whole and durable under its final name; both forms as they were are kept in our folder; only
then the old one is removed. Where both were there the one with more messages wins, and the other one is kept. Reading never
migrates: the first write does.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from sessile.errors import Damaged, storage_failures
from sessile.formats.myagents.messages import Row
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.stores.myagents.places import Places
from sessile.stores.myagents.reading import load_legacy, load_lines


def migrate(fs: Filesystem, places: Places, session_id: str, stamp: str) -> list[str]:
    """Make JSONL the only form of a session; gives the files that were kept. Without a legacy file nothing happens."""
    legacy_path, path = places.legacy(session_id), places.session(session_id)
    if not atomic.exists(fs, legacy_path):
        return []
    legacy = load_legacy(fs, legacy_path)
    current = load_lines(fs, path) if atomic.exists(fs, path) else None
    unreadable = any(finding.code == "not_json" for finding in legacy.findings)
    if unreadable and (current is None or not current.rows):
        raise Damaged(
            "the legacy session cannot be read; an append would hide what is in it",
            path=legacy_path,
            hint="repair the file or move it away, then try again",
        )
    kept = []
    if current is None:
        if not _published(fs, path, legacy.rows):
            return migrate(fs, places, session_id, stamp)  # another program has just done it: now both are there
    elif len(legacy.rows) > len(current.rows):
        kept.append(_keep(fs, places, path, stamp))
        atomic.replace(fs, path, _lines(legacy.rows))
    kept.append(_keep(fs, places, legacy_path, stamp))
    with storage_failures(legacy_path, "remove the legacy session"):
        fs.sync_directory(places.sessions)  # the JSONL file may be the work of one who died before this
        fs.unlink(legacy_path)
        fs.sync_directory(places.sessions)
    return kept


def _published(fs: Filesystem, path: str, rows: tuple[Row, ...]) -> bool:
    """Make the JSONL file, whole and durable; says `False` if another program has made one, which may hold more by now."""
    temp = atomic.temp_beside(path)
    with storage_failures(path, "migrate the session"):
        atomic.write_new(fs, temp, _lines(rows))
        try:
            atomic.keep(fs, temp, path)
        except FileExistsError:
            return False
        finally:
            atomic.remove(fs, temp)
    return True


def _lines(rows: tuple[Row, ...]) -> Iterator[bytes]:
    return (row.raw + b"\n" for row in rows)


def _keep(fs: Filesystem, places: Places, path: str, stamp: str) -> str:
    name = f"{places.originals}/{posixpath.basename(path)}.{stamp}"
    with storage_failures(path, "keep the original"):
        atomic.keep(fs, path, name)
    return name
