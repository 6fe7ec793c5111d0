"""Importing the keys of a store file: new ones are added, changes and deletions made here stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import Json
from sessile import Store
from sessile.agents.openclaw.binding_store import own_bindings
from sessile.agents.openclaw.document import BrokenStore, parse_store
from sessile.agents.openclaw.entries import MARK, SessionEntry
from sessile.agents.openclaw.importing import ImportedBinding, conversation_keys, import_bindings
from sessile.errors import Damaged
from sessions import snapshot, store_at
from yoyoclaw import GROUP, MAIN, NOW, stored, write

pytestmark = pytest.mark.mission("Y2")

THEIRS = "/theirs/sessions.json"
OTHER_HOME = "/other/sessions.json"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_at(tmp_path / "ours")


def run(store: Store, entries: Json, path: str = THEIRS, **sessions: str) -> dict[str, str]:
    """Import some entries; return what happened to each key."""
    return {binding.key: binding.state for binding in accounts(store, entries, path, **sessions)}


def accounts(store: Store, entries: Json, path: str = THEIRS, **sessions: str) -> list[ImportedBinding]:
    by_key = {key: sessions[entry["sessionId"]] for key, entry in entries.items() if entry["sessionId"] in sessions}
    return import_bindings(store, "main", path, {key: SessionEntry(e) for key, e in entries.items()}, by_key)


def ours(store: Store) -> dict[str, Json]:
    """Return our bindings, without the marks."""
    found = own_bindings(store, "main").read()
    return {key: {name: v for name, v in entry.members.items() if name != MARK} for key, entry in found.items()}


def test_keys_are_bound_below_the_agent_in_our_root(store: Store, tmp_path: Path) -> None:
    """The store file has the same format and keys, with the ids of our sessions."""
    odd = {MAIN: {"sessionId": "a", "provider": "x"}, "cron:Nightly": {"sessionId": "b"}, "agent:": {"sessionId": "c"}}
    assert run(store, odd, a="a", b="b-topic-7") == {MAIN: "new", "cron:Nightly": "new", "agent:": "new"}
    assert own_bindings(store, "main").path == str(tmp_path / "ours/agents/main/sessions/sessions.json")
    assert ours(store) == {**odd, "cron:Nightly": {"sessionId": "b-topic-7"}}


def test_a_second_run_writes_nothing(store: Store, tmp_path: Path) -> None:
    """No byte, time or lock changes."""
    entries = {MAIN: {"sessionId": "a"}, "half \ud83d": {"sessionId": "b"}}
    run(store, entries)
    before = snapshot(tmp_path)
    assert set(run(store, entries).values()) == {"present"}
    assert snapshot(tmp_path) == before
    assert accounts(store, {}) == []


def test_a_binding_that_is_as_it_came_follows_its_source(store: Store) -> None:
    """After a reset in the source, the key leads to the new session."""
    run(store, {MAIN: {"sessionId": "a", "updatedAt": 5}})
    assert run(store, {MAIN: {"sessionId": "b", "updatedAt": 9}}) == {MAIN: "updated"}
    assert ours(store)[MAIN]["sessionId"] == "b"
    assert run(store, {MAIN: {"sessionId": "b", "updatedAt": 9, "label": "by hand"}}) == {MAIN: "updated"}
    assert run(store, {MAIN: {"sessionId": "a", "updatedAt": 5}}) == {MAIN: "older"}
    assert ours(store)[MAIN] == {"sessionId": "b", "updatedAt": 9, "label": "by hand"}


def test_a_transcript_that_comes_later_is_bound_then(store: Store) -> None:
    """This happens even if the entry itself did not change."""
    run(store, {MAIN: {"sessionId": "a"}})
    assert run(store, {MAIN: {"sessionId": "a"}}, a="a-topic-7") == {MAIN: "updated"}
    assert ours(store)[MAIN] == {"sessionId": "a-topic-7"}


def test_what_was_changed_here_stays(store: Store) -> None:
    """Our gateway has continued it; a binding that was never imported stays too."""
    own_bindings(store, "main").update(GROUP, lambda _: SessionEntry({"sessionId": "mine"}), now=NOW)
    run(store, {MAIN: {"sessionId": "a"}})
    change = {"sessionId": "mine"}
    own_bindings(store, "main").update(MAIN, lambda entry: entry and entry.changed(change), now=NOW)
    news = {MAIN: {"sessionId": "b", "updatedAt": NOW + 1}, GROUP: {"sessionId": "g"}}
    assert run(store, news) == {MAIN: "ours", GROUP: "ours"}
    assert {key: entry["sessionId"] for key, entry in ours(store).items()} == {MAIN: "mine", GROUP: "mine"}


def test_what_was_deleted_here_stays_deleted(store: Store) -> None:
    """This holds even if it changed in the source; its next message starts a new session here."""
    run(store, {MAIN: {"sessionId": "a"}, GROUP: {"sessionId": "g"}})
    own = own_bindings(store, "main")
    own.update_all(lambda entries: {MAIN: None}, now=NOW)
    assert run(store, {MAIN: {"sessionId": "b", "updatedAt": NOW}, GROUP: {"sessionId": "g"}})[MAIN] == "deleted"
    assert list(ours(store)) == [GROUP]


def test_two_homes_with_one_key_do_not_take_turns(store: Store) -> None:
    """The newer one wins; of two with the same time, the first one."""
    one, other = {MAIN: {"sessionId": "a", "updatedAt": 5}}, {MAIN: {"sessionId": "b", "updatedAt": 5}}
    assert run(store, one) == {MAIN: "new"}
    for _ in range(2):
        assert run(store, other, OTHER_HOME) == {MAIN: "older"}
        assert run(store, one) == {MAIN: "present"}
    newer = {MAIN: {"sessionId": "b", "updatedAt": 6}}
    assert run(store, newer, OTHER_HOME) == {MAIN: "updated"}
    assert run(store, one) == {MAIN: "older"}


def test_another_spelling_of_a_key_is_the_same_key(store: Store) -> None:
    """It is not bound twice; two spellings in one file are both kept."""
    run(store, {GROUP: {"sessionId": "a", "updatedAt": 1}})
    shouted = GROUP.replace("group", "GROUP")
    assert run(store, {shouted: {"sessionId": "a", "updatedAt": 2}}) == {shouted: "updated"}
    assert list(ours(store)) == [GROUP]


def test_what_is_odd_about_an_entry_is_told(store: Store) -> None:
    """The entry is kept as it is."""
    [binding] = accounts(store, {MAIN: {"sessionId": "a", "queueCap": "three", "future": 1}}, a="a")
    assert binding.kept == ["sessionId", "queueCap", "future"]
    assert binding.odd == ["queueCap: expected int, found str"]
    assert ours(store)[MAIN]["queueCap"] == "three"


def test_an_entry_that_cannot_be_written_does_not_stop_the_others(store: Store) -> None:
    """The error is reported, and the saved file still has the entry."""
    theirs = parse_store(b'{"agent:main:x": {"n": 1e400}, "agent:main:main": {"sessionId": "a"}}').entries
    refused, new = import_bindings(store, "main", THEIRS, theirs, {})
    assert (refused.key, refused.state, new.state) == ("agent:main:x", "refused", "new")
    assert refused.odd and list(ours(store)) == [MAIN]


def test_broken_files_of_ours_are_never_written_over(store: Store, tmp_path: Path) -> None:
    """Neither the bindings nor the list of imported keys is overwritten."""
    run(store, {MAIN: {"sessionId": "a"}})
    path = Path(own_bindings(store, "main").path)
    whole = path.read_bytes()
    path.write_bytes(b"{")
    with pytest.raises(BrokenStore):
        run(store, {GROUP: {"sessionId": "g"}})
    path.write_bytes(whole)
    ledger = tmp_path / "ours/agents/main/imported.json"
    ledger.write_bytes(b"oops")
    with pytest.raises(Damaged):
        run(store, {GROUP: {"sessionId": "g"}})
    assert (path.read_bytes(), ledger.read_bytes()) == (whole, b"oops")


def test_the_keys_of_a_gateway_are_told_at_a_glance(store: Store, tmp_path: Path) -> None:
    """They are unknown for a folder without a store file and for a broken one."""
    assert conversation_keys(store, str(tmp_path)) is None
    write(tmp_path, "sessions.json", stored({MAIN: {}, GROUP: {}}))
    assert conversation_keys(store, str(tmp_path)) == [MAIN, GROUP]
    write(tmp_path, "sessions.json", b"{}")
    assert conversation_keys(store, str(tmp_path)) == []
    write(tmp_path, "sessions.json", b"[")
    assert conversation_keys(store, str(tmp_path)) is None
