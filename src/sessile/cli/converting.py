"""From one agent's format to another's: imports, and conversions."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from sessile import CONVERSIONS, Filter, Imported, converted, import_session
from sessile.cli.app import App, verb
from sessile.cli.files import write_file
from sessile.cli.naming import DAMAGED, SESSION, addresses, damage, located, opened
from sessile.cli.table import Cell, Column
from sessile.errors import Invalid, NotFound, SessileError
from sessile.render.wording import many


@verb(
    "sessile import ~/.claude/projects/-work-app/0f4e….jsonl   one session, as one of your own",
    "sessile import claude                                     all sessions of an agent; again adds only what is new",
    "sessile import openclaw                                   a gateway: its sessions and its conversation keys",
    "sessile import @last --json                               for a program",
    name="import",
)
@click.argument("sessions", type=SESSION, nargs=-1, required=True)
@click.option("--deleted", is_flag=True, help="Of a gateway, also sessions that were deleted there.")
def import_verb(app: App, sessions: tuple[str, ...], deleted: bool) -> int:
    """Copy other agents' sessions into your own store. Their bytes are kept, the originals are only read."""
    from sessile.cli.gateways import gateways_named, import_gateways

    gateways = gateways_named(app, sessions)
    if gateways:
        return import_gateways(app, gateways, deleted=deleted)
    if deleted:
        raise Invalid("only gateways keep deleted sessions", hint="sessile import openclaw --deleted")
    done: list[Imported] = []
    failed: list[SessileError] = []
    for path in _paths(app, sessions):
        try:
            done.append(import_session(app.store, path))
        except SessileError as error:
            failed.append(error)
    if app.json:
        app.out.document("import/1", (item._asdict() for item in done), failed=[str(problem) for problem in failed])
    else:
        _print(app, done)
        for problem in failed:
            app.out.fail(problem)
        new = sum(item.added for item in done)
        app.out.note(f"{many(len(done), 'session')}, {many(new, 'new row')}; {len(failed)} could not be imported")
    unreadable = any(item.unreadable for item in done)
    return failed[0].exit_code if failed else DAMAGED if unreadable else 0


def _paths(app: App, sessions: tuple[str, ...]) -> Iterator[str]:
    agents = {source.agent for source in app.library.sources}
    for address in addresses(sessions):
        if address.session in agents:
            places = [source.sessions for source in app.library.sources if source.agent == address.session]
            app.library.catch_up()
            rows = app.library.list(Filter(below=places, hide=("unreadable", "sub_agent"))).rows
            if not rows:
                raise NotFound(
                    f"{address.session} has no sessions here", hint="sessile sources shows where they are looked for"
                )
            yield from (row.path for row in rows)
        else:
            yield located(app, address)


def _print(app: App, done: list[Imported]) -> None:
    columns = [Column("id"), Column("from"), Column("rows", True), Column("new", True), Column("file", wide=True)]
    app.out.table(
        columns,
        (
            [
                Cell(item.id[: 8 if app.out.columns else None], "id", item.id),
                Cell(item.format),
                Cell(str(item.rows)),
                Cell(str(item.added)),
                Cell(item.path),
            ]
            for item in done
        ),
    )
    for item in done:
        for told in item.unreadable[:3]:
            app.out.note(f"{item.id[:8]}: {told}")


@verb(
    "sessile convert webhook --to claude -o session.jsonl   as a file of Claude Code",
    "sessile convert 0f4e --to pi -o - | wc -l              … of pi, on stdout",
    name="convert",
)
@click.argument("session", type=SESSION)
@click.option("--to", "to", type=click.Choice(tuple(CONVERSIONS)), required=True, help="The format.")
@click.option("-o", "--output", metavar="FILE", required=True, help="The file; - is stdout.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def convert_verb(app: App, session: str, to: str, output: str, force: bool) -> int:
    """Write a session in another agent's format, byte for byte where it came from there. Nothing is redacted."""
    if output == "-" and sys.stdout.isatty():
        raise Invalid("a session file is not for a terminal", hint="say -o FILE")
    with opened(app, session) as named:
        report: dict[str, int] = {}
        pieces = converted(named.session, to, report)
        if output == "-":
            sys.stdout.flush()
            for piece in pieces:
                sys.stdout.buffer.write(piece)
        else:
            size = write_file(os.path.abspath(os.path.expanduser(output)), pieces, force=force)
            _told(app, output, size, report)
        for kind, count in report.items():
            app.out.note(f"{count} × {kind} has no counterpart there; it is kept in the rows")
        return damage(app, named.session)


def _told(app: App, output: str, size: int, report: dict[str, Any]) -> None:
    if app.json:
        app.out.document("convert/1", path=output, bytes=size, without_counterpart=report)
    else:
        app.out.line(output)
