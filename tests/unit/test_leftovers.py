"""Temporary files: those of living writers stay, those of dead ones are removed if their bytes are elsewhere, else named."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.processes import Child, Tell
from sessile import Store
from sessile.storage import atomic
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.history import HistoryStorage
from sessile.upkeep.disk import disk_usage
from sessile.upkeep.sweep import apply_file_plan, leftovers, plan_leftovers, plan_originals
from sessions import CWD, Clock, answer, say, store_at

pytestmark = pytest.mark.promise("P47")

FS = PosixFilesystem()
DAY = 24 * 3600.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_at(tmp_path / "root", clock=Clock(1_771_237_230.0))


def temp_of(path: str, data: bytes) -> str:
    """Leave what a dead writer of a file would."""
    temp = atomic.temp_beside(path)
    Path(temp).write_bytes(data)
    return temp


def a_session(store: Store, words: str = "hello") -> str:
    with store.create(CWD) as session:
        say(session, words)
        answer(session, "yes")
        return session.path


def edited(path: str) -> bytes:
    """The bytes of a session whose header was changed, as by a rename."""
    header, _, rest = Path(path).read_bytes().partition(b"\n")
    return header[:-1] + b',"title":"new"}\n' + rest


class TestSweeping:
    """What the next writer in the folder does."""

    def test_a_writer_killed_in_the_middle_leaves_a_file_that_the_next_writer_removes(self, tmp_path: Path) -> None:
        """The lock of a killed writer is free, so its file is recognized; that of a living one is not touched."""
        path = f"{tmp_path}/file"
        Path(path).write_bytes(b"x" * 5000)

        def write(tell: Tell) -> None:
            def pieces() -> Iterator[bytes]:
                yield b"x" * 3000
                tell("writing")
                signal.pause()

            atomic.replace(FS, path, pieces())

        writer = Child(write)
        writer.wait_for_word()
        (temp,) = tmp_path.glob(".*.tmp")
        atomic.replace(FS, path, (b"x" * 4000,))
        assert temp.exists()
        writer.kill()
        writer.finish()
        atomic.replace(FS, path, (b"x" * 4500,))
        assert os.listdir(tmp_path) == ["file"]

    @pytest.mark.parametrize("end", [0, 20, 100, 10_000])
    def test_a_rewrite_that_died_is_removed_by_the_next_session(self, store: Store, end: int) -> None:
        """A rename writes another header, so its bytes are not a beginning of the file, but all entries are there."""
        path = a_session(store)
        temp = temp_of(path, edited(path)[:end])
        a_session(store)
        assert not os.path.exists(temp)

    def test_entries_that_are_nowhere_else_stay(self, store: Store) -> None:
        """A file with an entry that the journal does not have is kept."""
        path = a_session(store)
        line = b'{"type":"message","id":"zzzzzzzz","parentId":null,"message":{"role":"user","content":"only here"}}\n'
        temp = temp_of(path, Path(path).read_bytes() + line)
        a_session(store)
        with store.open(path) as session:
            session.rewrite_entries(lambda entry: {**entry, "x": 1})
        assert os.path.exists(temp)
        (left,) = leftovers(store)
        assert (left.path, left.spare) == (temp, False)

    def test_a_new_session_that_never_was_is_removed_unless_someone_said_something(self, store: Store) -> None:
        """A header alone holds nothing that anyone said; a fork that died holds entries."""
        path = a_session(store)
        data = Path(path).read_bytes()
        gone = f"{os.path.dirname(path)}/gone.jsonl"
        header, whole = temp_of(gone, data.partition(b"\n")[0] + b"\n"), temp_of(gone, data)
        a_session(store)
        assert not os.path.exists(header) and os.path.exists(whole)

    def test_a_draft_that_was_published_since_counts(self, store: Store) -> None:
        """The file of a draft's rewrite is compared with the session under its final name."""
        path = a_session(store)
        temp = temp_of(path.removesuffix(".jsonl") + ".draft", edited(path))
        a_session(store)
        assert not os.path.exists(temp)

    def test_caches_lose_every_leftover_and_documents_only_copies(self, store: Store) -> None:
        """What is made again is removed whatever it holds; a list of pins is not."""
        path = a_session(store)
        store.pins.add("one")
        pins = f"{store.layout.root}/pins.json"
        same, other = temp_of(pins, Path(pins).read_bytes()), temp_of(pins, b'["two"]')
        index = store.layout.index(path)
        os.makedirs(os.path.dirname(index), exist_ok=True)
        cached = temp_of(index, b"half an index")
        store.pins.remove("one")
        store.pins.add("one")
        atomic.replace(store.fs, index, (b"an index",), cache=True)
        assert (os.path.exists(same), os.path.exists(other), os.path.exists(cached)) == (False, True, False)

    def test_a_blob_that_was_stored_since_makes_its_beginning_spare(self, store: Store) -> None:
        """The first blob that a process stores looks for what others left."""
        data = b"x" * 1000
        blob = store.blobs.put(data)
        temp = temp_of(blob.path, data[:500])
        Store(store.layout.root).blobs.put(b"another")
        assert not os.path.exists(temp)

    def test_links_folders_and_other_names_are_left_alone(self, store: Store, tmp_path: Path) -> None:
        """Only regular files with a temporary name are removed."""
        path = a_session(store)
        mine = Path(path).with_name(".mine.tmp")
        mine.write_bytes(b"")
        link = atomic.temp_beside(path)
        os.symlink(path, link)
        folder = atomic.temp_beside(path)
        os.mkdir(folder)
        a_session(store)
        assert mine.exists() and os.path.islink(link) and os.path.isdir(folder)

    def test_a_sweep_never_takes_a_file_that_is_about_to_be_locked(self, tmp_path: Path) -> None:
        """A writer whose new file was removed before it could lock it takes another name."""

        class Swept(PosixFilesystem):
            left = 3

            def lock(self, fd: int) -> bool:
                if self.left:
                    self.left -= 1
                    atomic.sweep(FS, str(tmp_path))
                return super().lock(fd)

        fs = Swept()
        atomic.replace(fs, f"{tmp_path}/file", (b"content",))
        assert (Path(tmp_path, "file").read_bytes(), fs.left) == (b"content", 0)
        assert os.listdir(tmp_path) == ["file"]

    def test_a_deletion_across_devices_that_died_can_be_undone(self, store: Store) -> None:
        """The copy that did not finish goes: its original never moved."""
        path = a_session(store)
        token = store.delete(path).token
        folder = f"{store.layout.trash}/{token}"
        os.rename(f"{folder}/0", path)
        os.mkdir(atomic.temp_beside(f"{folder}/0"))
        Path(atomic.temp_beside(f"{folder}/1")).write_bytes(b"half")
        store.undo(token)
        assert os.path.exists(path) and os.listdir(store.layout.trash) == []

    def test_a_history_that_died_while_it_was_renewed_is_finished(self, tmp_path: Path) -> None:
        """The new file takes the place of the one that was set aside, and the private folder is removed."""
        path = tmp_path / "history.db"
        with HistoryStorage(str(path)) as history:
            history.add("kept prompt")
        workshop = tmp_path / "history.db.new-abc"
        workshop.mkdir()
        shutil.copyfile(path, workshop / "new")
        path.rename(tmp_path / "history.db.broken-1")
        with HistoryStorage(str(path)) as history:
            assert [entry.prompt for entry in history.get_recent()] == ["kept prompt"]
        assert sorted(os.listdir(tmp_path)) == ["history.db", "history.db.broken-1"]


class TestAccounts:
    """`du` and `prune`."""

    def test_every_kind_of_file_has_an_account(self, store: Store, tmp_path: Path) -> None:
        """The sum of all kinds is the size of all files, with links, second names and unknown files."""
        path = a_session(store)
        root = Path(store.layout.root)
        with store.open(path) as session:
            session.rewrite_entries(lambda entry: {**entry, "x": 1})
        with HistoryStorage(store.layout.history) as history:
            history.add("prompt")
        files = {
            "history.db.broken-17": "copies",
            "gateway/turns/begun.log": "turns",
            "gateway.token": "gateway",
            "agents/main/sessions/sessions.json": "gateway",
            "agents/main/kept/sessions.json.good": "copies",
            "terminal-sessions/tty": "state",
            "pins.json": "state",
            "kept/claude/a.jsonl": "kept",
            "workspaces/main/memory/2026-01-01.md": "workspaces",
            "cache/catalog.db": "catalog",
            "cache/unknown": "cache",
            "what is this": "other",
            "sessions/--x--/README": "other",
            "somewhere/deep/x": "other",
        }
        for number, name in enumerate(files):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(b"x" * (1000 + number))
        os.symlink(tmp_path, root / "link")
        os.link(path, root / "originals" / "second name")
        left = temp_of(path, b"bytes that are nowhere else")
        with atomic.prepared(FS, str(root / "pins.json"), (b"being written",)):
            usage = disk_usage(store)
            seen: dict[int, int] = {}
            for folder, _, names in os.walk(root):
                for name in names:
                    status = os.lstat(f"{folder}/{name}")
                    if not os.path.islink(f"{folder}/{name}"):
                        seen[status.st_ino] = status.st_size
            assert usage.total == sum(seen.values())
        assert usage.temporary_bytes == len(b"being written") and usage.links == 1
        assert (usage.leftovers, usage.leftover_bytes) == (1, os.path.getsize(left))
        unknown = [str(root / name) for name, kind in files.items() if kind == "other"]
        assert sorted(usage.other_paths) == sorted(unknown)
        assert usage.other_bytes == sum(map(os.path.getsize, unknown))
        assert usage.copies == 2 and usage.turns_bytes == 1001 and usage.catalog_bytes == 1009
        assert usage.history_bytes == os.path.getsize(store.layout.history)

    def test_leftovers_go_to_the_trash_when_asked(self, store: Store) -> None:
        """Each is proposed with the reason; one that is written again in the meantime stays."""
        path = a_session(store)
        temp = temp_of(path, b"bytes")
        other = temp_of(path, b"more bytes")
        plan = plan_leftovers(store)
        assert [(item.path, item.why) for item in plan.items] == sorted(
            (each, "its bytes are nowhere else") for each in (temp, other)
        )
        Path(other).write_bytes(b"changed since")
        swept = apply_file_plan(store, plan, "leftovers")
        assert (os.path.exists(temp), os.path.exists(other)) == (False, True)
        assert swept.deletion is not None
        store.undo(swept.deletion.token)
        assert Path(temp).read_bytes() == b"bytes"


class TestOriginals:
    """Files that rewrites have replaced."""

    def test_identical_originals_are_stored_once(self, store: Store) -> None:
        """A session that changes between two contents keeps each of them once."""
        path = a_session(store)
        kept = set()
        with store.open(path) as session:
            for number in range(6):
                kept.add(session.rewrite_entries(lambda entry, n=number: {**entry, "x": n % 2}))  # type: ignore[misc]
        assert len(kept) == len(os.listdir(store.layout.originals)) == 3
        assert all(map(os.path.exists, kept))

    def test_an_original_that_is_the_file_itself_is_removed(self, store: Store) -> None:
        """A process that died between the second name and the rename leaves the session under two names."""
        path = a_session(store)
        os.makedirs(store.layout.originals)
        left = f"{store.layout.originals}/{os.path.basename(path)}.1000000000000-abcdef"
        os.link(path, left)
        with store.open(path) as session:
            session.rewrite_entries(lambda entry: {**entry, "x": 1})
            session.rewrite_entries(lambda entry: {**entry, "x": 2})
        names = os.listdir(store.layout.originals)
        assert len({os.stat(f"{store.layout.originals}/{name}").st_ino for name in names}) == 2
        assert os.stat(path).st_nlink == 1

    def test_old_and_numerous_originals_are_proposed_and_nothing_is_removed_unasked(self, store: Store) -> None:
        """Originals older than 30 days, or beyond the newest ten of a session, go to the trash when asked."""
        path = a_session(store)
        now = store.now()
        os.makedirs(store.layout.originals)
        for name, day in [("a", 40), *(("a", day) for day in range(12)), ("b", 31), ("b", 1)]:
            stamp = now - day * 86_400_000
            Path(store.layout.originals, f"{name}.jsonl.{stamp}-abcdef").write_bytes(b"x" * (day + 1))
        with store.open(path) as session:
            session.rewrite_entries(lambda entry: {**entry, "x": 1})
        assert len(os.listdir(store.layout.originals)) == 16
        plan = plan_originals(store, older_than=30 * DAY, copies=10)
        assert sorted(item.size for item in plan.items) == [11, 12, 32, 41] and plan.stay == 12
        apply_file_plan(store, plan, "originals")
        assert len(os.listdir(store.layout.originals)) == 12
