"""Admission: from a message to a turn in the queue of its session, with the message durable.

Rules: of two messages with the same name, sent at once or after a restart, to one gateway or to two, one becomes a turn
and both get that turn. A turn that finds its lane empty starts at once, with its message in the session. Others wait,
with their messages in the turn queue.

Everything here blocks and runs on threads, unless it says otherwise. Clients are notified on the event loop.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from sessile.core.chat_commands import ChatCommand, parse_command
from sessile.core.resets import reset_notice
from sessile.gateway.turns.commands import allowed_models
from sessile.gateway.turns.context_window import make_request
from sessile.gateway.turns.lanes import Overtaken
from sessile.gateway.turns.replies import Records, Stored, stored_reply
from sessile.gateway.turns.turn import (
    NOTHING,
    Job,
    Message,
    Reply,
    Turn,
    forget_done,
    message_of,
    sending_of,
    toggles_of,
    turn_id_of,
)
from sessile.render.status import new_session_notice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sessile.gateway.conversations.bindings import Bound
    from sessile.gateway.service import Gateway
    from sessile.gateway.turns.context_window import ContextWindow
    from sessile.gateway.turns.lanes import TurnQueue
    from sessile.gateway.turns.runners import RunRequest
    from sessile.session import Session


_MAX_KNOWN = 1024  # turns that are found without opening a session
_REFUSED = "The message could not be stored. Send it again."


class Repeated(NamedTuple):
    """The turn of a message that was sent before."""

    turn: Turn


class Commanded(NamedTuple):
    """A command, and the turn of its answer."""

    bound: Bound
    command: ChatCommand
    turn: Turn


class Admitted(NamedTuple):
    """A turn in its lane. `runs` if the caller must run it now."""

    job: Job
    runs: bool


class Elsewhere(NamedTuple):
    """A turn that another gateway runs."""

    turn: Turn


class Admission:
    """Turns messages into turns."""

    def __init__(
        self, gateway: Gateway, queue: TurnQueue, window: ContextWindow, refused: Callable[[Job], None]
    ) -> None:
        self._gateway = gateway
        self._queue = queue
        self._window = window
        self._refused = refused
        self.records = Records(gateway, queue)
        self._models = allowed_models(gateway.config)
        self._named: OrderedDict[tuple[str, str], Turn] = OrderedDict()  # by key and name
        self._naming = threading.Lock()

    def accept(self, message: Message) -> Repeated | Commanded | Admitted | Elsewhere:
        """Resolve the conversation of a message, and admit it."""
        bound = self._gateway.conversations.resolve(message.source)
        name = message.idempotency_key
        repeated = None if name is None else self._repeated(bound, name)
        if repeated is not None:
            return repeated
        if message.before:
            self.records.prepend(bound, message.before)
        command = None if message.is_system else self._parse_command(bound, message)
        turn = Turn("", bound.session_id, bound.text)
        first = turn if name is None else self._register(turn, name)
        if first is not turn:  # the same message is being sent at this moment
            return Repeated(first)
        if command is not None:
            return Commanded(bound, command, turn)
        try:
            return self.admit(bound, message, turn)
        except BaseException as error:
            self._gateway.call_on_loop(self.refuse, turn, name, error)
            raise

    def admit(self, bound: Bound, message: Message, turn: Turn) -> Admitted | Elsewhere:
        """Add a message to the lane of its session, and make it durable."""
        job = self.job(bound, message, message.idempotency_key or self._gateway.store.random(16).hex(), turn)
        mode = message.queue or job.toggles.queue
        try:
            may_start = self._queue.enter(job, first=mode == "interrupt")
            if may_start is None:
                return self._elsewhere(job.turn, job.name)
            if may_start:
                self.begin(job)
        except Overtaken:
            self._gateway.call_on_loop(self._refused, job)
            return Elsewhere(job.turn)
        except BaseException:
            self._queue.discard(job)
            self._gateway.call_on_loop(self._refused, job)
            raise
        return Admitted(job, may_start or self._queue.retries)

    def _elsewhere(self, turn: Turn, name: str) -> Elsewhere:
        """Return a turn of another gateway, in the session where that gateway has it."""
        turn.session_id = self._queue.session_of(turn.key, name) or turn.session_id
        turn.id = turn_id_of(turn.session_id, name)
        return Elsewhere(turn)

    def refuse(self, turn: Turn, name: str | None, error: BaseException) -> None:
        """Tell clients why a message was refused, and forget it so that it can be sent again. Called on the loop."""
        if name is not None:
            with self._naming:
                self._named.pop((turn.key, name), None)
        turn.refuse(error)

    def job(self, bound: Bound, message: Message, name: str, turn: Turn | None = None) -> Job:
        """Return the job of a message, with the current settings of its conversation."""
        toggles = toggles_of(bound.entry)
        job = Job(bound, message, name, self._gateway.answerers.of(bound.agent, toggles.model), toggles, turn)
        job.withheld = self._withheld(bound.text, bound.entry)
        job.notices += self.reset_notices(bound)
        if bound.is_new and not job.notices and toggles.is_verbose:
            job.notices.append(new_session_notice(bound.session_id))
        return job

    def reset_notices(self, bound: Bound) -> list[str]:
        """Return the notices about an automatic reset."""
        if bound.reason not in ("daily", "idle"):
            return []
        return [reset_notice(bound.reason, self._gateway.conversations.policy(bound.key))]

    def _withheld(self, key: str, entry: Mapping[str, Any]) -> str | None:
        """Return why replies of a conversation are not delivered; `None` if they are."""
        verdict = sending_of(self._gateway.config.session.sending, key, entry)
        return None if verdict.allowed else verdict.why

    def _parse_command(self, bound: Bound, message: Message) -> ChatCommand | None:
        if "/" not in message.text:
            return None
        agent = self._gateway.config.agents.named(bound.agent)
        return parse_command(
            message.text,
            authorised=message.authorised,
            models=self._models,
            mentions=[name for name in (agent.id, agent.name) if name],
            reset_triggers=self._gateway.config.session.reset_triggers,
        )

    # -- repeated messages

    def _register(self, turn: Turn, name: str) -> Turn:
        """Register a turn under a name. Return the turn that has the name, which may be another one."""
        with self._naming:
            first = self._named.setdefault((turn.key, name), turn)
            forget_done(self._named, _MAX_KNOWN)
            return first

    def _repeated(self, bound: Bound, name: str) -> Repeated | Elsewhere | None:
        """Return the turn that a message of this name started before, if any."""
        with self._naming:
            turn = self._named.get((bound.text, name))
        if turn is not None:
            return Repeated(turn)
        stored = self.records.find(bound, name)
        if stored is None:
            return None  # if another gateway gets it at this moment, `enter` finds out
        found = self.stored(stored.session_id, stored.turn_id) if stored.reply is None else self._ended(stored)
        if found is None or found.reply is not None:
            return None if found is None else Repeated(found)
        first = self._register(found, name)
        return Elsewhere(found) if first is found else Repeated(first)

    def stored(self, session_id: str, turn_id: str) -> Turn | None:
        """Return a stored turn. It has no reply as long as another gateway runs it."""
        unfinished = {turn_id_of(session_id, name): key for name, key in self._queue.names_in(session_id).items()}
        path = self._gateway.store.find(session_id)  # after that: a finished turn has its reply
        stored = None if path is None else self.records.at(path, turn_id)
        if turn_id not in unfinished or (stored is not None and stored.reply is not None):
            return None if stored is None else self._ended(stored)
        turn = Turn(turn_id, session_id, unfinished[turn_id])
        turn.state = "queued" if stored is None else "running"
        return turn

    def reply_of(self, turn: Turn) -> Reply | None:
        """Return the reply of another gateway's turn; `None` as long as it runs."""
        found = self.stored(turn.session_id, turn.id)
        return Reply("", "error", error=_REFUSED) if found is None else found.reply

    def _ended(self, stored: Stored) -> Turn:
        """Return a finished turn. The current settings of its conversation decide whether its reply may be delivered."""
        conversation = self._gateway.conversations.get(stored.key) if stored.key else None
        withheld = None if conversation is None else self._withheld(conversation.text, conversation.entry)
        return Turn(*stored[:3], stored_reply(stored, withheld))

    # -- starting

    def begin(self, job: Job) -> None:
        """Append the message, find out what is due, and if nothing is, make the request."""
        with self._gateway.opened(job.path) as session:
            self.records.begin(session, job)
            job.due = self._window.due(session, job)
            if job.due == NOTHING:
                job.request = self._request(session, job)

    def request(self, job: Job) -> RunRequest:
        """Return the request of a turn for the current state of its session."""
        with self._gateway.opened(job.path) as session:
            return self._request(session, job)

    def _request(self, session: Session, job: Job) -> RunRequest:
        return make_request(
            session,
            session.context(),
            job.answerer,
            self._gateway.store.now(),
            key=job.bound.text,
            thinking=job.toggles.thinking,
            system=job.message.system,
        )

    # -- abandoned turns

    def abandoned(self) -> list[Job]:
        """Add the waiting turns of stopped gateways to their lanes. Return those that must be run now."""
        first = []
        for bound, record in self.records.abandoned():
            job = self.job(bound, message_of(record, bound.text), record["name"])
            job.turn.accept()
            self._register(job.turn, job.name)
            if self._queue.reenter(job, record):
                first.append(job)
        return first
