"""Copies of sessions, whole or one branch, and moves to another project.

Entries are copied line by line as they are, with the blobs and artifacts that belong to them. The new header names the file
that it came from. The source is only read.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from sessile.core import entries as make
from sessile.core import large
from sessile.core.codec import decode, encode
from sessile.core.entries import Entry
from sessile.core.ids import new_entry_id, new_session_id
from sessile.core.text import iso_timestamp
from sessile.core.tree import branched_lines
from sessile.errors import SessileError, SessionExists, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem, OwnJournal
from sessile.storage.layout import artifacts_of, file_name
from sessile.storage.session_bytes import is_kept

if TYPE_CHECKING:
    from sessile.session import Session
    from sessile.store import Store


_OWN = {
    *make.header("", "", ""),
    "title",
    "titleSource",
    "parentSession",
    "previousSessionFiles",
}  # of one session only


def fork(store: Store, source: Session, cwd: str) -> Session:
    """All entries of a session as a session of its own, at the same leaf."""
    copy = _derive(store, source, cwd, source._iter_raw())
    if source.leaf_id is None:
        copy.reset_leaf()
    elif source.leaf_id != copy.leaf_id:
        copy.branch(source.leaf_id)
    return copy


def branch_off(store: Store, source: Session, path: Sequence[Entry]) -> Session:
    """A path of a session, leaf markers included, as a session of its own."""
    labels = {entry.id: label for entry in path if (label := source.get_label(entry.id)) is not None}
    lines = branched_lines(path, labels, lambda: new_entry_id(store.random), iso_timestamp(store.now()))
    return _derive(store, source, source.cwd, lines)


def _derive(store: Store, source: Session, cwd: str, lines: Iterable[bytes]) -> Session:
    now = store.now()
    header = make.header(
        new_session_id(now, store.random),
        iso_timestamp(now),
        cwd,
        title=source.title,
        titleSource=source.title_source,
        parentSession=source.path,
        **{name: value for name, value in source.header.items() if name not in _OWN},
    )
    path = f"{store.layout.folder(cwd)}/{file_name(header['timestamp'], header['id'])}"
    copy_folder(store.fs, source.artifacts, artifacts_of(path))
    return store.begin(path, _with_blobs(store, source.path, encode(header), lines))


def _with_blobs(store: Store, source_path: str, header: bytes, lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines; the blobs that they name are brought into the store before."""
    there = store.blobs.of_session(source_path)
    yield header
    for line in lines:
        if there is not store.blobs and large.may_hold_refs(line):
            for digest in large.blob_refs(decode(line)):
                data = there.get(digest)
                if data is not None:
                    store.blobs.put(data)
        yield line


def copy_folder(fs: Filesystem, source: str, target: str) -> None:
    """Copy a folder with all plain files; links and devices are left out."""
    if not atomic.exists(fs, source):
        return
    with storage_failures(source, "copy the artifacts"):
        if not atomic.is_folder(fs, source):
            return
        atomic.make_folders(fs, target)
        for name in fs.names(source):
            if atomic.is_folder(fs, f"{source}/{name}"):
                copy_folder(fs, f"{source}/{name}", f"{target}/{name}")
            elif atomic.is_plain(fs, f"{source}/{name}"):
                atomic.replace(fs, f"{target}/{name}", (atomic.read_all(fs, f"{source}/{name}"),))


def relocate(store: Store, journal: OwnJournal, cwd: str) -> None:
    """Move the file of a session and its artifacts to the folder of another project.

    The artifacts are in both places until the session has moved: whenever a crash comes, it has them.
    """
    old = journal.path
    new = f"{store.layout.folder(cwd)}/{posixpath.basename(old)}"
    if new == old or not store.layout.owns(old):
        return
    atomic.make_folders(store.fs, posixpath.dirname(new))
    if atomic.exists(store.fs, new):
        raise SessionExists("something of that name is already in the other project", path=new)
    _link_folder(store.fs, artifacts_of(old), artifacts_of(new))
    journal.rename(new)
    _leave_folder(store.fs, artifacts_of(old), artifacts_of(new))


def _link_folder(fs: Filesystem, source: str, target: str) -> None:
    """Give everything in a folder a second name in another one, or a copy where no link can reach."""
    if not atomic.exists(fs, source):
        return
    atomic.make_folders(fs, target)
    with storage_failures(source, "move the artifacts"):
        for name in fs.names(source):
            old, new = f"{source}/{name}", f"{target}/{name}"
            if atomic.is_folder(fs, old):
                _link_folder(fs, old, new)
            elif not atomic.exists(fs, new):
                atomic.link_or_copy(fs, old, new)
            elif not is_kept(fs, old, new):  # else it is from a move that was broken off
                raise SessionExists("something of that name is already in the other project", path=new)
        fs.sync_directory(target)


def _leave_folder(fs: Filesystem, source: str, target: str) -> None:
    """Remove the first names of what has a second one or a copy. What cannot be removed stays in both places."""
    try:
        for name in fs.names(source):
            old, new = f"{source}/{name}", f"{target}/{name}"
            if atomic.is_folder(fs, old):
                _leave_folder(fs, old, new)
            elif is_kept(fs, old, new):
                fs.unlink(old)
        fs.rmdir(source)
    except (OSError, SessileError):
        return
