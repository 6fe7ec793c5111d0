"""Entries of another program's store as entries of ours: what is mapped, what stays, and whether one changed since.

Rules: a member that means something else here is mapped, and its old value is kept in the entry, under `sessile.import`. All
others stay as they are, unknown ones and older names too. Three are mapped:

    sessionId        the id that the session has in our store
    sessionFile      goes: here a session is found by its id
    contextTokens    was the window of the model and becomes `contextWindow`; `contextTokens` is what the context takes up,
                     which is `totalTokens` there, as long as that is not called stale

An entry that has a `contextWindow` speaks our language already, and its counters stay.

The mark also holds a digest of what was adopted. By it the next import knows whether somebody changed the entry here.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from sessile.core.hashes import blake2b
from sessile.core.plain import plain
from sessile.formats.yoyoclaw.entries import Json, SessionEntry

MARK = "sessile.import"  # the member that says where an entry is from

_DIGEST = 16  # bytes


class Adopted(NamedTuple):
    """An entry of ours, and the members that are not what they were: old value and new, `None` for none."""

    entry: SessionEntry
    mapped: dict[str, tuple[Any, Any]]


def adopt(entry: SessionEntry, session_id: str | None, store: str) -> Adopted:
    """An entry of a store file as one of ours, for a session that has this id here; `None` if it was not imported."""
    old = {name: value for name, value in entry.members.items() if name != MARK}
    wanted = {**_mapped_session(entry, session_id), **_mapped_counters(entry)}
    patch = {name: value for name, value in wanted.items() if old.get(name) != value}
    new = {name: value for name, value in {**old, **patch}.items() if name not in patch or value is not None}
    mark: Json = {"store": store, "digest": digest_of(new)}
    if was := {name: old[name] for name in patch if name in old}:
        mark["was"] = was
    mapped = {name: (old.get(name), value) for name, value in patch.items()}
    return Adopted(SessionEntry({**new, MARK: mark}), mapped)


def adopted_from(entry: SessionEntry) -> str | None:
    """The store file that an entry of ours came from, if it is still as it came; `None` if it is ours alone by now."""
    mark = entry.get(MARK)
    if not isinstance(mark, dict) or mark.get("digest") != digest_of(entry.members):
        return None
    return str(mark.get("store"))


def digest_of(members: Json) -> str:
    """What tells an entry from a changed one; the mark itself and the order of the members do not count."""
    counted = plain({name: value for name, value in members.items() if name != MARK}).value  # as it will be written
    return blake2b(json.dumps(counted, sort_keys=True).encode("ascii"), _DIGEST).hex()


def _mapped_session(entry: SessionEntry, session_id: str | None) -> Json:
    return {} if session_id is None else {"sessionId": session_id, "sessionFile": None}


def _mapped_counters(entry: SessionEntry) -> Json:
    window = entry.known("contextTokens")
    if window is None or "contextWindow" in entry:
        return {}
    used = None if entry.get("totalTokensFresh") is False else entry.known("totalTokens")
    return {"contextWindow": window, "contextTokens": used}
