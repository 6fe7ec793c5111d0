"""Shared setup of all tests: Hypothesis profiles, a database, and the location of temporary folders.

Hypothesis runs the same examples every time, and many more with `SESSILE_LONG=1`. Temporary folders are in memory if
there is room, because the tests sync tens of thousands of files.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Imported only here, so that one server serves all tests of a process.
from postgres_rig import postgres_server, postgres_url, postgres_urls

__all__ = ["postgres_server", "postgres_url", "postgres_urls"]

_HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=30, database=None, suppress_health_check=_HEALTH
)
settings.register_profile("long", deadline=None, max_examples=10_000, suppress_health_check=_HEALTH)
settings.load_profile("long" if os.environ.get("SESSILE_LONG") == "1" else "ci")

_MEMORY, _ROOM = "/dev/shm", 8 * 2**30  # bytes; several times the size of a whole run
_TEMPROOT = "PYTEST_DEBUG_TEMPROOT"  # pytest's variable for the location of its temporary folders


def _has_room() -> bool:
    if not os.access(_MEMORY, os.W_OK):
        return False
    place = os.statvfs(_MEMORY)
    told = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(told["MemAvailable"].split()[0]) * 1024
    return min(available, place.f_bavail * place.f_frsize) >= _ROOM


if _TEMPROOT not in os.environ and _has_room():
    os.environ[_TEMPROOT] = _MEMORY


@pytest.fixture(scope="session", autouse=True)
def _memory_is_given_back(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Remove the temporary folders in memory after a run without failures; otherwise keep them for inspection."""
    yield
    base = tmp_path_factory.getbasetemp()
    if str(base).startswith(f"{_MEMORY}/") and not request.session.testsfailed:
        shutil.rmtree(base, ignore_errors=True)


# Collected tests live as long as the run. Keep the garbage collector from scanning them during collection, while tests
# run, and in forked processes, where it would copy the memory.
gc.disable()


def pytest_collection_finish() -> None:
    """Enable garbage collection, but only for objects that the tests create."""
    gc.collect()
    gc.freeze()
    gc.enable()
