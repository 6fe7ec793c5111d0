"""Reading a session: its transcript (`show`), the tree of its branches (`tree`), and differences (`diff`)."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from typing import Any

import click

from sessile.cli.arguments import SESSION, Named, damage, name_of, opened, when
from sessile.cli.command import App, verb
from sessile.cli.output import Cell, Column
from sessile.core.digest import Digest
from sessile.core.entries import Entry
from sessile.core.visible import visible_line
from sessile.errors import EntryNotFound, Invalid, SessionNotFound
from sessile.export import Export, share_redactor
from sessile.library import SubAgent, agent_files, sub_agents
from sessile.render.comparison import By, Side, compare, compare_lines
from sessile.render.outline import Only
from sessile.render.shown import DEPTHS, Depth, Gap, show_all
from sessile.render.styled import Line, Span
from sessile.render.terminal import OutlineHead, outline_lines, transcript_lines
from sessile.render.wording import many
from sessile.session import Session
from sessile.storage.atomic import is_there
from sessile.storage.drafts import located

_ONLY: tuple[Only, ...] = ("forks", "labels", "compactions")
_COUNT_LIMIT = 20_000  # entries that `tree` counts for its first line
_LISTED = 3  # problems of sub-agents that are printed one by one
_POLL = 0.25  # seconds between two reads of a followed session


@verb(
    "sessile show webhook                  the active branch, in a pager",
    "sessile show 6513 --depth prompts     only prompts and summaries",
    "sessile show webhook@tests-green      another branch, by label or entry id",
    "sessile show webhook --agents         its sub-agents; read one: sessile show webhook/agent-a1",
    "sessile show @last --follow           follow the latest session",
    "sessile show webhook --redact         with secrets replaced, for a shared screen",
    name="show",
)
@click.argument("session", type=SESSION, default="@here")
@click.option("--depth", type=click.Choice(DEPTHS), default="tools", help="How much to show (tools).")
@click.option("--branch", metavar="LEAF", help="Branch to show, by entry or label; all for every entry in file order.")
@click.option("--from", "first", metavar="ENTRY", help="Start at this entry.")
@click.option("--to", "last", metavar="ENTRY", help="Stop after this entry.")
@click.option("--tail", type=click.IntRange(1), metavar="N", help="Show only the last N entries.")
@click.option("-f", "--follow", is_flag=True, help="Print new entries as they are appended.")
@click.option("--agents", is_flag=True, help="List the sub-agents of the session instead.")
@click.option("--raw", is_flag=True, help="Print the lines of the file as they are; not to a terminal.")
@click.option("--jsonl", is_flag=True, help="Print each entry as a JSON line.")
@click.option("--redact", is_flag=True, help="Replace known kinds of secrets by placeholders.")
def show_verb(
    app: App,
    session: str,
    depth: Depth,
    branch: str | None,
    first: str | None,
    last: str | None,
    tail: int | None,
    follow: bool,
    agents: bool,
    raw: bool,
    jsonl: bool,
    redact: bool,
) -> int:
    """Read a session. Entries and lines that the depth hides are counted.

    At a terminal with colors, Markdown is rendered. In a pipe and with --plain it is printed as it is.
    """
    if agents:
        return _show_agents(app, session)
    if raw and app.out.is_terminal:
        raise Invalid(
            "--raw cannot be used at a terminal: control characters are not escaped", hint="redirect it to a file"
        )
    if raw and redact:
        raise Invalid("--raw prints the bytes of the file, so it cannot be used with --redact", hint="use --jsonl")
    with opened(app, session, branch=None if branch == "all" else branch) as named:
        hiding = _Hiding(named.session if redact else None)
        follower = _Follower(app, named.session, depth, jsonl, hiding) if follow else None
        entries = _part(named, branch == "all", first, last or named.entry, tail)
        if follower:
            entries = follower.remember(entries)
        if raw:
            _print_raw(entries)
        elif app.json and not jsonl:
            app.out.document(
                "show/1",
                map(hiding.entry, entries),
                id=named.session.id,
                path=hiding.value(named.session.path),
                leaf=named.leaf or named.session.leaf_id,
                gaps=hiding.value(named.session.get_gaps()),
            )
        elif jsonl:
            for entry in entries:
                app.out.record("show.entry/1", {"entry": hiding.entry(entry)})
        else:
            app.out.page(_transcript(app, named.session, entries, depth, hiding))
        if follower:
            follower.run()
        return damage(app, named.session)


def _path(named: Named, everything: bool) -> Iterator[Entry]:
    return named.session.iter_entries() if everything else named.session.iter_branch(named.leaf)


def _part(named: Named, everything: bool, first: str | None, last: str | None, tail: int | None) -> Iterator[Entry]:
    """Yield the selected entries one at a time: a session may not fit in memory."""
    path = _path(named, everything)
    if first is None and last is None:
        return path if tail is None else iter(deque(path, tail))
    start = 0 if first is None else _position(named, everything, first)
    end = None if last is None else _position(named, everything, last) + 1
    part = islice(path, start, end)
    return part if tail is None else iter(deque(part, tail))


def _position(named: Named, everything: bool, name: str) -> int:
    found = next((number for number, entry in enumerate(_path(named, everything)) if entry.id.startswith(name)), None)
    if found is None:
        hint = "pass --branch ENTRY; run `sessile tree` for ids"
        raise EntryNotFound(f"entry {name[:40]!r} is not on this branch", path=named.session.path, hint=hint)
    return found


class _Hiding:
    """Replaces secrets in what is printed. It reads the session first: some are only known by another entry."""

    def __init__(self, session: Session | None) -> None:
        self._redactor = None if session is None else share_redactor()
        if session is not None:
            Export(session, redactor=self._redactor)

    def entry(self, entry: Entry) -> Mapping[str, Any]:
        """Return an entry for printing."""
        shown: Mapping[str, Any] = self.value(dict(entry))
        return shown

    def readable(self, entry: Entry) -> Mapping[str, Any]:
        """Return an entry for the terminal, which shows no images."""
        shown: Mapping[str, Any] = self.value(entry.readable)
        return shown

    def value(self, value: Any) -> Any:
        """Return a text or a JSON value for printing."""
        return value if self._redactor is None else self._redactor.redact_value(value)


def _transcript(app: App, session: Session, entries: Iterable[Entry], depth: Depth, hiding: _Hiding) -> Iterator[Line]:
    gaps = [Gap(after, hiding.value(message)) for after, message in session.get_gaps()]
    place = f"  {visible_line(session.id)}  {visible_line(hiding.value(session.cwd))}"
    yield (Span(hiding.value(name_of(session)), "strong"), Span(place, "dim"))
    agents = sum(1 for _ in agent_files(app.store, session.path))
    if agents:
        yield (Span(f"{many(agents, 'sub-agent')}. Show: --agents", "dim"),)
    yield ()
    yield from transcript_lines(
        show_all(map(hiding.readable, entries)),
        depth,
        app.out.columns,
        hiding.value(session.get_labels()),
        gaps,
        plain_words=app.out.plain,
        when=when(app),
        prose=app.out.prose,
    )


def _print_raw(entries: Iterable[Any]) -> None:
    sys.stdout.flush()
    for entry in entries:
        sys.stdout.buffer.write(entry.raw + b"\n")


class _Follower:
    """Prints entries that are appended to a session, on any branch."""

    def __init__(self, app: App, session: Session, depth: Depth, jsonl: bool, hiding: _Hiding) -> None:
        self._app = app
        self._hiding = hiding
        self._session = session
        self._depth: Depth = depth
        self._jsonl = jsonl
        self._lines = sum(1 for _ in session.iter_lines())
        self._shown: set[str] = set()  # entries appended during the first printout must not be printed twice

    def remember(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Pass entries on, and remember that they were printed."""
        for entry in entries:
            self._shown.add(entry.id)
            yield entry

    def run(self) -> None:
        """Print new entries until interrupted, or until the session file is gone."""
        out = self._app.out
        out.note("following; press Ctrl-C to stop")
        while True:
            fresh = list(self._session.iter_lines(self._lines))
            self._lines += len(fresh)
            new = [entry for entry in fresh if entry.id not in self._shown]
            self._shown.clear()
            if self._jsonl:
                for entry in new:
                    out.record("show.entry/1", {"entry": self._hiding.entry(entry)})
            elif new:
                labels = self._hiding.value(self._session.get_labels())
                shown = show_all(map(self._hiding.readable, new))
                out.lines(
                    transcript_lines(
                        shown,
                        self._depth,
                        out.columns,
                        labels,
                        plain_words=out.plain,
                        when=when(self._app),
                        prose=out.prose,
                    )
                )
                sys.stdout.flush()
            if not is_there(self._app.store.fs, located(self._app.store.fs, self._session.path)):
                hint = "run `sessile ls` or `sessile trash` to find it"
                raise SessionNotFound("the session was moved or deleted", path=self._session.path, hint=hint)
            time.sleep(_POLL)


@verb(
    "sessile tree webhook                     branches, labels and compactions",
    "sessile tree 6513 --full                 every entry",
    "sessile tree @last --only labels --json  for programs",
    name="tree",
)
@click.argument("session", type=SESSION, default="@here")
@click.option("--full", is_flag=True, help="Show every entry.")
@click.option("--only", metavar="WHAT", help=f"Show only {', '.join(_ONLY)}; separate several with commas.")
@click.option("--ids", is_flag=True, help="Show the id of every entry.")
def tree_verb(app: App, session: str, full: bool, only: str | None, ids: bool) -> int:
    """Show the branches of a session. Each branch is indented, straight runs are counted, every head is shown."""
    names = [] if only is None else [name.strip() for name in only.split(",")]
    wanted: list[Only] | None = None if only is None else [name for name in _ONLY if name in names]
    if not set(names) <= set(_ONLY):
        raise Invalid(f"invalid --only {only!r}", hint=f"use {', '.join(_ONLY)}")
    with opened(app, session) as named:
        rows = named.session.iter_outline(only=wanted, full=full)
        if app.json:
            app.out.document(
                "tree/1",
                map(_described, rows),
                id=named.session.id,
                path=named.session.path,
                leaf=named.session.leaf_id,
                agents=[agent._asdict() for agent in sub_agents(app.store, named.session.path)],
            )
        else:
            head = _head(app, named.session)
            agents = list(sub_agents(app.store, named.session.path))
            lines = outline_lines(rows, app.out.columns, head, ids=ids or full, plain_words=app.out.plain)
            app.out.page(chain(lines, _agent_lines(agents)))
            _print_problems(app, agents)
        return damage(app, named.session)


def _agent_lines(agents: Sequence[SubAgent]) -> Iterator[Line]:
    """Yield the lines about sub-agents, below the outline."""
    if agents:
        yield ()
        yield (Span(many(len(agents), "sub-agent"), "strong"),)
    for agent in agents:
        facts = (agent.agent_type or "type unknown", _messages(agent), agent.description or "")
        yield (
            Span("  "),
            Span(visible_line(agent.name), "id"),
            Span("".join(f"  {visible_line(fact)}" for fact in facts if fact)),
        )


def _messages(agent: SubAgent) -> str:
    return "messages unknown" if agent.messages is None else many(agent.messages, "message")


def _print_problems(app: App, agents: Sequence[SubAgent]) -> None:
    """Print what is unknown about sub-agents, and why."""
    notes = [f"note: {visible_line(agent.name)}: {agent.problem}" for agent in agents if agent.problem is not None]
    for note in notes[:_LISTED]:
        app.out.note(note)
    if len(notes) > _LISTED:
        app.out.note(f"note: {many(len(notes) - _LISTED, 'more sub-agent')} with problems")


def _show_agents(app: App, session: str) -> int:
    """Print the sub-agents of a session as a table."""
    with opened(app, session) as named:
        path = named.session.path
    agents = list(sub_agents(app.store, path))
    if app.json:
        app.out.document("agents/1", (agent._asdict() for agent in agents), path=path)
        return 0 if agents else 1
    columns = [Column("name"), Column("type"), Column("messages", right=True), Column("description", wide=True)]
    unknown = Cell("?", "dim", "")
    cells = (
        [
            Cell(agent.name, "id"),
            Cell(agent.agent_type) if agent.agent_type else unknown,
            unknown if agent.messages is None else Cell(str(agent.messages)),
            Cell(agent.description or ""),
        ]
        for agent in agents
    )
    app.out.table(columns, cells)
    _print_problems(app, agents)
    if not agents:
        app.out.note("this session has no sub-agents")
    return 0 if agents else 1


def _described(row: Any) -> dict[str, Any]:
    shown = row.shown
    return {
        "id": row.id,
        "level": row.level,
        "kind": "run" if shown is None else shown.type,
        "who": None if shown is None else shown.who,
        "headline": None if shown is None else shown.headline,
        "failed": None if shown is None else shown.failed,
        "entries": row.entries,
        "label": row.label,
        "head": row.is_head,
        "leaf": row.is_leaf,
        "active": row.is_active,
        "branch": row.branch,
        "branches": row.branches,
    }


def _head(app: App, session: Session) -> OutlineHead:
    entries = session.count_entries()
    counts, digest = None, Digest()
    if entries <= _COUNT_LIMIT:
        for entry in session.iter_entries():
            digest.add(entry.stored)
        counts = digest.counts()
    return OutlineHead(
        title=session.shown_title,
        id=session.id,
        project=session.cwd,
        source=app.library.agent_of(session.path) or "file",
        entries=entries,
        branches=counts.branches if counts else len(session.get_heads()),
        cost=counts.cost if counts else None,
        unpriced=digest.spending.unpriced() if counts else {},
        listed=digest.spending.total().listed if counts else 0,
    )


# -- diff


@verb(
    "sessile diff webhook@deadbee1 webhook   two branches of one session",
    "sessile diff webhook                    the active branch and the one abandoned last",
    "sessile diff 6513 77aa --json           two sessions",
    name="diff",
)
@click.argument("left", type=SESSION)
@click.argument("right", type=SESSION, required=False)
def diff_verb(app: App, left: str, right: str | None) -> int:
    """Compare two branches or two sessions: the common part, both sides, and the totals of each."""
    with ExitStack() as open_ones:
        first = open_ones.enter_context(opened(app, left))
        if right is None:
            other = [entry.id for entry in first.session.get_abandoned()]
            if not other:
                raise Invalid("this session has only one branch", hint="name two: sessile diff SESSION@LEAF SESSION")
            first, second = first._replace(entry=other[-1]), first
        else:
            second = open_ones.enter_context(opened(app, right))
        by: By = "id" if first.session.path == second.session.path else "content"
        one, two = ((entry.readable for entry in each.session.iter_branch(each.at)) for each in (first, second))
        comparison = compare(one, two, by)
        if app.json:
            sides = {name: _totals(side) for name, side in (("left", comparison.left), ("right", comparison.right))}
            app.out.document("diff/1", common=comparison.common, common_id=comparison.common_id, **sides)
        else:
            # A screen reader cannot read two columns.
            columns = None if app.out.plain else app.out.columns
            app.out.page(compare_lines(comparison, columns, (_side_name("A", first), _side_name("B", second))))
        sessions = {named.session.path: named.session for named in (first, second)}
        return max(damage(app, session) for session in sessions.values())


def _side_name(letter: str, named: Named) -> str:
    """Return the name of a side: its letter, and the label or id of its head."""
    tip = named.at or named.session.leaf_id
    label = None if tip is None else named.session.get_label(tip)
    return f"{letter} {label or (tip or '')[:8]}".rstrip()


def _totals(side: Side) -> dict[str, Any]:
    return {**side._asdict(), "turns": [turn._asdict() for turn in side.turns]}
