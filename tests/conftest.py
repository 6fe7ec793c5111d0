"""What all tests share: how Hypothesis runs (the same examples every time, many more with `SESSILE_LONG=1`), and a database."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Here, and in no folder below: one server is enough for all tests of a process.
from postgres_rig import postgres_server, postgres_url, postgres_urls

__all__ = ["postgres_server", "postgres_url", "postgres_urls"]

_HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=30, database=None, suppress_health_check=_HEALTH
)
settings.register_profile("long", deadline=None, max_examples=10_000, suppress_health_check=_HEALTH)
settings.load_profile("long" if os.environ.get("SESSILE_LONG") == "1" else "ci")
