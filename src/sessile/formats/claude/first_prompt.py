"""The first prompt of a session: what the user asked, not what a program put in the user's mouth.

Rules: tool results, meta rows and compact summaries are passed over, then texts that the skip rule names; a slash command
counts only if nothing else is there. What is found is one line, cut at 200 characters.

Finding takes time in proportion to the text, whatever tags it is full of: an end that is missing is looked for once.

The two SDKs differ in the skip rule (any lower-case tag at the start, or an old list of tags), in shell input, which the
TypeScript SDK shows as `! ls`, in pasted text, which it unwraps, in what is a space, and in how long an emoji is.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sessile.core.text import utf16_cut, utf16_length, without_surrogates
from sessile.formats.claude.members import lines_of
from sessile.formats.claude.parsing import parsed
from sessile.formats.claude.rows import USER, View, mapping_of, text_of, type_of

LONGEST = 200

_INTERRUPTED = r"\[Request interrupted by user[^\]]*\]"
_SKIPPED = re.compile(rf"<[a-z][A-Za-z0-9_-]*[\s>]|{_INTERRUPTED}")
_SKIPPED_BY_PYTHON = re.compile(
    rf"<local-command-stdout>|<session-start-hook>|<tick>|<goal>|{_INTERRUPTED}"
    r"|\s*<ide_opened_file>.*</ide_opened_file>\s*\Z|\s*<ide_selection>.*</ide_selection>\s*\Z",
    re.DOTALL,
)
_COMMAND = "command-name"
_SHELL = "bash-input"
_LINE_ENDS = re.compile("[\n\r\u2028\u2029]")
_PASTED = re.compile(r'\n{0,2}<pasted_content id="([0-9a-f]{4})">\n')
_PASTED_END = re.compile(r'\n</pasted_content id="([0-9a-f]{4})">')
_SPACES = "\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))
"""What JavaScript trims."""
_PASSED_OVER = (
    b'"tool_result"',
    b'"isMeta":true',
    b'"isMeta": true',
)
_SUMMARIES = (b'"isCompactSummary":true', b'"isCompactSummary": true')
_BESIDE_TEXT = (("image", "Image"), ("document", "Document"))


def first_prompt(head: bytes, view: View = "ts") -> str | None:
    """The first prompt in the beginning of a transcript, or None; the last line may be cut."""
    if view == "python-sdk":
        return _first_in_python(head)
    command = ""
    for line in _possible(head, _SUMMARIES):
        said = _said_in(parsed(line))
        if said.prompt is not None:
            return said.prompt
        command = command or said.command
    return command or None


def is_prompt(row: Any) -> bool:
    """Whether the user says something in a row, in the sense of the TypeScript SDK."""
    return _said_in(row).prompt is not None


def without_words(head: bytes) -> str | None:
    """What the TypeScript SDK calls a session that begins with a picture or a document, and has no words at all."""
    for line in _possible(head, ()):
        for kind, name in _BESIDE_TEXT:
            if f'"type":"{kind}"' in line or f'"type": "{kind}"' in line:
                return name
    return None


def trimmed(text: str) -> str:
    """The text without what JavaScript calls space at its ends."""
    return text.strip(_SPACES)


class _Said(NamedTuple):
    prompt: str | None
    command: str


def _said_in(row: Any) -> _Said:
    """The first prompt in a row, and the first slash command before it."""
    command = ""
    for said in _texts_of(row):
        one = trimmed(_unwrapped(said).replace("\n", " "))
        slash, shell = _slash_command(one), _inside(one, _SHELL)
        if slash is not None:
            command = command or slash
        elif shell is not None:
            return _Said(f"! {trimmed(shell)}", command)
        elif one and not _SKIPPED.match(one):
            short = utf16_length(one) <= LONGEST
            cut = one if short else trimmed(without_surrogates(utf16_cut(one, LONGEST))) + "…"
            return _Said(cut, command)
    return _Said(None, command)


def _first_in_python(head: bytes) -> str | None:
    command = ""
    for line in _possible(head, _SUMMARIES):
        row = parsed(line, "python-sdk")
        content = mapping_of(row, "message").get("content") if type_of(row) == USER else None
        for said in _texts_in(content):
            one = said.replace("\n", " ").strip()
            slash = _inside(one, _COMMAND)
            if slash is not None:
                command = command or slash
            elif one and not _SKIPPED_BY_PYTHON.match(one):
                return one if len(one) <= LONGEST else one[:LONGEST].rstrip() + "…"
    return command or None


def _unwrapped(text: str) -> str:
    """The text with what was pasted into it, without the tags around that."""
    ends: dict[str, list[int]] = {}
    for end in _PASTED_END.finditer(text):
        ends.setdefault(end[1], []).append(end.start())
    pieces: list[str] = []
    told = at = 0
    while ends and (begin := _PASTED.search(text, at)):
        places = ends.get(begin[1], [])
        place = bisect_left(places, begin.end() - 1)  # the line break of one tag may be that of the other
        at = begin.end() - 1
        if place < len(places):
            pieces += (text[told : begin.start()], text[begin.end() : places[place]])
            told = at = _behind_end(text, places[place])
    return "".join((*pieces, text[told:]))


def _behind_end(text: str, end: int) -> int:
    """Where a text goes on behind an end tag and the line breaks that belong to it."""
    at = text.index(">", end) + 1
    return at + 2 if text.startswith("\n\n", at) else at + text.startswith("\n", at)


def _inside(text: str, tag: str) -> str | None:
    """What stands in the first element of a name."""
    _, begin, rest = text.partition(f"<{tag}>")
    inside, end, _ = rest.partition(f"</{tag}>")
    return inside if begin and end else None


def _slash_command(text: str) -> str | None:
    """The name of the first slash command, which stands on one line."""
    if _COMMAND not in text:  # in most prompts there is none
        return None
    lines = (_inside(line, _COMMAND) for line in _LINE_ENDS.split(text))
    return next((name for name in lines if name is not None), None)


def _possible(head: bytes, passed_over: tuple[bytes, ...]) -> Iterator[str]:
    """The lines that may be prompts, judged by a glance: parsing them all takes long."""
    for line in lines_of(head):
        if b'"type":"user"' not in line and b'"type": "user"' not in line:
            continue
        if not any(mark in line for mark in (*_PASSED_OVER, *passed_over)):
            yield line.decode("utf-8", "replace")


def _texts_of(row: Any) -> Iterator[str]:
    """What a row of the user says, each text for itself."""
    if type_of(row) != USER or row.get("isMeta") is True or row.get("isCompactSummary") is True:
        return
    content = mapping_of(row, "message").get("content")
    if isinstance(content, list) and any(type_of(block) == "tool_result" for block in content):
        return
    yield from _texts_in(content)


def _texts_in(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for block in content:
            said = text_of(block, "text") if isinstance(block, Mapping) and type_of(block) == "text" else None
            if said is not None:
                yield said
