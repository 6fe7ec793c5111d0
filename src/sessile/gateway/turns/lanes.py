"""Queues of turns: one turn at a time in each session, the others wait in order.

    enter              add a turn to the lane of its session; returns whether it may start at once
    wait_for_lane      return when the turn may start
    finish             forget a turn that is done
    abandoned          turns that no gateway runs any more

A folder has one gateway, which keeps its lanes in memory and a log for the next one (`LocalQueue`). A database may have
many gateways, which keep their turns in one table (`SharedQueue`). Everything else about turns is the same for both.
`Workers` are the tasks that run turns.

Rules:
- A turn that enters an empty lane owns it and must leave it, whatever happens. Leaving returns the next turn.
- A full lane accepts no more turns, except those that were in it before a restart.
- Turns enter on worker threads, so lanes are guarded by a lock.
- In a database, a turn is in the table before anything else happens to it, with all that another gateway needs to run
  it. Gateways poll the table. One whose lease has expired may have been overtaken: its turns end silently, clients get
  the result of the other gateway, and it continues under a new name. Messages and replies are appended under keys, so a
  late gateway cannot duplicate anything.
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
    from sessile.gateway.turns.turn import Job
    from sessile.storage.postgres.turn_queue import LeftTurn, Ticket, TurnTable
    from sessile.storage.turn_log import TurnLog


J = TypeVar("J")
T = TypeVar("T")

Json = dict[str, Any]

_LOG = logging.getLogger(__name__)

_SHORTEST, _LONGEST = 0.01, 0.05  # seconds between polls while a turn waits
_RUNNING = 0.25  # seconds between polls while turns only run: one may be aborted, and the lease may expire
_ADOPTING = 1.0  # seconds between looking for abandoned turns
_LOST = "Another gateway has taken over this turn."
_NUMBER = "number"  # of a turn in its lane, stored beside `Job.record`
_IDLE_WORKERS = 64


# -- lanes


class Lanes(Generic[J]):
    """The lanes of all sessions that have turns. At most `most` turns wait in each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lanes: dict[str, deque[J]] = {}  # the first one owns the lane
        self._lock = threading.Lock()

    def enter(self, session_id: str, job: J, *, first: bool = False, limited: bool = True) -> bool:
        """Add a job at the end of a lane, or right after its owner. Return whether it owns the lane."""
        with self._lock:
            lane = self._lanes.setdefault(session_id, deque())
            if limited and len(lane) > self._most:
                raise TooMany(f"{self._most} messages are already waiting in this session", hint="wait for a reply")
            if first and lane:
                lane.insert(1, job)
            else:
                lane.append(job)
            return len(lane) == 1

    def try_enter(self, session_id: str, job: J) -> bool:
        """Acquire an empty lane. Return whether it was empty."""
        with self._lock:
            if session_id in self._lanes:
                return False
            self._lanes[session_id] = deque([job])
            return True

    def leave(self, session_id: str) -> J | None:
        """Remove the owner of a lane. Return the new owner, if any."""
        with self._lock:
            lane = self._lanes[session_id]
            lane.popleft()
            if lane:
                return lane[0]
            del self._lanes[session_id]
            return None

    def withdraw(self, session_id: str, job: J) -> bool:
        """Remove a waiting job. Return whether it was still waiting."""
        with self._lock:
            lane = self._lanes.get(session_id, deque())
            if job not in lane or lane[0] is job:
                return False
            lane.remove(job)
            return True

    def of(self, session_id: str) -> list[J]:
        """Return the jobs of a session, the running one first."""
        with self._lock:
            return list(self._lanes.get(session_id, ()))

    def all(self) -> list[J]:
        """Return all jobs."""
        with self._lock:
            return [job for lane in self._lanes.values() for job in lane]


# -- queues


class Overtaken(Conflict):
    """Another gateway has taken over this turn."""


class Abandoned(NamedTuple):
    """The turns of one session that no gateway runs, in order, as `Job.record` or `Job.mark` stored them."""

    session_id: str
    turns: Sequence[Json]


class TurnQueue(Protocol):
    """Which turn may start in each session. Methods that are not async may block unless they say otherwise."""

    @property
    def retries(self) -> bool:
        """Return whether a turn that could not start becomes `abandoned` without a restart."""
        ...

    async def open(self) -> None:
        """Join. Called before anything else."""
        ...

    async def run(self, adopt: Callable[[], Awaitable[None]]) -> None:
        """Watch waiting turns until cancelled, and call `adopt` whenever turns may be abandoned."""
        ...

    def close(self) -> None:
        """Leave. Waiting turns are left to other gateways."""
        ...

    def enter(self, job: Job, *, first: bool = False) -> bool | None:
        """Add a turn at the end, or before the waiting ones. Return whether it may start; `None` if another gateway has it."""
        ...

    def reenter(self, job: Job, record: Json) -> bool:
        """Add an abandoned turn at the end. Return whether the caller must run it now."""
        ...

    def discard(self, job: Job) -> None:
        """Remove the traces of a refused turn."""
        ...

    def refuse(self, job: Job) -> Job | None:
        """Remove a refused turn. Return the turn to run now. Called on the loop, never blocks."""
        ...

    async def wait_for_lane(self, job: Job) -> None:
        """Return when the turn may start."""
        ...

    def check(self, job: Job) -> None:
        """Raise `Overtaken` if another gateway has taken over a turn. Never blocks."""
        ...

    def finish(self, job: Job, unless: Callable[[], bool]) -> None:
        """Forget a turn, and its session unless `unless()` says that a message is still to be appended."""
        ...

    def leave(self, job: Job) -> Job | None:
        """Remove a turn that no longer runs. Return the turn to run now. Called on the loop, never blocks."""
        ...

    def abandoned(self) -> Sequence[Abandoned]:
        """Return the turns that no gateway runs."""
        ...

    def settle(self, left: Abandoned, waiting: Sequence[Json]) -> None:
        """Forget abandoned turns, except those that still wait."""
        ...

    def session_of(self, key: str, name: str) -> str | None:
        """Return the session in which another gateway has the turn of that name."""
        ...

    def names_in(self, session_id: str) -> Mapping[str, str]:
        """Return the turns of all gateways in a session: their conversations by name. Empty if there is only one gateway."""
        ...

    def jobs_in(self, session_id: str) -> list[Job]:
        """Return the turns of this gateway in a session, in order. Never blocks."""
        ...

    def jobs(self) -> list[Job]:
        """Return all turns of this gateway. Never blocks."""
        ...

    def busy_sessions(self) -> set[str]:
        """Return the sessions in which any gateway has turns."""
        ...

    async def interrupt(self, job: Job, why: str) -> None:
        """Abort the running turn of a session in favour of a waiting one."""
        ...

    async def stop(self, session_id: str, turn_id: str | None, why: str) -> list[str]:
        """Abort one or all turns of a session, on whichever gateway. Return their ids."""
        ...

    async def acquire(self, session_id: str) -> object | None:
        """Acquire an empty lane without a turn. Return a token for `release`, or `None` if the lane is in use."""
        ...

    async def release(self, session_id: str, token: object) -> Job | None:
        """Release an acquired lane. Return the turn to run now."""
        ...


class LocalQueue:
    """The queue of the only gateway of a folder."""

    retries = False

    def __init__(self, log: TurnLog, most: int) -> None:
        self._log = log
        self._lanes: Lanes[Job | None] = Lanes(most)

    async def open(self) -> None:
        """Do nothing: there is no other gateway."""

    async def run(self, adopt: Callable[[], Awaitable[None]]) -> None:
        """Do nothing: `leave` returns the next turn, and only a stopped gateway abandons turns."""

    def close(self) -> None:
        """Close the log."""
        self._log.close()

    def enter(self, job: Job, *, first: bool = False) -> bool:
        """Add a turn to its lane. A waiting turn is durable in the log, a starting one will be in its session."""
        job.has_lane = self._lanes.enter(job.session_id, job, first=first)
        if job.has_lane:
            self._log.note(job.session_id, job.mark())
        else:
            self._log.keep(job.session_id, job.record())
        return job.has_lane

    def reenter(self, job: Job, record: Json) -> bool:
        """Add a turn that is in the log already."""
        return self._lanes.enter(job.session_id, job, limited=False)

    def discard(self, job: Job) -> None:
        """Do nothing: a refused turn is not in the log, or was never acknowledged."""

    def refuse(self, job: Job) -> Job | None:
        """Remove a turn from its lane."""
        if job.has_lane:
            return self._lanes.leave(job.session_id)
        self._lanes.withdraw(job.session_id, job)
        return None

    async def wait_for_lane(self, job: Job) -> None:
        """Do nothing: a running turn owns its lane."""

    def check(self, job: Job) -> None:
        """Do nothing: there is no other gateway."""

    def finish(self, job: Job, unless: Callable[[], bool]) -> None:
        """Forget the session, unless turns wait in it or a message is still to be appended."""
        self._log.forget(job.session_id, unless=lambda: len(self._lanes.of(job.session_id)) > 1 or unless())

    def leave(self, job: Job) -> Job | None:
        """Remove the running turn and return the next one."""
        return self._lanes.leave(job.session_id)

    def abandoned(self) -> Sequence[Abandoned]:
        """Return what the previous gateway left."""
        return [Abandoned(session_id, turns) for session_id, turns in self._log.left()]

    def settle(self, left: Abandoned, waiting: Sequence[Json]) -> None:
        """Forget a session without waiting turns."""
        if not waiting:
            self._log.forget(left.session_id)

    def session_of(self, key: str, name: str) -> str | None:
        """Return nothing: there is no other gateway."""
        return None

    def names_in(self, session_id: str) -> Mapping[str, str]:
        """Return nothing: there is no other gateway."""
        return {}

    def jobs_in(self, session_id: str) -> list[Job]:
        """Return the jobs of a session, the running one first."""
        return [job for job in self._lanes.of(session_id) if job is not None]

    def jobs(self) -> list[Job]:
        """Return all jobs."""
        return [job for job in self._lanes.all() if job is not None]

    def busy_sessions(self) -> set[str]:
        """Return the sessions in which turns run or wait."""
        return {job.session_id for job in self.jobs()}

    async def interrupt(self, job: Job, why: str) -> None:
        """Abort the running turn."""
        running = self.jobs_in(job.session_id)[0]
        if running is not job:
            running.abort(why)

    async def stop(self, session_id: str, turn_id: str | None, why: str) -> list[str]:
        """Abort one or all turns of a session. Return their ids."""
        stopped = [job for job in self.jobs_in(session_id) if turn_id in (None, job.turn.id)]
        for job in stopped:
            job.abort(why)
        return [job.turn.id for job in stopped]

    async def acquire(self, session_id: str) -> object | None:
        """Acquire an empty lane."""
        return self._lanes.try_enter(session_id, None) or None

    async def release(self, session_id: str, token: object) -> Job | None:
        """Release an acquired lane."""
        return self._lanes.leave(session_id)


# -- many gateways


class Call(Protocol):
    """Runs a blocking function on a thread, as `Gateway.call` does."""

    async def __call__(self, function: Callable[..., T], *args: object) -> T: ...


class _Place(NamedTuple):
    """The place of a turn in the table, and the name of this gateway when it was added."""

    ticket: Ticket
    node: str


class SharedQueue:
    """The turns of one of many gateways. At most `most` of them wait in a session."""

    retries = True

    def __init__(self, table: TurnTable, call: Call, most: int) -> None:
        self._table = table
        self._call = call
        self._most = most
        self._guard = threading.Lock()  # for the next three members
        self._places: dict[Job, _Place] = {}
        self._acquired: set[Ticket] = set()
        self._entering: set[str] = set()  # names of turns that may be in the table but are not in `_places` yet
        self._waiting: dict[Job, anyio.Event] = {}
        self._woken = anyio.Event()

    # -- joining and watching

    async def open(self) -> None:
        """Join the gateways of the database."""
        await self._call(self._table.join)

    def close(self) -> None:
        """Leave waiting turns to the other gateways."""
        self._table.part()

    async def run(self, adopt: Callable[[], Awaitable[None]]) -> None:
        """Watch waiting turns, and adopt abandoned ones, until cancelled."""
        pause, adopted, failing = _SHORTEST, anyio.current_time(), False
        while True:
            with anyio.move_on_after(pause):
                await self._woken.wait()
                pause = _SHORTEST
            self._woken = anyio.Event()
            try:
                if not self._table.holds():
                    await self._rejoin()
                if self._places:
                    await self._poll()
                if anyio.current_time() - adopted >= _ADOPTING:
                    adopted = anyio.current_time()
                    await adopt()
                failing = False
            except SessileError as error:
                if not failing:
                    _LOG.warning("cannot watch the turns of this gateway: %s", error)
                failing = True
            pause = min(1.5 * pause, _LONGEST) if self._waiting else _RUNNING

    async def _rejoin(self) -> None:
        """Continue under a new name. Turns under the old name belong, or will belong, to other gateways."""
        await self._call(self._table.join)
        for job, place in list(self._places.items()):
            if place.node != self._table.node:
                self._wake(job)
                job.abort(_LOST)

    async def _poll(self) -> None:
        standings = await self._call(self._table.own)
        for job, place in list(self._places.items()):
            standing = standings.get(place.ticket)
            if standing is None:
                continue  # it was just added, or another gateway has it
            if standing.stopped is not None:
                job.abort(standing.stopped)
            if standing.has_lane:
                self._wake(job)

    def _wake(self, job: Job) -> None:
        event = self._waiting.pop(job, None)
        if event is not None:
            event.set()

    # -- entering

    def enter(self, job: Job, *, first: bool = False) -> bool | None:
        """Add a turn to the table. Return whether it may start; `None` if the conversation has a turn of that name."""
        with self._guard:
            if sum(other.session_id == job.session_id for other in self._places) > self._most:
                raise TooMany(f"{self._most} messages are already waiting in this session", hint="wait for a reply")
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

    def reenter(self, job: Job, record: Json) -> bool:
        """Watch a turn that is in the table already."""
        with self._guard:
            self._places[job] = _Place(self._table.ticket(job.session_id, record[_NUMBER]), self._table.node)
        return True

    def discard(self, job: Job) -> None:
        """Remove a refused turn from the table."""
        place = self._places.get(job)
        if place is not None:
            try:
                self._table.leave(place.ticket)
            except SessileError as error:
                _LOG.warning("a refused message may still be answered: %s", error)

    def refuse(self, job: Job) -> None:
        """Stop watching a refused turn."""
        self.leave(job)

    async def wait_for_lane(self, job: Job) -> None:
        """Return when the turn owns the lane, or when another gateway has taken it over."""
        if not job.has_lane:
            event = self._waiting[job] = anyio.Event()
            self._woken.set()
            await event.wait()
            job.has_lane = True

    def check(self, job: Job) -> None:
        """Raise `Overtaken` if another gateway may have taken over a turn."""
        place = self._places.get(job)
        if place is None or place.node != self._table.node or not self._table.holds():
            raise Overtaken()

    def finish(self, job: Job, unless: Callable[[], bool]) -> None:
        """Remove a turn from the table. The next one owns the lane then."""
        place = self._places.get(job)
        if place is not None:
            self._table.leave(place.ticket)

    def leave(self, job: Job) -> None:
        """Stop watching a turn. If it is still in the table, it becomes abandoned."""
        with self._guard:
            self._places.pop(job, None)
        self._waiting.pop(job, None)
        self._woken.set()

    # -- abandoned turns

    def abandoned(self) -> Sequence[Abandoned]:
        """Take over the turns of dead gateways. Return those, and this gateway's own turns that it does not run."""
        self._table.adopt()
        found: dict[str, list[Json]] = {}
        for ticket, _, body in self._strays():
            if body is None:
                self._table.leave(ticket)
            else:
                found.setdefault(ticket.session_id, []).append({**body, _NUMBER: ticket.number})
        return [Abandoned(session_id, turns) for session_id, turns in found.items()]

    def _strays(self) -> list[LeftTurn]:
        """Return the turns of this gateway in the table that it does not watch."""
        strays = self._unknown(self._table.left())
        if not strays:
            return []
        still = self._table.own()  # finished turns are gone by now
        return [turn for turn in self._unknown(strays) if turn.ticket in still]

    def _unknown(self, turns: Iterable[LeftTurn]) -> list[LeftTurn]:
        with self._guard:
            known = {place.ticket for place in self._places.values()} | self._acquired
            return [turn for turn in turns if turn.ticket not in known and turn.name not in self._entering]

    def settle(self, left: Abandoned, waiting: Sequence[Json]) -> None:
        """Remove finished turns from the table."""
        for turn in left.turns:
            if turn not in waiting:
                self._table.leave(self._table.ticket(left.session_id, turn[_NUMBER]))

    # -- turns of all gateways

    def session_of(self, key: str, name: str) -> str | None:
        """Return the session in which any gateway has the turn."""
        return self._table.where(key, name)

    def names_in(self, session_id: str) -> Mapping[str, str]:
        """Return the turns of all gateways in a session: their conversations by name."""
        return self._table.names(session_id)

    def jobs_in(self, session_id: str) -> list[Job]:
        """Return the turns of this gateway in a session."""
        return [job for job in self.jobs() if job.session_id == session_id]

    def jobs(self) -> list[Job]:
        """Return all turns of this gateway."""
        with self._guard:
            return list(self._places)

    def busy_sessions(self) -> set[str]:
        """Return the sessions in which any gateway has turns."""
        return self._table.sessions()

    async def interrupt(self, job: Job, why: str) -> None:
        """Abort the running turn, on whichever gateway."""
        running = await self._call(self._table.running, job.session_id)
        if running is not None and running != job.name:
            await self._stop(job.session_id, [running], why)

    async def stop(self, session_id: str, turn_id: str | None, why: str) -> list[str]:
        """Abort one or all turns of a session, on whichever gateway. Return their ids."""
        ids = {name: turn_id_of(session_id, name) for name in await self._call(self._table.names, session_id)}
        stopped = [name for name in ids if turn_id in (None, ids[name])]
        await self._stop(session_id, stopped, why)
        return [ids[name] for name in stopped]

    async def _stop(self, session_id: str, names: Sequence[str], why: str) -> None:
        for job in self.jobs_in(session_id):
            if job.name in names:
                job.abort(why)
        await self._call(self._table.stop, session_id, names, why)

    async def acquire(self, session_id: str) -> Ticket | None:
        """Acquire a lane without turns of any gateway."""
        name = uuid.uuid4().hex
        with self._guard:
            self._entering.add(name)
        try:
            ticket = await self._call(self._table.enter_alone, session_id, name)
            if ticket is not None:
                with self._guard:
                    self._acquired.add(ticket)
            return ticket
        finally:
            with self._guard:
                self._entering.discard(name)

    async def release(self, session_id: str, token: object) -> None:
        """Release an acquired lane. If that fails, it becomes abandoned."""
        (ticket,) = (one for one in self._acquired if one == token)
        try:
            await self._call(self._table.leave, ticket)
        finally:
            with self._guard:
                self._acquired.discard(ticket)
            self._woken.set()


# -- workers


class Workers(Generic[J]):
    """Tasks that run jobs, one after the other.

    Starting a task costs as much as many a turn does on the loop, so a task that is done takes the next job. A few idle
    tasks wait for jobs, others end. All end with their task group. A submitted job is always run: if the task group is
    cancelled at that moment, it is run as a cancelled one. All methods are called on the loop.
    """

    def __init__(self, tasks: TaskGroup, run: Callable[[J], Awaitable[None]]) -> None:
        self._tasks = tasks
        self._run_job = run
        self._idle: list[asyncio.Future[J]] = []

    def submit(self, job: J) -> None:
        """Run a job on an idle task, or on a new one."""
        while self._idle:
            slot = self._idle.pop()  # the one that was used last
            if not slot.done():  # otherwise it was cancelled
                slot.set_result(job)
                return
        self._tasks.start_soon(self._work, job)

    async def _work(self, job: J) -> None:
        await self._run_job(job)
        while len(self._idle) < _IDLE_WORKERS:
            slot: asyncio.Future[J] = asyncio.get_running_loop().create_future()
            self._idle.append(slot)
            try:
                await slot
            except asyncio.CancelledError:
                if slot.done() and not slot.cancelled():
                    await self._run_job(slot.result())
                raise
            await self._run_job(slot.result())
