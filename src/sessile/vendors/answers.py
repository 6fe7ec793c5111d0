"""Put the answer of a model together from the events of its stream, and recognize context overflow.

    answer = OpenAIAnswer()                 or AnthropicAnswer()
    for event in events:
        text = answer.add(event)            the text that this event adds
    answer.stop                             the stop reason in our terms; `None` if the answer did not end
    assistant_message(answer, provider="openai", model="gpt-5")

Rules:
- The result does not depend on how the stream was split into events.
- Missing members and members of another type are ignored. Unknown blocks are kept unchanged.
- An unknown stop reason is an error that names it, and so are tool arguments that are not a JSON object; the content is kept.
- Token counts that were not reported are left out, never 0.

`is_overflow` decides whether the context was too long for the model. Error phrases are the providers' own, in lower case; `.*`
stands for the numbers and names between them. They count only in the text of an error. Rate limits use similar words and are
excluded first, because a shorter context would not help. Some providers truncate the context without an error: then the answer
reports more input than the window holds, or stops at once for its length with a full window.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from sessile.core.usage import usage_of

Event = Mapping[str, Any]

STOPS = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "toolUse",
    "function_call": "toolUse",
    "tool_use": "toolUse",
}
"""Stop reasons of the providers, and ours."""

_REASONING = ("reasoning_content", "reasoning")  # DeepSeek, vLLM, llama.cpp; OpenRouter, Ollama
_ANTHROPIC_BLOCKS = {
    "text": "text",
    "thinking": "thinking",
    "redacted_thinking": "redactedThinking",
    "tool_use": "toolCall",
}
_DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "input_json_delta": ("toolCall", "partial_json"),
}


class _Block:
    """A content block with the pieces received so far."""

    __slots__ = ("key", "kind", "members", "pieces")

    def __init__(self, kind: str, key: object = None, members: Event | None = None) -> None:
        self.kind = kind
        self.key = key  # identifies the block in later events
        self.members: dict[str, Any] = dict(members or {})
        self.pieces: list[str] = []

    def finished(self) -> dict[str, Any]:
        """Return the block as entries store it."""
        text = "".join(self.pieces)
        if self.kind in ("text", "thinking"):
            return {"type": self.kind, self.kind: text, **self.members}
        if self.kind != "toolCall":
            return {"type": self.kind, **self.members}
        arguments = _arguments(text) if text else self.members.get("arguments", {})
        call = {"type": "toolCall", "id": self.members.get("id"), "name": self.members.get("name")}
        return call | ({"arguments": {}, "partialJson": text} if arguments is None else {"arguments": arguments})


class Answer(ABC):
    """An answer in progress. `length` counts the characters of its text."""

    def __init__(self) -> None:
        self.length = 0
        self._blocks: list[_Block] = []
        self._reason: str | None = None
        self._usage: dict[str, Any] = {}

    @abstractmethod
    def add(self, event: Event) -> str:
        """Add the next event; return the text that it adds."""

    @property
    def text(self) -> str:
        """The text of the answer, without thinking."""
        return "".join(piece for block in self._blocks if block.kind == "text" for piece in block.pieces)

    @property
    def calls_tools(self) -> bool:
        """Whether the answer calls a tool."""
        return any(block.kind == "toolCall" for block in self._blocks)

    @property
    def stop(self) -> str | None:
        """The stop reason: ours if there is one, else the provider's.

        Some providers report "stop" for an answer that calls tools.
        """
        stop = STOPS.get(self._reason, self._reason) if self._reason is not None else None
        return "toolUse" if stop == "stop" and self.calls_tools else stop

    @property
    def usage(self) -> dict[str, int] | None:
        """The token counts. Tokens of the cache are not part of the input."""
        usage = usage_of(self._usage)
        counted = usage and {
            "input": usage.input,
            "output": usage.output,
            "cacheRead": usage.cache_read,
            "cacheWrite": usage.cache_write,
        }
        return {name: count for name, count in counted.items() if count is not None} or None if counted else None

    def content(self) -> list[dict[str, Any]]:
        """Return the blocks in the order in which they started, without empty text blocks."""
        blocks = [block.finished() for block in self._blocks]
        return [block for block in blocks if block["type"] != "text" or block["text"]]

    def _extend(self, block: _Block, piece: object) -> str:
        """Add a piece to a block; return it if the block is text."""
        if not isinstance(piece, str) or not piece:
            return ""
        block.pieces.append(piece)
        if block.kind != "text":
            return ""
        self.length += len(piece)
        return piece

    def _open(self, block: _Block) -> _Block:
        self._blocks.append(block)
        return block


class OpenAIAnswer(Answer):
    """An answer from the chunks of a chat completion, with thinking if the endpoint reports it."""

    def add(self, event: Event) -> str:
        """Add the next chunk; return the text that it adds."""
        self._count(event.get("usage"))
        text = ""
        for choice in _mappings(event.get("choices")):
            if choice.get("index") not in (0, None):
                continue  # requests ask for one choice
            reason, delta = choice.get("finish_reason"), _mapping(choice.get("delta"))
            self._reason = reason if isinstance(reason, str) and reason else self._reason
            thought = next((delta[name] for name in _REASONING if isinstance(delta.get(name), str)), None)
            if thought:
                self._extend(self._last("thinking"), thought)
            for piece in (delta.get("content"), delta.get("refusal")):
                if isinstance(piece, str) and piece:
                    text += self._extend(self._last("text"), piece)
            for call in _mappings(delta.get("tool_calls")):
                self._call(call)
        return text

    def _last(self, kind: str) -> _Block:
        """Return the last block if it is of that kind, else a new one."""
        last = self._blocks[-1] if self._blocks else None
        return last if last is not None and last.kind == kind else self._open(_Block(kind))

    def _call(self, piece: Event) -> None:
        function, call_id = _mapping(piece.get("function")), piece.get("id") or None
        calls = [block for block in self._blocks if block.kind == "toolCall"]
        index = piece.get("index")
        block = next((call for call in reversed(calls) if index is None or call.key == index), None)
        # Some endpoints number every call 0, or none: then a new id is a new call.
        if block is None or (call_id is not None and block.members.get("id") not in (None, call_id)):
            block = self._open(_Block("toolCall", index))
        given = {"id": call_id, "name": function.get("name") or None}
        block.members |= {name: value for name, value in given.items() if isinstance(value, str)}
        self._extend(block, function.get("arguments"))

    def _count(self, reported: object) -> None:
        if not isinstance(reported, Mapping):
            return
        details = _mapping(reported.get("prompt_tokens_details"))
        usage, cache = usage_of(reported), usage_of({"cacheRead": details.get("cached_tokens")})
        assert usage is not None and cache is not None  # both were given mappings
        read = cache.cache_read
        fresh = usage.input if usage.input is None or read is None else max(usage.input - read, 0)
        self._usage = {"input": fresh, "output": usage.output, "cacheRead": read}


class AnthropicAnswer(Answer):
    """An answer from the events of a message; thinking keeps its signatures."""

    def add(self, event: Event) -> str:
        """Add the next event; return the text that it adds."""
        kind = event.get("type")
        if kind == "message_start":
            self._count(_mapping(event.get("message")).get("usage"))
        elif kind == "content_block_start":
            return self._start(event.get("index"), _mapping(event.get("content_block")))
        elif kind == "content_block_delta":
            return self._delta(event.get("index"), _mapping(event.get("delta")))
        elif kind == "message_delta":
            reason = _mapping(event.get("delta")).get("stop_reason")
            self._reason = reason if isinstance(reason, str) and reason else self._reason
            self._count(event.get("usage"))
        return ""

    def _start(self, index: object, started: Event) -> str:
        given = str(started.get("type"))
        kind = _ANTHROPIC_BLOCKS.get(given, given)
        members = {name: value for name, value in started.items() if name != "type"}
        if kind in ("text", "thinking"):
            piece = members.pop(kind, None)
            signature = members.pop("signature", None)
            signed = {"thinkingSignature": signature} if isinstance(signature, str) and signature else {}
            return self._extend(self._open(_Block(kind, index, signed)), piece)
        if kind == "toolCall":
            given_input = started.get("input")
            arguments = dict(given_input) if isinstance(given_input, Mapping) else {}
            members = {"id": started.get("id"), "name": started.get("name"), "arguments": arguments}
        self._open(_Block(kind, index, members))
        return ""

    def _delta(self, index: object, delta: Event) -> str:
        given = delta.get("type")
        if given == "signature_delta":
            signature, members = delta.get("signature"), self._at(index, "thinking").members
            if isinstance(signature, str):
                members["thinkingSignature"] = members.get("thinkingSignature", "") + signature
            return ""
        if not isinstance(given, str) or given not in _DELTAS:
            return ""
        kind, member = _DELTAS[given]
        return self._extend(self._at(index, kind), delta.get(member))

    def _at(self, index: object, kind: str) -> _Block:
        """Return the block of that index and kind; open it if no event has started it."""
        found = next((block for block in reversed(self._blocks) if block.key == index and block.kind == kind), None)
        return found if found is not None else self._open(_Block(kind, index))

    def _count(self, reported: object) -> None:
        # The end of a message reports usage again; counts that it omits keep their value from the start.
        self._usage |= {name: count for name, count in _mapping(reported).items() if count is not None}


def assistant_message(answer: Answer, *, provider: str, model: str) -> dict[str, Any]:
    """Return the assistant message of an answer that has ended."""
    content, stop = answer.content(), answer.stop
    message: dict[str, Any] = {"role": "assistant", "content": content, "provider": provider, "model": model}
    usage = answer.usage
    if usage is not None:
        whole = {"totalTokens": sum(usage.values())} if {"input", "output"} <= usage.keys() else {}
        message["usage"] = usage | whole
    torn = [block for block in content if "partialJson" in block]
    if stop == "toolUse" and torn:
        wrong = f"the arguments of {torn[0]['name'] or 'a tool'} are no JSON object"
        return message | {"stopReason": "error", "errorMessage": wrong}
    if stop not in STOPS.values():
        return message | {"stopReason": "error", "errorMessage": f"{model} stopped: {stop}"}
    return message | {"stopReason": stop}


def _arguments(text: str) -> dict[str, Any] | None:
    try:
        arguments = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON")


def _mapping(value: object) -> Event:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Event]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


# -- overflow

FULL = 0.99  # share of the window; an answer that stops for its length above it had no room


class Phrase(NamedTuple):
    """A pattern in the error messages of a provider."""

    who: str
    pattern: str


PHRASES = (
    Phrase("Anthropic", r"prompt is too long"),
    Phrase("Anthropic", r"input length and `?max_tokens`? exceed context limit"),
    Phrase("Anthropic", r"request_too_large"),
    Phrase("Anthropic", r"request exceeds the maximum size"),
    Phrase("Bedrock", r"input is too long for requested model"),
    Phrase("OpenAI", r"exceeds the context window"),
    Phrase("OpenAI", r"context_length_exceeded"),
    Phrase("OpenAI, OpenRouter, vLLM", r"maximum context length"),
    Phrase("Google", r"input token count.*exceeds the maximum"),
    Phrase("xAI", r"maximum prompt length is \d+"),
    Phrase("Groq", r"reduce the length of the messages"),
    Phrase("Copilot", r"token count of \d+ exceeds the limit of \d+"),
    Phrase("Copilot", r"model_max_prompt_tokens_exceeded"),
    Phrase("Mistral", r"too large for model with \d+ maximum context length"),
    Phrase("llama.cpp", r"exceeds the available context size"),
    Phrase("llama.cpp", r"exceed_context_size_error"),
    Phrase("LM Studio", r"greater than the context length"),
    Phrase("Ollama", r"exceeded max context length"),
    Phrase("Ollama", r"input length exceeds (?:the )?(?:maximum )?context length"),
    Phrase("vLLM", r"longer than the maximum model length"),
    Phrase("MiniMax", r"context window exceeds limit"),
    Phrase("Kimi", r"exceeded model token limit"),
    Phrase("z.ai", r"model_context_window_exceeded"),
    Phrase("gateways", r"context length exceeded"),
    Phrase("gateways", r"context[ _](?:window )?overflow"),
    Phrase("gateways", r"exceeds (?:the )?(?:model'?s? )?(?:maximum )?context (?:window|length)"),
    Phrase("gateways", r"request size exceeds.*context (?:window|length)"),
    Phrase("gateways", r"token limit exceeded"),
    Phrase("gateways", r"too many tokens"),
    Phrase("HTTP", r"\b413\b.*(?:too large|\(no body\))"),
    Phrase("Cerebras", r"^\s*4(?:00|13)\s*(?:status code)?\s*\(no body\)"),
)

# Rate limits, which are not about the length of the context.
EXCLUDED = (
    Phrase("Bedrock", r"^(?:throttling|service ?unavailable)(?: error|exception)?:"),
    Phrase("Bedrock", r"throttlingexception"),
    Phrase("Bedrock", r"too many tokens,? please wait"),
    Phrase("all", r"rate[ _-]?limit"),
    Phrase("all", r"too many requests"),
    Phrase("all", r"\b429\b"),
    Phrase("OpenAI, Groq", r"tokens per (?:minute|day)"),
    Phrase("Google", r"resource_exhausted|quota exceeded"),
    Phrase("all", r"overloaded"),
)

_PHRASES = re.compile("|".join(phrase.pattern for phrase in PHRASES), re.I | re.S)
_EXCLUDED = re.compile("|".join(phrase.pattern for phrase in EXCLUDED), re.I | re.S)


def is_overflow(
    error_text: str | None,
    usage: Mapping[str, Any] | None = None,
    window: int | None = None,
    stop_reason: str | None = None,
) -> bool:
    """Return whether the context was too long, from an error or from the stop reason and usage of an answer."""
    if error_text and stop_reason in (None, "error"):
        return _PHRASES.search(error_text) is not None and _EXCLUDED.search(error_text) is None
    reported = usage_of(usage)
    if reported is None or not window or window < 0:
        return False
    used = (reported.input or 0) + (reported.cache_read or 0)
    if stop_reason == "stop":
        return used > window
    return stop_reason == "length" and reported.output == 0 and used >= FULL * window
