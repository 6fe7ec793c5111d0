"""Other agents' formats: pure translators between their rows and ours.

What is named here is what a package needs to bring a format of its own; docs/howto/write-a-format.md makes one.
"""

from sessile.core.kinds import LEAF_MARKER, MARKER
from sessile.core.lines import Head, Line, MessageHead, Scanner
from sessile.formats.base import NOTHING_TOLD, Entry, Format, Glimpse, Known, Look, Told, Translator
from sessile.formats.chained import Chain, placed, row_of

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
