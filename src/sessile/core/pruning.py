"""Pruning: old tool results that are no longer sent, as edits to append. The results themselves stay in the session.

Rules: from the newest result back, those within the newest 40,000 estimated tokens of results are protected, and so are
the tools whose output the model must keep. What is older becomes one line that says how much it was, if that saves
20,000 tokens in all; else nothing is worth losing a cached prompt for. What was pruned before is not pruned again, and
a result that is shorter than the line stays.

It only plans: who appends the edits is the caller.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.core.entries import Payload, context_edit
from sessile.core.llm import joined_text
from sessile.core.tokens import Counter, estimate

PROTECT = 40_000  # tokens
MINIMUM = 20_000  # tokens
PROTECTED_TOOLS = frozenset({"skill", "read"})

_NOTICE = re.compile(r"\[Output truncated - \d+ tokens\]")

Message = Mapping[str, Any]


class Pruning(NamedTuple):
    """What pruning would do: the payloads of the edits, oldest target first, and the tokens that they save."""

    edits: tuple[Payload, ...] = ()
    saved: int = 0


def notice(tokens: int) -> str:
    """The line that stands for a result of so many tokens."""
    return f"[Output truncated - {tokens} tokens]"


def plan_pruning(
    messages: Sequence[Message],
    sources: Sequence[str | None],
    *,
    protect: int = PROTECT,
    minimum: int = MINIMUM,
    protected_tools: Collection[str] = PROTECTED_TOOLS,
    counter: Counter = estimate,
) -> Pruning:
    """The edits that prune a context, given as its messages and the ids of the entries that they come from."""
    edits: list[Payload] = []
    saved = newer = 0
    for message, source in zip(reversed(messages), reversed(sources), strict=True):
        if message.get("role") != "toolResult":
            continue
        tokens = counter(message)
        text = notice(tokens)
        saving = tokens - counter({"role": "toolResult", "content": text})
        tool = message.get("toolName")
        protected = newer < protect or (isinstance(tool, str) and tool in protected_tools)
        newer += tokens
        # Without an id there is nothing that an edit could name.
        if protected or source is None or saving <= 0 or is_pruned(message):
            continue
        edits.append(context_edit(source, text))
        saved += saving
    return Pruning(tuple(reversed(edits)), saved) if edits and saved >= minimum else Pruning()


def is_pruned(message: Message) -> bool:
    """Whether a result was pruned before, by an edit of ours or in the way of the family."""
    return bool(message.get("prunedAt")) or _NOTICE.fullmatch(joined_text(message.get("content"))) is not None
