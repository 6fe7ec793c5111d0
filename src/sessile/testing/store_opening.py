"""What every `Store` must do when sessions are begun and opened, as numbered behaviours.

See `store_contract`, of which this is the first part.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from sessile.core import entries as make
from sessile.errors import (
    NotASession,
    ReadOnly,
    SessionBusy,
    SessionExists,
    SessionNotFound,
    UnsupportedVersion,
)
from sessile.testing.store_handling import (
    AT,
    CWD,
    Abandon,
    OpenStore,
    answer,
    assistant,
    begun,
    data,
    entry,
    files,
    header,
    ids,
    line,
    names,
    place,
    records,
    say,
    told,
    user,
    write,
)

NO_SESSIONS = [b"precious notes\n", b"\n", b'{"type":"session","version":3,"id":"s', bytes(range(256)), bytes(4096)]


class StoreOpeningContract:
    """The behaviours S01 to S16."""

    @pytest.fixture
    def abandon(self) -> Abandon:
        """How a process dies that has a session open; a store with leases may have to let them end."""
        return lambda session: session._journal.close()

    # Beginning

    def test_s01_a_session_is_a_draft_until_an_assistant_answers(self, open_store: OpenStore) -> None:
        """No listing of any process shows it; the first answer publishes it under the path that was told."""
        store, other = open_store(), open_store()
        with store.create(CWD) as session:
            say(session, "why?")
            assert session.is_draft
            assert (other.list(CWD), other.list_all(), other.find(session.id)) == ([], [], None)
            answer(session, "because")
            assert not session.is_draft
            assert [info.path for info in other.list(CWD)] == [session.path] == [other.find(session.id)]
            with other.open(session.id, readonly=True) as reader:
                assert told(reader) == ["why?", "because"]

    def test_s02_publishing_is_a_choice(self, open_store: OpenStore) -> None:
        """By an argument, or later by a verb, which may be repeated."""
        store = open_store()
        with begun(store) as one, store.create("/later") as two:
            two.publish()
            two.publish()
            assert {info.id for info in open_store().list_all()} == {one.id, two.id}
            say(two, "more")
        assert len(records(store, two.path)) == 2

    def test_s03_a_draft_whose_owner_lives_is_left_alone(self, open_store: OpenStore) -> None:
        """Others begin sessions of their own; who wants that one is told that somebody holds it."""
        other = open_store()
        with open_store().create(CWD) as session:
            say(session, "mine")
            with other.continue_recent(CWD) as theirs:
                assert theirs.id != session.id
            with pytest.raises(SessionBusy):
                other.open(session.path)
            with other.open(session.path, readonly=True) as reader:
                assert (reader.path, told(reader)) == (session.path, ["mine"])
            answer(session, "yes")
        assert [info.id for info in other.list_all()] == [session.id]

    @pytest.mark.parametrize("how", ["closed", "dead"])
    @pytest.mark.parametrize("finder", ["continue", "create", "open"])
    def test_s04_a_draft_without_an_owner_is_recovered(
        self, open_store: OpenStore, abandon: Abandon, how: str, finder: str
    ) -> None:
        """Whoever continues or begins something in the project finds it, and whoever opens its path."""
        session = open_store().create(CWD)
        say(session, "pending")
        session.close() if how == "closed" else abandon(session)
        store = open_store()
        assert store.list_all() == []
        if finder == "create":
            with store.create(CWD) as new:
                assert new.id != session.id
        else:
            with store.continue_recent(CWD) if finder == "continue" else store.open(session.path) as found:
                assert (found.id, found.is_draft, told(found)) == (session.id, False, ["pending"])
        assert [info.id for info in store.list(CWD)] == [session.id]

    def test_s05_an_empty_draft_leaves_nothing(self, open_store: OpenStore) -> None:
        """There was nothing in it but the header that we wrote."""
        store = open_store()
        with store.create(CWD) as session:
            assert names(store, store.layout.folder(CWD)) != []
        assert names(store, store.layout.folder(CWD)) == []
        with open_store().continue_recent(CWD) as other:
            assert other.id != session.id

    def test_s06_an_id_is_used_once(self, open_store: OpenStore) -> None:
        """In any project and by any process; the error says where the session is."""
        with begun(open_store(), session_id="mine") as session:
            with pytest.raises(SessionExists) as refusal:
                open_store().create("/elsewhere", session_id="mine")
            assert refusal.value.path == session.path

    def test_s07_of_many_who_obtain_a_session_one_makes_it(self, open_store: OpenStore) -> None:
        """All get the same one, and what each appends is in it."""
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

    # Opening

    def test_s08_a_session_is_opened_by_id_and_by_path(self, open_store: OpenStore) -> None:
        """Always the same one; an id that nobody has is told."""
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
        """Its header is there at once: who names a file wants it."""
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
    def test_s10_bytes_that_are_no_session_are_kept_beside_a_new_one(
        self, open_store: OpenStore, content: bytes
    ) -> None:
        """Reading refuses them; writing starts over, and says where they are."""
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

    def test_s11_bytes_that_another_program_has_put_there_are_a_session(self, open_store: OpenStore) -> None:
        """Lines as they are, with members that nobody knows; what is appended stands behind them."""
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

    def test_s12_what_cannot_be_read_is_told_and_stays(self, open_store: OpenStore) -> None:
        """Garbage between entries, and a line that was torn: the entries around them are there."""
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

    def test_s13_version_1_is_brought_up_to_date_and_kept(self, open_store: OpenStore) -> None:
        """Readers see the same before; writers are told where the file is as it was."""
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
        """Ids stay; an original is kept."""
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
        """Nothing is changed by the attempt."""
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
        """No question of a reader or of a listing changes a byte, a time or a name."""
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
