"""What is known of models: how much they can read, and what they cost.

    models = Models({"local/llama": {"context_window": 8192}})
    models.window("anthropic/claude-sonnet-4-5")        tokens, or None if nobody knows
    models.price("openai/gpt-5", usage)                 dollars, or None

Figures come from the package `genai-prices` (the extra `models`), those that a person has given come first. What is unknown is
`None`, never a guess; without the package everything but one's own figures is unknown. Nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sessile.errors import InvalidConfig

_PARTS = ("input", "output", "cacheRead", "cacheWrite")


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person says of a model: tokens that it can read, and dollars for a million tokens."""

    context_window: int | None = None
    input: float | None = None
    output: float | None = None
    cache_read: float | None = None
    cache_write: float | None = None


class Models:
    """Windows and prices by "provider/model"; `overrides` are what a person knows better."""

    def __init__(self, overrides: Mapping[str, Mapping[str, Any] | Figures] | None = None) -> None:
        self._overrides = {name: _figures(name, told) for name, told in (overrides or {}).items()}
        self._known: dict[str, Any] = {}

    def window(self, model: str) -> int | None:
        """How many tokens a model can read."""
        told = self._overrides.get(model)
        if told is not None and told.context_window is not None:
            return told.context_window
        known = self._look_up(model)
        return None if known is None else known[1].context_window

    def price(self, model: str, usage: Mapping[str, Any]) -> float | None:
        """What a call cost, in dollars; `None` if a price or a count is not known."""
        counts = {name: usage.get(name) for name in _PARTS}
        if not isinstance(counts["input"], int) or not isinstance(counts["output"], int):
            return None
        tokens = {name: count if isinstance(count, int) else 0 for name, count in counts.items()}
        told = self._overrides.get(model)
        if told is not None and told.input is not None and told.output is not None:
            return _own_price(told, tokens)
        known = self._look_up(model)
        return None if known is None else _listed_price(known, tokens)

    def _look_up(self, model: str) -> Any:
        """Provider and model in the list, or `None`."""
        if model not in self._known:
            self._known[model] = _listed(model)
        return self._known[model]


def _figures(name: str, told: Mapping[str, Any] | Figures) -> Figures:
    if isinstance(told, Figures):
        return told
    try:
        return msgspec.convert(told, Figures)
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"what is said of the model {name} cannot be used: {error}",
            hint=f"there are {', '.join(Figures.__struct_fields__)}",
        ) from error


def _listed(model: str) -> Any:
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError:
        return None
    provider, slash, name = model.partition("/")
    try:
        # Behind another provider a model of that name may have another window and another price.
        return get_snapshot().find_provider_model(name if slash else model, None, provider if slash else None, None)
    except LookupError:
        return None


def _own_price(told: Figures, tokens: Mapping[str, int]) -> float | None:
    rates = {"input": told.input, "output": told.output, "cacheRead": told.cache_read, "cacheWrite": told.cache_write}
    if any(rate is None and tokens[name] for name, rate in rates.items()):
        return None
    return sum(tokens[name] * (rate or 0.0) for name, rate in rates.items()) / 1e6


def _listed_price(known: Any, tokens: Mapping[str, int]) -> float | None:
    from genai_prices import Usage, calc_price

    provider, listed = known
    # There, what was read from a cache and written to it is a part of the input.
    usage = Usage(
        input_tokens=tokens["input"] + tokens["cacheRead"] + tokens["cacheWrite"],
        output_tokens=tokens["output"],
        cache_read_tokens=tokens["cacheRead"],
        cache_write_tokens=tokens["cacheWrite"],
    )
    try:
        return float(calc_price(usage, listed.id, provider_id=provider.id).total_price)
    except (LookupError, ValueError):
        return None
