"""`sessile resume`, `branch`, `fork`, `label`, `rename`, `move`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sessile import Store

from .conftest import Command, at_a_terminal

WEBHOOK = "6513270e-2b1d-4c55-9a0e-7d1f3c5b9e42"
CODEX = "0199aaaa-1111-7000-8000-000000000001"


@pytest.fixture
def pi_session(home: Path) -> Path:
    """Return a session of pi in pi's folder."""
    with Store(home / ".pi" / "agent").create(str(home), title="From pi", publish=True) as session:
        session.append_message({"role": "user", "content": "hello"})
        session.append_message({"role": "assistant", "content": [{"type": "text", "text": "hi"}]})
        return Path(session.path)


def test_resume_prints_the_command_with_the_folder(sessile: Command, pi_session: Path, home: Path) -> None:
    """The agent is the one that wrote the session, unless --in names another."""
    done = sessile("resume", "from pi", "--print")
    assert done.out == f"cd {home} && pi --session {pi_session}\n"
    document = sessile("resume", "@last", "--json").json
    assert document["argv"] == ["pi", "--session", str(pi_session)] and document["cwd"] == str(home)
    other = sessile("resume", "@here", "--in", "omp", "--print").out
    assert " --to omp && omp --resume " in other and str(home / ".omp" / "agent" / "sessions") in other


def test_resume_without_a_name_offers_the_sessions_of_this_folder(
    home: Path, pi_session: Path, sessile: Command
) -> None:
    """A numbered list, newest first, is shown unless there is only one; without a terminal the last session is taken."""
    printed = at_a_terminal(["resume", "--print"], {"NO_COLOR": "1"})
    assert "Which one" not in printed and str(pi_session) in printed.replace("\r\n", "")
    os.utime(pi_session, (1_700_000_000, 1_700_000_000))
    with Store(home / ".pi" / "agent").create(str(home), title="A newer one", publish=True) as session:
        session.append_message({"role": "user", "content": "hello"})
        newer = Path(session.path)
    with Store(home / ".pi" / "agent").create("/somewhere/else", title="Of another folder", publish=True) as session:
        session.append_message({"role": "user", "content": "hello"})
    environment = {"NO_COLOR": "1", "COLUMNS": "200"}
    printed = at_a_terminal(["resume", "--print"], environment, "2\n")
    assert printed.index("A newer one") < printed.index("From pi") and "Of another folder" not in printed
    assert str(pi_session) in printed
    assert str(newer) in at_a_terminal(["resume", "--print"], environment, "\n")
    assert str(pi_session) in at_a_terminal(["resume", "--print"], environment, "from pi\n")
    assert "session not found" in at_a_terminal(["resume", "--print"], environment, "77\n")
    assert str(newer) in sessile("resume", "--print").out


@pytest.mark.parametrize("named", ["claude", "codex", "another"])
def test_what_a_header_calls_its_format_does_not_choose_the_agent(
    sessile: Command, pi_session: Path, named: str
) -> None:
    """The format is detected from the file; a `format` member in the header is ignored."""
    head, rest = pi_session.read_bytes().split(b"\n", 1)
    pi_session.write_bytes(json.dumps({**json.loads(head), "format": named}).encode() + b"\n" + rest)
    assert sessile("resume", "from pi", "--json").json["argv"] == ["pi", "--session", str(pi_session)]


def test_resume_of_a_copy_names_the_command_that_makes_it(sessile: Command, home: Path, tmp_path: Path) -> None:
    """The command is printed as arguments and as a shell line, both with the target store."""
    folder = home / ".codex" / "sessions"
    folder.mkdir(parents=True)
    rows = (
        {"type": "session_meta", "payload": {"id": CODEX, "cwd": str(home)}},
        {"type": "response_item", "payload": {"type": "message", "role": "user", "content": []}},
    )
    (folder / f"rollout-2026-05-01T10-00-00-{CODEX}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    root = str(tmp_path / "my own")
    expected = ["sessile", "--root", root, "resume", CODEX, "--in", "pi"]
    assert sessile("--root", root, "resume", CODEX, "--in", "pi", "--json").json["argv"] == expected
    printed = sessile("--root", root, "resume", CODEX, "--in", "pi", "--print").out
    convert = ["sessile", "--root", root, "convert", CODEX, "--to", "pi"]
    assert shlex.split(printed)[:-1] == ["cd", str(home), "&&", *convert, "&&", "pi", "--session"]


@pytest.mark.promise("P32")
@pytest.mark.parametrize("named", ['-cnotify=["sh","-c","id"]', "--yolo", "-", "a b", "../x", "x\n--yolo"])
def test_resume_gives_no_agent_an_option_that_a_file_has_made_up(sessile: Command, home: Path, named: str) -> None:
    """An id comes from the file: an invalid id could be read as an option of the agent and run commands."""
    folder = home / ".codex" / "sessions"
    folder.mkdir(parents=True)
    rows = (
        {"type": "session_meta", "payload": {"id": named, "cwd": str(home)}},
        {"type": "response_item", "payload": {"type": "message", "role": "user", "content": []}},
    )
    path = folder / "rollout-2026-05-01T10-00-00-0199aaaa-1111-7000-8000-000000000001.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = sessile("resume", str(path), "--in", "codex", "--print")
    assert (done.code, done.out) == (2, "") and "unsafe session id" in done.err
    assert "--in pi" in done.err


@pytest.mark.promise("P32")
def test_resume_passes_arguments_never_a_shell(home: Path, pi_session: Path, tmp_path: Path) -> None:
    """The agent is started in the session's folder with the path as one argument, which no shell interprets."""
    program = tmp_path / "bin" / "pi"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nimport os, sys\nprint(sys.argv[1:], os.getcwd())\n")
    program.chmod(0o700)
    tricky = pi_session.with_name("a; touch hacked $(x).jsonl")
    pi_session.rename(tricky)
    command = [sys.executable, "-m", "sessile.cli.main", "resume", str(tricky)]
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
    assert run.stdout == f"{['--session', str(tricky)]} {home}\n"
    assert not list(tmp_path.rglob("hacked")) and not list(home.rglob("hacked"))


def test_an_agent_that_is_not_installed_is_said(
    sessile: Command, pi_session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error contains the command to run elsewhere."""
    monkeypatch.setenv("PATH", "/nonexistent")
    done = sessile("resume", "from pi")
    assert done.code == 3 and "pi --session" in done.err


def test_continue_takes_this_folder_else_the_last_of_all(sessile: Command, pi_session: Path, home: Path) -> None:
    """Outside the session's folder, a note says that this folder has none."""
    assert str(pi_session) in sessile("continue", "--print").out
    os.chdir(home.parent)
    elsewhere = home.parent / "elsewhere"
    elsewhere.mkdir()
    os.chdir(elsewhere)
    done = sessile("continue", "--print")
    assert str(pi_session) in done.out and "no session" in done.err


def test_branch_moves_the_leaf_and_keeps_everything(sessile: Command, demo: Path) -> None:
    """The leaf moves, and the abandoned branches stay in the tree."""
    done = sessile("branch", f"{WEBHOOK}@tests-green")
    assert done.code == 0 and done.out == f"{WEBHOOK}\n"
    tree = sessile("tree", WEBHOOK, "--json").json
    assert tree["leaf"] == "9f31c2a0"
    assert {"deadbee1", "77aa01c4", "0b1d22ef"} <= {item["id"] for item in tree["items"]}
    assert sessile("branch", WEBHOOK).code == 2


def test_branch_with_a_summary_appends_it(sessile: Command, demo: Path) -> None:
    """The summary is stored as an entry and shown."""
    assert sessile("branch", f"{WEBHOOK}#9f31c2a0", "--summary", "The table row was not wanted.").code == 0
    assert "The table row was not wanted." in sessile("show", WEBHOOK).out


def test_fork_makes_a_session_of_ones_own(sessile: Command, pi_session: Path, home: Path) -> None:
    """The fork has the whole session or the path to an entry; the source is unchanged."""
    before = pi_session.read_bytes(), pi_session.stat().st_mtime_ns
    document = sessile("fork", str(pi_session), "--json").json
    assert document["source"] == str(pi_session) and document["path"].startswith(str(home / ".sessile"))
    entries = sessile("show", document["id"], "--json").json["items"]
    assert [entry["message"]["role"] for entry in entries if entry["type"] == "message"] == ["user", "assistant"]
    first = entries[0]["id"]
    part = sessile("fork", f"{pi_session}#{first}", "--cwd", str(home), "--json").json
    assert len(sessile("show", part["id"], "--json").json["items"]) == 1
    assert (pi_session.read_bytes(), pi_session.stat().st_mtime_ns) == before


def test_label_and_clear(sessile: Command, demo: Path) -> None:
    """A label selects a branch; clearing removes it."""
    assert sessile("label", f"{WEBHOOK}#0b1d22ef", "final").code == 0
    assert sessile("show", f"{WEBHOOK}@final").code == 0
    assert sessile("label", f"{WEBHOOK}#0b1d22ef", "--clear").code == 0
    assert sessile("show", f"{WEBHOOK}@final").code == 3
    assert sessile("label", f"{WEBHOOK}#0b1d22ef").code == 2


def test_rename_and_move(sessile: Command, demo: Path, home: Path) -> None:
    """Title and project change, and the changed file is printed."""
    done = sessile("rename", WEBHOOK, "Retries", "at", "last")
    assert done.code == 0 and ".jsonl" in done.err
    moved = sessile("move", "Retries at last", str(home), "--json").json
    assert Path(moved["path"]).exists() and moved["cwd"] == str(home)
    (item,) = sessile("ls", "Retries at last", "--json").json["items"]
    assert (item["title"], item["project"]) == ("Retries at last", str(home))


def test_a_name_that_nobody_sees_is_refused_with_a_way_out(sessile: Command, demo: Path) -> None:
    """Nothing is written, and the error says what a name needs."""
    (path,) = demo.rglob(f"*{WEBHOOK}.jsonl")
    before = path.read_bytes()
    done = sessile("rename", WEBHOOK, " ")
    assert done.code == 2 and "hint: pass a title" in done.err and path.read_bytes() == before


def test_other_agents_files_are_written_only_in_place(sessile: Command, pi_session: Path) -> None:
    """Without --in-place the command exits with code 7 and two suggestions; with it, only lines are appended."""
    before = pi_session.read_bytes()
    done = sessile("rename", "from pi", "Mine")
    assert done.code == 7 and "--in-place" in done.err and "fork" in done.err
    assert pi_session.read_bytes() == before
    assert sessile("rename", "from pi", "Mine", "--in-place").code == 0
    assert pi_session.read_bytes().startswith(before)
    assert "Mine" in sessile("ls").out
