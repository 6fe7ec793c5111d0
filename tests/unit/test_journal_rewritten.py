"""Rewriting and renaming a session: news, waiting, and interruptions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from journal_rig import PATH, content_of, journal_on, settled
from sessile.errors import SessionBusy, StorageFailure
from sessile.storage.memory import MemoryFilesystem
from sessile.testing.journal_contract import HEADER, ids, line, news_of, put

START = HEADER + b"\n" + line("a") + b"\n" + line("b", "a", text="x" * 500) + b"\n"
THEIRS = [line(f"t{number}", "b", text="y" * 500) for number in range(3)]

Edit = Callable[[bytes], bytes | None]


def changed(*names: str, text: str) -> Edit:
    """Return an edit that gives these entries another text."""
    new = {name.encode(): line(name, "b", text=text) for name in names}
    return lambda raw: next((new[name] for name in new if b'"id":"%b"' % name in raw), None)


class TestNews:
    """Entries of other writers stay news; our own entries do not become news."""

    @pytest.mark.parametrize(
        "edit",
        [
            changed("a", text="one line of ours is longer" * 100),
            changed("b", text=""),
            changed("a", "b", text="one is longer and one is shorter"),
            changed("t0", text=""),
            changed("t0", "t1", "t2", text="theirs are longer" * 100),
            changed("b", "t0", text=""),
        ],
        ids=["ours longer", "ours shorter", "ours", "theirs shorter", "theirs longer", "both shorter"],
    )
    def test_whatever_is_edited_the_lines_of_others_are_news_and_ours_are_not(self, edit: Edit) -> None:
        """The start of the news moves with edits before it, and with no others."""
        fs = settled(MemoryFilesystem(), START)
        journal = journal_on(fs)
        put(journal_on(fs), *THEIRS)
        journal.replace(edit)
        assert news_of(journal) == ["t0", "t1", "t2"]

    def test_however_many_lines_of_others_are_edited_the_first_one_is_news(self) -> None:
        """Edits of the news do not move their start."""
        fs = settled(MemoryFilesystem(), START)
        journal = journal_on(fs)
        names = [f"t{number:03}" for number in range(400)]
        put(journal_on(fs), *(line(name, "b") for name in names))
        journal.replace(changed(*names, text=""))
        assert news_of(journal) == names


class TestWaiting:
    """A rewrite needs the lock, as an append does."""

    def test_a_session_that_another_holds_is_not_rewritten(self) -> None:
        """Nothing is changed, and nothing is latched."""
        fs = settled(MemoryFilesystem(), START)
        journal, holder = journal_on(fs), journal_on(fs)
        holder.hold()
        with pytest.raises(SessionBusy):
            journal.replace(changed("a", text="new"))
        assert content_of(fs) == START
        assert fs.names("/s") == ["s.jsonl"]
        holder.release()
        journal.replace(changed("a", text="new"))

    def test_a_session_that_another_has_replaced_is_rewritten_as_it_is_now(self) -> None:
        """The lines of the new file are edited, not those of the old one."""
        fs = settled(MemoryFilesystem(), START)
        journal = journal_on(fs)
        settled(fs, START + THEIRS[0] + b"\n")
        journal.replace(changed("a", text="new"))
        assert ids(journal.rows()) == ["a", "b", "t0"]


class InterruptedBehind(MemoryFilesystem):
    """A file system that is interrupted right after a rename."""

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if source == PATH:
            raise KeyboardInterrupt


class TestRenaming:
    """The journal knows the path of its file."""

    def test_a_closed_session_is_not_renamed(self) -> None:
        """An error says that it is closed, and the file keeps its name."""
        fs = settled(MemoryFilesystem(), START)
        journal = journal_on(fs)
        journal.close()
        with pytest.raises(StorageFailure, match="closed"):
            journal.rename("/c/new.jsonl")
        assert fs.names("/s") == ["s.jsonl"]

    def test_an_interruption_behind_the_renaming_is_raised_and_the_session_goes_on_under_its_new_name(self) -> None:
        """The journal uses the new path."""
        fs = settled(InterruptedBehind(), START)
        journal = journal_on(fs)
        with pytest.raises(KeyboardInterrupt):
            journal.rename("/c/new.jsonl")
        assert journal.path == "/c/new.jsonl"
        put(journal, line("c", "b"))
        assert ids(journal.rows()) == ["a", "b", "c"]
