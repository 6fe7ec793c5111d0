"""Turns as providers allow them: who begins, who follows whom, and how far back a conversation goes.

Rules: what is merged keeps every block of both, a text as one block; the first one's members count, of two answers the
later one's usage and end. A message that we add ourselves carries `synthetic` and is no turn of the user's. System
messages at the beginning are not part of the history.
"""

from __future__ import annotations

from collections.abc import Sequence

from sessile.core.hygiene_notes import Message, Notes, Piece

BOOTSTRAP = "(session bootstrap)"
ATTACHED = "Images from the tool results above:"
SEE_BELOW = "(see the images below)"

_LATER = ("usage", "stopReason", "errorMessage")
_ORIGIN = ("provider", "api", "model")  # whose signatures a message holds; a mixed one has no single origin
_SYSTEM = ("system", "developer")


def bootstrap(pieces: Sequence[Piece], notes: Notes) -> list[Piece]:
    """The pieces with a short word of the user before a model that would begin."""
    start = _behind_system(pieces)
    if start == len(pieces) or pieces[start].role != "assistant":
        return list(pieces)
    notes.add(pieces[start], "made", f"the conversation began with the model; {BOOTSTRAP} was put before it")
    first = {"role": "user", "content": BOOTSTRAP, "synthetic": True}
    return [*pieces[:start], Piece(None, first), *pieces[start:]]


def merge_assistants(pieces: Sequence[Piece], notes: Notes) -> list[Piece]:
    """The pieces with answers that follow each other merged."""
    result: list[Piece] = []
    for piece in pieces:
        if result and piece.role == result[-1].role == "assistant":
            notes.add(piece, "merged", f"merged with the answer before it, message {result[-1].place}")
            result[-1] = _merged_answer(result[-1], piece)
        else:
            result.append(piece)
    return result


def join_responses(pieces: Sequence[Piece], notes: Notes) -> list[Piece]:
    """The pieces with the parts of one response joined: some agents store each block of it as a message of its own.

    Between two parts there may be results of calls in the first one; a part that anything else comes before stays alone.
    """
    result: list[Piece] = []
    begun: int | None = None  # where the response stands that may still go on
    for piece in pieces:
        response = piece.message.get("responseId") if piece.role == "assistant" else None
        if response and begun is not None and result[begun].message.get("responseId") == response:
            notes.add(piece, "merged", f"joined with the beginning of its response, message {result[begun].place}")
            result[begun] = _merged_answer(result[begun], piece)
            continue
        if piece.role != "toolResult":
            begun = len(result) if response else None
        result.append(piece)
    return result


def merge_users(pieces: Sequence[Piece], notes: Notes) -> list[Piece]:
    """The pieces with messages of the user that follow each other merged, whether they are texts or blocks."""
    result: list[Piece] = []
    for piece in pieces:
        if result and piece.role == result[-1].role == "user":
            before = result[-1]
            notes.add(piece, "merged", f"merged with the message of the user before it, message {before.place}")
            merged = before.having(content=[*before.blocks, *piece.blocks])
            if not piece.message.get("synthetic"):
                merged.message.pop("synthetic", None)
            result[-1] = _joined(merged, piece)
        else:
            result.append(piece)
    return result


def images_behind_results(pieces: Sequence[Piece], notes: Notes, *, of_failures: bool = False) -> list[Piece]:
    """The pieces with the images of results, or of those that failed, in a message of the user behind the turn's last result."""
    result: list[Piece] = []
    images: list[Message] = []
    source: int | None = None
    for piece in pieces:
        if piece.role != "toolResult" and images:
            result.append(_attached(source, images))
            images = []
        concerned = piece.role == "toolResult" and (not of_failures or bool(piece.message.get("isError")))
        found = [block for block in piece.blocks if block.get("type") == "image"] if concerned else []
        if found:
            notes.add(piece, "moved", f"images of a tool result ({len(found)}) were moved behind the results")
            rest = [block for block in piece.blocks if block.get("type") != "image"]
            piece = piece.having(content=rest or [{"type": "text", "text": SEE_BELOW}])
            images += found
            source = piece.place
        result.append(piece)
    return [*result, _attached(source, images)] if images else result


def last_turns(pieces: Sequence[Piece], limit: int | None, notes: Notes) -> list[Piece]:
    """The pieces from the last so many messages of the user on; all of them without a limit."""
    start = _behind_system(pieces)
    asked = [
        at
        for at, piece in enumerate(pieces)
        if at >= start and piece.role == "user" and not piece.message.get("synthetic")
    ]
    if limit is None or limit <= 0 or len(asked) <= limit:
        return list(pieces)
    cut = asked[-limit]
    for piece in pieces[start:cut]:
        notes.add(piece, "dropped", f"before the last {limit} messages of the user")
    return [*pieces[:start], *pieces[cut:]]


def _behind_system(pieces: Sequence[Piece]) -> int:
    return next((at for at, piece in enumerate(pieces) if piece.role not in _SYSTEM), len(pieces))


def _merged_answer(first: Piece, later: Piece) -> Piece:
    mixed = any(first.message.get(name) != later.message.get(name) for name in _ORIGIN)
    gone = (*_LATER, *_ORIGIN) if mixed else _LATER
    message = {name: value for name, value in first.message.items() if name not in gone}
    message |= {name: later.message[name] for name in _LATER if name in later.message}
    return _joined(first._replace(message=message | {"content": [*first.blocks, *later.blocks]}), later)


def _joined(merged: Piece, later: Piece) -> Piece:
    """The merged piece, which remembers where its later part stood."""
    return merged if later.place is None else merged._replace(merged=(*merged.merged, later.place))


def _attached(source: int | None, images: Sequence[Message]) -> Piece:
    text = {"type": "text", "text": ATTACHED}
    return Piece(source, {"role": "user", "content": [text, *images], "synthetic": True})
