"""Puts our store in the place of the Claude Agent SDK's own, for the SDK's own tests.

The tests take storage times to be different at every write, so the clock of the memory goes on a millisecond at every look.
With `SESSILE_AT_ONCE=1` calls are answered without a thread: some tests count the turns of the event loop until a store answers.
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
    """Ours, with the helpers that the SDK's own store has for its tests."""

    def __init__(self) -> None:
        self._mtimes: dict[str, int] = {}  # some tests write into it; ours has the times of the storage
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        clock = count(time.time_ns(), 1_000_000)
        fs = MemoryFilesystem(clock=lambda: next(clock))
        super().__init__(Store("/memory", fs=fs, durability="process"))

    def get_entries(self, key: SessionKey) -> list[dict[str, Any]]:
        """The rows of a transcript."""
        return self._load(key) or []

    @property
    def size(self) -> int:
        """How many sessions there are."""
        return len(self._sessions.list())


async def _at_once(call: Callable[[], T]) -> T:
    return call()


if os.environ.get("SESSILE_AT_ONCE") == "1":
    claude._run = _at_once

for module in (claude_agent_sdk, session_store):
    vars(module)["InMemorySessionStore"] = InMemorySessionStore
