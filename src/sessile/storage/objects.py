"""Large content in an object store that many machines reach: S3 and whatever speaks its protocol.

    Store("postgresql://…", blobs="s3://bucket/prefix")      address and keys as usual: AWS_ENDPOINT, AWS_ACCESS_KEY_ID, …

Rules: a blob is an object named by its hash, there whole or not at all, and durable when it was acknowledged; to store it again
is harmless, so nobody has to be asked first. What is read is checked against its name. Blobs that were stored in the root
before are found there.

Nothing is ever deleted here.
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

_CHUNK = 8 << 20  # bytes of one part of a large object; S3 wants five megabytes at least


class ObjectBlobs:
    """The blobs below one address; `inner` are those of the root."""

    def __init__(self, url: str, root: str, inner: Blobs) -> None:
        self.folder = url.rstrip("/")
        self._root = root
        self._inner = inner
        self._known: set[str] = set()
        self._store = _opened(self.folder)

    def of_session(self, path: str) -> Blobs:
        """The blobs of the root in which a session file lies."""
        return self if root_of(path) in (None, self._root) else self._inner.of_session(path)

    def path(self, digest: str) -> str:
        """The address of a blob."""
        return f"{self.folder}/{checked_hash(digest)}"

    def put(self, data: bytes) -> Blob:
        """Store bytes; they are durable when this returns. Storing them again changes nothing."""
        return self._put(sha256(data).hexdigest(), lambda: data)

    def put_pieces(self, pieces: Callable[[], Iterator[bytes]]) -> Blob:
        """Store bytes of any size: `pieces` gives them twice, once to name them and once to write them."""
        return self._put(digest_of(pieces()), pieces)

    def _put(self, digest: str, content: Callable[[], bytes | Iterator[bytes]]) -> Blob:
        path = self.path(digest)
        if digest not in self._known:
            with _typed(path, "store a blob"):
                if not self._is_stored(digest):
                    obstore.put(self._store, digest, content(), chunk_size=_CHUNK)
            self._known.add(digest)
        return Blob(digest, path, blob_ref(digest))

    def pieces(self, digest: str, size: int = 1 << 20) -> Iterator[bytes]:
        """The bytes of a blob, piece by piece; whoever has them all can check them."""
        path = self.path(digest)
        try:
            with _typed(path, "read a blob"):
                for piece in obstore.get(self._store, digest).stream(min_chunk_size=size):
                    yield bytes(piece)
        except BlobNotFound:
            yield from self._inner.pieces(digest, size)

    def get(self, digest: str) -> bytes | None:
        """The bytes of a blob; `None` if they are missing or are not what the hash says."""
        path = self.path(digest)
        try:
            with _typed(path, "read a blob"):
                data = bytes(obstore.get(self._store, digest).bytes())
        except BlobNotFound:
            return self._inner.get(digest)
        return data if sha256(data).hexdigest() == digest else self._inner.get(digest)

    def has(self, digest: str) -> bool:
        """Whether there is an object for that hash."""
        with _typed(self.path(digest), "look for a blob"):
            return self._is_stored(digest) or self._inner.has(digest)

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
        hint = "an address looks like s3://bucket/prefix; keys and endpoint come from AWS_… in the environment"
        raise InvalidConfig("this is no place for blobs", path=url, hint=hint) from error


@contextmanager
def _typed(path: str, doing: str) -> Iterator[None]:
    """Errors of the object store as ours."""
    try:
        yield
    except (FileNotFoundError, exceptions.NotFoundError) as error:
        raise BlobNotFound(path=path) from error
    except (PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        hint = "look at AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and what they may do with the bucket"
        raise PermissionRefused(f"may not {doing}", path=path, hint=hint) from error
    except (OSError, exceptions.BaseError) as error:
        hint = "look at AWS_ENDPOINT and AWS_REGION, and whether the server runs"
        raise StorageFailure(f"cannot {doing}: {_first_line(error)}", path=path, hint=hint) from error


def _first_line(error: BaseException) -> str:
    """What went wrong, without the pages that the library adds."""
    return str(error).strip().partition("\n")[0]
