"""What calls of models used, as whoever reported it named it: one table of names, and a ledger with one line a call.

Rules: a number that nobody told is `None`, never 0; what cannot be a number of tokens is not told. The ledger counts every
call, also those that failed, went to a side model or lie on another branch: somebody paid for them. It is no measure of the
context, for which `sessile.core.tokens` looks at the last answer only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

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
