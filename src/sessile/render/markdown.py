"""A transcript as a Markdown document: for notes, pull requests and whoever has no browser at hand.

    ---                     what it is, as YAML
    # title
    ## 1. a prompt          one heading for each, everything until the next belongs to it
    ### assistant · …       who else spoke
    <details> … </details>  tools, thinking and details

Rules: stored text stays in its place, see `prose`. Nothing is left out in silence: what the depth does not show is counted,
damage is told where it is. Pictures are files of their own, which `keep` receives; without it they are words.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

from sessile.core.large import parse_blob_ref
from sessile.core.parts import Call, Depth, Diff, Image, Output, Part, Shown, Text, Thinking
from sessile.core.shown import as_json, show_all
from sessile.core.transcript import Transcript
from sessile.core.visible import cut, visible_line, without_colours
from sessile.render.prose import fenced, in_tag, inline, prose, quoted_scalar
from sessile.render.text import Damage, Story, count_hidden, hidden_words, is_shown
from sessile.render.wording import image_word, moment, short_id, who

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
