"""The trash: where deleted sessions go, and how they come back.

Each deletion is a folder of its own with the files and a manifest that says where they were. Nothing in the trash ends in
`.jsonl` at a place that a listing looks at, and nothing is ever removed from it by itself: `remove` is for a person who says so.

Moving a file or a folder to another place, also where a rename does not reach.

On one device a move is a rename, at once and durable when it returns. To another device everything is copied, made durable and
given its name there before the first thing is removed here: a kill leaves the whole at one of the two places, or at both, and
what fails before that leaves nothing there. Symbolic links are refused then, before anything is copied, and never followed.
"""

from __future__ import annotations

import errno
import posixpath
import stat
from collections.abc import Collection, Sequence
from contextlib import suppress

import msgspec

from sessile.errors import Conflict, Damaged, NotFound, SessileError, UnsafePath, storage_failures
from sessile.storage import atomic, log
from sessile.storage.base import Filesystem, Stat
from sessile.storage.layout import can_be_named
from sessile.storage.session_bytes import RawFile, below, is_kept

# --- moving


def move(fs: Filesystem, source: str, target: str) -> None:
    """Give what is at `source` the name `target`, which must be free, in a folder that exists."""
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
            raise UnsafePath("only plain files and folders can be moved to another device", path=path)
    made = atomic.temp_beside(target)
    try:
        _copy(fs, everything, source, made)
        fs.rename(made, target)
        made = target
        fs.sync_directory(posixpath.dirname(target))
    except BaseException:
        with suppress(OSError, SessileError):  # what went wrong before counts more
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
    """Remove what `below` has found, each folder after what it holds."""
    for path, status in reversed(everything):
        (fs.rmdir if stat.S_ISDIR(status.st_mode) else fs.unlink)(path)


# --- trash

_MANIFEST = "manifest.json"


class Deletion(msgspec.Struct, frozen=True, omit_defaults=True):
    """One deletion: the token that undoes it, and the paths that were moved.

    `root` is the folder of another agent that they were in; `None` if they were the store's own. `session_id` is that of a
    session whose agent keeps a list, into which it goes back as well.
    """

    token: str
    paths: tuple[str, ...]
    root: str | None = None
    session_id: str | None = None


class Trash:
    """The trash folder of a store. What it holds was below the folder that it lies in, or in that of another agent."""

    def __init__(self, fs: Filesystem, folder: str) -> None:
        self._fs = fs
        self._folder = folder
        self._root = posixpath.dirname(folder)

    def move(self, paths: Sequence[str], token: str, root: str | None = None) -> Deletion:
        """Move files and folders here; the manifest is durable before the first one moves.

        If one cannot be moved, those before it go back. If one is here as a whole, but could not be taken away where it was,
        all stay.
        """
        folder = f"{self._folder}/{token}"
        atomic.make_folders(self._fs, folder)
        deletion = Deletion(token, tuple(paths), root)
        # Relative, so that a root that was moved or copied gets its own sessions back, and nothing else.
        manifest = Deletion(token, tuple(posixpath.relpath(path, root or self._root) for path in paths), root)
        atomic.replace(self._fs, f"{folder}/{_MANIFEST}", (msgspec.json.encode(manifest),))
        for number, path in enumerate(paths):
            kept = f"{folder}/{number}"
            try:
                self._rename(path, kept)
            except BaseException:
                with suppress(SessileError):  # what went wrong before counts more
                    if not atomic.exists(self._fs, kept):  # else the whole is here, and only a part of it where it was
                        self._put_back(deletion)
                raise
        return deletion

    def undo(self, token: str, roots: Collection[str] = ()) -> Deletion:
        """Put everything of a deletion back where it was; into another agent's folder only if it is one of `roots`.

        A note in a trash that came from elsewhere may name any folder: the caller says which ones are meant.
        """
        deletion = self.get(token)
        if deletion.root is not None and deletion.root not in roots:
            hint = f"it was deleted from {deletion.root}; say that this folder is meant"
            raise UnsafePath("the trash names a folder outside of the store", path=deletion.paths[0], hint=hint)
        self._put_back(deletion)
        return deletion

    def _put_back(self, deletion: Deletion) -> None:
        folder = f"{self._folder}/{deletion.token}"
        for number, path in enumerate(deletion.paths):
            kept = f"{folder}/{number}"
            if not atomic.exists(self._fs, kept):
                continue  # was never moved, or is back already
            if not atomic.exists(self._fs, path):
                atomic.make_folders(self._fs, posixpath.dirname(path), below_links=deletion.root is not None)
                self._rename(kept, path)
                continue
            with storage_failures(path, "put a file back"):
                if not is_kept(self._fs, path, kept):  # else a move to another device was broken off
                    raise Conflict("something else has that name now", path=path, hint="move it away, then undo again")
                self._fs.unlink(kept)
        with storage_failures(folder, "empty the trash of it"):
            self._fs.unlink(f"{folder}/{_MANIFEST}")
            self._fs.rmdir(folder)
            self._fs.sync_directory(self._folder)

    def remove(self, token: str) -> bool:
        """Remove a deletion for good; links in it are removed, not followed. Says whether there was one.

        The note goes first, durably: what has lost a part must not look as if it could be undone.
        """
        folder = posixpath.dirname(self._manifest(self._checked(token)))
        with storage_failures(folder, "empty the trash"):
            if not atomic.exists(self._fs, folder):
                return False
            if atomic.exists(self._fs, self._manifest(token)):
                self._fs.unlink(self._manifest(token))
                self._fs.sync_directory(folder)
            for path, status in reversed(list(below(self._fs, folder))):
                (self._fs.rmdir if stat.S_ISDIR(status.st_mode) else self._fs.unlink)(path)
            self._fs.sync_directory(self._folder)
        return True

    def list(self) -> tuple[Deletion, ...]:
        """All deletions, oldest first; one whose note cannot be read is told in the log, and is in nobody's way."""
        with storage_failures(self._folder, "look into the trash"):
            try:
                tokens = self._fs.names(self._folder)
            except FileNotFoundError:
                return ()
        noted = [token for token in tokens if atomic.exists(self._fs, self._manifest(token))]
        return tuple(deletion for token in noted if (deletion := self._readable(token)) is not None)

    def _readable(self, token: str) -> Deletion | None:
        try:
            return self.get(token)
        except (Damaged, UnsafePath) as error:
            log.warning("the deletion %s cannot be undone: %s", token, error)
            return None

    def _manifest(self, token: str) -> str:
        return f"{self._folder}/{token}/{_MANIFEST}"

    def _checked(self, token: str) -> str:
        """The token itself if no path can be made from it."""
        if "/" in token or token in ("", ".", "..") or not can_be_named(token):
            raise NotFound(f"there is no deletion {token!r}")
        return token

    def get(self, token: str) -> Deletion:
        """What a token stands for."""
        self._checked(token)
        try:
            with storage_failures(self._manifest(token), "look into the trash"):
                try:
                    manifest = atomic.read_all(self._fs, self._manifest(token))
                except FileNotFoundError as error:
                    raise NotFound(f"there is no deletion {token!r}", hint="see what is in the trash") from error
            note = msgspec.json.decode(manifest, type=Deletion)
            paths = tuple(_below(path, note.root or self._root) for path in note.paths)
            return Deletion(token, paths, note.root, note.session_id)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            hint = "the files beside it are numbered: the session is 0, its artifacts are 1"
            raise Damaged(
                "the note of what was deleted cannot be read", path=self._manifest(token), hint=hint
            ) from error

    def _rename(self, source: str, target: str) -> None:
        with storage_failures(source, "move a file"):
            move(self._fs, source, target)


def _below(path: str, root: str) -> str:
    whole = posixpath.normpath(posixpath.join(root, path))
    if not whole.startswith(root + "/"):
        raise UnsafePath("the trash names a file outside of the store", path=path)
    return whole
