"""Qwen Code: one file of linked rows for each session, in the folder of its project.

~/.qwen/projects/<project>/chats/<id>.jsonl                      a session
~/.qwen/projects/<project>/subagents/<id>/agent-<…>.jsonl        its sub-agents, each with a `.meta.json`
~/.qwen/tmp/<hash>/<tool>_<…>.output                             long outputs of its tools
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from posixpath import dirname
from typing import TYPE_CHECKING, Any

from sessile.agents.base import Agent, Entry, row_of
from sessile.agents.qwen.chat import DIALECT, Chat
from sessile.core.lines import Finding
from sessile.storage import atomic
from sessile.storage.formats import Stored
from sessile.storage.layout import JOURNAL, Source, stem_of
from sessile.storage.walk import mark_of

if TYPE_CHECKING:
    from sessile.storage.base import Filesystem

_LARGEST = 1 << 30  # bytes of a session
_LARGEST_OUTPUT = 16 << 20
_META = ".meta.json"
_OUTPUT = re.compile(r"[/\\]tmp[/\\]([0-9a-f]{64})[/\\]([\w.-]+\.output)")


class QwenCode(Agent):
    """Qwen Code: `~/.qwen`. It resumes a session only in the session's own folder."""

    name = "qwen"
    title = "Qwen Code"
    command = ("qwen", "--resume")
    resumes_by_id = True
    rendered = True
    variables = (("QWEN_HOME", "~/.qwen"), ("QWEN_RUNTIME_DIR", "~/.qwen"))
    dialect = DIALECT

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the folder with the projects."""
        root = environ.get("QWEN_RUNTIME_DIR") or environ.get("QWEN_HOME") or f"{home}/.qwen"
        return [Source(self.name, root, f"{root}/projects")]

    def stored(self, fs: Filesystem, place: str) -> Iterable[Stored]:
        """Yield the sessions and sub-agents of all projects."""
        for project in fs.names(place):
            for path in _files(fs, f"{place}/{project}/chats"):
                yield Stored(path, mark_of(fs.lstat(path)))
            agents = f"{place}/{project}/subagents"
            for session_id in _names(fs, agents):
                for path in _files(fs, f"{agents}/{session_id}"):
                    yield Stored(path, mark_of(fs.lstat(path)), sub_agent=True)

    def renders(self, path: str, first: bytes) -> bool:
        """Return whether a file starts with a row of a session; Claude Code has a `uuid` too, but no `message.parts`."""
        head = first[:2048]
        return (
            head.startswith(b'{"uuid":')
            and b'"parentUuid":' in head
            and (b'"parts":' in first or b'"systemPayload":' in first)
        )

    def render(self, fs: Filesystem, path: str) -> Iterator[Entry | Finding]:
        """Yield the rows of a session as a tree."""
        if fs.lstat(path).st_size > _LARGEST:
            raise ValueError(f"the file is larger than {_LARGEST} bytes")
        root = dirname(dirname(_project_of(path)))

        def output(text: str) -> str | None:
            found = _OUTPUT.search(text)
            return None if found is None else _read(fs, f"{root}/tmp/{found[1]}/{found[2]}", _LARGEST_OUTPUT)

        def beside(session_id: str) -> str:
            return f"{dirname(path)}/{session_id}{JOURNAL}"

        return Chat(output, beside).lines(atomic.read_all(fs, path), stem_of(path))

    def sub_agents_of(self, fs: Filesystem, path: str) -> Sequence[str] | None:
        """Return the files in the folder that has the id of the session."""
        return _files(fs, f"{_project_of(path)}/subagents/{stem_of(path)}")

    def describe_sub_agent(self, fs: Filesystem, path: str) -> Mapping[str, Any]:
        """Return the kind and the task of a sub-agent."""
        found = _read(fs, f"{path.removesuffix(JOURNAL)}{_META}", _LARGEST_OUTPUT)
        meta = row_of((found or "").encode("utf-8", "replace"))
        return {name: meta[name] for name in ("agentType", "description") if isinstance(meta.get(name), str)}

    def belongings(self, fs: Filesystem, path: str) -> Sequence[str]:
        """Return the sub-agents of a session with their notes."""
        folder = f"{_project_of(path)}/subagents/{stem_of(path)}"
        return [f"{folder}/{name}" for name in _names(fs, folder)]


def _project_of(path: str) -> str:
    """Return the folder that the program has for the project of a session or a sub-agent."""
    above = dirname(dirname(path))
    return dirname(above) if above.endswith("/subagents") else above


def _names(fs: Filesystem, folder: str) -> list[str]:
    try:
        return fs.names(folder)
    except OSError:
        return []


def _files(fs: Filesystem, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in _names(fs, folder) if name.endswith(JOURNAL) and not name.startswith(".")]


def _read(fs: Filesystem, path: str, most: int) -> str | None:
    """Return the text of a file; `None` if there is none, or a larger one."""
    try:
        if fs.lstat(path).st_size > most:
            return None
        return atomic.read_all(fs, path).decode("utf-8", "replace")
    except OSError:
        return None
