"""The names of transcripts: what each says, and how their owner makes them.

    <id>.jsonl    <id>-topic-<thread>.jsonl    <time>_<id>.jsonl                     live; the last is a fork
    <name>.jsonl.<reset|deleted|bak>.<time>    <name>.jsonl.bak-<pid>-<ms>           archives, later ones with `.zst`

Nothing here knows which files there are.
"""

from __future__ import annotations

import posixpath
import re
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

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
