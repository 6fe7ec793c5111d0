"""What every `Store` must do with what is appended to a session and rewritten in it, by one or by many, as numbered behaviours.

See `store_contract`, of which this is the second part.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sessile.errors import EntryNotFound, InvalidEntry, LeafMoved, SessionNotFound
from sessile.named_sessions import NamedSessions
from sessile.session import Session
from sessile.testing.store_handling import (
    OpenStore,
    answer,
    asked,
    begun,
    data,
    files,
    ids,
    records,
    say,
    told,
    user,
)
from sessile.testing.store_opening import StoreOpeningContract

Pair = tuple[Session, Session]


class StoreAppendingContract(StoreOpeningContract):
    """The behaviours S17 to S33."""

    @pytest.fixture
    def pair(self, open_store: OpenStore) -> Iterator[Pair]:
        """Two handles on one session that hold the same leaf."""
        ours = begun(open_store())
        say(ours, "base")
        theirs = open_store().open(ours.path)
        yield ours, theirs
        ours.close()
        theirs.close()

    # The tree and its leaf

    def test_s17_a_branch_without_an_append_survives_reopening(self, open_store: OpenStore) -> None:
        """The next append hangs from the entry that was branched to, and no marker is anybody's entry."""
        with begun(open_store()) as session:
            one, two = say(session, "one"), say(session, "two")
            session.branch(one)
        for _ in range(2):
            with open_store().open(session.path) as again:
                assert (again.leaf_id, told(again), ids(again)) == (one, ["one"], [one, two])
                assert [head.id for head in again.get_heads()] == [two]
        with open_store().open(session.path) as again:
            assert again.append_message(user("three")).parent_id == one
            again.reset_leaf(durable=True)
            with open_store().open(session.path, readonly=True) as reader:
                assert (reader.leaf_id, told(reader)) == (None, [])
            assert again.append_message(user("root")).parent_id is None

    def test_s18_the_context_is_the_same_in_every_handle_at_every_entry(self, open_store: OpenStore) -> None:
        """Branches, models, compactions, resets and edits: one opens before they are written, one behind, one reads."""
        with begun(open_store()) as session, open_store().open(session.path) as before:
            one = say(session, "one")
            session.append_model_change("p/large")
            session.append_thinking_level_change("high")
            two = answer(session, "two")
            session.append_context_edit(one, "ONE")
            session.branch_with_summary(one, "what was left")
            kept = say(session, "three")
            session.append_compaction("summary", kept, 100)
            say(session, "four")
            session.branch(two)
            session.append_reset_boundary()
            session.append_custom_message_entry("note", "five", display=False)
            with open_store().open(session.path) as behind, open_store().open(session.path, readonly=True) as reader:
                for entry_id in ids(session):
                    expected = session.context(entry_id)
                    for handle in (before, behind, reader):
                        assert handle.context(entry_id) == expected
                        assert handle.get_state(entry_id) == session.get_state(entry_id)
                assert told(session) == told(behind) == told(reader) == ["five"]
                assert _outline(session) == _outline(before) == _outline(behind) == _outline(reader)

    def test_s19_labels_belong_to_entries_in_every_handle(self, open_store: OpenStore) -> None:
        """The last one counts; one that was taken away is gone."""
        with begun(open_store()) as session, open_store().open(session.path) as other:
            one, two = say(session, "one"), say(session, "two")
            session.append_label_change(one, "first")
            session.append_label_change(two, "gone")
            other.follow()
            other.append_label_change(one, "here")
            other.append_label_change(two, None)
            for handle in (session, other):
                assert (handle.get_label(one), dict(handle.get_labels())) == ("here", {one: "here"})
            with pytest.raises(EntryNotFound):
                session.append_label_change("nobody", "x")

    # Rewriting

    def test_s20_a_name_stands_in_the_header_and_others_go_on(self, open_store: OpenStore) -> None:
        """An automatic name never replaces that of a person; handles that were open before append behind it."""
        store = open_store()
        with begun(store) as session, open_store().open(session.path) as other:
            say(session, "one")
            assert session.set_session_name("  Webhook\nretries ")
            assert not session.set_session_name("machine", "auto")
            other.follow()
            say(other, "two")
            head = records(store, session.path)[0]
            assert (head["title"], head["titleSource"], head["id"]) == ("Webhook retries", "user", session.id)
            assert (session.title, other.title, ids(session)) == ("Webhook retries", "Webhook retries", ids(other))
            assert told(other) == ["one", "two"]
        assert [info.title for info in open_store().list_all()] == ["Webhook retries"]

    def test_s21_rewriting_keeps_the_original_and_what_is_not_edited(self, open_store: OpenStore) -> None:
        """Byte for byte; ids and parents cannot be changed, and a refusal changes nothing."""
        store = open_store()
        with begun(store) as session, open_store().open(session.path) as other:
            one, two = say(session, "secret"), say(session, "two")
            before = data(store, session.path)
            kept = session.rewrite_entries(
                lambda found: {**found.body, "message": user("harmless")} if found.id == one else None
            )
            assert data(store, kept) == before
            now = data(store, session.path)
            assert now.splitlines()[0::2] == before.splitlines()[0::2] and b"secret" not in now
            with pytest.raises(InvalidEntry):
                session.rewrite_entries(lambda found: {**found.body, "id": "other"})
            assert data(store, session.path) == now
            other.follow()
            assert (told(session), told(other)) == (["harmless", "two"], ["harmless", "two"])
            assert other.append_message(user("three")).parent_id == two

    def test_s22_a_tool_call_gets_other_arguments(self, open_store: OpenStore) -> None:
        """Wherever it stands; one that nobody made is told."""
        call = {"type": "toolCall", "id": "call-1", "name": "bash", "arguments": {"command": "rm"}}
        with begun(open_store()) as session:
            made = session.append_message({"role": "assistant", "content": [call]}).id
            session.rewrite_tool_call("call-1", {"command": "ls"})
            with pytest.raises(EntryNotFound):
                session.rewrite_tool_call("nobody", {})
        with open_store().open(session.path, readonly=True) as again:
            found = again.get_entry(made)
            assert found is not None and found["message"]["content"] == [{**call, "arguments": {"command": "ls"}}]

    def test_s23_large_content_goes_to_blobs_and_comes_back(self, open_store: OpenStore) -> None:
        """Lines stay short; the context has the image, and the full entry the text that was cut."""
        store = open_store()
        image = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(bytes(range(256)) * 40).decode()}
        text = "long " * 200_000
        with begun(store) as session:
            first = session.append_message({"role": "user", "content": [image]}).id
            second = say(session, text)
        written = data(store, session.path)
        assert image["data"].encode() not in written and len(written) < len(text)
        assert len(files(store, store.layout.blobs)) == 2
        with open_store().open(session.path) as again:
            assert again.context().messages[0]["content"] == [image]
            assert again.get_full_entry(first)["message"]["content"] == [image]
            assert again.get_full_entry(second)["message"]["content"] == text

    # Many writers

    def test_s24_entries_of_one_call_are_a_chain(self, open_store: OpenStore) -> None:
        """Each has a receipt; they hang from the expected leaf, which must be there."""
        store = open_store()
        with begun(store) as session:
            first, second = session.append_many([asked("one"), asked("two")], expected_leaf="root")
            assert (first.parent_id, second.parent_id, session.leaf_id) == (None, first.id, second.id)
            assert (first.path, first.diverged, first.repeated) == (session.path, False, False)
            assert first.durability == store.durability
            with pytest.raises(EntryNotFound):
                session.append_many([asked("three")], expected_leaf="nobody")
            assert session.append_many([]) == []
            assert ids(session) == [first.id, second.id]

    def test_s25_a_key_appends_once(self, pair: Pair) -> None:
        """Whoever repeats the call gets the receipts of the first, in any handle."""
        ours, theirs = pair
        first = ours.append_many([asked("one"), asked("two")], key="turn-1")
        again = theirs.append_many([asked("one"), asked("two")], key="turn-1")
        assert [(r.id, r.parent_id, r.repeated) for r in again] == [(r.id, r.parent_id, True) for r in first]
        assert [r.id for r in ours.append_many([asked("one"), asked("two")], key="turn-1")] == [r.id for r in first]
        assert len(ids(ours)) == 3

    def test_s26_one_key_from_many_threads_appends_once(self, open_store: OpenStore) -> None:
        """Handles of their own or shared, nobody appends it twice."""
        with begun(open_store()) as session:
            handles = [open_store().open(session.path) for _ in range(3)]

            def work(number: int) -> list[str]:
                receipts = handles[number % 3].append_many([asked("one"), asked("two")], key="k")
                return [receipt.id for receipt in receipts]

            with ThreadPoolExecutor(6) as pool:
                found = list(pool.map(work, range(12)))
            assert [ids(session)] * 12 == found
            for handle in handles:
                handle.close()

    def test_s27_a_writer_who_was_faster_makes_us_branch(self, pair: Pair) -> None:
        """Nothing is lost, the receipt says so, and the next append goes on there."""
        ours, theirs = pair
        base = ours.leaf_id
        first, second = theirs.append_message(user("theirs")), ours.append_message(user("ours"))
        assert (first.diverged, second.diverged) == (False, True)
        assert first.parent_id == second.parent_id == base
        for handle in pair:
            assert [head.id for head in handle.get_heads()] == [first.id, second.id]
        assert [head.id for head in ours.get_abandoned()] == [first.id]
        assert (told(ours), told(theirs)) == (["base", "ours"], ["base", "theirs"])
        assert not ours.append_message(user("on")).diverged
        assert not theirs.append_message(user("on")).diverged

    def test_s28_who_follows_hangs_below_the_other(self, pair: Pair) -> None:
        """One line of history, with what came between in the context."""
        ours, theirs = pair
        assert told(ours) == ["base"]
        theirs.append_many([asked("one"), asked("two")])
        receipts = ours.append_many([asked("three"), asked("four")], on_leaf_moved="follow")
        assert (receipts[0].parent_id, receipts[1].parent_id) == (theirs.leaf_id, receipts[0].id)
        assert not any(receipt.diverged for receipt in receipts)
        assert told(ours) == ["base", "one", "two", "three", "four"]
        assert len(ours.get_heads()) == 1

    def test_s29_who_fails_writes_nothing_until_it_has_looked(self, pair: Pair) -> None:
        """The error comes again and again; after `follow` it does not."""
        ours, theirs = pair
        say(theirs, "theirs")
        before = ids(theirs)
        for _ in range(2):
            with pytest.raises(LeafMoved):
                ours.append_many([asked("ours")], on_leaf_moved="fail")
        assert (ids(ours), told(ours)) == (before, ["base"])
        assert (ours.follow(), ours.follow()) == (True, False)
        assert told(ours) == ["base", "theirs"]
        assert ours.append_many([asked("ours")], on_leaf_moved="fail")[0].parent_id == before[-1]

    def test_s30_following_stands_where_opening_would(self, pair: Pair) -> None:
        """Also where another process has moved the leaf back, behind which its entries are no news."""
        ours, theirs = pair
        base = ours.leaf_id
        assert base is not None
        say(theirs, "left")
        theirs.branch(base, durable=True)
        ours.follow()
        assert (ours.leaf_id, told(ours)) == (base, ["base"])
        assert ours.append_many([asked("on")], on_leaf_moved="fail")[0].parent_id == base

    def test_s31_many_writers_lose_nothing(self, open_store: OpenStore) -> None:
        """Every acknowledged entry is there, below the parent that its receipt names."""
        with begun(open_store()) as session:
            say(session, "base")

            def work(name: str) -> list[tuple[str, str | None]]:
                with open_store().open(session.path) as handle:
                    made = [handle.append_many([asked(name)], on_leaf_moved="follow")[0] for _ in range(8)]
                return [(receipt.id, receipt.parent_id) for receipt in made]

            with ThreadPoolExecutor(4) as pool:
                told_of = {pair for pairs in pool.map(work, "pqrs") for pair in pairs}
            found = {(entry.id, entry.parent_id) for entry in session.get_entries()[1:]}
            assert found == told_of and len(found) == 32
            assert session.findings == []

    def test_s32_a_handle_on_a_deleted_session_is_told(self, open_store: OpenStore) -> None:
        """Nothing is written into the trash; after an undo it goes on."""
        store = open_store()
        with begun(store) as session:
            say(session, "one")
            deletion = open_store().delete(session.id)
            before = files(store)
            with pytest.raises(SessionNotFound):
                say(session, "two")
            assert files(store) == before
            store.undo(deletion.token)
            session.reopen()
            say(session, "three")
            assert told(session) == ["one", "three"]

    def test_s33_named_sessions_are_found_by_every_process(self, open_store: OpenStore) -> None:
        """One makes it; a deleted one is begun anew, also for whoever had it open."""
        with NamedSessions(open_store(), "kit") as ours, NamedSessions(open_store(), "kit") as theirs:
            assert ours.find("team", "thread/1") is None
            say(ours.open("team", "thread/1", title="T"), "one")
            found = theirs.find("team", "thread/1")
            assert found is not None and (found.title, told(found)) == ("T", ["one"])
            assert [(named.scope, named.name) for named in theirs.list()] == [("team", "thread/1")]
            token = ours.delete("team", "thread/1")
            assert token is not None
            assert (theirs.find("team", "thread/1"), ours.delete("team", "thread/1"), theirs.list()) == (None, None, [])
            assert told(theirs.open("team", "thread/1")) == []


def _outline(session: Session) -> list[list[str]]:
    """Tips, roots and all entries."""
    found = (session.get_heads(), session.get_children(None), session.get_entries())
    return [[entry.id for entry in entries] for entries in found]
