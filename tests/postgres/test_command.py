"""The command on a database gives the same answers as on a folder with the same sessions, and never shows a password."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from cli.conftest import Command, Done, apart, demo, demo_root, home, sessile
from postgres_rig import PASSWORD, Server
from sessile import Store
from sessions import snapshot
from view_rig import CLAUDE, Household

__all__ = ["demo", "demo_root", "home", "sessile"]

pytestmark = pytest.mark.mission("B8")

WEBHOOK = "6513270e"
DAMAGED = 5
REFUSED = 7
FAILED = 8

# What differs in every run: new ids, numbers of deletions and originals, and current times.
_NEW = re.compile(
    r"01[0-9a-f]{6}-[0-9a-f]{4}-7[0-9a-f-]{21}|\b\d{13}-[0-9a-f]{6}\b|\b20(2[6-9]|[3-9]\d)-\d\d-\d\dT[\d:.+Z-]+"
)


class Both(NamedTuple):
    """The command on a folder and on a database with the same sessions."""

    sessile: Command
    folder: Path
    url: str
    use: Callable[[str], None]

    def run(self, *arguments: str) -> tuple[Done, Done]:
        """Run the command on both. Return the answers without their locations."""
        with Store(self.url) as store:
            shown = store.name
        answers = []
        for root in (str(self.folder), self.url):
            self.use(root)
            done = self.sessile(*arguments)
            texts = []
            for text in (done.out, done.err):
                for place in (str(self.folder), "~/.sessile", "/sessile:postgresql", shown):
                    text = text.replace(place, "ROOT")
                texts.append(_NEW.sub("NEW", text))
            answers.append(Done(done.code, *texts))
        return answers[0], answers[1]

    def same(self, *arguments: str, code: int = 0) -> Done:
        """Run the command on both and return the common answer."""
        folder, database = self.run(*arguments)
        assert database == folder
        assert database.code == code, database.err
        return database

    def database(self, *arguments: str) -> Done:
        """Run the command on the database."""
        self.use(self.url)
        return self.sessile(*arguments)


@pytest.fixture
def both(sessile: Command, demo: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Both:
    """The demo in a folder, and synced to a database."""
    monkeypatch.setenv("SESSILE_ROOT", str(demo))
    done = sessile("sync", postgres_url)
    assert done.code == 0 and "new sessions" in done.err
    return Both(sessile, demo, postgres_url, lambda root: monkeypatch.setenv("SESSILE_ROOT", root))


def test_a_store_goes_to_a_database_and_back_byte_for_byte(both: Both, tmp_path: Path) -> None:
    """With artifacts and times; the next time there is nothing to do, in either direction."""
    again = both.sessile("sync", both.url).err
    assert again.startswith("postgresql://") and again.endswith(" is up to date\n")
    restored = tmp_path / "restored"
    assert both.sessile("--root", str(restored), "sync", "--from", both.url).code == 0
    before = {path.removeprefix(str(both.folder)): found[1:] for path, found in snapshot(both.folder).items()}
    after = {path.removeprefix(str(restored)): found[1:] for path, found in snapshot(restored).items()}
    files = {path for path in before if Path(f"{both.folder}{path}").is_file() and "/sessions/" in path}
    assert len(files) == 40
    assert {path: after.get(path) for path in files} == {path: before[path] for path in files}
    assert both.sessile("sync", "--from", both.url).err.endswith("~/.sessile is up to date\n")


def test_looking_gives_the_same_answers(both: Both) -> None:
    """Lists, transcripts, trees, contexts, statistics and exports are the same, as text and as JSON."""
    assert len(both.same("ls").out.splitlines()) > 30
    for arguments in (
        ("ls", "--json", "-A"),
        ("ls", "--tree"),
        ("show", WEBHOOK, "--depth", "all"),
        ("show", WEBHOOK, "--raw"),
        ("show", "1dbce02c", "--agents"),
        ("tree", WEBHOOK, "--full", "--ids"),
        ("context", WEBHOOK, "--json"),
        ("diff", WEBHOOK, "@last"),
        ("stats", "models", "--json"),
        ("export", WEBHOOK, "-o", "-"),
        ("export", WEBHOOK, "-t", "md", "-o", "-"),
        ("convert", WEBHOOK, "--to", "claude", "-o", "-"),
    ):
        assert both.same(*arguments).out, arguments


def test_searching_finds_the_same(both: Both) -> None:
    """Searches by words find the same lines in any order; searches by substring and counts are identical."""
    folder, database = both.run("search", "retry")
    assert folder.code == database.code == 0
    assert sorted(folder.out.splitlines()) == sorted(database.out.splitlines()) != []
    both.same("search", "--count", "retry")
    assert both.same("search", "-F", "retr").out
    both.same("search", "nobodysaidthis", code=1)
    both.same("history", code=1)


def test_working_does_the_same(both: Both) -> None:
    """Naming, tagging, labelling, branching, moving, pinning, forking and compacting have the same results."""
    both.same("rename", WEBHOOK, "Webhooks", "again")
    both.same("tag", WEBHOOK, "payments")
    both.same("label", f"{WEBHOOK}#c0ffee15", "fork-here")
    both.same("branch", f"{WEBHOOK}@fork-here")
    both.same("pin", WEBHOOK)
    both.same("pin", WEBHOOK, code=1)
    both.same("move", WEBHOOK, "/work/other")
    assert WEBHOOK in both.same("ls", "--pinned").out
    assert "Webhooks again" in both.same("tree", WEBHOOK).out
    both.same("context", WEBHOOK)
    folder, database = both.run("compact", WEBHOOK, "--keep", "50")
    assert (folder.code, folder.err) == (database.code, database.err) and database.code == 0
    folder, database = both.run("context", WEBHOOK)
    assert "compaction" in database.out and len(folder.out) == len(database.out)
    forked = both.same("fork", WEBHOOK)
    assert forked.out == "NEW\n" and "forked as NEW (ROOT/sessions/--work-other--/" in forked.err


def test_cleaning_does_the_same(both: Both) -> None:
    """Disk usage, pruning, undo and emptying the trash have the same results."""
    both.same("ls")  # the cache counts as well
    both.same("du", "--json")
    both.same("du", "--orphans")
    both.same("prune", "--larger-than", "0.005", "--keep", "5", "--json")
    both.same("trash", code=1)
    folder, database = both.run("prune", "--larger-than", "0.01", "--apply")
    assert (folder.code, folder.out) == (database.code, database.out) and database.code == 0
    assert folder.err in database.err and "who" not in folder.err
    assert len(both.same("trash").out.splitlines()) > 3
    both.same("undo")
    both.same("undo", "-n", "2")
    both.same("trash", "empty", "--apply")
    both.same("trash", code=1)
    both.same("prune", "--blobs", code=1)
    both.same("ls", "--json")


def test_mending_does_the_same(both: Both) -> None:
    """Damage is found, reported by the doctor, and repaired with the original kept."""
    both.same("check", "--all", code=DAMAGED)
    damaged = re.findall("sessile repair (.+)", both.same("doctor", code=DAMAGED).out)
    assert len(damaged) == 2
    for session_id in damaged:
        both.same("repair", session_id)
        assert "original file: ROOT/originals/" in both.same("repair", session_id, "--apply").err
        both.same("show", session_id, "--raw")
    both.same("check", "--all")


def test_other_agents_sessions_are_found_kept_and_imported(both: Both, home: Path) -> None:
    """Other agents' sessions stay on the machine and are listed with those of the database, which gets their copies."""
    household = Household(home / "elsewhere")
    written = household.write_claude("Why is it slow?", "An aardvark")
    (home / ".claude").mkdir()
    household.projects.rename(home / ".claude" / "projects")
    path = str(home / ".claude" / "projects" / written.relative_to(household.projects))
    household.age(path, 29)
    assert "Why is it slow?" in both.database("ls", "-a", "claude").out
    for arguments in (("ls",), ("ls", "-A", "--json"), ("search", "aardvark"), ("show", CLAUDE), ("sources",)):
        assert both.same(*arguments).out
    assert both.same("keep").out == f"ROOT/kept/claude/-work-web/{CLAUDE}.jsonl\n"
    assert both.same("keep").out == ""
    assert both.same("keep", WEBHOOK, code=REFUSED).out == ""
    both.same("import", path)
    both.same("import", path)
    assert "aardvark" in both.same("show", CLAUDE[:8]).out
    both.same("ls")
    both.same("stats", "models")
    both.same("prune", "--agent", "claude", "--older-than", "1d")
    assert both.same("fork", path).out == "NEW\n"


def test_a_session_in_a_database_is_resumed_as_a_copy(both: Both) -> None:
    """`resume` places the same file from a database as from a folder, and `convert` writes it."""
    folder, database = both.run("resume", WEBHOOK, "--in", "codex", "--print")
    assert database.code == 0 and "codex resume " in database.out
    assert folder.out.rpartition(" && ")[2] == database.out.rpartition(" && ")[2]
    folder, database = both.run("convert", WEBHOOK, "--to", "pi", "-o", "-")
    assert database == folder and database.out


def test_prune_does_not_claim_to_know_who_has_a_session_open(both: Both) -> None:
    """Processes of other machines may use the database, so prune reports that it cannot detect open files."""
    folder, database = both.run("prune", "--larger-than", "0.01")
    assert "cannot detect which files are open" in database.err and folder.out == database.out


def test_the_command_ends_by_itself(both: Both, tmp_path: Path) -> None:
    """In its own process, the command exits without errors: no connection or thread keeps it alive."""
    done = apart(tmp_path / "memory", "ls", "-n", "1", environment={"SESSILE_ROOT": both.url})
    assert done.code == 0 and "36 more" in done.err and "Error" not in done.err
    assert len(done.out.splitlines()) == 1


def test_a_password_is_never_shown(sessile: Command, postgres_server: Server) -> None:
    """No output, JSON or suggested command contains the password."""
    url = postgres_server.url(user="guarded", password=PASSWORD)
    with Store(url) as store, store.create("/work/app", publish=True) as session:
        session.append_message({"role": "user", "content": "x" * 2000})
    for arguments in (
        ("ls", "--json"),
        ("du",),
        ("du", "--json"),
        ("doctor",),
        ("doctor", "--json"),
        ("sync", "--json", "--from", url),
        ("show", "nobody"),
        ("status",),
        ("resume", session.id, "--print"),
        ("prune", "--larger-than", "0", "--json"),
        ("sources",),
    ):
        done = sessile("--root", url, *arguments)
        for form in (PASSWORD, PASSWORD.replace(" ", "%20")):
            assert form not in done.out + done.err, arguments
    wrong = sessile("--root", postgres_server.url(user="guarded", password="tr0ub4dor"), "ls")
    assert wrong.code == FAILED and "tr0ub4dor" not in wrong.out + wrong.err


@pytest.mark.parametrize("json", [False, True])
def test_a_server_that_is_down_is_told(sessile: Command, json: bool) -> None:
    """The error has the address, a hint and the exit code of a storage failure; no verb shows a traceback."""
    url = "postgresql://me:hunter2@127.0.0.1:1/sessions?connect_timeout=2"
    for verb in (("ls",), ("show", "@last"), ("search", "x"), ("doctor",), ("fork", "@last")):
        done = sessile("--root", url, *verb, *(["--json"] if json else []))
        assert done.code == FAILED, verb
        told = done.out + done.err
        assert "127.0.0.1:1/sessions" in told and "hint" in told and "hunter2" not in told and "Traceback" not in told
