"""Finds secrets in text and in JSON, and puts stable placeholders in their place.

Rules:

- The same secret gets the same placeholder throughout one `Redactor`: `[REDACTED:anthropic-key#1]`. The story stays readable.
- What was redacted is scanned again until nothing is found. A text that does not settle is hidden as a whole.
- Only text changes: objects keep their members, lists their items, numbers their value. Images and signatures are left alone:
  a changed byte breaks them, and no secret can be read in them.
- The report names rule, place and count, and never the secret.

Finding takes time in proportion to the text: a pattern is tried only where its literal stands. It is a best effort: the
table of shapes decides, and whether a key is alive is not known here. Nothing is read or written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from sessile.core.secret_shapes import RULES, SECRET, WORD, Rule, random_looking, strong_password
from sessile.core.visible import uncoloured
from sessile.errors import TooLarge

MAX_PLACES = 100  # a report names so many places of one secret; `count` counts them all
MAX_LEARNED = 256  # each learned secret is looked for in every text
MAX_PASSES = 4  # two are enough for any text that was not built to need more
UNSETTLED = "unsettled"  # the rule that hides such a text

_SHORTEST = 8  # characters; nothing shorter is a secret or an address
_SHORT = 400  # characters
_LONGEST_VALUE = 8192  # characters; a longer text under a telling name is prose

# Base64 that is long enough to be an image or a signature, and longer than every key that could pass for base64.
_OPAQUE = re.compile(r"[A-Za-z0-9+/=\r\n]{256,}|[A-Za-z0-9_=-]{256,}")
_DATA_URL = re.compile(r"data:[\w.+/-]{1,128}(?:;[\w.+=-]{1,64}){0,4};base64,[A-Za-z0-9+/=_-]*")
_SIGNATURES = frozenset(
    ("signature", "thinkingSignature", "thoughtSignature", "textSignature", "thought_signature", "encrypted_content")
)
_MEDIA = ("image", "audio", "video", "file", "base64", "input_audio", "redacted_thinking")
_MEDIA_MEMBERS = frozenset(("mimeType", "mime_type", "media_type", "mediaType"))

# The search for a literal stops at one of its characters: at one where the search for others stops too, or at a rare one.
_STOPS = "./_-wk"  # the last is the best
_COMMON = " etaoinsrlcdupmfhg,()=\"':y\nbv01[]2TESx"
_INSIDE = r"[g-loqsu-zG-Z_-]"  # before this, no word can start: what remains is left to the patterns
_NAME_ENDS = r"(?=[\w.-]{0,48}+[\\\"'`\] \t:=])"


class Secret(NamedTuple):
    """Where a secret stands in a text, and the rule that found it."""

    rule: str
    start: int
    end: int


class Redaction(msgspec.Struct, frozen=True):
    """What may be told of one secret: how it begins (`hint`), how long it is, how often and where it was found."""

    rule: str
    placeholder: str
    hint: str
    length: int
    count: int
    where: tuple[str, ...]
    kept: bool

    def counted(self, count: int) -> Redaction:
        """The same with another count."""
        return replace(self, count=count)


def find_secrets(text: str, *, name: str = "", groups: Iterable[str] = (SECRET,)) -> list[Secret]:
    """The secrets in a text, in order, none overlapping another.

    `name` is what the text is called where it was found: the value of `"api_key"` is judged as one. Where two rules meet,
    all that either found is one secret, under the name of the rule that says more.
    """
    return _merged(_hits(text, name, frozenset(groups)))


_Hit = tuple[int, int, int, str]  # start, the row of the rule, end, its name


def _hits(text: str, name: str, groups: frozenset[str]) -> list[_Hit]:
    if len(text) < _SHORTEST:
        return []
    hits = list(_search(text, groups))
    if "\x1b" in text:  # a tool that marks what it found cuts a key into pieces, and people see it whole
        plain, place = uncoloured(text)
        hits += ((place(start), rank, place(end - 1) + 1, rule) for start, rank, end, rule in _search(plain, groups))
    if name and len(text) <= _LONGEST_VALUE and _tells(name):
        lead = len(name) + 2
        for start, rank, end, rule in _search(f'{name}="{text}"', groups):
            start, end = max(start - lead, 0), min(end - lead, len(text))
            if start < end:
                hits.append((start, rank, end, rule))
    return hits


def _merged(hits: list[_Hit]) -> list[Secret]:
    """One secret for all hits that share a character; dropping one of them could leave half a secret."""
    merged: list[_Hit] = []
    for hit in sorted(hits):
        if merged and hit[0] < merged[-1][2]:
            start, rank, end, rule = merged[-1]
            rank, rule = min((rank, rule), (hit[1], hit[3]))
            merged[-1] = start, rank, max(end, hit[2]), rule
        else:
            merged.append(hit)
    return [Secret(rule, start, end) for start, _, end, rule in merged]


@lru_cache(maxsize=4096)  # the same few names, over and over
def _tells(name: str) -> bool:
    """Whether a name says that its value is a secret."""
    lower = name.lower()
    return len(name) <= 128 and any(word in lower for rule in RULES if rule.folded for word in rule.literals)


class _Row(NamedTuple):
    """A rule, ready to run."""

    rank: int
    rule: Rule
    pattern: re.Pattern[str]
    before: re.Pattern[str] | None

    @property
    def in_word(self) -> bool:
        """Whether the rule asks for the start of a word."""
        return self.rule.pattern.startswith(WORD)

    def hit(self, text: str, match: re.Match[str]) -> _Hit | None:
        start, end = match.span("secret" if "secret" in self.pattern.groupindex else 0)
        if self.before is not None:
            lead = self.before.search(text, max(start - 64, 0), start)
            if lead is None:
                return None
            start = lead.start()
        if self.rule.accept is not None and not self.rule.accept(text[start:end]):
            return None
        return start, self.rank, end, self.rule.name


class _Gate(NamedTuple):
    """Stops where literals may stand: at one character, if what comes before it fits. The group tells the width of that."""

    pattern: re.Pattern[str]
    widths: tuple[int, ...]
    rows: dict[str, list[tuple[int, _Row]]]  # by what was found up to the stop; with the width of the row's own literal


class _Finder(NamedTuple):
    """The table, ready to run on texts: gates for the text as it is and in lower case, and rows that search for themselves."""

    exact: tuple[_Gate, ...]
    folded: tuple[_Gate, ...]
    alone: tuple[_Row, ...]
    any: re.Pattern[str]  # all of it at once, case or not: slower on long texts, much faster on short ones


@lru_cache(maxsize=4)
def _finder(groups: frozenset[str]) -> _Finder:
    rows = [_row(rank, rule) for rank, rule in enumerate(RULES) if rule.group in groups]
    # A literal of one character stops everywhere; the pattern itself looks for it faster.
    alone = tuple(row for row in rows if len(row.rule.literals[0]) == 1)
    rest = [row for row in rows if row not in alone]
    exact = _gates([row for row in rest if not row.rule.folded])
    folded = _gates([row for row in rest if row.rule.folded])
    ways = "|".join(
        [gate.pattern.pattern for gate in exact]
        + [row.pattern.pattern for row in alone]
        + [f"(?i:{gate.pattern.pattern})" for gate in folded]
    )
    return _Finder(exact, folded, alone, re.compile(ways, re.ASCII | re.DOTALL))


def _row(rank: int, rule: Rule) -> _Row:
    flags = re.ASCII | re.IGNORECASE if rule.folded else re.ASCII
    before = re.compile(rf"(?:{rule.before})\Z", re.ASCII) if rule.before else None
    return _Row(rank, rule, re.compile(rule.pattern, flags), before)


def _gates(rows: list[_Row]) -> tuple[_Gate, ...]:
    heads: dict[str, list[_Row]] = {}
    for row in rows:
        for literal in row.rule.literals:
            heads.setdefault(_head(literal), []).append(row)
    return tuple(
        _gate(stop, {head: of_head for head, of_head in heads.items() if head[-1] == stop})
        for stop in dict.fromkeys(head[-1] for head in heads)
    )


def _head(literal: str) -> str:
    """A literal up to the character at which the search for it stops."""
    places = range(min(2, len(literal) - 1), len(literal))
    return literal[: max(places, key=lambda place: (_rarity(literal[place]), place)) + 1]


def _gate(stop: str, heads: dict[str, list[_Row]]) -> _Gate:
    # Python wants one width in each look behind, and is quick with plain words in one. The longest comes first, and stands
    # for the shorter ones that it ends with.
    widths = sorted({(len(head), all(row.in_word for row in rows)) for head, rows in heads.items()}, reverse=True)
    behind = []
    for width, in_word in widths:
        words = [
            re.escape(head)
            for head, rows in heads.items()
            if (len(head), all(r.in_word for r in rows)) == (width, in_word)
        ]
        behind.append(f"(?<={'|'.join(words)}){rf'(?<!{_INSIDE}.{{{width}}})' if in_word else ''}()")
    rows = {
        head: [(len(end), row) for end, of_end in heads.items() if head.endswith(end) for row in of_end]
        for head in heads
    }
    # A name is followed by what separates it from its value; asking here spares most tries.
    then = _NAME_ENDS if all(row.rule.folded for of_head in heads.values() for row in of_head) else ""
    pattern = re.compile(f"{re.escape(stop)}(?:{'|'.join(behind)}){then}", re.DOTALL)
    return _Gate(pattern, tuple(width for width, _ in widths), rows)


def _rarity(character: str) -> int:
    if character in _STOPS:
        return len(_COMMON) + 1 + _STOPS.index(character)
    return _COMMON.index(character) if character in _COMMON else len(_COMMON)


def _search(text: str, groups: frozenset[str]) -> Iterator[_Hit]:
    finder = _finder(groups)
    # One ASCII character for each: the same offsets, and patterns run on narrow strings.
    plain = text if text.isascii() else text.encode("ascii", "replace").decode("ascii")
    if len(plain) < _SHORT and finder.any.search(plain) is None:
        return
    for row in finder.alone:
        for match in row.pattern.finditer(plain):
            hit = row.hit(plain, match)
            if hit is not None:
                yield hit
    yield from _through(finder.exact, plain, plain)
    yield from _through(finder.folded, plain.lower(), plain)


def _through(gates: tuple[_Gate, ...], folded: str, text: str) -> Iterator[_Hit]:
    for pattern, widths, rows in gates:
        done: dict[int, int] = {}  # where the last hit of a row ended: within it, the row is not tried again
        for stop in pattern.finditer(folded):
            end = stop.end()
            for width, row in rows[folded[end - widths[(stop.lastindex or 1) - 1] : end]]:
                if end - width < done.get(row.rank, 0):
                    continue
                match = row.pattern.match(text, end - width)
                hit = None if match is None else row.hit(text, match)
                if hit is not None:
                    done[row.rank] = hit[2]
                    yield hit


class Redactor:
    """Redacts one export: all its texts share the numbers of their placeholders.

    `known` maps texts to the rule they count for: they are hidden wherever they stand as a word of their own (a user name,
    what a person chose to hide everywhere). A secret that only its surroundings gave away (`PASSWORD=…`) is known from then
    on; to hide earlier occurrences too, redact everything twice with one redactor. `keep` holds placeholders whose secrets
    a person chose to show; they keep their numbers and are reported as kept.
    """

    def __init__(
        self, *, groups: Iterable[str] = (SECRET,), known: Mapping[str, str] | None = None, keep: Collection[str] = ()
    ) -> None:
        self._groups = frozenset(groups)
        self._keep = frozenset(keep)
        self._known = {text: _Known(rule, _as_word(text)) for text, rule in (known or {}).items() if text}
        self._seen: dict[str, Redaction] = {}
        self._numbers: dict[str, int] = {}

    @property
    def report(self) -> list[Redaction]:
        """What was found so far, in the order in which it was found first."""
        return list(self._seen.values())

    def redact(self, text: str, at: str = "", *, name: str = "") -> str:
        """The text with placeholders. `at` is where it stands, for the report; `name` is what it is called there."""
        if len(text) < _SHORTEST and not self._known:
            return text
        for number in range(MAX_PASSES):
            redacted = self._pass(text, at, name, first=number == 0)
            if redacted == text:
                return text
            text = redacted
        if self._pass(text, at, name, first=False) == text:
            return text
        return self._note(UNSETTLED, text, at)

    def redact_value(self, value: Any, at: str = "") -> Any:
        """The JSON value with placeholders in its texts and names. Parts that do not change are shared with the original."""
        try:
            return self._value(value, at, "")
        except RecursionError:
            raise TooLarge("the value is nested too deeply to be redacted") from None

    def _value(self, value: Any, at: str, name: str) -> Any:
        if isinstance(value, str):
            is_data = value.startswith("data:") and _DATA_URL.fullmatch(value)
            return value if is_data else self.redact(value, at, name=name)
        if isinstance(value, dict):
            return self._object(value, at)
        if isinstance(value, list | tuple):
            items = []
            for number, item in enumerate(value):
                items.append(self._value(item, f"{at}/{number}", ""))
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
        return value

    def _object(self, value: dict[Any, Any], at: str) -> dict[Any, Any]:
        called = value.get("name", value.get("key"))  # `{"name": "API_TOKEN", "value": "…"}`
        redacted: dict[Any, Any] = {}
        same = True
        for key, item in value.items():
            new_key = self.redact(key, at) if isinstance(key, str) else key
            while new_key != key and (new_key in redacted or new_key in value):
                new_key += "'"  # no member may hide another
            if not isinstance(item, str | dict | list | tuple) or _is_opaque(value, key, item):
                new = item
            else:
                name = called if key == "value" and isinstance(called, str) else key
                new = self._value(item, f"{at}/{_escape(new_key)}", name if isinstance(name, str) else "")
            same = same and new is item and new_key == key
            redacted[new_key] = new
        return value if same else redacted

    def _pass(self, text: str, at: str, name: str, *, first: bool) -> str:
        pieces: list[str] = []
        end = 0
        for secret in self._find(text, name):
            found = text[secret.start : secret.end]
            seen = self._seen.get(found)
            if seen is not None and seen.placeholder in self._keep and not first:
                continue
            placeholder = self._note(secret.rule, found, at)
            if placeholder not in self._keep:
                pieces += text[end : secret.start], placeholder
                end = secret.end
        return "".join((*pieces, text[end:])) if pieces else text

    def _find(self, text: str, name: str) -> list[Secret]:
        hits = _hits(text, name, self._groups)
        for word, (rule, pattern) in self._known.items():
            if word in text:
                hits += ((match.start(), len(RULES), match.end(), rule) for match in pattern.finditer(text))
        return _merged(hits) if hits else []

    def _note(self, rule: str, secret: str, at: str) -> str:
        """Count a secret that was found, and give its placeholder."""
        seen = self._seen.get(secret)
        if seen is None:
            number = self._numbers[rule] = self._numbers.get(rule, 0) + 1
            placeholder = f"[REDACTED:{rule}#{number}]"
            hint = secret[: min(4, len(secret) // 4)]  # a short password keeps most of itself
            seen = Redaction(rule, placeholder, hint, len(secret), 0, (), placeholder in self._keep)
            self._learn(rule, secret)
        where = seen.where if len(seen.where) >= MAX_PLACES or at in seen.where else (*seen.where, at)
        self._seen[secret] = replace(seen, count=seen.count + 1, where=where)
        return seen.placeholder

    def _learn(self, rule: str, secret: str) -> None:
        # What shows by itself need not be learned; what anybody might write (`postgres`) must not be.
        telling = random_looking(secret) or strong_password(secret)
        if telling and len(self._known) < MAX_LEARNED and not find_secrets(secret):
            self._known[secret] = _Known(rule, _as_word(secret))


class _Known(NamedTuple):
    """A text to hide wherever it stands."""

    rule: str
    pattern: re.Pattern[str]


def _as_word(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")


def _is_opaque(owner: dict[Any, Any], key: object, item: object) -> bool:
    """Whether a member holds an image, or a signature: one wrong byte breaks it, and nobody can read a secret in it."""
    if not isinstance(item, str):
        return False
    if key in _SIGNATURES or (key == "data" and (owner.get("type") in _MEDIA or not _MEDIA_MEMBERS.isdisjoint(owner))):
        return _OPAQUE.fullmatch(item) is not None
    return False


def _escape(key: object) -> str:
    return f"{key}".replace("~", "~0").replace("/", "~1")
