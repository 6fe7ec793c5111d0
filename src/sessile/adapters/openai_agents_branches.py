"""A session of the OpenAI Agents SDK with branches and usage, in the shape of the SDK's `AdvancedSQLiteSession`.

    session = SessileBranchingSession("user-1", store)
    await session.create_branch_from_turn(3)        # everything before the third thing that the user said, from now on
    await session.switch_to_branch("main")

Rules: a branch is one entry, whatever the length of the history: the items before it are shared, not copied. It is also a branch
of the session's tree, so that `sessile tree` shows it. Names are never used twice. A deleted branch is only marked as such.
Each `SessileBranchingSession` stands on a branch of its own, the main one at first; one whose branch was deleted or cleared away
by somebody else stands on the main one again. Turns are counted on their branch, from 1: each begins with what the user said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

from agents import RunContextWrapper
from agents.result import RunResultBase

from sessile.adapters.openai_agents import (
    BRANCH,
    DELETE,
    MAIN,
    USAGE,
    Item,
    Items,
    Line,
    SessileSession,
    items_of,
    note,
)
from sessile.core.codec import encode
from sessile.core.entries import Payload

_PREVIEW = 100  # characters of what the user said, for a list of turns
_COUNTS = ("requests", "input_tokens", "output_tokens", "total_tokens")
_DETAILS = ("input_tokens_details", "output_tokens_details")
_UNNAMED = ("computer_call", "file_search_call", "web_search_call", "code_interpreter_call", "shell_call")
_SEARCH_CALL, _SEARCH_OUTPUT = "tool_search_call", "tool_search_output"


class Step(NamedTuple):
    """An item on a branch, and the turn that it belongs to; 0 is before the first."""

    turn: int
    at: Item
    item: Any

    @property
    def begins_turn(self) -> bool:
        return isinstance(self.item, dict) and self.item.get("role") == "user"


class SessileBranchingSession(SessileSession):
    """The history of one conversation with its branches, and what each turn has used."""

    @property
    def branch_id(self) -> str:
        """The branch that this session stands on."""
        return self._branch

    async def get_items(
        self,
        limit: int | None = None,
        branch_id: str | None = None,
        *,
        wrapper: RunContextWrapper[Any] | None = None,
    ) -> Items:
        """The latest items of a branch, or of the one that the session stands on."""
        branch = self._branch if branch_id is None else branch_id
        return await self._run(lambda: self._newest_of(branch, branch_id is not None, self._limit(limit)))

    # -- branches

    async def create_branch_from_turn(self, turn_number: int, branch_name: str | None = None) -> str:
        """Begin a branch with everything before a turn, and stand on it; gives its name."""
        if branch_name is not None and not branch_name.strip():
            raise ValueError("a branch needs a name, not only spaces")
        branch = self._branch
        return await self._run(lambda: self._create(branch, turn_number, branch_name))

    async def create_branch_from_content(self, search_term: str, branch_name: str | None = None) -> str:
        """Begin a branch with everything before the first turn in which the user said something."""
        found = await self.find_turns_by_content(search_term)
        if not found:
            raise ValueError(f"the user has not said {search_term!r} on the branch {self._branch!r}")
        return await self.create_branch_from_turn(found[0]["turn"], branch_name)

    async def switch_to_branch(self, branch_id: str) -> None:
        """Stand on another branch."""
        await self._run(lambda: self._switch(branch_id))

    async def list_branches(self) -> list[dict[str, Any]]:
        """The branches, oldest first, with their counts of items and turns."""
        return await self._run(self._branches)

    async def delete_branch(self, branch_id: str, force: bool = False) -> None:
        """Mark a branch as deleted; with `force` also the one that the session stands on, which then stands on the main one."""
        if not branch_id.strip():
            raise ValueError("a branch needs a name, not only spaces")
        if branch_id == MAIN:
            raise ValueError("the main branch cannot be deleted")
        if branch_id == self._branch and not force:
            raise ValueError(f"the session stands on the branch {branch_id!r}: leave it first, or use force=True")
        await self._run(lambda: self._delete(branch_id))

    # -- turns

    async def get_conversation_turns(self, branch_id: str | None = None) -> list[dict[str, Any]]:
        """What the user said, turn by turn."""
        steps = await self._steps_of(branch_id)
        return [_turn(step, _PREVIEW) for step in steps if step.begins_turn]

    async def find_turns_by_content(self, search_term: str, branch_id: str | None = None) -> list[dict[str, Any]]:
        """The turns in which the user said something; small and capital letters are the same."""
        wanted = re.compile(re.escape(search_term), re.IGNORECASE)
        steps = await self._steps_of(branch_id)
        return [_turn(step) for step in steps if step.begins_turn and any(map(wanted.search, _texts(step.item)))]

    async def get_conversation_by_turns(self, branch_id: str | None = None) -> dict[int, list[dict[str, str | None]]]:
        """The kinds of items of each turn, and the tools that they name."""
        turns: dict[int, list[dict[str, str | None]]] = {}
        for step in await self._steps_of(branch_id):
            turns.setdefault(step.turn, []).append({"type": _kind(step.item), "tool_name": _tool(step.item)})
        return turns

    async def get_tool_usage(self, branch_id: str | None = None) -> list[tuple[str, int, int]]:
        """How often each tool was called, turn by turn: its name, the number of calls, the turn."""
        steps = await self._steps_of(branch_id)
        searched = {step.turn for step in steps if _kind(step.item) == _SEARCH_CALL}
        calls: Counter[tuple[int, str]] = Counter()
        for step in steps:
            kind, name = _kind(step.item), _tool(step.item)
            unasked = kind == _SEARCH_OUTPUT and step.turn not in searched
            if name is not None and (unasked or kind.endswith("_call") or kind == "mcp_approval_request"):
                calls[step.turn, name] += 1
        return sorted(((name, count, turn) for (turn, name), count in calls.items()), key=lambda call: call[2])

    # -- usage

    async def store_run_usage(self, result: RunResultBase) -> None:
        """Note what a run has used, at the turn that it answered; call it when the run has ended."""
        usage, branch = result.context_wrapper.usage, self._branch
        if usage is not None:
            told = {name: getattr(usage, name) or 0 for name in _COUNTS}
            told |= {name: _details(getattr(usage, name, None)) for name in _DETAILS}
            await self._run(lambda: self._store_usage(branch, told))

    async def get_session_usage(self, branch_id: str | None = None) -> dict[str, int] | None:
        """What all turns together have used, on one branch or on all; `None` if nobody noted it."""
        names = await self._run(self._names) if branch_id is None else [branch_id]
        told = [usage for name in names for _, usage in await self._usage_of(name)]
        totals = {name: sum(usage[name] for usage in told) for name in _COUNTS}
        return {**totals, "total_turns": len(told)} if told else None

    async def get_turn_usage(
        self, user_turn_number: int | None = None, branch_id: str | None = None
    ) -> list[dict[str, Any]] | dict[str, Any]:
        """What a turn has used, empty if nobody noted it; without a number, all turns."""
        told = await self._usage_of(branch_id)
        if user_turn_number is not None:
            return next((usage for turn, usage in told if turn == user_turn_number), {})
        return [{"user_turn_number": turn, **usage} for turn, usage in told]

    # -- on the worker's thread

    def _line(self, branch_id: str) -> Line:
        """The line of a branch that somebody named."""
        self._catch_up()
        if not self._log.has(branch_id):
            raise ValueError(f"there is no branch {branch_id!r}")
        return self._log.lines[branch_id]

    def _newest_of(self, branch: str, named: bool, limit: int | None) -> Items:
        if named:
            self._line(branch)
        return self._newest(branch, limit)

    def _create(self, branch: str, turn: int, name: str | None) -> str:
        step = next((step for step in self._steps(branch) if step.begins_turn and step.turn == turn), None)
        if step is None:
            raise ValueError(f"there is no turn {turn} on the branch {branch!r}")
        before = step.at.before if step.at is not self._log.line(branch).place.first else None
        base = f"branch_from_turn_{turn}_{self._store.now() // 1000}"
        made_up = (base if number == 1 else f"{base}_{number}" for number in count(1))
        names = made_up if name is None else iter((name,))
        begun = next((tried for tried in names if self._begin(tried, branch, before)), None)
        if begun is None:
            raise ValueError(f"there was a branch {name!r} before: choose another name")
        self._branch = begun
        return begun

    def _begin(self, name: str, of: str, before: Item | None) -> bool:
        if name in self._log.lines:
            return False
        keep = None if before is None else before.id
        return bool(self._note(note(BRANCH, name, of=of, keep=keep), below=lambda: before))

    def _switch(self, branch_id: str) -> None:
        self._line(branch_id)
        self._branch = branch_id

    def _branches(self) -> list[dict[str, Any]]:
        found = []
        for name in self._names():
            steps, line = self._steps(name), self._log.lines[name]
            told = {"branch_id": name, "message_count": len(steps)}
            told |= {"user_turns": sum(step.begins_turn for step in steps), "is_current": name == self._branch}
            found.append({**told, "created_at": line.created})
        return found

    def _names(self) -> list[str]:
        """The branches that are there; the main one is as soon as it was used."""
        self._catch_up()
        lines = self._log.lines.items()
        return [name for name, line in lines if not line.deleted and (name != MAIN or line.place.tip or len(lines) > 1)]

    def _delete(self, branch_id: str) -> None:
        self._line(branch_id)
        self._note(note(DELETE, branch_id), below=lambda: self._log.lines[MAIN].place.tip)
        if self._branch == branch_id:
            self._branch = MAIN

    def _store_usage(self, branch: str, told: Payload) -> None:
        begun = [step for step in self._steps(branch) if step.begins_turn]
        if begun:
            noted = note(USAGE, branch, turn=begun[-1].at.id, usage=told)
            self._note(noted, below=lambda: self._log.line(branch).place.tip)

    def _steps(self, branch: str) -> list[Step]:
        """The items of a branch with their turns."""
        seen = self._seen(branch, -1)
        return list(_counted(seen, items_of([item.text for item in seen])))

    async def _steps_of(self, branch_id: str | None) -> list[Step]:
        if branch_id is not None:
            await self._run(lambda: self._line(branch_id))
        branch = self._branch if branch_id is None else branch_id
        return await self._run(lambda: self._steps(branch))

    async def _usage_of(self, branch_id: str | None) -> list[tuple[int, Payload]]:
        """What was noted of the turns that a branch still has."""
        steps = await self._steps_of(branch_id)
        noted = self._log.line(self._branch if branch_id is None else branch_id).usage
        return [(step.turn, dict(noted[step.at.id])) for step in steps if step.at.id in noted]


def _counted(places: list[Item], items: list[Any]) -> Iterator[Step]:
    turn = 0
    for at, item in zip(places, items, strict=True):
        step = Step(turn, at, item)
        turn += step.begins_turn
        yield step._replace(turn=turn)


def _turn(step: Step, longest: int | None = None) -> dict[str, Any]:
    content = step.item.get("content", "")
    text = content if isinstance(content, str) else encode({"": content})[4:-1].decode()
    preview = text if longest is None or len(text) <= longest else text[:longest] + "..."
    told = {"turn": step.turn, "content": preview, "full_content": content}
    return {**told, "timestamp": step.at.at, "can_branch": True}


def _texts(item: Mapping[str, Any]) -> list[str]:
    content = item.get("content")
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _kind(item: Any) -> str:
    """What sort of item it is: who said it, or its type."""
    if not isinstance(item, dict):
        return "other"
    return str(item["role"] if item.get("role") in ("user", "assistant") else item.get("type") or "other")


def _tool(item: Any) -> str | None:
    """The tool that an item calls, with the server or namespace that it is from."""
    kind = _kind(item)
    if kind in (_SEARCH_CALL, _SEARCH_OUTPUT):
        return "tool_search"
    if kind in _UNNAMED or kind == "apply_patch_call":
        return kind
    if not isinstance(item, dict):
        return None
    owner = item.get("server_label") if kind in ("mcp_call", "mcp_approval_request") else item.get("namespace")
    name = item.get("name")
    return ".".join(str(part) for part in dict.fromkeys((owner, name)) if part) or None


def _details(value: Any) -> Payload | None:
    return None if value is None else {name: told for name, told in vars(value).items() if not name.startswith("_")}
