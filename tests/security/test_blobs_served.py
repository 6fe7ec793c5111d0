"""Blobs are returned unchanged or not at all, and texts that only resemble references stay texts."""

from __future__ import annotations

import os
from random import Random

import pytest

from figures import measured
from sessile.core.large import blob_ref, parse_blob_ref, resolve, restore, shrink
from sessile.errors import InvalidId
from sessile.storage.blobs import BlobStore
from sessile.storage.memory import MemoryFilesystem

pytestmark = pytest.mark.promise("P31")

SHORT, LONG = 1_000, 100_000
_ODD = [
    "",
    " ",
    "\n",
    "../",
    "/",
    "\0",
    "blob:sha256:",
    "sha512:",
    "A",
    "g",
    "٣",
    "é",
    "\ud800",
    "0" * 63,
    "0" * 64,
    "0" * 65,
]


def damaged(data: bytes, rng: Random) -> bytes:
    """Return the bytes with a random damage."""
    kind = rng.randrange(4)
    if kind == 0 and data:
        place = rng.randrange(len(data))
        return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
    if kind == 1 and data:
        return data[: rng.randrange(len(data))]
    return data + rng.randbytes(1 + rng.randrange(3)) if kind == 2 else b"\0" * (len(data) or 1)


def check_served(blobs: int, rng: Random) -> tuple[int, int]:
    """Store blobs, damage about half of them, and read all. Return the numbers of served and refused blobs."""
    served = refused = 0
    fs = MemoryFilesystem()
    fs.mkdir("/b")
    for _ in range(blobs):
        store = BlobStore("/b", fs)
        data = rng.randbytes(rng.choice((0, 1, 7, 64, 1000)))
        path = store.put(data).path
        digest = path.rpartition("/")[2]
        other = damaged(data, rng) if rng.random() < 0.5 else data
        if other != data:
            fs.unlink(path)
            fd = fs.open(path, os.O_WRONLY | os.O_CREAT)
            fs.write(fd, other)
            fs.close(fd)
        found = store.get(digest)
        assert found == (data if other == data else None)
        served, refused = served + (found is not None), refused + (found is None)
        assert store.put(data).path == path and store.get(digest) == data  # storing it again repairs it
        fs.unlink(path)
    return served, refused


def check_references(texts: int, rng: Random) -> int:
    """Parse texts that resemble references: only 64 hexadecimal digits are one. Return the number of references."""
    named = 0
    fs = MemoryFilesystem()
    fs.mkdir("/b")
    store = BlobStore("/b", fs)
    secret = store.put(b"secret" * 500)
    for _ in range(texts):
        digest = "".join(rng.choices("0123456789abcdef", k=rng.choice((63, 64, 64, 64, 65))))
        text = f"blob:sha256:{digest}"
        if rng.random() < 0.7:
            place = rng.randrange(len(text) + 1)
            text = text[:place] + rng.choice(_ODD) + text[place + rng.randrange(2) :]
        found = parse_blob_ref(text)
        plain = text.removeprefix("blob:sha256:")
        hexadecimal = len(plain) == 64 and set(plain) <= set("0123456789abcdef") and text != plain
        assert found == (plain if hexadecimal else None)
        named += found is not None
        if found is None:
            with pytest.raises(InvalidId):
                store.path(text)
        said = {
            "message": {
                "role": "user",
                "content": rng.choice((text, secret.ref, [{"type": "text", "text": secret.ref}])),
            }
        }
        kept = shrink(said, lambda data: store.put(data).hash)
        assert kept == said == restore(kept, store.get, lambda _: None) == resolve(kept, store.get, lambda _: None)
        assert blob_ref(secret.hash) == secret.ref
    return named


def run(times: int, seed: int) -> None:
    served, refused = check_served(times, Random(seed))
    assert served and refused
    measured("P31", "blobs that were damaged", blobs=times, served=served, refused=refused, wrong_bytes=0)
    named = check_references(times, Random(seed + 1))
    measured("P31", "texts that look like references", texts=times, references=named, taken_for_another=0)


def test_a_blob_is_served_as_it_was_or_not_at_all() -> None:
    """A flipped bit and missing or added bytes are noticed; users' texts stay texts."""
    run(SHORT, 1)


@pytest.mark.long
def test_a_hundred_thousand_blobs_are_served_as_they_were_or_not_at_all() -> None:
    """The long form of the test above."""
    run(LONG, 2)


def test_without_the_check_wrong_bytes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If content is not compared with its hash, the rig reports wrong bytes."""

    def unchecked(self: BlobStore, digest: str) -> bytes | None:
        fd = self._fs.open(self.path(digest), os.O_RDONLY)
        try:
            return self._fs.read(fd, 1 << 20, 0)
        finally:
            self._fs.close(fd)

    with monkeypatch.context() as patch:
        patch.setattr(BlobStore, "get", unchecked)
        patch.setattr(BlobStore, "put", _plain_put)
        with pytest.raises(AssertionError):
            check_served(100, Random(3))


def _plain_put(self: BlobStore, data: bytes) -> object:
    import hashlib

    from sessile.storage import atomic
    from sessile.storage.base import Blob

    digest = hashlib.sha256(data).hexdigest()
    atomic.replace(self._fs, self.path(digest), (data,))
    return Blob(digest, self.path(digest), blob_ref(digest))
