"""Conventions of all verbs: streams, JSON, exit codes, colours, names, and escaping of terminal control."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest

from sessile import Store, __version__
from sessile.cli.command import sessile as group
from sessile.cli.main import ALIASES, VERBS
from sessile.core.secret_shapes import fill

from .conftest import Command, at_a_terminal

WEBHOOK = "6513270e"
NAMES = [name for verbs in VERBS.values() for name in verbs]

# One call of each read-only verb.
LOOKING = {
    "ls": ["ls", "-A"],
    "show": ["show", "hostile", "--depth", "all"],
    "tree": ["tree", "hostile", "--full"],
    "context": ["context", "hostile"],
    "diff": ["diff", "hostile"],
    "search": ["search", "hostile", "--in", "all"],
    "scan": ["search", "-F", "hostile", "--in", "all"],
    "stats": ["stats", "models"],
    "tools": ["stats", "tools"],
    "projects": ["stats", "projects"],
    "sessions": ["stats", "sessions"],
    "sources": ["sources"],
    "keep": ["keep", "hostile"],
    "secrets": ["secrets", "--personal"],
    "check": ["check", "hostile"],
    "doctor": ["doctor", "hostile"],
    "du": ["du"],
    "export": ["export", "hostile", "-t", "txt", "-o", "-", "--depth", "all"],
    "markdown": ["export", "hostile", "-t", "md", "-o", "-", "--depth", "all"],
    "resume": ["resume", "hostile", "--print"],
    "first": [],
    "prune": ["prune", "--older-than", "1d"],
    "ambiguous": ["show", "ostile"],
    "missing": ["show", "\x1b]0;owned\x07"],
}
PROBE = "hostile \x1b[31m\x1b]0;owned\x07\x9b2J\r\x08\x00\u202e\u2066\u200b\u2028 end"


@pytest.fixture
def hostile(home: Path) -> Path:
    """Write sessions with terminal control sequences in every field."""
    store = Store(home / ".sessile", clock=lambda: 1_700_000_000.0)
    for number in range(2):
        with store.create(f"/work/{PROBE}".replace("\0", ""), title=f"{PROBE} {number}", publish=True) as session:
            session.append_model_change(f"{PROBE}/{PROBE}")
            session.append_message({"role": "user", "content": PROBE})
            call = {"type": "toolCall", "id": PROBE, "name": PROBE, "arguments": {PROBE: PROBE, "command": PROBE}}
            answer = {
                "role": "assistant",
                "provider": PROBE,
                "model": PROBE,
                "stopReason": "error",
                "errorMessage": PROBE,
            }
            thought = {"type": "thinking", "thinking": PROBE}
            at = session.append_message({**answer, "content": [thought, {"type": "text", "text": PROBE}, call]}).id
            result = {"role": "toolResult", "toolCallId": PROBE, "toolName": PROBE, "isError": True}
            session.append_message(
                {**result, "content": [{"type": "text", "text": PROBE}], "details": {"diff": f"+{PROBE}"}}
            )
            session.append_label_change(at, PROBE)
            session.append_custom_entry(PROBE, {PROBE: PROBE})
            session.append_mode_change(PROBE, {PROBE: PROBE})
            session.branch(at)
            session.append_message({"role": "user", "content": f"{PROBE} {fill('ghp_<w36>')}"})
    return home / ".sessile"


@pytest.mark.promise("P37")
@pytest.mark.parametrize("case", LOOKING)
@pytest.mark.parametrize("how", ["", "--plain", "--json"])
def test_stored_text_cannot_drive_the_terminal(sessile: Command, hostile: Path, case: str, how: str) -> None:
    """No control characters are printed except newlines and the tabs of tables."""
    done = sessile(*LOOKING[case], *([how] if how else []))
    printed = done.out + done.err
    assert printed
    bad = re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069]", printed)
    assert not bad, (case, bad, printed[:300])


def test_every_verb_of_the_table_exists_with_examples(sessile: Command) -> None:
    """Each verb has a function, a help text, and examples in its help."""
    for name in [*NAMES, *ALIASES]:
        command = group.get_command(click.Context(group), name)
        assert command is not None and command.help, name
        examples = sessile("help", name).out.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
        begun = [line for line in examples if not line.startswith(" " * 10)]
        assert examples and all("sessile" in line for line in begun), name  # no other line looks like a command
    told = sessile("--help").out
    assert all(name in told for name in NAMES)


def test_version_is_answered_before_anything_is_imported() -> None:
    """Neither click nor msgspec nor typing is imported."""
    code = "import sys; sys.argv = ['sessile', '--version']; from sessile.cli.main import main; main()"
    code += "; print([m for m in ('click', 'msgspec', 'typing', 'sqlite3', 'sessile.cli.command') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=_source())
    assert run.stdout == f"{__version__}\n[]\n"


def _source() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


HEAVY = ("rich", "asyncio", "markdown_it", "pygments", "nh3", "importlib.metadata", "json", "base64")
SEARCH = ("search", "catch_up", "head", "packed", "journal", "trash")


def test_ls_imports_neither_rich_nor_asyncio(sessile: Command, demo: Path) -> None:
    """An up-to-date listing does not import modules for counting, searching, summarizing or hashing."""
    time.sleep(0.1)  # files that have just changed are read again the next time
    assert sessile("ls").code == 0
    unused = [*HEAVY, "hashlib", "sessile.core.statistics", *(f"sessile.storage.{name}" for name in SEARCH)]
    assert _loaded_by(["ls"], unused) == []


def test_the_context_of_a_file_needs_no_catalog(demo: Path) -> None:
    """For a path, neither SQLite nor the library is imported."""
    path = next(str(path) for path in demo.rglob("*.jsonl") if WEBHOOK in path.name)
    assert _loaded_by(["context", path, "--json"], [*HEAVY, "sqlite3", "sessile.library"]) == []


def _loaded_by(arguments: list[str], names: list[str]) -> list[str]:
    """Return which of these modules a verb imports."""
    code = f"import sys; from sessile.cli.command import run; run({arguments}); print([m for m in {names} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded: list[str] = json.loads(run.stdout.splitlines()[-1].replace("'", '"'))
    return loaded


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["frobnicate"], 2, "unknown verb"),
        (["serch"], 2, "search"),
        (["show", "--depth", "abyss"], 2, "prompts"),
        (["show", "nothing-like-it"], 3, "hint:"),
        (["show", "webhook"], 4, "ambiguous"),
        (["show", "Power cut during the backfill"], 5, "check"),
        (["rename", "webhook retries", "\x07"], 2, "visible"),
        (["prune"], 2, "every session"),
    ],
)
def test_errors_have_a_code_a_message_and_a_hint(
    sessile: Command, demo: Path, arguments: list[str], code: int, told: str
) -> None:
    """Errors go to stderr; with --json they are a JSON document."""
    done = sessile(*arguments)
    assert (done.code, told in done.err) == (code, True), done
    if code not in (0, 5):
        assert done.out == ""
        report = json.loads(sessile(*arguments, "--json").err.splitlines()[-1])
        assert report["schema"] == "sessile.error/1" and report["error"]["message"]


DOCUMENTS = {
    "ls/1": ["ls"],
    "show/1": ["show", WEBHOOK],
    "tree/1": ["tree", WEBHOOK],
    "context/2": ["context", WEBHOOK],
    "diff/1": ["diff", WEBHOOK],
    "search/1": ["search", "tenacity"],
    "history/1": ["history"],
    "stats.daily/1": ["stats"],
    "sources/1": ["sources"],
    "resume/1": ["resume", WEBHOOK],
    "secrets/1": ["secrets", WEBHOOK],
    "check/1": ["check", WEBHOOK],
    "doctor/2": ["doctor"],
    "sessions/1": ["sessions"],
    "du/1": ["du"],
    "keep/1": ["keep"],
    "sync/1": ["sync", "backup"],
    "prune/1": ["prune", "--older-than", "1d"],
    "prune.files/1": ["prune", "--originals"],
    "trash/1": ["trash"],
    "erase/1": ["erase", WEBHOOK],
    "repair/1": ["repair", WEBHOOK],
}


@pytest.mark.parametrize("schema", DOCUMENTS)
def test_documents_name_their_schema_and_keep_their_members(sessile: Command, demo: Path, schema: str) -> None:
    """The members are a documented contract: to remove or rename one needs a new schema number."""
    document = sessile(*DOCUMENTS[schema], "--json").json
    assert document["schema"] == f"sessile.{schema}"
    golden = json.loads((Path(__file__).parent / "documents.json").read_text())
    assert _shape(document) == golden[schema]


def _shape(document: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a document and of its first item."""
    items = document.get("items")
    first = sorted(items[0]) if items and isinstance(items[0], dict) else None
    return {"members": sorted(document), "item": first}


def test_a_terminal_gets_colours_and_cut_lines_a_pipe_does_not(home: Path, demo: Path) -> None:
    """NO_COLOR and --color override the default."""
    coloured = re.compile(r"\x1b\[[\d;]*m")  # a progress bar on a slow machine also moves the cursor
    assert coloured.search(at_a_terminal(["ls"], {"NO_COLOR": ""}))
    assert not coloured.search(at_a_terminal(["ls"], {"NO_COLOR": "1"}))
    assert not coloured.search(at_a_terminal(["ls", "--color", "never"], {"NO_COLOR": ""}))
    lines = at_a_terminal(["ls"], {"NO_COLOR": "1", "COLUMNS": "70"}).splitlines()
    assert lines and all(len(line) <= 75 for line in lines if "hidden" not in line)
    assert any("…" in line for line in lines)


def test_the_pager_is_used_at_a_terminal_for_long_output_only(home: Path, demo: Path, tmp_path: Path) -> None:
    """$SESSILE_PAGER takes precedence; --no-pager and short output use no pager."""
    pager = tmp_path / "pager"
    pager.write_text(f"#!{sys.executable}\nimport sys\nsys.stdin.read()\nprint('PAGED')\n")
    pager.chmod(0o700)
    environment = {"SESSILE_PAGER": str(pager), "LINES": "10"}
    assert "PAGED" in at_a_terminal(["show", WEBHOOK], environment)
    assert "PAGED" not in at_a_terminal(["show", WEBHOOK, "--no-pager"], environment)
    assert "PAGED" not in at_a_terminal(["show", WEBHOOK, "--tail", "1"], environment)


def test_a_closed_pipe_ends_it_quietly(home: Path, demo: Path) -> None:
    """`sessile show … | head -1` prints one line and no traceback."""
    command = f"{sys.executable} -m sessile.cli.main show {WEBHOOK} --depth all | head -1"
    run = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert len(run.stdout.splitlines()) == 1 and "Traceback" not in run.stderr and "Broken" not in run.stderr


def test_completion_offers_verbs_and_sessions_with_titles(home: Path, demo: Path) -> None:
    """The scripts are printed; session ids are completed with their titles."""
    for shell in ("bash", "zsh", "fish"):
        command = [sys.executable, "-m", "sessile.cli.main", "completion", shell]
        assert "_SESSILE_COMPLETE" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    asked = {"_SESSILE_COMPLETE": "fish_complete", "COMP_WORDS": "sessile show 65", "COMP_CWORD": "65"}
    run = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['sessile']; from sessile.cli.main import main; main()"],
        capture_output=True, text=True, env={**os.environ, **asked},
    )  # fmt: skip
    assert f"{WEBHOOK}-2b1d-4c55-9a0e-7d1f3c5b9e42\tWebhook retries" in run.stdout


@pytest.mark.promise("P37")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_offers_no_id_that_a_shell_would_run(home: Path, shell: str) -> None:
    """Ids come from files, and bash inserts completions without quoting, so unsafe ids are left out."""
    folder = home / ".codex" / "sessions"
    folder.mkdir(parents=True)
    for number, named in enumerate(
        ("65ab-plain", "65$(EVIL)", "65;EVIL", "65\x1b]0;EVIL\x07", "65\nplain,EVIL", "65`EVIL`", "65 EVIL")
    ):
        meta = {"type": "session_meta", "payload": {"id": named, "cwd": str(home)}}
        said = {"type": "response_item", "payload": {"type": "message", "role": "user", "content": []}}
        (folder / f"rollout-{number}.jsonl").write_text(f"{json.dumps(meta)}\n{json.dumps(said)}\n")
    asked = {"_SESSILE_COMPLETE": f"{shell}_complete", "COMP_WORDS": "sessile show 65"}
    asked["COMP_CWORD"] = "65" if shell == "fish" else "2"
    program = "import sys; sys.argv = ['sessile']; from sessile.cli.main import main; main()"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, timeout=60)
    assert "65ab-plain" in done.stdout
    assert "EVIL" not in done.stdout


def test_ids_come_from_stdin(home: Path, demo: Path) -> None:
    """`sessile ls | sessile show -` reads the first column."""
    command = [sys.executable, "-m", "sessile.cli.main", "show", "-", "--json"]
    run = subprocess.run(command, input=f"{WEBHOOK}\tsomething\n", capture_output=True, text=True, check=True)
    assert json.loads(run.stdout)["id"].startswith(WEBHOOK)
