"""Storing values of other programs: whether a value survives a round trip is known before."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile import Store
from sessile.core.codec import encode
from sessile.core.large import survives
from sessile.storage.memory import MemoryFilesystem
from strategies import as_javascript

names = st.sampled_from(["content", "type", "data", "image_url", "partialJson", "jsonlEvents", "lineCount", "text"])
texts = (
    st.sampled_from(["image", "blob:sha256:" + "0" * 64, "A" * 2000, "A-_" * 700, "x" * 500_001, "a\nb"]) | st.text()
)
values: st.SearchStrategy[Any] = st.recursive(
    texts | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


def stored(value: Any) -> Any:
    """Return a value as it is read back from a session that keeps large content in blobs."""
    with Store("/memory", fs=MemoryFilesystem()).create("/work/app", publish=True) as session:
        entry = session.append_custom_entry("value", value)
        return session.get_full_entry(entry.id)["data"]


@given(value=st.dictionaries(names, values, min_size=1, max_size=3))
def test_a_value_that_survives_comes_back_as_it_was(value: Any) -> None:
    """Large texts and images are stored outside the line and restored."""
    if survives(encode(value)):
        assert stored(value) == as_javascript(value)


@pytest.mark.parametrize(
    "value",
    [
        {"partialJson": "{"},
        {"jsonlEvents": []},
        {"content": "x" * 500_001, "lineCount": 7},
    ],
)
def test_a_value_that_would_change_is_said_to(value: Any) -> None:
    """Such a value survives if it is stored as text."""
    raw = encode(value)
    assert not survives(raw)
    assert stored(value) != value
    assert stored(raw.decode()) == raw.decode()
