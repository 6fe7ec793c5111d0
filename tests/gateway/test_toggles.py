"""What the members of an entry mean for a turn, and the line about usage."""

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
    """Nothing set means no override, nothing shown, messages that wait, and the policy's word."""
    assert toggles_of({}) == Toggles(None, None, "off", "off", "off", "followup", None)


def test_every_member_that_is_set_acts() -> None:
    """What commands and patches write is what a turn is told."""
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
    """The model decides; without a provider the agent's own is meant."""
    assert toggles_of(members).model == model


def test_usage_on_means_tokens() -> None:
    """The oldest of the documented values is one of the newer ones."""
    assert toggles_of({"responseUsage": "on"}).usage == "tokens"


def test_every_way_of_queueing_but_interrupt_waits() -> None:
    """All documented ways are known, and a turn can only wait or be interrupted."""
    values = next(row.values for row in COMMANDS if row.name == "queue")
    assert {queue_mode(value) for value in values if value != "interrupt"} == {"followup"}
    assert queue_mode("interrupt") == "interrupt"


@given(st.dictionaries(st.sampled_from(NAMES), st.one_of(st.none(), st.integers(), st.text(), st.lists(st.text()))))
def test_whatever_a_person_has_written_means_something_that_a_turn_can_do(entry: dict[str, Any]) -> None:
    """Values that nobody knows are as if they were not set."""
    toggles = toggles_of(entry)
    assert toggles.verbose in ("off", "on", "full")
    assert toggles.reasoning in ("off", "on", "stream")
    assert toggles.usage in ("off", "tokens", "full")
    assert toggles.queue in ("followup", "interrupt")
    assert toggles.sending in (None, "allow", "deny")
    assert isinstance(sending_of(None, KEY, entry).allowed, bool)


def test_the_word_of_the_conversation_comes_before_the_policy() -> None:
    """A rule looks at channel and type of the chat, and what the session says wins."""
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
    """What a provider did not say is called unknown; without a price there is none."""
    assert usage_line(usage, level) == line
