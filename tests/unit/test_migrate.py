"""Migration of older versions to version 3, in memory."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from builders import AT, texts
from sessile.core.context import build_session_context
from sessile.core.ids import derived_entry_id
from sessile.core.migrate import migrate_session_entries, version_of

pytestmark = pytest.mark.mission("X5")


def old(kind: str, **members: Any) -> dict[str, Any]:
    return {"type": kind, "timestamp": AT, **members}


def said(text: str) -> dict[str, Any]:
    return old("message", message={"role": "user", "content": text})


def header(**members: Any) -> dict[str, Any]:
    return old("session", id="s", cwd="/w", **members)


def compacted(**members: Any) -> dict[str, Any]:
    return old("compaction", summary="short", tokensBefore=9, **members)


def test_version_1_is_chained_in_file_order() -> None:
    """Every record gets an id, and the record before it as parent; existing ids are overwritten."""
    records = [header(), said("a"), {**said("b"), "id": "mine", "parentId": "x"}, said("c")]
    assert migrate_session_entries(records) is True
    ids = [record["id"] for record in records]
    assert records[0]["version"] == 3
    assert ids == ["s", *(derived_entry_id("s", number) for number in (1, 2, 3))]
    assert [record["parentId"] for record in records[1:]] == [None, ids[1], ids[2]]
    assert texts(build_session_context(records).messages) == ["a", "b", "c"]


def test_derived_ids_are_the_same_at_every_reading() -> None:
    """The ids stay the same when the file grows, and another session has other ids."""
    records = [header(), said("a"), said("b")]
    again, grown, other = copy.deepcopy(records), [*copy.deepcopy(records), said("c")], copy.deepcopy(records)
    other[0]["id"] = "t"
    for each in (records, again, grown, other):
        migrate_session_entries(each)
    assert records == again == grown[:3]
    assert {record["id"] for record in other[1:]}.isdisjoint(record["id"] for record in records)


@pytest.mark.parametrize(
    ("index", "kept"),
    [(1, 1), (2, 2), (2.0, 2), (3, 3), *((index, None) for index in (0, 4, 99, -1, 1.5, math.inf, math.nan))],
)
def test_the_index_of_a_compaction_becomes_an_id(index: float, kept: int | None) -> None:
    """It counts all records with the header as 0; an invalid index leaves the id absent."""
    records = [header(), said("a"), said("b"), compacted(firstKeptEntryIndex=index), said("c")]
    migrate_session_entries(records)
    assert "firstKeptEntryIndex" not in records[3]
    assert records[3].get("firstKeptEntryId") == (None if kept is None else records[kept]["id"])


@pytest.mark.parametrize("index", ["2", None, True, [2]])
def test_an_index_that_is_no_number_is_left_alone(index: object) -> None:
    """Only numbers are converted and removed."""
    records = [header(), said("a"), compacted(firstKeptEntryIndex=index)]
    migrate_session_entries(records)
    assert records[2]["firstKeptEntryIndex"] is index
    assert "firstKeptEntryId" not in records[2]


def test_only_compactions_are_converted() -> None:
    """A member of the same name in another entry stays."""
    records = [header(), old("custom", customType="x", firstKeptEntryIndex=1)]
    migrate_session_entries(records)
    assert records[1]["firstKeptEntryIndex"] == 1


def test_version_2_renames_hook_messages_and_keeps_ids() -> None:
    """Only messages change, and only their role."""
    hook = old("message", id="a", parentId=None, message={"role": "hookMessage", "content": "hi", "later": 1})
    odd = old("message", id="b", parentId="a", message="hookMessage")
    other = old("custom", id="c", parentId="b", message={"role": "hookMessage"})
    records = [header(version=2), hook, odd, other]
    assert migrate_session_entries(records) is True
    assert records[0]["version"] == 3
    assert records[1]["message"] == {"role": "custom", "content": "hi", "later": 1}
    assert [record["id"] for record in records] == ["s", "a", "b", "c"]
    assert records[3]["message"] == {"role": "hookMessage"}


def test_every_header_gets_the_version() -> None:
    """A second header is not an entry: it has no parent and no children."""
    records = [header(), said("a"), {**header(), "id": "s2"}, said("b")]
    migrate_session_entries(records)
    assert [record.get("version") for record in records] == [3, None, 3, None]
    assert "parentId" not in records[2]
    assert records[3]["parentId"] == records[1]["id"]


@pytest.mark.parametrize("version", [3, 3.0, 4, 99, "3", "next", [1]])
def test_ours_and_later_versions_are_left_alone(version: object) -> None:
    """Entries of version 3 and later do not change."""
    records = [header(version=version), {**said("a"), "id": "a", "message": {"role": "hookMessage"}}]
    before = copy.deepcopy(records)
    assert migrate_session_entries(records) is False
    assert records == before


@pytest.mark.parametrize(
    ("version", "number"), [(None, 1), (1, 1), (0, 1), (True, 1), (2, 2), (2.0, 2), (math.inf, 3), ("2", 3)]
)
def test_the_version_of_a_header(version: object, number: int) -> None:
    """Absent or null is 1; a value that is not a number does not count as old, because its ids would be overwritten."""
    assert max(1, version_of({"version": version})) == number
    assert version_of({}) == 1


def test_records_without_a_header_and_no_records_at_all() -> None:
    """Without a header it is version 1; an empty list is valid."""
    records = [said("a")]
    assert migrate_session_entries(records) is True
    assert records[0]["id"] == derived_entry_id("", 0)
    assert migrate_session_entries([]) is False
