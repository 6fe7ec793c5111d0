"""Chat operations: send a message, wait for its reply or stream it, look up and abort turns, inject messages.

    POST /v1/chat/send {"key": "main", "message": "hello"}        202: the message is durable and will be answered
                       {…, "wait": true}                          200 with the reply
                       {…, "stream": true}                        an event stream: turn, delta…, reply

Rules: a client that disconnects does not stop its turn; `GET /v1/chat/turn` returns the reply later. Messages with the same
idempotency key are one message. A failed turn is a reply with `error`, not an HTTP error: the user's message is in the session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sessile.errors import Invalid, NotFound
from sessile.gateway.conversations.inbound import Inbound
from sessile.gateway.events import Event
from sessile.gateway.http.conversations import EntryText, KeyText, bound_of, conversation_of
from sessile.gateway.http.streams import Stream, Waiting, frame
from sessile.gateway.http.wire import RequestModel, Response, ResponseModel, Result, Routes, as_json
from sessile.gateway.turns.turn import Message, Reply, State, Turn

if TYPE_CHECKING:
    from sessile.gateway.conversations.bindings import Bound
    from sessile.gateway.http.problems import App
    from sessile.gateway.service import Gateway

routes = Routes()

Name = Annotated[str, Meta(min_length=1, max_length=500)]
MessageText = Annotated[str, Meta(max_length=4_000_000)]
IdempotencyKey = Annotated[str, Meta(min_length=1, max_length=200)]

INJECTED = "sessile.note"
_EARLIER_SESSIONS = 3  # earlier sessions in which a turn is looked up


# -- sending


class Sender(RequestModel, frozen=True):
    """The origin of a message, used to find its conversation. Omit what is unknown."""

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


class Picture(RequestModel, frozen=True):
    """An image, base64-encoded."""

    data: Annotated[str, Meta(min_length=1, pattern="^[A-Za-z0-9+/]+={0,2}$")]
    mime_type: Annotated[str, Meta(pattern=r"^image/[a-z0-9.+-]{1,40}$")]


class SendBody(RequestModel, frozen=True):
    """A message. Without `key` and `inbound` it belongs to the main conversation."""

    message: MessageText
    key: KeyText | None = None
    inbound: Sender | None = None
    images: Annotated[tuple[Picture, ...], Meta(max_length=20)] = ()
    idempotency_key: IdempotencyKey | None = None
    queue: Literal["followup", "interrupt"] | None = None
    authorised: bool = True
    wait: bool = False
    stream: bool = False


class Replied(ResponseModel, frozen=True):
    """The result of a turn. `delivered` is everything shown to the user, as one text."""

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


class Sent(ResponseModel, frozen=True):
    """A turn, and its reply if it is done. `repeated` if the message had been sent before."""

    turn: str
    key: str
    session_id: str
    state: State
    repeated: bool
    reply: Replied | None


@routes.post("/v1/chat/send", body=SendBody, answers={200: Sent, 202: Sent}, problems=(404, 409), streams=True)
async def send(gateway: Gateway, body: SendBody) -> object:
    """Send a message.

    Returns 202 as soon as the message is durable, 200 with the reply if `wait` is set, or an event stream.
    """
    if body.key is not None and body.inbound is not None:
        raise Invalid("key and inbound exclude each other", hint="pass one of them")
    if not body.message.strip() and not body.images:
        raise Invalid("message is empty", hint="pass a message or images")
    if body.wait and body.stream:
        raise Invalid("wait and stream exclude each other", hint="set one of them")
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
        return Stream(lambda: _events(turn))
    if body.wait:
        return Waiting(lambda: _reply(turn))
    return Result(202 if turn.reply is None else 200, sent_of(turn))


def _inbound(sender: Sender | None) -> Inbound:
    return Inbound() if sender is None else Inbound(**msgspec.structs.asdict(sender))


async def _reply(turn: Turn) -> App:
    await turn.wait()
    return Response(200, as_json(sent_of(turn)))


async def _events(turn: Turn) -> AsyncIterator[bytes]:
    """Yield the events of a turn: its acceptance, its text, its reply."""
    yield _event("turn", sent_of(turn))
    async for text in turn.deltas():
        yield _event("delta", {"turn": turn.id, "text": text})
    await turn.wait()
    yield _event("reply", sent_of(turn))


def _event(name: str, data: object) -> bytes:
    return frame(as_json(data).decode("utf-8"), event=name)


def sent_of(turn: Turn) -> Sent:
    """Return the document of a turn."""
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


class TurnQuery(RequestModel, frozen=True):
    """The conversation, and the turn."""

    key: KeyText
    turn: EntryText


@routes.get("/v1/chat/turn", query=TurnQuery, answers={200: Sent}, problems=(404,))
async def get_turn(gateway: Gateway, query: TurnQuery) -> Sent:
    """Return a turn: running, waiting or done."""
    conversation = await gateway.call(conversation_of, gateway, query.key)
    sessions = [conversation.session_id, *(one.session_id for one in conversation.previous[:_EARLIER_SESSIONS])]
    for session_id in sessions:
        turn = None if session_id is None else await gateway.turns.find(session_id, query.turn)
        if turn is not None:
            return sent_of(turn)
    raise NotFound(f"turn not found: {query.turn[:80]!r}", hint="read the messages with GET /v1/session/history")


class AbortBody(RequestModel, frozen=True):
    """The conversation whose turns to abort. Without `turn`, all running and waiting turns."""

    key: KeyText
    turn: EntryText | None = None


class Aborted(ResponseModel, frozen=True):
    """The turns that were aborted."""

    key: str
    turns: tuple[str, ...]


@routes.post("/v1/chat/abort", body=AbortBody, answers={200: Aborted}, problems=(404,))
async def abort(gateway: Gateway, body: AbortBody) -> Aborted:
    """Abort running and waiting turns of a conversation."""
    conversation = await gateway.call(conversation_of, gateway, body.key)
    own = [turn.session_id for turn in gateway.turns.live() if turn.key == conversation.text]
    live = dict.fromkeys(session_id for session_id in (conversation.session_id, *own) if session_id is not None)
    aborted = [turn for session_id in live for turn in await gateway.turns.abort(session_id, body.turn)]
    return Aborted(key=conversation.text, turns=tuple(aborted))


# -- injecting


class InjectBody(RequestModel, frozen=True):
    """A message to append without running a turn. A note is part of the model's context, too."""

    key: KeyText
    message: Annotated[str, Meta(min_length=1, max_length=4_000_000)]
    role: Literal["assistant", "user", "note"] = "assistant"
    idempotency_key: IdempotencyKey | None = None


class Injected(ResponseModel, frozen=True):
    """The entry that was appended."""

    key: str
    session_id: str
    entry_id: str
    repeated: bool


@routes.post("/v1/chat/inject", body=InjectBody, answers={200: Injected}, problems=(404, 409))
async def inject(gateway: Gateway, body: InjectBody) -> Injected:
    """Append a message to a conversation without running a turn."""
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
