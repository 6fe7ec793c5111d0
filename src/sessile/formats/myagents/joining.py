"""One conversation from two stores: MyAgents' messages beside the rows of Claude Code's transcript.

MyAgents knows what an answer used, how many tools it took and how long; Claude Code has every step. A message belongs to the
turn that its `sdkUuid` names; without one, questions are matched by their text, in order, and an answer belongs to the turn of
its question. What has no counterpart on either side is shown as that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.formats.myagents.types import Message, Usage

_HIDDEN = ("isSidechain", "isMeta", "isCompactSummary")


class Joined(NamedTuple):
    """A message and the rows of the transcript that it stands for; none if `uuids` is empty."""

    message: Message
    uuids: tuple[str, ...]
    usage: Usage | None
    tool_count: int | None
    duration_ms: int | None


class JoinedView(NamedTuple):
    """All messages, and the rows of the transcript that no message stands for."""

    rows: tuple[Joined, ...]
    left_over: tuple[str, ...]


class Turn(NamedTuple):
    """A question in a transcript and the rows that follow it."""

    text: str
    question: str
    answers: list[str]


def turns_of(rows: Iterable[Mapping[str, Any]]) -> list[Turn]:
    """The turns of a transcript; rows of sub-agents and rows that nobody said are left out."""
    turns: list[Turn] = []
    for row in rows:
        uuid = row.get("uuid")
        if not isinstance(uuid, str) or any(row.get(name) for name in _HIDDEN):
            continue
        text = _question_in(row)
        if text is not None:
            turns.append(Turn(text, uuid, []))
        elif turns and row.get("type") in ("user", "assistant"):
            turns[-1].answers.append(uuid)
    return turns


def _question_in(row: Mapping[str, Any]) -> str | None:
    """What a person asked, if the row is that."""
    message = row.get("message")
    if row.get("type") != "user" or not isinstance(message, Mapping):
        return None
    content = message.get("content")
    if isinstance(content, str):
        return content.strip()
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    if not blocks or any(block.get("type") == "tool_result" for block in blocks):
        return None
    return "\n".join(block["text"] for block in blocks if isinstance(block.get("text"), str)).strip()


def join(messages: Sequence[Message], turns: Sequence[Turn]) -> JoinedView:
    """The messages with the rows of their turns."""
    places = {uuid: at for at, turn in enumerate(turns) for uuid in (turn.question, *turn.answers)}
    used: set[str] = set()
    joined = []
    here: int | None = None  # the turn of the last question
    after = 0  # turns before it are done with
    for message in messages:
        uuids: tuple[str, ...] = ()
        if message.role == "user":
            here = places.get(message.sdk_uuid or "")
            if here is None:
                here = _next_with(turns, message.text.strip(), after)
            after = after if here is None else here + 1
            uuids = () if here is None else (turns[here].question,)
        else:
            at = places.get(message.sdk_uuid or "", here)
            uuids = () if at is None else tuple(uuid for uuid in turns[at].answers if uuid not in used)
        used.update(uuids)
        joined.append(Joined(message, uuids, message.usage, message.tool_count, message.duration_ms))
    return JoinedView(tuple(joined), tuple(uuid for uuid in places if uuid not in used))


def _next_with(turns: Sequence[Turn], text: str, start: int) -> int | None:
    return next((at for at in range(start, len(turns)) if turns[at].text == text), None)
