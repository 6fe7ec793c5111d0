"""Choose what a store is built on, by its root: file system, layout, journals and catalog.

Store("~/.sessile")                       a folder
Store("postgresql://user@host/name")      a database with the same tree of names; the files of the machine stay reachable
                                          beside it, so that other agents' sessions can be read and imported
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sessile.errors import NotFound, Unsupported
from sessile.storage import log
from sessile.storage.base import Blobs, Filesystem, Journals
from sessile.storage.blobs import BlobStore
from sessile.storage.filesystem import RootedFilesystem, check_private
from sessile.storage.layout import Layout

if TYPE_CHECKING:
    from sessile.storage.catalog import Catalog
    from sessile.storage.formats import Formats
    from sessile.storage.postgres.database import Database
    from sessile.storage.postgres.joined_listings import JoinedCatalog

_DATABASES = ("postgresql://", "postgres://")
_ADDRESS = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")
_SECRET = re.compile("//.*@")  # user name and password


class Backing(NamedTuple):
    """The parts of a store's root, and a function that closes it."""

    name: str  # safe to show: without a password
    fs: Filesystem
    layout: Layout
    journals: Callable[[], Journals]
    close: Callable[[], None]
    catalog: Callable[[str | None], Catalog | JoinedCatalog]  # takes the cache folder, where one is needed
    database: Database | None = None  # for tables that many processes share
    purge: Callable[[Sequence[str], str], None] = lambda paths, session_id: None  # after these were erased


def is_database(root: str) -> bool:
    """Return whether a root is the URL of a database. Raise `Unsupported` for any other URL."""
    if root.startswith(_DATABASES):
        return True
    if _ADDRESS.match(root):
        hint = "use a folder or postgresql://…; s3://… is for large content: set SESSILE_BLOBS"
        raise Unsupported("a store cannot have this root", path=_SECRET.sub("//…@", root), hint=hint)
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
    """Return the parts of the store at a root. Nothing is created."""
    place = os.fspath(root)
    if fs is None and is_database(place):
        _check_package("psycopg", "a store in a database", "postgres")
        from sessile.storage.postgres.root import database_backing  # needs psycopg, an optional package

        return database_backing(place, cache, power=power, patience=patience, formats=formats)
    if fs is None:
        # A symbolic link to the root is followed once, here; below the root none is.
        place = os.path.realpath(os.path.expanduser(place))
        if os.path.isfile(place):
            raise NotFound("the root is a file", path=place, hint="pass the folder of the store")
        fs = RootedFilesystem(place)
    layout = Layout(place, _private(fs, os.path.abspath(cache)) if cache is not None else f"{place}/cache")

    def journals() -> Journals:
        from sessile.storage.journal import FileJournals  # saves start-up time: a listing opens no journal

        return FileJournals(fs, layout, power=power, patience=patience)

    return Backing(place, fs, layout, journals, _nothing, partial(_catalog, fs, formats))


def _private(fs: Filesystem, cache: str) -> str:
    """Return a cache folder; if another user could have put an index there, a path at which there is never one."""
    try:
        if isinstance(fs, RootedFilesystem):
            check_private(cache)
    except OSError as error:
        log.info("the cache folder %s is not used: %s", cache, error.strerror)
        return f"{os.devnull}/cache"
    return cache


def blobs_at(address: str | None, layout: Layout, fs: Filesystem) -> Blobs:
    """Return the blobs of a store: in its root, or in the object store at `address`."""
    inner = BlobStore(layout.blobs, fs)
    if address is None:
        return inner
    _check_package("obstore", "an object store", "s3")
    from sessile.storage.objects import ObjectBlobs  # needs obstore, an optional package

    return ObjectBlobs(address, layout.root, inner)


def _check_package(name: str, what: str, extra: str) -> None:
    """Raise `Unsupported`, with the command to install it, if an optional package is missing."""
    from importlib.util import find_spec  # saves start-up time: a store in a folder needs no optional package

    if find_spec(name) is None:
        raise Unsupported(f"{what} needs the package {name}", hint=f"pip install 'sessile[{extra}]'")


def _catalog(fs: Filesystem, formats: Formats, cache: str | None) -> Catalog:
    from sessile.storage.catalog import Catalog  # saves start-up time: appending needs no catalog

    return Catalog(fs, cache, formats)


def _nothing() -> None:
    """Close nothing: a folder needs no closing."""
