"""The turns of gateways that share a database: in each session one at a time, in the order in which they came.

    node      a gateway, known by a name that it has as long as its lease holds; whoever loses it goes on under another name
    enter     a turn is durable, behind all others of its session; it has the lane if nobody else is there
    leave     it is gone, and the lane is the next one's, whichever node looks after that
    adopt     turns of nodes whose lease is over become those of another node, each of just one

Rules: every step is one statement, so that a process that stands still in the middle of something holds no lock. A lane changes
hands by compare-and-set: from a turn that is gone to the one that is first, and only if nobody entered meanwhile. A node asks
for what has become of its turns; nobody is called. A turn of one name in a conversation is there once, whoever enters it.

It does not know what a turn is, nor what is said in it.
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
    """A turn that is durable, under the name that this node had then, and whether the lane is its own."""

    ticket: Ticket
    node: str
    has_lane: bool


class Standing(NamedTuple):
    """How a turn stands: whether it has the lane, and why somebody wants it to end."""

    has_lane: bool
    stopped: str | None


class LeftTurn(NamedTuple):
    """A turn that nobody runs; without a body nothing is to be run."""

    ticket: Ticket
    name: str
    body: Json | None


class TurnTable:
    """The turns of all gateways, as one of them sees them. Blocks; may be used from any thread."""

    def __init__(self, database: Database, *, ttl: float | None = None) -> None:
        self._database = database
        self._leases = Leases(database, ttl=NODE_TTL if ttl is None else ttl)
        self._node = ""

    # -- nodes

    @property
    def node(self) -> str:
        """The name of this gateway among the others."""
        return self._node

    def join(self) -> None:
        """Be a node from now on, under a name that nobody had before."""
        node = uuid.uuid4().hex
        self._leases.take(_lease(node))
        self._node = node

    def holds(self) -> bool:
        """Whether the lease of this node is known to hold, so that nobody has taken its turns over."""
        return self._leases.holds(_lease(self._node))

    def part(self) -> None:
        """Be no node any more; what is left is free for the others at once."""
        self._leases.release(_lease(self._node))

    def adopt(self) -> bool:
        """Take over the turns of nodes whose lease is over; whether there were any."""
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
        """Put a turn behind the others, or before those that wait; `None` if the conversation has one of that name."""
        node = self._node
        told = {
            "session": session_id,
            "conversation": _bytes(conversation),
            "name": _bytes(name),
            "node": node,
            "urgent": urgent,
            "body": json.dumps(body).encode(),
        }
        try:
            rows = self._database.query(_ENTER, told)
        except UniqueViolation:
            return None
        except OutcomeUnknown:
            rows = self._database.query(_MADE, told, again=True)
            if not rows:
                raise
        ((number, running),) = rows
        has_lane = running == number or self.advance(session_id) == number
        return Entered(Ticket(session_id, number), node, has_lane)

    def enter_alone(self, session_id: str, name: str) -> Ticket | None:
        """Take a lane that is empty, with nothing to run; `None` if it is not."""
        told = {"session": session_id, "node": self._node, "name": _bytes(name)}
        rows = self._database.query(_ENTER_ALONE, told)
        return Ticket(session_id, rows[0][0]) if rows else None

    def leave(self, ticket: Ticket) -> None:
        """A turn of this node is done, or does not want to wait any more; one that others look after stays as it is."""
        told = {"session": ticket.session_id, "number": ticket.number, "node": self._node}
        if not self._database.query(_LEAVE, told, again=True):  # somebody waits behind it, or before it
            self.advance(ticket.session_id)

    def advance(self, session_id: str) -> int | None:
        """Give a lane to the first one in it if the one that had it is gone; the one that has it then."""
        while True:
            rows = self._database.query(_LANE, (session_id,), again=True)
            if not rows:
                return None
            last, running, is_there, first = rows[0]
            if is_there or (running is None and first is None):
                return None if running is None else int(running)
            told = {"session": session_id, "last": last, "running": running, "first": first}
            self._database.query(_ADVANCE, told, again=True)

    # -- looking

    def own(self) -> dict[Ticket, Standing]:
        """The turns that this node looks after. A lane that somebody left without a word goes to its next one."""
        rows = self._database.query(_OWN, (self._node,), again=True)
        for session_id in {row[0] for row in rows if not row[4]}:
            self.advance(session_id)
        return {Ticket(row[0], row[1]): Standing(bool(row[2]), row[3]) for row in rows}

    def left(self) -> list[LeftTurn]:
        """The turns of this node with what is to be run, in the order of their lanes."""
        rows = self._database.query(_BODIES, (self._node,), again=True)
        return [
            LeftTurn(Ticket(session_id, number), _text(name), None if body is None else json.loads(body))
            for session_id, number, name, body in rows
        ]

    def ticket(self, session_id: str, number: int) -> Ticket:
        """The ticket of a turn that somebody knows by its number."""
        return Ticket(session_id, number)

    def where(self, conversation: str, name: str) -> str | None:
        """The session in which a turn runs or waits, on whichever node."""
        rows = self._database.query(_WHERE, (_bytes(conversation), _bytes(name)), again=True)
        return rows[0][0] if rows else None

    def running(self, session_id: str) -> str | None:
        """The name of the turn that has a lane."""
        rows = self._database.query(_RUNNING, (session_id,), again=True)
        return _text(rows[0][0]) if rows else None

    def sessions(self) -> set[str]:
        """The sessions in which turns run or wait."""
        return {session_id for (session_id,) in self._database.query(_SESSIONS, again=True)}

    # -- stopping

    def names(self, session_id: str) -> dict[str, str]:
        """The turns in a session, in their order: their conversations by name."""
        rows = self._database.query(_NAMES, (session_id,), again=True)
        return {_text(name): _text(conversation) for name, conversation in rows}

    def stop(self, session_id: str, names: Sequence[str], why: str) -> None:
        """Ask whoever looks after turns of a session to end them."""
        self._database.query(_STOP, (why, session_id, [_bytes(name) for name in names]), again=True)


def _lease(node: str) -> str:
    return f"node:{node}"


def _bytes(text: str) -> bytes:
    """A key or a name as it is stored: one may hold anything, also half an emoji."""
    return text.encode("utf-8", "surrogatepass")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
