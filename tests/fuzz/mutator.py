"""Seeded damage: what disks, crashes, editors and other programs do to bytes.

A part is cut out, a bit flipped, a part repeated, bytes inserted, a range zeroed, or two files spliced. In a JSON line, a value
is replaced by another one, so that the code after the parser gets members of every wrong type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

LARGEST = 256 * 1024  # maximum size of an input in bytes

_VALUES: Sequence[Any] = (
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, 2**53, 2**63, -(2**63), 2**64, 10**30, "", " ", "\n", "\0", "x", "é", "\ud800",
    "🙂", "../..", "\x1b[31m", "\u202e", "2026-11-16T00:00:00Z", "9999-12-31T23:59:59Z", "user", "assistant", [], {}, [[]], [{}],
    [None], {"": None}, ["x", 1], {"type": "text"}, [{"type": "text", "text": 5}], [{"type": "image", "data": "!"}],
    [{"type": "toolCall", "id": [], "name": {}, "arguments": "x"}], {"role": "user", "content": None}, "<script>", "x" * 300,
)  # fmt: skip
_TOKENS: Sequence[bytes] = (
    b"\n", b"\r\n", b"\0", b"{", b"}", b"[", b"]", b'"', b"\\", b",", b":", b"{}", b"}{", b"\xef\xbb\xbf", b"\xff", b"\xc3",
    b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"NaN", b"1e400", b"-0", b"null", b"true",
    b'"type"', b'"id"', b'"parentId"', b'"message"', b'"role"',
    b'{"type":"message","id":"a","parentId":null}', b"\xe2\x80\xa8", b"[" * 2000, b"9" * 5000,
    b"\x1b[", b"#", b"@", b"%", b"\x1f\x8b", b"*",
)  # fmt: skip


def text_of(data: bytes) -> str:
    """Return bytes as text; some invalid UTF-8 becomes lone surrogates, which a text may contain as well."""
    return data.decode("utf-8", "surrogateescape" if b"\xff" in data else "replace")


def damaged(seeds: Sequence[bytes], random: Random) -> bytes:
    """Return one of the seeds with one or more kinds of damage."""
    data = random.choice(seeds)
    for _ in range(random.choice((1, 1, 2, 3, 5))):
        data = random.choice(_WAYS)(data, seeds, random)
    return data[:LARGEST]


def _place(data: bytes, random: Random) -> tuple[int, int]:
    """Return a range of the data, usually a short one."""
    start = random.randrange(len(data) + 1)
    longest = random.choice((1, 2, 8, 64, len(data)))
    return start, min(len(data), start + random.randrange(longest + 1))


def _cut(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    start, end = _place(data, random)
    return data[:start] + data[end:]


def _cut_short(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _flip(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]


def _double(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    start, end = _place(data, random)
    at = random.randrange(len(data) + 1)
    return data[:at] + data[start:end] + data[at:]


def _insert(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    put = random.choice(_TOKENS) if random.random() < 0.7 else random.randbytes(random.randrange(1, 9))
    return data[:at] + put + data[at:]


def _zero(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    start, end = _place(data, random)
    return data[:start] + bytes(end - start) + data[end:]


def _splice(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    other = random.choice(seeds)
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


def _other_value(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    """Return a line with another value somewhere, or without a member."""
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    try:
        value = json.loads(lines[at])
    except (ValueError, RecursionError):
        return _insert(data, seeds, random)
    places: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        keys = holder if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        places += [(holder, key) for key in keys]
        waiting += [holder[key] for key in keys]
    if places:
        holder, key = random.choice(places)
        if random.random() < 0.2:
            del holder[key]
        else:
            holder[key] = random.choice(_VALUES)
    else:
        value = random.choice(_VALUES)
    lines[at] = json.dumps(value, separators=(",", ":"), ensure_ascii=random.random() < 0.5).encode("utf-8", "replace")
    return b"\n".join(lines)


_Way = Callable[[bytes, Sequence[bytes], Random], bytes]
_WAYS: Sequence[_Way] = (
    _cut, _cut_short, _flip, _double, _insert, _insert, _zero, _splice, _other_value, _other_value, _other_value, _other_value,
)  # fmt: skip
