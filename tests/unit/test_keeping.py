"""Keeping sessions that another agent will delete: deadlines, exact copies, and listings."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sessile import Filter, Library, Store, import_session
from sessile.errors import Refused, SessionBusy, SessionNotFound, StorageFailure, Unsupported
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.filters import HIDE
from sessile.storage.layout import Source
from sessile.upkeep.keep import Expiring, Keeper, Outlook, expiring

from .test_foreign import SESSION, row

DAY = 24 * 3600 * 1000
NOW = 1_790_000_000_000
OTHER = "2f4e8b1c-2d3a-4c5b-8e6f-7a8b9c0d1e2f"
PROJECT = "-work-app"


class Home(NamedTuple):
    """A home with our store and the folder of Claude Code."""

    path: Path

    @property
    def project(self) -> Path:
        return self.path / "claude" / "projects" / PROJECT

    @property
    def kept(self) -> Path:
        return self.path / "own" / "kept" / "claude" / PROJECT

    def library(self, fs: Any = None) -> Library:
        """Return a new library of all sources."""
        sources = [
            Source("claude", str(self.path / "claude"), str(self.path / "claude" / "projects")),
            Source("pi", str(self.path / "pi"), str(self.path / "pi" / "sessions")),
            Source("folder", str(self.path / "added"), str(self.path / "added")),
        ]
        library = Library(Store(self.path / "own", fs=fs), sources, cache=str(self.path / "cache"))
        library.catch_up("count")
        return library

    def write(self, session: str = SESSION, *, age: float = 0, text: str = "find the webhook", more: str = "") -> Path:
        """Create a session that was last changed this many days ago."""
        self.project.mkdir(parents=True, exist_ok=True)
        path = self.project / f"{session}.jsonl"
        path.write_text(json.dumps({**row("user", "u1", None, text), "sessionId": session}) + "\n" + more)
        modified = int((NOW - age * DAY) * 1_000_000)
        os.utime(path, ns=(modified, modified))
        return path

    def settings(self, text: str, name: str = "settings.json") -> None:
        (self.path / "claude").mkdir(exist_ok=True)
        (self.path / "claude" / name).write_text(text)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def outlook(home: Home, **options: Any) -> Outlook:
    """Return the outlook for the sessions of Claude Code."""
    with home.library() as library:
        (found,) = expiring(library, now=NOW, **options)
        return found


def expected(home: Home, **options: Any) -> list[str]:
    """Return the ids of the sessions that will be deleted."""
    return [Path(session.path).stem for session in outlook(home, **options).sessions]


def keep(home: Home, path: Path) -> Any:
    with home.library() as library:
        return Keeper(library).keep(str(path))


def listed(home: Home, wanted: Filter | None = None) -> list[str]:
    with home.library() as library:
        return [row.path for row in library.list(wanted or Filter()).rows]


def state(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Return every folder, and every file with its bytes, time and mode."""
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns, path.stat().st_mode)
        for path in sorted(folder.rglob("*"))
    }


# -- deadlines


@pytest.mark.parametrize(("age", "warned"), [(22.999, False), (23, True), (29.999, True), (30.001, True), (300, True)])
def test_a_session_expires_within_seven_days_from_its_23rd_day_on(home: Home, age: float, warned: bool) -> None:
    """The limit is exact to the millisecond; overdue sessions that still exist are included."""
    home.write(age=age)
    found = outlook(home)
    assert found.problem is None
    assert [session.deadline for session in found.sessions] == ([NOW + int((30 - age) * DAY)] if warned else [])


def test_the_border_is_exact(home: Home) -> None:
    """One millisecond decides, and the exact limit still counts as expiring."""
    path = home.write()
    border = (NOW + 7 * DAY - 30 * DAY) * 1_000_000
    for modified, warned in ((border, True), (border + 999_999, True), (border + 1_000_000, False)):
        os.utime(path, ns=(modified, modified))
        assert bool(expected(home)) is warned, modified


def test_settings_and_the_span_move_the_border(home: Home) -> None:
    """A longer period, a shorter one in the local settings, and `within_days` move the limit."""
    home.write(age=25)
    assert expected(home) == [SESSION]
    assert expected(home, within_days=4.9) == []
    home.settings('{"cleanupPeriodDays": 99999}')
    assert expected(home) == []
    assert expected(home, within_days=99999 - 25) == [SESSION]
    home.settings('{"cleanupPeriodDays": 20}', "settings.local.json")
    assert outlook(home).sessions[0].deadline == NOW - 5 * DAY
    home.write(age=0)
    assert expected(home, within_days=None) == [SESSION]


def test_the_next_to_go_comes_first(home: Home) -> None:
    """After an interruption the most urgent sessions have been kept."""
    home.write(age=24)
    home.write(OTHER, age=29)
    assert expected(home) == [OTHER, SESSION]


def test_an_unknown_period_gives_no_deadline_and_says_why(home: Home) -> None:
    """Without a known period no session has a deadline, but all can still be listed."""
    path = home.write(age=29)
    home.settings('{"cleanupPeriodDays": 0}')
    found = outlook(home)
    assert found.sessions == [] and found.problem is not None and "cleanupPeriodDays" in found.problem
    assert outlook(home, within_days=None).sessions == [Expiring(str(path), None)]
    (home.path / "claude" / "settings.json").unlink()
    (home.path / "claude" / "settings.json").mkdir()
    assert "settings.json cannot be read" in (outlook(home).problem or "")


def test_settings_behind_a_link_are_read_if_the_caller_follows_it(home: Home) -> None:
    """Settings may be a link into a repository; the storage itself follows no links."""
    home.write(age=29)
    (home.path / "dotfiles.json").write_text('{"cleanupPeriodDays": 365}')
    (home.path / "claude" / "settings.json").symlink_to(home.path / "dotfiles.json")
    assert "settings.json cannot be read" in (outlook(home).problem or "")
    assert outlook(home, follow=os.path.realpath)[1:] == ([], None)


def test_sub_agents_and_other_agents_have_no_deadline_and_empty_sessions_no_warning(home: Home) -> None:
    """A sub-agent is deleted with its session; an empty session has no warning, but is kept with the others."""
    path = home.write(age=25)
    agents = home.project / SESSION / "subagents"
    agents.mkdir(parents=True)
    (agents / "agent-1.jsonl").write_bytes(path.read_bytes())
    old = NOW * 1_000_000 - 300 * DAY * 1_000_000
    empty = home.project / f"{OTHER}.jsonl"
    empty.write_text(json.dumps({"type": "custom-title", "customTitle": "T", "sessionId": OTHER}) + "\n")
    family = home.path / "pi" / "sessions" / "--work--" / "2026-01-01T00-00-00-000Z_x.jsonl"
    family.parent.mkdir(parents=True)
    family.write_text('{"type":"session","version":3,"id":"x","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/work"}\n')
    for each in (agents / "agent-1.jsonl", empty, family):
        os.utime(each, ns=(old, old))
    assert expected(home, hide=HIDE) == [SESSION]
    assert expected(home, hide=["sub_agent"]) == [OTHER, SESSION]


# -- copies


@pytest.mark.mission("B7")
def test_a_copy_has_the_bytes_and_times_of_its_original_which_is_only_read(home: Home) -> None:
    """The transcript and its files are copied with private permissions, and the originals do not change."""
    path = home.write(age=25, more='{"torn": \x00')
    beside = {
        f"{SESSION}/subagents/agent-1.jsonl": b"{}\n",
        f"{SESSION}/subagents/agent-1.meta.json": b'{"agentType":"x"}',
        f"{SESSION}/subagents/workflows/run/agent-2.jsonl": b"{}",
        f"{SESSION}/tool-results/b\xff.txt".encode("latin-1").decode("utf-8", "surrogateescape"): b"\xff\x00\r\n",
        f"{SESSION}/tool-results/empty.txt": b"",
    }
    for name, content in beside.items():
        file = home.project / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        os.utime(file, ns=(1, 1_700_000_000_123_456_789))
    before = state(home.path / "claude")
    done = keep(home, path)
    assert state(home.path / "claude") == before
    assert (done.agent, done.copy, done.failed, done.left_out) == ("claude", str(home.kept / path.name), [], [])
    assert sorted(done.written) == sorted(str(home.kept / name) for name in (path.name, *beside))
    assert done.written[-1] == done.copy  # related files are written before the session
    for name in (path.name, *beside):
        copy, original = home.kept / name, home.project / name
        assert copy.read_bytes() == original.read_bytes()
        assert copy.stat().st_mtime_ns == original.stat().st_mtime_ns
        assert copy.stat().st_mode & 0o777 == 0o600
    folders = [each for each in (home.path / "own" / "kept").rglob("*") if each.is_dir()]
    assert folders and all(each.stat().st_mode & 0o777 == 0o700 for each in folders)
    assert done.bytes == sum(len(content) for content in beside.values()) + path.stat().st_size


def test_what_is_kept_is_not_written_again_nor_warned_of(home: Home) -> None:
    """If the original grows, the copy grows, too, and nothing is set aside."""
    path = home.write(age=25)
    first = keep(home, path)
    before = state(home.kept)
    assert keep(home, path)[3:6] == ([], 0, 1)
    assert state(home.kept) == before
    assert expected(home) == []
    home.write(age=24, more="{}\n")
    assert expected(home) == [SESSION]
    assert keep(home, path).written == first.written
    assert (home.kept / path.name).read_bytes() == path.read_bytes()
    assert os.listdir(home.kept) == [path.name]
    assert expected(home) == []


def test_a_file_that_was_only_touched_gives_its_copy_the_new_time(home: Home) -> None:
    """No byte is written, and the warning disappears."""
    path = home.write(age=25)
    keep(home, path)
    home.write(age=24)
    assert expected(home) == [SESSION]
    assert keep(home, path).written == []
    assert (home.kept / path.name).stat().st_mtime_ns == path.stat().st_mtime_ns
    assert expected(home) == []


@pytest.mark.parametrize("text", ["another", "a much longer text than the one before, so that the file has grown"])
def test_an_original_that_lost_bytes_puts_the_copy_aside_and_says_where(home: Home, text: str) -> None:
    """Every byte that was kept stays in one place, and no listing shows it as a session."""
    path = home.write(age=25)
    keep(home, path)
    old = path.read_bytes()
    home.write(age=24, text=text)
    done = keep(home, path)
    (aside,) = done.aside
    assert Path(aside).read_bytes() == old
    assert Path(done.copy).read_bytes() == path.read_bytes() != old
    home.write(age=25)
    again = keep(home, path)
    assert Path(again.copy).read_bytes() == old
    home.write(age=24, text=text)
    assert keep(home, path).aside == [aside]
    assert len(os.listdir(home.kept)) == 3
    path.unlink()
    assert listed(home, Filter(hide=())) == [done.copy]


def test_links_are_left_out_and_told(home: Home) -> None:
    """The target of a link is not part of the session."""
    path = home.write(age=25)
    (home.project / SESSION).mkdir()
    link = home.project / SESSION / "secret"
    link.symlink_to("/etc/passwd")
    assert keep(home, path).left_out == [str(link)]
    assert not (home.kept / SESSION).exists()


class ReadOnly(PosixFilesystem):
    """A file system that refuses changes below a folder, and refuses to read one of its files."""

    def __init__(self, folder: Path, locked: str = "") -> None:
        self.folder = str(folder)
        self.locked = locked

    def _check(self, path: str) -> None:
        if path.startswith(self.folder):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    def open(self, path: str, flags: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            self._check(path)
        if path == self.locked:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        return super().open(path, flags)

    def set_modified(self, fd: int, nanoseconds: int) -> None:
        self._check(os.readlink(f"/proc/self/fd/{fd}") if sys.platform == "linux" else "")
        super().set_modified(fd, nanoseconds)

    def mkdir(self, path: str) -> None:
        self._check(path)
        super().mkdir(path)

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        self._check(source)
        os.replace(source, target)


def test_a_folder_on_a_mount_for_reading_only_can_be_kept(home: Home) -> None:
    """An unreadable file beside the session is reported, and the session is kept."""
    path = home.write(age=25)
    (home.project / SESSION).mkdir()
    locked = home.project / SESSION / "locked.txt"
    locked.write_text("x")
    with home.library() as library:
        library.store.fs = ReadOnly(home.path / "claude", str(locked))
        done = Keeper(library).keep(str(path))
    assert [error.path for error in done.failed] == [str(locked)]
    assert done.written == [done.copy]
    assert Path(done.copy).read_bytes() == path.read_bytes()


class Restless(PosixFilesystem):
    """A file system on which a file grows after each of the first reads."""

    def __init__(self, path: Path, times: int) -> None:
        self.path = path
        self.times = times

    def read(self, fd: int, size: int, offset: int) -> bytes:
        data = os.pread(fd, size, offset)
        if self.times and os.fstat(fd).st_ino == self.path.stat().st_ino:
            self.times -= 1
            with self.path.open("ab") as file:
                file.write(b"{}\n")
        return data


def test_a_session_that_grows_while_it_is_copied_is_read_again(home: Home) -> None:
    """The copy is consistent; if the file never stops growing, keeping raises and leaves nothing behind."""
    path = home.write(age=25)
    with home.library() as library:
        library.store.fs = Restless(path, 2)
        done = Keeper(library).keep(str(path))
        assert Path(done.copy).read_bytes() == path.read_bytes()
        library.store.fs = Restless(path, 1000)
        with path.open("ab") as file:
            file.write(b"{}\n")
        with pytest.raises(SessionBusy):
            Keeper(library).keep(str(path))
    assert os.listdir(home.kept) == [path.name]


class Sweeping(PosixFilesystem):
    """A file system on which the original is deleted after it was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, path: str, flags: int) -> int:
        fd = super().open(path, flags)
        if path == str(self.path) and self.path.exists():
            self.path.unlink()
        return fd


def test_a_session_that_is_deleted_while_it_is_copied_is_kept(home: Home) -> None:
    """An open file is copied completely; a file that is already deleted raises."""
    path = home.write(age=25)
    content = path.read_bytes()
    with home.library() as library:
        library.store.fs = Sweeping(path)
        assert Path(Keeper(library).keep(str(path)).copy).read_bytes() == content
        with pytest.raises(SessionNotFound):
            Keeper(library).keep(str(path))
    assert (home.kept / path.name).read_bytes() == content


def test_only_other_agents_sessions_are_kept(home: Home) -> None:
    """Own sessions, copies and files without an agent are refused, with a hint."""
    path = home.write(age=25)
    done = keep(home, path)
    own = home.path / "own" / "sessions" / "--work--" / "x.jsonl"
    added = home.path / "added" / "x.jsonl"
    for refused in (own, Path(done.copy)):
        with pytest.raises(Refused):
            keep(home, refused)
    for unowned in (added, home.path / "elsewhere.jsonl", home.project / "../../../x.jsonl"):
        with pytest.raises(Unsupported) as raised:
            keep(home, unowned)
        assert "import" in str(raised.value.hint)


def test_a_link_in_place_of_the_archive_is_not_followed(home: Home) -> None:
    """Nothing is written through a link."""
    path = home.write(age=25)
    (home.path / "own").mkdir()
    (home.path / "trap").mkdir()
    (home.path / "own" / "kept").symlink_to(home.path / "trap")
    with pytest.raises(StorageFailure):
        keep(home, path)
    assert os.listdir(home.path / "trap") == []


# -- listings


@pytest.mark.mission("B1")
def test_a_copy_is_listed_found_and_searched_as_soon_as_its_original_is_gone(home: Home) -> None:
    """While the original exists, only the original is listed; otherwise its copy is listed."""
    path = home.write(age=25)
    done = keep(home, path)
    assert listed(home) == [str(path)]
    with home.library() as library:
        assert list(library.copies) == [str(path)]
        assert library.find(SESSION) == str(path)
    path.unlink()
    assert listed(home) == [done.copy]
    with home.library() as library:
        library.catch_up("index")
        assert not library.copies
        assert library.find(SESSION[:8]) == done.copy
        assert library.agent_of(done.copy) == "claude"
        assert library.original_of(done.copy) == str(path)
        assert [hit.path for hit in library.search("webhook").hits] == [done.copy]
        with library.store.open(done.copy, readonly=True) as session:
            assert [entry.body["message"]["content"] for entry in session.get_branch()] == ["find the webhook"]
    home.write(age=1)
    assert listed(home) == [str(path)]


def test_a_copy_with_more_bytes_than_its_original_is_listed_beside_it(home: Home) -> None:
    """The copy is listed because the original lost bytes; the name still finds the original."""
    path = home.write(age=25, more="{}\n" * 100)
    done = keep(home, path)
    home.write(age=24)
    assert sorted(listed(home)) == sorted([str(path), done.copy])
    with home.library() as library:
        assert library.find(SESSION) == str(path)


def test_a_library_sees_copies_that_were_made_since_it_was_opened(home: Home) -> None:
    """The next catch-up looks for new folders."""
    path = home.write(age=25)
    with home.library() as library:
        copy = Keeper(library).keep(str(path)).copy
        path.unlink()
        library.catch_up()
        assert [row.path for row in library.list().rows] == [copy]


def test_copies_survive_their_agent(home: Home) -> None:
    """Copies are listed even if the agent's folder is gone."""
    done = keep(home, home.write(age=25))
    with Library(Store(home.path / "own"), cache=None) as library:
        library.catch_up()
        assert [row.path for row in library.list().rows] == [done.copy]
        assert library.agent_of(done.copy) == "claude"


def test_a_copy_of_what_was_imported_is_not_listed_or_counted_again(home: Home) -> None:
    """The copy is hidden if the original or its folder is gone; a copy of another session is listed."""
    answer = json.dumps(row("assistant", "a1", "u1", [{"type": "text", "text": "here"}])) + "\n"
    path = home.write(age=25, more=answer)
    other = keep(home, home.write(OTHER, age=25)).copy
    copy = keep(home, path).copy
    own = import_session(Store(home.path / "own"), str(path)).path
    (home.project / f"{OTHER}.jsonl").unlink()
    path.unlink()
    with home.library() as library, Library(Store(home.path / "own"), cache=None) as alone:
        alone.catch_up("count")
        for one in (library, alone):
            listing = one.list()
            assert sorted(row.path for row in listing.rows) == sorted([own, other])
            assert listing.hidden == {"imported": 1}
            assert len(one.usage(Filter(hide=("imported",))).sessions) == 1
            assert [row.path for row in one.list(Filter(below=[str(home.kept)], id_prefix=SESSION)).rows] == [copy]


def test_sub_agents_of_what_was_imported_are_counted_once(home: Home) -> None:
    """Sub-agents are imported with their session; those of other sessions are listed in place."""
    answer = json.dumps(row("assistant", "a1", None, [{"type": "text", "text": "here"}])) + "\n"
    for session in (SESSION, OTHER):
        agent = home.write(session).with_suffix("") / "subagents" / "agent-a1.jsonl"
        agent.parent.mkdir(parents=True)
        agent.write_text(answer)
    import_session(Store(home.path / "own"), str(home.project / f"{SESSION}.jsonl"))
    with home.library() as library:
        library.catch_up("count")
        rows = library.list(Filter(hide=("imported",))).rows
        agents = sorted(row.path for row in rows if row.sub_agent)
        assert len(agents) == 2 and agents[0] == str(home.project / OTHER / "subagents" / "agent-a1.jsonl")
        assert agents[1].startswith(str(home.path / "own"))


def test_a_copy_of_another_session_with_that_id_is_listed(home: Home) -> None:
    """The imported session came from another place."""
    copy = keep(home, home.write(age=25)).copy
    elsewhere = home.path / "elsewhere" / f"{SESSION}.jsonl"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(Path(copy).read_bytes())
    own = import_session(Store(home.path / "own"), str(elsewhere)).path
    with Library(Store(home.path / "own"), cache=None) as library:
        library.catch_up()
        assert sorted(row.path for row in library.list().rows) == sorted([own, copy])
