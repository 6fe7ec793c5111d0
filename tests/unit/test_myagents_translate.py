"""MyAgents' sessions read in place, listed, searched, imported, and converted in both directions."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myagents_folder import AT, asked, line, told
from sessile import Filter, Library, Store
from sessile.agents.myagents.messages import encode_row
from sessile.agents.myagents.translation import MyAgents, Rendering
from sessile.core.lines import Finding, Line, scan
from sessile.demo.corpus import make_demo
from sessile.errors import Unsupported
from sessile.storage.layout import Source
from sessile.transfer import converted, import_session

pytestmark = pytest.mark.mission("B1")

TOOL = {"type": "tool_use", "tool": {"id": "t1", "name": "Read", "input": {"p": 1}, "result": "found it"}}
FAILED = {"type": "tool_use", "tool": {"id": "t2", "name": "Run", "input": {}, "result": "no such", "isError": True}}
BLOCKS = json.dumps([{"type": "thinking", "thinking": "hm"}, TOOL, FAILED, {"type": "text", "text": "done"}])

SAMPLES = [
    line(asked(0)),
    line(told(1, toolCount=2, durationMs=900, later={"x": [1.5, None]})),
    line(told(2, text=BLOCKS)),
    line(asked(3, attachments=[{"id": "a", "name": "n", "mimeType": "image/png", "path": "s/a.png"}])),
    b'{"role": "user", "id": "4", "content": "spaced", "n": 1.0, "n": 2}\n',
    b'{"id":"5","role":"user","content":"not \xff utf-8"}\n',
    b'{"id":"6","role":"system","content":"another role","timestamp":"soon"}\n',
    b'{"id":"7","role":"user","content":"lone \\ud800"}\n',
    b'{"id":"8","role":"assistant","content":null}\n',
    b'{"id":"9"}\n',
]
INDEX = [{"id": "s", "agentDir": "/work/app", "title": "Retries", "createdAt": AT, "lastActiveAt": AT}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "myagents"
    (path / "sessions").mkdir(parents=True)
    (path / "sessions.json").write_text(json.dumps(INDEX))
    return path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def put(folder: Path, data: bytes, name: str = "s.jsonl") -> Path:
    path = folder / "sessions" / name
    path.write_bytes(data)
    return path


def test_a_session_is_a_chain_of_messages_with_calls_and_their_results(folder: Path, store: Store) -> None:
    """A tool and its result are one block there, and a call and a message here; usage has our names."""
    path = put(folder, line(asked(0)) + line(told(1, text=BLOCKS)))
    with store.open(path, readonly=True) as session:
        assert (session.id, session.cwd, session.title) == ("s", "/work/app", "Retries")
        entries = list(session.iter_entries())
        assert [entry.parent_id for entry in entries] == [None, *(entry.id for entry in entries[:-1])]
        said = [entry["message"] for entry in entries]
        assert [message["role"] for message in said] == ["user", "assistant", "toolResult", "toolResult"]
        assert [block["type"] for block in said[1]["content"]] == ["thinking", "toolCall", "toolCall", "text"]
        assert said[1]["usage"] == {"input": 10, "output": 1, "cacheRead": 2, "totalTokens": 13}
        assert [message["toolCallId"] for message in said[2:]] == ["t1", "t2"]
        assert [message["isError"] for message in said[2:]] == [False, True]
        assert session.leaf_id == entries[-1].id
        assert len(session.context().messages) == 4


def test_an_entry_of_a_row_is_found_again_through_the_saved_index(folder: Path, store: Store) -> None:
    """Several entries of one row have their own ids."""
    path = put(folder, b"".join(line(told(number, text=BLOCKS)) for number in range(100)))
    with store.open(path, readonly=True) as session:
        ids = [entry.id for entry in session.iter_entries()]
    with store.open(path, readonly=True) as session:
        assert [entry.id for entry in session.get_branch()] == ids and len(set(ids)) == 300
        assert session.get_entry(ids[-1]) is not None


def test_whatever_rows_hold_is_there(folder: Path, store: Store) -> None:
    """Other roles and plain objects are custom entries; invalid UTF-8 is a finding."""
    with store.open(put(folder, b"".join(SAMPLES) + b'{"id":"10","ro'), readonly=True) as session:
        kinds = [entry.get("customType") or entry["message"]["role"] for entry in session.iter_entries()]
        results = ["toolResult", "toolResult"]
        rows = ["myagents.row", "user", "assistant", "myagents.row"]
        assert kinds == ["user", "assistant", "assistant", *results, "user", "user", "user", *rows]
        assert {finding.code for finding in session.findings} == {"bad_utf8", "torn_tail"}


def test_a_library_lists_counts_and_searches_them(folder: Path, store: Store) -> None:
    """Title and folder come from MyAgents' index, also if only that has changed."""
    put(folder, line(asked(0, "please look for rhubarb")) + line(told(1, text=BLOCKS)))
    with Library(store, [Source("myagents", str(folder), str(folder / "sessions"))]) as library:
        library.catch_up("index")
        (row,) = library.list().rows
        assert (row.id, row.format, row.title, row.cwd) == ("s", "myagents", "Retries", "/work/app")
        assert row.first_text == "please look for rhubarb" and row.counts is not None and row.counts.messages == 4
        assert [hit.session_id for hit in library.search("rhubarb").hits] == ["s"]
        (folder / "sessions.json").write_text(json.dumps([INDEX[0] | {"title": "Renamed", "agentDir": "/else"}]))
        library.catch_up()
        (row,) = library.list(Filter(words=["renamed"])).rows
        assert (row.title, row.cwd) == ("Renamed", "/else") and row.counts is not None


def test_results_are_found_through_both_layers_of_escapes(folder: Path, store: Store) -> None:
    """Blocks are JSON in a JSON string, so quotes and line breaks are escaped twice."""
    from sessile.storage.search import Needle

    block = {"type": "tool_use", "tool": {"id": "t", "name": "Run", "input": {}, "result": 'he said "no"\nthen left'}}
    put(folder, line(told(0, text=json.dumps([block]))))
    with Library(store, [Source("myagents", str(folder), str(folder / "sessions"))]) as library:
        library.catch_up()
        notices: list[str] = []
        found = list(library.scan(Needle('said "no"\nthen'), notices=notices))
        assert [each.match.field for each in found] == ["tool_result"] and not notices


def test_archives_and_the_old_form_are_read_in_place(folder: Path, store: Store) -> None:
    """Nothing is unpacked beside them; if a session exists twice, the plain one counts."""
    rows = line(asked(0, "in an archive")) + line(told(1))
    put(folder, gzip.compress(rows), "packed.jsonl.gz")
    put(folder, json.dumps({"messages": [asked(0, "in the old form")]}).encode(), "old.json")
    put(folder, rows, "both.jsonl")
    put(folder, gzip.compress(rows), "both.jsonl.gz")
    before = sorted(folder.rglob("*"))
    time.sleep(0.1)  # files that have just changed are read again the next time
    with Library(store, [Source("myagents", str(folder), str(folder / "sessions"))]) as library:
        library.catch_up("index")
        assert sorted(str(row.id) for row in library.list().rows) == ["both", "old", "packed"]
        assert {hit.session_id for hit in library.search("archive").hits} == {"both", "packed"}
        assert {hit.session_id for hit in library.search("old form").hits} == {"old"}
        for name in ("packed", "old"):
            with store.open(library.find(name), readonly=True) as session:
                assert session.id == name and session.count_entries() == (2 if name == "packed" else 1)
        library.catch_up("index")
        assert library.catch_up("index").changed == 0
    assert sorted(folder.rglob("*")) == before


def test_a_damaged_archive_gives_what_is_whole_in_it_and_says_so(folder: Path, store: Store) -> None:
    """The archive is read as far as it can be unpacked."""
    rows = b"".join(line(asked(number, f"{number} " + "x" * 500)) for number in range(2000))
    path = put(folder, gzip.compress(rows)[:-5000], "packed.jsonl.gz")
    with store.open(path, readonly=True) as session:
        assert 0 < session.count_entries() < 2000
        assert "damaged_archive" in {finding.code for finding in session.findings}


def test_an_import_gives_the_same_bytes_back_and_rows_with_the_next_number(folder: Path, store: Store) -> None:
    """Rows of any content are restored; our calls contain their results, tools are counted, and usage has their names."""
    path = put(folder, b"".join(SAMPLES) + line(asked(41)))
    done = import_session(store, str(path))
    assert (done.format, done.rows, done.added) == ("myagents", 13, 13)
    assert import_session(store, str(path)).added == 0
    call = {"type": "toolCall", "id": "c", "name": "Run", "arguments": {"x": 1}}
    with store.open(done.path) as session:
        report: dict[str, int] = {}
        assert b"".join(converted(session, "myagents", report)) == path.read_bytes() and not report
        answer = {"role": "assistant", "content": [call], "model": "m", "usage": {"input": 5, "output": 2}}
        session.append_message(answer)
        out = [{"type": "text", "text": "out"}]
        session.append_message({"role": "toolResult", "toolCallId": "c", "content": out, "isError": True})
        session.append_thinking_level_change("high")
        back = b"".join(converted(session, "myagents", report))
        messages, entries = session.context().messages, [dict(entry) for entry in session.iter_entries()]
    assert back.startswith(path.read_bytes()) and report == {"thinking_level_change": 1}
    (row,) = (json.loads(each) for each in back[path.stat().st_size :].splitlines())
    assert (row["id"], row["toolCount"], row["usage"]["inputTokens"]) == ("42", 1, 5)
    tool = {"id": "c", "name": "Run", "input": {"x": 1}, "result": "out", "isError": True}
    assert json.loads(row["content"]) == [{"type": "tool_use", "tool": tool}]
    with store.open(put(folder, back, "again.jsonl"), readonly=True) as again:
        assert again.context().messages == messages
        assert [dict(entry) for entry in again.iter_entries()][-3:] == entries[-3:]


def test_a_torn_last_row_is_not_glued_to_what_comes_behind_it(folder: Path, store: Store) -> None:
    """What is converted back starts on its own line."""
    path = put(folder, line(asked(0)) + b'{"id":"1","role":"assi')
    with store.open(import_session(store, str(path)).path) as session:
        session.append_message({"role": "user", "content": "next"})
        back = b"".join(converted(session, "myagents", {}))
    assert [isinstance(item, Finding) for item in scan(back, untyped=True)] == [False, True, False]


def test_every_session_of_the_demo_goes_there_and_back(tmp_path: Path) -> None:
    """All kinds of entries, branches, labels and compactions are the same after a round trip."""
    store = Store(tmp_path / "demo", clock=lambda: 1_763_200_000.0)
    make_demo(store)
    there = tmp_path / "there"
    there.mkdir()
    for info in store.list_all():
        with store.open(info.path, readonly=True) as session:
            roles = {entry["message"]["role"] for entry in session.get_branch() if "message" in entry}
            if info.size > 100_000 or not roles:
                continue
            path = there / f"{session.id}.jsonl"
            path.write_bytes(b"".join(converted(session, "myagents", {})))
            with store.open(path, readonly=True) as copy:
                ours = [dict(entry) for entry in session.iter_entries()]
                assert [dict(entry) for entry in copy.iter_entries()] == ours
                assert copy.get_labels() == session.get_labels() and copy.leaf_id == session.leaf_id
                assert copy.context().messages == session.context().messages


def test_a_session_without_a_message_cannot_be_one_of_theirs(store: Store) -> None:
    """The file would be empty, and the entries would be lost."""
    with store.create("/work", publish=True) as session:
        session.append_thinking_level_change("high")
        with pytest.raises(Unsupported, match="does not support sessions without messages"):
            list(converted(session, "myagents", {}))


text = st.sampled_from(["", "x", "[1]", "é\u2028🙂", "a\nb"])
block = st.fixed_dictionaries({"type": st.just("text"), "text": text}) | st.fixed_dictionaries(
    {"type": st.just("toolCall"), "id": st.sampled_from("ab"), "name": text, "arguments": st.just({})}
)
content = text | st.lists(block, max_size=3)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "toolResult", "odd"]), "content": content}
)


@given(st.lists(message | st.none(), max_size=6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_entries_become_rows_and_the_same_entries_again(spoken: list[Any], on_path: list[bool]) -> None:
    """Entries may have any content, be on other branches, and have settings between them."""
    entries: list[dict[str, Any]] = []
    for number, said in enumerate(spoken):
        base = {"id": f"e{number}", "parentId": f"e{number - 1}" if number else None, "timestamp": AT}
        if said is None:
            entries.append({"type": "mode_change", **base, "mode": "plan"})
        else:
            told_id = {"toolCallId": "a"} if said["role"] == "toolResult" else {}
            entries.append({"type": "message", **base, "message": said | told_id})
    path = {f"e{number}" for number, there in enumerate(on_path) if there}
    rows = list(Rendering(path.__contains__).rows(entries))
    found: list[dict[str, Any]] = []
    for item in scan(b"".join(row + b"\n" for row in rows), untyped=True):
        assert isinstance(item, Line)
        for entry_id in MyAgents().ids_of(item.raw, item.offset):
            found.append(MyAgents().entry(item.raw, entry_id, None, lambda other: None))
    assert found == (entries if rows else [])


@given(st.lists(st.sampled_from(SAMPLES), max_size=5), st.integers(0, 5))
def test_a_translator_goes_on_where_another_one_was_saved(samples: list[bytes], stop: int) -> None:
    """The saved state is enough."""
    lines = [item for item in scan(b"".join(samples), untyped=True) if isinstance(item, Line)]
    through = MyAgents().translator()
    expected = [through.take(each) for each in lines]
    first = MyAgents().translator()
    begun = [first.take(each) for each in lines[:stop]]
    second = MyAgents().translator(json.loads(json.dumps(first.saved())))
    assert [*begun, *(second.take(each) for each in lines[stop:])] == expected
    assert second.leaf == through.leaf


def test_rows_are_those_of_messages_not_of_anything_with_a_role() -> None:
    """A file of another agent is not recognized as one of MyAgents."""
    known = MyAgents()
    assert known.recognises(encode_row(asked(0)) + b"\n")
    assert known.recognises(b"\n" + encode_row(asked(0)))
    assert not known.recognises(b'{"type":"session","id":"x"}\n')
    assert not known.recognises(b'{"type":"user","role":"user","id":"1","content":"x"}\n')
    assert not known.recognises(b'{"role":"user"}\n') and not known.recognises(b"")
