"""Agents: the built-in formats fulfil the contract, and packages can add agents."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from claude_rows import assistant, boundary, progress, uid, user
from myagents_folder import asked, line, told
from sessile import Library, Store
from sessile.agents.claude.translation import Claude
from sessile.agents.codex.rollout import Codex
from sessile.agents.myagents.translation import MyAgents
from sessile.agents.registry import AGENTS, Registry
from sessile.errors import NotASession
from sessile.storage.layout import Source
from sessile.testing.agent_contract import STEM, FormatContract

MODULE = """
from sessile.agents import Agent, Source
from sessile.agents.codex.rollout import Codex

class Rows(Codex):
    name = "{name}"

    def recognises(self, first):
        return first.startswith(b'{{"barn"')

class Barn(Agent):
    name = "{name}"
    title = "Barn"
    command = ("barn", "--go-on")
    format = Rows()

    def sources(self, home, environ, names):
        return [Source(self.name, f"{{home}}/.barn", f"{{home}}/.barn/rows")]
"""
ROWS = b'{"barn":1,"id":"b1","cwd":"/work/barn"}\n' + b"".join(
    json.dumps({"type": "response_item", "payload": {"type": "message", "role": role, "content": text}}).encode()
    + b"\n"
    for role, text in (("user", "How many bales?"), ("assistant", "Seventeen."))
)


def _rows(rows: list[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


class TestClaude(FormatContract):
    """Claude Code's transcripts."""

    format_ = Claude()
    sample = _rows(
        [
            {**row, "sessionId": STEM, "parentUuid": uid(parent) if parent else None}
            for row, parent in (
                (user("u1", "How many bales?"), None),
                (progress("p1"), "u1"),
                (assistant("a1"), "p1"),
                (boundary("b1"), "a1"),
                (user("u2"), "b1"),
                (assistant("a2"), "u2"),
                (assistant("a3"), "u2"),
            )
        ]
    )


class TestCodex(FormatContract):
    """Codex' rollouts."""

    format_ = Codex()
    sample = _rows(
        [
            {"type": "session_meta", "payload": {"id": STEM, "cwd": "/work/barn"}},
            {"type": "turn_context", "payload": {"model": "m1"}},
            {"type": "response_item", "payload": {"type": "message", "role": "user", "content": "How many bales?"}},
            {"type": "response_item", "payload": {"type": "function_call", "name": "count", "arguments": "{}"}},
            {"type": "response_item", "payload": {"type": "function_call_output", "output": "17"}},
            {"type": "event_msg", "payload": {"type": "token_count"}},
            {"type": "compacted", "payload": {"message": "Bales were counted."}},
        ]
    )


class TestMyAgents(FormatContract):
    """MyAgents' messages."""

    format_ = MyAgents()
    sample = line(asked(0)) + line(told(1)) + line(asked(2))


def forget_installed() -> None:
    """Look up installed agents again the next time."""
    AGENTS.__dict__.pop("installed", None)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install a package that adds an agent, or claims to."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(site)

    def do(module: str, value: str = "barn_sessions:Barn") -> None:
        forget_installed()
        info = site / "barn-1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: barn\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[sessile.agents]\nbarn = {value}\n")
        (site / "barn_sessions.py").write_text(module)
        sys.modules.pop("barn_sessions", None)

    yield do
    sys.modules.pop("barn_sessions", None)
    forget_installed()


def _written(tmp_path: Path) -> Path:
    path = tmp_path / "rows" / "b1.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(ROWS)
    return path


def test_a_package_adds_an_agent(tmp_path: Path, install: Callable[..., None]) -> None:
    """Files of the added agent are opened, listed and searched like those of any agent."""
    install(MODULE.format(name="barn"))
    path = _written(tmp_path)
    store = Store(tmp_path / "store")
    with store.open(path, readonly=True) as session:
        assert [message["role"] for message in session.context().messages] == ["user", "assistant"]
    with Library(
        store, [Source("folder", str(path.parent), str(path.parent))], cache=str(tmp_path / "cache")
    ) as library:
        library.catch_up("index")
        assert [row.format for row in library.list().rows] == ["barn"]
        assert [hit.path for hit in library.search("bales").hits] == [str(path)]


def test_an_added_agent_has_a_home_and_a_command(install: Callable[..., None]) -> None:
    """The added agent has sources, a command and capabilities without further setup."""
    install(MODULE.format(name="barn"))
    assert Source("barn", "/home/u/.barn", "/home/u/.barn/rows") in AGENTS.sources("/home/u", {}, lambda folder: ())
    agent = AGENTS.get("barn")
    assert agent is not None and agent.command == ("barn", "--go-on") and AGENTS.capabilities("barn") == ()


def test_without_the_package_its_files_are_no_sessions(tmp_path: Path, install: Callable[..., None]) -> None:
    """The file is not changed."""
    path = _written(tmp_path)
    with pytest.raises(NotASession, match="does not start"):
        Store(tmp_path / "store").open(path, readonly=True)
    assert path.read_bytes() == ROWS


@pytest.mark.parametrize(
    ("module", "value", "told"),
    [
        ("", "barn_sessions:Barn", "cannot load"),
        ("", "no_such_module:Barn", "cannot load"),
        ("class Barn:\n    def __init__(self, needed): ...", "barn_sessions:Barn", "cannot load"),
        ("class Barn:\n    name = 'barn'", "barn_sessions:Barn", "not a subclass of Agent"),
        (MODULE.format(name="claude"), "barn_sessions:Barn", "a name that is taken: claude"),
    ],
)
def test_an_agent_that_cannot_be_used_is_left_out_with_a_warning(
    module: str, value: str, told: str, install: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """All other agents stay available."""
    install(module, value)
    with caplog.at_level(logging.WARNING, "sessile"):
        assert AGENTS.installed == ()
    assert told in caplog.text and value in caplog.text


def test_a_catalog_outlives_a_format_that_was_taken_away(tmp_path: Path, install: Callable[..., None]) -> None:
    """Sessions of a removed format stay in the catalog and are skipped by later catch-ups."""
    install(MODULE.format(name="barn"))
    path = _written(tmp_path)
    sources = [Source("folder", str(path.parent), str(path.parent))]
    store = Store(tmp_path / "store")
    time.sleep(0.1)  # files that have just changed are looked at again the next time
    with Library(store, sources, cache=str(tmp_path / "cache")) as library:
        library.catch_up("look")
    install("")
    with Library(store, sources, cache=str(tmp_path / "cache")) as library:
        library.catch_up("index")
        assert [row.format for row in library.list().rows] == ["barn"]


def test_nobody_looks_for_packages_while_our_own_formats_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for installed packages takes longer than a small listing."""
    monkeypatch.setattr(Registry, "installed", property(lambda self: pytest.fail("looked")))
    assert AGENTS.recognise(TestCodex.sample) is not None
    assert AGENTS.format_named("claude") is not None
