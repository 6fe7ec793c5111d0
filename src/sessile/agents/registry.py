"""The table of agents.

A package adds an agent of its own with an entry point of the group `sessile.agents` that names a subclass of `Agent`:

    [project.entry-points."sessile.agents"]
    barn = "barn_sessions:Barn"

Rules: the agents of Sessile are tried first. Installed ones are looked up only when none of ours knows a file or a name, because
the look-up takes as long as a small listing. An agent that cannot be loaded, or has the name of another one, is left out with a
warning.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from sessile.agents.base import NATIVE_CAPABILITIES, Agent, Capability, Format, ordered
from sessile.agents.claude import ClaudeCode
from sessile.agents.codex import Codex
from sessile.agents.myagents import MyAgents
from sessile.agents.openclaw import OpenClaw
from sessile.agents.pi import OhMyPi, Pi, Xcsh
from sessile.core.lines import Finding, Line, Scanner
from sessile.errors import StorageFailure
from sessile.storage import log
from sessile.storage.base import NATIVE, Filesystem
from sessile.storage.filesystem import is_announced
from sessile.storage.formats import EntryReader, Record, Stored, Told
from sessile.storage.layout import Source

if TYPE_CHECKING:
    from sessile.storage.head import Glance

GROUP = "sessile.agents"


class Later(NamedTuple):
    """An agent of Sessile that is imported when it is needed: if its home exists, or for a file that may be its own.

    Attributes:
        name: Its name.
        module: The package with the class.
        agent: The name of the class.
        home: Its home, below the user's; `{NAME}` stands for an environment variable, as in `variables`.
        variables: Environment variables that move the home, each with its default below the user's home; the default may
            name an earlier one.
        rendered: Whether its sessions are rendered; then their rows need no recognition.
    """

    name: str
    module: str
    agent: str
    home: str
    variables: tuple[tuple[str, str], ...] = ()
    rendered: bool = True

    def load(self) -> Agent:
        """Return the agent."""
        made: Agent = getattr(import_module(self.module), self.agent)()
        return made

    def home_in(self, home: str, environ: Mapping[str, str]) -> str:
        """Return its home folder, which may not exist."""
        moved: dict[str, str] = {}
        for name, default in self.variables:
            moved[name] = environ.get(name) or _below(home, default.format(**moved))
        return _below(home, self.home.format(**moved))


def _below(home: str, path: str) -> str:
    return path if path.startswith("/") else f"{home}/{path}"


class Registry:
    """Agents by name and by what their files look like; it is the `Formats` that storage asks."""

    def __init__(self, agents: Sequence[Agent], group: str | None = None, later: Sequence[Later] = ()) -> None:
        self._loaded = tuple(agents)
        self._later = {each.name: each for each in later}
        self._imported: dict[str, Agent] = {}
        self._group = group

    @property
    def loaded(self) -> Sequence[Agent]:
        """The agents that need no import."""
        return self._loaded

    @cached_property
    def _ours(self) -> Sequence[Agent]:
        return (*self._loaded, *(agent for name in self._later if (agent := self.get(name)) is not None))

    def __iter__(self) -> Iterator[Agent]:
        yield from self._ours
        yield from self.installed

    @cached_property
    def installed(self) -> Sequence[Agent]:
        """The agents of installed packages."""
        if self._group is None or not is_announced(self._group):
            return ()
        from importlib.metadata import entry_points  # takes as long as a small listing

        found: dict[str, Agent] = {}
        taken = {NATIVE, *(agent.name for agent in self._loaded), *self._later}
        for point in entry_points(group=self._group):
            try:
                made = point.load()()
            except (ImportError, AttributeError, TypeError) as error:
                log.warning("cannot load the agent %s (%s): %s", point.name, point.value, error)
                continue
            if not isinstance(made, Agent) or not made.name:
                log.warning("cannot load the agent %s (%s): it is not a subclass of Agent", point.name, point.value)
            elif made.name in taken or made.name in found:
                log.warning("the agent %s (%s) has a name that is taken: %s", point.name, point.value, made.name)
            else:
                found[made.name] = made
        return tuple(found.values())

    def get(self, name: str) -> Agent | None:
        """Return the agent with that name."""
        if name in self._later:
            if name not in self._imported:
                self._imported[name] = self._later[name].load()
            return self._imported[name]
        ours = next((agent for agent in self._loaded if agent.name == name), None)
        return ours or next((agent for agent in self.installed if agent.name == name), None)

    def agent_at(self, fs: Filesystem, path: str) -> Agent | None:
        """Return the agent that wrote the session at a path; `None` for native and unknown files."""
        agent: Agent | None = self._reader.agent_of(fs, path)
        return agent

    def recognise(self, first: bytes) -> Agent | None:
        """Return the agent whose files start with such bytes; `None` for native and unknown files."""
        rows = [agent for name, each in self._later.items() if not each.rendered and (agent := self.get(name))]
        for agents in ((*self._loaded, *rows), None):
            for agent in self.installed if agents is None else agents:
                if (known := agent.format) is not None and known.recognises(first):
                    return agent
        return None

    def capabilities(self, name: str | None) -> tuple[Capability, ...]:
        """Return what can be done to an agent's sessions where they are; our own and unknown folders are native."""
        agent = None if name is None else self.get(name)
        return ordered(NATIVE_CAPABILITIES if agent is None else agent.capabilities)

    def format_named(self, name: str) -> Format:
        """Return the format with that name."""
        agent = self.get(name)
        if agent is None or agent.format is None:  # it was there when the file was first read
            raise StorageFailure(f"the agent {name} is not installed", hint="install the package that provides it")
        return agent.format

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the folders of all agents, whether they exist or not; of a folder that two agents name, the first counts."""
        found: dict[str, Source] = {}
        agents = list(self._loaded)
        missing = []
        for each in self._later.values():
            folder = each.home_in(home, environ)
            made = self.get(each.name) if names(folder) else None
            if made is None:
                missing.append(Source(each.name, folder, folder))
            else:
                agents.append(made)
        for agent in (*agents, *self.installed):
            for source in agent.sources(home, environ, names):
                found.setdefault(source.sessions, source)
        return [*found.values(), *missing]

    def sources_at(self, folder: str, names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the sources of agents in a folder that is a home folder, or that of an agent, in another place."""
        found: dict[str, Source] = {}
        for agent in self:
            for source in agent.sources_at(folder, names):
                found.setdefault(source.sessions, source)
        return list(found.values())

    # -- what storage asks

    def stored(self, fs: Filesystem, agent: str, place: str, notices: list[str]) -> Iterable[Stored] | None:
        """Return the sessions below a place of an agent that lists them itself."""
        owner = self.get(agent)
        if owner is None or not owner.rendered:
            return None
        try:
            found = owner.stored(fs, place)
            return None if found is None else list(found)
        except FileNotFoundError:
            return []
        except _BROKEN as error:
            notices.append(f"the sessions of {owner.title} in {place} cannot be listed: {_reason(error)}")
            return []

    def renderer(self, path: str, first: bytes) -> str | None:
        """Return the agent that renders the session at a path."""
        for agent in self._ours:
            if agent.rendered and agent.renders(path, first):
                return agent.name
        if first and any(agent.format and agent.format.recognises(first) for agent in self._ours if not agent.rendered):
            return None
        return next((agent.name for agent in self.installed if agent.rendered and agent.renders(path, first)), None)

    def render(self, fs: Filesystem, agent: str, path: str) -> Iterator[Record | Finding]:
        """Yield the header and entries of a session. What breaks its agent's reader is a finding, after what could be read."""
        owner, begun = self.get(agent), False
        if owner is None:
            raise StorageFailure(f"the agent {agent} is not installed", hint="install the package that provides it")
        try:
            for record in owner.render(fs, path):
                begun = begun or not isinstance(record, Finding)
                yield record
        except _BROKEN as error:
            if not begun:
                code = error.errno if isinstance(error, OSError) else errno.EIO
                raise OSError(code or errno.EIO, _reason(error), path) from error
            yield Finding("damaged_source", -1, 0, f"the rest cannot be read: {_reason(error)}")

    @cached_property
    def _reader(self) -> ModuleType:
        from sessile.agents import reader  # most listings read no file of another agent

        return reader

    def unpack(self, suffix: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the rows of a file whose rows are not its bytes."""
        for agent in self:
            if (rows := agent.unpack(suffix, chunks)) is not None:
                return rows
        raise ValueError(f"no agent has files that end in {suffix}")

    def join(self, fs: Filesystem, path: str) -> Iterator[bytes | Finding]:
        """Yield the rows of all files of a session up to this one, and what is wrong with them."""
        for agent in self:
            if (rows := agent.join(fs, path)) is not None:
                return rows
        raise ValueError(f"no agent continues sessions in files such as {path}")

    def titles(self, data: bytes) -> Mapping[str, Told]:
        """Return the titles and projects in an agent's own list of sessions."""
        for agent in self._loaded:
            if (found := agent.titles(data)) is not None:
                return found
        return {}

    def glance(self, fs: Filesystem, fd: int, size: int, path: str) -> tuple[str, Glance] | None:
        """Return the format of an open file and what its two ends show."""
        found: tuple[str, Glance] | None = self._reader.glance_foreign(fs, fd, size, path)
        return found

    def entry_reader(self, name: str, saved: Any, start: int) -> EntryReader:
        """Return a reader that turns the lines of a file into entries."""
        reader: EntryReader = self._reader.RowReader(self.format_named(name), saved, start)
        return reader

    def scanner(self, name: str, offset: int) -> Scanner:
        """Return a scanner for a file in that format."""
        return self.format_named(name).scanner(offset)

    def is_nested(self, name: str) -> bool:
        """Return whether texts in that format are JSON inside JSON."""
        return self.format_named(name).nested

    def entries(self, name: str, line: Line) -> Iterator[tuple[str | None, Record]]:
        """Yield the entries of one line of a file in that format."""
        yield from self._reader.entries_at(self.format_named(name), line)


_DATA = (("XDG_DATA_HOME", ".local/share"),)
_QWEN = (("QWEN_HOME", ".qwen"), ("QWEN_RUNTIME_DIR", "{QWEN_HOME}"))
_CLINE = (
    ("CLINE_DIR", ".cline"),
    ("CLINE_DATA_DIR", "{CLINE_DIR}/data"),
    ("CLINE_SESSION_DATA_DIR", "{CLINE_DATA_DIR}/sessions"),
)
_OPENCLAW = (("OPENCLAW_STATE_DIR", ".openclaw"),)
_CONTINUE = (("CONTINUE_GLOBAL_DIR", ".continue"),)

# What a reader of foreign data may raise: values of unexpected types, among others.
_BROKEN = (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError, IndexError)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


AGENTS = Registry(
    (
        Pi(),
        OhMyPi(),
        Xcsh(),
        ClaudeCode(),
        Codex(),
        MyAgents(),
        OpenClaw(),
    ),
    GROUP,
    (
        Later("opencode", "sessile.agents.opencode", "OpenCode", "{XDG_DATA_HOME}/opencode", _DATA),
        Later("continue", "sessile.agents.continuedev", "Continue", "{CONTINUE_GLOBAL_DIR}", _CONTINUE),
        Later("crush", "sessile.agents.crush", "Crush", ".crush"),
        Later("gemini", "sessile.agents.gemini", "GeminiCli", ".gemini"),
        Later("cline", "sessile.agents.cline", "Cline", "{CLINE_SESSION_DATA_DIR}", _CLINE),
        Later("copilot", "sessile.agents.copilot", "CopilotCli", "{COPILOT_HOME}", (("COPILOT_HOME", ".copilot"),)),
        Later("qwen", "sessile.agents.qwen", "QwenCode", "{QWEN_RUNTIME_DIR}", _QWEN),
        Later("goose", "sessile.agents.goose", "Goose", "{XDG_DATA_HOME}/goose", _DATA),
        Later("openclaw-db", "sessile.agents.openclaw_db", "OpenClawDatabase", "{OPENCLAW_STATE_DIR}", _OPENCLAW),
        Later("kilo", "sessile.agents.kilo", "Kilo", "{XDG_DATA_HOME}/kilo", _DATA),
    ),
)
"""Every agent that Sessile knows, and those of installed packages."""
