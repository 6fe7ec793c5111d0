"""`sessile keep`, and the warnings about sessions that will be deleted soon."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from sessile import Store

from .conftest import NOW, Command, apart, at_a_terminal
from .test_conventions import _loaded_by as loaded_by
from .test_converting import ROWS, SESSION

OTHER = "1f4e8b1c-2d3a-4c5b-8e6f-7a8b9c0d1e2f"
WARNING = "1 session of claude expires within 7 days; keep it: sessile keep"


def write(home: Path, age: float, session: str = SESSION) -> Path:
    """Write a Claude Code session with a tool result that was last changed the given number of days ago."""
    path = home / ".claude" / "projects" / "-work" / f"{session}.jsonl"
    (path.parent / session / "tool-results").mkdir(parents=True, exist_ok=True)
    (path.parent / session / "tool-results" / "1.txt").write_text("all of it")
    rows = ({"timestamp": "2026-05-01T10:00:00.000Z", **row, "sessionId": session} for row in ROWS)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    then = time.time() - age * 86400
    os.utime(path, (then, then))
    return path


@pytest.fixture
def old(home: Path) -> Path:
    """Return a session that Claude Code would delete in five days."""
    return write(home, 25)


def state(folder: Path) -> dict[str, Any]:
    return {str(path): (path.is_file() and path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.mark.mission("B7")
def test_keep_copies_what_expires_and_is_quiet_the_next_time(sessile: Command, old: Path, home: Path) -> None:
    """The written files are on stdout, and nothing in Claude Code's folder changes."""
    young = write(home, 3, OTHER)
    before = state(home / ".claude")
    done = sessile("keep")
    kept = home / ".sessile" / "kept" / "claude" / "-work"
    assert done.code == 0
    assert done.out.splitlines() == [str(kept / SESSION / "tool-results" / "1.txt"), str(kept / old.name)]
    assert "kept 1 session, " in done.err and "~/.sessile/kept" in done.err
    assert (kept / old.name).read_bytes() == old.read_bytes()
    assert not (kept / young.name).exists()
    assert sessile("keep") == (0, "", "")
    assert state(home / ".claude") == before


def test_nothing_to_keep_is_no_error_and_says_so_to_a_person_only(sessile: Command, home: Path, tmp_path: Path) -> None:
    """Without a terminal the command prints nothing, which suits a daily job; it creates nothing in an empty home."""
    assert sessile("keep") == (0, "", "")
    assert list(home.iterdir()) == []
    assert apart(tmp_path / "report", "keep")[:3] == (0, "", "")
    assert "nothing to keep" in at_a_terminal(["keep"], {})


def test_the_span_all_and_names_choose_sessions(sessile: Command, home: Path) -> None:
    """A time span, --all or a name can be given; a name together with --all is refused."""
    write(home, 20)
    write(home, 3, OTHER)
    kept = home / ".sessile" / "kept" / "claude" / "-work"
    assert sessile("keep").out == ""
    assert sessile("keep", "--within", "14d").out.splitlines()[-1] == str(kept / f"{SESSION}.jsonl")
    assert sessile("keep", "--all").out.splitlines()[-1] == str(kept / f"{OTHER}.jsonl")
    assert sessile("keep", "--all").out == ""
    third = "3f4e8b1c-2d3a-4c5b-8e6f-7a8b9c0d1e2f"
    write(home, 0, third)
    assert sessile("keep", third[:8]).out.splitlines()[-1] == str(kept / f"{third}.jsonl")
    assert sessile("keep", third[:8], "--all").code == 2
    assert sessile("keep", "--within", "soon").code == 2
    assert sessile("keep", "nothing-like-it").code == 3


def test_keep_has_a_document(sessile: Command, old: Path, home: Path) -> None:
    """The JSON lists the copies and their expiry dates; a second run lists none."""
    document = sessile("keep", "--json").json
    (item,) = document["items"]
    assert document["schema"] == "sessile.keep/1" and document["failed"] == []
    assert (item["id"], item["agent"], item["path"]) == (SESSION, "claude", str(old))
    assert item["copy"] == str(home / ".sessile" / "kept" / "claude" / "-work" / old.name)
    assert len(item["written"]) == 2 and item["unchanged"] == 0 and item["bytes"] == old.stat().st_size + 9
    expected = time.strftime("%Y-%m-%d", time.gmtime(old.stat().st_mtime + 30 * 86400))
    assert item["deadline"].startswith(expected)
    assert sessile("keep", "--json").json == {"schema": "sessile.keep/1", "items": [], "failed": []}


def test_what_cannot_be_kept_is_told_and_the_others_are_kept(sessile: Command, old: Path, demo: Path) -> None:
    """A native session needs no copy; the exit code reports that something was not kept."""
    done = sessile("keep", "6513270e", SESSION)
    assert done.code == 7 and "your own store" in done.err
    assert old.name in done.out


def test_listings_warn_until_the_sessions_are_kept(sessile: Command, old: Path, home: Path) -> None:
    """`ls` prints a line; the first screen and `sources` warn in the agent's row."""
    assert WARNING in sessile("ls").err.splitlines()
    assert WARNING in sessile("ls", "--json").err.splitlines()
    told = "1 expires within 7 days → sessile keep"
    assert told in at_a_terminal([], {"COLUMNS": "120"})
    assert told in at_a_terminal(["sources"], {"COLUMNS": "120"})
    (_, claude) = sessile("sources", "--json").json["items"]
    assert (claude["agent"], claude["expiring"], claude["kept"]) == ("claude", 1, False)
    sessile("keep")
    assert "expire" not in sessile("ls").err + sessile().err
    (own, claude, kept) = sessile("sources", "--json").json["items"]
    assert (own["expiring"], claude["expiring"], kept["expiring"]) == (None, 0, None)
    assert (kept["agent"], kept["kept"], kept["sessions"]) == ("claude", True, 0)


def test_copies_that_are_not_listed_are_counted_where_somebody_wants_all(sessile: Command, old: Path) -> None:
    """A session with a copy is listed once, as its original."""
    sessile("keep")
    done = sessile("ls", "-A")
    assert done.out.count(SESSION) == 1
    assert "… 1 kept copy is not listed: its original is" in done.err
    assert "1 kept copy is not listed" in sessile("sources").err


def test_a_period_that_cannot_be_told_is_said(sessile: Command, old: Path, home: Path) -> None:
    """A warning is printed that suggests `keep --all`; the number of expiring sessions is null, not zero."""
    (home / ".claude" / "settings.json").write_text('{"cleanupPeriodDays": 0}')
    for arguments in (["ls"], ["sources"], ["keep"], []):
        told = sessile(*arguments).err
        assert "unknown when claude deletes" in told and "~/.claude/settings.json" in told, arguments
        assert "sessile keep --all" in told
    assert sessile("sources", "--json").json["items"][1]["expiring"] is None
    assert old.name in sessile("keep", "--all").out


def test_settings_in_a_repository_of_dotfiles_are_followed(sessile: Command, old: Path, home: Path) -> None:
    """A symbolic link to the settings file is followed."""
    (home / "dotfiles").mkdir()
    (home / "dotfiles" / "claude.json").write_text('{"cleanupPeriodDays": 365}')
    (home / ".claude" / "settings.json").symlink_to(home / "dotfiles" / "claude.json")
    assert "expire" not in sessile("ls").err and "unknown" not in sessile("ls").err


@pytest.mark.mission("B1")
def test_a_kept_session_lives_on_when_its_owner_has_deleted_it(sessile: Command, old: Path, home: Path) -> None:
    """It can be listed, shown, searched, imported, forked and resumed: it is put back first."""
    content = old.read_bytes()
    sessile("keep")
    old.unlink()
    (item,) = sessile("ls", "--json").json["items"]
    assert (item["id"], item["agent"], item["format"]) == (SESSION, "claude", "claude")
    assert "/kept/claude/" in item["path"]
    assert "hello" in sessile("show", SESSION).out
    assert SESSION in sessile("search", "hello", "--json").out
    assert f"cp {item['path']} {old} && claude --resume {SESSION}\n" in sessile("resume", SESSION, "--print").out
    assert sessile("resume", SESSION, "--json").json["place"] == str(old) and not old.exists()
    assert sessile("fork", SESSION).code == 0
    assert Path(item["path"]).read_bytes() == content
    assert sessile("import", SESSION).code == 0
    assert sessile("convert", SESSION, "--to", "claude", "-o", str(home / "back.jsonl")).code == 0
    assert (home / "back.jsonl").read_bytes() == content
    assert "expire" not in sessile("ls").err


def test_a_copy_is_never_written_nor_pruned(sessile: Command, old: Path) -> None:
    """Renaming, labelling, pruning and keeping a copy again are refused, and its bytes stay the same."""
    sessile("keep")
    content = old.read_bytes()
    old.unlink()
    copy = sessile("ls", "--json").json["items"][0]["path"]
    for arguments in (
        ["rename", SESSION, "T", "--in-place"],
        ["label", f"{SESSION}#a1", "good", "--in-place"],
        ["prune", SESSION, "--apply"],
        ["keep", SESSION],
    ):
        done = sessile(*arguments)
        assert done.code == 7 and "kept" in done.err, arguments
    assert Path(copy).read_bytes() == content


def test_a_session_of_the_family_is_kept_by_its_name_and_put_back_to_be_resumed(sessile: Command, home: Path) -> None:
    """Its agent gets it back, because no agent may write to the archive."""
    store = Store(home / ".pi" / "agent", clock=lambda: NOW)
    with store.create("/work/app", title="From pi", publish=True) as session:
        session.append_message({"role": "user", "content": "hello"})
    assert sessile("keep", "--all").out == ""  # pi is not known to delete sessions
    assert sessile("keep", "from pi").code == 0
    Path(session.path).unlink()
    (item,) = sessile("ls", "--json").json["items"]
    assert (item["agent"], item["id"]) == ("pi", session.id) and "/kept/pi/" in item["path"]
    done = sessile("resume", session.id, "--print")
    assert done.code == 0 and done.out.endswith(f" && pi --session {session.path}\n")


def test_du_counts_what_is_kept(sessile: Command, old: Path) -> None:
    """Kept copies are a separate kind."""
    sessile("keep")
    assert sessile("du", "--json").json["store"]["kept_bytes"] == old.stat().st_size + 9


def test_a_warning_loads_nothing_that_copies(sessile: Command, old: Path) -> None:
    """A listing does not import the copying code; without the folder of such an agent, the rules are not loaded."""
    copying = ["sessile.storage.session_bytes", "sessile.cli.cleanup", "json", "hashlib"]
    time.sleep(0.1)  # files that have just changed are read again the next time
    assert WARNING in sessile("ls").err
    assert loaded_by(["ls"], copying) == []
    shutil.rmtree(old.parents[2])
    assert loaded_by(["ls"], ["sessile.upkeep.keep"]) == []
