"""Rows of MyAgents' session files."""

from __future__ import annotations

from typing import Any

import pytest

from myagents_folder import AT, asked, line
from sessile.agents.myagents.messages import Item, Row, encode_row, scan
from sessile.core.lines import Finding

Json = dict[str, Any]


def read(data: bytes, size: int = 1 << 20) -> list[Item]:
    """Return all items of a file, fed in chunks."""
    return list(scan(data[at : at + size] for at in range(0, len(data), size)))


def rows_of(data: bytes) -> list[Row]:
    return [item for item in read(data) if isinstance(item, Row)]


@pytest.mark.mission("M6")
def test_a_line_that_cannot_be_read_is_a_finding_and_the_next_is_read() -> None:
    """The finding has the offset and length of the line."""
    first = line(asked(0))
    items = read(first + b"{broken\n" + b"[1]\n" + line(asked(1)))
    assert [type(item) for item in items] == [Row, Finding, Finding, Row]
    finding = items[1]
    assert isinstance(finding, Finding)
    assert (finding.code, finding.offset, finding.length) == ("not_json", len(first), len(b"{broken"))


@pytest.mark.mission("M6")
@pytest.mark.parametrize("size", [1, 2, 7, 1 << 20])
def test_how_a_file_is_cut_into_pieces_does_not_matter(size: int) -> None:
    """Lines end with the newline byte only; CR, BOM and blank lines are not messages."""
    data = b"\xef\xbb\xbf" + line(asked(0, "a\u2028b")) + b"\n \t\n" + line(asked(1))[:-1] + b"\r\n" + b'{"id":"2'
    items = read(data, size)
    assert [item.message.id for item in items if isinstance(item, Row)] == ["0", "1"]
    assert [item.code for item in items if isinstance(item, Finding)] == ["torn_tail"]
    for item in items:
        if isinstance(item, Row):
            assert data[item.offset :].startswith(item.raw)


@pytest.mark.mission("M6")
def test_a_message_glued_to_a_torn_one_is_read() -> None:
    """The first versions lose it."""
    torn = line(asked(1))[:20]
    items = read(line(asked(0)) + torn + line(asked(2)))
    assert [item.message.id for item in items if isinstance(item, Row)] == ["0", "2"]
    assert [item.length for item in items if isinstance(item, Finding)] == [len(torn)]


@pytest.mark.mission("M6")
def test_whole_messages_on_one_line_are_all_read() -> None:
    """A finding reports that they were on one line."""
    items = read(line(asked(0))[:-1] + line(asked(1)))
    assert [item.message.id for item in items if isinstance(item, Row)] == ["0", "1"]
    assert [item.code for item in items if isinstance(item, Finding)] == ["glued"]


@pytest.mark.mission("M2")
def test_rows_are_written_as_javascript_writes_them() -> None:
    """There are no spaces, and non-ASCII characters and the order of members are kept."""
    assert encode_row(asked(0, "é\ud800")) + b"\n" == (
        f'{{"id":"0","role":"user","content":"é\\ud800","timestamp":"{AT}"}}\n'.encode()
    )
