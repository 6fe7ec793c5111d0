"""What a format has to say, so that another agent's file can be read in place as one of ours.

    recognises   by content: the first bytes of a file, never its path
    scanner      cuts a file into rows, and reads the head of each
    header       what our header would be
    translator   goes through the rows in order and says what each is here: id, parent, kind
    entry        one row as one of our entries

Rules: a row is one entry, or several (an answer together with the results of its calls); rows that nobody would read are
markers, which no tree shows and nothing is lost of. A translator may keep a little between rows (which answer is still open),
and can be taken up again from what it saved. Rows stay where they are: an entry is made when somebody looks at it.

What each format can take where its sessions lie: one row a format, and how it is told that there is no more.

    append    say something behind the leaf            branch   … or behind an earlier entry
    label     name an entry                            compact  sum up what was said
    title     name the session                         tag      put it into a drawer
    archive   say that it is done with                 delete   move it to our trash

Rules: what is not in a row is never written into such a file in another way; the way out is always the same, a fork, which is
a session of ours and takes everything. It does not know who writes: see `stores`.

Formats whose rows have no parents: each row hangs from the one before, and its place in the file names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, get_args

import msgspec

from sessile.core.codec import decode
from sessile.core.kinds import flags_of
from sessile.core.lines import Head, Line, Scanner
from sessile.errors import Unsupported

# --- base

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


# --- capabilities

Capability = Literal["append", "branch", "label", "compact", "title", "tag", "archive", "delete"]

_ORDER: tuple[Capability, ...] = get_args(Capability)

CAPABILITIES: Mapping[str, frozenset[Capability]] = {
    "native": frozenset({"append", "branch", "label", "compact", "title", "tag", "delete"}),
    "claude": frozenset({"append", "branch", "compact", "title", "tag", "archive", "delete"}),
    "codex": frozenset(),
    "myagents": frozenset({"append", "title", "delete"}),
    # Its transcripts are of the family, but its sessions.json names them: one that goes leaves a key without a session.
    "yoyoclaw": frozenset({"append", "branch", "label", "compact", "title", "tag"}),
}

# Agents whose format has another name; the family, and folders that somebody has added, hold the native one.
_FORMATS: Mapping[str, str] = {"claude": "claude", "codex": "codex", "myagents": "myagents", "openclaw": "yoyoclaw"}

_IN_THE_COPY: Mapping[str, str] = {"label": "label the copy", "title": "name the copy", "tag": "tag the copy"}


def capabilities_of(name: str) -> tuple[Capability, ...]:
    """What a format can take, in the order of the table; nothing if it is not known."""
    able = CAPABILITIES.get(name, frozenset())
    return tuple(capability for capability in _ORDER if capability in able)


def format_of_agent(agent: str) -> str:
    """The format that an agent keeps its sessions in."""
    return _FORMATS.get(agent, "native")


def possible(name: str) -> str:
    """What a format can take, for a person."""
    able = capabilities_of(name)
    return f"{name} can take in place: {', '.join(able)}" if able else f"nothing can be written into a file of {name}"


def unsupported(name: str, what: str, path: str, capability: str | None = None) -> Unsupported:
    """The error for what has no counterpart in a format; `what` says what there is none of."""
    doing = _IN_THE_COPY.get(capability or "", "go on in the copy")
    return Unsupported(
        f"{name} has no {what}", path=path, hint=f"fork it (sessile fork), and {doing}; {possible(name)}"
    )


# --- chained


class Saved(msgspec.Struct):
    """What a translator keeps between rows: the last entry, and the model that was chosen last."""

    last: str | None = None
    model: str | None = None


class Chain:
    """Where the chain of one file ends so far (`kept.last`); it goes on from what was saved."""

    def __init__(self, saved: Any = None) -> None:
        self.kept = Saved() if saved is None else msgspec.convert(saved, Saved)

    @property
    def leaf(self) -> str | None:
        """The last entry."""
        return self.kept.last

    def saved(self) -> Any:
        """What is needed to go on later."""
        return msgspec.to_builtins(self.kept)


def placed(offset: int, part: int = 0) -> str:
    """The id of a row at an offset, or of a later entry of it."""
    return f"@{offset:x}/{part}" if part else f"@{offset:x}"


def offset_of(entry_id: str) -> int:
    """Where the row of such an id lies; 0 if it is none."""
    return int(entry_id[1:].partition("/")[0], 16) if entry_id.startswith("@") else 0


def row_of(raw: bytes) -> dict[str, Any]:
    """A decoded row; empty if it is none."""
    try:
        row = decode(raw)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}
