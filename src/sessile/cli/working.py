"""Working with sessions: going on with one, branching, forking, naming, pinning, moving.

Every verb that writes says which file it touched. Other agents' files are written only with --in-place.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence

import click

from sessile.agents.registry import AGENTS
from sessile.cli.app import App, verb
from sessile.cli.names import SESSION, damage, handle, in_place_option, opened, writable, written_by
from sessile.core.address import sub_agent
from sessile.core.ids import is_plain_id
from sessile.errors import Invalid, NotFound, SessionNotFound, Unsupported
from sessile.session import Session

_AGENTS = {agent.name: agent.command for agent in AGENTS if agent.command}
_BY_ID = tuple(agent.name for agent in AGENTS if agent.resumes_by_id)


@verb(
    "sessile resume webhook            go on with the session of that title, in its agent",
    "sessile resume 6513#9f31 --in pi  from an entry, as a fork, in pi",
    "sessile resume @last --print      only say what would be run",
    name="resume",
)
@click.argument("session", type=SESSION, required=False)
@click.option("--in", "agent", type=click.Choice(tuple(_AGENTS)), help="In this agent.")
@click.option("--at", metavar="ENTRY", help="From this entry, as a fork of your own; the same as SESSION#ENTRY.")
@click.option("--print", "only_print", is_flag=True, help="Print the command, run nothing.")
def resume_verb(app: App, session: str | None, agent: str | None, at: str | None, only_print: bool) -> int:
    """Go on with a session: change to its folder and start its agent there.

    Without a name, a terminal offers those of this folder; elsewhere the last one of this folder is taken.
    """
    if session is None:
        from sessile.cli.names import can_ask, choose

        session = choose(app) if can_ask(app) else "@here"
    return _resume(app, f"{session}#{at}" if at else session, agent, only_print)


@verb("sessile continue        the last session of this folder", "sessile continue --print", name="continue")
@click.option("--in", "agent", type=click.Choice(tuple(_AGENTS)), help="In this agent.")
@click.option("--print", "only_print", is_flag=True, help="Print the command, run nothing.")
def continue_verb(app: App, agent: str | None, only_print: bool) -> int:
    """Go on with the last session of this folder; of all folders if it has none."""
    try:
        return _resume(app, "@here", agent, only_print)
    except SessionNotFound:
        app.out.note("this folder has no session; the last one of all is taken")
        return _resume(app, "@last", agent, only_print)


def _resume(app: App, name: str, agent: str | None, only_print: bool) -> int:
    with opened(app, name) as named:
        session, cwd = named.session, named.session.cwd
        writer = written_by(session)
        owner = writer or app.library.agent_of(session.path)
        kept = app.store.layout.keeps(session.path)  # its agent has deleted it, and does not know it any more
        agent = agent or (owner if owner in _AGENTS and named.at is None and not kept else "pi")
        if agent in _BY_ID and kept:
            place = app.library.original_of(session.path)
            put_back = "" if place is None else f", or put it back: {shlex.join(['cp', session.path, place])}"
            message = f"this is the copy that was kept, which {agent} does not know"
            raise Unsupported(message, path=session.path, hint=f"say --in pi{put_back}")
        if agent in _BY_ID and (agent != writer or named.at is not None):
            again = f"sessile convert {handle(app, session.id, session.path)}"
            hint = f"{again} --to {agent} -o FILE" if agent == "claude" else "say --in pi"
            raise Unsupported(f"{agent} goes on with whole sessions of its own only", path=session.path, hint=hint)
        if agent in _BY_ID and sub_agent(name) is not None:
            raise Unsupported("a sub-agent goes on with its session only", path=session.path, hint="say --in pi")
        foreign = writer is not None or owner == "openclaw"  # the family goes on in the files of its members
        command = [*_AGENTS[agent], _plain_id(session) if agent in _BY_ID else session.path]
        forks = agent not in _BY_ID and (named.at is not None or foreign or kept)
        if app.store.database is not None and (forks or app.store.layout.owns(session.path)):
            again = f"{app.command} convert {handle(app, session.id, session.path)}"
            hint = f"{again} --to pi -o FILE; then {shlex.join(_AGENTS[agent])} FILE"
            raise Unsupported(f"{agent} goes on in files, and yours are in a database", path=session.path, hint=hint)
        if forks:
            if only_print or app.json:
                app.out.note("it is forked into your own store first; nothing is written into its own file")
                command = [*shlex.split(app.command), "resume", name, "--in", agent]
            else:
                command[-1] = _forked(app, session, named.at)
        damage(app, session)
    exists = os.path.isdir(cwd)
    if app.json:
        app.out.document("resume/1", argv=command, cwd=cwd, cwd_exists=exists, agent=agent)
        return 0
    if only_print:
        app.out.line((f"cd {shlex.quote(cwd)} && " if exists else "") + shlex.join(command))
        return 0
    program = shutil.which(command[0])
    if program is None:
        hint = f"install it, or say another: --in {'|'.join(_AGENTS)}; it would run {shlex.join(command)}"
        raise NotFound(f"the command {command[0]} of this agent is not installed", hint=hint)
    if exists:
        os.chdir(cwd)
    else:
        app.out.note(f"its folder {cwd} is not there; starting in {app.here}")
    sys.stdout.flush()
    sys.stderr.flush()
    return os.execv(program, command)


def _plain_id(session: Session) -> str:
    """The id of a session as an argument: a file may say anything, and an agent would take `-…` for an option."""
    if not is_plain_id(session.id):
        hint = "say --in pi, which is given the file"
        raise Unsupported("no agent gives a session such an id", path=session.path, hint=hint)
    return session.id


def _forked(app: App, session: Session, entry: str | None) -> str:
    """The session, or the path to an entry of it, as one of one's own; its file."""
    fork = app.store.fork_from(session.path, session.cwd) if entry is None else session.create_branched_session(entry)
    with fork:
        app.out.note(f"forked into {fork.path}")
        return fork.path


@verb(
    "sessile branch webhook#9f31c2a0      the next message begins a branch at that entry",
    "sessile branch webhook@tests-green   … at a label",
    name="branch",
)
@click.argument("entry", metavar="SESSION#ENTRY", type=SESSION)
@click.option("--summary", metavar="TEXT", help="What was learned on the branch that is left.")
def branch_verb(app: App, entry: str, summary: str | None) -> int:
    """Move the leaf of a session to an earlier entry. Nothing is removed: the branch that is left stays in the tree."""
    with writable(app, entry, in_place=None) as (session, at, leaf):
        target = at or leaf
        if target is None:
            raise Invalid("which entry?", hint="sessile branch SESSION#ENTRY; sessile tree SESSION shows ids")
        if summary is None:
            session.branch(target, durable=True)
        else:
            session.branch_with_summary(target, summary)
        return _done(app, "branch", session, f"the leaf is at {session.leaf_id}", leaf=session.leaf_id)


@verb(
    "sessile fork webhook             a copy with all branches, in your own store",
    "sessile fork webhook#9f31c2a0    only the path to that entry",
    "sessile fork @last --cwd ~/app   for another project",
    name="fork",
)
@click.argument("session", type=SESSION)
@click.option("--cwd", metavar="FOLDER", help="The project of the new session; else that of the old one.")
def fork_verb(app: App, session: str, cwd: str | None) -> int:
    """Begin a new session from another, or from an entry of it. The old one is not touched."""
    folder = None if cwd is None else os.path.abspath(os.path.join(app.here, os.path.expanduser(cwd)))
    with opened(app, session) as named:
        source = named.session
        if named.at is None:
            fork = app.store.fork_from(source.path, folder or source.cwd)
        else:
            fork = source.create_branched_session(named.at)
        with fork:
            if folder is not None and named.at is not None:
                fork.move_to(folder)
            _done(app, "fork", fork, f"forked as {fork.id}", source=source.path)
        return damage(app, source)  # what could not be read is not in the fork


@verb(
    "sessile label webhook#9f31c2a0 tests-green",
    "sessile label webhook#9f31c2a0 --clear",
    "sessile show webhook@tests-green     use it",
    name="label",
)
@click.argument("entry", metavar="SESSION#ENTRY", type=SESSION)
@click.argument("text", required=False)
@click.option("--clear", is_flag=True, help="Take the label away.")
@in_place_option
def label_verb(app: App, entry: str, text: str | None, clear: bool, in_place: bool) -> int:
    """Name an entry, so that it is found again."""
    if clear == bool(text):
        raise Invalid("a label, or --clear?", hint="sessile label SESSION#ENTRY TEXT")
    with writable(app, entry, in_place=in_place) as (session, at, leaf):
        target = at or leaf
        if target is None:
            raise Invalid("which entry?", hint="sessile label SESSION#ENTRY TEXT; sessile tree SESSION shows ids")
        session.append_label_change(target, text)
        return _done(app, "label", session, f"{target} is {text!r} now" if text else f"{target} has no label now")


@verb('sessile rename 6513 "Webhook retries"', "sessile rename @last Webhook retries", name="rename")
@click.argument("session", type=SESSION)
@click.argument("title", nargs=-1, required=True)
@in_place_option
def rename_verb(app: App, session: str, title: tuple[str, ...], in_place: bool) -> int:
    """Name a session."""
    with writable(app, session, in_place=in_place) as (found, _, _):
        if not found.set_session_name(" ".join(title)):
            raise Invalid("a name needs a visible character", hint="say what the session is about")
        return _done(app, "rename", found, f"it is called {found.title!r} now", title=found.title)


@verb(
    "sessile tag webhook payments      put it into a drawer",
    "sessile tag webhook --clear",
    "sessile tag webhook               say which it has",
    name="tag",
)
@click.argument("session", type=SESSION)
@click.argument("text", required=False)
@click.option("--clear", is_flag=True, help="Take the tag away.")
@in_place_option
def tag_verb(app: App, session: str, text: str | None, clear: bool, in_place: bool) -> int:
    """Tag a session, or say which tag it has. A session has one; Claude Code shows those that it is given."""
    if clear and text is not None:
        raise Invalid("a tag, or --clear?", hint="sessile tag SESSION TEXT")
    if text is None and not clear:
        with opened(app, session) as named:
            tag = named.session.tag
            if app.json:
                app.out.document("tag/1", id=named.session.id, path=named.session.path, tag=tag)
            elif tag is not None:
                app.out.line(tag)
            else:
                app.out.note(f"it has no tag ({named.session.path})")
            return 0 if tag is not None else 1
    with writable(app, session, in_place=in_place) as (found, _, _):
        tag = found.set_tag(text)
        return _done(app, "tag", found, f"its tag is {tag!r} now" if tag else "it has no tag now", tag=tag)


@verb("sessile pin webhook", "sessile pin webhook --remove", "sessile ls --pinned", name="pin")
@click.argument("sessions", type=SESSION, nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Do not keep it any longer.")
def pin_verb(app: App, sessions: Sequence[str], remove: bool) -> int:
    """Keep sessions from being cleaned up. The note of it lies in your own store, not in the session."""
    changed = 0
    for name in sessions:
        with opened(app, name) as named:
            session_id = named.session.id
            fresh = app.library.pins.remove(session_id) if remove else app.library.pins.add(session_id)
            changed += fresh
            state = "not pinned" if remove else "pinned"
            _done(app, "pin", named.session, f"{state}{' now' if fresh else ' already'}: {session_id}")
    return 0 if changed else 1


@verb("sessile move webhook ~/work/payments", "sessile move @last .", name="move")
@click.argument("session", type=SESSION)
@click.argument("folder")
@in_place_option
def move_verb(app: App, session: str, folder: str, in_place: bool) -> int:
    """Move a session, with its artifacts, to another project."""
    cwd = os.path.abspath(os.path.join(app.here, os.path.expanduser(folder)))
    with writable(app, session, in_place=in_place) as (found, _, _):
        found.move_to(cwd)
        return _done(app, "move", found, f"it belongs to {cwd} now", cwd=cwd)


def _done(app: App, what: str, session: Session, told: str, **members: str | None) -> int:
    if app.json:
        app.out.document(f"{what}/1", id=session.id, path=session.path, **members)
    else:
        app.out.line(session.id)
        app.out.note(f"{told} ({session.path})")
    return 0
