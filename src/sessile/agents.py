"""The sub-agents of a session: whose transcripts lie in its folder, what each is, and how much was said.

Rules: what an agent is, its sidecar says. One that is missing or broken is told, and nothing is put in its place: an agent that
is taken for another one does harm. Agents of the family have no sidecars. Everything is only read.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from sessile.core.kinds import MESSAGE
from sessile.errors import NotASession, SessileError
from sessile.foreign import open_foreign
from sessile.formats.claude.rows import text_of
from sessile.storage.layout import JOURNAL, artifacts_of, stem_of
from sessile.storage.reader import JournalReader
from sessile.storage.survey import files_below
from sessile.stores.claude.paths import agent_of
from sessile.stores.claude.sidecars import read_sidecar

if TYPE_CHECKING:
    from sessile.store import Store

_FOLDER = "subagents"  # where Claude Code puts them


class SubAgent(NamedTuple):
    """A sub-agent; what nobody says is `None`, and `problem` says what could not be read."""

    name: str
    path: str
    agent_type: str | None
    description: str | None
    worktree_path: str | None
    messages: int | None
    problem: str | None


def agent_files(store: Store, path: str) -> Iterator[str]:
    """The transcripts of the sub-agents of the session in a file."""
    folder = artifacts_of(path)
    for found, _ in files_below(store.fs, folder):
        theirs = _is_claude(found, folder)
        if found.endswith(JOURNAL) and (not theirs or agent_of(posixpath.basename(found)) is not None):
            yield found


def sub_agents(store: Store, path: str) -> Iterator[SubAgent]:
    """The sub-agents of the session in a file, in the order of their names."""
    folder = artifacts_of(path)
    for found in agent_files(store, path):
        told: object = {}
        problems = []
        if _is_claude(found, folder):
            try:
                told = read_sidecar(store.fs, found)
            except SessileError as error:
                problems.append(error.message)
        messages = None
        try:
            messages = _count(store, found)
        except SessileError as error:
            problems.append(error.message)
        agent_type, description, worktree = (
            text_of(told, name) for name in ("agentType", "description", "worktreePath")
        )
        problem = "; ".join(problems) or None
        yield SubAgent(stem_of(found), found, agent_type, description, worktree, messages, problem)


def _is_claude(path: str, folder: str) -> bool:
    """Whether a file is where Claude Code puts what belongs to sub-agents."""
    return path.startswith(f"{folder}/{_FOLDER}/")


def _count(store: Store, path: str) -> int:
    """How many messages a transcript holds."""
    index_path = store.layout.index(path)
    try:
        reader = JournalReader(store.fs, path, index_path=index_path)
    except NotASession:
        reader = open_foreign(store.fs, path, index_path)
    with closing(reader):
        return sum(1 for row in reader.rows() if row.flags & MESSAGE)
