"""Stored text made safe for a terminal, and its width."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.core.visible import cut, fitting, visible, visible_line, width, without_colours
from sessile.render.styled import Span, clipped, line_width, padded, plain, wrapped
from terminal import PROBE, harmless, probes

# Letters of one, two and no columns, and spaces.
mixed = st.text("ab  看，é🙂\u0301\u200d", max_size=20)


@pytest.mark.promise("P37")
@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("plain", "plain"),
        ("é 看 🙂", "é 看 🙂"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\rb", "a\\x0db"),
        ("a\r\nb\n", "a\nb\n"),
        ("a\tb", "a   b"),
        ("\x9b2J\x7f", "\\x9b2J\\x7f"),
        ("a\u202eb\u2066", "a⟨U+202E⟩b⟨U+2066⟩"),
        ("\ud800", "⟨U+D800⟩"),
        ("\U000e0041", "⟨U+E0041⟩"),
        ("  two  ", "  two  "),
    ],
)
def test_what_would_do_something_is_shown_instead(stored: str, shown: str) -> None:
    """Escapes, controls, direction marks and hidden characters are shown by name; letters, spaces and newlines stay."""
    assert visible(stored) == shown


@pytest.mark.parametrize(
    ("stored", "shown"),
    [("a\n\tb", "a b"), ("  a  b ", "a b"), ("  é  b ", "é b"), ("\n", ""), ("a\x1bb", "a\\x1bb"), ("a\u2028b", "a b")],
)
def test_a_line_has_single_spaces_whatever_its_letters(stored: str, shown: str) -> None:
    """Newlines, tabs and runs of spaces become one space, and the ends are trimmed."""
    assert visible_line(stored) == shown


@pytest.mark.promise("P37")
@given(probes)
def test_visible_text_is_harmless_and_stays_as_it_is(stored: str) -> None:
    """Making it visible again changes nothing."""
    text, one = visible(stored), visible_line(stored)
    assert harmless(text.replace("\n", "")) and harmless(one)
    assert visible(text) == text and visible_line(one) == one
    assert "\n" not in one


def test_the_probe_is_not_harmless() -> None:
    """The probe used by other tests contains unsafe characters."""
    assert not harmless(PROBE)
    assert all(not harmless(char) for char in "\x1b\x07\x9b\x08\r\u202e\u2066\u200f\u061c\x00\ud800\x7f\u2028")


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b", "ab"),
        ("\x1b[2Ka\x1b(", "a\x1b("),
        ("\x1b]0;never ends, and here is the text", "\x1b]0;never ends, and here is the text"),
        ("\x1b]a\nb\x07", "\x1b]a\nb\x07"),
    ],
)
def test_escape_sequences_are_left_out_but_never_text(printed: str, text: str) -> None:
    """An unterminated sequence does not swallow the text after it."""
    assert without_colours(printed) == text


@pytest.mark.parametrize("part", ["\x1b]", "\x1b[1", "\x1b[" + "1" * 1000, "\x1b" * 3])
def test_leaving_out_sequences_takes_linear_time(part: str) -> None:
    """This holds even if none of the sequences ends."""
    started = time.process_time()
    without_colours(part * (500_000 // len(part)))
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("text", "columns"), [("", 0), ("abc", 3), ("看a", 3), ("e\u0301", 1), ("🙂", 2), ("\uff21", 2)]
)
def test_width_counts_columns(text: str, columns: int) -> None:
    """Wide letters count two, marks on letters none."""
    assert width(text) == columns


@given(mixed, st.integers(-1, 24))
def test_a_cut_text_fits_and_says_that_it_goes_on(text: str, columns: int) -> None:
    """A text that fits stays unchanged; otherwise the longest possible start is followed by …."""
    short = cut(text, columns)
    assert width(short) <= max(columns, 0)
    if columns >= max(width(text), 1):
        assert short == text
    elif columns > 0:
        assert short.endswith("…") and text.startswith(short[:-1])
        assert short[:-1] == text[: fitting(text, 0, columns - 1)].rstrip()


@given(mixed, st.integers(0, 24), st.integers(0, 5))
def test_fitting_takes_as_much_as_fits(text: str, columns: int, start: int) -> None:
    """One more letter would be too wide."""
    start = min(start, len(text))
    end = fitting(text, start, columns)
    assert width(text[start:end]) <= columns
    assert end == len(text) or width(text[start : end + 1]) > columns


@given(mixed, st.integers(2, 12))
def test_wrapped_lines_fit_and_lose_only_spaces(text: str, columns: int) -> None:
    """Every line fits, and joining the lines loses only one space per break."""
    lines = list(wrapped(text, columns))
    assert all(width(line) <= columns for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert len("".join(lines)) >= len(text) - (len(lines) - 1)


def test_words_stay_whole_where_they_can() -> None:
    """Lines break at spaces; a word that is too long is broken; indentation stays."""
    assert list(wrapped("one two three", 8)) == ["one two", "three"]
    assert list(wrapped("abcdefghij k", 4)) == ["abcd", "efgh", "ij k"]
    assert list(wrapped("    indented code", 10)) == ["    indent", "ed code"]
    assert list(wrapped("a\nb c", None)) == ["a", "b c"]


def test_a_megabyte_on_one_line_wraps_in_linear_time() -> None:
    """This also holds for wide letters."""
    started = time.process_time()
    assert sum(1 for _ in wrapped("x" * 1_000_000, 80)) == 12_500
    assert sum(1 for _ in wrapped("看" * 200_000, 80)) == 5_000
    assert time.process_time() - started < 3


@given(st.lists(mixed, max_size=4), st.integers(0, 24))
def test_a_clipped_line_fits_and_keeps_its_beginning(texts: list[str], columns: int) -> None:
    """Pieces keep their styles, and … marks what is missing."""
    line = tuple(Span(text, "dim") for text in texts)
    short = clipped(line, columns)
    assert line_width(short) <= columns
    whole = "".join(texts)
    if width(whole) > columns:
        assert columns == 0 or plain(short).endswith("…")
        assert whole.startswith(plain(short).rstrip("…").rstrip())
    else:
        assert short == line
    assert line_width(padded(short, 30)) == 30


def test_widths_follow_unicode() -> None:
    """No wide letter is measured as narrow."""
    wide = [chr(code) for code in range(0x20, 0x3000) if unicodedata.east_asian_width(chr(code)) == "W"]
    assert wide and all(width(char) in (0, 2) for char in wide)
