"""The append protocol of the file journal: results, errors and recovery."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from faults.crashing import CrashableFilesystem
from faults.failing import Call, DropUnsynced, Fail, FaultyFilesystem, Meddle, ShortWrite
from journal_rig import INDEX, PATH, Always, add, always, content_of, count, journal_on, settled
from sessile import Store
from sessile.errors import (
    LeafMoved,
    NotASession,
    PermissionRefused,
    SessileError,
    SessionBusy,
    SessionExists,
    SessionNotFound,
    StorageFailure,
    StorageFull,
    SyncFailed,
    UnsafePath,
)
from sessile.storage import atomic
from sessile.storage.base import News
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.journal import FileJournal
from sessile.storage.memory import MemoryFilesystem
from sessile.storage.reader import JournalReader
from sessile.testing.filesystem_contract import get, opened
from sessile.testing.journal_contract import HEADER, chain, contents, found, ids, line, news_of, put, unexpected

START = HEADER + b"\n"


class TestOpening:
    """Which files are journals."""

    def test_a_file_without_a_header_is_not_touched(self) -> None:
        """The file is refused, and its bytes are unchanged."""
        for content in (b"", b"\n", b"garbage\n", b'{"type":"message","id":"a"}\n' + START, b"\0" * 100):
            fs = settled(MemoryFilesystem(), content)
            with pytest.raises(NotASession) as caught:
                journal_on(fs)
            assert caught.value.path == PATH
            assert content_of(fs) == content
            assert fs._open == {}

    def test_a_title_line_and_damage_may_come_before_the_header(self) -> None:
        """Other programs write a title slot before the header, and editors add a byte order mark."""
        fs = settled(
            MemoryFilesystem(), b'\xef\xbb\xbf{"type":"title","title":"x"}\n\0\0\n' + START + line("a") + b"\n"
        )
        journal = journal_on(fs)
        assert journal.header() == HEADER
        assert ids(journal.rows()) == ["a"]

    def test_a_missing_file_is_named_and_not_created(self) -> None:
        """Opening never creates a session."""
        fs = MemoryFilesystem()
        fs.mkdir("/s")
        with pytest.raises(SessionNotFound):
            journal_on(fs)
        assert fs.names("/s") == []

    @pytest.mark.promise("P32")
    def test_a_symbolic_link_is_refused(self, tmp_path: Path) -> None:
        """Nothing is opened through a symbolic link."""
        (tmp_path / "real.jsonl").write_bytes(START)
        (tmp_path / "link.jsonl").symlink_to(tmp_path / "real.jsonl")
        with pytest.raises(UnsafePath):
            FileJournal(PosixFilesystem(), str(tmp_path / "link.jsonl"))

    def test_a_second_header_is_reported_and_ignored(self) -> None:
        """The first header is used."""
        fs = settled(MemoryFilesystem(), START + line("a") + b"\n" + HEADER.replace(b"the-", b"other-") + b"\n")
        journal = journal_on(fs)
        assert journal.session_id == "the-session"
        assert [finding.code for finding in journal.findings()] == ["second_header"]


class TestAppending:
    """Appending while other programs change the file."""

    def test_an_empty_batch_writes_no_byte(self) -> None:
        """An empty batch does not even write a newline."""
        fs = settled(MemoryFilesystem())
        journal_on(fs).append([], unexpected)
        assert content_of(fs) == START

    @pytest.mark.promise("P18")
    def test_a_half_line_is_news_when_it_is_completed(self) -> None:
        """An incomplete line, found on opening and on appending, is news once it is complete."""
        fs = settled(MemoryFilesystem(), START + line("a") + b"\n" + line("b", "a")[:20])
        journal = journal_on(fs)
        add(fs, line("b", "a")[20:] + b"\n" + line("c", "b")[:9])
        assert news_of(journal) == ["b"]
        journal.append([line("d", "b")], always(line("d", "b")))
        assert content_of(fs).endswith(line("c", "b")[:9] + b"\n" + line("d", "b") + b"\n")

    def test_a_last_line_without_newline_is_no_news_when_it_gets_one(self) -> None:
        """The line was already an entry, so only the entries after it are news."""
        fs = settled(MemoryFilesystem(), START + line("a"))
        journal = journal_on(fs)
        assert ids(journal.rows()) == ["a"]
        add(fs, b"\n" + line("b", "a") + b"\n")
        assert news_of(journal) == ["b"]

    def test_a_file_cut_short_is_all_news(self) -> None:
        """After a truncation all entries are news, and the next append follows the last one."""
        fs = settled(MemoryFilesystem(), START + b"\n".join(chain("a", "b", "c")) + b"\n")
        journal = journal_on(fs)
        with opened(fs, PATH, os.O_RDWR) as fd:
            fs.truncate(fd, len(START + line("a")) + 1)
        assert news_of(journal) == ["a"]
        put(journal, line("d", "a"))
        assert contents(journal) == [line("a"), line("d", "a")]

    @pytest.mark.promise("P14")
    def test_an_emptied_file_is_no_session_any_more(self) -> None:
        """Nothing is appended to a file without a header."""
        fs = settled(MemoryFilesystem(), START + line("a") + b"\n")
        journal = journal_on(fs)
        for size in (0, 10):
            with opened(fs, PATH, os.O_RDWR) as fd:
                fs.truncate(fd, size)
            with pytest.raises(SessionNotFound):
                put(journal, line("b", "a"))
            assert len(content_of(fs)) == size

    @pytest.mark.promise("P2")
    def test_a_mark_is_synced_even_if_the_file_became_shorter(self) -> None:
        """A size that was synced before does not cover new bytes at a lower offset."""
        fs = FaultyFilesystem(settled(MemoryFilesystem(), START + line("a", text="x" * 500) + b"\n"))
        journal = journal_on(fs)
        put(journal, line("b", "a"))
        with opened(fs.inner, PATH, os.O_RDWR) as fd:
            fs.inner.truncate(fd, len(START))
        put(journal, line("c"))
        assert count(fs, "sync") == 2

    def test_without_power_nothing_is_synced_until_flush(self) -> None:
        """With the durability "process" only `flush` syncs."""
        fs = FaultyFilesystem(settled(MemoryFilesystem()))
        journal = journal_on(fs, power=False)
        put(journal, *chain("a", "b"))
        assert count(fs, "sync") == 0
        journal.flush()
        assert count(fs, "sync") == 1

    def test_an_append_costs_few_calls(self) -> None:
        """An append locks, checks twice, writes, checks and unlocks; it reads nothing if the file is unchanged."""
        fs = FaultyFilesystem(settled(MemoryFilesystem()))
        journal = journal_on(fs)
        put(journal, line("a"))
        fs.calls.clear()
        put(journal, line("b", "a"))
        assert [call.method for call in fs.calls] == ["lock", "lstat", "write", "fstat", "unlock", "sync"]


@pytest.mark.promise("P14")
class TestReplacedByOthers:
    """Another program replaced the file."""

    def test_the_same_session_is_continued_in_the_new_file(self) -> None:
        """All entries of the new file are news, and the old file is not written to."""
        fs = settled(MemoryFilesystem(), START + line("a") + b"\n")
        journal = journal_on(fs)
        fs.link(PATH, "/s/old")
        settled(fs, START + line("x") + b"\n" + line("y", "x")[:-1])
        assert news_of(journal) == ["x"]
        put(journal, line("b", "x"))
        assert content_of(fs) == START + line("x") + b"\n" + line("y", "x")[:-1] + b"\n" + line("b", "x") + b"\n"
        assert get(fs, "/s/old") == START + line("a") + b"\n"

    def test_another_session_is_left_alone(self) -> None:
        """The error is latched, and reopening does not continue in the other session."""
        fs = settled(MemoryFilesystem())
        journal = journal_on(fs)
        other = HEADER.replace(b"the-", b"other-") + b"\n"
        settled(fs, other)
        for use in (lambda: put(journal, line("a")), lambda: put(journal, line("a")), journal.reopen):
            with pytest.raises(SessionNotFound):
                use()
        assert content_of(fs) == other
        assert fs._open == {}

    def test_a_deleted_session_is_not_made_again(self) -> None:
        """An append would create a file without a header."""
        fs = settled(MemoryFilesystem())
        journal = journal_on(fs)
        fs.unlink(PATH)
        with pytest.raises(SessionNotFound):
            put(journal, line("a"))
        assert fs.names("/s") == []
        settled(fs)
        with pytest.raises(SessionNotFound):
            put(journal, line("a"))
        journal.reopen()
        put(journal, line("a"))
        assert content_of(fs) == START + line("a") + b"\n"


@pytest.mark.mission("X18")
class TestLatching:
    """The first error is latched until the journal is reopened."""

    def test_a_failed_write_is_raised_again_logged_once_and_cleared_by_reopening(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Later appends raise the same error, reading works, and reopening clears it."""
        fs = FaultyFilesystem(settled(MemoryFilesystem()), plan=[Fail(errno.EDQUOT, on={"write"}, at=2)])
        journal = journal_on(fs)
        put(journal, line("a"))
        with pytest.raises(StorageFull) as first:
            put(journal, line("b", "a"))
        assert journal.failure
        uses: list[Callable[[], object]] = [
            lambda: put(journal, line("b")),
            journal.hold,
            lambda: journal.replace(bytes),
        ]
        for use in uses:
            with pytest.raises(StorageFull) as later:
                use()
            assert later.value is first.value
        assert ids(journal.rows()) == ["a"]
        assert len([record for record in caplog.records if PATH in record.message]) == 1
        journal.reopen()
        assert not journal.failure
        put(journal, line("b", "a"))
        journal.close()
        assert content_of(fs) == START + line("a") + b"\n" + line("b", "a") + b"\n"

    def test_closing_frees_everything_then_raises_the_first_error(self) -> None:
        """The lock is released, too; a second close raises nothing."""
        inner = settled(MemoryFilesystem())
        fs = FaultyFilesystem(inner, plan=[Fail(errno.EIO, on={"write"})])
        journal = journal_on(fs)
        journal.hold()
        with pytest.raises(StorageFailure):
            put(journal, line("a"))
        with pytest.raises(StorageFailure):
            journal.close()
        assert inner._open == {}
        assert inner._locks == {}
        journal.close()

    def test_a_closed_session_says_so(self) -> None:
        """The error says that the session is closed, not that a descriptor is invalid."""
        journal = journal_on(settled(MemoryFilesystem()))
        journal.close()
        uses: list[Callable[[], object]] = [
            lambda: put(journal, line("a")),
            journal.last,
            lambda: list(journal.items()),
        ]
        for use in uses:
            with pytest.raises(StorageFailure, match="closed"):
                use()

    def test_a_busy_session_is_not_latched(self) -> None:
        """The next attempt may get the lock."""
        fs = settled(MemoryFilesystem())
        one, two = journal_on(fs), journal_on(fs)
        one.hold()
        with pytest.raises(SessionBusy):
            put(two, line("a"))
        assert not two.failure
        one.release()
        put(two, line("a"))


@pytest.mark.promise("P7")
class TestSyncing:
    """A sync succeeds or raises; it is never retried."""

    @pytest.mark.parametrize("forever", [False, True])
    def test_a_failed_sync_is_never_retried(self, forever: bool) -> None:
        """No commit, flush, append or close syncs again after a failure."""
        fs = FaultyFilesystem(settled(MemoryFilesystem()), plan=[Fail(errno.EIO, on={"sync"}, forever=forever)])
        journal = journal_on(fs)
        one = journal.append([line("a")], unexpected)
        two = journal.append([line("b", "a")], unexpected)
        uses: list[Callable[[], object]] = [
            lambda: journal.commit(one.mark),
            lambda: journal.commit(one.mark),
            lambda: journal.commit(two.mark),
            journal.flush,
            lambda: put(journal, line("c")),
            journal.close,
        ]
        for use in uses:
            with pytest.raises(SyncFailed) as caught:
                use()
            assert caught.value.path == PATH
        assert count(fs, "sync") == 1

    def test_what_was_not_confirmed_stays_so_after_reopening(self) -> None:
        """The kernel has dropped the pages, so a later successful sync must not confirm them."""
        inner = settled(CrashableFilesystem())
        fs = FaultyFilesystem(inner, plan=[DropUnsynced()])
        journal = journal_on(fs)
        lost = journal.append([line("lost")], unexpected)
        with pytest.raises(SyncFailed):
            journal.commit(lost.mark)
        journal.reopen()
        kept = journal.append([line("kept")], unexpected)
        journal.commit(kept.mark)
        with pytest.raises(SyncFailed):
            journal.commit(lost.mark)

    def test_what_was_confirmed_stays_confirmed_after_a_failure(self) -> None:
        """A commit that succeeded before the failure still succeeds."""
        fs = FaultyFilesystem(settled(MemoryFilesystem()), plan=[Fail(errno.EIO, on={"sync"}, at=2)])
        journal = journal_on(fs)
        first = journal.append([line("a")], unexpected)
        journal.commit(first.mark)
        with pytest.raises(SyncFailed):
            put(journal, line("b"))
        journal.commit(first.mark)

    def test_an_append_written_while_a_sync_fails_is_not_confirmed_by_the_next_one(self) -> None:
        """Its page may be among those that the failed sync dropped."""
        inner = settled(MemoryFilesystem())
        fs = FaultyFilesystem(inner, plan=[Fail(errno.EIO, on={"sync"})])
        journal = journal_on(fs)
        marks: list[int] = []
        sync = journal._sync

        def sync_while_another_thread_appends() -> None:
            thread = threading.Thread(target=lambda: marks.append(journal.append([line("late")], unexpected).mark))
            thread.start()
            thread.join()
            sync()

        journal._sync = sync_while_another_thread_appends  # type: ignore[method-assign]
        first = journal.append([line("a")], unexpected)
        with pytest.raises(SyncFailed):
            journal.commit(first.mark)
        with pytest.raises(SyncFailed):
            journal.commit(marks[0])

    @pytest.mark.mission("X17")
    def test_eight_threads_share_their_syncs(self) -> None:
        """One sync serves all waiting threads: there are far fewer syncs than commits, and every commit is synced."""
        slow = Always(lambda call: time.sleep(0.002), on={"sync"})
        fs = FaultyFilesystem(settled(MemoryFilesystem()), plan=[slow])
        journal = journal_on(fs)

        def work(name: str) -> None:
            for number in range(10):
                put(journal, line(f"{name}{number}"))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, "abcdefgh"))
        assert len(ids(journal.rows())) == 80
        assert 10 <= count(fs, "sync") < 60

    def test_a_commit_covers_only_what_was_written_before_its_sync_began(self) -> None:
        """A line written during a sync needs another sync."""
        fs = FaultyFilesystem(settled(MemoryFilesystem()))
        journal = journal_on(fs)
        first = journal.append([line("a")], unexpected)
        during: list[int] = []
        sync = journal._sync

        def append_during_sync() -> None:
            if not during:
                during.append(journal.append([line("b")], unexpected).mark)
            sync()

        journal._sync = append_during_sync  # type: ignore[method-assign]
        journal.commit(first.mark)
        assert count(fs, "sync") == 1
        journal.commit(during[0])
        assert count(fs, "sync") == 2

    def test_closing_waits_for_a_sync(self) -> None:
        """The descriptor is not closed during a sync."""
        started, finish = threading.Event(), threading.Event()

        def wait(call: object) -> None:
            started.set()
            assert finish.wait(10)

        fs = FaultyFilesystem(settled(MemoryFilesystem()), plan=[Always(wait, on={"sync"})])
        journal = journal_on(fs)
        appended = journal.append([line("a")], unexpected)
        errors: list[BaseException] = []

        def commit() -> None:
            try:
                journal.commit(appended.mark)
            except BaseException as error:
                errors.append(error)

        committer, closer = threading.Thread(target=commit), threading.Thread(target=journal.close)
        committer.start()
        assert started.wait(10)
        closer.start()
        time.sleep(0.01)
        assert count(fs, "close") == 0
        finish.set()
        committer.join(10)
        closer.join(10)
        assert errors == []
        assert count(fs, "close") == 1
        with pytest.raises(StorageFailure):
            journal.commit(appended.mark + 1)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A journal on disk."""
    file = tmp_path / "s.jsonl"
    file.write_bytes(START)
    return str(file)


@pytest.fixture
def child() -> Iterator[Callable[[Callable[[], object]], int]]:
    """Return a function that runs a callable in a forked process and returns its id; kill the process at the end."""
    children: list[int] = []

    def run(work: Callable[[], object]) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # newer Python versions warn about threads; there are none here
            pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
        return pid

    yield run
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def exit_code(pid: int) -> int:
    """Wait for a child and return its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.promise("P4")
class TestProcesses:
    """Locks and forks with real processes."""

    def test_a_child_appends_with_the_journal_of_its_parent(
        self, path: str, child: Callable[[Callable[[], object]], int]
    ) -> None:
        """Parent and child write at the same time, and every line of both is complete."""
        journal = FileJournal(PosixFilesystem(), path, power=False)
        put(journal, line("root"))

        def work(name: str) -> None:
            for number in range(100):
                put(journal, line(f"{name}{number}", text="x" * (number * 91 % 3000)))

        pid = child(lambda: work("child"))
        work("parent")
        assert exit_code(pid) == 0
        expected = {"root", *(f"{name}{number}" for name in ("child", "parent") for number in range(100))}
        rows = ids(journal.rows())
        assert (len(rows), set(rows)) == (201, expected)
        assert list(journal.findings()) == []

    def test_a_child_does_not_share_the_lock_of_its_parent(
        self, path: str, child: Callable[[Callable[[], object]], int]
    ) -> None:
        """While the parent holds the session, the child waits, and its waiting does not release the lock."""
        journal = FileJournal(PosixFilesystem(), path, patience=0.05)
        journal.hold()

        def work() -> None:
            with pytest.raises(SessionBusy):
                put(journal, line("a"))
            journal.close()

        assert exit_code(child(work)) == 0
        with pytest.raises(SessionBusy):
            put(FileJournal(PosixFilesystem(), path, patience=0.0), line("b"))
        put(journal, line("c"))
        assert ids(journal.rows()) == ["c"]

    def test_a_child_is_told_what_was_appended_since_its_parent_looked(
        self, path: str, child: Callable[[Callable[[], object]], int]
    ) -> None:
        """The child opens a new descriptor, but its state is that of its parent."""
        journal = FileJournal(PosixFilesystem(), path, power=False)
        put(journal, line("a"))
        put(FileJournal(PosixFilesystem(), path, power=False), line("b", "a"))

        def work() -> None:
            assert news_of(journal) == ["b"]

        assert exit_code(child(work)) == 0

    def test_a_child_forked_in_the_middle_of_a_sync_does_not_wait_for_its_end(
        self, path: str, child: Callable[[Callable[[], object]], int]
    ) -> None:
        """The syncing thread does not exist in the child, so the child must not wait for it."""
        journal = FileJournal(PosixFilesystem(), path)

        def work() -> None:
            signal.alarm(10)
            put(journal, line("a"))

        with journal._commits.paused():
            pid = child(work)
        assert exit_code(pid) == 0
        put(journal, line("b", "a"))
        assert ids(journal.rows()) == ["a", "b"]

    def test_a_child_does_not_keep_the_lock_of_a_file_that_its_parent_replaces(
        self, path: str, child: Callable[[Callable[[], object]], int]
    ) -> None:
        """The child inherited the descriptor; a handle on the old file must still get the lock."""
        journal, other = FileJournal(PosixFilesystem(), path), FileJournal(PosixFilesystem(), path, patience=0.0)
        child(lambda: time.sleep(60))
        journal.replace(lambda raw: None)
        put(other, line("a"))
        assert ids(journal.rows()) == ["a"]

    @pytest.mark.promise("P23")
    def test_a_killed_holder_frees_the_lock_at_once_and_a_live_one_is_named(
        self, path: str, child: Callable[[Callable[[], object]], int]
    ) -> None:
        """The error names the process that holds the lock; after its death the lock is free."""
        ready, tell = os.pipe()

        def hold() -> None:
            journal = FileJournal(PosixFilesystem(), path)
            journal.hold()
            os.write(tell, b"!")
            time.sleep(60)

        pid = child(hold)
        assert os.read(ready, 1) == b"!"
        journal = FileJournal(PosixFilesystem(), path, patience=0.1)
        began = time.monotonic()
        with pytest.raises(SessionBusy) as caught:
            put(journal, line("a"))
        assert time.monotonic() - began >= 0.1
        assert f"process {pid} " in caught.value.message
        assert caught.value.hint
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        put(FileJournal(PosixFilesystem(), path, patience=0.0), line("a"))  # without waiting
        os.close(ready)
        os.close(tell)

    @pytest.mark.promise("P23")
    def test_a_stopped_holder_is_not_robbed(self, path: str, child: Callable[[Callable[[], object]], int]) -> None:
        """A stopped process keeps its lock, however long it is stopped."""
        ready, tell = os.pipe()

        def hold() -> None:
            journal = FileJournal(PosixFilesystem(), path)
            journal.hold()
            os.write(tell, b"!")
            time.sleep(60)

        pid = child(hold)
        assert os.read(ready, 1) == b"!"
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(SessionBusy):
            put(FileJournal(PosixFilesystem(), path, patience=0.05), line("a"))
        os.close(ready)
        os.close(tell)

    def test_a_system_that_cannot_name_the_holder_says_so(self) -> None:
        """Without /proc the error is the same, but does not name the process."""
        inner = settled(MemoryFilesystem())
        holder = journal_on(inner)
        holder.hold()
        fs = FaultyFilesystem(inner, plan=[Fail(errno.ENOENT, on={"lock_holder"})])
        with pytest.raises(SessionBusy, match="another process"):
            put(journal_on(fs), line("a"))

    def test_a_file_system_without_locks_is_a_typed_error(self) -> None:
        """Appending without a lock is refused."""
        fs = FaultyFilesystem(settled(MemoryFilesystem()), plan=[Fail(errno.ENOLCK, on={"lock"})])
        with pytest.raises(StorageFailure, match="lock"):
            put(journal_on(fs), line("a"))

    def test_the_patient_one_gets_the_lock_when_it_is_given_back(self) -> None:
        """A waiting append gets the lock when it is released."""
        fs = settled(MemoryFilesystem())
        holder, waiter = journal_on(fs), journal_on(fs, patience=10)
        holder.hold()
        timer = threading.Timer(0.02, holder.release)
        timer.start()
        put(waiter, line("a"))
        timer.join()
        assert ids(waiter.rows()) == ["a"]


@pytest.mark.promise("P11")
@pytest.mark.mission("X17")
class TestReplacing:
    """Rewriting the whole file atomically."""

    CONTENT = (
        START + b"\xef\xbb\xbf" + line("a") + b"\r\n\0\0\ngarbage\xff\n" + line("b", "a") + line("c", "b") + b"\n\n{to"
    )

    def test_unedited_lines_and_garbage_stay_byte_for_byte(self) -> None:
        """Only the bytes of the edited line change."""
        fs = settled(MemoryFilesystem(), self.CONTENT)
        journal = journal_on(fs)
        new = line("b", "a", text="看" * 100)
        journal.replace(lambda raw: new if raw == line("b", "a") else None)
        assert content_of(fs) == self.CONTENT.replace(line("b", "a"), new)
        assert fs.names("/s") == ["s.jsonl"]
        assert [journal.read(found(journal, i)) for i in "abc"] == [line("a"), new, line("c", "b")]

    def test_another_handle_follows_to_the_new_file(self) -> None:
        """Its next append is in the new file, and nothing is lost in the old one."""
        fs = settled(MemoryFilesystem(), self.CONTENT)
        one, two = journal_on(fs), journal_on(fs)
        put(two, line("d", "c"))
        one.replace(lambda raw: line("a", None, edited=True) if raw == line("a") else None)
        number = fs.lstat(PATH).st_ino
        put(two, line("e", "d"))
        put(one, line("f", "e"))
        assert fs.lstat(PATH).st_ino == number
        assert ids(one.rows()) == ids(two.rows()) == ["a", "b", "c", "d", "e", "f"]
        assert contents(two)[0] == line("a", None, edited=True)

    def test_the_original_is_kept_under_another_name(self) -> None:
        """The original is kept byte for byte in a new folder."""
        fs = settled(MemoryFilesystem(), self.CONTENT)
        journal_on(fs).replace(lambda raw: line("x") if raw == line("a") else None, keep="/o/deep/1.original")
        assert get(fs, "/o/deep/1.original") == self.CONTENT
        assert fs.lstat("/o/deep/1.original").st_nlink == 1
        assert content_of(fs) == self.CONTENT.replace(line("a"), line("x"))

    def test_an_original_is_never_overwritten(self) -> None:
        """If the name exists, nothing is changed."""
        fs = settled(MemoryFilesystem(), self.CONTENT)
        atomic.write_new(fs, "/s/taken", [b"older"])
        journal = journal_on(fs)
        with pytest.raises(StorageFailure):
            journal.replace(lambda raw: b"x", keep="/s/taken")
        assert get(fs, "/s/taken") == b"older"
        assert content_of(fs) == self.CONTENT
        assert fs.names("/s") == ["s.jsonl", "taken"]
        journal.reopen()
        put(journal, line("z"))

    def test_a_writer_without_lock_in_between_stops_the_rewrite(self) -> None:
        """The rewrite raises so that the new line is not lost; the next attempt includes it."""
        fs = settled(MemoryFilesystem(), self.CONTENT)
        journal = journal_on(fs)
        late = b"\n" + line("late") + b"\n"

        def edit(raw: bytes) -> bytes | None:
            if raw == line("a"):
                add(fs, late)
                return line("a", None, edited=True)
            return None

        with pytest.raises(LeafMoved):
            journal.replace(edit)
        assert content_of(fs) == self.CONTENT + late
        assert fs.names("/s") == ["s.jsonl"]
        journal.replace(lambda raw: line("z") if raw == line("a") else None)
        assert ids(journal.rows()) == ["z", "b", "c", "late"]

    def test_what_was_appended_before_is_durable_afterwards(self) -> None:
        """The new file was synced as a whole, so an earlier mark needs no further sync."""
        fs = FaultyFilesystem(settled(MemoryFilesystem()))
        journal = journal_on(fs)
        appended = journal.append([line("a")], unexpected)
        journal.replace(lambda raw: None)
        syncs = count(fs, "sync")
        journal.commit(appended.mark)
        assert count(fs, "sync") == syncs

    def test_a_held_session_is_never_without_its_lock(self) -> None:
        """Another process never gets the lock during a rewrite, neither by name nor through the old file."""
        at, struck = 0, True
        while struck:
            at += 1
            inner = settled(MemoryFilesystem(), self.CONTENT)
            robbed: list[bool] = []

            def rob(inner: MemoryFilesystem = inner, robbed: list[bool] = robbed) -> None:
                with opened(inner, PATH, os.O_RDWR) as fd:
                    robbed.append(inner.lock(fd))

            journal = journal_on(inner)
            journal.hold()
            fs = FaultyFilesystem(inner, plan=[Meddle(rob, at=at)])
            journal._fs = fs
            journal.replace(lambda raw: line("x") if raw == line("a") else None, keep="/s/kept")
            rob()
            struck = bool(fs.struck)
            assert not any(robbed)
        assert at > 10

    def test_the_index_of_the_old_file_is_not_used_for_the_new_one(self) -> None:
        """All offsets after the edited line have changed."""
        lines = [line(f"id{n:06}", None, text="x" * 10) for n in range(100)]
        fs = settled(MemoryFilesystem(), START + b"\n".join(lines) + b"\n")
        journal = journal_on(fs, index_path=INDEX)
        assert len(contents(journal)) == 100
        journal.replace(lambda raw: line("id000003", None, text="y" * 500) if raw == lines[3] else None)
        for each in (journal, journal_on(fs, index_path=INDEX), JournalReader(fs, PATH)):
            assert [each.read(row) for row in each.rows()][4:] == lines[4:]


class TestDrafts:
    """Holding and renaming a session."""

    def test_a_held_session_stays_held_across_appends_and_reopening(self) -> None:
        """Only `release` and `close` release the lock."""
        fs = settled(MemoryFilesystem())
        journal, other = journal_on(fs), journal_on(fs)
        journal.hold()
        put(journal, line("a"))
        journal.reopen()
        put(journal, line("b"))
        with pytest.raises(SessionBusy):
            other.hold()
        journal.release()
        other.hold()

    def test_a_renamed_session_goes_on_under_its_new_name(self) -> None:
        """The file and its lock stay the same; receipts and errors have the new path."""
        fs = settled(MemoryFilesystem())
        journal = journal_on(fs)
        journal.hold()
        journal.rename("/c/new.jsonl")
        put(journal, line("a"))
        assert journal.path == "/c/new.jsonl"
        assert get(fs, "/c/new.jsonl") == START + line("a") + b"\n"
        assert fs.names("/s") == []
        with pytest.raises(SessionBusy):
            FileJournal(fs, "/c/new.jsonl", patience=0).hold()

    def test_a_name_that_is_taken_is_not_taken_away(self) -> None:
        """An existing file is not overwritten, and the journal stays usable."""
        fs = settled(settled(MemoryFilesystem()), b"other", "/s/other.jsonl")
        journal = journal_on(fs)
        with pytest.raises(SessionExists):
            journal.rename("/s/other.jsonl")
        assert get(fs, "/s/other.jsonl") == b"other"
        put(journal, line("a"))

    def test_a_refused_name_is_a_typed_error(self) -> None:
        """The session keeps its name."""
        fs = FaultyFilesystem(settled(MemoryFilesystem()), plan=[Fail(errno.EACCES, on={"rename"})])
        journal = journal_on(fs)
        with pytest.raises(PermissionRefused):
            journal.rename("/c/new.jsonl")
        assert journal.path == PATH
        journal.reopen()
        put(journal, line("a"))

    def test_a_session_replaced_while_held_is_locked_anew(self) -> None:
        """The new file is locked before it is written to."""
        fs = settled(MemoryFilesystem())
        journal = journal_on(fs)
        journal.hold()
        settled(fs, START + line("x") + b"\n")
        put(journal, line("a"))
        with pytest.raises(SessionBusy):
            put(journal_on(fs), line("b"))


def once(limits: list[int], call: object) -> int | None:
    """Return the next limit, or `None` if none is left."""
    return limits.pop() if limits else None


def test_a_short_write_that_goes_on_is_completed() -> None:
    """If a signal interrupts a write, the line is still complete and written once."""
    for cut in range(1, len(line("a")) + 1):
        inner = settled(MemoryFilesystem())
        cuts = [cut]
        fs = FaultyFilesystem(inner, plan=[Always(partial(once, cuts), on={"write"})])
        journal = journal_on(fs)
        put(journal, line("a"))
        assert content_of(inner) == START + line("a") + b"\n"


@pytest.mark.promise("P3")
def test_a_full_disk_leaves_no_fragment_at_any_length() -> None:
    """The written part of a line is removed, and after reopening the whole line can be appended."""
    for written in range(len(line("b", "a")) + 2):
        inner = settled(MemoryFilesystem(), START + line("a"))
        fs = FaultyFilesystem(inner, plan=[ShortWrite(written=written)])
        journal = journal_on(fs)
        with pytest.raises(StorageFull) as caught:
            put(journal, line("b", "a"))
        assert caught.value.hint
        assert content_of(inner) == START + line("a")
        fs.heal()
        journal.reopen()
        put(journal, line("b", "a"))
        assert content_of(inner) == START + line("a") + b"\n" + line("b", "a") + b"\n"


@pytest.mark.promise("P3")
def test_a_fragment_is_left_alone_when_somebody_wrote_behind_it() -> None:
    """Truncating the fragment would remove the other line."""
    inner = settled(MemoryFilesystem())
    meddle = Meddle(lambda: add(inner, b"\nother\n"), on={"write"}, at=2)
    fs = FaultyFilesystem(inner, plan=[meddle, ShortWrite(written=9)])
    journal = journal_on(fs)
    with pytest.raises(StorageFull):
        put(journal, line("a"))
    assert content_of(inner) == START + line("a")[:9] + b"\nother\n"


def test_revising_with_an_error_of_the_storage_is_not_taken_for_one_of_the_journal() -> None:
    """An error of another store, such as a full blob store, is not latched: nothing was written here."""
    fs = settled(MemoryFilesystem())
    journal = journal_on(fs)
    put(journal_on(fs), line("x"))

    def revise(news: News) -> list[bytes]:
        raise StorageFull(path="/elsewhere")

    with pytest.raises(SessileError) as caught:
        journal.append([line("a")], revise)
    assert caught.value.path == "/elsewhere"
    assert not journal.failure


class TestNewsAcrossARewrite:
    """Entries of other writers stay news after our own rewrite."""

    def test_divergence_is_seen_after_our_own_rewrite(self, tmp_path: Path) -> None:
        """An entry that another writer appended below our leaf is a divergence, even after we rewrote the file."""
        store = Store(tmp_path)
        ours = store.create("/work/app", publish=True)
        ours.append_message({"role": "user", "content": "where both stand"})
        with store.open(ours.path) as theirs:
            theirs.append_message({"role": "user", "content": "theirs"})
        ours.rewrite_entries(
            lambda entry: {**entry, "longer": "by a few bytes"} if entry["type"] == "message" else None
        )
        assert ours.append_message({"role": "user", "content": "ours"}).diverged
        ours.close()

    def test_the_original_is_copied_where_no_link_can_reach(self) -> None:
        """A file on another device than the store is copied."""
        fs = FaultyFilesystem(MemoryFilesystem(), plan=[Fail(errno.EXDEV, on={"link"})])
        store = Store("/root", fs=fs)
        session = store.create("/work/app", publish=True)
        session.append_message({"role": "user", "content": "old"})
        before = atomic.read_all(fs, session.path)
        kept = session.rewrite_entries(lambda entry: {**entry, "new": True})
        assert atomic.read_all(fs, kept) == before != atomic.read_all(fs, session.path)
        session.close()


class TestTelling:
    """Errors name the file, and most have a hint."""

    def test_a_closed_session_is_named(self) -> None:
        """The error of a closed session has a hint."""
        journal = journal_on(settled(MemoryFilesystem()))
        journal.close()
        with pytest.raises(StorageFailure) as caught:
            put(journal, line("a"))
        assert (caught.value.path, caught.value.hint) == (PATH, "open it again")

    @pytest.mark.parametrize("content", [START.replace(b'"id":"', b'"id":"other'), b""], ids=["another", "emptied"])
    def test_a_session_that_lost_its_place_or_its_content_is_named(self, content: bytes) -> None:
        """The error names the file if it was replaced by another session or emptied."""
        fs = settled(MemoryFilesystem())
        journal = journal_on(fs)
        if content:
            atomic.replace(fs, PATH, [content])
        else:
            with opened(fs, PATH, os.O_RDWR) as fd:
                fs.truncate(fd, 0)
        with pytest.raises(SessionNotFound) as caught:
            put(journal, line("a"))
        assert caught.value.path == PATH

    def test_a_name_that_is_taken_is_named(self) -> None:
        """The error names the existing file."""
        fs = settled(settled(MemoryFilesystem()), b"other", "/s/other.jsonl")
        with pytest.raises(SessionExists) as caught:
            journal_on(fs).rename("/s/other.jsonl")
        assert caught.value.path == "/s/other.jsonl" and caught.value.hint

    def test_a_failed_sync_says_why(self) -> None:
        """The error has the errno, the file, and which data is safe."""
        fs = FaultyFilesystem(settled(MemoryFilesystem()), plan=[Fail(errno.EIO, on={"sync"})])
        journal = journal_on(fs)
        appended = journal.append([line("a")], unexpected)
        with pytest.raises(SyncFailed) as caught:
            journal.commit(appended.mark)
        assert (caught.value.path, caught.value.errno) == (PATH, errno.EIO)
        assert caught.value.hint

    def test_a_rewrite_that_somebody_disturbed_may_be_tried_again(self) -> None:
        """The hint says that the rewrite can be repeated."""
        fs = settled(MemoryFilesystem(), START + line("a") + b"\n")
        journal = journal_on(fs)

        def edit(raw: bytes) -> bytes | None:
            add(fs, line("late") + b"\n")
            return None

        with pytest.raises(LeafMoved) as caught:
            journal.replace(edit)
        assert (caught.value.path, caught.value.hint) == (PATH, "try again")

    def test_a_fragment_that_stays_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        """A warning in the log explains the damage."""
        plan = [ShortWrite(written=9), Fail(errno.EIO, on={"truncate"})]
        journal = journal_on(FaultyFilesystem(settled(MemoryFilesystem()), plan=plan))
        with pytest.raises(SessileError):
            put(journal, line("a"))
        assert f"an incomplete line remains at the end of {PATH}" in caplog.text

    def test_a_program_that_takes_our_lines_away_each_time_is_given_up(self) -> None:
        """The append raises after a hundred attempts, and the error names the file."""
        inner = settled(MemoryFilesystem())

        def cut(call: Call) -> None:
            with opened(inner, PATH, os.O_RDWR) as fd:
                inner.truncate(fd, len(START))

        journal = journal_on(FaultyFilesystem(inner, plan=[Always(cut, on={"fstat"})]))
        with pytest.raises(StorageFailure, match="keeps writing") as caught:
            put(journal, line("a"))
        assert caught.value.path == PATH and journal.failure


class TestNamesAreDurable:
    """The name of a file must be durable, too: without it the file is lost after a power cut."""

    def test_the_first_commit_syncs_the_folder_and_later_ones_do_not(self) -> None:
        """The process that created the file may have died before the name was durable."""
        fs = FaultyFilesystem(settled(MemoryFilesystem()))
        journal = journal_on(fs)
        for number in range(3):
            journal.commit(journal.append([line(str(number))], unexpected).mark)
        assert [call.subject for call in fs.calls if call.method == "sync_directory"] == ["/s"]
        assert count(fs, "sync") == 3

    @pytest.mark.parametrize(("path", "folders"), [("/c/new.jsonl", ["/c", "/s"]), ("/s/new.jsonl", ["/s"])])
    def test_renaming_syncs_every_folder_that_it_changes(self, path: str, folders: list[str]) -> None:
        """Both the old and the new folder are synced."""
        fs = FaultyFilesystem(settled(MemoryFilesystem()))
        journal_on(fs).rename(path)
        assert [call.subject for call in fs.calls if call.method == "sync_directory"] == folders

    def test_after_a_failed_sync_reopening_writes_the_file_anew_once(self) -> None:
        """The kernel may show data that is not on the disk; a second reopening does not write again."""
        inner = settled(MemoryFilesystem())
        fs = FaultyFilesystem(inner, plan=[Fail(errno.EIO, on={"sync"})])
        journal = journal_on(fs)
        journal.reopen()
        first = inner.lstat(PATH).st_ino
        with pytest.raises(SyncFailed):
            journal.commit(journal.append([line("a")], unexpected).mark)
        assert inner.lstat(PATH).st_ino == first
        journal.reopen()
        second = inner.lstat(PATH).st_ino
        assert second != first
        journal.reopen()
        assert inner.lstat(PATH).st_ino == second
        assert ids(journal.rows()) == ["a"]
