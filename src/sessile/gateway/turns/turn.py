"""A turn: what somebody says in a conversation, and what is answered.

`Turn` is what everybody holds who waits for the answer; it is told by whoever runs it. Its id is that of the entry with the
user's message, so that it means the same after a restart. Any number may listen to its words, each from the beginning.

All of it lives on the event loop; nothing here runs or stores anything.

A turn while it is run: everything that is known of it besides what those see who wait for it.

What the members of a conversation's entry mean for a turn: the model, how it thinks, what is shown, what waits, what is sent.

    toggles = toggles_of(bound.entry)
    toggles.model or the agent's own                 "provider/model", or a model alone: then the agent's provider is meant
    RunRequest(thinking=toggles.thinking)            as it was set; a runner that does not know the level says so
    sending_of(config.session.sending, key, entry)   whether replies are delivered, and who decides that
    usage_line(reply.usage, toggles.usage)

Rules: `None` means that nothing was set, and the agent's own holds. People edit these members: one of another type, or with a
value that has no meaning, is as if it were not set; only a level of thinking is passed on, because each runner has its own. A
running turn cannot be steered here: every way of queueing but `interrupt` lets messages wait for their turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import anyio
import msgspec

from sessile.core.delivery import SendPolicy, Verdict, decide_sending
from sessile.core.ids import derived_entry_id
from sessile.core.usage import Spent, amount
from sessile.gateway.conversations.inbound import Inbound
from sessile.render.status import UNKNOWN
from sessile.render.wording import money

if TYPE_CHECKING:
    from sessile.gateway.conversations.bindings import Bound
    from sessile.gateway.turns.runners import Answerer, RunRequest


# --- turn

State = Literal["arriving", "queued", "running", "done"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody says: the text, where it comes from, and a name by which it is known when it is sent again."""

    text: str
    source: Inbound | str
    images: tuple[dict[str, Any], ...] = ()
    idempotency_key: str | None = None
    authorised: bool = True  # to give commands
    queue: Literal["followup", "interrupt"] | None = None  # as the conversation says
    system: str | None = None  # instructions for this turn, behind those of the agent
    before: tuple[dict[str, Any], ...] = ()  # entries of what was said elsewhere, for an empty session

    @property
    def is_system(self) -> bool:
        """Whether no person says it, such as a heartbeat."""
        return not isinstance(self.source, str) and self.source.system


class Reply(NamedTuple):
    """How a turn ended. `text` is what may be delivered: nothing if the model stays silent or the send policy holds it back."""

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
    remarks: tuple[str, ...] = ()  # what is said behind the text

    @property
    def delivered(self) -> str:
        """Everything that a person is told, as one text, for those who can show nothing else."""
        told = (*self.notices, self.reasoning, self.text, *self.remarks)
        return "\n\n".join(part for part in told if part)


class Turn:
    """One turn, for those who wait for it."""

    def __init__(self, turn_id: str, session_id: str, key: str, reply: Reply | None = None) -> None:
        self.id = turn_id
        self.session_id = session_id
        self.key = key
        self.state: State = "arriving" if reply is None else "done"
        self.reply = reply
        self.repeated = reply is not None  # it was sent before
        self._refusal: BaseException | None = None
        self._pieces: list[str] = []
        self._news: anyio.Event | None = None
        self._end: anyio.Event | None = None

    # -- for those who wait

    async def accepted(self) -> None:
        """Wait until the user's message is durable; raises what has hindered that."""
        if not await self.is_accepted() and self._refusal is not None:
            raise self._refusal

    async def is_accepted(self) -> bool:
        """Whether the user's message is durable, as soon as that is known."""
        while self.state == "arriving":
            await self._change()
        return self._refusal is None

    async def deltas(self) -> AsyncIterator[str]:
        """The words that may be delivered, from the first one, until the turn is done."""
        told = 0
        while True:
            while told < len(self._pieces):
                yield self._pieces[told]
                told += 1
            if self.reply is not None:
                return
            await self._change()

    async def wait(self) -> Reply:
        """The reply, when the turn is done."""
        while self.reply is None:  # who waits for the end is not woken by every word
            self._end = self._end or anyio.Event()
            await self._end.wait()
        return self.reply

    @property
    def has_spoken(self) -> bool:
        """Whether anything was delivered yet."""
        return bool(self._pieces)

    @property
    def said(self) -> str:
        """What was delivered up to now."""
        return "".join(self._pieces)

    async def _change(self) -> None:
        if self._news is None:
            self._news = anyio.Event()
        await self._news.wait()

    # -- for whoever runs it

    def accept(self) -> None:
        """The user's message is durable."""
        if self.state == "arriving":  # else it runs already
            self.state = "queued"
        self._tell()

    def refuse(self, error: BaseException) -> None:
        """The user's message could not be kept."""
        self._refusal = error
        self.finish(Reply("", "error", error=str(error)))

    def start(self) -> None:
        """It is its turn now."""
        self.state = "running"
        self._tell()

    def say(self, text: str) -> None:
        """Words that may be delivered."""
        self._pieces.append(text)
        self._tell()

    def finish(self, reply: Reply) -> None:
        """There is nothing more to come."""
        self.state = "done"
        self.reply = reply
        self._tell()
        if self._end is not None:
            self._end.set()

    def _tell(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            news.set()


def forget_done(turns: OrderedDict[tuple[str, str], Turn], most: int) -> None:
    """Take the oldest turns out as long as there are too many; one that is not done can be found nowhere else, and stays."""
    for _ in range(len(turns) - most):
        name, turn = turns.popitem(last=False)
        if turn.reply is None:
            turns[name] = turn


# --- job

Json = dict[str, Any]

_ROUTE = ("channel", "to", "account", "thread", "sender")  # of a message: its reply goes back there
_NUMBERED = ("thread", int)


class Due(NamedTuple):
    """What is to be done for the context before the model is asked."""

    notes: bool = False
    compaction: bool = False


NOTHING = Due()


class Job:
    """One turn in the lane of its session. `name` tells it from every other turn of the session, also after a restart."""

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
        self.before: str | None = None  # the entry before the user's message
        self.has_lane = False  # it may begin
        self.begun = False  # the user's message is in the session
        self.answered = False  # the session has a reply already
        self.due: Due = NOTHING  # what has to be done before it is asked
        self.request: RunRequest | None = None  # made as soon as nothing has to be done before
        self.withheld: str | None = None  # why the reply is not delivered
        self.notices: list[str] = []
        self.scope: anyio.CancelScope | None = None
        self.aborted: str | None = None  # why it is to end

    @property
    def key(self) -> str:
        """The key under which the user's message is appended, once however often that is tried."""
        return turn_key(self.name)

    @property
    def session_id(self) -> str:
        return self.bound.session_id

    @property
    def path(self) -> str:
        return self.bound.path

    def abort(self, why: str) -> None:
        """End the answer, now or as soon as it begins."""
        self.aborted = self.aborted or why
        if self.scope is not None:
            self.scope.cancel()

    # -- in the log of turns

    def record(self) -> Json:
        """What a restart has to know to run it: only needed while it waits."""
        message = self.message
        return self.mark() | {
            "text": message.text,
            "images": list(message.images),
            "system": message.system,
            "route": self._route(),
            "heartbeat": message.is_system,
        }

    def mark(self) -> Json:
        """What a restart has to know of a turn that has begun."""
        return {"name": self.name, "key": self.bound.text}

    # -- in the session

    def entry(self, now: int) -> Json:
        """The entry with what the user says, and where it came from: the reply goes back there."""
        content = [{"type": "text", "text": self.message.text}, *self.message.images]
        message = {"role": "user", "content": content, "timestamp": now}
        return {"type": "message", "message": message, "turn": {"key": self.bound.text, **self._route()}}

    def _route(self) -> Json:
        source = self.message.source
        told = {} if isinstance(source, str) else {name: getattr(source, name) for name in _ROUTE}
        return {name: value for name, value in told.items() if value is not None}


def message_of(record: Json, key: str) -> Message:
    """The message of a turn that waited, from what the log has of it; what somebody has spoilt there is left out."""
    told = record.get("route")
    route = {name: value for name, value in told.items() if name in _ROUTE} if isinstance(told, dict) else {}
    known = {name: value for name, value in route.items() if isinstance(value, str) or (name, type(value)) == _NUMBERED}
    return Message(
        text=record["text"],
        source=Inbound(session_key=key, system=record.get("heartbeat") is True, **known),
        images=tuple(image for image in record.get("images") or () if isinstance(image, dict)),
        system=record.get("system"),
    )


def turn_key(name: str) -> str:
    """The key under which the message of a turn is appended."""
    return f"chat:{name}"


def turn_id_of(session_id: str, name: str) -> str:
    """The entry of a turn's message, which is the id of the turn."""
    return derived_entry_id(session_id, turn_key(name), 0)


def reply_key(turn_id: str) -> str:
    """The key under which the reply of a turn is appended, so that it has one."""
    return f"turn:{turn_id}:reply"


def reply_id(session_id: str, turn_id: str) -> str:
    """The entry of a turn's reply."""
    return derived_entry_id(session_id, reply_key(turn_id), 0)


# --- toggles

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
    """What holds for the turns of a conversation."""

    model: str | None = None
    thinking: str | None = None
    verbose: Shown = "off"
    reasoning: Shown = "off"
    usage: UsageLevel = "off"
    queue: QueueMode = "followup"
    sending: Sending | None = None  # the send policy decides

    @property
    def is_verbose(self) -> bool:
        """Whether a person wants to hear what happens inside of a turn."""
        return self.verbose != "off"


def toggles_of(entry: Mapping[str, Any]) -> Toggles:
    """What an entry of the store sets."""
    return Toggles(
        model=model_override_of(entry),
        thinking=_text(entry.get("thinkingLevel")),
        verbose=_VERBOSE.get(_said(entry, "verboseLevel"), "off"),
        reasoning=_REASONING.get(_said(entry, "reasoningLevel"), "off"),
        usage=_USAGE.get(_said(entry, "responseUsage"), "off"),
        queue=queue_mode(entry.get("queueMode")),
        sending=_SENDING.get(_said(entry, "sendPolicy")),
    )


def model_override_of(entry: Mapping[str, Any]) -> str | None:
    """The model that a conversation uses instead of its agent's."""
    provider, model = _text(entry.get("providerOverride")), _text(entry.get("modelOverride"))
    if model is None:
        return None  # a provider alone names no model
    return model if provider is None else f"{provider}/{model}"


def queue_mode(told: object) -> QueueMode:
    """What happens here to messages during a turn, whichever way of queueing was asked for."""
    return _QUEUE.get(told, "followup") if isinstance(told, str) else "followup"


def sending_of(policy: SendPolicy | None, key: str, entry: Mapping[str, Any]) -> Verdict:
    """Whether replies in a conversation may be delivered, by its own word and by the policy."""
    return decide_sending(
        policy,
        key,
        override=_SENDING.get(_said(entry, "sendPolicy")),
        channel=_text(entry.get("channel")),
        chat_type=_text(entry.get("chatType")),
    )


def usage_line(usage: Mapping[str, Any] | None, level: UsageLevel) -> str | None:
    """What is added to a reply about the tokens of its answer, such as `🧮 1.2k in / 340 out · 💵 $0.02`."""
    if level == "off":
        return None
    spent = Spent()
    spent.add(usage, 0)
    line = f"🧮 {_tokens(spent.input)} in / {_tokens(spent.output)} out"
    if level == "tokens":
        return line
    if spent.cache_read or spent.cache_write:
        line += f" · cache {_tokens(spent.cache_read)} read / {_tokens(spent.cache_write)} written"
    return f"{line} · 💵 {UNKNOWN if spent.cost is None else money(spent.cost)}"


def _tokens(count: int | None) -> str:
    return UNKNOWN if count is None else amount(count)


def _said(entry: Mapping[str, Any], name: str) -> str:
    return _text(entry.get(name)) or ""


def _text(value: object) -> str | None:
    return value.strip() or None if isinstance(value, str) else None
