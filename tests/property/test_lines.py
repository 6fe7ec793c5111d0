"""The scanner, for any bytes: every byte is accounted for, no entry is made up, and lines beside damage survive."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sessile.core.codec import decode, encode
from sessile.core.lines import Finding, Head, Item, Line, MessageHead, Scanner, read_head, scan
from strategies import NASTY, Damage, chunks_of, damaged, journals, json_objects, json_values

fragments = st.sampled_from(
    [b"\n", b"\r\n", b"\0", b"\xef\xbb\xbf", b"\xff", b" ", b"5", b"null", b"{", b"}", b'{"type":"a"}', b'"', b"\\", b'{"']
) | json_objects.map(encode)  # fmt: skip
soup = st.lists(fragments | st.binary(max_size=6), max_size=14).map(b"".join) | st.binary(max_size=80)


def feed(data: bytes, sizes: list[int]) -> tuple[list[Item], int]:
    scanner = Scanner()
    items = [item for chunk in chunks_of(data, sizes) for item in scanner.feed(chunk)]
    items += scanner.finish()
    return items, scanner.newline_bytes


def assert_accounted(data: bytes) -> list[Item]:
    """Lines and findings follow each other, with only line ends between them."""
    items, newline_bytes = feed(data, [len(data) or 1])
    at = between = 0
    for item in items:
        length = len(item.raw) if isinstance(item, Line) else item.length
        if isinstance(item, Finding) and not length:
            continue
        assert item.offset >= at
        gap = data[at : item.offset]
        assert not gap.strip(b"\r\n")
        between += len(gap)
        if isinstance(item, Line):
            assert data[item.offset : item.offset + length] == item.raw
            assert b"\n" not in item.raw
        at = item.offset + length
    assert not data[at:].strip(b"\r\n")
    assert between + len(data) - at == newline_bytes
    return items


@pytest.mark.promise("P17")
@given(soup | damaged().map(lambda damage: damage.data))
@example(b'{"type":"a"}\r\r\n\r')
@example(b'\xef\xbb\xbf\0\0{"type":"a"}\0\r\n')
def test_every_byte_of_any_bytes_is_accounted_for(data: bytes) -> None:
    """Nothing raises, is counted twice or is missing."""
    assert_accounted(data)


@pytest.mark.promise("P17")
@given(soup | damaged().map(lambda damage: damage.data), st.lists(st.integers(1, 30), min_size=1, max_size=5))
@example(b'{"type":"a"}\r\n', [1])
def test_the_result_does_not_depend_on_the_chunks(data: bytes, sizes: list[int]) -> None:
    """Items and line ends are the same for any chunks."""
    assert feed(data, sizes) == feed(data, [len(data) or 1])


@pytest.mark.promise("P17")
@given(st.binary() | soup, st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(0, 40))
def test_splitting_gives_the_same_lines_however_the_bytes_come(data: bytes, sizes: list[int], limit: int) -> None:
    """Each complete line with its offset; a line over the limit has no bytes."""
    scanner = Scanner(100, limit)
    found = [line for chunk in chunks_of(data, sizes) for line in scanner.split(chunk)]
    *ended, rest = data.split(b"\n")
    places = [100 + sum(len(line) + 1 for line in ended[:number]) for number in range(len(ended))]
    told = [line if len(line) <= limit else None for line in ended]
    assert found == list(zip(places, told, strict=True))
    assert scanner.line_start == 100 + len(data) - len(rest)


@given(soup | damaged().map(lambda damage: damage.data))
def test_every_line_can_be_decoded_and_has_the_head_of_its_value(data: bytes) -> None:
    """The head agrees with the body."""
    for item in scan(data):
        if isinstance(item, Line):
            assert head_of(decode(item.raw)) == item.head


@pytest.mark.promise("P18")
@given(journals())
def test_an_undamaged_journal_is_read_whole_and_without_findings(lines: list[bytes]) -> None:
    """The scanner reads what the encoder writes."""
    items = list(scan(b"".join(line + b"\n" for line in lines)))
    assert [item.raw for item in items if isinstance(item, Line)] == lines
    assert len(items) == len(lines)


@pytest.mark.promise("P17")
@pytest.mark.promise("P18")
@given(damaged())
def test_lines_outside_the_damage_are_all_read(damage: Damage) -> None:
    """Every line outside one damaged range of a file is still an entry.

    Spaces beside the range belong to the damaged line.
    """
    read = Counter(item.raw.strip(b" \t\r") for item in assert_accounted(damage.data) if isinstance(item, Line))
    missing = Counter(damage.untouched) - read
    assert not missing


@pytest.mark.promise("P17")
@given(journals(), st.integers(0), st.sampled_from([b"", b"\n", b"x", b"\0\n"]))
def test_a_part_of_an_entry_is_never_taken_for_one(lines: list[bytes], where: int, behind: bytes) -> None:
    """A line torn at any byte, from either side, yields no record."""
    line = lines[where % len(lines)]
    at = 1 + where % (len(line) - 1)
    for part in (line[:at] + behind, line[at:] + b"\n"):
        assert not [item for item in scan(part) if isinstance(item, Line)]


def head_of(value: Any) -> Head | None:
    """Return the head by the rules of the format, from the standard library's value."""
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return None
    texts = {
        name: item if isinstance(item := value.get(name), str) else None for name in ("id", "parentId", "customType")
    }
    message = None
    if isinstance(value.get("message"), dict):
        said = value["message"]
        message = MessageHead(
            **{name: said[name] if isinstance(said.get(name), str) else None for name in ("role", "provider", "model")}
        )
    return Head(value["type"], message=message, **texts)


maybe_text = st.text(max_size=4) | json_values
likely_entries = st.fixed_dictionaries(
    {},
    optional={
        "type": maybe_text,
        "id": maybe_text,
        "parentId": maybe_text,
        "customType": maybe_text,
        "message": st.dictionaries(st.sampled_from(["role", "provider", "model", "content"]), maybe_text) | json_values,
        "data": json_values,
    },
)
spelled = st.builds(
    lambda value, ascii_only, spaces: json.dumps(
        value, ensure_ascii=ascii_only, separators=(", ", ": ") if spaces else (",", ":")
    ).encode("utf-8", "backslashreplace"),
    likely_entries | json_objects | json_values,
    st.booleans(),
    st.booleans(),
)


@given(
    spelled | st.text(NASTY + '0123456789.eE+-"type:abn', max_size=20).map(lambda text: text.encode("utf-8", "replace"))
)
@example(b'{"type":"a","type":5}')
@example(b'{"type":"a","message":{"role":"x"},"message":7}')
@example(b'{"type":"a","n":1e999,"m":-0,"o":0.1e-5}')
def test_the_fast_head_equals_the_exact_one(raw: bytes) -> None:
    """For any line, JSON or not."""
    try:
        value = json.loads(raw, parse_constant=lambda constant: json.loads("refuse " + constant))
    except ValueError:
        expected = None
    else:
        expected = head_of(value)
    try:
        found: Head | None = read_head(raw)
    except ValueError:
        found = None
    assert found == expected
