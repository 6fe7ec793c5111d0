"""Comparing two branches: what they share, what each used, and how this is shown."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies
from builders import Json, assistant, entry, said
from sessile.core.text import iso_timestamp
from sessile.render.comparison import Comparison, Side, compare, compare_lines, word_changes
from sessile.render.styled import line_width, plain
from terminal import PROBE, harmless, probes


def at(record: Json, seconds: int) -> Json:
    return {**record, "timestamp": iso_timestamp(1_771_237_230_000 + 1000 * seconds)}


def answer(entry_id: str, parent: str | None, text: str, cost: float | None = 0.1, *calls: Json) -> Json:
    """Return an answer of 100 tokens that may call tools."""
    usage = {"input": 60, "output": 40, "totalTokens": 100, "cost": {"total": cost}}
    content = [{"type": "text", "text": text}, *calls]
    return entry("message", entry_id, parent, message=assistant("") | {"content": content, "usage": usage})


def call(tool: str, path: str) -> Json:
    return {"type": "toolCall", "id": f"{tool}{path}", "name": tool, "arguments": {"path": path}}


def failed(entry_id: str, parent: str) -> Json:
    message = {"role": "toolResult", "toolCallId": "x", "content": [], "isError": True}
    return entry("message", entry_id, parent, message=message)


START = [said("e1", None, "Add retries."), answer("e2", "e1", "Shall I?")]
A = [
    at(said("a1", "e2", "By hand, please."), 0),
    at(answer("a2", "a1", "I try.", 0.1, call("read", "a.py"), call("edit", "b.py"), call("read", "b.py")), 5),
    at(failed("a3", "a2"), 6),
    at(answer("a4", "a3", "Two of eight tests fail.", 0.1), 65),
]
B = [
    at(entry("branch_summary", "b0", "e2", summary="By hand failed."), 0),
    at(said("b1", "b0", "Use tenacity."), 1),
    at(answer("b2", "b1", "All eight tests pass.", 0.05, call("write", "c.py")), 31),
    at(said("b3", "b2", "Thanks."), 40),
]


def compared(left: list[Json] = A, right: list[Json] = B, **options: Any) -> Comparison:
    return compare([*START, *left], [*START, *right], **options)


def lines(columns: int | None, *args: Any) -> list[str]:
    return [plain(line) for line in compare_lines(compared(*args), columns)]


def test_what_branches_share_is_told_once() -> None:
    """The entries before the fork, and the last of them."""
    comparison = compared()
    assert (comparison.common, comparison.common_id) == (2, "e2")
    assert (comparison.left.entries, comparison.right.entries) == (4, 4)
    assert compare([], [])[:2] == (0, None)
    assert compare(START, START).left.turns == ()


def test_each_side_is_measured_from_where_it_leaves_the_other() -> None:
    """Tokens, cost, time, tools, failures, files and the last answer."""
    left, right = compared()[2:4]
    assert left[:7] == (4, 1, 4, 200, 0.2, 0, 65_000)
    assert (left.calls, left.failures) == ({"read": 2, "edit": 1}, 1)
    assert (left.files_read, left.files_edited, left.answer) == (("a.py",), ("b.py",), "Two of eight tests fail.")
    assert (right.prompts, right.cost, right.files_edited, right.answer) == (
        2,
        0.05,
        ("c.py",),
        "All eight tests pass.",
    )


def test_a_command_that_a_person_ran_is_no_tool_call() -> None:
    """A command run by the user is not a tool call; its failure counts."""
    ran = entry("message", "x", "e2", message={"role": "bashExecution", "command": "ls", "output": "", "exitCode": 1})
    side = compared([ran]).left
    assert (side.calls, side.failures, side.turns[0].tools) == ({}, 1, 0)


def test_unknown_is_none_and_never_zero() -> None:
    """A side without prices, tokens or times shows them as unknown."""
    bare = {"type": "message", "id": "x", "parentId": "e2", "message": assistant("hi")}
    side: Side = compared([bare]).left
    assert (side.tokens, side.cost, side.unpriced, side.duration) == (None, None, 1, None)


def test_prompts_are_paired() -> None:
    """Equal prompts match; entries before the first prompt stand alone; the rest is paired in order."""

    def told(*texts: str) -> list[Json]:
        return [said(f"{n}{text}", None, text) for n, text in enumerate(texts)]

    pairs = compare(told("one", "same", "end"), told("two", "more", "same"), by="content").pairs
    assert [tuple(turn and turn.prompt for turn in pair) for pair in pairs] == [
        ("one", "two"), (None, "more"), ("same", "same"), ("end", None),
    ]  # fmt: skip
    (nothing, opening), (first, second) = compared().pairs[:2]
    assert nothing is None and opening is not None and (opening.prompt, opening.summary) == (None, "By hand failed.")
    assert first is not None and first.prompt == "By hand, please."
    assert second is not None and second.prompt == "Use tenacity."


def test_entries_of_two_sessions_are_the_same_if_they_say_the_same() -> None:
    """Only content matters, not ids, parents, times and labels."""
    fork = [{**record, "id": f"x{n}", "parentId": None, "timestamp": "later"} for n, record in enumerate(START)]
    label = entry("label", "l", "e1", targetId="e1", label="x")
    assert compare([START[0], label, START[1]], fork, by="content").common == 2
    assert compare(START, fork).common == 0
    assert compare(START, [fork[0], answer("e2", "e1", "Other.")], by="content").common == 1


STACKED = """\
2 entries in common (up to e2)

B  summary  By hand failed.
A  user  By hand, please.
A  ~ 2 entries · 3 tools · 1 failed
A  asst  Two of eight tests fail.
B  user  Use tenacity.
B  ~ 1 tool
B  asst  All eight tests pass.
B  user  Thanks.

              A          B      difference
entries       4          4      0
prompts       1          2      +1
tokens        200        100    -100
cost          $0.20      $0.05  -$0.15
duration      1 min 5 s  40 s   -25 s
tool calls    3          1      -2
failures      1          0      -1
files edited  1          1      0
files read    1          0      -1
edited in A: b.py
edited in B: c.py

final answers: [-only in A-] {+only in B+}
[-Two of-] {+All+} eight tests [-fail.-]{+pass.+}"""


def test_a_comparison_in_a_pipe() -> None:
    """One side below the other, signs on differences, words with marks."""
    assert lines(None) == STACKED.split("\n")


def test_a_comparison_side_by_side() -> None:
    """In a wide terminal, turns are side by side, and no line is too long."""
    wide = lines(100)
    assert wide[2].split() == ["A", "│", "B"]
    assert wide[3].split("│")[0].strip() == "" and wide[3].endswith(" │ summary  By hand failed.")
    assert wide[4].startswith("user  By hand, please.") and wide[4].endswith(" │ user  Use tenacity.")
    assert len({line.index("│") for line in wide if "│" in line}) == 1
    assert not any("│" in line for line in lines(99))


def test_unknown_is_shown_as_such() -> None:
    """It also says how many answers have no price."""
    bare = {"type": "message", "id": "x", "parentId": "e2", "message": assistant("hi")}
    rows = {line.split("  ")[0]: line for line in lines(None, [bare])}
    assert "n/a (1 answer of p/m unpriced)" in rows["cost"] and rows["cost"].endswith("n/a")
    assert rows["tokens"].split()[1] == "n/a" and rows["duration"].split()[1] == "n/a"
    assert lines(None, [])[-1] == "no final answer in A"


texts = st.text("ab \n", max_size=30)


@given(texts, texts)
def test_word_changes_give_both_texts(left: str, right: str) -> None:
    """Same and removed words are the left text, same and added words the right one."""
    changes = word_changes(left, right)
    assert "".join(change.text for change in changes if change.kind != "added") == left
    assert "".join(change.text for change in changes if change.kind != "removed") == right
    assert all(change.text for change in changes)
    if left == right:
        assert {change.kind for change in changes} <= {"same"}


@pytest.mark.parametrize("word", ["a", "{0}", "x{0}"])
def test_long_answers_are_compared_in_reasonable_time(word: str) -> None:
    """Answers may have many common words or be very long."""
    started = time.process_time()
    for count in (1_400, 100_000):
        one = " ".join(word.format(n % 7) for n in range(count))
        other = " ".join(word.format(n % 11) for n in range(count))
        assert word_changes(one, other)
    assert time.process_time() - started < 3


def test_many_prompts_are_paired_in_linear_time() -> None:
    """They are paired in order."""
    many = [said(str(n), None, f"p{n % 10}") for n in range(20_000)]
    started = time.process_time()
    assert len(compare(many, many[5:]).pairs) == 20_000
    assert time.process_time() - started < 5


@pytest.mark.promise("P37")
@given(st.lists(st.tuples(st.booleans(), probes), max_size=6), probes, st.integers(20, 130) | st.none())
def test_lines_fit_and_hold_no_control_characters(
    told: list[tuple[bool, str]], nasty: str, columns: int | None
) -> None:
    """Stored text in any field cannot control a terminal, and no line is wider than requested."""
    tool = call("edit", nasty)
    left = [
        said(f"l{n}", None, text) if user else answer(f"l{n}", None, text, 0.1, tool)
        for n, (user, text) in enumerate(told)
    ]
    right = [answer(nasty, None, nasty, None), said("r", None, nasty)]
    for line in compare_lines(compare(left, right), columns, (nasty, "B")):
        assert harmless(plain(line))
        assert columns is None or line_width(line) <= columns


records = st.dictionaries(strategies.names, strategies.small, max_size=4)


@pytest.mark.promise("P19")
@given(st.lists(records, max_size=3), st.lists(records, max_size=3))
def test_any_entries_can_be_compared(left: list[Json], right: list[Json]) -> None:
    """Any entries can be compared, and a branch has everything in common with itself."""
    list(compare_lines(compare(left, right, by="content"), 80))
    same = compare(left, left, by="content")
    assert same.left.entries == same.right.entries == 0 and same.pairs == ()


def test_the_probe_is_shown_in_words() -> None:
    """Stored text is escaped, as in all other output."""
    assert "\\x1b" in "\n".join(lines(None, [answer("x", None, PROBE)]))
