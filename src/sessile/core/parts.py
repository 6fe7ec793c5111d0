"""What people see of an entry, as values: one shape for terminal, page and exports.

    Shown
      who        user · assistant · system · tool · shell · summary · setting · note
      headline   one line that says what happened, never empty
      parts      Text · Thinking · Call · Output · Diff · Image · Data, in the order of the entry

Every part has a depth: the least of `prompts`, `chat`, `tools`, `all` at which it is shown; `all` shows everything. Texts are
as they were stored: who prints them makes them safe.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Depth = Literal["prompts", "chat", "tools", "all"]
DEPTHS: tuple[Depth, ...] = ("prompts", "chat", "tools", "all")
Who = Literal["user", "assistant", "system", "tool", "shell", "summary", "setting", "note"]


class Text(NamedTuple):
    """Something said; models and people write Markdown."""

    text: str
    depth: Depth = "chat"


class Thinking(NamedTuple):
    """Something thought; `hidden` if the provider gave only a sealed form of it."""

    text: str
    hidden: bool = False
    depth: Depth = "all"


class Call(NamedTuple):
    """A tool that a model called; `summary` is what it was called for, on one line."""

    id: str
    name: str
    summary: str
    arguments: Any
    depth: Depth = "tools"


class Output(NamedTuple):
    """What a tool or command gave back, as a terminal would show it."""

    text: str
    failed: bool = False
    depth: Depth = "tools"


class Diff(NamedTuple):
    """What a tool changed in a file: lines that begin with +, - or a space."""

    path: str
    text: str
    depth: Depth = "tools"


class Image(NamedTuple):
    """A picture in base64, or the name of a blob that holds it."""

    mime: str
    data: str
    depth: Depth = "chat"


class Data(NamedTuple):
    """Members of an entry that have no better form."""

    name: str
    value: Any
    depth: Depth = "all"


Part = Text | Thinking | Call | Output | Diff | Image | Data


class Spent(NamedTuple):
    """Tokens and money of one answer; `None` is unknown."""

    input: int | None
    output: int | None
    cache_read: int | None
    cache_write: int | None
    total: int | None
    cost: float | None


class Shown(NamedTuple):
    """An entry as people see it."""

    id: str | None
    parent_id: str | None
    type: str
    who: Who
    name: str  # of the tool, the kind of setting; else as `who`
    headline: str
    parts: tuple[Part, ...]
    failed: bool
    at: int | None  # milliseconds since 1970
    model: str | None
    spent: Spent | None
    call_id: str | None  # of the call that a result answers

    @property
    def depth(self) -> Depth:
        """The least depth at which something of it is shown."""
        return min((part.depth for part in self.parts), key=DEPTHS.index, default="all")

    def at_depth(self, depth: Depth) -> tuple[Part, ...]:
        """The parts that a depth shows."""
        most = DEPTHS.index(depth)
        return tuple(part for part in self.parts if DEPTHS.index(part.depth) <= most)
