"""State folders in the format of YoyoClaw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builders import Json, answered, said
from sessions import dumps, header

NOW = 1_771_237_230_000
MAIN = "agent:main:main"
GROUP = "agent:main:telegram:group:-100"


def stored(entries: Json) -> bytes:
    """Return the text of a store file in YoyoClaw's format."""
    return json.dumps(entries, indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace")


def lines(*records: Json | str) -> bytes:
    """Return records as the bytes of a transcript; a string is a raw line."""
    return "".join(f"{record if isinstance(record, str) else dumps(record)}\n" for record in records).encode()


def talk(session_id: str, *names: str, **members: Any) -> list[Json]:
    """Return a header and a chain of messages with these ids."""
    parents = (None, *names)
    turns = (said, answered)
    chain = [turns[number % 2](name, parents[number]) for number, name in enumerate(names)]
    return [header(session_id, **members), *chain]


def write(folder: Path, name: str, data: bytes) -> str:
    """Write a file, and create its folder if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    return str(path)
