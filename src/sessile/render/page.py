"""A session as one HTML file that needs nothing else: no network, no server, no script to be read.

Rules:

- The page is made piece by piece, in as many passes over the entries as it has sections; of all entries at once only the
  outline is held.
- Up to `WHOLE` entries, those of the branch that is shown first are plain HTML, so that the browser's own search, print and
  anchors work without script; the other branches wait in a `<template>`. Beyond, the same fragments lie in the file as JSON,
  in chunks, and the script shows those around what is looked at.
- Nothing stored can run: the policy in the page names the one script and the one style sheet by hash, and lets nothing be
  loaded. There is no unsafe inline anything.

It does not know where the transcript comes from, nor what was redacted in it; it repeats what the notes say.

What a page is worked with: search, depth, colours, jumps, the filter of its tree, and the help that lists every key.

Rules: every action is a button with a name (`data-action`), most are a key as well; `web/export.js` knows what they do. What
needs that script has the class `scripted`, and is not there without it: depth and colours are chosen by style sheet alone.

Some entries of a session for a page that asks for them as they are looked at: articles, and rows of the outline.

    articles(tree, entries, wanted, labels, gaps)       by number: the same articles as in an export
    outline_rows(entries, wanted)                       by number: what an outline tells of each

Rules: the tree of all entries is known, and of their bodies only those that are near: the wanted ones, and what those call or
answer, up to `NEAR` entries away. The same entries give the same answers, whatever else was asked before.

It does not know where entries come from, nor what is shown of them at once.

What a page knows of all entries of a session before it shows one: the tree, one line each, and what answers what.

Rules: entries are gone through once, and only what a row of the tree needs is kept of each. The order is that of the tree,
depth first, children in file order; the level of an entry grows only where it branches. Everything is iterative.

It does not know markup, except for the anchors that rows and entries share.

The tree of a session as HTML: indented only where it branches, with straight runs of entries told in one row.

    ○ user      Add retry with backoff to the webhook sender
    ~ 3 entries · 2 tools
    ├ ○ user    Let's try approach A
      ~ 3 entries · 2 tools · 1 failed

Rules: rows are a flat list with WAI-ARIA levels, so that depth costs nothing. A row stands for a prompt, a summary, a label, a
place where it branches, the begin or the head of a branch; what lies between is a run. The same rows are made by
`web/export.js` for the other filters that it offers.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from sessile.core.kinds import MARKER, MARKERS
from sessile.core.tokens import reported
from sessile.core.tree import NOWHERE, Node, Tree
from sessile.core.visible import visible, visible_line
from sessile.render.html import (
    LONGEST_ANCHOR,
    Place,
    anchor_of,
    entry_html,
    escape_line,
    gap_html,
    language_of,
    moment_of,
)
from sessile.render.shown import DEPTHS, Call, Depth, Shown, Transcript, Who, show

# --- controls

_THEMES = ("system", "light", "dark")


def toolbar(depth: Depth) -> str:
    """The bar at the top, with the depth that is shown first."""
    search = (
        '<input id="query" type="search" placeholder="Search all branches  /" aria-label="Search all branches" '
        'autocomplete="off" spellcheck="false"><output id="hits" for="query"></output>'
    )
    groups = (
        f'<form class="find scripted" role="search">{search}{_HITS}</form>',
        _labels("depth", DEPTHS),
        f'<span class="scripted jumps">{_PROMPTS}</span>',
        '<span class="gone scripted" id="gone"></span>',
        _labels("theme", _THEMES),
        f'<span class="scripted">{_OTHERS}</span>',
    )
    choices = _choices("depth", "Depth", DEPTHS, depth) + _choices("theme", "Colours", _THEMES, "system")
    return f'{choices}<div class="bar" role="region" aria-label="Tools">{"".join(groups)}</div>\n'


def _choices(group: str, name: str, values: Sequence[str], chosen: str) -> str:
    """The choices themselves stand before all that they change, so that plain sibling selectors reach it."""
    inputs = (
        f'<input class="chooser" type="radio" name="{group}" id="{group}-{value}" value="{value}" '
        f'aria-label="{name}: {value}"{" checked" if value == chosen else ""}>\n'
        for value in values
    )
    return "".join(inputs)


def _labels(group: str, values: Sequence[str]) -> str:
    labels = "".join(f'<label for="{group}-{value}">{value}</label>' for value in values)
    return f'<span class="choice {group}">{labels}</span>'


def _button(action: str, sign: str, name: str) -> str:
    return f'<button type="button" data-action="{action}" aria-label="{name}" title="{name}">{sign}</button>'


_HITS = _button("hit-previous", "↑", "Previous hit") + _button("hit-next", "↓", "Next hit")
_PROMPTS = (
    _button("prompt-previous", "↑", "Previous prompt")
    + '<span aria-hidden="true">prompt</span>'
    + _button("prompt-next", "↓", "Next prompt")
)
_OTHERS = _button("print", "print", "Print this branch") + _button("help-open", "?", "Help and keys")

TREE_FILTER = (
    '<p class="filter scripted"><label for="filter">show</label> <select id="filter"></select> '
    '<button type="button" data-action="fold-all">fold</button> '
    '<button type="button" data-action="unfold-all">unfold</button></p>'
)
"""What the tree shows; the script fills in the choices, with how many entries each has."""

_KEYS = (
    ("j", "entry-next", "next entry"),
    ("k", "entry-previous", "previous entry"),
    ("J", "prompt-next", "next prompt"),
    ("K", "prompt-previous", "previous prompt"),
    ("}", "fork-next", "next fork"),
    ("{", "fork-previous", "previous fork"),
    ("[", "branch-previous", "branch before, at this fork"),
    ("]", "branch-next", "branch after, at this fork"),
    ("g", "first", "first entry"),
    ("G", "last", "last entry"),
    ("/", "search", "search in all branches"),
    ("n", "hit-next", "next hit"),
    ("N", "hit-previous", "previous hit"),
    ("o", "open-all", "open or fold what is on the screen"),
    ("t", "tree", "show or hide the tree"),
    ("?", "help-open", "this help"),
)

HELP = (
    '<dialog id="help" aria-labelledby="help-name"><h2 id="help-name">Keys</h2><table>'
    + "".join(
        f'<tr><td><kbd>{key}</kbd></td><td><button type="button" data-action="{action}">{name}</button></td></tr>'
        for key, action, name in _KEYS
    )
    + "</table><p>Times are in UTC. Each entry has a link, #, that opens its branch.</p>"
    '<button type="button" data-action="help-close">close</button></dialog>\n'
)
"""Every key, with a button that does the same."""


# --- page tree

_LINE = 100  # characters of a row: more than fits beside a transcript
NEAR = 64  # entries between a call and its result, at most

_WHO: tuple[Who, ...] = ("user", "assistant", "system", "tool", "shell", "summary", "setting", "note")
_FAILED = 1 << 5
_ESCAPED = re.compile(r"\.(10[0-9a-f]{4}|[0-9a-f]{1,5})\.")
_DIGITS = 10  # of a number that is surely too large


class Row(NamedTuple):
    """What the tree shows of an entry."""

    who: Who
    line: str
    depth: Depth
    failed: bool


class Seen(NamedTuple):
    """An entry on its way to the page."""

    number: int  # in the file
    shown: Shown
    call: Call | None  # that it answers


def is_marker(entry: Mapping[str, Any]) -> bool:
    """Whether an entry only stores the leaf: it is nobody's words."""
    return entry.get("type") == "custom" and entry.get("customType") in MARKERS


def seen_entries(entries: Iterable[Mapping[str, Any]]) -> Iterator[Seen]:
    """Entries in file order as people see them, each with the call that it answers; markers are left out."""
    return seen_numbered(enumerate(entries))


def seen_numbered(entries: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[Seen]:
    """The same of entries that know their numbers; calls are those of the entries that are given."""
    calls: dict[str, Call] = {}
    for number, entry in entries:
        if is_marker(entry):
            continue
        shown = show(entry, calls)
        yield Seen(number, shown, calls.get(shown.call_id or ""))
        for part in shown.parts:
            if isinstance(part, Call) and part.id:
                calls[part.id] = part._replace(arguments=_path_of(part.arguments))


def _path_of(arguments: object) -> dict[str, Any]:
    """Of what a call was given, what its result is told with: a session's worth of arguments need not fit in memory."""
    path = arguments.get("path") if isinstance(arguments, dict) else None
    return {"path": path} if isinstance(path, str) else {}


class Pairs:
    """The calls of entries and the entries that answer them, noted in file order."""

    def __init__(self) -> None:
        self._made: dict[str, int] = {}  # by the id of a call: the entry that makes it
        self._pairs: list[tuple[int, int, str]] = []  # the entry of a call, that of its result, the id of the call

    def note(self, seen: Seen) -> None:
        """Note what an entry calls and answers."""
        shown, number = seen.shown, seen.number
        if shown.call_id in self._made:
            self._pairs.append((self._made[shown.call_id], number, shown.call_id))
        self._made.update((part.id, number) for part in shown.parts if isinstance(part, Call) and part.id)

    def answered(self, tree: Tree) -> dict[int, set[str]]:
        """The calls of each entry whose result is on every branch that goes through it."""
        answered: dict[int, set[str]] = {}
        for maker, result, call_id in self._pairs:
            number = tree.parents[result]
            for _ in range(NEAR):
                if number == NOWHERE or len(tree.children(number)) != 1:
                    break
                if number == maker:
                    answered.setdefault(maker, set()).add(call_id)
                    break
                number = tree.parents[number]
        return answered


def row_of(seen: Seen) -> Row:
    """What the tree shows of an entry."""
    shown = seen.shown
    return Row(shown.who, _line(shown, seen.call), shown.depth, shown.failed)


def mark_of(row: Row) -> int:
    """All of a row but its line as one number: who in three bits, the depth in two, whether it failed."""
    return _WHO.index(row.who) | DEPTHS.index(row.depth) << 3 | (_FAILED if row.failed else 0)


def anchor_at(tree: Tree, number: int) -> str:
    """The anchor of an entry; entries with the same id, or one that had to be cut, are told apart by their number."""
    entry_id = tree.nodes[number].id
    is_meant = tree.number(entry_id) == number and len(entry_id) <= LONGEST_ANCHOR
    return anchor_of(entry_id) if is_meant else f"{anchor_of(entry_id)}:{number}"


def number_at(tree: Tree, anchor: str) -> int | None:
    """The entry that has an anchor; `None` if there is none."""
    plain, colon, number = anchor.removeprefix("e-").rpartition(":")
    if colon and number.isdecimal() and len(number) < _DIGITS:
        found: int | None = int(number) if int(number) < len(tree.nodes) else None
    else:
        found = tree.number(_ESCAPED.sub(lambda match: chr(int(match[1], 16)), plain if colon else number))
    return found if found is not None and anchor_at(tree, found) == anchor else None


def place_at(tree: Tree, number: int, turn: int | None = None) -> Place | None:
    """Which of the branches that part here an entry begins; `None` if it begins none. `turn` is that, if it is known."""
    beside = tree.children(tree.parents[number])
    if len(beside) < 2:
        return None
    turn = beside.index(number) if turn is None else turn
    previous = anchor_at(tree, beside[turn - 1]) if turn else None
    following = anchor_at(tree, beside[turn + 1]) if turn + 1 < len(beside) else None
    return Place(turn + 1, len(beside), previous, following)


class PageTree:
    """The tree of a session with a row for each entry, addressed by the number of the entry in the file."""

    def __init__(self, entries: Iterable[Mapping[str, Any]], leaf: str | None, labels: Mapping[str, str]) -> None:
        nodes: list[Node] = []
        self.rows: dict[int, Row] = {}
        pairs = Pairs()
        for seen in seen_entries(_counted(entries, nodes)):
            self.rows[seen.number] = row_of(seen)
            pairs.note(seen)
        self.tree = Tree(nodes)
        self.anchors = [anchor_at(self.tree, number) for number in range(len(nodes))]
        named = ((self.tree.number(entry_id), text) for entry_id, text in labels.items())
        self.labels = {number: text for number, text in named if number is not None}
        self.answered = pairs.answered(self.tree)
        self.order: list[int] = []
        self.levels: dict[int, int] = {}
        self._turns: dict[int, int] = {}  # of an entry that begins a branch: which one
        self._put_in_order()
        self.leaf = self._leaf(leaf)
        self.path = self.tree.path(self.leaf) if self.leaf is not None else []

    def _put_in_order(self) -> None:
        waiting: list[tuple[int, int]] = []
        number, level = NOWHERE, 0
        while True:
            children = self.tree.children(number)
            if len(children) > 1:
                self._turns.update((child, turn) for turn, child in enumerate(children))
                level += number != NOWHERE
            waiting.extend((child, level) for child in reversed(children))
            if not waiting:
                return
            number, level = waiting.pop()
            self.order.append(number)
            self.levels[number] = level

    def _leaf(self, leaf: str | None) -> int | None:
        """The entry whose branch is shown first: the leaf that was asked for, else the last entry."""
        number = self.tree.number(leaf) if leaf is not None else None
        if number is not None and number not in self.rows:
            number = self.tree.parents[number]  # a marker means what it hangs from
        if number is None or number == NOWHERE:
            number = max(self.rows, default=None)
        return number

    def begins_branch(self, number: int) -> bool:
        """Whether a branch begins with an entry."""
        return number in self._turns

    def place(self, number: int) -> Place | None:
        """Which of the branches that part here an entry begins; `None` if it begins none."""
        turn = self._turns.get(number)
        return None if turn is None else place_at(self.tree, number, turn)


def _counted(entries: Iterable[Mapping[str, Any]], nodes: list[Node]) -> Iterator[Mapping[str, Any]]:
    """The entries, noting on the way how they hang together."""
    for entry in entries:
        entry_id, parent_id = entry.get("id"), entry.get("parentId")
        if isinstance(entry_id, str) and entry_id:
            parent = parent_id if isinstance(parent_id, str) else None
        else:  # as in files of version 1, which are one chain; no file holds an id like this
            entry_id, parent = f"\0{len(nodes)}", nodes[-1].id if nodes else None
        nodes.append(Node(entry_id, parent, MARKER if is_marker(entry) else 0))
        yield entry


def _line(shown: Shown, call: Call | None) -> str:
    line = call.summary if call and call.summary else shown.headline
    named = shown.who in ("tool", "shell", "note", "summary") and shown.name != line
    return visible_line(f"{shown.name} · {line}" if named else line)[:_LINE]


# --- tree html

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


# --- page

WHOLE = 8_000  # entries that a browser lays out in well under a second, each skipped until it is near
CHUNK = 100  # entries that are decoded at once
_FIRST = 60  # entries of a chunked page that are there before its script is
_ROWS = 400  # rows of the tree that are there before the script is


def html_page(transcript: Transcript, *, whole: int = WHOLE) -> Iterator[str]:
    """The file, in pieces; the plain form up to `whole` entries."""
    outline = PageTree(transcript.entries, transcript.leaf, transcript.labels)
    page = _Page(transcript, outline)
    yield page.head()
    yield page.top()
    yield from page.main(in_chunks=len(outline.rows) > whole)
    yield page.end()


class _Page:
    def __init__(self, transcript: Transcript, outline: PageTree) -> None:
        self._transcript = transcript
        self._outline = outline
        self._gaps: dict[str | None, list[str]] = {}
        known = {node.id for node in outline.tree.nodes}
        for gap in transcript.gaps:
            self._gaps.setdefault(gap.after if gap.after in known else None, []).append(gap.message)

    # -- around the entries

    def head(self) -> str:
        title = escape_line(self._transcript.title or f"Session {self._transcript.id}")
        policy = content_security_policy(asset("export.js"), asset("style.css"))
        return (
            f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<meta name="referrer" content="no-referrer">\n<meta name="color-scheme" content="light dark">\n'
            f'<link rel="icon" href="data:,">\n<title>{title}</title>\n<style>{asset("style.css")}</style>\n</head>\n<body>\n'
        )

    def top(self) -> str:
        title = self._transcript.title or "Untitled session"
        facts = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in self._facts())
        notes = "".join(f"<li>{note}</li>" for note in self._notes())
        told = f'<ul class="notes">{notes}</ul>\n' if notes else ""
        return (
            f'<a class="skip" href="#entries">Skip to the transcript</a>\n<header class="top">\n'
            f'<h1 dir="auto"{language_of(title)}>{escape_line(title)}</h1>\n<dl class="facts">{facts}</dl>\n'
            f"{told}</header>\n{toolbar(self._transcript.depth)}"
            f'<div class="columns">\n<nav class="side" aria-label="Tree of the session"><details id="tree-box" open>'
            f"<summary><h2>Tree</h2></summary>{TREE_FILTER}"
            f'<div id="tree">{tree_html(self._outline, _ROWS)}</div></details></nav>\n'
        )

    def _facts(self) -> Iterator[tuple[str, str]]:
        transcript, outline = self._transcript, self._outline
        yield "id", f"<code>{escape_line(transcript.id)}</code>"
        yield "project", f"<code>{escape_line(transcript.cwd) or 'unknown'}</code>"
        begun = moment_of(transcript.created)
        yield "begun", f"{begun:%Y-%m-%d %H:%M} UTC" if begun else "unknown"
        yield "entries", f"{len(outline.rows):,}"
        heads = len(outline.tree.heads())
        if heads > 1:
            yield "branches", f"{heads:,}"
        if outline.labels:
            yield "labels", f"{len(outline.labels):,}"

    def _notes(self) -> Iterator[str]:
        yield from map(escape_line, self._transcript.notes)
        if self._transcript.gaps:
            count = len(self._transcript.gaps)
            places = ", ".join(self._gap_place(gap.after) for gap in islice(self._transcript.gaps, 20))
            yield f"{count:,} {'place' if count == 1 else 'places'} of the file could not be read: {places}"

    def _gap_place(self, after: str | None) -> str:
        number = self._outline.tree.number(after) if after is not None else None
        if number is None:
            return "at the beginning"
        return f'<a href="#{self._outline.anchors[number]}">behind {escape_line(after or "")}</a>'

    # -- the entries

    def main(self, in_chunks: bool) -> Iterator[str]:
        path = self._outline.path
        first = path[:_FIRST] if in_chunks else path
        yield '<main id="transcript">\n<h2 class="unseen">Transcript</h2>\n'
        yield f'<noscript><p class="note">{self._without_script(len(first))}</p></noscript>\n'
        yield "".join(map(gap_html, self._gaps.get(None, ())))
        yield '<div id="before"></div><div id="entries" tabindex="-1">\n'
        yield from self._articles(set(first))
        yield '</div><div id="after"></div>\n</main>\n</div>\n'
        yield '<div id="status" role="status" class="unseen"></div>\n'
        if in_chunks:
            yield from self._chunks()
        elif len(path) < len(self._outline.rows):
            yield '<template id="others">\n'
            yield from self._articles(self._outline.rows.keys() - set(path))
            yield "</template>\n"
        yield f'<script type="application/json" id="outline">{_json(self._columns(in_chunks))}</script>\n'

    def _without_script(self, count: int) -> str:
        hidden = len(self._outline.rows) - count
        rest = f" {hidden:,} entries are not shown: they are in this file, and need its script." if hidden else ""
        return f"Without its script this page shows {count:,} entries, without search and branches.{rest}"

    def _articles(self, wanted: Iterable[int]) -> Iterator[str]:
        """The articles of some entries in file order."""
        wanted = frozenset(wanted)
        left = len(wanted)
        for seen in seen_entries(self._transcript.entries):
            if seen.number in wanted:
                yield self._article(seen)
                left -= 1
            if not left:
                return

    def _article(self, seen: Seen) -> str:
        outline, number = self._outline, seen.number
        is_meant = seen.shown.id is not None and outline.tree.number(seen.shown.id) == number
        return entry_html(
            seen.shown,
            anchor=outline.anchors[number],
            label=outline.labels.get(number),
            place=outline.place(number),
            gaps=self._gaps.get(seen.shown.id, ()) if is_meant else (),
            call=seen.call,
            answered=outline.answered.get(number, ()),
        )

    def _chunks(self) -> Iterator[str]:
        """All entries in file order, so many in a block; entries that are not shown leave an empty place."""
        articles: list[str] = []
        chunk = 0
        for seen in seen_entries(self._transcript.entries):
            while seen.number // CHUNK > chunk:
                yield _chunk(chunk, articles)
                articles, chunk = [], chunk + 1
            articles += [""] * (seen.number % CHUNK - len(articles))
            articles.append(self._article(seen))
        yield _chunk(chunk, articles)

    def _columns(self, in_chunks: bool) -> dict[str, Any]:
        """What the script knows of all entries: one column a fact, in file order; no row for a marker."""
        outline = self._outline
        numbers = range(len(outline.tree.nodes))
        rows = [outline.rows.get(number) for number in numbers]
        return {
            "anchors": outline.anchors,
            "parents": outline.tree.parents,
            "marks": [mark_of(row) if row else 0 for row in rows],
            "lines": [row.line if row else "" for row in rows],
            "order": outline.order,
            "levels": [outline.levels[number] for number in outline.order],
            "labels": {str(number): visible(label) for number, label in outline.labels.items()},
            "leaf": outline.leaf,
            "chunk": CHUNK if in_chunks else 0,
        }

    def end(self) -> str:
        return f"{HELP}<script>{asset('export.js')}</script>\n</body>\n</html>\n"


def _chunk(number: int, articles: Sequence[str]) -> str:
    return f'<script type="application/json" id="chunk-{number}">{_json(articles)}</script>\n'


def _json(value: object) -> str:
    """JSON that cannot end the element that it stands in."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


# -- what the page is made with


@lru_cache(maxsize=4)
def asset(name: str) -> str:
    """A file of the page, as it is in the package."""
    return files("sessile").joinpath("web", name).read_text("utf-8")


@lru_cache(maxsize=4)
def content_security_policy(script: str, style: str) -> str:
    """The policy of a page that holds one script and one style sheet, and may load nothing."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types sessile"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


# --- page chunk

Entry = Mapping[str, Any]


class OutlineRow(NamedTuple):
    """What an outline tells of an entry; `tokens` is how large the context was after an answer, `None` if nobody said."""

    mark: int
    line: str
    tokens: int | None


UNSEEN = OutlineRow(1 << 6, "", None)
"""The row of what nobody sees."""


def near(wanted: Sequence[int], total: int, *, behind: bool = True) -> list[int]:
    """The numbers of entries to know: those wanted, `NEAR` before each, and as many behind it where articles are made."""
    found: list[int] = []
    for number in sorted(wanted):
        first = max(found[-1] + 1 if found else 0, number - NEAR)
        found.extend(range(first, min(total, number + (NEAR if behind else 0) + 1)))
    return found


def may_be_near(raw: bytes) -> bool:
    """Whether an entry, by its bytes, can call something or answer a call: others say nothing about their neighbours."""
    return b'"toolCall"' in raw or b'"toolResult"' in raw


def articles(
    tree: Tree,
    entries: Iterable[tuple[int, Entry]],
    wanted: Collection[int],
    labels: Mapping[int, str],
    gaps: Mapping[int, Sequence[str]],
) -> dict[int, str]:
    """The articles of the wanted ones of some entries in file order, by number."""
    pairs = Pairs()
    found = {}
    for seen in seen_numbered(entries):
        pairs.note(seen)
        if seen.number in wanted:
            found[seen.number] = seen
    answered = pairs.answered(tree)
    return {
        number: entry_html(
            seen.shown,
            anchor=anchor_at(tree, number),
            label=labels.get(number),
            place=place_at(tree, number),
            gaps=gaps.get(number, ()),
            call=seen.call,
            answered=answered.get(number, ()),
        )
        for number, seen in found.items()
    }


def outline_rows(entries: Iterable[tuple[int, Entry]], wanted: Collection[int]) -> dict[int, OutlineRow]:
    """What an outline tells of the wanted ones of some entries in file order, by number."""
    rows: dict[int, OutlineRow] = {}
    tokens: dict[int, int | None] = {}

    def weighed() -> Iterator[tuple[int, Entry]]:
        for number, entry in entries:
            message = entry.get("message")
            tokens[number] = reported(message) if isinstance(message, Mapping) else None
            yield number, entry

    for seen in seen_numbered(weighed()):
        if seen.number in wanted:
            row = row_of(seen)
            rows[seen.number] = OutlineRow(mark_of(row), row.line, tokens[seen.number])
    return rows
