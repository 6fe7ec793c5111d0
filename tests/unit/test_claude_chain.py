"""The chain of a transcript: leaf, progress, parallel calls, compactions, queued prompts, damage."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_reference import messages as reference
from claude_trees import SESSION, Tree, answered, boundary, called, lines, row
from sessile.agents.claude.chain import Heads, conversation, heads_of, subagent_conversation
from sessile.agents.claude.rows import View, read_row
from sessile.agents.claude.sdk import SessionMessage, message_of, shown_rows, shown_subagent_rows

pytestmark = pytest.mark.mission("C10")

Json = dict[str, Any]


def read(data: bytes, view: View = "ts", *, system: bool = False, subagent: bool = False) -> list[SessionMessage]:
    """Return the messages of a transcript in memory."""
    heads = heads_of(data, view)

    def row_at(number: int) -> Json:
        offset, length = heads.place(number)
        return read_row(data[offset : offset + length], view) or {}

    def time(number: int) -> str:
        return str(row_at(number).get("timestamp", ""))

    if subagent:
        shown = shown_subagent_rows(heads, subagent_conversation(heads), row_at)
    else:
        shown = shown_rows(heads, conversation(heads, time), time, row_at, include_system=system)
    return [message_of(row_at(number), view, shown.sent_as.get(number)) for number in shown.rows]


def uuids(rows: list[Json] | bytes, view: View = "ts", **options: bool) -> str:
    data = rows if isinstance(rows, bytes) else lines(rows)
    return " ".join(message.uuid for message in read(data, view, **options))


def talk(*names: str) -> list[Json]:
    """Return a conversation of alternating user and assistant rows."""
    parents = [None, *names]
    return [row(("user", "assistant")[at % 2], name, parents[at]) for at, name in enumerate(names)]


def queued(uuid: str, parent: str, **members: Any) -> Json:
    return row("attachment", uuid, parent, attachment={"type": "queued_command", "prompt": "more", **members})


def test_the_last_branch_in_the_file_is_the_answer() -> None:
    """Of two branches the one written last is shown, whatever the timestamps are."""
    rows = [*talk("a", "b", "c"), row("user", "d", "b", timestamp="2020-01-01T00:00:00.000Z")]
    assert uuids(rows) == uuids(rows, "python-sdk") == "a b d"


def test_a_late_row_that_nobody_spoke_moves_the_typescript_answer_only() -> None:
    """An attachment on an old branch decides in the TypeScript SDK; in the Python SDK the position of the leaf does."""
    rows = [*talk("a", "b", "c"), row("attachment", "d", "a", attachment={"type": "file"})]
    assert uuids(rows) == "a"
    assert uuids(rows, "python-sdk") == "a b c"


def test_a_missing_parent_ends_the_chain() -> None:
    """A row whose parent is not in the file is the start of the conversation."""
    assert uuids([*talk("a", "b"), row("user", "c", "ghost"), row("assistant", "d", "c")]) == "c d"


def test_a_circle_ends_and_a_pure_one_is_empty() -> None:
    """A cycle without a tail has no leaf; with one, each of its rows is shown once."""
    assert uuids([row("user", "a", "b"), row("assistant", "b", "a")]) == ""
    assert uuids([row("user", "a", "b"), row("assistant", "b", "a"), row("user", "c", "b")]) == "a b c"
    assert uuids([row("user", "a", "a")]) == ""


def test_of_rows_with_one_uuid_the_last_counts() -> None:
    """A row that is written again replaces the first one."""
    again = row("assistant", "b", "a", message={"content": "new"})
    assert [each.message for each in read(lines([*talk("a", "b"), again]))][1] == {"content": "new"}


@pytest.mark.mission("C3")
def test_progress_is_bridged_and_never_shown() -> None:
    """Children of progress rows are linked to what is above these."""
    rows = [row("user", "a"), row("progress", "p", "a"), row("progress", "q", "p"), row("assistant", "b", "q")]
    assert uuids(rows) == uuids(rows, "python-sdk") == "a b"
    looped = [row("user", "a"), row("progress", "p", "q"), row("progress", "q", "p"), row("assistant", "b", "p")]
    assert uuids(looped) == "b"


@pytest.mark.mission("C3")
@pytest.mark.mission("C5")
@pytest.mark.parametrize("kind", ["progress", "system"])
def test_progress_and_system_rows_cut_a_sub_agent_in_the_typescript_view(kind: str) -> None:
    """In a sub-agent's file the TypeScript SDK loses the rows above such a row; the Python SDK keeps them."""
    rows = [row("user", "a"), row(kind, "p", "a"), row("assistant", "b", "p")]
    assert uuids(rows, subagent=True) == "b"
    assert uuids(rows, "python-sdk", subagent=True) == "a b"


@pytest.mark.mission("C5")
def test_a_sub_agent_is_shown_whatever_its_flags() -> None:
    """Sidechain, meta and team rows of a sub-agent are its conversation; parallel calls are not inserted."""
    rows = [
        row("user", "a", isSidechain=True),
        row("assistant", "b", "a", isMeta=True),
        row("user", "c", "b", teamName="t"),
    ]
    assert uuids(rows, subagent=True) == uuids(rows, "python-sdk", subagent=True) == "a b c"
    parallel = [row("user", "a"), called("b", "a", "m", "t1"), called("c", "b", "m", "t2"), answered("d", "b", "t1")]
    assert uuids(parallel, subagent=True) == "a b d"


@pytest.mark.parametrize("flag", [{"isSidechain": True}, {"teamName": "red"}, {"isMeta": True}, {"isMeta": [0]}])
def test_flagged_rows_are_hidden(flag: Json) -> None:
    """Rows of sidechains and teams and meta rows are links of the chain, but are not shown."""
    rows = [row("user", "a"), row("assistant", "b", "a", **flag), row("user", "c", "b")]
    assert uuids(rows) == uuids(rows, "python-sdk") == "a c"


def test_an_empty_list_is_true_in_javascript_only() -> None:
    """A flag of another type is evaluated as in the language of the SDK."""
    rows = [row("user", "a"), row("assistant", "b", "a", isMeta=[]), row("user", "c", "b")]
    assert uuids(rows) == "a c"
    assert uuids(rows, "python-sdk") == "a b c"


def test_parallel_results_are_put_back() -> None:
    """Missing calls and results of a response follow its last row on the chain: calls first, then results by time."""
    rows = [
        row("user", "a"),
        called("b", "a", "m", "t1"),
        called("c", "b", "m", "t2"),
        answered("late", "c", "t2", timestamp="2026-01-01T00:00:09.000Z"),
        answered("r1", "b", "t1"),
        row("assistant", "d", "r1"),
    ]
    assert uuids(rows) == uuids(rows, "python-sdk") == "a b c late r1 d"


def test_a_stray_result_is_taken_if_its_call_is_open() -> None:
    """A result with another parent is found by its call, unless the call has an answer or is used twice."""
    rows = [row("user", "a"), called("b", "a", "m", "t1"), called("c", "b", "m", "t2"), answered("r2", "c", "t2")]
    stray = answered("s", "a", "t1")
    assert uuids([*rows, stray, row("assistant", "d", "r2")]) == "a b c s r2 d"
    assert uuids([*rows, stray, answered("again", "a", "t1"), row("assistant", "d", "r2")]) == "a b c s r2 d"
    twice = called("x", "a", "other", "t1")
    assert uuids([*rows, twice, stray, row("assistant", "d", "r2")]) == "a b c r2 d"
    assert uuids([*rows, {**stray, "agentId": "z"}, row("assistant", "d", "r2")]) == "a b c r2 d"


def test_without_a_response_id_nothing_is_put_back() -> None:
    """Providers that omit the message id lose the other results, as in both SDKs."""
    rows = [row("user", "a"), called("b", "a", "", "t1"), called("c", "b", "", "t2"), answered("r1", "b", "t1")]
    assert uuids(rows) == "a b r1"


def compacted(**hints: Any) -> list[Json]:
    return [
        *talk("a", "b", "c", "d"),
        boundary("B", **hints),
        row("user", "S", "B", isCompactSummary=True),
        row("user", "n", "S"),
    ]


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        ({}, "S n"),
        ({"preservedSegment": {"headUuid": "c", "anchorUuid": "S", "tailUuid": "d"}}, "S c d n"),
        ({"preservedSegment": {"headUuid": "c", "anchorUuid": "B", "tailUuid": "d"}}, "c d S n"),
        ({"preservedMessages": {"anchorUuid": "S", "uuids": ["b", "d"]}}, "S b d n"),
        ({"preservedMessages": {"anchorUuid": "B", "uuids": ["c", "d"]}}, "c d S n"),
        ({"preservedMessages": {"anchorUuid": "S", "uuids": ["ghost", "d"]}}, "S n"),
        ({"preservedMessages": {"anchorUuid": "S", "uuids": []}}, "S n"),
        ({"preservedMessages": {"anchorUuid": "S", "uuids": 5}}, "S n"),
        ({"preservedSegment": {"headUuid": "c", "anchorUuid": "ghost", "tailUuid": "d"}}, "S n"),
        (
            {
                "preservedSegment": {"headUuid": "a", "anchorUuid": "S", "tailUuid": "b"},
                "preservedMessages": {"anchorUuid": "S", "uuids": ["d"]},
            },
            "S d n",
        ),
    ],
)
def test_kept_messages_follow_the_summary(hints: Json, expected: str) -> None:
    """Preserved messages are read after the anchor; the Python SDK shows only the summary."""
    assert uuids(compacted(**hints)) == expected
    assert uuids(compacted(**hints), "python-sdk") == "S n"


def test_system_rows_are_shown_when_asked_for() -> None:
    """With include_system, a boundary is a message without content."""
    assert uuids(compacted(), system=True) == "B S n"
    assert uuids([boundary("B")], system=True) == ""
    assert uuids([queued("q", "a")], system=True) == ""
    assert uuids(b"", system=True) == ""


def test_queued_prompts_are_shown_where_the_agent_went_on() -> None:
    """A queued prompt before an assistant row or after the leaf is a user message; before a new prompt it is not."""
    rows = [row("user", "a"), queued("q", "a")]
    assert uuids([*rows, row("assistant", "b", "q")]) == "a q b"
    assert uuids([*rows, row("user", "b", "q")]) == "a b"
    assert uuids(rows) == "a q"
    assert uuids(rows, "python-sdk") == "a"
    assert uuids([row("user", "a"), queued("q", "a", isMeta=True)]) == "a"
    message = read(lines(rows))[1]
    assert (message.type, message.message, message.is_queued_command) == (
        "user",
        {"role": "user", "content": "more"},
        True,
    )


def test_a_queued_prompt_has_the_uuid_under_which_it_was_sent() -> None:
    """It is shown once, and not at all if the row it was sent as is in the chain."""
    rows = [
        row("user", "a"),
        queued("q", "a", source_uuid="z"),
        queued("r", "q", source_uuid="z"),
        row("assistant", "b", "r"),
    ]
    assert uuids(rows) == "a z b"
    assert uuids([row("user", "a"), queued("q", "a", source_uuid="a"), row("assistant", "b", "q")]) == "a b"


def test_damage_costs_no_more_than_it_does_in_the_sdk() -> None:
    """NUL bytes before a row are skipped, invalid UTF-8 is replaced, and a torn row is not loaded."""
    first, second, third = lines(talk("a", "b", "c")).splitlines(keepends=True)
    assert uuids(first + b"\0\0" + second + third) == "a b c"
    assert uuids(first + b"\0\0" + second + third, "python-sdk") == "c"
    assert uuids(first + second.replace(b'"content":"b"', b'"content":"\xff"') + third) == "a b c"
    assert uuids(first + second[:30] + b"\n" + third) == "c"
    assert uuids(b"\n\n[1]\n5\n" + first + second + third[:-1]) == "a b c"
    assert uuids(first.replace(b"\n", b"\r\n") + second) == "a b"


@given(seed=st.integers(0, 1 << 32))
def test_any_tree_gives_what_the_simple_reading_gives(seed: int) -> None:
    """With branches, progress, sidechains, compactions, parallel calls and damage, the result equals the reference."""
    rows = [each for each in Tree(seed).rows if each.get("attachment", {}).get("type") != "queued_command"]
    found = uuids(rows)
    assert found == " ".join(reference(rows))
    assert len(found.split()) == len(set(found.split()))


@given(seed=st.integers(0, 1 << 32), view=st.sampled_from(["ts", "python-sdk"]), cut=st.integers(1, 50))
def test_the_answer_does_not_depend_on_how_the_bytes_come(seed: int, view: View, cut: int) -> None:
    """Chunks of any size give the same rows at the same offsets; progress is never shown."""
    data = lines(Tree(seed).rows)
    whole, pieces = heads_of(data, view), Heads(view)
    for at in range(0, len(data), cut):
        pieces.feed(data[at : at + cut])
    pieces.finish()
    assert [whole.place(at) for at in range(len(whole))] == [pieces.place(at) for at in range(len(pieces))]
    assert (whole.kind, whole.flags, whole.parent) == (pieces.kind, pieces.flags, pieces.parent)
    shown = read(data, view)
    assert {each.type for each in shown} <= {"user", "assistant"}
    assert all(each.session_id == SESSION for each in shown)


def test_a_hole_between_pieces_moves_no_row() -> None:
    """Chunks of only NUL bytes are skipped, and the row after them is found."""
    data = lines(talk("a", "b")) + b"\0" * 300 + lines([row("user", "c", "b")])
    pieces = Heads("ts")
    for at in range(0, len(data), 64):
        pieces.feed(data[at : at + 64])
    pieces.finish()
    assert len(pieces) == 3
    offset, length = pieces.place(2)
    assert (read_row(data[offset : offset + length]) or {})["uuid"] == "c"
    assert uuids(data) == "a b c"


def test_a_carriage_return_ends_a_line_for_the_python_sdk_only() -> None:
    """The Python SDK opens transcripts in text mode; in the other view only a newline ends a line."""
    first, second = lines(talk("a", "b")).splitlines()
    assert uuids(first + b"\r" + second + b"\n", "python-sdk") == "a b"
    assert uuids(first + b"\r" + second + b"\n") == ""


def test_meta_rows_of_other_people_are_shown() -> None:
    """Messages from a channel or a peer were written by people, though not typed here."""
    rows = [row("user", "a"), row("user", "b", "a", isMeta=True, origin={"kind": "channel"})]
    assert uuids(rows) == "a b"
    assert uuids(rows, "python-sdk") == "a"
    assert read(lines(rows))[1].is_meta
    assert uuids([row("user", "a"), row("user", "b", "a", isMeta=True, origin={"kind": "human"})]) == "a"


def test_of_a_notification_only_the_public_part_is_told() -> None:
    """Members for the terminal are left out, and so is an invalid id."""
    origin = {"kind": "task-notification", "runId": "not an id", "inner": 1, "subkind": "s"}
    (message,) = read(lines([row("user", "a", origin=origin)]))
    assert message.origin == {"kind": "task-notification", "subkind": "s"}
    queue = [row("user", "a"), queued("q", "a", commandMode="task-notification", runId="r1")]
    assert read(lines(queue))[1].origin == {"kind": "task-notification", "runId": "r1"}


def test_what_a_fork_is_told_at_its_begin_is_no_end_of_the_conversation() -> None:
    """A briefing below an abandoned row does not make that row the leaf."""
    briefing = row("attachment", "f", "b", attachment={"type": "fork_briefing"})
    rows = [*talk("a", "b"), row("user", "c", "a"), briefing]
    assert uuids(rows) == "a c"
    rows[-1] = row("attachment", "f", "b", attachment={"type": "file"})
    assert uuids(rows) == "a b"


def test_without_a_main_conversation_the_last_message_of_any_is_the_leaf() -> None:
    """The last message is the leaf, not the last terminal: a system row may be far above the newest message."""
    rows = [
        row("user", "a", teamName="red"),
        row("user", "b", "a", teamName="red"),
        row("system", "s", "a", teamName="red"),
    ]
    assert [read_row(lines([each]))["uuid"] for each in rows] == ["a", "b", "s"]  # type: ignore[index]
    data = lines(rows)
    heads = heads_of(data)
    assert heads.uuid[conversation(heads, lambda number: "").leaf] == heads.uuid[1]


def test_an_anchor_of_null_is_the_anchor_of_all_roots() -> None:
    """If a compaction preserved messages with a null anchor, all other roots are linked after them."""
    segment = {"headUuid": "b", "anchorUuid": None, "tailUuid": "b"}
    rows = [*talk("a", "b"), boundary("B", preservedSegment=segment), row("user", "S", "B"), row("user", "n", "S")]
    assert uuids(rows) == "b S n"


@pytest.mark.parametrize(
    "stop",
    [
        "[Request interrupted by user]",
        [{"type": "text", "text": "[Request interrupted by user for tool use]"}],
        [{"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": "[Request interrupted by user]"}],
    ],
)
def test_a_queued_prompt_before_an_interruption_was_taken_up(stop: Any) -> None:
    """The agent worked on it until it was interrupted; any other prompt after it means that it was sent again."""
    said = {"role": "user", "content": stop}
    assert uuids([row("user", "a"), queued("q", "a"), row("user", "b", "q", message=said)]) == "a q b"
    assert uuids([row("user", "a"), queued("q", "a"), row("user", "b", "q")]) == "a b"


def test_commands_of_the_terminal_are_no_prompts() -> None:
    """After a caveat, a slash command and its output do not count; without the caveat they do."""

    def told(uuid: str, parent: str, text: str, **members: Any) -> Json:
        return row("user", uuid, parent, message={"role": "user", "content": text}, **members)

    caveat = told("v", "q", "<local-command-caveat>x</local-command-caveat>", isMeta=True)
    command = told("w", "v", "<command-name>/model</command-name>")
    output = told("x", "w", "<local-command-stdout>set</local-command-stdout>")
    rows = [row("user", "a"), queued("q", "a"), caveat, command, output, row("assistant", "b", "x")]
    assert uuids(rows) == "a q w x b"
    rows[2] = told("v", "q", "nothing", isMeta=True)
    assert uuids(rows) == "a w x b"


def test_the_queue_tells_which_copies_were_taken_up() -> None:
    """As many copies are shown as were absorbed, the last ones; copies that differ decide nothing."""
    absorbed = {"type": "queue-operation", "operation": "remove", "reason": "absorbed_mid_turn", "commandUuid": "z"}
    talked = [row("user", "a"), queued("q", "a", source_uuid="z"), queued("r", "q", source_uuid="z")]
    rows = [*talked, row("user", "b", "r")]
    assert uuids(rows) == "a b"
    assert uuids([*rows, absorbed]) == "a z b"
    assert uuids([*rows, {**absorbed, "reason": "cancelled"}]) == "a b"
    rows[2] = queued("r", "q", source_uuid="z", prompt="other")
    assert uuids([*rows, absorbed]) == "a b"


def test_the_queue_tells_which_deliveries_were_taken_up() -> None:
    """A delivery has its own id, and takes precedence over the rows that follow."""
    absorbed = {"type": "queue-operation", "operation": "remove", "reason": "absorbed_mid_turn", "deliveryId": "d"}
    rows = [row("user", "a"), queued("q", "a", delivery_id="d"), queued("r", "q", delivery_id="d")]
    rows.append(row("assistant", "b", "r"))
    assert uuids(rows) == "a q r b"
    assert uuids([*rows, absorbed]) == "a r b"


def test_a_queued_prompt_that_is_meta_is_shown_of_sub_agents_only() -> None:
    """A meta prompt is also shown if other people wrote it; one forwarded to another agent is never shown."""
    rows = [row("user", "a"), queued("q", "a", isMeta=True), row("assistant", "b", "q")]
    assert (uuids(rows), uuids(rows, subagent=True)) == ("a b", "a q b")
    rows[1] = queued("q", "a", isMeta=True, origin={"kind": "peer"})
    assert uuids(rows) == "a q b"
    rows[1] = queued("q", "a", forwardedIntent={"lineage": "x"})
    assert (uuids(rows), uuids(rows, subagent=True)) == ("a b", "a b")


def test_a_replaced_row_behind_the_leaf_is_still_shown() -> None:
    """In the chain the last row with a uuid counts, but a queued prompt after the leaf is shown as it was."""
    rows = [row("user", "a"), queued("q", "a"), row("system", "q", "nobody")]
    assert uuids(rows) == "a q"
