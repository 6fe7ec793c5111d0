"""The configuration: one frozen `Config` that holds every default and every limit, with its reason.

    loaded = load_config(data, "config.toml")          TOML, or JSON if the name ends in .json
    loaded.config.agents.named("main").compaction      what holds for an agent, defaults filled in
    loaded.unknown                                     ["session.maintainance"]: keys that nobody reads

Names in files are those of the documents (`session.reset.atHour`, `agents.defaults.compaction.reserveTokens`). A key that is not
known has no effect and is reported; a value that cannot be meant is an `InvalidConfig` that names the key, or the line if the
file cannot be read at all.

What is said in several places, the first of these counts:
    anything           the command line, the file, the defaults here
    an agent           `agents.list[]`, then `agents.defaults`, member by member
    a toggle, a model  the session (a chat command or a patch), then the agent
    a reset            `session.resetByChannel` outright; else `resetByType`, `reset`, `session.idleMinutes`
    a context window   `models.providers.*.models[]`, the catalogue of models, then `contextTokens` of the agent
    a key of a model   `apiKey`, then the variable that `apiKeyEnv` names
    workspace access   `workspaceAccess`, then `sandbox.workspaceAccess`

Nothing here reads a file, a clock or the environment. Secrets show themselves only when asked (`Secret.reveal`).

The part of the configuration that says how agents answer: workspace, model, runner, compaction, trimming.

`agents.list[]` holds what an agent says itself; `Agents.merged` fills in the defaults, member by member. An agent that is not in
the list has the defaults: a binding or an imported conversation may name one.

How the bytes of a configuration file become values: TOML or JSON, then typed parts, with the exact place of what is wrong.

Rules: a file that cannot be read is refused with its line, a value that does not fit with its key, as a person would write it
(`agents.list[1].compaction.enabled`, `models.providers."my.box".baseUrl`). A key that no part knows is collected, never refused.
A key that is said twice is refused, because only one of the two would count. No message holds a value of the file, except a word
that is none of a few possible ones.

It does not know what the keys mean.

The time zone of a person: the one that was named, else that of this machine, with its changes of the clocks.

Where the machine keeps it is known to `storage.local_zone`. Only where nothing at all says what the zone is, the offset of the
clock as it is now has to do.

Every environment variable that is looked at, one row each: what holds without it, and what it is for.

It is a table for people; whoever reads a variable does so where the machine is touched, and a test compares the two.
"""

from __future__ import annotations

import ipaddress
import json
import re
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from sessile.agents.openclaw.keys import DEFAULT_AGENT, DEFAULT_MAIN_KEY, normalize_agent_id
from sessile.agents.openclaw.routing import Binding, DmScope, Peer, Scope
from sessile.agents.registry import AGENTS
from sessile.core.chat_commands import RESET_TRIGGERS
from sessile.core.compaction import CompactionSettings
from sessile.core.delivery import SendPolicy, read_send_policy
from sessile.core.memory_flush import FlushSettings
from sessile.core.resets import ResetConfig, read_reset_config
from sessile.core.result_trimming import TrimSettings, parse_ttl
from sessile.core.secret import Secret
from sessile.errors import InvalidConfig
from sessile.storage.local_zone import current_offset, machine_zone, zone_named
from sessile.vendors.clients import TIMEOUT, RunnerSettings
from sessile.vendors.models import Figures

# --- files

P = TypeVar("P", bound=msgspec.Struct)

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_CORRECT = "correct it, or take it out to have the default"


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a configuration; what a file does not say has its default."""


# -- from bytes to values


def parse(data: bytes, name: str) -> dict[str, Any]:
    """The values of a file: JSON if its name says so, else TOML."""
    try:
        text = data.decode("utf-8-sig")
        return _json(text) if name.lower().endswith(".json") else tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem, hint = f"line {line} is no UTF-8", "save the file as UTF-8"
    except UnicodeEncodeError:
        problem, hint = "an escape in the file stands for half a character", "write the character itself"
    except json.JSONDecodeError as error:
        problem, hint = f"line {error.lineno} is no JSON: {error.msg}", f"look at column {error.colno}"
    except tomllib.TOMLDecodeError as error:
        problem, hint = f"the file is no TOML: {error}", "a file of JSON has a name that ends in .json"
    except RecursionError:
        problem, hint = "the file is nested too deeply", "no setting is deeper than ten levels"
    except ValueError:
        problem, hint = "a number in the file has thousands of digits", "no setting is that large"
    # The errors of the parsers carry the whole text; ours must not.
    raise InvalidConfig(problem, path=name, hint=hint) from None


def _json(text: str) -> dict[str, Any]:
    values = json.loads(text, object_pairs_hook=_once) if text.strip() else {}
    if not isinstance(values, dict):
        raise InvalidConfig("the file holds no object", hint="begin it with { and end it with }")
    json.dumps(values, ensure_ascii=False).encode()  # raises for a lone surrogate, which no setting can hold
    return values


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise InvalidConfig(f"the key {_quoted(twice)} is said twice in one object", hint="take one of them out")
    return members


# -- from values to parts


def read_as(part: type[P], values: dict[str, Any]) -> tuple[P, list[str]]:
    """The part that values describe, and the places of the keys that it does not know."""
    unknown = list(_look(values, part, ""))
    return convert(part, values), unknown


def convert(part: type[P], values: dict[str, Any]) -> P:
    """The part that values describe; what is wrong with them was told before, by `read_as`."""
    return msgspec.convert(values, part, dec_hook=_secret)


def _look(value: object, kind: Any, place: str) -> Iterator[str]:
    """Go through a value beside its type; yields unknown keys, raises at what does not fit."""
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if isinstance(value, dict):
        for option in options:
            if isinstance(option, type) and issubclass(option, msgspec.Struct):
                return (yield from _look_into(value, option, place))
            if get_origin(option) is dict:
                for key, inner in value.items():
                    yield from _look(inner, get_args(option)[1], _below(place, key))
                return
    if isinstance(value, list):
        for option in options:
            if get_origin(option) is tuple:
                for number, inner in enumerate(value):
                    yield from _look(inner, get_args(option)[0], f"{place}[{number}]")
                return
    try:
        msgspec.convert(value, kind, dec_hook=_secret)
    except msgspec.ValidationError as error:
        wanted = _described(options) if isinstance(value, str) else None
        problem = f"is no {wanted}" if wanted else f"cannot be used: {error}"
        raise InvalidConfig(f"{place or 'the file'} {problem}", hint=_hint(options)) from None


def _look_into(value: dict[str, Any], part: type[msgspec.Struct], place: str) -> Iterator[str]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(part)}
    for name, field in fields.items():
        if field.required and name not in value:
            raise InvalidConfig(f"{_below(place, name)} is missing", hint=f"say {name} in {place}")
    for key, inner in value.items():
        if key in fields:
            yield from _look(inner, fields[key].type, _below(place, key))
        else:
            yield _below(place, key)


def _secret(kind: type, value: object) -> Secret:
    if kind is not Secret or not isinstance(value, str) or not value.strip():
        raise ValueError("Expected a `str` that is not empty")
    return Secret(value.strip())


def _described(options: tuple[Any, ...]) -> str | None:
    """What a text should be, in words; the pattern itself tells nobody anything."""
    notes = (note for option in options if get_origin(option) is Annotated for note in option.__metadata__)
    return next((note.description for note in notes if note.description), None)


def _hint(options: tuple[Any, ...]) -> str:
    words = [str(word) for option in options if get_origin(option) is Literal for word in get_args(option)]
    return f"use one of {', '.join(words)}" if words else _CORRECT


def _below(place: str, key: str) -> str:
    name = key if _BARE.fullmatch(key) else _quoted(key)
    return f"{place}.{name}" if place else name


def _quoted(key: str) -> str:
    return json.dumps(key)


# --- agents

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
    return parse_ttl(duration if isinstance(duration, str) else f"{duration}{unit}") or 0


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


# --- config

_RUNNERS: dict[str, RunnerName] = {"anthropic": "anthropic", "anthropic-messages": "anthropic"}  # others speak OpenAI's
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})

_Bytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Url = Annotated[
    str, msgspec.Meta(pattern=r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$", max_length=1_000)
]  # no secret fits in


# -- the gateway


class Limits(Part, frozen=True):
    """What the gateway refuses to take more of, whoever asks."""

    body_bytes: _Bytes = 8 << 20  # a long message with a few pictures
    header_bytes: _Bytes = 16 << 10  # a token and what browsers send are less than 2 KiB
    connections: Few = 64  # requests that are being answered; each may hold a body in memory
    event_clients: Few = 100  # streams of events stay open, so they are counted apart
    queued_turns: Few = 32  # of one session; who has more to say than that is a loop
    header_seconds: Seconds = 10.0  # a client that needs longer for its headers is holding a connection on purpose
    body_seconds: Seconds = 30.0  # the same for a body: 8 MiB at 2 Mbit/s
    requests_per_second: Few = 2_000  # of one address: more than a disk can acknowledge, less than a runaway loop sends
    addresses: Few = 1_024  # whose rate is remembered; the longest silent is forgotten first


class Gateway(Part, frozen=True):
    """Where the gateway listens, and whom it answers."""

    host: Name = "127.0.0.1"  # where to listen; nobody else's machine can reach 127.0.0.1
    port: _Port = 8787  # 0 lets the system choose
    token_file: Name | None = None  # `gateway.token` in the root, made on first use
    allowed_hosts: tuple[Name, ...] = ()  # names besides loopback and `host` by which it may be called

    @property
    def loopback(self) -> bool:
        """Whether only programs of this machine can reach it."""
        if self.host.lower() == "localhost":
            return True
        address = _address(self.host)
        return address is not None and address.is_loopback

    @property
    def hosts(self) -> frozenset[str]:
        """The names by which it may be called, as a `Host` header says them, without ports."""
        address = _address(self.host)
        everywhere = address is not None and address.is_unspecified
        own = () if everywhere else (self.host,)
        return LOOPBACK | {_as_host(name) for name in (*own, *self.allowed_hosts)}

    def check_exposure(self) -> None:
        """Refuse to be reachable from elsewhere with a token that nobody has chosen to give out."""
        if not self.loopback and self.token_file is None:
            raise InvalidConfig(
                f"gateway.host {self.host} can be reached from other machines, and gateway.tokenFile is not set",
                hint="set gateway.tokenFile in config.toml, or listen on 127.0.0.1",
            )


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _as_host(name: str) -> str:
    lowered = name.strip().lower()
    return f"[{lowered}]" if ":" in lowered and not lowered.startswith("[") else lowered


# -- sessions


class Maintenance(Part, frozen=True):
    """How large a store of conversations may grow. Whatever goes is archived first."""

    mode: Literal["warn", "enforce"] = "warn"  # `warn` only tells; `enforce` archives
    prune_after: Duration | Few = "30d"  # how long nobody has used what is to go; a bare number is days
    max_entries: Few = 500  # conversations of one agent
    max_disk_bytes: Count | None = None  # of one agent's sessions; no limit

    @property
    def prune_after_ms(self) -> int:
        """After how long an entry that nobody uses is to go."""
        return milliseconds(self.prune_after, "d")


class SessionRules(Part, frozen=True):
    """Which session a message belongs to, and when a new one begins."""

    scope: Scope = "per-sender"  # who has a conversation of one's own; `global` is one for all
    dm_scope: DmScope = "main"  # what tells direct chats apart; `main`: all with an agent are one conversation
    main_key: Name = DEFAULT_MAIN_KEY  # what the main conversation of an agent is called
    identity_links: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)  # names of one person
    links_keep_channel: bool = False  # whether a linked person still has a conversation for each channel
    reset: dict[str, Any] | None = None  # mode (daily, idle, none), atHour, idleMinutes, timeZone; daily at 04:00
    reset_by_type: dict[str, Any] | None = None  # the same for direct, group or thread
    reset_by_channel: dict[str, Any] | None = None  # the same for a channel; it counts alone
    idle_minutes: float | None = None  # the older way to say mode idle
    reset_triggers: tuple[Name, ...] = RESET_TRIGGERS  # messages that begin a new session
    send_policy: dict[str, Any] | None = None  # which replies are delivered: rules and default; all
    parent_fork_max_tokens: Count = 100_000  # a thread of a larger parent begins empty; 0 means no limit
    maintenance: Maintenance = Maintenance()

    @property
    def resets(self) -> ResetConfig:
        """What is said of resets, as the engine reads it."""
        members = {
            "reset": self.reset,
            "resetByType": self.reset_by_type,
            "resetByChannel": self.reset_by_channel,
            "idleMinutes": self.idle_minutes,
        }
        return read_reset_config(members)[0]

    @property
    def sending(self) -> SendPolicy | None:
        """Which replies are delivered, as the engine reads it."""
        return read_send_policy(self.send_policy)


# -- bindings


class BoundPeer(Part, frozen=True):
    """The chat that a binding is for."""

    kind: Literal["direct", "dm", "group", "channel"]  # what kind of chat
    id: Name  # its id on the channel


class BindingMatch(Part, frozen=True):
    """Which messages a binding is for."""

    channel: Name  # such as telegram
    account_id: str | None = None  # the default account; `*` is any
    peer: BoundPeer | None = None  # one chat; any
    guild_id: str | None = None  # a server of Discord; any
    team_id: str | None = None  # a workspace of Slack; any


class BindingRule(Part, frozen=True):
    """Messages that go to an agent."""

    agent_id: Name  # who answers
    match: BindingMatch  # which messages

    @property
    def binding(self) -> Binding:
        """The same as routing wants it."""
        match, peer = self.match, self.match.peer
        return Binding(
            agent=self.agent_id,
            channel=match.channel,
            account=match.account_id,
            peer=None if peer is None else Peer("direct" if peer.kind == "dm" else peer.kind, peer.id),
            guild=match.guild_id,
            team=match.team_id,
        )


# -- models


class Cost(Part, frozen=True):
    """Dollars for a million tokens; `None` is unknown."""

    input: float | None = None  # dollars for a million tokens read
    output: float | None = None  # dollars for a million tokens written
    cache_read: float | None = None  # dollars for a million tokens read from the cache
    cache_write: float | None = None  # dollars for a million tokens put into the cache


class Model(Part, frozen=True):
    """What a person says of a model."""

    id: Name  # its name at the provider
    context_window: Tokens | None = None  # tokens that it can read
    max_tokens: Tokens | None = None  # tokens of one answer
    cost: Cost = Cost()


class Provider(Part, frozen=True):
    """An endpoint, how it is spoken to, and its models."""

    base_url: _Url | None = None  # its address; that of the vendor
    api: Literal["openai", "openai-completions", "anthropic", "anthropic-messages"] | None = None  # by its name
    api_key: Secret | None = None  # the key itself; better is apiKeyEnv
    api_key_env: Name | None = None  # the variable that holds the key; the vendor's own
    models: tuple[Model, ...] = ()


class Providers(Part, frozen=True):
    """The endpoints that may be asked. Nothing else is ever connected to."""

    providers: dict[str, Provider] = msgspec.field(default_factory=dict)

    def figures(self) -> dict[str, Figures]:
        """Windows and prices by "provider/model", for `Models`."""
        return {
            f"{name}/{model.id}": Figures(
                context_window=model.context_window,
                input=model.cost.input,
                output=model.cost.output,
                cache_read=model.cost.cache_read,
                cache_write=model.cost.cache_write,
            )
            for name, provider in self.providers.items()
            for model in provider.models
        }


class User(Part, frozen=True):
    """The person whom the gateway is for."""

    time_zone: Name | None = None  # of days in statistics and notes, and of resets that name none; that of the machine


# -- all of it


class Config(Part, frozen=True):
    """Everything that can be set."""

    gateway: Gateway = Gateway()
    limits: Limits = Limits()
    agents: Agents = Agents()
    session: SessionRules = SessionRules()
    bindings: tuple[BindingRule, ...] = ()
    models: Providers = Providers()
    user: User = User()

    def model_of(self, agent_id: str, override: str | None = None) -> tuple[str | None, str | None]:
        """Provider and name of the model that an agent uses; an override without a provider is one of the agent's own."""
        own, slash, name = (self.agents.named(agent_id).model_name or "").partition("/")
        if not slash:
            own, name = "", own
        if override is None:
            return own or None, name or None
        provider, slash, model = override.partition("/")
        return (provider, model) if slash else (own or None, override)

    def runner_of(self, agent_id: str, override: str | None = None) -> RunnerSettings:
        """The runner of an agent: the one that it names, else that of its model's provider, else the echo."""
        agent = self.agents.named(agent_id)
        name, model = self.model_of(agent_id, override)
        provider = self.models.providers.get(name or "", Provider())
        spoken = _RUNNERS.get(provider.api or name or "", "openai") if model else "echo"
        # A conversation that chose a model of another protocol is answered by that; programs and the echo answer all.
        chosen = agent.runner if override is None or agent.runner in ("command", "echo") else None
        return RunnerSettings(
            name=chosen or spoken,
            model=model,
            provider=name,
            base_url=provider.base_url,
            api_key_env=provider.api_key_env,
            command=agent.command,
            max_tokens=agent.max_tokens,
            timeout=agent.timeout_seconds,
        )

    def key_of(self, provider: str | None) -> Secret | None:
        """The key that the file holds for a provider."""
        return self.models.providers.get(provider or "", Provider()).api_key


class Loaded(NamedTuple):
    """A configuration, and the keys of its file that have no effect."""

    config: Config
    unknown: list[str]


def load_config(data: bytes, name: str) -> Loaded:
    """The configuration in a file of that name; raises `InvalidConfig` with the key or the line that is wrong."""
    try:
        values = parse(data, name)
        config, unknown = read_as(Config, values)
        agents = config.agents.merged(values.get("agents", {}))
        _, remarks = read_reset_config(values.get("session", {}))
        read_send_policy(config.session.send_policy)
    except InvalidConfig as error:
        raise InvalidConfig(error.message, path=name, hint=error.hint) from None
    return Loaded(msgspec.structs.replace(config, agents=agents), unknown + [remark.place for remark in remarks])


# --- zones


def local_zone(name: str | None = None) -> tzinfo:
    """The zone of a name such as `Europe/Berlin`, else that of this machine; raises `InvalidConfig` for one that is not known."""
    if name is not None:
        return zone_named(name)
    return machine_zone() or current_offset()


# --- variables


class Variable(NamedTuple):
    """One variable; `default` says what holds without it."""

    name: str
    default: str
    meaning: str


VARIABLES: Mapping[str, Sequence[Variable]] = {
    "Where things are": (
        Variable(
            "SESSILE_ROOT", "`~/.sessile`", "one's own store: a folder, or the address of a database (postgresql://…)"
        ),
        Variable("SESSILE_BLOBS", "in the store", "an object store for large content (s3://bucket/prefix)"),
        Variable("SESSILE_CACHE", "the system's folder for caches", "the cache, which may be deleted at any time"),
        Variable("HOME", "that of the user", "where `~` is; with a database, the configuration and tokens stay there"),
    ),
    "Where other agents keep their sessions": (
        *(
            Variable(name, f"`{default}`", agent.title)
            for agent in AGENTS
            for name, default in agent.variables
            if name != "PI_CONFIG_DIR"
        ),
        Variable("PI_CONFIG_DIR", "`.omp`, `.xcsh`", "oh-my-pi and xcsh, below the home"),
        Variable("XDG_DATA_HOME", "`~/.local/share`", "oh-my-pi and xcsh, if they follow it"),
    ),
    "How the command speaks": (
        Variable("NO_COLOR", "colours at a terminal", "no colours; so does TERM=dumb"),
        Variable("FORCE_COLOR", "no colours at a pipe", "colours at a pipe, too"),
        Variable("SESSILE_PAGER", "`$PAGER`", "the pager; `cat` is none"),
        Variable("PAGER", "`less -FRX`", "the pager, if SESSILE_PAGER names none"),
        Variable("SESSILE_PLAIN", "0", "1 is the same as `--plain`: words instead of glyphs and columns"),
        Variable("TERM", "", "`dumb` is a terminal without colours and without a bar of progress"),
        Variable("COLUMNS, LINES", "as the terminal says", "its size"),
        Variable("TZ", "that of the machine", "the time zone of what people are shown"),
        Variable("PWD", "", "the working folder, if somebody has removed it"),
        Variable(
            "KITTY_WINDOW_ID, TMUX_PANE, TERM_SESSION_ID, WT_SESSION",
            "the tty",
            "which terminal this is, for programs that note its session (`terminal_id`)",
        ),
    ),
    "Keys": (
        Variable("ANTHROPIC_API_KEY", "none", "Anthropic's models; `apiKeyEnv` may name another variable"),
        Variable("OPENAI_API_KEY", "none", "OpenAI's models; `apiKeyEnv` may name another variable"),
        Variable("AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY", "none", "the object store of SESSILE_BLOBS"),
        Variable("AWS_ENDPOINT, AWS_REGION", "Amazon's", "where that object store is"),
        Variable("PGPASSWORD", "`~/.pgpass`", "the password of the database, if its address has none"),
    ),
}
