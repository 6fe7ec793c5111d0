"""Addresses: how users name sessions, entries and branches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.core.address import Address, is_path, parse_address, relative
from sessile.errors import InvalidQuery


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("6513270e", Address("6513270e")),
        ("webhook retries", Address("webhook retries")),
        ("6513#9f31", Address("6513", entry="9f31")),
        ("6513@tests-green", Address("6513", branch="tests-green")),
        ("@last", Address("@last")),
        ("@last-2#9f31", Address("@last-2", entry="9f31")),
        ("@here@tests-green", Address("@here", branch="tests-green")),
        ("./a#b.jsonl#9f31", Address("./a#b.jsonl", entry="9f31")),
        ("/home/me@work/s.jsonl", Address("/home/me@work/s.jsonl")),
        ("/home/me@work/s.jsonl@done", Address("/home/me@work/s.jsonl", branch="done")),
        ("6513@", Address("6513@")),
        ("6513#", Address("6513")),
    ],
)
def test_an_address_has_a_session_and_perhaps_an_entry_or_a_branch(text: str, address: Address) -> None:
    """The last # starts an entry, the last @ that is not the first character a branch."""
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "  ", "#abc"])
def test_an_address_without_a_session_is_refused(text: str) -> None:
    """The error lists what is accepted."""
    with pytest.raises(InvalidQuery, match="no session in the address"):
        parse_address(text)


@given(st.text(min_size=1))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    """Any text raises the typed error or is split without loss."""
    try:
        address = parse_address(text)
    except InvalidQuery:
        return
    assert address.session in text
    assert all(part is None or part in text for part in address)


def test_sessions_by_age() -> None:
    """@last and @here may count backwards."""
    assert relative("@last") == ("last", 0)
    assert relative("@here-3") == ("here", 3)
    assert relative("@lost") is relative("last") is None


def test_paths_are_told_from_names() -> None:
    """A slash or the suffix of session files makes a path."""
    assert is_path("./x") and is_path("s.jsonl")
    assert not is_path("webhook")
