"""The events of a session of Copilot CLI, each after the one before it.

    {type, data, id, timestamp, parentId, agentId?}

    user.message             what was typed, and as it was sent: with the time before it
    system.message           the whole system prompt
    assistant.message        an answer with its calls; its usage is in the `session.usage_record` with the same `apiCallId`
    tool.execution_complete  the result of a call
    session.binary_asset     an image, once, to which attachments refer
    session.compaction_complete
                             the summary; the program sends it with the earlier prompts, which it takes from the events
    model.*                  repeats the conversation during a compaction

Events of a sub-agent have an `agentId`. They are a tree of their own in the same session. Rewound events are removed from the
file. The id of a call with plain text as its input is stored with `custom_` before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sessile.agents.base import Entry, objects_in, rows_in
from sessile.core.lines import Finding
from sessile.core.providers import Dialect
from sessile.core.text import parse_timestamp

NAME = "copilot"

DIALECT = Dialect(
    NAME,
    gaps=(
        "tools: their definitions are not stored",
        "result: the process that ran an unknown tool sent the names of all tools with the error",
    ),
    missing="The execution of this tool, or a previous tool was interrupted.",
    brief_thoughts=("responses", "openai"),
)

_APIS = {
    "/responses": "openai-responses",
    "/chat/completions": "openai-completions",
    "/v1/messages": "anthropic-messages",
}
_FIRST, _LAST = 3, 16  # prompts that stay in a compaction of more
_ANSWER = (
    "content",
    "toolRequests",
    "model",
    "reasoningText",
    "reasoningOpaque",
    "encryptedContent",
    "reasoningBlocks",
)

Json = Mapping[str, Any]


class Events:
    """Turns the events of one file into entries.

    Args:
        workspace: The members of `workspace.yaml`.
        beside: Returns the path of another session.
    """

    def __init__(self, workspace: Mapping[str, str], beside: Callable[[str], str]) -> None:
        self._workspace = workspace
        self._beside = beside
        self._usage: dict[str, Json] = {}  # by call of the API
        self._assets: dict[str, Json] = {}
        self._tools: dict[str, str] = {}  # names by call
        self._typed: list[str] = []  # the prompts so far
        self._tails: dict[str, str | None] = {"": None}  # the last entry of each agent

    def lines(self, data: bytes, stem: str) -> Iterator[Entry | Finding]:
        """Yield the header, the entries, and what cannot be read."""
        findings: list[Finding] = []
        events: list[tuple[int, dict[str, Any]]] = []
        for offset, row in rows_in(data):
            if isinstance(row, Finding):
                findings.append(row)
            elif not isinstance(row.get("data"), dict) or not isinstance(row.get("type"), str):
                findings.append(Finding("damaged_source", offset, 0, "a row that is not an event is not read"))
            else:
                events.append((offset, row))
                self._note(row["type"], row["data"])
        entries: list[Entry] = []
        seen: set[str] = set()
        for offset, event in events:
            entry_id = event.get("id")
            if not isinstance(entry_id, str) or not entry_id or entry_id in seen:
                findings.append(Finding("damaged_source", offset, 0, "an event without an id of its own is not read"))
                continue
            seen.add(entry_id)
            agent = event.get("agentId")
            line = agent if isinstance(agent, str) else ""
            entry = {"id": entry_id, "parentId": self._tails.get(line), "timestamp": event.get("timestamp")}
            entries.append(self._entry(event["type"], event["data"], entry, line))
            self._tails[line] = entry_id
        yield self._header([event for _, event in events], stem, entries)
        yield from entries
        yield from findings

    def _note(self, kind: str, data: Json) -> None:
        """Remember what other events refer to."""
        usage, asset = data.get("usage"), data.get("assetId")
        if kind == "session.usage_record" and isinstance(usage, dict):
            self._usage[str(usage.get("apiCallId"))] = usage
        elif kind == "session.binary_asset" and isinstance(asset, str):
            self._assets[asset] = data

    def _header(self, events: list[dict[str, Any]], stem: str, entries: list[Entry]) -> Entry:
        start: Json = next((event["data"] for event in events if event["type"] == "session.start"), {})
        place = start.get("context")
        place = place if isinstance(place, dict) else {}
        session_id = start.get("sessionId")
        cwd = self._workspace.get("cwd") or place.get("cwd")
        leaf = self._tails[""]
        header: Entry = {
            "type": "session",
            "version": 3,
            "id": session_id if isinstance(session_id, str) and session_id else stem,
            "timestamp": start.get("startTime"),
            "cwd": cwd if isinstance(cwd, str) else "",
            "title": self._workspace.get("name") or None,
            "format": NAME,
            "modified": events[-1].get("timestamp") if events else None,
            "parentSession": self._parent(events, session_id),
            "leaf": leaf if entries and leaf != entries[-1]["id"] else None,
            NAME: {"context": place, "version": start.get("copilotVersion")},
        }
        return {name: value for name, value in header.items() if value is not None}

    def _parent(self, events: list[dict[str, Any]], session_id: object) -> str | None:
        """Return the session that this one was forked from: both get a notice that ends with the other's id."""
        for event in events:
            data = event["data"]
            if event["type"] == "session.info" and data.get("infoType") == "fork":
                ids = [part.partition(")")[0] for part in str(data.get("message")).split("(")]
                ids = [each for each in ids if len(each) == 36 and "/" not in each]
                if len(ids) == 2 and ids[1] == session_id:
                    return self._beside(ids[0])
        return None

    # -- entries

    def _entry(self, kind: str, data: Json, base: Entry, line: str) -> Entry:
        at = parse_timestamp(base["timestamp"])
        if kind == "user.message":
            if not line:
                self._typed.append(str(data.get("content") or ""))
            own = _rest(data, "transformedContent", "attachments")
            message: Entry = {"role": "user", "content": self._prompt(data), "timestamp": at}
        elif kind == "system.message" and data.get("role", "system") == "system":
            own = _rest(data, "role", "content")
            message = {"role": "system", "content": str(data.get("content") or ""), "replaces": True, "timestamp": at}
        elif kind == "assistant.message":
            own = _rest(data, *_ANSWER)
            message = {**self._answer(data), "timestamp": at}
        elif kind == "tool.execution_complete":
            own = _rest(data, "toolCallId", "result", "error")
            message = {**self._result(data), "timestamp": at}
        elif kind == "session.compaction_complete" and data.get("success") is not False and not line:
            summary = str(data.get("summaryContent") or "")
            before = data.get("preCompactionTokens")
            sent = [{"role": "user", "content": [{"type": "text", "text": self._compacted(summary)}], "timestamp": at}]
            told = {"summary": summary, "tokensBefore": before if isinstance(before, int) else 0, "replacement": sent}
            return {"type": "compaction", **base, **told, NAME: _rest(data, "summaryContent")}
        elif kind.startswith("model."):
            return {"type": "custom", **base, "customType": f"copilot.{kind}", "data": {"repeats": "the conversation"}}
        else:
            return {"type": "custom", **base, "customType": f"copilot.{kind}", "data": dict(data)}
        return {"type": "message", **base, "message": message, **({NAME: own} if own else {})}

    def _prompt(self, data: Json) -> list[Entry]:
        text = data.get("transformedContent")
        text = text if isinstance(text, str) else str(data.get("content") or "")
        blocks: list[Entry] = [{"type": "text", "text": text}]
        for attached in objects_in(data.get("attachments")):
            asset = self._assets.get(str(attached.get("assetId")))
            if asset is not None and str(asset.get("mimeType")).startswith("image/"):
                blocks.append({"type": "text", "text": f"Image file at path {attached.get('path')}"})
                blocks.append({"type": "image", "mimeType": asset.get("mimeType"), "data": asset.get("data")})
        return blocks

    def _answer(self, data: Json) -> Entry:
        usage = self._usage.get(str(data.get("apiCallId")), {})
        api = _APIS.get(str(usage.get("apiEndpoint"))) or _api_of(data)
        content = _thoughts(data, api)
        if text := data.get("content"):
            content.append({"type": "text", "text": str(text)})
        content += [self._call(call) for call in objects_in(data.get("toolRequests"))]
        provider = "anthropic" if api == "anthropic-messages" else "openai"
        answer: Entry = {"role": "assistant", "content": content, "provider": provider, "api": api}
        if isinstance(data.get("model"), str):
            answer["model"] = data["model"]
        if counted := _usage(usage):
            answer["usage"] = counted
        answer["stopReason"] = "toolUse" if objects_in(data.get("toolRequests")) else "stop"
        return answer

    def _call(self, call: Json) -> Entry:
        call_id, name, given = str(call.get("toolCallId") or ""), str(call.get("name") or ""), call.get("arguments")
        self._tools[call_id] = name
        if isinstance(given, dict):
            return {"type": "toolCall", "id": call_id, "name": name, "arguments": given}
        arguments = {"input": "" if given is None else str(given)}
        custom = {"custom": True} if call.get("type") == "custom" else {}
        return {"type": "toolCall", "id": _plain(call_id), "name": name, "arguments": arguments, **custom}

    def _result(self, data: Json) -> Entry:
        result, error = data.get("result"), data.get("error")
        result = result if isinstance(result, dict) else {}
        failed = data.get("success") is False
        text = error.get("message") if failed and isinstance(error, dict) else result.get("content")
        call_id = str(data.get("toolCallId") or "")
        return {
            "role": "toolResult",
            "toolCallId": _plain(call_id),
            "toolName": self._tools.get(call_id, ""),
            "content": [{"type": "text", "text": "" if text is None else str(text)}],
            "isError": failed,
            "details": {name: value for name, value in result.items() if name != "content"},
        }

    def _compacted(self, summary: str) -> str:
        """Return what the program sends in place of what it compacted."""
        told = [f"<user_message>\n{text}\n</user_message>" for text in self._typed]
        if len(told) > _FIRST + 1 + _LAST:  # as seen once, with 24 prompts
            left = len(told) - _FIRST - _LAST
            told = [*told[:_FIRST], f"... {left} messages omitted ...", *told[-_LAST:]]
        return (
            "Some of the conversation history has been summarized to free up context.\n\n"
            "You were originally given instructions from a user over one or more turns. Here were the user messages:\n"
            + "\n".join(told)
            + f"\n\nHere is a summary of the prior context:\n<summary>\n{summary}\n</summary>\n"
        )


def _rest(data: Json, *known: str) -> Entry:
    return {name: value for name, value in data.items() if name not in known and value is not None}


def _plain(call_id: str) -> str:
    """Return the id that the model gave a call."""
    return call_id.removeprefix("custom_")


def _api_of(data: Json) -> str:
    """Return the API that an answer came from, by its thoughts or its id."""
    for name in ("reasoningBlocks", "serverTools"):
        told = data.get(name)
        if isinstance(told, dict) and isinstance(told.get("provider"), str):
            return str(told["provider"])
    call = str(data.get("apiCallId"))
    return "openai-responses" if call.startswith("resp_") else "openai-completions"


def _thoughts(data: Json, api: str) -> list[Entry]:
    text = str(data.get("reasoningText") or "")
    told = data.get("reasoningBlocks")
    blocks = objects_in(told.get("blocks")) if isinstance(told, dict) else []
    found: list[Entry] = []
    for block in blocks:
        if block.get("type") == "reasoning":
            said = "\n\n".join(str(part.get("text") or "") for part in objects_in(block.get("summary")))
            found.append({"type": "thinking", "thinking": said or text, "thinkingSignature": json.dumps(block)})
        elif block.get("type") == "redacted_thinking":
            signature = {"thinkingSignature": block.get("data"), "redacted": True}
            found.append({"type": "thinking", "thinking": "", **signature})
        else:
            said = str(block.get("thinking") or text)
            found.append({"type": "thinking", "thinking": said, "thinkingSignature": block.get("signature") or ""})
    if not found and text:
        signature = {"thinkingSignature": "reasoning_content"} if api == "openai-completions" else {}
        found.append({"type": "thinking", "thinking": text, **signature})
    return found


def _usage(told: Json) -> Entry:
    """Return the usage of an answer; the program counts cached tokens as input on every API."""
    names = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "reasoningTokens")
    found = {name: told[name] for name in names if isinstance(told.get(name), int)}
    if "inputTokens" not in found or "outputTokens" not in found:
        return {}
    read, wrote = found.get("cacheReadTokens", 0), found.get("cacheWriteTokens", 0)
    return {
        "input": max(0, found["inputTokens"] - read - wrote),
        "output": found["outputTokens"],
        "cacheRead": read,
        "cacheWrite": wrote,
        "reasoning": found.get("reasoningTokens", 0),
        "totalTokens": found["inputTokens"] + found["outputTokens"],
    }


def workspace_of(text: str) -> dict[str, str]:
    """Return the members of a flat YAML file: plain, quoted and block texts."""
    found: dict[str, str] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines):
        name, colon, value = line.partition(":")
        if not colon or not name.isidentifier():
            continue
        value = value.strip()
        if value[:1] in ("|", ">") and value[1:] in ("", "-", "+"):
            value = ("\n" if value[0] == "|" else " ").join(_indented(lines[number + 1 :]))
        elif value[:1] == '"':
            try:
                value = str(json.loads(" ".join([value, *_indented(lines[number + 1 :])])))
            except ValueError:
                value = value.strip('"')
        elif value[:1] == "'":
            value = " ".join([value, *_indented(lines[number + 1 :])])[1:-1].replace("''", "'")
        else:
            value = " ".join([value, *_indented(lines[number + 1 :])])
        found[name] = value
    return found


def _indented(lines: list[str]) -> list[str]:
    """Return the lines up to the first that is not indented."""
    found = []
    for line in lines:
        if not line.startswith(" "):
            break
        found.append(line.strip())
    return found
