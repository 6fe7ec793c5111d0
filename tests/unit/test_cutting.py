"""Where a path is cut: one test for each rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from builders import Json
from compacting import (
    LABEL,
    NOTE,
    RESET,
    THOUGHT,
    Step,
    answered,
    came_back,
    chained,
    compacted,
    edited,
    injected,
    instructed,
    ran,
    read,
    result,
    said,
    steps_of,
)
from sessile.core.compaction import LivePath, find_cut, may_cut, parts_a_pair

pytestmark = pytest.mark.mission("Y9")

TURNS = (said(10), answered(10), said(10), answered(10), said(10), answered(10))


def live(path: list[Json]) -> LivePath[Step]:
    return LivePath(steps_of(path), read)


def cut(budget: int, *payloads: Json) -> tuple[str, str | None] | None:
    """Return the id of the first entry that stays, and of the one that starts a split turn."""
    path = live(chained(*payloads))
    found = find_cut(path, budget)
    if found is None:
        return None
    first, turn = path.step(found.first), None if found.turn is None else path.step(found.turn)
    assert first is not None
    return first.id, None if turn is None else turn.id


def test_the_cut_is_where_the_budget_is_reached() -> None:
    """The cut is at the message that reaches the budget."""
    assert cut(20, *TURNS) == ("e4", None)
    assert cut(15, *TURNS) == ("e4", None)
    assert cut(25, *TURNS) == ("e3", "e2")
    assert cut(0, *TURNS) == ("e5", "e4")


def test_what_fits_stays() -> None:
    """Nothing is summarized below the budget."""
    assert cut(61, *TURNS) is None
    assert cut(60, *TURNS) is None
    assert cut(59, *TURNS) is None  # reached at the first message: there is nothing before it
    assert cut(50, *TURNS) == ("e1", "e0")
    assert cut(5) is None
    assert cut(5, THOUGHT, LABEL) is None


@pytest.mark.parametrize("payload", [said(10), ran(10), injected(10), came_back(10)])
def test_what_somebody_said_begins_a_turn(payload: Json) -> None:
    """A cut before it splits no turn."""
    assert cut(15, said(10), answered(10), payload, answered(10)) == ("e2", None)


@pytest.mark.parametrize("role", ["custom", "hookMessage", "developer", "pythonExecution", "fileMention"])
def test_other_roles_of_the_family_begin_a_turn(role: str) -> None:
    """They start a turn even if the documented estimate counts them as 0."""
    message = {"type": "message", "message": {"role": role, "content": "x" * 80}}
    path = live(chained(said(10), message, answered(10)))
    assert may_cut(path, 1)
    assert cut(10, said(10), answered(10), message, answered(1), answered(10)) == ("e4", "e2")


def test_a_result_stays_with_its_call() -> None:
    """The cut is the nearest valid place before, if there is none after."""
    assert cut(50, said(10), answered(10, "c"), result(100, "c")) == ("e1", "e0")
    assert cut(50, said(10), answered(10, "c"), result(100, "c"), answered(5)) == ("e3", "e0")
    assert cut(50, said(10), answered(1, "c", "d"), result(100, "c"), result(1, "d")) == ("e1", "e0")


def test_a_message_between_a_call_and_its_result_is_no_place_to_cut() -> None:
    """Every provider refuses a result without its call."""
    path = (said(10), answered(10, "c"), said(20), result(20, "c"), answered(10))
    assert cut(45, *path) == ("e4", "e2")
    assert cut(45, *path[:4], said(10)) == ("e4", None)
    assert cut(25, *path[:4]) == ("e1", "e0")


def test_a_call_that_was_taken_out_still_belongs_to_its_result() -> None:
    """The edit may be undone later."""
    path = (said(10), answered(10, "c"), said(20), result(20, "c"), answered(10), edited("e1", None))
    assert cut(45, *path) == ("e4", "e2")


def test_calls_that_were_answered_late_stay_with_their_results() -> None:
    """Any number of turns may be between a call and its result."""
    between = [payload for _ in range(2000) for payload in (said(1), answered(1))]
    assert cut(10, said(1), answered(1, "c"), *between, result(20, "c")) == ("e1", "e0")


def test_a_result_whose_call_is_nowhere_hinders_no_cut() -> None:
    """A cut does not make this damage worse."""
    assert cut(15, said(10), answered(10), said(10), result(1, "nobody"), answered(10)) == ("e2", None)


def test_one_may_use_ids_of_calls_again() -> None:
    """Some providers number their calls from 0 in every turn."""
    turn = (said(10), answered(10, "0"), result(10, "0"), answered(10))
    assert cut(30, *turn, *turn, *turn) == ("e9", "e8")
    assert cut(40, *turn, *turn, *turn) == ("e8", None)
    path = live(chained(*turn, *turn))
    assert [parts_a_pair(path, place) for place in range(8)] == [False, True, False, False, False, True, False, False]


def test_instructions_are_no_place_to_cut() -> None:
    """Instructions do not start a turn either."""
    assert cut(15, said(10), answered(10), instructed(10), answered(10)) == ("e3", "e0")


def test_metadata_before_the_cut_stays_with_it() -> None:
    """A change of model belongs to what follows and splits no turn."""
    assert cut(15, said(10), answered(10), THOUGHT, LABEL, said(10), answered(10)) == ("e2", None)
    assert cut(5, said(10), answered(10), said(10), NOTE, answered(10)) == ("e3", "e2")


def test_metadata_beyond_a_compaction_may_stay_but_it_never_begins_with_one() -> None:
    """A compaction that keeps itself would keep nothing."""
    assert cut(15, said(1), answered(9), compacted("e0"), said(10), answered(10)) == ("e3", None)
    assert cut(15, said(1), answered(9), THOUGHT, compacted("e0"), said(10), answered(10)) == ("e2", None)


def test_nothing_is_done_right_after_a_compaction_or_a_reset() -> None:
    """There is nothing new to summarize."""
    assert cut(1, *TURNS, compacted("e2")) is None
    assert cut(1, *TURNS, RESET) is None


def test_the_second_compaction_begins_where_the_first_one_kept() -> None:
    """The entries that it kept are summarized now."""
    path = live(chained(*TURNS, compacted("e2"), said(10), answered(10)))
    assert find_cut(path, 15) is not None
    assert len(path) == 7
    oldest = path.step(6)
    assert oldest is not None and oldest.id == "e2"


@pytest.mark.parametrize("first", ["e6", "unknown", "e7", None])
def test_a_compaction_that_kept_nothing_ends_the_live_part(first: str | None) -> None:
    """If it names itself, an unknown id, a later entry, or none."""
    path = live(chained(*TURNS, compacted(first), said(10), answered(10)))
    assert len(path) == 3
    assert path.end == "compaction"
    assert find_cut(path, 15) is None


def test_a_reset_ends_the_live_part() -> None:
    """Cleared entries are not summarized."""
    path = live(chained(*TURNS, RESET, said(10), answered(10), said(10)))
    assert len(path) == 3
    assert path.end == "reset"
    assert path.previous is None


def test_what_was_taken_out_counts_nothing() -> None:
    """Edited messages count with their new content."""
    turns = (said(10), answered(100), said(10), answered(10))
    assert cut(25, *turns, edited("e1", None)) is None
    assert cut(30, *turns, edited("e1", "x" * 40)) == ("e1", "e0")
    assert cut(31, *turns, edited("e1", "x" * 40)) is None


def test_the_last_edit_of_a_message_counts() -> None:
    """The rule is the same as in the context."""
    path = chained(said(10), answered(10), edited("e0", "first"), edited("e0", "second"))
    messages = [message["content"] for message in live(path).messages(0, 3)]
    assert messages[0] == "second"


def test_what_the_user_kept_from_the_model_counts_nothing() -> None:
    """An excluded command counts as metadata."""
    private = ran(100, excludeFromContext=True)
    assert cut(15, said(10), answered(10), private, said(10), answered(10)) == ("e2", None)


def test_an_input_that_did_not_fit_is_given_up_when_its_answer_was_taken_out() -> None:
    """Otherwise the next try would fail as well."""
    failed = (said(10), answered(10), said(100), answered(3), edited("e3", None))
    assert cut(15, *failed) == ("e3", "e2")
    assert cut(15, *failed, THOUGHT) == ("e3", "e2")


def test_an_input_that_fits_stays_when_its_answer_was_taken_out() -> None:
    """An input that was edited or has no answer stays, too."""
    assert cut(15, said(10), answered(10, "c"), result(90, "c"), said(9), answered(3), edited("e4", None)) == (
        "e3",
        None,
    )
    failed = (said(10), answered(10), said(100), answered(3))
    assert cut(15, *failed, edited("e3", None), edited("e2", "x" * 80)) == ("e2", None)
    assert cut(15, *failed[:3], edited("e1", None)) == ("e1", None)
    assert cut(15, *failed, edited("e3", None), said(1)) == ("e2", None)


def test_only_what_stays_is_decoded() -> None:
    """Entries before the cut are not even walked."""
    decoded = []

    def counting(step: Step) -> Json:
        decoded.append(step.id)
        return step.entry

    def steps() -> Iterator[Step]:
        yield from steps_of(chained(*TURNS))
        raise AssertionError("the walk went on to the root")

    path = LivePath(steps(), counting)
    assert find_cut(path, 25) is not None
    assert decoded == ["e5", "e4", "e3", "e2"]


def test_what_cannot_speak_is_not_decoded() -> None:
    """Flags tell labels and settings apart; only possible edits are decoded."""
    decoded = []

    def counting(step: Step) -> Json:
        decoded.append(step.id)
        return step.entry

    path = LivePath(steps_of(chained(*TURNS, THOUGHT, LABEL, NOTE, compacted("e4"), THOUGHT, said(10))), counting)
    assert len(path) == 8
    assert decoded == ["e9", "e8"]
    assert path.previous_summary == "xxxx"
