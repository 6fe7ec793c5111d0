"""What calls of models used, as whoever reported it named it: one table of names, and a ledger with one line a call.

Rules: a number that nobody told is `None`, never 0; what cannot be a number of tokens is not told. The ledger counts every
call, also those that failed, went to a side model or lie on another branch: somebody paid for them. It is no measure of the
context, for which `sessile.core.tokens` looks at the last answer only.

What answers used and cost, and which tools were called: counted by quarter-hour, so that the days of any time zone can be
made of it.

Rules: a quarter-hour is that of the entry, else that of its message, else it is undated. What nobody told is unknown, never
zero. The calls of an answer are counted when it was given, failures when the result came. What a user ran is counted apart
from what a model called.

It does not know of sessions, days or zones; nor whether an answer was copied here from another session by a fork.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from sessile.core.codec import decode, encode_plain
from sessile.core.text import parse_timestamp

# --- usage

Json = Mapping[str, Any]

NAMES: dict[str, tuple[str, ...]] = {
    "input": ("input", "inputTokens", "input_tokens", "promptTokens", "prompt_tokens"),
    "output": ("output", "outputTokens", "output_tokens", "completionTokens", "completion_tokens"),
    "cache_read": ("cacheRead", "cache_read", "cache_read_input_tokens"),
    "cache_write": ("cacheWrite", "cache_write", "cache_creation_input_tokens"),
    "total": ("totalTokens", "total", "total_tokens"),
}
"""Our name of each number, and the names that it has in files; the first that holds a number counts."""

_MOST = 2**40  # tokens or dollars of one call; more is damage


class Usage(msgspec.Struct, frozen=True):
    """What one call used; `None` is unknown."""

    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    total: int | None = None

    @property
    def context(self) -> int | None:
        """How large the context was with the answer: the total, else the sum of what is known; all zero tells nothing."""
        parts = (self.input, self.output, self.cache_read, self.cache_write)
        return self.total or sum(part for part in parts if part is not None) or None


class Call(NamedTuple):
    """One call of a model: for what, by which entry, and what it used."""

    entry_id: str | None
    purpose: str  # "answer", the kind of entry that it served, or what the entry says
    model: str | None  # "provider/id"
    usage: Usage
    cost: float | None  # in dollars
    at: str | None  # the timestamp of the entry


def usage_of(value: object) -> Usage | None:
    """The usage that a member of that name holds; `None` if there is none."""
    if not isinstance(value, Mapping):
        return None
    return Usage(**{name: _first(value, aliases) for name, aliases in NAMES.items()})


def _first(value: Json, aliases: tuple[str, ...]) -> int | None:
    for alias in aliases:
        number = _number(value.get(alias))
        if number is not None:
            return int(number)
    return None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST:
        return None
    return value


def ledger(entries: Iterable[Json]) -> Iterator[Call]:
    """Every call of a model that the entries tell of, in their order."""
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
        yield _call(entry, message, "tool")  # a tool that asked a model itself


def _call(entry: Json, holder: Json, purpose: str) -> Call:
    told = holder.get("usage")
    usage = usage_of(told) or Usage()
    entry_id, at = entry.get("id"), entry.get("timestamp")
    return Call(
        entry_id=entry_id if isinstance(entry_id, str) else None,
        purpose=purpose,
        model=_model(holder),
        usage=usage,
        cost=_cost(told, usage),
        at=at if isinstance(at, str) else None,
    )


def _model(holder: Json) -> str | None:
    provider, model = holder.get("provider"), holder.get("model")
    if not isinstance(model, str) or not model:
        return None
    return f"{provider}/{model}" if isinstance(provider, str) and provider else model


def _cost(told: object, usage: Usage) -> float | None:
    price = told.get("cost") if isinstance(told, Mapping) else None
    cost = _number(price.get("total") if isinstance(price, Mapping) else price)
    # The family writes 0 for a model without a price: that is no price, unless nothing was used.
    return cost if cost or usage.context is None else None


# --- spending

QUARTER = 15 * 60 * 1000  # milliseconds; no zone in use is off by a part of that
UNDATED = "undated"
_LATEST = 253_370_764_800_000  # the year 9999: every zone can still tell what day it is
_ISO_LENGTH, _MINUTE = len("2026-01-01T00:00:00.000Z"), len("2026-01-01T00:00:")
_NUMBERS = (int, float)  # a union would be slower to ask for
_TOKENS = ("input", "output", "cacheRead", "cacheWrite", "totalTokens")


class Spent(msgspec.Struct, array_like=True):
    """What some answers used; `None` if none of them said so."""

    answers: int = 0
    calls: int = 0
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    total: int | None = None
    cost: float | None = None
    unpriced: int = 0  # answers of which nobody said what they cost

    def add(self, usage: object, calls: int) -> None:
        """Count one more answer."""
        self.answers += 1
        self.calls += calls
        if not isinstance(usage, dict):
            self.unpriced += 1
            return
        told = usage.get
        self.input = _more(self.input, told("input"))
        self.output = _more(self.output, told("output"))
        self.cache_read = _more(self.cache_read, told("cacheRead"))
        self.cache_write = _more(self.cache_write, told("cacheWrite"))
        self.total = _more(self.total, told("totalTokens"))
        price = told("cost")
        cost = _amount(price.get("total")) if isinstance(price, dict) else None
        # The family writes 0 for a model without a price: that is no price, unless nothing was used.
        if cost is not None and (cost or not any(told(name) for name in _TOKENS)):
            self.cost = (self.cost or 0.0) + cost
        else:
            self.unpriced += 1

    def merge(self, other: Spent) -> None:
        """Count what other answers used."""
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
    """How often something was called, and how often that failed."""

    calls: int = 0
    failures: int = 0


class Spending(msgspec.Struct, omit_defaults=True):
    """By name and quarter-hour: answers by "provider/model", tools, and what the user ran. The name "" is unknown."""

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
        """Count more tools that an answer calls which was counted before."""
        self.answers.setdefault(model, {}).setdefault(quarter, Spent()).calls += len(tools)
        for tool in tools:
            _used(self.tools, tool, quarter).calls += 1

    def add_failure(self, tool: str, quarter: str) -> None:
        """Count the call of a tool as failed."""
        _used(self.tools, tool, quarter).failures += 1

    def add_run(self, shell: str, quarter: str, failed: bool) -> None:
        """Count what a user ran."""
        used = _used(self.shell, shell, quarter)
        used.calls += 1
        used.failures += failed

    def total(self) -> Spent:
        """What all answers used."""
        total = Spent()
        for quarters in self.answers.values():
            for spent in quarters.values():
                total.merge(spent)
        return total

    def models(self) -> dict[str, int]:
        """Answers by model, where that is known."""
        return {
            model: sum(spent.answers for spent in quarters.values())
            for model, quarters in self.answers.items()
            if model
        }

    def failures(self) -> int:
        """How many calls of tools failed."""
        return sum(used.failures for quarters in self.tools.values() for used in quarters.values())

    def encode(self) -> bytes | None:
        """All of it as JSON; `None` if nothing was counted."""
        return encode_plain(msgspec.to_builtins(self)) if self.answers or self.tools or self.shell else None


def decode_spending(raw: bytes) -> Spending:
    """What `Spending.encode` has written."""
    return msgspec.convert(decode(raw), Spending)


def quarter_of(entry: Json, message: Json) -> str:
    """The number of the quarter-hour since 1970 in which a message was written, or `UNDATED`."""
    written = entry.get("timestamp")
    if isinstance(written, str) and len(written) == _ISO_LENGTH and written[-1] == "Z":
        quarter = _quarter_at(written[:_MINUTE])
        if quarter is not None:
            return quarter
    return _quarter(parse_timestamp(written)) or _quarter(message.get("timestamp")) or UNDATED


@lru_cache(maxsize=64)  # reading a date is slow, and a minute holds many answers
def _quarter_at(minute: str) -> str | None:
    return _quarter(parse_timestamp(f"{minute}00.000Z"))


def _quarter(milliseconds: object) -> str | None:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, _NUMBERS):
        return None
    return str(int(milliseconds) // QUARTER) if 0 <= milliseconds < _LATEST else None


def amount(tokens: object) -> str:
    """A number of tokens as people say it: 940, 48.2k, 1.3M."""
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


def _more(before: int | None, told: object) -> int | None:
    if type(told) is int and 0 <= told < _MOST:  # as nearly all are
        return told if before is None else before + told
    number = _amount(told)
    return before if number is None else int(number) + (before or 0)


def _sum(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _amount(value: object) -> float | None:
    """A number of tokens or dollars; `None` for anything that cannot be one."""
    if isinstance(value, _NUMBERS) and 0 <= value < _MOST and value is not True and value is not False:
        return value
    return None
