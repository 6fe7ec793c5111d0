"""Which gateway a verb asks: that of this store, found by the note that it leaves there, or one that was named."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from sessile.cli.app import App
from sessile.cli.gateway_client import GatewayClient
from sessile.errors import Invalid, NotFound

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
    from sessile import Presence, keep_secret

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
