"""Entries as HTML: each entry is one `<article>`, the same in the page, the export and in print.

    entry_html(shown)       an article
    markdown(text)          what a person or a model wrote
    coloured_lines(text)    what a tool printed, with its terminal colours
    escape(text)            text for an element or a quoted attribute

Rules:

- Stored text becomes markup only here. Everything is escaped. Characters that are invisible or change the writing direction are
  shown by name: `⟨U+202E⟩`.
- Markdown has no raw HTML, loads no images, and links only to http and https. The parser's output passes a second, independent
  filter, nh3, that allows only the tags listed in this module.
- A fragment has no scripts, styles or handlers; it needs `web/style.css` and nothing else.
- An article stands alone: a permanent anchor (`e-<id>`), a heading, its time, and all of its parts. Its place among branches, its
  label and the gaps after it are arguments.
- Tools and settings are one line that opens: `bash · pytest -q · ✗ failed`. Failures are open. Compactions and summaries are
  dividers. Long parts are folded into `<details>` and say how much they hold; nothing is cut off. A part has the class of its
  depth (`d-tools`), so that a style sheet alone can show more or less.
- Images are shown only if their first bytes are one of four kinds that cannot contain a program, whatever the entry claims. An
  image that is stored as a blob has its hash in `data-blob`, for pages that can fetch it.
- Of terminal sequences, the sixteen colours and six attributes become classes (`f1`, `b4`, `bold`). Erasing to the end of a line
  is ignored; every other sequence is made visible. Spans do not cross lines.
- Work is bounded: text beyond a limit is shown unformatted. Code is highlighted only in common languages, because some lexers
  take hours for a kilobyte of crafted input and block everything else.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from html import escape as escaped
from itertools import islice
from typing import Any, NamedTuple

import msgspec
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

from sessile.core.codec import encode_plain
from sessile.core.large import parse_blob_ref
from sessile.core.usage import amount
from sessile.core.visible import visible, visible_line, without_colours
from sessile.errors import InvalidEntry
from sessile.render.shown import Call, Data, Diff, Image, Output, Part, Shown, Spent, Text, Thinking
from sessile.render.wording import size

# -- entries

MAX_ANCHOR = 120  # characters of an id; agents write 8 or 36
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_PLAIN = re.compile("[^A-Za-z0-9_-]")
_DIVIDERS = {"compaction": "Compacted", "branch summary": "Branch summary", "reset": "Reset"}


class Place(NamedTuple):
    """Which branch of a fork this is, and the anchors of the previous and the next."""

    number: int
    of: int
    previous: str | None
    next: str | None


def anchor_of(entry_id: str | None) -> str:
    """Return the anchor of an entry: its id, with all characters but letters, digits, - and _ written as numbers."""
    return "e-" + _NOT_PLAIN.sub(lambda match: f".{ord(match[0]):x}.", (entry_id or "")[:MAX_ANCHOR])


def entry_html(
    shown: Shown,
    *,
    anchor: str | None = None,
    label: str | None = None,
    place: Place | None = None,
    gaps: Sequence[str] = (),
    call: Call | None = None,
    answered: Collection[str] = (),
) -> str:
    """Return an entry as an article.

    `call` is the call that it answers. The calls in `answered` have their result next to them on every branch.
    """
    anchor = anchor or anchor_of(shown.id)
    shape = _shape(shown)
    top = _aside(shown, anchor, label, place)
    body = _SHAPES[shape](shown, call, answered)
    unread = "".join(map(gap_html, gaps))
    classes = f"entry {shape} {shown.who} d-{shown.depth}{' is-failed' if shown.failed else ''}"
    return f'<article class="{classes}" id="{anchor}">{top}{body}{unread}</article>\n'


def gap_html(message: str) -> str:
    """Return a notice for bytes that could not be read."""
    return f'<p class="gap"><b>gap</b> {escape_line(message)}</p>'


def _shape(shown: Shown) -> str:
    if shown.who == "summary":
        return "divider"
    if shown.who in ("tool", "shell", "setting") or all(isinstance(part, Data) for part in shown.parts):
        return "oneline"
    return "message"


def _aside(shown: Shown, anchor: str, label: str | None, place: Place | None) -> str:
    pieces = [
        f'<span class="label">{escape_line(label)}</span>' if label else "",
        _switch(place) if place else "",
        _time(shown.at),
        f'<a class="permalink" href="#{anchor}" title="Link to this entry"><span aria-hidden="true">#</span>'
        f'<span class="id">{escape_line((shown.id or "no id")[:MAX_ANCHOR])}</span></a>',
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
    """Convert milliseconds since 1970; return `None` if unknown or out of range."""
    try:
        return None if at is None else _EPOCH + timedelta(milliseconds=at)
    except OverflowError:
        return None


def _message(shown: Shown, call: Call | None, answered: Collection[str]) -> str:
    failed = f" {FAILED}" if shown.failed else ""
    name = f'<span class="who">{escape_line(shown.name)}</span>'
    about = " · ".join(filter(None, (escape_line(shown.model or ""), _spent(shown.spent))))
    facts = f'<span class="about">{about}</span>' if about else ""
    parts = (part_html(part, isinstance(part, Call) and part.id in answered) for part in shown.parts)
    return f"<h3>{name}{failed}</h3>{facts}{''.join(parts)}"


def _oneline(shown: Shown, call: Call | None, answered: Collection[str]) -> str:
    line = call.summary if call and call.summary else shown.headline
    name = f"<b>{escape_line(shown.name)}</b> " if shown.who != "setting" else ""
    text = f'<span class="line"{language_of(line)}>{escape_line(line)}</span>' if line != shown.name else ""
    mark = f" {FAILED}" if shown.failed else ""
    summary = f"<h3>{name}{text}{mark}</h3>{_extent(shown.parts)}"
    # The line of a command contains all of it; its call is shown only if it has more arguments.
    is_redundant = [isinstance(part, Call) and is_summed_up(part.summary, part.arguments) for part in shown.parts]
    inside = "".join(_bare(part) for part, redundant in zip(shown.parts, is_redundant, strict=True) if not redundant)
    return folded(summary, inside, opened=shown.failed or is_small_change(shown.parts)) if inside else summary


def _bare(part: Part) -> str:
    """Return a part without its own fold: the entry is folded already."""
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


def _divider(shown: Shown, call: Call | None, answered: Collection[str]) -> str:
    word = _DIVIDERS.get(shown.name, escape_line(shown.name))
    line = f'<span class="line"{language_of(shown.headline)}>{escape_line(shown.headline)}</span>'
    heading = f"<h3><b>{word}</b> {line}</h3>"
    inside = "".join(map(part_html, shown.parts))
    return folded(heading, inside) if inside else heading


_SHAPES = {"message": _message, "oneline": _oneline, "divider": _divider}


def _spent(spent: Spent | None) -> str:
    if spent is None:
        return ""
    words = (("in", spent.input), ("out", spent.output), ("cached", spent.cache_read))
    known = [f"{amount(tokens)} {word}" for word, tokens in words if tokens]
    return escape(" · ".join([*known, "cost n/a" if spent.cost is None else f"${spent.cost:.3f}"]))


# -- parts

_MAX_LINES = 40  # longer output is folded in the middle
_HEAD, _TAIL = 16, 8  # lines that stay visible then: errors are usually at the end
_LONG_LINES = 20_000  # characters; output with few, very long lines is folded beyond this
_SMALL_DIFF = 16  # lines of a diff that is open at first

FAILED = '<span class="failed">✗ failed</span>'


def part_html(part: Part, is_answered: bool = False) -> str:
    """Return a part; empty for a text without content, and for a call that its result shows as well."""
    inside = _answered_call(part) if isinstance(part, Call) and is_answered else _TABLE[type(part)](part)
    if not inside:
        return ""
    return f'<div class="part {type(part).__name__.lower()} d-{part.depth}">{inside}</div>'


def _text(part: Text) -> str:
    inside = markdown(part.text)
    return f'<div class="prose" dir="auto"{language_of(part.text)}>{inside}</div>' if inside else ""


def _thinking(part: Thinking) -> str:
    if part.hidden or not part.text.strip():
        return '<p class="missing">thinking, encrypted by the provider</p>'
    first = escape_line(part.text[:400])
    inside = f'<div class="prose" dir="auto"{language_of(part.text)}>{markdown(part.text)}</div>'
    return folded(f'<b>thinking</b> <span class="line">{first}</span>', inside)


def _call(part: Call) -> str:
    name = f'<b>{escape_line(part.name)}</b> <span class="line">{escape_line(part.summary)}</span>'
    inside = arguments_html(part.arguments)
    return folded(name, inside) if inside else f'<p class="line-only">{name}</p>'


def _answered_call(part: Call) -> str:
    """Return the arguments of a call that the line of its result does not show."""
    if is_summed_up(part.summary, part.arguments):
        return ""
    count = len(part.arguments) if isinstance(part.arguments, dict) else 1
    words = f'<span class="extent">called with {count:,} {"argument" if count == 1 else "arguments"}</span>'
    return folded(f"<b>{escape_line(part.name)}</b> {words}", arguments_html(part.arguments))


def _output(part: Output) -> str:
    return f'<div class="failure">{output_html(part.text)}</div>' if part.failed else output_html(part.text)


def _diff(part: Diff) -> str:
    return diff_html(part.text)


def _image(part: Image) -> str:
    return image_html(part)


def _data(part: Data) -> str:
    return folded(f"<b>{escape_line(part.name)}</b>", json_html(part.value))


_TABLE: dict[type, Callable[[Any], str]] = {
    Text: _text,
    Thinking: _thinking,
    Call: _call,
    Output: _output,
    Diff: _diff,
    Image: _image,
    Data: _data,
}


def folded(summary: str, inside: str, opened: bool = False) -> str:
    """Return markup that is folded below a line of markup."""
    return f"<details{' open' if opened else ''}><summary>{summary}</summary>{inside}</details>"


def output_html(text: str) -> str:
    """Return what a tool printed; the middle of long output is folded."""
    text = text.strip("\n")
    if not text.strip():
        return '<p class="missing">no output</p>'
    lines = coloured_lines(text)
    if len(lines) <= _MAX_LINES and len(text) > _LONG_LINES:
        return folded(f"show all {len(text):,} characters", _block(lines))
    return _lines_html(lines)


def diff_html(text: str) -> str:
    """Return a diff line by line; it keeps its signs, so that nothing depends on colour."""
    return _lines_html([_changed(line) for line in text.strip("\n").split("\n")], kind="diff", between="")


def _changed(line: str) -> str:
    kind = {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "same")
    return f'<span class="{kind}">{escape(line)}\n</span>'


def _lines_html(lines: Sequence[str], kind: str = "output", between: str = "\n") -> str:
    if len(lines) <= _MAX_LINES:
        return _block(lines, kind, between)
    middle = folded(f"show all {len(lines):,} lines", _block(lines[_HEAD:-_TAIL], kind, between))
    head, tail = _block(lines[:_HEAD], kind, between), _block(lines[-_TAIL:], kind, between)
    return f'<div class="long">{head}{middle}{tail}</div>'


def _block(lines: Sequence[str], kind: str = "output", between: str = "\n") -> str:
    return f'<pre class="{kind}">{between.join(lines)}</pre>'


def arguments_html(arguments: object) -> str:
    """Return the arguments of a tool: strings as text, everything else as JSON."""
    if not isinstance(arguments, dict):
        return json_html(arguments) if arguments else ""
    rows = [f"<dt>{escape_line(str(name))}</dt><dd>{_argument(value)}</dd>" for name, value in arguments.items()]
    return f"<dl>{''.join(rows)}</dl>" if rows else ""


def _argument(value: object) -> str:
    return _lines_html(escape(value).split("\n")) if isinstance(value, str) else json_html(value)


def json_html(value: object) -> str:
    """Return a value as indented JSON, or why it cannot be written as JSON."""
    try:
        encoded = encode_plain(value)
        text = msgspec.json.format(encoded, indent=2).decode("utf-8", "replace")
    except InvalidEntry as error:
        return f'<p class="missing">{escape_line(str(error))}</p>'
    except (RecursionError, msgspec.DecodeError):  # nested too deeply for the formatter, or unknown to it
        text = encoded.decode("utf-8", "replace")
    return _lines_html(escape(text).split("\n"))


def is_summed_up(summary: str, arguments: object) -> bool:
    """Return whether the summary of a call contains all of its arguments."""
    if not isinstance(arguments, dict) or len(arguments) > 1:
        return False
    return all(isinstance(value, str) and visible_line(value) == visible_line(summary) for value in arguments.values())


def changes(parts: Sequence[Part]) -> tuple[int, int] | None:
    """Return how many lines the diffs among some parts add and remove; `None` if there is no diff."""
    lines = [line for part in parts if isinstance(part, Diff) for line in part.text.split("\n")]
    if not lines:
        return None
    return sum(line.startswith("+") for line in lines), sum(line.startswith("-") for line in lines)


def is_small_change(parts: Sequence[Part]) -> bool:
    """Return whether some parts contain a diff that is small enough to be open."""
    lines = [part.text.count("\n") + 1 for part in parts if isinstance(part, Diff)]
    return bool(lines) and sum(lines) <= _SMALL_DIFF


# -- images

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_BLANKS = re.compile(r"\s+")
_PREFIX = re.compile(r"data:[\w/+.-]{1,40};base64,")
_FIRST = 32  # characters of base64 that decide the kind: 24 bytes
_MAGIC = (
    ("png", re.compile(rb"\x89PNG\r\n\x1a\n")),
    ("jpeg", re.compile(rb"\xff\xd8\xff")),
    ("gif", re.compile(rb"GIF8[79]a")),
    ("webp", re.compile(rb"RIFF....WEBP", re.DOTALL)),
)


def image_html(image: Image) -> str:
    """Return an image that opens to its full size, or a placeholder that says why there is none."""
    data = _BLANKS.sub("", image.data)
    data = data[match.end() :] if (match := _PREFIX.match(data)) else data
    claimed = escape_line(image.mime.removeprefix("image/")[:40].upper())
    if (digest := parse_blob_ref(data)) is not None:
        return _image_fold(f'data-blob="{digest}"', f"image {claimed}, stored outside this page")
    if not data:
        return _missing(f"image {claimed}", "without data")
    kind = _kind(data)
    if kind is None:
        return _missing(f"image {claimed} {size(_length(data))}", "not a supported image type")
    name = f"image {kind.upper()} {size(_length(data))}"
    return _image_fold(f'src="data:image/{kind};base64,{data}"', name)


def _image_fold(source: str, name: str) -> str:
    picture = f'<img {source} alt="{name}" loading="lazy" decoding="async">'
    return f'<details class="picture"><summary>{picture}</summary></details>'


def _kind(data: str) -> str | None:
    if not _BASE64.fullmatch(data) or len(data) % 4:
        return None
    first = base64.b64decode(data[:_FIRST])
    return image_kind(first)


def image_kind(first: bytes) -> str | None:
    """Return the kind of an image by its first bytes: png, jpeg, gif or webp; `None` for anything else."""
    return next((kind for kind, magic in _MAGIC if magic.match(first)), None)


def _length(data: str) -> int:
    """Return the number of bytes that base64 text stands for."""
    return len(data.rstrip("=")) * 3 // 4


def _missing(name: str, why: str) -> str:
    return f'<p class="missing">{name}, {why}</p>'


# -- terminal colours

_MAX_SEQUENCES = 4_000  # each becomes an element; beyond that, colours are dropped

_SEQUENCE = re.compile("\x1b\\[([0-9;]*)m|\x1b\\[0?K")
_NO_COLOUR = 256
_ATTRIBUTE_CODES = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "struck"}
_RESET_CODES = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("inverse",), 29: ("struck",)}


class _TerminalStyle:
    """The current colours and attributes."""

    def __init__(self) -> None:
        self.front = self.back = ""
        self.attributes: dict[str, None] = {}

    def clear(self) -> None:
        """Reset everything."""
        self.front = self.back = ""
        self.attributes.clear()

    def __str__(self) -> str:
        return " ".join(filter(None, (self.front, self.back, *self.attributes)))

    def apply(self, codes: list[int]) -> None:
        """Apply the codes of one sequence."""
        rest = iter(codes)
        for code in rest:
            if code == 0:
                self.clear()
            elif code in _ATTRIBUTE_CODES:
                self.attributes[_ATTRIBUTE_CODES[code]] = None
            elif code in _RESET_CODES:
                for name in _RESET_CODES[code]:
                    self.attributes.pop(name, None)
            elif code in (38, 48):
                self._extended("f" if code == 38 else "b", rest)
            elif 30 <= code <= 39 or 90 <= code <= 97:
                self.front = _colour("f", code - 30)
            elif 40 <= code <= 49 or 100 <= code <= 107:
                self.back = _colour("b", code - 40)

    def _extended(self, letter: str, rest: Iterator[int]) -> None:
        """Apply `5;n`, one of 256 colours, or `2;r;g;b`; only the first sixteen colours have a class."""
        kind = next(rest, None)
        numbers = list(islice(rest, {5: 1, 2: 3}.get(kind or 0, 0)))
        colour = numbers[0] if kind == 5 and numbers else _NO_COLOUR
        name = f"{letter}{colour}" if colour < 16 else ""
        if letter == "f":
            self.front = name
        else:
            self.back = name


def _colour(letter: str, number: int) -> str:
    if number >= 60:
        return f"{letter}{number - 60 + 8}"
    return f"{letter}{number}" if number < 8 else ""


def coloured_lines(text: str) -> list[str]:
    """Return the lines of an output, each as HTML."""
    if "\x1b" not in text:
        return escaped(visible(text)).split("\n")
    if text.count("\x1b[") > _MAX_SEQUENCES:
        return escaped(visible(without_colours(text))).split("\n")
    style = _TerminalStyle()
    return [_line(line, style) for line in text.replace("\r\n", "\n").split("\n")]


def _line(line: str, style: _TerminalStyle) -> str:
    pieces = []
    at = 0
    for match in _SEQUENCE.finditer(line):
        pieces.append(_span(line[at : match.start()], style))
        if match.group(1) is not None:
            style.apply([int(code[:4] or 0) for code in match.group(1).split(";")])
        at = match.end()
    pieces.append(_span(line[at:], style))
    return "".join(pieces)


def _span(text: str, style: _TerminalStyle) -> str:
    if not text:
        return ""
    classes = str(style)
    return f'<span class="{classes}">{escaped(visible(text))}</span>' if classes else escaped(visible(text))


# -- text and Markdown

MAX_MARKDOWN = 30_000  # characters; longer texts are usually pasted logs
MAX_NESTING = 60  # nested quotes and lists; beyond that the parser drops content
MAX_CODE = 6_000  # characters of a highlighted block: twice as many can take four times as long
SLOW_LANGUAGES = frozenset(("csharp", "julia"))  # four times slower than others: their limit is a quarter
_FAST_LANGUAGES = (
    "awk bash c clojure cmake console cpp css dart diff docker elixir erlang fsharp go graphql groovy haskell html ini java "
    "javascript json jsx kotlin less lua make nginx nixos objective-c ocaml perl php postgresql powershell protobuf pycon "
    "python ruby rust scss splus sql swift terraform tex toml tsx typescript xml yaml zig"
)
# By their first alias. None of them may highlight embedded code in a language that is not listed.
LANGUAGES = SLOW_LANGUAGES.union(_FAST_LANGUAGES.split())

_HEADING_OFFSET = 3  # the page has h1, its regions h2, an entry h3
_WEB = re.compile(r"https?://[^\s/]", re.IGNORECASE)
_PLAIN = re.compile(r"[^\W\d_][\w ,;.?!'\"()/%…–—]*")  # one line without any Markdown or HTML syntax
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
    """Escape a text for an element or a quoted attribute."""
    return escaped(visible(text))


def escape_line(text: str) -> str:
    """Escape a text and put it on one line."""
    return escaped(visible_line(text))


def markdown(text: str) -> str:
    """Convert Markdown to HTML."""
    if not text.strip():
        return ""
    text = visible(text)
    if len(text) > MAX_MARKDOWN:
        return _unformatted(text)
    if _PLAIN.fullmatch(text) and not _PLAIN_LINK.search(text):
        return f"<p>{escaped(text)}</p>"
    parser = _parser()
    env: dict[str, Any] = {}
    tokens = parser.parse(text, env)
    if any(token.level >= MAX_NESTING - 2 for token in tokens):
        return _unformatted(text)
    # Markdown can write characters by number (`&#x202e;`), so its output is checked again.
    return visible(_cleaned(parser.renderer.render(tokens, parser.options, env)))


def _unformatted(text: str) -> str:
    return f'<pre class="plain">{escaped(text)}</pre>'


def code(text: str, language: str) -> str:
    """Return the inside of a code block, highlighted by classes if the language is known and the block is not too long."""
    lexer = _lexer(language.lower()) if len(text) <= MAX_CODE else None
    if lexer is not None and lexer.aliases[0] in SLOW_LANGUAGES and len(text) > MAX_CODE // 4:
        lexer = None
    return escaped(text) if lexer is None else str(highlight(text, lexer, HtmlFormatter(nowrap=True)))


def language_of(text: str) -> str:
    """Return a `lang` attribute for Chinese, Japanese and Korean, which need their own fonts; else an empty string."""
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
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": MAX_NESTING}).enable(["table", "strikethrough"])
    parser.core.ruler.push("sessile", _adapt)
    parser.add_render_rule("fence", _fence)
    parser.add_render_rule("code_block", _fence)
    parser.add_render_rule("image", _image_link)
    parser.validateLink = lambda url: bool(_WEB.match(url))  # type: ignore[method-assign]
    return parser


def _adapt(state: StateCore) -> None:
    """Put headings below that of the entry; align columns by class, because the page allows no style attributes."""
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + _HEADING_OFFSET)}"
        elif token.type in ("th_open", "td_open") and (style := token.attrs.pop("style", None)):
            token.attrs["class"] = _ALIGNED.get(str(style), "left")


def _fence(_: RendererProtocol, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    language = (token.info.split() or [""])[0]
    return f'<pre class="code" tabindex="0"><code>{code(token.content, language)}</code></pre>\n'


def _image_link(_: RendererProtocol, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """Return a link in place of an image that a text points to: reading must not load anything."""
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
