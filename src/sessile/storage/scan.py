"""Searching the journals themselves for a substring or a regular expression: any field, any size, no index.

Rules:

- A file is read in blocks of a megabyte and cut into lines there. Only lines that can hold the needle are decoded: those with
  its bytes as JavaScript writes them, or with another JSON escape of one of its characters (`\\u4e2d`, `\\/`). What counts
  is found in the decoded text; a regular expression is tried on all of it.
- Memory holds one line at most. A line over the scanner's limit is reported, not searched.
- Case counts if the needle has a capital, else letters and their capitals are the same; `case` decides otherwise.
- Files are only read, and one that cannot be read is reported by its typed error.

It does not know which files there are, nor of any catalog.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from sessile.core.codec import encode_plain
from sessile.core.lines import MAX_LINE, Finding
from sessile.core.passages import FIELDS, Excerpt, Field, Span, excerpt, pieces
from sessile.core.words import Query
from sessile.errors import InvalidQuery, storage_failures
from sessile.storage.base import NATIVE, Filesystem
from sessile.storage.native_rows import entries_in, is_nested, lines_in
from sessile.storage.packed import open_rows
from sessile.storage.session_file import CHUNK
from sessile.storage.substring import Substring

_MOST_SPANS = 1000  # matches that are marked in one text
_LONGEST_NEEDLE = 10_000


class Match(NamedTuple):
    """A text of an entry that holds the needle; `times` says how often, 1000 at most."""

    entry_id: str | None
    offset: int
    field: Field
    excerpt: Excerpt
    times: int


class Needle:
    """What is looked for: where it is in a text, and which lines can hold it."""

    def __init__(self, text: str, *, regex: bool = False, case: bool | None = None) -> None:
        if not text or len(text) > _LONGEST_NEEDLE:
            raise InvalidQuery(f"a needle has 1 to {_LONGEST_NEEDLE:,} characters", hint="say what to look for")
        exact = any(map(str.isupper, text)) if case is None else case
        try:
            self._pattern = re.compile(text, 0 if exact else re.IGNORECASE) if regex else _literal(text, exact)
        except (re.error, RecursionError, OverflowError) as error:
            hint = "quote what is meant as it is with a backslash, or look for a substring"
            raise InvalidQuery(f"{text[:80]!r} is no regular expression: {error}", hint=hint) from error
        self._anchor = b"" if regex else _anchor(text, exact)
        self._spelling = None if regex or self._anchor else _spelling(text)
        self._exact = exact
        self._escapes = None if regex else _Escapes(text)
        self._solidus = not regex and "/" in text

    def spans(self, text: str) -> list[Span]:
        """Where it is in a text."""
        found = []
        for match in self._pattern.finditer(text):
            if match.end() > match.start():
                found.append(match.span())
                if len(found) == _MOST_SPANS:
                    break
        return found

    def candidates(self, block: bytes) -> Iterator[Span]:
        """The lines of a block that can hold it. The block ends with a line."""
        at = 0
        find = self._finder(block)
        while at < len(block) and (place := find(at)) >= 0:
            start = block.rfind(b"\n", at, place) + 1 or at
            end = block.find(b"\n", place)
            end = len(block) if end < 0 else end
            yield start, end
            at = end + 1

    def _finder(self, block: bytes) -> Callable[[int], int]:
        """A function that gives the next place, from another one on, at which a line can hold the needle."""
        if not self._anchor and self._spelling is None:
            return lambda at: at
        finders = [self._first_finder(block)]
        # Few lines are escaped in another way than JavaScript's; those that may be are left to the decoder.
        if self._escapes is not None:
            finders.append(self._escapes.finder(block))
        if self._solidus:
            finders.append(Substring(block, b"\\/"))
        if len(finders) == 1:
            return finders[0]
        return _Merged(finders)

    def _first_finder(self, block: bytes) -> Callable[[int], int]:
        """The one that looks for the bytes of the needle as JavaScript writes them."""
        spelling = self._spelling
        if spelling is not None:
            return lambda at: match.start() if (match := spelling.search(block, at)) else -1
        folded = block if self._exact else block.lower()
        return Substring(folded, self._anchor)


class WordNeedle(Needle):
    """All words of a query, in texts that no index holds. Only lines with the longest of them are decoded."""

    def __init__(self, query: Query) -> None:
        if not query.terms:
            raise InvalidQuery("there is no word to look for", hint="look for a substring with -F")
        # A word with diacritics may stand there without them: one that cannot have any is the better guide.
        runs = [run for term in query.terms for run, _ in term.runs]
        super().__init__(max(runs, key=lambda run: (run.isascii(), len(run))), case=False)
        self._query = query

    def spans(self, text: str) -> list[Span]:
        """Where the words are, if all of them are there."""
        return self._query.find(text)[:_MOST_SPANS]


class _Merged:
    """The nearest of several finders; each is asked again only when its last answer lies behind."""

    def __init__(self, finders: list[Callable[[int], int]]) -> None:
        self._finders = finders
        self._next = [-2] * len(finders)

    def __call__(self, at: int) -> int:
        for number, place in enumerate(self._next):
            if place != -1 and place < at:
                self._next[number] = self._finders[number](at)
        return min((place for place in self._next if place >= 0), default=-1)


def _literal(text: str, exact: bool) -> re.Pattern[str]:
    """The text itself, or with each letter in both cases; letters whose other case is not one letter stay as they are."""
    if exact:
        return re.compile(re.escape(text))
    return re.compile("".join(re.escape(char) if len(_cases(char)) == 1 else f"[{_cases(char)}]" for char in text))


def _cases(char: str) -> str:
    """A letter in all its cases; one whose other case is not a single letter stands alone."""
    forms = {form for form in (char.lower(), char.upper()) if len(form) == 1}
    return "".join(sorted(forms | {char}))


def _anchor(text: str, exact: bool) -> bytes:
    """The longest part of the needle whose bytes are known, as JavaScript writes them."""
    known = [exact or char.isascii() or len(_cases(char)) == 1 for char in text]
    runs = re.finditer("1+", "".join("1" if is_known else "0" for is_known in known))
    parts = [part for run in runs for part in _whole_parts(text[run.start() : run.end()])]
    anchor = encode_plain(max(parts, key=len, default=""))[1:-1]
    return anchor if exact else anchor.lower()


def _whole_parts(text: str) -> list[str]:
    """The parts between what has no bytes of its own: half a character, and U+FFFD, which stands for what is not UTF-8."""
    return re.split("[\ud800-\udfff\ufffd]", text)


def _spelling(text: str) -> re.Pattern[bytes] | None:
    """The longest part of a needle of which no letter has only one form: each in all its cases."""
    letters = [
        [re.escape(encode_plain(form)[1:-1]) for form in _cases(char)] for char in max(_whole_parts(text), key=len)
    ]
    return re.compile(b"".join(b"(?:%b)" % b"|".join(forms) for forms in letters)) if letters else None


class _Escapes:
    """Any \\uXXXX of a character of a needle, in either case, or of a half of it."""

    def __init__(self, text: str) -> None:
        chars = {form for char in text for form in _cases(char)}
        units = {unit for char in chars for unit in re.findall(b"(?s)..", char.encode("utf-16-be", "surrogatepass"))}
        codes = sorted(unit.hex() for unit in units)
        # What all of them begin with is looked for first, which is faster: of ASCII it is \\u00.
        first, last = codes[0], codes[-1]
        shared = next((first[:n] for n in (4, 3, 2, 1) if last.startswith(first[:n]) and first[:n].isdecimal()), "")
        rest = "|".join(code[len(shared) :] for code in codes)
        self._beginning = rf"\u{shared}".encode()
        self._pattern = re.compile(rf"\\u{shared}(?i:{rest})".encode())

    def finder(self, block: bytes) -> Callable[[int], int]:
        """A function that gives the next place of one of them, from another place on."""
        first, pattern = Substring(block, self._beginning), self._pattern

        def find(at: int) -> int:
            place = first(at)
            match = None if place < 0 else pattern.search(block, place)
            return -1 if match is None else match.start()

        return find


def scan_file(
    fs: Filesystem,
    path: str,
    needle: Needle,
    *,
    fields: Collection[Field] = FIELDS,
    findings: list[Finding] | None = None,
    start: int = 0,
    name: str = NATIVE,
) -> Iterator[Match]:
    """Every text of a journal that holds the needle, in order. Lines too long to be searched are added to `findings`.

    `name` is the format of the file.
    """
    with storage_failures(path, "search the session"):
        fd, _, damage = open_rows(fs, path)
        unread = [] if findings is None else findings
        unread += [] if damage is None else [damage]
        nested = is_nested(name)
        try:
            for offset, block in _blocks(fs, fd, start, unread):
                # JSON within JSON is escaped twice: no bytes are known to look for.
                for begin, end in ((0, len(block)),) if nested else needle.candidates(block):
                    yield from _matches(block[begin:end], offset + begin, needle, fields, name)
        finally:
            fs.close(fd)


def _blocks(fs: Filesystem, fd: int, at: int, findings: list[Finding]) -> Iterator[tuple[int, bytes]]:
    """Whole lines, as many as a block holds, with their place; the last one may lack its newline."""
    held: list[bytes] = []  # the beginning of a line that is longer than what was read so far
    size = 0
    while chunk := fs.read(fd, CHUNK, at):
        at += len(chunk)
        end = chunk.rfind(b"\n") + 1
        if end:
            first = b"".join((*held, chunk[:end])) if held else chunk[:end]
            start = at - len(chunk) - size
            if size > MAX_LINE:
                line = size + chunk.find(b"\n")
                findings.append(Finding("too_long", start, line, f"a line over the limit of {MAX_LINE} bytes"))
                start, first = start + line + 1, chunk[line + 1 - size : end]
            yield start, first
            held, size = [], 0
        rest = chunk[end:]
        size += len(rest)
        held = [*held, rest] if size <= MAX_LINE else []
    if size > MAX_LINE:
        findings.append(Finding("too_long", at - size, size, f"a line over the limit of {MAX_LINE} bytes"))
    elif size:
        yield at - size, b"".join(held)


def _matches(raw: bytes, offset: int, needle: Needle, fields: Collection[Field], name: str) -> Iterator[Match]:
    for line in lines_in(name, raw, offset):
        for entry_id, entry in entries_in(name, line):
            for field, text in pieces(entry):
                spans = needle.spans(text) if field in fields else []
                if spans:
                    yield Match(entry_id, line.offset, field, excerpt(text, spans), len(spans))
