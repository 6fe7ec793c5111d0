"""The session service for Google's ADK: the contract of the ADK's own services, and features of ours.

`DIFFERENCES` lists where an ADK service breaks the contract, with the reason; the test must fail for it.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.session import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from adapters.conftest import Look
from adapters.many import TEXTS, assert_all_survived, write_at_once
from sessile import Store
from sessile.adapters import adk
from sessile.adapters.adk import SessileSessionService
from sessile.storage.memory import MemoryFilesystem

pytestmark = pytest.mark.mission("B9")

Json = dict[str, Any]
Case = Coroutine[Any, Any, None]

IN_MEMORY, SQLITE = "ADK in memory", "ADK on SQLite"
DIFFERENCES = {
    ("test_a_session_that_has_not_seen_the_last_event_is_stale", IN_MEMORY): "it takes events from whoever comes",
    ("test_events_stand_in_the_order_in_which_they_were_appended", SQLITE): "it sorts events by their time",
    ("test_the_same_event_again_is_stored_once", SQLITE): "the id of an event must be new",
    ("test_another_event_of_the_same_id_is_kept", SQLITE): "the id of an event must be new",
    ("test_values_that_json_cannot_say_are_stored_as_text", IN_MEMORY): "it keeps the object",
}


@pytest.fixture(params=[IN_MEMORY, SQLITE, "ours in a folder", "ours in memory"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> BaseSessionService:
    """Return every service that must keep the contract."""
    difference = DIFFERENCES.get((request.function.__name__, request.param))
    if difference is not None:
        request.applymarker(pytest.mark.xfail(reason=difference, strict=True))
    if request.param == IN_MEMORY:
        return InMemorySessionService()
    if request.param == SQLITE:
        return SqliteSessionService(str(tmp_path / "adk.db"))
    if request.param == "ours in memory":
        return SessileSessionService(Store.in_memory())
    return SessileSessionService(Store(tmp_path / "root", durability="process", clock=ticking()))


def ticking() -> Callable[[], float]:
    """Return a clock with distinct milliseconds, because file times are too coarse to order changes."""
    last = 0.0

    def now() -> float:
        nonlocal last
        last = max(time.time(), last + 0.002)
        return last

    return now


def said(text: str, delta: Json | None = None, at: float | None = None) -> Event:
    """Return a user event that changes the state."""
    content = types.Content(role="user", parts=[types.Part(text=text)])
    event = Event(
        author="user", invocation_id="i", content=content, actions=EventActions(state_delta=dict(delta or {}))
    )
    return event if at is None else event.model_copy(update={"timestamp": at})


async def begun(
    service: BaseSessionService, session_id: str = "s", user_id: str = "u", state: Json | None = None
) -> Session:
    return await service.create_session(app_name="farm", user_id=user_id, session_id=session_id, state=state)


async def got(service: BaseSessionService, session_id: str = "s", user_id: str = "u", **config: Any) -> Session:
    wanted = GetSessionConfig(**config) if config else None
    found = await service.get_session(app_name="farm", user_id=user_id, session_id=session_id, config=wanted)
    assert found is not None
    return found


def texts(session: Session) -> list[str]:
    parts = [event.content.parts for event in session.events if event.content is not None]
    return [part.text for of_event in parts for part in of_event or [] if part.text is not None]


def rich_events() -> list[Event]:
    """Return events of every kind."""
    call = types.FunctionCall(id="c1", name="feed", args={"animal": None, "kilos": 1.5})
    thought = types.Part(text="hm", thought=True, thought_signature=b"\x01\xff\xfe")
    picture = types.Part(inline_data=types.Blob(data=bytes(range(256)) * 8, mime_type="image/png"))
    results = [
        types.Part(function_response=types.FunctionResponse(id="c1", name="feed", response=response))
        for response in ({"result": "fed with barley"}, {"error": "no hay"}, {"eaten": 3, "left": [1]})
    ]
    code = types.Part(executable_code=types.ExecutableCode(code="1+1", language=types.Language.PYTHON))
    usage = types.GenerateContentResponseUsageMetadata(
        prompt_token_count=9, cached_content_token_count=4, candidates_token_count=2, thoughts_token_count=1
    )

    def of(*parts: types.Part, author: str = "farmer", **members: Any) -> Event:
        role = "user" if author == "user" or any(part.function_response for part in parts) else "model"
        content = types.Content(role=role, parts=list(parts))
        return Event(author=author, invocation_id="i", content=content, **members)

    return [
        of(types.Part(text="Feed the horse"), picture, author="user"),
        of(thought, types.Part(function_call=call), usage_metadata=usage, model_version="gemini-9"),
        of(results[0], long_running_tool_ids={"b", "a"}),
        of(results[1]),
        of(*results),
        of(code, types.Part(text="Done"), branch="a.b", custom_metadata={"partialJson": "{", "lineCount": 3}),
        of(types.Part(text="x" * 600_000)),
        Event(author="farmer", actions=EventActions(state_delta={"k": {"blob:sha256:" + "0" * 64: None}})),
        Event(author="farmer", error_code="SAFETY", error_message="no"),
    ]


def run(case: Case) -> None:
    asyncio.run(case)


# -- the contract


def test_a_session_begins_with_its_state(service: BaseSessionService) -> None:
    """The returned state merges all scopes, without temporary keys."""

    async def case() -> None:
        session = await begun(service, " s ", state={"own": 1, "user:name": "Ada", "app:motto": "hay", "temp:x": 2})
        assert session.id == "s"
        assert session.state == {"own": 1, "user:name": "Ada", "app:motto": "hay"}
        assert session.events == []
        again = await got(service, " s ")
        assert (again.state, again.last_update_time) == (session.state, session.last_update_time)

    run(case())


def test_a_session_without_an_id_gets_one(service: BaseSessionService) -> None:
    """Ids are unique."""

    async def case() -> None:
        first, second = await begun(service, ""), await begun(service, "  ")
        assert first.id and second.id and first.id != second.id

    run(case())


def test_an_id_can_be_taken_once_for_each_user(service: BaseSessionService) -> None:
    """Creating the session again raises and changes nothing; another user may use the same id."""

    async def case() -> None:
        await begun(service, state={"n": 1})
        with pytest.raises(AlreadyExistsError):
            await begun(service, "s ", state={"n": 2})
        assert (await got(service)).state == {"n": 1}
        await begun(service, user_id="other", state={"n": 3})
        assert (await got(service)).state == {"n": 1}

    run(case())


def test_what_is_not_there_is_none_and_can_be_deleted(service: BaseSessionService) -> None:
    """Reading a missing session creates nothing."""

    async def case() -> None:
        assert await service.get_session(app_name="farm", user_id="u", session_id="s") is None
        await service.delete_session(app_name="farm", user_id="u", session_id="s")
        assert (await service.list_sessions(app_name="farm")).sessions == []
        assert await service.get_user_state(app_name="farm", user_id="u") == {}
        with pytest.raises(SessionNotFoundError):
            await service.append_event(Session(id="s", app_name="farm", user_id="u"), said("hello"))

    run(case())


def test_events_come_back_as_they_were(service: BaseSessionService) -> None:
    """Order and content are the same."""

    async def case() -> None:
        session, events = await begun(service), rich_events()
        for event in events:
            assert await service.append_event(session, event) is event
        assert session.events == events
        found = await got(service)
        assert found.events == events
        assert found.last_update_time == session.last_update_time == events[-1].timestamp

    run(case())


def test_state_is_shared_as_its_prefix_says(service: BaseSessionService) -> None:
    """`app:` is shared by all, `user:` by the user's sessions, other keys by none; `temp:` lasts for the call only."""

    async def case() -> None:
        session = await begun(service)
        await begun(service, "t")
        await begun(service, "s", "other")
        delta = {"own": None, "user:name": "Ada", "app:motto": {"de": "Heu"}, "temp:x": 2}
        event = await service.append_event(session, said("hello", delta))
        assert session.state == delta
        assert "temp:x" not in event.actions.state_delta
        shared = {"app:motto": {"de": "Heu"}}
        assert (await got(service)).state == {"own": None, "user:name": "Ada", **shared}
        assert (await got(service, "t")).state == {"user:name": "Ada", **shared}
        assert (await got(service, user_id="other")).state == shared
        assert await service.get_user_state(app_name="farm", user_id="u") == {"name": "Ada"}

    run(case())


def test_partial_events_are_not_stored(service: BaseSessionService) -> None:
    """They are returned but not stored."""

    async def case() -> None:
        session = await begun(service)
        event = said("hel", {"own": 1})
        event.partial = True
        assert await service.append_event(session, event) is event
        assert session.events == (await got(service)).events == []
        assert (await got(service)).state == {}

    run(case())


def test_only_the_events_that_are_wanted_come(service: BaseSessionService) -> None:
    """Events can be limited by number, by time or both; the state includes all events."""

    async def case() -> None:
        session = await begun(service)
        start = session.last_update_time
        for number in range(5):
            await service.append_event(session, said(f"t{number}", {f"n{number}": number}, start + number))
        assert texts(await got(service, num_recent_events=2)) == ["t3", "t4"]
        assert texts(await got(service, num_recent_events=9)) == [f"t{number}" for number in range(5)]
        assert texts(await got(service, after_timestamp=start + 3)) == ["t3", "t4"]
        assert texts(await got(service, after_timestamp=start + 2, num_recent_events=2)) == ["t3", "t4"]
        none = await got(service, num_recent_events=0)
        assert none.events == []
        assert none.state == {f"n{number}": number for number in range(5)}

    run(case())


def test_sessions_are_listed_with_the_last_changed_at_the_end(service: BaseSessionService) -> None:
    """The list has sessions of one user or all, with state and without events."""

    async def case() -> None:
        first = await begun(service, "first", state={"n": 1})
        await begun(service, "second", state={"user:name": "Ada"})
        await begun(service, "third", "other")
        await service.create_session(app_name="farm/u", user_id="u", session_id="elsewhere")
        await service.append_event(first, said("late", at=first.last_update_time + 9))
        mine = (await service.list_sessions(app_name="farm", user_id="u")).sessions
        assert [session.id for session in mine] == ["second", "first"]
        assert [session.state for session in mine] == [{"user:name": "Ada"}, {"n": 1, "user:name": "Ada"}]
        everyone = (await service.list_sessions(app_name="farm")).sessions
        assert [(session.user_id, session.id) for session in everyone][1:] == [("other", "third"), ("u", "first")]
        assert not any(session.events for session in everyone)

    run(case())


def test_sessions_of_one_millisecond_are_listed_in_the_order_of_their_changes() -> None:
    """Sessions with equal times are ordered by the change times of their files."""

    async def case() -> None:
        fs = MemoryFilesystem(clock=count(1).__next__)
        service = SessileSessionService(Store("/memory", fs=fs, durability="process", clock=lambda: 1_700_000_000.0))
        for name in ("c", "a", "b"):
            await begun(service, name, user_id=f"user of {name}")
        listed = (await service.list_sessions(app_name="farm")).sessions
        assert [session.id for session in listed] == ["c", "a", "b"]
        assert len({session.last_update_time for session in listed}) == 1

    run(case())


def test_deleting_a_session_leaves_the_others_and_what_they_share(service: BaseSessionService) -> None:
    """The id can be used again."""

    async def case() -> None:
        await begun(service, "s", state={"user:name": "Ada", "n": 1})
        await begun(service, "t")
        await service.delete_session(app_name="farm", user_id="u", session_id=" s")
        assert await service.get_session(app_name="farm", user_id="u", session_id="s") is None
        assert [session.id for session in (await service.list_sessions(app_name="farm")).sessions] == ["t"]
        assert (await begun(service, "s")).state == {"user:name": "Ada"}

    run(case())


def test_a_session_that_has_not_seen_the_last_event_is_stale(service: BaseSessionService) -> None:
    """Nothing is stored; reading the session again resolves it."""

    async def case() -> None:
        session = await begun(service)
        late = await got(service)
        await service.append_event(session, said("first", at=session.last_update_time + 1))
        with pytest.raises(StaleSessionError):
            await service.append_event(late, said("second", {"app:n": 1}))
        found = await got(service)
        assert (texts(found), found.state) == (["first"], {})
        await service.append_event(found, said("second", at=found.last_update_time + 1))
        assert texts(await got(service)) == ["first", "second"]

    run(case())


def test_events_stand_in_the_order_in_which_they_were_appended(service: BaseSessionService) -> None:
    """Events with earlier timestamps are not reordered."""

    async def case() -> None:
        session = await begun(service)
        for text, at in (("first", session.last_update_time + 9), ("second", session.last_update_time)):
            await service.append_event(session, said(text, at=at))
        assert texts(await got(service)) == texts(session) == ["first", "second"]

    run(case())


def test_the_same_event_again_is_stored_once(service: BaseSessionService) -> None:
    """A caller may retry with the event or a copy of it."""

    async def case() -> None:
        session, event = await begun(service), said("hello", {"app:n": 1})
        await service.append_event(session, event)
        await service.append_event(session, event)
        await service.append_event(session, event.model_copy(deep=True))
        assert texts(session) == texts(await got(service)) == ["hello"]
        await service.append_event(session, said("and on"))
        assert texts(await got(service)) == ["hello", "and on"]

    run(case())


def test_another_event_of_the_same_id_is_kept(service: BaseSessionService) -> None:
    """Only equal events are duplicates."""

    async def case() -> None:
        session, event = await begun(service), said("hello")
        await service.append_event(session, event)
        await service.append_event(session, said("bye").model_copy(update={"id": event.id}))
        assert texts(await got(service)) == ["hello", "bye"]

    run(case())


def test_values_that_json_cannot_say_are_stored_as_text(service: BaseSessionService) -> None:
    """A date is stored as its JSON text, so that any process can read the state."""

    async def case() -> None:
        session = await begun(service, state={"day": datetime.date(2026, 1, 2)})
        await service.append_event(session, said("hello", {"night": datetime.date(2026, 1, 3)}))
        assert (await got(service)).state == {"day": "2026-01-02", "night": "2026-01-03"}

    run(case())


# -- features of ours


def test_a_session_that_was_written_to_json_and_back_can_go_on(folder: Store) -> None:
    """A deserialized session has no revision mark; its last event is used instead."""

    async def case() -> None:
        service = SessileSessionService(folder)
        session = await begun(service)
        await service.append_event(session, said("one"))
        copy = Session.model_validate_json(session.model_dump_json())
        await service.append_event(copy, said("two"))
        with pytest.raises(StaleSessionError):
            await service.append_event(Session.model_validate_json(session.model_dump_json()), said("three"))
        assert texts(await got(service)) == ["one", "two"]

    run(case())


def test_another_process_sees_what_was_acknowledged(store: Store) -> None:
    """This also holds for sessions that are already open."""

    async def case() -> None:
        mine, theirs = SessileSessionService(store), SessileSessionService(store)
        session = await begun(mine)
        assert (await got(theirs)).events == []
        await mine.append_event(session, said("hello", {"n": 1, "user:m": 2, "app:k": 3}))
        found = await got(theirs)
        assert (texts(found), found.state) == (["hello"], {"n": 1, "user:m": 2, "app:k": 3})
        await theirs.append_event(found, said("and back"))
        assert texts(await got(mine)) == ["hello", "and back"]

    run(case())


def test_a_state_is_read_from_its_last_snapshot(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the state takes few entries in a session of any length, and includes all events."""

    async def case() -> None:
        service = SessileSessionService(store)
        session = await begun(service, state={"first": True})
        for number in range(200):
            await service.append_event(session, said("t", {"n": number, f"k{number}": None, "app:n": number}))
        looks = 0
        inner = adk._note_of

        def counted(body: Json) -> Json | None:
            nonlocal looks
            looks += 1
            return inner(body)

        monkeypatch.setattr(adk, "_note_of", counted)
        found = await got(service, num_recent_events=1)
        assert looks < 4 * 66
        assert found.state == {"first": True, "n": 199, "app:n": 199, **{f"k{n}": None for n in range(200)}}
        assert found.state == session.state

    run(case())


def test_delivering_again_completes_what_a_crash_has_cut(folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the event was stored but the app state was not, a retry completes it."""

    async def case() -> None:
        service = SessileSessionService(folder)
        session, event = await begun(service), said("hello", {"app:n": 1})

        def crash(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as broken:
            broken.setattr(SessileSessionService, "_change_states", crash)
            with pytest.raises(KeyboardInterrupt):
                service._append(session, event)
        assert (await got(service)).state == {}
        await service.append_event(session, event)
        assert (await got(service)).state == {"app:n": 1}
        assert texts(session) == texts(await got(service)) == ["hello"]
        await service.append_event(session, said("and on"))
        assert texts(await got(service)) == ["hello", "and on"]

    run(case())


def test_naming_a_session_makes_nobody_stale(folder: Store) -> None:
    """Entries that users add beside the events do not conflict with the ADK."""

    async def case() -> None:
        service = SessileSessionService(folder)
        session = await begun(service)
        await service.append_event(session, said("one"))
        (path,) = [info.path for info in folder.list_all() if info.cwd.startswith("/adk/")]
        with Store(folder.layout.root).open(path) as other:
            other.set_session_name("The farm")
        await service.append_event(session, said("two"))
        assert texts(await got(service)) == ["one", "two"]

    run(case())


def test_a_session_goes_on_from_where_somebody_has_gone_back_to(folder: Store) -> None:
    """Stepping back makes the agent's session stale; after a reload it has only the earlier events."""

    async def case() -> None:
        service = SessileSessionService(folder)
        session = await begun(service)
        await service.append_event(session, said("one", {"n": 1}))
        await service.append_event(session, said("two", {"n": 2}))
        (path,) = [info.path for info in folder.list_all() if info.cwd.startswith("/adk/")]
        with Store(folder.layout.root).open(path) as other:
            other.branch(other.get_branch()[1].id, durable=True)
        with pytest.raises(StaleSessionError):
            await service.append_event(session, said("three"))
        found = await got(service)
        assert (texts(found), found.state) == (["one"], {"n": 1})
        await service.append_event(found, said("three"))
        assert texts(await got(service)) == ["one", "three"]

    run(case())


def test_four_processes_lose_nothing(folder: Store) -> None:
    """Stale writers reload and retry: all 400 events and 400 changes of the app state survive."""
    run(_begun_in(folder))
    root = folder.layout.root

    def write(mine: list[str]) -> None:
        service = SessileSessionService(Store(root, durability="process"))

        async def append_all() -> None:
            session = await got(service, num_recent_events=0)
            for text in mine:
                event = said(text, {f"app:{text}": True})
                while True:
                    try:
                        await service.append_event(session, event)
                        break
                    except StaleSessionError:
                        session = await got(service, num_recent_events=0)

        asyncio.run(append_all())

    write_at_once(write)

    async def check() -> None:
        found = await got(SessileSessionService(folder))
        assert_all_survived(texts(found))
        assert found.state == {f"app:{text}": True for text in TEXTS}

    run(check())


async def _begun_in(folder: Store) -> None:
    await begun(SessileSessionService(folder))


async def _filled(folder: Store) -> None:
    service = SessileSessionService(folder)
    session = await begun(service)
    for event in rich_events():
        await service.append_event(session, event)


def test_events_are_messages_that_people_can_read(folder: Store, look: Look) -> None:
    """`sessile show` and `search` work on the session as on a native one."""
    run(_filled(folder))
    (path,) = [info.path for info in folder.list_all() if info.cwd.startswith("/adk/")]
    session = folder.open(path, readonly=True)
    messages = [entry["message"] for entry in session.iter_entries() if entry.type == "message"]
    roles = [message["role"] for message in messages]
    assert roles == ["user", "assistant", *["toolResult"] * 5, *["assistant"] * 3]
    assert [part["type"] for part in messages[1]["content"]] == ["thinking", "toolCall"]
    assert messages[1]["usage"] == {"input": 5, "cacheRead": 4, "output": 3}
    assert messages[2]["content"] == [{"type": "text", "text": "fed with barley"}]
    assert (messages[3]["isError"], messages[-1]["errorMessage"]) == (True, "no")
    assert "Feed the horse" in look("show", session.id)
    assert session.id in look("search", "barley", "--in", "tool_result")


def test_what_was_said_is_stored_once(folder: Store) -> None:
    """The content is in the entry and is not repeated in the stored event."""

    async def case() -> None:
        service = SessileSessionService(folder)
        session = await begun(service)
        await service.append_event(session, said("why is straw yellow"))
        await service.append_event(session, rich_events()[2])

    run(case())
    (path,) = [info.path for info in folder.list_all() if info.cwd.startswith("/adk/")]
    journal = Path(path).read_text()
    assert [journal.count(text) for text in ("why is straw yellow", "fed with barley")] == [1, 1]


def test_a_deleted_session_can_be_brought_back(store: Store) -> None:
    """It is in the trash of the store."""

    async def case() -> None:
        service = SessileSessionService(store)
        await service.append_event(await begun(service), said("hello"))
        await service.delete_session(app_name="farm", user_id="u", session_id="s")
        (deletion,) = store.deletions()
        store.undo(deletion.token)
        assert texts(await got(service)) == ["hello"]

    run(case())


class Parrot(BaseLlm):
    """A model that repeats its input."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        heard = llm_request.contents[-1].parts or []
        text = f"{len(llm_request.contents)}: {heard[0].text}"
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]))


def test_an_agent_goes_on_after_a_restart(store: Store) -> None:
    """The ADK's own runner is used, with an agent that saves its answer in the user state."""

    async def turn(text: str) -> None:
        agent = LlmAgent(name="parrot", model=Parrot(model="parrot"), output_key="user:last")
        runner = Runner(
            app_name="farm", agent=agent, session_service=SessileSessionService(store), auto_create_session=True
        )
        said_now = types.Content(role="user", parts=[types.Part(text=text)])
        async for _ in runner.run_async(user_id="u", session_id="s", new_message=said_now):
            pass

    async def case() -> None:
        await turn("hello")
        await turn("again")
        found = await got(SessileSessionService(store))
        assert texts(found) == ["hello", "1: hello", "again", "3: again"]
        assert found.state["user:last"] == "3: again"

    run(case())
