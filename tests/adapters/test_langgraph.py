"""The checkpointer for LangGraph: full conformance, exact versions, deduplicated storage, readable sessions."""

from __future__ import annotations

import asyncio
import json
import operator
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from adapters.conftest import Look
from adapters.many import assert_all_survived, write_at_once
from sessile import Session, Store
from sessile.adapters.langgraph import SessileSaver
from sessile.errors import Invalid, StorageFull

pytestmark = pytest.mark.mission("B9")

PICTURE = "iVBORw0KGgoAAAAN" * 100  # base64, long enough to become a blob
CONFIG: RunnableConfig = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


# -- rigs


def put(
    saver: SessileSaver, values: dict[str, Any], parent: RunnableConfig = CONFIG, **metadata: Any
) -> RunnableConfig:
    """Store values as a checkpoint, each with a new version."""
    checkpoint: Checkpoint = {**empty_checkpoint(), "id": str(uuid6()), "channel_values": values}
    versions: dict[str, str | int | float] = {channel: saver.get_next_version(None, None) for channel in values}
    checkpoint["channel_versions"] = versions
    return saver.put(parent, checkpoint, metadata, versions)  # type: ignore[arg-type]


def got(saver: SessileSaver, config: RunnableConfig = CONFIG) -> CheckpointTuple:
    """Return the checkpoint of a config, which must exist."""
    found = saver.get_tuple(config)
    assert found is not None
    return found


def values_of(saver: SessileSaver, config: RunnableConfig = CONFIG) -> dict[str, Any]:
    return got(saver, config).checkpoint["channel_values"]


def ids(saver: SessileSaver, config: RunnableConfig | None = CONFIG, **filters: Any) -> list[str]:
    return [found.checkpoint["id"] for found in saver.list(config, **filters)]


def session_of(saver: SessileSaver, thread_id: str = "t") -> Session:
    session = saver.sessions.find("", thread_id)
    assert session is not None
    return session


def messages_of(session: Session) -> list[Any]:
    return [entry["message"] for entry in session.iter_entries() if entry.type == "message"]


def bytes_in(store: Store) -> int:
    """Return the size of all files of a store."""
    return sum(os.path.getsize(path) for path in Path(store.layout.root).rglob("*") if path.is_file())


def chat(saver: SessileSaver, answer: str = "answer ") -> Any:
    """Return a graph whose model answers with a number."""
    numbers = count(1)
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [AIMessage(f"{answer}{next(numbers)}")]})
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    return builder.compile(checkpointer=saver)


def texts(state: Any) -> list[str]:
    return [message.content for message in state.values["messages"]]


# -- the kit


def test_the_conformance_kit_of_langgraph_is_kept_in_full(store: Store) -> None:
    """All eight capabilities are detected, and all 81 tests pass."""

    @checkpointer_test(name="SessileSaver")
    async def ours() -> Any:
        async with SessileSaver(store) as saver:
            yield saver

    report = asyncio.run(validate(ours))
    assert {name: result.failures for name, result in report.results.items() if not result.passed} == {}
    assert len(report.results) == 8
    assert sum(result.tests_passed for result in report.results.values()) == 81


# -- values


def messages() -> st.SearchStrategy[BaseMessage]:
    """Return messages of every kind, with and without ids, some of them equal."""
    ident = st.sampled_from([None, "a", "b"])
    text = st.sampled_from(["", "yes", "no \ud83d half", "long " * 60])
    blocks = st.lists(
        st.sampled_from(
            [
                {"type": "text", "text": "said"},
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "image", "source_type": "base64", "data": PICTURE, "mime_type": "image/png"},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                {"type": "tool_use", "id": "c", "name": "ls", "input": {}},
            ]
        ),
        max_size=3,
    )
    content: st.SearchStrategy[Any] = text | blocks
    calls = st.sampled_from(
        [
            [],
            [
                {
                    "name": "ls",
                    "args": {"n": 1.0, "at": float("inf"), "partialJson": "x"},
                    "id": "c",
                    "type": "tool_call",
                }
            ],
        ]
    )
    kinds = [HumanMessage, SystemMessage]
    return st.one_of(
        st.builds(lambda kind, said, i: kind(said, id=i), st.sampled_from(kinds), content, ident),
        st.builds(lambda said, i, made: AIMessage(said, id=i, tool_calls=made), content, ident, calls),
        st.builds(lambda said, i: AIMessageChunk(content=said, id=i), text, ident),
        st.builds(
            lambda said, i, role: ChatMessage(content=said, id=i, role=role),
            text,
            ident,
            st.sampled_from(["user", "critic"]),
        ),
        st.builds(lambda said, i: ToolMessage(said, id=i, tool_call_id="c", name="ls"), content, ident),
        st.builds(lambda: RemoveMessage(id="a")),
    )


def values() -> st.SearchStrategy[Any]:
    """Return values of channels, including those that plain JSON would change."""
    leaves = st.one_of(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.binary(max_size=300),
        st.sampled_from(["x" * 300, "blob:sha256:" + "0" * 64, {1, 2}]),
        messages(),
    )
    keys = st.sampled_from(["a", "partialJson", "content", "image_url", "lineCount", "id", ""])
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=30) | st.dictionaries(keys, inner), max_leaves=20
    )


@given(st.lists(values(), max_size=5))
@settings(max_examples=30)
def test_every_version_comes_back_as_langgraphs_own_serializer_gives_it(versions: list[Any]) -> None:
    """This holds for any earlier values, and for a saver that is opened later."""
    store, serde = Store.in_memory(), JsonPlusSerializer(allowed_msgpack_modules=None)
    saver = SessileSaver(store)
    places = [put(saver, {"c": version}) for version in versions]
    for reader in (saver, SessileSaver(store)):
        for place, version in zip(places, versions, strict=True):
            assert values_of(reader, place)["c"] == without_surrogates(
                serde.loads_typed(serde.dumps_typed(version)), version
            )


def without_surrogates(loaded: Any, given_value: Any) -> Any:
    """Return the given value if it has lone surrogates, which LangGraph's serializer replaces, or else the loaded one."""
    return given_value if "\ud83d" in repr(given_value) or "\\ud83d" in repr(given_value) else loaded


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 40), st.lists(st.integers(), max_size=30)), max_size=12))
@settings(max_examples=40)
def test_a_list_that_is_cut_and_filled_anywhere_comes_back_at_every_version(
    edits: list[tuple[int, int, list[int]]],
) -> None:
    """Long lists are stored as shared runs, and an edit must not affect other versions."""
    saver = SessileSaver(Store.in_memory())
    items, versions = [f"item {number} " + "x" * 200 for number in range(150)], []
    for start, length, new in edits:
        items = items[:start] + [f"new {number}" for number in new] + items[start + length :]
        versions.append((put(saver, {"c": items}), items))
    for place, version in versions:
        assert values_of(saver, place)["c"] == version


def test_what_is_read_is_nobody_elses(store: Store) -> None:
    """Equal values share storage but are separate objects when read."""
    saver = SessileSaver(store)
    shared = {"text": "x" * 500, "tags": []}
    said = AIMessage([{"type": "text", "text": "y"}], id="m", tool_calls=[{"name": "f", "args": {"a": []}, "id": "c"}])
    put(saver, {"a": [shared, shared], "m": [said, said]})
    first = values_of(saver)
    first["a"][0]["tags"].append("mine")
    first["m"][0].content[0]["text"] = "mine"
    first["m"][0].tool_calls[0]["args"]["a"].append("mine")
    assert first["a"][1] == shared
    assert first["m"][1] == said
    assert values_of(saver) == {"a": [shared, shared], "m": [said, said]}
    many: list[dict[str, Any]] = [{"number": number, "tags": []} for number in range(50)]
    put(saver, {"a": many, "b": many})
    second = values_of(saver)
    second["a"][0]["tags"].append("mine")
    assert second["b"] == many


def test_texts_and_pictures_too_large_for_a_line_come_back(store: Store) -> None:
    """They are stored as blobs and restored when the checkpoint is read."""
    saver = SessileSaver(store)
    said = HumanMessage([{"type": "text", "text": "t" * 600_000}, {"type": "image", "base64": PICTURE}], id="m")
    given_values = {"messages": [said], "document": "d" * 700_000, "data": b"\0" * 600_000, "many": ["e" * 400_000] * 3}
    given_values["pages"] = [f"{number}" + "p" * 150_000 for number in range(80)]  # 12 MB: too large for a line
    place = put(saver, given_values)
    saver.put_writes(place, [("document", "w" * 600_000)], "task")
    again = got(SessileSaver(store))
    assert again.checkpoint["channel_values"] == given_values
    assert again.pending_writes == [("task", "document", "w" * 600_000)]


def test_a_value_without_a_version_and_one_that_changed_under_its_version_are_kept(store: Store) -> None:
    """The stored value is returned as it was given, and an empty channel stays empty."""
    saver = SessileSaver(store)
    loose: Checkpoint = {**empty_checkpoint(), "id": "1", "channel_values": {"a": "loose"}}
    first = saver.put(CONFIG, loose, {}, {})
    empty: Checkpoint = {**empty_checkpoint(), "id": "2", "channel_versions": {"a": "1", "b": "1"}}
    second = saver.put(first, empty, {}, {"a": "1", "b": "1"})
    filled: Checkpoint = {**empty, "id": "3", "channel_values": {"a": "filled"}}
    third = saver.put(second, filled, {}, {})
    assert [values_of(saver, place) for place in (first, second, third)] == [{"a": "loose"}, {}, {"a": "filled"}]


# -- order and repetition


def test_the_latest_checkpoint_is_the_one_with_the_largest_id(store: Store) -> None:
    """The order of writing does not matter."""
    saver = SessileSaver(store)
    for checkpoint_id in ("2", "3", "1"):
        saver.put(CONFIG, {**empty_checkpoint(), "id": checkpoint_id}, {"step": int(checkpoint_id)}, {})
    for reader in (saver, SessileSaver(store)):
        assert got(reader).checkpoint["id"] == "3"
        assert ids(reader) == ["3", "2", "1"]
        assert ids(reader, before={"configurable": {"checkpoint_id": "3"}}, limit=1) == ["2"]
        assert ids(reader, None, filter={"step": 1}) == ["1"]


def test_pending_writes_come_in_the_order_in_which_they_are_applied(store: Store) -> None:
    """They are sorted by path, task and index; a repeated write keeps the first value, a special one the last."""
    saver = SessileSaver(store)
    place = put(saver, {})
    saver.put_writes(place, [("a", 1), ("b", 2)], "task-1", "~2")
    saver.put_writes(place, [("a", "again"), ("b", "again"), ("c", 3)], "task-1", "~2")
    saver.put_writes(place, [("a", 0)], "task-9", "~1")
    saver.put_writes(place, [("__error__", "first")], "task-1", "~2")
    saver.put_writes(place, [("__error__", "second")], "task-1", "~2")
    task = {"ns": "", "id": place["configurable"]["checkpoint_id"], "task": "task-1", "path": "~2"}
    faster = {**task, "writes": [[0, "a", ["=", "by a process that did not know"]]]}
    session_of(saver).append_custom_entry("langgraph.writes", faster)
    before = session_of(saver).count_entries()
    saver.put_writes(place, [("a", 1)], "task-1", "~2")
    assert session_of(saver).count_entries() == before
    expected = [("task-9", "a", 0), ("task-1", "__error__", "second"), ("task-1", "a", 1), ("task-1", "b", 2)]
    for reader in (saver, SessileSaver(store)):
        assert got(reader).pending_writes == [*expected, ("task-1", "c", 3)]


def test_versions_grow_and_are_never_the_same_on_two_branches() -> None:
    """This also holds after a version from another saver."""
    saver = SessileSaver(Store.in_memory())
    first = saver.get_next_version(None, None)
    second, other = saver.get_next_version(first, None), saver.get_next_version(first, None)
    assert first < second and first < other and second != other
    theirs = f"{7:032}.0.5"
    assert saver.get_next_version(theirs, None) > theirs


# -- graphs

DURABILITY = pytest.mark.parametrize("durability", ["sync", "async", "exit"])


@DURABILITY
def test_a_graph_goes_on_where_it_was_and_in_another_process(folder: Store, durability: Any) -> None:
    """The state has all messages so far, in the same process and in a new one."""
    graph = chat(SessileSaver(folder))
    for number in range(3):
        graph.invoke({"messages": [("user", f"question {number}")]}, CONFIG, durability=durability)
    later = chat(SessileSaver(Store(folder.layout.root)), "later ")
    later.invoke({"messages": [HumanMessage("again")]}, CONFIG, durability=durability)
    said = ["question 0", "answer 1", "question 1", "answer 2", "question 2", "answer 3", "again", "later 1"]
    assert texts(later.get_state(CONFIG)) == texts(graph.get_state(CONFIG)) == said
    history = [len(state.values.get("messages", ())) for state in graph.get_state_history(CONFIG)]
    assert history == ([8, 6, 4, 2] if durability == "exit" else [8, 7, 6, 6, 5, 4, 4, 3, 2, 2, 1, 0])


@DURABILITY
def test_an_async_graph_does_the_same(store: Store, durability: Any) -> None:
    """The async methods run the sync ones on threads."""

    async def talk() -> list[str]:
        async with SessileSaver(store) as saver:
            graph = chat(saver)
            await graph.ainvoke({"messages": [("user", "hello")]}, CONFIG, durability=durability)
            found = [state async for state in graph.aget_state_history(CONFIG)]
            await saver.acopy_thread("t", "copy")
            await saver.aprune(["copy"])
            await saver.adelete_thread("t")
            assert await saver.aget_tuple(CONFIG) is None
            history = await saver.aget_delta_channel_history(config=CONFIG, channels=["messages"])
            assert history == {"messages": {"writes": []}}
            return texts(found[0]) + texts(await graph.aget_state({"configurable": {"thread_id": "copy"}}))

    assert asyncio.run(talk()) == ["hello", "answer 1"] * 2


@DURABILITY
def test_a_run_that_was_interrupted_goes_on_with_its_answer(store: Store, durability: Any) -> None:
    """A saver that is opened later can resume it too."""

    def ask(state: MessagesState) -> Any:
        return {"messages": [HumanMessage(interrupt("May I?"))]}

    def compiled(saver: SessileSaver) -> Any:
        builder = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask")
        return builder.compile(checkpointer=saver)

    with SessileSaver(store) as saver:
        asked = compiled(saver).invoke({"messages": [("user", "delete it")]}, CONFIG, durability=durability)
        assert asked["__interrupt__"][0].value == "May I?"
    graph = compiled(SessileSaver(store))
    assert graph.get_state(CONFIG).interrupts[0].value == "May I?"
    graph.invoke(Command(resume="you may"), CONFIG, durability=durability)
    assert texts(graph.get_state(CONFIG)) == ["delete it", "you may"]


def test_a_fork_of_the_graph_is_a_branch_of_the_session(store: Store) -> None:
    """Continuing from an earlier checkpoint leaves the other branch unchanged, in LangGraph and in the session."""
    saver = SessileSaver(store)
    graph = chat(saver)
    for question in ("first", "second"):
        graph.invoke({"messages": [HumanMessage(question)]}, CONFIG, durability="sync")
    tip = got(saver).config
    settled = next(state for state in graph.get_state_history(CONFIG) if state.metadata["step"] == 1)
    graph.invoke({"messages": [HumanMessage("another")]}, settled.config, durability="sync")
    assert texts(graph.get_state(CONFIG)) == ["first", "answer 1", "another", "answer 3"]
    assert texts(graph.get_state(tip)) == ["first", "answer 1", "second", "answer 2"]
    assert said_in(session_of(SessileSaver(store))) == ["first", "answer 1", "another", "answer 3"]
    assert len(session_of(saver).get_abandoned()) == 1

    asked = next(state for state in graph.get_state_history(CONFIG) if texts(state)[-1:] == ["second"])
    graph.invoke(None, asked.config, durability="sync")
    assert said_in(session_of(saver)) == ["first", "answer 1", "second", "answer 4"]
    updated = graph.update_state(settled.config, {"messages": [HumanMessage("by hand")]})
    assert texts(graph.get_state(updated)) == ["first", "answer 1", "by hand"]
    assert said_in(session_of(saver)) == ["first", "answer 1", "by hand"]


def test_what_a_branch_begins_with_is_told_on_it_though_it_was_said_on_another(store: Store) -> None:
    """LangGraph may store a write before the checkpoint of its branch, when the branch is not known yet."""
    saver = SessileSaver(store)
    said: list[BaseMessage] = [HumanMessage(f"say {number}", id=str(number)) for number in range(60)]
    first = put(saver, {"messages": said[:40]})
    put(saver, {"messages": said[:41]}, first)
    saver.put_writes(_config("0"), [("messages", said[55:44:-1])], "early")
    branch = put(saver, {"messages": [*said[:40], *said[55:44:-1]]}, first)
    expected = [f"say {number}" for number in (*range(40), *range(55, 44, -1))]
    assert said_in(session_of(saver)) == said_in(session_of(SessileSaver(store))) == expected
    put(saver, {"messages": [*said[:40], said[50], said[56]]}, branch)
    put(saver, {"messages": [*said[:40], said[56]]}, branch)
    assert said_in(session_of(saver)) == [*expected, "say 56"]
    assert len(messages_of(session_of(saver))) == 40 + 1 + 2 * 11 + 2


def _config(checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {**CONFIG["configurable"], "checkpoint_id": checkpoint_id}}


def said_in(session: Session) -> list[str]:
    """Return the texts on the path to the leaf."""
    found = [message["content"] for message in session.context().messages]
    return [content if isinstance(content, str) else content[0]["text"] for content in found]


def test_graphs_inside_of_graphs_keep_their_own_checkpoints(store: Store) -> None:
    """Subgraphs have namespaces in one thread, and their messages are in one session in order."""
    saver = SessileSaver(store)
    inner = StateGraph(MessagesState).add_node("think", lambda state: {"messages": [AIMessage("inside")]})
    inner.add_edge(START, "think")
    outer = StateGraph(MessagesState).add_node("inner", inner.compile(checkpointer=True)).add_edge(START, "inner")
    graph = outer.compile(checkpointer=saver)
    graph.invoke({"messages": [HumanMessage("outside")]}, CONFIG)
    namespaces = {
        found.config["configurable"]["checkpoint_ns"] for found in saver.list({"configurable": {"thread_id": "t"}})
    }
    assert namespaces == {"", "inner"}
    assert said_in(session_of(saver)) == ["outside", "inside"]
    assert len(messages_of(session_of(saver))) == 2


class Deltas(TypedDict):
    items: Annotated[
        list[str], DeltaChannel(lambda state, writes: [*state, *(item for write in writes for item in write)])
    ]
    total: Annotated[int, operator.add]


def deltas(saver: SessileSaver) -> Any:
    builder = StateGraph(Deltas).add_node("count", lambda state: {"total": 1}).add_edge(START, "count")
    return builder.compile(checkpointer=saver)


@pytest.mark.filterwarnings("ignore:.*DeltaChannel.*:")  # the warning says that it is new
def test_pruning_cuts_no_history_of_a_delta_channel(store: Store) -> None:
    """The value of a delta channel is the sum of its writes, including those of pruned checkpoints."""
    saver = SessileSaver(store)
    for number in range(4):
        deltas(saver).invoke({"items": [f"item {number}"]}, CONFIG)
    before = saver.get_delta_channel_history(config=CONFIG, channels=["items"])
    assert [write[2] for write in before["items"]["writes"]] == [[f"item {number}"] for number in range(4)]
    saver.prune(["t"])
    assert len(ids(saver)) == 1
    for reader in (saver, SessileSaver(store)):
        assert reader.get_delta_channel_history(config=CONFIG, channels=["items"]) == before
        assert deltas(reader).get_state(CONFIG).values == {
            "items": [f"item {number}" for number in range(4)],
            "total": 4,
        }


# -- storage size


def test_three_hundred_turns_of_two_kilobytes_take_less_than_four_megabytes(folder: Store) -> None:
    """Question and answer have two kilobytes each; full checkpoints would take hundreds of megabytes."""
    saver = SessileSaver(folder)
    sizes = talk_at_length(saver, folder, 300)
    assert sizes[-1] < 4_000_000
    assert len(values_of(saver)["messages"]) == 600
    assert len(messages_of(session_of(saver))) == 600
    first, last = sizes[75] - sizes[25], sizes[-1] - sizes[-51]
    assert last < 1.35 * first, "what a turn costs does not grow with the turns before it"


def talk_at_length(saver: SessileSaver, store: Store, turns: int) -> list[int]:
    """Store what LangGraph would store for a conversation, without running a graph; return the size after each turn."""
    config, said, sizes = CONFIG, list[BaseMessage](), []
    versions: dict[str, str | int | float] = {}
    for turn in range(turns):
        asked, told = HumanMessage(long_text(turn, "asks")), AIMessage(long_text(turn, "answers"), id=f"answer-{turn}")
        start: dict[str, Any] = {"__start__": {"messages": [asked]}}
        config, versions = step(saver, config, versions, {"messages": said, **start}, ["__start__"])
        saver.put_writes(config, [("messages", [asked]), ("branch:to:model", None)], f"start-{turn}", "~__pregel_pull")
        said = [*said, asked.model_copy(update={"id": f"question-{turn}"})]
        config, versions = step(saver, config, versions, {"messages": said, "branch:to:model": None})
        saver.put_writes(config, [("messages", [told])], f"model-{turn}", "~__pregel_pull, model")
        said = [*said, told]
        config, versions = step(saver, config, versions, {"messages": said})
        sizes.append(bytes_in(store))
    return sizes


def long_text(turn: int, verb: str) -> str:
    return f"turn {turn} {verb} " + "".join(f"{turn * 7919 + number * 104729:x} " for number in range(400))[:2048]


def step(
    saver: SessileSaver,
    parent: RunnableConfig,
    before: dict[str, str | int | float],
    state: dict[str, Any],
    changed: list[str] | None = None,
) -> tuple[RunnableConfig, dict[str, str | int | float]]:
    """Return a checkpoint with some new channels and the usual members of LangGraph."""
    number = max(before.values(), default=None)
    version: str | int | float = saver.get_next_version(None if number is None else str(number), None)
    new = dict.fromkeys(changed or state, version)
    versions = {**before, **new}
    checkpoint: Checkpoint = {
        **empty_checkpoint(),
        "id": str(uuid6()),
        "channel_values": state,
        "channel_versions": versions,
        "versions_seen": {"__input__": {}, "__start__": versions, "model": versions},
    }
    return saver.put(parent, checkpoint, {"source": "loop", "step": 1, "parents": {}}, new), versions


def test_what_is_left_out_at_the_beginning_of_a_list_is_not_stored_again(folder: Store) -> None:
    """A sliding window over a list costs only the new items."""
    saver = SessileSaver(folder)
    items = [f"{number} " + long_text(number, "says") for number in range(400)]
    put(saver, {"window": items[:200]})
    before = bytes_in(folder)
    for number in range(100):
        put(saver, {"window": items[number : number + 200]})
    assert bytes_in(folder) - before < 100 * (2_200 + 2_000)


def test_a_checkpoint_is_not_looked_for_in_what_was_read_already(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated reads do not scan again, and new rows of other writers are scanned once."""
    writer, reader = SessileSaver(store), SessileSaver(store)
    for number in range(50):
        put(writer, {"number": number})
    starts = []
    rows = Session.iter_rows

    def noted(session: Session, start: int = 0) -> Iterator[Any]:
        starts.append(start)
        return rows(session, start)

    monkeypatch.setattr(Session, "iter_rows", noted)
    for _ in range(3):
        assert values_of(reader) == {"number": 49}
    put(writer, {"number": 50})
    assert values_of(reader) == {"number": 50}
    assert starts == [0, 50, 50, 49, 50]  # the fourth is the writer


# -- concurrency


def test_four_processes_lose_nothing(folder: Store) -> None:
    """Each puts a hundred checkpoints with a write into one thread, and all 400 are there."""

    def work(said: list[str]) -> None:
        saver = SessileSaver(Store(folder.layout.root, durability="process"))
        config = CONFIG
        for text in said:
            config = put(saver, {"messages": [HumanMessage(text, id=text)]}, config)
            saver.put_writes(config, [("note", text)], "task")
            assert values_of(saver, config)["messages"][0].content == text

    write_at_once(work)
    for reader in (SessileSaver(folder), SessileSaver(Store(folder.layout.root))):
        found = [*reader.list(CONFIG)][::-1]
        assert_all_survived([each.checkpoint["channel_values"]["messages"][0].content for each in found])
        assert_all_survived([each.pending_writes[0][2] for each in found if each.pending_writes])
        assert got(reader).checkpoint["id"] == max(each.checkpoint["id"] for each in found)
    assert len(messages_of(session_of(SessileSaver(folder)))) == 400


def test_many_threads_may_use_one_saver(store: Store) -> None:
    """LangGraph stores from its own threads."""
    saver = SessileSaver(store)

    def work(writer: int) -> None:
        place = CONFIG
        for number in range(20):
            place = put(saver, {"said": f"{writer} {number}"}, place)
            saver.put_writes(place, [("a", number)], f"task-{writer}")
            assert values_of(saver, place) == {"said": f"{writer} {number}"}

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    found = {each.checkpoint["channel_values"]["said"] for each in saver.list(CONFIG) if each.pending_writes}
    assert found == {f"{writer} {number}" for writer in range(6) for number in range(20)}


def test_more_threads_than_are_kept_in_memory_are_all_found(store: Store) -> None:
    """Threads that were evicted from memory are read again."""
    saver = SessileSaver(store)
    names = [f"thread {number}" for number in range(70)]
    for name in names:
        put(saver, {"name": name}, {"configurable": {"thread_id": name, "checkpoint_ns": ""}})
    assert [values_of(saver, {"configurable": {"thread_id": name}})["name"] for name in names] == names
    assert len([*saver.list(None)]) == 70


# -- what people see


def test_people_can_read_and_find_what_was_said(folder: Store, look: Look) -> None:
    """Question, thinking, tool call, result and answer are messages of a session, each stored once."""
    saver = SessileSaver(folder)
    said: list[BaseMessage] = [
        SystemMessage("be brief", id="s"),
        HumanMessage("how many bales?", id="q"),
        AIMessage(
            [{"type": "reasoning", "reasoning": "count them"}, {"type": "text", "text": "I look."}],
            id="a",
            tool_calls=[{"name": "count_hay", "args": {"barn": "north"}, "id": "c1"}],
            response_metadata={"model_name": "gpt-5", "model_provider": "openai", "finish_reason": "tool_calls"},
            usage_metadata={"input_tokens": 9, "output_tokens": 4, "total_tokens": 13},
        ),
        ToolMessage("seventeen bales", tool_call_id="c1", name="count_hay", id="r", status="error"),
        AIMessage("There are 17.", id="z"),
    ]
    for number in range(1, len(said) + 1):
        put(saver, {"messages": said[:number], "last": said[number - 1]})
    shown = look("show", session_of(saver).id)
    heading, _, conversation = shown.partition("\n")
    assert heading.startswith("how many bales?"), shown  # a session without a title is named by its first prompt
    for text in ("how many bales?", "I look.", "There are 17."):
        assert conversation.count(text) == 1, shown
    assert conversation.count("count_hay") == 2, shown  # the call and its result
    assert "how many bales?" in look("search", "bales")
    assert "how many bales?" in look("ls", "--all")
    stored = messages_of(session_of(saver))
    assert [message["role"] for message in stored] == ["system", "user", "assistant", "toolResult", "assistant"]
    call = {"type": "toolCall", "id": "c1", "name": "count_hay", "arguments": {"barn": "north"}}
    assert stored[2]["content"] == [{"type": "thinking", "thinking": "count them"}, *said[2].content[1:], call]
    assert {name: stored[2][name] for name in ("provider", "model", "stopReason", "usage")} == {
        "provider": "openai",
        "model": "gpt-5",
        "stopReason": "toolUse",
        "usage": {"input": 9, "output": 4, "totalTokens": 13},
    }
    assert stored[3]["toolCallId"] == "c1" and stored[3]["toolName"] == "count_hay" and stored[3]["isError"]
    assert values_of(SessileSaver(folder))["messages"] == said


def test_a_text_stands_in_the_session_once_even_if_it_got_its_id_later(folder: Store) -> None:
    """LangGraph stores a question as input and as a write before its reducer assigns an id."""
    saver = SessileSaver(folder)
    chat(saver).invoke({"messages": [HumanMessage("only once, please")]}, CONFIG)
    assert Path(session_of(saver).path).read_bytes().count(b"only once, please") == 1


def test_who_says_the_same_twice_has_said_it_twice(store: Store) -> None:
    """Two messages with equal text are two entries, although the second shares the content of the first."""
    saver = SessileSaver(store)
    graph = chat(saver)
    for _ in range(2):
        graph.invoke({"messages": [HumanMessage("yes")]}, CONFIG)
    assert said_in(session_of(saver)) == ["yes", "answer 1", "yes", "answer 2"]
    later = SessileSaver(store)
    chat(later).invoke({"messages": [HumanMessage("yes")]}, CONFIG)
    assert said_in(session_of(later)) == ["yes", "answer 1", "yes", "answer 2", "yes", "answer 1"]
    for number in range(2):
        put(SessileSaver(store), {"messages": [HumanMessage("no", id=f"no-{number}")]})
    assert said_in(session_of(SessileSaver(store)))[-2:] == ["no", "no"]


# -- types and encryption


@dataclass
class Ticket:
    """A custom type of the program."""

    number: int


def test_only_allowed_types_are_made_from_what_is_read(store: Store) -> None:
    """An unknown type is returned as its members, and no stored code is run."""
    strict, open_minded = SessileSaver(store), SessileSaver(store, allowed_types=[Ticket])
    put(strict, {"ticket": Ticket(7), "tickets": [Ticket(8)]})
    assert values_of(strict) == {"ticket": {"number": 7}, "tickets": [{"number": 8}]}
    assert values_of(open_minded) == {"ticket": Ticket(7), "tickets": [Ticket(8)]}
    clone = strict.with_allowlist([(Ticket.__module__, "Ticket")])
    assert isinstance(clone, SessileSaver) and values_of(clone)["ticket"] == Ticket(7)


def test_a_pickle_is_refused(store: Store) -> None:
    """A custom serializer can allow it."""
    careless = SessileSaver(store, serde=JsonPlusSerializer(pickle_fallback=True))
    put(careless, {"a": complex(1, 2)})
    assert values_of(careless) == {"a": complex(1, 2)}
    with pytest.raises(NotImplementedError):
        values_of(SessileSaver(store))
    with pytest.raises(TypeError):
        put(SessileSaver(store), {"a": complex(1, 2)})


class Cipher:
    """A toy cipher that never returns the same output twice."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        key = os.urandom(1)
        return "xor", key + bytes(byte ^ key[0] ^ 0xA5 for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return bytes(byte ^ ciphertext[0] ^ 0xA5 for byte in ciphertext[1:])


def test_behind_a_cipher_nothing_can_be_read_and_little_is_stored_twice(folder: Store) -> None:
    """List items are deduplicated before encryption, also by a process that has only read them."""
    said: list[BaseMessage] = [HumanMessage(f"secret {number} " + "x" * 2000, id=str(number)) for number in range(30)]
    for number in range(1, 31):
        saver = SessileSaver(Store(folder.layout.root), serde=EncryptedSerializer(Cipher()))
        if number > 1:
            assert values_of(saver) == {"messages": said[: number - 1], "name": "secret"}
        place = put(saver, {"messages": said[:number], "name": "secret"})
        saver.put_writes(place, [("messages", [said[number - 1]])], "task")
        path = session_of(saver).path
    stored = Path(path).read_bytes()
    assert b"secret" not in stored
    assert not messages_of(session_of(saver))
    assert len(stored) < 30 * 2000 * 3
    assert got(saver).pending_writes == [("task", "messages", [said[-1]])]


def test_a_message_that_could_not_be_stored_behind_a_cipher_is_stored_by_the_next_call(
    folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed write is not remembered as stored."""
    saver = SessileSaver(folder, serde=EncryptedSerializer(Cipher()))
    place = put(saver, {"messages": [HumanMessage("one")]})
    said = [HumanMessage("one"), HumanMessage("two")]

    def fail(*_: Any, **__: Any) -> Any:
        raise StorageFull

    with monkeypatch.context() as patch, pytest.raises(StorageFull):
        patch.setattr(Session, "append_many", fail)
        put(saver, {"messages": said}, place)
    put(saver, {"messages": said}, place)
    assert values_of(SessileSaver(folder, serde=saver.serde)) == {"messages": said}


# -- deleting


def test_a_deleted_thread_comes_back_from_the_trash(store: Store) -> None:
    """This holds for `delete_thread` and for `prune` with the "delete" strategy."""
    saver = SessileSaver(store)
    put(saver, {"a": 1})
    saver.delete_thread("t")
    assert saver.get_tuple(CONFIG) is None and not [*saver.list(None)]
    (first,) = [deletion.token for deletion in store.deletions()]
    put(saver, {"a": 2})
    saver.prune(["t"], strategy="delete")
    assert saver.get_tuple(CONFIG) is None
    (second,) = {deletion.token for deletion in store.deletions()} - {first}
    store.undo(first)
    assert values_of(saver) == {"a": 1}
    saver.delete_thread("t")
    store.undo(second)
    assert values_of(saver) == {"a": 2}


def test_a_thread_that_another_saver_deleted_and_began_anew_is_the_new_one(store: Store) -> None:
    """The cached state of the deleted thread is dropped."""
    one, other = SessileSaver(store), SessileSaver(store)
    old = put(one, {"a": 1})
    other.delete_thread("t")
    assert one.get_tuple(CONFIG) is None
    new = put(other, {"a": 2})
    assert values_of(one) == {"a": 2}
    assert one.get_tuple(old) is None
    one.put_writes(new, [("a", 3)], "task")
    assert got(other).pending_writes == [("task", "a", 3)]


def test_hidden_checkpoints_are_shown_again(store: Store) -> None:
    """`restore` works after pruning and deleting runs; a checkpoint that is stored again has no old writes."""
    saver = SessileSaver(store)
    first = put(saver, {"a": 1}, run_id="r1")
    saver.put_writes(first, [("a", 1)], "task")
    second = put(saver, {"a": 2}, first, run_id="r2")
    saver.delete_for_runs(["r2", "unknown"])
    assert ids(SessileSaver(store)) == [first["configurable"]["checkpoint_id"]]
    assert saver.get_tuple(second) is None
    assert saver.restore("t") == 1
    saver.prune(["t", "unknown"])
    assert ids(saver) == [second["configurable"]["checkpoint_id"]]
    assert SessileSaver(store).restore("t") == 1
    assert len(ids(saver)) == 2 and got(saver, first).pending_writes
    assert saver.restore("t") == saver.restore("unknown") == 0

    saver.prune(["t"])
    saver.put(CONFIG, {**empty_checkpoint(), "id": first["configurable"]["checkpoint_id"]}, {}, {})
    assert got(saver, first).pending_writes == []
    with pytest.raises(Invalid):
        saver.prune(["t"], strategy="keep_some")


def test_a_copy_is_independent_and_whole(store: Store) -> None:
    """The copy has all checkpoints with parents, writes and messages; later messages are in one of them only."""
    saver = SessileSaver(store)
    chat(saver).invoke(
        {"messages": [HumanMessage("t" * 600_000), HumanMessage([{"type": "image", "base64": PICTURE}])]}, CONFIG
    )
    saver.copy_thread("t", "copy")
    copy: RunnableConfig = {"configurable": {"thread_id": "copy", "checkpoint_ns": ""}}
    for original, copied in zip(saver.list(CONFIG), SessileSaver(store).list(copy), strict=True):
        assert original.checkpoint == copied.checkpoint and original.metadata == copied.metadata
        assert original.pending_writes == copied.pending_writes
    saver.delete_thread("t")
    chat(saver, "later ").invoke({"messages": [HumanMessage("more")]}, copy)
    assert len(values_of(saver, copy)["messages"]) == 5
    assert saver.get_tuple(CONFIG) is None
    saver.copy_thread("unknown", "other")
    assert {named.name for named in saver.sessions.list()} == {"copy"}


def test_an_entry_of_the_users_among_the_checkpoints_does_no_harm(store: Store) -> None:
    """Users may name the session and append to it."""
    saver = SessileSaver(store)
    first = put(saver, {"a": 1})
    session = session_of(saver)
    session.set_session_name("Hay")
    session.append_message({"role": "user", "content": "a note"})
    session.append_custom_entry("other.thing", {"parts": [1]})
    put(saver, {"a": 2}, first)
    for reader in (saver, SessileSaver(store)):
        assert [found.checkpoint["channel_values"]["a"] for found in reader.list(CONFIG)] == [2, 1]
    assert json.dumps(session.header["named"]["name"]) == '"t"'
