"""A secret: a text that no message, log or traceback shows by accident.

It is text only for whoever asks (`reveal`). Two are compared in a time that does not tell where they differ.
"""

from __future__ import annotations

import hmac

_SHOWN = "Secret(…)"


class Secret:
    """A text that is not shown."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the one place that needs it."""
        return self._text

    def matches(self, offered: bytes) -> bool:
        """Whether these bytes are the secret."""
        return hmac.compare_digest(self._text.encode(), offered)

    def __eq__(self, other: object) -> bool:
        return self.matches(other._text.encode()) if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return _SHOWN

    def __reduce__(self) -> str:
        raise TypeError("a secret is not copied into files")
