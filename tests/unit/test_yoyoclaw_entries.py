"""Entries of `sessions.json`, and the text of the file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import Json
from sessile.agents.openclaw.document import BrokenStore, Place, StoreDocument, parse_store
from sessile.agents.openclaw.entries import (
    FIELDS,
    SessionEntry,
    combine_entries,
    delivery_of,
    fits,
    merge_entries,
    misfits,
)
from sessile.errors import InvalidEntry, TooLarge
from strategies import as_javascript, json_objects, text

pytestmark = pytest.mark.mission("Y5")

# Every member that the documents name, whichever release it came with.
DOCUMENTED = (
    "sessionId updatedAt sessionFile systemSent abortedLastRun chatType label displayName channel groupId subject"
    " groupChannel space origin deliveryContext lastChannel lastTo lastAccountId lastThreadId spawnedBy spawnDepth"
    " forkedFromParent"
    " thinkingLevel verboseLevel reasoningLevel elevatedLevel ttsAuto responseUsage execHost execSecurity execAsk execNode"
    " groupActivation groupActivationNeedsSystemIntro sendPolicy queueMode queueDebounceMs queueCap queueDrop"
    " providerOverride modelOverride modelOverrideSource authProfileOverride authProfileOverrideSource"
    " authProfileOverrideCompactionCount modelProvider model"
    " fallbackNoticeSelectedModel fallbackNoticeActiveModel fallbackNoticeReason"
    " inputTokens outputTokens totalTokens totalTokensFresh cacheRead cacheWrite contextTokens estimatedCostUsd"
    " compactionCount memoryFlushAt memoryFlushCompactionCount memoryFlush lastHeartbeatText lastHeartbeatSentAt"
    " skillsSnapshot systemPromptReport cliSessionIds claudeCliSessionId acp abortCutoffMessageSid abortCutoffTimestamp"
    " sessionStartedAt lastInteractionAt lastActivityAt archivedAt pinnedAt lastReadAt markedUnreadAt lifecycleRevision"
    " parentSessionKey status startedAt endedAt runtimeMs goal category autoLabel contextBudgetStatus quotaSuspension"
    " pluginExtensions route incognito usageFamilyKey usageFamilySessionIds"
)


def as_they_write(entries: dict[str, Any]) -> bytes:
    """Return what `JSON.stringify(store, null, 2)` returns."""
    return json.dumps(entries, indent=2, ensure_ascii=False).encode()


# -- one entry


def test_every_documented_field_is_known() -> None:
    """Toggles, overrides and counters are all in the table."""
    assert set(DOCUMENTED.split()) <= FIELDS.keys()


def test_older_names_are_found_and_kept() -> None:
    """`provider`, `lastProvider` and `room` are read under their new names, and changed in place."""
    entry = SessionEntry({"provider": "telegram", "room": "#x", "lastProvider": "slack"})
    assert (entry["channel"], entry["groupChannel"], entry.known("lastChannel")) == ("telegram", "#x", "slack")
    changed = entry.changed({"channel": "signal"})
    assert changed.members == {"provider": "signal", "room": "#x", "lastProvider": "slack"}
    assert changed["channel"] == "signal"
    assert SessionEntry({}).changed({"channel": "x"}).members == {"channel": "x"}
    both = SessionEntry({"provider": "old", "channel": "new"})
    assert both["channel"] == "new"
    assert both.changed({"channel": None}).members == {}


def test_unknown_members_survive_a_change() -> None:
    """Unknown members may have any content and keep their order."""
    entry = SessionEntry({"sessionId": "s", "future": {"a": [1]}, "model": "m"})
    changed = entry.changed({"model": "n", "label": "L", "sessionId": None})
    assert list(changed.members.items()) == [("future", {"a": [1]}), ("model", "n"), ("label", "L")]
    assert entry["model"] == "m"


@pytest.mark.parametrize(
    ("before", "patch", "after"), [(5, {}, 9), (12, {}, 12), (5, {"updatedAt": 20}, 20), (None, {}, 9)]
)
def test_the_time_of_change_never_goes_back(before: int | None, patch: dict[str, Any], after: int) -> None:
    """Neither a patch nor a clock that went back can lower it."""
    entry = SessionEntry({} if before is None else {"updatedAt": before})
    assert entry.touched(patch, now=9).updated_at == after


@pytest.mark.parametrize(
    ("members", "odd"),
    [
        ({"updatedAt": "yesterday"}, "updatedAt"),
        ({"updatedAt": True}, "updatedAt"),
        ({"sessionId": "../../etc"}, "sessionId"),
        ({"sessionId": 5}, "sessionId"),
        ({"sendPolicy": "maybe"}, "sendPolicy"),
        ({"provider": 7}, "provider"),
        ({"systemSent": 1}, "systemSent"),
        ({"label": "x" * 63 + "🙂"}, "label"),
    ],
)
def test_a_member_of_the_wrong_type_is_told_and_unknown(members: dict[str, Any], odd: str) -> None:
    """It is neither repaired nor used."""
    entry = SessionEntry(members)
    assert [misfit.name for misfit in misfits(entry)] == [odd]
    assert entry.members == members
    assert SessionEntry({"updatedAt": "x"}).updated_at is None
    assert SessionEntry({"sessionId": 5}).session_id is None


def test_documented_values_are_no_misfits() -> None:
    """Older names of chat types, numbers with a fraction and unknown values are accepted, too."""
    entry = SessionEntry(
        {
            "chatType": "room",
            "label": "x" * 64,
            "updatedAt": 1.5,
            "model": None,
            "future": object(),
            "queueMode": "queue",
        }
    )
    assert misfits(entry) == []
    assert not fits(FIELDS["updatedAt"], float("inf"))


def test_a_reply_goes_where_one_message_came_from() -> None:
    """The channel of one and the recipient of another are never mixed."""
    last = {"lastChannel": "slack", "lastTo": "C1", "lastThreadId": 5}
    assert delivery_of(SessionEntry(last)) == {"channel": "slack", "to": "C1", "threadId": 5}
    context = {"deliveryContext": {"channel": "telegram", "to": None}}
    assert delivery_of(SessionEntry(last | context)) == {"channel": "telegram"}
    assert delivery_of(SessionEntry({})) == {}


# -- many entries


def test_of_two_entries_the_newer_wins_and_the_older_fills_gaps() -> None:
    """The order does not matter; a member with its older name is not a gap."""
    old = SessionEntry({"updatedAt": 1, "model": "a", "label": "L", "provider": "x"})
    new = SessionEntry({"updatedAt": 2, "model": "b", "channel": "y"})
    assert merge_entries(old, new) == merge_entries(new, old)
    assert merge_entries(old, new).members == {"updatedAt": 2, "model": "b", "channel": "y", "label": "L"}
    assert merge_entries(SessionEntry({"model": "undated"}), old)["model"] == "a"


def test_stores_are_combined_newest_first() -> None:
    """A key of two agents is one row."""
    a = {"k": SessionEntry({"updatedAt": 1, "label": "L"}), "x": SessionEntry({})}
    b = {"k": SessionEntry({"updatedAt": 3, "model": "m"}), "y": SessionEntry({"updatedAt": 2})}
    combined = combine_entries({"a": a, "b": b})
    assert list(combined) == ["k", "y", "x"]
    assert combined["k"].members == {"updatedAt": 3, "model": "m", "label": "L"}


# -- the text


@pytest.mark.parametrize(
    ("text", "line", "column", "complaint"),
    [
        (b"", 1, 1, "empty"),
        (b" \n ", 1, 1, "empty"),
        (b"[]", 1, 1, "object"),
        (b'{\n  "a": {},\n}', 3, 1, "name in double quotes"),
        (b'{\n  "a": {"x": 1,}\n}', 2, 16, "name in double quotes"),
        (b'{\n  // note\n  "a": {}\n}', 2, 3, "name in double quotes"),
        (b"{'a': {}}", 1, 2, "name in double quotes"),
        (b'{\n  "a": {"x": 1}\n  "b": {}\n}', 3, 3, "comma"),
        (b'{"a": {"x": NaN}}', 1, 13, "NaN"),
        (b'{"a": {"x"', 1, 11, "ends too early"),
        (b'{"a": {}', 1, 9, "ends too early"),
        (b'{"a": {}} trailing', 1, 11, "unexpected text"),
        (b'{"a": {},\n "a": {}}', 2, 2, "duplicate member '"),
        (b'{"a": {"x": 1,\n "x": 2}}', 2, 2, "duplicate member '"),
        (b'{"a": {"o": {"x": 1,\n\n "x": 2}}}', 3, 2, "duplicate member '"),
        (b'{"a": {"o": [{"x": 1, "x": 2}]}}', 1, 13, "duplicate member in an object"),
        (b'{"a": 5}', 1, 7, "not an object"),
        (b'{"a": {"x": "\xff"}}', 1, 14, "UTF-8"),
        (b'{"a" {}}', 1, 6, "colon"),
    ],
)
def test_a_broken_store_says_where(text: bytes, line: int, column: int, complaint: str) -> None:
    """The error has line, column and the expected token; a broken store never loads as empty."""
    with pytest.raises(BrokenStore, match=f"line {line}, column {column}") as caught:
        parse_store(text, "/x/sessions.json")
    assert caught.value.place == Place(line, column)
    assert complaint in caught.value.detail
    assert caught.value.path == "/x/sessions.json"
    assert caught.value.exit_code == 5


def test_nesting_without_end_is_refused() -> None:
    """Deep nesting raises a typed error."""
    with pytest.raises(BrokenStore, match="nested too deeply"):
        parse_store(b'{"a": ' + b'{"x":' * 200_000)


def test_a_store_is_written_as_its_owner_writes_it() -> None:
    """Two spaces, no newline at the end, non-ASCII characters unescaped, also for an added entry."""
    entries: dict[str, Any] = {
        "agent:main:main": {"sessionId": "s", "list": [1, {}], "e": {}},
        "ключ": {"t": "é🙂\u2028"},
    }
    document = parse_store(as_they_write(entries))
    assert document.with_changes({}) == as_they_write(entries)
    entries["ключ"] = {"t": 'a\n"b"', "n": [1, [2]]}
    entries["new"] = {"x": 1}
    changes = {key: SessionEntry(entries[key]) for key in ("ключ", "new")}
    assert document.with_changes(changes) == as_they_write(entries)
    assert StoreDocument.empty().with_changes({"new": SessionEntry({"x": 1})}) == as_they_write({"new": {"x": 1}})


def test_entries_that_nobody_changed_keep_their_text() -> None:
    """Numbers, escapes and spacing stay, and so does a newline that an editor added at the end."""
    text = b'{"a": {"n":1.0, "big": 12345678901234567890123, "s": "\\u00e9\\ud800"},\n\t"b": {}, "c":{"x":1e2}}\n'
    data = parse_store(text).with_changes({"b": SessionEntry({"y": 1}), "c": None})
    assert data == (
        b'{\n  "a": {"n":1.0, "big": 12345678901234567890123, "s": "\\u00e9\\ud800"},\n  "b": {\n    "y": 1\n  }\n}\n'
    )


def test_removing_the_last_entry_leaves_an_empty_store() -> None:
    """It is not a broken one."""
    data = parse_store(b'{"a": {}}').with_changes({"a": None})
    assert data == b"{}"
    assert parse_store(data).entries == {}


def test_lone_surrogates_are_written_as_escapes() -> None:
    """A truncated emoji must not make the store unwritable."""
    data = StoreDocument.empty().with_changes({"k": SessionEntry({"label": "\ud83d"})})
    assert b'"\\ud83d"' in data
    assert parse_store(data).entries["k"]["label"] == "\ud83d"


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}])
def test_what_has_no_form_in_json_is_refused(value: object) -> None:
    """The error is raised before anything is written."""
    with pytest.raises(InvalidEntry):
        StoreDocument.empty().with_changes({"k": SessionEntry({"x": value})})


def test_a_byte_order_mark_is_no_damage() -> None:
    """Some editors write one."""
    assert list(parse_store(b'\xef\xbb\xbf{"a": {}}').entries) == ["a"]


@given(st.dictionaries(text, json_objects, max_size=2), st.dictionaries(text, st.none() | json_objects, max_size=2))
def test_any_change_of_any_store_is_read_back(before: dict[str, Json], changes: dict[str, Json | None]) -> None:
    """Keys and members may have any content: changes are read back, and nothing else differs."""
    document = StoreDocument.empty()
    before = {as_javascript(key): as_javascript(value) for key, value in before.items()}
    changes = {as_javascript(key): as_javascript(value) for key, value in changes.items()}
    document = parse_store(document.with_changes({key: SessionEntry(value) for key, value in before.items()}))
    assert {key: entry.members for key, entry in document.entries.items()} == before
    wanted = {key: None if value is None else SessionEntry(value) for key, value in changes.items()}
    after = parse_store(document.with_changes(wanted))
    expected = {key: value for key, value in {**before, **changes}.items() if value is not None}
    assert {key: entry.members for key, entry in after.entries.items()} == expected


def test_an_entry_that_is_nested_too_deeply_is_refused_before_anything_is_written() -> None:
    """Deep nesting raises a typed error."""
    deep: Json = {}
    for _ in range(5000):
        deep = {"x": deep}
    with pytest.raises(TooLarge):
        StoreDocument.empty().with_changes({"k": SessionEntry({"deep": deep})})


@given(st.binary(max_size=30), st.integers(0, 60))
def test_whatever_happens_to_a_store_file_it_is_whole_or_broken(garbage: bytes, at: int) -> None:
    """There are no other errors, and entries are always objects."""
    whole = as_they_write({"a": {"sessionId": "s", "n": [1, {"x": None}]}})
    try:
        document = parse_store(whole[:at] + garbage + whole[at:])
    except BrokenStore as error:
        assert error.place.line >= 1 and error.place.column >= 1
    else:
        assert all(isinstance(entry.members, dict) for entry in document.entries.values())


def test_odd_members_are_told_with_their_place() -> None:
    """The report has the line and column of the value, its key, and what was expected."""
    document = parse_store(b'{\n  "k": {\n    "updatedAt": 5,\n    "queueCap": "three"\n  }\n}')
    [odd] = document.oddities()
    assert (odd.key, odd.place, odd.misfit.name) == ("k", Place(4, 17), "queueCap")
    assert "expected int" in odd.misfit.detail
