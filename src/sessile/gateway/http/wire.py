"""What goes over the wire: how the parts of a request become values, and values become a response.

    Operation("GET", "/v1/session", "one conversation", get_conversation, query=OneKey, answers={200: Detail})

An operation is one thing that can be asked of the gateway; its route and its documentation are made of it.

A handler is called with the gateway and with what the operation says that it takes, in this order: query, headers, body. It gives
a value of the type that is documented for 200, an `Answered` with another status, or a whole response.

Rules: what was not documented is refused by name, in the query as in the body. Numbers and truth values of a query are written
as JSON has them. A name that may stand several times is a tuple; any other may stand once. What a client sends is text:
what is not UTF-8 is refused, not repaired.

It knows no sessions, and nothing of the server below.

The OpenAPI document, made of the table of operations.

Types of queries, bodies and answers are described by msgspec; a query is taken apart into its parameters. Errors of every
operation are problem documents (RFC 9457), except that the completions tell their own as OpenAI does.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec

from sessile.core.codec import encode_plain
from sessile.errors import Invalid, InvalidEntry, InvalidQuery, SessileError
from sessile.gateway.http.problems import App, Receive, Scope, Send

# --- wire

Handler = Callable[..., Awaitable[object]]

JSON = "application/json"
_HINT = "GET /v1/openapi.json says what there is"
_MOST_FIELDS = 100  # in a query


class Taken(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a client sends; a member that is not known is refused."""


class Told(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a client is told."""


class Operation(NamedTuple):
    """One thing that can be asked. `answers` are types by status, `problems` the errors besides those of every operation."""

    method: str
    path: str
    summary: str
    handler: Handler
    query: type[msgspec.Struct] | None = None
    headers: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    answers: Mapping[int, Any] = {}
    problems: tuple[int, ...] = ()
    streams: bool = False  # 200 may be, or is, a stream of events
    media_type: str = JSON  # of answers
    media_types: tuple[str, ...] = ()  # of answers that may have one of several
    is_open: bool = False  # to everybody, without the token
    failure: Callable[[SessileError], App] | None = None  # how an error is told, if not as a problem
    failure_type: type[msgspec.Struct] | None = None


class Answered(NamedTuple):
    """A value with a status of its own, and headers."""

    status: int
    value: object
    headers: Mapping[str, str] = {}


async def arguments(operation: Operation, scope: Scope, receive: Receive) -> list[object]:
    """What the handler of an operation is called with, behind the gateway."""
    found: list[object] = []
    if operation.query is not None:
        found.append(_read_query(operation.query, scope.get("query_string", b"")))
    elif scope.get("query_string") and not operation.is_open:
        raise InvalidQuery("there is nothing to choose in the address", hint=_HINT)
    if operation.headers is not None:
        found.append(_read_headers(operation.headers, scope["headers"]))
    if operation.body is not None:
        found.append(_read_body(operation.body, (await receive()).get("body", b"")))
    return found


def _read_query(wanted: type[msgspec.Struct], query: bytes) -> msgspec.Struct:
    many = _lists(wanted)
    values: dict[str, Any] = {}
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS, separator="&"
        )
    except ValueError as error:  # also that of a decoder
        raise InvalidQuery("the query cannot be read", hint="write it as UTF-8, percent-encoded") from error
    for name, value in pairs:
        if name in many:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InvalidQuery(f"{name[:80]!r} stands twice in the query", hint="say it once")
        else:
            values[name] = value
    found = _converted(values, wanted, "query")
    for field in msgspec.structs.fields(wanted):
        if field.encode_name in values and getattr(found, field.name) is None:
            raise InvalidQuery(f"{field.encode_name} is null in the query", hint="leave it out instead")
    return found


def _read_headers(wanted: type[msgspec.Struct], headers: list[tuple[bytes, bytes]]) -> msgspec.Struct:
    names = _names(wanted)
    values: dict[str, str] = {}
    for raw_name, raw in headers:
        name = raw_name.decode("latin-1").lower()
        if name in names:
            if name in values:
                raise Invalid(f"the header {name} was sent twice", hint="send it once")
            try:
                values[name] = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise Invalid(f"the header {name} is no UTF-8", hint="encode it so") from error
    return _converted(values, wanted, "headers")


def _converted(values: Mapping[str, Any], wanted: type[msgspec.Struct], where: str) -> msgspec.Struct:
    try:
        return msgspec.convert(values, wanted, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidQuery(f"the {where} cannot be taken: {error}", hint=_HINT) from error


def _read_body(wanted: type[msgspec.Struct], body: bytes) -> msgspec.Struct:
    try:
        return msgspec.json.decode(body, type=wanted)
    except msgspec.ValidationError as error:
        raise Invalid(f"the body cannot be taken: {error}", hint=_HINT) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid("the body is no JSON document", hint="send one object, in UTF-8") from error


@cache
def _names(wanted: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(wanted))


@cache
def _lists(wanted: type[msgspec.Struct]) -> frozenset[str]:
    """The names that may stand several times."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(wanted) if _is_list(field.type))


def _is_list(kind: Any) -> bool:
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return get_origin(bare) is tuple


def as_json(value: object) -> bytes:
    """A value that clients are told; what JSON cannot hold becomes what JavaScript would make of it."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError):
        plain = msgspec.to_builtins(value)
        try:
            return encode_plain(plain)
        except InvalidEntry:
            return encode_plain(json.loads(json.dumps(plain), parse_constant=lambda _: None))


class Whole:
    """A whole response: JSON, or bytes of any type."""

    def __init__(
        self, status: int, body: bytes, media_type: str = JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = status
        self.body = body
        named = {"content-type": media_type, "content-length": str(len(body)), **(headers or {})}
        self._headers = [(name.encode("latin-1"), value.encode("utf-8")) for name, value in named.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self._headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else self.body})


def response_of(result: object) -> App:
    """The response for what a handler gave."""
    if isinstance(result, Answered):
        return Whole(result.status, as_json(result.value), headers=result.headers)
    if callable(result):
        return result
    return Whole(200, as_json(result))


# --- schema

Json = dict[str, Any]

PROBLEM_JSON = "application/problem+json"
EVENT_STREAM = "text/event-stream"

# What the guards refuse, whatever is asked for, and what may be wrong with any file.
_GUARDED = (401, 403, 408, 429, 431)
_ANY = (400, 422, 507)
_WITH_A_BODY = (413, 415)
_REF = "#/components/schemas/{name}"


class Problem(Told, frozen=True):
    """What went wrong, and what to do (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    hint: str | None


def document(operations: Sequence[Operation], version: str) -> Json:
    """The document of some operations."""
    types = [*dict.fromkeys(kind for operation in operations for kind in _types(operation)), Problem]
    described, components = msgspec.json.schema_components(types, ref_template=_REF)
    schemas = _Schemas(dict(zip(types, described, strict=True)), components)
    paths: dict[str, Json] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, schemas)
    told = json.dumps([paths, components])
    used = {name for name in components if f'"{_REF.format(name=name)}"' in told}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sessile", "version": version, "description": "The gateway of a store of conversations."},
        "paths": paths,
        "components": {
            # Queries and headers are told as parameters, and nothing refers to them.
            "schemas": {name: schema for name, schema in components.items() if name in used},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


class _Schemas(NamedTuple):
    """How types are described."""

    by_type: dict[Any, Json]
    components: dict[str, Json]

    def whole(self, kind: Any) -> Json:
        """The description of a type itself, not a reference to it."""
        return self.components[self.by_type[kind]["$ref"].rpartition("/")[2]]


def _types(operation: Operation) -> Iterable[Any]:
    parts = (operation.query, operation.headers, operation.body, operation.failure_type)
    return [kind for kind in (*parts, *operation.answers.values()) if kind is not None]


def _described(operation: Operation, schemas: _Schemas) -> Json:
    told: Json = {"operationId": operation.handler.__name__, "summary": operation.summary}
    parameters = [*_parameters(operation.query, "query", schemas), *_parameters(operation.headers, "header", schemas)]
    if parameters:
        told["description"] = " ".join(_doc(kind) for kind in (operation.query, operation.headers) if kind is not None)
        told["parameters"] = parameters
    if operation.body is not None:
        told["requestBody"] = {"required": True, "content": _content(JSON, schemas.by_type[operation.body])}
    if operation.is_open:
        told["security"] = []
    told["responses"] = {str(status): response for status, response in sorted(_responses(operation, schemas).items())}
    return told


def _doc(kind: type[msgspec.Struct]) -> str:
    """What a query or headers ask for, in its own words."""
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
    """A parameter that is not there is left out: an address has no null."""
    others = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    told = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    if schema.get("default") not in (None, ()):
        told["default"] = schema["default"]
    if not others:
        return told
    return told | (others[0] if len(others) == 1 else {"anyOf": others})


def _responses(operation: Operation, schemas: _Schemas) -> dict[int, Json]:
    responses: dict[int, Json] = {
        status: {"description": _phrase(status), "content": _contents(operation, schemas.by_type[kind])}
        for status, kind in operation.answers.items()
    }
    if operation.streams:
        response = responses.setdefault(200, {"description": _phrase(200), "content": {}})
        response["content"] |= _content(EVENT_STREAM, {"type": "string"})
    with_a_body = _WITH_A_BODY if operation.body is not None else ()
    guarded = (*_GUARDED, *with_a_body)
    for status in (*guarded, *_ANY, *operation.problems):
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
