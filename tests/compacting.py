"""Paths for the tests of compaction: short constructors, random paths, and their steps as a journal returns them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, NamedTuple

from builders import AT, AT_MS, Json
from sessile.core.codec import encode
from sessile.core.compaction import CompactionSettings, Preparation, prepare
from sessile.core.kinds import flags_of
from sessile.core.lines import read_head

LATER = AT_MS + 1000
NO_USAGE = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 0}


class Step(NamedTuple):
    """An entry of a path as a journal returns it, with the entry itself in place of its position."""

    id: str
    flags: int
    entry: Json


def read(step: Step) -> Json:
    """Decode the entry of a step."""
    return step.entry


def steps_of(path: Iterable[Json]) -> list[Step]:
    """Return the steps, leaf first, of a path that is given root first."""
    return [Step(entry["id"], flags_of(read_head(encode(entry))), entry) for entry in path][::-1]


def prepared(path: Iterable[Json], keep: float, **options: Any) -> Preparation[Step] | None:
    """Return the preparation of a path (root first) with the given number of tokens to keep."""
    return prepare(steps_of(path), read, CompactionSettings(keep_recent_tokens=keep), **options)


def chained(*payloads: Json, start: int = 0, parent: str | None = None) -> list[Json]:
    """Return payloads as the entries e0, e1, … of one path."""
    entries = []
    for number, payload in enumerate(payloads, start):
        entry_id = f"e{number}"
        entries.append({"type": payload["type"], "id": entry_id, "parentId": parent, "timestamp": AT, **payload})
        parent = entry_id
    return entries


def words(tokens: int) -> str:
    """Return a text with the given number of tokens by the documented estimate."""
    return "x" * (4 * tokens)


def said(tokens: int) -> Json:
    return _message({"role": "user", "content": words(tokens)})


def answered(tokens: int, *calls: str, usage: int | None = None, stop: str = "stop", at: int = AT_MS) -> Json:
    """Return an answer that calls tools; the calls take almost no tokens."""
    blocks: list[Json] = [{"type": "text", "text": words(tokens)}] if tokens else []
    blocks += [{"type": "toolCall", "id": call, "name": "t", "arguments": {}} for call in calls]
    used = NO_USAGE if usage is None else {**NO_USAGE, "input": usage, "totalTokens": usage}
    model = {"api": "a", "provider": "p", "model": "m"}
    return _message(
        {"role": "assistant", "content": blocks, **model, "usage": used, "stopReason": stop, "timestamp": at}
    )


def result(tokens: int, call: str) -> Json:
    content = [{"type": "text", "text": words(tokens)}]
    return _message({"role": "toolResult", "toolCallId": call, "toolName": "t", "content": content, "isError": False})


def ran(tokens: int, **members: Any) -> Json:
    return _message({"role": "bashExecution", "command": words(tokens), "output": "", "exitCode": 0, **members})


def instructed(tokens: int) -> Json:
    return _message({"role": "system", "content": words(tokens)})


def injected(tokens: int) -> Json:
    return {"type": "custom_message", "customType": "x", "content": words(tokens), "display": True}


def came_back(tokens: int) -> Json:
    return {"type": "branch_summary", "fromId": "x", "summary": words(tokens)}


def compacted(first: str | None, tokens: int = 1, **members: Any) -> Json:
    kept = {} if first is None else {"firstKeptEntryId": first}
    return {"type": "compaction", "summary": words(tokens), **kept, "tokensBefore": 1, **members}


def edited(target: str, content: str | None) -> Json:
    return {
        "type": "context_edit",
        "targetId": target,
        "replacement": None if content is None else {"content": content},
    }


def _message(message: Json) -> Json:
    return {"type": "message", "message": {"timestamp": AT_MS, **message}}


THOUGHT = {"type": "thinking_level_change", "thinkingLevel": "high"}
LABEL = {"type": "label", "targetId": "e0", "label": "l"}
NOTE = {"type": "custom", "customType": "x", "data": {}}
RESET = {"type": "reset_boundary"}


class Conversations:
    """Random paths: turns with tools, metadata anywhere, edits and, on request, damaged sequences."""

    def __init__(self, random: Random, *, wild: bool = False) -> None:
        self._random = random
        self._wild = wild
        self._calls = 0
        self.tree: list[Json] = []  # all entries
        self.entries: list[Json] = []  # entries of the path

    def add(self, payload: Json) -> str:
        """Append an entry to the path and return its id."""
        parent = self.entries[-1]["id"] if self.entries else None
        entries = chained(payload, start=len(self.tree), parent=parent)
        self.tree += entries
        self.entries += entries
        return str(entries[0]["id"])

    def go_back(self) -> None:
        """Continue from an earlier entry of the path."""
        if self.entries:
            self.entries = self.entries[: self._random.randrange(len(self.entries)) + 1]

    def grow(self, turns: int) -> Sequence[Json]:
        """Append some turns and return the whole path."""
        for _ in range(turns):
            self._turn()
        return self.entries

    def _size(self) -> int:
        return self._random.choice((0, 1, 3, 10, 40))

    def _turn(self) -> None:
        start: Sequence[Callable[[int], Json]] = (said, said, said, said, ran, injected, came_back)
        self.add(self._random.choice(start)(self._size()))
        self._metadata()
        for _ in range(self._random.randrange(4)):
            self._tools()
        if self._random.random() < 0.9:
            stop = self._random.choice(("stop", "stop", "stop", "error", "aborted"))
            usage = self._random.choice((None, None, self._random.randrange(1, 500)))
            self.add(answered(self._size(), usage=usage, stop=stop))
        self._metadata()
        if self._random.random() < 0.15:
            self._edit()

    def _tools(self) -> None:
        calls = [f"c{self._calls + number}" for number in range(self._random.randrange(1, 4))]
        self._calls += len(calls)
        self.add(answered(self._size(), *calls))
        for call in calls:
            if self._wild and self._random.random() < 0.2:
                self.add(self._random.choice((said, injected, answered))(self._size()))
            if not self._wild or self._random.random() < 0.9:
                self.add(result(self._size(), call))
            self._metadata()
        if self._wild and self._random.random() < 0.1:
            self.add(result(self._size(), "nobody"))
        if self._wild and self._random.random() < 0.05:
            self.add(ran(self._size(), excludeFromContext=True))
        if self._wild and self._random.random() < 0.03:
            self.add(instructed(self._size()))
        if self._wild and self._random.random() < 0.01:
            self.add(RESET)

    def _metadata(self) -> None:
        while self._random.random() < 0.2:
            self.add(self._random.choice((THOUGHT, LABEL, NOTE)))

    def _edit(self) -> None:
        target = self._random.choice(self.entries[-12:])
        holder = target.get("message", target)
        for _ in range(self._random.choice((1, 1, 2))):
            content = words(self._size()) if "content" in holder and self._random.random() < 0.4 else None
            self.add(edited(target["id"], content))
