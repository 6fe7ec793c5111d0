"""What a format has to say, so that another agent's file can be read in place as one of ours.

    recognises   by content: the first bytes of a file, never its path
    scanner      cuts a file into rows, and reads the head of each
    header       what our header would be
    translator   goes through the rows in order and says what each is here: id, parent, kind
    entry        one row as one of our entries

Rules: a row is one entry, or several (an answer together with the results of its calls); rows that nobody would read are
markers, which no tree shows and nothing is lost of. A translator may keep a little between rows (which answer is still open),
and can be taken up again from what it saved. Rows stay where they are: an entry is made when somebody looks at it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from sessile.core.kinds import flags_of
from sessile.core.lines import Head, Line, Scanner

Entry = dict[str, Any]
Look = Callable[[str], bytes | None]
"""Gives the row of an entry by its id, if there is one."""


class Told(NamedTuple):
    """What an agent's own list of sessions says of one; what it does not say is `None`."""

    title: str | None = None
    cwd: str | None = None


NOTHING_TOLD = Told()


class Known(msgspec.Struct, gc=False):
    """What a row is here, or one entry of it. Without flags, those of its kind count."""

    head: Head
    told: int | None = None

    @property
    def flags(self) -> int:
        """What the entry marks."""
        return flags_of(self.head) if self.told is None else self.told


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

    def take(self, line: Line) -> Sequence[Known]:
        """The entries that the next row is; never none."""
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

    @property
    def nested(self) -> bool:
        """Whether texts are JSON within JSON: what is looked for may stand there with its escapes escaped."""
        ...

    def scanner(self, offset: int) -> Scanner:
        """What cuts a file into rows from an offset on."""
        ...

    def recognises(self, first: bytes) -> bool:
        """Whether a file that begins so is one of this format."""
        ...

    def header(self, stem: str, first: bytes, told: Told = NOTHING_TOLD) -> Entry:
        """Our header for a file; `stem` is its name without the ending."""
        ...

    def glimpse(self, stem: str, first: bytes, last: bytes) -> Glimpse | None:
        """What the two ends of a file tell a listing; `None` if it should not be listed."""
        ...

    def translator(self, saved: Any = None) -> Translator:
        """From the beginning of a file, or from where one was saved."""
        ...

    def ids_of(self, raw: bytes, offset: int) -> Sequence[str]:
        """The ids that the entries of the row at an offset have here."""
        ...

    def entry(self, raw: bytes, entry_id: str, parent_id: str | None, look: Look) -> Entry:
        """A row as one of our entries: the one with that id."""
        ...
