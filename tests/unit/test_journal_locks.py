"""The lock and the descriptor of a journal: when they are released, also after an interruption."""

from __future__ import annotations

import errno
from itertools import count as counting

import pytest

from faults.failing import Fail, FaultyFilesystem, Meddle
from journal_rig import INDEX, PATH, content_of, count, journal_on, settled
from sessile.errors import StorageFailure
from sessile.storage import atomic
from sessile.storage.memory import MemoryFilesystem
from sessile.testing.journal_contract import HEADER, ids, line, put, unexpected

START = HEADER + b"\n" + line("old") + b"\n"


def interrupt() -> None:
    """Ctrl-C."""
    raise KeyboardInterrupt


class TestDescriptors:
    """Any number is a valid descriptor."""

    def test_a_program_without_standard_input_gets_descriptor_zero_and_works(self) -> None:
        """Appending, flushing and unlocking work with it."""
        inner = settled(MemoryFilesystem())
        inner._descriptors = counting(0)
        fs = FaultyFilesystem(inner)
        journal = journal_on(fs, power=False)
        assert journal._fd == 0
        put(journal, line("a"))
        assert inner._locks == {}
        journal.flush()
        assert count(fs, "sync") == 1
        journal.close()
        assert inner._open == {}

    def test_a_journal_keeps_its_index_where_it_is_told(self) -> None:
        """The next process that opens a long session finds the index."""
        lines = [line(f"id{number:06}") for number in range(100)]
        fs = settled(MemoryFilesystem(), START + b"\n".join(lines) + b"\n")
        journal = journal_on(fs, index_path=INDEX)
        assert journal.count() == 101
        journal.close()
        assert atomic.exists(fs, INDEX)


class TestGivingBack:
    """Locks are released."""

    def test_a_journal_that_was_closed_while_held_is_not_held_when_it_is_reopened(self) -> None:
        """Closing releases the lock."""
        fs = settled(MemoryFilesystem())
        journal = journal_on(fs)
        journal.hold()
        journal.close()
        journal.reopen()
        assert fs._locks == {}
        put(journal, line("a"))
        put(journal_on(fs), line("b", "a"))

    def test_holding_that_fails_leaves_no_lock(self) -> None:
        """The lock is released if the name cannot be checked after locking."""
        inner = settled(MemoryFilesystem())
        journal = journal_on(FaultyFilesystem(inner, plan=[Fail(errno.EIO, on={"lstat"})]))
        with pytest.raises(StorageFailure) as caught:
            journal.hold()
        assert caught.value.path == PATH
        assert inner._locks == {}

    def test_an_interruption_before_the_lock_of_an_append_is_freed_frees_it_and_is_raised(self) -> None:
        """The line was written, and the next writer finds the file unlocked."""
        inner = settled(MemoryFilesystem())
        journal = journal_on(FaultyFilesystem(inner, plan=[Meddle(interrupt, on={"unlock"})]))
        with pytest.raises(KeyboardInterrupt):
            journal.append([line("a")], unexpected)
        assert inner._locks == {}
        assert ids(journal.rows()) == ["a"]

    @pytest.mark.parametrize("at", [1, 2])
    def test_an_interruption_before_the_locks_of_a_rewrite_are_freed_frees_them_and_is_raised(self, at: int) -> None:
        """Both locks are released, and no descriptor is left open."""
        inner = settled(MemoryFilesystem(), START)
        journal = journal_on(FaultyFilesystem(inner, plan=[Meddle(interrupt, on={"unlock"}, at=at)]))
        with pytest.raises(KeyboardInterrupt):
            journal.replace(lambda raw: None)
        assert inner._locks == {}
        assert len(inner._open) == 1
        put(journal, line("a", "old"))
        assert content_of(inner) == START + line("a", "old") + b"\n"
