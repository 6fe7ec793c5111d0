"""Scripts of made-up sessions: a transcript in a short notation, turned into the entries of a session.

Each line of a script starts with a mark:

    > a prompt; a trailing `[image]` attaches a picture   ? the model's thinking          < the model's answer
    $ tool argument                                       $! the same, but it fails       | a line of the tool's output
    :word rest     anything else: `:model`, `:level`, `:label`, `:back`, … (see the tables at the end of this module)

A line that starts with two spaces continues the text above it. `@deadbee1 > …` gives the entry that id, so that other lines can
refer to it. Consecutive thinking, answer and calls are one message. `edit` and `write` take the lines below them as the change:
`|-old`, `|+new`.

Ids, pauses, tokens and prices are derived from the name of the session and its text: the same script always gives the same
entries. Times are relative to the start of the session.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from sessile.core import entries as make
from sessile.core.codec import decode, encode
from sessile.core.entries import Payload
from sessile.core.ids import derived_entry_id

# API of each model, and its prices for a million tokens: input, output, cache read, cache write.
MODELS = {
    "anthropic/claude-opus-4-5": ("anthropic-messages", 5, 25, 0.5, 6.25),
    "anthropic/claude-sonnet-4-5": ("anthropic-messages", 3, 15, 0.3, 3.75),
    "openai/gpt-5.1": ("openai-responses", 1.25, 10, 0.125, 0),
    "google/gemini-3-pro": ("google-generative-ai", 2, 12, 0.2, 0),
    "ollama/qwen3-coder:30b": ("openai-completions", 0, 0, 0, 0),
}

_SYSTEM_TOKENS = 4_000  # of the system prompt and the tools
_RESULT_WEIGHT = 98  # scripts are short; real tools read and print much more
_LINE = re.compile(r"(?:@(\w{8}) )?([>?<:]|\$!?) ?(.*)")
_IMAGE = " [image]"
# Milliseconds before a message, by role.
_PAUSES = {"user": (35_000, 210_000), "assistant": (3_000, 24_000), "toolResult": (900, 5_000)}
# The argument of each tool that the rest of its line stands for.
_ARGUMENTS = {"bash": "command", "edit": "path", "grep": "pattern", "read": "path", "write": "path"}


class Step(NamedTuple):
    """An entry of a made-up session, `at` milliseconds after its start. A torn entry was not written completely."""

    entry_id: str
    parent_id: str | None
    at: int
    payload: Payload
    torn: bool = False


def play(name: str, script: str, copied: Sequence[Step] = ()) -> list[Step]:
    """Return the entries of a script, after the entries that the session was forked with."""
    player = _Player(name, copied)
    for block in _blocks(script):
        player.add(block)
    player.finish_answer()
    return player.steps


def draw(low: int, high: int, *parts: object) -> int:
    """Return a number in a range; the same parts give the same number."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return low + int.from_bytes(digest[:6], "big") % (high - low + 1)


def answer(model: str, content: list[Payload], cached: int, read: int, written: int) -> Payload:
    """Return a model's message. It read `read` tokens, `cached` of them from the cache."""
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
    """Return the content block that calls a tool."""
    return {"type": "toolCall", "id": call_id, "name": tool, "arguments": arguments}


def tool_result(call_id: str, tool: str, output: str, failed: bool = False, details: Any = None) -> Payload:
    """Return the message that answers a call."""
    message: Payload = {"role": "toolResult", "toolCallId": call_id, "toolName": tool, "content": text_of(output)}
    return message | ({"details": details} if details else {}) | {"isError": failed}


def text_of(text: str) -> list[Payload]:
    """Return a text as the content of a message."""
    return [{"type": "text", "text": text}]


@cache
def story_file(name: str) -> bytes:
    """Return one of the files that the stories are in."""
    return files("sessile.demo").joinpath("stories", name).read_bytes()


# -- reading a script


class _Block(NamedTuple):
    """A marked line and the lines that belong to it."""

    entry_id: str | None
    mark: str
    text: str
    output: str


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
            raise ValueError(f"invalid line in a script: {line!r}")
    if block is not None:
        yield block


# -- playing it


class _Situation(NamedTuple):
    """The conversation after an entry: its model, the size of its context, and how much of that is cached."""

    model: str = "anthropic/claude-sonnet-4-5"
    tokens: int = _SYSTEM_TOKENS
    cached: int = 0


class _Player:
    """Appends one entry after another, as a session does."""

    def __init__(self, name: str, copied: Sequence[Step]) -> None:
        self.steps: list[Step] = []
        self._name = name
        self._leaf: str | None = None
        self._at = 0
        self._after: dict[str | None, _Situation] = {None: _Situation()}
        self._parts: list[_Block] = []  # of the answer that is not complete yet
        for step in copied:
            self._add_step(step)

    def add(self, block: _Block) -> None:
        """Play the next block."""
        continues = block.mark in ("$", "$!") or (block.mark == "<" and self._parts and self._parts[-1].mark == "?")
        if not continues:
            self.finish_answer()
        if block.mark in ("?", "<", "$", "$!"):
            self._parts.append(block)
        elif block.mark == ">":
            self._append(make.message({"role": "user", "content": _prompt(block.text)}), block.entry_id)
        else:
            self._command(block)

    def finish_answer(self) -> None:
        """Append the answer collected so far and the results of its tools."""
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
            situation = self._after[self._leaf]
            written = len(encode({"content": content})) // 3
            message = answer(situation.model, content, situation.cached, situation.tokens, written)
            self._append(make.message(message), next((part.entry_id for part in parts if part.entry_id), None))
        for result in results:
            self._append(make.message(result))

    def _append(self, payload: Payload, entry_id: str | None = None) -> None:
        number = len(self.steps)
        low, high = _PAUSES.get(payload.get("message", {}).get("role"), (150, 1_000))
        pause = draw(low, high, self._name, number, "pause")
        self._add_step(Step(entry_id or derived_entry_id(self._name, number), self._leaf, self._at + pause, payload))

    def _add_step(self, step: Step) -> None:
        self.steps.append(step)
        self._leaf, self._at = step.entry_id, step.at
        before, payload = self._after[step.parent_id], step.payload
        after = before
        if payload["type"] == "message":
            role = payload["message"]["role"]
            weight = _RESULT_WEIGHT if role == "toolResult" else 1
            tokens = before.tokens + weight * len(encode(payload["message"])) // 4
            after = _Situation(before.model, tokens, before.tokens if role == "assistant" else before.cached)
        elif payload["type"] == "model_change":
            after = _Situation(payload["model"], before.tokens)
        elif payload["type"] == "compaction":
            kept = before.tokens - self._after[payload["firstKeptEntryId"]].tokens
            after = _Situation(before.model, _SYSTEM_TOKENS + len(payload["summary"]) // 4 + kept)
        self._after[step.entry_id] = after

    def _command(self, block: _Block) -> None:
        word, _, rest = block.text.partition(" ")
        if word in _MESSAGES:
            self._append(make.message(_MESSAGES[word](rest, block.output)), block.entry_id)
        elif word in _ENTRIES:
            self._append(_ENTRIES[word](rest), block.entry_id)
        else:
            _MOVES[word](self, rest)

    def back(self, rest: str) -> None:
        """Continue from an earlier entry, optionally with a summary of the branch that is left."""
        target, _, summary = rest.partition(" ")
        self._leaf = target
        if summary:
            self._append(make.branch_summary(target, summary))

    def compact(self, rest: str) -> None:
        """Summarize everything before an entry."""
        kept, _, summary = rest.partition(" ")
        short = summary.split("\n")[0].strip("# ")
        self._append(make.compaction(summary, kept, self._after[self._leaf].tokens, short_summary=short))

    def tear(self, _: str) -> None:
        """Cut off the last entry, as a crash does. The session continues from the entry before it."""
        torn = self.steps[-1]
        self.steps[-1] = torn._replace(torn=True)
        self._leaf = torn.parent_id

    def fail(self, rest: str) -> None:
        """Append an error of the provider instead of an answer."""
        message = answer(self._after[self._leaf].model, [], cached=0, read=0, written=0)
        self._append(make.message(message | {"stopReason": "error", "errorMessage": rest}))


def _prompt(text: str) -> Any:
    if not text.endswith(_IMAGE):
        return text
    chart = base64.b64encode(story_file("chart.png")).decode()  # failed deliveries by hour, with one large peak
    return [*text_of(text.removesuffix(_IMAGE)), {"type": "image", "data": chart, "mimeType": "image/png"}]


def _call(call_id: str, block: _Block) -> tuple[Payload, Payload]:
    """Return a call and its result."""
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


# -- words after a colon

_EXIT = {"exitCode": 0, "cancelled": False, "truncated": False}
_MESSAGES: dict[str, Callable[[str, str], Payload]] = {
    "bash": lambda command, output: {"role": "bashExecution", "command": command, "output": output, **_EXIT},
    "python": lambda code, output: {"role": "pythonExecution", "code": code, "output": output, **_EXIT},
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
_MOVES: dict[str, Callable[[_Player, str], None]] = {
    "back": _Player.back,
    "compact": _Player.compact,
    "fail": _Player.fail,
    "torn": _Player.tear,
}
