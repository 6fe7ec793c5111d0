"""Files that are missing, empty, damaged or not sessions."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from builders import answered, said, user
from faults.failing import Fail, FaultyFilesystem
from sessile import errors
from sessile.discovery import load_entries_from_file
from sessile.storage.filesystem import PosixFilesystem
from sessions import CWD, append_raw, header, lines_of, records_of, say, snapshot, store_at, told, write_file

pytestmark = pytest.mark.mission("X6")

NO_SESSIONS = {
    "text": b"precious notes\n",
    "newline": b"\n",
    "an entry first": b'{"type":"message","id":"a","parentId":null}\n{"type":"session","version":3,"id":"s"}\n',
    "header without id": b'{"type":"session","version":3,"timestamp":"x","cwd":"/"}\n',
    "header with a number": b'{"type":"session","version":3,"id":5}\n',
    "only a slot": b'{"type":"title","v":1,"title":"x"}\n',
    "binary": bytes(range(256)),
    "zeros": bytes(4096),
    "torn header": b'{"type":"session","version":3,"id":"s',
}


@pytest.mark.parametrize("content", [None, b""], ids=["missing", "empty"])
@pytest.mark.parametrize("ours", [True, False])
def test_opening_a_missing_or_empty_path_writes_the_header_at_once(
    tmp_path: Path, content: bytes | None, ours: bool
) -> None:
    """A session opened by path is not a draft."""
    path = tmp_path / ("sessions/--x--/t_s.jsonl" if ours else "new/folder/s.jsonl")
    if content is not None:
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    with store_at(tmp_path).open(path, cwd=CWD) as session:
        head = records_of(path)[0]
        assert (head["type"], head["version"], head["cwd"], head["id"]) == ("session", 3, CWD, session.id)
        assert len(lines_of(path)) == 1
        assert (session.is_draft, session.notices) == (False, [])
        say(session, "one")
    assert len(lines_of(path)) == 2
    with store_at(tmp_path).open(path) as again:
        assert told(again) == ["one"]


def test_two_who_open_a_missing_path_at_once_get_one_session(tmp_path: Path) -> None:
    """Neither overwrites the other."""
    from concurrent.futures import ThreadPoolExecutor

    path = tmp_path / "s.jsonl"

    def work(number: int) -> str:
        with store_at(tmp_path / "root", patience=5).open(path, cwd=CWD) as session:
            say(session, str(number))
            return session.id

    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(work, range(8)))
    assert len(ids) == 1
    assert sorted(r["message"]["content"] for r in records_of(path)[1:]) == [str(n) for n in range(8)]


@pytest.mark.parametrize("content", NO_SESSIONS.values(), ids=NO_SESSIONS)
def test_elsewhere_what_is_no_session_is_refused_and_not_touched(tmp_path: Path, content: bytes) -> None:
    """The file is refused for writing and for reading."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(content)
    before = snapshot(tmp_path)
    store = store_at(tmp_path / "root")
    for readonly in (False, True):
        with pytest.raises(errors.NotASession) as refusal:
            store.open(path, readonly=readonly)
        assert refusal.value.path == str(path)
        assert refusal.value.hint
    assert {k: v for k, v in snapshot(tmp_path).items() if "/root" not in k} == before


@pytest.mark.parametrize("content", NO_SESSIONS.values(), ids=NO_SESSIONS)
def test_below_our_sessions_folder_the_old_bytes_are_moved_aside(tmp_path: Path, content: bytes) -> None:
    """The notice has the new name, which no listing shows, and the path has a new session."""
    path = tmp_path / "sessions" / "--x--" / "t_s.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    store = store_at(tmp_path)
    with store.open(path, cwd=CWD) as session:
        (notice,) = session.notices
        say(session, "begun anew")
    aside = next(p for p in path.parent.iterdir() if p != path)
    assert aside.read_bytes() == content
    assert str(aside) in notice
    assert not aside.name.endswith(".jsonl")
    assert records_of(path)[0]["cwd"] == CWD
    assert [info.path for info in store.list_all()] == [str(path)]


def test_below_our_sessions_folder_reading_moves_nothing(tmp_path: Path) -> None:
    """Only opening for writing replaces the file."""
    path = tmp_path / "sessions" / "--x--" / "t_s.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"precious notes\n")
    before = snapshot(tmp_path)
    with pytest.raises(errors.NotASession):
        store_at(tmp_path).open(path, readonly=True)
    assert snapshot(tmp_path) == before


def test_where_the_file_system_has_no_links_what_the_file_held_is_kept_as_a_copy(tmp_path: Path) -> None:
    """A new session is started, too."""
    path = tmp_path / "sessions" / "--x--" / "t_s.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"precious notes\n")
    fs = FaultyFilesystem(PosixFilesystem(), plan=[Fail(errno.EPERM, on={"link"}, forever=True)])
    with store_at(tmp_path, fs=fs).open(path) as session:
        (aside,) = path.parent.glob("t_s.jsonl.invalid-*")
        assert str(aside) in session.notices[0] and aside.read_bytes() == b"precious notes\n"
        assert records_of(path)[0]["id"] == session.id


@pytest.mark.mission("X14")
def test_the_notice_is_not_lost_when_a_session_switches_to_such_a_file(tmp_path: Path) -> None:
    """The notice has the path of the old bytes."""
    store = store_at(tmp_path)
    path = tmp_path / "sessions" / "--x--" / "t_s.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"precious notes\n")
    with store.create(CWD, publish=True) as session:
        session.set_session_file(str(path))
        assert "t_s.jsonl.invalid-" in session.notices[0]


def test_a_missing_path_opened_for_reading_is_not_found_and_not_created(tmp_path: Path) -> None:
    """Reading never creates a file."""
    with pytest.raises(errors.SessionNotFound):
        store_at(tmp_path / "root").open(tmp_path / "no.jsonl", readonly=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("readonly", [True, False])
def test_unreadable_lines_are_skipped_and_reported_with_their_offsets(tmp_path: Path, readonly: bool) -> None:
    """All readable entries are returned, and the bad lines stay in the file."""
    path = write_file(tmp_path / "s.jsonl", header(), said("a", None), "not json", said("b", "a"), "5", '{"no":"type"}')
    offset = sum(len(line) + 1 for line in lines_of(path)[:2])
    before = Path(path).read_bytes()
    with store_at(tmp_path / "root").open(path, readonly=readonly) as session:
        assert told(session) == ["a", "b"]
        assert [f.code for f in session.findings] == ["not_json", "not_an_entry", "not_an_entry"]
        assert (session.findings[0].offset, session.findings[0].length) == (offset, len("not json"))
        if not readonly:
            session.append_message(user("c"))
    assert Path(path).read_bytes().startswith(before)


def test_garbage_before_the_header_is_passed_over(tmp_path: Path) -> None:
    """The first record is the header, not the first line."""
    path = write_file(tmp_path / "s.jsonl", "garbage", header(), said("a", None))
    with store_at(tmp_path / "root").open(path) as session:
        assert told(session) == ["a"]
        assert session.findings[0].offset == 0


def test_a_torn_last_line_is_reported_and_the_next_append_starts_on_a_new_line(tmp_path: Path) -> None:
    """The next entry is not joined to the torn line."""
    path = write_file(tmp_path / "s.jsonl", header(), said("a", None))
    with open(path, "ab") as file:
        file.write(b'{"type":"message","id":"b","par')
    before = Path(path).read_bytes()
    with store_at(tmp_path / "root").open(path) as session:
        assert [f.code for f in session.findings] == ["torn_tail"]
        assert session.append_message(user("c")).parent_id == "a"
        assert told(session) == ["a", "c"]
    assert Path(path).read_bytes().startswith(before + b"\n")


def test_a_last_line_without_newline_counts(tmp_path: Path) -> None:
    """The line is an entry, and the next one is not joined to it."""
    path = write_file(tmp_path / "s.jsonl", header(), said("a", None))
    Path(path).write_bytes(Path(path).read_bytes().removesuffix(b"\n"))
    with store_at(tmp_path / "root").open(path) as session:
        assert session.append_message(user("b")).parent_id == "a"
    assert len(lines_of(path)) == 3


def test_a_second_header_is_ignored_and_reported(tmp_path: Path) -> None:
    """The first header is used."""
    path = write_file(tmp_path / "s.jsonl", header(), said("a", None), header("s2"), said("b", "a"))
    with store_at(tmp_path / "root").open(path) as session:
        assert (session.id, told(session)) == ("s1", ["a", "b"])
        assert [f.code for f in session.findings] == ["second_header"]


def test_loading_a_file_gives_plain_records_or_nothing(tmp_path: Path) -> None:
    """A missing or invalid file is an empty list; nothing is migrated or changed."""
    assert load_entries_from_file(tmp_path / "no.jsonl") == []
    for number, content in enumerate(NO_SESSIONS.values()):
        (tmp_path / f"{number}.jsonl").write_bytes(content)
        assert load_entries_from_file(tmp_path / f"{number}.jsonl") == []
    path = write_file(tmp_path / "s.jsonl", header(), said("a", None), "garbage", answered("b", "a"))
    before = snapshot(tmp_path)
    assert load_entries_from_file(path) == [header(), said("a", None), answered("b", "a")]
    assert snapshot(tmp_path) == before


def test_a_session_that_loses_its_content_under_us_gets_no_headless_lines(tmp_path: Path) -> None:
    """If another program emptied the file, the append raises and writes nothing."""
    with store_at(tmp_path).create(CWD, publish=True) as session:
        say(session, "one")
        Path(session.path).write_bytes(b"")
        with pytest.raises(errors.SessileError):
            say(session, "two")
        assert Path(session.path).read_bytes() == b""
        with pytest.raises(errors.SessileError):
            session.close()


def test_lines_that_another_program_appends_are_seen(tmp_path: Path) -> None:
    """They are seen without reopening."""
    path = write_file(tmp_path / "s.jsonl", header(), said("a", None))
    with store_at(tmp_path / "root").open(path, readonly=True) as session:
        append_raw(path, said("b", "a"))
        assert [e.id for e in session.get_entries()] == ["a", "b"]
        assert session.leaf_id == "a"
