"""Hashes of bytes. Python's library of them is imported when the first is made: to load it takes longer than most commands
need for all else that is their own, and a listing makes none.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hashlib import _Hash


def sha256(data: bytes = b"") -> _Hash:
    """The SHA-256 of some bytes, to which more can be added."""
    import hashlib

    return hashlib.sha256(data)


def blake2b(data: bytes, size: int) -> bytes:
    """The BLAKE2b of some bytes, that many bytes long: faster, for what nobody else has to compute."""
    state = _blake2b(size).copy()  # which takes half the time of making one
    state.update(data)
    digest: bytes = state.digest()
    return digest


@cache
def _blake2b(size: int) -> Any:
    import hashlib

    return hashlib.blake2b(digest_size=size)


def sha1(data: bytes) -> _Hash:
    """The SHA-1 of some bytes, for names that others derive the same way; it protects nothing."""
    import hashlib

    return hashlib.sha1(data, usedforsecurity=False)
