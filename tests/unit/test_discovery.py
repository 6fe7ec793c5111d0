"""Listing sessions without opening them."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from builders import AT, answered, entry, said, user
from faults.failing import FaultyFilesystem
from sessile import Store, errors
from sessile.discovery import age, find_most_recent_session, get_recent_sessions
from sessile.storage.filesystem import PosixFilesystem
from sessions import (
    CWD,
    FOLDER,
    answer,
    begun,
    header,
    say,
    snapshot,
    store_at,
    write_file,
)

pytestmark = pytest.mark.mission("X22")


def listed(tmp_path: Path, *records: dict[str, Any] | str, full: bool = False) -> Any:
    write_file(tmp_path / "sessions" / FOLDER / "t_s1.jsonl", *records)
    return store_at(tmp_path).list(CWD, full=full)[0]


def test_a_listing_tells_the_documented_facts(tmp_path: Path) -> None:
    """A row has path, id, project, title, parent, times, count, first message and all texts."""
    first = {
        **said("a", None),
        "message": {"role": "user", "content": [{"type": "text", "text": t} for t in ("x", "y")]},
    }
    path = tmp_path / "sessions" / FOLDER / "t_s1.jsonl"
    info = listed(tmp_path, header(title="T", parentSession="/p.jsonl"), first, answered("b", "a"), said("c", None))
    os.utime(path, ns=(0, 1_700_000_000_123_000_000))
    info = store_at(tmp_path).list(CWD)[0]
    assert (info.path, info.id, info.cwd, info.title) == (str(path), "s1", CWD, "T")
    assert info.parent_session_path == "/p.jsonl"
    assert info.created == datetime(2026, 2, 16, 10, 20, 30, tzinfo=UTC)
    assert abs(info.modified.timestamp() - 1_700_000_000.123) < 0.001
    assert (info.message_count, info.first_message, info.all_messages_text) == (3, "x y", "x y b c")
    assert info.size == path.stat().st_size


def test_messages_of_all_roles_and_branches_are_counted(tmp_path: Path) -> None:
    """Only `message` entries are counted; texts are those of users and assistants."""
    result = {"role": "toolResult", "toolCallId": "c", "content": [{"type": "text", "text": "output"}]}
    info = listed(
        tmp_path,
        header(),
        said("a", None),
        entry("message", "t", "a", message=result),
        said("b", "a"),
        entry("label", "l", "a", targetId="a", label="x"),
        entry("custom_message", "m", "l", customType="c", content="x", display=True),
    )
    assert (info.message_count, info.all_messages_text) == (3, "a b")


def test_a_session_without_messages_says_so(tmp_path: Path) -> None:
    """A session without messages is listed."""
    info = listed(tmp_path, header())
    assert (info.first_message, info.message_count, info.title) == ("(no messages)", 0, None)


def test_what_the_first_bytes_cannot_tell_is_unknown_and_not_zero(tmp_path: Path) -> None:
    """A long session is counted only on request."""
    records = [header(), *(said(str(n), str(n - 1) if n else None, "word " * 50) for n in range(40))]
    info = listed(tmp_path, *records)
    assert (info.message_count, info.all_messages_text) == (None, None)
    assert info.first_message.startswith("word word")
    info = listed(tmp_path, *records, full=True)
    assert (info.message_count, len(info.all_messages_text)) == (40, 40 * 249 + 39)


def test_a_first_message_beyond_the_first_bytes_is_unknown(tmp_path: Path) -> None:
    """The first message is unknown, not "(no messages)"."""
    info = listed(tmp_path, header(), entry("custom", "x", None, customType="c", data="d" * 9000), said("a", "x"))
    assert (info.first_message, info.message_count) == (None, None)


def test_a_header_over_4_kb_is_found(tmp_path: Path) -> None:
    """Other programs do not list such a session."""
    info = listed(tmp_path, header(additionalDirectories=["/d" * 5000]), said("a", None))
    assert info.id == "s1"
    assert get_recent_sessions(tmp_path / "sessions" / FOLDER)[0].name in ("a", "s1")
    assert listed(tmp_path, header(pad="x" * 5000), said("a", None), full=True).message_count == 1


def test_titles_come_from_every_place_where_the_family_keeps_them(tmp_path: Path) -> None:
    """A title comes from the header, the slot, a name entry, or the short summary of a compaction."""
    slot = '{"type":"title","v":1,"title":"slot","updatedAt":"","pad":""}'
    compaction = entry("compaction", "c", None, summary="s", shortSummary="short", tokensBefore=1)
    info_entry = entry("session_info", "i", None, name="pi's")
    change = entry("title_change", "t", None, title="omp's", source="user")
    for records, title in (
        ([header(title="head")], "head"),
        ([slot, header(title="head")], "slot"),
        ([header(title="head"), info_entry], "pi's"),
        ([header(), info_entry, change], "omp's"),
        ([header(title="head"), entry("session_info", "i", None, name="")], None),
        ([header(), compaction], "short"),
        ([header(title="head"), compaction], "head"),
        ([header(title=5)], None),
    ):
        assert listed(tmp_path, *records).title == title


def test_a_long_session_that_was_renamed_is_listed_under_its_new_name(tmp_path: Path) -> None:
    """The first bytes have the old name; the header and the end have the new one."""
    store = store_at(tmp_path)
    with begun(store) as session:
        session.set_session_name("old")
        for number in range(30):
            say(session, f"{number} " * 100)
        session.set_session_name("new")
    assert store.list(CWD)[0].title == store.list(CWD, full=True)[0].title == "new"


def test_listings_are_sorted_by_modification_newest_first(tmp_path: Path) -> None:
    """Listings of one project and of all projects are sorted."""
    store = store_at(tmp_path)
    ids = []
    for number, cwd in enumerate((CWD, "/other", CWD)):
        with begun(store, cwd=cwd) as session:
            answer(session, "x")
        os.utime(session.path, (1000 + number, 1000 + number))
        ids.append(session.id)
    assert [info.id for info in store.list(CWD)] == [ids[2], ids[0]]
    assert [info.id for info in store.list_all()] == ids[::-1]
    assert find_most_recent_session(tmp_path / "sessions" / FOLDER) == store.list(CWD)[0].path
    assert [info.id for info in store.list(CWD, str(tmp_path / "sessions" / "--other--"))] == [ids[1]]


def test_projects_that_share_a_folder_are_kept_apart(tmp_path: Path) -> None:
    """`/a-b/c` and `/a/b-c` share one folder; the header decides."""
    store = store_at(tmp_path)
    with begun(store, cwd="/a-b/c") as first, begun(store, cwd="/a/b-c") as second:
        answer(first, "x")
        answer(second, "y")
    assert os.path.dirname(first.path) == os.path.dirname(second.path)
    os.utime(second.path, (2e9, 2e9))
    assert [info.id for info in store.list("/a-b/c")] == [first.id]
    assert [info.id for info in store.list("/a/b-c")] == [second.id]
    with store.continue_recent("/a-b/c") as session:
        assert session.id == first.id


def test_a_session_without_a_cwd_or_of_a_renamed_project_is_listed_where_it_lies(tmp_path: Path) -> None:
    """A session that was moved by hand is still listed."""
    plain = header("s2")
    del plain["cwd"]
    write_file(tmp_path / "sessions" / FOLDER / "t_s1.jsonl", header(cwd="/old/name"), said("a", None))
    write_file(tmp_path / "sessions" / FOLDER / "t_s2.jsonl", plain, said("a", None))
    assert {info.id: info.cwd for info in store_at(tmp_path).list(CWD)} == {"s1": "/old/name", "s2": ""}


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    """Garbage, folders, pipes, links and other JSON files are skipped."""
    folder = tmp_path / "sessions" / FOLDER
    good = write_file(folder / "t_s1.jsonl", header(), said("a", None))
    (folder / "garbage.jsonl").write_bytes(b"\xff\xfe\x00garbage\n" * 10)
    (folder / "empty.jsonl").write_bytes(b"")
    (folder / "other.jsonl").write_text('{"type":"message","id":"a"}\n')
    (folder / "number.jsonl").write_text('{"type":"session","id":5}\n')
    (folder / "folder.jsonl").mkdir()
    (folder / "dangling.jsonl").symlink_to("/nowhere")
    os.mkfifo(folder / "pipe.jsonl")
    store = store_at(tmp_path)
    for full in (False, True):
        assert [info.path for info in store.list(CWD, full=full)] == [good]
        assert [info.path for info in store.list_all(full=full)] == [good]
    assert [recent.path for recent in get_recent_sessions(folder)] == [good]


def test_a_damaged_line_before_or_behind_the_header_does_not_hide_a_session(tmp_path: Path) -> None:
    """The listing shows the same values as the open session."""
    info = listed(tmp_path, "garbage", header(title="T"), "more garbage", said("a", None))
    assert (info.title, info.first_message, info.message_count) == ("T", "a", 1)


def test_listing_nothing_is_an_empty_list(tmp_path: Path) -> None:
    """A missing folder is an empty list, and nothing is created."""
    store = store_at(tmp_path / "root")
    assert (store.list(CWD), store.list_all(), get_recent_sessions(tmp_path / "no")) == ([], [], [])
    assert find_most_recent_session(tmp_path / "no") is None
    assert list(tmp_path.iterdir()) == []


def test_listing_changes_nothing_and_reads_little(tmp_path: Path) -> None:
    """Only a few kilobytes of each file are read, however long it is."""
    records = [header(), *(said(str(n), str(n - 1) if n else None, "x" * 1000) for n in range(1000))]
    write_file(tmp_path / "sessions" / FOLDER / "t_s1.jsonl", *records)
    before = snapshot(tmp_path)
    filesystem = FaultyFilesystem(PosixFilesystem())
    store = Store(tmp_path, fs=filesystem)
    store.list(CWD)
    assert [call.method for call in filesystem.calls].count("read") == 1
    store.list_all(full=True)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("records", "name"),
    [
        ([header(title="The title"), said("a", None)], "The title"),
        ([header(title="two\nlines")], "two"),
        ([header(title="\x1b[1mbold")], "[1mbold"),
        ([header(title="t" * 41)], "t" * 39 + "…"),
        ([header(title="t" * 40)], "t" * 40),
        ([header(), said("a", None, "  asked\nmore")], "asked"),
        ([header(title="  \x00 "), said("a", None, "asked")], "asked"),
        ([header(), answered("a", None)], "s1"),
        ([header()], "s1"),
    ],
)
def test_a_recent_session_has_a_short_name(tmp_path: Path, records: list[dict[str, Any]], name: str) -> None:
    """The name is the title, the first message or the id, in one line of at most 40 characters."""
    write_file(tmp_path / "t_s1.jsonl", *records)
    assert get_recent_sessions(tmp_path)[0].name == name


def test_three_recent_sessions_are_given_unless_told_otherwise(tmp_path: Path) -> None:
    """The default is the three newest sessions with their ages."""
    now = time.time()
    for number in range(5):
        path = write_file(tmp_path / f"t_s{number}.jsonl", header(f"s{number}"))
        os.utime(path, (now - number * 3600 - 5, now - number * 3600 - 5))
    recent = get_recent_sessions(tmp_path)
    assert [r.name for r in recent] == ["s0", "s1", "s2"]
    assert [r.time_ago for r in recent] == ["just now", "1h ago", "2h ago"]
    assert len(get_recent_sessions(tmp_path, limit=10)) == 5


@pytest.mark.parametrize(
    ("ago", "text"),
    [
        (timedelta(seconds=-5), "just now"),
        (timedelta(seconds=59), "just now"),
        (timedelta(minutes=1), "1m ago"),
        (timedelta(minutes=59, seconds=59), "59m ago"),
        (timedelta(hours=1), "1h ago"),
        (timedelta(hours=23, minutes=59), "23h ago"),
        (timedelta(days=1), "1d ago"),
        (timedelta(days=6, hours=23), "6d ago"),
        (timedelta(days=7), "2026-02-09"),
    ],
)
def test_ages_are_told_in_words_up_to_a_week(ago: timedelta, text: str) -> None:
    """After a week the date is shown."""
    now = datetime.fromisoformat(AT)
    assert age(now - ago, now) == text


def test_a_session_is_found_by_its_whole_id_only(tmp_path: Path) -> None:
    """Ids may contain underscores, so the end of a file name is not sufficient."""
    store = store_at(tmp_path)
    with begun(store, session_id="a_b") as long:
        pass
    assert store.find("b") is None
    with begun(store, session_id="b") as short:
        pass
    assert (store.find("b"), store.find("a_b")) == (short.path, long.path)
    with store.open("a_b", readonly=True) as session:
        assert session.id == "a_b"
    with pytest.raises(errors.SessionNotFound):
        store.open("c")


def test_a_user_message_is_text_wherever_it_stands(tmp_path: Path) -> None:
    """Empty and invalid contents are skipped."""
    contents: list[Any] = ["", "  ", [], None, [5]]
    messages: list[Any] = [{"role": "user", "content": content} for content in contents]
    records = [entry("message", str(n), None, message=message) for n, message in enumerate([*messages, 5, user("hi")])]
    info = listed(tmp_path, header(), *records)
    assert (info.first_message, info.message_count) == ("hi", 7)
