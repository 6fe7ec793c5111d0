"""Scripts of made-up sessions: a transcript as a person would jot it down, told as the entries of a session.

A script has one mark at the start of each line:

    > what the user says, `[image]` for a picture         ? what the model thinks         < what the model answers
    $ tool argument                                       $! the same, and it fails       | a line of its output
    :word rest     anything else: `:model`, `:level`, `:label`, `:back`, … (the tables at the end of this module)

A line that begins with two spaces goes on with the text before it. `@deadbee1 > …` gives the entry that id, so that others can
name it. Thinking, answer and calls that follow each other are one message. `edit` and `write` take the lines below them as
what is changed: `|-old`, `|+new`.

Ids, pauses, tokens and prices come from the name of the session and its text alone: telling a script twice gives the same
entries. When the session took place is not known here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from sessile.core import entries as make
from sessile.core.codec import decode, encode
from sessile.core.entries import Payload
from sessile.core.ids import derived_entry_id

_SYSTEM = 4_000  # tokens of the system prompt and the tools
_WEIGHT = 98  # the stories are short; what their tools read and print would not be
_LINE = re.compile(r"(?:@(\w{8}) )?([>?<:]|\$!?) ?(.*)")
_IMAGE = " [image]"
# Milliseconds before a message.
_PAUSES = {"user": (35_000, 210_000), "assistant": (3_000, 24_000), "toolResult": (900, 5_000)}

# A chart of 240×140 pixels: failed deliveries by hour, a few at first, then a mountain.
_CHART = (
    "iVBORw0KGgoAAAANSUhEUgAAAPAAAACMAgMAAAA/28y7AAAADFBMVEX////d3d1KeL7IPDL0nPFBAAAAoUlEQVR42u3ZvQ3CMBRF4Qi6NOzBEqxAE6Vk"
    "FBiFEt0pWII90qQLumAELpD4eakc5ZzS9lfY1ZNcVUREU68Z0ZZno7dsg8FgMBj8vaU9gANzWGtfmzseNYfN+rU39hkMBoPBYPCzld0VgtNCKfjzDLaz"
    "+zyH7e1LWvh3Div6zmAw+IEX0ukXXEuHKM5bEZzOZiwpjGvpGMavszPCfIIQFdINHDvp12EiK1oAAAAASUVORK5CYII="
)

# How each model is reached, and its prices for a million tokens: input, output, read from the cache, written to it.
MODELS = {
    "anthropic/claude-opus-4-5": ("anthropic-messages", 5, 25, 0.5, 6.25),
    "anthropic/claude-sonnet-4-5": ("anthropic-messages", 3, 15, 0.3, 3.75),
    "openai/gpt-5.1": ("openai-responses", 1.25, 10, 0.125, 0),
    "google/gemini-3-pro": ("google-generative-ai", 2, 12, 0.2, 0),
    "ollama/qwen3-coder:30b": ("openai-completions", 0, 0, 0, 0),
}

# The argument of each tool that the rest of its line is.
_ARGUMENTS = {"bash": "command", "edit": "path", "grep": "pattern", "read": "path", "write": "path"}


class Step(NamedTuple):
    """One entry of a told session, `at` milliseconds after its beginning. A torn one was never written to its end."""

    entry_id: str
    parent_id: str | None
    at: int
    payload: Payload
    torn: bool = False


class _Block(NamedTuple):
    """A marked line with all that belongs to it."""

    entry_id: str | None
    mark: str
    text: str
    output: str


class _Standing(NamedTuple):
    """Where the conversation stands after an entry: the model that is asked, what it would read, what of it is cached."""

    model: str = "anthropic/claude-sonnet-4-5"
    tokens: int = _SYSTEM
    cached: int = 0


def tell(name: str, script: str, begun: Sequence[Step] = ()) -> list[Step]:
    """The entries of a script, after those with which the session began."""
    teller = _Teller(name, begun)
    for block in _blocks(script):
        teller.add(block)
    teller.answer()
    return teller.steps


def draw(low: int, high: int, *parts: object) -> int:
    """A number from a range, the same for the same parts."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return low + int.from_bytes(digest[:6], "big") % (high - low + 1)


def answer(model: str, content: list[Payload], cached: int, read: int, written: int) -> Payload:
    """A model's message: `read` tokens were before it, some of them cached."""
    provider, _, model_id = model.partition("/")
    api, *prices = MODELS[model]
    new = {"input": 0, "cacheWrite": read - cached} if prices[-1] else {"input": read - cached, "cacheWrite": 0}
    amounts = {"input": new["input"], "output": written, "cacheRead": cached, "cacheWrite": new["cacheWrite"]}
    cost = {part: amount * price / 1e6 for (part, amount), price in zip(amounts.items(), prices, strict=True)}
    usage = {**amounts, "totalTokens": read + written, "cost": {**cost, "total": sum(cost.values())}}
    stop = "toolUse" if content and content[-1]["type"] == "toolCall" else "stop"
    served = {"api": api, "provider": provider, "model": model_id}
    return {"role": "assistant", "content": content, **served, "usage": usage, "stopReason": stop}


def tool_call(call_id: str, tool: str, arguments: Payload) -> Payload:
    """The part of an answer that calls a tool."""
    return {"type": "toolCall", "id": call_id, "name": tool, "arguments": arguments}


def tool_result(call_id: str, tool: str, output: str, failed: bool = False, details: Any = None) -> Payload:
    """The message with which a tool answers."""
    message: Payload = {"role": "toolResult", "toolCallId": call_id, "toolName": tool, "content": text_of(output)}
    return message | ({"details": details} if details else {}) | {"isError": failed}


def text_of(text: str) -> list[Payload]:
    """A text as the content of a message."""
    return [{"type": "text", "text": text}]


def _blocks(script: str) -> Iterator[_Block]:
    block: _Block | None = None
    for line in filter(None, script.split("\n")):
        if block is not None and line.startswith("|"):
            block = block._replace(output=f"{block.output}\n{line[1:]}" if block.output else line[1:])
        elif block is not None and line.startswith("  "):
            block = block._replace(text=f"{block.text}\n{line[2:]}")
        elif match := _LINE.fullmatch(line):
            if block is not None:
                yield block
            block = _Block(match[1], match[2], match[3], "")
        else:
            raise ValueError(f"no script has a line {line!r}")
    if block is not None:
        yield block


class _Teller:
    """Appends one entry after another, as a session does."""

    def __init__(self, name: str, begun: Sequence[Step]) -> None:
        self.steps: list[Step] = []
        self._name = name
        self._leaf: str | None = None
        self._at = 0
        self._after: dict[str | None, _Standing] = {None: _Standing()}
        self._parts: list[_Block] = []  # of the answer that is not complete yet
        for step in begun:
            self._take(step)

    def add(self, block: _Block) -> None:
        """Tell the next block."""
        goes_on = block.mark in ("$", "$!") or (block.mark == "<" and self._parts and self._parts[-1].mark == "?")
        if not goes_on:
            self.answer()
        if block.mark in ("?", "<", "$", "$!"):
            self._parts.append(block)
        elif block.mark == ">":
            self._append(make.message({"role": "user", "content": _said(block.text)}), block.entry_id)
        else:
            self._obey(block)

    def answer(self) -> None:
        """Tell the answer that is complete now, and what its tools gave."""
        parts, self._parts = self._parts, []
        content: list[Payload] = []
        results = []
        for number, part in enumerate(parts):
            if part.mark == "?":
                content.append({"type": "thinking", "thinking": part.text})
            elif part.mark == "<":
                content += text_of(part.text)
            else:
                call_id = "call_" + derived_entry_id(self._name, "call", len(self.steps), number)
                call, result = _call(call_id, part)
                content.append(call)
                results.append(result)
        if content:
            standing = self._after[self._leaf]
            written = len(encode({"content": content})) // 3
            message = answer(standing.model, content, standing.cached, standing.tokens, written)
            self._append(make.message(message), next((part.entry_id for part in parts if part.entry_id), None))
        for result in results:
            self._append(make.message(result))

    def _append(self, payload: Payload, entry_id: str | None = None) -> None:
        number = len(self.steps)
        low, high = _PAUSES.get(payload.get("message", {}).get("role"), (150, 1_000))
        pause = draw(low, high, self._name, number, "pause")
        self._take(Step(entry_id or derived_entry_id(self._name, number), self._leaf, self._at + pause, payload))

    def _take(self, step: Step) -> None:
        self.steps.append(step)
        self._leaf, self._at = step.entry_id, step.at
        standing, payload = self._after[step.parent_id], step.payload
        if payload["type"] == "message":
            role = payload["message"]["role"]
            weight = _WEIGHT if role == "toolResult" else 1
            tokens = standing.tokens + weight * len(encode(payload["message"])) // 4
            standing = _Standing(standing.model, tokens, standing.tokens if role == "assistant" else standing.cached)
        elif payload["type"] == "model_change":
            standing = _Standing(payload["model"], standing.tokens)
        elif payload["type"] == "compaction":
            kept = standing.tokens - self._after[payload["firstKeptEntryId"]].tokens
            standing = _Standing(standing.model, _SYSTEM + len(payload["summary"]) // 4 + kept)
        self._after[step.entry_id] = standing

    def _obey(self, block: _Block) -> None:
        word, _, rest = block.text.partition(" ")
        if word in _MESSAGES:
            self._append(make.message(_MESSAGES[word](rest, block.output)), block.entry_id)
        elif word in _ENTRIES:
            self._append(_ENTRIES[word](rest), block.entry_id)
        else:
            _MOVES[word](self, rest)

    def back(self, rest: str) -> None:
        """Go on from an earlier entry; what was learned on the branch that is left may be summed up."""
        target, _, summary = rest.partition(" ")
        self._leaf = target
        if summary:
            self._append(make.branch_summary(target, summary))

    def compact(self, rest: str) -> None:
        """Sum up everything before an entry."""
        kept, _, summary = rest.partition(" ")
        short = summary.split("\n")[0].strip("# ")
        self._append(make.compaction(summary, kept, self._after[self._leaf].tokens, short_summary=short))

    def tear(self, _: str) -> None:
        """The last entry was never written to its end: whoever opens the file again goes on from the one before."""
        torn = self.steps[-1]
        self.steps[-1] = torn._replace(torn=True)
        self._leaf = torn.parent_id

    def fail(self, rest: str) -> None:
        """The provider gave an error instead of an answer."""
        message = answer(self._after[self._leaf].model, [], cached=0, read=0, written=0)
        self._append(make.message(message | {"stopReason": "error", "errorMessage": rest}))


def _said(text: str) -> Any:
    if not text.endswith(_IMAGE):
        return text
    return [*text_of(text.removesuffix(_IMAGE)), {"type": "image", "data": _CHART, "mimeType": "image/png"}]


def _call(call_id: str, block: _Block) -> tuple[Payload, Payload]:
    """A call and its result."""
    tool, _, rest = block.text.partition(" ")
    arguments = decode(rest.encode()) if rest.startswith("{") else {_ARGUMENTS[tool]: rest}
    output, details = block.output, None
    if tool == "edit":
        changes = output.split("\n")
        arguments |= {"oldText": _side(changes, "-"), "newText": _side(changes, "+")}
        details = {"diff": output}
        output = f"Successfully replaced text in {rest}."
    elif tool == "write":
        arguments["content"] = output
        output = f"Successfully wrote {len(output.encode())} bytes to {rest}"
    result = tool_result(call_id, tool, output, failed=block.mark == "$!", details=details)
    return tool_call(call_id, tool, arguments), result


def _side(changes: list[str], mark: str) -> str:
    return "\n".join(line[1:] for line in changes if line[:1] in (mark, " "))


_ENDED = {"exitCode": 0, "cancelled": False, "truncated": False}
_MESSAGES: dict[str, Callable[[str, str], Payload]] = {
    "bash": lambda command, output: {"role": "bashExecution", "command": command, "output": output, **_ENDED},
    "python": lambda code, output: {"role": "pythonExecution", "code": code, "output": output, **_ENDED},
    "file": lambda path, text: {"role": "fileMention", "files": [{"path": path, "content": text}]},
    "message": lambda rest, _: dict(decode(rest.encode())),
}
_ENTRIES: dict[str, Callable[[str], Payload]] = {
    "level": make.thinking_level_change,
    "model": make.model_change,
    "name": make.session_info,
    "mode": make.mode_change,
    "label": lambda rest: make.label(*rest.split(" ", 1)),
    "rules": lambda rest: make.ttsr_injection(rest.split(", ")),
    "entry": lambda rest: dict(decode(rest.encode())),
}
_MOVES: dict[str, Callable[[_Teller, str], None]] = {
    "back": _Teller.back,
    "compact": _Teller.compact,
    "fail": _Teller.fail,
    "torn": _Teller.tear,
}
