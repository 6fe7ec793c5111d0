"""Ids: how they are made, and which are valid."""

from __future__ import annotations

import uuid
from random import Random

import pytest

from sessile.core.ids import LETTERS, check_session_id, derived_entry_id, new_entry_id, new_session_id
from sessile.errors import InvalidId


def test_session_id_is_a_uuid_of_version_7_that_carries_its_time() -> None:
    """Version and variant bits are set, the first 48 bits are the milliseconds."""
    made = uuid.UUID(new_session_id(1_771_237_230_123, lambda count: b"\xff" * count))
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == 1_771_237_230_123
    assert str(made) == "019c65f7-462b-7fff-bfff-ffffffffffff"


def test_session_ids_sort_by_time() -> None:
    """A later id is greater, whatever the random bytes."""
    random = Random(7)
    ids = [new_session_id(milliseconds, random.randbytes) for milliseconds in range(1000, 1100)]
    assert ids == sorted(ids)


@pytest.mark.parametrize("session_id", ["a", "0", "a.b", "a_b-c", "db5b5fab8f4d3e27", "A" * 128, str(uuid.UUID(int=1))])
def test_safe_names_are_session_ids(session_id: str) -> None:
    """Letters and digits, with dots, underscores and hyphens between them, up to 128."""
    assert check_session_id(session_id) == session_id


@pytest.mark.promise("P30")
@pytest.mark.parametrize(
    "session_id",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "a\0",
        "a\n",
        ".a",
        "a.",
        "-a",
        "a-",
        "a b",
        " a",
        "é",
        "a" * 129,
        "~",
        "%2f",
    ],
)
def test_names_that_could_leave_the_folder_are_refused(session_id: str) -> None:
    """A name that is unsafe as part of a file name raises with a hint."""
    with pytest.raises(InvalidId) as caught:
        check_session_id(session_id)
    assert caught.value.hint


def test_entry_ids_are_eight_letters_and_digits_that_use_the_whole_alphabet() -> None:
    """Each of the 62 characters occurs at each of the eight positions."""
    random = Random(1)
    ids = {new_entry_id(random.randbytes) for _ in range(5000)}
    assert len(ids) == 5000
    assert {len(entry_id) for entry_id in ids} == {8}
    for place in range(8):
        assert {entry_id[place] for entry_id in ids} == set(LETTERS)


@pytest.mark.mission("X5")
def test_derived_ids_depend_on_nothing_but_their_parts() -> None:
    """The same parts return the same id in every process; other parts or another order do not."""
    assert derived_entry_id("s", 1) == derived_entry_id("s", 1) == "pdu3Tx5M"
    assert (
        len({derived_entry_id("s", 1), derived_entry_id("s", 2), derived_entry_id("s1"), derived_entry_id(1, "s")}) == 4
    )
    assert len(derived_entry_id("\ud800")) == 8
