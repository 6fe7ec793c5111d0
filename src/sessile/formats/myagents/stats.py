"""Statistics of a session: counted message by message, or all over again, with one answer.

`messageCount` counts what people said, not the answers. A `Tally` is what some messages add; tallies can be added and taken
away, so that usage which arrives late counts once. Sessions from before there were statistics count from their next message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sessile.core.text import utf16_cut
from sessile.formats.myagents.types import Json, Message, Usage, count_of

_ALWAYS = (("messageCount", 0), ("totalInputTokens", 1), ("totalOutputTokens", 2))
_UNLESS_ZERO = (("totalCacheReadTokens", 3), ("totalCacheCreationTokens", 4))
_QUERY = 100  # characters of a question that a list of answers shows
_NO_MODEL = "unknown"


class Tally(NamedTuple):
    """What messages add to the statistics."""

    messages: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_creation: int = 0

    @property
    def cached(self) -> int:
        """What the view of statistics shows as cached input."""
        return self.cache_read + self.cache_creation

    def plus(self, other: Tally) -> Tally:
        return Tally(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def minus(self, other: Tally) -> Tally:
        return Tally(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


def tally(messages: Iterable[Message]) -> Tally:
    """What these messages add; a number that is not given adds nothing."""
    total = Tally()
    for message in messages:
        if message.role == "user":
            total = total.plus(Tally(messages=1))
        elif message.role == "assistant" and message.usage is not None:
            total = total.plus(_of_usage(message.usage))
    return total


def _of_usage(usage: Usage) -> Tally:
    return Tally(
        0,
        usage.input_tokens or 0,
        usage.output_tokens or 0,
        usage.cache_read_tokens or 0,
        usage.cache_creation_tokens or 0,
    )


def tally_of(stats: Mapping[str, Any] | None) -> Tally:
    """Stored statistics as a tally."""
    return Tally(*(count_of((stats or {}).get(name)) or 0 for name, _ in (*_ALWAYS, *_UNLESS_ZERO)))


def add(stats: Mapping[str, Any] | None, more: Tally) -> Json:
    """The statistics with a tally added, as they are stored; members of others stay."""
    return _stored(stats, Tally(*(max(0, number) for number in tally_of(stats).plus(more))))


def recount(messages: Iterable[Message], stats: Mapping[str, Any] | None = None) -> Json:
    """The statistics counted from all messages; members of others in `stats` stay."""
    return _stored(stats, tally(messages))


def _stored(stats: Mapping[str, Any] | None, total: Tally) -> Json:
    value = dict(stats or {})
    for name, place in _ALWAYS:
        value[name] = total[place]
    for name, place in _UNLESS_ZERO:
        if total[place]:
            value[name] = total[place]
        else:
            value.pop(name, None)
    return value


class ModelUse(NamedTuple):
    """What one model used in a session."""

    model: str
    answers: int
    tally: Tally


def by_model(messages: Iterable[Message]) -> list[ModelUse]:
    """The use of each model in the order of its first answer; an answer that names none counts for `unknown`."""
    found: dict[str, ModelUse] = {}
    for message in messages:
        usage = message.usage
        if message.role != "assistant" or usage is None:
            continue
        for model, part in (usage.by_model or {usage.model or _NO_MODEL: usage}).items():
            _, known, total = found.get(model, ModelUse(model, 0, Tally()))
            found[model] = ModelUse(model, known + 1, total.plus(_of_usage(part)))
    return list(found.values())


class Answer(NamedTuple):
    """One answer in the view of a session's statistics."""

    query: str
    usage: Usage
    tool_count: int | None
    duration_ms: int | None


def answers(messages: Iterable[Message]) -> list[Answer]:
    """Every answer that says what it used, with the question before it."""
    found = []
    query = ""
    for message in messages:
        if message.role == "user":
            query = utf16_cut(message.text, _QUERY)
        elif message.role == "assistant" and message.usage is not None:
            found.append(Answer(query, message.usage, message.tool_count, message.duration_ms))
    return found
