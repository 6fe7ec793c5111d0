"""Invalid input: unknown and ambiguous names, files that are not sessions, and broken sessions."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders import answered, entry, said
from sessile import export
from sessile.core.secret_shapes import fill
from sessile.storage import search
from sessions import header, write_file

from .conftest import Apart, Command, Done, apart, at_a_terminal

ROOT = os.geteuid() == 0
SECRET = fill("ghp_<w36>")
LOOKING = ("show", "tree", "context", "check", "doctor", "secrets")
LEAVING = [["export", "{}", "-t", form, "-o", "-"] for form in ("html", "md", "txt", "jsonl")]
WRITING = [
    ["fork", "{}"],
    ["resume", "{}"],
    ["pin", "{}"],
    ["rename", "{}", "title", "--in-place"],
    ["repair", "{}", "--apply", "--in-place"],
]
ALL = [*([verb, "{}"] for verb in LOOKING), *LEAVING, *WRITING]


def _short(arguments: list[str]) -> str:
    return "-".join(arguments[:1] + arguments[2:4])


@pytest.fixture
def pi(home: Path) -> Path:
    """Return the folder in which pi stores the sessions of a project."""
    folder = home / ".pi/agent/sessions/--work-app--"
    folder.mkdir(parents=True)
    return folder


def failed(done: Done | Apart, code: int, told: str) -> None:
    """Assert the exit code, an error message and a hint, and no other output."""
    assert done.code == code, done
    assert "sessile: " in done.err and told in done.err and "Traceback" not in done.err, done


# -- names


@pytest.mark.parametrize("verb", LOOKING)
def test_an_unknown_id_is_not_found(sessile: Command, pi: Path, verb: str) -> None:
    """The message repeats the id, the hint says where to look, and stdout is empty."""
    done = sessile(verb, "0123456789ab")
    failed(done, 3, '"0123456789ab"')
    assert "hint: run `sessile ls`" in done.err and done.out == ""


def test_an_ambiguous_prefix_lists_candidates_newest_first(sessile: Command, pi: Path) -> None:
    """Candidates have titles and projects, as text and as JSON; a longer prefix is accepted."""
    for number in range(3):
        path = write_file(pi / f"{number}.jsonl", header(f"abcd000{number}", title=f"Title {number}"), said("e1", None))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    done = sessile("show", "abcd")
    failed(done, 4, "ambiguous (3)")
    lines = [line.split() for line in done.err.splitlines() if line.startswith("  ")]
    assert [line[0] for line in lines] == ["abcd0002", "abcd0001", "abcd0000"]
    report = json.loads(sessile("show", "abcd", "--json").err)["error"]
    assert (report["kind"], report["candidates"][0]["title"]) == ("ambiguous", "Title 2")
    assert report["hint"] and len(report["candidates"]) == 3
    assert sessile("show", "abcd0001").code == 0


def test_of_very_many_candidates_the_newest_are_listed_and_the_rest_counted(sessile: Command, pi: Path) -> None:
    """The list is limited, and the message says how many candidates are missing."""
    for number in range(30):
        write_file(pi / f"{number}.jsonl", header(f"abcd{number:04}", title="x" * 5000), said("e1", None))
    done = sessile("show", "abcd")
    failed(done, 4, "ambiguous (30; the newest 20 are listed)")
    assert len([line for line in done.err.splitlines() if line.startswith("  ")]) == 20
    assert max(map(len, done.err.splitlines())) < 250


@pytest.mark.parametrize(
    ("name", "code"),
    [("", 2), (" ", 2), ("#", 2), ("#e1", 2), ("@", 3), ("@last-1", 3), ("@here", 3), ("@last-9999999999", 3)],
)
def test_a_name_that_means_nothing_is_said_to(sessile: Command, pi: Path, name: str, code: int) -> None:
    """An empty name is a usage error; an unknown name is not found."""
    for verb in LOOKING:
        done = sessile(verb, name)
        failed(done, code, "session")
        assert "hint: " in done.err, (verb, done)


@pytest.mark.parametrize(
    "name", ["\x1b]0;owned\x07", "a\rb\nc", "\u202egnp", "x\x00y", "\udcff\udcfe\udcff\udcff", "x" * 10_000]
)
def test_a_name_of_control_characters_is_shown_without_them(sessile: Command, pi: Path, name: str) -> None:
    """The name is not found, and the message escapes its control characters."""
    done = sessile("show", name)
    failed(done, 3, "session not found")
    assert all(char.isprintable() for line in done.err.splitlines() for char in line)
    assert max(map(len, done.err.splitlines())) < 400


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "%2e%2e/", "..%2f..%2fetc", "/etc/../etc/nothing", "a\0b/c", "~nobody/x"]
)
def test_names_that_look_like_paths_lead_nowhere_else(sessile: Command, pi: Path, name: str) -> None:
    """The name is not decoded or resolved to another file, and is not found."""
    failed(sessile("show", name), 3, "file not found" if "/" in name else "session not found")


def test_names_from_stdin_are_as_good_as_others(home: Path, pi: Path, tmp_path: Path) -> None:
    """Empty input, an empty line, a NUL and an unknown name are reported without a traceback."""
    for given, code in (("", 2), ("\n\n", 2), ("a\0b\n", 3), ("nothing-like-it\tmore\n", 3)):
        failed(apart(tmp_path / "report", "show", "-", stdin=given), code, "session")


# -- files that are not sessions


def _folder(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path.with_name("other.jsonl"))
    path.with_name("other.jsonl").symlink_to(path)


def _socket(path: Path) -> None:
    os.chdir(path.parent)  # paths of sockets must be short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)


NO_SESSIONS: dict[str, Callable[[Path], object]] = {
    "folder": _folder,
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": _loop,
    "dangling": lambda path: path.symlink_to("nowhere"),
    "socket": _socket,
}


@pytest.mark.parametrize("kind", NO_SESSIONS)
@pytest.mark.parametrize("arguments", ALL, ids=_short)
def test_what_is_no_file_is_no_session(sessile: Command, home: Path, kind: str, arguments: list[str]) -> None:
    """The command does not block on a pipe, read a device to its end or follow circular links."""
    path = home / "x.jsonl"
    NO_SESSIONS[kind](path)
    done = sessile(*(argument.format(path) for argument in arguments))
    failed(done, 3 if kind == "dangling" else 5, str(path))
    assert "hint: " in done.err and done.out == ""
    assert not (home / ".sessile").exists()


ELSE = {
    "nothing": b"",
    "noise": hashlib.shake_256(b"noise").digest(100_000),
    "picture": b"\x89PNG\r\n" * 100,
    "list": b"[1, 2, 3]\n",
    "zeros": b"\0" * 5000,
    "braces": b"{" * 5000,
}


@pytest.mark.parametrize("kind", ELSE)
@pytest.mark.parametrize("arguments", [a for a in ALL if a[0] not in ("rename", "repair")], ids=_short)
def test_a_file_of_something_else_is_no_session(sessile: Command, home: Path, kind: str, arguments: list[str]) -> None:
    """The command exits with the code for damage and leaves the file unchanged."""
    path = home / "x.jsonl"
    path.write_bytes(ELSE[kind])
    done = sessile(*(argument.format(path) for argument in arguments))
    assert done.code == 5 and "Traceback" not in done.err and str(path) in done.out + done.err
    assert path.read_bytes() == ELSE[kind]


def test_a_link_to_a_session_is_followed_when_somebody_names_it(sessile: Command, home: Path, pi: Path) -> None:
    """A named link is followed; file names may contain # and @."""
    write_file(home / "c#@x.jsonl", header("abcdef01"), said("e1", None, "here I am"))
    (home / "link.jsonl").symlink_to(home / "c#@x.jsonl")
    for name in ("link.jsonl", "./c#@x.jsonl", "./c#@x.jsonl#e1"):
        assert "here I am" in sessile("show", name).out, name


@pytest.mark.skipif(ROOT, reason="nothing is unreadable for root")
def test_what_cannot_be_read_is_said_and_does_not_hide_the_rest(sessile: Command, pi: Path) -> None:
    """An unreadable file and an unreadable folder are reported, and readable sessions beside them are listed."""
    write_file(pi / "good.jsonl", header("good0001"), said("e1", None, "a needle"))
    bad = Path(write_file(pi / "bad.jsonl", header("bad00001"), said("e1", None)))
    closed = pi.parent / "--closed--"
    closed.mkdir()
    bad.chmod(0)
    closed.chmod(0)
    try:
        listed = sessile("ls")
        assert listed.code == 0 and "good0001" in listed.out and "1 unreadable" in listed.err
        for arguments in (["ls"], ["search", "needle"], ["check"], ["sources"], ["du"], []):
            assert f"the folder {closed} cannot be read" in sessile(*arguments).err, arguments
        assert "permissions" in sessile("doctor").out
        failed(sessile("show", str(bad)), 8, "Permission denied")
        assert "needle" in sessile("search", "needle").out
        assert str(bad) in sessile("doctor").err
    finally:
        bad.chmod(0o600)
        closed.chmod(0o700)


# -- sessions that are broken


def broken(path: Path) -> str:
    """Return a session with a cycle, a missing parent, a duplicate id and a parent that comes later."""
    return write_file(
        path,
        header("broken01"),
        said("a", "b", "in a circle"),
        said("b", "a", "in a circle too"),
        said("c", "nowhere", "an orphan"),
        said("d", "c", "first of that id"),
        answered("d", "c"),
        said("e", "f", "before its parent"),
        said("f", "d"),
        said("g", "g", "its own parent"),
        entry("label", "h", "f", targetId="gone", label="of nothing"),
        entry("compaction", "i", "f", summary="s", firstKeptEntryId="gone", tokensBefore=1),
        said("j", "i", "the last one"),
    )


@pytest.mark.parametrize(
    "arguments",
    [*ALL[:-5], ["diff", "{}"], ["tree", "{}", "--full"], ["show", "{}", "--branch", "all"]],
    ids=_short,
)
@pytest.mark.parametrize("form", ["", "--json"])
def test_circles_orphans_and_doubles_are_shown_as_far_as_they_go(
    sessile: Command, home: Path, arguments: list[str], form: str
) -> None:
    """Every verb ends, reports the damage, shows what can be read, and changes nothing."""
    path = broken(home / "x.jsonl")
    before = Path(path).read_bytes()
    done = sessile(*(argument.format(path) for argument in arguments), *([form] if form else []))
    assert done.code in (0, 1, 5) and "Traceback" not in done.err, done
    assert done.out or arguments[0] == "secrets"
    assert Path(path).read_bytes() == before
    if form and arguments[0] != "export":
        json.loads(done.out)


def test_thousands_of_findings_are_counted_not_told(sessile: Command, home: Path) -> None:
    """Few findings are shown and the rest is counted; `check` groups them by kind."""
    path = write_file(home / "x.jsonl", header("damaged1"), said("e1", None, "still here"), *["{broken"] * 20_000)
    done = sessile("show", path)
    assert done.code == 5 and "still here" in done.out
    assert len(done.err.splitlines()) <= 5 and "more findings" in done.err
    checked = sessile("check", path)
    assert checked.code == 5 and "19,000 more of this kind" in checked.out


def test_a_title_of_a_megabyte_is_cut_at_a_terminal_and_whole_in_documents(
    home: Path, pi: Path, sessile: Command
) -> None:
    """Lines at a terminal stay short in every verb; JSON has the whole title."""
    title = "title " * 200_000
    named = entry("session_info", "e2", "e1", name=title)
    write_file(pi / "x.jsonl", header("longname", title=title[:900_000]), said("e1", None, "a needle"), named)
    for arguments in (
        ["ls"],
        ["ls", "-l"],
        ["search", "needle"],
        ["tree", "longname"],
        ["du"],
        [],
        ["stats", "projects"],
    ):
        printed = at_a_terminal(arguments, {"COLUMNS": "80", "NO_COLOR": "1"})
        assert printed and max(map(len, printed.splitlines())) <= 250, arguments
    assert len(at_a_terminal(["show", "longname", "--no-pager"], {"COLUMNS": "80", "NO_COLOR": "1"})) < 3 * len(title)
    [item] = sessile("ls", "--json").json["items"]
    assert item["title"].startswith("title title")


def test_ten_thousand_labels_are_all_there(sessile: Command, home: Path) -> None:
    """The newest label of an entry wins, and the tree shows it."""
    labels = [
        entry("label", f"l{n}", f"l{n - 1}" if n else "e1", targetId="e1", label=f"name-{n}") for n in range(10_000)
    ]
    path = write_file(home / "x.jsonl", header("labelled"), said("e1", None, "much named"), *labels)
    assert "much named" in sessile("show", f"{path}@name-9999").out
    assert sessile("show", f"{path}@name-1").code == 3
    assert "[name-9999]" in sessile("tree", path).out
    assert sessile("export", path, "-t", "txt", "-o", "-").code == 0


# -- sessions that change while they are read


def test_a_session_that_grows_while_it_is_exported_is_whole(
    sessile: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries appended during an export are included or not, but never cut, and secrets are always redacted."""
    path = write_file(
        home / "x.jsonl", header("growing1"), *(said(f"e{n}", f"e{n - 1}" if n else None) for n in range(200))
    )
    original = export.Export._entries

    def growing(self: export.Export) -> object:
        for number, each in enumerate(original(self)):
            if number == 50:
                with open(path, "a") as file:
                    file.write(json.dumps(said("late", "e199", SECRET)) + "\n")
            yield each

    monkeypatch.setattr(export.Export, "_entries", growing)
    done = sessile("export", path, "-t", "jsonl", "-o", "-")
    assert done.code in (0, 5)
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [line["id"] for line in lines[:201]] == ["growing1", *(f"e{n}" for n in range(200))]
    assert SECRET not in done.out


def test_a_session_that_is_deleted_or_replaced_while_it_is_followed(home: Path, tmp_path: Path) -> None:
    """A deleted session ends the command with the code for "not found"; a replaced one is followed further."""
    path = write_file(home / "x.jsonl", header("followed"), said("e1", None, "the beginning"))
    command = [sys.executable, "-m", "sessile.cli.main", "show", path, "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stderr is not None
        assert "following" in run.stderr.readline()
        replacement = tmp_path / "new.jsonl"
        write_file(
            replacement, header("followed"), said("e1", None, "the beginning"), said("e2", "e1", "from the new file")
        )
        os.replace(replacement, path)
        printed: list[str] = []
        while "from the new file" not in "".join(printed):
            printed.append(run.stdout.readline())
            assert printed[-1], run.stderr.read()
        os.unlink(path)
        _, err = run.communicate(timeout=20)
    assert run.returncode == 3 and "moved or deleted" in err and "Traceback" not in err


def test_a_session_that_is_deleted_while_it_is_searched_is_left_out(
    sessile: Command, pi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other sessions are searched, and the message names the one that was not."""
    for number in range(3):
        write_file(pi / f"{number}.jsonl", header(f"search0{number}"), said("e1", None, "a needle"))
    sessile("ls")
    original = search.scan_file

    def vanishing(fs: Any, path: str, *arguments: Any, **options: Any) -> Any:
        if path.endswith("1.jsonl"):
            os.unlink(path)
        return original(fs, path, *arguments, **options)

    monkeypatch.setattr("sessile.storage.search.scan_file", vanishing)
    done = sessile("search", "-F", "needle")
    assert done.code == 0 and len(done.out.splitlines()) == 2
    assert "1.jsonl was not searched" in done.err


def test_it_waits_for_nobody(home: Path, pi: Path, tmp_path: Path) -> None:
    """With stdin closed, `resume` takes the last session of this folder instead of asking."""
    write_file(pi / "x.jsonl", header("resumed1", cwd=str(home)), said("e1", None))
    began = time.monotonic()
    done = apart(tmp_path / "report", "resume", "--print")
    assert done.code == 0 and "x.jsonl" in done.out and time.monotonic() - began < 10


def test_hints_name_the_verbs_of_the_store_that_was_asked(sessile: Command) -> None:
    """A hint repeats --demo, because the session is not in the default store."""
    asked = sessile("--demo", "show", "zzzz")
    assert asked.code == 3 and "hint: run `sessile --demo ls` to list the sessions" in asked.err
