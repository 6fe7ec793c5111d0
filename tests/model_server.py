"""A test server for the protocols of model vendors (Anthropic, OpenAI chat and responses), with scripted answers and failures.

    with serving() as server:
        server.say("text")                    the next answer, streamed in pieces
        server.fail(529, "overloaded")        the next answer is an error
        server.asked[-1].body                 the body of the last request
        server.gone                           set when a client has disconnected before the end of an answer

Answers are used in order; the last one is repeated.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """A request."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Tool(NamedTuple):
    """A tool call; its arguments are streamed in pieces."""

    id: str
    name: str
    arguments: str


class Answer(NamedTuple):
    """A scripted answer. `cut` ends the connection in the middle of a stream, `pause` waits before each piece.

    `error` is sent in the middle of the stream, `headers` are added to an answer that is not streamed, `keep` leaves
    the connection open after a stream.
    """

    text: str = ""
    status: int = 200
    stop: str = "stop"
    cut: bool = False
    pause: float = 0.0
    calls: bool = False
    raw: bytes | None = None
    thinking: str = ""
    signature: str = ""
    tools: tuple[Tool, ...] = ()
    usage: dict[str, Any] | None = None
    error: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    keep: bool = False


class ModelServer:
    """The answers to the next requests, and the requests so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []
        self._answers: list[Answer] = []
        self.over = threading.Event()
        self.gone = threading.Event()

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
    for piece in _pieces(answer.thinking) if answer.thinking else ():
        yield base | {"choices": [{"index": 0, "delta": {"reasoning_content": piece}, "finish_reason": None}]}
    for piece in _pieces(answer.text):
        yield base | {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
        if answer.cut:
            return
    if answer.error is not None:
        yield {"error": {"type": "server_error", "message": answer.error}}
        return
    for call in _openai_calls(answer):
        yield base | {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}
    yield base | {"choices": [{"index": 0, "delta": {}, "finish_reason": answer.stop}]}
    usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
    yield base | {"choices": [], "usage": answer.usage or usage}
    yield None


def _openai_calls(answer: Answer) -> Iterator[dict[str, Any]]:
    if answer.calls:
        yield {"index": 0, "id": "t", "type": "function", "function": {"name": "x", "arguments": "{}"}}
    for index, tool in enumerate(answer.tools):
        yield {"index": index, "id": tool.id, "type": "function", "function": {"name": tool.name, "arguments": ""}}
        for piece in _pieces(tool.arguments):
            yield {"index": index, "function": {"arguments": piece}}


def _anthropic(answer: Answer) -> Iterator[dict[str, Any] | None]:
    message: dict[str, Any] = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": []}
    usage = answer.usage or {"input_tokens": 11}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": usage | {"output_tokens": 0}}
    yield {"type": "message_start", "message": message}
    at = 0
    if answer.thinking:
        thinking = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(answer.thinking)]
        signed = {"type": "signature_delta", "signature": answer.signature}
        yield from _anthropic_block(at, {"type": "thinking", "thinking": "", "signature": ""}, [*thinking, signed])
        at += 1
    said = [{"type": "text_delta", "text": piece} for piece in _pieces(answer.text)]
    yield from _anthropic_block(at, {"type": "text", "text": ""}, said[:1] if answer.cut else said, cut=answer.cut)
    if answer.cut:
        return
    if answer.error is not None:
        yield {"type": "error", "error": {"type": "api_error", "message": answer.error}}
        return
    for tool in (Tool("t", "x", ""),) * answer.calls + answer.tools:
        at += 1
        call = {"type": "tool_use", "id": tool.id, "name": tool.name, "input": {}}
        pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(tool.arguments)]
        yield from _anthropic_block(at, call, pieces)
    stop = {"stop": "end_turn", "length": "max_tokens"}.get(answer.stop, answer.stop)
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": stop, "stop_sequence": None},
        "usage": {"output_tokens": 3},
    }
    yield {"type": "message_stop"}


def _anthropic_block(
    index: int, block: dict[str, Any], deltas: list[dict[str, Any]], *, cut: bool = False
) -> Iterator[dict[str, Any]]:
    yield {"type": "content_block_start", "index": index, "content_block": block}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    if not cut:
        yield {"type": "content_block_stop", "index": index}


def _responses(answer: Answer) -> Iterator[dict[str, Any] | None]:
    part = {"type": "output_text", "text": answer.text, "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    usage = answer.usage or {"input_tokens": 11, "output_tokens": 3, "total_tokens": 14}
    response: dict[str, Any] = {"id": "resp_1", "object": "response", "status": "in_progress", "output": []}
    yield {"type": "response.created", "response": response}
    started = item | {"status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "output_index": 0, "item": started}
    for piece in _pieces(answer.text):
        at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        yield {"type": "response.output_text.delta", **at, "delta": piece}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    done = response | {"status": "completed", "output": [item], "usage": usage}
    yield {"type": "response.completed", "response": done}


_STREAMS = {"/chat/completions": _openai, "/messages": _anthropic, "/responses": _responses}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10  # seconds until an idle connection is closed
    model: ModelServer

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        if len(sent := self.rfile.read(length)) < length:  # the client has disconnected
            self.model.gone.set()
            return
        body = json.loads(sent)
        self.model.asked.append(Asked(self.path, dict(self.headers), body))
        answer = self.model.next()
        self.close_connection = not answer.keep
        if answer.raw is not None or self._stream_of() is None:
            self._send(answer, answer.raw or json.dumps({"summary": answer.text}).encode())
        elif answer.status != 200:
            error = {"type": "error", "error": {"type": "invalid_request_error", "message": answer.text}}
            self._send(answer, json.dumps(error).encode())
        else:
            self._stream(answer)

    def do_GET(self) -> None:
        """Answer that there is nothing: some programs ask for a list of models."""
        self.close_connection = True
        self._send(Answer(status=404), b"{}")

    def _stream_of(self) -> Any:
        """Return the protocol of the path."""
        path = self.path.partition("?")[0]
        return next((stream for end, stream in _STREAMS.items() if path.endswith(end)), None)

    def _send(self, answer: Answer, data: bytes) -> None:
        self.model.over.wait(answer.pause)
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
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
        self.send_header("Connection", "keep-alive" if answer.keep else "close")
        self.end_headers()
        stream = self._stream_of()
        assert stream is not None
        for event in stream(answer):
            self.model.over.wait(answer.pause)
            data = "[DONE]" if event is None else json.dumps(event)
            named = "" if event is None or stream is _openai else f"event: {event['type']}\n"
            self._chunk(f"{named}data: {data}\n\n".encode())
        if not answer.cut:
            self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        try:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            self.wfile.flush()
        except OSError:
            self.model.gone.set()

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def serving(port: int = 0) -> Iterator[ModelServer]:
    """Run a server for a block, on a free local port or the given one."""
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
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
