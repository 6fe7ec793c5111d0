"""Blobs: large content by its hash."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from faults.failing import Fail, FaultyFilesystem
from sessile import BlobStore, errors
from sessile.storage.filesystem import PosixFilesystem
from sessile.testing.blob_contract import BlobContract, OpenBlobs

pytestmark = pytest.mark.mission("X20")

DATA = b"some content"
HASH = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(f"{tmp_path}/blobs")


def test_bytes_are_stored_under_their_hash_and_come_back(blobs: BlobStore) -> None:
    """The name of the file is the hash."""
    blob = blobs.put(DATA)
    assert (blob.hash, blob.path, blob.ref) == (HASH, f"{blobs.folder}/{HASH}", f"blob:sha256:{HASH}")
    assert (blobs.get(HASH), blobs.has(HASH)) == (DATA, True)
    assert Path(blob.path).read_bytes() == DATA
    assert os.listdir(blobs.folder) == [HASH]
    assert blobs.put(b"").hash == hashlib.sha256(b"").hexdigest()


def test_storing_again_changes_nothing(blobs: BlobStore) -> None:
    """Content, time and inode stay."""
    path = blobs.put(DATA).path
    before = os.stat(path)
    assert blobs.put(DATA).path == path
    assert BlobStore(blobs.folder).put(DATA).path == path
    after = os.stat(path)
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_missing_or_damaged_blob_is_none_and_storing_it_again_heals_it(blobs: BlobStore) -> None:
    """The hash is checked at every read."""
    assert (blobs.get(HASH), blobs.has(HASH)) == (None, False)
    path = Path(blobs.put(DATA).path)
    path.write_bytes(b"damaged")
    assert blobs.get(HASH) is None
    assert blobs.put(DATA).hash == HASH
    assert path.read_bytes() == DATA


def test_reading_creates_no_folder(blobs: BlobStore, tmp_path: Path) -> None:
    """Reading an empty store does not create it."""
    blobs.get(HASH)
    assert list(tmp_path.iterdir()) == []


def test_a_blob_is_a_plain_file_and_no_link_is_followed(blobs: BlobStore, tmp_path: Path) -> None:
    """A link with the name of a hash is an error."""
    (tmp_path / "secret").write_bytes(DATA)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / HASH).symlink_to(tmp_path / "secret")
    with pytest.raises(errors.UnsafePath):
        blobs.get(HASH)


def test_a_blob_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """Whatever call fails, there is never an incomplete file under its name."""
    number = 1
    while True:
        folder = tmp_path / str(number)
        filesystem = FaultyFilesystem(PosixFilesystem(), plan=[Fail(28, at=number)])
        store = BlobStore(f"{folder}/blobs", filesystem)
        try:
            store.put(DATA)
        except errors.SessileError:
            assert BlobStore(f"{folder}/blobs").get(HASH) in (None, DATA)
        if not filesystem.struck:
            break
        names = os.listdir(folder / "blobs") if (folder / "blobs").exists() else []
        assert all(not (folder / "blobs" / n).read_bytes() or n.startswith(".") or n == HASH for n in names)
        number += 1
    assert number > 5


class TestBlobStore(BlobContract):
    """Blobs in a folder fulfil the contract."""

    @pytest.fixture
    def open_blobs(self, tmp_path: Path) -> OpenBlobs:
        return lambda: BlobStore(f"{tmp_path}/blobs")
