"""`sessile show`, `tree`, `context` and `diff`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from sessile import Store

from .conftest import Command, running

WEBHOOK = "6513270e"
DAMAGED = "Power cut during the backfill"


def test_show_tells_the_branch_of_the_leaf(sessile: Command, demo: Path) -> None:
    """Prompts, answers and tools of the active branch are shown, and nothing of the abandoned branch."""
    done = sessile("show", WEBHOOK)
    assert done.code == 0
    assert "Make it a table row instead." in done.out and "approach B" in done.out
    assert "Let's try approach A" not in done.out and "pytest -q" in done.out


def test_show_another_branch_by_label_entry_or_all(sessile: Command, demo: Path) -> None:
    """A label ends the path at its entry, an abandoned tip shows its own path, and `all` shows every entry."""
    green = sessile("show", f"{WEBHOOK}@tests-green").out
    assert "All 8 tests pass" in green and "table row" not in green
    left = sessile("show", WEBHOOK, "--branch", "deadbee1").out
    assert "Let's try approach A" in left and "approach B" not in left
    everything = sessile("show", WEBHOOK, "--branch", "all").out
    assert "Let's try approach A" in everything and "table row" in everything


@pytest.mark.parametrize("written", ["{path}", "{path}#0b1d22ef", "{path}@0b1d22ef"])
def test_a_branch_is_chosen_whatever_its_file_is_called(
    sessile: Command, demo: Path, tmp_path: Path, written: str
) -> None:
    """A # in a folder name is part of the path; --branch overrides an entry or branch after the name."""
    (path,) = demo.rglob(f"*{WEBHOOK}*.jsonl")
    copy = tmp_path / "c#" / "x@y" / "a.jsonl"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(path.read_bytes())
    name = written.format(path=copy)
    shown = sessile("show", name, "--branch", "tests-green", "--json")
    assert shown.code == 0 and shown.json["leaf"] == "9f31c2a0"
    exported = sessile("export", name, "--branch", "tests-green", "-t", "jsonl", "-o", "-")
    assert exported.code == 0 and exported.out == sessile("export", f"{copy}@tests-green", "-t", "jsonl", "-o", "-").out


def test_depth_decides_how_much_and_says_what_it_hides(sessile: Command, demo: Path) -> None:
    """The levels are prompts, conversation, tools and everything."""
    prompts, chat, tools, whole = (
        sessile("show", WEBHOOK, "--depth", d).out for d in ("prompts", "chat", "tools", "all")
    )
    assert "All 8 tests pass" not in prompts and "hidden at depth prompts" in prompts
    assert "All 8 tests pass" in chat and "212 passed" not in chat
    assert "212 passed" in tools
    assert len(prompts) < len(chat) < len(tools) < len(whole) and "hidden at depth" not in whole


def test_a_part_of_a_session(sessile: Command, demo: Path) -> None:
    """The part starts at an entry, ends at an entry, or is the last few entries."""
    document = sessile("show", WEBHOOK, "--from", "5eed", "--json").json
    assert document["items"][0]["id"] == "5eed0001"
    document = sessile("show", WEBHOOK, "--to", "9f31", "--json").json
    assert document["items"][-1]["id"] == "9f31c2a0"
    assert len(sessile("show", WEBHOOK, "--tail", "3", "--json").json["items"]) == 3
    assert sessile("show", WEBHOOK, "--from", "zzzz").code == 3


def test_raw_lines_are_those_of_the_file(sessile: Command, demo: Path) -> None:
    """Every printed line is a line of the file."""
    lines = sessile("show", WEBHOOK, "--raw", "--branch", "all").out.splitlines()
    (path,) = demo.rglob(f"*{WEBHOOK}*.jsonl")
    stored = path.read_text().splitlines()
    assert set(lines) <= set(stored) and len(lines) == 33


def test_damage_is_said_where_it_is_and_by_the_exit_code(sessile: Command, demo: Path) -> None:
    """The gap is shown between the entries around it, the exit code is 5, and the hint names `sessile check`."""
    done = sessile("show", DAMAGED)
    assert done.code == 5 and "sessile check" in done.err
    before, gap, after = (done.out.index(text) for text in ("Yes, April.", "unreadable here", "We had a power cut."))
    assert before < gap < after


def test_following_prints_what_is_appended(home: Path, tmp_path: Path) -> None:
    """A new entry is printed soon after it is durable, and Ctrl-C ends the command with its code."""
    store = Store(home / ".sessile")
    with store.create("/work", publish=True) as session:
        session.append_message({"role": "user", "content": "first"})
        with running("show", session.path, "-f", "--jsonl") as follower:
            assert follower.stdout is not None and follower.stderr is not None
            assert "first" in follower.stdout.readline()
            assert "following" in follower.stderr.readline()
            time.sleep(0.5)
            session.append_message({"role": "assistant", "content": [{"type": "text", "text": "second"}]})
            entry = json.loads(follower.stdout.readline())["entry"]
            assert entry["message"]["content"][0]["text"] == "second"
            follower.send_signal(2)
            assert follower.wait(10) == 130


def test_tree_shows_forks_labels_compaction_and_the_leaf(sessile: Command, demo: Path) -> None:
    """The demo session has abandoned branches, a summary, a label and a compaction."""
    done = sessile("tree", "webhook retries")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("Webhook retries  6513270e") and "33 entries" in lines[0] and "3 branches" in lines[0]
    for told in ("├─", "└─", "◇ branch summary", "[tests-green]", "◆ compaction", "← active leaf", "~ "):
        assert any(told in line for line in lines), told
    assert len(sessile("tree", WEBHOOK, "--full").out.splitlines()) > len(lines)


def test_tree_for_a_program_and_a_screen_reader(sessile: Command, demo: Path) -> None:
    """JSON has levels and flags; plain output starts with words and has no line drawing."""
    items = sessile("tree", WEBHOOK, "--json").json["items"]
    assert [item["id"] for item in items if item["leaf"]] == ["0b1d22ef"]
    assert {item["id"] for item in items if item["head"]} == {"deadbee1", "77aa01c4", "0b1d22ef"}
    plain = sessile("tree", WEBHOOK, "--plain").out
    assert not set("├└│─○●◆◇") & set(plain) and "branch 1 of 2" in plain


@pytest.mark.mission("B5")
def test_context_is_what_the_model_saw_at_any_entry(sessile: Command, demo: Path) -> None:
    """The JSON equals the engine's context, also at an entry before the compaction."""
    document = sessile("context", WEBHOOK, "--json").json
    with Store(demo).open(next(str(p) for p in demo.rglob(f"*{WEBHOOK}*.jsonl")), readonly=True) as session:
        context = session.context()
        assert document["messages"] == context.messages
        assert document["entryCount"] == 33 == session.count_entries()
        assert document["models"] == context.models and document["thinkingLevel"] == context.thinking_level
        assert (document["mode"], document["modeData"], document["injectedTtsrRules"]) == ("none", None, [])
        earlier = sessile("context", f"{WEBHOOK}#1b0CnUN9", "--json").json
        assert earlier["messages"] == session.context("1b0CnUN9").messages
    assert earlier["messages"][0]["role"] == "user" and document["messages"][0]["role"] == "compactionSummary"
    told = sessile("context", WEBHOOK).out
    assert "summarized by the compaction" in told and ". Show: sessile" in told


def test_context_as_a_provider_takes_it(sessile: Command, demo: Path) -> None:
    """Anthropic and OpenAI formats are supported."""
    for wire in ("anthropic", "openai"):
        messages = sessile("context", WEBHOOK, "--provider", wire).json["messages"]
        assert messages and all("role" in message for message in messages)


def test_context_of_a_bare_file_needs_no_catalog(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """No catalog is created for a path."""
    (path,) = demo.rglob(f"*{WEBHOOK}*.jsonl")
    assert sessile("context", str(path), "--json").json["entryCount"] == 33
    assert not (tmp_path / "cache" / "catalog.db").exists()


@pytest.mark.mission("B6")
def test_diff_compares_two_branches(sessile: Command, demo: Path) -> None:
    """The text has the common entries, failures and cost; without names, the last abandoned branch is compared."""
    document = sessile("diff", f"{WEBHOOK}@deadbee1", f"{WEBHOOK}@tests-green", "--json").json
    assert document["common"] > 0
    told = sessile("diff", f"{WEBHOOK}@deadbee1", f"{WEBHOOK}@tests-green").out
    assert "entries in common" in told and "cost" in told and "failures" in told
    assert sessile("diff", WEBHOOK).code == 0  # the branch that was abandoned last, and the active branch


@pytest.mark.parametrize("verb", ["show", "tree", "context"])
def test_an_unknown_name_is_not_found_and_an_ambiguous_one_lists_candidates(
    sessile: Command, demo: Path, verb: str
) -> None:
    """The exit codes are 3 and 4, each with a hint."""
    done = sessile(verb, "no such session")
    assert done.code == 3 and "hint:" in done.err and done.out == ""
    done = sessile(verb, "webhook")
    assert done.code == 4 and "Webhook retries, async" in done.err
    report = json.loads(sessile(verb, "webhook", "--json").err)["error"]
    assert report["kind"] == "ambiguous" and len(report["candidates"]) == 2
    done = sessile(verb, f"{WEBHOOK}#zzzz")
    assert done.code == 3 and "zzzz" in done.err
