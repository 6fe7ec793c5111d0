"""Rows of MyAgents' session files, and their way to entries and back."""

from __future__ import annotations

from typing import Any

import pytest

from myagents_folder import AT, asked, line, row, told
from sessile.core.lines import Finding
from sessile.errors import InvalidEntry
from sessile.formats.myagents.conversion import KEPT, from_entries, to_entries, to_header
from sessile.formats.myagents.messages import Item, Row, encode_row, scan
from sessile.formats.myagents.types import Metadata

Json = dict[str, Any]


def read(data: bytes, size: int = 1 << 20) -> list[Item]:
    """All items of a file, fed in pieces."""
    return list(scan(data[at : at + size] for at in range(0, len(data), size)))


def rows_of(data: bytes) -> list[Row]:
    return [item for item in read(data) if isinstance(item, Row)]


@pytest.mark.mission("M6")
def test_a_line_that_cannot_be_read_is_a_finding_and_the_next_is_read() -> None:
    """With its place and its length."""
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
    """What the first versions lose for ever."""
    torn = line(asked(1))[:20]
    items = read(line(asked(0)) + torn + line(asked(2)))
    assert [item.message.id for item in items if isinstance(item, Row)] == ["0", "2"]
    assert [item.length for item in items if isinstance(item, Finding)] == [len(torn)]


@pytest.mark.mission("M6")
def test_whole_messages_on_one_line_are_all_read() -> None:
    """And it is said that they were glued."""
    items = read(line(asked(0))[:-1] + line(asked(1)))
    assert [item.message.id for item in items if isinstance(item, Row)] == ["0", "1"]
    assert [item.code for item in items if isinstance(item, Finding)] == ["glued"]


@pytest.mark.mission("M2")
def test_rows_are_written_as_javascript_writes_them() -> None:
    """No spaces, non-ASCII as it is, order kept."""
    assert encode_row(asked(0, "é\ud800")) + b"\n" == (
        f'{{"id":"0","role":"user","content":"é\\ud800","timestamp":"{AT}"}}\n'.encode()
    )


# -- entries

TOOL = {"type": "tool_use", "tool": {"id": "t1", "name": "Read", "input": {"p": 1}, "result": "ok", "streamIndex": 3}}
BLOCKS = encode_row({"x": [{"type": "thinking", "thinking": "hm"}, TOOL, {"type": "text", "text": "done"}]})[
    5:-1
].decode()

SAMPLES = [
    line(asked(0)),
    line(told(1, toolCount=2, durationMs=900, later={"x": [1.5, None]})),
    line(told(2, text=BLOCKS)),
    line(asked(3, attachments=[{"id": "a", "name": "n", "mimeType": "image/png", "path": "s/a.png"}])),
    b'{"role": "user", "id": "4", "content": "spaced", "n": 1.0, "n": 2}\n',
    b'{"id":"5","role":"user","content":"not \xff utf-8"}\n',
    b'{"id":"6","role":"system","content":"another role","timestamp":"soon"}\n',
    b'{"id":"7","role":"user","content":"lone \\ud800"}\n',
    b'{"id":"8","role":"assistant","content":null}\n',
    b'{"id":"9"}\n',
]


@pytest.mark.mission("B1")
@pytest.mark.parametrize("data", [*SAMPLES, b"".join(SAMPLES)])
def test_entries_give_the_same_bytes_back(data: bytes) -> None:
    """Whatever is in a row: unknown members, other roles, odd spacing, bytes that are not UTF-8."""
    converted = from_entries(to_entries("s", rows_of(data), AT))
    assert b"".join(raw + b"\n" for raw in converted.rows) == data
    assert converted.left_out == {}


@pytest.mark.mission("B1")
def test_entries_are_a_chain_of_messages_with_tool_calls_and_results() -> None:
    """A tool and its result are a call and a message that answers it; usage has our names."""
    entries = list(to_entries("s", rows_of(line(asked(0)) + line(told(1, text=BLOCKS))), AT))
    assert [entry["parentId"] for entry in entries] == [None, *(entry["id"] for entry in entries[:-1])]
    assert [entry["message"]["role"] for entry in entries if entry["type"] == "message"] == [
        "user",
        "assistant",
        "toolResult",
    ]
    answer = entries[2]["message"]
    assert [block["type"] for block in answer["content"]] == ["thinking", "toolCall", "text"]
    assert answer["usage"] == {"input": 10, "output": 1, "cacheRead": 2, "totalTokens": 13}
    assert answer["model"] == "m"
    assert entries[3]["message"]["toolCallId"] == "t1"


@pytest.mark.mission("B1")
def test_ids_of_entries_are_the_same_every_time() -> None:
    """So that links survive reading again."""
    rows = rows_of(b"".join(SAMPLES))
    assert list(to_entries("s", rows, AT)) == list(to_entries("s", rows, AT))
    assert len({entry["id"] for entry in to_entries("s", rows, AT)}) > len(rows)


@pytest.mark.mission("B1")
def test_a_changed_message_keeps_the_other_members_of_its_row() -> None:
    """Only what was said is new."""
    entries = list(to_entries("s", rows_of(line(told(0, text=BLOCKS, later=1)) + line(told(1, durationMs=7))), AT))
    for entry in entries:
        if entry["type"] == "message" and entry["message"]["role"] == "assistant":
            entry["message"] = entry["message"] | {"content": [{"type": "text", "text": "new"}]}
    first, second = (Row(0, raw).message.value for raw in from_entries(entries).rows)
    assert first["content"] == second["content"] == "new"
    assert first["later"] == 1 and second["durationMs"] == 7 and second["usage"]["inputTokens"] == 10


@pytest.mark.mission("B1")
def test_messages_of_ours_become_rows_with_the_next_number() -> None:
    """Calls carry their results, tools are counted, usage has their names; what has no row is counted."""
    entries: list[Json] = list(to_entries("s", rows_of(line(asked(7))), AT))
    call = {"type": "toolCall", "id": "c", "name": "Run", "arguments": {"x": 1}}
    message = {"role": "assistant", "content": [call], "model": "m", "usage": {"input": 5, "output": 2}}
    result = {"role": "toolResult", "toolCallId": "c", "content": [{"type": "text", "text": "out"}], "isError": True}
    entries += [
        {"type": "message", "id": "n1", "timestamp": AT, "message": message},
        {"type": "message", "id": "n2", "timestamp": AT, "message": result},
        {"type": "label", "id": "n3", "targetId": "n1", "label": "x"},
    ]
    converted = from_entries(entries)
    new = Row(0, converted.rows[1]).message
    assert new.id == "8" and new.tool_count == 1 and new.duration_ms is None
    assert new.usage is not None and new.usage.input_tokens == 5 and new.usage.cache_read_tokens is None
    assert new.content == [
        {
            "type": "tool_use",
            "tool": {"id": "c", "name": "Run", "input": {"x": 1}, "result": "out", "isError": True},
        }
    ]
    assert converted.left_out == {"label": 1}


@pytest.mark.mission("B1")
def test_a_text_of_ours_that_looks_like_blocks_is_not_read_as_blocks() -> None:
    """It is stored as a block of text."""
    message = {"role": "assistant", "content": [{"type": "text", "text": "[1]"}]}
    raw = from_entries([{"type": "message", "id": "a", "timestamp": AT, "message": message}]).rows[0]
    assert Row(0, raw).message.content == [{"type": "text", "text": "[1]"}]


@pytest.mark.mission("B1")
def test_the_header_keeps_all_that_the_index_knows() -> None:
    """In a member of its own."""
    header = to_header(Metadata(row("s", pinnedAt=AT, stats={"messageCount": 1})), AT)
    assert (header["id"], header["cwd"], header["title"], header["timestamp"]) == ("s", "/work/app", "New Chat", AT)
    assert header["myagents"]["pinnedAt"] == AT


def test_plain_rows_are_not_stored_twice() -> None:
    """What the message holds already is left out of what is kept."""
    kept = [
        entry["data"] for entry in to_entries("s", rows_of(line(asked(0, "once"))), AT) if entry["type"] == "custom"
    ]
    assert kept[0]["members"]["content"] is None
    assert KEPT == "sessile.myagents"


@pytest.mark.mission("B1")
def test_a_kept_row_that_was_cut_is_not_taken_for_the_row() -> None:
    """It says what to do, and writes nothing wrong."""
    entries = list(to_entries("s", rows_of(SAMPLES[2]), AT))
    entries[-1]["data"]["line"] = entries[-1]["data"]["line"][:50]
    with pytest.raises(InvalidEntry):
        from_entries(entries)
