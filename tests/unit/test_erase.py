"""Erasing a session: no byte of it stays, whatever was made from it, and others keep theirs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from erasing import NEEDLE, Everything, grep
from faults.processes import Child, Tell
from sessile import Library, Store
from sessile.errors import Conflict, Invalid, SessionBusy, SessionNotFound
from sessile.storage.layout import Source
from sessile.storage.locks import locked
from sessions import CWD, say

pytestmark = pytest.mark.promise("P54")


@pytest.fixture
def everything(tmp_path: Path) -> Iterator[Everything]:
    yield Everything(tmp_path)


def test_nothing_of_an_erased_session_stays(everything: Everything) -> None:
    """Root, cache and database files have no byte of it; shared blobs and other sessions stay."""
    plan = everything.store.erase(everything.id)
    assert not plan.done and len(grep(everything.root, everything.cache)) > 12
    assert {part.what for part in plan.parts} >= {
        *(
            "session",
            "artifacts",
            "original",
            "deleted",
            "blob",
            "cache, made again",
            "turns",
            "left by a dead process",
        ),
    }
    assert (len(plan.blobs), plan.shared_blobs, plan.prompts) == (1, 1, 1)
    with Library(everything.store, cache=str(everything.cache)) as library:
        done = library.erase(everything.path, confirm=True)
        assert done.done and not library.search(NEEDLE).hits
    everything.check()


def test_a_session_in_the_trash_is_erased_by_its_id(everything: Everything) -> None:
    """A deleted session is found by its id and its path."""
    everything.store.delete(everything.path)
    assert everything.store.erase(everything.path).parts
    everything.store.erase(everything.id, confirm=True)
    everything.check()


def test_a_draft_is_erased(tmp_path: Path) -> None:
    """A draft that its process left is a session, too."""
    store = Store(tmp_path)

    def leave(tell: Tell) -> None:
        session = Store(tmp_path).create(CWD, session_id="draft-id")
        say(session, NEEDLE)
        tell(session.path)

    (path,) = Child(leave).finish()
    store.erase(path, confirm=True)
    assert grep(tmp_path) == []


def test_a_session_that_a_process_has_open_is_refused(everything: Everything) -> None:
    """An idle session of another process is open, and a draft is locked; nothing is erased."""

    def hold(tell: Tell) -> None:
        session = Store(everything.root).open(everything.id)
        tell(session.id)
        signal.pause()

    child = Child(hold)
    child.wait_for_word()
    before = grep(everything.root)
    with pytest.raises(SessionBusy, match="open"):
        everything.store.erase(everything.id, confirm=True)
    assert grep(everything.root) == before and not (everything.root / "erased").exists()
    child.kill()
    child.finish()
    everything.store.erase(everything.id, confirm=True)
    everything.check()


def test_a_session_that_a_running_gateway_uses_is_refused(everything: Everything) -> None:
    """A gateway holds its bindings in memory, and would write them again."""
    with (
        locked(everything.store.fs, f"{everything.root}/gateway.lock", 0.1),
        pytest.raises(Conflict, match="gateway is running"),
    ):
        everything.store.erase(everything.id, confirm=True)
    everything.store.erase(everything.id, confirm=True)
    everything.check()


def test_an_unreadable_record_stops_nobody(everything: Everything, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged record is logged, and new sessions are created in spite of it."""
    (everything.root / "erased").mkdir()
    (everything.root / "erased" / "1-x.plan").write_text("damaged")
    Store(everything.root).create(CWD, publish=True).close()
    assert "erasure" in caplog.text


def test_files_of_other_agents_are_refused(tmp_path: Path) -> None:
    """They are not ours; a kept copy is."""
    store = Store(tmp_path / "root")
    foreign = tmp_path / "claude" / "x.jsonl"
    foreign.parent.mkdir()
    foreign.write_text("{}\n")
    with pytest.raises(Invalid, match="only sessions of this store") as error:
        store.erase(foreign, confirm=True)
    assert error.value.hint and foreign.exists()
    with pytest.raises(SessionNotFound):
        store.erase("unknown-id")
    kept = tmp_path / "root" / "kept" / "claude" / "-work" / "x.jsonl"
    kept.parent.mkdir(parents=True)
    kept.write_text(f'{{"text": "{NEEDLE}"}}\n')
    (kept.parent / "x").mkdir()
    (kept.parent / "x" / "agent-1.jsonl").write_text(NEEDLE)
    kept.with_name("x.jsonl.0123456789abcdef.old").write_text(NEEDLE)
    kept.with_name("xy.jsonl").write_text("stays")
    store.erase(kept, confirm=True)
    assert grep(tmp_path) == [] and kept.with_name("xy.jsonl").exists()


def test_a_file_of_a_sub_agent_names_its_session(everything: Everything) -> None:
    """Artifacts are erased with their session."""
    with pytest.raises(Invalid, match="belongs to a session"):
        everything.store.erase(f"{everything.path.removesuffix('.jsonl')}/sub.jsonl")


def test_forks_stay_and_are_named(everything: Everything) -> None:
    """A fork is a session of its own."""
    with everything.store.open(everything.path) as session, session.fork() as fork:
        pass
    assert everything.store.erase(everything.id).forks == (fork.path,)
    everything.store.erase(everything.id, confirm=True)
    assert {os.path.realpath(path) for path in grep(everything.root)} >= {fork.path}


def test_a_source_list_of_other_agents_is_not_touched(everything: Everything, tmp_path: Path) -> None:
    """A library with other folders erases only from the store."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / f"{everything.id}.jsonl").write_text(NEEDLE)
    source = Source("pi", str(tmp_path), str(theirs))
    with Library(everything.store, [source], cache=str(everything.cache)) as library:
        library.erase(everything.path, confirm=True)
    assert grep(theirs)
    everything.check()
