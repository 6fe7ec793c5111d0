"""Admission: from a message to a turn in the lane of its session, with the message durable.

Rules: of two messages with one name, at once or after a restart, one becomes a turn, and both get that, also if they came to two
gateways. Whoever finds the lane empty begins at once, with the message in the session; the others wait, with the message in the
line of turns.

Everything here blocks and runs on threads; what is told to those who wait is told on the loop.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from sessile.core.chat_commands import ChatCommand, parse_command
from sessile.core.rollover import reset_notice
from sessile.core.status_text import new_session_notice
from sessile.gateway.allowed_models import allowed_models
from sessile.gateway.job import NOTHING, Job, message_of, turn_id_of
from sessile.gateway.line import Overtaken
from sessile.gateway.prompts import make_request
from sessile.gateway.records import Records, Stored
from sessile.gateway.replies import stored_reply
from sessile.gateway.toggles import sending_of, toggles_of
from sessile.gateway.turn import Message, Reply, Turn, forget_done

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sessile import Bound, Session
    from sessile.gateway.care import Care
    from sessile.gateway.line import Line
    from sessile.gateway.runners import RunRequest
    from sessile.gateway.service import Gateway

_REMEMBERED = 4096  # turns that are found again without looking into a session
_REFUSED = "The message could not be kept. Send it again."


class Repeated(NamedTuple):
    """A message that was sent before, and its turn."""

    turn: Turn


class Commanded(NamedTuple):
    """A message that is a command, and the turn of its answer."""

    bound: Bound
    command: ChatCommand
    turn: Turn


class Admitted(NamedTuple):
    """A turn that is in its lane; `runs` if somebody has to drive it now."""

    job: Job
    runs: bool


class Elsewhere(NamedTuple):
    """A message whose turn another gateway runs."""

    turn: Turn


class Admission:
    """Lets messages in."""

    def __init__(self, gateway: Gateway, line: Line, care: Care, refused: Callable[[Job], None]) -> None:
        self._gateway = gateway
        self._line = line
        self._care = care
        self._refused = refused
        self.records = Records(gateway, line)
        self._models = allowed_models(gateway.config)
        self._named: OrderedDict[tuple[str, str], Turn] = OrderedDict()  # by key and name
        self._naming = threading.Lock()

    def accept(self, message: Message) -> Repeated | Commanded | Admitted | Elsewhere:
        """Find the conversation of a message, and let it in."""
        bound = self._gateway.conversations.resolve(message.source)
        name = message.idempotency_key
        repeated = None if name is None else self._repeated(bound, name)
        if repeated is not None:
            return repeated
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
            self._gateway.tell_loop(self.give_up, turn, name, error)
            raise

    def admit(self, bound: Bound, message: Message, turn: Turn) -> Admitted | Elsewhere:
        """Put a message into the lane of its session, and make it durable."""
        job = self.job(bound, message, message.idempotency_key or self._gateway.store.random(16).hex(), turn)
        mode = message.queue or job.toggles.queue
        try:
            may_begin = self._line.enter(job, first=mode == "interrupt")
            if may_begin is None:
                return self._elsewhere(job.turn, job.name)
            if may_begin:
                self.begin(job)
        except Overtaken:
            self._gateway.tell_loop(self._refused, job)
            return Elsewhere(job.turn)
        except BaseException:
            self._line.give_up(job)
            self._gateway.tell_loop(self._refused, job)
            raise
        return Admitted(job, may_begin or self._line.takes_up_again)

    def _elsewhere(self, turn: Turn, name: str) -> Elsewhere:
        """A turn that another gateway runs, in the session in which that has it."""
        turn.session_id = self._line.where(turn.key, name) or turn.session_id
        turn.id = turn_id_of(turn.session_id, name)
        return Elsewhere(turn)

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

    def _repeated(self, bound: Bound, name: str) -> Repeated | Elsewhere | None:
        """The turn that a message of this name began, if it came before."""
        with self._naming:
            turn = self._named.get((bound.text, name))
        if turn is not None:
            return Repeated(turn)
        stored = self.records.find(bound, name)
        if stored is None:
            return None  # unless another gateway gets it at this moment, which shows when it enters the line
        found = self.stored(stored.session_id, stored.turn_id) if stored.reply is None else self._ended(stored)
        if found is None or found.reply is not None:
            return None if found is None else Repeated(found)
        first = self._name(found, name)
        return Elsewhere(found) if first is found else Repeated(first)

    def stored(self, session_id: str, turn_id: str) -> Turn | None:
        """A turn as its session holds it; without a reply as long as another gateway has it."""
        under_way = {turn_id_of(session_id, name): key for name, key in self._line.names(session_id).items()}
        path = self._gateway.store.find(session_id)  # behind that: a turn that is not under way any more has its reply
        stored = None if path is None else self.records.at(path, turn_id)
        if turn_id not in under_way or (stored is not None and stored.reply is not None):
            return None if stored is None else self._ended(stored)
        turn = Turn(turn_id, session_id, under_way[turn_id])
        turn.state = "queued" if stored is None else "running"
        return turn

    def reply_of(self, turn: Turn) -> Reply | None:
        """What another gateway has made of a turn; `None` as long as it has it."""
        found = self.stored(turn.session_id, turn.id)
        return Reply("", "error", error=_REFUSED) if found is None else found.reply

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

    # -- after the end of a gateway

    def left(self) -> list[Job]:
        """The turns that waited when another gateway ended, in their lanes; gives those that somebody has to drive."""
        first = []
        for bound, record in self.records.left():
            job = self.job(bound, message_of(record, bound.text), record["name"])
            job.turn.accept()
            self._name(job.turn, job.name)
            if self._line.enter_again(job, record):
                first.append(job)
        return first
