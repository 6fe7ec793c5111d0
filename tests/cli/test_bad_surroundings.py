"""Failing surroundings: the catalog, the cache, the disk, memory, the terminal, and interruptions."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from builders import AT, answered, said
from sessile.core.visible import width
from sessions import dumps, header, snapshot, write_file

from .conftest import Command, apart, at_a_terminal, running

ROOT = os.geteuid() == 0
ENOUGH = 205  # megabytes that a command may use, whatever it reads
WEBHOOK = "6513270e"
DAMAGED = "00cc10cc"


def cache_of(home: Path) -> Path:
    """Return the cache folder of these tests."""
    return home.parent / "cache"


# -- the catalog and the cache


def _noise(catalog: Path) -> None:
    catalog.write_bytes(bytes(range(256)) * 300)


def _truncated(catalog: Path) -> None:
    os.truncate(catalog, catalog.stat().st_size // 2)


def _folder(catalog: Path) -> None:
    catalog.unlink()
    catalog.mkdir()
    (catalog / "something").write_text("of somebody")


def _other_version(catalog: Path) -> None:
    seal = catalog.with_name("catalog.seal")
    seal.write_bytes(seal.read_bytes().replace(b'"version":', b'"version":9'))


def _spoiled_inside(catalog: Path) -> None:
    content = bytearray(catalog.read_bytes())
    content[4096:20_000] = b"\xff" * (20_000 - 4096)
    catalog.write_bytes(content)


def _link(catalog: Path) -> None:
    catalog.rename(catalog.with_name("elsewhere"))
    catalog.symlink_to(catalog.with_name("elsewhere"))


SPOILED: dict[str, Callable[[Path], object]] = {
    "noise": _noise,
    "truncated": _truncated,
    "empty": lambda catalog: catalog.write_bytes(b""),
    "gone": lambda catalog: catalog.unlink(),
    "folder": _folder,
    "other version": _other_version,
    "spoiled inside": _spoiled_inside,
    "link": _link,
    "no seal": lambda catalog: catalog.with_name("catalog.seal").unlink(),
    "seal of noise": lambda catalog: catalog.with_name("catalog.seal").write_bytes(b"\xff\x00{"),
}


def test_a_spoiled_catalog_changes_no_answer(sessile: Command, home: Path, demo: Path) -> None:
    """The catalog is a cache: listing, searching and statistics return the same results without it."""
    asked = [["ls", "--sort", "cost", "-A"], ["search", "tenacity", "-o"], ["stats", "models"]]
    before = [sessile(*question).out for question in asked]
    assert all(before)
    cache = cache_of(home)
    sound = cache.rename(cache.with_name("sound"))
    for how, spoil in SPOILED.items():
        shutil.copytree(sound, cache)
        spoil(cache / "catalog.db")
        for _ in range(2):
            done = [sessile(*question) for question in asked]
            assert [each.out for each in done] == before, how
            assert all(each.code == 0 and "Traceback" not in each.err for each in done), how
        shutil.rmtree(cache)


def test_a_catalog_that_somebody_holds_makes_nobody_wait_for_long(home: Path, demo: Path, tmp_path: Path) -> None:
    """While another process holds the lock, the result is complete, with a note, within ten seconds."""
    cache = cache_of(home)
    cache.mkdir(mode=0o700)
    with open(cache / "catalog.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        began = time.monotonic()
        done = apart(tmp_path / "report", "ls", "--json")
        took = time.monotonic() - began
    assert done.code == 0 and len(json.loads(done.out)["items"]) > 30
    assert "note: " in done.err and took < 10


@pytest.mark.parametrize("what", ["file", "read-only", "link to nowhere", "device"])
def test_a_cache_that_cannot_be_used_is_said_and_done_without(
    sessile: Command, home: Path, demo: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Listing, searching and reading work, and no file of the user is touched."""
    cache = cache_of(home)
    if what == "file":
        cache.write_text("a file of somebody")
    elif what == "link to nowhere":
        cache.symlink_to(home / "nowhere")
    elif what == "device":
        monkeypatch.setenv("SESSILE_CACHE", "/dev/null")
    else:
        if ROOT:
            pytest.skip("nothing is read-only for root")
        cache.mkdir()
        cache.chmod(0o500)
    before = snapshot(demo)
    for arguments in (["ls"], ["search", "tenacity"], ["show", WEBHOOK], ["tree", WEBHOOK], ["stats", "tools"]):
        done = sessile(*arguments)
        assert done.code == 0 and done.out, (arguments, done)
    assert "note: " in sessile("ls").err
    assert "warning" in sessile("doctor").out
    assert snapshot(demo) == before
    if what == "file":
        assert cache.read_text() == "a file of somebody"


# -- the disk


@pytest.mark.parametrize(
    "arguments", [["ls"], ["search", "tenacity"], ["stats", "tools"], ["tree", WEBHOOK], ["show", WEBHOOK]]
)
def test_looking_needs_no_room_on_the_disk(home: Path, demo: Path, tmp_path: Path, arguments: list[str]) -> None:
    """Reading verbs succeed on a full disk."""
    done = apart(tmp_path / "report", *arguments, limit=0)
    assert done.code == 0 and done.out and "Traceback" not in done.err, done


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        (["export", WEBHOOK, "-o", "out.html"], 4096),
        (["export", WEBHOOK, "-t", "md", "-o", "out.md"], 100),
        (["export", WEBHOOK, "-o", "out.txt", "--report", "report.json"], 1000),
        (["label", f"{WEBHOOK}#9f31c2a0", "fresh"], 1000),
        (["rename", WEBHOOK, "Fresh"], 1000),
        (["branch", f"{WEBHOOK}#9f31c2a0"], 1000),
        (["fork", WEBHOOK], 1000),
        (["repair", DAMAGED, "--apply"], 1000),
        (["pin", WEBHOOK], 0),
        (["sources", "add", "."], 0),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_writing_to_a_full_disk_fails_and_loses_nothing(
    sessile: Command, home: Path, demo: Path, tmp_path: Path, arguments: list[str], limit: int
) -> None:
    """The command exits with the storage code and a hint, leaves no partial file, and keeps all existing bytes."""
    before = {path: kept for path, (_, _, kept) in snapshot(demo / "sessions").items()}
    done = apart(tmp_path / "report", *arguments, limit=limit)
    assert done.code == 8 and "Traceback" not in done.err, done
    assert "sessile: " in done.err and "hint: " in done.err
    after = {path: kept for path, (_, _, kept) in snapshot(demo / "sessions").items()}
    assert {path: after[path] for path in before} == before
    assert [path.name for path in home.iterdir() if path.name not in (".sessile",)] == []
    assert sessile("check", WEBHOOK).code == 0


def test_output_that_has_nowhere_to_go_is_an_error(home: Path, demo: Path) -> None:
    """A full disk behind stdout is reported on stderr; a closed stdout is not an error."""
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    for arguments in (["ls"], ["show", WEBHOOK, "--json"], ["export", WEBHOOK, "-o", "-"], ["--help"]):
        command = [sys.executable, "-m", "sessile.cli.main", *arguments]
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 8 and "No space left" in done.stderr and "Traceback" not in done.stderr


# -- streams and terminals


@pytest.mark.parametrize("closing", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_crash(home: Path, demo: Path, closing: str) -> None:
    """With any of the three streams closed, the exit code is right and there is no traceback."""
    for arguments, code in {"ls": 0, "show zzzz-nothing": 3, "show -": 2, "resume --print": 3}.items():
        command = f"{sys.executable} -m sessile.cli.main {arguments} {closing}"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == code and "Traceback" not in done.stderr, done


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
def test_another_alphabet_is_no_crash(home: Path, demo: Path, tmp_path: Path, encoding: str) -> None:
    """Every verb succeeds with an output encoding that lacks some characters."""
    for arguments in (["ls"], ["tree", WEBHOOK], ["show", "购物车"], ["search", "购物车"]):
        done = apart(tmp_path / "report", *arguments, environment={"PYTHONIOENCODING": encoding})
        assert done.code == 0 and done.out and "Traceback" not in done.err, (arguments, done)


def test_a_dumb_terminal_gets_no_sequences(home: Path, demo: Path) -> None:
    """With TERM=dumb there are no colours, progress bars or cursor movements."""
    for arguments in (["ls"], ["search", "tenacity"], ["show", WEBHOOK, "--no-pager"], []):
        assert "\x1b" not in at_a_terminal(arguments, {"TERM": "dumb", "NO_COLOR": ""}), arguments


@pytest.mark.parametrize(
    "columns", [1, 100, *(pytest.param(columns, marks=pytest.mark.long) for columns in (60, 1000))]
)
def test_no_line_is_wider_than_the_terminal(home: Path, demo: Path, columns: int) -> None:
    """Lines fit the terminal, with a minimum of 40 columns."""
    for arguments in (["ls"], ["ls", "-l", "-A"], ["stats", "models"], ["du"], ["search", "tenacity"], []):
        environment = {"COLUMNS": str(columns), "LINES": "50", "NO_COLOR": "1"}
        printed = at_a_terminal(arguments, environment, notes=False)
        assert printed and max(map(width, printed.splitlines())) <= max(40, columns), (arguments, printed)


@pytest.mark.parametrize(
    ("environment", "code"),
    [({"HOME": ""}, 0), ({"HOME": "relative/path"}, 2), ({"HOME": "/nowhere/at/all"}, 0), ({"HOME": "/dev/null"}, 0)],
    ids=lambda value: value.get("HOME") if isinstance(value, dict) else "",
)
def test_a_home_that_is_none(home: Path, tmp_path: Path, environment: Mapping[str, str], code: int) -> None:
    """Reading works without an existing home and creates nothing; an invalid home is a usage error."""
    done = apart(tmp_path / "report", environment=environment)
    assert done.code == code and "Traceback" not in done.err, done
    assert not Path("/nowhere").exists()


def test_a_home_that_nothing_can_be_written_to(home: Path, tmp_path: Path) -> None:
    """Writing fails with the storage code and names the path."""
    failed = apart(tmp_path / "report", "sources", "add", str(tmp_path), environment={"HOME": "/dev/null"})
    assert failed.code == 8 and "/dev/null" in failed.err and "hint: " in failed.err


# -- interruptions


def large(path: Path, entries: int, text: str = "some words of a prompt ") -> str:
    """Write a session with the given number of entries, as fast as possible."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(dumps(header("a1a1a1a1-large")) + "\n")
        parent = None
        for number in range(entries):
            made = said(f"{number:08x}", parent, f"{text}{number}") if number % 2 else answered(f"{number:08x}", parent)
            file.write(json.dumps(made) + "\n")
            parent = made["id"]
    return str(path)


def wait_for(there: Callable[[], bool], run: subprocess.Popen[str]) -> None:
    """Wait until a condition holds; the process must still be running."""
    deadline = time.monotonic() + 30
    while not there():
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)


def interrupted(run: subprocess.Popen[str]) -> None:
    """Send Ctrl-C and assert that the process ends at once with its message and exit code."""
    began = time.monotonic()
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=20)
    assert run.returncode == 130 and "interrupted" in err and "Traceback" not in err, err
    assert time.monotonic() - began < 15


def test_interrupting_an_export_leaves_nothing_behind(home: Path, tmp_path: Path) -> None:
    """There is no partial or temporary file, and the session is unchanged."""
    path = large(home / "x.jsonl", 20_000)
    before = Path(path).read_bytes()
    with running("export", path, "-o", "out.html") as run:
        wait_for(lambda: any(home.glob("*out.html*")), run)
        interrupted(run)
    assert [each.name for each in home.iterdir()] == ["x.jsonl"]
    assert Path(path).read_bytes() == before


def test_interrupting_the_indexing_leaves_a_usable_index(home: Path, tmp_path: Path) -> None:
    """The part that was indexed stays, and the next search continues and finds everything."""
    folder = home / ".pi/agent/sessions/--w--"
    folder.mkdir(parents=True)
    for number in range(12):
        content = Path(large(folder / f"{number}.jsonl", 3000)).read_text().replace("a1a1a1a1", f"{number:08}")
        (folder / f"{number}.jsonl").write_text(content.replace('prompt 1"', f'needle {number}"'))
    with running("search", "needle") as run:
        catalog = cache_of(home) / "catalog.db"
        wait_for(lambda: catalog.exists() and catalog.stat().st_size > 300_000, run)
        interrupted(run)
    done = apart(tmp_path / "report", "search", "needle", "-o")
    assert done.code == 0 and len(done.out.splitlines()) == 12


def test_interrupting_what_follows_is_how_it_ends(home: Path) -> None:
    """Ctrl-C is the normal way to end it, not a failure."""
    path = write_file(home / "x.jsonl", header("followed"), said("e1", None, "the beginning"))
    with running("show", path, "-f") as run:
        assert run.stderr is not None and "following" in run.stderr.readline()
        interrupted(run)


@pytest.mark.parametrize(
    "arguments", ["show x.jsonl", "export x.jsonl -o -", "export x.jsonl -t jsonl -o -", "show x.jsonl --json"]
)
def test_a_reader_who_has_seen_enough_is_no_error(home: Path, demo: Path, arguments: str) -> None:
    """A pipe that is closed early causes no message, and the exit code is that of a closed pipe."""
    large(home / "x.jsonl", 3000)
    command = f"{sys.executable} -m sessile.cli.main {arguments}"
    done = subprocess.run(["sh", "-c", f"({command}; echo $? >&2) | head -c 10"], capture_output=True, text=True)
    codes = [line for line in done.stderr.splitlines() if line.isdecimal()]
    assert codes == ["141"] and "Traceback" not in done.stderr and "Broken" not in done.stderr, done


# -- memory and time


@pytest.mark.parametrize("content", ["zeros", pytest.param("text", marks=pytest.mark.long)])
def test_a_line_of_200_megabytes_is_a_finding_and_takes_no_memory(home: Path, tmp_path: Path, content: str) -> None:
    """The line is over the limit: its position is reported, and the lines around it are shown, searched and exported."""
    path = home / ".sessile/sessions/--w--/x.jsonl"
    path.parent.mkdir(parents=True, mode=0o700)
    with open(path, "wb") as file:
        file.write((dumps(header("b1b1b1b1")) + "\n" + dumps(said("e1", None, "before it")) + "\n").encode())
        file.write(
            f'{{"type":"message","id":"e2","parentId":"e1","timestamp":"{AT}","message":{{"role":"user","content":"'.encode()
        )
        if content == "zeros":
            file.seek(200_000_000, os.SEEK_CUR)
        else:
            for _ in range(200):
                file.write(b"word " * 200_000)
        file.write(b'"}}\n' + (dumps(said("e3", "e1", "behind it")) + "\n").encode())
    size = path.stat().st_size
    cases = {"ls": 0, "show b1b1": 5, "tree b1b1": 5, "context b1b1": 5, "search behind": 0, "search -F behind": 0}
    cases |= {"export b1b1 -o -": 5, "export b1b1 -t jsonl -o -": 5, "check b1b1": 5, "secrets b1b1": 5}
    for arguments, code in cases.items():
        done = apart(tmp_path / "report", *arguments.split())
        assert done.code == code and "Traceback" not in done.err, (arguments, done)
        assert done.megabytes is not None and done.megabytes < ENOUGH, arguments
        assert "over the limit" in done.out + done.err or arguments in ("ls", "search behind", "check b1b1"), arguments
        if arguments not in ("check b1b1", "secrets b1b1", "ls"):
            assert "behind it" in done.out, arguments
    assert path.stat().st_size == size


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        ("tree", 20),
        ("tree --full", 60),
        ("show --tail 5", 15),
        ("show", 60),
        ("show --json", 30),
        ("context", 60),
        ("export -t html -o -", 150),
        ("export -t md -o -", 150),
        ("check", 20),
    ],
)
def test_a_session_of_100_000_entries_fits(home: Path, tmp_path: Path, arguments: str, seconds: int) -> None:
    """Every verb that reads the whole session stays within the memory and time limits."""
    path = large(home / "x.jsonl", 100_000)
    verb, *options = arguments.split()
    began = time.monotonic()
    done = apart(tmp_path / "report", verb, path, *options)
    assert done.code == 0 and done.out
    assert done.megabytes is not None and done.megabytes < ENOUGH
    assert time.monotonic() - began < seconds


def test_a_session_of_20_000_entries_is_read_in_little_memory(home: Path, tmp_path: Path) -> None:
    """Showing, checking and drawing the tree stay below 60 MB."""
    path = large(home / "x.jsonl", 20_000, "many words " * 100)
    for arguments in (["tree", path], ["show", path, "--tail", "5"], ["show", path, "--json"], ["check", path]):
        done = apart(tmp_path / "report", *arguments)
        assert done.code == 0 and done.megabytes is not None and done.megabytes < 60, (arguments[0], done.megabytes)
