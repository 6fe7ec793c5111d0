"""Copies of sessions, whole or one branch, and moves to another project.

Entries are copied line by line as they are, with the blobs and artifacts that belong to them. The new header names the file
that it came from. The source is only read.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from sessile.core import entries as make
from sessile.core import large
from sessile.core.branching import branched_lines
from sessile.core.codec import decode, encode
from sessile.core.ids import new_entry_id, new_session_id
from sessile.core.text import iso_timestamp
from sessile.errors import SessionExists, storage_failure
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.blobs import BlobStore
from sessile.storage.journal import FileJournal
from sessile.storage.layout import artifacts_of, file_name, root_of

if TYPE_CHECKING:
    from sessile.session import Session
    from sessile.store import Store


def fork(store: Store, source: Session, cwd: str) -> Session:
    """All entries of a session as a session of its own, at the same leaf."""
    copy = _derive(store, source, cwd, (entry.raw for entry in source.iter_lines()))
    if source.leaf_id is None:
        copy.reset_leaf()
    elif source.leaf_id != copy.leaf_id:
        copy.branch(source.leaf_id)
    return copy


def branch_off(store: Store, source: Session, leaf_id: str) -> Session:
    """The path to one entry of a session as a session of its own."""
    path = source.get_branch(leaf_id)
    labels = {entry.id: label for entry in path if (label := source.get_label(entry.id)) is not None}
    lines = branched_lines(path, labels, lambda: new_entry_id(store.random), iso_timestamp(store.now()))
    return _derive(store, source, source.cwd, lines)


def _derive(store: Store, source: Session, cwd: str, lines: Iterable[bytes]) -> Session:
    now = store.now()
    title = source.title
    header = make.header(
        new_session_id(now, store.random),
        iso_timestamp(now),
        cwd,
        title=title,
        titleSource=source.header.get("titleSource") if title else None,
        parentSession=source.path,
    )
    path = f"{store.layout.folder(cwd)}/{file_name(header['timestamp'], header['id'])}"
    _copy_folder(store.fs, source.artifacts, artifacts_of(path))
    return store.begin(path, _with_blobs(store, source.path, encode(header), lines))


def _with_blobs(store: Store, source_path: str, header: bytes, lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines; the blobs that they name are brought into the store before."""
    root = root_of(source_path)
    elsewhere = None if root in (None, store.layout.root) else BlobStore(f"{root}/blobs", store.fs)
    yield header
    for line in lines:
        if elsewhere is not None and large.may_hold_refs(line):
            for digest in large.blob_refs(decode(line)):
                data = elsewhere.get(digest)
                if data is not None:
                    store.blobs.put(data)
        yield line


def _copy_folder(fs: Filesystem, source: str, target: str) -> None:
    """Copy a folder with all plain files; links and devices are left out."""
    if not atomic.exists(fs, source) or not atomic.is_folder(fs, source):
        return
    atomic.make_folders(fs, target)
    for name in fs.names(source):
        if atomic.is_folder(fs, f"{source}/{name}"):
            _copy_folder(fs, f"{source}/{name}", f"{target}/{name}")
        elif atomic.is_plain(fs, f"{source}/{name}"):
            atomic.replace(fs, f"{target}/{name}", (atomic.read_all(fs, f"{source}/{name}"),))


def relocate(store: Store, journal: FileJournal, cwd: str) -> None:
    """Move the file of a session and its artifacts to the folder of another project."""
    old = journal.path
    new = f"{store.layout.folder(cwd)}/{posixpath.basename(old)}"
    if new == old or not store.layout.owns(old):
        return
    atomic.make_folders(store.fs, posixpath.dirname(new))
    for target in (new, artifacts_of(new)):
        if atomic.exists(store.fs, target):
            raise SessionExists("something of that name is already in the other project", path=target)
    journal.rename(new)
    if atomic.exists(store.fs, artifacts_of(old)):
        try:
            store.fs.rename(artifacts_of(old), artifacts_of(new))
            store.fs.sync_directory(posixpath.dirname(new))
        except OSError as error:
            journal.rename(old)
            raise storage_failure(error, old, "move the artifacts") from error
