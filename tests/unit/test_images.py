"""Images that providers accept."""

from __future__ import annotations

import base64
import struct

import pytest

from sessile.core.providers import QUALITIES, SIDES, Limits, dimensions, fit, omitted, plan, sniff

pytestmark = pytest.mark.mission("Y6")


def png(width: int, height: int, extra: int = 0) -> bytes:
    """Return the header of a PNG followed by that many bytes."""
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + bytes(5 + extra)


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(3)


def jpeg(width: int, height: int, extra: int = 0) -> bytes:
    """Return a JPEG with a comment, fill bytes and a table before its frame."""
    comment = b"\xff\xfe" + struct.pack(">H", 2 + 5) + b"\xff\xc0\x00\x11x"
    table = b"\xff\xff\xff\xc4" + struct.pack(">H", 4) + b"ab"
    frame = b"\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width) + bytes(10)
    return b"\xff\xd8" + comment + table + frame + bytes(extra)


def webp(kind: bytes, body: bytes) -> bytes:
    return b"RIFF" + bytes(4) + b"WEBP" + kind + body.ljust(20, b"\0")


WEBPS = [
    webp(b"VP8X", bytes(4) + bytes(4) + (639).to_bytes(3, "little") + (479).to_bytes(3, "little")),
    webp(b"VP8L", bytes(4) + b"\x2f" + (639 | 479 << 14).to_bytes(4, "little")),
    webp(b"VP8 ", bytes(4) + bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", 640 | 1 << 14, 480 | 1 << 14)),
]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def block(data: bytes, mime: str = "image/png") -> dict[str, object]:
    return {"type": "image", "data": b64(data), "mimeType": mime}


@pytest.mark.parametrize(
    ("image", "mime"),
    [
        (png(1, 1), "image/png"),
        (jpeg(1, 1), "image/jpeg"),
        (gif(1, 1), "image/gif"),
        (WEBPS[0], "image/webp"),
        (b"BM not one of them", None),
        (b"", None),
    ],
)
def test_the_type_is_read_from_the_head(image: bytes, mime: str | None) -> None:
    """JPEG, PNG, GIF and WebP are known by the first characters of their base64."""
    if mime == "image/jpeg":  # any real one goes on with an application segment
        image = image[:2] + b"\xff\xe0" + image[2:]
    assert sniff(b64(image)) == mime


@pytest.mark.parametrize(
    "image", [png(640, 480), gif(640, 480), jpeg(640, 480), *WEBPS], ids=["png", "gif", "jpeg", "vp8x", "vp8l", "vp8"]
)
def test_width_and_height_come_from_the_header(image: bytes) -> None:
    """A truncated header neither raises nor returns a wrong size."""
    assert dimensions(image) == (640, 480)
    for end in range(len(image)):
        assert dimensions(image[:end]) in (None, (640, 480))
    assert dimensions(image[:9]) is None


def test_a_header_without_a_size_has_none() -> None:
    """Zero pixels, unknown WebP chunks and JPEGs without a frame have no size."""
    for image in (png(0, 5), webp(b"ABCD", b""), b"\xff\xd8\xff\xe0\x00\x04ab" + bytes(20), b"hello", b""):
        assert dimensions(image) is None


def test_an_image_within_both_limits_needs_no_step() -> None:
    """The limits themselves are allowed."""
    assert plan(2000, 10, 5 * 1024 * 1024 * 3 // 4) == ()  # 5 MiB in base64
    assert plan(2001, 10, 1) != ()
    assert plan(10, 10, 5 * 1024 * 1024 + 1) != ()


@pytest.mark.parametrize(
    ("width", "height", "side", "sides"),
    [
        (3000, 10, 2000, [2000, *SIDES]),
        (10, 1900, 2000, [1900, *SIDES]),
        (1800, 10, 2000, list(SIDES)),
        (900, 10, 2000, [900, 800]),
        (300, 200, 2000, [300]),
        (3000, 10, 1200, [1200, 1000, 800]),
        (3000, 10, 700, [700]),
    ],
)
def test_the_grid_goes_down_and_never_enlarges(width: int, height: int, side: int, sides: list[int]) -> None:
    """Each side is tried once, largest first, with every quality from the best."""
    limits = Limits(side=side, size=100)
    assert plan(width, height, 101, limits) == tuple((side, quality) for side in sides for quality in QUALITIES)


def test_an_image_that_fits_is_the_same_block() -> None:
    """Only a wrong type is corrected, with a note."""
    good = block(png(10, 10))
    assert fit(good, "user").block is good
    assert fit(good, "user").note is None
    wrong = fit(block(gif(10, 10), "image/png"), "user")
    assert wrong.block == block(gif(10, 10), "image/gif")
    assert wrong.note is not None and "image/png" in wrong.note and "image/gif" in wrong.note


def test_the_first_step_that_fits_is_taken() -> None:
    """Sides and qualities are tried in order; the result is measured."""
    tried: list[tuple[int, int]] = []

    def resize(data: bytes, side: int, quality: int) -> bytes:
        assert data == big
        tried.append((side, quality))
        return jpeg_of(side, quality)

    def jpeg_of(side: int, quality: int) -> bytes:
        return b"\xff\xd8\xff\xe0\x00\x04ab" + jpeg(side, 10, extra=quality * 10)[2:]

    big = png(3000, 10, extra=2000)
    limits = Limits(side=1200, size=len(jpeg_of(1200, 55)))
    fitted = fit(block(big), "user", limits, resize)
    assert tried == [(1200, 85), (1200, 75), (1200, 65), (1200, 55)]
    assert fitted.block == {"type": "image", "data": b64(jpeg_of(1200, 55)), "mimeType": "image/jpeg"}
    assert fitted.note is not None and "3000×10" in fitted.note and "1200×10" in fitted.note
    assert fit(fitted.block, "user", limits, resize) == (fitted.block, None)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "[user] omitted empty image payload"),
        ("", "[user] omitted empty image payload"),
        (5, "[user] omitted empty image payload"),
        ("blob:sha256:00", "[user] omitted image payload: it is no JPEG"),
        ("iVBORw0KGgo*", "[user] omitted image payload: it is not valid base64"),
        (b64(png(5, 5)[:12]), "[user] omitted image payload: its header cannot be read"),
    ],
)
def test_what_cannot_be_read_becomes_a_text(data: object, said: str) -> None:
    """Text and note state the reason."""
    fitted = fit({"type": "image", "data": data, "mimeType": "image/png"}, "user")
    assert fitted.block["type"] == "text"
    assert fitted.block["text"].startswith(said)
    assert fitted.note is not None and fitted.note.startswith("an image was omitted")


def test_what_cannot_be_made_small_enough_becomes_a_text() -> None:
    """If the resizer cannot decode it, or no step is small enough."""
    image = block(png(3000, 10))
    assert "cannot be decoded" in fit(image, "x", resize=lambda *_: None).block["text"]
    assert "small enough" in fit(image, "x", resize=lambda *_: png(3000, 10)).block["text"]
    assert "small enough" in fit(image, "x", resize=lambda *_: b"junk").block["text"]


def test_without_a_resizer_only_what_a_provider_refuses_is_left_out() -> None:
    """Large images are sent unchanged up to the hard limits."""
    wide = block(png(3000, 10))
    assert fit(wide, "x").block is wide
    assert "nothing here can resize" in fit(block(png(8001, 10)), "x").block["text"]
    assert "nothing here can resize" in fit(block(png(10, 10, 90)), "x", Limits(size=100)).block["text"]


def test_the_text_of_an_omitted_image_names_its_place() -> None:
    """The two documented forms."""
    assert omitted("read", "too big") == {"type": "text", "text": "[read] omitted image payload: too big"}
    assert omitted("read", None) == {"type": "text", "text": "[read] omitted empty image payload"}
