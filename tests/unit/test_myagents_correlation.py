"""MyAgents' sessions compared with Claude Code's transcripts."""

from __future__ import annotations

from typing import Any

import pytest

from myagents_folder import ROOT, asked, begun, everything, folder, line, put, told
from sessile.agents.claude.paths import slug
from sessile.agents.myagents.correlation import Pair, joined, report, transcripts, working_folder
from sessile.agents.myagents.store import MyAgentsStore
from sessile.errors import SessionNotFound

pytestmark = pytest.mark.mission("M9")

PROJECTS = "/home/.claude/projects"


def spoke(uuid: str, kind: str, content: Any, **members: Any) -> bytes:
    """Return a row of a transcript."""
    return line({"type": kind, "uuid": uuid, "message": {"role": kind, "content": content}} | members)


TRANSCRIPT = b"".join(
    (
        line({"type": "summary", "summary": "x"}),
        spoke("u1", "user", "hello"),
        spoke("a1", "assistant", [{"type": "thinking", "thinking": "hm"}]),
        spoke("r1", "user", [{"type": "tool_result", "content": "ok"}]),
        spoke("side", "assistant", "sub-agent", isSidechain=True),
        b"{torn\n",
        spoke("a2", "assistant", [{"type": "text", "text": "well"}]),
        spoke("u2", "user", [{"type": "text", "text": "again"}]),
        spoke("a3", "assistant", [{"type": "text", "text": "yes"}]),
    )
)


def two_stores() -> MyAgentsStore:
    """A unified session, one with another id, one that lost its transcript, and one that never had any."""
    store = folder()
    begun(store, "one", sdkSessionId="one", unifiedSession=True)
    begun(store, "two", sdkSessionId="sdk-2")
    begun(store, "lost", sdkSessionId="gone")
    begun(store, "none")
    for session_id in ("one", "two", "lost", "none"):
        store.save(session_id, [asked(0), told(1, toolCount=1, durationMs=900)])
    put(store.fs, f"{PROJECTS}/-work-app/one.jsonl", TRANSCRIPT)
    put(store.fs, f"{PROJECTS}/-work-app/sdk-2.jsonl", TRANSCRIPT)
    put(store.fs, f"{PROJECTS}/-elsewhere/stranger.jsonl", b"{}\n")
    put(store.fs, f"{PROJECTS}/-work-app/one/subagents/agent-1.jsonl", b"{}\n")
    return store


def test_sessions_are_paired_by_unified_and_by_separate_ids() -> None:
    """Each pair has its kind, and sessions without a counterpart are listed."""
    found = report(two_stores(), PROJECTS)
    assert {pair.row.id: pair.how for pair in found.pairs} == {
        "one": "unified",
        "two": "separate",
        "lost": None,
        "none": None,
    }
    assert [each.session_id for each in found.only_transcripts] == ["stranger"]


def test_the_report_adds_up_what_both_stores_take() -> None:
    """Number, bytes, sum and ratio of the sessions that are in both."""
    store = two_stores()
    found = report(store, PROJECTS)
    own = 2 * store.fs.lstat(f"{ROOT}/sessions/one.jsonl").st_size
    assert (found.both, found.own_bytes, found.transcript_bytes) == (2, own, 2 * len(TRANSCRIPT))
    assert found.total_bytes == own + 2 * len(TRANSCRIPT)
    assert found.ratio == 2 * len(TRANSCRIPT) / own


def test_an_empty_report_has_no_ratio() -> None:
    """Without sessions there is no ratio."""
    assert report(folder(), PROJECTS).ratio is None


def test_drift_is_told() -> None:
    """A missing transcript, contradicting ids, and a session without a file are reported."""
    store = two_stores()
    begun(store, "liar", sdkSessionId="sdk-9", unifiedSession=True)
    begun(store, "stranger")
    problems = {drift.session_id: drift.problem for drift in report(store, PROJECTS).drift}
    assert sorted(problems) == ["liar", "lost", "stranger"]
    assert "gone" in problems["lost"] and "sdk-9" in problems["liar"] and "only Claude Code" in problems["stranger"]


def test_drift_of_conversations_is_told_when_they_are_read() -> None:
    """Turns that only one of the stores has are reported."""
    store = two_stores()
    store.append("one", [asked(2, "again"), told(3)])
    store.append("two", [asked(2, "never sent")])
    found = [drift for drift in report(store, PROJECTS, deep=True).drift if drift.session_id in ("one", "two")]
    assert [(drift.session_id, drift.problem) for drift in found] == [
        ("two", "1 questions are not in the transcript"),
        ("two", "2 rows of the transcript have no message"),
    ]


def test_the_joined_view_adds_usage_tools_and_duration() -> None:
    """An answer stands for all rows of its turn, without those of sub-agents."""
    view = joined(two_stores(), PROJECTS, "two")
    assert [each.uuids for each in view.rows] == [("u1",), ("a1", "r1", "a2")]
    answer = view.rows[1]
    assert answer.usage is not None and answer.usage.input_tokens == 10
    assert (answer.tool_count, answer.duration_ms) == (1, 900)
    assert view.left_over == ("u2", "a3")


def test_a_noted_uuid_beats_the_text() -> None:
    """A question that was asked twice belongs to the turn that its answer names."""
    store = two_stores()
    store.append("one", [asked(2, "words that differ", sdkUuid="u2"), told(3, sdkUuid="a3")])
    assert [each.uuids for each in joined(store, PROJECTS, "one").rows][2:] == [("u2",), ("a3",)]


def test_a_session_without_a_transcript_is_shown_alone() -> None:
    """An unknown session is an error."""
    store = two_stores()
    assert [each.uuids for each in joined(store, PROJECTS, "none").rows] == [(), ()]
    with pytest.raises(SessionNotFound):
        joined(store, PROJECTS, "other")


def test_of_several_transcripts_of_one_id_that_of_the_project_counts() -> None:
    """The project's transcript counts even if another one is newer."""
    store = two_stores()
    put(store.fs, f"{PROJECTS}/-other/one.jsonl", b"{}\n")
    assert len(transcripts(store.fs, PROJECTS)["one"]) == 2
    pair = next(pair for pair in report(store, PROJECTS).pairs if pair.row.id == "one")
    assert pair.transcript is not None and pair.transcript.path == f"{PROJECTS}/-work-app/one.jsonl"


def test_correlating_writes_nothing() -> None:
    """Neither store changes."""
    store = two_stores()
    before = everything(store.fs, "/")
    report(store, PROJECTS, deep=True)
    joined(store, PROJECTS, "one")
    assert everything(store.fs, "/") == before


def pair(store: MyAgentsStore, session_id: str) -> Pair:
    return next(each for each in report(store, PROJECTS).pairs if each.row.id == session_id)


@pytest.mark.parametrize("folder_of", ["/work/ä/😀 app", "/" + "long/" * 60, "/work/cafe\u0301"])
def test_the_folder_of_the_project_is_named_as_claude_code_names_it(folder_of: str) -> None:
    """The slug uses composed UTF-16 units and a hash for long paths; a newer transcript elsewhere does not count."""
    store = folder()
    store.create("x", folder_of, sdkSessionId="x")
    put(store.fs, f"{PROJECTS}/{slug(folder_of)}/x.jsonl", b"{}\n")
    put(store.fs, f"{PROJECTS}/-other/x.jsonl", b"{}\n")
    transcript = pair(store, "x").transcript
    assert transcript is not None and transcript.path == f"{PROJECTS}/{slug(folder_of)}/x.jsonl"


def test_a_long_folder_that_an_older_release_hashed_is_preferred_to_a_strange_one() -> None:
    """The prefix is the same."""
    store = folder()
    name = slug("/" + "long/" * 60)
    store.create("x", "/" + "long/" * 60, sdkSessionId="x")
    put(store.fs, f"{PROJECTS}/{name[:200]}-older/x.jsonl", b"{}\n")
    put(store.fs, f"{PROJECTS}/-other/x.jsonl", b"{}\n")
    transcript = pair(store, "x").transcript
    assert transcript is not None and transcript.path == f"{PROJECTS}/{name[:200]}-older/x.jsonl"


def test_a_unified_session_needs_no_second_id() -> None:
    """Its own id is that of the transcript; if the index has not recorded it, that is reported."""
    store = two_stores()
    begun(store, "three", unifiedSession=True)
    begun(store, "four")
    for name in ("three", "four"):
        put(store.fs, f"{PROJECTS}/-work-app/{name}.jsonl", TRANSCRIPT)
    assert (pair(store, "three").how, pair(store, "four").how) == ("unified", "same id")


def test_where_the_named_transcript_is_gone_that_of_the_own_id_is_shown_and_the_drift_told() -> None:
    """After a rewind or a fork both may have existed."""
    store = two_stores()
    put(store.fs, f"{PROJECTS}/-work-app/lost.jsonl", TRANSCRIPT)
    assert pair(store, "lost").how == "same id"
    assert [each.problem for each in report(store, PROJECTS).drift if each.session_id == "lost"] == [
        "the transcript gone is missing, so Claude Code cannot resume it"
    ]


def test_a_session_file_without_a_row_is_in_the_report() -> None:
    """It has its size, its transcript and its drift; it can be joined, and its folder is found for adoption."""
    store = two_stores()
    put(store.fs, f"{ROOT}/sessions/orphan.jsonl", line(asked(0)) + line(told(1)))
    put(store.fs, f"{PROJECTS}/-work-app/orphan.jsonl", spoke("u1", "user", "hello", cwd="/work/app"))
    found = report(store, PROJECTS)
    assert found.both == 3 and pair(store, "orphan").how == "same id"
    assert [each.problem for each in found.drift if each.session_id == "orphan"] == [
        "its file has no row in the index, so MyAgents does not show it"
    ]
    assert [each.uuids for each in joined(store, PROJECTS, "orphan").rows] == [("u1",), ()]
    assert working_folder(store.fs, PROJECTS, "orphan") == "/work/app"
    assert working_folder(store.fs, PROJECTS, "one") is None
    assert working_folder(store.fs, PROJECTS, "none") is None


def test_a_transcript_that_two_sessions_claim_is_told_of_both() -> None:
    """One of them must be wrong."""
    store = two_stores()
    begun(store, "twin", sdkSessionId="sdk-2")
    problems = [each.session_id for each in report(store, PROJECTS).drift if "more than one" in each.problem]
    assert sorted(problems) == ["twin", "two"]


def test_all_forms_of_a_session_count() -> None:
    """An interrupted migration takes twice the space."""
    store = two_stores()
    before = pair(store, "one").own_bytes
    put(store.fs, f"{ROOT}/sessions/one.json", b"{}")
    assert before is not None and pair(store, "one").own_bytes == before + 2
