"""The context: one test for each rule."""

from __future__ import annotations

import time
from typing import Any

import pytest

from builders import AT, AT_MS, Json, answered, assistant, entry, said, texts, user
from sessile.core.context import LAST_ENTRY, SessionContext, build_session_context, first_kept, live_part, walk
from sessile.core.lines import Finding

pytestmark = pytest.mark.mission("X12")


def compacted(entry_id: str, parent_id: str, first_kept: str | None = None, **members: Any) -> Json:
    kept = {} if first_kept is None else {"firstKeptEntryId": first_kept}
    return entry("compaction", entry_id, parent_id, summary=f"summary {entry_id}", tokensBefore=9, **kept, **members)


def edited(entry_id: str, parent_id: str, target: object, replacement: object) -> Json:
    return entry("context_edit", entry_id, parent_id, targetId=target, replacement=replacement)


def heard(entries: list[Json], leaf: Any = LAST_ENTRY) -> list[str]:
    return texts(build_session_context(entries, leaf).messages)


ABC = [said("a", None), said("b", "a"), said("c", "b")]
FORK = [said("a", None), said("b", "a"), said("c", "a")]


def test_without_a_leaf_the_last_entry_is_meant() -> None:
    """The default leaf is the last entry of the file, of any type."""
    assert heard(ABC) == ["a", "b", "c"]
    assert heard(FORK) == ["a", "c"]
    assert heard([*FORK, entry("label", "l", "b", targetId="a", label="x")]) == ["a", "b"]


def test_a_null_leaf_is_before_the_first_entry() -> None:
    """The context is empty and the state is the default."""
    changed = [entry("thinking_level_change", "t", None, thinkingLevel="high"), *ABC]
    assert build_session_context(changed, None) == SessionContext()
    assert SessionContext().thinking_level == "off"
    assert SessionContext().models == {}
    assert SessionContext().mode == "none"


def test_the_last_entry_is_shown_by_its_name() -> None:
    """Signatures and messages show the name of the constant."""
    assert repr(LAST_ENTRY) == "LAST_ENTRY"


@pytest.mark.parametrize("leaf", ["unknown", "", LAST_ENTRY])
def test_an_unknown_or_empty_leaf_means_the_last_entry(leaf: Any) -> None:
    """As in pi, no error is raised."""
    assert heard(FORK, leaf) == ["a", "c"]


def test_a_known_leaf_ends_the_path() -> None:
    """Later entries and other branches are not included."""
    assert heard(ABC, "b") == ["a", "b"]
    assert heard(FORK, "b") == ["a", "b"]


def test_no_entries_give_an_empty_context() -> None:
    """A header alone is an empty context, too."""
    assert build_session_context([]) == SessionContext()
    assert build_session_context([{"type": "session", "id": "s"}], "s") == SessionContext()


def test_headers_are_no_entries() -> None:
    """A header is neither a leaf nor an ancestor."""
    header = {"type": "session", "id": "s"}
    assert heard([header, *ABC, header]) == ["a", "b", "c"]


def test_a_given_map_of_ids_is_used() -> None:
    """A caller that has an index need not build another."""
    other = said("a", None, "from the map")
    assert texts(build_session_context(ABC, "b", {"a": other, "b": ABC[1]}).messages) == ["from the map", "b"]


@pytest.mark.promise("P19")
def test_a_missing_parent_ends_the_walk_with_a_finding() -> None:
    """The path ends there."""
    context = build_session_context([said("a", None), said("b", "gone"), said("c", "b")])
    assert texts(context.messages) == ["b", "c"]
    detail = "the parent gone of entry b is not in the session"
    assert context.findings == (Finding("missing_parent", -1, 0, detail),)


@pytest.mark.promise("P19")
@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([said("a", "a"), said("b", "a")], ["a", "b"]),
        ([said("a", "b"), said("b", "a")], ["a", "b"]),
        ([said("a", "c"), said("b", "a"), said("c", "b"), said("d", "b")], ["c", "a", "b", "d"]),
    ],
)
def test_a_circle_is_walked_once_with_a_finding(entries: list[Json], expected: list[str]) -> None:
    """The walk stops at the first repeated entry."""
    context = build_session_context(entries)
    assert texts(context.messages) == expected
    detail = f"the ancestors of entry {entries[-1]['id']} form a cycle"
    assert context.findings == (Finding("cycle", -1, 0, detail),)


@pytest.mark.promise("P20")
def test_of_duplicate_ids_the_later_wins() -> None:
    """A parent id means the later of two entries."""
    assert heard([said("a", None, "first"), said("a", None, "second"), said("b", "a")]) == ["second", "b"]


@pytest.mark.parametrize("parent", [None, "", 0, False])
def test_an_empty_parent_is_the_root(parent: Any) -> None:
    """It ends the path without a finding."""
    context = build_session_context([said("a", None), {**said("b", None), "parentId": parent}])
    assert (texts(context.messages), context.findings) == (["b"], ())


@pytest.mark.promise("P17")
def test_members_of_the_wrong_type_raise_nothing() -> None:
    """Ids, parents, targets and messages may have any type."""
    odd: list[Any] = [5, ["a"], {"a": 1}, True, 1.5]
    entries = [*ABC, compacted("d", "c", "b")]
    for value in odd:
        entries.append(edited("e", "d", value, value))
        entries.append({**said("x", None), "id": value, "parentId": "e"})
        context = build_session_context(entries, value)
        assert texts(context.messages)[:3] == ["summary d", "b", "c"]
        assert context.sources[-1] is None
        build_session_context([{**said("x", None), "parentId": value, "message": value, "type": "message"}])
        build_session_context(
            [{"type": value, "id": value}, {"type": "compaction", "firstKeptEntryId": value, "id": "c"}]
        )


def test_a_bridge_goes_on_where_a_parent_is_missing() -> None:
    """The walk continues at the entry of the bridge, and the finding stays."""
    entries = [said("a", None), said("b", "gone"), said("c", "b")]
    path, findings = walk(entries[2], {each["id"]: each for each in entries}, lambda each: entries[0])
    assert [each["id"] for each in path] == ["a", "b", "c"]
    assert [finding.code for finding in findings] == ["missing_parent"]


def test_the_state_comes_from_the_whole_path() -> None:
    """Entries that a compaction removed count; other branches do not."""
    entries = [
        entry("thinking_level_change", "t", None, thinkingLevel="high"),
        entry("model_change", "m", "t", model="x/y"),
        entry("mode_change", "p", "m", mode="plan", data={"n": 1}),
        entry("ttsr_injection", "r", "p", injectedRules=["one"]),
        entry("service_tier_change", "v", "r", serviceTier="flex"),
        entry("mcp_tool_selection", "w", "v", selectedToolNames=["t1"]),
        entry("context_change", "n", "w", contextName="c", tenant="d", namespace="e"),
        entry("mode_change", "other", "t", mode="elsewhere"),
        compacted("c", "n"),
        answered("a", "c"),
        entry("ttsr_injection", "q", "a", injectedRules=["two", "one"]),
    ]
    context = build_session_context(entries)
    assert texts(context.messages) == ["summary c", "a"]
    assert (context.thinking_level, context.models) == ("high", {"default": "x/y"})
    assert (context.mode, context.mode_data) == ("plan", {"n": 1})
    assert context.injected_ttsr_rules == ["one", "two"]
    assert context.service_tier == "flex"
    assert context.selected_mcp_tool_names == ["t1"]
    assert context.active_context == {"contextName": "c", "tenant": "d", "namespace": "e"}


def test_unknown_kinds_are_path_nodes_without_a_voice() -> None:
    """Their children are found; they add no message."""
    assert heard([said("a", None), entry("later", "x", "a", message=user("no")), said("b", "x")]) == ["a", "b"]


def test_sources_name_the_entry_of_each_message() -> None:
    """The source of a summary is its compaction."""
    entries = [*ABC, compacted("d", "c", "c"), entry("label", "l", "d", targetId="a"), said("e", "l")]
    context = build_session_context(entries)
    assert context.sources == ["d", "c", "e"]


def test_the_kept_range_follows_the_summary() -> None:
    """The entries from the first kept one to the compaction follow the summary, then all later ones."""
    assert heard([*ABC, compacted("d", "c", "b"), said("e", "d")]) == ["summary d", "b", "c", "e"]


@pytest.mark.parametrize("first", [None, "gone", "d", "e", "", "side"])
def test_nothing_is_kept_from_an_id_that_is_not_before_the_compaction(first: str | None) -> None:
    """An absent, unknown, empty, later or unrelated id, or that of the compaction itself, keeps nothing."""
    entries = [*ABC, said("side", "a"), compacted("d", "c", first), said("e", "d")]
    assert heard(entries) == ["summary d", "e"]


def test_a_compaction_that_names_itself_keeps_nothing() -> None:
    """This holds even if another entry has the same id, as in a damaged file."""
    assert first_kept({"id": "d", "firstKeptEntryId": "d"}) is None
    assert first_kept({"id": "d", "firstKeptEntryId": "c"}) == "c"
    assert first_kept({"id": "d", "firstKeptEntryId": 5}) is None


def test_only_the_last_compaction_speaks() -> None:
    """Older summaries are left out, even if the kept range starts before them."""
    entries = [*ABC, compacted("d", "c", "c"), said("e", "d"), compacted("f", "e", "b"), said("g", "f")]
    assert heard(entries) == ["summary f", "b", "c", "e", "g"]
    assert heard([*entries, compacted("h", "g", "g")]) == ["summary h", "g"]


def test_a_compaction_on_another_branch_is_not_seen() -> None:
    """Only the path counts."""
    assert heard([*ABC, compacted("d", "b", "a"), said("e", "c")]) == ["a", "b", "c", "e"]


def test_the_compaction_message_has_its_members() -> None:
    """Summary, tokens before and the time of the entry."""
    (message,) = build_session_context([*ABC, compacted("d", "c")]).messages
    assert message == {"role": "compactionSummary", "summary": "summary d", "tokensBefore": 9, "timestamp": AT_MS}


def test_a_remote_compaction_carries_its_history_and_keeps_nothing() -> None:
    """The provider's items replace the kept range."""
    remote = {"openaiRemoteCompaction": {"provider": "openai", "replacementHistory": [{"x": 1}]}}
    context = build_session_context([*ABC, compacted("d", "c", "b", preserveData=remote), said("e", "d")])
    assert texts(context.messages) == ["summary d", "e"]
    assert context.messages[0]["providerPayload"] == {
        "type": "openaiResponsesHistory",
        "provider": "openai",
        "items": [{"x": 1}],
    }


def test_a_remote_compaction_without_a_history_is_one_like_any_other() -> None:
    """The kept range stays."""
    remote = {"openaiRemoteCompaction": {"provider": "", "replacementHistory": []}}
    assert heard([*ABC, compacted("d", "c", "c", preserveData=remote)]) == ["summary d", "c"]


def test_a_system_message_of_a_compaction_comes_first_and_replaces_the_kept_ones() -> None:
    """Kept system messages are dropped, later ones stay."""

    def system(entry_id: str, parent_id: str) -> Json:
        return entry("message", entry_id, parent_id, message={"role": "system", "content": entry_id})

    entries = [said("a", None), system("b", "a"), said("c", "b")]
    own = {"role": "system", "content": "own"}
    later = [system("e", "d"), said("f", "e")]
    assert heard([*entries, compacted("d", "c", "a", systemMessage=own), *later]) == [
        "own",
        "summary d",
        "a",
        "c",
        "e",
        "f",
    ]
    assert heard([*entries, compacted("d", "c", "a"), *later]) == ["summary d", "a", "c", "e", "f"]


def test_a_reset_boundary_begins_anew() -> None:
    """Only later entries are included; the state stays."""
    entries = [answered("a", None), entry("reset_boundary", "r", "a"), said("b", "r")]
    context = build_session_context(entries)
    assert texts(context.messages) == ["b"]
    assert context.models == {"default": "p/m"}
    assert heard(entries, "r") == []


def test_the_later_of_compaction_and_reset_counts() -> None:
    """A reset removes the summary, a compaction after a reset may keep entries again."""
    entries = [*ABC, compacted("d", "c", "b"), entry("reset_boundary", "r", "d"), said("e", "r")]
    assert heard(entries) == ["e"]
    assert heard([*entries, compacted("f", "e", "e"), said("g", "f")]) == ["summary f", "e", "g"]


@pytest.mark.parametrize("display", [True, False])
def test_a_custom_message_is_heard_whether_displayed_or_not(display: bool) -> None:
    """`display: false` hides it from views, not from the model."""
    context = build_session_context([entry("custom_message", "a", None, customType="x", content="hi", display=display)])
    assert context.messages == [
        {"role": "custom", "customType": "x", "content": "hi", "display": display, "timestamp": AT_MS}
    ]


def test_an_empty_branch_summary_is_silent() -> None:
    """One with text is a message."""
    assert heard([entry("branch_summary", "a", None, fromId="root", summary="")]) == []
    assert heard([entry("branch_summary", "a", None, fromId="root", summary="tried")]) == ["tried"]


def test_a_context_edit_replaces_the_content() -> None:
    """The message changes, the entry does not."""
    entries = [*ABC, edited("e", "c", "b", {"content": "new"})]
    assert heard(entries) == ["a", "new", "c"]
    assert entries[1]["message"]["content"] == "b"


def test_the_last_edit_of_a_target_wins() -> None:
    """A null after a text removes the message."""
    assert heard([*ABC, edited("e", "c", "b", {"content": "1"}), edited("f", "e", "b", {"content": "2"})]) == [
        "a",
        "2",
        "c",
    ]
    assert heard([*ABC, edited("e", "c", "b", {"content": "1"}), edited("f", "e", "b", None)]) == ["a", "c"]
    assert heard([*ABC, edited("e", "c", "b", None), edited("f", "e", "b", {"content": "1"})]) == ["a", "1", "c"]


def test_a_null_edit_removes_the_message_and_its_source() -> None:
    """Messages and sources stay in step."""
    context = build_session_context([*ABC, edited("e", "c", "b", None)])
    assert (texts(context.messages), context.sources) == (["a", "c"], ["a", "c"])


@pytest.mark.parametrize(
    ("message", "content"),
    [
        (user("x"), "new"),
        (assistant("x"), [{"type": "text", "text": "new"}]),
        ({"role": "toolResult", "toolCallId": "1", "content": []}, [{"type": "text", "text": "new"}]),
        ({"role": "custom", "content": "x"}, "new"),
        ({"role": "system", "content": "x"}, "x"),
    ],
    ids=["user", "assistant", "toolResult", "custom", "system"],
)
def test_an_edit_to_a_text_becomes_a_block_where_blocks_are_needed(message: Json, content: object) -> None:
    """Answers and tool results contain lists; other messages may contain a text. System messages stay as they are."""
    edit = edited("e", "a", "a", {"content": "new"})
    (seen,) = build_session_context([entry("message", "a", None, message=message), edit]).messages
    assert seen == {**message, "content": content}


def test_an_edit_to_blocks_is_taken_as_it_is() -> None:
    """A list stays unchanged."""
    blocks = [{"type": "text", "text": "x"}, {"type": "image", "data": "", "mimeType": "image/png"}]
    (seen,) = build_session_context([answered("a", None), edited("e", "a", "a", {"content": blocks})]).messages
    assert seen["content"] == blocks


def test_an_edit_outside_the_kept_range_is_not_seen() -> None:
    """Only edits in the kept range or after the compaction count."""
    before = [said("a", None), said("b", "a"), edited("e", "b", "b", {"content": "new"}), said("c", "e")]
    assert heard([*before, compacted("d", "c", "b")]) == ["summary d", "new", "c"]
    assert heard([*before, compacted("d", "c", "c")]) == ["summary d", "c"]
    early = [said("a", None), edited("e", "a", "b", {"content": "new"}), said("b", "e"), said("c", "b")]
    assert heard(early) == ["a", "new", "c"]
    assert heard([*early, compacted("d", "c", "b")]) == ["summary d", "b", "c"]


def test_an_edit_can_remove_a_summary() -> None:
    """The compaction is the source of its summary."""
    assert heard([*ABC, compacted("d", "c", "c"), edited("e", "d", "d", None)]) == ["c"]


def test_an_edit_of_an_unknown_target_changes_nothing() -> None:
    """It may name another branch."""
    assert heard([*ABC, edited("e", "c", "gone", None)]) == ["a", "b", "c"]


def test_live_part_can_grow() -> None:
    """Adding an entry returns the same context as rebuilding it."""
    live = live_part([*ABC, compacted("d", "c", "c")])
    later = [said("e", "d"), edited("f", "e", "c", None)]
    for each in later:
        live.add(each)
    assert live.messages()[0] == build_session_context([*ABC, compacted("d", "c", "c"), *later]).messages


def test_the_context_shares_no_list_with_its_maker() -> None:
    """Changing one result does not change the next."""
    live = live_part(ABC)
    live.messages()[0].clear()
    assert texts(live.messages()[0]) == ["a", "b", "c"]


@pytest.mark.promise("P25")
def test_a_path_of_a_hundred_thousand_entries_is_walked_without_recursion() -> None:
    """The path may also end with a compaction."""
    entries = [{"type": "custom", "id": str(n), "parentId": str(n - 1) if n else None} for n in range(100_000)]
    entries.append({**compacted("last", "99999", "99990"), "timestamp": AT})
    started = time.process_time()
    context = build_session_context(entries)
    assert texts(context.messages) == ["summary last"]
    assert time.process_time() - started < 30  # no square of it
