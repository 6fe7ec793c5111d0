"""A turn while it is run: everything that is known of it besides what those see who wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sessile import Inbound
from sessile.core.ids import derived_entry_id
from sessile.gateway.turn import Message, Turn

if TYPE_CHECKING:
    import anyio

    from sessile import Bound
    from sessile.gateway.answerers import Answerer
    from sessile.gateway.runners import RunRequest
    from sessile.gateway.toggles import Toggles

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
