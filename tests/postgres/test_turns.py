"""Turns of many gateways in one database run one at a time per session, in order, and are taken over from dead gateways."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from random import Random

import psycopg
import pytest

from postgres_rig import Server
from sessile.storage.postgres.database import Database
from sessile.storage.postgres.schema import migrate
from sessile.storage.postgres.turn_queue import Entered, Ticket, TurnTable

pytestmark = pytest.mark.mission("B8")

TTL = 1.0
KEY = "agent:main:main"
Nodes = Callable[[], TurnTable]


@pytest.fixture
def nodes(postgres_url: str) -> Nodes:
    """Return a function that creates turn tables on one database, as separate gateways do."""
    migrate(Database(postgres_url))

    def make() -> TurnTable:
        table = TurnTable(Database(postgres_url, durability="process"), ttl=TTL)
        table.join()
        return table

    return make


def enter(node: TurnTable, name: str, session: str = "s", *, urgent: bool = False) -> Entered:
    entered = node.enter(session, KEY, name, {"name": name}, urgent=urgent)
    assert entered is not None
    return entered


def running(*nodes: TurnTable) -> list[Ticket]:
    """Return the turns that have a lane, on any node."""
    return [ticket for node in nodes for ticket, standing in node.own().items() if standing.has_lane]


def die(node: TurnTable) -> None:
    """End a gateway as a kill does: its lease is neither renewed nor released."""
    for process in node._leases._processes.values():
        process.held.clear()


def test_one_turn_of_a_session_runs_and_the_others_wait_whichever_node_has_them(nodes: Nodes) -> None:
    """When a turn leaves, the lane goes to the next one, also on another node."""
    one, two = nodes(), nodes()
    first, second, third = enter(one, "a"), enter(two, "b"), enter(one, "c")
    assert [first.has_lane, second.has_lane, third.has_lane] == [True, False, False]
    assert running(one, two) == [first.ticket]
    one.leave(first.ticket)
    assert running(one, two) == [second.ticket]
    two.leave(second.ticket)
    assert running(one, two) == [third.ticket]
    one.leave(third.ticket)
    assert running(one, two) == [] and one.sessions() == set()
    assert enter(two, "d").has_lane


def test_lanes_of_different_sessions_have_nothing_to_do_with_each_other(nodes: Nodes) -> None:
    """Turns of different sessions run at the same time."""
    one, two = nodes(), nodes()
    assert enter(one, "a", "s").has_lane and enter(two, "b", "t").has_lane


def test_a_message_of_one_name_is_entered_once_on_whichever_node(nodes: Nodes) -> None:
    """A second entry returns the session of the first; after the turn has left, the name is free."""
    one, two = nodes(), nodes()
    entered = enter(one, "a")
    assert two.enter("t", KEY, "a", {"name": "a"}) is None
    assert two.where(KEY, "a") == "s"
    assert two.enter("t", "agent:main:other", "a", {"name": "a"}) is not None
    one.leave(entered.ticket)
    assert two.where(KEY, "a") is None


def test_an_urgent_turn_comes_before_those_that_wait(nodes: Nodes) -> None:
    """The running turn is not interrupted."""
    one, two = nodes(), nodes()
    first, waiting, urgent = enter(one, "a"), enter(one, "b"), enter(two, "c", urgent=True)
    assert running(one, two) == [first.ticket]
    one.leave(first.ticket)
    assert running(one, two) == [urgent.ticket]
    two.leave(urgent.ticket)
    assert running(one, two) == [waiting.ticket]


def test_who_does_not_want_to_wait_any_more_is_passed_over(nodes: Nodes) -> None:
    """A waiting turn that leaves does not affect the others."""
    one, two = nodes(), nodes()
    first, second, third = enter(one, "a"), enter(two, "b"), enter(one, "c")
    two.leave(second.ticket)
    assert running(one, two) == [first.ticket]
    one.leave(first.ticket)
    assert running(one, two) == [third.ticket]


def test_an_empty_lane_can_be_taken_with_nothing_to_run(nodes: Nodes) -> None:
    """No turn starts in the taken lane, and a lane with turns cannot be taken."""
    one, two = nodes(), nodes()
    alone = one.enter_alone("s", "x")
    assert alone is not None and two.enter_alone("s", "y") is None
    waiting = enter(two, "a")
    assert not waiting.has_lane
    one.leave(alone)
    assert running(one, two) == [waiting.ticket]
    assert two.names("s") == {"a": KEY}


def test_turns_of_a_dead_node_are_those_of_a_living_one_in_their_order(nodes: Nodes) -> None:
    """They are adopted only after the lease has expired, and the lane stays with the same turn."""
    dead, living = nodes(), nodes()
    first, second, third = enter(dead, "a"), enter(living, "b"), enter(dead, "c")
    die(dead)
    assert not living.adopt()
    time.sleep(TTL + 0.1)
    assert living.adopt() and not living.adopt()
    assert [(turn.ticket, turn.body) for turn in living.left()] == [
        (first.ticket, {"name": "a"}),
        (second.ticket, {"name": "b"}),
        (third.ticket, {"name": "c"}),
    ]
    assert running(living) == [first.ticket]


def test_of_many_who_take_over_each_turn_goes_to_one(nodes: Nodes) -> None:
    """After concurrent adoptions, no turn is lost and each has one owner."""
    dead, living = nodes(), [nodes() for _ in range(4)]
    entered = [enter(dead, str(number), f"s{number % 5}").ticket for number in range(40)]
    dead.part()
    threads = [threading.Thread(target=node.adopt) for node in living]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for node in living:  # a late node finds the rest
        node.adopt()
    assert sorted(turn.ticket for node in living for turn in node.left()) == sorted(entered)


def test_a_node_that_stood_still_cannot_leave_what_others_have_taken_over(nodes: Nodes) -> None:
    """A paused node notices that its lease has expired, and its `leave` has no effect."""
    paused, living = nodes(), nodes()
    entered, waiting = enter(paused, "a"), enter(living, "b")
    die(paused)
    time.sleep(TTL + 0.1)
    assert not paused.holds()
    assert living.adopt()
    paused.leave(entered.ticket)
    assert set(living.own()) == {entered.ticket, waiting.ticket}
    assert running(living) == [entered.ticket]
    before = paused.node
    paused.join()
    assert paused.holds() and paused.node != before and paused.own() == {}


def test_a_lane_whose_owner_died_in_the_middle_of_leaving_goes_on(
    nodes: Nodes, postgres_server: Server, postgres_url: str
) -> None:
    """The turn's row was removed, but the lane was not passed on."""
    one, two = nodes(), nodes()
    first, second = enter(one, "a"), enter(two, "b")
    with Database(postgres_url).transaction() as cursor:
        cursor.execute("DELETE FROM turn WHERE session = 's' AND number = %s", (first.ticket.number,))
    assert running(two) == []  # this check passes the lane on
    assert running(two) == [second.ticket]


def test_an_empty_lane_of_a_dead_turn_is_taken_by_whoever_comes(nodes: Nodes, postgres_url: str) -> None:
    """A new turn gets a lane whose turn no longer exists."""
    one, two = nodes(), nodes()
    enter(one, "a")
    with Database(postgres_url).transaction() as cursor:
        cursor.execute("DELETE FROM turn")
    assert enter(two, "b").has_lane


def test_a_turn_is_stopped_through_its_row(nodes: Nodes) -> None:
    """The node that runs it reads the reason; the first reason is kept."""
    one, two = nodes(), nodes()
    entered = enter(one, "a")
    two.stop("s", list(two.names("s")), "enough")
    two.stop("s", ["a"], "really")
    assert one.own()[entered.ticket].stopped == "enough"
    assert two.running("s") == "a" and two.running("t") is None


@pytest.mark.parametrize("seed", range(3))
def test_under_load_a_lane_has_one_turn_at_a_time_and_keeps_the_order(nodes: Nodes, seed: int) -> None:
    """Three nodes enter and leave without pause; each node's turns run in their order."""
    workers = [nodes() for _ in range(3)]
    guard = threading.Lock()
    inside: set[str] = set()
    order: dict[tuple[int, str], list[int]] = {}
    failures: list[str] = []

    def work(number: int) -> None:
        node, rng = workers[number], Random(f"{seed} {number}")
        waiting: dict[Ticket, int] = {}
        for turn in range(25):
            session = f"s{rng.randrange(2)}"
            waiting[enter(node, f"{number}.{turn}", session).ticket] = turn
            while len(waiting) >= 3:
                _run_one(node, number, waiting)
        while waiting:
            _run_one(node, number, waiting)

    def _run_one(node: TurnTable, number: int, waiting: dict[Ticket, int]) -> None:
        for ticket, standing in node.own().items():
            if not standing.has_lane:
                continue
            with guard:
                if ticket.session_id in inside:
                    failures.append(f"two turns in {ticket.session_id}")
                inside.add(ticket.session_id)
                order.setdefault((number, ticket.session_id), []).append(waiting.pop(ticket))
            with guard:
                inside.discard(ticket.session_id)
            node.leave(ticket)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a lane is stuck"
    assert failures == []
    assert sum(map(len, order.values())) == 75
    assert all(turns == sorted(turns) for turns in order.values())


def test_an_entry_whose_outcome_is_not_known_is_looked_up(
    nodes: Nodes, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the connection breaks after the commit, the turn is found and entered once."""
    from sessile.storage.postgres.database import lost

    node = nodes()
    query = Database.query

    def breaking(self: Database, sql: str, *rest: object, **how: bool) -> object:
        found = query(self, sql, *rest, **how)  # type: ignore[arg-type]
        if "INSERT INTO turn" in sql:
            raise lost(psycopg.OperationalError("gone"), "somewhere")
        return found

    monkeypatch.setattr(Database, "query", breaking)
    entered = enter(node, "a")
    assert entered.has_lane and set(node.own()) == {entered.ticket}
