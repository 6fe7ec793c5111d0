"""Secrets: text that messages, logs and tracebacks do not show by accident.

Use `reveal` to get the text. Comparison takes constant time.
"""

from __future__ import annotations

import hmac

_SHOWN = "Secret(…)"


class Secret:
    """A text that is not shown by `repr`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    def matches(self, offered: bytes) -> bool:
        """Return whether `offered` is the secret, in constant time."""
        return hmac.compare_digest(self._text.encode(), offered)

    def __eq__(self, other: object) -> bool:
        return self.matches(other._text.encode()) if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return _SHOWN

    def __reduce__(self) -> str:
        raise TypeError("a Secret cannot be pickled or copied")
