"""Operations of a chat: send a message, wait for its reply or hear it word by word, stop it, look for it, add something.

    POST /v1/chat/send {"key": "main", "message": "hello"}                   202: it is durable, and will be answered
                       {…, "wait": true}                                     200 with the reply
                       {…, "stream": true}                                   events: turn, delta…, reply

Rules: who goes away while they wait or listen stops nothing; `GET /v1/chat/turn` has the reply later. A message that is sent
again with the same idempotency key is one message. A turn that failed is an answer with `error`, not an error of the request:
what was said is in the session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sessile.errors import Invalid, NotFound
from sessile.gateway.conversations.inbound import Inbound
from sessile.gateway.events import Event
from sessile.gateway.http.sessions import EntryText, KeyText, bound_of, conversation_of
from sessile.gateway.http.streams import Stream, Waiting, frame
from sessile.gateway.http.wire import Answered, Taken, Told, Whole, as_json
from sessile.gateway.turns.turn import Message, Reply, State, Turn

if TYPE_CHECKING:
    from sessile.gateway.conversations.bindings import Bound
    from sessile.gateway.http.problems import App
    from sessile.gateway.service import Gateway

Name = Annotated[str, Meta(min_length=1, max_length=500)]
MessageText = Annotated[str, Meta(max_length=4_000_000)]
IdempotencyKey = Annotated[str, Meta(min_length=1, max_length=200)]

INJECTED = "sessile.note"
_LOOKED_AT = 3  # sessions before the current one in which a turn is looked for


# -- sending


class Sender(Taken, frozen=True):
    """Where a message comes from, if its conversation is to be found by that; what is unknown is left out."""

    agent: Name | None = None
    channel: Name | None = None
    account: Name | None = None
    chat_type: Name | None = None
    peer: Name | None = None
    sender: Name | None = None
    to: Name | None = None
    guild: Name | None = None
    team: Name | None = None
    thread: Name | int | None = None
    is_forum: bool = False
    parent_key: KeyText | None = None
    cron: Name | None = None
    run: Name | None = None
    hook: Name | None = None
    node: Name | None = None
    subagent: Name | None = None
    spawned_by: KeyText | None = None
    subject: Name | None = None
    display_name: Name | None = None
    system: bool = False


class Picture(Taken, frozen=True):
    """An image, base64."""

    data: Annotated[str, Meta(min_length=1, pattern="^[A-Za-z0-9+/]+={0,2}$")]
    mime_type: Annotated[str, Meta(pattern=r"^image/[a-z0-9.+-]{1,40}$")]


class SendBody(Taken, frozen=True):
    """A message. With neither `key` nor `inbound` it belongs to the main conversation."""

    message: MessageText
    key: KeyText | None = None
    inbound: Sender | None = None
    images: Annotated[tuple[Picture, ...], Meta(max_length=20)] = ()
    idempotency_key: IdempotencyKey | None = None
    queue: Literal["followup", "interrupt"] | None = None
    authorised: bool = True
    wait: bool = False
    stream: bool = False


class Replied(Told, frozen=True):
    """How a turn ended. `delivered` is everything that a person is told, as one text."""

    text: str
    delivered: str
    notices: tuple[str, ...]
    remarks: tuple[str, ...]
    reasoning: str | None
    silent: bool
    withheld: str | None
    stop: str
    error: str | None
    entry_id: str | None
    usage: dict[str, Any] | None
    model: str | None


class Sent(Told, frozen=True):
    """A turn, and its reply if it is done. It is `repeated` if the message was sent before."""

    turn: str
    key: str
    session_id: str
    state: State
    repeated: bool
    reply: Replied | None


async def send(gateway: Gateway, body: SendBody) -> object:
    """Say something in a conversation."""
    if body.key is not None and body.inbound is not None:
        raise Invalid("name either a key or where the message comes from", hint="just one of key and inbound")
    if not body.message.strip() and not body.images:
        raise Invalid("the message is empty", hint="say something")
    if body.wait and body.stream:
        raise Invalid("a reply is either waited for or streamed", hint="just one of wait and stream")
    turn = await gateway.turns.send(
        Message(
            text=body.message,
            source=body.key if body.key is not None else _inbound(body.inbound),
            images=tuple({"type": "image", "data": one.data, "mimeType": one.mime_type} for one in body.images),
            idempotency_key=body.idempotency_key,
            authorised=body.authorised,
            queue=body.queue,
        )
    )
    if body.stream:
        return Stream(lambda: _told(turn))
    if body.wait:
        return Waiting(lambda: _waited(turn))
    return Answered(202 if turn.reply is None else 200, sent_of(turn))


def _inbound(sender: Sender | None) -> Inbound:
    return Inbound() if sender is None else Inbound(**msgspec.structs.asdict(sender))


async def _waited(turn: Turn) -> App:
    await turn.wait()
    return Whole(200, as_json(sent_of(turn)))


async def _told(turn: Turn) -> AsyncIterator[bytes]:
    """The events of one turn: that it was taken, its words, and how it ended."""
    yield _event("turn", sent_of(turn))
    async for text in turn.deltas():
        yield _event("delta", {"turn": turn.id, "text": text})
    await turn.wait()
    yield _event("reply", sent_of(turn))


def _event(name: str, data: object) -> bytes:
    return frame(as_json(data).decode("utf-8"), event=name)


def sent_of(turn: Turn) -> Sent:
    """A turn as clients are told of it."""
    return Sent(
        turn=turn.id,
        key=turn.key,
        session_id=turn.session_id,
        state=turn.state,
        repeated=turn.repeated,
        reply=None if turn.reply is None else _replied(turn.reply),
    )


def _replied(reply: Reply) -> Replied:
    return Replied(
        text=reply.text,
        delivered=reply.delivered,
        notices=reply.notices,
        remarks=reply.remarks,
        reasoning=reply.reasoning,
        silent=reply.silent,
        withheld=reply.withheld,
        stop=reply.stop,
        error=reply.error,
        entry_id=reply.entry_id,
        usage=None if reply.usage is None else dict(reply.usage),
        model=reply.model,
    )


# -- turns


class TurnQuery(Taken, frozen=True):
    """Which turn of which conversation."""

    key: KeyText
    turn: EntryText


async def get_turn(gateway: Gateway, query: TurnQuery) -> Sent:
    """How a turn stands, if it runs, waits or ended not long ago."""
    conversation = await gateway.call(conversation_of, gateway, query.key)
    sessions = [conversation.session_id, *(one.session_id for one in conversation.previous[:_LOOKED_AT])]
    for session_id in sessions:
        turn = None if session_id is None else await gateway.turns.find(session_id, query.turn)
        if turn is not None:
            return sent_of(turn)
    raise NotFound(f"there is no turn {query.turn[:80]!r} that is remembered", hint="the history has what was said")


class AbortBody(Taken, frozen=True):
    """Whose turns are stopped; without `turn` all that run or wait."""

    key: KeyText
    turn: EntryText | None = None


class Aborted(Told, frozen=True):
    """The turns that were stopped."""

    key: str
    turns: tuple[str, ...]


async def abort(gateway: Gateway, body: AbortBody) -> Aborted:
    """Stop what runs or waits in a conversation."""
    conversation = await gateway.call(conversation_of, gateway, body.key)
    own = [turn.session_id for turn in gateway.turns.live() if turn.key == conversation.text]
    live = dict.fromkeys(session_id for session_id in (conversation.session_id, *own) if session_id is not None)
    stopped = [turn for session_id in live for turn in await gateway.turns.abort(session_id, body.turn)]
    return Aborted(key=conversation.text, turns=tuple(stopped))


# -- adding something without a turn


class InjectBody(Taken, frozen=True):
    """Something that becomes a part of a conversation without being answered; a note is for the model, too."""

    key: KeyText
    message: Annotated[str, Meta(min_length=1, max_length=4_000_000)]
    role: Literal["assistant", "user", "note"] = "assistant"
    idempotency_key: IdempotencyKey | None = None


class Injected(Told, frozen=True):
    """The entry that was added."""

    key: str
    session_id: str
    entry_id: str
    repeated: bool


async def inject(gateway: Gateway, body: InjectBody) -> Injected:
    """Add something to a conversation that nobody answers."""
    bound = await gateway.call(bound_of, gateway, body.key)
    async with gateway.turns.alone(bound.session_id):
        injected = await gateway.call(_inject, gateway, bound, body)
    gateway.hub.publish(Event(None, bound.session_id, "entry", {"id": injected.entry_id}))
    return injected


def _inject(gateway: Gateway, bound: Bound, body: InjectBody) -> Injected:
    content = [{"type": "text", "text": body.message}]
    if body.role == "note":
        members = {"customType": INJECTED, "content": content, "display": True, "attribution": "user"}
        entry: dict[str, Any] = {"type": "custom_message", **members}
    else:
        message: dict[str, Any] = {"role": body.role, "content": content, "timestamp": gateway.store.now()}
        if body.role == "assistant":
            message |= {"provider": "sessile", "model": "injected", "stopReason": "stop"}
        entry = {"type": "message", "message": message}
    key = None if body.idempotency_key is None else f"inject:{body.idempotency_key}"
    with gateway.opened(bound.path) as session:
        (receipt,) = session.append_many([entry], key=key)
    return Injected(key=bound.text, session_id=bound.session_id, entry_id=receipt.id, repeated=receipt.repeated)
