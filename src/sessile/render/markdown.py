"""A transcript as a Markdown document, for notes and pull requests.

    ---                     facts about the session, as YAML
    # title
    ## 1. a prompt          one heading for each prompt; everything up to the next one belongs to it
    ### assistant · …       other entries
    <details> … </details>  tools, thinking and details

Rules:

- Nothing is left out silently: what the depth hides is counted, damage is shown where it is.
- Images are separate files, given to `keep`; without it they are written as words.
- Stored text can be formatted but cannot affect the document around it (`prose`): HTML in it is text, except inside code; its
  headings are smaller than those of the document; a text with a code block that is or may be unclosed is quoted, so that it ends
  with the quote; a fence is longer than every row of backticks inside it.
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

from sessile.core.digest import NO_TITLE
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
from sessile.render.terminal import Continuations, Damage, count_hidden, hidden_words, is_shown
from sessile.render.wording import image_word, moment, short_id, who

Keep = Callable[[str, bytes], str]
"""Store the bytes of an image under a name, and return the address to link to. Called once for each image."""

_MAX_HEADING = 80  # columns of a prompt that are repeated in its heading
_EXTENSIONS = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}


def markdown(transcript: Transcript, keep: Keep | None = None) -> Iterator[str]:
    """Yield the document in pieces. Its images are given to `keep`."""
    return (f"{line}\n" for line in chain(_front(transcript), _Document(transcript, keep).lines()))


def _front(transcript: Transcript) -> Iterator[str]:
    facts = {
        "title": transcript.title or NO_TITLE,
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
    yield f"# {inline(transcript.title or '') or inline(NO_TITLE)}"
    yield ""


class _Document:
    """Writes the entries of a transcript."""

    def __init__(self, transcript: Transcript, keep: Keep | None) -> None:
        self._entries = transcript.entries
        self._depth: Depth = transcript.depth
        self._labels: Mapping[str, str] = transcript.labels
        self._damage = Damage(transcript.gaps)
        self._keep = keep
        self._addresses: dict[str, str] = {}
        self._prompts = 0

    def lines(self) -> Iterator[str]:
        """Yield all entries, the damage between them, and what was left out."""
        hidden: Counter[str] = Counter()
        continuations = Continuations()
        yield from _damaged(self._damage.after(None))
        for shown in show_all(self._entries):
            count_hidden(hidden, shown, self._depth)
            back = continuations.earlier_parent(shown)
            if back is not None:
                yield from (f"*continues from {inline(short_id(back))}*", "")
            if is_shown(shown, self._depth):
                yield from self._entry(shown)
            yield from _damaged(self._damage.after(shown.id))
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
        about = " · ".join(filter(None, (inline(who(shown)), *facts)))
        if shown.who != "user":
            return f"### {about}"
        self._prompts += 1
        return f"## {self._prompts}. {inline(cut(visible_line(shown.headline), _MAX_HEADING))}\n\n{about}"

    def _part(self, part: Part, shown: Shown) -> Iterator[str]:
        if isinstance(part, Text):
            if part.text.strip():
                yield from (*prose(part.text), "")
        elif isinstance(part, Thinking):
            yield from _details("thinking (encrypted by the provider)" if part.hidden else "thinking", prose(part.text))
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
        """Return an image as a link to its file, or in words."""
        word = inline(image_word(image))
        data = None if self._keep is None else _bytes(image.data)
        if self._keep is None or data is None:
            return word
        name = f"image-{hashlib.sha256(data).hexdigest()[:12]}.{_EXTENSIONS.get(image.mime, 'bin')}"
        if name not in self._addresses:
            self._addresses[name] = self._keep(name, data)
        return f"![{word}]({self._addresses[name]})"


def _bytes(data: str) -> bytes | None:
    """Return the bytes of an image; `None` if they are in a blob or damaged."""
    if not data or parse_blob_ref(data):
        return None
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


def _written(value: object) -> str:
    """Return arguments one per line, strings as they are."""
    if not isinstance(value, dict):
        return value if isinstance(value, str) else as_json(value)
    return "\n".join(f"{name}: {text if isinstance(text, str) else as_json(text)}" for name, text in value.items())


def _details(summary: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield a folded part. The empty lines make its content Markdown again."""
    yield f"<details><summary>{in_tag(summary) or 'details'}</summary>"
    yield ""
    yield from lines
    yield from ("", "</details>", "")


def _damaged(messages: Iterable[str]) -> Iterator[str]:
    for message in messages:
        yield from (f"**unreadable here:** {inline(visible_line(message))}", "")


# -- stored text inside the document

_TICKS = re.compile("`+")
_FENCE = re.compile(r"([ >\-+*0-9.)]*)(`{3,}(?=[^`]*$)|~{3,})")
_HEADING = re.compile(r"( {0,3})(#{1,6})(?=[ \t]|$)")
_UNDERLINE = re.compile(r"[ >]*(?:=+|-+) *$")
_HTML = re.compile(r"<(?=[A-Za-z/!?])")
_SPECIAL = re.compile(r"([\\`*_\[\]<>&~|#$])")
_HEADING_OFFSET = 3  # levels that belong to the document


def inline(text: str) -> str:
    """Escape a text for use within a line."""
    return _SPECIAL.sub(r"\\\1", visible_line(text))


def in_tag(text: str) -> str:
    """Escape a text for use in an HTML element, on one line."""
    return escape(visible_line(text))


def quoted_scalar(text: str) -> str:
    """Return a text as a YAML string."""
    return '"' + visible_line(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def fenced(text: str, language: str = "") -> Iterator[str]:
    """Yield a text as a code block."""
    text = visible(text).rstrip("\n")
    fence = "`" * max(3, 1 + max(map(len, _TICKS.findall(text)), default=0))
    yield f"{fence}{language}"
    yield from text.split("\n")
    yield fence


def prose(text: str) -> Iterator[str]:
    """Yield a message as Markdown that cannot affect the lines after it."""
    lines = visible(text).strip("\n").split("\n")
    safe = _safe_lines(lines)
    if safe is not None:
        yield from safe
    else:
        yield from (f"> {_as_text(line)}" for line in lines)


class _Fence(NamedTuple):
    """An open code block: the spaces before its fence, and the fence."""

    lead: str
    ticks: str

    def is_closed_by(self, line: str) -> bool:
        ticks = line.strip(" ")
        return len(ticks) >= len(self.ticks) and set(ticks) == {self.ticks[0]} and self._closes_at(line)

    def _closes_at(self, line: str) -> bool:
        indent = len(line) - len(line.lstrip(" "))
        return indent == len(self.lead) if self.lead else indent <= 3

    def holds(self, line: str) -> bool:
        """Return whether a line is certainly inside. A fence in a list ends with the list, at a line with less indent."""
        return not self.lead or not line.strip(" ") or (line.startswith(self.lead) and not _FENCE.match(line))


def _safe_lines(lines: list[str]) -> list[str] | None:
    """Return the lines, each made safe; `None` if it is unclear which of them are code."""
    safe: list[str] = []
    fence: _Fence | None = None
    paired = True  # whether, since the last empty line, all inline code ends in its own line
    for line in lines:
        if fence is not None:
            if fence.is_closed_by(line):
                fence = None
                safe.append(line)
            elif fence.holds(line):
                safe.append(_as_text(line) if fence.lead else line)
            else:
                return None
        elif match := _FENCE.match(line):
            if match[1].strip(" ") or "|" in line:  # in a list, a quote or the head of a table: parsers disagree
                return None
            fence = _Fence(match[1], match[2])
            safe.append(_as_text(line))
        else:
            if _UNDERLINE.fullmatch(line) and safe and safe[-1].strip():
                safe.append("")  # otherwise the line before would become a heading
            paired = not line.strip() or (paired and _is_paired(line))
            safe.append(_HEADING.sub(_lowered, _without_html(line) if paired else _as_text(line)))
    if fence is not None and fence.lead:
        return None
    return safe if fence is None else [*safe, fence.ticks]


def _as_text(line: str) -> str:
    return _HTML.sub("&lt;", line)


def _lowered(match: re.Match[str]) -> str:
    return match[1] + "#" * min(6, len(match[2]) + _HEADING_OFFSET)


def _is_paired(line: str) -> bool:
    """Return whether all inline code ends in the line: no backtick is unpaired, escaped or split by a table cell."""
    if "\\`" in line or "|" in line:
        return "`" not in line
    return len(_pieces(line)) % 2 == 1


def _without_html(line: str) -> str:
    pieces = _pieces(line)
    return "".join(piece if place % 2 else _as_text(piece) for place, piece in enumerate(pieces))


def _pieces(line: str) -> list[str]:
    """Split a line into text, code, text, …; the length is even if some code does not end."""
    pieces: list[str] = []
    start = 0
    while opening := _TICKS.search(line, start):
        closing = next((m for m in _TICKS.finditer(line, opening.end()) if len(m[0]) == len(opening[0])), None)
        if closing is None:
            return [*pieces, line[start:], ""]
        pieces += [line[start : opening.start()], line[opening.start() : closing.end()]]
        start = closing.end()
    return [*pieces, line[start:]]
