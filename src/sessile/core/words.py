"""Words: the searchable text of entries, how it is split for a full-text index, and what a query matches.

`passages` returns the texts of an entry by field:

    text         messages of users and models, errors, summaries, labels, titles, tags, tasks
    thinking     what a model thought
    tool_input   names and arguments of tool calls, commands that a user ran, paths of files that were mentioned
    tool_result  output of tools and commands, content of files that were mentioned

`rest` returns what is in none of these, the field `other`: every other string of a record as it is stored, such as system
prompts, custom data, details of tool results, model names, and rows of other agents beside the conversation. It leaves out:

    ids, times, versions    look them up with `show` or `tree`; they are no text
    `cwd`, `gitBranch`      the folder of a session, in every row of some agents: filter with -p
    `type`, `role`          words of the format
    names of members        words of the format too, unless they are no plain names, as paths of files
    images, signatures      data that nobody can read

Rules of a query:
- Case and diacritics are ignored, unless a word of the query contains a capital: then its case counts.
- All words must occur, in any order; "…" is a phrase; a trailing * matches the rest of a word.
- In scripts without spaces (Chinese, Japanese, Korean, Thai, …) and symbols any part of a run matches. Runs are indexed as
  pairs of characters and a last single one, so that any part is a phrase of pairs, and one character is a prefix.
- An index may return too much, never too little: `Query.find` decides on the text itself.

`indexed` rewrites text so that SQLite's unicode61 tokenizer sees the same words as `Query`, whatever its version: ASCII is
unchanged, and private characters replace those that the tokenizer may not take for letters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

from sessile.core.kinds import TAG

Field = Literal["text", "thinking", "tool_input", "tool_result", "other"]
Piece = tuple[Field, str]
Span = tuple[int, int]

FIELDS: tuple[Field, ...] = ("text", "thinking", "tool_input", "tool_result", "other")
SHOWN: tuple[Field, ...] = FIELDS[:-1]  # what a transcript shows
INDEXED: tuple[Field, ...] = ("text", "thinking", "tool_input")  # results are most of the bytes and least relevant
NOT_INDEXED: tuple[Field, ...] = tuple(field for field in FIELDS if field not in INDEXED)
FEW = 5  # hits; with fewer, a search also shows those in fields that were not asked for

_BEFORE, _EXCERPT = 40, 160  # characters
_TEXT_MEMBERS = {
    "compaction": ("summary", "shortSummary"),
    "branch_summary": ("summary",),
    "label": ("label",),
    "session_init": ("task",),
    "session_info": ("name",),
    "title_change": ("title",),
}
_TALKING = ("user", "assistant", "toolResult")
_RUNS = {"bashExecution": ("command", "output"), "pythonExecution": ("code", "output")}
_IDS = frozenset(("id", "parentId", "uuid", "parentUuid", "logicalParentUuid", "leafUuid", "sessionId", "session_id"))
_NOT_TEXT = _IDS | {"timestamp", "version", "cwd", "gitBranch"}  # members of a record that `rest` leaves out
_FORMAT_WORDS = frozenset(("type", "role"))
_OPAQUE = frozenset(
    ("thinkingSignature", "thoughtSignature", "textSignature", "signature", "encrypted_content", "sessile.full")
)
_IMAGE = ("mimeType", "media_type")
_PLAIN_NAME = re.compile(r"[\w.$-]*", re.ASCII)


class Excerpt(NamedTuple):
    """A part of a passage; `marks` are the matches in it, `before` and `after` tell whether there is more."""

    text: str
    marks: tuple[Span, ...]
    before: bool
    after: bool


def pieces(entry: Mapping[str, Any]) -> list[Piece]:
    """Return every text of an entry with its field, in order."""
    kind = entry.get("type")
    if kind == "message":
        message = entry.get("message")
        return _of_message(message) if isinstance(message, dict) else []
    if kind == "custom_message":
        return _of_content(entry.get("content"), "text")
    if kind == "custom":
        data = entry.get("data")
        is_tag = entry.get("customType") == TAG and isinstance(data, dict)
        return _given([(data.get("tag"), "text")]) if is_tag and data else []
    return _given((entry.get(name), "text") for name in _TEXT_MEMBERS.get(kind, ())) if isinstance(kind, str) else []


def passages(entry: Mapping[str, Any]) -> dict[Field, str]:
    """Return the texts of an entry by field, joined by line breaks."""
    found = pieces(entry)
    if len(found) < 2:
        return dict(found)
    texts: dict[Field, list[str]] = {}
    for field, text in found:
        texts.setdefault(field, []).append(text)
    return {field: "\n".join(several) for field, several in texts.items()}


def rest(record: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """Return the strings of a stored record that are in no other field, in order; `known` are the texts of those fields."""
    found: list[str] = []
    waiting: list[object] = [{name: value for name, value in record.items() if name not in _NOT_TEXT}]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if value and value not in known:
                found.append(value)
        elif isinstance(value, dict):
            left_out = _OPAQUE | {"data"} if any(name in value for name in _IMAGE) else _OPAQUE
            found += [name for name in value if not _PLAIN_NAME.fullmatch(name)]
            waiting += [
                item
                for name, item in reversed(value.items())
                if name not in left_out and not (name in _FORMAT_WORDS and isinstance(item, str))
            ]
        elif isinstance(value, list):
            waiting.extend(reversed(value))
    return found


def _of_message(message: Mapping[str, Any]) -> list[Piece]:
    role = message.get("role")
    if role in _TALKING:
        found = _of_content(message.get("content"), "tool_result" if role == "toolResult" else "text")
        error = message.get("errorMessage")
        # Some agents repeat the error as the answer.
        if isinstance(error, str) and error and all(error != text for _, text in found):
            found.append(("text", error))
        return found
    if isinstance(role, str) and role in _RUNS:
        command, output = _RUNS[role]
        return _given([(message.get(command), "tool_input"), (message.get(output), "tool_result")])
    if role == "fileMention":
        files = [file for file in _list(message.get("files")) if isinstance(file, dict)]
        return _given(
            piece
            for file in files
            for piece in ((file.get("path"), "tool_input"), (file.get("content"), "tool_result"))
        )
    if role in ("branchSummary", "compactionSummary"):
        return _given([(message.get("summary"), "text"), (message.get("shortSummary"), "text")])
    return _of_content(message.get("content"), "text")


def _of_content(content: object, field: Field) -> list[Piece]:
    if isinstance(content, str):
        return [(field, content)] if content else []
    found: list[Piece] = []
    for block in _list(content):
        if not isinstance(block, dict):
            continue
        kind = block.get("type")
        if kind == "text" or kind == "thinking":
            text = block.get(kind)
            if isinstance(text, str) and text:
                found.append((field if kind == "text" else "thinking", text))
        elif kind == "toolCall":
            found += _given([(block.get("name"), "tool_input")])
            found += [("tool_input", text) for text in _scalars(block.get("arguments"))]
    return found


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _given(values: Iterable[tuple[object, Field]]) -> list[Piece]:
    """Return the non-empty texts."""
    return [(field, value) for value, field in values if isinstance(value, str) and value]


def _scalars(value: object) -> list[str]:
    """Return the strings and whole numbers in a value, in order, without member names."""
    found: list[str] = []
    waiting: list[object] = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if value:
                found.append(value)
        elif isinstance(value, dict):
            waiting.extend(reversed(value.values()))
        elif isinstance(value, list):
            waiting.extend(reversed(value))
        elif isinstance(value, int) and not isinstance(value, bool):
            found.append(str(value))
    return found


def excerpt(text: str, spans: Sequence[Span], width: int = _EXCERPT) -> Excerpt:
    """Return the part of a text around its first match."""
    first = spans[0][0] if spans else 0
    start = max(0, first - _BEFORE)
    if start:
        space = text.find(" ", start, first)  # start with a whole word if there is one
        start = space + 1 if space >= 0 else start
    end = min(len(text), start + width)
    marks = tuple((a - start, min(b, end) - start) for a, b in spans if start <= a < end)
    return Excerpt(text[start:end], marks, start > 0, end < len(text))


def marked(part: Excerpt) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of an excerpt, each with whether it is a match; an ellipsis where there is more."""
    if part.before:
        yield "…", False
    at = 0
    for start, end in part.marks:
        if start >= at:
            if start > at:
                yield part.text[at:start], False
            yield part.text[start:end], True
            at = end
    if at < len(part.text):
        yield part.text[at:], False
    if part.after:
        yield "…", False


# -- queries

_MARKS = "\u0300-\u036f"
_JOINT = (
    "\u0640"  # an Arabic letter that only lengthens a word; replaces combining marks, so that texts keep their length
)

# Scripts without spaces, and symbols: every character may be searched for by itself.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u30ff"
    "\u3105-\u312f\u3131-\u318e\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"
    "\u00a2-\u00a9\u00ac\u00ae-\u00b1\u00d7\u00f7\u20a0-\u20cf\u2100-\u214f\u2190-\u2bff\U0001f000-\U0001faff"
)
_PRIVATE, _PRIVATES = 0xE000, 6400
_ASKED = re.compile(r'"([^"]*)"?|(\S+)')
_LONGEST_TERM = 1000  # characters


class _Patterns(NamedTuple):
    """Patterns over all of Unicode: slow to compile, so compiled on first use; a plain listing needs none."""

    letter: re.Pattern[str]
    run: re.Pattern[str]
    stretch: re.Pattern[str]
    foreign: re.Pattern[str]
    word: re.Pattern[str]


@cache
def _patterns() -> _Patterns:
    letter = f"[^\\W_{_UNSPACED}]"
    return _Patterns(
        letter=re.compile(letter),
        run=re.compile(f"([{_UNSPACED}]+)|{letter}+"),
        # Starts at the start of a word and does not backtrack: a megabyte of base64 must be scanned only once.
        stretch=re.compile("(?<![0-9a-z])[0-9a-z]*+[^\x00-\x7f][0-9a-z\x80-\U0010ffff]*+"),
        # Characters other than those that SQLite 3.40 certainly treats as letters and keeps when folding.
        foreign=re.compile(
            "[^\x00-\x7f\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0391-\u03c9\u0410-\u044f\u3041-\u3096"
            "\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3]"
        ),
        word=re.compile("[0-9a-z\x80-\U0010ffff]+"),  # in the result of `indexed`, in lower case
    )


class _Folding(dict[int, int]):
    """Maps each character to one character, computed on first use."""

    def __init__(self, lower: bool) -> None:
        self._lower = lower

    def __missing__(self, code: int) -> int:
        char = chr(code)
        if re.match(f"[{_MARKS}]", char):
            folded = _JOINT
        else:
            base = re.sub(f"[{_MARKS}]", "", unicodedata.normalize("NFKD", char))
            char = base if len(base) == 1 else char
            lowered = char.lower() if self._lower else char
            folded = lowered if len(lowered) == 1 else char
            folded = "σ" if folded == "ς" else folded  # the choice between the two depends on the next letter
        self[code] = ord(folded)
        return self[code]


_FOLD_ALL, _FOLD_MARKS = _Folding(lower=True), _Folding(lower=False)


def fold(text: str, *, keep_case: bool = False) -> str:
    """Return the text without case and diacritics, character by character, so positions stay the same."""
    if text.isascii():
        return text if keep_case else text.lower()
    return text.translate(_FOLD_MARKS if keep_case else _FOLD_ALL)


def indexed(text: str) -> str:
    """Return the text as it is put into the index."""
    return text if text.isascii() else _patterns().stretch.sub(lambda stretch: _spread(stretch.group()), text.lower())


def words_of(text: str) -> list[str]:
    """Return the words of a text in order, as SQLite's tokenizer splits `indexed` text."""
    return _patterns().word.findall(indexed(text.lower()))


@lru_cache(maxsize=8192)  # words repeat
def _spread(stretch: str) -> str:
    return " ".join(token for run, unspaced in _runs(fold(stretch)) for token in _tokens(run, unspaced))


def _runs(folded: str) -> Iterator[tuple[str, bool]]:
    """Yield the words and unspaced runs of a folded text, each with whether it is unspaced."""
    for match in _patterns().run.finditer(folded):
        text = match.group().replace(_JOINT, "")
        if text:
            yield text, match.group(1) is not None


def _tokens(run: str, unspaced: bool) -> Iterator[str]:
    """Yield the tokens of a run in the index."""
    run = _patterns().foreign.sub(_stand_in, run)
    if unspaced:
        yield from (run[i : i + 2] for i in range(len(run) - 1))
        yield run[-1]
    else:
        yield run


def _stand_in(foreign: re.Match[str]) -> str:
    return chr(_PRIVATE + ord(foreign.group()) % _PRIVATES)


class Term(NamedTuple):
    """A word or phrase of a query: its runs, folded."""

    text: str
    runs: tuple[tuple[str, bool], ...]
    keep_case: bool
    open_end: bool

    def words(self) -> tuple[list[str], bool]:
        """Return the words that must follow each other in an index, and whether the last one is a prefix."""
        folded = [(fold(run), unspaced) for run, unspaced in self.runs]
        tokens = [token for run, unspaced in folded for token in _tokens(run, unspaced)]
        last, unspaced = folded[-1]
        if unspaced and len(last) > 1:
            tokens.pop()  # the text may continue after the last pair
        return tokens, self.open_end or (unspaced and len(last) == 1)

    def phrase(self) -> str:
        """Return the term as an FTS5 phrase; tokens contain no special characters."""
        tokens, is_open = self.words()
        return f'"{" ".join(tokens)}"{"*" if is_open else ""}'

    def pattern(self) -> re.Pattern[str]:
        """Return a pattern of candidates in a folded text; `is_at` decides. An exact pattern would be slow to compile."""
        start = "" if self.runs[0][1] else "(?<![0-9A-Za-z])"
        joint = f"{_JOINT}*"
        return re.compile(start + r"[\W_]*".join(joint.join(map(re.escape, run)) + joint for run, _ in self.runs))

    def is_at(self, folded: str, start: int, end: int) -> bool:
        """Return whether a match of the pattern covers whole words."""
        if tuple(_runs(folded[start:end])) != self.runs:
            return False
        if start and not self.runs[0][1] and _patterns().letter.match(folded[start - 1]):
            return False
        return self.open_end or self.runs[-1][1] or not _patterns().letter.match(folded[end : end + 1])


class Query:
    """A search query. Any text is valid; `ignored` lists parts that no index can find, such as `=>`."""

    def __init__(self, text: str) -> None:
        self.terms: list[Term] = []
        self.ignored: list[str] = []
        for phrase, word in _ASKED.findall(text):
            self._ask((phrase or word)[:_LONGEST_TERM], open_end=bool(word) and word.endswith("*"))
        self._patterns = [term.pattern() for term in self.terms]

    def _ask(self, text: str, *, open_end: bool) -> None:
        keep_case = any(map(str.isupper, text))
        runs = tuple(_runs(fold(text, keep_case=keep_case)))
        if runs:
            self.terms.append(Term(text, runs, keep_case, open_end and not runs[-1][1]))
        elif text.strip():
            self.ignored.append(text)

    def match(self, fields: Sequence[str]) -> str:
        """Return the query for FTS5: all terms, each in any of these columns."""
        return f"{{{' '.join(fields)}}} : ({' AND '.join(term.phrase() for term in self.terms)})"

    def find(self, text: str) -> list[Span]:
        """Return where the terms are in a text, in order; empty unless all of them occur."""
        spans: list[Span] = []
        for term, pattern in zip(self.terms, self._patterns, strict=True):
            found = list(_found(term, pattern, fold(text, keep_case=term.keep_case)))
            if not found:
                return []
            spans += found
        return sorted(spans)


def _found(term: Term, pattern: re.Pattern[str], folded: str) -> Iterator[Span]:
    match = pattern.search(folded)
    while match is not None:
        start, end = match.span()
        is_match = term.is_at(folded, start, end)
        if is_match:
            yield start, end
        match = pattern.search(folded, end if is_match else start + 1)
