"""The gateway as an ASGI application: the table of operations behind the guards, and the page.

    app = make_app(gateway, token)          the server starts and ends the gateway with it

Rules: a path that is not in the table is told so, and a method that a path does not have is answered with those that it has. HEAD
is GET without the body, except for streams. Open without the token are only the check of health and the files of the page, which
hold nothing of anybody's.
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
from sessile.gateway.http.guards import HEALTH, Guarding, guarded
from sessile.gateway.http.operations import API
from sessile.gateway.http.problems import App, Receive, Scope, Send, problem, send_answer
from sessile.gateway.http.wire import Operation, Told, Whole, arguments, as_json, document, response_of

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
_PAGES = ("/", "/sessions", "/s/{id}", "/search", "/stats", "/share/{id}", "/gateway")  # one file shows them all
_SHARED = ("style.css",)  # that exports have, too


class NoSuchPath(NotFound):
    """There is nothing at this path.

    `GET /v1/openapi.json` says what there is.
    """


class WrongMethod(Refused):
    """The path does not have this method.

    The header `Allow` says which ones it has.
    """

    status = 405


def make_app(gateway: Gateway, token: Secret) -> App:
    """The application of a gateway; who has the token may do everything."""
    operations = all_operations()
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    routes = [Route(path, _Resource(gateway, methods)) for path, methods in by_path.items()]

    @asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            await tasks.start(gateway.run)
            yield
            tasks.cancel_scope.cancel()

    router = Router(routes, redirect_slashes=False, default=_nothing_here, lifespan=lifespan)
    settings = Guarding(
        token,
        gateway.config.limits,
        gateway.config.gateway.hosts,
        frozenset(_opening(operation.path) for operation in operations if operation.is_open),
    )
    return guarded(router, settings)


def _opening(path: str) -> str:
    """What of a path opens it to everybody: all of it, or the folder whose names stand for sessions."""
    return path.partition("{")[0]


async def _nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    raise NoSuchPath("there is nothing at this path", hint="GET /v1/openapi.json says what there is")


class _Resource:
    """What can be done at one path."""

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
        answer = problem(WrongMethod(f"this path has no {scope['method'][:20]}", hint=f"it has {allowed}"))
        await send_answer(send, answer._replace(headers=[*answer.headers, (b"allow", allowed.encode())]))


# -- what is open to everybody, and the document


class Health(Told, frozen=True):
    """The gateway answers."""

    status: Literal["ok"]


async def health(gateway: Gateway) -> Health:
    """Whether the gateway answers."""
    return Health(status="ok")


def all_operations() -> Sequence[Operation]:
    """Everything that can be asked: the table, the document made of it, the check of health, and the page."""
    return [*_documented(), *_page()]


def openapi_document() -> dict[str, Any]:
    """What the gateway says of itself."""
    return document(_documented(), __version__)


def _documented() -> list[Operation]:
    """All operations but the files of the page."""
    check = Operation("GET", HEALTH, "Whether the gateway answers.", health, answers={200: Health}, is_open=True)
    itself = Operation("GET", "/v1/openapi.json", "This document.", openapi, answers={200: dict[str, Any]})
    return [check, *API, itself]


async def openapi(gateway: Gateway) -> Whole:
    """This document."""
    return Whole(200, _document_text())


@cache
def _document_text() -> bytes:
    """Few ask for it, and to describe every type takes longer than to start."""
    return as_json(openapi_document())


def _page() -> list[Operation]:
    """The files of the page below /static, and its first file at each of its paths."""
    web = files("sessile").joinpath("web")
    found = {f"{STATIC}{name}": web / name for name in _SHARED}
    waiting = [("page", web / "page")]
    while waiting:
        place, folder = waiting.pop()
        for item in folder.iterdir():
            if item.is_dir():
                waiting.append((f"{place}/{item.name}", item))
            elif item.name.rpartition(".")[2] in _TYPES:
                found[f"{STATIC}{place}/{item.name}"] = item
    found |= dict.fromkeys(_PAGES, web / "page" / "index.html")
    return [_file(path, item.read_bytes(), item.name) for path, item in sorted(found.items(), key=_by_path)]


def _by_path(found: tuple[str, Traversable]) -> str:
    return found[0]


def _file(path: str, data: bytes, name: str) -> Operation:
    media_type = _TYPES[name.rpartition(".")[2]]

    async def page(gateway: Gateway) -> Whole:
        """A file of the page."""
        return Whole(200, data, media_type)

    return Operation("GET", path, "The page.", page, media_type=media_type, is_open=True)
