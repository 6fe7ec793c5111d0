"""A journal in PostgreSQL keeps the numbered behaviours of all journals, and the rules of a store's journals."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import cycle

import pytest

from journal_rig import settled
from postgres.journals_rig import ROOT, Place, place_at
from sessile import BlobStore
from sessile.core.lines import Line
from sessile.errors import NotASession, SessionBusy, SessionExists, SessionNotFound
from sessile.session import SessionView
from sessile.storage import drafts
from sessile.storage.memory import MemoryFilesystem
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.leases import Leases
from sessile.storage.reader import JournalReader
from sessile.testing.journal_contract import (
    HEADER,
    Create,
    JournalContract,
    Open,
    chain,
    contents,
    found,
    ids,
    line,
    news_of,
    put,
    unexpected,
)

pytestmark = pytest.mark.mission("B8")

OTHER_HEADER = HEADER.replace(b"the-session", b"another")


@pytest.fixture
def place(database: Database, leases: Leases) -> Place:
    return Place(database, leases, patience=0.3)


class TestPostgresJournal(JournalContract):
    """Rows of a table; every second handle has its own connections, as in another process."""

    @pytest.fixture
    def create(self, place: Place, postgres_url: str) -> Iterator[Create]:
        other = place_at(postgres_url)
        turns = cycle((place, other))

        def create(lines: Sequence[bytes]) -> Open:
            path = place.path()
            place.journals.create(path, [raw + b"\n" for raw in lines])
            return lambda: next(turns).journals.open(path)

        yield create
        other.close()


# -- creating


def test_a_journal_is_created_once(place: Place) -> None:
    """Creating the same path again raises, and the existing journal is unchanged."""
    path = f"{ROOT}/sessions/--w--/a.jsonl"
    place.journals.create(path, [HEADER + b"\n", chain("a")[0] + b"\n"])
    with pytest.raises(SessionExists) as refused:
        place.journals.create(path, [HEADER + b"\n"])
    assert refused.value.path == path
    with closing(place.journals.open(path)) as journal:
        assert contents(journal) == chain("a")


def test_lines_that_fail_in_the_middle_leave_nothing(place: Place) -> None:
    """A journal is created completely or not at all."""
    path = place.path()

    def failing() -> Iterator[bytes]:
        yield HEADER + b"\n"
        yield from (raw + b"\n" for raw in chain(*map(str, range(5000))))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        place.journals.create(path, failing())
    assert place.fs.names_in.look(path) is None
    assert place.database.query("SELECT count(*) FROM entry") == [(0,)]


def test_lines_without_a_header_make_no_journal(place: Place) -> None:
    with pytest.raises(NotASession):
        place.journals.create(place.path(), chain("a"))


def test_obtaining_makes_a_journal_once_and_fills_an_empty_file(place: Place) -> None:
    """`obtain` keeps existing lines, of a journal or of a file of bytes."""
    path, empty, bytes_ = place.path(), place.put(b""), place.put(HEADER + b"\n" + line("a"))
    for _ in range(2):
        place.journals.obtain(path, HEADER)
        place.journals.obtain(empty, HEADER)
        place.journals.obtain(bytes_, OTHER_HEADER)
    assert place.content(path) == place.content(empty) == HEADER + b"\n"
    assert place.content(bytes_) == HEADER + b"\n" + line("a")


@pytest.mark.parametrize("data", [b"", b"garbage\n", chain("a")[0] + b"\n", b'{"type":"session","id":5}\n'])
def test_what_is_no_session_is_refused_and_stays_as_it_is(place: Place, data: bytes) -> None:
    """Opening for writing or reading raises and changes nothing, as with files."""
    path = place.put(data)
    for open_ in (place.journals.open, place.journals.read):
        with pytest.raises(NotASession):
            open_(path)
    assert place.content(path) == data
    assert not place.is_journal(path)


def test_what_is_not_there_is_not_found(place: Place) -> None:
    for open_ in (place.journals.open, place.journals.read):
        with pytest.raises(SessionNotFound) as missing:
            open_(f"{ROOT}/no/such.jsonl")
        assert missing.value.path == f"{ROOT}/no/such.jsonl"


# -- files of bytes


def test_reading_a_file_of_bytes_leaves_it_one_and_writing_takes_it_in(place: Place) -> None:
    """The bytes are the same before and after the conversion."""
    data = b"\xef\xbb\xbf" + HEADER + b"\r\n" + b"\n".join(chain("a", "b")) + b"\n\0\0torn"
    path = place.put(data)
    with closing(place.journals.read(path)) as reader:
        assert ids(reader.rows()) == ["a", "b"]
    assert not place.is_journal(path)
    with closing(place.journals.open(path)) as journal:
        assert place.is_journal(path)
        assert place.content(path) == data
        assert place.database.query("SELECT count(*) FROM piece") == [(0,)]
        put(journal, line("c", "b"))
    assert place.content(path) == data + b"\n" + line("c", "b") + b"\n"


def test_a_journal_replaced_by_a_file_of_bytes_goes_on_in_it(place: Place) -> None:
    """After a copy was restored to its path, an open handle converts it and appends there."""
    journal = place.taken_in(HEADER + b"\n" + line("a") + b"\n")
    put(journal, line("b", "a"))
    place.put(HEADER + b"\n" + line("restored") + b"\n", journal.path)
    put(journal, line("c", "restored"))
    assert place.content(journal.path).split(b"\n")[1:-1] == [line("restored"), line("c", "restored")]
    journal.close()


# -- names


def test_a_renamed_journal_is_gone_on_with_by_its_own_handle_only(place: Place) -> None:
    """Other handles find nothing under the old name: what they wrote could be lost with the trash."""
    one, path = place.taken_in(HEADER + b"\n"), place.path()
    with closing(place.journals.open(one.path)) as two:
        one.rename(path)
        put(one, line("a"))
        with pytest.raises(SessionNotFound):
            put(two, line("b"))
        assert two.failure is not None
        with pytest.raises(SessionNotFound):
            two.close()
    assert one.path == path
    assert place.content(path) == HEADER + b"\n" + line("a") + b"\n"
    with pytest.raises(SessionExists):
        one.rename(path)
    one.close()


def test_another_session_under_the_same_name_is_not_written_into(place: Place) -> None:
    journal = place.taken_in(HEADER + b"\n" + line("a") + b"\n")
    place.put(OTHER_HEADER + b"\n", journal.path)
    assert contents(journal) == [line("a")]  # an open handle can still read
    with pytest.raises(SessionNotFound, match="another session"):
        put(journal, line("b"))
    with pytest.raises(SessionNotFound):
        put(journal, line("b"))
    assert place.content(journal.path) == OTHER_HEADER + b"\n"
    with pytest.raises(SessionNotFound):
        journal.close()


def test_a_journal_in_the_trash_can_be_read_but_not_appended_to(place: Place) -> None:
    journal, path = place.taken_in(HEADER + b"\n" + line("a") + b"\n"), place.path()
    place.fs.rename(journal.path, path)
    assert contents(journal) == [line("a")]
    with pytest.raises(SessionNotFound):
        put(journal, line("b"))
    assert place.content(path) == HEADER + b"\n" + line("a") + b"\n"
    place.fs.rename(path, journal.path)
    journal.reopen()
    put(journal, line("b"))
    assert contents(journal) == [line("a"), line("b")]
    journal.close()


# -- replacing


def test_the_old_journal_is_kept_under_its_name(place: Place) -> None:
    """The kept journal is identical byte for byte, and later appends do not change it."""
    before = HEADER + b"\n" + b"\n".join(chain("a", "b")) + b"\n\0\0"
    journal, kept = place.taken_in(before), f"{ROOT}/originals/kept"
    other = place.journals.open(journal.path)
    journal.replace(lambda raw: line("a", text="edited") if raw == line("a") else None, keep=kept)
    assert place.content(kept) == before
    put(other, line("c", "b"))
    assert place.content(kept) == before
    assert contents(journal) == [line("a", text="edited"), line("b", "a"), line("c", "b")]
    with pytest.raises(SessionExists):
        journal.replace(lambda raw: None, keep=kept)
    assert contents(other)[-1] == line("c", "b")
    journal.close()
    other.close()


def test_news_stay_news_when_the_journal_is_replaced(place: Place) -> None:
    """Entries that another handle appended before the replacement are reported at the next append."""
    one = place.taken_in(HEADER + b"\n" + line("a") + b"\n")
    with closing(place.journals.open(one.path)) as two:
        put(two, line("b", "a"))
    one.replace(lambda raw: line("a", longer="x" * 100) if raw == line("a") else None)
    assert news_of(one) == ["b"]
    one.close()


def test_a_walk_survives_that_the_journal_is_replaced(place: Place) -> None:
    """Reading of rows and lines that was started before continues in the new journal."""
    names = [str(number) for number in range(2500)]
    journal = place.taken_in(b"".join(raw + b"\n" for raw in (HEADER, *chain(*names))))
    rows = journal.rows()
    shown = [next(rows)]
    with closing(place.journals.open(journal.path)) as other:
        other.replace(lambda raw: HEADER.replace(b"/w", b"/elsewhere/and/longer") if raw == HEADER else None)
    shown += rows
    assert ids(shown) == names
    assert list(journal.read_many(shown)) == chain(*names)
    assert journal.header() != HEADER
    journal.close()


def test_items_are_all_lines_and_findings_in_order(place: Place) -> None:
    data = HEADER + b"\nnot json\n" + line("a") + b"\n" + b'{"type":"old"}'
    with closing(place.taken_in(data)) as journal:
        items = list(journal.items())
    assert [item.raw if isinstance(item, Line) else item.code for item in items] == [
        HEADER,
        "not_json",
        line("a"),
        b'{"type":"old"}',
    ]


# -- drafts


def test_a_held_journal_can_be_taken_over_by_nobody_else(postgres_url: str) -> None:
    """Another process cannot hold it until it is released, even after a rewrite."""
    ours, theirs = place_at(postgres_url, patience=0.1), place_at(postgres_url, patience=0.1)
    journal = ours.taken_in(HEADER + b"\n")
    journal.hold()
    journal.hold()
    other = theirs.journals.open(journal.path, patience=0)
    with pytest.raises(SessionBusy) as busy:
        other.hold()
    assert str(os.getpid()) in str(busy.value.hint)
    journal.replace(lambda raw: HEADER.replace(b"/w", b"/x"))
    with closing(theirs.journals.open(journal.path, patience=0)) as again, pytest.raises(SessionBusy):
        again.hold()
    put(journal, line("a"))
    journal.release()
    other.hold()
    assert ids(other.rows()) == ["a"]
    other.close()
    journal.hold()  # released by closing
    for one in (ours, theirs):
        one.close()


def test_a_draft_is_published_and_one_that_was_left_behind_recovered(place: Place) -> None:
    folder = f"{ROOT}/sessions/--w--"
    path = f"{folder}/s.jsonl"
    place.journals.create(drafts.draft_path(path), [HEADER + b"\n" + line("a")])
    draft = place.journals.open(drafts.draft_path(path))
    draft.hold()
    assert drafts.recover(place.fs, place.journals, folder) == []
    draft.close()  # as its process does
    assert drafts.recover(place.fs, place.journals, folder) == [path]
    assert place.fs.names(folder) == ["s.jsonl"]


# -- reading


def test_ids_longer_than_an_index_takes_are_ids_like_others(place: Place) -> None:
    """Very long ids work as id and as parent, in rows, walks, searches and news."""
    long, longer = "i" * 10_000, "看" * 300_000
    with closing(place.taken_in(HEADER + b"\n" + line(long) + b"\n" + line(longer, long) + b"\n")) as journal:
        put(journal, line("end", longer))
        assert ids(journal.rows()) == [long, longer, "end"]
        assert ids(journal.up(found(journal, "end"))) == ["end", longer, long]
        assert found(journal, longer).parent_id == long
        assert journal.find(longer + "!") is None
        assert journal.entry_before(1 << 40) == "end"
        with closing(place.journals.open(journal.path)) as other:
            put(other, line("more", long))
        assert news_of(journal) == ["more"]


def test_a_session_shows_the_same_as_from_a_file(place: Place) -> None:
    """Contexts and branches at every entry are the same, for a handle that appended and for a new one."""
    journal = place.taken_in(HEADER + b"\n")
    parent = None
    for number in range(120):
        entry_id = f"{number:08}"
        members: dict[str, object] = {}
        kind = "message"
        if number % 20 == 19:
            kind, members = "compaction", {"summary": "s", "firstKeptEntryId": f"{number - 5:08}", "tokensBefore": 1}
        elif number == 50:
            kind = "reset_boundary"
        elif number % 7 == 3:
            members = {"message": {"role": "assistant", "provider": "p", "model": f"m{number % 3}", "content": []}}
        put(journal, line(entry_id, parent, kind, **members))
        parent = f"{max(0, number - 12):08}" if number % 30 == 29 else entry_id
    data = place.content(journal.path)
    expected = SessionView(JournalReader(settled(MemoryFilesystem(), data), "/s/s.jsonl"), BlobStore("/blobs"))
    for handle in (journal, place.journals.read(journal.path)):
        view = SessionView(handle, BlobStore("/blobs"))
        assert view.get_entries() == expected.get_entries()
        for entry in expected.get_entries():
            assert view.context(entry.id) == expected.context(entry.id)
            assert view.get_branch(entry.id) == expected.get_branch(entry.id)
    journal.close()


def test_an_append_that_nobody_disturbs_asks_nobody(place: Place) -> None:
    with closing(place.taken_in(HEADER + b"\n" + line("a") + b"\n")) as journal:
        for parent, entry_id in ("ab", "bc"):
            journal.append([line(entry_id, parent)], unexpected)
        assert ids(journal.rows()) == ["a", "b", "c"]
