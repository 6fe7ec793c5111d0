"""Homes of agents as a library sees them, and proof that reading does not change them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from sessile import Library, Store
from sessile.agents.registry import AGENTS
from sessile.storage.layout import Source


def names(folder: str) -> list[str]:
    """List a folder; nothing for one that cannot be listed."""
    return sorted(path.name for path in Path(folder).iterdir()) if Path(folder).is_dir() else []


def sources(home: Path, environ: dict[str, str] | None = None) -> list[Source]:
    """Return the sources in a home that exist."""
    found = AGENTS.sources(str(home), environ or {}, names)
    return [source for source in found if Path(source.sessions).exists()]


def library(home: Path, folder: Path, environ: dict[str, str] | None = None) -> Library:
    """Return a library of everything in a home."""
    return Library(Store(folder / "own"), sources(home, environ), cache=str(folder / "cache"))


def fingerprint(home: Path) -> dict[str, tuple[int, str]]:
    """Return time and content of every file."""
    return {
        str(path.relative_to(home)): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(home.rglob("*"))
        if path.is_file()
    }
