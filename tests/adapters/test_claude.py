"""The store for the Claude Agent SDK: rows are restored exactly, stored once, and readable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, cast

import anyio
import pytest
from claude_agent_sdk import (
    SessionKey,
    SessionStore,
    SessionSummaryEntry,
    delete_session_via_store,
    fold_session_summary,
    fork_session_via_store,
    get_session_messages_from_store,
    list_sessions_from_store,
    project_key_for_directory,
)
from claude_agent_sdk.testing import run_session_store_conformance
from hypothesis import given
from hypothesis import strategies as st

from adapters.conftest import Look
from adapters.many import assert_all_survived, write_at_once
from claude_rows import assistant, boundary, progress, system, uid, user
from sessile import Session, Store
from sessile.adapters import claude
from sessile.adapters.claude import ClaudeSessionStore
from strategies import as_javascript, small

pytestmark = pytest.mark.mission("B9")

T = TypeVar("T")
Json = dict[str, Any]

KEY: SessionKey = {"project_key": "-home-dev-project", "session_id": "11111111-1111-4111-8111-111111111111"}
AGENT: SessionKey = {**KEY, "subpath": "subagents/agent-1"}
PICTURE = "iVBORw0KGgoAAAAN" * 100  # base64, long enough to become a blob


def run(call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Run a call on asyncio and return its result."""
    return anyio.run(partial(call, *arguments))


def result(name: str, call: str, content: Any, **members: Any) -> Json:
    block = {"type": "tool_result", "tool_use_id": call, "content": content}
    return {**user(name), "message": {"role": "user", "content": [block]}, **members}


def chained(*rows: Json) -> list[Json]:
    """Link rows to their predecessors, skipping those without a uuid."""
    before = None
    for row in rows:
        if "uuid" in row:
            row.setdefault("parentUuid", before)
            before = row["uuid"]
    return list(rows)


def conversation() -> list[Json]:
    """Return rows of every kind, with difficult content."""
    thought = {"type": "thinking", "thinking": "hm", "signature": "sealed"}
    calls = [{"type": "tool_use", "id": f"t{n}", "name": "Read", "input": {"n": n}} for n in (1, 2)]
    odd_call = {"type": "tool_use", "id": "t3", "name": "Read", "input": {}, "caller": {"type": "direct"}}
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}
    several = {"type": "tool_result", "tool_use_id": "t2", "content": "two"}
    both = {**result("r3", "t1", "one"), "message": {"role": "user", "content": [several, {**several, "content": []}]}}
    return chained(
        {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
        user("u1", "Read the cargo manifest", timestamp="2026-01-02T03:04:05.678Z", cwd="/home/dev/project"),
        {**assistant("a1"), "message": {"id": "m1", "role": "assistant", "content": [thought, *calls]}},
        result("r1", "t1", "bales of hay", toolUseResult={"stdout": "bales of hay"}),
        result("r2", "t2", [{"type": "text", "text": "twine"}, picture], is_error=True),
        both,
        {**assistant("a2"), "message": {"role": "assistant", "content": [odd_call]}},
        {**assistant("a3"), "message": {"role": "assistant", "content": "only a string"}},
        progress("p1"),
        system("s1"),
        user("m1", "a caveat", isMeta=True),
        user("u2", "x" * 600_000),
        {**user("u3"), "message": {"role": "user", "content": ["no block", {"type": "new", "partialJson": "{"}]}},
        {**user("u4"), "toolUseResult": {"content": "a\nb", "lineCount": 7, "image_url": "blob:sha256:" + "0" * 64}},
        {**user("u5"), "message": {"role": "user"}, "n": [1.5, 2**70, None, True, "\ud800"]},
        {"type": "ai-title", "aiTitle": "Hay"},
        {"type": "custom-title", "customTitle": "The hay barn"},
        {"type": "ai-title", "aiTitle": "Hay again"},
        {"type": "tag", "tag": "farm"},
        {**boundary("b1"), "compactMetadata": {"preTokens": 9, "preservedMessages": {"uuids": [uid("u5")]}}},
        user("c1", "All about hay so far", isCompactSummary=True),
        user("u6", "And straw?"),
        {"type": "summary", "summary": "Hay", "leafUuid": uid("u6")},
        assistant("a4"),
    )


@pytest.fixture
def transcripts(store: Store) -> ClaudeSessionStore:
    return ClaudeSessionStore(store)


def again(store: Store) -> ClaudeSessionStore:
    """Return the same transcripts as another process opens them."""
    return ClaudeSessionStore(store)


def only_session(store: Store) -> Session:
    (info,) = store.list_all()
    return store.open(info.path, readonly=True)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_sdks_own_kit_passes(store: Store, backend: str) -> None:
    """All fourteen contracts pass on both event loops, and none is skipped."""
    optional = ("list_sessions", "list_session_summaries", "delete", "list_subkeys")
    assert all(getattr(ClaudeSessionStore, name) is not getattr(SessionStore, name) for name in optional)

    async def fresh() -> ClaudeSessionStore:
        for info in store.list_all():
            store.delete(info.path)
        return ClaudeSessionStore(store)

    anyio.run(run_session_store_conformance, fresh, backend=backend)


def test_every_sort_of_row_comes_back_as_it_was(store: Store, transcripts: ClaudeSessionStore) -> None:
    """This holds for one batch and single rows, from memory and from the journal."""
    rows = conversation()
    run(transcripts.append, KEY, rows)
    for row in rows:
        run(transcripts.append, AGENT, [row])
    for source in (transcripts, again(store)):
        assert run(source.load, KEY) == rows
        assert run(source.load, AGENT) == rows


blocks = st.builds(
    lambda kind, rest: {**rest, "type": kind},
    st.sampled_from(["text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image"]),
    st.dictionaries(st.sampled_from(["text", "thinking", "content", "source", "input", "data", "partialJson"]), small),
)
rows_of_any_sort = st.builds(
    lambda kind, content, rest: {**rest, "type": kind, "message": {"content": content}},
    st.sampled_from(["user", "assistant", "system", "custom-title", "x"]),
    st.lists(blocks | small, max_size=3) | small,
    st.dictionaries(st.sampled_from(["uuid", "isMeta", "isCompactSummary", "customTitle", "toolUseResult"]), small),
)


@given(row=rows_of_any_sort)
def test_whatever_a_row_is_it_comes_back_as_it_was(row: Json) -> None:
    """Rows are opaque: malformed messages are stored too."""
    transcripts = ClaudeSessionStore(Store.in_memory())
    run(transcripts.append, KEY, [row])
    assert run(transcripts.load, KEY) == [as_javascript(row)]


def test_a_row_is_stored_once_however_often_it_comes(store: Store, transcripts: ClaudeSessionStore) -> None:
    """Retries, other processes and duplicates in one batch are detected by uuid."""
    rows = chained(user("u1"), assistant("a1"))
    run(transcripts.append, KEY, [*rows, rows[0]])
    run(again(store).append, KEY, [*rows, *chained(user("u2"))])
    run(transcripts.append, KEY, [rows[1], {**user("u2"), "parentUuid": None}])
    assert [row["uuid"] for row in run(transcripts.load, KEY) or []] == [uid("u1"), uid("a1"), uid("u2")]


def test_rows_without_a_uuid_are_stored_every_time(transcripts: ClaudeSessionStore) -> None:
    """Titles and tags may repeat."""
    row = {"type": "tag", "tag": "farm"}
    run(transcripts.append, KEY, [row, row])
    run(transcripts.append, KEY, [row])
    assert run(transcripts.load, KEY) == [row] * 3


def test_an_empty_batch_begins_no_session(store: Store, transcripts: ClaudeSessionStore) -> None:
    """A session without rows does not exist."""
    run(transcripts.append, KEY, [])
    assert run(transcripts.load, KEY) is None
    assert not store.list_all()


def test_projects_with_slashes_keep_their_sub_agents_apart(transcripts: ClaudeSessionStore) -> None:
    """No two keys share a session."""
    keys: list[SessionKey] = [
        {"project_key": "a/b", "session_id": "c", "subpath": "x"},
        {"project_key": "a", "session_id": "b/c", "subpath": "x"},
        {"project_key": "a%2Fb", "session_id": "c", "subpath": "x"},
    ]
    for number, key in enumerate(keys):
        run(transcripts.append, key, [{"type": "n", "n": number}])
    assert [run(transcripts.load, key) for key in keys] == [[{"type": "n", "n": number}] for number in range(3)]
    assert run(transcripts.list_subkeys, {"project_key": "a", "session_id": "b/c"}) == ["x"]


# -- what people see


def test_rows_are_messages_results_and_titles(store: Store, transcripts: ClaudeSessionStore) -> None:
    """The conversation reads like a native one; each of several results is its own message."""
    run(transcripts.append, KEY, conversation())
    session = only_session(store)
    said = [entry["message"] for entry in session.iter_entries() if entry.type == "message"]
    roles = [message["role"] for message in said]
    assert roles[:8] == ["user", "assistant", *["toolResult"] * 4, *["assistant"] * 2]
    assert [part["type"] for part in said[1]["content"]] == ["thinking", "toolCall", "toolCall"]
    assert session.title == "The hay barn"
    assert session.header["named"]["name"] == KEY["session_id"]


def test_the_context_begins_with_the_compaction(store: Store, transcripts: ClaudeSessionStore) -> None:
    """Messages kept by the boundary stay, and earlier ones are replaced by the summary."""
    run(transcripts.append, KEY, conversation())
    messages = only_session(store).context().messages
    assert [message["role"] for message in messages] == ["compactionSummary", "user", "user", "assistant"]
    assert messages[0]["summary"] == "All about hay so far"
    assert messages[2]["content"] == "And straw?"


def test_a_prompt_at_an_earlier_row_begins_a_branch(store: Store, transcripts: ClaudeSessionStore) -> None:
    """The earlier row becomes a branch point, and rows stay in the order of arrival."""
    rows = chained(user("u1"), assistant("a1"), user("u2"), assistant("a2"))
    other = [user("u3", parentUuid=uid("a1")), assistant("a3", parentUuid=uid("u3"))]
    run(transcripts.append, KEY, [*rows, *other])
    session = only_session(store)
    texts = [entry["message"]["content"] for entry in session.get_branch() if entry["message"]["role"] == "user"]
    assert texts == ["u1", "u3"]
    assert len(session.get_heads()) == 2
    run(transcripts.append, KEY, [user("u4", parentUuid=uid("a2"))])
    assert len(only_session(store).get_branch()) == 5
    assert run(transcripts.load, KEY) == [*rows, *other, user("u4", parentUuid=uid("a2"))]


def test_rows_go_on_from_where_somebody_has_gone_back_to(folder: Store) -> None:
    """New rows follow the leaf that a user moved back."""
    transcripts = ClaudeSessionStore(folder)
    run(transcripts.append, KEY, chained(user("u1"), assistant("a1")))
    (info,) = folder.list_all()
    with Store(folder.layout.root).open(info.path) as other:
        before = other.leaf_id
        other.append_custom_entry("note", "of another program")
        other.branch(str(before), durable=True)
    run(transcripts.append, KEY, [user("u2", parentUuid=uid("a1"))])
    assert [entry["message"]["role"] for entry in only_session(folder).get_branch()] == ["user", "assistant", "user"]
    assert [row["uuid"] for row in cast(list[Any], run(transcripts.load, KEY))] == [uid("u1"), uid("a1"), uid("u2")]


def test_what_was_said_is_stored_once(folder: Store) -> None:
    """The content is in the entry and is not repeated in the stored row."""
    transcripts = ClaudeSessionStore(folder)
    question = user("u1", "why is straw yellow")
    reply = {**assistant("a1"), "message": {"role": "assistant", "content": [{"type": "text", "text": "it is dry"}]}}
    run(transcripts.append, KEY, chained({"type": "x"}, question, reply, result("r1", "t", "straw has dried")))
    (info,) = folder.list_all()
    with open(info.path) as file:
        journal = file.read().replace('"first_prompt":"why is straw yellow"', "")  # in the SDK's own summary
    assert [journal.count(text) for text in ("why is straw", "it is dry", "straw has dried")] == [1, 1, 1]


def test_the_command_shows_and_finds_it(folder: Store, look: Look) -> None:
    """`sessile show` and `sessile search` work on these sessions."""
    run(ClaudeSessionStore(folder).append, KEY, conversation())
    session = only_session(folder)
    assert "And straw?" in look("show", session.id)
    assert "The hay barn" in look("ls", "--all")
    assert session.id in look("search", "manifest")


# -- summaries


def folded(rows: list[Any]) -> Json:
    """Return the SDK's summary of all rows."""
    summary: SessionSummaryEntry = fold_session_summary(None, KEY, rows)
    return summary["data"]


def test_summaries_are_what_the_sdk_folds_and_are_as_new_as_the_list(
    store: Store, transcripts: ClaudeSessionStore
) -> None:
    """Single batches give the same summary as all rows; another process reads it from the end of the session."""
    rows = conversation()
    for at in range(0, len(rows), 5):
        run(transcripts.append, KEY, rows[at : at + 5])
    run(transcripts.append, AGENT, [{"type": "custom-title", "customTitle": "not of the session"}])
    for source in (transcripts, again(store)):
        (summary,) = run(source.list_session_summaries, KEY["project_key"])
        assert summary["data"] == folded(rows)
        (listed,) = run(source.list_sessions, KEY["project_key"])
        assert listed == {"session_id": KEY["session_id"], "mtime": summary["mtime"]}


def test_a_batch_that_a_crash_has_cut_is_summed_up_all_the_same(folder: Store) -> None:
    """If the summary line is missing, the stored rows are folded again."""
    rows = conversation()
    run(ClaudeSessionStore(folder).append, KEY, rows)
    (info,) = folder.list_all()
    with open(info.path, "rb+") as file:
        lines = file.read().removesuffix(b"\n").split(b"\n")
        file.truncate(sum(len(line) + 1 for line in lines[:-1]))
    after = ClaudeSessionStore(folder)
    (summary,) = run(after.list_session_summaries, KEY["project_key"])
    assert summary["data"] == folded(rows[:-1])
    run(after.append, KEY, rows)
    assert run(after.load, KEY) == [*rows[:-1], *(row for row in rows[:-1] if "uuid" not in row), rows[-1]]


# -- concurrency and size


def test_four_processes_lose_nothing_and_agree_on_the_summary(folder: Store) -> None:
    """All 400 rows survive, and the summary matches their order."""
    root = folder.layout.root

    def write(texts: list[str]) -> None:
        mine = ClaudeSessionStore(Store(root, durability="process"))

        async def append_all() -> None:
            for text in texts:
                row = {**user(text, text), "uuid": text, "customTitle": text}
                await mine.append(KEY, [row])  # type: ignore[list-item]
                await mine.append(KEY, [row])  # type: ignore[list-item]

        anyio.run(append_all)

    write_at_once(write)
    transcripts = ClaudeSessionStore(folder)
    rows = cast(list[Any], run(transcripts.load, KEY))
    assert_all_survived([row["uuid"] for row in rows])
    (summary,) = run(transcripts.list_session_summaries, KEY["project_key"])
    assert summary["data"] == folded(rows)


def test_appending_looks_at_every_row_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work grows linearly with the number of rows."""
    looks = 0
    inner = claude._row_of

    def counted(body: Json) -> Json | None:
        nonlocal looks
        looks += 1
        return inner(body)

    monkeypatch.setattr(claude, "_row_of", counted)
    transcripts = ClaudeSessionStore(store)
    rows = chained(*({**user("u", "hello"), "uuid": f"u{number}"} for number in range(10_000)))

    async def append_all() -> None:
        for at in range(0, len(rows), 500):
            await transcripts.append(KEY, rows[at : at + 500])  # type: ignore[arg-type]

    anyio.run(append_all)
    assert looks == len(rows) - 500  # the next append looks at the last batch


# -- deleting, and the SDK's own functions


def test_deleting_goes_to_the_trash_and_can_be_undone(store: Store, transcripts: ClaudeSessionStore) -> None:
    """The session and its sub-agents are restored from the trash."""
    rows = conversation()
    run(transcripts.append, KEY, rows)
    run(transcripts.append, AGENT, rows)
    run(transcripts.delete, KEY)
    assert run(transcripts.load, KEY) is run(transcripts.load, AGENT) is None
    for deletion in list(store.deletions()):
        store.undo(deletion.token)
    assert run(transcripts.load, KEY) == run(transcripts.load, AGENT) == rows


def test_what_was_deleted_can_be_begun_anew(store: Store, transcripts: ClaudeSessionStore) -> None:
    """Rows of the deleted session do not count as duplicates."""
    rows = chained(user("u1"), assistant("a1"))
    run(transcripts.append, KEY, rows)
    run(transcripts.delete, KEY)
    run(transcripts.append, KEY, rows)
    assert run(transcripts.load, KEY) == run(again(store).load, KEY) == rows
    elsewhere = again(store)
    run(elsewhere.delete, KEY)
    run(elsewhere.append, KEY, rows[:1])
    run(transcripts.append, KEY, rows)
    assert run(transcripts.load, KEY) == run(elsewhere.load, KEY) == rows


def test_the_sdks_functions_work_on_it(transcripts: ClaudeSessionStore) -> None:
    """Listing, reading, forking and deleting work."""
    place = "/home/dev/project"
    key: SessionKey = {**KEY, "project_key": project_key_for_directory(place)}
    base = {"cwd": place, "sessionId": KEY["session_id"], "isSidechain": False, "timestamp": "2026-01-02T03:04:05.678Z"}
    rows = [{**row, **base} for row in chained(user("u1", "hay?"), assistant("a1"))]
    run(transcripts.append, key, rows)
    (info,) = run(partial(list_sessions_from_store, transcripts, directory=place))
    assert (info.session_id, info.first_prompt) == (KEY["session_id"], "hay?")
    read = partial(get_session_messages_from_store, transcripts, KEY["session_id"], directory=place)
    assert [message.uuid for message in run(read)] == [uid("u1"), uid("a1")]
    fork = run(partial(fork_session_via_store, transcripts, KEY["session_id"], directory=place))
    run(partial(delete_session_via_store, transcripts, KEY["session_id"], directory=place))
    assert [info.session_id for info in run(partial(list_sessions_from_store, transcripts, directory=place))] == [
        fork.session_id
    ]
