"""Large content is restored, for any entry."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import Blobs, Json
from sessile.core import large
from sessile.core.codec import decode, encode, plain
from sessile.core.large import FULL, blob_refs, may_hold_refs, resolve, restore, shrink
from sessile.core.text import utf16_length
from strategies import NASTY, as_javascript, json_values

LIMIT = 100  # instead of 500,000: the rules are the same, and more entries can be tested
SMALL_IMAGE = 40

short = st.text(NASTY, max_size=6)
huge = st.builds(
    lambda unit, count, tail: unit * (count // utf16_length(unit)) + tail,
    st.sampled_from(["x", "é", "🙂", "\ud800", "a\n"]),
    st.integers(LIMIT - 3, LIMIT + 60),
    short,
)
base64_text = st.binary(min_size=28, max_size=90).map(lambda data: base64.b64encode(data).decode())
image_data = st.one_of(
    base64_text,
    base64_text.map(lambda data: data.rstrip("=")),
    base64_text.map(lambda data: data[:20] + "\r\n" + data[20:]),
    base64_text.map(lambda data: data.translate({43: 45, 47: 95})),
    short.map(lambda text: (text or "!") * 40),
    st.just("blob:sha256:" + "0" * 64),
    json_values,
)
images = st.builds(lambda data: {"type": "image", "data": data, "mimeType": "image/png"}, image_data)
urls = st.sampled_from(["data:image/png;base64,AAAA", "data:image/\ud800;base64,", "https://x/y", "data:image/png,x"])
keys = st.sampled_from(
    ["content", "image_url", "data", "a/b", "~", "~1", "", "0", "textSignature", "thinkingSignature"]
)


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    counted = st.builds(lambda content: {"content": content, "lineCount": content.count("\n") + 1}, short | huge)
    return st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4) | counted


values = st.recursive(short | huge | images | urls | st.integers() | st.none(), grown, max_leaves=6)
entries: st.SearchStrategy[Json] = st.dictionaries(keys, values, max_size=4)


@pytest.fixture(scope="module", autouse=True)
def small_limits() -> Iterator[None]:
    """Lower the limits of strings and images."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "MAX_STRING", LIMIT)
        patch.setattr(large, "MIN_IMAGE", SMALL_IMAGE)
        patch.setattr("sessile.core.codec._SURELY_SHORT", LIMIT // 2)
        patch.setattr("sessile.core.codec.MIN_IMAGE", SMALL_IMAGE)
        yield


@pytest.mark.mission("X19")
@pytest.mark.mission("X20")
@pytest.mark.promise("P31")
@given(entries)
def test_shrinking_and_restoring_is_the_identity(entry: Json) -> None:
    """Texts and images are restored exactly, and no stored string is over the limit."""
    blobs = Blobs()
    stored = shrink(entry, blobs.put)
    line = encode(stored)
    assert stored is entry or plain(entry).large
    assert not blobs.stored or may_hold_refs(line)
    assert set(blobs.stored) <= blob_refs(stored)
    assert shrink(stored, blobs.put) == stored
    read = decode(line)
    assert all(utf16_length(text) <= LIMIT for text in texts(read))
    assert as_javascript(restore(read, blobs.get, lambda _: None)) == as_javascript(entry)


@pytest.mark.mission("X20")
@given(entries)
def test_without_blobs_nothing_raises_and_every_missing_one_is_reported(entry: Json) -> None:
    """References stay."""
    blobs = Blobs()
    stored = shrink(entry, blobs.put)
    missing: list[str] = []
    without = {name: value for name, value in stored.items() if name != FULL}
    assert restore(stored, lambda _: None, missing.append) == without
    assert set(missing) == blob_refs(stored)
    assert resolve(without, lambda _: None, missing.append) == without


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []
