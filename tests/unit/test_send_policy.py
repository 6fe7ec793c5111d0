"""Whether a reply is delivered: the session's own policy, then the rules, then the default."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessile.core.delivery import SendPolicy, decide_sending, read_send_policy
from sessile.errors import InvalidConfig

pytestmark = pytest.mark.mission("Y5")

KEY = "agent:main:telegram:group:-100"


def allowed(policy: Any, key: str = KEY, override: str | None = None, **facts: str | None) -> bool:
    return decide_sending(read_send_policy(policy), key, override=override, **facts).allowed


def rule(action: str, **match: str) -> dict[str, Any]:
    return {"action": action, "match": match}


def test_without_a_policy_everything_is_delivered() -> None:
    """An empty policy delivers everything, too."""
    assert decide_sending(None, KEY).allowed
    assert allowed(None) and allowed({}) and allowed({"rules": []})


def test_the_entry_has_the_last_word() -> None:
    """The entry can allow or deny, and the verdict has the reason."""
    deny = {"default": "deny", "rules": [rule("deny")]}
    assert decide_sending(read_send_policy(deny), KEY, override="allow") == (True, "the session allows it")
    assert decide_sending(None, KEY, override="deny") == (False, "the session denies it")


def test_the_first_rule_that_denies_ends_it() -> None:
    """An allowing rule before or after it does not count."""
    for rules in (
        [rule("deny", channel="telegram"), rule("allow", channel="telegram")],
        [rule("allow", channel="telegram"), rule("deny", channel="telegram")],
    ):
        assert not allowed({"rules": rules}, channel="telegram")


def test_a_rule_that_allows_beats_the_default() -> None:
    """The default decides if no rule matches."""
    policy = {"default": "deny", "rules": [rule("allow", channel="telegram")]}
    assert allowed(policy, channel="telegram")
    assert not allowed(policy, channel="slack")
    assert not allowed(policy)


@pytest.mark.parametrize(
    ("match", "facts", "matches"),
    [
        ({"channel": "telegram"}, {"channel": " Telegram"}, True),
        ({"channel": "telegram"}, {"channel": None}, False),
        ({"chatType": "dm"}, {"chat_type": "direct"}, True),
        ({"chatType": "direct"}, {"chat_type": "dm"}, True),
        ({"chatType": "group"}, {"chat_type": "direct"}, False),
        ({"chatType": "group"}, {}, False),
        ({"channel": "telegram", "chatType": "group"}, {"channel": "telegram", "chat_type": "channel"}, False),
        ({"channel": "telegram", "chatType": "group"}, {"channel": "telegram", "chat_type": "group"}, True),
        ({}, {}, True),
    ],
)
def test_a_rule_matches_if_all_that_it_says_is_so(match: Any, facts: Any, matches: bool) -> None:
    """Unknown properties of a message do not match."""
    assert allowed({"rules": [rule("deny", **match)]}, **facts) is not matches


@pytest.mark.parametrize(
    ("prefix", "key", "matches"),
    [
        ("cron:", "cron:nightly", True),
        ("cron:", "agent:main:cron:nightly", True),
        ("agent:main:cron:", "agent:main:cron:nightly", True),
        ("Telegram:group:", KEY, True),
        ("main:", KEY, False),
        ("group:", KEY, False),
        ("cron:", "agent:main:hook:cron:x", False),
        ("agent:", "cron:nightly", False),
    ],
)
def test_a_prefix_is_that_of_the_key_with_or_without_its_agent(prefix: str, key: str, matches: bool) -> None:
    """`cron:` means the cron jobs of every agent."""
    assert allowed({"rules": [rule("deny", keyPrefix=prefix)]}, key) is not matches


def test_a_raw_prefix_is_that_of_the_whole_key() -> None:
    """The whole key includes the agent."""
    policy = {"rules": [rule("deny", rawKeyPrefix="agent:main:")]}
    assert not allowed(policy, "agent:main:cron:x")
    assert allowed(policy, "agent:ops:cron:x")
    assert allowed({"rules": [rule("deny", rawKeyPrefix="cron:")]}, "agent:main:cron:x")


def test_a_verdict_names_the_rule() -> None:
    """Users can find out why a reply was not delivered."""
    policy = read_send_policy(
        {"rules": [rule("allow", channel="x"), rule("deny", chatType="group")], "default": "deny"}
    )
    assert decide_sending(policy, KEY, chat_type="group") == (False, "session.sendPolicy.rules[1] denies it")
    assert decide_sending(policy, KEY, channel="x") == (True, "session.sendPolicy.rules[0] allows it")
    assert decide_sending(policy, KEY) == (False, "session.sendPolicy.default denies it")
    assert decide_sending(SendPolicy(), KEY) == (True, "nothing denies it")


@pytest.mark.parametrize(
    "policy",
    [
        [],
        {"default": "maybe"},
        {"rules": [{"match": {}}]},
        {"rules": [{"action": "deny", "match": {"chanel": "x"}}]},
        {"rules": [{"action": "deny", "match": {"channel": " "}}]},
        {"rule": []},
        {"rules": [{"action": "block"}]},
        {"rules": {"action": "deny"}},
    ],
)
def test_a_policy_that_is_not_understood_is_refused(policy: Any) -> None:
    """A misspelt condition would match everything."""
    with pytest.raises(InvalidConfig, match=r"session\.sendPolicy"):
        read_send_policy(policy)


rules = st.lists(st.tuples(st.sampled_from(["allow", "deny"]), st.sampled_from(["a", "b"])), max_size=5)


@given(rules, st.sampled_from(["allow", "deny", None]), st.sampled_from(["a", "b", None]))
def test_order_matters_only_for_the_reason(found: Any, default: Any, channel: str | None) -> None:
    """Any matching deny denies, else any matching allow allows, else the default decides."""
    policy = {"rules": [rule(action, channel=name) for action, name in found], "default": default}
    matching = {action for action, name in found if name == channel}
    expected = "deny" not in matching and ("allow" in matching or default != "deny")
    assert allowed(policy, channel=channel) is expected
