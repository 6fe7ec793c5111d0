"""Cline: folders with a manifest, messages and a compaction, as the real program left them and as written files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agent_homes import AgentHome, names
from agent_records import unpack
from sessile import Filter, Library, Store
from sessile.agents.base import Agent
from sessile.agents.cline import Cline
from sessile.agents.registry import AGENTS
from sessile.library import sub_agents
from sessile.storage.layout import Source
from sessile.testing.agent_contract import RenderedContract
from sessile.upkeep.check import check

TALK = "1794867485434_bqlgv"


@pytest.fixture(autouse=True, scope="class")
def _home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Unpack the home of the class's agent."""
    if request.cls is not None:
        request.cls.home = str(unpack("cline", tmp_path_factory.mktemp("cline")) / "home")


class TestCline(RenderedContract):
    """The contract of Cline."""

    agent: ClassVar[Agent] = Cline()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentHome]:
    """The home of the record."""
    found = AgentHome("cline", tmp_path_factory.mktemp("cline"))
    yield found
    found.close()


@pytest.mark.mission("N4")
def test_sessions_are_listed_with_titles_projects_and_usage(home: AgentHome) -> None:
    """The manifest has the title and the folder, and each answer its usage."""
    rows = home.rows()
    talk = rows[TALK]
    assert len([row for row in rows.values() if not row.sub_agent]) == 3
    assert (talk.title, str(talk.cwd).rpartition("/")[2], talk.problem) == ("Renamed: tide pool 潮池", "alpha", None)
    assert talk.first_text == "Hello, please tell me one fact about barnacles."
    assert talk.created is not None and talk.created.isoformat().startswith("2026-11-16T22:18:05")
    used = [
        message["metrics"] for message in json.loads(Path(talk.path).read_text())["messages"] if "metrics" in message
    ]
    assert talk.counts is not None
    assert talk.counts.output_tokens == sum(usage["outputTokens"] for usage in used)
    assert talk.counts.compactions == 1


@pytest.mark.mission("N4")
def test_every_prompt_that_was_sent_is_found(home: AgentHome) -> None:
    """Also what was attached, but not a prompt of a session in another home."""
    home.rows()
    asked = [text for text in home.prompts() if not re.search(r"\(new home\)|^Context summary", text)]
    assert len(asked) > 20
    assert [text for text in asked if not home.library.search(json.dumps(text, ensure_ascii=False)).hits] == []


def test_a_sub_agent_belongs_to_its_session(home: AgentHome) -> None:
    """Its messages are in the session's folder, and its manifest is in a folder of its own."""
    talk = home.rows()[TALK]
    (found,) = sub_agents(home.store, talk.path)
    assert found.description == "sub prompt: count things"
    assert len(Cline().belongings(home.store.fs, talk.path)) == 4


def test_environment_variables_move_the_home() -> None:
    """Each folder can be moved, and those below it follow."""
    told: tuple[dict[str, str], ...] = (
        {},
        {"CLINE_DIR": "/c"},
        {"CLINE_DATA_DIR": "/d"},
        {"CLINE_DATA_DIR": "/d", "CLINE_SESSION_DATA_DIR": "/s"},
    )
    expected = ["/nowhere/.cline/data/sessions", "/c/data/sessions", "/d/sessions", "/s"]
    assert [Cline().sources("/nowhere", environ, names)[0].sessions for environ in told] == expected
    missing = (AGENTS.sources("/nowhere", environ, lambda path: ()) for environ in told)
    assert [{source.agent: source.root for source in sources}["cline"] for sources in missing] == expected


# -- written files


def said(name: str, *blocks: Any, **members: Any) -> dict[str, Any]:
    role = "user" if name.startswith("u") else "assistant"
    content = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
    return {"id": name, "role": role, "content": content, "ts": 1_767_225_600_000, **members}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder of a session."""
    folder = tmp_path / "sessions" / "s1"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def written(place: Path, tmp_path: Path) -> Iterator[Any]:
    """Returns a function that writes messages and opens them."""
    store = Store(tmp_path / "own")
    path = place / "s1.messages.json"

    def opened(*messages: Any, cut: int = 0, compaction: Any = None) -> Any:
        document = {"version": 1, "updated_at": "2026-01-01T00:00:00.000Z", "agent": "lead", "sessionId": "s1"}
        data = json.dumps({**document, "messages": messages}, indent=2)
        path.write_text(data[: len(data) - cut])
        if compaction is not None:
            (place / "s1.compaction.json").write_text(
                compaction if isinstance(compaction, str) else json.dumps(compaction)
            )
        return store.open(str(path), readonly=True)

    yield opened
    store.close()


def texts(session: Any) -> list[str]:
    """Return the texts and calls of the context."""
    blocks = [block for message in session.context().messages for block in message["content"]]
    return [block.get("text") or block.get("name") for block in blocks]


def problems(session: Any, tmp_path: Path) -> list[str]:
    with Store(tmp_path / "other") as store:
        return [problem.kind for problem in check(store, session.path).problems]


def test_a_prompt_is_what_the_user_typed(written: Any) -> None:
    """The tag around it is not sent; its mode is kept."""
    session = written(said("u1", '<user_input mode="plan">go\non</user_input>'), said("a1", "ok"))
    assert texts(session) == ["go\non", "ok"]
    assert session.get_entries()[0].body["cline"] == {"mode": "plan"}


def test_errors_on_the_screen_are_not_sent(written: Any) -> None:
    """They are kept as notes."""
    error = said("error_1", "bad request", metadata={"displayOnly": True, "displayRole": "error"})
    session = written(said("u1", "one"), error, said("u2", "two"))
    assert texts(session) == ["one", "two"]
    assert [entry.body["type"] for entry in session.get_entries()] == ["message", "custom", "message"]


def test_a_compaction_is_joined_with_the_messages(written: Any) -> None:
    """The summary stands for what it replaces; kept messages are shown once, and later ones follow."""
    talk = [said("u1", "one"), said("a1", "first"), said("u2", "two"), said("a2", "second"), said("u3", "three")]
    summary = {**said("u0", "Context summary: all"), "metadata": {"kind": "compaction_summary", "summary": "all"}}
    del summary["id"]
    left = {"source_message_count": 4, "source_last_message_key": "id:a2", "messages": [summary, talk[2], talk[3]]}
    session = written(*talk, compaction=left)
    assert texts(session) == ["Context summary: all", "two", "second", "three"]
    assert len(session.get_entries()) == 6
    counted = written(*talk, compaction={**left, "source_last_message_key": "id:gone"})
    assert texts(counted) == ["Context summary: all", "two", "second", "three"]


def test_a_compaction_of_other_messages_is_a_finding(written: Any, tmp_path: Path) -> None:
    """Then the messages are shown as they are."""
    session = written(said("u1", "one"), compaction={"source_message_count": 9, "messages": [said("u0", "all")]})
    assert texts(session) == ["one"] and problems(session, tmp_path) == ["damaged_source"]
    session = written(said("u1", "one"), compaction='{"source')
    assert texts(session) == ["one"] and problems(session, tmp_path) == ["damaged_source"]


@pytest.mark.parametrize("length", [8000, 8001, 8040, 99_999, 100_001])
def test_a_long_result_is_sent_without_its_middle(written: Any, length: int) -> None:
    """At most 8000 characters of a text are sent; the whole is kept."""
    call = {"type": "tool_use", "id": "c", "name": "run", "input": {}}
    content = [{"query": "q", "result": "é" * length, "success": True}]
    result = {"type": "tool_result", "tool_use_id": "c", "name": "run", "content": content}
    session = written(said("a1", call), said("u1", result))
    message = session.get_entries()[1].body["message"]
    sent = json.loads(message["content"][0]["text"])[0]["result"]
    assert len(sent) <= 8000 and ("truncated" in sent) is (length > 8000)
    assert json.loads(message.get("fullOutput", message["content"][0]["text"])) == content


def test_a_half_written_document_gives_the_messages_that_are_whole(written: Any, tmp_path: Path) -> None:
    """With a finding; one that has not come to its messages is a problem."""
    session = written(said("u1", "one"), said("a1", "first"), said("u2", "two"), cut=60)
    assert texts(session) == ["one", "first"] and problems(session, tmp_path) == ["damaged_source"]
    odd = written(said("u1", "one"), 7, {"role": "user", "content": "no id"}, said("u1", "again"))
    assert texts(odd) == ["one", "no id", "again"] and problems(odd, tmp_path) == ["damaged_source"]


def test_a_rename_is_noticed_and_nothing_is_read_twice(written: Any, place: Path, tmp_path: Path) -> None:
    """It changes only the manifest."""
    written(said("u1", "one"))
    with Library(Store(tmp_path / "other"), [Source("cline", str(tmp_path), str(place.parent))]) as library:
        (row,) = library.list(Filter(hide=()), timeout=None).rows
        assert (row.id, row.title or "") == ("s1", "")
        (place / "s1.json").write_text(json.dumps({"session_id": "s1", "cwd": "/w", "metadata": {"title": "mill"}}))
        (row,) = library.list(Filter(hide=()), timeout=None).rows
        assert (row.title, row.cwd) == ("mill", "/w")
