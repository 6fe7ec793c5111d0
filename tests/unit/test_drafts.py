"""Drafts: sessions before the first assistant message, hidden from listings and safe from crashes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builders import assistant, user
from sessile import Session, errors
from sessile.discovery import find_most_recent_session, get_recent_sessions
from sessions import CWD, FOLDER, answer, begun, lines_of, other_store_at, say, snapshot, store_at, told

pytestmark = pytest.mark.mission("X15")


def session_files(root: Path) -> list[str]:
    return sorted(str(path) for path in root.rglob("*.jsonl"))


def abandoned(root: Path, *texts: str) -> str:
    """Return the path of a session whose process died before an answer: only descriptor and lock are gone."""
    session = store_at(root).create(CWD)
    for text in texts:
        say(session, text)
    session._journal.close()
    return session.path


def test_no_listing_shows_a_session_before_an_assistant_answers(tmp_path: Path) -> None:
    """No file in the folder ends in .jsonl, because agents of the pi family list every such name."""
    store = store_at(tmp_path)
    with store.create(CWD) as session:
        say(session, "question")
        session.append_model_change("p/m")
        assert session.is_draft
        assert session_files(tmp_path) == []
        assert store.list(CWD) == store.list_all() == []
        folder = tmp_path / "sessions" / FOLDER
        assert get_recent_sessions(folder) == []
        assert find_most_recent_session(folder) is None
        assert store.find(session.id) is None


@pytest.mark.mission("X16")
def test_the_first_answer_publishes_the_whole_session(tmp_path: Path) -> None:
    """It has the path that receipts named, with every entry; later ones are appended to the same file."""
    store = store_at(tmp_path)
    with store.create(CWD) as session:
        path = session.path
        say(session, "question")
        answer(session, "answer")
        assert not session.is_draft
        assert session_files(tmp_path) == [path] == [session.path]
        published = Path(path).read_bytes()
        inode = os.stat(path).st_ino
        assert len(lines_of(path)) == 3
        say(session, "more")
        assert Path(path).read_bytes().startswith(published)
        assert os.stat(path).st_ino == inode
        assert [info.id for info in store.list(CWD)] == [session.id]


@pytest.mark.mission("X16")
def test_an_answer_in_a_batch_publishes_too(tmp_path: Path) -> None:
    """The answer may be any entry of the batch."""
    with store_at(tmp_path).create(CWD) as session:
        session.append_many([{"type": "message", "message": m} for m in (user("q"), assistant("a"), user("q"))])
        assert len(lines_of(session.path)) == 4


def test_publishing_at_once_is_a_choice(tmp_path: Path) -> None:
    """Gateways, adapters and imports do so: by an argument, or later by a method."""
    store = store_at(tmp_path)
    with begun(store) as session:
        assert (session.is_draft, os.path.exists(session.path)) == (False, True)
    with store.create("/work/later") as session:
        say(session, "question")
        session.publish()
        assert (session.is_draft, len(lines_of(session.path))) == (False, 2)
        session.publish()


def test_a_crash_before_the_answer_loses_nothing(tmp_path: Path) -> None:
    """Continuing in that project finds the question."""
    path = abandoned(tmp_path, "first", "second")
    assert session_files(tmp_path) == []
    with other_store_at(tmp_path).continue_recent(CWD) as session:
        assert (session.path, told(session)) == (path, ["first", "second"])
        assert not session.is_draft
        answer(session, "at last")


def test_creating_a_session_in_that_project_recovers_a_draft_as_well(tmp_path: Path) -> None:
    """The old one is listed from then on; the new one is separate."""
    path = abandoned(tmp_path, "pending")
    store = other_store_at(tmp_path)
    with store.create(CWD) as new:
        assert new.path != path
        assert [info.path for info in store.list(CWD)] == [path]


def test_opening_the_path_that_a_receipt_named_recovers_its_draft(tmp_path: Path) -> None:
    """A new session at that path would hide acknowledged entries."""
    path = abandoned(tmp_path, "pending")
    with other_store_at(tmp_path).open(path) as session:
        assert told(session) == ["pending"]
    assert session_files(tmp_path) == [path]


def test_a_draft_whose_owner_lives_is_left_alone(tmp_path: Path) -> None:
    """Its lock is held; opening its path does not wait and overwrites nothing."""
    with store_at(tmp_path).create(CWD) as session:
        say(session, "mine")
        with other_store_at(tmp_path).continue_recent(CWD) as other:
            assert other.id != session.id
        with pytest.raises(errors.SessionBusy):
            other_store_at(tmp_path).open(session.path)
        assert session_files(tmp_path) == []
        answer(session, "yes")
        assert told(session) == ["mine", "yes"]
    assert [path.split("_")[-1] for path in session_files(tmp_path)] == [f"{session.id}.jsonl"]


def test_a_draft_can_be_read_by_its_path_while_it_is_one(tmp_path: Path) -> None:
    """Reading takes no lock and changes nothing."""
    with store_at(tmp_path).create(CWD) as session:
        say(session, "mine")
        before = snapshot(tmp_path)
        with other_store_at(tmp_path).open(session.path, readonly=True) as reader:
            assert (reader.path, told(reader)) == (session.path, ["mine"])
        assert snapshot(tmp_path) == before


def test_a_closed_draft_is_recovered_like_a_lost_one(tmp_path: Path) -> None:
    """Closing without an answer keeps the question."""
    store = store_at(tmp_path)
    with store.create(CWD) as session:
        say(session, "question")
    with store.continue_recent(CWD) as again:
        assert (again.id, told(again)) == (session.id, ["question"])


def test_an_empty_draft_leaves_nothing_behind(tmp_path: Path) -> None:
    """A draft with nothing but a header is removed."""
    with store_at(tmp_path).create(CWD):
        pass
    assert list((tmp_path / "sessions" / FOLDER).iterdir()) == []


def test_settings_alone_are_kept_but_no_reason_to_list_a_session(tmp_path: Path) -> None:
    """Every start of an agent writes settings; without a message the draft is not published."""
    store = store_at(tmp_path)
    with store.create(CWD) as session:
        session.append_model_change("p/m")
    with store.continue_recent(CWD) as again:
        assert again.id != session.id
    assert store.list(CWD) == []
    assert [path.name for path in (tmp_path / "sessions" / FOLDER).iterdir()] == [
        os.path.basename(session.path).replace(".jsonl", ".draft")
    ]


def test_listing_recovers_nothing(tmp_path: Path) -> None:
    """Reading never writes."""
    abandoned(tmp_path, "pending")
    before = snapshot(tmp_path)
    store = other_store_at(tmp_path)
    assert store.list(CWD) == store.list_all() == []
    assert snapshot(tmp_path) == before


def test_names_labels_and_rewrites_work_on_a_draft_and_keep_its_lock(tmp_path: Path) -> None:
    """A rewritten file is a new file, and it is locked, too."""
    with store_at(tmp_path).create(CWD) as session:
        first = say(session, "question")
        session.set_session_name("named")
        session.append_label_change(first, "here")
        session.rewrite_entries(lambda entry: {**entry, "extra": 1} if entry.id == first else None)
        with other_store_at(tmp_path).continue_recent(CWD):
            pass
        assert session_files(tmp_path) == []
        answer(session, "answer")
        assert (session.title, session.get_label(first)) == ("named", "here")
    assert len(session_files(tmp_path)) == 1


def test_an_in_memory_session_is_never_a_draft() -> None:
    """There is no listing to hide it from."""
    assert not Session.in_memory().is_draft
