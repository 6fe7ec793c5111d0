"""Generated Claude Code files with odd members, damaged lines, metadata of every kind, agents and sidecars.

`claude_trees` varies the shape of the chain; this module varies the content and bytes of rows. Files are reproducible
by seed. Each file has its own probabilities: most odd things happen never or often in it, so that they are combined.
"""

from __future__ import annotations

import json
import random
from typing import Any

Json = dict[str, Any]

SESSION = "11111111-2222-4333-8444-555555555555"
CWDS = ("/w", "/w/a-b", "/home/dev/Grüße 😀", "")
TEXTS = (
    "fix the bug",
    "  spaced\n out ",
    "<command-name>/clear</command-name>",
    "<command-name>/a b</command-name> x",
    "<local-command-stdout>out</local-command-stdout>",
    "<local-command-stderr>out</local-command-stderr>",
    "<local-command-caveat>Caveat: x</local-command-caveat>",
    "<bash-input> ls -l </bash-input>",
    "<system-reminder>be good</system-reminder>",
    "<task-notification>x</task-notification>",
    "<Upper>kept</Upper>",
    "<ide_opened_file>f</ide_opened_file>",
    "<ide_selection>f</ide_selection> and more",
    "<tick>",
    "[Request interrupted by user]",
    "[Request interrupted by user for tool use]",
    "[Request interrupted",
    "",
    " \t ",
    "\ufeffmarked",
    "\u0085next line\u001c",
    "😀" * 150,
    "x" * 199 + "😀 tail",
    "y" * 198 + "  z tail",
    "a\u2028b\u2029c",
    'quoted "customTitle":"decoy" and \\ back',
    '<pasted_content id="12ab">\npasted\n</pasted_content id="12ab">\nrest',
    "lone \ud83d surrogate",
)
TIMES = (
    "2026-01-01T00:00:00.000Z",
    "2026-01-01T00:00:00.123Z",
    "2026-01-01T00:00:01Z",
    "2026-01-01T00:00:02.5Z",
    "2026-01-01T02:00:03.000+02:00",
    "2026-01-01",
    "2026-01-01T00:00:04.123456Z",
    "not a time",
    "",
)
ODD: tuple[Any, ...] = (None, True, False, 0, 1, 1.5, "", "odd", [], ["x"], {}, {"kind": "x"})
ORIGINS: tuple[Any, ...] = (
    None,
    "human",
    {"kind": "human"},
    {"kind": "channel"},
    {"kind": "peer", "name": "p"},
    {"kind": "observer"},
    {"kind": "slack-ping"},
    {"kind": "task-notification", "runId": "r1", "extra": 1},
    {"kind": "task-notification", "runId": "bad id!"},
)


class Wild:
    """A session: `data` is its file, `agents` are the files of its sub-agents by name, `sidecars` their metadata."""

    def __init__(self, seed: int, longest: int = 16) -> None:
        self._random = random.Random(seed)
        self._uuids: list[str] = []
        self._mood = {name: self._random.random() ** 3 for name in _MOODS}
        self.data = self._file(self._random.randint(0, longest))
        self.agents: dict[str, bytes] = {}
        self.sidecars: dict[str, bytes] = {}
        for number in range(self._random.choice((0, 1, 1, 2))):
            self._uuids = []
            folder = self._random.choice(("", "", "workflows/r1/", "b/"))
            name = f"{folder}agent-{self._random.choice(('x', 'y', 'z', ''))}{number}"
            self.agents[name] = self._file(self._random.randint(0, 8))
            if self._random.random() < 0.7:
                self.sidecars[name] = self._sidecar()

    # -- chances

    def _often(self, mood: str) -> bool:
        return self._random.random() < self._mood[mood]

    def _pick(self, *choices: Any) -> Any:
        return self._random.choice(choices)

    # -- files

    def _file(self, size: int) -> bytes:
        rows: list[Json] = []
        for number in range(size):
            if self._often("notes"):
                rows.append(self._note(number))
            rows.append(self._row(number))
            if self._random.random() < self._mood["compactions"] * 0.5:
                rows += self._compaction(number)
        if self._often("notes"):
            rows.append(self._note(size))
        lines = [self._line(row) for row in rows]
        if self._often("damage"):
            lines = [self._damaged(line) for line in lines]
        end = self._pick(b"\r\n", b"\n") if self._often("bytes") else b"\n"
        data = b"".join(line + end for line in lines)
        if self._often("damage") and self._often("damage"):
            data = data.rstrip(b"\r\n") if self._pick(0, 1) else data[: len(data) * 9 // 10]
        return b"\xef\xbb\xbf" + data if self._often("bytes") and self._pick(0, 0, 1) else data

    def _line(self, row: Json) -> bytes:
        spaced = self._often("bytes")
        text = json.dumps(row, ensure_ascii=True, separators=None if spaced else (",", ":"))
        if self._pick(0, 1):
            raw = json.dumps(row, ensure_ascii=False, separators=None if spaced else (",", ":"))
            if not any("\ud800" <= char <= "\udfff" for char in raw):
                text = raw
        return text.encode()

    def _damaged(self, line: bytes) -> bytes:
        if self._random.random() > 0.15:
            return line
        torn = line[: self._random.randint(0, len(line))]
        return bytes(
            self._pick(
                b"\0\0\0" + line,
                b"  \t" + line + b"  ",
                torn,
                torn + line,
                torn + b" " + line,
                line + line,
                b"",
                b"null",
                b"[1]",
                b"7",
                b'"text"',
                b"garbage",
                b'{"type":"user","uuid":NaN}',
                b'{"a":[' * 300,
                b"\x1c" + line,
            )
        )

    def _sidecar(self) -> bytes:
        members = {
            "agentType": "explorer",
            "toolUseId": self._pick("toolu_1", "", 7, "odd id!", None),
            "parentAgentId": self._pick("a1", "", None, ["x"], "odd id!"),
        }
        whole = json.dumps({name: value for name, value in members.items() if self._pick(0, 1)}).encode()
        return bytes(self._pick(whole, whole, whole, b"", b"null", b"[]", whole[:-1], b"\xef\xbb\xbf" + whole))

    # -- rows of the chain

    def _parent(self, number: int) -> Any:
        if not self._uuids or self._random.random() < 0.05:
            return None
        if self._often("links"):
            ahead = f"u{self._random.randint(number, number + 3)}"
            return self._pick("ghost", ahead, self._random.choice(self._uuids), self._uuids[-1], None, "")
        return self._uuids[-1] if self._random.random() < 0.8 else self._random.choice(self._uuids)

    def _row(self, number: int) -> Json:
        kinds = ["user", "assistant", "system", "attachment", "progress", "future"]
        kind = self._random.choices(kinds, [6, 6, 1, 1 + 4 * self._mood["queued"], 4 * self._mood["progress"], 0.3])[0]
        uuid: Any = f"u{number}"
        if self._uuids and self._often("repeats"):
            uuid = self._random.choice(self._uuids)
        row: Json = {"parentUuid": self._parent(number), "isSidechain": False, "type": kind, "uuid": uuid}
        row |= {"sessionId": SESSION, "timestamp": self._time(number)}
        if kind in ("user", "assistant"):
            row["message"] = self._message(kind)
        if kind == "user":
            self._result(row)
        if kind == "attachment":
            row["attachment"] = self._attachment()
        if kind == "system":
            row |= {"subtype": self._pick("informational", "api_error", "turn_duration"), "content": "told"}
        for member, value in (
            ("isMeta", True),
            ("isSidechain", True),
            ("teamName", "red"),
            ("agentId", "x"),
            ("isCompactSummary", True),
            ("isVisibleInTranscriptOnly", True),
            ("interruptedByShutdown", True),
        ):
            if self._random.random() < self._mood["flags"] * 0.4:
                row[member] = value
        if self._often("origins"):
            row["origin"] = self._random.choice(ORIGINS)
        if self._often("places"):
            row |= {"cwd": self._random.choice(CWDS), "gitBranch": self._pick("main", "dev", "")}
            row |= {"entrypoint": self._pick("cli", "sdk-py", "sdk-ts"), "sessionKind": self._pick("x", "daemon")}
        if self._often("odd"):
            self._make_odd(row)
        if isinstance(row.get("uuid"), str):
            self._uuids.append(row["uuid"])
        return row

    def _time(self, number: int) -> str:
        if self._often("times"):
            return str(self._random.choice(TIMES))
        second = self._random.randint(0, 59) if self._often("links") else number % 60
        return f"2026-01-01T00:00:{second:02d}.000Z"

    def _message(self, kind: str) -> Any:
        content: Any = self._random.choice(TEXTS) if self._often("texts") else "said"
        if self._often("blocks"):
            content = [
                {"type": "text", "text": content},
                self._pick({"type": "image"}, {"type": "document"}, "raw", None),
            ]
            self._random.shuffle(content)
        message: Json = {"role": kind, "content": content}
        if kind == "assistant":
            if self._random.random() < 0.8:
                message["id"] = f"m{self._random.randint(0, 3)}"
            if self._often("tools"):
                count = self._pick(1, 1, 2)
                message["content"] = [{"type": "tool_use", "id": self._call(), "name": "Bash"} for _ in range(count)]
        return message

    def _call(self) -> Any:
        return self._pick("t0", "t1", "t2", "t3", "t4", "t5", 5 if self._often("odd") else "t6")

    def _result(self, row: Json) -> None:
        if not self._often("tools"):
            return
        count = self._pick(1, 1, 1, 2)
        row["message"]["content"] = [
            {"type": "tool_result", "tool_use_id": self._call(), "content": "done"} for _ in range(count)
        ]
        if self._uuids and self._pick(0, 1):
            row["sourceToolAssistantUUID"] = self._random.choice([*self._uuids, "ghost"])
        if self._often("flags"):
            row["toolDenialKind"] = self._pick("user-rejected", "odd")

    def _attachment(self) -> Any:
        if not self._often("queued"):
            return self._pick({"type": "file"}, {"type": "todo_reminder"}, {"type": "fork_briefing"}, None, "odd")
        made: Json = {"type": "queued_command", "prompt": self._pick("q", [{"type": "text", "text": "q"}], 7)}
        for member, choices in (
            ("source_uuid", ["s1", "s2", "u1", "u2", "", 5]),
            ("isMeta", [True, False, 1]),
            ("commandMode", ["prompt", "task-notification", 5]),
            ("origin", list(ORIGINS)),
            ("runId", ["r1", "bad id!", 5]),
        ):
            if self._random.random() < 0.3:
                made[member] = self._random.choice(choices)
        return made

    def _make_odd(self, row: Json) -> None:
        member = self._random.choice([*row, "teamName", "isMeta", "agentId", "sourceToolAssistantUUID"])
        if self._pick(0, 0, 1):
            row.pop(member, None)
        elif member == "message" and self._pick(0, 1) and isinstance(row["message"], dict):
            row["message"][self._pick("id", "content", "role")] = self._random.choice(ODD)
        elif member not in ("type", "parentUuid", "timestamp", "sourceToolAssistantUUID", "uuid"):
            row[member] = self._random.choice(ODD)
        else:
            row[member] = self._pick(None, True, 0, 5, "odd") if member == "uuid" else self._pick(None, "", "odd")

    def _compaction(self, number: int) -> list[Json]:
        boundary, summary = f"b{number}", f"s{number}"
        anchor = self._pick(summary, summary, boundary, "ghost", self._uuids[-1] if self._uuids else None)
        known = [*self._uuids, "ghost"] if self._pick(0, 0, 1) or not self._uuids else self._uuids
        metadata: Json = {"trigger": "auto", "preTokens": 9}
        if self._pick(0, 1):
            head, tail = self._random.choice(known), self._random.choice(known)
            metadata["preservedSegment"] = {"headUuid": head, "anchorUuid": anchor, "tailUuid": tail}
        if self._pick(0, 0, 1):
            kept = [self._random.choice(known) for _ in range(self._random.randint(0, 4))]
            metadata["preservedMessages"] = {"anchorUuid": anchor, "uuids": kept, "allUuids": kept}
        for hint in ("preservedSegment", "preservedMessages"):
            if hint in metadata and self._often("hints"):
                metadata[hint] = self._pick(None, {}, False, 0, "", {**metadata[hint], "anchorUuid": "nobody"})
        rows = [
            {
                "parentUuid": self._uuids[-1] if self._uuids and self._often("hints") else None,
                "logicalParentUuid": self._uuids[-1] if self._uuids else None,
                "isSidechain": False,
                "type": "system",
                "subtype": "compact_boundary",
                "uuid": boundary,
                "sessionId": SESSION,
                "timestamp": self._time(number),
                "compactMetadata": None if self._often("hints") and self._pick(0, 0, 1) else metadata,
            }
        ]
        self._uuids.append(boundary)
        if self._pick(0, 1, 1, 1):
            told = {"role": "user", "content": "summary"}
            rows.append({**rows[0], "parentUuid": boundary, "type": "user", "uuid": summary, "message": told})
            rows[-1] |= {"isCompactSummary": True}
            for member in ("compactMetadata", "subtype", "logicalParentUuid"):
                del rows[-1][member]
            self._uuids.append(summary)
        return rows

    # -- rows beside the chain

    def _note(self, number: int) -> Json:
        text = self._random.choice(TEXTS)
        named = self._random.choice(self._uuids) if self._uuids else "ghost"
        note: Json = self._pick(
            {"type": "custom-title", "customTitle": text},
            {"type": "ai-title", "aiTitle": text},
            {"type": "tag", "tag": self._pick("work", "", "a b")},
            {"type": "last-prompt", "lastPrompt": text, "leafUuid": named},
            {"type": "summary", "summary": text, "leafUuid": named},
            {"type": "other", "summary": text, "lastPrompt": "last", "customTitle": "decoy", "tag": "decoy"},
            {"type": "relocated", "relocatedCwd": self._random.choice(CWDS)},
            {"type": "queue-operation", "operation": "enqueue", "content": text, "timestamp": self._time(number)},
            {
                "type": "queue-operation",
                "operation": "remove",
                "reason": "absorbed_mid_turn",
                "commandUuid": self._pick("s1", "s2", "u1"),
            },
            {"type": "file-history-snapshot", "messageId": named, "snapshot": {"messageId": named}, "uuid": named},
            {"type": "attribution-snapshot", "messageId": named},
            {"type": "permission-mode", "permissionMode": "default"},
            {"type": "content-replacement", "replacements": [{"kind": "tool-result", "toolUseId": "t1"}]},
        )
        note["sessionId"] = SESSION
        if self._often("odd"):
            self._make_odd(note)
        if self._pick(0, 0, 0, 1):
            note = dict(reversed(note.items()))
        return note


_MOODS = (
    "blocks",
    "bytes",
    "compactions",
    "damage",
    "flags",
    "hints",
    "links",
    "notes",
    "odd",
    "origins",
    "places",
    "progress",
    "queued",
    "repeats",
    "texts",
    "times",
    "tools",
)
