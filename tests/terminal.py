"""Characters that no output may contain, and a text with them."""

from __future__ import annotations

from hypothesis import strategies as st

from strategies import text

# Characters that control a terminal: C0 and C1 controls, changes of text direction, and lone surrogates.
_DRIVING = {*map(chr, (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)))}
_DRIVING |= {"\u061c", "\u200e", "\u200f", "\u2028", "\u2029", "\ufeff", *map(chr, range(0xD800, 0xE000))}

PROBE = "a\x1b]0;t\x07\x1b[31mred\x9b2J\x08\r\u202eback\u2066\u200f\u061c\x00\ud800\x7f\u2028end"
probes = text | st.just(PROBE) | st.text("".join(sorted(_DRIVING)) + "ab\n", max_size=10)


def harmless(text: str) -> bool:
    """Return whether a line of text contains none of them."""
    return _DRIVING.isdisjoint(text)
