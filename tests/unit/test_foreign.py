"""Reading files of other agents in place: Claude Code transcripts and Codex rollouts as sessions."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from sessile import Library, Session, Store, check, repair
from sessile.agents.base import Format
from sessile.agents.claude.translation import Claude
from sessile.agents.codex.rollout import Codex
from sessile.agents.myagents.translation import MyAgents
from sessile.core.kinds import LEAF_MARKER
from sessile.core.lines import Line, scan
from sessile.errors import NotASession, Unsupported
from sessile.storage.layout import Source
from sessile.upkeep.check import plan_repair

SESSION = "0f4e8b1c-2d3a-4c5b-8e6f-7a8b9c0d1e2f"
AT = "2026-05-01T10:00:00.000Z"


def row(kind: str, uuid: str, parent: str | None, content: Any = "text", **members: Any) -> dict[str, Any]:
    """Return a row of a Claude transcript."""
    message = {"role": kind, "content": content}
    if kind == "assistant":
        message |= {"id": f"msg_{uuid}", "model": "claude-x", "usage": {"input_tokens": 3, "output_tokens": 4}}
    base = {"parentUuid": parent, "isSidechain": False, "type": kind, "uuid": uuid, "timestamp": AT, "cwd": "/work/app"}
    return {**base, "sessionId": SESSION, "message": message, **members}


def call(uuid: str, parent: str | None, answer: str, tool: str) -> dict[str, Any]:
    use = [{"type": "tool_use", "id": tool, "name": "Bash", "input": {"command": f"run {tool}"}}]
    made = row("assistant", uuid, parent, use)
    return {**made, "message": {**made["message"], "id": answer}}


def result(uuid: str, parent: str, tool: str) -> dict[str, Any]:
    return row("user", uuid, parent, [{"type": "tool_result", "tool_use_id": tool, "content": f"{tool} done"}])


def opened(tmp_path: Path, rows: list[dict[str, Any]], name: str = SESSION) -> Session:
    path = tmp_path / "projects" / "-work-app" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in rows))
    return Store(tmp_path / "store").open(path, readonly=True)


def test_a_conversation_is_a_tree_like_ours(tmp_path: Path) -> None:
    """Header, entries, branches and context come from the rows; the file and its folder are not touched."""
    rows = [
        row("user", "u1", None, "question"),
        row("assistant", "a1", "u1", [{"type": "text", "text": "first"}]),
        row("assistant", "a2", "u1", [{"type": "text", "text": "second"}]),
    ]
    with opened(tmp_path, rows) as session:
        path = Path(session.path)
        before = path.read_bytes(), path.stat().st_mtime_ns, sorted(tmp_path.joinpath("projects").rglob("*"))
        assert (session.id, session.cwd, session.leaf_id) == (SESSION, "/work/app", "a2")
        assert [entry.id for entry in session.get_heads()] == ["a1", "a2"]
        context = session.context()
        assert [message["role"] for message in context.messages] == ["user", "assistant"]
        assert context.messages[1]["content"] == [{"type": "text", "text": "second"}]
        assert context.models == {"default": "anthropic/claude-x"}
        assert (path.read_bytes(), path.stat().st_mtime_ns, sorted(tmp_path.joinpath("projects").rglob("*"))) == before


def test_the_results_of_parallel_calls_are_all_on_the_path(tmp_path: Path) -> None:
    """In the transcript each result is a child of its call; here they form one chain after the last call."""
    rows = [
        row("user", "u1", None),
        call("c1", "u1", "m", "t1"),
        call("c2", "c1", "m", "t2"),
        call("c3", "c2", "m", "t3"),
        result("r1", "c1", "t1"),
        result("r3", "c3", "t3"),
        result("r2", "c2", "t2"),
        row("assistant", "a", "r2", [{"type": "text", "text": "done"}]),
    ]
    with opened(tmp_path, rows) as session:
        assert [entry.id for entry in session.get_branch()] == ["u1", "c1", "c2", "c3", "r1", "r3", "r2", "a"]
        results = [message for message in session.context().messages if message["role"] == "toolResult"]
        assert [message["toolCallId"] for message in results] == ["t1", "t3", "t2"]


def test_progress_is_passed_over(tmp_path: Path) -> None:
    """Old files have progress rows in the chain."""
    progress = {"type": "progress", "uuid": "p", "parentUuid": "u1", "sessionId": SESSION, "data": {}}
    rows = [
        row("user", "u1", None),
        progress,
        {**progress, "uuid": "p2", "parentUuid": "p"},
        row("assistant", "a1", "p2"),
    ]
    with opened(tmp_path, rows) as session:
        assert [entry.id for entry in session.get_branch()] == ["u1", "a1"]
        assert session.count_entries() == 2


def test_a_compaction_hangs_from_what_it_summed_up(tmp_path: Path) -> None:
    """The history before it stays; the context has the summary, the kept entries and later ones."""
    boundary = {
        **row("system", "b", None),
        "subtype": "compact_boundary",
        "logicalParentUuid": "a2",
        "compactMetadata": {"preTokens": 9000, "postTokens": 800, "preservedMessages": {"uuids": ["u2", "a2"]}},
    }
    rows = [
        row("user", "u1", None, "old"),
        row("assistant", "a1", "u1"),
        row("user", "u2", "a1", "kept"),
        row("assistant", "a2", "u2"),
        boundary,
        row("user", "s", "b", "the summary", isCompactSummary=True),
        row("user", "u3", "s", "new"),
    ]
    with opened(tmp_path, rows) as session:
        assert [entry.id for entry in session.get_branch()] == ["u1", "a1", "u2", "a2", "b", "s", "u3"]
        summary, *rest = session.context().messages
        assert (summary["role"], summary["summary"], summary["tokensBefore"]) == (
            "compactionSummary",
            "the summary",
            9000,
        )
        assert [message["content"] for message in rest if message["role"] == "user"] == ["kept", "new"]


def test_a_persons_title_counts_more_than_a_models(tmp_path: Path) -> None:
    """The last title of the best kind is used; rows outside the conversation are kept, but are not entries."""
    rows = [
        row("user", "u1", None),
        {"type": "ai-title", "aiTitle": "By a model", "sessionId": SESSION},
        {"type": "custom-title", "customTitle": "Mine", "sessionId": SESSION},
        {"type": "ai-title", "aiTitle": "Again", "sessionId": SESSION},
        {"type": "queue-operation", "operation": "enqueue", "sessionId": SESSION},
    ]
    with opened(tmp_path, rows) as session:
        assert session.title == "Mine"
        assert [entry.id for entry in session.iter_entries()] == ["u1"]
        assert len(list(session.iter_lines())) == 5
        beside = [entry["data"] for entry in session.iter_lines() if entry.get("customType") == LEAF_MARKER]
        assert any(told["customType"] == "claude.queue-operation" for told in beside if "customType" in told)


def test_a_sidechain_is_not_where_the_conversation_goes_on(tmp_path: Path) -> None:
    """Old files have the rows of sub-agents among the others."""
    rows = [row("user", "u1", None), row("assistant", "a1", "u1"), row("user", "x", None, isSidechain=True)]
    with opened(tmp_path, rows) as session:
        assert session.leaf_id == "a1"
        assert session.get_entry("x") is not None


def test_blocks_become_ours(tmp_path: Path) -> None:
    """Thinking, calls, images, errors and usage are converted."""
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "tool_use", "id": "t", "name": "Edit", "input": {"file_path": "a.py"}},
    ]
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
    failed = [
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "no"}], "is_error": True}
    ]
    patch = {"structuredPatch": [{"lines": ["-a", "+b"]}]}
    rows = [
        row("user", "u1", None, [{"type": "text", "text": "see"}, picture]),
        row("assistant", "a1", "u1", blocks),
        row("user", "r1", "a1", failed, toolUseResult=patch),
    ]
    with opened(tmp_path, rows) as session:
        said, answer, back = (entry["message"] for entry in session.get_branch())
        assert said["content"][1] == {"type": "image", "data": "QUJD", "mimeType": "image/png"}
        assert [block["type"] for block in answer["content"]] == ["thinking", "toolCall"]
        assert answer["usage"] == {"input": 3, "output": 4, "totalTokens": 7} and answer["responseId"] == "msg_a1"
        assert (back["role"], back["isError"], back["details"]) == ("toolResult", True, {"diff": "-a\n+b"})


def test_damage_is_reported_in_its_place(tmp_path: Path) -> None:
    """Only the torn row is lost."""
    with opened(tmp_path, [row("user", "u1", None)]) as session:
        path = Path(session.path)
    path.write_bytes(
        path.read_bytes() + b'{"type":"assistant","uuid":"to\n' + json.dumps(row("user", "u2", "u1")).encode()
    )
    with Store(tmp_path / "store").open(path, readonly=True) as session:
        assert [entry.id for entry in session.iter_entries()] == ["u1", "u2"]
        assert [finding.code for finding in session.findings] == ["not_json"]
        assert session.get_gaps()[0][0] == "u1"


def test_a_fork_is_a_session_of_ours_with_nothing_lost(tmp_path: Path) -> None:
    """All rows become entries, and the leaf is the same; the copy is writable, the original is not."""
    rows = [
        row("user", "u1", None, "question"),
        row("assistant", "a1", "u1", [{"type": "text", "text": "answer"}]),
        {"type": "tag", "tag": "later", "sessionId": SESSION},
    ]
    store = Store(tmp_path / "store")
    with opened(tmp_path, rows) as session:
        path = session.path
    with store.fork_from(path, "/work/app") as fork:
        assert fork.leaf_id == "a1"
        assert len(list(fork.iter_lines())) == 3
        fork.append_message({"role": "user", "content": "go on"})
        assert [message["role"] for message in fork.context().messages] == ["user", "assistant", "user"]
    with pytest.raises(Unsupported, match="session of claude"):
        store.open(path)


def test_another_agents_file_in_our_own_folder_is_read_and_never_replaced(tmp_path: Path) -> None:
    """A transcript that was put below our sessions folder opens for reading; opening it for writing changes nothing."""
    store = Store(tmp_path / "store")
    path = tmp_path / "store" / "sessions" / "--work-app--" / f"{SESSION}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(row("user", "u1", None, "question")) + "\n")
    before = path.read_bytes()
    with store.open(path, readonly=True) as session:
        assert (session.format, len(session.context().messages)) == ("claude", 1)
    with pytest.raises(Unsupported, match="claude"):
        store.open(path)
    assert path.read_bytes() == before and [*path.parent.iterdir()] == [path]


def test_what_is_no_session_of_anybody_is_said(tmp_path: Path) -> None:
    """The error is typed, and the file is unchanged."""
    path = tmp_path / "notes.jsonl"
    path.write_text('{"a": 1}\n')
    with pytest.raises(NotASession):
        Store(tmp_path / "store").open(path, readonly=True)
    assert path.read_text() == '{"a": 1}\n'


def test_a_session_that_grows_is_followed(tmp_path: Path) -> None:
    """A result may follow after the index was saved."""
    first = [row("user", f"u{n}", f"u{n - 1}" if n else None) for n in range(100)]
    with opened(tmp_path, [*first, call("c1", "u99", "m", "t1"), call("c2", "c1", "m", "t2")]) as session:
        path = Path(session.path)
        assert session.leaf_id == "c2"
    with path.open("a") as file:
        for late in (result("r1", "c1", "t1"), result("r2", "c2", "t2")):
            file.write(json.dumps(late) + "\n")
    with Store(tmp_path / "store").open(path, readonly=True) as session:
        assert [entry.id for entry in session.get_branch()][-4:] == ["c1", "c2", "r1", "r2"]


CODEX = [
    {"timestamp": AT, "type": "session_meta", "payload": {"id": SESSION, "timestamp": AT, "cwd": "/work/app"}},
    {"timestamp": AT, "type": "turn_context", "payload": {"model": "gpt-x"}},
    {
        "timestamp": AT,
        "type": "response_item",
        "payload": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list"}]},
    },
    {"timestamp": AT, "type": "event_msg", "payload": {"type": "user_message", "message": "list"}},
    {
        "timestamp": AT,
        "type": "response_item",
        "payload": {"type": "reasoning", "summary": [{"type": "summary_text", "text": "run ls"}]},
    },
    {
        "timestamp": AT,
        "type": "response_item",
        "payload": {"type": "function_call", "name": "shell", "arguments": '{"command":["ls","-l"]}', "call_id": "c"},
    },
    {
        "timestamp": AT,
        "type": "response_item",
        "payload": {
            "type": "function_call_output",
            "call_id": "c",
            "output": '{"output":"no","metadata":{"exit_code":2}}',
        },
    },
    {"timestamp": AT, "type": "compacted", "payload": {"message": "the story so far"}},
    {
        "timestamp": AT,
        "type": "response_item",
        "payload": {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "two files"}]},
    },
]


def test_a_rollout_is_one_chain(tmp_path: Path) -> None:
    """Items are in order with model changes, screen events are markers, and a compaction restarts the context."""
    with opened(tmp_path, CODEX, f"rollout-2026-05-01T10-00-00-{SESSION}") as session:
        assert (session.id, session.cwd) == (SESSION, "/work/app")
        kinds = [entry.type if entry.type != "message" else entry["message"]["role"] for entry in session.get_branch()]
        assert kinds == ["model_change", "user", "assistant", "assistant", "toolResult", "compaction", "assistant"]
        assert [message["role"] for message in session.context().messages] == ["compactionSummary", "assistant"]
        assert session.context().models == {"default": "openai/gpt-x"}
        back = session.get_branch()[4]["message"]
        assert (back["isError"], back["content"]) == (True, [{"type": "text", "text": "no"}])
        assert len(list(session.iter_lines())) == 9


def test_a_compressed_rollout_is_like_any_other(tmp_path: Path) -> None:
    """Codex compresses unused sessions after a week: they are listed, counted, searched and opened in place."""
    with opened(tmp_path, CODEX, f"rollout-2026-05-01T10-00-00-{SESSION}") as session:
        plain = Path(session.path)
        entries = [dict(entry) for entry in session.iter_entries()]
    folder = tmp_path / "codex" / "2026" / "05" / "01"
    folder.mkdir(parents=True)
    packed = folder / f"{plain.name}.zst"
    halves = (plain.read_bytes()[:300], plain.read_bytes()[300:])
    packed.write_bytes(b"".join(zstd.compress(half) for half in halves))  # something was appended to it
    store = Store(tmp_path / "store")
    time.sleep(0.1)  # files that have just changed are read again the next time
    with Library(store, [Source("codex", str(tmp_path / "codex"), str(tmp_path / "codex"))]) as library:
        library.catch_up("index")
        (row,) = library.list().rows
        assert (row.id, row.format, row.cwd, row.size) == (SESSION, "codex", "/work/app", packed.stat().st_size)
        assert row.counts is not None and row.counts.models == {"openai/gpt-x": 2}
        (hit,) = library.search("two files").hits
        with store.open(library.find(SESSION), readonly=True) as session:
            assert [dict(entry) for entry in session.iter_entries()] == entries
            assert hit.entry_id == session.leaf_id
        assert library.catch_up("index").changed == 0
    assert [path.name for path in folder.iterdir()] == [packed.name]


@pytest.mark.parametrize(("known", "other"), [(Claude(), CODEX[0]), (Codex(), row("user", "u1", None))])
def test_a_format_is_recognised_by_its_content(known: Format, other: dict[str, Any]) -> None:
    """A format does not accept files of other formats, native sessions or garbage."""
    ours = b'{"type":"session","version":3,"id":"x","cwd":"/","sessionId":"x","uuid":"y"}\n'
    for first in (json.dumps(other).encode(), ours, b"", b"\x00\xff", b"[]\n", b'"text"\n', b"{}\n"):
        assert not known.recognises(first)


uuids = st.sampled_from([f"n{number}" for number in range(12)])
members = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["user", "assistant", "progress", "system", "attachment", "ai-title", "tag", "custom-title"]
        )
    },
    optional={
        "uuid": uuids,
        "parentUuid": uuids | st.none(),
        "logicalParentUuid": uuids,
        "isSidechain": st.booleans(),
        "isMeta": st.booleans(),
        "isCompactSummary": st.booleans(),
        "subtype": st.just("compact_boundary"),
        "message": st.fixed_dictionaries(
            {}, optional={"id": st.sampled_from(["m1", "m2"]), "content": st.text(max_size=3)}
        ),
        "payload": st.dictionaries(st.sampled_from(["type", "role", "model"]), st.text(max_size=5), max_size=3),
    },
)


@given(st.lists(members, max_size=20), st.integers(0, 20), st.sampled_from([Claude(), Codex(), MyAgents()]))
def test_a_translator_taken_up_again_goes_on_as_if_it_had_never_stopped(
    rows: list[dict[str, Any]], stop: int, known: Format
) -> None:
    """The saved state of a translator is complete."""
    lines = [
        item for item in scan(b"".join(json.dumps(each).encode() + b"\n" for each in rows)) if isinstance(item, Line)
    ]
    through = known.translator()
    expected = [through.take(line) for line in lines]
    first = known.translator()
    begun = [first.take(line) for line in lines[:stop]]
    second = known.translator(json.loads(json.dumps(first.saved())))
    assert [*begun, *(second.take(line) for line in lines[stop:])] == expected
    assert second.leaf == through.leaf


names = st.sampled_from(["type", "uuid", "message", "content", "payload", "role", "output"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
)


@given(values, st.sampled_from([Claude(), Codex(), MyAgents()]))
def test_whatever_a_row_holds_it_becomes_an_entry(value: Any, known: Format) -> None:
    """No JSON row raises, and each has an id."""
    row = {"type": "user", "uuid": "x", "message": value, "payload": value, "role": "user", "content": value}
    raw = json.dumps(row | ({"sessile": value} if isinstance(value, list) else {})).encode()
    (line,) = scan(raw + b"\n")
    assert isinstance(line, Line)
    taken = known.translator().take(line)
    assert [each.head.id for each in taken] == list(known.ids_of(raw, line.offset))
    for head in (each.head for each in taken):
        entry = known.entry(raw, str(head.id), None, lambda entry_id: None)
        assert entry["id"] == head.id and isinstance(entry["type"], str)


def test_a_check_reads_the_rows_and_a_repair_is_refused(tmp_path: Path) -> None:
    """An intact file has no problems, a torn row is damage, and a repair is refused."""
    with opened(tmp_path, [row("user", "u1", None), row("assistant", "a1", "u1")]) as session:
        path = Path(session.path)
    store = Store(tmp_path / "store")
    report = check(store, str(path))
    assert report.ok and (report.id, report.entries, report.size) == (SESSION, 2, path.stat().st_size)
    path.write_bytes(path.read_bytes() + b'{"type":"user","uu\n')
    before = path.read_bytes()
    report = check(store, str(path))
    assert not report.ok and [problem.kind for problem in report.problems] == ["not_json"] and not report.repairable
    for mend in (plan_repair, repair):
        with pytest.raises(Unsupported, match="cannot be repaired"):
            mend(store, str(path))
    assert path.read_bytes() == before


def test_a_first_row_may_be_of_any_length(tmp_path: Path) -> None:
    """An image in the first message does not prevent recognition."""
    with opened(tmp_path, [row("user", "u1", None, "x" * 500_000), row("assistant", "a1", "u1")]) as session:
        assert session.leaf_id == "a1"


def test_several_results_in_one_row_are_several_entries(tmp_path: Path) -> None:
    """Each result answers its call; children of the row follow the last result, and text in the row stays."""
    results = [{"type": "tool_result", "tool_use_id": tool, "content": f"{tool} done"} for tool in ("t1", "t2", "t3")]
    said = [*results, {"type": "text", "text": "and go on"}]
    rows = [call("c1", None, "m", "t1"), call("c2", "c1", "m", "t2"), call("c3", "c2", "m", "t3")]
    rows += [row("user", "r1", "c3", said), row("assistant", "a1", "r1", [{"type": "text", "text": "good"}])]
    with opened(tmp_path, rows) as session:
        path = [entry.id for entry in session.get_branch()]
        assert path == ["c1", "c2", "c3", "r1/1", "r1/2", "r1", "a1"]
        answers = [session.get_entry(entry_id) for entry_id in path[3:6]]
        assert [answer and answer["message"]["toolCallId"] for answer in answers] == ["t1", "t2", "t3"]
        assert [len(answer["message"]["content"]) for answer in answers if answer] == [1, 1, 2]
        assert len(session.context().messages) == 7


def test_a_text_of_codex_that_is_none_says_nothing() -> None:
    """A text that is not a string is ignored in a listing."""
    content = '[{"type":"input_text","text":0.5},{"type":"input_text","text":"hello"}]'
    said = f'{{"type":"response_item","payload":{{"type":"message","role":"user","content":{content}}}}}\n'.encode()
    seen = Codex().glimpse("stem", said, said)
    assert seen is not None and seen.first_text == "hello"


@pytest.mark.promise("P45")
def test_an_index_made_for_another_agent_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that starts like one of Codex becomes one of Claude Code with its first row of that format."""
    monkeypatch.setattr("sessile.storage.index.SAVE_AFTER_ROWS", 1)
    path = tmp_path / "projects" / "-work-app" / f"{SESSION}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in CODEX))

    def told(cache: str) -> list[tuple[str, Any]]:
        with Store(tmp_path / "own", cache=tmp_path / cache).open(path, readonly=True) as session:
            return [(session.format, each.id) for each in session.get_entries()]

    assert {name for name, _ in told("cache")} == {"codex"}
    with path.open("a") as file:
        file.write(json.dumps(row("user", "u1", None, "question")) + "\n")
    assert told("cache") == told("fresh") == [("claude", "u1")]
