"""Limits that keep the code base easy to navigate; `make house` prints the figures."""

from __future__ import annotations

import pytest

from house import House, measure


@pytest.fixture(scope="module")
def house() -> House:
    """Return the figures."""
    return measure()


def test_there_are_not_too_many_modules(house: House) -> None:
    """Packages with one folder or file for each supported thing are not counted."""
    assert house.limited <= 300


def test_names_of_modules_rarely_repeat(house: House) -> None:
    """The packages of agents share module names."""
    assert len(house.repeated) <= 10, house.repeated


def test_the_public_face_is_small(house: House) -> None:
    """The list of public names stays short enough to read."""
    assert house.public <= 40


def test_imports_are_at_the_top(house: House) -> None:
    """Late imports save start-up time or break a cycle, and have a comment."""
    assert len(house.late) <= 90, house.late


@pytest.mark.parametrize(("operation", "most"), [("append", 10), ("context", 8)])
def test_hot_paths_pass_through_few_files(house: House, operation: str, most: int) -> None:
    """The code of an append or a context is easy to follow."""
    assert len(house.passed[operation]) <= most, house.passed[operation]


def test_a_turn_is_a_short_walk(house: House) -> None:
    """A turn uses few files of the gateway; on the session it is an append and a context."""
    assert len(house.of_gateway) <= 14, house.of_gateway


def test_a_listing_loads_few_modules(house: House) -> None:
    """A warm `sessile ls` starts fast."""
    assert len(house.loaded) <= 140, house.loaded
