"""The client of the gateway, and the verbs that use it: `status`, `sessions` and `send`.

Rules:

- The client connects only to the given address: no proxies, no redirects. The token goes into one header and nowhere else.
  Without a given address it connects to the gateway of the store, on this machine only.
- Problem documents become the errors that they describe. Responses that are not from a gateway, or too large, are errors.
- `sessions` works without a gateway: it reads the store instead.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import socket
import ssl
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import click

from sessile import errors
from sessile.cli.command import App, load_settings, verb
from sessile.cli.output import Cell, Column
from sessile.core.visible import visible, visible_line
from sessile.errors import Invalid, InvalidId, NotFound, Refused, RunnerFailed
from sessile.gateway.conversations.inbound import agent_workspace, routing_of
from sessile.gateway.conversations.presence import Presence
from sessile.gateway.conversations.registry import Conversation, ConversationFilter, Conversations
from sessile.render.status import COLUMNS, SessionKind, cells_of, listing, session_kind, session_row
from sessile.render.wording import many
from sessile.storage.secret_file import keep_secret

if TYPE_CHECKING:
    from sessile.core.secret import Secret

# -- client

_CONNECT_TIMEOUT, _READ_TIMEOUT = 5.0, 60.0  # seconds; streams send a keep-alive every fifteen
_MAX_DOCUMENT = 64 << 20  # bytes
_MAX_LINE = 16 << 20  # bytes of a line in a stream
_URN = "urn:sessile:problem:"
_NOT_A_GATEWAY = "check that the URL is that of a gateway"
_TOKEN_HINT = "the token is in gateway.token of the gateway's store, or in the file that its gateway.tokenFile names"
_LOST = "check that it is running: sessile status"


class Event(NamedTuple):
    """An event of a stream."""

    name: str
    data: Any


class Unreachable(errors.NotFound):
    """No gateway answers at the address.

    Start it with `sessile serve`, or check `--url`.
    """


class BrokenOff(errors.ExtensionFailed):
    """The connection to the gateway was lost.

    Retry: a message with the same idempotency key is delivered once.
    """


class GatewayClient:
    """A client of one gateway."""

    def __init__(self, url: str, token: Secret) -> None:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and not parts.username and not parts.query
        if not usable or parts.path not in ("", "/"):
            raise errors.Invalid(f"invalid gateway URL {url[:120]!r}", hint="use a URL such as http://127.0.0.1:8787")
        try:
            port = parts.port
        except ValueError as error:
            raise errors.Invalid(f"invalid port in gateway URL {url[:120]!r}", hint="use 1 to 65535") from error
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.host: str = parts.hostname or ""
        self.secure = parts.scheme == "https"
        self._port = port
        self._token = token

    # -- documents

    def get(self, path: str, **query: object) -> Any:
        """Return the document at a path; query members that are `None` are omitted."""
        given = {name: value for name, value in query.items() if value is not None}
        return self._document("GET", f"{path}?{urlencode(given)}" if given else path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post a body and return the document in the response."""
        return self._document("POST", path, body)

    def _document(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        connection = self._connect()
        try:
            response = self._response(connection, method, path, body)
            return _decode(self._read(response), self.url)
        finally:
            connection.close()

    # -- streams

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Event]:
        """Post a body and yield the events of the response as they arrive."""
        connection = self._connect()
        try:
            response = self._response(connection, "POST", path, {**body})
            if response.getheader("content-type", "").partition(";")[0] != "text/event-stream":
                yield Event("document", _decode(self._read(response), self.url))
                return
            yield from self._events(response)
        finally:
            connection.close()

    def _events(self, response: http.client.HTTPResponse) -> Iterator[Event]:
        name = "message"
        data: list[str] = []
        while True:
            with _typed_errors(self.url):
                line = response.readline(_MAX_LINE)
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            field, _, value = text.partition(":")
            value = value.removeprefix(" ")
            if not text and data:
                yield Event(name, _decode("\n".join(data).encode(), self.url))
            if not text:
                name, data = "message", []
            elif field == "event":
                name = value
            elif field == "data":
                data.append(value)

    # -- the connection

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        """Return the whole body; raise if it is incomplete or too large."""
        with _typed_errors(self.url):
            data = response.read(_MAX_DOCUMENT + 1)
            if len(data) > _MAX_DOCUMENT:
                limit = f"{_MAX_DOCUMENT >> 20} MiB"
                raise errors.TooLarge(f"the response of {self.url} is larger than {limit}", hint="request less")
            if response.length:
                raise http.client.IncompleteRead(data, response.length)
        return data

    def _connect(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        if self.secure:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(self.host, self._port, timeout=_CONNECT_TIMEOUT, context=context)
        else:
            connection = http.client.HTTPConnection(self.host, self._port, timeout=_CONNECT_TIMEOUT)
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreachable(f"no gateway at {self.url}: {reason}", hint="start it: sessile serve") from error
        connection.sock.settimeout(_READ_TIMEOUT)
        return connection

    def _response(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Mapping[str, Any] | None
    ) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {self._token.reveal()}", "Accept": "application/json, text/event-stream"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        with _typed_errors(self.url):
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise _problem(response.status, response.read(_MAX_LINE), self.url)
        if not 200 <= response.status < 300:
            raise errors.ExtensionFailed(f"unexpected status {response.status} from {self.url}", hint=_NOT_A_GATEWAY)
        return response


@contextmanager
def _typed_errors(url: str) -> Iterator[None]:
    """Turn errors of the connection into `BrokenOff`."""
    try:
        yield
    except errors.SessileError:
        raise
    except TimeoutError as error:
        raise BrokenOff(f"no response from {url} for {_READ_TIMEOUT:.0f} s", hint=_LOST) from error
    except (OSError, http.client.HTTPException) as error:
        raise BrokenOff(f"lost the connection to {url}", hint=_LOST) from error


def holding(document: Any, url: str, *names: str) -> Any:
    """Return the document; raise if it lacks one of these members, because another program or release sent it."""
    missing = [name for name in names if not isinstance(document, dict) or name not in document]
    if missing:
        raise errors.ExtensionFailed(f"the response of {url} has no member {missing[0]!r}", hint=_NOT_A_GATEWAY)
    return document


def _decode(data: bytes, url: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise errors.ExtensionFailed(f"the response of {url} is not JSON", hint=_NOT_A_GATEWAY) from error


def _problem(status: int, data: bytes, url: str) -> errors.SessileError:
    """Return the error that a problem document describes."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    members = document if isinstance(document, dict) else {}
    detail = members.get("detail") or members.get("title")
    hint = members.get("hint") if members else _NOT_A_GATEWAY
    if status == errors.Unauthorized.status:
        hint = _TOKEN_HINT  # the gateway's own hint is for programmers
    message = visible_line(detail) if isinstance(detail, str) else f"status {status} from {url}"
    return problem_class(members.get("type"), status)(message, hint=hint if isinstance(hint, str) else None)


def problem_class(name: object, status: int) -> type[errors.SessileError]:
    """Return the class of an error by the type of its problem; of an unknown type, by its status."""
    known = {kebab(kind.__name__): kind for kind in _kinds(errors.SessileError)}
    if isinstance(name, str) and (found := known.get(name.removeprefix(_URN))) is not None:
        return found
    # The first of a status is the most general one, because subclasses follow their base.
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
    """Return the problem type of a class name: `session-not-found` for `SessionNotFound`."""
    return "".join(f"-{char.lower()}" if char.isupper() else char for char in name).lstrip("-")


# -- connection

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def remote(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select another gateway to a verb."""
    for option in (
        click.option("--token-file", metavar="FILE", help="File with the token of that gateway."),
        click.option("--url", metavar="URL", help="URL of another gateway, e.g. through an SSH tunnel."),
    ):
        function = option(function)
    return function


def connect(app: App, url: str | None, token_file: str | None) -> GatewayClient:
    """Return a client of the gateway at `url`, or of this store's; raise `NotFound` if none is running."""
    if url is not None:
        if token_file is None:
            raise Invalid("--url requires --token-file", hint="copy the token of that gateway into a file")
        path = os.path.abspath(os.path.join(app.here, os.path.expanduser(token_file)))
        client = GatewayClient(url, keep_secret(path, make=False))
        if not client.secure and client.host not in _LOOPBACK:
            app.out.note(f"note: the token is sent to {client.host} unencrypted; use https or an SSH tunnel")
        return client
    if token_file is not None:
        raise Invalid("--token-file requires --url", hint="omit it: this store's token is found automatically")
    presence = Presence(app.store)
    found = presence.look()
    if found is not None and found.alive and found.note is not None:
        if not _is_here(found.note.url):
            raise Refused(
                f"the gateway's note names {found.note.url[:120]!r}, which is not an address of this machine",
                path=found.path,
                hint="pass --url and --token-file for a gateway on another machine",
            )
        return GatewayClient(found.note.url, keep_secret(found.note.token_file, make=False))
    if presence.is_held():
        raise NotFound("the gateway of this store is starting", hint="try again in a moment")
    crashed = "" if found is None else "; the last one did not shut down cleanly"
    raise NotFound(
        f"no gateway is running on this store{crashed}", path=app.store.name, hint=f"start it: {app.command} serve"
    )


def _is_here(url: str) -> bool:
    """Return whether a URL has an address of this machine. The note is a file, and a file must not choose who gets a token."""
    host = urlsplit(url).hostname or ""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family) as sock:
            sock.bind((host, 0))
    except (ValueError, OSError):
        return False
    return True


# -- status and sessions

Json = dict[str, Any]

_PAGE = 1000  # rows per request
_TERMINAL_LIMIT = 50  # default number of rows at a terminal
_STATUS = (
    "version",
    "startedAt",
    "now",
    "root",
    "turns",
    "agents",
    "conversations",
    "recent",
    "problems",
    "conversation",
)
_LIST = ("ts", "path", "count", "hidden", "sessions")
_NOTHING = 1  # exit code for an empty list


@verb(
    "sessile status          the gateway, its store and the latest conversations",
    "sessile status main     one conversation: model, context size, compactions",
    "sessile status --url http://127.0.0.1:8787 --token-file there.token",
    name="status",
)
@click.argument("key", required=False)
@remote
def status_verb(app: App, key: str | None, url: str | None, token_file: str | None) -> int:
    """Show the status of the gateway: its address, store, running turns and latest conversations.

    The exit code is 3 if no gateway is running.
    """
    client = connect(app, url, token_file)
    status = holding(client.get("/v1/status", key=key), client.url, *_STATUS)
    if app.json:
        app.out.document("status/1", url=client.url, **status)
    elif key is not None:
        for line in status["conversation"]["lines"]:
            app.out.line(line)
    else:
        _print_status(app, client.url, status)
    for problem in status["problems"]:
        app.out.note(f"sessile: {problem['message']}", "failed")
        app.out.note(f"hint: {problem['hint']}")
    return 0


def _print_status(app: App, url: str, status: Json) -> None:
    turns = status["turns"]
    app.out.line(f"gateway   {url}  sessile {status['version']}")
    app.out.line(f"started   {app.out.moment(status['startedAt']).text if app.out.is_terminal else _iso(app, status)}")
    app.out.line(f"store     {app.tilde(status['root'])}")
    app.out.line(f"turns     {turns['running']} running, {turns['queued']} queued")
    for agent in status["agents"]:
        name = visible_line(f"{agent['id']}  {agent['model'] or agent['runner']}")
        app.out.line(f"agent     {name}  {many(agent['conversations'], 'conversation')}")
    app.out.line("")
    rows = [_documented(row, status["now"]) for row in status["recent"]]
    _print_rows(app, rows, status["now"], ("Key", "Age", "Model", "Tokens (ctx %)", "Compactions"))
    more = status["conversations"] - len(rows)
    if more > 0:
        app.out.note(f"… {more} more. Show: {app.command} sessions")


def _iso(app: App, status: Json) -> str:
    return app.out.iso(status["startedAt"]) or "?"


@verb(
    "sessile sessions                 all conversations, newest first",
    "sessile sessions --active 60     active within the last hour",
    "sessile sessions --agent ops --json",
    name="sessions",
)
@click.option("--active", type=click.IntRange(1), metavar="N", help="Only conversations of the last N minutes.")
@click.option("--agent", metavar="ID", help="Only conversations of this agent.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(0),
    help=f"Maximum number of conversations; 0 for all (terminal: {_TERMINAL_LIMIT}).",
)
@click.option("--config", "named", metavar="FILE", help="Configuration file (config.toml in the store).")
@remote
def sessions_verb(
    app: App,
    active: int | None,
    agent: str | None,
    limit: int | None,
    named: str | None,
    url: str | None,
    token_file: str | None,
) -> int:
    """List conversations with their keys, models, context sizes and flags.

    The list comes from the running gateway, or from the store if none is running.
    """
    if limit is None:
        limit = 0 if app.json or not app.out.is_terminal else _TERMINAL_LIMIT
    found = _from_gateway(app, url, token_file, active, agent) or _from_store(app, active, agent, named)
    document = listing(found.path, found.rows, found.now, active_minutes=active)
    rows = document["sessions"][: limit or None]
    beyond = len(document["sessions"]) - len(rows)
    hidden = {reason: count for reason, count in (("filtered", found.hidden), ("beyond_limit", beyond)) if count}
    if app.json:
        app.out.document("sessions/1", **{**document, "sessions": rows, "count": len(rows)}, hidden=hidden)
        return 0 if rows else _NOTHING
    _print_rows(app, rows, found.now)
    if beyond:
        app.out.note(f"… {beyond} more. Show: -n 0")
    if not rows:
        empty = f"no conversation matches; {found.hidden} hidden" if found.hidden else "no conversations yet"
        app.out.note(f'{empty}. Start one: {app.command} send "hello"')
    return 0 if rows else _NOTHING


class _List(NamedTuple):
    """Conversations in the documented form, and how many the filter hides."""

    path: str
    rows: list[Json]
    now: int
    hidden: int


def _from_gateway(
    app: App, url: str | None, token_file: str | None, active: int | None, agent: str | None
) -> _List | None:
    """Return the list of the gateway; `None` if none is running on this store."""
    try:
        client = connect(app, url, token_file)
        rows: list[Json] = []
        while True:
            document = client.get("/v1/sessions", active=active, agent=agent, limit=_PAGE, offset=len(rows))
            page = holding(document, client.url, *_LIST)
            rows += page["sessions"]
            if not page["sessions"] or len(rows) >= page["count"]:
                break
    except Unreachable as error:
        if url is not None:
            raise
        app.out.note(f"note: {error.message}; reading the store instead")
        return None
    except NotFound:
        if url is not None:
            raise
        return None
    return _List(page["path"], [_documented(row, page["ts"]) for row in rows], page["ts"], page["hidden"])


def _documented(row: Json, now: int) -> Json:
    """Return a row of the gateway in the documented form."""
    return session_row(row["key"], row["kind"], {**row, **row.get("flags", {})}, now)


def _from_store(app: App, active: int | None, agent: str | None, named: str | None) -> _List:
    """Return the list from the store."""
    config = load_settings(app, named).config
    with Conversations(
        app.store,
        workspace=lambda name: agent_workspace(config, app.places.root, name),
        routing=routing_of(config),
        hold=None,
    ) as conversations:
        found = conversations.list(ConversationFilter(active_minutes=active), agent=agent)
        now = app.store.now()
        rows = [session_row(row.text, _kind(row), row.entry, now) for row in found.rows]
        for problem in conversations.problems():
            app.out.note(f"sessile: {problem.message} ({problem.path}); showing the last good copy", "failed")
        return _List(found.path, rows, now, found.hidden)


def _kind(row: Conversation) -> SessionKind:
    try:
        return session_kind(row.key, row.entry.known("chatType"))
    except InvalidId:
        return "unknown"  # not a valid key


def _print_rows(app: App, rows: list[Json], now: int, shown: Sequence[str] | None = None) -> None:
    """Print conversations as a table of the documented columns, or of some of them."""
    names = COLUMNS if shown is None else shown
    columns = [Column(name, soft=name in ("Key", "Model"), wide=name == "Flags") for name in names]

    def cells(row: Json) -> dict[str, Cell]:
        values = {"Key": row["key"], "Age": app.out.iso(row["updatedAt"]) or "", "Model": row["model"] or ""}
        texts = zip(COLUMNS, cells_of(row, now), strict=True)
        found = {name: Cell(text, "strong" if name == "Key" else "plain", values.get(name)) for name, text in texts}
        count = row["compactionCount"]
        return {**found, "Compactions": Cell("unknown" if count is None else str(count))}

    app.out.table(columns, ([cells(row)[name] for name in names] for row in rows))


# -- send

_RETRIES = (0.1, 0.5, 2.0)  # seconds before a message is sent again
_REPLY = ("text", "notices", "remarks", "reasoning", "silent", "withheld", "stop", "error")
_KEPT = "restart it: messages that it received are kept, and answered or marked as interrupted"
_ABORTED = 1  # exit code for an aborted turn


@verb(
    'sessile send "what did we decide?"      to the main conversation',
    "git diff | sessile send --key review   from stdin",
    "sessile send --channel telegram --peer 42 --no-wait hello",
    name="send",
)
@click.argument("text", nargs=-1)
@click.option("--key", metavar="KEY", help="Key of the conversation; default: the main one.")
@click.option("--agent", metavar="ID", help="Agent that answers.")
@click.option("--channel", metavar="NAME", help="Channel that the message comes from.")
@click.option("--account", metavar="ID", help="Our account in that channel.")
@click.option("--peer", metavar="ID", help="Sender of the message, or the group it was sent to.")
@click.option("--chat-type", type=click.Choice(["direct", "group", "channel"]), help="Type of the chat.")
@click.option("--thread", metavar="ID", help="Thread or topic in that chat.")
@click.option("--queue", type=click.Choice(["followup", "interrupt"]), help="What to do if a turn is running.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the reply; print the id of the turn.")
@remote
def send_verb(app: App, text: tuple[str, ...], url: str | None, token_file: str | None, **options: Any) -> int:
    """Send a message to a conversation and print the reply as it is written.

    If the connection is lost, the message is sent again with the same idempotency key, so it is delivered once.
    """
    message = " ".join(text) if text and text != ("-",) else _read_stdin(app)
    if not message.strip():
        raise Invalid("the message is empty", hint='sessile send "hello", or pass it on stdin')
    client = connect(app, url, token_file)
    body = {"message": message, "idempotencyKey": str(uuid.uuid4()), **_conversation(options)}
    if options["queue"] is not None:
        body["queue"] = options["queue"]
    if options["no_wait"]:
        sent = _retry(lambda: client.post("/v1/chat/send", body))
        return _print_sent(app, holding(sent, client.url, "turn", "key", "state"))
    return _Sending(app, client, body).outcome()


def _read_stdin(app: App) -> str:
    """Return the text on stdin, with a prompt at a terminal."""
    if sys.stdin.isatty():
        app.out.note("type a message; Ctrl-D sends it")
    return sys.stdin.read()


def _conversation(options: Json) -> Json:
    """Return the members that select the conversation: its key, or the origin of the message."""
    names = {"agent": "agent", "channel": "channel", "account": "account", "peer": "peer", "chat_type": "chatType"}
    inbound = {member: options[name] for name, member in {**names, "thread": "thread"}.items() if options[name]}
    if options["key"] is None:
        return {"inbound": inbound} if inbound else {}
    if inbound:
        raise Invalid("--key cannot be combined with other conversation options", hint="pass --key alone, or omit it")
    return {"key": options["key"]}


def _retry(send: Callable[[], Any]) -> Any:
    """Send, and retry if the connection is lost; the gateway recognizes the idempotency key, even after a restart.

    If the gateway does not come back, raise the first error, because the message may have been kept.
    """
    broken: BrokenOff | None = None
    pauses = iter(_RETRIES)
    while True:
        try:
            return send()
        except BrokenOff as error:
            broken = error
        except Unreachable:
            if broken is None:
                raise
        pause = next(pauses, None)
        if pause is None:
            broken.hint = _KEPT
            raise broken
        time.sleep(pause)


def _print_sent(app: App, sent: Json) -> int:
    if app.json:
        app.out.document("send/1", **sent)
    else:
        app.out.line(sent["turn"])
        app.out.note(f"{sent['state']} in {sent['key']}")
    return 0


class _Sending:
    """Sends a message and prints the reply as it arrives."""

    def __init__(self, app: App, client: GatewayClient, body: Json) -> None:
        self._app = app
        self._client = client
        self._body = {**body, "stream": True}
        self._printed = 0  # characters of the reply so far; a restarted stream repeats them

    def outcome(self) -> int:
        """Send the message, print the reply and return the exit code."""
        try:
            sent = _retry(self._stream)
        finally:
            if self._printed and not self._app.json:
                sys.stdout.write("\n")
        reply = sent["reply"]
        if self._app.json:
            self._app.out.document("send/1", **sent)
        else:
            self._finish(reply)
        if reply["stop"] == "error" or reply["error"]:
            hint = "your message is kept; run `sessile doctor` to find the cause"
            raise RunnerFailed(f"no reply: {reply['error'] or 'unknown error'}", hint=hint)
        return _ABORTED if reply["stop"] == "aborted" else 0

    def _stream(self) -> Json:
        received = 0
        for event in self._client.stream("/v1/chat/send", self._body):
            if event.name == "delta":
                text = str(holding(event.data, self._client.url, "text")["text"])
                new = text[max(self._printed - received, 0) :]
                received += len(text)
                self._print(new)
            elif event.name in ("reply", "document"):
                sent: Json = holding(event.data, self._client.url, "reply")
                holding(sent["reply"], self._client.url, *_REPLY)
                return sent
        raise BrokenOff("the stream ended before the reply was complete", hint="your message is kept: sessile status")

    def _print(self, text: str) -> None:
        self._printed += len(text)
        if text and not self._app.json:
            sys.stdout.write(visible(text))
            sys.stdout.flush()

    def _finish(self, reply: Json) -> None:
        """Print what the stream did not include: command replies, notices, and the reason for an empty reply."""
        text = reply["text"] or ""
        if text and not self._printed:
            self._app.out.line(text)
        for notice in (*reply["notices"], reply["reasoning"] or "", *reply["remarks"]):
            if notice:
                self._app.out.note(notice, "plain")
        if reply["silent"]:
            self._app.out.note("no reply: the agent chose to stay silent")
        if reply["withheld"]:
            self._app.out.note(f"the reply was withheld: {reply['withheld']}")
        if reply["stop"] == "aborted":
            self._app.out.note("the turn was aborted")
