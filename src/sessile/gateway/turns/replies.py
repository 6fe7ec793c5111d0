"""Answers and replies: how a model's answer is streamed, stored in its session, delivered, and shown again later.

    Answer            one answer while it is streamed; silence and the send policy are applied here
    Records           turns in their sessions: the user's message, the reply, and what a stopped gateway left
    reply_of          the reply for clients, with notices before the text and remarks after it
    shown             an entry as clients may see it, used by every list, page and stream of entries

Rules:
- A message is appended under the key `chat:<name>`, its reply under `turn:<message id>:reply`, so repeating changes
  nothing.
- The entry of a message has a member `turn`: its conversation, and where the message came from.
- A message without a reply that no gateway runs was interrupted. It gets a reply that says so, at the next start or
  with the next message.
- A notice is delivered once. If the reply is silent or held back, it waits for the next reply of the session.
- An answer whose first word is `NO_REPLY` is never delivered. It is shown as an entry with `"silent": true`, without
  its text, thinking and tool calls. Leaf markers are not shown at all. Everything else is shown as it is stored.

Records block.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

from sessile.core.delivery import Silence, is_silent
from sessile.core.entries import ROOT
from sessile.core.kinds import LEAF_MARKER, MESSAGE
from sessile.core.messages.family import blocks_of, joined_text
from sessile.core.resets import previous_sessions
from sessile.core.usage import usage_of
from sessile.errors import LeafMoved, RunnerFailed, SessileError, SessionNotFound
from sessile.gateway.turns.runners import Done, Runner, RunRequest, Text
from sessile.gateway.turns.turn import Job, Reply, reply_id, reply_key, turn_id_of, usage_line

if TYPE_CHECKING:
    from sessile.core.entries import Entry
    from sessile.gateway.conversations.bindings import Bound
    from sessile.gateway.service import Gateway
    from sessile.gateway.turns.lanes import TurnQueue
    from sessile.session import Receipt, Session


Json = dict[str, Any]

BEFORE = "openai:before"
INTERRUPTED = "The gateway stopped before the answer was complete. Ask again."

_LOG = logging.getLogger(__name__)

_MAX_ENDED = 1024  # sessions whose last reply is remembered
_NEAR = 16  # entries after a message that may belong to its turn: notes, a compaction, settings
_MAX_SESSIONS = 1024  # sessions with waiting notices
_MAX_NOTICES = 8  # of one session

# What is shown of a silent answer. An allowlist, so that no new member can carry its text.
_BASE = ("type", "id", "parentId", "timestamp")
_SHOWN = ("role", "api", "provider", "model", "usage", "stopReason", "timestamp")


# -- answers


class Answer:
    """The answer of one turn. `say` is called with the text to deliver, unless `withheld` says why nothing is delivered."""

    def __init__(self, say: Callable[[str], None], withheld: str | None = None) -> None:
        self.withheld = withheld
        self._say = say
        self._silence = Silence()
        self._texts: list[str] = []

    @property
    def begun(self) -> bool:
        """Return whether the model has produced any text yet."""
        return any(self._texts)

    async def listen(self, runner: Runner, request: RunRequest) -> Json:
        """Run the runner, deliver its text as it arrives, and return the complete message.

        May be repeated until text has arrived.
        """
        message: Json | None = None
        self._silence = Silence()
        async with aclosing(runner.run(request)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                if isinstance(piece, Text):
                    self._receive(piece.text)
                elif isinstance(piece, Done):
                    message = piece.message
        if message is None:
            raise RunnerFailed(f"the {runner.name} runner ended without an answer", hint="try again")
        if not self.begun:  # the runner does not stream
            self._receive(joined_text(message.get("content")))
        self._deliver(self._silence.finish()[0])
        return message

    def partial(self, why: str) -> Json:
        """Return the message of an aborted answer: the text so far, and why it ended.

        A start that could have become silence was not delivered, so it is not stored either.
        """
        text = "" if self._silence.silent is None else "".join(self._texts)
        content = [{"type": "text", "text": text}] if text else []
        return {"role": "assistant", "content": content, "stopReason": "aborted", "errorMessage": why}

    def _receive(self, text: str) -> None:
        self._texts.append(text)
        self._deliver(self._silence.feed(text))

    def _deliver(self, text: str) -> None:
        if text and self.withheld is None:
            self._say(text)


def failed(error: str) -> Json:
    """Return the message of a failed answer."""
    return {"role": "assistant", "content": [], "stopReason": "error", "errorMessage": error}


def deliverable(message: Json) -> str:
    """Return the deliverable text of a message; empty if it is silent."""
    text = joined_text(message.get("content"))
    return "" if is_silent(text) else text


def reasoning_of(message: Json) -> str | None:
    """Return the reasoning of a message."""
    blocks = [block for block in blocks_of(message.get("content")) if block.get("type") == "thinking"]
    return "\n".join(str(block.get("thinking", "")) for block in blocks).strip() or None


# -- records


class Stored(NamedTuple):
    """A stored turn: its id, its session, its conversation, and the entry of its reply if there is one."""

    turn_id: str
    session_id: str
    key: str
    reply: Entry | None


class Records:
    """The turns of a gateway in its sessions and its queue."""

    def __init__(self, gateway: Gateway, queue: TurnQueue) -> None:
        self._gateway = gateway
        self._queue = queue
        self._postponed: dict[str, list[Job]] = {}  # by session; used by the owner of its lane only
        self._unsettled: set[str] = set()  # sessions whose abandoned turns could not be closed
        self._ended: OrderedDict[str, str] = OrderedDict()  # by session: the last reply
        self._lock = threading.Lock()

    # -- starting and ending a turn

    def prepend(self, bound: Bound, entries: Sequence[Json]) -> None:
        """Append earlier messages of a conversation, if the session is empty."""
        with self._gateway.opened(bound.path) as session:
            if session.leaf_id is not None:
                return
            try:
                session.append_many(entries, expected_leaf=ROOT, key=BEFORE, on_leaf_moved="fail")
            except LeafMoved:
                pass  # another message was appended at this moment

    def begin(self, session: Session, job: Job) -> None:
        """Append the user's message. Postponed messages of the session come first, and are marked as interrupted.

        Ownership is checked before and after: an overtaken gateway must not answer what it finds.
        """
        self._queue.check(job)
        postponed = self._postponed.get(job.session_id, [])
        while postponed:
            self._append(session, postponed[0])
            self.interrupt(session, postponed[0].turn.id)
            del postponed[0]
        self._postponed.pop(job.session_id, None)
        self._append(session, job)
        self._queue.check(job)

    def postpone(self, job: Job) -> None:
        """Keep a waiting message that could not be appended: it is appended before the next one."""
        self._postponed.setdefault(job.session_id, []).append(job)

    def has_postponed(self, session_id: str) -> bool:
        """Return whether messages of a session are still to be appended or closed."""
        return session_id in self._postponed or session_id in self._unsettled

    def _append(self, session: Session, job: Job) -> None:
        self._close_last(session, job.turn.id)
        now = self._gateway.store.now()
        receipt = _append_once(session, job.entry(now), job.key)
        job.before = receipt.parent_id
        job.answered = receipt.repeated and session.get_entry(reply_id(session.id, job.turn.id)) is not None
        job.begun = True

    def end(self, session: Session, job: Job, message: Json) -> str:
        """Append the reply and count it. Return the id of its entry."""
        self._queue.check(job)
        now = self._gateway.store.now()
        answer = {"type": "message", "message": {**message, "timestamp": now}}
        receipt = _append_once(session, answer, reply_key(job.turn.id))
        self._queue.check(job)  # otherwise the stored reply may be another gateway's
        with self._lock:
            self._ended[session.id] = receipt.id
            self._ended.move_to_end(session.id)
            while len(self._ended) > _MAX_ENDED:
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
        for name, value in (("modelProvider", message.get("provider")), ("model", message.get("model"))):
            if isinstance(value, str):
                members[name] = value
        self._gateway.conversations.count(
            job.bound.text, job.session_id, usage=usage, cost=cost, members=members, now=now
        )

    # -- abandoned turns

    def _close_last(self, session: Session, turn_id: str) -> None:
        """Close the last turn of a session, if it has no reply and is not `turn_id`."""
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
        """Append the reply that a turn was interrupted, unless it has a reply."""
        message = {"role": "assistant", "content": [], "stopReason": "aborted", "errorMessage": INTERRUPTED}
        answer = {"type": "message", "message": {**message, "timestamp": self._gateway.store.now()}}
        _append_once(session, answer, reply_key(turn_id))

    def abandoned(self) -> Iterator[tuple[Bound, Json]]:
        """Yield the turns that waited when a gateway stopped, in order. Those that had started are marked as interrupted.

        What cannot be closed now is logged, and tried again later.
        """
        for left in self._queue.abandoned():
            try:
                found = [(turn, self._settle(left.session_id, turn)) for turn in left.turns]
                self._queue.settle(left, [turn for turn, bound in found if bound is not None])
            except SessileError as error:
                if left.session_id not in self._unsettled:
                    _LOG.warning("cannot close the turns of session %s: %s", left.session_id, error)
                self._unsettled.add(left.session_id)
                continue
            self._unsettled.discard(left.session_id)
            yield from ((bound, turn) for turn, bound in found if bound is not None)

    def _settle(self, session_id: str, turn: Json) -> Bound | None:
        """Close a turn that had started. Return the binding of one that waited."""
        key, waits = str(turn.get("key")), isinstance(turn.get("text"), str)
        bound = self._gateway.conversations.bound(key, session_id)
        if bound is None and waits:
            hint = "restore the session or its entry, and restart the gateway"
            raise SessionNotFound(f"session of a waiting message not found: {key[:120]!r}", hint=hint)
        if bound is None or not isinstance(turn.get("name"), str):
            return None  # the conversation is gone, or the log was edited
        turn_id = turn_id_of(session_id, turn["name"])
        with self._gateway.opened(bound.path) as session:
            if session.get_entry(turn_id) is None:
                # A turn that was only marked had not been acknowledged.
                return bound if waits else None
            if session.get_entry(reply_id(session_id, turn_id)) is None:
                self.interrupt(session, turn_id)
        return None

    # -- finding a turn

    def find(self, bound: Bound, name: str) -> Stored | None:
        """Return the turn of that name in the current or the previous session of a conversation."""
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
        """Return the turn with that id in a session."""
        with self._gateway.opened(path) as session:
            entry = session.get_entry(turn_id)
            if entry is None or not _is_message_of_turn(entry.stored):
                return None
            key = entry.stored["turn"].get("key")
            key = key if isinstance(key, str) else ""  # a file edited by hand
            return Stored(turn_id, session.id, key, session.get_entry(reply_id(session.id, turn_id)))


def _append_once(session: Session, entry: Json, key: str) -> Receipt:
    """Append an entry under its key, after entries that others have appended. Follow the entry if it exists already."""
    receipt = session.append_many([entry], key=key, on_leaf_moved="follow")[0]
    if receipt.repeated:
        session.follow()
    return receipt


def _is_message_of_turn(entry: Json) -> bool:
    message = entry.get("message")
    return isinstance(entry.get("turn"), dict) and isinstance(message, dict) and message.get("role") == "user"


# -- replies


class Pending:
    """Notices that wait for the next reply of their session."""

    def __init__(self) -> None:
        self._notices: OrderedDict[str, list[str]] = OrderedDict()

    def add(self, session_id: str, *notices: str) -> None:
        """Add notices for the next reply."""
        if not notices:
            return
        waiting = self._notices.setdefault(session_id, [])
        waiting += [notice for notice in notices if notice not in waiting]
        del waiting[:-_MAX_NOTICES]
        self._notices.move_to_end(session_id)
        while len(self._notices) > _MAX_SESSIONS:
            self._notices.popitem(last=False)

    def take(self, session_id: str) -> tuple[str, ...]:
        """Remove and return the notices of a session."""
        return tuple(self._notices.pop(session_id, ()))


def reply_of(job: Job, message: Json, entry_id: str | None, pending: Pending) -> Reply:
    """Return the reply of a turn whose answer is `message`."""
    pending.add(job.session_id, *job.notices)
    silent = is_silent(joined_text(message.get("content")))
    delivered = not silent and job.withheld is None
    aborted = message.get("stopReason") == "aborted"
    line = usage_line(message.get("usage"), job.toggles.usage)
    return Reply(
        text="" if not delivered else job.turn.delivered_text if aborted else deliverable(message),
        stop=str(message.get("stopReason", "stop")),
        notices=pending.take(job.session_id) if delivered else (),
        silent=silent,
        withheld=job.withheld,
        error=message.get("errorMessage"),
        entry_id=entry_id,
        usage=message.get("usage"),
        model=job.answerer.model or message.get("model"),
        reasoning=reasoning_of(message) if delivered and job.toggles.reasoning != "off" else None,
        remarks=(line,) if delivered and line is not None and message.get("usage") is not None else (),
    )


def stored_reply(stored: Stored, withheld: str | None) -> Reply:
    """Return the reply of a stored turn. Without one the turn was interrupted. `withheld` says why it may not be delivered."""
    if stored.reply is None:
        return Reply("", "aborted", error=INTERRUPTED)
    message = stored.reply.get("message") or {}
    return Reply(
        text="" if withheld else deliverable(message),
        stop=str(message.get("stopReason", "stop")),
        silent=is_silent(joined_text(message.get("content"))),
        withheld=withheld,
        error=message.get("errorMessage"),
        entry_id=stored.reply.id,
        usage=message.get("usage"),
        model=message.get("model"),
    )


# -- what clients may see


def shown(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an entry as clients may see it; `None` if it is not part of the conversation."""
    if entry.get("customType") == LEAF_MARKER:
        return None
    message = entry.get("message")
    if not isinstance(message, Mapping) or not is_silent_answer(message):
        return dict(entry)
    base = {name: entry[name] for name in _BASE if name in entry}
    return {**base, "message": _without_text(message), "silent": True}


def shown_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message of a context as clients may see it."""
    return {**_without_text(message), "silent": True} if is_silent_answer(message) else dict(message)


def is_silent_answer(message: Mapping[str, Any]) -> bool:
    """Return whether a message is a silent answer."""
    return message.get("role") == "assistant" and is_silent(joined_text(message.get("content")))


def text_of(entry: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return role and text of an entry; `None` if it is not a message, or is silent."""
    message = entry.get("message")
    if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant"):
        return None
    text = joined_text(message.get("content")).strip()
    return None if not text or is_silent_answer(message) else (str(message["role"]), text)


def _without_text(message: Mapping[str, Any]) -> dict[str, Any]:
    return {name: message[name] for name in _SHOWN if name in message}
