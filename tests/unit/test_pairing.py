"""Pairing of tool calls and results."""

from __future__ import annotations

from typing import Any

import pytest

from builders import Json, assistant, user
from sessile.core.hygiene import Notes, Piece, pair

pytestmark = [pytest.mark.mission("Y6"), pytest.mark.promise("P24")]


def calls(*ids: str, **members: Any) -> Json:
    content = [{"type": "text", "text": "look"}, *({"type": "toolCall", "id": i, "name": "read"} for i in ids)]
    return {"role": "assistant", "content": content, **members}


def result(call_id: Any, text: str = "ok") -> Json:
    return {
        "role": "toolResult",
        "toolCallId": call_id,
        "toolName": "read",
        "content": [{"type": "text", "text": text}],
    }


def paired(*messages: Json) -> tuple[list[str], list[tuple[int, str]]]:
    """Return the messages in short form, and what was done to which."""
    notes = Notes()
    found = pair([Piece(place, message) for place, message in enumerate(messages)], "missing", notes)
    return [short(piece) for piece in found], [(note.place, note.did) for note in notes]


def short(piece: Piece) -> str:
    message = piece.message
    if piece.calls:
        return "calls " + " ".join(call["id"] for call in piece.calls)
    if piece.role == "toolResult":
        return f"{message['toolCallId']}={message['content'][0]['text']}"
    return f"{piece.role}: {piece.blocks[0]['text']}"


def test_what_is_paired_stays_the_same() -> None:
    """The same messages, and no note."""
    given = [Piece(i, m) for i, m in enumerate([user("q"), calls("a", "b"), result("a"), result("b"), assistant("x")])]
    notes = Notes()
    found = pair(given, "missing", notes)
    assert all(one.message is other.message for one, other in zip(found, given, strict=True))
    assert not notes


def test_results_stand_behind_their_call_in_its_order() -> None:
    """Messages between them follow the results."""
    found, notes = paired(calls("a", "b"), user("wait"), result("b"), result("a"), user("and"))
    assert found == ["calls a b", "a=ok", "b=ok", "user: wait", "user: and"]
    assert notes == [(3, "moved"), (2, "moved")]


def test_a_missing_result_is_made_up_and_marked() -> None:
    """It is an error, names its tool and is marked as synthetic."""
    notes = Notes()
    message = calls("a", timestamp=5)
    found = pair([Piece(7, message)], "gone", notes)
    assert found[1] == Piece(
        None,
        {
            "role": "toolResult",
            "toolCallId": "a",
            "toolName": "read",
            "content": [{"type": "text", "text": "gone"}],
            "isError": True,
            "synthetic": True,
            "timestamp": 5,
        },
    )
    assert [(note.place, note.did) for note in notes] == [(7, "made")]
    assert pair(found, "gone", notes) == found


def test_of_two_results_the_first_counts() -> None:
    """The second is dropped with a note, and the first does not move."""
    found, notes = paired(calls("a", "b"), result("a", "1"), result("a", "2"), result("b"), user("q"), result("a", "3"))
    assert found == ["calls a b", "a=1", "b=ok", "user: q"]
    assert notes == [(2, "dropped"), (5, "dropped")]


def test_a_result_without_a_call_before_it_is_dropped() -> None:
    """If there is no call, or only a later one."""
    found, notes = paired(result("a"), result(None), user("q"), calls("a"), result("a"), result("z"))
    assert found == ["user: q", "calls a", "a=ok"]
    assert notes == [(0, "dropped"), (1, "dropped"), (5, "dropped")]


def test_ids_may_repeat_in_later_turns() -> None:
    """Each call has its own result."""
    found, notes = paired(calls("a"), result("a", "1"), user("q"), calls("a"), result("a", "2"))
    assert found == ["calls a", "a=1", "user: q", "calls a", "a=2"]
    assert not notes


def test_the_nearest_call_owns_a_result() -> None:
    """An earlier open call with the same id does not get the result."""
    found, notes = paired(calls("a"), user("q"), calls("a"), result("a", "2"))
    assert found == ["calls a", "a=missing", "user: q", "calls a", "a=2"]
    assert notes == [(0, "made")]


def test_a_late_result_goes_to_the_only_call_that_is_open() -> None:
    """A slow tool returned after the model had continued."""
    found, notes = paired(calls("a"), assistant("waiting"), calls("b"), result("b"), result("a", "late"))
    assert found == ["calls a", "a=late", "assistant: waiting", "calls b", "b=ok"]
    assert notes == [(4, "moved")]


def test_a_late_result_that_several_calls_could_own_is_dropped() -> None:
    """The owner is not guessed."""
    found, notes = paired(calls("a"), calls("a"), calls("b"), result("a", "late"), result("b"))
    assert found == ["calls a", "a=missing", "calls a", "a=missing", "calls b", "b=ok"]
    assert (3, "dropped") in notes


def test_the_same_id_twice_in_one_message_is_answered_in_order() -> None:
    """The first result belongs to the first call."""
    found, notes = paired(calls("a", "a"), result("a", "1"), result("a", "2"))
    assert found == ["calls a a", "a=1", "a=2"]
    assert not notes


@pytest.mark.parametrize("reason", ["error", "aborted"])
def test_a_call_of_a_stopped_turn_is_taken_out(reason: str) -> None:
    """It was never made; answered calls stay, also if the same block occurs twice."""
    call = {"type": "toolCall", "id": "a", "name": "read"}
    found, notes = paired(
        {"role": "assistant", "content": [call, call], "stopReason": reason}, result("a"), calls("b", stopReason=reason)
    )
    assert found == ["calls a", "a=ok", "assistant: look"]
    assert notes == [(0, "dropped"), (2, "dropped")]


def test_a_result_has_the_name_of_its_call() -> None:
    """Gemini compares them."""
    answer = {"role": "toolResult", "toolCallId": "a", "content": []}
    found = pair([Piece(0, calls("a")), Piece(1, answer)], "missing", Notes())
    assert found[1].message["toolName"] == "read"
    assert "toolName" not in answer
