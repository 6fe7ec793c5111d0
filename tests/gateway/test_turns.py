"""Turns: durable before the model is called, one at a time per session, run once, and delivered to all waiters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import anyio
import pytest

from gateways import Clock, ask, gateway_in, lines, running, scripted
from sessile import Session
from sessile.errors import StorageFailure, StorageFull, TooMany, TurnInProgress
from sessile.gateway.conversations.inbound import Inbound
from sessile.gateway.events import Event, Subscription
from sessile.gateway.turns.replies import INTERRUPTED
from sessile.gateway.turns.turn import Job, Message

pytestmark = [pytest.mark.anyio, pytest.mark.mission("Y13"), pytest.mark.promise("P41")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_message_is_answered_and_both_are_in_the_session(tmp_path: Path) -> None:
    """A message and its reply are stored in the session."""
    async with running(gateway_in(tmp_path)) as gateway:
        reply = await ask(gateway, "hello there")
        assert (reply.text, reply.stop, reply.error, reply.notices) == ("hello there", "stop", None, ())
        assert lines(gateway) == [("user", "hello there"), ("assistant", "hello there")]


async def test_the_message_is_durable_before_the_runner_is_asked(tmp_path: Path) -> None:
    """The message is in the file before the runner is called."""
    gateway = gateway_in(tmp_path)
    runner = scripted(gateway)
    runner.gate = anyio.Event()
    async with running(gateway):
        turn = await gateway.turns.send(Message(text="one two", source="main"))
        assert lines(gateway) == [("user", "one two")]
        runner.gate.set()
        reply = await turn.wait()
        assert reply.entry_id is not None and lines(gateway)[1] == ("assistant", "re: one two")


async def test_words_are_heard_as_they_come_by_all_who_listen(tmp_path: Path) -> None:
    """All listeners receive the deltas as they arrive, also those that start late."""
    gateway = gateway_in(tmp_path)
    runner = scripted(gateway)
    runner.gate = anyio.Event()
    async with running(gateway):
        turn = await gateway.turns.send(Message(text="b", source="main"))
        deltas = turn.deltas()
        assert await anext(deltas) == "re:"
        assert turn.reply is None
        runner.gate.set()
        assert [piece async for piece in deltas] == [" b"]
        assert "".join([piece async for piece in turn.deltas()]) == "re: b"


async def test_a_finished_turn_keeps_its_text_once(tmp_path: Path) -> None:
    """Thousands of finished turns are kept; each has its text, not every piece of it. Who listens misses nothing."""
    gateway = gateway_in(tmp_path)
    runner = scripted(gateway)
    runner.say = lambda text: "word " * 200
    async with running(gateway):
        turn = await gateway.turns.send(Message(text="b", source="main"))
        deltas = turn.deltas()
        first = await anext(deltas)
        reply = await turn.wait()
        assert first + "".join([piece async for piece in deltas]) == reply.text
        assert turn._pieces == [reply.text] and turn._pieces[0] is reply.text


async def test_one_turn_at_a_time_in_a_session_and_many_in_many(tmp_path: Path) -> None:
    """Turns of one session run in order, one at a time; turns of different sessions run in parallel."""
    gateway = gateway_in(tmp_path)
    runner = scripted(gateway)
    async with running(gateway):
        turns = [await gateway.turns.send(Message(text=f"n{number}", source="main")) for number in range(5)]
        for turn in turns:
            await turn.wait()
        assert runner.most == 1
        said = [text for role, text in lines(gateway) if role == "user"]
        assert said == ["n0", "n1", "n2", "n3", "n4"]
        assert [role for role, _ in lines(gateway)] == ["user", "assistant"] * 5
        runner.gate = anyio.Event()
        others = [await gateway.turns.send(Message(text="x", source=f"hook:{number}")) for number in range(4)]
        while runner.running < 4:
            await anyio.sleep(0.001)
        runner.gate.set()
        assert {(await turn.wait()).stop for turn in others} == {"stop"}


async def test_more_than_so_many_do_not_wait(tmp_path: Path) -> None:
    """A message beyond the queue limit is refused and not stored."""
    gateway = gateway_in(tmp_path, {"limits": {"queuedTurns": 2}})
    runner = scripted(gateway)
    runner.gate = anyio.Event()
    async with running(gateway):
        for number in range(3):
            await gateway.turns.send(Message(text=str(number), source="main"))
        with pytest.raises(TooMany):
            await gateway.turns.send(Message(text="3", source="main"))
        runner.gate.set()
        while gateway.turns.live():
            await anyio.sleep(0.001)
        assert len(lines(gateway)) == 6


async def test_the_same_message_twice_is_one_turn(tmp_path: Path) -> None:
    """A repeated message with the same idempotency key returns the same turn, also after a restart."""
    gateway = gateway_in(tmp_path)
    runner = scripted(gateway)
    async with running(gateway):
        turns = []
        async with anyio.create_task_group() as group:
            for _ in range(8):

                async def send() -> None:
                    turns.append(await gateway.turns.send(Message(text="a", source="main", idempotency_key="k")))

                group.start_soon(send)
        assert len({turn.id for turn in turns}) == 1
        first = await turns[0].wait()
        assert (await ask(gateway, "a", idempotency_key="k")).entry_id == first.entry_id
    again = gateway_in(tmp_path)
    async with running(again):
        turn = await again.turns.send(Message(text="a", source="main", idempotency_key="k"))
        assert turn.repeated and (await turn.wait()).text == "re: a"
        assert len(lines(again)) == 2 and len(runner.asked) == 1


async def test_the_same_message_after_a_reset_is_still_one_turn(tmp_path: Path) -> None:
    """A repeated message returns the same turn, even after the conversation was reset."""
    async with running(gateway_in(tmp_path)) as gateway:
        await ask(gateway, "a", idempotency_key="k")
        gateway.conversations.reset("main")
    async with running(gateway_in(tmp_path)) as gateway:
        turn = await gateway.turns.send(Message(text="a", source="main", idempotency_key="k"))
        assert turn.repeated and lines(gateway) == []


async def test_an_aborted_turn_keeps_what_was_said(tmp_path: Path) -> None:
    """An aborted turn keeps its partial reply, a queued message gets an "aborted" reply, and the next turn runs."""
    gateway = gateway_in(tmp_path)
    runner = scripted(gateway)
    runner.gate = anyio.Event()
    async with running(gateway):
        turn = await gateway.turns.send(Message(text="a", source="main"))
        waits = await gateway.turns.send(Message(text="b", source="main"))
        await anext(turn.deltas())
        assert await gateway.turns.abort(turn.session_id) == [turn.id, waits.id]
        reply = await turn.wait()
        assert (reply.stop, reply.text) == ("aborted", "re:")
        assert (await waits.wait()).stop == "aborted"
        assert lines(gateway) == [("user", "a"), ("assistant", "re:"), ("user", "b"), ("assistant", "")]
        assert len(runner.asked) == 1
        runner.gate = None
        assert (await ask(gateway, "c")).text == "re: c"


@pytest.mark.mission("Y11")
async def test_an_answer_that_is_stopped_while_it_may_become_silent_leaves_nothing(tmp_path: Path) -> None:
    """The held-back start of a possibly silent reply is not stored when the turn is aborted."""
    gateway = gateway_in(tmp_path)
    runner = scripted(gateway)
    runner.gate = anyio.Event()
    runner.say = lambda text: "NO_R EPLY"
    async with running(gateway):
        turn = await gateway.turns.send(Message(text="a", source="main"))
        while not runner.running:
            await anyio.sleep(0.001)
        await gateway.turns.abort(turn.session_id)
        assert ((await turn.wait()).text, turn.delivered_text) == ("", "")
        assert lines(gateway) == [("user", "a"), ("assistant", "")]


async def test_a_message_that_interrupts_stops_the_turn_and_comes_next(tmp_path: Path) -> None:
    """An interrupting message aborts the running turn and runs before the queued ones."""
    gateway = gateway_in(tmp_path)
    runner = scripted(gateway)
    runner.gate = anyio.Event()
    async with running(gateway):
        first = await gateway.turns.send(Message(text="a", source="main"))
        await gateway.turns.send(Message(text="b", source="main"))
        last = await gateway.turns.send(Message(text="c", source="main", queue="interrupt"))
        assert (await first.wait()).stop == "aborted"
        runner.gate.set()
        await last.wait()
        while gateway.turns.live():
            await anyio.sleep(0.001)
        assert [text for role, text in lines(gateway) if role == "user"] == ["a", "c", "b"]


async def test_alone_keeps_turns_away(tmp_path: Path) -> None:
    """`alone` is refused while a turn runs, and turns wait while it is held."""
    gateway = gateway_in(tmp_path)
    runner = scripted(gateway)
    runner.gate = anyio.Event()
    async with running(gateway):
        turn = await gateway.turns.send(Message(text="a", source="main"))
        with pytest.raises(TurnInProgress):
            async with gateway.turns.alone(turn.session_id):
                pass
        runner.gate.set()
        await turn.wait()
        while gateway.turns.live():
            await anyio.sleep(0.001)
        async with gateway.turns.alone(turn.session_id):
            later = await gateway.turns.send(Message(text="b", source="main"))
            await anyio.sleep(0.02)
            assert later.state == "queued"
        assert (await later.wait()).text == "re: b"


# -- silence and delivery


@pytest.mark.mission("Y11")
@pytest.mark.parametrize("said", ["NO_REPLY", "NO_REPLY because", "  NO_REPLY\nx"])
async def test_a_silent_answer_reaches_nobody(tmp_path: Path, said: str) -> None:
    """A silent reply is stored, but is not delivered as a reply, delta or event."""
    gateway = gateway_in(tmp_path)
    scripted(gateway).say = lambda text: said
    async with running(gateway):
        events = await gateway.hub.subscribe(None)
        turn = await gateway.turns.send(Message(text="a", source="main"))
        reply = await turn.wait()
        assert (reply.text, reply.silent, reply.delivered, turn.delivered_text) == ("", True, "", "")
        assert lines(gateway)[1] == ("assistant", said)
        heard = await heard_until_done(events)
        assert {event.kind for event in heard} <= {"notice", "turn", "entry"}
        assert "NO_REPLY" not in json.dumps([event.data for event in heard])


@pytest.mark.mission("Y11")
@pytest.mark.parametrize("said", ["NO_REPLYfoo", "say NO_REPLY", "NO", "NO_REPL"])
async def test_an_answer_that_only_mentions_silence_is_delivered(tmp_path: Path, said: str) -> None:
    """A reply that only mentions the silent token is delivered unchanged."""
    gateway = gateway_in(tmp_path)
    scripted(gateway).say = lambda text: said
    async with running(gateway):
        turn = await gateway.turns.send(Message(text="a", source="main"))
        assert (await turn.wait()).text == turn.delivered_text == said


@pytest.mark.mission("Y5")
async def test_a_reply_that_the_policy_denies_is_stored_and_not_delivered(tmp_path: Path) -> None:
    """A reply denied by the session or the configuration is stored but not delivered."""
    config = {"session": {"sendPolicy": {"rules": [{"action": "deny", "match": {"keyPrefix": "hook:"}}]}}}
    gateway = gateway_in(tmp_path, config)
    async with running(gateway):
        for key in ("hook:x", "main"):
            if key == "main":
                gateway.conversations.patch("main", {"sendPolicy": "deny"})
            turn = await gateway.turns.send(Message(text="secret", source=key))
            reply = await turn.wait()
            assert (reply.text, turn.delivered_text) == ("", "") and reply.withheld
            assert lines(gateway, key)[1] == ("assistant", "secret")


@pytest.mark.mission("Y5")
async def test_a_reply_that_was_held_back_is_so_after_a_restart(tmp_path: Path) -> None:
    """After a restart, a withheld reply is still not delivered."""
    async with running(gateway_in(tmp_path)) as gateway:
        gateway.conversations.patch("main", {"sendPolicy": "deny"})
        await ask(gateway, "secret", idempotency_key="k")
    async with running(gateway_in(tmp_path)) as gateway:
        turn = await gateway.turns.send(Message(text="secret", source="main", idempotency_key="k"))
        found = await gateway.turns.find(turn.session_id, turn.id)
        assert turn.repeated and found is not None
        for reply in (turn.reply, found.reply):
            assert reply is not None and reply.delivered == "" and reply.withheld


async def heard_until_done(events: Subscription) -> list[Event]:
    """Return the events up to the end of a turn."""
    heard = []
    async for event in events:
        heard.append(event)
        if event.kind == "turn" and event.data["state"] == "done":
            return heard
    return heard


# -- resets


@pytest.mark.mission("Y4")
async def test_the_first_reply_after_a_reset_says_so_once(tmp_path: Path) -> None:
    """The first reply after a reset has one notice; a silent reply leaves it to the next one."""
    clock = Clock()
    gateway = gateway_in(tmp_path, clock=clock)
    runner = scripted(gateway)
    async with running(gateway):
        await ask(gateway, "a")
        clock.now += 86_400
        runner.say = lambda text: "NO_REPLY"
        assert (await ask(gateway, "b")).notices == ()
        runner.say = lambda text: text
        reply = await ask(gateway, "c")
        assert "/resume" in reply.notices[0] and "04:00" in reply.delivered
        assert (await ask(gateway, "d")).notices == ()


@pytest.mark.mission("Y4")
async def test_the_first_answer_after_a_reset_says_so_also_if_it_is_that_of_a_command(tmp_path: Path) -> None:
    """The first command reply after a reset has the notice; /resume has none."""
    clock = Clock()
    async with running(gateway_in(tmp_path, clock=clock)) as gateway:
        await ask(gateway, "a")
        clock.now += 86_400
        reply = await ask(gateway, "/status")
        assert "/resume" in reply.notices[0] and "04:00" in reply.delivered
        assert (await ask(gateway, "/status")).notices == (await ask(gateway, "b")).notices == ()
        clock.now += 86_400
        assert (await ask(gateway, "/resume")).notices == ()


@pytest.mark.mission("Y4")
async def test_who_listens_to_a_session_hears_that_its_conversation_has_another(tmp_path: Path) -> None:
    """Subscribers of a session receive its reset, whether a command or the clock caused it."""
    clock = Clock()
    async with running(gateway_in(tmp_path, clock=clock)) as gateway:
        first = await gateway.turns.send(Message(text="a", source="main"))
        await first.wait()
        before = first.session_id
        for said, later in (("/new", 0), ("/new b", 0), ("/resume", 0), ("c", 86_400), ("/status", 86_400)):
            clock.now += later
            with await gateway.hub.subscribe(before) as events:
                turn = await gateway.turns.send(Message(text=said, source="main"))
                await turn.wait()
                heard = await anext(events)
                while heard.kind != "reset":
                    heard = await anext(events)
            told = {"key": "agent:main:main", "sessionId": turn.session_id, "previousId": before}
            assert heard.data == told and turn.session_id != before
            before = turn.session_id


# -- commands in a chat


@pytest.mark.mission("Y4")
async def test_new_with_words_behind_it_begins_a_session_with_them(tmp_path: Path) -> None:
    """/new with text starts a session with that text; /reset alone does not call the model."""
    gateway = gateway_in(tmp_path)
    runner = scripted(gateway)
    async with running(gateway):
        await ask(gateway, "a")
        reply = await ask(gateway, "/new hello")
        assert lines(gateway) == [("user", "hello"), ("assistant", "re: hello")]
        assert "New session" in reply.delivered and reply.text == "re: hello"
        bare = await ask(gateway, "/reset")
        assert (bare.stop, lines(gateway)) == ("command", []) and len(runner.asked) == 2


# -- counters


@pytest.mark.mission("Y5")
async def test_a_turn_is_counted(tmp_path: Path) -> None:
    """A turn updates the token counts of its store entry."""
    gateway = gateway_in(tmp_path)
    scripted(gateway)
    async with running(gateway):
        for _ in range(2):
            await ask(gateway, "a")
        found = gateway.conversations.get("main")
        assert found is not None
        entry = found.entry
        assert (entry["inputTokens"], entry["outputTokens"], entry["contextTokens"]) == (20, 10, 15)
        assert entry["abortedLastRun"] is False


async def test_where_a_message_came_from_stands_in_its_entry(tmp_path: Path) -> None:
    """The entry of a message stores its channel, recipient and thread, so that the reply is routed back."""
    async with running(gateway_in(tmp_path)) as gateway:
        source = Inbound(channel="telegram", peer="7", chat_type="direct", to="chat-7", thread=3)
        turn = await gateway.turns.send(Message(text="a", source=source))
        await turn.wait()
        path = gateway.conversations.path_of(turn.key)
        assert path is not None
        with gateway.store.open(path, readonly=True) as session:
            entry = session.get_entry(turn.id)
            assert entry is not None
            assert entry["turn"] == {"key": turn.key, "channel": "telegram", "to": "chat-7", "thread": 3}


# -- shutdown and recovery


async def test_a_gateway_that_is_stopped_ends_its_turns(tmp_path: Path) -> None:
    """A stopped gateway stores the partial replies of its turns."""
    gateway = gateway_in(tmp_path)
    runner = scripted(gateway)
    runner.gate = anyio.Event()
    async with running(gateway):
        turn = await gateway.turns.send(Message(text="a", source="main"))
        await anext(turn.deltas())
    assert (await turn.wait()).stop == "aborted"
    async with running(gateway_in(tmp_path)) as again:
        assert lines(again) == [("user", "a"), ("assistant", "re:")]


async def test_a_turn_that_was_cut_off_is_marked_and_not_run_again(tmp_path: Path) -> None:
    """After a crash, a running turn is marked as interrupted and not run again; a queued one runs once."""
    gateway = gateway_in(tmp_path / "root")
    runner = scripted(gateway)
    runner.gate = anyio.Event()
    async with anyio.create_task_group() as group:
        await group.start(gateway.run)
        turn = await gateway.turns.send(Message(text="a", source="main", idempotency_key="k"))
        await gateway.turns.send(Message(text="b", source="main"))
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "root", copy)  # the state after a kill
        group.cancel_scope.cancel()
    again = gateway_in(copy)
    later = scripted(again)
    async with running(again):
        while again.turns.live():
            await anyio.sleep(0.001)
        assert [request.messages[-1]["content"][0]["text"] for request in later.asked] == ["b"]
        assert lines(again) == [("user", "a"), ("assistant", ""), ("user", "b"), ("assistant", "re: b")]
        reply = await ask(again, "a", idempotency_key="k")
        assert (reply.stop, reply.error) == ("aborted", INTERRUPTED)
        found = await again.turns.find(turn.session_id, turn.id)
        assert found is not None and found.reply == reply
    assert list((copy / "gateway" / "turns").iterdir()) == []


async def test_a_message_that_waited_keeps_where_it_came_from_over_a_restart(tmp_path: Path) -> None:
    """After a restart, a queued message keeps its origin."""
    gateway = gateway_in(tmp_path / "root")
    scripted(gateway).gate = anyio.Event()
    source = Inbound(channel="telegram", peer="42", to="42", thread=7, sender="telegram:42")
    async with anyio.create_task_group() as group:
        await group.start(gateway.run)
        for text in "ab":
            turn = await gateway.turns.send(Message(text=text, source=source))
        shutil.copytree(tmp_path / "root", tmp_path / "copy")  # the state after a kill
        group.cancel_scope.cancel()
    async with running(gateway_in(tmp_path / "copy")) as again:
        while again.turns.live():
            await anyio.sleep(0.001)
        path = again.conversations.path_of(turn.key)
        assert path is not None
        with again.store.open(path, readonly=True) as session:
            told = [entry.get("turn") for entry in session.get_branch() if entry.get("turn") is not None]
    assert told == [{"key": turn.key, "channel": "telegram", "to": "42", "thread": 7, "sender": "telegram:42"}] * 2


async def test_a_session_that_is_gone_neither_stops_the_start_nor_loses_a_message_that_waited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing session is logged and does not stop the start; its queued message runs when the session is back."""
    gateway = gateway_in(tmp_path / "root")
    scripted(gateway).gate = anyio.Event()
    copy, away = tmp_path / "copy", tmp_path / "away"
    async with anyio.create_task_group() as group:
        await group.start(gateway.run)
        for text in "ab":
            turn = await gateway.turns.send(Message(text=text, source="main"))
        shutil.copytree(tmp_path / "root", copy)  # the state after a kill
        group.cancel_scope.cancel()
    shutil.move(copy / "sessions", away)
    async with running(gateway_in(copy)) as again:
        assert (await ask(again, "c", key="other")).text == "c"
    assert "session of a waiting message not found: 'agent:main:main'" in caplog.text and turn.session_id in caplog.text
    shutil.rmtree(copy / "sessions")
    shutil.move(away, copy / "sessions")
    async with running(gateway_in(copy)) as again:
        while again.turns.live():
            await anyio.sleep(0.001)
        assert lines(again) == [("user", "a"), ("assistant", ""), ("user", "b"), ("assistant", "b")]


async def test_what_could_not_be_settled_at_the_start_is_not_forgotten_when_somebody_speaks_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queued message that could not be recovered because of a storage failure runs after the next start."""
    gateway = gateway_in(tmp_path / "root")
    scripted(gateway).gate = anyio.Event()
    copy = tmp_path / "copy"
    async with anyio.create_task_group() as group:
        await group.start(gateway.run)
        for text in "ab":
            await gateway.turns.send(Message(text=text, source="main"))
        shutil.copytree(tmp_path / "root", copy)  # the state after a kill
        group.cancel_scope.cancel()
    again = gateway_in(copy)

    def fail(path: str) -> Session:
        raise StorageFailure("the disk does not answer", path=path)

    monkeypatch.setattr(again, "opened", fail)
    async with running(again):
        monkeypatch.undo()
        assert (await ask(again, "c")).text == "c"
    async with running(gateway_in(copy)) as later:
        while later.turns.live():
            await anyio.sleep(0.001)
        assert [text for role, text in lines(later) if role == "user"] == ["a", "c", "b"]
    assert list((copy / "gateway" / "turns").iterdir()) == []


async def test_counters_are_written_at_the_end_whatever_else_fails_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters are written at shutdown, even if closing a file fails."""
    gateway = gateway_in(tmp_path)

    def fail() -> None:
        raise StorageFailure("the disk does not answer")

    with pytest.raises(ExceptionGroup) as raised:
        async with running(gateway):
            await ask(gateway, "a")
            monkeypatch.setattr(gateway.views, "close", fail)
    assert raised.group_contains(StorageFailure)
    found = gateway_in(tmp_path).conversations.get("main")
    assert found is not None and found.entry.known("outputTokens") is not None


async def test_a_turn_whose_note_was_lost_is_marked_when_somebody_speaks_again(tmp_path: Path) -> None:
    """A turn without its record, as after a power cut, is marked as interrupted at the next message."""
    gateway = gateway_in(tmp_path / "root")
    runner = scripted(gateway)
    runner.gate = anyio.Event()
    async with anyio.create_task_group() as group:
        await group.start(gateway.run)
        await gateway.turns.send(Message(text="a", source="main"))
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "root", copy)
        group.cancel_scope.cancel()
    for note in (copy / "gateway" / "turns").iterdir():
        note.unlink()
    async with running(gateway_in(copy)) as again:
        await ask(again, "b")
        assert lines(again) == [("user", "a"), ("assistant", ""), ("user", "b"), ("assistant", "b")]


async def test_a_command_that_is_sent_twice_is_given_once(tmp_path: Path) -> None:
    """A repeated command with the same idempotency key runs once."""
    async with running(gateway_in(tmp_path)) as gateway:
        await ask(gateway, "a")
        for text, name in (("/new", "k1"), ("/new hello", "k2")):
            first = await ask(gateway, text, idempotency_key=name)
            path = gateway.conversations.path_of("main")
            again = await ask(gateway, text, idempotency_key=name)
            assert (again, gateway.conversations.path_of("main")) == (first, path)
        assert lines(gateway) == [("user", "hello"), ("assistant", "hello")]


async def test_a_message_that_cannot_be_kept_is_refused_and_can_be_sent_again(tmp_path: Path) -> None:
    """A message that cannot be stored is refused and can be sent again with the same key."""
    gateway = gateway_in(tmp_path)
    begin, fails = gateway.turns._admission.records.begin, True

    def full(session: Session, job: Job) -> None:
        if fails:
            raise StorageFull("the disk is full")
        begin(session, job)

    gateway.turns._admission.records.begin = full  # type: ignore[method-assign]
    async with running(gateway):
        with pytest.raises(StorageFull):
            await ask(gateway, "a", idempotency_key="k")
        assert gateway.turns.live() == []
        fails = False
        assert (await ask(gateway, "a", idempotency_key="k")).text == "a"


async def test_a_mistake_in_one_turn_leaves_the_others_alone(tmp_path: Path) -> None:
    """An unexpected error ends only its own turn."""
    gateway = gateway_in(tmp_path)
    runner = scripted(gateway)

    def wrong(text: str) -> str:
        raise ZeroDivisionError(text)

    runner.say = wrong
    async with running(gateway):
        reply = await ask(gateway, "a")
        assert reply.stop == "error" and "log" in (reply.error or "")
        runner.say = lambda text: text
        assert (await ask(gateway, "b")).text == "b"
        assert [role for role, _ in lines(gateway)] == ["user", "assistant", "user", "assistant"]
