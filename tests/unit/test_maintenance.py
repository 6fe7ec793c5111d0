"""Clean-up makes a plan first, skips sessions in use, and can be undone; only emptying the trash is final."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from faults.processes import Child, Tell
from sessile import Session, Store, errors
from sessile.storage.drafts import draft_path
from sessile.upkeep.disk import disk_usage, empty_trash, plan_empty_trash, trash_contents, undo_last
from sessile.upkeep.prune import PrunePlan, PruneRule, apply_prune, plan_prune
from sessile.upkeep.sweep import apply_blob_sweep, plan_blob_sweep
from sessions import CWD, Clock, answer, append_raw, begun, say, snapshot, store_at

pytestmark = pytest.mark.mission("B6")

NOW = 1_771_237_230.0
DAY = 24 * 3600.0
OLD = PruneRule(older_than=30 * DAY)


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Store:
    return store_at(tmp_path / "root", clock=clock)


def age(path: str, days: float) -> None:
    """Set the modification time of a file or a folder with its content to this many days ago."""
    moment = NOW - days * DAY
    for folder, _, names in os.walk(path):
        for name in names:
            os.utime(f"{folder}/{name}", (moment, moment))
    os.utime(path, (moment, moment))


def session(store: Store, days: float, text: str = "hello", cwd: str = CWD) -> Session:
    """Create a closed session that was last used this many days ago."""
    with begun(store, cwd) as made:
        if text:
            answer(made, text)
    age(made.path, days)
    return made


def artifact(made: Session, days: float, name: str = "0.log", data: bytes = b"output") -> None:
    os.makedirs(made.artifacts, 0o700, exist_ok=True)
    Path(made.artifacts, name).write_bytes(data)
    age(f"{made.artifacts}/{name}", days)


def gone(plan: PrunePlan) -> list[str]:
    return [candidate.id for candidate in plan.candidates]


def spared(plan: PrunePlan) -> dict[str | None, str]:
    return {stays.id: stays.why for stays in plan.spared}


class TestPlan:
    """What a rule selects and what it skips."""

    @pytest.mark.promise("P15")
    def test_a_plan_changes_nothing(self, store: Store) -> None:
        """A plan has the sessions to delete, the reasons and the number of bytes."""
        made = session(store, 40)
        artifact(made, 40)
        before = snapshot(store.layout.root)
        plan = plan_prune(store, OLD)
        (candidate,) = plan.candidates
        assert (candidate.path, candidate.id, candidate.title) == (made.path, made.id, "(no messages)")
        assert (candidate.reason, candidate.size) == ("not used for 40 days", os.path.getsize(made.path) + 6)
        assert plan.bytes == candidate.size
        assert candidate.modified.timestamp() == NOW - 40 * DAY
        assert snapshot(store.layout.root) == before

    def test_everything_that_is_asked_for_must_apply(self, store: Store) -> None:
        """Age, size with artifacts, emptiness and project must all match."""
        old, new = session(store, 40), session(store, 5)
        large, silent = session(store, 40, cwd="/work/app/sub"), session(store, 40, text="", cwd="/work/application")
        artifact(large, 40, data=b"x" * 10_000)
        assert set(gone(plan_prune(store, OLD))) == {old.id, large.id, silent.id}
        assert gone(plan_prune(store, PruneRule(older_than=30 * DAY, larger_than=10_000))) == [large.id]
        assert gone(plan_prune(store, PruneRule(empty=True))) == [silent.id]
        assert set(gone(plan_prune(store, PruneRule(older_than=1, project=CWD)))) == {old.id, new.id, large.id}
        assert gone(plan_prune(store, PruneRule(older_than=1, empty=True, project=CWD))) == []
        assert gone(plan_prune(store, PruneRule(older_than=41 * DAY))) == []

    def test_a_session_with_anything_in_it_is_not_empty(self, store: Store) -> None:
        """A session with artifacts or unreadable bytes is not empty."""
        torn, spilled, settings = (session(store, 40, text="") for _ in range(3))
        append_raw(torn.path, '{"type":"message","id":"lost')
        artifact(spilled, 40)
        with store.open(settings.path) as opened:
            opened.append_model_change("p/m")
        age(torn.path, 40)
        age(settings.path, 40)
        assert gone(plan_prune(store, PruneRule(empty=True))) == [settings.id]

    def test_the_newest_are_kept(self, store: Store) -> None:
        """The newest sessions are kept, whatever the other conditions are."""
        sessions = [session(store, days) for days in (40, 50, 60)]
        plan = plan_prune(store, PruneRule(keep=2))
        assert gone(plan) == [sessions[2].id]
        assert spared(plan) == {sessions[0].id: "kept", sessions[1].id: "kept"}

    @pytest.mark.parametrize("rule", [PruneRule(), PruneRule(project=CWD)])
    def test_a_rule_that_means_everything_is_refused(self, store: Store, rule: PruneRule) -> None:
        """A rule without conditions is refused as a probable mistake."""
        with pytest.raises(errors.Invalid):
            plan_prune(store, rule)

    def test_pinned_and_recent_sessions_are_spared(self, store: Store) -> None:
        """They are skipped by any rule; a recently written file of a sub-agent counts as use."""
        pinned, recent, busy = session(store, 40), session(store, 0.9), session(store, 40)
        artifact(busy, 0.5, "agent.jsonl", b"{}\n")
        plan = plan_prune(store, PruneRule(older_than=0), pinned=[pinned.id])
        assert (gone(plan), plan.bytes) == ([], 0)
        assert spared(plan) == {pinned.id: "pinned", recent.id: "recent", busy.id: "recent"}

    def test_a_clock_that_was_wrong_spares(self, store: Store) -> None:
        """A session with a time in the future is recent."""
        made = session(store, -400)
        assert spared(plan_prune(store, PruneRule(larger_than=0))) == {made.id: "recent"}

    def test_drafts_links_and_other_files_are_spared(self, store: Store, tmp_path: Path) -> None:
        """Only regular session files of this store are pruned."""
        store.create("/drafts")._writing().close()  # as when its process ends
        (draft,) = Path(store.layout.sessions, "--drafts--").glob("*.draft")
        session(store, 40, cwd="/elsewhere")
        os.rename(f"{store.layout.sessions}/--elsewhere--", tmp_path / "disk")
        os.symlink(tmp_path / "disk", f"{store.layout.sessions}/--elsewhere--")
        junk = Path(store.layout.folder(CWD), "junk.jsonl")
        junk.parent.mkdir(parents=True)
        junk.write_text("junk\n")
        for path in (draft, junk):
            age(str(path), 40)
        plan = plan_prune(store, OLD)
        assert gone(plan) == []
        assert sorted(stays.why for stays in plan.spared) == ["draft", "in another store", "not a session"]


def wait_at(gate: tuple[int, int]) -> None:
    """Wait until the parent sends something or exits."""
    os.close(gate[1])
    os.read(gate[0], 1)


def hold(root: str, path: str, gate: tuple[int, int], tell: Tell) -> None:
    """Keep a session open and idle until something comes through the gate."""
    opened = Store(root).open(path)
    tell("open")
    wait_at(gate)
    opened.close()


def hold_draft(root: str, gate: tuple[int, int], tell: Tell) -> None:
    """Hold a draft."""
    draft = Store(root).create(CWD)
    say(draft, "pending")
    tell(draft.path)
    wait_at(gate)


@pytest.fixture
def gate() -> Iterator[tuple[int, int]]:
    """A pipe on which a child waits."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


class TestOpenSessions:
    """Sessions that are open in other processes are skipped."""

    @pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux shows who has a file open")
    def test_a_session_that_another_process_has_open_is_spared(self, store: Store, gate: tuple[int, int]) -> None:
        """An open session is skipped even if it is idle and not locked; after closing it can be deleted."""
        made = session(store, 40)
        early = plan_prune(store, OLD)
        assert gone(early) == [made.id]
        child = Child(partial(hold, store.layout.root, made.path, gate))
        child.wait_for_word()
        age(made.path, 40)
        plan = plan_prune(store, OLD)
        assert plan.sees_open_files
        assert spared(plan) == {made.id: "open"}
        refused = apply_prune(store, early)
        assert (refused.deletions, refused.refused) == ((), ((made.path, "it is open"),))
        assert os.path.exists(made.path)
        os.write(gate[1], b"x")
        child.finish()
        assert gone(plan_prune(store, OLD)) == [made.id]

    def test_a_draft_that_another_process_another_process_holds_is_open(
        self, store: Store, gate: tuple[int, int]
    ) -> None:
        """A draft is locked as long as it exists."""
        child = Child(partial(hold_draft, store.layout.root, gate))
        child.wait_for_word()
        (draft,) = Path(store.layout.folder(CWD)).glob("*.draft")
        age(str(draft), 40)
        assert [stays.why for stays in plan_prune(store, OLD).spared] == ["open"]
        child.kill()
        child.finish()
        os.utime(draft, (0, 0))
        assert [stays.why for stays in plan_prune(store, OLD).spared] == ["draft"]

    def test_a_lock_alone_is_enough_where_the_system_tells_nothing(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the system does not list open files, locked sessions are skipped, and the plan says so."""
        monkeypatch.setattr("sessile.upkeep.prune.open_files", lambda: None)
        made = session(store, 40)
        plan = plan_prune(store, OLD)
        assert (gone(plan), plan.sees_open_files) == ([made.id], False)
        with store.open(made.path) as opened:
            opened._own_journal().hold()
            assert spared(plan_prune(store, OLD)) == {made.id: "open"}
            assert apply_prune(store, plan).refused == ((made.path, "it is open"),)


class TestApply:
    """Moving sessions to the trash."""

    @pytest.mark.promise("P15")
    def test_each_session_is_a_deletion_that_can_be_undone(self, store: Store, clock: Clock) -> None:
        """Artifacts and sub-agents are moved along and restored with the same bytes and times."""
        sessions = [session(store, 40), session(store, 50)]
        artifact(sessions[0], 40, "agent.jsonl", b"{}\n")
        before = {path: kept for path, kept in snapshot(store.layout.sessions).items() if "app--/" in path}
        plan = plan_prune(store, OLD)
        done = apply_prune(store, plan)
        assert (len(done.deletions), done.refused, done.bytes, done.failure) == (2, (), plan.bytes, None)
        assert store.list_all() == []
        assert not os.path.exists(sessions[0].artifacts)
        for deletion in done.deletions:
            store.undo(deletion.token)
        after = {path: kept for path, kept in snapshot(store.layout.sessions).items() if "app--/" in path}
        assert after == before

    def test_what_was_used_pinned_or_moved_since_the_plan_stays(self, store: Store) -> None:
        """Each session is checked again, and the reason is reported."""
        used, spilled, pinned, deleted, rest = (session(store, 40) for _ in range(5))
        plan = plan_prune(store, OLD)
        append_raw(used.path, "more")
        artifact(spilled, 40)
        os.unlink(deleted.path)
        done = apply_prune(store, plan, pinned=[pinned.id])
        assert [deletion.paths[0] for deletion in done.deletions] == [rest.path]
        assert dict(done.refused) == {
            used.path: "it was used since the plan was made",
            spilled.path: "it was used since the plan was made",
            pinned.path: "it is pinned",
            deleted.path: errors.SessionNotFound().message,
        }
        assert done.bytes == os.path.getsize(f"{store.layout.trash}/{done.deletions[0].token}/0")

    def test_a_plan_for_another_store_moves_nothing(self, store: Store, tmp_path: Path) -> None:
        """A store deletes only its own sessions."""
        made = session(store, 40)
        other = store_at(tmp_path / "other")
        done = apply_prune(other, plan_prune(store, OLD))
        assert (done.deletions, [path for path, _ in done.refused]) == ((), [made.path])
        assert os.path.exists(made.path)


class TestTrash:
    """Listing, restoring and emptying the trash."""

    @pytest.mark.promise("P15")
    def test_the_latest_deletion_is_undone_first(self, store: Store, clock: Clock) -> None:
        """Deletions are undone one by one until none is left."""
        sessions = [session(store, 40) for _ in range(2)]
        for made in sessions:
            store.delete(made.id)
            clock.seconds += 1
        assert undo_last(store).paths == (sessions[1].path,)
        assert undo_last(store).paths == (sessions[0].path,)
        with pytest.raises(errors.NotFound) as told:
            undo_last(store)
        assert told.value.hint == "run `sessile trash` to list deletions"

    def test_a_deletion_that_moved_nothing_is_not_the_latest(self, store: Store, clock: Clock) -> None:
        """A crash may leave a deletion without any file."""
        made = session(store, 40)
        store.delete(made.id)
        clock.seconds += 1
        other = session(store, 40)
        token = store.delete(other.id).token
        os.rename(f"{store.layout.trash}/{token}/0", other.path)
        assert [item.holds for item in trash_contents(store)] == [True, False]
        assert undo_last(store).paths == (made.path,)

    def test_the_trash_is_emptied_by_age_and_only_when_confirmed(self, store: Store, clock: Clock) -> None:
        """The plan lists what would be removed; without confirmation nothing is removed."""
        sessions = [session(store, 40) for _ in range(2)]
        artifact(sessions[0], 40)
        first = store.delete(sessions[0].id)
        clock.seconds += 10 * DAY
        second = store.delete(sessions[1].id)
        plan = plan_empty_trash(store, older_than=5 * DAY)
        assert [item.token for item in plan.items] == [first.token]
        assert [item.token for item in plan.kept] == [second.token]
        assert plan.items[0].paths == (sessions[0].path, sessions[0].artifacts)
        before = snapshot(store.layout.root)
        with pytest.raises(errors.Invalid):
            empty_trash(store, plan)
        assert snapshot(store.layout.root) == before
        done = empty_trash(store, plan, confirm=True)
        assert (done.tokens, done.bytes, done.failure) == ((first.token,), plan.bytes, None)
        assert os.listdir(store.layout.trash) == [second.token]
        store.undo(second.token)
        assert [info.id for info in store.list_all()] == [sessions[1].id]

    def test_what_was_taken_back_since_the_plan_is_not_removed(self, store: Store) -> None:
        """A restored session is not affected by an older plan."""
        made = session(store, 40)
        token = store.delete(made.id).token
        plan = plan_empty_trash(store)
        store.undo(token)
        assert empty_trash(store, plan, confirm=True).tokens == ()
        assert [info.id for info in store.list_all()] == [made.id]

    def test_links_in_the_trash_are_removed_and_not_followed(self, store: Store, tmp_path: Path) -> None:
        """The target of a link stays."""
        made = session(store, 40)
        os.makedirs(made.artifacts)
        (tmp_path / "precious").mkdir()
        (tmp_path / "precious" / "file").write_text("kept")
        os.symlink(tmp_path / "precious", f"{made.artifacts}/link")
        store.delete(made.id)
        empty_trash(store, plan_empty_trash(store), confirm=True)
        assert os.listdir(store.layout.trash) == []
        assert (tmp_path / "precious" / "file").read_text() == "kept"

    def test_an_unknown_age_is_not_old(self, store: Store) -> None:
        """A folder without a known date is removed only with the whole trash."""
        os.makedirs(f"{store.layout.trash}/by-hand")
        assert [item.at for item in plan_empty_trash(store, older_than=0).kept] == [None]
        assert [item.token for item in plan_empty_trash(store).items] == ["by-hand"]

    @pytest.mark.promise("P30")
    def test_no_token_leads_out_of_the_trash(self, store: Store) -> None:
        """A forged plan cannot remove anything else."""
        made = session(store, 40)
        store.delete(session(store, 40).id)
        plan = plan_empty_trash(store)
        for token in ("../sessions", "..", ".", "", "a/../../sessions"):
            done = empty_trash(store, plan._replace(items=(plan.items[0]._replace(token=token),)), confirm=True)
            assert isinstance(done.failure, errors.NotFound)
        assert os.path.exists(made.path)
        assert len(trash_contents(store)) == 1


class TestBlobs:
    """Sweeping unreferenced blobs."""

    @staticmethod
    def put(store: Store, data: bytes, days: float = 40) -> str:
        blob = store.blobs.put(data)
        age(blob.path, days)
        return blob.hash

    @pytest.mark.promise("P15")
    def test_only_old_orphans_are_swept_and_undo_brings_them_back(self, store: Store) -> None:
        """Recent blobs and blobs referenced by a session, the trash, an original, an artifact or another blob stay."""
        orphan, young = self.put(store, b"orphan"), self.put(store, b"young", 0.5)
        named = [self.put(store, f"named {number}".encode()) for number in range(5)]
        kept, deleted, spilled = session(store, 40), session(store, 40), session(store, 40)
        append_raw(kept.path, f'"blob:sha256:{named[0]}"')
        append_raw(deleted.path, f'"blob:sha256:{named[1]}"')
        store.delete(deleted.id)
        os.makedirs(store.layout.originals)
        Path(store.layout.originals, "x.1").write_text(f"blob:sha256:{named[2]}")
        artifact(spilled, 40, "agent.jsonl", f"blob:sha256:{named[3]}".encode())
        outer = self.put(store, f"blob:sha256:{named[4]}".encode())
        append_raw(kept.path, f'"blob:sha256:{outer}"')
        before = snapshot(store.layout.root)
        plan = plan_blob_sweep(store)
        assert snapshot(store.layout.root) == before
        assert [blob.hash for blob in plan.orphans] == [orphan]
        assert (plan.bytes, plan.in_use, plan.recent) == (6, 6, 1)
        assert disk_usage(store, orphans=True).orphan_blob_bytes == 6
        swept = apply_blob_sweep(store, plan)
        assert (swept.refused, swept.bytes) == ((), 6)
        assert sorted(os.listdir(store.layout.blobs)) == sorted([young, outer, *named])
        undo_last(store)
        assert store.blobs.get(orphan) == b"orphan"
        assert os.path.getmtime(store.blobs.path(orphan)) == NOW - 40 * DAY

    def test_what_is_named_or_stored_anew_since_the_plan_stays(self, store: Store) -> None:
        """Changed files are read again before anything is moved."""
        named, renewed = self.put(store, b"named"), self.put(store, b"renewed")
        made = session(store, 40)
        plan = plan_blob_sweep(store)
        assert len(plan.orphans) == 2
        append_raw(made.path, f'"blob:sha256:{named}"')
        age(store.blobs.path(renewed), 1)
        swept = apply_blob_sweep(store, plan)
        assert swept.deletion is None
        assert {path for path, _ in swept.refused} == {store.blobs.path(named), store.blobs.path(renewed)}

    def test_a_reference_across_two_pieces_of_a_file_counts(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A reference may cross the boundary of two blocks."""
        digest = self.put(store, b"named")
        made = session(store, 40)
        append_raw(made.path, f'"blob:sha256:{digest}"')
        for size in range(76, 90):
            monkeypatch.setattr("sessile.storage.session_bytes.CHUNK", size)
            assert plan_blob_sweep(store).orphans == ()

    def test_nothing_is_swept_where_a_link_leads_away(self, store: Store, tmp_path: Path) -> None:
        """Sessions behind the link may reference the blob."""
        self.put(store, b"orphan")
        os.makedirs(store.layout.sessions)
        os.symlink(tmp_path, f"{store.layout.sessions}/--elsewhere--")
        with pytest.raises(errors.UnsafePath):
            plan_blob_sweep(store)

    def test_files_that_are_no_blobs_are_left_alone(self, store: Store) -> None:
        """Other files in the folder are ignored."""
        self.put(store, b"orphan")
        stray = Path(store.layout.blobs, "README")
        stray.write_text("mine")
        age(str(stray), 40)
        assert [blob.hash for blob in plan_blob_sweep(store).orphans] == [hashlib.sha256(b"orphan").hexdigest()]


class TestDiskUse:
    """Disk usage by kind."""

    def test_every_byte_is_counted_once_and_by_its_kind(self, store: Store, tmp_path: Path) -> None:
        """The sum is the size of all files below the root; links are reported and not followed."""
        made = session(store, 40)
        artifact(made, 40, data=b"x" * 100)
        deleted = session(store, 40)
        store.delete(deleted.id)
        draft = store.create(CWD)
        say(draft, "pending")
        store.blobs.put(b"blob")
        with store.open(made.path) as opened:
            opened.rewrite_entries(lambda entry: {**entry, "x": 1})
        Path(store.layout.root, "history.db").write_bytes(b"history")
        (tmp_path / "big").write_bytes(b"x" * 10_000)
        os.symlink(tmp_path / "big", f"{made.artifacts}/link")
        os.makedirs(f"{store.layout.cache}/index", exist_ok=True)
        Path(store.layout.cache, "index", "x").write_bytes(b"cached")
        use = disk_usage(store)
        files = [Path(folder, name) for folder, _, names in os.walk(store.layout.root) for name in names]
        assert use.total == sum(path.stat().st_size for path in files if not path.is_symlink())
        assert (use.sessions, use.drafts, use.blobs, use.originals, use.deletions, use.links) == (1, 1, 1, 1, 1, 1)
        assert use.session_bytes == os.path.getsize(made.path)
        assert use.draft_bytes == os.path.getsize(draft_path(draft.path))
        assert (use.artifacts_bytes, use.blob_bytes, use.history_bytes, use.other_bytes) == (100, 4, 7, 0)
        assert use.cache_bytes >= 6
        assert use.trash_bytes > 0
        assert use.originals_bytes > 0
        assert use.orphan_blob_bytes is None
        draft.close()

    def test_a_cache_elsewhere_counts_too(self, tmp_path: Path) -> None:
        """A cache outside the root is counted; an empty store uses no space."""
        store = store_at(tmp_path / "root", cache=tmp_path / "cache")
        assert disk_usage(store).total == 0
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / "x").write_bytes(b"cached")
        assert disk_usage(store).cache_bytes == disk_usage(store).total == 6
