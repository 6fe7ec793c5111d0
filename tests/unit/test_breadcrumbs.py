"""The breadcrumb of a terminal, and which session is continued."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builders import said
from faults.failing import Fail, FaultyFilesystem
from sessile import Store
from sessile.storage.filesystem import PosixFilesystem
from sessions import CWD, answer, begun, header, say, snapshot, store_at, told, write_file

pytestmark = pytest.mark.mission("X4")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_at(tmp_path, terminal="pts-3")


def crumb(store: Store) -> Path:
    return Path(store.layout.root, "terminal-sessions", "pts-3")


def two_sessions(store: Store) -> tuple[str, str]:
    """Create an older and a newer session of one project, both closed; the terminal last used the newer one."""
    paths = []
    for age in (200, 100):
        with begun(store) as session:
            answer(session, str(age))
        os.utime(session.path, (1e9 - age, 1e9 - age))
        paths.append(session.path)
    return paths[0], paths[1]


def test_a_breadcrumb_is_two_lines_project_and_file(store: Store) -> None:
    """It is written when a session is created, opened for writing or moved, but not on reading or forking."""
    with begun(store) as first:
        assert crumb(store).read_text() == f"{CWD}\n{first.path}\n"
    with begun(store, cwd="/other") as second:
        assert crumb(store).read_text() == f"/other\n{second.path}\n"
        second.fork().close()
        answer(second, "x")
        second.create_branched_session(second.get_entries()[0].id).close()
    with store.open(first.path, readonly=True):
        pass
    assert crumb(store).read_text() == f"/other\n{second.path}\n"
    with store.open(first.path):
        pass
    assert crumb(store).read_text() == f"{CWD}\n{first.path}\n"


def test_a_new_file_at_a_given_path_leaves_a_breadcrumb_too(store: Store, tmp_path: Path) -> None:
    """Opening a new path for writing leaves a breadcrumb."""
    with store.open(tmp_path / "mine.jsonl", cwd=CWD) as session:
        assert crumb(store).read_text() == f"{CWD}\n{session.path}\n"


def test_continuing_prefers_the_session_of_the_terminal(store: Store) -> None:
    """The terminal's session is continued even if another one is newer."""
    old, _ = two_sessions(store)
    with store.open(old):
        pass
    os.utime(old, (1e9 - 200, 1e9 - 200))
    with store.continue_recent(CWD) as session:
        assert session.path == old


def test_without_a_breadcrumb_the_newest_by_modification_time_is_continued(store: Store) -> None:
    """The name of the file does not decide."""
    old, new = two_sessions(store)
    crumb(store).unlink()
    os.utime(old, (2e9, 2e9))
    with store.continue_recent(CWD) as session:
        assert session.path == old
    os.utime(old, (1e9 - 200, 1e9 - 200))
    os.utime(new, (2e9, 2e9))
    with store_at(store.layout.root).continue_recent(CWD) as session:
        assert session.path == new


def test_without_any_session_a_new_one_is_made(store: Store) -> None:
    """The new session is a draft."""
    with store.continue_recent(CWD) as session:
        assert (session.is_draft, session.cwd) == (True, CWD)


@pytest.mark.parametrize(
    "content", ["", "\n", "only one line", "/work/app\n", "/elsewhere\n{new}\n", "/work/app\n/gone.jsonl\n"]
)
def test_a_breadcrumb_that_leads_nowhere_is_passed_over(store: Store, content: str) -> None:
    """An empty, torn or foreign breadcrumb, or one to a missing file, is ignored."""
    old, new = two_sessions(store)
    os.utime(old, (2e9, 2e9))
    crumb(store).write_text(content.replace("{new}", new))
    with store.continue_recent(CWD) as session:
        assert session.path == old


def test_a_breadcrumb_to_what_is_no_session_is_passed_over(store: Store, tmp_path: Path) -> None:
    """Continuing never opens a file that is not a session."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text("precious notes\n")
    crumb(store).parent.mkdir()
    crumb(store).write_text(f"{CWD}\n{bad}\n")
    with store.continue_recent(CWD) as session:
        assert session.path != str(bad)
    assert bad.read_text() == "precious notes\n"


def test_a_breadcrumb_may_lead_to_a_file_outside_the_store(store: Store, tmp_path: Path) -> None:
    """A session that was opened outside the store is continued there."""
    path = write_file(tmp_path / "there" / "s.jsonl", header(), said("a", None))
    with store.open(path):
        pass
    with begun(store_at(tmp_path)) as other:
        say(other, "newer")
    with store.continue_recent(CWD) as session:
        assert (session.path, told(session)) == (path, ["a"])


def test_the_project_of_a_breadcrumb_is_compared_as_a_path(store: Store) -> None:
    """A trailing slash and the additional lines of oh-my-pi are ignored."""
    old, _ = two_sessions(store)
    crumb(store).write_text(f"{CWD}/\n{old}\nfresh\ncwdstat 1 2\n")
    with store.continue_recent(CWD) as session:
        assert session.path == old


def test_two_terminals_have_two_sessions(tmp_path: Path) -> None:
    """Two terminals in one project continue different sessions."""
    one, two = store_at(tmp_path, terminal="a"), store_at(tmp_path, terminal="b")
    with begun(one) as first, begun(store_at(tmp_path, random=os.urandom, terminal="b")) as second:
        answer(first, "x")
        answer(second, "y")
    for store, session in ((one, first), (two, second), (one, first)):
        with store.continue_recent(CWD) as again:
            assert again.id == session.id


def test_without_a_terminal_nothing_is_written(tmp_path: Path) -> None:
    """Pipes and services have no terminal."""
    with begun(store_at(tmp_path)):
        assert not (tmp_path / "terminal-sessions").exists()


def test_a_breadcrumb_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The error is logged, and the session is opened."""
    with begun(store_at(tmp_path)) as session:
        say(session, "one")
    filesystem = FaultyFilesystem(PosixFilesystem(), plan=[Fail(28, on={"mkdir"})])
    with store_at(tmp_path, terminal="pts-3", fs=filesystem).open(session.path) as again:
        assert told(again) == ["one"]
    assert "breadcrumb" in caplog.text


def test_reading_leaves_no_breadcrumb(store: Store, tmp_path: Path) -> None:
    """Neither reading nor listing writes a breadcrumb."""
    with begun(store) as session:
        answer(session, "x")
    before = snapshot(tmp_path)
    with store.open(session.id, readonly=True):
        store.list(CWD)
        store.list_all()
    assert snapshot(tmp_path) == before
