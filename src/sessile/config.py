"""The configuration: one frozen `Config` with every setting, its default and its limits.

    loaded = load_config(data, "config.toml")          TOML, or JSON if the name ends in .json
    loaded.config.agents.named("main").compaction      the settings of an agent, with defaults filled in
    loaded.unknown                                     unknown keys, such as ["session.maintainance"]

Unknown keys have no effect and are reported. An invalid value is an `InvalidConfig` that names the key, as it is written in
the file (`agents.list[1].compaction.enabled`), or the line if the file cannot be parsed. A key that occurs twice is an error.
Error messages never contain values of the file, except a word that is not one of the allowed ones.

Precedence, the first one counts:

    anything           the command line, the file, the defaults here
    an agent           `agents.list[]`, then `agents.defaults`, member by member
    a toggle, a model  the session (a chat command or a patch), then the agent
    a reset            `session.resetByChannel`; otherwise `resetByType`, `reset`, `session.idleMinutes`
    a context window   `models.providers.*.models[]`, the catalog of models, then `contextTokens` of the agent
    an API key         `apiKey`, then the variable named by `apiKeyEnv`
    workspace access   `workspaceAccess`, then `sandbox.workspaceAccess`

An agent that is not in `agents.list` has the defaults, because a binding or an imported conversation may name one.

Parsing reads no file, no clock and no environment. `local_zone` reads the time zone of the machine. `VARIABLES` documents
every environment variable; the code that uses a variable reads it, and a test compares the two.

The comment after a field is its description in the configuration reference.
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

P = TypeVar("P", bound=msgspec.Struct)

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_CORRECT = "correct the value, or remove the key to use the default"


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the configuration. Missing keys have their defaults."""


# -- from bytes to values


def parse(data: bytes, name: str) -> dict[str, Any]:
    """Parse a file: JSON if its name ends in .json, otherwise TOML.

    Raises:
        InvalidConfig: The file cannot be parsed.
    """
    try:
        text = data.decode("utf-8-sig")
        return _json(text) if name.lower().endswith(".json") else tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem, hint = f"line {line} is not valid UTF-8", "save the file as UTF-8"
    except UnicodeEncodeError:
        problem, hint = "an escape in the file is half of a surrogate pair", "write the character itself"
    except json.JSONDecodeError as error:
        problem, hint = f"line {error.lineno} is not valid JSON: {error.msg}", f"check column {error.colno}"
    except tomllib.TOMLDecodeError as error:
        problem, hint = f"the file is not valid TOML: {error}", "use a name that ends in .json for JSON"
    except RecursionError:
        problem, hint = "the file is nested too deeply", "remove the nesting: no setting is deeper than ten levels"
    except ValueError:
        problem, hint = "a number in the file has thousands of digits", "use a smaller number"
    # The errors of the parsers contain the whole text, which may have secrets: no `from error`.
    raise InvalidConfig(problem, path=name, hint=hint) from None


def _json(text: str) -> dict[str, Any]:
    values = json.loads(text, object_pairs_hook=_once) if text.strip() else {}
    if not isinstance(values, dict):
        raise InvalidConfig("the file is not a JSON object", hint="start it with { and end it with }")
    json.dumps(values, ensure_ascii=False).encode()  # raises for a lone surrogate
    return values


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise InvalidConfig(f"the key {_quoted(twice)} occurs twice in one object", hint="remove one of them")
    return members


# -- from values to parts


def read_as(part: type[P], values: dict[str, Any]) -> tuple[P, list[str]]:
    """Convert values to a part of the configuration, and return it with the places of unknown keys."""
    unknown = list(_look(values, part, ""))
    return convert(part, values), unknown


def convert(part: type[P], values: dict[str, Any]) -> P:
    """Convert values that `read_as` has checked."""
    return msgspec.convert(values, part, dec_hook=_secret)


def _look(value: object, kind: Any, place: str) -> Iterator[str]:
    """Compare a value with its type: yield unknown keys, and raise if it does not fit."""
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
        problem = f"must be a {wanted}" if wanted else f"is not valid: {error}"
        raise InvalidConfig(f"{place or 'the file'} {problem}", hint=_hint(options)) from None


def _look_into(value: dict[str, Any], part: type[msgspec.Struct], place: str) -> Iterator[str]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(part)}
    for name, field in fields.items():
        if field.required and name not in value:
            raise InvalidConfig(f"{_below(place, name)} is required", hint=f"add {name} to {place}")
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
    """What a text must be, in words instead of a pattern."""
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


# -- agents

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
    """When the context is compacted, and how notes are saved before."""

    memory_flush: FlushSettings = FlushSettings()


def milliseconds(duration: str | int, unit: str) -> int:
    """Return a `Duration` in milliseconds; a bare number is in this unit."""
    return parse_ttl(duration if isinstance(duration, str) else f"{duration}{unit}") or 0


class SoftTrim(Part, frozen=True):
    """How long tool results are shortened."""

    max_chars: Count = 4_000  # results with more characters are shortened
    head_chars: Count = 1_500  # characters kept at the beginning
    tail_chars: Count = 1_500  # characters kept at the end


class HardClear(Part, frozen=True):
    """How old tool results are removed."""

    enabled: bool = True  # whether old results are removed as a whole
    placeholder: str = "[Old tool result content cleared]"  # the text that replaces them


class ToolPatterns(Part, frozen=True):
    """Which tools' results may be trimmed. Without patterns, all."""

    allow: tuple[str, ...] = ()  # names of tools; `*` matches anything
    deny: tuple[str, ...] = ()  # names of tools that are never trimmed; wins over `allow`


class ContextPruning(Part, frozen=True):
    """How old tool results are trimmed. It has an effect only with providers that cache prompts."""

    mode: Literal["off", "cache-ttl"] = "cache-ttl"  # `off` trims nothing
    ttl: Duration | Count = "5m"  # how long the provider caches a prompt; a bare number is in minutes
    keep_last_assistants: Count = 3  # the number of last answers whose results are not trimmed
    soft_trim_ratio: Ratio = 0.3  # how full the context must be before results are shortened
    hard_clear_ratio: Ratio = 0.5  # how full the context must be before results are removed
    min_prunable_tool_chars: Count = 50_000  # the minimum number of characters that trimming must be able to save
    soft_trim: SoftTrim = SoftTrim()
    hard_clear: HardClear = HardClear()
    tools: ToolPatterns = ToolPatterns()

    @property
    def settings(self) -> TrimSettings | None:
        """The settings for trimming; `None` if it is off."""
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
    """A model, in its long form."""

    primary: Name  # `provider/model`


class Sandbox(Part, frozen=True):
    """The sandbox of an agent."""

    workspace_access: Access | None = None  # the same as the agent's `workspaceAccess`, which wins


class AgentDefaults(Part, frozen=True):
    """How agents answer."""

    workspace: Name | None = None  # the folder for notes, and of `command`; without it no notes are saved
    workspace_access: Access | None = None  # read-write (`rw`), read-only (`ro`) or `none`; the default is `rw`
    sandbox: Sandbox = Sandbox()
    model: Name | ModelChoice | None = None  # `provider/model`; without one, answers repeat the message
    runner: RunnerName | None = None  # what answers; by default the provider of the model, or `echo` without a model
    command: tuple[str, ...] = ()  # the program of the runner `command`, with its arguments; it is not run in a shell
    system_prompt: str | None = None  # the system prompt
    max_tokens: Tokens | None = None  # the maximum length of one answer, in tokens; by default the provider decides
    timeout_seconds: Seconds = TIMEOUT  # the maximum time for one answer, in seconds
    context_tokens: Tokens | None = None  # the context window, in tokens, of a model that is not in the catalog
    image_max_dimension_px: Few = 1_200  # larger images are scaled down to this width and height, in pixels
    compaction: Compaction = Compaction()
    context_pruning: ContextPruning = ContextPruning()

    @property
    def access(self) -> Access:
        """The access of the agent to its workspace."""
        return self.workspace_access or self.sandbox.workspace_access or "rw"

    @property
    def model_name(self) -> str | None:
        """The model, as "provider/model"."""
        return self.model.primary if isinstance(self.model, ModelChoice) else self.model


class Agent(AgentDefaults, frozen=True, kw_only=True):
    """One agent. Missing keys are taken from `agents.defaults`."""

    id: Name  # the id in bindings and session keys
    name: str | None = None  # the name for people
    default: bool = False  # whether it answers messages without a binding; otherwise the first agent does


class Agents(Part, frozen=True):
    """The agents that answer messages."""

    defaults: AgentDefaults = AgentDefaults()
    list: tuple[Agent, ...] = ()

    @property
    def default_id(self) -> str:
        """The id of the agent for messages without a binding."""
        chosen = next((agent for agent in self.list if agent.default), self.list[0] if self.list else None)
        return DEFAULT_AGENT if chosen is None else normalize_agent_id(chosen.id)

    def named(self, agent_id: str) -> Agent:
        """Return the settings of an agent; the defaults if it is not in the list."""
        wanted = normalize_agent_id(agent_id)
        for agent in self.list:
            if normalize_agent_id(agent.id) == wanted:
                return agent
        return Agent(id=wanted, **msgspec.structs.asdict(self.defaults))

    def merged(self, values: dict[str, Any]) -> Agents:
        """Return the agents of the file's values, each with the defaults filled in."""
        defaults = values.get("defaults", {})
        agents = [convert(Agent, _over(defaults, own)) for own in values.get("list", [])]
        _check(agents)
        _check_command(self.defaults, "agents.defaults")
        return Agents(self.defaults, tuple(agents))


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge two tables, member by member; `above` wins."""
    merged = dict(below)
    for key, value in above.items():
        under = below.get(key)
        merged[key] = _over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def _check(agents: list[Agent]) -> None:
    numbers: dict[str, int] = {}
    for number, agent in enumerate(agents):
        first = numbers.setdefault(normalize_agent_id(agent.id), number)
        if first != number:
            raise InvalidConfig(
                f"agents.list[{number}].id is the same agent as agents.list[{first}]", hint="give each agent its own id"
            )
        _check_command(agent, f"agents.list[{number}]")
    if sum(agent.default for agent in agents) > 1:
        raise InvalidConfig("agents.list has more than one default", hint="set `default` for one of them only")


def _check_command(agent: AgentDefaults, place: str) -> None:
    if agent.runner == "command" and not agent.command:
        raise InvalidConfig(
            f"{place}.command is required", hint='name the program and its arguments, such as ["my-agent", "--quiet"]'
        )


# -- the gateway

_RUNNERS: dict[str, RunnerName] = {
    "anthropic": "anthropic",
    "anthropic-messages": "anthropic",
}  # all others use OpenAI's protocol
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})

_Bytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Url = Annotated[
    str, msgspec.Meta(pattern=r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$", max_length=1_000)
]  # without user, password and query, which may be secret


class Limits(Part, frozen=True):
    """Limits of the gateway. A request beyond a limit is refused."""

    body_bytes: _Bytes = 8 << 20  # the maximum size of a request body: a long message with a few images
    header_bytes: _Bytes = 16 << 10  # the maximum size of the request headers; browsers send less than 2 KiB
    connections: Few = 64  # the maximum number of chats, of downloads, of other requests and of bodies at the same time
    event_clients: Few = 100  # the maximum number of event streams, which stay open and are counted separately
    queued_turns: Few = 32  # the maximum number of waiting messages of one session; more is a loop
    header_seconds: Seconds = 10.0  # the time for the request headers; a slower client is an attack
    body_seconds: Seconds = 30.0  # the time for the request body: 8 MiB at 2 Mbit/s; after 5 s at least 1 KiB/s
    requests_per_second: Few = 2_000  # the maximum rate of one address; a runaway loop sends more
    addresses: Few = 1_024  # how many addresses are remembered for the rate; the least recent one is dropped first


class Gateway(Part, frozen=True):
    """Where the gateway listens."""

    host: Name = "127.0.0.1"  # the address to listen on; only programs on this machine can reach 127.0.0.1
    port: _Port = 8787  # the port; 0 selects a free one
    token_file: Name | None = None  # the file with the access token; by default `gateway.token` in the store
    allowed_hosts: tuple[Name, ...] = ()  # more names for `Host` headers, besides loopback names and `host`

    @property
    def loopback(self) -> bool:
        """Whether only programs on this machine can reach it."""
        if self.host.lower() == "localhost":
            return True
        address = _address(self.host)
        return address is not None and address.is_loopback

    @property
    def hosts(self) -> frozenset[str]:
        """The allowed values of the `Host` header, without ports."""
        address = _address(self.host)
        everywhere = address is not None and address.is_unspecified
        own = () if everywhere else (self.host,)
        return LOOPBACK | {_as_host(name) for name in (*own, *self.allowed_hosts)}

    def check_exposure(self) -> None:
        """Raise `InvalidConfig` if other machines can reach the gateway but the user has not chosen a token file."""
        if not self.loopback and self.token_file is None:
            raise InvalidConfig(
                f"gateway.host {self.host} can be reached from other machines, but gateway.tokenFile is not set",
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
    """How many conversations are kept. Those beyond the limits are archived, not deleted."""

    mode: Literal["warn", "enforce"] = "warn"  # `warn` only reports; `enforce` archives
    prune_after: Duration | Few = "30d"  # how long an unused conversation stays; a bare number is in days
    max_entries: Few = 500  # the maximum number of conversations of one agent
    max_disk_bytes: Count | None = None  # the maximum size of one agent's sessions; without it there is no limit

    @property
    def prune_after_ms(self) -> int:
        """`prune_after` in milliseconds."""
        return milliseconds(self.prune_after, "d")


class Originals(Part, frozen=True):
    """Which files that repairs and edits have replaced `sessile prune --originals` proposes to remove."""

    prune_after: Duration | Few = "30d"  # how long an original stays; a bare number is in days
    max_copies: Few = 10  # how many originals of one session stay

    @property
    def prune_after_ms(self) -> int:
        """`prune_after` in milliseconds."""
        return milliseconds(self.prune_after, "d")


class SessionRules(Part, frozen=True):
    """Which session a message belongs to, and when a new one starts."""

    scope: Scope = "per-sender"  # whether every sender has a conversation, or all share one (`global`)
    dm_scope: DmScope = "main"  # how direct chats are separated; with `main`, all of an agent are one conversation
    main_key: Name = DEFAULT_MAIN_KEY  # the name of an agent's main conversation
    identity_links: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)  # `channel:id` names by person
    links_keep_channel: bool = False  # whether a linked person has one conversation for each channel
    reset: dict[str, Any] | None = None  # `mode` (daily, idle, none), `atHour`, `idleMinutes`, `timeZone`; 04:00
    reset_by_type: dict[str, Any] | None = None  # the same for `direct`, `group` or `thread`
    reset_by_channel: dict[str, Any] | None = None  # the same for a channel; replaces all other reset settings
    idle_minutes: float | None = None  # the old form of `reset` with mode `idle`
    reset_triggers: tuple[Name, ...] = RESET_TRIGGERS  # messages that start a new session
    send_policy: dict[str, Any] | None = None  # which replies are sent: `rules` and `default`; by default all
    parent_fork_max_tokens: Count = 100_000  # a thread of a larger conversation starts empty; 0 means no limit
    maintenance: Maintenance = Maintenance()

    @property
    def resets(self) -> ResetConfig:
        """The reset settings, parsed."""
        members = {
            "reset": self.reset,
            "resetByType": self.reset_by_type,
            "resetByChannel": self.reset_by_channel,
            "idleMinutes": self.idle_minutes,
        }
        return read_reset_config(members)[0]

    @property
    def sending(self) -> SendPolicy | None:
        """The send policy, parsed; `None` sends everything."""
        return read_send_policy(self.send_policy)


# -- bindings


class BoundPeer(Part, frozen=True):
    """The chat of a binding."""

    kind: Literal["direct", "dm", "group", "channel"]  # the kind of chat; `dm` is the same as `direct`
    id: Name  # the id of the chat on its channel


class BindingMatch(Part, frozen=True):
    """Which messages a binding matches. Missing keys match anything."""

    channel: Name  # the channel, such as `telegram`
    account_id: str | None = None  # the account on the channel; without it the default account, `*` is any
    peer: BoundPeer | None = None  # one chat
    guild_id: str | None = None  # a Discord server
    team_id: str | None = None  # a Slack workspace


class BindingRule(Part, frozen=True):
    """Messages that an agent answers."""

    agent_id: Name  # the id of the agent
    match: BindingMatch  # which messages it answers

    @property
    def binding(self) -> Binding:
        """The binding, for routing."""
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
    """Prices in US dollars for a million tokens. Missing prices are unknown."""

    input: float | None = None  # input tokens
    output: float | None = None  # output tokens
    cache_read: float | None = None  # tokens read from the prompt cache
    cache_write: float | None = None  # tokens written to the prompt cache


class Model(Part, frozen=True):
    """A model that is not in the catalog, or has other figures there."""

    id: Name  # the name of the model at its provider
    context_window: Tokens | None = None  # the context window, in tokens
    max_tokens: Tokens | None = None  # the maximum length of one answer, in tokens
    cost: Cost = Cost()


class Provider(Part, frozen=True):
    """An endpoint and its models."""

    base_url: _Url | None = None  # the address of the endpoint; by default the vendor's
    api: Literal["openai", "openai-completions", "anthropic", "anthropic-messages"] | None = None  # the protocol
    api_key: Secret | None = None  # the API key; `apiKeyEnv` is safer
    api_key_env: Name | None = None  # the environment variable with the API key; by default the vendor's
    models: tuple[Model, ...] = ()


class Providers(Part, frozen=True):
    """The model providers. The gateway connects to nothing else."""

    providers: dict[str, Provider] = msgspec.field(default_factory=dict)

    def figures(self) -> dict[str, Figures]:
        """Return context windows and prices by "provider/model", for `Models`."""
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
    """The user of the gateway."""

    time_zone: Name | None = None  # the time zone for statistics, notes and resets; by default that of the machine


# -- all of it


class Config(Part, frozen=True):
    """All settings.

    Example:
        ```python
        config = load_config(b"[gateway]\nport = 9000", "config.toml").config
        config.gateway.port
        ```
    """

    gateway: Gateway = Gateway()
    limits: Limits = Limits()
    agents: Agents = Agents()
    session: SessionRules = SessionRules()
    originals: Originals = Originals()
    bindings: tuple[BindingRule, ...] = ()
    models: Providers = Providers()
    user: User = User()

    def model_of(self, agent_id: str, override: str | None = None) -> tuple[str | None, str | None]:
        """Return the provider and the name of an agent's model. An override without a provider uses the agent's provider."""
        own, slash, name = (self.agents.named(agent_id).model_name or "").partition("/")
        if not slash:
            own, name = "", own
        if override is None:
            return own or None, name or None
        provider, slash, model = override.partition("/")
        return (provider, model) if slash else (own or None, override)

    def runner_of(self, agent_id: str, override: str | None = None) -> RunnerSettings:
        """Return the runner of an agent: its own, otherwise that of its model's provider, otherwise the echo."""
        agent = self.agents.named(agent_id)
        name, model = self.model_of(agent_id, override)
        provider = self.models.providers.get(name or "", Provider())
        protocol = _RUNNERS.get(provider.api or name or "", "openai") if model else "echo"
        # A conversation may choose a model of another protocol; a program and the echo answer for every model.
        chosen = agent.runner if override is None or agent.runner in ("command", "echo") else None
        return RunnerSettings(
            name=chosen or protocol,
            model=model,
            provider=name,
            base_url=provider.base_url,
            api_key_env=provider.api_key_env,
            command=agent.command,
            max_tokens=agent.max_tokens,
            timeout=agent.timeout_seconds,
        )

    def key_of(self, provider: str | None) -> Secret | None:
        """Return the API key of a provider in the file; `None` if it has none."""
        return self.models.providers.get(provider or "", Provider()).api_key


class Loaded(NamedTuple):
    """A configuration, and the unknown keys of its file.

    Attributes:
        config: The configuration.
        unknown: The places of keys that have no effect, such as "session.maintainance".
    """

    config: Config
    unknown: list[str]


def load_config(data: bytes, name: str) -> Loaded:
    """Parse and check a configuration file.

    Args:
        data: The content of the file.
        name: Its name or path. It is parsed as JSON if it ends in .json, otherwise as TOML.

    Raises:
        InvalidConfig: The file cannot be parsed, or a value is invalid. The message names the line or the key.
    """
    try:
        values = parse(data, name)
        config, unknown = read_as(Config, values)
        agents = config.agents.merged(values.get("agents", {}))
        _, remarks = read_reset_config(values.get("session", {}))
        read_send_policy(config.session.send_policy)
    except InvalidConfig as error:
        raise InvalidConfig(error.message, path=name, hint=error.hint) from None
    return Loaded(msgspec.structs.replace(config, agents=agents), unknown + [remark.place for remark in remarks])


# -- the machine


def local_zone(name: str | None = None) -> tzinfo:
    """Return a time zone by its name, such as `Europe/Berlin`, or the time zone of this machine.

    If the machine does not tell, the current offset of its clock is used.

    Raises:
        InvalidConfig: The name is unknown.
    """
    if name is not None:
        return zone_named(name)
    return machine_zone() or current_offset()


class Variable(NamedTuple):
    """One environment variable, for the reference.

    Attributes:
        name: Its name, or several.
        default: What is used without it.
        meaning: What it is for.
    """

    name: str
    default: str
    meaning: str


VARIABLES: Mapping[str, Sequence[Variable]] = {
    "Where things are": (
        Variable("SESSILE_ROOT", "`~/.sessile`", "the store: a folder, or the address of a database (postgresql://…)"),
        Variable("SESSILE_BLOBS", "in the store", "an object store for large content (s3://bucket/prefix)"),
        Variable(
            "SESSILE_CACHE",
            "the cache folder of the system",
            "the folder for the cache, which may be deleted at any time",
        ),
        Variable("XDG_CACHE_HOME", "`~/.cache`", "the cache folder of the system, on Linux"),
        Variable(
            "HOME", "the home folder of the user", "where `~` is; with a database, configuration and tokens are there"
        ),
    ),
    "Where other agents keep their sessions": (
        *(
            Variable(name, f"`{default}`", agent.title)
            for agent in AGENTS
            for name, default in agent.variables
            if name != "PI_CONFIG_DIR"
        ),
        Variable("PI_CONFIG_DIR", "`.omp`, `.xcsh`", "oh-my-pi and xcsh, in the home folder"),
        Variable("XDG_DATA_HOME", "`~/.local/share`", "oh-my-pi and xcsh, if they use it"),
        Variable("TMPDIR", "`/tmp`", "oh-my-pi has short names for projects below it"),
    ),
    "Output of the command": (
        Variable("NO_COLOR", "colors in a terminal", "if set, no colors; TERM=dumb has the same effect"),
        Variable("FORCE_COLOR", "no colors in a pipe", "if set, colors also in a pipe"),
        Variable("SESSILE_PAGER", "`$PAGER`", "the pager; `cat` uses none"),
        Variable("PAGER", "`less -FRX`", "the pager, if SESSILE_PAGER is not set"),
        Variable("SESSILE_PLAIN", "0", "1 has the effect of `--plain`: words instead of symbols and columns"),
        Variable("TERM", "", "the terminal; `dumb` means no colors and no progress bar"),
        Variable("COLUMNS, LINES", "the size of the terminal", "the width and height of the output"),
        Variable("TZ", "the time zone of the machine", "the time zone of times in the output"),
        Variable("PWD", "", "the working folder, if it was removed"),
        Variable(
            "KITTY_WINDOW_ID, TMUX_PANE, TERM_SESSION_ID, WT_SESSION",
            "the tty",
            "the id of the terminal, for programs that remember its session (`terminal_id`)",
        ),
    ),
    "Keys": (
        Variable(
            "ANTHROPIC_API_KEY", "none", "the API key for Anthropic's models; `apiKeyEnv` may name another variable"
        ),
        Variable("OPENAI_API_KEY", "none", "the API key for OpenAI's models; `apiKeyEnv` may name another variable"),
        Variable(
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY", "none", "the credentials of the object store in SESSILE_BLOBS"
        ),
        Variable("AWS_ENDPOINT, AWS_REGION", "Amazon's", "the address and region of that object store"),
        Variable("PGPASSWORD", "`~/.pgpass`", "the password of the database, if the address has none"),
    ),
}
