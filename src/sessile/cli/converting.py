"""From one agent's format to another's: imports, and conversions.

Imports of a gateway's whole state: what came of every session and of every conversation key.

Bringing sessions from one store to another.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sessile.cli.app import App, verb
from sessile.cli.names import DAMAGED, SESSION, addresses, damage, located, opened
from sessile.cli.output import Cell, Column, size_of, write_file
from sessile.errors import Invalid, NotFound, SessileError
from sessile.gateway.conversations.bindings import sync_bindings
from sessile.render.wording import many, short_id
from sessile.storage.backing import is_database
from sessile.storage.filters import Filter
from sessile.store import Store
from sessile.transfer import CONVERSIONS, Imported, Synced, converted, import_session, sync

if TYPE_CHECKING:
    from sessile.agents.openclaw.importing import ImportReport


# --- converting


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


# --- gateways

_NAMES = ("openclaw", "yoyoclaw")  # two names of one program
_TOLD = 3  # of each sort of thing that are told one by one; the document has all


class _Done(NamedTuple):
    root: str
    report: ImportReport


def gateways_named(app: App, names: Sequence[str]) -> list[str]:
    """The state folders that some arguments mean; none if they mean sessions."""
    roots: dict[str, None] = {}
    others = []
    for name in names:
        folder = os.path.abspath(os.path.join(app.here, os.path.expanduser(name)))
        if name in _NAMES:
            roots.update(dict.fromkeys(_known(app)))
        elif _is_state(folder):
            roots[folder] = None
        else:
            others.append(name)
    if roots and others:
        hint = f"say sessile import {others[0]} by itself"
        raise Invalid("a gateway is imported as a whole, and not together with sessions", hint=hint)
    return list(roots)


def _is_state(folder: str) -> bool:
    """Whether agents of a gateway live in a folder; other programs have folders called `agents`, too."""
    agents = f"{folder}/agents"
    names = os.listdir(agents) if os.path.isdir(agents) else []
    return any(os.path.isdir(f"{agents}/{name}/sessions") for name in names)


def _known(app: App) -> list[str]:
    roots = list(dict.fromkeys(source.root for source in app.places.family if source.agent in _NAMES))
    found = [root for root in roots if any(os.path.isdir(f"{root}/{name}") for name in ("agents", "sessions"))]
    if not found:
        looked = ", ".join(map(app.tilde, roots))
        hint = "name its folder: sessile import PATH"
        raise NotFound(f"there is no state of a gateway; looked in {looked or 'no folder'}", hint=hint)
    return found


def import_gateways(app: App, roots: Sequence[str], *, deleted: bool) -> int:
    """Import the state below some folders, and give an account of it; the exit code."""
    from sessile.agents.openclaw.importing import import_state
    from sessile.agents.openclaw.paths import StateFolder

    done = [_Done(root, import_state(app.store, StateFolder(root), deleted=deleted)) for root in roots]
    if app.json:
        _document(app, done)
    else:
        _table(app, done)
        for one in done:
            _notes(app, one)
    return DAMAGED if any(report.damaged for _, report in done) else 0


# -- for a program


def _document(app: App, done: Sequence[_Done]) -> None:
    app.out.document(
        "import-openclaw/1",
        (item for one in done for item in _sessions(one)),
        keys=[item for one in done for item in _keys(one)],
        left_out=[item for one in done for item in _left_out(one)],
        stores=[
            {"root": root, "agent": agent.agent, "original": agent.store, "bindings": agent.bound}
            for root, report in done
            for agent in report.agents
        ],
    )


def _sessions(done: _Done) -> Iterator[dict[str, Any]]:
    for session in done.report.sessions:
        yield {
            "root": done.root,
            "agent": session.agent,
            "id": session.session_id,
            "path": session.path,
            "keys": session.keys,
            "source": session.live,
            "topic": session.topic,
            "archives": session.archives,
            "orphan": session.orphan,
            "entries": session.read,
            "new": session.written,
            "present": session.present,
            "differing": session.differing,
            "unreadable": [
                {"path": trouble.path, **trouble.finding._asdict()}
                for trouble in session.troubles
                if trouble.finding.length
            ],
        }


def _keys(done: _Done) -> Iterator[dict[str, Any]]:
    for agent in done.report.agents:
        for binding in agent.bindings:
            yield {
                "root": done.root,
                "agent": agent.agent,
                "key": binding.key,
                "state": binding.state,
                "session": binding.session_id,
                "mapped": binding.mapped,
                "kept": binding.kept,
                "odd": binding.odd,
            }


def _left_out(done: _Done) -> Iterator[dict[str, Any]]:
    for item in done.report.left_out:
        yield {"root": done.root, "agent": None, "name": item.name, "reason": item.reason, "failed": item.failed}
    for agent in done.report.agents:
        for item in agent.left_out:
            told = {"name": item.name, "reason": item.reason, "failed": item.failed}
            yield {"root": done.root, "agent": agent.agent, **told}


# -- for a person


def _table(app: App, done: Sequence[_Done]) -> None:
    columns = [
        Column("key", soft=True),
        Column("id"),
        Column("entries", True),
        Column("new", True),
        Column("from", wide=True),
    ]
    app.out.table(columns, (row for one in done for row in _rows(one)))


def _rows(done: _Done) -> Iterator[list[Cell]]:
    for agent in done.report.agents:
        for item in agent.sessions:
            yield [
                Cell(", ".join(item.keys) or "-", "strong" if item.keys else "dim", ", ".join(item.keys)),
                Cell(short_id(item.session_id), "id", item.session_id),
                Cell(str(item.read)),
                Cell(str(item.written)),
                Cell(", ".join(_origin(item))),
            ]
        for key in agent.missing:
            unknown = Cell("-", "dim", "")
            yield [Cell(key, "strong"), unknown, unknown, unknown, Cell("there is no transcript", "dim")]


def _origin(item: Any) -> Iterator[str]:
    """What a session was put together from, and what is worth knowing about that."""
    if item.orphan:
        yield "orphan: no key leads to it"
    elif item.live is not None:
        yield "transcript"
    if item.topic is not None:
        yield f"topic {item.topic}"
    for reason, count in Counter(archive.reason or "second copy" for archive in item.archives).items():
        yield f"{count} {reason}"
    if item.differing:
        yield f"{item.differing} differ from what is here, which stays"
    if item.unreadable:
        yield f"{item.unreadable} unreadable"


def _notes(app: App, done: _Done) -> None:
    for session in done.report.sessions:
        for path, finding in session.troubles[:_TOLD]:
            app.out.note(f"note: {finding.detail} ({app.tilde(path)} at byte {finding.offset})")
        if len(session.troubles) > _TOLD:
            app.out.note(
                f"note: {len(session.troubles) - _TOLD} more in {short_id(session.session_id)}; --json lists them"
            )
    _tell_left_out(app, done)
    for agent in done.report.agents:
        _tell_keys(app, agent)
    sessions = done.report.sessions
    new = sum(session.written for session in sessions)
    app.out.note(f"{app.tilde(done.root)}: {many(len(sessions), 'session')}, {many(new, 'new entry', 'new entries')}")


def _tell_left_out(app: App, done: _Done) -> None:
    by_reason: dict[str, list[str]] = {}
    for item in _left_out(done):
        by_reason.setdefault(item["reason"], []).append(item["name"])
    for reason, names in by_reason.items():
        for name in names[:_TOLD]:
            app.out.note(f"left out: {app.tilde(name)}: {reason}")
        if len(names) > _TOLD:
            app.out.note(f"left out: {len(names) - _TOLD} more: {reason}; --json lists them")


_STATES = {
    "new": "new",
    "updated": "updated",
    "present": "there already",
    "older": "older than what is here",
    "ours": "changed here, which stays",
    "deleted": "deleted here, which stays so",
    "refused": "not fit to be written",
}


def _tell_keys(app: App, agent: Any) -> None:
    """What became of the keys of an agent, and of what their entries hold."""
    if not agent.bindings:
        return
    states = Counter(binding.state for binding in agent.bindings)
    told = ", ".join(f"{states[state]} {words}" for state, words in _STATES.items() if states[state])
    app.out.note(f"{many(len(agent.bindings), 'key', 'keys')} of {agent.agent}: {told} → {app.tilde(agent.bound)}")
    mapped = Counter(name for binding in agent.bindings for name in binding.mapped)
    kept = sum(len(binding.kept) for binding in agent.bindings)
    names = ", ".join(f"{name} ({count})" for name, count in mapped.items()) or "none"
    app.out.note(
        f"  mapped: {names}; kept as they are: {many(kept, 'member')}; the file itself: {app.tilde(agent.store)}"
    )
    odd = [f"{binding.key}: {text}" for binding in agent.bindings for text in binding.odd]
    for text in odd[:_TOLD]:
        app.out.note(f"  odd, and kept: {text}")
    if len(odd) > _TOLD:
        app.out.note(f"  odd, and kept: {len(odd) - _TOLD} more; --json lists them")


# --- syncing


@verb(
    "sessile sync postgresql://me@db/x           bring your sessions to a database",
    "sessile sync --from postgresql://me@db/x    bring here what you lack",
    "sessile sync ~/backup --dry-run             see what a copy in a folder lacks",
    name="sync",
)
@click.argument("target", metavar="STORE", required=False)
@click.option("--from", "source", metavar="STORE", help="The store to bring sessions from, instead of your own.")
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done.")
def sync_verb(app: App, target: str | None, source: str | None, dry_run: bool) -> int:
    """Bring sessions to another store: a folder, or a database.

    New sessions are copied byte for byte, with their blobs and artifacts; others get the entries that they lack. The bindings of
    a gateway come along, of two the newer. Nothing is deleted or changed otherwise. It can be broken off and repeated at any
    time, and then goes on where it was.
    """
    if target is None and source is None:
        raise Invalid("say which store", hint="sessile sync FOLDER or sessile sync postgresql://…")
    with ExitStack() as stack:
        here = app.store if source is None else stack.enter_context(_existing(app, source))
        there = app.store if target is None else stack.enter_context(_store(app, target))
        if (here.name, here.layout.root) == (there.name, there.layout.root):
            raise Invalid("this is one store, not two", path=here.name, hint="name another one")
        with app.out.progress("Bringing sessions") as progress:
            done = list(sync(here, there, preview=dry_run, progress=progress))
            bound = sync_bindings(here, there, preview=dry_run)
        if app.json:
            told = {"source": here.name, "target": there.name, "bindings": bound, "preview": dry_run}
            app.out.document("sync/1", map(_described, done), **told)
        else:
            _syncing_print(app, done, bound, there.name, dry_run)
    failed = [each.error for each in done if each.error is not None]
    return failed[0].exit_code if failed else 0


def _existing(app: App, name: str) -> Store:
    """A store that sessions come from: a folder that is not there is a mistake, not a store without sessions."""
    if not is_database(name) and not os.path.isdir(os.path.expanduser(name)):
        raise NotFound(
            "there is no store", path=name, hint="look at the path; a store is a folder with sessions/ in it"
        )
    return _store(app, name)


def _store(app: App, name: str) -> Store:
    return Store(name, cache=app.places.cache if is_database(name) else None)


def _syncing_print(app: App, done: list[Synced], bound: int, target: str, preview: bool) -> None:
    for each in done:
        if each.state in ("new", "grown"):
            app.out.line(each.path)
        elif each.error is not None:
            app.out.fail(each.error)
    count = Counter(each.state for each in done)
    parts = [many(count["new"], "new session")] if count["new"] else []
    parts += [f"{many(count['grown'], 'other')} with new entries"] if count["grown"] else []
    parts += [many(bound, "binding")] if bound else []
    room = sum(each.bytes for each in done)
    parts += [size_of(room)] if room else []
    where = app.tilde(target)
    if parts:
        app.out.note(f"{', '.join(parts)}, {'would be brought to' if preview else 'in'} {where}")
    if count["failed"]:
        app.out.note(f"{many(count['failed'], 'session')} could not be brought to {where}")
    elif not parts:
        app.out.note(f"nothing is missing in {where}")


def _described(done: Synced) -> dict[str, Any]:
    """What became of a session, for a program."""
    told = done._asdict()
    return told | {"error": None if done.error is None else str(done.error)}
