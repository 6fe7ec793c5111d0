"""Copilot CLI: folders with events, read from the home that the real program left and from written files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agent_homes import AgentHome, names
from agent_records import unpack
from sessile import Filter, Library, Store
from sessile.agents.base import Agent
from sessile.agents.copilot import CopilotCli
from sessile.agents.copilot.events import workspace_of
from sessile.agents.registry import AGENTS
from sessile.storage.layout import Source
from sessile.testing.agent_contract import RenderedContract
from sessile.upkeep.check import check

TALK = "eeeeeeee-1111-4111-8111-111111111101"
PARENT = "67676767-1111-4111-8111-111111111111"
FORK = "db7804b0-d241-471b-9488-fbb5e4813981"


@pytest.fixture(autouse=True, scope="class")
def _home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Unpack the home of the class's agent."""
    if request.cls is not None:
        request.cls.home = str(unpack("copilot", tmp_path_factory.mktemp("copilot")) / "home")


class TestCopilot(RenderedContract):
    """The contract of Copilot CLI."""

    agent: ClassVar[Agent] = CopilotCli()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentHome]:
    """The home of the record."""
    found = AgentHome("copilot", tmp_path_factory.mktemp("copilot"))
    yield found
    found.close()


@pytest.mark.mission("N4")
def test_sessions_are_listed_with_titles_projects_and_usage(home: AgentHome) -> None:
    """The name is in a file beside the events, and usage is one record for each answer, of sub-agents too."""
    rows = home.rows()
    assert len(rows) == 6
    talk = rows[TALK]
    assert (talk.title, str(talk.cwd).rpartition("/")[2], talk.problem) == ("named at start 名", "alpha", None)
    assert rows[FORK].title == "Renamed session (fork)" and rows[FORK].parent == rows[PARENT].path
    events = [json.loads(line) for line in Path(talk.path).read_text().splitlines()]
    used = [event["data"]["usage"] for event in events if event["type"] == "session.usage_record"]
    assert talk.counts is not None
    assert talk.counts.output_tokens == sum(usage["outputTokens"] for usage in used)
    read, fresh = talk.counts.cache_read_tokens or 0, talk.counts.input_tokens or 0
    assert read + fresh == sum(usage["inputTokens"] for usage in used)
    assert talk.counts.compactions == 1


@pytest.mark.mission("N4")
def test_every_prompt_that_was_sent_is_found(home: AgentHome) -> None:
    """Also those of sub-agents, but not one that was rewound: the program removes it from the file."""
    home.rows()
    asked = [text for text in home.prompts() if text != "tui third" and not text.startswith("Image file at path")]
    assert len(asked) > 30
    assert [text for text in asked if not home.library.search(json.dumps(text, ensure_ascii=False)).hits] == []


def test_a_sub_agent_is_a_tree_of_its_own_in_the_session(home: AgentHome) -> None:
    """The conversation does not have it, though its events are between those of the conversation."""
    session = home.store.open(home.rows()[TALK].path, readonly=True)
    told = [
        entry for entry in session.get_entries() if "sub prompt: count things" in json.dumps(entry.body.get("message"))
    ]
    prompt = next(entry for entry in told if entry.body["message"]["role"] == "user")
    assert "named at start" not in json.dumps(session.context(prompt.id).messages)
    users = [message for message in session.context(prompt.id).messages if message["role"] == "user"]
    assert len(users) == 1
    live = [message for message in session.context().messages if message["role"] == "user"]
    assert "sub prompt" not in json.dumps(live)


def test_an_attached_image_is_part_of_the_prompt(home: AgentHome) -> None:
    """The events have its data once."""
    session = home.store.open(home.rows()[TALK].path, readonly=True)
    messages = [entry.body.get("message") or {} for entry in session.get_entries()]
    (prompt,) = [message for message in messages if "picture attached" in json.dumps(message.get("content"))]
    assert [block["type"] for block in prompt["content"]] == ["text", "text", "image"]
    assert prompt["content"][2]["data"].startswith("iVBOR")


def test_environment_variables_move_the_home() -> None:
    """`COPILOT_HOME` takes the place of the folder in the user's home."""
    (first,) = CopilotCli().sources("/home/ann", {}, names)
    (moved,) = CopilotCli().sources("/home/ann", {"COPILOT_HOME": "/c"}, names)
    assert (first.sessions, moved.sessions) == ("/home/ann/.copilot/session-state", "/c/session-state")
    missing = AGENTS.sources("/nowhere", {"COPILOT_HOME": "/c"}, lambda path: ())
    assert {source.agent: source.root for source in missing}["copilot"] == "/c"


def test_the_files_of_a_session_belong_to_it(home: AgentHome) -> None:
    """Checkpoints, backups and the name, so that a copy keeps them."""
    found = CopilotCli().belongings(home.store.fs, home.rows()[TALK].path)
    kinds = {path.rpartition(TALK + "/")[2].partition("/")[0] for path in found}
    assert kinds == {"workspace.yaml", "checkpoints", "rewind-file-snapshots"}
    assert all(Path(path).is_file() for path in found)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("name: plain words: and more\nuser_named: true\n", "plain words: and more"),
        ("name: 'it''s quoted'\n", "it's quoted"),
        ('name: "a \\"b\\" \\u00e9"\n', 'a "b" é'),
        ("name: |-\n  one\n  two\nid: x\n", "one\ntwo"),
        ("name: >-\n  one\n  two\n", "one two"),
        ("name: long words\n  that go on\nid: x\n", "long words that go on"),
        ("id: x\n", None),
    ],
)
def test_names_are_read_in_every_form(text: str, name: str | None) -> None:
    """YAML has several for a text."""
    assert workspace_of(text).get("name") == name


# -- written files


def event(name: str, kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data, "id": name, "timestamp": "2026-01-01T00:00:00.000Z", "parentId": None}


START = event(
    "s", "session.start", sessionId="s1", version=1, startTime="2026-01-01T00:00:00.000Z", context={"cwd": "/w"}
)


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Any]:
    """Returns a function that writes events and opens them."""
    path = tmp_path / "session-state" / "s1" / "events.jsonl"
    path.parent.mkdir(parents=True)
    store = Store(tmp_path / "own")

    def opened(*events: dict[str, Any], end: str = "") -> Any:
        rows = (json.dumps(each, separators=(",", ":")) + "\n" for each in (START, *events))
        path.write_text("".join(rows) + end)
        return store.open(str(path), readonly=True)

    yield opened
    store.close()


def test_many_prompts_are_shortened_in_a_compaction(written: Any) -> None:
    """The first three and the last sixteen stay."""
    asked = [event(f"u{number}", "user.message", content=f"prompt {number}.") for number in range(30)]
    session = written(*asked, event("c", "session.compaction_complete", success=True, summaryContent="all"))
    (message,) = session.context().messages
    text = message["content"][0]["text"]
    assert "prompt 2." in text and "prompt 3." not in text and "prompt 13." not in text and "prompt 14." in text
    assert "... 11 messages omitted ..." in text and text.endswith("<summary>\nall\n</summary>\n")


def test_a_compaction_that_failed_changes_nothing(written: Any) -> None:
    """It is only noted."""
    session = written(
        event("u", "user.message", content="go"), event("c", "session.compaction_complete", success=False, error="no")
    )
    assert [message["content"][0]["text"] for message in session.context().messages] == ["go"]


def test_damaged_and_newer_events_give_what_can_be_read_and_a_finding(written: Any, tmp_path: Path) -> None:
    """A torn row, a row that is no event, an id that occurs twice, and a sort of event that is not known."""
    asked = event("u", "user.message", content="go", transformedContent="<now>1</now>\n\ngo")
    session = written(asked, event("x", "session.hologram", depth=3), {"type": "odd"}, asked, end='{"type":"us')
    assert [entry.body["type"] for entry in session.get_entries()] == ["custom", "message", "custom"]
    assert session.get_entries()[2].body["data"] == {"depth": 3}
    with Store(tmp_path / "other") as store:
        problems = [problem.kind for problem in check(store, session.path).problems]
    assert sorted(problems) == ["damaged_source", "damaged_source", "not_json"]


def test_a_rename_and_a_rewind_are_noticed(written: Any, tmp_path: Path) -> None:
    """A rename changes only the file beside the events; a rewind makes the events fewer."""
    session = written(event("u", "user.message", content="go"), event("v", "user.message", content="on"))
    folder = Path(session.path).parent
    with Library(Store(tmp_path / "other"), [Source("copilot", str(tmp_path), str(folder.parent))]) as library:
        (row,) = library.list(Filter(hide=()), timeout=None).rows
        assert row.title in (None, "")
        (folder / "workspace.yaml").write_text("name: mill\n")
        (row,) = library.list(Filter(hide=()), timeout=None).rows
        assert row.title == "mill"
        written(event("u", "user.message", content="go"))
        library.catch_up()
        (row,) = library.list(Filter(hide=()), timeout=None).rows
        assert row.counts is not None and row.counts.user_messages == 1
