"""Comparing two branches of a session: common part, differences and final answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import assistant, user
from http_rig import http
from page_sessions import counted
from sessile.render.comparison import compare
from sessions import begun

pytestmark = [pytest.mark.anyio, pytest.mark.mission("B6")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_branches_are_compared_from_where_they_part(tmp_path: Path) -> None:
    """The comparison matches `compare`, and unknown values are not zero."""
    async with http(tmp_path) as gate:
        with begun(gate.gateway.store) as session:
            parting = session.append_message(user("Fix it")).id
            session.append_message(assistant("It is <b>red</b> now") | counted(100))
            session.append_message(user("Go on"))
            left = session.append_message(assistant("The test is red")).id
            session.branch(parting)
            session.append_message(user("Other way"))
            session.append_message(user("Go on"))
            right = session.append_message(assistant("The test is green")).id
            expected = compare(session.iter_branch(left), session.iter_branch(right))
        found = await gate.get("/v1/view/diff", id=session.id, a=3, b=6)
    assert (found["common"], found["commonNumber"]) == (expected.common, 0) == (1, 0)
    assert [one["number"] for one in found["left"]] == [1, 2, 3]
    assert [one["number"] for one in found["right"]] == [4, 5, 6]
    assert all(one["html"].startswith("<article") for one in found["left"] + found["right"])
    assert found["pairs"] == [[1, None], [None, 4], [2, 5]]
    rows = {name: (one, other, by) for name, one, other, by in found["deltas"]["rows"]}
    assert rows["prompts"] == ("1", "2", "+1") and rows["tokens"] == ("100", "n/a", "n/a")
    assert found["deltas"]["right"]["tokens"] is None
    assert found["words"]["html"] == '<div class="words">The test is <del>red</del><ins>green</ins></div>'


async def test_a_branch_may_be_compared_with_its_own_beginning(tmp_path: Path) -> None:
    """A branch can be compared with its own ancestor, or with a branch without common entries."""
    async with http(tmp_path) as gate:
        with begun(gate.gateway.store) as session:
            for text in ("a", "b"):
                session.append_message(user(text))
            session.reset_leaf()
            session.append_message(assistant("<i>c</i>"))
        found = await gate.get("/v1/view/diff", id=session.id, a=0, b=1)
        assert (found["common"], found["left"], [one["number"] for one in found["right"]]) == (1, [], [1])
        assert "no final answer on the left and right" in found["words"]["html"]
        found = await gate.get("/v1/view/diff", id=session.id, a=1, b=2)
        assert (found["common"], found["commonNumber"]) == (0, None) and len(found["left"]) == 2
        assert (await gate.refusal("GET", "/v1/view/diff", {"id": session.id, "a": 0, "b": 9}))[0] == 404


async def test_a_long_branch_is_told_by_numbers(tmp_path: Path) -> None:
    """Only the first entries of a long branch are rendered; the others have a number only."""
    async with http(tmp_path) as gate:
        with begun(gate.gateway.store) as session:
            session.append_many([{"type": "message", "message": user(f"n {n}")} for n in range(400)])
        left = (await gate.get("/v1/view/diff", id=session.id, a=399, b=0))["left"]
    assert [one["number"] for one in left] == list(range(1, 400))
    assert [one["html"] is None for one in left] == [number > 300 for number in range(1, 400)]
