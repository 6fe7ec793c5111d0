"""A session as an HTML page: the exported file, and the parts that the live page asks for.

    html_page(transcript)                               a session as one HTML file that needs nothing else
    articles(tree, entries, wanted, labels, gaps)       some entries as HTML, by number
    entry_lines(entries, wanted)                        one line for each of some entries, by number

Rules:

- An exported file is written piece by piece, in one pass over the entries for each of its sections. Only the outline of all
  entries is held in memory.
- Up to `MAX_PLAIN` entries, the branch shown first is plain HTML, so that the browser's own search, print and anchors work
  without script; the other branches are in a `<template>`. Beyond that, the same fragments are stored as JSON, in chunks, and
  the script shows those near the current position.
- Stored text cannot run: the page's policy names the one script and the one style sheet by hash and forbids loading anything.
- Depth and colours are chosen by style sheet alone. Controls that need the script have the class `scripted`. Every action is a
  button (`data-action`), most have a key as well; `web/export.js` implements them.
- A part of the live page is made from the wanted entries and those at most `NEAR` entries away, for the calls that they make or
  answer. The same entries give the same answer whatever was asked before.
- The order of rows and everything else about the tree is decided by `render.outline`.
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

from sessile.core.digest import NO_TITLE
from sessile.core.kinds import MARKER, MARKERS
from sessile.core.tokens import reported
from sessile.core.tools import touched
from sessile.core.tree import NOWHERE, Node, Tree
from sessile.core.visible import visible
from sessile.render.html import (
    MAX_ANCHOR,
    Place,
    anchor_of,
    entry_html,
    escape_line,
    gap_html,
    language_of,
    moment_of,
)
from sessile.render.outline import (
    HIDDEN,
    MAX_LEVELS,
    EntryLine,
    OutlineRow,
    entry_line,
    page_outline,
    without_content,
)
from sessile.render.shown import DEPTHS, Call, Depth, Shown, Transcript, show
from sessile.render.wording import many

MAX_PLAIN = 8_000  # entries that a browser lays out in well under a second, each skipped until it is near
CHUNK = 100  # entries that the script decodes at once
NEAR = 64  # maximum number of entries between a call and its result
_FIRST_ENTRIES = 60  # entries of a chunked page that are there before its script runs
_FIRST_ROWS = 400  # rows of the tree that are there before the script runs
_MAX_GAPS = 20  # damaged places that are listed at the top

Entry = Mapping[str, Any]


def html_page(transcript: Transcript, *, max_plain: int = MAX_PLAIN) -> Iterator[str]:
    """Yield the file in pieces; beyond `max_plain` entries its entries are chunked."""
    outline = PageTree(transcript.entries, transcript.leaf, transcript.labels)
    page = _Page(transcript, outline)
    yield page.head()
    yield page.top()
    yield from page.main(in_chunks=len(outline.rows) > max_plain)
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
        title = escape_line(self._transcript.title or NO_TITLE)
        policy = content_security_policy(export_script(), asset("style.css"))
        return (
            f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<meta name="referrer" content="no-referrer">\n<meta name="color-scheme" content="light dark">\n'
            f'<link rel="icon" href="data:,">\n<title>{title}</title>\n<style>{asset("style.css")}</style>\n</head>\n<body>\n'
        )

    def top(self) -> str:
        title = self._transcript.title or NO_TITLE
        facts = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in self._facts())
        notes = "".join(f"<li>{note}</li>" for note in self._notes())
        note_list = f'<ul class="notes">{notes}</ul>\n' if notes else ""
        return (
            f'<a class="skip" href="#entries">Skip to the transcript</a>\n<header class="top">\n'
            f'<h1 dir="auto"{language_of(title)}>{escape_line(title)}</h1>\n<dl class="facts">{facts}</dl>\n'
            f"{note_list}</header>\n{_toolbar(self._transcript.depth)}"
            f'<div class="columns">\n<nav class="side" aria-label="Session tree"><details id="tree-fold" open>'
            f'<summary><h2>Tree</h2></summary><div class="tree-box" id="tree-box">'
            f'<div id="tree">{tree_html(self._outline, _FIRST_ROWS)}</div></div></details></nav>\n'
        )

    def _facts(self) -> Iterator[tuple[str, str]]:
        transcript, outline = self._transcript, self._outline
        yield "id", f"<code>{escape_line(transcript.id)}</code>"
        yield "project", f"<code>{escape_line(transcript.cwd) or 'unknown'}</code>"
        created = moment_of(transcript.created)
        yield "started", f"{created:%Y-%m-%d %H:%M} UTC" if created else "unknown"
        yield "entries", f"{len(outline.rows):,}"
        heads = len(outline.tree.heads())
        if heads > 1:
            yield "branches", f"{heads:,}"
        if outline.labels:
            yield "labels", f"{len(outline.labels):,}"

    def _notes(self) -> Iterator[str]:
        yield from map(escape_line, self._transcript.notes)
        gaps = self._transcript.gaps
        if gaps:
            places = ", ".join(self._gap_place(gap.after) for gap in islice(gaps, _MAX_GAPS))
            yield f"{many(len(gaps), 'place')} in the file could not be read: {places}"

    def _gap_place(self, after: str | None) -> str:
        number = self._outline.tree.number(after) if after is not None else None
        if number is None:
            return "at the beginning"
        return f'<a href="#{self._outline.anchors[number]}">after {escape_line(after or "")}</a>'

    # -- the entries

    def main(self, in_chunks: bool) -> Iterator[str]:
        path = self._outline.path
        first = path[:_FIRST_ENTRIES] if in_chunks else path
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
        rest = f" {many(hidden, 'entry')} in this file cannot be shown without JavaScript." if hidden else ""
        return f"JavaScript is off: this page shows {many(count, 'entry')}, without search and branches.{rest}"

    def _articles(self, wanted: Iterable[int]) -> Iterator[str]:
        """Yield the articles of some entries in file order."""
        wanted = frozenset(wanted)
        left = len(wanted)
        for entry in _show_numbered(enumerate(self._transcript.entries)):
            if entry.number in wanted:
                yield self._article(entry)
                left -= 1
            if not left:
                return

    def _article(self, entry: _NumberedEntry) -> str:
        outline, number, shown = self._outline, entry.number, entry.shown
        is_meant = shown.id is not None and outline.tree.number(shown.id) == number
        return entry_html(
            shown,
            anchor=outline.anchors[number],
            label=outline.labels.get(number),
            place=outline.place(number),
            gaps=self._gaps.get(shown.id, ()) if is_meant else (),
            call=entry.call,
            answered=outline.answered.get(number, ()),
        )

    def _chunks(self) -> Iterator[str]:
        """Yield blocks of `CHUNK` entries in file order; an entry that is not shown leaves an empty place."""
        chunk_articles: list[str] = []
        chunk = 0
        for entry in _show_numbered(enumerate(self._transcript.entries)):
            while entry.number // CHUNK > chunk:
                yield _chunk(chunk, chunk_articles)
                chunk_articles, chunk = [], chunk + 1
            chunk_articles += [""] * (entry.number % CHUNK - len(chunk_articles))
            chunk_articles.append(self._article(entry))
        yield _chunk(chunk, chunk_articles)

    def _columns(self, in_chunks: bool) -> dict[str, Any]:
        """Return what the script knows of all entries: the same columns as `/v1/view/outline`, in one part."""
        outline = self._outline
        total = len(outline.tree.nodes)
        lines = [entry_line(outline.rows[n]) if n in outline.rows else HIDDEN for n in range(total)]
        return {
            "from": 0,
            "total": total,
            "anchors": outline.anchors,
            "parents": outline.tree.parents,
            "marks": [line.mark for line in lines],
            "lines": [line.line for line in lines],
            "labels": {str(number): visible(label) for number, label in outline.labels.items()},
            "leaf": outline.leaf,
            "chunk": CHUNK if in_chunks else 0,
        }

    def end(self) -> str:
        return f'{_HELP}<script type="module">{export_script()}</script>\n</body>\n</html>\n'


def _chunk(number: int, chunk_articles: Sequence[str]) -> str:
    return f'<script type="application/json" id="chunk-{number}">{_json(chunk_articles)}</script>\n'


def _json(value: object) -> str:
    """Encode a value as JSON that cannot close the element that contains it."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


# -- the tree


class PageTree:
    """The tree of a session with a row for each entry, by the number of the entry in the file.

    The entries are read once. Of each, only what a row needs is kept. `rows` has no leaf markers.
    """

    def __init__(self, entries: Iterable[Entry], leaf: str | None, labels: Mapping[str, str]) -> None:
        nodes: list[Node] = []
        self.rows: dict[int, Shown] = {}
        pairs = _CallPairs()
        for entry in _show_numbered(enumerate(_noting_nodes(entries, nodes))):
            self.rows[entry.number] = without_content(entry.shown, entry.call)
            pairs.note(entry)
        self.tree = Tree(nodes)
        self.anchors = [anchor_at(self.tree, number) for number in range(len(nodes))]
        named = ((self.tree.number(entry_id), text) for entry_id, text in labels.items())
        self.labels = {number: text for number, text in named if number is not None}
        self.answered = pairs.answered(self.tree)
        forks = (children for n in range(NOWHERE, len(nodes)) if len(children := self.tree.children(n)) > 1)
        self._turns = {child: turn for children in forks for turn, child in enumerate(children)}
        self.leaf = self._leaf(leaf)
        self.path = self.tree.path(self.leaf) if self.leaf is not None else []

    def _leaf(self, leaf: str | None) -> int | None:
        """Return the entry whose branch is shown first: the given leaf, else the last entry."""
        number = self.tree.number(leaf) if leaf is not None else None
        if number is not None and number not in self.rows:
            number = self.tree.parents[number]  # a marker stands for its parent
        if number is None or number == NOWHERE:
            number = max(self.rows, default=None)
        return number

    def place(self, number: int) -> Place | None:
        """Return which branch of its fork an entry starts; `None` if it starts none."""
        turn = self._turns.get(number)
        return None if turn is None else place_at(self.tree, number, turn)

    def outline(self) -> Iterator[OutlineRow]:
        """Yield the rows of the tree from top to bottom."""
        return page_outline(self.tree, self.rows.__getitem__, leaf=self.leaf, labels=self.labels)


def _noting_nodes(entries: Iterable[Entry], nodes: list[Node]) -> Iterator[Entry]:
    """Yield the entries, adding a node of the tree for each."""
    for entry in entries:
        entry_id, parent_id = entry.get("id"), entry.get("parentId")
        if isinstance(entry_id, str) and entry_id:
            parent = parent_id if isinstance(parent_id, str) else None
        else:  # as in files of version 1, which are one chain; no file contains an id like this
            entry_id, parent = f"\0{len(nodes)}", nodes[-1].id if nodes else None
        nodes.append(Node(entry_id, parent, MARKER if _is_marker(entry) else 0))
        yield entry


_SIGNS = {"user": "○", "assistant": "●", "summary": "◆", "tool": "▸", "shell": "▸"}


def tree_html(outline: PageTree, max_rows: int | None = None) -> str:
    """Return the tree as a flat list with WAI-ARIA levels; beyond `max_rows` it says how many more rows there are."""
    rows = list(outline.outline())
    on_path = set(outline.path)
    # Several roots are branches without a fork above them: they are not indented.
    base = 1 if len(outline.tree.children(NOWHERE)) > 1 else 0
    items = "".join(_row_html(outline, row, row.level - base, row.number in on_path) for row in islice(rows, max_rows))
    tree = f'<ul role="tree" aria-label="Entries" class="tree">{items}</ul>'
    hidden = max(0, len(rows) - max_rows) if max_rows is not None else 0
    return tree + (f'<p class="more">… {hidden:,} more rows</p>' if hidden else "")


def _row_html(outline: PageTree, row: OutlineRow, level: int, is_shown: bool) -> str:
    starts = row.branch > 0
    aria_level = 2 * level + (0 if starts and level else 1)
    classes = f"row l{min(level, MAX_LEVELS)}{' first' if starts else ''}{' shown' if is_shown else ''}"
    here = ' aria-current="true"' if row.is_leaf else ""
    inside = _run_html(row) if row.shown is None else _entry_html(row, row.shown)
    link = f'<a href="#{outline.anchors[row.number]}" tabindex="-1">{inside}</a>'
    return f'<li role="treeitem" class="{classes}" aria-level="{aria_level}"{here}>{link}</li>'


def _run_html(row: OutlineRow) -> str:
    words = [many(row.entries, "entry")]
    if row.counts and row.counts.tools:
        words.append(many(row.counts.tools, "tool"))
    if row.counts and row.counts.failed:
        words.append(f"{row.counts.failed:,} failed")
    return f'<span class="run">~ {" · ".join(words)}</span>'


def _entry_html(row: OutlineRow, shown: Shown) -> str:
    sign = "✗" if shown.failed else "@" if row.is_leaf else _SIGNS.get(shown.who, "·")
    label = f'<span class="label">{escape_line(row.label)}</span> ' if row.label else ""
    line = f'<span class="line"{language_of(shown.headline)}>{escape_line(shown.headline)}</span>'
    failed = "failed " if shown.failed else ""
    who = f'<span class="unseen">{failed}{shown.who}: </span>'
    return f'<span class="sign" aria-hidden="true">{sign}</span>{who}{label}{line}'


# -- parts of the live page


def articles(
    tree: Tree,
    entries: Iterable[tuple[int, Entry]],
    wanted: Collection[int],
    labels: Mapping[int, str],
    gaps: Mapping[int, Sequence[str]],
) -> dict[int, str]:
    """Return articles by number: of the wanted ones among some entries in file order."""
    pairs = _CallPairs()
    found = {}
    for entry in _show_numbered(entries):
        pairs.note(entry)
        if entry.number in wanted:
            found[entry.number] = entry
    answered = pairs.answered(tree)
    return {
        number: entry_html(
            entry.shown,
            anchor=anchor_at(tree, number),
            label=labels.get(number),
            place=place_at(tree, number),
            gaps=gaps.get(number, ()),
            call=entry.call,
            answered=answered.get(number, ()),
        )
        for number, entry in found.items()
    }


def entry_lines(entries: Iterable[tuple[int, Entry]], wanted: Collection[int]) -> dict[int, EntryLine]:
    """Return lines by number: of the wanted ones among some entries in file order."""
    lines: dict[int, EntryLine] = {}
    tokens: dict[int, int | None] = {}

    def noting_tokens() -> Iterator[tuple[int, Entry]]:
        for number, entry in entries:
            message = entry.get("message")
            tokens[number] = reported(message) if isinstance(message, Mapping) else None
            yield number, entry

    for entry in _show_numbered(noting_tokens()):
        if entry.number in wanted:
            row = without_content(entry.shown, entry.call)
            lines[entry.number] = entry_line(row, tokens[entry.number])
    return lines


def near(wanted: Sequence[int], total: int, *, after: bool = True) -> list[int]:
    """Return the wanted numbers and the `NEAR` before each; with `after`, which articles need, also the `NEAR` after it."""
    found: list[int] = []
    for number in sorted(wanted):
        first = max(found[-1] + 1 if found else 0, number - NEAR)
        found.extend(range(first, min(total, number + (NEAR if after else 0) + 1)))
    return found


def may_be_near(raw: bytes) -> bool:
    """Return whether an entry, by its bytes, can make a call or answer one. Others do not affect entries near them."""
    return b'"toolCall"' in raw or b'"toolResult"' in raw


# -- entries, their anchors, and the calls that they answer

_ESCAPED = re.compile(r"\.(10[0-9a-f]{4}|[0-9a-f]{1,5})\.")
_MAX_DIGITS = 10  # a number with so many digits is larger than any file


class _NumberedEntry(NamedTuple):
    number: int  # in the file
    shown: Shown
    call: Call | None  # the call that it answers


def _is_marker(entry: Entry) -> bool:
    """Return whether an entry only stores the leaf."""
    return entry.get("type") == "custom" and entry.get("customType") in MARKERS


def _show_numbered(entries: Iterable[tuple[int, Entry]]) -> Iterator[_NumberedEntry]:
    """Yield entries, given in file order, as people see them, each with the call that it answers; without markers."""
    calls: dict[str, Call] = {}
    for number, entry in entries:
        if _is_marker(entry):
            continue
        shown = show(entry, calls)
        call = calls.get(shown.call_id or "")
        yield _NumberedEntry(number, shown, call)
        if call is not None:
            calls[call.id] = call._replace(arguments=None)  # all arguments of a session may not fit in memory
        for part in shown.parts:
            if isinstance(part, Call) and part.id:
                edits = any(file.how == "edit" for file in touched(part.name, part.arguments, shell=False))
                calls[part.id] = part if edits else part._replace(arguments=None)


class _CallPairs:
    """The calls that entries make and the entries that answer them, noted in file order."""

    def __init__(self) -> None:
        self._callers: dict[str, int] = {}  # the entry that makes a call, by the id of the call
        self._pairs: list[tuple[int, int, str]] = []  # the entry of a call, the entry of its result, the id of the call

    def note(self, entry: _NumberedEntry) -> None:
        shown, number = entry.shown, entry.number
        if shown.call_id in self._callers:
            self._pairs.append((self._callers[shown.call_id], number, shown.call_id))
        self._callers.update((part.id, number) for part in shown.parts if isinstance(part, Call) and part.id)

    def answered(self, tree: Tree) -> dict[int, set[str]]:
        """Return, for each entry, its calls whose result is on every branch that goes through it."""
        answered: dict[int, set[str]] = {}
        for caller, result, call_id in self._pairs:
            number = tree.parents[result]
            for _ in range(NEAR):
                if number == NOWHERE or len(tree.children(number)) != 1:
                    break
                if number == caller:
                    answered.setdefault(caller, set()).add(call_id)
                    break
                number = tree.parents[number]
        return answered


def anchor_at(tree: Tree, number: int) -> str:
    """Return the anchor of an entry; those with the same id, or one that had to be cut, get their number appended."""
    entry_id = tree.nodes[number].id
    is_meant = tree.number(entry_id) == number and len(entry_id) <= MAX_ANCHOR
    return anchor_of(entry_id) if is_meant else f"{anchor_of(entry_id)}:{number}"


def number_at(tree: Tree, anchor: str) -> int | None:
    """Return the number of the entry with an anchor; `None` if there is none."""
    plain, colon, number = anchor.removeprefix("e-").rpartition(":")
    if colon and number.isdecimal() and len(number) < _MAX_DIGITS:
        found: int | None = int(number) if int(number) < len(tree.nodes) else None
    else:
        found = tree.number(_ESCAPED.sub(lambda match: chr(int(match[1], 16)), plain if colon else number))
    return found if found is not None and anchor_at(tree, found) == anchor else None


def place_at(tree: Tree, number: int, turn: int | None = None) -> Place | None:
    """Return which branch of its fork an entry starts, or `None`; `turn` is its index there, if known."""
    beside = tree.children(tree.parents[number])
    if len(beside) < 2:
        return None
    turn = beside.index(number) if turn is None else turn
    previous = anchor_at(tree, beside[turn - 1]) if turn else None
    following = anchor_at(tree, beside[turn + 1]) if turn + 1 < len(beside) else None
    return Place(turn + 1, len(beside), previous, following)


# -- controls

_THEMES = ("system", "light", "dark")


def _toolbar(depth: Depth) -> str:
    """Return the bar at the top; `depth` is selected."""
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
    choices = _choices("depth", "Depth", DEPTHS, depth) + _choices("theme", "Theme", _THEMES, "system")
    return f'{choices}<div class="bar" role="region" aria-label="Tools">{"".join(groups)}</div>\n'


def _choices(group: str, name: str, values: Sequence[str], chosen: str) -> str:
    """Return radio buttons. They come before everything that they change, so that sibling selectors reach it."""
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


_HITS = _button("hit-previous", "↑", "Previous match") + _button("hit-next", "↓", "Next match")
_PROMPTS = (
    _button("prompt-previous", "↑", "Previous prompt")
    + '<span aria-hidden="true">prompt</span>'
    + _button("prompt-next", "↓", "Next prompt")
)
_OTHERS = _button("print", "print", "Print this branch") + _button("help-open", "?", "Help and keyboard shortcuts")

_KEYS = (
    ("j", "entry-next", "next entry"),
    ("k", "entry-previous", "previous entry"),
    ("J", "prompt-next", "next prompt"),
    ("K", "prompt-previous", "previous prompt"),
    ("}", "fork-next", "next fork"),
    ("{", "fork-previous", "previous fork"),
    ("[", "branch-previous", "previous branch at this fork"),
    ("]", "branch-next", "next branch at this fork"),
    ("g", "first", "first entry"),
    ("G", "last", "last entry"),
    ("/", "search", "search all branches"),
    ("n", "hit-next", "next match"),
    ("N", "hit-previous", "previous match"),
    ("o", "open-all", "expand or collapse everything on screen"),
    ("t", "tree", "show or hide the tree"),
    ("?", "help-open", "show this help"),
)

_HELP = (
    '<dialog id="help" aria-labelledby="help-name"><h2 id="help-name">Keyboard shortcuts</h2><table>'
    + "".join(
        f'<tr><td><kbd>{key}</kbd></td><td><button type="button" data-action="{action}">{name}</button></td></tr>'
        for key, action, name in _KEYS
    )
    + "</table><p>Times are in UTC. The # link of an entry opens the branch that contains it.</p>"
    '<button type="button" data-action="help-close">close</button></dialog>\n'
)


# -- assets

# The script of an exported file, in the order of its imports. The first three are modules of the live page.
_SCRIPT = ("page/dom.js", "page/session/outline.js", "page/session/tree.js", "export.js")
_NOT_INLINED = re.compile(r"^import .*\n|^[ \t]*//.*\n|^[ \t]*/\*(?:(?!\*/)(?s:.))*\*/[ \t]*\n", re.MULTILINE)


@lru_cache(maxsize=8)
def asset(name: str) -> str:
    """Return a file of the page as it is in the package."""
    return files("sessile").joinpath("web", name).read_text("utf-8")


@lru_cache(maxsize=1)
def export_script() -> str:
    """Return the modules of an exported file as one, without imports and comment lines."""
    return "".join(_NOT_INLINED.sub("", asset(name)) for name in _SCRIPT)


@lru_cache(maxsize=4)
def content_security_policy(script: str, style: str) -> str:
    """Return the policy of a page that has one script and one style sheet, and may load nothing."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types sessile"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
