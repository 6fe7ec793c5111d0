"""A library over the home that a real agent left, and the prompts that it sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_records import requests, unpack
from sessile import Filter, Library, Store
from sessile.agents.registry import AGENTS
from sessile.storage.catalog_rows import SessionRow
from sessile.storage.filesystem import PosixFilesystem

_FS = PosixFilesystem()


def names(folder: str) -> list[str]:
    """List a folder; nothing if it cannot be listed."""
    try:
        return _FS.names(folder)
    except OSError:
        return []


class AgentHome:
    """An unpacked record with a library that knows only its agent's sources, found without configuration."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = unpack(name, folder)
        found = AGENTS.sources(str(self.folder / "home"), {}, names)
        self.sources = [source for source in found if source.agent == name]
        self.store = Store(folder / "own")
        self.library = Library(self.store, self.sources)

    def rows(self) -> dict[str, SessionRow]:
        """Return the sessions by their ids, counted."""
        self.library.catch_up()
        return {str(row.id): row for row in self.library.list(Filter(hide=()), timeout=None).rows}

    def prompts(self) -> Iterator[str]:
        """Yield the words of what the user typed in each request, which is a text with letters that were not blanked."""
        seen = set()
        for sent in requests(self.folder):
            body: dict[str, Any] = sent.body
            for message in body.get("messages") or body.get("input") or ():
                if message.get("role") == "user":
                    content = message.get("content")
                    parts = [{"text": content}] if isinstance(content, str) else content
                    for text in [str(part["text"]) for part in parts if len(part.get("text") or "") in range(1, 300)]:
                        if text not in seen and (words := _typed(text)):
                            seen.add(text)
                            yield words

    def close(self) -> None:
        """Close the library and the store."""
        self.library.close()
        self.store.close()


def _typed(text: str) -> str:
    """Return what the user typed in a text; nothing if the program wrote it."""
    plain = re.sub(r"^<(\w+)[^>]*>.*</\1>\s*", "", text, flags=re.DOTALL)
    if plain.startswith("<"):
        return ""
    return plain if re.search(r"[a-wyzA-WYZ]", plain) else ""
