"""Turns in their sessions: the user's message, the reply, and what a gateway left undone.

    message   key `chat:<name>`            its entry says `turn`: of which conversation it is, and where it came from
    reply     key `turn:<message id>:reply`   one for each message, whoever appends it first

Rules: both are appended under keys, so that repeating changes nothing. A message of a turn without a reply, and nobody who runs
it, was interrupted, and gets a reply that says so: at the next start, or when somebody speaks there again.

Everything here blocks.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sessile.core.entries import ROOT
from sessile.core.kinds import MESSAGE
from sessile.core.rollover import previous_sessions
from sessile.core.usage import usage_of
from sessile.errors import LeafMoved, SessileError, SessionNotFound
from sessile.gateway.answer import Json
from sessile.gateway.job import Job, reply_id, reply_key, turn_id_of

if TYPE_CHECKING:
    from sessile import Bound, Entry, Receipt, Session
    from sessile.gateway.line import Line
    from sessile.gateway.service import Gateway

_LOG = logging.getLogger(__name__)

BEFORE = "openai:before"
INTERRUPTED = "The gateway ended before the answer came. Ask again."

_REMEMBERED = 1024  # sessions of which it is known that their last turn has ended
_NEAR = 16  # entries behind a message that may belong to its turn: notes, a compaction, settings


class Stored(NamedTuple):
    """A turn that is in a session: its id, its conversation, and the entry of its reply if it has one."""

    turn_id: str
    session_id: str
    key: str
    reply: Entry | None


class Records:
    """The turns of a gateway as its sessions and its line hold them."""

    def __init__(self, gateway: Gateway, line: Line) -> None:
        self._gateway = gateway
        self._line = line
        self._owed: dict[str, list[Job]] = {}  # by session; only whoever has its lane looks at them
        self._unsettled: set[str] = set()  # sessions whose turns were left as they are
        self._ended: OrderedDict[str, str] = OrderedDict()  # by session: the reply that was appended last
        self._noting = threading.Lock()

    # -- a turn begins and ends

    def precede(self, bound: Bound, entries: Sequence[Json]) -> None:
        """Append what was said elsewhere before, if nothing was said in the session yet."""
        with self._gateway.opened(bound.path) as session:
            if session.leaf_id is not None:
                return
            try:
                session.append_many(entries, expected_leaf=ROOT, key=BEFORE, on_leaf_moved="fail")
            except LeafMoved:
                pass  # somebody has begun to speak at this moment

    def begin(self, session: Session, job: Job) -> None:
        """Append the user's message; what is owed to the session comes first, and is told that it was interrupted.

        Whoever may have been overtaken hears that before and behind: what he finds then is not his to answer.
        """
        self._line.check(job)
        owed = self._owed.get(job.session_id, [])
        while owed:
            self._append(session, owed[0])
            self.interrupt(session, owed[0].turn.id)
            del owed[0]
        self._owed.pop(job.session_id, None)
        self._append(session, job)
        self._line.check(job)

    def owe(self, job: Job) -> None:
        """A message that waited could not be appended: it stays in the log until it comes before the next one."""
        self._owed.setdefault(job.session_id, []).append(job)

    def owes(self, session_id: str) -> bool:
        """Whether a message is still to come to a session, though nobody waits for its answer."""
        return session_id in self._owed or session_id in self._unsettled

    def _append(self, session: Session, job: Job) -> None:
        self._close_last(session, job.turn.id)
        now = self._gateway.store.now()
        receipt = _kept(session, job.entry(now), job.key)
        job.before = receipt.parent_id
        job.answered = receipt.repeated and session.get_entry(reply_id(session.id, job.turn.id)) is not None
        job.begun = True

    def end(self, session: Session, job: Job, message: Json) -> str:
        """Append the reply and count it; gives the id of its entry."""
        self._line.check(job)
        now = self._gateway.store.now()
        answer = {"type": "message", "message": {**message, "timestamp": now}}
        receipt = _kept(session, answer, reply_key(job.turn.id))
        self._line.check(job)  # else the reply that is there may be another one's
        with self._noting:
            self._ended[session.id] = receipt.id
            self._ended.move_to_end(session.id)
            while len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)
        self._count(job, message, now)
        return receipt.id

    def _count(self, job: Job, message: Json, now: int) -> None:
        usage, model = usage_of(message.get("usage")), job.answerer.model
        stop = message.get("stopReason")
        members: Json = {"abortedLastRun": stop == "aborted", "systemSent": True}
        cost = None
        if usage is not None and model is not None:
            cost = self._gateway.models.price(model, message["usage"])
        if usage is not None and usage.context is not None:
            members |= {"contextTokens": usage.context, "totalTokensFresh": True}
        if job.answerer.window is not None:
            members["contextWindow"] = job.answerer.window
        for name, told in (("modelProvider", message.get("provider")), ("model", message.get("model"))):
            if isinstance(told, str):
                members[name] = told
        self._gateway.conversations.count(
            job.bound.text, job.session_id, usage=usage, cost=cost, members=members, now=now
        )

    # -- what was left

    def _close_last(self, session: Session, turn_id: str) -> None:
        """Give the last turn of a session a reply, if it has none and is another than this one."""
        if self._ended.get(session.id) == session.leaf_id:
            return
        for number, row in enumerate(session.walk_up()):
            if number >= _NEAR:
                return
            if row.flags & MESSAGE:
                entry = session.read_row(row)
                if row.id != turn_id and _is_message_of_turn(entry):
                    self.interrupt(session, row.id)
                return

    def interrupt(self, session: Session, turn_id: str) -> None:
        """Give a turn the reply that it was interrupted, unless it has one."""
        message = {"role": "assistant", "content": [], "stopReason": "aborted", "errorMessage": INTERRUPTED}
        answer = {"type": "message", "message": {**message, "timestamp": self._gateway.store.now()}}
        _kept(session, answer, reply_key(turn_id))

    def left(self) -> Iterator[tuple[Bound, Json]]:
        """The turns that waited when a gateway ended, in their order; those that had begun are marked as interrupted.

        What cannot be settled now is told, and stays where it is.
        """
        for left in self._line.left():
            try:
                found = [(turn, self._settled(left.session_id, turn)) for turn in left.turns]
                self._line.settle(left, [turn for turn, bound in found if bound is not None])
            except SessileError as error:
                if left.session_id not in self._unsettled:
                    _LOG.warning("turns of the session %s are left as they are: %s", left.session_id, error)
                self._unsettled.add(left.session_id)
                continue
            self._unsettled.discard(left.session_id)
            yield from ((bound, turn) for turn, bound in found if bound is not None)

    def _settled(self, session_id: str, turn: Json) -> Bound | None:
        """Close a turn that had begun; of one that waited, gives its conversation."""
        key, waits = str(turn.get("key")), isinstance(turn.get("text"), str)
        bound = self._gateway.conversations.bound(key, session_id)
        if bound is None and waits:
            hint = "bring the session or its entry back, and start the gateway again"
            raise SessionNotFound(f"a message waits in {key[:120]!r}, which has no such session any more", hint=hint)
        if bound is None or not isinstance(turn.get("name"), str):
            return None  # the conversation is gone, or somebody has edited the log
        turn_id = turn_id_of(session_id, turn["name"])
        with self._gateway.opened(bound.path) as session:
            if session.get_entry(turn_id) is None:
                # One that was only noted was not acknowledged.
                return bound if waits else None
            if session.get_entry(reply_id(session_id, turn_id)) is None:
                self.interrupt(session, turn_id)
        return None

    # -- finding a turn again

    def find(self, bound: Bound, name: str) -> Stored | None:
        """The turn of that name in the session of a conversation, or in the one before it."""
        earlier = [previous.session_id for previous in previous_sessions(bound.entry)[:1]]
        for session_id in (bound.session_id, *earlier):
            found = (
                bound if session_id == bound.session_id else self._gateway.conversations.bound(bound.text, session_id)
            )
            turn_id = turn_id_of(session_id, name)
            stored = None if found is None else self.at(found.path, turn_id)
            if stored is not None:
                return stored
        return None

    def at(self, path: str, turn_id: str) -> Stored | None:
        """The turn of that id in a session."""
        with self._gateway.opened(path) as session:
            entry = session.get_entry(turn_id)
            if entry is None or not _is_message_of_turn(entry.body):
                return None
            key = entry.body["turn"].get("key")
            key = key if isinstance(key, str) else ""  # a file of somebody else's
            return Stored(turn_id, session.id, key, session.get_entry(reply_id(session.id, turn_id)))


def _kept(session: Session, entry: Json, key: str) -> Receipt:
    """Append an entry under its key, behind everything that others have appended; also if one of them was this very entry."""
    receipt = session.append_many([entry], key=key, on_leaf_moved="follow")[0]
    if receipt.repeated:
        session.follow()
    return receipt


def _is_message_of_turn(entry: Json) -> bool:
    message = entry.get("message")
    return isinstance(entry.get("turn"), dict) and isinstance(message, dict) and message.get("role") == "user"
