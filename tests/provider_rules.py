"""Rules of providers as checkers of requests, written from their documentation independently of our code.

Each takes the messages of a request and returns the reasons for which the provider would answer 400.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ANTHROPIC_ID = re.compile(r"[A-Za-z0-9_-]+")
_IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}


def refused_by_anthropic(messages: list[Json]) -> Iterator[str]:
    """Messages API: user first, calls answered at the start of the next message, no blank texts."""
    seen: set[str] = set()
    messages = [{**message, "content": _anthropic_content(message["content"])} for message in messages]
    if messages and messages[0]["role"] != "user":
        yield "first message must use the user role"
    for at, message in enumerate(messages):
        blocks = message["content"]
        if message["role"] not in ("user", "assistant", "system"):
            yield f"messages.{at}: role {message['role']}"
        if not blocks:
            yield f"messages.{at}: content must not be empty"
        for block in blocks:
            yield from _anthropic_block(at, message["role"], block)
        uses = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if message["role"] == "assistant" and blocks and blocks[-1]["type"] in ("thinking", "redacted_thinking"):
            yield f"messages.{at}: the final block cannot be thinking"
        following = messages[at + 1]["content"] if at + 1 < len(messages) else []
        answers = [block["tool_use_id"] for block in following if block["type"] == "tool_result"]
        if uses and (messages[at + 1 : at + 2] == [] or messages[at + 1]["role"] != "user"):
            yield f"messages.{at}: tool_use without tool_result"
        if uses and sorted(uses) != sorted(answers):
            yield f"messages.{at}: {uses} are answered by {answers}"
        if uses and any(block["type"] != "tool_result" for block in following[: len(uses)]):
            yield f"messages.{at + 1}: tool_result blocks must come first"
        if not uses and answers:
            yield f"messages.{at + 1}: unexpected tool_result"
        if len(set(uses)) < len(uses) or seen & set(uses):
            yield f"messages.{at}: tool_use ids must be unique"
        seen |= set(uses)
    if messages and any(block["type"] == "tool_result" for block in messages[0]["content"]):
        yield "messages.0: unexpected tool_result"


def _anthropic_content(content: Any) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _anthropic_block(at: int, role: str, block: Json) -> Iterator[str]:
    kind = block["type"]
    where = f"messages.{at}.{kind}"
    if kind == "text":
        if not isinstance(block["text"], str) or not block["text"].strip():
            yield f"{where}: text must contain non-whitespace text"
    elif kind == "image":
        if role != "user" or block["source"]["media_type"] not in _IMAGES or not block["source"]["data"]:
            yield f"{where}: {role} {block['source']['media_type']}"
    elif kind == "tool_use":
        if role != "assistant" or not isinstance(block["input"], dict):
            yield f"{where}: input must be an object of the assistant's"
        if not _NAME.fullmatch(block["name"]) or not _ANTHROPIC_ID.fullmatch(block["id"]):
            yield f"{where}: {block['name']!r} {block['id']!r} do not match the pattern"
    elif kind == "tool_result":
        if role != "user":
            yield f"{where}: of the assistant"
        for inner in block["content"]:
            if block["is_error"] and inner["type"] != "text":
                yield f"{where}: all content must be text if is_error is true"
            if inner["type"] not in ("text", "image"):
                yield f"{where}: holds {inner['type']}"
            yield from _anthropic_block(at, "user", inner)
    elif kind == "thinking":
        if role != "assistant" or not isinstance(block["signature"], str) or not isinstance(block["thinking"], str):
            yield f"{where}: invalid signature"
    elif kind == "redacted_thinking":
        if role != "assistant" or not isinstance(block["data"], str):
            yield f"{where}: invalid data"
    else:
        yield f"{where}: unknown"


def refused_by_openai(messages: list[Json], longest_id: int = 40) -> Iterator[str]:
    """Chat API: each call is followed by its tool message, and no content is null or an empty list."""
    owed: list[str] = []
    for at, message in enumerate(messages):
        role, content = message["role"], message["content"]
        if role == "tool":
            if message["tool_call_id"] not in owed:
                yield f"messages[{at}]: tool message without a preceding call"
            else:
                owed.remove(message["tool_call_id"])
            if not isinstance(content, str):
                yield f"messages[{at}]: content of a tool must be a text"
            continue
        if owed:
            yield f"messages[{at}]: {owed} must be followed by tool messages"
        owed = []
        if role == "assistant":
            calls = message.get("tool_calls", [])
            if not calls and not content:
                yield f"messages[{at}]: content may be null only with tool calls"
            if "tool_calls" in message and not calls:
                yield f"messages[{at}]: tool_calls is empty"
            owed = [call["id"] for call in calls]
            if len(set(owed)) < len(owed):
                yield f"messages[{at}]: duplicate ids"
            for call in calls:
                yield from _openai_call(at, call, longest_id)
        elif role in ("user", "system", "developer"):
            yield from _openai_content(at, role, content)
        else:
            yield f"messages[{at}]: role {role}"
    if owed:
        yield f"{owed} must be followed by tool messages"


def _openai_call(at: int, call: Json, longest_id: int) -> Iterator[str]:
    if not isinstance(call["id"], str) or not 0 < len(call["id"]) <= longest_id:
        yield f"messages[{at}]: id {call['id']!r}"
    if not _NAME.fullmatch(call["function"]["name"]):
        yield f"messages[{at}]: name {call['function']['name']!r}"
    if not isinstance(json.loads(call["function"]["arguments"]), dict):
        yield f"messages[{at}]: arguments"


def _openai_content(at: int, role: str, content: Any) -> Iterator[str]:
    if isinstance(content, str):
        if not content:
            yield f"messages[{at}]: empty content"
        return
    if not isinstance(content, list) or not content:
        yield f"messages[{at}]: content must be a text or a list with something in it"
        return
    for part in content:
        if part["type"] == "text":
            if not isinstance(part["text"], str) or not part["text"]:
                yield f"messages[{at}]: empty text"
        elif part["type"] != "image_url" or role != "user":
            yield f"messages[{at}]: {role} holds {part['type']}"
        elif not re.match(r"data:image/(jpeg|png|gif|webp);base64,.", part["image_url"]["url"]):
            yield f"messages[{at}]: bad image"


def refused_by_router(messages: list[Json]) -> Iterator[str]:
    """Chat API without a limit on ids, because Gemini behind it has none."""
    return refused_by_openai(messages, longest_id=10_000)


def refused_by_mistral(messages: list[Json]) -> Iterator[str]:
    """Chat API with ids of nine letters and digits."""
    yield from refused_by_openai(messages)
    for message in messages:
        for call in message.get("tool_calls", []):
            if not re.fullmatch(r"[A-Za-z0-9]{9}", call["id"]):
                yield f"tool call id was {call['id']!r}"


def refused_by_google(contents: list[Json]) -> Iterator[str]:
    """Gemini: user first, no consecutive model messages, and as many responses as calls, by name and at once."""
    if contents and contents[0]["role"] != "user":
        yield "the first content must be of the user"
    for at, content in enumerate(contents):
        role, parts = content["role"], content["parts"]
        before = contents[at - 1] if at else None
        if role not in ("user", "model") or not parts:
            yield f"contents[{at}]: {role} without parts"
        if before is not None and role == before["role"] == "model":
            yield f"contents[{at}]: a model turn must follow a user turn"
        for part in parts:
            yield from _google_part(at, role, part)
        answers = [part["functionResponse"]["name"] for part in parts if "functionResponse" in part]
        calls = [part["functionCall"]["name"] for part in before["parts"] if "functionCall" in part] if before else []
        if calls != answers:
            yield f"contents[{at}]: the calls {calls} are answered by {answers}"
    if contents and any("functionCall" in part for part in contents[-1]["parts"]):
        yield "the last calls have no responses"


def _google_part(at: int, role: str, part: Json) -> Iterator[str]:
    kinds = [name for name in ("text", "functionCall", "functionResponse", "inlineData") if name in part]
    if len(kinds) != 1:
        yield f"contents[{at}]: a part must hold one kind of data, not {kinds}"
        return
    kind = kinds[0]
    if kind == "text" and (not isinstance(part["text"], str) or not (part["text"].strip() or part.get("thought"))):
        yield f"contents[{at}]: empty text"
    if kind == "functionCall" and (role != "model" or not isinstance(part[kind]["args"], dict)):
        yield f"contents[{at}]: bad call"
    if kind == "functionCall" and not _NAME.fullmatch(part[kind]["name"]):
        yield f"contents[{at}]: name {part[kind]['name']!r}"
    if kind == "functionResponse" and (role != "user" or not isinstance(part[kind]["response"], dict)):
        yield f"contents[{at}]: bad response"
    if kind == "inlineData" and (role != "user" or part[kind]["mimeType"] not in _IMAGES):
        yield f"contents[{at}]: bad image"
    if "thoughtSignature" in part and not re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", part["thoughtSignature"]):
        yield f"contents[{at}]: thought signature is not base64"
