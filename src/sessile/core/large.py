"""Large content: how it is moved out of an entry before writing, and restored after reading.

What is moved, and what takes its place in the line:

    base64 in `data` of an image, a document or audio      the reference of a blob with the decoded bytes
    a data URL of an image in `image_url`                  the reference of a blob with the URL
    other data URLs, and base64 that is too long           the same, and a pointer in `sessile.full`
    strings over 500,000 UTF-16 units                      their beginning and a notice, and a pointer in `sessile.full`

The first two are oh-my-pi's, which reads images beside a `content` list in the line only; there they stay up to the limit of
strings. `sessile.full` in the entry maps the JSON pointer of a string to the blob with the whole of it, so
nothing is lost. Base64 is never cut. Working members of partially received tool calls are dropped. Storing and fetching blobs
are arguments; without a place for blobs nothing is moved.

Not every value survives this unchanged: working members of tool calls are dropped, `lineCount` is corrected where a text is
cut, and text that looks like a blob reference is taken for one. `survives` tells which values do; store the others as text.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from typing import Any

from sessile.core.text import utf16_cut, utf16_length

MAX_STRING = 500_000
NOTICE = "\n\n[Session persistence truncated large content]"
MIN_IMAGE = 1024  # base64 characters; smaller images are cheaper in the line than as a file
FULL = "sessile.full"

URL = "image_url"
DATA = "data"
DATA_URL = "data:"
DROPPED = ("partialJson", "jsonlEvents")
_SIGNATURES = ("thinkingSignature", "thoughtSignature", "textSignature")
_MEDIA = frozenset(("image", "audio", "input_audio", "video", "document", "file", "media", "base64"))
_MEDIA_TYPES = ("mimeType", "mime_type", "media_type", "mediaType", "format")  # members beside `data` in media
_URL_SAFE = str.maketrans("-_", "+/")
_REF = re.compile(r"blob:sha256:([0-9a-f]{64})")
_BASE64_URL = re.compile(r"data:[^,]{0,200};base64,")
_BASE64 = re.compile(r"[A-Za-z0-9+/_\-\s]+={0,2}\s*")
_ITEM = "content/"  # stands for the name of an item of a `content` list
_LETTERS = 16  # different characters in base64 of any real content; a long row of one letter is text

Put = Callable[[bytes], str]
"""Store bytes and return their hash."""
Get = Callable[[str], bytes | None]
"""Return the bytes of a hash, or `None` if they are missing."""


def blob_ref(digest: str) -> str:
    return f"blob:sha256:{digest}"


def parse_blob_ref(text: object) -> str | None:
    """Return the hash in a blob reference, or `None` if the text is not one."""
    match = _REF.fullmatch(text) if isinstance(text, str) else None
    return match.group(1) if match else None


def shrink(entry: dict[str, Any], put: Put | None) -> dict[str, Any]:
    """Return the entry as it is stored. Parts that do not change are shared with the original.

    Args:
        entry: The entry.
        put: Stores a blob; `None` if everything stays in the line.
    """
    full: dict[str, str] = {}
    stored = _shrink_object(entry, "", "", put, full)
    if full:
        before = stored.get(FULL)
        stored = {**stored, FULL: {**before, **full} if isinstance(before, dict) else full}
    return stored


def _shrink(value: Any, key: str, at: str, put: Put | None, full: dict[str, str]) -> Any:
    if isinstance(value, str):
        return value if put is None else _shrink_string(value, key, at, put, full)
    if isinstance(value, dict):
        return _shrink_object(value, key, at, put, full)
    if isinstance(value, list | tuple):
        name = _ITEM if key == "content" else ""
        items = [_shrink(item, name, f"{at}/{number}", put, full) for number, item in enumerate(value)]
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else items
    return value


def _shrink_object(value: dict[str, Any], key: str, at: str, put: Put | None, full: dict[str, str]) -> dict[str, Any]:
    given = value
    if put is not None and (data := _media_data(value)) is not None:
        stays = value.get("type") == "image" and key != _ITEM
        if len(data) >= (MAX_STRING if stays else MIN_IMAGE) and (moved := _put_media(data, at, put, full)) is not None:
            value = {**value, DATA: moved}
    changed = {
        key: _shrink(item, key, f"{at}/{_escape(key)}", put, full) for key, item in value.items() if key not in DROPPED
    }
    if len(changed) == len(given) and all(changed[key] is given[key] for key in changed):
        return given
    _count_lines(changed)
    return changed


def _count_lines(value: dict[str, Any]) -> None:
    content, lines = value.get("content"), value.get("lineCount")
    if isinstance(content, str) and isinstance(lines, int | float) and not isinstance(lines, bool):
        value["lineCount"] = content.count("\n") + 1


def _shrink_string(text: str, key: str, at: str, put: Put, full: dict[str, str]) -> str:
    if key == URL and text.startswith("data:image/") and ";base64," in text:
        return _put_text(text, put)
    if len(text) >= MIN_IMAGE and text.startswith(DATA_URL) and _BASE64_URL.match(text):
        full[at] = _put_text(text, put)
        return full[at]
    if len(text) * 2 <= MAX_STRING or utf16_length(text) <= MAX_STRING:
        return text
    full[at] = _put_text(text, put)
    if key in _SIGNATURES:
        return ""  # a provider refuses a truncated signature, but not a missing one
    return full[at] if _is_base64(text) else utf16_cut(text, MAX_STRING - len(NOTICE)) + NOTICE


def _is_base64(text: str) -> bool:
    """Whether a long text is base64 as a whole, of any kind."""
    return len(set(text)) >= _LETTERS and _BASE64.fullmatch(text) is not None and _decoded(text) is not None


def _put_text(text: str, put: Put) -> str:
    return blob_ref(put(text.encode("utf-8", "surrogatepass")))


def _text_of(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def _put_media(data: str, at: str, put: Put, full: dict[str, str]) -> str | None:
    """Store the bytes that base64 stands for, and return their reference; `None` if it is not base64."""
    decoded = _decoded(data)
    if decoded is None:
        return None
    if _base64(decoded) != data:
        full[f"{at}/{DATA}"] = _put_text(data, put)  # other forms of base64 would not be restored exactly
    return blob_ref(put(decoded))


def _decoded(data: str) -> bytes | None:
    plain = "".join(data.split()).translate(_URL_SAFE).rstrip("=")
    try:
        return binascii.a2b_base64(plain + "=" * (-len(plain) % 4), strict_mode=True)
    except (binascii.Error, ValueError):
        return None


def _media_data(value: dict[str, Any]) -> str | None:
    """Return the `data` of an image, a document, audio or any other value that says which type of media it is."""
    data = value.get(DATA)
    if not isinstance(data, str):
        return None
    kind = value.get("type")
    is_media = (isinstance(kind, str) and kind in _MEDIA) or any(name in value for name in _MEDIA_TYPES)
    return data if is_media else None


def may_hold_refs(line: bytes) -> bool:
    """Return whether an encoded entry may contain anything that `resolve` would change."""
    return line.find(b'"blob:sha256:') >= 0  # faster than `in`, which first tries to convert to a number


CUT = f'"{FULL}"'.encode()  # in a line with a text that was cut


def resolve(value: Any, get: Get, missing: Callable[[str], None], key: str = "") -> Any:
    """Return the value with the media that `shrink` moved out. References to missing blobs are reported and stay."""
    if isinstance(value, str):
        return _resolve_url(value, get, missing) if key == URL else value
    if isinstance(value, dict):
        resolved = {name: resolve(item, get, missing, name) for name, item in value.items()}
        data = _fetch(_media_data(value), get, missing)
        return resolved if data is None else {**resolved, DATA: _base64(data)}
    if isinstance(value, list):
        return [resolve(item, get, missing) for item in value]
    return value


def _resolve_url(text: str, get: Get, missing: Callable[[str], None]) -> str:
    data = _fetch(text, get, missing)
    return text if data is None else _text_of(data)


def _fetch(reference: str | None, get: Get, missing: Callable[[str], None]) -> bytes | None:
    digest = parse_blob_ref(reference)
    if digest is None:
        return None
    data = get(digest)
    if data is None:
        missing(digest)
    return data


def restore(entry: dict[str, Any], get: Get, missing: Callable[[str], None], *, media: bool = True) -> dict[str, Any]:
    """Return the entry as it was before `shrink`. References to missing blobs are reported and stay.

    Args:
        entry: The decoded line.
        get: Fetches a blob.
        missing: Receives the hashes of missing blobs.
        media: Whether to restore images and other media, too, not only texts that were cut.
    """
    references = entry.get(FULL)
    rest = {name: item for name, item in entry.items() if name != FULL}
    restored = resolve(rest, get if media else _nothing, missing if media else _nothing)
    left = {}
    for pointer, reference in references.items() if isinstance(references, dict) else ():
        if not media and parse_blob_ref(at_pointer(restored, pointer)) is not None:
            left[pointer] = reference
        elif (data := _fetch(reference, get, missing)) is not None:
            _put_at(restored, pointer, _text_of(data))
        elif parse_blob_ref(reference) is not None:
            left[pointer] = reference
    return {**restored, FULL: left} if left else dict(restored)


def _nothing(digest: str) -> None:
    """Fetch or report nothing: what is stored as a reference stays one."""


def at_pointer(value: Any, pointer: str) -> Any:
    """Return the value at a JSON pointer; `None` if there is none."""
    for step in (step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]):
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value


def _put_at(value: Any, pointer: str, text: str) -> None:
    """Replace the string at a JSON pointer; ignore an invalid pointer."""
    *steps, last = (step.replace("~1", "/").replace("~0", "~") for step in f"{pointer}".split("/"))
    try:
        for step in steps[1:]:
            value = value[int(step)] if isinstance(value, list) else value[step]
        place = int(last) if isinstance(value, list) else last
        if isinstance(value[place], str):
            value[place] = text
            if last == "content" and isinstance(value, dict):
                _count_lines(value)
    except (KeyError, IndexError, TypeError, ValueError):
        return


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def blob_refs(entry: dict[str, Any]) -> set[str]:
    """Return the hashes of all blobs that an entry references."""
    found: set[str] = set()

    def note(digest: str) -> bytes | None:
        found.add(digest)
        return b""

    resolve(entry, note, lambda _: None)
    references = entry.get(FULL)
    if isinstance(references, dict):
        found.update(filter(None, map(parse_blob_ref, references.values())))
    return found


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


_TOUCHED = (*(f'"{name}"'.encode() for name in (*DROPPED, "lineCount")), b'"blob:sha256:')


def survives(raw: bytes) -> bool:
    """Return whether an encoded value is read back unchanged from any session; store it as text if not.

    The answer is for a session that keeps large content in blobs. A session in memory changes less.
    """
    return not any(mark in raw for mark in _TOUCHED)
