"""The pi family: pi, oh-my-pi and xcsh. Their files are in the native format and are written like our own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sessile.agents.base import NATIVE_CAPABILITIES, Agent
from sessile.core.codec import decode
from sessile.core.providers import Dialect, Words
from sessile.storage import atomic
from sessile.storage.base import Filesystem
from sessile.storage.layout import Source, encode_cwd, folder_names

PI = Dialect(
    "pi",
    gaps=(
        "system prompt: this version of pi does not store it",
        "tools: this version of pi does not store their descriptions",
    ),
    missing="No result provided",
    thoughts="text",
    attached="Attached image(s) from tool result:",
    no_image="(image omitted: model does not support images)",
    no_tool_image="(tool image omitted: model does not support images)",
    joined_results=True,
    stopped=False,
)
"""The requests of pi, of which those of its relatives differ in a few points."""

OMP = PI._replace(
    name="omp",
    gaps=(
        "system prompt: oh-my-pi does not store it",
        "tools: oh-my-pi does not store their descriptions",
        "header: oh-my-pi puts two lines before the system prompt for Anthropic, and does not store them",
        "reminder: oh-my-pi puts the date and the folder before the first message, and does not store them",
    ),
    thoughts="tagged",
    shared_thoughts=True,
    joined_users=True,
    joint="\n",
    no_image="[image omitted: the active model does not support image input]",
    no_tool_image="[image omitted: the active model does not support image input]",
    prefix="_",
    compaction=Words(
        "Prior model work/tool state available.\nMUST build on prior work; NEVER duplicate prior work.\n\n<summary>\n",
        "\n</summary>",
    ),
)


class Family(Agent):
    """A program of the pi family, which has a file with its models beside its sessions."""

    capabilities = NATIVE_CAPABILITIES - {"tag"}
    placing = "sessile.agents.pi.placing"
    thinking_as_text = False  # in placed sessions, of other providers than Anthropic
    models = "models.json"

    def folder(self, cwd: str, home: str, environ: Mapping[str, str]) -> str:
        """Return the name of a project's folder."""
        return encode_cwd(cwd)

    def model_facts(self, fs: Filesystem, path: str, provider: str, model: str) -> Mapping[str, Any]:
        """Return what its file of models says."""
        home, found, _ = path.rpartition("/sessions/")
        return facts_in(fs, f"{home}/{self.models}", provider, model) if found else {}


class Pi(Family):
    """pi: `~/.pi/agent`."""

    name = "pi"
    title = "pi"
    command = ("pi", "--session")
    variables = (("PI_CODING_AGENT_DIR", "~/.pi/agent"),)
    dialect = PI

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return the folder of the environment variable, then the default one."""
        homes = [f"{home}/.pi/agent"]
        if override := environ.get("PI_CODING_AGENT_DIR"):
            homes.insert(0, home + override[1:] if override.startswith("~/") else override)
        return [Source(self.name, folder, f"{folder}/sessions") for folder in dict.fromkeys(homes)]


class _Fork(Family):
    """A program made from pi, with a home of its own."""

    models = "models.yml"

    def sources(self, home: str, environ: Mapping[str, str], names: Callable[[str], Sequence[str]]) -> list[Source]:
        """Return its configuration folder and its data folder."""
        config = environ.get("PI_CONFIG_DIR") or f".{self.name}"
        data = environ.get("XDG_DATA_HOME") or f"{home}/.local/share"
        homes = (f"{home}/{config}/agent", f"{data}/{self.name}")
        return [Source(self.name, folder, f"{folder}/sessions") for folder in homes]


class OhMyPi(_Fork):
    """oh-my-pi: `~/.omp/agent`."""

    name = "omp"
    dialect = OMP
    title = "oh-my-pi"
    command = ("omp", "--resume")
    variables = (("PI_CONFIG_DIR", ".omp"),)
    thinking_as_text = True  # it sends a thought of OpenAI to Anthropic with an empty signature, which is refused

    def folder(self, cwd: str, home: str, environ: Mapping[str, str]) -> str:
        """Return the short name for a project below the home or the temporary folder; a file elsewhere is moved there."""
        long, *short = folder_names(cwd, home, environ.get("TMPDIR") or "/tmp")
        return short[0] if short else long


class Xcsh(_Fork):
    """xcsh: `~/.xcsh/agent`."""

    name = "xcsh"
    dialect = OMP._replace(name="xcsh")
    title = "xcsh"
    command = ("xcsh", "--resume")
    variables = (("PI_CONFIG_DIR", ".xcsh"),)


# -- models

_MODEL = re.compile(r"^\s*-\s+id:\s*(\S+)", re.MULTILINE)
_INPUT = re.compile(r"input:\s*(?:\[([^\]]*)\]|((?:\n\s*-\s*\w+)+))")
_REASONING = re.compile(r"reasoning:\s*(true|false)")


def facts_in(fs: Filesystem, path: str, provider: str, model: str) -> Mapping[str, Any]:
    """Return what a file of models says of one; nothing if it does not have the model or cannot be read."""
    try:
        data = atomic.read_all(fs, path)
    except OSError:
        return {}
    try:
        settings = decode(data)
    except ValueError:
        return _in_yaml(data.decode("utf-8", "replace"), model)
    providers = settings.get("providers") if isinstance(settings, dict) else None
    known = providers.get(provider) if isinstance(providers, dict) else None
    models = known.get("models") if isinstance(known, dict) else None
    listed = models if isinstance(models, list) else []
    return next((item for item in listed if isinstance(item, dict) and item.get("id") == model), {})


def _in_yaml(text: str, model: str) -> Mapping[str, Any]:
    """Return the two members that matter of a model in YAML, of which JSON is a part."""
    starts = [*_MODEL.finditer(text)]
    for number, start in enumerate(starts):
        if start[1].strip("'\"") == model:
            rest = text[start.end() : starts[number + 1].start() if number + 1 < len(starts) else len(text)]
            accepted, reasoning = _INPUT.search(rest), _REASONING.search(rest)
            facts: dict[str, Any] = {} if reasoning is None else {"reasoning": reasoning[1] == "true"}
            return facts if accepted is None else facts | {"input": re.findall(r"\w+", accepted[1] or accepted[2])}
    return {}
