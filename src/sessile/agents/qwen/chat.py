"""The session files of Qwen Code: rows that are only added, each with the id of its parent.

    {uuid, parentUuid, sessionId, timestamp, type, cwd, message {role, parts}, …}

    user         a prompt; leading parts in tags are reminders of the program, and `notification` rows are texts of the program
    assistant    an answer, with its usage
    tool_result  the result of one call
    system       chat_compression: the history from now on; everything else is not sent: titles, commands, telemetry, snapshots

The row that was added last decides which branch the conversation is on. A rewind, or a second process on the same session, leaves
the other branch where it is. A fork is a copy with the same ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sessile.agents.base import Entry, objects_in, rows_in
from sessile.agents.gemini.log import blocks_of, responses_in, result_of
from sessile.core.lines import Finding
from sessile.core.providers import Dialect
from sessile.core.text import parse_timestamp

NAME = "qwen"
_PROVIDER, _API = "openai", "openai-completions"
_REMINDER = re.compile(r"\s*<([a-z]+-[a-z]+)>.*</\1>\s*", re.DOTALL)
_KNOWN = ("uuid", "parentUuid", "sessionId", "timestamp", "type", "cwd", "message", "usageMetadata", "model")
_TOLD = ("version", "gitBranch", "provenance")  # the same in every row, or told by the type

DIALECT = Dialect(
    NAME,
    gaps=(
        "system prompt: it is made anew by every process",
        "tools: their definitions are not stored",
        "reminder: skills, folder, date and restored agents are added to a prompt when it is sent",
    ),
    missing=(
        "Tool execution result was not recorded — likely interrupted by network failure, abort, or process exit. "
        "Treat as failure and retry if needed."
    ),
    merge_users=True,
)

Json = Mapping[str, Any]


class Chat:
    """Turns the rows of one file into entries.

    Args:
        output: Returns the whole output of a tool whose result has only the name of a file.
        beside: Returns the path of another session of the project.
    """

    def __init__(self, output: Callable[[str], str | None], beside: Callable[[str], str]) -> None:
        self._output = output
        self._beside = beside
        self._tails: dict[str, str] = {}  # the last entry of each row

    def lines(self, data: bytes, stem: str) -> Iterator[Entry | Finding]:
        """Yield the header, the entries, and what cannot be read."""
        rows: list[tuple[int, dict[str, Any]]] = []
        findings: list[Finding] = []
        for offset, row in rows_in(data):
            if isinstance(row, Finding):
                findings.append(row)
            else:
                rows.append((offset, row))
        yield self._header([row for _, row in rows], stem)
        for offset, row in rows:
            row_id = row.get("uuid")
            if not isinstance(row_id, str) or not row_id:
                findings.append(Finding("damaged_source", offset, 0, "a row without an id is not read"))
                continue
            if row_id in self._tails:
                findings.append(
                    Finding("damaged_source", offset, 0, f"the id {row_id} occurs twice; the first row counts")
                )
                continue
            above = row.get("parentUuid")
            parent = self._tails.get(above) if isinstance(above, str) else None
            if parent is None and above is not None:
                findings.append(Finding("damaged_source", offset, 0, f"the parent of {row_id} is not in the file"))
            for entry in self._entries(row, row_id):
                entry["parentId"], parent = parent, entry["id"]
                yield entry
            self._tails[row_id] = parent or row_id
        yield from findings

    def _header(self, rows: list[dict[str, Any]], stem: str) -> Entry:
        first: Json = rows[0] if rows else {}
        title, forked = None, None
        for row in rows:
            payload = row.get("systemPayload")
            if row.get("subtype") == "custom_title" and isinstance(payload, dict):
                title = payload.get("customTitle")
        if isinstance(first.get("forkedFrom"), dict):
            forked = first["forkedFrom"].get("sessionId")
        own = {name: first[name] for name in ("version", "gitBranch", "agentId", "agentName") if name in first}
        header: Entry = {
            "type": "session",
            "version": 3,
            "id": stem,
            "timestamp": first.get("timestamp"),
            "cwd": first["cwd"] if isinstance(first.get("cwd"), str) else "",
            "title": title if isinstance(title, str) and title else None,
            "format": NAME,
            "modified": rows[-1].get("timestamp") if rows else None,
            "parentSession": self._beside(forked) if isinstance(forked, str) and "/" not in forked else None,
            NAME: own,
        }
        return {name: value for name, value in header.items() if value is not None}

    def _entries(self, row: Json, row_id: str) -> Iterator[Entry]:
        stamp = row.get("timestamp")
        base: Entry = {"id": row_id, "parentId": None, "timestamp": stamp}
        message = row.get("message")
        parts = objects_in(message.get("parts")) if isinstance(message, dict) else []
        own = {name: value for name, value in row.items() if name not in (*_KNOWN, *_TOLD)}
        extra: Entry = {NAME: own} if own else {}
        at = parse_timestamp(stamp)
        match row.get("type"), row.get("subtype"):
            case "user", "notification":
                content = blocks_of(parts)
                yield {"type": "custom_message", **base, "customType": "qwen.notification", "content": content, **extra}
            case "user", _:
                reminders = _reminders(parts)
                if reminders:
                    content = blocks_of(parts[:reminders])
                    told = {"customType": "qwen.reminder", "content": content, "display": False}
                    yield {"type": "custom_message", **base, "id": f"{row_id}/reminder", **told}
                said = {"role": "user", "content": blocks_of(parts[reminders:]), "timestamp": at}
                yield {"type": "message", **base, "message": said, **extra}
            case "assistant", _:
                yield {"type": "message", **base, "message": _answer(row, parts, at), **extra}
            case "tool_result", _ if results := self._results(parts, at):
                for number, result in enumerate(results):
                    name = row_id if not number else f"{row_id}/{result['toolCallId'] or number}"
                    yield {"type": "message", **base, "id": name, "message": result, **(extra if not number else {})}
            case "system", "chat_compression":
                payload = row.get("systemPayload")
                yield {"type": "compaction", **base, **_compaction(payload if isinstance(payload, dict) else {}, at)}
            case kind, subtype:
                name = f"qwen.{subtype or kind}"
                data = row.get("systemPayload") if kind == "system" else dict(row)
                yield {"type": "custom", **base, "customType": name, "data": data}

    def _results(self, parts: list[dict[str, Any]], at: int | None) -> list[Entry]:
        results = [result_of(*response, at) for response in responses_in(parts)]
        for result in results:
            whole = self._output(result["content"][0]["text"])
            if whole is not None:
                result["fullOutput"] = whole
        if results:
            results[-1]["content"] += blocks_of(parts)
        return results


def _reminders(parts: list[dict[str, Any]]) -> int:
    """Return how many parts at the start of a prompt are texts of the program."""
    count = 0
    while count < len(parts) - 1 and _REMINDER.fullmatch(str(parts[count].get("text") or "")):
        count += 1
    return count


def _answer(row: Json, parts: list[dict[str, Any]], at: int | None) -> Entry:
    content: list[Entry] = []
    for part in parts:
        if part.get("thought") is True:
            thought = str(part.get("text") or "")
            content.append({"type": "thinking", "thinking": thought, "thinkingSignature": "reasoning_content"})
        else:
            content += blocks_of([part])
    answer: Entry = {"role": "assistant", "content": content, "provider": _PROVIDER, "api": _API}
    if isinstance(row.get("model"), str):
        answer["model"] = row["model"]
    if usage := _usage(row.get("usageMetadata")):
        answer["usage"] = usage
    called = any(block["type"] == "toolCall" for block in content)
    return {**answer, "stopReason": "toolUse" if called else "stop", "timestamp": at}


def _usage(told: object) -> Entry:
    """Return the usage of an answer. Cached tokens are part of the prompt, and thoughts mostly of the candidates."""
    if not isinstance(told, Mapping):
        return {}
    found = {name: value for name, value in told.items() if isinstance(value, int) and not isinstance(value, bool)}
    given, made = found.get("promptTokenCount"), found.get("candidatesTokenCount")
    thought, total = found.get("thoughtsTokenCount", 0), found.get("totalTokenCount")
    usage: Entry = {"cacheRead": found.get("cachedContentTokenCount"), "cacheWrite": 0, "totalTokens": total}
    if given is not None:
        usage["input"] = given - found.get("cachedContentTokenCount", 0)
    if made is not None:
        apart = given is not None and total == given + made + thought
        usage |= {"output": made + thought if apart else made, "reasoning": thought}
    return {name: value for name, value in usage.items() if value is not None}


def _compaction(payload: Json, at: int | None) -> Entry:
    """Return the members of a compaction: the program sends the new history in place of what was before."""
    messages: list[Entry] = []
    for content in objects_in(payload.get("compressedHistory")):
        parts = objects_in(content.get("parts"))
        if content.get("role") == "model":
            messages.append(_answer({}, parts, at))
        elif results := [result_of(*response, at) for response in responses_in(parts)]:
            messages += results
        else:
            messages.append({"role": "user", "content": blocks_of(parts), "timestamp": at})
    texts = (block["text"] for message in messages for block in message["content"] if block["type"] == "text")
    info = payload.get("info")
    before = info.get("originalTokenCount") if isinstance(info, dict) else None
    rest = {name: value for name, value in payload.items() if name != "compressedHistory"}
    return {
        "summary": next(texts, ""),
        "tokensBefore": before if isinstance(before, int) else 0,
        "replacement": messages,
        NAME: rest,
    }
