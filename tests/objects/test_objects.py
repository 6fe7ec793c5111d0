"""Large content in a real S3 server, and the errors when it cannot be reached."""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from builders import user
from s3_rig import S3
from sessile import BlobStore, Store, check, sync
from sessile.errors import InvalidConfig, PermissionRefused, SessileError, StorageFailure
from sessile.storage.base import Blobs
from sessile.storage.objects import ObjectBlobs
from sessile.testing.blob_contract import DATA, HASH, BlobContract, OpenBlobs

pytestmark = pytest.mark.mission("B8")

_BUCKETS = count()


@pytest.fixture
def address(s3: S3, monkeypatch: pytest.MonkeyPatch) -> str:
    """An unused address."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://sessile/{next(_BUCKETS)}"


class TestObjectBlobs(BlobContract):
    """Objects in a bucket."""

    @pytest.fixture
    def open_blobs(self, address: str, tmp_path: Path) -> OpenBlobs:
        def open_() -> Blobs:
            return ObjectBlobs(address, str(tmp_path), BlobStore(f"{tmp_path}/blobs"))

        return open_


def test_a_session_keeps_its_large_content_there(address: str, tmp_path: Path) -> None:
    """No blob is in the root, and every store with the address reads the content."""
    store = Store(tmp_path, blobs=address)
    session = store.create("/work/app", publish=True)
    text = "x" * 600_000
    entry = session.append_message(user(text)).id
    assert not Path(store.layout.blobs).exists()
    other = Store(tmp_path, blobs=address).open(session.id, readonly=True)
    assert other.get_full_entry(entry)["message"]["content"] == text
    assert check(store, session.path).ok
    without = Store(tmp_path).open(session.id, readonly=True)
    assert without.get_full_entry(entry)["message"]["content"] != text
    assert not check(Store(tmp_path), session.path).ok


@pytest.mark.promise("P54")
def test_erasing_a_session_removes_its_objects(address: str, tmp_path: Path) -> None:
    """Objects that only this session uses are deleted, and so are blobs that were in the root before."""
    needle, shared = "needle " * 100_000, "shared " * 100_000
    with Store(tmp_path).create("/work/app", publish=True) as session:
        session.append_message(user(needle + "in the root"))
    store = Store(tmp_path, blobs=address)
    with store.open(session.id) as session:
        session.append_message(user(needle))
        session.append_message(user(shared))
    with store.create("/work/app", publish=True) as other:
        entry = other.append_message(user(shared)).id
    plan = store.erase(session.id)
    assert (len(plan.blobs), plan.shared_blobs) == (2, 1)
    assert all(store.blobs.has(digest) for digest in plan.blobs)
    store.erase(session.id, confirm=True)
    assert not any(Store(tmp_path, blobs=address).blobs.has(digest) for digest in plan.blobs)
    with store.open(other.id, readonly=True) as kept:
        assert kept.get_full_entry(entry)["message"]["content"] == shared
    assert not any(b"needle" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_blobs_that_lie_in_the_root_are_found_after_a_move(address: str, tmp_path: Path) -> None:
    """Existing blobs in the root are still read, without moving them."""
    text = "y" * 600_000
    session = Store(tmp_path).create("/work/app", publish=True)
    entry = session.append_message(user(text)).id
    moved = Store(tmp_path, blobs=address).open(session.id, readonly=True)
    assert moved.get_full_entry(entry)["message"]["content"] == text
    assert check(Store(tmp_path, blobs=address), session.path).ok


def test_sync_brings_blobs_from_a_folder_to_objects_and_back(address: str, tmp_path: Path) -> None:
    """Each store keeps its blobs in its own place."""
    here, there, again = Store(tmp_path / "a"), Store(tmp_path / "b", blobs=address), Store(tmp_path / "c")
    here.create("/work/app", publish=True).append_message(user("z" * 600_000))
    assert [done.blobs for done in sync(here, there)] == [1]
    assert [done.blobs for done in sync(there, again)] == [1]
    names = [{path.name for path in Path(store.layout.blobs).iterdir()} for store in (here, again)]
    assert names[0] == names[1] and len(names[0]) == 1


def test_a_damaged_object_is_told_and_not_shown(address: str, tmp_path: Path) -> None:
    """Content is checked against its hash."""
    import obstore
    from obstore.store import from_url

    blobs = ObjectBlobs(address, str(tmp_path), BlobStore(f"{tmp_path}/blobs"))
    blobs.put(DATA)
    obstore.put(from_url(address), HASH, b"something else")
    assert blobs.get(HASH) is None


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("AWS_ENDPOINT", "http://127.0.0.1:9", StorageFailure),
        ("AWS_SECRET_ACCESS_KEY", "hunter2-wrong", PermissionRefused),
    ],
)
def test_a_place_that_cannot_be_used_is_told_with_a_hint_and_without_keys(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, error: type[SessileError]
) -> None:
    """The entry that needs it is not appended, and the error does not contain the keys."""
    monkeypatch.setenv(name, value)
    session = Store(tmp_path, blobs=address).create("/work/app", publish=True)
    with pytest.raises(error) as told:
        session.append_message(user("x" * 600_000))
    assert told.value.hint and address in str(told.value.path)
    assert "hunter2" not in str(told.value)
    assert session.get_entries() == []


@pytest.mark.parametrize("url", ["s4:/x", "foo://x"])
def test_an_address_that_is_none_is_refused_at_once(tmp_path: Path, url: str) -> None:
    """An invalid address is refused before anything is stored, with our own message."""
    with pytest.raises(InvalidConfig) as told:
        Store(tmp_path, blobs=url)
    assert told.value.message == "invalid URL of an object store" and told.value.path == url
    assert "s3://bucket/prefix" in str(told.value.hint)


def test_a_store_without_objects_does_not_load_the_library(tmp_path: Path) -> None:
    """The library is an optional extra."""
    code = f"import sys, sessile; sessile.Store({str(tmp_path)!r}).create('/w', publish=True); print('obstore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
