"""A session: appending, moving the leaf, durability and closing."""

from __future__ import annotations

import errno
import logging
import re
from pathlib import Path

import pytest

from builders import assistant, user
from faults.failing import Fail, FaultyFilesystem
from sessile import Session, Store, errors
from sessile.storage.filesystem import PosixFilesystem
from sessions import CWD, answer, begun, lines_of, records_of, say, store_at, told, write_file
from sessions import header as header_of


@pytest.mark.mission("X7")
def test_every_append_makes_one_entry_below_the_leaf_and_becomes_the_leaf(tmp_path: Path) -> None:
    """Each entry is a child of the one before, and its receipt names it."""
    with begun(store_at(tmp_path)) as session:
        parent: str | None = None
        for number in range(4):
            receipt = session.append_message(user(str(number)))
            assert (receipt.parent_id, session.leaf_id) == (parent, receipt.id)
            assert len(lines_of(session.path)) == number + 2
            parent = receipt.id


@pytest.mark.mission("X7")
def test_a_receipt_says_where_the_line_lies(tmp_path: Path) -> None:
    """Path, offset and length of a receipt locate the bytes of the entry."""
    with begun(store_at(tmp_path)) as session:
        session.append_message(user("ä"))
        receipt = session.append_message(user("found"))
        offset, length = receipt.position
        raw = Path(receipt.path).read_bytes()[offset : offset + length]
        entry = session.get_entry(receipt.id)
        assert entry is not None
        assert raw == entry.raw
        assert receipt.durability == "process"


@pytest.mark.mission("X8")
def test_branching_changes_no_line_and_the_next_append_hangs_from_the_target(tmp_path: Path) -> None:
    """Branch and reset write nothing; the next append starts a branch or a new root."""
    with begun(store_at(tmp_path)) as session:
        first, second = say(session, "one"), say(session, "two")
        before = Path(session.path).read_bytes()
        session.branch(first)
        assert Path(session.path).read_bytes() == before
        side = session.append_message(user("side"))
        session.reset_leaf()
        root = session.append_message(user("root"))
        assert (side.parent_id, root.parent_id) == (first, None)
        assert Path(session.path).read_bytes().startswith(before)
        assert [entry.id for entry in session.get_heads()] == [second, side.id, root.id]


@pytest.mark.mission("X8")
def test_branching_to_an_unknown_entry_is_refused_with_the_words_of_the_family(tmp_path: Path) -> None:
    """An unknown entry raises, and the leaf does not move."""
    with begun(store_at(tmp_path)) as session:
        leaf = say(session, "one")
        with pytest.raises(errors.EntryNotFound, match="entry not found: 'nobody'"):
            session.branch("nobody")
        assert session.leaf_id == leaf


@pytest.mark.mission("X8")
@pytest.mark.parametrize("from_root", [True, False])
def test_a_branch_summary_hangs_from_the_target_and_names_it(tmp_path: Path, from_root: bool) -> None:
    """`fromId` is the target, or "root"."""
    with begun(store_at(tmp_path)) as session:
        first = say(session, "one")
        say(session, "abandoned")
        target = None if from_root else first
        receipt = session.branch_with_summary(target, "learned", details={"readFiles": []})
        entry = session.get_entry(receipt.id)
        assert entry is not None
        assert (entry["parentId"], entry["fromId"], entry["summary"]) == (target, target or "root", "learned")
        assert told(session) == (["learned"] if from_root else ["one", "learned"])


@pytest.mark.mission("X8")
def test_a_branch_summary_of_an_unknown_entry_writes_nothing(tmp_path: Path) -> None:
    """The target is checked before anything changes."""
    with begun(store_at(tmp_path)) as session:
        leaf = say(session, "one")
        with pytest.raises(errors.EntryNotFound):
            session.branch_with_summary("nobody", "learned")
        assert (session.leaf_id, len(lines_of(session.path))) == (leaf, 2)


@pytest.mark.mission("X8")
def test_a_branch_summary_that_cannot_be_written_does_not_move_the_leaf(tmp_path: Path) -> None:
    """Branch and summary are one operation."""
    with begun(store_at(tmp_path)) as session:
        first, leaf = say(session, "one"), say(session, "two")
        with pytest.raises(errors.InvalidEntry):
            session.branch_with_summary(first, "learned", details=float("inf"))
        assert (session.leaf_id, told(session)) == (leaf, ["one", "two"])


@pytest.mark.parametrize(
    "payload", [{}, {"type": ""}, {"type": "session"}, {"type": "title"}, {"type": 5}, "text", None]
)
def test_what_is_no_entry_is_refused(payload: object) -> None:
    """A header or a title slot among the entries would make the file unreadable for other programs."""
    session = Session.in_memory()
    with pytest.raises(errors.InvalidEntry):
        session.append_many([payload])  # type: ignore[list-item]
    assert session.get_entries() == []


@pytest.mark.parametrize("message", [{}, {"role": None}, {"content": "x"}, "text"])
def test_a_message_without_a_role_is_refused(message: object) -> None:
    """No other program could read such a message."""
    with pytest.raises(errors.InvalidEntry):
        Session.in_memory().append_message(message)  # type: ignore[arg-type]


@pytest.mark.mission("X18")
def test_an_entry_that_cannot_be_written_leaves_session_and_file_as_they_were(tmp_path: Path) -> None:
    """NaN cannot be written as JSON; the error is not latched, and the next append works."""
    with begun(store_at(tmp_path)) as session:
        leaf = say(session, "one")
        before = Path(session.path).read_bytes()
        with pytest.raises(errors.InvalidEntry):
            session.append_custom_entry("x", {"value": float("nan")})
        assert (session.leaf_id, Path(session.path).read_bytes()) == (leaf, before)
        assert session.append_message(user("two")).parent_id == leaf


@pytest.mark.mission("X18")
@pytest.mark.parametrize("fault", [Fail(errno.ENOSPC, on={"write"}), Fail(errno.EIO, on={"sync"})])
def test_a_failed_write_is_raised_latched_and_logged_once_until_reopening(
    tmp_path: Path, fault: Fail, caplog: pytest.LogCaptureFixture
) -> None:
    """The failed call and all later ones raise; reopening clears the error."""
    with begun(store_at(tmp_path)) as session:
        leaf = say(session, "safe")
    filesystem = FaultyFilesystem(PosixFilesystem(), plan=[fault])
    session = store_at(tmp_path, fs=filesystem, durability="power").open(session.path)
    assert session.leaf_id == leaf
    with caplog.at_level(logging.ERROR, "sessile"):
        with pytest.raises(errors.StorageFailure) as first:
            session.append_message(user("lost"))
        with pytest.raises(errors.StorageFailure) as second:
            session.append_message(user("lost too"))
    assert first.value is second.value
    assert [session.path in record.getMessage() for record in caplog.records] == [True]
    session.reopen()
    assert say(session, "after") == session.leaf_id
    session.close()
    assert records_of(session.path)[-1]["message"]["content"] == "after"


@pytest.mark.mission("X18")
def test_memory_never_runs_ahead_of_the_disk(tmp_path: Path) -> None:
    """After a failed write the session has the same entries as after reopening."""
    path = begun(store_at(tmp_path)).path
    filesystem = FaultyFilesystem(PosixFilesystem(), plan=[Fail(errno.ENOSPC, at=2, on={"write"})])
    session = store_at(tmp_path, fs=filesystem).open(path)
    leaf = say(session, "safe")
    with pytest.raises(errors.StorageFull):
        say(session, "lost")
    assert (session.leaf_id, told(session)) == (leaf, ["safe"])
    assert [entry.id for entry in session.get_entries()] == [leaf]


@pytest.mark.mission("X18")
def test_closing_frees_descriptor_and_lock_before_it_raises_the_first_error(tmp_path: Path) -> None:
    """After a failed close the session can be opened without waiting."""
    path = begun(store_at(tmp_path)).path
    filesystem = FaultyFilesystem(PosixFilesystem(), plan=[Fail(errno.ENOSPC, on={"write"})])
    session = store_at(tmp_path, fs=filesystem).open(path)
    with pytest.raises(errors.StorageFull):
        say(session, "lost")
    with pytest.raises(errors.StorageFull):
        session.close()
    session.close()
    with store_at(tmp_path).open(path) as again:
        say(again, "kept")


def test_closing_twice_is_once(tmp_path: Path) -> None:
    """Closing twice is safe, also for a draft and for a session whose leaf could not be stored."""
    store = store_at(tmp_path)
    draft = store.create(CWD)
    say(draft, "pending")
    session = begun(store)
    first = say(session, "one")
    say(session, "two")
    with store.open(session.path) as other:
        say(other, "from elsewhere")
    session.branch(first)
    for closed in (draft, session):
        closed.close()
        before = Path(session.path).read_bytes()
        closed.close()
        assert Path(session.path).read_bytes() == before


def test_a_closed_session_takes_no_more_entries(tmp_path: Path) -> None:
    """The append raises and does not reopen the file."""
    session = begun(store_at(tmp_path))
    session.close()
    with pytest.raises(errors.StorageFailure, match="closed"):
        say(session, "late")


@pytest.mark.mission("X14")
def test_a_session_in_memory_does_all_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Append, branch, label, fork and image blobs work, and nothing is written to the disk."""
    monkeypatch.chdir(tmp_path)
    session = Session.in_memory("/anywhere")
    first = say(session, "one")
    answer(session, "two")
    session.append_label_change(first, "here")
    image = {"type": "image", "mimeType": "image/png", "data": "QUJD" * 400}
    session.append_message({"role": "user", "content": [image]})
    session.branch(first)
    assert (session.cwd, told(session), session.get_label(first)) == ("/anywhere", ["one"], "here")
    assert told(session.fork()) == ["one"]
    assert session.context(session.get_entries()[-1].id).messages[-1]["content"][0] == image
    assert list(tmp_path.iterdir()) == []


@pytest.mark.mission("X14")
def test_a_new_session_belongs_to_the_same_project_and_names_its_parent(tmp_path: Path) -> None:
    """The original session stays open."""
    with begun(store_at(tmp_path)) as session, session.new_session(parent_session=session.path) as new:
        assert (new.cwd, new.header["parentSession"], new.is_draft) == (CWD, session.path, True)
        assert new.id != session.id
        say(session, "still here")


@pytest.mark.mission("X14")
def test_setting_the_session_file_goes_on_in_the_other_file(tmp_path: Path) -> None:
    """The old file is unchanged; appends, leaf and blobs are those of the new file."""
    store = store_at(tmp_path)
    with begun(store) as session, begun(store) as other:
        say(session, "old")
        leaf = say(other, "there")
        other.close()
        old, before = session.path, Path(session.path).read_bytes()
        session.set_session_file(other.path)
        assert (session.path, session.leaf_id) == (other.path, leaf)
        assert session.append_message(user("new")).parent_id == leaf
        assert Path(old).read_bytes() == before


@pytest.mark.mission("X14")
def test_setting_a_session_file_that_cannot_be_opened_leaves_the_session_as_it_is(tmp_path: Path) -> None:
    """An invalid path raises, and the session is unchanged."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text("not a session\n")
    with begun(store_at(tmp_path / "root")) as session:
        with pytest.raises(errors.NotASession):
            session.set_session_file(str(bad))
        say(session, "still here")


@pytest.mark.mission("X17")
def test_flush_syncs_what_was_appended(tmp_path: Path) -> None:
    """With the durability "process" only `flush` syncs."""
    path = begun(store_at(tmp_path)).path
    filesystem = FaultyFilesystem(PosixFilesystem())
    with store_at(tmp_path, fs=filesystem).open(path) as session:
        say(session, "one")
        assert "sync" not in [call.method for call in filesystem.calls]
        session.flush()
        assert [call.method for call in filesystem.calls].count("sync") == 1


def test_a_reading_session_takes_nothing_and_can_look_around(tmp_path: Path) -> None:
    """Every method that writes is refused; moving the leaf of the view is allowed."""
    store = store_at(tmp_path)
    with begun(store) as session:
        first = say(session, "one")
        answer(session, "two")
    with store.open(session.path, readonly=True) as reader:
        assert reader.readonly
        for verb in (
            lambda: reader.append_message(user("x")),
            lambda: reader.branch_with_summary(None, "x"),
            lambda: reader.branch(first, durable=True),
            lambda: reader.set_session_name("x"),
            lambda: reader.rewrite_entries(lambda entry: None),
            lambda: reader.move_to("/other"),
            lambda: reader.reopen(),
        ):
            with pytest.raises(errors.ReadOnly):
                verb()
        assert reader.leaf_id != first
        reader.branch(first)
        assert told(reader) == ["one"]


@pytest.mark.mission("X12")
def test_the_context_of_a_session_equals_the_documented_function(tmp_path: Path) -> None:
    """State and messages of a path with a compaction are the same, at the leaf and at an earlier entry."""
    with begun(store_at(tmp_path)) as session:
        session.append_model_change("anthropic/claude")
        session.append_thinking_level_change("high")
        say(session, "forgotten")
        kept = say(session, "kept")
        session.append_mode_change("plan", {"file": "p.md"})
        session.append_ttsr_injection(["rule"])
        before = session.leaf_id
        session.append_compaction("summary", kept, 1234)
        answer(session, "after")
        context = session.context()
        assert told(session) == ["summary", "kept", "after"]
        assert (context.thinking_level, context.mode, context.mode_data) == ("high", "plan", {"file": "p.md"})
        assert (context.models, context.injected_ttsr_rules) == ({"default": "anthropic/claude"}, ["rule"])
        assert [m["content"] for m in session.context(before).messages] == ["forgotten", "kept"]
        assert session.context(None).messages == []
        assert session.build_session_context() == context


@pytest.mark.mission("X12")
def test_a_missing_parent_ends_the_history_unless_it_is_bridged(tmp_path: Path) -> None:
    """Both modes report the missing parent."""
    torn = {"type": "message", "id": "b", "parentId": "lost", "timestamp": "2026-02-16T10:20:30.000Z"}
    first = {"type": "message", "id": "a", "parentId": None, "timestamp": "2026-02-16T10:20:30.000Z"}
    path = write_file(
        tmp_path / "s.jsonl", header_of(), {**first, "message": user("one")}, {**torn, "message": user("three")}
    )
    with Store(tmp_path / "root").open(path, readonly=True) as session:
        assert told(session) == ["three"]
        assert [finding.code for finding in session.context().findings] == ["missing_parent"]
        bridged = session.context(bridge=True)
        assert [message["content"] for message in bridged.messages] == ["one", "three"]
        assert [finding.code for finding in bridged.findings] == ["missing_parent"]


@pytest.mark.mission("X2")
def test_context_edits_and_reset_boundaries_change_the_context_and_no_entry(tmp_path: Path) -> None:
    """Entries that are removed from the context stay in the session."""
    with begun(store_at(tmp_path)) as session:
        first, second = say(session, "one"), say(session, "two")
        session.append_context_edit(first, None)
        session.append_context_edit(second, "2")
        assert told(session) == ["2"]
        session.append_reset_boundary()
        answer(session, "fresh")
        assert told(session) == ["fresh"]
        entries = [entry["message"]["content"] for entry in session.get_entries() if entry.type == "message"]
        assert entries[:2] == ["one", "two"]


def test_many_threads_append_one_chain(tmp_path: Path) -> None:
    """No entry is lost, duplicated or attached to the wrong parent."""
    from concurrent.futures import ThreadPoolExecutor

    with begun(store_at(tmp_path)) as session, ThreadPoolExecutor(4) as pool:
        receipts = list(pool.map(lambda n: session.append_message(assistant(str(n))), range(40)))
        path = session.get_branch()
        assert len(path) == 40
        assert {receipt.id for receipt in receipts} == {entry.id for entry in path}
        assert not any(receipt.diverged for receipt in receipts)


def test_a_name_that_could_not_be_given_is_not_there(tmp_path: Path) -> None:
    """If the file cannot be replaced, header, entries and listing keep the old name."""
    with begun(store_at(tmp_path)) as session:
        say(session, "x")
        session.set_session_name("Before")
    before = Path(session.path).read_bytes()
    filesystem = FaultyFilesystem(PosixFilesystem(), plan=[Fail(errno.EACCES, on={"rename"})])
    with pytest.raises(errors.StorageFailure), store_at(tmp_path, fs=filesystem).open(session.path) as again:
        again.set_session_name("After")
    assert Path(session.path).read_bytes() == before


class TestRepr:
    """The text representations of sessions, receipts and nodes."""

    def test_it_is_one_line_with_id_title_leaf_and_path(self, tmp_path: Path) -> None:
        """Drafts, read-only and closed sessions are marked as such; texts are not shown."""
        store = store_at(tmp_path)
        with store.create("/work/app", title="Fix\nthe " + "x" * 100) as session:
            leaf = say(session, "a secret")
            title = f"{('Fix the ' + 'x' * 100)[:59]}…"
            assert repr(session) == f"<Session {session.id} {title!r} leaf={leaf} path={session.path!r} (draft)>"
            session.publish()
            assert repr(session).endswith(f"path={session.path!r}>")
        assert repr(session).endswith("(closed)>")
        with store.open(session.path, readonly=True) as reader:
            assert repr(reader).endswith("(read-only)>")

    def test_receipts_and_nodes(self) -> None:
        """A receipt omits unset fields; a node shows its entry, label and children."""
        session = Session.in_memory()
        receipt = session.append_message(user("hello"))
        assert repr(receipt) == (
            f"Receipt(id={receipt.id!r}, parent_id=None, path={session.path!r}, "
            f"position={receipt.position!r}, durability='process')"
        )
        session.append_label_change(receipt.id, "here")
        assert repr(session.get_tree()[0]) == f"<TreeNode {receipt.id} 'here' children=1>"

    def test_a_notebook_shows_a_table_in_which_nothing_runs(self, tmp_path: Path) -> None:
        """Title and project are escaped."""
        hostile = "<script>alert(1)</script>&\u202e"
        with store_at(tmp_path).create("/work/<b>", title=hostile) as session:
            say(session, "hello")
            html = session._repr_html_()
        assert set(re.findall(r"</?(\w+)", html)) == {"table", "caption", "tbody", "tr", "th", "td"}
        assert "&lt;script&gt;" in html and "/work/&lt;b&gt;" in html and "\u202e" not in html
        assert "<th>entries</th><td>1</td>" in html and "findings" not in html
