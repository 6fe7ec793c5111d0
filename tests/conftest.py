"""How Hypothesis runs: the same examples every time, and many more of them on demand (`SESSILE_LONG=1`)."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=60, database=None, suppress_health_check=_HEALTH
)
settings.register_profile("long", deadline=None, max_examples=10_000, suppress_health_check=_HEALTH)
settings.load_profile("long" if os.environ.get("SESSILE_LONG") == "1" else "ci")
