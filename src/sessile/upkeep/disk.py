"""Disk usage and trash of a store: measure, undo deletions, empty the trash.

Measuring changes nothing. Deleted sessions stay in the trash until the user empties it: nothing does that automatically, and it
is the only operation that removes data for good. Symbolic links are not followed.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from sessile.errors import Invalid, NotFound, SessileError, storage_failures
from sessile.storage import session_bytes as survey
from sessile.storage.drafts import is_draft
from sessile.storage.layout import session_files
from sessile.storage.trash import Deletion, Trash
from sessile.upkeep.sweep import plan_blob_sweep

if TYPE_CHECKING:
    from sessile.store import Store

_IN_A_PROJECT = 3  # parts of sessions/<project>/<name>


# -- disk use


class Usage(NamedTuple):
    """The number and size of a store's files, by kind. `orphan_blob_bytes` is `None` unless it was requested.

    `other_bytes` is everything else below the root; `links` is the number of links, which were not followed.
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
    other_bytes: int = 0
    links: int = 0

    @property
    def total(self) -> int:
        """The total size in bytes; orphaned blobs are included in the blobs and count once."""
        parts = self.session_bytes + self.draft_bytes + self.artifacts_bytes + self.blob_bytes + self.originals_bytes
        return parts + self.kept_bytes + self.trash_bytes + self.cache_bytes + self.other_bytes


def disk_usage(store: Store, *, orphans: bool = False) -> Usage:
    """Measure a store. With `orphans` all files are read to find the blobs that nothing refers to."""
    layout = store.layout
    sums: dict[str, int] = {}
    for path, status in survey.below(store.fs, layout.root):
        if stat.S_ISLNK(status.st_mode):
            _count(sums, "links", 1)
        elif stat.S_ISREG(status.st_mode):
            for name, amount in _kind_of(path.removeprefix(f"{layout.root}/"), status.st_size):
                _count(sums, name, amount)
    if not layout.cache.startswith(f"{layout.root}/"):
        sums["cache_bytes"] = survey.bytes_below(store.fs, layout.cache)
    found = plan_blob_sweep(store).bytes if orphans else None
    return Usage(**sums, deletions=len(_tokens(store)), orphan_blob_bytes=found)


def _count(sums: dict[str, int], name: str, amount: int) -> None:
    sums[name] = sums.get(name, 0) + amount


def _kind_of(path: str, size: int) -> list[tuple[str, int]]:
    """Return the fields of `Usage` that a file below the root adds to, with the amounts."""
    top, *rest = path.split("/")
    match top:
        case "blobs" | "originals" | "kept" if rest:
            return [(top, 1), ("blob_bytes" if top == "blobs" else f"{top}_bytes", size)]
        case "trash" | "cache" if rest:
            return [(f"{top}_bytes", size)]
        case "sessions" if len(rest) >= _IN_A_PROJECT:
            return [("artifacts_bytes", size)]
        case "sessions" if rest and is_draft(rest[-1]):
            return [("drafts", 1), ("draft_bytes", size)]
        case "sessions" if rest and session_files(rest[-1:]):
            return [("sessions", 1), ("session_bytes", size)]
    return [("other_bytes", size)]


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
