"""What each format can take where its sessions lie: one row a format, and how it is told that there is no more.

    append    say something behind the leaf            branch   … or behind an earlier entry
    label     name an entry                            compact  sum up what was said
    title     name the session                         tag      put it into a drawer
    archive   say that it is done with                 delete   move it to our trash

Rules: what is not in a row is never written into such a file in another way; the way out is always the same, a fork, which is
a session of ours and takes everything. It does not know who writes: see `stores`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from sessile.errors import Unsupported

Capability = Literal["append", "branch", "label", "compact", "title", "tag", "archive", "delete"]

_ORDER: tuple[Capability, ...] = get_args(Capability)

CAPABILITIES: Mapping[str, frozenset[Capability]] = {
    "native": frozenset({"append", "branch", "label", "compact", "title", "tag", "delete"}),
    "claude": frozenset({"append", "branch", "compact", "title", "tag", "archive", "delete"}),
    "codex": frozenset(),
    "myagents": frozenset({"append", "title", "delete"}),
    # Its transcripts are of the family, but its sessions.json names them: one that goes leaves a key without a session.
    "yoyoclaw": frozenset({"append", "branch", "label", "compact", "title", "tag"}),
}

# Agents whose format has another name; the family, and folders that somebody has added, hold the native one.
_FORMATS: Mapping[str, str] = {"claude": "claude", "codex": "codex", "myagents": "myagents", "openclaw": "yoyoclaw"}

_IN_THE_COPY: Mapping[str, str] = {"label": "label the copy", "title": "name the copy", "tag": "tag the copy"}


def capabilities_of(name: str) -> tuple[Capability, ...]:
    """What a format can take, in the order of the table; nothing if it is not known."""
    able = CAPABILITIES.get(name, frozenset())
    return tuple(capability for capability in _ORDER if capability in able)


def format_of_agent(agent: str) -> str:
    """The format that an agent keeps its sessions in."""
    return _FORMATS.get(agent, "native")


def possible(name: str) -> str:
    """What a format can take, for a person."""
    able = capabilities_of(name)
    return f"{name} can take in place: {', '.join(able)}" if able else f"nothing can be written into a file of {name}"


def unsupported(name: str, what: str, path: str, capability: str | None = None) -> Unsupported:
    """The error for what has no counterpart in a format; `what` says what there is none of."""
    doing = _IN_THE_COPY.get(capability or "", "go on in the copy")
    return Unsupported(
        f"{name} has no {what}", path=path, hint=f"fork it (sessile fork), and {doing}; {possible(name)}"
    )
