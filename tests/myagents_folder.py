"""A MyAgents folder for tests: a fixed clock, messages in its format, and helpers to read files."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

from sessile.agents.myagents.store import MyAgentsStore
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.memory import MemoryFilesystem

Json = dict[str, Any]

ROOT = "/home/.myagents"
OURS = "/home/.sessile/myagents"
NOW_MS = 1_771_237_230_000
AT = "2026-02-16T10:20:30.000Z"


class Time:
    """A clock in nanoseconds that advances only by waiting."""

    def __init__(self, milliseconds: int = NOW_MS) -> None:
        self.nanoseconds = milliseconds * 1_000_000
        self.pauses: list[float] = []

    def __call__(self) -> int:
        return self.nanoseconds

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.nanoseconds += int(seconds * 1e9)


def stamps() -> Callable[[], str]:
    """Return names that are unique and the same in every run."""
    numbers = count(1)
    return lambda: f"stamp{next(numbers)}"


def folder(fs: Filesystem | None = None, time: Time | None = None, **options: Any) -> MyAgentsStore:
    """Return a MyAgents folder, in memory by default."""
    time = time or Time()
    fs = fs or MemoryFilesystem(clock=time)
    usual: Json = {"clock": time, "pause": time.pause, "alive": lambda pid: False, "stamp": stamps()}
    return MyAgentsStore(fs, ROOT, OURS, **usual | options)


def begun(store: MyAgentsStore, session_id: str = "s", **members: Any) -> MyAgentsStore:
    """Return the store with a session in its index."""
    store.create(session_id, "/work/app", **members)
    return store


def asked(number: int, text: str = "hello", **members: Any) -> Json:
    """Return a user message."""
    return {"id": str(number), "role": "user", "content": text, "timestamp": AT} | members


def told(number: int, tokens: int = 10, text: str = "well", **members: Any) -> Json:
    """Return an answer with its usage."""
    usage = {"inputTokens": tokens, "outputTokens": 1, "cacheReadTokens": 2, "model": "m"}
    return {"id": str(number), "role": "assistant", "content": text, "timestamp": AT, "usage": usage} | members


def line(value: Json) -> bytes:
    """Return a row as JavaScript writes it, with its newline."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def put(fs: Filesystem, path: str, data: bytes) -> None:
    """Write a file as another program would."""
    atomic.make_folders(fs, path.rpartition("/")[0])
    atomic.replace(fs, path, (data,))


def put_index(fs: Filesystem, *rows: Json) -> None:
    """Write an index as MyAgents does."""
    put(fs, f"{ROOT}/sessions.json", json.dumps(rows, ensure_ascii=False, indent=2).encode())


def row(session_id: str, **members: Any) -> Json:
    """Return a row of the index."""
    return {
        "id": session_id,
        "agentDir": "/work/app",
        "title": "New Chat",
        "createdAt": AT,
        "lastActiveAt": AT,
    } | members


def content(store: MyAgentsStore, path: str) -> bytes:
    """Return the bytes of a file."""
    return atomic.read_all(store.fs, path)


def ids(store: MyAgentsStore, session_id: str = "s") -> list[str | None]:
    """Return the ids of the messages that are read."""
    return [message.id for message in store.load(session_id).messages]


def everything(fs: Filesystem, top: str) -> dict[str, tuple[bytes, int]]:
    """Return all files below a folder with content and time."""
    from sessile.storage.session_bytes import files_below

    return {path: (atomic.read_all(fs, path), status.st_mtime_ns) for path, status in files_below(fs, top)}
