"""The parts of an entry as HTML, one row of a table each.

Rules: what is long is folded into `<details>` and says how much it holds; nothing is cut off. A part carries the class of its
depth (`d-tools`), so that a style sheet alone shows more or less. What failed says so in a word and stands open.

It does not know the entry that holds a part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from sessile.core.codec import encode_plain
from sessile.core.parts import Call, Data, Diff, Image, Output, Part, Text, Thinking
from sessile.core.visible import visible_line
from sessile.errors import InvalidEntry
from sessile.render.ansi import coloured_lines
from sessile.render.markup import escape, escape_line, language_of, markdown
from sessile.render.pictures import image_html

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
