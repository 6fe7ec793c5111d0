"""Prices of models: what an answer costs by a table that ships with this package.

    price("anthropic/claude-sonnet-4-5", {"input": 1000, "output": 200}, at)     dollars, or `None`
    window("openai/gpt-5")                                                       tokens, or `None`

Rules:

- The table is that of the package `genai-prices`, as of `DATE`. Nothing is downloaded.
- A model that is not in the table has no price: `None`, never 0. The provider must be known, too: the same model has other
  prices elsewhere. A name without a provider is looked up by the name alone.
- The price is the one that applied at the time of the answer, in the tier of its prompt.
- `input` is without the cache. Tokens written to the cache for an hour (`cacheWrite1h`) are part of `cacheWrite`.
- A list of models is decoded when one of its provider is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sessile.core.codec import decode
from sessile.core.price_table import DATE, MODELS, PROVIDERS, SOURCE

__all__ = ["DATE", "SOURCE", "price", "window"]

Rates = Mapping[str, Any]
_COMPACT_DATE = re.compile(r"-(20\d{2})(0[1-9]|1[0-2])([0-2]\d|3[01])(?=-|:|$)")
_LITELLM = "litellm"


def price(model: str, usage: Mapping[str, Any], at: int | None = None) -> float | None:
    """Return the cost of an answer in dollars, or `None` if its model or its tokens are unknown.

    `model` is "provider/model", `at` the time in milliseconds since 1970.
    """
    tokens = {name: _count(usage.get(name)) for name in ("input", "output", "cacheRead", "cacheWrite", "cacheWrite1h")}
    if tokens["input"] is None or tokens["output"] is None:
        return None
    found = _found(model)
    rates = None if found is None else _rates(found[2], at)
    if rates is None or "i" not in rates or ("o" not in rates and tokens["output"]):
        return None
    known = {name: count or 0 for name, count in tokens.items()}
    long = min(known["cacheWrite1h"], known["cacheWrite"])
    prompt = known["input"] + known["cacheRead"] + known["cacheWrite"]
    written = rates.get("w", rates["i"])
    spent = (
        known["input"] * _rate(rates["i"], prompt)
        + known["output"] * _rate(rates.get("o", 0), prompt)
        + known["cacheRead"] * _rate(rates.get("r", rates["i"]), prompt)
        + (known["cacheWrite"] - long) * _rate(written, prompt)
        + long * _rate(rates.get("h", written), prompt)
    )
    return float(spent / 1e6 + _rate(rates.get("q", 0), prompt) / 1e3)


def window(model: str) -> int | None:
    """Return the context window of a model in tokens, or `None`."""
    found = _found(model)
    return None if found is None else found[1]


@cache
def _found(model: str) -> Any:
    """Return clause, window and prices of a model, or `None`."""
    provider, slash, name = model.lower().partition("/")
    if not slash:
        provider, name = "", model.lower()
    elif provider == _LITELLM and "/" in name:
        provider, _, name = name.partition("/")
    listed = _provider(provider, name)
    if listed is None:
        return None
    dashed = _COMPACT_DATE.sub(r"-\1-\2-\3", name)
    for spelled in dict.fromkeys((name, dashed)):
        for each in (listed[0], *listed[3]):
            for known in _models(each):
                if _matches(known[0], spelled):
                    return known
    return None


def _provider(provider: str, model: str) -> Any:
    rows = _providers()
    if not provider:
        return next((row for row in rows if row[2] is not None and _matches(row[2], model)), None)
    by_name = next((row for row in rows if row[0] == provider), None)
    return by_name or next((row for row in rows if row[1] is not None and _matches(row[1], provider)), None)


@cache
def _providers() -> Any:
    return decode(PROVIDERS.encode())


@cache
def _models(provider: str) -> Any:
    return decode(MODELS[provider].encode())


def _matches(clause: Any, text: str) -> bool:
    kind, value = clause[0], clause[1]
    if kind == "=":
        return bool(text == value)
    if kind == "^":
        return text.startswith(value)
    if kind == "$":
        return text.endswith(value)
    if kind == "~":
        return value in text
    if kind == "r":
        return re.search(value, text) is not None
    return (any if kind == "|" else all)(_matches(part, text) for part in clause[1:])


def _rates(prices: Any, at: int | None) -> Rates | None:
    """Return the last prices whose condition holds at a time, else the first; by default at the date of the table."""
    moment = datetime.fromisoformat(DATE) if at is None else datetime.fromtimestamp(at / 1000, UTC)
    for when, rates in reversed(prices):
        if when is None or _holds(when, moment):
            return rates  # type: ignore[no-any-return]
    return prices[0][1] if prices else None


def _holds(when: Any, moment: datetime) -> bool:
    if isinstance(when, str):
        return str(moment.date()) >= when
    start, end = map(int, when)
    minute = moment.hour * 60 + moment.minute
    return bool(start <= minute < end if start <= end else minute >= start or minute < end)


def _rate(rate: Any, prompt: int) -> float:
    """Return the price of a million tokens; above the start of a tier its price is that of all tokens."""
    if not isinstance(rate, list):
        return float(rate)
    return float(next((price for start, price in reversed(rate[1:]) if prompt > start), rate[0]))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
