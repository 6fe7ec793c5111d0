"""MyAgents: its index, lock, session files and attachments. Modules are imported when a file needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from sessile.agents.base import Agent, Format, Place, SessionList
from sessile.storage.formats import Told
from sessile.storage.layout import LEGACY, Source

if TYPE_CHECKING:
    from sessile.agents.writer import RowsJournal

_SPACE = b"\xef\xbb\xbf \t\r\n"


class MyAgents(Agent):
    """MyAgents: `~/.myagents`. Its sessions have no branches."""

    name = "myagents"
    title = "MyAgents"
    capabilities = frozenset({"append", "title", "delete"})

    @cached_property
    def format(self) -> Format:
        """How session files are read."""
        from sessile.agents.myagents.translation import MyAgents as Messages

        return Messages()

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the sessions folder."""
        return [Source(self.name, f"{home}/.myagents", f"{home}/.myagents/sessions")]

    def titles(self, data: bytes) -> Mapping[str, Told] | None:
        """Return titles and projects in its index, which is a JSON array."""
        if not data.lstrip(_SPACE).startswith(b"["):
            return None
        from sessile.agents.myagents.index import described

        return {known: Told(row.title, row.cwd) for known, row in described(data).items()}

    def unpack(self, suffix: str, chunks: Iterator[bytes]) -> Iterator[bytes] | None:
        """Return the messages of a session stored before JSONL, as one JSON object."""
        if suffix != LEGACY:
            return None
        from sessile.agents.myagents.messages import legacy_rows

        return legacy_rows(b"".join(chunks))

    def open_for_writing(self, place: Place, path: str) -> RowsJournal:
        """Open a session for appending; its title is in MyAgents' index."""
        from sessile.agents.myagents.journal import open_messages

        return open_messages(place, path, self)

    def list_at(self, place: Place, folder: str, *, missing: bool = False) -> SessionList | None:
        """Return the index above a sessions folder."""
        from sessile.agents.myagents.listed import list_at

        return list_at(place, folder, missing=missing)
