"""OpenAI's chat completions, so that existing clients just work, with sessions that the gateway keeps.

    header x-sessile-session-key (or x-openclaw-session-key)     the conversation of that key
    else "user": "ann"                                           the conversation of that user
    else                                                         a new conversation; the answer's header says which

Rules: the last message of a request is what is new, and must be the user's. Of a session that has said something already, the
messages before it are known; in a new one they are stored first, so that clients which send everything each time are understood.
System messages are instructions for this turn, behind the agent's own. The model `sessile/<agent>` (or `openclaw:<agent>`) asks
for an agent; any other name is echoed, and the default agent answers with its own model. Parameters of sampling are the agent's
business and have no effect; what would change the shape of the answer (tools, several choices) is refused.

Two users whose names differ never share a session: a name that a key cannot hold as it is becomes a hash.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sessile.core.ids import new_session_id, sha256
from sessile.errors import Invalid, SessileError, TooMany
from sessile.gateway.http.problems import tellable
from sessile.gateway.http.streams import Stream, Waiting, frame
from sessile.gateway.http.wire import Taken, Told, Whole, as_json
from sessile.gateway.turns.turn import Message, Reply, Turn

if TYPE_CHECKING:
    from sessile.gateway.http.problems import App
    from sessile.gateway.service import Gateway

Json = dict[str, Any]

OWNER = "sessile"
_PLAIN_USER = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,63}")
_AGENT_MODEL = re.compile(r"(?:sessile|openclaw|agent)[/:]([A-Za-z0-9_-]{1,64})")
_DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]+);base64,([A-Za-z0-9+/]+={0,2})")
_REASONS = {"length": "length"}  # all else has come to its end
_KINDS = {401: "authentication_error", 404: "not_found_error", 409: "conflict_error", 429: "rate_limit_error"}


# -- requests


class CompletionHeaders(
    Taken,
    frozen=True,
    rename={
        "session_key": "x-sessile-session-key",
        "older_session_key": "x-openclaw-session-key",
        "idempotency_key": "idempotency-key",
    },
):
    """The conversation, and a name by which a request is known when it is sent again."""

    session_key: Annotated[str, Meta(min_length=1, max_length=1_000)] | None = None
    older_session_key: Annotated[str, Meta(min_length=1, max_length=1_000)] | None = None
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as OpenAI has it; members that are not known have no effect."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream tells besides the words."""

    include_usage: bool | None = None


class CompletionBody(msgspec.Struct, frozen=True, kw_only=True):
    """A request as OpenAI has it; members that are not known have no effect."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=10_000)]
    model: Annotated[str, Meta(min_length=1, max_length=200)] = OWNER
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Meta(max_length=1_000)] | None = None
    n: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None


# -- answers


class Said(Told, frozen=True, rename=None):
    """The words of the answer."""

    role: Literal["assistant"]
    content: str


class Choice(Told, frozen=True, rename=None):
    """The one answer."""

    index: int
    message: Said
    finish_reason: str


class Tokens(Told, frozen=True, rename=None):
    """What the answer used."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(Told, frozen=True, rename=None):
    """An answer as OpenAI has it; `usage` is `None` if nobody told."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Tokens | None


class Failure(Told, frozen=True, rename=None):
    """What went wrong, as OpenAI has it."""

    message: str
    type: str
    param: str | None
    code: str | None


class Failed(Told, frozen=True, rename=None):
    """An error as OpenAI has it."""

    error: Failure


class Model(Told, frozen=True, rename=None):
    """Somebody who answers."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Told, frozen=True, rename=None):
    """All who answer."""

    object: Literal["list"]
    data: tuple[Model, ...]


async def models(gateway: Gateway) -> ModelList:
    """The agents, as models: the default one under the gateway's own name, too."""
    configured = [agent.id.lower() for agent in gateway.config.agents.list]
    spoken_to = await gateway.call(gateway.conversations.agents)
    agents = dict.fromkeys([gateway.config.agents.default_id, *configured, *spoken_to])
    names = [OWNER, *(name for agent in agents if _AGENT_MODEL.fullmatch(name := f"{OWNER}/{agent}"))]
    created = gateway.started_at // 1000
    return ModelList(
        object="list",
        data=tuple(Model(id=name, object="model", created=created, owned_by=OWNER) for name in names),
    )


async def complete(gateway: Gateway, headers: CompletionHeaders, body: CompletionBody) -> App:
    """Answer the last message of a conversation."""
    _check(body)
    key = _key(gateway, headers, body)
    turn = await gateway.turns.send(_message(gateway, key, headers, body))
    named = [(b"x-sessile-session-key", turn.key.encode("utf-8"))]
    if body.stream:
        return Stream(lambda: _stream(gateway, turn, body), named)
    return Waiting(lambda: _whole(gateway, turn, body))


def failed(error: SessileError) -> Whole:
    """An error in OpenAI's shape."""
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    hint = f" ({error.hint})" if error.hint else ""
    headers = {"retry-after": "1"} if isinstance(error, TooMany) else {}
    return _failure(error.status, tellable(f"{error.message}{hint}", error.path), kind, headers)


def _failure(status: int, message: str, kind: str, headers: dict[str, str]) -> Whole:
    body = as_json(Failed(error=Failure(message=message, type=kind, param=None, code=None)))
    return Whole(status, body, headers=headers)


# -- from a request to a message


def _check(body: CompletionBody) -> None:
    if body.n not in (None, 1):
        raise Invalid("n is 1: a conversation has one answer", hint="ask again for another one")
    if body.tools or body.functions:
        raise Invalid("tools of a client are not called here", hint="leave tools and functions out")
    if body.messages[-1].role != "user":
        raise Invalid("the last message must be the user's", hint="the session knows what was said before")


def _key(gateway: Gateway, headers: CompletionHeaders, body: CompletionBody) -> str:
    named = headers.session_key or headers.older_session_key
    if named is not None:
        return named
    asked = _AGENT_MODEL.fullmatch(body.model)
    agent = gateway.config.agents.default_id if asked is None else asked[1]
    if body.user:
        user = body.user if _PLAIN_USER.fullmatch(body.user) else f"~{_hash(body.user)[:40]}"
        return f"agent:{agent}:openai-user:{user}"
    if headers.idempotency_key is not None:  # sent again, it must find the conversation that it began
        digest = _hash(headers.idempotency_key)
        return f"agent:{agent}:openai:{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
    return f"agent:{agent}:openai:{new_session_id(gateway.store.now(), gateway.store.random)}"


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _message(gateway: Gateway, key: str, headers: CompletionHeaders, body: CompletionBody) -> Message:
    *earlier, last = body.messages
    content = _content(last.content)
    text = "\n".join(block["text"] for block in content if block["type"] == "text")
    images = tuple(block for block in content if block["type"] == "image")
    if not text.strip() and not images:
        raise Invalid("the message is empty", hint="say something")
    system = [_joined(one.content) for one in body.messages if one.role in ("system", "developer")]
    now = gateway.store.now()
    return Message(
        text=text,
        source=key,
        images=images,
        idempotency_key=headers.idempotency_key,
        system="\n\n".join(part for part in system if part) or None,
        before=tuple(entry for message in earlier if (entry := _entry(message, now)) is not None),
    )


def _content(content: str | list[Json] | None) -> list[Json]:
    """A content as entries hold it; what cannot be kept is refused."""
    if content is None or isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [_block(block) for block in content]


def _block(block: Json) -> Json:
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    if kind == "image_url":
        image = block.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        match = _DATA_URL.fullmatch(url) if isinstance(url, str) else None
        if match is None:
            raise Invalid("an image is sent as a data URL", hint="data:image/png;base64,…; nothing is fetched")
        return {"type": "image", "data": match[2], "mimeType": match[1]}
    raise Invalid(f"a content of type {str(kind)[:40]!r} cannot be kept", hint="use text and image_url")


def _joined(content: str | list[Json] | None) -> str:
    return "\n".join(block["text"] for block in _content(content) if block["type"] == "text")


# -- what was said before


def _entry(message: ChatMessage, now: int) -> Json | None:
    """The entry of a message that a client says was said; instructions are none."""
    if message.role in ("system", "developer"):
        return None
    content = _content(message.content)
    if message.role == "user":
        told: Json = {"role": "user", "content": content, "timestamp": now}
    elif message.role == "assistant":
        calls = [_call(call) for call in message.tool_calls or ()]
        stop = "toolUse" if calls else "stop"
        told = {"role": "assistant", "content": [*content, *calls], "provider": "openai", "model": "client"}
        told |= {"stopReason": stop, "timestamp": now}
    else:
        told = {"role": "toolResult", "toolCallId": message.tool_call_id or "", "toolName": message.name or "tool"}
        told |= {"content": content, "isError": False, "timestamp": now}
    return {"type": "message", "message": told}


def _call(call: Json) -> Json:
    function = call.get("function")
    told = function if isinstance(function, dict) else {}
    try:
        arguments = json.loads(str(told.get("arguments") or "{}"))
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {"arguments": told.get("arguments")}
    return {
        "type": "toolCall",
        "id": str(call.get("id") or ""),
        "name": str(told.get("name") or "tool"),
        "arguments": arguments,
    }


# -- from a reply to an answer


async def _whole(gateway: Gateway, turn: Turn, body: CompletionBody) -> App:
    reply = await turn.wait()
    headers = {"x-sessile-session-key": turn.key}
    if reply.stop == "error":
        # The client must not try again by itself: what was said is in the session already.
        return _failure(502, reply.error or "the model failed", "server_error", {**headers, "x-should-retry": "false"})
    completion = Completion(
        id=f"chatcmpl-{turn.id}",
        object="chat.completion",
        created=gateway.store.now() // 1000,
        model=body.model,
        choices=(
            Choice(index=0, message=Said(role="assistant", content=reply.delivered), finish_reason=_reason(reply)),
        ),
        usage=_tokens(reply),
    )
    return Whole(200, as_json(completion), headers=headers)


async def _stream(gateway: Gateway, turn: Turn, body: CompletionBody) -> AsyncIterator[bytes]:
    created = gateway.store.now() // 1000

    def chunk(delta: Json | None, reason: str | None = None, **more: Any) -> bytes:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
        told = {"id": f"chatcmpl-{turn.id}", "object": "chat.completion.chunk", "created": created}
        return frame(as_json({**told, "model": body.model, "choices": choices, **more}).decode("utf-8"))

    yield chunk({"role": "assistant", "content": ""})
    said = ""
    async for text in turn.deltas():
        said += text
        yield chunk({"content": text})
    reply = await turn.wait()
    if reply.stop == "error":
        failure = Failure(message=reply.error or "the model failed", type="server_error", param=None, code=None)
        yield frame(as_json(Failed(error=failure)).decode("utf-8"))
        return
    if rest := _rest(reply, said):
        yield chunk({"content": rest})
    yield chunk({}, _reason(reply))
    if body.stream_options is not None and body.stream_options.include_usage:
        yield chunk(None, usage=_tokens(reply))
    yield frame("[DONE]")


def _rest(reply: Reply, said: str) -> str:
    """What a person is told besides the words that were streamed."""
    if not said:
        return reply.delivered
    others = [part for part in (*reply.notices, reply.reasoning, *reply.remarks) if part]
    return "".join(f"\n\n{part}" for part in others)


def _reason(reply: Reply) -> str:
    return _REASONS.get(reply.stop, "stop")


def _tokens(reply: Reply) -> Tokens | None:
    used = reply.usage or {}
    asked = [used.get(name) for name in ("input", "cacheRead", "cacheWrite")]
    prompt = sum(number for number in asked if isinstance(number, int))
    said = used.get("output")
    if not isinstance(said, int) or not any(isinstance(number, int) for number in asked):
        return None
    return Tokens(prompt_tokens=prompt, completion_tokens=said, total_tokens=prompt + said)
