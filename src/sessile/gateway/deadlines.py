"""A stream that must not stay silent, nor go on for ever.

No cancel scope is open while a piece is handed out: a scope belongs to the task that opened it, and nobody knows who asks for
the next piece.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

import anyio

from sessile.errors import RunnerFailed

T = TypeVar("T")


async def in_time(
    pieces: AsyncGenerator[T, None], name: str, *, silence: float, timeout: float
) -> AsyncGenerator[T, None]:
    """The pieces as they come; fails after so many seconds without one, and after so many in all."""
    end = anyio.current_time() + timeout
    async with aclosing(pieces):
        while True:
            left = end - anyio.current_time()
            try:
                with anyio.fail_after(min(silence, left)):
                    piece = await anext(pieces)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise _too_slow(name, silence, timeout, silent=silence < left) from None
            yield piece


def _too_slow(name: str, silence: float, timeout: float, *, silent: bool) -> RunnerFailed:
    if silent:
        return RunnerFailed(f"{name} has said nothing for {silence:g} s", hint="allow a longer silence, or ask again")
    return RunnerFailed(f"{name} took longer than {timeout:g} s", hint="allow more time, or ask for less")
