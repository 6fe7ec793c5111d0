"""`sessions.json` on disk: strict, locked, safe beside an editor; and the paths of transcripts."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from faults.failing import FaultyFilesystem, Meddle
from sessile.agents.openclaw.binding_store import SessionStore
from sessile.agents.openclaw.document import BrokenStore
from sessile.agents.openclaw.entries import SessionEntry
from sessile.agents.openclaw.importing import contents_of, find_transcript
from sessile.agents.openclaw.names import Transcript, archive_name, read_name, transcript_name
from sessile.agents.openclaw.paths import StateFolder
from sessile.errors import Conflict, NotFound, SessionBusy, UnsafePath
from sessile.storage.filesystem import PosixFilesystem
from sessions import snapshot
from yoyoclaw import GROUP, MAIN, NOW, stored, write

pytestmark = pytest.mark.mission("Y2")


def store_in(folder: Path, **options: Any) -> SessionStore:
    return SessionStore(f"{folder}/agent/sessions.json", keep=f"{folder}/ours", **{"patience": 0.2} | options)


def put(folder: Path, entries: dict[str, Any]) -> Path:
    return Path(write(folder / "agent", "sessions.json", stored(entries)))


def on_disk(store: SessionStore) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(store.path).read_bytes())
    return found


def setting(name: str, value: Any, now: int = NOW) -> Any:
    """Return a change that sets one member."""
    return lambda entry: (entry or SessionEntry({"sessionId": "s"})).touched({name: value}, now)


# -- reading


def test_a_missing_store_is_empty_and_reading_makes_nothing(tmp_path: Path) -> None:
    """No file, folder or lock is created."""
    store = store_in(tmp_path)
    assert store.read() == {}
    assert store.get(MAIN) is None
    assert list(tmp_path.iterdir()) == []


def test_reading_changes_nothing(tmp_path: Path) -> None:
    """No byte, time or file changes."""
    put(tmp_path, {MAIN: {"sessionId": "a", "future": 1}})
    before = snapshot(tmp_path)
    store = store_in(tmp_path)
    assert store.get(MAIN) == SessionEntry({"sessionId": "a", "future": 1})
    assert store.document().oddities() == []
    assert snapshot(tmp_path) == before


def test_a_key_is_found_under_any_spelling(tmp_path: Path) -> None:
    """The newest of several is returned; rooms that differ only in case are different rooms."""
    put(
        tmp_path,
        {
            "Agent:Main:Telegram:Group:X": {"sessionId": "old", "updatedAt": 1},
            "agent:main:telegram:group:X": {"sessionId": "new", "updatedAt": 2},
            "agent:main:matrix:channel:!A:b": {"sessionId": "room"},
        },
    )
    store = store_in(tmp_path)
    found = store.get("agent:main:telegram:group:x")
    assert found is not None and found.session_id == "new"
    assert store.get("agent:main:matrix:channel:!a:b") is None
    store.update("agent:main:telegram:group:x", setting("model", "m"), now=NOW)
    assert len(on_disk(store)) == 3


@pytest.mark.parametrize("content", [b"", b'{"a": {},}', b"null", b"\0\0\0"])
def test_a_broken_store_stops_reading_and_writing(tmp_path: Path, content: bytes) -> None:
    """It never loads as empty, and is not changed."""
    path = write(tmp_path / "agent", "sessions.json", content)
    store = store_in(tmp_path)
    with pytest.raises(BrokenStore, match="line 1"):
        store.read()
    with pytest.raises(BrokenStore):
        store.update(MAIN, setting("model", "m"), now=NOW)
    assert Path(path).read_bytes() == content
    assert os.listdir(tmp_path / "agent") == ["sessions.json"]


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    """Writing would replace the link by a file."""
    target = write(tmp_path, "elsewhere.json", b"{}")
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "sessions.json").symlink_to(target)
    with pytest.raises(UnsafePath):
        store_in(tmp_path).read()


# -- changing


def test_a_change_keeps_everything_else(tmp_path: Path) -> None:
    """Other entries keep their text, and the changed one its unknown members."""
    path = write(
        tmp_path / "agent", "sessions.json", b'{\n  "a": {"n":1.0},\n  "b": {"sessionId": "b", "future": [1]}\n}'
    )
    store = store_in(tmp_path)
    changed = store.update("b", setting("model", "m"), now=NOW)
    assert changed is not None and changed["future"] == [1]
    assert Path(path).read_bytes().startswith(b'{\n  "a": {"n":1.0},\n  "b": {\n    "sessionId": "b",')
    assert store.get("b") == changed


def test_a_new_key_gets_an_entry_and_files_are_private(tmp_path: Path) -> None:
    """Folders have mode 0700 and files 0600; no lock or temporary file is left."""
    store = store_in(tmp_path)
    store.update(MAIN, setting("model", "m"), now=NOW)
    assert on_disk(store) == {MAIN: {"sessionId": "s", "model": "m", "updatedAt": NOW}}
    assert os.listdir(tmp_path / "agent") == ["sessions.json"]
    assert os.listdir(tmp_path / "ours") == ["sessions.json.good"]
    for path, mode in (
        ("agent", 0o700),
        ("ours", 0o700),
        ("agent/sessions.json", 0o600),
        ("ours/sessions.json.good", 0o600),
    ):
        assert stat.S_IMODE(os.stat(tmp_path / path).st_mode) == mode


def test_a_change_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    """Neither the store nor the copy is written."""
    put(tmp_path, {MAIN: {"sessionId": "a"}})
    before = snapshot(tmp_path)[f"{tmp_path}/agent/sessions.json"]
    store = store_in(tmp_path)
    assert store.update(MAIN, lambda entry: entry, now=NOW) == SessionEntry({"sessionId": "a"})
    assert store.update("other", lambda entry: None, now=NOW) is None
    assert snapshot(tmp_path)[f"{tmp_path}/agent/sessions.json"] == before
    assert not (tmp_path / "ours").exists()


def test_compare_and_set_refuses_what_was_not_expected(tmp_path: Path) -> None:
    """The caller must decide again on the current entry."""
    put(tmp_path, {MAIN: {"sessionId": "a"}})
    store = store_in(tmp_path)
    seen, new = store.get(MAIN), SessionEntry({"sessionId": "b"})
    store.compare_and_set(MAIN, seen, new, now=NOW)
    for expected in (seen, None):
        with pytest.raises(Conflict):
            store.compare_and_set(MAIN, expected, seen, now=NOW)
    store.compare_and_set(GROUP, None, new, now=NOW)
    store.compare_and_set(MAIN, new, None, now=NOW)
    assert on_disk(store) == {GROUP: {"sessionId": "b"}}


def test_a_change_that_raises_leaves_everything_as_it_was(tmp_path: Path) -> None:
    """The lock is released."""
    put(tmp_path, {MAIN: {"sessionId": "a"}})
    before = snapshot(tmp_path)[f"{tmp_path}/agent/sessions.json"]
    store = store_in(tmp_path)
    with pytest.raises(ZeroDivisionError):
        store.update(MAIN, lambda entry: 1 / 0, now=NOW)  # type: ignore[arg-type,return-value]
    assert snapshot(tmp_path)[f"{tmp_path}/agent/sessions.json"] == before
    store.update(MAIN, setting("model", "m"), now=NOW)


# -- beside an editor


def test_an_edit_between_reading_and_writing_survives(tmp_path: Path) -> None:
    """A save in the middle of our change is kept: the change is repeated on top of it."""
    put(tmp_path, {MAIN: {"sessionId": "a"}, GROUP: {"sessionId": "g"}})

    def edit() -> None:
        put(tmp_path, {MAIN: {"sessionId": "a"}, GROUP: {"sessionId": "g", "label": "by hand"}, "new": {"x": 1}})

    faulty = FaultyFilesystem(PosixFilesystem(), plan=[Meddle(edit, at=2, on={"sync"})])
    store = store_in(tmp_path, fs=faulty)
    asked = []
    store.update(MAIN, lambda entry: asked.append(entry) or setting("model", "m")(entry), now=NOW)  # type: ignore[func-returns-value]
    assert faulty.struck
    assert len(asked) == 2
    assert on_disk(store) == {
        MAIN: {"sessionId": "a", "model": "m", "updatedAt": NOW},
        GROUP: {"sessionId": "g", "label": "by hand"},
        "new": {"x": 1},
    }


def test_a_file_that_is_being_saved_is_read_when_it_is_complete(tmp_path: Path) -> None:
    """Half a file is not broken until its editor had time to finish it."""
    path = put(tmp_path, {MAIN: {"sessionId": "a"}})
    whole = path.read_bytes()
    path.write_bytes(whole[:10])
    faulty = FaultyFilesystem(PosixFilesystem(), plan=[Meddle(lambda: path.write_bytes(whole), at=2, on={"open"})])
    assert list(store_in(tmp_path, fs=faulty).read()) == [MAIN]
    assert faulty.struck


def test_a_file_that_is_away_for_a_moment_is_not_taken_for_deleted(tmp_path: Path) -> None:
    """Some editors move the old file away before they write the new one; its sessions must not start again."""
    store = store_in(tmp_path)
    store.update(MAIN, setting("model", "m"), now=NOW)
    whole = Path(store.path).read_bytes()
    os.unlink(store.path)
    faulty = FaultyFilesystem(
        PosixFilesystem(), plan=[Meddle(lambda: Path(store.path).write_bytes(whole), at=3, on={"lstat"})]
    )
    assert list(store_in(tmp_path, fs=faulty).read()) == [MAIN]
    assert faulty.struck


def test_values_of_a_live_store_win_over_a_stale_edit(tmp_path: Path) -> None:
    """An editor opened before our change would undo it when it saves; its own additions stay."""
    put(tmp_path, {MAIN: {"sessionId": "a", "updatedAt": 1, "modelOverride": "x"}})
    store = store_in(tmp_path)
    store.update(
        MAIN, lambda entry: (entry or SessionEntry({})).touched({"modelOverride": None, "totalTokens": 9}, NOW), now=NOW
    )
    put(tmp_path, {MAIN: {"sessionId": "a", "updatedAt": 1, "modelOverride": "x", "label": "by hand"}, GROUP: {"x": 1}})
    won = {"sessionId": "a", "updatedAt": NOW, "totalTokens": 9, "label": "by hand"}
    assert store.get(MAIN) == SessionEntry(won)
    store.update(GROUP, setting("model", "m"), now=NOW)
    assert on_disk(store)[MAIN] == won
    assert on_disk(store)[GROUP]["x"] == 1


def test_an_edit_of_the_current_file_wins(tmp_path: Path) -> None:
    """A user who changes a toggle in the current file means it."""
    store = store_in(tmp_path)
    store.update(MAIN, setting("thinkingLevel", "low"), now=NOW)
    put(tmp_path, {MAIN: {**on_disk(store)[MAIN], "thinkingLevel": "high"}})
    store.update(MAIN, setting("model", "m"), now=NOW)
    assert on_disk(store)[MAIN]["thinkingLevel"] == "high"


def test_an_entry_that_was_deleted_by_hand_stays_deleted(tmp_path: Path) -> None:
    """Its key starts a new session with the next change."""
    store = store_in(tmp_path)
    store.update(MAIN, setting("model", "m"), now=NOW)
    put(tmp_path, {})
    assert store.get(MAIN) is None
    seen = []
    store.update(MAIN, lambda entry: seen.append(entry) or SessionEntry({"sessionId": "b"}), now=NOW)  # type: ignore[func-returns-value]
    assert seen == [None]
    assert on_disk(store) == {MAIN: {"sessionId": "b"}}


# -- the last good copy


def test_a_broken_store_offers_the_last_good_copy_and_takes_it(tmp_path: Path) -> None:
    """The broken file is saved, and nothing is lost."""
    store = store_in(tmp_path)
    store.update(MAIN, setting("model", "m"), now=NOW)
    good = Path(store.path).read_bytes()
    Path(store.path).write_bytes(b'{"broken": ')
    with pytest.raises(BrokenStore) as caught:
        store.read()
    assert store.good in str(caught.value)
    restored = store.restore(now=NOW + 1)
    assert Path(store.path).read_bytes() == good
    assert restored.copy == store.good
    assert restored.broken is not None and Path(restored.broken).read_bytes() == b'{"broken": '


def test_only_a_broken_store_is_restored_and_only_from_a_copy(tmp_path: Path) -> None:
    """A readable store is not replaced."""
    store = store_in(tmp_path)
    with pytest.raises(NotFound):
        store.restore(now=NOW)
    store.update(MAIN, setting("model", "m"), now=NOW)
    with pytest.raises(Conflict, match="not broken"):
        store.restore(now=NOW)
    os.unlink(store.path)
    assert store.restore(now=NOW).broken is None
    assert list(store.read()) == [MAIN]


def test_an_edit_can_be_kept_as_the_last_good_copy(tmp_path: Path) -> None:
    """Byte for byte; a broken one is refused."""
    path = put(tmp_path, {MAIN: {"sessionId": "by hand"}})
    store = store_in(tmp_path)
    store.keep_good_copy()
    assert Path(store.good).read_bytes() == path.read_bytes()
    path.write_bytes(b"{")
    with pytest.raises(BrokenStore):
        store.keep_good_copy()
    assert b"by hand" in Path(store.good).read_bytes()


def test_the_copy_of_a_deleted_store_is_set_aside(tmp_path: Path) -> None:
    """Deleting the whole file starts again, and the copy can still be restored."""
    store = store_in(tmp_path)
    store.update(MAIN, setting("model", "m"), now=NOW)
    os.unlink(store.path)
    store.update(GROUP, setting("model", "m"), now=NOW + 5)
    assert list(on_disk(store)) == [GROUP]
    assert MAIN in (tmp_path / "ours" / f"sessions.json.good.{NOW + 5}").read_text()


# -- the lock


def foreign_lock(folder: Path, seconds_ago: float) -> Path:
    path = Path(write(folder / "agent", "sessions.json.lock", b'{"pid":1,"startedAt":1}'))
    at = NOW / 1000 - seconds_ago
    os.utime(path, (at, at))
    return path


def test_the_lock_of_another_program_is_respected(tmp_path: Path) -> None:
    """Nothing is written while it is held, and the error has a hint."""
    path = put(tmp_path, {MAIN: {"sessionId": "a"}})
    before = path.read_bytes()
    lock = foreign_lock(tmp_path, seconds_ago=29)
    with pytest.raises(SessionBusy, match="another program"):
        store_in(tmp_path).update(MAIN, setting("model", "m"), now=NOW)
    assert path.read_bytes() == before
    assert lock.exists()
    assert sorted(os.listdir(tmp_path / "agent")) == ["sessions.json", "sessions.json.lock"]


def test_a_lock_that_its_owner_would_call_stale_is_broken(tmp_path: Path) -> None:
    """The limit of its owner is 30 seconds."""
    foreign_lock(tmp_path, seconds_ago=31)
    store = store_in(tmp_path)
    store.update(MAIN, setting("model", "m"), now=NOW)
    assert os.listdir(tmp_path / "agent") == ["sessions.json"]


def test_a_lock_that_a_dead_process_of_ours_left_is_taken_over_at_once(tmp_path: Path) -> None:
    """The lock file itself is not locked, so its process is dead."""
    write(tmp_path / "agent", "sessions.json.lock", b'{"pid":1,"startedAt":1,"holder":"sessile"}')
    store_in(tmp_path).update(MAIN, setting("model", "m"), now=0)
    assert os.listdir(tmp_path / "agent") == ["sessions.json"]


def test_the_lock_is_there_for_others_to_see_while_a_change_is_made(tmp_path: Path) -> None:
    """The lock has the format of the other program, and a second store waits for it."""
    store = store_in(tmp_path)

    def change(entry: SessionEntry | None) -> SessionEntry | None:
        assert json.loads(Path(f"{store.path}.lock").read_bytes())["pid"] == os.getpid()
        with pytest.raises(SessionBusy):
            store_in(tmp_path, patience=0.05).update(GROUP, setting("model", "m"), now=NOW)
        return SessionEntry({"sessionId": "a"})

    store.update(MAIN, change, now=NOW)
    assert on_disk(store) == {MAIN: {"sessionId": "a"}}


# -- paths


def test_the_state_folder_says_where_things_lie(tmp_path: Path) -> None:
    """The configured template is used, if there is one."""
    state = StateFolder("/r")
    assert state.store("Ops!") == "/r/agents/ops/sessions/sessions.json"
    assert state.folders("main") == ["/r/agents/main/sessions", "/r/sessions"]
    each = StateFolder("/r", template="~/s/{agentId}/{agentId}.json", home="/h")
    assert each.store("ops") == "/h/s/ops/ops.json" and not each.shared
    assert each.folders("ops") == ["/h/s/ops", "/r/agents/ops/sessions"]
    shared = StateFolder("/r", template="all/../one.json")
    assert shared.store("ops") == "/r/one.json" and shared.shared
    assert StateFolder("/r", template="  ").store("a") == "/r/agents/a/sessions/sessions.json"


def test_agents_are_those_that_have_a_folder(tmp_path: Path) -> None:
    """The default agent is included if there are sessions of older releases."""
    fs = PosixFilesystem()
    assert StateFolder(str(tmp_path)).agents(fs) == []
    (tmp_path / "agents" / "ops").mkdir(parents=True)
    write(tmp_path / "sessions", "x.jsonl", b"")
    assert StateFolder(str(tmp_path)).agents(fs) == ["ops", "main"]


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("s1.jsonl", ("s1.jsonl", "s1", None, None, None, False)),
        ("s1-topic-7.jsonl", ("s1-topic-7.jsonl", "s1", "7", None, None, False)),
        ("s1-topic-a%3Ab.jsonl", ("s1-topic-a%3Ab.jsonl", "s1", "a:b", None, None, False)),
        ("2026-02-03T10-00-00-000Z_s2.jsonl", ("2026-02-03T10-00-00-000Z_s2.jsonl", "s2", None, None, None, False)),
        ("a_b.jsonl", ("a_b.jsonl", "a_b", None, None, None, False)),
        (
            "s1.jsonl.reset.2026-02-03T10-00-00.000Z",
            ("s1.jsonl", "s1", None, "reset", "2026-02-03T10-00-00.000Z", False),
        ),
        ("s1.jsonl.deleted.2026.zst", ("s1.jsonl", "s1", None, "deleted", "2026", True)),
        ("s1.jsonl.bak-17-99", ("s1.jsonl", "s1", None, "bak", "17-99", False)),
        ("sessions.json", None),
        ("sessions.json.bak.17", None),
        ("s1.jsonl.lock", None),
        (".s1.jsonl", None),
    ],
)
def test_the_name_of_a_transcript_says_what_it_is(name: str, meaning: tuple[Any, ...] | None) -> None:
    """A live transcript, one of a topic, a fork, or an archive with its reason and time."""
    assert read_name(f"/f/{name}") == (None if meaning is None else Transcript(f"/f/{name}", *meaning))


def test_names_of_transcripts_are_made_as_their_owner_makes_them() -> None:
    """Numbers as they are, other topics percent-encoded, colons in a time as hyphens."""
    assert transcript_name("s") == "s.jsonl"
    assert transcript_name("s", 7) == "s-topic-7.jsonl"
    assert transcript_name("s", "a:b/c~") == "s-topic-a%3Ab%2Fc~.jsonl"
    assert archive_name("s.jsonl", "reset", "2026-02-03T10:00:00.000Z") == "s.jsonl.reset.2026-02-03T10-00-00.000Z"


def test_a_transcript_is_looked_for_in_order(tmp_path: Path) -> None:
    """`sessionFile`, then the folder of the store, then the agent's, then that of older releases."""
    fs = PosixFilesystem()
    folders = [f"{tmp_path}/{name}" for name in ("store", "agent", "legacy")]
    entry = SessionEntry({"sessionId": "s", "sessionFile": "named.jsonl"})
    assert find_transcript(fs, entry, folders).path is None
    found = []
    for folder, name in ((2, "s"), (1, "s"), (0, "s"), (0, "s-topic-7"), (0, "named")):
        write(Path(folders[folder]), f"{name}.jsonl", b"")
        found.append(find_transcript(fs, entry, folders, "7").path)
    assert found == [
        f"{folders[2]}/s.jsonl",
        f"{folders[1]}/s.jsonl",
        f"{folders[0]}/s.jsonl",
        f"{folders[0]}/s-topic-7.jsonl",
        f"{folders[0]}/named.jsonl",
    ]


@pytest.mark.mission("Y5")
@pytest.mark.parametrize("named", ["../secret.jsonl", "/etc/passwd", "x/../../secret.jsonl"])
def test_a_session_file_outside_the_folders_is_refused(tmp_path: Path, named: str) -> None:
    """The refused path is returned, and the session is searched by its id instead."""
    folder = tmp_path / "sessions"
    write(tmp_path, "secret.jsonl", b"")
    own = write(folder, "s.jsonl", b"")
    found = find_transcript(PosixFilesystem(), SessionEntry({"sessionId": "s", "sessionFile": named}), [str(folder)])
    assert (found.path, found.refused) == (own, named)


@pytest.mark.parametrize("session_id", ["../x", "a\0b", 5, None])
def test_an_id_that_is_no_name_finds_nothing(tmp_path: Path, session_id: Any) -> None:
    """It must not lead out of the folder."""
    write(tmp_path, "x.jsonl", b"")
    folder = tmp_path / "in"
    folder.mkdir()
    assert find_transcript(PosixFilesystem(), SessionEntry({"sessionId": session_id}), [str(folder)]).path is None


def test_links_and_folders_are_no_transcripts(tmp_path: Path) -> None:
    """Only regular files are transcripts."""
    write(tmp_path, "a.jsonl", b"")
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "a.jsonl")
    (tmp_path / "c.jsonl").mkdir()
    found = contents_of(PosixFilesystem(), str(tmp_path))
    assert [file.session_id for file in found.transcripts] == ["a"]
    assert found.others == [f"{tmp_path}/b.jsonl", f"{tmp_path}/c.jsonl"]
