"""The digest: counts of a session line by line, and usage by time."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import AT, AT_MS, Json, assistant, entry, said
from sessile.core.codec import decode, encode_plain
from sessile.core.digest import Digest
from sessile.core.kinds import LEAF_MARKER
from sessile.core.usage import QUARTER, UNDATED, Spending, Spent, Used, decode_spending, identity_of
from strategies import json_objects, json_values

NOW = str(AT_MS // QUARTER)
USAGE = {"input": 10, "output": 5, "cacheRead": 2, "cacheWrite": 1, "totalTokens": 18, "cost": {"total": 0.25}}


def digest_of(*records: Json) -> Digest:
    digest = Digest()
    for record in records:
        digest.add(record)
    return digest


def answer(usage: Any = None, *tools: str, at: Any = AT, **members: Any) -> Json:
    """Return an answer that calls some tools."""
    message = assistant("hm", "anthropic", "opus") | {"usage": usage} | members
    message["content"] += [{"type": "toolCall", "id": "c", "name": tool, "arguments": {}} for tool in tools]
    return entry("message", "a1", None, message=message) | {"timestamp": at}


def result(**members: Any) -> Json:
    return entry("message", "r1", None, message={"role": "toolResult", "content": [], **members})


def spending_of(*records: Json) -> Spending:
    """Return what the records used, without the identities of answers and failures."""
    spending = digest_of(*records).spending
    for quarters in spending.answers.values():
        for spent in quarters.values():
            spent.each = []
    for used in (used for quarters in spending.tools.values() for used in quarters.values()):
        used.failed = []
    return spending


# -- what was used


def test_what_answers_used_is_counted_by_model_and_quarter_hour() -> None:
    """Each has its own cell, with the number of calls."""
    later = "2026-02-16T10:30:00.000Z"
    spent = spending_of(answer(USAGE), answer(USAGE, "read"), answer(USAGE, at=later), answer(USAGE, model="haiku"))
    assert spent.answers == {
        "anthropic/opus": {
            NOW: Spent(2, 1, 20, 10, 4, 2, 36, 0.5, 0),
            str(int(NOW) + 1): Spent(1, 0, 10, 5, 2, 1, 18, 0.25, 0),
        },
        "anthropic/haiku": {NOW: Spent(1, 0, 10, 5, 2, 1, 18, 0.25, 0)},
    }


def test_what_an_answer_does_not_tell_is_unknown() -> None:
    """Missing tokens and costs are unknown, not zero, until one answer reports them."""
    assert spending_of(answer()).total() == Spent(answers=1, unpriced=1)
    assert spending_of(answer({"input": 3})).total() == Spent(answers=1, input=3, unpriced=1)
    assert spending_of(answer(), answer(USAGE)).total() == Spent(2, 0, 10, 5, 2, 1, 18, 0.25, 1)
    nothing_used = {"input": 0, "cost": {"total": 0}}
    assert spending_of(answer(nothing_used)).total() == Spent(answers=1, input=0, cost=0)
    assert spending_of(answer(USAGE | {"cost": {"total": 0}})).total().cost is None


@pytest.mark.parametrize("number", [True, -1, "7", None, [], 2**60, 1e300, {"total": 1}])
def test_what_is_no_amount_is_unknown(number: Any) -> None:
    """Impossible numbers of tokens and costs are ignored."""
    assert spending_of(answer({"input": number, "cost": {"total": number}})).total() == Spent(answers=1, unpriced=1)


def test_an_answer_without_a_model_is_counted() -> None:
    """It counts in the total, but not among the models."""
    nameless = entry("message", "a1", None, message={"role": "assistant", "content": [], "usage": USAGE})
    counts = digest_of(nameless, answer()).counts()
    assert (counts.models, counts.total_tokens, counts.unpriced) == ({"anthropic/opus": 1}, 18, 1)
    assert list(spending_of(nameless).answers) == [""]


@pytest.mark.parametrize(
    ("of_entry", "of_message", "quarter"),
    [
        (AT, 0, NOW),
        ("2026-02-16T11:20:30+01:00", None, NOW),
        ("2026-02-16T10:29:59.999Z", None, NOW),
        ("2026-02-16T10:30:00.000Z", None, str(int(NOW) + 1)),
        (None, AT_MS, NOW),
        ("some day", AT_MS + 0.5, NOW),
        ("2026-99-99T10:20:30.000Z", AT_MS, NOW),
        (7, "2026-02-16T10:20:30.000Z", UNDATED),
        (None, None, UNDATED),
        (None, True, UNDATED),
        (None, -1, UNDATED),
        (None, 1e300, UNDATED),
        (None, float("nan"), UNDATED),
        ("1969-12-31T23:59:59.000Z", None, UNDATED),
        ("9999-12-31T23:59:59.000Z", None, UNDATED),
        ("1970-01-01T00:00:00.000Z", AT_MS, "0"),
    ],
)
def test_the_time_is_that_of_the_entry_else_that_of_the_message(of_entry: Any, of_message: Any, quarter: str) -> None:
    """Invalid times are ignored; without any the answer is undated."""
    assert list(spending_of(answer(at=of_entry, timestamp=of_message)).answers["anthropic/opus"]) == [quarter]


@pytest.mark.promise("P17")
@pytest.mark.parametrize("kind", [[], {}, None, 5, ["sessile.leaf"]])
def test_a_custom_entry_of_no_type_is_counted(kind: Any) -> None:
    """Only markers are not counted."""
    assert digest_of(entry("custom", "a", None, customType=kind)).entries == 1
    assert digest_of(entry("custom", "a", None, customType=LEAF_MARKER)).entries == 0


def test_tools_are_counted_by_name() -> None:
    """Calls at the answer, failures at the result; tools without a name too."""
    nameless = answer()
    nameless["message"]["content"] += [{"type": "toolCall"}, "no block", {"type": "text", "name": "read"}]
    records = (
        answer(None, "read", "read", "bash", at="2026-02-16T10:14:00.000Z"),
        nameless,
        result(toolName="read", isError=True),
        result(toolName="bash", isError=False),
        result(toolName="bash", isError="yes"),
        result(isError=True),
    )
    digest = digest_of(*records)
    before = str(int(NOW) - 1)
    assert spending_of(*records).tools == {
        "read": {before: Used(2, 0), NOW: Used(0, 1)},
        "bash": {before: Used(1, 0)},
        "": {NOW: Used(1, 1)},
    }
    assert (digest.counts().tool_calls, digest.counts().tool_failures) == (4, 2)


@pytest.mark.mission("N6")
@pytest.mark.parametrize("name", ["", None, 3])
def test_a_failure_has_the_name_of_its_call(name: object) -> None:
    """A result that does not name its tool, as those of Claude Code and Codex, has the name of the call that it answers."""
    failed = result(toolCallId="c", toolName=name, isError=True)
    assert spending_of(answer(None, "Bash"), failed).tools == {"Bash": {NOW: Used(1, 1)}}


@pytest.mark.mission("N6")
def test_rows_of_one_answer_are_one_answer() -> None:
    """Rows with one response id count once, with the largest numbers, also if a row of another answer is between."""
    partial = USAGE | {"output": 1, "totalTokens": 14, "cost": None}
    rows = (
        answer(partial, "read", responseId="msg_0123456789_one"),
        answer(USAGE, responseId="msg_0123456789_two"),
        answer(USAGE, "bash", responseId="msg_0123456789_one"),
        answer(None, responseId="msg_0123456789_one"),
    )
    assert spending_of(*rows).total() == Spent(2, 2, 20, 10, 4, 2, 36, 0.5, 0)


@pytest.mark.mission("N6")
def test_a_text_that_a_program_inserted_is_not_an_answer() -> None:
    """Placeholders for a model are neither models nor answers, and need no price."""
    spending = spending_of(answer(USAGE), answer(model="<synthetic>"), answer({"input": 0}, stopReason="injected"))
    assert spending.models() == {"anthropic/opus": 1}
    assert spending.total().unpriced == 0


@pytest.mark.mission("N6")
def test_a_model_in_the_table_has_a_price() -> None:
    """The cost is the stored one, else that of the price table; a model that is not in it is unpriced, not free."""
    tokens = {"input": 1_000_000, "output": 0, "totalTokens": 1_000_000}
    assert spending_of(answer(tokens, model="claude-opus-4-1")).total().cost == 15
    assert spending_of(answer(tokens | {"cost": {"total": 2}}, model="claude-opus-4-1")).total().cost == 2
    unknown = spending_of(answer(tokens, model="claude-not-yet-known")).total()
    assert (unknown.cost, unknown.unpriced) == (None, 1)


def test_what_a_user_runs_is_counted_apart() -> None:
    """It fails with an exit code; a cancelled run has none."""
    codes: list[Json] = [{"exitCode": 0}, {"exitCode": 2}, {"cancelled": True}, {"exitCode": None}]
    runs = [entry("message", "x", None, message={"role": "bashExecution", "command": "ls", **code}) for code in codes]
    python = entry("message", "x", None, message={"role": "pythonExecution", "code": "1", "exitCode": -9})
    digest = digest_of(*runs, python)
    assert digest.spending.shell == {"bash": {NOW: Used(4, 1)}, "python": {NOW: Used(1, 1)}}
    assert (digest.counts().tool_calls, digest.counts().tool_failures) == (0, 0)


# -- going on


messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["assistant", "toolResult", "bashExecution", "user", "x"])},
    optional={
        "content": json_values | st.lists(json_objects | st.just({"type": "toolCall", "name": "\ud800"}), max_size=3),
        "provider": json_values,
        "model": st.sampled_from(["a", "b", "\udfff", ""]) | json_values,
        "usage": json_values | st.just(USAGE) | st.fixed_dictionaries({"input": st.floats(), "cost": json_objects}),
        "timestamp": json_values | st.floats(),
        "toolName": json_values,
        "isError": json_values,
        "exitCode": json_values,
    },
)
records = st.builds(
    lambda message, at: entry("message", "e", None, message=message) | {"timestamp": at},
    messages | json_values,
    st.just(AT) | json_values,
)


@given(st.lists(records, max_size=8), st.integers(0, 8))
def test_counting_goes_on_where_it_was_left(entries: list[Json], cut: int) -> None:
    """A digest that was stored and resumed returns the same counts."""
    whole = digest_of(*entries)
    state = encode_plain(msgspec.to_builtins(digest_of(*entries[:cut])))
    digest = msgspec.convert(decode(state), Digest)
    for record in entries[cut:]:
        digest.add(record)
    assert digest.counts() == whole.counts()
    assert digest.spending == whole.spending
    raw = whole.spending.encode()
    assert (Spending() if raw is None else decode_spending(raw)) == whole.spending


def test_nothing_used_is_nothing_to_store() -> None:
    """A session without answers has no spending."""
    assert digest_of(said("u1", None)).spending.encode() is None


# -- branches


def test_what_hangs_from_a_marker_hangs_from_what_it_marks() -> None:
    """A leaf marker is not a head."""
    digest = Digest()
    for record in (
        said("u1", None),
        said("u2", "u1"),
        entry("custom", "m1", "u1", customType=LEAF_MARKER),
        entry("custom", "m2", "m1", customType=LEAF_MARKER),
        said("u3", "m2"),
    ):
        digest.add(record)
    assert list(digest.heads) == ["u2", "u3"]
    assert digest.counts().entries == 3


@pytest.mark.mission("N6")
def test_usage_that_comes_after_an_answer_belongs_to_it() -> None:
    """A row beside the conversation with the usage of a response completes its answer, or is one without content."""
    named = {"provider": "anthropic", "model": "opus", "usage": USAGE, "timestamp": AT}
    after = {"type": "usage", "responseId": "msg_0123456789_one", **named}
    rows = (answer(None, "read", responseId="msg_0123456789_one"), after, after)
    assert spending_of(*rows).total() == Spent(1, 1, 10, 5, 2, 1, 18, 0.25, 0)
    assert spending_of(after | {"responseId": "msg_0123456789_two"}).total() == Spent(1, 0, 10, 5, 2, 1, 18, 0.25, 0)


def test_different_answers_have_different_identities() -> None:
    """Ids of one length do not collide: an answer with the identity of another would be taken for its copy."""
    chance = random.Random(7)
    names = {f"msg_{chance.getrandbits(96):024x}" for _ in range(200_000)}
    identities = {identity_of({}, {"responseId": name}) for name in names}
    assert len(identities) == len(names)
    assert max(identities) < 2**53


def test_a_whole_number_of_dollars_is_stored_as_other_costs() -> None:
    """A digest that was saved in between stores the same bytes as one that was not."""
    digest = digest_of(answer({"input": 3, "cost": {"total": 1}}))
    saved = msgspec.convert(decode(encode_plain(msgspec.to_builtins(digest))), Digest)
    assert saved.spending.encode() == digest.spending.encode()
