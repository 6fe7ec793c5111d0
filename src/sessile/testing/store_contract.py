"""What every `Store` must do, whatever it stands on, as numbered behaviours.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def open_store(self, tmp_path):
            return lambda: Store(...)  # opens the same store once more, as another process would

        @pytest.fixture
        def outside(self, tmp_path):
            return str(tmp_path)  # a folder beside the store that its file system reaches

Rules: nothing here looks at how a store keeps its files, only at what its verbs and its file system show; times are those
that a test sets. Where a process has to die, the fixture `abandon` says how.

It does not know what survives a power cut, nor how fast anything is.
"""

from __future__ import annotations

import posixpath

import pytest

from sessile.converting import converted, import_session
from sessile.errors import Conflict, Invalid, NotFound, SessionExists, SessionNotFound
from sessile.exporting import Export
from sessile.library import Library
from sessile.storage import atomic
from sessile.storage.layout import artifacts_of
from sessile.store import Store
from sessile.syncing import sync
from sessile.testing.store_appending import StoreAppendingContract
from sessile.testing.store_handling import (
    CWD,
    Abandon,
    OpenStore,
    answer,
    begun,
    data,
    entry,
    files,
    header,
    ids,
    line,
    place,
    records,
    say,
    told,
    user,
    write,
)
from sessile.upkeep.blob_sweep import apply_blob_sweep, plan_blob_sweep
from sessile.upkeep.checking import check, check_all, plan_repair, repair
from sessile.upkeep.pruning import PruneRule, apply_prune, plan_prune

__all__ = ["Abandon", "OpenStore", "StoreContract"]

_DAY = 24 * 3600
_SECOND = 1_000_000_000
_CLAUDE = "c1a0de00-0000-4000-8000-000000000001"


class StoreContract(StoreAppendingContract):
    """The behaviours S01 to S50. Subclasses provide the fixtures `open_store` and `outside`."""

    # Copies and moves

    def test_s34_a_session_moves_to_another_project_with_its_artifacts(self, open_store: OpenStore) -> None:
        """The header says where it was; whoever else has it open is told that it is not there any more."""
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
        """Both stay as they are."""
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
        """With labels, blobs and artifacts; what is said there is not said here."""
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
        """The path to an entry and no other, with its labels."""
        with begun(open_store()) as session:
            one, two = say(session, "one"), say(session, "two")
            say(session, "three")
            session.append_label_change(two, "kept")
            with session.create_branched_session(two) as branched:
                assert (told(branched), branched.get_label(two)) == (["one", "two"], "kept")
                assert set(ids(branched)) >= {one, two} and branched.header["parentSession"] == session.path
            assert told(session) == ["one", "two", "three"]

    def test_s38_a_session_from_elsewhere_is_copied_into_a_project(self, open_store: OpenStore, outside: str) -> None:
        """A file of any folder; the file itself is only read."""
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

    # Finding and deleting

    def test_s39_listings_are_newest_first_and_by_project(self, open_store: OpenStore) -> None:
        """With title, first words and counts as far as they are asked for."""
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
        """Else a new one is begun."""
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
        """Session and artifacts come back as they were, byte for byte; what takes their place is not overwritten."""
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

    def test_s42_what_is_not_there_is_not_deleted(self, open_store: OpenStore, outside: str) -> None:
        """Nor what is not the store's own."""
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

    # Looking after

    def test_s43_a_whole_session_is_checked_byte_by_byte(self, open_store: OpenStore) -> None:
        """Nothing is wrong with what a store has written, and a repair does not touch it."""
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

    def test_s44_damage_is_told_and_repaired_with_the_original_kept(self, open_store: OpenStore) -> None:
        """In a file that somebody put there, and in a session that was written since; what can be read stays."""
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

    def test_s45_pruning_spares_what_is_young_pinned_or_held(self, open_store: OpenStore) -> None:
        """A plan changes nothing; when it is applied, each session that goes can be brought back alone."""
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

    def test_s46_blobs_that_nothing_names_are_swept(self, open_store: OpenStore) -> None:
        """Those that a session, an original or the trash names stay; a sweep can be undone."""
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

    def test_s47_a_session_of_claude_code_is_imported_and_comes_back(self, open_store: OpenStore, outside: str) -> None:
        """What is new is added the next time; converting it back gives the bytes that it had."""
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

    def test_s48_a_session_leaves_as_it_is(self, open_store: OpenStore) -> None:
        """As lines it is the file, byte for byte; as text it has what was said on every branch."""
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
        """By title, by id and by words; what another process appends is found after the next look, what was deleted is not."""
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
            assert Library(store).pins.names() == [session.id]
            store.delete(session.id)
            library.catch_up("index")
            assert (list(library.list().rows), list(library.search("zebra").hits)) == ([], [])

    def test_s50_a_store_is_brought_to_another_and_back(self, open_store: OpenStore) -> None:
        """Byte for byte, with blobs and artifacts; what went on in both ends with the entries of both."""
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
    """What lies in the folder of sessions: times and bytes, by the paths there."""
    folder = store.layout.sessions
    return {posixpath.relpath(path, folder): (at, found) for path, (_, at, found) in files(store, folder).items()}


def _claude(number: int, parent: int | None, text: str) -> bytes:
    """A row of Claude Code."""
    role = "assistant" if number % 2 else "user"
    content = [{"type": "text", "text": text}] if number % 2 else text
    message = {"role": role, "content": content} | ({"id": f"msg_{number}", "model": "m"} if number % 2 else {})
    uuids = [None if each is None else f"{each:08d}-0000-4000-8000-000000000000" for each in (number, parent)]
    base = {"type": role, "uuid": uuids[0], "parentUuid": uuids[1], "sessionId": _CLAUDE, "cwd": CWD}
    return line(base | {"version": "2.1.300", "timestamp": f"2026-02-16T10:20:{number:02d}.000Z", "message": message})
