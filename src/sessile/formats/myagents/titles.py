"""What MyAgents calls a session: the name it begins with, and the one it takes from its first message.

A name that a person chose is never replaced: only the default one is.
"""

from __future__ import annotations

from sessile.core.text import utf16_cut, utf16_length
from sessile.formats.myagents.types import Metadata

DEFAULT = "New Chat"
PICTURE = "图片消息"  # a first message without words

SHORT = 20  # units of a title that is made for a session
LONG = 40  # units of a title that is taken from the first message

# What JavaScript's `trim` takes away, which is not what Python's `strip` does.
_SPACE = "\t\n\v\f\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))


def title_of(text: str, limit: int = LONG) -> str:
    """The title that a first message gives a session."""
    trimmed = text.strip(_SPACE)
    if not trimmed:
        return PICTURE
    return trimmed if utf16_length(trimmed) <= limit else utf16_cut(trimmed, limit) + "..."


def may_be_titled(row: Metadata) -> bool:
    """Whether nobody has named the session yet."""
    return row.title == DEFAULT and row.title_source in (None, "default")
