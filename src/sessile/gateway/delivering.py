"""What of a stored entry may leave for a client: the one place that every list, page and stream of entries goes through.

Rules: an answer whose first word is `NO_REPLY` was never delivered, and is shown as an entry that says `"silent": true`, with
what it used but without its words, thoughts and calls. Leaf markers are not shown at all. Everything else is shown as it is
stored.

The words of a turn that is under way are held back before they come here (`core.silence`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sessile.core.kinds import LEAF_MARKER
from sessile.core.llm import joined_text
from sessile.core.silence import is_silent

Json = Mapping[str, Any]

# What is left of a silent answer; names, not exceptions, so that no member that somebody adds can carry the words.
_BASE = ("type", "id", "parentId", "timestamp")
_KEPT = ("role", "api", "provider", "model", "usage", "stopReason", "timestamp")


def shown(entry: Json) -> dict[str, Any] | None:
    """The entry as a client may see it; `None` if it is none of the conversation's."""
    if entry.get("customType") == LEAF_MARKER:
        return None
    message = entry.get("message")
    if not isinstance(message, Mapping) or not is_silent_answer(message):
        return dict(entry)
    base = {name: entry[name] for name in _BASE if name in entry}
    return {**base, "message": _without_words(message), "silent": True}


def shown_message(message: Json) -> dict[str, Any]:
    """A message of a context as a client may see it."""
    return {**_without_words(message), "silent": True} if is_silent_answer(message) else dict(message)


def is_silent_answer(message: Json) -> bool:
    """Whether a message is an answer that was not to be delivered."""
    return message.get("role") == "assistant" and is_silent(joined_text(message.get("content")))


def text_of(entry: Json) -> tuple[str, str] | None:
    """Who said what in an entry; `None` if it is no word of a person or an agent, or an answer that was silent."""
    message = entry.get("message")
    if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant"):
        return None
    text = joined_text(message.get("content")).strip()
    return None if not text or is_silent_answer(message) else (str(message["role"]), text)


def _without_words(message: Json) -> dict[str, Any]:
    return {name: message[name] for name in _KEPT if name in message}
