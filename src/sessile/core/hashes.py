"""Hashes of bytes. Python's library of them is imported when the first is made: to load it takes longer than most commands
need for all else that is their own, and a listing makes none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash


def sha256(data: bytes = b"") -> _Hash:
    """The SHA-256 of some bytes, to which more can be added."""
    import hashlib

    return hashlib.sha256(data)


def blake2b(data: bytes, size: int) -> bytes:
    """The BLAKE2b of some bytes, that many bytes long: faster, for what nobody else has to compute."""
    import hashlib

    return hashlib.blake2b(data, digest_size=size).digest()
