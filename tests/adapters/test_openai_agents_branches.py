"""The branching session for the OpenAI Agents SDK: one entry per branch, turns, tools and usage."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agents.usage import Usage

from adapters.conftest import Look
from sessile import Store
from sessile.adapters.named_sessions import NamedSessions
from sessile.adapters.openai_agents import PROGRAM
from sessile.adapters.openai_agents_branches import SessileBranchingSession

pytestmark = pytest.mark.mission("B9")


@pytest.fixture
def session(store: Store) -> SessileBranchingSession:
    """Return a session with three turns."""
    made = SessileBranchingSession("thread", store)
    for number in (1, 2, 3):
        run(made.add_items([user(f"question {number}"), answer(f"answer {number}")]))
    return made


def run(work: Any) -> Any:
    """Run a coroutine and return its result."""
    return asyncio.run(work)


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def answer(text: str) -> Any:
    return {"role": "assistant", "content": text}


def said(session: SessileBranchingSession, branch: str | None = None) -> list[str]:
    return [item["content"] for item in run(session.get_items(branch_id=branch))]


def used(tokens: int) -> Any:
    """Return the result of a run that used the given number of tokens."""
    usage = Usage(requests=1, input_tokens=tokens, output_tokens=1, total_tokens=tokens + 1)
    return cast(Any, SimpleNamespace(context_wrapper=SimpleNamespace(usage=usage)))


def entries(store: Store) -> int:
    found = NamedSessions(store, PROGRAM).find("", "thread")
    assert found is not None
    return len(found.get_entries())


def test_a_branch_begins_before_a_turn_and_costs_one_entry(session: SessileBranchingSession, store: Store) -> None:
    """Earlier items are shared, and the other branch is unchanged."""
    before = entries(store)
    assert run(session.create_branch_from_turn(2, "other")) == "other"
    assert entries(store) == before + 1
    assert session.branch_id == "other"
    assert said(session) == ["question 1", "answer 1"]
    run(session.add_items([user("another question")]))
    assert said(session) == ["question 1", "answer 1", "another question"]
    assert len(said(session, "main")) == 6
    run(session.switch_to_branch("main"))
    assert len(said(session)) == 6


def test_another_process_knows_the_branches_and_stands_on_the_main_one(
    session: SessileBranchingSession, store: Store
) -> None:
    """Branches are stored in the journal; the current branch is local to each session object."""
    run(session.create_branch_from_turn(1, "other"))
    run(session.add_items([user("x"), user("y")]))
    again = SessileBranchingSession("thread", store)
    assert again.branch_id == "main"
    seen = [tuple(told.values())[:4] for told in run(again.list_branches())]
    assert seen == [("main", 6, 3, True), ("other", 2, 2, False)]
    assert said(again, "other") == ["x", "y"]


def test_popping_on_a_branch_leaves_the_others_alone(session: SessileBranchingSession) -> None:
    """The other branches keep the shared items."""
    run(session.create_branch_from_turn(3, "other"))
    assert run(session.pop_item()) == answer("answer 2")
    assert len(said(session)) == 3
    assert len(said(session, "main")) == 6
    assert run(session.undo())
    assert len(said(session)) == 4


def test_names_are_never_used_twice(session: SessileBranchingSession) -> None:
    """This holds after deleting and clearing too; without a name, one is generated."""
    run(session.create_branch_from_turn(2, "other"))
    run(session.switch_to_branch("main"))
    run(session.delete_branch("other"))
    for name in ("other", "main"):
        with pytest.raises(ValueError, match="choose another one"):
            run(session.create_branch_from_turn(2, name))
    made = {run(session.create_branch_from_turn(1)) for _ in range(1)}
    run(session.switch_to_branch("main"))
    made |= {run(session.create_branch_from_turn(1))}
    run(session.switch_to_branch("main"))
    made |= {run(session.create_branch_from_turn(1))}
    assert len(made) == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.create_branch_from_turn(9),
        lambda session: session.create_branch_from_turn(0),
        lambda session: session.create_branch_from_turn(1, "  "),
        lambda session: session.create_branch_from_content("never said"),
        lambda session: session.switch_to_branch("none"),
        lambda session: session.delete_branch("none"),
        lambda session: session.delete_branch("main"),
        lambda session: session.delete_branch(" "),
        lambda session: session.get_items(branch_id="none"),
        lambda session: session.get_conversation_turns("none"),
    ],
)
def test_what_is_not_there_is_refused(session: SessileBranchingSession, call: Any) -> None:
    """The session stays on its branch."""
    with pytest.raises(ValueError):
        run(call(session))
    assert session.branch_id == "main"


def test_a_deleted_branch_is_left_by_all_who_stood_on_it(session: SessileBranchingSession, store: Store) -> None:
    """They move to the main branch, and the journal keeps the items."""
    run(session.create_branch_from_turn(2, "other"))
    run(session.add_items([user("only here")]))
    with pytest.raises(ValueError, match="force"):
        run(session.delete_branch("other"))
    third = SessileBranchingSession("thread", store)
    run(third.switch_to_branch("other"))
    run(session.delete_branch("other", force=True))
    assert session.branch_id == "main"
    assert len(said(third)) == 6 and third.branch_id == "main"
    gone = [kept.item for kept in run(session.history()) if not kept.present]
    assert gone == [user("only here")]


def test_clearing_ends_all_branches_and_undo_brings_them_back(session: SessileBranchingSession) -> None:
    """Undo restores all branches."""
    run(session.create_branch_from_turn(2, "other"))
    run(session.clear_session())
    assert session.branch_id == "main"
    assert said(session) == []
    assert run(session.undo())
    assert len(said(session)) == 6
    assert said(session, "other") == ["question 1", "answer 1"]


def test_turns_are_found_by_what_the_user_said(session: SessileBranchingSession) -> None:
    """The search ignores case and includes content parts."""
    run(session.add_items([{"role": "user", "content": [{"type": "input_text", "text": "in PARTS"}]}]))
    assert [turn["turn"] for turn in run(session.get_conversation_turns())] == [1, 2, 3, 4]
    assert [turn["turn"] for turn in run(session.find_turns_by_content("QUESTION"))] == [1, 2, 3]
    assert [turn["turn"] for turn in run(session.find_turns_by_content("parts"))] == [4]
    run(session.create_branch_from_content("question 3"))
    assert said(session) == ["question 1", "answer 1", "question 2", "answer 2"]


def test_tools_are_counted_by_turn(session: SessileBranchingSession) -> None:
    """The result has names and counts for each turn."""
    call: Any = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    search: Any = {"type": "web_search_call", "id": "w", "action": {}}
    again: Any = {**call, "call_id": "d"}
    run(session.add_items([call, again, search]))
    assert run(session.get_tool_usage()) == [("look", 2, 3), ("web_search_call", 1, 3)]
    assert [step["type"] for step in run(session.get_conversation_by_turns())[3]] == [
        "user",
        "assistant",
        "function_call",
        "function_call",
        "web_search_call",
    ]


def test_usage_belongs_to_the_turn_that_a_run_answered(session: SessileBranchingSession, store: Store) -> None:
    """Usage is summed over turns and branches, and is removed when its turn is popped."""
    run(session.store_run_usage(used(10)))
    run(session.create_branch_from_turn(2, "other"))
    run(session.add_items([user("x"), answer("y")]))
    run(session.store_run_usage(used(5)))
    again = SessileBranchingSession("thread", store)
    assert run(again.get_turn_usage(3))["input_tokens"] == 10
    assert [turn["user_turn_number"] for turn in run(again.get_turn_usage(branch_id="other"))] == [2]
    assert run(again.get_session_usage())["total_tokens"] == 17
    assert run(again.get_session_usage("other"))["total_turns"] == 1
    assert run(again.get_turn_usage(1)) == {}
    run(session.pop_item())
    run(session.pop_item())
    assert run(session.get_session_usage("other")) is None


def test_people_see_the_branches_in_the_tree(folder: Store, look: Look) -> None:
    """The branch of the last write is shown, and the other is a second head."""
    session = SessileBranchingSession("thread", folder)
    run(session.add_items([user("start"), answer("fine"), user("left"), answer("left answer")]))
    run(session.create_branch_from_turn(2, "right"))
    run(session.add_items([user("right"), answer("right answer")]))
    session.close()
    found = NamedSessions(folder, PROGRAM).find("", "thread")
    assert found is not None
    shown = look("show", found.id)
    assert "right answer" in shown and "left answer" not in shown
    assert len(found.get_heads()) == 2
