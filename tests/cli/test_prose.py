"""Markdown at a terminal: rendered completely and without terminal control."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile import Store
from sessile.cli.prose import prose_lines
from sessile.core.visible import visible
from sessile.render.styled import line_width
from terminal import PROBE, harmless, probes

from .conftest import Command, at_a_terminal

COLOURED = {"NO_COLOR": "", "COLUMNS": "60", "TERM": "xterm-256color"}
SGR = re.compile(r"\x1b\[[\d;]*m")
TEXT = """# Retries

Use **tenacity** and `retry()`, see [the docs](https://tenacity.readthedocs.io).
Second line.

1. first
2. second
   - nested

> quoted

| code | meaning |
|------|--------:|
| 503  | busy    |

```python
def retry(times: int) -> None:
    pass
```
"""
HOSTILE = f"""# {PROBE}

[bold red]not markup[/bold red] [link=http://evil]x[/link] :smile: &#27;[31m &#x202e; &amp;

[{PROBE}](http://evil/{PROBE}) ![{PROBE}](http://evil) <b onclick="x">html</b> <http://evil>

| {PROBE} | b |
|---|---|
| {PROBE} | `{PROBE}` |

```{PROBE}
{PROBE}
```

- {PROBE}
> {PROBE}

[definition]: http://evil
"""


@pytest.fixture
def session(home: Path) -> str:
    """Write a session with Markdown from a user and a model, one of them hostile."""
    with Store(home / ".sessile").create(str(home), title="markdown", publish=True) as session:
        session.append_message({"role": "user", "content": HOSTILE})
        session.append_message({"role": "assistant", "content": [{"type": "text", "text": TEXT}]})
        return session.path


def texts(text: str, columns: int = 60) -> list[str]:
    """Return the rendered lines without attributes."""
    return ["".join(span.text for span in line) for line in prose_lines(text, columns)]


def letters(text: str) -> str:
    """Return the letters of a text, which rendering must not drop or reorder."""
    return "".join(char for char in text if char.isalpha())


def test_markdown_is_rendered_at_a_terminal(session: str) -> None:
    """Headings, emphasis, lists, tables, links and code are styled, and their markup is removed."""
    printed = at_a_terminal(["show", session, "--no-pager"], COLOURED).replace("\r\n", "\n")
    shown = SGR.sub("", printed).partition("assistant")[2]
    assert "# Retries" not in shown and "**" not in shown and "```" not in shown and "|---" not in shown
    assert "the docs (https://tenacity.readthedocs.io)" in re.sub(r"\s+", " ", shown)
    assert "  Second line.\n" in shown
    assert " 1 first\n" in shown and " • nested\n" in shown and "▌ quoted\n" in shown and "503" in shown
    assert "\x1b[1;4mRetries\x1b[0m" in printed and "\x1b[1mtenacity\x1b[0m" in printed
    assert re.search(r"\x1b\[94[;\d]*mdef\x1b\[0m", printed)
    assert all(len(line) <= 60 for line in shown.splitlines())


@pytest.mark.parametrize("options", [["--plain"], ["--color", "never"]])
def test_markdown_stays_as_it_is_without_colours(session: str, options: list[str]) -> None:
    """Without attributes the markup is kept."""
    printed = at_a_terminal(["show", session, "--no-pager", *options], COLOURED)
    assert "# Retries" in printed and "**tenacity**" in printed and "```python" in printed


def test_markdown_stays_as_it_is_in_a_pipe(sessile: Command, session: str) -> None:
    """Markup is kept even with forced colours."""
    assert TEXT.splitlines()[2] in sessile("show", session).out
    assert TEXT.splitlines()[2] in sessile("show", session, "--color", "always").out


@pytest.mark.promise("P37")
def test_hostile_markdown_cannot_drive_the_terminal(session: str) -> None:
    """The output has no sequences except attributes, no rich markup is interpreted, and links are not clickable."""
    printed = at_a_terminal(["show", session, "--no-pager"], COLOURED).replace("\r\n", "\n")
    rest = SGR.sub("", printed)
    assert all(map(harmless, rest.split("\n"))) and "\x1b]8" not in printed
    assert "[bold red]not markup[/bold red]" in rest and "[link=http://evil]x[/link]" in rest and ":smile:" in rest
    assert "&#27;[31m &#x202e; &amp;" in rest and '<b onclick="x">html</b>' in rest
    assert "[definition]: http://evil" in rest


def test_nothing_but_markup_is_dropped() -> None:
    """All letters are kept in order, except the language names of code blocks."""
    plain = TEXT.replace("python", "")
    shown = "\n".join(texts(TEXT))
    assert letters(shown) == letters(plain)


@pytest.mark.parametrize(
    "text",
    [
        "> " * 30 + "deep",
        "> " * 5000 + "deep",
        "".join("  " * level + f"- level {level}\n" for level in range(40)),
        "|" + "|".join("abcdefghijkl") + "|\n|" + "---|" * 12 + "\n|" + "x|" * 12,
        "word " * 30_000,
    ],
)
def test_what_does_not_fit_is_shown_as_it_is(text: str) -> None:
    """Deep nesting, wide tables and very long texts are shown in full."""
    shown = texts(text, 40)
    assert "".join(shown).replace(" ", "") == text.replace(" ", "").replace("\n", "")
    assert all(len(line) <= 40 for line in shown)


@given(
    st.lists(
        probes | st.sampled_from(["# ", "- ", "> ", "| a | b |\n|-|-|\n|", "```x\n", "\n\n", "[a](b)", "&#27;", "<b>"]),
        max_size=12,
    ),
    st.integers(20, 90),
)
def test_whatever_is_stored_is_lines_that_fit_and_can_only_be_read(parts: list[str], columns: int) -> None:
    """Any text gives lines within the width, with numeric attributes and escaped control characters."""
    for line in prose_lines(visible("".join(parts)), columns):
        assert line_width(line) <= columns
        assert all(harmless(visible(span.text)) and re.fullmatch(r"[\d;]*", span.look) for span in line)
