"""Find secrets in text and JSON and replace them with stable placeholders.

Rules:
- The same secret gets the same placeholder throughout one `Redactor`, such as `[REDACTED:anthropic-key#1]`, so the
  conversation stays readable.
- A text is searched as it is and as its readers see it: without colours, with escapes decoded, with wrapped words joined,
  and in base64 and hexadecimal (`core/decoded.py`). What is found there is replaced where it is written.
- Redacted text is scanned again until nothing is found. A text that does not settle is hidden as a whole.
- Only text changes: objects keep their members, lists their items, numbers their values. Images stay valid: the parts that
  describe them are searched, and one with a secret is removed. Signatures are left alone, because a changed one is refused.
- The report contains rule, place, length and count, and no part of the secret.

The time is proportional to the length of the text: a pattern is tried only where its literal occurs. Redaction is a best
effort based on the table of shapes; it does not check whether a key is valid.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from sessile.core.decoded import BREAK, JPEG, PNG, View, clear, compressed_texts, encodings, joined, notes, replaced
from sessile.core.secret_shapes import RULES, SECRET, Rule, fill, random_looking, strong_password
from sessile.errors import TooLarge

MAX_PLACES = 100  # places that a report lists for one secret; `count` counts them all
MAX_LEARNED = 256  # each learned secret is searched for in every text
MAX_PASSES = 4  # two are enough, except for adversarial texts
UNSETTLED = "unsettled"  # the rule that hides such a text

_SHORTEST = 8  # characters of the shortest secret or address
_SHORT = 400  # characters
_LONGEST_VALUE = 8192  # characters; a longer value is prose, whatever its name

_DEPTH = 2  # encodings inside of each other
_LAYERS = 4  # of colours and escapes
_INNER_LAYERS = 2  # the same in an encoding

# Base64 that is long enough to be an image or a signature, and longer than any key.
_OPAQUE = re.compile(r"[A-Za-z0-9+/=\r\n]{256,}|[A-Za-z0-9_=-]{256,}")
_MAGIC = re.compile("iVBORw0KGgo|/9j/|R0lGOD|UklGR|JVBER")
_HEX = re.compile(r"(?:0x)?[0-9a-fA-F\r\n]+")
_ENCODED = re.compile(rf"(?:{_MAGIC.pattern})[A-Za-z0-9+/=\r\n]+|[A-Za-z0-9+/=\r\n]{{256,}}")
_DATA_URL = re.compile(r"(data:[\w.+/-]{1,128}(?:;[\w.+=-]{1,64}){0,4};base64,)([A-Za-z0-9+/=\r\n]*)")
_NO_BASE64 = re.compile(r"[=\r\n]+")
_VARIED = 40  # different characters among the first 256 of a signature
_SIGNED = frozenset(("thinking", "reasoning", "redacted_thinking", "redactedThinking", "text", "toolCall", "tool_use"))
_SIGNED_MEMBERS = frozenset(("thinking", "thought", "text", "functionCall", "function_call", "summary"))
_SIGNATURES = frozenset(
    ("signature", "thinkingSignature", "thoughtSignature", "textSignature", "thought_signature", "encrypted_content")
)
_MEDIA = ("image", "audio", "video", "file", "base64", "input_audio", "redacted_thinking")
_MEDIA_MEMBERS = frozenset(("mimeType", "mime_type", "media_type", "mediaType"))

# The search for a literal stops at one of its characters: one shared with other literals, or a rare one.
_STOPS = "./_-wk"  # from worst to best
_COMMON = " etaoinsrlcdupmfhg,()=\"':y\nbv01[]2TESx"
_NAME_ENDS = r"(?=[\w.-]{0,48}+[\\\"'`\] \t:=])"
_JUDGED = 64  # characters behind a match that help to judge it
_LEAD = 96  # characters before a literal that a pattern may look at

# A line that may go on with the rest of a literal: `gh` at the end of a line, `p_…` at the start of the next.
_SEAMS = tuple(
    (
        sign,
        re.compile(
            rf"{mark}(?<=[\w\\\"'`= \r-]{mark})[ \t>|\#*]*+(?:[0-9]{{1,6}}[\t?|:][ \t]*+)?[\"'`]?"
            r"(?P<head>[A-Za-z0-9]{0,9}[-_.:/](?=[\w-]{12})|[A-Za-z0-9]{1,5}(?=[A-Za-z0-9]{10}))"
        ),
    )
    for sign, mark in (("\n", r"\n"), ("\\n", r"\\n"))
)
_WORD = re.compile(r"[\w-]*+", re.ASCII)
_BREAKS = re.compile(BREAK)
_SIGNS = frozenset("#$%!^*@?~+/")
# What a wrapped secret goes on with: not a name in front of a value, nor a call.
_MORE = re.compile(rf"{BREAK}(?P<more>(?!--)[^\s\"'`\\<>,;&|()\[\]{{}}=:]{{4,}}+={{0,2}})(?![=:(\[{{])")


class Secret(NamedTuple):
    """The position of a secret in a text, and the rule that found it."""

    rule: str
    start: int
    end: int


class Redaction(msgspec.Struct, frozen=True):
    """What a report says about one secret: its length, how often and where it was found. No part of it is shown."""

    rule: str
    placeholder: str
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
    return _merged(_hits(text, name, frozenset(groups), {}))


_Hit = tuple[int, int, int, str]  # start, the row of the rule, end, its name


def _hits(text: str, name: str, groups: frozenset[str], known: Mapping[str, _Known]) -> list[_Hit]:
    hits = list(_views(text, groups, known, _DEPTH, _LAYERS))
    if name and len(text) <= _LONGEST_VALUE and _names_secret(name):
        lead = len(name) + 2
        for start, rank, end, rule in _views(f'{name}="{text}"', groups, {}, 0, _LAYERS):
            start, end = max(start - lead, 0), min(end - lead, len(text))
            if start < end:
                hits.append((start, rank, end, rule))
    return hits


def _views(text: str, groups: frozenset[str], known: Mapping[str, _Known], depth: int, layers: int) -> Iterator[_Hit]:
    """Yield the hits in a text and in its decoded views, by their places in the text."""
    if len(text) >= _SHORTEST:
        yield from _search(text, groups)
    for word, (rule, pattern) in known.items():
        if word in text:
            yield from ((match.start(), len(RULES), match.end(), rule) for match in pattern.finditer(text))
    if len(text) < _SHORTEST:
        return
    cleared = False
    if layers:
        for view in clear(text):
            cleared = True
            yield from _placed(view, _views(view.text, groups, known, depth, layers - 1))
    if depth and not (cleared and layers < _INNER_LAYERS):
        for view in encodings(text):
            yield from _placed(view, _views(view.text, groups, known, depth - 1, _INNER_LAYERS))


def _placed(view: View, hits: Iterable[_Hit]) -> Iterator[_Hit]:
    for start, rank, end, rule in hits:
        start, end = view.span(start, end)
        yield start, rank, end, rule


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
    near: re.Pattern[str]  # the part of the tail that helps to judge the secret
    tail: re.Pattern[str]
    length: int  # of a whole secret: a shorter one may go on in the next line
    named: bool  # recognized by its name

    def hit(self, text: str, match: re.Match[str]) -> _Hit | None:
        start, end = match.span("secret" if "secret" in self.pattern.groupindex else 0)
        if self.before is not None:
            lead = self.before.search(text, max(start - 64, 0), start)
            if lead is None:
                return None
            start = lead.start()
        if self.rule.accept is not None and not self.rule.accept(text[start : _end(self.near, text, end)]):
            return None
        return start, self.rank, _end(self.tail, text, end), self.rule.name

    def at(self, text: str, place: int, lines: _Lines) -> tuple[_Hit | None, int]:
        """Return the hit at a place, and the end of the text that need not be tried again."""
        match = self.pattern.match(text, place)
        hit = None if match is None else self.hit(text, match)
        if hit is not None:
            start, rank, end, name = hit
            end = self._continued(text, start, end)
            return (start, rank, end, name), end
        if self.rule.group == SECRET and self.rule.wraps:
            hit = self.wrapped(text, place, lines)
            if hit is not None:
                return hit, hit[2]
        if self.rule.once:
            return None, max(0 if match is None else match.end(), _end(_WORD, text, place))
        return None, 0

    def wrapped(self, text: str, place: int, lines: _Lines) -> _Hit | None:
        """Return the hit of a secret that goes on in the next line."""
        for view in lines.joined(text, place, self.named):
            match = self.pattern.match(view.text, place - max(place - _LEAD, 0))
            hit = None if match is None else self.hit(view.text, match)
            if hit is None:
                continue
            start, end = view.span(hit[0], hit[2])
            pieces = _BREAKS.split(text[start:end])
            if any(len(piece) < 8 for piece in pieces[1:-1]):  # a list of words, not a wrapped one
                return None
            if self.named and any(
                piece.endswith(":") or (len(piece) > 4 and not _mixed(piece)) for piece in pieces[1:]
            ):
                return None
            return start, self.rank, self._continued(text, start, end), self.rule.name
        return None

    def _continued(self, text: str, start: int, end: int) -> int:
        """Return the end of a secret that is shorter than others of its rule, and goes on in the next line."""
        while self.rule.wraps and end - start < self.length:
            more = _MORE.match(text, end)
            if more is None or not _mixed(more["more"]):
                break
            end = more.end()
        return end


class _Lines:
    """Remembers the joined lines at the last place, for which several rows may ask."""

    def __init__(self) -> None:
        self._place = -1
        self._views: dict[bool, list[View]] = {}

    def joined(self, text: str, place: int, setting: bool) -> list[View]:
        """Return the word at a place with its next lines."""
        if place != self._place:
            self._place, self._views = place, {}
        if setting not in self._views:
            self._views[setting] = list(joined(text, max(place - _LEAD, 0), place, setting=setting))
        return self._views[setting]


def _end(pattern: re.Pattern[str], text: str, place: int) -> int:
    found = pattern.match(text, place)
    return place if found is None else found.end()


def _mixed(text: str) -> bool:
    """Return whether a text looks like a part of a secret, not like a word."""
    text = text[:96]
    digits, letters = any(map(str.isdigit, text)), any(map(str.isalpha, text))
    changes = sum(a.islower() != b.islower() for a, b in pairwise(text) if a.isalpha() and b.isalpha())
    signs = not _SIGNS.isdisjoint(text)
    return (letters and (digits or signs)) or changes > 1 or (digits and len(text) > 7)


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
    seams: dict[str, list[tuple[str, _Row]]]  # the ends of literals, with what stands before them


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
    return _Finder(exact, folded, alone, re.compile(ways, re.ASCII | re.DOTALL), _seams(rest))


def _row(rank: int, rule: Rule) -> _Row:
    flags = re.ASCII | re.IGNORECASE if rule.folded else re.ASCII
    before = re.compile(rf"(?:{rule.before})\Z", re.ASCII) if rule.before else None
    near = re.compile(f"[{rule.tail}]{{0,{_JUDGED}}}+" if rule.tail else "", re.ASCII)
    tail = re.compile(f"[{rule.tail}]*+" if rule.tail else "", re.ASCII)
    named = rule.folded or rule.name in ("authorization", "cookie")
    guessed = named or rule.accept is random_looking
    length = 4096 if guessed else max(len(fill(sample)) for sample in rule.samples)
    return _Row(rank, rule, re.compile(rule.pattern, flags), before, near, tail, length, named)


def _seams(rows: list[_Row]) -> dict[str, list[tuple[str, _Row]]]:
    seams: dict[str, list[tuple[str, _Row]]] = {}
    for row in rows:
        for literal in row.rule.literals if row.rule.group == SECRET and not row.named else ():
            for place in range(1, len(literal)):
                rest = literal[place:]
                sign = _SIGN.search(rest)
                seams.setdefault(rest[: sign.end()] if sign else rest, []).append((literal[:place], row))
    return seams


_SIGN = re.compile("[-_.:/]")


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
    widths = sorted({len(head) for head in heads}, reverse=True)
    behind = [f"(?<={'|'.join(re.escape(head) for head in heads if len(head) == width)})()" for width in widths]
    rows = {
        head: [(len(end), row) for end, of_end in heads.items() if head.endswith(end) for row in of_end]
        for head in heads
    }
    # A name is followed by a separator from its value; checking that here avoids most tries.
    then = _NAME_ENDS if all(row.rule.folded for of_head in heads.values() for row in of_head) else ""
    pattern = re.compile(f"{re.escape(stop)}(?:{'|'.join(behind)}){then}", re.DOTALL)
    return _Gate(pattern, tuple(widths), rows)


def _rarity(character: str) -> int:
    if character in _STOPS:
        return len(_COMMON) + 1 + _STOPS.index(character)
    return _COMMON.index(character) if character in _COMMON else len(_COMMON)


def _search(text: str, groups: frozenset[str]) -> Iterator[_Hit]:
    finder = _finder(groups)
    # One ASCII character for each character: offsets stay the same, and matching is faster.
    plain = text if text.isascii() else text.encode("ascii", "replace").decode("ascii")
    if "\n" in plain or "\\n" in plain:
        yield from _across(finder, plain)
    if len(plain) < _SHORT and finder.any.search(plain) is None:
        return
    for row in finder.alone:
        for match in row.pattern.finditer(plain):
            hit = row.hit(plain, match)
            if hit is not None:
                yield hit
    yield from _through(finder.exact, plain, plain)
    yield from _through(finder.folded, plain.lower(), plain)


def _across(finder: _Finder, text: str) -> Iterator[_Hit]:
    """Yield the hits of secrets whose literal is cut by the end of a line."""
    lines = _Lines()
    for mark, pattern in _SEAMS:
        for match in pattern.finditer(text) if mark in text else ():
            head, before = match["head"], ""
            for size in range(1, len(head) + 1):
                for start, row in finder.seams.get(head[:size], ()):
                    lead = max(match.start() - 24, 0)
                    before = before or text[lead : match.start()].rstrip("\r\\ \t=\"'`")
                    if before.endswith(start):
                        hit = row.wrapped(text, lead + len(before) - len(start), lines)
                        if hit is not None:
                            yield hit


def _through(gates: tuple[_Gate, ...], folded: str, text: str) -> Iterator[_Hit]:
    lines = _Lines()
    for pattern, widths, rows in gates:
        done: dict[int, int] = {}  # the end of the text in which each row is not tried again
        for stop in pattern.finditer(folded):
            end = stop.end()
            for width, row in rows[folded[end - widths[(stop.lastindex or 1) - 1] : end]]:
                if end - width < done.get(row.rank, 0):
                    continue
                hit, done[row.rank] = row.at(text, end - width, lines)
                if hit is not None:
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
            data = _DATA_URL.fullmatch(value) if value.startswith("data:") else None
            return self.redact(value, at, name=name) if data is None else self._media(value, at, data[1], data[2])
        if isinstance(value, dict):
            return self._object(value, at)
        if isinstance(value, list | tuple):
            items = []
            for number, item in enumerate(value):
                items.append(self._value(item, f"{at}/{number}", name))
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
        return value

    def _object(self, value: dict[Any, Any], at: str) -> dict[Any, Any]:
        called = value.get("name", value.get("key"))  # `{"name": "API_TOKEN", "value": "…"}`
        redacted: dict[Any, Any] = {}
        same = True
        for key, item in value.items():
            new_key = key if not isinstance(key, str) or self._is_plain(key) else self.redact(key, at)
            while new_key != key and (new_key in redacted or new_key in value):
                new_key += "'"  # no member may replace another
            if not isinstance(item, str | dict | list | tuple) or _is_signature(value, key, item):
                new = item
            elif isinstance(item, str) and _is_media(value, key, item):
                new = self._media(item, f"{at}/{_escape(new_key)}", "", item)
            else:
                name = called if key == "value" and isinstance(called, str) else key
                new = self._value(item, f"{at}/{_escape(new_key)}", name if isinstance(name, str) else "")
            same = same and new is item and new_key == key
            redacted[new_key] = new
        return value if same else redacted

    def _is_plain(self, name: str) -> bool:
        """Return whether a member's name has no secret; the same few repeat."""
        return (
            len(name) <= _SHORT and _is_harmless(name, self._groups) and not any(word in name for word in self._known)
        )

    def _media(self, value: str, at: str, lead: str, encoded: str) -> str:
        """Return base64 without the secrets in the texts of an image, or in the bytes of another file."""
        characters = _NO_BASE64.sub("", encoded)
        size = len(characters) - (len(characters) % 4 == 1)  # a cut one is read as far as it goes
        data = a2b_base64(characters[:size] + "=" * (-size % 4))
        is_image = data.startswith((PNG, JPEG))
        for _ in range(MAX_PASSES):
            new = self._without_notes(data, at) if is_image else self._overwritten(data, at)
            if new == data:
                break
            data, value = new, lead + b2a_base64(new, newline=False).decode()
        return value

    def _without_notes(self, data: bytes, at: str) -> bytes:
        """Return an image without the parts that contain a secret."""
        parts = [(start, end, data[start:end].decode("latin-1")) for start, end in notes(data)]
        parts += compressed_texts(data) if data.startswith(PNG) else ()
        bad = {(start, end) for start, end, text in parts if self._pass(text, at, "", first=True) != text}
        for start, end in sorted(bad, reverse=True):
            data = data[:start] + data[end:]
        return data

    def _overwritten(self, data: bytes, at: str) -> bytes:
        """Return the bytes of a file with stars in place of secrets, so that nothing moves."""
        text = data.decode("latin-1")
        secrets = self._find(text, "")
        kept = [
            secret for secret in secrets if self._note(secret.rule, text[secret.start : secret.end], at) in self._keep
        ]
        stars = (
            (start, end, "*" * (end - start)) for rule, start, end in secrets if Secret(rule, start, end) not in kept
        )
        return replaced(text, stars).text.encode("latin-1")

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
        hits = _hits(text, name, self._groups, self._known)
        return _merged(hits) if hits else []

    def _note(self, rule: str, secret: str, at: str) -> str:
        """Count a secret and return its placeholder."""
        seen = self._seen.get(secret)
        if seen is None:
            number = self._numbers[rule] = self._numbers.get(rule, 0) + 1
            placeholder = f"[REDACTED:{rule}#{number}]"
            seen = Redaction(rule, placeholder, len(secret), 0, (), placeholder in self._keep)
            self._learn(rule, secret)
        where = seen.where if len(seen.where) >= MAX_PLACES or at in seen.where else (*seen.where, at)
        self._seen[secret] = replace(seen, count=seen.count + 1, where=where)
        return seen.placeholder

    def _learn(self, rule: str, secret: str) -> None:
        # Secrets with a shape need not be learned; common words (`postgres`) must not be.
        telling = random_looking(secret) or strong_password(secret)
        if telling and len(self._known) < MAX_LEARNED and not find_secrets(secret):
            self._known[secret] = _Known(rule, re.compile(re.escape(secret)))


@lru_cache(maxsize=4096)
def _is_harmless(name: str, groups: frozenset[str]) -> bool:
    return not find_secrets(name, groups=groups)


class _Known(NamedTuple):
    """A text to hide wherever it occurs."""

    rule: str
    pattern: re.Pattern[str]


def _as_word(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")


def _is_signature(owner: dict[Any, Any], key: object, item: object) -> bool:
    """Return whether a member is a model's signature of a block, which must not change."""
    return (
        key in _SIGNATURES
        and isinstance(item, str)
        and (owner.get("type") in _SIGNED or not _SIGNED_MEMBERS.isdisjoint(owner))
        and _OPAQUE.fullmatch(item) is not None
        and len(set(item[:256])) >= _VARIED
    )


def _is_media(owner: dict[Any, Any], key: object, item: str) -> bool:
    """Return whether a member is the content of an image or another file."""
    is_data = key == "data" and (owner.get("type") in _MEDIA or not _MEDIA_MEMBERS.isdisjoint(owner))
    if not is_data or _ENCODED.fullmatch(item) is None or _HEX.fullmatch(item) is not None:
        return False
    return owner.get("type") != "file" or _MAGIC.match(item) is not None  # another file may as well be text


def _escape(key: object) -> str:
    text = str(key)
    return text.replace("~", "~0").replace("/", "~1") if "~" in text or "/" in text else text
