"""The gateway as an ASGI application: all operations behind the guards, and the files of the web page.

    app = make_app(gateway, token)          the server starts and stops the gateway with the application

Rules: an unknown path is answered with 404, an unsupported method with 405 and the supported methods in `Allow`. HEAD
is GET without a body, except for streams. Only the health check and the static files of the page, which hold no user
data, need no token.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any, Literal

import anyio
from starlette.routing import Route, Router

from sessile import __version__
from sessile.errors import NotFound, Refused, SessileError
from sessile.gateway.http import chat, conversations, openai, state
from sessile.gateway.http.guards import HEALTH, Guarding, guarded
from sessile.gateway.http.problems import App, Receive, Scope, Send, problem, send_answer
from sessile.gateway.http.wire import (
    Operation,
    Response,
    ResponseModel,
    Routes,
    arguments,
    as_json,
    document,
    response_of,
)
from sessile.gateway.pages import actions, library_view, session_view, share

if TYPE_CHECKING:
    from sessile.core.secret import Secret
    from sessile.gateway.service import Gateway

STATIC = "/static/"

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_PAGES = ("/", "/sessions", "/s/{id}", "/search", "/stats", "/share/{id}", "/gateway")  # all served by one file
_SHARED = ("style.css",)  # also used by exports

routes = Routes()


class NoSuchPath(NotFound):
    """Path not found.

    `GET /v1/openapi.json` lists all paths.
    """


class WrongMethod(Refused):
    """Method not allowed for this path.

    The header `Allow` lists the supported methods.
    """

    status = 405


def make_app(gateway: Gateway, token: Secret) -> App:
    """Return the application of a gateway. The token grants access to everything."""
    operations = all_operations()
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    resources = [Route(path, _Resource(gateway, methods)) for path, methods in by_path.items()]

    @asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            await tasks.start(gateway.run)
            yield
            tasks.cancel_scope.cancel()

    router = Router(resources, redirect_slashes=False, default=_not_found, lifespan=lifespan)
    settings = Guarding(
        token,
        gateway.config.limits,
        gateway.config.gateway.hosts,
        frozenset(_open_prefix(operation.path) for operation in operations if operation.is_open),
    )
    return guarded(router, settings)


def all_operations() -> Sequence[Operation]:
    """Return all operations, including the files of the page."""
    return [*_documented(), *_page()]


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of the gateway."""
    return document(_documented(), __version__)


def _documented() -> list[Operation]:
    """Return all operations except the files of the page."""
    modules = (conversations, chat, openai, state, session_view, library_view, share, actions)
    return [*routes, *(operation for module in modules for operation in module.routes)]


def _open_prefix(path: str) -> str:
    """Return the part of a path that needs no token: the path itself, or its folder if it ends in a session id."""
    return path.partition("{")[0]


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise NoSuchPath("path not found", hint="GET /v1/openapi.json lists all paths")


class _Resource:
    """The operations of one path."""

    def __init__(self, gateway: Gateway, methods: Mapping[str, Operation]) -> None:
        self._gateway = gateway
        self._methods = dict(methods)
        get = methods.get("GET")
        if get is not None and not get.streams:
            self._methods["HEAD"] = get

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._methods.get(scope["method"])
        if operation is None:
            await self._refuse(scope, send)
            return
        try:
            response = response_of(await operation.handler(self._gateway, *await arguments(operation, scope, receive)))
        except SessileError as error:
            if operation.failure is None:
                raise
            response = operation.failure(error)
        await response(scope, receive, send)

    async def _refuse(self, scope: Scope, send: Send) -> None:
        allowed = ", ".join(sorted(self._methods))
        answer = problem(WrongMethod(f"method {scope['method'][:20]} not allowed", hint=f"use {allowed}"))
        await send_answer(send, answer._replace(headers=[*answer.headers, (b"allow", allowed.encode())]))


# -- health and the document


class Health(ResponseModel, frozen=True):
    """The gateway is up."""

    status: Literal["ok"]


@routes.get(HEALTH, answers={200: Health}, is_open=True)
async def health(gateway: Gateway) -> Health:
    """Check that the gateway is up."""
    return Health(status="ok")


@routes.get("/v1/openapi.json", answers={200: dict[str, Any]})
async def openapi(gateway: Gateway) -> Response:
    """Return this document."""
    return Response(200, _document_text())


@cache
def _document_text() -> bytes:
    """Return the encoded document.

    It is made on first use, because describing every type takes longer than starting the gateway.
    """
    return as_json(openapi_document())


# -- the page


def _page() -> list[Operation]:
    """Return the files of the page below /static, and its index at each of its paths."""
    web = files("sessile").joinpath("web")
    found = {f"{STATIC}{name}": web / name for name in _SHARED}
    folders = [("page", web / "page")]
    while folders:
        place, folder = folders.pop()
        for item in folder.iterdir():
            if item.is_dir():
                folders.append((f"{place}/{item.name}", item))
            elif item.name.rpartition(".")[2] in _TYPES:
                found[f"{STATIC}{place}/{item.name}"] = item
    found |= dict.fromkeys(_PAGES, web / "page" / "index.html")
    return [_file(path, item.read_bytes(), item.name) for path, item in sorted(found.items(), key=_by_path)]


def _by_path(found: tuple[str, Traversable]) -> str:
    return found[0]


def _file(path: str, data: bytes, name: str) -> Operation:
    media_type = _TYPES[name.rpartition(".")[2]]

    async def page(gateway: Gateway) -> Response:
        return Response(200, data, media_type)

    return Operation("GET", path, "The page.", page, media_type=media_type, is_open=True)
