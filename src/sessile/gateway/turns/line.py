"""The line of turns: who may begin in each session, and what a restart finds of those that are not done.

    enter    a turn is behind the others of its session, so that it is not lost; it says whether the turn may begin at once
    come     its turn has come
    done     nothing is left to do of it
    left     what nobody runs any more, though somebody should

A folder has one gateway, whose lanes are in its memory (`LocalLine`). In a database lie the turns of many gateways, and which of
them is next in a session is asked there (`SharedLine`). Whatever else a gateway does with turns is the same in both.

Lanes: in each session one turn at a time, the others wait behind it.

Rules: whoever enters an empty lane has it, and must leave it, whatever happens; leaving says who is next. A lane with too many
who wait lets nobody else in, except those that had been let in before a restart. Entering is asked on threads, so everything
here is under one lock, and nothing takes long.

It knows nothing of turns but that they can be put in a row.

The line of turns of one gateway among many: the order lies in a database, and what is under way here in its memory.

Rules: a turn is in the table before anything else happens to it, with all that another gateway has to know to run it. It begins
when the table says that the lane is its own. Nobody is called: a gateway asks for its turns, soon while one waits. A gateway
whose lease is over may have been overtaken: its turns end without another word, and whoever waits for them hears what the others
made of them; it goes on under a new name.

What is in a session is written under keys. So whoever comes late, because his process stood still, finds it there, and doubles
nothing; the lease only keeps him from asking a model in vain.

Tasks that drive turns, one turn after the other each.

To begin a task costs as much as many a turn has to do on the loop; so one that is done with its turn takes up the next. A few of
them wait for that, the others end; and all end with their task group.

Rules: a turn that was handed over is driven, also if the task group ends at that moment: then it is driven as one that is
cancelled.

It does not know what a turn is.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup

from sessile.errors import Conflict, SessileError, TooMany
from sessile.gateway.turns.turn import turn_id_of

if TYPE_CHECKING:
    from sessile.gateway.turns.turn import Job as job_Job
    from sessile.storage.postgres.turn_queue import LeftTurn, Ticket, TurnTable
    from sessile.storage.turn_log import TurnLog


# --- lanes

Job = TypeVar("Job")


class Lanes(Generic[Job]):
    """The lanes of all sessions that have one; `most` may wait in each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lanes: dict[str, deque[Job]] = {}  # the first one has the lane
        self._lock = threading.Lock()

    def enter(self, session_id: str, job: Job, *, first: bool = False, limited: bool = True) -> bool:
        """Put a job behind the others, or right behind the one that runs; whether the lane is its own now."""
        with self._lock:
            lane = self._lanes.setdefault(session_id, deque())
            if limited and len(lane) > self._most:
                raise TooMany(f"{self._most} messages wait in this session already", hint="wait for an answer")
            if first and lane:
                lane.insert(1, job)
            else:
                lane.append(job)
            return len(lane) == 1

    def try_enter(self, session_id: str, job: Job) -> bool:
        """Take an empty lane; one that is taken is left as it is."""
        with self._lock:
            if session_id in self._lanes:
                return False
            self._lanes[session_id] = deque([job])
            return True

    def leave(self, session_id: str) -> Job | None:
        """The one who has the lane is done; whose it is now, if anybody waits."""
        with self._lock:
            lane = self._lanes[session_id]
            lane.popleft()
            if lane:
                return lane[0]
            del self._lanes[session_id]
            return None

    def withdraw(self, session_id: str, job: Job) -> bool:
        """Take a job out that waits; whether it still did."""
        with self._lock:
            lane = self._lanes.get(session_id, deque())
            if job not in lane or lane[0] is job:
                return False
            lane.remove(job)
            return True

    def of(self, session_id: str) -> list[Job]:
        """Who has the lane of a session, and who waits."""
        with self._lock:
            return list(self._lanes.get(session_id, ()))

    def all(self) -> list[Job]:
        """Everybody in any lane."""
        with self._lock:
            return [job for lane in self._lanes.values() for job in lane]


# --- line

Json = dict[str, Any]


class Overtaken(Conflict):
    """Another gateway looks after this turn by now."""


class Left(NamedTuple):
    """The turns of one session that nobody runs, in their order, as `Job.record` or `Job.mark` told them."""

    session_id: str
    turns: Sequence[Json]


class Line(Protocol):
    """Who may begin in each session. Methods that are not async may block, if nothing else is said."""

    @property
    def takes_up_again(self) -> bool:
        """Whether a turn that could not begin is found among those that are left, without a restart."""
        ...

    async def open(self) -> None:
        """Be there, before anything else is asked."""
        ...

    async def run(self, adopt: Callable[[], Awaitable[None]]) -> None:
        """Look after turns that wait until cancelled, and call `adopt` whenever something may be left."""
        ...

    def close(self) -> None:
        """Be there no more."""
        ...

    def enter(self, job: job_Job, *, first: bool = False) -> bool | None:
        """Put a turn behind the others, or before those that wait; whether it may begin, `None` if another gateway has it."""
        ...

    def enter_again(self, job: job_Job, record: Json) -> bool:
        """Put a turn that was left behind the others; whether somebody has to drive it now."""
        ...

    def give_up(self, job: job_Job) -> None:
        """Let nobody find a turn that is refused."""
        ...

    def refuse(self, job: job_Job) -> job_Job | None:
        """Take a turn out that is refused; who is to be driven now. On the loop, never blocks."""
        ...

    async def come(self, job: job_Job) -> None:
        """Return when it is a turn's turn."""
        ...

    def check(self, job: job_Job) -> None:
        """Raise `Overtaken` if somebody else looks after a turn by now; never blocks."""
        ...

    def done(self, job: job_Job, unless: Callable[[], bool]) -> None:
        """Nothing is left to do of a turn, nor in its session, `unless` something is owed to it."""
        ...

    def leave(self, job: job_Job) -> job_Job | None:
        """A turn is not driven any more; who is to be driven now. On the loop, never blocks."""
        ...

    def left(self) -> Sequence[Left]:
        """What nobody runs."""
        ...

    def settle(self, left: Left, waiting: Sequence[Json]) -> None:
        """Forget turns that were left, except those that still wait."""
        ...

    def where(self, key: str, name: str) -> str | None:
        """The session in which another gateway has a turn of that name in a conversation."""
        ...

    def names(self, session_id: str) -> Mapping[str, str]:
        """The turns that any gateway has in a session, if there are others: their conversations by name."""
        ...

    def of(self, session_id: str) -> list[job_Job]:
        """The turns of this gateway in a session, in their order; never blocks."""
        ...

    def all(self) -> list[job_Job]:
        """All turns of this gateway; never blocks."""
        ...

    def sessions(self) -> set[str]:
        """The sessions in which any gateway has turns."""
        ...

    async def interrupt(self, job: job_Job, why: str) -> None:
        """Stop the turn that runs in a session for the sake of one that does not want to wait."""
        ...

    async def stop(self, session_id: str, turn_id: str | None, why: str) -> list[str]:
        """Stop a turn of a session, or all, wherever they are; their ids."""
        ...

    async def take(self, session_id: str) -> object | None:
        """Take an empty lane, with no turn to run, for `give_back`; `None` if somebody has it."""
        ...

    async def give_back(self, session_id: str, taken: object) -> job_Job | None:
        """Leave a lane that was taken; who is to be driven now."""
        ...


class LocalLine:
    """The turns of the one gateway of a folder."""

    takes_up_again = False

    def __init__(self, log: TurnLog, most: int) -> None:
        self._log = log
        self._lanes: Lanes[job_Job | None] = Lanes(most)

    async def open(self) -> None:
        """There is nobody else."""

    async def run(self, adopt: Callable[[], Awaitable[None]]) -> None:
        """Whoever leaves a lane says who is next; and only a gateway that ended leaves anything."""

    def close(self) -> None:
        """What is in the memory goes with it."""
        self._log.close()

    def enter(self, job: job_Job, *, first: bool = False) -> bool:
        """Put a turn into its lane; one that waits is durable in the log, one that begins will be in its session."""
        job.has_lane = self._lanes.enter(job.session_id, job, first=first)
        if job.has_lane:
            self._log.note(job.session_id, job.mark())
        else:
            self._log.keep(job.session_id, job.record())
        return job.has_lane

    def enter_again(self, job: job_Job, record: Json) -> bool:
        """Put a turn into its lane that is in the log already."""
        return self._lanes.enter(job.session_id, job, limited=False)

    def give_up(self, job: job_Job) -> None:
        """What was refused is not in the log, or nobody was promised anything."""

    def refuse(self, job: job_Job) -> job_Job | None:
        """Take a turn out of its lane."""
        if job.has_lane:
            return self._lanes.leave(job.session_id)
        self._lanes.withdraw(job.session_id, job)
        return None

    async def come(self, job: job_Job) -> None:
        """Whoever is driven has the lane."""

    def check(self, job: job_Job) -> None:
        """Nobody else is there."""

    def done(self, job: job_Job, unless: Callable[[], bool]) -> None:
        """Forget the session, unless somebody waits there, or a message has not come there yet."""
        self._log.forget(job.session_id, unless=lambda: len(self._lanes.of(job.session_id)) > 1 or unless())

    def leave(self, job: job_Job) -> job_Job | None:
        """Leave a lane to whoever waits in it."""
        return self._lanes.leave(job.session_id)

    def left(self) -> Sequence[Left]:
        """What the gateway before this one has left."""
        return [Left(session_id, turns) for session_id, turns in self._log.left()]

    def settle(self, left: Left, waiting: Sequence[Json]) -> None:
        """Forget a session in which nobody waits."""
        if not waiting:
            self._log.forget(left.session_id)

    def where(self, key: str, name: str) -> str | None:
        """There is no other gateway."""
        return None

    def names(self, session_id: str) -> Mapping[str, str]:
        """There is no other gateway."""
        return {}

    def of(self, session_id: str) -> list[job_Job]:
        """Who has the lane of a session, and who waits."""
        return [job for job in self._lanes.of(session_id) if job is not None]

    def all(self) -> list[job_Job]:
        """Everybody in any lane."""
        return [job for job in self._lanes.all() if job is not None]

    def sessions(self) -> set[str]:
        """The sessions in which turns run or wait."""
        return {job.session_id for job in self.all()}

    async def interrupt(self, job: job_Job, why: str) -> None:
        """Stop the turn before one that does not want to wait."""
        running = self.of(job.session_id)[0]
        if running is not job:
            running.abort(why)

    async def stop(self, session_id: str, turn_id: str | None, why: str) -> list[str]:
        """Stop a turn of a session, or all."""
        stopped = [job for job in self.of(session_id) if turn_id in (None, job.turn.id)]
        for job in stopped:
            job.abort(why)
        return [job.turn.id for job in stopped]

    async def take(self, session_id: str) -> object | None:
        """Take an empty lane."""
        return self._lanes.try_enter(session_id, None) or None

    async def give_back(self, session_id: str, taken: object) -> job_Job | None:
        """Leave a lane that was taken."""
        return self._lanes.leave(session_id)


# --- shared line

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
        self._places: dict[job_Job, _Place] = {}
        self._taken: set[Ticket] = set()
        self._entering: set[str] = set()  # names of what may be in the table, and is not here yet
        self._waiting: dict[job_Job, anyio.Event] = {}
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

    def _let_come(self, job: job_Job) -> None:
        waits = self._waiting.pop(job, None)
        if waits is not None:
            waits.set()

    # -- entering

    def enter(self, job: job_Job, *, first: bool = False) -> bool | None:
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

    def enter_again(self, job: job_Job, record: Json) -> bool:
        """Look after a turn that is in the table already."""
        with self._guard:
            self._places[job] = _Place(self._table.ticket(job.session_id, record[_NUMBER]), self._table.node)
        return True

    def give_up(self, job: job_Job) -> None:
        """Take a turn out of the table that is refused."""
        place = self._places.get(job)
        if place is not None:
            try:
                self._table.leave(place.ticket)
            except SessileError as error:
                _LOG.warning("a message that was refused may be answered all the same: %s", error)

    def refuse(self, job: job_Job) -> None:
        """Look no more after a turn."""
        self.leave(job)

    async def come(self, job: job_Job) -> None:
        """Return when the lane is a turn's own, or when others look after it."""
        if not job.has_lane:
            event = self._waiting[job] = anyio.Event()
            self._woken.set()
            await event.wait()
            job.has_lane = True

    def check(self, job: job_Job) -> None:
        """Raise `Overtaken` if others may look after a turn by now."""
        place = self._places.get(job)
        if place is None or place.node != self._table.node or not self._table.holds():
            raise Overtaken()

    def done(self, job: job_Job, unless: Callable[[], bool]) -> None:
        """Take a turn out of the table; the lane is the next one's."""
        place = self._places.get(job)
        if place is not None:
            self._table.leave(place.ticket)

    def leave(self, job: job_Job) -> None:
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

    def of(self, session_id: str) -> list[job_Job]:
        """The turns of this gateway in a session."""
        return [job for job in self.all() if job.session_id == session_id]

    def all(self) -> list[job_Job]:
        """All turns of this gateway."""
        with self._guard:
            return list(self._places)

    def sessions(self) -> set[str]:
        """The sessions in which any gateway has turns."""
        return self._table.sessions()

    async def interrupt(self, job: job_Job, why: str) -> None:
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


# --- drivers

JobT = TypeVar("JobT")

_WAITING = 64  # tasks that have nothing to do


class Drivers(Generic[JobT]):
    """The tasks of one group; everything happens on the loop."""

    def __init__(self, tasks: TaskGroup, drive: Callable[[JobT], Awaitable[None]]) -> None:
        self._tasks = tasks
        self._drive = drive
        self._idle: list[asyncio.Future[JobT]] = []

    def go(self, job: JobT) -> None:
        """Let a job be driven."""
        while self._idle:
            handed = self._idle.pop()  # the one that was busy last
            if not handed.done():  # else it was cancelled meanwhile
                handed.set_result(job)
                return
        self._tasks.start_soon(self._run, job)

    async def _run(self, job: JobT) -> None:
        await self._drive(job)
        while len(self._idle) < _WAITING:
            handed: asyncio.Future[JobT] = asyncio.get_running_loop().create_future()
            self._idle.append(handed)
            try:
                await handed
            except asyncio.CancelledError:
                if handed.done() and not handed.cancelled():
                    await self._drive(handed.result())
                raise
            await self._drive(handed.result())
