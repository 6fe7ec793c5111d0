"""The trash: where deleted sessions go, and how they are restored.

Each deletion is a folder with the files and a manifest of their paths. Nothing in the trash ends in `.jsonl` at a place that a
listing looks at. Nothing is removed from it automatically; `remove` is for a user who asks for it.

On one device a move is a rename. To another device everything is copied, made durable and renamed there before the first file is
removed here, so a kill leaves everything at one of the two places or at both, and a failure before that leaves nothing there.
Symbolic links are refused in that case, before anything is copied, and never followed.
"""

from __future__ import annotations

import errno
import posixpath
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from sessile.errors import (
    Conflict,
    Damaged,
    NotFound,
    SessileError,
    SessionBusy,
    StorageFull,
    UnsafePath,
    storage_failures,
)
from sessile.storage import atomic, log
from sessile.storage.base import Filesystem, Stat
from sessile.storage.drafts import PATIENCE
from sessile.storage.layout import JOURNAL, artifacts_of, can_be_named
from sessile.storage.locks import identity, open_files
from sessile.storage.session_bytes import RawFile, below, is_kept

_MANIFEST = "manifest.json"
_FROM = "from-"  # before the name of a project's folder, in the name of an empty file that replaces the manifest


class Deletion(msgspec.Struct, frozen=True, omit_defaults=True):
    """One deletion: the token that undoes it, and the paths that were moved.

    `root` is the folder of the agent that they belong to; `None` for the store's own. `session_id` is set if that agent keeps a
    list of sessions, to which the session is added again on undo.
    """

    token: str
    paths: tuple[str, ...]
    root: str | None = None
    session_id: str | None = None


class Trash:
    """The trash folder of a store, for files below the store's root or in the folder of another agent."""

    def __init__(self, fs: Filesystem, folder: str) -> None:
        self._fs = fs
        self._folder = folder
        self._root = posixpath.dirname(folder)

    @contextmanager
    def unused(self, path: str, *, hold: bool) -> Iterator[None]:
        """Check that no other process uses a file. With `hold`, none writes it inside of the block.

        Raises:
            SessionBusy: A process holds the lock of the file, or another process has it open, where the system shows that.
        """
        with RawFile(self._fs, path) as file:
            if identity(file.stat) in (open_files(elsewhere=True) or ()):
                hint = "close it there, or pass force=True: appends of that process fail from then on"
                raise SessionBusy("another process has the session open", path=path, hint=hint)
            file.hold(PATIENCE)
            if not hold:
                file.close()
            yield

    def move(self, paths: Sequence[str], token: str, root: str | None = None) -> Deletion:
        """Move files and folders here. The manifest is durable before the first one moves.

        If one cannot be moved, those before it are put back. If one was copied completely but could not be removed at its old
        place, all stay in the trash.
        """
        folder = f"{self._folder}/{token}"
        deletion = Deletion(token, tuple(paths), root)
        try:
            with atomic.folders_for(self._fs, folder):
                self._describe(deletion)
                self._move_all(deletion)
        except StorageFull as error:
            error.hint = f"empty the trash (sessile trash empty --apply), or delete the file yourself: {paths[0]}"
            raise
        return deletion

    def _move_all(self, deletion: Deletion) -> None:
        folder, paths = f"{self._folder}/{deletion.token}", deletion.paths
        for number, path in enumerate(paths):
            kept = f"{folder}/{number}"
            try:
                self._rename(path, kept)
            except BaseException:
                with suppress(SessileError):  # the first error matters more
                    if not atomic.exists(
                        self._fs, kept
                    ):  # else it was copied completely, and is incomplete at its old place
                        self._put_back(deletion)
                raise

    def _describe(self, deletion: Deletion) -> None:
        """Write the manifest. On a full disk a session is described by names of files, which need no room."""
        # Relative paths, so that a root that was moved or copied restores into itself and nowhere else.
        root = deletion.root or self._root
        manifest = Deletion(
            deletion.token, tuple(posixpath.relpath(path, root) for path in deletion.paths), deletion.root
        )
        try:
            atomic.replace(self._fs, self._manifest(deletion.token), (msgspec.json.encode(manifest),))
        except StorageFull:
            folder, project = f"{self._folder}/{deletion.token}", deletion.paths[0].split("/")[-2]
            described = self._by_name(deletion.token, project)
            if deletion.root is not None or described.paths[: len(deletion.paths)] != deletion.paths:
                raise
            with storage_failures(self._folder, "describe a deletion"):
                atomic.write_new(self._fs, f"{folder}/{_FROM}{project}", ())
                self._fs.sync_directory(folder)

    def _by_name(self, token: str, project: str) -> Deletion:
        """The deletion of a session whose token ends with the name of its file, from the folder of a project."""
        path = f"{self._root}/sessions/{project}/{token.split('-', 2)[-1]}{JOURNAL}"
        return Deletion(token, tuple(_below(each, f"{self._root}/sessions") for each in (path, artifacts_of(path))))

    def _described(self, token: str) -> str | None:
        """Return the path of what describes a deletion; `None` if there is none."""
        if atomic.exists(self._fs, self._manifest(token)):
            return self._manifest(token)
        with storage_failures(self._folder, "read the trash"), suppress(FileNotFoundError, NotADirectoryError):
            for name in self._fs.names(f"{self._folder}/{token}"):
                if name.startswith(_FROM):
                    return f"{self._folder}/{token}/{name}"
        return None

    def undo(self, token: str, roots: Collection[str] = ()) -> Deletion:
        """Put everything of a deletion back. Another agent's folder must be one of `roots`.

        The manifest of a trash that was copied from elsewhere could name any folder, so the caller confirms it.
        """
        deletion = self.get(token)
        if deletion.root is not None and deletion.root not in roots:
            hint = f"it was deleted from {deletion.root}; confirm that folder"
            raise UnsafePath("the manifest names a folder outside of the store", path=deletion.paths[0], hint=hint)
        self._put_back(deletion)
        return deletion

    def _put_back(self, deletion: Deletion) -> None:
        folder = f"{self._folder}/{deletion.token}"
        for number, path in enumerate(deletion.paths):
            kept = f"{folder}/{number}"
            if not atomic.exists(self._fs, kept):
                continue  # was never moved, or was already put back
            if not atomic.exists(self._fs, path):
                atomic.make_folders(self._fs, posixpath.dirname(path), below_links=deletion.root is not None)
                self._rename(kept, path)
                continue
            with storage_failures(path, "put a file back"):
                if not is_kept(self._fs, path, kept):  # else a move to another device was interrupted
                    raise Conflict("the path is in use again", path=path, hint="move that file away, then undo again")
                self._fs.unlink(kept)
        with storage_failures(folder, "remove it from the trash"):
            for name in self._fs.names(folder):
                if atomic.target_of(name) is not None:  # a copy that did not finish: its original never moved
                    _remove(self._fs, list(below(self._fs, f"{folder}/{name}")))
            self._fs.unlink(self._described(deletion.token) or self._manifest(deletion.token))
            self._fs.rmdir(folder)
            self._fs.sync_directory(self._folder)

    def remove(self, token: str) -> bool:
        """Delete a deletion permanently and return whether there was one. Links are removed, not followed.

        The manifest is removed first, durably, so that an incomplete deletion cannot be undone.
        """
        folder = posixpath.dirname(self._manifest(self._checked(token)))
        with storage_failures(folder, "empty the trash"):
            if not atomic.exists(self._fs, folder):
                return False
            if (description := self._described(token)) is not None:
                self._fs.unlink(description)
                self._fs.sync_directory(folder)
            for path, status in reversed(list(below(self._fs, folder))):
                (self._fs.rmdir if stat.S_ISDIR(status.st_mode) else self._fs.unlink)(path)
            self._fs.sync_directory(self._folder)
        return True

    def list(self) -> tuple[Deletion, ...]:
        """Return all deletions, oldest first. One whose manifest cannot be read is logged and left out."""
        with storage_failures(self._folder, "read the trash"):
            try:
                tokens = self._fs.names(self._folder)
            except FileNotFoundError:
                return ()
        listed = [token for token in tokens if self._described(token) is not None]
        return tuple(deletion for token in listed if (deletion := self._readable(token)) is not None)

    def _readable(self, token: str) -> Deletion | None:
        try:
            return self.get(token)
        except (Damaged, UnsafePath) as error:
            log.warning("the deletion %s cannot be undone: %s", token, error)
            return None

    def _manifest(self, token: str) -> str:
        return f"{self._folder}/{token}/{_MANIFEST}"

    def _checked(self, token: str) -> str:
        """Return the token, or raise if it could be part of a path."""
        if "/" in token or token in ("", ".", "..") or not can_be_named(token):
            raise NotFound(f"deletion not found: {token!r}")
        return token

    def get(self, token: str) -> Deletion:
        """Return the deletion with that token."""
        description = self._described(self._checked(token)) or self._manifest(token)
        if (name := posixpath.basename(description)).startswith(_FROM):
            return self._by_name(token, name.removeprefix(_FROM))
        try:
            with storage_failures(self._manifest(token), "read the trash"):
                try:
                    manifest = atomic.read_all(self._fs, self._manifest(token))
                except FileNotFoundError as error:
                    raise NotFound(
                        f"deletion not found: {token!r}", hint="list the trash to see its deletions"
                    ) from error
            stored = msgspec.json.decode(manifest, type=Deletion)
            paths = tuple(_below(path, stored.root or self._root) for path in stored.paths)
            return Deletion(token, paths, stored.root, stored.session_id)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            hint = "the files beside it are numbered: 0 is the session, 1 its artifacts"
            raise Damaged(
                "the manifest of the deletion cannot be read", path=self._manifest(token), hint=hint
            ) from error

    def _rename(self, source: str, target: str) -> None:
        with storage_failures(source, "move a file"):
            move(self._fs, source, target)


def _below(path: str, root: str) -> str:
    whole = posixpath.normpath(posixpath.join(root, path))
    if not whole.startswith(root + "/"):
        raise UnsafePath("the manifest names a file outside of the store", path=path)
    return whole


# -- moving files


def move(fs: Filesystem, source: str, target: str) -> None:
    """Move a file or folder to `target`, a free name in an existing folder, durably."""
    try:
        fs.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _move_across(fs, source, target)
        return
    fs.sync_directory(posixpath.dirname(target))
    fs.sync_directory(posixpath.dirname(source))


def _move_across(fs: Filesystem, source: str, target: str) -> None:
    everything = list(below(fs, source))
    for path, status in everything:
        if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
            raise UnsafePath("only regular files and folders can be moved to another device", path=path)
    made = atomic.temp_beside(target)
    try:
        _copy(fs, everything, source, made)
        fs.rename(made, target)
        made = target
        fs.sync_directory(posixpath.dirname(target))
    except BaseException:
        with suppress(OSError, SessileError):  # the first error matters more
            _remove(fs, list(below(fs, made)))
        raise
    _remove(fs, everything)
    fs.sync_directory(posixpath.dirname(source))


def _copy(fs: Filesystem, everything: Sequence[tuple[str, Stat]], source: str, target: str) -> None:
    for path, status in everything:
        copy = target + path[len(source) :]
        if stat.S_ISDIR(status.st_mode):
            fs.mkdir(copy)
        else:
            with RawFile(fs, path) as file:
                atomic.write_new(fs, copy, file.chunks())
            atomic.set_modified(fs, copy, status.st_mtime_ns)
    for path, status in everything:
        if stat.S_ISDIR(status.st_mode):
            fs.sync_directory(target + path[len(source) :])


def _remove(fs: Filesystem, everything: Sequence[tuple[str, Stat]]) -> None:
    """Remove what `below` has found, each folder after its content."""
    for path, status in reversed(everything):
        (fs.rmdir if stat.S_ISDIR(status.st_mode) else fs.unlink)(path)
