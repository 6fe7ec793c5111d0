"""OpenClaw since 2026.7: each of its agents has a SQLite database. Earlier releases have files (`sessile.agents.openclaw`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sessile.agents.base import Entry
from sessile.agents.openclaw_db.database import DATABASE, NAME, OWN_PROMPT, SUBMITTED, Sessions, archived
from sessile.agents.pi import PI, facts_in
from sessile.agents.tables import TableAgent
from sessile.core.lines import Finding
from sessile.core.messages.family import Message, joined_text, text_block
from sessile.storage.base import Filesystem
from sessile.storage.layout import Source

_ARCHIVE = re.compile(r"/sessions/[^/]+\.jsonl\.(?:deleted|reset)\.[^/]+\.zst$")
_ZSTD = b"\x28\xb5\x2f\xfd"
_STOPPED = ("error", "aborted")
_SILENT = "NO_REPLY"
_SEEN = 4  # prompts after which the image of a tool result is not sent any more
_REMOVED = "[image data removed - already processed by model]"


class OpenClawDatabase(TableAgent):
    """A gateway: `~/.openclaw/agents/<agent>/agent/openclaw-agent.sqlite`, one for each of its agents."""

    name = NAME
    title = "OpenClaw"
    command = ("openclaw", "agent", "--session-id")
    resumes_by_id = True
    variables = (("OPENCLAW_STATE_DIR", "~/.openclaw"),)
    database = DATABASE
    reader = Sessions()

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the database of each of its agents."""
        root = environ.get("OPENCLAW_STATE_DIR") or f"{home}/.openclaw"
        folders = [f"{root}/agents/{agent}/agent" for agent in sorted(names(f"{root}/agents"))]
        return [source._replace(root=root) for folder in folders for source in self.databases(folder, names)]

    def sources_at(self, folder: str, names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the databases in a home folder, in a state folder, or in the folder itself."""
        state = self.sources(folder, {"OPENCLAW_STATE_DIR": folder}, names)
        return [*super().sources_at(folder, names), *state]

    def renders(self, path: str, first: bytes) -> bool:
        """Return whether a path is inside of a database, or an archive of a session."""
        return super().renders(path, first) or (bool(_ARCHIVE.search(path)) and first.startswith(_ZSTD))

    def render(self, fs: Filesystem, path: str) -> Iterator[Entry | Finding]:
        """Yield one session of a database, or that in an archive."""
        return archived(fs, path) if self.database_of(path) is None else super().render(fs, path)

    def model_facts(self, fs: Filesystem, path: str, provider: str, model: str) -> Mapping[str, Any]:
        """Return what the file of models beside the database says."""
        place = self.database_of(path) or path
        return facts_in(fs, f"{place.rpartition('/')[0]}/models.json", provider, model)


# -- requests


def prepared(messages: Sequence[Message]) -> list[Message | None]:
    """Return the messages of a context as OpenClaw sends them; `None` for those that it does not send, or has merged.

    Every prompt gets its minute (UTC, as the program has it unless it is told another zone). Consecutive prompts become one,
    but for those that are to be answered, which are in the words in which they were submitted.
    """
    sent: list[Message | None] = [message if _is_sent(message) else None for message in messages]
    answered = max((at for at, message in enumerate(sent) if message and message["role"] == "assistant"), default=-1)
    prompts = [at for at, message in enumerate(sent) if message and message["role"] == "user"]
    before: int | None = None  # the prompt just before this message
    for at, message in enumerate(sent):
        if message is None:
            continue
        if message["role"] == "user":
            if at > answered:
                submitted = _as_submitted(message)
                sent[at] = submitted if _is_own(message) else _timed(submitted)
                continue
            earlier = None if before is None else sent[before]
            if earlier is not None and before is not None:
                sent[before] = {**earlier, "content": [*_blocks(earlier), *_blocks(message)]}
                sent[at] = None
                continue
            sent[at] = _timed(message)
        elif message.get("customType") == OWN_PROMPT:
            sent[at] = _timed({**message, "role": "user"}) if at > answered else None
            continue
        elif message["role"] == "toolResult" and sum(prompt > at for prompt in prompts) >= _SEEN:
            sent[at] = _without_images(message)
        before = at if message["role"] == "user" else None
    return sent


def _is_sent(message: Message) -> bool:
    if message.get("excludeFromContext"):
        return False
    if message["role"] != "assistant":
        return True
    said = joined_text(message.get("content")).strip()
    return message.get("stopReason") not in _STOPPED and bool(message.get("content")) and said != _SILENT


def _is_own(message: Message) -> bool:
    """Return whether a prompt was made by the program, and has a stub in the transcript."""
    provenance = message.get("provenance")
    return isinstance(provenance, Mapping) and provenance.get("kind") == "internal_system"


def _blocks(message: Message) -> list[Message]:
    content = message.get("content")
    return [text_block(content)] if isinstance(content, str) else list(content or ())


def _timed(message: Message) -> Message:
    at = message.get("timestamp")
    if not isinstance(at, int | float):
        return message
    minute = datetime.fromtimestamp(at / 1000, UTC).strftime("[%a %Y-%m-%d %H:%M UTC] ")
    blocks = _blocks(message)
    first = next((number for number, block in enumerate(blocks) if block.get("type") == "text"), None)
    if first is not None:
        blocks[first] = {**blocks[first], "text": f"{minute}{blocks[first].get('text', '')}"}
    return {**message, "content": blocks}


def _as_submitted(message: Message) -> Message:
    """Return a prompt in the words in which it is sent until it is answered."""
    words = message.get(SUBMITTED)
    if not isinstance(words, str):
        return message
    return {
        **message,
        "content": [text_block(words), *(part for part in _blocks(message) if part.get("type") != "text")],
    }


def _without_images(message: Message) -> Message:
    content = [text_block(_REMOVED) if block.get("type") == "image" else block for block in _blocks(message)]
    return {**message, "content": content}


OpenClawDatabase.dialect = PI._replace(
    name=NAME,
    gaps=(
        "system prompt: OpenClaw does not store it",
        "tools: OpenClaw does not store their descriptions",
        "internal context: OpenClaw adds a message about processes and sub-agents to each request, and does not store it",
    ),
    tool_ids="strict",
    silent=False,
    merge_assistants=True,
    prepare=prepared,
)
