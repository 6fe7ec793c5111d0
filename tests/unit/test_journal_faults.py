"""The append protocol with a fault between any two of its steps."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from itertools import count as counting
from random import Random

import pytest

from faults.crashing import CrashableFilesystem, CrashModel
from faults.failing import Call, Fail, Fault, FaultyFilesystem, Kill, Killed, Meddle, ShortWrite
from figures import measured
from journal_rig import PATH, Always, add, always, content_of, journal_on, lines_of, settled
from sessile.errors import LeafMoved, SessileError, SessionNotFound
from sessile.storage import atomic
from sessile.storage.memory import MemoryFilesystem
from sessile.testing.filesystem_contract import get
from sessile.testing.journal_contract import HEADER, chain, ids, line, put

START = HEADER + b"\n" + line("old") + b"\n"
TORN = START + b'{"type":"message","id":"torn'
OURS = [line(f"ours{n}", "old", text="x" * 40) for n in range(3)]

Plan = Callable[[int], list[Fault]]


def played(plan: Plan, content: bytes, play: Callable[[FaultyFilesystem], object]) -> Iterator[FaultyFilesystem]:
    """Run the scenario with the fault at the first call, the second, and so on, until no fault occurs."""
    for at in counting(1):
        fs = FaultyFilesystem(settled(CrashableFilesystem(), content), plan=plan(at))
        play(fs)
        yield fs
        if not fs.struck:
            assert at > 5, "the scenario is over before anything could strike"
            return


class Ledger:
    """Appends three lines and records the acknowledged ones and the first error."""

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self.error: SessileError | None = None

    def play(self, fs: FaultyFilesystem) -> None:
        self.__init__()  # type: ignore[misc]
        try:
            journal = journal_on(fs)
        except SessileError as error:
            self.error = error
            return
        for ours in OURS:
            try:
                appended = journal.append([ours], always(ours))
                journal.commit(appended.mark)
                self.acknowledged.append(ours)
            except SessileError as error:
                self.error = self.error or error
                if journal.failure:
                    with pytest.raises(SessileError) as again:
                        journal.append([ours], always(ours))
                    assert again.value is error
                    fs.heal()
                    journal.reopen()
                    put(journal, ours)
                    self.acknowledged.append(ours)
        try:
            journal.close()
        except SessileError as error:
            self.error = self.error or error


def check(content: bytes, before: bytes, ledger: Ledger) -> None:
    """Assert that old bytes are unchanged, acknowledged lines are present, and no line is joined or incomplete."""
    assert content.startswith(before)
    after = content[len(before) :]
    assert set(ledger.acknowledged) <= set(after.split(b"\n"))
    assert set(after.split(b"\n")) <= {b"", *OURS}


@pytest.mark.promise("P8")
@pytest.mark.mission("X18")
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EINTR, errno.EACCES])
@pytest.mark.parametrize("content", [START, TORN], ids=["sound", "torn"])
def test_any_failing_call_is_typed_latched_and_loses_nothing(code: int, content: bytes) -> None:
    """Each failing call raises a typed error with the path, the file stays valid, and reopening works."""
    ledger = Ledger()
    for fs in played(lambda at: [Fail(code, at=at)], content, ledger.play):
        assert (ledger.error is not None) == bool(fs.struck)
        assert ledger.error is None or ledger.error.path == PATH
        check(content_of(fs.inner), content, ledger)
        assert isinstance(fs.inner, MemoryFilesystem)
        assert fs.inner._open == {}


@pytest.mark.promise("P8")
def test_a_storage_that_fails_for_good_never_acknowledges_what_is_not_there() -> None:
    """If every call fails from some call on, the acknowledged lines are in the file, and no others are acknowledged."""
    for at in counting(1):
        inner = settled(MemoryFilesystem(), START)
        fs = FaultyFilesystem(inner, plan=[Fail(errno.EIO, at=at, forever=True)])
        acknowledged: list[bytes] = []
        try:
            journal = journal_on(fs)
            for ours in OURS:
                put(journal, ours)
                acknowledged.append(ours)
        except SessileError as error:
            assert error.path == PATH
        content = content_of(inner)
        assert content.startswith(START)
        assert set(acknowledged) <= set(content.split(b"\n"))
        if not fs.struck:
            break


@pytest.mark.promise("P3")
def test_a_disk_that_fills_up_at_any_write_and_any_byte_leaves_whole_lines() -> None:
    """After a short write of any length no incomplete line remains, and no acknowledged line is lost."""
    ledger = Ledger()
    for written in range(0, len(OURS[0]) + 2, 5):
        for at in (1, 2, 3):
            fs = FaultyFilesystem(settled(MemoryFilesystem(), TORN), plan=[ShortWrite(written=written, at=at)])
            ledger.play(fs)
            assert fs.struck
            assert ledger.acknowledged == OURS
            check(content_of(fs.inner), TORN, ledger)


@pytest.mark.promise("P3")
@pytest.mark.promise("P6")
def test_a_fragment_that_cannot_be_taken_back_stays_alone() -> None:
    """The fragment is reported as damage, and the next append starts on a new line."""
    inner = settled(MemoryFilesystem(), START)
    plan = [ShortWrite(written=9), Fail(errno.EIO, on={"truncate"})]
    journal = journal_on(FaultyFilesystem(inner, plan=plan))
    with pytest.raises(SessileError):
        put(journal, OURS[0])
    journal.reopen()
    put(journal, OURS[0])
    assert content_of(inner) == START + OURS[0][:9] + b"\n" + OURS[0] + b"\n"
    assert [finding.code for finding in journal.findings()] == ["not_json"]


class TestForeignWriters:
    """Programs without locks write, delete and replace the file between any two of our calls."""

    @pytest.mark.promise("P5")
    @pytest.mark.parametrize(
        "foreign",
        [b"fragment", b"\nfragment", b"fragment\n", line("foreign") + b"\n", b"\n", b"{" * 3, b"x" * 5000],
        ids=["fragment", "late fragment", "line", "entry", "newline", "braces", "long"],
    )
    @pytest.mark.parametrize("content", [START, TORN], ids=["sound", "torn"])
    def test_bytes_between_any_two_calls_leave_our_line_on_a_line_of_its_own(
        self, foreign: bytes, content: bytes
    ) -> None:
        """The line is complete at the position in the receipt, and the foreign bytes are unchanged."""
        ours = line("ours", "old")
        for at in counting(1):
            inner = settled(MemoryFilesystem(), content)
            journal = journal_on(inner)
            fs = FaultyFilesystem(inner, plan=[Meddle(lambda inner=inner: add(inner, foreign), at=at)])  # type: ignore[misc]
            journal._fs = fs
            appended = journal.append([ours], always(ours))
            journal.commit(appended.mark)
            after = content_of(inner)
            assert after.startswith(content)
            assert ours in after.split(b"\n")
            ((offset, length),) = appended.positions
            assert after[offset : offset + length] == ours
            assert after[offset - 1 : offset] == b"\n"
            assert foreign in after or not fs.struck
            assert ours in lines_of(after)
            if not fs.struck:
                assert at > 5
                break

    @pytest.mark.promise("P5")
    @pytest.mark.parametrize("seed", range(30))
    def test_a_peer_that_writes_in_chunks_all_the_time_costs_no_line(self, seed: int) -> None:
        """The other program may write parts of lines before each of our calls, and stop in the middle of one."""
        rng = Random(seed)
        inner = settled(MemoryFilesystem(), START)
        journal = journal_on(inner)
        peer = b"".join(line(f"peer{n}", "old", text="y" * 30) + b"\n" for n in range(200))
        sent = [0]

        def write(call: Call) -> None:
            if rng.random() < 0.4:
                size = rng.choice((1, 7, 40, 200))
                add(inner, peer[sent[0] : sent[0] + size])
                sent[0] += size

        journal._fs = FaultyFilesystem(inner, plan=[Always(write)])
        ours = [line(f"ours{n}", "old") for n in range(20)]
        for raw in ours:
            put(journal, raw)
        after = content_of(inner)
        own_lines = after.split(b"\n")
        for raw in ours:
            assert raw in own_lines
        # The entries of a handle are those in the file, whichever program wrote them.
        assert {row.id for row in journal_on(inner).rows()} >= {f"ours{n}" for n in range(20)}

    @pytest.mark.promise("P5")
    def test_lines_that_slip_in_before_ours_are_news_for_the_next_append(self) -> None:
        """They were not known when our line was written, so the next append gets them."""
        inner = settled(MemoryFilesystem(), START)
        journal = journal_on(inner)
        foreign = line("foreign", "old") + b"\n"
        journal._fs = FaultyFilesystem(inner, plan=[Meddle(lambda: add(inner, foreign), on={"write"})])
        put(journal, line("ours", "old"))
        told: list[str] = []
        journal.append([line("next", "ours")], lambda news: told.extend(ids(news.rows())) or [line("next", "ours")])  # type: ignore[func-returns-value]
        assert "foreign" in told

    @pytest.mark.promise("P14")
    def test_a_file_deleted_between_any_two_calls_is_noticed_and_not_made_again(self) -> None:
        """The append raises unless the file was deleted after the last check; the file is not created again."""
        ours = line("ours", "old")
        for at in counting(1):
            inner = settled(MemoryFilesystem(), START)
            journal = journal_on(inner)
            fs = FaultyFilesystem(inner, plan=[Meddle(lambda inner=inner: inner.unlink(PATH), at=at)])  # type: ignore[misc]
            journal._fs = fs
            try:
                journal.append([ours], always(ours))
            except SessionNotFound:
                assert inner.names("/s") == []
                with pytest.raises(SessionNotFound):
                    journal.append([ours], always(ours))
            else:
                assert not fs.struck or (fs.calls[-1].method == "unlock" and len(fs.calls) == at)
            if not fs.struck:
                assert at > 5
                measured("P14", "files deleted between two calls", places=at - 1, files_without_header=0)
                break

    @pytest.mark.promise("P14")
    @pytest.mark.parametrize("content", [START, TORN, HEADER + b"\n", START + line("more") + b"\n"])
    def test_a_file_replaced_between_any_two_calls_gets_our_line(self, content: bytes) -> None:
        """The append continues in the new file if that has the parent, keeps its bytes, and never writes without a header."""
        ours = line("ours", "old")
        has_parent = b'"old"' in content
        for at in counting(1):
            inner = settled(MemoryFilesystem(), START)
            journal = journal_on(inner)
            fs = FaultyFilesystem(inner, plan=[Meddle(lambda inner=inner: settled(inner, content), at=at)])  # type: ignore[misc]
            journal._fs = fs
            try:
                journal.append([ours], always(ours))
            except LeafMoved:
                assert fs.struck and not has_parent and content_of(inner) == content
                continue
            late = len(fs.calls) == at and fs.calls[-1].method == "unlock"
            after = content_of(inner)
            assert has_parent or late or not fs.struck
            if fs.struck:
                guard = b"" if content.endswith(b"\n") else b"\n"
                assert after == (content if late else content + guard + ours + b"\n")
            else:
                assert at > 5
                measured("P14", "files replaced between two calls", places=at - 1, files_without_header=0)
                break

    @pytest.mark.promise("P22")
    def test_another_session_in_our_place_gets_nothing(self) -> None:
        """The other session is unchanged, whenever it replaced ours."""
        ours, other = line("ours", "old"), HEADER.replace(b"the-", b"other-") + b"\n" + line("theirs") + b"\n"
        for at in counting(1):
            inner = settled(MemoryFilesystem(), START)
            journal = journal_on(inner)
            fs = FaultyFilesystem(inner, plan=[Meddle(lambda inner=inner: settled(inner, other), at=at)])  # type: ignore[misc]
            journal._fs = fs
            try:
                journal.append([ours], always(ours))
            except SessionNotFound:
                assert fs.struck
            assert content_of(inner) == (other if fs.struck else START + ours + b"\n")
            if not fs.struck:
                break


class TestCrashes:
    """A kill or a power cut at any moment."""

    @pytest.mark.promise("P1")
    @pytest.mark.promise("P2")
    @pytest.mark.parametrize("content", [START, TORN], ids=["sound", "torn"])
    def test_no_acknowledged_line_is_lost_wherever_a_run_ends(self, content: bytes) -> None:
        """In every state that the models allow after a kill or a power cut, the next append is on its own line."""
        for at in counting(1):
            inner = settled(CrashableFilesystem(), content)
            fs = FaultyFilesystem(inner, plan=[Kill(at=at)])
            acknowledged: list[bytes] = []
            try:
                journal = journal_on(fs)
                for ours in OURS:
                    put(journal, ours)
                    acknowledged.append(ours)
                journal.close()
            except Killed:
                pass
            survivors = [inner.kill()]
            survivors += [inner.crash(Random(seed), model) for model in CrashModel for seed in range(6)]
            for survivor in survivors:
                again = journal_on(survivor)
                after = content_of(survivor)
                assert after.startswith(content)
                assert set(acknowledged) <= set(after.split(b"\n"))
                put(again, line("again"))
                assert content_of(survivor).startswith(after)
                assert lines_of(content_of(survivor))[-1] == line("again")
            if not fs.struck:
                break

    @pytest.mark.promise("P11")
    @pytest.mark.parametrize("keep", [None, "/o/original"])
    def test_a_rewrite_leaves_the_old_file_or_the_new_one_whole(self, keep: str | None) -> None:
        """The new file is only in place if the original is safe under its other name."""
        old = START + b"garbage\xff\n" + line("b", "old") + b"\n"
        new = old.replace(line("old"), line("old", None, edited=True))
        seen = set()
        for at in counting(1):
            inner = settled(CrashableFilesystem(), old)
            fs = FaultyFilesystem(inner, plan=[Kill(at=at)])
            try:
                journal = journal_on(fs)
                journal.replace(lambda raw: line("old", None, edited=True) if raw == line("old") else None, keep)
                journal.close()
                seen.add("done")
            except Killed:
                pass
            survivors = [inner.kill()]
            survivors += [inner.crash(Random(seed), model) for model in CrashModel for seed in range(6)]
            for survivor in survivors:
                content = content_of(survivor)
                assert content in (old, new)
                assert content == new or fs.struck
                if content == new and keep is not None:
                    assert get(survivor, keep) == old
                assert [name for name in survivor.names("/s") if name.endswith(".jsonl")] == ["s.jsonl"]
                put(journal_on(survivor), line("again"))
                seen.add("new" if content == new else "old")
            if not fs.struck:
                break
        assert seen == {"done", "old", "new"}

    @pytest.mark.promise("P11")
    @pytest.mark.parametrize("keep", [None, "/o/original"])
    @pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
    def test_a_rewrite_that_fails_anywhere_is_typed_and_cleans_up(self, keep: str | None, code: int) -> None:
        """The file is the old or the new one, no temporary or second name remains, and the rewrite can be repeated."""
        old = START + line("b", "old") + b"\n"
        edited = line("old", None, edited=True)
        new = old.replace(line("old"), edited)
        for at in counting(1):
            inner = settled(MemoryFilesystem(), old)
            journal = journal_on(inner)
            fs = FaultyFilesystem(inner, plan=[Fail(code, at=at)])
            journal._fs = fs
            try:
                journal.replace(lambda raw: edited if raw == line("old") else None, keep)
            except SessileError as error:
                assert error.path
            fs.heal()
            content = content_of(inner)
            assert content in (old, new)
            assert inner.names("/s") == ["s.jsonl"]
            assert inner.lstat(PATH).st_nlink == 1
            if journal.failure or journal._fd < 0:
                journal.reopen()
            put(journal, line("again"))
            if content == old:
                journal.replace(lambda raw: edited if raw == line("old") else None)
            assert content_of(inner) == new + line("again") + b"\n"
            journal.close()
            assert inner._open == {}
            if not fs.struck:
                assert at > 10
                break


def test_temporary_names_never_look_like_sessions() -> None:
    """Other programs list every name that ends in `.jsonl`."""
    name = atomic.temp_beside(PATH).rsplit("/", 1)[1]
    assert name.startswith(".")
    assert not name.endswith(".jsonl")
    assert len({atomic.temp_beside(PATH) for _ in range(100)}) == 100


def test_a_storage_that_takes_nothing_and_says_nothing_is_given_up() -> None:
    """A write of zero bytes is not repeated forever."""
    fs = FaultyFilesystem(settled(MemoryFilesystem(), START), plan=[Always(lambda call: 0, on={"write"})])
    with pytest.raises(SessileError):
        atomic.replace(fs, "/s/other", [b"x"])
    journal = journal_on(fs)
    with pytest.raises(SessileError):
        put(journal, OURS[0])
    assert content_of(fs.inner) == START


def test_a_chain_of_many_lines_is_one_write() -> None:
    """A batch is a single write, so other writers cannot split it."""
    fs = FaultyFilesystem(settled(MemoryFilesystem(), START))
    put(journal_on(fs), *chain("a", "b", "c"))
    assert [call.method for call in fs.calls].count("write") == 1
