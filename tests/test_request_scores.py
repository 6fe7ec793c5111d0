"""Requests made from sessions are those that the real agents sent."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

import agent_records
import request_scores
from request_scores import FINISHED, PAGE, RECORDS, Judge, Verdict
from sessile import next_request
from sessile.agents.pi import PI, Pi
from sessile.core.context import SessionContext
from sessile.session import SessionView


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


def test_a_request_without_the_agent_s_shape_is_not_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge notices requests that have another shape than those of the agent."""
    monkeypatch.setattr(Pi, "dialect", PI._replace(missing="lost", thoughts="dropped", no_image=None))
    verdicts = Judge("pi-0.87.1", agent_records.unpack("pi-0.87.1", tmp_path)).verdicts()
    noticed = {verdict.step for verdict in verdicts if verdict.outcome == "unexplained"}
    assert {"rpc-small", "tm-branch", "oaitool"} <= noticed


def test_a_gap_whose_text_is_stored_is_not_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an agent's files have cannot be declared missing."""
    monkeypatch.setitem(RECORDS, "pi-0.87.1", RECORDS["pi-0.87.1"]._replace(gaps=RECORDS["pi-0.73.1"].gaps))
    monkeypatch.setattr(next_request, "whole_context", _without_prompt)
    verdicts = Judge("pi-0.87.1", agent_records.unpack("pi-0.87.1", tmp_path)).verdicts()
    assert {verdict.outcome for verdict in verdicts} == {"unexplained", "aside"}


def _without_prompt(session: SessionView, at: str | None = None, *, bridge: bool = False) -> SessionContext:
    context = session.context(at, bridge=bridge)
    kept = [
        (message, source)
        for message, source in zip(context.messages, context.sources, strict=True)
        if message["role"] != "system"
    ]
    return replace(context, messages=[message for message, _ in kept], sources=[source for _, source in kept])


@pytest.mark.peers
def test_scores_of_all_agents(capsys: pytest.CaptureFixture[str]) -> None:
    """`make peers` prints the table."""
    scores = [request_scores.score(name, _judged(name)) for name in RECORDS]
    with capsys.disabled():
        print(f"\n{request_scores.table(scores)}")
    assert all(row.requests for row in scores)
