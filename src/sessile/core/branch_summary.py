"""Leaving a branch: where going to an entry leads, and what is to be summed up of what is left behind.

Rules:

- Going to something that a user said (or that was injected for him) means to say it anew: the leaf becomes its parent, its
  text goes to the editor. Going to anything else means to go on after it.
- Left behind is what lies between the old leaf and the deepest entry that both paths share.
- What is to be summed up is taken from the newest on, until the budget is full; a summary that does not fit is still taken
  while less than nine tenths are used, because it stands for much. Tool results are left out, their calls are not.
- Files are collected from everything that is left behind, also from what did not fit.

Messages are as the model saw them. Nothing is read or written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sessile.core.context import edited_message
from sessile.core.file_lists import FileLists, Files
from sessile.core.kinds import Json, kind_of
from sessile.core.tokens import Counter, Message, estimate

PREFIX = "The user explored a different conversation branch before returning here.\nSummary of that exploration:\n\n"
NO_CONTENT = "No content to summarize"
DEFAULT_WINDOW = 128_000
RESERVE = 16_384

_SUMMARIES = ("compaction", "branch_summary")
_NEARLY_FULL = 0.9


class Navigation(NamedTuple):
    """Where going to an entry leads; `new_leaf` is `None` before the first entry."""

    moves: bool
    new_leaf: str | None
    editor_text: str | None
    abandoned: tuple[str, ...]  # oldest first
    common_ancestor: str | None


class BranchPreparation(NamedTuple):
    """What is to be summed up of a branch, oldest first, what it takes, and which files it touched."""

    messages: Sequence[Message]
    tokens: int
    files: FileLists
    left_out: int  # messages for which there was no room


def navigation(path: Sequence[str], target: Json, target_path: Sequence[str]) -> Navigation:
    """Where going from the end of one path to an entry leads. Paths are ids, root first; the target ends its own."""
    leaf = path[-1] if path else None
    shared = 0
    while shared < min(len(path), len(target_path)) and path[shared] == target_path[shared]:
        shared += 1
    ancestor = path[shared - 1] if shared else None
    if leaf == target_path[-1]:
        return Navigation(False, leaf, None, (), ancestor)
    text = _to_say_anew(target)
    parent = target_path[-2] if len(target_path) > 1 else None
    new_leaf = target_path[-1] if text is None else parent
    return Navigation(True, new_leaf, text, tuple(path[shared:]), ancestor)


def _to_say_anew(entry: Json) -> str | None:
    """The text of what a user said; `None` if the entry is something else."""
    if entry.get("type") == "custom_message":
        return _text(entry.get("content"))
    message = entry.get("message") if entry.get("type") == "message" else None
    if not isinstance(message, Mapping) or message.get("role") != "user":
        return None
    return _text(message.get("content"))


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else ()
    texts = (block.get("text") for block in blocks if isinstance(block, Mapping) and block.get("type") == "text")
    return "".join(text for text in texts if isinstance(text, str))


def branch_budget(window: int | None, reserve: int = RESERVE) -> int:
    """How many tokens of a branch a model can be given to sum up; at least half of its window."""
    size = DEFAULT_WINDOW if window is None or window <= 0 else window
    return size - min(reserve, size // 2)


def prepare_branch(abandoned: Iterable[Json], budget: int | None, counter: Counter = estimate) -> BranchPreparation:
    """What to sum up of the entries that are left behind, newest first; without a budget, all of it."""
    files, messages = Files(), []
    edits: dict[str, object] = {}
    tokens = left_out = 0
    for entry in abandoned:
        kind, entry_id = entry.get("type"), entry.get("id")
        if kind == "context_edit" and isinstance(target := entry.get("targetId"), str):
            edits.setdefault(target, entry.get("replacement"))
        if kind == "branch_summary":
            files.add_details(entry)
        message = _projected(entry)
        if message is None:
            continue
        files.add_message(message)
        seen = edited_message(message, edits[entry_id]) if entry_id in edits else message
        if seen is None or seen.get("role") == "toolResult" or seen.get("excludeFromContext"):
            continue
        needed = counter(seen)
        fits = budget is None or tokens + needed <= budget
        if left_out or not (fits or (kind in _SUMMARIES and tokens < _NEARLY_FULL * (budget or 0))):
            left_out += 1
            continue
        tokens += needed
        messages.append(seen)
    return BranchPreparation(messages[::-1], tokens, files.lists(), left_out)


def _projected(entry: Json) -> dict[str, Any] | None:
    project = kind_of(entry.get("type")).project
    return None if project is None else project(entry)


def branch_text(summary: str, files: FileLists) -> str:
    """The text of a branch summary, made of what a summarizer wrote."""
    return PREFIX + files.told_in(summary)
