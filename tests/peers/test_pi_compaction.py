"""pi 0.87.1 and Sessile count tokens, cut and prepare compactions alike.

Sessile differs on purpose in the following (docs/decisions/0010-compaction-differs-from-pi.md), and nowhere else:

1. A cut never separates a tool call from its result. pi cuts before a message between them.
2. The message at the cut decides whether a turn is split. pi looks at the metadata that it pulled in before it, and
   then treats a whole turn as the start of a split one. The summarized entries are the same.
3. An input whose answer was removed is dropped only if it exceeds the budget by itself. pi always drops it.
4. Entries excluded from the context (`excludeFromContext`) have no message. pi counts them and may cut before them.
5. Instructions (`system`) are summarized as other messages are. pi handles them separately.
6. If everything fits, nothing is done. pi summarizes what comes before the first possible cut.
7. In an abandoned branch, messages are as the model saw them (edited; none for an empty summary), and files are also
   collected from entries that did not fit.
8. Images are mentioned in the text for the summarizer.
9. Small windows: the reserve takes at most half of the window, and the kept part at most half of the rest.
10. Roles that pi does not know start turns and allow a cut before them.
11. An opaque history, which only its provider can read, is not carried over; its entries are summarized again.
12. Content with a shape that pi does not write is counted as far as possible.

The last four are about files that pi does not write; unit tests cover them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from random import Random
from typing import Any

import pytest

import sessile
from builders import Json
from compacting import (
    THOUGHT,
    Conversations,
    Step,
    answered,
    chained,
    compacted,
    edited,
    instructed,
    prepared,
    ran,
    result,
    said,
    steps_of,
)
from peers.peers import PI_87, Peer
from peers.samples import assistant, bash, tool_call, tool_result, user
from sessile.core.compaction import CompactionSettings, Preparation, account, is_due
from sessile.core.summaries import Files, as_text, navigation, prepare_branch
from sessile.core.tokens import context_tokens, estimate

pytestmark = [pytest.mark.peers, pytest.mark.mission("Y9")]

SESSIONS = 400
BUDGETS = (0, 1, 5, 20, 60, 150, 10_000)
TEXTS = (
    "",
    "a",
    "plain text",
    "naïve 测试 🙂",
    'quotes " and \\ and \t',
    "a\nb\r\nc",
    "\u2028\u0000\x7f",
    "half \udc00",
)


@pytest.fixture(scope="module")
def pi() -> Iterator[Peer]:
    """Run pi 0.87.1."""
    with Peer(PI_87) as running:
        yield running


def ours(preparation: Preparation[Step] | None) -> dict[str, Any] | None:
    """Return the parts of our preparation that pi's has too."""
    if preparation is None:
        return None
    return {
        "firstKeptEntryId": preparation.first_kept_id,
        "summed up": [*preparation.history(), *preparation.turn_prefix()],
        "turn prefix": list(preparation.turn_prefix()),
        "tokensBefore": preparation.tokens_before.tokens,
        "previousSummary": preparation.previous_summary,
    }


def theirs(pi: Peer, path: list[Json], keep: int) -> dict[str, Any] | None:
    """Return pi's preparation."""
    settings = {"enabled": True, "reserveTokens": 16_384, "keepRecentTokens": keep}
    answer = pi.compaction("prepareCompaction", path, settings)
    if answer is None:
        return None
    return {
        "firstKeptEntryId": answer["firstKeptEntryId"],
        "summed up": answer["messagesToSummarize"] + answer["turnPrefixMessages"],
        "turn prefix": answer["turnPrefixMessages"],
        "tokensBefore": answer["tokensBefore"],
        "previousSummary": answer.get("previousSummary"),
    }


def test_roles_count_alike(pi: Peer) -> None:
    """Each role that pi knows has the documented estimate."""
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    blocks = [{"type": "text", "text": text} for text in TEXTS]
    messages: list[Json] = [
        *(user(text) for text in TEXTS),
        user([*blocks, image, image]),
        *(assistant(text) for text in TEXTS),
        tool_call("c1"),
        tool_result("c1"),
        bash("ls -l"),
        {"role": "custom", "customType": "x", "content": "看看", "display": True},
        {"role": "custom", "customType": "x", "content": [*blocks, image], "display": False},
        {"role": "branchSummary", "summary": "naïve 🙂", "fromId": "x"},
        {"role": "compactionSummary", "summary": "naïve 🙂", "tokensBefore": 9},
        {"role": "system", "content": "be kind", "sections": {"a": "hello", "b": None}, "toolsAdded": [{"name": "x"}]},
        {"role": "system", "content": "", "toolsAdded": [], "toolsRemoved": ["abcdefgh"]},
        {"role": "pythonExecution", "code": "1", "output": "2"},
        {"role": "fileMention", "files": [{"path": "a", "content": "b"}]},
        {"role": "developer", "content": "x"},
        {"role": "unheard-of", "content": "x"},
    ]
    assert [estimate(message) for message in messages] == [pi.compaction("estimateTokens", m) for m in messages]


def test_arguments_count_as_javascript_writes_them(pi: Peer) -> None:
    """Arguments contain numbers, escapes and lone surrogates."""
    for arguments in ({"a": 1.0, "b": 1e20, "c": 0.1}, {"é🙂": "\u2028\ud800", "n": None}, {"x": [[], {}, "\x7f\x00"]}):
        message = assistant([{"type": "toolCall", "id": "c", "name": "näme", "arguments": arguments}])
        assert estimate(message) == pi.compaction("estimateTokens", message)


@pytest.mark.mission("Y7")
@pytest.mark.parametrize("seed", range(40))
def test_contexts_count_alike(pi: Peer, seed: int) -> None:
    """The usage of the last valid answer counts, and later messages are estimated."""
    path = Conversations(Random(seed)).grow(5)
    messages = [entry["message"] for entry in path if entry["type"] == "message"]
    answer = pi.compaction("estimateContextTokens", messages)
    found = context_tokens(messages)
    assert found.tokens == answer["tokens"]
    assert (found.source == "provider") is (answer["lastUsageIndex"] is not None)


def test_the_trigger_is_the_same(pi: Peer) -> None:
    """Compaction starts above the window minus the reserve, not at exactly that size."""
    settings = {"enabled": True, "reserveTokens": 16_384, "keepRecentTokens": 20_000}
    same = CompactionSettings(reserve_tokens_floor=0)
    for tokens in (0, 183_615, 183_616, 183_617, 200_000, 300_000):
        assert is_due(tokens, 200_000, same) is pi.compaction("shouldCompact", tokens, 200_000, settings)


@pytest.mark.parametrize("seed", range(SESSIONS))
def test_preparations_are_alike(pi: Peer, seed: int) -> None:
    """Random sessions with several compactions are prepared with every budget."""
    random = Random(seed)
    conversation = Conversations(random)
    path = list(conversation.grow(random.randrange(1, 8)))
    for _ in range(random.randrange(1, 4)):
        for keep in BUDGETS:
            assert_alike(pi, path, keep)
        found = prepared(path, random.choice(BUDGETS))
        if found is not None:
            conversation.add(compacted(found.first_kept_id, random.choice((1, 7))))
        path = list(conversation.grow(random.randrange(0, 4)))


def assert_alike(pi: Peer, path: list[Json], keep: int) -> None:
    """Assert that both prepare the same, except for the differences in the module docstring."""
    preparation = prepared(path, keep)
    mine, other = ours(preparation), theirs(pi, path, keep)
    if preparation is None or mine is None or other is None:
        assert mine == other
        return
    if mine["firstKeptEntryId"] != other["firstKeptEntryId"]:  # exception 3
        assert [*mine["summed up"], *preparation.kept()] == other["summed up"]
        (kept,) = preparation.kept()
        assert estimate(kept) < keep
        return
    if mine["turn prefix"] != other["turn prefix"]:  # exception 2
        assert dict(account(steps_of(path), preparation))[preparation.first_kept_id] in ("silent", "removed")
        assert mine["turn prefix"] == other["turn prefix"][len(other["turn prefix"]) - len(mine["turn prefix"]) :]
    assert {**mine, "turn prefix": None} == {**other, "turn prefix": None}


def test_a_message_between_a_call_and_its_result_is_no_place_to_cut(pi: Peer) -> None:
    """Exception 1: pi keeps a result whose call is dropped, which providers refuse."""
    path = chained(said(10), answered(10, "c"), said(20), result(20, "c"), answered(10))
    other, mine = theirs(pi, path, 45), ours(prepared(path, 45))
    assert other is not None and other["firstKeptEntryId"] == "e2"
    assert mine is not None and mine["firstKeptEntryId"] == "e4"


def test_metadata_splits_no_turn(pi: Peer) -> None:
    """Exception 2: pi treats the whole turn before a change of settings as the start of a split one."""
    path = chained(said(10), answered(10), THOUGHT, said(20), answered(10))
    other, mine = theirs(pi, path, 15), ours(prepared(path, 15))
    assert other is not None and mine is not None
    assert other["firstKeptEntryId"] == mine["firstKeptEntryId"] == "e2"
    assert other["summed up"] == mine["summed up"] == other["turn prefix"]
    assert mine["turn prefix"] == []


def test_an_input_that_fits_stays(pi: Peer) -> None:
    """Exception 3: pi drops the user's last message, although there is room for it."""
    path = chained(said(10), answered(11, "c"), result(100, "c"), said(5), answered(3), edited("e4", None))
    other, mine = theirs(pi, path, 15), ours(prepared(path, 15))
    assert other is not None and other["firstKeptEntryId"] == "e4"
    assert mine is not None and mine["firstKeptEntryId"] == "e3"


def test_what_the_user_kept_from_the_model_is_no_place_to_cut(pi: Peer) -> None:
    """Exception 4: pi counts a command that the model never sees."""
    path = chained(said(10), answered(10), ran(20, excludeFromContext=True), answered(10))
    other, mine = theirs(pi, path, 15), ours(prepared(path, 15))
    assert other is not None and other["firstKeptEntryId"] == "e2"
    assert mine is not None and mine["firstKeptEntryId"] == "e1"


def test_instructions_are_not_summed_up(pi: Peer) -> None:
    """The summarizer does not see them: the compaction carries them on."""
    path = chained(said(10), answered(11), instructed(5), said(12), answered(13))
    other, mine = theirs(pi, path, 20), ours(prepared(path, 20))
    assert other is not None and mine is not None
    assert mine["firstKeptEntryId"] == other["firstKeptEntryId"] == "e3"
    assert mine["summed up"] == other["summed up"]


def test_what_fits_is_left_alone(pi: Peer) -> None:
    """Exception 6: pi summarizes a stray result, although there is room for everything."""
    path = chained(result(1, "nobody"), said(10), answered(10))
    assert theirs(pi, path, 1000) is not None
    assert prepared(path, 1000) is None


def test_texts_are_alike(pi: Peer) -> None:
    """Labels, calls and truncated results are the same in the text for the summarizer."""
    long = "é" * 1999 + "ab" * 10
    messages: list[Json] = [
        user("hi"),
        user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        assistant(
            [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
        ),
        tool_call("c1"),
        assistant([{"type": "toolCall", "id": "d", "name": "ls", "arguments": {}}]),
        {
            "role": "toolResult",
            "toolCallId": "d",
            "content": [{"type": "text", "text": long}, {"type": "text", "text": "q"}],
        },
        {"role": "toolResult", "toolCallId": "d", "content": []},
        user(""),
        assistant([]),
    ]
    assert as_text(messages) == pi.compaction("serializeConversation", messages)


def test_file_lists_are_alike(pi: Peer) -> None:
    """Files come from the summarized calls, and from the previous compaction unless an extension made it."""
    calls = [
        ("read", "b"),
        ("read", "a"),
        ("edit", "a"),
        ("write", "é"),
        ("write", "Z"),
        ("read", "🙂"),
        ("read", "\uffff"),
    ]
    blocks = [{"type": "toolCall", "id": "c", "name": name, "arguments": {"path": path}} for name, path in calls]
    files = Files()
    files.add_message(assistant(blocks))
    made = {"read": [path for name, path in calls if name == "read"], "written": ["é", "Z"], "edited": ["a"]}
    lists = files.lists()
    for members in ({}, {"fromHook": True}):
        details = {"readFiles": ["old", "a"], "modifiedFiles": ["b"]}
        path = chained(
            said(1),
            said(2),
            compacted("e1", details=details, **members),
            {"type": "message", "message": assistant(blocks)},
            said(30),
            answered(30),
        )
        preparation = prepared(path, 20)
        other = pi.compaction("prepareCompaction", path, {"keepRecentTokens": 20, "reserveTokens": 1})["fileOps"]
        assert preparation is not None
        found = preparation.files()
        assert set(found.modified) == {*other["written"], *other["edited"]}
        assert set(found.read) == set(other["read"]) - set(found.modified)
    assert set(lists.read) == set(made["read"]) - set(lists.modified)
    assert lists.blocks() == pi.compaction("formatFileOperations", list(lists.read), list(lists.modified))


@pytest.mark.parametrize("seed", range(60))
def test_branches_are_prepared_alike(pi: Peer, seed: int) -> None:
    """Entries are taken newest first within the budget; edits, which pi ignores, are left out (exception 7)."""
    random = Random(seed)
    path = [entry for entry in Conversations(random).grow(4) if entry["type"] != "context_edit"]
    if random.random() < 0.5:
        path.insert(len(path) // 2, chained(compacted("e0", 30), start=500)[0])
    for budget in (0, 1, 20, 50, 100, 1000):
        found = prepare_branch(reversed(path), budget or None)
        other = pi.compaction("prepareBranchEntries", path, budget)
        assert list(found.messages) == [message for message in other["messages"] if message.get("summary") != ""]
        assert found.tokens == other["totalTokens"]


def test_leaving_a_branch_abandons_the_same_entries(store: sessile.Store, pi: Peer) -> None:
    """They reach from the old leaf to the deepest common entry of both paths."""
    with closing(store.create(cwd="/work/app")) as session:
        a, b, c = (session.append_message(message).id for message in (user("a"), assistant("b"), user("c")))
        d = session.append_message(assistant("d")).id
        session.branch(b)
        e = session.append_message(user("e")).id
        f = session.append_message(assistant("f")).id
        for old in (a, b, d, f):
            for new in (a, b, c, d, e, f):
                if old == new:
                    continue
                paths = [[entry.id for entry in session.get_branch(leaf)] for leaf in (old, new)]
                target = session.get_entry(new)
                assert target is not None
                found = navigation(paths[0], target.body, paths[1])
                assert (list(found.abandoned), found.common_ancestor) == pi.abandoned(session.path, old, new)
