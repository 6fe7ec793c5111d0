"""Entries: the values that readers get, and the members that writers create."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from builders import AT, said
from sessile.core import entries
from sessile.core.codec import encode
from sessile.core.entries import Entry, with_base


def test_an_entry_is_a_mapping_over_its_line() -> None:
    """Members are read from the body, which is decoded on first access."""
    entry = Entry("a", None, encode(said("a", None)))
    assert entry._body is None
    assert (entry["message"]["content"], entry.type, entry["timestamp"]) == ("a", "message", AT)
    assert (list(entry), len(entry), "message" in entry) == (
        ["type", "id", "parentId", "timestamp", "message"],
        5,
        True,
    )
    assert entry.get("nothing") is None
    assert dict(entry) == said("a", None)
    assert repr(entry) == f"<Entry message:user a parent=None {len(entry.raw)} bytes>"


def test_entries_with_equal_bodies_are_equal_and_hash_alike() -> None:
    """Entries are equal if their lines differ, and equal to a plain mapping."""
    body = said("a", None)
    one = Entry("a", None, encode(body))
    other = Entry("a", None, encode(dict(reversed(body.items()))))
    assert one == other == body
    assert one.raw != other.raw
    assert len({one, other}) == 1
    assert one != Entry("b", None, encode(said("b", None)))


def test_a_given_body_is_taken_instead_of_the_line() -> None:
    """Migrated entries have the new body and keep their original bytes."""
    entry = Entry("new", None, b'{"type":"message"}', {"type": "message", "id": "new"})
    assert (entry["id"], entry.raw) == ("new", b'{"type":"message"}')


@pytest.mark.mission("X1")
def test_base_members_come_first_and_cannot_be_overruled() -> None:
    """Type, id, parent and time come first, then the payload in its own order."""
    payload = {"z": 1, "type": "custom", "id": "mine", "parentId": "x", "timestamp": "never", "a": 2}
    made = with_base(payload, "a", None, AT)
    assert list(made.items()) == [
        ("type", "custom"),
        ("id", "a"),
        ("parentId", None),
        ("timestamp", AT),
        ("z", 1),
        ("a", 2),
    ]


@pytest.mark.mission("X1")
def test_the_header_has_the_documented_members() -> None:
    """The version is 3, absent members are omitted, and additional members follow."""
    line = encode(entries.header("s", AT, "/w", title="T", parentSession=None))
    assert line == b'{"type":"session","version":3,"id":"s","timestamp":"%s","cwd":"/w","title":"T"}' % AT.encode()


@pytest.mark.mission("X2")
@pytest.mark.parametrize(
    ("payload", "members"),
    [
        (entries.message({"role": "user"}), {"type": "message", "message": {"role": "user"}}),
        (entries.thinking_level_change("high"), {"type": "thinking_level_change", "thinkingLevel": "high"}),
        (entries.thinking_level_change(None), {"type": "thinking_level_change", "thinkingLevel": None}),
        (entries.model_change("a/b/c"), {"type": "model_change", "model": "a/b/c", "provider": "a", "modelId": "b/c"}),
        (
            entries.model_change("a/b", "default"),
            {"type": "model_change", "model": "a/b", "role": "default", "provider": "a", "modelId": "b"},
        ),
        (entries.model_change("a/b", "smol"), {"type": "model_change", "model": "a/b", "role": "smol"}),
        (entries.model_change("local"), {"type": "model_change", "model": "local"}),
        (
            entries.compaction("s", "k", 9, short_summary="t", details={}, from_extension=True, preserve_data={"x": 1}),
            {
                "type": "compaction",
                "summary": "s",
                "shortSummary": "t",
                "firstKeptEntryId": "k",
                "tokensBefore": 9,
                "details": {},
                "fromExtension": True,
                "preserveData": {"x": 1},
            },
        ),
        (entries.compaction("s", None, 0), {"type": "compaction", "summary": "s", "tokensBefore": 0}),
        (entries.branch_summary("root", ""), {"type": "branch_summary", "fromId": "root", "summary": ""}),
        (
            entries.branch_summary("a", "s", {"d": 1}, False),
            {"type": "branch_summary", "fromId": "a", "summary": "s", "details": {"d": 1}, "fromExtension": False},
        ),
        (entries.custom("x"), {"type": "custom", "customType": "x"}),
        (entries.custom("x", [0]), {"type": "custom", "customType": "x", "data": [0]}),
        (entries.leaf_marker(), {"type": "custom", "customType": "sessile.leaf"}),
        (
            entries.custom_message("x", "hi", False),
            {"type": "custom_message", "customType": "x", "content": "hi", "display": False, "attribution": "agent"},
        ),
        (entries.label("a", "mark"), {"type": "label", "targetId": "a", "label": "mark"}),
        (entries.label("a", None), {"type": "label", "targetId": "a"}),
        (entries.label("a", ""), {"type": "label", "targetId": "a"}),
        (entries.mode_change("plan", {"n": 1}), {"type": "mode_change", "mode": "plan", "data": {"n": 1}}),
        (entries.ttsr_injection(("a", "b")), {"type": "ttsr_injection", "injectedRules": ["a", "b"]}),
        (
            entries.session_init("p", "t", ("read",), {"type": "object"}),
            {
                "type": "session_init",
                "systemPrompt": "p",
                "task": "t",
                "tools": ["read"],
                "outputSchema": {"type": "object"},
            },
        ),
        (entries.session_info("n"), {"type": "session_info", "name": "n"}),
        (entries.context_edit("a", None), {"type": "context_edit", "targetId": "a", "replacement": None}),
        (entries.context_edit("a", ""), {"type": "context_edit", "targetId": "a", "replacement": {"content": ""}}),
        (entries.reset_boundary(), {"type": "reset_boundary"}),
    ],
    ids=lambda value: value.get("type"),
)
def test_payloads_have_the_documented_members_in_order(payload: dict[str, Any], members: dict[str, Any]) -> None:
    """Absent members are omitted, and nullable ones are written as null."""
    assert list(payload.items()) == list(members.items())


@pytest.mark.parametrize(
    ("stored", "moment"),
    [
        ("2026-02-16T10:20:30.123Z", datetime(2026, 2, 16, 10, 20, 30, 123000, tzinfo=UTC)),
        ("2026-02-16T12:20:30+02:00", datetime(2026, 2, 16, 10, 20, 30, tzinfo=UTC)),
        ("2026-02-16T10:20:30", datetime(2026, 2, 16, 10, 20, 30, tzinfo=UTC)),
        ("0001-01-01T00:00:00+14:00", datetime.min.replace(tzinfo=UTC)),
        ("yesterday", None),
        (1771237230000, None),
        (None, None),
    ],
)
def test_a_timestamp_is_an_aware_datetime(stored: object, moment: datetime | None) -> None:
    """It is in UTC; a missing or invalid one is `None`, and the stored text stays in the body."""
    entry = Entry("a", None, encode({"type": "custom", "id": "a", "timestamp": stored}))
    assert entry.timestamp == moment
    assert entry.timestamp is None or entry.timestamp.tzinfo is UTC
    assert entry.body["timestamp"] == stored


HOSTILE = "<script>alert(1)</script>&\x1b[31m\u202e\" onload='x'\nsecond line"


def test_a_repr_is_one_line_without_the_text() -> None:
    """It names the kind, the role or custom type, the ids and the size, and never the content."""
    spoken = Entry("a", "b", encode(entries.message({"role": "user", "content": "the password is x"})))
    assert repr(spoken) == f"<Entry message:user a parent=b {len(spoken.raw)} bytes>"
    custom = repr(Entry("a", None, encode(entries.custom(HOSTILE))))
    assert custom.startswith("<Entry custom:<script>") and custom.isprintable() and len(custom) < 120


def test_an_entry_in_a_notebook_is_a_table_in_which_nothing_runs() -> None:
    """Stored text is escaped, made visible and shortened."""
    entry = Entry(HOSTILE, HOSTILE, encode(entries.message({"role": HOSTILE, "content": HOSTILE + "x" * 10_000})))
    html = entry._repr_html_()
    assert html.startswith("<table>") and html.endswith("</table>")
    assert set(re.findall(r"</?(\w+)", html)) == {"table", "caption", "tbody", "tr", "th", "td"}
    assert "&lt;script&gt;" in html and "\x1b" not in html and "\u202e" not in html
    assert len(html) < 3000
    spoken = Entry("a", None, encode(said("a", None)))
    assert "<th>time</th><td>2026-02-16 10:20:30 UTC</td>" in spoken._repr_html_()
