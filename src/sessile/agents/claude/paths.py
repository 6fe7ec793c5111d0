"""The paths of Claude Code: the names of project folders, transcripts, sub-agents and their sidecars.

Rules:

- The config home and the working directory are arguments of every call; nothing is remembered at import.
- The session id and its project folder are one value (`Current`) and change together.
- A session has one path, whether it is asked for as the current session or by its id.
- Sub-agents have the session id of their parent; only the file differs.
- A slug is counted in UTF-16 units, as JavaScript does. Different paths may have the same slug (`/a/b-c`, `/a/b/c`), so
  it is never decoded: rows contain their `cwd`. Callers resolve links; here a path is only text.
- A sidecar holds what is needed to resume a sub-agent. It is written atomically, and unknown members are kept. A
  missing or broken one is an error: resuming an agent as another type or in another folder does harm.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from sessile.agents.claude.rows import text_of
from sessile.core.codec import decode, encode
from sessile.errors import Damaged, Invalid, InvalidId, NotFound, storage_failures
from sessile.storage import atomic
from sessile.storage.base import Filesystem

TRANSCRIPT = ".jsonl"
AGENT = "agent-"
REMOTE_AGENT = "remote-agent-"
SIDECAR = ".meta.json"


class Current(NamedTuple):
    """The current session: its id, where it started, and its project folder if that is not the one of the cwd."""

    session_id: str
    original_cwd: str
    project_dir: str | None = None


def projects_dir(config_home: str) -> str:
    """Return the folder of all project folders."""
    return posixpath.join(config_home, "projects")


def project_dir(config_home: str, cwd: str) -> str:
    """Return the project folder of a working directory (with links resolved)."""
    return posixpath.join(projects_dir(config_home), slug(cwd))


def current_project_dir(config_home: str, current: Current) -> str:
    """Return the project folder of the current session."""
    return current.project_dir or project_dir(config_home, current.original_cwd)


def transcript_path(config_home: str, current: Current, session_id: str | None = None) -> str:
    """Return the transcript of the current session, or of another one that started in the same directory."""
    if session_id is None or session_id == current.session_id:
        folder, session_id = current_project_dir(config_home, current), current.session_id
    else:
        folder = project_dir(config_home, current.original_cwd)
    return session_path(folder, session_id)


def session_path(folder: str, session_id: str) -> str:
    """Return the transcript of a session in a project folder."""
    return posixpath.join(folder, _checked(session_id) + TRANSCRIPT)


def subagents_dir(folder: str, session_id: str) -> str:
    """Return the folder of a session's sub-agents."""
    return posixpath.join(folder, _checked(session_id), "subagents")


def subagent_path(folder: str, session_id: str, agent_id: str, subdir: str | None = None) -> str:
    """Return the transcript of a sub-agent, below `subdir` (such as `workflows/<run>`) if it is given."""
    parts = [*(subdir.split("/") if subdir else ()), f"{AGENT}{agent_id}{TRANSCRIPT}"]
    if any(part in ("", ".", "..") or "\0" in part for part in parts) or "/" in agent_id or not agent_id:
        raise InvalidId(f"invalid agent id {agent_id!r} or subfolder {subdir!r}: outside of the folder of sub-agents")
    return posixpath.join(subagents_dir(folder, session_id), *parts)


def remote_agents_dir(folder: str, session_id: str) -> str:
    """Return the folder with the identities of the agents that a session runs remotely."""
    return posixpath.join(folder, _checked(session_id), "remote-agents")


def remote_task_of(name: str) -> str | None:
    """Return the task id in the name of an identity file, or None for other files."""
    task = name.removeprefix(REMOTE_AGENT).removesuffix(SIDECAR)
    return task if task and name == f"{REMOTE_AGENT}{task}{SIDECAR}" else None


def agent_of(name: str) -> str | None:
    """Return the agent id in the name of a transcript, or None for other files."""
    if name.startswith(AGENT) and name.endswith(TRANSCRIPT) and len(name) >= len(AGENT + TRANSCRIPT):
        return name[len(AGENT) : -len(TRANSCRIPT)]
    return None


def session_of(name: str) -> str | None:
    """Return the session id in the name of a transcript, or None for other files."""
    stem = name.removesuffix(TRANSCRIPT)
    return stem if stem != name and is_uuid(stem) else None


def _checked(session_id: str) -> str:
    if not is_uuid(session_id):
        raise InvalidId(f"invalid session id {session_id!r}", hint="use a UUID")
    return session_id


# -- slugs and ids

LONGEST_SLUG = 200  # a file name may have 255 bytes; the rest is for the hash of a longer path

_HYPHENATED = re.compile(r"[^a-zA-Z0-9]")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def slug(path: str) -> str:
    """Return the name of the folder below `projects` for a working directory (with links resolved)."""
    return _folder_name(path, hyphenated(path), _utf16_units)


def hyphenated(path: str) -> str:
    """Return a path in the letters of a slug, not shortened."""
    return _HYPHENATED.sub(_hyphens, unicodedata.normalize("NFC", path))


def python_sdk_slug(path: str) -> str:
    """Return the slug of the Python SDK, which counts characters and so misses some folders of Claude Code."""
    return _folder_name(path, _HYPHENATED.sub("-", unicodedata.normalize("NFC", path)), lambda text: map(ord, text))


def _folder_name(path: str, hyphenated: str, units: Callable[[str], Iterable[int]]) -> str:
    if len(hyphenated) <= LONGEST_SLUG:
        return hyphenated
    return f"{hyphenated[:LONGEST_SLUG]}-{string_hash(units(unicodedata.normalize('NFC', path)))}"


def long_prefix(name: str) -> str | None:
    """Return the prefix of a long path's folder before its hash, or None for a slug without a hash.

    Older releases hashed long paths in another way, so readers look for this prefix if the exact name is missing.
    """
    return f"{name[:LONGEST_SLUG]}-" if len(name) > LONGEST_SLUG else None


def string_hash(units: Iterable[int]) -> str:
    """Return the Java string hash of units, without its sign, in base 36."""
    value = 0
    for unit in units:
        value = (value * 31 + unit) & 0xFFFFFFFF
    return _base_36(min(value, 0x1_0000_0000 - value))


def is_uuid(text: str) -> bool:
    """Return whether a text is a session id: a UUID in upper or lower case."""
    return _UUID.fullmatch(text) is not None


def _utf16_units(text: str) -> Iterable[int]:
    return memoryview(text.encode("utf-16", "surrogatepass")).cast("H")[1:]  # native byte order, after the BOM


def _hyphens(match: re.Match[str]) -> str:
    return "--" if ord(match.group()) > 0xFFFF else "-"


def _base_36(number: int) -> str:
    digits = []
    while number:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits)) or "0"


# -- sidecars of sub-agents


class Agent(NamedTuple):
    """A sub-agent that can be resumed: its type, and its own worktree if it has one."""

    agent_id: str
    transcript: str
    agent_type: str
    worktree_path: str | None
    description: str | None
    members: Mapping[str, Any]  # all members of the sidecar


def sidecar_path(transcript: str) -> str:
    """Return the path of the sidecar of an agent's transcript."""
    return transcript.removesuffix(TRANSCRIPT) + SIDECAR


def write_sidecar(
    fs: Filesystem,
    transcript: str,
    agent_type: str,
    *,
    worktree_path: str | None = None,
    description: str | None = None,
) -> str:
    """Write the sidecar of an agent's transcript and return its path."""
    if not agent_type:
        raise Invalid("agent_type must not be empty", path=transcript)
    path = sidecar_path(transcript)
    given = {"agentType": agent_type, "worktreePath": worktree_path, "description": description}
    atomic.make_folders(fs, posixpath.dirname(path), below_links=True)
    members = _others(fs, path) | {name: value for name, value in given.items() if value is not None}
    atomic.replace(fs, path, (encode(members),))
    return path


def read_sidecar(fs: Filesystem, transcript: str) -> dict[str, Any]:
    """Return all members of the sidecar; it must have an `agentType`."""
    path = sidecar_path(transcript)
    hint = "pass the agent's type and folder explicitly"
    members = _read(fs, path)
    if members is None:
        raise NotFound("the agent has no sidecar, so its type and folder are unknown", path=path, hint=hint)
    if not isinstance(members, dict) or not text_of(members, "agentType"):
        raise Damaged("the agent's sidecar has no agentType", path=path, hint=hint)
    return members


def read_agent(fs: Filesystem, agent_id: str, transcript: str) -> Agent:
    """Return what is needed to resume an agent; raise if its sidecar is missing or broken."""
    members = read_sidecar(fs, transcript)
    return Agent(
        agent_id,
        transcript,
        agent_type=str(members["agentType"]),
        worktree_path=text_of(members, "worktreePath"),
        description=text_of(members, "description"),
        members=members,
    )


def _read(fs: Filesystem, path: str) -> Any:
    """Return the content of the file; `None` if it is missing, an empty text if it is not JSON."""
    with storage_failures(path, "read the sidecar"):
        try:
            data = atomic.read_all(fs, path)
        except (FileNotFoundError, NotADirectoryError):
            return None
    try:
        return decode(data)
    except ValueError:
        return ""


def _others(fs: Filesystem, path: str) -> dict[str, Any]:
    """Return the unknown members of an existing sidecar, which are kept."""
    members = _read(fs, path)
    known = ("agentType", "worktreePath", "description")
    return {name: value for name, value in members.items() if name not in known} if isinstance(members, dict) else {}
