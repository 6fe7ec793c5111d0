"""What a summarizer is asked, what it answers, and one that needs no model.

    SummaryRequest      system prompt, prompt, the messages in question, what was summed up before
    Summary      the text, and how it ended
    extract      a summary made of the messages' own words: requests, answers, failures

An extract is worse than what a model writes, but it needs no key, no network and no money, it is the same every time, and it
says what it is. It never invents anything. It has a longest length, however often it is made anew of the one before: what does
not fit is left out of its middle, which says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from sessile.core.file_lists import without_blocks

Message = Mapping[str, Any]
Purpose = Literal["history", "prefix", "short", "branch"]

EXTRACTED = "This is an extract of the conversation's own words; no model has summed it up."

_FIRST = 600  # characters of the first request
_REQUEST = 240
_ANSWER = 400
_FAILURE = 240
_REQUESTS = 24  # of the newest requests; older ones are counted
_FAILURES = 8
_LONGEST = 16_000  # characters of a whole extract
_LEAST = 1_000  # … if there is little room
_LEFT_OUT = "\n\n(… a part is left out here; it is still in the session)\n\n"
_BEFORE = "## Before\n\n"


class SummaryRequest(NamedTuple):
    """What is to be summed up. `messages` are what `prompt` tells as text, for those who do not read prompts."""

    purpose: Purpose
    system: str
    prompt: str
    messages: Sequence[Message]
    previous: str | None = None
    max_tokens: int | None = None


class Summary(NamedTuple):
    """A summary; `stop` is why it ended ("stop" if it is whole), `model` and `usage` what it was made with."""

    text: str
    stop: str = "stop"
    model: str | None = None
    usage: Mapping[str, Any] | None = None


Summarizer = Callable[[SummaryRequest], Summary]


def extract(request: SummaryRequest) -> Summary:
    """A summary made of the messages' own words."""
    if request.purpose == "short":
        return Summary(_cut(_last(request.messages, "assistant") or _last(request.messages, "user"), _ANSWER))
    parts = [EXTRACTED]
    if request.previous:
        parts.append(_BEFORE + _without_note(request.previous))
    requests = [text for message in request.messages if message.get("role") == "user" and (text := _text(message))]
    if requests:
        parts.append(f"## Goal\n\n{_cut(requests[0], _FIRST)}")
    if len(requests) > 1:
        parts.append("## Requests\n\n" + _list(requests[1:], _REQUESTS, _REQUEST))
    failures = [text for message in request.messages if message.get("isError") is True and (text := _text(message))]
    if failures:
        parts.append("## Failures\n\n" + _list(failures, _FAILURES, _FAILURE))
    answer = _last(request.messages, "assistant")
    if answer:
        parts.append(f"## Last answer\n\n{_cut(answer, _ANSWER)}")
    # As many characters as a model may write tokens: what only repeats words has to do with a quarter.
    longest = _LONGEST if request.max_tokens is None else min(_LONGEST, max(_LEAST, request.max_tokens))
    return Summary(_shortened("\n\n".join(parts), longest))


def _without_note(text: str) -> str:
    """An earlier extract without its first lines, one such line is enough, and without its files, which are told anew."""
    return without_blocks(text).removeprefix(EXTRACTED).lstrip().removeprefix(_BEFORE)


def _shortened(text: str, longest: int) -> str:
    """A text with its beginning, which says what it was all about, and its end, which is newest."""
    if len(text) <= longest:
        return text
    room = max(longest - len(_LEFT_OUT), 2)
    # What was left out before lies in the part that goes now.
    return (
        text[: room // 3].replace(_LEFT_OUT, "\n\n")
        + _LEFT_OUT
        + text[-(room - room // 3) :].replace(_LEFT_OUT, "\n\n")
    )


def _list(texts: Sequence[str], most: int, longest: int) -> str:
    older = len(texts) - most
    lines = [f"- {_cut(text, longest)}" for text in texts[-most:]]
    return "\n".join([f"- ({older} earlier ones are left out)", *lines] if older > 0 else lines)


def _last(messages: Sequence[Message], role: str) -> str:
    texts = (_text(message) for message in reversed(messages) if message.get("role") == role)
    return next(filter(None, texts), "")


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return " ".join(content.split())
    blocks = content if isinstance(content, list) else ()
    texts = (block.get("text") for block in blocks if isinstance(block, Mapping) and block.get("type") == "text")
    return " ".join(" ".join(text for text in texts if isinstance(text, str)).split())


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"
