"""Sessions to resume in other agents, and what a request must have of them.

A conversation and a request are compared as lists of items, in order:

    ["text", text]    ["call", name, arguments]    ["image", hash]

The text of a result is a text. A request may have more items than the conversation (reminders, the next prompt), never fewer.

`fixtures/resumed.json.gz` has, for every source and target, the items that the real program sent and the shapes of the rows that
it was given. `SESSILE_RECORD=1 make peers` writes it anew.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from agent_records import unpack
from sessile import Session, Store
from sessile.agents.registry import AGENTS
from sessile.core.messages.family import convert_to_llm
from sessile.core.messages.request import given

Item = list[str]
TARGETS = ("pi", "omp", "claude", "codex")


class Origin(NamedTuple):
    """A session to resume: the record of a real agent, and a part of the name of its file."""

    record: str
    named: str


ORIGINS = {
    "pi-tools": Origin("pi-0.87.1", "9273f93760ed"),
    "pi-branch": Origin("pi-0.87.1", "371c195b8c60"),
    "pi-compaction": Origin("pi-0.87.1", "3b25af72d417"),
    "omp-images": Origin("oh-my-pi-18.2.3", "ec3d1870f685"),
    "claude-tools": Origin("claude-code", "0001-4000-8000-0000000000f1"),
    "claude-compaction": Origin("claude-code", "0001-4000-8000-000000000001"),
    "codex-tools": Origin("codex", "9cf984869f21"),
    "codex-compaction": Origin("codex", "3b7937fe9b7d"),
}
NATIVE = "native"
SOURCES = (*ORIGINS, NATIVE)


def opened(name: str, folder: Path) -> Session:
    """Open a session to resume, for reading; records are unpacked into the folder once."""
    if name == NATIVE:
        return native(folder)
    origin = ORIGINS[name]
    place = folder / origin.record
    if not place.exists():
        unpack(origin.record, folder)
    found = [path for path in place.rglob("*.jsonl") if origin.named in path.name and "subagents" not in path.parts]
    store = Store(folder / "store")
    return store.open(min(found, key=lambda path: len(path.name)), readonly=True)


# -- a session of our own


def picture(number: int) -> str:
    """Return a PNG in base64, large enough to be kept as a blob."""
    width, height = 60, 40
    rows = b"".join(
        b"\0" + bytes((x * x * 7 + y * 13 + x * y + number) % 256 for x in range(width * 3)) for y in range(height)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    png = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b64encode(b"\x89PNG\r\n\x1a\n" + png).decode()


def native(folder: Path) -> Session:
    """Open a session with everything: tools, images, branches, a compaction, odd ids and names, texts too long for a line."""
    for made in (folder / "native" / "sessions").rglob("*.jsonl"):
        return Store(folder / "native").open(made, readonly=True)
    clock, drawn = count(1_794_900_000), count(1)
    store = Store(
        folder / "native",
        clock=lambda: float(next(clock)),
        random=lambda size: hashlib.sha256(b"%d" % next(drawn)).digest()[:size],
    )
    with store.create("/work/resumed", title="Räume zählen", publish=True) as session:
        append = session.append_message
        append({"role": "user", "content": "a question before the compaction"})
        append(_answer({"type": "text", "text": "an answer before the compaction"}))
        kept = append({"role": "user", "content": "a question that is kept"}).id
        fork = append(_answer({"type": "text", "text": "an answer that is kept"})).id
        append({"role": "user", "content": "a question on another branch"})
        append(_answer({"type": "text", "text": "an answer on another branch"}))
        session.branch(fork)
        session.append_compaction("What was said before: nothing of weight.", kept, 4321)
        append({"role": "user", "content": [_text("Look at this."), _image(1)], "timestamp": 1_794_900_100_000})
        thought = {"type": "thinking", "thinking": "a thought", "thinkingSignature": "c2lnbmF0dXJl"}
        append(
            _answer(thought, _text("I look."), _call("call:1/ä", "read file", {"path": "a.txt"}), _call("b", "run", {}))
        )
        append(_result("b", "run", [_text("wide\u2028result 数"), _image(2)]))
        append(_result("call:1/ä", "read file", [_text("x" * 600_000 + " the end of a long text")]))
        append(_answer(_call("b", "run", {"again": True}), _call("", "", {"nameless": 1})))
        append({"role": "bashExecution", "command": "ls", "output": "a.txt", "exitCode": 0, "timestamp": 1})
        append({"role": "user", "content": "two calls have no result"})
        session.append_custom_message_entry("reminder", "a message of an extension", True)
        append({**_answer(_text("an answer that was cut")), "stopReason": "aborted"})
        session.append_label_change(kept, "here")
        append({"role": "user", "content": "and now?"})
        append(_answer(_text("the last answer")))
        path = session.path
    return store.open(path, readonly=True)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(number: int) -> dict[str, Any]:
    return {"type": "image", "data": picture(number), "mimeType": "image/png"}


def _call(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "toolCall", "id": call_id, "name": name, "arguments": arguments}


def _answer(*blocks: dict[str, Any]) -> dict[str, Any]:
    origin = {"api": "anthropic-messages", "provider": "anthropic", "model": "claude-sonnet-4-5"}
    return {"role": "assistant", "content": list(blocks), **origin, "stopReason": "stop"}


def _result(call_id: str, name: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "toolResult", "toolCallId": call_id, "toolName": name, "content": content, "isError": False}


# -- items


class Wanted(NamedTuple):
    """What a request must have: what was said, in order, and what each result has, after its call."""

    said: list[Item]
    results: list[list[Item]]


def expected(session: Session) -> Wanted:
    """Return the items of a session's context, from its entries and blobs rather than from any conversion."""
    context = session.context()
    wanted = Wanted([], [])
    talk = given(context)
    agent = AGENTS.get(session.format)
    for message, source in zip(talk.messages, talk.sources, strict=True):
        if agent is not None and str(message.get("customType")).startswith(agent.surroundings):
            continue  # what the agent's program says about itself
        whole = session.get_full_entry(source) if source is not None and session.format == "native" else {}
        message = whole.get("message") or message
        summary = message.get("summary")  # each agent introduces it in its own words
        found = [item for each in convert_to_llm([message]) for item in _items(each)]
        if isinstance(summary, str):
            found = [["text", summary.strip()]]
        if message["role"] == "toolResult":
            wanted.results.append(found)
        else:
            wanted.said.extend(found)
    return wanted


def _items(message: Mapping[str, Any]) -> Iterator[Item]:
    content = message.get("content")
    for block in [_text(content)] if isinstance(content, str) else content or ():
        kind = block.get("type")
        if kind == "text":
            yield ["text", block["text"].strip()]
        elif kind == "image":
            yield ["image", _digest(b64decode(block["data"]))]
        elif kind == "toolCall":
            yield ["call", _canonical(block.get("arguments"))]


def sent(body: Mapping[str, Any]) -> list[Item]:
    """Return the items of a request to Anthropic or to OpenAI's responses API."""
    if "input" in body:
        return [item for each in body["input"] for item in _responses_items(each)]
    return [item for message in body["messages"] for item in _anthropic_items(message.get("content"))]


def _anthropic_items(content: Any) -> Iterator[Item]:
    for block in [_text(content)] if isinstance(content, str) else content or ():
        kind = block.get("type")
        if kind == "text":
            yield ["text", block["text"].strip()]
        elif kind == "image":
            yield ["image", _digest(b64decode(block["source"]["data"]))]
        elif kind == "tool_use":
            yield ["call", _canonical(block["input"])]
        elif kind == "tool_result":
            yield from _anthropic_items(block.get("content"))


def _responses_items(item: Mapping[str, Any]) -> Iterator[Item]:
    kind = item.get("type")
    if kind == "message":
        yield from _parts(item["content"])
    elif kind == "function_call":
        yield ["call", _canonical(json.loads(item["arguments"]))]
    elif kind == "custom_tool_call":
        yield ["call", _canonical({"input": item["input"]})]
    elif kind in ("function_call_output", "custom_tool_call_output"):
        yield from _parts(item["output"])


def _parts(content: Any) -> Iterator[Item]:
    for part in [_text(content)] if isinstance(content, str) else content:
        if isinstance(part.get("text"), str):
            yield ["text", part["text"].strip()]
        elif isinstance(part.get("image_url"), str):
            yield ["image", _digest(b64decode(part["image_url"].partition(",")[2]))]


def items_of_row(row: Mapping[str, Any]) -> Iterator[Item]:
    """Yield the items of a row that was placed for any of the targets."""
    if row.get("type") == "response_item":
        yield from _responses_items(row["payload"])
    elif row.get("type") == "message":
        for message in convert_to_llm([row["message"]]):
            yield from _items(message)
    elif row.get("type") in ("compaction", "branch_summary"):
        yield ["text", row["summary"].strip()]
    elif row.get("type") == "custom_message":
        yield from _items(row)
    elif "uuid" in row:
        yield from _anthropic_items(row["message"]["content"])


def missing(wanted: Wanted, found: list[Item]) -> list[Item]:
    """Return the items that a request lacks or has in another order; texts may be joined with others."""
    lacking = list(_out_of(wanted.said, found))
    for result in wanted.results:
        lacking += _out_of(result, found)
    return lacking


def _out_of(items: list[Item], found: list[Item]) -> Iterator[Item]:
    """Yield the items that do not follow one another in a request."""
    at, inside = 0, 0  # the item of the request that was reached, and how much of its text
    for item in items:
        if item[0] == "text" and not item[1]:
            continue
        for number in range(at, len(found)):
            start = inside if number == at else 0
            if found[number][0] != item[0]:
                continue
            if item[0] != "text" and found[number][1] == item[1] and not start:
                at, inside = number, 1
                break
            if item[0] == "text" and (where := found[number][1].find(item[1], start)) >= 0:
                at, inside = number, where + len(item[1])
                break
        else:
            yield item


# -- what real programs sent

RECORDED = Path(__file__).parent / "fixtures" / "resumed.json.gz"
_LONGEST = 120
_NAMES = ("type", "role", "stop_reason", "stopReason", "media_type", "mimeType")
_OPAQUE = ("arguments", "input", "details", "id", "call_id")


def abbreviated(item: Item) -> Item:
    """Return an item with a hash instead of a long text."""
    text = item[1]
    return item if len(text) <= _LONGEST else [item[0], f"{text[: _LONGEST // 2]}…{_digest(text.encode())}"]


def record(wanted: Wanted, found: list[Item]) -> list[Item]:
    """Return the items of a request that belong to a conversation, abbreviated."""
    known = {item[1] for item in (*wanted.said, *(each for result in wanted.results for each in result)) if item[1]}
    kept: list[Item] = []
    for kind, text in found:
        if kind != "text" or text in known:
            kept.append([kind, text])
        else:
            inside = sorted((text.find(part), part) for part in known if part in text)
            kept += [["text", part] for _, part in inside]
    return [abbreviated(item) for item in kept]


def shapes(lines: Iterable[bytes]) -> set[str]:
    """Return the shapes of the rows of a file: their members and kinds, without their values."""
    return {json.dumps(_shape(json.loads(line)), sort_keys=True) for line in lines}


def _shape(value: Any, name: str = "") -> Any:
    if name in _OPAQUE:
        return "…"
    if isinstance(value, dict):
        return {key: _shape(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return sorted({json.dumps(_shape(item), sort_keys=True) for item in value})
    return value if name in _NAMES else type(value).__name__


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
