"""Resizing images."""

from __future__ import annotations

import io
import sys

import pytest
from PIL import Image

from sessile.core.providers import dimensions
from sessile.vendors.images import can_resize, resize

pytestmark = pytest.mark.mission("Y6")


def picture(width: int, height: int, kind: str = "PNG", mode: str = "RGBA") -> bytes:
    made = io.BytesIO()
    Image.new(mode, (width, height)).save(made, kind)
    return made.getvalue()


@pytest.mark.parametrize(("kind", "mode"), [("PNG", "RGBA"), ("GIF", "P"), ("WEBP", "RGB"), ("JPEG", "L")])
def test_a_picture_becomes_a_smaller_jpeg(kind: str, mode: str) -> None:
    """No side is longer than the limit, the proportions stay, and nothing is enlarged."""
    small = resize(picture(400, 200, kind, mode), 100, 85)
    assert small is not None and small.startswith(b"\xff\xd8") and dimensions(small) == (100, 50)
    same = resize(picture(40, 20, kind, mode), 100, 85)
    assert same is not None and dimensions(same) == (40, 20)


@pytest.mark.parametrize("data", [b"", b"nonsense", picture(50, 50)[:60]])
def test_what_is_no_picture_is_left_to_the_caller(data: bytes) -> None:
    """The result is `None`, not an error."""
    assert resize(data, 100, 85) is None


def test_a_picture_that_would_fill_the_memory_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes may claim to be a hundred thousand pixels wide."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert resize(picture(50, 50), 10, 85) is None


def test_without_the_library_nothing_is_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow is an extra."""
    large = picture(400, 200)
    assert can_resize()
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert resize(large, 100, 85) is None and not can_resize()
