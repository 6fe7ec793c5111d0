"""MyAgents' values: metadata, messages, usage, statistics, titles, and how they are displayed.

Each class is a view of one decoded JSON object. Unknown members survive, because a change copies the object and
replaces only what it names. A member that is missing or of another type is `None`, never 0.

Statistics: `messageCount` counts messages of users, not answers. A `Tally` is what some messages add; tallies can be
added and subtracted, so late usage counts once. Sessions from before there were statistics are counted from their next
message on.

Display: the same characters as in MyAgents' window. Unknown values are `-`. Numbers are rounded as JavaScript's
`toFixed` and `Math.round` do. The clock and the time zone are arguments.

Titles: the default title may be replaced, the title of a user never.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, tzinfo
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

from sessile.core.codec import decode_exactly
from sessile.core.text import iso_timestamp, parse_timestamp, utf16_cut, utf16_length
from sessile.errors import InvalidId

Json = dict[str, Any]
Content = str | list[Any]

_SESSION_ID = re.compile(r"[A-Za-z0-9-]{1,99}")


def is_session_id(session_id: object) -> bool:
    """Return whether MyAgents accepts an id."""
    return isinstance(session_id, str) and _SESSION_ID.fullmatch(session_id) is not None


def check_session_id(session_id: str) -> str:
    """Return the id, or raise if MyAgents does not accept it; only valid ids become part of a path."""
    if not is_session_id(session_id):
        raise InvalidId(
            f"invalid session id {str(session_id)[:80]!r} of MyAgents",
            hint="use at most 99 letters, digits and -",
        )
    return session_id


class Usage(NamedTuple):
    """The usage of one answer, or of one model in it."""

    value: Mapping[str, Any]

    @property
    def input_tokens(self) -> int | None:
        return count_of(self.value.get("inputTokens"))

    @property
    def output_tokens(self) -> int | None:
        return count_of(self.value.get("outputTokens"))

    @property
    def cache_read_tokens(self) -> int | None:
        return count_of(self.value.get("cacheReadTokens"))

    @property
    def cache_creation_tokens(self) -> int | None:
        return count_of(self.value.get("cacheCreationTokens"))

    @property
    def model(self) -> str | None:
        """The model that used the most tokens."""
        return _text(self.value.get("model"))

    @property
    def provider_id(self) -> str | None:
        return _text(self.value.get("providerId"))

    @property
    def by_model(self) -> dict[str, Usage]:
        """The usage of each model, if the answer has it."""
        parts = self.value.get("modelUsage")
        if not isinstance(parts, Mapping):
            return {}
        return {str(model): Usage(part) for model, part in parts.items() if isinstance(part, Mapping)}


class Attachment(NamedTuple):
    """A file attached to a message; the message does not contain its size."""

    value: Mapping[str, Any]

    @property
    def id(self) -> str | None:
        return _text(self.value.get("id"))

    @property
    def name(self) -> str | None:
        return _text(self.value.get("name"))

    @property
    def mime_type(self) -> str | None:
        return _text(self.value.get("mimeType"))

    @property
    def path(self) -> str | None:
        """`<session id>/<file>`, below the attachments folder."""
        return _text(self.value.get("path"))


class Message(NamedTuple):
    """One message: a row of a session file."""

    value: Mapping[str, Any]

    @property
    def id(self) -> str | None:
        return _text(self.value.get("id"))

    @property
    def role(self) -> str | None:
        return _text(self.value.get("role"))

    @property
    def content(self) -> Content | None:
        """The text, or the blocks that the text encodes."""
        return decode_content(self.value.get("content"))

    @property
    def timestamp(self) -> str | None:
        return _text(self.value.get("timestamp"))

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        found = self.value.get("attachments")
        return tuple(Attachment(item) for item in found if isinstance(item, Mapping)) if isinstance(found, list) else ()

    @property
    def usage(self) -> Usage | None:
        found = self.value.get("usage")
        return Usage(found) if isinstance(found, Mapping) else None

    @property
    def tool_count(self) -> int | None:
        return count_of(self.value.get("toolCount"))

    @property
    def duration_ms(self) -> int | None:
        return count_of(self.value.get("durationMs"))

    @property
    def sdk_uuid(self) -> str | None:
        """The last row of the turn in Claude Code's transcript, if a version has recorded it."""
        return _text(self.value.get("sdkUuid"))

    @property
    def text(self) -> str:
        """The readable text."""
        content = self.content
        if isinstance(content, str):
            return content
        parts = (block.get("text") for block in content or () if isinstance(block, Mapping))
        return "\n".join(part for part in parts if isinstance(part, str))


class Metadata(NamedTuple):
    """One row of the index."""

    value: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.value.get("id"))

    @property
    def agent_dir(self) -> str | None:
        return _text(self.value.get("agentDir"))

    @property
    def title(self) -> str | None:
        return _text(self.value.get("title"))

    @property
    def title_source(self) -> str | None:
        """`default`, `auto` or `user`, in later versions."""
        return _text(self.value.get("titleSource"))

    @property
    def created_at(self) -> str | None:
        return _text(self.value.get("createdAt"))

    @property
    def last_active_at(self) -> str | None:
        return _text(self.value.get("lastActiveAt"))

    @property
    def last_active_ms(self) -> int | None:
        return parse_timestamp(self.value.get("lastActiveAt"))

    @property
    def sdk_session_id(self) -> str | None:
        return _text(self.value.get("sdkSessionId")) or None

    @property
    def unified(self) -> bool:
        """Whether Claude Code runs the session under the same id."""
        return self.value.get("unifiedSession") is True

    @property
    def stats(self) -> Mapping[str, Any] | None:
        found = self.value.get("stats")
        return found if isinstance(found, Mapping) else None

    @property
    def pinned(self) -> bool:
        """Whether the user has pinned the session."""
        return any(self.value.get(name) for name in ("pinnedAt", "pinned", "favorite", "favoritedAt"))

    def changed(self, **members: Any) -> Metadata:
        """Return the row with some members replaced, in their places; `None` removes one."""
        value = {**self.value, **members}
        return Metadata({name: item for name, item in value.items() if name not in members or item is not None})

    def touched(self, milliseconds: int) -> Metadata:
        """Return the row as active at a time, which never goes back; an invalid time is replaced."""
        known = self.last_active_ms
        if known is not None and known >= milliseconds:
            return self
        return self.changed(lastActiveAt=iso_timestamp(milliseconds))


def decode_content(stored: object) -> Content | None:
    """Decode stored content: a JSON array in a text is its blocks, any other text is itself."""
    if isinstance(stored, list):
        return stored
    if not isinstance(stored, str):
        return None
    if not stored.startswith("["):
        return stored
    try:
        value = decode_exactly(stored)
    except ValueError:
        return stored
    return value if isinstance(value, list) else stored


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def count_of(value: object) -> int | None:
    """Return a number as JavaScript would add it up; `None` for anything else."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# -- statistics
_ALWAYS = (("messageCount", 0), ("totalInputTokens", 1), ("totalOutputTokens", 2))
_IF_NOT_ZERO = (("totalCacheReadTokens", 3), ("totalCacheCreationTokens", 4))
_QUERY = 100  # characters of a question in the list of answers
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
        """The cached input in the view of statistics."""
        return self.cache_read + self.cache_creation

    def plus(self, other: Tally) -> Tally:
        return Tally(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def minus(self, other: Tally) -> Tally:
        return Tally(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


def tally(messages: Iterable[Message]) -> Tally:
    """Return what these messages add; a missing number adds nothing."""
    total = Tally()
    for message in messages:
        if message.role == "user":
            total = total.plus(Tally(messages=1))
        elif message.role == "assistant" and message.usage is not None:
            total = total.plus(_usage_tally(message.usage))
    return total


def _usage_tally(usage: Usage) -> Tally:
    return Tally(
        0,
        usage.input_tokens or 0,
        usage.output_tokens or 0,
        usage.cache_read_tokens or 0,
        usage.cache_creation_tokens or 0,
    )


def tally_of(stats: Mapping[str, Any] | None) -> Tally:
    """Return stored statistics as a tally."""
    return Tally(*(count_of((stats or {}).get(name)) or 0 for name, _ in (*_ALWAYS, *_IF_NOT_ZERO)))


def add(stats: Mapping[str, Any] | None, more: Tally) -> Json:
    """Return the statistics with a tally added, as they are stored; unknown members stay."""
    return _stored(stats, Tally(*(max(0, number) for number in tally_of(stats).plus(more))))


def recount(messages: Iterable[Message], stats: Mapping[str, Any] | None = None) -> Json:
    """Return the statistics counted from all messages; unknown members of `stats` stay."""
    return _stored(stats, tally(messages))


def _stored(stats: Mapping[str, Any] | None, total: Tally) -> Json:
    value = dict(stats or {})
    for name, place in _ALWAYS:
        value[name] = total[place]
    for name, place in _IF_NOT_ZERO:
        if total[place]:
            value[name] = total[place]
        else:
            value.pop(name, None)
    return value


class ModelUse(NamedTuple):
    """The usage of one model in a session."""

    model: str
    answers: int
    tally: Tally


def by_model(messages: Iterable[Message]) -> list[ModelUse]:
    """Return the usage of each model in the order of its first answer; answers without a model count for `unknown`."""
    found: dict[str, ModelUse] = {}
    for message in messages:
        usage = message.usage
        if message.role != "assistant" or usage is None:
            continue
        for model, part in (usage.by_model or {usage.model or _NO_MODEL: usage}).items():
            _, known, total = found.get(model, ModelUse(model, 0, Tally()))
            found[model] = ModelUse(model, known + 1, total.plus(_usage_tally(part)))
    return list(found.values())


class Answer(NamedTuple):
    """One answer in the view of a session's statistics."""

    query: str
    usage: Usage
    tool_count: int | None
    duration_ms: int | None


def answers(messages: Iterable[Message]) -> list[Answer]:
    """Return every answer with usage, with the question before it."""
    found = []
    query = ""
    for message in messages:
        if message.role == "user":
            query = utf16_cut(message.text, _QUERY)
        elif message.role == "assistant" and message.usage is not None:
            found.append(Answer(query, message.usage, message.tool_count, message.duration_ms))
    return found


# -- display
UNKNOWN = "-"

_DAY = 86_400_000
_WEEK = 7


def format_tokens(tokens: int | None) -> str:
    """Format tokens as `1.2M`, `3.4K` or the number itself."""
    if tokens is None:
        return UNKNOWN
    if tokens >= 1_000_000:
        return f"{_fixed(tokens / 1_000_000)}M"
    if tokens >= 1000:
        return f"{_fixed(tokens / 1000)}K"
    return str(tokens)


def format_duration(milliseconds: int | None) -> str:
    """Format a duration as `1m 5s`, `2.3s` or `40ms`."""
    if milliseconds is None:
        return UNKNOWN
    if milliseconds >= 60_000:
        minutes, rest = divmod(milliseconds, 60_000)
        return f"{minutes}m {(rest + 500) // 1000}s"
    if milliseconds >= 1000:
        return f"{_fixed(milliseconds / 1000)}s"
    return f"{milliseconds}ms"


def _fixed(number: float) -> str:
    """Format with one decimal as `toFixed(1)` does: from the exact value, halves upwards."""
    return str(Decimal(number).quantize(Decimal("0.1"), rounding=ROUND_HALF_UP))


def row_text(stats: Mapping[str, Any] | None) -> str:
    """Return the text below a session in a list; cached tokens are not included."""
    messages = count_of((stats or {}).get("messageCount"))
    parts = [count_of((stats or {}).get(name)) for name in ("totalInputTokens", "totalOutputTokens")]
    known = [part for part in parts if part is not None]
    tokens = sum(known) if known else None
    return f"{UNKNOWN if messages is None else messages} 条消息 · {format_tokens(tokens)} tokens"


def row_time(last_active_at: str | None, now: int, zone: tzinfo) -> str:
    """Return when a session was active. Days are spans of 24 hours, not calendar days."""
    then = parse_timestamp(last_active_at)
    if then is None:
        return UNKNOWN
    days = (now - then) // _DAY
    moment = datetime.fromtimestamp(then / 1000, zone)
    if days <= 0:
        return f"{moment:%H:%M}"
    if days == 1:
        return "昨天"
    return f"{days}天前" if days < _WEEK else f"{moment.month}月{moment.day}日"


# -- titles
DEFAULT = "New Chat"
PICTURE = "图片消息"  # a first message without text

SHORT = 20  # UTF-16 units of a generated title
LONG = 40  # UTF-16 units of a title from the first message

# The characters that JavaScript's `trim` removes; Python's `strip` removes others.
_SPACE = "\t\n\v\f\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))


def title_of(text: str, limit: int = LONG) -> str:
    """Return the title of a session with this first message."""
    trimmed = text.strip(_SPACE)
    if not trimmed:
        return PICTURE
    return trimmed if utf16_length(trimmed) <= limit else utf16_cut(trimmed, limit) + "..."


def may_be_titled(row: Metadata) -> bool:
    """Return whether the session still has the default title."""
    return row.title == DEFAULT and row.title_source in (None, "default")
