"""Run an MCP server for tests: `sessile mcp` over stdio or HTTP, or a server in this process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from sessile import Library, Store
from sessile.mcp.access import Access, Links, Masks, Page, Scope
from sessile.mcp.mcp_server import make_server
from sessile.storage.layout import Source

Json = dict[str, Any]
Result = TypeVar("Result")
Scenario = Callable[["Asking"], Awaitable[Result]]
_COMMAND = ("-m", "sessile.cli.main")


class Asking:
    """A connected client that records all results."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.heard: list[str] = []

    async def call(self, tool: str, **arguments: Any) -> Json:
        """Return the values of a result, and check that its text is the same JSON."""
        result = await self.try_call(tool, arguments)
        assert not result.is_error, result.content
        value: Json = result.structured_content
        assert json.loads(result.content[0].text) == value
        return value

    async def fail(self, tool: str, **arguments: Any) -> Json:
        """Return the error of a failed call."""
        result = await self.try_call(tool, arguments)
        assert result.is_error and result.structured_content is None, result
        error: Json = json.loads(result.content[0].text)["error"]
        return error

    async def try_call(self, tool: str, arguments: Json) -> Any:
        """Return the result of a call, successful or not."""
        result = await self.client.call_tool(tool, arguments)
        self.heard.append(result.model_dump_json())
        return result


# -- in this process


def access_of(store: Store, scope: Scope | None, sources: Sequence[Source], show_secrets: bool) -> Access:
    """Return access to a store, with the catalog in memory."""
    return Access(
        lambda: Library(store, sources),
        store,
        scope=scope or Scope(),
        masks=Masks(show_secrets=show_secrets),
        links=Links("sessile", Page(store)),
        zone=UTC,
    )


def ask(
    store: Store,
    scenario: Scenario[Result],
    *,
    scope: Scope | None = None,
    sources: Sequence[Source] = (),
    show_secrets: bool = False,
) -> Result:
    """Run a scenario with a server in this process and return its result."""
    access = access_of(store, scope, sources, show_secrets)

    async def run() -> Result:
        async with Client(make_server(access)) as client:
            return await scenario(Asking(client))

    try:
        return asyncio.run(run())
    finally:
        access.close()


# -- in a separate process


class Over(NamedTuple):
    """The transport (`stdio` or `http`) and the protocol mode (`auto` or `legacy`)."""

    transport: str
    mode: str

    def __str__(self) -> str:
        return f"{self.transport}-{self.mode}"

    def ask(self, scenario: Scenario[Result], *arguments: str, log: Path) -> Result:
        """Run a scenario with `sessile mcp` and return its result; stderr goes to `log`."""

        async def run() -> Result:
            connected = _stdio(arguments, log) if self.transport == "stdio" else _http(arguments, log)
            async with connected as transport, Client(transport, mode=self.mode) as client:
                return await scenario(Asking(client))

        return asyncio.run(run())


@asynccontextmanager
async def _stdio(arguments: tuple[str, ...], log: Path) -> AsyncIterator[Any]:
    parameters = StdioServerParameters(
        command=sys.executable, args=[*_COMMAND, "mcp", *arguments], env=dict(os.environ), cwd=os.getcwd()
    )
    with log.open("a") as errors:
        yield stdio_client(parameters, errlog=errors)


@asynccontextmanager
async def _http(arguments: tuple[str, ...], log: Path) -> AsyncIterator[Any]:
    with serving(*arguments, log=log) as told:
        token = Path(told["tokenFile"]).read_text().strip()
        async with create_mcp_http_client(headers={"Authorization": f"Bearer {token}"}) as client:
            yield streamable_http_client(told["url"], http_client=client)


class Serving(NamedTuple):
    """A server over HTTP and its startup output."""

    process: subprocess.Popen[str]
    told: Json

    def __getitem__(self, name: Any) -> Any:
        return self.told[name]


@contextmanager
def serving(*arguments: str, log: Path) -> Iterator[Any]:
    """Run `sessile mcp --http` on a free port and stop it at the end."""
    command = [sys.executable, *_COMMAND, "--json", "mcp", "--http", "--port", "0", *arguments]
    with (
        log.open("a") as errors,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log.read_text()
            yield Serving(process, json.loads(line))
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(15)
