"""Titles of a gateway's sessions in listings."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import Json
from sessile.agents.openclaw.names import Described, described
from strategies import json_objects, text
from yoyoclaw import GROUP, MAIN, stored

pytestmark = pytest.mark.mission("Y2")


@pytest.mark.parametrize(
    ("entry", "title"),
    [
        ({"label": " Trip\n", "subject": "Family", "displayName": "telegram:g-x"}, "Trip"),
        ({"label": " \n", "subject": "Family", "displayName": "telegram:g-x"}, "Family"),
        ({"displayName": "telegram:g-x"}, "telegram:g-x"),
        ({"label": 5, "displayName": "\ud83d"}, "\ufffd"),
        ({}, None),
    ],
)
def test_a_person_names_a_session_before_a_chat_does(entry: Json, title: str | None) -> None:
    """The label, else the subject of the chat, else the display name; values that are not text are ignored."""
    assert described(stored({MAIN: {"sessionId": "s1", **entry}})) == {"s1": Described(title, MAIN)}


def test_a_topic_is_named_apart_from_its_chat() -> None:
    """A topic is named by its own transcript; without another name, the chat's transcript has it, too."""
    topic = f"{GROUP}:topic:a/b"
    store = {GROUP: {"sessionId": "s1", "label": "Chat"}, topic: {"sessionId": "s1", "label": "Topic", "updatedAt": 9}}
    assert described(stored(store)) == {"s1": Described("Chat", GROUP), "s1-topic-a%2Fb": Described("Topic", topic)}
    del store[GROUP]
    assert described(stored(store))["s1"] == Described("Topic", topic)


def test_a_file_that_an_entry_names_has_its_name() -> None:
    """The file may be in any folder."""
    store = {MAIN: {"sessionId": "s1", "sessionFile": "/x/2026-02-03T10-00-00-000Z_s1.jsonl", "label": "Fork"}}
    assert described(stored(store)) == {"2026-02-03T10-00-00-000Z_s1": Described("Fork", MAIN)}


def test_of_several_keys_the_one_that_was_used_last_names_a_session() -> None:
    """The last used key counts even if it is the first one or has no title."""
    store = {MAIN: {"sessionId": "s", "updatedAt": 9}, GROUP: {"sessionId": "s", "updatedAt": 5, "label": "Old"}}
    assert described(stored(store)) == {"s": Described(None, MAIN)}


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"5", b"\xff", b'{"a":' * 100_000, b'{"a": 5, "b": {"sessionId": 5}}']
)
def test_a_broken_store_has_no_names(data: bytes) -> None:
    """A listing must not fail because of a comma."""
    assert described(data) == {}


entries = json_objects | st.integers() | st.fixed_dictionaries({"sessionId": text, "label": text})


@given(
    st.binary(max_size=40) | st.dictionaries(text, entries, max_size=3).map(lambda value: json.dumps(value).encode())
)
def test_whatever_a_store_holds_its_names_can_be_asked_for(data: bytes) -> None:
    """All texts can be encoded."""
    for title, key in described(data).values():
        assert title != ""
        assert f"{title} {key}".encode()
