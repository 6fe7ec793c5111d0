"""Forks, branched sessions and moves keep the whole history and all files of a session."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from builders import entry, said, user
from faults.failing import Fail, FaultyFilesystem
from sessile import BlobStore, Session, Store, errors
from sessile.storage.filesystem import PosixFilesystem
from sessions import (
    CWD,
    FOLDER,
    answer,
    append_raw,
    begun,
    header,
    lines_of,
    other_store_at,
    records_of,
    say,
    snapshot,
    store_at,
    told,
    write_file,
)

pytestmark = pytest.mark.mission("X11")

IMAGE = {"type": "image", "mimeType": "image/png", "data": "QUJD" * 400}


def spill(session: Session) -> None:
    """Write artifacts as tools and sub-agents do."""
    folder = Path(session.artifacts)
    (folder / "deep").mkdir(parents=True)
    (folder / "0.bash.log").write_bytes(b"output\n")
    (folder / "deep" / "agent.jsonl").write_bytes(b'{"type":"session"}\n')


def artifacts(folder: str) -> dict[str, bytes]:
    base = Path(folder)
    return {str(p.relative_to(base)): p.read_bytes() for p in base.rglob("*") if p.is_file()}


def two_branches(store: Store) -> tuple[Session, list[str]]:
    session = begun(store)
    ids = [say(session, "one"), answer(session, "two")]
    session.branch(ids[0])
    ids.append(say(session, "three"))
    session.set_session_name("named")
    return session, ids


@pytest.mark.mission("X14")
def test_a_fork_holds_all_branches_byte_for_byte_under_a_new_id(tmp_path: Path) -> None:
    """The header names the source, and the source is only read."""
    session, _ = two_branches(store_at(tmp_path))
    before = Path(session.path).read_bytes()
    with session.fork() as fork:
        head = records_of(fork.path)[0]
        assert lines_of(fork.path)[1:] == lines_of(session.path)[1:]
        assert (head["version"], head["cwd"], head["parentSession"]) == (3, CWD, session.path)
        assert (head["title"], head["titleSource"]) == ("named", "user")
        assert fork.id == head["id"] != session.id
        assert os.path.dirname(fork.path) == os.path.dirname(session.path)
        assert (fork.leaf_id, told(fork)) == (session.leaf_id, ["one", "three"])
        say(fork, "only in the fork")
    assert Path(session.path).read_bytes() == before
    session.close()


def test_a_fork_is_published_even_if_its_source_is_a_draft(tmp_path: Path) -> None:
    """A fork of a draft is not a draft."""
    store = store_at(tmp_path)
    with store.create(CWD) as draft:
        say(draft, "question")
        with draft.fork() as fork:
            assert told(fork) == ["question"]
            assert {info.id: info.draft for info in store.list(CWD)} == {draft.id: True, fork.id: False}
            assert fork.header["parentSession"] == draft.path.replace(".draft", ".jsonl")


@pytest.mark.mission("X24")
def test_a_fork_has_copies_of_the_artifacts(tmp_path: Path) -> None:
    """Changing a copy does not change the original; links are not followed."""
    with begun(store_at(tmp_path)) as session:
        say(session, "one")
        spill(session)
        os.symlink("/etc/passwd", f"{session.artifacts}/link")
        with session.fork() as fork:
            assert artifacts(fork.artifacts) == {"0.bash.log": b"output\n", "deep/agent.jsonl": b'{"type":"session"}\n'}
            Path(fork.artifacts, "0.bash.log").write_bytes(b"changed")
            assert Path(session.artifacts, "0.bash.log").read_bytes() == b"output\n"


def test_unknown_members_of_the_header_pass_into_a_fork(tmp_path: Path) -> None:
    """The list of earlier files of the source is not copied."""
    source = header(additionalDirectories=["/data"], previousSessionFiles=["/old.jsonl"], future={"a": 1})
    path = write_file(tmp_path / "s.jsonl", source, said("a", None))
    with store_at(tmp_path / "root").fork_from(path, CWD) as fork:
        head = records_of(fork.path)[0]
        assert (head["additionalDirectories"], head["future"]) == (["/data"], {"a": 1})
        assert "previousSessionFiles" not in head


def test_forking_from_another_root_brings_blobs_and_artifacts_along(tmp_path: Path) -> None:
    """The fork can be in another project, and the source keeps its content and times."""
    theirs = store_at(tmp_path / "theirs")
    with begun(theirs) as source:
        say(source, "one")
        source.append_message({"role": "user", "content": [IMAGE]})
        long = source.append_custom_entry("x", {"text": "ü" * 600_000}).id
        spill(source)
    before = snapshot(tmp_path / "theirs")
    ours = other_store_at(tmp_path / "ours")
    with ours.fork_from(source.path, "/our/project") as fork:
        assert snapshot(tmp_path / "theirs") == before
        assert (fork.cwd, fork.header["parentSession"]) == ("/our/project", source.path)
        assert os.path.dirname(fork.path) == f"{tmp_path}/ours/sessions/--our-project--"
        assert artifacts(fork.artifacts) == artifacts(source.artifacts)
        assert lines_of(fork.path)[1:] == lines_of(source.path)[1:]
    for blob in (tmp_path / "theirs" / "blobs").iterdir():
        blob.unlink()
    with ours.open(fork.path, readonly=True) as fork:
        assert fork.context().messages[1]["content"][0] == IMAGE
        assert fork.get_full_entry(long)["data"]["text"] == "ü" * 600_000
        assert fork.findings == []


def test_a_session_of_another_root_is_read_with_the_blobs_of_that_root(tmp_path: Path) -> None:
    """A session opened in place reads blobs of its own root, and makes none."""
    theirs = store_at(tmp_path / "theirs")
    with begun(theirs) as source:
        source.append_message({"role": "user", "content": [IMAGE]})
    with store_at(tmp_path / "ours").open(source.path, in_place=True) as session:
        assert session.context().messages[0]["content"][0] == IMAGE
        other = {**IMAGE, "data": "REVG" * 400}
        session.append_message({"role": "user", "content": [other]})
    assert len(list((tmp_path / "theirs" / "blobs").iterdir())) == 1
    with theirs.open(source.path, readonly=True) as session:
        assert session.context().messages[1]["content"][0] == other


def test_forking_from_what_is_no_session_makes_none(tmp_path: Path) -> None:
    """A missing or invalid source raises; xcsh would create an empty session."""
    store = store_at(tmp_path / "root")
    with pytest.raises(errors.SessionNotFound):
        store.fork_from(tmp_path / "missing.jsonl", CWD)
    bad = tmp_path / "bad.jsonl"
    bad.write_text("no\n")
    with pytest.raises(errors.NotASession):
        store.fork_from(bad, CWD)
    assert store.list_all() == []


@pytest.mark.mission("X5")
def test_forking_an_old_version_gives_a_new_one_and_leaves_the_source(tmp_path: Path) -> None:
    """The copy is migrated, and the source is unchanged."""
    old = header()
    del old["version"]
    path = write_file(tmp_path / "s.jsonl", old, {"type": "message", "message": user("one")})
    before = snapshot(tmp_path)
    with store_at(tmp_path / "root").fork_from(path, CWD) as fork:
        assert records_of(fork.path)[0]["version"] == 3
        assert told(fork) == ["one"]
    assert {name: state for name, state in snapshot(tmp_path).items() if name == path} == {path: before[path]}


# -- branches


def test_a_branched_session_holds_the_path_and_nothing_else(tmp_path: Path) -> None:
    """The new file has only the path, and is written at once."""
    store = store_at(tmp_path)
    session, (one, two, three) = two_branches(store)
    with session.create_branched_session(two) as branched:
        assert [e.id for e in branched.get_entries()] == [one, two]
        assert lines_of(branched.path)[1:] == lines_of(session.path)[1:3]
        head = records_of(branched.path)[0]
        assert (head["parentSession"], head["cwd"], head["title"]) == (session.path, CWD, "named")
        assert branched.leaf_id == two
    assert session.leaf_id != two
    assert three in [e.id for e in session.get_entries()]
    with pytest.raises(errors.EntryNotFound):
        session.create_branched_session("nobody")
    session.close()


def test_labels_on_the_path_do_not_cut_the_history(tmp_path: Path) -> None:
    """Entries before a label are kept; other programs have a known bug here."""
    with begun(store_at(tmp_path)) as session:
        one = say(session, "one")
        session.append_label_change(one, "start")
        two = say(session, "two")
        session.append_label_change(two, "gone")
        session.append_label_change(two, None)
        three = say(session, "three")
        session.branch(one)
        aside = say(session, "aside")
        session.append_label_change(aside, "off the path")
        with session.create_branched_session(three) as branched:
            assert told(branched) == ["one", "two", "three"]
            assert [e.type for e in branched.get_entries()] == ["message"] * 3 + ["label"]
            assert (branched.get_label(one), branched.get_label(two)) == ("start", None)
            *_, last, label = branched.get_entries()
            assert (last.id, label["targetId"], label["parentId"]) == (three, one, three)


def test_a_compaction_that_keeps_from_a_label_keeps_from_the_next_entry(tmp_path: Path) -> None:
    """The label is omitted, and the kept range stays the same."""
    with begun(store_at(tmp_path)) as session:
        one = say(session, "one")
        label = session.append_label_change(one, "x").id
        two = say(session, "two")
        compaction = session.append_compaction("sum", label, 5).id
        assert told(session) == ["sum", "two"]
        with session.create_branched_session(compaction) as branched:
            assert told(branched) == ["sum", "two"]
            entry = branched.get_entry(compaction)
            assert entry is not None
            assert entry["firstKeptEntryId"] == two


def test_a_compaction_of_pi_that_keeps_from_a_leaf_marker_keeps_from_the_next_entry(tmp_path: Path) -> None:
    """pi treats our marker as a custom entry and may cut there."""
    with begun(store_at(tmp_path)) as session:
        one = say(session, "one")
        say(session, "aside")
        session.branch(one, durable=True)
        marker = records_of(session.path)[-1]["id"]
        cut = entry("compaction", "cut", "two", summary="sum", firstKeptEntryId=marker, tokensBefore=5)
        append_raw(session.path, said("two", marker), cut)
    with other_store_at(tmp_path).open(session.path) as session:
        assert told(session) == ["sum", "two"]
        with session.create_branched_session("cut") as branched:
            assert told(branched) == ["sum", "two"]
            assert [e.parent_id for e in branched.get_entries()] == [None, one, "two"]


def test_unknown_members_survive_chaining_anew(tmp_path: Path) -> None:
    """An entry whose parent was a label gets a new parent and keeps all other members."""
    odd = {**said("b", "l"), "future": {"x": [1, None]}}
    path = write_file(
        tmp_path / "s.jsonl", header(), said("a", None), entry("label", "l", "a", targetId="a", label="x"), odd
    )
    with (
        store_at(tmp_path / "root").open(path, readonly=True) as session,
        session.create_branched_session("b") as branched,
    ):
        assert records_of(branched.path)[2] == {**odd, "parentId": "a"}


# -- moves


@pytest.mark.mission("X24")
def test_moving_takes_file_artifacts_and_breadcrumb_along(tmp_path: Path) -> None:
    """The session continues at its new path, and all other lines keep their bytes."""
    store = store_at(tmp_path, terminal="pts-3")
    with begun(store) as session:
        leaf = say(session, "one")
        spill(session)
        old, kept = session.path, artifacts(session.artifacts)
        before = lines_of(old)[1:]
        session.move_to("/other/place")
        assert session.path == f"{tmp_path}/sessions/--other-place--/{os.path.basename(old)}"
        assert (os.path.exists(old), os.path.exists(old.removesuffix(".jsonl"))) == (False, False)
        assert artifacts(session.artifacts) == kept
        head = records_of(session.path)[0]
        assert (head["cwd"], head["previousSessionFiles"], session.cwd) == ("/other/place", [old], "/other/place")
        assert lines_of(session.path)[1:] == before
        assert session.append_message(user("two")).parent_id == leaf
        crumb = (tmp_path / "terminal-sessions" / "pts-3").read_text()
        assert crumb == f"/other/place\n{session.path}\n"
    assert [info.path for info in store.list("/other/place")] == [session.path]
    assert store.list(CWD) == []
    with store.continue_recent("/other/place") as again:
        assert told(again) == ["one", "two"]


def test_moving_to_the_same_place_changes_nothing(tmp_path: Path) -> None:
    """Even the time of the file stays the same."""
    with begun(store_at(tmp_path)) as session:
        before = snapshot(tmp_path)
        session.move_to(CWD)
        assert snapshot(tmp_path) == before


def test_a_draft_moves_as_a_draft(tmp_path: Path) -> None:
    """The draft is published in its new place."""
    store = store_at(tmp_path)
    with store.create(CWD) as session:
        say(session, "question")
        session.move_to("/other")
        assert [(info.path, info.cwd, info.draft) for info in store.list_all()] == [(session.path, "/other", True)]
        answer(session, "answer")
        assert os.path.dirname(session.path).endswith("--other--")
        assert "previousSessionFiles" not in session.header
    assert list((tmp_path / "sessions" / FOLDER).iterdir()) == []


@pytest.mark.parametrize("taken", ["file", "artifact"])
def test_a_move_to_a_place_that_is_taken_changes_nothing(tmp_path: Path, taken: str) -> None:
    """The move can be repeated when the place is free."""
    with begun(store_at(tmp_path)) as session:
        say(session, "one")
        spill(session)
        target = tmp_path / "sessions" / "--other--" / os.path.basename(session.path)
        target = target if taken == "file" else target.with_suffix("") / "0.bash.log"
        target.parent.mkdir(parents=True)
        target.write_text("taken")
        before = snapshot(tmp_path)
        with pytest.raises(errors.SessionExists):
            session.move_to("/other")
        assert snapshot(tmp_path) == before
        assert (session.cwd, session.header["cwd"]) == (CWD, CWD)
        target.unlink()
        session.move_to("/other")
        assert (session.cwd, len(artifacts(session.artifacts))) == ("/other", 2)


def test_a_move_whose_artifacts_cannot_follow_does_not_happen(tmp_path: Path) -> None:
    """A session file and its artifacts always stay together."""
    with begun(store_at(tmp_path)) as session:
        say(session, "one")
        spill(session)
    filesystem = FaultyFilesystem(PosixFilesystem(), plan=[Fail(5, at=2, on={"link"})])
    with store_at(tmp_path, fs=filesystem).open(session.path) as again:
        with pytest.raises(errors.StorageFailure):
            again.move_to("/other")
        assert (again.path, again.cwd) == (session.path, CWD)
        assert len(artifacts(again.artifacts)) == 2
        again.move_to("/other")
        assert (again.cwd, len(artifacts(again.artifacts))) == ("/other", 2)


def test_a_move_takes_copies_of_the_artifacts_where_the_file_system_has_no_links(tmp_path: Path) -> None:
    """The artifacts are copied, also after a first attempt failed halfway."""
    with begun(store_at(tmp_path)) as session:
        say(session, "one")
        spill(session)
    kept = artifacts(session.artifacts)
    filesystem = FaultyFilesystem(
        PosixFilesystem(), plan=[Fail(errno.EIO, at=2, on={"link"}), Fail(errno.EPERM, on={"link"}, forever=True)]
    )
    with store_at(tmp_path, fs=filesystem).open(session.path) as again:
        with pytest.raises(errors.StorageFailure, match="Input/output"):
            again.move_to("/other")
        assert again.path == session.path
        again.move_to("/other")
        assert artifacts(again.artifacts) == kept
    assert not os.path.exists(session.artifacts)


def test_a_file_outside_the_store_stays_where_it_is_when_moved(tmp_path: Path) -> None:
    """Only the project in its header changes."""
    path = write_file(tmp_path / "here" / "s.jsonl", header(), said("a", None))
    with store_at(tmp_path / "root").open(path) as session:
        session.move_to("/other")
        assert (session.path, session.cwd) == (path, "/other")
    assert records_of(path)[0] == header(cwd="/other")


def test_blobs_are_named_by_the_root_of_a_session_file(tmp_path: Path) -> None:
    """A file outside any root uses our blobs."""
    ours = BlobStore(f"{tmp_path}/blobs")
    assert ours.of_session(f"{tmp_path}/sessions/--x--/a.jsonl") is ours
    assert ours.of_session("/anywhere/a.jsonl") is ours
    assert ours.of_session("/home/u/.xcsh/agent/sessions/-x/a.jsonl").folder == "/home/u/.xcsh/agent/blobs"
