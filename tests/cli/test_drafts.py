"""Drafts at the command line: every verb finds a session whose process was killed, or still runs, before the first answer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import sleep

import pytest

from cli.conftest import Command
from faults.processes import Child, Tell
from sessile import Store
from sessile.core.entries import Payload
from sessions import snapshot

pytestmark = [pytest.mark.mission("X15"), pytest.mark.promise("P46")]

QUESTION = "Why does the webhook retry seventeen times?"
RARE = "seventeen"
PROJECT = "/work/webhooks"

READING = {
    "show {}": "seventeen",
    "show {} --json": "seventeen",
    "show {} --raw": "seventeen",
    "show {} --agents": "no sub-agents",
    "tree {}": "seventeen",
    "tree {} --json": "seventeen",
    "diff {} {}": "",
    "context {}": "seventeen",
    "export {} -t md -o -": "seventeen",
    "export {} -t txt -o -": "seventeen",
    "export {} -t html -o -": "seventeen",
    "export {} -t jsonl -o -": "seventeen",
    "convert {} --to claude -o -": "seventeen",
    "secrets {}": "",
    "check {}": ".draft",
    "check {} --json": ".draft",
    "repair {}": "",
    "doctor {}": ".draft",
    "prune {}": "skipped",
    "compact {} --plan": "",
    "resume {} --print": "pi --session",
}
"""Verbs that read one session, and what their output contains; `{}` is the name of the session."""

LISTING = [
    ["ls"],
    ["ls", "-A"],
    ["ls", "--json"],
    ["ls", RARE],
    ["ls", "-p", PROJECT],
    ["search", RARE],
    ["search", RARE, "--json"],
    ["search", "-F", "venteen"],
    ["search", "-E", "seven.een"],
    ["check", "--all", "--json"],
    ["du"],
]
"""Verbs that find sessions by themselves."""

WRITING = [
    ["rename", "{}", "Retries"],
    ["label", "{}#{entry}", "start"],
    ["tag", "{}", "bug"],
    ["branch", "{}#{entry}"],
    ["move", "{}", "/work/elsewhere"],
    ["repair", "{}", "--apply"],
]
"""Verbs that open a session for writing, and so publish a draft whose process has ended."""


class Draft:
    """A draft that a process writes, or wrote until it was killed."""

    def __init__(self, root: Path, child: Child) -> None:
        self.root = root
        self.child = child
        self.is_running = True
        child.wait_for_word()
        told: list[str] = child.told()[0]
        self.id, self.path, self.entry = told

    def kill(self) -> None:
        """Kill the writer."""
        if self.is_running:
            self.is_running = False
            self.child.kill()
            self.child.finish()

    @property
    def published(self) -> str:
        return str(self.path).replace(".draft", ".jsonl")

    def names(self) -> dict[str, str]:
        """Return the ways to name it."""
        return {
            "id": self.id,
            "prefix": self.id[:-4],
            "path": self.path,
            "final path": self.published,
            "first message": "webhook retry seventeen",
            "latest": "@last",
        }


def ask_and_wait(root: Path, tell: Tell) -> None:
    """Write the first prompt, and wait for an answer that never comes."""
    session = Store(root).create(PROJECT)
    message: Payload = {"role": "user", "content": [{"type": "text", "text": QUESTION}]}
    receipt = session.append_message(message)
    tell([session.id, session.path, receipt.id])
    sleep(600)


@pytest.fixture
def draft(home: Path) -> Iterator[Draft]:
    """A draft beside an older session; its writer runs until the end of the test, or until it is killed."""
    with Store(home / ".sessile").create("/work/other", publish=True) as older:
        older.append_message({"role": "user", "content": "something else"})
    os.utime(older.path, (1_700_000_000, 1_700_000_000))
    root = home / ".sessile"
    made = Draft(root, Child(partial(ask_and_wait, root)))
    yield made
    made.kill()


@pytest.fixture
def killed(draft: Draft) -> Draft:
    draft.kill()
    return draft


def filled(arguments: list[str], name: str, entry: str = "") -> list[str]:
    return [argument.replace("{entry}", entry).replace("{}", name) for argument in arguments]


@pytest.mark.parametrize("state", ["killed", "running"])
def test_every_verb_that_reads_finds_a_draft_by_every_name(sessile: Command, draft: Draft, state: str) -> None:
    """Its text is shown, whether its writer lives or not, and nothing is changed."""
    if state == "killed":
        draft.kill()
    before = snapshot(draft.root)
    for command, expected in READING.items():
        for how, name in draft.names().items():
            done = sessile(*filled(command.split(), name))
            assert done.code in (0, 1), (command, how, done)
            assert "not found" not in done.err, (command, how, done)
            assert expected in done.out + done.err, (command, how, done)
    assert snapshot(draft.root) == before


@pytest.mark.parametrize("state", ["killed", "running"])
def test_every_verb_that_lists_shows_a_draft(sessile: Command, draft: Draft, state: str) -> None:
    """It is among the sessions, and its text is searched: by words, as a substring and by a regular expression."""
    if state == "killed":
        draft.kill()
    before = snapshot(draft.root)
    for arguments in LISTING:
        done = sessile(*arguments)
        assert done.code == 0, (arguments, done)
        shown = done.out + done.err
        assert draft.id[:8] in shown or "seventeen" in shown or draft.path in shown, (arguments, done)
    assert snapshot(draft.root) == before


def test_a_draft_is_marked_where_sessions_are_listed(sessile: Command, killed: Draft) -> None:
    """In the table, in JSON and in search results."""
    assert f"(draft) {QUESTION}" in sessile("ls").out
    (row, other) = sessile("ls", "--json").json["items"]
    assert (row["id"], row["path"], row["draft"], other["draft"]) == (killed.id, killed.path, True, False)
    assert f"(draft) {QUESTION[:20]}" in sessile("--plain", "search", RARE).out
    usage = sessile("du", "--json").json["store"]
    assert (usage["drafts"], usage["draft_bytes"]) == (1, os.path.getsize(killed.path))


@pytest.mark.parametrize("arguments", WRITING, ids=lambda arguments: " ".join(arguments[:1]))
@pytest.mark.parametrize("how", ["id", "path", "final path"])
def test_every_verb_that_writes_publishes_a_draft_that_was_left(
    sessile: Command, killed: Draft, arguments: list[str], how: str
) -> None:
    """It has its final name then, with the question, and the next verb finds it by id and by its old path."""
    done = sessile(*filled(arguments, killed.names()[how], killed.entry))
    assert done.code == 0, done
    assert not os.path.exists(killed.path)
    assert (arguments[0] == "move") != os.path.isfile(killed.published)
    (row,) = (row for row in sessile("ls", "--json").json["items"] if row["id"] == killed.id)
    assert row["draft"] is False and row["path"].endswith(".jsonl")
    assert "seventeen" in sessile("show", killed.id).out
    if arguments[0] != "move":
        assert "seventeen" in sessile("show", killed.path).out
    assert sessile("doctor").code == 0


@pytest.mark.parametrize("arguments", WRITING, ids=lambda arguments: " ".join(arguments[:1]))
def test_only_writing_waits_for_the_writer_of_a_draft(sessile: Command, draft: Draft, arguments: list[str]) -> None:
    """The error names the process, and nothing is changed."""
    before = snapshot(draft.root)
    done = sessile(*filled(arguments, draft.id, draft.entry))
    assert done.code == 6, done
    assert f"process {draft.child.pid}" in done.err
    assert snapshot(draft.root) == before


def test_a_fork_of_a_draft_leaves_the_draft_alone(sessile: Command, draft: Draft) -> None:
    """A fork only reads its source, so it works while the writer runs."""
    before = {path: content for path, (_, _, content) in snapshot(draft.root).items()}
    assert sessile("fork", draft.id).code == 0
    after = {path: content for path, (_, _, content) in snapshot(draft.root).items()}
    assert before.items() <= after.items()
    rows = sessile("ls", RARE, "--json").json["items"]
    assert sorted((row["draft"], row["parent"]) for row in rows) == [(False, draft.published), (True, None)]
    tree = sessile("ls", RARE, "--tree").out.splitlines()
    assert draft.id in tree[0]


def test_the_doctor_names_a_draft_that_was_left_and_how_to_recover_it(sessile: Command, draft: Draft) -> None:
    """While its writer runs there is nothing to say; the advice works as it is printed."""
    assert draft.path not in sessile("doctor").out
    draft.kill()
    done = sessile("doctor", "--json")
    (advice,) = (item for item in done.json["items"] if item["where"] == draft.path)
    assert (done.code, advice["severity"]) == (1, "warning")
    assert "draft without a writer" in advice["what"]
    command = advice["do"].split()
    assert sessile(*command[1:]).code == 0
    assert os.path.isfile(draft.published)
    done = sessile("doctor")
    assert done.code == 0 and "no problems found" in done.err


def test_check_includes_drafts_and_says_what_a_repair_does(sessile: Command, killed: Draft) -> None:
    """A draft without a writer is a note, not damage."""
    reports = {item["path"]: item for item in sessile("check", "--all", "--json").json["items"]}
    assert [problem["kind"] for problem in reports[killed.path]["problems"]] == ["draft"]
    assert reports[killed.path]["ok"]
    assert "published under its final name" in sessile("repair", killed.id).out


def test_resuming_a_draft_gives_its_agent_a_copy(
    sessile: Command, killed: Draft, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The draft stays as it is; --print only says what would be placed."""
    done = sessile("resume", killed.id, "--print")
    assert "a copy is placed for pi first" in done.err and killed.id in done.out
    assert os.path.isfile(killed.path)
    started: list[list[str]] = []
    monkeypatch.setattr("sessile.cli.resume.shutil.which", lambda name: f"/bin/{name}")

    def start(program: str, command: list[str]) -> int:
        started.append(command)
        return 0

    monkeypatch.setattr("sessile.cli.resume.os.execv", start)
    assert sessile("resume", killed.id).code == 0
    assert "/.pi/agent/sessions/" in started[0][-1] and os.path.isfile(started[0][-1])
    assert os.path.isfile(killed.path)


@pytest.mark.parametrize("how", ["id", "final path"])
def test_a_draft_that_was_left_can_be_deleted_by_name_and_restored(sessile: Command, killed: Draft, how: str) -> None:
    """Rules alone spare drafts; while the writer runs, even its name does not help."""
    before = Path(killed.path).read_bytes()
    os.utime(killed.path, (1_600_000_000, 1_600_000_000))
    assert "1 draft" in sessile("prune", "--older-than", "3000d", "--apply").err or os.path.exists(killed.path)
    assert os.path.exists(killed.path)
    assert sessile("rm", killed.names()[how], "--apply").code == 0
    assert not os.path.exists(killed.path)
    assert sessile("show", killed.id).code != 0
    assert sessile("undo").code == 0
    assert Path(killed.path).read_bytes() == before


def test_a_draft_in_use_cannot_be_deleted(sessile: Command, draft: Draft) -> None:
    """It is skipped as open."""
    done = sessile("rm", draft.id, "--recent", "--apply")
    assert "1 open" in done.err and os.path.exists(draft.path)


def test_another_process_reads_the_index_of_a_draft(sessile: Command, killed: Draft) -> None:
    """A search by words uses the full-text index; it is not left to the scan."""
    found = json.loads(sessile("search", RARE, "--json").out)
    assert [hit["path"] for hit in found["items"]] == [killed.path]
    assert not found["notices"]


def test_a_sync_says_which_drafts_it_leaves_out(sessile: Command, killed: Draft, tmp_path: Path) -> None:
    """They are copied after they were published."""
    assert sessile("sync", str(tmp_path / "there"), "--json").json["drafts"] == [killed.id]
    done = sessile("sync", str(tmp_path / "there"))
    assert f"1 draft without an answer is not copied. Publish: sessile repair {killed.id} --apply" in done.err
    assert sessile("repair", killed.id, "--apply").code == 0
    assert "1 new session" in sessile("sync", str(tmp_path / "there")).err
