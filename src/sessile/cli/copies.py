"""Copies of sessions: from other agents (`import`), in their formats (`convert`), and in other stores (`sync`)."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import click

from sessile.agents.openclaw.importing import ImportReport, import_state
from sessile.agents.openclaw.paths import StateFolder
from sessile.cli.arguments import DAMAGED, SESSION, Named, addresses, damage, located, opened
from sessile.cli.command import App, verb
from sessile.cli.output import Cell, Column, size_of, write_file
from sessile.cli.resume import placed_here
from sessile.errors import Invalid, NotFound, SessileError
from sessile.gateway.conversations.bindings import sync_bindings
from sessile.render.wording import many, short_id
from sessile.storage.backing import is_database
from sessile.storage.filesystem import PosixFilesystem
from sessile.storage.filters import Filter
from sessile.store import Store
from sessile.transfer import (
    CONVERSIONS,
    PLACES,
    Imported,
    Synced,
    converted,
    import_session,
    sync,
    write_placed,
)

_GATEWAYS = ("openclaw", "yoyoclaw")  # two names of one program
_LISTED = 3  # items of each kind that are printed one by one; the JSON document has all


# -- import


@verb(
    "sessile import ~/.claude/projects/-work-app/0f4e….jsonl   one session",
    "sessile import claude                                     all sessions of an agent; repeat to add new ones",
    "sessile import openclaw                                   a gateway: sessions and conversation keys",
    "sessile import @last --json                               for programs",
    name="import",
)
@click.argument("sessions", type=SESSION, nargs=-1, required=True)
@click.option("--deleted", is_flag=True, help="Include deleted sessions of a gateway.")
def import_verb(app: App, sessions: tuple[str, ...], deleted: bool) -> int:
    """Copy sessions of other agents into your store. Their bytes are kept; the originals are only read."""
    gateways = _gateways_in(app, sessions)
    if gateways:
        return _import_gateways(app, gateways, deleted=deleted)
    if deleted:
        raise Invalid("--deleted is for gateways only", hint="sessile import openclaw --deleted")
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
        _print_imported(app, done)
        for problem in failed:
            app.out.fail(problem)
        new = sum(item.added for item in done)
        app.out.note(f"{many(len(done), 'session')}, {many(new, 'new row')}; {len(failed)} failed")
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
                    f"no sessions of agent {address.session!r}", hint="run `sessile sources` to see the folders"
                )
            yield from (row.path for row in rows)
        else:
            yield located(app, address)


def _print_imported(app: App, done: list[Imported]) -> None:
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
        for problem in item.unreadable[:_LISTED]:
            app.out.note(f"{item.id[:8]}: {problem}")


# -- convert


@verb(
    "sessile convert webhook --to claude                    for Claude Code, where it looks",
    "sessile convert webhook --to codex -o session.jsonl    for Codex, as a file",
    "sessile convert 0f4e --to pi -o - | wc -l              for pi, to stdout",
    name="convert",
)
@click.argument("session", type=SESSION)
@click.option("--to", "to", type=click.Choice(CONVERSIONS), required=True, help="Target format.")
@click.option("-o", "--output", metavar="FILE", help="Output file; - for stdout; by default where the agent looks.")
@click.option("--whole", is_flag=True, help="With all branches, so that an import restores them (to claude only).")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def convert_verb(app: App, session: str, to: str, output: str | None, whole: bool, force: bool) -> int:
    """Write a session as another agent's own program resumes it: the conversation up to the leaf, or to an entry.

    Rows that came from that agent keep their bytes. native and myagents hold all entries. Nothing is redacted.
    """
    if output == "-" and sys.stdout.isatty():
        raise Invalid("cannot write a session file to a terminal", hint="pass -o FILE")
    with opened(app, session) as named:
        if output is None:
            return _convert_in_place(app, named, to, whole=whole)
        report: dict[str, int] = {}
        pieces = converted(named.session, to, report, at=named.at, whole=whole)
        if output == "-":
            sys.stdout.flush()
            for piece in pieces:
                sys.stdout.buffer.write(piece)
        else:
            size = write_file(os.path.abspath(os.path.expanduser(output)), pieces, force=force)
            _print_converted(app, output, size, report)
        for kind, count in report.items():
            app.out.note(f"{count} × {kind}: no counterpart in this format; kept in the rows as extra data")
        return damage(app, named.session)


def _convert_in_place(app: App, named: Named, to: str, *, whole: bool) -> int:
    """Put a session where the agent's own program looks for it."""
    if whole or to not in PLACES:
        raise Invalid("an output file is required", hint="pass -o FILE")
    copy = placed_here(app, named, to)
    if not write_placed(PosixFilesystem(), copy):
        app.out.note("it is there already: nothing has changed since it was placed")
    for note in copy.notes:
        app.out.note(f"note: {note}")
    _print_converted(app, copy.path, sum(map(len, copy.lines)), {})
    return damage(app, named.session)


def _print_converted(app: App, output: str, size: int, report: dict[str, Any]) -> None:
    if app.json:
        app.out.document("convert/1", path=output, bytes=size, without_counterpart=report)
    else:
        app.out.line(output)


# -- sync


@verb(
    "sessile sync postgresql://me@db/x           copy your sessions to a database",
    "sessile sync --from postgresql://me@db/x    copy missing sessions here",
    "sessile sync ~/backup --dry-run             show what a backup lacks",
    name="sync",
)
@click.argument("target", metavar="STORE", required=False)
@click.option("--from", "source", metavar="STORE", help="Store to copy from, instead of your own.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be copied.")
def sync_verb(app: App, target: str | None, source: str | None, dry_run: bool) -> int:
    """Copy sessions to another store: a folder or a database.

    New sessions are copied byte for byte, with their blobs and artifacts; existing ones get the entries that they lack.
    Bindings of a gateway are copied if they are newer. Nothing else is changed, and nothing is deleted. An interrupted
    copy can be repeated and continues where it stopped.
    """
    if target is None and source is None:
        raise Invalid("a store is required", hint="sessile sync FOLDER or sessile sync postgresql://…")
    with ExitStack() as stack:
        here = app.store if source is None else stack.enter_context(_existing(app, source))
        there = app.store if target is None else stack.enter_context(_store(app, target))
        if (here.name, here.layout.root) == (there.name, there.layout.root):
            raise Invalid("source and target are the same store", path=here.name, hint="pass another store")
        with app.out.progress("Copying sessions") as progress:
            done = list(sync(here, there, preview=dry_run, progress=progress))
            bound = sync_bindings(here, there, preview=dry_run)
        drafts = [info.id for info in here.list_all() if info.draft]
        if app.json:
            members = {
                "source": here.name,
                "target": there.name,
                "bindings": bound,
                "preview": dry_run,
                "drafts": drafts,
            }
            app.out.document("sync/1", map(_described, done), **members)
        else:
            _print_synced(app, done, bound, there.name, dry_run)
            if drafts:
                left = many(len(drafts), "draft without an answer is", "drafts without an answer are")
                app.out.note(f"… {left} not copied. Publish: {app.command} repair {drafts[0]} --apply")
    failed = [each.error for each in done if each.error is not None]
    return failed[0].exit_code if failed else 0


def _existing(app: App, name: str) -> Store:
    """Return the store to copy from; raise if its folder does not exist."""
    if not is_database(name) and not os.path.isdir(os.path.expanduser(name)):
        raise NotFound("store not found", path=name, hint="check the path; a store is a folder with sessions/ in it")
    return _store(app, name)


def _store(app: App, name: str) -> Store:
    return Store(name, cache=app.places.cache if is_database(name) else None)


def _print_synced(app: App, done: list[Synced], bound: int, target: str, preview: bool) -> None:
    for each in done:
        if each.state in ("new", "grown"):
            app.out.line(each.path)
        elif each.error is not None:
            app.out.fail(each.error)
    count = Counter(each.state for each in done)
    parts = [many(count["new"], "new session")] if count["new"] else []
    parts += [f"{many(count['grown'], 'session')} with new entries"] if count["grown"] else []
    parts += [many(bound, "binding")] if bound else []
    size = sum(each.bytes for each in done)
    parts += [size_of(size)] if size else []
    where = app.tilde(target)
    if parts:
        app.out.note(f"{', '.join(parts)} {'would be copied to' if preview else 'copied to'} {where}")
    if count["failed"]:
        app.out.note(f"{many(count['failed'], 'session')} could not be copied to {where}")
    elif not parts:
        app.out.note(f"{where} is up to date")


def _described(done: Synced) -> dict[str, Any]:
    """Return the result for a session as JSON members."""
    return done._asdict() | {"error": None if done.error is None else str(done.error)}


# -- import of a gateway


class _Done(NamedTuple):
    """The import of one state folder."""

    root: str
    report: ImportReport


def _gateways_in(app: App, names: Sequence[str]) -> list[str]:
    """Return the state folders of the gateways among the arguments; raise if there are sessions among them too."""
    roots: dict[str, None] = {}
    others = []
    for name in names:
        folder = os.path.abspath(os.path.join(app.here, os.path.expanduser(name)))
        if name in _GATEWAYS:
            roots.update(dict.fromkeys(_known_gateways(app)))
        elif _is_state(folder):
            roots[folder] = None
        else:
            others.append(name)
    if roots and others:
        hint = f"run `sessile import {others[0]}` separately"
        raise Invalid("cannot import a gateway together with sessions", hint=hint)
    return list(roots)


def _is_state(folder: str) -> bool:
    """Return whether a folder holds a gateway's state; a folder called `agents` alone proves nothing."""
    agents = f"{folder}/agents"
    names = os.listdir(agents) if os.path.isdir(agents) else []
    return any(os.path.isdir(f"{agents}/{name}/sessions") for name in names)


def _known_gateways(app: App) -> list[str]:
    roots = list(dict.fromkeys(source.root for source in app.places.family if source.agent in _GATEWAYS))
    found = [root for root in roots if any(os.path.isdir(f"{root}/{name}") for name in ("agents", "sessions"))]
    if not found:
        folders = ", ".join(map(app.tilde, roots))
        hint = "pass its folder: sessile import PATH"
        raise NotFound(f"no gateway state found in {folders or 'any folder'}", hint=hint)
    return found


def _import_gateways(app: App, roots: Sequence[str], *, deleted: bool) -> int:
    """Import the state folders, print a report and return the exit code."""
    done = [_Done(root, import_state(app.store, StateFolder(root), deleted=deleted)) for root in roots]
    if app.json:
        _print_report(app, done)
    else:
        _print_sessions(app, done)
        for one in done:
            _print_notes(app, one)
    return DAMAGED if any(report.damaged for _, report in done) else 0


def _print_report(app: App, done: Sequence[_Done]) -> None:
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
            members = {"name": item.name, "reason": item.reason, "failed": item.failed}
            yield {"root": done.root, "agent": agent.agent, **members}


def _print_sessions(app: App, done: Sequence[_Done]) -> None:
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
            yield [Cell(key, "strong"), unknown, unknown, unknown, Cell("no transcript", "dim")]


def _origin(item: Any) -> Iterator[str]:
    """Yield where the entries of a session came from, and what differs."""
    if item.orphan:
        yield "orphan: no key refers to it"
    elif item.live is not None:
        yield "transcript"
    if item.topic is not None:
        yield f"topic {item.topic}"
    for reason, count in Counter(archive.reason or "second copy" for archive in item.archives).items():
        yield f"{count} {reason}"
    if item.differing:
        yield f"{item.differing} differ from the entries here, which are kept"
    if item.unreadable:
        yield f"{item.unreadable} unreadable"


def _print_notes(app: App, done: _Done) -> None:
    for session in done.report.sessions:
        for path, finding in session.troubles[:_LISTED]:
            app.out.note(f"note: {finding.detail} ({app.tilde(path)} at byte {finding.offset})")
        if len(session.troubles) > _LISTED:
            app.out.note(
                f"note: {len(session.troubles) - _LISTED} more in {short_id(session.session_id)}; --json lists them"
            )
    _print_left_out(app, done)
    for agent in done.report.agents:
        _print_keys(app, agent)
    sessions = done.report.sessions
    new = sum(session.written for session in sessions)
    app.out.note(f"{app.tilde(done.root)}: {many(len(sessions), 'session')}, {many(new, 'new entry', 'new entries')}")


def _print_left_out(app: App, done: _Done) -> None:
    by_reason: dict[str, list[str]] = {}
    for item in _left_out(done):
        by_reason.setdefault(item["reason"], []).append(item["name"])
    for reason, names in by_reason.items():
        for name in names[:_LISTED]:
            app.out.note(f"not imported: {app.tilde(name)}: {reason}")
        if len(names) > _LISTED:
            app.out.note(f"not imported: {len(names) - _LISTED} more: {reason}; --json lists them")


_STATES = {
    "new": "new",
    "updated": "updated",
    "present": "unchanged",
    "older": "older than the local copy",
    "ours": "changed locally (local copy kept)",
    "deleted": "deleted locally (not restored)",
    "refused": "invalid",
}


def _print_keys(app: App, agent: Any) -> None:
    """Print what was imported of an agent's conversation keys and their members."""
    if not agent.bindings:
        return
    states = Counter(binding.state for binding in agent.bindings)
    counts = ", ".join(f"{states[state]} {words}" for state, words in _STATES.items() if states[state])
    app.out.note(f"{many(len(agent.bindings), 'key', 'keys')} of {agent.agent}: {counts} → {app.tilde(agent.bound)}")
    mapped = Counter(name for binding in agent.bindings for name in binding.mapped)
    kept = sum(len(binding.kept) for binding in agent.bindings)
    names = ", ".join(f"{name} ({count})" for name, count in mapped.items()) or "none"
    app.out.note(f"  mapped: {names}; kept unchanged: {many(kept, 'member')}; original file: {app.tilde(agent.store)}")
    odd = [f"{binding.key}: {text}" for binding in agent.bindings for text in binding.odd]
    for text in odd[:_LISTED]:
        app.out.note(f"  unusual, kept: {text}")
    if len(odd) > _LISTED:
        app.out.note(f"  unusual, kept: {len(odd) - _LISTED} more; --json lists them")
