"""Messages of four APIs go through a session and come back; in another shape they say the same."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_records import NAMES, Sent, requests, unpack
from builders import Json
from message_shapes import MEMBERS, Said, conversations, said
from sessile import Session
from sessile.core.messages.request import Request
from sessile.core.sending import APIS

pytestmark = pytest.mark.mission("N1")

# What is not compared: nothing. Members that are null and names in snake case come back without them and in camel case from
# Gemini's shape only, and are not generated here; tests/unit/test_neutral.py has them.


def sent_as(messages: list[Json], api: str, *, at_once: bool = True) -> Request:
    """Append messages to a session and return its request to an API."""
    with Session.in_memory() as session:
        if at_once:
            session.append_messages(messages)
        else:
            for message in messages:
                session.append_message(message)
        request = APIS[api](session.context())
        assert all(note.entry is not None and session.get_entry(note.entry) for note in request.notes)
        return request


@pytest.mark.parametrize("api", MEMBERS)
@given(data=st.data(), at_once=st.booleans())
def test_an_api_gets_its_messages_back_as_they_were(api: str, data: st.DataObject, at_once: bool) -> None:
    """Shape A, the store, shape A: equal, without a note, appended at once or one by one."""
    messages = data.draw(conversations(api))
    request = sent_as(messages, api, at_once=at_once)
    assert request == {MEMBERS[api]: messages}
    assert request.notes == []


@pytest.mark.parametrize("other", MEMBERS)
@pytest.mark.parametrize("api", MEMBERS)
@given(data=st.data())
def test_another_api_gets_every_text_call_result_and_image_in_order(api: str, other: str, data: st.DataObject) -> None:
    """What is elsewhere has a note that names its entry."""
    messages = data.draw(conversations(api))
    check_same(said({MEMBERS[api]: messages}, api), sent_as(messages, other), other)


def check_same(before: list[Said], request: Request, api: str) -> None:
    """Every item is there, and in the same order; a note tells which entry's images or texts are elsewhere."""
    after = said(request, api)
    assert not Counter(joined(before)) - Counter(joined(after))
    if any(note.did == "moved" for note in request.notes):
        before, after = ([item for item in items if item[0] in ("call", "result")] for items in (before, after))
    assert before == after


def joined(items: list[Said]) -> list[Said]:
    """Return the lines of texts one by one: adjacent texts may be joined in one shape and apart in another."""
    return [("text", line) if item[0] == "text" else item for item in items for line in lines(item)]


def lines(item: Said) -> list[str]:
    return item[1].split("\n") if item[0] == "text" else [""]


# -- what fifteen programs sent


def api_of(sent: Sent) -> str:
    last = sent.path.partition("?")[0].rpartition("/")[2]
    return {"messages": "anthropic", "completions": "openai", "responses": "responses"}.get(last, "google")


@cache
def recorded(name: str, folder: Path) -> list[tuple[str, list[Json]]]:
    """Return the conversations of a record; those that a later request goes on with count once."""
    found: list[tuple[str, list[Json]]] = []
    for sent in reversed(requests(unpack(name, folder))):
        messages: Any = sent.body.get(MEMBERS[api_of(sent)])
        if isinstance(messages, list) and not any(longer[: len(messages)] == messages for _, longer in found):
            found.append((api_of(sent), messages))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@pytest.mark.parametrize("name", NAMES)
def test_what_a_program_sent_comes_back_as_it_was(name: str, folder: Path) -> None:
    """Every message of every recorded request, through a session, equals what the program sent."""
    conversations = recorded(name, folder)
    assert conversations
    for api, messages in conversations:
        request = sent_as(messages, api)
        assert request[MEMBERS[api]] == messages
        assert request.notes == []


@pytest.mark.parametrize("name", NAMES)
def test_what_a_program_sent_says_the_same_to_any_api(name: str, folder: Path) -> None:
    """Every text, call, result and image of the recorded requests, in every other shape."""
    for api, messages in recorded(name, folder):
        before = said({MEMBERS[api]: messages}, api)
        for other in MEMBERS:
            check_same(before, sent_as(messages, other), other)
