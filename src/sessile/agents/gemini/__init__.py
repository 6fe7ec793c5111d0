"""Gemini CLI: one log of changes for each session, in the folder of its project.

    ~/.gemini/tmp/<project>/.project_root                            the folder of the project
    ~/.gemini/tmp/<project>/chats/session-<minute>-<id…>.jsonl       a session; `.json` before the logs
    ~/.gemini/tmp/<project>/chats/<session id>/<agent id>.jsonl      its sub-agents
    ~/.gemini/tmp/<project>/tool-outputs/session-<session id>/       long outputs of its tools

A session that was resumed in a later minute has a second file that holds nothing. The program takes that one for an empty session
at its next start in the project, and deletes all files of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from posixpath import basename, dirname
from typing import TYPE_CHECKING, Any

from sessile.agents.base import DAY, Agent, Entry, Expiry, Period, row_of
from sessile.agents.gemini.log import render
from sessile.core.codec import decode
from sessile.core.lines import Finding
from sessile.core.providers import Dialect
from sessile.storage import atomic
from sessile.storage.formats import Stored
from sessile.storage.layout import JOURNAL, LEGACY, Source, stem_of
from sessile.storage.walk import mark_of

if TYPE_CHECKING:
    from sessile.storage.base import Filesystem

_PREFIX = "session-"
_WINDOW = 4096  # bytes that show the head of a log
_LARGEST = 1 << 30  # bytes of a log
_LARGEST_OUTPUT = 16 << 20
_LARGEST_STUB = 1 << 20
_MESSAGE = b'\n{"id":'
_SETTINGS = "settings.json"
_UNITS = {"h": DAY // 24, "d": DAY, "w": 7 * DAY, "m": 30 * DAY}


class GeminiCli(Agent):
    """Gemini CLI: `~/.gemini`."""

    name = "gemini"
    title = "Gemini CLI"
    command = ("gemini", "--resume")
    resumes_by_id = True
    rendered = True
    dialect = Dialect(
        "gemini",
        gaps=(
            "system prompt: Gemini CLI does not store it",
            "tools: Gemini CLI does not store their descriptions",
            "turns: Gemini CLI deletes sessions after they were resumed",
            "signatures: Gemini CLI sends back the signatures of calls while it runs, and does not store them",
        ),
        attached="",
        merge_users=True,
        merge_assistants=True,
    )
    expiry = Expiry((_SETTINGS,), "general.sessionRetention", 0)

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the folder with the projects."""
        root = f"{home}/.gemini"
        return [Source(self.name, root, f"{root}/tmp")]

    def period(self, settings: Mapping[str, bytes]) -> Period:
        """Return how long sessions are kept: as long as the settings say, else for ever."""
        data = settings.get(_SETTINGS)
        try:
            found = {} if data is None else decode(data)
            general = found.get("general") if isinstance(found, dict) else None
            rule = general.get("sessionRetention") if isinstance(general, dict) else None
            if not isinstance(rule, dict) or rule.get("enabled") is False or rule.get("maxAge") is None:
                return Period(None)
            age = str(rule["maxAge"])
            return Period(int(age[:-1]) * _UNITS[age[-1]])
        except (ValueError, KeyError, IndexError, RecursionError):
            return Period(None, f"{_SETTINGS}: general.sessionRetention.maxAge must be a number with h, d, w or m")

    def stored(self, fs: Filesystem, place: str) -> Iterable[Stored]:
        """Yield the sessions of all projects, without the empty files that a resume leaves."""
        for chats in _chats(fs, place):
            names = _names(fs, chats)
            files = [f"{chats}/{name}" for name in names if _is_session(name)]
            stubs = {stub for stubs in _stubs(fs, files).values() for stub in stubs}
            for path in files:
                if path not in stubs:
                    yield Stored(path, mark_of(fs.lstat(path)))
            for name in names:
                if "." not in name:
                    for path in _agents(fs, f"{chats}/{name}"):
                        yield Stored(path, mark_of(fs.lstat(path)), sub_agent=True)

    def endangered(self, fs: Filesystem, place: str) -> Iterator[str]:
        """Yield the sessions that were resumed: the program deletes them at its next start in their project."""
        for chats in _chats(fs, place):
            yield from _stubs(fs, [f"{chats}/{name}" for name in _names(fs, chats) if _is_session(name)])

    def renders(self, path: str, first: bytes) -> bool:
        """Return whether a file starts with the head of a session."""
        head = first[:512]
        return head.lstrip().startswith(b"{") and b'"sessionId"' in head and b'"projectHash"' in head

    def render(self, fs: Filesystem, path: str) -> Iterator[Entry | Finding]:
        """Yield the messages of a log as a tree."""
        if fs.lstat(path).st_size > _LARGEST:
            raise ValueError(f"the file is larger than {_LARGEST} bytes")
        project = _project_of(path)
        session_id = _head(fs, path).get("sessionId")

        def output(call_id: str) -> str | None:
            file = f"{project}/tool-outputs/{_PREFIX}{session_id}/{call_id}.txt"
            return _read(fs, file, _LARGEST_OUTPUT) if project is not None and "/" not in call_id else None

        root = None if project is None else _read(fs, f"{project}/.project_root", _WINDOW)
        return render(atomic.read_all(fs, path), stem_of(path), (root or "").strip(), output)

    def sub_agents_of(self, fs: Filesystem, path: str) -> Sequence[str] | None:
        """Return the files in the folder that has the id of the session."""
        session_id = _head(fs, path).get("sessionId")
        return (
            _agents(fs, f"{dirname(path)}/{session_id}")
            if isinstance(session_id, str) and "/" not in session_id
            else []
        )

    def belongings(self, fs: Filesystem, path: str) -> Sequence[str]:
        """Return what belongs to a session: its sub-agents, long outputs, and the note that names its project."""
        project, session_id = _project_of(path), _head(fs, path).get("sessionId")
        if project is None or not isinstance(session_id, str) or "/" in session_id:
            return ()
        outputs = f"{project}/tool-outputs/{_PREFIX}{session_id}"
        found = [*_agents(fs, f"{dirname(path)}/{session_id}"), *(f"{outputs}/{name}" for name in _names(fs, outputs))]
        note = f"{project}/.project_root"
        return [*found, note] if atomic.exists(fs, note) else found


def _is_session(name: str) -> bool:
    return name.startswith(_PREFIX) and name.endswith((JOURNAL, LEGACY))


def _project_of(path: str) -> str | None:
    """Return the folder that the program has for the project of a session or a sub-agent."""
    chats = dirname(path) if basename(path).startswith(_PREFIX) else dirname(dirname(path))
    return dirname(chats) if basename(chats) == "chats" else None


def _chats(fs: Filesystem, place: str) -> Iterator[str]:
    for name in fs.names(place):
        if not name.startswith("."):
            yield f"{place}/{name}/chats"


def _names(fs: Filesystem, folder: str) -> list[str]:
    try:
        return fs.names(folder)
    except OSError:
        return []


def _agents(fs: Filesystem, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in _names(fs, folder) if name.endswith(JOURNAL)]


def _stubs(fs: Filesystem, files: Sequence[str]) -> dict[str, list[str]]:
    """Return the files without messages that resumes have left, by the file of their session.

    Their names end with the same part of the id; only such files are looked at.
    """
    alike: dict[str, list[str]] = {}
    for path in files:
        alike.setdefault(stem_of(path).rpartition("-")[2], []).append(path)
    found: dict[str, list[str]] = {}
    for paths in alike.values():
        by_id: dict[object, list[str]] = {}
        for path in sorted(paths) if len(paths) > 1 else ():
            by_id.setdefault(_head(fs, path).get("sessionId"), []).append(path)
        for first, *others in by_id.values():
            stubs = [path for path in others if _is_stub(fs, path)]
            if stubs:
                found[first] = stubs
    return found


def _is_stub(fs: Filesystem, path: str) -> bool:
    data = _read(fs, path, _LARGEST_STUB)
    return data is not None and _MESSAGE.decode() not in data


def _head(fs: Filesystem, path: str) -> Mapping[str, Any]:
    with atomic.reading(fs, path) as fd:
        first = fs.read(fd, _WINDOW, 0)
    if found := row_of(first.split(b"\n", 1)[0]):
        return found
    return row_of(atomic.read_all(fs, path))  # one document over several lines


def _read(fs: Filesystem, path: str, most: int) -> str | None:
    """Return the text of a small file; `None` if there is none, or a larger one."""
    try:
        if fs.lstat(path).st_size > most:
            return None
        return atomic.read_all(fs, path).decode("utf-8", "replace")
    except OSError:
        return None
