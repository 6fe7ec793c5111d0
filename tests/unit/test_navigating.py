"""Navigating to another entry of the tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sessile import Session
from sessile.core.summaries import NO_CONTENT, PREFIX, Summary, SummaryRequest
from sessile.errors import EntryNotFound, SummarizerFailed
from sessile.upkeep.hooks import Hooks
from sessile.upkeep.navigation import Navigator

pytestmark = pytest.mark.mission("X8")


@pytest.fixture
def session() -> Iterator[Session]:
    with Session.in_memory("/work") as made:
        yield made


def talk(session: Session, *texts: str) -> list[str]:
    ids = []
    for number, text in enumerate(texts):
        said: dict[str, Any] = {"role": "user", "content": text}
        if number % 2:
            said = {"role": "assistant", "content": [{"type": "text", "text": text}]}
        ids.append(session.append_message(said).id)
    return ids


def summed(request: SummaryRequest) -> Summary:
    return Summary("tried it, did not work")


def test_going_to_what_a_user_said_means_to_say_it_anew(session: Session) -> None:
    """The leaf becomes the parent of the user message, and its text goes to the editor."""
    ids = talk(session, "first", "answer", "second", "answer")
    found = Navigator(session).navigate_tree(ids[2])
    assert found == (ids[1], "second", None, False) and session.leaf_id == ids[1]
    assert Navigator(session).navigate_tree(ids[0]).editor_text == "first" and session.leaf_id is None


def test_going_to_an_answer_means_to_go_on_after_it(session: Session) -> None:
    """The leaf becomes the answer; navigating to the current leaf does nothing."""
    ids = talk(session, "first", "answer", "second", "answer")
    assert Navigator(session).navigate_tree(ids[1]) == (ids[1], None, None, False)
    assert Navigator(session).navigate_tree(ids[1]).leaf_id == ids[1]
    assert len(session.get_entries()) == 4
    with pytest.raises(EntryNotFound):
        Navigator(session).navigate_tree("nobody00")


def test_the_branch_that_is_left_is_summed_up(session: Session) -> None:
    """The summary has the documented prefix and is appended at the new leaf, with its label."""
    ids = talk(session, "first", "answer", "second", "answer")
    found = Navigator(session, summed).navigate_tree(ids[1], summarize=True, label="back")
    entry = session.get_entry(found.summary_id or "")
    assert entry is not None and entry["summary"] == f"{PREFIX}tried it, did not work" and entry["fromId"] == ids[1]
    assert session.get_label(entry.id) == "back" and entry.parent_id == ids[1]
    assert {each.id for each in session.get_branch(ids[3])} == set(ids)


def test_a_branch_without_anything_to_say_is_told_so(session: Session) -> None:
    """The summary of a branch without messages is a fixed text."""
    ids = talk(session, "first", "answer")
    session.append_thinking_level_change("high")
    found = Navigator(session, summed).navigate_tree(ids[1], summarize=True)
    entry = session.get_entry(found.summary_id or "")
    assert entry is not None and entry["summary"] == NO_CONTENT


def test_a_summary_that_fails_moves_nothing(session: Session) -> None:
    """The leaf does not move."""
    ids = talk(session, "first", "answer", "second", "answer")
    with pytest.raises(SummarizerFailed):
        Navigator(session, lambda request: Summary("half", "length")).navigate_tree(ids[1], summarize=True)
    assert session.leaf_id == ids[3] and len(session.get_entries()) == 4


def test_hooks_can_cancel_and_supply(session: Session) -> None:
    """Hooks can also see the new leaf."""
    ids = talk(session, "first", "answer", "second", "answer")
    hooks, told = Hooks(), []
    hooks.on("session_before_tree", lambda event: {"cancel": event["targetId"] == ids[0]})
    hooks.on("session_before_tree", lambda event: {"summary": {"summary": "mine", "details": {"a": 1}}})
    hooks.on("session_tree", lambda event: told.append(event["newLeafId"]))
    work = Navigator(session, summed, hooks=hooks)
    assert work.navigate_tree(ids[0]).cancelled and session.leaf_id == ids[3]
    found = work.navigate_tree(ids[1])
    entry = session.get_entry(found.summary_id or "")
    assert entry is not None and (entry["summary"], entry["details"]) == ("mine", {"a": 1})
    assert entry["fromExtension"] is True and told == [entry.id]
