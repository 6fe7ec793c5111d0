"""Verbs on sessions of other agents: --in-place, and moving named sessions to the trash."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sessile import Store

from .conftest import Command

SESSION = "0f4e8b1c-2d3a-4c5b-8e6f-7a8b9c0d1e2f"
OTHER = "1a4e8b1c-2d3a-4c5b-8e6f-7a8b9c0d1e2f"
LONG_AGO = 1_600_000_000_123_456_789  # nanoseconds


def put(home: Path, session_id: str, text: str) -> Path:
    """Write an old Claude Code session with its own folder."""
    path = home / ".claude" / "projects" / "-work" / f"{session_id}.jsonl"
    agent = path.with_suffix("") / "subagents" / "agent-1.jsonl"
    agent.parent.mkdir(parents=True)
    agent.write_text("{}\n")
    base: dict[str, Any] = {"sessionId": session_id, "cwd": "/work", "timestamp": "2020-05-01T10:00:00.000Z"}
    rows = [
        {"parentUuid": None, "type": "user", "uuid": "u1", **base, "message": {"role": "user", "content": text}},
        {"parentUuid": "u1", "type": "assistant", "uuid": "a1", **base, "message": {"content": "hello"}},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for file in (agent, path):
        os.utime(file, ns=(LONG_AGO, LONG_AGO))
    return path


@pytest.fixture
def claude(home: Path) -> Path:
    return put(home, SESSION, "the question")


@pytest.fixture
def codex(home: Path) -> Path:
    path = home / ".codex" / "sessions" / "2020" / "05" / "01" / "rollout-2020-05-01T10-00-00-x.jsonl"
    path.parent.mkdir(parents=True)
    meta = {"timestamp": "2020-05-01T10:00:00Z", "type": "session_meta", "payload": {"id": "x", "cwd": "/work"}}
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "codex question"}]}
    rows = [meta, {"timestamp": "2020-05-01T10:00:01Z", "type": "response_item", "payload": said}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def myagents(home: Path) -> Path:
    """Write an old MyAgents session with an attachment and an unreferenced attachment."""
    folder = home / ".myagents"
    at = "2020-05-01T10:00:00.000Z"
    attachment = folder / "attachments" / SESSION / "a.png"
    attachment.parent.mkdir(parents=True)
    attachment.write_bytes(b"picture")
    (folder / "sessions").mkdir()
    for session_id in (SESSION, OTHER):
        row = {"id": "0", "role": "user", "content": f"question {session_id}", "timestamp": at}
        (folder / "sessions" / f"{session_id}.jsonl").write_text(json.dumps(row) + "\n")
    base = {"agentDir": "/work", "title": "New Chat", "createdAt": at, "lastActiveAt": at}
    (folder / "sessions.json").write_text(json.dumps([{"id": name, **base} for name in (SESSION, OTHER)], indent=2))
    for file in (attachment, *(folder / "sessions").iterdir()):
        os.utime(file, ns=(LONG_AGO, LONG_AGO))
    return folder


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return every file below a folder with its modification time and bytes."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@pytest.mark.mission("B1")
@pytest.mark.parametrize(
    "verb",
    [
        ["rename", SESSION, "New"],
        ["tag", SESSION, "work"],
        ["tag", SESSION, "--clear"],
        ["label", f"{SESSION}#u1", "here"],
        ["move", SESSION, "/elsewhere"],
        ["branch", f"{SESSION}#u1"],
    ],
)
def test_without_in_place_nothing_of_theirs_changes(
    sessile: Command, claude: Path, home: Path, verb: list[str]
) -> None:
    """No byte or modification time changes; the command exits with code 7 and suggests alternatives."""
    before = snapshot(home / ".claude")
    done = sessile(*verb)
    assert done.code == 7 and "sessile fork" in done.err
    assert ("--in-place" in done.err and "append, branch, compact, title, tag" in done.err) == (verb[0] != "branch")
    assert snapshot(home / ".claude") == before


@pytest.mark.mission("C13")
def test_rename_in_place_is_one_row_more(sessile: Command, claude: Path) -> None:
    """One row is appended, and the new name is shown at once."""
    before = claude.read_bytes()
    done = sessile("rename", SESSION, "Webhook", "retries", "--in-place", "--json")
    assert (done.code, done.json["title"], done.json["path"]) == (0, "Webhook retries", str(claude))
    assert json.loads(claude.read_bytes().removeprefix(before)) == {
        "type": "custom-title",
        "customTitle": "Webhook retries",
        "sessionId": SESSION,
    }
    assert "Webhook retries" in sessile("ls").out


@pytest.mark.mission("C13")
def test_tag_sets_says_and_clears(sessile: Command, claude: Path) -> None:
    """Without a text the tag is printed; if there is none, the command exits with code 1."""
    assert sessile("tag", SESSION).code == 1
    assert sessile("tag", SESSION, "pay\u200bments", "--in-place", "--json").json["tag"] == "payments"
    done = sessile("tag", SESSION)
    assert (done.code, done.out) == (0, "payments\n")
    assert sessile("tag", SESSION, "--clear", "--in-place").code == 0
    assert sessile("tag", SESSION, "--json").json["tag"] is None
    assert sessile("tag", SESSION, "x", "--clear", "--in-place").code == 2
    assert sessile("tag", SESSION, "\u200b", "--in-place").code == 2


def test_tag_of_ones_own_needs_no_option(sessile: Command, demo: Path) -> None:
    """The tag is an entry of the session and does not appear in the conversation."""
    shown = sessile("context", "6513270e", "--json").json["messages"]
    assert sessile("tag", "6513270e", "payments").code == 0
    assert sessile("tag", "6513270e").out == "payments\n"
    assert sessile("context", "6513270e", "--json").json["messages"] == shown


@pytest.mark.parametrize("verb", [["label", f"{SESSION}#u1", "here"], ["move", SESSION, "/elsewhere"]])
def test_what_the_format_cannot_take_is_refused_in_place_too(
    sessile: Command, claude: Path, home: Path, verb: list[str]
) -> None:
    """The command exits with code 2 and a hint, and writes nothing."""
    before = snapshot(home / ".claude")
    done = sessile(*verb, "--in-place")
    assert done.code == 2 and "sessile fork" in done.err
    assert verb[0] != "label" or "label the copy" in done.err
    assert snapshot(home / ".claude") == before


def test_nothing_is_promised_of_codex(sessile: Command, codex: Path) -> None:
    """Codex files are read-only, even with --in-place."""
    before = codex.read_bytes(), codex.stat().st_mtime_ns
    done = sessile("rename", str(codex), "x")
    assert done.code == 7 and "writing to files of codex is not supported" in done.err and "--in-place" not in done.err
    assert sessile("rename", str(codex), "x", "--in-place").code == 2
    assert sessile("prune", str(codex), "--apply").code == 2
    assert sessile("prune", "--agent", "codex", "--older-than", "1d", "--apply").code == 2
    assert (codex.read_bytes(), codex.stat().st_mtime_ns) == before


# -- the trash


@pytest.mark.mission("C13", "B6")
def test_a_named_session_of_another_agent_goes_to_our_trash_and_comes_back(
    sessile: Command, claude: Path, home: Path
) -> None:
    """The plan is shown first; --apply moves the session with its folder, and undo restores bytes and times."""
    put(home, OTHER, "another")
    before = snapshot(home / ".claude")
    assert "would be moved to the trash" in sessile("prune", SESSION).err
    assert snapshot(home / ".claude") == before
    assert sessile("prune", SESSION, "--apply").code == 0
    assert [path for path in snapshot(home / ".claude") if SESSION in path] == []
    assert {path: file for path, file in before.items() if OTHER in path} == snapshot(home / ".claude")
    (item,) = sessile("trash", "--json").json["items"]
    assert item["paths"][0] == str(claude)
    assert SESSION not in sessile("ls").out
    assert sessile("undo").code == 0
    assert snapshot(home / ".claude") == before
    assert sessile("trash").code == 1


@pytest.mark.mission("C13")
def test_the_sessions_of_an_agent_are_pruned_by_a_rule(sessile: Command, claude: Path, home: Path) -> None:
    """Only old sessions that are not pinned are moved; a session is restored by token, even if its folder is gone."""
    recent = put(home, OTHER, "another")
    os.utime(recent)
    before = snapshot(home / ".claude")
    done = sessile("prune", "--agent", "claude", "--older-than", "90d", "--json")
    assert [item["path"] for item in done.json["items"]] == [str(claude)]
    assert snapshot(home / ".claude") == before
    assert sessile("pin", SESSION).code == 0
    assert sessile("prune", "--agent", "claude", "--older-than", "90d", "--apply").code == 1
    assert sessile("pin", SESSION, "--remove").code == 0
    (token,) = sessile("prune", "--agent", "claude", "--older-than", "90d", "--apply", "--json").json["tokens"]
    (home / ".claude").rename(home / "aside")
    assert sessile("trash", "restore", token).code == 0
    theirs = {path: file for path, file in before.items() if SESSION in path}
    assert snapshot(home / ".claude") == theirs


def test_a_rule_for_an_agent_says_something(sessile: Command, claude: Path) -> None:
    """A missing rule, an unknown agent, a name together with --agent, and --empty are refused."""
    assert sessile("prune", "--agent", "claude", "--apply").code == 2
    assert sessile("prune", "--agent", "nobody", "--older-than", "1d").code == 3
    assert sessile("prune", SESSION, "--agent", "claude").code == 2
    assert sessile("prune", "--agent", "claude", "--empty", "--apply").code == 2
    assert claude.exists()


def test_a_session_in_no_known_folder_is_not_deleted(sessile: Command, claude: Path, home: Path) -> None:
    """It is refused with code 7, because it could not be restored."""
    stray = home / "stray" / claude.name
    stray.parent.mkdir()
    claude.rename(stray)
    assert sessile("prune", str(stray), "--apply").code == 7
    assert stray.exists()


def test_a_session_of_the_family_goes_with_one_of_ones_own(sessile: Command, home: Path) -> None:
    """Both are named in one call, and undo restores both."""
    paths = []
    for root in (home / ".pi" / "agent", home / ".sessile"):
        with Store(root, clock=lambda: 1e9).create("/x", title=f"Old {root.name}", publish=True) as session:
            session.append_message({"role": "user", "content": "hi"})
        paths.append(Path(session.path))
        os.utime(session.path, (1e9, 1e9))
    before = snapshot(home / ".pi")
    assert sessile("prune", *map(str, paths), "--apply").code == 0
    assert not any(path.exists() for path in paths)
    assert sessile("undo", "-n", "2").code == 0
    assert all(path.exists() for path in paths)
    assert snapshot(home / ".pi") == before


# -- MyAgents, which keeps a list


@pytest.mark.mission("B1", "M1")
def test_a_session_of_myagents_is_named_in_its_list(sessile: Command, myagents: Path) -> None:
    """--in-place is required; the session file and the other rows are unchanged."""
    files = snapshot(myagents / "sessions")
    before = snapshot(myagents)
    done = sessile("rename", SESSION, "New")
    assert done.code == 7 and "--in-place" in done.err and "append, title, delete" in done.err
    assert snapshot(myagents) == before
    done = sessile("rename", SESSION, "Webhook", "retries", "--in-place", "--json")
    assert (done.code, done.json["title"]) == (0, "Webhook retries")
    ours, other = json.loads((myagents / "sessions.json").read_text())
    assert (ours["title"], ours["titleSource"], other["title"]) == ("Webhook retries", "user", "New Chat")
    assert snapshot(myagents / "sessions") == files
    assert "Webhook retries" in sessile("ls").out


@pytest.mark.mission("B1")
@pytest.mark.parametrize("verb", [["label", f"{SESSION}#@0", "here"], ["tag", SESSION, "x"], ["move", SESSION, "/e"]])
def test_what_myagents_has_no_counterpart_for_is_refused(sessile: Command, myagents: Path, verb: list[str]) -> None:
    """The command exits with code 2 and a hint, and writes nothing."""
    before = snapshot(myagents)
    done = sessile(*verb, "--in-place")
    assert done.code == 2 and "sessile fork" in done.err
    assert snapshot(myagents) == before


@pytest.mark.mission("B6", "M1")
@pytest.mark.parametrize("how", [[SESSION], ["--agent", "myagents", "--older-than", "90d", "--keep", "1"]])
def test_a_session_of_myagents_goes_to_our_trash_with_its_row_and_comes_back(
    sessile: Command, myagents: Path, how: list[str]
) -> None:
    """The plan is shown first; attachments are moved too, and undo restores the files and the list."""
    os.utime(myagents / "sessions" / f"{OTHER}.jsonl", ns=(LONG_AGO + 10**9,) * 2)
    before = snapshot(myagents)
    assert "would be moved to the trash" in sessile("prune", *how).err
    assert snapshot(myagents) == before
    assert sessile("prune", *how, "--apply").code == 0
    assert [path for path in snapshot(myagents) if SESSION in path] == []
    assert [row["id"] for row in json.loads((myagents / "sessions.json").read_text())] == [OTHER]
    (item,) = sessile("trash", "--json").json["items"]
    assert item["paths"][0] == str(myagents / "sessions" / f"{SESSION}.jsonl")
    assert SESSION not in sessile("ls").out
    assert sessile("undo").code == 0
    now = snapshot(myagents)
    index = str(myagents / "sessions.json")
    assert {name: file for name, file in now.items() if name != index} == {
        name: file for name, file in before.items() if name != index
    }
    rows = {row["id"]: row for row in json.loads(before[index][1])}
    assert {row["id"]: row for row in json.loads(now[index][1])} == rows
    assert sessile("trash").code == 1


def test_a_trash_that_names_a_strange_folder_puts_nothing_there(sessile: Command, demo: Path, tmp_path: Path) -> None:
    """A trash record from another source may contain any path."""
    folder = demo / "trash" / "1700000000000-abc-x"
    folder.mkdir(parents=True)
    (folder / "0").write_text("evil")
    target = tmp_path / "strange"
    note = {"token": folder.name, "paths": ["authorized_keys"], "root": str(target)}
    (folder / "manifest.json").write_text(json.dumps(note))
    done = sessile("undo")
    assert done.code != 0 and str(target) in done.err
    assert not target.exists() and (folder / "0").exists()
