"""Estimates of messages, sizes of contexts, and the ledger of calls."""

from __future__ import annotations

import pytest
from hypothesis import given

from builders import AT, AT_MS, Json, assistant, entry, user
from sessile.core.tokens import Snapshot, context_tokens, estimate, estimate_closely, reported, total
from sessile.core.usage import NAMES, Call, Usage, ledger, usage_of
from strategies import json_objects

pytestmark = pytest.mark.mission("Y7")

IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
USED = {"input": 90, "output": 10, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 100}


def text(value: str) -> Json:
    return {"type": "text", "text": value}


def answer(usage: Json | None = None, stop: str = "stop", **members: object) -> Json:
    used = {} if usage is None else {"usage": usage}
    return {**assistant("hello"), "stopReason": stop, **used, **members}


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        ({"role": "user", "content": "abcde"}, 2),
        ({"role": "user", "content": "🙂🙂🙂"}, 2),
        ({"role": "user", "content": ""}, 0),
        ({"role": "user", "content": None}, 0),
        ({"role": "user", "content": [text("abc"), IMAGE, IMAGE]}, 2401),
        ({"role": "custom", "content": [text("a"), IMAGE]}, 1201),
        ({"role": "toolResult", "content": [text("abcdefgh"), IMAGE]}, 1202),
        ({"role": "assistant", "content": [text("abcd"), {"type": "thinking", "thinking": "abcd"}]}, 2),
        ({"role": "assistant", "content": [{"type": "toolCall", "name": "read", "arguments": {"a": "é"}}]}, 4),
        ({"role": "assistant", "content": [{"type": "toolCall", "name": "read"}]}, 1),
        ({"role": "assistant", "content": [IMAGE]}, 0),
        ({"role": "bashExecution", "command": "ls -l", "output": "abcd"}, 3),
        ({"role": "branchSummary", "summary": "abcdefgh"}, 2),
        ({"role": "compactionSummary", "summary": "abcdefghi"}, 3),
        ({"role": "system", "content": "abcd", "sections": {"name": "efgh", "gone": None}, "toolsAdded": ["ijkl"]}, 4),
        ({"role": "fileMention", "files": [{"path": "a", "content": "b" * 100}]}, 0),
        ({"role": "pythonExecution", "code": "1+1", "output": "2"}, 0),
        ({"role": "unheard-of", "content": "abcd"}, 0),
        ({}, 0),
    ],
)
def test_a_message_takes_a_quarter_of_its_characters(message: Json, tokens: int) -> None:
    """The documented estimate, role by role."""
    assert estimate(message) == tokens


def test_chinese_and_code_take_more_than_a_quarter() -> None:
    """The closer estimate handles scripts without spaces, symbols and indentation."""
    assert estimate_closely(user("会话树追加日志")) == 7
    assert estimate_closely(user("あいう 한국어")) == 6
    assert estimate(user("会话树追加日志")) == 2
    code = "if (a[i] !== b[j]) {\n        return x;\n    }"
    assert estimate_closely(user(code)) > estimate(user(code))


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        ("", 0),
        ("word", 1),
        ("several words here", 2 + 1 + 1),
        ("1234567", 3),
        ("a == b", 3),
        ("\n        x", 2),
        ("a b  c", 4),
        ("Привет", 2),
        ("🙂", 2),
        ("𠮷", 1),
    ],
)
def test_the_closer_estimate_follows_its_table(said: str, tokens: int) -> None:
    """Each row of the table has a case."""
    assert estimate_closely(user(said)) == tokens


def test_the_closer_estimate_counts_every_role() -> None:
    """Roles that the documented estimate counts as 0 are counted, too."""
    assert estimate_closely({"role": "pythonExecution", "code": "one", "output": "two"}) == 2
    assert estimate_closely({"role": "fileMention", "files": [{"path": "a", "content": "b", "image": IMAGE}]}) == 1202
    assert estimate_closely({"role": "developer", "content": "one two"}) == 2
    assert estimate_closely({"role": "user", "content": [IMAGE]}) == 1200


@given(json_objects)
def test_whatever_a_message_holds_it_can_be_counted(odd: Json) -> None:
    """Invalid members never raise."""
    for role in ("user", "assistant", "system", "bashExecution", "fileMention"):
        for message in ({**odd, "role": role}, {"role": role, "content": [odd], "files": [odd], "usage": odd}):
            assert estimate(message) >= 0
            assert estimate_closely(message) >= 0
            assert reported(message) is None or role == "assistant"


def test_the_provider_is_believed_and_what_came_after_is_estimated() -> None:
    """The last usable answer counts."""
    messages = [user("x" * 400), answer(USED), user("12345678")]
    assert context_tokens(messages, ["a", "b", "c"]) == Snapshot(102, "provider", "b")
    assert context_tokens(messages) == Snapshot(102, "provider", None)


@pytest.mark.parametrize(
    "useless",
    [
        answer(USED, "aborted"),
        answer(USED, "error"),
        answer(dict.fromkeys(USED, 0)),
        answer(None),
        answer({"input": None, "totalTokens": "many"}),
        {**answer(USED), "role": "user"},
    ],
)
def test_an_answer_that_cannot_know_is_not_asked(useless: Json) -> None:
    """After a failed, aborted, all-zero or missing report the one before counts, else everything is estimated."""
    assert context_tokens([answer(USED), useless], ["a", "b"]).at == "a"
    assert context_tokens([user("1234"), useless]) == Snapshot(1 + estimate(useless), "estimate")


def test_without_a_total_the_parts_are_added() -> None:
    """A total of 0 counts as missing."""
    parts = {"input": 1, "output": 2, "cacheRead": 3, "cacheWrite": 4}
    assert context_tokens([answer(parts)]).tokens == 10
    assert context_tokens([answer({**parts, "totalTokens": 0})]).tokens == 10
    assert context_tokens([answer({**parts, "totalTokens": 7})]).tokens == 7


def test_an_answer_from_before_the_compaction_is_out_of_date() -> None:
    """It reports the size before the context shrank."""
    summary = {"role": "compactionSummary", "summary": "x" * 40, "timestamp": AT_MS}
    kept = answer(USED, timestamp=AT_MS - 1)
    later = answer(USED, timestamp=AT_MS + 1)
    assert context_tokens([summary, kept, user("1234")]) == Snapshot(10 + 2 + 1, "estimate")
    assert context_tokens([summary, kept, later], ["a", "b", "c"]) == Snapshot(100, "provider", "c")
    at_once = answer(USED, timestamp=AT_MS)
    assert context_tokens([summary, at_once]).source == "estimate"
    assert context_tokens([summary, answer(USED)]).source == "estimate"  # its time is unknown


def test_an_empty_context_takes_nothing() -> None:
    """Its size is 0."""
    assert context_tokens([]) == Snapshot(0, "estimate")
    assert total([]) == 0


def test_another_counter_can_stand_in() -> None:
    """Any function that takes a message and returns a number."""
    assert context_tokens([user("a"), user("b")], counter=lambda message: 7).tokens == 14
    assert total([user("1234"), user("12345678")]) == 3


@pytest.mark.parametrize("name", NAMES)
def test_usage_is_understood_under_all_its_names(name: str) -> None:
    """The names of every agent are known."""
    for alias in NAMES[name]:
        assert usage_of({alias: 5}) == Usage(**{name: 5})


@pytest.mark.parametrize("value", [None, "5", -1, True, float("nan"), float("inf"), 2**60, [5]])
def test_what_cannot_be_a_number_of_tokens_is_unknown(value: object) -> None:
    """An invalid number is never 0."""
    assert usage_of({"input": value}) == Usage()
    assert usage_of({"input": value, "input_tokens": 3}) == Usage(input=3)


def test_no_usage_is_none() -> None:
    """A missing usage is not an empty one."""
    assert usage_of(None) is None
    assert usage_of(5) is None
    assert Usage().context is None


def test_the_ledger_has_a_line_for_every_call() -> None:
    """Answers, failed ones, side calls and summaries, but not user messages and settings."""
    entries = [
        entry("message", "a", None, message=user("hi")),
        entry("message", "b", "a", message=answer({**USED, "cost": {"total": 0.5}}, "error")),
        entry("message", "c", "b", message=answer(None)),
        entry("message", "d", "c", message={"role": "toolResult", "usage": {"input": 3}, "content": []}),
        {**entry("usage", "e", "d", provider="p", model="small", usage={"output": 4}), "kind": "title"},
        entry("model_usage", "f", "e", purpose="commit", provider="p", model="small", usage={"output": 5}),
        entry("compaction", "g", "f", summary="s", usage={"input": 6}),
        entry("branch_summary", "h", "g", summary="s"),
        entry("label", "i", "h", targetId="a", label="x"),
    ]
    known = Usage(input=90, output=10, cache_read=0, cache_write=0, total=100)
    assert list(ledger(entries)) == [
        Call("b", "answer", "p/m", known, 0.5, AT),
        Call("c", "answer", "p/m", Usage(), None, AT),
        Call("d", "tool", None, Usage(input=3), None, AT),
        Call("e", "title", "p/small", Usage(output=4), None, AT),
        Call("f", "commit", "p/small", Usage(output=5), None, AT),
        Call("g", "compaction", None, Usage(input=6), None, AT),
    ]


def test_a_price_of_nothing_for_something_is_no_price() -> None:
    """Agents of the pi family write 0 for a model without a price."""
    costs = {"cost": {"total": 0}}
    paid, free = (answer({**used, **costs}) for used in (USED, dict.fromkeys(USED, 0)))
    calls = ledger([entry("message", "a", None, message=paid), entry("message", "b", "a", message=free)])
    assert [call.cost for call in calls] == [None, 0]
