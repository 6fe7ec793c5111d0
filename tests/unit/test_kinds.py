"""The table of kinds: flags, folds and projections."""

from __future__ import annotations

from typing import Any

import pytest

from builders import AT, AT_MS, answered, entry, said
from sessile.core import kinds
from sessile.core.kinds import KINDS, State, flags_of, fold, kind_of, remote_compaction
from sessile.core.lines import Head, MessageHead

DOCUMENTED = (
    "message thinking_level_change model_change compaction branch_summary custom custom_message label ttsr_injection "
    "session_init mode_change session_info title_change service_tier_change mcp_tool_selection context_change context_edit "
    "usage model_usage reset_boundary credential_pin"
)


def folded(*entries: dict[str, Any]) -> State:
    state = State()
    for each in entries:
        state = fold(state, each)
    return state


def change(kind: str, **members: Any) -> dict[str, Any]:
    return entry(kind, "x", None, **members)


@pytest.mark.mission("X2")
def test_every_documented_kind_has_a_row() -> None:
    """Each may have children."""
    assert set(KINDS) == set(DOCUMENTED.split())
    assert all(kind.flags & kinds.CHAIN for kind in KINDS.values())


def test_flags_are_the_numbers_that_index_files_hold() -> None:
    """A stored number never changes its meaning."""
    names = "CHAIN MARKER STATE BOUNDARY LABEL TITLE MESSAGE TALK"
    assert [getattr(kinds, name) for name in names.split()] == [1, 2, 4, 8, 16, 32, 64, 128]


@pytest.mark.parametrize("unknown", ["", "later", "session", None, 5, ["message"], {}])
def test_an_unknown_kind_stays_in_the_tree_and_contributes_nothing(unknown: object) -> None:
    """It has no fold and no projection, whatever its type."""
    kind = kind_of(unknown)
    assert (kind.flags, kind.fold, kind.project) == (kinds.CHAIN, None, None)
    assert fold(State(), {"type": unknown}) == State()


@pytest.mark.parametrize(
    ("head", "flags"),
    [
        (Head("message", message=MessageHead("user")), kinds.CHAIN | kinds.MESSAGE | kinds.TALK),
        (Head("message", message=MessageHead("assistant")), kinds.CHAIN | kinds.MESSAGE | kinds.TALK | kinds.STATE),
        (Head("message"), kinds.CHAIN | kinds.MESSAGE | kinds.TALK),
        (Head("later", message=MessageHead("assistant")), kinds.CHAIN),
        (Head("custom", customType="sessile.leaf"), kinds.MARKER),
        (Head("custom", customType="other"), kinds.CHAIN),
        (Head("custom_message", customType="sessile.leaf"), kinds.CHAIN | kinds.TALK),
        (Head("compaction"), kinds.CHAIN | kinds.BOUNDARY | kinds.TALK),
        (Head("reset_boundary"), kinds.CHAIN | kinds.BOUNDARY),
        (Head("label"), kinds.CHAIN | kinds.LABEL),
        (Head("session_info"), kinds.CHAIN | kinds.TITLE),
    ],
)
def test_flags_come_from_the_head_alone(head: Head, flags: int) -> None:
    """An answer sets state, and a leaf marker is not a node."""
    assert flags_of(head) == flags


def test_whatever_folds_is_marked_as_state() -> None:
    """An index with only the flagged rows can compute the state of any path."""
    for name, kind in KINDS.items():
        assert (kind.fold is not None) == bool(kind.flags & kinds.STATE or name == "message")


@pytest.mark.parametrize(("value", "level"), [("high", "high"), (None, "off"), ("off", "off")])
def test_thinking_level_is_the_last_one_and_null_is_off(value: object, level: object) -> None:
    """The level starts at off and follows each change."""
    assert State().thinking_level == "off"
    changes = [change("thinking_level_change", thinkingLevel=each) for each in ("low", value)]
    assert folded(*changes).thinking_level == level


@pytest.mark.mission("X2")
def test_both_shapes_of_a_model_change_are_read() -> None:
    """pi has provider and modelId, oh-my-pi a model and a role; the default role applies without one."""
    assert folded(change("model_change", provider="a", modelId="b/c")).models == {"default": "a/b/c"}
    assert folded(change("model_change", model="a/b")).models == {"default": "a/b"}
    assert folded(change("model_change", model="a/b", provider="x", modelId="y")).models == {"default": "a/b"}
    assert folded(change("model_change", model="a/b", role="smol")).models == {"smol": "a/b"}


@pytest.mark.parametrize(
    "members",
    [{}, {"model": ""}, {"model": 5}, {"model": None, "provider": "a"}, {"model": "a/b", "role": 5}, {"modelId": "b"}],
)
def test_a_model_change_without_a_model_changes_nothing(members: dict[str, Any]) -> None:
    """Empty or invalid members are ignored."""
    assert folded(change("model_change", **members)) == State()


def test_an_explicit_default_model_beats_assistants() -> None:
    """Answers set the default model only until one is chosen; other roles do not choose it."""
    assert folded(answered("a", None, "p", "m"), answered("b", "a", "p", "n")).models == {"default": "p/n"}
    state = folded(change("model_change", model="q/s", role="smol"), answered("a", None))
    assert state.models == {"smol": "q/s", "default": "p/m"}
    assert folded(change("model_change", model="q/d"), answered("a", None)).models == {"default": "q/d"}


@pytest.mark.parametrize(
    "message",
    [None, "hi", [], {}, {"role": "user", "provider": "p", "model": "m"}, {"role": "assistant", "provider": "p"}],
)
def test_only_an_assistant_with_provider_and_model_tells_the_model(message: object) -> None:
    """Other messages leave the state unchanged."""
    assert folded(change("message", message=message)) == State()


def test_mode_and_its_data_come_from_the_last_change() -> None:
    """The data of the last change counts even if it is absent."""
    assert (State().mode, State().mode_data) == ("none", None)
    plan = change("mode_change", mode="plan", data={"step": 1})
    assert (folded(plan).mode, folded(plan).mode_data) == ("plan", {"step": 1})
    left = folded(plan, change("mode_change", mode="none"))
    assert (left.mode, left.mode_data) == ("none", None)


def test_injected_rules_are_an_ordered_union() -> None:
    """Each rule once, at its first position, without values that are not texts."""
    first = change("ttsr_injection", injectedRules=["b", "a"])
    second = change("ttsr_injection", injectedRules=["c", "a", 5, None])
    assert folded(first, second, change("ttsr_injection")).injected_ttsr_rules == ("b", "a", "c")


def test_tier_tools_and_active_context_are_the_last_ones() -> None:
    """Null clears the tier; tools never selected differ from none selected."""
    assert folded(change("service_tier_change", serviceTier="flex")).service_tier == "flex"
    gone = folded(change("service_tier_change", serviceTier="flex"), change("service_tier_change", serviceTier=None))
    assert gone.service_tier is None
    assert State().selected_mcp_tools is None
    assert folded(change("mcp_tool_selection", selectedToolNames=[])).selected_mcp_tools == ()
    assert folded(change("mcp_tool_selection", selectedToolNames=["a", 1, "b"])).selected_mcp_tools == ("a", "b")
    context = change("context_change", contextName="n", tenant="t")
    assert folded(context).active_context == {"contextName": "n", "tenant": "t", "namespace": None}


def test_folding_never_changes_the_state_before() -> None:
    """States are immutable, so an index may keep them."""
    before = folded(answered("a", None))
    fold(before, change("model_change", model="x/y", role="smol"))
    assert before == folded(answered("a", None))


def project(each: dict[str, Any]) -> dict[str, Any] | None:
    step = kind_of(each["type"]).project
    assert step is not None
    return step(each)


def test_a_message_is_projected_as_stored() -> None:
    """The same object, with unknown members."""
    stored = said("a", None)
    stored["message"]["later"] = 1
    assert project(stored) is stored["message"]
    assert project(change("message", message="text")) is None


def test_a_custom_message_is_projected_whether_displayed_or_not() -> None:
    """The message has the present members and the time of the entry in milliseconds."""
    hidden = change("custom_message", customType="x", content="hi", display=False, attribution="agent", other=1)
    expected = {"role": "custom", "customType": "x", "content": "hi", "display": False, "attribution": "agent"}
    assert project(hidden) == {**expected, "timestamp": AT_MS}
    assert project({**hidden, "details": None, "timestamp": "?"}) == {**expected, "details": None, "timestamp": None}


def test_a_branch_summary_speaks_only_if_it_says_something() -> None:
    """An empty one adds no message."""
    spoken = change("branch_summary", summary="tried", fromId="a", details={"readFiles": []})
    assert project(spoken) == {"role": "branchSummary", "summary": "tried", "fromId": "a", "timestamp": AT_MS}
    assert project({**spoken, "summary": ""}) is None


def test_a_compaction_is_projected_with_its_numbers() -> None:
    """Summary, tokens before and short summary; the provider's own history only if there is one."""
    plain = change("compaction", summary="s", shortSummary="t", tokensBefore=9, firstKeptEntryId="a")
    expected = {"role": "compactionSummary", "summary": "s", "tokensBefore": 9, "shortSummary": "t", "timestamp": AT_MS}
    assert project(plain) == expected
    remote = {"openaiRemoteCompaction": {"provider": "openai", "replacementHistory": [1]}}
    payload = {"type": "openaiResponsesHistory", "provider": "openai", "items": [1]}
    assert project({**plain, "preserveData": remote}) == {**expected, "providerPayload": payload}


@pytest.mark.parametrize(
    "preserved",
    [
        None,
        [],
        {},
        {"openaiRemoteCompaction": None},
        {"openaiRemoteCompaction": {"provider": "", "replacementHistory": []}},
        {"openaiRemoteCompaction": {"provider": 5, "replacementHistory": []}},
        {"openaiRemoteCompaction": {"provider": "openai"}},
        {"openaiRemoteCompaction": {"provider": "openai", "replacementHistory": {}}},
    ],
)
def test_a_remote_compaction_needs_a_provider_and_a_history(preserved: object) -> None:
    """A non-empty provider and a list; otherwise it is an ordinary compaction."""
    assert remote_compaction({"type": "compaction", "preserveData": preserved, "timestamp": AT}) is None
