"""Stores with reproducible results, and helpers to fill sessions and inspect files."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from builders import AT
from sessile import Store
from sessile.testing.store_contract import CWD, answer, begun, say, told

__all__ = ["CWD", "answer", "begun", "say", "told"]

Json = dict[str, Any]

START = 1_771_237_230  # AT, in seconds
FOLDER = "--work-app--"


class Clock:
    """A clock that advances only when it is set."""

    def __init__(self, seconds: float = START) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


def numbered(seed: str = "") -> Callable[[int], bytes]:
    """Return random bytes that differ between calls and are the same in every run."""
    numbers = count()
    return lambda size: hashlib.sha512(f"{seed}{next(numbers)}".encode()).digest()[:size]


def store_at(root: Path | str, **options: Any) -> Store:
    """Return a store with a fixed clock and repeatable ids."""
    usual: Json = {"clock": Clock(), "random": numbered(), "durability": "process", "patience": 0.2}
    return Store(root, **usual | options)


def other_store_at(root: Path | str, **options: Any) -> Store:
    """Return a second store on the same root with other ids, as another process would have."""
    usual: Json = {"random": numbered("other")}
    return store_at(root, **usual | options)


def lines_of(path: str | Path) -> list[bytes]:
    """Return the lines of a file without its last newline."""
    return Path(path).read_bytes().removesuffix(b"\n").split(b"\n")


def records_of(path: str | Path) -> list[Json]:
    return [json.loads(line) for line in lines_of(path)]


def dumps(record: Json) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def header(session_id: str = "s1", cwd: str = CWD, **members: Any) -> Json:
    return {"type": "session", "version": 3, "id": session_id, "timestamp": AT, "cwd": cwd, **members}


def write_file(path: Path | str, *records: Json | str) -> str:
    """Write a session file as another program would; a string is a raw line."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{r if isinstance(r, str) else dumps(r)}\n" for r in records), encoding="utf-8")
    return str(path)


def append_raw(path: str | Path, *records: Json | str) -> None:
    """Append without locking, as another program would."""
    with open(path, "ab") as file:
        for record in records:
            file.write((record if isinstance(record, str) else dumps(record)).encode() + b"\n")


def plant(cache: Path, change: str) -> None:
    """Change rows of the catalog as a defect of ours, or of the disk, could: its seal does not show it."""
    database = sqlite3.connect(cache / "catalog.db")
    with database:
        database.execute(change)
    database.close()
    mark = os.stat(cache / "catalog.db")
    seal = msgspec.json.decode((cache / "catalog.seal").read_bytes())
    seal["mark"] = (mark.st_ino, mark.st_size, mark.st_mtime_ns, mark.st_ctime_ns)
    (cache / "catalog.seal").write_bytes(msgspec.json.encode(seal))


def snapshot(root: Path | str) -> dict[str, tuple[int, int, bytes]]:
    """Return inode, modification time and content of every file below a folder, except the cache."""
    found = {}
    for folder, folders, names in os.walk(root):
        if folder == str(root):
            folders[:] = [name for name in folders if name != "cache"]
        for name in [*names, *(f for f in folders)]:
            path = os.path.join(folder, name)
            stat = os.lstat(path)
            content = Path(path).read_bytes() if os.path.isfile(path) else b""
            found[path] = (stat.st_ino, stat.st_mtime_ns, content)
    return found
