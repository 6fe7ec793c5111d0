"""`sessile search` and `history`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders import answered, said
from sessile import HistoryStorage, Store
from sessions import header, write_file

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


@pytest.fixture
def printed(home: Path) -> Store:
    """Return a store with three sessions: a word in 400 tool results, in few messages, and in a sub-agent of another project."""
    store = Store(home / ".sessile", clock=lambda: 1_763_000_000.0)
    result = {"role": "toolResult", "toolCallId": "c", "toolName": "bash"}
    with store.create("/work/app", publish=True) as session:
        session.append_message({"role": "user", "content": "Where is it?"})
        for number in range(400):
            session.append_message({**result, "content": [{"type": "text", "text": f"{number}: the quokka ran"}]})
        for number in range(6):
            session.append_message({"role": "user", "content": f"six wombats, {number}"})
        session.append_message({**result, "content": [{"type": "text", "text": "wombats everywhere"}]})
        session.append_custom_entry("notes", {"plan": "feed the numbat", "more": "wombats"})
    with store.create("/work/other", publish=True) as session:
        session.append_message({"role": "user", "content": "only the bilby"})
        session.append_message({**result, "content": [{"type": "text", "text": "a potoroo"}]})
    return store


@pytest.mark.promise("P49")
def test_a_word_that_is_only_in_tool_results_is_found(sessile: Command, printed: Store) -> None:
    """Few hits are followed by those in other fields, which say where they are; the rest is counted."""
    done = sessile("search", "quokka")
    lines = [line.split("\t") for line in done.out.splitlines()]
    assert done.code == 0 and len(lines) == 20 and {line[2] for line in lines} == {"tool_result"}
    assert "+380 in tool results. Show: --in tool_result" in done.err and "nothing found" not in done.err
    everything = sessile("search", "quokka", "--in", "tool_result", "-n", "1000", "--json").json
    assert len(everything["items"]) == 400 and everything["hidden"] == {} and everything["unscanned"] == 0
    assert [hit["field"] for hit in sessile("search", "numbat", "--json").json["items"]] == ["other"]
    for arguments in (["-F", "quokk"], ["-E", "qu.kka"]):
        assert len(sessile("search", *arguments).out.splitlines()) == 20
        assert "+380 in tool results" in sessile("search", *arguments).err
    assert sessile("search", "quokka", "--count", "--json").json["counts"]["tool_result"] == 400


@pytest.mark.promise("P49")
def test_enough_hits_are_not_mixed_with_those_in_other_fields(sessile: Command, printed: Store) -> None:
    """With five hits or more, hits in tool results and other data are counted, with the option that shows them."""
    for arguments in (["wombats"], ["-F", "ombats"]):
        done = sessile("search", *arguments, "--json")
        assert {hit["field"] for hit in done.json["items"]} == {"text"} and len(done.json["items"]) == 6
        assert done.json["hidden"] == {"tool_result": 1, "other": 1}
        told = sessile("search", *arguments).err
        assert "+1 in tool results. Show: --in tool_result" in told and "Show: --in other" in told
    assert len(sessile("search", "wombats", "--in", "all", "--json").json["items"]) == 8


@pytest.mark.promise("P49")
@pytest.mark.parametrize("arguments", [["bilby"], ["potoroo"], ["-F", "ilby"], ["-F", "otoro"]])
def test_hits_in_sessions_that_the_options_exclude_are_counted(
    sessile: Command, printed: Store, arguments: list[str]
) -> None:
    """A filter never hides in silence that the words are elsewhere, in whatever field."""
    done = sessile("search", *arguments, "-p", "/work/app")
    assert done.code == 1 and "+1 in sessions that the options exclude. Show: without -p" in done.err
    assert sessile("search", *arguments, "-p", "/work/app", "--json").json["excluded"] == 1
    assert sessile("search", *arguments, "-p", "/work/other").code == 0


@pytest.mark.promise("P49")
def test_hidden_sessions_are_searched(sessile: Command, home: Path) -> None:
    """Sub-agents are hidden in listings, but a search finds what they said, with filters and without."""
    folder = home / ".sessile" / "sessions" / "--work--"
    write_file(folder / "2026_s1.jsonl", header("s1"), said("a", None), answered("b", "a"))
    write_file(
        folder / "2026_s1" / "agent.jsonl", header("s2"), said("a", None, "a hidden echidna"), answered("b", "a")
    )
    assert "hidden (1 sub-agent)" in sessile("ls").err
    for arguments in (["echidna"], ["echidna", "--since", "20y"], ["-F", "chidn"], ["-E", "ech.dna", "--since", "20y"]):
        assert sessile("search", *arguments).code == 0, arguments


@pytest.mark.promise("P49")
def test_hits_in_deleted_sessions_are_counted(sessile: Command, printed: Store) -> None:
    """If nothing else is found, matches in the trash are counted, with the verb that shows it."""
    (path,) = [row["path"] for row in sessile("ls", "-p", "/work/other", "--json").json["items"]]
    printed.delete(path)
    for arguments in (["bilby"], ["-F", "potor"]):
        done = sessile("search", *arguments)
        assert done.code == 1 and "+1 in deleted sessions. Show: sessile trash" in done.err
        assert sessile("search", *arguments, "--json").json["trash"] == 1
    assert sessile("search", "nowhere", "--json").json["trash"] == 0


@pytest.mark.promise("P49")
def test_files_and_lines_that_cannot_be_searched_are_named(sessile: Command, printed: Store, home: Path) -> None:
    """A file that is no session and an unreadable line are reported with every search."""
    (home / ".sessile" / "sessions" / "stray.jsonl").write_text("a lost thylacine\n")
    path = next(Path(printed.layout.sessions).rglob("*_*.jsonl"))
    path.write_bytes(path.read_bytes() + b'{"torn": "thylac\n')
    done = sessile("search", "thylacine")
    assert done.code == 1 and "stray.jsonl was not searched" in done.err and "unreadable lines" in done.err
    assert len(sessile("search", "thylacine", "--json").json["notices"]) == 2


@pytest.mark.promise("P49")
def test_a_text_that_was_cut_is_searched_to_its_end(sessile: Command, printed: Store) -> None:
    """The end of a long text is in a blob, where a search finds it."""
    with printed.create("/work/app", publish=True) as session:
        session.append_message({"role": "user", "content": f"paste: {'x ' * 300_000} the quoll"})
    assert [hit["field"] for hit in sessile("search", "quoll", "--json").json["items"]] == ["text"]
    assert sessile("search", "-F", "the quol").code == 0


@pytest.mark.promise("P49")
def test_a_search_that_has_no_time_to_index_reads_the_sessions(
    sessile: Command, printed: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a terminal the first search answers before everything is indexed, and nobody is asked to search again."""
    monkeypatch.setattr("sessile.cli.query._INDEX_TIME", -1.0)
    monkeypatch.setattr("sessile.cli.output.Output.is_terminal", True)
    done = sessile("search", "Where")  # in the older session; one is indexed
    assert (
        done.code == 0 and "1 session is not indexed yet; it was read directly" in done.err and "again" not in done.err
    )
    for word in ("bilby", "quokka", "numbat"):
        done = sessile("search", word, "--json")
        assert done.code == 0 and done.json["items"] and done.json["unread"] == 0


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
    assert done.code == 1 and "in sessions that the options exclude. Show: without -p" in done.err


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
