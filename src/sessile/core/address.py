"""Addresses: how users name a session, one of its entries, or one of its branches.

    <session>               an id or a prefix of one, @last, @last-1, @here, words of the title, a path
    <session>/agent-<id>    a sub-agent, by a prefix of its name
    <session>#<entry>       an entry, by a prefix of its id
    <session>@<branch>      the branch that ends at an entry or a label

The part after the last `#` is the entry. The part after the last `@`, unless that is the first character, is the branch.
Parsing does not check whether any of them exists.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sessile.errors import InvalidQuery

AGENT = "agent-"
_FILES = (".jsonl", ".draft")  # how the names of session files end
SHORTEST_PREFIX = 4  # characters of an id; a shorter prefix matches too many sessions
_RELATIVE = re.compile(r"@(last|here)(?:-(\d{1,6}))?")


class Address(NamedTuple):
    """The parts of an address, unresolved."""

    session: str
    entry: str | None = None
    branch: str | None = None


def parse_address(text: str) -> Address:
    """Split an address into its parts."""
    rest, hash_, entry = text.rpartition("#")
    if not hash_:
        rest, entry = text, ""
    at = rest.rfind("@", 1)
    # An @ inside a path component is part of its name; a trailing one has no meaning.
    branch = rest[at + 1 :] if at > 0 and "/" not in rest[at:] else ""
    session = rest[:at] if branch else rest
    if not session.strip():
        hint = "use an id, @last, @here, words of the title, or a path"
        raise InvalidQuery(f"no session in the address {text[:80]!r}", hint=hint)
    return Address(session, entry or None, branch or None)


def relative(session: str) -> tuple[str, int] | None:
    """Return ("last", 2) for `@last-2`, ("here", 0) for `@here`, and `None` for anything else."""
    match = _RELATIVE.fullmatch(session)
    return None if match is None else (match.group(1), int(match.group(2) or 0))


def sub_agent(session: str) -> tuple[str, str] | None:
    """Return the session and the prefix of its sub-agent, ("webhook", "agent-a1") for `webhook/agent-a1`, else `None`."""
    owner, slash, name = session.rpartition("/")
    is_sub_agent = bool(slash) and owner.strip() != "" and name.startswith(AGENT) and not name.endswith(_FILES)
    return (owner, name) if is_sub_agent else None


def is_path(session: str) -> bool:
    """Return whether the text is a path rather than the name of a session."""
    return "/" in session or session.endswith(_FILES)
