"""Copies of sessions, as a whole or one branch, and moves to another project.

Lines are copied as they are, together with blobs and artifacts. The header of a copy has the path of its source. The source is
only read.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
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
from sessile.storage.drafts import published_path
from sessile.storage.layout import artifacts_of, file_name
from sessile.storage.session_bytes import below, is_kept

if TYPE_CHECKING:
    from sessile.session import Session
    from sessile.store import Store


_OWN = {
    *make.header("", "", ""),
    "title",
    "titleSource",
    "parentSession",
    "previousSessionFiles",
}  # members that are not copied


def fork(store: Store, source: Session, cwd: str) -> Session:
    """Copy all entries of a session to a new session of a project, at the same leaf."""
    copy = _derive(store, source, cwd, source._iter_raw())
    if source.leaf_id is None:
        copy.reset_leaf()
    elif source.leaf_id != copy.leaf_id:
        copy.branch(source.leaf_id)
    return copy


def branch_off(store: Store, source: Session, path: Sequence[Entry]) -> Session:
    """Copy one path of a session, including leaf markers, to a new session."""
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
        parentSession=published_path(source.path),  # the name that a draft will have
        **{name: value for name, value in source.header.items() if name not in _OWN},
    )
    path = f"{store.layout.folder(cwd)}/{file_name(header['timestamp'], header['id'])}"
    with atomic.folders_for(store.fs, posixpath.dirname(path)):
        try:
            copy_folder(store.fs, source.artifacts, artifacts_of(path))
            return store.begin(path, _with_blobs(store, source.path, encode(header), lines))
        except BaseException:
            _remove_folder(store.fs, artifacts_of(path))
            raise


def _with_blobs(store: Store, source_path: str, header: bytes, lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines, after copying the blobs that they refer to into the store."""
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
    """Copy a folder with all regular files. Links and devices are skipped."""
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


def _remove_folder(fs: Filesystem, path: str) -> None:
    """Remove a copy that was just made. Errors are ignored: the one that led here matters more."""
    with suppress(OSError, SessileError):
        for each, status in reversed(list(below(fs, path)) if atomic.exists(fs, path) else []):
            (fs.rmdir if stat.S_ISDIR(status.st_mode) else fs.unlink)(each)


def relocate(store: Store, journal: OwnJournal, cwd: str) -> None:
    """Move the file of a session and its artifacts to the folder of another project.

    The artifacts are in both places until the file has moved, so a crash never separates them.
    """
    old = journal.path
    new = f"{store.layout.folder(cwd)}/{posixpath.basename(old)}"
    if new == old or not store.layout.owns(old):
        return
    if atomic.exists(store.fs, new):
        raise SessionExists("the other project has a file of this name", path=new)
    with atomic.folders_for(store.fs, posixpath.dirname(new)):
        try:
            _link_folder(store.fs, artifacts_of(old), artifacts_of(new))
            journal.rename(new)
        except BaseException:
            if journal.path == old:
                _leave_folder(store.fs, artifacts_of(new), artifacts_of(old))
            raise
    _leave_folder(store.fs, artifacts_of(old), artifacts_of(new))


def _link_folder(fs: Filesystem, source: str, target: str) -> None:
    """Link all files of a folder into another one, or copy them where links are not possible."""
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
            elif not is_kept(fs, old, new):  # otherwise an interrupted move has left it
                raise SessionExists("the other project has a file of this name", path=new)
        fs.sync_directory(target)


def _leave_folder(fs: Filesystem, source: str, target: str) -> None:
    """Remove the files that were linked or copied. What cannot be removed stays in both places."""
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
