"""What a gateway could do at best: a bare Starlette handler that makes each message and each reply durable.

    python -m tests.bench.gateway_bare FOLDER SIZE…        prints its port, and ends with SIGTERM

It stands on the same server as the gateway, with the same settings, and answers the same request with as many bytes. For each
of the sizes it goes to a thread, as the gateway does before and behind the model, and there appends so many bytes to the file
of that client, with a sync. It checks nothing, finds nothing and remembers nothing.
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

_THREADS = 32  # as many as the engine of the gateway has


def bare_app(folder: str, sizes: Sequence[int]) -> Starlette:
    """The application; a client is known by the key that it sends."""
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
    """Serve until somebody ends it."""
    os.makedirs(folder, exist_ok=True)
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        serve(bare_app(folder, [int(size) for size in sizes]), sock, Limits(), lambda: print(port, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
