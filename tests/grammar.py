"""Parse a grammar in EBNF (ISO 14977) and check whether a text matches it.

Choices are tried in order and repetitions are greedy, which is enough for a format without backtracking. A special
sequence, `? … ?`, is a regular expression for one character.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Match = Callable[[str, int], int | None]
"""Where a part of a text that begins at a place ends; `None` if it is not there."""

_TOKEN = re.compile(r"\s*(?:(\w+)|'([^']*)'|\?\s(.*?)\s\?|([=,|;{}\[\]()*]))", re.S)


class Grammar:
    """The rules of a grammar."""

    def __init__(self, text: str) -> None:
        self._rules: dict[str, Match] = {}
        self._tokens = [(kind, found) for kind, found in map(_token, _TOKEN.finditer(text))]
        while self._tokens:
            name = self._take()[1]
            self._expect("=")
            self._rules[name] = self._choice()
            self._expect(";")

    def describes(self, text: str, rule: str) -> bool:
        """Return whether a whole text matches a rule."""
        return self._rules[rule](text, 0) == len(text)

    def _choice(self) -> Match:
        options = [self._sequence()]
        while self._sees("|"):
            options.append(self._sequence())
        return lambda text, at: next((end for option in options if (end := option(text, at)) is not None), None)

    def _sequence(self) -> Match:
        parts = [self._part()]
        while self._sees(","):
            parts.append(self._part())

        def match(text: str, at: int) -> int | None:
            end: int | None = at
            for part in parts:
                end = None if end is None else part(text, end)
            return end

        return match

    def _part(self) -> Match:
        kind, word = self._take()
        if kind == "terminal":
            return lambda text, at: at + len(word) if text.startswith(word, at) else None
        if kind == "special":
            pattern = re.compile(word)
            return lambda text, at: None if (found := pattern.match(text, at)) is None else found.end()
        if kind == "name" and self._sees("*"):
            return _times(int(word), self._part())
        if kind == "name":
            return lambda text, at: self._rules[word](text, at)
        inner = self._choice()
        self._expect({"{": "}", "[": "]", "(": ")"}[word])
        return {"{": _repeated, "[": _optional, "(": _grouped}[word](inner)

    def _take(self) -> tuple[str, str]:
        return self._tokens.pop(0)

    def _sees(self, mark: str) -> bool:
        if self._tokens and self._tokens[0] == ("mark", mark):
            self._take()
            return True
        return False

    def _expect(self, mark: str) -> None:
        found = self._take()
        assert found == ("mark", mark), (found, mark)


def _token(found: re.Match[str]) -> tuple[str, str]:
    kinds = ("name", "terminal", "special", "mark")
    return next((kind, text) for kind, text in zip(kinds, found.groups(), strict=True) if text is not None)


def _times(count: int, part: Match) -> Match:
    def match(text: str, at: int) -> int | None:
        end: int | None = at
        for _ in range(count):
            end = None if end is None else part(text, end)
        return end

    return match


def _repeated(part: Match) -> Match:
    def match(text: str, at: int) -> int | None:
        while (end := part(text, at)) is not None:
            at = end
        return at

    return match


def _grouped(part: Match) -> Match:
    return part


def _optional(part: Match) -> Match:
    return lambda text, at: at if (end := part(text, at)) is None else end
