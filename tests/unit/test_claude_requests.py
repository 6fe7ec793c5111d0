"""Requests of Claude Code: as its transcripts record them, and as the rows of a conversation give them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import agent_records
from agent_records import Sent
from claude_rows import SESSION, uid
from sessile import Store, to_anthropic
from sessile.agents.claude import requests
from sessile.agents.claude.requests import (
    BILLING,
    NO_PROMPT,
    NO_TOOLS,
    NOTIFICATION,
    PLACEHOLDER,
    digest_of,
    request_at,
)
from sessile.core.messages.request import Request
from sessile.session import Session

Json = dict[str, Any]

# -- the recorded requests of the real program


class Point(NamedTuple):
    """A request that was answered, and the entry after which it was sent."""

    sent: Sent
    session: Session
    entry: str


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> list[Point]:
    """Return every place in the record where an answer is stored, including copies in forks."""
    folder = agent_records.unpack("claude-code", tmp_path_factory.mktemp("record"))
    by_output = {sent.usage["out"]: sent for sent in agent_records.requests(folder)}
    store = Store(str(folder / "ours"))
    found = []
    for path in sorted((folder / "home" / ".claude" / "projects").rglob("*.jsonl")):
        session = store.open(str(path), readonly=True)
        seen: set[str] = set()
        for entry in session.get_entries():
            message = entry.body.get("message") or {}
            sent = by_output.get((message.get("usage") or {}).get("output"))
            if sent is not None and entry.parent_id and message["responseId"] not in seen:
                seen.add(message["responseId"])
                found.append(Point(sent, session, entry.parent_id))
    assert len({point.sent.n for point in found}) > 85
    return found


def _reader(session: Session) -> Any:
    reader = session._foreign_reader()
    assert reader is not None
    return reader


def _plain(value: Any) -> Any:
    """Return a value of a request without marks for the cache; a string is one text block."""
    if isinstance(value, Mapping):
        kept = {name: _plain(item) for name, item in value.items() if name != "cache_control"}
        if isinstance(kept.get("content"), str) and "role" in kept:
            kept["content"] = [{"type": "text", "text": kept["content"]}]
        return kept
    return [_plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.mission("N2")
def test_a_recorded_request_is_rebuilt_block_by_block(points: list[Point]) -> None:
    """Messages, system blocks after the first, tools and parameters are those of the wire, also for rows that a fork copied."""
    for sent, session, entry in points:
        request = request_at(_reader(session), entry)
        assert request is not None
        assert _plain(request["messages"]) == _plain(sent.body["messages"]), (sent.n, entry)
        assert request["system"] == _plain(sent.body["system"][1:]), (sent.n, entry)
        assert request["tools"] == _plain(sent.body["tools"]), (sent.n, entry)
        for name in ("model", "max_tokens", "context_management", "output_config"):
            assert request.get(name) == sent.body.get(name), (sent.n, name)
        assert request.gaps == [BILLING]


def _alone(point: Point) -> set[str]:
    """Compare a request that is made without the recorded ones; return the gaps that it needs besides the first block."""
    sent, session, entry = point
    request = request_at(_reader(session), entry, recorded=False)
    assert request is not None
    ours, theirs = _plain(request["messages"]), _plain(sent.body["messages"])
    if NOTIFICATION in request.gaps:
        ours, theirs = _without_notifications(ours, theirs)
    assert ours == theirs, (sent.n, entry)
    assert request["system"] == _plain(sent.body["system"][1:]), (sent.n, entry)
    deferred = [tool for tool in sent.body["tools"] if tool.get("defer_loading")]
    assert request["tools"] == _plain([tool for tool in sent.body["tools"] if tool not in deferred]), (sent.n, entry)
    assert set(request.gaps) <= {BILLING, PLACEHOLDER, NOTIFICATION}
    assert (PLACEHOLDER in request.gaps) == bool(deferred)
    return set(request.gaps) - {BILLING}


@pytest.mark.mission("N2")
def test_rows_alone_give_the_same_request(points: list[Point]) -> None:
    """Without the recorded requests, only the placeholder of deferred tools and the words around a notification are missing."""
    for point in points:
        _alone(point)


@pytest.mark.peers
def test_score_of_rows_alone(points: list[Point], capsys: pytest.CaptureFixture[str]) -> None:
    """`make peers` prints how many requests the rows give, and with which gaps."""
    first = {point.sent.n: point for point in reversed(points)}
    scores = Counter(" and ".join(sorted(gap.partition(":")[0] for gap in _alone(point))) for point in first.values())
    with capsys.disabled():
        for gaps, count in scores.most_common():
            print(f"\nclaude-code, made from rows alone: {count} of {len(first)} equal but for {gaps or 'nothing'}")


def _without_notifications(ours: list[Json], theirs: list[Json]) -> tuple[list[Json], list[Json]]:
    """Leave out the pairs of messages of which one is the other in a reminder."""
    assert len(ours) == len(theirs)
    alike = [
        (mine, other)
        for mine, other in zip(ours, theirs, strict=True)
        if mine == other or mine["content"][0]["text"] not in other["content"][0]["text"]
    ]
    assert len(ours) - len(alike) == 1
    return [mine for mine, _ in alike], [other for _, other in alike]


def test_the_context_has_every_part_of_the_request(points: list[Point]) -> None:
    """The neutral messages carry each text, call, result and image that was sent, in whatever wrapper."""
    for sent, session, entry in points:
        context = session.context(entry)
        known = "\0".join(agent_records.strings(context.messages))
        request = request_at(_reader(session), entry, recorded=False)
        assert request is not None
        kinds = ("tool_use", "tool_result", "base64")
        texts = (text for text in agent_records.strings(request["messages"]) if text not in kinds)
        wanted = [text.removesuffix("\n") for text in texts]
        assert not [text for text in wanted if not all(part in known for part in text.split("\n\n"))], (sent.n, entry)


def test_the_context_has_no_message_twice(points: list[Point]) -> None:
    """Rows that a compaction preserved come once, also in a fork that begins at the boundary."""
    for sent, session, entry in points:
        sources = [source for source in session.context(entry).sources if source is not None]
        assert len(sources) == len(set(sources)), (sent.n, entry)
        calls = [block["id"] for block in _blocks(to_anthropic(session.context(entry)), "tool_use")]
        results = [block["tool_use_id"] for block in _blocks(to_anthropic(session.context(entry)), "tool_result")]
        assert calls == results, (sent.n, entry)


def _blocks(request: Request, kind: str) -> list[Json]:
    return [block for message in _plain(request["messages"]) for block in message["content"] if block["type"] == kind]


# -- made transcripts


def _row(kind: str, name: str, parent: str | None, **members: Any) -> Json:
    base = {"parentUuid": uid(parent) if parent else None, "isSidechain": False, "sessionId": SESSION, "type": kind}
    return {**base, "uuid": uid(name), "timestamp": "2026-11-16T10:00:00.000Z", "cwd": "/work", **members}


def _prompt(name: str, parent: str | None, content: Any, **members: Any) -> Json:
    return _row("user", name, parent, message={"role": "user", "content": content}, **members)


def _answer(name: str, parent: str, *blocks: Json, response: str | None = None, **members: Any) -> Json:
    message = {"id": response or f"msg_{name}", "role": "assistant", "model": "claude-x", "content": list(blocks)}
    return _row("assistant", name, parent, message=message, **members)


def _attachment(name: str, parent: str, kind: str, *texts: str, role: str = "user", **members: Any) -> Json:
    rendered = {"rendered": [{"content": text} for text in texts], "renderedRole": role} if texts else {}
    return _row("attachment", name, parent, attachment={"type": kind, **members}, **rendered)


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _call(call_id: str, tool: str = "Bash") -> Json:
    return {"type": "tool_use", "id": call_id, "name": tool, "input": {}}


def _result(name: str, parent: str, call_id: str, text: str, **members: Any) -> Json:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
    return _prompt(name, parent, [block], **members)


def _reminder(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"


def _line(row: Json) -> str:
    return json.dumps(row, separators=(",", ":")) + "\n"


def _opened(folder: Path, rows: Sequence[Json], name: str = SESSION) -> Session:
    path = folder / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(_line(row) for row in rows))
    return Store(str(folder / "ours")).open(str(path), readonly=True)


def _sent(folder: Path, rows: Sequence[Json], at: str, name: str = SESSION) -> Request:
    request = request_at(_reader(_opened(folder, rows, name)), at if at.startswith("@") else uid(at))
    assert request is not None
    return request


def _said(request: Request) -> list[tuple[str, list[str]]]:
    """Return the roles and texts of a request."""
    said = []
    for message in request["messages"]:
        content = _plain(message)["content"]
        said.append((message["role"], [block.get("text") or str(block.get("content")) for block in content]))
    return said


SHAPE: dict[str, Any] = {
    "system": [_text("You are."), _text("Be brief.")],
    "tools": [{"name": "Bash", "input_schema": {}}],
}
FIRST = {"role": "user", "content": [_text("<wrapped>one</wrapped>")]}


def _recorded() -> list[Json]:
    """Return a conversation of two requests, the second based on the first."""
    answer = {"role": "assistant", "content": [_text("first")]}
    second = {"role": "user", "content": [_text("two")]}
    record = {"shapeHash": digest_of(SHAPE), "params": {"model": "claude-x", "max_tokens": 9, "betas": ["b"]}}
    return [
        _prompt("p1", None, "one"),
        {"type": "api-request-shape", "sessionId": SESSION, "shapeHash": digest_of(SHAPE), "shape": SHAPE},
        {"type": "api-request-blob", "sessionId": SESSION, "hash": digest_of(FIRST), "message": FIRST},
        {"type": "api-request", "sessionId": SESSION, "id": "r1", **record, "keep": 0, "tail": [digest_of(FIRST)]},
        _answer("a1", "p1", _text("first"), requestRef="r1"),
        _prompt("p2", "a1", "two"),
        {
            "type": "api-request",
            "sessionId": SESSION,
            "id": "r2",
            **record,
            "base": "r1",
            "keep": 1,
            "tail": [digest_of(answer), digest_of(second)],
        },
        _answer("a2", "p2", _text("second"), requestRef="r2"),
    ]


def test_hashes_of_a_recorded_request_are_checked(tmp_path: Path) -> None:
    """A request whose parts have their hashes has no notes; its messages come from stored messages and from rows."""
    request = _sent(tmp_path, _recorded(), "p2")
    assert _said(request) == [("user", ["<wrapped>one</wrapped>"]), ("assistant", ["first"]), ("user", ["two"])]
    assert (request["system"], request["tools"]) == (SHAPE["system"], SHAPE["tools"])
    assert (request["model"], request["max_tokens"]) == ("claude-x", 9)
    assert request.notes == []


def test_a_changed_row_is_noted(tmp_path: Path) -> None:
    """A row that was changed after it was sent is sent as it is now, and a note says so."""
    rows = _recorded()
    rows[5] = _prompt("p2", "a1", "another")
    request = _sent(tmp_path, rows, "p2")
    assert _said(request)[-1] == ("user", ["another"])
    assert [(note.did, note.text[:14]) for note in request.notes] == [("changed", "1 of 4 parts d")]


def test_a_record_without_its_base_is_made_from_the_rows(tmp_path: Path) -> None:
    """If a request that the record builds on is missing, the rows give the request, and a note says so."""
    rows = [row for row in _recorded() if row.get("id") != "r1"]
    request = _sent(tmp_path, rows, "p2")
    assert _said(request) == [("user", ["one"]), ("assistant", ["first"]), ("user", ["two"])]
    assert [note.did for note in request.notes] == ["made"]


def test_a_record_that_contradicts_the_rows_is_made_from_the_rows(tmp_path: Path) -> None:
    """If a message is stored nowhere and the rows give another number of messages, the rows count."""
    rows = [row for row in _recorded() if row["type"] != "api-request-blob"]
    rows[0] = _prompt("p0", None, "zero")
    rows.insert(1, _answer("a0", "p0", _text("nil")))
    rows.insert(2, _prompt("p1", "a0", "one"))
    request = _sent(tmp_path, rows, "p2")
    assert [texts for _, texts in _said(request)] == [["zero"], ["nil"], ["one"], ["first"], ["two"]]
    assert [note.did for note in request.notes] == ["made"]


def test_the_next_request_continues_the_last_recorded_one(tmp_path: Path) -> None:
    """After the leaf no request is recorded: the messages of the last one are known, and the rows add the rest."""
    rows = [*_recorded(), _prompt("p3", "a2", "three")]
    request = _sent(tmp_path, rows, "p3")
    texts = [texts for _, texts in _said(request)]
    assert texts == [["<wrapped>one</wrapped>"], ["first"], ["two"], ["second"], ["three"]]
    assert (request["tools"], request.notes) == (SHAPE["tools"], [])


def test_the_row_of_a_request_names_that_request(tmp_path: Path) -> None:
    """Of several attempts, each can be asked for by the id of its own row."""
    rows = _recorded()
    other = {"role": "user", "content": [_text("retried")]}
    blob = {"type": "api-request-blob", "sessionId": SESSION, "hash": digest_of(other), "message": other}
    retry = {**rows[3], "id": "r1b", "tail": [digest_of(other)]}
    rows[4:4] = [blob, retry]
    offset = sum(len(_line(row)) for row in rows[:5])
    assert _said(_sent(tmp_path, rows, f"@{offset:x}")) == [("user", ["retried"])]
    assert _said(_sent(tmp_path, rows, "p1")) == [("user", ["<wrapped>one</wrapped>"])]


def test_a_failed_request_is_found_by_its_prompt(tmp_path: Path) -> None:
    """A prompt that got no answer has the first request recorded after it, not one of an answer elsewhere."""
    rows = _recorded()[:4]
    error = {**_answer("e1", "p1", _text("API Error: 400")), "isApiErrorMessage": True}
    error["message"]["model"] = "<synthetic>"
    assert _said(_sent(tmp_path, [*rows, error], "p1")) == [("user", ["<wrapped>one</wrapped>"])]


def test_a_fork_has_the_records_of_its_original(tmp_path: Path) -> None:
    """Copied answers name requests that are recorded in the session that they were copied from."""
    _opened(tmp_path, _recorded())
    copied = [row for row in _recorded() if not row["type"].startswith("api-")]
    name = "22222222-2222-4222-8222-222222222222"
    request = _sent(tmp_path, copied, "p1", name)
    assert _said(request) == [("user", ["<wrapped>one</wrapped>"])]
    assert request["tools"] == SHAPE["tools"]


# -- rules


def test_attachments_come_before_the_prompt_and_system_turns_after_it(tmp_path: Path) -> None:
    """Attachments for the user precede their prompt; those for the system follow as one message that states the effort."""
    rows = [
        _prompt("p1", None, "hello"),
        _attachment("t1", "p1", "environment", _reminder("linux"), role="system"),
        _attachment("t2", "t1", "instructions", _reminder("be kind")),
        _attachment("t3", "t2", "date", _reminder("today"), role="system"),
        _answer("a1", "t3", _text("hi"), perTurnEffort="low"),
    ]
    request = _sent(tmp_path, rows, "t3")
    assert _said(request) == [
        ("user", [_reminder("be kind") + "\n", "hello"]),
        ("system", ["linux\n\ntoday"]),
    ]
    assert request["messages"][1]["output_config"] == {"effort": "low"}


def test_a_model_without_system_turns_gets_reminders(tmp_path: Path) -> None:
    """The same rows for a model that knows no system messages: everything is part of the user's message."""
    rows = [
        _prompt("p1", None, "hello"),
        _attachment("t1", "p1", "environment", _reminder("linux"), role="system"),
        _attachment("t2", "t1", "instructions", _reminder("be kind")),
        _answer("a1", "t2", _text("hi"), perTurnEffort=None),
    ]
    assert _said(_sent(tmp_path, rows, "t2")) == [("user", [_reminder("linux"), _reminder("be kind") + "\n", "hello"])]


def test_a_mentioned_file_is_two_messages(tmp_path: Path) -> None:
    """What a mention read is sent before the prompt; older rows hold the file but not the words."""
    file = {"filePath": "/work/a.txt", "content": "x\ny", "startLine": 1}
    rows = [
        _prompt("p1", None, "first"),
        _answer("a1", "p1", _text("ok")),
        _prompt("p2", "a1", "see @a.txt"),
        _attachment("t1", "p2", "file", filename="/work/a.txt", content={"type": "text", "file": file}),
    ]
    assert _said(_sent(tmp_path, rows, "t1"))[2:] == [
        ("user", [_reminder('Called the Read tool with the following input: {"file_path":"/work/a.txt"}')]),
        ("user", [_reminder("Result of calling the Read tool:\n1\tx\n2\ty") + "\n", "see @a.txt"]),
    ]


def test_parallel_calls_are_one_answer_whatever_the_order_of_rows(tmp_path: Path) -> None:
    """A result that was written before the next call of the same response does not split the response."""
    rows = [
        _prompt("p1", None, "go"),
        _answer("c1", "p1", _call("t1"), response="msg_1"),
        _result("r1", "c1", "t1", "one"),
        _answer("c2", "c1", _call("t2"), response="msg_1"),
        _result("r2", "c2", "t2", "two"),
    ]
    request = _sent(tmp_path, rows, "r2")
    assert [message["role"] for message in request["messages"]] == ["user", "assistant", "user"]
    assert [block["id"] for block in request["messages"][1]["content"]] == ["t1", "t2"]
    assert [block["tool_use_id"] for block in request["messages"][2]["content"]] == ["t1", "t2"]


def test_attachments_stay_behind_results(tmp_path: Path) -> None:
    """A reminder that came with a result is part of the message with the result, after it."""
    rows = [
        _prompt("p1", None, "go"),
        _answer("c1", "p1", _call("t1")),
        _result("r1", "c1", "t1", "one"),
        _attachment("x1", "r1", "todo_reminder", _reminder("todo")),
    ]
    assert _said(_sent(tmp_path, rows, "x1"))[2] == ("user", ["one", _reminder("todo")])


def test_errors_of_the_api_are_not_sent(tmp_path: Path) -> None:
    """The prompt that failed is part of the next message; other texts of the program are sent as answers."""
    error = _answer("e1", "p1", _text("API Error"), isApiErrorMessage=True)
    note = _answer("n1", "p2", _text("No response requested."))
    for row in (error, note):
        row["message"]["model"] = "<synthetic>"
    rows = [_prompt("p1", None, "one"), error, _prompt("p2", "e1", "two"), note, _prompt("p3", "n1", "three")]
    request = _sent(tmp_path, rows, "p3")
    assert _said(request) == [
        ("user", ["one\n", "two"]),
        ("assistant", ["No response requested."]),
        ("user", ["three"]),
    ]
    assert [(note.entry, note.did) for note in request.notes] == [(uid("e1"), "dropped")]


def _compacted(metadata: Json) -> list[Json]:
    boundary = _row("system", "b1", None, subtype="compact_boundary", compactMetadata=metadata)
    return [
        _prompt("p1", None, "one"),
        _answer("a1", "p1", _text("first")),
        _prompt("p2", "a1", "two"),
        _answer("a2", "p2", _text("second")),
        {**boundary, "logicalParentUuid": uid("a2")},
        _prompt("s1", "b1", "SUMMARY", isCompactSummary=True, isVisibleInTranscriptOnly=True),
        _prompt("p3", "s1", "three"),
    ]


@pytest.mark.parametrize(
    "metadata",
    [
        {"preservedMessages": {"anchorUuid": uid("s1"), "uuids": [uid("p2"), uid("a2")]}},
        {"preservedSegment": {"headUuid": uid("p2"), "anchorUuid": uid("s1"), "tailUuid": uid("a2")}},
    ],
)
def test_preserved_messages_follow_the_summary(tmp_path: Path, metadata: Json) -> None:
    """What a compaction preserved stays in its place in the file and is sent after the summary."""
    request = _sent(tmp_path, _compacted(metadata), "p3")
    assert _said(request) == [("user", ["SUMMARY\n", "two"]), ("assistant", ["second"]), ("user", ["three"])]
    with _opened(tmp_path, _compacted(metadata)) as session:
        assert session.context().sources == [uid("s1"), uid("p2"), uid("a2"), uid("p3")]


def test_a_fork_that_begins_at_a_boundary_has_what_was_preserved_once(tmp_path: Path) -> None:
    """A fork keeps the preserved rows behind the summary, although the boundary names one of them as its parent."""
    metadata = {"preservedMessages": {"anchorUuid": uid("s1"), "uuids": [uid("a2")]}}
    boundary, summary, prompt = _compacted(metadata)[4:]
    kept = _answer("a2", "s1", _text("second"))
    rows = [boundary, summary, kept, {**prompt, "parentUuid": uid("a2")}]
    assert _said(_sent(tmp_path, rows, "p3")) == [("user", ["SUMMARY"]), ("assistant", ["second"]), ("user", ["three"])]
    with _opened(tmp_path, rows) as session:
        context = session.context()
        assert (context.sources, context.findings) == ([uid("s1"), uid("a2"), uid("p3")], ())


def test_replaced_results_are_sent_as_replaced(tmp_path: Path) -> None:
    """A result that Claude Code replaced by a shorter text is sent as that text."""
    replaced = {"kind": "tool-result", "toolUseId": "t1", "replacement": "<persisted-output>short</persisted-output>"}
    rows = [
        _prompt("p1", None, "go"),
        _answer("c1", "p1", _call("t1")),
        _result("r1", "c1", "t1", "long " * 50),
        {"type": "content-replacement", "sessionId": SESSION, "replacements": [replaced]},
    ]
    assert _said(_sent(tmp_path, rows, "r1"))[2] == ("user", ["<persisted-output>short</persisted-output>"])


def test_a_task_notification_has_the_words_of_a_stored_message(tmp_path: Path) -> None:
    """The words around a notification are not in its row: they come from a stored message, or are named as a gap."""
    notified = _prompt("n1", None, "<task-notification>done</task-notification>", origin={"kind": "task-notification"})
    message: Json = {
        "role": "user",
        "content": [_text(_reminder("SYSTEM\n<task-notification>done</task-notification>"))],
    }
    blob = {"type": "api-request-blob", "sessionId": SESSION, "hash": digest_of(message), "message": message}
    bare = _sent(tmp_path, [notified], "n1")
    assert (_said(bare)[0][1], NOTIFICATION in bare.gaps) == (["<task-notification>done</task-notification>"], True)
    wrapped = _sent(tmp_path, [notified, blob], "n1")
    assert (_said(wrapped)[0][1], NOTIFICATION in wrapped.gaps) == ([message["content"][0]["text"]], False)


def test_an_older_transcript_names_what_it_does_not_store(tmp_path: Path) -> None:
    """Without snapshots, system prompt and tools are gaps; an attachment without words is noted."""
    rows = [_prompt("p1", None, "go"), _attachment("x1", "p1", "todo_reminder")]
    request = _sent(tmp_path, rows, "x1")
    assert (request.gaps, "system" in request, "tools" in request) == ([NO_PROMPT, NO_TOOLS], False, False)
    assert [(note.entry, note.did) for note in request.notes] == [(uid("x1"), "dropped")]


def test_prompt_and_tools_are_those_of_the_last_snapshot(tmp_path: Path) -> None:
    """A snapshot after an answer belongs to the request of that answer; tools are sent by name."""
    tools = [{"name": name, "schema": {"name": name, "input_schema": {"type": "object"}}} for name in ("Write", "Bash")]
    rows = [
        _prompt("p1", None, "go"),
        _attachment("s1", "p1", "prompt_snapshot", systemPrompt=["one", "two"]),
        _answer("a1", "s1", _text("ok")),
        _attachment("s2", "a1", "prompt_snapshot", systemPrompt=["one", "two"], cliPrefix="You are.", tools=tools),
        _prompt("p2", "s2", "again"),
    ]
    for entry in ("s1", "p2"):
        request = _sent(tmp_path, rows, entry)
        assert [block["text"] for block in request["system"]] == ["You are.", "one\n\ntwo"]
        assert [tool["name"] for tool in request["tools"]] == ["Bash", "Write"]
        assert request.gaps == [BILLING]
    with _opened(tmp_path, rows) as session:
        neutral = to_anthropic(session.context())
        assert [block["text"] for block in neutral["system"]] == ["You are.", "one\n\ntwo"]
        assert [tool["name"] for tool in neutral["tools"]] == ["Write", "Bash"]


def test_other_apis_are_made_from_the_context(tmp_path: Path) -> None:
    """The program's own requests are those of one API."""
    session = _opened(tmp_path, _recorded())
    reader = _reader(session)
    assert reader.agent.request(reader, uid("p2"), "openai") is None
    assert reader.agent.request(reader, uid("p2"), None)[0] == "anthropic"
    assert request_at(reader, "missing") is None
    assert requests.request_at is request_at
