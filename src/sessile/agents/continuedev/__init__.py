"""Continue CLI: one JSON document for each session, which is rewritten as a whole.

    ~/.continue/sessions/<id>.json       title, folder, and the items of the history
    ~/.continue/sessions/sessions.json   the program's own list, made from them

An item of the history has a message, the states of its tool calls with their outputs, and things that were attached. There are no
ids and no times, so an entry is named by its content and how often that occurred before. A compaction replaces the history by one
item with the summary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sessile.agents.base import Agent, Entry, row_of
from sessile.core.codec import decode, encode_plain
from sessile.core.ids import sha256
from sessile.core.lines import Finding
from sessile.core.providers import Dialect
from sessile.storage import atomic
from sessile.storage.formats import Stored
from sessile.storage.layout import LEGACY, LIST, Source, stem_of
from sessile.storage.walk import mark_of

if TYPE_CHECKING:
    from sessile.storage.base import Filesystem

_LARGEST = 1 << 30  # bytes of a document
_HEAD = ("sessionId", "title", "workspaceDirectory", "history")
_ENDED = ("done", "errored", "canceled")

Json = Mapping[str, Any]


class Continue(Agent):
    """Continue CLI: `~/.continue`. It resumes by id only into a copy."""

    name = "continue"
    title = "Continue"
    command = ("cn", "--fork")
    resumes_by_id = True
    rendered = True
    variables = (("CONTINUE_GLOBAL_DIR", "~/.continue"),)
    dialect = Dialect(
        "continue",
        gaps=(
            "system prompt: Continue does not store it",
            "tools: Continue does not store their descriptions",
            "turns: Continue does not store turns that failed or were stopped, and deletes what it has compacted",
        ),
        failures=False,
    )

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the folder with the documents."""
        root = environ.get("CONTINUE_GLOBAL_DIR") or f"{home}/.continue"
        return [Source(self.name, root, f"{root}/sessions")]

    def stored(self, fs: Filesystem, place: str) -> Iterable[Stored]:
        """Yield every document."""
        for name in fs.names(place):
            if name.endswith(LEGACY) and name != LIST and not name.startswith("."):
                yield Stored(f"{place}/{name}", mark_of(fs.lstat(f"{place}/{name}")))

    def renders(self, path: str, first: bytes) -> bool:
        """Return whether a file starts like a document of a session."""
        return first.lstrip().startswith(b"{") and b'"sessionId"' in first and b'"workspaceDirectory"' in first

    def render(self, fs: Filesystem, path: str) -> Iterator[Entry | Finding]:
        """Yield the items of a document."""
        if fs.lstat(path).st_size > _LARGEST:
            raise ValueError(f"the document is larger than {_LARGEST} bytes")
        data = atomic.read_all(fs, path)
        document = row_of(data)
        if not document:
            raise ValueError("the document is not complete JSON; the program may be writing it")
        saved = fs.lstat(path).st_mtime_ns // 1_000_000
        return _Rendering(saved).lines(document, stem_of(path))


class _Rendering:
    """Turns one document into entries."""

    def __init__(self, saved: int) -> None:
        self._saved = saved  # when the document was last written, in milliseconds
        self._last: str | None = None
        self._seen: dict[bytes, int] = {}

    def lines(self, document: Json, stem: str) -> Iterator[Entry | Finding]:
        session_id = document.get("sessionId")
        header: Entry = {
            "type": "session",
            "version": 3,
            "id": session_id if isinstance(session_id, str) and session_id else stem,
            "cwd": document.get("workspaceDirectory") or "",
            "title": document.get("title"),
            "format": Continue.name,
            Continue.name: {name: value for name, value in document.items() if name not in _HEAD},
        }
        yield {name: value for name, value in header.items() if value is not None}
        history = document.get("history")
        if not isinstance(history, list):
            yield Finding("damaged_source", -1, 0, "the document has no history")
            return
        for number, item in enumerate(history):
            if isinstance(item, dict) and isinstance(item.get("message"), dict):
                yield from self._item(item, item["message"])
            else:
                yield Finding("damaged_source", -1, 0, f"item {number} of the history is not a message")

    def _item(self, item: Json, message: Json) -> Iterator[Entry]:
        role, content = message.get("role"), _blocks(message.get("content"))
        own = {name: value for name, value in item.items() if name not in ("message", "toolCallStates") and value}
        if own.get("editorState") == message.get("content"):
            del own["editorState"]
        extra: Entry = {Continue.name: own} if own else {}
        summary = item.get("conversationSummary")
        if isinstance(summary, str) and summary:
            stated: Entry = {"role": "assistant", "content": [{"type": "text", "text": summary}], "stopReason": "stop"}
            yield self._entry("compaction", summary, summary=summary, tokensBefore=0, replacement=[stated], **extra)
            if role == "assistant" and message.get("content") == summary:
                return
        if role == "assistant":
            states = {str(state.get("toolCallId")): state for state in _objects(item.get("toolCallStates"))}
            calls = [_call(call, states) for call in _objects(message.get("toolCalls"))]
            usage = message.get("usage")
            answer: Entry = {"role": "assistant", "content": [*content, *calls]}
            if isinstance(usage, Mapping):
                answer |= {"usage": _usage(usage)}
                if isinstance(usage.get("model"), str):
                    answer["model"] = usage["model"]
            answer["stopReason"] = "toolUse" if calls else "stop"
            # Items have no times. So that usage can be counted by days, that of the document is taken.
            yield self._entry("message", answer, message={**answer, "timestamp": self._saved}, **extra)
            for call in calls:
                state = states.get(call["id"], {})
                if (result := _result(call, state)) is not None:
                    yield self._entry("message", result, message=result)
        elif role == "user":
            yield self._entry("message", content, message={"role": "user", "content": content}, **extra)
        elif role == "tool":
            result = {
                "role": "toolResult",
                "toolCallId": message.get("toolCallId") or "",
                "toolName": "",
                "content": content,
            }
            yield self._entry("message", result, message={**result, "isError": False}, **extra)
        else:
            yield self._entry("custom", dict(item), customType=f"continue.{role}", data=dict(item))

    def _entry(self, kind: str, named_by: object, **members: Any) -> Entry:
        """Return an entry that follows the last one, with an id made from its content."""
        digest = sha256(kind.encode() + encode_plain({"of": named_by})).digest()[:8]
        count = self._seen[digest] = self._seen.get(digest, 0) + 1
        entry_id = digest.hex() if count == 1 else f"{digest.hex()}-{count}"
        entry: Entry = {"type": kind, "id": entry_id, "parentId": self._last, **members}
        self._last = entry_id
        return entry


def _call(call: Json, states: Mapping[str, Json]) -> Entry:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    call_id = str(call.get("id") or "")
    given: object = states.get(call_id, {}).get("parsedArgs")
    if isinstance(function.get("arguments"), str):
        try:
            given = decode(function["arguments"].encode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError):
            given = {"input": function["arguments"]}
    arguments = given if isinstance(given, dict) else {}
    return {"type": "toolCall", "id": call_id, "name": str(function.get("name") or ""), "arguments": arguments}


def _result(call: Json, state: Json) -> Entry | None:
    """Return the result of a call; none if it has not ended."""
    output = _objects(state.get("output"))
    if not output and state.get("status") not in _ENDED:
        return None
    return {
        "role": "toolResult",
        "toolCallId": call["id"],
        "toolName": call["name"],
        "content": [{"type": "text", "text": str(each.get("content") or "")} for each in output],
        "isError": state.get("status") == "errored",
    }


def _blocks(content: object) -> list[Entry]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    blocks: list[Entry] = []
    for part in _objects(content):
        address = part.get("imageUrl")
        url = address.get("url") if isinstance(address, Mapping) else None
        if isinstance(part.get("text"), str):
            blocks.append({"type": "text", "text": part["text"]})
        elif isinstance(url, str) and url.startswith("data:"):
            kind, _, data = url.removeprefix("data:").partition(";base64,")
            blocks.append({"type": "image", "mimeType": kind, "data": data})
        elif isinstance(url, str):
            blocks.append({"type": "image", "url": url})
        else:
            blocks.append({"type": "other", "api": Continue.name, "value": dict(part)})
    return blocks


def _usage(usage: Json) -> Entry:
    """Return the usage of an answer. Costs are in whole cents, most of them zero, so they are left out."""
    details = usage.get("prompt_tokens_details")
    details = details if isinstance(details, Mapping) else {}
    cached, written = details.get("cached_tokens"), details.get("cache_write_tokens")
    total, given = usage.get("total_tokens"), usage.get("prompt_tokens")
    found: Entry = {"output": usage.get("completion_tokens"), "cacheRead": cached, "cacheWrite": written}
    if isinstance(given, int):
        # OpenAI counts cached tokens as input, Anthropic does not.
        apart = "cache_read_tokens" in details
        found["input"] = given if apart or not isinstance(cached, int) else given - cached
        if isinstance(total, int):
            found["totalTokens"] = total + sum(each for each in (cached, written) if apart and isinstance(each, int))
    return {name: value for name, value in found.items() if isinstance(value, int)}


def _objects(value: object) -> Sequence[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
