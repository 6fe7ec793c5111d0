"""Notes about bindings that were taken out of a store, each in a file of its own, under a token.

    <agent>.<milliseconds>-<random>        the token, which a person may copy

Rules: a note is written whole and durable before what it tells of is changed. A token names its agent, and nothing else of it
becomes a part of a path unchecked. What a note holds, and where it lies, is for others to say.
"""

from __future__ import annotations

import json
import posixpath
from typing import NamedTuple, TypeVar

import msgspec

from sessile.errors import Damaged, NotFound, storage_failures
from sessile.formats.yoyoclaw.normal import normalize_agent_id
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.store import Store

Note = TypeVar("Note", bound=msgspec.Struct)


class Words(NamedTuple):
    """How a kind of note is called, and what to do if one is not there, or cannot be read."""

    name: str
    gone: str
    unknown: str
    damaged: str


def new_token(store: Store, agent: str, now: int) -> str:
    """A token that no other note has."""
    return f"{agent}.{now}-{store.random(3).hex()}"


def agent_of(token: str, words: Words) -> str:
    """The agent that a token names; raises if it is none of ours."""
    agent = token.partition(".")[0]
    if "/" in token or normalize_agent_id(agent) != agent:
        raise _missing(token, words, words.unknown)
    return agent


def write_note(fs: Filesystem, path: str, note: msgspec.Struct) -> None:
    """Keep a note, durably, in place of the one that was there."""
    atomic.make_folders(fs, posixpath.dirname(path))
    # As ASCII: a key or a member may hold half an emoji, which cannot be encoded otherwise.
    atomic.replace(fs, path, (json.dumps(msgspec.structs.asdict(note), indent=1).encode("ascii"), b"\n"))


def read_note(fs: Filesystem, path: str, token: str, kind: type[Note], words: Words) -> Note:
    """The note of a token."""
    with storage_failures(path, f"look for {words.name}"):
        try:
            data = atomic.read_all(fs, path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _missing(token, words, words.gone) from error
    try:
        return msgspec.convert(json.loads(data), kind)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise Damaged(f"{words.name} cannot be read", path=path, hint=words.damaged) from error


def remove_note(fs: Filesystem, path: str, words: Words) -> None:
    """Remove a note that was used."""
    with storage_failures(path, f"remove {words.name}"):
        fs.unlink(path)


def _missing(token: str, words: Words, hint: str) -> NotFound:
    return NotFound(f"{words.name} {token[:120]!r} is not there", hint=hint)
