"""Names of transcripts and titles of sessions.

    <id>.jsonl    <id>-topic-<thread>.jsonl    <time>_<id>.jsonl                     live; the last is a fork
    <name>.jsonl.<reset|deleted|bak>.<time>    <name>.jsonl.bak-<pid>-<ms>           archives, newer ones with `.zst`

A title is the label given by a person, else the subject of the chat, else the display name. For listings a store file
is parsed tolerantly: a broken one has no titles, and the code that opens it (`document`) reports the error. Texts have
no lone surrogates, so they can be stored and shown anywhere.
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

Reason = Literal["reset", "deleted", "bak"]

JSONL = ".jsonl"

_TOPIC = "-topic-"
_ARCHIVE = re.compile(r"(?P<live>.+\.jsonl)\.(?P<reason>reset|deleted|bak)[.-](?P<time>.+?)(?P<packed>\.zst)?")
_FORK = re.compile(r"\d{4}-\d\d-\d\dT[0-9-]+Z?_(?P<id>.+)")
_JAVASCRIPT_KEEPS = "-_.!~*'()"  # the characters that `encodeURIComponent` does not encode


class Transcript(NamedTuple):
    """One file of a session. `live` is its name, or its name before it was archived."""

    path: str
    live: str
    session_id: str
    topic: str | None = None
    reason: Reason | None = None
    time: str | None = None
    packed: bool = False


def transcript_name(session_id: str, topic: str | int | None = None) -> str:
    """Return the file name of a session's transcript."""
    if topic is None:
        return f"{session_id}{JSONL}"
    encoded = str(topic) if isinstance(topic, int) else quote(topic, _JAVASCRIPT_KEEPS, errors="replace")
    return f"{session_id}{_TOPIC}{encoded}{JSONL}"


def archive_name(name: str, reason: Reason, time: str) -> str:
    """Return the name of a file that is archived at a time (ISO)."""
    return f"{name}.{reason}.{time.replace(':', '-')}"


def read_name(path: str) -> Transcript | None:
    """Parse the name of a file; return `None` if it is not a transcript."""
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


# -- titles
_TITLES = ("label", "subject", "displayName")  # given by a person, a chat, a program


class Described(NamedTuple):
    """A transcript in a store: its title, if it has one, and its key."""

    title: str | None
    key: str


def described(data: bytes) -> dict[str, Described]:
    """Return titles and keys by the name of the transcript without `.jsonl`; none if the store is broken.

    That name is the session id, or `<id>-topic-<thread>` for a topic. If several keys share a transcript, the one used
    last counts.
    """
    try:
        store = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(store, dict):
        return {}
    own: dict[str, Described] = {}
    shared: dict[str, Described] = {}  # for topics that have no own transcript, but use that of their chat
    entries = [(key, SessionEntry(value)) for key, value in store.items() if isinstance(value, dict)]
    for key, entry in sorted(entries, key=lambda item: item[1].updated_at or 0):
        description = Described(title_of(entry), without_surrogates(key))
        if entry.session_file is not None:
            own[_stem(entry.session_file)] = description
        elif entry.session_id is not None:
            own[_stem(transcript_name(entry.session_id, topic_of(key)))] = description
            shared[entry.session_id] = description
    return {**shared, **own}


def title_of(entry: SessionEntry) -> str | None:
    """Return the title of a session, or `None`."""
    names = (clean_name(without_surrogates(entry.known(name) or "")) for name in _TITLES)
    return next((name for name in names if name), None)


def agent_of(key: str) -> str | None:
    """Return the agent that a key names; `None` for a bare or invalid key."""
    try:
        return parse_key(key).agent
    except InvalidId:
        return None


def topic_of(key: str) -> str | None:
    """Return the topic or thread that a key names."""
    if ":topic:" not in key and ":thread:" not in key:
        return None  # most keys: a listing must not parse them all
    try:
        parsed = parse_key(key)
    except InvalidId:
        return None
    return parsed.topic or parsed.thread


def _stem(path: str) -> str:
    return posixpath.basename(path).removesuffix(JSONL)
