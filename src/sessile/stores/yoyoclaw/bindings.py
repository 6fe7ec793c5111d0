"""The keys of a store file brought into a store of ours, where a gateway finds its sessions by them.

    <our root>/agents/<agent>/sessions/sessions.json    the bindings of an agent, in the same format: key → entry
    <our root>/agents/<agent>/kept/                     its last good copy
    <our root>/agents/<agent>/imported.json             every key that was ever imported

In a database the bindings are a table instead of the first two.

Rules: keys stay as they are written. A binding that somebody changed here since it was imported stays, and one that somebody
deleted here stays deleted. One that is still as it came is replaced by a newer one. A run that changes nothing writes
nothing. An entry that cannot be written as JSON, such as one with a number that is too large, is refused and told.
Transcripts are `importing`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sessile.errors import Invalid
from sessile.formats.yoyoclaw.adopting import MARK, Adopted, adopt, adopted_from
from sessile.formats.yoyoclaw.entries import SessionEntry, misfits
from sessile.formats.yoyoclaw.normal import normalize_agent_id, normalize_key
from sessile.storage import atomic
from sessile.storage.name_set import NameSet
from sessile.stores.yoyoclaw.accounts import BindingState, ImportedBinding
from sessile.stores.yoyoclaw.binding_store import BindingStore, Changes, Entries
from sessile.stores.yoyoclaw.paths import StateFolder
from sessile.stores.yoyoclaw.session_store import SessionStore

if TYPE_CHECKING:
    from sessile.store import Store

_WRITTEN: tuple[BindingState, ...] = ("new", "updated")


def own_bindings(store: Store, agent: str) -> BindingStore:
    """The bindings of an agent in a store of ours: a file, or in a database a table."""
    home = StateFolder(store.layout.root)
    path = home.store(agent)
    if store.database is None:
        return SessionStore(path, keep=f"{home.agent(agent)}/kept", fs=store.fs)
    from sessile.storage.postgres.bindings import BindingTable  # most stores are folders
    from sessile.stores.yoyoclaw.table_store import TableStore

    table = BindingTable(store.database, normalize_agent_id(agent))
    return TableStore(path, table, lambda: atomic.make_folders(store.fs, home.sessions(agent)))


def import_bindings(
    store: Store, agent: str, path: str, entries: Entries, sessions: Mapping[str, str]
) -> list[ImportedBinding]:
    """Bring the entries of the store file at `path` into ours; `sessions` are the ids that they have here, by key."""
    if not entries:
        return []
    adopted: dict[str, Adopted] = {}
    refused: dict[str, str] = {}
    for key, entry in entries.items():
        try:
            adopted[key] = adopt(entry, sessions.get(key), path)
        except Invalid as error:
            refused[key] = error.message
    ledger = NameSet(store.fs, f"{StateFolder(store.layout.root).agent(agent)}/imported.json")
    known = set(ledger.names())
    own = own_bindings(store, agent)
    states = _states(own.read(), adopted, known)
    if not set(_WRITTEN).isdisjoint(states.values()):

        def change(current: Entries) -> Changes:
            states.update(_states(current, adopted, known))
            names = _names(current, adopted)
            return {names[key]: adopted[key].entry for key, state in states.items() if state in _WRITTEN}

        own.update_all(change, now=store.now())
    if any(_written(key) not in known for key in adopted):
        ledger.add(*map(_written, adopted))
    accounts = {key: _account(key, states[key], one, entries[key], sessions.get(key)) for key, one in adopted.items()}
    return [accounts.get(key) or ImportedBinding(key, "refused", None, {}, [], [refused[key]]) for key in entries]


def _states(current: Entries, adopted: Mapping[str, Adopted], known: set[str]) -> dict[str, BindingState]:
    names = _names(current, adopted)
    return {key: _state(current.get(names[key]), one.entry, _written(key) in known) for key, one in adopted.items()}


def _state(mine: SessionEntry | None, theirs: SessionEntry, known: bool) -> BindingState:
    if mine is None:
        return "deleted" if known else "new"
    mark = mine.get(MARK)
    if isinstance(mark, dict) and mark.get("digest") == theirs[MARK]["digest"]:
        return "present"
    origin = adopted_from(mine)
    if origin is None:
        return "ours"
    ahead = (theirs.updated_at or 0) - (mine.updated_at or 0)
    # Two homes may have the key. Of the same age, each is as good as the other, and they must not take turns.
    return "updated" if ahead > 0 or (ahead == 0 and origin == theirs[MARK]["store"]) else "older"


def _names(current: Entries, adopted: Mapping[str, Adopted]) -> dict[str, str]:
    """The names under which our store has keys, or would have them: it may spell one otherwise."""
    spelled = {normalize_key(name): name for name in current}
    return {key: key if key in current else spelled.get(normalize_key(key), key) for key in adopted}


def _written(key: str) -> str:
    """A key as the ledger has it: half an emoji that a channel cut off cannot be written as it is."""
    return key.encode("utf-8", "backslashreplace").decode()


def _account(
    key: str, state: BindingState, adopted: Adopted, entry: SessionEntry, session_id: str | None
) -> ImportedBinding:
    kept = [name for name in entry.members if name not in adopted.mapped]
    odd = [f"{misfit.name}: {misfit.detail}" for misfit in misfits(entry)]
    return ImportedBinding(key, state, session_id, adopted.mapped, kept, odd)
