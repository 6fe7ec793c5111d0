"""Items of the Responses API, as Codex stores them, as neutral messages.

    message, role user          what a person wrote; a note of the harness if `content_item_kinds` says so
    message, role developer     a note of the harness; the base instructions are the system prompt
    message, role assistant, reasoning, …_call
                                answers; a call whose input is a text stays one (`custom`)
    …_output                    results
    additional_tools            a system message that adds tools
    agent_message               a note from another agent

Every message keeps what its item says besides (`extra`), so that `item_of` gives back the same item, with the texts and images
that the message has by then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sessile.agents.base import Entry
from sessile.core.codec import decode, encode_plain

API = "responses"
KEPT = "codex"  # where a message keeps its item
API_NAME = "openai-responses"  # as answers name it
PROMPT = "base_instructions"  # the section of the system prompt

CALLS = ("function_call", "custom_tool_call", "local_shell_call", "web_search_call", "tool_search_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output", "tool_search_output", "mcp_tool_call_output")
ITEMS = ("message", "reasoning", "additional_tools", "agent_message", *CALLS, *OUTPUTS)

PASSED = "internal_chat_message_metadata_passthrough"  # Codex's own notes on an item, which it does not send
_BASE = "model.base_instructions"
_SUMMARY = "compaction.summary"
# How texts of the harness start in rollouts that do not say which they are.
_HARNESS = (
    "<environment_context>",
    "<user_instructions>",
    "<INSTRUCTIONS>",
    "# AGENTS.md instructions",
    "<turn_aborted>",
    "<subagent_notification>",
    "<permissions instructions>",
    "<skills_instructions>",
)
_NAMES = {"local_shell_call": "shell", "web_search_call": "web_search", "tool_search_call": "tool_search"}
_EXIT = re.compile(r"^(?:Process exited with code|Exit code:) (-?\d+)$", re.MULTILINE)
_FAILED = ("Script failed", "aborted", "unsupported call:", "unsupported custom tool call:")
_START = 400  # characters of an output that can tell whether it failed
_ANY = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def is_answer(item: Mapping[str, Any]) -> bool:
    """Return whether the model made an item."""
    kind = item.get("type")
    return kind in CALLS or kind == "reasoning" or (kind == "message" and item.get("role") == "assistant")


def is_prompt(item: Mapping[str, Any]) -> bool:
    """Return whether an item belongs to the system prompt or the tools."""
    return item.get("type") == "additional_tools" or (
        item.get("type") == "message" and item.get("role") in ("developer", "system") and _BASE in kinds_of(item)
    )


def is_human(item: Mapping[str, Any]) -> bool:
    """Return whether a person wrote an item."""
    if item.get("type") != "message" or item.get("role") != "user":
        return False
    kinds = kinds_of(item)
    if kinds:
        return any(kind.startswith("user.") for kind in kinds)
    parts = parts_of(item.get("content"))
    text = parts[0].get("text") if parts else None
    return not (isinstance(text, str) and text.lstrip().startswith(_HARNESS))


def kinds_of(item: Mapping[str, Any]) -> list[str]:
    """Return what Codex says of the parts of an item, such as `user.text`; nothing in older rollouts."""
    kinds = object_of(item.get(PASSED)).get("content_item_kinds")
    return [kind for kind in kinds if isinstance(kind, str)] if isinstance(kinds, list) else []


def body_of(item: Mapping[str, Any], at: int | None) -> Entry:
    """Return an item as the members of an entry."""
    if is_human(item) or is_answer(item) or is_prompt(item) or item.get("type") in OUTPUTS:
        return {"type": "message", "message": message_of(item, at)}
    note = message_of(item, at)
    if note["role"] == "custom":
        del note["role"]
    return {"type": "custom_message", **note}


def message_of(item: Mapping[str, Any], at: int | None = None) -> Entry:
    """Return an item as a neutral message."""
    kind = item.get("type")
    message: Entry
    if is_answer(item):
        message = {"role": "assistant", "content": _answer(kind, item), "api": API_NAME}
        message["stopReason"] = "toolUse" if kind in CALLS else "stop"
    elif kind in OUTPUTS:
        message = {"role": "toolResult", "toolCallId": call_of(item), "toolName": "", **_output(item)}
    elif kind == "additional_tools":
        message = {"role": "system", "content": "", "toolsAdded": list(tools_in(item.get("tools")))}
    elif is_prompt(item):
        message = {"role": "system", "content": "", "sections": _sections(item)}
    elif is_human(item):
        message = {"role": "user", "content": parts_of(item.get("content"))}
    else:
        message = _note(item)
    if at is not None:
        message["timestamp"] = at
    return message | {"extra": {KEPT: _sent(item)}}


def _sections(item: Mapping[str, Any]) -> Entry:
    """Return the texts of the system prompt by what they are."""
    kinds = kinds_of(item)
    sections: Entry = {}
    for number, part in enumerate(parts_of(item.get("content"))):
        kind = kinds[number] if number < len(kinds) else ""
        name = PROMPT if kind == _BASE and PROMPT not in sections else f"{kind or 'text'} {number}"
        sections[name] = part.get("text", "")
    return sections


def _note(item: Mapping[str, Any]) -> Entry:
    kind = item.get("type")
    named = next(iter(kinds_of(item)), None) or ("instructions" if kind == "message" else str(kind))
    content = parts_of(item.get("content"))
    if kind not in ("message", "agent_message"):
        content = [{"type": "other", "api": API, "value": _sent(item)}]
    role = "developer" if item.get("role") in ("developer", "system") else "custom"
    return {"role": role, "customType": f"codex.{named}", "content": content, "display": False}


# -- the item that a message was made from


def _sent(item: Mapping[str, Any]) -> Entry:
    """Return what a message does not say of its item; `item_of` puts the rest back from the message."""
    kept = {name: value for name, value in item.items() if name != PASSED}
    kind = kept.get("type")
    for name in ("content", "output"):
        if isinstance(kept.get(name), list) and kind != "reasoning":
            kept[name] = [_frame(part) for part in kept[name]]
    if kind == "reasoning" and _is_sealed(item):
        kept = {"type": kind}
    elif kind in OUTPUTS and isinstance(kept.get("output"), str) and _decoded_output(kept["output"]) is None:
        kept["output"] = None
    elif kind == "custom_tool_call" and isinstance(kept.get("input"), str):
        del kept["input"]
    elif kind == "function_call" and kept.get("arguments") == _text(_arguments(kept.get("arguments"))):
        del kept["arguments"]
    elif kind == "message" and isinstance(kept.get("content"), str):
        kept["content"] = None
    return kept


def _is_sealed(item: Mapping[str, Any]) -> bool:
    sealed = item.get("encrypted_content")
    return isinstance(sealed, str) and bool(sealed)


def _frame(part: object) -> object:
    """Return a part without the text or image that the message has."""
    if not isinstance(part, dict):
        return part
    shown = _part(part)
    left = {"text": "text", "image": "image_url"}.get(shown["type"])
    if left is None or shown.get("refusal") or "url" in shown:
        return part
    return {name: value for name, value in part.items() if name != left}


def item_of(message: Mapping[str, Any]) -> Entry | None:
    """Return the item that a message was made from, with the content that the message has now; `None` if it has none."""
    kept = object_of(message.get("extra")).get(KEPT)
    if not isinstance(kept, dict) or not isinstance(kept.get("type"), str):
        return None
    content = message.get("content")
    parts: list[Any] = content if isinstance(content, list) else []
    item = dict(kept)
    kind = item["type"]
    if kind == "reasoning" and len(item) == 1:
        signature = parts[0].get("thinkingSignature") if parts and isinstance(parts[0], dict) else None
        whole = _decoded(signature) if isinstance(signature, str) else None
        return whole if isinstance(whole, dict) and whole.get("type") == kind else None
    if message.get("role") == "system" and kind == "message":
        parts = [{"type": "text", "text": text} for text in object_of(message.get("sections")).values()]
    for name in ("content", "output"):
        if isinstance(item.get(name), list) and kind != "reasoning":
            framed = [frame for frame in item[name] if isinstance(frame, dict)]
            if len(framed) != len(parts):
                return None
            item[name] = [_filled(*pair) for pair in zip(framed, parts, strict=True)]
    if kind in OUTPUTS and "output" in item and item["output"] is None:
        item["output"] = "\n".join(str(part.get("text", "")) for part in parts)
    elif kind == "message" and item.get("content") is None:
        item["content"] = joined("\n", content)
    elif kind in ("custom_tool_call", "function_call") and parts and isinstance(parts[0], dict):
        given = object_of(parts[0].get("arguments"))
        if kind == "custom_tool_call":
            item.setdefault("input", given.get("input", ""))
        else:
            item.setdefault("arguments", _text(given))
    return item


def _filled(frame: Entry, part: Mapping[str, Any]) -> Entry:
    if part.get("type") == "text" and "refusal" not in frame:
        return {**frame, "text": part.get("text", "")}
    if part.get("type") == "image" and "data" in part:
        return {**frame, "image_url": f"data:{part.get('mimeType')};base64,{part['data']}"}
    return frame


def _text(value: object) -> str:
    return encode_plain(value).decode("utf-8", "surrogatepass")


def _decoded_output(text: str) -> Entry | None:
    """Return what an output in an older rollout holds: JSON in a string, with the text inside."""
    inner = _decoded(text) if text.startswith("{") else None
    return inner if isinstance(inner, dict) and "output" in inner else None


def call_of(item: Mapping[str, Any]) -> str:
    """Return the id of the call that an item makes or answers."""
    found = item.get("call_id") or item.get("id")
    return found if isinstance(found, str) else ""


def tool_of(item: Mapping[str, Any]) -> str:
    """Return the name of the tool that an item calls."""
    name = item.get("name")
    return name if isinstance(name, str) and name else _NAMES.get(str(item.get("type")), str(item.get("type")))


def summary_in(items: object) -> str | None:
    """Return the summary in the history that a compaction left, with the words around it."""
    found = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return next((joined("\n\n", item.get("content")) for item in reversed(found) if _SUMMARY in kinds_of(item)), None)


# -- parts


def parts_of(content: object) -> list[Entry]:
    """Return the parts of a content."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_part(part) for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def joined(between: str, content: object) -> str:
    """Return the texts of a content as one."""
    texts = (part.get("text") for part in parts_of(content))
    return between.join(text for text in texts if isinstance(text, str) and text)


def object_of(value: object) -> Mapping[str, Any]:
    """Return an object, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def _part(part: Mapping[str, Any]) -> Entry:
    if isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if isinstance(part.get("refusal"), str):
        return {"type": "text", "text": part["refusal"], "refusal": True}
    address = part.get("image_url")
    if isinstance(address, str) and address.startswith("data:") and ";base64," in address:
        kind, _, data = address.removeprefix("data:").partition(";base64,")
        return {"type": "image", "mimeType": kind, "data": data}
    if isinstance(address, str) and address:
        return {"type": "image", "url": address}
    return {"type": "other", "api": API, "value": dict(part)}


def _answer(kind: object, item: Mapping[str, Any]) -> list[Entry]:
    if kind == "message":
        return parts_of(item.get("content"))
    if kind == "reasoning":
        text = "\n\n".join(filter(None, (joined("\n\n", item.get(name)) for name in ("summary", "content"))))
        thought: Entry = {"type": "thinking", "thinking": text}
        if _is_sealed(item):  # the API accepts the item as a whole, so it is the signature of the thought
            thought["thinkingSignature"] = _text({name: value for name, value in item.items() if name != PASSED})
        elif not text:
            thought["redacted"] = True
        return [thought]
    call: Entry = {"type": "toolCall", "id": call_of(item), "name": tool_of(item)}
    if kind == "custom_tool_call":
        given = item.get("input")
        call |= {"arguments": {"input": given if isinstance(given, str) else ""}, "custom": True}
    else:
        call["arguments"] = _arguments(item.get("arguments", item.get("input", item.get("action"))))
    if isinstance(item.get("namespace"), str):
        call["namespace"] = item["namespace"]
    return [call]


def _arguments(given: object) -> Entry:
    """Return the arguments of a call, which usually are JSON in a string."""
    value = _decoded(given) if isinstance(given, str) else given
    if isinstance(value, dict):
        return value
    return {} if given is None else {"input": given if isinstance(given, str) else value}


def _decoded(text: str) -> object:
    try:
        return decode(text.encode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None


def _output(item: Mapping[str, Any]) -> Entry:
    output = item.get("output")
    if item.get("type") == "tool_search_output":
        output = encode_plain(item.get("tools") or []).decode("utf-8", "surrogatepass")
    inner = _decoded_output(output) if isinstance(output, str) else None
    failed = False
    if inner is not None:
        output = inner["output"]
        code = object_of(inner.get("metadata")).get("exit_code")
        failed = isinstance(code, int) and code != 0
    elif isinstance(output, dict):
        failed = output.get("success") is False
        output = output.get("content_items") or output.get("content")
    content = parts_of(output if isinstance(output, str | list) else "")
    return {"content": content, "isError": failed or _tells_failure(content)}


def _tells_failure(content: list[Entry]) -> bool:
    text = content[0].get("text") if content else None
    if not isinstance(text, str):
        return False
    code = _EXIT.search(text[:_START].partition("\nOutput:")[0])
    return text.startswith(_FAILED) if code is None else code[1] != "0"


# -- tools


def tools_in(given: object) -> Iterator[Entry]:
    """Yield the tools of a list, with those inside of namespaces."""
    for tool in given if isinstance(given, list) else ():
        if not isinstance(tool, dict):
            continue
        if isinstance(tool.get("tools"), list):
            yield from ({**inner, "namespace": tool.get("name")} for inner in tools_in(tool["tools"]))
        elif isinstance(tool.get("name"), str):
            named: Entry = {name: tool[name] for name in ("name", "description") if isinstance(tool.get(name), str)}
            named["parameters"] = tool["parameters"] if isinstance(tool.get("parameters"), dict) else dict(_ANY)
            yield named | ({"custom": True} if tool.get("type") == "custom" else {})
