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
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import islice
from typing import Any

import msgspec

from sessile.core.transcript import Transcript
from sessile.core.visible import visible
from sessile.render.controls import HELP, TREE_FILTER, toolbar
from sessile.render.fragments import entry_html, gap_html, moment_of
from sessile.render.markup import escape_line, language_of
from sessile.render.page_tree import PageTree, Seen, mark_of, seen_entries
from sessile.render.tree_html import tree_html

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
