"""The demo as a store that people can look around in: made-up sessions, written as files of their own.

They are written only where nothing is yet, and can be deleted like any cache. A gateway that serves them has some of them as
conversations.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from sessile.core.demo import DemoSession, demo_sessions
from sessile.formats.yoyoclaw.entries import SessionEntry
from sessile.storage import atomic
from sessile.storage.layout import JOURNAL, artifacts_of
from sessile.store import Store
from sessile.stores.yoyoclaw.binding_store import Changes, Entries
from sessile.stores.yoyoclaw.bindings import own_bindings

_AGENT = "main"
# The beginnings of the ids of sessions that are conversations of the demo, with their keys and chats.
_BOUND = {
    "6513270e": ("agent:main:main", {"displayName": "Webhook retries"}),
    "e2d3b41d": (
        "agent:main:discord:channel:shop",
        {"chatType": "channel", "channel": "discord", "displayName": "discord:#shop"},
    ),
    "1f5087db": (
        "agent:main:telegram:group:-1001200345",
        {"chatType": "group", "channel": "telegram", "displayName": "Kitchen"},
    ),
    "bdbb9deb": ("agent:main:hook:ci", {"displayName": "CI"}),
    "1dbce02c": ("agent:main:cron:orders", {"displayName": "Nightly orders"}),
}


def make_demo(store: Store) -> int:
    """Write the sessions of the demo, unless they are there; says how many were written."""
    made = f"{store.layout.root}/made"  # the last thing to be written: a demo without it is not whole
    if atomic.exists(store.fs, made):
        return 0
    known = {info.id for info in store.list_all()}
    written = 0
    for session in demo_sessions(store.now()):
        session_id = session.file_name.removesuffix(JOURNAL).rpartition("_")[2]
        if session_id not in known:
            _write(store, session)
            written += 1
    atomic.replace(store.fs, made, (b"",), durable=False)
    return written


def _write(store: Store, session: DemoSession) -> None:
    path = f"{store.layout.folder(session.cwd)}/{session.file_name}"
    artifacts = artifacts_of(path)
    atomic.make_folders(store.fs, artifacts if session.artifacts else posixpath.dirname(path))
    for name, content in session.artifacts.items():
        atomic.replace(store.fs, f"{artifacts}/{name}", (content,), durable=False)
    atomic.replace(store.fs, path, session.content(), durable=False)
    atomic.set_modified(store.fs, path, session.modified * 1_000_000)


def bind_demo(store: Store) -> None:
    """Make some sessions of the demo conversations, unless there are conversations already."""

    def bind(entries: Entries) -> Changes:
        return {} if entries else dict(_bindings(store))

    own_bindings(store, _AGENT).update_all(bind, now=store.now())


def _bindings(store: Store) -> Iterator[tuple[str, SessionEntry]]:
    for info in store.list_all():
        if info.id[:8] in _BOUND:
            key, chat = _BOUND[info.id[:8]]
            moment = int(info.modified.timestamp() * 1000)
            yield key, SessionEntry({"sessionId": info.id, "updatedAt": moment, "sessionStartedAt": moment, **chat})
