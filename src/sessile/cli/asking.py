"""Asking the gateway how it is, and which conversations there are.

The list of conversations needs no gateway: without one it is read from the store itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sessile.cli.app import App, verb
from sessile.cli.connecting import connect, remote
from sessile.cli.gateway_client import Unreachable, holding
from sessile.cli.table import Cell, Column
from sessile.core.visible import visible_line
from sessile.errors import NotFound
from sessile.render.wording import many

if TYPE_CHECKING:
    from sessile import Conversation
    from sessile.core.status_text import SessionKind

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
    from sessile.core.status_text import listing

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
    from sessile.core.status_text import session_row

    return session_row(row["key"], row["kind"], {**row, **row.get("flags", {})}, now)


def _read(app: App, active: int | None, agent: str | None, named: str | None) -> _List:
    """What the store itself says."""
    from sessile import ConversationFilter, Conversations, agent_workspace, routing_of
    from sessile.cli.settings import load_settings
    from sessile.core.status_text import session_row

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
    from sessile.core.status_text import session_kind
    from sessile.errors import InvalidId

    try:
        return session_kind(row.key, row.entry.known("chatType"))
    except InvalidId:
        return "unknown"  # somebody wrote the key by hand


def _print_rows(app: App, rows: list[Json], now: int, shown: Sequence[str] | None = None) -> None:
    """Conversations as a table of the documented columns, or of some."""
    from sessile.core.status_text import COLUMNS, cells_of

    names = COLUMNS if shown is None else shown
    columns = [Column(name, soft=name in ("Key", "Model"), wide=name == "Flags") for name in names]

    def cells(row: Json) -> dict[str, Cell]:
        values = {"Key": row["key"], "Age": app.out.iso(row["updatedAt"]) or "", "Model": row["model"] or ""}
        told = zip(COLUMNS, cells_of(row, now), strict=True)
        found = {name: Cell(text, "strong" if name == "Key" else "plain", values.get(name)) for name, text in told}
        count = row["compactionCount"]
        return {**found, "Compactions": Cell("unknown" if count is None else str(count))}

    app.out.table(columns, ([cells(row)[name] for name in names] for row in rows))
