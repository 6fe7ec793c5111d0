"""Prose at a terminal: Markdown of users and models, rendered with rich.

Rules:

- The text is made visible before it comes here, so that it cannot contain control characters. The parser decodes no
  entities, which could bring them back, and `Output` checks every line once more.
- No text is dropped: HTML and link definitions are shown as they are, URLs stand behind links, line breaks stay.
- Text that does not fit into the columns, or is too long or too deeply nested, is shown as it is.
- Stored text is never interpreted as rich markup, and there are no terminal hyperlinks.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich import box
from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, HorizontalRule, Markdown, MarkdownElement, TableElement
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.table import Table
from rich.theme import Theme

from sessile.render.styled import Line, Span, line, wrapped, wrapped_line

_MAX_LENGTH = 100_000  # characters; longer texts take too long to parse
_MAX_DEPTH = 60  # nested blocks; deeper ones would not fit anyway
_INDENT = 4  # columns of a level of a list or quotation, without the digits of a number
_MIN_COLUMNS = 20  # of the innermost block
_MIN_CELL = 6  # columns of a table's cell, with its border
_CODE_THEME = "ansi_dark"  # the colours of the terminal, without a background
_SGR = re.compile(r"\x1b\[([\d;]*)m")
_THEME = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold underline",
        "markdown.h3": "bold",
        "markdown.h4": "bold italic",
        "markdown.h5": "italic",
        "markdown.h6": "italic dim",
        "markdown.code": "cyan",
        "markdown.code_block": "none",
        "markdown.block_quote": "dim",
        "markdown.item.bullet": "yellow",
        "markdown.item.number": "yellow",
        "markdown.link": "underline",
        "markdown.link_url": "blue",
        "markdown.hr": "dim",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)


def prose_lines(text: str, columns: int) -> Iterator[Line]:
    """Render a visible Markdown text in so many columns."""
    tokens = _parse(text, columns)
    if tokens is None:
        return (line(Span(each)) for each in wrapped(text, columns))
    console = _console(columns)
    segments = console.render_lines(_Prose(tokens), console.options, pad=False)
    # rich and `core.visible` disagree about the width of some characters.
    return _trimmed(piece for each in segments for piece in wrapped_line(_line(each), columns))


def _parse(text: str, columns: int) -> list[Token] | None:
    """Return the tokens of a text; `None` if it must be shown as it is."""
    if len(text) > _MAX_LENGTH:
        return None
    try:
        tokens = _parser().parse(text)
    except RecursionError:
        return None
    return list(map(_literal, tokens)) if _fits(tokens, columns) else None


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    # Beyond its depth the parser drops text, so the limit is higher than what `_fits` accepts.
    parser = MarkdownIt("commonmark", {"maxNesting": 2 * _MAX_DEPTH}).enable(["strikethrough", "table"])
    return parser.disable(["html_block", "html_inline", "reference", "entity"])


def _fits(tokens: Iterable[Token], columns: int) -> bool:
    """Return whether lists, quotations and tables leave room for their text."""
    indents: list[int] = []
    cells = 0
    for token in tokens:
        if token.type in ("bullet_list_open", "ordered_list_open", "blockquote_open"):
            indents.append(_INDENT + len(str(token.attrs.get("start", ""))))
        elif token.type in ("bullet_list_close", "ordered_list_close", "blockquote_close"):
            indents.pop()
        elif token.type == "th_open":
            cells += 1
        room = columns - sum(indents)
        if room < max(_MIN_COLUMNS, cells * _MIN_CELL) or token.level > _MAX_DEPTH:
            return False
        if token.type == "thead_close":
            cells = 0
    return True


def _literal(token: Token) -> Token:
    """Keep line breaks, and replace images and bare URLs by text."""
    if token.children:
        token.children = list(_inline(token.children))
    return token


def _inline(tokens: list[Token]) -> Iterator[Token]:
    bare = False
    for number, token in enumerate(tokens):
        if token.type == "softbreak":
            yield Token("hardbreak", "br", 0)
        elif token.type == "image":
            yield Token("text", "", 0, content=f"image: {token.content} ({token.attrs.get('src', '')})")
        elif token.type == "link_open" and tokens[number + 1].content in (token.attrs.get("href"), token.markup):
            bare = True  # the URL is its own text
        elif token.type == "link_close" and bare:
            bare = False
        else:
            yield token


# -- rich


class _Heading(Heading):
    """A heading at the left, whatever its level."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _CodeBlock(CodeBlock):
    """A code block that is indented instead of framed."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(
            code, self.lexer_name, theme=self.theme, word_wrap=True, padding=(0, 2), background_color="default"
        )


class _HorizontalRule(HorizontalRule):
    """A rule across the columns."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style="markdown.hr")


class _Table(TableElement):
    """A table whose cells wrap and are never cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, style="markdown.table.border", show_edge=False)
        header = self.header.row.cells if self.header is not None and self.header.row is not None else []
        for cell in header:
            table.add_column(cell.content, header_style="markdown.table.header", overflow="fold")
        for row in self.body.rows if self.body is not None else []:
            table.add_row(*(cell.content for cell in row.cells))
        yield table


class _Prose(Markdown):
    """A Markdown text that is parsed already."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
        "hr": _HorizontalRule,
        "table_open": _Table,
    }

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__("", code_theme=_CODE_THEME, hyperlinks=False)
        self.parsed = tokens


@lru_cache(maxsize=4)
def _console(columns: int) -> Console:
    """Return a console that only lays out lines."""
    return Console(
        file=io.StringIO(), width=columns, color_system="standard", force_terminal=True, legacy_windows=False,
        markup=False, emoji=False, highlight=False, theme=_THEME, _environ={},
    )  # fmt: skip


def _line(segments: Iterable[Segment]) -> Line:
    """Return a line of pieces with terminal attributes, without spaces at its end."""
    spans = [Span(each.text, look=_look(each.style)) for each in segments if each.text and not each.control]
    while spans and not (text := spans[-1].text.rstrip(" ")):
        spans.pop()
    if spans:
        spans[-1] = spans[-1]._replace(text=text)
    return tuple(spans)


def _trimmed(lines: Iterable[Line]) -> Iterator[Line]:
    """Drop empty lines at both ends."""
    waiting = 0
    begun = False
    for each in lines:
        if not each:
            waiting += begun
            continue
        yield from ((),) * waiting
        waiting, begun = 0, True
        yield each


@lru_cache(maxsize=256)
def _look(style: Style | None) -> str:
    """Return the numbers of a style's SGR sequence."""
    match = None if style is None else _SGR.match(style.render("x", color_system=ColorSystem.STANDARD))
    return match.group(1) if match else ""
