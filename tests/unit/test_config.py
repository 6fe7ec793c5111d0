"""The configuration: documented names, defaults, exact places of errors, and secrets."""

from __future__ import annotations

import copy
import json
import pickle
import traceback
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.agents.openclaw.routing import Binding, Peer
from sessile.config import Config, Gateway, Limits, Loaded, load_config
from sessile.core.compaction import CompactionSettings
from sessile.core.delivery import decide_sending
from sessile.core.memory_flush import FlushSettings
from sessile.core.resets import ResetPolicy, resolve_policy
from sessile.core.result_trimming import TrimSettings
from sessile.core.secret import Secret
from sessile.errors import InvalidConfig
from sessile.vendors.models import Models

HUGE = 10**12


def load(values: dict[str, Any]) -> Loaded:
    return load_config(json.dumps(values).encode(), "config.json")


def refusal(data: bytes | dict[str, Any], name: str = "config.json") -> InvalidConfig:
    with pytest.raises(InvalidConfig) as caught:
        load_config(data if isinstance(data, bytes) else json.dumps(data).encode(), name)
    return caught.value


# -- defaults


@pytest.mark.parametrize("name", ["config.toml", "config.json", "config"])
def test_an_empty_file_gives_the_defaults(name: str) -> None:
    """An empty file in TOML or JSON has the defaults and no unknown keys."""
    assert load_config(b"", name) == (Config(), [])


def test_the_defaults_are_the_documented_ones() -> None:
    """The gateway listens on loopback, sessions reset daily at four, and all thresholds are as documented."""
    config = Config()
    assert (config.gateway.host, config.gateway.port, config.gateway.token_file) == ("127.0.0.1", 8787, None)
    agent = config.agents.named("main")
    assert (agent.id, agent.access, agent.model_name, agent.runner) == ("main", "rw", None, None)
    plain = CompactionSettings()
    assert msgspec.structs.asdict(agent.compaction) == {
        **msgspec.structs.asdict(plain),
        "memory_flush": FlushSettings(),
    }
    assert agent.context_pruning.settings == TrimSettings()
    assert resolve_policy(config.session.resets, "direct", None) == ResetPolicy(4, None, None)
    assert config.session.reset_triggers == ("/new", "/reset")
    assert config.session.parent_fork_max_tokens == 100_000
    assert config.session.maintenance.prune_after_ms == 30 * 24 * 3600 * 1000
    assert config.session.sending is None


@pytest.mark.promise("P39")
def test_the_limits_of_the_gateway_are_the_promised_ones() -> None:
    """The limits are those in docs/explanation/promises.md."""
    limits = Limits()
    assert (limits.body_bytes, limits.header_bytes) == (8 * 1024 * 1024, 16 * 1024)
    assert (limits.connections, limits.event_clients, limits.queued_turns) == (64, 100, 32)
    assert limits.header_seconds == 10


@pytest.mark.parametrize("field", msgspec.structs.fields(Limits), ids=lambda field: field.encode_name)
def test_every_limit_has_a_least_and_a_greatest_value(field: msgspec.structs.FieldInfo) -> None:
    """The minimum is accepted; zero, negative, huge and other values are refused."""
    name = field.encode_name
    assert getattr(load({"limits": {name: 1}}).config.limits, field.name) == 1
    for wrong in (0, -1, HUGE, "many", True, None):
        assert refusal({"limits": {name: wrong}}).message.startswith(f"limits.{name} ")


# -- documented names

DOCUMENTED: dict[str, Any] = {
    "gateway": {"host": "127.0.0.1", "port": 0, "tokenFile": "/run/token", "allowedHosts": ["box.example"]},
    "agents": {
        "defaults": {
            "workspace": "~/notes",
            "workspaceAccess": "ro",
            "sandbox": {"workspaceAccess": "none"},
            "model": {"primary": "anthropic/claude-sonnet-4-5"},
            "runner": "command",
            "command": ["agent", "--quiet"],
            "systemPrompt": "Be brief.",
            "maxTokens": 4096,
            "timeoutSeconds": 30,
            "contextTokens": 2_097_152,
            "imageMaxDimensionPx": 2000,
            "compaction": {
                "enabled": False,
                "reserveTokens": 1,
                "keepRecentTokens": 2,
                "reserveTokensFloor": 0,
                "memoryFlush": {"enabled": False, "softThresholdTokens": 3, "prompt": "p", "systemPrompt": "s"},
            },
            "contextPruning": {
                "mode": "cache-ttl",
                "ttl": "1h",
                "keepLastAssistants": 1,
                "softTrimRatio": 0.1,
                "hardClearRatio": 0.2,
                "minPrunableToolChars": 10,
                "softTrim": {"maxChars": 30, "headChars": 10, "tailChars": 11},
                "hardClear": {"enabled": False, "placeholder": "gone"},
                "tools": {"allow": ["exec*"], "deny": ["read"]},
            },
        },
        "list": [{"id": "work", "name": "At work", "default": True}],
    },
    "session": {
        "scope": "global",
        "dmScope": "per-channel-peer",
        "mainKey": "home",
        "identityLinks": {"alice": ["telegram:1", "discord:2"]},
        "linksKeepChannel": True,
        "reset": {"mode": "idle", "atHour": 5, "idleMinutes": 10, "timeZone": "Europe/Berlin"},
        "resetByType": {"dm": {"mode": "none"}, "group": {"mode": "daily"}, "thread": {"idleMinutes": 1}},
        "resetByChannel": {"discord": {"mode": "idle", "idleMinutes": 7}},
        "idleMinutes": 20,
        "resetTriggers": ["/fresh"],
        "sendPolicy": {"rules": [{"action": "deny", "match": {"keyPrefix": "cron:"}}], "default": "allow"},
        "parentForkMaxTokens": 0,
        "maintenance": {"mode": "enforce", "pruneAfter": 7, "maxEntries": 10, "maxDiskBytes": 1000},
    },
    "bindings": [
        {
            "agentId": "work",
            "match": {
                "channel": "slack",
                "accountId": "*",
                "peer": {"kind": "dm", "id": "U1"},
                "guildId": "g",
                "teamId": "t",
            },
        }
    ],
    "models": {
        "providers": {
            "local": {
                "baseUrl": "http://127.0.0.1:11434/v1",
                "api": "openai-completions",
                "apiKey": "sk-canary",
                "apiKeyEnv": "LOCAL_KEY",
                "models": [
                    {
                        "id": "llama",
                        "contextWindow": 2_097_152,
                        "maxTokens": 1024,
                        "cost": {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0},
                    }
                ],
            }
        }
    },
    "limits": {field.encode_name: 7 for field in msgspec.structs.fields(Limits)},
    "user": {"timeZone": "Europe/Berlin"},
}


def test_what_is_not_supported_is_told() -> None:
    """A store in another place is documented by other programs, but not supported here."""
    assert load_config(b'[session]\nstore = "~/elsewhere.json"', "config.toml").unknown == ["session.store"]


def test_every_documented_key_is_known() -> None:
    """A file with all documented keys has no unknown keys."""
    assert load(DOCUMENTED).unknown == []


def test_every_documented_key_has_its_effect() -> None:
    """Each value differs from its default and is in the resulting configuration."""
    config = load(DOCUMENTED).config
    agent = config.agents.named("WORK")
    assert (agent.name, agent.access, agent.model_name) == ("At work", "ro", "anthropic/claude-sonnet-4-5")
    assert (agent.runner, agent.command, agent.system_prompt) == ("command", ("agent", "--quiet"), "Be brief.")
    assert (agent.compaction.reserve(None), agent.compaction.keep(None)) == (1, 2)
    assert agent.compaction.memory_flush == FlushSettings(False, 3, "p", "s")
    assert agent.context_pruning.settings == TrimSettings(
        3_600_000, 1, 0.1, 0.2, 10, 30, 10, 11, False, "gone", ("exec*",), ("read",)
    )
    session = config.session
    assert (session.scope, session.dm_scope, session.main_key) == ("global", "per-channel-peer", "home")
    assert session.identity_links == {"alice": ("telegram:1", "discord:2")} and session.links_keep_channel
    assert resolve_policy(session.resets, "direct", None).idle_minutes is None
    assert resolve_policy(session.resets, "thread", None) == ResetPolicy(None, 1, "Europe/Berlin")
    assert resolve_policy(session.resets, "direct", "Discord").idle_minutes == 7
    assert not decide_sending(session.sending, "agent:main:cron:x").allowed
    assert session.reset_triggers == ("/fresh",)
    assert session.maintenance.prune_after_ms == 7 * 24 * 3600 * 1000
    assert config.bindings[0].binding == Binding(
        agent="work", channel="slack", account="*", peer=Peer("direct", "U1"), guild="g", team="t"
    )
    models = Models(config.models.figures())
    assert models.window("local/llama") == agent.context_tokens == 2_097_152
    assert models.price("local/llama", {"input": 1_000_000, "output": 1_000_000}) == 3
    assert config.user.time_zone == "Europe/Berlin"
    assert config.models.providers["local"].api_key == Secret("sk-canary")


def test_the_older_idle_minutes_alone_mean_idle() -> None:
    """`session.idleMinutes` alone turns the daily reset off."""
    resets = load({"session": {"idleMinutes": 15}}).config.session.resets
    assert resolve_policy(resets, "direct", None) == ResetPolicy(None, 15, None)


def test_toml_and_json_say_the_same() -> None:
    """The same settings in TOML and JSON give the same configuration."""
    text = b"""
    user.timeZone = "Asia/Tokyo"
    [session.reset]
    mode = "none"
    [[agents.list]]
    id = "main"
    compaction.reserveTokens = 9
    """
    values = {
        "user": {"timeZone": "Asia/Tokyo"},
        "session": {"reset": {"mode": "none"}},
        "agents": {"list": [{"id": "main", "compaction": {"reserveTokens": 9}}]},
    }
    assert load_config(text, "a.toml") == load(values)
    assert load_config(b"\xef\xbb\xbf" + text, "with-a-mark.toml") == load(values)


# -- agents


def test_an_agent_has_the_defaults_member_by_member() -> None:
    """Settings of an agent take precedence, also in nested tables; all others come from the defaults."""
    agents = load(
        {
            "agents": {
                "defaults": {
                    "model": "a/b",
                    "command": ["x", "y"],
                    "compaction": {"reserveTokens": 1, "memoryFlush": {"enabled": False, "prompt": "p"}},
                },
                "list": [
                    {"id": "one", "command": ["z"], "compaction": {"memoryFlush": {"prompt": "own"}}},
                    {"id": "Two", "model": {"primary": "c/d"}},
                ],
            }
        }
    ).config.agents
    one, two, other = agents.named("one"), agents.named("two"), agents.named("other")
    assert one.compaction.reserve_tokens == 1
    assert one.compaction.memory_flush == FlushSettings(enabled=False, prompt="own")
    assert (one.command, one.model_name) == (("z",), "a/b")
    assert (two.model_name, two.command) == ("c/d", ("x", "y"))
    assert (other.id, other.model_name, other.compaction) == ("other", "a/b", agents.defaults.compaction)


@pytest.mark.parametrize(
    ("agents", "default"),
    [
        ([], "main"),
        ([{"id": "Work"}, {"id": "home"}], "work"),
        ([{"id": "work"}, {"id": "home", "default": True}], "home"),
    ],
)
def test_the_default_agent_says_so_or_is_the_first(agents: list[Any], default: str) -> None:
    """Without a list of agents it is `main`."""
    assert load({"agents": {"list": agents}}).config.agents.default_id == default


@pytest.mark.parametrize(
    ("own", "access"),
    [({}, "rw"), ({"sandbox": {"workspaceAccess": "none"}}, "none"), ({"workspaceAccess": "ro"}, "ro")],
)
def test_the_access_to_a_workspace_can_be_said_in_two_places(own: dict[str, Any], access: str) -> None:
    """The documented place is that of the sandbox."""
    assert load({"agents": {"defaults": own}}).config.agents.named("main").access == access


@pytest.mark.mission("Y13")
@pytest.mark.parametrize(
    ("agent", "provider", "runner"),
    [
        ({}, {}, ("echo", None, None)),
        ({"model": "local/llama"}, {}, ("openai", "local", "llama")),
        ({"model": "local/meta/llama"}, {}, ("openai", "local", "meta/llama")),
        ({"model": "local/llama"}, {"api": "anthropic-messages"}, ("anthropic", "local", "llama")),
        ({"model": "anthropic/claude"}, {}, ("anthropic", "anthropic", "claude")),
        ({"model": {"primary": "gpt-5"}}, {}, ("openai", None, "gpt-5")),
        ({"model": "local/llama", "runner": "echo"}, {}, ("echo", "local", "llama")),
        ({"runner": "command", "command": ["x"]}, {}, ("command", None, None)),
    ],
)
def test_the_runner_is_the_agent_s_or_that_of_its_model(
    agent: dict[str, Any], provider: dict[str, Any], runner: tuple[str, str | None, str | None]
) -> None:
    """Without either, the runner is `echo`, which connects to nothing."""
    told = {"baseUrl": "http://127.0.0.1:1/v1", "apiKeyEnv": "KEY", **provider}
    config = load({"agents": {"defaults": agent}, "models": {"providers": {"local": told}}}).config
    settings = config.runner_of("main")
    assert (settings.name, settings.provider, settings.model) == runner
    at_local = settings.provider == "local"
    assert (settings.base_url, settings.api_key_env) == ((told["baseUrl"], "KEY") if at_local else (None, None))


# -- unknown keys


def test_unknown_keys_are_told_by_their_place_and_change_nothing() -> None:
    """Unknown keys are reported at every level, in lists and tables, too; a key that looks like a path is quoted."""
    loaded = load(
        {
            "gatway": {"port": 1},
            "session": {"maintainance": 1, "reset": {"atHuor": 3}, "resetByType": {"dms": {}}},
            "agents": {
                "defaults": {"compaction": {"mode": "safeguard", "memoryFlush": {"model": "x"}}},
                "list": [{"id": "a"}, {"id": "b", "modell": "x"}],
            },
            "models": {"providers": {"my.box": {"modles": []}, "p": {"models": [{"id": "m", "size\n": 1}]}}},
        }
    )
    assert sorted(loaded.unknown) == sorted(
        [
            "gatway",
            "session.maintainance",
            "session.reset.atHuor",
            "session.resetByType.dms",
            "agents.defaults.compaction.mode",
            "agents.defaults.compaction.memoryFlush.model",
            "agents.list[1].modell",
            'models.providers."my.box".modles',
            'models.providers.p.models[0]."size\\n"',
        ]
    )
    assert loaded.config.gateway == Gateway()
    assert loaded.config.agents.defaults.compaction == Config().agents.defaults.compaction


_KEYS = st.text(min_size=1, max_size=8)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(_KEYS | st.sampled_from(sorted(DOCUMENTED)), _VALUES, max_size=4))
def test_any_object_is_a_configuration_or_is_refused_by_name(values: dict[str, Any]) -> None:
    """Any object is either loaded or raises `InvalidConfig` with the file and a hint."""
    try:
        loaded = load(values)
    except InvalidConfig as error:
        assert error.path == "config.json" and error.hint
    else:
        assert len(loaded.unknown) >= len(values.keys() - DOCUMENTED.keys())


@given(st.binary(max_size=60), st.sampled_from(["a.toml", "a.json"]))
def test_any_bytes_are_a_configuration_or_are_refused_by_name(data: bytes, name: str) -> None:
    """Any file content is either loaded or raises `InvalidConfig`."""
    try:
        load_config(data, name)
    except InvalidConfig as error:
        assert error.path == name and error.hint


# -- invalid values


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"gateway": 3}, "gateway"),
        ({"gateway": {"port": 65536}}, "gateway.port"),
        ({"gateway": {"port": "8787"}}, "gateway.port"),
        ({"gateway": {"allowedHosts": ["a", 3]}}, "gateway.allowedHosts[1]"),
        ({"agents": {"list": [{"id": "a"}, {"name": "b"}]}}, "agents.list[1].id"),
        ({"agents": {"list": [{"id": "a b"}, {"id": "A B"}]}}, "agents.list[1].id"),
        ({"agents": {"list": [{"id": "a", "default": True}, {"id": "b", "default": True}]}}, "agents.list"),
        ({"agents": {"list": [{"id": "a", "runner": "command"}]}}, "agents.list[0].command"),
        ({"agents": {"defaults": {"runner": "command"}}}, "agents.defaults.command"),
        ({"agents": {"defaults": {"runner": "shell"}}}, "agents.defaults.runner"),
        ({"agents": {"defaults": {"workspaceAccess": "all"}}}, "agents.defaults.workspaceAccess"),
        ({"agents": {"defaults": {"compaction": {"enabled": 1}}}}, "agents.defaults.compaction.enabled"),
        ({"agents": {"defaults": {"contextPruning": {"ttl": "soon"}}}}, "agents.defaults.contextPruning.ttl"),
        (
            {"agents": {"defaults": {"contextPruning": {"softTrimRatio": 30}}}},
            "agents.defaults.contextPruning.softTrimRatio",
        ),
        ({"session": {"dmScope": "per-person"}}, "session.dmScope"),
        ({"session": {"identityLinks": {"a.b": ["x", 1]}}}, 'session.identityLinks."a.b"[1]'),
        ({"session": {"reset": {"mode": "weekly"}}}, "session.reset.mode"),
        ({"session": {"reset": 4}}, "session.reset"),
        (
            {"session": {"resetByChannel": {"discord": {"idleMinutes": "7"}}}},
            "session.resetByChannel.discord.idleMinutes",
        ),
        ({"session": {"idleMinutes": "7"}}, "session.idleMinutes"),
        ({"session": {"sendPolicy": {"rules": [{"action": "maybe"}]}}}, "session.sendPolicy"),
        ({"session": {"maintenance": {"pruneAfter": "0d"}}}, "session.maintenance.pruneAfter"),
        ({"session": {"maintenance": {"pruneAfter": 0}}}, "session.maintenance.pruneAfter"),
        ({"bindings": [{"agentId": "a"}]}, "bindings[0].match"),
        ({"bindings": [{"agentId": "a", "match": {"channel": " "}}]}, "bindings[0].match.channel"),
        ({"models": {"providers": {"a": {}, "b": {"baseUrl": "ftp://x"}}}}, "models.providers.b.baseUrl"),
        ({"models": {"providers": {"p": {"models": [{"id": "m", "cost": {"input": "1"}}]}}}}, None),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_with_its_key(values: dict[str, Any], place: str | None) -> None:
    """The message starts with the key in the usual notation, and the error has a hint."""
    error = refusal(values)
    assert error.message.startswith((place or "models.providers.p.models[0].cost.input") + " ")
    assert error.path == "config.json" and error.hint


@pytest.mark.parametrize(
    ("data", "name", "line"),
    [
        (b"a = 1\nb = = 2\n", "c.toml", "line 2"),
        (b"a = 1\na = 2\n", "c.toml", "line 2"),
        (b'{"a": 1,\n\n"b" 2}', "c.json", "line 3"),
        (b"a = 1\n\nb = '\xff'", "c.toml", "line 3"),
        (b'{"a":\n"\xff"}', "c.json", "line 2"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_line(data: bytes, name: str, line: str) -> None:
    """Syntax errors in TOML and JSON, and bytes that are not text, are refused."""
    error = refusal(data, name)
    assert line in error.message and error.path == name and error.hint


def test_a_key_that_is_said_twice_is_refused() -> None:
    """A JSON parser would silently use the last value."""
    assert '"port"' in refusal(b'{"gateway": {"port": 1, "port": 2}}').message


@pytest.mark.parametrize("data", [b"[1]", b"3", b'"x"', b"null"])
def test_a_file_of_json_holds_an_object(data: bytes) -> None:
    """Other values are refused."""
    assert "object" in refusal(data).message


@pytest.mark.parametrize(("data", "name"), [(b"[" * 100_000, "c.json"), (b"a=" + b"[" * 100_000, "c.toml")])
def test_a_file_that_is_nested_beyond_all_sense_is_refused(data: bytes, name: str) -> None:
    """Deep nesting does not overflow the stack."""
    assert refusal(data, name).path == name


@pytest.mark.promise("P17")
@pytest.mark.parametrize(
    ("data", "name", "problem"),
    [
        (b'{"gateway":{"port":' + b"9" * 5000 + b"}}", "a.json", "thousands of digits"),
        (b"[gateway]\nport = " + b"9" * 5000, "a.toml", "thousands of digits"),
        (b'{"gateway":{"host":"\\ud800"}}', "a.json", "half of a surrogate pair"),
        (b'{"\\udc00":1}', "a.json", "half of a surrogate pair"),
    ],
)
def test_what_no_setting_can_hold_is_refused(data: bytes, name: str, problem: str) -> None:
    """Huge numbers and texts that cannot be encoded are refused."""
    assert problem in refusal(data, name).message


# -- secrets


@pytest.mark.promise("P33")
def test_a_key_is_in_no_representation() -> None:
    """The representation of the configuration and of the secret hides the key, and the key cannot be serialized."""
    loaded = load(DOCUMENTED)
    secret = loaded.config.models.providers["local"].api_key
    assert secret is not None and secret.reveal() == "sk-canary"
    assert "canary" not in f"{loaded!r} {secret} {secret!r} {loaded.config.models}"
    for write in (pickle.dumps, copy.copy, msgspec.json.encode):
        with pytest.raises(TypeError):
            write(secret)


@pytest.mark.parametrize(
    "data",
    [
        b'{"models": {"providers": {"p": {"apiKey": ["sk-canary"]}}}}',
        b'{"models": {"providers": {"p": {"apiKey": {"x": "sk-canary"}}}}}',
        b'{"models": {"providers": {"p": {"baseUrl": "https://me:sk-canary@host/v1"}}}}',
        b'{"models": {"providers": {"p": {"baseUrl": "https://host/v1?key=sk-canary"}}}}',
        b'{"models": {"providers": {"p": {"apiKey": "sk-canary",}}}}',
        b'{"models": {"providers": {"p": {"apiKey": "sk-canary\xff"}}}}',
    ],
)
@pytest.mark.promise("P33")
def test_a_key_is_in_no_message(data: bytes) -> None:
    """No error about the file and no traceback contains the key."""
    error = refusal(data)
    assert "canary" not in "".join(traceback.format_exception(error)) + repr(vars(error))


def test_a_key_that_is_not_said_right_is_refused() -> None:
    """An empty key would fail only later, at the provider."""
    assert refusal({"models": {"providers": {"p": {"apiKey": " "}}}}).message.startswith("models.providers.p.apiKey ")


def test_secrets_are_equal_if_their_texts_are() -> None:
    """A secret is never equal to a plain text."""
    assert Secret("a") == Secret("a") and hash(Secret("a")) == hash(Secret("a"))
    assert Secret("a") != Secret("b") and Secret("a") != "a"
    assert Secret("é").matches("é".encode()) and not Secret("a").matches(b"ab")


# -- the address of the gateway


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("box.example", False),
        ("localhost.example", False),
    ],
)
@pytest.mark.promise("P33")
def test_who_can_be_reached_from_elsewhere_needs_a_token_file(host: str, loopback: bool) -> None:
    """A generated token is only for loopback; other addresses need a token file."""
    assert Gateway(host=host).loopback is loopback
    Gateway(host=host, token_file="/run/token").check_exposure()
    if loopback:
        Gateway(host=host).check_exposure()
    else:
        with pytest.raises(InvalidConfig, match="tokenFile") as told:
            Gateway(host=host).check_exposure()
        assert "set gateway.tokenFile in config.toml" in str(told.value.hint)


@pytest.mark.parametrize(
    ("gateway", "more"),
    [
        (Gateway(), set()),
        (Gateway(host="0.0.0.0"), set()),
        (Gateway(host="::"), set()),
        (Gateway(host="FE80::1"), {"[fe80::1]"}),
        (Gateway(host="Box.Example"), {"box.example"}),
        (Gateway(allowed_hosts=("My.Box", "10.0.0.1")), {"my.box", "10.0.0.1"}),
    ],
)
@pytest.mark.promise("P34")
def test_it_may_be_called_by_loopback_its_own_name_and_those_that_are_listed(gateway: Gateway, more: set[str]) -> None:
    """Listening on all addresses does not allow all host names."""
    assert gateway.hosts == {"127.0.0.1", "localhost", "[::1]"} | more
