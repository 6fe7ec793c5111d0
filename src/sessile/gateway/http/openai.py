"""OpenAI's chat completions, for existing clients, with sessions kept by the gateway.

    header x-sessile-session-key (or x-openclaw-session-key)     the conversation with that key
    else "user": "ann"                                           the conversation of that user
    else                                                         a new conversation, named in the response header

Rules:
- The last message of a request is the new one, and must be a user message. Earlier messages are stored only if the
  session is empty, because clients send the whole conversation every time.
- System messages are instructions for this turn, appended to those of the agent.
- The model `sessile/<agent>` (or `openclaw:<agent>`) selects an agent. Any other name is echoed, and the default agent
  answers with its own model.
- Sampling parameters have no effect. Options that would change the shape of the response (tools, several choices) are
  rejected.
- Different users never share a session: a user name that a key cannot contain is replaced by its hash.
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
from sessile.gateway.http.problems import public_text
from sessile.gateway.http.streams import Stream, Waiting, frame
from sessile.gateway.http.wire import RequestModel, Response, ResponseModel, Routes, as_json
from sessile.gateway.turns.turn import Message, Reply, Turn

if TYPE_CHECKING:
    from sessile.gateway.http.problems import App
    from sessile.gateway.service import Gateway

Json = dict[str, Any]

routes = Routes()

OWNER = "sessile"
_PLAIN_USER = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,63}")
_AGENT_MODEL = re.compile(r"(?:sessile|openclaw|agent)[/:]([A-Za-z0-9_-]{1,64})")
_DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]+);base64,([A-Za-z0-9+/]+={0,2})")
_REASONS = {"length": "length"}  # any other stop reason is "stop"
_KINDS = {401: "authentication_error", 404: "not_found_error", 409: "conflict_error", 429: "rate_limit_error"}


# -- requests


class CompletionHeaders(
    RequestModel,
    frozen=True,
    rename={
        "session_key": "x-sessile-session-key",
        "older_session_key": "x-openclaw-session-key",
        "idempotency_key": "idempotency-key",
    },
):
    """The conversation, and a key that identifies a repeated request."""

    session_key: Annotated[str, Meta(min_length=1, max_length=1_000)] | None = None
    older_session_key: Annotated[str, Meta(min_length=1, max_length=1_000)] | None = None
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in OpenAI's format. Unknown members are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a stream."""

    include_usage: bool | None = None


class CompletionBody(msgspec.Struct, frozen=True, kw_only=True):
    """A request in OpenAI's format. Unknown members are ignored."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=10_000)]
    model: Annotated[str, Meta(min_length=1, max_length=200)] = OWNER
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Meta(max_length=1_000)] | None = None
    n: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None


# -- answers


class Said(ResponseModel, frozen=True, rename=None):
    """The message of a choice."""

    role: Literal["assistant"]
    content: str


class Choice(ResponseModel, frozen=True, rename=None):
    """The one choice."""

    index: int
    message: Said
    finish_reason: str


class Tokens(ResponseModel, frozen=True, rename=None):
    """Token counts of a completion."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(ResponseModel, frozen=True, rename=None):
    """A completion in OpenAI's format. `usage` is `null` if unknown."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Tokens | None


class Failure(ResponseModel, frozen=True, rename=None):
    """An error in OpenAI's format."""

    message: str
    type: str
    param: str | None
    code: str | None


class Failed(ResponseModel, frozen=True, rename=None):
    """An error response in OpenAI's format."""

    error: Failure


class Model(ResponseModel, frozen=True, rename=None):
    """An agent, as a model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(ResponseModel, frozen=True, rename=None):
    """All agents, as models."""

    object: Literal["list"]
    data: tuple[Model, ...]


# -- operations


def failed(error: SessileError) -> Response:
    """Return the response of an error in OpenAI's format."""
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    hint = f" ({error.hint})" if error.hint else ""
    headers = {"retry-after": "1"} if isinstance(error, TooMany) else {}
    return _failure(error.status, public_text(f"{error.message}{hint}", error.path), kind, headers)


def _failure(status: int, message: str, kind: str, headers: dict[str, str]) -> Response:
    body = as_json(Failed(error=Failure(message=message, type=kind, param=None, code=None)))
    return Response(status, body, headers=headers)


@routes.get("/v1/models", answers={200: ModelList})
async def models(gateway: Gateway) -> ModelList:
    """List the agents as models."""
    configured = [agent.id.lower() for agent in gateway.config.agents.list]
    in_use = await gateway.call(gateway.conversations.agents)
    agents = dict.fromkeys([gateway.config.agents.default_id, *configured, *in_use])
    names = [OWNER, *(name for agent in agents if _AGENT_MODEL.fullmatch(name := f"{OWNER}/{agent}"))]
    created = gateway.started_at // 1000
    return ModelList(
        object="list",
        data=tuple(Model(id=name, object="model", created=created, owned_by=OWNER) for name in names),
    )


@routes.post(
    "/v1/chat/completions",
    headers=CompletionHeaders,
    body=CompletionBody,
    answers={200: Completion},
    problems=(404, 409, 502),
    streams=True,
    failure=failed,
    failure_type=Failed,
)
async def complete(gateway: Gateway, headers: CompletionHeaders, body: CompletionBody) -> App:
    """Create a chat completion: answer the last message of a conversation, as a stream if requested."""
    _check(body)
    key = _key(gateway, headers, body)
    turn = await gateway.turns.send(_message(gateway, key, headers, body))
    named = [(b"x-sessile-session-key", turn.key.encode("utf-8"))]
    if body.stream:
        return Stream(lambda: _stream(gateway, turn, body), named)
    return Waiting(lambda: _whole(gateway, turn, body))


# -- from a request to a message


def _check(body: CompletionBody) -> None:
    if body.n not in (None, 1):
        raise Invalid("n must be 1", hint="send another request for another answer")
    if body.tools or body.functions:
        raise Invalid("client-side tools are not supported", hint="omit tools and functions")
    if body.messages[-1].role != "user":
        raise Invalid("the last message must have the role 'user'", hint="earlier messages are in the session already")


def _key(gateway: Gateway, headers: CompletionHeaders, body: CompletionBody) -> str:
    named = headers.session_key or headers.older_session_key
    if named is not None:
        return named
    match = _AGENT_MODEL.fullmatch(body.model)
    agent = gateway.config.agents.default_id if match is None else match[1]
    if body.user:
        user = body.user if _PLAIN_USER.fullmatch(body.user) else f"~{_hash(body.user)[:40]}"
        return f"agent:{agent}:openai-user:{user}"
    if headers.idempotency_key is not None:  # a retry must find the conversation that it started
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
        raise Invalid("the last message is empty", hint="pass text or an image")
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
    """Return content blocks as entries hold them. Raise for unsupported blocks."""
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
            raise Invalid("images must be data URLs", hint="use data:image/png;base64,…; URLs are not fetched")
        return {"type": "image", "data": match[2], "mimeType": match[1]}
    raise Invalid(f"content of type {str(kind)[:40]!r} is not supported", hint="use text and image_url")


def _joined(content: str | list[Json] | None) -> str:
    return "\n".join(block["text"] for block in _content(content) if block["type"] == "text")


# -- earlier messages


def _entry(message: ChatMessage, now: int) -> Json | None:
    """Return the entry of an earlier message; `None` for instructions."""
    if message.role in ("system", "developer"):
        return None
    content = _content(message.content)
    if message.role == "user":
        entry: Json = {"role": "user", "content": content, "timestamp": now}
    elif message.role == "assistant":
        calls = [_call(call) for call in message.tool_calls or ()]
        stop = "toolUse" if calls else "stop"
        entry = {"role": "assistant", "content": [*content, *calls], "provider": "openai", "model": "client"}
        entry |= {"stopReason": stop, "timestamp": now}
    else:
        entry = {"role": "toolResult", "toolCallId": message.tool_call_id or "", "toolName": message.name or "tool"}
        entry |= {"content": content, "isError": False, "timestamp": now}
    return {"type": "message", "message": entry}


def _call(call: Json) -> Json:
    function = call.get("function")
    called = function if isinstance(function, dict) else {}
    try:
        arguments = json.loads(str(called.get("arguments") or "{}"))
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {"arguments": called.get("arguments")}
    return {
        "type": "toolCall",
        "id": str(call.get("id") or ""),
        "name": str(called.get("name") or "tool"),
        "arguments": arguments,
    }


# -- from a reply to a response


async def _whole(gateway: Gateway, turn: Turn, body: CompletionBody) -> App:
    reply = await turn.wait()
    headers = {"x-sessile-session-key": turn.key}
    if reply.stop == "error":
        # The client must not retry by itself: the message is in the session already.
        return _failure(
            502, reply.error or "the model failed to answer", "server_error", {**headers, "x-should-retry": "false"}
        )
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
    return Response(200, as_json(completion), headers=headers)


async def _stream(gateway: Gateway, turn: Turn, body: CompletionBody) -> AsyncIterator[bytes]:
    created = gateway.store.now() // 1000

    def chunk(delta: Json | None, reason: str | None = None, **more: Any) -> bytes:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
        base = {"id": f"chatcmpl-{turn.id}", "object": "chat.completion.chunk", "created": created}
        return frame(as_json({**base, "model": body.model, "choices": choices, **more}).decode("utf-8"))

    yield chunk({"role": "assistant", "content": ""})
    text = ""
    async for delta in turn.deltas():
        text += delta
        yield chunk({"content": delta})
    reply = await turn.wait()
    if reply.stop == "error":
        failure = Failure(
            message=reply.error or "the model failed to answer", type="server_error", param=None, code=None
        )
        yield frame(as_json(Failed(error=failure)).decode("utf-8"))
        return
    if rest := _rest(reply, text):
        yield chunk({"content": rest})
    yield chunk({}, _reason(reply))
    if body.stream_options is not None and body.stream_options.include_usage:
        yield chunk(None, usage=_tokens(reply))
    yield frame("[DONE]")


def _rest(reply: Reply, streamed: str) -> str:
    """Return what is shown to the user besides the streamed text."""
    if not streamed:
        return reply.delivered
    others = [part for part in (*reply.notices, reply.reasoning, *reply.remarks) if part]
    return "".join(f"\n\n{part}" for part in others)


def _reason(reply: Reply) -> str:
    return _REASONS.get(reply.stop, "stop")


def _tokens(reply: Reply) -> Tokens | None:
    used = reply.usage or {}
    counts = [used.get(name) for name in ("input", "cacheRead", "cacheWrite")]
    prompt = sum(number for number in counts if isinstance(number, int))
    output = used.get("output")
    if not isinstance(output, int) or not any(isinstance(number, int) for number in counts):
        return None
    return Tokens(prompt_tokens=prompt, completion_tokens=output, total_tokens=prompt + output)
