"""Disk usage and trash of a store: measure, undo deletions, empty the trash.

Measuring changes nothing. Every byte below the root belongs to one kind of `Usage`: what is not known counts as `other`, and its
paths are listed. A file with two names counts once. Symbolic links are not followed.

Deleted sessions stay in the trash until the user empties it: nothing does that automatically.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sessile.errors import Invalid, NotFound, SessileError, storage_failures
from sessile.storage import session_bytes as survey
from sessile.storage.drafts import is_draft
from sessile.storage.layout import session_files
from sessile.storage.locks import Identity, identity
from sessile.storage.trash import Deletion, Trash
from sessile.upkeep.sweep import is_written, plan_blob_sweep, temporary_in

if TYPE_CHECKING:
    from sessile.storage.base import Filesystem, Stat
    from sessile.store import Store

_IN_A_PROJECT = 3  # parts of sessions/<project>/<name>
_MAX_NAMED = 100  # unknown files that are listed

# Files that were set aside when another took their place, by how their names end.
_ASIDE = re.compile(r"\.(old|good(\.\d+)?|(broken|invalid)-\d+(-wal|-shm|-journal)?|corrupt-[0-9a-f-]+)")
_STATE = re.compile(r"(pins|sources)\.json(\.lock)?|config\.(toml|json)|made")
_GATEWAY = re.compile(r"gateway(-[0-9a-f]+)?\.(json|lock|token|html)")
_TOPS = {
    "blobs": "blobs",
    "originals": "originals",
    "kept": "kept",
    "trash": "trash",
    "cache": "cache",
    "agents": "gateway",
    "tombstones": "originals",
    "terminal-sessions": "state",
    "erased": "state",
    "pending": "state",
    "workspaces": "workspaces",
}
_COUNTED = ("sessions", "drafts", "blobs", "originals", "kept", "temporary", "leftovers", "copies")
_FIELDS = {"sessions": "session_bytes", "drafts": "draft_bytes", "blobs": "blob_bytes", "leftovers": "leftover_bytes"}


# -- disk use


class Usage(NamedTuple):
    """The number and size of a store's files, by kind. `orphan_blob_bytes` is `None` unless it was requested.

    `temporary` files are being written, `leftovers` are those of dead processes, and `copies` were set aside when another file
    took their place. `index_bytes` and `catalog_bytes` are parts of `cache_bytes`. `other_bytes` is everything unknown below the
    root, and `other_paths` has the first of those files; `links` is the number of links, which were not followed.
    """

    sessions: int = 0
    session_bytes: int = 0
    drafts: int = 0
    draft_bytes: int = 0
    artifacts_bytes: int = 0
    blobs: int = 0
    blob_bytes: int = 0
    orphan_blob_bytes: int | None = None
    originals: int = 0
    originals_bytes: int = 0
    kept: int = 0
    kept_bytes: int = 0
    deletions: int = 0
    trash_bytes: int = 0
    cache_bytes: int = 0
    index_bytes: int = 0
    catalog_bytes: int = 0
    history_bytes: int = 0
    turns_bytes: int = 0
    gateway_bytes: int = 0
    workspaces_bytes: int = 0
    state_bytes: int = 0
    copies: int = 0
    copies_bytes: int = 0
    temporary: int = 0
    temporary_bytes: int = 0
    leftovers: int = 0
    leftover_bytes: int = 0
    other_bytes: int = 0
    other_paths: tuple[str, ...] = ()
    links: int = 0

    @property
    def total(self) -> int:
        """The total size in bytes; orphaned blobs, indexes and the catalog are included in others and count once."""
        parts = (getattr(self, field) for field in _ADDED)
        return sum(parts)


_PARTS = ("orphan_blob_bytes", "index_bytes", "catalog_bytes")
_ADDED = tuple(field for field in Usage._fields if field.endswith("_bytes") and field not in _PARTS)


def disk_usage(store: Store, *, orphans: bool = False) -> Usage:
    """Measure a store. With `orphans` all files are read to find the blobs that nothing refers to."""
    layout = store.layout
    sums: dict[str, int] = {}
    unknown: list[str] = []
    seen: set[Identity] = set()
    for path, status in _everything(store):
        if stat.S_ISLNK(status.st_mode):
            _count(sums, "links", 1)
            continue
        if not stat.S_ISREG(status.st_mode):
            if not stat.S_ISDIR(status.st_mode):
                unknown.append(path)
            continue
        size = 0 if identity(status) in seen else status.st_size
        seen.add(identity(status))
        below_cache = path.startswith(f"{layout.cache}/")
        within = f"cache{path[len(layout.cache) :]}" if below_cache else path.removeprefix(f"{layout.root}/")
        kind = _kind_of(store.fs, path, within)
        if kind == "other":
            unknown.append(path)
        if kind in _COUNTED:
            _count(sums, kind, 1)
        _count(sums, _FIELDS.get(kind, f"{kind}_bytes"), size)
        if kind == "cache" and (part := _part_of_cache(within)) is not None:
            _count(sums, f"{part}_bytes", size)
    found = plan_blob_sweep(store).bytes if orphans else None
    return Usage(
        **sums, deletions=len(_tokens(store)), orphan_blob_bytes=found, other_paths=tuple(unknown[:_MAX_NAMED])
    )


def _everything(store: Store) -> Iterator[tuple[str, Stat]]:
    """Yield everything below the root, and below a cache that is elsewhere."""
    layout = store.layout
    yield from survey.below(store.fs, layout.root)
    if not layout.cache.startswith(f"{layout.root}/"):
        yield from survey.below(store.fs, layout.cache)


def _count(sums: dict[str, int], name: str, amount: int) -> None:
    sums[name] = sums.get(name, 0) + amount


def _kind_of(fs: Filesystem, path: str, within: str) -> str:
    """Return the kind of a file below the root; `within` is its path there."""
    top, *rest = parts = within.split("/")
    name = parts[-1]
    if (temp := temporary_in(path, len(parts))) is not None:
        return "temporary" if is_written(fs, temp) else "leftovers"
    if top in _TOPS and rest:
        return "copies" if top == "agents" and _ASIDE.search(name) else _TOPS[top]
    if top == "sessions" and rest:
        if len(rest) >= _IN_A_PROJECT:
            return "artifacts"
        if _ASIDE.search(name):
            return "copies"
        return "drafts" if is_draft(name) else "sessions" if session_files([name]) else "other"
    if top == "gateway" and rest:
        return "turns" if rest[0] == "turns" else "gateway"
    if rest:
        return "other"
    if top.startswith("history.db"):
        return "copies" if _ASIDE.search(top) else "history"
    return "state" if _STATE.fullmatch(top) else "gateway" if _GATEWAY.fullmatch(top) else "other"


def _part_of_cache(within: str) -> str | None:
    """Return what a file of the cache is."""
    name = within.split("/")[1]
    return "index" if name == "index" else "catalog" if name.startswith("catalog.") else None


# -- the trash


class Trashed(NamedTuple):
    """One deletion in the trash: its token, time, original paths and size.

    `at` is in milliseconds, and `None` if the token has no time. Without `paths` the deletion cannot be undone: emptying it was
    interrupted, or its manifest is damaged. `holds` is whether it contains any files; a deletion that was interrupted before its
    first file was moved contains none.
    """

    token: str
    at: int | None
    paths: tuple[str, ...]
    bytes: int
    holds: bool


def trash_contents(store: Store) -> tuple[Trashed, ...]:
    """Return all deletions in the trash, oldest first. Those with paths can be undone."""
    deletions = {deletion.token: deletion.paths for deletion in store.deletions()}
    return tuple(_trashed(store, token, deletions.get(token, ())) for token in _tokens(store))


def _tokens(store: Store) -> list[str]:
    with storage_failures(store.layout.trash, "list the trash"):
        try:
            return store.fs.names(store.layout.trash)
        except FileNotFoundError:
            return []


def _trashed(store: Store, token: str, paths: tuple[str, ...]) -> Trashed:
    folder = f"{store.layout.trash}/{token}"
    within = [path.removeprefix(f"{folder}/") for path, _ in survey.below(store.fs, folder)]
    holds = any(name.isdecimal() for name in within)  # moved files are numbered
    at = token.partition("-")[0]
    size = survey.bytes_below(store.fs, folder)
    return Trashed(token, int(at) if at.isdecimal() and at.isascii() else None, paths, size, holds)


def undo_last(store: Store, *, roots: Sequence[str] = ()) -> Deletion:
    """Undo the latest deletion; `roots` are folders of other agents that may be restored to."""
    last = max(
        (item for item in trash_contents(store) if item.paths and item.holds),
        key=lambda item: (item.at or 0, item.token),
        default=None,
    )
    if last is None:
        raise NotFound("nothing to undo", path=store.layout.trash, hint="run `sessile trash` to list deletions")
    return store.undo(last.token, roots=roots)


class TrashPlan(NamedTuple):
    """What emptying the trash would remove for good (`items`), and what it would keep."""

    items: tuple[Trashed, ...]
    kept: tuple[Trashed, ...]
    bytes: int


class Emptied(NamedTuple):
    """What was removed for good. `failure` is the error that stopped it, if any."""

    tokens: tuple[str, ...]
    bytes: int
    failure: SessileError | None = None


def plan_empty_trash(store: Store, older_than: float | None = None, *, now: float | None = None) -> TrashPlan:
    """Return what `empty_trash` would remove: deletions at least `older_than` seconds old, or all. Nothing is changed.

    A deletion of unknown age is included only if all are.
    """
    moment = store.now() / 1000 if now is None else now
    items: list[Trashed] = []
    kept: list[Trashed] = []
    for item in trash_contents(store):
        due = older_than is None or (item.at is not None and moment - item.at / 1000 >= older_than)
        (items if due else kept).append(item)
    return TrashPlan(tuple(items), tuple(kept), sum(item.bytes for item in items))


def empty_trash(store: Store, plan: TrashPlan, *, confirm: bool = False) -> Emptied:
    """Remove the deletions of a plan for good. `confirm` must be true."""
    if not confirm:
        raise Invalid(
            f"{len(plan.items)} deletions would be removed for good; nothing was removed",
            path=store.layout.trash,
            hint="check the plan, then pass confirm=True",
        )
    trash = Trash(store.fs, store.layout.trash)
    removed: list[Trashed] = []
    failure = None
    for item in plan.items:
        try:
            if trash.remove(item.token):  # False: it was undone in the meantime
                removed.append(item)
        except SessileError as error:
            failure = error
            break
    return Emptied(tuple(item.token for item in removed), sum(item.bytes for item in removed), failure)
