"""Ids of tool calls in the form that a provider accepts."""

from __future__ import annotations

from hashlib import sha1
from typing import Any

import pytest

from builders import Json
from sessile.core.hygiene import Piece, plain_id, rewrite, separate, strict9_id, strict_id
from sessile.core.providers import ToolIds

pytestmark = pytest.mark.mission("Y6")


def hashed(text: str, digits: int) -> str:
    return sha1(text.encode()).hexdigest()[:digits]


def pieces(*messages: Json) -> list[Piece]:
    return [Piece(place, message) for place, message in enumerate(messages)]


def calls(*ids: Any) -> Json:
    return {
        "role": "assistant",
        "content": [{"type": "text", "text": "x"}, *({"type": "toolCall", "id": id_, "name": "read"} for id_ in ids)],
    }


def result(call_id: Any) -> Json:
    return {"role": "toolResult", "toolCallId": call_id, "content": []}


def ids(found: list[Piece]) -> list[Any]:
    """Return the ids of calls and results in order."""
    return [
        one
        for piece in found
        for one in ([call["id"] for call in piece.calls] if piece.calls else [piece.message["toolCallId"]])
    ]


@pytest.mark.parametrize(
    ("original", "expected"),
    [
        ("abc123", "abc123"),
        ("call_x|fc-y", "callxfcy"),
        ("a" * 41, "a" * 40),
        ("_-_", "sanitizedtoolid"),
        ("é🙂", "sanitizedtoolid"),
        (None, "defaulttoolid"),
    ],
)
def test_a_strict_id_has_letters_and_digits(original: str | None, expected: str) -> None:
    """A strict id has at most forty characters."""
    assert strict_id(original, ()) == expected


def test_a_strict_id_that_collides_ends_in_a_hash_then_in_a_number() -> None:
    """The hash is that of the original, and the length stays within 40."""
    assert strict_id("a-b", {"ab"}) == "ab" + hashed("a-b", 8)
    long = "a" * 39 + "--b"
    clipped = "a" * 32 + hashed(long, 8)
    assert strict_id(long, {"a" * 39 + "b"}) == clipped
    assert strict_id(long, {"a" * 39 + "b", clipped}) == clipped[:38] + "x2"
    assert strict_id(long, {"a" * 39 + "b", clipped, clipped[:38] + "x2"}) == clipped[:38] + "x3"
    many = {"a" * 39 + "b", clipped, *(clipped[: 40 - len(f"x{n}")] + f"x{n}" for n in range(2, 1001))}
    assert strict_id(long, many) == clipped[:35] + "x1001"


@pytest.mark.parametrize(
    ("original", "expected"),
    [
        ("abcdefghi", "abcdefghi"),
        ("toolu_01ABCDEFG", "toolu01AB"),
        ("abc", hashed("abc", 9)),
        ("a-b-c", hashed("abc", 9)),
        ("--", hashed("sanitized", 9)),
        (None, "defaultid"),
    ],
)
def test_a_strict9_id_has_nine(original: str | None, expected: str) -> None:
    """The first nine letters and digits, or nine digits of their hash."""
    assert strict9_id(original, ()) == expected


def test_a_strict9_id_that_collides_is_a_numbered_hash() -> None:
    """The first number whose hash is free."""
    assert strict9_id("abcdefghi", {"abcdefghi"}) == hashed("abcdefghi:0", 9)
    assert strict9_id("abcdefghi", {"abcdefghi", hashed("abcdefghi:0", 9)}) == hashed("abcdefghi:1", 9)


def test_a_plain_id_stays() -> None:
    """Only a missing or taken id is replaced."""
    assert plain_id("call_x|y", ()) == "call_x|y"
    assert plain_id(None, ()) == "defaulttoolid"
    assert plain_id("a-b", {"a-b"}) == "ab"


@pytest.mark.parametrize("form", ["none", "strict", "strict9"])
def test_a_result_keeps_the_id_of_its_call(form: ToolIds) -> None:
    """Equal ids stay equal, different ones different."""
    first, second, answer, other = ids(rewrite(pieces(calls("a-b", "a_b"), result("a_b"), result("a-b")), form))
    assert (first, second) == (other, answer)
    assert first != second


def test_ids_that_are_no_texts_are_numbers_or_missing() -> None:
    """The number 5 is the text 5; any other value is missing."""
    found = ids(rewrite(pieces(calls(5, None, "", True, {"a": 1}), result(5), result("  ")), "none"))
    assert found == ["5", *["defaulttoolid"] * 4, "5", "defaulttoolid"]


def test_an_id_holds_no_lone_surrogate() -> None:
    """Call and result must be sent with the same text."""
    assert ids(rewrite(pieces(calls("a\ud800"), result("a\ud800")), "none")) == ["a\ufffd"] * 2


def test_what_needs_no_other_id_is_the_same_message() -> None:
    """It is not copied."""
    given = pieces(calls("abc"), result("abc"))
    for found in (rewrite(given, "strict"), separate(given, "strict")):
        assert all(a.message is b.message for a, b in zip(found, given, strict=True))


@pytest.mark.parametrize("form", ["none", "strict", "strict9"])
def test_each_call_gets_an_id_of_its_own(form: ToolIds) -> None:
    """Calls that share an id get different ones after pairing, and so do their results."""
    name = "abcdefghi"
    given = pieces(calls(name, name), result(name), result(name), calls(name), result(name))
    a, b, c, d, e, f = ids(separate(given, form))
    assert (a, b) == (c, d)
    assert e == f
    assert len({a, b, e}) == 3
    assert a == name


def test_an_id_does_not_depend_on_what_follows() -> None:
    """The start of a prompt stays the same, so it stays cached."""
    given = pieces(
        calls("a-b"), result("a-b"), calls("a_b", "ab"), result("a_b"), result("ab"), calls("ab"), result("ab")
    )
    whole = separate(rewrite(given, "strict"), "strict")
    for end in (2, 5):
        assert separate(rewrite(given[:end], "strict"), "strict") == whole[:end]
