"""Where Claude Code keeps things: the one place that says which path a session or a sub-agent has.

Rules:

- The config home and the working directory are arguments, asked for at each call: a directory that was remembered at import
  is another one after links are resolved, and then what was written is not found.
- The session id and its project folder belong together and are switched as one (`Current` is one value).
- The path of the current session is the same whether it is asked for as the current one or by its id.
- Sub-agents have the session id of their parent; only the file tells them apart.
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from sessile.errors import InvalidId
from sessile.formats.claude.slug import is_uuid, slug

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
