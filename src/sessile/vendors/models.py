"""Context windows and prices of models.

    models = Models({"local/llama": {"context_window": 8192}})
    models.window("anthropic/claude-sonnet-4-5")        tokens, or None if unknown
    models.price("openai/gpt-5", usage)                 dollars, or None

Configured figures take precedence over those of the package `genai-prices` (the extra `models`). Unknown values are `None`,
never guessed; without the package only configured figures are known. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sessile.errors import InvalidConfig

_PARTS = ("input", "output", "cacheRead", "cacheWrite")


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Configured figures of a model: context window in tokens, and prices in dollars per million tokens."""

    context_window: int | None = None
    input: float | None = None
    output: float | None = None
    cache_read: float | None = None
    cache_write: float | None = None


class Models:
    """Context windows and prices of models, by "provider/model". They come from the package `genai-prices`, if installed.

    Args:
        overrides: Figures that replace the known ones, by "provider/model": `context_window` in tokens, and `input`, `output`,
            `cache_read` and `cache_write` in US dollars for a million tokens.

    Raises:
        InvalidConfig: The figures have an unknown key or a wrong type.

    Example:
        ```python
        models = Models({"local/llama": {"context_window": 32_000}})
        models.window("local/llama")
        models.price("anthropic/claude-sonnet-4-5", {"input": 1000, "output": 200})
        ```
    """

    def __init__(self, overrides: Mapping[str, Mapping[str, Any] | Figures] | None = None) -> None:
        self._overrides = {name: _figures(name, given) for name, given in (overrides or {}).items()}
        self._known: dict[str, Any] = {}

    def window(self, model: str) -> int | None:
        """Return the context window of a model in tokens, or `None` if unknown."""
        own = self._overrides.get(model)
        if own is not None and own.context_window is not None:
            return own.context_window
        known = self._look_up(model)
        return None if known is None else known[1].context_window

    def price(self, model: str, usage: Mapping[str, Any]) -> float | None:
        """Return the cost of a call in dollars, or `None` if a price or a count is unknown."""
        counts = {name: usage.get(name) for name in _PARTS}
        if not isinstance(counts["input"], int) or not isinstance(counts["output"], int):
            return None
        tokens = {name: count if isinstance(count, int) else 0 for name, count in counts.items()}
        own = self._overrides.get(model)
        if own is not None and own.input is not None and own.output is not None:
            return _own_price(own, tokens)
        known = self._look_up(model)
        return None if known is None else _listed_price(known, tokens)

    def _look_up(self, model: str) -> Any:
        """Return the listed provider and model, or `None`."""
        if model not in self._known:
            self._known[model] = _listed(model)
        return self._known[model]


def _figures(name: str, given: Mapping[str, Any] | Figures) -> Figures:
    if isinstance(given, Figures):
        return given
    try:
        return msgspec.convert(given, Figures)
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"invalid figures of the model {name}: {error}",
            hint=f"valid keys: {', '.join(Figures.__struct_fields__)}",
        ) from error


def _listed(model: str) -> Any:
    prices = _prices()
    if prices is None:
        return None
    provider, slash, name = model.partition("/")
    try:
        # A model of the same name may have another window and price at another provider.
        return prices.data_snapshot.get_snapshot().find_provider_model(
            name if slash else model, None, provider if slash else None, None
        )
    except LookupError:
        return None


def _own_price(own: Figures, tokens: Mapping[str, int]) -> float | None:
    rates = {"input": own.input, "output": own.output, "cacheRead": own.cache_read, "cacheWrite": own.cache_write}
    if any(rate is None and tokens[name] for name, rate in rates.items()):
        return None
    return sum(tokens[name] * (rate or 0.0) for name, rate in rates.items()) / 1e6


def _listed_price(known: Any, tokens: Mapping[str, int]) -> float | None:
    prices = _prices()
    provider, listed = known
    # The package counts cache reads and writes as part of the input.
    usage = prices.Usage(
        input_tokens=tokens["input"] + tokens["cacheRead"] + tokens["cacheWrite"],
        output_tokens=tokens["output"],
        cache_read_tokens=tokens["cacheRead"],
        cache_write_tokens=tokens["cacheWrite"],
    )
    try:
        return float(prices.calc_price(usage, listed.id, provider_id=provider.id).total_price)
    except (LookupError, ValueError):
        return None


def _prices() -> Any:
    try:
        import genai_prices.data_snapshot  # optional, and slow to import
    except ImportError:
        return None
    return genai_prices
