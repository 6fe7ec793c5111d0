"""The OpenAPI document, made of the table of operations.

Types of queries, bodies and answers are described by msgspec; a query is taken apart into its parameters. Errors of every
operation are problem documents (RFC 9457), except that the completions tell their own as OpenAI does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from sessile.gateway.wire import JSON, Operation, Told

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
