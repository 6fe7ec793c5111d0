"""Importing a state folder: everything is accounted for, nothing twice, the source unchanged."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from builders import Json, entry, said
from faults.failing import Fail, FaultyFilesystem
from sessile import Store
from sessile.agents.openclaw.binding_store import own_bindings
from sessile.agents.openclaw.importing import SOURCE, ImportedSession, ImportReport, import_state
from sessile.agents.openclaw.paths import StateFolder
from sessile.errors import Invalid, PermissionRefused, StorageFull
from sessile.storage.filesystem import PosixFilesystem
from sessions import append_raw, lines_of, records_of, say, snapshot, store_at, told
from yoyoclaw import GROUP, MAIN, lines, stored, talk, write

pytestmark = pytest.mark.mission("Y2")


class Rig:
    """A state folder, and a store to import it into."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.sessions = self.state / "agents" / "main" / "sessions"
        self.store: Store = store_at(folder / "ours")
        self.root = folder / "ours"

    def write(self, name: str, *records: Json | str) -> str:
        return write(self.sessions, name, lines(*records))

    def entries(self, entries: Json) -> None:
        write(self.sessions, "sessions.json", stored(entries))

    def run(self, template: str | None = None, **options: Any) -> ImportReport:
        """Import; the counts of every session must add up."""
        before = snapshot(self.state)
        report = import_state(self.store, StateFolder(str(self.state), template=template), **options)
        assert snapshot(self.state) == before
        for account in report.sessions:
            assert account.read == account.written + account.present + account.differing
        return report

    def only(self, **options: Any) -> ImportedSession:
        [account] = self.run(**options).sessions
        return account


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_session_is_imported_line_by_line(rig: Rig) -> None:
    """Entries byte for byte, a header that names the source, and the title of the store."""
    source = rig.write("s1.jsonl", *talk("s1", "a", "b", "c", extra=1))
    rig.entries({MAIN: {"sessionId": "s1", "displayName": "telegram:joe", "label": " Trip\n"}})
    account = rig.only()
    assert (account.read, account.written, account.present, account.differing) == (3, 3, 0, 0)
    assert (account.keys, account.live, account.orphan, account.unreadable) == ([MAIN], source, False, 0)
    assert lines_of(account.path)[1:] == lines_of(source)[1:]
    header = records_of(account.path)[0]
    assert header["title"] == "Trip" and header["extra"] == 1
    assert header[SOURCE] == {"format": "yoyoclaw", "agent": "main", "file": "s1.jsonl", "key": MAIN}
    with rig.store.open("s1") as session:
        assert told(session) == ["a", "b", "c"]
        assert not list(session.findings)


def test_a_second_run_changes_nothing(rig: Rig) -> None:
    """No byte or time changes, in the source or in the store."""
    rig.write("s1.jsonl", *talk("s1", "a", "b"), "{torn", dumps_without_id())
    rig.write("s2.jsonl.reset.2026", *talk("s2", "x"))
    rig.entries({MAIN: {"sessionId": "s1"}})
    first = rig.run()
    before = snapshot(rig.root)
    second = rig.run()
    assert snapshot(rig.root) == before
    assert [account.path for account in second.sessions] == [account.path for account in first.sessions]
    assert [(a.written, a.present) for a in second.sessions] == [(0, a.written) for a in first.sessions]


def dumps_without_id() -> str:
    return '{"type":"note","text":"a row without an id"}'


def test_new_lines_are_added_on_the_next_run(rig: Rig) -> None:
    """Only they are added, at the end."""
    source = rig.write("s1.jsonl", *talk("s1", "a", "b"))
    first = rig.only()
    append_raw(source, said("c", "b"), said("d", "c"))
    second = rig.only()
    assert (second.read, second.written, second.present) == (4, 2, 2)
    assert second.path == first.path
    assert lines_of(second.path)[1:] == lines_of(source)[1:]
    with rig.store.open("s1") as session:
        assert told(session) == ["a", "b", "c", "d"]


def test_what_was_said_in_ours_stays(rig: Rig) -> None:
    """A session that was continued in both places has two branches."""
    source = rig.write("s1.jsonl", *talk("s1", "a", "b"))
    rig.only()
    with rig.store.open("s1") as session:
        say(session, "ours")
    append_raw(source, said("c", "b", "theirs"))
    account = rig.only()
    assert account.written == 1
    with rig.store.open("s1") as session:
        assert [text_of(e) for e in session.get_entries()] == ["a", "b", "ours", "theirs"]
        assert len(session.get_heads()) == 2


def text_of(record: Any) -> str:
    content = record["message"]["content"]
    return content if isinstance(content, str) else content[0]["text"]


def test_an_entry_that_differs_is_counted_and_not_written_over(rig: Rig) -> None:
    """Ours may have been redacted."""
    rig.write("s1.jsonl", *talk("s1", "a", "b"))
    path = rig.only().path
    before = lines_of(path)
    rig.write("s1.jsonl", *talk("s1", "a"), entry("message", "b", "a", message={"role": "user", "content": "other"}))
    account = rig.only()
    assert (account.present, account.differing, account.written) == (1, 1, 0)
    assert lines_of(path) == before


def test_unreadable_lines_are_told_with_their_place(rig: Rig) -> None:
    """The source still has them; the lines around them are imported."""
    source = rig.write("s1.jsonl", *talk("s1", "a"), "{broken", said("b", "a"), *talk("s1")[:1])
    with open(source, "ab") as file:
        file.write(b'{"type":"message","id":"torn')
    account = rig.only()
    assert [t.finding.code for t in account.troubles] == ["not_json", "second_header", "torn_tail"]
    assert all(trouble.path == source for trouble in account.troubles)
    assert Path(source).read_bytes()[account.troubles[0].finding.offset :].startswith(b"{broken")
    assert (account.written, account.unreadable) == (2, 3)


def test_a_line_that_was_torn_is_imported_when_it_is_complete(rig: Rig) -> None:
    """A run in the middle of an append misses nothing for good."""
    source = rig.write("s1.jsonl", *talk("s1", "a"))
    [line] = lines_of(write(rig.state, "line", lines(said("b", "a"))))
    with open(source, "ab") as file:
        file.write(line[:20])
    assert rig.only().written == 1
    with open(source, "ab") as file:
        file.write(line[20:] + b"\n")
    account = rig.only()
    assert (account.written, account.present, account.unreadable) == (1, 1, 0)


def test_a_session_is_the_union_of_its_archives_and_its_live_file(rig: Rig) -> None:
    """What their compaction removed, including the header, is found in the archive; nothing is there twice."""
    whole = talk("s1", "a", "b", "c", cwd="/work/app")
    rig.write("s1.jsonl.bak.2026-02-03T10-00-00.000Z", *whole)
    rig.write("s1.jsonl", *whole[2:], said("d", "c"))
    account = rig.only()
    assert (account.read, account.written, account.present) == (6, 4, 2)
    assert [trouble.finding.code for trouble in account.troubles] == ["no_header"]
    assert len(account.archives) == 1
    with rig.store.open("s1") as session:
        assert told(session) == ["a", "b", "c", "d"]
        assert session.cwd == "/work/app"


def test_a_file_without_header_gets_one(rig: Rig) -> None:
    """Its owner would empty such a file; here the session starts with its first entry."""
    rig.write("s1.jsonl", *talk("s1", "a", "b")[1:])
    account = rig.only()
    assert account.written == 2
    header = records_of(account.path)[0]
    assert (header["id"], header["cwd"], header["timestamp"]) == ("s1", str(rig.state), "2026-02-16T10:20:30.000Z")


@pytest.mark.parametrize("timestamp", ["../../../x", "2026-01-01/10:00:00", 5, None])
@pytest.mark.parametrize("cwd", ["/../../x", "", 5, "/a\0b"])
def test_a_header_cannot_lead_out_of_the_store(rig: Rig, timestamp: Any, cwd: Any) -> None:
    """Its time and folder become parts of a file name."""
    head, *rest = talk("s1", "a")
    rig.write("s1.jsonl", {**head, "timestamp": timestamp, "cwd": cwd}, *rest)
    account = rig.only()
    assert os.path.dirname(os.path.dirname(account.path)) == rig.store.layout.sessions
    assert os.path.exists(account.path)


def test_old_versions_are_migrated_with_ids_that_stay(rig: Rig) -> None:
    """A second run recognizes them."""
    head, first, second = talk("s1", "a", "b")
    old = [{k: v for k, v in record.items() if k not in ("id", "parentId")} for record in (first, second)]
    del head["version"]
    source = rig.write("s1.jsonl", head, *old)
    assert rig.only().written == 2
    with rig.store.open("s1") as session:
        assert told(session) == ["a", "b"]
    append_raw(source, {k: v for k, v in said("c", "b").items() if k not in ("id", "parentId")})
    account = rig.only()
    assert (account.written, account.present) == (1, 2)


def test_orphans_and_keys_without_transcript_are_named(rig: Rig) -> None:
    """Both are in the report; an archive is not an orphan."""
    rig.write("named.jsonl", *talk("named", "a"))
    rig.write("orphan.jsonl", *talk("orphan", "a"))
    rig.write("over.jsonl.reset.2026", *talk("over", "a"))
    rig.entries(
        {MAIN: {"sessionId": "named"}, GROUP: {"sessionId": "gone"}, "agent:main:alias": {"sessionId": "named"}}
    )
    [agent] = rig.run().agents
    assert agent.missing == [GROUP]
    assert {a.session_id: (a.keys, a.orphan) for a in agent.sessions} == {
        "named": ([MAIN, "agent:main:alias"], False),
        "orphan": ([], True),
        "over": ([], False),
    }


def test_deleted_sessions_are_left_out_unless_wanted(rig: Rig) -> None:
    """They are reported with the reason."""
    rig.write("s1.jsonl.deleted.2026", *talk("s1", "a"))
    write(rig.sessions, "s2.jsonl.deleted.2026.zst", b"\x28\xb5\x2f\xfd")
    write(rig.state / "agents" / "main" / "agent", "openclaw-agent.sqlite", b"")
    report = rig.run()
    assert report.sessions == []
    assert [left.reason.split(";")[0] for left in report.agents[0].left_out] == [
        "databases are not supported",
        "deleted by its owner",
        "compressed",
    ]
    assert rig.only(deleted=True).written == 1


def test_a_topic_has_a_session_of_its_own(rig: Rig) -> None:
    """This holds even if its file has the id of another session."""
    rig.write("s1.jsonl", *talk("s1", "a"))
    rig.write("s1-topic-7.jsonl", *talk("s1", "b"))
    rig.write("s1-topic-a%2Fb.jsonl", *talk("s1", "c"))
    rig.entries({f"{GROUP}:topic:7": {"sessionId": "s1"}, GROUP: {"sessionId": "s1"}})
    accounts = {a.session_id: a.keys for a in rig.run().sessions}
    assert accounts == {"s1": [GROUP], "s1-topic-7": [f"{GROUP}:topic:7"], "s1-topic-a-2Fb": []}


def test_two_agents_with_one_id_have_two_sessions(rig: Rig) -> None:
    """Both are found again."""
    rig.write("s1.jsonl", *talk("s1", "a"))
    write(rig.state / "agents" / "ops" / "sessions", "s1.jsonl", lines(*talk("s1", "b", "c")))
    first = rig.run()
    assert len({account.path for account in first.sessions}) == 2
    assert [account.written for account in rig.run().sessions] == [0, 0]


def test_a_session_of_ours_with_that_id_is_left_alone(rig: Rig) -> None:
    """It was not imported, so it is another session."""
    rig.write("s1.jsonl", *talk("s1", "a"))
    with rig.store.create("/work/app", session_id="s1", publish=True) as mine:
        say(mine, "mine")
    account = rig.only()
    assert account.path != mine.path
    assert rig.only().path == account.path
    assert len(records_of(mine.path)) == 2


def test_a_broken_store_does_not_hide_the_transcripts(rig: Rig) -> None:
    """It is reported with line and column and saved, and the sessions are imported without keys."""
    rig.write("s1.jsonl", *talk("s1", "a"))
    write(rig.sessions, "sessions.json", b'{"a": ')
    [agent] = rig.run().agents
    assert "line 1, column 7" in agent.left_out[0].reason
    assert agent.sessions[0].orphan
    assert agent.store is not None and Path(agent.store).read_bytes() == b'{"a": '


def test_the_store_file_is_kept_as_it_was(rig: Rig) -> None:
    """Keys, toggles and counters are not lost; each version is saved once."""
    rig.entries({MAIN: {"sessionId": "s1", "totalTokens": 9}})
    kept = rig.run().agents[0].store
    assert kept is not None and Path(kept).read_bytes() == (rig.sessions / "sessions.json").read_bytes()
    assert rig.run().agents[0].store == kept
    rig.entries({})
    assert rig.run().agents[0].store != kept
    assert Path(kept).exists()


def test_agents_share_a_store_by_their_keys(rig: Rig) -> None:
    """If the configuration names one file for all."""
    rig.write("s1.jsonl", *talk("s1", "a"))
    write(rig.state / "agents" / "ops" / "sessions", "s2.jsonl", lines(*talk("s2", "b")))
    write(
        rig.state, "all.json", stored({MAIN: {"sessionId": "s1"}, "agent:ops:main": {"sessionId": "s2"}, "agent:": {}})
    )
    report = rig.run(template="all.json")
    assert {a.session_id: a.keys for a in report.sessions} == {"s1": [MAIN], "s2": ["agent:ops:main"]}
    assert [agent.missing for agent in report.agents] == [["agent:"], []]


def test_older_layouts_and_strange_folders_are_seen(rig: Rig) -> None:
    """Sessions without an agent belong to the default one; a folder with an invalid name is reported."""
    write(rig.state / "sessions", "s1.jsonl", lines(*talk("s1", "a")))
    (rig.state / "agents" / "Not An Agent").mkdir(parents=True)
    report = rig.run()
    assert [(a.agent, a.session_id) for a in report.sessions] == [("main", "s1")]
    assert [left.name for left in report.left_out] == [f"{rig.state}/agents/Not An Agent"]


def test_a_file_outside_the_folders_is_not_imported(rig: Rig) -> None:
    """An entry must not point elsewhere; this is reported."""
    write(rig.state, "secret.jsonl", lines(*talk("secret", "a")))
    rig.entries({MAIN: {"sessionId": "secret", "sessionFile": "../../../secret.jsonl"}})
    [agent] = rig.run().agents
    assert agent.sessions == []
    assert agent.missing == [MAIN]
    assert [left.name for left in agent.left_out] == ["../../../secret.jsonl"]


def test_a_file_that_only_an_entry_leads_to_is_imported(rig: Rig) -> None:
    """The file may be in a subfolder or have another name, and is found again."""
    write(rig.sessions / "2026", "deep.jsonl", lines(*talk("deep", "a")))
    rig.write("by-hand.txt", *talk("text", "b"))
    rig.entries({MAIN: {"sessionId": "deep", "sessionFile": "2026/deep.jsonl"}, GROUP: {"sessionFile": "by-hand.txt"}})
    report = rig.run()
    assert {a.session_id: (a.keys, a.written) for a in report.sessions} == {
        "deep": ([MAIN], 1),
        "by-hand.txt": ([GROUP], 1),
    }
    assert [a.written for a in rig.run().sessions] == [0, 0]


@pytest.mark.mission("Y5")
def test_a_session_file_behind_a_link_is_refused(rig: Rig) -> None:
    """A linked folder leads out of the sessions folder."""
    write(rig.state / "elsewhere", "secret.jsonl", lines(*talk("secret", "a")))
    rig.sessions.mkdir(parents=True)
    (rig.sessions / "link").symlink_to(rig.state / "elsewhere")
    rig.entries({MAIN: {"sessionId": "s", "sessionFile": "link/secret.jsonl"}})
    [agent] = rig.run().agents
    assert (agent.sessions, agent.missing) == ([], [MAIN])
    assert [left.name for left in agent.left_out] == ["link/secret.jsonl"]


@pytest.mark.parametrize("name", ["a" * 300, "\ud83d", "a\0b", "x/" * 3000 + "y"])
def test_an_entry_with_a_name_that_no_file_can_have_stops_nothing(rig: Rig, name: str) -> None:
    """Its key has no transcript; the others are imported."""
    rig.write("s1.jsonl", *talk("s1", "a"))
    odd = {"agent:main:x": {"sessionId": name}, "agent:main:y": {"sessionId": "y", "sessionFile": f"{name}/y.jsonl"}}
    rig.entries({MAIN: {"sessionId": "s1"}, f"{GROUP}:topic:\ud83d": {"sessionId": "gone"}, **odd})
    [agent] = rig.run().agents
    assert [a.keys for a in agent.sessions] == [[MAIN]]
    assert len(agent.missing) == 3


def test_every_key_is_bound_to_its_session_of_ours(rig: Rig) -> None:
    """A topic to its own session; a key without a transcript keeps its settings."""
    rig.write("s1.jsonl", *talk("s1", "a"))
    rig.write("s1-topic-7.jsonl", *talk("s1", "b"))
    topic = f"{GROUP}:topic:7"
    rig.entries({MAIN: {"sessionId": "s1"}, topic: {"sessionId": "s1"}, GROUP: {"sessionId": "gone", "model": "m"}})
    [agent] = rig.run().agents
    assert {b.key: (b.state, b.session_id) for b in agent.bindings} == {
        MAIN: ("new", "s1"),
        topic: ("new", "s1-topic-7"),
        GROUP: ("new", None),
    }
    bound = own_bindings(rig.store, "main")
    assert agent.bound == bound.path
    assert {key: entry["sessionId"] for key, entry in bound.read().items()} == {
        MAIN: "s1",
        topic: "s1-topic-7",
        GROUP: "gone",
    }


def test_broken_bindings_of_ours_do_not_stop_the_transcripts(rig: Rig) -> None:
    """They are reported and not changed."""
    rig.write("s1.jsonl", *talk("s1", "a"))
    rig.entries({MAIN: {"sessionId": "s1"}})
    path = write(rig.root / "agents" / "main" / "sessions", "sessions.json", b"{")
    report = rig.run()
    [left] = report.agents[0].left_out
    assert (left.name, left.failed, report.damaged) == (path, True, True)
    assert [a.written for a in report.sessions] == [1]
    assert Path(path).read_bytes() == b"{"


def test_a_folder_that_cannot_be_listed_does_not_stop_the_others(rig: Rig) -> None:
    """It is reported with the reason; only the folder of all agents must be readable."""
    rig.write("s1.jsonl", *talk("s1", "a"))
    write(rig.state / "agents" / "ops" / "sessions", "s2.jsonl", lines(*talk("s2", "b")))
    fs = PosixFilesystem()
    outcomes = []
    for number in range(1, 12):
        faulty = FaultyFilesystem(fs, plan=[Fail(errno.EACCES, at=number, on={"names"})])
        store = store_at(rig.root / str(number), fs=fs)
        try:
            report = import_state(store, StateFolder(str(rig.state)), fs=faulty)
        except PermissionRefused as error:
            assert error.path == f"{rig.state}/agents"
            continue
        if faulty.struck:
            assert report.damaged
            outcomes.append(len(report.sessions))
    # Each folder is listed for its transcripts, and for copies of a store; that of older releases holds none.
    assert sorted(outcomes) == [1, 1, 2, 2, 2]


def test_what_lies_there_and_is_not_read_is_told(rig: Rig) -> None:
    """Links, cold storage, and the copy that a rotation left of a missing store are reported."""
    rig.write("s1.jsonl", *talk("s1", "a"))
    (rig.sessions / "s2.jsonl").symlink_to(rig.sessions / "s1.jsonl")
    (rig.sessions / "cold").mkdir()
    write(rig.sessions, "sessions.json.bak.17", stored({MAIN: {"sessionId": "s1"}}))
    [agent] = rig.run().agents
    assert {os.path.basename(left.name) for left in agent.left_out} == {"s2.jsonl", "cold", "sessions.json.bak.17"}
    rig.entries({})
    [agent] = rig.run().agents
    assert {os.path.basename(left.name) for left in agent.left_out} == {"s2.jsonl", "cold"}


def test_a_store_is_not_imported_into_itself(rig: Rig) -> None:
    """It has folders of agents, too."""
    with pytest.raises(Invalid, match="itself"):
        import_state(rig.store, StateFolder(f"{rig.root}/"))


def test_imported_sessions_are_as_old_as_their_sources(rig: Rig) -> None:
    """Listings show them in order."""
    source = rig.write("s1.jsonl", *talk("s1", "a"))
    os.utime(source, (1_700_000_000, 1_700_000_000))
    assert os.stat(rig.only().path).st_mtime == 1_700_000_000


@pytest.mark.parametrize("content", [b"", b"{garbage", lines(*talk("s1"))])
def test_a_transcript_without_entries_waits_for_its_first(rig: Rig, content: bytes) -> None:
    """It is left out and reported; once it has an entry, it is imported."""
    path = write(rig.sessions, "s1.jsonl", content)
    report = rig.run()
    assert report.sessions == []
    assert [(left.name, left.reason) for left in report.agents[0].left_out] == [(path, "holds no entries")]
    rig.write("s1.jsonl", *talk("s1", "a"))
    assert rig.only().written == 1


def test_a_transcript_that_cannot_be_read_does_not_stop_the_others(rig: Rig) -> None:
    """It is reported with the reason; a failure of our own storage stops the import."""
    rig.write("s1.jsonl", *talk("s1", "a"))
    rig.write("s2.jsonl", *talk("s2", "b"))
    rig.entries({MAIN: {"sessionId": "s1"}})
    fs = PosixFilesystem()
    number = 1
    while True:
        faulty = FaultyFilesystem(fs, plan=[Fail(errno.EACCES, at=number, on={"open"})])
        store = store_at(rig.root / str(number), fs=fs)
        report = import_state(store, StateFolder(str(rig.state)), fs=faulty)
        if not faulty.struck:
            break
        [left] = report.agents[0].left_out
        assert "Permission denied" in left.reason
        assert len(report.sessions) == (2 if left.name.endswith("sessions.json") else 1)
        number += 1
    assert number > 4
    full = store_at(rig.root / "full", fs=FaultyFilesystem(fs, plan=[Fail(errno.ENOSPC, on={"write"})]))
    with pytest.raises(StorageFull):
        import_state(full, StateFolder(str(rig.state)))


def test_many_new_lines_are_added_in_order(rig: Rig) -> None:
    """The lines are more than fit into one write."""
    names = [f"e{number}" for number in range(1203)]
    whole = talk("s1", *names)
    source = rig.write("s1.jsonl", *whole[:2])
    rig.only()
    append_raw(source, *whole[2:])
    account = rig.only()
    assert (account.written, account.present) == (1202, 1)
    assert lines_of(account.path)[1:] == lines_of(source)[1:]
