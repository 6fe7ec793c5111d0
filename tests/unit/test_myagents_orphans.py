"""Session files without a row in MyAgents' index."""

from __future__ import annotations

import gzip
import json

import pytest

from myagents_folder import AT, NOW_MS, OURS, ROOT, Time, asked, begun, content, everything, folder, line, put, told
from sessile.agents.myagents.correlation import Orphan, adopt, orphans
from sessile.agents.myagents.store import MyAgentsStore
from sessile.errors import Damaged, Invalid, InvalidId, SessionExists, SessionNotFound
from sessile.storage.memory import MemoryFilesystem

pytestmark = pytest.mark.mission("M1")

SESSIONS = f"{ROOT}/sessions"
INDEX = f"{ROOT}/sessions.json"


def with_orphans() -> MyAgentsStore:
    """A listed session, and files of every form without a row."""
    store = begun(folder())
    store.save("s", [asked(0)])
    put(store.fs, f"{SESSIONS}/lost.jsonl", line(asked(0, "where am I?")) + line(told(1)))
    put(store.fs, f"{SESSIONS}/old.json", json.dumps({"messages": [asked(0)]}).encode())
    put(store.fs, f"{SESSIONS}/packed.jsonl.gz", gzip.compress(line(asked(0))))
    put(store.fs, f"{ROOT}/sessions-v2/new.jsonl", b"{}\n")
    put(store.fs, f"{SESSIONS}/not an id.jsonl", line(asked(0)))
    put(store.fs, f"{SESSIONS}/.s.jsonl.0a1b.tmp", b"")
    put(store.fs, f"{SESSIONS}/notes.txt", b"")
    return store


def test_files_without_a_row_are_shown() -> None:
    """Every form is listed with size and time, an invalid name is reported as such, and nothing is written."""
    store = with_orphans()
    before = everything(store.fs, "/")
    found = orphans(store)
    assert [each.session_id for each in found] == ["lost", "new", None, "old", "packed"]
    rows = line(asked(0, "where am I?")) + line(told(1))
    modified = store.fs.lstat(f"{SESSIONS}/lost.jsonl").st_mtime_ns
    assert found[0] == Orphan("lost", (f"{SESSIONS}/lost.jsonl",), len(rows), modified)
    assert everything(store.fs, "/") == before


def test_two_forms_of_one_session_are_one_orphan() -> None:
    """An interrupted migration of a session that lost its row."""
    store = with_orphans()
    put(store.fs, f"{SESSIONS}/old.jsonl", b"")
    found = next(each for each in orphans(store) if each.session_id == "old")
    assert found.paths == (f"{SESSIONS}/old.json", f"{SESSIONS}/old.jsonl")


def test_a_folder_without_sessions_has_no_orphans() -> None:
    """Nothing is created."""
    store = folder()
    assert orphans(store) == [] and store.fs.names("/") == []


@pytest.mark.mission("M2")
def test_an_adopted_session_has_the_times_title_and_statistics_of_its_messages() -> None:
    """The row is as MyAgents would have written it, and the file does not change."""
    store = with_orphans()
    rows = [asked(0, "where am I?", timestamp="2026-01-01T00:00:00.000Z"), told(1)]
    put(store.fs, f"{SESSIONS}/lost.jsonl", b"".join(line(each) for each in rows))
    adopt(store, "lost", "/work/app")
    assert json.loads(content(store, INDEX))[1] == {
        "id": "lost",
        "agentDir": "/work/app",
        "title": "where am I?",
        "createdAt": "2026-01-01T00:00:00.000Z",
        "lastActiveAt": AT,
        "stats": {"messageCount": 1, "totalInputTokens": 10, "totalOutputTokens": 1, "totalCacheReadTokens": 2},
    }
    assert "lost" not in [each.session_id for each in orphans(store)]
    assert store.append("lost", [asked(2)]).pending is None
    known = store.get("lost")
    assert known is not None and known.stats == store.recount("lost")


def test_a_session_without_times_has_those_of_its_file() -> None:
    """It also has the default title if there is no question."""
    time = Time()
    fs = MemoryFilesystem(clock=time)
    put(fs, f"{SESSIONS}/lost.jsonl", b"")
    time.nanoseconds += 10**12
    row = adopt(folder(fs, time), "lost", "/w")
    assert (row.created_at, row.last_active_ms, row.title) == (AT, NOW_MS, "New Chat")
    put(fs, f"{SESSIONS}/named.jsonl", b"")
    assert adopt(folder(fs, time), "named", "/w", "mine").title == "mine"


@pytest.mark.mission("M8")
def test_what_cannot_be_adopted_is_told() -> None:
    """A missing file, an existing row, a missing folder and an invalid id are refused."""
    store = with_orphans()
    before = everything(store.fs, "/")
    for session_id, agent_dir, problem in (
        ("none", "/w", SessionNotFound),
        ("s", "/w", SessionExists),
        ("lost", "", Invalid),
        ("../evil", "/w", InvalidId),
    ):
        with pytest.raises(problem):
            adopt(store, session_id, agent_dir)
    assert everything(store.fs, "/") == before


@pytest.mark.mission("M5")
@pytest.mark.parametrize("data", [b"", b"\0\0\0", b'[{"id"'])
def test_after_the_loss_of_the_whole_index_every_session_can_be_had_again(data: bytes) -> None:
    """The index is only repaired on request: the damaged one is saved, and the sessions are adopted one by one."""
    store = begun(begun(folder()), "t")
    for session_id in ("s", "t"):
        store.save(session_id, [asked(0, session_id), told(1)])
    before = {each.id: each.stats for each in store.list_sessions()}
    put(store.fs, INDEX, data)
    assert [each.session_id for each in orphans(store)] == ["s", "t"]
    with pytest.raises(Damaged):
        adopt(store, "s", "/work/app")
    kept = store.index.repair()
    assert kept == f"{OURS}/originals/sessions.json.corrupt-stamp1" and content(store, kept) == data
    assert content(store, INDEX) == b"[]"
    for orphan in orphans(store):
        assert orphan.session_id is not None
        adopt(store, orphan.session_id, "/work/app")
    assert {each.id: each.stats for each in store.list_sessions()} == before
    assert {each.title for each in store.list_sessions()} == {"s", "t"}
    assert store.index.repair() is None
