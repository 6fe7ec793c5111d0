"""Listings, infos, messages and pages equal those of the two Claude Agent SDKs on the same transcripts."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from figures import measured
from sessile.agents.claude.listing import SessionInfo
from sessile.agents.claude.paths import slug
from sessile.agents.claude.sdk import ClaudeSessions, SessionMessage
from sessile.storage.filesystem import PosixFilesystem

pytestmark = [pytest.mark.mission("C10"), pytest.mark.mission("C11")]

FIXTURES = Path(__file__).parents[1] / "fixtures" / "claude"
CORPORA = ("branches", "compaction")
TS_NAMES = {
    "sessionId": "session_id",
    "lastModified": "last_modified",
    "fileSize": "file_size",
    "customTitle": "custom_title",
    "firstPrompt": "first_prompt",
    "gitBranch": "git_branch",
    "createdAt": "created_at",
}


def fixture(name: str) -> Any:
    return json.loads(gzip.decompress((FIXTURES / f"{name}.json.gz").read_bytes()))


EXPECTED = {name: {"python-sdk": fixture(name), "ts": fixture(f"{name}.ts")} for name in CORPORA}
SESSIONS = [(corpus, case) for corpus in CORPORA for case in EXPECTED[corpus]["ts"]["sessions"]]


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ClaudeSessions]:
    """Write the transcripts of each corpus to disk, with the times that the SDKs saw."""
    found = {}
    for corpus in CORPORA:
        home = tmp_path_factory.mktemp(corpus)
        modified = {info["session_id"]: info["last_modified"] for info in EXPECTED[corpus]["python-sdk"]["list_all"]}
        for name, text in fixture(f"{corpus}.files").items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8", newline="\n")
            moment = modified.get(path.stem, 0) / 1000
            os.utime(path, (moment, moment))
        found[corpus] = ClaudeSessions(PosixFilesystem(), str(home))
    return found


def told(info: SessionInfo | None) -> dict[str, Any] | None:
    """Return an info without unknown values."""
    if info is None:
        return None
    names = (*TS_NAMES.values(), "summary", "cwd", "tag")
    return {name: getattr(info, name) for name in names if getattr(info, name) is not None}


def expected_info(info: dict[str, Any] | None) -> dict[str, Any] | None:
    if info is None:
        return None
    return {TS_NAMES.get(name, name): value for name, value in info.items() if value is not None}


def shown(message: SessionMessage) -> dict[str, Any]:
    digest = hashlib.sha256(json.dumps(message.message, sort_keys=True).encode()).hexdigest()
    members = ("type", "uuid", "session_id", "parent_tool_use_id", "parent_agent_id")
    return {**{name: getattr(message, name) for name in members}, "sha": digest[:12]}


def test_no_vector_is_missing() -> None:
    """The fixtures hold all cases of both corpora, the same for both SDKs."""
    assert len(SESSIONS) == 42
    for corpus in CORPORA:
        assert EXPECTED[corpus]["ts"]["sessions"].keys() == EXPECTED[corpus]["python-sdk"]["sessions"].keys()


@pytest.mark.promise("P44")
@pytest.mark.parametrize(("corpus", "case"), SESSIONS)
def test_messages_equal_those_of_the_typescript_sdk(homes: dict[str, ClaudeSessions], corpus: str, case: str) -> None:
    """The default view returns the rows of the TypeScript SDK, with and without system rows."""
    expected = EXPECTED[corpus]["ts"]["sessions"][case]
    sessions, session_id = homes[corpus], expected["session_id"]
    messages = sessions.get_session_messages(session_id)
    wanted = [{name: value for name, value in each.items() if name != "text"} for each in expected["messages"]]
    assert [{name: value for name, value in shown(each).items() if name != "sha"} for each in messages] == wanted
    with_system = sessions.get_session_messages(session_id, include_system=True)
    assert [each.type for each in with_system] == [each.split(":")[0] for each in expected["with_system"]]
    assert sessions.list_subagents(session_id) == expected["subagents"]
    measured("P44", "messages of Claude's two SDKs", sessions=1, messages=len(messages), differences=0)


@pytest.mark.promise("P44")
@pytest.mark.parametrize(("corpus", "case"), SESSIONS)
def test_messages_equal_those_of_the_python_sdk(homes: dict[str, ClaudeSessions], corpus: str, case: str) -> None:
    """The python-sdk view returns the rows, contents and pages of the Python SDK."""
    expected = EXPECTED[corpus]["python-sdk"]["sessions"][case]
    sessions, session_id = homes[corpus], expected["session_id"]
    messages = sessions.get_session_messages(session_id, view="python-sdk")
    wanted = [{name: value for name, value in each.items() if name != "text"} for each in expected["messages"]]
    assert [shown(each) for each in messages] == wanted
    if "page_1_2" in expected:
        page = sessions.get_session_messages(session_id, limit=2, offset=1, view="python-sdk")
        assert [each.uuid for each in page] == expected["page_1_2"]
    assert sessions.list_subagents(session_id, view="python-sdk") == expected["subagents"]
    measured("P44", "messages of Claude's two SDKs", sessions=1, messages=len(messages), differences=0)


@pytest.mark.parametrize("view", ["ts", "python-sdk"])
@pytest.mark.parametrize(("corpus", "case"), SESSIONS)
def test_info_equals_that_of_the_sdk(homes: dict[str, ClaudeSessions], corpus: str, case: str, view: Any) -> None:
    """Title, prompt, branch, times and size of each session equal those of the SDK, by id and by directory."""
    expected = EXPECTED[corpus][view]["sessions"][case]
    sessions, session_id = homes[corpus], expected["session_id"]
    cwd = next(iter(EXPECTED[corpus][view]["list_by_cwd"]))
    info, in_cwd = expected_info(expected["info"]), expected_info(expected["info_in_cwd"])
    assert told(sessions.get_session_info(session_id, view=view)) == info
    assert told(sessions.get_session_info(session_id, cwd, view=view)) == in_cwd


@pytest.mark.parametrize("view", ["ts", "python-sdk"])
@pytest.mark.parametrize("corpus", CORPORA)
def test_listing_equals_that_of_the_sdk(homes: dict[str, ClaudeSessions], corpus: str, view: Any) -> None:
    """All sessions, those of a directory, and pages of them have the order of the SDK."""
    expected, sessions = EXPECTED[corpus][view], homes[corpus]
    assert [told(info) for info in sessions.list_sessions(view=view)] == [
        expected_info(info) for info in expected["list_all"]
    ]
    for cwd, listed in expected["list_by_cwd"].items():
        for name, worktrees in (("worktrees", True), ("no_worktrees", False)):
            found = sessions.list_sessions(cwd, include_worktrees=worktrees, view=view)
            assert [info.session_id for info in found] == listed[name]


@pytest.mark.parametrize("corpus", CORPORA)
def test_pages_of_a_listing_equal_those_of_the_python_sdk(homes: dict[str, ClaudeSessions], corpus: str) -> None:
    """A limit of zero and a negative offset are ignored, and an offset past the end is empty."""
    expected, sessions = EXPECTED[corpus]["python-sdk"], homes[corpus]
    pages = expected["pages"]
    assert [each.session_id for each in sessions.list_sessions(limit=2)] == pages["limit2"]
    assert [each.session_id for each in sessions.list_sessions(limit=2, offset=1)] == pages["limit2_off1"]
    assert len(sessions.list_sessions(limit=0)) == pages["limit0_count"]
    assert sessions.list_sessions(offset=10_000) == pages["off_past_end"]
    assert len(sessions.list_sessions(offset=-1)) == pages["neg_offset_count"]
    assert {cwd: slug(cwd) for cwd in expected["project_key"]} == expected["project_key"]
    assert len(sessions.list_sessions(include_programmatic=False)) == EXPECTED[corpus]["ts"]["interactive_only_count"]


@pytest.mark.parametrize("session_id", ["not-a-uuid", "00000000-0000-4000-8000-000000000000"])
@pytest.mark.parametrize("view", ["ts", "python-sdk"])
def test_a_session_that_is_not_there_is_an_empty_answer(
    homes: dict[str, ClaudeSessions], session_id: str, view: Any
) -> None:
    """An invalid and an unknown id have no messages, no info and no sub-agents."""
    sessions = homes["branches"]
    assert sessions.get_session_messages(session_id, view=view) == []
    assert sessions.get_session_info(session_id, view=view) is None
    assert sessions.list_subagents(session_id, view=view) == []
    assert sessions.get_subagent_messages(session_id, "x", view=view) == []
