"""GitHub Copilot CLI: one folder for each session, with a file of events.

~/.copilot/session-state/<id>/events.jsonl      the session
~/.copilot/session-state/<id>/workspace.yaml    its name and its folder
~/.copilot/session-state/<id>/checkpoints/      the summaries of its compactions
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from posixpath import basename, dirname
from typing import TYPE_CHECKING

from sessile.agents.base import Agent, Entry, joint_mark
from sessile.agents.copilot.events import DIALECT, Events, workspace_of
from sessile.core.lines import Finding
from sessile.storage import atomic
from sessile.storage.formats import Stored
from sessile.storage.layout import Source

if TYPE_CHECKING:
    from sessile.storage.base import Filesystem

_EVENTS, _WORKSPACE = "events.jsonl", "workspace.yaml"
_LARGEST = 1 << 30  # bytes of a session
_BESIDE = ("checkpoints", "files", "research", "rewind-file-snapshots", "rewind-file-snapshots/backups")


class CopilotCli(Agent):
    """GitHub Copilot CLI: `~/.copilot`."""

    name = "copilot"
    title = "Copilot CLI"
    command = ("copilot", "--resume")
    resumes_by_id = True
    rendered = True
    variables = (("COPILOT_HOME", "~/.copilot"),)
    dialect = DIALECT

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the folder with the sessions."""
        root = environ.get("COPILOT_HOME") or f"{home}/.copilot"
        return [Source(self.name, root, f"{root}/session-state")]

    def stored(self, fs: Filesystem, place: str) -> Iterable[Stored]:
        """Yield every folder that has events; one that was only begun has none."""
        for name in fs.names(place):
            path = f"{place}/{name}/{_EVENTS}"
            if not name.startswith(".") and atomic.exists(fs, path):
                yield Stored(path, joint_mark(fs, path, f"{place}/{name}/{_WORKSPACE}"))

    def renders(self, path: str, first: bytes) -> bool:
        """Return whether a file starts with the event of a started session."""
        head = first[:512]
        return head.startswith(b'{"type":"session.start"') and b'"sessionId"' in head

    def render(self, fs: Filesystem, path: str) -> Iterator[Entry | Finding]:
        """Yield the events of a session."""
        if fs.lstat(path).st_size > _LARGEST:
            raise ValueError(f"the file is larger than {_LARGEST} bytes")
        folder = dirname(path)
        try:
            workspace = workspace_of(atomic.read_all(fs, f"{folder}/{_WORKSPACE}").decode("utf-8", "replace"))
        except OSError:
            workspace = {}

        def beside(session_id: str) -> str:
            return f"{dirname(folder)}/{session_id}/{_EVENTS}"

        return Events(workspace, beside).lines(atomic.read_all(fs, path), basename(folder))

    def belongings(self, fs: Filesystem, path: str) -> Sequence[str]:
        """Return the other files of the session's folder."""
        folder = dirname(path)
        found = [f"{folder}/{_WORKSPACE}"] if atomic.exists(fs, f"{folder}/{_WORKSPACE}") else []
        for below in _BESIDE:
            try:
                names = fs.names(f"{folder}/{below}")
            except OSError:
                continue
            found += [f"{folder}/{below}/{name}" for name in names if f"{below}/{name}" not in _BESIDE]
        return found
