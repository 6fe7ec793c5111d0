"""Arguments that name sessions, entries and branches, with shell completion and a prompt to choose one.

Also the other worktrees of a project, which git is asked for.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sessile.agents.registry import AGENTS
from sessile.cli.command import App, quoted
from sessile.cli.output import Cell, Column, aligned, in_words
from sessile.core.address import Address, is_path, parse_address, sub_agent
from sessile.core.digest import title_of
from sessile.core.ids import is_plain_id
from sessile.core.visible import visible_line
from sessile.errors import Invalid, NotASession, Refused, SessionNotFound
from sessile.render.wording import many
from sessile.storage import drafts
from sessile.storage.atomic import is_there
from sessile.storage.filters import Filter

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from sessile.session import Session
    from sessile.storage.catalog_rows import SessionRow

_SUGGESTED = 40  # sessions in a completion
_COMPLETION_TIME = 0.3  # seconds for updating the catalog after Tab
_SHORT = 8  # characters of a shortened id
_LISTED = 3  # findings that are printed one by one
_NATIVE = "native"  # the format of our own session files
DAMAGED = 5  # exit code for damaged data; readable parts were printed


class SessionName(click.ParamType[str]):
    """The address of a session; see `sessile.core.address`."""

    name = "session"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return ids and titles of matching sessions; ids that a shell would interpret are left out."""
        from click.shell_completion import CompletionItem  # only shells need it

        app = ctx.find_object(App) or App()
        app.library.catch_up("count", deadline=time.monotonic() + _COMPLETION_TIME)
        wanted = Filter(id_prefix=incomplete, limit=_SUGGESTED) if incomplete else Filter(limit=_SUGGESTED)
        rows = app.library.list(wanted).rows
        return [
            CompletionItem(row.id, help=visible_line(title_of(row.title, row.first_text or row.cwd)))
            for row in rows
            if row.id and is_plain_id(row.id)
        ]


SESSION = SessionName()


class Named(NamedTuple):
    """An open session, and the entry or branch head that its address names."""

    session: Session
    entry: str | None
    leaf: str | None

    @property
    def at(self) -> str | None:
        """The named entry or branch head."""
        return self.entry or self.leaf


def addresses(names: tuple[str, ...]) -> Iterator[Address]:
    """Yield the addresses in the arguments; `-` reads them from stdin, one per line."""
    for name in names:
        if name == "-":
            yield from (_address(line.split("\t")[0]) for line in map(str.strip, sys.stdin) if line)
        else:
            yield _address(name)


def _address(text: str) -> Address:
    """Parse an address; an existing file wins, whatever characters its name has."""
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
    """Open a session for reading; `branch` overrides the entry or branch of the address."""
    address = one(name) if branch is None else one(name)._replace(entry=None, branch=branch)
    with app.store.open(located(app, address), readonly=True) as session:
        yield _within(session, address)


def located(app: App, address: Address) -> str:
    """Return the file of a session; a path needs no catalog."""
    if is_path(address.session):
        path = os.path.abspath(os.path.join(app.here, os.path.expanduser(address.session)))
        path = drafts.located(app.store.fs, path)
        if os.path.lexists(path):
            return _plain_file(path)
        if is_there(app.store.fs, path):  # a session inside of a file
            return path
        if sub_agent(address.session) is None:
            raise SessionNotFound("file not found", path=path, hint="run `sessile ls` for a list of sessions")
    with app.out.progress("Reading sessions") as progress:
        return app.library.find(address.session, app.here, progress=progress)


def _plain_file(path: str) -> str:
    """Return the regular file at a path; symbolic links are followed, because the user named the path."""
    target = os.path.realpath(path) if os.path.islink(path) else path
    if os.path.isdir(target):
        raise NotASession(
            "this is a folder, not a session", path=path, hint="run `sessile ls -p FOLDER` to list its sessions"
        )
    if not os.path.lexists(target):
        raise SessionNotFound("broken symbolic link", path=path, hint="its target was moved or deleted")
    if not os.path.isfile(target):
        raise NotASession("not a regular file", path=path, hint="pass a session file, such as x.jsonl")
    return target


def damage(app: App, session: Session, *, bridged: bool = False) -> int:
    """Print the findings of a session and return the exit code. `bridged` is whether missing parents were passed over."""
    findings = session.findings
    if not findings:
        return 0
    again = f"{app.command} check {handle(app, session.id, session.path)}"
    across = f"read across the gap: {app.command} context {handle(app, session.id, session.path)} --bridge"
    if bridged and written_by(session) is None:
        across = f"connect it for good: {app.command} repair {handle(app, session.id, session.path)} --bridge"
    for finding in findings[:_LISTED]:
        do = across if finding.code == "missing_parent" else again
        app.out.note(f"note: {finding.detail} – {do}")
    if len(findings) > _LISTED:
        # If there are very many, the last finding only says that there are more.
        least = "at least " if findings[-1].code == "more" else ""
        app.out.note(f"note: {least}{many(len(findings) - _LISTED, 'more finding')} – {again}")
    return DAMAGED


def handle(app: App, session_id: str | None, path: str, *, whole: bool = False) -> str:
    """Return the name of a session for the command line: its id, or its path if no source contains it or its id is not plain."""
    if session_id and is_plain_id(session_id) and app.library.agent_of(path) is not None:
        return session_id[: None if whole else _SHORT]
    return quoted(path)


def name_of(session: Session) -> str:
    """Return the title of a session, made visible, with a mark for a draft."""
    return ("(draft) " if session.is_draft else "") + visible_line(session.shown_title)


def written_by(session: Session) -> str | None:
    """Return the agent whose format the session file has; `None` for the native format."""
    return None if session.format == _NATIVE else session.format


def when(app: App) -> Callable[[int | None], str]:
    """Return a function that formats times for transcripts: to the minute, in the chosen zone."""
    return lambda moment: (app.out.iso(moment) or "")[:16].replace("T", " ")


def one(name: str) -> Address:
    """Parse a single address; `-` reads the first line of stdin."""
    found = next(addresses((name,)), None)
    if found is None:
        raise Invalid("no session on stdin", hint="sessile ls | head -1 | sessile show -")
    return found


def _within(session: Session, address: Address) -> Named:
    if address.entry is None and address.branch is None:
        return Named(session, None, None)
    from sessile.library import find_entry, find_leaf  # a path alone needs no library

    entry = None if address.entry is None else find_entry(session, address.entry)
    leaf = None if address.branch is None else find_leaf(session, address.branch)
    return Named(session, entry, leaf)


@contextmanager
def writable(app: App, name: str, *, in_place: bool | None) -> Iterator[Named]:
    """Open a session for writing; files of other agents need `in_place`, which is `None` for verbs without that option."""
    address = one(name)
    path = located(app, address)
    if app.store.layout.keeps(path):
        raise Refused(
            "this is a kept copy of a session, and read-only", path=path, hint="run `sessile fork` and change the fork"
        )
    owned = app.store.layout.owns(path)
    if not in_place and not owned:
        raise _foreign(app, path, has_option=in_place is not None)
    with app.store.open(path, in_place=not owned) as session:
        for notice in session.notices:
            app.out.note(f"note: {notice}")
        yield _within(session, address)


def _foreign(app: App, path: str, *, has_option: bool) -> Refused:
    """Return the error for writing to another agent's file."""
    agent = app.library.agent_of(path)
    able = AGENTS.capabilities(agent)
    hint = "run `sessile fork` and change the fork"
    if not able:
        hint += f"; writing to files of {agent} is not supported"
    elif has_option:
        hint = f"pass --in-place to write to its file ({', '.join(able)}), or {hint}"
    return Refused(
        f"this session belongs to {agent or 'another program'}, whose files are read-only", path=path, hint=hint
    )


def in_place_option(function: Any) -> Any:
    """Add the --in-place option to a verb."""
    return click.option("--in-place", is_flag=True, help="Write to the file of another agent.")(function)


# -- choosing

_OFFERED = 15  # sessions to choose from; fits on any screen
_COLUMNS = (Column("number", right=True), Column("age", right=True), Column("agent"), Column("title", wide=True))


def can_ask(app: App) -> bool:
    """Return whether the user can be prompted."""
    return not app.json and sys.stdin.isatty() and sys.stderr.isatty()


def choose(app: App) -> str:
    """Prompt for a session of this folder and return its path, or the address that was typed."""
    with app.out.progress("Reading sessions") as progress:
        app.library.catch_up("count", progress=progress)
    listing = app.library.list(Filter(project=app.here, limit=_OFFERED))
    elsewhere = app.library.list(Filter(limit=0)).total - listing.total
    if not listing.rows:
        listing, elsewhere = app.library.list(Filter(limit=_OFFERED)), 0
        if listing.rows:
            app.out.note("no sessions in this folder; these are the newest of all folders")
    rows = listing.rows
    if not rows:
        return "@here"  # raises the error with the right hint
    if len(rows) == 1 and rows[0].cwd == app.here:
        return rows[0].path
    _offer(app, rows)
    if listing.total > len(rows):
        app.out.note(f"… {listing.total - len(rows):,} more. Show: {app.command} ls")
    if elsewhere:
        app.out.note(f"… {elsewhere:,} in other folders. Show: {app.command} ls")
    app.out.hidden(listing.hidden, f"{app.command} ls -A")
    return _answer(rows)


def _offer(app: App, rows: list[SessionRow]) -> None:
    cells = [
        [
            Cell(str(number)),
            app.out.moment(row.modified_ns // 1_000_000),
            Cell(app.library.agent_of(row.path) or ""),
            Cell(title_of(row.title, row.first_text)),
        ]
        for number, row in enumerate(rows, 1)
    ]
    if app.out.plain:
        lines = [in_words(_COLUMNS, row) for row in cells]
    else:
        lines = ["".join(span.text for span in line) for line in aligned(_COLUMNS, cells, app.out.columns or 80)]
    for line in lines:
        app.out.note(line, "plain")


def _answer(rows: list[SessionRow]) -> str:
    answer = str(click.prompt("Which one? Number, id or words of the title", default="1", err=True)).strip()
    if not answer.isdecimal():
        return answer
    return rows[int(answer) - 1].path if 1 <= int(answer) <= len(rows) else answer


# -- worktrees

_GIT_TIMEOUT = 2.0  # seconds; git usually takes a few milliseconds
_WORKTREE = b"worktree "


def other_worktrees(folder: str, note: Callable[[str], object]) -> list[str]:
    """Return the counterparts of a folder in the other worktrees of its git repository.

    Git is run only inside a repository. `note` is called with a message if it fails.
    """
    here = os.path.realpath(folder)
    if not any(os.path.lexists(os.path.join(parent, ".git")) for parent in _parents(here)):
        return []
    trees = _worktrees(here, note)
    own = max((tree for tree in trees if here == tree or here.startswith(f"{tree}/")), key=len, default=None)
    if own is None:
        return []
    return [tree + here[len(own) :] for tree in trees if tree != own]


def _parents(folder: str) -> Iterator[str]:
    """Yield a folder and its parents."""
    yield folder
    while (parent := os.path.dirname(folder)) != folder:
        yield parent
        folder = parent


def _worktrees(folder: str, note: Callable[[str], object]) -> Sequence[str]:
    """Return the worktrees that git lists, including those whose folder was removed."""
    import subprocess  # keeps listings fast: most folders are not in a repository

    command = ["git", "-C", folder, "worktree", "list", "--porcelain"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_TIMEOUT, check=False)
    except FileNotFoundError:
        note("git is not installed; sessions of other worktrees are not included")
        return ()
    except subprocess.TimeoutExpired:
        note("git timed out; sessions of other worktrees are not included")
        return ()
    if done.returncode:
        message = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        note(f"git failed; sessions of other worktrees are not included: {message or 'no message'}")
        return ()
    lines = done.stdout.split(b"\n")
    return [os.fsdecode(line[len(_WORKTREE) :]) for line in lines if line.startswith(_WORKTREE)]
