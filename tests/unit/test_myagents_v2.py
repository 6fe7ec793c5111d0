"""V2 transcripts of MyAgents: the committed prefix is read, and nothing is written."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from myagents_folder import AT, ROOT, asked, begun, everything, folder, line, put
from sessile.agents.myagents.messages import Projection, Row, read_v2
from sessile.agents.myagents.types import Message
from sessile.core.lines import Finding

pytestmark = pytest.mark.mission("M6")

Json = dict[str, Any]
V2 = f"{ROOT}/sessions-v2/s.jsonl"


def header(base: int = 0, **members: Any) -> bytes:
    """Return the first line."""
    return line(
        {"kind": "session-transcript", "version": 2, "sessionId": "s", "generation": "g", "baseRevision": base}
        | {"baseline": False}
        | members
    )


def batch(first: int, *operations: Json, last: int | None = None, mode: str = "delta", **members: Any) -> bytes:
    """Return a line with its checksum."""
    revision = first if last is None else last
    value = {"id": "b", "mode": mode, "fromRevision": first, "revision": revision, "operations": operations} | members
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return b'{"batch":' + body + b',"checksum":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def made(number: int, role: str = "user", content: Any = "hello", **members: Any) -> Json:
    message = {"id": str(number), "role": role, "content": content, "timestamp": AT} | members
    return {"kind": "message-create", "message": message}


def read(data: bytes) -> tuple[list[Message], list[Finding]]:
    items = list(read_v2([data], len(data)))
    return [item.message for item in items if isinstance(item, Row)], [
        item for item in items if isinstance(item, Finding)
    ]


TOOL = {"id": "b2", "type": "tool_use", "tool": {"id": "t", "name": "Read", "subagentCalls": [{"id": "n"}]}}


def test_messages_are_built_from_their_operations() -> None:
    """Blocks are added, texts continued, sub-agent calls changed, members updated and cleared."""
    data = header() + batch(
        1,
        made(0),
        made(1, "assistant", "", draft=True),
        {"kind": "block-upsert", "messageId": "1", "block": {"id": "b1", "type": "text", "text": "🙂"}},
        {"kind": "text-append", "messageId": "1", "blockId": "b1", "field": "text", "offset": 2, "text": "!"},
        {"kind": "block-upsert", "messageId": "1", "block": TOOL},
        {"kind": "text-append", "messageId": "1", "blockId": "b2", "field": "result", "offset": 0, "text": "ok"},
        {
            "kind": "block-update",
            "messageId": "1",
            "blockId": "b2",
            "target": "tool",
            "subagentToolId": "n",
            "details": {"x": 1},
        },
        {"kind": "subagent-upsert", "messageId": "1", "blockId": "b2", "call": {"id": "m"}},
        {"kind": "message-update", "messageId": "1", "details": {"toolCount": 1}, "clear": ["draft"]},
        last=9,
    )
    data += batch(
        10,
        {"kind": "subagents-remove", "messageId": "1", "blockId": "b2", "toolIds": ["m"]},
        {
            "kind": "turn-update",
            "turn": {"id": "t", "rootUserMessageId": "0", "durationMs": 7, "usage": {"inputTokens": 3}},
        },
    )
    messages, findings = read(data)
    assert findings == []
    answer = messages[1]
    assert answer.content == [
        {"id": "b1", "type": "text", "text": "🙂!"},
        {
            "id": "b2",
            "type": "tool_use",
            "tool": {"id": "t", "name": "Read", "subagentCalls": [{"id": "n", "x": 1}], "result": "ok"},
        },
    ]
    assert answer.tool_count == 1 and "draft" not in answer.value
    assert answer.duration_ms == 7 and answer.usage is not None and answer.usage.input_tokens == 3


def test_messages_and_blocks_are_removed_and_confirmed() -> None:
    """The turns that started there are removed, too."""
    data = header() + batch(
        1,
        made(0),
        made(1, "assistant", [{"id": "a", "type": "text", "text": "x"}, {"id": "b", "type": "text", "text": "y"}]),
        {"kind": "blocks-remove", "messageId": "1", "blockIds": ["a"]},
        {"kind": "turn-update", "turn": {"id": "t", "rootUserMessageId": "0", "durationMs": 7}},
        {"kind": "content-confirm", "messageId": "0", "content": "confirmed"},
        made(2),
        {"kind": "messages-remove", "messageIds": ["2"]},
    )
    messages, findings = read(data)
    assert findings == [] and [message.text for message in messages] == ["confirmed", "y"]


@pytest.mark.parametrize(
    "bad",
    [
        batch(3, made(9)),
        batch(1, made(9)),
        batch(2, made(9), last=1),
        batch(2, made(9)).replace(b"hello", b"hallo"),
        batch(2, made(9), made(0)),
        batch(2, made(9), {"kind": "unheard-of"}),
        batch(2, made(9), {"kind": "text-append", "messageId": "0", "field": "text", "offset": 2, "text": "x"}),
        batch(2, made(9), {"kind": "messages-remove", "messageIds": ["0"]}, {"kind": "content-confirm"}),
        batch(2, made(9), mode="baseline"),
        b'{"id":"0"}\n',
        b"garbage\n",
    ],
)
def test_only_the_prefix_before_a_bad_line_is_read(bad: bytes) -> None:
    """Nothing of that batch and after it is read; the rest of the file is one finding."""
    good = header() + batch(1, made(0))
    data = good + bad + batch(2, made(1))
    messages, findings = read(data)
    assert [message.id for message in messages] == ["0"]
    assert [(finding.code, finding.offset, finding.offset + finding.length) for finding in findings] == [
        ("damaged_transcript", len(good), len(data))
    ]


@pytest.mark.parametrize("cut", [1, 20, 90])
def test_a_torn_end_is_told(cut: int) -> None:
    """The batches before it are read."""
    messages, findings = read(header() + batch(1, made(0)) + batch(2, made(1))[:-cut])
    assert [message.id for message in messages] == ["0"] and [finding.code for finding in findings] == ["torn_tail"]


def test_a_baseline_counts_when_its_end_is_there() -> None:
    """The next revision follows the base."""
    start = header(5, baseline=True) + batch(0, made(0), last=5, mode="baseline")
    whole = start + batch(0, made(1), last=5, mode="baseline", baselineEnd=True) + batch(6, made(2))
    assert [message.id for message in read(whole)[0]] == ["0", "1", "2"]
    messages, findings = read(start)
    assert messages == [] and [finding.code for finding in findings] == ["damaged_transcript"]


@pytest.mark.parametrize("first", [b"{}\n", header(version=3), b"[]\n", b"x\n"])
def test_another_first_line_is_no_transcript(first: bytes) -> None:
    """Nothing is read, and there is a finding."""
    messages, findings = read(first + batch(1, made(0)))
    assert messages == [] and [finding.offset for finding in findings] == [0]


def test_a_batch_that_fails_is_taken_back_as_a_whole() -> None:
    """Order and turns are restored, too."""
    projection = Projection()
    projection.apply([made(0), made(1), {"kind": "turn-update", "turn": {"id": "t", "rootUserMessageId": "0"}}])
    before = (dict(projection.messages), list(projection.messages), dict(projection.turns))
    for operations in (
        [{"kind": "messages-remove", "messageIds": ["0"]}, made(0), {"kind": "x"}],
        [
            made(2),
            {"kind": "turn-update", "turn": {"id": "t", "x": 1}},
            {"kind": "message-update", "messageId": "none"},
        ],
        [{"kind": "message-update", "messageId": "0", "details": {"x": 1}}, 5],
    ):
        with pytest.raises(ValueError):
            projection.apply(operations)  # type: ignore[arg-type]
        assert (dict(projection.messages), list(projection.messages), dict(projection.turns)) == before


def test_a_store_reads_such_a_session_and_tells_of_an_older_file() -> None:
    """Nothing is written; an empty one does not hide the older file."""
    store = begun(folder())
    put(store.fs, V2, header() + batch(1, made(0), made(1, "assistant")))
    put(store.fs, f"{ROOT}/sessions/s.jsonl", line(asked(0)))
    before = everything(store.fs, "/")
    loaded = store.load("s")
    assert loaded.path == V2 and len(loaded.rows) == 2
    assert [finding.code for finding in loaded.findings] == ["second_file"]
    assert everything(store.fs, "/") == before
    put(store.fs, V2, b"garbage\n")
    assert store.load("s").path == f"{ROOT}/sessions/s.jsonl"


def test_input_of_a_tool_that_is_complete_is_a_value() -> None:
    """An incomplete one stays a text."""
    tools = [
        {"id": "t", "inputJson": text, "inputComplete": done}
        for text, done in (('{"a":1}', True), ('{"a', True), ("{}", False))
    ]
    blocks = [{"id": f"b{number}", "type": "tool_use", "tool": tool} for number, tool in enumerate(tools)]
    messages, _ = read(header() + batch(1, made(0, "assistant", blocks)))
    content = messages[0].content
    assert isinstance(content, list)
    assert [block["tool"].get("input") for block in content] == [{"a": 1}, None, None]
