"""The contract of `Blobs`, as numbered behaviours for the tests of a blob store.

class TestMyBlobs(BlobContract):
    @pytest.fixture
    def open_blobs(self):
        return lambda: MyBlobs(...)  # opens the same blobs again, as another process would
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from sessile.errors import InvalidId, NotFound
from sessile.storage.base import Blobs

OpenBlobs = Callable[[], Blobs]

DATA = b"some content"
HASH = hashlib.sha256(DATA).hexdigest()
LARGE = bytes(range(256)) * (80 << 10)  # 20 MB: several parts of an upload


class BlobContract:
    """The behaviours B01 to B09. Subclasses provide the fixture `open_blobs`."""

    def test_b01_bytes_come_back_under_their_hash(self, open_blobs: OpenBlobs) -> None:
        """For the process that stored them, and for all others."""
        blob = open_blobs().put(DATA)
        assert (blob.hash, blob.ref) == (HASH, f"blob:sha256:{HASH}")
        assert blob.path == open_blobs().path(HASH)
        assert (open_blobs().get(HASH), open_blobs().has(HASH)) == (DATA, True)
        assert b"".join(open_blobs().pieces(HASH, 5)) == DATA

    def test_b02_empty_content_is_a_blob(self, open_blobs: OpenBlobs) -> None:
        """It has a hash like any other content."""
        blobs = open_blobs()
        assert blobs.get(blobs.put(b"").hash) == b""

    def test_b03_an_unknown_blob_is_missing(self, open_blobs: OpenBlobs) -> None:
        """`get` returns None and `pieces` raises NotFound; it is not a storage failure."""
        blobs = open_blobs()
        assert (blobs.get(HASH), blobs.has(HASH)) == (None, False)
        with pytest.raises(NotFound):
            list(blobs.pieces(HASH))

    def test_b04_storing_again_changes_nothing(self, open_blobs: OpenBlobs) -> None:
        """Neither in the same process nor in another one."""
        assert open_blobs().put(DATA) == open_blobs().put(DATA)
        assert open_blobs().get(HASH) == DATA

    def test_b05_large_content_is_stored_piece_by_piece(self, open_blobs: OpenBlobs) -> None:
        """The content is requested twice, and read in pieces of limited size."""
        asked = []

        def pieces() -> object:
            asked.append(1)
            return (LARGE[at : at + 1_000_003] for at in range(0, len(LARGE), 1_000_003))

        blob = open_blobs().put_pieces(pieces)  # type: ignore[arg-type]
        assert len(asked) == 2
        assert blob.hash == hashlib.sha256(LARGE).hexdigest()
        read = hashlib.sha256()
        for piece in open_blobs().pieces(blob.hash):
            assert len(piece) <= 16 << 20
            read.update(piece)
        assert read.hexdigest() == blob.hash

    @pytest.mark.parametrize("digest", ["../../etc/passwd", "", "a" * 63, "g" * 64, HASH.upper(), HASH + "\n"])
    def test_b06_other_names_than_hashes_are_refused(self, open_blobs: OpenBlobs, digest: str) -> None:
        """A hash has 64 hexadecimal digits in lower case."""
        blobs = open_blobs()
        for ask in (blobs.path, blobs.get, blobs.has, lambda text: list(blobs.pieces(text))):
            with pytest.raises(InvalidId):
                ask(digest)

    def test_b07_concurrent_stores_of_the_same_content_are_safe(self, open_blobs: OpenBlobs) -> None:
        """A concurrent reader gets all of it or nothing."""
        data = LARGE[: 2 << 20]
        digest = hashlib.sha256(data).hexdigest()
        stop = threading.Event()
        seen: set[int] = set()

        def look() -> None:
            reader = open_blobs()
            while not stop.is_set():
                found = reader.get(digest)
                seen.add(-1 if found is None else len(found))

        with ThreadPoolExecutor(6) as pool:
            looking = pool.submit(look)
            made = list(pool.map(lambda _: open_blobs().put(data), range(5)))
            stop.set()
            looking.result()
        assert {blob.hash for blob in made} == {digest}
        assert seen <= {-1, len(data)}

    def test_b08_a_session_of_the_same_root_has_these_blobs(self, open_blobs: OpenBlobs) -> None:
        """A session outside of any root uses them too."""
        blobs = open_blobs()
        assert blobs.of_session("/nowhere.jsonl") is blobs

    def test_b09_a_removed_blob_is_missing_and_can_be_stored_again(self, open_blobs: OpenBlobs) -> None:
        """Removing is final, and removing what is missing does nothing."""
        blobs = open_blobs()
        blobs.put(DATA)
        for _ in range(2):
            blobs.remove(HASH)
            assert not blobs.has(HASH) and open_blobs().get(HASH) is None
        assert blobs.put(DATA).hash == HASH and open_blobs().get(HASH) == DATA
