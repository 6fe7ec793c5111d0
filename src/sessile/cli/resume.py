"""Resuming a session in the agent that wrote it, or in another one."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

import click

from sessile.agents.registry import AGENTS
from sessile.cli.arguments import SESSION, can_ask, choose, damage, handle, opened, written_by
from sessile.cli.command import App, verb
from sessile.core.address import sub_agent
from sessile.core.ids import is_plain_id
from sessile.errors import NotFound, SessionNotFound, Unsupported
from sessile.session import Session

_AGENTS = {agent.name: agent.command for agent in AGENTS if agent.command}
_BY_ID = tuple(agent.name for agent in AGENTS if agent.resumes_by_id)


@verb(
    "sessile resume webhook            resume the session of this title in its agent",
    "sessile resume 6513#9f31 --in pi  from an entry, as a fork, in pi",
    "sessile resume @last --print      show what would be run",
    name="resume",
)
@click.argument("session", type=SESSION, required=False)
@click.option("--in", "agent", type=click.Choice(tuple(_AGENTS)), help="Agent to resume in.")
@click.option("--at", metavar="ENTRY", help="Resume from this entry, as a fork in your store; same as SESSION#ENTRY.")
@click.option("--print", "only_print", is_flag=True, help="Print the command without running it.")
def resume_verb(app: App, session: str | None, agent: str | None, at: str | None, only_print: bool) -> int:
    """Resume a session: change to its folder and start its agent there.

    Without a name, choose among the sessions of this folder; without a terminal, take the latest one.
    """
    if session is None:
        session = choose(app) if can_ask(app) else "@here"
    return _resume(app, f"{session}#{at}" if at else session, agent, only_print)


@verb("sessile continue        the latest session of this folder", "sessile continue --print", name="continue")
@click.option("--in", "agent", type=click.Choice(tuple(_AGENTS)), help="Agent to resume in.")
@click.option("--print", "only_print", is_flag=True, help="Print the command without running it.")
def continue_verb(app: App, agent: str | None, only_print: bool) -> int:
    """Resume the latest session of this folder, or of all folders if it has none."""
    try:
        return _resume(app, "@here", agent, only_print)
    except SessionNotFound:
        app.out.note("no sessions in this folder; using the latest of all folders")
        return _resume(app, "@last", agent, only_print)


def _resume(app: App, name: str, agent: str | None, only_print: bool) -> int:
    with opened(app, name) as named:
        session, cwd = named.session, named.session.cwd
        writer = written_by(session)
        owner = writer or app.library.agent_of(session.path)
        kept = app.store.layout.keeps(session.path)  # its agent has deleted the original
        agent = agent or (owner if owner in _AGENTS and named.at is None and not kept else "pi")
        if agent in _BY_ID and kept:
            place = app.library.original_of(session.path)
            put_back = "" if place is None else f", or put it back: {shlex.join(['cp', session.path, place])}"
            message = f"{agent} cannot resume a kept copy"
            raise Unsupported(message, path=session.path, hint=f"pass --in pi{put_back}")
        if agent in _BY_ID and (agent != writer or named.at is not None):
            convert = f"sessile convert {handle(app, session.id, session.path)}"
            hint = f"{convert} --to {agent} -o FILE" if agent == "claude" else "pass --in pi"
            raise Unsupported(f"{agent} can resume only whole sessions of its own", path=session.path, hint=hint)
        if agent in _BY_ID and sub_agent(name) is not None:
            raise Unsupported(f"{agent} cannot resume a sub-agent", path=session.path, hint="pass --in pi")
        foreign = writer is not None or owner == "openclaw"  # pi and its relatives share files
        command = [*_AGENTS[agent], _plain_id(session) if agent in _BY_ID else session.path]
        forks = agent not in _BY_ID and (named.at is not None or foreign or kept)
        if app.store.database is not None and (forks or app.store.layout.owns(session.path)):
            convert = f"{app.command} convert {handle(app, session.id, session.path)}"
            hint = f"{convert} --to pi -o FILE; then {shlex.join(_AGENTS[agent])} FILE"
            raise Unsupported(f"{agent} needs a file, but this store is a database", path=session.path, hint=hint)
        if forks:
            if only_print or app.json:
                app.out.note("the session is forked into your store first; its own file is not changed")
                command = [*shlex.split(app.command), "resume", name, "--in", agent]
            else:
                command[-1] = _forked(app, session, named.at)
        elif session.is_draft:
            if only_print or app.json:
                app.out.note(f"the session is a draft, which {agent} cannot see; it is published first")
                command = [*shlex.split(app.command), "resume", name, "--in", agent]
            else:
                with app.store.open(session.path) as published:
                    command[-1] = published.path
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
        hint = f"install it, or pass --in {'|'.join(_AGENTS)}; the command is {shlex.join(command)}"
        raise NotFound(f"command not found: {command[0]}", hint=hint)
    if exists:
        os.chdir(cwd)
    else:
        app.out.note(f"its folder {cwd} does not exist; starting in {app.here}")
    sys.stdout.flush()
    sys.stderr.flush()
    return os.execv(program, command)


def _plain_id(session: Session) -> str:
    """Return the id of a session, safe as an argument: a file may claim any id, such as `-…`, which looks like an option."""
    if not is_plain_id(session.id):
        hint = "pass --in pi, which takes the file"
        raise Unsupported("unsafe session id", path=session.path, hint=hint)
    return session.id


def _forked(app: App, session: Session, entry: str | None) -> str:
    """Fork the session, or the path to an entry, into the user's store and return the file."""
    fork = app.store.fork_from(session.path, session.cwd) if entry is None else session.create_branched_session(entry)
    with fork:
        app.out.note(f"forked into {fork.path}")
        return fork.path
