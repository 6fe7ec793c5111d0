"""Sweep files of a store that are not sessions: first a plan, then a move to the trash.

Blobs that no file refers to, originals that are old or many, and what dead processes left. Rules:

- A blob is in use if its reference occurs anywhere below the root: in a session, a draft, the trash, an original or another
  blob. The cache does not count.
- Blobs younger than a day are kept, because a blob is written before the line that refers to it.
- If there is a link below the root, no blob is swept: it may lead to sessions that are not read.
- A temporary file is locked while it is written, so one with a free lock was left by a dead process. The next writer removes
  it if its bytes are elsewhere (`storage.atomic`); the others stay until the user asks.
"""

from __future__ import annotations

import posixpath
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sessile.errors import SessileError, SessionNotFound, UnsafePath
from sessile.storage import atomic, session_bytes
from sessile.storage.locks import is_held
from sessile.storage.trash import Deletion, Trash

if TYPE_CHECKING:
    from sessile.storage.base import Filesystem, Stat
    from sessile.store import Store

RECENT = 24 * 3600.0  # seconds

_HASH = re.compile(r"[0-9a-f]{64}")
_DAY = 24 * 3600
_ORIGINAL = re.compile(r"(.+)\.(\d{10,16})-[0-9a-f]{6}", re.DOTALL)  # <name of the file>.<milliseconds>-<random>
_WORKSHOP = "history.db.new-"  # a folder in which a new history is made

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
    deletion = _moved(store, [orphan.path for orphan in moved], "blobs")
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


# -- leftovers


class Leftover(NamedTuple):
    """A temporary file or folder of a dead process. The next writer removes it if it is `spare`: its bytes are elsewhere."""

    path: str
    size: int
    modified_ns: int
    spare: bool


def leftovers(store: Store, *others: str) -> Iterator[Leftover]:
    """Yield the temporary files of a store, its cache and some other folders that no process is writing."""
    fs, root = store.fs, store.layout.root
    caches = (f"{store.layout.cache}/", f"{root}/terminal-sessions/")
    tops = dict.fromkeys((root, store.layout.cache, *others))
    for top in [top for top in tops if not any(top.startswith(f"{each}/") for each in tops)]:
        inside: str | None = None
        for path, status in session_bytes.below(fs, top):
            if inside is not None and path.startswith(f"{inside}/"):
                continue
            inside = None
            if temporary_in(path, 1) is None or is_written(fs, path):
                continue
            if stat.S_ISDIR(status.st_mode):
                inside = path
                yield Leftover(path, session_bytes.bytes_below(fs, path), status.st_mtime_ns, False)
            elif stat.S_ISREG(status.st_mode):
                yield Leftover(
                    path, status.st_size, status.st_mtime_ns, path.startswith(caches) or atomic.is_spare(fs, path)
                )


def temporary_in(path: str, names: int) -> str | None:
    """Return the path of the temporary file or folder among the last names of a path; `None` if there is none."""
    parts = path.split("/")
    for end in range(len(parts) - names, len(parts)):
        if atomic.target_of(parts[end]) is not None or parts[end].startswith(_WORKSHOP):
            return "/".join(parts[: end + 1])
    return None


def is_written(fs: Filesystem, path: str) -> bool:
    """Return whether a process holds a temporary file. The folder of a new history has the lock of the folder around it."""
    workshop = posixpath.basename(path).startswith(_WORKSHOP)
    try:
        return is_held(fs, posixpath.dirname(path) if workshop else path)
    except SessileError:
        return True  # where nothing can be locked, nothing is known to be dead


def plan_leftovers(store: Store) -> FilePlan:
    """Return what dead processes left in a store. Nothing is changed."""
    found = [each for each in leftovers(store) if each.path.startswith(f"{store.layout.root}/")]
    why = {True: "its bytes are elsewhere", False: "its bytes are nowhere else"}
    return _planned(store, [(each.path, each.size, why[each.spare]) for each in found], 0)


# -- originals


def plan_originals(store: Store, *, older_than: float, copies: int, now: float | None = None) -> FilePlan:
    """Return the originals that are older than some seconds, or not among the newest `copies` of their session.

    Originals are what repairs, migrations and edits have replaced. Nothing is changed.
    """
    moment = store.now() / 1000 if now is None else now
    sessions: dict[str, list[tuple[float, str, int]]] = {}
    for path, status in session_bytes.files_below(store.fs, store.layout.originals):
        if temporary_in(path, 1) is None:
            name = _ORIGINAL.fullmatch(path)
            kept = int(name[2]) / 1000 if name is not None else status.st_mtime_ns / 1e9
            sessions.setdefault(name[1] if name is not None else path, []).append((kept, path, status.st_size))
    found: list[tuple[str, int, str]] = []
    count = 0
    for originals in sessions.values():
        for number, (kept, path, size) in enumerate(sorted(originals, reverse=True)):
            days = int((moment - kept) // _DAY)
            if number >= copies:
                found.append((path, size, f"not among the newest {copies}"))
            elif moment - kept >= older_than:
                found.append((path, size, f"kept for {days} day{'' if days == 1 else 's'}"))
            else:
                count += 1
    return _planned(store, sorted(found), count)


# -- both


class FileItem(NamedTuple):
    """A file that would be moved to the trash, and why."""

    path: str
    size: int
    why: str
    mark: Mark


class FilePlan(NamedTuple):
    """The files that a sweep would move to the trash, their bytes, and how many others stay."""

    items: tuple[FileItem, ...]
    bytes: int
    stay: int


def _planned(store: Store, found: Sequence[tuple[str, int, str]], stay: int) -> FilePlan:
    items = tuple(FileItem(path, size, why, _mark(store.fs.lstat(path))) for path, size, why in found)
    return FilePlan(items, sum(item.size for item in items), stay)


def apply_file_plan(store: Store, plan: FilePlan, what: str) -> Swept:
    """Move the files of a plan to the trash as one deletion, except those that were changed or taken over since."""
    moved, refused = [], []
    for item in plan.items:
        try:
            same = _mark(store.fs.lstat(item.path)) == item.mark
        except OSError:
            same = False
        if not same or (temporary_in(item.path, 1) is not None and is_written(store.fs, item.path)):
            refused.append((item.path, "it has changed since the plan was made"))
        else:
            moved.append(item)
    if not moved:
        return Swept(None, tuple(refused), 0)
    deletion = _moved(store, [item.path for item in moved], what)
    return Swept(deletion, tuple(refused), sum(item.size for item in moved))


def _moved(store: Store, paths: Sequence[str], what: str) -> Deletion:
    return Trash(store.fs, store.layout.trash).move(paths, f"{store.now()}-{store.random(3).hex()}-{what}")
