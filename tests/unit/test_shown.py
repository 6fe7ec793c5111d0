"""What people see of any entry."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies
from builders import AT, AT_MS, Json, assistant, entry, said
from sessile.core.kinds import KINDS
from sessile.core.usage import amount
from sessile.render.shown import (
    DEPTHS,
    Call,
    Data,
    Diff,
    Image,
    Output,
    Shown,
    Text,
    Thinking,
    as_json,
    call_summary,
    show,
    show_all,
)

CALL = {"type": "toolCall", "id": "c1", "name": "edit", "arguments": {"path": "a.py", "oldText": "CANARY"}}
IMAGE = {"type": "image", "data": "CANARY", "mimeType": "image/png"}

MESSAGES: dict[str, Json] = {
    "user": {"role": "user", "content": "CANARY"},
    "user blocks": {"role": "user", "content": [{"type": "text", "text": "CANARY"}]},
    "system": {"role": "system", "content": "CANARY"},
    "thinking": {"role": "assistant", "content": [{"type": "thinking", "thinking": "CANARY"}]},
    "call": {"role": "assistant", "content": [CALL]},
    "image": {"role": "user", "content": [IMAGE]},
    "image without data": {"role": "user", "content": [{"type": "image", "data": {"x": "CANARY"}}]},
    "unknown block": {"role": "assistant", "content": [{"type": "new", "x": "CANARY"}]},
    "block that is no object": {"role": "assistant", "content": ["CANARY"]},
    "text that is no text": {"role": "assistant", "content": [{"type": "text", "text": ["CANARY"]}]},
    "thinking that is no text": {"role": "assistant", "content": [{"type": "thinking", "thinking": ["CANARY"]}]},
    "content that is none": {"role": "assistant", "content": {"x": "CANARY"}},
    "error": {"role": "assistant", "content": [], "stopReason": "error", "errorMessage": "CANARY"},
    "result": {"role": "toolResult", "toolCallId": "c1", "content": [{"type": "text", "text": "CANARY"}]},
    "diff": {"role": "toolResult", "content": [], "details": {"diff": "+CANARY"}},
    "details beside a diff": {"role": "toolResult", "content": [], "details": {"diff": "+x", "more": "CANARY"}},
    "details": {"role": "toolResult", "content": [], "details": {"x": "CANARY"}},
    "bash": {"role": "bashExecution", "command": "CANARY", "output": ""},
    "bash output": {"role": "bashExecution", "command": "ls", "output": "CANARY"},
    "python": {"role": "pythonExecution", "code": "CANARY", "output": ""},
    "mention": {"role": "fileMention", "files": [{"path": "a", "content": "CANARY"}]},
    "mentioned image": {"role": "fileMention", "files": [{"path": "a", "image": IMAGE}]},
    "hook": {"role": "hookMessage", "customType": "h", "content": "CANARY"},
    "custom details": {"role": "custom", "customType": "h", "content": "x", "details": "CANARY"},
    "branch summary": {"role": "branchSummary", "summary": "CANARY"},
    "compaction summary": {"role": "compactionSummary", "summary": "CANARY", "tokensBefore": 5},
    "role that is no text": {"role": ["user"], "content": "CANARY"},
}
ENTRIES: dict[str, list[Json]] = {
    "message": [*({"message": message} for message in MESSAGES.values()), {"message": "CANARY"}],
    "custom_message": [{"customType": "x", "content": "CANARY"}, {"content": "x", "details": {"x": "CANARY"}}],
    "branch_summary": [{"summary": "CANARY"}, {"summary": "x", "details": {"files": ["CANARY"]}}],
    "compaction": [{"summary": "CANARY"}, {"summary": "x", "shortSummary": "CANARY"}, {"details": "CANARY"}],
    "reset_boundary": [],
    "thinking_level_change": [{"thinkingLevel": "CANARY"}],
    "model_change": [{"model": "CANARY"}, {"provider": "p", "modelId": "CANARY"}, {"model": "m", "role": "CANARY"}],
    "mode_change": [{"mode": "CANARY"}, {"mode": "x", "data": {"plan": "CANARY"}}],
    "ttsr_injection": [{"injectedRules": ["CANARY"]}],
    "service_tier_change": [{"serviceTier": "CANARY"}],
    "mcp_tool_selection": [{"selectedToolNames": ["CANARY"]}],
    "context_change": [{"contextName": "CANARY"}, {"tenant": "CANARY"}],
    "label": [{"targetId": "a", "label": "CANARY"}, {"targetId": "CANARY"}],
    "session_info": [{"name": "CANARY"}],
    "title_change": [{"title": "CANARY"}],
    "session_init": [{"task": "CANARY"}, {"systemPrompt": "CANARY"}, {"tools": ["CANARY"]}],
    "context_edit": [{"targetId": "CANARY"}, {"targetId": "a", "replacement": {"content": "CANARY"}}],
    "custom": [{"customType": "CANARY"}, {"customType": "x", "data": {"x": "CANARY"}}],
    "usage": [{"anything": "CANARY"}],
    "model_usage": [{"anything": "CANARY"}],
    "credential_pin": [{"anything": "CANARY"}],
}
CASES = [(kind, body) for kind, bodies in ENTRIES.items() for body in bodies]


def texts(shown: Shown) -> str:
    """Everything that depth `all` shows of an entry."""
    return repr((shown.name, shown.headline, shown.at_depth("all")))


def test_every_kind_has_an_example() -> None:
    """The table of kinds and the examples here name the same kinds."""
    assert set(ENTRIES) == set(KINDS)


@pytest.mark.parametrize(("kind", "body"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_nothing_of_an_entry_is_left_out_at_depth_all(kind: str, body: Json) -> None:
    """Every text of every kind is shown, even if it has the wrong type."""
    shown = show(entry(kind, "e1", "e0", **body))
    assert "CANARY" in texts(shown)
    assert (shown.id, shown.parent_id, shown.type, shown.at) == ("e1", "e0", kind, AT_MS)


@pytest.mark.parametrize("kind", [*KINDS, "later", ""])
def test_an_entry_that_holds_nothing_has_a_headline(kind: str) -> None:
    """One line that is never empty."""
    shown = show({"type": kind})
    assert shown.headline.strip() and "\n" not in shown.headline
    assert shown.id is None and shown.at is None


@pytest.mark.parametrize(
    "record",
    [
        {"type": "a\nb"},
        {"type": "custom", "customType": "a\nb"},
        {"type": "label", "targetId": "a\nb"},
        {"type": "message", "message": {"role": "toolResult", "toolName": "a\nb"}},
        {"type": "message", "message": {"role": "fileMention", "files": [{"path": "a\nb"}]}},
    ],
)
def test_a_headline_is_one_line_whatever_names_hold(record: Json) -> None:
    """Names of kinds, tools, files and entries are stored text, too."""
    assert "a b" in show(record).headline


wrong = strategies.json_values
members = ["message", "content", "summary", "details", "label", "name", "customType", "data", "task", "files", "mode"]
members += ["tokensBefore", "tokensAfter", "shortSummary", "replacement", "model", "injectedRules", "title", "display"]
said_members = [
    "role",
    "content",
    "usage",
    "details",
    "toolCallId",
    "toolName",
    "isError",
    "files",
    "command",
    "output",
]
said_members += ["exitCode", "errorMessage", "stopReason", "summary", "provider", "model", "code"]
roles = st.sampled_from([message["role"] for message in MESSAGES.values()])
messages = st.builds(
    lambda body, role: {**body, "role": role},
    st.dictionaries(st.sampled_from(said_members), wrong | st.lists(st.sampled_from([CALL, IMAGE]), max_size=3)),
    roles,
)
anything = st.builds(
    lambda kind, body, message: {"type": kind, "message": message, **body},
    st.sampled_from([*KINDS, "later"]) | wrong,
    st.dictionaries(st.sampled_from(members), wrong),
    messages,
)


@pytest.mark.promise("P19")
@given(st.lists(anything | strategies.json_objects, max_size=4))
def test_whatever_entries_hold_they_can_be_shown(entries: list[Json]) -> None:
    """No value of any member raises; each entry gives one value, in order, with a headline of one line."""
    shown = list(show_all(entries))
    assert len(shown) == len(entries)
    for each in shown:
        assert each.headline and "\n" not in each.headline
        assert each.depth in DEPTHS
        assert set(map(id, each.at_depth("prompts"))) <= set(map(id, each.at_depth("all"))) == set(map(id, each.parts))


def results(*messages: Json) -> list[Shown]:
    return list(show_all(entry("message", str(n), None, message=message) for n, message in enumerate(messages)))


def test_a_result_knows_its_call() -> None:
    """Its tool, the summary of its call, and the file that it changed."""
    called = {"role": "assistant", "content": [CALL]}
    answer = {"role": "toolResult", "toolCallId": "c1", "content": [{"type": "text", "text": "done"}], "isError": True}
    shown = results(called, answer | {"details": {"diff": "+x"}})[1]
    assert (shown.name, shown.headline, shown.failed, shown.call_id) == ("edit", "a.py · done", True, "c1")
    assert shown.parts == (Output("done", failed=True), Diff("a.py", "+x"))


def test_a_result_without_a_call_is_told_alone() -> None:
    """A command run by the user has no id, so no result answers it."""
    ran = {"role": "bashExecution", "command": "make", "output": ""}
    shown = results(ran, {"role": "toolResult", "content": [{"type": "text", "text": "done"}]})[1]
    assert (shown.name, shown.headline) == ("tool", "done")


def test_an_answer_tells_its_model_and_what_it_spent() -> None:
    """Missing numbers are unknown; a price of 0 for used tokens is unknown, too."""
    usage = {"input": 3, "output": 5, "totalTokens": 8, "cost": {"total": 0}}
    shown = results(assistant("hi") | {"usage": usage})[0]
    assert shown.model == "p/m" and shown.spent is not None
    assert shown.spent == (3, 5, None, None, 8, None)
    priced = results(assistant("hi") | {"usage": usage | {"cost": {"total": 0.5}}})[0]
    assert priced.spent is not None and priced.spent.cost == 0.5
    assert results(assistant("hi"))[0].spent is None


def test_parts_come_in_their_order_and_at_their_depth() -> None:
    """Prompts first, then answers, then tools, then everything."""
    content = [
        {"type": "thinking", "thinking": "", "redacted": True},
        {"type": "text", "text": "Look:"},
        CALL,
        {"type": "new"},
    ]
    answer, prompt = (
        show(entry("message", "a", None, message={"role": "assistant", "content": content})),
        show(said("b", "a")),
    )
    assert answer.parts[0] == Thinking("", hidden=True)
    assert [type(part) for part in answer.at_depth("chat")] == [Text]
    assert [type(part) for part in answer.at_depth("tools")] == [Text, Call]
    assert [type(part) for part in answer.at_depth("all")] == [Thinking, Text, Call, Data]
    assert (answer.depth, prompt.depth) == ("chat", "prompts")
    assert prompt.headline == "b"


@pytest.mark.parametrize(
    ("content", "headline"),
    [
        ([{"type": "text", "text": " \n"}, CALL], "edit a.py"),
        ([{"type": "thinking", "thinking": "hm"}], "hm"),
        ([{"type": "text", "text": "Two\nlines"}, IMAGE], "Two lines [image]"),
        ([], "(message)"),
    ],
)
def test_a_headline_is_what_is_said_or_done_or_thought(content: list[Any], headline: str) -> None:
    """Text comes first, then actions, then thinking; images have a word."""
    assert show(entry("message", "a", None, message={"role": "assistant", "content": content})).headline == headline


def test_an_image_without_data_still_has_its_place() -> None:
    """An image has a word in the headline."""
    shown = show(entry("message", "a", None, message={"role": "user", "content": [{"type": "image"}]}))
    assert isinstance(shown.parts[0], Image)
    assert shown.headline == "[image]"


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (0, "0"),
        (940, "940"),
        (1000, "1.0k"),
        (48_249, "48.2k"),
        (999_949, "999.9k"),
        (999_950, "1.0M"),
        (1_340_000, "1.3M"),
        ("x", "?"),
        (None, "?"),
        (True, "?"),
        (1.5, "?"),
    ],
)
def test_amounts_are_short(tokens: object, words: str) -> None:
    """Thousands and millions have one digit; other values are left as they are."""
    assert amount(tokens) == words


@pytest.mark.parametrize(
    ("name", "arguments", "summary"),
    [
        ("bash", {"command": "ls\n-l"}, "ls -l"),
        ("grep", {"pattern": "x", "path": "src"}, "x in src"),
        ("new", {"n": 1}, '{"n": 1}'),
        ("new", {}, ""),
        ("new", "text", "text"),
        ("new", 5, ""),
        ("bash", {"command": [1], "cmd": "dir"}, "dir"),
        ("shell", {"command": ["ls", "-l"]}, "ls -l"),
    ],
)
def test_calls_are_summed_up_on_one_line(name: str, arguments: object, summary: str) -> None:
    """The line has the most informative argument, or all of them."""
    assert call_summary(name, arguments) == summary


def test_values_nested_too_deeply_are_said_to_be() -> None:
    """It must not raise."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert as_json(deep) == "(nested too deeply to be shown)"
    assert as_json({"a": float("inf"), "b": "\ud800"}) == '{"a": Infinity, "b": "\ud800"}'


def test_a_time_that_is_none_is_unknown() -> None:
    """It is not shown as 1970."""
    assert show({"type": "label", "timestamp": "yesterday"}).at is None
    assert show({"type": "label", "timestamp": AT}).at == AT_MS
