"""Making pictures smaller, for providers that take no large ones. Needs Pillow (the extra `images`)."""

from __future__ import annotations

import io
import warnings


def can_resize() -> bool:
    """Whether pictures can be made smaller here."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        return False
    return True


def resize(data: bytes, side: int, quality: int) -> bytes | None:
    """A picture as JPEG with no side longer than that; `None` if it cannot be read, or nobody can."""
    try:
        from PIL import Image
    except ImportError:
        return None
    made = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data)) as picture:
                small = picture.convert("RGB")
                small.thumbnail((side, side))
                small.save(made, "JPEG", quality=quality)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return None
    return made.getvalue()
