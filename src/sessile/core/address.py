"""How people name a session, an entry of it, or a branch of it.

    <session>               an id or the beginning of one, @last, @last-1, @here, words of the title, a path
    <session>/agent-<id>    a sub-agent of it, by the beginning of its name
    <session>#<entry>       an entry, by the beginning of its id
    <session>@<branch>      the branch that ends at an entry, or at a label

What is behind the last `#` is an entry, what is behind the last `@` that is not the first character a branch. Whether any of
them exists is not known here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sessile.errors import InvalidQuery

AGENT = "agent-"
SHORTEST_PREFIX = 4  # characters of an id; fewer mean too many sessions
_RELATIVE = re.compile(r"@(last|here)(?:-(\d{1,6}))?")


class Address(NamedTuple):
    """The parts of an address, as they were written."""

    session: str
    entry: str | None = None
    branch: str | None = None


def parse_address(text: str) -> Address:
    """The parts of an address."""
    rest, hash_, entry = text.rpartition("#")
    if not hash_:
        rest, entry = text, ""
    at = rest.rfind("@", 1)
    # An @ within a word of a path belongs to its name; one that nothing follows means nothing.
    branch = rest[at + 1 :] if at > 0 and "/" not in rest[at:] else ""
    session = rest[:at] if branch else rest
    if not session.strip():
        raise InvalidQuery(f"{text[:80]!r} names no session", hint="an id, @last, @here, words of the title, or a path")
    return Address(session, entry or None, branch or None)


def relative(session: str) -> tuple[str, int] | None:
    """`@last-2` as ("last", 2), `@here` as ("here", 0); `None` for anything else."""
    match = _RELATIVE.fullmatch(session)
    return None if match is None else (match.group(1), int(match.group(2) or 0))


def sub_agent(session: str) -> tuple[str, str] | None:
    """`webhook/agent-a1` as ("webhook", "agent-a1"): a session, and the beginning of its sub-agent; `None` for anything else."""
    owner, slash, name = session.rpartition("/")
    is_one = bool(slash) and owner.strip() != "" and name.startswith(AGENT) and not name.endswith(".jsonl")
    return (owner, name) if is_one else None


def is_path(session: str) -> bool:
    """Whether that is the name of a file rather than of a session."""
    return "/" in session or session.endswith(".jsonl")
