"""Which rows recording writes, their parents, and the uuid that it returns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_rows import NOW, OTHER, SESSION, STAMP, Json, assistant, boundary, progress, system, uid, user
from sessile.agents.claude.transcript import Chain, Recording, Stamp, Team, plan_recording
from sessile.errors import InvalidEntry

CHAIN = Chain(SESSION, STAMP)


class InOrder(list[str]):
    """The uuids of a file, in the order of its rows."""

    def position(self, uuid: str) -> int:
        return self.index(uuid)


def plan(recorded: str, messages: list[Json], hint: str | None = None, chain: Chain = CHAIN) -> Recording:
    """Return the plan if the messages with these names are in the file."""
    known = InOrder(uid(name) for name in recorded.split())
    return plan_recording(known, messages, chain, now=NOW, hint=None if hint is None else uid(hint))


def links(recording: Recording) -> dict[str, str | None]:
    return {row["uuid"]: row["parentUuid"] for row in recording.rows}


def named(**parents: str | None) -> dict[str, str | None]:
    return {uid(name): None if parent is None else uid(parent) for name, parent in parents.items()}


@pytest.mark.mission("C4")
def test_new_messages_hang_from_the_recorded_ones_before_them() -> None:
    """[oA oB N1 N2]: B is the parent of N1, N1 of N2, and N2 is returned."""
    recording = plan("A B", [user("A"), assistant("B"), user("N1"), assistant("N2")])
    assert links(recording) == named(N1="B", N2="N1")
    assert recording.last == uid("N2")


@pytest.mark.mission("C4")
@pytest.mark.parametrize(
    ("recorded", "messages", "hint", "expected"),
    [
        ("A B", [user("A"), assistant("B")], None, "B"),
        ("", [], "H", "H"),
        ("", [], None, None),
        ("A", [user("A")], "H", "A"),
    ],
)
def test_without_news_the_answer_is_the_last_known_place(
    recorded: str, messages: list[Json], hint: str | None, expected: str | None
) -> None:
    """If all are recorded the last one is returned, without messages the hint, and without a hint None."""
    recording = plan(recorded, messages, hint)
    assert recording == Recording([], None if expected is None else uid(expected))


@pytest.mark.mission("C4")
def test_the_hint_is_the_parent_of_what_is_new() -> None:
    """A caller who passes only the new part of a conversation passes the last uuid as hint."""
    assert links(plan("A B", [user("N1"), assistant("N2")], hint="B")) == named(N1="B", N2="N1")


@pytest.mark.mission("C3")
def test_recorded_progress_is_not_a_parent() -> None:
    """[oA oP N1]: A is the parent of N1."""
    assert links(plan("A P", [user("A"), progress("P"), user("N1")])) == named(N1="A")


@pytest.mark.mission("C3")
def test_new_progress_is_written_but_nobody_hangs_from_it() -> None:
    """[N1 NP N2]: N1 is the parent of progress and of N2; [N1 NP] returns N1."""
    recording = plan("", [user("N1"), progress("NP"), assistant("N2")])
    assert links(recording) == named(N1=None, NP="N1", N2="N1")
    assert plan("", [user("N1"), progress("NP")]).last == uid("N1")
    assert plan("A", [user("A"), progress("NP")]).last == uid("A")


@pytest.mark.mission("C4")
def test_after_a_compaction_nothing_hangs_from_what_it_kept() -> None:
    """[CB SUM oK1 oK2 N]: CB is a root, the parent of SUM is CB, and that of N is SUM, never K2."""
    messages = [boundary("CB"), user("SUM", isCompactSummary=True), user("K1"), assistant("K2"), user("N")]
    recording = plan("K1 K2", messages)
    assert links(recording) == named(CB=None, SUM="CB", N="SUM")
    assert recording.last == uid("N")


@pytest.mark.mission("C4")
def test_once_a_compaction_is_recorded_what_it_kept_is_still_no_parent() -> None:
    """[oCB oSUM oK1 oK2 N] with K1 and K2 recorded before CB: SUM is the parent of N; with M recorded after CB, M is."""
    messages = [boundary("CB"), user("SUM"), user("K1"), assistant("K2"), user("N")]
    recording = plan("K1 K2 CB SUM", messages)
    assert links(recording) == named(N="SUM")
    assert plan("K1 K2 CB SUM", messages[:-1]).last == uid("SUM")
    assert links(plan("K1 K2 CB SUM M", [*messages[:-1], assistant("M"), user("N")])) == named(N="M")


@pytest.mark.mission("C4")
def test_a_compaction_says_where_it_happened() -> None:
    """The boundary has no parent; its logical parent is the last row, or the one that it brings along."""
    row = plan("A", [user("A"), boundary("CB")]).rows[0]
    assert (row["parentUuid"], row["logicalParentUuid"]) == (None, uid("A"))
    assert list(row)[:2] == ["parentUuid", "logicalParentUuid"]
    assert plan("", [boundary("CB")], hint="H").rows[0]["logicalParentUuid"] == uid("H")
    assert plan("", [boundary("CB", logicalParentUuid="x")]).rows[0]["logicalParentUuid"] == "x"


@pytest.mark.mission("C4")
def test_the_result_of_a_tool_hangs_from_its_call() -> None:
    """Each result of parallel calls is a child of its own call, and the answer is a child of the last one."""
    calls = [assistant("A1"), assistant("A2")]
    results = [user(f"R{n}", sourceToolAssistantUUID=uid(f"A{n}")) for n in (1, 2)]
    recording = plan("", [user("Q"), *calls, *results, assistant("Z")])
    assert links(recording) == named(Q=None, A1="Q", A2="A1", R1="A1", R2="A2", Z="R2")
    assert links(plan("A1", [user("R1", sourceToolAssistantUUID=uid("A1"))], hint="X")) == named(R1="A1")


@pytest.mark.mission("C4")
def test_a_call_that_is_not_in_the_file_is_nobodys_parent() -> None:
    """A call that was removed, or compacted in the same batch, would cut off everything before it."""
    result = user("R", sourceToolAssistantUUID=uid("A"))
    assert links(plan("Q", [user("Q"), result])) == named(R="Q")
    assert links(plan("A", [boundary("CB"), user("SUM"), result])) == named(CB=None, SUM="CB", R="SUM")
    before = plan("", [assistant("A"), boundary("CB"), user("SUM"), result])
    assert links(before) == named(A=None, CB=None, SUM="CB", R="SUM")
    said = assistant("N", sourceToolAssistantUUID=uid("A"))
    assert links(plan("A Q", [user("Q"), said])) == named(N="Q"), "only results of tools hang from calls"


@pytest.mark.mission("C4")
def test_every_row_is_stamped_with_its_session() -> None:
    """Members about another session are overwritten in resumed or forked messages; all others stay."""
    brought = {"sessionId": OTHER, "cwd": "/old", "version": "1", "gitBranch": "old", "slug": "plan", "agentId": "x"}
    message = user("N", timestamp="2026-01-01T00:00:00.000Z", parentUuid="old", isSidechain=True, todo=[1], **brought)
    (row,) = plan("", [message]).rows
    assert row == {
        "parentUuid": None,
        "isSidechain": False,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "type": "user",
        "uuid": uid("N"),
        "message": {"role": "user", "content": "N"},
        "todo": [1],
        "userType": "external",
        "entrypoint": "sdk-py",
        "cwd": STAMP.cwd,
        "sessionId": SESSION,
        "version": "2.1.300",
        "gitBranch": "main",
    }
    assert next(iter(row)) == "parentUuid"
    assert plan("", [user("N")]).rows[0]["timestamp"] == NOW


@pytest.mark.mission("C4")
def test_team_and_prompt_are_noted_where_they_belong() -> None:
    """The team is on every row, the prompt id on user rows."""
    chain = CHAIN._replace(team=Team("red", "ann"), prompt_id="p1")
    first, second = plan("", [user("N1"), assistant("N2")], chain=chain).rows
    assert (first["teamName"], first["agentName"], first["promptId"]) == ("red", "ann", "p1")
    assert second["teamName"] == "red"
    assert "promptId" not in second


@pytest.mark.mission("C5")
def test_a_sidechain_says_whose_it_is() -> None:
    """Rows of an agent are marked and have its id, but the session id of the parent."""
    (row,) = plan("", [user("N", agentId="other")], chain=CHAIN._replace(agent_id="a1")).rows
    assert (row["isSidechain"], row["agentId"], row["sessionId"]) == (True, "a1", SESSION)


@pytest.mark.mission("C4")
def test_a_uuid_that_comes_twice_is_written_once() -> None:
    """The second message with a uuid counts as recorded."""
    recording = plan("", [user("N1"), user("N2"), user("N1", "again")])
    assert links(recording) == named(N1=None, N2="N1")
    assert recording.last == uid("N2")


@pytest.mark.mission("C4")
@pytest.mark.parametrize(
    "message",
    [{"type": "user"}, {"type": "user", "uuid": ""}, {"type": "user", "uuid": 5}, {"type": "tag", "uuid": "x"}, {}],
)
def test_what_is_no_message_is_refused(message: Json) -> None:
    """A row without a uuid would be written by every call; other rows have their own methods."""
    with pytest.raises(InvalidEntry):
        plan("", [message])


@st.composite
def conversations(draw: st.DrawFn) -> tuple[InOrder, list[Json]]:
    makers = [user, assistant, system, boundary, progress]
    messages = [draw(st.sampled_from(makers))(f"m{n}") for n in range(draw(st.integers(0, 12)))]
    uuids = st.sampled_from([str(message["uuid"]) for message in messages]) if messages else st.nothing()
    return InOrder(draw(st.lists(uuids, unique=True))), messages


@pytest.mark.mission("C4")
@given(conversations(), st.none() | st.just(uid("hint")))
def test_recording_twice_writes_nothing_and_answers_a_known_place(
    conversation: tuple[InOrder, list[Json]], hint: str | None
) -> None:
    """Each new message is written once, in order; progress is never a parent; a second call writes nothing."""
    recorded, messages = conversation
    rows, last = plan_recording(recorded, messages, CHAIN, now=NOW, hint=hint)
    assert [row["uuid"] for row in rows] == [m["uuid"] for m in messages if m["uuid"] not in recorded]
    shown = {m["uuid"] for m in messages if m["type"] == "progress"}
    earlier: set[Any] = {*recorded, hint, None}
    for row in rows:
        assert row["parentUuid"] in earlier
        assert row["parentUuid"] not in shown
        earlier.add(row["uuid"])
    assert last in earlier
    again = plan_recording(InOrder([*recorded, *(row["uuid"] for row in rows)]), messages, CHAIN, now=NOW, hint=hint)
    assert again.rows == []


def test_what_a_stamp_does_not_know_is_not_written() -> None:
    """Unknown values are omitted, also if a message brings them from elsewhere."""
    (row,) = plan("", [user("N", version="1")], chain=Chain(SESSION, Stamp(cwd="/x", user_type=None))).rows
    assert row.keys() & {"version", "gitBranch", "userType", "entrypoint", "slug"} == set()
