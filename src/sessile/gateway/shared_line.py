"""The line of turns of one gateway among many: the order lies in a database, and what is under way here in its memory.

Rules: a turn is in the table before anything else happens to it, with all that another gateway has to know to run it. It begins
when the table says that the lane is its own. Nobody is called: a gateway asks for its turns, soon while one waits. A gateway
whose lease is over may have been overtaken: its turns end without another word, and whoever waits for them hears what the others
made of them; it goes on under a new name.

What is in a session is written under keys. So whoever comes late, because his process stood still, finds it there, and doubles
nothing; the lease only keeps him from asking a model in vain.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import anyio

from sessile.errors import SessileError, TooMany
from sessile.gateway.job import turn_id_of
from sessile.gateway.line import Json, Left, Overtaken

if TYPE_CHECKING:
    from sessile.gateway.job import Job
    from sessile.storage.postgres.turns import LeftTurn, Ticket, TurnTable

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

_SHORTEST, _LONGEST = 0.01, 0.05  # seconds between two looks while a turn waits
_RUNNING = 0.25  # seconds, while turns only run: somebody may want to stop one, and a lease may end
_ADOPTING = 1.0  # seconds between two looks for what others have left
_LOST = "Another gateway looks after it."
_NUMBER = "number"  # of a turn in its lane, beside what `Job.record` told


class Call(Protocol):
    """Runs something that blocks, as `Gateway.call` does."""

    async def __call__(self, function: Callable[..., T], *args: object) -> T: ...


class _Place(NamedTuple):
    """Where a turn is, and under which name this gateway put it there."""

    ticket: Ticket
    node: str


class SharedLine:
    """The turns of one gateway; at most `most` of them wait in a session."""

    takes_up_again = True

    def __init__(self, table: TurnTable, call: Call, most: int) -> None:
        self._table = table
        self._call = call
        self._most = most
        self._guard = threading.Lock()  # for the three below
        self._places: dict[Job, _Place] = {}
        self._taken: set[Ticket] = set()
        self._entering: set[str] = set()  # names of what may be in the table, and is not here yet
        self._waiting: dict[Job, anyio.Event] = {}
        self._woken = anyio.Event()

    # -- being one of many

    async def open(self) -> None:
        """Be a node."""
        await self._call(self._table.join)

    def close(self) -> None:
        """Leave everything to the others."""
        self._table.part()

    async def run(self, adopt: Callable[[], Awaitable[None]]) -> None:
        """Look after turns that wait, and after those that others have left, until cancelled."""
        pause, adopted, failing = _SHORTEST, anyio.current_time(), False
        while True:
            with anyio.move_on_after(pause):
                await self._woken.wait()
                pause = _SHORTEST
            self._woken = anyio.Event()
            try:
                if not self._table.holds():
                    await self._begin_anew()
                if self._places:
                    await self._look()
                if anyio.current_time() - adopted >= _ADOPTING:
                    adopted = anyio.current_time()
                    await adopt()
                failing = False
            except SessileError as error:
                if not failing:
                    _LOG.warning("the turns of this gateway cannot be looked after: %s", error)
                failing = True
            pause = min(1.5 * pause, _LONGEST) if self._waiting else _RUNNING

    async def _begin_anew(self) -> None:
        """Go on under another name; what had the old one is somebody else's, or will be."""
        await self._call(self._table.join)
        for job, place in list(self._places.items()):
            if place.node != self._table.node:
                self._let_come(job)
                job.abort(_LOST)

    async def _look(self) -> None:
        standings = await self._call(self._table.own)
        for job, place in list(self._places.items()):
            standing = standings.get(place.ticket)
            if standing is None:
                continue  # it has only just come, or others look after it by now
            if standing.stopped is not None:
                job.abort(standing.stopped)
            if standing.has_lane:
                self._let_come(job)

    def _let_come(self, job: Job) -> None:
        waits = self._waiting.pop(job, None)
        if waits is not None:
            waits.set()

    # -- entering

    def enter(self, job: Job, *, first: bool = False) -> bool | None:
        """Put a turn into the table; whether the lane is its own, `None` if the conversation has one of that name."""
        with self._guard:
            if sum(other.session_id == job.session_id for other in self._places) > self._most:
                raise TooMany(f"{self._most} messages wait in this session already", hint="wait for an answer")
            self._entering.add(job.name)
        try:
            entered = self._table.enter(job.session_id, job.bound.text, job.name, job.record(), urgent=first)
            if entered is None:
                return None
            with self._guard:
                self._places[job] = _Place(entered.ticket, entered.node)
            job.has_lane = entered.has_lane
            return entered.has_lane
        finally:
            with self._guard:
                self._entering.discard(job.name)

    def enter_again(self, job: Job, record: Json) -> bool:
        """Look after a turn that is in the table already."""
        with self._guard:
            self._places[job] = _Place(self._table.ticket(job.session_id, record[_NUMBER]), self._table.node)
        return True

    def give_up(self, job: Job) -> None:
        """Take a turn out of the table that is refused."""
        place = self._places.get(job)
        if place is not None:
            try:
                self._table.leave(place.ticket)
            except SessileError as error:
                _LOG.warning("a message that was refused may be answered all the same: %s", error)

    def refuse(self, job: Job) -> None:
        """Look no more after a turn."""
        self.leave(job)

    async def come(self, job: Job) -> None:
        """Return when the lane is a turn's own, or when others look after it."""
        if not job.has_lane:
            event = self._waiting[job] = anyio.Event()
            self._woken.set()
            await event.wait()
            job.has_lane = True

    def check(self, job: Job) -> None:
        """Raise `Overtaken` if others may look after a turn by now."""
        place = self._places.get(job)
        if place is None or place.node != self._table.node or not self._table.holds():
            raise Overtaken()

    def done(self, job: Job, unless: Callable[[], bool]) -> None:
        """Take a turn out of the table; the lane is the next one's."""
        place = self._places.get(job)
        if place is not None:
            self._table.leave(place.ticket)

    def leave(self, job: Job) -> None:
        """Look no more after a turn. If it is still in the table, it is found among what is left."""
        with self._guard:
            self._places.pop(job, None)
        self._waiting.pop(job, None)
        self._woken.set()

    # -- what is left

    def left(self) -> Sequence[Left]:
        """Take over what dead gateways have left; gives that, and what is this gateway's own though it does not run it."""
        self._table.adopt()
        found: dict[str, list[Json]] = {}
        for ticket, _, body in self._strays():
            if body is None:
                self._table.leave(ticket)
            else:
                found.setdefault(ticket.session_id, []).append({**body, _NUMBER: ticket.number})
        return [Left(session_id, turns) for session_id, turns in found.items()]

    def _strays(self) -> list[LeftTurn]:
        """The turns in the table that nobody here looks after."""
        strays = self._unknown(self._table.left())
        if not strays:
            return []
        still = self._table.own()  # one that has just been done is gone by now
        return [turn for turn in self._unknown(strays) if turn.ticket in still]

    def _unknown(self, turns: Iterable[LeftTurn]) -> list[LeftTurn]:
        with self._guard:
            known = {place.ticket for place in self._places.values()} | self._taken
            return [turn for turn in turns if turn.ticket not in known and turn.name not in self._entering]

    def settle(self, left: Left, waiting: Sequence[Json]) -> None:
        """Take the turns out of the table that have ended."""
        for turn in left.turns:
            if turn not in waiting:
                self._table.leave(self._table.ticket(left.session_id, turn[_NUMBER]))

    # -- the turns of all

    def where(self, key: str, name: str) -> str | None:
        """The session in which a turn runs or waits, on whichever gateway."""
        return self._table.where(key, name)

    def names(self, session_id: str) -> Mapping[str, str]:
        """The turns that any gateway has in a session: their conversations by name."""
        return self._table.names(session_id)

    def of(self, session_id: str) -> list[Job]:
        """The turns of this gateway in a session."""
        return [job for job in self.all() if job.session_id == session_id]

    def all(self) -> list[Job]:
        """All turns of this gateway."""
        with self._guard:
            return list(self._places)

    def sessions(self) -> set[str]:
        """The sessions in which any gateway has turns."""
        return self._table.sessions()

    async def interrupt(self, job: Job, why: str) -> None:
        """Stop the turn that has the lane, wherever it runs."""
        running = await self._call(self._table.running, job.session_id)
        if running is not None and running != job.name:
            await self._stop(job.session_id, [running], why)

    async def stop(self, session_id: str, turn_id: str | None, why: str) -> list[str]:
        """Stop a turn of a session, or all, wherever they are; their ids."""
        ids = {name: turn_id_of(session_id, name) for name in await self._call(self._table.names, session_id)}
        stopped = [name for name in ids if turn_id in (None, ids[name])]
        await self._stop(session_id, stopped, why)
        return [ids[name] for name in stopped]

    async def _stop(self, session_id: str, names: Sequence[str], why: str) -> None:
        for job in self.of(session_id):
            if job.name in names:
                job.abort(why)
        await self._call(self._table.stop, session_id, names, why)

    async def take(self, session_id: str) -> Ticket | None:
        """Take a lane in which no gateway has a turn."""
        name = uuid.uuid4().hex
        with self._guard:
            self._entering.add(name)
        try:
            ticket = await self._call(self._table.enter_alone, session_id, name)
            if ticket is not None:
                with self._guard:
                    self._taken.add(ticket)
            return ticket
        finally:
            with self._guard:
                self._entering.discard(name)

    async def give_back(self, session_id: str, taken: object) -> None:
        """Leave a lane that was taken. If that fails, it is found among what is left."""
        (ticket,) = (one for one in self._taken if one == taken)
        try:
            await self._call(self._table.leave, ticket)
        finally:
            with self._guard:
                self._taken.discard(ticket)
            self._woken.set()
