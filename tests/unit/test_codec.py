"""Encoding entries as lines of JSON as JavaScript writes it, and decoding them."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest

from sessile.core.codec import MAX_DEPTH, decode, decode_exactly, encode, encode_plain, plain
from sessile.errors import InvalidEntry, TooLarge


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.promise("P10")
@pytest.mark.mission("X1")
@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({}, b"{}"),
        ({"b": 1, "a": 2}, b'{"b":1,"a":2}'),
        ({"a": [1, True, False, None]}, b'{"a":[1,true,false,null]}'),
        ({"a": "naïve 看 🙂"}, '{"a":"naïve 看 🙂"}'.encode()),
        ({"a": '\n\r\t\b\f"\\/'}, b'{"a":"\\n\\r\\t\\b\\f\\"\\\\/"}'),
        ({"a": "\x00\x1b"}, b'{"a":"\\u0000\\u001b"}'),
        ({"a": "\u2028\u0085"}, '{"a":"\u2028\u0085"}'.encode()),
        ({"a": "\ud83d"}, b'{"a":"\\ud83d"}'),
        ({"a": "é\udc00é"}, '{"a":"é\\udc00é"}'.encode()),
        ({"\ud800": 1.0}, b'{"\\ud800":1}'),
        ({"a": "\ud800\n\\"}, b'{"a":"\\ud800\\n\\\\"}'),
        ({"a": 1.0}, b'{"a":1}'),
        ({"a": -0.0}, b'{"a":0}'),
        ({"a": 0.1}, b'{"a":0.1}'),
        ({"a": [2.0, {"b": 1e15}]}, b'{"a":[2,{"b":1000000000000000}]}'),
        ({"a": "1.0"}, b'{"a":"1.0"}'),
        ({"a": (1, 2)}, b'{"a":[1,2]}'),
        ({"a": 2**70}, b'{"a":1180591620717411303424}'),
        ({"a": -(2**63) - 1}, b'{"a":-9223372036854775809}'),
    ],
)
def test_lines_are_written_as_javascript_writes_them(value: dict[str, Any], line: bytes) -> None:
    """No spaces, non-ASCII unescaped, lone surrogates escaped, whole numbers without a point, members in order."""
    assert encode(value) == line


@pytest.mark.promise("P10")
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: [x], lambda x: {"b": [x, "\ud800"]}], ids=["bare", "list", "object"]
)
def test_nan_and_infinity_are_refused_wherever_they_hide(number: float, wrap: Any) -> None:
    """JSON cannot express them, and `null` would be a silent change."""
    with pytest.raises(InvalidEntry):
        encode({"a": wrap(number)})


@pytest.mark.parametrize("extra", [None, "\ud800", 2**70], ids=["fast", "surrogate", "huge"])
@pytest.mark.parametrize(
    "value", [object(), {None: 1}, {(1, 2): 1}, 10**5000], ids=["object", "none", "tuple", "digits"]
)
def test_what_json_does_not_have_is_refused_by_its_own_error(value: object, extra: object) -> None:
    """The fast and the exact encoder raise the same typed error."""
    with pytest.raises(InvalidEntry):
        encode({"extra": extra, "a": value})


def test_values_that_contain_themselves_are_refused() -> None:
    """A cyclic value raises a typed error."""
    loop: dict[str, Any] = {}
    loop["a"] = loop
    with pytest.raises(TooLarge):
        encode(loop)


@pytest.mark.promise("P26")
def test_depth_is_bounded() -> None:
    """The deepest allowed value is written and read back; one level more is refused."""
    assert decode(encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(TooLarge):
        encode(nested(MAX_DEPTH + 1))
    wide: dict[str, Any] = {"a": [{}] * (2 * MAX_DEPTH)}
    assert decode(encode(wide)) == wide


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'{"a":1}', {"a": 1}),
        (b' { "a" : 1 } ', {"a": 1}),
        (b'{"a":"\\ud83d"}', {"a": "\ud83d"}),
        (b'{"a":"\\ud83d\\ude42"}', {"a": "🙂"}),
        (b'{"a":1180591620717411303424}', {"a": 2**70}),
        (b'{"a":"caf\xe9"}', {"a": "caf\ufffd"}),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b"5", 5),
        (b"null", None),
    ],
)
def test_whatever_javascript_reads_is_read(line: bytes, value: object) -> None:
    """Lone surrogates, huge integers, duplicate members and bytes that are not UTF-8 are accepted."""
    assert decode(line) == value


@pytest.mark.parametrize("number", [b"1e400", b"9" * 5000, b"-1e400", b"-" + b"9" * 5000])
def test_numbers_beyond_all_limits_are_infinite_as_in_javascript(number: bytes) -> None:
    """A number with too many digits for Python does not lose the entry."""
    assert decode(b'{"a":' + number + b"}") == {"a": -math.inf if number.startswith(b"-") else math.inf}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b'{"a":}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a":"\n"}',
        b"[" * 100_000,
        b"{}{}",
    ],
)
def test_what_is_not_json_raises_value_error(line: bytes) -> None:
    """Extensions of Python's decoder, broken text and deep nesting all raise `ValueError`."""
    with pytest.raises(ValueError):
        decode(line)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000], ids=["arrays", "objects"])
def test_bottomless_nesting_is_no_json_for_the_exact_way_either(text: str) -> None:
    """The exact decoder raises `ValueError`, not `RecursionError`."""
    with pytest.raises(ValueError, match="nested too deeply"):
        decode_exactly(text)


@pytest.mark.promise("P10")
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_the_exact_way_writes_no_nan_either(number: float) -> None:
    """NaN is refused even in a value that the fast encoder refuses for another reason."""
    with pytest.raises(InvalidEntry):
        encode_plain({"a": "\ud800", "b": number})


def test_a_value_without_bottom_is_refused_by_our_own_error() -> None:
    """The error is the same if the depth was not checked before."""
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidEntry):
        encode_plain(value)
    while value:  # or taking it apart would be as deep
        value = value.pop()


class Level(StrEnum):
    HIGH = "high"


class Number(IntEnum):
    ONE = 1


class Colour(Enum):
    RED = "red"


class Pair(NamedTuple):
    first: int


@dataclass
class Record:
    name: str


class Struct(msgspec.Struct):
    name: str


class Text(str):
    """A text of another class, such as `numpy.str_`."""


class Real(float):
    """A number of another class, such as `numpy.float64`."""


EQUAL: list[Any] = [
    *(None, True, False, 0, -1, 2**53 + 1, 2**64, -(2**70), 0.1, 1.0, -0.0, 1e300, "", "text", "\0\n\u2028", "\ud800"),
    *([], {}, [[]], {"a": {"b": [None]}}, OrderedDict(b=1, a=2), defaultdict(list, a=[1])),
    *(Level.HIGH, Number.ONE, Text("text"), Real(0.5), {Level.HIGH: 1}, {Text("name"): Text("text")}),
]
REFUSED: dict[str, Any] = {
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"x"),
    "set": {1},
    "frozenset": frozenset({1}),
    "datetime": datetime(2026, 1, 1, tzinfo=UTC),
    "date": date(2026, 1, 1),
    "time": time(1),
    "timedelta": timedelta(1),
    "Decimal": Decimal("1.5"),
    "UUID": UUID(int=1),
    "PosixPath": Path("/x"),
    "Colour": Colour.RED,
    "Pair": Pair(1),
    "Record": Record("x"),
    "Struct": Struct("x"),
    "Raw": msgspec.Raw(b"1"),
    "complex": 1j,
    "range": range(3),
    "generator": (number for number in range(3)),
    "dict_keys": {}.keys(),
    "mappingproxy": MappingProxyType({}),
    "type": int,
    "object": object(),
}
NAMES: list[Any] = [1, 1.5, True, None, b"x", (1,), Colour.RED, Number.ONE]


@pytest.mark.promise("P50")
@pytest.mark.parametrize("value", EQUAL, ids=repr)
def test_what_is_accepted_comes_back_equal(value: Any) -> None:
    """Whatever its class, also inside of a list and an object, and the copy in memory is what the line holds."""
    for whole in ({"a": value}, {"a": [value]}, {"a": {"b": (value, value)}}):
        assert decode(encode(whole)) == plain(whole).value
    assert decode(encode({"a": value}))["a"] == value
    assert type(plain([value]).value[0]) in (str, int, float, bool, list, dict, type(None))


@pytest.mark.promise("P50")
@pytest.mark.parametrize("extra", [None, "\ud800", 2**70], ids=["fast", "surrogate", "huge"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_come_back_as_something_else_is_refused_by_its_path(name: str, extra: object) -> None:
    """The error names the member and its type."""
    with pytest.raises(InvalidEntry) as refused:
        encode({"extra": extra, "message": {"content": [{"type": "text"}, {"data": REFUSED[name]}]}})
    assert refused.value.message == f"message.content[1].data: a value of type {name} cannot be stored"
    assert refused.value.hint


@pytest.mark.promise("P50")
@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_a_name_that_is_not_a_string_is_refused_by_its_path(name: object) -> None:
    """`{1: "a"}` would come back as `{"1": "a"}`."""
    with pytest.raises(InvalidEntry, match=r"^message\.content\[0\]: invalid member name"):
        encode({"message": {"content": [{name: "a"}]}})


@pytest.mark.promise("P50")
def test_nan_is_refused_by_its_path() -> None:
    """So is infinity, also of another class."""
    for number in (math.nan, -math.inf, Real("nan")):
        with pytest.raises(InvalidEntry, match=r"^usage\.cost\[0\]: "):
            encode({"usage": {"cost": [number]}})
