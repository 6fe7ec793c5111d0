"""Arguments that name sessions, entries and branches, and what completes them in a shell.

Asking a person which session is meant, by a numbered list: the sessions of this folder, newest first.

The worktrees of a git repository, asked of git itself.

Rules: outside of a repository nothing is run. A folder within a worktree stands for the same folder in the others. Who has no
git, or one that does not answer in time, is told, and gets none.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sessile.cli.app import App
from sessile.cli.output import Cell, Column, aligned, in_words
from sessile.core.address import Address, is_path, parse_address, sub_agent
from sessile.core.ids import is_plain_id
from sessile.core.visible import visible_line
from sessile.errors import Invalid, NotASession, Refused, SessionNotFound
from sessile.render.wording import many
from sessile.storage.catalog_rows import SessionRow
from sessile.storage.filters import Filter

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from sessile.session import Session


# --- naming

_SUGGESTED = 40  # sessions that a shell is offered
_PATIENCE = 0.3  # seconds that somebody waits for titles after pressing Tab
_SHORT = 8  # characters of an id that are enough, nearly always
_TOLD = 3  # findings that are told one by one
_NATIVE = "native"  # the format of our own files
DAMAGED = 5  # the exit code where data is damaged, and what could be read was given


class SessionName(click.ParamType[str]):
    """The name of a session; see `sessile.core.address`."""

    name = "session"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Ids with titles, of the newest sessions that begin so; a shell would run what stands in some that files made up."""
        from click.shell_completion import CompletionItem

        from sessile.storage.filters import Filter

        app = ctx.find_object(App) or App()
        app.library.catch_up("count", deadline=time.monotonic() + _PATIENCE)
        wanted = Filter(id_prefix=incomplete, limit=_SUGGESTED) if incomplete else Filter(limit=_SUGGESTED)
        rows = app.library.list(wanted).rows
        return [
            CompletionItem(row.id, help=visible_line(row.title or row.first_text or row.cwd or ""))
            for row in rows
            if row.id and is_plain_id(row.id)
        ]


SESSION = SessionName()


class Named(NamedTuple):
    """What an address led to: an open session, and the entry or the head of the branch that was named."""

    session: Session
    entry: str | None
    leaf: str | None

    @property
    def at(self) -> str | None:
        """The entry that was named, in whichever way."""
        return self.entry or self.leaf


def addresses(names: tuple[str, ...]) -> Iterator[Address]:
    """The addresses of an argument; `-` stands for those on stdin, one a line."""
    for name in names:
        if name == "-":
            yield from (_address(line.split("\t")[0]) for line in map(str.strip, sys.stdin) if line)
        else:
            yield _address(name)


def _address(text: str) -> Address:
    """An address; a file that is there is meant, whatever characters are in its name."""
    if _is_file(text):
        return Address(text, None, None)
    path, hash_, entry = text.rpartition("#")
    if hash_ and entry and _is_file(path):
        return Address(path, entry, None)
    path, at, branch = text.rpartition("@")
    if at and branch and _is_file(path):
        return Address(path, None, branch)
    return parse_address(text)


def _is_file(text: str) -> bool:
    return is_path(text) and os.path.lexists(os.path.expanduser(text))


@contextmanager
def opened(app: App, name: str, *, branch: str | None = None) -> Iterator[Named]:
    """The session that a name means, open for reading; a `branch` replaces the entry or the branch behind the name."""
    address = one(name) if branch is None else one(name)._replace(entry=None, branch=branch)
    with app.store.open(located(app, address), readonly=True) as session:
        yield _within(session, address)


def located(app: App, address: Address) -> str:
    """The file of the session that an address means; a path needs no catalog."""
    if is_path(address.session):
        path = os.path.abspath(os.path.join(app.here, os.path.expanduser(address.session)))
        if os.path.lexists(path):
            return _plain_file(path)
        if sub_agent(address.session) is None:
            raise SessionNotFound("there is no such file", path=path, hint="sessile ls shows what there is")
    with app.out.progress("Reading sessions") as progress:
        return app.library.find(address.session, app.here, progress=progress)


def _plain_file(path: str) -> str:
    """The file behind a path that somebody has named; a link is followed because they named it."""
    target = os.path.realpath(path) if os.path.islink(path) else path
    if os.path.isdir(target):
        raise NotASession("this is a folder, not a session", path=path, hint="sessile ls -p FOLDER lists a project's")
    if not os.path.lexists(target):
        raise SessionNotFound("this link leads nowhere", path=path, hint="the file that it names was moved or deleted")
    if not os.path.isfile(target):
        raise NotASession("this is not a plain file", path=path, hint="a session is a file of lines, such as x.jsonl")
    return target


def damage(app: App, session: Session) -> int:
    """Say what could not be read; the exit code for that."""
    findings = session.findings
    if not findings:
        return 0
    again = f"{app.command} check {handle(app, session.id, session.path)}"
    for finding in findings[:_TOLD]:
        app.out.note(f"note: {finding.detail} – {again}")
    if len(findings) > _TOLD:
        # Of very many, the last one only says that there are more.
        least = "at least " if findings[-1].code == "more" else ""
        app.out.note(f"note: {least}{many(len(findings) - _TOLD, 'more finding')} – {again}")
    return DAMAGED


def handle(app: App, session_id: str | None, path: str, *, whole: bool = False) -> str:
    """How a session is named on the command line: by its id, or by its file if it lies where nobody looks or has no plain id."""
    if session_id and is_plain_id(session_id) and app.library.agent_of(path) is not None:
        return session_id[: None if whole else _SHORT]
    return shlex.quote(path)


def name_of(session: Session) -> str:
    """The title of a session, for a terminal."""
    return visible_line(session.title or "(no title)")


def written_by(session: Session) -> str | None:
    """The agent whose own format the file of a session has; `None` if it is ours, which the family shares."""
    return None if session.format == _NATIVE else session.format


def when(app: App) -> Callable[[int | None], str]:
    """How transcripts tell times: to the minute, in the chosen zone."""
    return lambda moment: (app.out.iso(moment) or "")[:16].replace("T", " ")


def one(name: str) -> Address:
    """A single address; `-` is the first line of stdin."""
    found = next(addresses((name,)), None)
    if found is None:
        raise Invalid("stdin names no session", hint="sessile ls | head -1 | sessile show -")
    return found


def _within(session: Session, address: Address) -> Named:
    if address.entry is None and address.branch is None:
        return Named(session, None, None)
    from sessile.library import find_entry, find_leaf

    entry = None if address.entry is None else find_entry(session, address.entry)
    leaf = None if address.branch is None else find_leaf(session, address.branch)
    return Named(session, entry, leaf)


@contextmanager
def writable(app: App, name: str, *, in_place: bool | None) -> Iterator[Named]:
    """The session that a name means, open for writing; one of another agent only if the person says so.

    `None` is for verbs that nobody can ask for that.
    """
    address = one(name)
    path = located(app, address)
    if app.store.layout.keeps(path):
        raise Refused(
            "this is the copy of a session that was kept, byte for byte", path=path, hint="fork it: sessile fork"
        )
    owned = app.store.layout.owns(path)
    if not in_place and not owned:
        raise _not_ours(app, path, can_ask=in_place is not None)
    with app.store.open(path, in_place=not owned) as session:
        for notice in session.notices:
            app.out.note(f"note: {notice}")
        yield _within(session, address)


def _not_ours(app: App, path: str, *, can_ask: bool) -> Refused:
    """The error for whoever wants to write into another agent's file without saying so."""
    from sessile.agents.registry import AGENTS

    agent = app.library.agent_of(path)
    able = AGENTS.capabilities(agent)
    hint = "fork it: sessile fork"
    if not able:
        hint += f"; nothing can be written into a file of {agent} from here"
    elif can_ask:
        hint = f"say --in-place to write into its file ({', '.join(able)}), or {hint}"
    return Refused(
        f"this session belongs to {agent or 'another program'}, whose files are only read", path=path, hint=hint
    )


def in_place_option(function: Any) -> Any:
    """Lets a verb write into another agent's file."""
    return click.option("--in-place", is_flag=True, help="Write into the file of another agent.")(function)


# --- choosing

_OFFERED = 15  # sessions that fit on any screen
_COLUMNS = (Column("number", right=True), Column("age", right=True), Column("agent"), Column("title", wide=True))


def can_ask(app: App) -> bool:
    """Whether there is a person to ask."""
    return not app.json and sys.stdin.isatty() and sys.stderr.isatty()


def choose(app: App) -> str:
    """The session that a person picks: its path, or what they typed instead of a number."""
    with app.out.progress("Reading sessions") as progress:
        app.library.catch_up("count", progress=progress)
    listing = app.library.list(Filter(project=app.here, limit=_OFFERED))
    if not listing.rows:
        listing = app.library.list(Filter(limit=_OFFERED))
        if listing.rows:
            app.out.note("this folder has no session; these are the newest of all folders")
    rows = listing.rows
    if not rows:
        return "@here"  # whose error says what to do
    if len(rows) == 1 and rows[0].cwd == app.here:
        return rows[0].path
    _offer(app, rows)
    if listing.total > len(rows):
        app.out.note(f"… {listing.total - len(rows):,} more: sessile ls")
    return _answer(rows)


def _offer(app: App, rows: list[SessionRow]) -> None:
    cells = [
        [
            Cell(str(number)),
            app.out.moment(row.modified_ns // 1_000_000),
            Cell(app.library.agent_of(row.path) or ""),
            Cell(row.title or row.first_text or "(no title)"),
        ]
        for number, row in enumerate(rows, 1)
    ]
    if app.out.plain:
        told = [in_words(_COLUMNS, row) for row in cells]
    else:
        told = ["".join(span.text for span in line) for line in aligned(_COLUMNS, cells, app.out.columns or 80)]
    for line in told:
        app.out.note(line, "plain")


def _answer(rows: list[SessionRow]) -> str:
    answer = str(click.prompt("Which one? A number, or an id or words of a title", default="1", err=True)).strip()
    if not answer.isdecimal():
        return answer
    return rows[int(answer) - 1].path if 1 <= int(answer) <= len(rows) else answer


# --- worktrees

_WORKTREES_PATIENCE = 2.0  # seconds; git takes a few milliseconds for that
_WORKTREE = b"worktree "


def other_worktrees(folder: str, note: Callable[[str], object]) -> list[str]:
    """The folders in other worktrees that are the same as this one; `note` is told what did not work."""
    here = os.path.realpath(folder)
    if not any(os.path.lexists(os.path.join(parent, ".git")) for parent in _parents(here)):
        return []
    trees = _asked(here, note)
    own = max((tree for tree in trees if here == tree or here.startswith(f"{tree}/")), key=len, default=None)
    if own is None:
        return []
    return [tree + here[len(own) :] for tree in trees if tree != own]


def _parents(folder: str) -> Iterator[str]:
    """A folder and those that it is in."""
    yield folder
    while (parent := os.path.dirname(folder)) != folder:
        yield parent
        folder = parent


def _asked(folder: str, note: Callable[[str], object]) -> Sequence[str]:
    """What git says; a worktree whose folder is gone is still one."""
    import subprocess  # most folders are in no repository, and a listing starts faster without

    command = ["git", "-C", folder, "worktree", "list", "--porcelain"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_WORKTREES_PATIENCE, check=False
        )
    except FileNotFoundError:
        note("there is no git here: sessions of other worktrees are left out")
        return ()
    except subprocess.TimeoutExpired:
        note("git did not answer in time: sessions of other worktrees are left out")
        return ()
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        note(f"sessions of other worktrees are left out: git says {said or 'nothing'}")
        return ()
    lines = done.stdout.split(b"\n")
    return [os.fsdecode(line[len(_WORKTREE) :]) for line in lines if line.startswith(_WORKTREE)]
