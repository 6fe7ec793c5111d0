"""Sweep blobs that no file of a store refers to: first a plan, then a move to the trash.

Rules:

- A blob is in use if its reference occurs anywhere below the root: in a session, a draft, the trash, an original or another
  blob. The cache does not count.
- Blobs younger than a day are kept, because a blob is written before the line that refers to it.
- If there is a link below the root, nothing is swept: it may lead to sessions that are not read.
"""

from __future__ import annotations

import posixpath
import re
import stat
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from sessile.errors import SessionNotFound, UnsafePath
from sessile.storage import session_bytes
from sessile.storage.trash import Deletion, Trash

if TYPE_CHECKING:
    from sessile.storage.base import Stat
    from sessile.store import Store

RECENT = 24 * 3600.0  # seconds

_HASH = re.compile(r"[0-9a-f]{64}")

Mark = tuple[int, int, int]
"""Size, time of modification and inode of a file."""


class Orphan(NamedTuple):
    """A blob that nothing refers to."""

    hash: str
    path: str
    size: int
    mark: Mark


class SweepPlan(NamedTuple):
    """What a sweep would move to the trash. `recent` counts orphans that are too young; `seen` are the marks of all files."""

    orphans: tuple[Orphan, ...]
    bytes: int
    in_use: int
    recent: int
    seen: Mapping[str, Mark]


class Swept(NamedTuple):
    """What a sweep did: one deletion that can be undone, and the blobs that were refused, with the reason."""

    deletion: Deletion | None
    refused: tuple[tuple[str, str], ...]
    bytes: int


def plan_blob_sweep(store: Store, *, now: float | None = None) -> SweepPlan:
    """Find the blobs that nothing refers to. Every file of the store is read, nothing is changed."""
    moment = store.now() / 1000 if now is None else now
    seen: dict[str, Mark] = {}
    named = _named(store, seen)
    blobs = list(_blobs(store))
    unnamed = [orphan for orphan in blobs if orphan.hash not in named]
    orphans = tuple(orphan for orphan in unnamed if moment - orphan.mark[1] / 1e9 >= RECENT)
    size = sum(orphan.size for orphan in orphans)
    return SweepPlan(orphans, size, len(blobs) - len(unnamed), len(unnamed) - len(orphans), seen)


def apply_blob_sweep(store: Store, plan: SweepPlan) -> Swept:
    """Move the orphans of a plan to the trash, except those that were changed or referred to since."""
    named = _named(store, dict(plan.seen))
    there = {orphan.path: orphan.mark for orphan in _blobs(store)}
    moved, refused = [], []
    for orphan in plan.orphans:
        if orphan.hash in named:
            refused.append((orphan.path, "it is in use now"))
        elif there.get(orphan.path) != orphan.mark:
            refused.append((orphan.path, "it has changed since the plan was made"))
        else:
            moved.append(orphan)
    if not moved:
        return Swept(None, tuple(refused), 0)
    token = f"{store.now()}-{store.random(3).hex()}-blobs"
    deletion = Trash(store.fs, store.layout.trash).move([orphan.path for orphan in moved], token)
    return Swept(deletion, tuple(refused), sum(orphan.size for orphan in moved))


def _named(store: Store, seen: dict[str, Mark]) -> set[str]:
    """Return the hashes in files that changed since `seen`, and update the marks in `seen`."""
    found: set[str] = set()
    for path, status in _readable(store):
        mark = _mark(status)
        if seen.get(path) == mark:
            continue
        try:
            found |= session_bytes.references(store.fs, path)
        except SessionNotFound:
            continue  # moved or removed; it is read in its new place before anything is swept
        seen[path] = mark
    return found


def _readable(store: Store) -> Iterator[tuple[str, Stat]]:
    """Yield every file of the root that may refer to a blob."""
    cache = f"{store.layout.cache}/"
    for path, status in session_bytes.below(store.fs, store.layout.root):
        if f"{path}/".startswith(cache):
            continue
        if stat.S_ISLNK(status.st_mode):
            hint = "remove the link, then run the sweep again"
            raise UnsafePath("a link may lead to sessions that use blobs; nothing is swept", path=path, hint=hint)
        if stat.S_ISREG(status.st_mode):
            yield path, status


def _blobs(store: Store) -> Iterator[Orphan]:
    """Yield every blob, in use or not."""
    for path, status in session_bytes.files_below(store.fs, store.layout.blobs):
        name = posixpath.basename(path)
        if _HASH.fullmatch(name) and path == store.blobs.path(name):
            yield Orphan(name, path, status.st_size, _mark(status))


def _mark(status: Stat) -> Mark:
    return status.st_size, status.st_mtime_ns, status.st_ino
