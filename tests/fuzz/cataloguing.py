"""Law of the catalog: with any bytes in place of its file, lists and searches are those of a new catalog."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from builders import answered, said
from sessile.agents.registry import AGENTS
from sessile.storage.catalog import Catalog
from sessile.storage.filesystem import PosixFilesystem
from sessions import FOLDER, header, write_file


class _Shelf:
    """A few sessions in a folder, and the answers of an undamaged catalog."""

    def __init__(self) -> None:
        self._kept = tempfile.TemporaryDirectory(prefix="fuzz-")
        root = Path(self._kept.name)
        self.cache = root / "cache"
        self._sessions = str(root / "sessions")
        for name in ("a", "b", "c"):
            records = (header(name, title=f"title {name}"), said("1", None, f"hello {name}"), answered("2", "1"))
            write_file(root / "sessions" / FOLDER / f"{name}.jsonl", *records)
        self.answers = self.ask()
        self.files = {path.name: path.read_bytes() for path in self.cache.iterdir()}

    def ask(self) -> list[object]:
        """Return the rows of the list and the hits of a search."""
        with Catalog(PosixFilesystem(), str(self.cache), AGENTS) as catalog:
            catalog.catch_up([self._sessions], depth="index")
            listed = [(row.path, row.title, row.first_text, row.size, row.counts) for row in catalog.list().rows]
            hits = [(hit.path, hit.entry_id) for hit in catalog.search("hello", limit=10).hits]
        return [sorted(listed), sorted(hits)]


@cache
def _shelf() -> _Shelf:
    return _Shelf()


def catalogs() -> list[bytes]:
    """Return the file of an undamaged catalog."""
    return [_shelf().files["catalog.db"]]


def catalog(data: bytes) -> None:
    """A damaged catalog file does not change any answer."""
    shelf = _shelf()
    for name in os.listdir(shelf.cache):
        os.unlink(shelf.cache / name)
    for name, content in (shelf.files | {"catalog.db": data}).items():
        (shelf.cache / name).write_bytes(content)
    assert shelf.ask() == shelf.answers, "a damaged catalog was believed"
