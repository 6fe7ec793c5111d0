"""Hygiene: the messages of a context as one provider takes them, and a note on everything that was done to them.

    responses joined → contents → ids → pairing → answers without a word → images of results → who begins
    → answers merged → questions merged → limit of the history → pairing once more

It runs behind `convert_to_llm` and before the shape of a provider. It changes nothing that is stored: what is made up
here is made up anew for each request. Cleaning what is clean changes nothing. What ends with the model's word is no
request yet: the message that follows is the caller's. Lone surrogates are replaced by the shapes, except in ids, which
must stay pairs.

It knows no session and no clock; who resizes images and which tools exist are arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from sessile.core import tool_ids, turns
from sessile.core.hygiene_contents import Care, settle, tidy
from sessile.core.hygiene_notes import Message, Note, Notes, Piece
from sessile.core.hygiene_policy import Policy
from sessile.core.images import LIMITS, Limits, Resize
from sessile.core.pairing import pair


class Cleaned(NamedTuple):
    """Messages that can be sent, and what was done; `origins[i]` is the place of what gave `messages[i]`, `None` if we did."""

    messages: list[Message]
    origins: list[int | None]
    notes: list[Note]


def clean(
    messages: Iterable[Message],
    policy: Policy,
    *,
    history_limit: int | None = None,
    tools: Collection[str] | None = None,
    limits: Limits = LIMITS,
    resize: Resize | None = None,
) -> Cleaned:
    """The messages as the provider of this policy takes them, the last `history_limit` questions at most."""
    notes = Notes()
    parts = turns.join_responses([Piece(*item) for item in enumerate(messages)], notes)
    pieces = tidy(parts, policy, Care(tools, limits, resize), notes)
    if any(piece.role == "toolResult" or piece.calls for piece in pieces):  # most chats have none
        pieces = tool_ids.rewrite(pieces, policy.tool_ids)
        pieces = pair(pieces, policy.synthetic, notes)
        pieces = tool_ids.separate(pieces, policy.tool_ids)
    pieces = settle(pieces, notes)
    # Those who take images in results take none in a result that failed.
    pieces = turns.images_behind_results(pieces, notes, of_failures=policy.results)
    if policy.bootstrap:
        pieces = turns.bootstrap(pieces, notes)
    if policy.merge_assistants:
        pieces = turns.merge_assistants(pieces, notes)
    if policy.merge_users:
        pieces = turns.merge_users(pieces, notes)
    pieces = turns.last_turns(pieces, history_limit, notes)
    if history_limit is not None:
        # A cut before a question parts no pair; whatever a limit does, the pairs are right afterwards.
        pieces = pair(pieces, policy.synthetic, notes)
    notes.sort(key=lambda note: note.place)
    return Cleaned([piece.message for piece in pieces], [piece.place for piece in pieces], list(notes))
