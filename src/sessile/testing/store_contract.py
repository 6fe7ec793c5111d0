"""The contract of a `Store` on any backing, as numbered behaviours for its tests, and helpers to write such tests.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def open_store(self, tmp_path):
            return lambda: Store(...)  # opens the same store again, as another process would

        @pytest.fixture
        def outside(self, tmp_path):
            return str(tmp_path)  # a folder outside the store that its file system can reach

The tests use only the methods and the file system of a store, and set all times they depend on. Override the fixture `abandon` to
define how a process dies. Power cuts and speed are not tested here.
"""

from __future__ import annotations

import base64
import json
import posixpath
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sessile.adapters.named_sessions import NamedSessions
from sessile.core import entries as make
from sessile.errors import (
    Conflict,
    EntryNotFound,
    Invalid,
    InvalidEntry,
    LeafMoved,
    NotASession,
    NotFound,
    ReadOnly,
    SessionBusy,
    SessionExists,
    SessionNotFound,
    UnsupportedVersion,
)
from sessile.export import Export
from sessile.library import Library
from sessile.session import Session
from sessile.storage import atomic
from sessile.storage.layout import artifacts_of
from sessile.storage.session_bytes import below, files_below
from sessile.store import Store
from sessile.transfer import converted, import_session, sync
from sessile.upkeep.check import check, check_all, plan_repair, repair
from sessile.upkeep.prune import PruneRule, apply_prune, plan_prune
from sessile.upkeep.sweep import apply_blob_sweep, plan_blob_sweep

__all__ = ["Abandon", "OpenStore", "StoreContract"]


# -- helpers

CWD = "/work/app"
AT = "2026-02-16T10:20:30.000Z"

Json = dict[str, Any]
OpenStore = Callable[[], Store]
"""Opens the store under test again, as another process would."""
Abandon = Callable[[Session], None]
"""Ends an open session as if its process died: nothing more is stored, and its lock is released."""


def user(text: str) -> Json:
    """Return a user message."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Json:
    """Return an assistant message."""
    return {"role": "assistant", "content": [{"type": "text", "text": text}], "provider": "p", "model": "m"}


def asked(text: str) -> Json:
    """Return a user message as a payload for `append_many`."""
    return {"type": "message", "message": user(text)}


def begun(store: Store, cwd: str = CWD, **options: Any) -> Session:
    """Create a published session, which listings show."""
    return store.create(cwd, publish=True, **options)


def say(session: Session, text: str) -> str:
    """Append a user message and return its id."""
    return session.append_message(user(text)).id


def answer(session: Session, text: str) -> str:
    """Append an assistant message and return its id."""
    return session.append_message(assistant(text)).id


def told(session: Session) -> list[str]:
    """Return the texts of the context of a session."""
    return [_text(message) for message in session.context().messages]


def _text(message: Json) -> str:
    content = message.get("content", message.get("summary"))
    return content if isinstance(content, str) else "|".join(block.get("text", "") for block in content or [])


def ids(session: Session) -> list[str]:
    """Return the ids of all entries, in order."""
    return [entry.id for entry in session.iter_entries()]


def line(record: Json) -> bytes:
    """Return a record as a line of a session file."""
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def header(session_id: str = "s1", **members: Any) -> Json:
    """Return the header of a session written by another program."""
    return {"type": "session", "version": 3, "id": session_id, "timestamp": AT, "cwd": CWD, **members}


def entry(kind: str, entry_id: str | None, parent_id: str | None = None, **members: Any) -> Json:
    """Return an entry written by another program; entries of version 1 have no id."""
    named = {} if entry_id is None else {"id": entry_id, "parentId": parent_id}
    return {"type": kind, **named, "timestamp": AT, **members}


def place(store: Store, name: str = "2026-02-16T10-20-30-000Z_s1.jsonl") -> str:
    """Return the path of a session file in the project."""
    return f"{store.layout.folder(CWD)}/{name}"


def write(store: Store, path: str, *lines: bytes) -> str:
    """Write a file as another program would, and return its path."""
    atomic.make_folders(store.fs, posixpath.dirname(path))
    atomic.replace(store.fs, path, lines)
    return path


def data(store: Store, path: str) -> bytes:
    """Return the bytes of a file."""
    return atomic.read_all(store.fs, path)


def records(store: Store, path: str) -> list[Json]:
    """Return the lines of a session file, decoded."""
    return [json.loads(raw) for raw in data(store, path).splitlines()]


def files(store: Store, folder: str | None = None) -> dict[str, tuple[int, int, bytes]]:
    """Return inode, time of modification and content of every file below a folder (default: the root), without the cache."""
    top = store.layout.root if folder is None else folder
    found = [(path, status) for path, status in files_below(store.fs, top) if not _is_below(store.layout.cache, path)]
    return {path: (status.st_ino, status.st_mtime_ns, data(store, path)) for path, status in found}


def names(store: Store, folder: str) -> list[str]:
    """Return the relative paths of everything below a folder."""
    return sorted(posixpath.relpath(path, folder) for path, _ in below(store.fs, folder) if path != folder)


def _is_below(folder: str, path: str) -> bool:
    return path.startswith(f"{folder}/")


# -- creating and opening

NO_SESSIONS = [b"precious notes\n", b"\n", b'{"type":"session","version":3,"id":"s', bytes(range(256)), bytes(4096)]


class StoreOpeningContract:
    """The behaviours S01 to S16."""

    @pytest.fixture
    def abandon(self) -> Abandon:
        """How a process with an open session dies; a store with leases may have to let them expire."""
        return lambda session: session._journal.close()

    # -- creating

    def test_s01_a_session_is_a_draft_until_an_assistant_answers(self, open_store: OpenStore) -> None:
        """Other processes list it, marked, and find it; the first answer publishes it under its final name."""
        store, other = open_store(), open_store()
        with store.create(CWD) as session:
            assert (other.list(CWD), other.list_all()) == ([], [])
            say(session, "why?")
            assert session.is_draft and not session.path.endswith(".jsonl")
            for infos in (other.list(CWD), other.list_all()):
                assert [(info.path, info.draft) for info in infos] == [(session.path, True)]
            assert other.find(session.id) == session.path
            draft = session.path
            answer(session, "because")
            assert not session.is_draft and session.path.endswith(".jsonl")
            assert [(info.path, info.draft) for info in other.list(CWD)] == [(session.path, False)]
            assert other.find(session.id) == session.path
            with other.open(draft, readonly=True) as reader:
                assert (reader.path, told(reader)) == (session.path, ["why?", "because"])
            with other.open(session.id, readonly=True) as reader:
                assert told(reader) == ["why?", "because"]

    def test_s02_publishing_is_a_choice(self, open_store: OpenStore) -> None:
        """A session is published by an argument, or later by a method, which may be called again."""
        store = open_store()
        with begun(store) as one, store.create("/later") as two:
            two.publish()
            two.publish()
            assert {info.id for info in open_store().list_all()} == {one.id, two.id}
            say(two, "more")
        assert len(records(store, two.path)) == 2

    def test_s03_a_draft_that_is_held_is_left_alone(self, open_store: OpenStore) -> None:
        """Other processes create their own sessions; that one can be read, and opening it for writing raises SessionBusy."""
        other = open_store()
        with open_store().create(CWD) as session:
            say(session, "mine")
            with other.continue_recent(CWD) as theirs:
                assert theirs.id != session.id
            for ref in (session.id, session.path, session.path.replace(".draft", ".jsonl")):
                with pytest.raises(SessionBusy):
                    other.open(ref)
                with other.open(ref, readonly=True) as reader:
                    assert (reader.path, reader.is_draft, told(reader)) == (session.path, True, ["mine"])
            with pytest.raises(SessionBusy):
                other.delete(session.id)
            answer(session, "yes")
        assert [info.id for info in other.list_all()] == [session.id]

    @pytest.mark.parametrize("how", ["closed", "dead"])
    @pytest.mark.parametrize("finder", ["continue", "create", "id", "path", "final path"])
    def test_s04_a_draft_without_an_owner_is_recovered(
        self, open_store: OpenStore, abandon: Abandon, how: str, finder: str
    ) -> None:
        """It is listed and read as it is. Continuing or creating a session in the project, or opening it, publishes it."""
        session = open_store().create(CWD)
        say(session, "pending")
        session.close() if how == "closed" else abandon(session)
        refs = {"id": session.id, "path": session.path, "final path": session.path.replace(".draft", ".jsonl")}
        store = open_store()
        assert [(info.id, info.path, info.draft) for info in store.list_all()] == [(session.id, session.path, True)]
        for ref in refs.values():
            with store.open(ref, readonly=True) as reader:
                assert (reader.path, told(reader)) == (session.path, ["pending"])
        if finder == "create":
            with store.create(CWD) as new:
                assert new.id != session.id
        else:
            with store.continue_recent(CWD) if finder == "continue" else store.open(refs[finder]) as found:
                assert (found.id, found.is_draft, told(found)) == (session.id, False, ["pending"])
        assert [(info.id, info.draft) for info in store.list(CWD)] == [(session.id, False)]
        assert store.find(session.id) == refs["final path"]

    def test_s05_an_empty_draft_leaves_nothing(self, open_store: OpenStore) -> None:
        """A draft that has only its header is removed."""
        store = open_store()
        with store.create(CWD) as session:
            assert names(store, store.layout.folder(CWD)) != []
        assert names(store, store.layout.folder(CWD)) == []
        with open_store().continue_recent(CWD) as other:
            assert other.id != session.id

    def test_s06_an_id_is_used_once(self, open_store: OpenStore) -> None:
        """In all projects and processes; the error has the path of the existing session."""
        with begun(open_store(), session_id="mine") as session:
            with pytest.raises(SessionExists) as refusal:
                open_store().create("/elsewhere", session_id="mine")
            assert refusal.value.path == session.path

    def test_s07_concurrent_obtains_create_one_session(self, open_store: OpenStore) -> None:
        """All get the same session, and it has the entries of all."""
        path = place(open_store())
        stores = [open_store() for _ in range(4)]

        def work(number: int) -> str:
            head = make.header(f"from-{number}", AT, CWD)
            with stores[number % 4].obtain(path, head) as session:
                say(session, str(number))
                return session.id

        with ThreadPoolExecutor(8) as pool:
            found = set(pool.map(work, range(8)))
        assert len(found) == 1
        written = records(stores[0], path)
        assert [record["type"] for record in written] == ["session", *["message"] * 8]
        assert sorted(record["message"]["content"] for record in written[1:]) == [str(number) for number in range(8)]

    # -- opening

    def test_s08_a_session_is_opened_by_id_and_by_path(self, open_store: OpenStore) -> None:
        """Both open the same session; an unknown id raises."""
        store = open_store()
        with begun(store) as session:
            leaf = say(session, "one")
        for ref in (session.id, session.path):
            with open_store().open(ref) as again:
                assert (again.id, again.path, again.cwd, again.leaf_id) == (session.id, session.path, CWD, leaf)
        with pytest.raises(SessionNotFound):
            store.open("nobody")
        with pytest.raises(SessionNotFound):
            store.open(place(store, "t_nobody.jsonl"), readonly=True)

    @pytest.mark.parametrize("blank", [False, True], ids=["missing", "empty"])
    def test_s09_a_missing_or_empty_path_becomes_a_session(self, open_store: OpenStore, blank: bool) -> None:
        """Its header is written at once."""
        store = open_store()
        path = place(store)
        if blank:
            write(store, path)
        with store.open(path, cwd="/wanted") as session:
            (head,) = records(store, path)
            assert (head["type"], head["version"], head["cwd"], head["id"]) == ("session", 3, "/wanted", session.id)
            assert (session.is_draft, session.notices) == (False, [])
            say(session, "one")
        with open_store().open(path) as again:
            assert told(again) == ["one"]

    @pytest.mark.parametrize("content", NO_SESSIONS, ids=["text", "newline", "torn", "binary", "zeros"])
    def test_s10_bytes_that_are_not_a_session_are_kept_beside_a_new_one(
        self, open_store: OpenStore, content: bytes
    ) -> None:
        """Opening them for reading raises; opening them for writing starts over and reports where they are kept."""
        store = open_store()
        path = write(store, place(store), content)
        with pytest.raises(NotASession):
            store.open(path, readonly=True)
        with store.open(path, cwd=CWD) as session:
            say(session, "anew")
            (notice,) = session.notices
        aside = notice.rpartition(" ")[2]
        assert aside.startswith(f"{path}.invalid-")
        assert data(store, aside) == content
        with open_store().open(path) as again:
            assert (again.id, told(again)) == (session.id, ["anew"])

    def test_s11_a_file_written_by_another_program_is_a_session(self, open_store: OpenStore) -> None:
        """Its lines stay as they are, with unknown members; new entries are appended after them."""
        store = open_store()
        lines = [
            line(header(additionalDirectories=["/d"])),
            line(entry("message", "a", None, message=user("one"), unknown={"k": 1.0})),
            b'  { "type":"message", "id":"b", "parentId":"a", "timestamp":"x", "message":{"role":"user","content":"two"}}\r\n',
        ]
        path = write(store, place(store), *lines)
        with store.open("s1", readonly=True) as reader:
            assert (told(reader), ids(reader)) == (["one", "two"], ["a", "b"])
        with store.open("s1") as session:
            assert told(session) == ["one", "two"]
            new = say(session, "three")
        assert data(store, path).startswith(b"".join(lines))
        with open_store().open(path) as again:
            assert (ids(again), again.leaf_id) == (["a", "b", new], new)

    def test_s12_unreadable_bytes_are_reported_and_stay(self, open_store: OpenStore) -> None:
        """Garbage between entries, and a torn line: the other entries can be read."""
        store = open_store()
        torn = b'{"type":"message","id":"torn'
        whole = line(header()) + line(entry("message", "a", None, message=user("one")))
        path = write(
            store, place(store), whole, b"garbage\n", line(entry("message", "b", "a", message=user("two"))), torn
        )
        before = data(store, path)
        with open_store().open(path) as session:
            assert told(session) == ["one", "two"]
            assert [after for after, _ in session.get_gaps()] == ["a", "b"]
            say(session, "three")
            with open_store().open(path, readonly=True) as reader:
                assert (told(reader), len(reader.findings)) == (["one", "two", "three"], 2)
        assert data(store, path).startswith(before)

    def test_s13_version_1_is_migrated_and_the_original_is_kept(self, open_store: OpenStore) -> None:
        """Readers see the same before the migration; writers learn where the original is."""
        store = open_store()
        head = header(provider="p", modelId="m")
        del head["version"]
        story = [
            head,
            entry("message", None, message=user("one")),
            entry("message", None, message=assistant("two")),
            entry("message", None, message={"role": "hookMessage", "customType": "h", "content": "three"}),
            entry("compaction", None, summary="sum", firstKeptEntryIndex=2, tokensBefore=9),
            entry("message", None, message=user("four")),
        ]
        path = write(store, place(store), *map(line, story))
        before = files(store)
        with store.open(path, readonly=True) as reader:
            found, context = ids(reader), told(reader)
        assert (context, files(store)) == (["sum", "two", "three", "four"], before)
        with store.open(path) as session:
            assert (ids(session), told(session)) == (found, context)
            (kept,) = files(store, store.layout.originals)
            assert kept in session.notices[0]
            say(session, "five")
        assert data(store, kept) == before[path][2]
        assert [record.get("version") for record in records(store, path)[:1]] == [3]
        with open_store().open(path) as again:
            assert (ids(again)[:-1], again.notices) == (found, [])

    def test_s14_version_2_changes_only_the_lines_that_need_it(self, open_store: OpenStore) -> None:
        """Ids stay the same, and the original is kept."""
        store = open_store()
        lines = [
            line(header() | {"version": 2}),
            line(entry("message", "a", None, message={"role": "hookMessage", "customType": "h", "content": "hi"})),
            b'{"type": "message", "id": "b", "parentId": "a", "message": {"role": "user", "content": "hello"}}\n',
        ]
        path = write(store, place(store), *lines)
        with store.open(path) as session:
            assert (ids(session), len(session.notices)) == (["a", "b"], 1)
        assert records(store, path)[1]["message"]["role"] == "custom"
        assert data(store, path).splitlines(keepends=True)[2] == lines[2]
        assert [kept for _, _, kept in files(store, store.layout.originals).values()] == [b"".join(lines)]

    def test_s15_a_later_version_is_read_and_not_written(self, open_store: OpenStore) -> None:
        """An attempt to write changes nothing."""
        store = open_store()
        path = write(
            store, place(store), line(header() | {"version": 9}), line(entry("message", "a", message=user("x")))
        )
        before = data(store, path)
        with pytest.raises(UnsupportedVersion):
            store.open(path)
        with store.open(path, readonly=True) as reader:
            assert ids(reader) == ["a"]
        assert data(store, path) == before

    def test_s16_reading_never_writes(self, open_store: OpenStore) -> None:
        """No method of a reader or a listing changes a byte, a time or a name."""
        store = open_store()
        with begun(store) as session:
            first = say(session, "one")
            session.append_label_change(first, "here")
            answer(session, "x" * 600_000)
        write(store, place(store), line(header()), line(entry("message", "a", message=user("as bytes"))), b"garbage\n")
        before = files(store)
        other = open_store()
        for ref in (session.id, "s1"):
            with other.open(ref, readonly=True) as reader:
                reader.context()
                reader.context(bridge=True)
                reader.get_tree()
                reader.get_full_entry(ids(reader)[-1])
                assert reader.count_entries() == len(ids(reader))
                reader.branch(ids(reader)[0])
                with pytest.raises(ReadOnly):
                    say(reader, "no")
        assert {info.id for info in other.list_all(full=True)} == {info.id for info in other.list(CWD)}
        assert (other.find("nobody"), other.deletions()) == (None, ())
        assert files(store) == before


# -- appending and rewriting

Pair = tuple[Session, Session]


class StoreAppendingContract(StoreOpeningContract):
    """The behaviours S17 to S33."""

    @pytest.fixture
    def pair(self, open_store: OpenStore) -> Iterator[Pair]:
        """Two handles on one session with the same leaf."""
        ours = begun(open_store())
        say(ours, "base")
        theirs = open_store().open(ours.path)
        yield ours, theirs
        ours.close()
        theirs.close()

    # -- the tree and its leaf

    def test_s17_a_branch_without_an_append_survives_reopening(self, open_store: OpenStore) -> None:
        """The next append is a child of the entry that was branched to, and markers are not entries."""
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
        """With branches, models, compactions, resets and edits; in a handle opened before, one opened after, and a reader."""
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
        """The last label counts; a removed label is gone."""
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

    # -- rewriting

    def test_s20_a_title_is_in_the_header_and_other_handles_continue(self, open_store: OpenStore) -> None:
        """An automatic title never replaces one set by the user; handles that were open before can still append."""
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
        """Other lines stay byte for byte; ids and parents cannot be changed, and a refused edit changes nothing."""
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

    def test_s22_the_arguments_of_a_tool_call_can_be_replaced(self, open_store: OpenStore) -> None:
        """On any branch; an unknown tool call raises."""
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
        """Lines stay short; the context has the image, and the full entry has the whole text."""
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

    # -- many writers

    def test_s24_entries_of_one_call_are_a_chain(self, open_store: OpenStore) -> None:
        """Each entry has a receipt; the first one is a child of the expected leaf, which must exist."""
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
        """A repeated call returns the receipts of the first one, in any handle."""
        ours, theirs = pair
        first = ours.append_many([asked("one"), asked("two")], key="turn-1")
        again = theirs.append_many([asked("one"), asked("two")], key="turn-1")
        assert [(r.id, r.parent_id, r.repeated) for r in again] == [(r.id, r.parent_id, True) for r in first]
        assert [r.id for r in ours.append_many([asked("one"), asked("two")], key="turn-1")] == [r.id for r in first]
        assert len(ids(ours)) == 3

    def test_s26_one_key_from_many_threads_appends_once(self, open_store: OpenStore) -> None:
        """With separate or shared handles, it is appended once."""
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

    def test_s27_a_concurrent_append_makes_a_branch(self, pair: Pair) -> None:
        """Nothing is lost, the receipt reports it, and the next append continues on the new branch."""
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

    def test_s28_with_follow_an_append_continues_after_the_other(self, pair: Pair) -> None:
        """There is one path, and the entries of the other handle are in the context."""
        ours, theirs = pair
        assert told(ours) == ["base"]
        theirs.append_many([asked("one"), asked("two")])
        receipts = ours.append_many([asked("three"), asked("four")], on_leaf_moved="follow")
        assert (receipts[0].parent_id, receipts[1].parent_id) == (theirs.leaf_id, receipts[0].id)
        assert not any(receipt.diverged for receipt in receipts)
        assert told(ours) == ["base", "one", "two", "three", "four"]
        assert len(ours.get_heads()) == 1

    def test_s29_with_fail_an_append_raises_until_follow_is_called(self, pair: Pair) -> None:
        """Every append raises LeafMoved and writes nothing, until `follow` is called."""
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

    def test_s30_follow_moves_to_the_leaf_of_a_new_handle(self, pair: Pair) -> None:
        """Even if another process has moved the leaf back; entries before that are not news."""
        ours, theirs = pair
        base = ours.leaf_id
        assert base is not None
        say(theirs, "left")
        theirs.branch(base, durable=True)
        ours.follow()
        assert (ours.leaf_id, told(ours)) == (base, ["base"])
        assert ours.append_many([asked("on")], on_leaf_moved="fail")[0].parent_id == base

    def test_s31_many_writers_lose_nothing(self, open_store: OpenStore) -> None:
        """Every acknowledged entry is there, with the parent in its receipt."""
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

    def test_s32_a_handle_on_a_deleted_session_raises(self, open_store: OpenStore) -> None:
        """Nothing is written to the trash; after an undo and `reopen` the handle works again."""
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

    def test_s33_named_sessions_are_shared_by_all_processes(self, open_store: OpenStore) -> None:
        """One process creates it; a deleted one is created again, even for a process that had it open."""
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
    """Return heads, roots and all entries."""
    found = (session.get_heads(), session.get_children(None), session.get_entries())
    return [[entry.id for entry in entries] for entries in found]


# -- the whole contract

_DAY = 24 * 3600
_SECOND = 1_000_000_000
_CLAUDE = "c1a0de00-0000-4000-8000-000000000001"


class StoreContract(StoreAppendingContract):
    """The behaviours S01 to S50. Subclasses provide the fixtures `open_store` and `outside`."""

    # -- copying and moving

    def test_s34_a_session_moves_to_another_project_with_its_artifacts(self, open_store: OpenStore) -> None:
        """The header has its previous place; other handles raise because the file is gone."""
        store = open_store()
        with begun(store) as session:
            say(session, "one")
            before, other = session.path, open_store().open(session.path)
            write(store, f"{session.artifacts}/agents/a.txt", b"spilled")
            session.move_to("/work/web")
            assert posixpath.dirname(session.path) == store.layout.folder("/work/web")
            assert records(store, session.path)[0]["cwd"] == "/work/web"
            assert session.header["previousSessionFiles"] == [before]
            assert data(store, f"{artifacts_of(session.path)}/agents/a.txt") == b"spilled"
            assert not atomic.exists(store.fs, before) and not atomic.exists(store.fs, artifacts_of(before))
            with pytest.raises(SessionNotFound):
                say(other, "lost")
            with pytest.raises(SessionNotFound):
                other.close()
            say(session, "two")
            assert told(session) == ["one", "two"]
        assert ([info.id for info in store.list("/work/web")], store.list(CWD)) == ([session.id], [])

    def test_s35_a_move_never_takes_a_name_that_is_taken(self, open_store: OpenStore) -> None:
        """Both sessions stay as they are."""
        store = open_store()
        with begun(store) as session:
            say(session, "one")
            taken = f"{store.layout.folder('/work/web')}/{posixpath.basename(session.path)}"
            write(store, taken, line(header("other")))
            before = files(store)
            with pytest.raises(SessionExists):
                session.move_to("/work/web")
            assert files(store) == before
            say(session, "two")

    def test_s36_a_fork_is_a_copy_of_all_branches_at_the_same_leaf(self, open_store: OpenStore) -> None:
        """It has the labels, blobs and artifacts; new entries are in one of the two only."""
        store = open_store()
        with begun(store) as session:
            one = say(session, "one")
            say(session, "left " * 200_000)
            session.append_label_change(one, "here")
            write(store, f"{session.artifacts}/a.txt", b"spilled")
            session.branch(one)
            before = data(store, session.path)
            with session.fork() as fork:
                assert (ids(fork), fork.leaf_id, fork.get_label(one)) == (ids(session), one, "here")
                assert (fork.id != session.id, fork.header["parentSession"]) == (True, session.path)
                assert data(store, f"{fork.artifacts}/a.txt") == b"spilled"
                say(fork, "there")
            assert data(store, session.path) == before
        with open_store().open(fork.path, readonly=True) as again:
            assert (told(again), again.findings) == (["one", "there"], [])

    def test_s37_a_branch_becomes_a_session_of_its_own(self, open_store: OpenStore) -> None:
        """It has the path to an entry with its labels, and no other entries."""
        with begun(open_store()) as session:
            one, two = say(session, "one"), say(session, "two")
            say(session, "three")
            session.append_label_change(two, "kept")
            with session.create_branched_session(two) as branched:
                assert (told(branched), branched.get_label(two)) == (["one", "two"], "kept")
                assert set(ids(branched)) >= {one, two} and branched.header["parentSession"] == session.path
            assert told(session) == ["one", "two", "three"]

    def test_s38_a_session_from_elsewhere_is_copied_into_a_project(self, open_store: OpenStore, outside: str) -> None:
        """From any folder; the file itself is only read."""
        store = open_store()
        path = write(
            store, f"{outside}/s.jsonl", line(header()), line(entry("message", "a", message=user("from afar")))
        )
        before = files(store, outside)
        with store.fork_from(path, CWD) as copy:
            assert (told(copy), copy.cwd, copy.header["parentSession"]) == (["from afar"], CWD, path)
            say(copy, "on")
        assert files(store, outside) == before
        assert [info.id for info in open_store().list(CWD)] == [copy.id]

    # -- finding and deleting

    def test_s39_listings_are_newest_first_and_by_project(self, open_store: OpenStore) -> None:
        """With title, first text and, on request, counts."""
        store = open_store()
        made = []
        for number, cwd in enumerate([CWD, "/work/web", CWD]):
            with begun(store, cwd, title=f"T{number}") as session:
                say(session, f"say {number}")
            made.append(session)
            atomic.set_modified(store.fs, session.path, (1_700_000_000 + number) * _SECOND)
        other = open_store()
        assert [info.id for info in other.list_all()] == [session.id for session in reversed(made)]
        listed = other.list(CWD, full=True)
        assert [(info.id, info.title, info.first_message, info.message_count) for info in listed] == [
            (made[2].id, "T2", "say 2", 1),
            (made[0].id, "T0", "say 0", 1),
        ]
        assert listed[0].modified.timestamp() == 1_700_000_002
        assert listed[0].size == len(data(store, made[2].path))
        assert (other.list("/nowhere"), other.find(made[1].id), other.find("nobody")) == ([], made[1].path, None)

    def test_s40_the_newest_session_of_a_project_is_continued(self, open_store: OpenStore) -> None:
        """If there is none, a new one is created."""
        store = open_store()
        with begun(store) as old, begun(store) as new, begun(store, "/work/web"):
            say(old, "old")
            say(new, "new")
        for seconds, session in ((1_700_000_001, old), (1_700_000_000, new)):
            atomic.set_modified(store.fs, session.path, seconds * _SECOND)
        with open_store().continue_recent(CWD) as again:
            assert (again.id, told(again)) == (old.id, ["old"])
        with open_store().continue_recent("/nowhere") as begun_anew:
            assert begun_anew.is_draft and told(begun_anew) == []

    def test_s41_a_deletion_can_be_undone(self, open_store: OpenStore) -> None:
        """Session and artifacts are restored byte for byte; a new file at their place is not overwritten."""
        store = open_store()
        with begun(store) as session:
            say(session, "one")
            write(store, f"{session.artifacts}/a.txt", b"spilled")
        before = files(store)
        deletion = store.delete(session.id)
        other = open_store()
        assert (other.list_all(), other.find(session.id)) == ([], None)
        assert [found.token for found in other.deletions()] == [deletion.token]
        moved = files(store, store.layout.trash)
        manifest = moved.pop(f"{store.layout.trash}/{deletion.token}/manifest.json")
        assert session.id.encode() in manifest[2]
        assert sorted(content for *_, content in moved.values()) == sorted(content for *_, content in before.values())
        write(store, session.path, line(header("other")))
        with pytest.raises(Conflict):
            other.undo(deletion.token)
        store.fs.unlink(session.path)
        assert other.undo(deletion.token).paths == deletion.paths
        assert {path: found[1:] for path, found in files(store).items()} == {p: f[1:] for p, f in before.items()}
        assert other.deletions() == ()
        with other.open(session.id) as again:
            say(again, "two")
            assert told(again) == ["one", "two"]

    def test_s42_only_existing_sessions_of_the_store_are_deleted(self, open_store: OpenStore, outside: str) -> None:
        """Missing sessions and files outside the store raise."""
        store = open_store()
        for ref, error in (
            ("nobody", SessionNotFound),
            (place(store), SessionNotFound),
            (f"{outside}/s.jsonl", Invalid),
        ):
            with pytest.raises(error):
                store.delete(ref)
        with pytest.raises(NotFound):
            store.undo("nobody")

    # -- upkeep

    def test_s43_a_whole_session_is_checked_byte_by_byte(self, open_store: OpenStore) -> None:
        """A session written by a store has no problems, and a repair does not touch it."""
        store = open_store()
        with begun(store) as session:
            say(session, "x" * 600_000)
            session.set_session_name("named")
            answer(session, "done")
        before = files(store)
        report = check(open_store(), session.id)
        assert (report.ok, report.problems, report.entries, report.id) == (True, (), 3, session.id)
        assert report.size == report.bytes_accounted == len(before[session.path][2])
        assert [found.path for found in check_all(store)] == [session.path]
        assert repair(store, session.id).original is None
        assert files(store) == before

    def test_s44_damage_is_reported_and_repaired_and_the_original_is_kept(self, open_store: OpenStore) -> None:
        """In a file of another program that was appended to; readable lines stay."""
        store = open_store()
        damaged = line(header()) + line(entry("message", "a", message=user("one"))) + b"garbage\n"
        path = write(store, place(store), damaged)
        with store.open(path) as session:
            say(session, "two")
        before = data(store, path)
        report = check(open_store(), "s1")
        assert [found.kind for found in report.problems] == ["not_json"]
        assert report.size == report.bytes_accounted == len(before)
        plan = plan_repair(store, "s1")
        assert (plan.changes, plan.dropped_bytes, data(store, path)) == (True, len(b"garbage\n"), before)
        done = repair(store, "s1")
        assert done.original is not None and data(store, done.original) == before
        assert (done.kept_entries, done.problems_after) == (2, ())
        assert data(store, path) == before.replace(b"garbage\n", b"")
        with open_store().open("s1") as again:
            say(again, "three")
            assert (told(again), again.findings) == (["one", "two", "three"], [])

    def test_s45_pruning_spares_recent_pinned_and_held_sessions(self, open_store: OpenStore) -> None:
        """A plan changes nothing; when it is applied, each deleted session can be restored alone."""
        store = open_store()
        made = {}
        for name in ("old", "pinned", "young", "used"):
            with begun(store, title=name) as session:
                say(session, name)
            made[name] = session
        now = 1_700_000_000.0
        for name, session in made.items():
            days = 1 if name == "young" else 40
            atomic.set_modified(store.fs, session.path, int(now - days * _DAY) * _SECOND)
        before = files(store)
        with open_store().create("/drafts") as draft:
            say(draft, "held")
            plan = plan_prune(store, PruneRule(older_than=30 * _DAY), pinned=[made["pinned"].id], now=now)
        assert {found.id for found in plan.candidates} == {made["old"].id, made["used"].id}
        assert [(found.id, found.why) for found in plan.spared] == [(made["pinned"].id, "pinned")]
        assert plan.bytes == sum(len(before[made[name].path][2]) for name in ("old", "used"))
        with store.open(made["used"].path) as session:
            say(session, "again")
        done = apply_prune(open_store(), plan)
        assert [path for path, _ in done.refused] == [made["used"].path]
        (deletion,) = done.deletions
        assert deletion.paths == (made["old"].path,)
        store.undo(deletion.token)
        assert data(store, made["old"].path) == before[made["old"].path][2]

    def test_s46_unused_blobs_are_swept(self, open_store: OpenStore) -> None:
        """Blobs used by a session, an original or the trash stay; a sweep can be undone."""
        store = open_store()
        with begun(store) as session:
            first = say(session, "long " * 200_000)
        orphan = store.blobs.put(b"nobody's").hash
        store.delete(session.id)
        later = store.now() / 1000 + 2 * _DAY
        assert plan_blob_sweep(store).orphans == ()
        plan = plan_blob_sweep(open_store(), now=later)
        assert [found.hash for found in plan.orphans] == [orphan]
        done = apply_blob_sweep(store, plan)
        assert done.deletion is not None and not store.blobs.has(orphan)
        store.undo(done.deletion.token)
        assert store.blobs.get(orphan) == b"nobody's"
        store.undo(store.deletions()[0].token)
        with store.open(session.id, readonly=True) as again:
            assert len(again.get_full_entry(first)["message"]["content"]) == 1_000_000

    def test_s47_a_claude_code_session_is_imported_and_converted_back(
        self, open_store: OpenStore, outside: str
    ) -> None:
        """New rows are added by the next import; converting it back returns the original bytes."""
        store = open_store()
        path = f"{outside}/projects/-work-app/{_CLAUDE}.jsonl"
        rows = [_claude(0, None, "why?"), _claude(1, 0, "because")]
        write(store, path, *rows)
        done = import_session(store, path)
        assert (done.id, done.format, done.rows, done.added, done.unreadable) == (_CLAUDE, "claude", 2, 2, ())
        assert data(store, path) == b"".join(rows)
        rows.append(_claude(2, 1, "and now?"))
        write(store, path, *rows)
        again = import_session(open_store(), path)
        assert (again.path, again.added, import_session(store, path).added) == (done.path, 1, 0)
        with open_store().open(_CLAUDE) as session:
            assert told(session) == ["why?", "because", "and now?"]
            assert b"".join(converted(session, "claude", {})) == b"".join(rows)
            say(session, "on")
        with store.fork_from(path, "/work/web") as fork:
            assert (told(fork), fork.cwd) == (["why?", "because", "and now?"], "/work/web")

    def test_s48_exports_contain_the_whole_session(self, open_store: OpenStore) -> None:
        """As JSONL it is the file, byte for byte; as text it has the messages of every branch."""
        store = open_store()
        with begun(store, title="Webhook") as session:
            one = say(session, "first words")
            say(session, "left behind")
            session.branch(one)
            answer(session, "last words")
        with open_store().open(session.id, readonly=True) as reader:
            assert b"".join(Export(reader).written("jsonl")) == data(store, session.path)
            for form in ("md", "txt", "html"):
                written = b"".join(Export(reader).written(form))
                assert all(text in written for text in (b"Webhook", b"first words", b"left behind", b"last words"))

    def test_s49_a_library_finds_what_was_said(self, open_store: OpenStore) -> None:
        """By title, id and words; new entries of other processes are found after a catch-up, deleted sessions are not."""
        store = open_store()
        with begun(store, title="Webhook retries") as session:
            said = say(session, "an aardvark")
        with Library(open_store()) as library:
            assert library.find("webhook") == library.find(session.id) == session.path
            library.catch_up("index")
            assert [hit.entry_id for hit in library.search("aardvark").hits] == [said]
            with store.open(session.path) as again:
                new = say(again, "a zebra")
            library.catch_up("index")
            assert [hit.entry_id for hit in library.search("zebra").hits] == [new]
            library.pins.add(session.id)
            assert store.pins.names() == [session.id]
            store.delete(session.id)
            library.catch_up("index")
            assert (list(library.list().rows), list(library.search("zebra").hits)) == ([], [])

    def test_s50_two_stores_are_synchronized(self, open_store: OpenStore) -> None:
        """Byte for byte, with blobs and artifacts; a session that grew in both ends with the entries of both."""
        store, there = open_store(), Store.in_memory()
        with begun(store, title="T") as session:
            say(session, "long " * 200_000)
            write(store, f"{session.artifacts}/a.txt", b"spilled")
        assert [done.state for done in sync(store, there)] == ["new"]
        assert [done.state for done in sync(there, store)] == ["same"]
        assert _sessions(there) == _sessions(store) and len(_sessions(there)) == 2
        with store.open(session.id) as here, there.open(session.id) as away:
            say(here, "here")
            say(away, "away")
        assert [done.state for done in (*sync(store, there), *sync(there, store))] == ["grown", "grown"]
        with store.open(session.id) as here, there.open(session.id) as away:
            assert sorted(ids(here)) == sorted(ids(away)) and len(ids(here)) == 3
            assert len(here.get_heads()) == 2
        assert [info.size for info in there.list_all()] == [info.size for info in store.list_all()]


def _sessions(store: Store) -> dict[str, tuple[int, bytes]]:
    """Return times and content of the files in the sessions folder, by relative path."""
    folder = store.layout.sessions
    return {posixpath.relpath(path, folder): (at, found) for path, (_, at, found) in files(store, folder).items()}


def _claude(number: int, parent: int | None, text: str) -> bytes:
    """Return a row of Claude Code."""
    role = "assistant" if number % 2 else "user"
    content = [{"type": "text", "text": text}] if number % 2 else text
    message = {"role": role, "content": content} | ({"id": f"msg_{number}", "model": "m"} if number % 2 else {})
    uuids = [None if each is None else f"{each:08d}-0000-4000-8000-000000000000" for each in (number, parent)]
    base = {"type": role, "uuid": uuids[0], "parentUuid": uuids[1], "sessionId": _CLAUDE, "cwd": CWD}
    return line(base | {"version": "2.1.300", "timestamp": f"2026-02-16T10:20:{number:02d}.000Z", "message": message})
