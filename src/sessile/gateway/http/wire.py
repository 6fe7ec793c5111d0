"""HTTP operations: how they are declared, how a request becomes arguments, how a result becomes a response, and the
OpenAPI document.

    routes = Routes()

    @routes.get("/v1/session", query=OneKey, answers={200: Detail}, problems=(404,))
    async def get_conversation(gateway: Gateway, query: OneKey) -> Detail:
        '''Return a conversation.'''

A handler is called with the gateway and with the parts that the operation declares, in this order: query, headers,
body. It returns a value of the type declared for 200, a `Result` with another status, or an ASGI response. The first
paragraph of its docstring is the summary in the OpenAPI document.

Rules:
- Unknown names in a query or body are rejected. Numbers and booleans in a query are written as in JSON.
- A query parameter whose type is a tuple may be repeated; any other parameter may occur once.
- Queries and headers must be UTF-8. Invalid bytes are rejected, not repaired.

This module knows nothing about sessions or the server.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple, TypedDict, TypeVar, Unpack, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec

from sessile.core.codec import encode_plain
from sessile.errors import Invalid, InvalidEntry, InvalidQuery, SessileError
from sessile.gateway.http.problems import App, Receive, Scope, Send

Handler = Callable[..., Awaitable[object]]
H = TypeVar("H", bound=Handler)
Json = dict[str, Any]

JSON = "application/json"
PROBLEM_JSON = "application/problem+json"
EVENT_STREAM = "text/event-stream"

_HINT = "see GET /v1/openapi.json"
_MAX_FIELDS = 100  # in a query


class RequestModel(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of queries, headers and bodies. Unknown members are rejected."""


class ResponseModel(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of response documents."""


# -- declaring operations


class Operation(NamedTuple):
    """One operation.

    `answers` are types by status, `problems` the error statuses besides those that every operation may return.
    """

    method: str
    path: str
    summary: str
    handler: Handler
    query: type[msgspec.Struct] | None = None
    headers: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    answers: Mapping[int, Any] = {}
    problems: tuple[int, ...] = ()
    streams: bool = False  # a 200 response is, or may be, an event stream
    media_type: str = JSON  # of answers
    media_types: tuple[str, ...] = ()  # of answers that may have one of several types
    is_open: bool = False  # no token is required
    failure: Callable[[SessileError], App] | None = None  # makes the error response, if it is not a problem document
    failure_type: type[msgspec.Struct] | None = None


class Options(TypedDict, total=False):
    """The optional members of an `Operation`."""

    query: type[msgspec.Struct]
    headers: type[msgspec.Struct]
    body: type[msgspec.Struct]
    answers: Mapping[int, Any]
    problems: tuple[int, ...]
    streams: bool
    media_type: str
    media_types: tuple[str, ...]
    is_open: bool
    failure: Callable[[SessileError], App]
    failure_type: type[msgspec.Struct]


class Routes:
    """The operations of one module, in the order of their declaration."""

    def __init__(self) -> None:
        self._operations: list[Operation] = []

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations)

    def get(self, path: str, **options: Unpack[Options]) -> Callable[[H], H]:
        """Declare the decorated handler as a GET operation."""
        return self._declare("GET", path, options)

    def post(self, path: str, **options: Unpack[Options]) -> Callable[[H], H]:
        """Declare the decorated handler as a POST operation."""
        return self._declare("POST", path, options)

    def patch(self, path: str, **options: Unpack[Options]) -> Callable[[H], H]:
        """Declare the decorated handler as a PATCH operation."""
        return self._declare("PATCH", path, options)

    def delete(self, path: str, **options: Unpack[Options]) -> Callable[[H], H]:
        """Declare the decorated handler as a DELETE operation."""
        return self._declare("DELETE", path, options)

    def _declare(self, method: str, path: str, options: Options) -> Callable[[H], H]:
        def declare(handler: H) -> H:
            summary = " ".join((handler.__doc__ or "").partition("\n\n")[0].split())
            self._operations.append(Operation(method, path, summary, handler, **options))
            return handler

        return declare


# -- from a request to arguments


async def arguments(operation: Operation, scope: Scope, receive: Receive) -> list[object]:
    """Return the arguments of an operation's handler, without the gateway."""
    found: list[object] = []
    if operation.query is not None:
        found.append(_read_query(operation.query, scope.get("query_string", b"")))
    elif scope.get("query_string") and not operation.is_open:
        raise InvalidQuery("this operation has no query parameters", hint=_HINT)
    if operation.headers is not None:
        found.append(_read_headers(operation.headers, scope["headers"]))
    if operation.body is not None:
        found.append(_read_body(operation.body, (await receive()).get("body", b"")))
    return found


def _read_query(model: type[msgspec.Struct], query: bytes) -> msgspec.Struct:
    repeatable = _repeatable(model)
    values: dict[str, Any] = {}
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS, separator="&"
        )
    except ValueError as error:  # includes UnicodeDecodeError
        raise InvalidQuery("invalid query string", hint="encode it as UTF-8, percent-encoded") from error
    for name, value in pairs:
        if name in repeatable:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InvalidQuery(f"query parameter {name[:80]!r} is repeated", hint="send it once")
        else:
            values[name] = value
    found = _converted(values, model, "query")
    for field in msgspec.structs.fields(model):
        if field.encode_name in values and getattr(found, field.name) is None:
            raise InvalidQuery(f"query parameter {field.encode_name} must not be null", hint="omit it instead")
    return found


def _read_headers(model: type[msgspec.Struct], headers: list[tuple[bytes, bytes]]) -> msgspec.Struct:
    names = _names(model)
    values: dict[str, str] = {}
    for raw_name, raw in headers:
        name = raw_name.decode("latin-1").lower()
        if name in names:
            if name in values:
                raise Invalid(f"header {name} is repeated", hint="send it once")
            try:
                values[name] = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise Invalid(f"header {name} is not valid UTF-8", hint="encode it as UTF-8") from error
    return _converted(values, model, "headers")


def _converted(values: Mapping[str, Any], model: type[msgspec.Struct], part: str) -> msgspec.Struct:
    try:
        return msgspec.convert(values, model, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidQuery(f"invalid {part}: {error}", hint=_HINT) from error


def _read_body(model: type[msgspec.Struct], body: bytes) -> msgspec.Struct:
    try:
        return msgspec.json.decode(body, type=model)
    except msgspec.ValidationError as error:
        raise Invalid(f"invalid request body: {error}", hint=_HINT) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid("the request body is not valid JSON", hint="send one JSON object, encoded as UTF-8") from error


@cache
def _names(model: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(model))


@cache
def _repeatable(model: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(model) if _is_tuple(field.type))


def _is_tuple(kind: Any) -> bool:
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return get_origin(bare) is tuple


# -- from a result to a response


class Result(NamedTuple):
    """A value with a status other than 200, or with headers."""

    status: int
    value: object
    headers: Mapping[str, str] = {}


class Response:
    """A complete ASGI response: JSON, or bytes of any media type."""

    def __init__(
        self, status: int, body: bytes, media_type: str = JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = status
        self.body = body
        all_headers = {"content-type": media_type, "content-length": str(len(body)), **(headers or {})}
        self._headers = [(name.encode("latin-1"), value.encode("utf-8")) for name, value in all_headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self._headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else self.body})


def response_of(result: object) -> App:
    """Return the response for a handler's result."""
    if isinstance(result, Result):
        return Response(result.status, as_json(result.value), headers=result.headers)
    if callable(result):
        return result
    return Response(200, as_json(result))


def as_json(value: object) -> bytes:
    """Encode a value. What JSON cannot hold is written as JavaScript would: lone surrogates escaped, infinities as null."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError):
        plain = msgspec.to_builtins(value)
        try:
            return encode_plain(plain)
        except InvalidEntry:
            return encode_plain(json.loads(json.dumps(plain), parse_constant=lambda _: None))


# -- the OpenAPI document

_GUARD_STATUSES = (401, 403, 408, 429, 431)  # any request may be rejected by a guard
_ANY_STATUSES = (400, 422, 507)
_BODY_STATUSES = (413, 415)
_REF = "#/components/schemas/{name}"


class Problem(ResponseModel, frozen=True):
    """What went wrong, and what to do about it (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    hint: str | None


def document(operations: Sequence[Operation], version: str) -> Json:
    """Return the OpenAPI document of some operations."""
    types = [*dict.fromkeys(kind for operation in operations for kind in _types(operation)), Problem]
    described, components = msgspec.json.schema_components(types, ref_template=_REF)
    schemas = _Schemas(dict(zip(types, described, strict=True)), components)
    paths: dict[str, Json] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, schemas)
    text = json.dumps([paths, components])
    used = {name for name in components if f'"{_REF.format(name=name)}"' in text}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sessile", "version": version, "description": "The gateway of a store of conversations."},
        "paths": paths,
        "components": {
            # Queries and headers are listed as parameters; nothing refers to their schemas.
            "schemas": {name: schema for name, schema in components.items() if name in used},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


class _Schemas(NamedTuple):
    """The schemas of all types."""

    by_type: dict[Any, Json]
    components: dict[str, Json]

    def whole(self, kind: Any) -> Json:
        """Return the schema of a type itself, not a reference to it."""
        return self.components[self.by_type[kind]["$ref"].rpartition("/")[2]]


def _types(operation: Operation) -> Iterable[Any]:
    parts = (operation.query, operation.headers, operation.body, operation.failure_type)
    return [kind for kind in (*parts, *operation.answers.values()) if kind is not None]


def _described(operation: Operation, schemas: _Schemas) -> Json:
    members: Json = {"operationId": operation.handler.__name__, "summary": operation.summary}
    parameters = [*_parameters(operation.query, "query", schemas), *_parameters(operation.headers, "header", schemas)]
    if parameters:
        parts = (operation.query, operation.headers)
        members["description"] = " ".join(_doc(kind) for kind in parts if kind is not None)
        members["parameters"] = parameters
    if operation.body is not None:
        members["requestBody"] = {"required": True, "content": _content(JSON, schemas.by_type[operation.body])}
    if operation.is_open:
        members["security"] = []
    responses = sorted(_responses(operation, schemas).items())
    members["responses"] = {str(status): response for status, response in responses}
    return members


def _doc(kind: type[msgspec.Struct]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _parameters(kind: type[msgspec.Struct] | None, place: str, schemas: _Schemas) -> list[Json]:
    if kind is None:
        return []
    whole = schemas.whole(kind)
    required = whole.get("required", ())
    return [
        {"name": name, "in": place, "required": name in required, "schema": _without_null(schema)}
        for name, schema in whole["properties"].items()
    ]


def _without_null(schema: Json) -> Json:
    """Return the schema of a parameter. A URL has no null: a missing parameter is omitted."""
    others = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    plain = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    if schema.get("default") not in (None, ()):
        plain["default"] = schema["default"]
    if not others:
        return plain
    return plain | (others[0] if len(others) == 1 else {"anyOf": others})


def _responses(operation: Operation, schemas: _Schemas) -> dict[int, Json]:
    responses: dict[int, Json] = {
        status: {"description": _phrase(status), "content": _contents(operation, schemas.by_type[kind])}
        for status, kind in operation.answers.items()
    }
    if operation.streams:
        response = responses.setdefault(200, {"description": _phrase(200), "content": {}})
        response["content"] |= _content(EVENT_STREAM, {"type": "string"})
    guarded = (*_GUARD_STATUSES, *(_BODY_STATUSES if operation.body is not None else ()))
    for status in (*guarded, *_ANY_STATUSES, *operation.problems):
        content = _content(PROBLEM_JSON, schemas.by_type[Problem])
        if operation.failure_type is not None and status not in (401, 403, 408, 413, 415, 431):
            content |= _content(JSON, schemas.by_type[operation.failure_type])
        responses[status] = {"description": _phrase(status), "content": content}
    return responses


def _contents(operation: Operation, schema: Json) -> Json:
    return {media_type: {"schema": schema} for media_type in operation.media_types or (operation.media_type,)}


def _content(media_type: str, schema: Json) -> Json:
    return {media_type: {"schema": schema}}


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase
