"""Other agents: where their sessions are, and how they are read, written and resumed.

The names here are what a package needs to add an agent; docs/howto/write-an-agent.md adds one.
"""

from sessile.agents.base import (
    NOTHING_TOLD,
    Agent,
    Chain,
    Entry,
    Expiry,
    Format,
    Glimpse,
    Known,
    Look,
    Translator,
    placed,
    row_of,
)
from sessile.core.kinds import LEAF_MARKER, MARKER
from sessile.core.lines import Finding, Head, Line, MessageHead, Scanner
from sessile.storage.atomic import read_all
from sessile.storage.formats import Stored, Told
from sessile.storage.layout import Source
from sessile.storage.walk import mark_of

__all__ = [
    "Agent",
    "Chain",
    "Entry",
    "Expiry",
    "Finding",
    "Format",
    "Glimpse",
    "Head",
    "Known",
    "LEAF_MARKER",
    "Line",
    "Look",
    "MARKER",
    "MessageHead",
    "NOTHING_TOLD",
    "Scanner",
    "Source",
    "Stored",
    "Told",
    "Translator",
    "mark_of",
    "placed",
    "read_all",
    "row_of",
]
