"""The baseline of the gateway: a bare Starlette handler that makes each message and reply durable.

    python -m tests.bench.gateway_bare FOLDER SIZE…        prints its port, and ends with SIGTERM

It runs on the same server as the gateway with the same settings, and answers the same request with as many bytes. For
each size it uses a thread, as the gateway does before and after the model, and appends that many bytes to the client's
file with a sync. It does no checks or lookups and keeps no state.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from sessile.config import Limits
from sessile.gateway.http.server import listen, serve

from .limits import synced_append

_THREADS = 32  # as many as the gateway's engine has


def bare_app(folder: str, sizes: Sequence[int]) -> Starlette:
    """Return the application; a client is identified by the key that it sends."""
    lines = [b"x" * (size - 1) + b"\n" for size in sizes]
    files: dict[str, int] = {}

    async def turn(request: Request) -> JSONResponse:
        body = await request.json()
        key = body["key"]
        fd = files.get(key)
        if fd is None:
            path = f"{folder}/{len(files)}.jsonl"
            fd = files[key] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        for line in lines:
            await to_thread.run_sync(synced_append, fd, line, limiter=threads)
        text = body["message"]
        return JSONResponse({"key": key, "state": "done", "reply": {"text": text, "delivered": text, "stop": "stop"}})

    threads = CapacityLimiter(_THREADS)
    return Starlette(routes=[Route("/v1/chat/send", turn, methods=["POST"])])


def main(folder: str, *sizes: str) -> None:
    """Serve until the process is ended."""
    os.makedirs(folder, exist_ok=True)
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        serve(bare_app(folder, [int(size) for size in sizes]), sock, Limits(), lambda: print(port, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
