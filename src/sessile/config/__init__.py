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
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from sessile.care.models import Figures
from sessile.config.agents import Agents, Count, Duration, Few, Name, RunnerName, Seconds, Tokens, milliseconds
from sessile.config.files import Part, parse, read_as
from sessile.core.chat_commands import RESET_TRIGGERS
from sessile.core.resets import ResetConfig, read_reset_config
from sessile.core.runner_settings import RunnerSettings
from sessile.core.secret import Secret
from sessile.core.send_policy import SendPolicy, read_send_policy
from sessile.errors import InvalidConfig
from sessile.formats.yoyoclaw.normal import DEFAULT_MAIN_KEY
from sessile.formats.yoyoclaw.routing import Binding, DmScope, Peer, Scope

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
