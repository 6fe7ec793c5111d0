"""Generate sessions in the format of pi and its family from a seed, with the same bytes on every machine.

They have tool results of 1–40 KB with a long tail (mean line about 8 KB), branches, labels, changes of model, thinking
level and mode, injected rules, images as blobs, text in Chinese and with emoji in a fifth of the lines, custom entries
with their id after the data, and a compaction every 200 entries that keeps the last twenty. The live part at the end is
the same for every size, so that sizes can be compared.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from .scale import SEED, Scale

VERSION = 4  # of the generator; a change regenerates the corpus
CWD = "/work/bench"
KEPT = 20
BETWEEN_COMPACTIONS = 200
LIVE_AFTER = 120
_END = 1_200_000  # approximate size of the live part

_PROSE = (
    "def class return self import from None True null undefined const let async await function value result error path "
    'index line session entry "quoted" {"a":1.0,"b":null} [0.0] \\d+ C:\\\\temp 1.2.0 3.0 => != == // # TODO: data list '
    "dict str int parent child leaf branch commit write read lock test assert expected actual 127.0.0.1 GET POST 200"
)
_CJK = "会话树追加日志索引叶子分支压缩上下文恢复进程断电持久写入读取文件错误测试日本語のテキスト한국어문장🙂🚀👩‍💻✅，。！ \n"
_MODELS = ("anthropic/claude-sonnet-4-5", "anthropic/claude-opus-4-5", "openai/gpt-5.2", "google/gemini-3-pro")
_ROLES = (None, None, "smol", "slow")
_LEVELS = ("off", "low", "medium", "high", "xhigh")
_RULES = tuple(f"rule-{name}" for name in ("no-any", "no-print", "typed", "tests", "docs", "paths", "sql", "secrets"))

Span = tuple[int, int]


class Corpus(msgspec.Struct):
    """A generated session and its figures."""

    version: int
    root: str
    path: str
    size: int
    entries: int
    live: list[Span]
    live_blobs: list[str]
    some_ids: list[str]
    label_target: str

    @property
    def cache(self) -> str:
        """Return the cache folder with a warm index."""
        return f"{self.root}/cache"

    def blob(self, digest: str) -> str:
        return f"{self.root}/blobs/{digest}"

    @property
    def live_bytes(self) -> int:
        return sum(length for _, length in self.live)


def corpus(scale: Scale, megabytes: float) -> Corpus:
    """Return the session of that size; create it if missing."""
    root = Path(scale.folder, f"corpus-{megabytes:g}mb")
    about = root / "about.json"
    try:
        found = msgspec.json.decode(about.read_bytes(), type=Corpus)
        if found.version == VERSION and os.stat(found.path).st_size >= found.size and found.root == str(root):
            if os.stat(found.path).st_size > found.size:  # an interrupted subject had appended to it
                os.truncate(found.path, found.size)
            return found
    except (FileNotFoundError, msgspec.MsgspecError):
        pass
    shutil.rmtree(root, ignore_errors=True)
    made = _Writer(root).write(int(megabytes * 1_000_000))
    about.write_bytes(msgspec.json.encode(made))
    return made


def sample_lines(made: Corpus, count: int) -> list[bytes]:
    """Return the first message lines of a corpus."""
    lines: list[bytes] = []
    with open(made.path, "rb") as file:
        for line in file:
            if line.startswith(b'{"type":"message"') and b"blob:sha256:" not in line:
                lines.append(line[:-1])
                if len(lines) == count:
                    break
    return lines


def sample_messages(made: Corpus, count: int) -> list[dict[str, Any]]:
    """Return the first messages of a corpus, decoded."""
    return [msgspec.json.decode(line)["message"] for line in sample_lines(made, count)]


class _Writer:
    """Writes one session, entry by entry."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._random = Random(SEED)
        self._prose = _text(self._random, _PROSE.split(), 1_000_000)
        self._foreign = "".join(self._random.choices(_CJK, k=300_000))
        self._ids: set[str] = set()
        self._path: list[str] = []  # of the entries since the last compaction
        self._leaf: str | None = None
        self._at = 0
        self._entries = 0
        self._clock = datetime(2026, 1, 1, tzinfo=UTC)
        self._calls = self._image_at = 0
        self._blobs: list[str] = []

    def write(self, size: int) -> Corpus:
        folder = self._root / "sessions" / "--work-bench--"
        folder.mkdir(parents=True)
        (self._root / "blobs").mkdir()
        session_id = "0199aaaa-0000-7000-8000-000000000000"
        path = folder / f"2026-01-01T00-00-00-000Z_{session_id}.jsonl"
        header = {"type": "session", "version": 3, "id": session_id, "timestamp": self._time(), "cwd": CWD}
        some: list[str] = []
        with open(path, "wb", buffering=1 << 20) as self._file:
            self._put(header)
            self._entry("model_change", provider="anthropic", modelId="claude-sonnet-4-5", model=_MODELS[0])
            self._entry("thinking_level_change", thinkingLevel="medium")
            while self._at < size - _END:
                self._turn()
                if self._leaf and self._random.random() < 0.05 and len(some) < 2000:
                    some.append(self._leaf)
                if self._random.random() < 0.08 and len(self._path) > 40:
                    self._branch()
                if self._entries % 400 < 12:
                    self._entry("label", targetId=self._leaf, label=f"step {self._entries}")
                if len(self._path) >= BETWEEN_COMPACTIONS:
                    self._compact()
            live = self._end()
            target = self._leaf or ""
            self._entry("label", targetId=target, label="the end")
        self._random.shuffle(some)
        return Corpus(
            version=VERSION,
            root=str(self._root),
            path=str(path),
            size=self._at,
            entries=self._entries,
            live=live,
            live_blobs=self._blobs,
            some_ids=some[:400],
            label_target=target,
        )

    def _end(self) -> list[Span]:
        """Write the same last entries for every size: some to keep, a compaction, and the entries after it."""
        self._random = Random(SEED + 1)
        self._compact()
        self._blobs = []
        spans: list[Span] = []
        while len(self._path) < KEPT:
            spans += self._turn()
        kept = len(self._path)
        spans += [self._compact(keep=kept)]
        self._image_at = self._calls + 10  # at least one image is live
        while len(self._path) < LIVE_AFTER:
            spans += self._turn()
        return spans

    def _turn(self) -> list[Span]:
        """Write a question, tool calls and an answer, sometimes after a change of state."""
        random = self._random
        spans = list(self._changes())
        spans.append(self._message({"role": "user", "content": [self._block(random.randint(40, 1500))]}))
        for _ in range(random.randint(2, 9)):
            self._calls += 1
            call = f"toolu_{self._calls:08d}"
            thinking = {
                "type": "thinking",
                "thinking": self._words(random.randint(80, 900)),
                "thinkingSignature": "c2ln" * 40,
            }
            arguments = {
                "path": f"src/module_{random.randint(1, 400)}.py",
                "offset": random.randint(0, 900),
                "note": self._words(120),
            }
            use = {"type": "toolCall", "id": call, "name": "read", "arguments": arguments}
            spans.append(self._assistant([thinking, use], "toolUse"))
            spans.append(self._tool_result(call))
        spans.append(self._assistant([self._block(random.randint(200, 4000))], "stop"))
        return spans

    def _changes(self) -> Iterator[Span]:
        random = self._random
        kind = random.randint(0, 39)
        if kind == 0:
            model, role = random.choice(_MODELS), random.choice(_ROLES)
            provider, name = model.split("/")
            members = {"model": model} | ({"role": role} if role else {"provider": provider, "modelId": name})
            yield self._entry("model_change", **members)
        elif kind <= 2:
            yield self._entry("thinking_level_change", thinkingLevel=random.choice(_LEVELS))
        elif kind == 3:
            plan = {"planFilePath": f"local://PLAN-{random.randint(1, 10**6)}.md"}
            yield self._entry("mode_change", mode="plan", data=plan)
            yield self._message({"role": "user", "content": [self._block(300)]})
            yield self._entry("mode_change", mode="none")
        elif kind <= 5:
            yield self._entry("ttsr_injection", injectedRules=[random.choice(_RULES)])
        elif kind <= 8:
            yield self._late_id()
        elif kind == 9:
            yield self._entry("custom_message", customType="notice", content=self._words(400), display=True)

    def _tool_result(self, call: str) -> Span:
        random = self._random
        size = int(min(400_000, max(1_000, random.lognormvariate(9.25, 0.95))))
        content: list[dict[str, Any]] = [self._block(size)]
        if random.random() < 0.006 or self._calls == self._image_at:
            content.append({"type": "image", "data": self._image(), "mimeType": "image/png"})
        return self._message(
            {"role": "toolResult", "toolCallId": call, "toolName": "read", "content": content, "isError": False}
        )

    def _image(self) -> str:
        data = self._random.randbytes(self._random.randint(20_000, 120_000))
        digest = hashlib.sha256(data).hexdigest()
        (self._root / "blobs" / digest).write_bytes(data)
        self._blobs.append(digest)
        return f"blob:sha256:{digest}"

    def _assistant(self, content: list[dict[str, Any]], reason: str) -> Span:
        provider, model = _MODELS[self._entries // 3000 % len(_MODELS)].split("/")
        cost = {"input": 0.0123, "output": 0.25, "cacheRead": 0, "cacheWrite": 0, "total": 0.2623}
        usage = {"input": 1204, "output": 533, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 1737, "cost": cost}
        message = {"role": "assistant", "content": content, "api": "messages", "provider": provider, "model": model}
        return self._message(message | {"usage": usage, "stopReason": reason})

    def _message(self, message: dict[str, Any]) -> Span:
        return self._entry("message", message=message | {"timestamp": int(self._clock.timestamp() * 1000)})

    def _branch(self) -> None:
        """Go back some entries and continue there, sometimes with a summary of the abandoned branch."""
        back = self._random.randint(2, 30)
        del self._path[-back:]
        left, self._leaf = self._leaf, self._path[-1]
        if self._random.random() < 0.5:
            self._entry("branch_summary", fromId=left, summary=self._words(900))

    def _compact(self, keep: int = KEPT) -> Span:
        kept = self._path[-keep:] or [self._leaf or ""]
        summary = self._words(6000)
        span = self._entry("compaction", summary=summary, firstKeptEntryId=kept[0], tokensBefore=150_000)
        self._path = []
        return span

    def _late_id(self) -> Span:
        """Write a custom entry as pi does, with its base members after the data."""
        entry = {"type": "custom", "customType": "todo", "data": {"items": [self._words(200)] * 3}, **self._base()}
        return self._put(entry)

    def _entry(self, entry_type: str, **members: Any) -> Span:
        return self._put({"type": entry_type, **self._base(), **members})

    def _base(self) -> dict[str, Any]:
        entry_id = f"{self._random.getrandbits(32):08x}"
        while entry_id in self._ids:
            entry_id = f"{self._random.getrandbits(32):08x}"
        self._ids.add(entry_id)
        parent, self._leaf = self._leaf, entry_id
        self._path.append(entry_id)
        return {"id": entry_id, "parentId": parent, "timestamp": self._time()}

    def _put(self, record: dict[str, Any]) -> Span:
        line = msgspec.json.encode(record)
        self._file.write(line)
        self._file.write(b"\n")
        span = (self._at, len(line))
        self._at += len(line) + 1
        self._entries += 1
        return span

    def _block(self, size: int) -> dict[str, str]:
        return {"type": "text", "text": self._words(size)}

    def _words(self, size: int) -> str:
        random = self._random
        start = random.randrange(len(self._prose) - size) if size < len(self._prose) else 0
        text = self._prose[start : start + size]
        if random.random() < 0.15:
            at = random.randrange(len(self._foreign) - 2000)
            third = min(size // 3, 2000)
            text = text[: size - third] + self._foreign[at : at + third // 3]
        return text

    def _time(self) -> str:
        self._clock += timedelta(milliseconds=1750)
        return self._clock.strftime("%Y-%m-%dT%H:%M:%S.") + f"{self._clock.microsecond // 1000:03d}Z"


def _text(random: Random, words: list[str], size: int) -> str:
    """Return lines of words, indented like source code."""
    lines: list[str] = []
    length = 0
    while length < size:
        line = " " * random.choice((0, 0, 4, 8)) + " ".join(random.choices(words, k=random.randint(2, 14)))
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)
