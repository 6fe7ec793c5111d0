"""Importing other agents' sessions, and converting ours to their formats and back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sessile import Filter, Library, Store
from sessile.agents.claude.sdk import ClaudeSessions
from sessile.demo.corpus import make_demo
from sessile.errors import Conflict, Unsupported
from sessile.storage.layout import Source
from sessile.transfer import converted, import_session

from .test_foreign import CODEX, SESSION, call, result, row

ROWS = [
    row("user", "u1", None, "question"),
    call("c1", "u1", "m", "t1"),
    call("c2", "c1", "m", "t2"),
    result("r1", "c1", "t1"),
    result("r2", "c2", "t2"),
    {"type": "custom-title", "customTitle": "Mine", "sessionId": SESSION},
    row("assistant", "a1", "r2", [{"type": "text", "text": "answer"}]),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "projects" / "-work-app" / f"{SESSION}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in ROWS))
    return path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.mark.mission("C14")
def test_an_import_keeps_everything_and_the_source_as_it_is(source: Path, store: Store) -> None:
    """The same tree and context as in place; the bytes are kept; the file is not touched."""
    before = source.read_bytes(), source.stat().st_mtime_ns
    done = import_session(store, str(source))
    assert (done.id, done.format, done.rows, done.added, done.unreadable) == (SESSION, "claude", 7, 7, ())
    with store.open(done.path, readonly=True) as session, store.open(source, readonly=True) as there:
        assert session.title == "Mine" and session.leaf_id == there.leaf_id == "a1"
        assert session.context().messages == there.context().messages
        assert [entry.id for entry in session.get_branch()] == [entry.id for entry in there.get_branch()]
    assert (source.read_bytes(), source.stat().st_mtime_ns) == before


def test_an_import_takes_a_last_row_without_newline_and_says_what_is_damaged(source: Path, store: Store) -> None:
    """A row that is still being written counts; a torn one is reported; a boundary tells the summary its sizes."""
    boundary = {"subtype": "compact_boundary", "compactMetadata": {"preTokens": 7, "postTokens": 3}}
    rows = [
        row("system", "b1", None) | boundary,
        row("user", "s1", "b1", "the story so far") | {"isCompactSummary": True},
        row("assistant", "a2", "s1", [{"type": "text", "text": "and on"}]),
    ]
    with source.open("a") as file:
        file.write('{"type":"user","torn\n' + "\n".join(map(json.dumps, rows)))
    done = import_session(store, str(source))
    with store.open(done.path, readonly=True) as session, store.open(source, readonly=True) as there:
        assert done.added == 10 and session.leaf_id == there.leaf_id == "a2"
        (finding,) = there.findings
        assert done.unreadable == (f"at byte {finding.offset:,}: {finding.detail}",)
        summary = session.get_entry("s1")
        assert summary is not None and (summary["tokensBefore"], summary["tokensAfter"]) == (7, 3)
        assert summary.body.items() >= there.get_full_entry("s1").items()
        assert b"".join(converted(session, "claude", {})) == source.read_bytes()


@pytest.mark.promise("P2")
def test_importing_again_brings_back_what_a_power_cut_took_from_the_middle(source: Path, store: Store) -> None:
    """Entries that are missing before others come again, the path to the leaf is whole, and then nothing is new."""
    path = Path(import_session(store, str(source)).path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"\0" * (len(lines[1]) - 1) + b"\n", *lines[2:]]))  # the first entry
    import_session(store, str(source))
    with store.open(path, readonly=True) as session, store.open(source, readonly=True) as there:
        assert [entry.id for entry in session.get_branch("a1")] == [entry.id for entry in there.get_branch("a1")]
    assert import_session(store, str(source)).added == 0


def test_a_name_that_another_one_outranks_stays_outranked(source: Path, store: Store) -> None:
    """What a person called the session counts more than what a model called it later."""
    with source.open("a") as file:
        file.write(json.dumps({"type": "ai-title", "aiTitle": "Model's", "sessionId": SESSION}) + "\n")
    with store.open(source, readonly=True) as there, store.open(import_session(store, str(source)).path) as session:
        assert there.title == session.title == "Mine"


def test_importing_again_adds_only_what_is_new(source: Path, store: Store) -> None:
    """Nothing twice; what somebody has said in the copy meanwhile stays."""
    first = import_session(store, str(source))
    assert import_session(store, str(source)).added == 0
    with store.open(first.path) as session:
        mine = session.append_message({"role": "user", "content": "in the copy"}).id
    with source.open("a") as file:
        file.write(json.dumps(row("user", "u2", "a1", "more")) + "\n")
    assert import_session(store, str(source)).added == 1
    with store.open(first.path, readonly=True) as session:
        assert session.leaf_id == "u2"
        assert {entry.id for entry in session.get_children("a1")} >= {mine, "u2"}


@pytest.mark.mission("C14")
def test_converting_back_gives_the_same_bytes_and_rows_for_what_came_since(source: Path, store: Store) -> None:
    """The chain goes on from the last row; the result reads as a session of theirs."""
    done = import_session(store, str(source))
    with store.open(done.path) as session:
        report: dict[str, int] = {}
        assert b"".join(converted(session, "claude", report)) == source.read_bytes()
        session.append_message({"role": "user", "content": "and now?"})
        session.append_message({"role": "assistant", "content": [{"type": "text", "text": "done"}], "model": "m"})
        back = b"".join(converted(session, "claude", report))
        messages = session.context().messages
    assert back.startswith(source.read_bytes())
    rows = [json.loads(line) for line in back.splitlines()[len(ROWS) :]]
    assert [each["type"] for each in rows] == ["user", "assistant"]
    assert rows[0]["parentUuid"] == "a1" and rows[1]["parentUuid"] == rows[0]["uuid"]
    again = source.with_name("0f4e8b1c-2d3a-4c5b-8e6f-000000000000.jsonl")
    again.write_bytes(back)
    with store.open(again, readonly=True) as session:
        assert session.context().messages == messages


def test_a_session_in_place_is_its_own_conversion(source: Path, store: Store) -> None:
    """Byte for byte, what cannot be read included."""
    with source.open("ab") as file:
        file.write(b'{"torn')
    with store.open(source, readonly=True) as session:
        assert b"".join(converted(session, "claude", {})) == source.read_bytes()


def test_every_session_of_the_demo_goes_there_and_back(tmp_path: Path) -> None:
    """All kinds of entries, branches, labels and compactions are the same after a round trip."""
    store = Store(tmp_path / "demo", clock=lambda: 1_763_200_000.0)
    make_demo(store)
    there = tmp_path / "there"
    there.mkdir()
    for info in store.list_all():
        if info.size > 100_000:
            continue
        report: dict[str, int] = {}
        with store.open(info.path, readonly=True) as session:
            path = there / f"{session.id}.jsonl"
            path.write_bytes(b"".join(converted(session, "claude", report)))
            if not session.get_entries():
                continue
            with store.open(path, readonly=True) as copy:
                assert [dict(entry) for entry in copy.iter_entries()] == [
                    dict(entry) for entry in session.iter_entries()
                ]
                assert copy.get_labels() == session.get_labels()
                assert copy.title == session.title
                assert copy.context().messages == session.context().messages
                assert copy.context().models == session.context().models


def test_what_claude_code_adds_to_a_converted_session_hangs_from_it(tmp_path: Path) -> None:
    """It knows the uuids of rows, not the ids of entries."""
    store = Store(tmp_path / "store")
    with store.create("/work", publish=True) as session:
        first = session.append_message({"role": "user", "content": "x"}).id
        last = session.append_message({"role": "assistant", "content": [{"type": "text", "text": "y"}]}).id
        path = tmp_path / f"{SESSION}.jsonl"
        path.write_bytes(b"".join(converted(session, "claude", {})))
    uuids = [json.loads(line).get("uuid") for line in path.read_bytes().splitlines()]
    with path.open("a") as file:
        for added in (row("user", "u9", uuids[1]), row("user", "u10", uuids[0])):
            file.write(json.dumps(added) + "\n")
    with store.open(path, readonly=True) as copy:
        assert [entry.id for entry in copy.get_branch("u9")] == [first, last, "u9"]
        assert [entry.id for entry in copy.get_branch("u10")] == [first, "u10"]
        assert copy.leaf_id == "u10" and not copy.findings and len(copy.get_entries()) == 4
        assert {entry.id for entry in copy.get_heads()} == {"u9", "u10"}


def test_claude_code_sees_the_title(tmp_path: Path) -> None:
    """Where it looks for it."""
    store = Store(tmp_path / "store")
    with store.create("/work", title="Retries", publish=True) as session:
        session.append_message({"role": "user", "content": "x"})
        path = tmp_path / "claude" / "projects" / "-work" / f"{session.id}.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"".join(converted(session, "claude", {})))
    info = ClaudeSessions(store.fs, str(tmp_path / "claude")).get_session_info(path.stem)
    assert info is not None and (info.custom_title, info.first_prompt) == ("Retries", "x")


def test_what_has_no_counterpart_is_counted(tmp_path: Path) -> None:
    """Labels and settings stay in the rows, and are said."""
    with Store(tmp_path / "store").create("/work", publish=True) as session:
        at = session.append_message({"role": "user", "content": "x"}).id
        session.append_label_change(at, "here")
        session.append_thinking_level_change("high")
        report: dict[str, int] = {}
        list(converted(session, "claude", report))
        assert report == {"label": 1, "thinking_level_change": 1}
        with pytest.raises(Unsupported, match="cannot convert to"):
            converted(session, "fax", report)


def test_two_sources_with_one_id_are_not_mixed(source: Path, store: Store, tmp_path: Path) -> None:
    """A copied file elsewhere is another session."""
    import_session(store, str(source))
    other = tmp_path / "other" / source.name
    other.parent.mkdir()
    other.write_bytes(source.read_bytes())
    with pytest.raises(Conflict):
        import_session(store, str(other))


def test_what_was_imported_is_listed_and_counted_once(source: Path, store: Store, tmp_path: Path) -> None:
    """One's own copy stands for both; whoever names the other agent's folder sees the original."""
    place = str(tmp_path / "projects")
    import_session(store, str(source))
    with Library(store, [Source("claude", str(tmp_path), place)]) as library:
        library.catch_up("count")
        listing = library.list()
        assert [row.format for row in listing.rows] == ["native"] and listing.hidden == {"imported": 1}
        assert [row.format for row in library.list(Filter(below=[place])).rows] == ["claude"]
        assert len(library.usage().sessions) == 1


def test_rows_beside_the_conversation_begin_no_branch_in_a_copy(source: Path, store: Store, tmp_path: Path) -> None:
    """Neither in a fork nor in an import; the name that counts is the copy's, and what they say is kept."""
    beside = [{"type": "file-history-snapshot", "messageId": "u1", "snapshot": {}, "sessionId": SESSION}]
    beside += [{"type": "ai-title", "aiTitle": "Model's", "sessionId": SESSION}]
    with source.open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in [*beside, row("user", "u2", "a1")])
    done = import_session(store, str(source))
    with store.fork_from(source, "/work/app") as fork, store.open(done.path, readonly=True) as session:
        for copy in (fork, session):
            assert [entry.id for entry in copy.get_heads()] == ["u2"] == [copy.leaf_id] and copy.title == "Mine"
            assert any("file-history-snapshot" in entry.raw.decode() for entry in copy.iter_lines())


@pytest.mark.parametrize("to", ["claude", "myagents", "native"])
def test_a_rollout_is_converted_without_an_import(to: str, store: Store, tmp_path: Path) -> None:
    """Settings and events beside the conversation are carried along."""
    path = tmp_path / "rollout.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in CODEX))
    with store.open(path, readonly=True) as session:
        other = tmp_path / f"{SESSION}.jsonl"
        other.write_bytes(b"".join(converted(session, to, {})))
        with store.open(other, readonly=True) as copy:
            assert [entry.id for entry in copy.get_branch()] == [entry.id for entry in session.get_branch()]


def test_an_import_has_the_time_and_the_sub_agents_of_its_source(source: Path, store: Store) -> None:
    """A listing by time stays as it was, and what lies beside the transcript comes along."""
    agents = source.with_suffix("") / "subagents"
    agents.mkdir(parents=True)
    (agents / "agent-a1.jsonl").write_text("{}\n")
    os.utime(source, ns=(1_700_000_000_000_000_000,) * 2)
    done = import_session(store, str(source))
    assert Path(done.path).stat().st_mtime_ns == 1_700_000_000_000_000_000
    assert (Path(done.path).with_suffix("") / "subagents" / "agent-a1.jsonl").read_text() == "{}\n"
    with pytest.raises(Unsupported, match="native already"):
        import_session(store, done.path)


def test_only_the_original_of_an_import_stands_back_for_it(source: Path, store: Store, tmp_path: Path) -> None:
    """Another agent may have a session of the same id: that one is not the one that was imported."""
    other = tmp_path / "other" / source.name
    other.parent.mkdir()
    other.write_bytes(source.read_bytes())
    import_session(store, str(source))
    places = [Source("claude", str(tmp_path), str(folder)) for folder in (tmp_path / "projects", other.parent)]
    with Library(store, places) as library:
        library.catch_up()
        assert str(other) in [row.path for row in library.list().rows]
        assert str(source) not in [row.path for row in library.list().rows]


def test_a_session_of_ours_stays_one_whatever_its_header_says(store: Store) -> None:
    """The format is that of the file: texts that were cut are put back, though the header names another agent."""
    text = "x" * 700_000
    with store.create("/work", publish=True) as session:
        session.append_message({"role": "user", "content": text})
        path = Path(session.path)
    head, rest = path.read_bytes().split(b"\n", 1)
    assert len(rest) < len(text)
    path.write_bytes(json.dumps({**json.loads(head), "format": "claude"}).encode() + b"\n" + rest)
    with store.open(path, readonly=True) as session:
        assert text.encode() in b"".join(converted(session, "claude", {}))


@pytest.mark.parametrize("told", ["cli", None, 7, ["claude"]])
def test_a_source_that_is_no_object_tells_of_no_import(source: Path, store: Store, told: object) -> None:
    """Such a session is converted like any other, and nothing is imported into it."""
    path = Path(import_session(store, str(source)).path)
    head, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(json.dumps({**json.loads(head), "source": told}).encode() + b"\n" + rest)
    with store.open(path, readonly=True) as session:
        rows = [json.loads(line) for line in b"".join(converted(session, "claude", {})).splitlines()]
    assert {"u1", "a1"} <= {each.get("uuid") for each in rows}
    with pytest.raises(Conflict):
        import_session(store, str(source))
