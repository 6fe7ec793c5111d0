"""What those who wait for a turn are told: the reply, with notices before it and remarks behind it.

Rules: a notice is told once. One that came up while nothing was delivered, because the model stayed silent or the send policy
held its reply back, waits for the next reply of the session.

One answer while it comes: the words as they were said, and those that may be delivered.

This is the one place through which a model's words go on their way to anybody, so silence and the send policy are kept here.

What of a stored entry may leave for a client: the one place that every list, page and stream of entries goes through.

Rules: an answer whose first word is `NO_REPLY` was never delivered, and is shown as an entry that says `"silent": true`, with
what it used but without its words, thoughts and calls. Leaf markers are not shown at all. Everything else is shown as it is
stored.

The words of a turn that is under way are held back before they come here (`core.delivery`).

Turns in their sessions: the user's message, the reply, and what a gateway left undone.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

from sessile.core.delivery import Silence, is_silent
from sessile.core.entries import ROOT
from sessile.core.kinds import LEAF_MARKER, MESSAGE
from sessile.core.messages import blocks_of, joined_text
from sessile.core.resets import previous_sessions
from sessile.core.usage import usage_of
from sessile.errors import LeafMoved, RunnerFailed, SessileError, SessionNotFound
from sessile.gateway.turns.runners import Done, Runner, RunRequest, Text
from sessile.gateway.turns.turn import Job, Reply, reply_id, reply_key, turn_id_of, usage_line

if TYPE_CHECKING:
    from sessile.core.entries import Entry
    from sessile.gateway.conversations.bindings import Bound
    from sessile.gateway.service import Gateway
    from sessile.gateway.turns.line import Line
    from sessile.session import Receipt, Session


# --- answer

Json = dict[str, Any]


class Answer:
    """The answer of one turn. `say` is given what may be delivered, unless `withheld` says why nothing may."""

    def __init__(self, say: Callable[[str], None], withheld: str | None = None) -> None:
        self.withheld = withheld
        self._say = say
        self._silence = Silence()
        self._words: list[str] = []

    @property
    def begun(self) -> bool:
        """Whether the model has said anything yet."""
        return any(self._words)

    async def listen(self, runner: Runner, request: RunRequest) -> Json:
        """The message of the runner, whole; its words are passed on as they come. May be tried again until it has begun."""
        message: Json | None = None
        self._silence = Silence()
        async with aclosing(runner.run(request)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                if isinstance(piece, Text):
                    self._hear(piece.text)
                elif isinstance(piece, Done):
                    message = piece.message
        if message is None:
            raise RunnerFailed(f"the {runner.name} runner ended without an answer", hint="ask again")
        if not self.begun:  # it was not streamed
            self._hear(joined_text(message.get("content")))
        self._deliver(self._silence.finish()[0])
        return message

    def partial(self, why: str) -> Json:
        """The message of an answer that was stopped: what was said of it, and why there is no more.

        A beginning that could have become silence was said to nobody, and nobody is to find it in the session.
        """
        text = "" if self._silence.silent is None else "".join(self._words)
        content = [{"type": "text", "text": text}] if text else []
        return {"role": "assistant", "content": content, "stopReason": "aborted", "errorMessage": why}

    def _hear(self, text: str) -> None:
        self._words.append(text)
        self._deliver(self._silence.feed(text))

    def _deliver(self, text: str) -> None:
        if text and self.withheld is None:
            self._say(text)


def failed(error: str) -> Json:
    """The message of an answer that did not come."""
    return {"role": "assistant", "content": [], "stopReason": "error", "errorMessage": error}


def deliverable(message: Json) -> str:
    """The text of a message that may be delivered; none of a silent one."""
    text = joined_text(message.get("content"))
    return "" if is_silent(text) else text


def reasoning_of(message: Json) -> str | None:
    """What the model thought aloud."""
    blocks = [block for block in blocks_of(message.get("content")) if block.get("type") == "thinking"]
    return "\n".join(str(block.get("thinking", "")) for block in blocks).strip() or None


# --- records

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


# --- replies

_SESSIONS = 1024  # of which notices are remembered
_LONGEST = 8  # notices of one session


class Pending:
    """Notices that wait for the next reply of their session."""

    def __init__(self) -> None:
        self._notices: OrderedDict[str, list[str]] = OrderedDict()

    def add(self, session_id: str, *notices: str) -> None:
        """Tell something with the next reply."""
        if not notices:
            return
        waiting = self._notices.setdefault(session_id, [])
        waiting += [notice for notice in notices if notice not in waiting]
        del waiting[:-_LONGEST]
        self._notices.move_to_end(session_id)
        while len(self._notices) > _SESSIONS:
            self._notices.popitem(last=False)

    def take(self, session_id: str) -> tuple[str, ...]:
        """What is to be told now."""
        return tuple(self._notices.pop(session_id, ()))


def reply_of(job: Job, message: Json, entry_id: str | None, pending: Pending) -> Reply:
    """The reply of a turn whose answer is this message."""
    pending.add(job.session_id, *job.notices)
    silent = is_silent(joined_text(message.get("content")))
    heard = not silent and job.withheld is None
    aborted = message.get("stopReason") == "aborted"
    line = usage_line(message.get("usage"), job.toggles.usage)
    return Reply(
        text="" if not heard else job.turn.said if aborted else deliverable(message),
        stop=str(message.get("stopReason", "stop")),
        notices=pending.take(job.session_id) if heard else (),
        silent=silent,
        withheld=job.withheld,
        error=message.get("errorMessage"),
        entry_id=entry_id,
        usage=message.get("usage"),
        model=job.answerer.model or message.get("model"),
        reasoning=reasoning_of(message) if heard and job.toggles.reasoning != "off" else None,
        remarks=(line,) if heard and line is not None and message.get("usage") is not None else (),
    )


def stored_reply(stored: Stored, withheld: str | None) -> Reply:
    """The reply of a turn as its session holds it; without one it was interrupted. `withheld` says why it may not be told."""
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


# --- delivering

DeliveringJson = Mapping[str, Any]

# What is left of a silent answer; names, not exceptions, so that no member that somebody adds can carry the words.
_BASE = ("type", "id", "parentId", "timestamp")
_KEPT = ("role", "api", "provider", "model", "usage", "stopReason", "timestamp")


def shown(entry: DeliveringJson) -> dict[str, Any] | None:
    """The entry as a client may see it; `None` if it is none of the conversation's."""
    if entry.get("customType") == LEAF_MARKER:
        return None
    message = entry.get("message")
    if not isinstance(message, Mapping) or not is_silent_answer(message):
        return dict(entry)
    base = {name: entry[name] for name in _BASE if name in entry}
    return {**base, "message": _without_words(message), "silent": True}


def shown_message(message: DeliveringJson) -> dict[str, Any]:
    """A message of a context as a client may see it."""
    return {**_without_words(message), "silent": True} if is_silent_answer(message) else dict(message)


def is_silent_answer(message: DeliveringJson) -> bool:
    """Whether a message is an answer that was not to be delivered."""
    return message.get("role") == "assistant" and is_silent(joined_text(message.get("content")))


def text_of(entry: DeliveringJson) -> tuple[str, str] | None:
    """Who said what in an entry; `None` if it is no word of a person or an agent, or an answer that was silent."""
    message = entry.get("message")
    if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant"):
        return None
    text = joined_text(message.get("content")).strip()
    return None if not text or is_silent_answer(message) else (str(message["role"]), text)


def _without_words(message: DeliveringJson) -> dict[str, Any]:
    return {name: message[name] for name in _KEPT if name in message}
