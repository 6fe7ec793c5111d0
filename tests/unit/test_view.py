"""The view of a session: entries, tree, labels, heads, and an incremental context."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from builders import entry, said, user
from faults.failing import Fail, Fault, FaultyFilesystem
from sessile import Session, Store, TreeNode, build_session_context, errors
from sessile.core.kinds import LEAF_MARKER, TAG
from sessile.discovery import load_entries_from_file
from sessile.storage.base import Filesystem
from sessile.storage.filesystem import PosixFilesystem
from sessions import answer, begun, header, say, store_at, told, write_file

pytestmark = pytest.mark.mission("X10")


def shape(nodes: list[TreeNode]) -> list[object]:
    return [[node.entry.id, shape(node.children)] for node in nodes]


def opened(tmp_path: Path, *records: dict[str, object]) -> Session:
    path = write_file(tmp_path / "s.jsonl", header(), *records)
    return Store(tmp_path / "root").open(path, readonly=True)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """one ─ two ─ three, and the branch four next to two."""
    session = begun(store_at(tmp_path))
    ids = [say(session, text) for text in ("one", "two", "three")]
    session.branch(ids[0])
    say(session, "four")
    return session


class Descriptors(FaultyFilesystem):
    """A file system that records open descriptors."""

    def __init__(self, inner: Filesystem, plan: Iterable[Fault]) -> None:
        super().__init__(inner, plan=plan)
        self.open_now: set[int] = set()

    def open(self, path: str, flags: int) -> int:
        fd = super().open(path, flags)
        self.open_now.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.open_now.discard(fd)
        super().close(fd)


@pytest.mark.parametrize("readonly", [False, True])
def test_a_session_that_cannot_be_shown_frees_its_file(tmp_path: Path, readonly: bool) -> None:
    """The file is closed, whichever read fails."""
    path = write_file(
        tmp_path / "s.jsonl", header(), said("a", None), entry("custom", "b", "gone", customType=LEAF_MARKER)
    )
    failed = 0
    for number in count(1):
        fs = Descriptors(PosixFilesystem(), plan=[Fail(errno.EIO, at=number, on={"read"})])
        try:
            store_at(tmp_path / "root", fs=fs).open(path, readonly=readonly).close()
        except errors.StorageFailure:
            failed += 1
        assert fs.open_now == set()
        if not fs.struck:
            break
    assert failed > 1


def test_entries_come_in_file_order_and_the_path_from_the_root(session: Session) -> None:
    """Entries of other branches are among the entries, but not on the path."""
    one, two, three, four = (entry.id for entry in session.get_entries())
    assert [entry.id for entry in session.get_branch()] == [one, four]
    assert [entry.id for entry in session.get_branch(three)] == [one, two, three]
    assert session.get_branch("nobody") == []
    session.reset_leaf()
    assert session.get_branch() == []


def test_children_heads_abandoned_branches_and_common_ancestors(session: Session) -> None:
    """Every query about the tree returns a result, also at the root."""
    one, two, three, four = (entry.id for entry in session.get_entries())
    assert [entry.id for entry in session.get_children(one)] == [two, four]
    assert [entry.id for entry in session.get_children(None)] == [one]
    assert session.get_children(four) == session.get_children("nobody") == []
    assert [entry.id for entry in session.get_heads()] == [three, four]
    assert [entry.id for entry in session.get_abandoned()] == [three]
    assert session.get_common_ancestor(three, four) == one
    assert session.get_common_ancestor(two, three) == two
    session.reset_leaf()
    assert session.get_common_ancestor(say(session, "five"), four) is None
    with pytest.raises(errors.EntryNotFound):
        session.get_common_ancestor("nobody", one)


def test_the_tree_shows_every_entry_once(session: Session) -> None:
    """Branches are children of their common entry."""
    one, two, three, four = (entry.id for entry in session.get_entries())
    assert shape(session.get_tree()) == [[one, [[two, [[three, []]]], [four, []]]]]


def test_children_are_sorted_by_time_whatever_form_it_has(tmp_path: Path) -> None:
    """Times are compared as instants, roots stay in file order, and an invalid time does not raise."""
    root = said("root", None)
    times = {
        "late": "2026-02-16T10:20:31Z",
        "early": "2026-02-16T10:20:30.500Z",
        "east": "2026-02-16T12:20:30.700+02:00",
    }
    children = [{**said(name, "root"), "timestamp": time} for name, time in times.items()]
    odd = {**said("odd", "root"), "timestamp": 5}
    other = {**said("older root", None), "timestamp": "2020-01-01T00:00:00.000Z"}
    with opened(tmp_path, root, *children, odd, other) as session:
        tree = session.get_tree()
        assert [node.entry.id for node in tree] == ["root", "older root"]
        assert [node.entry.id for node in tree[0].children] == ["odd", "early", "east", "late"]


def test_orphans_cycles_and_duplicate_ids_are_shown_and_bounded(tmp_path: Path) -> None:
    """All entries are shown, no query loops, and of duplicate ids the later entry is used."""
    records = [said("orphan", "lost"), said("a", "b"), said("b", "a"), said("own", "own"), said("twice", None, "first")]
    with opened(tmp_path, *records, said("twice", None, "second"), said("end", "twice")) as session:
        entries = session.get_entries()
        assert len(entries) == 7
        shown = []
        waiting = session.get_tree()
        while waiting:
            node = waiting.pop()
            shown.append(node.entry)
            waiting += node.children
        assert len(shown) == 7
        assert told(session) == ["second", "end"]
        found = session.get_entry("twice")
        assert found is not None
        assert found["message"]["content"] == "second"
        assert len(session.get_branch("a")) == 2
        codes = {finding.code for finding in session.findings}
        assert {"missing_parent", "cycle", "duplicate_id"} <= codes


def test_a_deep_tree_is_walked_without_recursion(tmp_path: Path) -> None:
    """A chain of ten thousand entries does not exceed the recursion limit."""
    records = [said(str(n), str(n - 1) if n else None) for n in range(10_000)]
    with opened(tmp_path, *records) as session:
        assert len(session.get_branch()) == 10_000
        assert session.get_tree()[0].entry.id == "0"


def test_of_two_labels_the_last_in_the_file_wins_on_any_branch(session: Session) -> None:
    """Labels can be set, changed and cleared, and the tree shows them."""
    one, _, three, four = (entry.id for entry in session.get_entries())
    session.append_label_change(one, "first")
    session.append_label_change(four, "mine")
    session.branch(three)
    session.append_label_change(one, "second")
    assert session.get_label(one) == "second"
    assert session.get_tree()[0].label == "second"
    session.append_label_change(four, None)
    assert session.get_label(four) is None
    session.append_label_change(one, "")
    assert session.get_label(one) is None
    with pytest.raises(errors.EntryNotFound):
        session.append_label_change("nobody", "x")


def test_a_label_is_an_entry_that_moves_the_leaf_and_says_nothing(session: Session) -> None:
    """Later messages are children of the label, which adds nothing to the context."""
    receipt = session.append_label_change(session.get_entries()[0].id, "x")
    assert session.leaf_id == receipt.id
    assert told(session) == ["one", "four"]
    assert session.append_message(user("five")).parent_id == receipt.id


def test_labels_survive_reopening(session: Session, tmp_path: Path) -> None:
    """Existing labels are known before the first append and can be changed after it."""
    one = session.get_entries()[0].id
    session.append_label_change(one, "here")
    session.close()
    with store_at(tmp_path).open(session.path) as again:
        assert again.get_label(one) == "here"
        again.append_label_change(one, "there")
        assert again.get_label(one) == "there"


def test_a_label_that_another_handle_sets_is_seen_after_our_next_append(session: Session, tmp_path: Path) -> None:
    """The cached labels are updated when another writer appended."""
    one = session.get_entries()[0].id
    assert session.get_label(one) is None
    with store_at(tmp_path).open(session.path) as other:
        other.append_label_change(one, "theirs")
    say(session, "on")
    assert session.get_label(one) == "theirs"


@pytest.mark.mission("X2")
def test_unknown_types_and_members_stay_in_the_tree_and_say_nothing(tmp_path: Path) -> None:
    """Unknown entries are part of the chain and keep their bytes."""
    unknown = entry("hologram", "x", "a", payload={"b": 1, "a": [None]})
    with opened(tmp_path, said("a", None), unknown, {**said("b", "x"), "future": {"z": 1}}) as session:
        assert told(session) == ["a", "b"]
        found = session.get_entry("x")
        assert found is not None
        assert (found.type, found["payload"]) == ("hologram", {"b": 1, "a": [None]})
        last = session.get_entry("b")
        assert last is not None
        assert last["future"] == {"z": 1}


@pytest.mark.mission("X2")
def test_a_hidden_custom_message_is_in_the_context(tmp_path: Path) -> None:
    """`display` only affects what the user sees, not the model."""
    with begun(store_at(tmp_path)) as session:
        session.append_custom_message_entry("note", "psst", display=False)
        message = session.context().messages[0]
        assert (message["role"], message["content"], message["display"]) == ("custom", "psst", False)


@pytest.mark.mission("X12")
def test_the_context_that_grows_equals_the_one_built_anew(tmp_path: Path) -> None:
    """The context is the same after every append and at every entry."""
    with begun(store_at(tmp_path)) as session:
        session.context()
        kept = say(session, "one")
        appends = (
            lambda: answer(session, "two"),
            lambda: session.append_model_change("p/m", "smol"),
            lambda: session.append_compaction("sum", kept, 9),
            lambda: session.append_custom_message_entry("c", [{"type": "text", "text": "x"}]),
            lambda: session.append_context_edit(kept, "uno"),
            lambda: session.branch(kept),
            lambda: session.branch_with_summary(None, "root again"),
            lambda: session.append_reset_boundary(),
            lambda: answer(session, "end"),
        )
        for append in appends:
            append()
            entries = load_entries_from_file(session.path)[1:]
            assert session.context() == build_session_context(entries, leaf_id=session.leaf_id)


@pytest.mark.mission("X12")
def test_an_unknown_leaf_has_no_context(session: Session) -> None:
    """An unknown leaf raises instead of returning the context of another entry."""
    with pytest.raises(errors.EntryNotFound):
        session.context("nobody")


def test_an_entry_is_a_read_only_mapping_over_its_line(session: Session) -> None:
    """Members are accessible by name, and the bytes are those in the file."""
    first = session.get_entries()[0]
    assert (first.type, first["message"]["content"], first.parent_id) == ("message", "one", None)
    assert first.raw in Path(session.path).read_bytes()
    assert dict(first) == first.body == first
    assert session.get_entry("nobody") is None


@pytest.mark.promise("P17")
@pytest.mark.parametrize("data", ["text", 5, [], None, {}, {"tag": 7}])
def test_a_tag_that_says_nothing_is_none(tmp_path: Path, data: Any) -> None:
    """A tag of any invalid type is `None`."""
    path = write_file(tmp_path / "s.jsonl", header(), entry("custom", "a", None, customType=TAG, data=data))
    with store_at(tmp_path / "root").open(path, readonly=True) as session:
        assert session.tag is None
