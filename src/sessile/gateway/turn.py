"""A turn: what somebody says in a conversation, and what is answered.

`Turn` is what everybody holds who waits for the answer; it is told by whoever runs it. Its id is that of the entry with the
user's message, so that it means the same after a restart. Any number may listen to its words, each from the beginning.

All of it lives on the event loop; nothing here runs or stores anything.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, NamedTuple

import anyio
import msgspec

from sessile import Inbound

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
