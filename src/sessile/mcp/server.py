"""The MCP server: the tools of the table, over stdin and stdout or over HTTP on this machine.

Rules: tools run on threads, a few at a time; who cancels a call is rid of it, and the thread stops where it next looks. An
error that nobody expected says nothing of what it holds. Over HTTP every request needs the token and has to pass the guards of
the gateway; nothing is kept between two requests, and nothing is reported to anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from sessile import __version__
from sessile.config import Limits
from sessile.gateway.http.guards import Guarding, guarded
from sessile.gateway.http.server import address as address_of
from sessile.gateway.http.server import listen, serve
from sessile.mcp.desk import Call, Desk
from sessile.mcp.shapes import schema_of
from sessile.mcp.tools import INSTRUCTIONS, TOOLS, perform

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from sessile.core.secret import Secret

_HOST = "127.0.0.1"  # no other machine is ever let in
_PATH = "/mcp"
_AT_ONCE = 4  # calls that are worked on; the others wait
_READING = types.ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)


def make_server(desk: Desk) -> Server[Any]:
    """The server of a desk."""
    told = [
        types.Tool(
            name=name,
            description=tool.description,
            input_schema=schema_of(tool.asked),
            output_schema=schema_of(tool.answer),
            annotations=_READING,
        )
        for name, tool in TOOLS.items()
    ]
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def list_tools(
        context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=told)

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        if params.name not in TOOLS:
            raise MCPError(types.INVALID_PARAMS, f"there is no such tool; there are {', '.join(TOOLS)}")
        call = Call()
        work = partial(perform, desk, call, params.name, params.arguments or {})
        try:
            outcome = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
        except Exception:
            # Whatever it says may hold what is stored; the type of it is told to nobody either.
            raise MCPError(types.INTERNAL_ERROR, "something went wrong that nobody expected") from None
        finally:
            call.give_up()
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=outcome.text)]
        value = None if outcome.failed else outcome.value
        return types.CallToolResult(content=content, structured_content=value, is_error=outcome.failed)

    server: Server[Any] = Server(
        "sessile",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    server.middleware.clear()  # what it holds would report calls to whoever collects traces
    return server


def serve_stdio(desk: Desk) -> None:
    """Answer on stdin and stdout until stdin ends."""
    anyio.run(_answer, desk)


async def _answer(desk: Desk) -> None:
    server = make_server(desk)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def serve_http(desk: Desk, port: int, token: Secret, ready: Callable[[str], None]) -> None:
    """Answer on a port of this machine until somebody ends it; `ready` is told the address. Port 0 is any that is free."""
    app = make_server(desk).streamable_http_app(streamable_http_path=_PATH, json_response=True, stateless_http=True)
    limits = Limits()
    with listen(_HOST, port) as sock:
        address = f"{address_of(sock)}{_PATH}"
        serve(guarded(app, Guarding(token, limits, open_paths=frozenset())), sock, limits, lambda: ready(address))
