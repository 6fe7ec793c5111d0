"""A refused operation leaves the files as they were: no folder, no copy, no half of a move."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.failing import Fail, FaultyFilesystem
from faults.processes import Child, Tell
from figures import measured
from sessile import Session, Store, import_session
from sessile.errors import SessileError, SessionBusy, StorageFailure, StorageFull
from sessile.storage.filesystem import PosixFilesystem
from sessions import CWD, answer, header, say, write_file

pytestmark = pytest.mark.promise("P50")

OTHER = "/work/other"


def tree(folder: Path) -> dict[str, bytes | None]:
    """Return every folder and file below a folder with its content, except the cache."""
    found = (path for path in folder.rglob("*") if "cache" not in path.parts)
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in found}


class Place:
    """A store with one session that has artifacts, and files that are no sessions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / "root", durability="process", patience=0.1)
        with self.store.create(CWD, publish=True) as session:
            say(session, "question")
            answer(session, "answer")
        self.path, self.id = session.path, session.id
        Path(session.artifacts).mkdir()
        (Path(session.artifacts) / "file").write_text("artifact")
        self.garbage = write_file(folder / "elsewhere" / "garbage.jsonl", "no session")
        self.newer = write_file(folder / "elsewhere" / "newer.jsonl", header("s9") | {"version": 99})

    def in_the_way(self, what: str) -> str:
        """Put a file where `move_to` would put one of the session."""
        return write_file(Path(self.store.layout.folder(OTHER)) / what, "in the way")

    @property
    def stem(self) -> str:
        return Path(self.path).stem

    def on(self, act: Callable[[Session], object]) -> object:
        with self.store.open(self.path) as session:
            return act(session)


def undo_in_use(place: Place) -> None:
    token = place.store.delete(place.path).token
    write_file(place.path, "in the way")
    before = tree(place.folder)
    try:
        place.store.undo(token)
    finally:
        assert tree(place.folder) == before
        os.unlink(place.path)
        place.store.undo(token)
        os.rmdir(place.store.layout.trash)


def full(place: Place, act: Callable[[Store], object], on: str = "write") -> None:
    act(
        Store(
            place.store.layout.root,
            fs=FaultyFilesystem(PosixFilesystem(), plan=[Fail(errno.ENOSPC, on={on}, forever=True)]),
        )
    )


REFUSALS: dict[str, Callable[[Place], object]] = {
    "create with an id in use": lambda place: place.store.create(OTHER, session_id=place.id),
    "create with an invalid id": lambda place: place.store.create(OTHER, session_id="../x"),
    "create with an invalid project": lambda place: place.store.create("a\0b"),
    "create on a full disk": lambda place: full(place, lambda store: store.create(OTHER)),
    "create without locks": lambda place: full(place, lambda store: store.create(OTHER), "lock"),
    "create published on a full disk": lambda place: full(place, lambda store: store.create(OTHER, publish=True)),
    "open what is no session": lambda place: place.store.open(place.garbage),
    "open a newer version": lambda place: place.store.open(place.newer),
    "open in place what is missing": lambda place: place.store.open(place.folder / "x.jsonl", in_place=True),
    "open an unknown id": lambda place: place.store.open("nothing"),
    "fork from what is no session": lambda place: place.store.fork_from(place.garbage, OTHER),
    "fork from what is missing": lambda place: place.store.fork_from(place.folder / "x.jsonl", OTHER),
    "fork on a full disk": lambda place: full(place, lambda store: store.fork_from(place.path, OTHER)),
    "import what is no session": lambda place: import_session(place.store, place.garbage),
    "delete what is not ours": lambda place: place.store.delete(place.garbage),
    "delete an unknown id": lambda place: place.store.delete("nothing"),
    "delete without a folder in the trash": lambda place: full(place, lambda store: store.delete(place.path), "mkdir"),
    "delete when the rename fails": lambda place: full(place, lambda store: store.delete(place.path), "rename"),
    "undo an unknown deletion": lambda place: place.store.undo("nothing"),
    "undo where a file is": undo_in_use,
    "move to the same name": lambda place: (
        place.in_the_way(f"{place.stem}.jsonl") and place.on(lambda session: session.move_to(OTHER))
    ),
    "move to an invalid project": lambda place: place.on(lambda session: session.move_to("a\0b")),
    "move on a full disk": lambda place: full(
        place, lambda store: store.open(place.path).move_to("/work/new"), "sync_directory"
    ),
    "move when the rename fails": lambda place: full(
        place, lambda store: store.open(place.path).move_to("/work/new"), "rename"
    ),
    "append what cannot be stored": lambda place: place.on(lambda session: session.append_custom_entry("x", {1})),
    "append without a type": lambda place: place.on(lambda session: session.append_many([{}])),
    "append to what is missing": lambda place: place.on(lambda session: session.append_many([{"type": "x"}], "no")),
    "rewrite an id": lambda place: place.on(lambda session: session.rewrite_entries(lambda e: {**e, "id": "x"})),
    "rewrite a missing call": lambda place: place.on(lambda session: session.rewrite_tool_call("no", {})),
    "rewrite with what cannot be stored": lambda place: place.on(
        lambda session: session.rewrite_entries(lambda e: {**e, "x": b"bytes"})
    ),
    "tag with nothing": lambda place: place.on(lambda session: session.set_tag("\u200b")),
    "label what is missing": lambda place: place.on(lambda session: session.append_label_change("no", "x")),
    "branch to what is missing": lambda place: place.on(lambda session: session.branch("no", durable=True)),
    "copy a missing branch": lambda place: place.on(lambda session: session.create_branched_session("no")),
    "switch to what is no session": lambda place: place.on(lambda session: session.set_session_file(place.garbage)),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refused_operation_leaves_the_files_as_they_were(tmp_path: Path, name: str) -> None:
    """The tree is the same before and after, and the session can be used."""
    place = Place(tmp_path)
    if name == "move to the same name":
        place.in_the_way(f"{place.stem}.jsonl")
    before = tree(tmp_path)
    with pytest.raises(SessileError):
        REFUSALS[name](place)
    assert tree(tmp_path) == before
    place.on(lambda session: session.append_message({"role": "user", "content": "more"}))
    measured("P50", "refused operations", tried=len(REFUSALS), differences=0)


def test_a_refused_move_beside_artifacts_in_the_way_changes_nothing(tmp_path: Path) -> None:
    """The artifacts of another session of the same name stay, and ours are not left in two places."""
    place = Place(tmp_path)
    (Path(place.path).with_suffix("") / "a").write_text("first")
    place.in_the_way(f"{place.stem}/file")
    before = tree(tmp_path)
    with pytest.raises(SessileError):
        place.on(lambda session: session.move_to(OTHER))
    assert tree(tmp_path) == before


# -- deleting


def using(path: str, root: str, how: str, tell: Tell) -> None:
    """Use a session in another process until killed."""
    session = Store(root).open(path)
    if how == "locked":
        session._own_journal().hold()
    tell("there")
    signal.pause()


@pytest.mark.parametrize("how", ["open", "locked"])
def test_a_session_that_another_process_uses_is_not_deleted(tmp_path: Path, how: str) -> None:
    """It raises SessionBusy and changes nothing; `force` deletes it, and so does everybody once the process is gone."""
    place = Place(tmp_path)
    child = Child(lambda tell: using(place.path, place.store.layout.root, how, tell))
    try:
        child.wait_for_word()
        before = tree(tmp_path)
        with pytest.raises(SessionBusy) as busy:
            place.store.delete(place.path)
        assert busy.value.hint and tree(tmp_path) == before
        place.store.undo(place.store.delete(place.path, force=True).token)
        assert tree(tmp_path).keys() - before.keys() <= {"root/trash"}
    finally:
        child.kill()
        os.waitpid(child.pid, 0)
    place.store.delete(place.path)
    assert not os.path.exists(place.path)


def test_a_session_that_this_process_has_open_can_be_deleted(tmp_path: Path) -> None:
    """Its next append raises."""
    place = Place(tmp_path)
    session = place.store.open(place.path)
    place.store.delete(place.path)
    with pytest.raises(SessileError):
        say(session, "late")
    with pytest.raises(SessileError):
        session.close()


@pytest.mark.parametrize("by", ["id", "path"])
def test_deleting_works_on_a_full_disk(tmp_path: Path, by: str) -> None:
    """A rename and an empty file need no room. The deletion is listed, and undone byte for byte."""
    place = Place(tmp_path)
    before = tree(tmp_path)
    no_room = FaultyFilesystem(PosixFilesystem(), plan=[Fail(errno.ENOSPC, on={"write"}, forever=True)])
    store = Store(place.store.layout.root, fs=no_room)
    deletion = store.delete(place.id if by == "id" else place.path)
    assert no_room.struck
    assert deletion.paths == (place.path, place.path.removesuffix(".jsonl"))
    assert not any(map(os.path.exists, deletion.paths))
    assert place.store.deletions() == (deletion,)
    assert store.undo(deletion.token) == deletion
    assert place.store.deletions() == ()
    assert {path: data for path, data in tree(tmp_path).items() if path != "root/trash"} == before
    again = store.delete(place.id)
    assert store._trash.remove(again.token)
    assert place.store.deletions() == () and os.listdir(place.store.layout.trash) == []


def test_deleting_without_room_for_a_folder_names_a_way_out(tmp_path: Path) -> None:
    """The hint says how to free some room."""
    place = Place(tmp_path)
    no_room = FaultyFilesystem(PosixFilesystem(), plan=[Fail(errno.ENOSPC, on={"mkdir"}, forever=True)])
    with pytest.raises(StorageFull) as full_disk:
        Store(place.store.layout.root, fs=no_room).delete(place.path)
    assert "trash empty" in (full_disk.value.hint or "") and place.path in (full_disk.value.hint or "")


# -- file systems without locks


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_flock_the_error_says_so_and_reading_works(tmp_path: Path, code: int) -> None:
    """The first error is raised, not the one of the unlocking that follows; nothing is written."""
    place = Place(tmp_path)
    fs = FaultyFilesystem(PosixFilesystem(), plan=[Fail(code, on={"lock", "unlock"}, forever=True)])
    store = Store(place.store.layout.root, fs=fs)
    before = tree(tmp_path)
    with store.open(place.path, readonly=True) as reader:
        assert reader.count_entries() == 2
    acts: list[Callable[[], Any]] = [
        lambda: place_append(store, place.path),
        lambda: store.open(place.path).set_session_name("x"),
        lambda: store.open(place.path).rewrite_entries(lambda entry: None),
        lambda: store.create(OTHER),
        lambda: store.delete(place.path),
    ]
    for act in acts:
        with pytest.raises(StorageFailure, match="no file locks") as refused:
            act()
        assert refused.value.errno == code and refused.value.hint
    assert tree(tmp_path) == before


def place_append(store: Store, path: str) -> None:
    store.open(path).append_message({"role": "user", "content": "x"})


# -- a session restarted over something else


@pytest.mark.parametrize("content", ["", "no session\n", '{"type":"message"}\n'], ids=["empty", "garbage", "headless"])
@pytest.mark.parametrize("known", [True, False], ids=["beside others", "alone"])
def test_a_session_restarted_over_a_file_belongs_to_the_project_of_its_folder(
    tmp_path: Path, content: str, known: bool
) -> None:
    """Not to the folder that the sessions are in. The names of `/work/my-app` and `/work/my/app` are the same."""
    store = Store(tmp_path / "root", durability="process")
    cwd = "/work/my-app" if known else "/work/app"
    if known:
        with store.create(cwd, publish=True) as other:
            say(other, "x")
    path = Path(store.layout.folder(cwd)) / "2026-01-01T00-00-00-000Z_x.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    with store.open(path) as session:
        assert session.cwd == cwd
    with store.open(path) as session:
        assert session.cwd == cwd
    assert str(path) in {info.path for info in store.list(cwd)}


def test_a_session_restarted_in_the_folder_of_this_process_belongs_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working folder of the caller decides between projects of one name."""
    here = tmp_path / "my-app"
    here.mkdir()
    monkeypatch.chdir(here)
    store = Store(tmp_path / "root", durability="process")
    path = Path(store.layout.folder(str(here))) / "2026-01-01T00-00-00-000Z_x.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("garbage")
    with store.open(path) as session:
        assert session.cwd == str(here)
    with store.open(tmp_path / "elsewhere" / "x.jsonl", cwd="/given") as session:
        assert session.cwd == "/given"
