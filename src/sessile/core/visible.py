"""Stored text made safe for a terminal: what would drive it is shown instead.

Escape sequences, other control characters, characters that turn the direction of writing, invisible ones that hide text, and
lone surrogates become visible: `\\x1b`, `⟨U+202E⟩`. Newlines stay in a text and tabs become spaces; in a line both become
one space. Colours that a tool printed are not kept: a sequence that looks harmless need not be.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
_BLANKS = re.compile(r"\s+")
# A title or link that never ends is no sequence: it would take the text behind it along.
_ANSI = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b\n]*(?:\x07|\x1b\\\\)|[@-Z\\\\^_])")


def visible(text: str) -> str:
    """The text with everything visible that would not be, or would do something."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_named, text.replace("\r\n", "\n").expandtabs(4))


def visible_line(text: str) -> str:
    """The same on one line, with single spaces and none at the ends."""
    if text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()
    return _UNSAFE.sub(_named, _BLANKS.sub(" ", text)).strip()


def without_colours(text: str) -> str:
    """What a tool printed for a terminal, without its escape sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def uncoloured(text: str) -> tuple[str, Callable[[int], int]]:
    """A text without its escape sequences, and where a character of that stands in the text as it is."""
    pieces: list[str] = []
    starts, shifts = [0], [0]  # from which character on how much was left out
    length = end = 0
    for match in _ANSI.finditer(text):
        pieces.append(text[end : match.start()])
        length += match.start() - end
        end = match.end()
        starts.append(length)
        shifts.append(end - length)
    pieces.append(text[end:])
    return "".join(pieces), lambda place: place + shifts[bisect_right(starts, place) - 1]


def _named(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"⟨U+{code:04X}⟩"


def width(text: str) -> int:
    """How many columns a terminal needs for a visible line."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, columns: int) -> str:
    """A visible line in so many columns, with … where it goes on."""
    if columns < 1:
        return ""
    if width(text) <= columns:
        return text
    return text[: fitting(text, 0, columns - 1)].rstrip() + "…"


def fitting(text: str, start: int, columns: int) -> int:
    """Where a visible line that begins at `start` must end to need no more than so many columns."""
    if text.isascii():
        return min(start + columns, len(text))
    taken = 0
    for place in range(start, len(text)):
        taken += _columns(text[place])
        if taken > columns:
            return place
    return len(text)


def visible_json(encoded: str) -> str:
    """A JSON text in which what could drive a terminal is escaped; it says the same."""
    return _UNSAFE.sub(_escape, encoded)


def _escape(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
