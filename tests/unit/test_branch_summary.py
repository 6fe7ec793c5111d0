"""Leaving a branch: the new leaf, and what is summarized."""

from __future__ import annotations

import pytest

from builders import Json
from compacting import LABEL, answered, came_back, chained, compacted, edited, injected, ran, result, said, words
from sessile.core.summaries import (
    NO_CONTENT,
    PREFIX,
    BranchPreparation,
    FileLists,
    Navigation,
    branch_budget,
    branch_text,
    navigation,
    prepare_branch,
)
from sessile.core.tokens import estimate

pytestmark = pytest.mark.mission("Y9")


def branch(budget: int | None, *payloads: Json) -> BranchPreparation:
    return prepare_branch(reversed(chained(*payloads)), budget)


def taken(budget: int | None, *payloads: Json) -> list[int]:
    return [estimate(message) for message in branch(budget, *payloads).messages]


PATH = ["a", "b", "c", "d"]


def target(payload: Json, entry_id: str) -> Json:
    return {**payload, "id": entry_id}


def test_going_to_an_answer_goes_on_after_it() -> None:
    """The editor stays empty; the later entries are left behind."""
    found = navigation(PATH, target(answered(1), "b"), ["a", "b"])
    assert found == Navigation(True, "b", None, ("c", "d"), "b")


@pytest.mark.parametrize("payload", [said(1), injected(1)])
def test_going_to_what_was_said_says_it_anew(payload: Json) -> None:
    """The text goes to the editor, and the leaf is the entry before it."""
    found = navigation(PATH, target(payload, "c"), ["a", "b", "c"])
    assert found == Navigation(True, "b", "xxxx", ("d",), "c")


def test_going_to_the_first_message_goes_before_everything() -> None:
    """There is no leaf."""
    assert navigation(PATH, target(said(1), "a"), ["a"]) == Navigation(True, None, "xxxx", ("b", "c", "d"), "a")


def test_going_to_another_branch_leaves_what_is_not_shared() -> None:
    """Entries after the deepest common entry are left behind."""
    found = navigation(PATH, target(answered(1), "y"), ["a", "b", "x", "y"])
    assert found == Navigation(True, "y", None, ("c", "d"), "b")
    other = navigation(PATH, target(answered(1), "y"), ["x", "y"])
    assert (other.abandoned, other.common_ancestor) == (("a", "b", "c", "d"), None)


def test_going_where_one_is_does_nothing() -> None:
    """Navigating to the current entry does nothing, even if it is a user message."""
    assert navigation(PATH, target(said(1), "d"), PATH) == Navigation(False, "d", None, (), "d")


def test_going_back_from_before_the_first_entry_leaves_nothing() -> None:
    """There is nothing to leave behind."""
    assert navigation([], target(answered(1), "b"), ["a", "b"]) == Navigation(True, "b", None, (), None)


def test_texts_for_the_editor_are_joined() -> None:
    """Images are left out."""
    blocks = [{"type": "text", "text": "a"}, {"type": "image", "data": "x"}, {"type": "text", "text": "b"}, None]
    message = {"type": "message", "id": "a", "message": {"role": "user", "content": blocks}}
    assert navigation(PATH, message, ["a"]).editor_text == "ab"
    assert navigation(PATH, {"type": "message", "message": {"role": "user"}}, ["a"]).editor_text == ""


@pytest.mark.parametrize("payload", [ran(1), result(1, "c"), came_back(1), compacted("a"), LABEL, {"type": "message"}])
def test_only_what_a_user_said_can_be_said_anew(payload: Json) -> None:
    """Other entries become the leaf."""
    assert navigation(PATH, target(payload, "b"), ["a", "b"]).new_leaf == "b"


def test_the_newest_messages_are_taken_until_the_budget_is_full() -> None:
    """Messages are returned oldest first, and those that did not fit are counted."""
    payloads = (said(10), answered(11), said(12), answered(13))
    assert taken(25, *payloads) == [12, 13]
    assert taken(24, *payloads) == [13]
    assert branch(24, *payloads).left_out == 3
    assert taken(12, *payloads) == []
    assert taken(None, *payloads) == [10, 11, 12, 13]
    assert branch(25, *payloads).tokens == 25


def test_what_is_small_but_older_than_what_did_not_fit_is_left_out() -> None:
    """A summary has no gaps."""
    assert taken(50, said(1), said(100), answered(13)) == [13]


@pytest.mark.parametrize("payload", [came_back(100), compacted("x", 100)])
def test_a_summary_may_go_over_the_budget(payload: Json) -> None:
    """A summary is included while less than nine tenths of the budget are used."""
    assert taken(28, said(1), payload, said(12), answered(13)) == [100, 12, 13]
    assert taken(27, said(1), payload, said(12), answered(13)) == [12, 13]


def test_results_of_tools_are_left_out() -> None:
    """Their calls are kept; messages excluded from the context are left out too."""
    private = ran(9, excludeFromContext=True)
    payloads = (said(1), answered(2), result(50, "c"), private, said(7), edited("e4", None), edited("e0", words(3)))
    assert taken(None, *payloads) == [3, 2]
    assert branch(5, *payloads).left_out == 0


def test_files_come_from_everything_that_is_left() -> None:
    """Nested summaries and calls that did not fit count; extensions and entries before the branch do not."""
    call = {"type": "toolCall", "id": "c", "name": "write", "arguments": {"path": "w"}}
    found = branch(
        10,
        {**came_back(1), "details": {"readFiles": ["r"], "modifiedFiles": ["m"]}},
        {**came_back(1), "details": {"readFiles": ["x"]}, "fromHook": True},
        {"type": "message", "message": {"role": "assistant", "content": [call]}},
        compacted("e0", 1, details={"readFiles": ["before"]}),
        said(100),
    )
    assert found.messages == []
    assert found.files == FileLists(("r",), ("m", "w"))


def test_the_budget_is_what_the_reserve_leaves() -> None:
    """An unknown window uses the default, and a small one uses half of it."""
    assert branch_budget(None) == 128_000 - 16_384
    assert branch_budget(200_000) == 183_616
    assert branch_budget(8_000) == 4_000
    assert branch_budget(0) == branch_budget(None)


def test_the_text_says_where_it_comes_from() -> None:
    """The documented prefix, the summary, the files."""
    assert branch_text("Tried it.", FileLists((), ("a",))) == (
        "The user explored a different conversation branch before returning here.\n"
        "Summary of that exploration:\n\nTried it.\n\n<modified-files>\na\n</modified-files>"
    )
    assert PREFIX.endswith(":\n\n")
    assert NO_CONTENT == "No content to summarize"
