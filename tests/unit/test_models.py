"""Windows and prices of models."""

from __future__ import annotations

import pytest

from sessile.errors import InvalidConfig
from sessile.vendors.models import Models

pytestmark = pytest.mark.mission("Y7")

USAGE = {"input": 1000, "output": 100, "cacheRead": 200, "cacheWrite": 0}


def test_windows_and_prices_come_from_the_list() -> None:
    """A model is looked up by provider and name, or by its name alone."""
    models = Models()
    for name in ("anthropic/claude-sonnet-4-5", "claude-sonnet-4-5"):
        assert (models.window(name) or 0) >= 200_000
    price = models.price("anthropic/claude-sonnet-4-5", USAGE)
    cached = models.price("anthropic/claude-sonnet-4-5", USAGE | {"cacheRead": 1200})
    assert price and cached and price < cached < price * 2  # what is read from a cache costs little


def test_what_nobody_knows_is_unknown() -> None:
    """Windows and prices are not invented; usage without counts has no price."""
    models = Models()
    assert models.window("nobody/knows-this-one") is None
    assert models.window("my-proxy/claude-sonnet-4-5") is None  # that may be cut to any length
    assert models.price("nobody/knows-this-one", USAGE) is None
    assert models.price("anthropic/claude-sonnet-4-5", {"input": 5}) is None


def test_what_a_person_says_comes_first() -> None:
    """The user can set the window, the prices, or both; the price of a cache is unknown until configured."""
    models = Models({"local/llama": {"context_window": 8192, "input": 1.0, "output": 2.0}, "openai/gpt-5": {}})
    assert models.window("local/llama") == 8192 and models.window("openai/gpt-5") is not None
    assert models.price("local/llama", USAGE | {"cacheRead": 0}) == pytest.approx((1000 + 200) / 1e6)
    assert models.price("local/llama", USAGE) is None
    with pytest.raises(InvalidConfig, match="local/x"):
        Models({"local/x": {"window": 1}})
