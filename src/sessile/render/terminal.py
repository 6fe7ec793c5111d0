"""A transcript as lines of text: for the terminal, in words for screen readers, and as a plain text file.

Rules:

- A line about each entry, what it says indented below it. A place where the story goes on from an earlier entry says so.
- Nothing is left out in silence: folded lines, and what the depth does not show, are counted; damage is told where it is.
- Without a width nothing is wrapped, folded or cut.
- All stored text is made visible first: it can drive no terminal.

The outline of a session as lines: a drawing for the eye, or words for the ear.

Whatever a glyph says, a word beside it says too. Ids stand at the right for rows that one would go to: heads and labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.core.visible import visible, visible_line, width, without_colours
from sessile.render.outline import MAX_LEVELS, OutlineRow
from sessile.render.shown import (
    DEPTHS,
    Call,
    Data,
    Depth,
    Diff,
    Gap,
    Image,
    Output,
    Part,
    Shown,
    Text,
    Thinking,
    Transcript,
    as_json,
    show_all,
)
from sessile.render.styled import (
    EMPTY,
    Line,
    Span,
    Style,
    clipped,
    line,
    line_width,
    padded,
    plain,
    prefixed,
    wrapped,
    wrapped_line,
)
from sessile.render.wording import SHORT_ID, image_word, many, moment, price, short_id, style_of, who

# --- text

_INDENT = "  "
_RULE = "── "
_MOST_LINES = 8  # of what a tool printed, where it is folded
_MOST_FAILED = 30  # of what a failed tool printed: people look for the reason
_MOST_CHANGED = 40  # of a change to a file
_LONGEST = 2_000  # characters of one folded line


class _Manner(NamedTuple):
    """How lines are made."""

    depth: Depth
    columns: int | None
    words: bool  # no drawing, every line about an entry begins with a word
    when: Callable[[int | None], str]
    labels: Mapping[str, str]

    @property
    def room(self) -> int | None:
        """The columns that an indented text has."""
        return None if self.columns is None else max(self.columns - len(_INDENT), 1)

    @property
    def folds(self) -> bool:
        return self.depth != "all" and self.columns is not None


def transcript_lines(
    shown: Iterable[Shown],
    depth: Depth,
    columns: int | None,
    labels: Mapping[str, str] | None = None,
    gaps: Sequence[Gap] = (),
    *,
    plain_words: bool = False,
    when: Callable[[int | None], str] = moment,
) -> Iterator[Line]:
    """Entries as lines, in the order given; `when` writes an instant."""
    manner = _Manner(depth, columns, plain_words, when, labels or {})
    damage = Damage(gaps)
    hidden: Counter[str] = Counter()
    story = Story()
    begun = False
    for message in damage.behind(None):
        yield from _damaged(message, manner)
    for each in shown:
        count_hidden(hidden, each, depth)
        back = story.goes_back(each)
        if back is not None:
            yield EMPTY
            yield _rule(f"goes on from {short_id(back)}", "mark", manner)
        if is_shown(each, depth):
            if begun:
                yield EMPTY
            begun = True
            yield _about(each, manner)
            for part in each.at_depth(depth):
                yield from (_fit(told, manner) for told in _part(part, manner))
        for message in damage.behind(each.id):
            yield from _damaged(message, manner)
    for message in damage.rest():
        yield from _damaged(message, manner)
    if hidden:
        yield EMPTY
        yield from wrapped_line((Span(hidden_words(hidden, depth), "dim"),), columns)


def text_export(transcript: Transcript) -> Iterator[str]:
    """A transcript as a plain text file, piece by piece."""
    facts = {
        "id": transcript.id,
        "project": transcript.cwd,
        "created": moment(transcript.created) or "unknown",
        "entries": f"{transcript.entry_count:,}",
    }
    yield f"{visible_line(transcript.title or '') or '(no title)'}\n"
    yield from (f"{name}: {visible_line(value)}\n" for name, value in facts.items())
    yield from (f"note: {visible_line(note)}\n" for note in transcript.notes)
    yield "\n"
    entries = show_all(transcript.entries)
    for each in transcript_lines(entries, transcript.depth, None, transcript.labels, transcript.gaps):
        yield plain(each) + "\n"


# -- what every transcript tells, whatever it is written in


def is_shown(shown: Shown, depth: Depth) -> bool:
    """Whether a depth shows something of an entry."""
    return DEPTHS.index(shown.depth) <= DEPTHS.index(depth)


def count_hidden(hidden: Counter[str], shown: Shown, depth: Depth) -> None:
    """Count what a depth does not show: the entry, or parts of it."""
    if not is_shown(shown, depth):
        hidden["entry"] += 1
        return
    for part in shown.parts:
        if DEPTHS.index(part.depth) > DEPTHS.index(depth):
            hidden[_PARTS[type(part)]] += 1


_PARTS: dict[type, str] = {
    Text: "text",
    Thinking: "thought",
    Call: "tool call",
    Output: "output",
    Diff: "change",
    Image: "image",
    Data: "detail",
}


def hidden_words(hidden: Mapping[str, int], depth: Depth) -> str:
    """What a depth left out, in a sentence."""
    return f"hidden at depth {depth}: {', '.join(many(number, word) for word, number in hidden.items())}"


class Damage:
    """Where bytes could not be read, told once at each place."""

    def __init__(self, gaps: Iterable[Gap]) -> None:
        self._behind: dict[str | None, list[str]] = {}
        for gap in gaps:
            self._behind.setdefault(gap.after, []).append(visible_line(gap.message))

    def behind(self, entry_id: str | None) -> list[str]:
        """What is damaged behind an entry."""
        return self._behind.pop(entry_id, [])

    def rest(self) -> list[str]:
        """What is damaged behind entries that are not here."""
        return [f"{message} (elsewhere in the file)" for messages in self._behind.values() for message in messages]


class Story:
    """Follows entries, to say where they do not follow each other."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._last: str | None = None

    def goes_back(self, shown: Shown) -> str | None:
        """The earlier entry that this one hangs from, if it is not the one before it."""
        parent, last = shown.parent_id, self._last
        if shown.id is not None:
            self._seen.add(shown.id)
            self._last = shown.id
        return parent if parent != last and parent in self._seen and parent != shown.id else None


# -- lines


def _about(shown: Shown, manner: _Manner) -> Line:
    """The line about an entry: who, when, with what, which."""
    entry_id = visible_line(shown.id or "") if manner.columns is None else short_id(shown.id)
    label = visible_line(manner.labels.get(shown.id or "", ""))
    label = label and (f"label {label}" if manner.words else f"[{label}]")
    if shown.who == "summary":
        told = (who(shown), manner.when(shown.at), entry_id, label, visible_line(shown.headline))
        return _rule(" · ".join(filter(None, told)), "summary", manner)
    facts = [
        Span("failed" if manner.words else "✗ failed", "failed") if shown.failed else Span(""),
        Span(manner.when(shown.at), "dim"),
        Span(visible_line(shown.model or ""), "dim"),
        Span(entry_id, "id"),
        Span(label, "label"),
    ]
    between = ", " if manner.words else "  "
    rest = (piece for fact in facts if fact.text for piece in (Span(between), fact))
    return _fit(line(Span(who(shown), style_of(shown)), *rest, ":" if manner.words else ""), manner)


def _rule(text: str, style: Style, manner: _Manner) -> Line:
    if manner.words:
        return _fit(line(Span(text, style)), manner)
    ruled = _fit(line(Span(_RULE, "dim"), Span(text, style)), manner)
    missing = (manner.columns or 0) - line_width(ruled) - 1
    return line(*ruled, Span(f" {'─' * missing}", "dim")) if missing > 0 else ruled


def _damaged(message: str, manner: _Manner) -> Iterator[Line]:
    told = f"{'' if manner.words else '✗ '}unreadable here: {message}"
    return wrapped_line((Span(told, "failed"),), manner.columns)


def _fit(spans: Line, manner: _Manner) -> Line:
    return spans if manner.columns is None else clipped(spans, manner.columns)


def _part(part: Part, manner: _Manner) -> Iterator[Line]:
    if isinstance(part, Text):
        yield from _said(part.text, "plain", manner)
    elif isinstance(part, Thinking):
        sealed = " (sealed by the provider)" if part.hidden else ""
        yield line(_INDENT, Span(f"thinking{sealed}", "dim"))
        yield from _said(part.text, "dim", manner)
    elif isinstance(part, Call):
        yield from _called(part, manner)
    elif isinstance(part, Output):
        most = _MOST_FAILED if part.failed else _MOST_LINES
        yield from _folded(_lines(without_colours(part.text)), most, manner, part.failed)
    elif isinstance(part, Diff):
        if part.path:
            yield line(_INDENT, Span(f"changed {visible_line(part.path)}", "tool"))
        yield from _changed(part, manner)
    elif isinstance(part, Image):
        yield line(_INDENT, Span(image_word(part), "dim"))
    else:
        yield from _data(part.name, part.value, manner)


def _said(text: str, style: Style, manner: _Manner) -> Iterator[Line]:
    text = visible(text).strip("\n")
    if text:
        yield from prefixed((Span(_INDENT),), (Span(_INDENT),), wrapped(text, manner.room), style)


def _called(call: Call, manner: _Manner) -> Iterator[Line]:
    yield line(_INDENT, Span(visible_line(call.name), "tool"), "  ", visible_line(call.summary))
    if manner.depth == "all" and call.arguments not in (None, {}):
        arguments: Any = call.arguments if isinstance(call.arguments, dict) else {"arguments": call.arguments}
        for name, value in arguments.items():
            if value != call.summary:
                yield from _data(name, value, manner)


def _data(name: str, value: object, manner: _Manner) -> Iterator[Line]:
    text = value if isinstance(value, str) else as_json(value)
    between = ":\n" if "\n" in text else ": "
    yield from _said(visible_line(name) + between + text, "dim", manner)


def _lines(text: str) -> list[str]:
    text = visible(text).rstrip("\n")
    return text.split("\n") if text else []


def _changed(diff: Diff, manner: _Manner) -> Iterator[Line]:
    """The lines of a change, with a word for the ear where the eye has a colour."""
    if not manner.words:
        yield from _folded(_lines(diff.text), _MOST_CHANGED, manner, changes=True)
        return
    spoken = {"+": "added: ", "-": "removed: "}
    lines = [spoken[text[0]] + text[1:] if text[:1] in spoken else text for text in _lines(diff.text)]
    yield from _folded(lines, _MOST_CHANGED, manner)


_CHANGES: dict[str, Style] = {"+": "added", "-": "removed"}


def _folded(
    lines: Sequence[str], most: int, manner: _Manner, failed: bool = False, changes: bool = False
) -> Iterator[Line]:
    """Lines of output, the first of them where it is folded; what is left out is counted."""
    kept = lines[:most] if manner.folds and len(lines) > most + 1 else lines
    for text in kept:
        style = _CHANGES.get(text[:1], "plain") if changes else "failed" if failed else "plain"
        left = len(text) - _LONGEST if manner.folds else 0
        for piece in wrapped(text[:_LONGEST] if left > 0 else text, manner.room):
            yield line(_INDENT, Span(piece, style))
        if left > 0:
            yield _left_out(many(left, "more character"), manner)
    if len(kept) < len(lines):
        yield _left_out(many(len(lines) - len(kept), "more line"), manner)


def _left_out(what: str, manner: _Manner) -> Line:
    return line(_INDENT, Span(what if manner.words else f"… {what}", "dim"))


# --- outline text

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
        yield _outline_text_fit(line("session: ", *facts) if plain_words else facts, columns)
    settings = 0
    for row in rows:
        if plain_words:
            yield from (_outline_text_fit(spoken, columns) for spoken in _spoken(row))
        else:
            yield _drawn(row, columns, ids)
        settings += row.settings
    if settings:
        told = f"hidden: {many(settings, 'setting')}" if plain_words else f"… {settings:,} hidden (settings)"
        yield _outline_text_fit(line(Span(f"{told}. Show: --full", "dim")), columns)


def _outline_text_fit(spans: Line, columns: int | None) -> Line:
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
        return _outline_text_fit((*lead, Span(_run(row), "dim")), columns)
    told = (*lead, *_words(row, row.shown, line_width(lead)))
    right = line(Span(_LEAF, "active") if row.is_leaf else "", Span(_id(row, columns, ids), "id"))
    if not right:
        return _outline_text_fit(told, columns)
    if columns is None:
        return (*told, *(piece for span in right for piece in (Span("  "), span)))
    place = min(columns, _WIDEST) - (SHORT_ID if right[-1].style == "id" else 0) - (_NOTE if row.is_leaf else 0)
    if place < _TEXT:
        return _outline_text_fit((*told, Span("  "), *right), columns)
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
    level = f"(level {row.level}) " if row.branch and row.level > MAX_LEVELS else ""
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
