"""The session for the OpenAI Agents SDK: exact items, durability, concurrency, and readable sessions."""

from __future__ import annotations

import asyncio
import re
import time
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import pytest
from agents import Agent, Runner, SessionSettings
from agents.memory import Session as SessionProtocol
from agents.testing import ScriptedModel
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from adapters.conftest import Look
from adapters.many import assert_all_survived, write_at_once
from sessile import Session, Store
from sessile.adapters.named_sessions import NamedSessions
from sessile.adapters.openai_agents import PROGRAM, SessileSession, entry_of, items_of, text_of, written

pytestmark = pytest.mark.mission("B9")

Json = dict[str, Any]

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
ITEMS: list[Any] = [
    {"role": "user", "content": "how is the weather in Łódź?"},
    {"role": "user", "content": [{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": "https://x/y"}]},
    {"role": "user", "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"}]},
    {"role": "user", "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{'A' * 4000}"}]},
    {"role": "system", "content": "be brief"},
    {"role": "developer", "content": [{"type": "input_text", "text": "be kind"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x="},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Łódź"}', "id": "fc_1"},
    {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": '{"city": "spaced"}'},
    {"type": "function_call", "call_id": "c3", "name": "weather", "arguments": '{"t":1.0}'},
    {"type": "function_call", "call_id": "c4", "name": "weather", "arguments": "not json"},
    {"type": "function_call", "call_id": "c5", "name": "weather", "arguments": ""},
    {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
    {"type": "custom_tool_call", "call_id": "c6", "name": "patch", "input": "*** Begin"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"type": "message", "role": "assistant", "id": "m1", "status": "completed",
     "content": [{"type": "output_text", "text": "It is sunny.", "annotations": []}, {"type": "refusal", "refusal": "no"}]},
    {"role": "assistant", "content": "short"},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "…"},
    {"type": "item_reference", "id": "m1"},
    {"role": "user", "content": ""},
    {"role": "user", "content": None},
    {"role": "user", "content": "half \ud83d an emoji"},
    {"score": 1.0, "limit": float("inf"), "exact": 1e22, "huge": 2**80, "partialJson": "kept"},
    {"__enc__": 1, "v": 1, "kid": "k", "payload": "gAAAA"},
    {},
]  # fmt: skip


@pytest.fixture(autouse=True)
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the SDK's tracing."""
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")


@pytest.fixture
def session(store: Store) -> SessileSession:
    """Return an empty session."""
    return SessileSession("thread", store)


def user(text: str) -> Any:
    """Return a user item."""
    return {"role": "user", "content": text}


def said(items: list[Any]) -> list[str]:
    return [item["content"] for item in items]


def run(work: Any) -> Any:
    """Run a coroutine and return its result."""
    return asyncio.run(work)


def journal(store: Store) -> Session:
    """Return the underlying native session, opened separately."""
    found = NamedSessions(store, PROGRAM).find("", "thread")
    assert found is not None
    return found


def answer(text: str) -> ResponseOutputMessage:
    content = [ResponseOutputText(type="output_text", text=text, annotations=[], logprobs=[])]
    return ResponseOutputMessage(id="1", type="message", role="assistant", content=content, status="completed")  # type: ignore[arg-type]


# -- items


def test_it_is_a_session_as_the_sdk_wants_it(session: SessileSession) -> None:
    """It implements the SDK's protocol, including settings."""
    assert isinstance(session, SessionProtocol)
    assert session.session_settings == SessionSettings()


def test_items_come_back_exactly(store: Store) -> None:
    """Another session that reads the journal gets equal items with the same number types."""

    async def main() -> None:
        await SessileSession("thread", store).add_items(ITEMS)
        found = await SessileSession("thread", store).get_items()
        assert repr([dict(sorted(item.items())) for item in found]) == repr([dict(sorted(i.items())) for i in ITEMS])

    run(main())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
kinds = st.sampled_from(["message", "reasoning", "function_call", "function_call_output", "web_search_call", "odd"])
wild_items = st.fixed_dictionaries(
    {},
    optional={
        "type": kinds | json_values,
        "role": st.sampled_from(["user", "assistant", "system", "tool"]) | json_values,
        "content": st.lists(st.dictionaries(st.sampled_from(["type", "text", "image_url", "x"]), json_values))
        | json_values,
        "summary": json_values,
        "output": json_values,
        "arguments": st.text() | json_values,
        "call_id": json_values,
        "name": json_values,
    },
)


@cache
def scratch() -> Session:
    """Return an in-memory session that all examples of a test share."""
    return Session.in_memory()


@given(item=wild_items)
def test_whatever_an_item_holds_its_entry_gives_it_back(item: Json) -> None:
    """The displayed message is derived, and the item is restored from the entry."""
    entry = entry_of(item, written(item), 0)
    session = scratch()
    text = text_of(session.get_full_entry(session.append_many([entry])[0].id))
    assert text is not None
    assert repr(items_of([text])[0]) == repr(item)


def test_a_text_is_stored_once(folder: Store) -> None:
    """The message has the text, and the stored item refers to it."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"q":"arguments of a call"}'}
    run(SessileSession("thread", folder).add_items([user("a question"), cast(Any, call)]))
    with open(journal(folder).path, encoding="utf-8") as file:
        written_down = file.read()
    assert written_down.count("a question") == 1
    assert written_down.count("arguments of a call") == 1


def test_a_long_text_and_a_picture_lie_in_blobs_and_come_back(store: Store) -> None:
    """Large content is stored in blobs, so that lines stay short."""
    long: list[Any] = [user("x" * 600_000), ITEMS[3]]

    async def main() -> None:
        await SessileSession("thread", store).add_items(long)
        assert await SessileSession("thread", store).get_items() == long

    run(main())
    assert all(len(entry.raw) < 600_000 for entry in journal(store).iter_entries()) or store.is_memory


def test_items_that_are_given_belong_to_the_caller(session: SessileSession) -> None:
    """Changing an item after adding or reading it does not change the session."""

    async def main() -> None:
        mine = user("hello")
        await session.add_items([mine])
        mine["content"] = "changed"
        given: Any = (await session.get_items())[0]
        given["content"] = "changed"
        assert said(await session.get_items()) == ["hello"]

    run(main())


# -- the edges of the protocol


@pytest.mark.parametrize(
    ("settings", "limit", "expected"),
    [
        (None, None, "abcd"),
        (None, 2, "cd"),
        (None, 9, "abcd"),
        (None, 0, ""),
        (None, -1, "abcd"),
        ({"limit": 3}, None, "bcd"),
        (SessionSettings(limit=3), 1, "d"),
        (SessionSettings(limit=0), None, ""),
    ],
)
def test_a_limit_gives_the_latest_in_order(store: Store, settings: Any, limit: int | None, expected: str) -> None:
    """An explicit limit overrides the settings; 0 returns nothing, a negative limit returns everything."""

    async def main() -> None:
        session = SessileSession("thread", store, session_settings=settings)
        await session.add_items([user(letter) for letter in "abcd"])
        assert said(await session.get_items(limit)) == list(expected)

    run(main())


def test_an_empty_session_has_no_items_and_no_file(session: SessileSession, store: Store) -> None:
    """Reading, popping and adding an empty list create no file."""

    async def main() -> None:
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.add_items([])
        await session.clear_session()
        assert not await session.undo()

    run(main())
    assert store.list_all() == []


def test_a_closed_session_refuses_everything(session: SessileSession) -> None:
    """Even adding an empty list raises; closing again is allowed."""

    async def main() -> None:
        await session.add_items([user("a")])
        session.close()
        session.close()
        for call in (
            session.get_items,
            session.pop_item,
            session.clear_session,
            session.undo,
            session.history,
            lambda: session.add_items([]),
        ):
            with pytest.raises(RuntimeError, match="SessileSession is closed"):
                await call()

    run(main())


def test_items_of_which_one_cannot_be_written_are_not_added(session: SessileSession) -> None:
    """Adding items is all or nothing."""

    async def main() -> None:
        with pytest.raises(TypeError):
            await session.add_items([user("a"), cast(Any, {"role": "user", "content": object()})])
        assert await session.get_items() == []

    run(main())


def test_one_who_is_cancelled_while_adding_has_added(session: SessileSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call returns only when the outcome is certain, even after repeated cancellation."""
    append = session._append

    def slow(*given: Any) -> None:
        time.sleep(0.05)
        append(*given)

    monkeypatch.setattr(session, "_append", slow)

    async def main() -> None:
        task = asyncio.create_task(session.add_items([user("a"), user("b")]))
        for _ in range(3):
            await asyncio.sleep(0.01)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert said(await session.get_items()) == ["a", "b"]

    run(main())


def test_a_torn_batch_counts_for_nothing(folder: Store) -> None:
    """A power cut between the lines of one call drops all of its items and does not affect the next call."""

    async def main() -> None:
        await SessileSession("thread", folder).add_items([user("a")])
        entries = [entry_of(user(text), written(user(text)), 0) for text in "xy"]
        entries[0]["openai"]["more"] = 2
        entries[1]["openai"]["more"] = 1
        with journal(folder) as torn:
            torn.append_many(entries)
        session = SessileSession("thread", folder)
        assert said(await session.get_items()) == ["a"]
        await session.add_items([user("b")])
        assert said(await session.get_items()) == ["a", "b"]
        assert said(await SessileSession("thread", folder).get_items()) == ["a", "b"]

    run(main())


def test_scopes_and_ids_are_kept_apart(store: Store) -> None:
    """Two users may use the same session id."""

    async def main() -> None:
        await SessileSession("thread", store, scope="ann").add_items([user("a")])
        await SessileSession("thread", store, scope="bob").add_items([user("b")])
        await SessileSession("other", store, scope="ann").add_items([user("c")])
        assert said(await SessileSession("thread", store, scope="ann").get_items()) == ["a"]

    run(main())


# -- removing and undoing


def test_popping_gives_the_newest_and_undo_brings_back_one_after_the_other(session: SessileSession) -> None:
    """Popped items stay in the journal."""

    async def main() -> None:
        await session.add_items([user(letter) for letter in "abc"])
        assert await session.pop_item() == user("c")
        assert await session.pop_item() == user("b")
        assert said(await session.get_items()) == ["a"]
        assert await session.undo() and await session.undo()
        assert said(await session.get_items()) == ["a", "b", "c"]
        assert not await session.undo()

    run(main())


def test_clearing_begins_anew_and_undo_brings_the_history_back(session: SessileSession, store: Store) -> None:
    """Another session on the same journal sees the same."""

    async def main() -> None:
        await session.add_items([user("a"), user("b")])
        await session.clear_session()
        assert await session.get_items() == []
        assert await SessileSession("thread", store).undo()
        assert said(await session.get_items()) == ["a", "b"]

    run(main())


def test_undo_refuses_once_something_was_added(session: SessileSession) -> None:
    """Undo never removes a new item; removed items stay in the journal."""

    async def main() -> None:
        await session.add_items([user("a"), user("b")])
        await session.clear_session()
        await session.add_items([user("c")])
        assert not await session.undo()
        kept = await session.history()
        assert [(said([kept_item.item])[0], kept_item.present) for kept_item in kept] == [
            ("a", False),
            ("b", False),
            ("c", True),
        ]

    run(main())


def test_people_see_the_history_as_the_agent_does_and_the_rest_on_left_branches(folder: Store, look: Look) -> None:
    """The native context equals `get_items`, and popped items are on an abandoned branch."""

    async def main() -> None:
        session = SessileSession("thread", folder)
        await session.add_items([user("first words"), {"role": "assistant", "content": "an answer"}])
        await session.add_items([user("a mistake")])
        await session.pop_item()
        await session.add_items([user("better words")])
        session.close()

    run(main())
    opened = journal(folder)
    told = [message["content"] for message in opened.context().messages]
    assert told == ["first words", [{"type": "text", "text": "an answer"}], "better words"]
    assert [entry["message"]["content"] for entry in opened.get_abandoned()] == ["a mistake"]
    shown = look("show", opened.id)
    assert "better words" in shown and "an answer" in shown and "a mistake" not in shown
    assert "a mistake" in look("search", "mistake")


# -- compaction


def snapshot_and_replace(session: SessileSession, limit: int, start: int, output: list[Any], **how: Any) -> Any:
    async def main() -> tuple[Any, bool]:
        snapshot = await session._get_compaction_snapshot(limit, **how)
        assert snapshot is not None
        return snapshot, await snapshot.replace_suffix(start, output)

    return run(main())


def test_compaction_replaces_the_end_of_the_history_and_can_be_undone(session: SessileSession, store: Store) -> None:
    """It is one step, and the replaced items stay in the journal."""
    run(session.add_items([user(letter) for letter in "abcd"]))
    snapshot, replaced = snapshot_and_replace(session, 3, 1, [user("summary"), user("more")])
    assert replaced and not snapshot.complete and said(snapshot.items) == ["b", "c", "d"]
    assert said(run(session.get_items())) == ["a", "b", "summary", "more"]
    assert said(run(SessileSession("thread", store).get_items())) == ["a", "b", "summary", "more"]
    assert run(session.undo())
    assert said(run(session.get_items())) == ["a", "b", "c", "d"]


def test_a_snapshot_that_is_out_of_date_replaces_nothing(session: SessileSession, store: Store) -> None:
    """Items that were added in between, also by another process, are kept."""

    async def main() -> None:
        await session.add_items([user("a"), user("b")])
        snapshot = await session._get_compaction_snapshot(9)
        assert snapshot is not None and snapshot.complete
        await SessileSession("thread", store).add_items([user("c")])
        assert not await snapshot.replace_suffix(0, [user("summary")])
        assert not await snapshot.replace_suffix(2, [user("summary")])
        assert said(await session.get_items()) == ["a", "b", "c"]

    run(main())


def test_expired_items_before_the_suffix_are_dropped_with_it(session: SessileSession) -> None:
    """Items before the suffix are dropped if the caller's predicate matches."""
    run(session.add_items([user(letter) for letter in "abcdef"]))
    _, replaced = snapshot_and_replace(session, 2, 0, [user("new")], prune_prefix=lambda item: item["content"] in "ab")
    assert replaced
    assert said(run(session.get_items())) == ["c", "d", "new"]
    assert run(session.pop_item()) == user("new")
    assert said(run(session.get_items())) == ["c", "d"]


def test_a_session_that_changes_items_on_their_way_offers_no_snapshot(store: Store) -> None:
    """Replacing items would bypass an overridden `add_items`."""

    class Shouting(SessileSession):
        async def add_items(self, items: Any, *, wrapper: Any = None) -> None:
            await super().add_items([user(item["content"].upper()) for item in items], wrapper=wrapper)

    async def main() -> None:
        session = Shouting("thread", store)
        await session.add_items([user("a")])
        assert await session._get_compaction_snapshot(5) is None
        assert not await session._atomic_replace_items([])

    run(main())


def test_the_whole_history_is_replaced_in_one_step(session: SessileSession) -> None:
    """Undo restores the earlier history."""

    async def main() -> None:
        await session.add_items([user("a"), user("b")])
        assert await session._atomic_replace_items([user("summary")])
        assert said(await session.get_items()) == ["summary"]
        assert await session.undo()
        assert said(await session.get_items()) == ["a", "b"]

    run(main())


# -- runs


def test_an_agent_remembers_through_the_session(folder: Store, look: Look) -> None:
    """The second run sees the first, and both can be shown and searched."""
    model = ScriptedModel([[answer("Zürich, then.")], [answer("It was Zürich.")]])
    agent = Agent(name="guide", model=model)

    async def main() -> None:
        await Runner.run(agent, "Where shall we go?", session=SessileSession("thread", folder))
        result = await Runner.run(agent, "Where was it?", session=SessileSession("thread", folder))
        assert result.final_output == "It was Zürich."
        assert len(await SessileSession("thread", folder).get_items()) == 4

    run(main())
    shown = look("show", journal(folder).id)
    assert "Where shall we go?" in shown and "It was Zürich." in shown
    assert "Zürich, then." in look("search", "Zürich")
    assert "Where shall we go?" in look("ls", "--all")


def test_the_example_of_the_how_to_runs() -> None:
    """The example is run as documented."""
    page = Path(__file__).parents[2] / "docs" / "howto" / "use-with-openai-agents.md"
    code = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert len(code) == 1
    exec(compile(code[0], str(page), "exec"), {})


# -- concurrency


def add_each(root: str, texts: list[str]) -> None:
    async def main() -> None:
        session = SessileSession("thread", Store(root, durability="process"))
        for text in texts:
            await session.add_items([user(text)])

    asyncio.run(main())


def test_four_processes_at_once_lose_nothing(folder: Store) -> None:
    """Each adds a hundred items; all are on one path, in the order of each process."""
    write_at_once(partial(add_each, folder.layout.root))
    session = SessileSession("thread", folder)
    assert_all_survived(said(run(session.get_items())))
    assert [item["content"] for item in journal(folder).context().messages] == said(run(session.get_items()))


def pop_each(root: str, texts: list[str]) -> None:
    async def main() -> None:
        store = Store(root, durability="process")
        session, mine = SessileSession("thread", store), SessileSession(texts[0], store)
        for _ in range(20):
            popped = await session.pop_item()
            assert popped is not None
            await mine.add_items([popped])
            await session.add_items([user(f"{texts[0]} again")])
            assert await session.pop_item() is not None

    asyncio.run(main())


def test_no_item_is_popped_twice(folder: Store) -> None:
    """With concurrent pops and adds, the number of remaining items is right."""
    run(SessileSession("thread", folder).add_items([user(str(number)) for number in range(200)]))
    write_at_once(partial(pop_each, folder.layout.root))
    session = SessileSession("thread", folder)
    assert len(run(session.get_items())) == 200 + 4 * 20 - 2 * 4 * 20
    assert len(run(session.history())) == 200 + 4 * 20


def test_a_session_that_was_deleted_begins_anew(folder: Store) -> None:
    """This also holds for a session object that was open during the deletion."""

    async def main() -> None:
        session = SessileSession("thread", folder)
        await session.add_items([user("a")])
        token = NamedSessions(folder, PROGRAM).delete("", "thread")
        assert token is not None
        assert await session.get_items() == []
        await session.add_items([user("b")])
        assert said(await session.get_items()) == ["b"]
        assert said(await SessileSession("thread", folder).get_items()) == ["b"]

    run(main())


def read_again(store: Store, count: int) -> tuple[float, float]:
    """Return the seconds of a first and a second read of the given number of items."""

    async def main() -> tuple[float, float]:
        writer = SessileSession("thread", store)
        for start in range(0, count, 5_000):
            await writer.add_items([user(f"number {number}") for number in range(start, start + 5_000)])
        session = SessileSession("thread", store)
        seconds = []
        for _ in range(4):
            begun = time.perf_counter()
            items = await session.get_items()
            seconds.append(time.perf_counter() - begun)
        assert len(items) == count and items[-1] == user(f"number {count - 1}")
        return seconds[0], min(seconds[1:])

    measured: tuple[float, float] = run(main())
    return measured


def test_items_that_were_read_once_are_in_memory(store: Store) -> None:
    """A second read only converts the values."""
    first, again = read_again(store, 5_000)
    assert again < first / 2


@pytest.mark.long
def test_fifty_thousand_items_are_read_again_quickly(folder: Store) -> None:
    """The SDK's own session takes a third of a second for each read."""
    assert read_again(folder, 50_000)[1] < 0.35
