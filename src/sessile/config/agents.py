"""The part of the configuration that says how agents answer: workspace, model, runner, compaction, trimming.

`agents.list[]` holds what an agent says itself; `Agents.merged` fills in the defaults, member by member. An agent that is not in
the list has the defaults: a binding or an imported conversation may name one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from sessile.config.files import Part, convert
from sessile.core.compaction import CompactionSettings
from sessile.core.memory_flush import FlushSettings
from sessile.core.runner_settings import TIMEOUT
from sessile.core.trimming import TrimSettings, ttl_of
from sessile.errors import InvalidConfig
from sessile.formats.yoyoclaw.normal import DEFAULT_AGENT, normalize_agent_id

Access = Literal["rw", "ro", "none"]
RunnerName = Literal["echo", "command", "openai", "anthropic"]

Few = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
Duration = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(?i:\s*(?=.*[1-9])\d{1,9}(\.\d{1,9})?\s*(ms|s|m|h|d)\s*)$", description="duration such as 5m or 30d"
    ),
]
Name = Annotated[str, msgspec.Meta(pattern=r"\S", max_length=1_000, description="text of at most 1000 characters")]


class Compaction(CompactionSettings, frozen=True):
    """When a context is compacted, and what is noted before."""

    memory_flush: FlushSettings = FlushSettings()


def milliseconds(duration: str | int, unit: str) -> int:
    """How long a `Duration` is; a bare number is of that unit."""
    return ttl_of(duration if isinstance(duration, str) else f"{duration}{unit}") or 0


class SoftTrim(Part, frozen=True):
    """How much is shown of a long tool result."""

    max_chars: Count = 4_000  # a result that is longer is cut
    head_chars: Count = 1_500  # of its beginning that stay
    tail_chars: Count = 1_500  # of its end that stay


class HardClear(Part, frozen=True):
    """What stands for a tool result that is not shown at all."""

    enabled: bool = True  # whether old results are taken out as a whole
    placeholder: str = "[Old tool result content cleared]"  # what stands in their place


class ToolPatterns(Part, frozen=True):
    """Which tools' results may be trimmed; deny wins, no pattern allows all."""

    allow: tuple[str, ...] = ()  # names, with * for anything
    deny: tuple[str, ...] = ()  # the same; it wins


class ContextPruning(Part, frozen=True):
    """The trimming of old tool results; it acts only where the provider caches prompts."""

    mode: Literal["off", "cache-ttl"] = "cache-ttl"  # `off` leaves everything in
    ttl: Duration | Count = "5m"  # how long a provider keeps a prompt; a bare number is minutes
    keep_last_assistants: Count = 3  # answers whose results stay untouched
    soft_trim_ratio: Ratio = 0.3  # how full the context is before results are cut
    hard_clear_ratio: Ratio = 0.5  # how full it is before results are taken out
    min_prunable_tool_chars: Count = 50_000  # fewer characters of results than that are not worth it
    soft_trim: SoftTrim = SoftTrim()
    hard_clear: HardClear = HardClear()
    tools: ToolPatterns = ToolPatterns()

    @property
    def settings(self) -> TrimSettings | None:
        """The same as trimming wants it; `None` if nothing is to be trimmed."""
        if self.mode == "off":
            return None
        return TrimSettings(
            ttl=milliseconds(self.ttl, "m"),
            keep_last_assistants=self.keep_last_assistants,
            soft_trim_ratio=self.soft_trim_ratio,
            hard_clear_ratio=self.hard_clear_ratio,
            min_prunable_chars=self.min_prunable_tool_chars,
            max_chars=self.soft_trim.max_chars,
            head_chars=self.soft_trim.head_chars,
            tail_chars=self.soft_trim.tail_chars,
            hard_clear=self.hard_clear.enabled,
            placeholder=self.hard_clear.placeholder,
            allow=self.tools.allow,
            deny=self.tools.deny,
        )


class ModelChoice(Part, frozen=True):
    """A model, in the longer of its two forms."""

    primary: Name  # provider/model


class Sandbox(Part, frozen=True):
    """The documented place of an agent's access to its workspace."""

    workspace_access: Access | None = None  # the same as workspaceAccess, which wins


class AgentDefaults(Part, frozen=True):
    """How an agent answers."""

    workspace: Name | None = None  # the folder of its notes and of a command; without one there are no notes
    workspace_access: Access | None = None  # what the agent may do in its workspace; rw
    sandbox: Sandbox = Sandbox()
    model: Name | ModelChoice | None = None  # provider/model; without one the echo answers
    runner: RunnerName | None = None  # that of the model's provider; without a model the echo
    command: tuple[str, ...] = ()  # of the runner "command": a program and its arguments, never a shell
    system_prompt: str | None = None  # what the model is told first
    max_tokens: Tokens | None = None  # of one answer; the endpoint decides
    timeout_seconds: Seconds = TIMEOUT  # of one answer
    context_tokens: Tokens | None = None  # the window of a model that no catalogue knows
    image_max_dimension_px: Few = 1_200  # larger pictures are made smaller
    compaction: Compaction = Compaction()
    context_pruning: ContextPruning = ContextPruning()

    @property
    def access(self) -> Access:
        """What the agent may do in its workspace."""
        return self.workspace_access or self.sandbox.workspace_access or "rw"

    @property
    def model_name(self) -> str | None:
        """The model as "provider/model"."""
        return self.model.primary if isinstance(self.model, ModelChoice) else self.model


class Agent(AgentDefaults, frozen=True, kw_only=True):
    """One agent, with everything that the defaults say and it does not."""

    id: Name  # how bindings and keys call it
    name: str | None = None  # how people call it
    default: bool = False  # whether it answers what no binding gives to another; else the first does


class Agents(Part, frozen=True):
    """Who answers."""

    defaults: AgentDefaults = AgentDefaults()
    list: tuple[Agent, ...] = ()

    @property
    def default_id(self) -> str:
        """The agent of messages that no binding gives to another: the one that says so, else the first."""
        chosen = next((agent for agent in self.list if agent.default), self.list[0] if self.list else None)
        return DEFAULT_AGENT if chosen is None else normalize_agent_id(chosen.id)

    def named(self, agent_id: str) -> Agent:
        """What holds for an agent; one that is not in the list has the defaults."""
        wanted = normalize_agent_id(agent_id)
        for agent in self.list:
            if normalize_agent_id(agent.id) == wanted:
                return agent
        return Agent(id=wanted, **msgspec.structs.asdict(self.defaults))

    def merged(self, values: dict[str, Any]) -> Agents:
        """The same, each agent filled up from the defaults; `values` are what the file says of agents."""
        defaults = values.get("defaults", {})
        agents = [convert(Agent, _over(defaults, own)) for own in values.get("list", [])]
        _check(agents)
        _check_command(self.defaults, "agents.defaults")
        return Agents(self.defaults, tuple(agents))


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two tables as one; where both have a member that is no table, the upper one counts."""
    both = dict(below)
    for key, value in above.items():
        under = below.get(key)
        both[key] = _over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return both


def _check(agents: list[Agent]) -> None:
    seen: dict[str, int] = {}
    for number, agent in enumerate(agents):
        first = seen.setdefault(normalize_agent_id(agent.id), number)
        if first != number:
            raise InvalidConfig(
                f"agents.list[{number}].id is the same agent as agents.list[{first}]", hint="give each an id of its own"
            )
        _check_command(agent, f"agents.list[{number}]")
    if sum(agent.default for agent in agents) > 1:
        raise InvalidConfig("agents.list has more than one default", hint="leave `default` to one of them")


def _check_command(agent: AgentDefaults, place: str) -> None:
    if agent.runner == "command" and not agent.command:
        raise InvalidConfig(f"{place}.command is missing", hint='name the program, as in ["my-agent", "--quiet"]')
