"""Older versions are migrated in memory for readers, and on disk for writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders import AT, answered, assistant, said, user
from faults.failing import Fail, FaultyFilesystem
from sessile import errors
from sessile.storage.filesystem import PosixFilesystem
from sessions import CWD, header, lines_of, records_of, snapshot, store_at, told, write_file

pytestmark = pytest.mark.mission("X5")


def v1(kind: str, **members: Any) -> dict[str, Any]:
    """Return an entry of version 1, without id and parent."""
    return {"type": kind, "timestamp": AT, **members}


def old_header(version: int | None = None) -> dict[str, Any]:
    head = header(provider="p", modelId="m", thinkingLevel="high")
    del head["version"]
    return head if version is None else {**head, "version": version}


STORY = [
    old_header(),
    v1("message", message=user("one")),
    v1("message", message=assistant("two")),
    v1("message", message={"role": "hookMessage", "customType": "h", "content": "three"}),
    v1("compaction", summary="sum", firstKeptEntryIndex=2, tokensBefore=9),
    v1("message", message=user("four")),
]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return write_file(tmp_path / "there" / "s.jsonl", *STORY)


def test_version_1_is_written_at_once_when_opened_for_writing(tmp_path: Path, path: str) -> None:
    """Entries form a chain, compactions get ids, `hookMessage` is renamed, and unknown members stay."""
    store_at(tmp_path / "root").open(path).close()
    head, *entries = records_of(path)
    assert head == {**old_header(), "version": 3}
    ids = [e["id"] for e in entries]
    assert [e["parentId"] for e in entries] == [None, *ids[:-1]]
    assert len(set(ids)) == 5
    assert entries[3]["firstKeptEntryId"] == ids[1]
    assert "firstKeptEntryIndex" not in entries[3]
    assert entries[2]["message"]["role"] == "custom"
    assert [e["timestamp"] for e in entries] == [AT] * 5


def test_the_original_is_kept_and_the_user_told_where(tmp_path: Path, path: str) -> None:
    """The original is kept byte for byte in our data folder, and nothing is left next to the file."""
    before = Path(path).read_bytes()
    with store_at(tmp_path / "root").open(path) as session:
        (notice,) = session.notices
    kept = next((tmp_path / "root" / "originals").iterdir())
    assert kept.read_bytes() == before
    assert str(kept) in notice
    assert not kept.name.endswith(".jsonl")
    assert [p.name for p in Path(path).parent.iterdir()] == ["s.jsonl"]


def test_opening_for_reading_migrates_in_memory_only(tmp_path: Path, path: str) -> None:
    """The results are the same, all files keep their bytes and times, and no original is kept."""
    before = snapshot(tmp_path)
    with store_at(tmp_path / "root").open(path, readonly=True) as reader:
        assert told(reader) == ["sum", "two", "three", "four"]
        ids = [e.id for e in reader.get_entries()]
        assert reader.header["version"] == 3
    assert snapshot(tmp_path) == before
    with store_at(tmp_path / "root").open(path) as session:
        assert [e.id for e in session.get_entries()] == ids
        assert told(session) == ["sum", "two", "three", "four"]


def test_ids_are_the_same_at_every_reading(tmp_path: Path, path: str) -> None:
    """Ids are derived from session id and record number, so links stay valid."""
    found = []
    for name in ("a", "b"):
        with store_at(tmp_path / name, random=lambda n: b"\7" * n).open(path, readonly=True) as session:
            found.append([e.id for e in session.get_entries()])
    assert found[0] == found[1]
    other = write_file(tmp_path / "other.jsonl", {**old_header(), "id": "s2"}, *STORY[1:])
    with store_at(tmp_path / "root").open(other, readonly=True) as session:
        assert [e.id for e in session.get_entries()] != found[0]


def test_appending_after_a_migration_goes_on_where_the_file_ended(tmp_path: Path, path: str) -> None:
    """Opening the file again does not migrate it again."""
    store = store_at(tmp_path / "root")
    with store.open(path) as session:
        last = session.get_entries()[-1].id
        assert session.append_message(user("five")).parent_id == last
    with store.open(path) as session:
        assert session.notices == []
        assert told(session) == ["sum", "two", "three", "four", "five"]
    assert len(list((tmp_path / "root" / "originals").iterdir())) == 1


def test_version_2_keeps_ids_and_the_bytes_of_lines_that_need_no_change(tmp_path: Path) -> None:
    """Only the header and the renamed message are rewritten."""
    spaced = '{ "type":"message", "id":"b", "parentId":"a", "message": {"role":"user","content":"\\u0062", "n":1.0} }'
    hook = {**said("c", "b"), "message": {"role": "hookMessage", "content": "c", "extra": 1}}
    path = write_file(tmp_path / "s.jsonl", old_header(2), said("a", None), spaced, hook)
    before = lines_of(path)
    with store_at(tmp_path / "root").open(path) as session:
        assert told(session) == ["a", "b", "c"]
    after = lines_of(path)
    assert after[1:3] == before[1:3]
    assert records_of(path)[0]["version"] == 3
    assert records_of(path)[3] == {**hook, "message": {"role": "custom", "content": "c", "extra": 1}}


def test_garbage_lines_survive_a_migration_and_are_reported_either_way(tmp_path: Path) -> None:
    """Findings have the offsets in the current file."""
    path = write_file(tmp_path / "s.jsonl", old_header(), "not json", v1("message", message=user("one")), "[5]")
    offset = len(lines_of(path)[0]) + 1
    store = store_at(tmp_path / "root")
    with store.open(path, readonly=True) as reader:
        assert reader.findings[0].offset == offset
        assert [f.code for f in reader.findings] == ["not_json", "not_an_entry"]
    with store.open(path) as session:
        assert told(session) == ["one"]
        assert [f.code for f in session.findings] == ["not_json", "not_an_entry"]
    after = lines_of(path)
    assert (after[1], after[3]) == (b"not json", b"[5]")


@pytest.mark.parametrize("call", ["write", "sync", "rename", "link"])
def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path, path: str, call: str) -> None:
    """The file is complete and not migrated, and opening it again works."""
    before = Path(path).read_bytes()
    filesystem = FaultyFilesystem(PosixFilesystem(), plan=[Fail(5, on={call})])
    with pytest.raises(errors.StorageFailure):
        store_at(tmp_path / "root", fs=filesystem).open(path)
    assert Path(path).read_bytes() == before
    assert [p.name for p in Path(path).parent.iterdir()] == ["s.jsonl"]
    with store_at(tmp_path / "root").open(path) as session:
        assert told(session)[-1] == "four"


def test_a_migration_in_our_own_store_is_no_other(tmp_path: Path) -> None:
    """The session is found by its id and can be continued."""
    path = write_file(tmp_path / "sessions" / "--work-app--" / "t_s1.jsonl", *STORY)
    with store_at(tmp_path).continue_recent(CWD) as session:
        assert (session.path, told(session)[-1]) == (path, "four")
    assert records_of(path)[0]["version"] == 3


def test_a_future_version_can_be_read_but_not_written(tmp_path: Path) -> None:
    """A file of an unknown version is never changed."""
    path = write_file(tmp_path / "s.jsonl", {**header(), "version": 4}, said("a", None))
    before = snapshot(tmp_path)
    store = store_at(tmp_path / "root")
    with pytest.raises(errors.UnsupportedVersion) as refusal:
        store.open(path)
    assert "reading" in str(refusal.value)
    with store.open(path, readonly=True) as reader:
        assert told(reader) == ["a"]
    assert {k: v for k, v in snapshot(tmp_path).items() if k in before} == before


def test_version_3_is_not_rewritten(tmp_path: Path) -> None:
    """Opening and closing keep the bytes and the inode."""
    path = write_file(tmp_path / "s.jsonl", header(), said("a", None), answered("b", "a"))
    before = snapshot(tmp_path)[path]
    store_at(tmp_path / "root").open(path).close()
    assert snapshot(tmp_path)[path] == before
