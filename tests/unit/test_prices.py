"""Prices: the table that ships gives what its source gives; what it does not know has no price."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from datetime import UTC, datetime

import genai_prices
import genai_prices.data_snapshot
import pytest

import prices as generator
from sessile.core import prices
from sessile.storage.catalog import VERSION

_USAGES = (
    {"input": 1000, "output": 200},
    {"input": 12, "output": 900, "cacheRead": 150_000, "cacheWrite": 3000},
    {"input": 400_000, "output": 1000, "cacheRead": 10, "cacheWrite": 0},
)
_NAMES = [
    "anthropic/claude-sonnet-4-5-20250929",
    "anthropic/claude-opus-4-1",
    "anthropic/claude-haiku-4-5",
    "openai/gpt-5",
    "openai/gpt-5.2-20251211",
    "openai/gpt-4o-mini",
    "google/gemini-2.5-pro",
    "openrouter/anthropic/claude-sonnet-4",
    "azure/gpt-4o",
    "deepseek/deepseek-chat",
    "groq/llama-3.3-70b-versatile",
    "x-ai/grok-4",
    "litellm/anthropic/claude-sonnet-4-5",
]


@pytest.mark.mission("N6")
@pytest.mark.parametrize("usage", _USAGES)
@pytest.mark.parametrize("model", _NAMES)
def test_a_price_is_that_of_the_source(model: str, usage: dict[str, int]) -> None:
    """The compiled table gives the price that `genai-prices` computes, also above the start of a tier."""
    at = datetime(2026, 10, 1, 12, tzinfo=UTC)
    provider, _, name = model.partition("/")
    given = genai_prices.Usage(
        input_tokens=usage["input"] + usage.get("cacheRead", 0) + usage.get("cacheWrite", 0),
        output_tokens=usage["output"],
        cache_read_tokens=usage.get("cacheRead", 0),
        cache_write_tokens=usage.get("cacheWrite", 0),
    )
    source = genai_prices.calc_price(given, name, provider_id=provider, genai_request_timestamp=at)
    assert prices.price(model, usage, int(at.timestamp() * 1000)) == pytest.approx(float(source.total_price), rel=1e-9)


def test_every_model_of_the_source_has_its_window() -> None:
    """Each model that the source names by its id is found under that id, with the same window and price."""
    snapshot = genai_prices.data_snapshot.get_snapshot()
    compared = 0
    for provider in snapshot.providers:
        for model in provider.models:
            try:
                _, listed = snapshot.find_provider_model(model.id, None, provider.id, None)
            except LookupError:
                assert prices.window(f"{provider.id}/{model.id}") is None
                continue
            assert prices.window(f"{provider.id}/{model.id}") == listed.context_window, model.id
            compared += 1
    assert compared > 2000


@pytest.mark.mission("N6")
@pytest.mark.parametrize("model", ["mock/mock-1", "openai/gpt-99-unheard-of", "nobody/gpt-5", "", "unknown"])
def test_an_unknown_model_has_no_price(model: str) -> None:
    """A model or provider that is not in the table has no price, not a price of 0."""
    assert prices.price(model, {"input": 10, "output": 10}) is None


def test_tokens_that_are_not_known_have_no_price() -> None:
    """Without a number of input and output tokens there is no price."""
    assert prices.price("openai/gpt-5", {"input": 10}) is None
    assert prices.price("openai/gpt-5", {"input": True, "output": 1}) is None


def test_an_hour_in_the_cache_costs_more() -> None:
    """Tokens that are written to the cache for an hour have their own price."""
    usage = {"input": 0, "output": 0, "cacheWrite": 1_000_000}
    short = prices.price("anthropic/claude-sonnet-4-5", usage)
    long = prices.price("anthropic/claude-sonnet-4-5", usage | {"cacheWrite1h": 1_000_000})
    assert short is not None
    assert long is not None
    assert long > short


def test_the_table_is_the_one_that_was_counted_with() -> None:
    """A newer table comes with a newer version of the catalog, which counts costs again; `python tests/prices.py` writes it."""
    assert (prices.SOURCE, prices.DATE, VERSION) == ("genai-prices 0.2.2", "2026-11-09", 7)
    if importlib.metadata.version("genai-prices") == "0.2.2":
        assert f'SOURCE = "{prices.SOURCE}"' in generator.text()


def test_a_listing_does_not_load_the_table() -> None:
    """Importing the digest, which listings do, loads neither the table nor its source."""
    code = "import sys, sessile.core.digest; print([n for n in sys.modules if 'price' in n])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
