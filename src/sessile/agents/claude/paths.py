"""Where Claude Code keeps things: the one place that says which path a session or a sub-agent has.

Rules:

- The config home and the working directory are arguments, asked for at each call: a directory that was remembered at import
  is another one after links are resolved, and then what was written is not found.
- The session id and its project folder belong together and are switched as one (`Current` is one value).
- The path of the current session is the same whether it is asked for as the current one or by its id.
- Sub-agents have the session id of their parent; only the file tells them apart.

The name of a project folder, made of a working directory as Claude Code makes it, and the test for a session id.

Rules:

- JavaScript counts UTF-16 units, so we do: a character outside the basic plane becomes two hyphens and hashes as two units.
- Many paths share one slug (`/a/b-c`, `/a/b/c`). A slug is never decoded: rows say their `cwd` themselves.
- Links are resolved by whoever knows the disk; here a path is only text.

The sidecar of an agent: what it needs to be resumed as what it was.

Rules: a sidecar is written whole and at once, and keeps members that we do not know. One that is missing or broken is told by
an error, never made up for: an agent that is resumed as another one, in another folder, does harm.
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

# --- slug

LONGEST_SLUG = 200  # a file system takes 255 bytes; the rest is left for the hash of a longer path

_HYPHENATED = re.compile(r"[^a-zA-Z0-9]")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def slug(path: str) -> str:
    """The folder below `projects` for a working directory whose links are resolved."""
    return _named(path, hyphenated(path), _utf16_units)


def hyphenated(path: str) -> str:
    """A path in the letters of a slug, however long."""
    return _HYPHENATED.sub(_hyphens, unicodedata.normalize("NFC", path))


def python_sdk_slug(path: str) -> str:
    """The folder in which the Python SDK looks, which counts characters and so misses some that Claude Code makes."""
    return _named(path, _HYPHENATED.sub("-", unicodedata.normalize("NFC", path)), lambda text: map(ord, text))


def _named(path: str, hyphenated: str, units: Callable[[str], Iterable[int]]) -> str:
    if len(hyphenated) <= LONGEST_SLUG:
        return hyphenated
    return f"{hyphenated[:LONGEST_SLUG]}-{string_hash(units(unicodedata.normalize('NFC', path)))}"


def long_prefix(name: str) -> str | None:
    """How the folder of a long path begins whatever hashed it, or None for a slug without a hash.

    Older releases hashed long paths in another way, so a reader looks for this beginning if the exact name is missing.
    """
    return f"{name[:LONGEST_SLUG]}-" if len(name) > LONGEST_SLUG else None


def string_hash(units: Iterable[int]) -> str:
    """The Java string hash of units, its sign dropped, in base 36."""
    value = 0
    for unit in units:
        value = (value * 31 + unit) & 0xFFFFFFFF
    return _base_36(min(value, 0x1_0000_0000 - value))


def is_uuid(text: str) -> bool:
    """Whether a text is a session id: a UUID, and nothing around it, in any case of letters."""
    return _UUID.fullmatch(text) is not None


def _utf16_units(text: str) -> Iterable[int]:
    return memoryview(text.encode("utf-16", "surrogatepass")).cast("H")[1:]  # native order, behind the mark


def _hyphens(match: re.Match[str]) -> str:
    return "--" if ord(match.group()) > 0xFFFF else "-"


def _base_36(number: int) -> str:
    digits = []
    while number:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits)) or "0"


# --- paths

TRANSCRIPT = ".jsonl"
AGENT = "agent-"
REMOTE_AGENT = "remote-agent-"
SIDECAR = ".meta.json"


class Current(NamedTuple):
    """The session that goes on: its id, where it was begun, and its project folder if that is not the one of the cwd."""

    session_id: str
    original_cwd: str
    project_dir: str | None = None


def projects_dir(config_home: str) -> str:
    """The folder of all project folders."""
    return posixpath.join(config_home, "projects")


def project_dir(config_home: str, cwd: str) -> str:
    """The project folder of a working directory whose links are resolved."""
    return posixpath.join(projects_dir(config_home), slug(cwd))


def current_project_dir(config_home: str, current: Current) -> str:
    """The project folder of the current session."""
    return current.project_dir or project_dir(config_home, current.original_cwd)


def transcript_path(config_home: str, current: Current, session_id: str | None = None) -> str:
    """The transcript of the current session, or of another one, which is looked for where the current one was begun."""
    if session_id is None or session_id == current.session_id:
        folder, session_id = current_project_dir(config_home, current), current.session_id
    else:
        folder = project_dir(config_home, current.original_cwd)
    return session_path(folder, session_id)


def session_path(folder: str, session_id: str) -> str:
    """The transcript of a session in a project folder."""
    return posixpath.join(folder, _checked(session_id) + TRANSCRIPT)


def subagents_dir(folder: str, session_id: str) -> str:
    """The folder of a session's sub-agents."""
    return posixpath.join(folder, _checked(session_id), "subagents")


def subagent_path(folder: str, session_id: str, agent_id: str, subdir: str | None = None) -> str:
    """The transcript of a sub-agent, grouped below `subdir` (`workflows/<run>`) if one is given."""
    parts = [*(subdir.split("/") if subdir else ()), f"{AGENT}{agent_id}{TRANSCRIPT}"]
    if any(part in ("", ".", "..") or "\0" in part for part in parts) or "/" in agent_id or not agent_id:
        raise InvalidId(f"{agent_id!r} in {subdir!r} would leave the folder of the sub-agents")
    return posixpath.join(subagents_dir(folder, session_id), *parts)


def remote_agents_dir(folder: str, session_id: str) -> str:
    """The folder with the identities of the agents that a session runs elsewhere."""
    return posixpath.join(folder, _checked(session_id), "remote-agents")


def remote_task_of(name: str) -> str | None:
    """The task whose identity has this name, or None for other files."""
    task = name.removeprefix(REMOTE_AGENT).removesuffix(SIDECAR)
    return task if task and name == f"{REMOTE_AGENT}{task}{SIDECAR}" else None


def agent_of(name: str) -> str | None:
    """The id of the agent whose transcript has this name, or None for other files."""
    if name.startswith(AGENT) and name.endswith(TRANSCRIPT) and len(name) >= len(AGENT + TRANSCRIPT):
        return name[len(AGENT) : -len(TRANSCRIPT)]
    return None


def session_of(name: str) -> str | None:
    """The id of the session whose transcript has this name, or None for other files."""
    stem = name.removesuffix(TRANSCRIPT)
    return stem if stem != name and is_uuid(stem) else None


def _checked(session_id: str) -> str:
    if not is_uuid(session_id):
        raise InvalidId(f"{session_id!r} is no session id", hint="a session id is a UUID")
    return session_id


# --- sidecars


class Agent(NamedTuple):
    """An agent that can go on: what it is, and the worktree that it works in if it has one of its own."""

    agent_id: str
    transcript: str
    agent_type: str
    worktree_path: str | None
    description: str | None
    members: Mapping[str, Any]  # everything that the sidecar says


def sidecar_path(transcript: str) -> str:
    """The sidecar of an agent's transcript."""
    return transcript.removesuffix(TRANSCRIPT) + SIDECAR


def write_sidecar(
    fs: Filesystem,
    transcript: str,
    agent_type: str,
    *,
    worktree_path: str | None = None,
    description: str | None = None,
) -> str:
    """Say what the agent with this transcript is; gives the path of the sidecar."""
    if not agent_type:
        raise Invalid("an agent must have a type", path=transcript)
    path = sidecar_path(transcript)
    said = {"agentType": agent_type, "worktreePath": worktree_path, "description": description}
    atomic.make_folders(fs, posixpath.dirname(path), below_links=True)
    members = _others(fs, path) | {name: value for name, value in said.items() if value is not None}
    atomic.replace(fs, path, (encode(members),))
    return path


def read_sidecar(fs: Filesystem, transcript: str) -> dict[str, Any]:
    """All members of the sidecar, `agentType` among them."""
    path = sidecar_path(transcript)
    hint = "say which type of agent it is, and where it works; nothing is assumed"
    members = _read(fs, path)
    if members is None:
        raise NotFound("the agent has no sidecar, so its type and folder are unknown", path=path, hint=hint)
    if not isinstance(members, dict) or not text_of(members, "agentType"):
        raise Damaged("the sidecar does not say which type of agent it is", path=path, hint=hint)
    return members


def read_agent(fs: Filesystem, agent_id: str, transcript: str) -> Agent:
    """What is needed to go on with an agent; raises if its sidecar does not tell."""
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
    """What the file holds; `None` if there is none, an empty text if it is not JSON."""
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
    """The members that newer releases have written, and that stay."""
    members = _read(fs, path)
    known = ("agentType", "worktreePath", "description")
    return {name: value for name, value in members.items() if name not in known} if isinstance(members, dict) else {}
