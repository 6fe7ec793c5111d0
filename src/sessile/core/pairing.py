"""Tool calls and their results, side by side: every call has one result, directly behind it, and no result is without a
call.

Rules: a result belongs to the first call with its id that has none yet, in the last message with calls before it. If
there is no such call, it came late: then it belongs to the only call before it with its id that is still open, and to
none if there are several. Ids may repeat in later turns. Of several results the first counts. Results stand behind
their message in the order of its calls, and what stood between follows them.

A call without a result gets one that is made up and says so. It is only rendered: `synthetic` marks it, and nobody
stores it. A call of a turn that failed or was stopped was never made, so it is taken out instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from sessile.core.hygiene_notes import Message, Notes, Piece

STOPPED = ("error", "aborted")

_Call = tuple[int, int]  # the place of the message, and which of its calls


def pair(pieces: Sequence[Piece], synthetic: str, notes: Notes) -> list[Piece]:
    """The pieces with calls and results paired; ids are texts already."""
    answers = _answers(pieces, notes)
    owned = set(answers.values())
    survivors = [at for at, piece in enumerate(pieces) if piece.role != "toolResult" or at in owned]
    rank = {at: number for number, at in enumerate(survivors)}
    result: list[Piece] = []
    for at, piece in enumerate(pieces):
        if piece.role == "toolResult":
            continue
        if not piece.calls:
            result.append(piece)
            continue
        answered = [answers.get((at, number)) for number in range(len(piece.calls))]
        if piece.message.get("stopReason") in STOPPED:
            piece = _without_unanswered(piece, answered, notes)
            answered = [where for where in answered if where is not None]
        result.append(piece)
        behind = rank[at] + 1  # where a result stands that need not move
        for call, where in zip(piece.calls, answered, strict=True):
            if where is None:
                notes.add(piece, "made", f"the call {call['id']} of {_name(call)} has no result; one was made up")
                result.append(Piece(None, _missing(piece, call, synthetic)))
                continue
            found = pieces[where]
            if rank[where] == behind:
                behind += 1
            else:
                notes.add(found, "moved", f"the result of {_name(call)} was moved directly behind its call")
            result.append(found if found.message.get("toolName") == _name(call) else found.having(toolName=_name(call)))
    return result


def _answers(pieces: Sequence[Piece], notes: Notes) -> dict[_Call, int]:
    """Which result answers which call; what answers none is noted."""
    answers: dict[_Call, int] = {}
    unanswered: dict[str, list[_Call]] = {}
    called: set[str] = set()
    last = -1  # the place of the last message with calls
    for at, piece in enumerate(pieces):
        for number, call in enumerate(piece.calls):
            unanswered.setdefault(call["id"], []).append((at, number))
            called.add(call["id"])
            last = at
        if piece.role != "toolResult":
            continue
        call_id = piece.message.get("toolCallId")
        open_calls = unanswered.get(call_id, []) if isinstance(call_id, str) else []
        near = [call for call in open_calls if call[0] == last]
        if near or len(open_calls) == 1:
            owner = (near or open_calls)[0]
            open_calls.remove(owner)
            answers[owner] = at
        elif open_calls:
            notes.add(piece, "dropped", f"a result for {call_id} came late, and several calls could own it")
        elif call_id in called:
            notes.add(piece, "dropped", f"a second result for {call_id}; the first one counts")
        else:
            notes.add(piece, "dropped", f"a result for {call_id}, which was not called before")
    return answers


def _without_unanswered(piece: Piece, answered: Sequence[int | None], notes: Notes) -> Piece:
    """The message of a stopped turn without the calls that were never made."""
    if None not in answered:
        return piece
    following = iter(answered)
    kept = []
    for block in piece.blocks:
        if block.get("type") == "toolCall" and next(following) is None:
            notes.add(piece, "dropped", f"the call {block['id']} of {_name(block)} was stopped before it was made")
        else:
            kept.append(block)
    return piece.having(content=kept)


def _missing(piece: Piece, call: Message, text: str) -> Message:
    return {
        "role": "toolResult",
        "toolCallId": call["id"],
        "toolName": _name(call),
        "content": [{"type": "text", "text": text}],
        "isError": True,
        "synthetic": True,
        "timestamp": piece.message.get("timestamp"),
    }


def _name(call: Message) -> str:
    name = call.get("name")
    return name if isinstance(name, str) and name else "unknown"
