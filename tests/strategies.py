"""Hypothesis strategies for the core: JSON values, lines, journals and damage."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from hypothesis import strategies as st

from builders import AT, AT_MS, Json
from sessile.core.codec import encode

# All of Unicode, with difficult characters made likely: lone surrogates, separators, controls, and those of JSON.
NASTY = '\ud800\udfff\ud83d\udc00\u2028\u2029\u0085\x00\x1b\x7f\n\r\t"\\{}[]:,/~🙂é看'
text = st.text(st.characters(), max_size=12) | st.text(NASTY, max_size=12)
names = (
    st.sampled_from(["type", "id", "parentId", "customType", "message", "role", "content", "data", "a/b", "~", ""])
    | text
)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**200), 2**200)
scalars = st.none() | st.booleans() | numbers | text
json_values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)
json_objects: st.SearchStrategy[Json] = st.dictionaries(names, json_values, max_size=6)


def as_javascript(value: Any) -> Any:
    """Return the value as decoded from a line: tuples are lists, whole floats are integers, surrogate pairs are joined."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    if isinstance(value, dict):
        return {as_javascript(key): as_javascript(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_javascript(item) for item in value]
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    return value


small = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2), max_leaves=4
)
calls = st.builds(
    lambda call_id, arguments: {"type": "toolCall", "id": call_id, "name": "read", "arguments": arguments}, text, small
)
bodies: st.SearchStrategy[Json] = st.one_of(
    st.builds(lambda content: {"message": {"role": "user", "content": content, "timestamp": AT_MS}}, text),
    st.builds(
        lambda call: {"message": {"role": "assistant", "content": [call, call], "provider": "p", "model": "m"}}, calls
    ),
    st.builds(lambda data: {"type": "custom", "customType": "x", "data": data}, small),
)


@st.composite
def journals(draw: st.DrawFn) -> list[bytes]:
    """Return the lines of a whole session of version 1 or 3, header first, without newlines."""
    version = draw(st.sampled_from([1, 3, 3]))
    lines = [encode({"type": "session", "version": version, "id": "s", "timestamp": AT, "cwd": "/w"})]
    for number, body in enumerate(draw(st.lists(bodies, min_size=1, max_size=6))):
        ids = {"id": f"e{number}", "parentId": f"e{number - 1}" if number else None} if version > 1 else {}
        lines.append(encode({"type": "message", **ids, "timestamp": AT, **body}))
    return lines


class Damage(NamedTuple):
    """A journal after damage."""

    data: bytes
    untouched: list[bytes]  # the lines whose bytes were not touched


@st.composite
def damaged(draw: st.DrawFn) -> Damage:
    """Cut, overwrite, zero, double or insert one range anywhere in a journal."""
    lines = draw(journals())
    data = b"".join(line + b"\n" for line in lines)
    start = draw(st.integers(0, len(data)))
    end = min(len(data), start + draw(st.integers(0, 40) | st.integers(0, len(data))))
    garbage = draw(
        st.binary(max_size=20) | st.text(NASTY, max_size=12).map(lambda x: x.encode("utf-8", "surrogatepass"))
    )
    how = draw(st.sampled_from(["cut", "flip", "zero", "double", "insert", "replace"]))
    if how == "cut":
        new = b""
    elif how == "flip":
        end = min(len(data), start + 1)
        new = bytes([byte ^ 1 << draw(st.integers(0, 7)) for byte in data[start:end]])
    elif how == "zero":
        new = b"\0" * (end - start)
    elif how == "double":
        start, new = end, data[start:end]
        end = start
    elif how == "insert":
        end, new = start, garbage
    else:
        new = garbage
    untouched = []
    at = 0
    for line in lines:
        if at + len(line) <= start or at >= end:
            untouched.append(line)
        at += len(line) + 1
    return Damage(data[:start] + new + data[end:], untouched)


def chunks_of(data: bytes, sizes: list[int]) -> list[bytes]:
    """Yield the data in pieces of these sizes, in rotation."""
    pieces = []
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        pieces.append(data[at : at + size])
        at += size
        turn += 1
    return pieces
