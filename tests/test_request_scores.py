"""Requests made from sessions are those that the real agents sent."""

from __future__ import annotations

from functools import cache

import pytest

import request_scores
from request_scores import FINISHED, PAGE, RECORDS, Verdict


@cache
def _judged(name: str) -> list[Verdict]:
    return request_scores.judged(name)


@pytest.mark.mission("N2")
@pytest.mark.parametrize("name", FINISHED)
def test_each_recorded_request_is_equal_or_explained(name: str) -> None:
    """Nothing that an agent sent is missing, added or in another form, but for named gaps that no file of it has."""
    unexplained = [verdict for verdict in _judged(name) if verdict.outcome == "unexplained"]
    report = "\n".join(f"{verdict.n} {verdict.step}\n" + "\n".join(verdict.diff[:20]) for verdict in unexplained[:3])
    assert not unexplained, f"{len(unexplained)} requests of {name} differ:\n{report}"


def test_the_page_has_the_scores() -> None:
    """The page about requests shows the scores of today."""
    scores = [request_scores.score(name, _judged(name)) for name in FINISHED]
    text = PAGE.read_text()
    assert text == request_scores.written(text, request_scores.page(scores)), (
        "run python tests/request_scores.py --write"
    )


@pytest.mark.peers
def test_scores_of_all_agents(capsys: pytest.CaptureFixture[str]) -> None:
    """`make peers` prints the table."""
    scores = [request_scores.score(name, _judged(name)) for name in RECORDS]
    with capsys.disabled():
        print(f"\n{request_scores.table(scores)}")
    assert all(row.requests for row in scores)
