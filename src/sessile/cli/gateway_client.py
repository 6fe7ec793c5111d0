"""A client of the gateway, this machine's or another's: requests, answers, and the errors that they tell.

Rules: it connects to the one address that it was given and to no other: no proxy of the environment, no redirect. The token goes
into one header and nowhere else. A problem that the gateway tells becomes the same error that it was there; one that nobody can
read becomes an error that says so. An answer that is larger than anybody needs is not read to its end.

It knows paths, but not what the documents mean.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from sessile import errors
from sessile.core.visible import visible_line

if TYPE_CHECKING:
    from sessile.core.secret import Secret

_CONNECTING, _ANSWERING = 5.0, 60.0  # seconds; a stream breaks its silence every fifteen
_MOST = 64 << 20  # bytes of a document
_LONGEST = 16 << 20  # bytes of a line of a stream
_URN = "urn:sessile:problem:"
_OTHER = "is that the address of a gateway itself?"
_TOKEN = "the token of a gateway is in gateway.token of its store, or where its gateway.tokenFile says"
_BROKEN = "look whether it still runs: sessile status"


class Event(NamedTuple):
    """One event of a stream."""

    name: str
    data: Any


class Unreachable(errors.NotFound):
    """Nobody answers at that address.

    Start the gateway with `sessile serve`, or look at `--url`.
    """


class BrokenOff(errors.ExtensionFailed):
    """The connection to the gateway broke off.

    Ask again: a message with the same idempotency key is said once.
    """


class GatewayClient:
    """Asks one gateway."""

    def __init__(self, url: str, token: Secret) -> None:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and not parts.username and not parts.query
        if not usable or parts.path not in ("", "/"):
            raise errors.Invalid(f"{url[:120]!r} is no address of a gateway", hint="such as http://127.0.0.1:8787")
        try:
            port = parts.port
        except ValueError as error:
            raise errors.Invalid(f"{url[:120]!r} has a port that is none", hint="1 to 65535") from error
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.host: str = parts.hostname or ""
        self.secure = parts.scheme == "https"
        self._port = port
        self._token = token

    # -- documents

    def get(self, path: str, **query: object) -> Any:
        """The document at a path; what is `None` in the query is left out."""
        asked = {name: value for name, value in query.items() if value is not None}
        return self._document("GET", f"{path}?{urlencode(asked)}" if asked else path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The document that answers a body."""
        return self._document("POST", path, body)

    def _document(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        connection = self._connected()
        try:
            response = self._response(connection, method, path, body)
            return _decoded(self._whole(response), self.url)
        finally:
            connection.close()

    # -- streams

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Event]:
        """The events that answer a body, as they come."""
        connection = self._connected()
        try:
            response = self._response(connection, "POST", path, {**body})
            if response.getheader("content-type", "").partition(";")[0] != "text/event-stream":
                yield Event("document", _decoded(self._whole(response), self.url))
                return
            yield from self._events(response)
        finally:
            connection.close()

    def _events(self, response: http.client.HTTPResponse) -> Iterator[Event]:
        name = "message"
        data: list[str] = []
        while True:
            with _wire(self.url):
                line = response.readline(_LONGEST)
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            field, _, value = text.partition(":")
            value = value.removeprefix(" ")
            if not text and data:
                yield Event(name, _decoded("\n".join(data).encode(), self.url))
            if not text:
                name, data = "message", []
            elif field == "event":
                name = value
            elif field == "data":
                data.append(value)

    # -- the wire

    def _whole(self, response: http.client.HTTPResponse) -> bytes:
        """All of an answer; half of one is an error."""
        with _wire(self.url):
            data = response.read(_MOST + 1)
            if len(data) > _MOST:
                raise errors.TooLarge(f"the answer of {self.url} is larger than {_MOST >> 20} MiB", hint="ask for less")
            if response.length:
                raise http.client.IncompleteRead(data, response.length)
        return data

    def _connected(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        if self.secure:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(self.host, self._port, timeout=_CONNECTING, context=context)
        else:
            connection = http.client.HTTPConnection(self.host, self._port, timeout=_CONNECTING)
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreachable(
                f"no gateway answers at {self.url}: {reason}", hint="start it with: sessile serve"
            ) from error
        connection.sock.settimeout(_ANSWERING)
        return connection

    def _response(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Mapping[str, Any] | None
    ) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {self._token.reveal()}", "Accept": "application/json, text/event-stream"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        with _wire(self.url):
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise _problem(response.status, response.read(_LONGEST), self.url)
        if not 200 <= response.status < 300:
            raise errors.ExtensionFailed(
                f"{self.url} answers with {response.status}, which no gateway does",
                hint=_OTHER,
            )
        return response


@contextmanager
def _wire(url: str) -> Iterator[None]:
    """Give errors of the wire their typed form; those of ours pass."""
    try:
        yield
    except errors.SessileError:
        raise
    except TimeoutError as error:
        raise BrokenOff(f"{url} says nothing for {_ANSWERING:.0f} s", hint=_BROKEN) from error
    except (OSError, http.client.HTTPException) as error:
        raise BrokenOff(f"the connection to {url} broke off", hint=_BROKEN) from error


def holding(document: Any, url: str, *names: str) -> Any:
    """A document, if it has these members: another program at that address, or another release, answers otherwise."""
    missing = [name for name in names if not isinstance(document, dict) or name not in document]
    if missing:
        raise errors.ExtensionFailed(f"{url} answers without {missing[0]!r}", hint=_OTHER)
    return document


def _decoded(data: bytes, url: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise errors.ExtensionFailed(f"what {url} answers is no JSON", hint=_OTHER) from error


# -- problems


def _problem(status: int, data: bytes, url: str) -> errors.SessileError:
    """The error that a problem document tells."""
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        told = None
    members = told if isinstance(told, dict) else {}
    detail = members.get("detail") or members.get("title")
    hint = members.get("hint") if members else _OTHER
    if status == errors.Unauthorized.status:
        hint = _TOKEN  # what the gateway says is for whoever writes a program
    message = visible_line(detail) if isinstance(detail, str) else f"{url} answers with {status}"
    return problem_class(members.get("type"), status)(message, hint=hint if isinstance(hint, str) else None)


def problem_class(name: object, status: int) -> type[errors.SessileError]:
    """The class of an error by the name of its problem; of one that is not known here, by its status."""
    known = {kebab(kind.__name__): kind for kind in _kinds(errors.SessileError)}
    if isinstance(name, str) and (found := known.get(name.removeprefix(_URN))) is not None:
        return found
    # The first of a status is the most general: subclasses come behind their base, which itself says nothing.
    named = (kind for kind in known.values() if kind.status == status and kind is not errors.SessileError)
    return next(named, errors.ExtensionFailed)


def _kinds(base: type[errors.SessileError]) -> Iterator[type[errors.SessileError]]:
    waiting = [base]
    while waiting:
        kind = waiting.pop(0)
        if kind.__module__ == errors.__name__:
            yield kind
        waiting += kind.__subclasses__()


def kebab(name: str) -> str:
    """`SessionNotFound` as a problem is called: `session-not-found`."""
    return "".join(f"-{char.lower()}" if char.isupper() else char for char in name).lstrip("-")
