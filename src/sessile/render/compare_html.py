"""How two answers differ, as HTML: words that only one of them has stand in `<del>` and `<ins>`."""

from __future__ import annotations

from sessile.core.compare import Change, word_changes
from sessile.core.visible import visible
from sessile.render.markup import escape

_ELEMENTS = {"removed": "del", "added": "ins"}


def words_html(left: str | None, right: str | None) -> str:
    """The answer on the right with what became of that on the left; a few words if a side has none."""
    if left is None or right is None:
        sides = " and ".join(side for side, answer in (("left", left), ("right", right)) if answer is None)
        return f'<p class="missing">no final answer on the {sides}</p>'
    return f'<div class="words">{"".join(map(_change, word_changes(visible(left), visible(right))))}</div>'


def _change(change: Change) -> str:
    name = _ELEMENTS.get(change.kind)
    return escape(change.text) if name is None else f"<{name}>{escape(change.text)}</{name}>"
