"""Pictures inside a page: bytes that really are one, as a data URL, or a few words about what is not shown.

A picture that is kept apart is named by its hash (`data-blob`): a page that can fetch it puts it there, others show the words.
What an entry says of its picture is a claim: the first bytes decide, and only of four kinds that cannot hold a program.
"""

from __future__ import annotations

import base64
import re

from sessile.core.large import parse_blob_ref
from sessile.core.parts import Image
from sessile.render.markup import escape_line

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_BLANKS = re.compile(r"\s+")
_PREFIX = re.compile(r"data:[\w/+.-]{1,40};base64,")
_FIRST = 32  # characters of base64 that tell the kind: 24 bytes
_BEGINNINGS = (
    ("png", re.compile(rb"\x89PNG\r\n\x1a\n")),
    ("jpeg", re.compile(rb"\xff\xd8\xff")),
    ("gif", re.compile(rb"GIF8[79]a")),
    ("webp", re.compile(rb"RIFF....WEBP", re.DOTALL)),
)


def image_html(image: Image) -> str:
    """A picture that opens to its full size, or a placeholder that says why there is none."""
    data = _BLANKS.sub("", image.data)
    data = data[match.end() :] if (match := _PREFIX.match(data)) else data
    claimed = escape_line(image.mime.removeprefix("image/")[:40].upper())
    if (digest := parse_blob_ref(data)) is not None:
        return _picture(f'data-blob="{digest}"', f"image {claimed}, kept outside this page")
    if not data:
        return _missing(f"image {claimed}", "without data")
    kind = _kind(data)
    if kind is None:
        return _missing(f"image {claimed} {_size(data)}", "not of a kind that is shown")
    name = f"image {kind.upper()} {_size(data)}"
    return _picture(f'src="data:image/{kind};base64,{data}"', name)


def _picture(source: str, name: str) -> str:
    picture = f'<img {source} alt="{name}" loading="lazy" decoding="async">'
    return f'<details class="picture"><summary>{picture}</summary></details>'


def _kind(data: str) -> str | None:
    if not _BASE64.fullmatch(data) or len(data) % 4:
        return None
    first = base64.b64decode(data[:_FIRST])
    return picture_kind(first)


def picture_kind(first: bytes) -> str | None:
    """What the first bytes of a file say that it is: png, jpeg, gif or webp; `None` if it is not shown."""
    return next((kind for kind, beginning in _BEGINNINGS if beginning.match(first)), None)


def _size(data: str) -> str:
    """How large the bytes are, from the length of their base64."""
    size = len(data.rstrip("=")) * 3 // 4
    if size < 1000:
        return f"{size} B"
    return f"{size / 1000:.0f} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"


def _missing(name: str, why: str) -> str:
    return f'<p class="missing">{name}, {why}</p>'
