"""The scanner: behaviour that the corpus does not cover."""

from __future__ import annotations

import time

import msgspec
import pytest

from builders import answered, said
from sessile.core.codec import encode
from sessile.core.lines import MAX_LINE, Finding, Head, Item, Line, MessageHead, Scanner, read_head, scan

A, B, C = (encode(said(name, parent)) for name, parent in (("a", None), ("b", "a"), ("c", "b")))


def codes(data: bytes) -> list[str]:
    """Return the ids of lines and the codes of findings, in order."""
    return [item.head.id or "-" if isinstance(item, Line) else item.code for item in scan(data)]


def test_a_line_is_its_exact_bytes_with_its_place_and_head() -> None:
    """Nothing is normalized: the raw line can be copied."""
    items = list(scan(A + b"\n" + encode(answered("b", "a")) + b"\n"))
    assert items[0] == Line(0, A, Head("message", "a", None, None, MessageHead("user")))
    assert items[1] == Line(
        len(A) + 1, encode(answered("b", "a")), Head("message", "b", "a", None, MessageHead("assistant", "p", "m"))
    )


@pytest.mark.parametrize(
    "raw",
    [
        b'{"type":"custom","customType":"x","data":{"id":"no","type":"no"},"id":"a","parentId":"b","message":{"role":"user"}}',
        b'{"id":"a","parentId":"b","customType":"x","message":{"role":"user","content":"\\ud800"},"type":"custom"}',
        b'{"type":"custom","customType":"x","id":"a","parentId":"b","message":{"role":"user","provider":5},"n":9e999}',
    ],
    ids=["fast", "surrogate", "wrong type"],
)
def test_the_head_is_read_wherever_its_members_stand(raw: bytes) -> None:
    """Order does not matter, nested members are ignored, and both decoders agree."""
    assert read_head(raw) == Head("custom", "a", "b", "x", MessageHead("user"))


def test_members_of_the_wrong_type_are_forgiven() -> None:
    """A numeric id is ignored; the record is still read."""
    head = read_head(b'{"type":"message","id":5,"parentId":["a"],"customType":{},"message":"hi"}')
    assert head == Head("message")


@pytest.mark.parametrize("raw", [b"5", b"[]", b"null", b"{}", b'{"type":null}', b'{"type":5}', b"", b"{", b"\xff"])
def test_what_has_no_type_has_no_head(raw: bytes) -> None:
    """A value that is not an object with a type raises `ValueError`."""
    with pytest.raises(ValueError):
        read_head(raw)


@pytest.mark.promise("P25")
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_line_over_the_limit_is_reported_and_not_held(size: int) -> None:
    """Chunks of any size give the same result, and a line at the limit and the neighbours are read."""
    long = encode(said("x", "a", "long" * 20))
    data = A + b"\n" + long + b"\n" + B + b"\n"
    for limit, expected in ((len(long), ["a", "x", "b"]), (len(long) - 1, ["a", "too_long", "b"])):
        scanner = Scanner(limit=limit)
        items: list[Item] = []
        for at in range(0, len(data), size):
            items += scanner.feed(data[at : at + size])
            assert sum(map(len, scanner._pending)) <= limit
        items += scanner.finish()
        assert [item.head.id if isinstance(item, Line) else item.code for item in items] == expected
        if expected[1] == "too_long":
            assert items[1][1:3] == (len(A) + 1, len(long))


@pytest.mark.promise("P26")
def test_unless_told_a_line_may_have_forty_eight_megabytes() -> None:
    """Six times what our own writer writes; the finding names the limit."""
    assert MAX_LINE == 50_331_648
    scanner = Scanner()
    block = b" " * (1 << 20)
    held = [item for _ in range(48) for item in scanner.feed(block)]
    assert held == [] and scanner.line_start == 0
    assert [item[0] for item in scanner.finish()] == ["blank"]
    for _ in range(48):
        list(scanner.feed(block))
    assert [item[0] for item in scanner.feed(b" \n")] == ["too_long"]


def test_an_unfinished_line_over_the_limit_is_reported_too() -> None:
    """Garbage without a newline is one finding at the end."""
    scanner = Scanner(limit=10)
    assert list(scanner.feed(b"x" * 6)) == list(scanner.feed(b"x" * 6)) == []
    assert [item[:3] for item in scanner.finish()] == [("too_long", 0, 12)]


def test_scanning_can_begin_in_the_middle_of_a_file() -> None:
    """Offsets are those of the file, and `line_start` is the start of the unfinished line."""
    scanner = Scanner(offset=1000)
    first, *rest = scanner.feed(A + b"\n" + B[:10])
    assert (first.offset, rest) == (1000, [])
    assert scanner.offset == 1000 + len(A) + 1 + 10
    assert scanner.line_start == 1000 + len(A) + 1
    second, *rest = scanner.feed(B[10:] + b"\n")
    assert (second.offset, rest) == (1000 + len(A) + 1, [])
    assert scanner.line_start == scanner.offset == 1000 + len(A) + len(B) + 2
    assert list(scanner.finish()) == []


@pytest.mark.promise("P18")
def test_a_file_cut_at_any_byte_loses_at_most_the_cut_entry() -> None:
    """Every earlier line is read, and the rest is a torn tail or nothing."""
    lines = [encode(said(f"e{number}", None, 'naïve 🙂 {"x":[1]}')) for number in range(20)]
    data = b"".join(line + b"\n" for line in lines)
    ends = [sum(len(line) + 1 for line in lines[: number + 1]) - 1 for number in range(20)]
    for cut in range(len(data)):
        whole = sum(end <= cut for end in ends)
        expected = [f"e{number}" for number in range(whole)]
        found = codes(data[:cut])
        assert found[:whole] == expected
        assert found[whole:] in ([], ["torn_tail"])


@pytest.mark.promise("P17")
def test_a_torn_line_never_becomes_another_entry() -> None:
    """Parts of a torn message with tool calls are not taken for entries."""
    call = {
        "type": "toolCall",
        "id": "call_1",
        "name": "read",
        "arguments": {"path": "a", "x": {"type": "t", "id": "i"}},
    }
    message = {
        "role": "assistant",
        "content": [{"type": "text", "text": "so"}, call, call],
        "provider": "p",
        "model": "m",
    }
    line = encode({"type": "message", "id": "t", "parentId": "a", "timestamp": "", "message": message})
    for at in range(1, len(line)):
        assert codes(line[:at]) == ["torn_tail"]
        assert codes(line[at:] + b"\n" + B + b"\n")[-1] == "b"
        assert "call_1" not in codes(line[at:] + b"\n")
        assert codes(A + line[at:] + b"\n")[0] == "a"
        assert "call_1" not in codes(A + line[at:] + b"\n")


@pytest.mark.promise("P18")
def test_an_entry_glued_to_a_line_torn_anywhere_is_read() -> None:
    """The entry after the torn line survives."""
    call = {"type": "toolCall", "id": "call_1", "name": "read {", "arguments": {"path": '\\"{', "x": [True, 1.5, None]}}
    message = {"role": "assistant", "content": [{"type": "text", "text": '{"é":'}, call], "provider": "p", "model": "m"}
    line = encode({"type": "message", "id": "t", "parentId": "a", "timestamp": "", "message": message})
    for at in range(1, len(line)):
        assert codes(line[:at] + B + b"\n")[-1] == "b", line[:at]
        assert codes(line[:at] + B)[-1] == "b", line[:at]


@pytest.mark.parametrize(
    "joint", [b"", b" ", b"\t\r ", b"\0", b"*", b"\xff", b'"', b"{", b'{"', b'{"a":', b"[", b"}", b"\\", b'{"{"{"']
)
def test_two_entries_survive_whatever_replaced_the_newline_between_them(joint: bytes) -> None:
    """Both are read, and only the damage is reported."""
    items = list(scan(A + joint + B + b"\n"))
    assert [item.head.id for item in items if isinstance(item, Line)] == ["a", "b"]
    (finding,) = (item for item in items if isinstance(item, Finding))
    assert (finding.offset, finding.length) == (len(A), len(joint))


def test_an_entry_behind_very_many_object_starts_is_found() -> None:
    """The search does not give up after a few starts."""
    torn = encode({"type": "custom", "id": "x", "parentId": None, "data": [{"n": number} for number in range(500)]})
    for prefix in (torn[:-2], torn[:-2] + b",", torn[:-10], b'{"' * 500, b'{"a":[' * 300):
        assert codes(prefix + B + b"\n") == ["not_json", "b"]


def test_objects_without_id_are_entries_only_if_nothing_else_is_on_the_line() -> None:
    """Next to garbage an object needs the base members of an entry."""
    row = b'{"type":"summary","summary":"x"}'
    assert codes(row + row + b"\n") == ["-", "glued", "-"]
    assert codes(row + b"]}\n") == ["not_json"]
    assert codes(b'{"type":"message","timestamp":"2025-11-16T10:00:01.000Z"}]}\n') == ["-", "not_json"]
    assert codes(b"x" + row + b"\n") == ["not_json"]
    old = b'{"type":"message","timestamp":"2025-11-16T10:00:01.000Z"}'
    assert codes(b"x" + old + b"\n") == ["not_json", "-"]
    assert codes(old[:20] + old + b"\n") == ["not_json", "-"]
    assert codes(b'{"type":"progress","data":' + old + b"\n") == ["not_json"]
    assert codes(b'x{"type":"session","id":"s"}\n') == ["not_json", "s"]


@pytest.mark.promise("P25")
@pytest.mark.parametrize(
    "data",
    [
        b"[" * 200_000,
        b'{"a":' * 50_000,
        b'{"a":[' * 50_000 + b"\n",
        b'{"' * 200_000,
        b'{"a":1}' * 50_000,
        b'{"type":"a"}' * 50_000,
        b'{"type":"a"}' * 50_000 + b"x",
        b'"' * 400_000,
        b"\\" * 400_000,
        b"\0" * 400_000,
        b"\xff" * 400_000,
        b'x{"a":"' + b"{" * 400_000,
        b'{"x":[' + b'{"type":"toolCall","id":"c"},' * 20_000,
        b'{"n":' + b"9" * 400_000,
        b" " * 400_000,
        b"\n" * 400_000,
        b"\r" * 400_000,
    ],
    ids=lambda data: repr(data[:12]),
)
def test_hostile_lines_take_linear_time(data: bytes) -> None:
    """400 kB made to provoke recursion or quadratic work are scanned at once."""
    started = time.process_time()
    scanner = Scanner()
    items = [*scanner.feed(data), *scanner.finish()]
    assert time.process_time() - started < 30  # the square of its length would take minutes
    covered = sum(len(item.raw) if isinstance(item, Line) else item.length for item in items)
    assert covered + scanner.newline_bytes == len(data)


def test_what_is_wrong_with_a_line_is_told_by_its_column() -> None:
    """The detail has the column, and the offset identifies the line."""
    (finding,) = (item for item in scan(A + b"\n" + b'{"type":"x","id":"\0"}' + b"\n") if isinstance(item, Finding))
    assert finding.detail.startswith("Invalid control character at: column 19")


def test_a_format_reads_heads_of_its_own_and_what_it_refuses_has_a_plain_one() -> None:
    """Each line is decoded once; damage is still found."""

    class Named(Head):
        name: str = ""

    scanner = Scanner(decode=msgspec.json.Decoder(Named).decode)
    items = [*scanner.feed(b'{"type":"a","name":"n"}\n{"type":"b","name":5}\n{"torn\n'), *scanner.finish()]
    assert [item.head if isinstance(item, Line) else item.code for item in items] == [
        Named("a", name="n"),
        Head("b"),
        "not_json",
    ]


def found(data: bytes, *, untyped: bool = False) -> list[tuple[str, int, int]]:
    """Return lines (by id) and findings (by code) with their offsets and lengths."""
    return [
        (item.head.id or "-", item.offset, len(item.raw)) if isinstance(item, Line) else item[:3]
        for item in scan(data, untyped=untyped)
    ]


def test_splitting_tells_the_place_of_each_line_and_keeps_the_limit() -> None:
    """Empty lines are included; a line over the limit has an offset and no bytes."""
    scanner = Scanner(100, limit=4)
    assert list(scanner.split(b"ab\n\ncd")) == [(100, b"ab"), (103, b"")]
    assert list(scanner.split(b"\nlonger\nabcd\n")) == [(104, b"cd"), (107, None), (114, b"abcd")]
    assert list(scanner.split(b"lon")) == list(scanner.split(b"ger")) == []
    assert list(scanner.split(b"\n\nx")) == [(119, None), (126, b"")]
    assert (scanner.offset, scanner.line_start) == (128, 127)
    assert list(scanner.split(b"yz\n")) == [(127, b"xyz")]
    assert list(Scanner().split(b"\nab\n")) == [(0, b""), (1, b"ab")]


def test_a_line_over_the_limit_is_counted_to_its_end() -> None:
    """The line may come in any number of chunks."""
    scanner = Scanner(limit=10)
    for _ in range(5):
        assert list(scanner.feed(b"x" * 6)) == []
    assert scanner.line_start == 0
    assert [item[:3] for item in scanner.feed(b"x\n")] == [("too_long", 0, 31)]


@pytest.mark.promise("P18")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"noX\r\n", [("not_json", 0, 3)]),
        (b"\0Xno\n", [("nul_run", 0, 1), ("not_json", 1, 3)]),
        (b"noX\0\n", [("not_json", 0, 3), ("nul_run", 3, 1)]),
        (b"X\n", [("not_json", 0, 1)]),
        (A + b" X\n", [("a", 0, len(A)), ("not_json", len(A), 2)]),
        (A + b"\0X" + B + b"\n", [("a", 0, len(A)), ("not_json", len(A), 2), ("b", len(A) + 2, len(B))]),
        (A + b"xyz", [("a", 0, len(A)), ("torn_tail", len(A), 3)]),
        (
            b"  " + A + B + b"\n",
            [("blank", 0, 2), ("a", 2, len(A)), ("glued", len(A) + 2, 0), ("b", len(A) + 2, len(B))],
        ),
    ],
)
def test_damage_is_named_for_what_it_is(line: bytes, expected: list[tuple[str, int, int]]) -> None:
    """A letter next to padding is not padding."""
    assert found(line) == expected


def test_a_torn_tail_says_so_and_other_damage_says_what_is_wrong() -> None:
    """The detail describes the damage."""
    (torn,), (broken,) = list(scan(b'{"type":')), list(scan(b'{"type":\n'))
    assert isinstance(torn, Finding) and torn.detail == "the last line is incomplete"
    assert isinstance(broken, Finding) and broken.detail != torn.detail


def test_rows_without_a_type_are_lines_where_a_format_has_such() -> None:
    """They may be plain, unterminated, joined, or have invalid members; their type is empty."""
    row = b'{"id":"1","role":"user","content":"c"}'
    assert found(row + b"\n") == found(row) == [("not_an_entry", 0, len(row))]
    assert found(row + b"\n", untyped=True) == found(row, untyped=True) == [("1", 0, len(row))]
    assert found(row + row + b"\n", untyped=True) == [("1", 0, 38), ("glued", 38, 0), ("1", 38, 38)]
    assert [item.head.type for item in scan(row + b"\n", untyped=True) if isinstance(item, Line)] == [""]
    assert read_head(b'{"id":5}', untyped=True) == Head(type="")


@pytest.mark.parametrize(
    ("row", "untyped", "is_entry"),
    [
        (b'{"id":"1","role":"user","content":"c"}', True, True),
        (b'{"id":"1","role":"user","content":"c"}', False, False),
        (b'{"id":"1","role":"user"}', True, False),
        (b'{"role":"user","content":"c"}', True, False),
        (b'{"type":"a","id":"1","parentId":null}', True, True),
        (b'{"type":"a","id":"1","parentId":null}', False, True),
        (b'{"type":"a","parentId":null}', False, False),
        (b'{"id":"1","parentId":null}', False, False),
    ],
)
def test_behind_garbage_only_what_has_the_marks_of_an_entry_is_one(row: bytes, untyped: bool, is_entry: bool) -> None:
    """Anything else may be a part of a torn entry."""
    lines = [item.raw for item in scan(b"xx" + row + b"\n", untyped=untyped) if isinstance(item, Line)]
    assert lines == ([row] if is_entry else [])


def test_a_head_with_one_wrong_member_keeps_all_others() -> None:
    """The tolerant decoder returns what the fast one returns."""
    raw = b'{"type":"message","id":5,"parentId":"p","message":{"role":"assistant","provider":"p","model":"m"}}'
    assert read_head(raw) == Head("message", None, "p", None, MessageHead("assistant", "p", "m"))
