"""What a store stands on: its files, their places, and its journals; in a folder, in memory, or in a database.

Store("~/.sessile")                       a folder
Store("postgresql://user@host/name")      a database, in which the same tree of names lies; everything else on the machine
                                          stays reachable beside it, so that other agents' files can be read and imported
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from sessile.storage.base import Filesystem, Journals
from sessile.storage.file_journals import FileJournals
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.layout import Layout

_DATABASES = ("postgresql://", "postgres://")


class Backing(NamedTuple):
    """The parts of one place, and what lets go of it."""

    fs: Filesystem
    layout: Layout
    journals: Journals
    close: Callable[[], None]


def is_database(root: str) -> bool:
    """Whether a root is the address of a database."""
    return root.startswith(_DATABASES)


def backing_of(
    root: str | os.PathLike[str],
    cache: str | os.PathLike[str] | None,
    fs: Filesystem | None,
    *,
    power: bool,
    patience: float,
) -> Backing:
    """What lies at a root; nothing is created."""
    place = os.fspath(root)
    if fs is None and is_database(place):
        from sessile.storage.postgres.backing import database_backing  # most stores are folders

        return database_backing(place, cache, power=power, patience=patience)
    if fs is None:
        # A symbolic link to the root is followed once, here; below the root none is.
        place, fs = os.path.realpath(os.path.expanduser(place)), PosixFilesystem()
    layout = Layout(place, os.path.abspath(cache) if cache is not None else f"{place}/cache")
    return Backing(fs, layout, FileJournals(fs, layout, power=power, patience=patience), _nothing)


def _nothing() -> None:
    """A folder is let go of by itself."""
