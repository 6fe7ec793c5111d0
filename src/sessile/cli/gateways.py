"""Imports of a gateway's whole state: what came of every session and of every conversation key."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sessile.cli.app import App
from sessile.cli.naming import DAMAGED
from sessile.cli.table import Cell, Column
from sessile.errors import Invalid, NotFound
from sessile.render.wording import many, short_id

if TYPE_CHECKING:
    from sessile import ImportReport

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
    from sessile import StateFolder, import_state

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
