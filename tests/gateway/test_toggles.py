"""Settings of a store entry that affect a turn, and the usage line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import Json
from sessile.core.chat_commands import COMMANDS
from sessile.core.delivery import SendMatch, SendPolicy, SendRule
from sessile.gateway.turns.turn import Toggles, queue_mode, sending_of, toggles_of, usage_line

pytestmark = pytest.mark.mission("Y5")

KEY = "agent:main:telegram:group:-100"
NAMES = (
    *("providerOverride", "modelOverride", "thinkingLevel", "verboseLevel", "reasoningLevel", "responseUsage"),
    *("queueMode", "sendPolicy", "channel", "chatType"),
)
USED = {"input": 1_234, "output": 340, "cacheRead": 20_000, "cacheWrite": 0, "cost": {"total": 0.0213}}


def test_an_entry_that_sets_nothing_leaves_everything_to_the_agent() -> None:
    """An empty entry has no overrides and uses the defaults."""
    assert toggles_of({}) == Toggles(None, None, "off", "off", "off", "followup", None)


def test_every_member_that_is_set_acts() -> None:
    """Every setting of an entry is used."""
    entry = {
        "providerOverride": "openrouter",
        "modelOverride": "anthropic/claude-opus-4",
        "thinkingLevel": "high",
        "verboseLevel": "full",
        "reasoningLevel": "stream",
        "responseUsage": "full",
        "queueMode": "interrupt",
        "sendPolicy": "deny",
    }
    wanted = Toggles("openrouter/anthropic/claude-opus-4", "high", "full", "stream", "full", "interrupt", "deny")
    assert toggles_of(entry) == wanted
    assert wanted.is_verbose
    assert not Toggles().is_verbose


@pytest.mark.parametrize(
    ("members", "model"),
    [
        ({"modelOverride": "opus"}, "opus"),
        ({"providerOverride": "anthropic"}, None),
        ({"providerOverride": "anthropic", "modelOverride": "  "}, None),
        ({"providerOverride": 7, "modelOverride": "opus"}, "opus"),
    ],
)
def test_a_provider_alone_is_no_model(members: Json, model: str | None) -> None:
    """A provider without a model is ignored; a model without a provider uses the agent's provider."""
    assert toggles_of(members).model == model


def test_usage_on_means_tokens() -> None:
    """The old value "on" means "tokens"."""
    assert toggles_of({"responseUsage": "on"}).usage == "tokens"


def test_every_way_of_queueing_but_interrupt_waits() -> None:
    """Every documented queue mode except "interrupt" means "followup"."""
    values = next(row.values for row in COMMANDS if row.name == "queue")
    assert {queue_mode(value) for value in values if value != "interrupt"} == {"followup"}
    assert queue_mode("interrupt") == "interrupt"


@given(st.dictionaries(st.sampled_from(NAMES), st.one_of(st.none(), st.integers(), st.text(), st.lists(st.text()))))
def test_whatever_a_person_has_written_means_something_that_a_turn_can_do(entry: dict[str, Any]) -> None:
    """Unknown values are ignored."""
    toggles = toggles_of(entry)
    assert toggles.verbose in ("off", "on", "full")
    assert toggles.reasoning in ("off", "on", "stream")
    assert toggles.usage in ("off", "tokens", "full")
    assert toggles.queue in ("followup", "interrupt")
    assert toggles.sending in (None, "allow", "deny")
    assert isinstance(sending_of(None, KEY, entry).allowed, bool)


def test_the_word_of_the_conversation_comes_before_the_policy() -> None:
    """The send policy matches channel and chat type, and the setting of the conversation overrides it."""
    policy = SendPolicy(rules=(SendRule("deny", SendMatch(channel="telegram", chat_type="group")),))
    entry = {"channel": "telegram", "chatType": "group"}
    assert not sending_of(policy, KEY, entry).allowed
    assert sending_of(policy, KEY, entry | {"sendPolicy": "allow"}).allowed
    assert sending_of(policy, KEY, entry | {"channel": "slack"}).allowed
    assert not sending_of(None, KEY, {"sendPolicy": "deny"}).allowed


@pytest.mark.parametrize(
    ("usage", "level", "line"),
    [
        (USED, "off", None),
        (USED, "tokens", "🧮 1.2k in / 340 out"),
        (USED, "full", "🧮 1.2k in / 340 out · cache 20.0k read / 0 written · 💵 $0.02"),
        ({"input": 5, "output": 7, "cost": {"total": 0}}, "full", "🧮 5 in / 7 out · 💵 unknown"),
        ({"output": 7}, "tokens", "🧮 unknown in / 7 out"),
        (None, "full", "🧮 unknown in / unknown out · 💵 unknown"),
    ],
)
def test_the_line_about_usage_tells_what_is_known(usage: Json | None, level: Any, line: str | None) -> None:
    """Missing usage and a missing price are shown as unknown."""
    assert usage_line(usage, level) == line
