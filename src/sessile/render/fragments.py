"""One entry as one `<article>`: what the page, the export, the review and print are made of.

Rules:

- An article stands for itself: an anchor that never changes (`e-<id>`), a heading, its time, and all of its parts. Where it
  stands among branches, its label and the gaps behind it are arguments.
- Tools and settings are one line that opens: `bash · pytest -q · ✗ failed`. What failed is open. Compactions and summaries
  are dividers across the page.
- No scripts, no styles, no handlers: a fragment needs `web/style.css` and nothing else.

It does not know what other entries there are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sessile.core.parts import Call, Data, Output, Part, Shown, Spent
from sessile.core.spending import amount
from sessile.render.markup import escape, escape_line, language_of
from sessile.render.parts_html import FAILED, changes, folded, is_small_change, json_html, part_html, said_by

LONGEST_ANCHOR = 120  # characters of an id; families write eight, or thirty-six
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_PLAIN = re.compile("[^A-Za-z0-9_-]")
_DIVIDERS = {"compaction": "Compacted", "branch summary": "Branch left", "reset": "Reset"}


class Place(NamedTuple):
    """Which of the branches that part here this is, and the anchors of those beside it."""

    number: int
    of: int
    previous: str | None
    next: str | None


def anchor_of(entry_id: str | None) -> str:
    """The anchor of an entry: its id, with everything that is not a letter, digit, - or _ written as a number."""
    return "e-" + _NOT_PLAIN.sub(lambda match: f".{ord(match[0]):x}.", (entry_id or "")[:LONGEST_ANCHOR])


def entry_html(
    seen: Shown,
    *,
    anchor: str | None = None,
    label: str | None = None,
    place: Place | None = None,
    gaps: Sequence[str] = (),
    call: Call | None = None,
    answered: Collection[str] = (),
) -> str:
    """An entry. `call` is what it answers; the calls in `answered` have their result beside them on every branch."""
    anchor = anchor or anchor_of(seen.id)
    shape = _shape(seen)
    top = _aside(seen, anchor, label, place)
    body = _SHAPES[shape](seen, call, answered)
    unread = "".join(map(gap_html, gaps))
    classes = f"entry {shape} {seen.who} d-{seen.depth}{' is-failed' if seen.failed else ''}"
    return f'<article class="{classes}" id="{anchor}">{top}{body}{unread}</article>\n'


def gap_html(message: str) -> str:
    """Bytes that could not be read, at their place."""
    return f'<p class="gap"><b>gap</b> {escape_line(message)}</p>'


def _shape(seen: Shown) -> str:
    if seen.who == "summary":
        return "divider"
    if seen.who in ("tool", "shell", "setting") or all(isinstance(part, Data) for part in seen.parts):
        return "oneline"
    return "message"


# -- what stands beside each entry


def _aside(seen: Shown, anchor: str, label: str | None, place: Place | None) -> str:
    pieces = [
        f'<span class="label">{escape_line(label)}</span>' if label else "",
        _switch(place) if place else "",
        _time(seen.at),
        f'<a class="permalink" href="#{anchor}" title="Link to this entry"><span aria-hidden="true">#</span>'
        f'<span class="id">{escape_line((seen.id or "no id")[:LONGEST_ANCHOR])}</span></a>',
    ]
    return f'<div class="aside">{"".join(pieces)}</div>'


def _switch(place: Place) -> str:
    previous = _step(place.previous, "prev", "‹", "Previous branch")
    following = _step(place.next, "next", "›", "Next branch")
    count = f'<span class="count">{place.number}/{place.of}</span>'
    name = f"Branch {place.number} of {place.of}"
    return f'<span class="switch" role="group" aria-label="{name}">{previous}{count}{following}</span>'


def _step(anchor: str | None, rel: str, sign: str, name: str) -> str:
    if anchor is None:
        return f'<span class="step" aria-hidden="true">{sign}</span>'
    return f'<a class="step" rel="{rel}" href="#{anchor}" aria-label="{name}">{sign}</a>'


def _time(at: int | None) -> str:
    moment = moment_of(at)
    if moment is None:
        return ""
    return f'<time datetime="{moment:%Y-%m-%dT%H:%M:%SZ}" title="{moment:%Y-%m-%d %H:%M:%S} UTC">{moment:%H:%M}</time>'


def moment_of(at: int | None) -> datetime | None:
    """Milliseconds as a moment; `None` if unknown, or before the first year that there is."""
    try:
        return None if at is None else _EPOCH + timedelta(milliseconds=at)
    except OverflowError:
        return None


# -- shapes


def _message(seen: Shown, call: Call | None, answered: Collection[str]) -> str:
    failed = f" {FAILED}" if seen.failed else ""
    name = f'<span class="who">{escape_line(seen.name)}</span>'
    about = " · ".join(filter(None, (escape_line(seen.model or ""), _spent(seen.spent))))
    told = f'<span class="about">{about}</span>' if about else ""
    parts = (part_html(part, isinstance(part, Call) and part.id in answered) for part in seen.parts)
    return f"<h3>{name}{failed}</h3>{told}{''.join(parts)}"


def _oneline(seen: Shown, call: Call | None, answered: Collection[str]) -> str:
    line = call.summary if call and call.summary else seen.headline
    name = f"<b>{escape_line(seen.name)}</b> " if seen.who != "setting" else ""
    text = f'<span class="line"{language_of(line)}>{escape_line(line)}</span>' if line != seen.name else ""
    mark = f" {FAILED}" if seen.failed else ""
    summary = f"<h3>{name}{text}{mark}</h3>{_extent(seen.parts)}"
    # A command says all of itself in its line; its call is shown only if it has more to say.
    is_told = [isinstance(part, Call) and said_by(part.summary, part.arguments) for part in seen.parts]
    inside = "".join(_bare(part) for part, told in zip(seen.parts, is_told, strict=True) if not told)
    return folded(summary, inside, opened=seen.failed or is_small_change(seen.parts)) if inside else summary


def _bare(part: Part) -> str:
    """A part that is already behind a line is not folded again."""
    if isinstance(part, Data):
        return f'<div class="part data d-{part.depth}">{json_html(part.value)}</div>'
    return part_html(part)


def _extent(parts: Sequence[Part]) -> str:
    changed = changes(parts)
    if changed:
        return f'<span class="extent">+{changed[0]:,} −{changed[1]:,}</span>'
    text = "\n".join(part.text.strip("\n") for part in parts if isinstance(part, Output))
    lines = text.count("\n") + 1 if text.strip() else 0
    return f'<span class="extent">{lines:,} {"line" if lines == 1 else "lines"}</span>' if lines else ""


def _divider(seen: Shown, call: Call | None, answered: Collection[str]) -> str:
    word = _DIVIDERS.get(seen.name, escape_line(seen.name))
    line = f'<span class="line"{language_of(seen.headline)}>{escape_line(seen.headline)}</span>'
    heading = f"<h3><b>{word}</b> {line}</h3>"
    inside = "".join(map(part_html, seen.parts))
    return folded(heading, inside) if inside else heading


_SHAPES = {"message": _message, "oneline": _oneline, "divider": _divider}


# -- words


def _spent(spent: Spent | None) -> str:
    if spent is None:
        return ""
    words = (("in", spent.input), ("out", spent.output), ("cached", spent.cache_read))
    told = [f"{amount(tokens)} {word}" for word, tokens in words if tokens]
    return escape(" · ".join([*told, "cost n/a" if spent.cost is None else f"${spent.cost:.3f}"]))
