"""Stores of real agents, with the requests that they sent to a scripted model.

`fixtures/agents/<name>.tar.zst` holds a folder per agent: `home/`, what the program left in its home, and `requests.jsonl`,
what it sent, in order. Long values that were sent before are references; `requests` puts them back.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FOLDER = Path(__file__).parent / "fixtures" / "agents"
NAMES = sorted(path.name.removesuffix(".tar.zst") for path in FOLDER.glob("*.tar.zst"))


class Sent(NamedTuple):
    """A recorded request: its number, the scene that it belongs to, where it was sent, its body, and the answer's usage."""

    n: int
    step: str
    path: str
    body: dict[str, Any]
    usage: Any = None
    answer: Any = None


def unpacked(data: bytes) -> bytes:
    """Return what was packed with zstd."""
    plain: bytes = zstd.decompress(data)
    return plain


def unpack(name: str, into: Path) -> Path:
    """Unpack the record of an agent and return its folder, which has `home/` and `requests.jsonl`."""
    data = unpacked((FOLDER / f"{name}.tar.zst").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(into, filter="data")
    return into / name


def requests(folder: Path, name: str = "requests.jsonl") -> list[Sent]:
    """Return the requests of a record, whole."""
    shared_file = folder / "requests-shared.json"
    shared = json.loads(shared_file.read_text()) if shared_file.exists() else {}
    bodies: dict[int, Any] = {}
    found, step = [], ""
    for line in (folder / name).read_text().split("\n"):
        if not line.strip():
            continue
        row = json.loads(line)
        if "n" not in row:
            step = str(row.get("mark"))
            continue
        n = row["n"]
        body = _whole(row.get("body"), bodies, shared, ())
        bodies[n] = body
        if isinstance(body, dict):
            answer = row.get("answer")
            found.append(Sent(n, str(row.get("step", step)), row["path"], body, row.get("usage"), answer))
    return found


def _whole(value: Any, bodies: dict[int, Any], shared: dict[str, Any], at: tuple[Any, ...], role: Any = None) -> Any:
    if isinstance(value, str) and value.startswith("@sha:"):
        return shared[value.removeprefix("@")]
    if isinstance(value, list):
        return [_whole(item, bodies, shared, (*at, number)) for number, item in enumerate(value)]
    if isinstance(value, dict):
        if value.keys() in ({"same_as_n"}, {"sameAsRequest"}):
            return _earlier(bodies[next(iter(value.values()))], at, role)
        role = value.get("role")
        return {name: _whole(item, bodies, shared, (*at, name), role) for name, item in value.items()}
    return value


def _earlier(body: Any, at: tuple[Any, ...], role: Any) -> Any:
    """Return the value at a place of an earlier request; a message may have stood at another place there."""
    if at[0] != "messages":
        return body[at[0]]
    contents = [message["content"] for message in body["messages"] if message["role"] == role]
    number = at[1]
    if number < len(body["messages"]) and body["messages"][number]["role"] == role:
        return body["messages"][number]["content"]
    return max(contents, key=lambda content: len(str(content)))


def strings(value: Any) -> Iterator[str]:
    """Yield every string in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
