"""Links, pipes, sockets and devices in place of a store's files and folders, also swapped in during writes.

A folder next to the root must never change. A scenario does everything that a store writes. Each step may fail with a typed
error, but none may change that folder or hang.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest

from faults.processes import Child, Tell, fast_folder
from figures import measured
from sessile import HistoryStorage, Library, Session, Store
from sessile.errors import PermissionRefused, SessileError, UnsafePath
from sessile.gateway.conversations.registry import Conversations
from sessile.storage import filesystem
from sessile.storage.turn_log import TurnLog
from sessions import Json, snapshot, store_at

pytestmark = pytest.mark.promise("P32")

PATIENCE = 60  # seconds after which a step counts as hanging
SHORT, LONG = 90, 50_000  # races
CWD = "/work/app"
PICTURE: Json = {"type": "image", "mimeType": "image/png", "data": "QUJD" * 400}

Step = Callable[[Store], object]


# -- everything that a store writes


def talk(store: Store) -> None:
    with store.create(CWD, title="A title", publish=True) as session:
        session.append_message({"role": "user", "content": [PICTURE, {"type": "text", "text": "hello"}]})
        session.append_message({"role": "assistant", "content": "yes"})


def draft(store: Store) -> None:
    with store.create(CWD) as session:
        session.append_message({"role": "user", "content": "hello"})


class Gone(Exception):
    """There is no session at the moment."""


def first(store: Store) -> str:
    """Return the first session file of the project, even if its folder was replaced."""
    folder = store.layout.folder(CWD)
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        raise Gone from None
    for name in names:
        if name.endswith(".jsonl") and not name.startswith("."):
            return f"{folder}/{name}"
    raise Gone


def on_the_first(act: Callable[[Session], object]) -> Step:
    def step(store: Store) -> None:
        with store.open(first(store)) as session:
            act(session)

    return step


def go_on(session: Session) -> None:
    session.append_message({"role": "user", "content": "more"})


def rewrite(session: Session) -> None:
    session.rewrite_entries(lambda entry: {**entry, "x": 1})


def delete_and_undo(store: Store) -> None:
    store.undo(store.delete(first(store)).token)


def bind(store: Store) -> None:
    with Conversations(store, workspace=lambda agent: CWD, hold=None) as conversations:
        conversations.resolve("agent:main:hook:a")


def note_a_turn(store: Store) -> None:
    log = TurnLog(store.fs, store.layout.root)
    log.keep("s1", {"turn": 1})
    log.forget("s1")


STEPS: list[Step] = [
    talk,
    draft,
    on_the_first(go_on),
    on_the_first(rewrite),
    on_the_first(lambda session: session.fork().close()),
    on_the_first(lambda session: session.move_to("/work/other")),
    delete_and_undo,
    bind,
    note_a_turn,
    lambda store: store.continue_recent(CWD).close(),
]


def opened(root: Path) -> Store:
    return store_at(root, terminal="pts-3", random=os.urandom)


@pytest.fixture(scope="module")
def filled() -> Iterator[Path]:
    """A store in which everything was written once. It is copied for each test."""
    with fast_folder() as folder:
        root = Path(folder) / "root"
        store = opened(root)
        for step in STEPS:
            step(store)
        note = TurnLog(store.fs, store.layout.root)
        note.keep("s1", {"turn": 1})
        store.delete(first(store))
        yield root


# -- another type of file in place of a file or a folder


def _socket(path: Path, outside: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)  # the path itself may be too long for a socket
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(f"/proc/self/fd/{here}/{path.name[:40]}")
        os.rename(path.parent / path.name[:40], path)
    finally:
        os.close(here)


PLANTS: dict[str, Callable[[Path, Path], object]] = {
    "link to a folder": lambda path, outside: path.symlink_to(outside),
    "link to a file": lambda path, outside: path.symlink_to(outside / "file"),
    "link to a session": lambda path, outside: path.symlink_to(outside / "session.jsonl"),
    "link to nothing": lambda path, outside: path.symlink_to(outside / "new"),
    "hard link to a file": lambda path, outside: path.hardlink_to(outside / "file"),
    "hard link to a session": lambda path, outside: path.hardlink_to(outside / "session.jsonl"),
    "pipe": lambda path, outside: os.mkfifo(path),
    "socket": _socket,
    "device": lambda path, outside: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3)),
}


def make_outside(folder: Path) -> Path:
    outside = folder / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "file").write_bytes(b"precious\n")
    (outside / "sub" / "file").write_bytes(b"precious\n")
    header = '{"type":"session","version":3,"id":"s1","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/work/app"}\n'
    (outside / "session.jsonl").write_text(header)
    return outside


def components(root: Path) -> list[str]:
    """Return every file and folder of a store."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    def too_long(*_: object) -> None:
        raise AssertionError("a step hangs")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def take_every_step(store: Store) -> int:
    """Run all steps. Return the number of refused ones."""
    refused = 0
    for step in STEPS:
        try:
            step(store)
        except (SessileError, Gone):
            refused += 1
    return refused


def check_planted(filled: Path, component: str, kind: str) -> int:
    """Plant one thing in a copy of a store, and run all steps there."""
    with fast_folder() as place:
        folder = Path(place)
        outside = make_outside(folder)
        root = folder / "root"
        shutil.copytree(filled, root)
        path = root / component
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        try:
            PLANTS[kind](path, outside)
        except PermissionError:
            return 0  # only root can create devices
        before, what = snapshot(outside), path.lstat().st_mode
        with no_longer_than(PATIENCE):
            refused = take_every_step(opened(root))
        assert snapshot(outside) == before, (component, kind)
        still = path.lstat().st_mode if os.path.lexists(path) else None
        assert still is None or stat.S_IFMT(still) in (stat.S_IFMT(what), stat.S_IFREG)
    return refused


def check_all_planted(filled: Path, stride: int) -> None:
    pairs = [(component, kind) for component in components(filled) for kind in PLANTS][::stride]
    refused = sum(check_planted(filled, component, kind) for component, kind in pairs)
    assert refused
    steps = len(pairs) * len(STEPS)
    measured("P32", "other file types in place of files", planted=len(pairs), steps=steps, refused=refused, followed=0)


def test_what_is_planted_in_a_store_is_not_written_through(filled: Path) -> None:
    """With some pairs of a place and a planted thing, nothing outside changes and nothing hangs."""
    check_all_planted(filled, stride=7)


@pytest.mark.long
def test_whatever_is_planted_wherever_it_is_not_written_through(filled: Path) -> None:
    """The long form of the test above: every pair."""
    check_all_planted(filled, stride=1)


# -- second names of files


def browse(store: Store) -> None:
    with Library(store, cache=store.layout.cache) as library:
        list(library.search("hello"))


def remember(store: Store) -> None:
    with HistoryStorage(store.layout.history) as history:
        history.add(f"a prompt {os.urandom(4).hex()}")
        history.flush()


def append_to(path: str, store: Store) -> None:
    with store.open(path) as session:
        go_on(session)


def test_a_file_with_a_second_name_is_never_changed(filled: Path, tmp_path: Path) -> None:
    """Each file of a store, also of its caches, gets a name outside; whatever the store does, the bytes there stay."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    shutil.copytree(filled, root)
    store = opened(root)
    browse(store)
    remember(store)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    kinds = {path.relative_to(root).parts[0] for path in files}
    assert {"sessions", "blobs", "cache", "originals", "trash", "history.db", "agents"} <= kinds
    for number, path in enumerate(files):
        (outside / str(number)).hardlink_to(path)
    before = snapshot(outside)
    refused = 0
    appends: list[Step] = [partial(append_to, str(path)) for path in files if path.suffix == ".jsonl"]
    for step in (*appends, *STEPS, browse, remember):
        try:
            step(opened(root))
        except SessileError:
            refused += 1
    assert refused > len(appends) > 1
    assert snapshot(outside) == before
    measured("P32", "second names of a store's files", files=len(files), refused=refused, changed=0)


@pytest.fixture
def path(tmp_path: Path) -> str:
    store = opened(tmp_path / "root")
    talk(store)
    return first(store)


def test_a_journal_with_a_second_name_is_read_but_not_written(path: str, tmp_path: Path) -> None:
    """The error says how to get a file of its own, and doing that helps."""
    store = opened(tmp_path / "root")
    os.link(path, tmp_path / "backup")
    with store.open(path, readonly=True) as session:
        assert session.count_entries() == 2
    with pytest.raises(UnsafePath, match="second name") as refused:
        store.open(path)
    command = (refused.value.hint or "").partition(": ")[2]
    assert command.startswith("cp -p ")
    os.system(command)
    before = (tmp_path / "backup").read_bytes()
    with store.open(path) as session:
        go_on(session)
    assert (tmp_path / "backup").read_bytes() == before


@pytest.mark.parametrize("publish", [True, False], ids=["session", "draft"])
def test_a_second_name_is_noticed_while_the_session_is_open(tmp_path: Path, publish: bool) -> None:
    """The next append is refused, and works once the other name is gone."""
    with opened(tmp_path / "root").create(CWD, publish=publish) as session:
        go_on(session)
        os.link(session._journal.path, tmp_path / "backup")
        before = (tmp_path / "backup").read_bytes()
        acts: list[Callable[[Session], object]] = [go_on, rewrite, lambda one: one.set_session_name("x")]
        for act in acts:
            with pytest.raises(UnsafePath, match="second name"):
                act(session)
        assert (tmp_path / "backup").read_bytes() == before
        (tmp_path / "backup").unlink()
        go_on(session)


def test_the_second_name_of_a_killed_rewrite_is_removed(path: str, tmp_path: Path) -> None:
    """A process that died between the second name and the rename has left it among the originals."""
    store = opened(tmp_path / "root")
    original = store.original_path(path)
    os.makedirs(store.layout.originals)
    os.link(path, original)
    with store.open(path) as session:
        assert not os.path.exists(original)
        os.link(path, original)
        go_on(session)
        assert not os.path.exists(original)
    assert os.stat(path).st_nlink == 1


# -- swapped during writes


def swapping(path: str, link: str, tell: Tell) -> None:
    """Replace a folder or file with a link and restore it, repeatedly, until killed."""
    tell("there")
    while True:
        for source, target in ((path, f"{path}.real"), (link, path), (path, link), (f"{path}.real", path)):
            try:
                os.rename(source, target)
            except OSError:
                pass  # the store has created something there; the next round handles it


RACING = [STEPS[number] for number in (0, 2, 3, 4, 6, 7, 8)]


def race(component: str, races: int, seed: int) -> int:
    """Run steps while a folder of the store is swapped for a link to the outside. Return the number of refused steps."""
    rng = Random(seed)
    refused = 0
    with fast_folder() as place:
        folder = Path(place)
        outside, root = make_outside(folder), folder / "root"
        store = opened(root)
        take_every_step(store)
        os.symlink(outside, folder / "link")
        before = snapshot(outside)
        swapper = Child(partial(swapping, str(root / component), str(folder / "link")))
        swapper.wait_for_word()
        try:
            with no_longer_than(PATIENCE + races):
                for _ in range(races):
                    try:
                        rng.choice(RACING)(store)
                    except (SessileError, Gone):
                        refused += 1
        finally:
            swapper.kill()
            swapper.finish()
        assert snapshot(outside) == before
    return refused


FOLDERS = ["sessions", "sessions/--work-app--", "blobs", "trash", "agents/main/sessions", "gateway/turns"]


def check_races(races: int, seed: int) -> int:
    refused = sum(race(component, races // len(FOLDERS), seed) for component in FOLDERS)
    measured("P32", "folders swapped for links during calls", races=races, refused=refused, followed=0)
    return refused


def test_a_folder_that_is_swapped_for_a_link_is_not_followed() -> None:
    """Each call reaches the real folder or fails, whenever the link appears."""
    assert check_races(SHORT, 1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_fifty_thousand_races_are_lost_by_the_link(seed: int) -> None:
    """The long form of the test above."""
    assert check_races(LONG // 10, 10 + seed)


# -- owner of the root


@pytest.mark.promise("P28")
def test_the_root_of_another_user_is_read_and_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing to another user's root is refused with a message that names the reason; reading works."""
    store = opened(tmp_path / "root")
    talk(store)
    path = first(store)
    before = snapshot(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    for step in STEPS[:9]:
        with pytest.raises(SessileError) as caught:
            step(opened(tmp_path / "root"))
        assert isinstance(caught.value, PermissionRefused) and caught.value.hint
    assert "another user" in str(caught.value)
    with store.open(path, readonly=True) as session:
        assert len(session.get_entries()) == 2
    assert snapshot(tmp_path) == before


# -- teeth


def test_without_going_from_folder_to_folder_the_link_wins(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that opens whole paths follows planted and swapped links, and the rig reports it."""

    @contextmanager
    def whole(self: object, path: str) -> Iterator[tuple[None, str]]:
        yield None, path

    monkeypatch.setattr(filesystem.RootedFilesystem, "_place", whole)
    with pytest.raises(AssertionError):
        check_planted(filled, "sessions/--work-app--", "link to a folder")
    with pytest.raises(AssertionError):
        for seed in range(50):
            race("sessions/--work-app--", 40, seed)
