"""The queue of turns of gateways that share a database: one turn at a time in each session, in order.

    node      a gateway; its name is valid while its lease holds, and a gateway that loses the lease gets a new name
    enter     store a turn durably behind all others of its session; it gets the lane if the lane is empty
    leave     remove a turn; the lane goes to the next one, whichever node owns that
    adopt     take over the turns of nodes whose lease has ended; each turn is adopted by exactly one node

Rules:

- Every step is one statement, so that a process that hangs between two steps holds no lock.
- A lane changes hands by compare-and-set: from a turn that is gone to the first one, and only if no turn entered in the meantime.
- Nodes poll the state of their turns; there are no notifications.
- The name of a turn is unique in its conversation, on all nodes.

The content of a turn is opaque here.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from psycopg.errors import UniqueViolation

from sessile.storage.postgres.database import Database, OutcomeUnknown
from sessile.storage.postgres.leases import Leases

Json = dict[str, Any]

NODE_TTL = 6.0  # seconds until the turns of a gateway that was killed are taken over

_ENTER = """
    WITH entered AS (
        INSERT INTO lane (session, last, running) VALUES (%(session)s, 1, 1)
        ON CONFLICT (session) DO UPDATE SET last = lane.last + 1, running = coalesce(lane.running, lane.last + 1)
        RETURNING last, running
    ), made AS (
        INSERT INTO turn (session, number, place, node, conversation, name, body)
        SELECT %(session)s, last, CASE WHEN %(urgent)s THEN -last ELSE last END, %(node)s, %(conversation)s, %(name)s, %(body)s
        FROM entered RETURNING number
    )
    SELECT made.number, entered.running FROM made, entered
"""
_ENTER_ALONE = """
    WITH entered AS (
        INSERT INTO lane (session, last, running) VALUES (%(session)s, 1, 1)
        ON CONFLICT (session) DO UPDATE SET last = lane.last + 1, running = lane.last + 1 WHERE lane.running IS NULL
        RETURNING last
    )
    INSERT INTO turn (session, number, place, node, conversation, name)
    SELECT %(session)s, last, last, %(node)s, %(name)s, %(name)s FROM entered RETURNING number
"""
_MADE = """
    SELECT number, (SELECT running FROM lane WHERE session = turn.session)
    FROM turn WHERE conversation = %(conversation)s AND name = %(name)s AND node = %(node)s
"""
_LEAVE = """
    WITH gone AS (
        DELETE FROM turn WHERE session = %(session)s AND number = %(number)s AND node = %(node)s RETURNING number
    )
    UPDATE lane SET running = NULL FROM gone
    WHERE session = %(session)s AND running = gone.number AND last = gone.number
      AND NOT EXISTS (SELECT FROM turn WHERE session = %(session)s AND number < %(number)s)
    RETURNING running
"""
_LANE = """
    SELECT last, running, EXISTS (SELECT FROM turn WHERE session = lane.session AND number = lane.running),
        (SELECT number FROM turn WHERE session = lane.session ORDER BY place LIMIT 1)
    FROM lane WHERE session = %s
"""
_ADVANCE = """
    UPDATE lane SET running = %(first)s
    WHERE session = %(session)s AND last = %(last)s AND running IS NOT DISTINCT FROM %(running)s
    RETURNING running
"""
_OWN = """
    SELECT turn.session, number, lane.running = number, stopped,
        EXISTS (SELECT FROM turn AS other WHERE other.session = turn.session AND other.number = lane.running)
    FROM turn JOIN lane ON lane.session = turn.session WHERE node = %s
"""
_BODIES = "SELECT session, number, name, body FROM turn WHERE node = %s ORDER BY session, place"
_OTHERS = "SELECT DISTINCT node FROM turn WHERE node <> %s"
_ADOPT = "UPDATE turn SET node = %s WHERE node = %s"
_STOP = "UPDATE turn SET stopped = coalesce(stopped, %s) WHERE session = %s AND name = ANY(%s)"
_NAMES = "SELECT name, conversation FROM turn WHERE session = %s AND body IS NOT NULL ORDER BY place"
_WHERE = "SELECT session FROM turn WHERE conversation = %s AND name = %s"
_RUNNING = "SELECT name FROM turn JOIN lane ON lane.session = turn.session AND running = number WHERE turn.session = %s"
_SESSIONS = "SELECT DISTINCT session FROM turn"


class Ticket(NamedTuple):
    """A turn in the lane of its session."""

    session_id: str
    number: int


class Entered(NamedTuple):
    """A stored turn, the name of this node at that time, and whether the turn has the lane."""

    ticket: Ticket
    node: str
    has_lane: bool


class Standing(NamedTuple):
    """The state of a turn: whether it has the lane, and why it should stop, if it should."""

    has_lane: bool
    stopped: str | None


class LeftTurn(NamedTuple):
    """A turn that no process runs; without a body there is nothing to run."""

    ticket: Ticket
    name: str
    body: Json | None


class TurnTable:
    """The turns of all gateways, from the point of view of one of them. Calls block; any thread may make them."""

    def __init__(self, database: Database, *, ttl: float | None = None) -> None:
        self._database = database
        self._leases = Leases(database, ttl=NODE_TTL if ttl is None else ttl)
        self._node = ""

    # -- nodes

    @property
    def node(self) -> str:
        """The name of this gateway."""
        return self._node

    def join(self) -> None:
        """Become a node, with a new name."""
        node = uuid.uuid4().hex
        self._leases.take(_lease(node))
        self._node = node

    def holds(self) -> bool:
        """Return whether the lease of this node is known to hold, so that no other node has adopted its turns."""
        return self._leases.holds(_lease(self._node))

    def part(self) -> None:
        """Stop being a node; other nodes can adopt the remaining turns at once."""
        self._leases.release(_lease(self._node))

    def adopt(self) -> bool:
        """Take over the turns of nodes whose lease has ended; return whether there were any."""
        adopted = False
        for (other,) in self._database.query(_OTHERS, (self._node,), again=True):
            name = _lease(other)
            if self._leases.holder(name) is None and self._leases.take(name) is not None:
                self._database.query(_ADOPT, (self._node, other), again=True)
                self._leases.release(name)
                adopted = True
        return adopted

    # -- lanes

    def enter(
        self, session_id: str, conversation: str, name: str, body: Mapping[str, Any], *, urgent: bool = False
    ) -> Entered | None:
        """Add a turn at the end of the lane, or, if urgent, before those that wait.

        Return `None` if the conversation has a turn of that name already.
        """
        node = self._node
        values = {
            "session": session_id,
            "conversation": _bytes(conversation),
            "name": _bytes(name),
            "node": node,
            "urgent": urgent,
            "body": json.dumps(body).encode(),
        }
        try:
            rows = self._database.query(_ENTER, values)
        except UniqueViolation:
            return None
        except OutcomeUnknown:
            rows = self._database.query(_MADE, values, again=True)
            if not rows:
                raise
        ((number, running),) = rows
        has_lane = running == number or self.advance(session_id) == number
        return Entered(Ticket(session_id, number), node, has_lane)

    def enter_alone(self, session_id: str, name: str) -> Ticket | None:
        """Take an empty lane with nothing to run; return `None` if it is not empty."""
        values = {"session": session_id, "node": self._node, "name": _bytes(name)}
        rows = self._database.query(_ENTER_ALONE, values)
        return Ticket(session_id, rows[0][0]) if rows else None

    def leave(self, ticket: Ticket) -> None:
        """Remove a turn of this node that is done or no longer waits; a turn of another node is left alone."""
        values = {"session": ticket.session_id, "number": ticket.number, "node": self._node}
        if not self._database.query(_LEAVE, values, again=True):  # other turns wait
            self.advance(ticket.session_id)

    def advance(self, session_id: str) -> int | None:
        """Give a lane to its first turn if the running one is gone; return the number of the running turn."""
        while True:
            rows = self._database.query(_LANE, (session_id,), again=True)
            if not rows:
                return None
            last, running, is_there, first = rows[0]
            if is_there or (running is None and first is None):
                return None if running is None else int(running)
            values = {"session": session_id, "last": last, "running": running, "first": first}
            self._database.query(_ADVANCE, values, again=True)

    # -- querying

    def own(self) -> dict[Ticket, Standing]:
        """Return the turns of this node. Lanes whose running turn is gone are advanced."""
        rows = self._database.query(_OWN, (self._node,), again=True)
        for session_id in {row[0] for row in rows if not row[4]}:
            self.advance(session_id)
        return {Ticket(row[0], row[1]): Standing(bool(row[2]), row[3]) for row in rows}

    def left(self) -> list[LeftTurn]:
        """Return the turns of this node with their bodies, in the order of their lanes."""
        rows = self._database.query(_BODIES, (self._node,), again=True)
        return [
            LeftTurn(Ticket(session_id, number), _text(name), None if body is None else json.loads(body))
            for session_id, number, name, body in rows
        ]

    def ticket(self, session_id: str, number: int) -> Ticket:
        """Return the ticket of a turn."""
        return Ticket(session_id, number)

    def where(self, conversation: str, name: str) -> str | None:
        """Return the session in which a turn runs or waits, on any node."""
        rows = self._database.query(_WHERE, (_bytes(conversation), _bytes(name)), again=True)
        return rows[0][0] if rows else None

    def running(self, session_id: str) -> str | None:
        """Return the name of the turn that has the lane of a session."""
        rows = self._database.query(_RUNNING, (session_id,), again=True)
        return _text(rows[0][0]) if rows else None

    def sessions(self) -> set[str]:
        """Return the sessions in which turns run or wait."""
        return {session_id for (session_id,) in self._database.query(_SESSIONS, again=True)}

    # -- stopping

    def names(self, session_id: str) -> dict[str, str]:
        """Return the turns of a session in order: their conversations by name."""
        rows = self._database.query(_NAMES, (session_id,), again=True)
        return {_text(name): _text(conversation) for name, conversation in rows}

    def stop(self, session_id: str, names: Sequence[str], why: str) -> None:
        """Ask the nodes that own turns of a session to stop them."""
        self._database.query(_STOP, (why, session_id, [_bytes(name) for name in names]), again=True)


def _lease(node: str) -> str:
    return f"node:{node}"


def _bytes(text: str) -> bytes:
    """Return a key or a name as it is stored; it may contain lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
