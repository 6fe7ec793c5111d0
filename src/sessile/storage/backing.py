"""What a store stands on: its files, their places, and its journals; in a folder, in memory, or in a database.

Store("~/.sessile")                       a folder
Store("postgresql://user@host/name")      a database, in which the same tree of names lies; everything else on the machine
                                          stays reachable beside it, so that other agents' files can be read and imported
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sessile.errors import NotFound, Unsupported
from sessile.storage.base import Blobs, Filesystem, Journals
from sessile.storage.blobs import BlobStore
from sessile.storage.filesystem import RootedFilesystem
from sessile.storage.journal import FileJournals
from sessile.storage.layout import Layout

if TYPE_CHECKING:
    from sessile.storage.catalog import Catalog
    from sessile.storage.formats import Formats
    from sessile.storage.postgres.database import Database
    from sessile.storage.postgres.joined_listings import JoinedCatalog

_DATABASES = ("postgresql://", "postgres://")
_ADDRESS = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")
_SECRET = re.compile("//.*@")  # who, and perhaps a password


class Backing(NamedTuple):
    """The parts of one place, and what lets go of it."""

    name: str  # as a person may see it
    fs: Filesystem
    layout: Layout
    journals: Journals
    close: Callable[[], None]
    catalog: Callable[[str | None], Catalog | JoinedCatalog]  # with its cache in that folder, where it needs one
    database: Database | None = None  # where tables of other kinds than files can lie, for many processes at once


def is_database(root: str) -> bool:
    """Whether a root is the address of a database; raises `Unsupported` for that of anything else."""
    if root.startswith(_DATABASES):
        return True
    if _ADDRESS.match(root):
        told = "a store is a folder or postgresql://…; s3://… is for large content: SESSILE_BLOBS"
        raise Unsupported("no store can be at this address", path=_SECRET.sub("//…@", root), hint=told)
    return False


def backing_of(
    root: str | os.PathLike[str],
    cache: str | os.PathLike[str] | None,
    fs: Filesystem | None,
    *,
    power: bool,
    patience: float,
    formats: Formats,
) -> Backing:
    """What lies at a root; nothing is created."""
    place = os.fspath(root)
    if fs is None and is_database(place):
        _check_package("psycopg", "a store in a database", "postgres")
        from sessile.storage.postgres.root import database_backing  # most stores are folders

        return database_backing(place, cache, power=power, patience=patience, formats=formats)
    if fs is None:
        # A symbolic link to the root is followed once, here; below the root none is.
        place = os.path.realpath(os.path.expanduser(place))
        if os.path.isfile(place):
            raise NotFound("there is no store, but a file", path=place, hint="a store is a folder; name that")
        fs = RootedFilesystem(place)
    layout = Layout(place, os.path.abspath(cache) if cache is not None else f"{place}/cache")
    journals = FileJournals(fs, layout, power=power, patience=patience)
    return Backing(place, fs, layout, journals, _nothing, partial(_catalog, fs, formats))


def blobs_at(address: str | None, layout: Layout, fs: Filesystem) -> Blobs:
    """Where large content lies: in the root, or in an object store."""
    inner = BlobStore(layout.blobs, fs)
    if address is None:
        return inner
    _check_package("obstore", "an object store", "s3")
    from sessile.storage.objects import ObjectBlobs

    return ObjectBlobs(address, layout.root, inner)


def _check_package(name: str, what: str, extra: str) -> None:
    """Say what to install: who keeps sessions in a folder needs no driver."""
    from importlib.util import find_spec  # most stores are folders

    if find_spec(name) is None:
        raise Unsupported(f"{what} needs the package {name}", hint=f"pip install 'sessile[{extra}]'")


def _catalog(fs: Filesystem, formats: Formats, cache: str | None) -> Catalog:
    from sessile.storage.catalog import Catalog  # who only appends needs none

    return Catalog(fs, cache, formats)


def _nothing() -> None:
    """A folder is let go of by itself."""
