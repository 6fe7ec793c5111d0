"""Stored text inside a Markdown document: it can be formatted, but not leave its place.

Rules:

- HTML in it is text. Inside code that surely is code it stays as it is.
- Its headings are smaller than those of the document.
- Text in which a block of code is left open, or may be, is quoted: whatever begins in a quote ends with it.
- A fence is longer than every row of backticks in what it holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import NamedTuple

from sessile.core.visible import visible, visible_line

_TICKS = re.compile("`+")
_FENCE = re.compile(r"([ >\-+*0-9.)]*)(`{3,}(?=[^`]*$)|~{3,})")
_HEADING = re.compile(r"( {0,3})(#{1,6})(?=[ \t]|$)")
_UNDERLINE = re.compile(r"[ >]*(?:=+|-+) *$")
_HTML = re.compile(r"<(?=[A-Za-z/!?])")
_SPECIAL = re.compile(r"([\\`*_\[\]<>&~|#$])")
_LOWER = 3  # levels that belong to the document


def inline(text: str) -> str:
    """A text as part of a line that means only itself."""
    return _SPECIAL.sub(r"\\\1", visible_line(text))


def in_tag(text: str) -> str:
    """A text as part of an HTML element on one line."""
    return escape(visible_line(text))


def quoted_scalar(text: str) -> str:
    """A text as a value of YAML."""
    return '"' + visible_line(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def fenced(text: str, language: str = "") -> Iterator[str]:
    """A text as a block of code."""
    text = visible(text).rstrip("\n")
    fence = "`" * max(3, 1 + max(map(len, _TICKS.findall(text)), default=0))
    yield f"{fence}{language}"
    yield from text.split("\n")
    yield fence


def prose(text: str) -> Iterator[str]:
    """What somebody said, as Markdown of its own that ends where it ends."""
    lines = visible(text).strip("\n").split("\n")
    tame = _tamed(lines)
    if tame is not None:
        yield from tame
    else:
        yield from (f"> {_as_text(line)}" for line in lines)


class _Fence(NamedTuple):
    """An open block of code: the spaces before its fence, and the fence."""

    lead: str
    ticks: str

    def is_closed_by(self, line: str) -> bool:
        ticks = line.strip(" ")
        return len(ticks) >= len(self.ticks) and set(ticks) == {self.ticks[0]} and self._closes_at(line)

    def _closes_at(self, line: str) -> bool:
        indent = len(line) - len(line.lstrip(" "))
        return indent == len(self.lead) if self.lead else indent <= 3

    def holds(self, line: str) -> bool:
        """Whether a line is inside, for certain. A fence in a list ends with the list, at a line that is indented less."""
        return not self.lead or not line.strip(" ") or (line.startswith(self.lead) and not _FENCE.match(line))


def _tamed(lines: list[str]) -> list[str] | None:
    """The lines made safe one by one, or `None` where it is not plain to see what is code and what is not."""
    tame: list[str] = []
    fence: _Fence | None = None
    paired = True  # whether code within a line can be told from the line alone, since the last empty one
    for line in lines:
        if fence is not None:
            if fence.is_closed_by(line):
                fence = None
                tame.append(line)
            elif fence.holds(line):
                tame.append(_as_text(line) if fence.lead else line)
            else:
                return None
        elif match := _FENCE.match(line):
            if match[1].strip(" ") or "|" in line:  # in a list or quote, or the head of a table: parsers differ
                return None
            fence = _Fence(match[1], match[2])
            tame.append(_as_text(line))
        else:
            if _UNDERLINE.fullmatch(line) and tame and tame[-1].strip():
                tame.append("")  # or the line before it would be a heading
            paired = not line.strip() or (paired and _is_paired(line))
            tame.append(_HEADING.sub(_lowered, _without_html(line) if paired else _as_text(line)))
    if fence is not None and fence.lead:
        return None
    return tame if fence is None else [*tame, fence.ticks]


def _as_text(line: str) -> str:
    return _HTML.sub("&lt;", line)


def _lowered(match: re.Match[str]) -> str:
    return match[1] + "#" * min(6, len(match[2]) + _LOWER)


def _is_paired(line: str) -> bool:
    """Whether all code in a line ends in it: no backtick is left over, none is escaped, no table cell can part them."""
    if "\\`" in line or "|" in line:
        return "`" not in line
    return len(_pieces(line)) % 2 == 1


def _without_html(line: str) -> str:
    pieces = _pieces(line)
    return "".join(piece if place % 2 else _as_text(piece) for place, piece in enumerate(pieces))


def _pieces(line: str) -> list[str]:
    """A line as text, code, text, … ; of an even length if some code does not end."""
    pieces: list[str] = []
    start = 0
    while opening := _TICKS.search(line, start):
        closing = next((m for m in _TICKS.finditer(line, opening.end()) if len(m[0]) == len(opening[0])), None)
        if closing is None:
            return [*pieces, line[start:], ""]
        pieces += [line[start : opening.start()], line[opening.start() : closing.end()]]
        start = closing.end()
    return [*pieces, line[start:]]
