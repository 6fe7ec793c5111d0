"""Trimming: the gateway's pruning, a view of old tool results that is remembered by entry and changes no session.

Rules: nothing happens while the provider still has the prompt cached (`is_due`), before the first message of the user,
and behind the last so many answers. A context that fills a part of its window has its long results cut to their head
and tail; one that is still too full has results cleared, oldest first, until it is not. Results with images and tools
that are not allowed stay.

What was done is kept by entry (`Kept`), with the numbers by which it was done: the same prompt comes out at every later
request, also after a restart or with other settings, so that it stays cached. An entry without an id cannot be
remembered and is left alone. Lengths are those of JavaScript.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.core.codec import encode_plain, plain
from sessile.core.messages import blocks_of, joined_text
from sessile.core.text import utf16_cut, utf16_length

Message = dict[str, Any]
Kept = dict[str, tuple[int, int] | str]
"""By the id of an entry: the lengths of the head and tail that are shown of its result, or the text that stands for it."""

MINUTE = 60_000  # milliseconds
CHARS_PER_TOKEN = 4
IMAGE_CHARS = 8000
OTHER_CHARS = 256  # what a message of another role counts

_UNITS = {"ms": 1, "s": 1000, "m": MINUTE, "h": 60 * MINUTE, "d": 24 * 60 * MINUTE, "": MINUTE}
_TTL = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)\s*", re.I)


class TrimSettings(NamedTuple):
    """When and how far results are trimmed; the defaults are the documented ones."""

    ttl: int = 5 * MINUTE
    keep_last_assistants: int = 3
    soft_trim_ratio: float = 0.3
    hard_clear_ratio: float = 0.5
    min_prunable_chars: int = 50_000
    max_chars: int = 4000
    head_chars: int = 1500
    tail_chars: int = 1500
    hard_clear: bool = True
    placeholder: str = "[Old tool result content cleared]"
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


SETTINGS = TrimSettings()


class Trimmed(NamedTuple):
    """The messages as they are sent, everything that is kept of what was done, and what was done just now."""

    messages: list[Message]
    kept: Kept
    trimmed: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()


def ttl_of(value: object) -> int | None:
    """Milliseconds of a duration like `5m` or `1h`; a number without a unit is minutes; `None` if it is no duration."""
    match = _TTL.fullmatch(str(value)) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    return None if match is None else int(float(match[1]) * _UNITS[match[2].lower()])


def is_due(last_touch: int | None, now: int, ttl: int = SETTINGS.ttl) -> bool:
    """Whether the provider no longer has the prompt cached; never if it was never asked or the ttl is off."""
    return last_touch is not None and ttl > 0 and now - last_touch >= ttl


def applies_to(provider: str, model: str) -> bool:
    """Whether a provider caches prompts in the way that trimming is made for."""
    name = provider.lower()
    return name == "anthropic" or (name == "openrouter" and model.lower().startswith("anthropic/"))


def may_trim(tool: str, allow: Iterable[str], deny: Iterable[str]) -> bool:
    """Whether results of a tool may be trimmed: patterns with `*`, in any case; deny wins, no pattern allows all."""
    allowed = [pattern for pattern in allow if pattern.strip()]
    return not any(_matches(tool, pattern) for pattern in deny) and (
        not allowed or any(_matches(tool, pattern) for pattern in allowed)
    )


def project(messages: Sequence[Message], sources: Sequence[str | None], kept: Kept) -> list[Message]:
    """The messages with everything done to them that was done before."""
    return [
        _shown(message, kept[source])
        if source is not None and source in kept and message.get("role") == "toolResult"
        else message
        for message, source in zip(messages, sources, strict=True)
    ]


def trim(
    messages: Sequence[Message],
    sources: Sequence[str | None],
    window: int,
    kept: Kept,
    settings: TrimSettings = SETTINGS,
) -> Trimmed:
    """The messages after what was done before and what their size asks for now; `window` is in tokens."""
    shown = project(messages, sources, kept)
    sizes = [count_chars(message) for message in shown]
    full = window * CHARS_PER_TOKEN
    soft, hard = (min(1.0, max(0.0, ratio)) for ratio in (settings.soft_trim_ratio, settings.hard_clear_ratio))
    results = _prunable(shown, sources, settings)
    if full <= 0 or sum(sizes) < soft * full:
        return Trimmed(shown, dict(kept))
    done = dict(kept)
    trimmed, cleared = [], []

    def do(at: int, source: str, how: tuple[int, int] | str) -> int:
        """Show a result so from now on; gives the characters that it saves."""
        before = sizes[at]
        done[source] = how
        shown[at] = _shown(messages[at], how)
        sizes[at] = count_chars(shown[at])
        return before - sizes[at]

    for at, source in results:
        if source not in kept and _is_long(shown[at], settings):
            do(at, source, (settings.head_chars, settings.tail_chars))
            trimmed.append(source)
    if settings.hard_clear and sum(sizes[at] for at, _ in results) >= settings.min_prunable_chars:
        total = sum(sizes)
        for at, source in results:
            if total < hard * full:
                break
            if not isinstance(done.get(source), str):
                total -= do(at, source, settings.placeholder)
                cleared.append(source)
    return Trimmed(shown, done, tuple(trimmed), tuple(cleared))


def read_kept(value: object) -> Kept:
    """What an entry stores of earlier trimming; what cannot be read is as if it had not been done."""
    kept: Kept = {}
    for source, how in value.items() if isinstance(value, Mapping) else ():
        if isinstance(how, str):
            kept[source] = how
        elif isinstance(how, list | tuple) and len(how) == 2 and all(type(n) is int and n >= 0 for n in how):
            kept[source] = (how[0], how[1])
    return kept


def count_chars(message: Message) -> int:
    """How many characters a message counts."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "toolResult"):
        return OTHER_CHARS
    if isinstance(content, str):
        return utf16_length(content)
    return sum(map(_block_chars, blocks_of(content)))


def _block_chars(block: Message) -> int:
    kind = block.get("type")
    if kind == "image":
        return IMAGE_CHARS
    if kind == "toolCall":
        return utf16_length(encode_plain(plain(block.get("arguments") or {}).value).decode())
    text = block.get(kind) if kind in ("text", "thinking") else None
    return utf16_length(text) if isinstance(text, str) else 0


def _prunable(
    messages: Sequence[Message], sources: Sequence[str | None], settings: TrimSettings
) -> list[tuple[int, str]]:
    """The places and ids of the results that may be trimmed, oldest first."""
    first = next((at for at, message in enumerate(messages) if message.get("role") == "user"), None)
    answers = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
    last = settings.keep_last_assistants
    if first is None or last > len(answers):
        return []
    cutoff = answers[-last] if last > 0 else len(messages)
    return [
        (at, source)
        for at in range(first, cutoff)
        if messages[at].get("role") == "toolResult"
        and (source := sources[at]) is not None
        and not any(block.get("type") == "image" for block in blocks_of(messages[at].get("content")))
        and may_trim(str(messages[at].get("toolName") or ""), settings.allow, settings.deny)
    ]


def _is_long(message: Message, settings: TrimSettings) -> bool:
    length = utf16_length(joined_text(message.get("content")))
    return length > settings.max_chars and settings.head_chars + settings.tail_chars < length


def _shown(message: Message, how: tuple[int, int] | str) -> Message:
    if isinstance(how, str):
        text = how
    else:
        whole = joined_text(message.get("content"))
        head, tail = how
        length = utf16_length(whole)
        if head + tail >= length:
            return message
        text = f"{utf16_cut(whole, head)}\n...\n{_utf16_end(whole, tail)}"
        text += f"\n\n[Trimmed: the first {head} and the last {tail} of {length} characters are shown.]"
    return {**message, "content": [{"type": "text", "text": text}]}


def _utf16_end(text: str, units: int) -> str:
    """The last `units` UTF-16 units; a character that would be cut in half is left out."""
    cut = text.encode("utf-16-le", "surrogatepass")[-2 * units :] if units else b""
    if len(cut) >= 2 and 0xDC <= cut[1] <= 0xDF:
        cut = cut[2:]
    return cut.decode("utf-16-le", "surrogatepass")


def _matches(tool: str, pattern: str) -> bool:
    wanted = ".*".join(map(re.escape, pattern.strip().split("*")))
    return bool(pattern.strip()) and re.fullmatch(wanted, tool, re.I | re.S) is not None
