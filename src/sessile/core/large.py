"""Large content: how it is moved out of an entry before writing, and restored after reading.

Images become blobs. Strings over 500,000 UTF-16 units are cut and end with a notice. Working members of partially received tool
calls are dropped. `sessile.full` in the entry maps the JSON pointer of each cut string to a blob with the full text, so nothing
is lost. Storing and fetching blobs are arguments.

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
DROPPED = ("partialJson", "jsonlEvents")
_SIGNATURES = ("thinkingSignature", "thoughtSignature", "textSignature")
_URL_SAFE = str.maketrans("-_", "+/")
_REF = re.compile(r"blob:sha256:([0-9a-f]{64})")

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


def shrink(entry: dict[str, Any], put: Put) -> dict[str, Any]:
    """Return the entry as it is stored. Parts that do not change are shared with the original."""
    full: dict[str, str] = {}
    stored = _shrink_object(entry, "", put, full)
    if full:
        before = stored.get(FULL)
        stored = {**stored, FULL: {**before, **full} if isinstance(before, dict) else full}
    return stored


def _shrink(value: Any, key: str, at: str, put: Put, full: dict[str, str]) -> Any:
    if isinstance(value, str):
        return _shrink_string(value, key, at, put, full)
    if isinstance(value, dict):
        return _shrink_object(value, at, put, full)
    if isinstance(value, list | tuple):
        items = list(value)
        if key == "content":
            items = [_without_image(item, f"{at}/{number}", put, full) for number, item in enumerate(items)]
        items = [_shrink(item, "", f"{at}/{number}", put, full) for number, item in enumerate(items)]
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else items
    return value


def _shrink_object(value: dict[str, Any], at: str, put: Put, full: dict[str, str]) -> dict[str, Any]:
    changed = {
        key: _shrink(item, key, f"{at}/{_escape(key)}", put, full) for key, item in value.items() if key not in DROPPED
    }
    if len(changed) == len(value) and all(changed[key] is value[key] for key in changed):
        return value
    _count_lines(changed)
    return changed


def _count_lines(value: dict[str, Any]) -> None:
    content, lines = value.get("content"), value.get("lineCount")
    if isinstance(content, str) and isinstance(lines, int | float) and not isinstance(lines, bool):
        value["lineCount"] = content.count("\n") + 1


def _shrink_string(text: str, key: str, at: str, put: Put, full: dict[str, str]) -> str:
    if key == URL and text.startswith("data:image/") and ";base64," in text:
        return _put_text(text, put)
    if len(text) * 2 <= MAX_STRING or utf16_length(text) <= MAX_STRING:
        return text
    full[at] = _put_text(text, put)
    # A provider refuses a truncated signature, but not a missing one.
    return "" if key in _SIGNATURES else utf16_cut(text, MAX_STRING - len(NOTICE)) + NOTICE


def _put_text(text: str, put: Put) -> str:
    return blob_ref(put(text.encode("utf-8", "surrogatepass")))


def _text_of(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def _without_image(item: Any, at: str, put: Put, full: dict[str, str]) -> Any:
    data = _image_data(item)
    if data is None or len(data) < MIN_IMAGE:
        return item
    plain = "".join(data.split()).translate(_URL_SAFE).rstrip("=")
    try:
        decoded = binascii.a2b_base64(plain + "=" * (-len(plain) % 4), strict_mode=True)
    except (binascii.Error, ValueError):
        return item
    if _base64(decoded) != data:
        full[f"{at}/data"] = _put_text(data, put)  # other forms of base64 would not be restored exactly
    return {**item, "data": blob_ref(put(decoded))}


def _image_data(item: Any) -> str | None:
    if isinstance(item, dict) and item.get("type") == "image" and isinstance(item.get("data"), str):
        return str(item["data"])
    return None


def may_hold_refs(line: bytes) -> bool:
    """Return whether an encoded entry may contain anything that `resolve` would change."""
    return line.find(b'"blob:sha256:') >= 0  # faster than `in`, which first tries to convert to a number


def resolve(value: Any, get: Get, missing: Callable[[str], None], key: str = "") -> Any:
    """Return the value with the images that `shrink` moved out. References to missing blobs are reported and stay."""
    if isinstance(value, str):
        return _resolve_url(value, get, missing) if key == URL else value
    if isinstance(value, dict):
        return {name: resolve(item, get, missing, name) for name, item in value.items()}
    if isinstance(value, list):
        items = [_with_image(item, get, missing) for item in value] if key == "content" else value
        return [resolve(item, get, missing) for item in items]
    return value


def _resolve_url(text: str, get: Get, missing: Callable[[str], None]) -> str:
    data = _fetch(text, get, missing)
    return text if data is None else _text_of(data)


def _with_image(item: Any, get: Get, missing: Callable[[str], None]) -> Any:
    reference = _image_data(item)
    data = _fetch(reference, get, missing)
    return item if data is None else {**item, "data": _base64(data)}


def _fetch(reference: str | None, get: Get, missing: Callable[[str], None]) -> bytes | None:
    digest = parse_blob_ref(reference)
    if digest is None:
        return None
    data = get(digest)
    if data is None:
        missing(digest)
    return data


def restore(entry: dict[str, Any], get: Get, missing: Callable[[str], None]) -> dict[str, Any]:
    """Return the entry with images and full strings."""
    references = entry.get(FULL)
    restored = resolve({name: item for name, item in entry.items() if name != FULL}, get, missing)
    for pointer, reference in references.items() if isinstance(references, dict) else ():
        data = _fetch(reference, get, missing)
        if data is not None:
            _put_at(restored, pointer, _text_of(data))
    return dict(restored)


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
    """Return whether an encoded value is read back unchanged; store it as text if not."""
    return not any(mark in raw for mark in _TOUCHED)
