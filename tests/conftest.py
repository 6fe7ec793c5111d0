"""What all tests share: how Hypothesis runs (the same examples every time, many more with `SESSILE_LONG=1`), a database, and
where their folders lie: in memory if there is room, since they sync tens of thousands of files, and no disk is tried here.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
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

_MEMORY, _ROOM = "/dev/shm", 8 * 2**30  # bytes; several times what a whole run leaves
_TEMPROOT = "PYTEST_DEBUG_TEMPROOT"  # pytest's name for where its temporary folders lie


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
    """A run without failures leaves nothing in memory; what failed can be looked at, as on a disk."""
    yield
    base = tmp_path_factory.getbasetemp()
    if str(base).startswith(f"{_MEMORY}/") and not request.session.testsfailed:
        shutil.rmtree(base, ignore_errors=True)


# All that is collected lives as long as the run. It is looked through for garbage neither now, nor again and again while
# the tests run, nor in the processes that they fork, where that would copy it.
gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage from here on, but only in what the tests make."""
    gc.collect()
    gc.freeze()
    gc.enable()
