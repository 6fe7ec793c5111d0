"""Admission: from a message to a turn in the lane of its session, with the message durable.

Rules: of two messages with one name, at once or after a restart, one becomes a turn, and both get that. Whoever finds the lane
empty begins at once, with the message in the session; the others wait, with the message in the log of turns.

Everything here blocks and runs on threads; what is told to those who wait is told on the loop.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio.from_thread

from sessile.core.chat_commands import ChatCommand, parse_command
from sessile.core.rollover import reset_notice
from sessile.core.status_text import new_session_notice
from sessile.gateway.allowed_models import allowed_models
from sessile.gateway.job import NOTHING, Job, message_of
from sessile.gateway.prompts import make_request
from sessile.gateway.records import Records, Stored
from sessile.gateway.replies import stored_reply
from sessile.gateway.toggles import sending_of, toggles_of
from sessile.gateway.turn import Message, Turn, forget_done

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sessile import Bound, Session, TurnLog
    from sessile.gateway.care import Care
    from sessile.gateway.lanes import Lanes
    from sessile.gateway.runners import RunRequest
    from sessile.gateway.service import Gateway

_REMEMBERED = 4096  # turns that are found again without looking into a session


class Repeated(NamedTuple):
    """A message that was sent before, and its turn."""

    turn: Turn


class Commanded(NamedTuple):
    """A message that is a command, and the turn of its answer."""

    bound: Bound
    command: ChatCommand
    turn: Turn


class Admitted(NamedTuple):
    """A turn that is in its lane; `runs` if the lane is its own, and somebody has to run it now."""

    job: Job
    runs: bool


class Admission:
    """Lets messages in."""

    def __init__(
        self, gateway: Gateway, lanes: Lanes[Job | None], log: TurnLog, care: Care, refused: Callable[[Job, bool], None]
    ) -> None:
        self._gateway = gateway
        self._lanes = lanes
        self._log = log
        self._care = care
        self._refused = refused
        self.records = Records(gateway, log)
        self._models = allowed_models(gateway.config)
        self._named: OrderedDict[tuple[str, str], Turn] = OrderedDict()  # by key and name
        self._naming = threading.Lock()

    def accept(self, message: Message) -> Repeated | Commanded | Admitted:
        """Find the conversation of a message, and let it in."""
        bound = self._gateway.conversations.resolve(message.source)
        name = message.idempotency_key
        repeated = None if name is None else self._repeated(bound, name)
        if repeated is not None:
            return Repeated(repeated)
        if message.before:
            self.records.precede(bound, message.before)
        command = None if message.is_system else self._parsed(bound, message)
        turn = Turn("", bound.session_id, bound.text)
        first = turn if name is None else self._name(turn, name)
        if first is not turn:  # somebody sends the same at this moment
            return Repeated(first)
        if command is not None:
            return Commanded(bound, command, turn)
        try:
            return self.admit(bound, message, turn)
        except BaseException as error:
            anyio.from_thread.run_sync(self.give_up, turn, name, error)
            raise

    def admit(self, bound: Bound, message: Message, turn: Turn) -> Admitted:
        """Put a message into the lane of its session, and make it durable."""
        job = self.job(bound, message, message.idempotency_key or self._gateway.store.random(16).hex(), turn)
        mode = message.queue or job.toggles.queue
        runs = self._lanes.enter(job.session_id, job, first=mode == "interrupt")
        try:
            if runs:
                self._log.note(job.session_id, job.mark())
                self.begin(job)
            else:
                self._log.keep(job.session_id, job.record())
        except BaseException:
            anyio.from_thread.run_sync(self._refused, job, runs)
            raise
        return Admitted(job, runs)

    def give_up(self, turn: Turn, name: str | None, error: BaseException) -> None:
        """Nothing came of a message: whoever waits for it hears why, and whoever sends it again begins anew. On the loop."""
        if name is not None:
            with self._naming:
                self._named.pop((turn.key, name), None)
        turn.refuse(error)

    def job(self, bound: Bound, message: Message, name: str, turn: Turn | None = None) -> Job:
        """A turn of a conversation, as its settings want it now."""
        toggles = toggles_of(bound.entry)
        job = Job(bound, message, name, self._gateway.answerers.of(bound.agent, toggles.model), toggles, turn)
        job.withheld = self._withheld(bound.text, bound.entry)
        job.notices += self.reset_told(bound)
        if bound.is_new and not job.notices and toggles.is_verbose:
            job.notices.append(new_session_notice(bound.session_id))
        return job

    def reset_told(self, bound: Bound) -> list[str]:
        """What a person is told of a session that has just begun by itself."""
        if bound.reason not in ("daily", "idle"):
            return []
        return [reset_notice(bound.reason, self._gateway.conversations.policy(bound.key))]

    def _withheld(self, key: str, entry: Mapping[str, Any]) -> str | None:
        """Why replies of a conversation are not delivered; `None` if they are."""
        verdict = sending_of(self._gateway.config.session.sending, key, entry)
        return None if verdict.allowed else verdict.why

    def _parsed(self, bound: Bound, message: Message) -> ChatCommand | None:
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

    # -- messages that come twice

    def _name(self, turn: Turn, name: str) -> Turn:
        """The turn of that name, which is this one unless there is another."""
        with self._naming:
            first = self._named.setdefault((turn.key, name), turn)
            forget_done(self._named, _REMEMBERED)
            return first

    def _repeated(self, bound: Bound, name: str) -> Turn | None:
        """The turn that a message of this name began, if it came before."""
        with self._naming:
            turn = self._named.get((bound.text, name))
        if turn is not None:
            return turn
        stored = self.records.find(bound, name)
        return None if stored is None else self._ended(stored)

    def stored(self, session_id: str, turn_id: str) -> Turn | None:
        """A turn as its session holds it."""
        path = self._gateway.store.find(session_id)
        stored = None if path is None else self.records.at(path, turn_id)
        return None if stored is None else self._ended(stored)

    def _ended(self, stored: Stored) -> Turn:
        """A turn that is over; what holds for its conversation now says whether its reply may be told again."""
        conversation = self._gateway.conversations.get(stored.key) if stored.key else None
        withheld = None if conversation is None else self._withheld(conversation.text, conversation.entry)
        return Turn(*stored[:3], stored_reply(stored, withheld))

    # -- beginning

    def begin(self, job: Job) -> None:
        """Append the message, see what is due, and if nothing is, make the request at once."""
        with self._gateway.opened(job.path) as session:
            self.records.begin(session, job)
            job.due = self._care.before(session, job)
            if job.due == NOTHING:
                job.request = self._request(session, job)

    def request(self, job: Job) -> RunRequest:
        """What the model is asked, as the session is now."""
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

    # -- after a restart

    def left(self) -> list[Job]:
        """The turns that waited when an earlier gateway ended, in their lanes; gives those that run now."""
        first = []
        for bound, record in self.records.left():
            job = self.job(bound, message_of(record, bound.text), record["name"])
            job.turn.accept()
            self._name(job.turn, job.name)
            if self._lanes.enter(job.session_id, job, limited=False):
                first.append(job)
        return first
