"""Asking the gateway how it is, and which conversations there are.

The list of conversations needs no gateway: without one it is read from the store itself.

Saying something in a conversation of the gateway, and reading the reply as it is written.

Which gateway a verb asks: that of this store, found by the note that it leaves there, or one that was named.

A client of the gateway, this machine's or another's: requests, answers, and the errors that they tell.

Rules: it connects to the one address that it was given and to no other: no proxy of the environment, no redirect. The token goes
into one header and nowhere else. A problem that the gateway tells becomes the same error that it was there; one that nobody can
read becomes an error that says so. An answer that is larger than anybody needs is not read to its end.

It knows paths, but not what the documents mean.
"""

from __future__ import annotations

import http.client
import json
import os
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
from sessile.cli.app import App, verb
from sessile.cli.output import Cell, Column
from sessile.core.visible import visible, visible_line
from sessile.errors import Invalid, NotFound, RunnerFailed
from sessile.render.wording import many

if TYPE_CHECKING:
    from sessile.core.secret import Secret
    from sessile.gateway.conversations.registry import Conversation
    from sessile.render.status import SessionKind


# --- gateway client

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


# --- connecting

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def remote(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of verbs that can ask another machine's gateway."""
    for option in (
        click.option("--token-file", metavar="FILE", help="A file with the token of that gateway."),
        click.option("--url", metavar="URL", help="Another gateway than that of this store, such as an ssh tunnel's."),
    ):
        function = option(function)
    return function


def connect(app: App, url: str | None, token_file: str | None) -> GatewayClient:
    """The gateway that was named, or that of this store; raises `NotFound` if there is none."""
    from sessile.gateway.conversations.presence import Presence
    from sessile.storage.secret_file import keep_secret

    if url is not None:
        if token_file is None:
            raise Invalid(
                "--url needs the token of that gateway", hint="copy it into a file, and say --token-file FILE"
            )
        path = os.path.abspath(os.path.join(app.here, os.path.expanduser(token_file)))
        client = GatewayClient(url, keep_secret(path, make=False))
        if not client.secure and client.host not in _LOOPBACK:
            app.out.note(f"note: the token goes to {client.host} unencrypted; an ssh tunnel or https is safer")
        return client
    if token_file is not None:
        raise Invalid("--token-file goes with --url", hint="the token of this store's gateway is found by itself")
    presence = Presence(app.store)
    found = presence.look()
    if found is not None and found.alive and found.note is not None:
        return GatewayClient(found.note.url, keep_secret(found.note.token_file, make=False))
    if presence.is_held():
        raise NotFound("the gateway of this store is just starting", hint="try again in a moment")
    gone = "" if found is None else "; the last one ended without a word"
    raise NotFound(
        f"no gateway runs on this store{gone}", path=app.store.name, hint=f"start it with: {app.command} serve"
    )


# --- asking

Json = dict[str, Any]

_PAGE = 1000  # rows that a gateway gives at once
_AT_A_TERMINAL = 50  # rows, unless somebody wants others
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
_NOTHING = 1  # the exit code where nothing was found


# -- status


@verb(
    "sessile status          the gateway, its store, the latest conversations",
    "sessile status main     one: model, tokens of its window, compactions",
    "sessile status --url http://127.0.0.1:8787 --token-file there.token",
    name="status",
)
@click.argument("key", required=False)
@remote
def status_verb(app: App, key: str | None, url: str | None, token_file: str | None) -> int:
    """See how the gateway is: where it runs and keeps things, what it is doing, how full its conversations are.

    Exit code 3 if no gateway runs.
    """
    client = connect(app, url, token_file)
    told = holding(client.get("/v1/status", key=key), client.url, *_STATUS)
    if app.json:
        app.out.document("status/1", url=client.url, **told)
    elif key is not None:
        for line in told["conversation"]["lines"]:
            app.out.line(line)
    else:
        _print_status(app, client.url, told)
    for problem in told["problems"]:
        app.out.note(f"sessile: {problem['message']}", "failed")
        app.out.note(f"hint: {problem['hint']}")
    return 0


def _print_status(app: App, url: str, told: Json) -> None:
    turns = told["turns"]
    app.out.line(f"gateway   {url}  sessile {told['version']}")
    app.out.line(f"started   {app.out.moment(told['startedAt']).text if app.out.is_terminal else _iso(app, told)}")
    app.out.line(f"store     {app.tilde(told['root'])}")
    app.out.line(f"turns     {turns['running']} running, {turns['queued']} waiting")
    for agent in told["agents"]:
        name = visible_line(f"{agent['id']}  {agent['model'] or agent['runner']}")
        app.out.line(f"agent     {name}  {many(agent['conversations'], 'conversation')}")
    app.out.line("")
    rows = [_documented(row, told["now"]) for row in told["recent"]]
    _print_rows(app, rows, told["now"], ("Key", "Age", "Model", "Tokens (ctx %)", "Compactions"))
    more = told["conversations"] - len(rows)
    if more > 0:
        app.out.note(f"… {more} more. Show: {app.command} sessions")


def _iso(app: App, told: Json) -> str:
    return app.out.iso(told["startedAt"]) or "?"


# -- sessions


@verb(
    "sessile sessions                 all conversations, newest first",
    "sessile sessions --active 60     those of the last hour",
    "sessile sessions --agent ops --json",
    name="sessions",
)
@click.option("--active", type=click.IntRange(1), metavar="N", help="Only those of the last N minutes.")
@click.option("--agent", metavar="ID", help="Only those of one agent.")
@click.option("-n", "--limit", type=click.IntRange(0), help="At most so many; 0 is all. At a terminal 50.")
@click.option("--config", "named", metavar="FILE", help="The configuration, instead of that in the store.")
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
    """List conversations: their keys, models, how full their contexts are, and what is set in them.

    A running gateway is asked; without one, the store itself is read.
    """
    from sessile.render.status import listing

    if limit is None:
        limit = 0 if app.json or not app.out.is_terminal else _AT_A_TERMINAL
    found = _asked(app, url, token_file, active, agent) or _read(app, active, agent, named)
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
        told = f"no conversation; {found.hidden} hidden by the filter" if found.hidden else "no conversation yet"
        app.out.note(f'{told}. Begin one: {app.command} send "hello"')
    return 0 if rows else _NOTHING


class _List(NamedTuple):
    """Conversations as they are documented, and how many a filter hides."""

    path: str
    rows: list[Json]
    now: int
    hidden: int


def _asked(app: App, url: str | None, token_file: str | None, active: int | None, agent: str | None) -> _List | None:
    """What a gateway says; `None` if none runs on this store."""
    try:
        client = connect(app, url, token_file)
        rows: list[Json] = []
        while True:
            asked = client.get("/v1/sessions", active=active, agent=agent, limit=_PAGE, offset=len(rows))
            page = holding(asked, client.url, *_LIST)
            rows += page["sessions"]
            if not page["sessions"] or len(rows) >= page["count"]:
                break
    except Unreachable as error:
        if url is not None:
            raise
        app.out.note(f"note: {error.message}; the store itself is read")
        return None
    except NotFound:
        if url is not None:
            raise
        return None
    return _List(page["path"], [_documented(row, page["ts"]) for row in rows], page["ts"], page["hidden"])


def _documented(row: Json, now: int) -> Json:
    """A row of a gateway as the list is documented."""
    from sessile.render.status import session_row

    return session_row(row["key"], row["kind"], {**row, **row.get("flags", {})}, now)


def _read(app: App, active: int | None, agent: str | None, named: str | None) -> _List:
    """What the store itself says."""
    from sessile.cli.app import load_settings
    from sessile.gateway.conversations.inbound import agent_workspace, routing_of
    from sessile.gateway.conversations.registry import ConversationFilter, Conversations
    from sessile.render.status import session_row

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
            app.out.note(f"sessile: {problem.message} ({problem.path}); the last good copy is shown", "failed")
        return _List(found.path, rows, now, found.hidden)


def _kind(row: Conversation) -> SessionKind:
    from sessile.errors import InvalidId
    from sessile.render.status import session_kind

    try:
        return session_kind(row.key, row.entry.known("chatType"))
    except InvalidId:
        return "unknown"  # somebody wrote the key by hand


def _print_rows(app: App, rows: list[Json], now: int, shown: Sequence[str] | None = None) -> None:
    """Conversations as a table of the documented columns, or of some."""
    from sessile.render.status import COLUMNS, cells_of

    names = COLUMNS if shown is None else shown
    columns = [Column(name, soft=name in ("Key", "Model"), wide=name == "Flags") for name in names]

    def cells(row: Json) -> dict[str, Cell]:
        values = {"Key": row["key"], "Age": app.out.iso(row["updatedAt"]) or "", "Model": row["model"] or ""}
        told = zip(COLUMNS, cells_of(row, now), strict=True)
        found = {name: Cell(text, "strong" if name == "Key" else "plain", values.get(name)) for name, text in told}
        count = row["compactionCount"]
        return {**found, "Compactions": Cell("unknown" if count is None else str(count))}

    app.out.table(columns, ([cells(row)[name] for name in names] for row in rows))


# --- sending

_PAUSES = (0.1, 0.5, 2.0)  # seconds before a message is sent again
_REPLY = ("text", "notices", "remarks", "reasoning", "silent", "withheld", "stop", "error")
_KEPT = "start it again: what has come there is kept, and is answered or marked as interrupted then"
_STOPPED = 1  # the exit code of a reply that somebody stopped


@verb(
    'sessile send "what did we decide?"      in the main conversation',
    "git diff | sessile send --key review   what is on stdin",
    "sessile send --channel telegram --peer 42 --no-wait hello",
    name="send",
)
@click.argument("text", nargs=-1)
@click.option("--key", metavar="KEY", help="The conversation; else the main one.")
@click.option("--agent", metavar="ID", help="Who answers.")
@click.option("--channel", metavar="NAME", help="The channel that the message comes from.")
@click.option("--account", metavar="ID", help="The account of ours in that channel.")
@click.option("--peer", metavar="ID", help="Whom the message is from, or which group it was sent in.")
@click.option("--chat-type", type=click.Choice(["direct", "group", "channel"]), help="What sort of chat that is.")
@click.option("--thread", metavar="ID", help="The thread or topic in that chat.")
@click.option("--queue", type=click.Choice(["followup", "interrupt"]), help="What to do if a turn is under way.")
@click.option("--no-wait", is_flag=True, help="Only say it; print the id of its turn.")
@remote
def send_verb(app: App, text: tuple[str, ...], url: str | None, token_file: str | None, **options: Any) -> int:
    """Say something in a conversation, and read the reply as it is written.

    What was sent is kept, whatever happens to the connection; it is sent again under the same name if that breaks, and said once.
    """
    message = " ".join(text) if text and text != ("-",) else _typed(app)
    if not message.strip():
        raise Invalid("there is nothing to say", hint='sessile send "hello", or something on stdin')
    client = connect(app, url, token_file)
    body = {"message": message, "idempotencyKey": str(uuid.uuid4()), **_where(options)}
    if options["queue"] is not None:
        body["queue"] = options["queue"]
    if options["no_wait"]:
        sent = _again(lambda: client.post("/v1/chat/send", body))
        return _said(app, holding(sent, client.url, "turn", "key", "state"))
    return _Listening(app, client, body).outcome()


def _typed(app: App) -> str:
    """What is on stdin; who sits at a terminal is told that somebody waits."""
    if sys.stdin.isatty():
        app.out.note("say something; Ctrl-D sends it")
    return sys.stdin.read()


def _where(options: Json) -> Json:
    """The conversation that is meant: by its key, or by where the message comes from."""
    names = {"agent": "agent", "channel": "channel", "account": "account", "peer": "peer", "chat_type": "chatType"}
    inbound = {member: options[name] for name, member in {**names, "thread": "thread"}.items() if options[name]}
    if options["key"] is None:
        return {"inbound": inbound} if inbound else {}
    if inbound:
        raise Invalid(
            "a key says it all", hint="leave out --agent, --channel, --peer and their like, or leave out --key"
        )
    return {"key": options["key"]}


def _again(send: Callable[[], Any]) -> Any:
    """Send, and send again if the connection breaks: the gateway knows the message by its name, also after a restart.

    If it does not come back, what is told is that it broke off: the message may well be kept.
    """
    broken: BrokenOff | None = None
    pauses = iter(_PAUSES)
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


def _said(app: App, sent: Json) -> int:
    if app.json:
        app.out.document("send/1", **sent)
    else:
        app.out.line(sent["turn"])
        app.out.note(f"{sent['state']} in {sent['key']}")
    return 0


class _Listening:
    """One message, its words as they come, and how that ended."""

    def __init__(self, app: App, client: GatewayClient, body: Json) -> None:
        self._app = app
        self._client = client
        self._body = {**body, "stream": True}
        self._told = 0  # characters of the reply that were printed; a stream that is begun again repeats them

    def outcome(self) -> int:
        """Say it and print the reply; the exit code."""
        try:
            sent = _again(self._listen)
        finally:
            if self._told and not self._app.json:
                sys.stdout.write("\n")
        reply = sent["reply"]
        if self._app.json:
            self._app.out.document("send/1", **sent)
        else:
            self._finish(reply)
        if reply["stop"] == "error" or reply["error"]:
            hint = "your message is kept; sessile doctor looks for the reason"
            raise RunnerFailed(f"there is no answer: {reply['error'] or 'unknown'}", hint=hint)
        return _STOPPED if reply["stop"] == "aborted" else 0

    def _listen(self) -> Json:
        heard = 0
        for event in self._client.stream("/v1/chat/send", self._body):
            if event.name == "delta":
                text = str(holding(event.data, self._client.url, "text")["text"])
                new = text[max(self._told - heard, 0) :]
                heard += len(text)
                self._print(new)
            elif event.name in ("reply", "document"):
                sent: Json = holding(event.data, self._client.url, "reply")
                holding(sent["reply"], self._client.url, *_REPLY)
                return sent
        raise BrokenOff("the gateway ended before the reply did", hint="what you said is kept: sessile status")

    def _print(self, text: str) -> None:
        self._told += len(text)
        if text and not self._app.json:
            sys.stdout.write(visible(text))
            sys.stdout.flush()

    def _finish(self, reply: Json) -> None:
        """What the stream did not bring: the answer of a command, what is said around the reply, and why there is none."""
        text = reply["text"] or ""
        if text and not self._told:
            self._app.out.line(text)
        for notice in (*reply["notices"], reply["reasoning"] or "", *reply["remarks"]):
            if notice:
                self._app.out.note(notice, "plain")
        if reply["silent"]:
            self._app.out.note("no reply: the agent stays silent")
        if reply["withheld"]:
            self._app.out.note(f"the reply is held back: {reply['withheld']}")
        if reply["stop"] == "aborted":
            self._app.out.note("the turn was stopped")
