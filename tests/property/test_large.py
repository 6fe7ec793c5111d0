"""Large content is restored, for any entry."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import Blobs, Json
from sessile import Session, Store, build_session_context
from sessile.core import large
from sessile.core.codec import decode, encode, plain
from sessile.core.large import blob_refs, may_hold_refs, resolve, restore, shrink
from sessile.core.text import utf16_length
from sessile.storage.memory import MemoryFilesystem
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
    """References stay, so that the entry is whole again once its blobs are."""
    blobs = Blobs()
    stored = shrink(entry, blobs.put)
    missing: list[str] = []
    assert restore(stored, lambda _: None, missing.append) == stored
    assert set(missing) == blob_refs(stored)
    assert resolve(stored, lambda _: None, missing.append) == stored


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


MEDIA = (
    lambda data: {"type": "image", "data": data, "mimeType": "image/png"},
    lambda data: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
    lambda data: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
    lambda data: {"type": "input_image", "image_url": f"data:image/png;base64,{data}"},
    lambda data: {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
    lambda data: {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{data}"}},
    lambda data: {"inlineData": {"mimeType": "image/png", "data": data}},
    lambda data: {"type": "document", "data": data, "mimeType": "application/pdf"},
    lambda data: {"type": "audio", "data": data, "mimeType": "audio/wav"},
    lambda data: {"type": "other", "api": "x", "value": [data]},
)
given_data = image_data.filter(lambda data: isinstance(data, str) and not data.startswith("blob:"))
media = st.builds(lambda shape, data: shape(data), st.sampled_from(MEDIA), given_data)
texts_given = st.builds(lambda text: {"type": "text", "text": text, "textSignature": text}, short | huge)
contents = st.lists(media | texts_given, max_size=4) | short | huge
roles = st.sampled_from(["user", "assistant", "toolResult"])
messages = st.builds(
    lambda role, content, details: {"role": role, "content": content, "details": details, "timestamp": 1},
    roles,
    contents,
    contents,
).map(as_javascript)


@pytest.mark.mission("X19")
@pytest.mark.mission("X20")
@given(st.lists(messages, min_size=1, max_size=4), st.booleans())
def test_every_way_to_an_entry_returns_what_was_appended(given: list[Json], asks: bool) -> None:
    """At once and in the next process; the context after an append is that of the next process."""
    files = MemoryFilesystem()
    with Store("/root", fs=files).create("/work") as session:
        if asks:
            session.context()  # from then on it is kept up to date in memory
        ids = [session.append_many([{"type": "message", "message": message}])[0].id for message in given]
        check(session, ids, given)
        shown = session.context()
        session.publish()
    with Store("/root", fs=files).open(session.path, readonly=True) as again:
        check(again, ids, given)
        assert again.context() == shown
        assert all(utf16_length(text) <= LIMIT for entry in again.get_entries() for text in texts(entry.stored))
        assert again.findings == []


@pytest.mark.mission("X19")
@given(st.lists(messages, min_size=1, max_size=3))
def test_a_session_in_memory_has_what_was_appended_in_its_lines(given: list[Json]) -> None:
    """Nothing is cut, and there are no blobs."""
    session = Session.in_memory()
    ids = [session.append_many([{"type": "message", "message": message}])[0].id for message in given]
    check(session, ids, given)
    assert [entry.stored["message"] for entry in session.get_entries()] == given


def check(session: Session, ids: list[str], given: list[Json]) -> None:
    entries = session.get_entries()
    assert [entry.id for entry in entries] == ids
    assert [entry["message"] for entry in entries] == given
    assert [entry["message"] for entry in session.get_branch()] == given
    assert [session.get_full_entry(entry_id)["message"] for entry_id in ids] == given
    found = [session.get_entry(entry_id) for entry_id in ids]
    assert found == entries
    assert session.context().messages == given
    assert build_session_context(entries) == session.context()
