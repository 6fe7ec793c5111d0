"""Make stored text safe for a terminal or a notebook.

Control characters (with them escape sequences), bidirectional controls, invisible characters and lone surrogates are shown
visibly: `\\x1b`, `⟨U+202E⟩`. In a text newlines stay and tabs become spaces; in a line both become one space. Colours that a tool
printed are not kept, because a sequence that looks harmless may not be.

HTML tables for notebooks (`_repr_html_`) have no scripts, links, images or styles, and every text in them is made visible, cut
and escaped.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

# Joiners and variation selectors belong to scripts and emoji. Longer runs of them, and those after an ASCII letter, can only hide
# something.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
    "|[\u200c\u200d\ufe00-\ufe0f]{3,}|(?<=[A-Za-z])[\u200c\u200d\ufe00-\ufe0f]+"
)
_BLANKS = re.compile(r"\s+")
# An unterminated title or link is not a sequence: it would swallow the text after it.
ANSI = "\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b\n]*(?:\x07|\x1b\\\\)|[@-Z\\\\^_])"
_ANSI = re.compile(ANSI)

_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_LONGEST_CELL = 200  # characters
_MOST_ROWS = 50


def visible(text: str) -> str:
    """Return the text with unsafe and invisible characters shown visibly."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_named, text.replace("\r\n", "\n").expandtabs(4))


def visible_line(text: str) -> str:
    """Return the same on one line, with single spaces and trimmed ends."""
    if text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()
    return _UNSAFE.sub(_named, _BLANKS.sub(" ", text)).strip()


def without_colours(text: str) -> str:
    """Return the output of a tool without its escape sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def _named(match: re.Match[str]) -> str:
    return "".join(f"\\x{code:02x}" if code < 0x100 else f"⟨U+{code:04X}⟩" for code in map(ord, match.group()))


def width(text: str) -> int:
    """Return how many terminal columns a visible line needs."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, columns: int) -> str:
    """Shorten a visible line to a number of columns, ending in … if it was cut."""
    if columns < 1:
        return ""
    if width(text) <= columns:
        return text
    return text[: fitting(text, 0, columns - 1)].rstrip() + "…"


def fitting(text: str, start: int, columns: int) -> int:
    """Return the end of the part of a visible line that starts at `start` and fits into a number of columns."""
    if text.isascii():
        return min(start + columns, len(text))
    used = 0
    for place in range(start, len(text)):
        used += _columns(text[place])
        if used > columns:
            return place
    return len(text)


def visible_json(encoded: str) -> str:
    """Return an equivalent JSON text with unsafe characters escaped."""
    return _UNSAFE.sub(_escape, encoded)


def _escape(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


# -- notebooks


def html_fields(caption: str, values: Mapping[str, object]) -> str:
    """Return an HTML table with one row for each value; those that are `None` are left out."""
    shown = ((label, value) for label, value in values.items() if value is not None)
    rows = "".join(f"<tr><th>{_cell(label)}</th><td>{_cell(value)}</td></tr>" for label, value in shown)
    return f"<table><caption>{_cell(caption)}</caption><tbody>{rows}</tbody></table>"


def html_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table with the first rows; `None` is an empty cell."""
    head = "".join(f"<th>{_cell(column)}</th>" for column in columns)
    cells = ("".join(f"<td>{_cell(value)}</td>" for value in row) for row in islice(rows, _MOST_ROWS))
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><caption>{_cell(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    cut_text = text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…"
    return visible_line(cut_text).translate(_HTML)
