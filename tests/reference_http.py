"""The reference page about HTTP, generated from the gateway's OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sessile.gateway.http.asgi import openapi_document

Json = dict[str, Any]

_EVERYWHERE = {"400", "401", "403", "408", "422", "429", "431", "507"}  # responses of any operation
_WITH_A_BODY = {"413", "415"}


def http_page() -> Iterator[str]:
    """Yield every operation, then every schema."""
    told = openapi_document()
    yield "# HTTP\n"
    yield "Generated from `GET /v1/openapi.json` by `python tests/reference.py`; a test compares.\n"
    yield (
        "Every request needs `Authorization: Bearer TOKEN`, except for operations marked as open. Bodies and responses are JSON "
        "in UTF-8. Undocumented parameters and members are rejected by name. A query parameter that takes a list may be "
        "repeated.\n\n"
        "Errors are problem documents (RFC 9457, `Problem` below), listed in [errors.md](errors.md). Any operation may return "
        "400, 401, 403, 408, 422, 429, 431 and 507, and one with a body also 413 and 415; other responses are listed below.\n"
    )
    yield "## Operations\n\n| | | |\n|---|---|---|"
    for path, method, operation in _operations(told):
        anchor = f"{method} {path}".lower()
        anchor = "".join(letter for letter in anchor if letter.isalnum() or letter in " -_").replace(" ", "-")
        yield f"| {method} | [`{path}`](#{anchor}) | {operation['summary']} |"
    yield ""
    for path, method, operation in _operations(told):
        yield from _operation(path, method, operation)
    yield "## Documents\n"
    for name, schema in sorted(told["components"]["schemas"].items()):
        yield f"### {name}\n"
        if schema.get("description"):
            yield f"{' '.join(schema['description'].split())}\n"
        if schema.get("properties"):
            yield from _members(schema)


def _operations(told: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def _operation(path: str, method: str, operation: Json) -> Iterator[str]:
    is_open = " Open: no token is needed." if operation.get("security") == [] else ""
    yield f"### {method} {path}\n\n{operation['summary']}{is_open}\n"
    parameters = operation.get("parameters", [])
    if parameters:
        yield f"{operation['description']}\n"
        yield "| parameter | in | value | |\n|---|---|---|---|"
        for parameter in parameters:
            schema = parameter["schema"]
            about = _about(schema, required=parameter["required"])
            yield f"| `{parameter['name']}` | {parameter['in']} | {_value(schema)} | {about} |"
        yield ""
    if "requestBody" in operation:
        yield f"Body: {_contents(operation['requestBody']['content'])}.\n"
    usual = _EVERYWHERE | (_WITH_A_BODY if "requestBody" in operation else set())
    answers = [
        f"{status}: {_contents(answer['content'])}" if answer.get("content") else status
        for status, answer in operation["responses"].items()
        if status not in usual
    ]
    yield f"Responses: {'; '.join(answers)}.\n"


def _contents(content: Json) -> str:
    kinds = []
    for media_type, held in content.items():
        told = _value(held["schema"])
        kinds.append(told if media_type in ("application/json", "application/problem+json") else f"`{media_type}`")
    return " or ".join(dict.fromkeys(kinds))


def _members(schema: Json) -> Iterator[str]:
    required = schema.get("required", ())
    yield "| member | value | |\n|---|---|---|"
    for name, inner in schema["properties"].items():
        yield f"| `{name}` | {_value(inner)} | {_about(inner, required=name in required)} |"
    yield ""


def _about(schema: Json, *, required: bool) -> str:
    words = [" ".join(str(schema.get("description", "")).split())]
    if not required and schema.get("default") not in (None, (), [], {}, ""):
        default = schema["default"]
        words.append(f"default `{str(default).lower() if isinstance(default, bool) else default}`")
    if not required:
        words.append("optional")
    return " ".join(f"{word[0].upper()}{word[1:].rstrip('.')}." for word in words if word)


def _value(schema: Json) -> str:
    """Describe the type of a value in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_value(option) for option in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_value(schema.get('items', {}))}" if schema.get("items") else "list"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_value(schema['additionalProperties'])}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if kind in ("integer", "number") and low is not None and high is not None and high < 2**31:
        return f"{kind}, {low:,} to {high:,}"
    return "null" if kind == "null" else str(kind)
