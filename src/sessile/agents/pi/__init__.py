"""The pi family: pi, oh-my-pi and xcsh. Their files are in the native format and are written like our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sessile.agents.base import NATIVE_CAPABILITIES, Agent
from sessile.storage.layout import Source


class Pi(Agent):
    """pi: `~/.pi/agent`."""

    name = "pi"
    title = "pi"
    capabilities = NATIVE_CAPABILITIES
    command = ("pi", "--session")
    variables = (("PI_CODING_AGENT_DIR", "~/.pi/agent"),)

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the folder of the environment variable, then the default one."""
        homes = [f"{home}/.pi/agent"]
        if override := environ.get("PI_CODING_AGENT_DIR"):
            homes.insert(0, home + override[1:] if override.startswith("~/") else override)
        return [Source(self.name, folder, f"{folder}/sessions") for folder in dict.fromkeys(homes)]


class _Fork(Agent):
    """A program made from pi, with a home of its own."""

    capabilities = NATIVE_CAPABILITIES

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return its configuration folder and its data folder."""
        config = environ.get("PI_CONFIG_DIR") or f".{self.name}"
        data = environ.get("XDG_DATA_HOME") or f"{home}/.local/share"
        homes = (f"{home}/{config}/agent", f"{data}/{self.name}")
        return [Source(self.name, folder, f"{folder}/sessions") for folder in homes]


class OhMyPi(_Fork):
    """oh-my-pi: `~/.omp/agent`."""

    name = "omp"
    title = "oh-my-pi"
    command = ("omp", "--resume")
    variables = (("PI_CONFIG_DIR", ".omp"),)


class Xcsh(_Fork):
    """xcsh: `~/.xcsh/agent`."""

    name = "xcsh"
    title = "xcsh"
    command = ("xcsh", "--resume")
    variables = (("PI_CONFIG_DIR", ".xcsh"),)
