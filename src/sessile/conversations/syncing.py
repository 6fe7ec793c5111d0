"""Bringing the bindings of a gateway from one store to another: which key has which session.

Rules: a key that the target does not have comes; of one that both have the newer entry holds, and of two of one age the target's.
Nothing is removed. Paths of sessions in the source become those of the target. Sessions are brought before (`syncing`).
"""

from __future__ import annotations

from sessile.formats.yoyoclaw.entries import SessionEntry
from sessile.formats.yoyoclaw.normal import normalize_key
from sessile.store import Store
from sessile.stores.yoyoclaw.binding_store import Changes, Entries
from sessile.stores.yoyoclaw.bindings import own_bindings
from sessile.stores.yoyoclaw.paths import agents_in

_FILE = "sessionFile"


def sync_bindings(source: Store, target: Store, *, preview: bool = False) -> int:
    """Bring the bindings of all agents; gives how many entries the target got, or would get."""
    return sum(_bring(source, target, agent, preview) for agent in agents_in(source.fs, source.layout.root))


def _bring(source: Store, target: Store, agent: str, preview: bool) -> int:
    theirs = own_bindings(source, agent).read()
    if not theirs:
        return 0
    moved = {key: _moved(entry, source, target) for key, entry in theirs.items()}
    ours = own_bindings(target, agent)
    wanted = _newer(moved, ours.read())
    if wanted and not preview:
        wanted = ours.update_all(lambda current: _newer(moved, current), now=target.now())
    return len(wanted)


def _newer(theirs: Entries, ours: Entries) -> Changes:
    """The entries that the target lacks, under the names that it has for their keys."""
    spelled = {normalize_key(name): name for name in ours}
    changes: dict[str, SessionEntry | None] = {}
    for key, entry in theirs.items():
        name = key if key in ours else spelled.get(normalize_key(key), key)
        mine = ours.get(name)
        if mine is None or (entry.updated_at or 0) > (mine.updated_at or 0):
            changes[name] = entry
    return changes


def _moved(entry: SessionEntry, source: Store, target: Store) -> SessionEntry:
    """The entry with the place that its session has in the target."""
    path, place = entry.session_file, f"{source.layout.sessions}/"
    if path is None or not path.startswith(place):
        return entry
    return SessionEntry({**entry.members, _FILE: f"{target.layout.sessions}/{path[len(place) :]}"})
