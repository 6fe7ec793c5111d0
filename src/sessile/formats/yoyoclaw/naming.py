"""What sessions are called: by the person who labelled them, by the chat that they are in, by their key.

A store file is read here for its names alone, and tolerantly: a listing must not fail because of a comma. What is wrong with
a store is told by those who open it (`document`); here it only has no names. Texts come without lone surrogates, so that they
can be stored and shown anywhere.
"""

from __future__ import annotations

import json
import posixpath
from typing import NamedTuple

from sessile.core.text import clean_name, without_surrogates
from sessile.errors import InvalidId
from sessile.formats.yoyoclaw.entries import SessionEntry
from sessile.formats.yoyoclaw.keys import parse_key
from sessile.formats.yoyoclaw.names import JSONL, transcript_name

_TITLES = ("label", "subject", "displayName")  # a person's word, a chat's, a program's


class Described(NamedTuple):
    """What a store says of a transcript: its title, if somebody gave it one, and the key that leads to it."""

    title: str | None
    key: str


def described(data: bytes) -> dict[str, Described]:
    """The names in a store file, by the name of the transcript without `.jsonl`; of a broken one, none.

    That name is the id of the session; a topic has a transcript of its own, `<id>-topic-<thread>`. Of several keys with one
    transcript, the one that was used last names it.
    """
    try:
        store = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(store, dict):
        return {}
    own: dict[str, Described] = {}
    shared: dict[str, Described] = {}  # a topic may have no transcript of its own: then that of its chat holds it
    entries = [(key, SessionEntry(value)) for key, value in store.items() if isinstance(value, dict)]
    for key, entry in sorted(entries, key=lambda item: item[1].updated_at or 0):
        told = Described(title_of(entry), without_surrogates(key))
        if entry.session_file is not None:
            own[_stem(entry.session_file)] = told
        elif entry.session_id is not None:
            own[_stem(transcript_name(entry.session_id, topic_of(key)))] = told
            shared[entry.session_id] = told
    return {**shared, **own}


def title_of(entry: SessionEntry) -> str | None:
    """The title of a session; `None` if nobody gave it one."""
    names = (clean_name(without_surrogates(entry.known(name) or "")) for name in _TITLES)
    return next((name for name in names if name), None)


def agent_of(key: str) -> str | None:
    """The agent that a key names; `None` for a bare key, and for one that is none."""
    try:
        return parse_key(key).agent
    except InvalidId:
        return None


def topic_of(key: str) -> str | None:
    """The topic or thread that a key names."""
    if ":topic:" not in key and ":thread:" not in key:
        return None  # most keys: a listing has no time to take all of them apart
    try:
        parsed = parse_key(key)
    except InvalidId:
        return None
    return parsed.topic or parsed.thread


def _stem(path: str) -> str:
    return posixpath.basename(path).removesuffix(JSONL)
