"""The engine that runs turns: from a message to its reply, each turn once, one at a time in a session.

    accept    resolve the conversation; find repeated messages; execute commands
    begin     append the user's message; see whether notes or a compaction are due
    answer    ask the runner; stream its text to clients
    end       append the reply; update counters; compact if due; start the next turn

Rules:
- `send` returns when the message is durable, in its session or in the turn queue.
- A turn is identified by the name that its sender gave it, and the ids of its message and reply are derived from that.
  So whatever is repeated, also after a crash, happens once.
- A turn always ends with one answer in the session: the model's, or one that says that it failed, was aborted or was
  interrupted.
- A turn that had started when the gateway stopped is never run again. Waiting turns are.
- Where many gateways share a store, this holds for all of them together: turns of other gateways are waited for, and
  those of dead gateways are taken over.
- A client that disconnects stops nothing.

The engine blocks, so it is called on threads. Clients are notified on the event loop.
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
from sessile.gateway.turns.commands import execute
from sessile.gateway.turns.context_window import ContextWindow
from sessile.gateway.turns.lanes import Overtaken, Workers
from sessile.gateway.turns.replies import Answer, Json, Pending, failed, reply_of
from sessile.gateway.turns.turn import Job, Message, Reply, Turn, forget_done, toggles_of
from sessile.render.status import compaction_notice
from sessile.vendors.answers import is_overflow

if TYPE_CHECKING:
    from sessile.gateway.conversations.bindings import Bound
    from sessile.gateway.service import Gateway
    from sessile.gateway.turns.lanes import TurnQueue
    from sessile.gateway.turns.runners import RunRequest
    from sessile.upkeep.compactor import Outcome

_LOG = logging.getLogger(__name__)

_MAX_KNOWN = 1024  # turns that are found without opening a session
_STOPPED = "The gateway was stopped before the answer was complete."
_ABORTED = "Stopped."
_INTERRUPTED = "Stopped by the next message."
_QUEUED = "The gateway was stopped. The message is stored and will be answered when the gateway runs again."
_POLL, _POLL_AFTER_ERROR = 0.1, 1.0  # seconds between polls for the reply of another gateway


class Turns:
    """All turns of a gateway."""

    def __init__(self, gateway: Gateway, queue: TurnQueue) -> None:
        self._gateway = gateway
        self._queue = queue
        self._window = ContextWindow(gateway)
        self._admission = Admission(gateway, queue, self._window, self._refused)
        self._records = self._admission.records
        self._pending = Pending()
        self._known: OrderedDict[tuple[str, str], Turn] = OrderedDict()  # by session and id
        self._tasks: TaskGroup | None = None
        self._workers: Workers[Job] | None = None

    async def run(self, tasks: TaskGroup) -> None:
        """Close the turns that an earlier gateway left, and run those that waited. Turns run in `tasks` from now on."""
        self._tasks, self._workers = tasks, Workers(tasks, self._run)
        await self._queue.open()
        await self._adopt()
        tasks.start_soon(self._queue.run, self._adopt)

    async def _adopt(self) -> None:
        """Close abandoned turns, and run those that waited."""
        for job in await self._gateway.call(self._admission.abandoned):
            self._schedule(job)
        for turn in self.live():
            self._remember(turn)

    def close(self) -> None:
        """Leave waiting turns to other gateways. Blocks."""
        self._queue.close()

    # -- public

    async def send(self, message: Message) -> Turn:
        """Send a message to a conversation. Return its turn as soon as the message is durable."""
        accepted = await self._gateway.call_for_turn(self._admission.accept, message)
        if isinstance(accepted, Commanded):
            accepted = await self._execute(accepted, message)
        elif isinstance(accepted, Admitted):
            self._gateway.publish_reset(accepted.job.bound)
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
            self._schedule(job)
        if not job.begun:
            self._publish(job, "turn", turn=job.turn.id, state="queued")
            if (job.message.queue or job.toggles.queue) == "interrupt":
                await self._queue.interrupt(job, _INTERRUPTED)
        return job.turn

    async def _execute(self, commanded: Commanded, message: Message) -> Repeated | Admitted | Elsewhere:
        """Execute a command. Return the turn of its answer, or of the rest of the message."""
        turn = commanded.turn
        self._gateway.publish_reset(commanded.bound)
        try:
            done = await execute(self._gateway, commanded.bound, commanded.command)
            if done.bound.session_id != commanded.bound.session_id:
                self._gateway.publish_reset(done.bound)
            notices = await self._gateway.call(self._admission.reset_notices, done.bound)
            if done.message is not None:
                rest = msgspec.structs.replace(message, text=done.message)
                admitted = await self._gateway.call_for_turn(self._admission.admit, done.bound, rest, turn)
                if isinstance(admitted, Admitted):
                    admitted.job.notices.append(done.text)
                return admitted
        except BaseException as error:
            self._admission.refuse(turn, message.idempotency_key, error)
            raise
        turn.session_id = done.bound.session_id
        turn.finish(Reply(done.text, "command", notices=tuple(notices)))
        return Repeated(turn)

    async def abort(self, session_id: str, turn_id: str | None = None, why: str = _ABORTED) -> list[str]:
        """Abort one or all turns of a session, including waiting ones. Return their ids."""
        return await self._queue.stop(session_id, turn_id, why)

    def live(self, session_id: str | None = None) -> list[Turn]:
        """Return the running and waiting turns of this gateway."""
        return [job.turn for job in (self._queue.jobs() if session_id is None else self._queue.jobs_in(session_id))]

    def busy(self) -> set[str]:
        """Return the sessions in which any gateway has turns. Blocks."""
        return self._queue.busy_sessions()

    async def find(self, session_id: str, turn_id: str) -> Turn | None:
        """Return a turn: running, waiting or done. `None` if there is no such turn."""
        known = self._known.get((session_id, turn_id))
        return known or await self._gateway.call(self._admission.stored, session_id, turn_id)

    @asynccontextmanager
    async def alone(self, session_id: str) -> AsyncIterator[None]:
        """Let no turn start in a session. Raise `TurnInProgress` if one is running."""
        token = await self._queue.acquire(session_id)
        if token is None:
            raise TurnInProgress("a turn is running in this session", hint="wait for it, or abort it")
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                self._run_next(await self._queue.release(session_id, token))

    async def compact(self, bound: Bound, instructions: str | None = None) -> Outcome:
        """Compact a session on request."""
        answerer = self._gateway.answerers.of(bound.agent, toggles_of(bound.entry).model)
        async with self.alone(bound.session_id):
            return await self._window.compact(bound, answerer, "manual", instructions)

    # -- scheduling

    def _schedule(self, job: Job) -> None:
        """Run a turn that owns its lane."""
        if self._workers is None:
            raise RuntimeError("the gateway is not running")
        self._workers.submit(job)

    def _run_next(self, following: Job | None) -> None:
        """Run the next turn of a lane, if there is one."""
        if following is not None:
            self._schedule(following)

    def _refused(self, job: Job) -> None:
        """Remove a turn whose message could not be stored, and run the next one."""
        self._run_next(self._queue.refuse(job))

    def _remember(self, turn: Turn) -> None:
        self._known[turn.session_id, turn.id] = turn
        forget_done(self._known, _MAX_KNOWN)

    # -- turns of other gateways

    def _wait_for(self, turn: Turn) -> None:
        """Finish a turn when another gateway has finished it."""
        turn.accept()
        self._remember(turn)
        if self._tasks is None:
            raise RuntimeError("the gateway is not running")
        self._tasks.start_soon(self._watch, turn)

    async def _watch(self, turn: Turn) -> None:
        try:
            while turn.reply is None:
                reply = await self._reply_elsewhere(turn)
                if reply is None:
                    await anyio.sleep(_POLL)
                    continue
                turn.finish(reply)
                data = {"turn": turn.id, "state": "done", "stop": reply.stop, "entry": reply.entry_id}
                self._gateway.hub.publish(Event(None, turn.session_id, "turn", data))
        except anyio.get_cancelled_exc_class():
            turn.finish(Reply("", "aborted", error=_QUEUED))
            raise

    async def _reply_elsewhere(self, turn: Turn) -> Reply | None:
        """Return the reply of another gateway's turn, if there is one."""
        try:
            return await self._gateway.call(self._admission.reply_of, turn)
        except SessileError as error:
            _LOG.warning("cannot follow the turn of another gateway: %s", error)
            await anyio.sleep(_POLL_AFTER_ERROR)
            return None

    # -- one turn

    async def _run(self, job: Job) -> None:
        """Run a turn, then start the next one."""
        try:
            if not await job.turn.is_accepted():  # the previous turn may have ended while this one was arriving
                return
            await self._run_to_end(job)
        except Overtaken:
            self._wait_for(job.turn)
        except Exception:
            # An unexpected error in one turn must not end all others.
            _LOG.exception("a turn failed unexpectedly")
            job.turn.finish(Reply("", "error", error="Internal error. See the log of the gateway."))
        finally:
            self._run_next(self._queue.leave(job))

    async def _run_to_end(self, job: Job) -> None:
        answer = Answer(partial(self._say, job), job.withheld)
        try:
            await self._queue.wait_for_lane(job)
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
        except SessileError as error:  # a storage error: the session holds what was stored
            self._finish(job, failed(error.message), None)
        except anyio.get_cancelled_exc_class():
            if job.begun:
                with anyio.CancelScope(shield=True):
                    await self._end(job, answer.partial(_STOPPED))
            else:
                job.turn.finish(Reply("", "aborted", error=_QUEUED))
            raise
        finally:
            if not job.begun and not self._queue.retries:
                self._records.postpone(job)

    async def _answer_unless_aborted(self, job: Job, answer: Answer) -> Json:
        """Return the answer of the model, or the part that was received before it was aborted."""
        if job.aborted is None:
            with anyio.CancelScope() as job.scope:
                return await self._answer(job, answer)
        return answer.partial(job.aborted or _ABORTED)

    async def _answer(self, job: Job, answer: Answer) -> Json:
        """Return the answer of the model. If the context was too long, compact and try once more."""
        for last in (False, True):
            try:
                request = job.request or await self._prepare(job)
                message = await answer.listen(job.answerer.runner, request)
            except RunnerFailed as error:
                message = failed(error.message)
            problem = message.get("errorMessage", "") if message.get("stopReason") == "error" else ""
            if last or answer.begun or not is_overflow(problem) or not await self._recover(job, problem):
                break
            job.request = None
        return message

    async def _prepare(self, job: Job) -> RunRequest:
        """Do what is due before the model is asked, and return the request."""
        if job.due.notes:
            self._queue.check(job)
            notice = await self._window.take_notes(job)
            job.notices += [] if notice is None else [notice]
        if job.due.compaction:
            _, notices = await self._compact(job)
            job.notices += notices
        return await self._gateway.call(self._admission.request, job)

    async def _recover(self, job: Job, error: str) -> bool:
        """Compact after an overflow. Return whether another try is worth it."""
        outcome, notices = await self._compact(job, error)
        job.notices += notices
        return outcome is not None and outcome.retry

    async def _compact(self, job: Job, error: str | None = None) -> tuple[Outcome | None, list[str]]:
        """Compact the session of a turn. Return the outcome and the notices about it."""
        self._queue.check(job)
        try:
            if error is None:
                outcome = await self._window.compact(job.bound, job.answerer, "threshold")
            else:
                outcome = await self._window.recover(job.bound, job.answerer, error)
        except SessileError as failure:
            return None, [f"⚠️ Compaction failed: {failure.message}. Nothing was removed."]
        if outcome.status == "rejected":
            why = "; ".join(objection.detail for objection in outcome.objections)
            return outcome, [f"⚠️ The summary was rejected: {why}. Nothing was removed."]
        if outcome.status != "compacted" or not job.toggles.is_verbose:
            return outcome, []
        found = await self._gateway.call(self._gateway.conversations.get, job.bound.text)
        count = None if found is None else found.entry.known("compactionCount")
        return outcome, [compaction_notice(count)]

    async def _end(self, job: Job, message: Json) -> None:
        """Append the reply, notify clients, and compact if due."""
        try:
            entry_id, due = await self._gateway.call_for_turn(self._append_reply, job, message)
        except Overtaken:
            raise
        except SessileError as error:
            self._finish(job, failed(error.message), None)
            return
        self._publish(job, "entry", id=entry_id)
        self._finish(job, message, entry_id)
        if due:
            _, notices = await self._compact(job)
            self._pending.add(job.session_id, *notices)
            await self._gateway.call(self._forget, job)

    def _append_reply(self, job: Job, message: Json) -> tuple[str, bool]:
        """Append the reply. Return its entry id, and whether a compaction is due."""
        due = False
        with self._gateway.opened(job.path) as session:
            entry_id = self._records.end(session, job, message)
            try:
                due = self._window.is_due(session, job)
            except SessileError as error:  # the reply is durable already
                _LOG.warning("cannot tell whether a compaction is due: %s", error)
        if not due:
            self._forget(job)
        return entry_id, due

    def _forget(self, job: Job) -> None:
        """Forget a turn that is done."""
        try:
            self._queue.finish(job, unless=lambda: self._records.has_postponed(job.session_id))
        except SessileError as error:  # a later look finds that the turn is done, and forgets it
            _LOG.warning("cannot forget a finished turn: %s", error)

    def _finish(self, job: Job, message: Json, entry_id: str | None) -> None:
        reply = reply_of(job, message, entry_id, self._pending)
        job.turn.finish(reply)
        result = {"stop": reply.stop, "error": reply.error, "entry": entry_id, "notices": list(reply.notices)}
        self._publish(
            job, "turn", turn=job.turn.id, state="done", silent=reply.silent, withheld=reply.withheld, **result
        )

    # -- notifying clients

    def _say(self, job: Job, text: str) -> None:
        """Deliver text of the answer. Typing is announced with the first text."""
        if not job.turn.has_text:
            self._publish(job, "typing", turn=job.turn.id)
        job.turn.say(text)
        self._publish(job, "delta", turn=job.turn.id, text=text)

    def _publish(self, job: Job, kind: Kind, **data: Any) -> None:
        if self._gateway.hub.is_followed(job.session_id):
            self._gateway.hub.publish(Event(None, job.session_id, kind, data))
