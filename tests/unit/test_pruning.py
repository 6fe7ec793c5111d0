"""Result pruning: old tool results are no longer sent, but stay in the session."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import Json, answered, entry, said
from sessile.core.compaction import ResultPruning, is_pruned_result, plan_result_pruning, pruned_notice
from sessile.core.context import build_session_context
from sessile.core.entries import with_base
from sessile.core.tokens import estimate, total

pytestmark = pytest.mark.mission("Y8")


def result(tokens: int, tool: str = "bash", **members: Any) -> Json:
    """Return a tool result of that many estimated tokens."""
    content = [{"type": "text", "text": "x" * (4 * tokens)}]
    return {"role": "toolResult", "toolCallId": "c", "toolName": tool, "content": content, **members}


def targets(found: ResultPruning) -> list[str]:
    return [edit["targetId"] for edit in found.edits]


def plan(*messages: Json, **options: Any) -> ResultPruning:
    return plan_result_pruning(messages, [f"e{number}" for number in range(len(messages))], **options)


def test_results_behind_the_protected_tokens_are_pruned() -> None:
    """The newest 40,000 tokens of results stay."""
    found = plan(result(15_000), result(15_000), result(1), result(39_999))
    assert targets(found) == ["e0", "e1"]
    assert found.edits[0] == {
        "type": "context_edit",
        "targetId": "e0",
        "replacement": {"content": "[Output truncated - 15000 tokens]"},
    }
    assert found.saved == 2 * (15_000 - estimate(result(0) | {"content": pruned_notice(15_000)}))


@pytest.mark.parametrize(("last", "expected"), [(39_999, []), (40_000, ["e0"])])
def test_the_protection_ends_at_its_limit(last: int, expected: list[str]) -> None:
    """A result is protected while the newer ones do not fill the limit."""
    assert targets(plan(result(30_000), result(last))) == expected


@pytest.mark.parametrize(("tokens", "pruned"), [(20_007, False), (20_008, False), (20_009, True), (20_010, True)])
def test_nothing_is_pruned_for_little(tokens: int, pruned: bool) -> None:
    """The size of the replacing line is not saved."""
    line = estimate({"role": "toolResult", "content": pruned_notice(tokens)})
    assert line == 9
    assert bool(plan(result(tokens), result(40_000)).edits) is pruned


@pytest.mark.parametrize("tool", ["skill", "read"])
def test_results_that_the_model_must_keep_are_protected(tool: str) -> None:
    """They still count towards the protected tokens."""
    found = plan(result(30_000), result(30_000, tool), result(20_000), result(20_000))
    assert targets(found) == ["e0"]
    assert targets(plan(result(30_000), result(40_000, tool))) == ["e0"]


@pytest.mark.parametrize("tool", [["read"], {}, None])
def test_a_tool_without_a_name_is_protected_by_none(tool: Any) -> None:
    """A tool name of any type is accepted."""
    assert targets(plan(result(30_000, tool), result(40_000))) == ["e0"]


def test_what_was_pruned_is_not_pruned_again() -> None:
    """An edit or another agent of the pi family may have pruned the result."""
    old = result(0) | {"content": [{"type": "text", "text": pruned_notice(30_000)}]}
    assert is_pruned_result(old)
    assert is_pruned_result(result(5, prunedAt=5))
    assert not is_pruned_result(result(5))
    found = plan(old, result(50_000, prunedAt=5), result(30_000), result(40_000), minimum=1)
    assert targets(found) == ["e2"]


def test_other_messages_and_short_results_stay() -> None:
    """Results that are shorter than the line and entries without an id stay, too."""
    user: Json = {"role": "user", "content": "x" * 400_000}
    found = plan_result_pruning(
        [result(30_000), user, result(8), result(30_000), result(40_000)], ["a", "b", "c", None, "d"]
    )
    assert targets(found) == ["a"]


def test_the_limits_are_arguments() -> None:
    """The tools and the counter are arguments, too."""
    found = plan(result(30), result(30, "read"), protect=1, minimum=1, protected_tools=(), counter=estimate)
    assert targets(found) == ["e0"]
    assert plan(result(30_000), result(40_000), counter=lambda _: 1) == ResultPruning()


def test_appended_edits_prune_the_context_and_keep_the_session() -> None:
    """The context shrinks as planned, the entry is unchanged, and a second plan is empty."""
    path = [said("u", None), answered("a", "u")]
    for number in range(5):
        path.append(entry("message", f"r{number}", path[-1]["id"], message=result(15_000)))
    before = build_session_context(path)
    found = plan_result_pruning(before.messages, before.sources)
    for number, edit in enumerate(found.edits):
        path.append(with_base(edit, f"x{number}", path[-1]["id"], path[0]["timestamp"]))
    after = build_session_context(path)
    assert total(before.messages) - total(after.messages) == found.saved > 20_000
    assert after.messages[2]["content"] == [{"type": "text", "text": pruned_notice(15_000)}]
    assert path[2]["message"] == result(15_000)
    assert plan_result_pruning(after.messages, after.sources) == ResultPruning()


@given(st.lists(st.tuples(st.integers(0, 300), st.sampled_from(["bash", "read"]), st.booleans()), max_size=12))
def test_the_newest_and_the_protected_always_stay(results: list[tuple[int, str, bool]]) -> None:
    """Sizes, tools and order do not matter."""
    messages = [
        result(size, tool) if is_result else {"role": "user", "content": "q"} for size, tool, is_result in results
    ]
    found = plan(*messages, protect=400, minimum=200)
    assert not found.edits or found.saved >= 200
    for target in targets(found):
        number = int(target.removeprefix("e"))
        assert messages[number].get("toolName") == "bash"
        newer = [message for message in messages[number + 1 :] if message["role"] == "toolResult"]
        assert total(newer) >= 400
