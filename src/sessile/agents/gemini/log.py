"""The session files of Gemini CLI: a log of changes to a list of messages, replayed here into a tree.

    {sessionId, projectHash, startTime, …}   the head; a resumed process writes another one
    {id, type, content, …}                   a message; the same id again replaces it
    {"$set": {"messages": [...], …}}         the whole list from now on, or other members of the head
    {"$rewindTo": id}                        the list without this message and all after it

What a change takes out of the list stays as a branch:

    a shorter list              the rest is left behind
    a longer list               the new messages follow
    the end of the list only    it begins anew with it (a saved conversation was loaded)
    some messages are gone      they are taken out of the context
    other messages before       a compaction, with the messages that stand for it; what follows them unchanged was kept

A resume writes the list without models, usage and calls, so a value that was there first counts. Results of calls are stored with
the call and again as a message; they are shown once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from sessile.agents.base import Entry, row_of
from sessile.core.codec import decode
from sessile.core.lines import Finding
from sessile.core.text import parse_timestamp

NAME = "gemini"
_PROVIDER, _API = "google", "google-generative-ai"
_CONTEXT = "<session_context>"
_SHOWN = ("info", "error", "warning")  # messages for the screen only
_ONCE = ("tokens", "model", "thoughts", "displayContent")  # what a later row must not take away
_HEAD = ("sessionId", "startTime", "lastUpdated", "summary")

Json = Mapping[str, Any]
Output = Callable[[str], str | None]


class Node(msgspec.Struct, eq=False):
    """A message of the log, or a change of the list that became an entry."""

    id: str
    kind: str  # "message", "context", "compaction", "removal", or "renewal" of the context
    data: dict[str, Any]
    parent: Node | None
    notes: list[dict[str, Any]] = []  # messages for the screen that came after it
    messages: list[dict[str, Any]] = []  # that stand for what was compacted
    kept: Node | None = None  # the first message that a compaction kept


class Log:
    """Replays the rows of a session."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        self.nodes: list[Node] = []
        self.findings: list[Finding] = []
        self._known: dict[str, Node] = {}
        self._list: list[str] = []  # the ids of the current messages
        self._context: Node | None = None  # what the program says of the surroundings, before the first prompt
        self._surroundings: object = None  # the same as it is now: every process says it anew
        self._renewed = False  # whether it is another one than the path has
        self._tip: Node | None = None  # where the next message belongs

    @property
    def leaf(self) -> Node | None:
        """The message from which the conversation continues."""
        return self._tip

    def take(self, row: Json) -> None:
        """Apply a row."""
        change = row.get("$set")
        if isinstance(change, Mapping):
            messages = change.get("messages")
            self.head |= {name: value for name, value in change.items() if name != "messages"}
            if isinstance(messages, list):
                valid = [each for each in messages if isinstance(each, dict) and isinstance(each.get("id"), str)]
                if len(valid) < len(messages):
                    self._miss("a list has items that are not messages")
                if valid or not messages:
                    self._replace(valid)
        elif isinstance(row.get("$rewindTo"), str):
            if row["$rewindTo"] in self._list:
                self._cut(self._list.index(row["$rewindTo"]))
        elif isinstance(row.get("id"), str) and "type" in row:
            self._put(dict(row))
        elif "sessionId" in row:
            first = self.head.get("startTime")
            self.head |= dict(row)
            if first is not None:
                self.head["startTime"] = first
            if isinstance(row.get("messages"), list):  # a session in the older form, one document
                self.take({"$set": {"messages": self.head.pop("messages")}})
        else:
            names = ", ".join(sorted(map(str, row))[:3]) or "nothing"
            self._miss(f"a row with {names} is not read: a newer release may have written it")

    def _miss(self, detail: str) -> None:
        self.findings.append(Finding("damaged_source", -1, 0, detail))

    # -- messages

    def _put(self, message: dict[str, Any]) -> None:
        """Add a message, or replace the one with its id."""
        known = self._known.get(message["id"])
        if message.get("type") in _SHOWN:
            self._note(message)
        elif known is not None and message["id"] in self._list:
            self._merge(known, message)
        else:
            self._append(message)

    def _note(self, message: dict[str, Any]) -> None:
        if self._tip is None:
            self._tip = self._context = self._context or self._new(f"{message['id']}/start", "context", {})
        if all(note["id"] != message["id"] for note in self._tip.notes):
            self._tip.notes = [*self._tip.notes, message]

    def _append(self, message: dict[str, Any]) -> None:
        known = self._known.get(message["id"])
        if self._renewed and known is None and self._context is not None:
            name = f"{self._context.id}/{message['id']}"
            self._tip = self._new(name, "renewal", {"target": self._context.id, "content": self._surroundings})
            self._renewed = False
        self._list.append(message["id"])
        if self._is_repeated(message):
            return
        if known is not None and known.parent is self._tip:
            self._merge(known, message)
            self._tip = known
            return
        name = message["id"] if known is None else f"{message['id']}+{len(self.nodes)}"
        self._tip = self._known[message["id"]] = self._new(name, "message", message)

    def _new(self, name: str, kind: str, data: dict[str, Any]) -> Node:
        node = Node(name, kind, data, self._tip)
        self.nodes.append(node)
        return node

    def _merge(self, node: Node, message: dict[str, Any], *, listed: bool = False) -> None:
        for name, value in message.items():
            if name in _ONCE and node.data.get(name):
                continue
            if name in (*_ONCE, "toolCalls") and not value:
                continue
            if name == "content" and (node.data.get(name) if listed else not value):
                continue
            node.data[name] = value

    def _is_repeated(self, message: Json) -> bool:
        """Return whether a message only repeats results that are in the list already."""
        wanted = set(_answered(message))
        if not wanted:
            return False
        for name in reversed(self._list[:-1]):  # nearly always the message before
            if (node := self._known.get(name)) is not None:
                wanted -= set(_answered(node.data))
                if not wanted:
                    return True
        return False

    def _without_repeats(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return a whole list without what only repeats results, and without second messages of one id."""
        found: dict[str, dict[str, Any]] = {}
        answered: set[str] = set()
        for message in messages:
            node, here = self._known.get(message["id"]), set(_answered(message))
            if message["id"] in found or (here and here <= answered and not _objects(message.get("toolCalls"))):
                continue
            found[message["id"]] = message
            answered |= here | (set(_answered(node.data)) if node is not None else set())
        return list(found.values())

    # -- the list

    def _cut(self, end: int) -> None:
        """Leave the end of the list behind."""
        self._list = self._list[:end]
        found = (self._known[name] for name in reversed(self._list) if name in self._known)
        self._tip = next(found, self._context)

    def _replace(self, messages: list[dict[str, Any]]) -> None:
        """Set the whole list."""
        if messages and _is_context(messages[0]):
            if self._context is None:
                self._context = self._new(messages[0]["id"], "context", messages[0])
                self._surroundings = messages[0].get("content")
                if self._tip is None:
                    self._tip = self._context
            elif _text(messages[0].get("content")) != _text(self._surroundings):
                self._surroundings, self._renewed = messages[0].get("content"), True
            messages = messages[1:]
        elif messages and self._context is not None and self._surroundings is not None:
            self._surroundings, self._renewed = None, True
        before = [name for name in self._list if name in self._known]
        by_name = {each["id"]: each for each in self._without_repeats(messages)}
        names = list(by_name)
        for name in names:
            if (node := self._known.get(name)) is not None and node.kind == "message":
                self._merge(node, by_name[name], listed=True)
        self._list = before
        if names == before[: len(names)]:
            self._cut(len(names))
        elif before == names[: len(before)]:
            for name in names[len(before) :]:
                self._append(by_name[name])
        elif names == before[len(before) - len(names) :]:
            self._known[names[0]].parent = None
            self._list = names
        elif set(names) <= set(before) and names == [name for name in before if name in set(names)]:
            for name in before:
                if name not in by_name:
                    self._tip = self._new(f"{name}/removed", "removal", {"target": name})
            self._list = names
        else:
            self._compact([by_name[name] for name in names], before)

    def _compact(self, messages: list[dict[str, Any]], before: list[str]) -> None:
        """Replace the list by another one, of which the end may be as it was."""
        kept = 0
        while kept < min(len(messages), len(before)) and _is_same(
            messages[-1 - kept], self._known[before[-1 - kept]].data
        ):
            kept += 1
        first = self._known[before[len(before) - kept]] if kept else None
        other = messages[: len(messages) - kept]
        node = self._new(f"{messages[0]['id']}/compaction" if other else f"{before[0]}/compaction", "compaction", {})
        said = [{**self._context.data, "content": self._surroundings}] if self._context and self._surroundings else []
        node.messages, node.kept = [*said, *other], first
        self._renewed = False
        for message in other:
            self._known[message["id"]] = node
        for message, name in zip(messages[len(other) :], before[len(before) - kept :], strict=True):
            self._known[message["id"]] = self._known[name]
        self._list = [message["id"] for message in messages]
        self._tip = node


def _answered(message: Json) -> Iterator[str]:
    """Yield the calls whose results a message has."""
    for content in (message.get("content"), *(call.get("result") for call in _objects(message.get("toolCalls")))):
        yield from (call_id for call_id, _, _ in responses_in(content))


def _is_context(message: Json) -> bool:
    """Return whether the first message of a list is what the program says of the surroundings: its id is a hash, not a UUID."""
    return message.get("type") == "user" and (
        "-" not in message["id"] or _text(message.get("content")).startswith(_CONTEXT)
    )


def _is_same(one: Json, two: Json) -> bool:
    """Return whether two messages are the same, of which one may have lost its id and its usage."""
    if one.get("id") == two.get("id"):
        return True
    return one.get("type") == two.get("type") and _said(one.get("content")) == _said(two.get("content"))


def _said(content: object) -> list[tuple[str, str]]:
    parts = [{"text": content}] if isinstance(content, str) else _objects(content)
    found = [("text", part["text"]) for part in parts if isinstance(part.get("text"), str) and not part.get("thought")]
    return [*found, *(("result", call_id) for call_id, _, _ in responses_in(content))]


# -- entries


def render(data: bytes, stem: str, cwd: str, output: Output) -> Iterator[Entry | Finding]:
    """Yield the header and entries of a file; `output` returns the text of a file that holds a call's whole output."""
    log = Log()
    for row in _rows(data, log.findings):
        log.take(row)
    tails: dict[int, str | None] = {}
    entries: list[Entry] = []
    for node in log.nodes:
        before = None if node.parent is None else tails[id(node.parent)]
        for entry in _entries(node, output):
            entry["parentId"], before = before, entry["id"]
            entries.append(entry)
        tails[id(node)] = before
    leaf = None if log.leaf is None else tails[id(log.leaf)]
    yield _header(log.head, stem, cwd, leaf if entries and leaf != entries[-1]["id"] else None)
    yield from entries
    yield from log.findings


def _rows(data: bytes, findings: list[Finding]) -> Iterator[Json]:
    """Yield the rows of a log, or the document of an older release."""
    offset = 0
    for raw in data.split(b"\n"):
        row = row_of(raw)
        if row:
            yield row
        elif raw.strip():
            if not offset:  # one document over several lines
                try:
                    document = decode(data)
                except (ValueError, RecursionError):
                    document = None
                if isinstance(document, dict):
                    yield document
                    return
            findings.append(Finding("not_json", offset, len(raw), "a row that is not a JSON object"))
        offset += len(raw) + 1


def _header(head: Json, stem: str, cwd: str, leaf: str | None) -> Entry:
    directories = head.get("directories")
    folder = directories[0] if isinstance(directories, list) and directories else ""
    header: Entry = {
        "type": "session",
        "version": 3,
        "id": head["sessionId"] if isinstance(head.get("sessionId"), str) else stem,
        "timestamp": head.get("startTime"),
        "cwd": cwd or (folder if isinstance(folder, str) else ""),
        "title": head.get("summary") if head.get("kind") != "subagent" else None,  # there it is the result
        "format": NAME,
        "modified": head.get("lastUpdated"),
        "leaf": leaf,
        NAME: {name: value for name, value in head.items() if name not in _HEAD},
    }
    return {name: value for name, value in header.items() if value is not None}


def _entries(node: Node, output: Output) -> Iterator[Entry]:
    """Yield the entries of a message: an answer is followed by the results of its calls."""
    stamp = node.data.get("timestamp")
    base: Entry = {"id": node.id, "parentId": None, "timestamp": stamp}
    if node.kind == "removal":
        yield {"type": "context_edit", **base, "targetId": node.data["target"], "replacement": None}
    elif node.kind == "renewal":
        content = blocks_of(node.data["content"])
        replacement = {"content": content} if content else None
        yield {"type": "context_edit", **base, "targetId": node.data["target"], "replacement": replacement}
    elif node.kind == "compaction":
        messages = [message for each in node.messages for message in _messages(each, output)]
        said = (text for each in node.messages if (text := _text(each.get("content"))) and not _is_context(each))
        summary = next(said, "")
        stamp = next((each.get("timestamp") for each in node.messages), None)
        kept = {} if node.kept is None else {"firstKeptEntryId": node.kept.id}
        members = {**base, "timestamp": stamp, "summary": summary, "tokensBefore": 0, **kept}
        yield {"type": "compaction", **members, "replacement": messages}
    elif node.kind == "context":
        content = blocks_of(node.data.get("content"))
        if content:
            yield {
                "type": "custom_message",
                **base,
                "customType": "gemini.context",
                "content": content,
                "display": False,
            }
    else:
        for number, message in enumerate(_messages(node.data, output)):
            name = node.id if not number else f"{node.id}/{message.get('toolCallId') or number}"
            own = {NAME: _rest(node.data)} if not number and _rest(node.data) else {}
            at = message.pop("at", None)
            yield {"type": "message", **base, "id": name, "timestamp": at or stamp, "message": message, **own}
    for note in node.notes:
        yield {
            "type": "custom",
            "id": note["id"],
            "parentId": None,
            "timestamp": note.get("timestamp"),
            "customType": f"gemini.{note.get('type')}",
            "data": note,
        }


def _rest(data: Json) -> Entry:
    known = ("id", "timestamp", "type", "content", "thoughts", "tokens", "model", "toolCalls")
    return {name: value for name, value in data.items() if name not in known}


def _messages(data: Json, output: Output) -> list[Entry]:
    """Return a message of the log in the neutral shape, with the results of its calls."""
    at = parse_timestamp(data.get("timestamp"))
    kind, content = data.get("type"), data.get("content")
    if kind == "user":
        results = [result_of(call_id, name, response, at) for call_id, name, response in responses_in(content)]
        blocks = blocks_of(content)
        if not results:
            return [{"role": "user", "content": blocks, "timestamp": at}]
        results[-1]["content"] += blocks
        return results
    if kind != "gemini":
        return [{"role": "custom", "customType": f"gemini.{kind}", "content": _text(content), "timestamp": at}]
    calls = [call for call in _objects(data.get("toolCalls")) if isinstance(call.get("name"), str)]
    blocks = [*_thoughts(data), *blocks_of(content, calls=not calls)]
    blocks += [{"type": "toolCall", **_call(call)} for call in calls]
    answer: Entry = {"role": "assistant", "content": blocks, "provider": _PROVIDER, "api": _API}
    if isinstance(data.get("model"), str):
        answer["model"] = data["model"]
    answer["usage"] = _usage(data.get("tokens"))
    answer["stopReason"] = "toolUse" if any(block["type"] == "toolCall" for block in blocks) else "stop"
    return [{**answer, "timestamp": at}, *(result for call in calls for result in _results(call, output))]


def _thoughts(data: Json) -> Iterator[Entry]:
    for thought in _objects(data.get("thoughts")):
        subject, text = thought.get("subject"), thought.get("description")
        words = [f"**{subject}**" if subject else "", text if isinstance(text, str) else ""]
        yield {"type": "thinking", "thinking": " ".join(word for word in words if word)}


def _call(call: Json) -> Entry:
    name, given = call["name"], call.get("args")
    return {"id": _plain(call.get("id"), name), "name": name, "arguments": given if isinstance(given, dict) else {}}


def _plain(call_id: object, name: object) -> str:
    """Return the id that the model gave a call: the program stores it after the name of the tool."""
    return call_id.removeprefix(f"{name}__") if isinstance(call_id, str) else ""


def _results(call: Json, output: Output) -> Iterator[Entry]:
    at = parse_timestamp(call.get("timestamp"))
    blocks = blocks_of(call.get("result"))
    details = {name: value for name, value in call.items() if name not in ("id", "name", "args", "result")}
    for call_id, name, response in responses_in(call.get("result")):
        result = result_of(call_id, name, response, at)
        result["content"] += blocks
        result |= {"details": details, "at": call.get("timestamp")}
        whole = output(call_id)
        if whole is not None and whole != details.get("resultDisplay"):
            result["wholeOutput"] = whole
        yield result
        blocks, details = [], {}


def result_of(call_id: str, name: str, response: Json, at: int | None) -> Entry:
    """Return the result of a call as a message."""
    failed = "error" in response
    value = response.get("error" if failed else "output")
    text = value if isinstance(value, str) else msgspec.json.encode(dict(response)).decode()
    return {
        "role": "toolResult",
        "toolCallId": _plain(call_id, name),
        "toolName": name,
        "content": [{"type": "text", "text": text}],
        "isError": failed,
        "timestamp": at,
    }


def responses_in(content: object) -> Iterator[tuple[str, str, Json]]:
    """Yield the id, the tool and the response of each result in a content."""
    for part in _objects(content):
        response = part.get("functionResponse")
        if isinstance(response, Mapping):
            value = response.get("response")
            yield (
                str(response.get("id") or ""),
                str(response.get("name") or ""),
                value if isinstance(value, Mapping) else {},
            )


def blocks_of(content: object, *, calls: bool = True) -> list[Entry]:
    """Return the parts of a content, without results of calls."""
    parts = [{"text": content}] if isinstance(content, str) and content else _objects(content)
    blocks: list[Entry] = []
    for part in parts:
        inline, file, call = (part.get(name) for name in ("inlineData", "fileData", "functionCall"))
        if part.get("thought") is True or "functionResponse" in part:
            continue
        if isinstance(part.get("text"), str):
            blocks.append({"type": "text", "text": part["text"]})
        elif isinstance(inline, Mapping):
            kind = str(inline.get("mimeType") or "")
            shape = "image" if kind.startswith("image/") else "audio" if kind.startswith("audio/") else "document"
            blocks.append({"type": shape, "mimeType": kind, "data": inline.get("data")})
        elif isinstance(file, Mapping):
            blocks.append({"type": "document", "mimeType": file.get("mimeType"), "url": file.get("fileUri")})
        elif isinstance(call, Mapping):
            if calls and isinstance(call.get("name"), str):
                signed = {"thoughtSignature": part["thoughtSignature"]} if part.get("thoughtSignature") else {}
                blocks.append({"type": "toolCall", **_call(call), **signed})
        else:
            blocks.append({"type": "other", "api": _API, "value": dict(part)})
    return blocks


def _usage(tokens: object) -> Entry:
    """Return the usage of an answer; the program counts cached tokens as input, and thoughts apart from the output."""
    if not isinstance(tokens, Mapping):
        return {}
    found = {name: value for name, value in tokens.items() if isinstance(value, int) and not isinstance(value, bool)}
    usage: Entry = {"cacheRead": found.get("cached"), "cacheWrite": 0, "totalTokens": found.get("total")}
    if "input" in found:
        usage["input"] = found["input"] - found.get("cached", 0)
    if "output" in found:
        usage |= {"output": found["output"] + found.get("thoughts", 0), "reasoning": found.get("thoughts", 0)}
    return {name: value for name, value in usage.items() if value is not None}


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in _objects(content) if isinstance(part.get("text"), str))


def _objects(value: object) -> Sequence[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
