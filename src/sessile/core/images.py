"""Images as providers take them: what they are, how large, and the steps that make one small enough.

Rules: the type is read from the first characters of the data, whatever the block says. An image within both limits
stays as it is. Another is made a JPEG, first with fewer pixels, then with less quality, until it fits, and is never
enlarged; one that cannot fit becomes a text that says so. Who makes the JPEG is an argument: without such a callable an
image of many pixels is sent as it is, as long as a provider takes it, because a person without that library would
rather pay for it than lose it.

The width and height are read from the header of a PNG, JPEG, GIF or WebP; nothing here decodes pixels.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import Any, NamedTuple

Block = dict[str, Any]
Resize = Callable[[bytes, int, int], bytes | None]  # data, longest side, quality: a JPEG; None if it cannot be read

SIDES = (1800, 1600, 1400, 1200, 1000, 800)
QUALITIES = (85, 75, 65, 55, 45, 35)

_HEADS = {"/9j/": "image/jpeg", "iVBOR": "image/png", "R0lGOD": "image/gif", "UklGR": "image/webp"}


class Limits(NamedTuple):
    """The largest image that is sent: pixels of its longer side, and bytes."""

    side: int = 2000  # above it Anthropic refuses requests with many images
    size: int = 5 * 1024 * 1024 * 3 // 4  # Anthropic refuses 5 MiB of base64, which is a third longer
    hard_side: int = 8000  # above it Anthropic refuses any; counts where nobody can resize


LIMITS = Limits()


class Fitted(NamedTuple):
    """A block that can be sent, and what was done to the image, if anything."""

    block: Block
    note: str | None = None


def sniff(data: str) -> str | None:
    """The type of an image in base64, from its first characters; `None` if no provider takes it."""
    return next((mime for head, mime in _HEADS.items() if data.startswith(head)), None)


def dimensions(image: bytes) -> tuple[int, int] | None:
    """Width and height from the header of an image; `None` if they cannot be told."""
    found = None
    if image.startswith(b"\x89PNG\r\n\x1a\n") and image[12:16] == b"IHDR" and len(image) >= 24:
        found = int.from_bytes(image[16:20], "big"), int.from_bytes(image[20:24], "big")
    elif image[:6] in (b"GIF87a", b"GIF89a") and len(image) >= 10:
        found = int.from_bytes(image[6:8], "little"), int.from_bytes(image[8:10], "little")
    elif image.startswith(b"RIFF") and image[8:12] == b"WEBP" and len(image) >= 30:
        found = _webp(image)
    elif image.startswith(b"\xff\xd8"):
        found = _jpeg(image)
    return found if found and all(found) else None


def _webp(image: bytes) -> tuple[int, int] | None:
    kind = image[12:16]
    if kind == b"VP8X":
        return int.from_bytes(image[24:27], "little") + 1, int.from_bytes(image[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(image[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return int.from_bytes(image[26:28], "little") & 0x3FFF, int.from_bytes(image[28:30], "little") & 0x3FFF
    return None


def _jpeg(image: bytes) -> tuple[int, int] | None:
    """The size of the first frame; segments before it (thumbnails, colour profiles) are skipped."""
    at = 2
    while at + 9 <= len(image) and image[at] == 0xFF:
        marker = image[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(image[at + 7 : at + 9], "big"), int.from_bytes(image[at + 5 : at + 7], "big")
        else:
            at += 2 + int.from_bytes(image[at + 2 : at + 4], "big")
    return None


def plan(width: int, height: int, size: int, limits: Limits = LIMITS) -> tuple[tuple[int, int], ...]:
    """The longest sides and qualities to try, in order, until the JPEG fits; none for an image that fits already."""
    longest = max(width, height)
    if longest <= limits.side and size <= limits.size:
        return ()
    first = min(limits.side, longest)
    sides = [first, *(side for side in SIDES if side < first)]
    return tuple((side, quality) for side in sides for quality in QUALITIES)


def omitted(label: str, reason: str | None) -> Block:
    """The text that stands for an image that is not sent; without a reason it was empty."""
    told = "omitted empty image payload" if reason is None else f"omitted image payload: {reason}"
    return {"type": "text", "text": f"[{label}] {told}"}


def fit(block: Block, label: str, limits: Limits = LIMITS, resize: Resize | None = None) -> Fitted:
    """An image block as it can be sent, or the text that stands for it."""
    data = block.get("data")
    if not isinstance(data, str) or not data:
        return _omit(label, None)
    mime = sniff(data)
    if mime is None:
        return _omit(label, "it is no JPEG, PNG, GIF or WebP")
    try:
        image = binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        return _omit(label, "it is not valid base64")
    shape = dimensions(image)
    if shape is None:
        return _omit(label, "its header cannot be read")
    steps = plan(*shape, len(image), limits)
    if not steps or (resize is None and _passes(image, shape, limits)):
        if block.get("mimeType") == mime:
            return Fitted(block)
        return Fitted({**block, "mimeType": mime}, f"an image that called itself {block.get('mimeType')} is {mime}")
    if resize is None:
        return _omit(label, f"{_told(shape, len(image))} is over the limit, and nothing here can resize it")
    for side, quality in steps:
        smaller = resize(image, side, quality)
        if smaller is None:
            return _omit(label, "it cannot be decoded")
        made = dimensions(smaller)
        if made is not None and not plan(*made, len(smaller), limits):
            told = f"an image of {_told(shape, len(image))} was made one of {_told(made, len(smaller))}"
            jpeg = binascii.b2a_base64(smaller, newline=False).decode()
            return Fitted({**block, "data": jpeg, "mimeType": "image/jpeg"}, told)
    return _omit(label, f"{_told(shape, len(image))} cannot be made small enough")


def _passes(image: bytes, shape: tuple[int, int], limits: Limits) -> bool:
    return max(shape) <= limits.hard_side and len(image) <= limits.size


def _omit(label: str, reason: str | None) -> Fitted:
    return Fitted(omitted(label, reason), f"an image was left out: {reason or 'it was empty'}")


def _told(shape: tuple[int, int], size: int) -> str:
    return f"{shape[0]}×{shape[1]} pixels and {size} bytes"
