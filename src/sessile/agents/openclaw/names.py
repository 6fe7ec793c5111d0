"""The names of transcripts: what each says, and how their owner makes them.

    <id>.jsonl    <id>-topic-<thread>.jsonl    <time>_<id>.jsonl                     live; the last is a fork
    <name>.jsonl.<reset|deleted|bak>.<time>    <name>.jsonl.bak-<pid>-<ms>           archives, later ones with `.zst`

Nothing here knows which files there are.

What sessions are called: by the person who labelled them, by the chat that they are in, by their key.

A store file is read here for its names alone, and tolerantly: a listing must not fail because of a comma. What is wrong with
a store is told by those who open it (`document`); here it only has no names. Texts come without lone surrogates, so that they
can be stored and shown anywhere.
"""

from __future__ import annotations

import json
import posixpath
import re
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

from sessile.agents.openclaw.entries import SessionEntry
from sessile.agents.openclaw.keys import parse_key
from sessile.core.text import clean_name, without_surrogates
from sessile.errors import InvalidId

# --- names

Reason = Literal["reset", "deleted", "bak"]

JSONL = ".jsonl"

_TOPIC = "-topic-"
_ARCHIVE = re.compile(r"(?P<live>.+\.jsonl)\.(?P<reason>reset|deleted|bak)[.-](?P<time>.+?)(?P<packed>\.zst)?")
_FORK = re.compile(r"\d{4}-\d\d-\d\dT[0-9-]+Z?_(?P<id>.+)")
_JAVASCRIPT_KEEPS = "-_.!~*'()"  # what `encodeURIComponent` leaves as it is


class Transcript(NamedTuple):
    """One file of a session. `live` is the name that it has, or had before it was archived."""

    path: str
    live: str
    session_id: str
    topic: str | None = None
    reason: Reason | None = None
    time: str | None = None
    packed: bool = False


def transcript_name(session_id: str, topic: str | int | None = None) -> str:
    """The name of a session's file."""
    if topic is None:
        return f"{session_id}{JSONL}"
    encoded = str(topic) if isinstance(topic, int) else quote(topic, _JAVASCRIPT_KEEPS, errors="replace")
    return f"{session_id}{_TOPIC}{encoded}{JSONL}"


def archive_name(name: str, reason: Reason, time: str) -> str:
    """The name of a file that is archived at a time (ISO)."""
    return f"{name}.{reason}.{time.replace(':', '-')}"


def read_name(path: str) -> Transcript | None:
    """What the name of a file says; `None` if it is no transcript's."""
    name = posixpath.basename(path)
    archive = _ARCHIVE.fullmatch(name)
    live = archive["live"] if archive else name
    if not live.endswith(JSONL) or live.startswith("."):
        return None
    stem, _, topic = live.removesuffix(JSONL).partition(_TOPIC)
    fork = _FORK.fullmatch(stem)
    known = Transcript(path, live, fork["id"] if fork else stem, unquote(topic) if topic else None)
    if archive is None:
        return known
    reason: Reason = "reset" if archive["reason"] == "reset" else "deleted" if archive["reason"] == "deleted" else "bak"
    return known._replace(reason=reason, time=archive["time"], packed=archive["packed"] is not None)


# --- naming

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
