"""Find secrets in text and JSON and replace them with stable placeholders.

Rules:
- The same secret gets the same placeholder throughout one `Redactor`, such as `[REDACTED:anthropic-key#1]`, so the
  conversation stays readable.
- Redacted text is scanned again until nothing is found. A text that does not settle is hidden as a whole.
- Only text changes: objects keep their members, lists their items, numbers their values. Images and signatures are left
  alone, because a changed byte breaks them and they cannot contain readable secrets.
- The report contains rule, place and count, never the secret.

The time is proportional to the length of the text: a pattern is tried only where its literal occurs. Redaction is a best
effort based on the table of shapes; it does not check whether a key is valid.
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

MAX_PLACES = 100  # places that a report lists for one secret; `count` counts them all
MAX_LEARNED = 256  # each learned secret is searched for in every text
MAX_PASSES = 4  # two are enough, except for adversarial texts
UNSETTLED = "unsettled"  # the rule that hides such a text

_SHORTEST = 8  # characters of the shortest secret or address
_SHORT = 400  # characters
_LONGEST_VALUE = 8192  # characters; a longer value is prose, whatever its name

# Base64 that is long enough to be an image or a signature, and longer than any key.
_OPAQUE = re.compile(r"[A-Za-z0-9+/=\r\n]{256,}|[A-Za-z0-9_=-]{256,}")
_DATA_URL = re.compile(r"data:[\w.+/-]{1,128}(?:;[\w.+=-]{1,64}){0,4};base64,[A-Za-z0-9+/=_-]*")
_SIGNATURES = frozenset(
    ("signature", "thinkingSignature", "thoughtSignature", "textSignature", "thought_signature", "encrypted_content")
)
_MEDIA = ("image", "audio", "video", "file", "base64", "input_audio", "redacted_thinking")
_MEDIA_MEMBERS = frozenset(("mimeType", "mime_type", "media_type", "mediaType"))

# The search for a literal stops at one of its characters: one shared with other literals, or a rare one.
_STOPS = "./_-wk"  # from worst to best
_COMMON = " etaoinsrlcdupmfhg,()=\"':y\nbv01[]2TESx"
_INSIDE = r"[g-loqsu-zG-Z_-]"  # no word starts after one of these; the patterns check the rest
_NAME_ENDS = r"(?=[\w.-]{0,48}+[\\\"'`\] \t:=])"


class Secret(NamedTuple):
    """The position of a secret in a text, and the rule that found it."""

    rule: str
    start: int
    end: int


class Redaction(msgspec.Struct, frozen=True):
    """What a report says about one secret: its start (`hint`), its length, how often and where it was found."""

    rule: str
    placeholder: str
    hint: str
    length: int
    count: int
    where: tuple[str, ...]
    kept: bool

    def counted(self, count: int) -> Redaction:
        """Return the same with another count."""
        return replace(self, count=count)


def find_secrets(text: str, *, name: str = "", groups: Iterable[str] = (SECRET,)) -> list[Secret]:
    """Find the secrets in a text.

    Args:
        text: The text.
        name: The name of the text where it was found, such as `api_key`.
        groups: The groups of rules: "secret", "personal".

    Returns:
        The secrets, in order and without overlaps. Overlapping matches of two rules are one secret with the name of the more
        specific rule.

    Example:
        ```python
        for secret in find_secrets(text):
            print(secret.rule, secret.start, secret.end)
        ```
    """
    return _merged(_hits(text, name, frozenset(groups)))


_Hit = tuple[int, int, int, str]  # start, the row of the rule, end, its name


def _hits(text: str, name: str, groups: frozenset[str]) -> list[_Hit]:
    if len(text) < _SHORTEST:
        return []
    hits = list(_search(text, groups))
    if "\x1b" in text:  # colours may split a key that people see as one
        plain, place = uncoloured(text)
        hits += ((place(start), rank, place(end - 1) + 1, rule) for start, rank, end, rule in _search(plain, groups))
    if name and len(text) <= _LONGEST_VALUE and _names_secret(name):
        lead = len(name) + 2
        for start, rank, end, rule in _search(f'{name}="{text}"', groups):
            start, end = max(start - lead, 0), min(end - lead, len(text))
            if start < end:
                hits.append((start, rank, end, rule))
    return hits


def _merged(hits: list[_Hit]) -> list[Secret]:
    """Merge overlapping hits into one secret each; dropping one of them could leave half a secret."""
    merged: list[_Hit] = []
    for hit in sorted(hits):
        if merged and hit[0] < merged[-1][2]:
            start, rank, end, rule = merged[-1]
            rank, rule = min((rank, rule), (hit[1], hit[3]))
            merged[-1] = start, rank, max(end, hit[2]), rule
        else:
            merged.append(hit)
    return [Secret(rule, start, end) for start, _, end, rule in merged]


@lru_cache(maxsize=4096)  # the same few names repeat
def _names_secret(name: str) -> bool:
    """Return whether a name suggests that its value is a secret."""
    lower = name.lower()
    return len(name) <= 128 and any(word in lower for rule in RULES if rule.folded for word in rule.literals)


class _Row(NamedTuple):
    """A compiled rule."""

    rank: int
    rule: Rule
    pattern: re.Pattern[str]
    before: re.Pattern[str] | None

    @property
    def in_word(self) -> bool:
        """Whether the rule requires the start of a word."""
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
    """Finds candidates for literals: stops at one character if the text before it fits; the group tells its width."""

    pattern: re.Pattern[str]
    widths: tuple[int, ...]
    rows: dict[str, list[tuple[int, _Row]]]  # by the text up to the stop, with the width of the row's own literal


class _Finder(NamedTuple):
    """The compiled table: gates for the text and for its lower case, and rows that are searched for directly."""

    exact: tuple[_Gate, ...]
    folded: tuple[_Gate, ...]
    alone: tuple[_Row, ...]
    any: re.Pattern[str]  # everything at once: slower on long texts, much faster on short ones


@lru_cache(maxsize=4)
def _finder(groups: frozenset[str]) -> _Finder:
    rows = [_row(rank, rule) for rank, rule in enumerate(RULES) if rule.group in groups]
    # A literal of one character would stop everywhere; searching for the pattern is faster.
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
    """Return a literal up to the character at which the search for it stops."""
    places = range(min(2, len(literal) - 1), len(literal))
    return literal[: max(places, key=lambda place: (_rarity(literal[place]), place)) + 1]


def _gate(stop: str, heads: dict[str, list[_Row]]) -> _Gate:
    # A lookbehind needs a fixed width and is fast with plain words. The longest comes first and covers the shorter ones that
    # it ends with.
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
    # A name is followed by a separator from its value; checking that here avoids most tries.
    then = _NAME_ENDS if all(row.rule.folded for of_head in heads.values() for row in of_head) else ""
    pattern = re.compile(f"{re.escape(stop)}(?:{'|'.join(behind)}){then}", re.DOTALL)
    return _Gate(pattern, tuple(width for width, _ in widths), rows)


def _rarity(character: str) -> int:
    if character in _STOPS:
        return len(_COMMON) + 1 + _STOPS.index(character)
    return _COMMON.index(character) if character in _COMMON else len(_COMMON)


def _search(text: str, groups: frozenset[str]) -> Iterator[_Hit]:
    finder = _finder(groups)
    # One ASCII character for each character: offsets stay the same, and matching is faster.
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
        done: dict[int, int] = {}  # the end of the last hit of each row, inside which it is not tried again
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
    """Replaces secrets in texts by numbered placeholders. All texts of one export share one redactor.

    A secret that was found only by its context (`PASSWORD=…`) is known from then on. To hide earlier occurrences too, redact
    everything twice with one redactor, as `Export` does.

    Args:
        groups: The groups of rules: "secret", "personal".
        known: Texts to hide wherever they occur as a whole word, by the rule that names them, such as a user name.
        keep: Placeholders whose secrets are shown on purpose. They keep their numbers and are reported as kept.

    Example:
        ```python
        redactor = Redactor()
        print(redactor.redact("export API_KEY=sk-ant-api03-…"))
        for found in redactor.report:
            print(found.placeholder, found.count)
        ```
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
        """The secrets found so far, in order of their first occurrence."""
        return list(self._seen.values())

    def redact(self, text: str, at: str = "", *, name: str = "") -> str:
        """Return a text with placeholders instead of secrets.

        Args:
            text: The text.
            at: Where it is, for the report.
            name: The name of the text there, such as `api_key`.
        """
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
        """Return a JSON value with placeholders in texts and member names. Unchanged parts are shared with the original."""
        try:
            return self._value(value, at, "")
        except RecursionError:
            raise TooLarge("the value is nested too deeply to redact") from None

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
                new_key += "'"  # no member may replace another
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
        """Count a secret and return its placeholder."""
        seen = self._seen.get(secret)
        if seen is None:
            number = self._numbers[rule] = self._numbers.get(rule, 0) + 1
            placeholder = f"[REDACTED:{rule}#{number}]"
            hint = secret[: min(4, len(secret) // 4)]  # of a short password only a little is shown
            seen = Redaction(rule, placeholder, hint, len(secret), 0, (), placeholder in self._keep)
            self._learn(rule, secret)
        where = seen.where if len(seen.where) >= MAX_PLACES or at in seen.where else (*seen.where, at)
        self._seen[secret] = replace(seen, count=seen.count + 1, where=where)
        return seen.placeholder

    def _learn(self, rule: str, secret: str) -> None:
        # Secrets with a shape need not be learned; common words (`postgres`) must not be.
        telling = random_looking(secret) or strong_password(secret)
        if telling and len(self._known) < MAX_LEARNED and not find_secrets(secret):
            self._known[secret] = _Known(rule, _as_word(secret))


class _Known(NamedTuple):
    """A text to hide wherever it occurs."""

    rule: str
    pattern: re.Pattern[str]


def _as_word(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")


def _is_opaque(owner: dict[Any, Any], key: object, item: object) -> bool:
    """Return whether a member is an image or a signature, which must not change."""
    if not isinstance(item, str):
        return False
    if key in _SIGNATURES or (key == "data" and (owner.get("type") in _MEDIA or not _MEDIA_MEMBERS.isdisjoint(owner))):
        return _OPAQUE.fullmatch(item) is not None
    return False


def _escape(key: object) -> str:
    return f"{key}".replace("~", "~0").replace("/", "~1")
