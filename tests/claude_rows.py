"""Claude Code rows for tests of its writers, and places to write them."""

from __future__ import annotations

import json
from typing import Any

from sessile.agents.claude.paths import Current
from sessile.agents.claude.transcript import Stamp, Transcript
from sessile.storage.base import Filesystem
from sessile.storage.memory import MemoryFilesystem

Json = dict[str, Any]

CWD = "/home/dev/project"
CONFIG = "/claude"
PROJECTS = f"{CONFIG}/projects"
FOLDER = f"{PROJECTS}/-home-dev-project"
HOME = "/ours/claude"
SESSION = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"
PATH = f"{FOLDER}/{SESSION}.jsonl"
STAMP = Stamp(cwd=CWD, version="2.1.300", git_branch="main", entrypoint="sdk-py")
NOW = "2026-02-16T10:20:30.000Z"
NOW_SECONDS = 1_771_237_230.0


def uid(name: str) -> str:
    """Return a recognisable uuid."""
    return f"{name.encode().hex():0>8.8}-0000-4000-8000-{name.encode().hex():0>12.12}"


def user(name: str, text: str | None = None, **members: Any) -> Json:
    return {"type": "user", "uuid": uid(name), "message": {"role": "user", "content": text or name}, **members}


def assistant(name: str, **members: Any) -> Json:
    content = [{"type": "text", "text": name}]
    message = {"id": f"msg_{name}", "role": "assistant", "model": "m", "content": content}
    return {"type": "assistant", "uuid": uid(name), "message": message, **members}


def progress(name: str) -> Json:
    return {"type": "progress", "uuid": uid(name), "data": {"type": "hook_progress"}}


def system(name: str, subtype: str = "informational", **members: Any) -> Json:
    return {"type": "system", "uuid": uid(name), "subtype": subtype, "content": name, **members}


def boundary(name: str, **members: Any) -> Json:
    return system(name, "compact_boundary", compactMetadata={"trigger": "auto"}, **members)


def transcript(
    fs: Filesystem | None = None, session_id: str = SESSION, project_dir: str | None = None, **options: Any
) -> Transcript:
    """Return a transcript, by default on an in-memory file system."""
    options = {"stamp": STAMP, "clock": lambda: NOW_SECONDS, **options}
    return Transcript(fs or MemoryFilesystem(), CONFIG, HOME, Current(session_id, CWD, project_dir), **options)


def rows_in(data: bytes) -> list[Json]:
    """Return the rows of a file; every line must be JSON, and the last must end with a newline."""
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line) for line in data.split(b"\n")[:-1]]
