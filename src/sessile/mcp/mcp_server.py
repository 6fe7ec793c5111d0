"""The MCP server: the tools over stdio, or over HTTP on this machine.

Rules:

- Tools run in a few threads. A cancelled call returns at once, and its thread stops at its next check.
- Unexpected errors are returned without their message, which may contain stored text.
- Over HTTP every request needs the token and passes the guards of the gateway. The server is stateless and sends no traces.
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
from sessile.mcp.access import Access, Call
from sessile.mcp.shapes import schema_of
from sessile.mcp.tools import INSTRUCTIONS, TOOLS, perform

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from sessile.core.secret import Secret

_HOST = "127.0.0.1"  # never reachable from other machines
_PATH = "/mcp"
_MAX_CALLS = 4  # that run at once; the others wait
_READ_ONLY = types.ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)


def make_server(access: Access) -> Server[Any]:
    """Return the server for an `Access`."""
    listed = [
        types.Tool(
            name=name,
            description=tool.description,
            input_schema=schema_of(tool.arguments),
            output_schema=schema_of(tool.answer),
            annotations=_READ_ONLY,
        )
        for name, tool in TOOLS.items()
    ]
    limiter = anyio.CapacityLimiter(_MAX_CALLS)

    async def list_tools(
        context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        if params.name not in TOOLS:
            raise MCPError(types.INVALID_PARAMS, f"unknown tool; use {', '.join(TOOLS)}")
        call = Call()
        work = partial(perform, access, call, params.name, params.arguments or {})
        try:
            outcome = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
        except Exception:
            # Neither the message nor the type: they may contain stored text.
            raise MCPError(types.INTERNAL_ERROR, "internal error") from None
        finally:
            call.cancel()
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
    server.middleware.clear()  # it would send traces of calls
    return server


def serve_stdio(access: Access) -> None:
    """Serve over stdin and stdout until stdin is closed."""
    anyio.run(_serve_stdio, access)


async def _serve_stdio(access: Access) -> None:
    server = make_server(access)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def serve_http(access: Access, port: int, token: Secret, ready: Callable[[str], None]) -> None:
    """Serve on a port of this machine until interrupted; `ready` is called with the URL. Port 0 is any free port."""
    app = make_server(access).streamable_http_app(streamable_http_path=_PATH, json_response=True, stateless_http=True)
    limits = Limits()
    with listen(_HOST, port) as sock:
        address = f"{address_of(sock)}{_PATH}"
        serve(guarded(app, Guarding(token, limits, open_paths=frozenset())), sock, limits, lambda: ready(address))
