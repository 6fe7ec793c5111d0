"""Names of sessions: appended, cleaned, and read from the files of pi, xcsh and oh-my-pi."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders import entry, said, user
from sessile import Session, Store, errors
from sessions import append_raw, begun, dumps, header, lines_of, records_of, say, store_at, write_file

pytestmark = pytest.mark.mission("X17")


def slot(title: str, source: str | None = None) -> str:
    """Return the first line of an oh-my-pi file: 256 bytes with its newline."""
    record = {"type": "title", "v": 1, "title": title, "source": source, "updatedAt": "2026-02-16T10:20:30.000Z"}
    record = {name: value for name, value in record.items() if value is not None} | {"pad": ""}
    record["pad"] = " " * (255 - len(dumps(record).encode()))
    return dumps(record)


def opened(tmp_path: Path, *records: dict[str, object] | str) -> Session:
    return store_at(tmp_path / "root").open(write_file(tmp_path / "s.jsonl", *records), readonly=True)


def test_a_name_is_appended_and_in_our_own_root_also_stands_in_the_header(tmp_path: Path) -> None:
    """pi reads the entry, xcsh and oh-my-pi read the header; all other lines keep their bytes."""
    with begun(store_at(tmp_path)) as session:
        say(session, "one")
        before = lines_of(session.path)[1:]
        assert session.set_session_name("My session")
        head, *rest = records_of(session.path)
        assert (head["title"], head["titleSource"]) == ("My session", "user")
        assert (rest[-1]["type"], rest[-1]["name"], rest[-1]["parentId"]) == (
            "session_info",
            "My session",
            rest[0]["id"],
        )
        assert lines_of(session.path)[1:-1] == before
        assert session.title == "My session"
        session.set_session_name("Another")
        assert (session.title, records_of(session.path)[0]["title"]) == ("Another", "Another")
        assert records_of(session.path)[-1]["previousTitle"] == "My session"
    with store_at(tmp_path).open(session.path) as again:
        assert again.title == "Another"


def test_in_a_foreign_file_the_header_stays_as_it_is(tmp_path: Path) -> None:
    """Only the entry is appended."""
    path = write_file(tmp_path / "s.jsonl", header(title="old"), said("a", None))
    before = lines_of(path)
    with store_at(tmp_path / "root").open(path) as session:
        session.set_session_name("new")
        assert session.title == "new"
    assert lines_of(path)[:2] == before
    assert len(lines_of(path)) == 3


@pytest.mark.parametrize("foreign", [False, True])
def test_an_automatic_name_never_replaces_one_that_a_person_gave(tmp_path: Path, foreign: bool) -> None:
    """The user's name stays after reopening, in native and other files."""
    path = write_file(tmp_path / ("s.jsonl" if foreign else "sessions/--x--/t_s1.jsonl"), header(), said("a", None))
    store = store_at(tmp_path)
    with store.open(path) as session:
        assert session.set_session_name("guess", "auto")
        assert (session.title, session.title_source) == ("guess", "auto")
    with store.open(path) as session:
        assert session.title_source == "auto"
        assert session.set_session_name("better guess", "auto")
        assert session.set_session_name("mine")
        assert not session.set_session_name("guess again", "auto")
    with store.open(path) as session:
        assert (session.title, session.title_source) == ("mine", "user")
        assert not session.set_session_name("guess again", "auto")
        assert session.set_session_name("mine too")
        assert session.title == "mine too"


def test_a_name_that_was_given_in_pi_is_a_persons(tmp_path: Path) -> None:
    """pi has no automatic names."""
    path = write_file(tmp_path / "s.jsonl", header(), said("a", None), entry("session_info", "b", "a", name="theirs"))
    with store_at(tmp_path / "root").open(path) as session:
        assert not session.set_session_name("guess", "auto")
        assert session.title == "theirs"


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("  spaced   out  ", "spaced out"),
        ("two\r\nlines", "two lines"),
        ("\x1b[31mred\x07", "[31mred"),
        ("\x80c1\x9f", "c1"),
        ("tab\there", "tab here"),
        ("日本\u2028語", "日本\u2028語"),
    ],
)
def test_control_characters_become_spaces_and_spaces_collapse(tmp_path: Path, given: str, stored: str) -> None:
    """A name must be safe to show on a terminal."""
    with begun(store_at(tmp_path)) as session:
        assert session.set_session_name(given)
        assert session.title == stored
    with begun(store_at(tmp_path), cwd="/other", title=given) as session:
        assert session.title == stored


@pytest.mark.parametrize("name", ["", "   ", "\n\x00\x1b"])
def test_a_name_of_nothing_is_refused(tmp_path: Path, name: str) -> None:
    """An empty name raises, and nothing is written."""
    with begun(store_at(tmp_path)) as session:
        session.set_session_name("kept")
        before = Path(session.path).read_bytes()
        assert not session.set_session_name(name)
        assert Path(session.path).read_bytes() == before


def test_an_empty_session_info_clears_the_name(tmp_path: Path) -> None:
    """As in pi, the last name entry on any branch counts."""
    names = [entry("session_info", "b", "a", name="first"), entry("session_info", "c", None, name="second")]
    with opened(tmp_path, header(), said("a", None), *names) as session:
        assert session.title == "second"
    append_raw(tmp_path / "s.jsonl", entry("session_info", "d", "c", name=""))
    with Store(tmp_path / "root").open(tmp_path / "s.jsonl", readonly=True) as session:
        assert (session.title, session.title_source) == (None, None)
    append_raw(tmp_path / "s.jsonl", entry("session_info", "e", "d"))
    with Store(tmp_path / "root").open(tmp_path / "s.jsonl", readonly=True) as session:
        assert session.title is None


@pytest.mark.mission("X2")
def test_a_title_change_names_the_session(tmp_path: Path) -> None:
    """The entry of oh-my-pi is read with its source."""
    change = entry("title_change", "b", "a", title="new", previousTitle="old", source="auto")
    with opened(tmp_path, header(title="old", titleSource="user"), said("a", None), change) as session:
        assert (session.title, session.title_source) == ("new", "auto")


@pytest.mark.mission("X2")
def test_the_title_slot_of_oh_my_pi_is_read_as_part_of_the_header(tmp_path: Path) -> None:
    """The slot takes precedence over the title in the header, which is the second line."""
    line = slot("from the slot", "user")
    assert len(line.encode()) == 255
    with opened(tmp_path, line, header(title="stale"), said("a", None)) as session:
        assert (session.title, session.title_source) == ("from the slot", "user")
        assert (session.header["id"], session.header["title"]) == ("s1", "from the slot")
        assert session.findings == []
        assert [e.id for e in session.get_entries()] == ["a"]


@pytest.mark.mission("X2")
def test_an_empty_title_slot_takes_the_headers_title_away(tmp_path: Path) -> None:
    """As in oh-my-pi, an empty slot removes the title."""
    with opened(tmp_path, slot(""), header(title="stale", titleSource="auto")) as session:
        assert session.title is None
        assert "title" not in session.header


@pytest.mark.mission("X2")
def test_appending_and_rewriting_keep_the_title_slot_byte_for_byte(tmp_path: Path) -> None:
    """Only oh-my-pi writes the slot."""
    line = slot("slot")
    path = write_file(tmp_path / "s.jsonl", line, header(), said("a", None))
    with store_at(tmp_path / "root").open(path) as session:
        session.append_message(user("b"))
        session.rewrite_entries(lambda e: {**e, "x": 1} if e.id == "a" else None)
        session.set_session_name("newer")
        assert session.title == "newer"
    assert lines_of(path)[0] == line.encode()
    assert json.loads(lines_of(path)[1]) == header()


def test_naming_needs_a_session_open_for_writing(tmp_path: Path) -> None:
    """A read-only session cannot be named."""
    with opened(tmp_path, header()) as session, pytest.raises(errors.ReadOnly):
        session.set_session_name("x")
