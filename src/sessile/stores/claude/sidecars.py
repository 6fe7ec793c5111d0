"""The sidecar of an agent: what it needs to be resumed as what it was.

Rules: a sidecar is written whole and at once, and keeps members that we do not know. One that is missing or broken is told by
an error, never made up for: an agent that is resumed as another one, in another folder, does harm.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, NamedTuple

from sessile.core.codec import decode, encode
from sessile.errors import Damaged, Invalid, NotFound, storage_failures
from sessile.formats.claude.rows import text_of
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.stores.claude.paths import SIDECAR, TRANSCRIPT


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
