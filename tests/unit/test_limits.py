"""Every limit is tested below, at and above its value: valid values are accepted, others are refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from figures import measured
from sessile import Session, Store
from sessile.config import Config, load_config
from sessile.core import large, lines
from sessile.core.codec import MAX_DEPTH, encode
from sessile.core.ids import check_session_id
from sessile.core.lines import Finding, Line, Scanner
from sessile.errors import InvalidConfig, InvalidId, TooLarge
from sessile.session import MAX_LINE
from sessile.storage.memory import MemoryFilesystem

pytestmark = pytest.mark.promise("P26")

Place = tuple[tuple[str, dict[str, str]], ...]  # names, each with its required siblings; "" is an item of a list


class Bound(NamedTuple):
    """A limit of the configuration: its place, the last valid values, and the first invalid one."""

    place: Place
    inside: tuple[Any, ...]
    outside: Any


def bounds_of(kind: Any, place: Place) -> Iterator[Bound]:
    """Return every limit in a type of the configuration, including nested ones."""
    inspect = msgspec.inspect
    match kind:
        case inspect.StructType(fields=fields):
            for field in fields:
                needed = {other.encode_name: "x" for other in fields if other.required and other is not field}
                yield from bounds_of(field.type, (*place, (field.encode_name, needed)))
        case inspect.UnionType(types=types):
            for each in types:
                yield from bounds_of(each, place)
        case inspect.DictType(value_type=value):
            yield from bounds_of(value, (*place, ("some", {})))
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            yield from bounds_of(item, (*place, ("", {})))
        case inspect.IntType(ge=least, le=most) | inspect.FloatType(ge=least, le=most):
            if least is not None:
                yield Bound(place, (least, least + 1), least - 1)
            if most is not None:
                yield Bound(place, (most - 1, most), most + 1)
        case inspect.StrType(max_length=most, pattern=pattern) if most is not None:
            start = "http://" if pattern and "http" in pattern else ""
            fitting = tuple(start + "x" * (size - len(start)) for size in (most - 1, most))
            yield Bound(place, fitting, fitting[-1] + "x")
    if isinstance(kind, inspect.FloatType) and kind.gt is not None:
        yield Bound(place, (kind.gt + 0.001,), kind.gt)


BOUNDS = list(bounds_of(msgspec.inspect.type_info(Config), ()))


def document(place: Place, value: Any) -> Any:
    """Return a configuration with a single setting."""
    for name, needed in reversed(place):
        value = {**needed, name: value} if name else [value]
    return value


def refusal(place: Place, value: Any) -> InvalidConfig | None:
    """Return the error of a configuration with a single setting."""
    try:
        load_config(json.dumps(document(place, value)).encode(), "config.json")
    except InvalidConfig as error:
        return error
    return None


def test_every_limit_of_the_configuration_holds() -> None:
    """All bounded numbers and texts are taken from the types themselves."""
    for place, inside, outside in BOUNDS:
        for value in inside:
            said = refusal(place, value)
            assert said is None, f"{place}: {said}"
        said = refusal(place, outside)
        assert said is not None, f"{place} takes {str(outside)[:40]}"
        assert [name for name, _ in place if name][-1] in said.message
        assert said.hint
    assert len(BOUNDS) > 60
    measured("P26", "limits of the configuration", limits=len(BOUNDS), values=sum(len(b.inside) + 1 for b in BOUNDS))


def line_of(size: int) -> dict[str, Any]:
    """Return a payload whose line has this many bytes, in strings too small to be externalized."""
    piece = "x" * 400_000
    payload: dict[str, Any] = {"type": "custom", "customType": "big", "data": [piece] * (size // 400_003 - 1)}
    base = {"id": "12345678", "parentId": None, "timestamp": "2026-01-01T00:00:00.000Z"}
    payload["data"].append("")
    missing = size - len(encode({**payload, **base}))
    payload["data"] += ["x" * (missing - 3 - 300_000), "x" * (300_000 - 3)]
    assert len(encode({**payload, **base})) == size
    return payload


def test_a_line_is_bounded() -> None:
    """A line one byte above the limit is refused, and nothing is written."""
    session = Store("/root", fs=MemoryFilesystem()).create("/work", publish=True)
    for size in (MAX_LINE - 1, MAX_LINE):
        session.append_many([line_of(size)], expected_leaf="root")
    with pytest.raises(TooLarge, match=str(MAX_LINE)):
        session.append_many([line_of(MAX_LINE + 1)], expected_leaf="root")
    assert session.count_entries() == 2


def test_the_depth_of_an_entry_is_bounded() -> None:
    """The depth is counted from the entry itself."""

    def nested(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = [value]
        return value

    session = Session.in_memory()
    depths = [MAX_DEPTH + by for by in (-3, -2, -1, 0, 1)]
    taken = []
    for depth in depths:
        try:
            session.append_custom_entry("deep", nested(depth))
            taken.append(depth)
        except TooLarge as error:
            assert str(MAX_DEPTH) in error.message
    assert taken == depths[: len(taken)]
    assert 0 < len(taken) < len(depths)


@pytest.mark.parametrize(("length", "fits"), [(0, False), (1, True), (2, True), (127, True), (128, True), (129, False)])
def test_a_session_id_is_bounded(length: int, fits: bool) -> None:
    """A session id has 1 to 128 characters."""
    name = "a" * length
    if fits:
        assert check_session_id(name) == name
    else:
        with pytest.raises(InvalidId, match="invalid session id"):
            check_session_id(name)


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_a_string_over_the_limit_leaves_the_line_and_is_kept(by: int) -> None:
    """The line has only the start of the string; the entry has all of it."""
    session = Store("/root", fs=MemoryFilesystem()).create("/work", publish=True)
    text = "x" * (large.MAX_STRING + by)
    receipt = session.append_message({"role": "user", "content": text})
    entry = session.get_entry(receipt.id)
    assert entry is not None
    assert (entry.stored["message"]["content"] == text) == (by <= 0)
    assert entry["message"]["content"] == text


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_a_line_that_is_read_is_bounded(by: int) -> None:
    """A longer line is reported and never held in memory."""
    limit = 2_000
    assert limit < lines.MAX_LINE
    raw = b'{"type":"custom","id":"a","x":"' + b"x" * (limit + by - 33) + b'"}'
    scanner = Scanner(limit=limit)
    items = [*scanner.feed(raw + b"\n"), *scanner.finish()]
    assert len(raw) == limit + by
    assert [type(item) for item in items] == [Line if by <= 0 else Finding]
    if isinstance(items[0], Finding):
        assert (items[0].code, items[0].length) == ("too_long", len(raw))
