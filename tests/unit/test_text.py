"""Text and dates as JavaScript handles them."""

from __future__ import annotations

import pytest

from sessile.core.text import clean_name, iso_timestamp, parse_timestamp, utf16_cut, utf16_length, without_surrogates


@pytest.mark.parametrize(
    ("text", "units"),
    [("", 0), ("abc", 3), ("é", 1), ("看一下", 3), ("🙂", 2), ("a🙂b", 4), ("\ud83d", 1), ("\udc00x", 2)],
)
def test_length_counts_utf16_units(text: str, units: int) -> None:
    """An emoji counts two, half of one counts one."""
    assert utf16_length(text) == units


@pytest.mark.parametrize(
    ("text", "units", "cut"),
    [
        ("abc", 2, "ab"),
        ("abc", 9, "abc"),
        ("abc", 0, ""),
        ("看一下", 2, "看一"),
        ("a🙂b", 1, "a"),
        ("a🙂b", 2, "a"),
        ("a🙂b", 3, "a🙂"),
        ("a\ud83d", 2, "a"),
        ("a\udc00b", 2, "a\udc00"),
    ],
)
def test_cut_never_leaves_half_a_character(text: str, units: int, cut: str) -> None:
    """A high surrogate at the cut is dropped."""
    assert utf16_cut(text, units) == cut


@pytest.mark.promise("P10")
@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain", "plain"),
        ("naïve 🙂", "naïve 🙂"),
        ("\ud83d", "\ufffd"),
        ("a\ud83db", "a\ufffdb"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\ud83d\ude42", "🙂"),
        ("\ud800🙂\udfff.", "\ufffd🙂\ufffd."),
    ],
)
def test_lone_surrogates_become_the_replacement_character(text: str, clean: str) -> None:
    """Two halves that belong together become their character."""
    assert without_surrogates(text) == clean


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1, "1970-01-01T00:00:00.001Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1_771_237_230_000, "2026-02-16T10:20:30.000Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_timestamps_are_written_as_javascript_writes_them_and_read_back(milliseconds: int, text: str) -> None:
    """`toISOString` with milliseconds and Z, also before 1970 and in the last year."""
    assert iso_timestamp(milliseconds) == text
    assert parse_timestamp(text) == milliseconds


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        ("2026-02-16T10:20:30Z", 1_771_237_230_000),
        ("2026-02-16T10:20:30+00:00", 1_771_237_230_000),
        ("2026-02-16T12:20:30.5+02:00", 1_771_237_230_500),
        ("2026-02-16T10:20:30.123456Z", 1_771_237_230_123),
        ("2026-02-16T10:20:30.9999Z", 1_771_237_230_999),
        ("1969-12-31T23:59:59.9999Z", -1),
        ("2026-02-16", 1_771_200_000_000),
        ("2026-02-16T10:20:30", 1_771_237_230_000),
        ("0001-01-01T00:00:00+14:00", -62_135_647_200_000),
    ],
)
def test_other_iso_forms_are_read(value: str, milliseconds: int) -> None:
    """Offsets, missing or longer fractions, dates alone; fractions of a millisecond are cut off."""
    assert parse_timestamp(value) == milliseconds


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        1.5,
        True,
        [],
        {},
        "",
        "yesterday",
        "2026-13-01T00:00:00.000Z",
        "2026-02-30T00:00:00.000Z",
        "\ud800",
        "2026",
    ],
)
def test_what_is_no_date_is_none(value: object) -> None:
    """The result is `None` where JavaScript returns NaN."""
    assert parse_timestamp(value) is None


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("plain", "plain"),
        ("  two   words  ", "two words"),
        ("a\r\nb\tc", "a b c"),
        ("\x1b[31mred\x9b", "[31mred"),
        ("a \x00 b", "a b"),
        ("\n\r\t", ""),
        ("看 一下", "看 一下"),
    ],
)
def test_names_are_one_clean_line(name: str, clean: str) -> None:
    """Control characters become spaces, runs of spaces become one, and both ends are trimmed."""
    assert clean_name(name) == clean
