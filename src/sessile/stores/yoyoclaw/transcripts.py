"""The transcripts of a folder: what their names say, and which file belongs to a key.

    <id>.jsonl    <id>-topic-<thread>.jsonl    <time>_<id>.jsonl                     live; the last is a fork
    <name>.jsonl.<reset|deleted|bak>.<time>    <name>.jsonl.bak-<pid>-<ms>           archives, later ones with `.zst`

Nothing is opened. A `sessionFile` counts only if it lies in one of the folders: an entry may not point anywhere else.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

from sessile.errors import storage_failures
from sessile.formats.yoyoclaw.entries import SessionEntry
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.stores.yoyoclaw.paths import names_in

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


class Lookup(NamedTuple):
    """The transcript of a key: its path if there is one, and a `sessionFile` that was refused."""

    path: str | None
    refused: str | None = None


def transcript_name(session_id: str, topic: str | int | None = None) -> str:
    """The name of a session's file."""
    if topic is None:
        return f"{session_id}{JSONL}"
    encoded = str(topic) if isinstance(topic, int) else quote(topic, safe=_JAVASCRIPT_KEEPS)
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


def transcripts_in(fs: Filesystem, folder: str) -> Iterator[Transcript]:
    """The transcripts and archives of a folder, by name."""
    for name in names_in(fs, folder):
        found = read_name(f"{folder}/{name}")
        if found is not None and _is_plain(fs, found.path):
            yield found


def find_transcript(fs: Filesystem, entry: SessionEntry, folders: Sequence[str], topic: str | None = None) -> Lookup:
    """The transcript of an entry: `sessionFile`, else by session id (and topic) in each of the folders."""
    refused = None
    named = entry.session_file
    if named is not None:
        path = posixpath.normpath(posixpath.join(folders[0], named))
        if not any(path.startswith(f"{folder}/") for folder in folders):
            refused = named
        elif _is_plain(fs, path):
            return Lookup(path)
    session_id = entry.session_id
    if session_id is None or "/" in session_id or "\0" in session_id:
        return Lookup(None, refused)
    names = (
        [transcript_name(session_id)]
        if topic is None
        else [
            transcript_name(session_id, topic),
            transcript_name(session_id),
        ]
    )
    paths = (f"{folder}/{name}" for name in names for folder in folders)
    return Lookup(next((path for path in paths if _is_plain(fs, path)), None), refused)


def _is_plain(fs: Filesystem, path: str) -> bool:
    if "\0" in path:
        return False
    with storage_failures(path, "look at a file"):
        try:
            return atomic.is_plain(fs, path)
        except (FileNotFoundError, NotADirectoryError):
            return False
