"""Usage of models: tokens and costs of calls, and totals by quarter-hour.

`usage_of` reads the usage of one call under any of the names that agents use. `ledger` yields every call in a list of
entries, including calls that failed, used a side model or are on another branch, because they were paid for. It does not
measure the context; `core/tokens.py` does that from the last answer.

`Spending` counts answers, their cost and tool calls by quarter-hour, from which the days of any time zone can be computed.

Rules:
- Unknown numbers are `None`, never 0; values that cannot be a number of tokens are unknown.
- The quarter-hour is that of the entry, else that of its message; otherwise the usage is undated.
- Tool calls are counted at the time of the answer, failures at the time of the result. Commands that a user ran are counted
  separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from sessile.core.codec import decode, encode_plain
from sessile.core.text import parse_timestamp

Json = Mapping[str, Any]

NAMES: dict[str, tuple[str, ...]] = {
    "input": ("input", "inputTokens", "input_tokens", "promptTokens", "prompt_tokens"),
    "output": ("output", "outputTokens", "output_tokens", "completionTokens", "completion_tokens"),
    "cache_read": ("cacheRead", "cache_read", "cache_read_input_tokens"),
    "cache_write": ("cacheWrite", "cache_write", "cache_creation_input_tokens"),
    "total": ("totalTokens", "total", "total_tokens"),
}
"""The names of each number in files; the first that contains a number counts."""

_MOST = 2**40  # tokens or dollars of one call; more is damage
_NUMBERS = (int, float)  # faster to check than a union


class Usage(msgspec.Struct, frozen=True):
    """The usage of one call; `None` is unknown."""

    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    total: int | None = None

    @property
    def context(self) -> int | None:
        """The size of the context with the answer: the total, else the sum of the known parts; `None` if all are zero."""
        parts = (self.input, self.output, self.cache_read, self.cache_write)
        return self.total or sum(part for part in parts if part is not None) or None

    def stored(self) -> dict[str, int] | None:
        """Return the known numbers under the names that messages have; `None` if there are none."""
        counts = {
            "input": self.input,
            "output": self.output,
            "cacheRead": self.cache_read,
            "cacheWrite": self.cache_write,
        }
        known = {name: count for name, count in counts.items() if count is not None}
        if not known:
            return None
        return known | (
            {"totalTokens": self.total or sum(known.values())} if {"input", "output"} <= known.keys() else {}
        )


class Call(NamedTuple):
    """A call of a model: its entry, its purpose and its usage."""

    entry_id: str | None
    purpose: str  # "answer", "tool", the kind of the entry, or the purpose that the entry states
    model: str | None  # "provider/id"
    usage: Usage
    cost: float | None  # in dollars
    at: str | None  # the timestamp of the entry


def usage_of(value: object) -> Usage | None:
    """Return the usage in a `usage` member, or `None` if it is not an object."""
    if not isinstance(value, Mapping):
        return None
    return Usage(**{name: _first(value, aliases) for name, aliases in NAMES.items()})


def _first(value: Json, aliases: tuple[str, ...]) -> int | None:
    for alias in aliases:
        number = _number(value.get(alias))
        if number is not None:
            return int(number)
    return None


def ledger(entries: Iterable[Json]) -> Iterator[Call]:
    """Yield every call of a model in the entries, in their order."""
    for entry in entries:
        kind = entry.get("type")
        if kind == "message":
            yield from _message_call(entry, entry.get("message"))
        elif kind in ("usage", "model_usage"):
            purpose = entry.get("kind") if kind == "usage" else entry.get("purpose")
            yield _call(entry, entry, purpose if isinstance(purpose, str) and purpose else kind)
        elif kind in ("compaction", "branch_summary") and isinstance(entry.get("usage"), Mapping):
            yield _call(entry, entry, kind)


def _message_call(entry: Json, message: object) -> Iterator[Call]:
    if not isinstance(message, Mapping):
        return
    if message.get("role") == "assistant":
        yield _call(entry, message, "answer")
    elif message.get("role") == "toolResult" and isinstance(message.get("usage"), Mapping):
        yield _call(entry, message, "tool")  # a tool that called a model itself


def _call(entry: Json, holder: Json, purpose: str) -> Call:
    reported = holder.get("usage")
    usage = usage_of(reported) or Usage()
    entry_id, at = entry.get("id"), entry.get("timestamp")
    return Call(
        entry_id=entry_id if isinstance(entry_id, str) else None,
        purpose=purpose,
        model=_model(holder),
        usage=usage,
        cost=_cost(reported, usage),
        at=at if isinstance(at, str) else None,
    )


def _model(holder: Json) -> str | None:
    provider, model = holder.get("provider"), holder.get("model")
    if not isinstance(model, str) or not model:
        return None
    return f"{provider}/{model}" if isinstance(provider, str) and provider else model


def _cost(reported: object, usage: Usage) -> float | None:
    price = reported.get("cost") if isinstance(reported, Mapping) else None
    cost = _number(price.get("total") if isinstance(price, Mapping) else price)
    # Agents of the pi family write 0 for a model without a price, so 0 counts only if nothing was used.
    return cost if cost or usage.context is None else None


# -- totals by quarter-hour

QUARTER = 15 * 60 * 1000  # milliseconds; offsets of time zones are multiples of it
UNDATED = "undated"
_LATEST = 253_370_764_800_000  # in the year 9999, where every time zone can still compute a date
_ISO_LENGTH, _MINUTE = len("2026-01-01T00:00:00.000Z"), len("2026-01-01T00:00:")
_TOKENS = ("input", "output", "cacheRead", "cacheWrite", "totalTokens")


class Spent(msgspec.Struct, array_like=True):
    """The usage of some answers; `None` if none of them reported it."""

    answers: int = 0
    calls: int = 0
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    total: int | None = None
    cost: float | None = None
    unpriced: int = 0  # answers without a known cost

    def add(self, usage: object, calls: int) -> None:
        """Count one more answer."""
        self.answers += 1
        self.calls += calls
        if not isinstance(usage, dict):
            self.unpriced += 1
            return
        get = usage.get
        self.input = _plus(self.input, get("input"))
        self.output = _plus(self.output, get("output"))
        self.cache_read = _plus(self.cache_read, get("cacheRead"))
        self.cache_write = _plus(self.cache_write, get("cacheWrite"))
        self.total = _plus(self.total, get("totalTokens"))
        price = get("cost")
        cost = _number(price.get("total")) if isinstance(price, dict) else None
        # Agents of the pi family write 0 for a model without a price, so 0 counts only if nothing was used.
        if cost is not None and (cost or not any(get(name) for name in _TOKENS)):
            self.cost = (self.cost or 0.0) + cost
        else:
            self.unpriced += 1

    def merge(self, other: Spent) -> None:
        """Add the usage of other answers."""
        self.answers += other.answers
        self.calls += other.calls
        self.input = _sum(self.input, other.input)
        self.output = _sum(self.output, other.output)
        self.cache_read = _sum(self.cache_read, other.cache_read)
        self.cache_write = _sum(self.cache_write, other.cache_write)
        self.total = _sum(self.total, other.total)
        if other.cost is not None:
            self.cost = (self.cost or 0.0) + other.cost
        self.unpriced += other.unpriced


class Used(msgspec.Struct, array_like=True):
    """How often something was called, and how often it failed."""

    calls: int = 0
    failures: int = 0


class Spending(msgspec.Struct, omit_defaults=True):
    """Usage by name and quarter-hour: answers by "provider/model", tools, and commands of the user. "" is unknown."""

    answers: dict[str, dict[str, Spent]] = {}
    tools: dict[str, dict[str, Used]] = {}
    shell: dict[str, dict[str, Used]] = {}

    def add_answer(self, model: str, quarter: str, usage: object, tools: Sequence[str]) -> None:
        """Count an answer and the tools that it calls."""
        try:
            spent = self.answers[model][quarter]
        except KeyError:
            spent = self.answers.setdefault(model, {})[quarter] = Spent()
        spent.add(usage, len(tools))
        for tool in tools:
            _used(self.tools, tool, quarter).calls += 1

    def add_calls(self, model: str, quarter: str, tools: Sequence[str]) -> None:
        """Count more tool calls of an answer that was counted before."""
        self.answers.setdefault(model, {}).setdefault(quarter, Spent()).calls += len(tools)
        for tool in tools:
            _used(self.tools, tool, quarter).calls += 1

    def add_failure(self, tool: str, quarter: str) -> None:
        """Count a failed tool call."""
        _used(self.tools, tool, quarter).failures += 1

    def add_run(self, shell: str, quarter: str, failed: bool) -> None:
        """Count a command that the user ran."""
        used = _used(self.shell, shell, quarter)
        used.calls += 1
        used.failures += failed

    def total(self) -> Spent:
        """Return the usage of all answers."""
        total = Spent()
        for quarters in self.answers.values():
            for spent in quarters.values():
                total.merge(spent)
        return total

    def models(self) -> dict[str, int]:
        """Return the number of answers of each known model."""
        return {
            model: sum(spent.answers for spent in quarters.values())
            for model, quarters in self.answers.items()
            if model
        }

    def failures(self) -> int:
        """Return the number of failed tool calls."""
        return sum(used.failures for quarters in self.tools.values() for used in quarters.values())

    def encode(self) -> bytes | None:
        """Encode as JSON; return `None` if nothing was counted."""
        return encode_plain(msgspec.to_builtins(self)) if self.answers or self.tools or self.shell else None


def decode_spending(raw: bytes) -> Spending:
    """Decode the result of `Spending.encode`."""
    return msgspec.convert(decode(raw), Spending)


def quarter_of(entry: Json, message: Json) -> str:
    """Return the quarter-hour since 1970 in which a message was written, or `UNDATED`."""
    written = entry.get("timestamp")
    if isinstance(written, str) and len(written) == _ISO_LENGTH and written[-1] == "Z":
        quarter = _quarter_at(written[:_MINUTE])
        if quarter is not None:
            return quarter
    return _quarter(parse_timestamp(written)) or _quarter(message.get("timestamp")) or UNDATED


@lru_cache(maxsize=64)  # parsing a date is slow, and many answers share a minute
def _quarter_at(minute: str) -> str | None:
    return _quarter(parse_timestamp(f"{minute}00.000Z"))


def _quarter(milliseconds: object) -> str | None:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, _NUMBERS):
        return None
    return str(int(milliseconds) // QUARTER) if 0 <= milliseconds < _LATEST else None


def amount(tokens: object) -> str:
    """Format a number of tokens: 940, 48.2k, 1.3M."""
    if isinstance(tokens, bool) or not isinstance(tokens, int):
        return "?"
    if tokens < 1000:
        return str(tokens)
    return f"{tokens / 1000:.1f}k" if tokens < 999_950 else f"{tokens / 1_000_000:.1f}M"


def _used(table: dict[str, dict[str, Used]], name: str, quarter: str) -> Used:
    try:
        return table[name][quarter]
    except KeyError:
        used = table.setdefault(name, {})[quarter] = Used()
        return used


def _plus(before: int | None, value: object) -> int | None:
    if type(value) is int and 0 <= value < _MOST:  # the usual case
        return value if before is None else before + value
    number = _number(value)
    return before if number is None else int(number) + (before or 0)


def _sum(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _number(value: object) -> float | None:
    """Return a valid number of tokens or dollars, or `None`."""
    if isinstance(value, _NUMBERS) and 0 <= value < _MOST and value is not True and value is not False:
        return value
    return None
