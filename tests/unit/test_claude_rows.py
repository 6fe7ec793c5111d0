"""Rows: messages, chain participants, progress, and the state in rows beside the chain."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.agents.claude import rows
from sessile.agents.claude.rows import TranscriptState

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "uuid", "x"]), inner),
    max_leaves=5,
)


@pytest.mark.mission("C2")
@pytest.mark.parametrize("kind", ["user", "assistant", "attachment", "system"])
def test_the_four_messages_are_loaded_and_may_be_parents(kind: str) -> None:
    """User, assistant, attachment and system rows are transcript messages and chain participants."""
    assert rows.is_transcript_message({"type": kind})
    assert rows.is_chain_participant({"type": kind})
    assert not rows.is_progress({"type": kind})


@pytest.mark.mission("C2")
def test_progress_is_neither_loaded_nor_a_parent() -> None:
    """A progress row is recognized, is not a message, and cannot be a parent."""
    assert rows.is_progress({"type": "progress"})
    assert not rows.is_transcript_message({"type": "progress"})
    assert not rows.is_chain_participant({"type": "progress"})


@pytest.mark.mission("C2")
def test_rows_beside_the_conversation_are_no_messages() -> None:
    """A title is a chain participant, but readers do not load it into the chain."""
    assert not rows.is_transcript_message({"type": "custom-title"})
    assert rows.is_chain_participant({"type": "custom-title"})


@pytest.mark.mission("C2")
@given(value=ANYTHING)
def test_any_json_can_be_asked_about(value: Any) -> None:
    """Nothing raises, whatever a row is, and a value that is not a string is unknown."""
    answers = (rows.type_of(value), rows.uuid_of(value), rows.parent_of(value))
    assert all(answer is None or isinstance(answer, str) for answer in answers)
    assert rows.is_progress(value) != rows.is_chain_participant(value)
    assert not (rows.is_progress(value) and rows.is_transcript_message(value))


def state_of(*given_rows: dict[str, Any]) -> TranscriptState:
    state = TranscriptState()
    for each in given_rows:
        state.apply(each)
    return state


@pytest.mark.mission("C6")
def test_queued_prompts_wait_until_they_are_taken() -> None:
    """The first queued prompt is removed first, or the one with the given content."""
    first = {"type": "queue-operation", "operation": "enqueue", "content": "a"}
    second = {"type": "queue-operation", "operation": "enqueue", "content": ["b"]}
    taken = {"type": "queue-operation", "operation": "dequeue"}
    assert state_of(first, second, taken).queue == [second]
    assert state_of(first, second, {**taken, "content": ["b"]}).queue == [first]
    assert state_of(first, {**taken, "content": "other"}).queue == [first]
    assert state_of(first, second, {**taken, "operation": "popAll"}).queue == []
    unknown = {**taken, "operation": "shuffle"}
    assert state_of(first, unknown).unknown_operations == [unknown]


@pytest.mark.mission("C6")
def test_the_newest_snapshot_of_a_message_counts_with_later_changes() -> None:
    """An update replaces the snapshot of its message, and a delta adds one file to it."""
    snapshot = {"messageId": "m", "trackedFileBackups": {"a": 1}}
    plain = {"type": "file-history-snapshot", "messageId": "m", "snapshot": snapshot, "isSnapshotUpdate": False}
    newer = {**snapshot, "trackedFileBackups": {"a": 2}}
    update = {"type": "file-history-snapshot", "messageId": "later", "snapshot": newer, "isSnapshotUpdate": True}
    delta = {"type": "file-history-delta", "snapshotMessageId": "m", "trackingPath": "b", "backup": 3}
    assert state_of(plain).snapshots == {"m": snapshot}
    assert state_of(plain, update).snapshots == {"m": newer}
    assert state_of(plain, delta).snapshots["m"]["trackedFileBackups"] == {"a": 1, "b": 3}
    assert snapshot["trackedFileBackups"] == {"a": 1}


@pytest.mark.mission("C6")
def test_last_values_win_and_replacements_add_up() -> None:
    """Titles, tags and attributions are the last ones; replacements add up, the newest counts per call."""
    state = state_of(
        {"type": "custom-title", "customTitle": "old"},
        {"type": "custom-title", "customTitle": "new"},
        {"type": "custom-title", "sessionId": "says nothing"},
        {"type": "tag", "tag": ""},
        {"type": "attribution-snapshot", "messageId": "1"},
        {"type": "attribution-snapshot", "messageId": "2"},
        {"type": "summary", "summary": "short", "leafUuid": "leaf"},
        {"type": "content-replacement", "replacements": [{"toolUseId": "t", "replacement": "1"}]},
        {"type": "content-replacement", "replacements": [{"toolUseId": "t", "replacement": "2"}, 5]},
    )
    assert state.values == {"custom-title": "new", "tag": ""}
    assert state.attribution == {"type": "attribution-snapshot", "messageId": "2"}
    assert state.summaries == {"leaf": "short"}
    assert len(state.replacements) == 2
    assert state.replacement_of("t") == "2"
    assert state.replacement_of("other") is None
