"""Bindings in a database: changes are made one at a time, and readers see all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from sessile import Store
from sessile.agents.openclaw.binding_store import Changes, Entries, TableStore, own_bindings
from sessile.agents.openclaw.document import BrokenStore, parse_store
from sessile.agents.openclaw.entries import SessionEntry
from sessile.agents.openclaw.importing import import_bindings
from sessile.agents.openclaw.paths import names_in
from sessile.errors import Conflict
from sessile.gateway.conversations.inbound import Inbound
from sessile.gateway.conversations.registry import Conversations
from sessile.storage.postgres.binding_table import BindingTable
from sessile.storage.postgres.database import Database, OutcomeUnknown, lost
from sessile.storage.postgres.schema import migrate
from sessions import Clock, numbered

pytestmark = pytest.mark.mission("B8")

PATH = "/root/agents/main/sessions/sessions.json"
NOW = 1_771_243_200_000
Stores = Callable[[], TableStore]


@pytest.fixture
def stores(postgres_url: str) -> Stores:
    """Return a function that opens the bindings of one agent, as separate processes do."""
    migrate(Database(postgres_url))
    return lambda: TableStore(PATH, BindingTable(Database(postgres_url), "main"), lambda: None)


def entry(number: int) -> SessionEntry:
    return SessionEntry({"sessionId": f"id-{number}", "updatedAt": NOW + number, "inputTokens": number})


def put(store: TableStore, **entries: SessionEntry | None) -> Changes:
    return store.update_all(lambda _: entries, now=NOW)


def test_what_one_writes_everybody_reads(stores: Stores) -> None:
    """Another process sees new, changed and removed entries, and a stale reader knows that it is stale."""
    one, two = stores(), stores()
    assert one.read() == {}
    put(one, a=entry(1), b=entry(2))
    assert two.read() == {"a": entry(1), "b": entry(2)}
    put(two, a=entry(3), b=None)
    assert one.known() is None
    assert one.read() == {"a": entry(3)}
    assert one.known() is one.last
    assert one.document().entries == {"a": entry(3)}


def test_only_what_changed_is_read_again(stores: Stores) -> None:
    """After one change among a thousand entries, the others stay the same objects."""
    one, two = stores(), stores()
    put(one, **{f"k{number}": entry(number) for number in range(1000)})
    before = two.load().entries
    put(one, k7=entry(70))
    after = two.load().entries
    assert after["k7"] == entry(70)
    assert all(after[key] is before[key] for key in before if key != "k7")


def test_a_change_is_decided_on_what_is_there(stores: Stores) -> None:
    """A change that was based on an old revision is decided again on the newest one."""
    one, two = stores(), stores()
    put(one, a=entry(1))
    two.read()
    asked: list[int] = []

    def raise_it(entries: Entries) -> Changes:
        if not asked:
            put(one, a=entry(5))  # between reading and writing
        asked.append(entries["a"]["inputTokens"])
        return {"a": entries["a"].changed({"inputTokens": entries["a"]["inputTokens"] + 1})}

    two.update_all(raise_it, now=NOW)
    assert asked == [1, 5]
    assert one.read()["a"]["inputTokens"] == 6


def test_sums_of_many_writers_are_sums(stores: Stores) -> None:
    """Concurrent counts add up and none is lost."""
    put(stores(), a=entry(0), b=entry(0))

    def count() -> None:
        store = stores()
        for _ in range(20):
            store.update("a", lambda old: old and old.changed({"inputTokens": old["inputTokens"] + 1}), now=NOW)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores().read()["a"]["inputTokens"] == 80


def test_what_is_not_changed_is_not_written(stores: Stores) -> None:
    """Writing an unchanged entry keeps the revision, so other processes do not read again."""
    store = stores()
    put(store, a=entry(1))
    revision = store.look()
    assert put(store, a=entry(1)) == {} and put(store, b=None) == {}
    assert store.look() == revision


def test_a_change_that_raises_changes_nothing(stores: Stores) -> None:
    """For example, a change that finds an unexpected session writes nothing."""
    store = stores()

    def refuse(entries: Entries) -> Changes:
        raise Conflict("no")

    with pytest.raises(Conflict):
        store.update_all(refuse, now=NOW)
    assert stores().look() == 0


def test_keys_of_all_kinds_keep_their_letters(stores: Stores) -> None:
    """Keys with quotes, half an emoji or no characters, and their texts, are returned unchanged."""
    keys = ["", 'a"b', "\\", "\ud83d", "Größe", "a\nb", "a\0b"]
    put(stores(), **{key: SessionEntry({"sessionId": "x", "text": key}) for key in keys})
    found = stores().read()
    assert set(found) == set(keys)
    assert all(found[key]["text"] == key for key in keys)
    assert stores().get("grösse") is None and stores().get("größe") == found["Größe"]


def test_a_text_that_is_no_entry_is_told(stores: Stores, postgres_url: str) -> None:
    """An invalid row, for example after a manual edit, raises `BrokenStore`."""
    put(stores(), a=entry(1))
    Database(postgres_url).query("UPDATE binding SET body = '[1]'")
    with pytest.raises(BrokenStore):
        stores().read()


def breaking(monkeypatch: pytest.MonkeyPatch, *, behind: bool) -> None:
    """Break the connection once, before a change is made or after it."""
    query = Database.query
    broken: list[bool] = []

    def broken_query(self: Database, sql: str, *rest: object, **how: bool) -> object:
        if "INSERT INTO binding " not in sql or broken:
            return query(self, sql, *rest, **how)  # type: ignore[arg-type]
        broken.append(True)
        if behind:
            query(self, sql, *rest, **how)  # type: ignore[arg-type]
        raise lost(psycopg.OperationalError("gone"), "somewhere")

    monkeypatch.setattr(Database, "query", broken_query)


@pytest.mark.parametrize("behind", [True, False])
def test_a_change_is_made_once_though_the_connection_breaks(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, behind: bool
) -> None:
    """After a broken connection the store checks whether the change was made: it is applied exactly once."""
    store = stores()
    put(store, a=entry(1))
    breaking(monkeypatch, behind=behind)
    store.update("a", lambda old: old and old.changed({"inputTokens": old["inputTokens"] + 1}), now=NOW)
    assert stores().read()["a"]["inputTokens"] == 2


def test_a_change_of_which_nobody_can_tell_whether_it_was_made_is_told(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another process wrote before the check, `OutcomeUnknown` is raised."""
    store, other = stores(), stores()
    put(store, a=entry(1))
    revision = BindingTable.revision
    query = Database.query
    broken: list[bool] = []

    def broken_query(self: Database, sql: str, *rest: object, **how: bool) -> object:
        if "INSERT INTO binding " not in sql or broken:
            return query(self, sql, *rest, **how)  # type: ignore[arg-type]
        broken.append(True)
        query(self, sql, *rest, **how)  # type: ignore[arg-type]
        put(other, a=entry(9))
        raise lost(psycopg.OperationalError("gone"), "somewhere")

    monkeypatch.setattr(Database, "query", broken_query)
    with pytest.raises(OutcomeUnknown):
        put(store, a=entry(2))
    assert revision(BindingTable(store._table._database, "main")) == 3


def test_a_store_file_of_another_program_is_imported_and_can_be_written_again(postgres_url: str) -> None:
    """The imported keys are stored in the table, and written back they are a valid store file."""
    store = Store(postgres_url)
    theirs = parse_store(b'{"agent:main:main": {"sessionId": "a", "updatedAt": 5, "future": 1.50}}').entries
    states = [
        binding.state
        for _ in range(2)
        for binding in import_bindings(store, "main", "/their/sessions.json", theirs, {"agent:main:main": "a"})
    ]
    assert states == ["new", "present"]
    own = own_bindings(store, "main")
    assert isinstance(own, TableStore)
    written = parse_store(own.document().text.encode()).entries
    assert written == own.read() and written["agent:main:main"]["future"] == 1.5
    again = own_bindings(Store(postgres_url), "other")
    again.update_all(lambda _: written, now=NOW)
    assert again.document().text == own.document().text
    assert names_in(store.fs, f"{store.layout.root}/agents") == ["main", "other"]


def test_conversations_in_a_database_are_those_of_a_folder(postgres_url: str, tmp_path: Path) -> None:
    """The same messages, resets, patches and deletions leave the same bindings and sessions."""
    found = []
    for root in (postgres_url, tmp_path):
        store = Store(root, clock=Clock(), random=numbered("same"))
        with Conversations(store, workspace=lambda agent: f"/work/{agent}", hold=None) as conversations:
            conversations.resolve("main")
            conversations.resolve(Inbound(channel="telegram", peer="Ann", to="Ann"))
            conversations.reset("main", "new")
            conversations.patch("agent:main:hook:x", {"label": "named"})
            conversations.resolve("agent:main:hook:y")
            note = conversations.delete("agent:main:hook:y")
            conversations.undo(note.token)
            conversations.count("main", conversations.resolve("main").session_id, usage=None, compactions=2)
        entries = own_bindings(store, "main").read()
        assert not any(str(store.layout.root) in str(entry.members) for entry in entries.values())
        found.append((entries, sorted(info.id for info in store.list_all())))
    assert found[0] == found[1]
