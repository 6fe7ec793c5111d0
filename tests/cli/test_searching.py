"""`sessile search` and `history`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sessile import HistoryStorage

from .conftest import Command

WEBHOOK = "6513270e-2b1d-4c55-9a0e-7d1f3c5b9e42"


@pytest.mark.mission("B3")
def test_words_are_found_on_every_branch(sessile: Command, demo: Path) -> None:
    """All words must match in any order, also on abandoned branches."""
    done = sessile("search", "tenacity", "approach", "--json")
    assert done.code == 0
    assert WEBHOOK in {hit["session"] for hit in done.json["items"]}
    left = sessile("search", '"try approach A"', "--json").json["items"]
    assert any(hit["session"] == WEBHOOK and "approach A" in hit["text"] for hit in left)
    hit = left[0]
    assert [hit["text"][start:end] for start, end in hit["marks"]]


def test_hits_at_a_pipe_are_lines_with_session_entry_field_and_text(sessile: Command, demo: Path) -> None:
    """Each line has four columns separated by tabs."""
    line = sessile("search", "tenacity", "-n", "1").out.splitlines()[0].split("\t")
    assert len(line) == 4 and "tenacity" in line[3].lower()


@pytest.mark.mission("B3")
def test_other_scripts_are_found_as_parts(sessile: Command, demo: Path) -> None:
    """Chinese has no spaces between words, so parts of a text match."""
    hits = sessile("search", "购物车", "--json").json["items"]
    assert hits and all("购物车" in hit["text"] for hit in hits)


def test_fields_are_kept_apart_and_those_not_searched_are_counted(sessile: Command, demo: Path) -> None:
    """Tool output is not searched by default, but its hits are counted."""
    done = sessile("search", "passed", "--json")
    assert {hit["field"] for hit in done.json["items"]} <= {"text", "thinking", "tool_input"}
    assert done.json["hidden"]["tool_result"] > 0
    results = sessile("search", "passed", "--in", "tool_result", "--json", "-n", "100").json["items"]
    assert {hit["field"] for hit in results} == {"tool_result"}
    assert len(results) == done.json["hidden"]["tool_result"]
    assert "in tool results. Show: --in tool_result" in sessile("search", "passed").err


def test_substrings_and_patterns(sessile: Command, demo: Path) -> None:
    """Substrings and regular expressions are found by a scan of any field."""
    assert sessile("search", "-F", "RetryCallState) ->", "--json").json["items"]
    found = sessile("search", "-E", r"\d+ passed in", "--in", "tool_result", "--json").json["items"]
    assert found and all("passed in" in hit["text"] for hit in found)
    done = sessile("search", "-E", "(")
    assert done.code == 2 and "regular expression" in done.err
    assert sessile("search", "-E", "-F", "x").code == 2


def test_ids_counts_streams_and_context(sessile: Command, demo: Path) -> None:
    """Output can be ids, counts, JSON lines or text with context."""
    ids = sessile("search", "tenacity", "-o").out.splitlines()
    assert WEBHOOK in ids and len(ids) == len(set(ids))
    counts = sessile("search", "tenacity", "--count", "--json").json
    assert counts["counts"]["text"] > 0 and counts["sessions"] == len(ids)
    records = [json.loads(line) for line in sessile("search", "tenacity", "--jsonl").out.splitlines()]
    assert records and {record["schema"] for record in records} == {"sessile.search.hit/1"}
    assert sessile("search", "tenacity", "-C", "2").code == 0


def test_nothing_found_says_so(sessile: Command, demo: Path) -> None:
    """The command exits with code 1, stdout is empty, and stderr has a message."""
    done = sessile("search", "xylophonist")
    assert (done.code, done.out) == (1, "") and "nothing found" in done.err
    done = sessile("search", "tenacity", "-p", "/home/ana/notes")
    assert done.code == 1 and "hits in sessions that the options exclude" in done.err


def test_a_search_is_fresh(sessile: Command, demo: Path) -> None:
    """A title that was just set is found."""
    assert sessile("search", "platypus").code == 1
    assert sessile("rename", WEBHOOK, "The platypus session").code == 0
    done = sessile("search", "platypus", "--json")
    assert done.code == 0 and done.json["titles"]


@pytest.mark.mission("X23")
def test_history_finds_prompts_of_all_agents(sessile: Command, home: Path) -> None:
    """Prompts of native and other sessions are listed and can be searched."""
    for folder, prompt in ((".sessile", "fix the webhook"), (".pi/agent", "write a haiku")):
        (home / folder / "sessions").mkdir(parents=True)
        with HistoryStorage(str(home / folder / "history.db")) as history:
            history.add(prompt, "/work")
    assert {item["prompt"] for item in sessile("history", "--json").json["items"]} == {
        "fix the webhook",
        "write a haiku",
    }
    assert [line.split("\t")[2] for line in sessile("history", "haik").out.splitlines()] == ["write a haiku"]
    assert sessile("history", "nothing").code == 1
