"""Several gateways on one database share conversations: turns run one after the other, and each message is answered once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from gateways import Scripted, ask, gateway_in, lines, running, scripted
from http_rig import NEVER
from sessile import Store
from sessile.gateway.service import Gateway
from sessile.gateway.turns.lanes import Overtaken, SharedQueue
from sessile.gateway.turns.replies import INTERRUPTED
from sessile.gateway.turns.turn import Message
from sessile.storage.postgres import turn_queue

pytestmark = [pytest.mark.mission("B8"), pytest.mark.anyio]

TTL = 1.0
SOON = 10  # seconds


class Node(NamedTuple):
    """A running gateway and its scripted runner."""

    gateway: Gateway
    runner: Scripted

    @property
    def line(self) -> SharedQueue:
        line = self.gateway.turns._queue
        assert isinstance(line, SharedQueue)
        return line


Start = Callable[[], "AsyncIterator[Node]"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten leases, so that tests do not wait long for turns of dead gateways."""
    monkeypatch.setattr(turn_queue, "NODE_TTL", TTL)


def made(url: str) -> Node:
    gateway = gateway_in(Path("/nowhere"), NEVER, store=Store(url, durability="process"))
    return Node(gateway, scripted(gateway))


@asynccontextmanager
async def started(url: str, count: int = 2) -> AsyncIterator[list[Node]]:
    """Run `count` gateways."""
    nodes = [made(url) for _ in range(count)]
    async with AsyncExitStack() as stack:
        for node in nodes:
            await stack.enter_async_context(running(node.gateway))
        yield nodes


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(SOON):
        while not true():
            await anyio.sleep(0.01)


def asked(node: Node) -> list[str]:
    return [request.messages[-1]["content"][0]["text"] for request in node.runner.asked]


def fall_silent(node: Node) -> None:
    """End the lease of a gateway, as if it was paused."""
    for process in node.line._table._leases._processes.values():
        process.held.clear()


async def test_a_conversation_goes_on_at_whichever_gateway_is_asked(postgres_url: str) -> None:
    """Messages to different gateways continue one session, with its full history."""
    async with started(postgres_url) as (one, two):
        await ask(one.gateway, "a")
        await ask(two.gateway, "b")
        await ask(one.gateway, "c")
        said = [("user", "a"), ("assistant", "re: a"), ("user", "b"), ("assistant", "re: b"), ("user", "c")]
        assert lines(two.gateway) == [*said, ("assistant", "re: c")]
        assert [len(request.messages) for request in one.runner.asked] == [1, 5]
        assert len(one.gateway.store.list_all()) == 1


async def test_a_new_key_that_two_gateways_meet_at_once_gets_one_session(postgres_url: str) -> None:
    """The superfluous session is removed."""
    async with started(postgres_url) as (one, two):
        for number in range(5):
            key = f"agent:main:hook:h{number}"
            async with anyio.create_task_group() as tasks:
                for node in (one, two):
                    tasks.start_soon(ask, node.gateway, f"from {id(node)}", key)
            found = {node.gateway.conversations.resolve(key).session_id for node in (one, two)}
            assert len(found) == 1
        assert len(one.gateway.store.list_all()) == 5
        assert len(lines(one.gateway, "agent:main:hook:h0")) == 4


async def test_a_turn_waits_for_that_of_another_gateway(postgres_url: str) -> None:
    """The second message is appended after the first reply, and the runner receives both."""
    async with started(postgres_url) as (one, two):
        one.runner.gate = anyio.Event()
        first = await one.gateway.turns.send(Message(text="a", source="main"))
        second = await two.gateway.turns.send(Message(text="b", source="main"))
        await anyio.sleep(0.2)
        assert (second.state, asked(two)) == ("queued", [])
        one.runner.gate.set()
        assert (await first.wait()).text == "re: a" and (await second.wait()).text == "re: b"
        assert [text for _, text in lines(one.gateway)] == ["a", "re: a", "b", "re: b"]


async def test_a_message_that_is_sent_to_two_gateways_happens_once(postgres_url: str) -> None:
    """A message repeated at another gateway, during its turn or afterwards, returns the same reply."""
    async with started(postgres_url) as (one, two):
        one.runner.gate = two.runner.gate = anyio.Event()
        message = Message(text="a", source="main", idempotency_key="x")
        first = await one.gateway.turns.send(message)
        found = await two.gateway.turns.find(first.session_id, first.id)
        assert found is not None and (found.state, found.reply) == ("running", None)
        waiting = await one.gateway.turns.send(Message(text="b", source="main"))
        found = await two.gateway.turns.find(waiting.session_id, waiting.id)
        assert found is not None and (found.state, found.key) == ("queued", "agent:main:main")
        second = await two.gateway.turns.send(message)
        assert first.id == second.id
        one.runner.gate.set()
        await waiting.wait()
        assert (await second.wait()).text == (await first.wait()).text == "re: a"
        third = await two.gateway.turns.send(message)
        assert third.id == first.id and third.reply is not None and third.reply.text == "re: a"
        assert asked(one) + asked(two) == ["a", "b"]
        assert len(lines(two.gateway)) == 4


async def test_one_name_at_the_same_moment_at_two_gateways_is_one_turn(postgres_url: str) -> None:
    """This holds even if both gateways receive the message at the same moment."""
    async with started(postgres_url) as (one, two):
        for number in range(10):
            message = Message(text=str(number), source="main", idempotency_key=str(number))
            found: list[str] = []

            async def say(node: Node, message: Message = message, found: list[str] = found) -> None:
                turn = await node.gateway.turns.send(message)
                found.append((await turn.wait()).text + turn.id)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(say, one)
                tasks.start_soon(say, two)
            assert len(set(found)) == 1
        assert sorted(asked(one) + asked(two)) == [str(number) for number in range(10)]
        assert len(lines(one.gateway)) == 20


async def test_what_waits_is_stopped_with_its_gateway_and_answered_by_another_one(postgres_url: str) -> None:
    """A running gateway finds and answers the messages that a stopped one left."""
    async with started(postgres_url, 1) as (living,):
        node = made(postgres_url)
        node.runner.gate = anyio.Event()
        async with running(node.gateway):
            await node.gateway.turns.send(Message(text="a", source="main"))
            await node.gateway.turns.send(Message(text="b", source="main"))
        await until(lambda: len(lines(living.gateway)) == 4)
        assert [text for _, text in lines(living.gateway)] == ["a", "re:", "b", "re: b"]


async def test_a_gateway_that_was_overtaken_doubles_nothing_and_tells_what_others_made(postgres_url: str) -> None:
    """The interrupted answer is marked, its waiting messages are answered elsewhere, and it reports their replies."""
    async with started(postgres_url) as (slow, quick):
        slow.runner.gate = anyio.Event()
        turn = await slow.gateway.turns.send(Message(text="a", source="main"))
        await anext(turn.deltas())
        waiting = await slow.gateway.turns.send(Message(text="b", source="main"))
        later = await quick.gateway.turns.send(Message(text="c", source="main"))
        quick.runner.say = lambda text: f"quick: {text}"
        slow.line._table.holds = lambda: True  # type: ignore[method-assign]
        fall_silent(slow)
        assert (await later.wait()).text == "quick: c"
        del slow.line._table.holds  # it continues
        slow.runner.gate.set()
        reply = await turn.wait()
        assert (reply.stop, reply.error) == ("aborted", INTERRUPTED)
        assert (await waiting.wait()).text == "quick: b"
        said = [text for _, text in lines(slow.gateway)]
        assert said == ["a", "", "b", "quick: b", "c", "quick: c"]
        assert asked(slow) == ["a"]
        assert (await ask(slow.gateway, "d")).text == "re: d"


async def test_a_late_reply_finds_the_one_that_is_there(postgres_url: str) -> None:
    """Both replies have the same key, so even a gateway that assumes it holds the lease writes no second one."""
    async with started(postgres_url) as (slow, quick):
        slow.runner.gate = anyio.Event()
        turn = await slow.gateway.turns.send(Message(text="a", source="main"))
        await anext(turn.deltas())
        slow.line._table.holds = lambda: True  # type: ignore[method-assign]
        fall_silent(slow)
        await until(lambda: len(lines(quick.gateway)) == 2)
        assert (await ask(quick.gateway, "b")).text == "re: b"
        slow.runner.gate.set()
        await turn.wait()
        assert [text for _, text in lines(quick.gateway)] == ["a", "", "b", "re: b"]


async def test_a_gateway_without_a_lease_begins_no_turn(postgres_url: str) -> None:
    """It still stores the message durably, and answers it once it has a lease again."""
    async with started(postgres_url, 1) as (node,):
        fall_silent(node)
        turn = await node.gateway.turns.send(Message(text="a", source="main"))
        assert (await turn.wait()).text == "re: a"
        assert [text for _, text in lines(node.gateway)] == ["a", "re: a"]
        with pytest.raises(Overtaken):
            node.line.check(object())  # type: ignore[arg-type]


async def test_a_turn_of_another_gateway_can_be_stopped(postgres_url: str) -> None:
    """It is stopped by an abort at another gateway, and by an interrupting message."""
    async with started(postgres_url) as (one, two):
        one.runner.gate = anyio.Event()
        turn = await one.gateway.turns.send(Message(text="a", source="main"))
        await anext(turn.deltas())
        assert await two.gateway.turns.abort(turn.session_id) == [turn.id]
        assert (await turn.wait()).stop == "aborted"
        turn = await one.gateway.turns.send(Message(text="b", source="main"))
        await anext(turn.deltas())
        reply = await ask(two.gateway, "c", queue="interrupt")
        assert reply.text == "re: c" and (await turn.wait()).stop == "aborted"


async def test_counters_of_many_gateways_are_sums(postgres_url: str) -> None:
    """Each gateway adds its counts to the stored ones."""
    async with started(postgres_url, 3) as nodes:
        async with anyio.create_task_group() as tasks:
            for node in nodes:
                for number in range(4):
                    tasks.start_soon(ask, node.gateway, str(number))
        for node in nodes:
            await node.gateway.call(node.gateway.conversations.flush)
        found = nodes[0].gateway.conversations.get("main")
        assert found is not None and (found.entry["inputTokens"], found.entry["outputTokens"]) == (120, 60)


async def test_a_change_of_a_conversation_holds_at_every_gateway(postgres_url: str) -> None:
    """Other gateways see a reset and a changed setting."""
    async with started(postgres_url) as (one, two):
        await ask(one.gateway, "a")
        bound = one.gateway.conversations.reset("main")
        assert two.gateway.conversations.resolve("main").session_id == bound.session_id
        two.gateway.conversations.patch("main", {"verboseLevel": "on"})
        found = one.gateway.conversations.get("main")
        assert found is not None and found.entry["verboseLevel"] == "on"
        assert one.gateway.conversations.agents() == two.gateway.conversations.agents() == ["main"]


async def test_listeners_of_one_gateway_hear_the_entries_of_another(postgres_url: str) -> None:
    """Entries arrive once and in order; deltas are sent only by the gateway that answers."""
    async with started(postgres_url) as (one, two):
        await ask(one.gateway, "a")
        session_id = two.gateway.conversations.resolve("main").session_id
        events = await two.gateway.hub.subscribe(session_id)
        await ask(one.gateway, "b")
        heard = []
        with anyio.fail_after(SOON):
            async for event in events:
                if event.kind == "entry":
                    heard.append(event.data["message"]["role"])
                if len(heard) == 2:
                    break
        assert heard == ["user", "assistant"]
        events.close()


async def test_no_turn_begins_anywhere_while_somebody_wants_to_be_alone(postgres_url: str) -> None:
    """This holds for turns and exclusive holders on different gateways."""
    from sessile.errors import TurnInProgress

    async with started(postgres_url) as (one, two):
        bound = one.gateway.conversations.resolve("main")
        async with two.gateway.turns.alone(bound.session_id):
            turn = await one.gateway.turns.send(Message(text="a", source="main"))
            await anyio.sleep(0.2)
            assert turn.state == "queued" and one.gateway.turns.busy() == {bound.session_id}
            with pytest.raises(TurnInProgress):
                async with one.gateway.turns.alone(bound.session_id):
                    pass
        assert (await turn.wait()).text == "re: a"
