"""Qwen Code: rows with parents, read from the home that the real program left and from written files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agent_homes import AgentHome, names
from agent_records import unpack
from sessile import Store
from sessile.agents.base import Agent
from sessile.agents.qwen import QwenCode
from sessile.agents.registry import AGENTS
from sessile.library import sub_agents
from sessile.testing.agent_contract import RenderedContract
from sessile.upkeep.check import check

TALK = "cccccccc-1111-4111-8111-111111111101"
REWOUND = "90909090-1111-4111-8111-111111111111"
FORK = "9dc1392b-b8e5-4faa-8e18-2c146c36134b"
TWO_WRITERS = "ab000002-1111-4111-8111-111111111112"


@pytest.fixture(autouse=True, scope="class")
def _home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Unpack the home of the class's agent."""
    if request.cls is not None:
        request.cls.home = str(unpack("qwen", tmp_path_factory.mktemp("qwen")) / "home")


class TestQwen(RenderedContract):
    """The contract of Qwen Code."""

    agent: ClassVar[Agent] = QwenCode()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentHome]:
    """The home of the record."""
    found = AgentHome("qwen", tmp_path_factory.mktemp("qwen"))
    yield found
    found.close()


@pytest.mark.mission("N4")
def test_sessions_are_listed_with_titles_projects_and_usage(home: AgentHome) -> None:
    """The last title counts, and usage is that of the answers, not of the telemetry beside them."""
    rows = home.rows()
    assert len([row for row in rows.values() if not row.sub_agent]) == 7
    rewound, talk = rows[REWOUND], rows[TALK]
    assert (rewound.title, rewound.first_text) == ("Rewound ↩", "rw first 一")
    assert (str(talk.cwd).rpartition("/")[2], talk.problem) == ("alpha", None)
    lines = (Path(talk.path)).read_text().splitlines()
    answers = [row for row in map(json.loads, lines) if row["type"] == "assistant" and "usageMetadata" in row]
    assert talk.counts is not None and rewound.counts is not None
    assert talk.counts.output_tokens == sum(row["usageMetadata"]["candidatesTokenCount"] for row in answers)
    assert (talk.counts.compactions, rewound.counts.branches > 1) == (1, True)


@pytest.mark.mission("N4")
def test_every_prompt_that_was_sent_is_found(home: AgentHome) -> None:
    """Also those of abandoned branches and of sub-agents."""
    home.rows()
    of_program = ("Managed memory", "Recently accessed", "First, reason", "\n", "[SUGGESTION")
    asked = [text for text in home.prompts() if not text.startswith(of_program)]
    assert len(asked) > 40
    assert [text for text in asked if not home.library.search(json.dumps(text, ensure_ascii=False)).hits] == []


def test_a_fork_names_the_session_that_it_was_made_from(home: AgentHome) -> None:
    """Its rows have the ids of the original."""
    rows = home.rows()
    assert rows[FORK].parent == rows[TALK].path
    ours, theirs = (home.store.open(rows[name].path, readonly=True) for name in (FORK, TALK))
    shared = {entry.id for entry in ours.get_entries()} & {entry.id for entry in theirs.get_entries()}
    assert len(shared) > 100


def test_a_sub_agent_belongs_to_its_session_and_is_described(home: AgentHome) -> None:
    """Its notes tell the kind and the task."""
    talk = home.rows()[TALK]
    (found,) = sub_agents(home.store, talk.path)
    assert (found.agent_type, found.description) == ("general-purpose", "count things")
    belongings = AGENTS.get("qwen").belongings(home.store.fs, talk.path)  # type: ignore[union-attr]
    assert {Path(name).name.partition(".")[2] for name in belongings} == {"jsonl", "meta.json"}


def test_a_long_output_is_whole(home: AgentHome) -> None:
    """The result has the start and the end, as the model saw it; the file of the program has the rest."""
    session = home.store.open(home.rows()[TALK].path, readonly=True)
    messages = [entry.body.get("message") or {} for entry in session.get_entries()]
    (whole,) = [message["fullOutput"] for message in messages if "fullOutput" in message]
    assert "\n30000\n" in whole and whole.rstrip().splitlines()[-8:]


def test_a_rewind_and_a_second_writer_leave_branches(home: AgentHome) -> None:
    """The last row decides; what other rows say is still there."""
    rows = home.rows()
    rewound = home.store.open(rows[REWOUND].path, readonly=True)
    live = json.dumps(rewound.context().messages)
    assert "replacement after the rewind" in live and "mock answer 102" not in live
    assert "mock answer 102" in json.dumps([entry.body for entry in rewound.get_entries()])
    other = home.store.open(rows[TWO_WRITERS].path, readonly=True)
    assert "mock answer 117" not in json.dumps(other.context().messages)
    assert "mock answer 117" in json.dumps([entry.body for entry in other.get_entries()])


def test_environment_variables_move_the_home() -> None:
    """The folder for output counts before that for settings."""
    (first,) = QwenCode().sources("/home/ann", {}, names)
    (moved,) = QwenCode().sources("/home/ann", {"QWEN_HOME": "/q"}, names)
    (apart,) = QwenCode().sources("/home/ann", {"QWEN_HOME": "/q", "QWEN_RUNTIME_DIR": "/r"}, names)
    assert [each.sessions for each in (first, moved, apart)] == [
        "/home/ann/.qwen/projects",
        "/q/projects",
        "/r/projects",
    ]
    folders = [
        {source.agent: source.root for source in AGENTS.sources("/nowhere", environ, lambda path: ())}["qwen"]
        for environ in ({}, {"QWEN_HOME": "/q"}, {"QWEN_HOME": "/q", "QWEN_RUNTIME_DIR": "/r"})
    ]
    assert folders == ["/nowhere/.qwen", "/q", "/r"]


# -- written files


def row(name: str, above: str | None, kind: str, *parts: Any, **members: Any) -> dict[str, Any]:
    told = {"uuid": name, "parentUuid": above, "sessionId": "s", "timestamp": "2026-01-01T00:00:00.000Z", "type": kind}
    message = {"role": "model" if kind == "assistant" else "user", "parts": list(parts)}
    return {**told, "cwd": "/w", **({"message": message} if parts else {}), **members}


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Any]:
    """Returns a function that writes a session and opens it."""
    path = tmp_path / "projects" / "-w" / "chats" / "s.jsonl"
    path.parent.mkdir(parents=True)
    store = Store(tmp_path / "own")

    def opened(*rows: dict[str, Any], end: str = "") -> Any:
        path.write_text("".join(json.dumps(each) + "\n" for each in rows) + end)
        return store.open(str(path), readonly=True)

    yield opened
    store.close()


def test_reminders_are_sent_but_are_not_the_users_words(written: Any) -> None:
    """They are entries of their own before the prompt."""
    reminder = "<system-reminder>\n1 agent restored\n</system-reminder>"
    session = written(row("u", None, "user", {"text": reminder}, {"text": "go"}))
    prompt = [entry.body["message"] for entry in session.get_entries() if entry.body["type"] == "message"]
    assert [message["content"] for message in prompt] == [[{"type": "text", "text": "go"}]]
    assert reminder in json.dumps(session.context().messages, ensure_ascii=False).replace("\\n", "\n")
    alone = written(row("u", None, "user", {"text": reminder}))
    assert [entry.body["type"] for entry in alone.get_entries()] == ["message"]


def test_thoughts_are_counted_with_the_answer_once(written: Any) -> None:
    """They are part of the candidates, unless the total says otherwise."""
    counts = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 40,
        "candidatesTokenCount": 20,
        "thoughtsTokenCount": 5,
    }
    for total, output in ((120, 20), (125, 25)):
        used = {**counts, "totalTokenCount": total}
        session = written(
            row("a", None, "assistant", {"text": "hm", "thought": True}, {"text": "ok"}, usageMetadata=used)
        )
        (entry,) = session.get_entries()
        usage = entry.body["message"]["usage"]
        assert (usage["input"], usage["cacheRead"], usage["output"]) == (60, 40, output)
        assert [block["type"] for block in entry.body["message"]["content"]] == ["thinking", "text"]


def test_damaged_and_newer_rows_give_what_can_be_read_and_a_finding(written: Any, tmp_path: Path) -> None:
    """A torn row, a row without an id, one whose parent is gone, and a sort of row that is not known."""
    odd = row("x", "u", "hologram", {"text": "shine"}, depth=3)
    session = written(
        row("u", None, "user", {"text": "go"}),
        odd,
        {"type": "user"},
        row("a", "gone", "assistant", {"text": "ok"}),
        end='{"uu',
    )
    kinds = [entry.body["type"] for entry in session.get_entries()]
    assert kinds == ["message", "custom", "message"]
    assert session.get_entries()[1].body["data"]["depth"] == 3
    with Store(tmp_path / "other") as store:
        problems = [problem.kind for problem in check(store, session.path).problems]
    assert sorted(problems) == ["damaged_source", "damaged_source", "not_json"]
