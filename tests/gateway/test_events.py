"""The event hub: each durable entry once and in order, live events, slow clients and cleanup."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from event_streams import EventSource
from faults.processes import Child, Tell
from figures import measured
from sessile import Session, Store
from sessile.errors import Invalid, InvalidQuery, SessionNotFound, TooMany
from sessile.gateway.events import Event, EventId, Hub, Subscription
from sessile.gateway.http.streams import encode_event
from sessions import answer, append_raw, begun, lines_of, other_store_at, say, store_at

RECONNECTS = 1000 if os.environ.get("SESSILE_LONG") == "1" else 120
KILLS = 100 if os.environ.get("SESSILE_LONG") == "1" else 12


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def hub_of(store: Store, **options: Any) -> Hub:
    usual: dict[str, Any] = {"open_session": lambda name: store.open(name, readonly=True), "interval": 0.02}
    return Hub(lstat=store.fs.lstat, **usual | options)


@asynccontextmanager
async def running(store: Store, **options: Any) -> AsyncIterator[Hub]:
    """Run a hub; leaving the context stops it."""
    hub = hub_of(store, **options)
    async with anyio.create_task_group() as group:
        group.start_soon(hub.run)
        yield hub
        group.cancel_scope.cancel()


async def take(events: Subscription, count: int) -> list[Event]:
    with anyio.fail_after(10):
        return [await anext(events) for _ in range(count)]


async def rest(events: Subscription) -> list[Event]:
    """Return all events up to the end of a subscription."""
    with anyio.fail_after(10):
        return [event async for event in events]


def live(session: Session, number: int) -> Event:
    return Event(None, session.id, "delta", {"text": str(number)})


def entry(session: Session, entry_id: str | None = None) -> Event:
    return Event(None, session.id, "entry", {} if entry_id is None else {"id": entry_id})


def told(events: list[Event]) -> list[Any]:
    """Return the id of each entry, and the text or notice of other events."""
    return [
        event.data["id"]
        if event.kind == "entry"
        else event.data.get("text")
        if event.kind == "delta"
        else event.data["notice"]
        for event in events
    ]


# -- entries


@pytest.mark.anyio
async def test_an_entry_is_told_with_its_row_number(tmp_path: Path) -> None:
    """The first event has the client's position, and the following ones are new entries with their row numbers."""
    store = store_at(tmp_path)
    with begun(store) as session:
        say(session, "before")
        async with running(store) as hub:
            with await hub.subscribe(session.id) as events:
                ids = [say(session, "one"), say(session, "two")]
                first, *entries = await take(events, 3)
    assert (first.kind, first.id, first.data["resume"]) == ("notice", f"{session.id}:1", "exact")
    assert [event.id for event in entries] == [f"{session.id}:2", f"{session.id}:3"]
    assert [event.kind for event in entries] == ["entry", "entry"]
    assert told(entries) == ids
    assert entries[0].data["message"]["content"] == "one"


@pytest.mark.anyio
async def test_a_client_that_saw_no_entry_yet_resumes_from_its_first_event(tmp_path: Path) -> None:
    """A client without an entry resumes from the id of its opening event and misses nothing."""
    store = store_at(tmp_path)
    with begun(store) as session:
        say(session, "before")
        async with running(store) as hub:
            with await hub.subscribe(session.id) as events:
                (first,) = await take(events, 1)
            missed = say(session, "between")
            with await hub.subscribe(session.id, first.id) as events:
                assert told(await take(events, 2)) == ["open", missed]


@pytest.mark.anyio
async def test_a_long_session_is_resumed_from_any_place(tmp_path: Path) -> None:
    """Resuming works from any row, also at the boundaries of read batches."""
    store = store_at(tmp_path)
    with begun(store) as session:
        ids = [receipt.id for receipt in session.append_many([{"type": "custom", "customType": "x"}] * 300)]
        async with running(store) as hub:
            for start in (0, 1, 63, 64, 65, 128, 299, 300):
                with await hub.subscribe(session.id, f"{session.id}:{start}") as events:
                    assert told(await take(events, 301 - start)) == ["open", *ids[start:]]


@pytest.mark.anyio
async def test_leaf_markers_are_not_told_but_numbered(tmp_path: Path) -> None:
    """Leaf markers are counted but not sent; resuming around a marker continues with the next entry."""
    store = store_at(tmp_path)
    with begun(store) as session:
        async with running(store) as hub:
            with await hub.subscribe(session.id) as events:
                one, two = say(session, "one"), say(session, "two")
                session.branch(one, durable=True)
                three = say(session, "three")
                assert told(await take(events, 4)) == ["open", one, two, three]
            for after, expected in ((2, [three]), (3, [three]), (1, [two, three])):
                with await hub.subscribe(session.id, f"{session.id}:{after}") as events:
                    assert told(await take(events, 1 + len(expected))) == ["open", *expected]
            session.branch(one, durable=True)
        async with running(store) as hub:  # a new server also counts the last marker
            with await hub.subscribe(session.id) as events:
                assert (await take(events, 1))[0].id == f"{session.id}:5"


class Writer:
    """Appends entries and leaf markers at random from two stores, like two processes."""

    def __init__(self, root: Path, session: Session, dice: random.Random) -> None:
        self._sessions = [session, other_store_at(root).open(session.path)]
        self._dice = dice

    def write(self) -> None:
        session = self._dice.choice(self._sessions)
        for _ in range(self._dice.choice([0, 1, 1, 2, 5, 100])):
            say(session, "x")
        if self._dice.random() < 0.2 and session.leaf_id is not None:
            session.branch(self._dice.choice(session.get_entries()[:5]).id, durable=True)

    def close(self) -> None:
        self._sessions[1].close()


@pytest.mark.anyio
@pytest.mark.promise("P43")
@pytest.mark.parametrize("seed", range(4))
async def test_reconnecting_anywhere_gives_every_entry_once_in_order(tmp_path: Path, seed: int) -> None:
    """Random reconnects, server restarts and two writers cause no gaps and no repeated entries."""
    dice = random.Random(seed)
    store = store_at(tmp_path)
    session = begun(store)
    writer = Writer(tmp_path, session, dice)
    got: list[str] = []
    last = f"{session.id}:0"
    connections = 0

    async def listen(events: Subscription, most: int) -> None:
        nonlocal last
        async for event in events:
            if event.kind == "entry":
                got.append(event.data["id"])
            if event.id is not None:
                last = event.id
            most -= 1
            if most <= 0:
                return

    while connections < RECONNECTS // 4:
        async with running(store, interval=dice.choice([0.002, 0.02])) as hub:
            for _ in range(dice.randrange(1, 12)):
                connections += 1
                async with anyio.create_task_group() as group:
                    with await hub.subscribe(session.id, last) as events:
                        group.start_soon(to_thread.run_sync, writer.write)
                        if dice.random() < 0.5:
                            group.start_soon(_announce, hub, session, dice.random() / 100)
                        with anyio.move_on_after(dice.choice([0, 0.001, 0.005, 0.02])):
                            await listen(events, dice.choice([1, 2, 10, 1000]))
    async with running(store) as hub:
        with await hub.subscribe(session.id, last) as events:
            expected = [line.id for line in session.get_entries()]
            await listen(events, 1 + len(expected) - len(got))
    assert len(expected) > 100
    assert got == expected
    measured("P43", "listeners that reconnect", connections=connections, entries_received=len(got), gaps=0, repeats=0)
    writer.close()
    session.close()


async def _announce(hub: Hub, session: Session, delay: float) -> None:
    await anyio.sleep(delay)
    hub.publish(entry(session))


@pytest.mark.promise("P43")
def test_a_killed_server_is_followed_by_one_that_goes_on(tmp_path: Path) -> None:
    """After a server process is killed in mid-stream, the client resumes at the next one with its last id."""
    dice = random.Random(5)
    store = store_at(tmp_path)
    session = begun(store)
    session.append_many([{"type": "custom", "customType": "x"}] * 2000)
    got: list[str] = []
    source = EventSource()
    source.last_id = source._id_buffer = f"{session.id}:0"
    for _ in range(KILLS):
        after, (read_end, write_end) = source.last_id, os.pipe()
        child = Child(lambda tell, after=after, end=write_end: anyio.run(_serve, tmp_path, session.id, after, end))  # type: ignore[misc]
        os.close(write_end)
        wanted = dice.randrange(1, 40_000)
        while wanted > 0 and (data := os.read(read_end, min(wanted, 4096))):
            wanted -= len(data)
            got += [json.loads(event.data)["data"]["id"] for event in source.feed(data) if event.kind == "entry"]
        say(session, "during")
        child.kill()
        child.finish()
        os.close(read_end)
        source._text, source._data, source._kind, source._id_buffer = b"", [], "", source.last_id  # a new connection
    number = EventId.parse(source.last_id).number
    assert len(got) == number > KILLS
    assert got == [line.id for line in session.get_entries()][:number]
    session.close()


async def _serve(root: Path, session_id: str, after: str, end: int) -> None:
    async with running(store_at(root)) as hub:
        async for event in await hub.subscribe(session_id, after):
            frame = encode_event(event)
            await to_thread.run_sync(os.write, end, frame)


@pytest.mark.anyio
@pytest.mark.promise("P43")
async def test_entries_of_two_other_processes_are_told_within_a_second(tmp_path: Path) -> None:
    """Unannounced entries of other processes arrive once, in file order, within a second."""
    store = store_at(tmp_path)
    session = begun(store)
    session.close()

    def write(tell: Tell, name: str) -> None:
        with Store(tmp_path).open(session.path) as other:
            for number in range(20):
                other.append_message({"role": "user", "content": f"{name}{number} {time.time()}"})
                time.sleep(0.01)

    children = [Child(lambda tell, name=name: write(tell, name)) for name in "ab"]  # type: ignore[misc]
    delays = []
    async with running(store, interval=0.25) as hub:
        with await hub.subscribe(session.id, f"{session.id}:0") as events:
            got = (await take(events, 1))[:0]
            for _ in range(40):
                (event,) = await take(events, 1)
                delays.append(time.time() - float(event.data["message"]["content"].split()[1]))
                got.append(event)
    for child in children:
        child.finish()
    with store.open(session.path, readonly=True) as reading:
        assert told(got) == [line.id for line in reading.iter_lines()]
    assert {event.data["message"]["content"][0] for event in got} == {"a", "b"}
    assert max(delays[5:]) < 1  # the first ones may be older than the subscription


@pytest.mark.anyio
async def test_looking_for_news_does_not_open_or_read_what_stands_still(tmp_path: Path) -> None:
    """Polling checks each followed file once, however many clients follow it, and does not open unchanged files."""
    store = store_at(tmp_path)
    session = begun(store)
    opened, looked = [], []

    def open_session(name: str) -> Session:
        opened.append(name)
        return store.open(name, readonly=True)

    def lstat(path: str) -> Any:
        looked.append(path)
        return store.fs.lstat(path)

    hub = Hub(open_session, lstat, interval=0.02)
    async with anyio.create_task_group() as group:
        group.start_soon(hub.run)
        clients = [await hub.subscribe(session.id) for _ in range(20)]
        await anyio.sleep(0.1)
        before = len(opened), len(looked)
        await anyio.sleep(0.3)
        assert len(opened) == before[0] <= 2
        assert 2 <= len(looked) - before[1] <= 20
        new = say(session, "new")
        assert [told(await take(client, 2)) for client in clients] == [["open", new]] * 20
        group.cancel_scope.cancel()
    session.close()


# -- live events


@pytest.mark.anyio
@pytest.mark.mission("Y13")
async def test_deltas_come_before_their_entry_and_what_follows_it_behind(tmp_path: Path) -> None:
    """Live events and entries arrive in the order in which they were published."""
    store = store_at(tmp_path)
    with begun(store) as session:
        async with running(store, interval=5) as hub:
            with await hub.subscribe(session.id) as events:
                expected: list[Any] = ["open"]
                for number in range(0, 30, 2):
                    hub.publish(live(session, number))
                    said = say(session, "x")
                    later = answer(session, "y")  # already durable, but announced later
                    hub.publish(entry(session, said))
                    hub.publish(live(session, number + 1))
                    hub.publish(entry(session, later))
                    expected += [str(number), said, str(number + 1), later]
                assert told(await take(events, len(expected))) == expected


@pytest.mark.anyio
@pytest.mark.mission("Y13")
async def test_an_announced_entry_is_told_at_once(tmp_path: Path) -> None:
    """An entry that the gateway announces is delivered without waiting for the next poll."""
    store = store_at(tmp_path)
    with begun(store) as session:
        async with running(store, interval=60) as hub:
            with await hub.subscribe(session.id) as events:
                await take(events, 1)
                hub.publish(entry(session, say(session, "x")))
                started = time.perf_counter()
                await take(events, 1)
                assert time.perf_counter() - started < 30  # half of the polling interval


@pytest.mark.anyio
async def test_live_events_reach_only_those_who_listen_to_the_session(tmp_path: Path) -> None:
    """Live events have no id, reach only subscribers of their session, and are not repeated on resume."""
    store = store_at(tmp_path)
    with begun(store) as one, begun(store) as two:
        async with running(store) as hub:
            with await hub.subscribe(one.id) as ours, await hub.subscribe(two.id) as theirs:
                hub.publish(live(one, 1))
                hub.publish(live(two, 2))
                (first, delta), (_, other) = await take(ours, 2), await take(theirs, 2)
                assert (told([delta]), told([other]), delta.id) == (["1"], ["2"], None)
            with await hub.subscribe(one.id, first.id) as again:
                new = say(one, "x")
                assert told(await take(again, 2)) == ["open", new]
            hub.publish(live(one, 3))  # publishing without subscribers is allowed
            hub.publish(entry(one, new))


# -- slow clients and limits


@pytest.mark.anyio
@pytest.mark.promise("P43")
async def test_a_slow_client_is_dropped_told_so_and_resumes(tmp_path: Path) -> None:
    """A slow client is dropped with a notice and can resume; a fast client loses nothing."""
    store = store_at(tmp_path)
    with begun(store) as session:
        async with running(store, backlog=10) as hub:
            slow, quick = await hub.subscribe(session.id), await hub.subscribe(session.id)
            first = say(session, "first")
            hub.publish(entry(session, first))
            *_, seen = await take(slow, 2)
            heard = told(await take(quick, 2))
            expected = []
            for number in range(30):
                hub.publish(live(session, number))
                expected.append(say(session, "x"))
                hub.publish(entry(session, expected[-1]))
                heard += told(await take(quick, 2))
            assert len(heard) == 62
            (last,) = await rest(slow)
            assert (last.kind, last.id, last.data["notice"]) == ("notice", None, "slow")
            with await hub.subscribe(session.id, seen.id) as again:
                assert told(await take(again, 31)) == ["open", *expected]


@pytest.mark.anyio
async def test_entries_do_not_wait_in_memory_for_a_slow_client(tmp_path: Path) -> None:
    """A client that only lags behind in durable entries is not dropped."""
    store = store_at(tmp_path)
    with begun(store) as session:
        async with running(store, backlog=4) as hub:
            with await hub.subscribe(session.id) as events:
                await take(events, 1)
                ids = []
                for _ in range(50):
                    ids.append(say(session, "x"))
                    hub.publish(entry(session, ids[-1]))
                    await anyio.sleep(0.002)
                assert told(await take(events, 50)) == ids


@pytest.mark.anyio
async def test_the_slowest_client_makes_room_and_quick_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit of clients, a stalled client is dropped; without one, the new client is refused."""
    monkeypatch.setattr("sessile.gateway.events._STALLED", 0.05)
    store = store_at(tmp_path)
    with begun(store) as session:
        async with running(store, clients=2) as hub, anyio.create_task_group() as group:
            stuck, quick = await hub.subscribe(session.id), await hub.subscribe(session.id)
            group.start_soon(rest, quick)
            await anyio.sleep(0.1)
            new = await hub.subscribe(session.id)
            assert told(await rest(stuck)) == ["slow"]
            group.start_soon(rest, new)
            await anyio.sleep(0.1)
            with pytest.raises(TooMany):
                await hub.subscribe(session.id)
            quick.close()
            (await hub.subscribe(session.id)).close()
            group.cancel_scope.cancel()


# -- invalid subscriptions and lost sessions


@pytest.mark.anyio
@pytest.mark.parametrize(
    "bad",
    [
        "",
        "7",
        ":7",
        "s1",
        "s1:",
        "s1:-1",
        "s1:+1",
        "s1:07",
        "s1: 7",
        "s1:7 ",
        "s1:7\n",
        "s1:٧",
        "s1:1e3",
        "s1:1.0",
        "../s1:7",
        "s 1:7",
        "s1:99999999999999999",
        "s1:7:",
        "s1\n:7",
        "a:b:7",
        "s1:0x1",
    ],
)
async def test_a_last_event_id_that_is_none_is_refused(tmp_path: Path, bad: str) -> None:
    """Last-Event-ID must be a session id, a colon and a number; anything else is a 400 error."""
    hub = hub_of(store_at(tmp_path))
    for session_id in ("s1", None):
        with pytest.raises(Invalid) as caught:
            await hub.subscribe(session_id, bad)
        assert caught.value.status == 400


@pytest.mark.anyio
async def test_an_id_of_another_session_or_beyond_the_end_is_refused(tmp_path: Path) -> None:
    """An event id of another session or beyond the end is rejected."""
    store = store_at(tmp_path)
    with begun(store) as session:
        say(session, "x")
        async with running(store) as hub:
            for bad in ("other:1", f"{session.id}:2"):
                with pytest.raises(InvalidQuery):
                    await hub.subscribe(session.id, bad)
            with pytest.raises(SessionNotFound):
                await hub.subscribe("nobody")
            with pytest.raises(Invalid):
                await hub.subscribe("../etc")


@pytest.mark.anyio
async def test_a_session_that_is_not_there_is_refused_also_if_the_hub_has_found_that_out(tmp_path: Path) -> None:
    """An unknown session is rejected, even if the hub closed its feed first."""
    store = store_at(tmp_path)
    hub = hub_of(store)
    feed = hub._channel("nobody").feed
    feed.close()
    with pytest.raises(SessionNotFound):
        await hub.subscribe("nobody")


@pytest.mark.anyio
async def test_a_deleted_session_ends_with_an_event_that_says_so(tmp_path: Path) -> None:
    """When a session is deleted, its stream ends with a "gone" notice."""
    store = store_at(tmp_path)
    session = begun(store)
    say(session, "x")
    session.close()
    async with running(store) as hub:
        events = await hub.subscribe(session.id)
        await take(events, 1)
        store.delete(session.id)
        assert told(await rest(events)) == ["gone"]


@pytest.mark.anyio
async def test_a_session_whose_rows_were_taken_out_ends_and_clears_the_id(tmp_path: Path) -> None:
    """When rows are removed from a session, its stream ends and the event id is cleared."""
    store = store_at(tmp_path)
    with begun(store) as session:
        for _ in range(3):
            say(session, "x")
        lines = lines_of(session.path)
        async with running(store) as hub:
            events = await hub.subscribe(session.id)
            await take(events, 1)
            Path(session.path).write_bytes(b"\n".join([lines[0], *lines[2:]]) + b"\n")
            (last,) = await rest(events)
            assert (told([last]), last.id) == (["rewritten"], "")


@pytest.mark.anyio
async def test_a_session_that_is_renamed_moved_or_published_is_followed_on(tmp_path: Path) -> None:
    """Entries keep arriving after a session is published, renamed or moved."""
    store = store_at(tmp_path)
    session = store.create("/work/app")
    expected: list[Any] = ["open", say(session, "draft")]
    async with running(store) as hub:
        with await hub.subscribe(session.id, f"{session.id}:0") as events:
            got = told(await take(events, 2))
            expected.append(answer(session, "published"))
            got += told(await take(events, 1))
            session.set_session_name("a name")
            assert (await take(events, 1))[0].data["name"] == "a name"
            expected.append(say(session, "named"))
            got += told(await take(events, 1))
            session.move_to("/work/elsewhere")
            expected.append(say(session, "moved"))
            got += told(await take(events, 1))
    assert got == expected
    session.close()


@pytest.mark.anyio
async def test_a_half_written_line_is_told_when_it_is_whole(tmp_path: Path) -> None:
    """A partially written line is delivered once, when it is complete."""
    store = store_at(tmp_path)
    session = begun(store)
    say(session, "x")
    session.close()
    line = lines_of(session.path)[1].replace(b'"id":"', b'"id":"z')
    async with running(store) as hub:
        with await hub.subscribe(session.id) as events:
            await take(events, 1)
            for piece in (line[:9], line[9:40], line[40:], b"\n"):
                with open(session.path, "ab") as file:
                    file.write(piece)
                await anyio.sleep(0.06)
            append_raw(session.path, line.replace(b'"id":"z', b'"id":"y').decode())
            entries = await take(events, 2)
    assert [event.data["id"][0] for event in entries] == ["z", "y"]
    assert [event.id for event in entries] == [f"{session.id}:2", f"{session.id}:3"]


# -- all sessions


@pytest.mark.anyio
async def test_all_sessions_are_heard_by_who_asks_for_no_session(tmp_path: Path) -> None:
    """A subscription to all sessions receives announced entries with their ids, and resumes on a best-effort basis."""
    store = store_at(tmp_path)
    with begun(store) as one, begun(store) as two:
        say(one, "before")
        async with running(store) as hub:
            with await hub.subscribe(None) as events:
                first = say(one, "one")
                hub.publish(entry(one, first))
                hub.publish(live(two, 7))
                opening, *heard = await take(events, 3)
                unannounced = say(one, "by another process")
                heard += await take(events, 1)
                second = say(two, "two")
                hub.publish(entry(two, second))
                heard += await take(events, 1)
            assert (opening.data["resume"], opening.id) == ("best effort", None)
            assert sorted(told(heard[:2])) == sorted([first, "7"])
            assert told(heard[2:]) == [unannounced, second]
            assert [event.id for event in heard if event.kind == "entry"] == [
                f"{one.id}:2",
                f"{one.id}:3",
                f"{two.id}:1",
            ]


@pytest.mark.anyio
async def test_resuming_all_sessions_resumes_the_one_that_the_id_names(tmp_path: Path) -> None:
    """Resuming all sessions resumes the session of the event id; a missing session is not listed as resumed."""
    store = store_at(tmp_path)
    with begun(store) as session:
        ids = [say(session, "x") for _ in range(3)]
        async with running(store) as hub:
            with await hub.subscribe(None, f"{session.id}:1") as events:
                first, *entries = await take(events, 3)
                assert (first.data["resumed"], told(entries)) == ([session.id], ids[1:])
            with await hub.subscribe(None, "gone:1") as events:
                assert (await take(events, 1))[0].data["resumed"] == []


@pytest.mark.anyio
async def test_many_sessions_do_not_stay_open_for_who_listens_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of followed sessions is limited; a dropped session is followed again when it is announced."""
    monkeypatch.setattr("sessile.gateway.events._FOLLOWED", 3)
    store = store_at(tmp_path)
    sessions = [begun(store) for _ in range(12)]
    before = descriptors()
    async with running(store) as hub:
        with await hub.subscribe(None) as events:
            await take(events, 1)
            for session in [*sessions, *sessions]:
                said = say(session, "x")
                hub.publish(entry(session, said))
                assert told(await take(events, 1)) == [said]
            await anyio.sleep(0.1)
            assert descriptors() - before <= 3
    for session in sessions:
        session.close()


@pytest.mark.anyio
async def test_a_session_that_cannot_be_followed_does_not_end_the_stream_of_all(tmp_path: Path) -> None:
    """A session that cannot be read sends one "failed" notice and does not end the stream."""
    store = store_at(tmp_path)
    with begun(store) as session:
        async with running(store) as hub:
            with await hub.subscribe(None) as events:
                hub.publish(Event(None, "nobody", "entry", {}))
                assert told(await take(events, 2)) == ["open", "failed"]
                await anyio.sleep(0.1)
                said = say(session, "x")
                hub.publish(entry(session, said))
                assert told(await take(events, 1)) == [said]


# -- cleanup


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


@pytest.mark.anyio
async def test_cancellation_leaves_no_task_and_no_descriptor(tmp_path: Path) -> None:
    """Cancelled clients and a stopped hub leave no tasks and no open files."""
    import asyncio

    store = store_at(tmp_path)
    sessions = [begun(store) for _ in range(5)]
    for session in sessions:
        session.append_many([{"type": "custom", "customType": "x"}] * 100)
    dice = random.Random(1)
    async with running(store):
        await anyio.sleep(0.05)
    tasks, files = len(asyncio.all_tasks()), descriptors()

    async def client(hub: Hub, session_id: str | None) -> None:
        after = None if session_id is None else f"{session_id}:0"
        with await hub.subscribe(session_id, after) as events:
            async for _ in events:
                await anyio.sleep(0)

    async with running(store) as hub:
        for _ in range(20):
            async with anyio.create_task_group() as group:
                for session in sessions:
                    group.start_soon(client, hub, dice.choice([session.id, None]))
                await anyio.sleep(dice.choice([0, 0.001, 0.01]))
                group.cancel_scope.cancel()
        with anyio.fail_after(5):
            while descriptors() > files:  # the hub closes unused files at its next poll
                await anyio.sleep(0.01)
        assert len(asyncio.all_tasks()) == tasks + 1
        waiting = await hub.subscribe(sessions[0].id)
    assert told(await rest(waiting)) == ["closing"]
    assert (len(asyncio.all_tasks()), descriptors()) == (tasks, files)
    for session in sessions:
        session.close()


@pytest.mark.anyio
async def test_the_loop_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    """Opening a slow session does not block the event loop."""
    store = store_at(tmp_path)
    with begun(store) as session:

        def open_slowly(name: str) -> Session:
            time.sleep(0.2)
            return store.open(name, readonly=True)

        hub = Hub(open_slowly, store.fs.lstat)
        gaps = []

        async def tick() -> None:
            while True:
                started = time.perf_counter()
                await anyio.sleep(0.005)
                gaps.append(time.perf_counter() - started)

        async with anyio.create_task_group() as group:
            group.start_soon(hub.run)
            group.start_soon(tick)
            (await hub.subscribe(session.id, f"{session.id}:0")).close()
            group.cancel_scope.cancel()
    assert len(gaps) > 10
    assert max(gaps) < 0.15
