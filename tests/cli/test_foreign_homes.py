"""Every reading verb works on the homes that real programs left, and writes nothing into them."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agent_records import NAMES, unpack
from sessile.cli.command import run

RENDERED = ("opencode", "kilo", "gemini", "continue")
READING: tuple[tuple[str, ...], ...] = (
    ("ls", "-A"),
    ("ls", "-l", "-A", "--json"),
    ("sources",),
    ("stats",),
    ("search", "question"),
    ("search", "-F", "question", "--in", "all"),
    ("history",),
    ("doctor",),
    ("du",),
)
OF_ONE: tuple[tuple[str, ...], ...] = (
    ("show", "{}"),
    ("show", "{}", "--agents"),
    ("tree", "{}", "--full"),
    ("context", "{}"),
    ("context", "{}", "--provider", "anthropic"),
    ("check", "{}"),
    ("export", "{}", "-t", "md", "-o", "-"),
    ("export", "{}", "-t", "jsonl", "-o", "-"),
    ("resume", "{}", "--print"),
)


def state(folder: Path) -> dict[str, tuple[int, str]]:
    """Return time and content of every file below a folder."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


class Home:
    """The home of a record, and commands that run there."""

    def __init__(
        self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.path = unpack(name, folder) / "home"
        self._capsys = capsys
        for variable in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "SESSILE_BLOBS"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("HOME", str(self.path))
        monkeypatch.setenv("SESSILE_ROOT", str(folder / "root"))
        monkeypatch.setenv("SESSILE_CACHE", str(folder / "cache"))
        monkeypatch.chdir(folder)

    def run(self, *words: str) -> tuple[int, str]:
        """Run a command; return its exit code and output."""
        self._capsys.readouterr()
        code = run(list(words))
        return code, self._capsys.readouterr().out

    def sessions(self) -> list[dict[str, Any]]:
        """Return every session, counted."""
        items: list[dict[str, Any]] = json.loads(self.run("ls", "-A", "-l", "--json")[1])["items"]
        return items


@pytest.fixture
def home(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Home:
    """The home of the record that the test names."""
    return Home(request.param, tmp_path, monkeypatch, capsys)


@pytest.mark.mission("N4")
@pytest.mark.parametrize("home", NAMES, indirect=True)
def test_no_reading_verb_writes_into_the_home_of_another_agent(home: Home) -> None:
    """No byte and no time changes, and no file is created, whatever is read."""
    before = state(home.path)
    for words in READING:
        assert home.run(*words)[0] in (0, 1), words
    for session in sorted(home.sessions(), key=lambda item: item["size"])[-3:]:
        for words in OF_ONE:
            home.run(*(word.format(session["path"]) for word in words))
    assert state(home.path) == before


@pytest.mark.mission("N4")
@pytest.mark.parametrize("home", [*RENDERED, "goose", "openclaw-2026.9.6"], indirect=True)
def test_sessions_can_be_shown_exported_forked_and_resumed(home: Home) -> None:
    """By their ids, without configuration."""
    found = home.sessions()
    name = home.path.parent.name
    assert found and {item["format"] for item in found} == {"openclaw-db" if name.startswith("openclaw") else name}
    for item in found:
        assert item["counts"]["messages"] and item["project"]
        assert home.run("check", item["path"])[0] == 0
        shown = home.run("show", item["id"])[1]
        assert item["id"] in shown
        code, printed = home.run("resume", item["id"], "--print")
        assert code == 0 and item["id"] in printed.split()
        assert home.run("fork", item["id"])[0] == 0


@pytest.mark.mission("N4")
@pytest.mark.parametrize("home", RENDERED, indirect=True)
def test_every_prompt_is_found(home: Home) -> None:
    """By a search for all of its words, in the session that has it."""
    home.sessions()
    for session, prompt in prompts(home.path):
        words = " ".join(word for word in prompt.replace('"', " ").replace("*", " ").split()[:8])
        out = home.run("search", "-n", "100", "--", words)[1]
        assert session in {line.split("\t")[0] for line in out.splitlines()}, (session, prompt)


def prompts(home: Path) -> set[tuple[str, str]]:
    """Return what users typed, with the id of its session, straight from what the programs stored."""
    found: set[tuple[str, str]] = set()
    for path in home.glob(".local/share/*/*.db"):
        database = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
        query = "SELECT m.session_id, m.data, p.data FROM message m JOIN part p ON p.message_id = m.id"
        for session, message, part in database.execute(query):
            data = json.loads(part)
            if json.loads(message)["role"] == "user" and data["type"] == "text" and not data.get("synthetic"):
                found.add((session, data["text"]))
        database.close()
    for path in home.glob(".gemini/tmp/*/chats/**/*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            if row.get("type") == "user" and "-" in row["id"]:
                texts = [part["text"] for part in row["content"] if "text" in part]
                found |= {(rows[0]["sessionId"], texts[0])} if texts and not texts[0].startswith("<") else set()
    for path in home.glob(".continue/sessions/*-*.json"):
        document = json.loads(path.read_text())
        said = (item["message"] for item in document["history"])
        found |= {(document["sessionId"], each["content"]) for each in said if each["role"] == "user"}
    assert found
    return found


@pytest.mark.parametrize("home", ["gemini"], indirect=True)
def test_a_session_that_its_program_will_delete_is_kept_first(home: Home) -> None:
    """Gemini CLI deletes a session after it was resumed. The copy has everything that belongs to it."""
    code, out = home.run("sources", "--json")
    (source,) = [item for item in json.loads(out)["items"] if item["agent"] == "gemini"]
    assert code == 0 and source["expiring"] == 1
    (resumed,) = [item for item in home.sessions() if item["id"] == "aaaaaaaa-1111-4111-8111-111111111101"]
    messages = resumed["counts"]["messages"]
    assert home.run("keep")[0] == 0
    assert json.loads(home.run("sources", "--json")[1])["items"][1]["expiring"] == 0
    for folder, _, names in os.walk(home.path / ".gemini", topdown=False):
        os.chmod(folder, 0o755)
        for name in names:
            if name.endswith("aaaaaaaa.jsonl"):
                os.unlink(os.path.join(folder, name))
    (kept,) = [item for item in home.sessions() if item["id"] == resumed["id"]]
    assert "/kept/gemini/" in kept["path"] and kept["counts"]["messages"] == messages
    assert kept["project"] == resumed["project"]
