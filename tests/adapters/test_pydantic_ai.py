"""The conversation store for pydantic-ai: agent runs, conflicts, branches, forks, and readable sessions."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic_ai import Agent, BinaryContent, DeferredToolRequests, ImageUrl
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    RetryInfo,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage

from adapters.conftest import Look
from adapters.many import TEXTS, assert_all_survived, write_at_once
from sessile import Session, Store
from sessile.adapters.named_sessions import NamedSessions
from sessile.adapters.pydantic_ai import PROGRAM, SessileConversationStore

pytestmark = pytest.mark.mission("B9")

MESSAGES: list[ModelMessage] = [
    ModelRequest(
        parts=[SystemPromptPart("be brief"), UserPromptPart("how is the weather in Łódź?")],
        instructions="be kind",
        run_id="r1",
    ),
    ModelResponse(
        parts=[
            ThinkingPart("hm", signature="s"),
            TextPart("I will look."),
            ToolCallPart("weather", {"city": "Łódź", "when": None}, "c1"),
            ToolCallPart("weather", '{"city":"Kraków"}', "c2"),
            ToolCallPart("weather", '{"city": "spaced"}', "c3"),
            ToolCallPart("weather", "not json", "c4"),
            ToolCallPart("weather", None, "c5"),
        ],
        usage=RequestUsage(input_tokens=7, output_tokens=3),
        model_name="m",
        provider_name="p",
        provider_details={"finish": "tool"},
    ),
    ModelRequest(
        parts=[
            ToolReturnPart("weather", "sunny", "c1"),
            ToolReturnPart("weather", {"rain": 0.5}, "c2", metadata={"seen": [1]}),
            ToolReturnPart("weather", "which city?", "c4", outcome="retried"),
            RetryFeedbackPart("say it again", retry=RetryInfo("no_output")),
            UserPromptPart(["look", ImageUrl("https://x/y.png"), BinaryContent(b"\x00\x01" * 900, media_type="application/pdf")]),
        ]
    ),
    ModelResponse(parts=[TextPart("Sunny.")]),
    ModelRequest(parts=[]),
    ModelRequest(parts=[UserPromptPart("x" * 600_000)]),
]  # fmt: skip


def run(work: Any) -> Any:
    """Run a coroutine and return its result."""

    async def main() -> Any:
        return await work

    return anyio.run(main)


def told(*texts: str) -> list[ModelMessage]:
    """Return alternating messages of a user and a model."""
    return [
        ModelResponse(parts=[TextPart(text)]) if number % 2 else ModelRequest(parts=[UserPromptPart(text)])
        for number, text in enumerate(texts)
    ]


def texts_of(messages: list[ModelMessage]) -> list[str]:
    return [getattr(part, "content", "") for message in messages for part in message.parts]


def journal(store: Store, conversation_id: str) -> Session:
    """Return the underlying native session, opened separately."""
    found = NamedSessions(store, PROGRAM).find("", conversation_id)
    assert found is not None
    return found


# -- saving and loading


def test_messages_come_back_exactly(store: Store) -> None:
    """Another process that reads the journal gets equal messages."""

    async def main() -> None:
        saved = await SessileConversationStore(store).save(Conversation(messages=MESSAGES, conversation_id="c"))
        other = SessileConversationStore(store)
        loaded = await other.load("c")
        assert loaded is not None and loaded.messages == MESSAGES
        assert await other.load_entries("c") == saved
        assert await SessileConversationStore(store).read_entry(saved[2].id) == saved[2]

    run(main())


def test_a_text_is_stored_once(folder: Store) -> None:
    """The native message has the text, and the stored framework message refers to it."""
    run(SessileConversationStore(folder).save(Conversation(messages=MESSAGES[:2], conversation_id="c")))
    with open(journal(folder, "c").path, encoding="utf-8") as file:
        written = file.read()
    for text in ("how is the weather", "I will look.", "Kraków"):
        assert written.count(text) == 1


def test_a_record_comes_back_exactly(store: Store) -> None:
    """Usage, scope, pending calls of a paused run and the time are restored."""
    record = ConversationRecord(
        conversation_id="c",
        head_id=None,
        scope="ann",
        branches=[],
        deferred_tool_requests=DeferredToolRequests(
            calls=[ToolCallPart("pay", {"sum": 3}, "c1")], metadata={"c1": {"why": "large"}}
        ),
    )
    record.usage.requests = 2
    run(SessileConversationStore(store).write_record(record, expected_revision=None))
    assert run(SessileConversationStore(store).read_record("c")) == record


def test_an_agent_goes_on_where_it_was(folder: Store, look: Look) -> None:
    """A real agent with a tool is run, and its messages can be shown and searched."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart(f"There were {len(messages)} messages before Zürich.")])

    agent = Agent(FunctionModel(model))
    other = Agent(TestModel(call_tools=["count"]))

    @other.tool_plain
    def count(word: str) -> int:
        return len(word)

    async def main() -> None:
        store = SessileConversationStore(folder)
        await store.save(await agent.run("Where are we?", conversation=Conversation(conversation_id="c")))
        loaded = await SessileConversationStore(folder).load("c")
        result = await agent.run("And now?", conversation=loaded)
        assert result.output == "There were 3 messages before Zürich."
        await store.save(result)
        await store.save(await other.run("Count.", conversation=Conversation(conversation_id="d")))
        counted = await SessileConversationStore(folder).load("d")
        assert counted is not None and len(counted.messages) == 4

    run(main())
    shown = look("show", journal(folder, "c").id)
    assert "Where are we?" in shown and "There were 3 messages" in shown
    assert "count" in look("show", journal(folder, "d").id)
    assert "Where are we?" in look("search", "are we")
    assert "Where are we?" in look("ls", "--all")


def test_the_example_of_the_how_to_runs() -> None:
    """The example is run as documented."""
    page = Path(__file__).parents[2] / "docs" / "howto" / "use-with-pydantic-ai.md"
    code = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert len(code) == 1
    exec(compile(code[0], str(page), "exec"), {})


def test_a_store_runs_under_trio(store: Store) -> None:
    """pydantic-ai supports trio too."""

    async def main() -> None:
        await SessileConversationStore(store).save(Conversation(messages=told("a"), conversation_id="c"))
        assert texts_of((await SessileConversationStore(store).load("c")).messages) == ["a"]  # type: ignore[union-attr]

    anyio.run(main, backend="trio")


# -- comparison with pydantic-ai's own store


CHAIN = [
    ConversationEntry(id=f"e{number}", parent_id=f"e{number - 1}" if number else None, message=message)
    for number, message in enumerate(told(*"abcd"))
]


async def _story(store: Any) -> list[Any]:
    """Run a series of operations on some conversations and return all results."""
    seen: list[Any] = []
    base = datetime(2026, 1, 1, tzinfo=UTC)

    async def tried(work: Any) -> None:
        try:
            seen.append(await work)
        except (ConversationConflict, UserError, LookupError) as error:
            seen.append(type(error).__name__)

    entries = CHAIN

    def record(name: str, revision: str, head: str | None, day: int, **more: Any) -> ConversationRecord:
        at = base + timedelta(days=day)
        return ConversationRecord(conversation_id=name, head_id=head, revision=revision, updated_at=at, **more)

    await tried(store.read_record("x"))
    await tried(
        store.write_record(record("x", "r1", "e1", 3, scope="ann"), new_entries=entries[:2], expected_revision=None)
    )
    await tried(store.write_record(record("x", "r2", "e1", 4), expected_revision=None))
    await tried(
        store.write_record(record("x", "r2", "e3", 4, scope="ann"), new_entries=entries[2:], expected_revision="r1")
    )
    await tried(store.write_record(record("x", "r3", "e3", 5), expected_revision="r1"))
    await tried(store.write_record(record("x", "r3", "nowhere", 5), expected_revision="r2"))
    await tried(store.write_record(record("y", "s1", "e1", 5, forked_from="x", forked_at="e1"), expected_revision=None))
    await tried(store.write_record(record("z", "t1", None, 1, scope="ann"), expected_revision=None))
    for scope, limit in ((None, None), ("ann", None), (None, 2), ("bob", None), (None, 0)):
        seen.append([r.conversation_id for r in await store.read_records(scope=scope, limit=limit)])
    for head, limit in (("e3", None), ("e3", 2), ("e1", None), (None, None), ("e3", 0)):
        seen.append([e.id for e in await store.read_history(head, limit=limit)])
    await tried(store.read_entry("e2"))
    await tried(store.read_entry("nowhere"))
    await tried(store.delete_record("x", expected_revision="r1"))
    await tried(store.delete_record("x", expected_revision="r2"))
    await tried(store.delete_record("x", expected_revision="r2"))
    await tried(store.read_record("x"))
    await tried(store.read_entry("e3"))
    seen.append([e.id for e in await store.read_history("e1")])
    await tried(store.write_record(record("x", "r9", None, 9), expected_revision="r2"))
    await tried(store.write_record(record("x", "r9", None, 9), expected_revision=None))
    await tried(store.read_record("x"))
    return seen  # fmt: skip


def test_every_primitive_answers_as_that_of_the_store_in_memory(store: Store) -> None:
    """The same operations on pydantic-ai's in-memory store and on ours have the same results."""
    assert run(_story(SessileConversationStore(store))) == run(_story(InMemoryConversationStore()))


def test_branching_leaves_a_history_that_can_be_taken_up_again(store: Store) -> None:
    """The session tree has both branches."""

    async def main() -> None:
        ours = SessileConversationStore(store)
        conversation = Conversation(messages=told("a", "b", "c", "d"), conversation_id="c")
        entries = await ours.save(conversation)
        branched = await ours.branch("c", at=2, expected_revision=conversation.revision or "")
        branched.messages.extend(told("e", "f"))
        await ours.save(branched)
        assert texts_of((await SessileConversationStore(store).load("c")).messages) == ["a", "b", "e", "f"]  # type: ignore[union-attr]
        back = await ours.branch("c", from_entry=entries[3].id, expected_revision=branched.revision or "")
        assert texts_of(back.messages) == ["a", "b", "c", "d"]
        back.messages.extend(told("g"))
        await ours.save(back)
        assert texts_of((await SessileConversationStore(store).load("c")).messages) == list("abcdg")  # type: ignore[union-attr]

    run(main())
    opened = journal(store, "c")
    spoken = [m["content"][0]["text"] for m in opened.context().messages]
    assert spoken == list("abcdg")


def test_a_fork_outlives_what_it_was_forked_from(store: Store) -> None:
    """The fork has its own copy of the messages with the same ids."""

    async def main() -> None:
        ours = SessileConversationStore(store)
        entries = await ours.save(Conversation(messages=told("a", "b", "c"), conversation_id="old"))
        await ours.fork("old", at=2, new_conversation_id="new")
        await ours.delete("old")
        fresh = SessileConversationStore(store)
        forked = await fresh.load_entries("new")
        assert forked == entries[:2]
        assert await fresh.load("old") is None
        with pytest.raises(LookupError):
            await fresh.read_entry(entries[2].id)

    run(main())


def test_a_deleted_conversation_can_be_brought_back(folder: Store) -> None:
    """It is in the trash of the store."""

    async def main() -> None:
        await SessileConversationStore(folder).save(Conversation(messages=told("a"), conversation_id="c"))
        await SessileConversationStore(folder).delete("c")
        assert await SessileConversationStore(folder).list_conversations() == []

    run(main())
    folder.undo(folder.deletions()[-1].token)
    assert [
        entry["message"]["content"][0]["text"] for entry in journal(folder, "c").iter_entries() if "message" in entry
    ] == ["a"]


# -- concurrency


def save_each(root: str, texts: list[str]) -> None:
    async def main() -> None:
        store = SessileConversationStore(Store(root, durability="process"))
        for text in texts:
            while True:
                conversation = await store.load("c", limit=1) or Conversation(conversation_id="c")
                conversation.messages.extend(told(text))
                try:
                    await store.save(conversation)
                    break
                except ConversationConflict:
                    continue

    anyio.run(main)


def test_four_processes_that_try_again_lose_nothing(folder: Store) -> None:
    """Each process saves a hundred times and reloads after a conflict."""
    write_at_once(partial(save_each, folder.layout.root))
    loaded = run(SessileConversationStore(folder).load("c"))
    assert len(loaded.messages) == len(TEXTS)
    assert_all_survived(texts_of(loaded.messages))


def test_a_save_that_somebody_went_on_from_at_once_is_no_conflict(
    folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may save on top of it at once; the first save must still succeed and not be repeated."""
    append, others = Session.append_many, [SessileConversationStore(Store(folder.layout.root))]

    async def go_on(other: SessileConversationStore) -> None:
        conversation = await other.load("c")
        assert conversation is not None
        conversation.messages.extend(told("second"))
        await other.save(conversation)

    def append_and_be_overtaken(session: Session, *args: Any, **kwargs: Any) -> Any:
        receipts = append(session, *args, **kwargs)
        if others:
            run(go_on(others.pop()))
        return receipts

    monkeypatch.setattr(Session, "append_many", append_and_be_overtaken)
    store = SessileConversationStore(folder)
    run(store.save(Conversation(messages=told("first"), conversation_id="c")))
    assert not others
    loaded = run(store.load("c"))
    assert texts_of(loaded.messages) == ["first", "second"]


def race(root: str, texts: list[str]) -> None:
    async def main() -> None:
        store = SessileConversationStore(Store(root, durability="process"))
        won = []
        for number in range(40):
            record = await store.read_record(f"race {number}")
            if record is None or len(record.branches) == 0:
                mine = dataclasses.replace(
                    record or ConversationRecord(conversation_id=f"race {number}", head_id=None),
                    revision=texts[0],
                    branches=[texts[0]],
                )
                try:
                    await store.write_record(mine, expected_revision=None)
                    won.append(f"{number}")
                except ConversationConflict:
                    continue
        await store.save(Conversation(conversation_id=f"won by {texts[0]}", messages=told(*won)))

    anyio.run(main)


def test_of_several_processes_that_begin_a_conversation_one_wins(folder: Store) -> None:
    """The others get a conflict."""
    write_at_once(partial(race, folder.layout.root))
    store = SessileConversationStore(folder)
    records = run(store.list_conversations())
    won = [
        number
        for record in records
        if record.conversation_id.startswith("won by")
        for number in texts_of(run(store.load(record.conversation_id)).messages)
    ]
    assert sorted(won, key=int) == [str(number) for number in range(40)]
