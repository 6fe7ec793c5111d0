"""Context windows and prices of models.

    models = Models({"local/llama": {"context_window": 8192}})
    models.window("anthropic/claude-sonnet-4-5")        tokens, or None if unknown
    models.price("openai/gpt-5", usage)                 dollars, or None

Configured figures take precedence over those of the table that ships (`core.prices`). Unknown values are `None`, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sessile.core import prices
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
    """Context windows and prices of models, by "provider/model". They come from a table that ships with this package.

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

    def window(self, model: str) -> int | None:
        """Return the context window of a model in tokens, or `None` if unknown."""
        own = self._overrides.get(model)
        if own is not None and own.context_window is not None:
            return own.context_window
        return prices.window(model)

    def price(self, model: str, usage: Mapping[str, Any]) -> float | None:
        """Return the cost of a call in dollars, or `None` if a price or a count is unknown."""
        counts = {name: usage.get(name) for name in _PARTS}
        if not isinstance(counts["input"], int) or not isinstance(counts["output"], int):
            return None
        tokens = {name: count if isinstance(count, int) else 0 for name, count in counts.items()}
        own = self._overrides.get(model)
        if own is not None and own.input is not None and own.output is not None:
            return _own_price(own, tokens)
        return prices.price(model, usage)


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


def _own_price(own: Figures, tokens: Mapping[str, int]) -> float | None:
    rates = {"input": own.input, "output": own.output, "cacheRead": own.cache_read, "cacheWrite": own.cache_write}
    if any(rate is None and tokens[name] for name, rate in rates.items()):
        return None
    return sum(tokens[name] * (rate or 0.0) for name, rate in rates.items()) / 1e6
