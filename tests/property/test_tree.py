"""The tree and the context, compared with simple models."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import AT, AT_MS, Json
from sessile.core.context import build_session_context
from sessile.core.kinds import CHAIN, MARKER
from sessile.core.migrate import migrate_session_entries
from sessile.core.tree import NOWHERE, Node, Tree

ids = st.sampled_from("abcdefgh")
parents = st.none() | ids | st.sampled_from(["", "missing"])
nodes = st.lists(st.builds(Node, ids, parents, st.sampled_from([CHAIN, CHAIN, CHAIN, MARKER])), max_size=14)


def model_parents(given_nodes: list[Node]) -> list[int]:
    """Return the parents by the rules, one entry after the other."""
    parent = []
    for node in given_nodes:
        named = [n for n, other in enumerate(given_nodes) if node.parent_id and other.id == node.parent_id]
        parent.append(named[-1] if named and node.parent_id != node.id else NOWHERE)
    for number in range(len(parent)):  # cut cycles at their earliest entry
        at = parent[number]
        while at > number and at != NOWHERE:
            seen = {at}
            while at != NOWHERE and at != number:
                at = parent[at]
                if at in seen:
                    break
                seen.add(at)
            if at == number and min(seen) == number:
                parent[number] = NOWHERE
            break
    return parent


def model_path(given_nodes: list[Node], parent: list[int], number: int) -> list[int]:
    path = [number]
    while (number := parent[number]) != NOWHERE:
        if not given_nodes[number].flags & MARKER:
            path.append(number)
    return path[::-1]


@pytest.mark.promise("P19")
@pytest.mark.promise("P20")
@given(nodes)
def test_the_tree_equals_the_model(given_nodes: list[Node]) -> None:
    """Paths, children, heads, roots and common ancestors are compared for any list of entries."""
    tree = Tree(given_nodes)
    parent = model_parents(given_nodes)
    paths = [model_path(given_nodes, parent, number) for number in range(len(given_nodes))]
    assert [tree.path(number) for number in range(len(given_nodes))] == paths
    visible = [number for number, node in enumerate(given_nodes) if not node.flags & MARKER]
    for number in (NOWHERE, *visible):
        above = [] if number == NOWHERE else paths[number]
        assert tree.children(number) == [child for child in visible if paths[child][:-1] == above]
    assert tree.heads() == [number for number in visible if not tree.children(number)]
    for first in visible:
        for second in visible:
            common = [number for number in paths[first] if number in paths[second]]
            assert tree.common_ancestor(first, second) == (common[-1] if common else NOWHERE)
    for node in given_nodes:
        assert tree.number(node.id) == max(n for n, other in enumerate(given_nodes) if other.id == node.id)


@pytest.mark.promise("P19")
@given(nodes)
def test_every_anomaly_is_reported_and_nothing_else(given_nodes: list[Node]) -> None:
    """One finding for each duplicate, missing, own and forward parent, and for each cycle."""
    codes = [finding.code for finding in Tree(given_nodes).findings]
    known = [node.id for node in given_nodes]
    last = {entry_id: number for number, entry_id in enumerate(known)}
    assert codes.count("duplicate_id") == len(known) - len(last)
    named = [(n, node) for n, node in enumerate(given_nodes) if node.parent_id]
    assert codes.count("missing_parent") == sum(node.parent_id not in last for _, node in named)
    own = sum(node.parent_id == node.id for _, node in named)
    forward = sum(last.get(node.parent_id or "", -1) > n and node.parent_id != node.id for n, node in named)
    assert codes.count("forward_parent") == forward
    linked = sum(node.parent_id in last and node.parent_id != node.id for _, node in named)
    circles = linked - sum(number != NOWHERE for number in model_parents(given_nodes))
    assert codes.count("cycle") == own + circles


BLOCK = [{"type": "text", "text": "block"}]
message = st.sampled_from(
    [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": BLOCK, "provider": "p", "model": "m"},
        {"role": "assistant", "content": BLOCK, "provider": "q", "model": "n"},
        {"role": "toolResult", "content": BLOCK, "toolCallId": "1"},
        {"role": "system", "content": "s"},
    ]
)
remote = st.sampled_from([{}, {"openaiRemoteCompaction": {"provider": "o", "replacementHistory": [1]}}])
bodies: st.SearchStrategy[Json] = st.one_of(
    st.builds(lambda value: {"type": "message", "message": value}, message),
    st.builds(lambda value: {"type": "message", "message": value}, message),
    st.builds(
        lambda shown: {"type": "custom_message", "customType": "x", "content": "c", "display": shown}, st.booleans()
    ),
    st.builds(
        lambda summary: {"type": "branch_summary", "summary": summary, "fromId": "root"}, st.sampled_from(["", "b"])
    ),
    st.builds(
        lambda first, kept, system: (
            {"type": "compaction", "summary": "s", "preserveData": kept, "tokensBefore": 1}
            | ({} if first is None else {"firstKeptEntryId": first})
            | ({"systemMessage": {"role": "system", "content": "own"}} if system else {})
        ),
        parents,
        remote,
        st.booleans(),
    ),
    st.builds(
        lambda target, value: {"type": "context_edit", "targetId": target, "replacement": value},
        ids,
        st.sampled_from([None, {"content": "text"}, {"content": [1]}]),
    ),
    st.sampled_from(
        [
            {"type": "reset_boundary"},
            {"type": "later"},
            {"type": "label", "targetId": "a"},
            {"type": "thinking_level_change", "thinkingLevel": "high"},
            {"type": "thinking_level_change", "thinkingLevel": None},
            {"type": "model_change", "model": "x/y"},
            {"type": "model_change", "model": "x/z", "role": "smol"},
            {"type": "model_change", "provider": "x", "modelId": "w"},
            {"type": "mode_change", "mode": "plan", "data": 1},
            {"type": "mode_change", "mode": "none"},
            {"type": "ttsr_injection", "injectedRules": ["r1", "r2"]},
            {"type": "ttsr_injection", "injectedRules": ["r3", "r1"]},
        ]
    ),
)
sessions = st.lists(
    st.builds(lambda body, i, p: {**body, "id": i, "parentId": p, "timestamp": AT}, bodies, ids, parents), max_size=12
)


_UNCHANGED = ("system", "compactionSummary", "branchSummary")


def model_context(entries: list[Json], leaf: str | None) -> dict[str, Any]:
    """Return the context by the documented rules, in their order."""
    result: dict[str, Any] = {"messages": [], "level": "off", "models": {}, "mode": "none", "data": None, "rules": []}
    if leaf is None or not entries:
        return result
    by_id = {each["id"]: each for each in entries}
    at = by_id.get(leaf, entries[-1])
    path = [at]
    while at["parentId"] in by_id and by_id[at["parentId"]]["id"] not in [each["id"] for each in path]:
        at = by_id[at["parentId"]]
        path.insert(0, at)
    chosen = False
    for each in path:
        kind = each["type"]
        if kind == "thinking_level_change":
            result["level"] = each["thinkingLevel"] or "off"
        elif kind == "model_change":
            role = each.get("role", "default")
            result["models"][role] = each.get("model") or f"{each['provider']}/{each['modelId']}"
            chosen = chosen or role == "default"
        elif kind == "message" and each["message"]["role"] == "assistant" and not chosen:
            result["models"]["default"] = f"{each['message']['provider']}/{each['message']['model']}"
        elif kind == "mode_change":
            result["mode"], result["data"] = each["mode"], each.get("data")
        elif kind == "ttsr_injection":
            result["rules"] += [rule for rule in each["injectedRules"] if rule not in result["rules"]]
    spoken: list[tuple[str, Json]] = []
    selected = path
    places = [n for n, each in enumerate(path) if each["type"] in ("compaction", "reset_boundary")]
    if places:
        boundary = path[places[-1]]
        selected = path[places[-1] + 1 :]
        if boundary["type"] == "compaction":
            payload = boundary["preserveData"].get("openaiRemoteCompaction")
            if "systemMessage" in boundary:
                spoken.append((boundary["id"], boundary["systemMessage"]))
            summary = {"role": "compactionSummary", "summary": "s", "tokensBefore": 1, "timestamp": AT_MS}
            if payload:
                summary["providerPayload"] = {"type": "openaiResponsesHistory", "provider": "o", "items": [1]}
            spoken.append((boundary["id"], summary))
            before = path[: places[-1]]
            starts = [n for n, each in enumerate(before) if each["id"] == boundary.get("firstKeptEntryId")]
            kept = before[starts[0] :] if starts and not payload else []
            kept = [each for each in kept if each.get("message", {}).get("role") != "system"]
            selected = kept + selected
    for each in selected:
        if each["type"] == "message":
            spoken.append((each["id"], each["message"]))
        elif each["type"] == "custom_message":
            members = {name: each[name] for name in ("customType", "content", "display")}
            spoken.append((each["id"], {"role": "custom", **members, "timestamp": AT_MS}))
        elif each["type"] == "branch_summary" and each["summary"]:
            spoken.append((each["id"], {"role": "branchSummary", "summary": "b", "fromId": "root", "timestamp": AT_MS}))
    for source, said in spoken:
        edits = [each for each in selected if each["type"] == "context_edit" and each["targetId"] == source]
        if not edits or (edits[-1]["replacement"] is not None and said["role"] in _UNCHANGED):
            result["messages"].append(said)
        elif edits[-1]["replacement"] is not None:
            content = edits[-1]["replacement"]["content"]
            if content == "text" and said["role"] in ("assistant", "toolResult"):
                content = [{"type": "text", "text": "text"}]
            result["messages"].append({**said, "content": content})
    return result


@pytest.mark.mission("X12")
@pytest.mark.promise("P19")
@given(sessions, st.none() | ids | st.just("missing"))
def test_the_context_equals_the_model(entries: list[Json], leaf: str | None) -> None:
    """Trees have any leaf, all kinds, and compactions, edits and resets in any order."""
    context = build_session_context(entries, leaf)
    assert {
        "messages": context.messages,
        "level": context.thinking_level,
        "models": context.models,
        "mode": context.mode,
        "data": context.mode_data,
        "rules": context.injected_ttsr_rules,
    } == model_context(entries, leaf)
    assert len(context.sources) == len(context.messages)


old_records = st.lists(
    st.one_of(
        st.just({"type": "session", "id": "s2"}),
        st.builds(
            lambda role: {"type": "message", "message": {"role": role, "content": "x"}},
            st.sampled_from(["user", "hookMessage"]),
        ),
        st.builds(
            lambda index: {"type": "compaction", "summary": "s", "firstKeptEntryIndex": index},
            st.integers(-2, 12) | st.floats() | st.none() | st.text(max_size=2),
        ),
        st.builds(lambda entry_id: {"type": "custom", "id": entry_id}, ids),
    ),
    max_size=8,
)


@pytest.mark.mission("X5")
@given(old_records, st.sampled_from([None, 1, 2, 3, 4]))
def test_migrating_is_stable_idempotent_and_makes_one_chain(records: list[Json], version: int | None) -> None:
    """Migrating twice is migrating once, and version 1 becomes a chain of unique ids in file order."""

    header = {"type": "session", "id": "s"} | ({} if version is None else {"version": version})
    first, second = deepcopy([header, *records]), deepcopy([header, *records])
    changed = migrate_session_entries(first)
    assert changed == ((version or 1) < 3)
    migrate_session_entries(second)
    assert repr(first) == repr(second)
    before = repr(first)
    assert migrate_session_entries(first) is False
    assert repr(first) == before
    if (version or 1) == 1:
        chain = [record for record in first if record["type"] != "session"]
        made = [record["id"] for record in chain]
        assert len(set(made)) == len(made)
        assert [record["parentId"] for record in chain] == [None, *made][: len(made)]
        assert "hookMessage" not in repr(first)
