"""The leaf survives reopening, and its marker is not an entry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from builders import entry, said, user
from sessile import Entry, Session, build_session_context, errors
from sessile.discovery import load_entries_from_file
from sessions import (
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

pytestmark = pytest.mark.mission("X9")

MARKER = "sessile.leaf"


def three(tmp_path: Path) -> tuple[Session, str, str, str]:
    session = begun(store_at(tmp_path))
    return session, say(session, "one"), say(session, "two"), say(session, "three")


def markers(path: str) -> list[dict[str, object]]:
    return [record for record in records_of(path) if record.get("customType") == MARKER]


def test_a_branch_without_an_append_survives_reopening(tmp_path: Path) -> None:
    """The parent of the next append is the target of the branch, not the marker."""
    session, one, _, _ = three(tmp_path)
    session.branch(one)
    session.close()
    assert [marker["parentId"] for marker in markers(session.path)] == [one]
    with other_store_at(tmp_path).open(session.path) as again:
        assert (again.leaf_id, told(again)) == (one, ["one"])
        assert again.append_message(user("four")).parent_id == one


def test_a_reset_without_an_append_survives_reopening(tmp_path: Path) -> None:
    """The next append is a new root."""
    session, *_ = three(tmp_path)
    session.reset_leaf()
    session.close()
    assert [marker["parentId"] for marker in markers(session.path)] == [None]
    with other_store_at(tmp_path).open(session.path) as again:
        assert (again.leaf_id, told(again)) == (None, [])
        assert again.append_message(user("four")).parent_id is None


def test_the_leaf_survives_many_reopenings_without_more_markers(tmp_path: Path) -> None:
    """One marker is sufficient; opening and closing alone writes none."""
    session, one, two, _ = three(tmp_path)
    session.branch(one)
    session.close()
    before = Path(session.path).read_bytes()
    for _ in range(3):
        with other_store_at(tmp_path).open(session.path) as again:
            assert again.leaf_id == one
    assert Path(session.path).read_bytes() == before
    with other_store_at(tmp_path).open(session.path) as again:
        again.branch(two)
    with other_store_at(tmp_path).open(session.path) as again:
        assert again.leaf_id == two


@pytest.mark.parametrize(
    "moves", [["one", "three"], [None, "three"], []], ids=["there and back", "reset and back", "none"]
)
def test_a_leaf_that_is_the_last_entry_needs_no_marker(tmp_path: Path, moves: list[str | None]) -> None:
    """Moving away and back writes nothing."""
    session, one, _, leaf = three(tmp_path)
    places = {"one": one, "three": leaf}
    for move in moves:
        session.reset_leaf() if move is None else session.branch(places[move])
    session.close()
    assert markers(session.path) == []


def test_a_branch_followed_by_an_append_writes_no_marker(tmp_path: Path) -> None:
    """The appended entry is the last line."""
    session, one, _, _ = three(tmp_path)
    session.branch(one)
    say(session, "four")
    session.close()
    assert markers(session.path) == []


@pytest.mark.parametrize("move", [lambda s, e: s.branch(e, durable=True), lambda s, e: s.reset_leaf(durable=True)])
def test_a_durable_branch_is_stored_at_once(tmp_path: Path, move: Callable[[Session, str], None]) -> None:
    """Another handle opens at the new leaf, and closing does not store it again."""
    session, one, _, _ = three(tmp_path)
    move(session, one)
    with other_store_at(tmp_path).open(session.path, readonly=True) as other:
        assert other.leaf_id == session.leaf_id
    session.close()
    assert len(markers(session.path)) == 1


def test_the_marker_is_no_entry_of_the_users(tmp_path: Path) -> None:
    """No view shows the marker, and no method accepts its id."""
    session, one, two, three_ = three(tmp_path)
    session.branch(one, durable=True)
    marker = str(markers(session.path)[0]["id"])
    assert [entry.id for entry in session.get_entries()] == [one, two, three_]
    assert [entry.id for entry in session.get_children(one)] == [two]
    assert [entry.id for entry in session.get_heads()] == [three_]
    assert [entry.id for entry in session.get_branch()] == [one]
    node = session.get_tree()[0]
    assert [child.entry.id for child in node.children] == [two]
    assert session.get_entry(marker) is None
    for verb in (
        lambda: session.branch(marker),
        lambda: session.append_label_change(marker, "x"),
        lambda: session.append_many([{"type": "custom", "customType": "x"}], expected_leaf=marker),
        lambda: session.get_full_entry(marker),
        lambda: session.context(marker),
        lambda: session.create_branched_session(marker),
    ):
        with pytest.raises(errors.EntryNotFound):
            verb()
    assert MARKER in [entry.get("customType") for entry in session.iter_lines()]


def test_nobody_can_append_a_marker_as_an_entry(tmp_path: Path) -> None:
    """A marker would become the parent of the next entry."""
    session, *_ = three(tmp_path)
    with pytest.raises(errors.InvalidEntry, match="reserved"):
        session.append_custom_entry(MARKER)
    session.close()


def test_markers_are_not_given_to_edits(tmp_path: Path) -> None:
    """A rewrite sees only entries."""
    session, one, *_ = three(tmp_path)
    session.branch(one, durable=True)
    seen = []

    def look(entry: Entry) -> None:
        seen.append(entry.type)

    session.rewrite_entries(look)
    assert seen == ["message"] * 3
    session.close()


def test_a_reading_handle_writes_no_marker(tmp_path: Path) -> None:
    """The leaf of a read-only handle is not stored."""
    session, one, *_ = three(tmp_path)
    session.close()
    before = snapshot(tmp_path)
    reader = store_at(tmp_path).open(session.path, readonly=True)
    leaf = reader.leaf_id
    with pytest.raises(errors.ReadOnly):
        reader.branch(one, durable=True)
    assert reader.leaf_id == leaf
    reader.branch(one)
    reader.close()
    assert snapshot(tmp_path) == before


def test_no_marker_is_written_into_a_foreign_file(tmp_path: Path) -> None:
    """Outside our sessions folder a branch is only for this handle, and a durable one is refused."""
    path = write_file(tmp_path / "elsewhere" / "s.jsonl", header(), said("a", None), said("b", "a"))
    session = store_at(tmp_path / "root").open(path)
    with pytest.raises(errors.Unsupported) as refusal:
        session.branch("a", durable=True)
    assert refusal.value.hint
    assert session.leaf_id == "b"
    session.branch("a")
    session.close()
    assert markers(path) == []


@pytest.mark.parametrize("tries", [1, 2])
def test_no_marker_is_written_when_others_appended_since(tmp_path: Path, tries: int) -> None:
    """The entry of the other writer stays the last one."""
    session, one, *_ = three(tmp_path)
    with other_store_at(tmp_path).open(session.path) as other:
        theirs = say(other, "theirs")
    for _ in range(tries - 1):
        session.branch(one, durable=True)
    session.branch(one)
    session.close()
    assert markers(session.path) == []
    with store_at(tmp_path).open(session.path) as again:
        assert again.leaf_id == theirs


def test_garbage_of_others_is_no_entry_and_does_not_cost_the_leaf(tmp_path: Path) -> None:
    """The marker is on its own line after the garbage."""
    session, one, *_ = three(tmp_path)
    with open(session.path, "ab") as file:
        file.write(b"garbage\n{torn")
    session.branch(one)
    session.close()
    assert lines_of(session.path)[-2] == b"{torn"
    with store_at(tmp_path).open(session.path) as again:
        assert again.leaf_id == one


def test_a_repeated_key_does_not_make_others_entries_ours(tmp_path: Path) -> None:
    """After a repeated call that appended nothing, the other writer's entry is still the last one."""
    session, one, *_ = three(tmp_path)
    payload = {"type": "message", "message": user("x")}
    with other_store_at(tmp_path).open(session.path) as other:
        theirs = other.append_many([payload], key="k")[0].id
    session.branch(one)
    assert session.append_many([payload], key="k")[0].repeated
    session.close()
    with store_at(tmp_path).open(session.path) as again:
        assert again.leaf_id == theirs


def test_the_family_reopens_at_the_same_place(tmp_path: Path) -> None:
    """A program that uses the last line as the leaf gets the same context from the marker."""
    session, one, *_ = three(tmp_path)
    session.branch(one)
    session.close()
    context = build_session_context(load_entries_from_file(session.path)[1:])
    assert [message["content"] for message in context.messages] == ["one"]


def with_foreign_entry(tmp_path: Path) -> tuple[str, str, str, Session]:
    """Return an open session in which pi appended an entry below our marker."""
    session, one, *_ = three(tmp_path)
    session.branch(one, durable=True)
    marker = str(markers(session.path)[0]["id"])
    append_raw(session.path, said("pi", marker, "from pi"))
    return one, marker, session.path, session


def test_an_entry_that_pi_hung_from_the_marker_hangs_from_its_target(tmp_path: Path) -> None:
    """Path, tree, children and context skip the marker."""
    one, _, path, ours = with_foreign_entry(tmp_path)
    ours.close()
    with store_at(tmp_path).open(path) as session:
        assert (session.leaf_id, told(session)) == ("pi", ["one", "from pi"])
        assert [entry.id for entry in session.get_branch()] == [one, "pi"]
        assert [entry.id for entry in session.get_children(one)][-1] == "pi"
        assert [child.entry.id for child in session.get_tree()[0].children][-1] == "pi"
        assert "pi" in [entry.id for entry in session.get_heads()]
        assert session.get_common_ancestor("pi", session.get_entries()[2].id) == one
        assert session.append_message(user("on")).parent_id == "pi"


@pytest.mark.parametrize("reopened", [False, True], ids=["our own marker", "a marker that was there"])
def test_an_entry_below_the_marker_diverges_from_ours(tmp_path: Path, reopened: bool) -> None:
    """The new entry counts as a child of our parent, although it names the marker."""
    session, one, *_ = three(tmp_path)
    session.branch(one, durable=True)
    if reopened:
        session.close()
        session = other_store_at(tmp_path).open(session.path)
    append_raw(session.path, said("pi", str(markers(session.path)[0]["id"]), "from pi"))
    with pytest.raises(errors.LeafMoved):
        session.append_many([entry("custom", "", None, customType="x")], on_leaf_moved="fail")
    receipt = session.append_message(user("ours"))
    assert (receipt.parent_id, receipt.diverged) == (one, True)
    assert {"pi", receipt.id} <= {head.id for head in session.get_heads()}
    session.close()


def test_following_an_entry_below_the_marker_hangs_from_that_entry(tmp_path: Path) -> None:
    """The history is one chain."""
    _, _, _, session = with_foreign_entry(tmp_path)
    receipt = session.append_many([{"type": "message", "message": user("on")}], on_leaf_moved="follow")[0]
    assert receipt.parent_id == "pi"
    assert told(session) == ["one", "from pi", "on"]
    session.close()


@pytest.mark.parametrize("parent", ["lost", "m", "n"], ids=["missing", "itself", "a circle of markers"])
def test_a_marker_that_leads_nowhere_does_not_hide_the_history(tmp_path: Path, parent: str) -> None:
    """With an invalid marker the last entry is the leaf."""
    marker = entry("custom", "m", parent, customType=MARKER)
    other = entry("custom", "n", "m", customType=MARKER)
    path = tmp_path / "sessions" / "--x--" / "t_s1.jsonl"
    write_file(path, header(), said("a", None), said("b", "a"), marker, *([other] if parent == "n" else []))
    with store_at(tmp_path).open(path) as session:
        assert (session.leaf_id, told(session)) == ("b", ["a", "b"])
        assert session.append_message(user("c")).parent_id == "b"


def test_a_fork_opens_at_the_leaf_of_its_source(tmp_path: Path) -> None:
    """The leaf is copied even if the source only moved it, and survives reopening the fork."""
    session, one, *_ = three(tmp_path)
    session.branch(one)
    fork = session.fork()
    assert fork.leaf_id == one
    fork.close()
    with store_at(tmp_path).open(fork.path) as again:
        assert again.leaf_id == one
    session.reset_leaf()
    with session.fork() as empty:
        assert (empty.leaf_id, len(empty.get_entries())) == (None, 3)
    session.close()


def test_the_marker_is_a_plain_custom_entry_of_the_family(tmp_path: Path) -> None:
    """The marker has only the base members and `customType`."""
    session, one, *_ = three(tmp_path)
    session.branch(one)
    session.close()
    record = records_of(session.path)[-1]
    assert list(record) == ["type", "id", "parentId", "timestamp", "customType"]
    assert (record["type"], record["customType"]) == ("custom", MARKER)
    assert len(lines_of(session.path)) == 5
