"""The example and the grammar on the page about the file format are correct."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar import Grammar
from sessile import Store
from sessile.core.codec import encode
from sessile.core.kinds import KINDS

PAGE = (Path(__file__).parents[1] / "docs" / "explanation" / "format.md").read_text()
EXAMPLE = re.findall(r"```json\n(.*?)```", PAGE, re.S)[0]
GRAMMAR = Grammar(re.findall(r"```ebnf\n(.*?)```", PAGE, re.S)[0])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_the_example_is_what_the_page_says(tmp_path: Path) -> None:
    """The example has two branches, a label, and a leaf that is not the last entry."""
    path = tmp_path / "example.jsonl"
    path.write_text(EXAMPLE)
    with Store(tmp_path / "store").open(path, readonly=True) as session:
        assert not session.findings
        assert [entry.id for entry in session.get_heads()] == ["repygCdd", "TTLv0HJi"]
        assert session.leaf_id == "repygCdd"
        assert session.get_labels() == {"G0EepYsE": "counted"}
        messages = session.context().messages
        assert [message["role"] for message in messages] == ["user", "assistant"]
        assert messages[1]["content"][0]["text"] == "Seventeen."
    assert path.read_text() == EXAMPLE


def test_the_grammar_describes_the_example_and_no_other_file() -> None:
    """The grammar rejects a file with white space, without its last newline, or without a header."""
    assert GRAMMAR.describes(EXAMPLE, "file")
    header, entries = EXAMPLE.split("\n", 1)
    for other in (EXAMPLE.replace('":', '": ', 1), EXAMPLE[:-1], entries, f"{header}\n\n{entries}", EXAMPLE + "{}\n"):
        assert not GRAMMAR.describes(other, "file")


def test_the_grammar_describes_what_is_written(tmp_path: Path) -> None:
    """Files written by appends, compactions, branches and forks match the grammar."""
    store = Store(tmp_path)
    with store.create("/work/bärn", publish=True) as session:
        first = session.append_message({"role": "user", "content": "How many\nbales? \ud800 \u2028"})
        session.append_model_change("anthropic/claude-sonnet-4-5")
        session.append_compaction("a summary", first.id, tokens_before=12)
        session.append_many([{"type": "own_kind", "numbers": [0.1, 1e300, -5, 2**60]}], key="once")
        session.append_custom_entry("barn", {"none": None, "empty": [{}, [], ""]})
        session.branch(first.id)
    with store.fork_from(session.path, "/work/other") as fork:
        assert fork.header["parentSession"]
    for path in (session.path, fork.path):
        assert GRAMMAR.describes(Path(path).read_text(), "file")


@given(VALUES)
def test_the_grammar_describes_every_value(value: object) -> None:
    """Any value that the codec encodes matches the grammar."""
    entry = {"type": "t", "id": "aaaaaaaa", "parentId": None, "timestamp": "2026-02-16T10:20:30.000Z", "value": value}
    assert GRAMMAR.describes(encode(entry).decode().removesuffix("\n") + "\n", "entry")


def test_the_page_lists_every_kind() -> None:
    """The page lists exactly the kinds of the table."""
    rows = re.findall(r"^\| (`.*?`) \| ", PAGE, re.M)
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(KINDS)


@pytest.mark.parametrize("rule", ["value = 'a' ; value", "value = { 'a' ] ;"])
def test_a_grammar_that_is_none_is_refused(rule: str) -> None:
    """An invalid rule raises, so that a typo on the page is noticed."""
    with pytest.raises((AssertionError, IndexError)):
        Grammar(rule)
