"""Run every verb on a home with hostile text in every stored field, and under every umask.

A new verb must be added to `CALLS`, or to the few verbs that are tested elsewhere.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from figures import measured
from poisoned_home import PoisonedHome
from sessile import Store
from sessile.cli.main import VERBS
from sessile.upkeep.disk import disk_usage

from .conftest import Command

PROBE = "hostile \x1b[31m\x1b]0;owned\x07\x1b[?1003h\x9b2J\r\x08\x00\u202e\u2066\u200b\u2028 end"
DRIVING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

OWN, CLAUDE = "0e551011-0000-4000-8000-000000000000", "c1a0de00-0000-4000-8000-000000000000"
CODEX, MYAGENTS = "c0de0000-0000-4000-8000-000000000000", "a9e00000-0000-4000-8000-000000000000"
SESSIONS = (OWN, CLAUDE, CODEX, MYAGENTS)

# The order of the calls: read-only verbs come before verbs that write.
CALLS: list[tuple[str, ...]] = [
    ("ls", "-A"),
    ("ls", "--all-projects"),
    *(("show", session, "--depth", "all") for session in SESSIONS),
    ("show", "hostile"),
    ("show", PROBE.replace("\0", "")),
    *(("tree", session, "--full") for session in SESSIONS),
    *(("context", session) for session in SESSIONS),
    ("diff", OWN),
    ("diff", OWN, CLAUDE),
    ("search", "needle", "--in", "all"),
    ("search", "-F", "hostile", "--in", "all"),
    ("history", "hostile"),
    ("history",),
    *(("stats", what) for what in ("models", "tools", "projects", "sessions")),
    ("sources",),
    ("resume", OWN, "--print"),
    ("continue", "--print"),
    ("status",),
    ("status", "hostile"),
    ("sessions",),
    ("send", "--key", PROBE.replace("\0", ""), "hello"),
    *(("export", OWN, "-t", form, "-o", "-", "--depth", "all") for form in ("txt", "md")),
    ("export", CLAUDE, "-t", "md", "-o", "-", "--depth", "all"),
    ("export", OWN, "-t", "html", "-o", "out.html"),
    ("export", OWN, "-t", "jsonl", "-o", "out.jsonl"),
    ("convert", OWN, "--to", "claude", "-o", "converted.jsonl"),
    ("convert", CLAUDE, "--to", "native", "-o", "-"),
    ("secrets", "--personal"),
    ("du", "--orphans"),
    ("keep", CLAUDE),
    ("check", "--all"),
    ("check", OWN),
    ("doctor",),
    ("doctor", OWN),
    ("label", f"{OWN}#begin", PROBE.replace("\0", "")),
    ("rename", OWN, PROBE.replace("\0", "")),
    ("tag", OWN, PROBE.replace("\0", "")),
    ("tag", OWN),
    ("pin", OWN),
    ("pin", OWN, "--remove"),
    ("branch", f"{OWN}#begin", "--summary", PROBE.replace("\0", "")),
    ("fork", OWN),
    ("fork", CLAUDE),
    ("compact", OWN, PROBE.replace("\0", "")),
    ("import", CLAUDE),
    ("import", "codex"),
    ("sync", "other-store"),
    ("repair", OWN),
    ("repair", OWN, "--apply"),
    ("move", OWN, f"/work/{PROBE.replace(chr(0), '')}"),
    ("prune", "--older-than", "1d"),
    ("prune", OWN, "--apply"),
    ("trash",),
    ("undo",),
    ("prune", "--older-than", "1d", "--apply"),
    ("trash", "empty", "--apply"),
    ("prune", "--originals"),
    ("prune", "--leftovers"),
    ("erase", OWN),
    ("erase", OWN, "--yes"),
    ("completion", "bash"),
]
ELSEWHERE = {"serve": "test_serving.py", "mcp": "mcp_server", "demo": "test_conventions.py"}


@pytest.fixture
def hostile(home: Path) -> PoisonedHome:
    """Return a home with the probe in every field of every agent's files."""
    made = PoisonedHome(home, [0], corpus=[PROBE])
    for name, usual in (("own", ".sessile"), ("claude", ".claude"), ("codex", ".codex"), ("myagents", ".myagents")):
        (home / name).rename(home / usual)
    for folder, _, names in os.walk(home):
        os.chmod(folder, 0o700)
        for name in names:
            os.chmod(os.path.join(folder, name), 0o600)
    return made


def test_every_verb_is_called() -> None:
    """Every verb is in `CALLS` or in the list of verbs tested elsewhere."""
    verbs = {name for group in VERBS.values() for name in group}
    assert {call[0] for call in CALLS} == verbs - set(ELSEWHERE)


@pytest.mark.promise("P37")
@pytest.mark.promise("P47")
@pytest.mark.parametrize("how", ["", pytest.param("--plain", marks=pytest.mark.long), "--json"])
def test_no_verb_lets_stored_text_drive_the_terminal(
    sessile: Command, hostile: PoisonedHome, home: Path, how: str
) -> None:
    """No control characters are printed except newlines and the tabs of tables."""
    told = 0
    for call in CALLS:
        if call[0] == "completion" or (call[0] in ("export", "convert") and how == "--json"):
            continue
        done = sessile(*call, *([how] if how else []))
        printed = done.out + done.err
        assert done.code < 10 and "Traceback" not in printed, (call, printed[-2000:])
        if "-o" in call and call[-1] == "-" and "native" in call:
            printed = done.err  # raw bytes of a file
        assert not DRIVING.search(printed), (call, DRIVING.findall(printed), printed[:500])
        told += "hostile" in printed
        measured("P37", "hostile fields through every verb", calls=1, fields=len(hostile.pairs), control_characters=0)
    assert told > len(CALLS) // 2
    check_accounts(home)


def check_accounts(home: Path) -> None:
    """Check that every file below the root and the cache has an account after all verbs."""
    root = home / ".sessile"
    store = Store(root, cache=os.environ.get("SESSILE_CACHE") or home / ".cache" / "sessile")
    usage = disk_usage(store)
    seen = {}
    for top in (store.layout.root, store.layout.cache):
        for folder, _, names in os.walk(top):
            for name in names:
                status = os.lstat(f"{folder}/{name}")
                seen[status.st_dev, status.st_ino] = 0 if stat.S_ISLNK(status.st_mode) else status.st_size
    assert usage.total == sum(seen.values()) and usage.other_paths == ()
    measured("P47", "bytes after every verb", files=len(seen), unknown=0)


@pytest.fixture(
    params=[
        pytest.param(0o000, id="umask 000"),
        pytest.param(0o022, id="umask 022", marks=pytest.mark.long),
        pytest.param(0o077, id="umask 077", marks=pytest.mark.long),
    ]
)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.promise("P28")
@pytest.mark.promise("P51")
def test_no_verb_leaves_anything_that_others_may_read(
    sessile: Command, hostile: PoisonedHome, home: Path, umask: int
) -> None:
    """Files are 0600 and folders 0700 in the store, the cache, a second store and the target of an export."""
    seen = 0
    for call in CALLS:
        sessile(*call)
        found = list(modes(home.parent))
        loose = [(path, oct(mode)) for path, mode in found if mode & 0o077]
        assert loose == [], call
        seen = max(seen, len(found))
        measured("P28", "umasks and every verb", calls=1, files_checked=len(found), looser_than_private=0)
    assert seen > 30


def modes(folder: Path) -> Iterator[tuple[str, int]]:
    """Return the permissions of everything below a folder."""
    for parent, folders, names in os.walk(folder):
        if parent == str(folder):
            folders[:] = [name for name in folders if name in ("home", "cache")]
        for name in (*folders, *names):
            path = os.path.join(parent, name)
            if path != str(folder / "home"):  # created by the test
                yield path, stat.S_IMODE(os.lstat(path).st_mode)
