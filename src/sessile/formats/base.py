"""What a format has to say, so that another agent's file can be read in place as one of ours.

    recognises   by content: the first bytes of a file, never its path
    header       what our header would be
    translator   goes through the rows in order and says what each is here: id, parent, kind
    entry        one row as one of our entries

Rules: a row is one entry; rows that nobody would read are markers, which no tree shows and nothing is lost of. A translator
may keep a little between rows (which answer is still open), and can be taken up again from what it saved. Rows stay where
they are: an entry is made when somebody looks at it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from sessile.core.lines import Head, Line

Entry = dict[str, Any]
Look = Callable[[str], bytes | None]
"""Gives the row of an entry by its id, if there is one."""


class Known(NamedTuple):
    """What a row is here. Without flags, those of its kind count."""

    head: Head
    flags: int | None = None


class Glimpse(NamedTuple):
    """What a listing shows of a session; what is unknown is an empty text."""

    title: str = ""
    first_text: str = ""
    last_role: str = ""


class Translator(Protocol):
    """Goes through the rows of one file in order."""

    @property
    def leaf(self) -> str | None:
        """The entry that the conversation goes on from, as far as the rows were taken."""
        ...

    def take(self, line: Line) -> Known:
        """What the next row is."""
        ...

    def saved(self) -> Any:
        """What is needed to go on later, as plain JSON."""
        ...


class Format(Protocol):
    """One other agent's format."""

    @property
    def name(self) -> str:
        """The name in catalogs and messages."""
        ...

    def recognises(self, first: bytes) -> bool:
        """Whether a file that begins so is one of this format."""
        ...

    def header(self, stem: str, first: bytes) -> Entry:
        """Our header for a file; `stem` is its name without the ending."""
        ...

    def glimpse(self, stem: str, first: bytes, last: bytes) -> Glimpse | None:
        """What the two ends of a file tell a listing; `None` if it should not be listed."""
        ...

    def translator(self, saved: Any = None) -> Translator:
        """From the beginning of a file, or from where one was saved."""
        ...

    def id_of(self, raw: bytes, offset: int) -> str | None:
        """The id that the row at an offset has here."""
        ...

    def entry(self, raw: bytes, entry_id: str, parent_id: str | None, look: Look) -> Entry:
        """A row as one of our entries."""
        ...
