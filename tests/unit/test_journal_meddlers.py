"""Writers without the lock that write between two steps of an append."""

from __future__ import annotations

import errno
import os

import pytest

from faults.failing import Call, Fail, FaultyFilesystem, Meddle
from journal_rig import PATH, Always, add, always, content_of, count, journal_on, settled
from sessile.errors import SessionNotFound, StorageFailure, StorageFull
from sessile.storage.memory import MemoryFilesystem
from sessile.testing.filesystem_contract import opened
from sessile.testing.journal_contract import HEADER, ids, line, news_of, put

START = HEADER + b"\n" + line("old") + b"\n"
TORN = START + line("torn", "old")[:-1]
OURS = line("ours", "old")
THEIRS = line("theirs", "old")


def cut(fs: MemoryFilesystem, size: int) -> None:
    """Truncate the file, as a program does that rewrites it in place."""
    with opened(fs, PATH, os.O_RDWR) as fd:
        fs.truncate(fd, size)


class TestOneLine:
    """Our line is written again only if it is not on its own line."""

    def test_a_line_written_behind_ours_before_we_look_is_no_reason_to_write_again(self) -> None:
        """Our line was already on its own line."""
        fs = settled(MemoryFilesystem(), START)
        journal = journal_on(fs)
        journal._fs = FaultyFilesystem(fs, plan=[Meddle(lambda: add(fs, THEIRS + b"\n"), on={"fstat"})])
        ((offset, _),) = put(journal, OURS)
        assert content_of(fs) == START + OURS + b"\n" + THEIRS + b"\n"
        assert offset == len(START)

    def test_behind_a_torn_line_ours_stands_once_whatever_slips_in(self) -> None:
        """The leading newline is sufficient."""
        fs = settled(MemoryFilesystem(), TORN)
        journal = journal_on(fs)
        journal._fs = FaultyFilesystem(fs, plan=[Meddle(lambda: add(fs, b"more"), on={"write"})])
        put(journal, OURS)
        assert content_of(fs) == TORN + b"more\n" + OURS + b"\n"

    def test_a_whole_line_that_slips_in_is_followed_by_ours_without_a_gap(self) -> None:
        """The foreign line may come just before the check for a final newline."""
        fs = settled(MemoryFilesystem(), START)
        journal = journal_on(fs)
        journal._fs = FaultyFilesystem(fs, plan=[Meddle(lambda: add(fs, THEIRS + b"\n"), on={"read"})])
        put(journal, OURS)
        assert content_of(fs) == START + THEIRS + b"\n" + OURS + b"\n"

    def test_a_line_that_was_cut_away_is_written_once_more_at_little_cost(self) -> None:
        """Only the end of the file is read again: before each try, and after the last."""
        fs = settled(MemoryFilesystem(), START)
        journal = journal_on(fs)
        journal._fs = faulty = FaultyFilesystem(fs, plan=[Meddle(lambda: cut(fs, len(START)), on={"fstat"})])
        put(journal, OURS)
        assert content_of(fs) == START + b"\n" + OURS + b"\n"
        assert count(faulty, "read") <= 3

    def test_a_line_that_is_cut_away_each_time_is_tried_a_hundred_times_more(self) -> None:
        """Then the append raises."""
        fs = settled(MemoryFilesystem(), START)
        journal = journal_on(fs)
        journal._fs = faulty = FaultyFilesystem(fs, plan=[Always(lambda call: cut(fs, len(START)), on={"fstat"})])
        with pytest.raises(StorageFailure, match="keeps writing"):
            put(journal, OURS)
        assert count(faulty, "write") == 101


class TestNews:
    """Entries of other writers are reported to a later append."""

    def test_a_torn_line_completed_by_a_single_byte_is_news_for_the_next_append(self) -> None:
        """Even one byte before our line may have completed an entry."""
        fs = settled(MemoryFilesystem(), TORN)
        journal = journal_on(fs)
        journal._fs = FaultyFilesystem(fs, plan=[Meddle(lambda: add(fs, b"}"), on={"write"})])
        put(journal, OURS)
        assert news_of(journal) == ["torn", "ours"]


class TestEmptied:
    """A file without its header is not written to."""

    def test_a_file_emptied_right_behind_our_write_is_not_written_to_again(self) -> None:
        """The line is lost with all others, and the error says so."""
        fs = settled(MemoryFilesystem(), START)
        journal = journal_on(fs)
        journal._fs = FaultyFilesystem(fs, plan=[Meddle(lambda: cut(fs, 0), on={"fstat"})])
        with pytest.raises(SessionNotFound) as caught:
            journal.append([OURS], always(OURS))
        assert caught.value.path == PATH and journal.failure
        assert content_of(fs) == b""

    @pytest.mark.promise("P14")
    @pytest.mark.parametrize("size", [0, 10])
    def test_a_file_that_took_the_place_of_ours_and_is_emptied_gets_no_line(self, size: int) -> None:
        """We have read the new file, but no append has looked at it yet."""
        fs = settled(MemoryFilesystem(), START)
        journal = journal_on(fs)
        settled(fs, START + THEIRS + b"\n")
        assert ids(journal.rows()) == ["old", "theirs"]
        cut(fs, size)
        with pytest.raises(SessionNotFound):
            put(journal, OURS)
        assert len(content_of(fs)) == size

    @pytest.mark.promise("P14")
    @pytest.mark.parametrize("size", [0, 10])
    def test_a_file_that_took_the_place_of_ours_may_be_emptied_before_our_second_look(self, size: int) -> None:
        """The file is emptied between reading its header and checking its name again."""
        fs = settled(MemoryFilesystem(), START)
        journal = journal_on(fs)
        settled(fs, START + THEIRS + b"\n")
        journal._fs = FaultyFilesystem(fs, plan=[Meddle(lambda: cut(fs, size), on={"lstat"}, at=2)])
        with pytest.raises(SessionNotFound):
            put(journal, OURS)
        assert len(content_of(fs)) == size


class TestFailing:
    """Errors of the storage while others write."""

    def test_a_second_try_that_fails_is_raised_and_latched(self) -> None:
        """The line is glued to a fragment and there is no space to write it again."""
        fs = settled(MemoryFilesystem(), START)
        journal = journal_on(fs)
        glue = Meddle(lambda: add(fs, b"fragment"), on={"write"})
        journal._fs = FaultyFilesystem(fs, plan=[glue, Fail(errno.ENOSPC, on={"write"}, at=2)])
        with pytest.raises(StorageFull) as caught:
            put(journal, OURS)
        assert caught.value.path == PATH and journal.failure

    def test_a_write_that_stores_nothing_takes_nothing_of_others_back(self) -> None:
        """No byte that another program wrote is removed."""
        fs = settled(MemoryFilesystem(), START)
        journal = journal_on(fs)
        plan = [Meddle(lambda: add(fs, b"{"), on={"write"}), Fail(errno.EIO, on={"write"})]
        journal._fs = FaultyFilesystem(fs, plan=plan)
        with pytest.raises(StorageFailure):
            put(journal, OURS)
        assert content_of(fs) == START + b"{"

    def test_a_storage_that_takes_a_part_twice_and_says_nothing_is_an_error_of_its_own(self) -> None:
        """It is not mistaken for another writer: there is no third try and no incomplete line."""
        fs = settled(MemoryFilesystem(), START)
        journal = journal_on(fs)
        journal._fs = faulty = FaultyFilesystem(fs, plan=[Always(five_bytes, on={"write"})])
        with pytest.raises(StorageFailure, match="only a part") as caught:
            put(journal, OURS)
        assert caught.value.errno == errno.EIO
        assert count(faulty, "write") == 2
        assert content_of(fs) == START

    def test_a_whole_line_stays_when_only_the_look_behind_it_fails(self) -> None:
        """Others may have seen it: the error is latched, and nothing is taken back."""
        fs = settled(MemoryFilesystem(), START)
        journal = journal_on(fs)
        journal._fs = FaultyFilesystem(fs, plan=[Fail(errno.EIO, on={"fstat"})])
        with pytest.raises(StorageFailure):
            put(journal, OURS)
        assert journal.failure
        assert content_of(fs) == START + OURS + b"\n"


def five_bytes(call: Call) -> int:
    """The number of bytes that such a storage writes at a time."""
    return 5
