"""The line of turns: who may begin in each session, and what a restart finds of those that are not done.

    enter    a turn is behind the others of its session, so that it is not lost; it says whether the turn may begin at once
    come     its turn has come
    done     nothing is left to do of it
    left     what nobody runs any more, though somebody should

A folder has one gateway, whose lanes are in its memory (`LocalLine`). In a database lie the turns of many gateways, and which of
them is next in a session is asked there (`SharedLine`). Whatever else a gateway does with turns is the same in both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sessile.errors import Conflict
from sessile.gateway.lanes import Lanes

if TYPE_CHECKING:
    from sessile import TurnLog
    from sessile.gateway.job import Job

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

    def enter(self, job: Job, *, first: bool = False) -> bool | None:
        """Put a turn behind the others, or before those that wait; whether it may begin, `None` if another gateway has it."""
        ...

    def enter_again(self, job: Job, record: Json) -> bool:
        """Put a turn that was left behind the others; whether somebody has to drive it now."""
        ...

    def give_up(self, job: Job) -> None:
        """Let nobody find a turn that is refused."""
        ...

    def refuse(self, job: Job) -> Job | None:
        """Take a turn out that is refused; who is to be driven now. On the loop, never blocks."""
        ...

    async def come(self, job: Job) -> None:
        """Return when it is a turn's turn."""
        ...

    def check(self, job: Job) -> None:
        """Raise `Overtaken` if somebody else looks after a turn by now; never blocks."""
        ...

    def done(self, job: Job, unless: Callable[[], bool]) -> None:
        """Nothing is left to do of a turn, nor in its session, `unless` something is owed to it."""
        ...

    def leave(self, job: Job) -> Job | None:
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

    def of(self, session_id: str) -> list[Job]:
        """The turns of this gateway in a session, in their order; never blocks."""
        ...

    def all(self) -> list[Job]:
        """All turns of this gateway; never blocks."""
        ...

    def sessions(self) -> set[str]:
        """The sessions in which any gateway has turns."""
        ...

    async def interrupt(self, job: Job, why: str) -> None:
        """Stop the turn that runs in a session for the sake of one that does not want to wait."""
        ...

    async def stop(self, session_id: str, turn_id: str | None, why: str) -> list[str]:
        """Stop a turn of a session, or all, wherever they are; their ids."""
        ...

    async def take(self, session_id: str) -> object | None:
        """Take an empty lane, with no turn to run, for `give_back`; `None` if somebody has it."""
        ...

    async def give_back(self, session_id: str, taken: object) -> Job | None:
        """Leave a lane that was taken; who is to be driven now."""
        ...


class LocalLine:
    """The turns of the one gateway of a folder."""

    takes_up_again = False

    def __init__(self, log: TurnLog, most: int) -> None:
        self._log = log
        self._lanes: Lanes[Job | None] = Lanes(most)

    async def open(self) -> None:
        """There is nobody else."""

    async def run(self, adopt: Callable[[], Awaitable[None]]) -> None:
        """Whoever leaves a lane says who is next; and only a gateway that ended leaves anything."""

    def close(self) -> None:
        """What is in the memory goes with it."""
        self._log.close()

    def enter(self, job: Job, *, first: bool = False) -> bool:
        """Put a turn into its lane; one that waits is durable in the log, one that begins will be in its session."""
        job.has_lane = self._lanes.enter(job.session_id, job, first=first)
        if job.has_lane:
            self._log.note(job.session_id, job.mark())
        else:
            self._log.keep(job.session_id, job.record())
        return job.has_lane

    def enter_again(self, job: Job, record: Json) -> bool:
        """Put a turn into its lane that is in the log already."""
        return self._lanes.enter(job.session_id, job, limited=False)

    def give_up(self, job: Job) -> None:
        """What was refused is not in the log, or nobody was promised anything."""

    def refuse(self, job: Job) -> Job | None:
        """Take a turn out of its lane."""
        if job.has_lane:
            return self._lanes.leave(job.session_id)
        self._lanes.withdraw(job.session_id, job)
        return None

    async def come(self, job: Job) -> None:
        """Whoever is driven has the lane."""

    def check(self, job: Job) -> None:
        """Nobody else is there."""

    def done(self, job: Job, unless: Callable[[], bool]) -> None:
        """Forget the session, unless somebody waits there, or a message has not come there yet."""
        self._log.forget(job.session_id, unless=lambda: len(self._lanes.of(job.session_id)) > 1 or unless())

    def leave(self, job: Job) -> Job | None:
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

    def of(self, session_id: str) -> list[Job]:
        """Who has the lane of a session, and who waits."""
        return [job for job in self._lanes.of(session_id) if job is not None]

    def all(self) -> list[Job]:
        """Everybody in any lane."""
        return [job for job in self._lanes.all() if job is not None]

    def sessions(self) -> set[str]:
        """The sessions in which turns run or wait."""
        return {job.session_id for job in self.all()}

    async def interrupt(self, job: Job, why: str) -> None:
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

    async def give_back(self, session_id: str, taken: object) -> Job | None:
        """Leave a lane that was taken."""
        return self._lanes.leave(session_id)
