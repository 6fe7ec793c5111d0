"""Stored text as HTML that can do nothing: the only place where text becomes markup.

Rules:

- Everything is escaped, in text and in attributes alike; what would be invisible, or would turn the direction of writing, is
  named: `⟨U+202E⟩`.
- Markdown has no raw HTML, loads no images, and links only to http and https. What the parser made goes through a second
  program, nh3, which knows nothing of the first and lets only the tags of this module pass.
- Work is bounded: a text beyond a limit is shown as it is, unformatted. Code is coloured in the languages that people use most:
  of the many that the lexers know, some take hours for a kilobyte that was made for that, during which nothing else runs.

It does not know entries.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from html import escape as escaped
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererProtocol
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from pygments import highlight  # type: ignore[import-untyped]
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
from pygments.lexer import Lexer  # type: ignore[import-untyped]
from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
from pygments.token import STANDARD_TYPES  # type: ignore[import-untyped]
from pygments.util import ClassNotFound  # type: ignore[import-untyped]

from sessile.core.visible import visible, visible_line

MOST_MARKDOWN = 30_000  # characters; longer texts are logs that somebody pasted
DEEPEST_MARKDOWN = 60  # quotes and lists in each other; deeper, the parser would leave out what they hold
MOST_CODE = 6_000  # characters of one block that are coloured: twice as many can take four times as long
SLOW = frozenset(("csharp", "julia"))  # where it takes four times as long as elsewhere: of these a quarter is coloured
_USUAL = (
    "awk bash c clojure cmake console cpp css dart diff docker elixir erlang fsharp go graphql groovy haskell html ini java "
    "javascript json jsx kotlin less lua make nginx nixos objective-c ocaml perl php postgresql powershell protobuf pycon "
    "python ruby rust scss splus sql swift terraform tex toml tsx typescript xml yaml zig"
)
# By the first of their names. None may colour what it holds as a language that is not among them.
LANGUAGES = SLOW.union(_USUAL.split())

_HEADINGS_BELOW = 3  # the page has h1, its regions h2, an entry h3
_WEB = re.compile(r"https?://[^\s/]", re.IGNORECASE)
_PLAIN = re.compile(r"[^\W\d_][\w ,;.?!'\"()/%…–—]*")  # one line without anything that Markdown or HTML knows
_PLAIN_LINK = re.compile(r"www\.|://")
_TAGS = frozenset(
    [
        "a",
        "blockquote",
        "br",
        "code",
        "del",
        "em",
        "h4",
        "h5",
        "h6",
        "hr",
        "li",
        "ol",
        "p",
        "pre",
        "s",
        "span",
        "strong",
        "table",
        "tbody",
        "td",
        "th",
        "thead",
        "tr",
        "ul",
    ]
)
_ATTRIBUTES = {"a": {"href"}, "ol": {"start"}, "pre": {"tabindex"}}
_ALIGNED = {"text-align:left": "left", "text-align:center": "center", "text-align:right": "right"}
_CLASSES = {
    "span": {name for name in STANDARD_TYPES.values() if name},
    "pre": {"code"},
    "th": set(_ALIGNED.values()),
    "td": set(_ALIGNED.values()),
}


def escape(text: str) -> str:
    """A text for the inside of an element or of a quoted attribute."""
    return escaped(visible(text))


def escape_line(text: str) -> str:
    """The same on one line."""
    return escaped(visible_line(text))


def markdown(text: str) -> str:
    """What a person or a model wrote, as HTML."""
    if not text.strip():
        return ""
    text = visible(text)
    if len(text) > MOST_MARKDOWN:
        return _unformatted(text)
    if _PLAIN.fullmatch(text) and not _PLAIN_LINK.search(text):
        return f"<p>{escaped(text)}</p>"
    parser = _parser()
    env: dict[str, Any] = {}
    tokens = parser.parse(text, env)
    if any(token.level >= DEEPEST_MARKDOWN - 2 for token in tokens):
        return _unformatted(text)
    # Markdown writes characters by number too (`&#x202e;`), so what it made is looked at once more.
    return visible(_cleaned(parser.renderer.render(tokens, parser.options, env)))


def _unformatted(text: str) -> str:
    return f'<pre class="plain">{escaped(text)}</pre>'


def code(text: str, language: str) -> str:
    """The inside of a block of code, coloured by classes if the language is known and the block is not too long."""
    lexer = _lexer(language.lower()) if len(text) <= MOST_CODE else None
    if lexer is not None and lexer.aliases[0] in SLOW and len(text) > MOST_CODE // 4:
        lexer = None
    return escaped(text) if lexer is None else str(highlight(text, lexer, HtmlFormatter(nowrap=True)))


def language_of(text: str) -> str:
    """A `lang` attribute where the script needs fonts of its own, else nothing."""
    if text.isascii():
        return ""
    start = text[:2000]
    for name, pattern in _SCRIPTS:
        if pattern.search(start):
            return f' lang="{name}"'
    return ""


_SCRIPTS = (
    ("ja", re.compile("[\u3040-\u30ff]")),
    ("ko", re.compile("[\uac00-\ud7a3]")),
    ("zh", re.compile("[\u4e00-\u9fff]")),
)


def _cleaned(html: str) -> str:
    return nh3.clean(
        html,
        tags=set(_TAGS),
        attributes={tag: set(names) for tag, names in _ATTRIBUTES.items()},
        allowed_classes={tag: set(names) for tag, names in _CLASSES.items()},
        url_schemes={"http", "https"},
        link_rel="noopener noreferrer",
    )


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": DEEPEST_MARKDOWN}).enable(
        ["table", "strikethrough"]
    )
    parser.core.ruler.push("sessile", _adapt)
    parser.add_render_rule("fence", _fence)
    parser.add_render_rule("code_block", _fence)
    parser.add_render_rule("image", _picture)
    parser.validateLink = lambda url: bool(_WEB.match(url))  # type: ignore[method-assign]
    return parser


def _adapt(state: StateCore) -> None:
    """Headings go below that of their entry; columns are aligned by class, because the page allows no style attributes."""
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + _HEADINGS_BELOW)}"
        elif token.type in ("th_open", "td_open") and (style := token.attrs.pop("style", None)):
            token.attrs["class"] = _ALIGNED.get(str(style), "left")


def _fence(_: RendererProtocol, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    language = (token.info.split() or [""])[0]
    return f'<pre class="code" tabindex="0"><code>{code(token.content, language)}</code></pre>\n'


def _picture(_: RendererProtocol, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """A picture that a text points to is a link: nothing is loaded for being read."""
    token = tokens[index]
    return f'<a href="{escaped(str(token.attrs.get("src", "")))}">[image: {escaped(token.content)}]</a>'


@lru_cache(maxsize=64)
def _lexer(language: str) -> Lexer | None:
    if not language or len(language) > 40:
        return None
    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        return None
    return lexer if lexer.aliases[0] in LANGUAGES else None
