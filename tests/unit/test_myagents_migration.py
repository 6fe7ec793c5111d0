"""From JSON to JSONL: read in the old form, migrated by the first write, the more complete file wins."""

from __future__ import annotations

import errno
import gzip
import json
from typing import Any

import pytest

from faults.failing import Fail, FaultyFilesystem, Meddle
from myagents_folder import OURS, ROOT, asked, begun, content, folder, ids, line, put, told
from sessile.agents.myagents.store import MyAgentsStore
from sessile.errors import Damaged

pytestmark = pytest.mark.mission("M6")

FILE = f"{ROOT}/sessions/s.jsonl"
LEGACY = f"{ROOT}/sessions/s.json"
THREE = [asked(0), told(1), asked(2)]


def with_legacy(messages: Any = THREE, lines: bytes | None = None, **members: Any) -> MyAgentsStore:
    """Return a store with a session in the old form, and perhaps the new one too."""
    store = begun(folder())
    put(store.fs, LEGACY, json.dumps({"id": "s", "messages": messages} | members).encode())
    if lines is not None:
        put(store.fs, FILE, lines)
    return store


def test_a_legacy_session_is_read_unmigrated() -> None:
    """Nothing is written."""
    store = with_legacy()
    assert ids(store) == ["0", "1", "2"]
    assert store.fs.names(f"{ROOT}/sessions") == ["s.json"]


def test_the_first_write_migrates_and_keeps_the_original() -> None:
    """The original object is in our folder, with all its members."""
    store = with_legacy(extra="kept")
    original = content(store, LEGACY)
    saved = store.save("s", [*THREE, told(3)])
    assert saved.appended == 1 and saved.kept == (f"{OURS}/originals/s.json.stamp1",)
    assert content(store, FILE) == b"".join(line(each) for each in [*THREE, told(3)])
    assert content(store, saved.kept[0]) == original
    assert store.fs.names(f"{ROOT}/sessions") == ["s.jsonl"]


def test_a_truncated_file_of_an_interrupted_migration_does_not_win() -> None:
    """The first versions silently show one of three messages here."""
    truncated = line(asked(0)) + line(told(1))[:10]
    store = with_legacy(lines=truncated)
    assert ids(store) == ["0", "1", "2"]
    assert "second_file" in [finding.code for finding in store.load("s").findings]
    kept = store.append("s", [told(3)]).kept
    assert ids(store) == ["0", "1", "2", "3"]
    assert content(store, kept[0]) == truncated


def test_a_finished_migration_only_removes_the_old_file() -> None:
    """With the same number of messages the new form wins, byte for byte."""
    lines = b"".join(line(each) for each in THREE) + line(told(3))
    store = with_legacy(lines=lines)
    kept = store.append("s", [asked(4)]).kept
    assert content(store, FILE) == lines + line(asked(4))
    assert kept == (f"{OURS}/originals/s.json.stamp1",)


@pytest.mark.parametrize("data", [b"{torn", b"[]", b'{"messages":5}', b""])
def test_a_legacy_file_that_cannot_be_read_is_not_hidden_by_an_append(data: bytes) -> None:
    """Reading reports it, writing is refused, and the file stays."""
    store = begun(folder())
    put(store.fs, LEGACY, data)
    assert [finding.code for finding in store.load("s").findings] == ["not_json"]
    with pytest.raises(Damaged):
        store.append("s", [asked(0)])
    assert store.fs.names(f"{ROOT}/sessions") == ["s.json"] and content(store, LEGACY) == data


@pytest.mark.parametrize("cut", range(1, 200, 17))
def test_of_a_torn_legacy_file_the_whole_messages_are_read(cut: int) -> None:
    """A finding reports the rest, and writing is refused."""
    store = begun(folder())
    whole = json.dumps({"id": "s", "messages": THREE, "x": []}, indent=1).encode()
    data = whole[:-cut]
    put(store.fs, LEGACY, data)
    found = data.count(b"\n  }")
    assert ids(store) == ["0", "1", "2"][:found]
    assert [finding.code for finding in store.load("s").findings] == ["not_json"]
    with pytest.raises(Damaged):
        store.append("s", [asked(3)])
    assert content(store, LEGACY) == data and store.fs.names(f"{ROOT}/sessions") == ["s.json"]


def test_every_further_file_of_a_session_is_told() -> None:
    """An archive beside both others and an unreadable v2 file are reported, too."""
    store = with_legacy(lines=b"".join(line(each) for each in THREE))
    put(store.fs, f"{FILE}.gz", gzip.compress(line(asked(0))))
    put(store.fs, f"{ROOT}/sessions-v2/s.jsonl", b"{torn")
    loaded = store.load("s")
    assert [message.id for message in loaded.messages] == ["0", "1", "2"] and loaded.path == FILE
    assert [finding.code for finding in loaded.findings] == ["second_file", "second_file", "second_file", "torn_tail"]
    for name in ("sessions-v2/s.jsonl", "s.json", "s.jsonl.gz"):
        assert any(name in finding.detail for finding in loaded.findings)


def test_a_legacy_file_without_messages_becomes_an_empty_session() -> None:
    """The member may be missing."""
    store = begun(folder())
    put(store.fs, LEGACY, b'{"id":"s"}')
    store.append("s", [asked(0)])
    assert content(store, FILE) == line(asked(0))


def test_a_message_that_is_no_object_is_told() -> None:
    """The others are read."""
    store = with_legacy([asked(0), 5])
    assert ids(store) == ["0"]
    assert [finding.code for finding in store.load("s").findings] == ["not_a_message"]


def test_what_another_program_migrates_and_writes_at_that_moment_is_not_overwritten() -> None:
    """The first versions use no lock for it."""
    inner = with_legacy().fs
    theirs = b"".join(line(each) for each in [*THREE, told(3)])
    faulty = FaultyFilesystem(inner, plan=[Meddle(lambda: put(inner, FILE, theirs), on={"write"})])
    folder(faulty).append("s", [asked(4)])
    assert faulty.struck and content(folder(inner), FILE) == theirs + line(asked(4))
    assert inner.names(f"{ROOT}/sessions") == ["s.jsonl"]


def test_where_no_link_can_be_made_the_session_is_migrated_all_the_same() -> None:
    """Some file systems have no links."""
    inner = with_legacy().fs
    faulty = FaultyFilesystem(inner, plan=[Fail(errno.ENOTSUP, on={"link"}, forever=True)])
    folder(faulty).append("s", [told(3)])
    assert ids(folder(inner)) == ["0", "1", "2", "3"] and inner.names(f"{ROOT}/sessions") == ["s.jsonl"]
