"""Agents whose sessions are not rows of a file: their contract, and what becomes of changes, rewinds and damage."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agent_records import unpack
from sessile import Filter, Library, Store
from sessile.agents.base import Agent
from sessile.agents.continuedev import Continue
from sessile.agents.gemini import GeminiCli
from sessile.agents.kilo import Kilo
from sessile.agents.opencode import OpenCode
from sessile.agents.registry import AGENTS
from sessile.library import sub_agents
from sessile.storage import packed
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.layout import Source
from sessile.testing.agent_contract import RenderedContract
from sessile.upkeep.check import check


@pytest.fixture(autouse=True, scope="class")
def _home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Unpack the home of the class's agent."""
    agent = getattr(request.cls, "agent", None)
    if agent is not None:
        request.cls.home = str(unpack(agent.name, tmp_path_factory.mktemp(agent.name)) / "home")


class TestOpenCode(RenderedContract):
    """The contract of OpenCode."""

    agent: ClassVar[Agent] = OpenCode()


class TestKilo(RenderedContract):
    """The contract of Kilo."""

    agent: ClassVar[Agent] = Kilo()


class TestGemini(RenderedContract):
    """The contract of Gemini CLI."""

    agent: ClassVar[Agent] = GeminiCli()


class TestContinue(RenderedContract):
    """The contract of Continue."""

    agent: ClassVar[Agent] = Continue()


# -- Gemini CLI

HEAD = {"sessionId": "s1", "projectHash": "h", "startTime": "2026-01-01T00:00:00.000Z", "kind": "main"}
CONTEXT = {"id": "c0ffee", "type": "user", "content": [{"text": "<session_context> here"}]}


def said(name: str, text: str, **members: Any) -> dict[str, Any]:
    kind = "user" if name.startswith("u") else "gemini"
    content = [{"text": text}] if kind == "user" else text
    return {"id": f"{name}-1", "timestamp": "2026-01-01T00:00:01.000Z", "type": kind, "content": content, **members}


def called(name: str, *, done: bool) -> dict[str, Any]:
    """Return an answer with a call, and its result if it is done."""
    response = {"functionResponse": {"id": f"ls__{name}", "name": "ls", "response": {"output": "a file"}}}
    call = {"id": f"ls__{name}", "name": "ls", "args": {"path": "."}, **({"result": [response]} if done else {})}
    return said(name, "look", toolCalls=[call])


def replaced(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"$set": {"messages": list(messages)}}


@pytest.fixture
def gemini(tmp_path: Path) -> Iterator[Any]:
    """Returns a function that writes a log and opens it."""
    chats = tmp_path / "gemini" / "tmp" / "mill" / "chats"
    chats.mkdir(parents=True)
    (chats.parent / ".project_root").write_text("/work/mill")
    path = chats / "session-2026-01-01T00-00-s1.jsonl"
    store = Store(tmp_path / "own")

    def opened(*rows: dict[str, Any], raw: bytes | None = None) -> Any:
        path.write_bytes(raw or b"".join(json.dumps(row).encode() + b"\n" for row in (HEAD, *rows)))
        return store.open(str(path), readonly=True)

    yield opened
    store.close()


def texts(session: Any) -> list[str]:
    """Return the texts, calls and results of the context."""
    found = []
    for message in session.context().messages:
        for block in message["content"]:
            found.append(block.get("text") or block.get("name"))
    return found


def test_a_message_is_replaced_by_its_later_form(gemini: Any) -> None:
    """A call that ends later is one answer with one result, though the result is stored twice."""
    again = {**called("g1", done=True)["toolCalls"][0]["result"][0]}
    result = {"id": "u9-1", "type": "user", "content": [again]}
    session = gemini(said("u1", "go"), called("g1", done=False), called("g1", done=True), result, said("g2", "done"))
    assert texts(session) == ["go", "look", "ls", "a file", "done"]
    assert len(session.get_entries()) == 4


def test_a_rewind_leaves_a_branch(gemini: Any) -> None:
    """What was taken back is still there, and the conversation goes on before it."""
    talk = [said("u1", "one"), said("g1", "first"), said("u2", "two"), said("g2", "second")]
    session = gemini(*talk, {"$rewindTo": "u2-1"}, replaced(*talk[:2]), said("u3", "three"))
    assert texts(session) == ["one", "first", "three"]
    assert {entry.id for entry in session.get_entries()} == {"u1-1", "g1-1", "u2-1", "g2-1", "u3-1"}
    ended = gemini(*talk, {"$rewindTo": "u2-1"})
    assert texts(ended) == ["one", "first"] and ended.leaf_id == "g1-1"


def test_a_resume_repeats_nothing_and_loses_no_usage(gemini: Any) -> None:
    """It sets a list with the surroundings only, then the whole list without usage."""
    tokens = {"input": 1000, "cached": 100, "output": 10, "thoughts": 5, "total": 1015}
    answer = said("g1", "first", tokens=tokens, model="m")
    bare = {**said("g1", ""), "content": [{"text": "first"}]}
    session = gemini(
        replaced(CONTEXT),
        said("u1", "one"),
        answer,
        HEAD,
        replaced(CONTEXT),
        replaced(CONTEXT, said("u1", "one"), bare),
    )
    assert texts(session) == ["<session_context> here", "one", "first"]
    (message,) = [entry["message"] for entry in session.get_entries() if entry.id == "g1-1"]
    usage = message["usage"]
    assert (usage["input"], usage["cacheRead"], usage["output"]) == (900, 100, 15) and message["model"] == "m"


def test_new_surroundings_take_the_place_of_old_ones(gemini: Any) -> None:
    """From the next prompt on; earlier contexts keep theirs."""
    other = {**CONTEXT, "content": [{"text": "<session_context> there"}]}
    rows = [
        replaced(CONTEXT),
        said("u1", "one"),
        said("g1", "first"),
        replaced(other, said("u1", "one"), said("g1", "first")),
    ]
    session = gemini(*rows, said("u2", "two"))
    assert texts(session)[0] == "<session_context> there"
    assert session.context("g1-1").messages[0]["content"][0]["text"] == "<session_context> here"


def test_a_compression_keeps_the_end(gemini: Any) -> None:
    """The messages that stand for the rest come first; what was kept has new ids, but is not doubled."""
    talk = [said("u1", "one"), said("g1", "first"), said("u2", "two"), said("g2", "second")]
    kept = [{**said("u2", "two"), "id": "x-1"}, {**said("g2", "second"), "id": "y-1"}]
    short = [said("u8", "snapshot"), said("g8", "Got it"), *kept]
    session = gemini(replaced(CONTEXT), *talk, replaced(CONTEXT, *short), said("u3", "three"))
    assert texts(session) == ["<session_context> here", "snapshot", "Got it", "two", "second", "three"]
    assert [entry["type"] for entry in session.get_entries()].count("compaction") == 1
    assert len(session.get_entries()) == 7


def test_a_message_taken_out_of_the_middle_is_not_sent(gemini: Any) -> None:
    """It stays in the session."""
    talk = [said("u1", "one"), said("g1", "first"), said("u2", "two"), said("g2", "second")]
    session = gemini(*talk, replaced(talk[0], talk[2], talk[3]))
    assert texts(session) == ["one", "two", "second"]
    assert session.get_entry("g1-1") is not None


def test_an_older_document_is_read(gemini: Any) -> None:
    """Before the logs, a session was one JSON document."""
    document = {**HEAD, "messages": [said("u1", "one"), said("g1", "first")]}
    assert texts(gemini(raw=json.dumps(document, indent=2).encode())) == ["one", "first"]


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_log_gives_what_can_be_read(gemini: Any, seed: int) -> None:
    """Random bytes, cuts and unknown rows are findings; the rest is read."""
    chance = random.Random(seed)
    talk = [said(f"{'ug'[number % 2]}{number}", f"text {number}") for number in range(12)]
    lines = [
        json.dumps(row).encode()
        for row in (HEAD, replaced(CONTEXT), *talk, {"$new": 1}, [1], {"$set": {"messages": [7]}})
    ]
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(1, len(lines))
        line = lines[place]
        at = chance.randrange(len(line) + 1)
        lines[place] = chance.choice([line[:at], line[:at] + b"\xff\x00" + line[at:], line + b"}", b"", line[at:]])
    session = gemini(raw=b"\n".join(lines))
    ids = [entry.id for entry in session.get_entries()]
    assert len(ids) == len(set(ids))
    assert session.findings
    session.context()


def test_files_that_a_resume_leaves_are_not_sessions(tmp_path: Path) -> None:
    """The sub-agents of a session are found by its id."""
    home = unpack("gemini", tmp_path) / "home"
    source = Source("gemini", str(home / ".gemini"), str(home / ".gemini" / "tmp"))
    with Library(Store(tmp_path / "own"), [source]) as library:
        rows = library.list(Filter(hide=()), timeout=None).rows
        assert len(rows) == len({row.id for row in rows}) == 6
        path = library.find("aaaaaaaa-1111-4111-8111-111111111101")
        assert [agent.messages for agent in sub_agents(library.store, path)] == [3]
        assert library.count_agents(path) == 1


@pytest.mark.parametrize(
    ("rule", "days", "problem"),
    [
        (None, None, False),
        ({"enabled": False, "maxAge": "30d"}, None, False),
        ({"enabled": True, "maxAge": "30d"}, 30, False),
        ({"maxAge": "2w"}, 14, False),
        ({"maxAge": "soon"}, None, True),
    ],
)
def test_the_settings_say_how_long_sessions_are_kept(rule: object, days: int | None, problem: bool) -> None:
    """A rule that cannot be understood is a problem: an unknown deadline must not look safe."""
    period = GeminiCli().period({"settings.json": json.dumps({"general": {"sessionRetention": rule}}).encode()})
    assert period.length == (None if days is None else days * 24 * 3600 * 1000)
    assert (period.problem is not None) is problem


# -- Continue


def test_an_incomplete_document_is_a_problem_not_a_crash(tmp_path: Path) -> None:
    """The program may be writing it; the next look tries again."""
    place = tmp_path / "sessions"
    place.mkdir()
    path = place / "0a0a0a0a-0000-4000-8000-000000000000.json"
    history = [{"message": {"role": "user", "content": "hi"}}, 7]
    document = {"sessionId": path.stem, "title": "T", "workspaceDirectory": "/w", "history": history}
    data = json.dumps(document, indent=2)
    with Library(Store(tmp_path / "own"), [Source("continue", str(tmp_path), str(place))]) as library:
        path.write_text(data[:-5])
        (row,) = library.list(Filter(hide=()), timeout=None).rows
        assert row.problem is not None
        path.write_text(data)
        (row,) = library.list(Filter(hide=()), timeout=None).rows
        assert (row.problem, row.title, row.first_text) == (None, "T", "hi")
        report = check(library.store, row.path)
        assert [problem.kind for problem in report.problems] == ["damaged_source"]


# -- limits


@pytest.mark.parametrize("name", ["opencode", "gemini"])
def test_a_rendered_session_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It may take a fixed size or a multiple of its file's size, as an archive may; one byte more is reported as damage."""
    home = unpack(name, tmp_path / "record") / "home"
    fs = PosixFilesystem()
    found = AGENTS.sources(
        str(home), {}, lambda folder: [p.name for p in Path(folder).iterdir()] if Path(folder).is_dir() else []
    )
    with Library(Store(tmp_path / "own"), [each for each in found if Path(each.sessions).exists()]) as library:
        path = library.list(Filter(hide=()), timeout=None).rows[0].path

    def opened() -> packed.Rows:
        rows = packed.open_rows(fs, path, AGENTS)
        fs.close(rows.fd)
        return rows

    whole = opened()
    monkeypatch.setattr(packed, "TIMES", 0)
    monkeypatch.setattr(packed, "ALWAYS", whole.size)
    assert (opened().size, opened().damage) == (whole.size, whole.damage)
    monkeypatch.setattr(packed, "ALWAYS", whole.size - 1)
    cut = opened()
    assert 0 < cut.size < whole.size
    assert cut.damage[-1].code == "damaged_archive" and f"more than {whole.size - 1} bytes" in cut.damage[-1].detail
    monkeypatch.setattr(packed, "TIMES", 1000)
    assert (opened().size, opened().damage) == (whole.size, whole.damage)
