"""A transcript as a Markdown document: for notes, pull requests and whoever has no browser at hand.

    ---                     what it is, as YAML
    # title
    ## 1. a prompt          one heading for each, everything until the next belongs to it
    ### assistant · …       who else spoke
    <details> … </details>  tools, thinking and details

Rules: stored text stays in its place, see `prose`. Nothing is left out in silence: what the depth does not show is counted,
damage is told where it is. Pictures are files of their own, which `keep` receives; without it they are words.

Stored text inside a Markdown document: it can be formatted, but not leave its place.

Rules:

- HTML in it is text. Inside code that surely is code it stays as it is.
- Its headings are smaller than those of the document.
- Text in which a block of code is left open, or may be, is quoted: whatever begins in a quote ends with it.
- A fence is longer than every row of backticks in what it holds.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from itertools import chain
from typing import NamedTuple

from sessile.core.large import parse_blob_ref
from sessile.core.visible import cut, visible, visible_line, without_colours
from sessile.render.shown import (
    Call,
    Depth,
    Diff,
    Image,
    Output,
    Part,
    Shown,
    Text,
    Thinking,
    Transcript,
    as_json,
    show_all,
)
from sessile.render.terminal import Damage, Story, count_hidden, hidden_words, is_shown
from sessile.render.wording import image_word, moment, short_id, who

# --- prose

_TICKS = re.compile("`+")
_FENCE = re.compile(r"([ >\-+*0-9.)]*)(`{3,}(?=[^`]*$)|~{3,})")
_PROSE_HEADING = re.compile(r"( {0,3})(#{1,6})(?=[ \t]|$)")
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
            tame.append(_PROSE_HEADING.sub(_lowered, _without_html(line) if paired else _as_text(line)))
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


# --- markdown

Keep = Callable[[str, bytes], str]
"""Receives the name and the bytes of a picture, each picture once; gives the address to name it by."""

_HEADING = 80  # columns of a prompt that its heading repeats
_NO_TITLE = "(no title)"
_EXTENSIONS = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}


def markdown(transcript: Transcript, keep: Keep | None = None) -> Iterator[str]:
    """The document, piece by piece. The pictures that it names are given to `keep`."""
    return (f"{line}\n" for line in chain(_front(transcript), _Document(transcript, keep).lines()))


def _front(transcript: Transcript) -> Iterator[str]:
    facts = {
        "title": transcript.title or _NO_TITLE,
        "id": transcript.id,
        "project": transcript.cwd,
        "created": moment(transcript.created) or "unknown",
    }
    yield "---"
    yield from (f"{name}: {quoted_scalar(value)}" for name, value in facts.items())
    yield f"entries: {transcript.entry_count}"
    yield f"depth: {transcript.depth}"
    yield f"notes:{'' if transcript.notes else ' []'}"
    yield from (f"  - {quoted_scalar(note)}" for note in transcript.notes)
    yield "---"
    yield ""
    yield f"# {inline(transcript.title or '') or inline(_NO_TITLE)}"
    yield ""


class _Document:
    """Writes entries one after the other."""

    def __init__(self, transcript: Transcript, keep: Keep | None) -> None:
        self._entries = transcript.entries
        self._depth: Depth = transcript.depth
        self._labels: Mapping[str, str] = transcript.labels
        self._damage = Damage(transcript.gaps)
        self._keep = keep
        self._kept: dict[str, str] = {}
        self._prompts = 0

    def lines(self) -> Iterator[str]:
        """All entries, what is damaged between them, and what was left out."""
        hidden: Counter[str] = Counter()
        story = Story()
        yield from _damaged(self._damage.behind(None))
        for shown in show_all(self._entries):
            count_hidden(hidden, shown, self._depth)
            back = story.goes_back(shown)
            if back is not None:
                yield from (f"*goes on from {inline(short_id(back))}*", "")
            if is_shown(shown, self._depth):
                yield from self._entry(shown)
            yield from _damaged(self._damage.behind(shown.id))
        yield from _damaged(self._damage.rest())
        if hidden:
            yield from (f"*{hidden_words(hidden, self._depth)}*", "")

    def _entry(self, shown: Shown) -> Iterator[str]:
        yield from (self._heading(shown), "")
        for part in shown.at_depth(self._depth):
            yield from self._part(part, shown)

    def _heading(self, shown: Shown) -> str:
        label = self._labels.get(shown.id or "")
        facts = [
            "**failed**" if shown.failed else "",
            inline(shown.model or ""),
            inline(moment(shown.at)),
            inline(short_id(shown.id)),
            inline(f"[{label}]") if label else "",
        ]
        told = " · ".join(filter(None, (inline(who(shown)), *facts)))
        if shown.who != "user":
            return f"### {told}"
        self._prompts += 1
        return f"## {self._prompts}. {inline(cut(visible_line(shown.headline), _HEADING))}\n\n{told}"

    def _part(self, part: Part, shown: Shown) -> Iterator[str]:
        if isinstance(part, Text):
            if part.text.strip():
                yield from (*prose(part.text), "")
        elif isinstance(part, Thinking):
            yield from _details("thinking (sealed by the provider)" if part.hidden else "thinking", prose(part.text))
        elif isinstance(part, Call):
            yield from _details(f"{part.name} {part.summary}", fenced(_written(part.arguments)))
        elif isinstance(part, Output):
            word = "failed" if part.failed else "output"
            yield from _details(f"{word}: {shown.headline}", fenced(without_colours(part.text), "text"))
        elif isinstance(part, Diff):
            yield from _details(f"changed {part.path}", fenced(part.text, "diff"))
        elif isinstance(part, Image):
            yield from (self._image(part), "")
        else:
            yield from _details(part.name, fenced(_written(part.value), "json"))

    def _image(self, image: Image) -> str:
        """A picture as a link to its file, or in words."""
        word = inline(image_word(image))
        data = None if self._keep is None else _bytes(image.data)
        if self._keep is None or data is None:
            return word
        name = f"image-{hashlib.sha256(data).hexdigest()[:12]}.{_EXTENSIONS.get(image.mime, 'bin')}"
        if name not in self._kept:
            self._kept[name] = self._keep(name, data)
        return f"![{word}]({self._kept[name]})"


def _bytes(data: str) -> bytes | None:
    """The bytes of a picture, or `None` if they are in a blob that is not here, or are damaged."""
    if not data or parse_blob_ref(data):
        return None
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


def _written(value: object) -> str:
    """Arguments as a person reads them: texts as they are, line by line."""
    if not isinstance(value, dict):
        return value if isinstance(value, str) else as_json(value)
    return "\n".join(f"{name}: {text if isinstance(text, str) else as_json(text)}" for name, text in value.items())


def _details(summary: str, lines: Iterable[str]) -> Iterator[str]:
    """A part that is folded; the empty lines make what is inside Markdown again."""
    yield f"<details><summary>{in_tag(summary) or 'details'}</summary>"
    yield ""
    yield from lines
    yield from ("", "</details>", "")


def _damaged(messages: Iterable[str]) -> Iterator[str]:
    for message in messages:
        yield from (f"**unreadable here:** {inline(visible_line(message))}", "")
