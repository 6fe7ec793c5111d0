"""One entry as one `<article>`: what the page, the export, the review and print are made of.

Rules:

- An article stands for itself: an anchor that never changes (`e-<id>`), a heading, its time, and all of its parts. Where it
  stands among branches, its label and the gaps behind it are arguments.
- Tools and settings are one line that opens: `bash · pytest -q · ✗ failed`. What failed is open. Compactions and summaries
  are dividers across the page.
- No scripts, no styles, no handlers: a fragment needs `web/style.css` and nothing else.

It does not know what other entries there are.

Stored text as HTML that can do nothing: the only place where text becomes markup.

Rules:

- Everything is escaped, in text and in attributes alike; what would be invisible, or would turn the direction of writing, is
  named: `⟨U+202E⟩`.
- Markdown has no raw HTML, loads no images, and links only to http and https. What the parser made goes through a second
  program, nh3, which knows nothing of the first and lets only the tags of this module pass.
- Work is bounded: a text beyond a limit is shown as it is, unformatted. Code is coloured in the languages that people use most:
  of the many that the lexers know, some take hours for a kilobyte that was made for that, during which nothing else runs.

It does not know entries.

The parts of an entry as HTML, one row of a table each.

Rules: what is long is folded into `<details>` and says how much it holds; nothing is cut off. A part carries the class of its
depth (`d-tools`), so that a style sheet alone shows more or less. What failed says so in a word and stands open.

It does not know the entry that holds a part.

Pictures inside a page: bytes that really are one, as a data URL, or a few words about what is not shown.

A picture that is kept apart is named by its hash (`data-blob`): a page that can fetch it puts it there, others show the words.
What an entry says of its picture is a claim: the first bytes decide, and only of four kinds that cannot hold a program.

What a tool printed for a terminal, line by line as HTML: colours become classes, all else is shown.

Rules: only "select graphic rendition" sequences mean something (`\\x1b[1;31m`), and of those the sixteen colours and six
attributes that have a class (`f1`, `b4`, `bold`). Erasing to the end of a line is left out, since nothing follows there that
could be erased. Every other sequence is made visible, never obeyed. Each line stands for itself: spans do not cross it.
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

# --- markup

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


# --- pictures

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_BLANKS = re.compile(r"\s+")
_PREFIX = re.compile(r"data:[\w/+.-]{1,40};base64,")
_FIRST = 32  # characters of base64 that tell the kind: 24 bytes
_BEGINNINGS = (
    ("png", re.compile(rb"\x89PNG\r\n\x1a\n")),
    ("jpeg", re.compile(rb"\xff\xd8\xff")),
    ("gif", re.compile(rb"GIF8[79]a")),
    ("webp", re.compile(rb"RIFF....WEBP", re.DOTALL)),
)


def image_html(image: Image) -> str:
    """A picture that opens to its full size, or a placeholder that says why there is none."""
    data = _BLANKS.sub("", image.data)
    data = data[match.end() :] if (match := _PREFIX.match(data)) else data
    claimed = escape_line(image.mime.removeprefix("image/")[:40].upper())
    if (digest := parse_blob_ref(data)) is not None:
        return _pictures_picture(f'data-blob="{digest}"', f"image {claimed}, kept outside this page")
    if not data:
        return _missing(f"image {claimed}", "without data")
    kind = _kind(data)
    if kind is None:
        return _missing(f"image {claimed} {_size(data)}", "not of a kind that is shown")
    name = f"image {kind.upper()} {_size(data)}"
    return _pictures_picture(f'src="data:image/{kind};base64,{data}"', name)


def _pictures_picture(source: str, name: str) -> str:
    picture = f'<img {source} alt="{name}" loading="lazy" decoding="async">'
    return f'<details class="picture"><summary>{picture}</summary></details>'


def _kind(data: str) -> str | None:
    if not _BASE64.fullmatch(data) or len(data) % 4:
        return None
    first = base64.b64decode(data[:_FIRST])
    return picture_kind(first)


def picture_kind(first: bytes) -> str | None:
    """What the first bytes of a file say that it is: png, jpeg, gif or webp; `None` if it is not shown."""
    return next((kind for kind, beginning in _BEGINNINGS if beginning.match(first)), None)


def _size(data: str) -> str:
    """How large the bytes are, from the length of their base64."""
    size = len(data.rstrip("=")) * 3 // 4
    if size < 1000:
        return f"{size} B"
    return f"{size / 1000:.0f} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"


def _missing(name: str, why: str) -> str:
    return f'<p class="missing">{name}, {why}</p>'


# --- ansi

MOST_SEQUENCES = 4_000  # each becomes an element; beyond, a picture in colours is not what people look for

_SEQUENCE = re.compile("\x1b\\[([0-9;]*)m|\x1b\\[0?K")
_NONE = 256  # the number of no colour
_ANSI_ATTRIBUTES = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "struck"}
_ENDS = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("inverse",), 29: ("struck",)}


class Style:
    """The colours and attributes in force."""

    def __init__(self) -> None:
        self.front = self.back = ""
        self.attributes: dict[str, None] = {}

    def clear(self) -> None:
        """Back to how a terminal begins."""
        self.front = self.back = ""
        self.attributes.clear()

    def __str__(self) -> str:
        return " ".join(filter(None, (self.front, self.back, *self.attributes)))

    def apply(self, codes: list[int]) -> None:
        """Change by the numbers of one sequence."""
        rest = iter(codes)
        for code in rest:
            if code == 0:
                self.clear()
            elif code in _ANSI_ATTRIBUTES:
                self.attributes[_ANSI_ATTRIBUTES[code]] = None
            elif code in _ENDS:
                for name in _ENDS[code]:
                    self.attributes.pop(name, None)
            elif code in (38, 48):
                self._extended("f" if code == 38 else "b", rest)
            elif 30 <= code <= 39 or 90 <= code <= 97:
                self.front = _colour("f", code - 30)
            elif 40 <= code <= 49 or 100 <= code <= 107:
                self.back = _colour("b", code - 40)

    def _extended(self, letter: str, rest: Iterator[int]) -> None:
        """`5;n` is one of 256 colours, `2;r;g;b` any; those beyond the sixteen have no class."""
        kind = next(rest, None)
        numbers = list(islice(rest, {5: 1, 2: 3}.get(kind or 0, 0)))
        colour = numbers[0] if kind == 5 and numbers else _NONE
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
    """The lines of an output, each as HTML."""
    if "\x1b" not in text:
        return escaped(visible(text)).split("\n")
    if text.count("\x1b[") > MOST_SEQUENCES:
        return escaped(visible(without_colours(text))).split("\n")
    style = Style()
    return [_line(line, style) for line in text.replace("\r\n", "\n").split("\n")]


def _line(line: str, style: Style) -> str:
    pieces = []
    at = 0
    for match in _SEQUENCE.finditer(line):
        pieces.append(_span(line[at : match.start()], style))
        if match.group(1) is not None:
            style.apply([int(code[:4] or 0) for code in match.group(1).split(";")])
        at = match.end()
    pieces.append(_span(line[at:], style))
    return "".join(pieces)


def _span(text: str, style: Style) -> str:
    if not text:
        return ""
    classes = str(style)
    return f'<span class="{classes}">{escaped(visible(text))}</span>' if classes else escaped(visible(text))


# --- parts html

FEW_LINES = 40  # an output with more is folded in the middle
_HEAD, _TAIL = 16, 8  # lines that stay in sight then: errors are told at the end
_LONG_LINE = 20_000  # characters of an output whose lines are too long to count by lines
_SMALL_DIFF = 16  # lines of a change that is shown without being asked for

FAILED = '<span class="failed">✗ failed</span>'


def part_html(part: Part, is_answered: bool = False) -> str:
    """One part; nothing for a text without content, nor for a call that its result tells of as well."""
    inside = _answered_call(part) if isinstance(part, Call) and is_answered else _TABLE[type(part)](part)
    if not inside:
        return ""
    return f'<div class="part {type(part).__name__.lower()} d-{part.depth}">{inside}</div>'


def _text(part: Text) -> str:
    inside = markdown(part.text)
    return f'<div class="prose" dir="auto"{language_of(part.text)}>{inside}</div>' if inside else ""


def _thinking(part: Thinking) -> str:
    if part.hidden or not part.text.strip():
        return '<p class="missing">thinking, sealed by the provider</p>'
    first = escape_line(part.text[:400])
    inside = f'<div class="prose" dir="auto"{language_of(part.text)}>{markdown(part.text)}</div>'
    return folded(f'<b>thinking</b> <span class="line">{first}</span>', inside)


def _call(part: Call) -> str:
    name = f'<b>{escape_line(part.name)}</b> <span class="line">{escape_line(part.summary)}</span>'
    inside = arguments_html(part.arguments)
    return folded(name, inside) if inside else f'<p class="line-only">{name}</p>'


def _answered_call(part: Call) -> str:
    """The line of the result says what was called, and for what: what remains is the rest of what it was given."""
    if said_by(part.summary, part.arguments):
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
    """Markup behind one line of markup."""
    return f"<details{' open' if opened else ''}><summary>{summary}</summary>{inside}</details>"


def output_html(text: str) -> str:
    """What a tool printed; the middle of a long one is folded."""
    text = text.strip("\n")
    if not text.strip():
        return '<p class="missing">no output</p>'
    lines = coloured_lines(text)
    if len(lines) <= FEW_LINES and len(text) > _LONG_LINE:
        return folded(f"show all {len(text):,} characters", _block(lines))
    return _lines_html(lines)


def diff_html(text: str) -> str:
    """A change line by line; the signs stay, so that colour is not all that tells."""
    return _lines_html([_changed(line) for line in text.strip("\n").split("\n")], kind="diff", between="")


def _changed(line: str) -> str:
    kind = {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "same")
    return f'<span class="{kind}">{escape(line)}\n</span>'


def _lines_html(lines: Sequence[str], kind: str = "output", between: str = "\n") -> str:
    if len(lines) <= FEW_LINES:
        return _block(lines, kind, between)
    middle = folded(f"show all {len(lines):,} lines", _block(lines[_HEAD:-_TAIL], kind, between))
    head, tail = _block(lines[:_HEAD], kind, between), _block(lines[-_TAIL:], kind, between)
    return f'<div class="long">{head}{middle}{tail}</div>'


def _block(lines: Sequence[str], kind: str = "output", between: str = "\n") -> str:
    return f'<pre class="{kind}">{between.join(lines)}</pre>'


def arguments_html(arguments: object) -> str:
    """What a tool was given: texts as texts, all else as JSON."""
    if not isinstance(arguments, dict):
        return json_html(arguments) if arguments else ""
    rows = [f"<dt>{escape_line(str(name))}</dt><dd>{_argument(value)}</dd>" for name, value in arguments.items()]
    return f"<dl>{''.join(rows)}</dl>" if rows else ""


def _argument(value: object) -> str:
    return _lines_html(escape(value).split("\n")) if isinstance(value, str) else json_html(value)


def json_html(value: object) -> str:
    """A value as people read JSON, or why it has no such form."""
    try:
        encoded = encode_plain(value)
        text = msgspec.json.format(encoded, indent=2).decode("utf-8", "replace")
    except InvalidEntry as error:
        return f'<p class="missing">{escape_line(str(error))}</p>'
    except (RecursionError, msgspec.DecodeError):  # deeper than the formatter goes, or more than it knows
        text = encoded.decode("utf-8", "replace")
    return _lines_html(escape(text).split("\n"))


def said_by(summary: str, arguments: object) -> bool:
    """Whether the one line of a call already says all that it was given."""
    if not isinstance(arguments, dict) or len(arguments) > 1:
        return False
    return all(isinstance(value, str) and visible_line(value) == visible_line(summary) for value in arguments.values())


def changes(parts: Sequence[Part]) -> tuple[int, int] | None:
    """Lines that the diffs among some parts add and take away; `None` if there is no diff."""
    lines = [line for part in parts if isinstance(part, Diff) for line in part.text.split("\n")]
    if not lines:
        return None
    return sum(line.startswith("+") for line in lines), sum(line.startswith("-") for line in lines)


def is_small_change(parts: Sequence[Part]) -> bool:
    """Whether some parts hold a diff that can stand open."""
    lines = [part.text.count("\n") + 1 for part in parts if isinstance(part, Diff)]
    return bool(lines) and sum(lines) <= _SMALL_DIFF


# --- fragments

MAX_ANCHOR = 120  # characters of an id; families write eight, or thirty-six
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
    return "e-" + _NOT_PLAIN.sub(lambda match: f".{ord(match[0]):x}.", (entry_id or "")[:MAX_ANCHOR])


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
        f'<span class="id">{escape_line((seen.id or "no id")[:MAX_ANCHOR])}</span></a>',
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
