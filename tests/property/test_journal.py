"""Appending and rewriting leave all other bytes unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal_rig import add, always, content_of, expect, journal_on, lines_of, settled
from sessile.core.lines import Line, scan
from sessile.storage.base import News
from sessile.storage.memory import MemoryFilesystem
from sessile.testing.journal_contract import HEADER, chain, line, unexpected

fragments = st.sampled_from(
    (
        b"\n", b"\r\n", b"\0\0", b"\xef\xbb\xbf", b"\xff", b"{", b"}", b'"', b"{}", b"[]", b"garbage", b"\\", b" ",
        line("x"), line("y", "x"), line("x", "y"), line("z")[:-5], HEADER, b"\xe7\x9c",
    )
)  # fmt: skip
contents = st.lists(st.one_of(fragments, st.binary(max_size=8)), max_size=10).map(b"".join)


@pytest.mark.promise("P6")
@pytest.mark.promise("P18")
@given(
    garbage=contents, lines=st.lists(st.sampled_from([*chain("new", "newer"), line("q" * 300)]), min_size=1, max_size=3)
)
def test_an_append_adds_its_lines_and_at_most_a_newline(garbage: bytes, lines: list[bytes]) -> None:
    """The existing bytes are followed by a newline if one was missing, and then by the lines."""
    before = HEADER + b"\n" + garbage
    fs = settled(MemoryFilesystem(), before)
    journal = journal_on(fs)
    appended = journal.append(lines, unexpected)
    guard = b"" if before.endswith(b"\n") else b"\n"
    after = before + guard + b"".join(raw + b"\n" for raw in lines)
    assert content_of(fs) == after
    assert [after[at : at + length] for at, length in appended.positions] == lines
    assert lines_of(after)[-len(lines) :] == lines
    journal.append([line("last")], unexpected)
    assert content_of(fs) == after + line("last") + b"\n"


@pytest.mark.promise("P6")
@given(first=contents, garbage=st.lists(contents, max_size=3))
def test_an_append_after_bytes_of_others_alters_none_of_them(first: bytes, garbage: list[bytes]) -> None:
    """This holds for bytes that came after opening, including partial lines; completed lines are reported as new."""
    fs = settled(MemoryFilesystem(), HEADER + b"\n" + first)
    journal = journal_on(fs)
    known = len(content_of(fs))
    for number, data in enumerate(garbage):
        add(fs, data)
        before = content_of(fs)
        rows = [row for row in expect(before)["rows"] if sum(row[3]) > known]
        told: list[list[object]] = []
        ours = line(f"ours {number}")

        def revise(news: News, told: list[list[object]] = told, ours: bytes = ours) -> list[bytes]:
            told.append([tuple(row) for row in news.rows()])
            return [ours]

        journal.append([ours], revise)
        after = content_of(fs)
        assert after == before + (b"" if before.endswith(b"\n") else b"\n") + ours + b"\n"
        assert told == ([rows] if data else [])
        known = len(after)


@pytest.mark.promise("P11")
@pytest.mark.promise("P16")
@given(garbage=contents, old=st.integers(0, 20), new=st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")))
def test_rewriting_changes_the_edited_line_and_no_other_byte(garbage: bytes, old: int, new: bytes) -> None:
    """Garbage, line ends and other lines are unchanged, wherever the edited line is."""
    before = HEADER + b"\n" + garbage
    lines = [item for item in scan(before) if isinstance(item, Line)][1:]
    fs = settled(MemoryFilesystem(), before)
    journal = journal_on(fs)
    journal.replace(lambda raw: None)
    assert content_of(fs) == before
    if lines:
        target = lines[old % len(lines)]
        counter = iter(range(len(lines) + 1))
        journal.replace(lambda raw: new if next(counter) == old % len(lines) + 1 else None)
        end = target.offset + len(target.raw)
        assert content_of(fs) == before[: target.offset] + new + before[end:]
    journal.append([line("after")], always(line("after")))
    assert lines_of(content_of(fs))[-1] == line("after")
