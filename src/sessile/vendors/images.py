"""Resize images for providers that limit their size.

Needs Pillow (the extra `images`).
"""

from __future__ import annotations

import io
import warnings
from importlib.util import find_spec


def can_resize() -> bool:
    """Return whether Pillow is installed."""
    return find_spec("PIL") is not None


def resize(data: bytes, side: int, quality: int) -> bytes | None:
    """Return an image as JPEG with no side longer than `side` pixels.

    Return `None` if the image cannot be read or Pillow is not installed.
    """
    try:
        from PIL import Image  # optional, and slow to import
    except ImportError:
        return None
    output = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data)) as image:
                small = image.convert("RGB")
                small.thumbnail((side, side))
                small.save(output, "JPEG", quality=quality)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return None
    return output.getvalue()
