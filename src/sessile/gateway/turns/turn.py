"""A turn: a message in a conversation and its reply.

`Message` and `Reply` are values, `Turn` is what clients wait for, `Job` is the turn while it is queued and run,
`Toggles` are the settings of its conversation. A turn's id is the id of the entry with the user's message, so it stays
the same across restarts. Any number of clients may read the text of a turn, each from the start.

Rules for settings: `None` means not set, so the agent's default applies. Members of an entry may be edited by hand:
values of a wrong type, or without a meaning, count as not set. Only thinking levels are passed on unchecked, because
each runner has its own. A running turn cannot be steered: every queue mode except `interrupt` makes messages wait.

Everything here runs on the event loop. Nothing here runs or stores a turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import anyio
import msgspec

from sessile.core.delivery import SendPolicy, Verdict, decide_sending
from sessile.core.ids import derived_entry_id
from sessile.core.usage import UNDATED, Answered, amount
from sessile.gateway.conversations.inbound import Inbound
from sessile.render.status import UNKNOWN
from sessile.render.wording import money

if TYPE_CHECKING:
    from sessile.gateway.conversations.bindings import Bound
    from sessile.gateway.turns.runners import Answerer, RunRequest


State = Literal["arriving", "queued", "running", "done"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message: its text, its origin, and a key that identifies it when it is sent again."""

    text: str
    source: Inbound | str
    images: tuple[dict[str, Any], ...] = ()
    idempotency_key: str | None = None
    authorised: bool = True  # to use commands
    queue: Literal["followup", "interrupt"] | None = None  # default: the setting of the conversation
    system: str | None = None  # instructions for this turn, after those of the agent
    before: tuple[dict[str, Any], ...] = ()  # entries to start an empty session with

    @property
    def is_system(self) -> bool:
        """Return whether the message was not written by a person, such as a heartbeat."""
        return not isinstance(self.source, str) and self.source.system


class Reply(NamedTuple):
    """The result of a turn.

    `text` is what may be delivered: empty if the model stays silent or the send policy holds the reply back.
    """

    text: str
    stop: str  # "stop", "length", "toolUse", "aborted", "error" or "command"
    notices: tuple[str, ...] = ()
    silent: bool = False
    withheld: str | None = None
    error: str | None = None
    entry_id: str | None = None
    usage: Mapping[str, Any] | None = None
    model: str | None = None
    reasoning: str | None = None
    remarks: tuple[str, ...] = ()  # lines after the text

    @property
    def delivered(self) -> str:
        """Return everything shown to the user, as one text."""
        parts = (*self.notices, self.reasoning, self.text, *self.remarks)
        return "\n\n".join(part for part in parts if part)


class Turn:
    """One turn, as clients see it."""

    def __init__(self, turn_id: str, session_id: str, key: str, reply: Reply | None = None) -> None:
        self.id = turn_id
        self.session_id = session_id
        self.key = key
        self.state: State = "arriving" if reply is None else "done"
        self.reply = reply
        self.repeated = reply is not None  # the message had been sent before
        self._refusal: BaseException | None = None
        self._pieces: list[str] = []
        self._changed: anyio.Event | None = None
        self._end: anyio.Event | None = None

    # -- for clients

    async def accepted(self) -> None:
        """Wait until the user's message is durable. Raise if it could not be stored."""
        if not await self.is_accepted() and self._refusal is not None:
            raise self._refusal

    async def is_accepted(self) -> bool:
        """Wait until the user's message is durable or refused, and return whether it is durable."""
        while self.state == "arriving":
            await self._wait_for_change()
        return self._refusal is None

    async def deltas(self) -> AsyncIterator[str]:
        """Yield the deliverable text from the start until the turn is done."""
        sent = size = 0
        while self.reply is None:
            while sent < len(self._pieces) and self.reply is None:
                piece = self._pieces[sent]
                sent, size = sent + 1, size + len(piece)
                yield piece
            if self.reply is None:
                await self._wait_for_change()
        if rest := self.delivered_text[size:]:
            yield rest

    async def wait(self) -> Reply:
        """Wait for the reply."""
        while self.reply is None:  # not woken by every piece of text
            self._end = self._end or anyio.Event()
            await self._end.wait()
        return self.reply

    @property
    def has_text(self) -> bool:
        """Return whether any text was delivered yet."""
        return bool(self._pieces)

    @property
    def delivered_text(self) -> str:
        """Return the text delivered so far."""
        return "".join(self._pieces)

    async def _wait_for_change(self) -> None:
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    # -- for the engine

    def accept(self) -> None:
        """Mark the user's message as durable."""
        if self.state == "arriving":  # otherwise it is running already
            self.state = "queued"
        self._notify()

    def refuse(self, error: BaseException) -> None:
        """Mark the user's message as refused."""
        self._refusal = error
        self.finish(Reply("", "error", error=str(error)))

    def start(self) -> None:
        """Mark the turn as running."""
        self.state = "running"
        self._notify()

    def say(self, text: str) -> None:
        """Add deliverable text."""
        self._pieces.append(text)
        self._notify()

    def finish(self, reply: Reply) -> None:
        """Mark the turn as done."""
        self.state = "done"
        self.reply = reply
        if self._pieces:  # thousands of finished turns are kept, so each keeps its text once
            text = self.delivered_text
            self._pieces = [reply.text if reply.text == text else text]
        self._notify()
        if self._end is not None:
            self._end.set()

    def _notify(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()


def forget_done(turns: OrderedDict[tuple[str, str], Turn], most: int) -> None:
    """Remove the oldest finished turns beyond `most`. Unfinished turns stay: they cannot be found elsewhere."""
    for _ in range(len(turns) - most):
        name, turn = turns.popitem(last=False)
        if turn.reply is None:
            turns[name] = turn


Json = dict[str, Any]

_ROUTE = ("channel", "to", "account", "thread", "sender")  # where the reply goes
_NUMBERED = ("thread", int)


class Due(NamedTuple):
    """What must be done before the model is asked."""

    notes: bool = False
    compaction: bool = False


NOTHING = Due()


class Job:
    """A turn in the queue of its session. `name` identifies it among all turns of the session, also after a restart."""

    def __init__(
        self, bound: Bound, message: Message, name: str, answerer: Answerer, toggles: Toggles, turn: Turn | None = None
    ) -> None:
        self.bound = bound
        self.message = message
        self.name = name
        self.answerer = answerer
        self.toggles = toggles
        self.turn = turn or Turn("", bound.session_id, bound.text)
        self.turn.id, self.turn.session_id = turn_id_of(bound.session_id, name), bound.session_id
        self.before: str | None = None  # the parent of the user's message
        self.has_lane = False  # it may start
        self.begun = False  # the user's message is in the session
        self.answered = False  # the session already has a reply
        self.due: Due = NOTHING  # what must be done before the model is asked
        self.request: RunRequest | None = None  # set as soon as nothing is due
        self.withheld: str | None = None  # why the reply is not delivered
        self.notices: list[str] = []
        self.scope: anyio.CancelScope | None = None
        self.aborted: str | None = None  # why it was aborted

    @property
    def key(self) -> str:
        """Return the idempotency key of the user's message."""
        return turn_key(self.name)

    @property
    def session_id(self) -> str:
        return self.bound.session_id

    @property
    def path(self) -> str:
        return self.bound.path

    def abort(self, why: str) -> None:
        """Stop the answer, now or as soon as it starts."""
        self.aborted = self.aborted or why
        if self.scope is not None:
            self.scope.cancel()

    # -- in the turn log

    def record(self) -> Json:
        """Return what is needed to run a waiting turn after a restart."""
        message = self.message
        return self.mark() | {
            "text": message.text,
            "images": list(message.images),
            "system": message.system,
            "route": self._route(),
            "heartbeat": message.is_system,
        }

    def mark(self) -> Json:
        """Return what is needed to close a started turn after a restart."""
        return {"name": self.name, "key": self.bound.text}

    # -- in the session

    def entry(self, now: int) -> Json:
        """Return the entry of the user's message, including where the reply goes."""
        content = [{"type": "text", "text": self.message.text}, *self.message.images]
        message = {"role": "user", "content": content, "timestamp": now}
        return {"type": "message", "message": message, "turn": {"key": self.bound.text, **self._route()}}

    def _route(self) -> Json:
        source = self.message.source
        route = {} if isinstance(source, str) else {name: getattr(source, name) for name in _ROUTE}
        return {name: value for name, value in route.items() if value is not None}


def message_of(record: Json, key: str) -> Message:
    """Return the message of a waiting turn from its log record. Invalid members of the route are dropped."""
    stored = record.get("route")
    route = {name: value for name, value in stored.items() if name in _ROUTE} if isinstance(stored, dict) else {}
    known = {name: value for name, value in route.items() if isinstance(value, str) or (name, type(value)) == _NUMBERED}
    return Message(
        text=record["text"],
        source=Inbound(session_key=key, system=record.get("heartbeat") is True, **known),
        images=tuple(image for image in record.get("images") or () if isinstance(image, dict)),
        system=record.get("system"),
    )


def turn_key(name: str) -> str:
    """Return the idempotency key of a turn's message."""
    return f"chat:{name}"


def turn_id_of(session_id: str, name: str) -> str:
    """Return the id of a turn, which is the id of its message's entry."""
    return derived_entry_id(session_id, turn_key(name), 0)


def reply_key(turn_id: str) -> str:
    """Return the idempotency key of a turn's reply."""
    return f"turn:{turn_id}:reply"


def reply_id(session_id: str, turn_id: str) -> str:
    """Return the entry id of a turn's reply."""
    return derived_entry_id(session_id, reply_key(turn_id), 0)


# -- settings of a conversation

Shown = Literal["off", "on", "full", "stream"]
UsageLevel = Literal["off", "tokens", "full"]
QueueMode = Literal["followup", "interrupt"]
Sending = Literal["allow", "deny"]

_VERBOSE: dict[str, Shown] = {"off": "off", "on": "on", "full": "full"}
_REASONING: dict[str, Shown] = {"off": "off", "on": "on", "stream": "stream"}
_USAGE: dict[str, UsageLevel] = {"off": "off", "on": "tokens", "tokens": "tokens", "full": "full"}
_QUEUE: dict[str, QueueMode] = {"interrupt": "interrupt"}
_SENDING: dict[str, Sending] = {"allow": "allow", "deny": "deny"}


class Toggles(NamedTuple):
    """The settings that apply to the turns of a conversation."""

    model: str | None = None
    thinking: str | None = None
    verbose: Shown = "off"
    reasoning: Shown = "off"
    usage: UsageLevel = "off"
    queue: QueueMode = "followup"
    sending: Sending | None = None  # `None`: the send policy decides

    @property
    def is_verbose(self) -> bool:
        """Return whether the user wants notices about what happens inside a turn."""
        return self.verbose != "off"


def toggles_of(entry: Mapping[str, Any]) -> Toggles:
    """Return the settings in a conversation's entry."""
    return Toggles(
        model=model_override_of(entry),
        thinking=_text(entry.get("thinkingLevel")),
        verbose=_VERBOSE.get(_setting(entry, "verboseLevel"), "off"),
        reasoning=_REASONING.get(_setting(entry, "reasoningLevel"), "off"),
        usage=_USAGE.get(_setting(entry, "responseUsage"), "off"),
        queue=queue_mode(entry.get("queueMode")),
        sending=_SENDING.get(_setting(entry, "sendPolicy")),
    )


def model_override_of(entry: Mapping[str, Any]) -> str | None:
    """Return the model that a conversation uses instead of its agent's."""
    provider, model = _text(entry.get("providerOverride")), _text(entry.get("modelOverride"))
    if model is None:
        return None  # a provider without a model
    return model if provider is None else f"{provider}/{model}"


def queue_mode(value: object) -> QueueMode:
    """Return the effective queue mode for a requested one."""
    return _QUEUE.get(value, "followup") if isinstance(value, str) else "followup"


def sending_of(policy: SendPolicy | None, key: str, entry: Mapping[str, Any]) -> Verdict:
    """Return whether replies in a conversation may be delivered, by its own setting and by the policy."""
    return decide_sending(
        policy,
        key,
        override=_SENDING.get(_setting(entry, "sendPolicy")),
        channel=_text(entry.get("channel")),
        chat_type=_text(entry.get("chatType")),
    )


def usage_line(usage: Mapping[str, Any] | None, level: UsageLevel) -> str | None:
    """Return the usage line of a reply, such as `🧮 1.2k in / 340 out · 💵 $0.02`."""
    if level == "off":
        return None
    spent = Answered(0, [])
    spent.take(usage, "", UNDATED)
    line = f"🧮 {_tokens(spent.input)} in / {_tokens(spent.output)} out"
    if level == "tokens":
        return line
    if spent.cache_read or spent.cache_write:
        line += f" · cache {_tokens(spent.cache_read)} read / {_tokens(spent.cache_write)} written"
    return f"{line} · 💵 {UNKNOWN if spent.cost is None else money(spent.cost)}"


def _tokens(count: int | None) -> str:
    return UNKNOWN if count is None else amount(count)


def _setting(entry: Mapping[str, Any], name: str) -> str:
    return _text(entry.get(name)) or ""


def _text(value: object) -> str | None:
    return value.strip() or None if isinstance(value, str) else None
