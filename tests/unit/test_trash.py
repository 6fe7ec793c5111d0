"""Deleting moves a session to the trash; undo restores it byte for byte."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from faults.failing import Fail, FaultyFilesystem
from sessile import Session, Store, errors
from sessile.storage.filesystem import PosixFilesystem
from sessile.upkeep.disk import empty_trash, plan_empty_trash, trash_contents, undo_last
from sessions import CWD, FOLDER, Clock, answer, begun, say, snapshot, store_at

pytestmark = pytest.mark.mission("X24")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_at(tmp_path)


@pytest.fixture
def session(store: Store) -> Session:
    """A closed session with artifacts."""
    with begun(store) as session:
        say(session, "one")
        answer(session, "two")
    folder = Path(session.artifacts)
    (folder / "deep").mkdir(parents=True)
    (folder / "0.bash.log").write_bytes(b"output")
    (folder / "deep" / "agent.jsonl").write_bytes(b"{}")
    return session


def test_a_deleted_session_is_gone_with_its_artifacts_and_undo_brings_both_back(
    store: Store, session: Session, tmp_path: Path
) -> None:
    """Bytes, inodes and times are the same."""
    before = snapshot(tmp_path / "sessions")
    deletion = store.delete(session.id)
    assert deletion.paths == (session.path, session.artifacts)
    assert (store.list_all(), store.find(session.id)) == ([], None)
    assert os.listdir(tmp_path / "sessions" / FOLDER) == []
    assert store.undo(deletion.token) == deletion
    after = snapshot(tmp_path / "sessions")
    folder = str(tmp_path / "sessions" / FOLDER)
    assert {k: v for k, v in after.items() if k != folder} == {k: v for k, v in before.items() if k != folder}
    assert store.deletions() == ()
    assert os.listdir(tmp_path / "trash") == []


def test_a_session_is_deleted_by_path_too_and_without_artifacts(store: Store) -> None:
    """Missing artifacts are not moved."""
    with begun(store) as session:
        pass
    assert store.delete(session.path).paths == (session.path,)


def test_the_last_of_many_deletions_in_one_millisecond_is_known(tmp_path: Path) -> None:
    """They are listed in their order, and undone in reverse."""
    store = Store(tmp_path, clock=lambda: 1.77e9, durability="process")
    paths = []
    for _ in range(8):
        with begun(store) as session:
            paths.append(session.path)
    for path in paths:
        store.delete(path)
    assert [deletion.paths[0] for deletion in store.deletions()] == paths
    assert [undo_last(store).paths[0] for _ in paths] == paths[::-1]


def test_nothing_in_the_trash_looks_like_a_session(store: Store, session: Session, tmp_path: Path) -> None:
    """Agents of the pi family list every name that ends in .jsonl."""
    store.delete(session.id)
    assert [p for p in (tmp_path / "trash").glob("*/*") if p.suffix == ".jsonl"] == []


def test_deletions_are_listed_oldest_first(tmp_path: Path) -> None:
    """Each can be undone independently, in any order."""
    clock = Clock()
    store = store_at(tmp_path, clock=clock)
    deletions = []
    for _ in range(3):
        with begun(store) as session:
            say(session, "x")
        deletions.append(store.delete(session.id))
        clock.seconds += 1
    assert store.deletions() == tuple(deletions)
    store.undo(deletions[1].token)
    assert store.deletions() == (deletions[0], deletions[2])


def test_deleting_the_same_name_twice_keeps_both(store: Store) -> None:
    """This holds even within one millisecond."""
    deletions = []
    for text in ("first", "second"):
        with begun(store, session_id="same") as session:
            say(session, text)
        deletions.append(store.delete("same"))
    for text, deletion in zip(("first", "second"), deletions, strict=True):
        store.undo(deletion.token)
        with store.open("same", readonly=True) as session:
            assert session.context().messages[0]["content"] == text
        store.delete("same")


def test_undo_overwrites_nothing(store: Store, session: Session) -> None:
    """If the path is in use, undo raises; it works once the path is free."""
    deletion = store.delete(session.id)
    Path(session.path).write_text("new owner")
    with pytest.raises(errors.Conflict):
        store.undo(deletion.token)
    assert Path(session.path).read_text() == "new owner"
    os.unlink(session.path)
    store.undo(deletion.token)
    with store.open(session.id, readonly=True) as again:
        assert len(again.get_entries()) == 2
    assert os.path.isdir(session.artifacts)


def test_undo_makes_the_projects_folder_again(store: Store, session: Session, tmp_path: Path) -> None:
    """The user may have removed it."""
    deletion = store.delete(session.id)
    (tmp_path / "sessions" / FOLDER).rmdir()
    store.undo(deletion.token)
    assert [info.id for info in store.list(CWD)] == [session.id]


@pytest.mark.parametrize("token", ["nothing", "", ".", "..", "../sessions", "a/b"])
def test_an_unknown_token_is_refused(store: Store, session: Session, token: str) -> None:
    """A token is never used as a path."""
    with pytest.raises(errors.NotFound):
        store.undo(token)
    assert os.path.exists(session.path)


def test_only_sessions_of_the_store_can_be_deleted(store: Store, tmp_path: Path) -> None:
    """Sessions of other agents are not deleted."""
    other = tmp_path / "other.jsonl"
    other.write_text("{}")
    with pytest.raises(errors.Invalid):
        store.delete(str(other))
    with pytest.raises(errors.SessionNotFound):
        store.delete(f"{tmp_path}/sessions/--x--/gone.jsonl")
    with pytest.raises(errors.SessionNotFound):
        store.delete("nobody")
    assert other.exists()
    assert not (tmp_path / "trash").exists()


def test_a_damaged_note_is_named_and_the_files_stay(store: Store, session: Session, tmp_path: Path) -> None:
    """The files stay when their manifest is damaged."""
    deletion = store.delete(session.id)
    manifest = tmp_path / "trash" / deletion.token / "manifest.json"
    manifest.write_text("{")
    with pytest.raises(errors.Damaged) as damage:
        store.undo(deletion.token)
    assert damage.value.path == str(manifest)
    assert (tmp_path / "trash" / deletion.token / "0").stat().st_size > 100


@pytest.mark.parametrize("note", [b"{", b'{"token": "\xff", "paths": []}', b'{"token": "x", "paths": ["../../etc"]}'])
def test_a_damaged_note_is_in_nobodys_way(
    store: Store, session: Session, tmp_path: Path, note: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The other deletions can be undone; the damaged one is shown without paths, and can be removed."""
    with begun(store) as other:
        say(other, "x")
    store.delete(other.id)
    damaged = store.delete(session.id).token
    (tmp_path / "trash" / damaged / "manifest.json").write_bytes(note)
    assert [item.paths for item in trash_contents(store)] == [(other.path,), ()]
    assert damaged in caplog.text
    assert undo_last(store).paths == (other.path,)
    (item,) = trash_contents(store)
    assert (item.token, item.paths, item.holds) == (damaged, (), True) and item.bytes > 100
    with pytest.raises((errors.Damaged, errors.UnsafePath)):
        store.undo(damaged)
    assert empty_trash(store, plan_empty_trash(store), confirm=True).tokens == (damaged,)
    assert os.listdir(tmp_path / "trash") == []


class Devices(FaultyFilesystem):
    """A trash on another device."""

    def rename(self, source: str, target: str) -> None:
        if ("/trash/" in source) != ("/trash/" in target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)
        super().rename(source, target)


def test_a_deletion_that_fails_on_the_way_to_another_device_leaves_everything_as_it_was(
    session: Session, tmp_path: Path
) -> None:
    """A link cannot be moved: the session is put back, and nothing is left in the trash."""
    os.symlink("/etc/passwd", f"{session.artifacts}/deep/link")
    before = {path: path.read_bytes() for path in (tmp_path / "sessions").rglob("*") if path.is_file()}
    store = store_at(tmp_path, fs=Devices(PosixFilesystem()))
    with pytest.raises(errors.UnsafePath) as failure:
        store.delete(session.id)
    assert failure.value.path == f"{session.artifacts}/deep/link"
    assert {path: path.read_bytes() for path in (tmp_path / "sessions").rglob("*") if path.is_file()} == before
    assert not os.path.exists(tmp_path / "trash")
    os.unlink(f"{session.artifacts}/deep/link")
    store.undo(store.delete(session.id).token)
    with store.open(session.id, readonly=True) as again:
        assert len(again.get_entries()) == 2


def test_whatever_call_fails_during_a_deletion_to_another_device_loses_nothing(tmp_path: Path) -> None:
    """Everything is where it was, or the deletion can be undone."""
    for number in count(1):
        root = tmp_path / str(number)
        store = store_at(root)
        with begun(store, session_id="same") as session:
            say(session, "one")
        (Path(session.artifacts) / "deep").mkdir(parents=True)
        (Path(session.artifacts) / "deep" / "log").write_bytes(b"output")
        fs = Devices(PosixFilesystem(), plan=[Fail(errno.EIO, at=number)])
        with suppress(errors.SessileError):
            store_at(root, fs=fs).delete(session.path)
        if not fs.struck:
            break
        assert [path for path in (root / "trash").rglob("*") if path.name.endswith(".tmp")] == []
        for token in [item.token for item in trash_contents(store) if item.paths and item.holds]:
            if (root / "trash" / token / "1").exists() and os.path.exists(session.artifacts):
                os.rename(session.artifacts, root / "half")
            store.undo(token)
        assert Path(session.path).exists()
        assert (Path(session.artifacts) / "deep" / "log").read_bytes() == b"output"
    assert number > 30


def test_a_handle_on_a_deleted_session_says_so(store: Store, tmp_path: Path) -> None:
    """It does not create a file without a header."""
    with begun(store) as session:
        say(session, "one")
        deletion = store.delete(session.id)
        with pytest.raises(errors.SessionNotFound):
            say(session, "two")
        assert not os.path.exists(session.path)
        store.undo(deletion.token)
        session.reopen()
        say(session, "two")
    with store.open(session.id, readonly=True) as again:
        assert len(again.get_entries()) == 2
