"""Large content in an object store that many machines can reach: S3 and compatible servers.

    Store("postgresql://…", blobs="s3://bucket/prefix")      endpoint and keys as usual: AWS_ENDPOINT, AWS_ACCESS_KEY_ID, …

Rules: a blob is an object named by its hash. It is created atomically and is durable when it is acknowledged; storing it
again is harmless. Content is checked against its name when it is read as a whole. Blobs that were stored in the root before are
still found there. Only erasing a session deletes anything, so a prefix must belong to one store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import obstore
from obstore import exceptions
from obstore.store import from_url

from sessile.core.ids import sha256
from sessile.core.large import blob_ref
from sessile.errors import BlobNotFound, InvalidConfig, PermissionRefused, StorageFailure
from sessile.storage.base import Blob, Blobs
from sessile.storage.blobs import checked_hash, digest_of
from sessile.storage.layout import root_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_PART = 8 << 20  # bytes of one part of a large object; the minimum of S3 is five megabytes


class ObjectBlobs:
    """The blobs below one URL; `inner` are those of the store's root."""

    def __init__(self, url: str, root: str, inner: Blobs) -> None:
        self.folder = url.rstrip("/")
        self._root = root
        self._inner = inner
        self._known: set[str] = set()
        self._store = _opened(self.folder)

    def of_session(self, path: str) -> Blobs:
        """Return the blobs of the root that contains a session file."""
        return self if root_of(path) in (None, self._root) else self._inner.of_session(path)

    def path(self, digest: str) -> str:
        """Return the URL of a blob."""
        return f"{self.folder}/{checked_hash(digest)}"

    def put(self, data: bytes) -> Blob:
        """Store bytes durably. Storing them again changes nothing."""
        return self._put(sha256(data).hexdigest(), lambda: data)

    def put_pieces(self, pieces: Callable[[], Iterator[bytes]]) -> Blob:
        """Store bytes of any size. `pieces` is called twice: to compute the hash, and to write."""
        return self._put(digest_of(pieces()), pieces)

    def _put(self, digest: str, content: Callable[[], bytes | Iterator[bytes]]) -> Blob:
        path = self.path(digest)
        if digest not in self._known:
            with _typed(path, "store a blob"):
                if not self._is_stored(digest):
                    obstore.put(self._store, digest, content(), chunk_size=_PART)
            self._known.add(digest)
        return Blob(digest, path, blob_ref(digest))

    def pieces(self, digest: str, size: int = 1 << 20) -> Iterator[bytes]:
        """Yield the bytes of a blob, unchecked."""
        path = self.path(digest)
        try:
            with _typed(path, "read a blob"):
                for piece in obstore.get(self._store, digest).stream(min_chunk_size=size):
                    yield bytes(piece)
        except BlobNotFound:
            yield from self._inner.pieces(digest, size)

    def get(self, digest: str) -> bytes | None:
        """Return the bytes of a blob; `None` if they are missing or do not match the hash."""
        path = self.path(digest)
        try:
            with _typed(path, "read a blob"):
                data = bytes(obstore.get(self._store, digest).bytes())
        except BlobNotFound:
            return self._inner.get(digest)
        return data if sha256(data).hexdigest() == digest else self._inner.get(digest)

    def has(self, digest: str) -> bool:
        """Return whether there is an object for that hash."""
        with _typed(self.path(digest), "look for a blob"):
            return self._is_stored(digest) or self._inner.has(digest)

    def remove(self, digest: str) -> None:
        """Remove a blob for good, if there is one. A bucket that keeps versions keeps this one, too."""
        self._known.discard(digest)
        try:
            with _typed(self.path(digest), "remove a blob"):
                obstore.delete(self._store, digest)
        except BlobNotFound:
            pass
        self._inner.remove(digest)

    def _is_stored(self, digest: str) -> bool:
        try:
            obstore.head(self._store, digest)
        except (FileNotFoundError, exceptions.NotFoundError):
            return False
        return True


def _opened(url: str) -> ObjectStore:
    try:
        return from_url(url)
    except (exceptions.BaseError, ValueError) as error:
        hint = "use a URL such as s3://bucket/prefix; keys and endpoint come from AWS_… in the environment"
        raise InvalidConfig("invalid URL of an object store", path=url, hint=hint) from error


@contextmanager
def _typed(path: str, doing: str) -> Iterator[None]:
    """Convert errors of the object store."""
    try:
        yield
    except (FileNotFoundError, exceptions.NotFoundError) as error:
        raise BlobNotFound(path=path) from error
    except (PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        hint = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and their permissions on the bucket"
        raise PermissionRefused(f"permission denied: could not {doing}", path=path, hint=hint) from error
    except (OSError, exceptions.BaseError) as error:
        hint = "check AWS_ENDPOINT and AWS_REGION, and that the server is running"
        raise StorageFailure(f"could not {doing}: {_first_line(error)}", path=path, hint=hint) from error


def _first_line(error: BaseException) -> str:
    """Return the message without the many lines of detail that obstore adds."""
    return str(error).strip().partition("\n")[0]
