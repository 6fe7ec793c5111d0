"""Large content by its hash: a folder with one file per blob.

A blob is created atomically, and is durable before the line that refers to it is written. Its content is checked against its
name whenever it is read as a whole, so damage is noticed and only a hash can name a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator

from sessile.core.ids import sha256
from sessile.core.large import blob_ref
from sessile.errors import InvalidId, storage_failure, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Blob, Filesystem
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.layout import root_of

_HASH = re.compile(r"[0-9a-f]{64}")


class BlobStore:
    """Large content in one folder, by its hash.

    A blob appears as a whole or not at all, and its content is checked against its hash when it is read.

    Args:
        folder: The folder. It is created with the first blob.
        fs: Another filesystem, for tests.

    Attributes:
        folder (str): The folder.

    Example:
        ```python
        blob = BlobStore("/data/blobs").put(b"large content")
        print(blob.hash, blob.ref)
        ```
    """

    def __init__(self, folder: str, fs: Filesystem | None = None) -> None:
        self.folder = folder
        self._fs = fs if fs is not None else PosixFilesystem()
        self._folders: set[str] = set()
        self._known: set[str] = set()

    def of_session(self, path: str) -> BlobStore:
        """Return the blobs of the root that contains a session file; these blobs, if no root does."""
        root = root_of(path)
        folder = self.folder if root is None else f"{root}/blobs"
        return self if folder == self.folder else BlobStore(folder, self._fs)

    def path(self, digest: str) -> str:
        """Return the file of a blob."""
        return f"{self.folder}/{checked_hash(digest)}"

    def put(self, data: bytes) -> Blob:
        """Store bytes durably. Storing them again changes nothing."""
        digest = sha256(data).hexdigest()
        path = self.path(digest)
        if self.get(digest) is None:
            self._write(path, (data,))
        elif digest not in self._known:
            self._settle(path)  # the process that stored it may have died before its sync
        self._known.add(digest)
        return Blob(digest, path, blob_ref(digest))

    def put_pieces(self, pieces: Callable[[], Iterator[bytes]]) -> Blob:
        """Store bytes of any size. `pieces` is called twice: to compute the hash, and to write."""
        digest = digest_of(pieces())
        path = self.path(digest)
        if not self.has(digest):
            self._write(path, pieces())
        return Blob(digest, path, blob_ref(digest))

    def _write(self, path: str, pieces: Iterable[bytes]) -> None:
        first = self.folder not in self._folders
        atomic.make_folders(self._fs, self.folder, self._folders)
        atomic.replace(self._fs, path, pieces, sweeps=first)  # once: there may be many blobs to list

    def pieces(self, digest: str, size: int = 1 << 20) -> Iterator[bytes]:
        """Yield the bytes of a blob, unchecked."""
        path = self.path(digest)
        with storage_failures(path, "read a blob"):
            fd = self._fs.open(path, os.O_RDONLY)
            try:
                at = 0
                while piece := self._fs.read(fd, size, at):
                    yield piece
                    at += len(piece)
            finally:
                self._fs.close(fd)

    def _settle(self, path: str) -> None:
        atomic.make_folders(self._fs, self.folder, self._folders)
        try:
            self._fs.sync_directory(self.folder)
        except OSError as error:
            raise storage_failure(error, path, "store a blob") from error

    def get(self, digest: str) -> bytes | None:
        """Return the bytes of a blob; `None` if they are missing or do not match the hash."""
        path = self.path(digest)
        try:
            data = atomic.read_all(self._fs, path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_failure(error, path, "read a blob") from error
        return data if sha256(data).hexdigest() == digest else None

    def has(self, digest: str) -> bool:
        """Return whether there is a file for that hash."""
        return atomic.exists(self._fs, self.path(digest))

    def remove(self, digest: str) -> None:
        """Remove a blob for good, if there is one."""
        path = self.path(digest)
        self._known.discard(digest)
        with storage_failures(path, "remove a blob"):
            if atomic.exists(self._fs, path):
                self._fs.unlink(path)
                self._fs.sync_directory(self.folder)


def checked_hash(digest: str) -> str:
    """Return the hash, or raise `InvalidId`: it becomes the name of a file."""
    if not _HASH.fullmatch(digest):
        raise InvalidId(f"invalid blob hash {digest[:80]!r}", hint="a hash has 64 hexadecimal digits, in lower case")
    return digest


def digest_of(pieces: Iterable[bytes]) -> str:
    """Return the hash of bytes that come in pieces."""
    whole = sha256()
    for piece in pieces:
        whole.update(piece)
    return whole.hexdigest()
