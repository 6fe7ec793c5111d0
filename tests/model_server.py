"""A server that speaks the protocols of model vendors, for tests: it answers what it was told to, also badly.

    with serving() as server:
        server.say("text")                    the next answer, streamed in pieces
        server.fail(529, "overloaded")        the next answer is an error
        server.asked[-1].body                 what it was asked

Answers are taken in order; the last one is given again and again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Answer(NamedTuple):
    """What to say. `cut` ends the connection in the middle of a stream, `pause` waits before each piece."""

    text: str = ""
    status: int = 200
    stop: str = "stop"
    cut: bool = False
    pause: float = 0.0
    calls: bool = False
    raw: bytes | None = None


class ModelServer:
    """What the next requests get, and what came."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []
        self._answers: list[Answer] = []
        self.over = threading.Event()

    def say(self, text: str = "", **how: Any) -> None:
        """Add an answer."""
        self._answers.append(Answer(text, **how))

    def fail(self, status: int, message: str) -> None:
        """Add an error."""
        self._answers.append(Answer(message, status))

    def next(self) -> Answer:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def _pieces(text: str) -> list[str]:
    return [text[at : at + 7] for at in range(0, len(text), 7)] or [""]


def _openai(answer: Answer) -> Iterator[dict[str, Any] | None]:
    base = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    for piece in _pieces(answer.text):
        yield base | {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
        if answer.cut:
            return
    if answer.calls:
        call = {"index": 0, "id": "t", "type": "function", "function": {"name": "x", "arguments": "{}"}}
        yield base | {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}
    yield base | {"choices": [{"index": 0, "delta": {}, "finish_reason": answer.stop}]}
    usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
    yield base | {"choices": [], "usage": usage}
    yield None


def _anthropic(answer: Answer) -> Iterator[dict[str, Any] | None]:
    message: dict[str, Any] = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 11, "output_tokens": 0}}
    yield {"type": "message_start", "message": message}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    for piece in _pieces(answer.text):
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
        if answer.cut:
            return
    yield {"type": "content_block_stop", "index": 0}
    if answer.calls:
        call = {"type": "tool_use", "id": "t", "name": "x", "input": {}}
        yield {"type": "content_block_start", "index": 1, "content_block": call}
        yield {"type": "content_block_stop", "index": 1}
    stop = {"stop": "end_turn", "length": "max_tokens"}.get(answer.stop, answer.stop)
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": stop, "stop_sequence": None},
        "usage": {"output_tokens": 3},
    }
    yield {"type": "message_stop"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: ModelServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.model.asked.append(Asked(self.path, dict(self.headers), body))
        self.close_connection = True
        answer = self.model.next()
        if answer.raw is not None or not self.path.endswith(("/chat/completions", "/messages")):
            self._send(answer.status, answer.raw or json.dumps({"summary": answer.text}).encode(), answer.pause)
        elif answer.status != 200:
            error = {"type": "error", "error": {"type": "invalid_request_error", "message": answer.text}}
            self._send(answer.status, json.dumps(error).encode(), answer.pause)
        else:
            self._stream(answer)

    def _send(self, status: int, data: bytes, pause: float) -> None:
        self.model.over.wait(pause)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.send_header("retry-after", "0")
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, answer: Answer) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        is_openai = self.path.endswith("/chat/completions")
        for event in _openai(answer) if is_openai else _anthropic(answer):
            self.model.over.wait(answer.pause)
            data = "[DONE]" if event is None else json.dumps(event)
            named = "" if is_openai or event is None else f"event: {event['type']}\n"
            self._chunk(f"{named}data: {data}\n\n".encode())
        if not answer.cut:
            self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        with suppress(OSError):  # the client may have gone
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            self.wfile.flush()

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[ModelServer]:
    """A server on a free port of this machine, for the length of a block."""
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = False
    model = handler.model = ModelServer(f"http://127.0.0.1:{server.server_address[1]}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield model
    finally:
        model.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
