"""What Codex sends after an entry: the items of its history, as they are stored.

Besides them it sends the base instructions as the first developer message, unless an item has them (with models that get their
tools in the input), and the word `aborted` as the result of a call that has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sessile.agents.codex.items import API, CALLS, OUTPUTS, PROMPT, call_of, item_of, tool_of
from sessile.core.messages.request import Request, RequestNote, replayed
from sessile.core.providers import ABORTED

Message = dict[str, Any]

GAPS = (
    "tools: not stored by Codex",
    "instructions: Codex may leave out lines on tools that it does not offer",
)


def replay(api: str, messages: Sequence[Message], sources: Sequence[str | None]) -> Request | None:
    """Return the request that Codex sends; `None` if a message is not one of its items, or for another API."""
    if api != API:
        return None
    items: list[Message] = []
    notes: list[RequestNote] = []
    answered = {str(message.get("toolCallId")) for message in messages if message.get("role") == "toolResult"}
    prompted = tooled = False
    for message, source in zip(messages, sources, strict=True):
        item = item_of(message)
        if item is None:
            if message.get("role") == "system" and PROMPT in (message.get("sections") or ()):
                continue
            return None
        items.append(item)
        prompted = prompted or (message.get("role") == "system" and item["type"] == "message")
        tooled = tooled or item["type"] == "additional_tools"
        if item["type"] in CALLS and item["type"] != "web_search_call" and call_of(item) not in answered:
            items.append(_result(item))
            notes.append(
                RequestNote(source, "made", f"the result of the call {call_of(item)} ({tool_of(item)}): {ABORTED}")
            )
    prompt = "\n\n".join(replayed(messages)[0])
    if prompt and not prompted:
        part = {"type": "input_text", "text": prompt}
        items.insert(0, {"type": "message", "role": "developer", "content": [part]})
    return Request({"input": items}, notes, GAPS[1:] if tooled or not prompt else GAPS)


def _result(call: Message) -> Message:
    """Return the result that Codex sends for a call without one."""
    if call["type"] == "tool_search_call":
        found = {name: call[name] for name in ("execution",) if name in call}
        return {"type": "tool_search_output", "call_id": call_of(call), "status": "completed", **found, "tools": []}
    kind = f"{call['type']}_output"
    return {"type": kind if kind in OUTPUTS else OUTPUTS[0], "call_id": call_of(call), "output": ABORTED}
