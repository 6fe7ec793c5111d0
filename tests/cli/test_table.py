"""Tables at a terminal: every line fits, and no number is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessile.cli.output import Cell, Column, Lines, Step, aligned
from sessile.core.visible import width

COLUMNS = (
    Column("id"),
    Column("n", right=True),
    Column("place", soft=True),
    Column("what", wide=True),
    Column("m", True),
)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Mn", "Me", "Cf")), max_size=60)
NUMBER = st.integers(0, 10**9).map(str)
ROWS = st.lists(st.tuples(st.just("6513270e"), NUMBER, TEXT, TEXT, NUMBER), min_size=1, max_size=5)


def printed(rows: list[tuple[str, ...]], room: int) -> list[str]:
    """Return the lines of a table."""
    lines = aligned(COLUMNS, [[Cell(text) for text in row] for row in rows], room)
    return ["".join(span.text for span in line) for line in lines]


@given(ROWS, st.integers(40, 200))
def test_no_line_is_wider_than_the_room_and_no_number_is_cut(rows: list[tuple[str, ...]], room: int) -> None:
    """This holds for any text in any script."""
    lines = printed(rows, room)
    assert max(map(width, lines)) <= room
    words = " ".join(lines).replace(";", " ").split()
    assert all(number in words for row in rows for number in (row[1], row[4]))


def test_columns_stand_below_their_heads() -> None:
    """Numbers are right-aligned and texts left-aligned, also with double-width characters."""
    lines = printed([("6513270e", "7", "here", "购物车", "10"), ("910bb424", "120", "there", "two words", "9")], 80)
    assert lines == [
        "id          n  place  what        m",
        "6513270e    7  here   购物车     10",
        "910bb424  120  there  two words   9",
    ]


def test_the_wide_column_gives_way_first_then_the_soft_one_then_both_stand_below() -> None:
    """If even the numbers do not fit, a row is written as words."""
    row = ("6513270e", "7", "p" * 40, "w" * 60, "10")
    assert "p" * 40 in printed([row], 100)[1] and "…" in printed([row], 100)[1]
    assert printed([row], 70)[1].count("…") == 2
    assert printed([row], 40)[1:] == ["6513270e  7  10", "    " + "w" * 35 + "…", "    " + "p" * 35 + "…"]
    assert printed([row], 14)[0].startswith("id: 6513270e;")


def test_a_table_without_rows_has_no_heads() -> None:
    """An empty table prints nothing."""
    assert printed([], 80) == []


def test_progress_beyond_its_total_is_shown_as_all_of_it() -> None:
    """A total that was too small never shows as thousands of per cent."""
    said: list[str] = []
    lines = Lines("Reading", said.append)
    lines._last -= 60
    lines.show(Step(366_871, 100))
    assert said == ["Reading … 100 %"]
