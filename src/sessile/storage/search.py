"""Search sessions: for words with the index of the catalog, or in the files themselves for a substring or a regular expression.

`Searcher` answers a query, best hits first. The index only proposes candidates. Every hit is read again in its journal, where
`Query` decides, so a stale or wrong index does no harm. A session in which the index names a line that is not there has
changed since the last catch-up, and is read from end to end. A last line without a newline is read directly, and so are sessions
that are not indexed yet, on request. `CatalogWords` is the index in SQLite; `postgres.listings` has that of a database.

`scan_file` finds a `Needle` in one file without an index: in any field, of any size. The index has no tool results, which are
most of the bytes, and no other data, which few people search for. `Rest` scans for them, as far as they are wanted. Rules:

- A file is read in blocks of a megabyte and split into lines. Only lines that can contain the needle are decoded: those with
  its bytes as JavaScript writes them, or with another JSON escape of one of its characters (`\\u4e2d`, `\\/`). Only matches in
  the decoded text count; a regular expression is tried on all of it.
- Memory holds one line at most. A line over the scanner's limit is reported, not searched.
- Case matters if the needle has a capital letter; `case` overrides that.
- Files are only read, and one that cannot be read raises a typed error.
"""

from __future__ import annotations

import ctypes
import os
import re
import sqlite3
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from sessile.core.codec import encode_plain
from sessile.core.large import FULL, Get, restore
from sessile.core.lines import MAX_LINE, Finding, Line
from sessile.core.visible import html_table
from sessile.core.words import (
    FEW,
    FIELDS,
    INDEXED,
    NOT_INDEXED,
    SHOWN,
    Excerpt,
    Field,
    Query,
    Span,
    excerpt,
    fold,
    passages,
    pieces,
    rest,
)
from sessile.errors import InvalidQuery, SessionNotFound, StorageFailure, storage_failures
from sessile.storage import atomic
from sessile.storage.base import CHUNK, NATIVE, Blobs, Filesystem
from sessile.storage.catalog_rows import SessionRow
from sessile.storage.catch_up import OFFSET_BITS, OFFSETS, Enough, Progress, entries_in, lines_in, scanner_of
from sessile.storage.filters import storable, within
from sessile.storage.formats import Formats
from sessile.storage.head import decoded
from sessile.storage.layout import artifacts_of
from sessile.storage.packed import open_rows


class Searched(NamedTuple):
    """What a search needs to know about a session; `indexed` is the number of bytes whose words are in the index."""

    path: str
    id: str
    size: int
    indexed: int
    format: str


class Beside(NamedTuple):
    """A session that is not completely indexed: only its last line is missing if it is `searchable`, else more."""

    session: Searched
    searchable: bool


class Candidate(NamedTuple):
    """A line that may match a query, as it is in its journal now."""

    rank: float
    session: Searched
    offset: int
    raw: bytes  # from the offset to the end of the line


class Index(Protocol):
    """A full-text index of sessions."""

    def beside(self) -> Sequence[Beside]:
        """Return the sessions that are not completely indexed, newest first."""
        ...

    def candidates(self, query: Query, fields: Sequence[Field]) -> Iterator[Candidate]:
        """Yield lines that may match, best first."""
        ...

    def matches(self, query: Query) -> dict[str, int]:
        """Return how many indexed entries match, by field."""
        ...

    def titles(self, query: Query) -> list[str]:
        """Return the paths of sessions whose title contains every word, newest first."""
        ...


class Hit(NamedTuple):
    """An entry that contains what was searched for.

    Attributes:
        path: The path of the session's file.
        session_id: The session id.
        entry_id: The id of the entry; `None` in a file of version 1, which has no ids.
        offset: The offset of the entry's line in the file, in bytes.
        field: Which part of the entry matches: "text", "thinking", "tool_input", "tool_result" or "other".
        excerpt: The text around the match, with the matching spans.
        rank: How good the match is: lower is better. `None` if the index has no such field, or not this session yet.

    Example:
        ```python
        for hit in library.search("webhook retry").hits:
            print(hit.path, hit.entry_id, hit.excerpt.text)
        ```
    """

    path: str
    session_id: str
    entry_id: str | None
    offset: int
    field: Field
    excerpt: Excerpt
    rank: float | None


class Results(NamedTuple):
    """The best hits of a search, and what was not searched.

    Attributes:
        hits: The best hits, best first.
        titles: The paths of sessions whose title contains all words.
        matches: How many entries match, by field: of indexed fields ignoring case, of others as far as they were read.
        pending: How many sessions were not searched, because they are not indexed yet.
        ignored: Parts of the query that no index can find, such as punctuation.
        unread: The paths of the session files that were not searched. Only `Library.search` sets this and the following.
        unscanned: How many sessions were not read for fields without an index, because the time was up or the hits were enough.
            If it is not zero, `matches` of these fields are a lower bound.
        excluded: How many matches are in sessions that the filter leaves out.
        problems: What could not be read, such as damaged files, for the user to read.

    Example:
        ```python
        results = library.search("webhook retry", limit=5)
        for field, count in results.hidden.items():
            print(f"{count} more in {field}")
        if results.unread:
            print(f"{len(results.unread)} sessions were not searched yet")
        ```
    """

    hits: list[Hit]
    titles: list[str]
    matches: dict[str, int]
    pending: int
    ignored: list[str]
    unread: Sequence[str] = ()
    unscanned: int = 0
    excluded: int = 0
    problems: Sequence[str] = ()

    @property
    def hidden(self) -> dict[str, int]:
        """How many matching entries are not among the hits, by field."""
        shown = Counter[str](hit.field for hit in self.hits)
        return {field: count - shown[field] for field, count in self.matches.items() if count > shown[field]}

    def _repr_html_(self) -> str:
        caption = f"{len(self.hits):,} hits"
        caption += "".join(f", {count:,} more in {field}" for field, count in self.hidden.items())
        caption += f", {len(self.unread):,} files not searched yet" if self.unread else ""
        rows = ((hit.excerpt.text, hit.field, hit.session_id, hit.entry_id) for hit in self.hits)
        return html_table(caption, ("text", "field", "session", "entry"), rows)


class Searcher:
    """One search. With `directly`, sessions that are not indexed yet are read completely."""

    def __init__(self, fs: Filesystem, formats: Formats, index: Index, directly: bool) -> None:
        self._formats = formats
        self._fs = fs
        self._index = index
        self._directly = directly

    def search(self, query: Query, fields: Sequence[Field], limit: int, count: bool) -> Results:
        """Return the best hits of a query."""
        beside = self._index.beside()
        unread = [session for session, searchable in beside if searchable or self._directly]
        pending = 0 if self._directly else sum(not searchable for _, searchable in beside)
        if not query.terms:
            return Results([], [], {}, pending, query.ignored)
        fields = [field for field in INDEXED if field in fields]
        hits: list[Hit] = []
        stale: dict[str, Searched] = {}  # the index names lines that these sessions do not have: they are read instead
        for candidate in self._index.candidates(query, fields) if fields else ():
            line = self._line_of(candidate)
            if line is None:
                stale[candidate.session.path] = candidate.session._replace(indexed=0)
            elif candidate.session.path not in stale:
                hits += self._hits_in(query, fields, candidate.session, line, candidate.rank)
            if len(hits) >= limit:
                break
        if stale:
            hits = [hit for hit in hits if hit.path not in stale]
            unread = [*stale.values(), *(session for session in unread if session.path not in stale)]
        for session in unread:
            if len(hits) >= limit:
                break
            hits += self._read(query, fields, session)
        matches = self._index.matches(query) if count else {}
        return Results(hits[:limit], self._index.titles(query), matches, pending, query.ignored)

    def _read(self, query: Query, fields: Sequence[Field], session: Searched) -> Iterator[Hit]:
        """Yield the hits in the part of a session that is not indexed."""
        at, scanner = session.indexed, scanner_of(session.format, session.indexed, self._formats)
        try:
            fd, size, *_ = open_rows(self._fs, session.path, self._formats)
        except OSError:
            return
        try:
            while at < size and (chunk := self._fs.read(fd, min(CHUNK, size - at), at)):
                at += len(chunk)
                for item in scanner.feed(chunk):
                    if isinstance(item, Line):
                        yield from self._hits_in(query, fields, session, item, None)
            for item in scanner.finish():
                if isinstance(item, Line):
                    yield from self._hits_in(query, fields, session, item, None)
        finally:
            self._fs.close(fd)

    def _line_of(self, candidate: Candidate) -> Line | None:
        """Return the line that the index names; `None` if the journal has no line there."""
        first = next(lines_in(candidate.session.format, candidate.raw, candidate.offset, self._formats), None)
        return first if first is not None and first.offset == candidate.offset else None

    def _hits_in(
        self, query: Query, fields: Sequence[Field], session: Searched, line: Line, rank: float | None
    ) -> Iterator[Hit]:
        for entry_id, entry in entries_in(session.format, line, self._formats):
            texts = passages(entry)
            for field in fields:
                spans = query.find(texts[field]) if field in texts else []
                if spans:
                    yield Hit(
                        session.path, session.id, entry_id, line.offset, field, excerpt(texts[field], spans), rank
                    )


def read_line(fs: Filesystem, path: str, offset: int, formats: Formats) -> bytes | None:
    """Return the bytes from an offset to the end of its line, as the file has them now; `None` if it cannot be read."""
    try:
        fd, size, *_ = open_rows(fs, path, formats)
        try:
            return _line_at(fs, fd, offset, size)
        finally:
            fs.close(fd)
    except OSError:
        return None


def _line_at(fs: Filesystem, fd: int, offset: int, end: int) -> bytes:
    pieces: list[bytes] = []
    size = 16 * 1024
    while offset < end and (piece := fs.read(fd, min(size, end - offset), offset)):
        newline = piece.find(b"\n")
        if newline >= 0:
            pieces.append(piece[:newline])
            break
        pieces.append(piece)
        offset += len(piece)
        size = CHUNK
    return b"".join(pieces)


# -- the index in SQLite

_RANKED = 1000  # matches that are ranked at once, newest first: ranking all would take too long
_END = 2**63 - 1
_RANK = "bm25(texts, 1.0, 0.5, 0.5)"  # text counts more than thinking and tool input
_TRIGRAM = 3


class CatalogWords:
    """The words in the catalog, below some folders or in some sessions only."""

    def __init__(
        self,
        fs: Filesystem,
        formats: Formats,
        database: sqlite3.Connection,
        places: Sequence[str],
        sessions: Collection[int] | None,
        keeps: bool,
    ) -> None:
        self._fs = fs
        self._formats = formats
        self._db = database
        self._within = within(places)
        self._wanted = sessions
        self._keeps = keeps  # if not, the index may have words of sessions that this database does not know
        self._known: dict[int, Searched | None] = {}

    def beside(self) -> list[Beside]:
        """Return the sessions that are not completely indexed, newest first."""
        where, values = self._within
        select = (
            f"SELECT number, searchable FROM sessions WHERE format IS NOT NULL AND {where}"
            " AND (NOT searchable OR size > indexed) ORDER BY number DESC"
        )
        rows = self._db.execute(select, values).fetchall()
        found = [(self._session(number), searchable) for number, searchable in rows]
        return [Beside(session, bool(searchable)) for session, searchable in found if session is not None]

    def _session(self, number: int) -> Searched | None:
        """Return the session with that number, if it is to be searched."""
        if number not in self._known:
            where, values = self._within
            columns = "path, id, size, indexed, format"
            select = f"SELECT {columns} FROM sessions WHERE number = :number AND format IS NOT NULL AND {where}"
            row = self._db.execute(select, values | {"number": number}).fetchone()
            searched = row is not None and (self._wanted is None or number in self._wanted)
            self._known[number] = Searched(os.fsdecode(row[0]), *row[1:]) if searched else None
        return self._known[number]

    def candidates(self, query: Query, fields: Sequence[Field]) -> Iterator[Candidate]:
        """Yield lines that may match: the best of the newest first, then those of older ones."""
        only, values = self._scope()
        select = (
            f"SELECT {_RANK}, -rowid FROM texts WHERE texts MATCH :match AND rowid < :before{only}"
            f" ORDER BY rowid DESC LIMIT {_RANKED}"
        )
        values = values | {"match": query.match(fields), "before": _END}
        while found := self._db.execute(select, values).fetchall():
            for rank, row in sorted(found):  # of equal rank, newer first
                session = self._session(-row >> OFFSET_BITS)
                raw = None if session is None else self._line(session.path, -row & OFFSETS)
                if session is not None and raw is not None:
                    yield Candidate(rank, session, -row & OFFSETS, raw)
            values["before"] = -found[-1][1]

    def _line(self, path: str, offset: int) -> bytes | None:
        return read_line(self._fs, path, offset, self._formats)

    def matches(self, query: Query) -> dict[str, int]:
        """Return how many indexed entries match, by field."""
        only, values = self._scope()
        select = f"SELECT count(*) FROM texts WHERE texts MATCH :match{only}"
        found: dict[str, int] = {}
        for field in INDEXED:
            (found[field],) = self._db.execute(select, values | {"match": query.match([field])}).fetchone()
        return found

    def _scope(self) -> tuple[str, dict[str, Any]]:
        """Return the condition that limits the index to the sessions to search; usually it is empty."""
        where, values = self._within
        counts = f"(SELECT count(*) FROM sessions), (SELECT count(*) FROM sessions WHERE {where})"
        everywhere, here, gone = self._db.execute(f"SELECT {counts}, (SELECT count(*) FROM gone)", values).fetchone()
        session = f" AND rowid >> {OFFSET_BITS} IN"
        if self._wanted is not None:
            return f"{session} (SELECT value FROM json_each(:wanted))", {
                "wanted": msgspec.json.encode(list(self._wanted)).decode()
            }
        if not self._keeps or everywhere > here or gone:
            return f"{session} (SELECT number FROM sessions WHERE format IS NOT NULL AND {where})", values
        return "", {}

    def titles(self, query: Query) -> list[str]:
        """Return the paths of sessions whose title contains every word. Trigrams exclude most titles quickly."""
        words = [fold(term.text.rstrip("*")) for term in query.terms]
        long = " AND ".join('"{}"'.format(word.replace('"', '""')) for word in words if len(word) >= _TRIGRAM)
        candidates = "number IN (SELECT rowid FROM titles WHERE titles MATCH ?)" if long else "?"
        select = f"SELECT number, title FROM sessions WHERE title IS NOT NULL AND (NOT searchable OR {candidates})"
        rows = self._db.execute(f"{select} ORDER BY mtime_ns DESC", (storable(long) or 1,)).fetchall()
        found = [self._session(number) for number, title in rows if all(word in fold(title) for word in words)]
        return [session.path for session in found if session is not None]


# -- scanning files

_MAX_SPANS = 1000  # matches that are marked in one text
_MAX_NEEDLE = 10_000
_CUT = encode_plain(FULL)  # in a line with a text that was cut
_LARGEST_OUTPUT = 64 << 20  # bytes; a larger file is not searched
_SPILLED = b"tool-results/"  # in a row of an agent that keeps a large result in a file of the session's folder
# Letters with accents in UTF-8: U+00C0–U+02BF, U+1E00–U+1EFF and wide letters; accents that follow a letter; and as escapes.
# Patterns start with one set of bytes, which makes them several times as fast, and may match too much.
_LEADS = rb"\xc3-\xca\xcc\xcd\xe1\xef"
_ACCENTED = rb"[%b\xc3-\xca\xe1\xef][\x80-\xbf]{0,2}(?:\xcc[\x80-\xbf]|\xcd[\x80-\xaf]){0,2}"
_LONGEST_LETTER = 7  # bytes, with its accents
_MARK = re.compile(rb"[%b](?:(?<=[\xc3-\xca\xcc\xcd])|[\xb8-\xbb]|\xbc[\xa1-\xba]|\xbd[\x81-\x9a])" % _LEADS)
_MARKS = 4000  # in a block; if there are more, going from one to the next takes longer than one pass
_NO_LEADS = bytes(byte for byte in range(256) if not re.match(b"[%b]" % _LEADS, bytes((byte,))))
_ESCAPED = re.compile(rb"\\u(?:00[c-f]|0[12]|03[0-6]|1e|ff[0-7])")


class Match(NamedTuple):
    """A text of an entry that contains the needle `times` times, at most 1000."""

    entry_id: str | None
    offset: int
    field: Field
    excerpt: Excerpt
    times: int


class Needle:
    """What to search for: a substring or a regular expression."""

    def __init__(self, text: str, *, regex: bool = False, case: bool | None = None) -> None:
        if not text or len(text) > _MAX_NEEDLE:
            raise InvalidQuery(f"the search text must have 1 to {_MAX_NEEDLE:,} characters", hint="shorten the text")
        exact = any(map(str.isupper, text)) if case is None else case
        try:
            self._pattern = re.compile(text, 0 if exact else re.IGNORECASE) if regex else _literal(text, exact)
        except (re.error, RecursionError, OverflowError) as error:
            hint = "escape special characters with a backslash, or search for a substring"
            raise InvalidQuery(f"invalid regular expression {text[:80]!r}: {error}", hint=hint) from error
        self._anchor = b"" if regex else _anchor(text, exact)
        self._spelling = None if regex or self._anchor else _spelling(text)
        self._exact = exact
        self._escapes = None if regex else _Escapes(text)
        self._solidus = not regex and "/" in text

    def spans(self, text: str) -> list[Span]:
        """Return where it is in a text."""
        found = []
        for match in self._pattern.finditer(text):
            if match.end() > match.start():
                found.append(match.span())
                if len(found) == _MAX_SPANS:
                    break
        return found

    def texts(self, entry: dict[str, Any]) -> list[tuple[Field, str]]:
        """Return the texts of an entry in which it is to be found."""
        return pieces(entry)

    def joined(self, texts: list[str]) -> list[str]:
        """Return other texts of a record as it is to be found in them."""
        return texts

    def candidates(self, block: bytes, also: bytes = b"") -> Iterator[Span]:
        """Yield the lines of a block that can contain it, or contain `also`. The block ends with a complete line."""
        at = 0
        find = self._finder(block)
        if also:
            find = _Merged([find, Substring(block, also)])
        while at < len(block) and (place := find(at)) >= 0:
            start = block.rfind(b"\n", at, place) + 1 or at
            end = block.find(b"\n", place)
            end = len(block) if end < 0 else end
            yield start, end
            at = end + 1

    def _finder(self, block: bytes) -> Callable[[int], int]:
        """Return a function that finds the next position, from a given one, where a line can contain the needle."""
        if not self._anchor and self._spelling is None:
            return lambda at: at
        finders = [self._first_finder(block)]
        # Few lines are escaped in another way than JavaScript does; those are decoded.
        if self._escapes is not None:
            finders.append(self._escapes.finder(block))
        if self._solidus:
            finders.append(Substring(block, b"\\/"))
        if len(finders) == 1:
            return finders[0]
        return _Merged(finders)

    def _first_finder(self, block: bytes) -> Callable[[int], int]:
        """Return the finder for the bytes of the needle as JavaScript writes them."""
        if self._spelling is not None:
            return _pattern_finder(self._spelling, block)
        folded = block if self._exact else block.lower()
        return Substring(folded, self._anchor)


class WordNeedle(Needle):
    """All words of a query, for texts that are not indexed. Only lines with the longest word are decoded."""

    def __init__(self, query: Query) -> None:
        if not query.terms:
            raise InvalidQuery("the query has no word", hint="search for a substring with -F")
        # A word with diacritics also matches without them, so prefer an ASCII word.
        runs = [run for term in query.terms for run, _ in term.runs]
        super().__init__(max(runs, key=lambda run: (run.isascii(), len(run))), case=False)
        self._query = query
        letters = (_ACCENTED % re.escape(bytes((letter,))) for letter in self._anchor)
        self._accented = re.compile(b"".join(letters)) if self._anchor.isascii() else None

    def _first_finder(self, block: bytes) -> Callable[[int], int]:
        """Return the finder for the word. Queries ignore accents, so each letter of the text may have one."""
        accented = self._accented
        if accented is None or (block.isascii() and b"\\u" not in block):
            return super()._first_finder(block)
        folded = block.lower()
        finders: list[Callable[[int], int]] = [Substring(folded, self._anchor), _pattern_finder(_ESCAPED, folded)]
        marks = 0 if block.isascii() else len(folded.translate(None, _NO_LEADS))
        if marks > _MARKS:
            finders.append(_pattern_finder(accented, folded))
        elif marks:
            finders.append(_Accented(accented, folded, _LONGEST_LETTER * len(self._anchor)))
        return _Merged(finders)

    def spans(self, text: str) -> list[Span]:
        """Return where the words are, if all of them are in the text."""
        return self._query.find(text)[:_MAX_SPANS]

    def texts(self, entry: dict[str, Any]) -> list[tuple[Field, str]]:
        """Return the texts of an entry as they are indexed: the words may be in different parts of a field."""
        return list(passages(entry).items())

    def joined(self, texts: list[str]) -> list[str]:
        """Return other texts of a record as one, for the same reason."""
        return ["\n".join(texts)]


def _pattern_finder(pattern: re.Pattern[bytes], block: bytes) -> Callable[[int], int]:
    """Return a function that finds the next match of a pattern from a given position."""
    return lambda at: match.start() if (match := pattern.search(block, at)) else -1


class _Accented:
    """Finds a word with accents, looking around letters that have some, for blocks with few of them."""

    def __init__(self, word: re.Pattern[bytes], block: bytes, reach: int) -> None:
        self._word = word
        self._block = block
        self._reach = reach  # bytes of the longest form of the word

    def __call__(self, at: int) -> int:
        start = at
        while (mark := _MARK.search(self._block, start)) is not None:
            start = mark.end()
            found = self._word.search(self._block, max(at, mark.start() - self._reach), start + self._reach)
            if found is not None:
                return found.start()
        return -1


class _Merged:
    """The nearest result of several finders; each is called again only when its last result is passed."""

    def __init__(self, finders: list[Callable[[int], int]]) -> None:
        self._finders = finders
        self._next = [-2] * len(finders)

    def __call__(self, at: int) -> int:
        for number, place in enumerate(self._next):
            if place != -1 and place < at:
                self._next[number] = self._finders[number](at)
        return min((place for place in self._next if place >= 0), default=-1)


def _literal(text: str, exact: bool) -> re.Pattern[str]:
    """Return a pattern for the text, unless `exact` with each letter in all its cases."""
    if exact:
        return re.compile(re.escape(text))
    return re.compile("".join(re.escape(char) if len(_cases(char)) == 1 else f"[{_cases(char)}]" for char in text))


def _cases(char: str) -> str:
    """Return a letter in all its cases, without cases of more than one letter."""
    forms = {form for form in (char.lower(), char.upper()) if len(form) == 1}
    return "".join(sorted(forms | {char}))


def _anchor(text: str, exact: bool) -> bytes:
    """Return the bytes of the longest part of the needle that has only one form, as JavaScript writes them."""
    known = [exact or char.isascii() or len(_cases(char)) == 1 for char in text]
    runs = re.finditer("1+", "".join("1" if is_known else "0" for is_known in known))
    parts = [part for run in runs for part in _whole_parts(text[run.start() : run.end()])]
    anchor = encode_plain(max(parts, key=len, default=""))[1:-1]
    return anchor if exact else anchor.lower()


def _whole_parts(text: str) -> list[str]:
    """Return the parts between characters without certain bytes: lone surrogates, and U+FFFD, which replaces bad UTF-8."""
    return re.split("[\ud800-\udfff\ufffd]", text)


def _spelling(text: str) -> re.Pattern[bytes] | None:
    """Return a pattern for the longest part of a needle without a known form: each letter in all its cases."""
    letters = [
        [re.escape(encode_plain(form)[1:-1]) for form in _cases(char)] for char in max(_whole_parts(text), key=len)
    ]
    return re.compile(b"".join(b"(?:%b)" % b"|".join(forms) for forms in letters)) if letters else None


class _Escapes:
    """Finds \\uXXXX escapes of the characters of a needle, in all cases, and of their surrogates."""

    def __init__(self, text: str) -> None:
        chars = {form for char in text for form in _cases(char)}
        units = {unit for char in chars for unit in re.findall(b"(?s)..", char.encode("utf-16-be", "surrogatepass"))}
        codes = sorted(unit.hex() for unit in units)
        # Their common start is searched first, which is faster: for ASCII it is \\u00.
        first, last = codes[0], codes[-1]
        shared = next((first[:n] for n in (4, 3, 2, 1) if last.startswith(first[:n]) and first[:n].isdecimal()), "")
        rest = "|".join(code[len(shared) :] for code in codes)
        self._beginning = rf"\u{shared}".encode()
        self._pattern = re.compile(rf"\\u{shared}(?i:{rest})".encode())

    def finder(self, block: bytes) -> Callable[[int], int]:
        """Return a function that finds the next escape from a given position."""
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
    formats: Formats,
    *,
    fields: Collection[Field] = SHOWN,
    findings: list[Finding] | None = None,
    start: int = 0,
    name: str = NATIVE,
    get: Get | None = None,
    deadline: float | None = None,
) -> Iterator[Match]:
    """Yield every text of a session file that contains the needle, in order.

    Lines that are too long to be searched are added to `findings`. `name` is the format of the file. With `get`, which returns
    blobs, texts that were cut are searched to their end, in any field. After `deadline`, a time of `time.monotonic`, it raises
    `Enough`.
    """
    with storage_failures(path, "search the session"):
        fd, _, damage, *_ = open_rows(fs, path, formats)
        unread = [] if findings is None else findings
        unread += damage
        nested = name != NATIVE and formats.is_nested(name)
        also = b"" if get is None else _CUT if name == NATIVE else _SPILLED
        whole = None if get is None else _Whole(fs, path, get)
        try:
            for offset, block in _blocks(fs, fd, start, unread):
                if deadline is not None and time.monotonic() > deadline:
                    raise Enough
                # JSON inside JSON is escaped twice, so the bytes of the needle are not known.
                for begin, end in ((0, len(block)),) if nested else needle.candidates(block, also):
                    yield from _matches(block[begin:end], offset + begin, needle, fields, name, formats, whole)
        finally:
            fs.close(fd)


def _blocks(fs: Filesystem, fd: int, at: int, findings: list[Finding]) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of complete lines with their offsets; the last line may lack its newline."""
    held: list[bytes] = []  # the start of a line that is not complete yet
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


class _Whole:
    """Restores the texts of an entry that are elsewhere: in a blob, or in a file of the session's folder."""

    def __init__(self, fs: Filesystem, path: str, get: Get) -> None:
        self._fs = fs
        self._folder = artifacts_of(path)
        self._get = get

    def __call__(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return the entry with these texts, or the entry itself."""
        whole = restore(entry, self._get, lambda digest: None, media=False) if FULL in entry else entry
        message = whole.get("message")
        details = message.get("details") if isinstance(message, dict) else None
        name = details.get("fullOutput") if isinstance(details, dict) else None
        text = self._output(name) if isinstance(name, str) else None
        if text is None or not isinstance(message, dict):
            return whole
        return {**whole, "message": {**message, "content": [{"type": "text", "text": text}]}}

    def _output(self, name: str) -> str | None:
        if name.startswith("/") or ".." in name.split("/"):
            return None
        path = f"{self._folder}/{name}"
        try:
            status = self._fs.lstat(path)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_OUTPUT:
                return None
            return atomic.read_all(self._fs, path).decode("utf-8", "replace")
        except (OSError, ValueError):  # it was removed since, or no file has such a name
            return None


def _matches(
    raw: bytes,
    offset: int,
    needle: Needle,
    fields: Collection[Field],
    name: str,
    formats: Formats,
    restored: _Whole | None,
) -> Iterator[Match]:
    for line in lines_in(name, raw, offset, formats):
        entries = list(entries_in(name, line, formats))
        known: set[str] = set()
        is_found = False
        for entry_id, entry in entries:
            whole = entry if restored is None else restored(entry)
            # The index has the beginning of a text that was cut: a match that is only in its end is found in any field.
            cut = () if whole is entry else {field for field, text in needle.texts(entry) if not needle.spans(text)}
            for field, text in needle.texts(whole):
                if (field in fields or field in cut) and (spans := needle.spans(text)):
                    is_found = True
                    yield Match(entry_id, line.offset, field, excerpt(text, spans), len(spans))
        if "other" not in fields:
            continue
        for _, entry in entries:
            # Of the titles that an agent wrote, the index has those that named the session when they were written.
            if name == NATIVE or entry.get("type") != "session_info":
                known.update(text for _, text in pieces(entry))
        # What an agent writes is read from its own row: its entry need not have everything. A text that its reader has
        # changed, such as JSON inside JSON, must not be found twice.
        if name != NATIVE and (is_found or any(needle.spans(text) for text in known)):
            continue
        for text in needle.joined(rest(decoded(line) or {}, known)):
            if spans := needle.spans(text):
                yield Match(entries[0][0] if entries else None, line.offset, "other", excerpt(text, spans), len(spans))


# -- what the index does not have

_WIDENING = 2.0  # seconds for other fields if there are few hits; if there are none, the whole timeout
_COUNTING = 0.3  # seconds for counting in other fields if there are enough hits


class Rest:
    """One scan of what the index does not have, which completes the results of a search."""

    def __init__(
        self,
        fs: Filesystem,
        formats: Formats,
        blobs: Blobs,
        text: str,
        found: Results,
        *,
        fields: Sequence[Field] | None,
        limit: int,
        count: bool,
    ) -> None:
        self._fs = fs
        self._formats = formats
        self._blobs = blobs
        self._needle = WordNeedle(Query(text))
        self._found = found
        self._asked = INDEXED if fields is None else fields
        self._widens = fields is None
        self._limit = limit
        self._count = count
        self._seen = {(hit.path, hit.offset, hit.entry_id, hit.field) for hit in found.hits}
        self._shown = {place[:3] for place in self._seen}
        self._titles = set(found.titles)
        self._unread = set(found.unread)
        self._matches = dict(found.matches)
        self._hits = list(found.hits)
        self._beside: list[Hit] = []  # in fields that were not asked for
        self._problems: list[str] = []
        self._deadline: float | None = None
        self._excluded = found.excluded
        self._unscanned = 0

    def read(
        self, rows: Sequence[SessionRow], timeout: float | None, progress: Callable[[Progress], None] | None
    ) -> None:
        """Read sessions, newest first, as long as it may find something that is wanted."""
        began = time.monotonic()
        self._deadline = None if timeout is None else began + timeout
        # Sessions that are not indexed yet come first: their hits are in fields that were asked for.
        readable = sorted((row for row in rows if row.format is not None), key=lambda row: row.searchable)
        fields = [field for field in NOT_INDEXED if field in self._asked or self._widens or self._count]
        total, done = sum(row.size or 0 for row in readable), 0
        for field in fields:
            self._matches.setdefault(field, 0)
        for number, row in enumerate(readable):
            self._shorten(began)
            mine = fields if row.searchable else [*self._asked, *(one for one in fields if one not in self._asked)]
            if mine and not self._read(row, mine):
                self._unscanned = len(readable) - number
                break
            self._unread.discard(row.path)
            done += row.size or 0
            if progress is not None:
                progress(Progress("scan", done, total))
        self._problems += [f"{row.path} was not searched: {row.problem}" for row in rows if row.format is None]

    def _shorten(self, began: float) -> None:
        """Set the time for the rest: the more hits there are, the less."""
        if self._unread or (any(field not in INDEXED for field in self._asked) and len(self._hits) < self._limit):
            return
        if len(self._hits) >= FEW or not self._widens:
            most = _COUNTING if self._count else 0.0
        elif self._hits or self._beside or self._found.titles:
            most = _WIDENING
        else:
            return
        self._deadline = min(began + most, began + most if self._deadline is None else self._deadline)

    def _read(self, row: SessionRow, fields: Sequence[Field]) -> bool:
        """Read one session; return whether there was time for all of it."""
        for match in self._scanned(row, fields):
            if match is None:
                return False
            place = (row.path, match.offset, match.entry_id, match.field)
            # The current title may be in the header, and an agent's title in a row that is indexed.
            is_title = match.field == "other" and (row.path, match.offset, match.entry_id) in self._shown
            if place in self._seen or is_title or (match.entry_id is None and row.path in self._titles):
                continue
            self._seen.add(place)
            self._matches[match.field] = self._matches.get(match.field, 0) + 1
            hit = Hit(row.path, row.id or "", match.entry_id, match.offset, match.field, match.excerpt, None)
            into = self._hits if match.field in self._asked else self._beside
            if len(into) < self._limit:
                into.append(hit)
        return True

    def _scanned(self, row: SessionRow, fields: Sequence[Field]) -> Iterator[Match | None]:
        """Yield the matches in one session, and `None` when the time is up."""
        unread: list[Finding] = []
        try:
            yield from scan_file(
                self._fs,
                row.path,
                self._needle,
                self._formats,
                fields=fields,
                findings=unread,
                name=row.format or NATIVE,
                get=self._blobs.of_session(row.path).get,
                deadline=self._deadline,
            )
        except Enough:
            yield None
        except (StorageFailure, SessionNotFound) as error:
            self._problems.append(f"{row.path} was not searched: {error.message}")
        self._problems += [f"{row.path}: {finding.detail}, not searched" for finding in unread]

    def count_beyond(self, rows: Sequence[SessionRow]) -> None:
        """Count the matches in sessions that the filter excludes, if there are no others."""
        if self._hits or self._beside or self._found.titles or self._unscanned:
            return
        for row in rows:
            fields = NOT_INDEXED if row.searchable else FIELDS
            for match in self._scanned(row, fields) if row.format is not None else ():
                if match is None:
                    return
                self._excluded += 1

    def results(self) -> Results:
        """Return all hits: those in fields that were asked for, then the others if there are few."""
        others = self._beside if self._widens and len(self._hits) < FEW else []
        return self._found._replace(
            hits=[*self._hits, *others][: self._limit],
            matches=self._matches if self._count else self._found.matches,
            pending=len(self._unread),
            unread=[path for path in self._found.unread if path in self._unread],
            unscanned=self._unscanned,
            excluded=self._excluded,
            problems=self._problems,
        )


# -- substrings of bytes

# The C library is twice as fast as `bytes.find`, and lets other threads run. Linux and macOS have memmem.
_memmem = ctypes.CDLL(None).memmem
_memmem.restype = ctypes.c_void_p
_memmem.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)


class Substring:
    """Finds a needle in a block of bytes: `Substring(block, needle)(at)` is `block.find(needle, at)`."""

    def __init__(self, block: bytes, needle: bytes) -> None:
        self._block = block  # keeps its address valid
        self._begin = ctypes.cast(ctypes.c_char_p(block), ctypes.c_void_p).value or 0
        self._needle = needle

    def __call__(self, at: int) -> int:
        size = len(self._block)
        if at >= size:
            return -1
        found: int | None = _memmem(self._begin + at, size - at, self._needle, len(self._needle))
        return -1 if found is None else found - self._begin
