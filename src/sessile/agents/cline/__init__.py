"""Cline CLI: one folder for each session, with a manifest, the messages, and what a compaction left of them.

~/.cline/data/sessions/<id>/<id>.json               the manifest: title, folder, model, times
~/.cline/data/sessions/<id>/<id>.messages.json      every message; rewritten as a whole
~/.cline/data/sessions/<id>/<id>.compaction.json    the history from the last compaction on
~/.cline/data/sessions/<id>/agent_<…>.messages.json its sub-agents, each with a manifest in `<id>__agent_<…>/`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from posixpath import basename, dirname
from typing import TYPE_CHECKING, Any

from sessile.agents.base import Agent, Entry, joint_mark, row_of
from sessile.agents.cline.messages import DIALECT, Conversation
from sessile.core.lines import Finding
from sessile.storage import atomic
from sessile.storage.formats import Stored
from sessile.storage.layout import Source

if TYPE_CHECKING:
    from sessile.storage.base import Filesystem

_LARGEST = 1 << 30  # bytes of a document
_MESSAGES = ".messages.json"
_AGENT = "agent_"


class Cline(Agent):
    """Cline CLI: `~/.cline`. It resumes a session only in a terminal."""

    name = "cline"
    title = "Cline"
    command = ("cline", "-i", "--id")
    resumes_by_id = True
    rendered = True
    variables = (
        ("CLINE_DIR", "~/.cline"),
        ("CLINE_DATA_DIR", "~/.cline/data"),
        ("CLINE_SESSION_DATA_DIR", "~/.cline/data/sessions"),
    )
    dialect = DIALECT

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the folder with the sessions."""
        root = environ.get("CLINE_DIR") or f"{home}/.cline"
        data = environ.get("CLINE_DATA_DIR") or f"{root}/data"
        return [Source(self.name, root, environ.get("CLINE_SESSION_DATA_DIR") or f"{data}/sessions")]

    def stored(self, fs: Filesystem, place: str) -> Iterable[Stored]:
        """Yield the messages of sessions and sub-agents."""
        for folder in fs.names(place):
            for path in _documents(fs, f"{place}/{folder}"):
                manifest, compaction = _beside(path)
                yield Stored(path, joint_mark(fs, path, manifest, compaction), _is_agent(path))

    def renders(self, path: str, first: bytes) -> bool:
        """Return whether a file starts like a document with messages."""
        head = first[:1024]
        known = (b'"version"', b'"updated_at"', b'"agent"', b'"sessionId"')
        return head.lstrip().startswith(b"{") and all(name in head for name in known)

    def render(self, fs: Filesystem, path: str) -> Iterator[Entry | Finding]:
        """Yield the messages of a session, with the compaction where it happened."""
        if fs.lstat(path).st_size > _LARGEST:
            raise ValueError(f"the document is larger than {_LARGEST} bytes")
        manifest, compaction = (_read(fs, other) for other in _beside(path))
        conversation = Conversation(manifest, compaction)
        return conversation.lines(atomic.read_all(fs, path), basename(path).removesuffix(_MESSAGES))

    def sub_agents_of(self, fs: Filesystem, path: str) -> Sequence[str] | None:
        """Return the messages of the sub-agents in the folder of a session."""
        return [] if _is_agent(path) else [other for other in _documents(fs, dirname(path)) if _is_agent(other)]

    def describe_sub_agent(self, fs: Filesystem, path: str) -> Mapping[str, Any]:
        """Return the task of a sub-agent."""
        manifest = row_of(_read(fs, _beside(path)[0]) or b"")
        prompt = manifest.get("prompt")
        return {"description": prompt} if isinstance(prompt, str) else {}

    def belongings(self, fs: Filesystem, path: str) -> Sequence[str]:
        """Return the other files of a session, and the manifests of its sub-agents."""
        agents = self.sub_agents_of(fs, path) or []
        files = [*_beside(path), *agents, *(_beside(agent)[0] for agent in agents)]
        return [file for file in files if atomic.exists(fs, file)]


def _documents(fs: Filesystem, folder: str) -> list[str]:
    try:
        names = fs.names(folder)
    except OSError:
        return []
    return [f"{folder}/{name}" for name in names if name.endswith(_MESSAGES) and not name.startswith(".")]


def _is_agent(path: str) -> bool:
    return basename(path).startswith(_AGENT)


def _beside(path: str) -> tuple[str, str]:
    """Return the paths of the manifest and of the compaction."""
    stem, folder = basename(path).removesuffix(_MESSAGES), dirname(path)
    if _is_agent(path):
        name = f"{basename(folder)}__{stem}"
        return f"{dirname(folder)}/{name}/{name}.json", f"{folder}/{stem}.compaction.json"
    return f"{folder}/{stem}.json", f"{folder}/{stem}.compaction.json"


def _read(fs: Filesystem, path: str) -> bytes | None:
    try:
        return atomic.read_all(fs, path) if fs.lstat(path).st_size <= _LARGEST else None
    except OSError:
        return None
