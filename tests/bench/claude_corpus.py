"""Generate Claude Code transcripts from a seed, with the same bytes on every machine.

They have answers with one row per block, parallel calls whose results fan out, results with their second copy,
snapshots and queue rows beside the conversation, titles at the end, and text in Chinese and with emoji in a sixth of
the rows. A model's window is full after about two megabytes, so there is a compaction that often, and always one near
the end of a file.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import msgspec

from .scale import SEED, Scale

VERSION = 1  # of the generator; a change regenerates the transcripts
_PROJECTS = 40
_FULL = 5000  # sessions; a smoke run has fewer
_SMALLEST, _USUAL, _LARGEST = 2_000, 60_000, 4_000_000  # bytes of a session in the listing
_SPREAD = 1.4
_WINDOW = 2_000_000  # bytes of a file between two compactions
_LIVE = 1_200_000  # bytes after the last one
_POOL = 1_000_000
_LONGEST = 30_000  # characters of a tool result

_PROSE = (
    "def class return self import from None True const let async await function value result error path index line "
    'session entry "quoted" {"a":1,"b":null} \\d+ C:\\temp 1.2.0 => != // # TODO: data list dict str int parent child '
    "leaf branch commit write read lock test assert expected actual 127.0.0.1 GET POST 200 \n \n\t the a to of and in is"
)
_OTHER = (
    "会话树追加日志索引叶子分支压缩上下文恢复进程断电持久写入读取文件错误测试日本語のテキスト한국어문장🙂🚀✅，。！ \n"
)

Row = dict[str, Any]


class Transcript(msgspec.Struct):
    """A large transcript in its own config home."""

    version: int
    home: str
    path: str
    session_id: str
    size: int
    rows: int

    @property
    def cache(self) -> str:
        """Return the folder of a persistent index."""
        return f"{self.home}/cache"

    @property
    def root(self) -> str:
        """Return the root of an empty native store."""
        return f"{self.home}/store"


def sessions(scale: Scale) -> tuple[str, int]:
    """Return a config home with thousands of sessions in project folders, and their number; create it if missing."""
    count = _FULL if scale.rounds > 1 else 50
    home = Path(scale.folder, f"claude-{count}-{VERSION}")
    if not (home / "made").exists():
        shutil.rmtree(home, ignore_errors=True)
        texts = _Texts(Random(SEED))
        for number in range(count):
            random = Random(SEED + number)
            size = min(_LARGEST, max(_SMALLEST, int(_USUAL * random.lognormvariate(0, _SPREAD))))
            talk = _Talk(random, texts, f"/work/project-{number % _PROJECTS}")
            folder = home / "projects" / talk.cwd.replace("/", "-")
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{talk.session_id}.jsonl"
            path.write_bytes(b"".join(talk.lines(size)))
            os.utime(path, (1.77e9 + number, 1.77e9 + number))
        (home / "made").touch()
    return str(home), count


def transcript(scale: Scale, megabytes: float) -> Transcript:
    """Return a transcript of that size; create it if missing."""
    home = Path(scale.folder, f"claude-{megabytes:g}mb")
    about = home / "about.json"
    try:
        found = msgspec.json.decode(about.read_bytes(), type=Transcript)
        if (found.version, found.home, found.size) == (VERSION, str(home), os.stat(found.path).st_size):
            return found
    except (FileNotFoundError, msgspec.MsgspecError):
        pass
    shutil.rmtree(home, ignore_errors=True)
    random = Random(SEED)
    talk = _Talk(random, _Texts(random), "/work/bench")
    folder = home / "projects" / "-work-bench"
    folder.mkdir(parents=True)
    path = folder / f"{talk.session_id}.jsonl"
    rows = 0
    with path.open("wb") as file:
        for line in talk.lines(int(megabytes * 1_000_000)):
            file.write(line)
            rows += 1
    made = Transcript(VERSION, str(home), str(path), talk.session_id, path.stat().st_size, rows)
    about.write_bytes(msgspec.json.encode(made))
    return made


class _Texts:
    """Slices of two long texts."""

    def __init__(self, random: Random) -> None:
        words = random.choices(_PROSE.split(" "), k=_POOL // 5)
        self._prose = " ".join(words)
        self._other = "".join(random.choices(_OTHER, k=_POOL // 4))

    def piece(self, random: Random, length: int) -> str:
        pool = self._other if random.random() < 1 / 6 else self._prose
        start = random.randrange(len(pool) - _LONGEST)
        return pool[start : start + length]


class _Talk:
    """A session, generated row by row."""

    def __init__(self, random: Random, texts: _Texts, cwd: str) -> None:
        self.cwd = cwd
        self._random = random
        self._texts = texts
        self.session_id = self._uuid()
        self._clock = datetime(2026, 1, 1, tzinfo=UTC)
        self._leaf: str | None = None
        self._answers = self._calls = 0

    def lines(self, size: int) -> Iterator[bytes]:
        """Yield encoded rows of about that many bytes, in whole turns."""
        written = since = 0
        compacted = size < _WINDOW  # shorter ones have none
        for row in self._beginning():
            line = msgspec.json.encode(row) + b"\n"
            written += len(line)
            yield line
        while written < size:
            near_the_end = not compacted and written > size - _LIVE
            rows = self._turn()
            if near_the_end or since > _WINDOW:
                rows, since, compacted = self._compaction(), 0, compacted or near_the_end
            for row in rows:
                line = msgspec.json.encode(row) + b"\n"
                written, since = written + len(line), since + len(line)
                yield line
        for row in self._end():
            yield msgspec.json.encode(row) + b"\n"

    # -- rows

    def _beginning(self) -> Iterator[Row]:
        yield {"type": "queue-operation", "operation": "enqueue", "timestamp": self._now(), **self._own()}
        yield {"type": "queue-operation", "operation": "dequeue", "timestamp": self._now(), **self._own()}
        yield self._chained("user", {"message": {"role": "user", "content": f"Please {self._text(120)}"}})
        yield self._answered([{"type": "text", "text": self._text(300)}], "end_turn")

    def _turn(self) -> Iterator[Row]:
        """Add a question, calls with results, and an answer."""
        asked = self._chained("user", {"message": {"role": "user", "content": self._text(200)}, "promptId": "p"})
        yield {"type": "file-history-snapshot", "messageId": asked["uuid"], "snapshot": self._snapshot(asked["uuid"])}
        yield asked
        for _ in range(self._random.randint(1, 6)):
            yield from self._work()
        yield self._answered([{"type": "text", "text": self._text(1200)}], "end_turn")
        yield self._chained("system", {"subtype": "turn_duration", "durationMs": 40_000, "isMeta": False})

    def _work(self) -> Iterator[Row]:
        """Add a response with a thought and one or more parallel calls; each result is a child of its call."""
        self._answers += 1
        yield self._answered([{"type": "thinking", "thinking": self._text(400), "signature": "c2ln" * 80}], None)
        calls = []
        for _ in range(3 if self._random.random() < 0.1 else 1):
            self._calls += 1
            call = {"type": "tool_use", "id": f"toolu_{self._calls:024d}", "name": "Read"}
            row = self._answered([call | {"input": {"file_path": f"{self.cwd}/{self._text(20)}.py"}}], "tool_use")
            calls.append((call["id"], row["uuid"]))
            yield row
        for call_id, uuid in calls:
            yield self._result(call_id, uuid)

    def _result(self, call_id: str, uuid: str) -> Row:
        text = self._text(min(_LONGEST, int(500 * self._random.paretovariate(1.1))))
        block = {"tool_use_id": call_id, "type": "tool_result", "content": text}
        file = {"filePath": f"{self.cwd}/a.py", "content": text, "numLines": 40, "startLine": 1, "totalLines": 40}
        self._leaf = uuid
        return self._chained(
            "user",
            {"message": {"role": "user", "content": [block]}},
            {"toolUseResult": {"type": "text", "file": file}, "sourceToolAssistantUUID": uuid},
        )

    def _compaction(self) -> Iterator[Row]:
        before, self._leaf = self._leaf, None
        metadata = {"trigger": "auto", "preTokens": 170_000, "postTokens": 9_000}
        yield self._chained(
            "system",
            {"subtype": "compact_boundary", "content": "Conversation compacted", "logicalParentUuid": before},
            {"compactMetadata": metadata, "level": "info"},
        )
        summary = {"role": "user", "content": f"This session is being continued. {self._text(9000)}"}
        yield self._chained("user", {"message": summary, "isCompactSummary": True, "isVisibleInTranscriptOnly": True})

    def _end(self) -> Iterator[Row]:
        yield {"type": "ai-title", "aiTitle": self._text(40).replace("\n", " "), **self._own()}
        yield {"type": "last-prompt", "lastPrompt": self._text(80), "leafUuid": self._leaf, **self._own()}

    def _answered(self, content: list[Row], stop: str | None) -> Row:
        usage = {"input_tokens": 4, "cache_creation_input_tokens": 900, "cache_read_input_tokens": 90_000}
        message = {
            "model": "claude-opus-4-5",
            "id": f"msg_{self._answers:024d}",
            "type": "message",
            "role": "assistant",
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": usage | {"output_tokens": 300, "service_tier": "standard"},
        }
        if stop == "end_turn":
            self._answers += 1
        return self._chained("assistant", {"message": message, "requestId": f"req_{self._answers:024d}"})

    def _chained(self, kind: str, said: Row, behind: Row | None = None) -> Row:
        uuid = self._uuid()
        row = {
            "parentUuid": self._leaf,
            "isSidechain": False,
            "userType": "external",
            "cwd": self.cwd,
            **self._own(),
            "version": "2.1.44",
            "gitBranch": "main",
            "type": kind,
            **said,
            "uuid": uuid,
            "timestamp": self._now(),
            **(behind or {}),
        }
        self._leaf = uuid
        return row

    def _snapshot(self, uuid: str) -> Row:
        return {"messageId": uuid, "trackedFileBackups": {}, "timestamp": self._now()}

    def _own(self) -> Row:
        return {"sessionId": self.session_id}

    def _text(self, length: int) -> str:
        return self._texts.piece(self._random, length)

    def _uuid(self) -> str:
        return str(UUID(int=self._random.getrandbits(128), version=4))

    def _now(self) -> str:
        self._clock += timedelta(seconds=2)
        return f"{self._clock:%Y-%m-%dT%H:%M:%S}.000Z"
