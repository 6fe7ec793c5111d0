"""Token counts: estimates of messages, and the size of a whole context.

`estimate` is the documented rule of the pi family: a quarter of the characters, in UTF-16 units, rounded up; an image counts
as 4800 characters. `estimate_closely` is more accurate for text that is not English prose, without a tokenizer:

    a word of ASCII letters           1 token for every 6 letters or part of them
    a number                          1 for every 3 digits
    symbols, as in code               1 for every 2
    a line break and its indentation  1, as a wide gap within a line; a single space is part of the next word
    other alphabets                   1 for every 3 letters
    Chinese, Japanese, Korean, …      1 per character
    everything else                   1 per character, 2 beyond the basic plane (emoji)

Any function that takes a message and returns a number can replace them (`Counter`).

The size of a context (`Snapshot`) comes from the provider if possible: the last answer reports how large the context was, and
later messages are added as estimates. Answers that failed or were aborted, report only zeros, or precede the last compaction
are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from sessile.core.codec import encode_plain, plain
from sessile.core.text import utf16_length
from sessile.core.usage import usage_of

Message = Mapping[str, Any]
Counter = Callable[[Message], int]
"""Return the number of tokens of a message."""

CHARS_PER_TOKEN = 4
IMAGE_CHARS = 4800

_FAILED = ("aborted", "error")


class Snapshot(NamedTuple):
    """The size of a context, where it comes from, and the entry whose answer reported it."""

    tokens: int
    source: Literal["provider", "estimate"]
    at: str | None = None


class _Parts(NamedTuple):
    """The parts of a message that take tokens."""

    texts: list[str]
    images: int


def estimate(message: Message) -> int:
    """Return the documented estimate. Roles that pi does not know count 0."""
    if message.get("role") in _UNCOUNTED:
        return 0
    texts, images = _parts(message)
    return -(-(sum(map(utf16_length, texts)) + images * IMAGE_CHARS) // CHARS_PER_TOKEN)


def estimate_closely(message: Message) -> int:
    """Return the estimate by words, symbols and scripts, for every role."""
    texts, images = _parts(message)
    return sum(map(_tokens, texts)) + images * (IMAGE_CHARS // CHARS_PER_TOKEN)


def _tokens(text: str) -> int:
    piece, wide = _patterns()
    tokens = len(piece.findall(text))
    return tokens if text.isascii() else tokens + len(wide.findall(text))


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Compile on first use: classes over all of Unicode are slow to compile."""
    unspaced = (
        "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3105-\u318e"
        "\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff"
    )
    piece = (
        r"[A-Za-z]{1,6}|[0-9]{1,3}|[!-/:-@\[-`{-~]{1,2}|\n\s{0,32}|[ \t]{2,32}"
        rf"|[{unspaced}]|[^\W\d_{unspaced}]{{1,3}}|[^\s]"
    )
    return re.compile(piece), re.compile("[\U00010000-\U0001ffff]")


def _parts(message: Message) -> _Parts:
    role = message.get("role")
    gather = _GATHER.get(role) if isinstance(role, str) else None
    return _Parts([], 0) if gather is None else gather(message)


def _from_content(message: Message) -> _Parts:
    return _content(message.get("content"))


def _content(content: object) -> _Parts:
    if isinstance(content, str):
        return _Parts([content], 0)
    texts, images = [], 0
    for block in _mappings(content):
        if block.get("type") == "text":
            texts += _strings(block.get("text"))
        elif block.get("type") == "image":
            images += 1
    return _Parts(texts, images)


def _from_answer(message: Message) -> _Parts:
    content = message.get("content")
    texts = _strings(content)
    for block in _mappings(content):
        kind = block.get("type")
        if kind == "text":
            texts += _strings(block.get("text"))
        elif kind == "thinking":
            texts += _strings(block.get("thinking"))
        elif kind == "toolCall":
            texts += [*_strings(block.get("name")), *_json(block.get("arguments"))]
    return _Parts(texts, 0)


def _from_system(message: Message) -> _Parts:
    texts, images = _content(message.get("content"))
    sections = message.get("sections")
    texts += _strings(*(sections.values() if isinstance(sections, Mapping) else ()))
    return _Parts(texts + _json(message.get("toolsAdded")), images)


def _from_run(message: Message) -> _Parts:
    return _Parts(_strings(message.get("command"), message.get("code"), message.get("output")), 0)


def _from_summary(message: Message) -> _Parts:
    return _Parts(_strings(message.get("summary")), 0)


def _from_files(message: Message) -> _Parts:
    files = _mappings(message.get("files"))
    texts = [text for file in files for text in _strings(file.get("path"), file.get("content"))]
    return _Parts(texts, sum(isinstance(file.get("image"), Mapping) for file in files))


_GATHER: dict[str, Callable[[Message], _Parts]] = {
    "user": _from_content,
    "custom": _from_content,
    "toolResult": _from_content,
    "assistant": _from_answer,
    "system": _from_system,
    "bashExecution": _from_run,
    "branchSummary": _from_summary,
    "compactionSummary": _from_summary,
    "developer": _from_content,
    "hookMessage": _from_content,
    "pythonExecution": _from_run,
    "fileMention": _from_files,
}
_UNCOUNTED = ("developer", "hookMessage", "pythonExecution", "fileMention")


def _mappings(content: object) -> list[Message]:
    return [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []


def _strings(*values: object) -> list[str]:
    return [value for value in values if isinstance(value, str)]


def _json(value: object) -> list[str]:
    """Return a value as JSON, or nothing if it is `None`."""
    return [] if value is None else [encode_plain(plain(value).value).decode("utf-8")]


class Tally:
    """Add up a context from its newest message to its oldest, until a count of the provider settles it."""

    __slots__ = ("_at", "_counter", "_estimated", "_reported")

    def __init__(self, counter: Counter = estimate) -> None:
        self._counter = counter
        self._estimated = 0
        self._reported: int | None = None
        self._at: str | None = None

    @property
    def settled(self) -> bool:
        """Whether older messages no longer matter."""
        return self._reported is not None

    def add(self, message: Message, source: str | None, *, current: bool = True) -> int:
        """Add the next older message and return its estimate. The count of an answer that is not `current` is ignored."""
        tokens = self._counter(message)
        if not self.settled:
            self._reported = reported(message) if current else None
            if self.settled:
                self._at = source
            else:
                self._estimated += tokens
        return tokens

    def snapshot(self) -> Snapshot:
        """Return the size so far."""
        if self._reported is None:
            return Snapshot(self._estimated, "estimate")
        return Snapshot(self._reported + self._estimated, "provider", self._at)


def reported(message: Message) -> int | None:
    """Return the size of the context that the provider reported with an answer, or `None`."""
    if message.get("role") != "assistant" or message.get("stopReason") in _FAILED:
        return None
    usage = usage_of(message.get("usage"))
    return None if usage is None else usage.context


def context_tokens(
    messages: Sequence[Message], sources: Sequence[str | None] = (), counter: Counter = estimate
) -> Snapshot:
    """Return the size of a context; `sources` are the ids of the entries of its messages."""
    compacted = next((m.get("timestamp") for m in messages if m.get("role") == "compactionSummary"), None)
    tally = Tally(counter)
    for number in reversed(range(len(messages))):
        message = messages[number]
        current = compacted is None or _is_later(message.get("timestamp"), compacted)
        tally.add(message, sources[number] if number < len(sources) else None, current=current)
        if tally.settled:
            break
    return tally.snapshot()


def _is_later(time: object, other: object) -> bool:
    """Return whether both times are known and the first is later; equal times do not count."""
    return isinstance(time, int | float) and isinstance(other, int | float) and time > other


def total(messages: Iterable[Message], counter: Counter = estimate) -> int:
    """Return the estimated size of messages."""
    return sum(map(counter, messages))
