"""Transcripts and outlines as lines of text: for the terminal, in words for screen readers, and as a plain text file.

Rules:

- Each entry has a heading line, with its content indented below. Where a transcript continues from an earlier entry, it says so.
- Nothing is left out silently: folded lines and what the depth hides are counted, damage is shown where it is.
- Without a width nothing is wrapped, folded or cut.
- Stored text is made visible first, so that it cannot control the terminal.
- An outline is a drawing, or plain words for a screen reader. Every glyph has a word next to it. Ids are at the right of rows
  that people go to: heads and labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.core.digest import NO_TITLE
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

_INDENT = "  "
_RULE = "── "
_MAX_LINES = 8  # of folded tool output
_MAX_FAILED = 30  # of the folded output of a failed tool: people look for the reason
_MAX_DIFF = 40  # lines of a folded diff
_MAX_LINE = 2_000  # characters of a line of folded output
_PROSE = ("user", "assistant", "summary")  # whose texts are Markdown

Prose = Callable[[str, int], Iterable[Line]]  # renders a visible Markdown text in that many columns


class _Format(NamedTuple):
    """Options of a transcript."""

    depth: Depth
    columns: int | None
    words: bool  # no drawing: every heading starts with a word
    when: Callable[[int | None], str]
    labels: Mapping[str, str]
    prose: Prose | None = None

    @property
    def room(self) -> int | None:
        """The width of indented text."""
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
    prose: Prose | None = None,
) -> Iterator[Line]:
    """Yield entries as lines, in the given order; `when` formats a time, `prose` renders Markdown (default: as it is)."""
    form = _Format(depth, columns, plain_words, when, labels or {}, prose)
    damage = Damage(gaps)
    hidden: Counter[str] = Counter()
    continuations = Continuations()
    is_first = True
    for message in damage.after(None):
        yield from _damaged(message, form)
    for each in shown:
        count_hidden(hidden, each, depth)
        back = continuations.earlier_parent(each)
        if back is not None:
            yield EMPTY
            yield _rule(f"continues from {short_id(back)}", "mark", form)
        if is_shown(each, depth):
            if not is_first:
                yield EMPTY
            is_first = False
            yield _heading(each, form)
            for part in each.at_depth(depth):
                yield from (_fit(part_line, form.columns) for part_line in _part(part, form, each.who in _PROSE))
        for message in damage.after(each.id):
            yield from _damaged(message, form)
    for message in damage.rest():
        yield from _damaged(message, form)
    if hidden:
        yield EMPTY
        yield from wrapped_line((Span(hidden_words(hidden, depth), "dim"),), columns)


def text_export(transcript: Transcript) -> Iterator[str]:
    """Yield a transcript as a plain text file, in pieces."""
    facts = {
        "id": transcript.id,
        "project": transcript.cwd,
        "created": moment(transcript.created) or "unknown",
        "entries": f"{transcript.entry_count:,}",
    }
    yield f"{visible_line(transcript.title or '') or NO_TITLE}\n"
    yield from (f"{name}: {visible_line(value)}\n" for name, value in facts.items())
    yield from (f"note: {visible_line(note)}\n" for note in transcript.notes)
    yield "\n"
    entries = show_all(transcript.entries)
    for each in transcript_lines(entries, transcript.depth, None, transcript.labels, transcript.gaps):
        yield plain(each) + "\n"


# -- shared by all transcripts


def is_shown(shown: Shown, depth: Depth) -> bool:
    """Return whether a depth shows any part of an entry."""
    return DEPTHS.index(shown.depth) <= DEPTHS.index(depth)


def count_hidden(hidden: Counter[str], shown: Shown, depth: Depth) -> None:
    """Count what a depth hides: the entry, or parts of it."""
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
    """Return a sentence about what a depth hides."""
    return f"hidden at depth {depth}: {', '.join(many(number, word) for word, number in hidden.items())}"


class Damage:
    """Places of the file that could not be read; each is reported once."""

    def __init__(self, gaps: Iterable[Gap]) -> None:
        self._after: dict[str | None, list[str]] = {}
        for gap in gaps:
            self._after.setdefault(gap.after, []).append(visible_line(gap.message))

    def after(self, entry_id: str | None) -> list[str]:
        """Return the damage after an entry, or before the first for `None`."""
        return self._after.pop(entry_id, [])

    def rest(self) -> list[str]:
        """Return the damage after entries that are not in the transcript."""
        return [f"{message} (elsewhere in the file)" for messages in self._after.values() for message in messages]


class Continuations:
    """Finds entries whose parent is not the entry before them."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._last: str | None = None

    def earlier_parent(self, shown: Shown) -> str | None:
        """Return the parent of the next entry, if it is an earlier entry than the one before."""
        parent, last = shown.parent_id, self._last
        if shown.id is not None:
            self._known.add(shown.id)
            self._last = shown.id
        return parent if parent != last and parent in self._known and parent != shown.id else None


# -- lines


def _heading(shown: Shown, form: _Format) -> Line:
    """Return the heading of an entry: who, when, model, id."""
    entry_id = visible_line(shown.id or "") if form.columns is None else short_id(shown.id)
    label = visible_line(form.labels.get(shown.id or "", ""))
    label = label and (f"label {label}" if form.words else f"[{label}]")
    if shown.who == "summary":
        words = (who(shown), form.when(shown.at), entry_id, label, visible_line(shown.headline))
        return _rule(" · ".join(filter(None, words)), "summary", form)
    facts = [
        Span("failed" if form.words else "✗ failed", "failed") if shown.failed else Span(""),
        Span(form.when(shown.at), "dim"),
        Span(visible_line(shown.model or ""), "dim"),
        Span(entry_id, "id"),
        Span(label, "label"),
    ]
    between = ", " if form.words else "  "
    rest = (piece for fact in facts if fact.text for piece in (Span(between), fact))
    return _fit(line(Span(who(shown), style_of(shown)), *rest, ":" if form.words else ""), form.columns)


def _rule(text: str, style: Style, form: _Format) -> Line:
    if form.words:
        return _fit(line(Span(text, style)), form.columns)
    ruled = _fit(line(Span(_RULE, "dim"), Span(text, style)), form.columns)
    missing = (form.columns or 0) - line_width(ruled) - 1
    return line(*ruled, Span(f" {'─' * missing}", "dim")) if missing > 0 else ruled


def _damaged(message: str, form: _Format) -> Iterator[Line]:
    notice = f"{'' if form.words else '✗ '}unreadable here: {message}"
    return wrapped_line((Span(notice, "failed"),), form.columns)


def _fit(spans: Line, columns: int | None) -> Line:
    return spans if columns is None else clipped(spans, columns)


def _rendered(text: str, form: _Format) -> Iterator[Line]:
    """Yield the lines of a Markdown text."""
    if form.prose is None or form.room is None:
        return _paragraphs(text, "plain", form)
    return (line(_INDENT, *spans) if spans else EMPTY for spans in form.prose(visible(text).strip("\n"), form.room))


def _part(part: Part, form: _Format, is_prose: bool) -> Iterator[Line]:
    if isinstance(part, Text):
        yield from _rendered(part.text, form) if is_prose else _paragraphs(part.text, "plain", form)
    elif isinstance(part, Thinking):
        note = " (encrypted by the provider)" if part.hidden else ""
        yield line(_INDENT, Span(f"thinking{note}", "dim"))
        yield from _paragraphs(part.text, "dim", form)
    elif isinstance(part, Call):
        yield from _call(part, form)
    elif isinstance(part, Output):
        most = _MAX_FAILED if part.failed else _MAX_LINES
        yield from _folded(_lines(without_colours(part.text)), most, form, part.failed)
    elif isinstance(part, Diff):
        if part.path:
            yield line(_INDENT, Span(f"changed {visible_line(part.path)}", "tool"))
        yield from _diff(part, form)
    elif isinstance(part, Image):
        yield line(_INDENT, Span(image_word(part), "dim"))
    else:
        yield from _data(part.name, part.value, form)


def _paragraphs(text: str, style: Style, form: _Format) -> Iterator[Line]:
    text = visible(text).strip("\n")
    if text:
        yield from prefixed((Span(_INDENT),), (Span(_INDENT),), wrapped(text, form.room), style)


def _call(call: Call, form: _Format) -> Iterator[Line]:
    yield line(_INDENT, Span(visible_line(call.name), "tool"), "  ", visible_line(call.summary))
    if form.depth == "all" and call.arguments not in (None, {}):
        arguments: Any = call.arguments if isinstance(call.arguments, dict) else {"arguments": call.arguments}
        for name, value in arguments.items():
            if value != call.summary:
                yield from _data(name, value, form)


def _data(name: str, value: object, form: _Format) -> Iterator[Line]:
    text = value if isinstance(value, str) else as_json(value)
    between = ":\n" if "\n" in text else ": "
    yield from _paragraphs(visible_line(name) + between + text, "dim", form)


def _lines(text: str) -> list[str]:
    text = visible(text).rstrip("\n")
    return text.split("\n") if text else []


def _diff(diff: Diff, form: _Format) -> Iterator[Line]:
    """Yield the lines of a diff; for a screen reader, with a word in place of the colour."""
    if not form.words:
        yield from _folded(_lines(diff.text), _MAX_DIFF, form, changes=True)
        return
    spoken = {"+": "added: ", "-": "removed: "}
    lines = [spoken[text[0]] + text[1:] if text[:1] in spoken else text for text in _lines(diff.text)]
    yield from _folded(lines, _MAX_DIFF, form)


_CHANGES: dict[str, Style] = {"+": "added", "-": "removed"}


def _folded(
    lines: Sequence[str], most: int, form: _Format, failed: bool = False, changes: bool = False
) -> Iterator[Line]:
    """Yield lines of output. If it is folded, only the first ones, and how many more there are."""
    kept = lines[:most] if form.folds and len(lines) > most + 1 else lines
    for text in kept:
        style = _CHANGES.get(text[:1], "plain") if changes else "failed" if failed else "plain"
        left = len(text) - _MAX_LINE if form.folds else 0
        for piece in wrapped(text[:_MAX_LINE] if left > 0 else text, form.room):
            yield line(_INDENT, Span(piece, style))
        if left > 0:
            yield _left_out(many(left, "more character"), form)
    if len(kept) < len(lines):
        yield _left_out(many(len(lines) - len(kept), "more line"), form)


def _left_out(what: str, form: _Format) -> Line:
    return line(_INDENT, Span(what if form.words else f"… {what}", "dim"))


# -- outlines

_TEXT = 12  # the column of texts, if there is room
_MAX_WIDTH = 100  # columns: beyond that an id would be too far from its text
_LEAF = "← active leaf"
_NOTE = len(_LEAF) + 5  # columns of the note before an id

_STYLES: dict[str, Style] = {"✗": "failed", "◇": "summary", "◆": "summary", "●": "label", "@": "active", "~": "dim"}


class OutlineHead(NamedTuple):
    """The session, for the first line."""

    title: str | None
    id: str
    project: str
    source: str  # its agent
    entries: int
    branches: int
    cost: float | None
    unpriced: Mapping[str, int] = {}  # answers by model
    listed: int = 0  # answers that are priced by the table


def outline_lines(
    rows: Iterable[OutlineRow],
    columns: int | None,
    head: OutlineHead | None = None,
    *,
    ids: bool = False,
    plain_words: bool = False,
) -> Iterator[Line]:
    """Yield the lines of an outline. `ids` shows the ids of all rows; without `columns` nothing is cut."""
    if head is not None:
        facts = _head(head, full=columns is None)
        yield _fit(line("session: ", *facts) if plain_words else facts, columns)
    settings = folded = 0
    for row in rows:
        if plain_words:
            yield from (_fit(spoken, columns) for spoken in _spoken(row))
        else:
            yield _drawn(row, columns, ids)
        settings += row.settings
        folded += row.entries if row.shown is None else 0
    if settings or folded:
        entries = [f"{many(folded, 'entry', 'entries')} in runs"] if folded else []
        hidden = ", ".join([*entries, *([many(settings, "setting")] if settings else [])])
        shown = f"hidden: {hidden}" if plain_words else f"… {settings + folded:,} hidden ({hidden})"
        yield _fit(line(Span(f"{shown}. Show: --full", "dim")), columns)


def _head(head: OutlineHead, full: bool) -> Line:
    has_cost = head.cost is not None or head.unpriced
    facts = (
        Span(visible_line(head.title or "") or NO_TITLE, "strong"),
        Span(visible_line(head.id) if full else short_id(head.id), "id"),
        Span(visible_line(head.project)),
        Span(visible_line(head.source)),
        Span(many(head.entries, "entry")),
        Span(many(head.branches, "branch", "branches")),
        Span(price(head.cost, head.unpriced, head.listed) if has_cost else ""),
    )
    known = [fact for fact in facts if fact.text]
    return line(*(piece for fact in known for piece in (Span("  "), fact)))[1:]


def _drawn(row: OutlineRow, columns: int | None, ids: bool) -> Line:
    lead = line(Span(row.lead, "dim"), Span(row.glyph, _STYLES.get(row.glyph, _quiet(row))), " ")
    if row.shown is None:
        return _fit((*lead, Span(_run(row), "dim")), columns)
    left = (*lead, *_words(row, row.shown, line_width(lead)))
    right = line(Span(_LEAF, "active") if row.is_leaf else "", Span(_id(row, columns, ids), "id"))
    if not right:
        return _fit(left, columns)
    if columns is None:
        return (*left, *(piece for span in right for piece in (Span("  "), span)))
    place = min(columns, _MAX_WIDTH) - (SHORT_ID if right[-1].style == "id" else 0) - (_NOTE if row.is_leaf else 0)
    if place < _TEXT:
        return _fit((*left, Span("  "), *right), columns)
    gap = Span(" " * (_NOTE - len(_LEAF)) if len(right) == 2 else "")
    return line(*padded(clipped(left, place - 2), place), right[0], gap, *right[1:])


def _quiet(row: OutlineRow) -> Style:
    return "plain" if row.is_active else "dim"


def _id(row: OutlineRow, columns: int | None, ids: bool) -> str:
    if not (ids or row.is_head or row.is_leaf or row.label):
        return ""
    return visible_line(row.id) if columns is None else short_id(row.id)


def _words(row: OutlineRow, shown: Shown, before: int) -> Line:
    """Return the author or the label of an entry, and its text."""
    level = f"(level {row.level}) " if row.branch and row.level > MAX_LEVELS else ""
    text = Span(level + _failing(shown) + visible_line(shown.headline), _quiet(row))
    if row.label:
        return line(Span(f"[{visible_line(row.label)}]", "label"), " ", text)
    name = "asst" if shown.who == "assistant" else who(shown)
    return (*padded(line(Span(name, style_of(shown))), max(_TEXT - before, width(name) + 2)), text)


def _failing(shown: Shown) -> str:
    """Return the word for the glyph of a failure, unless the text contains it."""
    text = shown.headline.lower()
    return "failed: " if shown.failed and "fail" not in text and "error" not in text else ""


def _run(row: OutlineRow) -> str:
    counts = row.counts
    parts = (
        many(row.entries, "entry") if row.entries else "",
        many(counts.tools, "tool") if counts and counts.tools else "",
        f"{counts.failed:,} failed" if counts and counts.failed else "",
        "" if row.entries else many(row.settings, "setting"),
    )
    return " · ".join(filter(None, parts))


def _spoken(row: OutlineRow) -> Iterator[Line]:
    """Yield a row in words: a line for the branch that it starts, and one for the row."""
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
    heading = Span(", ".join(filter(None, facts)) + ": ", style_of(shown))
    yield line(heading, visible_line(shown.headline), Span(ends, "id"))
