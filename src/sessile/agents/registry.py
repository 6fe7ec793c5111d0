"""The table of agents.

A package adds an agent of its own with an entry point of the group `sessile.agents` that names a subclass of `Agent`:

    [project.entry-points."sessile.agents"]
    barn = "barn_sessions:Barn"

Rules: the agents of Sessile are tried first. Installed ones are looked up only when none of ours knows a file or a name, because
the look-up takes as long as a small listing. An agent that cannot be loaded, or has the name of another one, is left out with a
warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any

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
from sessile.storage.formats import EntryReader, Record, Told
from sessile.storage.layout import Source

if TYPE_CHECKING:
    from sessile.storage.head import Glance

GROUP = "sessile.agents"


class Registry:
    """Agents by name and by what their files look like; it is the `Formats` that storage asks."""

    def __init__(self, agents: Sequence[Agent], group: str | None = None) -> None:
        self._ours = tuple(agents)
        self._group = group

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
        taken = {NATIVE, *(agent.name for agent in self._ours)}
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
        ours = next((agent for agent in self._ours if agent.name == name), None)
        return ours or next((agent for agent in self.installed if agent.name == name), None)

    def recognise(self, first: bytes) -> Agent | None:
        """Return the agent whose files start with such bytes; `None` for native and unknown files."""
        for agents in (self._ours, None):
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
        for agent in self:
            for source in agent.sources(home, environ, names):
                found.setdefault(source.sessions, source)
        return list(found.values())

    # -- what storage asks

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
        for agent in self._ours:
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


AGENTS = Registry((Pi(), OhMyPi(), Xcsh(), ClaudeCode(), Codex(), MyAgents(), OpenClaw()), GROUP)
"""Every agent that Sessile knows, and those of installed packages."""
