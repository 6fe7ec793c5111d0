"""A client of server-sent events, written from the HTML standard alone: how a stream of bytes is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Received(NamedTuple):
    """One event as a page gets it."""

    kind: str
    data: str
    last_id: str


class EventSource:
    """Bytes in, events out; `last_id` is what a reconnect would send, `retry` the last wish of the server."""

    def __init__(self) -> None:
        self.last_id = ""
        self.retry: int | None = None
        self.comments = 0
        self._text = b""
        self._kind = self._id_buffer = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> Iterator[Received]:
        """The events that end in these bytes. A line that has not ended waits."""
        self._text += data
        *lines, self._text = re.split(b"\r\n|\r|\n", self._text)
        for line in lines:
            yield from self._line(line.decode("utf-8"))

    def _line(self, line: str) -> Iterator[Received]:
        if not line:
            yield from self._dispatch()
        elif line.startswith(":"):
            self.comments += 1
        else:
            name, _, value = line.partition(":")
            self._field(name, value.removeprefix(" "))

    def _field(self, name: str, value: str) -> None:
        if name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id_buffer = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry = int(value)

    def _dispatch(self) -> Iterator[Received]:
        self.last_id = self._id_buffer
        kind, data = self._kind or "message", self._data
        self._kind, self._data = "", []
        if data:
            yield Received(kind, "\n".join(data), self.last_id)
