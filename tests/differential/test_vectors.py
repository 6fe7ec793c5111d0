"""Contexts equal those of the family: 400 generated sessions and two real ones, with the answers of the original code."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from figures import measured
from sessile.core.codec import decode
from sessile.core.context import build_session_context
from sessile.core.lines import Line, scan
from sessile.core.migrate import migrate_session_entries

pytestmark = [pytest.mark.mission("X12"), pytest.mark.promise("P44")]

FIXTURES = Path(__file__).parents[1] / "fixtures"


def fixture(name: str) -> bytes:
    return gzip.decompress((FIXTURES / f"{name}.gz").read_bytes())


def records_of(data: bytes) -> list[dict[str, Any]]:
    """Return the records of a file at version 3, header first."""
    records = [decode(item.raw) for item in scan(data) if isinstance(item, Line)]
    migrate_session_entries(records)
    return records


def vectors() -> list[dict[str, Any]]:
    return [json.loads(line) for line in fixture("context.jsonl").split(b"\n") if line]


def test_no_vector_is_missing() -> None:
    """The fixture holds all 400 cases, each under its own name."""
    assert len({vector["name"] for vector in vectors()}) == 400


@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector["name"])
def test_context_equals_the_answer_of_the_family(vector: dict[str, Any]) -> None:
    """Messages, thinking level, models, mode and rules equal those of xcsh and oh-my-pi."""
    header, *entries = records_of(vector["content"].encode("utf-8", "surrogatepass"))
    assert header["type"] == "session"
    context = build_session_context(entries, vector["leaf"]) if "leaf" in vector else build_session_context(entries)
    assert {
        "entryCount": len(entries),
        "messages": context.messages,
        "thinkingLevel": context.thinking_level,
        "mode": context.mode,
        "modeData": context.mode_data,
        "injectedTtsrRules": context.injected_ttsr_rules,
        "models": context.models,
    } == vector["expect"]
    assert len(context.sources) == len(context.messages)
    measured("P44", "contexts of the family", sessions=1, messages=len(context.messages), differences=0)


@pytest.mark.parametrize("name", ["before-compaction", "large-v1"])
def test_context_of_a_real_session_equals_the_answer_of_pi(name: str) -> None:
    """Two long sessions, one of version 1, have the messages, level and model that pi 0.87.1 returns."""
    records = records_of(fixture(f"{name}.jsonl"))
    expected = json.loads(fixture(f"{name}.expected.json"))
    context = build_session_context(records)
    assert len(records) - 1 == expected["entryCount"]
    assert context.messages == expected["messages"]
    assert context.thinking_level == expected["thinkingLevel"]
    assert context.models["default"] == "{provider}/{modelId}".format(**expected["model"])
    assert context.findings == ()
    measured("P44", "contexts of the family", sessions=1, messages=len(context.messages), differences=0)
