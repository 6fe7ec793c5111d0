"""Files are private, and no name leads outside the root."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders import said
from sessile import Store, errors
from sessions import CWD, FOLDER, answer, begun, header, say, snapshot, store_at, write_file

pytestmark = pytest.mark.mission("X3")

IMAGE = {"type": "image", "mimeType": "image/png", "data": "QUJD" * 400}


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask 000", "umask 022", "umask 077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    found = {}
    for folder, folders, names in os.walk(root):
        for name in [*folders, *names]:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, root)] = stat.S_IMODE(os.lstat(path).st_mode)
    return found


@pytest.mark.promise("P28")
def test_files_are_0600_and_folders_0700_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    """This applies to journals, drafts, blobs, breadcrumbs, originals, the trash and caches."""
    root = tmp_path / "root"
    store = store_at(root, terminal="pts-3")
    draft = store.create("/draft")
    say(draft, "pending")
    with begun(store) as session:
        session.append_message({"role": "user", "content": [IMAGE]})
        for number in range(50):
            answer(session, str(number))
        session.set_session_name("named")
        session.rewrite_entries(lambda entry: {**entry, "x": 1})
        os.mkdir(session.artifacts, 0o700)
        os.close(os.open(f"{session.artifacts}/0.log", os.O_CREAT | os.O_WRONLY, 0o600))
        with session.fork() as fork:
            fork.move_to("/moved")
    store.open(root / "sessions" / "--x--" / "new.jsonl").close()
    with store.open(session.path, readonly=True) as reader:
        reader.get_tree()
    store.delete(session.id)
    found = modes(tmp_path)
    assert {"root", "root/blobs", "root/trash", "root/originals", "root/terminal-sessions"} <= set(found)
    for name, mode in found.items():
        expected = 0o700 if (tmp_path / name).is_dir() else 0o600
        assert (name, oct(mode)) == (name, oct(expected))
    draft.close()


def test_a_link_in_the_place_of_a_journal_is_not_written_through(tmp_path: Path) -> None:
    """The target can be a session, an empty file or missing."""
    folder = tmp_path / "root" / "sessions" / FOLDER
    target = write_file(tmp_path / "target.jsonl", header(), said("a", None))
    (tmp_path / "empty").touch()
    folder.mkdir(parents=True)
    for number, goal in enumerate((Path(target), tmp_path / "empty", tmp_path / "missing")):
        (folder / f"t_s{number}.jsonl").symlink_to(goal)
    before = snapshot(tmp_path)
    for number in range(3):
        with pytest.raises(errors.UnsafePath):
            store_at(tmp_path / "root").open(folder / f"t_s{number}.jsonl")
    assert snapshot(tmp_path) == before
    assert not (tmp_path / "missing").exists()


def test_a_session_that_becomes_a_link_is_not_written_through(tmp_path: Path) -> None:
    """The next append checks that the name is still our file."""
    target = tmp_path / "target"
    with begun(store_at(tmp_path / "root")) as session:
        say(session, "one")
        target.write_bytes(Path(session.path).read_bytes())
        os.unlink(session.path)
        os.symlink(target, session.path)
        before = target.read_bytes()
        with pytest.raises(errors.UnsafePath):
            say(session, "two")
        assert target.read_bytes() == before
        with pytest.raises(errors.UnsafePath):
            session.close()


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_what_is_no_plain_file_is_refused_and_never_blocks(tmp_path: Path, kind: str) -> None:
    """A pipe is refused without blocking, and stays unchanged."""
    path = tmp_path / "s.jsonl"
    os.mkfifo(path) if kind == "fifo" else path.mkdir()
    mode = os.lstat(path).st_mode
    store = store_at(tmp_path / "root")
    for readonly in (True, False):
        with pytest.raises(errors.SessileError):
            store.open(path, readonly=readonly)
    assert os.lstat(path).st_mode == mode


def test_a_folder_of_the_store_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    """Folders are created only inside the root."""
    (tmp_path / "elsewhere").mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / "sessions").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(errors.UnsafePath):
        begun(store_at(root))
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    "cwd", ["..", "../..", "/..", "/../../etc", "a/../../b", "/" + "x" * 5000, "\\..\\..", "/a\nb", "."]
)
def test_no_cwd_leads_out_of_the_root(tmp_path: Path, cwd: str) -> None:
    """The folder of any cwd is in `sessions`."""
    root = tmp_path / "a" / "b" / "root"
    with begun(store_at(root, terminal="pts-3"), cwd=cwd) as session:
        say(session, "one")
        assert Path(session.path).parent.parent == root / "sessions"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert [p.name for p in (tmp_path / "a" / "b").iterdir()] == ["root"]


@pytest.mark.parametrize("cwd", ["", "\0", "/a\0/../b"])
def test_a_cwd_that_no_system_has_is_refused(tmp_path: Path, cwd: str) -> None:
    """The error is raised before anything is created."""
    store = Store(tmp_path / "root")
    for ask in (store.create, store.continue_recent, store.list):
        with pytest.raises(errors.InvalidId):
            ask(cwd)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ref", ["..", ".", "a..", "\0", "a\0.jsonl", "x" * 300, "\ud800", "/\ud800.jsonl"])
def test_no_reference_leads_to_a_strange_file(tmp_path: Path, ref: str) -> None:
    """Ids are validated, and a path with NUL is refused."""
    with pytest.raises(errors.SessileError):
        store_at(tmp_path / "root").open(ref, readonly=True)
    assert list(tmp_path.iterdir()) == []


def test_an_id_inside_a_file_is_never_part_of_a_path(tmp_path: Path) -> None:
    """A fork of a hostile file gets a new id."""
    path = write_file(tmp_path / "s.jsonl", header("../../evil", cwd="/../../etc"), said("../../x", None))
    store = store_at(tmp_path / "root")
    with store.fork_from(path, CWD) as fork:
        assert Path(fork.path).parent == tmp_path / "root" / "sessions" / FOLDER
        assert "evil" not in fork.path
    with store.open(path) as session:
        session.rewrite_entries(lambda entry: {**entry, "x": 1})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["root", "s.jsonl"]
