"""The gateway token: 256 random bits in a private file, created once."""

from __future__ import annotations

import errno
import os
import re
import threading
from pathlib import Path

import pytest

from faults.failing import Fail, FaultyFilesystem
from sessile.core.secret import Secret
from sessile.errors import InvalidConfig, NotFound, PermissionRefused, SessileError, StorageFull, UnsafePath
from sessile.gateway.http.server import NAME, gateway_token
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.memory import MemoryFilesystem
from sessile.storage.secret_file import keep_secret

pytestmark = pytest.mark.promise("P33")

GOOD = "A" * 43


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_token_is_made_once_and_for_its_owner_only(tmp_path: Path, umask: int) -> None:
    """The token has 256 bits, its file has mode 0600 under any umask, and later starts reuse it."""
    old = os.umask(umask)
    try:
        token = gateway_token(f"{tmp_path}/new/root")
    finally:
        os.umask(old)
    file = tmp_path / "new" / "root" / NAME
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", token.reveal())
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o077 == 0
    assert gateway_token(f"{tmp_path}/new/root") == token
    assert file.read_text() == token.reveal() + "\n"
    assert sorted(os.listdir(file.parent)) == [NAME]


@pytest.mark.parametrize(("content", "mode"), [(None, 0), ("short", 0o600), (GOOD, 0o644)])
def test_a_copy_that_cannot_be_used_is_copied_again(tmp_path: Path, content: str | None, mode: int) -> None:
    """The hint for a client says to copy the token; the hint for the gateway says to delete the file."""
    file = tmp_path / NAME
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    with pytest.raises(SessileError) as copied:
        keep_secret(str(file), make=False)
    assert "copy the gateway's token into it (gateway.token in its store" in str(copied.value.hint)
    assert "chmod 600" in str(copied.value.hint) and "delete it;" not in str(copied.value.hint)
    if content is not None:
        with pytest.raises(SessileError) as own:
            keep_secret(str(file))
        assert "delete it; a new one is created" in str(own.value.hint)


def test_a_full_disk_is_told_once(tmp_path: Path) -> None:
    """The error for a full disk has one reason and one hint."""
    fs = FaultyFilesystem(PosixFilesystem(), plan=[Fail(errno.ENOSPC, on=("write",))])
    with pytest.raises(StorageFull) as caught:
        keep_secret(f"{tmp_path}/{NAME}", fs=fs)
    assert str(caught.value).count("could not") == str(caught.value).count("hint:") == 1
    assert "free some space, reopen the session if it is open, and try again" in str(caught.value.hint)


def test_no_two_roots_have_the_same_token(tmp_path: Path) -> None:
    """Each token is drawn from 32 random bytes."""
    assert len({gateway_token(f"{tmp_path}/{number}").reveal() for number in range(20)}) == 20
    drawn: list[int] = []

    def random(size: int) -> bytes:
        drawn.append(size)
        return bytes(range(size))

    assert keep_secret("/r/t", fs=MemoryFilesystem(), random=random).reveal().startswith("AAECAwQF")
    assert drawn == [32]


def test_many_that_begin_at_once_get_one_token(tmp_path: Path) -> None:
    """Gateways that start at the same time get the same token."""
    found: list[Secret] = []
    barrier = threading.Barrier(8)

    def begin() -> None:
        barrier.wait()
        found.append(gateway_token(str(tmp_path)))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len({token.reveal() for token in found}) == 1


def test_an_empty_file_as_a_crash_leaves_it_is_filled(tmp_path: Path) -> None:
    """An empty file left by a crash is filled."""
    (tmp_path / NAME).touch(0o600)
    token = gateway_token(str(tmp_path))
    assert gateway_token(str(tmp_path)) == token


def test_a_file_that_somebody_has_named_is_read_and_never_made(tmp_path: Path) -> None:
    """An explicitly named file is read but never created."""
    named = tmp_path / "mine"
    with pytest.raises(NotFound) as caught:
        gateway_token(str(tmp_path), str(named))
    assert caught.value.hint and not named.exists()
    named.write_text(f"{GOOD}\r\n")
    named.chmod(0o400)
    assert gateway_token(str(tmp_path), str(named)) == Secret(GOOD)
    assert os.listdir(tmp_path) == ["mine"]


def test_a_named_file_that_is_empty_holds_no_token(tmp_path: Path) -> None:
    """An explicitly named file that is empty is rejected and not filled."""
    (tmp_path / "mine").touch(0o600)
    with pytest.raises(InvalidConfig):
        gateway_token(str(tmp_path), f"{tmp_path}/mine")
    assert (tmp_path / "mine").read_bytes() == b""


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o666, 0o601])
def test_a_file_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    """A file with permissions for other users is rejected and not changed."""
    file = tmp_path / NAME
    file.write_text(GOOD)
    file.chmod(mode)
    check_refused(file, PermissionRefused)
    assert file.stat().st_mode & 0o777 == mode


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that belongs to another user is rejected."""
    file = tmp_path / NAME
    file.write_text(GOOD)
    file.chmod(0o600)
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    check_refused(file, PermissionRefused)


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    """Symbolic links, pipes and folders are rejected."""
    (tmp_path / "real").write_text(GOOD)
    (tmp_path / "real").chmod(0o600)
    file = tmp_path / NAME
    file.symlink_to("real")
    check_refused(file, UnsafePath)
    file.unlink()
    os.mkfifo(file, 0o600)
    check_refused(file, UnsafePath)
    file.unlink()
    file.mkdir(0o700)
    check_refused(file, UnsafePath)


@pytest.mark.parametrize(
    "content",
    [b"short", b"A" * 42, b"A" * 513, b"A" * 43 + b" " + b"B" * 43, b"A" * 42 + b"\xff", b"A" * 43 + b"\nmore", b" \n"],
)
def test_a_file_that_holds_something_else_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    """Invalid content is rejected and not overwritten."""
    file = tmp_path / NAME
    file.write_bytes(content)
    file.chmod(0o600)
    check_refused(file, InvalidConfig)
    assert file.read_bytes() == content


def check_refused(file: Path, kind: type[SessileError]) -> None:
    with pytest.raises(kind) as caught:
        gateway_token(str(file.parent))
    assert caught.value.path == str(file) and caught.value.hint
    assert GOOD not in f"{caught.value} {vars(caught.value)}"
