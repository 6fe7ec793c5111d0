"""Replace the Claude Agent SDK's own store with ours in the SDK's tests.

The tests expect a different storage time for every write, so the memory clock advances a millisecond at every read.
With `SESSILE_AT_ONCE=1` calls run without a thread, because some tests count the event loop's iterations.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

import claude_agent_sdk
from claude_agent_sdk import SessionKey
from claude_agent_sdk._internal import session_store

from sessile import Store
from sessile.adapters import claude
from sessile.storage.memory import MemoryFilesystem

T = TypeVar("T")


class InMemorySessionStore(claude.ClaudeSessionStore):
    """Our store with the test helpers of the SDK's own store."""

    def __init__(self) -> None:
        self._mtimes: dict[str, int] = {}  # some tests write to it; ours uses the times of the storage
        self.clear()

    def clear(self) -> None:
        """Remove everything."""
        clock = count(time.time_ns(), 1_000_000)
        fs = MemoryFilesystem(clock=lambda: next(clock))
        super().__init__(Store("/memory", fs=fs, durability="process"))

    def get_entries(self, key: SessionKey) -> list[dict[str, Any]]:
        """Return the rows of a transcript."""
        return self._load(key) or []

    @property
    def size(self) -> int:
        """Return the number of sessions."""
        return len(self._sessions.list())


async def _at_once(call: Callable[[], T]) -> T:
    return call()


if os.environ.get("SESSILE_AT_ONCE") == "1":
    claude._run = _at_once

for module in (claude_agent_sdk, session_store):
    vars(module)["InMemorySessionStore"] = InMemorySessionStore
