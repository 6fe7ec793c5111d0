"""The contract of a `Journal`, as numbered behaviours for its tests, with sample lines.

    class TestMyJournal(JournalContract):
        @pytest.fixture
        def create(self, tmp_path):
            def create(lines):
                ...  # store these lines, the first of which is the header, as a new journal
                return lambda: MyJournal(...)  # opens another handle on it
            return create

Positions and marks are opaque. Handles are opened by `create` only, so every handle can be another process. Lines are bytes
without a newline. What survives a crash is not tested here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Protocol

import pytest

from sessile.core.context import fold_path, walk
from sessile.core.kinds import LEAF_MARKER, MARKER, MESSAGE, STATE, State, flags_of
from sessile.core.lines import read_head
from sessile.errors import SessileError
from sessile.storage.base import Journal, News, Row

# -- helpers

Open = Callable[[], Journal]
Create = Callable[[Sequence[bytes]], Open]

HEADER = b'{"type":"session","version":3,"id":"the-session","timestamp":"2026-02-16T10:00:00.000Z","cwd":"/w"}'

ODD_IDS = (
    "8 bytes!", "x", "", "nine-char", "\u00e9\u00e9\u00e9\u00e9", "看一下", "\U0001f600" * 8, 'quo"te', "back\\slash",
    "\u2028", "\n\t", "\0", "\ud800", "a" * 500, "0190aaaa-0000-7000-8000-000000000000", "12345678", "1234567\u00e9",
)  # fmt: skip


def line(entry_id: str, parent_id: str | None = None, entry_type: str = "message", **members: Any) -> bytes:
    """Return an entry as a line."""
    entry = {"type": entry_type, "id": entry_id, "parentId": parent_id, **members}
    if entry_type == "message":
        entry.setdefault("message", {"role": "user", "content": "hello"})
    return json.dumps(entry, separators=(",", ":")).encode()


def assistant(entry_id: str, parent_id: str | None, model: str) -> bytes:
    """Return an assistant message with a model."""
    return line(entry_id, parent_id, message={"role": "assistant", "provider": "p", "model": model, "content": []})


def marker(entry_id: str, parent_id: str | None) -> bytes:
    """Return a leaf marker."""
    return line(entry_id, parent_id, "custom", customType=LEAF_MARKER)


def chain(*ids: str) -> list[bytes]:
    """Return messages, each the child of the one before."""
    return [line(entry_id, parent) for entry_id, parent in zip(ids, (None, *ids), strict=False)]


def unexpected(news: News) -> Sequence[bytes]:
    """Fail; used as `revise` where no other handle writes."""
    raise AssertionError(f"unexpected news: {news.rows()}")


def put(journal: Journal, *lines: bytes) -> Sequence[Any]:
    """Append and commit, whatever other handles did; return the positions."""
    appended = journal.append(lines, lambda news: lines)
    journal.commit(appended.mark)
    return appended.positions


def news_of(journal: Journal) -> list[str]:
    """Return the ids of the news of the next append; nothing is written."""
    told: list[str] = []

    def listen(news: News) -> Sequence[bytes]:
        told.extend(ids(news.rows()))
        return ()

    journal.append([line("never")], listen)
    return told


def ids(rows: Iterator[Row] | Sequence[Row]) -> list[str]:
    """Return the ids of rows, in order."""
    return [row.id for row in rows]


class Finder(Protocol):
    """Anything with the `find` of a journal."""

    def find(self, entry_id: str) -> Row | None: ...


def found(journal: Finder, entry_id: str) -> Row:
    """Return the row of an entry that must exist."""
    row = journal.find(entry_id)
    assert row is not None, f"{entry_id!r} is not found"
    return row


def contents(journal: Journal) -> list[bytes]:
    """Return every line after the header."""
    return [journal.read(row) for row in journal.rows()]


@contextmanager
def opened(create: Create, *lines: bytes, handles: int = 1) -> Iterator[Any]:
    """Create a journal with these entries; yield one handle, or a list of several."""
    open_ = create((HEADER, *lines))
    with ExitStack() as stack:
        journals = [stack.enter_context(closing(open_())) for _ in range(handles)]
        yield journals[0] if handles == 1 else journals


class JournalReadingContract:
    """The behaviours J01 to J15."""

    def test_j01_the_header_is_returned_byte_for_byte_and_is_not_an_entry(self, create: Create) -> None:
        """The header line is returned exactly, and is not among rows, results of `find` or paths."""
        with opened(create, *chain("a")) as journal:
            assert journal.header() == HEADER
            assert ids(journal.rows()) == ["a"]
            assert journal.find("the-session") is None

    def test_j02_a_new_journal_is_empty(self, create: Create) -> None:
        """It has no entries and no findings."""
        with opened(create) as journal:
            assert journal.last() is journal.title() is journal.find("a") is None
            assert list(journal.rows()) == list(journal.findings()) == []
            assert journal.labels() == {}

    def test_j03_lines_are_read_byte_for_byte(self, create: Create) -> None:
        """Spaces, escapes, unknown members and large numbers stay as they were written."""
        lines = [
            b'{ "type" : "message", "id" : "a", "parentId" : null, "message" : {"role":"user"} }',
            '{"id":"b","type":"new_kind","parentId":"a","x":"看\\u00e9\\ud800"}'.encode(),
            b'{"type":"custom","parentId":"b","id":"c","n":123456789012345678901234567890,"f":1.50}',
        ]
        with opened(create, *lines[:2]) as journal:
            put(journal, lines[2])
            assert contents(journal) == lines

    def test_j04_rows_have_id_parent_and_flags_in_order(self, create: Create) -> None:
        """A row agrees with the head of its line."""
        lines = [
            *chain("a", "b"),
            line("l", "b", "label", targetId="a", label="x"),
            marker("m", "a"),
            line("c", "l", "?"),
        ]
        with opened(create, *lines) as journal:
            for row, raw in zip(journal.rows(), lines, strict=True):
                head = read_head(raw)
                assert (row.id, row.parent_id, row.flags) == (head.id, head.parentId, flags_of(head))
            assert journal.count() == len(lines) - 1  # markers are not counted

    def test_j05_last_is_the_last_entry_of_any_kind(self, create: Create) -> None:
        """A leaf marker counts, because opening needs it."""
        with opened(create, *chain("a", "b")) as journal:
            assert journal.last().id == "b"
            put(journal, marker("m", "a"))
            assert journal.last().id == "m"
            assert journal.last().flags == MARKER

    @pytest.mark.parametrize("entry_id", ODD_IDS)
    def test_j06_an_id_may_be_any_string(self, create: Create, entry_id: str) -> None:
        """Length, alphabet and escapes do not matter, as id or as parent; an empty parent means no parent."""
        with opened(create, line("first"), line(entry_id, "first"), line("between", entry_id or None)) as journal:
            assert ids(journal.up(found(journal, "between"))) == (
                ["between", entry_id, "first"] if entry_id else ["between"]
            )
            put(journal, line(entry_id + "!", entry_id), line("end", entry_id + "!"))
            row = found(journal, entry_id)
            assert (row.id, row.parent_id) == (entry_id, "first")
            assert json.loads(journal.read(row))["id"] == entry_id
            assert found(journal, "end").parent_id == entry_id + "!"
            assert found(journal, entry_id + "!").parent_id == (entry_id or None)
            assert journal.find(entry_id + "?") is None

    def test_j07_of_two_entries_with_one_id_the_later_is_found_and_both_stay(self, create: Create) -> None:
        """Duplicates are kept in `rows`, each with its own bytes, and reported."""
        lines = [line("a"), line("b", "a", n=1), line("c", "b"), line("b", None, n=2)]
        with opened(create, *lines) as journal:
            assert contents(journal) == lines
            assert json.loads(journal.read(found(journal, "b")))["n"] == 2
            assert ids(journal.up(found(journal, "c"))) == ["c", "b"]
            first = next(row for row in journal.rows() if row.id == "b")
            assert ids(journal.up(first)) == ["b", "a"]
            assert "duplicate_id" in {finding.code for finding in journal.findings()}

    def test_j08_up_goes_from_child_to_root(self, create: Create) -> None:
        """Each step is the parent of the one before; other branches do not appear."""
        with opened(create, *chain("a", "b", "c"), line("d", "b"), line("e", "d")) as journal:
            assert ids(journal.up(found(journal, "e"))) == ["e", "d", "b", "a"]
            assert ids(journal.up(found(journal, "c"))) == ["c", "b", "a"]
            assert ids(journal.up(found(journal, "a"))) == ["a"]

    def test_j09_up_ends_at_a_missing_parent(self, create: Create) -> None:
        """The last row names the missing parent, and the journal reports it."""
        with opened(create, line("a"), line("b", "gone"), line("c", "b")) as journal:
            path = list(journal.up(found(journal, "c")))
            assert ids(path) == ["c", "b"]
            assert path[-1].parent_id == "gone"
            assert [finding.code for finding in journal.findings()] == ["missing_parent"]

    def test_j10_up_ends_at_a_circle(self, create: Create) -> None:
        """No entry appears twice, even if an entry is its own parent."""
        with opened(create, line("a", "c"), line("b", "a"), line("c", "b"), line("x", "b"), line("s", "s")) as journal:
            assert ids(journal.up(found(journal, "c"))) == ["c", "b", "a"]
            assert ids(journal.up(found(journal, "x"))) == ["x", "b", "a", "c"]
            assert ids(journal.up(found(journal, "s"))) == ["s"]
            assert "cycle" in {finding.code for finding in journal.findings()}

    def test_j11_a_parent_may_come_after_its_child(self, create: Create) -> None:
        """A line that was moved or merged still has its parent, even if the parent is appended later."""
        with opened(create, line("c", "b"), line("b", "a")) as journal:
            assert ids(journal.up(found(journal, "c"))) == ["c", "b"]
            put(journal, line("a"))
            assert ids(journal.up(found(journal, "c"))) == ["c", "b", "a"]

    def test_j12_state_is_what_the_path_has_set(self, create: Create) -> None:
        """Levels, models and modes on the path count, in order; those of other branches do not."""
        lines = [
            line("a"),
            line("t", "a", "thinking_level_change", thinkingLevel="low"),
            assistant("b", "t", "m1"),
            line("x", "a", "mode_change", mode="plan", data={"deep": [1, 2.5, None]}),
            assistant("y", "x", "m2"),
            line("z", "b", "model_change", model="q/m3", role="small"),
        ]
        with opened(create, *lines) as journal:
            assert journal.state(found(journal, "a")) == State()
            assert journal.state(found(journal, "b")) == State(thinking_level="low", models={"default": "p/m1"})
            assert journal.state(found(journal, "y")) == State(
                mode="plan", mode_data={"deep": [1, 2.5, None]}, models={"default": "p/m2"}
            )
            assert journal.state(found(journal, "z")).models == {"default": "p/m1", "small": "q/m3"}

    def test_j13_state_equals_folding_the_path(self, create: Create) -> None:
        """Even with missing, late or circular parents, duplicate ids and unusual values."""
        lines = [
            line("a", "late", "thinking_level_change", thinkingLevel="\ud800"),
            line("b", "a", "mode_change", mode="m", data=10**30),
            line("c", "b", "ttsr_injection", injectedRules=["r", "s"]),
            line("late", None, "service_tier_change", serviceTier="flex"),
            line("d", "gone", "mcp_tool_selection", selectedToolNames=["t"]),
            line("e", "f", "context_change", contextName="n"),
            line("f", "e", "thinking_level_change", thinkingLevel=None),
            line("a", "d", "thinking_level_change", thinkingLevel="x"),
        ]
        with opened(create, *lines) as journal:
            entries = [json.loads(raw) for raw in lines]
            by_id = {entry["id"]: entry for entry in entries}
            for row, entry in zip(journal.rows(), entries, strict=True):
                assert journal.state(row) == fold_path(walk(entry, by_id)[0])

    def test_j14_labels_and_title_are_found_on_any_branch(self, create: Create) -> None:
        """The last label of an entry counts; the title is the last one on any branch."""
        lines = [
            line("a"),
            line("l1", "a", "label", targetId="a", label="one"),
            line("n1", "l1", "session_info", name="first"),
            line("l2", "a", "label", targetId="b", label="two"),
            line("l3", "a", "label", targetId="a", label=None),
            line("n2", "a", "session_info", name="second"),
        ]
        with opened(create, *lines[:5]) as journal:
            assert journal.labels() == {"b": "two"}
            assert journal.title().id == "n1"
            put(journal, lines[5])
            assert journal.title().id == "n2"

    def test_j15_nothing_is_reported_about_a_sound_journal(self, create: Create) -> None:
        """Branches, markers, unknown kinds and several roots are valid."""
        lines = [*chain("a", "b"), line("c", "a"), line("root"), marker("m", "c"), line("d", "c", "unheard_of")]
        with opened(create, *lines) as journal:
            assert list(journal.findings()) == []


# -- the contract

__all__ = ["Create", "JournalContract", "Open"]


class JournalContract(JournalReadingContract):
    """The behaviours J01 to J33. Subclasses provide the fixture `create`."""

    # -- appending

    def test_j16_an_append_is_seen_at_once_and_by_every_handle(self, create: Create) -> None:
        """The positions are those of the lines, in order, for the handle that wrote and for all others."""
        with opened(create, *chain("a"), handles=2) as (one, two):
            lines = [line("b", "a"), line("c", "b"), line("d", "c")]
            appended = one.append(lines, unexpected)
            one.commit(appended.mark)
            assert len(appended.positions) == 3
            for journal in (one, two):
                assert ids(journal.rows()) == ["a", "b", "c", "d"]
                assert [found(journal, i).position for i in "bcd"] == list(appended.positions)
                assert contents(journal)[1:] == lines

    def test_j17_revise_is_not_called_while_no_other_handle_writes(self, create: Create) -> None:
        """A handle's own lines are not news, however many appends there were."""
        with opened(create) as journal:
            for number in range(20):
                journal.commit(journal.append([line(str(number))], unexpected).mark)
            assert len(list(journal.rows())) == 20

    def test_j18_news_are_the_rows_of_other_handles(self, create: Create) -> None:
        """They are rows in order, reported once, and `child_of` finds new children."""
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
        """However the parent is written: with or without escapes and spaces."""
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

    def test_j20_reading_does_not_consume_the_news(self, create: Create) -> None:
        """Lines of other handles are news for the next append, even if they were read before."""
        with opened(create, *chain("a"), handles=2) as (one, two):
            put(two, line("b", "a"))
            assert one.last().id == "b"
            assert one.find("b") is not None
            assert (len(list(one.rows())), one.state(one.last()), list(one.findings())) == (2, State(), [])
            assert news_of(one) == ["b"]

    def test_j21_the_revised_lines_are_written_instead(self, create: Create) -> None:
        """They may be more, fewer or other lines; the positions are theirs."""
        with opened(create, *chain("a"), handles=2) as (one, two):
            put(two, line("b", "a"))
            new = [line("c", "b"), line("d", "c")]
            appended = one.append([line("c", "a")], lambda news: new)
            one.commit(appended.mark)
            assert len(appended.positions) == 2
            assert contents(one)[2:] == contents(two)[2:] == new

    def test_j22_revising_to_nothing_writes_nothing_and_keeps_the_news(self, create: Create) -> None:
        """The next append gets the same news again."""
        with opened(create, *chain("a"), handles=2) as (one, two):
            put(two, line("b", "a"))
            appended = one.append([line("c", "a")], lambda news: ())
            assert not appended.positions
            one.commit(appended.mark)
            assert ids(one.rows()) == ["a", "b"]
            assert news_of(one) == news_of(one) == ["b"]

    def test_j23_an_error_while_revising_writes_nothing_and_passes_through(self, create: Create) -> None:
        """The error is raised unchanged, and the journal stays usable for all handles."""
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
        """Everything appended before a mark is durable too."""
        with opened(create) as journal:
            marks = [journal.append([line(str(number))], unexpected).mark for number in range(4)]
            for number in (2, 0, 3, 3, 1):
                journal.commit(marks[number])

    def test_j26_many_handles_in_many_threads_lose_nothing(self, create: Create) -> None:
        """Every line is there once and complete, in the order of its writer, with an existing parent."""
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
        """Appends of threads that share a handle are complete lines, each at its own position."""
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

    def test_j28_a_paused_iterator_blocks_no_other_thread(self, create: Create) -> None:
        """A walk may pause while another thread appends; it yields what was there when it started."""
        with opened(create, *chain(*map(str, range(40)))) as journal:
            rows, path = journal.rows(), journal.up(found(journal, "39"))
            assert (next(rows).id, next(path).id) == ("0", "39")
            thread = threading.Thread(target=lambda: put(journal, line("new", "39")), daemon=True)
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
            assert (len(list(rows)), len(list(path))) == (39, 39)
            assert journal.last().id == "new"

    # -- replacing and closing

    def test_j29_replacing_changes_the_edited_lines_and_no_other(self, create: Create) -> None:
        """Order, other lines and paths stay the same; the header can be edited too."""
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
        """The error is raised unchanged, and the journal is unchanged and usable."""
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
        """Closing twice is allowed; appending and reading after it raise."""
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
        """A path of a thousand entries with states and labels works."""
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

    def test_j33_followed_rows_are_not_news(self, create: Create) -> None:
        """Rows of other handles are not news after `follow`; later ones are."""
        with opened(create, *chain("a"), handles=2) as (one, two):
            put(two, line("b", "a"))
            last = one.follow()
            assert last is not None and last.id == "b"
            one.append([line("c", "b")], unexpected)
            put(two, line("d", "c"))
            assert news_of(one) == ["d"]
        with opened(create) as empty:
            assert empty.follow() is None
