"""Large content leaves an entry and is restored."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from builders import Blobs, Json
from sessile.core.codec import decode, encode, plain
from sessile.core.large import (
    FULL,
    NOTICE,
    blob_ref,
    blob_refs,
    may_hold_refs,
    parse_blob_ref,
    resolve,
    restore,
    shrink,
)

LIMIT = 500_000
HASH = "0123456789abcdef" * 4


def data_of(characters: int) -> str:
    """Return base64 of that many characters."""
    return base64.b64encode(bytes(number % 251 for number in range(characters * 3 // 4))).decode()


def image(data: object) -> Json:
    return {"type": "image", "data": data, "mimeType": "image/png"}


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def blobs() -> Blobs:
    return Blobs()


def back(stored: Json, blobs: Blobs) -> Json:
    return restore(stored, blobs.get, blobs.miss)


@pytest.mark.mission("X19")
def test_the_notice_is_the_familys() -> None:
    """47 units, after two newlines, as in oh-my-pi."""
    assert NOTICE == "\n\n[Session persistence truncated large content]"
    assert len(NOTICE) == 47


@pytest.mark.mission("X19")
@pytest.mark.parametrize("character", ["x", "é", "🙂"], ids=["ascii", "accent", "emoji"])
def test_a_string_at_the_limit_is_kept(blobs: Blobs, character: str) -> None:
    """Exactly 500,000 UTF-16 units are stored unchanged and not copied."""
    entry = {"a": [character * (LIMIT // len(character.encode("utf-16-le")) * 2)]}
    assert shrink(entry, blobs.put) is entry
    assert blobs.stored == {}


@pytest.mark.mission("X19")
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x" * 500_001, "x" * 499_953),
        ("é" * 500_001, "é" * 499_953),
        ("x" + "🙂" * 250_000, "x" + "🙂" * 249_976),
        ("🙂" * 250_001, "🙂" * 249_976),
    ],
    ids=["ascii", "accents", "emoji", "surrogate at the cut"],
)
def test_a_longer_string_is_cut_with_the_notice_and_kept_in_full(blobs: Blobs, text: str, kept: str) -> None:
    """499,953 units and the notice; half a character at the cut is dropped, which makes 499,999."""
    stored = shrink({"type": "custom", "data": text}, blobs.put)
    assert stored["data"] == kept + NOTICE
    units = len(stored["data"].encode("utf-16-le")) // 2
    assert units == (499_999 if text == "🙂" * 250_001 else 500_000)
    assert stored[FULL] == {"/data": f"blob:sha256:{sha(text.encode())}"}
    assert list(stored) == ["type", "data", FULL]
    assert back(stored, blobs) == {"type": "custom", "data": text}


@pytest.mark.mission("X19")
def test_pointers_escape_their_keys_and_reach_any_depth(blobs: Blobs) -> None:
    """`~` and `/` in keys, list indexes and empty keys are restored."""
    long = "y" * 500_001
    entry: Json = {"a/b": {"c~d": [1, {"": long, "~1": [long]}]}, "/": long, "0": {"0": long}}
    stored = shrink(entry, blobs.put)
    assert set(stored[FULL]) == {"/a~1b/c~0d/1/", "/a~1b/c~0d/1/~01/0", "/~1", "/0/0"}
    assert back(stored, blobs) == entry


@pytest.mark.mission("X19")
@pytest.mark.parametrize("key", ["thinkingSignature", "thoughtSignature", "textSignature"])
def test_a_long_signature_is_emptied_and_kept_in_full(blobs: Blobs, key: str) -> None:
    """A truncated signature would be refused; one at the limit stays."""
    entry = {"content": [{"type": "thinking", key: "s" * 500_001}]}
    stored = shrink(entry, blobs.put)
    assert stored["content"][0][key] == ""
    assert back(stored, blobs) == entry
    short = {"content": [{"type": "thinking", key: "s" * 500_000}]}
    assert shrink(short, blobs.put) is short


@pytest.mark.mission("X19")
def test_working_members_are_dropped_at_any_depth(blobs: Blobs) -> None:
    """`partialJson` and `jsonlEvents` never reach the disk."""
    entry = {"a": [{"partialJson": "{", "b": 1}], "jsonlEvents": [1], "message": {"jsonlEvents": [], "c": 2}}
    assert shrink(entry, blobs.put) == {"a": [{"b": 1}], "message": {"c": 2}}


@pytest.mark.mission("X19")
def test_line_count_follows_the_stored_content(blobs: Blobs) -> None:
    """The newlines of the notice count; restoring counts the full content again."""
    content = "line\n" * 200_000
    entry = {"files": [{"path": "a", "content": content, "lineCount": 200_001}]}
    stored = shrink(entry, blobs.put)
    assert stored["files"][0]["lineCount"] == stored["files"][0]["content"].count("\n") + 1 == 99_990 + 2 + 1
    assert back(stored, blobs) == entry


@pytest.mark.mission("X19")
@pytest.mark.parametrize(
    ("value", "count"),
    [
        ({"content": "a\nb", "lineCount": 77}, 77),
        ({"content": "a\nb", "lineCount": 77, "partialJson": ""}, 2),
        ({"content": "a\nb", "lineCount": "77", "partialJson": ""}, "77"),
        ({"content": "a\nb", "lineCount": True, "partialJson": ""}, True),
        ({"content": ["a\nb"], "lineCount": 77, "partialJson": ""}, 77),
    ],
    ids=["unchanged", "changed", "text", "bool", "list"],
)
def test_line_count_is_only_recounted_in_an_object_that_changed(blobs: Blobs, value: Json, count: object) -> None:
    """A wrong count stays if nothing changed."""
    found = shrink({"x": value}, blobs.put)["x"]["lineCount"]
    assert (found, type(found)) == (count, type(count))


@pytest.mark.mission("X19")
def test_unchanged_parts_are_shared_and_the_original_is_not_touched(blobs: Blobs) -> None:
    """Only what changes is copied."""
    same = {"deep": [1, 2]}
    entry = {"same": same, "data": "z" * 500_001}
    stored = shrink(entry, blobs.put)
    assert stored["same"] is same
    assert entry == {"same": same, "data": "z" * 500_001}


def test_shrinking_again_keeps_the_pointers_from_before(blobs: Blobs) -> None:
    """An entry that is rewritten with another large member can be restored completely."""
    stored = shrink({"a": "a" * 500_001}, blobs.put)
    again = shrink({**stored, "b": "b" * 500_001}, blobs.put)
    assert back(again, blobs) == {"a": "a" * 500_001, "b": "b" * 500_001}
    assert shrink(stored, blobs.put) is stored


@pytest.mark.mission("X20")
def test_an_image_of_1024_characters_becomes_a_blob_of_its_bytes(blobs: Blobs) -> None:
    """The reference is the hash of the decoded bytes; 1023 characters stay in the line."""
    data = data_of(1024)
    entry = {"message": {"content": [{"type": "text", "text": "see"}, image(data)]}}
    stored = shrink(entry, blobs.put)
    decoded = base64.b64decode(data)
    assert stored["message"]["content"][1] == image(f"blob:sha256:{sha(decoded)}")
    assert blobs.stored == {sha(decoded): decoded}
    assert FULL not in stored
    assert resolve(stored, blobs.get, blobs.miss) == back(stored, blobs) == entry
    for short in (data[:1023], data_of(1020)):
        small = {"content": [image(short)]}
        assert shrink(small, blobs.put) is small


@pytest.mark.mission("X20")
@pytest.mark.parametrize(
    "entry",
    [
        {"content": [image(data_of(2048))]},
        {"details": {"content": [image(data_of(2048))]}},
        {"data": {"content": [[], image(data_of(2048))]}},
        {"message": {"content": [{"type": "toolResult", "content": [image(data_of(2048))]}]}},
    ],
    ids=["content", "details", "data", "nested"],
)
def test_images_leave_and_return_wherever_a_content_list_is(blobs: Blobs, entry: Json) -> None:
    """Every reference that was made is resolved."""
    stored = shrink(entry, blobs.put)
    assert len(blobs.stored) == 1
    assert may_hold_refs(encode(stored))
    assert blob_refs(stored) == set(blobs.stored)
    assert resolve(stored, blobs.get, blobs.miss) == entry
    assert blobs.missing == []


@pytest.mark.mission("X20")
@pytest.mark.parametrize(
    "entry",
    [
        {"images": [image(data_of(2048))]},
        {"content": image(data_of(2048))},
        {"content": [{"type": "chart", "data": data_of(2048)}]},
        {"content": [image(5), image(None), {"type": "image"}]},
        {"content": [image("!" * 2048), image("é" * 2048), image("x" * 1025)]},
    ],
    ids=["other key", "no list", "other type", "no text", "no base64"],
)
def test_what_is_no_media_or_has_its_place_in_the_line_stays(blobs: Blobs, entry: Json) -> None:
    """Decoding data that is not base64 would lose it; images beside a `content` list are read there by other programs."""
    assert shrink(entry, blobs.put) is entry
    assert blobs.stored == {}


SHAPES: dict[str, Callable[[str], Json]] = {
    "Anthropic": lambda data: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
    "Anthropic document": lambda data: {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": data},
    },
    "OpenAI chat": lambda data: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
    "OpenAI responses": lambda data: {"type": "input_image", "image_url": f"data:image/png;base64,{data}"},
    "OpenAI audio": lambda data: {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
    "OpenAI file": lambda data: {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{data}"}},
    "Gemini": lambda data: {"inlineData": {"mimeType": "image/png", "data": data}},
    "Gemini in Python": lambda data: {"inline_data": {"mime_type": "image/png", "data": data}},
    "document": lambda data: {"type": "document", "data": data, "mimeType": "application/pdf"},
    "audio": lambda data: {"type": "audio", "data": data, "mimeType": "audio/wav"},
    "URL of an image": lambda data: {"type": "image", "url": f"data:image/png;base64,{data}"},
    "list of URLs": lambda data: {"screens": [f"data:image/webp;base64,{data}"]},
}


@pytest.mark.mission("X20")
@pytest.mark.parametrize("characters", [1024, 600_000])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_media_of_every_shape_become_blobs(blobs: Blobs, shape: Any, characters: int) -> None:
    """What was given is restored exactly, and the line holds nothing of it."""
    entry = {"type": "message", "message": {"role": "user", "content": [shape(data_of(characters))]}}
    line = encode(shrink(plain(entry).value if plain(entry).large else entry, blobs.put))
    assert len(line) < 600
    assert b"truncated" not in line
    assert may_hold_refs(line)
    assert blob_refs(decode(line)) == set(blobs.stored)
    assert back(decode(line), blobs) == entry


@pytest.mark.mission("X20")
def test_one_image_in_two_shapes_is_one_blob(blobs: Blobs) -> None:
    """The bytes are stored, not their base64."""
    data = data_of(2048)
    shrink({"content": [image(data), SHAPES["Anthropic"](data), SHAPES["Gemini"](data)]}, blobs.put)
    assert blobs.stored == {sha(base64.b64decode(data)): base64.b64decode(data)}


@pytest.mark.mission("X20")
@pytest.mark.parametrize(
    "spelled",
    [
        lambda data: data,
        lambda data: data.replace("+", "-").replace("/", "_"),
        lambda data: data[:-4] + "\n" + data[-4:],
    ],
    ids=["plain", "url-safe", "lines"],
)
@pytest.mark.parametrize(
    "entry",
    [
        lambda data: {"images": [image(data)]},
        lambda data: {"details": {"screenshot": data}},
        lambda data: {"a": [data]},
    ],
    ids=["image", "other member", "list"],
)
def test_base64_over_the_limit_is_never_cut(blobs: Blobs, entry: Any, spelled: Any) -> None:
    """A reference takes its place, wherever it is."""
    given = entry(spelled(data_of(600_000)))
    stored = shrink(given, blobs.put)
    assert len(encode(stored)) < 300
    assert NOTICE.strip() not in encode(stored).decode()
    assert back(stored, blobs) == given


@pytest.mark.mission("X19")
@pytest.mark.parametrize(
    "text", ["x" * 600_000, "word " * 120_000, "e" * 599_999 + "="], ids=["row", "words", "padded"]
)
def test_a_text_that_only_uses_the_letters_of_base64_is_cut_as_text(blobs: Blobs, text: str) -> None:
    """Its beginning says something to a reader."""
    stored = shrink({"text": text}, blobs.put)
    assert stored["text"].endswith(NOTICE)
    assert back(stored, blobs) == {"text": text}


@pytest.mark.mission("X19")
def test_without_a_place_for_blobs_only_working_members_are_dropped() -> None:
    """A session in memory keeps everything in its lines."""
    entry = {"content": [image(data_of(2048)), {"text": "x" * 600_000, "image_url": "data:image/png;base64,AAAA"}]}
    assert shrink(entry, None) is entry
    assert shrink({**entry, "partialJson": "{"}, None) == entry


@pytest.mark.mission("X19")
def test_texts_can_be_restored_without_the_media(blobs: Blobs) -> None:
    """References to media stay, also those with a pointer, and no blob of theirs is fetched."""
    media = [
        image(data_of(2048)),
        image(data_of(2048)[:-4] + "\n" + data_of(2048)[-4:]),
        SHAPES["OpenAI chat"](data_of(2048)),
    ]
    entry = {"content": [*media, {"type": "text", "text": "x" * 600_000}], "thinkingSignature": "s" * 600_000}
    stored = shrink(entry, blobs.put)
    fetched: list[str] = []

    def get(digest: str) -> bytes | None:
        fetched.append(digest)
        return blobs.get(digest)

    read = restore(stored, get, blobs.miss, media=False)
    assert fetched == [sha(b"x" * 600_000), sha(b"s" * 600_000)]
    assert read["content"] == [*stored["content"][:3], entry["content"][3]]
    assert read["thinkingSignature"] == entry["thinkingSignature"]
    assert back(read, blobs) == back(stored, blobs) == entry
    assert blobs.missing == []


@pytest.mark.mission("X20")
@pytest.mark.parametrize(
    "spelled",
    [
        lambda data: "\n".join(data[at : at + 76] for at in range(0, len(data), 76)),
        lambda data: data.replace("+", "-").replace("/", "_"),
        lambda data: data.rstrip("="),
        lambda data: data[:-2] + chr(ord(data[-2]) + 1) + "=",
    ],
    ids=["lines", "url-safe", "unpadded", "loose bits"],
)
def test_another_spelling_of_base64_comes_back_as_it_was(blobs: Blobs, spelled: Any) -> None:
    """The image is a blob, and its exact text is kept for restoring."""
    data = base64.b64encode(bytes(range(255, -1, -1)) * 4 + b"\xfb\xff\x00\x01").decode()
    assert data.endswith("=")
    entry = {"content": [image(spelled(data))]}
    assert spelled(data) != data
    stored = shrink(entry, blobs.put)
    assert parse_blob_ref(stored["content"][0]["data"])
    assert set(stored[FULL]) == {"/content/0/data"}
    assert resolve(stored, blobs.get, blobs.miss)["content"][0]["data"] == data
    assert back(stored, blobs) == entry


@pytest.mark.mission("X20")
@pytest.mark.parametrize(
    "url", ["data:image/png;base64,AAAA", "data:image/é;base64,\ud800", "data:image/x;a=b;base64,"]
)
def test_an_image_url_of_any_size_becomes_a_blob_of_its_text(blobs: Blobs, url: str) -> None:
    """The URL may be at any place, and the same text is restored."""
    entry = {"type": "custom", "data": [{"deep": {"image_url": url}}]}
    stored = shrink(entry, blobs.put)
    assert stored["data"][0]["deep"]["image_url"] == blob_ref(sha(url.encode("utf-8", "surrogatepass")))
    assert resolve(stored, blobs.get, blobs.miss) == back(stored, blobs) == entry


@pytest.mark.mission("X20")
@pytest.mark.parametrize(
    "value",
    [
        "https://x/y.png",
        "data:text/plain;base64,AAAA",
        "data:image/png,AAAA",
        {"url": "data:image/png;base64,AAAA"},
        None,
    ],
)
def test_other_image_urls_stay(blobs: Blobs, value: object) -> None:
    """Only base64 data URLs of images become blobs, and only if they are texts."""
    entry = {"image_url": value, "other": "data:image/png;base64,AAAA"}
    assert shrink(entry, blobs.put) is entry


@pytest.mark.promise("P31")
@pytest.mark.parametrize(
    ("text", "digest"),
    [
        (f"blob:sha256:{HASH}", HASH),
        (f"blob:sha256:{HASH.upper()}", None),
        (f"blob:sha256:{HASH[:-1]}", None),
        (f"blob:sha256:{HASH}0", None),
        (f"blob:sha256:{HASH}\n", None),
        (f" blob:sha256:{HASH}", None),
        (f"blob:sha512:{HASH}", None),
        ("blob:sha256:../../etc/passwd", None),
        (f"blob:sha256:{'g' * 64}", None),
        (f"blob:sha256:{'٣' * 64}", None),
        ("", None),
        (None, None),
        (5, None),
        ([f"blob:sha256:{HASH}"], None),
    ],
)
def test_a_reference_is_64_lowercase_hex_or_it_is_text(text: object, digest: str | None) -> None:
    """Nothing else can name a file."""
    assert parse_blob_ref(text) == digest


@pytest.mark.promise("P31")
def test_a_text_that_looks_like_a_reference_is_not_touched(blobs: Blobs) -> None:
    """The text stays even if that blob exists."""
    reference = blob_ref(blobs.put(b"secret"))
    entry = {"message": {"content": [{"type": "text", "text": reference}]}, "data": reference, "content": reference}
    assert shrink(entry, blobs.put) is entry
    assert resolve(entry, blobs.get, blobs.miss) == back(entry, blobs) == entry
    assert blob_refs(entry) == set()


@pytest.mark.mission("X20")
def test_a_missing_blob_is_reported_and_its_reference_stays(blobs: Blobs) -> None:
    """Images, URLs and full texts are reported."""
    reference = blob_ref(HASH)
    stored = {"content": [image(reference)], "image_url": reference, "text": "cut", FULL: {"/text": reference}}
    assert back(stored, blobs) == stored
    assert blobs.missing == [HASH] * 3
    assert blob_refs(stored) == {HASH}


@pytest.mark.promise("P31")
def test_a_blob_of_a_url_that_is_not_text_is_shown_with_replacements(blobs: Blobs) -> None:
    """No error is raised."""
    reference = blob_ref(blobs.put(b"\xff\xfe"))
    stored = {"image_url": reference, "text": "cut", FULL: {"/text": reference}}
    assert back(stored, blobs) == {"image_url": "\ufffd\ufffd", "text": "\ufffd\ufffd"}


@pytest.mark.promise("P17")
@pytest.mark.parametrize(
    "pointer",
    ["", "/", "x", "/nothing", "/list/9", "/list/x", "/list/-9", "/text/deeper", "/number", "/list", "/none/x", "//"],
)
def test_a_pointer_that_leads_nowhere_changes_nothing(blobs: Blobs, pointer: str) -> None:
    """Invalid pointers neither raise nor add a text."""
    entry: Json = {"text": "t", "list": ["a"], "number": 5, "none": None}
    reference = blob_ref(blobs.put(b"new"))
    assert back({**entry, FULL: {pointer: reference}}, blobs) == entry


@pytest.mark.promise("P17")
@pytest.mark.parametrize("full", [None, [], "x", 5, {"/text": None}, {"/text": "blob:sha256:x"}, {"/text": {}}])
def test_a_map_that_is_none_is_ignored(blobs: Blobs, full: object) -> None:
    """Invalid values of `sessile.full` are not followed."""
    assert back({"text": "t", FULL: full}, blobs) == {"text": "t"}
    assert blob_refs({"text": "t", FULL: full}) == set()


@pytest.mark.parametrize(
    ("entry", "large"),
    [
        ({"a": "x" * 500_001}, True),
        ({"a": "x" * 1000}, False),
        ({"content": [image(data_of(1024))]}, True),
        ({"content": [image("short")]}, False),
        ({"image_url": "data:image/png;base64,"}, True),
        ({"partialJson": ""}, True),
        ({"a": {"jsonlEvents": []}}, True),
    ],
)
def test_the_quick_look_never_misses_what_would_change(blobs: Blobs, entry: Json, large: bool) -> None:
    """It may only return true too often."""
    assert plain(entry).large is large
    assert large or shrink(entry, blobs.put) is entry


def test_the_quick_look_for_references() -> None:
    """A line without one need not be walked."""
    assert may_hold_refs(encode({"content": [image(blob_ref(HASH))]}))
    assert not may_hold_refs(encode({"content": [image("AAAA")], "text": "about blob:sha256: refs"}))
