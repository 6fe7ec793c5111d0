"""What listings take from MyAgents' index."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myagents_folder import row
from sessile.agents.myagents.index import Described, described

pytestmark = [pytest.mark.mission("M1"), pytest.mark.mission("M2")]

ROWS = [row("a", title="Fix it", sdkSessionId="sdk-a"), row("b"), row("c", agentDir="/work/ä", title="名字")]
WHOLE = json.dumps(ROWS, ensure_ascii=False, indent=2).encode()


def test_each_session_has_its_title_its_folder_and_the_id_that_claude_code_knows() -> None:
    """Values are found by the id of the session."""
    assert described(WHOLE) == {
        "a": Described("Fix it", "/work/app", "sdk-a"),
        "b": Described("New Chat", "/work/app", None),
        "c": Described("名字", "/work/ä", None),
    }


def test_what_is_missing_blank_or_of_another_type_is_unknown() -> None:
    """Invalid rows are left out, and of two rows with the same id the last counts."""
    rows = [17, {"title": "no id"}, {"id": 5}, {"id": "x", "title": "old"}]
    rows += [{"id": "x", "title": " \n", "agentDir": None, "sdkSessionId": ["y"]}]
    assert described(json.dumps(rows).encode()) == {"x": Described(None, None, None)}


def test_a_byte_order_mark_does_not_matter_and_texts_can_be_stored_anywhere() -> None:
    """Lone surrogates and invalid UTF-8 are replaced."""
    told = described(b'\xef\xbb\xbf[{"id":"x","title":"a\\ud800b","agentDir":"/\xff"}]')["x"]
    assert told == Described("a\ufffdb", "/\ufffd", None)


@pytest.mark.parametrize("cut", range(0, len(WHOLE), 23))
def test_a_torn_index_tells_of_the_rows_that_are_whole(cut: int) -> None:
    """Each is the same as in the undamaged index."""
    whole = WHOLE[:cut].count(b"\n  }")
    assert described(WHOLE[:cut]) == dict(list(described(WHOLE).items())[:whole])


def test_many_rows_behind_a_damaged_one_are_all_found() -> None:
    """In an index of thousands of sessions a bad byte at its start must not cost the end."""
    rows = [row(f"s-{number}", stats={"messageCount": 1}) for number in range(5000)]
    data = json.dumps(rows, indent=2).encode().replace(b'"id": "s-0"', b'"id" "s-0"')
    assert list(described(data)) == [f"s-{number}" for number in range(1, 5000)]


@given(st.one_of(st.binary(), st.text().map(str.encode), st.binary().map(lambda data: WHOLE[:99] + data + WHOLE[99:])))
def test_whatever_the_bytes_are_it_answers(data: bytes) -> None:
    """Bytes that are not an index raise nothing."""
    for told in described(data).values():
        assert isinstance(told, Described) and all(text is None or text.encode() for text in told)


@pytest.mark.parametrize("data", [b"", b"null", b"{}", b"[", b"[" * 100_000, b'[{"id":"x"' + b"[" * 50_000, b"\0" * 99])
def test_what_is_no_index_tells_nothing(data: bytes) -> None:
    """Endless nesting is handled too."""
    assert described(data) == {}
