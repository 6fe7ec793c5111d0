"""A client of server-sent events, written from the HTML standard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Received(NamedTuple):
    """An event as a page receives it."""

    kind: str
    data: str
    last_id: str


class EventSource:
    """Parses bytes into events; `last_id` is the id for a reconnect, `retry` the server's last reconnection time."""

    def __init__(self) -> None:
        self.last_id = ""
        self.retry: int | None = None
        self.comments = 0
        self._text = b""
        self._kind = self._id_buffer = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> Iterator[Received]:
        """Return the events that are complete after these bytes; a partial line is buffered."""
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
