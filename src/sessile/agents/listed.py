"""Sessions that their agent keeps a list of: what belongs to each, and how one leaves the list and comes back into it.

Rules: a session goes to our trash with all its files, and its row goes out of the list under the lock of its agent; a note in
the trash keeps the row, so that taking the deletion back restores both. A session that the list says is pinned or on a
schedule stays. Of such lists we write those of MyAgents.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import msgspec

from sessile.agents.myagents.places import session_at
from sessile.agents.myagents.store import MyAgentsStore
from sessile.agents.myagents.types import Metadata
from sessile.discovery import SessionInfo
from sessile.errors import UnsafePath
from sessile.storage import atomic
from sessile.storage.catch_up import walk
from sessile.storage.layout import JOURNAL, LIST, stem_of
from sessile.storage.trash import Deletion

if TYPE_CHECKING:
    from sessile.store import Store


def myagents_at(store: Store, home: str) -> MyAgentsStore:
    """MyAgents' folder; what we keep of it lies in the store."""
    return MyAgentsStore(store.fs, home, store.layout.root, clock=lambda: store.now() * 1_000_000)


def listed_in(store: Store, folder: str) -> Listed | None:
    """The sessions in a folder that a list tells of; `None` if there is no list above it."""
    home = posixpath.dirname(folder)
    if posixpath.basename(folder) != "sessions" or not atomic.exists(store.fs, f"{home}/{LIST}"):
        return None
    return Listed(myagents_at(store, home))


class Listed:
    """The sessions of one folder, as their list tells of them when it is first asked."""

    def __init__(self, theirs: MyAgentsStore) -> None:
        self._theirs = theirs

    @cached_property
    def _rows(self) -> Mapping[str, Metadata]:
        return self._theirs.index.rows()

    def paths(self) -> list[str]:
        """One file of each session, whatever its form."""
        found = walk(self._theirs.fs, [self._theirs.places.sessions], [])
        paths = [path for path in found.marks if session_at(path) is not None]
        plain_last = sorted(paths, key=lambda path: path.endswith(JOURNAL))  # of several forms the plain one counts
        return [*{stem_of(path): path for path in plain_last}.values()]

    def files_of(self, path: str) -> Sequence[str]:
        """Every file of the session in a file, attachments among them."""
        return self._theirs.trash.files_of(stem_of(path))

    def told(self, info: SessionInfo) -> SessionInfo:
        """What is known of a session, with its title and project."""
        row = self._rows.get(stem_of(info.path))
        if row is None:
            return info
        return msgspec.structs.replace(info, title=row.title or info.title, cwd=row.agent_dir or info.cwd)

    def why_spared(self, path: str) -> Literal["pinned", "scheduled", "open"] | None:
        """Why a session stays, whatever anybody says."""
        row = self._rows.get(stem_of(path))
        if row is not None and row.pinned:
            return "pinned"
        if row is not None and row.value.get("cronTaskId"):
            return "scheduled"
        locked = atomic.exists(self._theirs.fs, self._theirs.places.session_lock(stem_of(path)))
        return "open" if locked else None

    def delete(self, path: str) -> str:
        """Move a session to our trash and out of the list; gives the token that takes it back."""
        return self._theirs.delete(stem_of(path)).token


def undo_listed(store: Store, deletion: Deletion, roots: Sequence[str]) -> Deletion:
    """Put a session back, and its row into the list; only if the folder of its sessions is one of `roots`."""
    home = str(deletion.root)
    if f"{home}/sessions" not in roots:
        hint = f"it was deleted from {home}/sessions; say that this folder is meant"
        raise UnsafePath("the trash names a folder outside of the store", path=home, hint=hint)
    myagents_at(store, home).undo(deletion.token)
    return deletion
