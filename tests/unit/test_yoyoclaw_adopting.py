"""Adopting entries of another store: mapped and kept members, and later changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import Json
from sessile.agents.openclaw.document import StoreDocument, parse_store
from sessile.agents.openclaw.entries import FIELDS, MARK, SessionEntry, adopt, adopted_from
from strategies import json_objects

pytestmark = pytest.mark.mission("Y5")

STORE = "/h/.openclaw/agents/main/sessions/sessions.json"


def members(entry: SessionEntry) -> Json:
    return {name: value for name, value in entry.members.items() if name != MARK}


@pytest.mark.parametrize(
    ("before", "session_id", "after"),
    [
        ({"sessionId": "s"}, "s", {"sessionId": "s"}),
        ({"sessionId": "s"}, "s-topic-7", {"sessionId": "s-topic-7"}),
        ({"sessionId": "s", "sessionFile": "s.jsonl"}, "s", {"sessionId": "s"}),
        ({"sessionId": "s", "sessionFile": "s.jsonl"}, None, {"sessionId": "s", "sessionFile": "s.jsonl"}),
        (
            {"contextTokens": 200, "totalTokens": 70},
            None,
            {"contextTokens": 70, "totalTokens": 70, "contextWindow": 200},
        ),
        ({"contextTokens": 200}, None, {"contextWindow": 200}),
        (
            {"contextTokens": 200, "totalTokens": 70, "totalTokensFresh": False},
            None,
            {"totalTokens": 70, "totalTokensFresh": False, "contextWindow": 200},
        ),
        ({"contextTokens": 70, "contextWindow": 200}, None, {"contextTokens": 70, "contextWindow": 200}),
        ({"contextTokens": "many", "totalTokens": 70}, None, {"contextTokens": "many", "totalTokens": 70}),
        (
            {"provider": "telegram", "room": "#x", "future": [None]},
            None,
            {"provider": "telegram", "room": "#x", "future": [None]},
        ),
        ({"label": None}, "s", {"label": None, "sessionId": "s"}),
    ],
)
def test_what_means_something_else_here_is_mapped_and_all_else_stays(
    before: Json, session_id: str | None, after: Json
) -> None:
    """The session id, its file, and the window that others call `contextTokens`."""
    assert members(adopt(SessionEntry(before), session_id, STORE).entry) == after


def test_the_old_values_are_kept_and_told() -> None:
    """Old values are in the entry itself and in the report."""
    entry = SessionEntry({"sessionId": "s", "sessionFile": "x/s.jsonl", "contextTokens": 9, "model": "m"})
    adopted = adopt(entry, "t", STORE)
    assert adopted.entry[MARK]["was"] == {"sessionId": "s", "sessionFile": "x/s.jsonl", "contextTokens": 9}
    assert adopted.mapped == {
        "sessionId": ("s", "t"),
        "sessionFile": ("x/s.jsonl", None),
        "contextWindow": (None, 9),
        "contextTokens": (9, None),
    }
    assert "was" not in adopt(SessionEntry({"model": "m"}), None, STORE).entry[MARK]


def test_a_change_made_here_is_known_as_one() -> None:
    """The entry is then our own; the order of its members does not count."""
    entry = adopt(SessionEntry({"sessionId": "s", "model": "m"}), "s", STORE).entry
    assert adopted_from(entry) == STORE
    assert adopted_from(SessionEntry(dict(reversed(entry.members.items())))) == STORE
    assert adopted_from(entry.changed({"model": "n"})) is None
    assert adopted_from(entry.changed({"model": "n"}).changed({"model": "m"})) == STORE
    assert adopted_from(SessionEntry({"sessionId": "s"})) is None
    assert adopted_from(SessionEntry({MARK: "by hand"})) is None


documented = st.sampled_from(sorted(FIELDS)).flatmap(
    lambda name: st.tuples(st.just(name), st.none() | st.integers(0, 9) | st.text(max_size=3) | st.booleans())
)


@given(json_objects, st.lists(documented, max_size=6), st.none() | st.sampled_from(["s", "t"]))
def test_no_member_of_an_entry_is_ever_lost(
    unknown: Json, known: list[tuple[str, Any]], session_id: str | None
) -> None:
    """Each member is unchanged, or its old value is in the mark; adopting twice is the same as once."""
    before = {**unknown, **dict(known)}
    before.pop(MARK, None)
    adopted = adopt(SessionEntry(before), session_id, STORE)
    after, was = members(adopted.entry), adopted.entry[MARK].get("was", {})
    assert {**after, **was, **{name: before[name] for name in before if name in was}}.items() >= before.items()
    assert {name: value for name, value in after.items() if name not in adopted.mapped} == {
        name: value for name, value in before.items() if name not in adopted.mapped
    }
    assert adopted_from(adopted.entry) == STORE
    written = parse_store(StoreDocument.empty().with_changes({"k": adopted.entry})).entries["k"]
    assert adopted_from(written) == STORE
    assert adopt(SessionEntry(before), session_id, STORE) == adopted
