"""What every `Journal` must do, as numbered behaviours.

    class TestMyJournal(JournalContract):
        @pytest.fixture
        def create(self, tmp_path):
            def create(lines):
                ...  # store these lines, the first of which is the header, as a new journal
                return lambda: MyJournal(...)  # opens one more handle on it
            return create

Rules: nothing here looks at a position or a mark, they belong to the journal; handles are opened by `create` only, so
that every handle can be another process. Lines are bytes without a newline.

It does not know what survives a crash, nor what a file looks like.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from sessile.core.kinds import MESSAGE, STATE, State
from sessile.errors import SessileError
from sessile.storage.base import News, Row
from sessile.testing.journal_reading import (
    HEADER,
    ODD_IDS,
    Create,
    JournalReadingContract,
    Open,
    assistant,
    chain,
    contents,
    found,
    ids,
    line,
    marker,
    news_of,
    opened,
    put,
    unexpected,
)

__all__ = ["Create", "JournalContract", "Open"]


class JournalContract(JournalReadingContract):
    """The behaviours J01 to J33. Subclasses provide the fixture `create`."""

    # Appending

    def test_j16_an_append_is_seen_at_once_and_by_every_handle(self, create: Create) -> None:
        """The positions are those of the lines, in order, for the one that wrote and for the others."""
        with opened(create, *chain("a"), handles=2) as (one, two):
            lines = [line("b", "a"), line("c", "b"), line("d", "c")]
            appended = one.append(lines, unexpected)
            one.commit(appended.mark)
            assert len(appended.positions) == 3
            for journal in (one, two):
                assert ids(journal.rows()) == ["a", "b", "c", "d"]
                assert [found(journal, i).position for i in "bcd"] == list(appended.positions)
                assert contents(journal)[1:] == lines

    def test_j17_nobody_is_asked_to_revise_while_nobody_else_writes(self, create: Create) -> None:
        """Own lines are no news, however many appends there were."""
        with opened(create) as journal:
            for number in range(20):
                journal.commit(journal.append([line(str(number))], unexpected).mark)
            assert len(list(journal.rows())) == 20

    def test_j18_news_are_the_rows_that_others_appended(self, create: Create) -> None:
        """They come as rows in order, once, and say who has got a child."""
        with opened(create, *chain("a", "b"), handles=2) as (one, two):
            put(
                two,
                line("c", "b"),
                marker("m", "a"),
                line("d", "c", message={"role": "user", "content": '"parentId":"a2"'}),
            )
            seen: list[list[Row]] = []

            def revise(news: News) -> list[bytes]:
                seen.append(list(news.rows()))
                assert [entry_id for entry_id in ("a", "b", "c", "d", "a2", "none") if news.child_of(entry_id)] == [
                    "a",
                    "b",
                    "c",
                ]
                return [line("e", "d")]

            one.append([line("e", "b")], revise)
            one.append([line("f", "e")], unexpected)
            assert [ids(rows) for rows in seen] == [["c", "m", "d"]]
            assert seen[0] == list(two.rows())[2:5]

    @pytest.mark.parametrize("entry_id", ODD_IDS[:2] + ODD_IDS[3:])
    def test_j19_children_of_odd_ids_are_noticed(self, create: Create, entry_id: str) -> None:
        """However the parent is written: escaped or not, with spaces or without."""
        parents = [json.dumps(entry_id, ensure_ascii=True)]
        if entry_id != "\ud800":
            parents.append(json.dumps(entry_id, ensure_ascii=False))
        if max(entry_id) < "\U00010000":
            parents.append('"' + "".join(f"\\u{ord(char):04x}" for char in entry_id) + '"')
        for parent in parents:
            for colon in (":", " : "):
                raw = f'{{"type"{colon}"message","id"{colon}"c","parentId"{colon}{parent}}}'.encode()
                with opened(create, line(entry_id), handles=2) as (one, two):
                    put(two, raw)
                    noticed: list[bool] = []

                    def revise(news: News, noticed: list[bool] = noticed) -> list[bytes]:
                        noticed.append(news.child_of(entry_id) and not news.child_of("c"))
                        return [line("d", "c")]

                    one.append([line("d", entry_id)], revise)
                    assert noticed == [True]

    def test_j20_reading_does_not_use_up_the_news(self, create: Create) -> None:
        """What others wrote is news for the next append, even if it was looked at before."""
        with opened(create, *chain("a"), handles=2) as (one, two):
            put(two, line("b", "a"))
            assert one.last().id == "b"
            assert one.find("b") is not None
            assert (len(list(one.rows())), one.state(one.last()), list(one.findings())) == (2, State(), [])
            assert news_of(one) == ["b"]

    def test_j21_the_revised_lines_are_written_instead(self, create: Create) -> None:
        """More, fewer or other lines than at first; the positions are theirs."""
        with opened(create, *chain("a"), handles=2) as (one, two):
            put(two, line("b", "a"))
            new = [line("c", "b"), line("d", "c")]
            appended = one.append([line("c", "a")], lambda news: new)
            one.commit(appended.mark)
            assert len(appended.positions) == 2
            assert contents(one)[2:] == contents(two)[2:] == new

    def test_j22_revising_to_nothing_writes_nothing_and_keeps_the_news(self, create: Create) -> None:
        """The next append is asked again about the same entries."""
        with opened(create, *chain("a"), handles=2) as (one, two):
            put(two, line("b", "a"))
            appended = one.append([line("c", "a")], lambda news: ())
            assert not appended.positions
            one.commit(appended.mark)
            assert ids(one.rows()) == ["a", "b"]
            assert news_of(one) == news_of(one) == ["b"]

    def test_j23_an_error_while_revising_writes_nothing_and_passes_through(self, create: Create) -> None:
        """The caller gets its own error, and the journal stays usable for it and for the others."""
        with opened(create, *chain("a"), handles=2) as (one, two):
            put(two, line("b", "a"))

            def refuse(news: News) -> Sequence[bytes]:
                raise OSError("mine")

            with pytest.raises(OSError, match="mine"):
                one.append([line("c", "a")], refuse)
            assert ids(two.rows()) == ["a", "b"]
            put(two, line("c", "b"))
            put(one, line("d", "c"))
            assert ids(one.rows()) == ids(two.rows()) == ["a", "b", "c", "d"]

    def test_j24_appending_nothing_writes_nothing(self, create: Create) -> None:
        """An empty batch has no positions, and can be committed."""
        with opened(create, *chain("a")) as journal:
            appended = journal.append([], unexpected)
            journal.commit(appended.mark)
            assert not appended.positions
            assert contents(journal) == chain("a")

    def test_j25_marks_can_be_committed_in_any_order_and_more_than_once(self, create: Create) -> None:
        """Whatever was appended before a mark is durable as well."""
        with opened(create) as journal:
            marks = [journal.append([line(str(number))], unexpected).mark for number in range(4)]
            for number in (2, 0, 3, 3, 1):
                journal.commit(marks[number])

    def test_j26_many_handles_in_many_threads_lose_nothing(self, create: Create) -> None:
        """Every line is there once, whole, in the order of its writer, below a parent that exists."""
        open_ = create((HEADER, *chain("first")))

        def work(name: str) -> None:
            parent = "first"
            with closing(open_()) as journal:
                for number in range(25):
                    entry_id = f"{name}{number}"
                    put(journal, line(entry_id, parent, pad="x" * (number * 37 % 500)))
                    parent = entry_id

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, "pqrs"))
        with closing(open_()) as journal:
            rows = ids(journal.rows())
            assert len(rows) == len(set(rows)) == 101
            for name in "pqrs":
                assert [i for i in rows if i.startswith(name)] == [f"{name}{number}" for number in range(25)]
            assert list(journal.findings()) == []

    def test_j27_one_handle_serves_many_threads(self, create: Create) -> None:
        """Appends of threads that share a handle are whole lines, each at its own position."""
        with opened(create) as journal:
            positions: dict[str, Any] = {}

            def work(name: str) -> None:
                for number in range(25):
                    appended = journal.append([line(f"{name}{number}")], unexpected)
                    journal.commit(appended.mark)
                    positions[f"{name}{number}"] = appended.positions[0]

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(work, "pqrs"))
            assert {row.id: row.position for row in journal.rows()} == positions

    def test_j28_an_iterator_that_is_left_alone_blocks_nobody(self, create: Create) -> None:
        """A walk in one thread may rest while another thread appends; it shows what was there when it began."""
        with opened(create, *chain(*map(str, range(40)))) as journal:
            rows, path = journal.rows(), journal.up(found(journal, "39"))
            assert (next(rows).id, next(path).id) == ("0", "39")
            thread = threading.Thread(target=lambda: put(journal, line("new", "39")), daemon=True)
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
            assert (len(list(rows)), len(list(path))) == (39, 39)
            assert journal.last().id == "new"

    # Replacing and closing

    def test_j29_replacing_changes_the_edited_lines_and_no_other(self, create: Create) -> None:
        """Order, untouched lines and their walks stay; the header can be edited too."""
        lines = [*chain("a", "b"), line("c", "b", "thinking_level_change", thinkingLevel="low"), line("d", "c")]
        with opened(create, *lines, handles=2) as (one, two):
            longer = line("b", "a", text="x" * 5000)
            header = HEADER.replace(b"/w", b"/elsewhere")
            assert one.last().id == "d"
            one.replace(lambda raw: {lines[1]: longer, HEADER: header}.get(raw))
            assert contents(one) == [lines[0], longer, *lines[2:]]
            assert one.header() == header
            assert ids(one.up(found(one, "d"))) == ["d", "c", "b", "a"]
            assert one.state(found(one, "d")).thinking_level == "low"
            put(one, line("e", "d"))
            put(two, line("f", "e"))
            put(one, line("g", "f"))
            for journal in (one, two):
                assert contents(journal)[1] == longer
                assert ids(journal.rows()) == ["a", "b", "c", "d", "e", "f", "g"]

    def test_j30_an_error_while_editing_changes_nothing(self, create: Create) -> None:
        """The caller gets its own error and the journal is as before, and usable."""
        with opened(create, *chain("a", "b", "c"), handles=2) as (one, two):

            def edit(raw: bytes) -> bytes | None:
                if raw == chain("a", "b")[1]:
                    raise KeyError("mine")
                return line("a", None, changed=True) if raw == line("a") else None

            with pytest.raises(KeyError, match="mine"):
                one.replace(edit)
            put(one, line("d", "c"))
            assert contents(one) == contents(two) == chain("a", "b", "c", "d")

    def test_j31_a_closed_journal_refuses_with_a_typed_error(self, create: Create) -> None:
        """Closing twice is no error; appending and reading after it are."""
        open_ = create((HEADER, *chain("a")))
        journal = open_()
        row = found(journal, "a")
        journal.close()
        journal.close()
        for use in (
            lambda: journal.append([line("b")], unexpected),
            lambda: journal.find("a"),
            lambda: journal.read(row),
            lambda: list(journal.rows()),
            lambda: journal.replace(lambda raw: None),
        ):
            with pytest.raises(SessileError):
                use()
        with closing(open_()) as again:
            assert contents(again) == chain("a")

    def test_j32_a_long_journal_is_walked_without_recursion(self, create: Create) -> None:
        """A thousand levels deep, with states and labels on the way, everything still fits together."""
        lines = [line("0")]
        for number in range(1, 1500):
            parent = str(number - 1)
            if number % 100 == 0:
                lines.append(line(str(number), parent, "thinking_level_change", thinkingLevel=number))
            elif number % 7 == 0:
                lines.append(assistant(str(number), parent, f"m{number % 3}"))
            else:
                lines.append(line(str(number), parent))
        with opened(create, *lines, handles=2) as (one, two):
            for journal in (one, two):
                leaf = journal.last()
                path = list(journal.up(leaf))
                assert ids(path) == [str(number) for number in range(1499, -1, -1)]
                assert journal.state(leaf) == State(thinking_level=1400, models={"default": "p/m1"})
                assert sum(1 for row in path if row.flags & STATE) == len(
                    [n for n in range(1, 1500) if not n % 100 or not n % 7]
                )
                assert sum(1 for row in path if row.flags & MESSAGE) == 1500 - 14

    def test_j33_what_was_followed_is_no_news(self, create: Create) -> None:
        """Whoever has looked at what others appended is not asked about it again; what comes later is news."""
        with opened(create, *chain("a"), handles=2) as (one, two):
            put(two, line("b", "a"))
            last = one.follow()
            assert last is not None and last.id == "b"
            one.append([line("c", "b")], unexpected)
            put(two, line("d", "c"))
            assert news_of(one) == ["d"]
        with opened(create) as empty:
            assert empty.follow() is None
