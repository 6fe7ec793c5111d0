"""The formats that Sessile itself brings, in the order in which they are tried; `known_formats` adds what is installed.

The formats of other agents that can be read: ours, then those of packages that are installed.

A package brings a format of its own by an entry point of the group `sessile.agents`, which names a class of `Format`:

    [project.entry-points."sessile.agents"]
    barn = "barn_sessions:Barn"

Rules: ours are tried first, and installed ones are looked for only when none of ours knows a file, because looking takes as long
as a small listing. A format that cannot be loaded, or has the name of another, is left out and told in the log.

It is here, not in `formats`, because what is installed is on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from sessile.agents.base import Format
from sessile.agents.claude.translation import Claude
from sessile.agents.codex.rollout import Codex
from sessile.agents.myagents.translation import MyAgents
from sessile.storage import log
from sessile.storage.base import NATIVE

# --- registry

FORMATS: Sequence[Format] = (Claude(), Codex(), MyAgents())


# --- known formats

GROUP = "sessile.agents"


def recognised(first: bytes) -> Format | None:
    """The format of a file that begins so."""
    ours = next((known for known in FORMATS if known.recognises(first)), None)
    return ours or next((known for known in installed() if known.recognises(first)), None)


def format_named(name: str) -> Format | None:
    """The format with that name."""
    ours = next((known for known in FORMATS if known.name == name), None)
    return ours or next((known for known in installed() if known.name == name), None)


@cache
def installed() -> Sequence[Format]:
    """The formats that packages have brought."""
    from importlib.metadata import entry_points

    found: dict[str, Format] = {}
    taken = {NATIVE, *(known.name for known in FORMATS)}
    for point in entry_points(group=GROUP):
        try:
            made: Format = point.load()()
        except (ImportError, AttributeError, TypeError) as error:
            log.warning("the format %s (%s) cannot be loaded: %s", point.name, point.value, error)
            continue
        if made.name in taken or made.name in found:
            log.warning("the format %s (%s) has the name of another: %s", point.name, point.value, made.name)
            continue
        found[made.name] = made
    return tuple(found.values())
