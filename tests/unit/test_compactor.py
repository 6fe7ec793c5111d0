"""Compacting sessions: the appended entry, rejected summaries, and an unchanged history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sessile import Session
from sessile.core.compaction import CompactionSettings
from sessile.core.summaries import EXTRACTED, Summary, SummaryRequest
from sessile.core.usage import ledger
from sessile.errors import HookFailed, LeafMoved, SummarizerFailed
from sessile.upkeep.compactor import Compactor
from sessile.upkeep.hooks import Hooks

pytestmark = pytest.mark.mission("Y9")

SMALL = CompactionSettings(reserve_tokens=100, keep_recent_tokens=300, reserve_tokens_floor=0)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str, **members: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": "stop", **members}


@pytest.fixture
def session() -> Iterator[Session]:
    with Session.in_memory("/work") as made:
        for number in range(20):
            made.append_message(user(f"request {number} " + "x" * 300))
            made.append_message(answer(f"answer {number} " + "y" * 300))
        yield made


class Told:
    """A summarizer that returns the given answers and records its requests."""

    def __init__(self, *answers: Summary | Exception | str) -> None:
        self.asked: list[SummaryRequest] = []
        self._answers = list(answers)

    def __call__(self, request: SummaryRequest) -> Summary:
        self.asked.append(request)
        if request.purpose == "short":
            return Summary("in short")
        told = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(told, Exception):
            raise told
        return Summary(told) if isinstance(told, str) else told


def compactor(session: Session, *answers: Summary | Exception | str, **options: Any) -> tuple[Compactor, Told]:
    told = Told(*(answers or ("the story so far",)))
    return Compactor(session, told, **{"settings": SMALL, "window": 2000, "readable": 100_000, **options}), told


def test_a_compaction_is_one_entry_and_everything_stays(session: Session) -> None:
    """The entry has summary, kept range, sizes and files; the context starts with it, and older entries stay."""
    before = [entry.id for entry in session.get_branch()]
    work, told = compactor(session)
    outcome = work.compact("mind the x")
    assert outcome.status == "compacted" and outcome.receipt is not None and outcome.tokens_before is not None
    entry = session.get_entry(outcome.receipt.id)
    assert entry is not None and entry["summary"] == "the story so far" and entry["shortSummary"] == "in short"
    assert entry["details"] == {"readFiles": [], "modifiedFiles": []} and entry["trigger"] == "manual"
    assert outcome.tokens_after is not None and outcome.tokens_after < outcome.tokens_before.tokens
    assert [each.id for each in session.get_branch()] == [*before, outcome.receipt.id]
    messages = session.context().messages
    assert messages[0]["role"] == "compactionSummary" and len(messages) < 10
    assert "Additional focus: mind the x" in told.asked[0].prompt and "request 0" in told.asked[0].prompt


def test_the_second_compaction_begins_where_the_first_one_kept(session: Session) -> None:
    """The second compaction summarizes what the first one kept, and continues its summary."""
    work, told = compactor(session)
    work.compact()
    kept = [number for number in range(20) if f"request {number} " in str(session.context().messages)]
    for number in range(20, 30):
        session.append_message(user(f"request {number} " + "x" * 300))
        session.append_message(answer(f"answer {number} " + "y" * 300))
    assert work.compact().status == "compacted"
    again = told.asked[2]
    assert again.previous == "the story so far" and "<previous-summary>" in again.prompt
    assert kept and all(f"request {number} " in again.prompt for number in kept)


def test_nothing_happens_right_after_a_compaction_or_in_a_short_session(session: Session) -> None:
    """There is nothing to summarize."""
    work, _ = compactor(session)
    assert work.compact().status == "compacted"
    assert work.compact().status == "nothing"
    with Session.in_memory("/work") as short:
        short.append_message(user("hello"))
        assert compactor(short)[0].compact().status == "nothing"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Summary(""), "empty"),
        (Summary("half of", "length"), "cut_off"),
        (Summary("I cannot help with that", "refusal"), "cut_off"),
        (Summary("and then", "error"), "cut_off"),
        (Summary("let me look", "toolUse"), "calls_tools"),
        (Summary("z" * 100_000), "does_not_shrink"),
    ],
)
def test_a_summary_that_is_no_good_changes_nothing(session: Session, bad: Summary, reason: str) -> None:
    """The history does not change, and the outcome has the reason."""
    before = [entry.id for entry in session.get_entries()]
    outcome = compactor(session, bad)[0].compact()
    assert outcome.status == "rejected" and reason in [objection.reason for objection in outcome.objections]
    assert [entry.id for entry in session.get_entries()] == before


def test_a_summarizer_that_fails_changes_nothing(session: Session) -> None:
    """The error of the summarizer is raised unchanged."""
    before = [entry.id for entry in session.get_entries()]
    with pytest.raises(SummarizerFailed, match="no luck"):
        compactor(session, SummarizerFailed("no luck"))[0].compact()
    assert [entry.id for entry in session.get_entries()] == before


def test_a_history_that_is_too_long_for_the_summarizer_is_given_in_pieces(session: Session) -> None:
    """Each piece is sent with the summary of the previous ones."""
    work, told = compactor(session, SummarizerFailed("prompt is too long", overflow=True), "part 1", "part 2", "part 3")
    assert work.compact().status == "compacted"
    asked = [request for request in told.asked if request.purpose == "history"]
    assert [request.previous for request in asked[1:3]] == [None, "part 1"] and len(asked) > 2
    whole = "".join(request.prompt for request in asked[1:])
    assert all(f"request {number} " in whole for number in range(10))


def test_a_piece_without_a_summary_is_not_passed_over(session: Session) -> None:
    """If one piece has an empty summary, the compaction is rejected."""
    for blank in ("", " \n"):
        work, _ = compactor(session, blank, "the rest", readable=1500)
        outcome = work.compact()
        assert [objection.reason for objection in outcome.objections] == ["empty"] and outcome.receipt is None


def one_long_turn(size: int) -> Session:
    made = Session.in_memory("/work")
    made.append_message(user("do it all"))
    for number in range(30):
        name = f"c{number}"
        call = {"type": "toolCall", "id": name, "name": "write", "arguments": {"path": name, "content": "z" * size}}
        made.append_message({"role": "assistant", "content": [call], "stopReason": "toolUse"})
        content = [{"type": "text", "text": "ok"}]
        made.append_message({"role": "toolResult", "toolCallId": name, "toolName": "write", "content": content})
    return made


def test_a_turn_that_is_too_long_for_the_summarizer_is_given_in_pieces() -> None:
    """The beginning of the turn is summarized in pieces, each with the summary of the previous ones."""
    with one_long_turn(2_000) as session:
        work, told = compactor(session, SummarizerFailed("too long", overflow=True), "part 1", "part 2", "part 3")
        assert work.compact().status == "compacted"
        asked = [request for request in told.asked if request.purpose == "prefix"][1:]
        assert [request.previous for request in asked[:2]] == [None, "part 1"]
        whole = "".join(request.prompt for request in asked)
        assert "do it all" in whole and all(f'path="c{number}"' in whole for number in range(20))


def test_one_message_that_is_too_long_for_the_summarizer_is_given_in_parts(session: Session) -> None:
    """A single message of any length can be summarized."""
    paste = "".join(f"<{number}>" + "p" * 1000 for number in range(200))
    session.append_message(user(paste))
    for _ in range(4):
        session.append_message(user("x" * 800))
    asked: list[str] = []

    def small(request: SummaryRequest) -> Summary:
        if len(request.prompt) > 40_000:
            raise SummarizerFailed("prompt is too long", overflow=True)
        asked.append(request.prompt)
        return Summary("in short")

    assert Compactor(session, small, settings=SMALL, readable=40_000).compact().status == "compacted"
    assert all(any(f"<{number}>" in prompt for prompt in asked) for number in range(200))


@pytest.mark.parametrize("window", [4_096, 8_192, 32_768, 200_000])
def test_the_longest_summary_leaves_room_for_more(window: int) -> None:
    """After a compaction the next one is not due at once, for any model and the longest possible summary."""

    def wordy(request: SummaryRequest) -> Summary:
        return Summary("k" * (4 * (request.max_tokens or 0)))

    with Session.in_memory("/work") as session:
        work = Compactor(session, wordy, window=window)
        for _ in range(3):
            while not work.is_due():
                session.append_message(user("x" * (window // 8)))
                session.append_message(answer("y" * (window // 8)))
            assert work.compact_if_due().status == "compacted" and not work.is_due()


def test_half_a_summary_is_none() -> None:
    """A blank summary of the beginning of a turn is rejected."""
    with one_long_turn(100) as session:
        for _ in range(2):
            assert compactor(session, " \n")[0].compact().status == "rejected"


def test_the_names_of_files_count_as_a_part_of_the_summary() -> None:
    """Summary and file names together must be shorter than the entries they replace."""
    with Session.in_memory("/work") as session:
        for number in range(25):
            session.append_message(user("u"))
            path = f"/far/{'away/' * 24}{number}"
            call = {"type": "toolCall", "id": f"c{number}", "name": "read", "arguments": {"path": path}}
            session.append_message({"role": "assistant", "content": [call], "stopReason": "toolUse"})
        outcome = compactor(session, "s" * 600)[0].compact()
        assert [objection.reason for objection in outcome.objections] == ["does_not_shrink"]


def test_the_threshold_counts_what_is_to_come(session: Session) -> None:
    """A compaction is due above the window minus the reserve; without a window it is never due."""
    tokens = compactor(session)[0].size().tokens
    assert compactor(session, window=tokens + 100)[0].compact_if_due().status == "not_due"
    assert compactor(session, window=None)[0].compact_if_due(10**9).status == "not_due"
    assert compactor(session, window=tokens + 100)[0].compact_if_due(coming=1).status == "compacted"


def test_an_overflow_is_recovered_from_once(session: Session) -> None:
    """The failed answer is removed from the context, and the rest is compacted; a second overflow is reported."""
    session.append_message(user("one more"))
    failed = answer("", stopReason="error", errorMessage="prompt is too long: 250000 tokens")
    failed_id = session.append_message(failed).id
    work, _ = compactor(session)
    outcome = work.recover(failed["errorMessage"], failed)
    assert outcome.status == "compacted" and outcome.retry
    assert failed_id not in session.context().sources and session.get_entry(failed_id) is not None
    session.append_message(failed)
    assert work.recover(failed["errorMessage"], failed)[0] == "given_up"
    assert work.recover("rate limit reached: too many tokens per minute").status == "not_due"
    session.append_message(answer("fine"))
    for number in range(10):
        session.append_message(user(f"{number}" + "x" * 400))
    session.append_message(failed)
    assert work.recover(failed["errorMessage"], failed).status == "compacted"


def test_an_overflow_without_a_compaction_is_not_retried(session: Session) -> None:
    """The same context would overflow again."""
    failed = answer("", stopReason="error", errorMessage="prompt is too long: 250000 tokens")
    for _ in range(2):
        session.append_message(failed)
        outcome = compactor(session, "")[0].recover(failed["errorMessage"], failed)
        assert outcome.status == "rejected" and not outcome.retry
    with Session.in_memory("/work") as short:
        short.append_message(user("hi"))
        short.append_many([{"type": "message", "message": "damaged"}])
        outcome = compactor(short)[0].recover(failed["errorMessage"], failed)
        assert outcome.status == "nothing" and not outcome.retry


def test_hooks_can_cancel_supply_and_steer(session: Session) -> None:
    """Hooks run before and after the compaction, and can give instructions to the summarizer."""
    hooks, events = Hooks(), []
    hooks.on("session_compact", lambda event: events.append(event))
    hooks.on("session.compacting", lambda event: {"context": ["mind the gap"], "preserveData": {"a": 1}})
    work, told = compactor(session, hooks=hooks)
    outcome = work.compact()
    assert "mind the gap" in told.asked[0].prompt and outcome.receipt is not None
    entry = session.get_entry(outcome.receipt.id)
    assert entry is not None and entry["preserveData"] == {"a": 1} and events[0]["entryId"] == outcome.receipt.id
    for _ in range(10):
        session.append_message(user("x" * 400))
    hooks.on("session_before_compact", lambda event: {"compaction": {"summary": f"mine, {event['trigger']}"}})
    mine = work.compact()
    assert mine.receipt is not None and len(told.asked) == 2
    supplied = session.get_entry(mine.receipt.id)
    assert supplied is not None and supplied["summary"] == "mine, manual" and supplied["fromExtension"] is True
    hooks.on("session_before_compact", lambda event: {"cancel": True})
    for _ in range(10):
        session.append_message(user("x" * 400))
    assert work.compact().status == "cancelled"


def test_a_hook_that_fails_is_named(session: Session) -> None:
    """An error before the compaction stops it; an error after it is recorded."""

    def broken(event: Any) -> None:
        raise RuntimeError("oops")

    hooks = Hooks()
    hooks.on("session_compact", broken)
    assert compactor(session, hooks=hooks)[0].compact().status == "compacted"
    assert "broken" in str(hooks.failures[0])
    hooks.on("session_before_compact", broken)
    for _ in range(10):
        session.append_message(user("x" * 400))
    before = len(session.get_entries())
    with pytest.raises(HookFailed, match="broken"):
        compactor(session, hooks=hooks)[0].compact()
    assert len(session.get_entries()) == before


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("session_before_compact", {"compaction": "a text"}),
        ("session_before_compact", {"compaction": {"summary": "x", "shortSummary": 5}}),
        ("session.compacting", {"prompt": 5}),
        ("session.compacting", {"context": "one line"}),
    ],
)
def test_an_answer_of_a_hook_that_makes_no_sense_is_an_error(session: Session, name: Any, told: Any) -> None:
    """An invalid answer raises, and nothing is appended."""
    hooks, count = Hooks(), len(session.get_entries())
    hooks.on(name, lambda event: told)
    with pytest.raises(HookFailed, match=name):
        compactor(session, hooks=hooks)[0].compact()
    assert len(session.get_entries()) == count


def test_every_hook_is_heard_and_none_can_change_what_the_next_one_is_told(session: Session) -> None:
    """The instructions of all hooks are joined, and each hook gets its own event."""
    hooks, events = Hooks(), []
    hooks.on("session.compacting", lambda event: {"context": ["first line"]})
    hooks.on("session.compacting", lambda event: {"context": ["second line"]})
    hooks.on("session_before_compact", lambda event: event.clear())  # type: ignore[attr-defined]
    hooks.on("session_compact", lambda event: events.append(event))
    work, told = compactor(session, hooks=hooks)
    assert work.compact().status == "compacted" and events[0]["sessionId"] == session.id
    assert told.asked[0].prompt.endswith("Additional focus: first line\nsecond line")


def test_what_is_said_while_it_is_summed_up_stays(session: Session) -> None:
    """Entries appended during the summary are kept; if the session branched, nothing is appended."""
    _, told = compactor(session)

    def meanwhile(request: SummaryRequest) -> Summary:
        if request.purpose == "history":
            session.append_message(user("by the way"))
        return told(request)

    outcome = Compactor(session, meanwhile, settings=SMALL, window=2000).compact()
    assert outcome.status == "compacted" and "by the way" in str(session.context().messages)

    def keeping_nothing(event: Any) -> dict[str, Any]:
        session.append_message(user("one more thing"))
        session.append_message(user("and another"))
        return {"compaction": {"summary": "short", "firstKeptEntryId": None}}

    for _ in range(10):
        session.append_message(user("x" * 400))
    hooks = Hooks()
    hooks.on("session_before_compact", keeping_nothing)
    assert compactor(session, hooks=hooks)[0].compact().status == "compacted"
    assert [message.get("content") for message in session.context().messages[1:]] == ["one more thing", "and another"]

    def elsewhere(request: SummaryRequest) -> Summary:
        session.branch(session.get_entries()[0].id)
        return told(request)

    for _ in range(10):
        session.append_message(user("x" * 400))
    count = len(session.get_entries())
    with pytest.raises(LeafMoved):
        Compactor(session, elsewhere, settings=SMALL, window=2000).compact()
    assert len(session.get_entries()) == count


def test_what_the_summarizer_used_is_in_the_ledger(session: Session) -> None:
    """The usage of all calls of one compaction is summed."""
    work, _ = compactor(session, Summary("the story so far", model="m", usage={"input": 900, "output": 50}))
    assert work.compact().status == "compacted"
    (call,) = [call for call in ledger(entry.body for entry in session.get_entries()) if call.purpose == "compaction"]
    assert (call.model, call.usage.input, call.usage.output) == ("m", 900, 50)
    for _ in range(10):
        session.append_message(user("x" * 400))
    assert work.compact().status == "compacted"
    calls = [call for call in ledger(entry.body for entry in session.get_entries()) if call.purpose == "compaction"]
    assert [call.usage.input for call in calls] == [900, 900]


def test_the_default_needs_no_model(session: Session) -> None:
    """The default summary says that it is an extract."""
    outcome = Compactor(session, window=2000, settings=SMALL).compact()
    assert outcome.receipt is not None
    entry = session.get_entry(outcome.receipt.id)
    assert entry is not None and entry["summary"].startswith(EXTRACTED)


def test_files_are_listed_over_several_compactions(session: Session) -> None:
    """Files of the first compaction are in the list of the second one."""

    def touch(name: str, path: str) -> None:
        call = {"type": "toolCall", "id": f"c-{path}", "name": name, "arguments": {"path": path}}
        session.append_message({"role": "assistant", "content": [call], "stopReason": "toolUse"})
        session.append_message({"role": "toolResult", "toolCallId": f"c-{path}", "toolName": name, "content": []})

    work, _ = compactor(session)
    for path in ("a.py", "b.py"):
        touch("read" if path == "a.py" else "edit", path)
        for _ in range(10):
            session.append_message(user("x" * 400))
        outcome = work.compact()
    assert outcome.receipt is not None
    entry = session.get_entry(outcome.receipt.id)
    assert entry is not None and entry["details"] == {"readFiles": ["a.py"], "modifiedFiles": ["b.py"]}
    assert "<read-files>\na.py\n</read-files>" in entry["summary"]


@pytest.mark.mission("Y8")
def test_pruning_appends_edits_and_the_results_stay(session: Session) -> None:
    """Old results become one line in the context, and the entries do not change."""
    ids = []
    for number in range(40):
        call = {"type": "toolCall", "id": f"c{number}", "name": "bash", "arguments": {}}
        session.append_message({"role": "assistant", "content": [call], "stopReason": "toolUse"})
        content = [{"type": "text", "text": "z" * 12_000}]
        result = {"role": "toolResult", "toolCallId": f"c{number}", "toolName": "bash", "content": content}
        ids.append(session.append_message(result).id)
    pruning = compactor(session)[0].prune()
    assert pruning.saved > 20_000
    seen = dict(zip(session.context().sources, session.context().messages, strict=True))
    assert "[Output truncated" in str(seen[ids[0]]["content"]) and "zzz" in str(seen[ids[-1]]["content"])
    first = session.get_entry(ids[0])
    assert first is not None and "zzz" in str(first["message"]["content"])
    assert compactor(session)[0].prune().edits == ()
