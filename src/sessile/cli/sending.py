"""Saying something in a conversation of the gateway, and reading the reply as it is written."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import click

from sessile.cli.app import App, verb
from sessile.cli.connecting import connect, remote
from sessile.cli.gateway_client import BrokenOff, GatewayClient, Unreachable, holding
from sessile.core.visible import visible
from sessile.errors import Invalid, RunnerFailed

Json = dict[str, Any]

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
