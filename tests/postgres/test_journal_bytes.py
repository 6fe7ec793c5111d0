"""The rows of a journal hold all its bytes: any file is returned unchanged, and every answer is that of the file."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from journal_rig import always, ask, content_of, expect, journal_on, lines_of, settled
from postgres.journals_rig import Place
from property.test_index import POOL, journals, regular_journals
from property.test_journal import contents
from sessile import BlobStore
from sessile.core.lines import Line, Scanner, scan
from sessile.errors import NotASession
from sessile.session import SessionView
from sessile.storage.memory import MemoryFilesystem
from sessile.storage.postgres import journals as made
from sessile.storage.postgres import rows
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.leases import Leases
from sessile.storage.reader import JournalReader
from sessile.testing.journal_contract import HEADER, chain, found, ids, line, put, unexpected

pytestmark = pytest.mark.mission("B8")

CORPUS = sorted((Path(__file__).parents[1] / "corpus").glob("*.jsonl"))
few = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture
def place(database: Database, leases: Leases) -> Place:
    return Place(database, leases)


def is_session(data: bytes) -> bool:
    """Return whether a file of these bytes can be opened."""
    try:
        JournalReader(settled(MemoryFilesystem(), data), "/s/s.jsonl").close()
    except NotASession:
        return False
    return True


def test_every_file_of_the_corpus_comes_back_byte_for_byte(place: Place) -> None:
    """Bytes, rows, walks, states and findings are those of the file, before and after the conversion."""
    taken = 0
    for file in CORPUS:
        data = file.read_bytes()
        path = place.put(data)
        if not is_session(data):
            with pytest.raises(NotASession):
                place.journals.open(path)
            assert place.content(path) == data, file.name
            continue
        expected = expect(data)
        with closing(place.journals.open(path)) as journal:
            assert place.is_journal(path)
            assert place.content(path) == data, file.name
            assert ask(journal) == expected, file.name  # type: ignore[arg-type]
            assert [item.raw for item in journal.items() if isinstance(item, Line)] == lines_of(data), file.name
        with closing(JournalReader(place.fs, path)) as reader:  # the same through the file system
            assert ask(reader) == expected, file.name
        taken += 1
    assert taken > len(CORPUS) / 2


def test_a_file_of_the_corpus_can_be_appended_to_and_rewritten(place: Place) -> None:
    """Appended entries are on their own lines, and a rewrite changes no other byte, as in a file."""
    for file in CORPUS:
        data = file.read_bytes()
        if not is_session(data):
            continue
        memory = settled(MemoryFilesystem(), data)
        model, journal = journal_on(memory), place.taken_in(data)
        for handle in (model, journal):
            handle.replace(lambda raw: None)
            put(handle, line("new"), line("newer", "new"))
            handle.replace(lambda raw: line("new", text="edited") if raw == line("new") else None)
            put(handle, line("newest", "newer"))
        assert place.content(journal.path) == content_of(memory), file.name
        assert ask(journal) == ask(model), file.name  # type: ignore[arg-type]
        journal.close()


@few
@given(steps=st.one_of(journals(), regular_journals()))
def test_every_answer_is_that_of_a_full_scan(place: Place, steps: list[bytes]) -> None:
    """Rows, paths, states, labels, titles, counts and findings of any bytes are those of a full scan."""
    data = HEADER + b"\n" + b"".join(steps)
    with closing(place.taken_in(data)) as journal:
        assert place.content(journal.path) == data
        assert ask(journal, POOL) == expect(data, POOL)  # type: ignore[arg-type]


@few
@given(
    first=regular_journals(),
    appended=st.lists(st.one_of(journals(), regular_journals()), max_size=3),
    batches=st.lists(st.integers(1, 5), min_size=1),
)
def test_a_journal_that_grows_answers_as_a_file_does(
    place: Place, first: list[bytes], appended: list[list[bytes]], batches: list[int]
) -> None:
    """Two handles append single lines and batches in turn, with duplicates, late parents and lines that are not entries."""
    data = HEADER + b"\n" + b"".join(first)
    memory = settled(MemoryFilesystem(), data)
    model = journal_on(memory)
    one = place.taken_in(data)
    handles = [one, place.journals.open(one.path)]
    lines = [raw for steps in appended for raw in b"".join(steps).split(b"\n")]
    turn = 0
    while lines:
        size = batches[turn % len(batches)]
        batch, lines = lines[:size], lines[size:]
        put(handles[turn % 2], *batch)
        put(model, *batch)
        turn += 1
    assert place.content(one.path) == content_of(memory)
    expected = ask(model, POOL)
    for handle in handles:
        assert ask(handle, POOL) == expected  # type: ignore[arg-type]
        handle.close()


@few
@given(steps=regular_journals())
def test_the_context_at_every_entry_is_that_of_the_file(place: Place, steps: list[bytes]) -> None:
    """Messages, models and modes at every entry are the same, with and without cached state."""
    data = HEADER + b"\n" + b"".join(steps)
    memory = settled(MemoryFilesystem(), data)
    model = SessionView(journal_on(memory), BlobStore("/blobs"))
    with closing(place.taken_in(data)) as journal:
        view = SessionView(journal, BlobStore("/blobs"))
        assert view.leaf_id == model.leaf_id
        for entry in model.get_entries():
            assert view.context(entry.id) == model.context(entry.id)


@few
@given(garbage=contents, lines=st.lists(st.sampled_from([*chain("new", "newer")]), min_size=1, max_size=3))
def test_an_append_adds_its_lines_and_at_most_a_newline(place: Place, garbage: bytes, lines: list[bytes]) -> None:
    """The returned positions are those of the file."""
    before = HEADER + b"\n" + garbage
    journal = place.taken_in(before)
    appended = journal.append(lines, unexpected)
    after = before + (b"" if before.endswith(b"\n") else b"\n") + b"".join(raw + b"\n" for raw in lines)
    assert place.content(journal.path) == after
    assert [after[at : at + length] for at, length in appended.positions] == lines
    journal.append([line("last")], unexpected)
    assert place.content(journal.path) == after + line("last") + b"\n"
    journal.close()


@few
@given(garbage=contents, old=st.integers(0, 20), new=st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")))
def test_rewriting_changes_the_edited_line_and_no_other_byte(
    place: Place, garbage: bytes, old: int, new: bytes
) -> None:
    """This holds for any new content, even if it is not a valid line."""
    before = HEADER + b"\n" + garbage
    lines = [item for item in scan(before) if isinstance(item, Line)][1:]
    journal = place.taken_in(before)
    if lines:
        target = lines[old % len(lines)]
        counter = iter(range(len(lines) + 1))
        journal.replace(lambda raw: new if next(counter) == old % len(lines) + 1 else None)
        end = target.offset + len(target.raw)
        assert place.content(journal.path) == before[: target.offset] + new + before[end:]
    journal.append([line("after")], always(line("after")))
    assert lines_of(place.content(journal.path))[-1] == line("after")
    journal.close()


def test_more_garbage_than_fits_into_one_row_is_in_several(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of garbage bytes after the header is stored, in several rows."""
    monkeypatch.setattr(made, "_CHUNK", 500)
    monkeypatch.setattr(rows, "_LONGEST_GAP", 2000)
    monkeypatch.setattr(rows, "Scanner", partial(Scanner, limit=1000))
    garbage = b"x" * 900
    pieces = [
        HEADER + b"\n",
        garbage,
        garbage,
        garbage,
        garbage,
        garbage,
        b"\n" + line("a") + b"\n",
        garbage * 4,
        b"\n",
    ]
    path = place.path()
    place.journals.create(path, pieces)
    assert place.content(path) == b"".join(pieces)
    with closing(place.journals.open(path)) as journal:
        assert ids(journal.rows()) == ["a"]
        put(journal, line("b", "a"))
        journal.replace(lambda raw: line("a", longer="x" * 50) if raw == line("a") else None)
        assert ids(journal.up(found(journal, "b"))) == ["b", "a"]
    edited = b"".join(pieces).replace(line("a"), line("a", longer="x" * 50))
    assert place.content(path) == edited + line("b", "a") + b"\n"
    assert place.database.query("SELECT count(*) FROM entry WHERE octet_length(body) = 0")[0][0] > 1
