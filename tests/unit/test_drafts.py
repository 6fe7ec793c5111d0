"""Drafts: sessions before the first assistant message, which other agents do not see; we list, find and recover them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builders import assistant, user
from sessile import Session, Store, errors
from sessile.discovery import find_most_recent_session, get_recent_sessions
from sessile.storage.drafts import published_path
from sessions import (
    CWD,
    FOLDER,
    answer,
    begun,
    lines_of,
    other_store_at,
    records_of,
    say,
    snapshot,
    store_at,
    told,
    write_file,
)

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


def told_in(store: Store, path: str) -> list[str]:
    with store.open(path, readonly=True) as session:
        return told(session)


def test_no_other_agent_sees_a_session_before_an_assistant_answers(tmp_path: Path) -> None:
    """No file in the folder ends in .jsonl, because agents of the pi family list every such name."""
    with store_at(tmp_path, terminal="t").create(CWD) as session:
        say(session, "question")
        session.append_model_change("p/m")
        assert session.is_draft
        assert session_files(tmp_path) == []
        # Breadcrumbs are shared with the family: they name the file only once it is published.
        crumb = (tmp_path / "terminal-sessions" / "t").read_text()
        assert crumb == f"{CWD}\n{published_path(session.path)}\n"


def test_our_listings_show_a_draft_and_mark_it(tmp_path: Path) -> None:
    """Whether its writer lives or not; the mark goes with the first answer."""
    store = store_at(tmp_path)
    folder = tmp_path / "sessions" / FOLDER
    with store.create(CWD) as session:
        say(session, "question")
        for lister in (store, other_store_at(tmp_path)):
            for infos in (lister.list(CWD), lister.list_all(), lister.list("/x", str(folder))):
                assert [(i.id, i.path, i.draft, i.first_message) for i in infos] == [
                    (session.id, session.path, True, "question")
                ]
            assert lister.find(session.id) == session.path
        assert [(r.path, r.name, r.draft) for r in get_recent_sessions(folder)] == [(session.path, "question", True)]
        answer(session, "answer")
        assert [(i.path, i.draft) for i in store.list_all()] == [(session.path, False)]


def test_a_draft_without_entries_is_found_but_not_listed(tmp_path: Path) -> None:
    """Closing it removes it, so a list of sessions to continue has no use for it; its id is taken."""
    store = store_at(tmp_path)
    with store.create(CWD) as session:
        assert store.list(CWD) == store.list_all() == []
        assert store.find(session.id) == session.path
        with pytest.raises(errors.SessionExists):
            other_store_at(tmp_path).create("/elsewhere", session_id=session.id)


def test_the_newest_session_is_one_that_can_be_continued(tmp_path: Path) -> None:
    """A draft is offered when its writer is gone, not while another process writes it."""
    folder = tmp_path / "sessions" / FOLDER
    with store_at(tmp_path).create(CWD) as session:
        say(session, "question")
        assert find_most_recent_session(folder) is None
    assert find_most_recent_session(folder) == session.path


def test_the_path_names_a_file_at_all_times(tmp_path: Path) -> None:
    """So do receipts, the artifacts' name, and a reader that has the session open while it is published."""
    store = store_at(tmp_path)
    with store.create(CWD) as session:
        draft = session.path
        artifacts = session.artifacts
        receipt = session.append_message(user("question"))
        assert (receipt.path, os.path.isfile(draft)) == (draft, True)
        with other_store_at(tmp_path).open(session.id, readonly=True) as reader:
            assert (reader.path, reader.is_draft) == (draft, True)
            answer(session, "answer")
            assert len(reader.get_entries()) == 2
            assert (reader.path, reader.is_draft) == (session.path, False)
        assert (os.path.isfile(session.path), os.path.exists(draft)) == (True, False)
        assert (session.artifacts, session.path) == (artifacts, published_path(draft))


@pytest.mark.parametrize("name", ["id", "draft", "published"])
@pytest.mark.parametrize("state", ["written", "left", "published"])
def test_a_draft_is_opened_by_id_and_by_both_of_its_paths(tmp_path: Path, name: str, state: str) -> None:
    """Before and after it is published; reading changes nothing, and only writing needs its lock."""
    session = store_at(tmp_path).create(CWD)
    say(session, "question")
    names = {"id": session.id, "draft": session.path, "published": published_path(session.path)}
    if state == "left":
        session._journal.close()
    elif state == "published":
        answer(session, "answer")
        session.close()
    store = other_store_at(tmp_path)
    before = snapshot(tmp_path)
    with store.open(names[name], readonly=True) as reader:
        assert (reader.id, told(reader)[0], reader.is_draft) == (session.id, "question", state != "published")
        assert os.path.isfile(reader.path)
    assert snapshot(tmp_path) == before
    if state == "written":
        with pytest.raises(errors.SessionBusy, match=f"process {os.getpid()}") as busy:
            store.open(names[name])
        assert "open it for reading" in str(busy.value.hint)
        assert snapshot(tmp_path) == before
        return
    with store.open(names[name]) as found:
        assert (found.id, found.path, found.is_draft) == (session.id, names["published"], False)
        assert len(found.notices) == (state == "left")
        say(found, "more")
        assert told(found)[-1] == "more"
    assert session_files(tmp_path) == [names["published"]]


def test_a_draft_beside_a_file_of_its_final_name_replaces_nothing(tmp_path: Path) -> None:
    """That can come from a restored backup: both stay, the id means the published one, and the draft can be read."""
    draft = abandoned(tmp_path, "in the draft")
    path = published_path(draft)
    write_file(path, *records_of(draft)[:1], {**records_of(draft)[1], "message": user("restored")})
    store = other_store_at(tmp_path)
    assert {info.path for info in store.list_all()} == {draft, path}
    session_id = store.list_all()[0].id
    with store.open(session_id) as session:
        assert (session.path, told(session)) == (path, ["restored"])
    with store.open(draft, readonly=True) as session:
        assert told(session) == ["in the draft"]
    with pytest.raises(errors.SessionExists):
        store.open(draft)
    assert told_in(store, draft) == ["in the draft"]


def test_opening_a_missing_draft_creates_nothing(tmp_path: Path) -> None:
    """A session is created under its final name, or as a draft by `create`."""
    store = store_at(tmp_path)
    folder = tmp_path / "sessions" / FOLDER
    for readonly in (True, False):
        with pytest.raises(errors.SessionNotFound):
            store.open(folder / "t_nobody.draft", readonly=readonly)
    assert not folder.exists()


@pytest.mark.mission("X16")
def test_the_first_answer_publishes_the_whole_session(tmp_path: Path) -> None:
    """It gets its final name, with every entry; later ones are appended to the same file."""
    store = store_at(tmp_path)
    with store.create(CWD) as session:
        path = published_path(session.path)
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
        assert (session.path, told(session)) == (published_path(path), ["first", "second"])
        assert not session.is_draft
        answer(session, "at last")


def test_creating_a_session_in_that_project_recovers_a_draft_as_well(tmp_path: Path) -> None:
    """The old one is listed from then on; the new one is separate."""
    path = abandoned(tmp_path, "pending")
    store = other_store_at(tmp_path)
    with store.create(CWD) as new:
        say(new, "another")
        found = {info.path: info.draft for info in store.list(CWD)}
        assert found == {published_path(path): False, new.path: True}


def test_opening_the_path_that_a_receipt_named_recovers_its_draft(tmp_path: Path) -> None:
    """A new session at that path would hide acknowledged entries."""
    path = abandoned(tmp_path, "pending")
    with other_store_at(tmp_path).open(path) as session:
        assert told(session) == ["pending"]
    assert session_files(tmp_path) == [published_path(path)]


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


def test_settings_alone_are_kept_but_no_reason_to_publish_a_session(tmp_path: Path) -> None:
    """Every start of an agent writes settings; without a message the draft stays one until somebody opens it."""
    store = store_at(tmp_path)
    with store.create(CWD) as session:
        session.append_model_change("p/m")
    with store.continue_recent(CWD) as again:
        assert again.id != session.id
    assert [(info.path, info.draft) for info in store.list(CWD)] == [(session.path, True)]
    assert [str(path) for path in (tmp_path / "sessions" / FOLDER).iterdir()] == [session.path]


def test_listing_recovers_nothing(tmp_path: Path) -> None:
    """Reading never writes."""
    path = abandoned(tmp_path, "pending")
    before = snapshot(tmp_path)
    store = other_store_at(tmp_path)
    assert [info.path for info in store.list(CWD)] == [info.path for info in store.list_all()] == [path]
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
