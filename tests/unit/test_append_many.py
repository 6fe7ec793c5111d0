"""`append_many`: batches, the expected leaf, idempotency keys, and concurrent writers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders import assistant, said, user
from faults.failing import FaultyFilesystem
from sessile import Receipt, Session, errors
from sessile.storage.filesystem import PosixFilesystem
from sessions import CWD, append_raw, begun, lines_of, other_store_at, records_of, say, store_at, told

pytestmark = pytest.mark.mission("X7")

ONE = {"type": "message", "message": user("one")}
TWO = {"type": "message", "message": assistant("two")}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Session, Session]]:
    """Two handles on one session with the same leaf."""
    ours = begun(store_at(tmp_path))
    say(ours, "base")
    theirs = other_store_at(tmp_path).open(ours.path)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_entries_of_one_call_form_a_chain_with_one_sync(tmp_path: Path) -> None:
    """Each entry gets a receipt; the last entry is the leaf."""
    path = begun(store_at(tmp_path)).path
    filesystem = FaultyFilesystem(PosixFilesystem())
    with store_at(tmp_path, fs=filesystem, durability="power").open(path) as session:
        filesystem.calls.clear()
        first, second = session.append_many([ONE, TWO])
        methods = [call.method for call in filesystem.calls]
        assert (methods.count("write"), methods.count("sync")) == (1, 1)
        assert (first.parent_id, second.parent_id, session.leaf_id) == (None, first.id, second.id)
        assert session.append_many([]) == []


def test_entries_hang_from_the_expected_leaf(tmp_path: Path) -> None:
    """An expected leaf can be any entry without children, not only the current leaf."""
    with begun(store_at(tmp_path)) as session:
        first, head = say(session, "one"), say(session, "two")
        session.branch(first)
        receipt = session.append_many([ONE], expected_leaf=head, on_leaf_moved="fail")[0]
        assert (receipt.parent_id, receipt.diverged) == (head, False)


def test_an_expected_leaf_that_is_no_entry_is_refused(tmp_path: Path) -> None:
    """An unknown expected leaf raises, and nothing is written."""
    with begun(store_at(tmp_path)) as session:
        with pytest.raises(errors.EntryNotFound):
            session.append_many([ONE], expected_leaf="nobody")
        assert len(lines_of(session.path)) == 1


@pytest.mark.parametrize("whole_history", [True, False])
def test_a_moved_leaf_is_noticed_within_one_handle(tmp_path: Path, whole_history: bool) -> None:
    """If the expected leaf already has a child, the append branches, follows or fails."""
    with begun(store_at(tmp_path)) as session:
        first = say(session, "one")
        expected = "root" if whole_history else first
        tip = say(session, "two")
        with pytest.raises(errors.LeafMoved):
            session.append_many([ONE], expected_leaf=expected, on_leaf_moved="fail")
        followed = session.append_many([ONE], expected_leaf=expected, on_leaf_moved="follow")[0]
        assert (followed.parent_id, followed.diverged) == (tip, False)
        branched = session.append_many([ONE], expected_leaf=expected)[0]
        assert (branched.parent_id, branched.diverged) == (None if whole_history else first, True)


def test_no_expectation_means_the_leaf_and_root_means_before_the_first_entry(tmp_path: Path) -> None:
    """`None` expects the current leaf; "root" expects an empty session."""
    with begun(store_at(tmp_path)) as session:
        first = session.append_many([ONE], expected_leaf="root", on_leaf_moved="fail")[0]
        second = session.append_many([ONE], expected_leaf=None, on_leaf_moved="fail")[0]
        assert (first.parent_id, second.parent_id) == (None, first.id)


def test_an_unknown_wish_about_a_moved_leaf_is_refused(tmp_path: Path) -> None:
    """An invalid `on_leaf_moved` raises instead of creating a branch."""
    with begun(store_at(tmp_path)) as session, pytest.raises(errors.Invalid):
        session.append_many([ONE], on_leaf_moved="folow")  # type: ignore[arg-type]


def test_a_writer_who_was_faster_makes_us_branch_and_both_heads_are_shown(pair: tuple[Session, Session]) -> None:
    """By default the append branches: no entry is lost, and the receipt has `diverged`."""
    ours, theirs = pair
    base = ours.leaf_id
    first = theirs.append_message(user("theirs"))
    second = ours.append_message(user("ours"))
    assert (first.diverged, second.diverged) == (False, True)
    assert first.parent_id == second.parent_id == base
    assert [entry.id for entry in ours.get_heads()] == [first.id, second.id]
    assert [entry.id for entry in ours.get_abandoned()] == [first.id]
    assert told(ours) == ["base", "ours"]
    assert not ours.append_message(user("on")).diverged


def test_following_hangs_our_entries_below_those_of_the_other_writer(pair: tuple[Session, Session]) -> None:
    """ "follow" appends after the other writer's entries, and the context includes them."""
    ours, theirs = pair
    ours.context()
    theirs.append_many([ONE, TWO])
    receipts = ours.append_many([ONE, TWO], on_leaf_moved="follow")
    assert receipts[0].parent_id == theirs.leaf_id
    assert receipts[1].parent_id == receipts[0].id
    assert not any(receipt.diverged for receipt in receipts)
    assert told(ours) == ["base", "one", "two", "one", "two"]
    assert len(ours.get_heads()) == 1


def test_failing_writes_nothing_and_the_next_try_works(pair: tuple[Session, Session]) -> None:
    """ "fail" writes nothing, and the error is not latched."""
    ours, theirs = pair
    say(theirs, "theirs")
    before = Path(ours.path).read_bytes()
    with pytest.raises(errors.LeafMoved):
        ours.append_many([ONE], on_leaf_moved="fail")
    assert Path(ours.path).read_bytes() == before
    assert told(ours) == ["base"]
    with pytest.raises(errors.LeafMoved):
        ours.append_many([ONE], on_leaf_moved="fail")
    assert ours.append_many([ONE], on_leaf_moved="follow")[0].parent_id == theirs.leaf_id


def test_what_others_append_elsewhere_is_no_divergence(pair: tuple[Session, Session]) -> None:
    """Only a new child of our own parent is a divergence."""
    ours, theirs = pair
    theirs.reset_leaf()
    say(theirs, "another root")
    assert not ours.append_many([ONE], on_leaf_moved="fail")[0].diverged


def test_two_writers_without_a_first_entry_diverge_at_the_root(tmp_path: Path) -> None:
    """Two first entries with the parent `None` diverge, too."""
    with begun(store_at(tmp_path)) as ours, other_store_at(tmp_path).open(ours.path) as theirs:
        say(theirs, "theirs")
        receipt = ours.append_message(user("ours"))
        assert (receipt.parent_id, receipt.diverged) == (None, True)


def test_a_label_of_another_writer_counts_as_their_entry(pair: tuple[Session, Session]) -> None:
    """A label is an entry of the chain, so a label set by another writer is a divergence."""
    ours, theirs = pair
    base = ours.leaf_id
    assert base is not None
    theirs.append_label_change(base, "x")
    assert ours.append_message(user("ours")).diverged


def test_a_writer_without_lock_and_newline_does_not_spoil_our_line(pair: tuple[Session, Session]) -> None:
    """A torn line of another program stays on its own line."""
    ours, _ = pair
    with open(ours.path, "ab") as file:
        file.write(b'{"type":"message","id":"torn","parentId":null,"mess')
    receipt = ours.append_message(user("whole"))
    assert lines_of(ours.path)[-1].startswith(b'{"type":"message","id":"%b"' % receipt.id.encode())
    assert [finding.code for finding in ours.findings] == ["not_json"]


# -- keys


def test_a_repeated_key_appends_nothing_and_gives_the_same_receipts(tmp_path: Path) -> None:
    """A repeated key returns the same receipts, in the same handle and after reopening."""
    with begun(store_at(tmp_path)) as session:
        first = session.append_many([ONE, TWO], key="turn-1")
        say(session, "meanwhile")
        again = session.append_many([ONE, TWO], key="turn-1")
        assert [r.id for r in again] == [r.id for r in first]
        assert [r.position for r in again] == [r.position for r in first]
        assert [r.repeated for r in first + again] == [False, False, True, True]
    with store_at(tmp_path).open(session.path) as session:
        assert [r.id for r in session.append_many([ONE, TWO], key="turn-1")] == [r.id for r in first]
        assert len(session.get_entries()) == 3
        assert session.append_many([ONE], key="turn-2")[0].id not in {r.id for r in first}


def test_the_key_is_a_member_of_the_entry(tmp_path: Path) -> None:
    """The key is stored in the entry."""
    with begun(store_at(tmp_path)) as session:
        session.append_many([ONE], key="k")
        assert records_of(session.path)[1]["sessile.key"] == "k"


def test_two_handles_with_one_key_append_once(pair: tuple[Session, Session]) -> None:
    """The slower handle finds the key under the lock and appends nothing; its next append diverges."""
    ours, theirs = pair
    base = ours.leaf_id
    first = theirs.append_many([ONE, TWO], key="turn")
    second = ours.append_many([ONE, TWO], key="turn")
    assert [r.id for r in first] == [r.id for r in second]
    assert all(r.repeated for r in second)
    assert len(ours.get_entries()) == 3
    receipt = ours.append_message(user("on"))
    assert (receipt.parent_id, receipt.diverged) == (base, True)


def test_a_key_whose_call_was_cut_short_by_a_crash_is_completed(tmp_path: Path) -> None:
    """If the second of two lines was torn, only the second is appended again."""
    with begun(store_at(tmp_path)) as session:
        first, second = session.append_many([ONE, TWO], key="turn")
    content = Path(session.path).read_bytes()
    Path(session.path).write_bytes(content[:-20])
    with store_at(tmp_path).open(session.path) as session:
        again = session.append_many([ONE, TWO], key="turn")
        assert [(r.id, r.parent_id, r.repeated) for r in again] == [
            (first.id, None, True),
            (second.id, first.id, False),
        ]
        assert told(session) == ["one", "two"]


def test_a_repeated_receipt_is_given_only_when_the_entry_is_durable(tmp_path: Path) -> None:
    """A repeated call syncs before it returns: the first call may have died before its sync."""
    with begun(store_at(tmp_path)) as session:
        session.append_many([ONE], key="turn")
    filesystem = FaultyFilesystem(PosixFilesystem())
    with store_at(tmp_path, fs=filesystem, durability="power").open(session.path) as session:
        filesystem.calls.clear()
        session.append_many([ONE], key="turn")
        assert "sync" in [call.method for call in filesystem.calls]


def test_a_key_that_meets_a_strangers_entry_is_refused(tmp_path: Path) -> None:
    """An entry with the expected id that was not appended under the key raises."""
    with begun(store_at(tmp_path)) as session:
        wanted = session.append_many([ONE], key="turn")[0].id
        header = lines_of(session.path)[0].decode()
    Path(session.path).write_text(header + "\n")
    append_raw(session.path, said(wanted, None, "stranger"))
    with store_at(tmp_path).open(session.path) as session, pytest.raises(errors.InvalidEntry, match="key"):
        session.append_many([ONE], key="turn")


def test_a_fork_has_keys_of_its_own(tmp_path: Path) -> None:
    """Entries of a fork keep their ids, but the same key in the fork is a new call."""
    with begun(store_at(tmp_path), cwd=CWD) as session:
        session.append_many([ONE], key="turn")
        with session.fork() as fork:
            assert not fork.append_many([ONE], key="turn")[0].repeated


# Every method that appends one entry, with its arguments; "base" is the first entry of the session.
APPENDS: list[tuple[str, tuple[Any, ...]]] = [
    ("append_message", (user("again"),)),
    ("append_entry", ({"type": "bookmark", "line": 3},)),
    ("append_thinking_level_change", ("high",)),
    ("append_model_change", ("anthropic/claude",)),
    ("append_compaction", ("summary", None, 1000)),
    ("append_custom_entry", ("notes", {"a": 1})),
    ("append_custom_message_entry", ("notes", "text")),
    ("append_label_change", ("base", "here")),
    ("append_mode_change", ("plan",)),
    ("append_ttsr_injection", (["rule"],)),
    ("append_session_init", ("prompt", "task", ["read"])),
    ("append_context_edit", ("base", None)),
    ("append_reset_boundary", ()),
]


def test_every_append_method_is_covered() -> None:
    """Every `append_*` method is in the table of these tests."""
    methods = {name for name in dir(Session) if name.startswith("append_")}
    assert methods == {name for name, _ in APPENDS} | {"append_many", "append_messages"}


@pytest.mark.parametrize(("name", "arguments"), APPENDS, ids=[name for name, _ in APPENDS])
class TestOneEntry:
    """Each `append_*` method accepts `key` and `on_leaf_moved`."""

    def call(self, session: Session, name: str, arguments: tuple[Any, ...], **options: Any) -> Receipt:
        base = session.get_entries()[0].id
        given = [base if argument == "base" else argument for argument in arguments]
        receipt = getattr(session, name)(*given, **options)
        assert isinstance(receipt, Receipt)
        return receipt

    def test_a_key_makes_the_call_repeatable(
        self, pair: tuple[Session, Session], name: str, arguments: tuple[Any, ...]
    ) -> None:
        """A second call with the same key appends nothing and returns the first receipt, also in another process."""
        ours = pair[0]
        first = self.call(ours, name, arguments, key="k1")
        count = len(lines_of(ours.path))
        for session in pair:
            again = self.call(session, name, arguments, key="k1")
            assert (again.id, again.repeated, first.repeated) == (first.id, True, False)
        assert len(lines_of(ours.path)) == count

    def test_a_moved_leaf_is_branched_followed_or_refused(
        self, pair: tuple[Session, Session], name: str, arguments: tuple[Any, ...]
    ) -> None:
        """If another writer appended below the leaf, `on_leaf_moved` decides what happens."""
        ours, theirs = pair
        base, tip = ours.leaf_id, say(theirs, "faster")
        with pytest.raises(errors.LeafMoved):
            self.call(ours, name, arguments, on_leaf_moved="fail")
        followed = self.call(ours, name, arguments, on_leaf_moved="follow")
        assert (followed.parent_id, followed.diverged) == (tip, False)
        branched = self.call(theirs, name, arguments)
        assert (branched.parent_id, branched.diverged) == (tip, True)
        assert base == ours.get_entries()[0].id

    def test_an_invalid_policy_is_refused(
        self, pair: tuple[Session, Session], name: str, arguments: tuple[Any, ...]
    ) -> None:
        """The error names the value and the choices."""
        with pytest.raises(errors.Invalid, match="invalid on_leaf_moved 'merge'") as raised:
            self.call(pair[0], name, arguments, on_leaf_moved="merge")
        assert raised.value.hint == "use one of branch, follow, fail"
