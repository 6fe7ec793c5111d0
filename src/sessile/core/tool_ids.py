"""Ids of tool calls in the form that a provider takes, one for each call.

    strict    only letters and digits, at most 40; empty becomes `sanitizedtoolid`, missing `defaulttoolid`; what collides
              ends in eight digits of the hash of its original, then in `x2`, `x3`, …
    strict9   exactly nine letters and digits: the first nine, or nine of the hash of fewer; missing becomes `defaultid`
    none      as it is; only a missing one is given

`rewrite` uses one map for the whole conversation, so that a result keeps the id of its call. `separate` comes after
pairing: agents reuse ids, providers refuse to see one twice. An id depends only on the messages before it, so that a
cached prompt stays valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import count
from typing import Any

from sessile.core.hashes import sha1
from sessile.core.hygiene_notes import Piece
from sessile.core.hygiene_policy import ToolIds
from sessile.core.text import without_surrogates

LONGEST = 40
_OTHER = re.compile(r"[^A-Za-z0-9]+")

Make = Callable[[str | None, Container[str]], str]


def strict_id(original: str | None, taken: Container[str]) -> str:
    """The strict form of an id that is none of the taken ones."""
    base = "defaulttoolid" if original is None else _OTHER.sub("", original)[:LONGEST] or "sanitizedtoolid"
    if base not in taken:
        return base
    hashed = _hash(original or "", 8)
    candidate = base[: LONGEST - len(hashed)] + hashed
    numbered = (candidate[: LONGEST - len(f"x{number}")] + f"x{number}" for number in count(2))
    return candidate if candidate not in taken else next(name for name in numbered if name not in taken)


def strict9_id(original: str | None, taken: Container[str]) -> str:
    """The form of nine characters of an id that is none of the taken ones."""
    if original is None:
        base = "defaultid"
    else:
        kept = _OTHER.sub("", original)
        base = kept[:9] if len(kept) >= 9 else _hash(kept or "sanitized", 9)
    if base not in taken:
        return base
    hashed = (_hash(f"{original or ''}:{number}", 9) for number in count())
    return next(name for name in hashed if name not in taken)


def plain_id(original: str | None, taken: Container[str]) -> str:
    """The id as it is, as long as it is there and none of the taken ones."""
    return original if original is not None and original not in taken else strict_id(original, taken)


MAKERS: dict[ToolIds, Make] = {"none": plain_id, "strict": strict_id, "strict9": strict9_id}


def rewrite(pieces: Iterable[Piece], form: ToolIds) -> list[Piece]:
    """The pieces with every id of a call or result in its new form, the same id always in the same."""
    make = MAKERS[form]
    made: dict[str | None, str] = {}
    taken: set[str] = set()

    def renamed(value: Any) -> str:
        original = _original(value)
        if original not in made:
            made[original] = make(original, taken)
            taken.add(made[original])
        return made[original]

    return [_with_ids(piece, [renamed(value) for value in _ids(piece)]) for piece in pieces]


def separate(pieces: Sequence[Piece], form: ToolIds) -> list[Piece]:
    """The pieces, paired already, with an id of its own for each call; its result stands directly behind and follows it."""
    make = MAKERS[form]
    taken: set[str] = set()
    result: list[Piece] = []
    owed: list[str] = []  # the ids of the results that follow
    for piece in pieces:
        if piece.role == "toolResult":
            result.append(_with_ids(piece, [owed.pop(0)]))
            continue
        ids = []
        for value in _ids(piece):
            ids.append(value if value not in taken else make(value, taken))
            taken.add(ids[-1])
        owed = ids.copy()
        result.append(_with_ids(piece, ids))
    return result


def _ids(piece: Piece) -> list[Any]:
    if piece.role == "toolResult":
        return [piece.message.get("toolCallId")]
    return [call.get("id") for call in piece.calls]


def _with_ids(piece: Piece, ids: Sequence[str]) -> Piece:
    if list(ids) == _ids(piece):
        return piece
    if piece.role == "toolResult":
        return piece.having(toolCallId=ids[0])
    following = iter(ids)
    return piece.having(
        content=[
            {**block, "id": next(following)} if block.get("type") == "toolCall" else block for block in piece.blocks
        ]
    )


def _original(value: Any) -> str | None:
    """An id as text; numbers are ids of careless agents, everything else is missing."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return without_surrogates(value) if isinstance(value, str) and value.strip() else None


def _hash(text: str, digits: int) -> str:
    return sha1(text.encode()).hexdigest()[:digits]
