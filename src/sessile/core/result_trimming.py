"""Result trimming: the gateway sends old tool results shortened or cleared, without changing the session.

This is the configuration's `contextPruning`. It is a view: result pruning in `core/compaction.py` appends edits instead, and
`upkeep/prune.py` deletes sessions.

Rules:
- Nothing is trimmed while the provider still has the prompt cached (`is_trim_due`), nor before the user's first message, nor
  after the last few answers. Results with images and results of tools that are not allowed stay.
- If the context fills a certain share of its window, long results are cut to their head and tail. If it is still too full,
  results are cleared, oldest first, until it is not.
- What was done is remembered by entry (`Trims`) together with the lengths used, so every later request sends the same prompt,
  also after a restart or with other settings, and the prompt stays cached. Entries without an id cannot be remembered and are
  left alone.
- Lengths are in UTF-16 units, as in JavaScript.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.core.codec import encode_plain, plain
from sessile.core.messages.family import blocks_of, joined_text
from sessile.core.text import utf16_cut, utf16_length

Message = dict[str, Any]
Trims = dict[str, tuple[int, int] | str]
"""By entry id: the lengths of the head and tail that are sent of its result, or the text that replaces it."""

MINUTE = 60_000  # milliseconds
CHARS_PER_TOKEN = 4
IMAGE_CHARS = 8000
OTHER_CHARS = 256  # size of a message of another role

_UNITS = {"ms": 1, "s": 1000, "m": MINUTE, "h": 60 * MINUTE, "d": 24 * 60 * MINUTE, "": MINUTE}
_TTL = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)\s*", re.I)


class TrimSettings(NamedTuple):
    """When and how far results are trimmed."""

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
    """The messages to send, all trims so far, and the entries that were trimmed or cleared now."""

    messages: list[Message]
    trims: Trims
    trimmed: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()


def parse_ttl(value: object) -> int | None:
    """Return a duration such as `5m` or `1h` in milliseconds, or `None` if it is invalid. The default unit is minutes."""
    match = _TTL.fullmatch(str(value)) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    return None if match is None else int(float(match[1]) * _UNITS[match[2].lower()])


def is_trim_due(last_touch: int | None, now: int, ttl: int = SETTINGS.ttl) -> bool:
    """Return whether the provider's prompt cache has expired; false before the first request or if `ttl` is 0."""
    return last_touch is not None and ttl > 0 and now - last_touch >= ttl


def has_prompt_cache(provider: str, model: str) -> bool:
    """Return whether a provider caches prompts in the way that trimming is designed for."""
    name = provider.lower()
    return name == "anthropic" or (name == "openrouter" and model.lower().startswith("anthropic/"))


def may_trim(tool: str, allow: Iterable[str], deny: Iterable[str]) -> bool:
    """Return whether results of a tool may be trimmed.

    Patterns may contain `*` and ignore case. `deny` wins; an empty `allow` allows all tools.
    """
    allowed = [pattern for pattern in allow if pattern.strip()]
    return not any(_matches(tool, pattern) for pattern in deny) and (
        not allowed or any(_matches(tool, pattern) for pattern in allowed)
    )


def apply_trims(messages: Sequence[Message], sources: Sequence[str | None], trims: Trims) -> list[Message]:
    """Return the messages with earlier trims applied; `sources` are the ids of their entries."""
    return [
        _trimmed(message, trims[source])
        if source is not None and source in trims and message.get("role") == "toolResult"
        else message
        for message, source in zip(messages, sources, strict=True)
    ]


def trim_results(
    messages: Sequence[Message],
    sources: Sequence[str | None],
    window: int,
    trims: Trims,
    settings: TrimSettings = SETTINGS,
) -> Trimmed:
    """Apply earlier trims and add those that the size of the context requires; `window` is in tokens."""
    shown = apply_trims(messages, sources, trims)
    sizes = [count_chars(message) for message in shown]
    full = window * CHARS_PER_TOKEN
    soft, hard = (min(1.0, max(0.0, ratio)) for ratio in (settings.soft_trim_ratio, settings.hard_clear_ratio))
    results = _trimmable(shown, sources, settings)
    if full <= 0 or sum(sizes) < soft * full:
        return Trimmed(shown, dict(trims))
    done = dict(trims)
    trimmed, cleared = [], []

    def apply(at: int, source: str, how: tuple[int, int] | str) -> int:
        """Trim a result from now on; return the characters saved."""
        before = sizes[at]
        done[source] = how
        shown[at] = _trimmed(messages[at], how)
        sizes[at] = count_chars(shown[at])
        return before - sizes[at]

    for at, source in results:
        if source not in trims and _is_long(shown[at], settings):
            apply(at, source, (settings.head_chars, settings.tail_chars))
            trimmed.append(source)
    if settings.hard_clear and sum(sizes[at] for at, _ in results) >= settings.min_prunable_chars:
        total = sum(sizes)
        for at, source in results:
            if total < hard * full:
                break
            if not isinstance(done.get(source), str):
                total -= apply(at, source, settings.placeholder)
                cleared.append(source)
    return Trimmed(shown, done, tuple(trimmed), tuple(cleared))


def read_trims(value: object) -> Trims:
    """Read the trims stored in an entry; ignore invalid ones."""
    trims: Trims = {}
    for source, how in value.items() if isinstance(value, Mapping) else ():
        if isinstance(how, str):
            trims[source] = how
        elif isinstance(how, list | tuple) and len(how) == 2 and all(type(n) is int and n >= 0 for n in how):
            trims[source] = (how[0], how[1])
    return trims


def count_chars(message: Message) -> int:
    """Return the size of a message in characters."""
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


def _trimmable(
    messages: Sequence[Message], sources: Sequence[str | None], settings: TrimSettings
) -> list[tuple[int, str]]:
    """Return the positions and entry ids of the results that may be trimmed, oldest first."""
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


def _trimmed(message: Message, how: tuple[int, int] | str) -> Message:
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
    """Return the last `units` UTF-16 units, without a character that would be cut in half."""
    cut = text.encode("utf-16-le", "surrogatepass")[-2 * units :] if units else b""
    if len(cut) >= 2 and 0xDC <= cut[1] <= 0xDF:
        cut = cut[2:]
    return cut.decode("utf-16-le", "surrogatepass")


def _matches(tool: str, pattern: str) -> bool:
    wanted = ".*".join(map(re.escape, pattern.strip().split("*")))
    return bool(pattern.strip()) and re.fullmatch(wanted, tool, re.I | re.S) is not None
