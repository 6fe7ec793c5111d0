"""Small HTML tables for notebooks: what `_repr_html_` of the public classes returns.

Rules: every text is escaped, invisible characters are made visible, and long texts are cut. There are no scripts, links,
images or styles, so nothing that is stored in a session can run or load anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from sessile.core.visible import visible_line

_LONGEST = 200  # characters of one cell


def fields(name: str, values: Mapping[str, object]) -> str:
    """A table with one row for each value; those that are `None` are left out."""
    rows = "".join(
        f"<tr><th>{_cell(label)}</th><td>{_cell(value)}</td></tr>"
        for label, value in values.items()
        if value is not None
    )
    return f"<table><caption>{_cell(name)}</caption><tbody>{rows}</tbody></table>"


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with one row for each item; `None` is an empty cell."""
    head = "".join(f"<th>{_cell(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><caption>{_cell(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    cut = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return escape(visible_line(cut))
