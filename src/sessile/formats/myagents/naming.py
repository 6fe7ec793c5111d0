"""What MyAgents' index says of its sessions, for lists that show the sessions of every agent: title, folder, Claude Code's id.

It never fails: of a damaged index it tells what can be salvaged, of anything else nothing. What is not said is `None`. Texts
come without lone surrogates, so that they can be stored and shown anywhere.
"""

from __future__ import annotations

from typing import NamedTuple

from sessile.core.text import without_surrogates
from sessile.formats.myagents.index_text import parse


class Described(NamedTuple):
    """What the index says of one session; `sdk_session_id` is the name of its transcript in Claude Code."""

    title: str | None
    cwd: str | None
    sdk_session_id: str | None


def described(index_bytes: bytes) -> dict[str, Described]:
    """The sessions in the bytes of an index, by their ids; of two rows for one id the last counts."""
    found = {}
    for row in parse(index_bytes).rows:
        metadata = row.metadata
        if metadata is not None:
            told = (metadata.title, metadata.agent_dir, metadata.sdk_session_id)
            found[metadata.id] = Described(*(_shown(text) for text in told))
    return found


def _shown(text: str | None) -> str | None:
    """A text that says something, or `None`."""
    return without_surrogates(text) if text and not text.isspace() else None
