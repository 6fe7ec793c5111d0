"""Resuming a session in the agent that wrote it, or in another one."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from typing import NamedTuple

import click

from sessile.agents.base import Placed
from sessile.agents.registry import AGENTS
from sessile.cli.arguments import SESSION, Named, can_ask, choose, damage, handle, opened, written_by
from sessile.cli.command import App, quoted, verb
from sessile.core.address import sub_agent
from sessile.core.ids import is_plain_id
from sessile.errors import NotFound, SessionNotFound, Unsupported
from sessile.render.wording import many
from sessile.session import Session
from sessile.storage.filesystem import PosixFilesystem
from sessile.transfer import origin_of, original_of, placed, write_placed

_IN = "Agent to resume in: claude, codex, pi, omp and xcsh take any session, the others only their own."
_AGENTS = {agent.name: agent.command for agent in AGENTS if agent.command}
_BY_ID = tuple(agent.name for agent in AGENTS if agent.resumes_by_id)
_TOLD = 3  # changes of a copy that are printed one by one


@verb(
    "sessile resume webhook            resume the session of this title in its agent",
    "sessile resume webhook --in codex in another agent, which gets a clean copy",
    "sessile resume 6513#9f31 --in pi  from an entry, in pi",
    "sessile resume @last --print      show what would be placed and run",
    name="resume",
)
@click.argument("session", type=SESSION, required=False)
@click.option("--in", "agent", type=click.Choice(tuple(_AGENTS)), help=_IN)
@click.option("--at", metavar="ENTRY", help="Resume from this entry, in a copy; same as SESSION#ENTRY.")
@click.option("--print", "only_print", is_flag=True, help="Print the command without running it.")
def resume_verb(app: App, session: str | None, agent: str | None, at: str | None, only_print: bool) -> int:
    """Resume a session: change to its folder and start its agent there.

    Another agent than the session's own gets a clean copy of the conversation, where it looks for its sessions. The copy has all
    texts, calls, results and images of the path. Resuming again finds the same copy if nothing has changed.

    Without a name, choose among the sessions of this folder; without a terminal, take the latest one.
    """
    if session is None:
        session = choose(app) if can_ask(app) else "@here"
    return _resume(app, f"{session}#{at}" if at else session, agent, only_print)


@verb("sessile continue        the latest session of this folder", "sessile continue --print", name="continue")
@click.option("--in", "agent", type=click.Choice(tuple(_AGENTS)), help=_IN)
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
        plan = _plan(app, name, named, agent)
        starts = not (only_print or app.json)
        program = shutil.which(_AGENTS[plan.agent][0]) if starts else None
        if starts and program is None:
            hint = f"install it, or pass --in {'|'.join(_AGENTS)}; the command is {shlex.join(plan.command)}"
            raise NotFound(f"command not found: {plan.command[0]}", hint=hint)
        if plan.copy is not None:
            _put(app, plan.agent, plan.copy, write=starts)
        damage(app, session)
        before = _before(app, name, named, plan)
    command = plan.command
    exists = os.path.isdir(cwd)
    if app.json:
        place = None if plan.copy is None else plan.copy.path
        if before:
            command = [*shlex.split(app.command), "resume", name, "--in", plan.agent]
        app.out.document("resume/1", argv=command, cwd=cwd, cwd_exists=exists, agent=plan.agent, place=place)
        return 0
    if only_print:
        app.out.line((f"cd {shlex.quote(cwd)} && " if exists else "") + before + shlex.join(command))
        return 0
    assert program is not None
    if exists:
        os.chdir(cwd)
    else:
        app.out.note(f"its folder {cwd} does not exist; starting in {app.here}")
    sys.stdout.flush()
    sys.stderr.flush()
    return os.execv(program, command)


class _Plan(NamedTuple):
    """What is resumed: a session where its own agent keeps it, or a copy for the agent."""

    agent: str
    target: str  # the id or the file
    copy: Placed | None = None

    @property
    def command(self) -> list[str]:
        """The command that resumes it."""
        return [*_AGENTS[self.agent], self.target]


def _plan(app: App, name: str, named: Named, agent: str | None) -> _Plan:
    session = named.session
    owner = written_by(session) or app.library.agent_of(session.path)
    kept = app.store.layout.keeps(session.path)  # its agent may have deleted the original
    origin = origin_of(session)
    agent = agent or next((each for each in (owner, origin) if each in _AGENTS), "pi")
    whole = named.at is None and sub_agent(name) is None and not session.is_draft
    if whole and agent == owner and not kept:
        return _Plan(agent, _plain_id(session) if agent in _BY_ID else session.path)
    original = original_of(session)
    if whole and agent == origin and original is not None and os.path.isfile(original) and is_plain_id(session.id):
        return _Plan(agent, session.id if agent in _BY_ID else original)
    if whole and kept and agent == owner and (copy := _put_back(app, session)) is not None:
        return _Plan(agent, _plain_id(session) if agent in _BY_ID else copy.path, copy)
    copy = placed_here(app, named, agent)
    return _Plan(agent, copy.id if agent in _BY_ID else copy.path, copy)


def placed_here(app: App, named: Named, agent: str) -> Placed:
    """Return the copy of a session for an agent of this user; if its folder does not exist, it goes on in the current one."""
    session = named.session
    cwd = session.cwd if os.path.isdir(session.cwd) else app.here
    return placed(session, agent, home=app.places.home, environ=os.environ, at=named.at, cwd=cwd)


def _put_back(app: App, session: Session) -> Placed | None:
    """Return a kept session as it was, for its own agent that has deleted it; `None` if the original is there."""
    path = app.library.original_of(session.path)
    if path is None or os.path.lexists(path):
        return None
    with open(session.path, "rb") as file:
        return Placed(session.id, path, [file.read()])


def _put(app: App, agent: str, copy: Placed, *, write: bool) -> None:
    """Write the copy for an agent, or say what would be written."""
    place = app.tilde(copy.path)
    if os.path.lexists(copy.path):
        app.out.note(f"nothing has changed since this was placed for {agent}; resuming {place}")
    elif not write:
        app.out.note(f"a copy is placed for {agent} first: {place}; the session's own file is not changed")
    elif write_placed(PosixFilesystem(), copy):
        app.out.note(f"placed for {agent}: {place}; the session's own file is not changed")
    for note in copy.notes[:_TOLD]:
        app.out.note(f"note: {note}")
    if len(copy.notes) > _TOLD:
        app.out.note(f"note: {many(len(copy.notes) - _TOLD, 'more change')}")


def _before(app: App, name: str, named: Named, plan: _Plan) -> str:
    """Return the command that places the copy, if that is to be done before the agent is started."""
    if plan.copy is None or os.path.lexists(plan.copy.path):
        return ""
    path = named.session.path
    address = name if sub_agent(name) is not None else handle(app, named.session.id, path, whole=True)
    if app.store.layout.keeps(path):
        return f"cp {quoted(path)} {quoted(plan.copy.path)} && "
    return f"{app.command} convert {address}{f'#{named.at}' if named.at else ''} --to {plan.agent} && "


def _plain_id(session: Session) -> str:
    """Return the id of a session, safe as an argument: a file may claim any id, such as `-…`, which looks like an option."""
    if not is_plain_id(session.id):
        hint = "pass --in pi, which gets a copy with an id of its own"
        raise Unsupported("unsafe session id", path=session.path, hint=hint)
    return session.id
