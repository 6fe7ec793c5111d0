"""MyAgents' index: parsed strictly, salvaged when damaged, changed atomically under MyAgents' lock."""

from __future__ import annotations

import json

import pytest

from faults.failing import FaultyFilesystem, Meddle
from myagents_folder import AT, NOW_MS, OURS, ROOT, Time, begun, content, folder, put, put_index, row
from sessile.agents.myagents.index import parse, render, row_of
from sessile.agents.myagents.types import Metadata
from sessile.errors import Damaged, SessionBusy, SessionExists, SessionNotFound
from sessile.storage import atomic
from sessile.storage.memory import MemoryFilesystem

pytestmark = pytest.mark.mission("M1")

INDEX = f"{ROOT}/sessions.json"


def test_a_missing_index_is_empty_and_listing_creates_nothing() -> None:
    """Not even a folder is created."""
    store = folder()
    assert store.list_sessions() == []
    assert store.fs.names("/") == []


def test_rows_are_written_as_they_write_them() -> None:
    """An array indented by two spaces, without a newline at the end."""
    store = begun(begun(folder(), "s"), "t", sdkSessionId="é\ud800")
    expected = json.dumps([row("s"), row("t", sdkSessionId="é")], ensure_ascii=False, indent=2)
    assert content(store, INDEX) == expected.replace("é", "é\\ud800").encode()


def test_a_change_leaves_other_rows_byte_for_byte() -> None:
    """Regardless of their spacing, unknown members and numbers."""
    strange = '{"id":"odd" , "n":1.50,"pins":[ ] }'
    fs = MemoryFilesystem()
    put(fs, INDEX, b"\xef\xbb\xbf[" + strange.encode() + b", 17,\n" + json.dumps(row("s")).encode() + b"]")
    store = folder(fs)
    store.rename("s", "new")
    text = content(store, INDEX).decode()
    assert text.startswith("[\n  " + strange + ",\n  17,\n  {")
    assert json.loads(text)[2]["title"] == "new"
    assert [each.id for each in store.list_sessions()] == ["s", "odd"]


def test_sessions_of_a_folder_are_listed_last_active_first() -> None:
    """Folders are compared as written; an invalid time comes last."""
    fs = MemoryFilesystem()
    put_index(
        fs,
        row("a"),
        row("b", lastActiveAt="2026-02-17T00:00:00.000Z"),
        row("c", agentDir="/else"),
        row("d", lastActiveAt=None),
    )
    assert [each.id for each in folder(fs).list_sessions("/work/app")] == ["b", "a", "d"]
    assert len(folder(fs).list_sessions()) == 4


def test_a_second_session_of_one_id_is_refused() -> None:
    """The row of the first one does not change."""
    store = begun(folder())
    before = content(store, INDEX)
    with pytest.raises(SessionExists):
        begun(store)
    assert content(store, INDEX) == before


def test_a_title_of_a_person_is_not_replaced_by_another() -> None:
    """The change gets the current row and may refuse."""
    store = begun(folder())
    assert store.title_from("s", "first words") is not None
    assert store.title_from("s", "second words") is None
    store.rename("s", "mine")
    assert store.get("s") == Metadata(row("s", title="mine", titleSource="user"))
    with pytest.raises(SessionNotFound):
        store.rename("other", "x")


def test_a_change_that_another_program_makes_at_that_moment_is_kept() -> None:
    """A change prepared without the lock is repeated if the index has changed."""
    time = Time()
    inner = MemoryFilesystem(clock=time)
    put_index(inner, row("s"))
    faulty = FaultyFilesystem(inner, plan=[Meddle(lambda: put_index(inner, row("s"), row("t")), on={"mkdir"})])
    folder(faulty, time).rename("s", "new")
    assert faulty.struck
    assert {each.id: each.title for each in folder(inner, time).list_sessions()} == {"s": "new", "t": "New Chat"}


def test_a_busy_index_says_so_and_stays_as_it_is() -> None:
    """No temporary file is left."""
    store = begun(folder())
    before = content(store, INDEX)
    store.fs.mkdir(f"{ROOT}/sessions.lock")
    with pytest.raises(SessionBusy):
        store.index.update("s", lambda known: known.changed(title="x"))
    assert content(store, INDEX) == before
    assert store.fs.names(ROOT) == ["sessions.json", "sessions.lock"]


# -- damage

WHOLE = json.dumps([row("a"), row("b"), row("c", stats={"messageCount": 1})], indent=2).encode()


@pytest.mark.mission("M5")
@pytest.mark.parametrize("cut", range(60, len(WHOLE), 37))
def test_a_torn_index_is_salvaged_kept_and_never_taken_for_an_empty_one(cut: int) -> None:
    """Whole rows are listed; the next change writes them, and the torn file is saved in our folder."""
    fs = MemoryFilesystem()
    put(fs, INDEX, WHOLE[:cut])
    store = folder(fs)
    whole = [each for each in ("a", "b", "c") if WHOLE[:cut].count(b'"id": "%s"' % each.encode())][
        : WHOLE[:cut].count(b"\n  }")
    ]
    assert sorted(each.id for each in store.list_sessions()) == whole
    assert content(store, INDEX) == WHOLE[:cut]
    assert store.index.read().findings[0].code == "damaged_index"
    if whole:
        begun(store, "new")
        assert sorted(each.id for each in store.list_sessions()) == [*whole, "new"]
        assert store.index.read().sound
        assert content(store, f"{OURS}/originals/sessions.json.corrupt-stamp1") == WHOLE[:cut]
    else:
        with pytest.raises(Damaged):
            begun(store, "new")
        assert content(store, INDEX) == WHOLE[:cut]


@pytest.mark.parametrize("data", [b"", b"   ", b"{}", b"null", b"\0\0\0"])
def test_an_index_of_which_nothing_can_be_read_is_not_replaced(data: bytes) -> None:
    """An empty file is what a crash of the first versions leaves of a thousand sessions."""
    fs = MemoryFilesystem()
    put(fs, INDEX, data)
    with pytest.raises(Damaged):
        begun(folder(fs))
    assert atomic.read_all(fs, INDEX) == data


def test_the_file_that_a_later_version_was_about_to_put_in_place_is_preferred() -> None:
    """If it is sound and not older."""
    fs = MemoryFilesystem()
    put(fs, INDEX, WHOLE[:200])
    put(fs, f"{INDEX}.tmp", WHOLE)
    assert sorted(each.id for each in folder(fs).list_sessions()) == ["a", "b", "c"]
    put(fs, INDEX, WHOLE[:200])
    assert sorted(each.id for each in folder(fs).list_sessions()) == ["a"]


def test_damage_in_the_middle_costs_one_row() -> None:
    """Rows after it are found; objects inside a row are not taken for rows."""
    data = WHOLE.replace(b'"id": "b"', b'"id": "b')
    parsed = parse(data)
    assert [each.metadata.id for each in parsed.rows if each.metadata] == ["a", "c"]
    assert not parsed.sound and parsed.findings[0].offset > 0


def test_duplicate_rows_are_told_and_the_last_counts() -> None:
    """Both stay in the file."""
    fs = MemoryFilesystem()
    put_index(fs, row("s", title="old"), row("s", title="new"))
    store = folder(fs)
    assert [each.title for each in store.list_sessions()] == ["new"]
    assert [finding.code for finding in store.index.read().findings] == ["duplicate_row"]
    store.rename("s", "newer")
    assert [each["title"] for each in json.loads(content(store, INDEX))] == ["old", "newer"]


def test_an_empty_array_is_written_as_such() -> None:
    """The text is the same as that of JSON.stringify."""
    assert render([]) == b"[]" and parse(b"[]").rows == ()
    assert render([row_of({"a": []})]) == b'[\n  {\n    "a": []\n  }\n]'


def test_activity_in_the_index_never_goes_back() -> None:
    """A clock that was set back does not make a session older."""
    time = Time(NOW_MS)
    store = begun(folder(time=time))
    time.nanoseconds -= 10**12
    store.rename("s", "x")
    known = store.get("s")
    assert known is not None and known.last_active_at == AT


@pytest.mark.mission("M5")
def test_an_index_that_is_just_being_written_in_place_is_waited_for() -> None:
    """The first versions write in place with the lock held; the index is not damaged."""
    time = Time()
    fs = MemoryFilesystem(clock=time)
    put(fs, INDEX, WHOLE[:100])
    fs.mkdir(f"{ROOT}/sessions.lock")

    def written(seconds: float) -> None:
        put(fs, INDEX, WHOLE)

    assert len(folder(fs, time, pause=written).list_sessions()) == 3
    assert len(folder(fs, time).list_sessions()) == 3


@pytest.mark.mission("M5")
def test_an_index_that_was_finished_before_the_lock_was_looked_at_is_read_again() -> None:
    """The lock is released by then; what was read before was half a file, not damage."""
    inner = MemoryFilesystem()
    put(inner, INDEX, WHOLE[:100])
    faulty = FaultyFilesystem(inner, plan=[Meddle(lambda: put(inner, INDEX, WHOLE), on={"lstat"}, at=3)])
    assert len(folder(faulty).list_sessions()) == 3
    assert faulty.struck


@pytest.mark.mission("M5")
def test_nothing_slow_is_done_while_the_lock_is_held() -> None:
    """The file is made durable before the lock is taken and its name after it, so the lock is held about a millisecond."""
    faulty = FaultyFilesystem(MemoryFilesystem())
    store = begun(folder(faulty))
    faulty.calls.clear()
    store.rename("s", "x")
    methods = [call.method for call in faulty.calls]
    held = methods[methods.index("mkdir") : methods.index("rmdir")]
    assert {"sync", "sync_directory", "write"}.isdisjoint(held) and "rename" in held and len(held) < 20
    assert methods.index("sync") < methods.index("mkdir") and "sync_directory" in methods[methods.index("rmdir") :]
