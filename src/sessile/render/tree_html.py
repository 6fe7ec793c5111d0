"""The tree of a session as HTML: indented only where it branches, with straight runs of entries told in one row.

    ○ user      Add retry with backoff to the webhook sender
    ~ 3 entries · 2 tools
    ├ ○ user    Let's try approach A
      ~ 3 entries · 2 tools · 1 failed

Rules: rows are a flat list with WAI-ARIA levels, so that depth costs nothing. A row stands for a prompt, a summary, a label, a
place where it branches, the begin or the head of a branch; what lies between is a run. The same rows are made by
`web/export.js` for the other filters that it offers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from sessile.render.markup import escape_line, language_of
from sessile.render.page_tree import PageTree

DEEPEST = 12  # steps of indentation that are drawn; deeper rows stand below each other

_SIGNS = {"user": "○", "assistant": "●", "summary": "◆", "tool": "▸", "shell": "▸"}


class TreeRow(NamedTuple):
    """One entry, or a run of `entries` entries that begins with it."""

    number: int
    level: int
    entries: int = 0
    tools: int = 0
    failed: int = 0


def rows_of(outline: PageTree) -> Iterator[TreeRow]:
    """The rows of the tree from top to bottom."""
    run: TreeRow | None = None
    for number in outline.order:
        row, level = outline.rows[number], outline.levels[number]
        stands_out = _stands_out(outline, number)
        if run and (stands_out or run.level != level):
            yield run
            run = None
        if stands_out:
            yield TreeRow(number, level)
            continue
        run = run or TreeRow(number, level)
        tools = run.tools + (row.who in ("tool", "shell"))
        run = run._replace(entries=run.entries + 1, tools=tools, failed=run.failed + row.failed)
    if run:
        yield run


def _stands_out(outline: PageTree, number: int) -> bool:
    return (
        outline.rows[number].depth == "prompts"
        or number in outline.labels
        or len(outline.tree.children(number)) != 1  # it branches here, or is a head
        or outline.begins_branch(number)
    )


def tree_html(outline: PageTree, most: int | None = None) -> str:
    """The tree; beyond `most` rows it says how many there are more."""
    rows = list(rows_of(outline))
    shown = set(outline.path)
    items = "".join(_row_html(outline, row, row.number in shown) for row in islice(rows, most))
    tree = f'<ul role="tree" aria-label="Entries" class="tree">{items}</ul>'
    hidden = max(0, len(rows) - most) if most is not None else 0
    return tree + (f'<p class="more">… {hidden:,} more rows</p>' if hidden else "")


def _row_html(outline: PageTree, row: TreeRow, is_shown: bool) -> str:
    begins = outline.begins_branch(row.number) and not row.entries
    level = 2 * row.level + (0 if begins and row.level else 1)
    classes = f"row l{min(row.level, DEEPEST)}{' first' if begins else ''}{' shown' if is_shown else ''}"
    here = ' aria-current="true"' if row.number == outline.leaf else ""
    inside = _run_html(row) if row.entries else _entry_html(outline, row.number)
    link = f'<a href="#{outline.anchors[row.number]}" tabindex="-1">{inside}</a>'
    return f'<li role="treeitem" class="{classes}" aria-level="{level}"{here}>{link}</li>'


def _run_html(row: TreeRow) -> str:
    words = [f"{row.entries:,} {'entry' if row.entries == 1 else 'entries'}"]
    if row.tools:
        words.append(f"{row.tools:,} {'tool' if row.tools == 1 else 'tools'}")
    if row.failed:
        words.append(f"{row.failed:,} failed")
    return f'<span class="run">~ {" · ".join(words)}</span>'


def _entry_html(outline: PageTree, number: int) -> str:
    row = outline.rows[number]
    sign = "✗" if row.failed else "@" if number == outline.leaf else _SIGNS.get(row.who, "·")
    label = f'<span class="label">{escape_line(outline.labels[number])}</span> ' if number in outline.labels else ""
    line = f'<span class="line"{language_of(row.line)}>{escape_line(row.line)}</span>'
    failed = '<span class="unseen">failed </span>' if row.failed else ""
    return f'<span class="sign" aria-hidden="true">{sign}</span>{failed}<span class="unseen">{row.who}: </span>{label}{line}'
