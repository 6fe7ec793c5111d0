"""Silence: a reply whose first token is `NO_REPLY` is not delivered, also not in part.

Rules: tokens end at white space, and the first one must be exactly the word. Then the whole reply is silent. A reply that
begins with `NO_REPLYfoo`, or mentions the word later, is delivered as it is. Every reply, streamed or not, goes through here
before it leaves for a client; what is stored keeps the word.

A stream is held back as long as it could become silent: white space, then a beginning of the word, then the word itself.
"""

from __future__ import annotations

NO_REPLY = "NO_REPLY"


def is_silent(text: str) -> bool:
    """Whether a whole reply is not to be delivered."""
    return text.split(maxsplit=1)[:1] == [NO_REPLY]


class Silence:
    """Decides about one reply that comes in pieces: `feed` each of them, then `finish`."""

    __slots__ = ("_begun", "_held", "silent")

    def __init__(self) -> None:
        self.silent: bool | None = None  # not known yet
        self._held: list[str] = []
        self._begun = ""  # what is held, without the white space before it

    def feed(self, text: str) -> str:
        """What may be delivered now."""
        if self.silent is not None:
            return "" if self.silent else text
        self._held.append(text)
        self._begun = (self._begun + text).lstrip()
        if NO_REPLY.startswith(self._begun):
            return ""
        return self._decide()

    def finish(self) -> tuple[str, bool]:
        """What is still to be delivered, and whether the reply was silent."""
        rest = self._decide() if self.silent is None else ""
        return rest, bool(self.silent)

    def _decide(self) -> str:
        self.silent = is_silent(self._begun)
        return "" if self.silent else "".join(self._held)
