"""What a tool printed for a terminal, line by line as HTML: colours become classes, all else is shown.

Rules: only "select graphic rendition" sequences mean something (`\\x1b[1;31m`), and of those the sixteen colours and six
attributes that have a class (`f1`, `b4`, `bold`). Erasing to the end of a line is left out, since nothing follows there that
could be erased. Every other sequence is made visible, never obeyed. Each line stands for itself: spans do not cross it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape as escaped
from itertools import islice

from sessile.core.visible import visible, without_colours

MOST_SEQUENCES = 4_000  # each becomes an element; beyond, a picture in colours is not what people look for

_SEQUENCE = re.compile("\x1b\\[([0-9;]*)m|\x1b\\[0?K")
_NONE = 256  # the number of no colour
_ATTRIBUTES = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "struck"}
_ENDS = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("inverse",), 29: ("struck",)}


class Style:
    """The colours and attributes in force."""

    def __init__(self) -> None:
        self.front = self.back = ""
        self.attributes: dict[str, None] = {}

    def clear(self) -> None:
        """Back to how a terminal begins."""
        self.front = self.back = ""
        self.attributes.clear()

    def __str__(self) -> str:
        return " ".join(filter(None, (self.front, self.back, *self.attributes)))

    def apply(self, codes: list[int]) -> None:
        """Change by the numbers of one sequence."""
        rest = iter(codes)
        for code in rest:
            if code == 0:
                self.clear()
            elif code in _ATTRIBUTES:
                self.attributes[_ATTRIBUTES[code]] = None
            elif code in _ENDS:
                for name in _ENDS[code]:
                    self.attributes.pop(name, None)
            elif code in (38, 48):
                self._extended("f" if code == 38 else "b", rest)
            elif 30 <= code <= 39 or 90 <= code <= 97:
                self.front = _colour("f", code - 30)
            elif 40 <= code <= 49 or 100 <= code <= 107:
                self.back = _colour("b", code - 40)

    def _extended(self, letter: str, rest: Iterator[int]) -> None:
        """`5;n` is one of 256 colours, `2;r;g;b` any; those beyond the sixteen have no class."""
        kind = next(rest, None)
        numbers = list(islice(rest, {5: 1, 2: 3}.get(kind or 0, 0)))
        colour = numbers[0] if kind == 5 and numbers else _NONE
        name = f"{letter}{colour}" if colour < 16 else ""
        if letter == "f":
            self.front = name
        else:
            self.back = name


def _colour(letter: str, number: int) -> str:
    if number >= 60:
        return f"{letter}{number - 60 + 8}"
    return f"{letter}{number}" if number < 8 else ""


def coloured_lines(text: str) -> list[str]:
    """The lines of an output, each as HTML."""
    if "\x1b" not in text:
        return escaped(visible(text)).split("\n")
    if text.count("\x1b[") > MOST_SEQUENCES:
        return escaped(visible(without_colours(text))).split("\n")
    style = Style()
    return [_line(line, style) for line in text.replace("\r\n", "\n").split("\n")]


def _line(line: str, style: Style) -> str:
    pieces = []
    at = 0
    for match in _SEQUENCE.finditer(line):
        pieces.append(_span(line[at : match.start()], style))
        if match.group(1) is not None:
            style.apply([int(code[:4] or 0) for code in match.group(1).split(";")])
        at = match.end()
    pieces.append(_span(line[at:], style))
    return "".join(pieces)


def _span(text: str, style: Style) -> str:
    if not text:
        return ""
    classes = str(style)
    return f'<span class="{classes}">{escaped(visible(text))}</span>' if classes else escaped(visible(text))
