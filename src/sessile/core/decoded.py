"""Decoded views of a text: what a reader or a program would make of it, with the place of every character in the original.

A view is searched like a text, and what is found there is mapped back to the characters that spell it:

- `clear`: without colours and invisible characters, with escapes (`\\u005f`, `\\x5f`, `%5F`, `&#95;`) decoded, also nested ones;
- `joined`: some lines as one, without indentation and quote marks, for a word that was wrapped;
- `encodings`: the texts in base64 and hexadecimal, on one line or several, and the compressed texts of PNG images.

Every function takes time proportional to the length of the text.
"""

from __future__ import annotations

import re
import zlib
from binascii import a2b_base64, unhexlify
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sessile.core.visible import ANSI

_LONGEST_TEXT = 1 << 20  # characters of a compressed text that are read
_SHORTEST_RUN = 24  # characters of base64: the shortest secret with its name has 17 bytes
_SHORTEST_HEX = 32
_READABLE = 12  # characters in a row that make bytes a text


class View(NamedTuple):
    """A text made from another one, in pieces: where each starts here and there, and its length there."""

    text: str
    starts: list[int]
    origins: list[int]
    lengths: list[int]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the place in the original of a place in the view; a decoded character belongs to all that spell it."""
        first = bisect_right(self.starts, start) - 1
        last = bisect_right(self.starts, end - 1) - 1
        begin = self.origins[first] + (start - self.starts[first] if self._is_verbatim(first) else 0)
        if self._is_verbatim(last):
            return begin, self.origins[last] + end - self.starts[last]
        return begin, self.origins[last] + self.lengths[last]

    def _is_verbatim(self, piece: int) -> bool:
        after = self.starts[piece + 1] if piece + 1 < len(self.starts) else len(self.text)
        return after - self.starts[piece] == self.lengths[piece]


def replaced(text: str, changes: Iterable[tuple[int, int, str]], start: int = 0, end: int | None = None) -> View:
    """Return a part of a text with some pieces replaced: from where, to where, by what."""
    pieces: list[str] = []
    view = View("", [], [], [])
    length = 0

    def add(piece: str, origin: int, size: int) -> None:
        nonlocal length
        if piece:
            pieces.append(piece)
            view.starts.append(length)
            view.origins.append(origin)
            view.lengths.append(size)
            length += len(piece)

    place = start
    for begin, stop, new in changes:
        add(text[place:begin], place, begin - place)
        add(new, begin, stop - begin)
        place = stop
    end = len(text) if end is None else end
    add(text[place:end], place, end - place)
    return view._replace(text="".join(pieces))


# -- colours, invisible characters and escapes

_INVISIBLE = "\x00-\x08\x0e-\x1f\x7f\xad\u180e\u200b-\u200f\u2060-\u2064\ufe00-\ufe0f\ufeff"
_UNSEEN = re.compile(f"(?:{ANSI}|\x9b[0-?]*[ -/]*[@-~]|[{_INVISIBLE}])+")
_IS_UNSEEN = re.compile(f"[\x9b{_INVISIBLE}]")  # much faster on text without any
_NAMED = {
    "quot": '"',
    "apos": "'",
    "lt": "<",
    "gt": ">",
    "amp": "&",
    "lowbar": "_",
    "period": ".",
    "colon": ":",
    "equals": "=",
    "commat": "@",
    "sol": "/",
    "bsol": "\\",
    "num": "#",
    "dollar": "$",
    "percnt": "%",
    "plus": "+",
    "ast": "*",
    "excl": "!",
    "quest": "?",
    "Hat": "^",
    "hyphen": "-",
    "dash": "-",
    "nbsp": " ",
    "NewLine": "\n",
    "semi": ";",
    "comma": ",",
    "tilde": "~",
    "Tab": "\t",
    "shy": "",
    "zwj": "",
    "zwnj": "",
}
# Only what stands for a character of a secret or its name, a line break, or the start of a colour. Nested escapes are decoded
# at once: `\\\\u005f`, `%25255F`, `&amp;#95;`. Each pattern starts with a literal, which is fast to search for.
_ESCAPES = {
    "\\": re.compile(
        r"\\(?<!\\\\)\\*+(?:u\{?0{0,4}(?P<u>[0-7][0-9a-fA-F])\}?|U0{6}(?P<U>[0-7][0-9a-fA-F])"
        r"|x(?P<x>[0-7][0-9a-fA-F])|(?P<o>[01][0-7]{2})|(?P<e>e)(?=\[)|(?P<s>/))"
    ),
    "%": re.compile(r"%(?:25)*+(?P<p>[2-7][0-9a-fA-F]|0[9aAdD]|1[bB]|00)"),
    "&": re.compile(
        r"&(?:amp;)*+(?:\#0{0,4}(?P<d>[0-9]{1,3})(?![0-9]);?|\#[xX]0{0,4}(?P<h>[0-7]?[0-9a-fA-F])(?![0-9a-fA-F]);?"
        rf"|(?P<n>{'|'.join(_NAMED)});)"
    ),
}
_BASES = {"u": 16, "U": 16, "x": 16, "o": 8, "p": 16, "d": 10, "h": 16}
_AROUND = 256  # characters before and after an escape that are decoded with it
_LONGEST_WORD = 8192  # a word is not cut, unless it is longer


def clear(text: str) -> Iterator[View]:
    """Yield the parts of a text that have colours or escapes, without one layer of them."""
    if ("\x1b" in text or "\x00" in text or not text.isascii()) and _IS_UNSEEN.search(text) is not None:
        yield replaced(text, ((match.start(), match.end(), "") for match in _UNSEEN.finditer(text)))
    else:
        found = [match for sign, pattern in _ESCAPES.items() if sign in text for match in pattern.finditer(text)]
        part: list[tuple[int, int, str]] = []
        start = end = 0
        for match in sorted(found, key=re.Match.start):
            if part and match.start() > end:
                yield replaced(text, part, start, end)
                part = []
            if not part:
                start = _start_of_word(text, match.start(), end)
            part.append((match.start(), match.end(), _meaning(match)))
            if match.end() + _AROUND > end:
                end = _end_of_word(text, match.end())
        if part:
            yield replaced(text, part, start, end)


def _start_of_word(text: str, place: int, limit: int) -> int:
    limit, place = max(limit, place - _LONGEST_WORD, 0), max(limit, place - _AROUND)
    return max(text.rfind(" ", limit, place), text.rfind("\n", limit, place), limit - 1) + 1


def _end_of_word(text: str, place: int) -> int:
    limit, place = min(place + _LONGEST_WORD, len(text)), place + _AROUND
    space = text.find(" ", place, limit)
    line = text.find("\n", place, limit if space < 0 else space)
    return line if line >= 0 else space if space >= 0 else limit


def _meaning(match: re.Match[str]) -> str:
    kind = match.lastgroup or ""
    code = match[kind]
    if kind in _BASES:
        return chr(int(code, _BASES[kind]))
    return {"e": "\x1b", "s": "/"}.get(kind) or _NAMED[code]


# -- lines

_MARKS = (
    r"[ \t]{0,64}(?:(?:[>|#*]|//|[0-9]{1,6}[ \t→|:])[ \t]{0,8}){0,3}+[\"'`]?"  # in front of a quoted or numbered line
)
# The end of a line inside a word: real or escaped, with a backslash, `=` (mail) or the end of a string literal before it.
BREAK = rf"[\"'`]?[ \t]{{0,8}}[\\+=.&]?[ \t]{{0,8}}(?:\r?\n|(?:\\{{1,4}}r)?\\{{1,4}}n){_MARKS}"
_BREAK = re.compile(BREAK)
_WORD = re.compile(r"[^\s\"'`\\]{1,400}+")
_SETTING = re.compile(
    r"[\w.-]{1,64}\\{0,3}[\"'`]?\]?[ \t]{0,8}(?:=>|:=|=|:)?[ \t]{0,8}(?:\\{0,3}[\"'`])?(?:[A-Za-z]{3,10}[ \t]{1,4})?"
    r"(?:[\w.-]{1,64}=[^\s;]{0,200};[ \t]{1,4}){0,8}+"
    r"[^\s\"'`\\]{1,400}+"
)
_REST = re.compile(r"(?!--)[^\s\"'`\\<>]{1,400}+")
_CLOSING = re.compile(r"\\{0,3}[\"'`]?")
_MOST_LINES = 5


def joined(text: str, start: int, place: int, *, setting: bool = False) -> Iterator[View]:
    """Yield a word of a text, or a setting with its value, with the next line, with the next two, and so on.

    Args:
        text: The text.
        start: Where the view starts.
        place: Where the word starts.
        setting: Whether a name and a separator are in front of the word.

    Yields:
        The views; none if the word does not end at the end of a line.
    """
    word = (_SETTING if setting else _WORD).match(text, place)
    if word is None:
        return
    end = word.end()
    breaks: list[tuple[int, int, str]] = []
    while len(breaks) < _MOST_LINES:
        found = _BREAK.match(text, end - 1 if text[end - 1] == "=" else end)
        rest = None if found is None else _REST.match(text, found.end())
        if found is None or rest is None:
            break
        breaks.append((found.start(), found.end(), ""))
        end = rest.end()
        closing = _CLOSING.match(text, end)
        yield replaced(text, breaks, start, end if closing is None else closing.end())


# -- encodings

_RUN = bytes(97 if (chr(code).isalnum() and code < 128) or chr(code) in "+/_-" else 32 for code in range(256))
_TEXT = bytes(97 if 32 <= code < 127 or code in (9, 10, 13) else 32 for code in range(256))
# Bytes that are no text separate texts. NUL stays: texts in UTF-16 have it behind every character.
_SEPARATED = bytes(code if 32 <= code < 127 or code in (0, 9, 10, 13, 27) else 32 for code in range(256))
_LOWER = b"abcdefghijklmnopqrstuvwxyz_-/"
_STANDARD = bytes.maketrans(b"-_", b"+/")
_NEEDLE = b"a" * _SHORTEST_RUN
_READ = b"a" * _READABLE
_HEX = re.compile(rf"[0-9a-fA-F]{{{_SHORTEST_HEX},}}+")
_NEXT = re.compile(rf"={{0,2}}{BREAK}(?P<run>[A-Za-z0-9+/_-]++)(?:={{1,2}}(?![\w.(:=])|(?![\w.(:=]))")
_MOST_SHIFTED = 1 << 16  # characters of base64 that are decoded from every position


def encodings(text: str) -> Iterator[View]:
    """Yield the texts that are encoded in a text as base64 or hexadecimal."""
    if len(text) < _SHORTEST_RUN:
        return
    data = text.encode("ascii", "replace")
    kinds = data.translate(_RUN)
    place = kinds.find(_NEEDLE)
    while place >= 0:
        start = kinds.rfind(b" ", 0, place) + 1
        end = kinds.find(b" ", place)
        end = len(kinds) if end < 0 else end
        if data[start:end].translate(None, _LOWER):  # base64 has capitals or digits; most long words have not
            run, end = _unwrapped(text, start, end)
            yield from _decoded(run)
        place = kinds.find(_NEEDLE, end)


def _unwrapped(text: str, start: int, end: int) -> tuple[View, int]:
    """Return a run with its next lines, and its end."""
    breaks = []
    while (found := _NEXT.match(text, end)) is not None:
        breaks.append((end, found.start("run"), ""))
        end = found.end("run")
    return replaced(text, breaks, start, end), end


def _decoded(run: View) -> Iterator[View]:
    data = run.text.encode("ascii").translate(_STANDARD)
    for shift in range(4 if len(data) <= _MOST_SHIFTED else 1):
        size = (len(data) - shift) // 4 * 4 + (0, 0, 2, 3)[(len(data) - shift) % 4]
        found = a2b_base64(data[shift : shift + size] + b"=" * (-size % 4))
        if _is_readable(found):
            yield _mapped(run, found, shift, 3, 4)
        if found.startswith(PNG):
            for start, end, text in compressed_texts(found):
                yield View(text, [0], [_place(run, shift + start // 3 * 4)], [(end - start) // 3 * 4 + 8])
    for match in _HEX.finditer(run.text):
        for begin in (match.start(), match.start() + 1):
            found = unhexlify(run.text[begin : begin + (match.end() - begin) // 2 * 2])
            if _is_readable(found):
                yield _mapped(run, found, begin, 1, 2)


def _is_readable(data: bytes) -> bool:
    return _READ in data.translate(_TEXT) or (b"\0" in data and _READ in data.replace(b"\0", b"").translate(_TEXT))


def _mapped(run: View, found: bytes, shift: int, size: int, width: int) -> View:
    """Return decoded bytes as a view: every `size` bytes are spelled by `width` characters."""
    text = found.translate(_SEPARATED).decode("latin-1")
    steps = range(0, len(text), size)
    if len(run.starts) == 1:
        first = run.origins[0] + shift
        last = run.origins[0] + len(run.text)
        origins = [first + step // size * width for step in steps]
        lengths = [min(width, last - origin) for origin in origins]
        return View(text, list(steps), origins, lengths)
    spans = [
        run.span(shift + step // size * width, min(shift + step // size * width + width, len(run.text)))
        for step in steps
    ]
    return View(text, list(steps), [start for start, _ in spans], [end - start for start, end in spans])


def _place(run: View, place: int) -> int:
    return run.span(place, place + 1)[0]


# -- images

PNG = b"\x89PNG\r\n\x1a\n"
JPEG = b"\xff\xd8\xff"


def compressed_texts(data: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield the compressed texts of a PNG image, and where their chunks start and end."""
    for start, end in notes(data):
        kind, body = data[start + 4 : start + 8], data[start + 8 : end - 4]
        packed = b""
        if kind == b"zTXt":
            packed = body.partition(b"\0")[2][1:]
        elif kind == b"iTXt":
            _, _, rest = body.partition(b"\0")
            if rest[:1] == b"\1":
                packed = rest[2:].partition(b"\0")[2].partition(b"\0")[2]
        if packed:
            try:
                yield start, end, zlib.decompressobj().decompress(packed, _LONGEST_TEXT).decode("latin-1")
            except zlib.error:
                continue


def notes(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the parts of a PNG or JPEG image that can be removed: texts, camera data, and what follows the image."""
    return _chunks(data) if data.startswith(PNG) else _segments(data)


def _chunks(data: bytes) -> Iterator[tuple[int, int]]:
    place = len(PNG)
    while place + 12 <= len(data):
        end = place + 12 + int.from_bytes(data[place : place + 4])
        if data[place + 4] & 0x20:  # not needed to show the image
            yield place, min(end, len(data))
        place = end
        if data[place - 8 : place - 4] == b"IEND":
            break
    if place < len(data):
        yield place, len(data)


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF and data[place + 1] != 0xDA:
        end = place + 2 + int.from_bytes(data[place + 2 : place + 4])
        if 0xE1 <= data[place + 1] <= 0xEF or data[place + 1] == 0xFE:
            yield place, min(end, len(data))
        place = end
    last = data.rfind(b"\xff\xd9", place) + 2
    if 2 < last < len(data):
        yield last, len(data)
