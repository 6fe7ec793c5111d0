"""Erasing a session from a database: rows, words and turns are gone, and the tables' files no longer have its bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postgres_rig import Server
from sessile import Library, Store
from sessile.agents.openclaw.binding_store import own_bindings
from sessile.agents.openclaw.entries import SessionEntry
from sessile.erase import pending
from sessile.errors import SessionBusy
from sessions import CWD, answer, say

pytestmark = pytest.mark.promise("P54")

NEEDLE, OTHER = "xyzzyplugh", "plughxyzzy"  # the tests share a server


def files_with(server: Server, needle: str) -> list[str]:
    """Return the files of the tables and indexes that contain a needle, once everything is on disk."""
    with server.connect() as connection:
        connection.execute("CHECKPOINT")
    found = []
    for folder, _, names in os.walk(server.data / "base"):
        found += [f"{folder}/{name}" for name in names if needle.encode() in Path(folder, name).read_bytes()]
    return found


def test_nothing_of_an_erased_session_stays_in_the_tables(postgres_url: str, postgres_server: Server) -> None:
    """Entries, blobs, originals, deletions, words, bindings and turns go; another session keeps its own."""
    with Store(postgres_url) as store:
        with store.create(CWD) as other:
            say(other, "kept words")
            answer(other, "kept answer")
        with store.create(CWD, title=NEEDLE) as session:
            say(session, f"{NEEDLE} prompt")
            say(session, f"{NEEDLE} " * 60_000)
            answer(session, f"{NEEDLE} answer")
        with store.open(session.path) as opened:
            opened.rewrite_entries(lambda entry: {**entry, "x": NEEDLE})
        bindings = own_bindings(store, "main")
        entry = SessionEntry({"sessionId": session.id, "subject": NEEDLE})
        bindings.update_all(lambda entries: {"main": entry}, now=1)
        with Library(store) as library:
            assert library.search(NEEDLE).hits
            assert files_with(postgres_server, NEEDLE)
            held = store.journals.open(session.path)
            held.hold()
            with pytest.raises(SessionBusy):
                library.erase(session.path, confirm=True)
            held.close()
            done = library.erase(session.path, confirm=True)
            assert done.done and len(done.blobs) == 1
            assert not library.search(NEEDLE).hits and library.search("kept").hits
            assert [row.id for row in library.list().rows] == [other.id]
        assert files_with(postgres_server, NEEDLE) == []
        assert own_bindings(store, "main").read() == {} and pending(store) == []
        with store.open(other.id, readonly=True) as kept:
            assert len(kept.get_entries()) == 2


def test_an_interrupted_erasure_is_finished_by_the_next_writer(postgres_url: str, postgres_server: Server) -> None:
    """The record is in the database, so any process continues."""
    with Store(postgres_url) as store:
        with store.create(CWD) as session:
            say(session, f"{OTHER} prompt")
            answer(session, "yes")

        def fail(*_: object) -> None:
            raise KeyboardInterrupt

        store._purge = fail
        with pytest.raises(KeyboardInterrupt):
            store.erase(session.id, confirm=True)
        assert len(pending(store)) == 1
    with Store(postgres_url) as store:
        store.create(CWD).close()
        assert pending(store) == []
    assert files_with(postgres_server, OTHER) == []
