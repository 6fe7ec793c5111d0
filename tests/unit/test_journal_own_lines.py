"""Reading between appends does not read our own lines again, and returns what is in the file."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from faults.failing import FaultyFilesystem
from journal_rig import add, ask, content_of, count, expect, journal_on, settled
from sessile.core.lines import read_head
from sessile.errors import LeafMoved
from sessile.storage.journal import FileJournal
from sessile.storage.memory import MemoryFilesystem
from sessile.testing.journal_contract import found, ids, line, put

IDS = "abcdefghijkl"


def test_lines_of_our_own_are_not_read_again() -> None:
    """Looking for a key before each append reads nothing."""
    fs = FaultyFilesystem(settled(MemoryFilesystem()))
    journal = journal_on(fs)
    parent = None
    for entry_id in "ab":
        assert journal.find(entry_id) is None
        put(journal, line(entry_id, parent))
        parent = entry_id
    fs.calls.clear()
    for entry_id in "cdef":
        assert journal.find(entry_id) is None
        put(journal, line(entry_id, parent))
        parent = entry_id
    assert count(fs, "read") == 0
    assert ids(journal.rows()) == [*"abcdef"] and found(journal, "f").parent_id == "e"


def test_whoever_does_not_ask_does_not_pay_for_it() -> None:
    """An append alone leaves the index as it is."""
    journal = journal_on(settled(MemoryFilesystem()))
    assert journal.find("a") is None and journal.find("a") is None
    put(journal, line("a"))
    put(journal, line("b", "a"))
    assert journal._indexed < journal._seen
    assert ids(journal.rows()) == ["a", "b"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "append", "two", "meddle", "tear", "odd", "large"]), st.sampled_from([*IDS, "", "\xe9"])
    ),
    max_size=25,
)


@given(STEPS)
def test_what_a_journal_says_is_what_the_file_holds(steps: list[tuple[str, str]]) -> None:
    """The entries are those in the file after any appends by us and by programs without the lock."""
    fs = settled(MemoryFilesystem())
    journal = journal_on(fs)

    def put_below(journal: FileJournal, *lines: bytes) -> None:
        before = content_of(fs)
        try:
            put(journal, *lines)
        except LeafMoved:  # after a change by another program, a parent must be in the file
            assert content_of(fs) == before
            assert read_head(lines[0]).parentId not in ids(journal_on(fs).rows())

    for number, (step, entry_id) in enumerate(steps):
        text = line(entry_id or f"n{number}", IDS[number % len(IDS)])
        if step == "ask":
            journal.find(entry_id)
        elif step == "append":
            put_below(journal, text)
        elif step == "two":
            put_below(journal, text, line(f"t{number}", entry_id))
        elif step == "meddle":
            add(fs, text + b"\n")
        elif step == "tear":
            add(fs, text[:-5])
        elif step == "odd":
            put(journal, b"[1]", b'{"type":"custom"}', text + b"\r")
        else:
            put_below(journal, line(f"l{number}", entry_id, data="x" * 70_000))
        if step != "append":  # otherwise the next step follows immediately
            assert ask(journal, IDS) == expect(content_of(fs), IDS)
    assert ask(journal, IDS) == expect(content_of(fs), IDS)
