"""Bindings that maintenance took out of a store file, kept beside it, so that they can be put back.

    <root>/agents/<agent>/sessions/sessions.archived.<token>.json     the entries by key, and why they went

An archive is durable before anything is taken out. Its entries are written as they were, so that a person can copy one back by
hand. Nothing here is ever removed by itself, except an archive all of whose entries are back.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from typing import Any

import msgspec

from sessile.errors import Damaged, NotFound, storage_failures
from sessile.formats.yoyoclaw.entries import SessionEntry
from sessile.formats.yoyoclaw.normal import normalize_agent_id
from sessile.storage import atomic
from sessile.store import Store
from sessile.stores.yoyoclaw.paths import StateFolder, names_in

_START, _END = "sessions.archived.", ".json"


class ArchivedBindings(msgspec.Struct, frozen=True):
    """What one run of maintenance took out, and the token that puts it back. Time is in milliseconds."""

    token: str
    agent: str
    at: int
    why: dict[str, str]
    entries: dict[str, dict[str, Any]]


class Archives:
    """The archives of a store."""

    def __init__(self, store: Store, home: StateFolder) -> None:
        self._store = store
        self._home = home

    def new_token(self, agent: str, now: int) -> str:
        """A name for an archive that no other has."""
        return f"{agent}.{now}-{self._store.random(3).hex()}"

    def write(self, token: str, entries: Mapping[str, SessionEntry], why: Mapping[str, str], now: int) -> str:
        """Keep entries under a token, in place of those that it stood for before; gives the path of the archive."""
        path = self.path_of(token)
        members = {key: entry.members for key, entry in entries.items()}
        archive = ArchivedBindings(token, token.partition(".")[0], now, {key: why[key] for key in entries}, members)
        atomic.make_folders(self._store.fs, posixpath.dirname(path))
        # As ASCII: a key or a member may hold half an emoji, which cannot be encoded otherwise.
        data = json.dumps(msgspec.structs.asdict(archive), indent=1).encode("ascii")
        atomic.replace(self._store.fs, path, (data, b"\n"))
        return path

    def get(self, token: str) -> ArchivedBindings:
        """What a token stands for."""
        path = self.path_of(token)
        with storage_failures(path, "look for archived conversations"):
            try:
                data = atomic.read_all(self._store.fs, path)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise NotFound(f"there is no archive {token[:120]!r}", hint="it was put back already") from error
        try:
            return msgspec.convert(json.loads(data), ArchivedBindings)
        except (ValueError, msgspec.ValidationError) as error:
            hint = "mend it in an editor, or move it away; the sessions themselves are not in it"
            raise Damaged("the archive of conversations cannot be read", path=path, hint=hint) from error

    def list(self, agent: str) -> list[ArchivedBindings]:
        """All archives of an agent, oldest first."""
        names = names_in(self._store.fs, posixpath.dirname(self._home.store(agent)))
        tokens = [name[len(_START) : -len(_END)] for name in names if name.startswith(_START) and name.endswith(_END)]
        return sorted((self.get(token) for token in tokens), key=lambda archive: archive.at)

    def remove(self, token: str) -> None:
        """Remove an archive that is not needed any more."""
        path = self.path_of(token)
        with storage_failures(path, "remove an archive"):
            self._store.fs.unlink(path)

    def path_of(self, token: str) -> str:
        """The file of an archive."""
        agent = token.partition(".")[0]
        if "/" in token or normalize_agent_id(agent) != agent:
            raise NotFound(f"there is no archive {token[:120]!r}", hint="use the token that maintenance gave")
        return f"{posixpath.dirname(self._home.store(agent))}/{_START}{token}{_END}"
