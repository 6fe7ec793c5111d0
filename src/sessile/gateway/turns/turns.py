"""Turns: from what somebody says to the reply, each once, one at a time in a session.

    accept    key → session; a message that was sent before is found again; commands are executed
    begin     the user's message is durable in the session; what is due for the context is done
    answer    the runner is asked; its words go to those who listen
    end       the reply is durable; counters; what is due behind it; the next one

Rules: `send` returns when the message is durable, in the session or in the log of those that wait. A turn is known by the name
that its sender gave it, and its message and its reply have ids made of that: whatever is repeated, also after a crash, happens
once. A turn always ends with one answer in the session: that of the model, or one that says that it failed, was stopped or was
interrupted. A turn that had begun when the gateway ended is never run again; those that waited are. Where many gateways share a
store, all this holds for all of them together: what another one runs is waited for, and what a dead one left is taken over.

A client that goes away stops nothing. The engine blocks, so it is asked on threads; what clients see is told on the loop.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from anyio.abc import TaskGroup

from sessile.errors import RunnerFailed, SessileError, TurnInProgress
from sessile.gateway.events import Event, Kind
from sessile.gateway.turns.admission import Admission, Admitted, Commanded, Elsewhere, Repeated
from sessile.gateway.turns.care import Care
from sessile.gateway.turns.commands import execute
from sessile.gateway.turns.line import Drivers, Overtaken
from sessile.gateway.turns.replies import Answer, Json, Pending, failed, reply_of
from sessile.gateway.turns.turn import Job, Message, Reply, Turn, forget_done, toggles_of
from sessile.render.status import compaction_notice
from sessile.vendors.answers import is_overflow

if TYPE_CHECKING:
    from sessile.gateway.conversations.bindings import Bound
    from sessile.gateway.service import Gateway
    from sessile.gateway.turns.line import Line
    from sessile.gateway.turns.runners import RunRequest
    from sessile.upkeep.compactor import Outcome

_LOG = logging.getLogger(__name__)

_REMEMBERED = 4096  # turns that can be asked for without looking into a session
_STOPPED = "The gateway was stopped before the answer was complete."
_ABORTED = "Stopped."
_INTERRUPTED = "Stopped by the next message."
_KEPT = "The gateway was stopped. The message is kept, and answered when it runs again."
_WATCHING, _PATIENT = 0.1, 1.0  # seconds between two looks for the reply of another gateway, and after one that failed


class Turns:
    """All turns of a gateway."""

    def __init__(self, gateway: Gateway, line: Line) -> None:
        self._gateway = gateway
        self._line = line
        self._care = Care(gateway)
        self._admission = Admission(gateway, line, self._care, self._refused)
        self._records = self._admission.records
        self._pending = Pending()
        self._known: OrderedDict[tuple[str, str], Turn] = OrderedDict()  # by session and id
        self._tasks: TaskGroup | None = None
        self._drivers: Drivers[Job] | None = None

    async def run(self, tasks: TaskGroup) -> None:
        """Close what an earlier gateway left, and run what waited; turns live in `tasks` from now on."""
        self._tasks, self._drivers = tasks, Drivers(tasks, self._drive)
        await self._line.open()
        await self._adopt()
        tasks.start_soon(self._line.run, self._adopt)

    async def _adopt(self) -> None:
        """Close what nobody runs any more, and run what waited."""
        for job in await self._gateway.call(self._admission.left):
            self._go(job)
        for turn in self.live():
            self._remember(turn)

    def close(self) -> None:
        """Leave what waits to others; blocks."""
        self._line.close()

    # -- for everybody

    async def send(self, message: Message) -> Turn:
        """Say something in a conversation; returns when that is durable."""
        accepted = await self._gateway.call_for_turn(self._admission.accept, message)
        if isinstance(accepted, Commanded):
            accepted = await self._executed(accepted, message)
        elif isinstance(accepted, Admitted):
            self._gateway.tell_reset(accepted.job.bound)
        if isinstance(accepted, Repeated):
            await accepted.turn.accepted()
            return accepted.turn
        if isinstance(accepted, Elsewhere):
            self._wait_for(accepted.turn)
            return accepted.turn
        job = accepted.job
        job.turn.accept()
        self._remember(job.turn)
        if accepted.runs:
            self._go(job)
        if not job.begun:
            self._publish(job, "turn", turn=job.turn.id, state="queued")
            if (job.message.queue or job.toggles.queue) == "interrupt":
                await self._line.interrupt(job, _INTERRUPTED)
        return job.turn

    async def _executed(self, commanded: Commanded, message: Message) -> Repeated | Admitted | Elsewhere:
        """What becomes of a command: its answer, or a turn with what is still to be said."""
        turn = commanded.turn
        self._gateway.tell_reset(commanded.bound)
        try:
            done = await execute(self._gateway, commanded.bound, commanded.command)
            if done.bound.session_id != commanded.bound.session_id:
                self._gateway.tell_reset(done.bound)
            notices = await self._gateway.call(self._admission.reset_told, done.bound)
            if done.message is not None:
                rest = msgspec.structs.replace(message, text=done.message)
                admitted = await self._gateway.call_for_turn(self._admission.admit, done.bound, rest, turn)
                if isinstance(admitted, Admitted):
                    admitted.job.notices.append(done.text)
                return admitted
        except BaseException as error:
            self._admission.give_up(turn, message.idempotency_key, error)
            raise
        turn.session_id = done.bound.session_id
        turn.finish(Reply(done.text, "command", notices=tuple(notices)))
        return Repeated(turn)

    async def abort(self, session_id: str, turn_id: str | None = None, why: str = _ABORTED) -> list[str]:
        """Stop a turn of a session, or all, also those that wait; gives their ids."""
        return await self._line.stop(session_id, turn_id, why)

    def live(self, session_id: str | None = None) -> list[Turn]:
        """The turns of this gateway that run or wait."""
        return [job.turn for job in (self._line.all() if session_id is None else self._line.of(session_id))]

    def busy(self) -> set[str]:
        """The sessions in which turns run or wait, of all gateways; blocks."""
        return self._line.sessions()

    async def find(self, session_id: str, turn_id: str) -> Turn | None:
        """A turn: running, waiting or done."""
        known = self._known.get((session_id, turn_id))
        return known or await self._gateway.call(self._admission.stored, session_id, turn_id)

    @asynccontextmanager
    async def alone(self, session_id: str) -> AsyncIterator[None]:
        """No turn begins in a session meanwhile; raises `TurnInProgress` if one runs."""
        taken = await self._line.take(session_id)
        if taken is None:
            raise TurnInProgress("a turn is running in this session", hint="wait for it, or stop it")
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                self._go_on(await self._line.give_back(session_id, taken))

    async def compact(self, bound: Bound, instructions: str | None = None) -> Outcome:
        """Compact a session because somebody asks for it."""
        answerer = self._gateway.answerers.of(bound.agent, toggles_of(bound.entry).model)
        async with self.alone(bound.session_id):
            return await self._care.compact(bound, answerer, "manual", instructions)

    # -- lanes

    def _go(self, job: Job) -> None:
        """Run a turn whose lane is free."""
        if self._drivers is None:
            raise RuntimeError("the gateway does not run")
        self._drivers.go(job)

    def _go_on(self, following: Job | None) -> None:
        """Run the next turn in a lane that somebody has left."""
        if following is not None:
            self._go(following)

    def _refused(self, job: Job) -> None:
        """The message of a turn could not be kept: it goes, and the lane goes on."""
        self._go_on(self._line.refuse(job))

    def _remember(self, turn: Turn) -> None:
        self._known[turn.session_id, turn.id] = turn
        forget_done(self._known, _REMEMBERED)

    # -- turns of other gateways

    def _wait_for(self, turn: Turn) -> None:
        """Let a turn end as another gateway ends it."""
        turn.accept()
        self._remember(turn)
        if self._tasks is None:
            raise RuntimeError("the gateway does not run")
        self._tasks.start_soon(self._watch, turn)

    async def _watch(self, turn: Turn) -> None:
        try:
            while turn.reply is None:
                reply = await self._looked_for(turn)
                if reply is None:
                    await anyio.sleep(_WATCHING)
                    continue
                turn.finish(reply)
                told = {"turn": turn.id, "state": "done", "stop": reply.stop, "entry": reply.entry_id}
                self._gateway.hub.publish(Event(None, turn.session_id, "turn", told))
        except anyio.get_cancelled_exc_class():
            turn.finish(Reply("", "aborted", error=_KEPT))
            raise

    async def _looked_for(self, turn: Turn) -> Reply | None:
        """The reply of a turn, if it is there and can be read."""
        try:
            return await self._gateway.call(self._admission.reply_of, turn)
        except SessileError as error:
            _LOG.warning("the turn of another gateway cannot be followed at this moment: %s", error)
            await anyio.sleep(_PATIENT)
            return None

    # -- one turn

    async def _drive(self, job: Job) -> None:
        """Run a turn from its beginning to its end, and let the next one begin."""
        try:
            if not await job.turn.is_accepted():  # the one before it may have ended while this one was still arriving
                return
            await self._run(job)
        except Overtaken:
            self._wait_for(job.turn)
        except Exception:
            # A mistake of ours in one turn must not end all others.
            _LOG.exception("a turn failed in an unexpected way")
            job.turn.finish(Reply("", "error", error="Something went wrong; the log of the gateway says more."))
        finally:
            self._go_on(self._line.leave(job))

    async def _run(self, job: Job) -> None:
        answer = Answer(partial(self._say, job), job.withheld)
        try:
            await self._line.come(job)
            job.turn.start()
            self._publish(job, "turn", turn=job.turn.id, state="running")
            if not job.begun:
                await self._gateway.call(self._admission.begin, job)
            self._publish(job, "entry", id=job.turn.id)
            if job.answered:
                await self._gateway.call(self._forget, job)
                raise Overtaken()
            await self._end(job, await self._answer_unless_aborted(job, answer))
        except Overtaken:
            raise
        except SessileError as error:  # of the storage: what is in the session says how far it came
            self._finish(job, failed(error.message), None)
        except anyio.get_cancelled_exc_class():
            if job.begun:
                with anyio.CancelScope(shield=True):
                    await self._end(job, answer.partial(_STOPPED))
            else:
                job.turn.finish(Reply("", "aborted", error=_KEPT))
            raise
        finally:
            if not job.begun and not self._line.takes_up_again:
                self._records.owe(job)

    async def _answer_unless_aborted(self, job: Job, answer: Answer) -> Json:
        """The answer of the model, or what it had said when it was stopped."""
        if job.aborted is None:
            with anyio.CancelScope() as job.scope:
                return await self._answer(job, answer)
        return answer.partial(job.aborted or _ABORTED)

    async def _answer(self, job: Job, answer: Answer) -> Json:
        """The answer of the model; if the context was too long for it, that of a second try."""
        for last in (False, True):
            try:
                request = job.request or await self._prepared(job)
                message = await answer.listen(job.answerer.runner, request)
            except RunnerFailed as error:
                message = failed(error.message)
            wrong = message.get("errorMessage", "") if message.get("stopReason") == "error" else ""
            if last or answer.begun or not is_overflow(wrong) or not await self._recovered(job, wrong):
                break
            job.request = None
        return message

    async def _prepared(self, job: Job) -> RunRequest:
        """Do what is due before the model is asked, and make the request."""
        if job.due.notes:
            self._line.check(job)
            told = await self._care.take_notes(job)
            job.notices += [] if told is None else [told]
        if job.due.compaction:
            _, notices = await self._compacted(job)
            job.notices += notices
        return await self._gateway.call(self._admission.request, job)

    async def _recovered(self, job: Job, error: str) -> bool:
        """Whether the context is smaller now, so that another try is worth it."""
        outcome, notices = await self._compacted(job, error)
        job.notices += notices
        return outcome is not None and outcome.retry

    async def _compacted(self, job: Job, error: str | None = None) -> tuple[Outcome | None, list[str]]:
        """Compact the session of a turn; also gives what is to be told of it."""
        self._line.check(job)
        try:
            if error is None:
                outcome = await self._care.compact(job.bound, job.answerer, "threshold")
            else:
                outcome = await self._care.recover(job.bound, job.answerer, error)
        except SessileError as failure:
            return None, [f"⚠️ The conversation could not be summed up: {failure.message}. Nothing was removed."]
        if outcome.status == "rejected":
            why = "; ".join(objection.detail for objection in outcome.objections)
            return outcome, [f"⚠️ The conversation was not summed up: {why}. Nothing was removed."]
        if outcome.status != "compacted" or not job.toggles.is_verbose:
            return outcome, []
        found = await self._gateway.call(self._gateway.conversations.get, job.bound.text)
        count = None if found is None else found.entry.known("compactionCount")
        return outcome, [compaction_notice(count)]

    async def _end(self, job: Job, message: Json) -> None:
        """Make the reply durable, tell everybody, and do what is due behind it."""
        try:
            entry_id, due = await self._gateway.call_for_turn(self._ended, job, message)
        except Overtaken:
            raise
        except SessileError as error:
            self._finish(job, failed(error.message), None)
            return
        self._publish(job, "entry", id=entry_id)
        self._finish(job, message, entry_id)
        if due:
            _, notices = await self._compacted(job)
            self._pending.add(job.session_id, *notices)
            await self._gateway.call(self._forget, job)

    def _ended(self, job: Job, message: Json) -> tuple[str, bool]:
        """Append the reply; gives its entry, and whether a compaction is due."""
        due = False
        with self._gateway.opened(job.path) as session:
            entry_id = self._records.end(session, job, message)
            try:
                due = self._care.behind(session, job)
            except SessileError as error:  # the reply is durable, whatever comes of the rest
                _LOG.warning("whether a compaction is due is not known: %s", error)
        if not due:
            self._forget(job)
        return entry_id, due

    def _forget(self, job: Job) -> None:
        """Nothing is left to do in a session, unless somebody waits there, or a message has not come there yet."""
        try:
            self._line.done(job, unless=lambda: self._records.owes(job.session_id))
        except SessileError as error:  # whoever looks for what is left finds a turn that is done, and forgets it
            _LOG.warning("a turn that is done could not be forgotten: %s", error)

    def _finish(self, job: Job, message: Json, entry_id: str | None) -> None:
        reply = reply_of(job, message, entry_id, self._pending)
        job.turn.finish(reply)
        told = {"stop": reply.stop, "error": reply.error, "entry": entry_id, "notices": list(reply.notices)}
        self._publish(job, "turn", turn=job.turn.id, state="done", silent=reply.silent, withheld=reply.withheld, **told)

    # -- telling

    def _say(self, job: Job, text: str) -> None:
        """Pass on words of the answer; somebody is seen to write only when there is something to read."""
        if not job.turn.has_spoken:
            self._publish(job, "typing", turn=job.turn.id)
        job.turn.say(text)
        self._publish(job, "delta", turn=job.turn.id, text=text)

    def _publish(self, job: Job, kind: Kind, **data: Any) -> None:
        if self._gateway.hub.is_followed(job.session_id):
            self._gateway.hub.publish(Event(None, job.session_id, kind, data))
