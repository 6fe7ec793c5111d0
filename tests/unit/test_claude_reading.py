"""Reading Claude Code's folder: listing, finding, worktrees, sub-agents, state and checks, without writing."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import sessile
from claude_trees import SESSION, boundary, lines, row
from sessile.agents.claude.checking import TranscriptReport, check_transcript
from sessile.agents.claude.paths import slug
from sessile.agents.claude.sdk import ClaudeSessions, no_worktrees
from sessile.errors import SessileError
from sessile.storage.filesystem import PosixFilesystem

pytestmark = pytest.mark.mission("C11")

OTHER = "99999999-2222-4333-8444-555555555555"
TALK = [row("user", "a", cwd="/w"), row("assistant", "b", "a")]


class Home:
    """A config home on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[SessileError] = []

    def put(self, project: str, name: str, data: bytes | list[dict[str, Any]], modified: int = 1000) -> Path:
        path = self.path / "projects" / project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else lines(data))
        os.utime(path, (modified, modified))
        return path

    def sessions(self, worktrees: Sequence[str] = ()) -> ClaudeSessions:
        asked = (lambda directory: worktrees) if worktrees else no_worktrees
        return ClaudeSessions(PosixFilesystem(), str(self.path), worktrees=asked, problems=self.problems)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_only_transcripts_are_listed_newest_first(home: Home) -> None:
    """Files whose name is not a UUID, empty files and folders are not sessions."""
    home.put("-w", f"{SESSION}.jsonl", TALK, 1000)
    home.put("-w", f"{OTHER.upper()}.jsonl", TALK, 2000)
    home.put("-w", "agent-x.jsonl", TALK)
    home.put("-w", "sessions-index.json", b"{}")
    home.put("-w", f"{OTHER.replace('9', '8')}.jsonl", b"")
    assert [info.session_id for info in home.sessions().list_sessions()] == [OTHER.upper(), SESSION]


def test_a_copied_session_is_listed_once_by_its_newest_file(home: Home) -> None:
    """Of two files with the same id the newest is listed, but the first folder answers for the id."""
    home.put("-a", f"{SESSION}.jsonl", [row("user", "x", message={"content": "old"})], 1000)
    home.put("-b", f"{SESSION}.jsonl", [row("user", "x", message={"content": "new"})], 2000)
    sessions = home.sessions()
    assert [info.summary for info in sessions.list_sessions()] == ["new"]
    info = sessions.get_session_info(SESSION)
    assert info is not None
    assert info.summary == "old"


def test_worktrees_are_listed_by_their_exact_slug(home: Home) -> None:
    """The folders of worktrees are included, but not others with the same prefix; a single worktree adds nothing."""
    home.put("-r", f"{SESSION}.jsonl", TALK)
    home.put("-r-wt", f"{OTHER}.jsonl", TALK)
    home.put("-r-foo", f"{OTHER.replace('9', '8')}.jsonl", TALK)
    both = home.sessions(["/r", "/r-wt"])
    assert {info.session_id for info in both.list_sessions("/r")} == {SESSION, OTHER}
    assert [info.session_id for info in both.list_sessions("/r", include_worktrees=False)] == [SESSION]
    assert [info.session_id for info in home.sessions(["/r"]).list_sessions("/r")] == [SESSION]
    assert home.sessions(["/r", "/r-wt"]).get_session_messages(OTHER, "/r") != []
    assert home.sessions().get_session_messages(OTHER, "/r") == []


def test_a_long_path_is_found_under_another_hash(home: Home) -> None:
    """Older releases hashed long paths differently: a folder with the same prefix counts if its sessions confirm it."""
    path = "/" + "x" * 300
    home.put(slug(path)[:201] + "bunhash", f"{SESSION}.jsonl", lines([row("user", "u", cwd=path)]))
    home.put(slug(path)[:201] + "other", f"{OTHER}.jsonl", TALK)
    assert [info.session_id for info in home.sessions().list_sessions(path)] == [SESSION]
    assert home.sessions().list_sessions("/" + "x" * 150) == []
    assert [info.session_id for info in home.sessions().list_sessions(path, view="python-sdk")] == [SESSION]


@pytest.mark.mission("C1")
def test_an_emoji_in_the_path_is_found_but_not_in_the_python_view(home: Home) -> None:
    """The folder that Claude Code creates is found; the Python SDK looks elsewhere."""
    home.put(slug("/😀"), f"{SESSION}.jsonl", TALK)
    assert len(home.sessions().list_sessions("/😀")) == 1
    assert home.sessions().list_sessions("/😀", view="python-sdk") == []


def test_an_empty_stub_does_not_hide_the_session(home: Home) -> None:
    """The first file that is not empty is used."""
    home.put("-a", f"{SESSION}.jsonl", b"")
    home.put("-b", f"{SESSION}.jsonl", TALK)
    assert [each.uuid for each in home.sessions().get_session_messages(SESSION)] == ["a", "b"]


def test_what_cannot_be_read_is_told(home: Home) -> None:
    """A link instead of a transcript is not followed; the listing continues and the problem is reported."""
    target = home.put("-w", f"{OTHER}.jsonl", TALK)
    (home.path / "projects" / "-w" / f"{SESSION}.jsonl").symlink_to(target)
    assert [info.session_id for info in home.sessions().list_sessions()] == [OTHER]
    assert [os.path.basename(problem.path or "") for problem in home.problems] == [f"{SESSION}.jsonl"]


def test_pages_are_cut_as_both_sdks_cut_them(home: Home) -> None:
    """A limit of zero is ignored; a negative offset counts only with a limit."""
    names = ["a", "b", "c", "d"]
    parents = [None, *names]
    home.put("-w", f"{SESSION}.jsonl", [row("user", name, parents[at]) for at, name in enumerate(names)])

    def page(limit: int | None, offset: int) -> str:
        messages = home.sessions().get_session_messages(SESSION, limit=limit, offset=offset)
        return "".join(message.uuid for message in messages)

    assert [page(2, 1), page(0, 1), page(-1, 0), page(None, -1), page(2, -1), page(None, 9)] == [
        "bc", "bcd", "abcd", "abcd", "", "",
    ]  # fmt: skip


@pytest.mark.mission("C5")
def test_sub_agents_are_found_in_order_and_know_who_called_them(home: Home) -> None:
    """Files and folders are sorted by name, the first of an id counts, and the sidecar names the caller."""
    home.put("-w", f"{SESSION}.jsonl", TALK)
    below = f"-w/{SESSION}/subagents"
    home.put(below, "agent-x.jsonl", [row("user", "top", isSidechain=True)])
    home.put(below, "agent-x.meta.json", b'{"toolUseId":"call","parentAgentId":""}')
    home.put(below, "journal.jsonl", b"{}\n")
    home.put(f"{below}/aa", "agent-y.jsonl", [row("user", "y", isSidechain=True)])
    home.put(f"{below}/workflows/w", "agent-x.jsonl", [row("user", "deep")])
    sessions = home.sessions()
    assert sessions.list_subagents(SESSION) == ["y", "x", "x"]
    message = sessions.get_subagent_messages(SESSION, "x")[0]
    assert (message.uuid, message.parent_tool_use_id, message.parent_agent_id) == ("top", "call", None)
    assert sessions.get_subagent_messages(SESSION, "x", view="python-sdk")[0].parent_agent_id == ""
    assert sessions.get_subagent_messages(SESSION, "y")[0].parent_tool_use_id is None
    assert sessions.get_subagent_messages(SESSION, "") == []
    home.put(below, "agent-y.meta.json", b"not json")
    assert sessions.get_subagent_messages(SESSION, "y")[0].parent_tool_use_id is None
    home.put("-w", f"{SESSION}.jsonl", b"")
    assert sessions.list_subagents(SESSION) == []


@pytest.mark.mission("C6")
def test_the_state_of_a_session_is_read_back(home: Home) -> None:
    """Titles and queued prompts are read, also after a torn row on the same line."""
    queue = {"type": "queue-operation", "operation": "enqueue", "content": "later", "timestamp": "t"}
    title = {"type": "custom-title", "customTitle": "T", "sessionId": SESSION, "timestamp": "t"}
    home.put("-w", f"{SESSION}.jsonl", lines([*TALK, queue]) + b'{"parentUuid":"torn' + lines([title]))
    state = home.sessions().get_session_state(SESSION)
    assert [each["content"] for each in state.queue] == ["later"]
    assert state.values == {"custom-title": "T"}
    assert home.sessions().get_session_state(OTHER).values == {}


def snapshot(path: Path) -> dict[str, tuple[int, bytes]]:
    return {str(each): (each.stat().st_mtime_ns, each.read_bytes()) for each in path.rglob("*") if each.is_file()}


def test_reading_never_writes(home: Home) -> None:
    """After every call each file has its bytes and time, and there is no new file."""
    path = home.put("-w", f"{SESSION}.jsonl", TALK)
    home.put(f"-w/{SESSION}/subagents", "agent-x.jsonl", TALK)
    before, sessions = snapshot(home.path), home.sessions()
    sessions.list_sessions()
    sessions.get_session_messages(SESSION)
    sessions.get_subagent_messages(SESSION, "x")
    sessions.get_session_state(SESSION)
    check_transcript(PosixFilesystem(), str(path))
    assert snapshot(home.path) == before


@pytest.mark.mission("C12")
def test_a_row_longer_than_any_piece_is_read(home: Home) -> None:
    """A row of several megabytes, across many chunks, is still one row."""
    huge = row("assistant", "b", "a", message={"content": "x" * 5_000_000})
    home.put("-w", f"{SESSION}.jsonl", [TALK[0], huge, row("user", "c", "b")])
    messages = home.sessions().get_session_messages(SESSION, offset=1)
    assert [message.uuid for message in messages] == ["b", "c"]
    assert len(messages[0].message["content"]) == 5_000_000


def check(home: Home, data: bytes | list[dict[str, Any]], project: str = "-w") -> TranscriptReport:
    return check_transcript(PosixFilesystem(), str(home.put(project, f"{SESSION}.jsonl", data)))


def codes(report: TranscriptReport) -> list[str]:
    return [finding.code for finding in report.findings]


@pytest.mark.mission("C15")
def test_a_sound_transcript_has_no_findings(home: Home) -> None:
    """Rows in the file, in the tree and in the conversation are counted, and there are no findings."""
    report = check(home, [*TALK, {"type": "mode", "mode": "x"}])
    assert (report.rows_read, report.rows_loaded, report.rows_in_chain, report.findings) == (3, 2, 2, ())


@pytest.mark.mission("C15")
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([*TALK, row("user", "c", "ghost")], ["dangling_parent"]),
        ([*TALK, row("progress", "p", "b"), row("user", "c", "p")], ["progress_in_chain"]),
        ([*TALK, row("assistant", "b", "a")], ["repeated_uuid"]),
        ([*TALK, boundary("B"), boundary("C"), row("user", "S", "C")], ["double_boundary"]),
        ([*TALK, boundary("B", "b"), row("user", "S", "B")], ["boundary_with_parent"]),
        ([*TALK, boundary("B"), row("user", "S", "B"), row("user", "n", "b")], ["parent_before_boundary"]),
        ([*TALK, row("user", "c", "b", sessionId=OTHER), row("user", "d", "c", sessionId=OTHER)], ["foreign_session"]),
        ([row("user", "a", cwd="/elsewhere")], ["path_mismatch"]),
        ([*TALK, boundary("B"), row("user", "S", "B", isCompactSummary=True), row("user", "n", "S")], []),
    ],
)
def test_each_fault_has_a_finding(home: Home, rows: list[dict[str, Any]], expected: list[str]) -> None:
    """Broken links, links across a compaction, double boundaries and foreign rows each have their code."""
    assert codes(check(home, rows)) == expected


@pytest.mark.mission("C15")
def test_damaged_bytes_are_told_with_their_place(home: Home) -> None:
    """A torn row, a glued one and a torn end are found at their offsets."""
    first, second = lines(TALK).splitlines(keepends=True)
    torn = check(home, first + second[:-20])
    assert [(finding.code, finding.offset) for finding in torn.findings] == [("torn_tail", len(first))]
    glued = check(home, first[:-1] + second)
    assert ("glued", len(first) - 1) in [(finding.code, finding.offset) for finding in glued.findings]
    report = json.dumps(codes(check(home, first + b"\0\0\0" + second)))
    assert "nul_run" in report


@pytest.mark.mission("C15")
def test_a_check_of_the_store_explains_a_transcript(home: Home, tmp_path: Path) -> None:
    """Problems have a severity, none is repairable by us, and the rows are counted."""
    rows = [*TALK, row("progress", "p", "b"), row("user", "c", "p"), row("user", "d", "ghost", isSidechain=True)]
    path = home.put("-w", f"{SESSION}.jsonl", rows)
    report = sessile.check(sessile.Store(str(tmp_path / "own")), str(path))
    assert [(found.kind, found.severity, found.repairable) for found in report.problems] == [
        ("progress_in_chain", "note", False),
        ("dangling_parent", "warning", False),
    ]
    assert report.rows == {"read": 5, "loaded": 4, "in_conversation": 3, "progress": 1, "boundaries": 0}
    assert report.ok and report.bytes_accounted == report.size == path.stat().st_size
