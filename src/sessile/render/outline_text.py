"""The outline of a session as lines: a drawing for the eye, or words for the ear.

Whatever a glyph says, a word beside it says too. Ids stand at the right for rows that one would go to: heads and labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sessile.core.outline import MOST_LEVELS, OutlineRow
from sessile.core.parts import Shown
from sessile.core.styled import Line, Span, Style, clipped, line, line_width, padded
from sessile.core.visible import visible_line, width
from sessile.render.wording import SHORT_ID, many, price, short_id, style_of, who

_TEXT = 12  # the column where texts begin, if what is before them leaves room
_WIDEST = 100  # columns: further right an id is too far from its text
_LEAF = "← active leaf"
_NOTE = len(_LEAF) + 5  # columns of what stands before an id

_STYLES: dict[str, Style] = {"✗": "failed", "◇": "summary", "◆": "summary", "●": "label", "@": "active", "~": "dim"}


class OutlineHead(NamedTuple):
    """What the first line says of the session."""

    title: str | None
    id: str
    project: str
    source: str  # the agent that wrote it
    entries: int
    branches: int
    cost: float | None
    unpriced: int = 0


def outline_lines(
    rows: Iterable[OutlineRow],
    columns: int | None,
    head: OutlineHead | None = None,
    *,
    ids: bool = False,
    plain_words: bool = False,
) -> Iterator[Line]:
    """The lines of an outline; `ids` shows those of all rows. `columns` of `None` cuts nothing."""
    if head is not None:
        facts = _head(head, full=columns is None)
        yield _fit(line("session: ", *facts) if plain_words else facts, columns)
    settings = 0
    for row in rows:
        if plain_words:
            yield from (_fit(spoken, columns) for spoken in _spoken(row))
        else:
            yield _drawn(row, columns, ids)
        settings += row.settings
    if settings:
        told = f"hidden: {many(settings, 'setting')}" if plain_words else f"… {settings:,} hidden (settings)"
        yield _fit(line(Span(f"{told}. Show: --full", "dim")), columns)


def _fit(spans: Line, columns: int | None) -> Line:
    return spans if columns is None else clipped(spans, columns)


def _head(head: OutlineHead, full: bool) -> Line:
    known = head.cost is not None or head.unpriced
    facts = (
        Span(visible_line(head.title or "") or "(no title)", "strong"),
        Span(visible_line(head.id) if full else short_id(head.id), "id"),
        Span(visible_line(head.project)),
        Span(visible_line(head.source)),
        Span(many(head.entries, "entry")),
        Span(many(head.branches, "branch", "branches")),
        Span(price(head.cost, head.unpriced) if known else ""),
    )
    told = [fact for fact in facts if fact.text]
    return line(*(piece for fact in told for piece in (Span("  "), fact)))[1:]


# -- drawn


def _drawn(row: OutlineRow, columns: int | None, ids: bool) -> Line:
    lead = line(Span(row.lead, "dim"), Span(row.glyph, _STYLES.get(row.glyph, _quiet(row))), " ")
    if row.shown is None:
        return _fit((*lead, Span(_run(row), "dim")), columns)
    told = (*lead, *_words(row, row.shown, line_width(lead)))
    right = line(Span(_LEAF, "active") if row.is_leaf else "", Span(_id(row, columns, ids), "id"))
    if not right:
        return _fit(told, columns)
    if columns is None:
        return (*told, *(piece for span in right for piece in (Span("  "), span)))
    place = min(columns, _WIDEST) - (SHORT_ID if right[-1].style == "id" else 0) - (_NOTE if row.is_leaf else 0)
    if place < _TEXT:
        return _fit((*told, Span("  "), *right), columns)
    gap = Span(" " * (_NOTE - len(_LEAF)) if len(right) == 2 else "")
    return line(*padded(clipped(told, place - 2), place), right[0], gap, *right[1:])


def _quiet(row: OutlineRow) -> Style:
    return "plain" if row.is_active else "dim"


def _id(row: OutlineRow, columns: int | None, ids: bool) -> str:
    if not (ids or row.is_head or row.is_leaf or row.label):
        return ""
    return visible_line(row.id) if columns is None else short_id(row.id)


def _words(row: OutlineRow, shown: Shown, before: int) -> Line:
    """Who it is from, or its label, and what it says."""
    level = f"(level {row.level}) " if row.branch and row.level > MOST_LEVELS else ""
    text = Span(level + _failing(shown) + visible_line(shown.headline), _quiet(row))
    if row.label:
        return line(Span(f"[{visible_line(row.label)}]", "label"), " ", text)
    name = "asst" if shown.who == "assistant" else who(shown)
    return (*padded(line(Span(name, style_of(shown))), max(_TEXT - before, width(name) + 2)), text)


def _failing(shown: Shown) -> str:
    """The word for the glyph, unless the text says it itself."""
    says = shown.headline.lower()
    return "failed: " if shown.failed and "fail" not in says and "error" not in says else ""


def _run(row: OutlineRow) -> str:
    counts = row.counts
    parts = (
        many(row.entries, "entry") if row.entries else "",
        many(counts.tools, "tool") if counts and counts.tools else "",
        f"{counts.failed:,} failed" if counts and counts.failed else "",
        "" if row.entries else many(row.settings, "setting"),
    )
    return " · ".join(filter(None, parts))


# -- spoken


def _spoken(row: OutlineRow) -> Iterator[Line]:
    """The row in words that need no drawing: a line for a branch that begins, and one for the row."""
    if row.branch:
        active = ", active" if row.is_active else ""
        yield line(Span(f"branch {row.branch} of {row.branches}, level {row.level}{active}:", "strong"))
    shown = row.shown
    if shown is None:
        yield line(Span(f"not shown: {_run(row).replace(' · ', ', ')}", "dim"))
        return
    label = f"label {visible_line(row.label)}" if row.label else ""
    facts = (who(shown), "failed" if shown.failed else "", label, "active leaf" if row.is_leaf else "")
    ends = f", id {short_id(row.id)}" if row.is_head or row.is_leaf or row.label else ""
    said = Span(", ".join(filter(None, facts)) + ": ", style_of(shown))
    yield line(said, visible_line(shown.headline), Span(ends, "id"))
