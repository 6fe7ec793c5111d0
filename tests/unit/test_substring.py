"""A substring search with the C library returns the same as Python, also with NUL bytes and at the edges."""

from __future__ import annotations

import gc

from hypothesis import example, given
from hypothesis import strategies as st

from sessile.storage.search import Substring

few = st.binary().map(lambda data: bytes(byte % 3 for byte in data))


@given(few, few.filter(bool), st.integers(0, 50))
@example(b"\0\1\0", b"\0", 1)
@example(b"", b"\1", 0)
@example(b"\1\2", b"\2\0", 1)  # a NUL follows every block
@example(b"\1\2", b"\2", 2)
def test_it_finds_what_python_finds(block: bytes, needle: bytes, at: int) -> None:
    assert Substring(block, needle)(at) == block.find(needle, at)


def test_the_block_lives_as_long_as_somebody_looks_into_it() -> None:
    find = Substring(b"x" * 1_000_000 + b"needle", b"needle")
    others = [b"y" * 1_000_006 for _ in range(20)]
    gc.collect()
    assert find(0) == 1_000_000 and len(others) == 20
