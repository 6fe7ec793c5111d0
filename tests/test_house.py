"""The limits that keep the code base easy to find one's way in; `make house` prints the figures."""

from __future__ import annotations

import pytest

from house import House, measure


@pytest.fixture(scope="module")
def house() -> House:
    """The figures."""
    return measure()


def test_there_are_not_too_many_modules(house: House) -> None:
    """Packages that grow by one folder or file for each thing that they support do not count."""
    assert house.limited <= 300


def test_names_of_modules_rarely_repeat(house: House) -> None:
    """Packages of agents have modules of the same names."""
    assert len(house.repeated) <= 10, house.repeated


def test_the_public_face_is_small(house: House) -> None:
    """A person can read the list of names."""
    assert house.public <= 40


def test_imports_are_at_the_top(house: House) -> None:
    """The exceptions save start-up time or break a cycle, and say so."""
    assert len(house.late) <= 100, house.late


@pytest.mark.parametrize(("operation", "most"), [("append", 10), ("context", 8)])
def test_hot_paths_pass_through_few_files(house: House, operation: str, most: int) -> None:
    """A reader of an append or a context can hold it in mind."""
    assert len(house.passed[operation]) <= most, house.passed[operation]


def test_a_turn_is_a_short_walk(house: House) -> None:
    """It passes through few files of the gateway; what it does to the session is an append and a context."""
    assert len(house.of_gateway) <= 14, house.of_gateway


def test_a_listing_loads_few_modules(house: House) -> None:
    """A warm `sessile ls` starts fast."""
    assert len(house.loaded) <= 140, house.loaded
