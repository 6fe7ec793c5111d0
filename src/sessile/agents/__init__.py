"""Other agents: where their sessions are, and how they are read, written and resumed.

The names exported here are what a package needs to add an agent; see docs/howto/write-a-format.md.
"""

from sessile.agents.base import (
    NOTHING_TOLD,
    Chain,
    Entry,
    Format,
    Glimpse,
    Known,
    Look,
    Told,
    Translator,
    placed,
    row_of,
)
from sessile.core.kinds import LEAF_MARKER, MARKER
from sessile.core.lines import Head, Line, MessageHead, Scanner

__all__ = [
    "Chain",
    "Entry",
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
    "Told",
    "Translator",
    "placed",
    "row_of",
]
