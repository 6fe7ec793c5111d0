"""Generated Claude Code transcripts with the row shapes of real and damaged files, reproducible by seed."""

from __future__ import annotations

import json
import random
from typing import Any

Json = dict[str, Any]

SESSION = "11111111-2222-4333-8444-555555555555"


def row(kind: str, uuid: str, parent: str | None = None, **members: Any) -> Json:
    """Return a row; the text of a message is its uuid."""
    made: Json = {"parentUuid": parent, "isSidechain": False, "type": kind, "uuid": uuid, "sessionId": SESSION}
    if kind in ("user", "assistant"):
        made["message"] = {"role": kind, "content": uuid}
    return {**made, "timestamp": "2026-01-01T00:00:00.000Z", **members}


def lines(rows: list[Json]) -> bytes:
    """Return rows as the bytes of a file."""
    return b"".join(json.dumps(each, separators=(",", ":")).encode() + b"\n" for each in rows)


def boundary(uuid: str, parent: str | None = None, **metadata: Any) -> Json:
    """Return the row that starts a compaction."""
    return row("system", uuid, parent, subtype="compact_boundary", compactMetadata={"trigger": "auto", **metadata})


def called(uuid: str, parent: str | None, response: str, *calls: str, **members: Any) -> Json:
    """Return an assistant row that calls tools."""
    content = [{"type": "tool_use", "id": call, "name": "Bash", "input": {}} for call in calls]
    return row("assistant", uuid, parent, message={"role": "assistant", "id": response, "content": content}, **members)


def answered(uuid: str, parent: str | None, *calls: str, **members: Any) -> Json:
    """Return a user row with tool results."""
    content = [{"type": "tool_result", "tool_use_id": call, "content": "done"} for call in calls]
    return row("user", uuid, parent, message={"role": "user", "content": content}, **members)


class Tree:
    """A random transcript with branches, parallel calls, progress, compactions, queued prompts and damage."""

    def __init__(self, seed: int, longest: int = 14) -> None:
        self._random = random.Random(seed)
        self._uuids: list[str] = []
        self.rows: list[Json] = []
        self._size = self._random.randint(1, longest)
        for number in range(self._size):
            self._add(number)
            if self._chance(0.12):
                self._compact(number)

    def _chance(self, likelihood: float) -> bool:
        return self._random.random() < likelihood

    def _parent(self, number: int) -> str | None:
        if not self._uuids or self._chance(0.06):
            return None
        if self._chance(0.04):
            return self._random.choice(["ghost", f"u{self._random.randint(number, self._size)}"])
        return self._uuids[-1] if self._chance(0.7) else self._random.choice(self._uuids)

    def _add(self, number: int) -> None:
        pick = self._random
        kind = pick.choices(["user", "assistant", "system", "attachment", "progress"], [6, 6, 1, 2, 2])[0]
        uuid = pick.choice(self._uuids) if self._uuids and self._chance(0.03) else f"u{number}"
        second = pick.randint(0, 59) if self._chance(0.3) else number
        made = row(kind, uuid, self._parent(number), timestamp=f"2026-01-01T00:00:{second:02d}.000Z")
        if kind == "assistant" and self._chance(0.7):
            made["message"] = {"role": kind, "id": f"m{pick.randint(0, 2)}", "content": [{"type": "text", "text": "t"}]}
            if self._chance(0.7):
                made["message"]["content"] = [{"type": "tool_use", "id": f"t{pick.randint(0, 5)}"}]
        if kind == "user" and self._chance(0.5):
            made["message"]["content"] = [{"type": "tool_result", "tool_use_id": f"t{pick.randint(0, 5)}"}]
            if self._uuids and self._chance(0.5):
                made["sourceToolAssistantUUID"] = pick.choice(self._uuids)
        if kind == "attachment":
            made["attachment"] = {"type": "queued_command", "prompt": "q"} if self._chance(0.5) else {"type": "file"}
        for member, value in (("isMeta", True), ("isSidechain", True), ("teamName", "red"), ("agentId", "x")):
            if self._chance(0.05):
                made[member] = value
        if self._chance(0.02):
            del made["uuid"]
        else:
            self._uuids.append(uuid)
        self.rows.append(made)

    def _compact(self, number: int) -> None:
        pick = self._random
        name, summary = f"b{number}", f"s{number}"
        anchor = pick.choice([summary, summary, name, "ghost"])
        hints: Json = {}
        if self._uuids and self._chance(0.4):
            hints["preservedSegment"] = {
                "headUuid": pick.choice(self._uuids),
                "anchorUuid": anchor,
                "tailUuid": pick.choice([*self._uuids, "ghost"]),
            }
        if self._uuids and self._chance(0.4):
            kept = [pick.choice([*self._uuids, *(["ghost"] if self._chance(0.1) else [])]) for _ in range(2)]
            hints["preservedMessages"] = {"anchorUuid": anchor, "uuids": kept}
        last = self._uuids[-1] if self._uuids and self._chance(0.1) else None
        self.rows.append(boundary(name, last, **hints))
        self._uuids.append(name)
        if self._chance(0.85):
            self.rows.append(row("user", summary, name, isCompactSummary=True))
            self._uuids.append(summary)
