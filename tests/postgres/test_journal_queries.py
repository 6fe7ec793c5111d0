"""The number of queries that a journal sends, which does not depend on the load of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pytest

from postgres.journals_rig import Place
from sessile import BlobStore
from sessile.session import SessionView
from sessile.storage.base import ReadableOwnJournal
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.journals import PostgresJournal
from sessile.storage.postgres.leases import Leases
from sessile.testing.journal_contract import (
    HEADER,
    assistant,
    chain,
    contents,
    found,
    ids,
    line,
    marker,
    put,
    unexpected,
)

pytestmark = pytest.mark.mission("B8")

EVERY = 500  # entries between two compactions
KEPT = 50


@pytest.fixture
def place(database: Database, leases: Leases) -> Place:
    return Place(database, leases)


def long_session(entries: int) -> Iterator[bytes]:
    """Yield a linear session with regular compactions and answers of two models."""
    yield HEADER + b"\n"
    parent = None
    for number in range(entries):
        entry_id = f"{number:08x}"
        if number % EVERY == EVERY - 1:
            kept = f"{number - KEPT:08x}"
            yield line(entry_id, parent, "compaction", summary="s", firstKeptEntryId=kept, tokensBefore=1) + b"\n"
        elif number % 2:
            yield assistant(entry_id, parent, f"m{number // EVERY % 2}") + b"\n"
        else:
            yield line(entry_id, parent) + b"\n"
        parent = entry_id


def queries(place: Place, work: Callable[[], object]) -> int:
    """Return the number of statements that some work sends."""
    before = place.database.count
    work()
    return place.database.count - before


def test_a_session_of_100_000_entries_is_resumed_with_three_queries(place: Place) -> None:
    """Opening, the leaf, and the context with its state take three queries, for reading and for writing."""
    path = place.path()
    place.journals.create(path, long_session(100_000))

    def resume(open_: Callable[[str], ReadableOwnJournal]) -> None:
        with closing(open_(path)) as journal:
            view = SessionView(journal, BlobStore("/blobs"))
            context = view.context()
            assert len(context.messages) == KEPT + 1
            assert context.models == {"default": "p/m1"}

    for open_ in (place.journals.read, place.journals.open):
        assert queries(place, partial(resume, open_)) <= 3


def test_an_append_is_one_query(place: Place) -> None:
    """This holds for single lines and batches, after opening, in sequence, and next to a leaf marker."""
    with closing(place.taken_in(b"\n".join((HEADER, *chain("a", "b"), b"")))) as journal:
        for lines in (
            [line("c", "b")],
            [assistant("d", "c", "m")],
            chain("e", "f", "g"),
            [marker("h", "f")],
            [line("i", "f")],
        ):
            assert queries(place, partial(journal.append, lines, unexpected)) == 1
        assert journal.state(found(journal, "d")).models == {"default": "p/m"}


def test_who_follows_appends_with_one_query(place: Place) -> None:
    with closing(place.taken_in(HEADER + b"\n" + line("a") + b"\n")) as one:
        with closing(place.journals.open(one.path)) as two:
            put(two, line("b", "a"))
        assert queries(place, one.follow) == 1
        assert queries(place, lambda: one.append([line("c", "b")], unexpected)) == 1


def test_going_through_all_entries_one_by_one_takes_few_queries(place: Place) -> None:
    """This holds forwards, as in a listing, and backwards, as in a walk to the root."""
    count = 3000
    path = place.path()
    place.journals.create(path, (raw + b"\n" for raw in (HEADER, *chain(*map(str, range(count))))))
    with closing(place.journals.open(path)) as journal:
        assert queries(place, lambda: contents(journal)) < 20
        assert queries(place, lambda: [journal.read(row) for row in journal.up(found(journal, str(count - 1)))]) < 20
        view = SessionView(journal, BlobStore("/blobs"))
        assert queries(place, view.get_branch) < 30
        assert queries(place, view.get_tree) < 30


def test_who_asks_for_new_rows_again_and_again_gets_the_new_ones(place: Place) -> None:
    """This holds for a reader that has read the earlier rows, for a new one, and after a rewrite."""
    with closing(place.taken_in(b"\n".join((HEADER, *chain(*map(str, range(2100))), b"")))) as journal:
        reader = place.journals.read(journal.path)
        assert len(list(reader.rows())) == 2100
        put(journal, line("new", "5"))
        assert ids(reader.rows(2100)) == ids(place.journals.read(journal.path).rows(2100)) == ["new"]
        assert ids(reader.rows(2101)) == []
        assert len(list(reader.rows(50))) == 2051
        journal.replace(lambda raw: HEADER.replace(b"/w", b"/elsewhere") if raw == HEADER else None)
        put(journal, line("newer", "new"))
        assert ids(reader.rows(2101)) == ["newer"]
        assert ids(reader.rows(2098)) == ["2098", "2099", "new", "newer"]


def test_an_append_leaves_nothing_in_memory(place: Place) -> None:
    """A long-lived writer keeps neither links nor lines in memory."""
    journal: PostgresJournal = place.taken_in(HEADER + b"\n")
    parent = None
    for number in range(200):
        put(journal, line(str(number), parent))
        parent = str(number)
    assert len(journal._links) <= 64
    assert not journal._ahead.lines
    journal.close()
