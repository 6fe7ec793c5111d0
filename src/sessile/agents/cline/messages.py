"""The messages of a session of Cline, joined with its manifest and its last compaction.

    {version, updated_at, agent, sessionId, system_prompt, messages [{id, role, content, ts, modelInfo?, metrics?, metadata?}]}

Contents are blocks as in Anthropic's API. A prompt is stored in a tag that is not sent. The document keeps every message; after a
compaction the program sends the messages of the other document, which are a summary and copies of the last messages before
it, and then those that came later. Results are stored longer than they are sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sessile.agents.base import Entry, objects_in, row_of
from sessile.core.lines import Finding
from sessile.core.providers import Dialect
from sessile.core.text import iso_timestamp, parse_timestamp

NAME = "cline"

DIALECT = Dialect(
    NAME,
    gaps=(
        "tools: their definitions are not stored",
        "rules: the system prompt is stored without the rules of the folder, and only as the last process had it",
    ),
    missing='[{"type":"text","text":"Tool execution was interrupted before a result was produced. Tool: {tool}."}]',
)

_PROMPT = re.compile(r'<user_input(?: mode="(\w*)")?>(.*)</user_input>\s*', re.DOTALL)
_LIST = re.compile(r'"messages"\s*:\s*\[')
_LONGEST = 8000  # characters of a text in a result that is sent
_APART = ("anthropic", "claude", "bedrock", "vertex")  # providers that count cached tokens apart from the input
_KNOWN = ("id", "role", "content", "ts", "modelInfo", "metrics")
_HEAD = ("session_id", "started_at", "ended_at", "cwd", "prompt", "messages_path")

Json = Mapping[str, Any]


class Conversation:
    """Turns one document into entries.

    Args:
        manifest: The document that describes the session; `None` if there is none.
        compaction: The document that the last compaction left.
    """

    def __init__(self, manifest: bytes | None, compaction: bytes | None) -> None:
        self._findings: list[Finding] = []
        self._manifest = self._other(manifest, "the manifest")
        self._compaction = self._other(compaction, "the document of the compaction")
        self._last: str | None = None
        self._ids: set[str] = set()

    def _other(self, data: bytes | None, what: str) -> Json:
        found = {} if data is None else row_of(data)
        if data is not None and not found:
            self._miss(f"{what} is not complete JSON; the program may be writing it")
        return found

    def _miss(self, detail: str) -> None:
        self._findings.append(Finding("damaged_source", -1, 0, detail))

    def lines(self, data: bytes, stem: str) -> Iterator[Entry | Finding]:
        """Yield the header, the entries, and what cannot be read."""
        document = row_of(data) or self._rescued(data)
        found = document.get("messages")
        messages = objects_in(found)
        if not isinstance(found, list) or len(messages) < len(found):
            self._miss("the document has items that are not messages")
        yield self._header(document, messages, stem)
        if isinstance(document.get("system_prompt"), str) and document["system_prompt"]:
            yield self._entry(
                "message", "system", None, message={"role": "system", "content": document["system_prompt"]}
            )
        end = self._end_of_compaction(messages)
        for number, message in enumerate(messages):
            yield from self._entries(message, self._id_of(message, number))
            if number == end:
                yield self._compacted()
        yield from self._findings

    def _rescued(self, data: bytes) -> Json:
        """Return what can be read of a document that was cut off."""
        text = data.decode("utf-8", "replace")
        found = _LIST.search(text)
        if found is None:
            raise ValueError("the document is not complete JSON; the program may be writing it")
        self._miss("the document ends in the middle; the program may be writing it")
        messages: list[Any] = []
        decoder, at = json.JSONDecoder(), found.end()
        try:
            while True:
                at = re.compile(r"[\s,]*").match(text, at).end()  # type: ignore[union-attr]
                message, at = decoder.raw_decode(text, at)
                messages.append(message)
        except (ValueError, RecursionError):
            pass
        head = row_of((text[: found.start()].rstrip().removesuffix(",") + "}").encode("utf-8", "replace"))
        return {**head, "messages": messages}

    def _id_of(self, message: Json, number: int) -> str:
        """Return the id of a message; one that has none, or that of another, gets one from its place."""
        name = message.get("id")
        if not isinstance(name, str) or not name or name in self._ids:
            name = f"{name or 'message'}+{number}"
        self._ids.add(name)
        return name

    def _header(self, document: Json, messages: list[dict[str, Any]], stem: str) -> Entry:
        told = self._manifest
        notes = told.get("metadata")
        notes = notes if isinstance(notes, dict) else {}
        session_id = told.get("session_id") or document.get("sessionId")
        cwd, prompt = told.get("cwd") or told.get("workspace_root"), told.get("prompt")
        title = notes.get("title") or (_typed(prompt)[0] if isinstance(prompt, str) else None)
        begun = told.get("started_at") or (_stamp(messages[0]) if messages else None)
        own = {name: value for name, value in told.items() if name not in _HEAD}
        header: Entry = {
            "type": "session",
            "version": 3,
            "id": session_id if isinstance(session_id, str) and session_id else stem,
            "timestamp": begun if isinstance(begun, str) else None,
            "cwd": cwd if isinstance(cwd, str) else "",
            "title": title if isinstance(title, str) and title else None,
            "format": NAME,
            "modified": document.get("updated_at"),
            NAME: {**own, "origin": document.get("origin")},
        }
        return {name: value for name, value in header.items() if value is not None}

    # -- entries

    def _entry(self, kind: str, name: str, stamp: str | None, **members: Any) -> Entry:
        """Return an entry that follows the last one."""
        entry: Entry = {"type": kind, "id": name, "parentId": self._last, "timestamp": stamp, **members}
        self._last = name
        return {member: value for member, value in entry.items() if value is not None or member == "parentId"}

    def _entries(self, message: Json, name: str) -> Iterator[Entry]:
        stamp, notes = _stamp(message), message.get("metadata")
        if isinstance(notes, dict) and notes.get("displayOnly"):
            kind = str(notes.get("displayRole") or "note")
            yield self._entry("custom", name, stamp, customType=f"cline.{kind}", data=dict(message))
            return
        own: Entry = {member: value for member, value in message.items() if member not in _KNOWN}
        for number, (made, mode) in enumerate(_neutral(message)):
            extra = {**own, "mode": mode} if mode else own
            told = {NAME: extra} if extra and not number else {}
            below = made.get("toolCallId") or number
            yield self._entry("message", f"{name}/{below}" if number else name, stamp, message=made, **told)

    def _end_of_compaction(self, messages: list[dict[str, Any]]) -> int | None:
        """Return the number of the last message that was compacted."""
        if not objects_in(self._compaction.get("messages")):
            return None
        key, count = self._compaction.get("source_last_message_key"), self._compaction.get("source_message_count")
        for number, message in enumerate(messages):
            if key == f"id:{message.get('id')}":
                return number
        sent = [number for number, message in enumerate(messages) if not _is_shown_only(message)]
        if isinstance(count, int) and 0 < count <= len(sent):
            return sent[count - 1]
        self._miss("the compaction is of messages that are not in the document; it is not applied")
        return None

    def _compacted(self) -> Entry:
        """Return the compaction: its summary, and the first of the messages that it kept as they were."""
        messages = objects_in(self._compaction.get("messages"))
        kept = len(messages)
        while kept and messages[kept - 1].get("id") in self._ids:
            kept -= 1
        first = messages[kept].get("id") if kept < len(messages) else None
        notes = messages[0].get("metadata") if messages else None
        notes = notes if isinstance(notes, dict) else {}
        before = notes.get("tokensBefore")
        return self._entry(
            "compaction",
            f"{self._last}/compaction",
            _text(self._compaction.get("updated_at")),
            summary=str(notes.get("summary") or ""),
            tokensBefore=before if isinstance(before, int) else 0,
            replacement=[made for message in messages[:kept] for made, _ in _neutral(message)],
            firstKeptEntryId=first,
            **{
                NAME: {name: value for name, value in self._compaction.items() if name != "messages"} | {"notes": notes}
            },
        )


def _is_shown_only(message: Json) -> bool:
    notes = message.get("metadata")
    return isinstance(notes, dict) and bool(notes.get("displayOnly"))


def _stamp(message: Json) -> str | None:
    at = message.get("ts")
    return iso_timestamp(at) if isinstance(at, int) and not isinstance(at, bool) and 0 <= at < 1 << 47 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _typed(text: str) -> tuple[str, str]:
    """Return what the user typed, and the mode."""
    found = _PROMPT.fullmatch(text)
    return (text, "") if found is None else (found[2], found[1] or "")


def _neutral(message: Json) -> Iterator[tuple[Entry, str]]:
    """Yield the messages that a stored one stands for, with the mode of a prompt: each result is one of its own."""
    at = parse_timestamp(_stamp(message))
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else objects_in(content)
    if message.get("role") == "assistant":
        yield _answer(message, blocks, at), ""
        return
    for block in blocks:
        if block.get("type") == "tool_result":
            yield {**_result(block), "timestamp": at}, ""
    said, mode = [], ""
    for block in blocks:
        if block.get("type") == "tool_result":
            continue
        if block.get("type") == "text":
            typed, found = _typed(str(block.get("text") or ""))
            said.append({"type": "text", "text": typed})
            mode = mode or found
        else:
            said.append(_block(block))
    if said or not blocks:
        yield {"role": "user", "content": said, "timestamp": at}, mode


def _answer(message: Json, blocks: list[dict[str, Any]], at: int | None) -> Entry:
    model = message.get("modelInfo")
    model = model if isinstance(model, dict) else {}
    provider = str(model.get("provider") or "")
    anthropic = provider.startswith(_APART)
    content: list[Entry] = []
    for block in blocks:
        if block.get("type") == "thinking":
            signature = block.get("signature") if anthropic else "reasoning_content"
            thought: Entry = {"type": "thinking", "thinking": str(block.get("thinking") or "")}
            content.append({**thought, "thinkingSignature": signature} if signature else thought)
        elif block.get("type") == "redacted_thinking":
            content.append(
                {"type": "thinking", "thinking": "", "thinkingSignature": block.get("data"), "redacted": True}
            )
        elif block.get("type") == "tool_use":
            given = block.get("input")
            arguments = given if isinstance(given, dict) else {"input": given}
            call = {"id": str(block.get("id") or ""), "name": str(block.get("name") or "")}
            content.append({"type": "toolCall", **call, "arguments": arguments})
        else:
            content.append(_block(block))
    answer: Entry = {"role": "assistant", "content": content}
    answer["api"] = "anthropic-messages" if anthropic else "openai-completions"
    if provider:
        answer["provider"] = provider
    if isinstance(model.get("id"), str):
        answer["model"] = model["id"]
    if usage := _usage(message.get("metrics"), anthropic):
        answer["usage"] = usage
    answer["stopReason"] = "toolUse" if any(block["type"] == "toolCall" for block in content) else "stop"
    return {**answer, "timestamp": at}


def _result(block: Json) -> Entry:
    """Return a result as it is sent: a list is JSON, but for images."""
    content = block.get("content")
    images = [_block(part) for part in objects_in(content) if part.get("type") == "image"]
    rest = content
    if images and isinstance(content, list):
        rest = [part for part in content if not isinstance(part, dict) or part.get("type") != "image"]
    text, whole = _sent(_shortened(rest)), _sent(rest)
    failed = any(part.get("success") is False for part in objects_in(content))
    return {
        "role": "toolResult",
        "toolCallId": str(block.get("tool_use_id") or ""),
        "toolName": str(block.get("name") or ""),
        "content": [{"type": "text", "text": text}, *images],
        "isError": bool(block.get("is_error")) or failed,
        **({"fullOutput": whole} if whole != text else {}),
    }


def _sent(content: object) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _shortened(value: Any) -> Any:
    """Return a result with its long texts as they are sent: the middle is left out."""
    if isinstance(value, dict):
        return {name: _shortened(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    if not isinstance(value, str) or len(value) <= _LONGEST:
        return value
    words = "\n\n...[truncated {} chars]...\n\n"
    side = (_LONGEST - len(words.format(len(value)))) // 2
    note = words.format(len(value) - 2 * side)
    return f"{value[:side]}{note}{value[-side:]}"


def _block(block: Json) -> Entry:
    kind, source = block.get("type"), block.get("source")
    if kind == "text":
        return {"type": "text", "text": str(block.get("text") or "")}
    if kind == "file":
        said = f'<file_content path="{block.get("path")}">\n{block.get("content")}\n</file_content>'
        return {"type": "text", "text": said}
    if kind == "image" and isinstance(source, dict) and isinstance(source.get("data"), str):
        return {"type": "image", "mimeType": str(source.get("media_type") or ""), "data": source["data"]}
    if kind == "image" and isinstance(block.get("data"), str):
        return {
            "type": "image",
            "mimeType": str(block.get("mediaType") or block.get("mimeType") or ""),
            "data": block["data"],
        }
    return {"type": "other", "api": "anthropic-messages", "value": dict(block)}


def _usage(told: object, apart: bool) -> Entry:
    """Return the usage of an answer; OpenAI counts cached tokens as input, Anthropic does not."""
    if not isinstance(told, Mapping):
        return {}
    found = {name: value for name, value in told.items() if isinstance(value, int) and not isinstance(value, bool)}
    if "inputTokens" not in found or "outputTokens" not in found:
        return {}
    read, wrote = found.get("cacheReadTokens", 0), found.get("cacheWriteTokens", 0)
    given = found["inputTokens"] if apart else max(0, found["inputTokens"] - read - wrote)
    total = given + read + wrote + found["outputTokens"]
    return {
        "input": given,
        "output": found["outputTokens"],
        "cacheRead": read,
        "cacheWrite": wrote,
        "totalTokens": total,
    }
