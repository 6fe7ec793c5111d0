"""Prompts that were typed while the agent worked: which of them the TypeScript SDK shows, where, and under which uuid.

Rules:

- A queued prompt in the chain is shown if the agent went on behind it: with an assistant row, a tool result or the word that
  it was stopped. If the next thing that was said is a prompt of the user, it was sent again there. Meta rows, compact
  summaries and commands of the terminal itself say nothing of it. What the queue notes of a prompt counts more.
- Behind the leaf, all that hang from it are shown, children by time and before the next sibling; not those from which the
  main conversation went on elsewhere.
- A prompt that was sent under another uuid has that one; it is shown once, even if that once is in somebody else's
  conversation. One that is meta is shown of sub-agents only, unless other people wrote it.

The Python SDK shows none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sessile.formats.claude.heads import (
    ASSISTANT,
    META,
    NOBODY,
    OFF_MAIN,
    QUEUED,
    RESULT,
    SUMMARY,
    USER,
    Heads,
)
from sessile.formats.claude.parallel import Times
from sessile.formats.claude.rows import Row, mapping_of, text_of, type_of

Contents = Callable[[int], Row]
"""A row with everything that it says."""

_NOTHING = ""
_CAVEAT = "<local-command-caveat>"
_COMMAND = "<command-name>"
_OUTPUTS = ("<local-command-stdout>", "<local-command-stderr>")
_INTERRUPTIONS = (
    "[Request interrupted by user]",
    "[Request interrupted by user for tool use]",
    "[Request interrupted: the session ended",
    "[Agent call interrupted: the process",
    "[Tool call did not complete: the turn",
    "[Tool call interrupted: the session ended",
    "[Tool call result not in this copy: ",
    "[Tool call skipped: the turn",
    "The user doesn't want to take this action right now.",
)


def shown_prompts(
    heads: Heads, chain: Sequence[int], behind: Sequence[int], contents: Contents, *, of_subagent: bool = False
) -> set[int]:
    """The queued prompts that are shown, of a chain and of what hangs behind its leaf."""
    everything = [*chain, *behind]
    went_on = _continued(heads, chain, contents) | set(behind)
    noted = {} if of_subagent else heads.deliveries.verdicts(heads.uuid[row] for row in everything)
    known = {heads.uuid[row] for row in everything}
    shown = set()
    for row in everything:
        own, sent_as = heads.uuid[row], heads.source[row]
        if not heads.flags[row] & QUEUED or not noted.get(own, row in went_on):
            continue
        if heads.flags[row] & META and not of_subagent:
            continue
        if sent_as != NOBODY:
            if sent_as != own and sent_as in known:
                continue
            known.add(sent_as)
        shown.add(row)
    return shown


def _continued(heads: Heads, chain: Sequence[int], contents: Contents) -> set[int]:
    """The queued prompts of a chain behind which the agent went on."""
    commands = _local_commands(heads, chain, contents)
    found = set()
    went_on = False
    for row in reversed(chain):
        flags = heads.flags[row]
        if heads.kind[row] == ASSISTANT:
            went_on = True
        elif heads.kind[row] == USER:
            answered = flags & RESULT and heads.parent[row] != NOBODY
            if answered or _is_interruption(contents(row)):
                went_on = True
            elif not flags & (META | SUMMARY) and row not in commands:
                went_on = False
        elif flags & QUEUED and went_on:
            found.add(row)
    return found


def _local_commands(heads: Heads, chain: Sequence[int], contents: Contents) -> set[int]:
    """The rows of commands that the terminal ran by itself: behind a caveat the command, then its output."""
    found = set()
    state = _NOTHING
    for row in chain:
        if heads.kind[row] == ASSISTANT:
            state = _NOTHING
        if heads.kind[row] != USER:
            continue
        text = _told_by_terminal(contents(row))
        if heads.flags[row] & META:
            state = _CAVEAT if text.startswith(_CAVEAT) else state
        elif (state == _CAVEAT and text.startswith(_COMMAND)) or (state == _COMMAND and text.startswith(_OUTPUTS)):
            state = _COMMAND
            found.add(row)
        else:
            state = _NOTHING
    return found


def _told_by_terminal(row: Row) -> str:
    """The last text of a row that nobody typed into a prompt."""
    if "promptSource" in row:
        return ""
    content = mapping_of(row, "message").get("content")
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    texts = [block for block in content if type_of(block) == "text"]
    return (text_of(texts[-1], "text") if texts else None) or ""


def _is_interruption(row: Row) -> bool:
    """Whether a row says nothing but that the agent was stopped."""
    content = mapping_of(row, "message").get("content")
    if isinstance(content, str):
        return content.startswith(_INTERRUPTIONS)
    return isinstance(content, list) and bool(content) and all(_is_stop(block) for block in content)


def _is_stop(block: object) -> bool:
    kind = type_of(block)
    failed = isinstance(block, Mapping) and kind == "tool_result" and block.get("is_error") is True
    text = text_of(block, "text") if kind == "text" else text_of(block, "content") if failed else None
    return text is not None and text.startswith(_INTERRUPTIONS)


def behind_the_leaf(heads: Heads, leaf: int, chain: Sequence[int], times: Times) -> list[int]:
    """The queued prompts that hang from the leaf, in the order in which they are shown; replaced rows hang there as well."""
    on_chain = {heads.uuid[row] for row in chain}
    waiting = [row for row in heads.queued if heads.uuid[row] not in on_chain]
    below = _ways_down(heads, leaf, waiting) if waiting else {}
    if not below:
        return []
    left = _left_behind(heads, on_chain)
    shown = []
    stack = [leaf]
    seen = set(on_chain)
    while stack:
        row = stack.pop()
        if row != leaf:
            if heads.uuid[row] in seen:
                continue
            seen.add(heads.uuid[row])
            if heads.flags[row] & QUEUED and heads.uuid[row] not in left:
                shown.append(row)
        children = sorted(below.get(heads.uuid[row], ()))
        stack.extend(reversed(sorted(children, key=times) if len(children) > 1 else children))
    return shown


def _named_parent(heads: Heads, row: int) -> int:
    """The number of the uuid that a row names as its parent, whatever a compaction has made of it."""
    return heads.named.get(row, heads.parent[row])


def _ways_down(heads: Heads, leaf: int, waiting: Sequence[int]) -> dict[int, set[int]]:
    """The children, by the uuid of their parent, on the ways from the leaf to these rows over rows that nobody spoke."""
    replaced: dict[int, list[int]] = {}
    for row in range(len(heads)):
        if heads.row_of[heads.uuid[row]] != row:
            replaced.setdefault(heads.uuid[row], []).append(row)
    below: dict[int, set[int]] = {}
    seen = set()
    stack = list(waiting)
    while stack:
        row = stack.pop()
        if row in seen or heads.kind[row] in (USER, ASSISTANT):
            continue
        seen.add(row)
        live = heads.row_of[heads.uuid[row]]
        for number in {_named_parent(heads, row), heads.parent[live]} - {NOBODY}:
            below.setdefault(number, set()).add(row)
            stack.extend(replaced.get(number, ()))
            if heads.row_of[number] != NOBODY:
                stack.append(heads.row_of[number])
    return below if heads.uuid[leaf] in below else {}


def _left_behind(heads: Heads, on_chain: set[int]) -> set[int]:
    """The uuids below which the main conversation went on beside the chain, by the parents that rows name."""
    left: set[int] = set()
    for spoken in range(len(heads)):
        if heads.kind[spoken] not in (USER, ASSISTANT) or heads.flags[spoken] & OFF_MAIN:
            continue
        number = _named_parent(heads, spoken) if heads.uuid[spoken] not in on_chain else NOBODY
        while number != NOBODY and heads.row_of[number] != NOBODY and number not in left and number not in on_chain:
            left.add(number)
            number = _named_parent(heads, heads.row_of[number])
    return left
