"""The demo as a store that people can look around in: made-up sessions, written as files of their own.

They are written only where nothing is yet, and can be deleted like any cache.
"""

from __future__ import annotations

import posixpath

from sessile.core.demo import DemoSession, demo_sessions
from sessile.storage import atomic
from sessile.storage.layout import JOURNAL, artifacts_of
from sessile.store import Store


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
